//! Restarts of a node whose log was purged after a snapshot, and of damaged data directories.

use std::path::Path;

use crate::clock::Clock;
use crate::cluster::apply::database::Generations;
use crate::cluster::*;

pub(crate) const COMMAND_BYTES: usize = 100;
/// A command that the state machine does not know.
pub(crate) const UNKNOWN: &[u8] = b"unknown";

/// Stores each batch under the index of its entry.
pub(crate) struct Rows;

impl Machine for Rows {
    const TABLES: &'static [&'static str] = &["row"];

    fn can_decode(command: &[u8]) -> bool {
        command != UNKNOWN
    }

    fn batch(_stamp: Stamp, submissions: Vec<Submission>) -> Bytes {
        let commands: Vec<_> = submissions.into_iter().map(|submission| submission.command).collect();
        commands.concat().into()
    }

    fn apply(&self, _view: &dyn View, batch: &[u8], index: u64) -> Result<Applied, Corrupt> {
        let key = index.to_be_bytes().to_vec();
        let writes = vec![Write::Put { table: "row", key, value: batch.to_vec() }];
        let replies = vec![Bytes::new(); batch.len() / COMMAND_BYTES];
        Ok(Applied { replies, writes, expected_hash: None })
    }

    fn project(&self, _writes: &[Write], _index: u64) -> Result<(), Corrupt> {
        Ok(())
    }

    fn rebuild(&self, _view: &dyn View) -> Result<(), Corrupt> {
        Ok(())
    }
}

pub(crate) struct Running {
    pub(crate) handle: Handle<Rows>,
    tasks: tokio::task::JoinSet<()>,
    writer: Option<std::thread::JoinHandle<()>>,
    closed: Closed,
}

#[expect(clippy::disallowed_methods, reason = "as in the product, the log writer needs a thread")]
async fn start_with(data: &Path, log_bytes_max: u64) -> Result<Running, Corrupt> {
    let options = Options {
        data: data.to_owned(),
        node_id: 1,
        drawn_disk_id: [7; 16],
        drawn_cluster_id: [9; 16],
        drawn_proposer_id: ProposerId::from_bytes([8; 16]),
        heartbeat: Duration::from_millis(20),
        clock: Clock::system(),
        freshness: FreshnessMode::default(),
        log_bytes_max,
        settings_digest: None,
        transport: None,
    };
    let mut writer = None;
    let started = start(options, Rows, |work| {
        writer = Some(std::thread::spawn(work));
        Ok(())
    })
    .await?;
    let mut tasks = tokio::task::JoinSet::new();
    for work in started.work {
        tasks.spawn(work);
    }
    started.handle.until_recovered(Duration::from_secs(20)).await.expect("recovers");
    Ok(Running { handle: started.handle, tasks, writer, closed: started.closed })
}

pub(crate) async fn start_in(data: &Path) -> Result<Running, Corrupt> {
    start_with(data, crate::limits::LOG_BYTES_MAX_DEFAULT).await
}

impl Running {
    pub(crate) async fn write(&self, rows: u8) {
        for row in 0..rows {
            let outcome = self.handle.propose(Bytes::from(vec![row; COMMAND_BYTES])).await;
            outcome.expect("applied");
        }
    }

    /// Takes a snapshot and purges the entries that it covers.
    pub(crate) async fn purge_log(&self) {
        let applied = self.handle.applied();
        self.handle.snapshot().await.expect("snapshot");
        let wait = || self.handle.raft.wait(Some(Duration::from_secs(20)));
        let taken = |index: Option<u64>| index >= Some(applied);
        wait().metrics(|m| taken(m.snapshot.map(|id| id.index)), "snapshot").await.expect("taken");
        self.handle.raft.trigger().purge_log(applied).await.expect("purge");
        wait().metrics(|m| taken(m.purged.map(|id| id.index)), "purge").await.expect("purged");
    }

    pub(crate) async fn stop(mut self) {
        self.tasks.shutdown().await;
        self.handle.shutdown().await.expect("stops");
        drop(self.handle);
        self.closed.wait().await;
        self.writer.expect("writer").join().expect("writer");
    }
}

