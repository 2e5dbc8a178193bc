//! Consensus and storage: one Raft group over openraft and RocksDB, behind [`Handle`].
//!
//! No other module names either library. Nothing here knows what a command means: the state machine implements
//! [`Machine`].
//!
//! Data directory: `identity.json` (node id, disk identity) · `raft/` (log and vote; the only files synced on the hot
//! path) · `state/CURRENT`, `state/<generation>/` (every table) · `snapshots/`.
//!
//! A command goes from [`propose`] to the leader, over [`propose::forwarding`] if that is another node;
//! there [`propose::batcher`] joins it with others to one log entry. Node-to-node calls are in [`peers`].

mod apply;
mod backup;
mod clock_agreement;
mod clocks;
mod codec;
mod core_failure;
mod corrupt;
mod database_guard;
mod disk_identity;
mod disk_records;
mod disk_records_task;
mod disk_rollback;
mod disk_space;
mod disk_watch;
mod divergence;
mod divergence_task;
mod durable_file;
mod joining;
mod known_members;
mod leader_transfer;
mod leadership;
mod log;
mod log_keeper;
mod membership;
mod peers;
mod propose;
mod raft_config;
mod reads;
mod record;
mod restore;
mod start;
mod status;
#[cfg(test)]
mod tests;
mod torn_tail;
mod type_config;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

pub use apply::database::StateHash;
pub(crate) use apply::snapshot::{SnapshotFiles, is_file_name};
pub(crate) use backup::StateFiles;
pub(crate) use clock_agreement::{ClockReport, ClockVerdict};
pub(crate) use corrupt::Corrupt;
pub(crate) use database_guard::Closed;
pub use disk_space::{DiskShortage, Space, SpaceState};
pub(crate) use durable_file::{replace_file, sync_name_of};
pub use peers::NodeIdentities;
pub use peers::proto::NodeReport;
pub(crate) use propose::Error;
pub(crate) use propose::batcher::AppliedCommand;
pub use reads::freshness::barrier::Acknowledgements;
pub(crate) use reads::freshness::barrier::BarrierTimeout;
pub use reads::freshness::{FreshnessMode, LeaseError, LeaseProof, LeaseStatus};
pub(crate) use reads::read_index::{LinearizableRead, ReadIndexError};
pub use reads::readers::{ReaderCall, ReaderState, ReaderTimeout};
pub use reads::sources::{NoSourceLease, Source, SourceCall, SourceProof};
pub(crate) use restore::{NewCluster, Remains, StoppedNode};
pub(crate) use start::{Options, Transport, start};
pub(crate) use status::{Member, Status, TransferError};

use crate::clock::{Clock, Timestamp};
use apply::state_machine::{Shared, StateMachine};
use clocks::Clocks;
use disk_space::DiskSpace;
use disk_watch::DiskMonitor;
use leader_transfer::Candidacy;
use peers::{Channels, Publisher};
use propose::SequenceAllocator;
use propose::batcher::Batcher;
use propose::forwarding::Forwarder;
use reads::freshness::Freshness;
use reads::member_progress::ProgressTracker;
use reads::read_index::ReadIndex;
use reads::readers::Readers;
use type_config::TypeConfig;

/// Read access to the rows of the state.
pub trait View {
    /// The row under `key`.
    ///
    /// # Errors
    /// [`Corrupt`] if its checksum does not match.
    fn get(&self, table: &str, key: &[u8]) -> Result<Option<Vec<u8>>, Corrupt>;

    /// Visits rows from `from` on, in key order, until `visit` returns false.
    ///
    /// # Errors
    /// [`Corrupt`] if the checksum of a row does not match.
    fn scan(
        &self,
        table: &str,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Corrupt>;

    /// Visits rows of `from <= key < to`, in key order, until `visit` returns false. Stops at `to`: skipping deleted rows
    /// costs time too.
    ///
    /// # Errors
    /// [`Corrupt`] if the checksum of a row does not match.
    fn scan_between(
        &self,
        table: &str,
        (from, to): (&[u8], &[u8]),
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Corrupt> {
        self.scan(table, from, &mut |key, row| key < to && visit(key, row))
    }

    /// The first row of `from <= key < to`.
    ///
    /// # Errors
    /// [`Corrupt`] if its checksum does not match.
    fn first_between(&self, table: &str, from: &[u8], to: &[u8]) -> Result<Option<Row>, Corrupt> {
        let mut first = None;
        self.scan_between(table, (from, to), &mut |key, row| {
            first = Some((key.to_vec(), row.to_vec()));
            false
        })?;
        Ok(first)
    }
}

/// A key and its value.
pub type Row = (Vec<u8>, Vec<u8>);

/// One change of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Writes a row.
    Put {
        table: &'static str,
        key: Vec<u8>,
        /// The row.
        value: Vec<u8>,
    },
    /// Removes a row.
    Delete { table: &'static str, key: Vec<u8> },
    /// Removes the rows of `from <= key < to`.
    DeleteRange {
        table: &'static str,
        /// First key removed.
        from: Vec<u8>,
        /// First key retained.
        to: Vec<u8>,
    },
}

/// Time stamp of a log entry, set by the leader: the same on every node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Log time, which decides expiry: the median of the voters' wall clocks.
    pub(crate) time: Timestamp,
    /// Latest time that any wall clock read by the leader shows. A revocation covers credentials of other issuers up to
    /// it; nothing expires by it.
    pub(crate) latest: Timestamp,
    /// Elapsed time, which decides waiting periods and retention. Setting a wall clock does not move it.
    pub(crate) elapsed: Timestamp,
}

/// Times of the last applied entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogTimes {
    /// Log time.
    pub(crate) time: Timestamp,
    /// Elapsed time.
    pub(crate) elapsed: Timestamp,
}

