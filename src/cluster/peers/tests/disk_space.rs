//! Three nodes whose disks run out of space.

use super::checked::{ADD, Checked, take_leader};
use super::*;
use crate::cluster::{DiskShortage, Error, Space, SpaceState};

const TOTAL: u64 = 100 << 30;
pub(super) const ENOUGH: u64 = 2 << 30;
pub(super) const LOW: u64 = 512 << 20;
const FULL: u64 = 1 << 20;
/// A quarter more than the limit of a large file system.
const NEEDED: u64 = limits::DISK_LOW_BYTES_MAX + limits::DISK_LOW_BYTES_MAX / 4;

impl<M: Machine> Node<M> {
    /// Pretends that so many bytes are free.
    pub(super) fn pretend(&self, free: u64) {
        let space = Space { free, total: TOTAL };
        *self.handle.space.pretended.lock() = Some(space);
        self.handle.space.record(space);
    }
}

impl Node<Checked> {
    async fn add(&self) -> Result<(), Error> {
        self.handle.propose(command(ADD)).await.map(drop)
    }

    fn shortage(&self) -> Error {
        Error::DiskShortage(DiskShortage { node_id: self.handle.node_id(), free: LOW, needed: NEEDED })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn low_disk_refuses_only_commands_that_add_data() {
    let site = Site::new(3);
    let mut nodes = site.checked_cluster().await;
    let (leader, _) = take_leader(&mut nodes);
    let [(low, _), (other, _)] = nodes.try_into().ok().expect("two");
    for node in [&leader, &low, &other] {
        node.pretend(ENOUGH);
        node.add().await.expect("applied");
    }
    low.pretend(LOW);
    assert_eq!(low.add().await, Err(low.shortage()));
    let report = low.handle.report();
    assert_eq!((report.disk_free_bytes, report.disk_total_bytes), (Some(LOW), Some(TOTAL)), "as measured");
    assert!(report.disk_is_low && !report.disk_is_full);
    low.put("revoked").await;
    for node in [&leader, &other] {
        node.add().await.expect("a disk of another node that is low does not stop it");
    }
    low.pretend(ENOUGH);
    leader.pretend(LOW);
    for node in [&leader, &low, &other] {
        assert_eq!(node.add().await, Err(leader.shortage()), "the leader stores it first");
        node.put("revoked").await;
    }
    assert_eq!(leader.handle.leader(), Some(leader.handle.node_id()), "it leads");
    leader.pretend(ENOUGH);
    other.add().await.expect("applied again");
    stop_all(vec![leader, low, other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_leader_hands_over_to_a_voter_with_space() {
    let site = Site::new(3);
    let mut nodes = site.checked_cluster().await;
    let (old, _) = take_leader(&mut nodes);
    let [(full, _), (other, _)] = nodes.try_into().ok().expect("two");
    let id = other.handle.node_id();
    other.pretend(ENOUGH);
    full.pretend(FULL);
    old.pretend(FULL);
    for node in [&old, &full, &other] {
        let led = node.handle.until(|| node.handle.leader() == Some(id));
        timeout(LONG, led).await.expect("the one with space leads");
    }
    other.add().await.expect("it has space");
    for node in [&old, &full] {
        let mut others_can_lead = node.handle.space.others_can_lead.subscribe();
        timeout(LONG, others_can_lead.wait_for(|has| *has)).await.expect("in time").expect("a report");
        assert!(node.handle.is_spared(), "callers use the other one");
    }
    assert!(!other.handle.is_spared());
    old.put("revoked").await;
    old.handle.fresh().await.expect("its state is as fresh as before");
    assert!(other.handle.change_leader(Some(full.handle.node_id())).await.is_err(), "a full disk takes over");
    assert_eq!(other.handle.leader(), Some(id));
    stop_all(vec![old, full, other]).await;
}

/// A transfer stops the writes while it is tried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_stays_while_every_disk_is_full() {
    let site = Site::new(3);
    let mut nodes = site.checked_cluster().await;
    let (leader, _) = take_leader(&mut nodes);
    for node in nodes.iter().map(|(node, _)| node).chain([&leader]) {
        node.pretend(FULL);
    }
    let term = leader.handle.term();
    let begun = Clock::system().boot();
    while Clock::system().boot() < begun + 3 * limits::DISK_SPACE_CHECK_INTERVAL {
        for (node, _) in &nodes {
            node.put("revoked").await;
        }
        assert!(leader.add().await.is_err());
    }
    assert_eq!((leader.handle.leader(), leader.handle.term()), (Some(leader.handle.node_id()), term));
    assert_eq!(leader.handle.disk_space().1, SpaceState::Full);
    for node in nodes.iter().map(|(node, _)| node).chain([&leader]) {
        assert!(!node.handle.is_spared(), "no node is better than it");
    }
    for node in nodes.iter().map(|(node, _)| node).chain([&leader]) {
        node.pretend(ENOUGH);
    }
    leader.add().await.expect("space again");
    stop_all(nodes.into_iter().map(|(node, _)| node).chain([leader]).collect()).await;
}

/// Regression: the report was up to a second old. A leader handed over to a voter that was full by then and refused, and
/// nothing was written for 6 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn report_measures_the_disk() {
    let site = Site::new(1);
    let (node, _) = site.checked_cluster().await.remove(0);
    for (free, is_full) in [(FULL, true), (ENOUGH, false), (FULL, true), (ENOUGH, false)] {
        *node.handle.space.pretended.lock() = Some(Space { free, total: TOTAL });
        assert_eq!(node.handle.report().disk_is_full, is_full);
    }
    node.stop().await;
}
