//! What a peer may not do, each tried against a running node.

use futures::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Request;

use super::*;
use crate::cluster::codec::proto as log_proto;

fn log_id(term: u64, node_id: u64, index: u64) -> log_proto::LogId {
    log_proto::LogId { leader: Some(log_proto::LeaderId { term, node_id }), index }
}

fn vote(term: u64, node_id: u64, committed: bool) -> log_proto::Vote {
    log_proto::Vote { leader: Some(log_proto::LeaderId { term, node_id }), committed }
}

fn candidate(term: u64, node_id: u64) -> proto::VoteRequest {
    let last_log_id = Some(log_id(term.saturating_sub(1), node_id, 1_000));
    proto::VoteRequest { vote: Some(vote(term, node_id, false)), last_log_id, leadership_transfer: false }
}

/// A command of a process that nobody has heard of.
fn forwarded(sequence: u64, command: Bytes) -> proto::Forwarded {
    let origin = Bytes::from_static(&[1; 16]);
    proto::Forwarded { origin, sequence, low_watermark: sequence.min(1), command, patience_millis: 0 }
}

/// A cluster of two whose second member is played by the test: it has its certificate, its id and its disk.
struct Played {
    site: Site,
    nodes: Vec<Node>,
    /// What the other follower would say.
    caller: Caller,
    victim: u64,
    node_id: u64,
}

