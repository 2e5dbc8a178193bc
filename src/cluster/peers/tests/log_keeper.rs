//! The log of a leader that is purged while a member lacks it.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt as _;
use futures::future::join_all;
use openraft::async_runtime::watch::WatchReceiver as _;
use tokio::sync::watch;

use super::disk_space::{ENOUGH, LOW};
use super::*;
use crate::cluster::log::purge::Surplus;

/// Half of it holds some ten entries.
const SMALL: u64 = 4 * 1024;
const WRITERS: usize = 4;

/// Regression: the leader purged the entries after a snapshot while it was transferred, so that the follower needed
/// one snapshot after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follower_catches_up_by_a_snapshot_under_load() {
    let site = Site { log_bytes_max: SMALL, ..Site::new(3) };
    let mut nodes = site.cluster().await;
    let away = follower(&nodes).handle.node_id();
    let at = nodes.iter().position(|node| node.handle.node_id() == away).expect("there");
    let gone = nodes.remove(at);
    let last = gone.handle.applied();
    gone.stop().await;
    // The log is not held for it until it is silent.
    for node in &nodes {
        node.pretend(LOW);
    }
    while nodes[0].handle.applied() < last + 100 {
        nodes[0].write("while it is away").await;
    }
    let leads = leader(&nodes);
    let wait = leads.handle.raft.wait(Some(LONG));
    wait.metrics(|now| now.purged.is_some_and(|id| id.index > last), "purge").await.expect("purged");
    for node in &nodes {
        node.pretend(ENOUGH);
    }

    let is_back = AtomicBool::new(false);
    let load = join_all((0..WRITERS).map(async |_| {
        while !is_back.load(Ordering::Relaxed) {
            leads.write("while it catches up").await;
        }
    }));
    let returns = async {
        let back = site.node(away).await;
        for _ in 0..3 {
            let now = leads.handle.applied();
            timeout(LONG, back.handle.until_applied(now)).await.expect("caught up");
        }
        is_back.store(true, Ordering::Relaxed);
        back
    };
    let (_, back) = futures::join!(load, returns);
    let state = fs::read_dir(site.data(away).join("state")).expect("state");
    let names = state.filter_map(|item| item.expect("item").file_name().into_string().ok());
    let generation = names.filter_map(|name| name.parse::<u64>().ok()).max().expect("a generation");
    // One snapshot may have been on its way before the follower answered.
    assert!((2..=3).contains(&generation), "{generation}");
    nodes.push(back);
    stop_all(nodes).await;
}

fn leads(node: &Node) -> bool {
    node.handle.raft.metrics().borrow_watched().replication.is_some()
}

/// Waits until the log of the leader is held for a member.
async fn until_held(node: &Node, upto: u64) {
    let (_sender, mut surplus) = watch::channel(Some(Surplus { upto, is_urgent: false }));
    let held = async {
        while node.handle.until_no_member_lacks(upto, &mut surplus).now_or_never().is_some() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, held).await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_log_is_purged_if_there_is_no_space_for_it() {
    let site = Site::new(3);
    let nodes = site.cluster().await;
    let old = leader(&nodes);
    old.pretend(ENOUGH);
    let (lacked, newest) = (1_000_000, 2_000_000);
    until_held(old, lacked).await;
    let (sender, mut surplus) = watch::channel(Some(Surplus { upto: lacked, is_urgent: false }));
    sender.send_replace(Some(Surplus { upto: newest, is_urgent: true }));
    let purged = old.handle.until_no_member_lacks(lacked, &mut surplus);
    assert_eq!(purged.now_or_never(), Some(newest), "it is too large");
    sender.send_replace(Some(Surplus { upto: newest, is_urgent: false }));
    old.pretend(LOW);
    let purged = old.handle.until_no_member_lacks(lacked, &mut surplus);
    assert_eq!(purged.now_or_never(), Some(newest), "the disk is short of space");
    old.pretend(ENOUGH);

    let (released, ()) = futures::join!(old.handle.until_no_member_lacks(lacked, &mut surplus), async {
        // One other voter answered a heartbeat; of a new cluster, perhaps not yet both.
        assert!(old.handle.step_down(None).await, "transferred");
    });
    assert_eq!(released, lacked, "a follower does not know what others lack");
    assert!(!leads(old));
    stop_all(nodes).await;
}
