//! The Raft log: entries, vote, committed and purged log ids, in a RocksDB database.
//!
//! Recent entries are read from memory; [`writer`] writes everything. Opening verifies every record: a log with
//! a corrupt or missing record is refused, never repaired.

pub(crate) mod purge;
pub(crate) mod writer;

mod contradiction;
pub(crate) mod replace;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::Arc;

use openraft::entry::RaftEntry as _;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::vote::RaftLeaderId as _;
use openraft::{OptionalSend, RaftLogReader};
use parking_lot::Mutex;
use rocksdb::{ColumnFamilyDescriptor, DB, DBRecoveryMode, Direction, IteratorMode, Options, WriteOptions};
use tokio::sync::{mpsc, oneshot, watch};

use super::database_guard::DatabaseGuard;
use super::disk_records::DiskRecords;
use super::disk_watch::{self, Watchdog};
use super::type_config::{Entry, LogId, TypeConfig, Vote};
use super::{Corrupt, codec, record, torn_tail};
use crate::limits;
use purge::{LogSize, Surplus};
use writer::Job;

/// Column family of the entries, by index.
pub(crate) const LOG: &str = "log";
/// Column family of the rows below.
pub(crate) const META: &str = "meta";
/// Row: the vote.
pub(crate) const VOTE: &[u8] = b"vote";
/// Row: log id of the last entry known to be committed.
pub(crate) const COMMITTED: &[u8] = b"committed";
/// Row: log id of the last purged entry.
pub(crate) const PURGED: &[u8] = b"purged";
/// Row: disk identity and node id, 24 bytes.
pub(crate) const DISK: &[u8] = b"disk";
/// Row: the cluster id, 16 bytes.
pub(crate) const CLUSTER_ID: &[u8] = b"cluster-id";
/// Row: present if this disk joined an existing cluster, and so never bootstraps one.
pub(crate) const JOINED: &[u8] = b"joined";
/// Row: number of the last process start on the disk, 8 bytes, and its random id, 16 bytes.
pub(crate) const START: &[u8] = b"start";
/// Row: the reason for which other members rejected this disk, as text. A process does not start on such a disk.
pub(crate) const REFUSED: &[u8] = b"refused";
/// Row: the log index at which the state hash of another member differs, 8 bytes; empty if none does.
pub(crate) const DISPUTE: &[u8] = b"dispute";
/// Row: the records of the members' disks.
pub(crate) const MEMORIES: &[u8] = b"memories";

/// Key of an entry: its index, big endian, so that keys sort like indexes.
pub(crate) fn log_key(index: u64) -> [u8; 8] {
    index.to_be_bytes()
}

/// The log of this node. openraft owns it and is its only writer.
pub(crate) struct LogStore {
    reader: LogReader,
    jobs: mpsc::Sender<Job>,
    durable: watch::Receiver<u64>,
    size: LogSize,
    surplus: watch::Sender<Option<Surplus>>,
}

#[derive(Clone)]
pub(crate) struct LogReader {
    db: Arc<DB>,
    recent: Arc<Mutex<Recent>>,
    /// Dropped after the database, so that the database is closed when [`super::database_guard::Closed`] reports it.
    _open: DatabaseGuard,
}

/// The end of the log, in memory.
struct Recent {
    entries: BTreeMap<u64, (Entry, usize)>,
    bytes: usize,
    last: Option<LogId>,
    purged: Option<LogId>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    /// The last entry that was applied when the log was opened.
    applied: Option<LogId>,
}

/// An opened log and its writer.
pub(crate) struct Opened {
    /// The store for openraft.
    pub(crate) store: LogStore,
    /// Runs the writer until the store is dropped; to be run on a thread of its own.
    pub(crate) writer: Box<dyn FnOnce() + Send>,
    /// Detects a hanging disk under the writer.
    pub(crate) watchdog: Watchdog,
    /// Entries below this index are durable.
    pub(crate) durable: watch::Receiver<u64>,
    /// The last entry of the log, or the last purged one if it is empty.
    pub(crate) last: Option<LogId>,
    pub(crate) vote: Option<Vote>,
    /// Records of the members' disks, which the writer stores.
    pub(crate) disk_records: Arc<DiskRecords>,
    /// The queue of the writer; closed with the store.
    pub(crate) jobs: mpsc::WeakSender<Job>,
    /// The last purged entry.
    pub(crate) purged: Option<LogId>,
    /// The entries to be purged, whenever the log exceeds its limit.
    pub(crate) surplus: watch::Receiver<Option<Surplus>>,
}

