//! The state of a simulated node: the state machine of the product over rows in memory.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use openraft::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::entry::RaftEntry as _;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};
use tokio::sync::watch;

use super::SimConfig;
use super::invariants::Checks;
use crate::clock::Clock;
use crate::cluster::type_config::{Commands, Entry, LogId, Replies, StoredMembership};
use crate::cluster::{Applied, Machine as _, Write};
use crate::state::Replicated;
use crate::state::testing::Rows;

/// The part of the state that a crash may leave.
#[derive(Default)]
pub struct Kept {
    pub rows: Arc<Mutex<Rows>>,
    last: Option<LogId>,
    membership: StoredMembership,
    /// Hash over all writes up to the last entry.
    hash: u64,
}

impl Kept {
    /// As it is now, for the next start.
    pub fn copy(&self) -> Self {
        let rows = Rows(self.rows.lock().expect("rows").0.clone());
        let (last, membership, hash) = (self.last, self.membership.clone(), self.hash);
        Self { rows: Arc::new(Mutex::new(rows)), last, membership, hash }
    }
}

/// The state machine that openraft applies to.
pub struct SimState {
    pub node: u64,
    pub machine: Arc<Replicated>,
    pub kept: Arc<Mutex<Kept>>,
    pub applied: watch::Sender<u64>,
    /// Boot time of the last application, in milliseconds.
    pub applied_at: Arc<AtomicU64>,
    pub durable: watch::Receiver<u64>,
    pub clock: Clock,
    pub checks: Arc<Checks>,
}

pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("a short run")
}

fn hash_of(before: u64, writes: &[Write], replies: &[bytes::Bytes]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, replies).hash(&mut hasher);
    for write in writes {
        match write {
            Write::Put { table, key, value } => (0, table, key, value).hash(&mut hasher),
            Write::Delete { table, key } => (1, table, key).hash(&mut hasher),
            Write::DeleteRange { table, from, to } => (2, table, from, to).hash(&mut hasher),
        }
    }
    hasher.finish()
}

impl SimState {
    /// Rebuilds the memory of the machine from the rows.
    pub fn open(&self) {
        let kept = self.kept.lock().expect("state");
        self.machine.rebuild(&*kept.rows.lock().expect("rows")).expect("rebuilds");
        self.applied.send_replace(kept.last.map_or(0, |last| last.index));
        self.applied_at.store(millis(self.clock.boot()), Ordering::SeqCst);
    }

    /// The order of the product: rows, then memory, then the index.
    fn apply_entry(&self, entry: &Entry) -> io::Result<Replies> {
        let log_id = entry.log_id();
        let mut kept = self.kept.lock().expect("state");
        let Applied { replies, writes, .. } = match &entry.payload {
            EntryPayload::Blank => Applied::default(),
            EntryPayload::Membership(set) => {
                kept.membership = StoredMembership::new(Some(log_id), set.clone());
                Applied::default()
            }
            EntryPayload::Normal(Commands(batch)) => {
                let rows = kept.rows.lock().expect("rows");
                self.machine.apply(&*rows, batch, log_id.index).map_err(io::Error::other)?
            }
        };
        kept.rows.lock().expect("rows").write(writes.clone());
        kept.last = Some(log_id);
        kept.hash = hash_of(kept.hash, &writes, &replies);
        if matches!(entry.payload, EntryPayload::Normal(_)) {
            self.applied_at.store(millis(self.clock.boot()), Ordering::SeqCst);
        }
        self.checks.applied(self.node, log_id, kept.hash);
        self.machine.project(&writes, log_id.index).map_err(io::Error::other)?;
        self.applied.send_replace(log_id.index);
        Ok(Replies(replies))
    }
}

impl RaftStateMachine<SimConfig> for SimState {
    type SnapshotData = ();
    type SnapshotBuilder = NoSnapshots;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let kept = self.kept.lock().expect("state");
        Ok((kept.last, kept.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = Result<EntryResponder<SimConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            let index = entry.log_id().index;
            self.durable.wait_for(|end| *end > index).await.map_err(io::Error::other)?;
            let replies = self.apply_entry(&entry)?;
            if let Some(responder) = responder {
                responder.send(replies);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> NoSnapshots {
        NoSnapshots
    }

    async fn install_snapshot(&mut self, _meta: &SnapshotMetaOf<SimConfig>, (): ()) -> io::Result<()> {
        Err(no_snapshots())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<SimConfig, ()>>> {
        Ok(None)
    }
}

/// The logs are short: nothing is purged, and every member catches up by entries.
pub struct NoSnapshots;

fn no_snapshots() -> io::Error {
    io::Error::other("a simulation takes no snapshots")
}

impl RaftSnapshotBuilder<SimConfig> for NoSnapshots {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<SimConfig, ()>> {
        Err(no_snapshots())
    }
}
