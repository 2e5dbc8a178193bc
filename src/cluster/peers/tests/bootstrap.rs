//! Bootstrap, and disks that were lost.

use super::*;

async fn reason_to_stop(node: &Node) -> String {
    timeout(LONG, node.handle.until_failed()).await.expect("it stops")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_form_one_cluster_in_any_start_order() {
    for order in [[1, 2, 3], [3, 2, 1], [2, 1, 3]] {
        let site = Site::new(3);
        let mut nodes = Vec::new();
        for id in order {
            nodes.push(site.node(id).await);
        }
        for node in &nodes {
            node.recovered().await;
        }
        let ids: Vec<_> = nodes.iter().map(|node| node.handle.cluster_id().expect("a cluster")).collect();
        assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "{order:?}");
        for node in &nodes {
            assert_eq!(nodes[0].handle.disk_of(node.handle.node_id()), Some(node.disk_id()));
        }
        stop_all(nodes).await;
    }
}

/// Concurrent starts in every order; in every third round one node is restarted before bootstrap is complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: `make proof`"]
async fn thousand_bootstraps_form_one_cluster_each() {
    let orders = [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]];
    for round in 0..1_000_usize {
        let site = Site::new(3);
        let mut nodes = Vec::new();
        for id in orders[round % orders.len()] {
            nodes.push(site.node(id).await);
        }
        if round % 3 == 0 {
            // With no state, a cluster id, or a log.
            let early = nodes.remove(round % nodes.len());
            let id = early.handle.node_id();
            early.stop().await;
            nodes.push(site.node(id).await);
        }
        for node in &nodes {
            node.recovered().await;
        }
        let index = nodes[0].write("one").await;
        for node in &nodes {
            timeout(LONG, node.handle.until_applied(index)).await.expect("applied");
        }
        let ids: Vec<_> = nodes.iter().map(|node| node.handle.cluster_id().expect("a cluster")).collect();
        let hashes: Vec<_> = nodes.iter().map(|node| node.handle.state_hash().expect("hash")).collect();
        assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "round {round}");
        assert!(hashes.windows(2).all(|pair| pair[0] == pair[1]), "round {round}");
        stop_all(nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_disk_does_not_return_under_its_node_id() {
    let site = Site::new(3);
    let mut nodes = site.cluster().await;
    nodes[0].write("something").await;
    // Node 1 bootstraps and the others wait for it: neither may start a new cluster.
    for id in [1, 3] {
        let at = nodes.iter().position(|node| node.handle.node_id() == id).expect("there");
        nodes.remove(at).stop().await;
        fs::rename(site.data(id), site.directory.path().join(format!("kept-{id}"))).expect("rename");
        let wiped = site.node(id).await;
        let reason = reason_to_stop(&wiped).await;
        assert!(reason.contains("another disk") && reason.contains("cluster replace"), "{reason}");
        wiped.stop().await;
        fs::remove_dir_all(site.data(id)).expect("remove");
        fs::rename(site.directory.path().join(format!("kept-{id}")), site.data(id)).expect("rename");
        nodes.push(site.node(id).await);
        nodes.last().expect("there").recovered().await;
    }
    stop_all(nodes).await;
}

/// The bootstrapping node lost its disk after one node had stored the cluster id, and no node had an entry. A cluster
/// with another id could never have had that node as a member, because a node belongs to one cluster for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_id_of_a_joined_node_is_reused_by_bootstrap() {
    let site = Site::new(3);
    let id: ClusterId = rand();
    let database = log::open_database(&site.data(2).join("raft")).expect("log");
    log::write_meta(&database, log::CLUSTER_ID, &id).expect("written");
    drop(database);
    let nodes = site.cluster().await;
    let index = nodes[0].write("one").await;
    for node in &nodes {
        timeout(LONG, node.handle.until_applied(index)).await.expect("applied");
        assert_eq!(node.handle.cluster_id(), Some(id));
    }
    stop_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_of_a_cluster_does_not_bootstrap_another() {
    let site = Site::new(5);
    let of =
        |ids: [u64; 3]| ids.map(|id| (id, site.members[&id].clone())).into_iter().collect::<InitialMembers>();
    let mut nodes = Vec::new();
    for id in [1, 2, 3] {
        nodes.push(site.node_of(id, &of([1, 2, 3])).await);
    }
    for node in &nodes {
        node.recovered().await;
    }
    let stranger = site.node_of(4, &of([1, 4, 5])).await;
    let reason = reason_to_stop(&stranger).await;
    assert!(reason.contains("not a member") && reason.contains("bootstrapped once"), "{reason}");
    stranger.stop().await;
    stop_all(nodes).await;
}

/// Regression: nodes with empty disks bootstrapped an empty cluster with the id of a restored one whose membership lacks them,
/// and its only member followed them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blank_nodes_do_not_bootstrap_over_a_cluster_that_lacks_them() {
    let site = Site::new(3);
    let alone: InitialMembers = [(3, site.members[&3].clone())].into_iter().collect();
    let third = site.node_of(3, &alone).await;
    third.recovered().await;
    third.write("kept").await;
    third.stop().await;
    // Its cluster.members are ignored now.
    let third = site.node(3).await;
    third.recovered().await;
    let first = site.node(1).await;
    let reason = reason_to_stop(&first).await;
    assert!(reason.contains("not a member") && reason.contains("bootstrapped once"), "{reason}");
    stop_all(vec![first, third]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_different_member_lists_do_not_bootstrap() {
    let site = Site::new(3);
    let two: InitialMembers = site.members.iter().take(2).map(|(id, at)| (*id, at.clone())).collect();
    let (first, second) = (site.node_of(1, &two).await, site.node(2).await);
    let reasons = [reason_to_stop(&first).await, reason_to_stop(&second).await];
    assert!(reasons.iter().all(|reason| reason.contains("cluster.members must be the same")), "{reasons:?}");
    assert_eq!((first.handle.is_blank(), second.handle.is_blank()), (true, true));
    stop_all(vec![first, second]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_at_an_address_must_have_the_expected_identity() {
    let site = Site::new(3);
    // The addresses of two nodes are swapped.
    let mut mixed = site.members.clone();
    mixed.insert(2, site.members[&3].clone());
    mixed.insert(3, site.members[&2].clone());
    let nodes = [site.node_of(1, &mixed).await, site.node(2).await, site.node(3).await];
    let caller = site.caller("node/1", (1, rand()), None);
    let client = caller.channels.own(2, &mixed[&2], None).expect("a way");
    let refused = client.peer().hello(client.request(proto::HelloRequest::default())).await;
    let refused = refused.expect_err("node 3 answers there");
    let mut reason: &dyn std::error::Error = &refused;
    while let Some(source) = reason.source() {
        reason = source;
    }
    let reason = reason.to_string();
    assert!(
        reason.contains("is spiffe://trust.example/node/3, expected") && reason.contains("/node/2"),
        "{reason}"
    );
    assert!(nodes.iter().all(|node| node.handle.is_blank()));
    stop_all(nodes.into()).await;
}
