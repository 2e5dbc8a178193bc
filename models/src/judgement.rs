//! Judgement of a peer's credentials: by the tables that the relying fabric keeps, and by both complete logs
//! ([the page on federation](../../docs/design/federation.md)).
//!
//! The origin fabric's log holds revocations, taints, blocks and lifts. The relying fabric reads it by responses, applies
//! them to its own log, forgets entries, and judges two kinds of credential: tokens of the origin fabric, by the index at
//! which they were issued, and its own tokens that were minted from such a token, by its own index. Both fabrics may be
//! restored, which begins a new life of the log, and either may forget anything at any time: no decision uses a clock.
//!
//! Leases are in [`crate::federation`]; here every response that is applied was answered after its request. Not modelled:
//! pages, the audit by sums, repair, quotas, general entries.

pub mod logs;
pub mod orders;
pub mod tables;

use std::collections::{BTreeMap, BTreeSet};

/// A position in a log. The origin fabric's is written n, the relying one's m.
pub type Index = u8;
/// A fact that a lineage names, such as a subject or a signing key.
pub type Fact = u8;

/// The rules. Each can be left out to show its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A revocation covers the tokens with a lower index, and no others.
    CoversLowerIndexes,
    /// The key set of a response replaces the former one: a thief of a key writes any index into a token.
    TaintedKeysLeaveTheSet,
    /// A fact that is revoked again has the later index.
    RevokedAgainMoves,
    /// A token of the peer below the newest forgotten n is refused.
    RefusesBelowFloorN,
    /// A through-token below the newest forgotten m is refused.
    RefusesBelowFloorM,
    /// A response that lacks entries which the origin fabric forgot raises the floor to the newest of them.
    MissedEntriesRaiseFloorN,
    /// Such a response voids every earlier through-token.
    MissedEntriesVoid,
    /// A forgotten lift raises the floor of the origin fabric like a forgotten revocation.
    LiftsRaiseTheFloor,
    /// A complete response replaces all blocks of the peer.
    ResetReplacesBlocks,
    /// The tokens of a retired incarnation are refused.
    RetiredIsRefused,
    /// The tokens of an incarnation whose log was never read are not judged.
    UnknownIsUnjudged,
    /// A new incarnation voids every earlier through-token.
    AdoptionVoids,
    /// A new incarnation begins with its own floor.
    FloorIsOfOneIncarnation,
    /// Through-tokens are judged by the peer's ledger.
    ThroughTokensAreJudged,
    /// A minted token carries the index that was read before the credential was judged.
    IndexIsReadFirst,
    /// An import names the copy of the ledger for which it was requested, and is ignored for another copy.
    ImportNamesItsRequest,
    /// A response that ends before the position is ignored.
    OldResponsesAreIgnored,
    /// Entries up to the position are skipped.
    KnownEntriesAreSkipped,
}

/// Every rule.
pub const RULES: [Rule; 18] = [
    Rule::CoversLowerIndexes,
    Rule::TaintedKeysLeaveTheSet,
    Rule::RevokedAgainMoves,
    Rule::RefusesBelowFloorN,
    Rule::RefusesBelowFloorM,
    Rule::MissedEntriesRaiseFloorN,
    Rule::MissedEntriesVoid,
    Rule::LiftsRaiseTheFloor,
    Rule::ResetReplacesBlocks,
    Rule::RetiredIsRefused,
    Rule::UnknownIsUnjudged,
    Rule::AdoptionVoids,
    Rule::FloorIsOfOneIncarnation,
    Rule::ThroughTokensAreJudged,
    Rule::IndexIsReadFirst,
    Rule::ImportNamesItsRequest,
    Rule::OldResponsesAreIgnored,
    Rule::KnownEntriesAreSkipped,
];

/// All rules, or all but one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    /// The rule that is left out.
    pub without: Option<Rule>,
}

impl Rules {
    /// Whether this rule is kept.
    #[must_use]
    pub fn keeps(self, rule: Rule) -> bool {
        self.without != Some(rule)
    }
}

/// A position in one life of a fabric's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The incarnation, numbered in order.
    pub incarnation: u8,
    /// The log index.
    pub index: Index,
}

/// An entry of the origin fabric's log that others must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A revocation: covers credentials issued before it.
    Revoke(Fact),
    /// A taint of a signing key: covers every index.
    Taint(Fact),
    /// A block: covers everything until it is lifted.
    Block(Fact),
    /// The end of a block.
    Lift(Fact),
}

/// An event of the origin fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OriginEvent {
    /// The next entry of its log.
    Entry(Change),
    /// It forgets its oldest entry that is not a block in force.
    Forget,
    /// It is restored from its state at this index, or at its end if that is lower.
    Restore(Index),
}

/// A row of the origin fabric's ledger: the latest entry of each fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    Revoked,
    Blocked,
    /// No longer blocked.
    Lifted,
}

impl State {
    fn is_of_a_block(self) -> bool {
        matches!(self, State::Blocked | State::Lifted)
    }
}

/// An entry of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LedgerEntry {
    /// Index in the origin fabric.
    pub n: Index,
    pub fact: Fact,
    pub state: State,
}

/// A request of the relying fabric for every entry after a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Number of the copy of the ledger for which it is sent.
    pub generation: u8,
    /// The position, if there is a copy.
    pub since: Option<Position>,
}

/// The origin fabric's response.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Response {
    pub request: Request,
    /// The last position that the response covers.
    pub through: Position,
    /// The newest entry that the origin fabric has forgotten.
    pub floor: Index,
    /// Whether the response holds all blocks in force.
    pub is_reset: bool,
    pub entries: Vec<LedgerEntry>,
    /// Tainted keys, which are not in the key set.
    pub tainted: BTreeSet<Fact>,
    /// Number of events of the origin fabric before the response; the relying fabric does not see it.
    pub answered: usize,
}

