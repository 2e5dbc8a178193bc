//! openraft's state machine: applies entries to the state database and to memory, builds and installs snapshots.
//!
//! An entry is applied only when it is durable in this node's own log. openraft may commit an entry by the
//! acknowledgements of other nodes; a crash before the local sync would leave a state ahead of its log.
//!
//! During a dispute about the state, entries after the disputed index are deferred, and openraft takes them for applied:
//! an apply that waited would also keep openraft from reading the snapshot that a deciding voter may need, and from
//! starting.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::{Stream, StreamExt as _};
use openraft::alias::SnapshotMetaOf;
use openraft::entry::RaftEntry as _;
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};
use tokio::sync::watch;

use super::database::{AppliedEntry, Database, Generations, ReadOnce, StateHash};
use super::snapshot::{Builder, Snapshot, SnapshotFiles, Snapshots};
use crate::breaks::{self, Break};
use crate::clock::Clock;
use crate::cluster::database_guard::DatabaseGuard;
use crate::cluster::divergence::Divergence;
use crate::cluster::log::LogReader;
use crate::cluster::type_config::{
    Commands, Entry, LogId, MemberRecord, Membership, Replies, StoredMembership, TypeConfig,
};
use crate::cluster::{Applied, Machine, MemberEntry, View};
use crate::limits;

/// State shared by the applier and all readers.
pub(crate) struct Shared {
    /// The current generation; replaced when a snapshot is installed.
    pub(crate) database: ArcSwap<Database>,
    /// The last applied and projected index.
    pub(crate) applied: watch::Sender<u64>,
    /// The newest index whose state hash is retained, and the hash.
    pub(crate) hash: watch::Sender<Option<(u64, StateHash)>>,
    /// When this process applied the last entry with a time stamp, or opened the state, in nanoseconds of the boot
    /// clock. Never earlier than the entry whose times readers see.
    applied_at: AtomicU64,
    /// Directory of checkpoints.
    pub(crate) snapshots: Snapshots,
    /// Disputes about the state.
    pub(crate) divergence: Divergence,
    /// Dropped after the database, so that the database is closed when [`crate::cluster::Closed`] reports it.
    _open: DatabaseGuard,
}

impl Shared {
    /// Time since the last entry with a time stamp was applied here, at `now` of the boot clock. At least as much has
    /// elapsed since the leader stamped it.
    pub(crate) fn since_applied(&self, now: Duration) -> Duration {
        now.saturating_sub(Duration::from_nanos(self.applied_at.load(Ordering::Acquire)))
    }

    /// To be called before readers can see the times of an entry.
    fn record_applied(&self, now: Duration) {
        self.applied_at.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
    }
}

/// The state machine of this node.
pub(crate) struct StateMachine<M> {
    shared: Arc<Shared>,
    machine: Arc<M>,
    durable: watch::Receiver<u64>,
    generations: Generations,
    snapshots: Snapshots,
    membership: StoredMembership,
    /// Entries that openraft takes for applied, and that wait for the end of a dispute.
    deferred: Option<Deferred>,
    clock: Clock,
}

/// Committed entries after the last applied one. They are in the log, which is never purged beyond a snapshot of the
/// applied ones.
#[derive(Default)]
struct Deferred {
    /// Index of the last one.
    last: u64,
    /// Those with a proposer on this node, at most [`limits::ENTRIES_IN_FLIGHT_MAX`].
    responders: BTreeMap<u64, ApplyResponder<TypeConfig>>,
}

impl<M: Machine> StateMachine<M> {
    /// Opens the state and rebuilds the in-memory indexes.
    pub(crate) fn open(
        machine: Arc<M>,
        generations: Generations,
        snapshots: Snapshots,
        (durable, divergence): (watch::Receiver<u64>, Divergence),
        open: DatabaseGuard,
        clock: Clock,
    ) -> Result<(Self, Arc<Shared>), crate::cluster::Corrupt> {
        let database = generations.open(M::TABLES, M::TABLES_VERIFIED_ON_READ)?;
        Self::over(database, machine, generations, snapshots, (durable, divergence), open, clock)
    }

