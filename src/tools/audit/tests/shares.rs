//! The attacks of one caller on the audit of the others: a flood of denials, and of allowed calls.

use std::collections::BTreeSet;

use super::*;

fn by(caller: &str, notes: &str) -> Draft {
    let subject = "wimse://a.example/agent".into();
    Draft { caller: Some(caller.into()), subject, ..draft("a", notes) }
}

/// Two callers of different buckets.
const FLOOD: &str = "spiffe://a.example/flood";
const VICTIM: &str = "spiffe://a.example/victim";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_denials_is_two_entries_a_minute() {
    let harness = start().await;
    harness.audit.record(by(VICTIM, "deny the victim")).await.expect("recorded");
    harness.audit.ship().await.expect("shipped");
    for minute in 0..3 {
        for at in 0..500 {
            let timestamp = harness.node.clock.now();
            let denied = Draft { timestamp, ..by(FLOOD, &format!("deny {minute} {at}")) };
            harness.audit.record(denied).await.expect("recorded");
        }
        harness.node.clock.advance(limits::AUDIT_DENIALS_JOINED);
        harness.audit.ship().await.expect("shipped");
    }
    let trail = harness.trail("a").await;
    let expected =
        ["deny 2 499", "deny 2 0", "deny 1 499", "deny 1 0", "deny 0 499", "deny 0 0", "deny the victim"];
    assert_eq!(notes(&trail), expected);
    let counts: Vec<_> = trail.iter().map(|entry| entry.count).collect();
    assert_eq!(counts, [Some(499), None, Some(499), None, Some(499), None, None]);
    harness.verified().await;
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joined_denials_are_written_before_a_shutdown() {
    let mut harness = start().await;
    for at in 0..3 {
        harness.audit.record(by(FLOOD, &format!("deny {at}"))).await.expect("recorded");
    }
    harness.audit.clone().end().await;
    harness = harness.kill().await;
    let trail = harness.trail("a").await;
    assert_eq!((notes(&trail), trail[0].count), (vec!["deny 2", "deny 0"], Some(2)));
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_node_loses_the_count_of_denials_only() {
    let mut harness = start().await;
    for at in 0..3 {
        harness.audit.record(by(FLOOD, &format!("deny {at}"))).await.expect("recorded");
    }
    harness.audit.record(by(FLOOD, "allowed")).await.expect("recorded");
    harness = harness.kill().await;
    assert_eq!(notes(&harness.trail("a").await), ["allowed", "deny 0"]);
    harness.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allowed_calls_are_entries_each_in_blocks_of_their_caller() {
    let harness = start().await;
    for at in 0..20 {
        harness.audit.record(by(FLOOD, &at.to_string())).await.expect("recorded");
        if at % 5 == 0 {
            harness.audit.record(by(VICTIM, &format!("victim {at}"))).await.expect("recorded");
            harness.audit.ship().await.expect("shipped");
        }
    }
    assert_eq!(harness.trail("a").await.len(), 24);
    let (blocks, _) = harness.audit.blocks(&harness.current().await, 0, 100).await.expect("blocks");
    assert_eq!(blocks.len(), 9, "four of the victim");
    for block in &blocks {
        let entries = block.block.entries.as_ref().expect("entries");
        let callers: BTreeSet<_> = entries.iter().map(|entry| entry.caller.clone()).collect();
        assert_eq!(callers.len(), 1, "{block:?}");
        assert!(entries.iter().all(|entry| entry.bucket() == block.block.bucket));
    }
    let summary = harness.verified().await;
    assert_eq!((summary.entries, summary.blocks, summary.nodes[&1].gap.clone()), (24, 9, None));
    harness.end().await;
}

/// `apply` drops contents only at 1 GiB: here the content is left out of what it would have kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn export_has_the_header_of_a_block_without_content() {
    let harness = start().await;
    for at in 0..4 {
        let caller = if at % 2 == 0 { FLOOD } else { VICTIM };
        harness.audit.record(by(caller, &at.to_string())).await.expect("recorded");
        harness.audit.ship().await.expect("shipped");
    }
    let (whole, _) = harness.audit.blocks(&harness.current().await, 0, 10).await.expect("blocks");
    let mut verifier = ChainVerifier::default();
    let mut kept = Vec::new();
    for (at, block) in whole.into_iter().enumerate() {
        let mut row = harness.node.state.audit_block_after(block.number - 1).expect("row").expect("a block");
        let document = if at == 0 {
            row.payload = None;
            trail::decoded(&row, "").expect("a header").block
        } else {
            block.block
        };
        verifier.line(&serde_json::to_vec(&document).expect("JSON")).expect("holds");
        kept.push(document.entries.is_some());
    }
    assert_eq!(kept, [false, true, true, true]);
    let summary = verifier.finish();
    let gap = summary.nodes[&1].gap.clone().expect("a gap");
    assert_eq!((summary.entries, gap.blocks, gap.entries), (3, 1, 1));
    harness.end().await;
}
