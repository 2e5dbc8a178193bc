//! An origin fabric: its log, the ledger of its state, and its responses.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::state::command::PeerKeys;
use crate::state::resources::ledger::{LedgerState, LedgerSums, Sum, entry_hash};

/// Facts that the log names.
pub const FACTS: u8 = 3;

/// An entry of the log that others must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Revoke(u8),
    /// Of a signing key: it leaves the key set.
    Taint(u8),
    Block(u8),
    Lift(u8),
}

/// An event of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Entry(Change),
    /// It forgets its oldest entry that is not a block in force.
    Forget,
    /// It is restored from its state at this index, or at its end if that is lower.
    Restore(u64),
    /// So many epochs pass.
    Epochs(u32),
}

#[derive(Clone, Copy, Debug)]
struct Row {
    n: u64,
    epoch: u32,
    state: LedgerState,
}

/// State after some events.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub incarnation: u8,
    pub index: u64,
    floor: u64,
    epoch: u32,
    complete_from: u32,
    /// Latest entry of each fact; blocks apart.
    rows: BTreeMap<(u8, bool), Row>,
    tainted: BTreeSet<u8>,
}

/// A response, and the number of events before it, which no fabric sees.
#[derive(Clone, Debug)]
pub struct Response {
    pub import: ImportLedger,
    pub incarnation: u8,
    pub answered: usize,
}

/// Name of the key of a fact.
fn kid(fact: u8) -> char {
    char::from(b'A' + fact)
}

/// Names the keys of the set, one for each fact. A restored fabric has new ones.
fn etag(incarnation: u8, tainted: &BTreeSet<u8>) -> String {
    let kids = (0..FACTS).filter(|fact| !tainted.contains(fact)).map(kid);
    format!("{incarnation} {}", kids.collect::<String>())
}

/// Whether the key of a fact of this lineage has left the key set with this tag.
pub fn lacks_key(etag: &str, lineage: &[u8]) -> bool {
    lineage.iter().any(|fact| !etag.contains(kid(*fact)))
}

impl Ledger {
    pub fn after(events: &[Event]) -> Self {
        let mut states = vec![Self { epoch: 10, ..Self::default() }];
        for event in events {
            let mut next = states.last().cloned().unwrap_or_default();
            match *event {
                Event::Entry(change) => next.append(change),
                Event::Forget => next.forget(),
                Event::Epochs(epochs) => next.epoch += epochs,
                Event::Restore(index) => {
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
            Change::Revoke(fact) if self.is_tainted(fact) => (fact, LedgerState::Key),
            Change::Revoke(fact) => (fact, LedgerState::Revoked),
            Change::Taint(fact) => {
                self.tainted.insert(fact);
                (fact, LedgerState::Key)
            }
            Change::Block(fact) => (fact, LedgerState::Blocked),
            Change::Lift(fact) => (fact, LedgerState::Lifted),
        };
        let is_of_a_block = matches!(change, Change::Block(_) | Change::Lift(_));
        self.rows.insert((fact, is_of_a_block), Row { n: self.index, epoch: self.epoch, state });
    }

    fn is_tainted(&self, fact: u8) -> bool {
        self.rows.get(&(fact, false)).is_some_and(|row| row.state == LedgerState::Key)
    }

    fn forget(&mut self) {
        let forgettable = self.rows.iter().filter(|(_, row)| row.state != LedgerState::Blocked);
        let oldest = forgettable.min_by_key(|(_, row)| row.n).map(|(key, row)| (*key, *row));
        let Some((key, row)) = oldest else { return };
        self.rows.remove(&key);
        self.floor = self.floor.max(row.n);
        if !key.1 {
            self.complete_from = self.complete_from.max(row.epoch + 1);
        }
    }

    /// Whether a node would issue a token with this lineage.
    pub fn issues(&self, lineage: &[u8]) -> bool {
        let is_blocked =
            |fact: &u8| self.rows.get(&(*fact, true)).is_some_and(|row| row.state == LedgerState::Blocked);
        !lineage.iter().any(|fact| self.tainted.contains(fact) || is_blocked(fact))
    }

    fn sums(&self) -> LedgerSums {
        let mut sums = LedgerSums::default();
        let mut epochs: BTreeMap<u32, Sum> = BTreeMap::new();
        for ((number, is_of_a_block), row) in &self.rows {
            let mut key = fact(*number + 1).as_bytes().to_vec();
            key.extend(if *is_of_a_block { &[99; 16][..] } else { &[] });
            let one = Sum::of_one(entry_hash(&key, row.state, row.n, row.epoch));
            match (is_of_a_block, row.state) {
                (false, _) => {
                    let sum = epochs.entry(row.epoch).or_default();
                    *sum = sum.plus(&one);
                }
                (true, LedgerState::Blocked) => sums.blocks = sums.blocks.plus(&one),
                _ => {}
            }
        }
        sums.epochs = epochs.into_iter().collect();
        sums
    }

    /// The response to a call for what comes after this copy's position.
    pub fn answer(&self, copy: &PeerCopy, answered: usize) -> Response {
        let is_same = copy.incarnation() == Some(incarnation(self.incarnation));
        let since = if is_same { copy.position } else { 0 };
        let is_reset = !is_same || self.floor > since;
        let from = if is_reset { 0 } else { since };
        let mut entries: Vec<_> = self.rows.iter().filter(|(_, row)| row.n > from).map(entry).collect();
        entries.sort_by_key(|entry| entry.n);
        let floor_epoch = self.complete_from.max(copy.complete_from);
        let root = self.sums().root(&incarnation(self.incarnation), floor_epoch);
        let etag = etag(self.incarnation, &self.tainted);
        let keys = PeerKeys { etag: etag.clone(), key_set: Bytes::new() };
        let import = ImportLedger {
            generation: copy.generation,
            incarnation: Bytes::from(vec![self.incarnation; 16]),
            floor: self.floor,
            epoch: self.epoch,
            floor_epoch,
            root: Bytes::copy_from_slice(&root),
            is_reset,
            keys: Some(keys).filter(|_| copy.keys_etag != etag),
            ..response(from, self.index, entries)
        };
        Response { import, incarnation: self.incarnation, answered }
    }
}

fn entry(((number, is_of_a_block), row): (&(u8, bool), &Row)) -> PeerEntry {
    PeerEntry {
        n: row.n,
        epoch: row.epoch,
        state: row.state as u32,
        id: bytes_of(&fact(*number + 1)),
        by: if *is_of_a_block { bytes_of(&fact(99)) } else { Bytes::new() },
    }
}