impl Played {
    async fn begin() -> Self {
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

    fn client(&self) -> channels::Client {
        let disk = self.nodes[0].disk_id();
        self.site.client_of(&self.caller, self.victim, Some(disk))
    }

    /// The cluster goes on as if nothing had been said.
    async fn end(self) {
        let index = timeout(LONG, self.nodes[1].write("afterwards")).await.expect("it goes on");
        timeout(LONG, self.nodes[0].handle.until_applied(index)).await.expect("both");
        let hashes: Vec<_> = self.nodes.iter().map(|node| node.handle.state_hash().expect("hash")).collect();
        assert_eq!(hashes[0], hashes[1]);
        stop_all(self.nodes).await;
    }
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, text: &str) {
    let status = answer.expect_err("refused");
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(text), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_the_right_ca_with_another_identity_opens_nothing() {
    let played = Played::begin().await;
    let (site, victim) = (&played.site, &played.nodes[0]);
    let cluster_id = victim.handle.cluster_id();
    let other = (1..=3).find(|id| *id != played.node_id && *id != played.victim).expect("the third");
    let disk_of_other = victim.handle.disk_of(other).expect("a member");
    // Callers of the API, and what looks like a node: they do not come so far that a call is looked at.
    for path in ["gateway", "node", "node/", "node/01", "node/+1", "a/node/1", "node/1/a", "nodes/1"] {
        let caller = site.caller(path, (other, disk_of_other), cluster_id);
        let client = site.client_of(&caller, played.victim, Some(victim.disk_id()));
        let answer = client.peer().hello(client.request(proto::HelloRequest::default())).await;
        let status = answer.expect_err("nobody answers");
        assert!(status.code() != Code::PermissionDenied, "{path}: {status}");
    }
    // The node whose name it does not say; one that is no member, in a member's name.
    for path in [&format!("node/{}", played.node_id), "node/9"] {
        let caller = site.caller(path, (other, disk_of_other), cluster_id);
        let client = site.client_of(&caller, played.victim, Some(victim.disk_id()));
        let answer = client.peer().vote(client.request(candidate(9, other))).await;
        assert_refused(answer, Code::PermissionDenied, "the certificate is that of");
        let answer = client.peer().hello(client.request(proto::HelloRequest::default())).await;
        assert_refused(answer, Code::PermissionDenied, "the certificate is that of");
        let barrier = client.peer().barrier(client.request(proto::BarrierRequest { index: 1 })).await;
        assert_refused(barrier, Code::PermissionDenied, "the certificate is that of");
    }
    played.end().await;
}

/// The cluster's CA has signed for it, and `Hello` tells it which cluster this is and on which disk: with that it voted,
/// appended, wrote and asked for leases as if it were a member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_no_member_is_refused_whatever_it_knows() {
    let played = Played::begin().await;
    let (site, leads) = (&played.site, leader(&played.nodes));
    let caller = site.caller("node/9", (9, rand()), leads.handle.cluster_id());
    let client = site.client_of(&caller, leads.handle.node_id(), Some(leads.disk_id()));
    let mut peer = client.peer();
    peer.hello(client.request(proto::HelloRequest::default())).await.expect("it may ask who is there");
    let text = "node 9 is not a member";
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
    assert_refused(
        peer.read_index(client.request(proto::ReadIndexRequest { for_lease: true })).await,
        refused,
        text,
    );
    assert_refused(peer.applied(client.request(proto::AppliedRequest { index: 1 })).await, refused, text);
    assert_refused(peer.barrier(client.request(proto::BarrierRequest { index: 1 })).await, refused, text);
    let commands = futures::stream::iter([forwarded(1, command("forged"))]);
    assert_refused(peer.forward(client.request(commands)).await.map(drop), refused, text);
    played.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_another_ca_makes_no_connection() {
    let played = Played::begin().await;
    let site = &played.site;
    let files = site.files("foreign", "node/2", &ca("another"));
    let metrics = Metrics::new().expect("metrics");
    let tls = Tls::load(files, RemoteEnd::Peers, Clock::system(), metrics).expect("TLS");
    let expected = format!("spiffe://{TRUST_DOMAIN}/node/{}", played.victim);
    // Over TLS 1.3 the refusal comes after our side of the handshake: nothing is answered.
    let mut connection =
        connection::connect(&tls, &site.members[&played.victim], &expected).await.expect("half a handshake");
    let read = timeout(LONG, connection.read(&mut [0; 1])).await.expect("it ends");
    assert!(read.is_err() || read.is_ok_and(|bytes| bytes == 0));
    played.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_cluster_or_on_another_disk_is_refused_with_an_explanation() {
    let played = Played::begin().await;
    let (site, victim) = (&played.site, &played.nodes[0]);
    let path = format!("node/{}", played.node_id);
    let known = victim.handle.disk_of(played.node_id).expect("a member");
    let (ours, here) = (victim.handle.cluster_id(), Some(victim.disk_id()));
    for (disk, cluster_id, to_disk, text) in [
        (known, Some(rand()), here, "this node is of cluster"),
        (rand(), ours, here, "by another disk"),
        (known, ours, Some(rand()), "has another disk than the cluster knows"),
        (known, None, here, "does not say who calls whom"),
        (known, ours, None, "does not say who calls whom"),
    ] {
        let caller = site.caller(&path, (played.node_id, disk), cluster_id);
        let client = site.client_of(&caller, played.victim, to_disk);
        let answer = client.peer().vote(client.request(candidate(9, played.node_id))).await;
        let status = answer.expect_err("refused");
        assert!(status.message().contains(text), "{status}: {text}");
    }
    // For another node, although it came here.
    let client = played.client();
    let mut request = Request::new(candidate(9, played.node_id));
    let life = played.caller.channels.this.life;
    let (from, from_disk) = (played.node_id, known);
    let call = Call { cluster_id: ours, from, from_disk, to: 7, to_disk: here, life, known: None };
    call.write(request.metadata_mut());
    assert_refused(client.peer().vote(request).await, Code::FailedPrecondition, "the call is for node 7");
    let unstated = client.peer().vote(Request::new(candidate(9, played.node_id))).await;
    assert_refused(unstated, Code::InvalidArgument, "does not say who calls whom");
    played.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_lies_about_its_term_is_refused() {
    let played = Played::begin().await;
    let (client, me) = (played.client(), played.node_id);
    let third = (1..=3).find(|id| *id != me && *id != played.victim).expect("the third");
    for (request, text) in [
        (candidate(u64::MAX, me), "ahead of ours"),
        (candidate(limits::TERM_AHEAD_MAX + 1_000, me), "ahead of ours"),
        (candidate(9, third), "the vote is that of node"),
        (proto::VoteRequest { vote: Some(vote(9, me, true)), ..candidate(9, me) }, "the vote is"),
        (proto::VoteRequest { vote: None, ..candidate(9, me) }, "vote is missing"),
        (
            proto::VoteRequest { last_log_id: Some(log_id(9, me, u64::MAX)), ..candidate(9, me) },
            "beyond any log",
        ),
    ] {
        let answer = client.peer().vote(client.request(request)).await;
        assert_refused(answer, Code::InvalidArgument, text);
        let answer = client.peer().pre_vote(client.request(request)).await;
        assert_refused(answer, Code::InvalidArgument, text);
    }
    // One that says it leads in a term of the past is told so, and nothing is taken from it.
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
async fn entries_with_a_gap_or_in_another_order_are_refused() {
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
        (append(Some(1_000), vec![entry(term, 1_002)]), "entry 1002 stands where entry 1001 should be"),
        (append(Some(1_000), vec![entry(term, 1_001), entry(term, 1_003)]), "entry 1003 stands where"),
        (append(Some(1_000), vec![entry(term, 1_001), entry(term, 1_001)]), "entry 1001 stands where"),
        (append(None, vec![entry(term, 7)]), "entry 7 stands where entry 0 should be"),
        (append(Some(1_000), vec![entry(term + 1, 1_001)]), "of another term"),
        (append(Some(1_000), vec![entry(term - 1, 1_001)]), "of another term"),
        (
            proto::AppendRequest { leader_commit: Some(log_id(term + 1, me, 1)), ..append(None, Vec::new()) },
            "of another term",
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

/// Each of them could follow on some log, but not on ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_that_follow_on_nothing_that_is_here_are_not_taken() {
    let played = Played::begin().await;
    let (client, me) = (played.client(), played.node_id);
    // Nothing is in the log behind it: an entry there, committed and not applied yet, would be a contradiction.
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
            leader_commit: Some(log_id(term, me, at + 1)),
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
async fn a_message_beyond_the_limit_is_refused() {
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
    // Our own side would not even send it.
    let mut peer = client.peer().max_encoding_message_size(usize::MAX);
    assert_refused(peer.append(client.request(append)).await, Code::OutOfRange, "");
    played.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_with_ids_that_cannot_be_are_refused() {
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

/// As a newer node forwards it while versions change. It ended the stream, and with it what was known of all that other
/// callers had under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_the_leader_does_not_know_is_refused_and_the_others_go_on() {
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
async fn connections_that_say_nothing_are_given_up_and_hold_up_nobody() {
    let played = Played::begin().await;
    // Every connection that a write takes is there.
    for node in &played.nodes {
        node.write("before").await;
    }
    let at = address(&played.site.members[&played.victim]);
    let mut silent = Vec::new();
    for _ in 0..limits::PEER_HANDSHAKES_OF_ADDRESS_MAX {
        silent.push(TcpStream::connect(at).await.expect("connects"));
    }
    // Whoever comes beyond as many as there may be is let go at once.
    let mut beyond = TcpStream::connect(at).await.expect("connects");
    let read = timeout(LONG, beyond.read(&mut [0; 1])).await.expect("it ends");
    assert!(read.is_err() || read.is_ok_and(|bytes| bytes == 0));
    // Members are connected already, and have places of their own.
    timeout(LONG, played.nodes[1].write("meanwhile")).await.expect("it goes on");
    // Half a handshake is none.
    silent[0].write_all(&[0x16, 0x03, 0x01]).await.expect("writes");
    for mut connection in silent {
        let read = timeout(LONG, connection.read(&mut [0; 1])).await.expect("it is given up");
        assert!(read.is_err() || read.is_ok_and(|bytes| bytes == 0));
    }
    let client = played.client();
    client.peer().hello(client.request(proto::HelloRequest::default())).await.expect("there is room again");
    played.end().await;
}

/// The other end is gone without a word: it answers no ping.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection_is_given_up_by_whoever_asks_over_it() {
    let played = Played::begin().await;
    let to = address(&played.site.members[&played.victim]);
    // A wire that can be cut without either end being told.
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
    assert!(asked.is_err(), "nobody answers, and nobody waits for ever");
    wires.shutdown().await;
    played.end().await;
}

/// A leader of a later term whose log has another entry where this node knows one to be committed: the library removed
/// the committed entry, and nothing said so.
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
    assert_refused(refused, Code::FailedPrecondition, &format!("entry {kept}, which node"));
    let reason = timeout(LONG, victim.handle.until_failed()).await.expect("it stops");
    assert!(reason.contains(&kept.to_string()) && reason.contains("operator"), "{reason}");
    // The leader has heard of it, from whatever it asked.
    let told = played.caller.channels.this.lives.of((played.victim, victim.disk_id()));
    assert_eq!(told.and_then(|told| told.contradiction), Some(kept));
    victim.stop().await;
    let again = played.site.node(played.victim).await;
    assert!(again.handle.applied() >= applied, "nothing was removed");
    played.nodes.insert(0, again);
    stop_all(played.nodes).await;
}