    /// As [`Self::open`], over a generation that is open.
    pub(crate) fn over(
        database: Database,
        machine: Arc<M>,
        generations: Generations,
        snapshots: Snapshots,
        (durable, divergence): (watch::Receiver<u64>, Divergence),
        open: DatabaseGuard,
        clock: Clock,
    ) -> Result<(Self, Arc<Shared>), crate::cluster::Corrupt> {
        let database = Arc::new(database);
        let membership = database.membership()?;
        let applied = database.applied()?.map_or(0, |applied| applied.index);
        machine.rebuild(&ReadOnce(&database))?;
        let shared = Arc::new(Shared {
            database: ArcSwap::new(database),
            applied: watch::Sender::new(applied),
            hash: watch::Sender::new(None),
            applied_at: AtomicU64::default(),
            snapshots: snapshots.clone(),
            divergence,
            _open: open,
        });
        shared.record_applied(clock.boot());
        let state = Self {
            shared: Arc::clone(&shared),
            machine,
            durable,
            generations,
            snapshots,
            membership,
            deferred: None,
            clock,
        };
        Ok((state, shared))
    }

    async fn until_durable(&mut self, index: u64) -> io::Result<()> {
        self.durable
            .wait_for(|end| *end > index || breaks::active(Break::ApplyBeforeDurable))
            .await
            .map(drop)
            .map_err(|_| io::Error::other("the log writer has stopped"))
    }

    /// Applies an entry that is durable in the log, or that replaces the log. `None` if the entry states a
    /// hash that differs from this node's: it is applied when the dispute is decided.
    pub(crate) fn apply_entry(&mut self, entry: &Entry) -> io::Result<Option<Replies>> {
        let log_id = entry.log_id();
        let database = self.shared.database.load_full();
        let mut membership = None;
        let Applied { replies, writes, expected_hash } = match &entry.payload {
            EntryPayload::Blank => Applied::default(),
            EntryPayload::Membership(set) => {
                membership = Some(StoredMembership::new(Some(log_id), set.clone()));
                let writes = self.machine.record_members(&*database, &member_entries(set), log_id.index);
                Applied { writes: writes.map_err(io::Error::other)?, ..Applied::default() }
            }
            EntryPayload::Normal(Commands(batch)) => {
                self.machine.apply(&*database, batch, log_id.index).map_err(io::Error::other)?
            }
        };
        if let Some((index, expected)) = expected_hash
            && database.hash_at(index).map_err(io::Error::other)?.is_some_and(|ours| ours != expected)
            && self.shared.divergence.report(index, None)
        {
            return Ok(None);
        }
        let hash = database.commit(&writes, &AppliedEntry { log_id, membership: membership.as_ref() })?;
        if let Some(membership) = membership {
            self.membership = membership;
        }
        if matches!(entry.payload, EntryPayload::Normal(_)) {
            self.shared.record_applied(self.clock.boot());
        }
        self.machine.project(&writes, log_id.index).map_err(io::Error::other)?;
        self.shared.applied.send_replace(log_id.index);
        if log_id.index.is_multiple_of(super::database::HASH_INTERVAL) {
            self.shared.hash.send_replace(Some((log_id.index, hash)));
        }
        Ok(Some(Replies(replies)))
    }

    /// Index of the open dispute.
    pub(crate) fn disputed(&self) -> Option<u64> {
        self.shared.divergence.disputed()
    }

    /// Applies an entry, as [`Self::apply_entry`]; `None` if the state before it is in dispute, too.
    fn apply_if_agreed(&mut self, entry: &Entry) -> io::Result<Option<Replies>> {
        if self.shared.divergence.may_apply(entry.log_id().index) {
            self.apply_entry(entry)
        } else {
            Ok(None)
        }
    }

    /// Applies the deferred entries from the log, as far as no dispute is open.
    pub(crate) async fn apply_deferred(&mut self, log: &LogReader) -> io::Result<()> {
        let Some(last) = self.deferred.as_ref().map(|deferred| deferred.last) else { return Ok(()) };
        let mut next = self.shared.applied.borrow().saturating_add(1);
        while next <= last {
            let entries = log.read_disk(next, last.saturating_add(1), limits::APPEND_BYTES_FULL)?;
            if entries.first().is_none_or(|first| first.log_id().index != next) {
                return Err(io::Error::other(format!("log entry {next} is missing")));
            }
            for entry in entries {
                let Some(replies) = self.apply_if_agreed(&entry)? else { return Ok(()) };
                let responders = self.deferred.as_mut().map(|deferred| &mut deferred.responders);
                if let Some(responder) = responders.and_then(|responders| responders.remove(&next)) {
                    responder.send(replies);
                }
                next = next.saturating_add(1);
            }
            tokio::task::yield_now().await;
        }
        // Not before: openraft would apply the next entries without them.
        self.deferred = None;
        Ok(())
    }
}

