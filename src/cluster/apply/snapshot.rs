//! Snapshots: checkpoints of the state database, made of hard links. The entry that a snapshot covers is read from its
//! own files, because the state in memory may be ahead of them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openraft::RaftSnapshotBuilder;
use openraft::alias::{SnapshotMetaOf, SnapshotOf};
use parking_lot::Mutex;

use super::database::Database;
use super::directory::{Directory, remove_if_there};
use crate::cluster::Corrupt;
use crate::cluster::database_guard::DatabaseGuard;
use crate::cluster::type_config::TypeConfig;
use crate::limits;

/// Prefix of a complete snapshot's directory; its number follows, and the newest has the largest.
const COMPLETE: &str = "complete-";

/// The files of a snapshot, read-only. They exist as long as this value.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotFiles(Arc<Directory>);

impl SnapshotFiles {
    fn in_directory(path: PathBuf, is_kept: bool) -> Self {
        Self(Arc::new(Directory::new(path, is_kept)))
    }

    /// Directory of the files.
    pub(crate) fn directory(&self) -> &Path {
        self.0.path()
    }
}

/// A snapshot, its last log id and membership.
pub(crate) type Snapshot = SnapshotOf<TypeConfig, SnapshotFiles>;

/// The directory of the newest snapshot and of those being built or received.
#[derive(Clone, Debug)]
pub(crate) struct Snapshots {
    root: PathBuf,
    tables: &'static [&'static str],
    /// Number of the next directory.
    next: Arc<AtomicU64>,
    /// The newest complete snapshot, once it was read.
    current: Arc<Mutex<Option<Snapshot>>>,
    /// [`crate::cluster::Closed`] waits until no snapshot is being built: a later process in the directory would remove
    /// files that this one still publishes.
    _open: DatabaseGuard,
}

/// Turns a checkpoint into the current snapshot.
#[derive(Clone)]
pub(crate) struct Builder {
    checkpoint: SnapshotFiles,
    snapshots: Snapshots,
}

impl Snapshots {
    /// In `root`, which is created if it is missing. All but the newest complete snapshot are removed.
    pub(crate) fn new(
        root: PathBuf,
        tables: &'static [&'static str],
        open: DatabaseGuard,
    ) -> io::Result<Self> {
        fs::create_dir_all(&root)?;
        let newest = newest_in(&root)?;
        for item in fs::read_dir(&root)? {
            let path = item?.path();
            if newest.as_ref().is_none_or(|(_, newest)| *newest != path) {
                remove_if_there(&path)?;
            }
        }
        let next = newest.map_or(1, |(number, _)| number.saturating_add(1));
        Ok(Self { root, tables, next: Arc::new(AtomicU64::new(next)), current: Arc::default(), _open: open })
    }

    fn next_directory(&self, begin: &str) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.root.join(format!("{begin}{number}"))
    }

    /// Creates the checkpoint, which fixes the content of the snapshot.
    pub(crate) fn begin(&self, database: &Database) -> io::Result<Builder> {
        let checkpoint = SnapshotFiles::in_directory(self.next_directory("making-"), false);
        database.checkpoint(checkpoint.directory())?;
        Ok(Builder { snapshots: self.clone(), checkpoint })
    }

    /// A checkpoint that never becomes the current snapshot.
    pub(crate) fn checkpoint(&self, database: &Database) -> io::Result<SnapshotFiles> {
        let checkpoint = SnapshotFiles::in_directory(self.next_directory("backup-"), false);
        database.checkpoint(checkpoint.directory())?;
        Ok(checkpoint)
    }

    /// Directory of all snapshots.
    pub(crate) fn directory(&self) -> &Path {
        &self.root
    }

    /// The newest complete snapshot. Its files remain until the last clone is dropped, even if it is replaced.
    pub(crate) fn current(&self) -> io::Result<Option<Snapshot>> {
        let mut current = self.current.lock();
        if current.is_none()
            && let Some((_, directory)) = newest_in(&self.root)?
        {
            let meta = self.describe(&directory)?;
            *current = Some(Snapshot { meta, snapshot: SnapshotFiles::in_directory(directory, true) });
        }
        Ok(current.clone())
    }

    /// A new directory in which to receive a snapshot: one that is still being installed must not be overwritten.
    /// Removed with its last owner.
    pub(crate) fn receiving(&self) -> SnapshotFiles {
        SnapshotFiles::in_directory(self.next_directory("receiving-"), false)
    }

    /// Reads the last log id and membership from the files in `directory`.
    fn describe(&self, directory: &Path) -> io::Result<SnapshotMetaOf<TypeConfig>> {
        description(&Database::read(directory, self.tables).map_err(damaged)?)
    }

    /// As [`Self::describe`], after every row was verified: the files of a damaged disk arrive with valid digests.
    pub(crate) fn verify(&self, directory: &Path) -> io::Result<SnapshotMetaOf<TypeConfig>> {
        let database = Database::read(directory, self.tables).map_err(damaged)?;
        database.verify_all().map_err(damaged)?;
        let meta = description(&database)?;
        tracing::info!(index = meta.last_log_id.map(|last| last.index), "snapshot verified");
        Ok(meta)
    }

    /// Replaces the current snapshot, unless it is newer. A crash leaves the old, the new, or both, never a part of
    /// one.
    fn publish(&self, made: &Path) -> io::Result<Snapshot> {
        let meta = self.describe(made)?;
        // Before the lock, for which readers wait.
        let before = self.current()?;
        let mut current = self.current.lock();
        if let Some(newer) = current.as_ref().filter(|current| current.meta.last_log_id > meta.last_log_id) {
            return Ok(newer.clone());
        }
        // Under the lock: after a crash the largest number wins, so numbers must follow the order of replacement.
        let complete = self.next_directory(COMPLETE);
        fs::rename(made, &complete)?;
        fs::File::open(&self.root)?.sync_all()?;
        let snapshot = Snapshot { meta, snapshot: SnapshotFiles::in_directory(complete, true) };
        if let Some(replaced) = current.replace(snapshot.clone()) {
            replaced.snapshot.0.discard();
        }
        drop(current);
        // After the lock: this may be the last owner, and removing the files takes a while.
        drop(before);
        Ok(snapshot)
    }
}

