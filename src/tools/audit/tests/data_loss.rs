//! Unreadable journal records: only they are lost, and an entry reports it.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corrupt_record_is_lost_alone_and_reported() {
    let harness = start().await;
    for at in 0..3 {
        harness.record("a", &at.to_string()).await;
    }
    let segment = journal_of(&harness.node.directory).join("1");
    let mut bytes = std::fs::read(&segment).expect("segment");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&segment, bytes).expect("segment");
    let harness = harness.kill().await;
    assert_eq!(notes(&harness.trail("a").await), ["2", "0"]);
    // The report is an entry about the audit itself and comes with the next shipment.
    let about_itself = harness.trail("").await;
    assert_eq!(about_itself.len(), 1);
    assert!(about_itself[0].notes.contains("cannot be read"), "{about_itself:?}");
    assert_eq!((about_itself[0].decision.as_str(), &about_itself[0].action), ("error", &None));
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_segment_does_not_hold_up_others() {
    let harness = start().await;
    for at in 0..3 {
        harness.record("a", &at.to_string()).await;
        let (done, sealed) = oneshot::channel();
        harness.audit.queue.send(Job::Seal(done)).await.expect("asked");
        sealed.await.expect("answered").expect("sealed");
    }
    // One segment is a directory, one is missing.
    let segment = |name: &str| journal_of(&harness.node.directory).join(name);
    for name in ["1", "2"] {
        std::fs::rename(segment(name), segment(&format!("hidden-{name}"))).expect("rename");
    }
    std::fs::create_dir(segment("1")).expect("directory");
    for _ in 1..limits::AUDIT_READ_ATTEMPTS_MAX {
        assert!(matches!(harness.audit.ship().await, Err(ShipError::Journal(_))));
    }
    let mut failures = 0;
    while harness.audit.ship().await.is_err() {
        failures += 1;
    }
    assert_eq!(failures, limits::AUDIT_READ_ATTEMPTS_MAX - 1, "each has its attempts");
    assert_eq!(notes(&harness.trail("a").await), ["2"]);
    let about_itself = harness.trail("").await;
    assert_eq!(about_itself.len(), 2, "{about_itself:?}");
    assert!(about_itself.iter().all(|entry| entry.notes.contains("cannot be read")), "{about_itself:?}");
    assert!(segment("unreadable-1").is_dir(), "set aside for inspection");
    assert!(harness.audit.backlog.is_empty());
    // They have no blocks, and the chain of blocks goes on.
    let (blocks, _) = harness.audit.blocks(&harness.current().await, 0, 10).await.expect("blocks");
    let sequences: Vec<_> = blocks.iter().map(|block| block.block.sequence).collect();
    assert_eq!((sequences[0], blocks[0].block.prev_hash.as_str(), blocks[0].block.count), (1, "", 1));
    for pair in blocks.windows(2) {
        assert_eq!(pair[1].block.prev_hash, pair[0].block.hash);
    }
    harness.end().await;
}

/// Regression: the node did not start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_starts_with_an_unreadable_segment() {
    let harness = start().await;
    harness.record("a", "lost").await;
    let segment = journal_of(&harness.node.directory).join("1");
    std::fs::remove_file(&segment).expect("removed");
    std::fs::create_dir(&segment).expect("directory");
    let harness = harness.kill().await;
    while harness.audit.ship().await.is_err() {}
    harness.record("a", "next").await;
    assert_eq!(notes(&harness.trail("a").await), ["next"]);
    let about_itself = harness.trail("").await;
    assert!(about_itself.iter().all(|entry| entry.notes.contains("cannot be read")), "{about_itself:?}");
    assert_eq!(about_itself.len(), 1);
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loss_is_recorded_before_the_segment_is_removed() {
    let harness = start().await;
    harness.record("a", "x").await;
    let (done, sealed) = oneshot::channel();
    harness.audit.queue.send(Job::Seal(done)).await.expect("asked");
    sealed.await.expect("answered").expect("sealed");
    let segment = journal_of(&harness.node.directory).join("1");
    let mut bytes = std::fs::read(&segment).expect("segment");
    bytes.splice(..0, [1; 20]);
    std::fs::write(&segment, bytes).expect("segment");
    harness.audit.ship().await.expect("shipped");
    assert!(!segment.exists());
    // Nothing is shipped between this and the kill.
    let harness = harness.kill().await;
    assert!(harness.trail("").await[0].notes.contains("20 bytes"));
    assert_eq!(harness.trail("").await.len(), 1);
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_segment_is_reported_and_later_ones_are_shipped() {
    let harness = start().await;
    for at in 0..3 {
        harness.record("a", &at.to_string()).await;
        let (done, sealed) = oneshot::channel();
        harness.audit.queue.send(Job::Seal(done)).await.expect("asked");
        sealed.await.expect("answered").expect("sealed");
    }
    std::fs::remove_file(journal_of(&harness.node.directory).join("2")).expect("remove");
    let harness = harness.kill().await;
    harness.record("a", "3").await;
    assert_eq!(notes(&harness.trail("a").await), ["3", "2", "0"]);
    assert!(harness.trail("").await[0].notes.contains("before segment 3: 1"));
    harness.end().await;
}
