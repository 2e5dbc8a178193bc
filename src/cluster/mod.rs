//! The replicated core: one Raft group over openraft and RocksDB, behind one handle.
//!
//! Nothing outside this module names either library. Nothing in it knows what a command means: the
//! state machine is whatever implements [`Machine`].
//!
//! Data directory: `identity.json` (which node, which disk) · `raft/` (log and vote, the only files
//! synced on the hot path) · `state/CURRENT`, `state/<generation>/` (every table) · `snapshots/`.

mod codec;
mod database;
mod freshness;
mod identity;
mod log;
mod log_size;
mod machine;
mod network;
mod propose;
mod record;
mod snapshot;
mod tails;
mod types;
mod writer;

#[cfg(test)]
mod order;
#[cfg(test)]
mod restarts;
#[cfg(test)]
mod suite;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::errors::{InitializeError, RaftError};
use tokio::sync::{mpsc, watch};

pub use database::StateHash;
pub use freshness::{Fresh, Stale, Standing};
pub use identity::{replace_file, sync_name_of};
pub use propose::{Error, Outcome};

use crate::clock::{Clock, Timestamp};
use database::Generations;
use freshness::Freshness;
use machine::{Shared, StateMachine};
use propose::{Proposer, Raft};
use snapshot::Snapshots;
use types::Peer;

/// The data directory is not what this node can run on. The node stops and says what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}; {advice}")]
pub struct Corrupt {
    what: String,
    advice: &'static str,
}

impl Corrupt {
    /// What is wrong, and where.
    pub fn new(path: &Path, what: impl fmt::Display) -> Self {
        Self {
            what: format!("{}: {what}", path.display()),
            advice: "this node will not run on it: keep a copy of the data directory for analysis, then \
                     start the node with an empty one and a node id that was never used",
        }
    }

    /// A row or command that is not what a table or the log should hold.
    pub fn row(what: impl fmt::Display) -> Self {
        Self::state(Path::new("state"), what)
    }

    /// The state is not what was applied. The log is whole, and makes it again.
    fn state(path: &Path, what: impl fmt::Display) -> Self {
        Self {
            what: format!("{}: {what}", path.display()),
            advice: "keep a copy of the data directory for analysis, then remove the directory `state` from \
                     it and start again: the log makes the state again",
        }
    }

    /// A snapshot is not what was written. It is only a copy.
    fn snapshot(path: &Path, what: impl fmt::Display) -> Self {
        Self {
            what: format!("{}: {what}", path.display()),
            advice: "keep a copy of the data directory for analysis, then remove the directory `snapshots` \
                     from it and start again: another snapshot is taken from the state",
        }
    }

    /// What the database library says when it cannot open. A full disk or a wrong owner is not
    /// corruption, and following the advice for it would throw away a log that is whole.
    fn unopened(error: &rocksdb::Error, corrupt: Self) -> Self {
        let advice = match error.kind() {
            rocksdb::ErrorKind::IOError if error.as_ref().contains("lock") => {
                "another process is using it: stop that one, then start again"
            }
            rocksdb::ErrorKind::IOError
                if ["No space", "Permission denied", "Too many open files", "Read-only"]
                    .iter()
                    .any(|reason| error.as_ref().contains(reason)) =>
            {
                "the data is not known to be damaged: mend the cause, then start again"
            }
            _ => corrupt.advice,
        };
        Self { advice, ..corrupt }
    }

    /// Something that a newer version wrote.
    pub fn newer(what: impl fmt::Display) -> Self {
        Self {
            what: what.to_string(),
            advice: "this version is too old for the data directory: start the version that wrote it, or \
                     a newer one",
        }
    }
}

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

/// The leader's time when it proposed a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// What log time is to be: never back, and never further ahead than time has passed.
    pub time: Timestamp,
    /// The wall clock as it stands.
    pub wall: Timestamp,
    /// What has passed on the boot clock since the batch before; zero for the first of a process.
    pub elapsed: Duration,
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

    /// Joins encoded commands into one batch, stamped with the leader's time.
    fn batch(stamp: Stamp, commands: Vec<Bytes>) -> Bytes;

    /// What a batch does. A command that is refused is a reply, never an error.
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

