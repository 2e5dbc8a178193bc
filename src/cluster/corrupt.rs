//! Corruption of the data directory: the finding, and the advice to the operator.

use std::fmt;
use std::path::Path;

/// Advice for a member whose disk was lost, rolled back or copied.
pub(crate) const REPLACE_ADVICE: &str = "start it with the newest copy of its data directory if there is one; otherwise replace the \
                            member by a new node (`trust-fabric cluster replace`)";

/// Advice for a removed node.
pub(crate) const RETURN_ADVICE: &str = "to return, it needs an empty data directory and a new join token";

/// The node cannot run on its data directory and stops.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}; {advice}")]
pub struct Corrupt {
    pub(super) what: String,
    advice: &'static str,
}

impl Corrupt {
    /// Corruption of the log or of the data directory itself: the node cannot be restored from the rest.
    pub(crate) fn new(path: &Path, what: impl fmt::Display) -> Self {
        Self {
            what: format!("{}: {what}", path.display()),
            advice: "this node will not run on it: keep a copy of the data directory for analysis, then \
                     start the node with an empty one and a node id that was never used",
        }
    }

    /// A corrupt row or an undecodable command.
    pub(crate) fn row(what: impl fmt::Display) -> Self {
        Self::state(Path::new("state"), what)
    }

    /// Corruption of the state. The log is intact and rebuilds it.
    pub(super) fn state(path: &Path, what: impl fmt::Display) -> Self {
        Self {
            what: format!("{}: {what}", path.display()),
            advice: "keep a copy of the data directory for analysis, then remove the directory `state` from \
                     it and start again: the state is rebuilt from the log",
        }
    }

    /// Corruption of a snapshot, which is only a copy.
    pub(super) fn snapshot(path: &Path, what: impl fmt::Display) -> Self {
        Self {
            what: format!("{}: {what}", path.display()),
            advice: "keep a copy of the data directory for analysis, then remove the directory `snapshots` \
                     from it and start again: a new snapshot is taken from the state",
        }
    }

    /// Error of RocksDB when it opens a database. A full disk or a wrong owner is not corruption, and the advice for
    /// corruption would discard an intact log.
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
                "the data may be intact: remove the cause, then start again"
            }
            _ => corrupt.advice,
        };
        Self { advice, ..corrupt }
    }

    /// There is no data, and no cluster to bootstrap.
    pub(super) fn not_joined() -> Self {
        Self {
            what: "cluster.members is empty, and this node has not joined a cluster".to_owned(),
            advice: "run `trust-fabric cluster join` first",
        }
    }

    /// The data is that of another configuration.
    pub(super) fn misconfigured(what: impl fmt::Display) -> Self {
        Self {
            what: what.to_string(),
            advice: "the data is intact: correct the configuration, then start again",
        }
    }

    /// Data of a version that is too old for this one.
    pub(crate) fn older(what: impl fmt::Display) -> Self {
        Self {
            what: what.to_string(),
            advice: "this version is too new for the data directory: start the version before it on every member, run \
                     `trust-fabric cluster finalize`, then start this one",
        }
    }

    /// Data written by a newer version.
    pub(crate) fn newer(what: impl fmt::Display) -> Self {
        Self {
            what: what.to_string(),
            advice: "this version is too old for the data directory: start the version that wrote it, or \
                     a newer one",
        }
    }
}
