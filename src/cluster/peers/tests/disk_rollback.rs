//! Rolled-back and copied disks, in clusters whose members have records of them.

use super::*;
use crate::cluster::apply::database::Generations;
use crate::cluster::disk_identity;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("directory");
    for item in fs::read_dir(from).expect("directory") {
        let item = item.expect("item");
        let target = to.join(item.file_name());
        if item.file_type().expect("type").is_dir() {
            copy(&item.path(), &target);
        } else {
            fs::copy(item.path(), target).expect("copy");
        }
    }
}

/// The error of a start in this directory.
fn refusal_of_start(data: &Path) -> String {
    let database = log::open_database(&data.join("raft")).expect("log");
    disk_identity::record_start(&database, rand(), None, None)
        .expect_err("it was rejected at an earlier start")
        .to_string()
}

/// Polls a condition.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let mut polls = tokio::time::interval(Duration::from_millis(5));
    let met = async {
        while !condition() {
            polls.tick().await;
        }
    };
    assert!(timeout(LONG, met).await.is_ok(), "{what}");
}

impl Site {
    fn beside(&self, id: u64, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}-{id}"))
    }

    /// Copies the disk of a stopped node.
    fn keep_copy(&self, id: u64) {
        copy(&self.data(id), &self.beside(id, "copy"));
    }

    /// Replaces the disk by the copy; the disk is retained.
    fn roll_back(&self, id: u64) {
        fs::rename(self.data(id), self.beside(id, "newest")).expect("rename");
        fs::rename(self.beside(id, "copy"), self.data(id)).expect("rename");
    }

    /// Restores the newest disk.
    fn bring_back(&self, id: u64) {
        fs::remove_dir_all(self.data(id)).expect("remove");
        fs::rename(self.beside(id, "newest"), self.data(id)).expect("rename");
    }
}

impl Node {
    /// Whether this node has a record that a member acknowledged a committed entry at or after `index`.
    fn has_record(&self, (id, disk_id): (u64, DiskId), index: u64) -> bool {
        let memory = self.handle.channels.local.disk_records.of((id, disk_id));
        memory.and_then(|memory| memory.held).is_some_and(|held| held.index >= index)
    }

    async fn reason_to_stop(&self) -> String {
        timeout(LONG, self.handle.until_failed()).await.expect("it stops")
    }

    fn disk(&self) -> (u64, DiskId) {
        (self.handle.node_id(), self.disk_id())
    }
}

async fn take_out(nodes: &mut Vec<Node>, id: u64) {
    let at = nodes.iter().position(|node| node.handle.node_id() == id).expect("there");
    nodes.remove(at).stop().await;
}

/// The leader and the two followers.
fn roles(nodes: &[Node]) -> [u64; 3] {
    let leader = leader(nodes).handle.node_id();
    let others: Vec<u64> =
        nodes.iter().map(|node| node.handle.node_id()).filter(|id| *id != leader).collect();
    [leader, others[0], others[1]]
}

/// Regression: the node hung, its port never opened, and the log gave no reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_rolled_back_under_a_live_leader_is_rejected() {
    let site = Site::new(3);
    let mut nodes = site.cluster().await;
    let [_, away, _] = roles(&nodes);
    take_out(&mut nodes, away).await;
    site.keep_copy(away);
    let node = site.node(away).await;
    let disk = node.disk();
    let index = nodes[0].write("since the copy").await;
    timeout(LONG, node.handle.until_applied(index)).await.expect("applied");
    until("the others have a record", || nodes.iter().all(|node| node.has_record(disk, index))).await;
    node.stop().await;
    site.roll_back(away);
    let node = site.node(away).await;
    let reason = node.reason_to_stop().await;
    assert!(reason.contains("rolled back") || reason.contains("was copied"), "{reason}");
    assert!(reason.contains("trust-fabric cluster replace"), "{reason}");
    node.stop().await;
    let next = refusal_of_start(&site.data(away));
    assert!(next.contains("rejected at an earlier start") && next.contains("cluster replace"), "{next}");
    // A rejected life is not recorded: the newest disk is accepted.
    site.bring_back(away);
    let node = site.node(away).await;
    let index = nodes[0].write("afterwards").await;
    timeout(LONG, node.handle.until_applied(index)).await.expect("it goes on");
    nodes.push(node);
    stop_all(nodes).await;
}

