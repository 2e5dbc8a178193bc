//! Nodes whose state differs although they applied the same log.

use std::sync::atomic::Ordering;

use futures::FutureExt as _;

use super::checked::{Checked, check, take_leader};
use super::hostile::{Played, assert_refused, state_hash};
use super::snapshot_transfer::purge_log;
use super::*;
use crate::cluster::apply::database::{HASH_INTERVAL, HASHES_KEPT_MAX};
use crate::cluster::{LeaseError, NewCluster, StateHash, StoppedNode};

type Nodes = Vec<(Node<Checked>, Checked)>;

/// Makes one node store other rows, and writes until a state hash is retained: the one of the leader.
async fn diverge(wrong: &Checked, leader: &Node<Checked>, nodes: &Nodes) -> (u64, StateHash) {
    wrong.is_wrong.store(true, Ordering::Release);
    let mut last = 0;
    for _ in 0..=HASH_INTERVAL {
        last = leader.put("a row").await;
    }
    for (node, _) in nodes {
        timeout(LONG, node.handle.until_applied(last)).await.expect("applied");
    }
    leader.handle.comparable_hashes().borrow().expect("a checkpoint")
}

/// Proposes the leader's hash. It may never be answered.
fn propose_check(node: &Node<Checked>, hash: (u64, StateHash)) {
    let handle = node.handle.clone();
    #[expect(clippy::disallowed_methods, reason = "an answer is not awaited")]
    tokio::spawn(async move { drop(handle.propose(check(hash)).await) });
}

async fn failure(node: &Node<Checked>) -> String {
    timeout(LONG, node.handle.until_failed()).await.expect("it stops")
}

fn goes_on(node: &Node<Checked>) -> bool {
    node.handle.until_failed().now_or_never().is_none()
}

/// The reason for which a data directory is refused.
fn refusal(site: &Site, id: u64) -> Option<Vec<u8>> {
    let database = log::open_database(&site.data(id).join("raft")).expect("log");
    log::read_meta(&database, log::REFUSED).expect("readable")
}

async fn until_disputed(node: &Node<Checked>, is_disputed: bool) {
    let until = async {
        while node.handle.disputed_index().is_some() != is_disputed {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, until).await.expect("noticed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn diverged_follower_stops_for_good_and_others_go_on() {
    let site = Site::new(3);
    let mut nodes = site.checked_cluster().await;
    let (leader, _) = take_leader(&mut nodes);
    let (term, (wrong, flag)) = (leader.handle.term(), nodes.pop().expect("a follower"));
    let hash = diverge(&flag, &leader, &nodes).await;
    timeout(LONG, wrong.handle.until_applied(hash.0)).await.expect("applied");
    leader.handle.propose(check(hash)).await.expect("a majority agrees");
    let reason = failure(&wrong).await;
    assert!(reason.contains(&format!("majority of the voters at log index {}", hash.0)), "{reason}");
    assert!(reason.contains("cluster replace"), "{reason}");
    assert_eq!(wrong.handle.fresh().await.err(), Some(LeaseError::NoLease));
    let (other, _) = nodes.pop().expect("another");
    for node in [&leader, &other] {
        let index = node.put("after").await;
        timeout(LONG, until_disputed_is_over(node, index)).await.expect("it serves");
        assert!(goes_on(node));
    }
    assert_eq!(leader.handle.term(), term, "no election");
    let id = wrong.handle.node_id();
    stop_all(vec![wrong, other, leader]).await;
    assert!(refusal(&site, id).is_some(), "it starts again on a wrong state");
}

async fn until_disputed_is_over(node: &Node<Checked>, index: u64) {
    until_disputed(node, false).await;
    node.handle.fresh().await.expect("a lease");
    node.handle.until_applied(index).await;
}

/// Regression: every follower stopped, because their hash differed from the leader's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn diverged_leader_stops_for_good_and_is_replaced() {
    let site = Site::new(3);
    let mut nodes = site.checked_cluster().await;
    let (wrong, flag) = take_leader(&mut nodes);
    let hash = diverge(&flag, &wrong, &nodes).await;
    // Their answers to each other come first. Regression: the request to the leader was then cancelled.
    for (from, to) in [(0, 1), (1, 0)] {
        let (from, to) = (&nodes[from].0.handle, nodes[to].0.handle.node_id());
        let record = from.known_members().get(to).expect("a member").clone();
        let client = from.channels.shared(Purpose::Administration, to, &record).expect("a channel");
        client.peer().report(client.request(proto::ReportRequest {})).await.expect("connected");
    }
    propose_check(&wrong, hash);
    let reason = failure(&wrong).await;
    assert!(reason.contains("majority of the voters"), "{reason}");
    assert_eq!(wrong.handle.fresh().await.err(), Some(LeaseError::NoLease));
    let id = wrong.handle.node_id();
    wrong.stop().await;
    assert!(refusal(&site, id).is_some());
    for (node, _) in &nodes {
        timeout(LONG, node.handle.until(|| node.handle.known_leader() != Some(id)))
            .await
            .expect("another leader");
        let index = node.put("after").await;
        timeout(LONG, until_disputed_is_over(node, index)).await.expect("it serves");
        assert!(goes_on(node));
    }
    stop_all(nodes.into_iter().map(|(node, _)| node).collect()).await;
}

/// Two cannot tell which of them is right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_with_different_states_both_stop() {
    let site = Site::new(2);
    let mut nodes = site.checked_cluster().await;
    let (leader, _) = take_leader(&mut nodes);
    let (wrong, flag) = nodes.pop().expect("a follower");
    let hash = diverge(&flag, &leader, &nodes).await;
    timeout(LONG, wrong.handle.until_applied(hash.0)).await.expect("applied");
    propose_check(&leader, hash);
    for node in [&leader, &wrong] {
        let reason = failure(node).await;
        assert!(reason.contains("no majority has the same"), "{reason}");
        assert_eq!(node.handle.fresh().await.err(), Some(LeaseError::NoLease));
    }
    let ids = [&leader, &wrong].map(|node| node.handle.node_id());
    stop_all(vec![leader, wrong]).await;
    for id in ids {
        assert_eq!(refusal(&site, id), None, "nothing is known to be wrong with it");
        // Regression: the follower, which has not applied the entry with the hash, waited for ever in its start.
        let again = timeout(LONG, site.node_with(id, &site.members, Checked::default()));
        let again = again.await.expect("it starts");
        assert_eq!(again.handle.disputed_index(), Some(hash.0), "a restart does not settle it");
        again.stop().await;
        // The same after a crash before the dispute was stored: the entry that states the hash opens it again.
        write_dispute(&site, id, &[]);
        let again = timeout(LONG, site.node_with(id, &site.members, Checked::default()));
        again.await.expect("it starts").stop().await;
    }
}