/// How a node of the core is started.
pub struct Options {
    /// The data directory; it exists.
    pub data: PathBuf,
    /// This node's id.
    pub node_id: u64,
    /// 16 random bytes: the disk's identity if it has none yet.
    pub drawn_disk_id: [u8; 16],
    /// Interval of heartbeats; elections take three to six of them.
    pub heartbeat: Duration,
    /// The clock that stamps batches.
    pub clock: Clock,
    /// Bytes of entries beyond which the log is cut behind a snapshot.
    pub log_bytes_max: u64,
}

/// Work that must run for the core to get anywhere.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A running core, and the work to be run for it.
pub struct Started<M: Machine> {
    /// The handle.
    pub handle: Handle<M>,
    /// To be run on the asynchronous runtime until it ends.
    pub proposer: Work,
    /// The same: keeps the log within its limit.
    pub log_keeper: Work,
    /// Likewise: keeps this node fresh. Without it nobody gets a [`Fresh`].
    pub renewal: Work,
    /// Tells when the databases are closed.
    pub closed: Closed,
}

/// Held by whoever has a database open.
type Open = mpsc::Sender<Infallible>;

/// Tells when nobody has a database open any more. The core's own tasks end a little after the
/// core says that it has stopped.
pub struct Closed(mpsc::Receiver<Infallible>);

impl Closed {
    /// Waits until everything that reads or writes the databases is gone, the log writer excepted.
    pub async fn wait(mut self) {
        // Nothing is ever sent: it ends when the last sender is dropped.
        let _ = self.0.recv().await;
    }
}

/// The core, as everybody else sees it. Cheap to clone.
pub struct Handle<M: Machine> {
    raft: Raft<M>,
    proposer: Proposer,
    shared: Arc<Shared>,
    machine: Arc<M>,
    freshness: Arc<Freshness>,
    node_id: u64,
}

impl<M: Machine> Clone for Handle<M> {
    fn clone(&self) -> Self {
        Self {
            raft: self.raft.clone(),
            proposer: self.proposer.clone(),
            shared: Arc::clone(&self.shared),
            machine: Arc::clone(&self.machine),
            freshness: Arc::clone(&self.freshness),
            node_id: self.node_id,
        }
    }
}

/// Opens the data directory and starts this node of a cluster of one.
///
/// `run_writer` is given the log writer's loop and must run it on a thread of its own.
///
/// # Errors
/// [`Corrupt`] if the directory is not what this node left there.
pub async fn start<M: Machine>(
    options: Options,
    machine: M,
    run_writer: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<()>,
) -> Result<Started<M>, Corrupt> {
    let Options { data, node_id, drawn_disk_id, heartbeat, clock, log_bytes_max } = options;
    let failed = |error: &dyn fmt::Display| Corrupt::new(&data, error);

    let database = log::open_database(&data.join("raft"))?;
    let identity = identity::establish(&data, &database, node_id, drawn_disk_id)?;
    let (open, closed) = mpsc::channel(1);
    let opened = log::open(database, log_bytes_max, open.clone())?;

    let machine = Arc::new(machine);
    let generations = Generations::new(data.join("state")).map_err(|error| failed(&error))?;
    let snapshots = Snapshots::new(data.join("snapshots"), M::TABLES).map_err(|error| failed(&error))?;
    let durable = opened.durable.clone();
    let (state, shared) =
        StateMachine::open(Arc::clone(&machine), generations, snapshots.clone(), durable, open)?;
    let applied = shared.database.load().applied()?;
    if applied > opened.last || !opened.store.holds(applied).map_err(|error| failed(&error))? {
        return Err(failed(&"the state is ahead of the log: the log lost entries that were acknowledged"));
    }
    let snapshot = current_snapshot(&snapshots, &shared, opened.purged)?;
    // The library takes up a snapshot that is ahead of the state.
    if applied.max(snapshot) < opened.purged {
        return Err(failed(&"the state is behind what is left of the log"));
    }
    run_writer(opened.writer).map_err(|error| failed(&error))?;

    let config = propose::raft_config(heartbeat).map_err(|error| failed(&error))?;
    let raft = openraft::Raft::new(node_id, config, propose::network(), opened.store, state)
        .await
        .map_err(|error| failed(&error))?;
    let peer = Peer { address: String::new(), disk_id: identity.disk_id };
    initialize(&raft, node_id, peer).await.map_err(|error| failed(&error))?;

    let log_keeper = Box::pin(log_size::keep_within_limit(raft.clone(), opened.surplus));
    let freshness = Arc::new(Freshness::new(clock.clone()));
    let renewal = freshness::keep(Arc::clone(&freshness), raft.clone(), shared.applied.subscribe());
    let (proposer, work) = Proposer::new(raft.clone(), clock);
    let handle = Handle { raft, proposer, shared, machine, freshness, node_id };
    let (proposer, renewal) = (Box::pin(work), Box::pin(renewal));
    Ok(Started { handle, proposer, log_keeper, renewal, closed: Closed(closed) })
}

