//! Order, states, floors and pages of the ledger.

mod histories;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;

use super::read::{add_to_buckets, page, sums};
use super::*;
use crate::cluster::{Machine as _, View};
use crate::id::{Digest128, DigestKind, Incarnation};
use crate::limits;
use crate::state::Replicated;
use crate::state::command::{
    self, AllowRevocations, BlockRow, Bootstrap, Command, Effect, EffectKind, LiftBlock, PublishSigningKey,
    Restore, RevocationRow, Revoke, TaintSigningKey,
};
use crate::state::resources::revoked_fact::fact_row;
use crate::state::tables::{BLOCK, REVOCATION, decode};
use crate::state::testing::{Rows, StateHarness, batch, signal};
use crate::token::lineage::Fact;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const EPOCH: Duration = Duration::from_secs(600);
const IDP: &str = "https://idp.example";
const ID: Incarnation = Incarnation::from_bytes([9; 16]);

fn fact(number: u8) -> Fact {
    Fact::subject(IDP, &format!("s{number}"))
}

fn revoke_fact(fact: &Fact, blocks: bool) -> Command {
    let (reason, caller) = ("lost".to_owned(), "alice".to_owned());
    Command::Revoke(Revoke { fact: Some(fact_row(fact)), reason, caller, blocks, ..Revoke::default() })
}

fn idle() -> Command {
    Command::AllowRevocations(AllowRevocations::default())
}

fn whole(view: &dyn View) -> Vec<LedgerEntry> {
    let page = page(view, &LedgerQuery { limit: 100_000, ..LedgerQuery::default() }).expect("a page");
    assert_eq!(page.next, None);
    page.entries
}

/// Index, key and state of each entry.
fn positions(harness: &StateHarness) -> Vec<(u64, Vec<u8>, LedgerState)> {
    let key = |entry: &LedgerEntry| {
        let by = entry.by.map(|by| by.as_bytes().to_vec()).unwrap_or_default();
        [entry.id.as_bytes().to_vec(), by].concat()
    };
    whole(&harness.rows).iter().map(|entry| (entry.index, key(entry), entry.state)).collect()
}

fn rows_of<'r>(
    harness: &'r StateHarness,
    table: &'static str,
) -> impl Iterator<Item = (&'r Vec<u8>, &'r Vec<u8>)> {
    harness.rows.0.iter().filter(move |((of, _), _)| of == table).map(|((_, key), row)| (key, row))
}

fn is_blocked(row: &BlockRow) -> bool {
    row.blocked_at_millis.is_some() && row.blocked_at_millis >= row.lifted_at_millis
}

#[derive(Clone, Debug)]
enum Step {
    Revoke { number: u8, blocks: bool },
    Token(u8),
    Signal { number: u8, kind: EffectKind, before: u16 },
    Lift(usize),
    Taint(u8),
    Wait(u64),
}

/// A ledger whose steps are applied one entry each.
struct History {
    harness: StateHarness,
    at: Timestamp,
    signals: u64,
    times: BTreeMap<u64, Timestamp>,
}

impl History {
    fn new() -> Self {
        let mut harness = StateHarness::default();
        let publish = |kid: u8| {
            let (kid, jwk) = (format!("k{kid}"), "{}".to_owned());
            Command::PublishSigningKey(PublishSigningKey { kid, node_id: 1, jwk, algorithm: String::new() })
        };
        harness.apply(START, vec![publish(0), publish(1)]);
        Self { harness, at: START, signals: 0, times: BTreeMap::new() }
    }

    fn command(&mut self, step: &Step) -> Command {
        match *step {
            Step::Revoke { number, blocks } => revoke_fact(&fact(number), blocks),
            Step::Token(number) => revoke_fact(&Fact::token(IDP, &format!("t{number}")), false),
            Step::Signal { number, kind, before } => {
                self.signals += 1;
                let Command::AcceptSignal(mut command) = signal(&self.signals.to_string(), &[]) else {
                    panic!("a signal")
                };
                let happened_at_millis = self.at.millis() - i64::from(before) * 1000;
                let (fact, family) = (Some(fact_row(&fact(number))), "account".to_owned());
                command.effects.push(Effect { kind: kind.into(), fact, family, happened_at_millis });
                Command::AcceptSignal(command)
            }
            Step::Lift(number) => {
                let ids: Vec<_> = rows_of(&self.harness, BLOCK).map(|(key, _)| key.clone()).collect();
                let id = ids.get(number).cloned().unwrap_or_default().into();
                Command::LiftBlock(LiftBlock { id })
            }
            Step::Taint(number) => {
                let kid = format!("k{number}");
                let digest = Fact::signing_key("https://fabric.example", &kid).digest();
                let digest = Bytes::copy_from_slice(digest.as_bytes());
                Command::TaintSigningKey(TaintSigningKey { kid, digest })
            }
            Step::Wait(secs) => {
                self.at = self.at.plus(Duration::from_secs(secs));
                idle()
            }
        }
    }

