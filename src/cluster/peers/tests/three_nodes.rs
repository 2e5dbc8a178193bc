//! Three nodes: writes, leases, barriers, leader changes, hanging disks, certificate rotation.

use std::collections::BTreeSet;

use futures::FutureExt as _;
use tokio_rustls::rustls::pki_types::ServerName;

use super::*;
use crate::cluster::propose::forwarding::Forwarder;
use crate::cluster::type_config::MemberRecord;
use crate::cluster::{Submission, disk_watch};
use crate::state::Replicated;
use crate::state::command::{self as commands, Command, PutTool, Reply, Tool};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_through_any_node_is_applied_on_all() {
    let site = Site::new(3);
    let nodes = site.cluster().await;
    for node in &nodes {
        let index = node.write("somewhere").await;
        assert!(node.handle.applied() >= index, "the writer reads its own write");
        for other in &nodes {
            timeout(LONG, other.handle.until_applied(index)).await.expect("applied");
        }
    }
    let hashes: Vec<_> = nodes.iter().map(|node| node.handle.state_hash().expect("hash")).collect();
    assert!(hashes.windows(2).all(|pair| pair[0] == pair[1]));
    stop_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_gets_a_lease_and_barriers_complete() {
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
async fn leader_loss_elects_another_and_loses_nothing() {
    let site = Site::new(3);
    let mut nodes = site.cluster().await;
    let before = follower(&nodes).write("before").await;
    let gone = leader(&nodes).handle.node_id();
    let at = nodes.iter().position(|node| node.handle.node_id() == gone).expect("there");
    nodes.remove(at).stop().await;
    let after = nodes[0].write("after").await;
    assert!(after > before);
    nodes[1].handle.barrier(after).await.expect("the lease of the stopped leader has expired");
    let back = site.node(gone).await;
    timeout(LONG, back.handle.until_applied(after)).await.expect("it catches up");
    back.handle.fresh().await.expect("and has a lease again");
    nodes.push(back);
    stop_all(nodes).await;
}

/// A stopping leader transfers leadership, so that writes do not wait for an election.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_transfer_loses_no_write() {
    let site = Site::new(3);
    let nodes = site.cluster().await;
    let (old, other) = (leader(&nodes), follower(&nodes));
    let term = old.handle.term();
    assert!(other.handle.transfer_leadership().await, "another leads already");
    assert_eq!(old.handle.term(), term, "and goes on");
    let (transferred, written) =
        tokio::join!(old.handle.transfer_leadership(), other.handle.propose(command("now")));
    assert!(transferred);
    let mut last = written.expect("written before or after").index;
    let new = old.handle.leader().expect("a leader");
    assert_ne!(new, old.handle.node_id());
    for node in &nodes {
        last = last.max(node.write("after").await);
    }
    for node in &nodes {
        timeout(LONG, node.handle.until_applied(last)).await.expect("applied");
    }
    stop_all(nodes).await;
}

impl Node {
    /// Ticks the watchdog until the disk is in this state.
    async fn watch_until(&mut self, state: disk_watch::DiskState) {
        let is_so = self.handle.disk.state();
        let watched = async {
            while *is_so.borrow() != state {
                self.watchdog.tick();
                tokio::task::yield_now().await;
            }
        };
        timeout(LONG, watched).await.expect("noticed");
    }
}

/// Regression: a hanging disk under the leader stopped all writes and revocations for as long as it hung: the
/// entries were on the other disks, but the leader applied none of them, and its heartbeats went on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_with_a_hanging_disk_is_replaced() {
    let site = Site::new(3);
    let mut nodes = site.cluster().await;
    let id = leader(&nodes).handle.node_id();
    let at = nodes.iter().position(|node| node.handle.node_id() == id).expect("there");
    let mut hung = nodes.remove(at);
    let disk = Arc::clone(&hung.handle.disk);
    let held = disk.hold.lock().await;
    let written = {
        let (written, ()) = tokio::join!(nodes[0].handle.propose(command("meanwhile")), async {
            hung.watch_until(disk_watch::DiskState::Hangs).await;
        });
        written.expect("applied under another leader").index
    };
    assert_eq!(hung.handle.leader(), None, "it does not lead");
    assert_eq!(hung.handle.confirm_leadership().await, None, "it confirms no index");
    assert!(hung.handle.confirmed_index(true, None).await.is_none(), "it requests no lease");
    nodes[1].handle.barrier(written).await.expect("its lease has run out");
    assert!(hung.handle.applied() < written);

    drop(held);
    hung.watch_until(disk_watch::DiskState::Answers).await;
    timeout(LONG, hung.handle.until_applied(written)).await.expect("it catches up");
    timeout(LONG, hung.handle.until_this_node_does_not_lead()).await.expect("it follows");
    hung.handle.fresh().await.expect("a lease again");

    let held = disk.hold.lock().await;
    nodes[0].write("and again").await;
    hung.watch_until(disk_watch::DiskState::Lost).await;
    let reason = timeout(LONG, hung.handle.until_failed()).await.expect("it ends");
    assert!(reason.contains("disk"), "{reason}");
    drop(held);
    nodes.push(hung);
    stop_all(nodes).await;
}

