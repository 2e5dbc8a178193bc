//! Membership changes of running nodes.

use parking_lot::Mutex;

use super::*;
use crate::cluster::{
    Applied, Corrupt, MemberEntry, Stamp, Submission, View, WantedMember, WantedRole, Write,
};

/// Wanted members, as every node of a test sees them.
type Wishes = Arc<Mutex<Vec<WantedMember>>>;

/// The rows of [`Rows`], and the wanted members of the test.
struct Wanting {
    wishes: Wishes,
    /// Members of the last membership entry.
    members: Mutex<Vec<u64>>,
    /// Index of the entry that removed a node.
    removed: Mutex<BTreeMap<u64, u64>>,
}

impl Wanting {
    fn new(wishes: &Wishes) -> Self {
        Self { wishes: Arc::clone(wishes), members: Mutex::default(), removed: Mutex::default() }
    }
}

impl Machine for Wanting {
    const TABLES: &'static [&'static str] = Rows::TABLES;

    fn can_decode(command: &[u8]) -> bool {
        Rows::can_decode(command)
    }

    fn batch(stamp: Stamp, submissions: Vec<Submission>) -> Bytes {
        Rows::batch(stamp, submissions)
    }

    fn apply(&self, view: &dyn View, batch: &[u8], index: u64) -> Result<Applied, Corrupt> {
        Rows.apply(view, batch, index)
    }

    fn record_members(
        &self,
        _view: &dyn View,
        members: &[MemberEntry],
        index: u64,
    ) -> Result<Vec<Write>, Corrupt> {
        let now: Vec<u64> = members.iter().map(|member| member.node_id).collect();
        let before = std::mem::replace(&mut *self.members.lock(), now.clone());
        let gone = before.into_iter().filter(|id| !now.contains(id));
        self.removed.lock().extend(gone.map(|id| (id, index)));
        Ok(Vec::new())
    }

    fn removed_at(&self, node_id: u64) -> Option<u64> {
        self.removed.lock().get(&node_id).copied()
    }

    fn wanted_members(&self) -> Vec<WantedMember> {
        self.wishes.lock().clone()
    }

    fn project(&self, _writes: &[Write], _index: u64) -> Result<(), Corrupt> {
        Ok(())
    }

    fn rebuild(&self, _view: &dyn View) -> Result<(), Corrupt> {
        Ok(())
    }
}

async fn cluster(site: &Site, ids: std::ops::RangeInclusive<u64>, wishes: &Wishes) -> Vec<Node<Wanting>> {
    let members: InitialMembers = ids.map(|id| (id, site.members[&id].clone())).collect();
    let mut nodes = Vec::new();
    for id in members.keys() {
        nodes.push(site.node_with(*id, &members, Wanting::new(wishes)).await);
    }
    for node in &nodes {
        node.recovered().await;
    }
    nodes
}

/// Marks the empty data directory of a node as one that joined the cluster.
fn mark_joined(site: &Site, id: u64, cluster_id: ClusterId) {
    let database = log::open_database(&site.data(id).join("raft")).expect("log");
    log::write_meta(&database, log::JOINED, b"1").expect("mark");
    log::write_meta(&database, log::CLUSTER_ID, &cluster_id).expect("cluster id");
}

fn wish(wishes: &Wishes, node: (u64, &str, DiskId), role: WantedRole, replaces: Option<u64>) {
    let (node_id, address, disk_id) = (node.0, node.1.to_owned(), node.2);
    let mut wishes = wishes.lock();
    wishes.retain(|wish| wish.node_id != node_id);
    wishes.push(WantedMember { node_id, address, disk_id, role, replaces });
}

/// Waits until these are the voters, and the only members, of a node.
async fn until_voters(node: &Node<Wanting>, voters: &[u64]) {
    let is_so = || {
        let members = node.handle.known_members();
        let is_uniform = members.effective.get_joint_config().len() == 1;
        is_uniform
            && members.all().into_keys().eq(voters.iter().copied())
            && members.effective.voter_ids().eq(voters.iter().copied())
    };
    timeout(LONG, node.handle.until(is_so)).await.expect("the membership changes");
}

