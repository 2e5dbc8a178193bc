//! Hostile and malformed calls against a running node.

use futures::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Request;

use super::*;
use crate::cluster::codec::proto as log_proto;

pub(super) fn log_id(term: u64, node_id: u64, index: u64) -> log_proto::LogId {
    log_proto::LogId { leader: Some(log_proto::LeaderId { term, node_id }), index }
}

pub(super) fn vote(term: u64, node_id: u64, committed: bool) -> log_proto::Vote {
    log_proto::Vote { leader: Some(log_proto::LeaderId { term, node_id }), committed }
}

pub(super) fn candidate(term: u64, node_id: u64) -> proto::VoteRequest {
    let last_log_id = Some(log_id(term.saturating_sub(1), node_id, 1_000));
    proto::VoteRequest { vote: Some(vote(term, node_id, false)), last_log_id, leadership_transfer: false }
}

/// A command of an unknown proposer.
fn forwarded(sequence: u64, command: Bytes) -> proto::Forwarded {
    let origin = Bytes::from_static(&[1; 16]);
    proto::Forwarded { origin, sequence, low_watermark: sequence.min(1), command, patience_millis: 5000 }
}

pub(super) fn state_hash(index: u64, bytes: usize) -> proto::StateHashRequest {
    proto::StateHashRequest { index, hash: vec![7; bytes].into() }
}

/// A cluster of three in which the test plays one follower, with its certificate, node id and disk identity.
pub(super) struct Played {
    site: Site,
    pub(super) nodes: Vec<Node>,
    /// Calls in the name of the played follower.
    caller: Caller,
    victim: u64,
    pub(super) node_id: u64,
}

impl Played {
    pub(super) async fn begin() -> Self {
        let site = Site::new(3);
        let mut nodes = site.cluster().await;
        nodes[0].write("something").await;
        let leader = leader(&nodes).handle.node_id();
        let played = (1..=3).find(|id| *id != leader).expect("a follower");
        let at = nodes.iter().position(|node| node.handle.node_id() == played).expect("there");
        let gone = nodes.remove(at);
        let disk = gone.disk_id();
        gone.stop().await;
        let cluster_id = nodes[0].handle.cluster_id();
        let caller = site.caller(&format!("node/{played}"), (played, disk), cluster_id);
        Self { site, victim: nodes[0].handle.node_id(), nodes, caller, node_id: played }
    }

    pub(super) fn client(&self) -> channels::Client {
        let disk = self.nodes[0].disk_id();
        self.site.client_of(&self.caller, self.victim, Some(disk))
    }

    /// Checks that the cluster works as before.
    pub(super) async fn end(self) {
        let index = timeout(LONG, self.nodes[1].write("afterwards")).await.expect("it goes on");
        timeout(LONG, self.nodes[0].handle.until_applied(index)).await.expect("both");
        let hashes: Vec<_> = self.nodes.iter().map(|node| node.handle.state_hash().expect("hash")).collect();
        assert_eq!(hashes[0], hashes[1]);
        stop_all(self.nodes).await;
    }
}