fn write_dispute(site: &Site, id: u64, row: &[u8]) {
    let database = log::open_database(&site.data(id).join("raft")).expect("log");
    log::write_meta(&database, log::DISPUTE, row).expect("written");
}

/// The leader, a follower with its switch, and the id of the third, which is stopped.
async fn two_of_three(site: &Site) -> (Node<Checked>, (Node<Checked>, Checked), u64) {
    let mut nodes = site.checked_cluster().await;
    let (leader, _) = take_leader(&mut nodes);
    let follower = nodes.pop().expect("a follower");
    let (absent, _) = nodes.pop().expect("another");
    let away = absent.handle.node_id();
    absent.stop().await;
    (leader, follower, away)
}

/// Makes a follower diverge, and waits until both are in dispute. Returns the index.
async fn dispute(leader: &Node<Checked>, wrong: &Node<Checked>, flag: &Checked) -> u64 {
    let hash = diverge(flag, leader, &Nodes::new()).await;
    timeout(LONG, wrong.handle.until_applied(hash.0)).await.expect("applied");
    propose_check(leader, hash);
    for node in [leader, wrong] {
        until_disputed(node, true).await;
    }
    hash.0
}

/// The third returns with the leader's state: the leader goes on, and the other one stops.
async fn third_decides(site: &Site, leader: Node<Checked>, wrong: Node<Checked>, away: u64) {
    let back = site.node_with(away, &site.members, Checked::default()).await;
    let reason = failure(&wrong).await;
    assert!(reason.contains("majority of the voters"), "{reason}");
    let index = leader.put("after").await;
    for node in [&leader, &back] {
        timeout(LONG, until_disputed_is_over(node, index)).await.expect("it serves");
    }
    stop_all(vec![wrong, back, leader]).await;
}