    /// Applies the steps as one entry. Returns the keys of the rows whose retention is over: the entry deletes them
    /// first, even if it writes them again.
    fn entry(&mut self, steps: &[Step]) -> Vec<Vec<u8>> {
        let commands = steps.iter().map(|step| self.command(step)).collect();
        let mut ended = Vec::new();
        for (key, row) in rows_of(&self.harness, REVOCATION) {
            let row: RevocationRow = decode(REVOCATION, row).expect("a row");
            ended.extend((row.kept_until_millis < self.at.millis()).then(|| key.clone()));
        }
        for (key, row) in rows_of(&self.harness, BLOCK) {
            let row: BlockRow = decode(BLOCK, row).expect("a row");
            let is_ended = !is_blocked(&row) && row.kept_until_millis < self.at.millis();
            ended.extend(is_ended.then(|| key.clone()));
        }
        self.harness.apply(self.at, commands);
        self.times.insert(self.harness.last_index(), self.at);
        ended
    }
}

// --- single rules -----------------------------------------------------------------------------------

/// The hashes that another implementation computes (contract §4, Federation).
#[test]
fn hashes_of_an_entry_a_block_and_a_root_are_stable() {
    let text = |bytes: [u8; 32]| URL_SAFE_NO_PAD.encode(bytes);
    let entry = entry_hash(&[1; 16], LedgerState::Revoked, 88_123, 3021);
    let block = entry_hash(&[[1; 16], [2; 16]].concat(), LedgerState::Blocked, 88_131, 3021);
    let watermarks = Sum::of_one(entry).plus(&Sum::of_one([0xff; 32]));
    let root = sum::root(&ID, 2877, &[(3021, watermarks)], &Sum::of_one(block));
    assert_eq!(
        [text(entry), text(block), text(watermarks.bytes), text(root)],
        [
            "LXWU9zTXR_PlQdUF4QF06klJVMoL9nNhppRP3FinnHc",
            "zN2VCkegKvz2NDbf1tOCT3E5JM-L-WR4CS6TtyU70RE",
            "LXWU9zTXR_PlQdUF4QF06klJVMoL9nNhppRP3FinnHY",
            "G5FA5h8LKIUfvz3VcQ9sIvkU86teyZcrC-PHOAZUcqM",
        ]
        .map(str::to_owned)
    );
    assert_eq!(watermarks.minus_one([0xff; 32]), Some(Sum::of_one(entry)));
    assert_eq!(Sum::default().minus_one([0; 32]), None, "an entry that is not there");
}

#[test]
fn repeated_revocation_moves_its_entry() {
    let mut harness = StateHarness::default();
    for number in [1, 2, 1] {
        harness.one(START, revoke_fact(&fact(number), false));
    }
    let key = |number| fact(number).digest().as_bytes().to_vec();
    assert_eq!(positions(&harness), [(2, key(2), LedgerState::Revoked), (3, key(1), LedgerState::Revoked)]);
    assert_eq!(sums(&harness.rows).expect("sums").changed_at, 3);
    // A command that changes no revocation leaves the ledger as it is.
    let before = sums(&harness.rows).expect("sums");
    harness.one(START, idle());
    assert_eq!(sums(&harness.rows).expect("sums"), before);
}

#[test]
fn tainted_key_and_token_are_covered_for_every_position() {
    let mut history = History::new();
    history.entry(&[Step::Taint(0), Step::Token(1)]);
    let states =
        |history: &History| whole(&history.harness.rows).iter().map(|entry| entry.state).collect::<Vec<_>>();
    assert_eq!(states(&history), [LedgerState::Key; 2]);
    // Named by its digest only, until an operator revokes it with its details.
    assert!(whole(&history.harness.rows).iter().any(|entry| entry.fact.is_none()));
    let key = Fact::signing_key("https://fabric.example", "k0");
    let Command::Revoke(command) = revoke_fact(&key, false) else { panic!("a revocation") };
    history.harness.one(START, Command::Revoke(Revoke { taints: true, ..command.clone() }));
    assert_eq!(states(&history), [LedgerState::Key; 2]);
    assert!(whole(&history.harness.rows).iter().all(|entry| entry.fact.is_some()));
    // Without the taint it is the key of another issuer, but what was covered stays covered.
    history.harness.one(START, Command::Revoke(command));
    assert_eq!(states(&history), [LedgerState::Key; 2]);
    history.harness.one(START, revoke_fact(&Fact::signing_key(IDP, "k0"), false));
    assert_eq!(states(&history)[2], LedgerState::Revoked, "the key of another issuer");
}