#[track_caller]
pub(super) fn assert_refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, text: &str) {
    let status = answer.expect_err("refused");
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(text), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_of_another_identity_is_rejected() {
    let played = Played::begin().await;
    let (site, victim) = (&played.site, &played.nodes[0]);
    let cluster_id = victim.handle.cluster_id();
    let other = (1..=3).find(|id| *id != played.node_id && *id != played.victim).expect("the third");
    let disk_of_other = victim.handle.disk_of(other).expect("a member");
    // API callers and malformed node paths: rejected before any call.
    for path in ["gateway", "node", "node/", "node/01", "node/+1", "a/node/1", "node/1/a", "nodes/1"] {
        let caller = site.caller(path, (other, disk_of_other), cluster_id);
        let client = site.client_of(&caller, played.victim, Some(victim.disk_id()));
        let answer = client.peer().hello(client.request(proto::HelloRequest::default())).await;
        let status = answer.expect_err("nobody answers");
        assert!(status.code() != Code::PermissionDenied, "{path}: {status}");
    }
    // Another member's certificate, and a non-member's, with a member's stated id.
    for path in [&format!("node/{}", played.node_id), "node/9"] {
        let caller = site.caller(path, (other, disk_of_other), cluster_id);
        let client = site.client_of(&caller, played.victim, Some(victim.disk_id()));
        let answer = client.peer().vote(client.request(candidate(9, other))).await;
        assert_refused(answer, Code::PermissionDenied, "the certificate names");
        let answer = client.peer().hello(client.request(proto::HelloRequest::default())).await;
        assert_refused(answer, Code::PermissionDenied, "the certificate names");
        let barrier = client.peer().barrier(client.request(proto::BarrierRequest::default())).await;
        assert_refused(barrier, Code::PermissionDenied, "the certificate names");
    }
    played.end().await;
}

/// Regression: a node certified by the cluster's CA learned the cluster id and disk from `Hello`. With these
/// it voted, appended, proposed and took leases as if it were a member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certified_non_member_is_rejected_on_every_call() {
    let played = Played::begin().await;
    let (site, leads) = (&played.site, leader(&played.nodes));
    let caller = site.caller("node/9", (9, rand()), Some(rand()));
    let client = site.client_of(&caller, leads.handle.node_id(), Some(leads.disk_id()));
    let mut peer = client.peer();
    let hello = peer.hello(client.request(proto::HelloRequest::default())).await;
    let known = hello.expect("Hello is open to non-members").into_inner();
    assert!(known.cluster_id.is_empty(), "the cluster id admits Raft messages");
    let text = "this node belongs to cluster";
    let refused = Code::FailedPrecondition;
    let asked = candidate(leads.handle.term() + 1, 9);
    assert_refused(peer.vote(client.request(asked)).await, refused, text);
    assert_refused(peer.pre_vote(client.request(asked)).await, refused, text);
    let append = proto::AppendRequest {
        vote: Some(vote(leads.handle.term() + 1, 9, true)),
        prev_log_id: None,
        entries: Vec::new(),
        leader_commit: None,
        memories: Vec::new(),
    };
    assert_refused(peer.append(client.request(append.clone())).await, refused, text);
    let appends = futures::stream::iter([append]);
    assert_refused(peer.append_stream(client.request(appends)).await.map(drop), refused, text);
    let parts = futures::stream::iter([proto::SnapshotPart::default()]);
    assert_refused(peer.install_snapshot(client.request(parts)).await, refused, text);
    assert_member_calls_refused(&client, text).await;
    // With the cluster id, which a join token carries, it may still not act as a member.
    let caller = site.caller("node/9", (9, rand()), leads.handle.cluster_id());
    let client = site.client_of(&caller, leads.handle.node_id(), Some(leads.disk_id()));
    assert_member_calls_refused(&client, "node 9 is not a member").await;
    played.end().await;
}

