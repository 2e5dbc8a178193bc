//! What a node that cannot run on its data directory says: what is wrong, and what to do.

use std::fmt;
use std::path::Path;

/// The data directory is not what this node can run on. The node stops and says what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}; {advice}")]
pub struct Corrupt {
    pub(super) what: String,
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
    pub(super) fn state(path: &Path, what: impl fmt::Display) -> Self {
        Self {
            what: format!("{}: {what}", path.display()),
            advice: "keep a copy of the data directory for analysis, then remove the directory `state` from \
                     it and start again: the log makes the state again",
        }
    }

    /// A snapshot is not what was written. It is only a copy.
    pub(super) fn snapshot(path: &Path, what: impl fmt::Display) -> Self {
        Self {
            what: format!("{}: {what}", path.display()),
            advice: "keep a copy of the data directory for analysis, then remove the directory `snapshots` \
                     from it and start again: another snapshot is taken from the state",
        }
    }

    /// What the database library says when it cannot open. A full disk or a wrong owner is not
    /// corruption, and following the advice for it would throw away a log that is whole.
    pub(super) fn unopened(error: &rocksdb::Error, corrupt: Self) -> Self {
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