fn write(node: &Node<Wanting>, text: &str) -> impl Future<Output = u64> {
    let (handle, command) = (node.handle.clone(), command(text));
    async move { handle.propose(command).await.expect("applied").index }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joined_node_catches_up_and_votes() {
    let (site, wishes) = (Site::new(4), Wishes::default());
    let mut nodes = cluster(&site, 1..=3, &wishes).await;
    write(&nodes[0], "before").await;
    mark_joined(&site, 4, nodes[0].handle.cluster_id().expect("a cluster"));
    let joined = site.node_with(4, &InitialMembers::new(), Wanting::new(&wishes)).await;
    wish(&wishes, (4, &site.members[&4], joined.disk_id()), WantedRole::Voter, None);
    until_voters(&joined, &[1, 2, 3, 4]).await;
    let index = write(&joined, "afterwards").await;
    nodes.push(joined);
    for node in &nodes {
        timeout(LONG, node.handle.until_applied(index)).await.expect("applied");
        assert_eq!(node.handle.state_hash().expect("hash"), nodes[0].handle.state_hash().expect("hash"));
    }
    stop_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_hands_over_and_is_removed() {
    let (site, wishes) = (Site::new(3), Wishes::default());
    let mut nodes = cluster(&site, 1..=3, &wishes).await;
    let id = leader(&nodes).handle.node_id();
    let at = nodes.iter().position(|node| node.handle.node_id() == id).expect("there");
    let gone = nodes.remove(at);
    wish(&wishes, (id, "", gone.disk_id()), WantedRole::Removed, None);
    let rest: Vec<u64> = (1..=3).filter(|other| *other != id).collect();
    for node in &nodes {
        until_voters(node, &rest).await;
    }
    write(&nodes[0], "afterwards").await;
    // It is refused by the others, and stops with the reason, also at its next start.
    let reason = timeout(LONG, gone.handle.until_failed()).await.expect("it stops");
    assert!(reason.contains("was removed from the cluster at log index"), "{reason}");
    gone.stop().await;
    stop_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_is_no_longer_held_for_a_removed_member() {
    let (site, wishes) = (Site::new(2), Wishes::default());
    let nodes = cluster(&site, 1..=2, &wishes).await;
    let removed = follower_of(&nodes);
    let gone = nodes.iter().find(|node| node.handle.node_id() == removed).expect("there");
    let (_sender, mut surplus) = tokio::sync::watch::channel(None);
    let released = leader(&nodes).handle.until_no_member_lacks(1_000_000, &mut surplus);
    let (released, ()) = futures::join!(timeout(LONG, released), async {
        wish(&wishes, (removed, "", gone.disk_id()), WantedRole::Removed, None);
    });
    assert_eq!(released.expect("released"), 1_000_000);
    let remains: Vec<u64> = (1..=2).filter(|id| *id != removed).collect();
    until_voters(leader(&nodes), &remains).await;
    stop_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_voter_is_replaced_in_one_change() {
    let (site, wishes) = (Site::new(4), Wishes::default());
    let mut nodes = cluster(&site, 1..=3, &wishes).await;
    let dead = follower_of(&nodes);
    let at = nodes.iter().position(|node| node.handle.node_id() == dead).expect("there");
    nodes.remove(at).stop().await;
    mark_joined(&site, 4, nodes[0].handle.cluster_id().expect("a cluster"));
    let joined = site.node_with(4, &InitialMembers::new(), Wanting::new(&wishes)).await;
    wish(&wishes, (4, &site.members[&4], joined.disk_id()), WantedRole::Voter, Some(dead));
    let voters: Vec<u64> = (1..=4).filter(|id| *id != dead).collect();
    until_voters(&joined, &voters).await;
    nodes.push(joined);
    for node in &nodes {
        until_voters(node, &voters).await;
    }
    // The replaced voter returns with its old directory and is refused.
    let returned = site.node_with(dead, &InitialMembers::new(), Wanting::new(&wishes)).await;
    let reason = timeout(LONG, returned.handle.until_failed()).await.expect("it stops");
    assert!(reason.contains("was removed from the cluster at log index"), "{reason}");
    returned.stop().await;
    stop_all(nodes).await;
}

fn follower_of(nodes: &[Node<Wanting>]) -> u64 {
    let leader = leader(nodes).handle.node_id();
    nodes.iter().map(|node| node.handle.node_id()).find(|id| *id != leader).expect("another")
}
