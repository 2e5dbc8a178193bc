//! The copies of peers' ledgers in memory, which every request about a credential of a peer reads. Fed by `apply`, rebuilt at
//! start.
//!
//! A request sees no state that is between two entries of the log, as far as that could accept a credential:
//! additions are visible before the peer's row, and floors are raised before an entry is removed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::RwLock;

use super::rows::{EntryRow, copy_key, read_block_key, read_entry_key};
use crate::cluster::{Corrupt, View, Write};
use crate::id::{Digest128, Incarnation};
use crate::state::command::{PeerKeys, PeerRow};
use crate::state::machine::idempotency::digest;
use crate::state::resources::ledger::{EntryPosition, LedgerState, Sum, entry_hash, sums_of};
use crate::state::tables::{PEER, PEER_BLOCK, PEER_KEYS, PEER_LEDGER, Tables, decode, eight_bytes, try_scan};
use crate::token::key_set::{KeySet, Purpose};

/// Number of parts of the entries of a copy, each with its own lock.
const PARTS: usize = 16;

/// Both indexes of an entry in 48 bits each, and whether it covers every index of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Indexes {
    n: [u8; 6],
    m: [u8; 6],
    covers_all: bool,
}

impl Indexes {
    /// No index is a reason to stop: larger ones than 48 bits hold count as the largest.
    fn new(row: &EntryRow) -> Self {
        let bytes = |index: u64| match index.to_be_bytes() {
            [0, 0, bytes @ ..] => bytes,
            _ => [u8::MAX; 6],
        };
        let covers_all = row.position.state == LedgerState::Key;
        Self { n: bytes(row.position.index), m: bytes(row.m), covers_all }
    }
}

fn index_of(bytes: [u8; 6]) -> u64 {
    let mut index = [0; 8];
    index[2..].copy_from_slice(&bytes);
    u64::from_be_bytes(index)
}

/// The entries of one generation.
struct Entries {
    floor_n: AtomicU64,
    floor_m: AtomicU64,
    parts: [RwLock<HashMap<Digest128, Indexes>>; PARTS],
}

impl Default for Entries {
    fn default() -> Self {
        let parts = std::array::from_fn(|_| RwLock::default());
        Self { floor_n: AtomicU64::new(0), floor_m: AtomicU64::new(0), parts }
    }
}

impl Entries {
    fn part(&self, id: &Digest128) -> &RwLock<HashMap<Digest128, Indexes>> {
        &self.parts[usize::from(id.as_bytes()[0]) % PARTS]
    }

    fn put(&self, id: Digest128, indexes: Indexes) {
        self.part(&id).write().insert(id, indexes);
    }

    fn remove(&self, id: &Digest128) {
        self.part(id).write().remove(id);
    }

    fn covers(&self, lineage: &[Digest128], covers: impl Fn(&Indexes) -> bool) -> bool {
        lineage.iter().any(|id| {
            let part = self.part(id).read();
            part.get(id).is_some_and(&covers)
        })
    }
}

/// The blocks in force.
#[derive(Default)]
struct Blocks(RwLock<BTreeSet<(Digest128, Digest128)>>);

impl Blocks {
    fn set(&self, id: Digest128, by: Digest128, is_blocked: bool) {
        let mut blocks = self.0.write();
        if is_blocked {
            blocks.insert((id, by))
        } else {
            blocks.remove(&(id, by))
        };
    }

    fn block(&self, lineage: &[Digest128]) -> bool {
        let blocks = self.0.read();
        lineage.iter().any(|id| {
            let from = (*id, Digest128::from_bytes([0; 16]));
            blocks.range(from..).next().is_some_and(|(blocked, _)| blocked == id)
        })
    }
}

/// A peer and its copy.
#[derive(Clone)]
pub struct PeerState {
    pub row: Arc<PeerRow>,
    /// `None` without a copy.
    pub incarnation: Option<Incarnation>,
    /// Its signing keys.
    pub keys: Arc<KeySet>,
    entries: Arc<Entries>,
    blocks: Arc<Blocks>,
    /// Whether the rows of the copy were not those of its sums when they were read.
    pub is_damaged: bool,
}

