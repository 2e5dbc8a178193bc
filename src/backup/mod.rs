//! The format of a backup: one zstd frame of a tar archive, then a trailer with the digest of all bytes before it.
//!
//! The first member is `manifest.json`, which lists the files of a checkpoint of the state with their digests; they
//! follow in its order. The trailer is a skippable frame, so that `zstd` and `tar` read a backup too.

mod read;
#[cfg(test)]
mod tests;
mod trailer;
mod write;

use std::io;

use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};

pub(crate) use read::{check_state, extract, inspect, verify_digest};
pub(crate) use trailer::DigestCheck;
pub(crate) use write::{BackupStream, Origin};

/// Version of the format.
const FORMAT: u64 = 1;
/// Name of the first member.
const MANIFEST: &str = "manifest.json";

/// The first member of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Version of the format.
    pub(crate) format: u64,
    /// Version of the program that wrote it.
    pub(crate) product_version: String,
    /// `production` or `development`.
    pub(crate) mode: String,
    /// `iss` of the fabric.
    pub(crate) issuer: String,
    /// Id of the cluster, hexadecimal.
    pub(crate) cluster_id: String,
    /// Incarnation of the cluster, hexadecimal.
    pub(crate) incarnation: String,
    /// Feature level of the cluster.
    pub(crate) feature_level: u32,
    /// The node that wrote it.
    pub(crate) node_id: u64,
    /// The last log entry that the state covers.
    pub(crate) log_id: ManifestLogId,
    /// Log time of the state, RFC 3339.
    pub(crate) log_time: String,
    /// State hash after the entry of `log_id`, hexadecimal.
    pub(crate) state_hash: String,
    /// The files of the state, in the order of the archive.
    pub(crate) files: Vec<FileEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ManifestLogId {
    /// Term of the leader that wrote the entry.
    pub(crate) term: u64,
    /// That leader.
    pub(crate) node_id: u64,
    /// Index of the entry.
    pub(crate) index: u64,
}

/// A file of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    /// Its name, without a directory.
    pub(crate) name: String,
    /// Its size.
    pub(crate) bytes: u64,
    /// Its digest, hexadecimal.
    pub(crate) sha256: String,
}

impl Manifest {
    /// Size of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }
}

/// Reason why a backup is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another kind of file.
    #[error("this is no backup: {0}")]
    NotABackup(String),
    /// Written by a later version.
    #[error(
        "the backup has format {format}, written by version {version}; this program reads format {FORMAT}"
    )]
    Newer {
        format: u64,
        /// The program that wrote it.
        version: String,
    },
    /// This program does not support its feature level.
    #[error("the backup was written by version {version}: {reason}")]
    FeatureLevel {
        /// The program that wrote it.
        version: String,
        /// The level of the backup and those that this program supports.
        reason: String,
    },
    /// The end is missing.
    #[error("the backup is truncated: its digest is missing")]
    Truncated,
    /// A byte differs.
    #[error("the backup was changed: its digest does not match")]
    Changed,
    /// The archive cannot be decoded.
    #[error("the backup cannot be read: {0}")]
    Unreadable(String),
    /// The manifest breaks a rule.
    #[error("manifest.json: {0}")]
    Manifest(String),
    /// A member breaks a rule.
    #[error("member {name:?}: {rule}")]
    Member { name: String, rule: &'static str },
    /// A file of the manifest is not in the archive.
    #[error("member {0:?} is missing")]
    Missing(String),
    /// The state does not open, or is not that of the manifest.
    #[error("the state in the backup: {0}")]
    State(String),
    /// Read or write error of the disk.
    #[error(transparent)]
    Disk(#[from] io::Error),
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a `String` does not fail.
        let _: std::fmt::Result = write!(text, "{byte:02x}");
        text
    })
}

fn sha256() -> digest::Context {
    digest::Context::new(&digest::SHA256)
}
