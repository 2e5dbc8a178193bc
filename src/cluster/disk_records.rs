//! Records of the members' disks, stored in the log database.
//!
//! The rules are in [`super::disk_rollback`]. Local data: never in the state hash, a snapshot or a backup. Changes are
//! written by the log writer with its next group, at the latest after [`crate::limits::DISK_RECORD_UNWRITTEN_MAX`]; a crash
//! may lose facts, and never creates any.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::codec::{self, proto};
use super::disk_rollback::{DiskKey, DiskRecord, DiskRollback, Life};
use super::type_config::{LeaderId, LogId};

/// Records of the members' disks.
pub(crate) struct DiskRecords {
    inner: Mutex<Inner>,
}

struct Inner {
    records: BTreeMap<DiskKey, DiskRecord>,
    is_unwritten: bool,
}

impl DiskRecords {
    /// Decodes the row [`super::log::MEMORIES`].
    pub(crate) fn decode(row: Option<&[u8]>) -> Result<Self, codec::Error> {
        let records = row.map_or_else(|| Ok(Vec::new()), codec::decode_memories)?;
        let inner = Inner { records: records.into_iter().collect(), is_unwritten: false };
        Ok(Self { inner: Mutex::new(inner) })
    }

    /// Changes the record of a disk, if there is one.
    fn change(&self, disk: DiskKey, change: impl FnOnce(&mut DiskRecord)) {
        let mut inner = self.inner.lock();
        let Some(record) = inner.records.get_mut(&disk) else { return };
        let before = *record;
        change(record);
        let is_changed = *record != before;
        inner.is_unwritten |= is_changed;
    }

    /// Verifies the life of a member and records it.
    pub(crate) fn record_life(&self, disk: DiskKey, life: &Life) -> Result<(), DiskRollback> {
        let mut inner = self.inner.lock();
        let Some(record) = inner.records.get_mut(&disk) else {
            inner.records.insert(disk, DiskRecord::new(*life));
            inner.is_unwritten = true;
            return Ok(());
        };
        let before = record.life;
        record.record_life(life)?;
        inner.is_unwritten |= before != *life;
        Ok(())
    }

    /// Records the life of this process, which other members verify.
    pub(crate) fn record_own_life(&self, disk: DiskKey, life: &Life) {
        let mut inner = self.inner.lock();
        inner.records.entry(disk).or_insert_with(|| DiskRecord::new(*life)).life = *life;
        inner.is_unwritten = true;
    }

    /// The record of a disk.
    pub(crate) fn of(&self, disk: DiskKey) -> Option<DiskRecord> {
        self.inner.lock().records.get(&disk).copied()
    }

    /// All records, for a heartbeat.
    pub(crate) fn to_proto(&self) -> Vec<proto::Memory> {
        let inner = self.inner.lock();
        inner.records.iter().map(|(disk, record)| codec::memory_to_proto(*disk, record)).collect()
    }

    /// Merges the leader's records. Records that do not decode or are not of a member are ignored.
    pub(crate) fn merge(&self, records: &[proto::Memory], is_member: impl Fn(&DiskKey) -> bool) {
        let mut inner = self.inner.lock();
        for (disk, theirs) in records.iter().filter_map(|record| codec::memory_from_proto(record).ok()) {
            if !is_member(&disk) {
                continue;
            }
            let ours = inner.records.get(&disk).copied();
            let mut merged = ours.unwrap_or(theirs);
            merged.merge(&theirs);
            if ours != Some(merged) {
                inner.records.insert(disk, merged);
                inner.is_unwritten = true;
            }
        }
    }

    /// Records that a member granted a vote or follows its leader; its answer implies that the vote is durable.
    pub(crate) fn voted(&self, disk: DiskKey, vote: LeaderId) {
        self.change(disk, |record| record.vote = record.vote.max(Some(vote)));
    }

    /// Records that a member acknowledged a committed entry; its answer implies that the entry is durable.
    pub(crate) fn holds(&self, disk: DiskKey, held: LogId) {
        self.change(disk, |record| record.held = record.held.max(Some(held)));
    }

    /// Records that a committed entry of a member differs from this node's.
    pub(crate) fn contradicts(&self, disk: DiskKey, theirs: LogId) {
        self.change(disk, |record| {
            if record.contradiction.is_none() {
                tracing::error!(
                    node = disk.0,
                    log_id = %theirs,
                    "a member stopped because a committed entry of its log differs from this leader's: acknowledged \
                     writes are lost on one side; an operator must decide which"
                );
                record.contradiction = Some(theirs);
            }
        });
    }

    /// Members with a committed entry that differs from the leader's.
    pub(crate) fn contradictions(&self) -> Vec<(u64, LogId)> {
        let inner = self.inner.lock();
        let contradictions =
            inner.records.iter().filter_map(|((id, _), record)| Some((*id, record.contradiction?)));
        contradictions.collect()
    }

    /// The latest end that each disk is known to have had: the last committed entry that it acknowledged, or the end of
    /// its log at a start.
    pub(crate) fn ends(&self) -> Vec<(DiskKey, LogId)> {
        let inner = self.inner.lock();
        let end = |(disk, record): (&DiskKey, &DiskRecord)| Some((*disk, record.held.max(record.life.end)?));
        inner.records.iter().filter_map(end).collect()
    }

    /// Removes the records of disks that are not of members.
    pub(crate) fn retain(&self, is_member: impl Fn(&DiskKey) -> bool) {
        let mut inner = self.inner.lock();
        let before = inner.records.len();
        inner.records.retain(|disk, _| is_member(disk));
        inner.is_unwritten |= inner.records.len() != before;
    }

    /// Whether a change is not stored yet.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.inner.lock().is_unwritten
    }

    /// The row, if a change is not stored yet. The caller stores it.
    pub(crate) fn unwritten(&self) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.inner.lock().is_unwritten) {
            return None;
        }
        Some(codec::encode_memories(self.to_proto()))
    }
}
