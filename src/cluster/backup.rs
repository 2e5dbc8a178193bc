//! The files of a backup: a checkpoint of the state, and the state in a directory of such files.

use std::io;
use std::path::Path;

use openraft::vote::RaftLeaderId as _;

use super::apply::database::Database;
use super::apply::snapshot::SnapshotFiles;
use super::{Corrupt, Handle, Machine, StateHash, View};

/// The state in a directory of files, opened read-only.
pub(crate) struct StateFiles(Database);

/// Term and node of the leader, and index of a log entry.
pub(crate) type EntryPosition = (u64, u64, u64);

impl StateFiles {
    /// Opens the files of `M` in `directory`.
    ///
    /// # Errors
    /// If they are not those of a state.
    pub(crate) fn open<M: Machine>(directory: &Path) -> io::Result<Self> {
        Database::read(directory, M::TABLES).map(Self).map_err(|corrupt| reason(&corrupt))
    }

    /// The rows.
    pub(crate) fn view(&self) -> &dyn View {
        &self.0
    }

    /// The last applied entry.
    ///
    /// # Errors
    /// If a row is corrupt, or no entry was applied.
    pub(crate) fn last(&self) -> io::Result<EntryPosition> {
        let last = self.0.applied().map_err(|corrupt| reason(&corrupt))?;
        let last = last.ok_or_else(|| io::Error::other("the state has no log entry"))?;
        Ok((last.leader_id.term(), *last.leader_id.node_id(), last.index))
    }

    /// The state hash after the last applied entry.
    ///
    /// # Errors
    /// If a row is corrupt.
    pub(crate) fn hash(&self) -> io::Result<StateHash> {
        self.0.hash().map_err(|corrupt| reason(&corrupt))
    }

    /// Verifies every row.
    ///
    /// # Errors
    /// If one is corrupt.
    pub(crate) fn verify(&self) -> io::Result<()> {
        self.0.verify_all().map_err(|corrupt| reason(&corrupt))
    }
}

/// Without the operator advice for a corrupt state: this is a copy.
fn reason(corrupt: &Corrupt) -> io::Error {
    io::Error::other(corrupt.what.clone())
}

impl<M: Machine> Handle<M> {
    /// A checkpoint of the state of this node, removed with its last owner.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn checkpoint(&self) -> io::Result<SnapshotFiles> {
        self.shared.snapshots.checkpoint(&self.shared.database.load())
    }
}
