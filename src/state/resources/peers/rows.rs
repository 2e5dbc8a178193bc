//! Keys and rows of peers and of the copies of their ledgers.

use bytes::Bytes;
use prost::Message as _;

use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::Digest128;
use crate::limits;
use crate::state::command::{LedgerRow, PeerFault, PeerRow};
use crate::state::machine::idempotency::digest;
use crate::state::resources::ledger::{self, Change, EntryPosition, LedgerState};
use crate::state::tables::{FEDERATED, LEDGER_SUM, PEER, PEER_BLOCK, PEER_KEYS, PEER_LEDGER, Tables};
use crate::token::lineage;

/// Length of the key of a copy: peer and generation.
const COPY_BYTES: usize = 24;

/// Key of the copy of this generation.
#[must_use]
pub fn copy_key(peer: &Digest128, generation: u64) -> Vec<u8> {
    [&peer.as_bytes()[..], &generation.to_be_bytes()].concat()
}

/// Key of an entry of a copy.
#[must_use]
pub fn entry_key(peer: &Digest128, generation: u64, id: &Digest128) -> Vec<u8> {
    [&copy_key(peer, generation)[..], id.as_bytes()].concat()
}

/// Peer, generation and id of an entry.
pub fn read_entry_key(key: &[u8]) -> Result<(Digest128, u64, Digest128), Corrupt> {
    let (copy, id) = key.split_at_checked(COPY_BYTES).ok_or_else(short_key)?;
    let (peer, generation) = copy.split_at(16);
    let generation = generation.try_into().map_err(|_| short_key())?;
    Ok((digest(peer)?, u64::from_be_bytes(generation), digest(id)?))
}

/// Key of a block that is stored under `blocks_of`.
#[must_use]
pub fn block_key(peer: &Digest128, blocks_of: u64, id: &Digest128, by: &Digest128) -> Vec<u8> {
    [&copy_key(peer, blocks_of)[..], id.as_bytes(), by.as_bytes()].concat()
}

/// Peer, `blocks_of`, fact and author of a block.
pub fn read_block_key(key: &[u8]) -> Result<(Digest128, u64, Digest128, Digest128), Corrupt> {
    let (block, by) = key.split_at_checked(COPY_BYTES + 16).ok_or_else(short_key)?;
    let (peer, blocks_of, id) = read_entry_key(block)?;
    Ok((peer, blocks_of, id, digest(by)?))
}

fn short_key() -> Corrupt {
    Corrupt::row("the key of an entry of a peer is short")
}

/// Row of an entry of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRow {
    /// Log index, epoch and state in the peer.
    pub position: EntryPosition,
    /// Log index of its import.
    pub m: u64,
    /// End of its retention, in elapsed time.
    pub kept_until: Timestamp,
}

impl EntryRow {
    pub fn to_row(self) -> Vec<u8> {
        let EntryPosition { index, epoch, state } = self.position;
        let numbers = [index, self.m].map(u64::to_be_bytes).concat();
        let kept_until = self.kept_until.millis().to_be_bytes();
        [&[state as u8][..], &numbers, &epoch.to_be_bytes(), &kept_until].concat()
    }

    pub fn read(row: &[u8]) -> Result<Self, Corrupt> {
        Self::parts(row).ok_or_else(|| Corrupt::row("an entry of a peer's ledger is not 29 bytes"))
    }

    fn parts(row: &[u8]) -> Option<Self> {
        let (state, rest) = row.split_first()?;
        let (index, rest) = rest.split_first_chunk()?;
        let (m, rest) = rest.split_first_chunk()?;
        let (epoch, kept_until) = rest.split_first_chunk()?;
        let position = EntryPosition {
            index: u64::from_be_bytes(*index),
            epoch: u32::from_be_bytes(*epoch),
            state: LedgerState::of_byte(*state)?,
        };
        let kept_until = i64::from_be_bytes(kept_until.try_into().ok()?);
        Some(Self { position, m: u64::from_be_bytes(*m), kept_until: Timestamp::from_millis(kept_until) })
    }
}

/// A peer and the sums of its copy, as a command changes them.
pub struct Peer {
    pub key: Digest128,
    pub row: PeerRow,
    pub ledger: LedgerRow,
}

impl Peer {
    /// `None` if nothing was stored of it.
    pub fn load(tables: &Tables<'_>, key: Digest128) -> Result<Option<Self>, Corrupt> {
        let Some(row) = tables.message::<PeerRow>(PEER, key.as_bytes())? else { return Ok(None) };
        let ledger = ledger::row_of(tables, &copy_key(&key, row.generation))?;
        Ok(Some(Self { key, row, ledger }))
    }

    /// A peer of which nothing is stored.
    #[must_use]
    pub fn new(issuer: &str) -> Self {
        let row = PeerRow { issuer: issuer.to_owned(), ..PeerRow::default() };
        Self { key: lineage::fabric(issuer), row, ledger: LedgerRow::default() }
    }

    pub fn store(self, tables: &mut Tables<'_>) {
        if self.has_copy() {
            ledger::put_row(tables, &self.origin(), self.ledger);
        }
        tables.put(PEER, self.key.as_bytes(), self.row.encode_to_vec());
    }

    #[must_use]
    pub fn has_copy(&self) -> bool {
        !self.row.incarnation.is_empty()
    }

    /// Origin of its sums.
    #[must_use]
    pub fn origin(&self) -> Vec<u8> {
        copy_key(&self.key, self.row.generation)
    }

    /// The log index of the peer up to which the copy has every entry, or has forgotten it.
    #[must_use]
    pub fn has_to(&self) -> u64 {
        if self.row.is_repaired { self.row.floor_n } else { self.row.known_to }
    }