/// Regression: the third member was down when the entry was acknowledged, and had a record of the process
/// that acknowledged it. With the rolled-back disk it formed a majority, and the entry was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolled_back_disk_with_a_recorded_start_elects_no_leader() {
    let site = Site::new(3);
    let mut nodes = site.cluster().await;
    let [leads, away, third] = roles(&nodes);
    take_out(&mut nodes, away).await;
    site.keep_copy(away);
    nodes.push(site.node(away).await);
    let disk = nodes[2].disk();
    let started = |node: &Node| {
        node.handle.channels.local.disk_records.of(disk).is_some_and(|known| known.life.start == 2)
    };
    until("the third has a record", || {
        nodes.iter().filter(|node| node.handle.node_id() == third).all(started)
    })
    .await;
    take_out(&mut nodes, third).await;
    let index = nodes[0].write("acknowledged by two").await;
    stop_all(nodes).await;

    site.roll_back(away);
    let (back, third_again) = (site.node(away).await, site.node(third).await);
    let reason = back.reason_to_stop().await;
    assert!(reason.contains("was copied") && reason.contains("cluster replace"), "{reason}");
    assert!(third_again.handle.applied() < index);
    back.stop().await;
    // A supervisor restarts it, with a start number that the third has no record of: it was accepted.
    assert!(refusal_of_start(&site.data(away)).contains("was copied"));
    let first = site.node(leads).await;
    timeout(LONG, third_again.handle.until_applied(index)).await.expect("nothing is lost");
    stop_all(vec![first, third_again]).await;
}

/// The third member learns the progress of the other only from the leader, and has been restarted since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_record_survives_the_leader_and_a_restart() {
    let site = Site::new(3);
    let mut nodes = site.cluster().await;
    let [_, away, third] = roles(&nodes);
    take_out(&mut nodes, away).await;
    site.keep_copy(away);
    nodes.push(site.node(away).await);
    let disk = nodes[2].disk();
    let index = nodes[0].write("since the copy").await;
    until("the others have a record", || nodes[..2].iter().all(|node| node.has_record(disk, index))).await;
    stop_all(nodes).await;
    // Its start number is not suspicious.
    site.roll_back(away);
    let database = log::open_database(&site.data(away).join("raft")).expect("log");
    log::write_meta(&database, log::START, &[&9_u64.to_be_bytes()[..], &rand()].concat()).expect("written");
    drop(database);
    let (back, third) = (site.node(away).await, site.node(third).await);
    assert!(third.has_record(disk, index), "it is on its disk");
    let reason = back.reason_to_stop().await;
    assert!(reason.contains("rolled back"), "{reason}");
    stop_all(vec![back, third]).await;
}

/// No running member has a record of what the disk held: the loss cannot be prevented, and is reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undetectable_loss_is_reported_afterwards() {
    let site = Site::new(3);
    let mut nodes = site.cluster().await;
    let [leads, away, third] = roles(&nodes);
    take_out(&mut nodes, away).await;
    site.keep_copy(away);
    take_out(&mut nodes, third).await;
    nodes.push(site.node(away).await);
    let index = nodes[0].write("acknowledged by two").await;
    timeout(LONG, nodes[0].handle.until_applied(index)).await.expect("applied");
    let right = nodes[0].handle.applied_log_id().expect("readable").expect("an entry");
    stop_all(nodes).await;

    site.roll_back(away);
    let (back, third) = (site.node(away).await, site.node(third).await);
    let mut stopped = Vec::new();
    back.recovered().await;
    back.write("in its place").await;
    let first = site.node(leads).await;
    // It has the record: the rolled-back node stops if it is called before its contradiction is detected.
    let goes = tokio::select! {
        _ = first.handle.until_failed() => false,
        _ = back.reason_to_stop() => true,
    };
    if goes {
        back.stop().await;
    } else {
        stopped.push(back);
    }
    let reason = first.reason_to_stop().await;
    let lost = format!("entry {}", right.leader_id);
    assert!(reason.contains("an operator must decide") && reason.contains(&lost), "{reason}: {right}");
    until("the leader reports it", || third.handle.contradictions() == [leads]).await;
    stopped.extend([first, third]);
    stop_all(stopped).await;
}

/// Regression: the copy was admitted beside the original without a message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copied_disk_is_rejected_and_the_original_continues() {
    let site = Site::new(3);
    let mut nodes = site.cluster().await;
    let [_, away, _] = roles(&nodes);
    take_out(&mut nodes, away).await;
    site.keep_copy(away);
    let original = site.node(away).await;
    let disk = original.disk();
    let index = nodes[0].write("since the copy").await;
    until("the others have a record", || nodes.iter().all(|node| node.has_record(disk, index))).await;
    let data = site.beside(away, "copy");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let copied = site.node_on(away, (data.clone(), listener, Clock::system()), &site.members, Rows).await;
    let reason = copied.reason_to_stop().await;
    assert!(reason.contains("was copied") || reason.contains("rolled back"), "{reason}");
    assert!(reason.contains("cluster replace"), "{reason}");
    copied.stop().await;
    assert!(refusal_of_start(&data).contains("rejected at an earlier start"));
    let index = original.write("the original").await;
    timeout(LONG, nodes[0].handle.until_applied(index)).await.expect("it goes on");
    nodes.push(original);
    stop_all(nodes).await;
}

