//! The log writer: the thread that writes the log database, and the only place that syncs it.
//!
//! Group commit: it takes every queued job, writes one synced batch, then completes each job in order. A failed write
//! is final: the operating system may have dropped the dirty pages, so a later successful sync would prove nothing.
//! Every later job fails too, and the process exits.

use std::io;
use std::sync::Arc;

use openraft::storage::IOFlushed;
use rocksdb::{ColumnFamily, DB, WriteBatch, WriteOptions};
use tokio::sync::{mpsc, oneshot, watch};

use super::{COMMITTED, LOG, MEMORIES, META, PURGED, VOTE, log_key};
use crate::breaks::{self, Break};
use crate::cluster::disk_records::DiskRecords;
use crate::cluster::disk_watch::WriterProbe;
use crate::cluster::record;
use crate::cluster::type_config::TypeConfig;
use crate::limits;

/// One write, completed when it is durable.
pub(crate) enum Job {
    /// Appends encoded, consecutive entries.
    Append {
        /// Index and encoded entry.
        entries: Vec<(u64, Vec<u8>)>,
        /// Called when they are durable.
        flushed: IOFlushed<TypeConfig>,
    },
    /// Stores the vote.
    SaveVote {
        /// The encoded vote.
        vote: Vec<u8>,
        /// Completed when it is durable.
        done: oneshot::Sender<io::Result<()>>,
    },
    /// Stores the log id of the last entry known to be committed. A hint, not synced by itself.
    SaveCommitted {
        /// The encoded log id.
        committed: Vec<u8>,
    },
    /// Stores the records of the members' disks. Every synced group stores them too.
    SaveDiskRecords,
    /// Truncates the log from `first` on. The entries leave the disk only with the next append or purge: if a snapshot
    /// is installed in their place and a crash interrupts that, acknowledged entries must still be there.
    Truncate {
        /// First index removed.
        first: u64,
        /// Completed when only a crash can undo it.
        done: oneshot::Sender<io::Result<()>>,
    },
    /// Purges the log up to `last`.
    Purge {
        /// Last index removed.
        last: u64,
        /// Its encoded log id.
        purged: Vec<u8>,
        /// Completed when it is durable.
        done: oneshot::Sender<io::Result<()>>,
    },
}

/// Runs until the queue is closed. `durable` publishes the index below which entries are durable.
pub(crate) fn run(
    db: &Arc<DB>,
    mut jobs: mpsc::Receiver<Job>,
    durable: &watch::Sender<u64>,
    (disk, disk_records): (&WriterProbe, &DiskRecords),
) {
    let mut failed: Option<String> = None;
    let mut truncated = None;
    let mut group = Vec::with_capacity(limits::LOG_JOBS_PER_GROUP_MAX);
    while let Some(first) = jobs.blocking_recv() {
        group.push(first);
        while group.len() < limits::LOG_JOBS_PER_GROUP_MAX {
            let Ok(job) = jobs.try_recv() else { break };
            group.push(job);
        }
        if failed.is_none() {
            let written = disk.group(|| write(db, &group, &mut truncated, disk_records));
            failed = written.err().map(|error| error.to_string());
            if let Some(error) = &failed {
                tracing::error!(error, "failed to write the Raft log; this node stops");
            }
        }
        for job in group.drain(..) {
            answer(job, failed.as_deref(), durable);
        }
    }
    if failed.is_none()
        && let Err(error) = disk.group(|| write(db, &[Job::SaveDiskRecords], &mut None, disk_records))
    {
        tracing::warn!(%error, "failed to write the records of members' disks at shutdown");
    }
}

/// Writes a group. `truncated` is the first index of a truncation that the next append or purge carries out.
fn write(db: &DB, group: &[Job], truncated: &mut Option<u64>, disk_records: &DiskRecords) -> io::Result<()> {
    let log = db.cf_handle(LOG).ok_or_else(|| io::Error::other("log column family is missing"))?;
    let meta = db.cf_handle(META).ok_or_else(|| io::Error::other("meta column family is missing"))?;
    let mut batch = WriteBatch::default();
    let mut sync = false;
    for job in group {
        match job {
            Job::Append { entries, .. } => {
                remove_truncated(&mut batch, log, truncated);
                for (index, entry) in entries {
                    let key = log_key(*index);
                    batch.put_cf(log, key, record::seal(&key, entry));
                }
            }
            Job::SaveVote { vote, .. } => batch.put_cf(meta, VOTE, record::seal(VOTE, vote)),
            Job::SaveCommitted { committed } => {
                batch.put_cf(meta, COMMITTED, record::seal(COMMITTED, committed));
            }
            Job::SaveDiskRecords => {}
            Job::Truncate { first, .. } => {
                *truncated = Some(truncated.map_or(*first, |before| before.min(*first)));
            }
            Job::Purge { last, purged, .. } => {
                remove_truncated(&mut batch, log, truncated);
                batch.put_cf(meta, PURGED, record::seal(PURGED, purged));
                batch.delete_range_cf(log, log_key(0), log_key(last.saturating_add(1)));
            }
        }
        sync |= !matches!(job, Job::SaveCommitted { .. } | Job::Truncate { .. });
    }
    if sync && let Some(memories) = disk_records.unwritten() {
        batch.put_cf(meta, MEMORIES, record::seal(MEMORIES, &memories));
    }
    if batch.is_empty() {
        return Ok(());
    }
    let mut options = WriteOptions::default();
    options.set_sync(sync && !breaks::active(Break::AcknowledgeBeforeSync));
    db.write_opt(batch, &options).map_err(io::Error::other)
}

fn remove_truncated(batch: &mut WriteBatch, log: &ColumnFamily, truncated: &mut Option<u64>) {
    if let Some(first) = truncated.take() {
        batch.delete_range_cf(log, log_key(first), log_key(u64::MAX));
    }
}

fn answer(job: Job, failed: Option<&str>, durable: &watch::Sender<u64>) {
    let result = match failed {
        None => Ok(()),
        Some(error) => Err(io::Error::other(error.to_owned())),
    };
    match job {
        Job::Append { entries, flushed } => {
            if let (None, Some((last, _))) = (failed, entries.last()) {
                durable.send_replace(last.saturating_add(1));
            }
            flushed.io_completed(result);
        }
        Job::Truncate { first, done } => {
            if failed.is_none() {
                durable.send_modify(|end| *end = (*end).min(first));
            }
            // The receiver may be dropped; the write is done.
            drop(done.send(result));
        }
        Job::SaveVote { done, .. } | Job::Purge { done, .. } => drop(done.send(result)),
        Job::SaveCommitted { .. } | Job::SaveDiskRecords => {}
    }
}