/// One against one: neither answers until the third decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dispute_without_majority_waits_for_the_missing_voter() {
    let site = Site::new(3);
    let (leader, (wrong, flag), away) = two_of_three(&site).await;
    dispute(&leader, &wrong, &flag).await;
    for node in [&leader, &wrong] {
        assert_eq!(node.handle.fresh().await.err(), Some(LeaseError::NoLease));
        assert!(goes_on(node) && !node.handle.freshness().is_held);
        assert!(node.handle.current_at(1).is_none(), "no read of an old index either");
    }
    let written = leader.handle.propose(command("meanwhile")).await;
    assert_eq!(written.err(), Some(crate::cluster::Error::OutcomeUnknown), "nothing is acknowledged");
    let deferred = leader.handle.applied() + 1;
    let wait = leader.handle.raft.wait(Some(LONG));
    wait.applied_index_at_least(Some(deferred), "").await.expect("openraft takes it for applied");
    let applied = leader.handle.until_applied_as_known(deferred).now_or_never();
    assert!(applied.is_none(), "a barrier would not wait for this node");
    third_decides(&site, leader, wrong, away).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_hash_of_one_member_is_outvoted() {
    let played = Played::begin().await;
    for _ in 0..HASH_INTERVAL {
        let index = played.nodes[1].write("a row").await;
        timeout(LONG, played.nodes[0].handle.until_applied(index)).await.expect("both");
    }
    let client = played.client();
    let mut peer = client.peer();
    for bytes in [0, 31, 33] {
        let answer = peer.state_hash(client.request(state_hash(HASH_INTERVAL, bytes))).await;
        assert_refused(answer, Code::InvalidArgument, "hash: must be 32 bytes");
    }
    for (index, bytes) in [(HASH_INTERVAL, 32), (HASH_INTERVAL + 1, 0), (u64::MAX, 0)] {
        let answer = peer.state_hash(client.request(state_hash(index, 32))).await.expect("an answer");
        assert_eq!(answer.into_inner().hash.len(), bytes, "{index}");
    }
    timeout(LONG, played.nodes[0].handle.fresh()).await.expect("settled").expect("a lease");
    played.end().await;
}

/// The voters that could decide have purged the entries which the missing one lacks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn voter_that_needs_a_snapshot_decides_a_dispute() {
    let site = Site::new(3);
    let (leader, (wrong, flag), away) = two_of_three(&site).await;
    let mut last = leader.put("while it is away").await;
    for node in [&leader, &wrong] {
        purge_log(node, last).await;
    }
    while !last.is_multiple_of(HASH_INTERVAL) {
        last = leader.put("until the next hash").await;
    }
    timeout(LONG, wrong.handle.until_applied(last)).await.expect("applied");
    dispute(&leader, &wrong, &flag).await;
    third_decides(&site, leader, wrong, away).await;
}

/// Regression: a node that was away for so long that no voter retained a hash to compare waited for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dispute_about_an_unretained_hash_stops_the_node() {
    let site = Site::new(3);
    let mut nodes = site.checked_cluster().await;
    let (leader, _) = take_leader(&mut nodes);
    let mut last = 0;
    while last < HASH_INTERVAL {
        last = leader.put("before").await;
    }
    let (late, _) = nodes.pop().expect("a follower");
    timeout(LONG, late.handle.until_applied(last)).await.expect("applied");
    let id = late.handle.node_id();
    late.stop().await;
    write_dispute(&site, id, &HASH_INTERVAL.to_be_bytes());
    let retained = (HASHES_KEPT_MAX + 2) * HASH_INTERVAL;
    while last < retained {
        last = leader.put("meanwhile").await;
    }
    let (other, _) = nodes.pop().expect("another");
    timeout(LONG, other.handle.until_applied(last)).await.expect("applied");
    let late = site.node_with(id, &site.members, Checked::default()).await;
    let reason = failure(&late).await;
    assert!(reason.contains("too few voters retain") && reason.contains("cluster replace"), "{reason}");
    assert!(goes_on(&leader) && goes_on(&other));
    stop_all(vec![late, other, leader]).await;
    assert_eq!(refusal(&site, id), None, "nothing is known to be wrong with it");
}

/// Regression: a member that stated a wrong hash of an old index stopped a node that lagged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agreement_at_a_newer_index_ends_an_old_dispute() {
    let site = Site::new(3);
    let mut nodes = site.checked_cluster().await;
    let (leader, _) = take_leader(&mut nodes);
    let mut last = 0;
    while last < 3 * HASH_INTERVAL {
        last = leader.put("before").await;
    }
    let (late, _) = nodes.pop().expect("a follower");
    timeout(LONG, late.handle.until_applied(last)).await.expect("applied");
    let id = late.handle.node_id();
    late.stop().await;
    write_dispute(&site, id, &HASH_INTERVAL.to_be_bytes());
    while last < (HASHES_KEPT_MAX + 2) * HASH_INTERVAL {
        last = leader.put("meanwhile").await;
    }
    let (other, _) = nodes.pop().expect("another");
    timeout(LONG, other.handle.until_applied(last)).await.expect("applied");
    let late = site.node_with(id, &site.members, Checked::default()).await;
    timeout(LONG, until_disputed_is_over(&late, last)).await.expect("it serves");
    assert!(goes_on(&late));
    stop_all(vec![late, other, leader]).await;
}