/// A stated life stays valid, however late it arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_call_is_accepted_after_later_acknowledgements() {
    let site = Site::new(3);
    let nodes = site.cluster().await;
    let (leads, other) = (leader(&nodes), follower(&nodes));
    let life = other.handle.channels.local.life;
    let path = format!("node/{}", other.handle.node_id());
    let caller = site.caller_in(&path, other.disk(), leads.handle.cluster_id(), life);
    let client = site.client_of(&caller, leads.handle.node_id(), Some(leads.disk_id()));
    // Created before, delivered after.
    let late = client.request(proto::AppliedRequest { index: 1 });
    let index = nodes[0].write("meanwhile").await;
    until("it is recorded", || leads.has_record(other.disk(), index)).await;
    client.peer().applied(late).await.expect("accepted");
    other.handle.fresh().await.expect("it goes on");
    stop_all(nodes).await;
}

/// Restarts with writes and leader changes in between: a healthy disk is never rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_restarts_are_never_rejected() {
    let site = Site::new(3);
    let mut nodes = site.cluster().await;
    for round in 0..3 {
        for _ in 0..3 {
            let id = if round == 1 { roles(&nodes)[1] } else { roles(&nodes)[0] };
            take_out(&mut nodes, id).await;
            nodes[0].write("while it is away").await;
            nodes.push(site.node(id).await);
            nodes[2].recovered().await;
            nodes[2].write("when it is back").await;
        }
        // All at once.
        stop_all(std::mem::take(&mut nodes)).await;
        for id in 1..=3 {
            nodes.push(site.node(id).await);
        }
        for node in &nodes {
            node.recovered().await;
        }
    }
    for node in &nodes {
        assert_eq!(node.handle.channels.local.stops().borrow().clone(), None);
    }
    stop_all(nodes).await;
}

/// The node was killed between the replacement of the state and that of the log, and its log is longer than the
/// snapshot and contradicts it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_install_over_a_contradicting_log_completes() {
    let site = Site::new(3);
    let mut nodes = site.cluster().await;
    let [leads, away, third] = roles(&nodes);
    take_out(&mut nodes, away).await;
    let mut last = 0;
    for _ in 0..5 {
        last = nodes[0].write("while it is away").await;
    }
    let leads = nodes.iter().find(|node| node.handle.node_id() == leads).expect("there");
    leads.handle.snapshot().await.expect("snapshot");
    let wait = leads.handle.raft.wait(Some(LONG));
    let taken = wait.metrics(|now| now.snapshot.map(|id| id.index) >= Some(last), "taken");
    taken.await.expect("taken");
    let sent = leads.handle.raft.get_snapshot().await.expect("runs").expect("a snapshot");
    let generations = Generations::new(site.data(away).join("state")).expect("state");
    drop(
        generations
            .install(sent.snapshot.directory(), Rows::TABLES, &[], sent.meta.last_log_id)
            .expect("installed"),
    );
    // Uncommitted entries of a later term.
    let database = log::open_database(&site.data(away).join("raft")).expect("log");
    append_to(&database, away, last + 3);
    drop(database);
    let back = site.node(away).await;
    let index =
        nodes.iter().find(|node| node.handle.node_id() != third).expect("there").write("afterwards").await;
    timeout(LONG, back.handle.until_applied(index)).await.expect("it goes on");
    nodes.push(back);
    stop_all(nodes).await;
}

/// Appends entries up to `last` to the log of a stopped node, as a leader of the next term without followers would.
fn append_to(database: &rocksdb::DB, node_id: u64, last: u64) {
    use crate::cluster::{codec, record};
    let entries = database.cf_handle(log::LOG).expect("entries");
    let end = database
        .iterator_cf(entries, rocksdb::IteratorMode::End)
        .next()
        .expect("an entry")
        .expect("readable");
    let first = u64::from_be_bytes(end.0[..].try_into().expect("a key")) + 1;
    let row = log::read_meta(database, log::VOTE).expect("readable").expect("a vote");
    let leader_id = LeaderId::new(codec::decode_vote(&row).expect("a vote").leader_id.term + 1, node_id);
    let vote = codec::encode_vote(&crate::cluster::type_config::Vote { leader_id, committed: true });
    log::write_meta(database, log::VOTE, &vote).expect("written");
    for index in first..=last {
        let log_id = LogId::new(leader_id.to_committed(), index);
        let entry = codec::encode_entry(&openraft::entry::RaftEntry::new_blank(log_id));
        let key = log::log_key(index);
        database.put_cf(entries, key, record::seal(&key, &entry)).expect("put");
    }
}
