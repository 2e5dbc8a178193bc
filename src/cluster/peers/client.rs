//! The consensus library's way to other nodes: heartbeats, entries and snapshots each over a connection of
//! their own, so that none waits behind another.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
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
use tonic::{Code, Status};

use super::channels::{Channels, Client, NoWay};
use super::{proto, wire};
use crate::clock::Timestamp;
use crate::cluster::apply::snapshot::SnapshotFiles;
use crate::cluster::clocks::Clocks;
use crate::cluster::peers::snapshot_transfer;
use crate::cluster::type_config::{LogId, Peer, TypeConfig, Vote};
use crate::limits;

/// Makes the connections that the consensus library asks for.
pub struct Network {
    /// The ways to other nodes.
    pub channels: Arc<Channels>,
    /// Who is told what their clocks show.
    pub clocks: Arc<Clocks>,
}

/// One of them.
pub struct Link {
    client: Result<Client, NoWay>,
    to: u64,
    /// Whether an append is answered by itself: a heartbeat counts when its answer has ended.
    is_for_heartbeats: bool,
    /// Why entries did not get through the last time.
    down: Option<String>,
    clocks: Arc<Clocks>,
}

impl Network {
    fn link(&self, target: u64, node: &Peer, is_for_heartbeats: bool) -> Link {
        let client = self.channels.own(target, &node.address, Some(node.disk_id));
        Link { client, to: target, is_for_heartbeats, down: None, clocks: Arc::clone(&self.clocks) }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Link;

    async fn new_client(&mut self, target: u64, node: &Peer) -> Link {
        self.link(target, node, false)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &Peer) -> Link {
        self.link(target, node, true)
    }
}

type Failure = RPCError<TypeConfig>;

/// What is behind a failure, which the library wraps more than once.
pub fn reason(status: &Status) -> String {
    let mut innermost: &dyn std::error::Error = status;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// Nobody there, or nobody who talks to us: to be asked again after a pause. Anything else: at once.
fn failed(status: &Status) -> Failure {
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

impl Link {
    fn client(&self) -> Result<&Client, Failure> {
        self.client.as_ref().map_err(|no_way| RPCError::Unreachable(Unreachable::new(no_way)))
    }

    /// The clock of the node, as its answer to what was sent at `sent` says.
    fn hear_clock(&self, wall_millis: Option<i64>, sent: Duration) {
        if let Some(millis) = wall_millis {
            self.clocks.hear(self.to, Timestamp::from_millis(millis), sent);
        }
    }

    /// Said when it changes, not as often as it is tried.
    fn note(&mut self, failure: Option<&Failure>) {
        let down = failure.map(ToString::to_string);
        if down != self.down {
            if let Some(reason) = &down {
                tracing::warn!(node = self.to, reason, "a node does not get entries");
            } else {
                tracing::info!(node = self.to, "a node gets entries again");
            }
            self.down = down;
        }
    }
}

type Answer = Result<StreamAppendResult<TypeConfig>, Failure>;

/// Appends on their way to a node, many under way, and its answers.
///
/// The library takes an answer for that to every request that ends at the same entry or before, and believes that the
/// other node followed this one when the last of them was made; reads are confirmed by that. A request without entries,
/// which tells of a commit, ends where the one before it does. If the answer to the first were handed on while the
/// second is under way, a node that is deposed between the two would be confirmed as the leader. So an answer is kept
/// back while a later request that ends at the same entry has none; that one's stands for both. And requests are taken
/// from the library only while it waits for an answer, so that none is made between its look at what is under way and
/// ours.
///
/// When nobody takes answers any more, no more is sent: what the library waits for inside its requests would keep other
/// parts of it waiting, and the connection open.
struct Pipeline<I>(Arc<Mutex<UnderWay<I>>>);

struct UnderWay<I> {
    /// `None` when nobody takes answers any more.
    input: Option<I>,
    /// Whether the library waits for an answer.
    is_waited_for: bool,
    /// Whether a request was wanted while it did not.
    is_held_up: bool,
    /// Who sends.
    sender: Option<Waker>,
    /// Where each request that is not answered ends.
    ends: VecDeque<Option<LogId>>,
    /// Of the last request.
    own_term: u64,
}

impl<I: Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin> Pipeline<I> {
    fn new(input: I) -> Self {
        // It looks at no answer before there are any.
        Self(Arc::new(Mutex::new(UnderWay {
            input: Some(input),
            is_waited_for: true,
            is_held_up: false,
            sender: None,
            ends: VecDeque::new(),
            own_term: 0,
        })))
    }

    /// What is to be sent.
    fn requests(&self) -> impl Stream<Item = proto::AppendRequest> + use<I> {
        let under_way = Arc::clone(&self.0);
        futures::stream::poll_fn(move |context| {
            let mut under_way = under_way.lock().unwrap_or_else(PoisonError::into_inner);
            let UnderWay { input, is_waited_for, is_held_up, sender, .. } = &mut *under_way;
            let Some(input) = input else { return Poll::Ready(None) };
            *sender = Some(context.waker().clone());
            if !*is_waited_for {
                *is_held_up = true;
                return Poll::Pending;
            }
            let Some(request) = ready!(input.poll_next_unpin(context)) else { return Poll::Ready(None) };
            let last = request.entries.last().map(|entry| entry.log_id);
            under_way.ends.push_back(last.or(request.prev_log_id));
            under_way.own_term = request.vote.leader_id.term();
            Poll::Ready(Some(wire::append_request_to_proto(&request)))
        })
    }

    /// What the library is told.
    fn answers<A>(self, answers: A) -> impl Stream<Item = Answer>
    where
        A: Stream<Item = Result<proto::AppendResponse, Status>> + Unpin,
    {
        futures::stream::unfold((self, answers), |(pipeline, mut answers)| async move {
            let answer = pipeline.next(&mut answers).await?;
            Some((answer, (pipeline, answers)))
        })
    }

    async fn next<A>(&self, answers: &mut A) -> Option<Answer>
    where
        A: Stream<Item = Result<proto::AppendResponse, Status>> + Unpin,
    {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let held_up = {
            let mut under_way = lock();
            under_way.is_waited_for = true;
            let was_held_up = std::mem::take(&mut under_way.is_held_up);
            under_way.sender.take_if(|_| was_held_up)
        };
        held_up.into_iter().for_each(Waker::wake);
        loop {
            let answer = answers.next().await;
            let mut under_way = lock();
            let answered = under_way.ends.pop_front();
            let stands_for_a_later_one = answered.is_some() && answered.as_ref() == under_way.ends.front();
            let answer = match answer? {
                Ok(answer) => {
                    wire::append_response(answer, under_way.own_term).map_err(|error| undecodable(&error))
                }
                Err(status) => Err(failed(&status)),
            };
            if !(stands_for_a_later_one && matches!(answer, Ok(Ok(_)))) {
                under_way.is_waited_for = false;
                return Some(answer);
            }
        }
    }
}

impl<I> Drop for Pipeline<I> {
    fn drop(&mut self) {
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (input, sender) = (under_way.input.take(), under_way.sender.take());
        drop(under_way);
        drop(input);
        sender.into_iter().for_each(Waker::wake);
    }
}

/// Within the time that the library gives it.
async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(failed(&status)),
        Err(_) => Err(RPCError::Network(NetworkError::from_string("no answer in time"))),
    }
}

fn voted(response: proto::VoteResponse, own_term: u64) -> Result<VoteResponse<TypeConfig>, Failure> {
    wire::vote_response(response, own_term).map_err(|error| undecodable(&error))
}

impl RaftNetworkV2<TypeConfig> for Link {
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
        self.hear_clock(response.wall_millis, sent);
        let own_term = request.vote.leader_id.term();
        let answer = wire::append_entries_response(response, last, own_term);
        if matches!(answer, Ok(AppendEntriesResponse::Success | AppendEntriesResponse::PartialSuccess(_))) {
            client.voted(request.vote.leader_id);
        }
        answer.map_err(|error| undecodable(&error))
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
            self.note(opened.as_ref().err());
            let answers = match opened {
                Ok(answers) => answers,
                Err(failure) => {
                    // The library waits between two attempts only while it takes entries out of the stream.
                    tokio::time::sleep(limits::PEER_RETRY_PAUSE).await;
                    return Err(failure);
                }
            };
            let answers: BoxStream<'s, _> = Box::pin(pipeline.answers(answers));
            Ok(answers)
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
        self.hear_clock(response.wall_millis, sent);
        let answer = voted(response, request.vote.leader_id.term())?;
        if answer.vote_granted {
            client.voted(request.vote.leader_id);
        }
        Ok(answer)
    }