async fn assert_member_calls_refused(client: &channels::Client, text: &str) {
    let (mut peer, refused) = (client.peer(), Code::FailedPrecondition);
    let read = proto::ReadIndexRequest { for_lease: true, reader_call: None };
    assert_refused(peer.read_index(client.request(read)).await, refused, text);
    assert_refused(peer.applied(client.request(proto::AppliedRequest { index: 1 })).await, refused, text);
    assert_refused(peer.barrier(client.request(proto::BarrierRequest::default())).await, refused, text);
    let commands = futures::stream::iter([forwarded(1, command("forged"))]);
    assert_refused(peer.forward(client.request(commands)).await.map(drop), refused, text);
    assert_refused(peer.observe(client.request(proto::ObserveRequest {})).await.map(drop), refused, text);
    assert_refused(peer.state_hash(client.request(state_hash(1, 32))).await, refused, text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_of_another_ca_is_rejected() {
    let played = Played::begin().await;
    let site = &played.site;
    let files = site.files("foreign", "node/2", &ca("another"));
    let metrics = Metrics::new().expect("metrics");
    let tls = Tls::load(files, RemoteEnd::Peers, Clock::system(), metrics).expect("TLS");
    let expected = format!("spiffe://{TRUST_DOMAIN}/node/{}", played.victim);
    // With TLS 1.3 the refusal arrives after the client's handshake: no response follows.
    let mut connection =
        connection::connect(&tls, &site.members[&played.victim], &expected).await.expect("half a handshake");
    let read = timeout(LONG, connection.read(&mut [0; 1])).await.expect("it ends");
    assert!(read.is_err() || read.is_ok_and(|bytes| bytes == 0));
    played.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caller_with_another_cluster_or_disk_is_rejected() {
    let played = Played::begin().await;
    let (site, victim) = (&played.site, &played.nodes[0]);
    let path = format!("node/{}", played.node_id);
    let known = victim.handle.disk_of(played.node_id).expect("a member");
    let (ours, here) = (victim.handle.cluster_id(), Some(victim.disk_id()));
    for (disk, cluster_id, to_disk, text) in [
        (known, Some(rand()), here, "this node belongs to cluster"),
        (rand(), ours, here, "another disk for node"),
        (known, ours, Some(rand()), "has another disk than the cluster expects"),
        (known, None, here, "the call metadata is missing"),
        (known, ours, None, "the call metadata is missing"),
    ] {
        let caller = site.caller(&path, (played.node_id, disk), cluster_id);
        let client = site.client_of(&caller, played.victim, to_disk);
        let answer = client.peer().vote(client.request(candidate(9, played.node_id))).await;
        let status = answer.expect_err("refused");
        assert!(status.message().contains(text), "{status}: {text}");
    }
    // Stated for another node.
    let client = played.client();
    let mut request = Request::new(candidate(9, played.node_id));
    let life = played.caller.channels.local.life;
    let (from, from_disk) = (played.node_id, known);
    let call = CallMetadata {
        cluster_id: ours,
        from,
        from_disk,
        to: 7,
        to_disk: here,
        life,
        known: None,
        feature_level: 0,
    };
    call.write(request.metadata_mut());
    assert_refused(client.peer().vote(request).await, Code::FailedPrecondition, "the call is for node 7");
    let unstated = client.peer().vote(Request::new(candidate(9, played.node_id))).await;
    assert_refused(unstated, Code::InvalidArgument, "the call metadata is missing");
    played.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_terms_and_votes_are_rejected() {
    let played = Played::begin().await;
    let (client, me) = (played.client(), played.node_id);
    let third = (1..=3).find(|id| *id != me && *id != played.victim).expect("the third");
    for (request, text) in [
        (candidate(u64::MAX, me), "ahead of the current term"),
        (candidate(limits::TERM_AHEAD_MAX + 1_000, me), "ahead of the current term"),
        (candidate(9, third), "the vote names node"),
        (proto::VoteRequest { vote: Some(vote(9, me, true)), ..candidate(9, me) }, "the vote is"),
        (proto::VoteRequest { vote: None, ..candidate(9, me) }, "vote is missing"),
        (
            proto::VoteRequest { last_log_id: Some(log_id(9, me, u64::MAX)), ..candidate(9, me) },
            "is too large",
        ),
    ] {
        let answer = client.peer().vote(client.request(request)).await;
        assert_refused(answer, Code::InvalidArgument, text);
        let answer = client.peer().pre_vote(client.request(request)).await;
        assert_refused(answer, Code::InvalidArgument, text);
    }
    // A leader of a past term gets `HigherVote`, and changes nothing.
    let before = played.nodes[0].handle.term();
    let append = proto::AppendRequest {
        vote: Some(vote(0, me, true)),
        prev_log_id: None,
        entries: Vec::new(),
        leader_commit: None,
        memories: Vec::new(),
    };
    let answer = client.peer().append(client.request(append)).await.expect("an answer").into_inner();
    assert!(matches!(answer.outcome, Some(proto::append_response::Outcome::HigherVote(_))), "{answer:?}");
    assert_eq!(played.nodes[0].handle.term(), before);
    played.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_with_a_gap_or_reordered_are_rejected() {
    let played = Played::begin().await;
    let (client, me) = (played.client(), played.node_id);
    let term = played.nodes[0].handle.term() + 1;
    let entry = |term: u64, index: u64| log_proto::Entry {
        log_id: Some(log_id(term, me, index)),
        payload: Some(log_proto::entry::Payload::Commands(Bytes::from_static(b"forged"))),
    };
    let append = |prev: Option<u64>, entries: Vec<log_proto::Entry>| proto::AppendRequest {
        vote: Some(vote(term, me, true)),
        prev_log_id: prev.map(|index| log_id(term, me, index)),
        entries,
        leader_commit: None,
        memories: Vec::new(),
    };
    for (request, text) in [
        (append(Some(1_000), vec![entry(term, 1_002)]), "log entry 1002 found where entry 1001 should be"),
        (append(Some(1_000), vec![entry(term, 1_001), entry(term, 1_003)]), "entry 1003 found where"),
        (append(Some(1_000), vec![entry(term, 1_001), entry(term, 1_001)]), "entry 1001 found where"),
        (append(None, vec![entry(term, 7)]), "entry 7 found where entry 0 should be"),
        (append(Some(1_000), vec![entry(term + 1, 1_001)]), "impossible term"),
        (append(Some(1_000), vec![entry(term - 1, 1_001)]), "impossible term"),
        (
            proto::AppendRequest { leader_commit: Some(log_id(term + 1, me, 1)), ..append(None, Vec::new()) },
            "impossible term",
        ),
        (append(Some(1_000), vec![log_proto::Entry { log_id: None, payload: None }]), "log id is missing"),
    ] {
        let answer = client.peer().append(client.request(request.clone())).await;
        assert_refused(answer, Code::InvalidArgument, text);
        let stream = client.peer().append_stream(client.request(futures::stream::iter([request]))).await;
        let answer = stream.expect("a stream").into_inner().next().await.expect("an answer");
        assert_refused(answer, Code::InvalidArgument, text);
    }
    played.end().await;
}

/// Each could continue some log, but not this node's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_without_their_predecessor_conflict() {
    let played = Played::begin().await;
    let (client, me) = (played.client(), played.node_id);
    // No entry follows it in the log: a committed one would be a contradiction.
    let before = played.nodes[1].write("before").await;
    timeout(LONG, played.nodes[0].handle.until_applied(before)).await.expect("applied");
    let term = played.nodes[0].handle.term() + 1;
    for (at_term, at) in [(term, before + 1_000), (term, before + 1), (term - 1, before + 500)] {
        let entry = log_proto::Entry {
            log_id: Some(log_id(term, me, at + 1)),
            payload: Some(log_proto::entry::Payload::Commands(command("forged"))),
        };
        let append = proto::AppendRequest {
            vote: Some(vote(term, me, true)),
            prev_log_id: Some(log_id(at_term, me, at)),
            entries: vec![entry],
            // A follower believes the commit index of a leader, and would wait for the entries up to it.
            leader_commit: None,
            memories: Vec::new(),
        };
        let answer = client.peer().append(client.request(append)).await.expect("an answer").into_inner();
        let outcome = answer.outcome.expect("an outcome");
        assert!(matches!(outcome, proto::append_response::Outcome::Conflict(_)), "{at}: {outcome:?}");
        assert_eq!(played.nodes[0].handle.applied(), before);
    }
    played.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_message_is_rejected() {
    let played = Played::begin().await;
    let client = played.client();
    let entry = log_proto::Entry {
        log_id: Some(log_id(1, played.node_id, 0)),
        payload: Some(log_proto::entry::Payload::Commands(
            vec![0; limits::PEER_MESSAGE_BYTES_MAX + 1].into(),
        )),
    };
    let append = proto::AppendRequest {
        vote: Some(vote(1, played.node_id, true)),
        prev_log_id: None,
        entries: vec![entry],
        leader_commit: None,
        memories: Vec::new(),
    };
    // The client's own limit is lifted.
    let mut peer = client.peer().max_encoding_message_size(usize::MAX);
    assert_refused(peer.append(client.request(append)).await, Code::OutOfRange, "");
    played.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_with_invalid_ids_are_rejected() {
    let played = Played::begin().await;
    let client = played.client();
    let with = |origin: &[u8], sequence, low_watermark| proto::Forwarded {
        origin: Bytes::copy_from_slice(origin),
        low_watermark,
        ..forwarded(sequence, command("forged"))
    };
    for message in [
        with(&[1; 15], 1, 1),
        with(&[], 1, 1),
        with(&[1; 16], 0, 0),
        with(&[1; 16], 1, 0),
        with(&[1; 16], 1, 2),
    ] {
        let stream = client.peer().forward(client.request(futures::stream::iter([message]))).await;
        let answer = stream.expect("a stream").into_inner().next().await.expect("an answer");
        assert_eq!(answer.expect_err("refused").code(), Code::InvalidArgument);
    }
    played.end().await;
}

/// A newer node may forward one during an upgrade. Regression: it ended the stream, and the outcomes of all
/// commands in flight were lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_command_is_refused_without_ending_the_stream() {
    use proto::proposed::Outcome::{Done, Refused};
    let played = Played::begin().await;
    let leads = leader(&played.nodes);
    let client = played.site.client_of(&played.caller, leads.handle.node_id(), Some(leads.disk_id()));
    let commands = [
        forwarded(1, command("one")),
        forwarded(2, Bytes::from_static(UNKNOWN)),
        forwarded(3, command("three")),
    ];
    let answers = client.peer().forward(client.request(futures::stream::iter(commands))).await;
    let answers: Vec<_> = answers.expect("a stream").into_inner().collect().await;
    let mut answers: Vec<_> = answers.into_iter().map(|answer| answer.expect("an answer")).collect();
    answers.sort_by_key(|answer| answer.sequence);
    let unknown = i32::from(proto::Refusal::UnknownCommand);
    match &answers[..] {
        [one, two, three] => {
            assert!(matches!((&one.outcome, &three.outcome), (Some(Done(_)), Some(Done(_)))), "{answers:?}");
            assert_eq!(two.outcome, Some(Refused(unknown)));
        }
        other => panic!("{other:?}"),
    }
    played.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_time_out_and_block_no_node() {
    let played = Played::begin().await;
    // Opens every connection that a write needs.
    for node in &played.nodes {
        node.write("before").await;
    }
    let at = address(&played.site.members[&played.victim]);
    let mut silent = Vec::new();
    for _ in 0..limits::PEER_HANDSHAKES_PER_ADDRESS_MAX {
        silent.push(TcpStream::connect(at).await.expect("connects"));
    }
    // Connections beyond the limit are closed at once.
    let mut beyond = TcpStream::connect(at).await.expect("connects");
    let read = timeout(LONG, beyond.read(&mut [0; 1])).await.expect("it ends");
    assert!(read.is_err() || read.is_ok_and(|bytes| bytes == 0));
    // Members are connected already, with permits of their own.
    timeout(LONG, played.nodes[1].write("meanwhile")).await.expect("it goes on");
    // An incomplete handshake.
    silent[0].write_all(&[0x16, 0x03, 0x01]).await.expect("writes");
    for mut connection in silent {
        let read = timeout(LONG, connection.read(&mut [0; 1])).await.expect("it times out");
        assert!(read.is_err() || read.is_ok_and(|bytes| bytes == 0));
    }
    let client = played.client();
    client
        .peer()
        .hello(client.request(proto::HelloRequest::default()))
        .await
        .expect("a permit is free again");
    played.end().await;
}

/// The other end is gone without closing: it answers no ping.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connection_is_detected_by_the_client() {
    let played = Played::begin().await;
    let to = address(&played.site.members[&played.victim]);
    // A proxy that can stop forwarding without closing.
    let between = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = between.local_addr().expect("address").to_string();
    let (cut, is_cut) = tokio::sync::watch::channel(false);
    let mut wires = JoinSet::new();
    wires.spawn(async move {
        let mut held = JoinSet::new();
        while let Ok((near, _)) = between.accept().await {
            let mut is_cut = is_cut.clone();
            held.spawn(async move {
                let mut far = TcpStream::connect(to).await.expect("connects");
                let mut near = near;
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                    // Held open, and not read.
                    () = async { drop(is_cut.wait_for(|cut| *cut).await) } => {}
                }
                std::future::pending::<()>().await;
            });
        }
    });
    let disk = played.nodes[0].disk_id();
    let client = played.caller.channels.own(played.victim, &at, Some(disk)).expect("a way");
    client.peer().applied(client.request(proto::AppliedRequest { index: 1 })).await.expect("an answer");
    cut.send_replace(true);
    let asked = client.peer().applied(client.request(proto::AppliedRequest { index: 1 })).await;
    assert!(asked.is_err(), "the call ends");
    wires.shutdown().await;
    played.end().await;
}

/// Regression: when the log of a leader of a later term differed at an entry that was committed here,
/// openraft removed the committed entry without a message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_over_a_committed_entry_stops_the_node() {
    let mut played = Played::begin().await;
    let me = played.node_id;
    let victim = played.nodes.remove(0);
    let (term, applied) = (victim.handle.term() + 1, victim.handle.applied());
    let kept = victim.handle.applied_log_id().expect("readable").expect("an entry");
    let append = proto::AppendRequest {
        vote: Some(vote(term, me, true)),
        prev_log_id: Some(log_id(term, me, applied)),
        entries: Vec::new(),
        leader_commit: None,
        memories: Vec::new(),
    };
    let client = played.site.client_of(&played.caller, played.victim, Some(victim.disk_id()));
    let refused = client.peer().append(client.request(append)).await;
    assert_refused(refused, Code::FailedPrecondition, &format!("log entry {kept}, committed on node"));
    let reason = timeout(LONG, victim.handle.until_failed()).await.expect("it stops");
    assert!(reason.contains(&kept.to_string()) && reason.contains("operator"), "{reason}");
    // The leader learns it from the rejected call.
    let record = played.caller.channels.local.disk_records.of((played.victim, victim.disk_id()));
    assert_eq!(record.and_then(|record| record.contradiction), Some(kept));
    victim.stop().await;
    let again = played.site.node(played.victim).await;
    assert!(again.handle.applied() >= applied, "no entry was removed");
    played.nodes.insert(0, again);
    stop_all(played.nodes).await;
}