/// Identity of a proposing process: 16 random bytes, drawn at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProposerId([u8; 16]);

impl ProposerId {
    /// From the drawn bytes.
    pub(crate) const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// A command with its identity, under which it is applied once however often it is proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The proposing process.
    pub(crate) proposer: ProposerId,
    /// Number of the command within that process, from 1.
    pub(crate) sequence: u64,
    /// Every smaller sequence of that process is answered or abandoned and is not proposed again. Never decreases.
    pub(crate) low_watermark: u64,
    /// The encoded command.
    pub(crate) command: Bytes,
}

/// Result of applying one entry.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// One reply per command, in order.
    pub(crate) replies: Vec<Bytes>,
    /// The changes, in order.
    pub(crate) writes: Vec<Write>,
    /// The leader's state hash at an index. If this node has another, the voters decide which of them stops.
    pub(crate) expected_hash: Option<(u64, StateHash)>,
}

/// A member as the membership entry that is applied names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberEntry {
    pub(crate) node_id: u64,
    /// Address for other nodes; empty in a cluster of one without listener.
    pub(crate) address: String,
    /// Identity of the disk that holds its log.
    pub(crate) disk_id: [u8; 16],
    /// Whether it is a voter of the old or of the new configuration.
    pub(crate) is_voter: bool,
}

/// Role that a node shall have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedRole {
    /// Receives the log, has no vote.
    Learner,
    /// Votes, once it has caught up.
    Voter,
    /// Is no member.
    Removed,
}

/// A node that joined and was not removed yet, and the role that it shall have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedMember {
    pub(crate) node_id: u64,
    /// Address for other nodes.
    pub(crate) address: String,
    /// Identity of the disk that holds its log.
    pub(crate) disk_id: [u8; 16],
    pub(crate) role: WantedRole,
    /// The voter that it replaces: removed in the same change that makes this node a voter.
    pub(crate) replaces: Option<u64>,
}

/// The replicated state machine. The same log gives the same state on every node: no clock, no randomness, no I/O, no
/// iteration order that differs between nodes.
pub trait Machine: Send + Sync + 'static {
    /// The tables of the state.
    const TABLES: &'static [&'static str];
    /// The tables that are too large to be verified at startup. Each row is verified when it is read; `rebuild` reads those
    /// that are held in memory.
    const TABLES_VERIFIED_ON_READ: &'static [&'static str] = &[];

    /// The newest feature level that this program supports.
    const NEWEST_LEVEL: u32 = 0;

    /// Feature level of the cluster, by the last projected entry.
    fn feature_level(&self) -> u32 {
        0
    }

    /// Whether [`Machine::apply`] can decode `command`. Checked before a forwarded command is proposed: an entry in the
    /// log must be applied.
    fn can_decode(command: &[u8]) -> bool;

    /// Whether a command adds data for longer than minutes. Such commands are refused while a disk is short of space.
    #[must_use]
    fn adds_data(_command: &[u8]) -> bool {
        false
    }

    /// Times of the last projected entry; zero before the first.
    fn times(&self) -> LogTimes {
        LogTimes::default()
    }

    /// Encodes submissions as one batch with the time stamp of its entry.
    fn batch(stamp: Stamp, submissions: Vec<Submission>) -> Bytes;

    /// Applies a batch, each command once however often it was proposed. A refused command is a reply, never an error.
    ///
    /// # Errors
    /// Only if the node must stop: a batch of an unknown version, or a corrupt row.
    fn apply(&self, view: &dyn View, batch: &[u8], index: u64) -> Result<Applied, Corrupt>;

    /// Records the membership of an entry that is applied: nodes that are no longer in it are removed for ever.
    ///
    /// # Errors
    /// If a row is corrupt.
    fn record_members(
        &self,
        _view: &dyn View,
        _members: &[MemberEntry],
        _index: u64,
    ) -> Result<Vec<Write>, Corrupt> {
        Ok(Vec::new())
    }

    /// Index of the entry that removed a node; `None` if no applied entry did.
    fn removed_at(&self, _node_id: u64) -> Option<u64> {
        None
    }

    /// The nodes that joined or were initial members, and are not removed yet.
    fn wanted_members(&self) -> Vec<WantedMember> {
        Vec::new()
    }

    /// Updates the in-memory indexes with rows just written.
    ///
    /// # Errors
    /// If a row cannot be read back.
    fn project(&self, writes: &[Write], index: u64) -> Result<(), Corrupt>;

    /// Rebuilds the in-memory indexes from all rows.
    ///
    /// # Errors
    /// If a row cannot be read.
    fn rebuild(&self, view: &dyn View) -> Result<(), Corrupt>;
}

