//! The consensus library's way to other nodes: heartbeats, entries and snapshots each over a connection of
//! their own, so that none waits behind another.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, stream_append_sequential};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, VoteRequest,
    VoteResponse,
};
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use tonic::{Code, Status};

use super::channels::{Channels, Client, NoWay};
use super::{proto, wire};
use crate::cluster::snapshot::SnapshotFiles;
use crate::cluster::types::{Peer, TypeConfig, Vote};
use crate::cluster::{codec, peers::snapshot};
use crate::limits;

/// Makes the connections that the consensus library asks for.
pub struct Network(pub Arc<Channels>);

/// One of them.
pub struct Link {
    client: Result<Client, NoWay>,
    to: u64,
    /// Whether an append is answered by itself: a heartbeat counts when its answer has ended.
    is_for_heartbeats: bool,
    /// Why entries did not get through the last time.
    down: Option<String>,
}

impl Network {
    fn link(&self, target: u64, node: &Peer, is_for_heartbeats: bool) -> Link {
        let client = self.0.own(target, &node.address, Some(node.disk_id));
        Link { client, to: target, is_for_heartbeats, down: None }
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

async fn voted(
    option: RPCOption,
    call: impl Future<Output = Result<tonic::Response<proto::VoteResponse>, Status>>,
) -> Result<VoteResponse<TypeConfig>, Failure> {
    let response = within(option.hard_ttl(), call).await?;
    wire::vote_response(response).map_err(|error| undecodable(&error))
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
        let call = peer.append(client.request(wire::append_request_to_proto(&request)));
        let response = within(option.hard_ttl(), call).await?;
        wire::append_entries_response(response, last).map_err(|error| undecodable(&error))
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
            let messages = input.map(|request| wire::append_request_to_proto(&request));
            let opened = within(option.hard_ttl(), peer.append_stream(client.request(messages))).await;
            self.note(opened.as_ref().err());
            let answers = match opened {
                Ok(answers) => answers,
                Err(failure) => {
                    // The library waits between two attempts only while it takes entries out of the stream.
                    tokio::time::sleep(limits::PEER_RETRY_PAUSE).await;
                    return Err(failure);
                }
            };
            let answers = answers.map(|answer| match answer {
                Ok(answer) => wire::append_response(answer).map_err(|error| undecodable(&error)),
                Err(status) => Err(failed(&status)),
            });
            let answers: BoxStream<'s, _> = Box::pin(answers);
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
        let call = peer.vote(client.request(wire::vote_request_to_proto(&request)));
        voted(option, call).await
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
        voted(option, call).await
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
        let sent = snapshot::send(client, &vote, &snapshot.meta, snapshot.snapshot.directory());
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
        let vote = response.vote.ok_or(wire::Error::Missing("vote"));
        let vote =
            vote.and_then(|vote| Ok(codec::vote_from_proto(vote)?)).map_err(|error| undecodable(&error))?;
        Ok(SnapshotResponse::new(vote))
    }
}