#[test]
fn lifted_block_leaves_the_sum_and_stays_in_order() {
    let mut harness = StateHarness::default();
    harness.one(START, revoke_fact(&fact(1), true));
    let blocked = sums(&harness.rows).expect("sums");
    assert_eq!((blocked.blocks.count, blocked.count(0)), (1, 2));
    let id = rows_of(&harness, BLOCK).next().expect("a block").0.clone();
    harness.one(START, Command::LiftBlock(LiftBlock { id: id.clone().into() }));
    let lifted = sums(&harness.rows).expect("sums");
    assert_eq!((lifted.blocks, lifted.changed_at), (Sum::default(), 2));
    assert_eq!(positions(&harness)[1], (2, id, LedgerState::Lifted));
    // A second lift is refused, and changes nothing.
    let again = Command::LiftBlock(LiftBlock { id: positions(&harness)[1].1.clone().into() });
    harness.one(START, again);
    assert_eq!(sums(&harness.rows).expect("sums"), lifted);
}

#[test]
fn forgotten_entries_raise_the_floors() {
    let mut harness = StateHarness::default();
    harness.one(START, revoke_fact(&fact(1), true));
    harness.one(START.plus(EPOCH), revoke_fact(&fact(2), false));
    let kept = START.plus(limits::REVOCATION_RETENTION);
    harness.one(kept, idle());
    let before = sums(&harness.rows).expect("sums");
    assert_eq!((before.forgotten_to, before.complete_from, before.epochs.len()), (0, 0, 2));
    harness.one(kept.plus(Duration::from_millis(1)), idle());
    let after = sums(&harness.rows).expect("sums");
    assert_eq!((after.forgotten_to, after.changed_at), (1, 4));
    assert_eq!((after.complete_from, after.epochs.len()), (epoch_of(START) + 1, 1));
    assert_eq!(after.blocks.count, 1, "a block stays until it is lifted");
    let states: Vec<_> = positions(&harness).iter().map(|(index, _, state)| (*index, *state)).collect();
    assert_eq!(states, [(1, LedgerState::Blocked), (2, LedgerState::Revoked)]);
    // The hash from that floor on does not change by forgetting.
    assert_eq!(before.root(&ID, after.complete_from), after.root(&ID, after.complete_from));
}

/// The rows as they were until the first scan of the order is over, and then as they are now.
struct Switching<'r> {
    before: &'r Rows,
    now: &'r Rows,
    has_scanned: Cell<bool>,
}

impl View for Switching<'_> {
    fn get(&self, table: &str, key: &[u8]) -> Result<Option<Vec<u8>>, Corrupt> {
        if self.has_scanned.get() { self.now.get(table, key) } else { self.before.get(table, key) }
    }

    fn scan(
        &self,
        table: &str,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Corrupt> {
        let rows = if self.has_scanned.replace(table == REVOCATION_ORDER) { self.now } else { self.before };
        rows.scan(table, from, visit)
    }
}

/// A page that left such an entry out would show a reader that the subject is not revoked.
#[test]
fn entry_that_moves_while_it_is_read_is_on_a_later_page() {
    let mut harness = StateHarness::default();
    for number in [1, 2] {
        harness.one(START, revoke_fact(&fact(number), false));
    }
    let before = Rows(harness.rows.0.clone());
    harness.one(START, revoke_fact(&fact(1), false));
    let indexes = |page: &LedgerPage| page.entries.iter().map(|entry| entry.index).collect::<Vec<_>>();
    let view = || Switching { before: &before, now: &harness.rows, has_scanned: Cell::new(false) };
    let query = |limit| LedgerQuery { limit, ..LedgerQuery::default() };
    assert_eq!(indexes(&page(&view(), &query(10)).expect("a page")), [2, 3]);
    let first = page(&view(), &query(2)).expect("a page");
    assert_eq!(indexes(&first), [2, 3]);
    let first = page(&view(), &query(1)).expect("a page");
    let after = first.next.clone();
    assert_eq!((indexes(&first), after.is_some()), (vec![], true), "only the entry that has moved was read");
    let rest = page(&harness.rows, &LedgerQuery { after, ..query(10) }).expect("a page");
    assert_eq!(indexes(&rest), [2, 3]);
}

