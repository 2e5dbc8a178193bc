//! Tests of the log store: reads, truncation, replacement by a snapshot.

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::alias::CommittedLeaderIdOf;
use openraft::entry::RaftEntry;

use super::*;
use crate::cluster::type_config::{Commands, LeaderId};

const QUARTER: usize = limits::APPEND_BYTES_FULL / 4;

fn entry(index: u64, bytes: usize) -> Entry {
    let log_id = LogId::new(CommittedLeaderIdOf::<TypeConfig>::new(1, 1), index);
    Entry { log_id, payload: EntryPayload::Normal(Commands(Bytes::from(vec![7; bytes]))) }
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "as in the product, the log writer needs a thread")]
async fn entries_are_read_up_to_a_size_and_at_least_one() {
    let data = tempfile::tempdir().expect("directory");
    let (open, _closed) = mpsc::channel(1);
    let database = Arc::new(open_database(data.path()).expect("database"));
    let opened = super::open(database, limits::LOG_BYTES_MAX_DEFAULT, open).expect("log");
    let writer = std::thread::spawn(opened.writer);
    let mut store = opened.store;
    // One entry alone exceeds the size of a message, and more entries than the cache holds come before the last.
    let sizes = [QUARTER, QUARTER, QUARTER, 5 * QUARTER, QUARTER].into_iter().chain([QUARTER; 16]);
    let (mut durable, mut last) = (opened.durable.clone(), 0);
    for (index, bytes) in sizes.enumerate() {
        last = index as u64;
        store.append([entry(last, bytes)], IOFlushed::noop()).await.expect("appended");
        durable.wait_for(|end| *end > last).await.expect("durable");
    }
    assert!(store.reader.recent.lock().entries.len() < 20, "the first entries are on the disk only");
    let mut reader = store.get_log_reader().await;
    let mut first = 0;
    let mut messages = Vec::new();
    while first <= last {
        let entries = reader.limited_get_log_entries(first, last + 1).await.expect("read");
        let indexes: Vec<_> = entries.iter().map(|entry| entry.log_id().index).collect();
        let expected: Vec<_> = (first..first + entries.len() as u64).collect();
        assert_eq!(indexes, expected, "in order, and at least one");
        messages.push(entries.len());
        first += entries.len() as u64;
    }
    assert_eq!(messages[0], 4, "the entry that exceeds the size is the last");
    assert!(messages.iter().all(|entries| *entries <= 4), "{messages:?}");
    let all = reader.try_get_log_entries(0..=last).await.expect("read");
    assert_eq!(all.len() as u64, last + 1, "an unlimited read returns all");
    drop((store, reader));
    writer.join().expect("writer");
}

fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(CommittedLeaderIdOf::<TypeConfig>::new(term, 1), index)
}

/// A log in a directory, and its writer thread.
struct Written {
    opened: LogStore,
    purged: Option<LogId>,
    last: Option<LogId>,
    writer: std::thread::JoinHandle<()>,
}

impl Written {
    #[expect(clippy::disallowed_methods, reason = "as in the product, the log writer needs a thread")]
    fn open(data: &Path) -> Self {
        let (open, _closed) = mpsc::channel(1);
        let database = Arc::new(open_database(data).expect("database"));
        let opened = super::open(database, limits::LOG_BYTES_MAX_DEFAULT, open).expect("log");
        let writer = std::thread::spawn(opened.writer);
        Self { opened: opened.store, purged: opened.purged, last: opened.last, writer }
    }

    async fn append(&mut self, term: u64, indexes: std::ops::RangeInclusive<u64>) {
        let vote = Vote { leader_id: LeaderId::new(term, 1), committed: true };
        self.opened.save_vote(&vote).await.expect("saved");
        let end = *indexes.end();
        let entries = indexes.map(|index| Entry { log_id: log_id(term, index), ..entry(index, 10) });
        self.opened.append(entries, IOFlushed::noop()).await.expect("appended");
        self.opened.durable.wait_for(|durable| *durable > end).await.expect("durable");
    }