    /// Whether the copy has this entry, or has forgotten it. A repaired one has forgotten none of its complete epochs.
    #[must_use]
    pub fn has(&self, entry: EntryPosition) -> bool {
        let is_complete = self.row.is_repaired && entry.epoch >= self.row.complete_from;
        entry.index <= self.has_to() && !is_complete
    }

    #[must_use]
    pub fn entry_key(&self, id: &Digest128) -> Vec<u8> {
        entry_key(&self.key, self.row.generation, id)
    }

    #[must_use]
    pub fn block_key(&self, id: &Digest128, by: &Digest128) -> Vec<u8> {
        block_key(&self.key, self.row.blocks_of, id, by)
    }

    pub fn entry(&self, tables: &Tables<'_>, id: &Digest128) -> Result<Option<EntryRow>, Corrupt> {
        tables.row(PEER_LEDGER, &self.entry_key(id))?.map(|row| EntryRow::read(&row)).transpose()
    }

    /// Deletes the rows of the copy. Those of ends expire.
    pub fn delete_copy(&mut self, tables: &mut Tables<'_>) -> Result<(), Corrupt> {
        if !self.has_copy() {
            return Ok(());
        }
        self.delete_blocks(tables)?;
        let generation = self.row.generation;
        for table in [PEER_LEDGER, LEDGER_SUM] {
            let end = copy_key(&self.key, generation.saturating_add(1));
            tables.delete_range(table, self.origin(), end);
        }
        tables.delete(PEER_KEYS, self.key.as_bytes());
        self.ledger = LedgerRow::default();
        Ok(())
    }

    /// Deletes the copy, and voids every earlier through-token. Returns the incarnation of the copy; empty
    /// without one.
    pub fn begin_generation(&mut self, tables: &mut Tables<'_>) -> Result<Bytes, Corrupt> {
        self.delete_copy(tables)?;
        let old = std::mem::take(&mut self.row);
        self.row = PeerRow {
            issuer: old.issuer,
            generation: old.generation.saturating_add(1),
            retired: old.retired,
            forgotten: old.forgotten,
            forgotten_to: old.forgotten_to,
            floor_m: old.floor_m,
            void_m: tables.entry_index(),
            is_paused: old.is_paused,
            expiring: old.expiring,
            ..PeerRow::default()
        };
        Ok(old.incarnation)
    }

    /// Refuses an incarnation, if it is one, from now on. The oldest ones are no longer remembered.
    pub fn retire(&mut self, incarnation: Bytes) {
        let retired = &mut self.row.retired;
        retired.extend(Some(incarnation).filter(|replaced| !replaced.is_empty()));
        let surplus = retired.len().saturating_sub(limits::RETIRED_INCARNATIONS_MAX);
        retired.drain(..surplus);
    }

    /// Deletes the blocks of the copy.
    pub fn delete_blocks(&mut self, tables: &mut Tables<'_>) -> Result<(), Corrupt> {
        let of = self.row.blocks_of;
        let end = copy_key(&self.key, of.saturating_add(1));
        tables.delete_range(PEER_BLOCK, copy_key(&self.key, of), end);
        tables.subtract(FEDERATED, self.row.blocks)?;
        (self.row.blocks, self.ledger.blocks) = (0, None);
        Ok(())
    }

    /// Adds an entry to the sum of its epoch, or removes it.
    pub fn count_entry(
        &mut self,
        tables: &mut Tables<'_>,
        id: &Digest128,
        position: EntryPosition,
        change: Change,
    ) -> Result<(), Corrupt> {
        let origin = self.origin();
        let key = ledger::epoch_key(&origin, position.epoch);
        let was_there = tables.row(LEDGER_SUM, &key)?.is_some();
        ledger::change_sum(tables, &origin, &mut self.ledger, id.as_bytes(), position, change)?;
        match (was_there, tables.row(LEDGER_SUM, &key)?.is_some()) {
            (false, true) => self.row.epochs = self.row.epochs.saturating_add(1),
            (true, false) => self.row.epochs = self.row.epochs.saturating_sub(1),
            _ => {}
        }
        Ok(())
    }

    /// Adds a block to the sum of blocks, or removes it.
    pub fn count_block(
        &mut self,
        tables: &mut Tables<'_>,
        (id, by): (&Digest128, &Digest128),
        n: u64,
        change: Change,
    ) -> Result<(), Corrupt> {
        let fact = [*id.as_bytes(), *by.as_bytes()].concat();
        let position = EntryPosition { index: n, epoch: 0, state: LedgerState::Blocked };
        let origin = self.origin();
        ledger::change_sum(tables, &origin, &mut self.ledger, &fact, position, change)
    }

    /// Raises the floors to an entry that is no longer remembered.
    pub fn raise_floors(&mut self, position: EntryPosition, m: u64) {
        let row = &mut self.row;
        (row.floor_n, row.floor_m) = (row.floor_n.max(position.index), row.floor_m.max(m));
        row.complete_from = row.complete_from.max(position.epoch.saturating_add(1));
    }

    /// Holds the peer; a fault replaces one with a smaller number only. Returns whether anything changed.
    pub fn hold(&mut self, fault: PeerFault) -> bool {
        let is_worse = i32::from(fault) > self.row.fault;
        if is_worse {
            self.row.fault = fault.into();
        }
        let is_loss = fault == PeerFault::PeerRolledBack && !self.row.is_rolled_back;
        self.row.is_rolled_back |= is_loss;
        is_worse || is_loss
    }
}
