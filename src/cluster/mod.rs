//! The replicated core: one Raft group over openraft and RocksDB, behind one handle.
//!
//! Nothing outside this module names either library. Nothing in it knows what a command means: the
//! state machine is whatever implements [`Machine`].
//!
//! Data directory: `identity.json` (which node, which disk) · `raft/` (log and vote, the only files
//! synced on the hot path) · `state/CURRENT`, `state/<generation>/` (every table) · `snapshots/`.
//!
//! A command goes from [`propose`] to whoever leads, over [`forwards`] if that is another node, and there through
//! [`batches`] into the log. What nodes say to each other is in [`peers`].

mod apply;
mod clock_agreement;
mod clocks;
mod codec;
mod corrupt;
mod disk_identity;
mod disk_memory;
mod disk_watch;
mod leader_transfer;
mod leadership;
mod log;
mod peers;
mod propose;
mod raft_config;
mod reads;
mod record;
mod set_back;
mod start;
mod status;
#[cfg(test)]
mod tests;
mod torn_tail;
mod type_config;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver as _;
use tokio::sync::watch;

pub use apply::database::StateHash;
pub use clock_agreement::{ClockReport, ClockVerdict};
pub use corrupt::Corrupt;
pub use disk_identity::{replace_file, sync_name_of};
pub use disk_watch::Watchdog;
pub use peers::Founders;
pub use propose::{Error, Outcome};
pub use reads::freshness::{Acknowledgements, Fresh, FreshnessMode, Stale, Standing};
pub use reads::read_index::{Current, NotCurrent};
pub use start::{Closed, Options, Started, Transport, Work, start};
pub use status::{Member, Status};

use crate::clock::{Clock, Timestamp};
use apply::state_machine::Shared;
use clocks::Clocks;
use disk_watch::Disk;
use leader_transfer::Candidacy;
use peers::Channels;
use propose::batcher::Batches;
use propose::forwarding::Forwards;
use propose::{Numbers, Raft};
use reads::freshness::Freshness;
use reads::member_progress::Progress;
use reads::read_index::ReadIndex;
use start::Open;

/// Reads rows of the state.
pub trait View {
    /// The row under `key`.
    ///
    /// # Errors
    /// [`Corrupt`] if it is not what was written.
    fn get(&self, table: &str, key: &[u8]) -> Result<Option<Vec<u8>>, Corrupt>;

    /// Every row from `from` on, in the order of keys, until `visit` answers false.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    fn scan(
        &self,
        table: &str,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Corrupt>;

    /// The first row of `from <= key < to`. Nothing behind `to` is looked at: what was removed there costs
    /// time too.
    ///
    /// # Errors
    /// [`Corrupt`] if it is not what was written.
    fn first_between(&self, table: &str, from: &[u8], to: &[u8]) -> Result<Option<Row>, Corrupt> {
        let mut first = None;
        self.scan(table, from, &mut |key, row| {
            first = (key < to).then(|| (key.to_vec(), row.to_vec()));
            false
        })?;
        Ok(first)
    }
}

/// A key, and the row under it.
pub type Row = (Vec<u8>, Vec<u8>);

/// One change of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Writes a row.
    Put {
        /// The table.
        table: &'static str,
        /// The key.
        key: Vec<u8>,
        /// The row.
        value: Vec<u8>,
    },
    /// Removes a row.
    Delete {
        /// The table.
        table: &'static str,
        /// The key.
        key: Vec<u8>,
    },
    /// Removes the rows of `from <= key < to`.
    DeleteRange {
        /// The table.
        table: &'static str,
        /// The first key to go.
        from: Vec<u8>,
        /// The first key to stay.
        to: Vec<u8>,
    },
}

/// The times that an entry carries: as its leader knew them, and the same for every node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Log time, by which things expire: what the voters' wall clocks agree on.
    pub time: Timestamp,
    /// No wall clock that was read shows a later time. What other issuers issued is covered by it; nothing expires by
    /// it.
    pub latest: Timestamp,
    /// Elapsed time, by which waiting periods and retention count: no wall clock moves it.
    pub passed: Timestamp,
}

/// The times of the last entry that was applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogTimes {
    /// Log time.
    pub time: Timestamp,
    /// Elapsed time.
    pub passed: Timestamp,
}

/// Which process proposes: 16 random bytes, drawn when it starts, so that none is ever taken for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin([u8; 16]);

impl Origin {
    /// From the 16 bytes that were drawn.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// A command, and what it is known by however often it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The process that proposes it.
    pub origin: Origin,
    /// Which of that process's commands it is, from 1.
    pub sequence: u64,
    /// Every command of that process with a smaller sequence is answered or given up: it will not be sent
    /// again. Never less than in a submission that was made before.
    pub low_watermark: u64,
    /// The command, encoded.
    pub command: Bytes,
}

/// What applying one entry comes to.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// One reply per command, in order.
    pub replies: Vec<Bytes>,
    /// The changes, in order.
    pub writes: Vec<Write>,
    /// The hash the leader's state had at an index, to be compared with this node's.
    pub expected_hash: Option<(u64, StateHash)>,
}

