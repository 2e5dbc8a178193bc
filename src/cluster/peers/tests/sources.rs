//! Leases on outside sources over connections between three nodes. They share a clock that tests advance.

use super::*;
use crate::cluster::{NoSourceLease, Source};
use crate::id::Digest128;

const LENGTH: Duration = Duration::from_secs(60);
const SOURCE: Source = Source { id: Digest128::from_bytes([7; 16]), generation: 1 };

impl Node {
    /// Takes the lease on the source, as a request does.
    async fn source_lease(&self) -> Result<(), NoSourceLease> {
        let fresh = timeout(LONG, self.handle.fresh()).await.expect("in time").expect("a lease on the state");
        self.handle.source_lease(&fresh, SOURCE, LENGTH).map(drop)
    }

    /// Waits for the next renewals.
    async fn until_source_lease(&self, is_held: bool) {
        let polled = async {
            while self.source_lease().await.is_ok() != is_held {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LONG, polled).await.expect("renewed");
    }

    /// Records, as the leader, a response of the source without entries.
    fn hear(&self) -> bool {
        let call = self.handle.begin_source_call().expect("leads");
        self.handle.record_source(call, SOURCE, LENGTH)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_of_the_leader_is_a_lease_of_every_node() {
    let clock = manual_clock();
    let (_site, nodes) = three_by(&clock).await;
    for node in &nodes {
        assert_eq!(node.source_lease().await, Err(NoSourceLease { heard_ago: None }));
    }
    let leads = leader(&nodes);
    let call = leads.handle.begin_source_call().expect("it leads");
    clock.advance(Duration::from_secs(20));
    let imported = leads.write("imported").await;
    assert!(leads.handle.record_source(call, SOURCE, LENGTH));
    for node in &nodes {
        node.until_source_lease(true).await;
        assert!(node.handle.applied() >= imported, "a lease without the import");
        assert_eq!(node.handle.source_heard(SOURCE), Some(Duration::from_secs(20)));
    }
    assert!(follower(&nodes).handle.begin_source_call().is_none(), "only the leader calls");
    // 20 s, 37 s, and the margin of 3 s.
    clock.advance(Duration::from_secs(37));
    for node in &nodes {
        assert_eq!(
            node.source_lease().await,
            Err(NoSourceLease { heard_ago: Some(Duration::from_secs(57)) })
        );
    }
    stop_all(nodes).await;
}

/// The leases that the former leader gave remain valid; its records give no new ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_leader_names_no_lease_before_it_calls() {
    let clock = manual_clock();
    let (_site, nodes) = three_by(&clock).await;
    let old = leader(&nodes);
    assert!(old.hear());
    for node in &nodes {
        node.until_source_lease(true).await;
    }
    let late = old.handle.begin_source_call().expect("it leads");
    assert!(old.handle.transfer_leadership().await);
    for node in &nodes {
        let led_by_another = node.handle.until_another_leader_than(old.handle.node_id());
        timeout(LONG, led_by_another).await.expect("another leads");
        node.source_lease().await.expect("the lease goes on");
    }
    assert!(!old.handle.record_source(late, SOURCE, LENGTH), "it was deposed");
    for node in &nodes {
        assert!(node.handle.recorded_sources().is_empty());
    }
    clock.advance(LENGTH);
    for node in &nodes {
        node.source_lease().await.expect_err("over");
    }
    let new = leader(&nodes);
    assert!(new.hear());
    for node in &nodes {
        node.until_source_lease(true).await;
    }
    stop_all(nodes).await;
}

/// The boot clock of a suspended virtual machine stands still; its wall clock is set afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspended_leader_names_no_record_of_before() {
    let clock = manual_clock();
    let (_site, nodes) = three_by(&clock).await;
    let leads = leader(&nodes);
    let before = leads.handle.begin_source_call().expect("it leads");
    assert!(leads.hear());
    for node in &nodes {
        node.until_source_lease(true).await;
    }
    clock.shift(1_000);
    assert!(nodes.iter().all(|node| !node.handle.freshness().is_held), "all have noticed it");
    assert!(leads.handle.recorded_sources().is_empty());
    assert!(!leads.handle.record_source(before, SOURCE, LENGTH));
    clock.advance(Duration::from_millis(1));
    for node in &nodes {
        node.source_lease().await.expect_err("void");
    }
    assert!(leads.hear());
    for node in &nodes {
        node.until_source_lease(true).await;
    }
    stop_all(nodes).await;
}
