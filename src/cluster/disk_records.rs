//! Records of the members' disks, stored in the log database.
//!
//! The rules are in [`super::disk_rollback`]. Local data: never in the state hash, a snapshot or a backup. Changes are written
//! by the log writer with its next group, at the latest after [`crate::limits::MEMORY_UNWRITTEN_MAX`]; a crash may lose facts,
//! and never creates any.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::codec::{self, proto};
use super::disk_rollback::{DiskKey, DiskRecord, DiskRollback, Life};
use super::type_config::{LeaderId, LogId, StoredMembership};

/// Records of the members' disks.
pub(crate) struct DiskRecords {
    known: Mutex<Known>,
}

struct Known {
    memories: BTreeMap<DiskKey, DiskRecord>,
    is_unwritten: bool,
}

impl DiskRecords {
    /// Decodes the row [`super::log::MEMORIES`].
    pub(crate) fn decode(row: Option<&[u8]>) -> Result<Self, codec::Error> {
        let memories = row.map_or_else(|| Ok(Vec::new()), codec::decode_memories)?;
        let known = Known { memories: memories.into_iter().collect(), is_unwritten: false };
        Ok(Self { known: Mutex::new(known) })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the record of a disk, if there is one.
    fn change(&self, disk: DiskKey, change: impl FnOnce(&mut DiskRecord)) {
        let mut known = self.known();
        let Some(memory) = known.memories.get_mut(&disk) else { return };
        let before = *memory;
        change(memory);
        let is_changed = *memory != before;
        known.is_unwritten |= is_changed;
    }

    /// Verifies the life of a member and records it.
    pub(crate) fn take(&self, disk: DiskKey, life: &Life) -> Result<(), DiskRollback> {
        let mut known = self.known();
        let Some(memory) = known.memories.get_mut(&disk) else {
            known.memories.insert(disk, DiskRecord::new(*life));
            known.is_unwritten = true;
            return Ok(());
        };
        let before = memory.life;
        memory.take(life)?;
        known.is_unwritten |= before != *life;
        Ok(())
    }

    /// Records the life of this process, which other members verify.
    pub(crate) fn take_own(&self, disk: DiskKey, life: &Life) {
        let mut known = self.known();
        known.memories.entry(disk).or_insert_with(|| DiskRecord::new(*life)).life = *life;
        known.is_unwritten = true;
    }

    /// The record of a disk.
    pub(crate) fn of(&self, disk: DiskKey) -> Option<DiskRecord> {
        self.known().memories.get(&disk).copied()
    }

    /// All records, for a heartbeat.
    pub(crate) fn to_proto(&self) -> Vec<proto::Memory> {
        let known = self.known();
        known.memories.iter().map(|(disk, memory)| codec::memory_to_proto(*disk, memory)).collect()
    }

    /// Merges the leader's records. Records that do not decode or are not of a member are ignored.
    pub(crate) fn merge(&self, memories: &[proto::Memory], is_member: impl Fn(&DiskKey) -> bool) {
        let mut known = self.known();
        for (disk, theirs) in memories.iter().filter_map(|memory| codec::memory_from_proto(memory).ok()) {
            if !is_member(&disk) {
                continue;
            }
            let ours = known.memories.get(&disk).copied();
            let mut merged = ours.unwrap_or(theirs);
            merged.merge(&theirs);
            if ours != Some(merged) {
                known.memories.insert(disk, merged);
                known.is_unwritten = true;
            }
        }
    }

    /// Records that a member granted a vote or follows its leader; its answer implies that the vote is durable.
    pub(crate) fn voted(&self, disk: DiskKey, vote: LeaderId) {
        self.change(disk, |memory| memory.vote = memory.vote.max(Some(vote)));
    }

    /// Records that a member acknowledged a committed entry; its answer implies that the entry is durable.
    pub(crate) fn holds(&self, disk: DiskKey, held: LogId) {
        self.change(disk, |memory| memory.held = memory.held.max(Some(held)));
    }

    /// Records that a committed entry of a member differs from this node's.
    pub(crate) fn contradicts(&self, disk: DiskKey, theirs: LogId) {
        self.change(disk, |memory| {
            if memory.contradiction.is_none() {
                tracing::error!(
                    node = disk.0,
                    log_id = %theirs,
                    "a member stopped because a committed entry of its log differs from this leader's: acknowledged \
                     writes are lost on one side; an operator must decide which"
                );
                memory.contradiction = Some(theirs);
            }
        });
    }

    /// Members with a committed entry that differs from the leader's.
    pub(crate) fn contradictions(&self) -> Vec<(u64, LogId)> {
        let known = self.known();
        let contradictions =
            known.memories.iter().filter_map(|((id, _), memory)| Some((*id, memory.contradiction?)));
        contradictions.collect()
    }

    /// Removes the records of disks that are not of members.
    pub(crate) fn retain(&self, is_member: impl Fn(&DiskKey) -> bool) {
        let mut known = self.known();
        let before = known.memories.len();
        known.memories.retain(|disk, _| is_member(disk));
        known.is_unwritten |= known.memories.len() != before;
    }

    /// Whether a change is not stored yet.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.known().is_unwritten
    }

    /// The row, if a change is not stored yet. The caller stores it.
    pub(crate) fn unwritten(&self) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.known().is_unwritten) {
            return None;
        }
        Some(codec::encode_memories(self.to_proto()))
    }
}

/// Whether a disk is that of a member.
pub(crate) fn is_member(members: &StoredMembership, (node_id, disk_id): &DiskKey) -> bool {
    members.membership().get_node(node_id).is_some_and(|member| member.disk_id == *disk_id)
}
