//! Snapshots: copies of the state database, made by links and named by the entry they hold.
//!
//! What a snapshot covers is read from its own files, never from memory: memory may already be
//! ahead of them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openraft::RaftSnapshotBuilder;
use openraft::alias::{SnapshotMetaOf, SnapshotOf};

use super::Corrupt;
use super::database::Database;
use super::types::TypeConfig;

/// Name of the newest complete snapshot's directory.
const CURRENT: &str = "current";

/// The files of a snapshot, in a directory of their own that nobody writes.
#[derive(Clone, Debug)]
pub struct SnapshotFiles {
    directory: Arc<Path>,
}

impl SnapshotFiles {
    /// Those that were received there.
    #[must_use]
    pub fn in_directory(directory: &Path) -> Self {
        Self { directory: directory.into() }
    }

    /// Where the files are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

/// A snapshot and what it covers.
pub type Snapshot = SnapshotOf<TypeConfig, SnapshotFiles>;

/// The directory that holds the newest snapshot, and the ones being made.
#[derive(Clone, Debug)]
pub struct Snapshots {
    root: PathBuf,
    tables: &'static [&'static str],
    /// How many snapshots of other nodes were begun to be received.
    received: Arc<AtomicU64>,
}

/// Turns a fresh checkpoint into the current snapshot.
pub struct Builder {
    snapshots: Snapshots,
    checkpoint: PathBuf,
}

impl Snapshots {
    /// In `root`, which is made if it is not there; half-made snapshots are removed.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn new(root: PathBuf, tables: &'static [&'static str]) -> io::Result<Self> {
        fs::create_dir_all(&root)?;
        for item in fs::read_dir(&root)? {
            let item = item?;
            if item.file_name() != CURRENT {
                fs::remove_dir_all(item.path())?;
            }
        }
        Ok(Self { root, tables, received: Arc::default() })
    }

    /// Fixes what the snapshot will hold: everything in `database` at this moment.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn begin(&self, database: &Database) -> io::Result<Builder> {
        let checkpoint = self.root.join("making");
        remove_if_there(&checkpoint)?;
        database.checkpoint(&checkpoint)?;
        Ok(Builder { snapshots: self.clone(), checkpoint })
    }

    /// Where the snapshots are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.root
    }

    /// The newest complete snapshot.
    ///
    /// # Errors
    /// If its files cannot be read.
    pub fn current(&self) -> io::Result<Option<Snapshot>> {
        let directory = self.root.join(CURRENT);
        if !directory.exists() {
            return Ok(None);
        }
        let meta = self.describe(&directory)?;
        Ok(Some(Snapshot { meta, snapshot: SnapshotFiles { directory: directory.into() } }))
    }

    /// Where a snapshot of another node is received, which no other was before: one that is still being installed
    /// must not be written over. What is left there goes at the next start.
    #[must_use]
    pub fn receiving(&self) -> PathBuf {
        let number = self.received.fetch_add(1, Ordering::Relaxed);
        self.root.join(format!("receiving-{number}"))
    }

    /// What the files in `directory` hold, read from them.
    ///
    /// # Errors
    /// If they are not those of a snapshot.
    pub fn describe(&self, directory: &Path) -> io::Result<SnapshotMetaOf<TypeConfig>> {
        // Without the advice for a damaged state: this is another directory.
        let damaged = |corrupt: Corrupt| io::Error::other(corrupt.what);
        let database = Database::read(directory, self.tables).map_err(damaged)?;
        Ok(SnapshotMetaOf::<TypeConfig> {
            last_log_id: database.applied().map_err(damaged)?,
            last_membership: database.membership().map_err(damaged)?,
        })
    }

    /// Replaces the current snapshot by a complete one. A crash leaves the old, the new, or none,
    /// never a part of one; it can be made again from the state at any time.
    fn publish(&self, made: &Path) -> io::Result<()> {
        let current = self.root.join(CURRENT);
        let replaced = self.root.join("replaced");
        remove_if_there(&replaced)?;
        match fs::rename(&current, &replaced) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(made, &current)?;
        fs::File::open(&self.root)?.sync_all()?;
        remove_if_there(&replaced)
    }
}

impl Builder {
    /// Makes the copy the current snapshot.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn finish(&self) -> io::Result<()> {
        self.snapshots.publish(&self.checkpoint)
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = SnapshotFiles;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        self.finish()?;
        self.snapshots.current()?.ok_or_else(|| io::Error::other("the snapshot just made is gone"))
    }
}

fn remove_if_there(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
