//! openraft's network client. Heartbeats, entries and snapshots each use their own connection, so that none delays
//! another.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::task::{Poll, Waker, ready};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, stream_append_sequential};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::vote::RaftLeaderId as _;
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::{Code, Status};

use super::channels::{Channels, Client, NoTransport};
use super::local_node::LocalNode;
use super::{proto, wire};
use crate::breaks::{self, Break};
use crate::clock::Timestamp;
use crate::cluster::apply::snapshot::{Snapshot, SnapshotFiles};
use crate::cluster::clocks::Clocks;
use crate::cluster::divergence::Disputes;
use crate::cluster::peers::snapshot_transfer;
use crate::cluster::type_config::{LogId, MemberRecord, TypeConfig, Vote};
use crate::limits;

/// Creates the connections that openraft requests.
pub(crate) struct Network {
    /// Channels to other nodes.
    pub(crate) channels: Arc<Channels>,
    /// Receives the clock readings of responses.
    pub(crate) clocks: Arc<Clocks>,
    /// A state in dispute must not spread as a snapshot.
    pub(crate) disputes: watch::Receiver<Disputes>,
}

/// The connection to one node for one purpose.
pub(crate) struct RaftConnection {
    client: Result<Client, NoTransport>,
    to: u64,
    /// Whether each append is a call of its own, as a heartbeat is: it counts only once its response is
    /// complete.
    is_for_heartbeats: bool,
    local: Arc<LocalNode>,
    clocks: Arc<Clocks>,
    disputes: watch::Receiver<Disputes>,
}

