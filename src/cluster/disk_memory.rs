//! The memories of the members' disks on this disk: a row of the log database, and the start of this process.
//!
//! The rules are in [`super::set_back`]. Local state: never in the state hash, a snapshot or a backup. Changes are kept in
//! memory and written by the log writer with its next group, at the latest after
//! [`limits::MEMORY_UNWRITTEN_MAX`]: a crash loses facts, it never makes one up.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::vote::RaftLeaderId as _;
use rocksdb::DB;
use tokio::sync::mpsc;

use super::codec::{self, proto};
use super::log::writer::Job;
use super::log::{self, MEMORIES, REFUSED, START};
use super::set_back::{Disk, Life, Memory, SetBack};
use super::type_config::{LeaderId, LogId, StoredMembership, Vote};
use super::{Corrupt, Handle, Machine};
use crate::limits;

/// The memories of the members' disks.
pub struct Lives {
    known: Mutex<Known>,
}

struct Known {
    memories: BTreeMap<Disk, Memory>,
    is_unwritten: bool,
}

/// Begins the life of this process, durably: it has called nobody yet.
///
/// # Errors
/// [`Corrupt`] if the disk was refused before, or the row of the last start is damaged or cannot be replaced.
pub fn begin(db: &DB, id: [u8; 16], vote: Option<Vote>, end: Option<LogId>) -> Result<Life, Corrupt> {
    let corrupt = |what: &dyn std::fmt::Display| Corrupt::new(db.path(), what);
    // A supervisor starts a refused member again and again. Each start has a greater number than the one before, so a
    // member that knows no more than the number would accept it in the end.
    if let Some(reason) = log::read_meta(db, REFUSED)? {
        return Err(corrupt(&format_args!("refused before: {}", String::from_utf8_lossy(&reason))));
    }
    let before = match log::read_meta(db, START)? {
        Some(row) => row
            .first_chunk()
            .map(|number| u64::from_be_bytes(*number))
            .ok_or_else(|| corrupt(&"the row of the last start is too short"))?,
        None => 0,
    };
    let start = before.checked_add(1).ok_or_else(|| corrupt(&"the number of starts is too large"))?;
    let row = [&start.to_be_bytes()[..], &id].concat();
    log::write_meta(db, START, &row).map_err(|error| corrupt(&error))?;
    Ok(Life { start, id, vote: vote.map(|vote| vote.leader_id), end })
}