/// Opens the log database in `directory`.
///
/// # Errors
/// [`Corrupt`] if it cannot be opened or its WAL is damaged.
pub(crate) fn open_database(directory: &Path) -> Result<DB, Corrupt> {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_paranoid_checks(true);
    // The default would silently drop a synced suffix after a corrupt record: for Raft, a node that forgot its vote or
    // acknowledged entries.
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    options.set_track_and_verify_wals_in_manifest(true);
    options.set_keep_log_file_num(4);
    options.set_max_total_wal_size(256 * 1024 * 1024);
    options.set_db_write_buffer_size(limits::LOG_WRITE_BUFFERS_BYTES);
    torn_tail::check_for(directory, Corrupt::new)?;
    let families = [LOG, META].map(|name| ColumnFamilyDescriptor::new(name, Options::default()));
    DB::open_cf_descriptors(&options, directory, families)
        .map_err(|error| Corrupt::unopened(&error, Corrupt::new(directory, &error)))
}

/// Reads a row of [`META`].
///
/// # Errors
/// [`Corrupt`] if its checksum does not match.
pub(crate) fn read_meta(db: &DB, key: &[u8]) -> Result<Option<Vec<u8>>, Corrupt> {
    let family = db.cf_handle(META).ok_or_else(|| Corrupt::new(db.path(), "column family is missing"))?;
    let Some(sealed) = db.get_cf(family, key).map_err(|error| Corrupt::new(db.path(), error))? else {
        return Ok(None);
    };
    let payload = record::open(key, &sealed).map_err(|error| Corrupt::new(db.path(), error))?;
    Ok(Some(payload.to_vec()))
}

/// Writes a row of [`META`] durably. Only for rows that the log writer does not write.
pub(crate) fn write_meta(db: &DB, key: &[u8], value: &[u8]) -> io::Result<()> {
    let family = db.cf_handle(META).ok_or_else(|| io::Error::other("column family is missing"))?;
    let mut options = WriteOptions::default();
    options.set_sync(true);
    db.put_cf_opt(family, key, record::seal(key, value), &options).map_err(io::Error::other)
}

/// Verifies the whole log and creates its store.
///
/// # Errors
/// [`Corrupt`] if a record is corrupt or missing.
pub(crate) fn open(db: Arc<DB>, bytes_max: u64, open: DatabaseGuard) -> Result<Opened, Corrupt> {
    let corrupt = |what: &dyn std::fmt::Display| Corrupt::new(db.path(), what);
    let decode_log_id = |row: Option<Vec<u8>>| {
        row.map(|bytes| codec::decode_log_id(&bytes).map_err(|error| corrupt(&error))).transpose()
    };
    let purged = decode_log_id(read_meta(&db, PURGED)?)?;
    let committed = decode_log_id(read_meta(&db, COMMITTED)?)?;
    let vote = read_meta(&db, VOTE)?
        .map(|bytes| codec::decode_vote(&bytes).map_err(|error| corrupt(&error)))
        .transpose()?;
    let (last, size) = verify(&db, purged, bytes_max)?;
    // A node votes in a term before it appends entries of that term.
    let term = |leader: Option<u64>| leader.unwrap_or(0);
    if term(last.map(|last| last.leader_id.term())) > term(vote.map(|vote| vote.leader_id.term())) {
        return Err(corrupt(&"the vote is older than the last log entry: a vote was lost"));
    }
    // Written without a sync, so it may be newer than the log after a power failure.
    let committed = committed.filter(|committed| Some(committed) <= last.as_ref());

    let (durable_sender, durable) = watch::channel(last.as_ref().map_or(0, |last| last.index + 1));
    let (jobs, queue) = mpsc::channel(limits::LOG_JOBS_QUEUED_MAX);
    let (entries, bytes) = (BTreeMap::new(), 0);
    let recent = Recent { entries, bytes, last, purged, vote, committed, applied: None };
    let reader = LogReader { db: Arc::clone(&db), recent: Arc::new(Mutex::new(recent)), _open: open };
    let (watched, watchdog) = disk_watch::watch();
    let records = read_meta(&db, MEMORIES)?;
    let disk_records = Arc::new(DiskRecords::decode(records.as_deref()).map_err(|error| corrupt(&error))?);
    let stored_records = Arc::clone(&disk_records);
    let writer = Box::new(move || writer::run(&db, queue, &durable_sender, (&watched, &stored_records)));
    let (surplus_sender, surplus) = watch::channel(None);
    let queue = jobs.downgrade();
    let store = LogStore { reader, jobs, durable: durable.clone(), size, surplus: surplus_sender };
    Ok(Opened { store, writer, watchdog, durable, last, vote, disk_records, jobs: queue, purged, surplus })
}

