//! Creation of a new cluster from the state of a stopped node: that of an unpacked backup, or that of a survivor of a lost
//! majority.
//!
//! Everything happens in a copy of the state: the rest of the log is applied, also entries that are not known to be
//! committed, because a lost leader may have acknowledged them; then a membership entry that names this node alone, and
//! the command that begins the new incarnation. The copy becomes the current state, and the log is replaced by its
//! purged part, which ends where the copy ends. Between these two steps the directory belongs to no cluster: the caller
//! marks it, and the next attempt begins with the state that it finds.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::entry::RaftEntry as _;
use openraft::storage::RaftStateMachine as _;
use openraft::vote::RaftLeaderId as _;
use rocksdb::DB;
use tokio::sync::{mpsc, watch};

use super::apply::database::Generations;
use super::apply::snapshot::Snapshots;
use super::apply::state_machine::StateMachine;
use super::disk_identity::{DiskIdentity, establish};
use super::divergence::Divergence;
use super::log::replace::replace_log;
use super::log::{self, REFUSED};
use super::type_config::{Commands, Entry, LeaderId, LogId, MemberRecord, Membership, Replies, Vote};
use super::{Corrupt, Machine, ProposerId, Stamp, Submission, durable_file};
use crate::clock::Clock;
use crate::limits;

/// The data directory of a stopped node. No other process opens it as long as this value exists.
pub struct StoppedNode {
    data: PathBuf,
    pub(super) log: Arc<DB>,
    pub(super) identity: DiskIdentity,
}

/// A cluster of one to be created.
pub struct NewCluster {
    /// Drawn at random.
    pub(crate) cluster_id: [u8; 16],
    /// Host and port for other nodes, empty without a listener; `None` for that of the state.
    pub(crate) address: Option<String>,
    /// Whether the state is used although that of another member differs: an operator has decided.
    pub(crate) accept_dispute: bool,
    /// The encoded command that begins the new incarnation.
    pub(crate) command: Bytes,
    /// Its encoded reply. With any other, nothing is created.
    pub(crate) reply: Bytes,
    /// Drawn at random.
    pub(crate) drawn_proposer_id: ProposerId,
}

/// The log of a stopped node, and other disks that are known to have had more.
#[derive(Clone, Debug)]
pub struct Remains {
    pub(crate) vote: Option<String>,
    /// The last entry of the log.
    pub(crate) last: Option<String>,
    /// Index of the last applied entry.
    pub(crate) applied: Option<u64>,
    /// Members whose log had a later end, with that end; the latest is the last.
    pub(crate) ahead: Vec<(u64, String)>,
    /// The reason for which other members rejected this disk.
    pub(crate) rejected: Option<String>,
    /// Log index at which the state of another member differs, undecided.
    pub(crate) disputed: Option<u64>,
}

impl StoppedNode {
    /// Opens the data directory, which exists. An empty one gets a disk identity: `drawn` are 16 random bytes.
    ///
    /// # Errors
    /// [`Corrupt`] if the directory belongs to another node, or is in use.
    pub(crate) fn open(data: &Path, node_id: u64, drawn: [u8; 16]) -> Result<Self, Corrupt> {
        let path = data.join("raft");
        let log = log::open_database(&path)?;
        durable_file::sync_name_of(&path).map_err(|error| Corrupt::new(&path, error))?;
        let identity = establish(data, &log, node_id, drawn)?;
        Ok(Self { data: data.to_owned(), log: Arc::new(log), identity })
    }

    /// Describes the log. The entries that an interrupted creation applied to the state are not counted.
    ///
    /// # Errors
    /// [`Corrupt`] if the directory is corrupt, or has neither log nor state.
    pub(crate) fn remains<M: Machine>(&self) -> Result<Remains, Corrupt> {
        let (open, _closed) = mpsc::channel(1);
        let opened = log::open(Arc::clone(&self.log), u64::MAX, open)?;
        let state = self.generations()?.open(M::TABLES, M::TABLES)?;
        let (applied, installed) = (state.applied()?, state.installed()?);
        let is_in_log = opened.store.holds(applied).map_err(|error| Corrupt::new(&self.data, error))?;
        let last = opened.last.max(if is_in_log { applied } else { installed });
        if last.is_none() {
            return Err(Corrupt::new(&self.data, "the directory has no log of a cluster"));
        }
        let mut ahead = opened.disk_records.ends();
        ahead.retain(|(_, end)| Some(*end) > last);
        ahead.sort_by_key(|(_, end)| *end);
        let ahead = ahead.into_iter().map(|((node_id, _), end)| (node_id, end.to_string()));
        let rejected = log::read_meta(&self.log, REFUSED)?;
        Ok(Remains {
            vote: opened.vote.map(|vote| vote.to_string()),
            last: last.map(|last| last.to_string()),
            applied: applied.map(|applied| applied.index),
            ahead: ahead.collect(),
            rejected: rejected.map(|reason| String::from_utf8_lossy(&reason).into_owned()),
            disputed: Divergence::open(Arc::clone(&self.log))?.disputed(),
        })
    }