impl Lives {
    /// As the row says.
    ///
    /// # Errors
    /// [`Corrupt`] if it is damaged.
    pub fn open(db: &DB) -> Result<Self, Corrupt> {
        let memories = match log::read_meta(db, MEMORIES)? {
            Some(row) => codec::decode_memories(&row).map_err(|error| Corrupt::new(db.path(), error))?,
            None => Vec::new(),
        };
        let known = Known { memories: memories.into_iter().collect(), is_unwritten: false };
        Ok(Self { known: Mutex::new(known) })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the memory of a disk, if there is one.
    fn change(&self, disk: Disk, change: impl FnOnce(&mut Memory)) {
        let mut known = self.known();
        let Some(memory) = known.memories.get_mut(&disk) else { return };
        let before = *memory;
        change(memory);
        let is_changed = *memory != before;
        known.is_unwritten |= is_changed;
    }

    /// Judges the life of a member, and remembers it.
    ///
    /// # Errors
    /// [`SetBack`] if its disk was set back.
    pub fn take(&self, disk: Disk, life: &Life) -> Result<(), SetBack> {
        let mut known = self.known();
        let Some(memory) = known.memories.get_mut(&disk) else {
            known.memories.insert(disk, Memory::new(*life));
            known.is_unwritten = true;
            return Ok(());
        };
        let before = memory.life;
        memory.take(life)?;
        known.is_unwritten |= before != *life;
        Ok(())
    }

    /// Takes the life of this process itself: the one that others judge.
    pub fn take_own(&self, disk: Disk, life: &Life) {
        let mut known = self.known();
        known.memories.entry(disk).or_insert_with(|| Memory::new(*life)).life = *life;
        known.is_unwritten = true;
    }

    /// The memory of a disk.
    pub fn of(&self, disk: Disk) -> Option<Memory> {
        self.known().memories.get(&disk).copied()
    }

    /// All memories, to be sent with a heartbeat.
    pub fn to_proto(&self) -> Vec<proto::Memory> {
        let known = self.known();
        known.memories.iter().map(|(disk, memory)| codec::memory_to_proto(*disk, memory)).collect()
    }

    /// Adds what the leader remembers of members. What does not decode, or is of no member, is left out.
    pub fn merge(&self, memories: &[proto::Memory], is_member: impl Fn(&Disk) -> bool) {
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

    /// A member has granted a vote, or follows its leader. Durably: it has answered.
    pub fn voted(&self, disk: Disk, vote: LeaderId) {
        self.change(disk, |memory| memory.vote = memory.vote.max(Some(vote)));
    }

    /// A member has acknowledged a committed entry. Durably: it has answered.
    pub fn holds(&self, disk: Disk, held: LogId) {
        self.change(disk, |memory| memory.held = memory.held.max(Some(held)));
    }

    /// A member has another committed entry than this node.
    pub fn contradicts(&self, disk: Disk, theirs: LogId) {
        self.change(disk, |memory| {
            if memory.contradiction.is_none() {
                tracing::error!(
                    node = disk.0,
                    log_id = %theirs,
                    "a member stopped because its log has another committed entry than this leader's: acknowledged \
                     writes are lost on one side; an operator must decide which"
                );
                memory.contradiction = Some(theirs);
            }
        });
    }

    /// The members whose logs have another committed entry than the leader's.
    pub fn contradictions(&self) -> Vec<(u64, LogId)> {
        let known = self.known();
        let contradictions =
            known.memories.iter().filter_map(|((id, _), memory)| Some((*id, memory.contradiction?)));
        contradictions.collect()
    }

    /// Forgets disks that are no members.
    fn keep(&self, is_member: impl Fn(&Disk) -> bool) {
        let mut known = self.known();
        let before = known.memories.len();
        known.memories.retain(|disk, _| is_member(disk));
        known.is_unwritten |= known.memories.len() != before;
    }

    /// Whether there is something to be written.
    fn is_unwritten(&self) -> bool {
        self.known().is_unwritten
    }

    /// The row, if it is not written as it is now. The caller writes it.
    pub fn unwritten(&self) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.known().is_unwritten) {
            return None;
        }
        Some(codec::encode_memories(self.to_proto()))
    }
}

/// Whether a disk is that of a member.
pub fn is_member(members: &StoredMembership, (node_id, disk_id): &Disk) -> bool {
    members.membership().get_node(node_id).is_some_and(|member| member.disk_id == *disk_id)
}

impl<M: Machine> Handle<M> {
    /// Remembers, while this node leads, what each member has acknowledged of what is committed; and has memories
    /// written that no group of the log writer took along. Runs for ever.
    pub(super) async fn remember(self, jobs: mpsc::WeakSender<Job>) {
        let lives = &self.channels.this.lives;
        let mut due = self.clock.boot();
        loop {
            self.note_held();
            if lives.is_unwritten() && self.clock.boot() >= due {
                due = self.clock.boot() + limits::MEMORY_UNWRITTEN_MAX;
                let Some(jobs) = jobs.upgrade() else { return };
                if jobs.send(Job::SaveMemories).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(limits::MEMORY_PAUSE).await;
        }
    }

    fn note_held(&self) {
        let lives = &self.channels.this.lives;
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let members = metrics.membership_config.as_ref();
        // None is known before the library has read the log.
        if members.membership().nodes().next().is_some() {
            lives.keep(|disk| is_member(members, disk));
        }
        let (Some(replication), Some(committed)) = (&metrics.replication, metrics.cluster_committed) else {
            return;
        };
        for (id, matched) in replication {
            let (Some(matched), Some(member)) = (matched, members.membership().get_node(id)) else {
                continue;
            };
            lives.holds((*id, member.disk_id), (*matched).min(committed));
        }
        if let Some(own) = members.membership().get_node(&self.node_id)
            && *metrics.vote.leader_id.node_id() == self.node_id
        {
            lives.voted((self.node_id, own.disk_id), metrics.vote.leader_id);
        }
    }

    /// The members that stopped because their logs have another committed entry than this node's, while it leads:
    /// acknowledged writes are lost on one side until an operator has decided.
    #[must_use]
    pub fn contradictions(&self) -> Vec<u64> {
        if self.leader() != Some(self.node_id) {
            return Vec::new();
        }
        self.channels.this.lives.contradictions().into_iter().map(|(node_id, _)| node_id).collect()
    }
}