/// Verifies that entries are contiguous from the purged one on. Returns the last log id and the sizes.
fn verify(db: &DB, purged: Option<LogId>, bytes_max: u64) -> Result<(Option<LogId>, LogSize), Corrupt> {
    let family = db.cf_handle(LOG).ok_or_else(|| Corrupt::new(db.path(), "column family is missing"))?;
    let (mut last, mut size) = (purged, LogSize::new(bytes_max));
    for item in db.iterator_cf(family, IteratorMode::Start) {
        let (key, sealed) = item.map_err(|error| Corrupt::new(db.path(), error))?;
        let entry = decode(&key, &sealed).map_err(|error| Corrupt::new(db.path(), error))?;
        let log_id = entry.log_id();
        let expected = last.as_ref().map_or(0, |last| last.index.saturating_add(1));
        if log_id.index != expected || key[..] != log_key(log_id.index) || Some(log_id) <= last {
            let what = format!("log entry {} found where entry {expected} should be", log_id.index);
            return Err(Corrupt::new(db.path(), what));
        }
        last = Some(log_id);
        size.append(log_id.index, sealed.len());
    }
    Ok((last, size))
}

fn decode(key: &[u8], sealed: &[u8]) -> io::Result<Entry> {
    let payload = record::open(key, sealed).map_err(io::Error::other)?;
    codec::decode_entry(payload).map_err(io::Error::other)
}

impl Recent {
    /// The last entry that is known to be committed.
    fn never_truncated(&self) -> Option<LogId> {
        self.committed.max(self.applied)
    }

    fn remember(&mut self, entry: Entry, bytes: usize) {
        self.last = Some(entry.log_id());
        self.bytes += bytes;
        self.entries.insert(entry.log_id().index, (entry, bytes));
    }

    /// Evicts the oldest entries beyond the limits; never one that is not durable yet.
    fn shrink(&mut self, durable: u64) {
        while self.entries.len() > limits::LOG_ENTRIES_CACHED_MAX || self.bytes > limits::LOG_BYTES_CACHED_MAX
        {
            match self.entries.first_entry() {
                Some(oldest) if *oldest.key() < durable => self.bytes -= oldest.remove().1,
                _ => break,
            }
        }
    }

    fn keep(&mut self, wanted: impl Fn(u64) -> bool) {
        let dropped: usize = {
            let mut dropped = 0;
            self.entries.retain(|index, (_, bytes)| {
                let kept = wanted(*index);
                dropped += if kept { 0 } else { *bytes };
                kept
            });
            dropped
        };
        self.bytes -= dropped;
    }
}

impl LogReader {
    /// Memory first: an entry is durable before it is evicted, so the rest is on the disk. In the other order, an entry
    /// could be evicted between the two reads.
    fn read(&self, first: u64, end: u64) -> io::Result<Vec<Entry>> {
        let (newest, end) = self.read_memory(first, end, usize::MAX);
        let end = newest.first().map_or(end, |entry| entry.log_id().index);
        let mut entries = if first < end { self.read_disk(first, end, usize::MAX)? } else { Vec::new() };
        entries.extend(newest);
        Ok(entries)
    }

    /// Reads entries from the disk, at most `bytes_max` bytes but at least one entry.
    pub(crate) fn read_disk(&self, first: u64, end: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let family = self.db.cf_handle(LOG).ok_or_else(|| io::Error::other("column family is missing"))?;
        let start = log_key(first);
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for item in self.db.iterator_cf(family, IteratorMode::From(&start, Direction::Forward)) {
            let (key, sealed) = item.map_err(io::Error::other)?;
            if key[..] >= log_key(end)[..] || bytes >= bytes_max {
                break;
            }
            bytes += sealed.len();
            entries.push(decode(&key, &sealed)?);
        }
        Ok(entries)
    }

    /// The first entries of `first..end` that fit one message to another node, at least one.
    fn read_some(&self, first: u64, end: u64) -> io::Result<Vec<Entry>> {
        let (newest, end) = self.read_memory(first, end, limits::APPEND_BYTES_FULL);
        let oldest = newest.first().map_or(end, |entry| entry.log_id().index);
        if first < oldest { self.read_disk(first, oldest, limits::APPEND_BYTES_FULL) } else { Ok(newest) }
    }

    /// The entries of `first..end` that are in memory, up to a size, and the end of the range, which is at most the end
    /// of the log.
    fn read_memory(&self, first: u64, end: u64, bytes_max: usize) -> (Vec<Entry>, u64) {
        let recent = self.recent.lock();
        // Truncated entries may still be on the disk.
        let end = end.min(recent.last.as_ref().map_or(0, |last| last.index + 1));
        let (mut entries, mut total) = (Vec::new(), 0);
        for (entry, bytes) in recent.entries.range(first..end.max(first)).map(|(_, known)| known) {
            if total >= bytes_max {
                break;
            }
            total += bytes;
            entries.push(entry.clone());
        }
        (entries, end)
    }
}