/// Everything that an installation changes.
struct Installation<M> {
    shared: Arc<Shared>,
    machine: Arc<M>,
    generations: Generations,
    snapshots: Snapshots,
    clock: Clock,
}

impl<M: Machine> Installation<M> {
    /// Makes the files of a snapshot the state, in memory too, and a snapshot of this node. Returns the membership.
    fn install(&self, last: Option<LogId>, files: &SnapshotFiles) -> io::Result<StoredMembership> {
        let (tables, later) = (M::TABLES, M::TABLES_VERIFIED_ON_READ);
        let database = Arc::new(self.generations.install(files.directory(), tables, later, last)?);
        let membership = database.membership().map_err(io::Error::other)?;
        // The order of apply: rows first, then memory, because the rebuild wakes readers, which read the rows.
        self.shared.database.swap(Arc::clone(&database)).discard();
        self.shared.record_applied(self.clock.boot());
        self.machine.rebuild(&ReadOnce(&database)).map_err(io::Error::other)?;
        let index = last.map_or(0, |last| last.index);
        self.shared.applied.send_replace(index);
        tracing::info!(index, "snapshot installed");
        self.snapshots.begin(&database)?.finish()?;
        Ok(membership)
    }
}

fn member_entries(membership: &Membership) -> Vec<MemberEntry> {
    let voters: BTreeSet<u64> = membership.voter_ids().collect();
    let entry = |(id, member): (&u64, &MemberRecord)| MemberEntry {
        node_id: *id,
        address: member.address.clone(),
        disk_id: member.disk_id,
        is_voter: voters.contains(id),
    };
    membership.nodes().map(entry).collect()
}

impl<M: Machine> RaftStateMachine<TypeConfig> for StateMachine<M> {
    type SnapshotData = SnapshotFiles;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let applied = self.shared.database.load().applied().map_err(io::Error::other)?;
        Ok((applied, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            let index = entry.log_id().index;
            self.until_durable(index).await?;
            let replies = if self.deferred.is_none() { self.apply_if_agreed(&entry)? } else { None };
            match (replies, responder) {
                (Some(replies), Some(responder)) => responder.send(replies),
                (Some(_), None) => {}
                (None, responder) => {
                    let deferred = self.deferred.get_or_insert_default();
                    deferred.last = index;
                    deferred.responders.extend(responder.map(|responder| (index, responder)));
                }
            }
        }
        Ok(())
    }

