//! Entries of a peer's ledger in the copy of it: their plan, their quota, and how they are added, moved and forgotten.

use std::collections::BTreeSet;

use super::rows::{EntryRow, Peer};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::Digest128;
use crate::limits;
use crate::state::resources::ledger::{Change, EntryPosition, LedgerState};
use crate::state::tables::{
    FEDERATED, PEER_BLOCK, PEER_LEDGER, PEER_LEDGER_END, Tables, eight_bytes, time_key,
};

/// A well-formed entry of an import.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub position: EntryPosition,
    pub id: Digest128,
    /// Author of a block or lift.
    pub by: Option<Digest128>,
}

/// The copy that a plan is made for.
#[derive(Clone, Copy)]
pub struct Target<'p> {
    pub peer: &'p Peer,
    /// Whether the import begins a new copy.
    pub is_new: bool,
    /// Whether the import begins to read the ledger again.
    pub is_reset: bool,
    /// Epoch of the peer.
    pub epoch: u32,
}

/// Effect of an entry, with its earlier row.
enum Step {
    /// The entry is known, or was known and is forgotten.
    Skip,
    Add(Option<EntryRow>),
    /// It is too old to be remembered.
    Forget(Option<EntryRow>),
    Block(Digest128, Option<u64>),
    Lift(Digest128, u64),
}

/// The effects of the entries of an import. An import names each fact once, so no effect depends on another.
pub struct Plan(Vec<(Entry, Step)>);

impl Plan {
    pub fn of(tables: &Tables<'_>, target: Target<'_>, entries: &[Entry]) -> Result<Self, Corrupt> {
        let step = |entry: &Entry| Ok((*entry, target.step(tables, entry)?));
        entries.iter().map(step).collect::<Result<_, _>>().map(Self)
    }

    /// Whether the peer and all peers together stay within their quotas. An import that adds nothing stays within those of
    /// entries, but may move entries to other epochs.
    pub fn fits(&self, tables: &Tables<'_>, target: Target<'_>, entries_max: u32) -> Result<bool, Corrupt> {
        let row = &target.peer.row;
        let remembered = self.0.iter().filter(|(_, step)| matches!(step, Step::Add(_)));
        let epochs: BTreeSet<u32> = remembered.map(|(entry, _)| entry.position.epoch).collect();
        let known_epochs = if target.is_new { 0 } else { usize::try_from(row.epochs).unwrap_or(usize::MAX) };
        if !epochs.is_empty() && known_epochs.saturating_add(epochs.len()) > limits::FEDERATED_EPOCHS_MAX {
            return Ok(false);
        }
        let is_new = |step: &Step| matches!(step, Step::Add(None) | Step::Block(_, None));
        let added = self.0.iter().filter(|(_, step)| is_new(step)).count() as u64;
        if added == 0 {
            return Ok(true);
        }
        let blocks = if target.is_new || target.is_reset { 0 } else { row.blocks };
        let of_peer = row.expiring.saturating_add(blocks).saturating_add(added);
        let of_all = tables.number(FEDERATED)?.saturating_add(added);
        Ok(of_peer <= u64::from(entries_max) && of_all <= limits::FEDERATED_ENTRIES_MAX.into())
    }

    /// Applies the effects.
    pub fn apply(self, tables: &mut Tables<'_>, peer: &mut Peer, elapsed: Timestamp) -> Result<(), Corrupt> {
        let (m, kept_until) = (tables.entry_index(), elapsed.plus(limits::FEDERATED_RETENTION));
        for (Entry { position, id, .. }, step) in self.0 {
            match step {
                Step::Skip => {}
                Step::Add(known) => {
                    known.map_or(Ok(()), |known| forget(tables, peer, &id, known))?;
                    add(tables, peer, &id, EntryRow { position, m, kept_until })?;
                }
                Step::Forget(known) => {
                    known.map_or(Ok(()), |known| forget(tables, peer, &id, known))?;
                    peer.raise_floors(position, m);
                }
                Step::Block(by, known) => block(tables, peer, (&id, &by), position.index, known)?,
                Step::Lift(by, known) => lift(tables, peer, (&id, &by), known)?,
            }
        }
        Ok(())
    }
}