/// Storage shared by all members may recover in a moment, and a stopped node has to be restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_with_a_hanging_disk_stays_while_there_is_no_leader() {
    let site = Site::new(1);
    let mut nodes = site.cluster().await;
    let disk = Arc::clone(&nodes[0].handle.disk);
    let held = disk.hold.lock().await;
    let handle = nodes[0].handle.clone();
    let (written, ()) = tokio::join!(handle.propose(command("later")), async {
        nodes[0].watch_until(disk_watch::DiskState::Lost).await;
        assert!(handle.until_failed().now_or_never().is_none(), "it stays");
        drop(held);
    });
    written.expect("applied");
    nodes[0].watch_until(disk_watch::DiskState::Answers).await;
    nodes[0].write("and more").await;
    drop(handle);
    stop_all(nodes).await;
}

/// Regression: every acknowledgement took a whole lease while any member was down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_member_delays_only_the_first_barrier() {
    let site = Site::new(3);
    let mut nodes = site.cluster().await;
    let leads = leader(&nodes).handle.node_id();
    let at = nodes.iter().position(|node| node.handle.node_id() != leads).expect("a follower");
    nodes.remove(at).stop().await;
    let first = nodes[0].write("revoked").await;
    nodes[0].handle.barrier(first).await.expect("its lease has run out");
    let begun = Clock::system().boot();
    for _ in 0..5 {
        let index = nodes[1].write("revoked").await;
        nodes[1].handle.barrier(index).await.expect("known");
    }
    let took = Clock::system().boot().saturating_sub(begun);
    assert!(took < 3 * limits::FRESHNESS_LEASE, "{took:?}");
    stop_all(nodes).await;
}

/// A lease depends on the node's own clock, which may stand still; `ReadIndex` mode does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_index_mode_calls_the_leader_per_request() {
    let site = Site { freshness: FreshnessMode::ReadIndex, ..Site::new(3) };
    let mut nodes = site.cluster().await;
    for node in &nodes {
        let index = node.write("revoked").await;
        node.handle.barrier(index).await.expect("known");
        for other in &nodes {
            let waits = other.handle.freshness().waits;
            other.handle.fresh().await.expect("the leader answers");
            assert!(other.handle.applied() >= index && other.handle.freshness().waits == waits + 1);
        }
    }
    let last = nodes.pop().expect("three");
    last.handle.fresh().await.expect("before the others stop");
    stop_all(nodes).await;
    assert_eq!(last.handle.fresh().await.err(), Some(crate::cluster::LeaseError::NoLease));
    last.stop().await;
}

/// A member without leases delays no barrier.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_member_without_leases_delays_no_barrier() {
    let site = Site { freshness: FreshnessMode::ReadIndex, ..Site::new(3) };
    let mut nodes = site.cluster().await;
    let leads = leader(&nodes).handle.node_id();
    let index = nodes[0].write("revoked").await;
    nodes[0].handle.barrier(index).await.expect("the leader is not new any more");
    let at = nodes.iter().position(|node| node.handle.node_id() != leads).expect("a follower");
    nodes.remove(at).stop().await;
    let begun = Clock::system().boot();
    let index = nodes[0].write("revoked").await;
    nodes[0].handle.barrier(index).await.expect("known");
    let took = Clock::system().boot().saturating_sub(begun);
    assert!(took < limits::FRESHNESS_LEASE * 3 / 4, "{took:?}");
    stop_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_writes_and_leases_fail() {
    let site = Site::new(3);
    let mut nodes = site.cluster().await;
    let last = nodes.pop().expect("three");
    stop_all(nodes).await;
    let refused = last.handle.propose(command("alone")).await.expect_err("alone");
    assert!(
        matches!(refused, crate::cluster::Error::NoLeader | crate::cluster::Error::OutcomeUnknown),
        "{refused}"
    );
    assert_eq!(last.handle.fresh().await.err(), Some(crate::cluster::LeaseError::NoLease));
    last.stop().await;
}