impl PeerState {
    fn new(row: PeerRow, before: Option<&Self>) -> Self {
        let of_the_copy = before.filter(|before| before.row.generation == row.generation);
        let is_damaged = of_the_copy.is_some_and(|before| before.is_damaged);
        let entries = of_the_copy.map(|before| Arc::clone(&before.entries)).unwrap_or_default();
        // A new generation has deleted the blocks of the one before.
        let blocks = of_the_copy.filter(|before| before.row.blocks_of == row.blocks_of);
        let blocks = blocks.map(|before| Arc::clone(&before.blocks)).unwrap_or_default();
        let keys = before.map(|before| Arc::clone(&before.keys)).unwrap_or_default();
        entries.floor_n.fetch_max(row.floor_n, Ordering::SeqCst);
        entries.floor_m.fetch_max(row.floor_m, Ordering::SeqCst);
        let incarnation = row.incarnation();
        Self { row: Arc::new(row), incarnation, keys, entries, blocks, is_damaged }
    }

    /// Whether this incarnation was replaced.
    #[must_use]
    pub fn has_retired(&self, incarnation: &Incarnation) -> bool {
        self.row.retired.iter().any(|retired| retired.as_ref() == incarnation.as_bytes())
    }

    /// Whether the peer blocks one of these facts.
    #[must_use]
    pub fn blocks(&self, lineage: &[Digest128]) -> bool {
        self.blocks.block(lineage)
    }

    /// Whether an entry, or the floor, covers a token of the peer that was issued at this index there.
    #[must_use]
    pub fn covers_n(&self, lineage: &[Digest128], idx: u64) -> bool {
        let covers = |indexes: &Indexes| indexes.covers_all || index_of(indexes.n) > idx;
        // The floor is read last: an entry that has been removed has raised it.
        self.entries.covers(lineage, covers) || idx < self.entries.floor_n.load(Ordering::SeqCst)
    }

    /// Whether an entry, or a floor, covers a through-token that was issued at this index here.
    #[must_use]
    pub fn covers_m(&self, lineage: &[Digest128], idx: u64) -> bool {
        self.entries.covers(lineage, |indexes| index_of(indexes.m) > idx)
            || idx < self.entries.floor_m.load(Ordering::SeqCst)
            || idx < self.row.void_m
    }
}

/// Every peer by its key.
#[derive(Default)]
pub struct PeerIndex(ArcSwap<BTreeMap<Digest128, PeerState>>);

impl PeerIndex {
    /// The peer with this key.
    #[must_use]
    pub fn get(&self, peer: &Digest128) -> Option<PeerState> {
        self.0.load().get(peer).cloned()
    }

    /// Takes the rows that an entry has written.
    pub fn project(&self, writes: &[Write]) -> Result<(), Corrupt> {
        let is_of_peers = |write: &&Write| match write {
            Write::Put { table, .. } | Write::Delete { table, .. } => {
                [PEER, PEER_KEYS, PEER_LEDGER, PEER_BLOCK].contains(table)
            }
            // Ranges are deleted with the generation or the blocks of a copy, which its next row replaces.
            Write::DeleteRange { .. } => false,
        };
        let writes: Vec<_> = writes.iter().filter(is_of_peers).collect();
        if writes.is_empty() {
            return Ok(());
        }
        let mut copies = BTreeMap::clone(&self.0.load());
        for table in [PEER, PEER_KEYS, PEER_LEDGER, PEER_BLOCK] {
            for write in &writes {
                match write {
                    Write::Put { table: of, key, value } if *of == table => {
                        put(&mut copies, table, key, value)?;
                    }
                    Write::Delete { table: PEER_KEYS, key } if table == PEER_KEYS => {
                        let peer = copies.get_mut(&digest(key)?);
                        if let Some(copy) = peer {
                            copy.keys = Arc::default();
                        }
                    }
                    _ => {}
                }
            }
        }
        let copies = Arc::new(copies);
        self.0.store(Arc::clone(&copies));
        writes.into_iter().try_for_each(|write| remove(&copies, write))
    }

    /// Reads all rows. A copy whose rows do not add up to its sums is not used: the disk lost or changed some
    /// of them, and revoked credentials would be accepted.
    pub fn rebuild(&self, view: &dyn View) -> Result<(), Corrupt> {
        let mut copies = BTreeMap::new();
        let mut counted = BTreeMap::new();
        for table in [PEER, PEER_KEYS, PEER_LEDGER, PEER_BLOCK] {
            try_scan(view, table, &[], |key, row| {
                put(&mut copies, table, key, row)?;
                count(&mut counted, table, key, row).map(|()| true)
            })?;
        }
        for (key, copy) in &mut copies {
            let of = |number: u64| counted.get(&copy_key(key, number)).cloned().unwrap_or_default();
            let (epochs, blocks) = (of(copy.row.generation).epochs, of(copy.row.blocks_of).blocks);
            let sums = sums_of(&Tables::new(view), &copy_key(key, copy.row.generation))?;
            copy.is_damaged = sums.blocks != blocks || !sums.epochs.into_iter().eq(epochs);
            if copy.is_damaged {
                let peer = &copy.row.issuer;
                tracing::error!(peer, "the copy of a peer's ledger is damaged on this node: repair the peer");
            }
        }
        self.0.store(Arc::new(copies));
        Ok(())
    }
}