impl Target<'_> {
    fn step(self, tables: &Tables<'_>, entry: &Entry) -> Result<Step, Corrupt> {
        match entry.by {
            Some(by) => self.step_of_block(tables, entry, by),
            None => self.step_of_watermark(tables, entry),
        }
    }

    fn step_of_watermark(self, tables: &Tables<'_>, entry: &Entry) -> Result<Step, Corrupt> {
        let n = entry.position.index;
        let is_read = !self.is_new && self.peer.has(entry.position);
        let known = if self.is_new { None } else { self.peer.entry(tables, &entry.id)? };
        if is_read || known.is_some_and(|known| n <= known.position.index) {
            return Ok(Step::Skip);
        }
        let is_old = entry.position.epoch.saturating_add(limits::FEDERATED_EPOCHS) < self.epoch;
        Ok(if is_old { Step::Forget(known) } else { Step::Add(known) })
    }

    fn step_of_block(self, tables: &Tables<'_>, entry: &Entry, by: Digest128) -> Result<Step, Corrupt> {
        let n = entry.position.index;
        let known = if self.is_new || self.is_reset {
            None
        } else {
            let key = self.peer.block_key(&entry.id, &by);
            let row = tables.row(PEER_BLOCK, &key)?;
            row.map(|row| eight_bytes(PEER_BLOCK.as_bytes(), row)).transpose()?
        };
        let is_blocked = entry.position.state == LedgerState::Blocked;
        Ok(match known {
            Some(known) if n <= known => Step::Skip,
            Some(known) if !is_blocked => Step::Lift(by, known),
            known if is_blocked => Step::Block(by, known),
            _ => Step::Skip,
        })
    }
}

fn add(tables: &mut Tables<'_>, peer: &mut Peer, id: &Digest128, row: EntryRow) -> Result<(), Corrupt> {
    let key = peer.entry_key(id);
    tables.put(PEER_LEDGER_END, &time_key(row.kept_until.millis(), &key), Vec::new());
    tables.put(PEER_LEDGER, &key, row.to_row());
    tables.add(FEDERATED, 1)?;
    peer.row.entries = peer.row.entries.saturating_add(1);
    peer.row.expiring = peer.row.expiring.saturating_add(1);
    peer.count_entry(tables, id, row.position, Change::Add)
}

/// Removes an entry, with its end.
pub fn forget(
    tables: &mut Tables<'_>,
    peer: &mut Peer,
    id: &Digest128,
    row: EntryRow,
) -> Result<(), Corrupt> {
    let key = peer.entry_key(id);
    tables.delete(PEER_LEDGER, &key);
    peer.row.entries = peer.row.entries.saturating_sub(1);
    forget_end(tables, peer, &time_key(row.kept_until.millis(), &key))?;
    peer.count_entry(tables, id, row.position, Change::Subtract)
}

/// Removes the end of an entry. The entry may be that of a copy which was deleted.
pub fn forget_end(tables: &mut Tables<'_>, peer: &mut Peer, end: &[u8]) -> Result<(), Corrupt> {
    tables.delete(PEER_LEDGER_END, end);
    peer.row.expiring = peer.row.expiring.saturating_sub(1);
    tables.subtract(FEDERATED, 1)
}

fn block(
    tables: &mut Tables<'_>,
    peer: &mut Peer,
    block: (&Digest128, &Digest128),
    n: u64,
    known: Option<u64>,
) -> Result<(), Corrupt> {
    if let Some(known) = known {
        peer.count_block(tables, block, known, Change::Subtract)?;
    } else {
        tables.add(FEDERATED, 1)?;
        peer.row.blocks = peer.row.blocks.saturating_add(1);
    }
    tables.put(PEER_BLOCK, &peer.block_key(block.0, block.1), n.to_be_bytes().to_vec());
    peer.count_block(tables, block, n, Change::Add)
}

fn lift(
    tables: &mut Tables<'_>,
    peer: &mut Peer,
    block: (&Digest128, &Digest128),
    known: u64,
) -> Result<(), Corrupt> {
    tables.delete(PEER_BLOCK, &peer.block_key(block.0, block.1));
    tables.subtract(FEDERATED, 1)?;
    peer.row.blocks = peer.row.blocks.saturating_sub(1);
    peer.count_block(tables, block, known, Change::Subtract)
}