/// No other leader is known, so only the timeout ends the wait. Regression: the error stated that nothing was
/// proposed, and the audit dropped entries that were applied all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proposal_without_a_quorum_has_unknown_outcome() {
    let site = Site::new(3);
    let nodes = site.cluster().await;
    let leads = leader(&nodes).handle.node_id();
    let (mut leads, others): (Vec<_>, Vec<_>) =
        nodes.into_iter().partition(|node| node.handle.node_id() == leads);
    let gone: Vec<u64> = others.iter().map(|node| node.handle.node_id()).collect();
    stop_all(others).await;
    let before = leads[0].handle.applied();
    let unknown = leads[0].handle.propose(command("uncertain")).await.expect_err("alone");
    assert_eq!(unknown, crate::cluster::Error::OutcomeUnknown);
    for id in gone {
        leads.push(site.node(id).await);
    }
    timeout(LONG, leads[0].handle.until_applied(before + 1)).await.expect("applied later");
    stop_all(leads).await;
}

/// Regression: commands for an unreachable leader delayed all others of the node, each by a connection
/// timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_commands_do_not_delay_others() {
    let site = Site::new(3);
    let nodes = site.cluster().await;
    let (leads, other) = (leader(&nodes), follower(&nodes));
    let path = format!("node/{}", other.handle.node_id());
    let as_other = (other.handle.node_id(), other.disk_id());
    let life = other.handle.channels.local.life;
    let caller = site.caller_in(&path, as_other, leads.handle.cluster_id(), life);
    let (forwarder, work) = Forwarder::new(Arc::new(caller.channels), Clock::system());
    let submission = |sequence| Submission {
        proposer: ProposerId::from_bytes([3; 16]),
        sequence,
        low_watermark: 1,
        command: command("forwarded"),
    };
    let until = Clock::system().boot() + LONG;
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let nobody = MemberRecord { address: silent.local_addr().expect("address").to_string(), disk_id: rand() };
    for sequence in 1..=50 {
        let abandoned = forwarder.submit((9, nobody.clone()), submission(sequence), until).now_or_never();
        assert!(abandoned.is_none());
    }
    let mut tasks = JoinSet::new();
    tasks.spawn(work);
    let id = leads.handle.node_id();
    let member = MemberRecord { address: site.members[&id].clone(), disk_id: leads.disk_id() };
    let submitted = forwarder.submit((id, member), submission(51), until);
    let outcome = timeout(10 * limits::PEER_CONNECT_TIMEOUT, submitted).await.expect("at once");
    outcome.expect("applied");
    tasks.shutdown().await;
    stop_all(nodes).await;
}

/// Replaces the tool's description, so that each application increases its revision.
fn replace(description: String) -> Bytes {
    let tool = Tool { tool_id: "counter".to_owned(), description: Some(description), ..Tool::default() };
    commands::encode(Command::PutTool(PutTool {
        tool: Some(tool),
        replaces: true,
        is_operator: true,
        ..PutTool::default()
    }))
}

/// Commands of the followers are in flight when the leader stops: those committed and not answered are proposed again
/// to its successor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_in_flight_at_a_leader_change_apply_once() {
    const ROUNDS: usize = 5;
    let site = Site::new(3);
    let node = async |id: u64| site.node_with(id, &site.members, Replicated::default()).await;
    let mut nodes = Vec::new();
    for id in 1..=3 {
        nodes.push(node(id).await);
    }
    for node in &nodes {
        node.recovered().await;
    }
    let revision = |reply: &Bytes| match commands::decode_reply(reply).expect("a reply").outcome {
        Reply::Tool(written) => written.row.and_then(|row| row.version).expect("a version").revision,
        other => panic!("{other:?}"),
    };
    let mut revisions = BTreeSet::new();
    for round in 0..ROUNDS {
        let id = leader(&nodes).handle.node_id();
        let at = nodes.iter().position(|node| node.handle.node_id() == id).expect("there");
        let gone = nodes.remove(at);
        let (over, is_over) = tokio::sync::watch::channel(false);
        let (results, mut outcomes) = tokio::sync::mpsc::unbounded_channel();
        let mut writers = JoinSet::new();
        for follower in &nodes {
            for writer in 0..8 {
                let (handle, results, is_over) = (follower.handle.clone(), results.clone(), is_over.clone());
                writers.spawn(async move {
                    for number in 0.. {
                        if *is_over.borrow() {
                            return;
                        }
                        let name = format!("{round} {} {writer} {number}", handle.node_id());
                        drop(results.send(handle.propose(replace(name)).await));
                    }
                });
            }
        }
        drop(results);
        let mut take = |outcome: Result<crate::cluster::AppliedCommand, crate::cluster::Error>| {
            let reply = outcome.expect("the successor applies it").reply;
            assert!(revisions.insert(revision(&reply)), "{} was returned twice", revision(&reply));
        };
        for _ in 0..100 {
            take(outcomes.recv().await.expect("writers"));
        }
        gone.stop().await;
        for _ in 0..100 {
            take(outcomes.recv().await.expect("writers"));
        }
        over.send_replace(true);
        while let Some(outcome) = outcomes.recv().await {
            take(outcome);
        }
        writers.shutdown().await;
        nodes.push(node(id).await);
        nodes.last().expect("there").recovered().await;
    }
    // Every proposal was answered, so each revision but this one was returned once.
    let last = nodes[0].handle.propose(replace("the last".to_owned())).await.expect("applied");
    assert_eq!(revision(&last.reply), revisions.len() as u64 + 1, "a command was applied twice");
    for node in &nodes {
        timeout(LONG, node.handle.until_applied(last.index)).await.expect("applied");
    }
    let hashes: Vec<_> = nodes.iter().map(|node| node.handle.state_hash().expect("hash")).collect();
    assert!(hashes.windows(2).all(|pair| pair[0] == pair[1]));
    stop_all(nodes).await;
}