    /// The library's default grants a pre-vote that was never asked for.
    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, Failure> {
        let client = self.client()?;
        let mut peer = client.peer();
        let call = peer.pre_vote(client.request(wire::vote_request_to_proto(&request)));
        voted(within(option.hard_ttl(), call).await?, request.vote.leader_id.term())
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
        snapshot: openraft::alias::SnapshotOf<TypeConfig, SnapshotFiles>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let client = self.client()?;
        let unreadable = |error: io::Error| StreamingError::Network(NetworkError::new(&error));
        let sent = snapshot_transfer::send(client, &vote, &snapshot.meta, snapshot.snapshot.directory());
        let answered = tokio::select! {
            closed = cancel => return Err(closed.into()),
            sent = tokio::time::timeout(option.hard_ttl(), sent) => sent,
        };
        let response = match answered {
            Ok(Ok(Ok(response))) => response,
            Ok(Ok(Err(status))) => return Err(failed(&status).into()),
            Ok(Err(error)) => return Err(unreadable(error)),
            Err(_) => {
                let late = NetworkError::from_string("the snapshot was not taken in time");
                return Err(StreamingError::Network(late));
            }
        };
        let answered = wire::answered_vote(response.vote, vote.leader_id.term());
        Ok(SnapshotResponse::new(answered.map_err(|error| undecodable(&error))?))
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

    /// A leader that was deposed between two requests got the answer to the first, which was late, and was confirmed as
    /// the leader as of the second, which nobody had answered: what was revoked under its successor it went on to
    /// accept.
    #[tokio::test]
    async fn an_answer_says_nothing_of_a_request_behind_the_one_it_is_for() {
        let (requests, input) = mpsc::channel(9);
        let (told, answers) = mpsc::channel(9);
        let pipeline = Pipeline::new(ReceiverStream::new(input));
        let mut sent = pipeline.requests();
        let mut given = Box::pin(pipeline.answers(ReceiverStream::new(answers)));
        let tell = async |result: StreamAppendResult<TypeConfig>| {
            told.send(Ok(wire::append_response_to_proto(&result))).await.expect("there");
        };
        let matched = async |index: u64| tell(Ok(Some(log_id(index)))).await;

        for request in [request(3, [4, 5]), request(5, []), request(5, []), request(5, [6])] {
            requests.send(request).await.expect("there");
        }
        assert!(given.next().now_or_never().is_none(), "nothing is answered");
        for _ in 0..4 {
            sent.next().await.expect("sent");
        }
        matched(5).await;
        assert!(given.next().now_or_never().is_none(), "two that end there are under way");
        matched(5).await;
        assert!(given.next().now_or_never().is_none(), "one is");
        matched(5).await;
        assert_eq!(given.next().await, Some(Ok(Ok(Some(log_id(5))))));
        matched(6).await;
        assert_eq!(given.next().await, Some(Ok(Ok(Some(log_id(6))))));

        // None is made while the library looks at an answer.
        requests.send(request(6, [])).await.expect("there");
        requests.send(request(6, [])).await.expect("there");
        assert!(sent.next().now_or_never().is_none(), "nobody has asked for an answer since");
        assert!(given.next().now_or_never().is_none());
        for _ in 0..2 {
            sent.next().await.expect("sent");
        }

        // What is no word of being followed is handed on at once.
        tell(Err(StreamAppendError::Conflict(log_id(6)))).await;
        assert_eq!(given.next().await, Some(Ok(Err(StreamAppendError::Conflict(log_id(6))))));
        // Nor is it believed to be ahead by more elections than there can have been.
        tell(Err(StreamAppendError::HigherVote(Vote::new(u64::MAX, 2)))).await;
        assert!(matches!(given.next().await, Some(Err(RPCError::Network(_)))));

        // The library takes no more answers: it goes without what it waits for among its requests, and the other node
        // is told that no more comes. It waited on a lock there, and the connection stayed open for ever.
        assert!(sent.next().now_or_never().is_none());
        let (sent, ()) = futures::join!(sent.next(), async { drop(given) });
        assert_eq!(sent, None);
        assert!(requests.is_closed(), "its requests are gone");
    }
}
