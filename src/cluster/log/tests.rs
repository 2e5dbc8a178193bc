//! What is read for another node.

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::alias::CommittedLeaderIdOf;

use super::*;
use crate::cluster::types::Commands;

const QUARTER: usize = limits::APPEND_BYTES_FULL / 4;

fn entry(index: u64, bytes: usize) -> Entry {
    let log_id = LogId::new(CommittedLeaderIdOf::<TypeConfig>::new(1, 1), index);
    Entry { log_id, payload: EntryPayload::Normal(Commands(Bytes::from(vec![7; bytes]))) }
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the writer needs its thread here as in the product")]
async fn entries_are_read_up_to_a_size_and_at_least_one() {
    let data = tempfile::tempdir().expect("directory");
    let (open, _closed) = mpsc::channel(1);
    let database = Arc::new(open_database(data.path()).expect("database"));
    let opened = super::open(database, limits::LOG_BYTES_MAX, open).expect("log");
    let writer = std::thread::spawn(opened.writer);
    let mut store = opened.store;
    // One alone is more than a message should have; and more than memory keeps come before the last.
    let sizes = [QUARTER, QUARTER, QUARTER, 5 * QUARTER, QUARTER].into_iter().chain([QUARTER; 16]);
    let (mut durable, mut last) = (opened.durable.clone(), 0);
    for (index, bytes) in sizes.enumerate() {
        last = index as u64;
        store.append([entry(last, bytes)], IOFlushed::noop()).await.expect("appended");
        durable.wait_for(|end| *end > last).await.expect("durable");
    }
    assert!(store.reader.recent().entries.len() < 20, "the first are on the disk only");
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
    assert_eq!(messages[0], 4, "the one that makes it full is the last");
    assert!(messages.iter().all(|entries| *entries <= 4), "{messages:?}");
    let all = reader.try_get_log_entries(0..=last).await.expect("read");
    assert_eq!(all.len() as u64, last + 1, "who asks for all gets all");
    drop((store, reader));
    writer.join().expect("writer");
}