/// The current certificate of a node.
async fn shown(tls: &Tls, address: &str) -> Vec<u8> {
    let socket = tokio::net::TcpStream::connect(address).await.expect("connects");
    let name = ServerName::try_from("node").expect("a name");
    let stream = tls.connector().connect(name, socket).await.expect("a handshake");
    stream.get_ref().1.peer_certificates().expect("certificates")[0].to_vec()
}

/// CA rotation: trusted beside the old one, used, trusted alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ca_rotation_needs_no_restart_and_loses_nothing() {
    let site = Site::new(3);
    let nodes = site.cluster().await;
    let second = ca("the second");
    let trust = |name: &str, cas: &str| write_private(&site.directory.path().join(format!("{name}.ca")), cas);
    let both = format!("{}{}", site.ca.pem(), second.pem());
    let as_node = |name: &str, ca: &CertifiedIssuer<'static, KeyPair>| {
        let files = site.files(name, "node/9", ca);
        trust(name, &both);
        let metrics = Metrics::new().expect("metrics");
        Tls::load(files, RemoteEnd::Peers, Clock::system(), metrics).expect("TLS")
    };
    let (old, new) = (as_node("old", &site.ca), as_node("new", &second));
    let is_admitted = async |tls: &Tls, id: u64| {
        let expected = format!("spiffe://{TRUST_DOMAIN}/node/{id}");
        let mut connection = connection::connect(tls, &site.members[&id], &expected).await.ok()?;
        // With TLS 1.3 the refusal arrives after the client's handshake; an admitted connection gets HTTP/2 settings.
        let mut byte = [0; 1];
        let read = tokio::io::AsyncReadExt::read(&mut connection, &mut byte);
        timeout(LONG, read).await.ok()?.ok().filter(|bytes| *bytes == 1)
    };
    // Every write succeeds until the condition holds.
    let mut writes = 0;
    macro_rules! until {
        ($is_so:expr) => {
            let begun = Clock::system().boot();
            while !$is_so {
                nodes[writes % 3].write("meanwhile").await;
                writes += 1;
                assert!(Clock::system().boot() < begun + LONG, "not taken up");
            }
        };
    }
    assert!(is_admitted(&new, 1).await.is_none());
    for id in 1..=3 {
        trust(&format!("node-{id}"), &both);
    }
    for id in 1..=3 {
        until!(is_admitted(&new, id).await.is_some());
    }
    for id in 1..=3 {
        let before = shown(&old, &site.members[&id]).await;
        site.files(&format!("node-{id}"), &format!("node/{id}"), &second);
        trust(&format!("node-{id}"), &both);
        until!(shown(&old, &site.members[&id]).await != before);
    }
    for id in 1..=3 {
        trust(&format!("node-{id}"), &second.pem());
    }
    for id in 1..=3 {
        until!(is_admitted(&old, id).await.is_none());
        assert!(is_admitted(&new, id).await.is_some());
    }
    let last = nodes[0].write("with the second alone").await;
    for node in &nodes {
        timeout(LONG, node.handle.until_applied(last)).await.expect("all are connected");
        node.handle.fresh().await.expect("a lease");
    }
    stop_all(nodes).await;
}
