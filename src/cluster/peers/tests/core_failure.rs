//! Calls to a node whose core has failed.

use futures::FutureExt as _;

use super::hostile::{Played, assert_refused, candidate, log_id, vote};
use super::*;

/// Regression: after a caller was cancelled while it waited for the end of the core, openraft panicked in every later
/// one, and the caller got no answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_a_failed_core_are_refused() {
    let played = Played::begin().await;
    let (victim, client, me) = (&played.nodes[0], played.client(), played.node_id);
    let (handle, term) = (&victim.handle, victim.handle.term());
    let applied = handle.applied();
    let mut peer = client.peer();
    assert!(handle.raft.shutdown().now_or_never().is_none(), "cancelled while it waits");
    timeout(LONG, handle.until_failed()).await.expect("the core has ended");

    let asked = candidate(term + 1, me);
    let (code, text) = (Code::Unavailable, "this node is stopping");
    assert_refused(peer.vote(client.request(asked)).await, code, text);
    assert_refused(peer.pre_vote(client.request(asked)).await, code, text);
    let append = proto::AppendRequest {
        vote: Some(vote(term + 1, me, true)),
        prev_log_id: Some(log_id(term, me, applied + 1)),
        entries: Vec::new(),
        leader_commit: None,
        memories: Vec::new(),
    };
    assert_refused(peer.append(client.request(append.clone())).await, code, text);
    let appends = futures::stream::iter([append]);
    let mut answers = peer.append_stream(client.request(appends)).await.expect("a stream").into_inner();
    assert_refused(answers.message().await, code, text);
    let transfer = proto::TransferLeaderRequest {
        vote: Some(vote(term, me, true)),
        to: handle.node_id(),
        last_log_id: Some(log_id(term, me, applied)),
    };
    assert_refused(peer.transfer_leader(client.request(transfer)).await, code, text);
    assert_eq!(handle.confirm_leadership().await, None);
    assert!(handle.snapshot().await.is_err());
    stop_all(played.nodes).await;
}
