//! Disk identity: binds a node id to the disk on which it was first used. A disk that lost its log must not return
//! under its old node id: it may have voted, or acknowledged entries, that are no longer on it. Process starts on a
//! disk are numbered, so that members detect its rollback.

use std::fs;
use std::io;
use std::path::Path;

use rocksdb::DB;
use serde::{Deserialize, Serialize};

use super::Corrupt;
use super::corrupt::REPLACE_ADVICE;
use super::disk_rollback::Life;
use super::durable_file::replace_file;
use super::log::{DISK, REFUSED, START, read_meta, write_meta};
use super::type_config::{DiskId, LogId, Vote};
use crate::text;

const FILE: &str = "identity.json";

/// Node id and disk identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskIdentity {
    /// Id of the node, never reused in the cluster.
    pub(crate) node_id: u64,
    /// 16 random bytes, drawn when the disk was first used.
    pub(crate) disk_id: DiskId,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    node_id: u64,
    disk_id: String,
}

/// Reads or creates the identity of the disk that holds `log`.
///
/// The row in the log comes first and the file second, so a crash between them leaves a log with the identity, and the
/// file is written again. A file without the row is a disk that lost its log.
///
/// # Errors
/// [`Corrupt`] if the data directory belongs to another node, or lost its log.
pub(crate) fn establish(
    data: &Path,
    log: &DB,
    node_id: u64,
    drawn: [u8; 16],
) -> Result<DiskIdentity, Corrupt> {
    let path = data.join(FILE);
    let refuse = |what: String| Corrupt::new(&path, what);
    let stored = match fs::read(&path) {
        Ok(bytes) => Some(parse(&bytes).map_err(refuse)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(refuse(error.to_string())),
    };
    let in_log = read_meta(log, DISK)?
        .map(|row| {
            DiskIdentity::from_row(&row)
                .ok_or_else(|| refuse("the disk identity in the log is malformed".into()))
        })
        .transpose()?;
    if let Some(known) = stored.or(in_log)
        && known.node_id != node_id
    {
        let owner = known.node_id;
        return Err(refuse(format!("the directory belongs to node {owner}, not to node {node_id}")));
    }
    match (stored, in_log) {
        (Some(stored), Some(in_log)) if stored != in_log => {
            Err(refuse("the log has another disk identity".into()))
        }
        (Some(stored), Some(_)) => Ok(stored),
        (Some(stored), None) => Err(refuse(format!(
            "the log of node {} is missing; a disk that lost its log must not return under its node id; {REPLACE_ADVICE}",
            stored.node_id
        ))),
        (None, in_log) => {
            let identity = in_log.unwrap_or(DiskIdentity { node_id, disk_id: drawn });
            write_meta(log, DISK, &identity.to_row()).map_err(|error| refuse(error.to_string()))?;
            store(&path, identity).map_err(|error| refuse(error.to_string()))?;
            Ok(identity)
        }
    }
}

/// Starts the life of this process durably, before its first call.
///
/// # Errors
/// [`Corrupt`] if the disk was rejected at an earlier start, or the row of the last start is corrupt.
pub(crate) fn record_start(
    db: &DB,
    id: [u8; 16],
    vote: Option<Vote>,
    end: Option<LogId>,
) -> Result<Life, Corrupt> {
    let corrupt = |what: &dyn std::fmt::Display| Corrupt::new(db.path(), what);
    // A supervisor restarts a rejected member repeatedly. Each start has a greater number, so a member that knows no
    // other fact would accept it in the end.
    if let Some(reason) = read_meta(db, REFUSED)? {
        return Err(corrupt(&format_args!(
            "rejected at an earlier start: {}",
            String::from_utf8_lossy(&reason)
        )));
    }
    let before = match read_meta(db, START)? {
        Some(row) => row
            .first_chunk()
            .map(|number| u64::from_be_bytes(*number))
            .ok_or_else(|| corrupt(&"the row of the last process start is too short"))?,
        None => 0,
    };
    let start = before.checked_add(1).ok_or_else(|| corrupt(&"the process start number overflows"))?;
    let row = [&start.to_be_bytes()[..], &id].concat();
    write_meta(db, START, &row).map_err(|error| corrupt(&error))?;
    Ok(Life { start, id, vote: vote.map(|vote| vote.leader_id), end })
}

impl DiskIdentity {
    /// Disk id, then node id, big endian.
    fn to_row(self) -> Vec<u8> {
        [&self.disk_id[..], &self.node_id.to_be_bytes()].concat()
    }

    fn from_row(row: &[u8]) -> Option<Self> {
        let (disk_id, node_id) = row.split_first_chunk::<16>()?;
        Some(Self { disk_id: *disk_id, node_id: u64::from_be_bytes(node_id.try_into().ok()?) })
    }
}

fn parse(bytes: &[u8]) -> Result<DiskIdentity, String> {
    let stored: Stored = crate::json::read(bytes).map_err(|error| error.to_string())?;
    let disk_id = text::from_hex(&stored.disk_id).ok_or("disk_id: must be 32 hexadecimal digits")?;
    Ok(DiskIdentity { node_id: stored.node_id, disk_id })
}

fn store(path: &Path, identity: DiskIdentity) -> io::Result<()> {
    let disk_id = text::hex(&identity.disk_id);
    let text =
        serde_json::to_vec(&Stored { node_id: identity.node_id, disk_id }).map_err(io::Error::other)?;
    replace_file(path, &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::log::open_database;

    fn log_in(data: &Path) -> DB {
        open_database(&data.join("raft")).expect("open")
    }

    #[test]
    fn identity_survives_a_restart() {
        let data = tempfile::tempdir().expect("directory");
        let log = log_in(data.path());
        let first = establish(data.path(), &log, 1, [7; 16]).expect("first");
        assert_eq!(establish(data.path(), &log, 1, [8; 16]).expect("second"), first);
    }

    #[test]
    fn wiped_disk_is_refused() {
        let data = tempfile::tempdir().expect("directory");
        establish(data.path(), &log_in(data.path()), 1, [7; 16]).expect("first");
        fs::remove_dir_all(data.path().join("raft")).expect("wipe");
        let refusal = establish(data.path(), &log_in(data.path()), 1, [8; 16]).expect_err("wiped");
        assert!(refusal.to_string().contains("lost its log"), "{refusal}");
    }

    #[test]
    fn directory_of_another_node_is_refused() {
        let data = tempfile::tempdir().expect("directory");
        let log = log_in(data.path());
        establish(data.path(), &log, 1, [7; 16]).expect("first");
        let refusal = establish(data.path(), &log, 2, [8; 16]).expect_err("another node");
        assert!(refusal.to_string().contains("belongs to node 1"), "{refusal}");
    }

    /// The wrong id was once written to the missing file, and the right one refused from then on.
    #[test]
    fn wrong_node_id_does_not_claim_a_directory_without_file() {
        let data = tempfile::tempdir().expect("directory");
        let log = log_in(data.path());
        let first = establish(data.path(), &log, 1, [7; 16]).expect("first");
        fs::remove_file(data.path().join(FILE)).expect("remove");
        establish(data.path(), &log, 2, [8; 16]).expect_err("another node");
        assert_eq!(establish(data.path(), &log, 1, [8; 16]).expect("the same"), first);
    }

    #[test]
    fn crash_between_row_and_file_is_repaired() {
        let data = tempfile::tempdir().expect("directory");
        let log = log_in(data.path());
        let first = establish(data.path(), &log, 1, [7; 16]).expect("first");
        fs::remove_file(data.path().join(FILE)).expect("remove");
        assert_eq!(establish(data.path(), &log, 1, [8; 16]).expect("second"), first);
    }
}