impl RaftLogReader<TypeConfig> for LogReader {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let first = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(index) => index.saturating_add(1),
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        self.read(first, end)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.recent.lock().vote)
    }

    async fn limited_get_log_entries(&mut self, first: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.read_some(first, end)
    }
}

impl LogStore {
    pub(crate) fn reader(&self) -> LogReader {
        self.reader.clone()
    }

    /// Aligns the log with the opened state. Applied entries are committed, although the row of the committed log id,
    /// which is not synced, may be lost in a power failure. If a crash came between the installation of a snapshot and
    /// the replacement of the log, the log is replaced here.
    pub(crate) async fn follow_on(
        &mut self,
        applied: Option<LogId>,
        installed: Option<LogId>,
    ) -> io::Result<()> {
        self.reader.recent.lock().applied = applied;
        let Some(installed) = installed else { return Ok(()) };
        let (done, written) = oneshot::channel();
        self.size.truncate(0);
        self.reader.recent.lock().last = None;
        self.done(Job::Truncate { first: 0, done }, written).await?;
        self.purge(installed).await
    }

    /// Whether the log contains this entry or has purged it.
    pub(crate) fn holds(&self, wanted: Option<LogId>) -> io::Result<bool> {
        let Some(wanted) = wanted else { return Ok(true) };
        if Some(wanted) <= self.reader.recent.lock().purged {
            return Ok(true);
        }
        let found = self.reader.read(wanted.index, wanted.index.saturating_add(1))?;
        Ok(found.first().is_some_and(|entry| entry.log_id() == wanted))
    }

    async fn send(&self, job: Job) -> io::Result<()> {
        self.jobs.send(job).await.map_err(|_| io::Error::other("the log writer stopped"))
    }

    async fn done(&self, job: Job, done: oneshot::Receiver<io::Result<()>>) -> io::Result<()> {
        self.send(job).await?;
        done.await.map_err(|_| io::Error::other("the log writer stopped"))?
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        self.reader.try_get_log_entries(range).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.reader.read_vote().await
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let recent = self.reader.recent.lock();
        Ok(LogState { last_purged_log_id: recent.purged, last_log_id: recent.last })
    }

    async fn get_log_reader(&mut self) -> LogReader {
        self.reader.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let (done, written) = oneshot::channel();
        self.done(Job::SaveVote { vote: codec::encode_vote(vote), done }, written).await?;
        self.reader.recent.lock().vote = Some(*vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let Some(committed) = committed else { return Ok(()) };
        self.reader.recent.lock().committed = Some(committed);
        self.send(Job::SaveCommitted { committed: codec::encode_log_id(&committed) }).await
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.reader.recent.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut encoded = Vec::new();
        {
            let mut recent = self.reader.recent.lock();
            for entry in entries {
                let bytes = codec::encode_entry(&entry);
                let index = entry.log_id().index;
                recent.remember(entry, bytes.len());
                self.size.append(index, bytes.len());
                encoded.push((index, bytes));
            }
            recent.shrink(*self.durable.borrow());
        }
        let surplus = self.size.surplus();
        self.surplus.send_if_modified(|known| std::mem::replace(known, surplus) != surplus);
        self.send(Job::Append { entries: encoded, flushed }).await
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let first = last.as_ref().map_or(0, |last| last.index + 1);
        {
            let mut recent = self.reader.recent.lock();
            if let Some(kept) = recent.never_truncated().filter(|kept| first <= kept.index) {
                let what =
                    format!("refused to truncate committed entry {kept}, which the leader's log lacks");
                return Err(io::Error::other(what));
            }
            recent.keep(|index| index < first);
            // A truncation beyond the end of the log removes nothing.
            recent.last = recent.last.min(last).max(recent.purged);
        }
        self.size.truncate(first);
        let (done, written) = oneshot::channel();
        self.done(Job::Truncate { first, done }, written).await
    }

    async fn purge(&mut self, last: LogId) -> io::Result<()> {
        {
            let mut recent = self.reader.recent.lock();
            recent.keep(|index| index > last.index);
            recent.purged = Some(last);
            // A tail of a later term below the snapshot that replaces it is gone too.
            if recent.last.is_none_or(|end| end.index <= last.index) {
                recent.last = Some(last);
            }
        }
        self.size.purge(last.index);
        let (done, written) = oneshot::channel();
        let job = Job::Purge { last: last.index, purged: codec::encode_log_id(&last), done };
        self.done(job, written).await
    }
}

#[cfg(test)]
mod tests;