/// The last entry that the newest snapshot holds. If there must be one and is none, because a crash
/// came between the old and the new, it is taken here: the library would, but panics if the disk refuses.
fn current_snapshot(
    snapshots: &Snapshots,
    shared: &Shared,
    purged: Option<types::LogId>,
) -> Result<Option<types::LogId>, Corrupt> {
    let failed = |error: io::Error| Corrupt::snapshot(snapshots.directory(), error);
    match snapshots.current().map_err(failed)? {
        None if purged.is_some() => {
            let database = shared.database.load();
            snapshots.begin(&database).and_then(|builder| builder.finish()).map_err(failed)?;
            database.applied()
        }
        current => Ok(current.and_then(|current| current.meta.last_log_id)),
    }
}

/// Makes a fresh node a cluster of one, or checks that the cluster it belongs to is that.
async fn initialize<M: Machine>(raft: &Raft<M>, node_id: u64, peer: Peer) -> Result<(), String> {
    match raft.initialize(BTreeMap::from([(node_id, peer.clone())])).await {
        Ok(()) => return Ok(()),
        Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
        Err(error) => return Err(error.to_string()),
    }
    let membership = raft.metrics().borrow_watched().membership_config.clone();
    let members: Vec<_> = membership.membership().nodes().collect();
    match members.as_slice() {
        [(id, known)] if **id == node_id && known.disk_id == peer.disk_id => Ok(()),
        [(id, _)] if **id == node_id => Err(format!("node {node_id} is known to live on another disk")),
        _ => Err("the log belongs to a cluster with other members".to_owned()),
    }
}

impl<M: Machine> Handle<M> {
    /// Proposes an encoded command and waits until it is applied here.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn propose(&self, command: Bytes) -> Result<Outcome, Error> {
        self.proposer.propose(command).await
    }

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

    /// This node's id.
    #[must_use]
    pub fn node_id(&self) -> u64 {
        self.node_id
    }

    /// The leader this node follows, if it knows one; itself if it leads.
    #[must_use]
    pub fn leader(&self) -> Option<u64> {
        self.raft.metrics().borrow_watched().current_leader
    }

    /// Waits until this node leads, or until it does not. Never ends if the core has stopped.
    pub async fn until_leads(&self, leads: bool) {
        let mut metrics = self.raft.metrics();
        while (metrics.borrow_watched().current_leader == Some(self.node_id)) != leads {
            if metrics.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
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
        loop {
            let running = metrics.borrow_watched().running_state.clone();
            if let Err(fatal) = running {
                return fatal.to_string();
            }
            if metrics.changed().await.is_err() {
                return "the core has stopped".to_owned();
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