impl Network {
    fn connection(&self, target: u64, node: &MemberRecord, is_for_heartbeats: bool) -> RaftConnection {
        let client = self.channels.own(target, &node.address, Some(node.disk_id));
        let (local, clocks) = (Arc::clone(&self.channels.local), Arc::clone(&self.clocks));
        let disputes = self.disputes.clone();
        RaftConnection { client, to: target, is_for_heartbeats, local, clocks, disputes }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = RaftConnection;

    async fn new_client(&mut self, target: u64, node: &MemberRecord) -> RaftConnection {
        self.connection(target, node, false)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &MemberRecord) -> RaftConnection {
        self.connection(target, node, true)
    }
}

type Failure = RPCError<TypeConfig>;

/// The innermost cause of a failure, which tonic wraps several times.
pub(crate) fn reason(status: &Status) -> String {
    let mut innermost: &dyn std::error::Error = status;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// Maps a gRPC status to openraft's retry classes: `Unreachable` is retried after a backoff, everything else at once.
fn rpc_error(status: &Status) -> Failure {
    match status.code() {
        Code::Unavailable | Code::FailedPrecondition | Code::PermissionDenied => {
            RPCError::Unreachable(Unreachable::from_string(reason(status)))
        }
        _ => RPCError::Network(NetworkError::from_string(reason(status))),
    }
}

fn undecodable(error: &wire::Error) -> Failure {
    RPCError::Network(NetworkError::from_string(error))
}

impl RaftConnection {
    fn client(&self) -> Result<&Client, Failure> {
        self.client.as_ref().map_err(|no_transport| RPCError::Unreachable(Unreachable::new(no_transport)))
    }

    async fn send_snapshot(
        &self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let client = self.client()?;
        let last = snapshot.meta.last_log_id.map_or(0, |last| last.index);
        if !self.disputes.borrow().may_spread(last) {
            let disputed = NetworkError::from_string("the state of this node is in dispute");
            return Err(StreamingError::Network(disputed));
        }
        let unreadable = |error: io::Error| StreamingError::Network(NetworkError::new(&error));
        let answered = || self.local.sent_snapshots.answered(self.to);
        let directory = snapshot.snapshot.directory();
        let sent = snapshot_transfer::send(client, &vote, &snapshot.meta, directory, answered);
        let outcome = tokio::select! {
            closed = cancel => return Err(closed.into()),
            sent = tokio::time::timeout(option.hard_ttl(), sent) => sent,
        };
        let response = match outcome {
            Ok(Ok(Ok(response))) => response,
            Ok(Ok(Err(status))) => return Err(rpc_error(&status).into()),
            Ok(Err(error)) => return Err(unreadable(error)),
            Err(_) => {
                let late = NetworkError::from_string("timeout while sending the snapshot");
                return Err(StreamingError::Network(late));
            }
        };
        let voted = wire::answered_vote(response.vote, vote.leader_id.term());
        Ok(SnapshotResponse::new(voted.map_err(|error| undecodable(&error))?))
    }

    /// Records the wall clock that the response to a request sent at `sent` states.
    fn record_clock(&self, wall_millis: Option<i64>, sent: Duration) {
        if let Some(millis) = wall_millis {
            self.clocks.record_reading(self.to, Timestamp::from_millis(millis), sent);
        }
    }
}

type AppendResult = Result<StreamAppendResult<TypeConfig>, Failure>;

/// Pipeline of `AppendEntries` requests to one node and its responses.
///
/// openraft credits a response to every request that ends at the same entry or before, and concludes that the node
/// followed this leader when the last of them was created; `ReadIndex` depends on that. A request without entries,
/// which carries a new commit index, ends where the one before it does. If the response to the first were passed on
/// while the second is in flight, a node deposed between the two would be confirmed as leader. So a response is
/// withheld while a later request that ends at the same entry is in flight; the response to that one stands for both.
/// And requests are taken from openraft only while it waits for a response, so that none is created between its
/// accounting and ours.
///
/// When openraft drops the responses, sending stops and the requests are dropped: a lock held inside them would block
/// other parts of openraft, and the connection would stay open.
struct Pipeline<I>(Arc<Mutex<PipelineState<I>>>);

struct PipelineState<I> {
    /// `None` once the responses are dropped.
    input: Option<I>,
    /// Whether openraft waits for a response.
    is_polled: bool,
    /// Whether a request was polled while it did not.
    is_held_up: bool,
    /// The task that sends.
    sender: Option<Waker>,
    /// The last log id of each request in flight.
    ends: VecDeque<Option<LogId>>,
    /// Term of the last request.
    own_term: u64,
}

impl<I: Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin> Pipeline<I> {
    fn new(input: I) -> Self {
        // openraft waits for the first response from the start.
        Self(Arc::new(Mutex::new(PipelineState {
            input: Some(input),
            is_polled: true,
            is_held_up: false,
            sender: None,
            ends: VecDeque::new(),
            own_term: 0,
        })))
    }

    /// The requests to send.
    fn requests(&self) -> impl Stream<Item = proto::AppendRequest> + use<I> {
        let state = Arc::clone(&self.0);
        futures::stream::poll_fn(move |context| {
            let mut state = state.lock();
            let PipelineState { input, is_polled, is_held_up, sender, .. } = &mut *state;
            let Some(input) = input else { return Poll::Ready(None) };
            *sender = Some(context.waker().clone());
            if !*is_polled {
                *is_held_up = true;
                return Poll::Pending;
            }
            let Some(request) = ready!(input.poll_next_unpin(context)) else { return Poll::Ready(None) };
            let last = request.entries.last().map(|entry| entry.log_id);
            state.ends.push_back(last.or(request.prev_log_id));
            state.own_term = request.vote.leader_id.term();
            Poll::Ready(Some(wire::append_request_to_proto(&request)))
        })
    }

    /// The responses for openraft.
    fn responses<A>(self, responses: A) -> impl Stream<Item = AppendResult>
    where
        A: Stream<Item = Result<proto::AppendResponse, Status>> + Unpin,
    {
        futures::stream::unfold((self, responses), |(pipeline, mut responses)| async move {
            let response = pipeline.next(&mut responses).await?;
            Some((response, (pipeline, responses)))
        })
    }

    async fn next<A>(&self, responses: &mut A) -> Option<AppendResult>
    where
        A: Stream<Item = Result<proto::AppendResponse, Status>> + Unpin,
    {
        let lock = || self.0.lock();
        let held_up = {
            let mut state = lock();
            state.is_polled = true;
            let was_held_up = std::mem::take(&mut state.is_held_up);
            state.sender.take_if(|_| was_held_up)
        };
        held_up.into_iter().for_each(Waker::wake);
        loop {
            let response = responses.next().await;
            let mut state = lock();
            let last = state.ends.pop_front();
            let covers_a_later_request = last.is_some()
                && last.as_ref() == state.ends.front()
                && !breaks::active(Break::CreditEarlierAppend);
            let response = match response? {
                Ok(response) => {
                    wire::append_response(response, state.own_term).map_err(|error| undecodable(&error))
                }
                Err(status) => Err(rpc_error(&status)),
            };
            if !(covers_a_later_request && matches!(response, Ok(Ok(_)))) {
                state.is_polled = false;
                return Some(response);
            }
        }
    }
}

impl<I> Drop for Pipeline<I> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        let (input, sender) = (state.input.take(), state.sender.take());
        drop(state);
        drop(input);
        sender.into_iter().for_each(Waker::wake);
    }
}