/// The sums of the rows of a copy; those of blocks are under the number by which they are stored.
#[derive(Clone, Default)]
struct Counted {
    epochs: BTreeMap<u32, Sum>,
    blocks: Sum,
}

fn count(
    counted: &mut BTreeMap<Vec<u8>, Counted>,
    table: &str,
    key: &[u8],
    row: &[u8],
) -> Result<(), Corrupt> {
    match table {
        PEER_LEDGER => {
            let (peer, generation, id) = read_entry_key(key)?;
            let EntryPosition { index, epoch, state } = EntryRow::read(row)?.position;
            let one = Sum::of_one(entry_hash(id.as_bytes(), state, index, epoch));
            let sum =
                counted.entry(copy_key(&peer, generation)).or_default().epochs.entry(epoch).or_default();
            *sum = sum.plus(&one);
        }
        PEER_BLOCK => {
            let (peer, blocks_of, id, by) = read_block_key(key)?;
            let index = eight_bytes(PEER_BLOCK.as_bytes(), row.to_vec())?;
            let fact = [*id.as_bytes(), *by.as_bytes()].concat();
            let one = Sum::of_one(entry_hash(&fact, LedgerState::Blocked, index, 0));
            let counted = counted.entry(copy_key(&peer, blocks_of)).or_default();
            counted.blocks = counted.blocks.plus(&one);
        }
        _ => {}
    }
    Ok(())
}

fn put(
    copies: &mut BTreeMap<Digest128, PeerState>,
    table: &str,
    key: &[u8],
    row: &[u8],
) -> Result<(), Corrupt> {
    match table {
        PEER => {
            let (key, row) = (digest(key)?, decode::<PeerRow>(table, row)?);
            let copy = PeerState::new(row, copies.get(&key));
            copies.insert(key, copy);
        }
        PEER_KEYS => {
            let keys = decode::<PeerKeys>(table, row)?;
            // Its proposer has read it. A set that cannot be read here verifies nothing.
            let keys = KeySet::parse(&keys.key_set, Purpose::Issuer).unwrap_or_default();
            let peer = copies.get_mut(&digest(key)?);
            if let Some(copy) = peer {
                copy.keys = Arc::new(keys);
            }
        }
        PEER_LEDGER => {
            let (peer, generation, id) = read_entry_key(key)?;
            let indexes = Indexes::new(&EntryRow::read(row)?);
            let copy = copies.get(&peer).filter(|copy| copy.row.generation == generation);
            if let Some(copy) = copy {
                copy.entries.put(id, indexes);
            }
        }
        _ => {
            let (peer, blocks_of, id, by) = read_block_key(key)?;
            eight_bytes(PEER_BLOCK.as_bytes(), row.to_vec())?;
            let copy = copies.get(&peer).filter(|copy| copy.row.blocks_of == blocks_of);
            if let Some(copy) = copy {
                copy.blocks.set(id, by, true);
            }
        }
    }
    Ok(())
}

fn remove(copies: &BTreeMap<Digest128, PeerState>, write: &Write) -> Result<(), Corrupt> {
    match write {
        Write::Delete { table: PEER_LEDGER, key } => {
            let (peer, generation, id) = read_entry_key(key)?;
            let copy = copies.get(&peer).filter(|copy| copy.row.generation == generation);
            if let Some(copy) = copy {
                copy.entries.remove(&id);
            }
        }
        Write::Delete { table: PEER_BLOCK, key } => {
            let (peer, blocks_of, id, by) = read_block_key(key)?;
            let copy = copies.get(&peer).filter(|copy| copy.row.blocks_of == blocks_of);
            if let Some(copy) = copy {
                copy.blocks.set(id, by, false);
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    /// Six million of them fit into 260 MB.
    #[test]
    fn entry_takes_29_bytes() {
        assert_eq!(size_of::<(Digest128, Indexes)>(), 29);
    }

    /// A row that cannot be projected would stop every node, at each start again.
    #[test]
    fn index_beyond_48_bits_counts_as_the_largest() {
        let position = EntryPosition { index: 1 << 48, epoch: 10, state: LedgerState::Revoked };
        let row = EntryRow { position, m: u64::MAX, kept_until: Timestamp::from_secs(1) };
        let indexes = Indexes::new(&row);
        assert_eq!([indexes.n, indexes.m].map(index_of), [(1 << 48) - 1; 2]);
    }
}