impl Response {
    /// The index after which the response holds every entry.
    #[must_use]
    pub fn begin(&self) -> Index {
        let since = self.request.since.filter(|since| since.incarnation == self.through.incarnation);
        since.map_or(0, |since| since.index)
    }

    /// Whether the origin fabric has forgotten entries that the response should hold.
    #[must_use]
    pub fn misses_entries(&self) -> bool {
        self.floor > self.begin()
    }
}

/// A command in the relying fabric's log. Each takes one index.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Applies a response.
    Import(Response),
    /// Forgets the peer's entry about this fact.
    Forget(Fact),
    /// Deletes the peer.
    ForgetPeer,
    /// The relying fabric's own revocation.
    Revoke(Fact),
    /// The relying fabric's own block.
    Block(Fact),
    /// The end of that.
    Lift(Fact),
    /// The fabric is restored from its state at this index, or at its end if that is lower.
    Restore(Index),
}

/// A credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// Whether the relying fabric issued it.
    pub is_ours: bool,
    /// Whether it came from the origin fabric.
    pub is_through: bool,
    /// The position that it carries (`idx`).
    pub at: Position,
    /// One bit for each fact that its lineage names.
    pub lineage: u8,
    /// Incarnation of the origin fabric's token that it comes from, and number of events that the issuing node had
    /// applied; no fabric sees either.
    pub root: (u8, usize),
}

impl Token {
    /// Whether the lineage names this fact.
    #[must_use]
    pub fn names(&self, fact: Fact) -> bool {
        self.lineage & (1 << fact) != 0
    }
}

/// Result of a judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Accepted.
    Clear,
    /// Refused.
    Revoked,
    /// The state cannot be known.
    Unjudged,
}

/// The origin fabric's state, by its events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    pub incarnation: u8,
    /// Last index.
    pub index: Index,
    /// Newest forgotten entry.
    pub floor: Index,
    /// Latest entry of each fact; blocks apart.
    pub rows: BTreeMap<(Fact, bool), LedgerEntry>,
    /// Tainted keys; the key set forgets none.
    pub tainted: BTreeSet<Fact>,
}

impl Ledger {
    /// The state after these events.
    #[must_use]
    pub fn after(rules: Rules, events: &[OriginEvent]) -> Self {
        let mut states = vec![Self::default()];
        for event in events {
            let mut next = states.last().cloned().unwrap_or_default();
            match *event {
                OriginEvent::Entry(change) => next.append(change),
                OriginEvent::Forget => next.forget(rules),
                OriginEvent::Restore(index) => {
                    let incarnation = next.incarnation + 1;
                    states.retain(|state| state.index <= index);
                    next = Self { incarnation, ..states.last().cloned().unwrap_or_default() };
                }
            }
            states.push(next);
        }
        states.pop().unwrap_or_default()
    }

    fn append(&mut self, change: Change) {
        self.index += 1;
        let (fact, state) = match change {
            Change::Revoke(fact) => (fact, State::Revoked),
            Change::Taint(fact) => {
                self.tainted.insert(fact);
                (fact, State::Revoked)
            }
            Change::Block(fact) => (fact, State::Blocked),
            Change::Lift(fact) => (fact, State::Lifted),
        };
        self.rows.insert((fact, state.is_of_a_block()), LedgerEntry { n: self.index, fact, state });
    }

    fn forget(&mut self, rules: Rules) {
        let forgettable = self.rows.values().filter(|row| row.state != State::Blocked);
        let Some(oldest) = forgettable.min_by_key(|row| row.n).copied() else { return };
        self.rows.remove(&(oldest.fact, oldest.state.is_of_a_block()));
        if oldest.state != State::Lifted || rules.keeps(Rule::LiftsRaiseTheFloor) {
            self.floor = self.floor.max(oldest.n);
        }
    }

    /// Whether there is an entry that may be forgotten.
    #[must_use]
    pub fn can_forget(&self) -> bool {
        self.rows.values().any(|row| row.state != State::Blocked)
    }

    /// Whether this fact is blocked.
    #[must_use]
    pub fn blocks(&self, fact: Fact) -> bool {
        self.rows.get(&(fact, true)).is_some_and(|row| row.state == State::Blocked)
    }

    /// The response to a request.
    #[must_use]
    pub fn answer(&self, request: Request, answered: usize) -> Response {
        let mut response = Response {
            request,
            through: Position { incarnation: self.incarnation, index: self.index },
            floor: self.floor,
            is_reset: false,
            entries: Vec::new(),
            tainted: self.tainted.clone(),
            answered,
        };
        let begin = response.begin();
        let is_same = request.since.is_some_and(|since| since.incarnation == self.incarnation);
        response.is_reset = !is_same || response.misses_entries();
        let is_asked =
            |row: &&LedgerEntry| row.n > begin || (response.is_reset && row.state == State::Blocked);
        response.entries = self.rows.values().filter(is_asked).copied().collect();
        response.entries.sort_by_key(|entry| entry.n);
        response
    }

    /// Whether the origin fabric would issue a token with this lineage now.
    #[must_use]
    pub fn issues(&self, lineage: u8) -> bool {
        !facts(lineage).iter().any(|fact| self.tainted.contains(fact) || self.blocks(*fact))
    }
}

/// Facts that a set of lineage bits names.
#[must_use]
pub fn facts(lineage: u8) -> BTreeSet<Fact> {
    (0..8).filter(|fact| lineage & (1 << fact) != 0).collect()
}
