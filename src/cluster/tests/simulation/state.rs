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

/// The state after an entry.
#[derive(Clone, Debug, Default)]
pub struct Image {
    rows: Rows,
    last: Option<LogId>,
    membership: StoredMembership,
    /// Hash over all writes up to the last entry.
    hash: u64,
}

/// The part of the state that a crash may leave.
#[derive(Default)]
pub struct Kept {
    now: Image,
    snapshot: Option<Arc<Image>>,
}

impl Kept {
    /// As it is now, for the next start.
    pub fn copy(&self) -> Self {
        Self { now: self.now.clone(), snapshot: self.snapshot.clone() }
    }

    /// After the loss of everything but the snapshot.
    pub fn only_snapshot(&self) -> Self {
        let now = self.snapshot.as_deref().cloned().unwrap_or_default();
        Self { now, snapshot: self.snapshot.clone() }
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
        self.machine.rebuild(&kept.now.rows).expect("rebuilds");
        self.applied.send_replace(kept.now.last.map_or(0, |last| last.index));
        self.applied_at.store(millis(self.clock.boot()), Ordering::SeqCst);
    }

    /// The order of the product: rows, then memory, then the index.
    fn apply_entry(&self, entry: &Entry) -> io::Result<Replies> {
        let log_id = entry.log_id();
        let mut kept = self.kept.lock().expect("state");
        let state = &mut kept.now;
        let Applied { replies, writes, .. } = match &entry.payload {
            EntryPayload::Blank => Applied::default(),
            EntryPayload::Membership(set) => {
                state.membership = StoredMembership::new(Some(log_id), set.clone());
                Applied::default()
            }
            EntryPayload::Normal(Commands(batch)) => {
                self.machine.apply(&state.rows, batch, log_id.index).map_err(io::Error::other)?
            }
        };
        state.rows.write(writes.clone());
        state.last = Some(log_id);
        state.hash = hash_of(state.hash, &writes, &replies);
        if matches!(entry.payload, EntryPayload::Normal(_)) {
            self.applied_at.store(millis(self.clock.boot()), Ordering::SeqCst);
        }
        self.checks.applied(self.node, log_id, state.hash);
        self.machine.project(&writes, log_id.index).map_err(io::Error::other)?;
        self.applied.send_replace(log_id.index);
        Ok(Replies(replies))
    }
}

impl RaftStateMachine<SimConfig> for SimState {
    type SnapshotData = Arc<Image>;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let kept = self.kept.lock().expect("state");
        Ok((kept.now.last, kept.now.membership.clone()))
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

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder(Arc::clone(&self.kept))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<SimConfig>,
        image: Arc<Image>,
    ) -> io::Result<()> {
        let last = meta.last_log_id.ok_or_else(|| io::Error::other("a snapshot of nothing"))?;
        self.checks.installed(self.node, last, image.hash);
        *self.kept.lock().expect("state") = Kept { now: (*image).clone(), snapshot: Some(image) };
        self.open();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        Ok(self.kept.lock().expect("state").snapshot.as_ref().map(snapshot_of))
    }
}

type Snapshot = SnapshotOf<SimConfig, Arc<Image>>;

fn snapshot_of(image: &Arc<Image>) -> Snapshot {
    let meta =
        SnapshotMetaOf::<SimConfig> { last_log_id: image.last, last_membership: image.membership.clone() };
    Snapshot { meta, snapshot: Arc::clone(image) }
}

/// Takes snapshots. A crash keeps the latest one, as of a directory that was synced.
pub struct Builder(Arc<Mutex<Kept>>);

impl RaftSnapshotBuilder<SimConfig> for Builder {
    type SnapshotData = Arc<Image>;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let mut kept = self.0.lock().expect("state");
        let image = Arc::new(kept.now.clone());
        kept.snapshot = Some(Arc::clone(&image));
        Ok(snapshot_of(&image))
    }
}
