//! The order of apply: rows, then memory, then the applied index, on which readers and leases depend.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use futures::FutureExt as _;
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::cluster::start::Started;
use crate::cluster::*;

/// An entry that is held in `project`, and the sender that releases it.
struct Step {
    index: u64,
    go_on: SyncSender<()>,
}

/// Keeps the indexes of its entries in memory, and blocks before and after it adds one.
struct Stopping {
    memory: Mutex<BTreeSet<u64>>,
    steps: SyncSender<Step>,
}

impl Stopping {
    fn knows(&self, index: u64) -> bool {
        self.memory.lock().contains(&index)
    }

    fn stop(&self, index: u64) {
        let (go_on, released) = sync_channel(0);
        self.steps.send(Step { index, go_on }).expect("the test receives steps");
        released.recv().expect("the test goes on");
    }
}

impl Machine for Stopping {
    const TABLES: &'static [&'static str] = &["row"];

    fn can_decode(_command: &[u8]) -> bool {
        true
    }

    fn batch(_stamp: Stamp, submissions: Vec<Submission>) -> Bytes {
        let commands: Vec<_> = submissions.into_iter().map(|submission| submission.command).collect();
        commands.concat().into()
    }

    fn apply(&self, _view: &dyn View, batch: &[u8], index: u64) -> Result<Applied, Corrupt> {
        let key = index.to_be_bytes().to_vec();
        let writes = vec![Write::Put { table: "row", key, value: batch.to_vec() }];
        Ok(Applied { replies: vec![Bytes::new()], writes, expected_hash: None })
    }

    fn project(&self, writes: &[Write], index: u64) -> Result<(), Corrupt> {
        if !writes.is_empty() {
            self.stop(index);
            self.memory.lock().insert(index);
            self.stop(index);
        }
        Ok(())
    }

    fn rebuild(&self, _view: &dyn View) -> Result<(), Corrupt> {
        Ok(())
    }
}

struct Running {
    handle: Handle<Stopping>,
    clock: Clock,
    steps: Receiver<Step>,
    tasks: tokio::task::JoinSet<()>,
    writer: std::thread::JoinHandle<()>,
    closed: Closed,
    _place: tempfile::TempDir,
}

#[expect(clippy::disallowed_methods, reason = "as in the product, the log writer needs a thread")]
async fn start_one() -> Running {
    let place = tempfile::tempdir().expect("directory");
    let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
    let options = Options {
        data: place.path().to_owned(),
        node_id: 1,
        drawn_disk_id: [7; 16],
        drawn_cluster_id: [9; 16],
        drawn_proposer_id: ProposerId::from_bytes([8; 16]),
        heartbeat: Duration::from_millis(20),
        clock: clock.clone(),
        freshness: FreshnessMode::default(),
        log_bytes_max: crate::limits::LOG_BYTES_MAX_DEFAULT,
        settings_digest: None,
        transport: None,
    };
    let (sender, steps) = sync_channel(0);
    let machine = Stopping { memory: Mutex::default(), steps: sender };
    let mut writer = None;
    let started = start(options, machine, |work| {
        writer = Some(std::thread::spawn(work));
        Ok(())
    });
    let Started { handle, work, closed, .. } = started.await.expect("starts");
    let mut tasks = tokio::task::JoinSet::new();
    for work in work {
        tasks.spawn(work);
    }
    handle.until_recovered(Duration::from_secs(20)).await.expect("recovers");
    let writer = writer.expect("writer");
    Running { handle, clock, steps, tasks, writer, closed, _place: place }
}

impl Running {
    async fn stop(mut self) {
        self.tasks.shutdown().await;
        // Raft may have stopped already.
        drop(self.handle.shutdown().await);
        drop(self.handle);
        self.closed.wait().await;
        self.writer.join().expect("writer");
    }
}

/// A revocation covers a token with a smaller `idx` (design §4). So the index that a token gets must never be ahead of
/// the revocations that its issuer could read.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn applied_index_is_never_ahead_of_memory() {
    let node = start_one().await;
    let before = node.handle.applied();
    let outcome = {
        let mut proposed = pin!(node.handle.propose(Bytes::from_static(b"revoked")));
        assert!(proposed.as_mut().now_or_never().is_none());
        for is_known in [false, true] {
            let Step { index, go_on } = node.steps.recv().expect("the entry is applied");
            assert!(index > before);
            // An issuer reads this index first and the revocations afterwards.
            assert_eq!(node.handle.machine().knows(index), is_known);
            assert_eq!(node.handle.applied(), before, "the index is ahead of the memory");
            let reached = node.handle.until_applied(index).now_or_never();
            assert!(reached.is_none(), "the wait for the index ended early");
            go_on.send(()).expect("goes on");
        }
        proposed.await.expect("applied")
    };
    assert!(node.handle.applied() >= outcome.index);
    assert!(node.handle.machine().knows(outcome.index));
    node.handle.barrier(outcome.index).await.expect("no other member");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stopped_node_holds_no_lease() {
    let node = start_one().await;
    node.handle.fresh().await.expect("a leader renews");
    node.clock.advance(crate::limits::FRESHNESS_LEASE);
    node.handle.fresh().await.expect("a second renewal");
    node.handle.shutdown().await.expect("stops");
    node.clock.advance(crate::limits::FRESHNESS_LEASE);
    assert_eq!(node.handle.fresh().await.err(), Some(LeaseError::NoLease));
    node.stop().await;
}
