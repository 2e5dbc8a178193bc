//! What three nodes do as one.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_on_any_node_is_applied_on_all() {
    let site = Site::new(3);
    let nodes = site.cluster().await;
    for node in &nodes {
        let index = node.write("somewhere").await;
        assert!(node.handle.applied() >= index, "whoever writes reads it");
        for other in &nodes {
            timeout(LONG, other.handle.until_applied(index)).await.expect("applied");
        }
    }
    let hashes: Vec<_> = nodes.iter().map(|node| node.handle.state_hash().expect("hash")).collect();
    assert!(hashes.windows(2).all(|pair| pair[0] == pair[1]));
    stop_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_has_a_lease_and_any_can_tell_that_an_entry_is_known_to_all() {
    let site = Site::new(3);
    let nodes = site.cluster().await;
    for node in &nodes {
        node.handle.fresh().await.expect("a lease");
        let index = node.write("revoked").await;
        node.handle.barrier(index).await.expect("known");
        for other in &nodes {
            assert!(other.handle.applied() >= index);
        }
    }
    stop_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_leader_goes_away_another_leads_and_nothing_is_lost() {
    let site = Site::new(3);
    let mut nodes = site.cluster().await;
    let before = follower(&nodes).write("before").await;
    let gone = leader(&nodes).handle.node_id();
    let at = nodes.iter().position(|node| node.handle.node_id() == gone).expect("there");
    nodes.remove(at).stop().await;
    let after = nodes[0].write("after").await;
    assert!(after > before);
    nodes[1].handle.barrier(after).await.expect("the lease of the one that is gone has run out");
    let back = site.node(gone).await;
    timeout(LONG, back.handle.until_applied(after)).await.expect("it catches up");
    back.handle.fresh().await.expect("and has a lease again");
    nodes.push(back);
    stop_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_written_and_no_lease_is_kept() {
    let site = Site::new(3);
    let mut nodes = site.cluster().await;
    let last = nodes.pop().expect("three");
    stop_all(nodes).await;
    let refused = last.handle.propose(command("alone")).await.expect_err("alone");
    assert!(
        matches!(refused, crate::cluster::Error::NoLeader | crate::cluster::Error::OutcomeUnknown),
        "{refused}"
    );
    assert_eq!(last.handle.fresh().await.err(), Some(crate::cluster::Stale::NoLease));
    last.stop().await;
}