fn description(database: &Database) -> io::Result<SnapshotMetaOf<TypeConfig>> {
    Ok(SnapshotMetaOf::<TypeConfig> {
        last_log_id: database.applied().map_err(damaged)?,
        last_membership: database.membership().map_err(damaged)?,
    })
}

/// Without the operator advice for a corrupt state: this is another directory.
fn damaged(corrupt: Corrupt) -> io::Error {
    io::Error::other(corrupt.what)
}

/// The newest complete snapshot and its number.
fn newest_in(root: &Path) -> io::Result<Option<(u64, PathBuf)>> {
    let mut newest = None;
    for item in fs::read_dir(root)? {
        let item = item?;
        let name = item.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(COMPLETE)).map(str::parse);
        if let Some(Ok(number)) = number {
            newest = newest.max(Some((number, item.path())));
        }
    }
    Ok(newest)
}

impl Builder {
    /// Publishes the checkpoint as the current snapshot.
    pub(crate) fn finish(&self) -> io::Result<Snapshot> {
        self.snapshots.publish(self.checkpoint.directory())
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = SnapshotFiles;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let builder = self.clone();
        super::blocking(move || builder.finish()).await
    }
}

/// File names as RocksDB creates them: letters, digits, and `.`, `_`, `-` but not in the first position.
pub(crate) fn is_file_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    name.len() <= limits::SNAPSHOT_NAME_BYTES_MAX
        && name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && name.bytes().all(is_inner)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use openraft::alias::CommittedLeaderIdOf;
    use openraft::vote::RaftLeaderId as _;
    use tokio::sync::mpsc;

    use super::*;
    use crate::cluster::Write;
    use crate::cluster::apply::database::AppliedEntry;
    use crate::cluster::type_config::LogId;

    const TABLES: &[&str] = &["table"];

    fn snapshots_in(root: PathBuf) -> Snapshots {
        Snapshots::new(root, TABLES, mpsc::channel(1).0).expect("snapshots")
    }

    fn commit(database: &Database, index: u64) {
        let write = Write::Put { table: "table", key: vec![1], value: index.to_be_bytes().to_vec() };
        let log_id = LogId::new(CommittedLeaderIdOf::<TypeConfig>::new(1, 1), index);
        database.commit(&[write], &AppliedEntry { log_id, membership: None }).expect("written");
    }

    /// Regression: a number allocated before the lock let an older snapshot have a larger one than its
    /// successor; after a crash the older one was the current one.
    #[test]
    fn newest_of_concurrent_snapshots_has_the_largest_number() {
        let place = tempfile::tempdir().expect("directory");
        let database = Database::open(&place.path().join("state"), TABLES, &[]).expect("opens");
        let root = place.path().join("snapshots");
        let snapshots = snapshots_in(root.clone());
        for round in 0..10 {
            let builders = (1..=8).map(|offset| {
                commit(&database, 8 * round + offset);
                snapshots.begin(&database).expect("begun")
            });
            let builders: Vec<_> = builders.collect();
            let published: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    builders.iter().map(|builder| scope.spawn(|| builder.finish().expect("made"))).collect();
                threads.into_iter().map(|thread| thread.join().expect("publishes")).collect()
            });
            let current = snapshots.current().expect("readable").expect("there");
            let (_, newest) = newest_in(&root).expect("readable").expect("there");
            assert_eq!(current.snapshot.directory(), newest);
            drop(published);
        }
    }

    /// Regression: a stopped node published a snapshot that the next start in the directory had removed.
    #[test]
    fn directory_is_not_closed_while_a_snapshot_is_built() {
        let place = tempfile::tempdir().expect("directory");
        let database = Database::open(&place.path().join("state"), TABLES, &[]).expect("opens");
        let (open, mut closed) = mpsc::channel(1);
        let snapshots = Snapshots::new(place.path().join("snapshots"), TABLES, open).expect("snapshots");
        let builder = snapshots.begin(&database).expect("begun");
        drop(snapshots);
        assert_eq!(closed.try_recv(), Err(mpsc::error::TryRecvError::Empty));
        builder.finish().expect("made");
        drop(builder);
        assert_eq!(closed.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
    }

    /// Regression: a request for the current snapshot during its replacement found none or a part of one;
    /// openraft took that for a storage error and stopped the leader.
    #[test]
    fn snapshot_in_use_stays_readable_while_others_replace_it() {
        let place = tempfile::tempdir().expect("directory");
        let database = Database::open(&place.path().join("state"), TABLES, &[]).expect("opens");
        let root = place.path().join("snapshots");
        let snapshots = snapshots_in(root.clone());
        let make = |index: u64| {
            commit(&database, index);
            snapshots.begin(&database).expect("begun").finish().expect("made");
        };
        assert!(snapshots.current().expect("readable").is_none());
        make(1);
        let held = snapshots.current().expect("readable").expect("there");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut last = 0;
                while last < 40 {
                    let current = snapshots.current().expect("readable").expect("there");
                    let index = current.meta.last_log_id.expect("entries").index;
                    assert!(index >= last);
                    if index > last {
                        let read = snapshots.describe(current.snapshot.directory()).expect("whole");
                        assert_eq!(read.last_log_id, current.meta.last_log_id);
                    }
                    last = index;
                }
            });
            (2..=40).for_each(make);
            reader.join().expect("reads");
        });
        assert_eq!(
            snapshots.describe(held.snapshot.directory()).expect("still there").last_log_id,
            held.meta.last_log_id
        );
        drop(held);
        assert_eq!(fs::read_dir(&root).expect("directory").count(), 1, "unused snapshots are removed");
        // A new process finds the newest snapshot and removes incomplete ones.
        fs::create_dir(root.join("making-99")).expect("directory");
        let reopened = snapshots_in(root.clone());
        let current = reopened.current().expect("readable").expect("there");
        assert_eq!(current.meta.last_log_id.map(|last| last.index), Some(40));
        assert_eq!(fs::read_dir(&root).expect("directory").count(), 1);
    }

    /// Regression: opening the checkpoint replays its write-ahead log, which kept a thread that serves
    /// requests busy for seconds.
    #[tokio::test]
    async fn snapshot_is_built_beside_the_runtime() {
        let place = tempfile::tempdir().expect("directory");
        let database = Database::open(&place.path().join("state"), TABLES, &[]).expect("opens");
        let snapshots = snapshots_in(place.path().join("snapshots"));
        commit(&database, 1);
        let mut builder = snapshots.begin(&database).expect("begun");
        let current = snapshots.current.lock();
        let mut building = Box::pin(builder.build_snapshot());
        assert!(building.as_mut().now_or_never().is_none(), "it waits for the lock on another thread");
        drop(current);
        assert_eq!(building.await.expect("built").meta.last_log_id.map(|last| last.index), Some(1));
    }

    #[test]
    fn older_snapshot_does_not_replace_a_newer_one() {
        let place = tempfile::tempdir().expect("directory");
        let database = Database::open(&place.path().join("state"), TABLES, &[]).expect("opens");
        let snapshots = snapshots_in(place.path().join("snapshots"));
        commit(&database, 1);
        let slow = snapshots.begin(&database).expect("begun");
        commit(&database, 2);
        snapshots.begin(&database).expect("begun").finish().expect("made");
        slow.finish().expect("made");
        let current = snapshots.current().expect("readable").expect("there");
        assert_eq!(current.meta.last_log_id.map(|last| last.index), Some(2));
    }
}