    /// No snapshot is taken of a state in dispute: it would replace the one that a deciding voter may need.
    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Builder> {
        if self.disputed().is_some() && !force {
            return None;
        }
        let (snapshots, database) = (self.snapshots.clone(), self.shared.database.load_full());
        let begin = move || database.require_space_of_checkpoint().and_then(|()| snapshots.begin(&database));
        match super::blocking(begin).await {
            Ok(builder) => Some(builder),
            Err(error) => {
                // Only the size of the log depends on it; the next trigger retries.
                tracing::warn!(%error, "failed to begin a snapshot");
                None
            }
        }
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        loop {
            if let Some(builder) = self.try_create_snapshot_builder(true).await {
                return builder;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<TypeConfig>,
        snapshot: SnapshotFiles,
    ) -> io::Result<()> {
        let installation = Installation {
            shared: Arc::clone(&self.shared),
            machine: Arc::clone(&self.machine),
            generations: self.generations.clone(),
            snapshots: self.snapshots.clone(),
            clock: self.clock.clone(),
        };
        let last = meta.last_log_id;
        self.membership = super::blocking(move || installation.install(last, &snapshot)).await?;
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        self.snapshots.current()
    }
}

impl View for Shared {
    fn get(&self, table: &str, key: &[u8]) -> Result<Option<Vec<u8>>, crate::cluster::Corrupt> {
        self.database.load().get(table, key)
    }

    fn scan(
        &self,
        table: &str,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), crate::cluster::Corrupt> {
        self.database.load().scan(table, from, visit)
    }

    fn scan_between(
        &self,
        table: &str,
        range: (&[u8], &[u8]),
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), crate::cluster::Corrupt> {
        self.database.load().scan_between(table, range, visit)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, OnceLock};

    use openraft::alias::CommittedLeaderIdOf;
    use openraft::storage::RaftSnapshotBuilder as _;
    use openraft::vote::RaftLeaderId as _;
    use tokio::sync::mpsc;

    use super::*;
    use crate::cluster::log::open_database;
    use crate::cluster::{Corrupt, Stamp, Submission, Write};

    const TABLE: &str = "table";

    /// Records the row that a reader finds when it is woken by a rebuild, which waits until a task has run.
    #[derive(Default)]
    struct Woken {
        shared: OnceLock<Arc<Shared>>,
        found: Mutex<Vec<Option<Vec<u8>>>>,
        has_run: Mutex<Option<std::sync::mpsc::Receiver<()>>>,
    }

    impl Machine for Woken {
        const TABLES: &'static [&'static str] = &[TABLE];

        fn can_decode(_command: &[u8]) -> bool {
            true
        }

        fn batch(_stamp: Stamp, _submissions: Vec<Submission>) -> bytes::Bytes {
            bytes::Bytes::new()
        }

        fn apply(&self, _view: &dyn View, _batch: &[u8], _index: u64) -> Result<Applied, Corrupt> {
            Ok(Applied::default())
        }

        fn project(&self, _writes: &[Write], _index: u64) -> Result<(), Corrupt> {
            Ok(())
        }

        fn rebuild(&self, _view: &dyn View) -> Result<(), Corrupt> {
            if let Some(has_run) = self.has_run.lock().expect("lock").take() {
                let limit = Duration::from_secs(20);
                has_run.recv_timeout(limit).map_err(|_| Corrupt::row("no task has run"))?;
            }
            if let Some(shared) = self.shared.get() {
                self.found.lock().expect("lock").push(shared.get(TABLE, b"key")?);
            }
            Ok(())
        }
    }

    /// Regression: a reader that was woken during the installation read the old rows and waited on, and the
    /// installation of a large state kept a thread that serves requests busy for a minute.
    #[tokio::test]
    async fn reader_woken_by_a_snapshot_finds_its_rows() {
        let (data, (still_open, _closed)) = (tempfile::tempdir().expect("directory"), mpsc::channel(1));
        let open = |name: &str| {
            let machine = Arc::new(Woken::default());
            let generations = Generations::new(data.path().join(name).join("state")).expect("state");
            let snapshots = data.path().join(name).join("snapshots");
            let snapshots = Snapshots::new(snapshots, Woken::TABLES, still_open.clone()).expect("snapshots");
            let (_, durable) = watch::channel(u64::MAX);
            let log = open_database(&data.path().join(name).join("raft")).expect("log");
            let durable = (durable, Divergence::open(Arc::new(log)).expect("readable"));
            let (open, clock) = (still_open.clone(), Clock::system());
            let opened =
                StateMachine::open(Arc::clone(&machine), generations, snapshots, durable, open, clock);
            let (state, shared) = opened.expect("state");
            assert!(machine.shared.set(shared).is_ok());
            (state, machine)
        };
        let (mut leader, _) = open("leader");
        let (mut follower, woken) = open("follower");
        let write = Write::Put { table: TABLE, key: b"key".to_vec(), value: b"row".to_vec() };
        let log_id = LogId::new(CommittedLeaderIdOf::<TypeConfig>::new(1, 1), 1);
        let database = leader.shared.database.load_full();
        database.commit(&[write], &AppliedEntry { log_id, membership: None }).expect("committed");
        let snapshot = leader.get_snapshot_builder().await.build_snapshot().await.expect("a snapshot");
        let (task, has_run) = std::sync::mpsc::channel();
        *woken.has_run.lock().expect("lock") = Some(has_run);
        let installing = follower.install_snapshot(&snapshot.meta, snapshot.snapshot);
        let (installed, ()) = tokio::join!(installing, async { task.send(()).expect("it waits") });
        installed.expect("installed");
        assert_eq!(*woken.found.lock().expect("lock"), [Some(b"row".to_vec())]);
    }
}