/// What the log's commands do. The same log gives the same state on every node: no clock, no
/// randomness, no I/O, no order of iteration that is not the same everywhere.
pub trait Machine: Send + Sync + 'static {
    /// The tables of the state.
    const TABLES: &'static [&'static str];
    /// Those of them that are too large to be read whole when a node starts. Nothing is decided by their
    /// rows but when they go, and they are checked whenever they are read.
    const TABLES_READ_LATER: &'static [&'static str] = &[];

    /// Whether `command` is one that [`Machine::apply`] can decode. Asked before a command of another node is
    /// proposed: what is in the log must be applied.
    fn knows(command: &[u8]) -> bool;

    /// Log time and elapsed time as of the last entry that was projected; zero before the first.
    fn times(&self) -> LogTimes {
        LogTimes::default()
    }

    /// Joins submissions into one batch with the times of its entry.
    fn batch(stamp: Stamp, submissions: Vec<Submission>) -> Bytes;

    /// What a batch does: each command once, however often it comes. A command that is refused is a reply,
    /// never an error.
    ///
    /// # Errors
    /// Only if the node must stop: a batch of an unknown version, a row that is not what was written.
    fn apply(&self, view: &dyn View, batch: &[u8], index: u64) -> Result<Applied, Corrupt>;

    /// Brings what is kept in memory up to date with rows just written.
    ///
    /// # Errors
    /// If a row cannot be read back.
    fn project(&self, writes: &[Write], index: u64) -> Result<(), Corrupt>;

    /// Rebuilds what is kept in memory from all rows.
    ///
    /// # Errors
    /// If a row cannot be read.
    fn rebuild(&self, view: &dyn View) -> Result<(), Corrupt>;
}

/// The core, as everybody else sees it. Cheap to clone.
pub struct Handle<M: Machine> {
    raft: Raft<M>,
    numbers: Arc<Numbers>,
    batches: Batches,
    forwards: Forwards,
    shared: Arc<Shared>,
    machine: Arc<M>,
    freshness: Arc<Freshness>,
    progress: Arc<Progress>,
    candidacy: Arc<Candidacy>,
    disk: Arc<Disk>,
    channels: Arc<Channels>,
    reads: ReadIndex,
    clock: Clock,
    clocks: Arc<Clocks>,
    node_id: u64,
}

impl<M: Machine> Clone for Handle<M> {
    fn clone(&self) -> Self {
        Self {
            raft: self.raft.clone(),
            numbers: Arc::clone(&self.numbers),
            batches: self.batches.clone(),
            forwards: self.forwards.clone(),
            shared: Arc::clone(&self.shared),
            machine: Arc::clone(&self.machine),
            freshness: Arc::clone(&self.freshness),
            progress: Arc::clone(&self.progress),
            candidacy: Arc::clone(&self.candidacy),
            disk: Arc::clone(&self.disk),
            channels: Arc::clone(&self.channels),
            reads: self.reads.clone(),
            clock: self.clock.clone(),
            clocks: Arc::clone(&self.clocks),
            node_id: self.node_id,
        }
    }
}

impl<M: Machine> Handle<M> {
    /// What the commands have made so far, in memory.
    #[must_use]
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// What the commands have made so far, in tables.
    #[must_use]
    pub fn view(&self) -> &dyn View {
        self.shared.as_ref()
    }

    /// The last index applied on this node.
    #[must_use]
    pub fn applied(&self) -> u64 {
        *self.shared.applied.borrow()
    }

    /// Waits until `index` is applied on this node. Never ends if the core has stopped.
    pub async fn until_applied(&self, index: u64) {
        let mut applied = self.shared.applied.subscribe();
        if applied.wait_for(|applied| *applied >= index).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The hash of everything applied on this node, and the index it was applied up to.
    ///
    /// # Errors
    /// [`Corrupt`] if the rows are not what was written.
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

    /// The newest index at which the state's hash is to be compared, and the hash.
    #[must_use]
    pub fn hash_checkpoints(&self) -> watch::Receiver<Option<(u64, StateHash)>> {
        self.shared.hash.subscribe()
    }

    /// The id of the cluster; `None` while this node belongs to none.
    #[must_use]
    pub fn cluster_id(&self) -> Option<[u8; 16]> {
        self.channels.this.cluster_id()
    }

    /// This node's id.
    #[must_use]
    pub fn node_id(&self) -> u64 {
        self.node_id
    }

    /// Waits until a leader is known and everything that was in the log at the start is applied.
    ///
    /// # Errors
    /// If that takes longer than `limit`.
    pub async fn until_recovered(&self, limit: Duration) -> Result<(), String> {
        let recovered = self.raft.wait_for_recovery(Some(limit)).await;
        recovered.map(drop).map_err(|error| error.to_string())
    }

    /// Waits until the core can no longer go on, and says why. The process must then exit.
    pub async fn until_failed(&self) -> String {
        let mut metrics = self.raft.metrics();
        let mut stops = self.channels.this.stops();
        loop {
            let running = metrics.borrow_watched().running_state.clone();
            if let Err(fatal) = running {
                return fatal.to_string();
            }
            if let Some(reason) = stops.borrow().clone() {
                return reason;
            }
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() {
                    return "the core has stopped".to_owned();
                },
                Ok(()) = stops.changed() => {}
            }
        }
    }

    /// Takes a snapshot soon.
    ///
    /// # Errors
    /// If the core has stopped.
    pub async fn snapshot(&self) -> Result<(), String> {
        self.raft.trigger().snapshot().await.map_err(|error| error.to_string())
    }

    /// Stops the core: what was acknowledged is durable already.
    ///
    /// # Errors
    /// If it did not stop cleanly.
    pub async fn shutdown(&self) -> Result<(), String> {
        self.raft.shutdown().await.map_err(|error| error.to_string())
    }
}