/// Creates a snapshot and a log that begins after it. Returns the state hash after one more start.
async fn write_history(data: &Path) -> (u64, StateHash) {
    let node = start_in(data).await.expect("starts");
    node.write(30).await;
    node.purge_log().await;
    node.write(30).await;
    node.stop().await;
    let node = start_in(data).await.expect("starts again");
    node.write(1).await;
    let hash = node.handle.state_hash().expect("hash");
    node.stop().await;
    hash
}

/// Regression: it created a second cluster with the id of the one that it had joined.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joined_node_without_a_listener_creates_no_cluster() {
    let directory = tempfile::tempdir().expect("directory");
    let database = log::open_database(&directory.path().join("raft")).expect("log");
    log::write_meta(&database, log::JOINED, b"1").expect("mark");
    log::write_meta(&database, log::CLUSTER_ID, &[5; 16]).expect("cluster id");
    drop(database);
    let refused = start_in(directory.path()).await.err().expect("refused").to_string();
    assert!(refused.contains("this node joined a cluster: cluster.listen must be set"), "{refused}");
    assert!(refused.contains("the data is intact"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_state_is_rebuilt_from_snapshot_and_log() {
    let data = tempfile::tempdir().expect("directory");
    let (index, hash) = write_history(data.path()).await;
    std::fs::remove_dir_all(data.path().join("state")).expect("lose the state");
    let node = start_in(data.path()).await.expect("starts");
    node.handle.until_applied(index).await;
    let view = node.handle.view();
    let mut rows = 0;
    view.scan("row", &[], &mut |_, _| {
        rows += 1;
        true
    })
    .expect("rows");
    assert_eq!(rows, 61);
    // The start added a blank entry: the first of a leader's term.
    assert!(node.handle.state_hash().expect("hash").0 > index);
    let applied_hash = node.handle.state_hash().expect("hash");
    node.stop().await;
    // The same start on an intact state gives the same hash.
    let whole = tempfile::tempdir().expect("directory");
    let (same_index, same_hash) = write_history(whole.path()).await;
    assert_eq!((same_index, same_hash), (index, hash));
    let node = start_in(whole.path()).await.expect("starts");
    assert_eq!(node.handle.state_hash().expect("hash"), applied_hash);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_lost_together_with_its_snapshot_is_refused() {
    let data = tempfile::tempdir().expect("directory");
    write_history(data.path()).await;
    for directory in ["state", "snapshots"] {
        std::fs::remove_dir_all(data.path().join(directory)).expect("lose");
    }
    let refusal = start_in(data.path()).await.err().expect("refused").to_string();
    assert!(refusal.contains("older than the first entry of the log"), "{refusal}");
}

/// Regression: a node whose replica had failed waited for its last proposals before it exited.
#[tokio::test]
async fn proposal_ends_with_the_replica() {
    let data = tempfile::tempdir().expect("directory");
    let node = start_in(data.path()).await.expect("starts");
    node.write(1).await;
    node.handle.raft.shutdown().await.expect("stops");
    // Timers run at once from now on.
    tokio::time::pause();
    let proposed = node.handle.propose(Bytes::from(vec![1; COMMAND_BYTES]));
    let outcome = tokio::time::timeout(crate::limits::PROPOSE_TIMEOUT / 2, proposed).await;
    assert!(outcome.expect("it does not wait for its timeout").is_err());
    tokio::time::resume();
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_snapshot_is_taken_again() {
    let data = tempfile::tempdir().expect("directory");
    write_history(data.path()).await;
    std::fs::remove_dir_all(data.path().join("snapshots")).expect("lose the snapshot");
    start_in(data.path()).await.expect("starts").stop().await;
    let snapshots = std::fs::read_dir(data.path().join("snapshots")).expect("directory");
    let names: Vec<_> = snapshots.map(|item| item.expect("item").file_name().into_string()).collect();
    assert!(matches!(&names[..], [Ok(name)] if name.starts_with("complete-")), "{names:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_under_load_lose_nothing() {
    let data = tempfile::tempdir().expect("directory");
    let node = start_in(data.path()).await.expect("starts");
    for _ in 0..10 {
        let writes = futures::future::join_all((0..8).map(|_| node.write(10)));
        futures::join!(writes, node.purge_log());
    }
    let hash = node.handle.state_hash().expect("hash");
    node.stop().await;
    let node = start_in(data.path()).await.expect("starts");
    assert!(node.handle.state_hash().expect("hash").0 > hash.0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_of_large_entries_is_purged_and_restarts() {
    const LOG_BYTES_MAX: u64 = 1024 * 1024;
    const ENTRY_BYTES: usize = 1000 * COMMAND_BYTES;
    let data = tempfile::tempdir().expect("directory");
    let node = start_with(data.path(), LOG_BYTES_MAX).await.expect("starts");
    for row in 0..30 {
        node.handle.propose(Bytes::from(vec![row; ENTRY_BYTES])).await.expect("applied");
    }
    // Three times the limit was written, in far fewer entries than openraft retains. A purge that began before the
    // last entry leaves more than the limit: the next one follows it.
    let last = node.handle.applied();
    let kept = LOG_BYTES_MAX / ENTRY_BYTES as u64;
    let is_cut = |purged: Option<u64>| purged.is_some_and(|purged| purged + kept >= last);
    let wait = node.handle.raft.wait(Some(Duration::from_secs(20)));
    wait.metrics(|now| is_cut(now.purged.map(|id| id.index)), "cut").await.expect("cut");
    let hash = node.handle.state_hash().expect("hash");
    node.stop().await;
    in_the_log(data.path(), |log| {
        let entries = log.cf_handle(log::LOG).expect("entries");
        let bytes: usize = log
            .iterator_cf(entries, rocksdb::IteratorMode::Start)
            .map(|item| item.expect("entry").1.len())
            .sum();
        assert!(bytes as u64 <= LOG_BYTES_MAX + ENTRY_BYTES as u64, "{bytes}");
    });
    let node = start_with(data.path(), LOG_BYTES_MAX).await.expect("starts");
    assert!(node.handle.state_hash().expect("hash").0 > hash.0);
    node.handle.propose(Bytes::from(vec![1; COMMAND_BYTES])).await.expect("applied");
    node.stop().await;
}

/// Changes the log of a stopped node.
pub(crate) fn in_the_log(data: &Path, change: impl FnOnce(&rocksdb::DB)) {
    let log = log::open_database(&data.join("raft")).expect("log");
    change(&log);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_without_its_vote_is_refused() {
    let data = tempfile::tempdir().expect("directory");
    start_in(data.path()).await.expect("starts").stop().await;
    in_the_log(data.path(), |log| {
        log.delete_cf(log.cf_handle(log::META).expect("rows"), log::VOTE).expect("delete");
    });
    let refusal = start_in(data.path()).await.err().expect("refused").to_string();
    assert!(refusal.contains("the vote is older"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_without_its_first_or_a_middle_entry_is_refused() {
    for gone in [0, 2] {
        let data = tempfile::tempdir().expect("directory");
        let node = start_in(data.path()).await.expect("starts");
        node.write(5).await;
        node.stop().await;
        in_the_log(data.path(), |log| {
            log.delete_cf(log.cf_handle(log::LOG).expect("entries"), log::log_key(gone)).expect("delete");
        });
        let refusal = start_in(data.path()).await.err().expect("refused").to_string();
        assert!(refusal.contains(&format!("where entry {gone} should be")), "{refusal}");
    }
}

#[test]
fn generations_without_current_are_refused_and_retained() {
    let data = tempfile::tempdir().expect("directory");
    let state = data.path().join("state");
    std::fs::create_dir_all(state.join("2")).expect("directory");
    let generations = Generations::new(state.clone()).expect("generations");
    let refusal = generations.open(Rows::TABLES, &[]).err().expect("refused").to_string();
    assert!(refusal.contains("CURRENT is missing"), "{refusal}");
    assert!(state.join("2").exists(), "a generation was removed");
}
