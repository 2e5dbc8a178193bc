//! Judgement by the tables that the relying fabric keeps: one row for each fact of the peer, a position, and three floors.

use super::{
    Command, Fact, Index, LedgerEntry, Position, Request, Response, Rule, Rules, State, Token, Verdict,
};
use std::collections::{BTreeMap, BTreeSet};

/// A fact of the peer's ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    /// Index of the entry in the origin fabric.
    n: Index,
    /// Index of the import in this fabric.
    m: Index,
}

/// The copy of the peer's ledger of one incarnation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Generation {
    incarnation: u8,
    position: Index,
    /// Newest entry that this fabric does not remember.
    floor_n: Index,
    rows: BTreeMap<Fact, Row>,
    blocks: BTreeSet<Fact>,
    /// Keys that are not in the key set.
    tainted: BTreeSet<Fact>,
}

/// The relying fabric's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    incarnation: u8,
    index: Index,
    revoked: BTreeMap<Fact, Index>,
    blocked: BTreeSet<Fact>,
    peer: Option<Generation>,
    /// Number of the copy; it changes when the peer is adopted, and when it is deleted.
    generation: u8,
    retired: BTreeSet<u8>,
    /// Import of the newest entry that this fabric does not remember.
    floor_m: Index,
    /// Every through-token below it is void.
    void_m: Index,
    /// Whether the peer waits for an operator.
    is_held: bool,
}

impl Tables {
    /// The state after these commands.
    #[must_use]
    pub fn after(rules: Rules, commands: &[Command]) -> Self {
        let mut states = vec![Self::default()];
        for command in commands {
            let mut next = states.last().cloned().unwrap_or_default();
            if let Command::Restore(index) = *command {
                let incarnation = next.incarnation + 1;
                states.retain(|state| state.index <= index);
                next = Self { incarnation, ..states.last().cloned().unwrap_or_default() };
            }
            next.apply(rules, command);
            states.push(next);
        }
        states.pop().unwrap_or_default()
    }

    fn apply(&mut self, rules: Rules, command: &Command) {
        self.index += 1;
        match command {
            Command::Import(response) => self.import(rules, response),
            Command::Forget(fact) => self.forget(*fact),
            Command::ForgetPeer => {
                (self.peer, self.void_m, self.is_held) = (None, self.index, false);
                self.generation += 1;
            }
            Command::Revoke(fact) => {
                self.revoked.insert(*fact, self.index);
            }
            Command::Block(fact) => {
                self.blocked.insert(*fact);
            }
            Command::Lift(fact) => {
                self.blocked.remove(fact);
            }
            Command::Restore(_) => {}
        }
    }

    fn forget(&mut self, fact: Fact) {
        let Some(peer) = &mut self.peer else { return };
        let Some(row) = peer.rows.remove(&fact) else { return };
        peer.floor_n = peer.floor_n.max(row.n);
        self.floor_m = self.floor_m.max(row.m);
    }

    fn import(&mut self, rules: Rules, response: &Response) {
        let present = self.peer.as_ref().map(|peer| peer.incarnation);
        let is_of_this_copy = response.request.generation == self.generation;
        if !is_of_this_copy && rules.keeps(Rule::ImportNamesItsRequest) {
            return;
        }
        let incarnation = response.through.incarnation;
        if self.retired.contains(&incarnation) {
            self.is_held = true;
            return;
        }
        if present != Some(incarnation) {
            self.adopt(rules, response);
        } else if self.is_out_of_order(rules, response) {
            return;
        }
        self.advance(rules, response);
    }

    /// A new incarnation of the peer, or its first one.
    fn adopt(&mut self, rules: Rules, response: &Response) {
        let old = self.peer.take();
        self.retired.extend(old.iter().map(|peer| peer.incarnation));
        let floor_n = match old {
            Some(peer) if !rules.keeps(Rule::FloorIsOfOneIncarnation) => peer.floor_n,
            _ => 0,
        };
        let incarnation = response.through.incarnation;
        self.peer = Some(Generation { incarnation, floor_n, ..Generation::default() });
        (self.is_held, self.generation) = (false, self.generation + 1);
        if rules.keeps(Rule::AdoptionVoids) {
            self.void_m = self.index;
        }
    }

    fn is_out_of_order(&mut self, rules: Rules, response: &Response) -> bool {
        let Some(position) = self.peer.as_ref().map(|peer| peer.position) else { return true };
        let (begin, through) = (response.begin(), response.through.index);
        let has_lost_its_past =
            through < begin || (through < position && !rules.keeps(Rule::OldResponsesAreIgnored));
        self.is_held |= has_lost_its_past;
        has_lost_its_past || begin > position || through < position
    }