/// A member that states a wrong hash could open a dispute at each retained index.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settled_dispute_covers_every_applied_index() {
    let site = Site::new(3);
    let mut nodes = site.checked_cluster().await;
    let (leader, _) = take_leader(&mut nodes);
    let mut last = 0;
    while last < 3 * HASH_INTERVAL {
        last = leader.put("a row").await;
    }
    for (node, _) in &nodes {
        timeout(LONG, node.handle.until_applied(last)).await.expect("applied");
    }
    let wrong = [9; 32];
    let liar = 9;
    leader.handle.compare_hash(liar, HASH_INTERVAL, wrong).expect("an answer");
    until_disputed(&leader, false).await;
    let another = 8;
    leader.handle.compare_hash(another, 3 * HASH_INTERVAL, wrong).expect("an answer");
    assert_eq!(leader.handle.disputed_index(), None, "a majority agreed at the newest index");
    stop_all(nodes.into_iter().map(|(node, _)| node).chain([leader]).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outvoted_member_is_answered_and_disputes_no_more() {
    let mut played = Played::begin().await;
    let write = async |until: u64| {
        let mut index = 0;
        while index < until {
            index = played.nodes[1].write("a row").await;
        }
        timeout(LONG, played.nodes[0].handle.until_applied(index)).await.expect("both");
    };
    write(2 * HASH_INTERVAL).await;
    let client = played.client();
    let ask = async |index: u64| {
        let answer = client.peer().state_hash(client.request(state_hash(index, 32))).await;
        answer.expect("an answer").into_inner()
    };
    ask(HASH_INTERVAL).await;
    timeout(LONG, played.nodes[0].handle.fresh()).await.expect("settled").expect("a lease");
    write(4 * HASH_INTERVAL).await;
    // A dispute would stay open: the other voter that has the hash is gone.
    played.nodes.remove(1).stop().await;
    let answer = ask(4 * HASH_INTERVAL).await;
    assert_eq!(answer.hash.len(), 32, "it learns the hash, as an honest member must");
    assert!(answer.applied_index >= 4 * HASH_INTERVAL);
    assert_eq!(played.nodes[0].handle.disputed_index(), None);
    stop_all(played.nodes).await;
}

/// It would replace the state about which the voters decide, and with it the evidence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_is_refused_during_a_dispute() {
    let mut played = Played::begin().await;
    while played.nodes[0].handle.applied() < HASH_INTERVAL {
        let index = played.nodes[1].write("a row").await;
        timeout(LONG, played.nodes[0].handle.until_applied(index)).await.expect("both");
    }
    played.nodes.remove(1).stop().await;
    let client = played.client();
    let mut peer = client.peer();
    peer.state_hash(client.request(state_hash(HASH_INTERVAL, 32))).await.expect("an answer");
    assert_eq!(played.nodes[0].handle.disputed_index(), Some(HASH_INTERVAL));
    let parts = futures::stream::iter([proto::SnapshotPart::default()]);
    let refused = peer.install_snapshot(client.request(parts)).await;
    assert_refused(refused, Code::Unavailable, "in dispute");
    stop_all(played.nodes).await;
}

/// The third is lost, so no vote decides. The follower's log has the leader's hash, and its state another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tie_is_ended_by_a_new_cluster_of_the_chosen_node() {
    let site = Site::new(3);
    let (leader, (chosen, flag), _) = two_of_three(&site).await;
    let index = dispute(&leader, &chosen, &flag).await;
    let id = chosen.handle.node_id();
    stop_all(vec![leader, chosen]).await;
    let create = async |accept_dispute: bool| {
        let new = NewCluster {
            cluster_id: rand(),
            address: None,
            accept_dispute,
            command: command("the new incarnation"),
            reply: Bytes::new(),
            drawn_proposer_id: ProposerId::from_bytes(rand()),
        };
        let stopped = StoppedNode::open(&site.data(id), id, rand()).expect("opens");
        stopped.create(&Arc::new(Checked::default()), new, &Clock::system(), false, || Ok(())).await
    };
    let refused = create(false).await.expect_err("in dispute").to_string();
    assert!(refused.contains(&format!("log index {index}")), "{refused}");
    // As if the dispute had not been stored: the entry with the hash opens it.
    write_dispute(&site, id, &[]);
    let refused = create(false).await.expect_err("in dispute").to_string();
    assert!(refused.contains(&format!("log index {index}")), "{refused}");
    create(true).await.expect("created");
    let alone = site.node_with(id, &site.members, Checked::default()).await;
    alone.recovered().await;
    timeout(LONG, alone.handle.fresh()).await.expect("decided").expect("a lease");
    alone.put("it serves").await;
    assert_eq!(alone.handle.disputed_index(), None);
    alone.stop().await;
}