/// openraft with our state machine.
type Raft<M> = openraft::Raft<TypeConfig, StateMachine<M>>;

/// Access of the other modules to the Raft group and the state. Cheap to clone.
#[derive(derive_more::Deref)]
pub struct Handle<M: Machine>(#[deref(forward)] Arc<Parts<M>>);

/// The parts behind a [`Handle`].
pub struct Parts<M: Machine> {
    raft: Raft<M>,
    sequences: Arc<SequenceAllocator>,
    batcher: Batcher,
    forwarder: Forwarder,
    shared: Arc<Shared>,
    machine: Arc<M>,
    freshness: Arc<Freshness>,
    readers: Arc<Readers>,
    progress: Arc<ProgressTracker>,
    candidacy: Arc<Candidacy>,
    disk: Arc<DiskMonitor>,
    space: Arc<DiskSpace>,
    channels: Arc<Channels>,
    reads: ReadIndex,
    clock: Clock,
    clocks: Arc<Clocks>,
    publisher: Publisher,
    /// Number of leaders of which this process learned.
    leader_changes: Arc<AtomicU64>,
    settings_digest: Option<Arc<str>>,
    node_id: u64,
}

impl<M: Machine> Clone for Handle<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: Machine> Handle<M> {
    /// The state machine with its in-memory indexes.
    pub(crate) fn machine(&self) -> &M {
        &self.machine
    }

    /// A read view of the tables.
    pub(crate) fn view(&self) -> &dyn View {
        self.shared.as_ref()
    }

    /// Index of the last entry applied on this node.
    #[must_use]
    pub fn applied(&self) -> u64 {
        *self.shared.applied.borrow()
    }

    /// Waits until `index` is applied on this node. Pending for ever once Raft has stopped.
    pub(crate) async fn until_applied(&self, index: u64) {
        let mut applied = self.shared.applied.subscribe();
        if applied.wait_for(|applied| *applied >= index).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until `is_so`, which is evaluated when an entry is applied. Pending for ever once Raft has stopped.
    pub(crate) async fn until_state(&self, is_so: impl Fn() -> bool) {
        let mut applied = self.shared.applied.subscribe();
        while !is_so() {
            if applied.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The state hash of this node and the index up to which it covers.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is corrupt.
    pub fn state_hash(&self) -> Result<(u64, StateHash), Corrupt> {
        let database = self.shared.database.load_full();
        loop {
            let before = database.applied()?.map_or(0, |applied| applied.index);
            let hash = database.hash()?;
            if database.applied()?.map_or(0, |applied| applied.index) == before {
                return Ok((before, hash));
            }
        }
    }

    /// The newest index whose state hash is compared between nodes, and the hash.
    pub(crate) fn comparable_hashes(&self) -> watch::Receiver<Option<(u64, StateHash)>> {
        self.shared.hash.subscribe()
    }

    /// Id of the cluster; `None` before bootstrap.
    pub(crate) fn cluster_id(&self) -> Option<[u8; 16]> {
        self.channels.local.cluster_id()
    }

    pub(crate) fn node_id(&self) -> u64 {
        self.node_id
    }

    /// Waits until a leader is known and every entry that was in the log at startup is applied, also one that was deferred.
    ///
    /// # Errors
    /// If that takes longer than `limit`.
    pub(crate) async fn until_recovered(&self, limit: Duration) -> Result<(), String> {
        let recovered = self.raft.wait_for_recovery(Some(limit)).await.map_err(|error| error.to_string())?;
        let applied = self.until_agreed(recovered.last_applied.map_or(0, |applied| applied.index));
        let in_dispute = |_| "the state of this node is in dispute".to_owned();
        tokio::time::timeout(limit, applied).await.map_err(in_dispute)
    }

    /// Triggers a snapshot.
    ///
    /// # Errors
    /// If Raft has stopped.
    pub async fn snapshot(&self) -> Result<(), String> {
        self.unless_failed(self.raft.trigger().snapshot()).await
    }
}