    async fn entries(&mut self) -> Vec<LogId> {
        let all = self.opened.try_get_log_entries(..).await.expect("readable");
        all.iter().map(RaftEntry::log_id).collect()
    }

    fn close(self) {
        drop(self.opened);
        self.writer.join().expect("writer");
    }
}

/// Otherwise, openraft would remove entries that this node has acknowledged and applied.
#[tokio::test]
async fn committed_or_applied_entries_are_never_truncated() {
    let data = tempfile::tempdir().expect("directory");
    let mut log = Written::open(data.path());
    log.append(1, 0..=9).await;
    log.opened.save_committed(Some(log_id(1, 5))).await.expect("saved");
    for kept in [None, Some(log_id(1, 0)), Some(log_id(1, 4))] {
        let refused = log.opened.truncate_after(kept).await.expect_err("committed").to_string();
        assert!(refused.contains(&format!("committed entry {}", log_id(1, 5))), "{refused}");
    }
    log.opened.follow_on(Some(log_id(1, 7)), None).await.expect("noted");
    log.opened.truncate_after(Some(log_id(1, 6))).await.expect_err("applied");
    assert_eq!(log.entries().await.len(), 10);
    log.opened.truncate_after(Some(log_id(1, 7))).await.expect("not committed");
    assert_eq!(log.entries().await.len(), 8);
    // A leader with a different entry there is detected before.
    let reader = log.opened.reader();
    let contradicted = |leader, id| reader.contradicted(LeaderId::new(leader, 1), [id].into_iter());
    assert_eq!(contradicted(2, log_id(1, 3)).expect("readable"), None);
    assert_eq!(contradicted(2, log_id(2, 3)).expect("readable"), Some(log_id(1, 3)));
    assert_eq!(contradicted(2, log_id(2, 7)).expect("readable"), Some(log_id(1, 7)));
    assert_eq!(contradicted(2, log_id(2, 8)).expect("readable"), None);
    assert_eq!(contradicted(0, log_id(0, 3)).expect("readable"), None, "the leader is deposed");
    // Regression: an entry of a later leader below the purge point was acknowledged.
    log.opened.purge(log_id(1, 4)).await.expect("purged");
    assert_eq!(contradicted(2, log_id(1, 3)).expect("readable"), None);
    assert_eq!(contradicted(2, log_id(2, 3)).expect("readable"), Some(log_id(1, 4)));
    drop(reader);
    log.close();
}

/// Regression: a crash during the installation of a snapshot in place of the entries left a node without
/// either.
#[tokio::test]
async fn truncated_entries_stay_on_disk_until_overwritten() {
    let data = tempfile::tempdir().expect("directory");
    let mut log = Written::open(data.path());
    log.append(1, 0..=9).await;
    log.opened.truncate_after(Some(log_id(1, 3))).await.expect("truncated");
    assert_eq!(log.entries().await.len(), 4);
    assert_eq!(*log.opened.durable.borrow(), 4);
    log.close();
    let mut log = Written::open(data.path());
    assert_eq!(log.entries().await.len(), 10, "a crash brings them back");
    log.opened.truncate_after(Some(log_id(1, 3))).await.expect("truncated");
    log.append(2, 4..=5).await;
    log.close();
    let mut log = Written::open(data.path());
    let expected: Vec<_> = (0..4).map(|index| log_id(1, index)).chain([log_id(2, 4), log_id(2, 5)]).collect();
    assert_eq!(log.entries().await, expected);
    log.close();
}

#[tokio::test]
async fn installed_state_replaces_a_contradicting_log() {
    let data = tempfile::tempdir().expect("directory");
    let mut log = Written::open(data.path());
    log.append(3, 0..=9).await;
    let installed = Some(log_id(2, 5));
    log.opened.follow_on(installed, installed).await.expect("replaced");
    log.close();
    let mut log = Written::open(data.path());
    assert_eq!((log.purged, log.last), (Some(log_id(2, 5)), Some(log_id(2, 5))));
    assert_eq!(log.entries().await, []);
    log.append(3, 6..=7).await;
    log.close();
    let log = Written::open(data.path());
    assert_eq!(log.last, Some(log_id(3, 7)));
    log.close();
}