    /// Creates the cluster. `may_be_ahead` states that the log need not hold the state: it is unpacked, or an earlier
    /// attempt was interrupted after `begin`. That is called once everything is prepared: what it marks must remain
    /// until this returns. Returns the index of the last entry.
    ///
    /// # Errors
    /// [`Corrupt`] if the directory is corrupt or cannot be written. Unless `begin` was called, nothing has changed.
    pub(crate) async fn create<M: Machine>(
        self,
        machine: &Arc<M>,
        new: NewCluster,
        clock: &Clock,
        may_be_ahead: bool,
        begin: impl FnOnce() -> io::Result<()>,
    ) -> Result<u64, Corrupt> {
        let failed = |error: &dyn std::fmt::Display| Corrupt::new(&self.data, error);
        let (open, _closed) = mpsc::channel(1);
        let opened = log::open(Arc::clone(&self.log), u64::MAX, open.clone())?;
        let generations = self.generations()?;
        let snapshots = Snapshots::new(self.data.join("snapshots"), M::TABLES, open.clone());
        let snapshots = snapshots.map_err(|error| failed(&error))?;
        let current = generations.open(M::TABLES, M::TABLES_VERIFIED_ON_READ)?;
        let is_in_log = opened.store.holds(current.applied()?).map_err(|error| failed(&error))?;
        if !is_in_log && !may_be_ahead && current.installed()? != current.applied()? {
            return Err(failed(&"the state is ahead of the log: acknowledged log entries are lost"));
        }
        let (generation, copy) = generations.copy(&current, M::TABLES)?;
        drop(current);
        let (_, durable) = watch::channel(u64::MAX);
        let divergence = if new.accept_dispute {
            Divergence::decided(Arc::clone(&self.log))
        } else {
            Divergence::open(Arc::clone(&self.log))?
        };
        if let Some(index) = divergence.disputed() {
            return Err(failed(&in_dispute(index)));
        }
        let state = StateMachine::over(
            copy,
            Arc::clone(machine),
            generations.clone(),
            snapshots,
            (durable, divergence),
            open,
            clock.clone(),
        );
        let (mut state, shared) = state?;
        let created = async {
            if is_in_log {
                replay(&mut state, &opened).await?;
            }
            let (last, members) = state.applied_state().await?;
            let last = last.ok_or_else(|| io::Error::other("the state has no log entry"))?;
            let known = members.get_node(&self.identity.node_id).map(|known| known.address.clone());
            let address = new.address.clone().or(known).unwrap_or_default();
            let end = self.append(&mut state, machine, new, (address, last), clock)?;
            shared.database.load().sync()?;
            Ok::<_, io::Error>(end)
        };
        let (end, cluster_id) = created.await.map_err(|error| failed(&error))?;
        drop((state, shared, opened));
        // The leader of the last entry: a vote for it is the smallest that its log allows.
        let vote = Vote {
            leader_id: LeaderId::new(end.leader_id.term(), *end.leader_id.node_id()),
            committed: true,
        };
        begin()
            .and_then(|()| generations.switch(generation))
            .and_then(|()| replace_log(&self.log, &end, &vote, &cluster_id))
            .map_err(|error| failed(&error))?;
        Ok(end.index)
    }

    fn generations(&self) -> Result<Generations, Corrupt> {
        Generations::new(self.data.join("state")).map_err(|error| Corrupt::new(&self.data, error))
    }

    /// Applies the membership of the new cluster and the command that begins its incarnation, as two entries of a new
    /// term. Returns the last entry and the id of the cluster.
    fn append<M: Machine>(
        &self,
        state: &mut StateMachine<M>,
        machine: &M,
        new: NewCluster,
        (address, last): (String, LogId),
        clock: &Clock,
    ) -> io::Result<(LogId, [u8; 16])> {
        let DiskIdentity { node_id, disk_id } = self.identity;
        let leader = LeaderId::new(last.leader_id.term().saturating_add(1), node_id).to_committed();
        let after = |entries: u64| LogId::new(leader, last.index.saturating_add(entries));
        let member = BTreeMap::from([(node_id, MemberRecord { address, disk_id })]);
        let membership = Membership::new(vec![BTreeSet::from([node_id])], member);
        let membership = membership.map_err(|error| io::Error::other(error.to_string()))?;
        state.apply_entry(&Entry { log_id: after(1), payload: EntryPayload::Membership(membership) })?;
        let (times, now) = (machine.times(), clock.now());
        let stamp = Stamp { time: now.max(times.time), latest: now, elapsed: times.elapsed };
        let submission = Submission {
            proposer: new.drawn_proposer_id,
            sequence: 1,
            low_watermark: 1,
            command: new.command,
        };
        let batch = Commands(M::batch(stamp, vec![submission]));
        let replies = state.apply_entry(&Entry { log_id: after(2), payload: EntryPayload::Normal(batch) })?;
        if replies != Some(Replies(vec![new.reply])) {
            return Err(io::Error::other("the new incarnation was refused"));
        }
        Ok((after(2), new.cluster_id))
    }
}

/// A state that may have diverged creates no cluster, unless an operator has decided.
fn in_dispute(index: u64) -> String {
    format!(
        "the state of this node differs from that of another member at log index {index}: use another survivor, or a \
         backup, or decide for this node with --accept-dispute"
    )
}

/// Applies every entry of the log that the state lacks.
async fn replay<M: Machine>(state: &mut StateMachine<M>, opened: &log::Opened) -> io::Result<()> {
    let (applied, _) = state.applied_state().await?;
    if applied < opened.purged {
        return Err(io::Error::other(
            "the state is older than the first entry of the log, after a power failure: start the node once, so that it \
             installs its snapshot, stop it, and repeat the command",
        ));
    }
    let end = opened.last.map_or(0, |last| last.index.saturating_add(1));
    let mut next = applied.map_or(0, |applied| applied.index.saturating_add(1));
    while next < end {
        for entry in opened.store.reader().read_disk(next, end, limits::APPEND_BYTES_FULL)? {
            let index = entry.log_id().index;
            if state.apply_entry(&entry)?.is_none() {
                return Err(io::Error::other(in_dispute(state.disputed().unwrap_or(index))));
            }
            next = index.saturating_add(1);
        }
    }
    Ok(())
}