    fn advance(&mut self, rules: Rules, response: &Response) {
        let m = self.index;
        let Some(peer) = &mut self.peer else { return };
        if response.floor > peer.position.max(response.begin()) {
            if rules.keeps(Rule::MissedEntriesRaiseFloorN) {
                peer.floor_n = peer.floor_n.max(response.floor);
            }
            if rules.keeps(Rule::MissedEntriesVoid) {
                self.void_m = m;
            }
        }
        if response.is_reset && rules.keeps(Rule::ResetReplacesBlocks) {
            peer.blocks.clear();
        }
        for entry in &response.entries {
            let is_known = entry.n <= peer.position && rules.keeps(Rule::KnownEntriesAreSkipped);
            peer.enter(rules, *entry, m, is_known);
        }
        peer.position = response.through.index;
        if rules.keeps(Rule::TaintedKeysLeaveTheSet) {
            peer.tainted.clone_from(&response.tainted);
        }
    }

    /// The next request.
    #[must_use]
    pub fn request(&self) -> Request {
        let position = |peer: &Generation| Position { incarnation: peer.incarnation, index: peer.position };
        Request { generation: self.generation, since: self.peer.as_ref().map(position) }
    }

    /// The position of this fabric's own log.
    #[must_use]
    pub fn at(&self) -> Position {
        Position { incarnation: self.incarnation, index: self.index }
    }

    /// Whether the peer waits for an operator.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// Whether there is an entry about this fact to forget.
    #[must_use]
    pub fn remembers(&self, fact: Fact) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.rows.contains_key(&fact))
    }
}

impl Generation {
    fn enter(&mut self, rules: Rules, entry: LedgerEntry, m: Index, is_known: bool) {
        match entry.state {
            State::Blocked => {
                self.blocks.insert(entry.fact);
            }
            State::Lifted => {
                self.blocks.remove(&entry.fact);
            }
            State::Revoked if !is_known => {
                let row = Row { n: entry.n, m };
                let slot = self.rows.entry(entry.fact).or_insert(row);
                if entry.n > slot.n && rules.keeps(Rule::RevokedAgainMoves) {
                    *slot = row;
                }
            }
            State::Revoked => {}
        }
    }
}

/// The verdict of the tables.
#[must_use]
pub fn judge_by_tables(rules: Rules, tables: &Tables, token: &Token) -> Verdict {
    let idx = token.at.index;
    let covers_ours = |(fact, index): (&Fact, &Index)| token.names(*fact) && *index > idx;
    let is_ours_revoked = token.is_ours
        && (token.at.incarnation != tables.incarnation || tables.revoked.iter().any(covers_ours));
    if is_ours_revoked || tables.blocked.iter().any(|fact| token.names(*fact)) {
        return Verdict::Revoked;
    }
    if token.is_ours && !(token.is_through && rules.keeps(Rule::ThroughTokensAreJudged)) {
        return Verdict::Clear;
    }
    let Some(peer) = tables.peer.as_ref().filter(|_| !tables.is_held) else { return Verdict::Unjudged };
    let is_retired = tables.retired.contains(&token.at.incarnation);
    if !token.is_ours && is_retired && rules.keeps(Rule::RetiredIsRefused) {
        return Verdict::Revoked;
    }
    let is_unknown = !token.is_ours && !is_retired && token.at.incarnation != peer.incarnation;
    if is_unknown && rules.keeps(Rule::UnknownIsUnjudged) {
        return Verdict::Unjudged;
    }
    if !token.is_ours && peer.tainted.iter().any(|fact| token.names(*fact)) {
        return Verdict::Revoked;
    }
    let floor_m = if rules.keeps(Rule::RefusesBelowFloorM) { tables.floor_m } else { 0 };
    let floor_n = if rules.keeps(Rule::RefusesBelowFloorN) { peer.floor_n } else { 0 };
    let floor = if token.is_ours { tables.void_m.max(floor_m) } else { floor_n };
    let covers = |row: &Row| {
        let index = if token.is_ours { row.m } else { row.n };
        index > idx || !rules.keeps(Rule::CoversLowerIndexes)
    };
    let is_covered = peer.rows.iter().any(|(fact, row)| token.names(*fact) && covers(row));
    let is_blocked = peer.blocks.iter().any(|fact| token.names(*fact));
    if idx < floor || is_covered || is_blocked { Verdict::Revoked } else { Verdict::Clear }
}