#[test]
fn long_page_ends_early_with_a_cursor() {
    let mut harness = StateHarness::default();
    let most = limits::LEDGER_ROWS_READ_PER_PAGE;
    let row = EntryPosition { index: 0, epoch: 7, state: LedgerState::Revoked }.to_row();
    for index in 0..=most as u64 {
        let key = order_key(index, &[0; 16]);
        harness.rows.0.insert((REVOCATION_ORDER.to_owned(), key), row.clone());
    }
    let query = LedgerQuery { bucket: Some(1), limit: 1000, ..LedgerQuery::default() };
    let first = page(&harness.rows, &query).expect("a page");
    assert_eq!(first.next, LedgerCursor::after_entry(most as u64 - 1, &[0; 16]));
    let last = page(&harness.rows, &LedgerQuery { after: first.next, ..query }).expect("a page");
    assert_eq!(last, LedgerPage::default());
}

/// A restore keeps what was revoked. Its entries are read again under the new incarnation.
#[test]
fn restore_keeps_the_ledger_under_another_hash() {
    let mut harness = StateHarness::default();
    let id = |byte: u8| Bytes::from(vec![byte; 16]);
    let bootstrap = Bootstrap { cluster_id: id(1), incarnation: id(1), feature_level: 0 };
    harness.one(START, Command::Bootstrap(bootstrap));
    harness.one(START, revoke_fact(&fact(1), true));
    let root = |harness: &StateHarness| {
        let incarnation = harness.machine.index().incarnation.expect("bootstrapped");
        sums(&harness.rows).expect("sums").root(&incarnation, 0)
    };
    let (before, entries, hash) = (sums(&harness.rows).expect("sums"), whole(&harness.rows), root(&harness));
    let member = crate::cluster::MemberEntry {
        node_id: 1,
        address: "node-1:8695".to_owned(),
        disk_id: [7; 16],
        is_voter: true,
    };
    harness.members(&[member]);
    harness.one(START, Command::Restore(Restore { cluster_id: id(2), incarnation: id(3), node_id: 1 }));
    assert_eq!((sums(&harness.rows).expect("sums"), whole(&harness.rows)), (before, entries));
    assert_ne!(root(&harness), hash);
}

/// A missing row is a fault of this node, which must not go on counting from a wrong sum.
#[test]
fn missing_or_unknown_entry_is_corrupt() {
    let again = |break_row: &dyn Fn(&mut Rows)| {
        let mut harness = StateHarness::default();
        harness.one(START, revoke_fact(&fact(1), false));
        break_row(&mut harness.rows);
        let stamp = crate::cluster::Stamp { time: START, latest: START, elapsed: START };
        let batch = batch(stamp, vec![command::encode(revoke_fact(&fact(1), false))]);
        harness.machine.apply(&harness.rows, &batch, 2).expect_err("corrupt").to_string()
    };
    let key = order_key(1, fact(1).digest().as_bytes());
    let (order, sum) =
        ((REVOCATION_ORDER.to_owned(), key), (LEDGER_SUM.to_owned(), epoch_key(&OWN, epoch_of(START))));
    let found = again(&|rows| drop(rows.0.remove(&order)));
    assert!(found.contains("is not in the ledger"), "{found}");
    let found = again(&|rows| rows.0.get_mut(&order).expect("a row")[0] = 5);
    assert!(found.contains("unknown state"), "{found}");
    let found = again(&|rows| drop(rows.0.remove(&sum)));
    assert!(found.contains("lacks an entry"), "{found}");
}

#[test]
fn block_of_two_authors_is_two_entries() {
    let mut history = History::new();
    let block = Step::Signal { number: 1, kind: EffectKind::Block, before: 0 };
    history.entry(&[block, Step::Revoke { number: 1, blocks: true }]);
    let entries = whole(&history.harness.rows);
    let by: Vec<_> = entries.iter().filter_map(|entry| entry.by).collect();
    assert_eq!((entries.len(), by.len()), (3, 2));
    assert!(by[0] < by[1] && entries.iter().all(|entry| entry.id == fact(1).digest()));
    let operator = Digest128::of(DigestKind::SignalFamily, b"", b"operator");
    assert!(by.contains(&operator));
    let rebuilt = Replicated::default();
    rebuilt.rebuild(&history.harness.rows).expect("rebuilds");
}