/// Runs a call within openraft's time limit.
async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(rpc_error(&status)),
        Err(_) => Err(RPCError::Network(NetworkError::from_string("timeout"))),
    }
}

fn decode_vote(response: proto::VoteResponse, own_term: u64) -> Result<VoteResponse<TypeConfig>, Failure> {
    wire::vote_response(response, own_term).map_err(|error| undecodable(&error))
}

impl RaftNetworkV2<TypeConfig> for RaftConnection {
    type SnapshotData = SnapshotFiles;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, Failure> {
        let client = self.client()?;
        let last = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id);
        let mut peer = client.peer();
        let sent = self.clocks.boot();
        let message =
            proto::AppendRequest { memories: client.memories(), ..wire::append_request_to_proto(&request) };
        let call = peer.append(client.request(message));
        let response = within(option.hard_ttl(), call).await?;
        self.record_clock(response.wall_millis, sent);
        let own_term = request.vote.leader_id.term();
        let response = wire::append_entries_response(response, last, own_term);
        if matches!(response, Ok(AppendEntriesResponse::Success | AppendEntriesResponse::PartialSuccess(_))) {
            client.voted(request.vote.leader_id);
        }
        response.map_err(|error| undecodable(&error))
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<TypeConfig>, Failure>>, Failure>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        if self.is_for_heartbeats {
            return stream_append_sequential(self, input, option);
        }
        Box::pin(async move {
            let client = self.client()?;
            let mut peer = client.peer();
            let pipeline = Pipeline::new(input);
            let requests = client.request(pipeline.requests());
            let opened = within(option.hard_ttl(), peer.append_stream(requests)).await;
            let failures = &self.local.failures.replication;
            let responses = match opened {
                Ok(responses) => {
                    failures.succeeded(&self.to);
                    responses
                }
                Err(failure) => {
                    failures.failed(&self.to, &failure);
                    // openraft backs off only after errors inside the stream.
                    tokio::time::sleep(limits::PEER_RETRY_PAUSE).await;
                    return Err(failure);
                }
            };
            let responses: BoxStream<'s, _> = Box::pin(pipeline.responses(responses));
            Ok(responses)
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, Failure> {
        let client = self.client()?;
        let mut peer = client.peer();
        let sent = self.clocks.boot();
        let call = peer.vote(client.request(wire::vote_request_to_proto(&request)));
        let response = within(option.hard_ttl(), call).await?;
        self.record_clock(response.wall_millis, sent);
        let response = decode_vote(response, request.vote.leader_id.term())?;
        if response.vote_granted {
            client.voted(request.vote.leader_id);
        }
        Ok(response)
    }

    /// openraft's default grants a pre-vote without a request to the node.
    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, Failure> {
        let client = self.client()?;
        let mut peer = client.peer();
        let call = peer.pre_vote(client.request(wire::vote_request_to_proto(&request)));
        decode_vote(within(option.hard_ttl(), call).await?, request.vote.leader_id.term())
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, Failure> {
        let client = self.client()?;
        let mut peer = client.peer();
        let call = peer.transfer_leader(client.request(wire::transfer_request_to_proto(&request)));
        within(option.hard_ttl(), call).await.map(|_| Ok(()))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        // The entries after the snapshot stay in the log meanwhile.
        let end = snapshot.meta.last_log_id.map_or(0, |last| last.index);
        self.local.sent_snapshots.begin(self.to, end);
        let sent = self.send_snapshot(vote, snapshot, cancel, option).await;
        self.local.sent_snapshots.ended(self.to, sent.is_ok(), self.clocks.boot());
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::type_config::Entry;
    use futures::FutureExt as _;
    use openraft::alias::CommittedLeaderIdOf;
    use openraft::entry::RaftEntry as _;
    use openraft::raft::StreamAppendError;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::ReceiverStream;

    fn log_id(index: u64) -> LogId {
        LogId::new(CommittedLeaderIdOf::<TypeConfig>::new(1, 1), index)
    }

    fn request(prev: u64, entries: impl IntoIterator<Item = u64>) -> AppendEntriesRequest<TypeConfig> {
        let entry = |index| Entry::new_blank(log_id(index));
        AppendEntriesRequest {
            vote: Vote::new(1, 1),
            prev_log_id: Some(log_id(prev)),
            entries: entries.into_iter().map(entry).collect(),
            leader_commit: None,
        }
    }

    /// Regression: a leader deposed between two requests received the late response to the first, and was
    /// confirmed as leader as of the second, to which no node had responded. It went on to accept tokens that
    /// its successor had revoked.
    #[tokio::test]
    async fn response_does_not_confirm_later_requests() {
        let (requests, input) = mpsc::channel(9);
        let (responses, received) = mpsc::channel(9);
        let pipeline = Pipeline::new(ReceiverStream::new(input));
        let mut sent = pipeline.requests();
        let mut given = Box::pin(pipeline.responses(ReceiverStream::new(received)));
        let respond = async |result: StreamAppendResult<TypeConfig>| {
            responses.send(Ok(wire::append_response_to_proto(&result))).await.expect("there");
        };
        let matched = async |index: u64| respond(Ok(Some(log_id(index)))).await;

        for request in [request(3, [4, 5]), request(5, []), request(5, []), request(5, [6])] {
            requests.send(request).await.expect("there");
        }
        assert!(given.next().now_or_never().is_none(), "no response");
        for _ in 0..4 {
            sent.next().await.expect("sent");
        }
        matched(5).await;
        assert!(given.next().now_or_never().is_none(), "two requests that end there are in flight");
        matched(5).await;
        assert!(given.next().now_or_never().is_none(), "one is in flight");
        matched(5).await;
        assert_eq!(given.next().await, Some(Ok(Ok(Some(log_id(5))))));
        matched(6).await;
        assert_eq!(given.next().await, Some(Ok(Ok(Some(log_id(6))))));

        // No request is created while openraft processes a response.
        requests.send(request(6, [])).await.expect("there");
        requests.send(request(6, [])).await.expect("there");
        assert!(sent.next().now_or_never().is_none(), "openraft does not wait for a response");
        assert!(given.next().now_or_never().is_none());
        for _ in 0..2 {
            sent.next().await.expect("sent");
        }

        // A conflict confirms nothing and is passed on at once.
        respond(Err(StreamAppendError::Conflict(log_id(6)))).await;
        assert_eq!(given.next().await, Some(Ok(Err(StreamAppendError::Conflict(log_id(6))))));
        // An impossible term is an error.
        respond(Err(StreamAppendError::HigherVote(Vote::new(u64::MAX, 2)))).await;
        assert!(matches!(given.next().await, Some(Err(RPCError::Network(_)))));

        // openraft drops the responses: its requests are dropped, and the stream to the node ends. It waited on a lock
        // there, and the connection stayed open for ever.
        assert!(sent.next().now_or_never().is_none());
        let (sent, ()) = futures::join!(sent.next(), async { drop(given) });
        assert_eq!(sent, None);
        assert!(requests.is_closed(), "the requests are dropped");
    }
}
