//! gRPC server for other nodes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use openraft::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::entry::RaftEntry;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, VoteRequest};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::Mutex as AsyncMutex;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::call_metadata::{CallMetadata, CallRejection};
use super::connection::{self, Certified};
use super::identities::NodeIdentities;
use super::local_node::{CallKind, LocalNode};
use super::proto;
use super::proto::peer_server::{Peer, PeerServer};
use super::response_check::{refused, stating};
use super::snapshot_transfer::{self, Digests, Unfinished};
use super::wire::{self, MessageContext};
use crate::cluster::apply::snapshot::{SnapshotFiles, Snapshots};
use crate::cluster::disk_rollback::DiskKey;

use crate::cluster::log::LogReader;
use crate::cluster::propose::batcher::SubmitError;
use crate::cluster::propose::forwarding;
use crate::cluster::reads::sources;
use crate::cluster::type_config::{LogId, TypeConfig};
use crate::cluster::{Handle, Machine, codec};
use crate::tls::Tls;
use crate::{limits, text};

/// The service implementation.
pub(crate) struct Peers<M: Machine> {
    pub(crate) local: Arc<LocalNode>,
    pub(crate) handle: Handle<M>,
    pub(crate) log: LogReader,
    /// Directory in which snapshots are received.
    pub(crate) snapshots: Snapshots,
    /// The files of an interrupted snapshot transfer. Locked during a transfer, so that there is one at a time.
    pub(crate) receiving: AsyncMutex<Option<Unfinished>>,
}

/// Serves on `listener` until it is dropped.
pub(crate) async fn serve<M: Machine>(
    peers: Peers<M>,
    listener: TcpListener,
    (tls, identities): (Tls, NodeIdentities),
) {
    let life = stating(&peers.local.life);
    let clock = peers.handle.clock.clone();
    let service = PeerServer::new(peers)
        .max_decoding_message_size(limits::PEER_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(limits::PEER_MESSAGE_BYTES_MAX);
    let stopped = CancellationToken::new();
    let _stop = stopped.clone().drop_guard();
    let served = Server::builder()
        .http2_keepalive_interval(Some(limits::PEER_PING_INTERVAL))
        .http2_keepalive_timeout(Some(limits::PEER_PING_TIMEOUT))
        .http2_max_header_list_size(limits::PEER_HEADER_BYTES_MAX)
        .max_concurrent_streams(limits::PEER_STREAMS_MAX)
        .initial_stream_window_size(limits::PEER_WINDOW_BYTES)
        .initial_connection_window_size(limits::PEER_WINDOW_BYTES)
        .layer(life)
        .add_service(service)
        .serve_with_incoming(connection::incoming(listener, (tls, identities), clock, stopped));
    match served.await {
        Ok(()) => tracing::error!("peer listener stopped"),
        Err(error) => tracing::error!(%error, "peer listener failed"),
    }
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn malformed(error: &wire::Error) -> Status {
    Status::invalid_argument(error.to_string())
}

/// Rejects calls that need a durable write while the disk hangs: the caller would wait, and openraft with it.
fn check_disk<M: Machine>(handle: &Handle<M>) -> Result<(), Status> {
    if handle.disk_hangs() { Err(Status::unavailable("the disk of this node hangs")) } else { Ok(()) }
}

fn stopped(error: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("this node is stopping: {error}"))
}

impl<M: Machine> Peers<M> {
    /// Admits the caller. The first admitted member call determines the cluster id of a node that has none.
    fn admit<T>(&self, request: &Request<T>, kind: CallKind) -> Result<CallMetadata, Status> {
        let certified = request.extensions().get::<Certified>();
        // The node that the certificate names; 0 is no node.
        let certified_id = certified
            .zip(self.local.identities.as_ref())
            .and_then(|(certified, identities)| identities.node_of(&certified.0))
            .unwrap_or_default();
        let failures = &self.local.failures.calls;
        let admitted = CallMetadata::read(request.metadata()).and_then(|call| {
            let certified = certified.ok_or(CallRejection::Unstated)?;
            let removed_at = |node| self.handle.machine().removed_at(node);
            self.local.admit(&call, &certified.0, kind, &self.handle.known_members(), removed_at)?;
            Ok(call)
        });
        let call = admitted.map_err(|rejection| {
            failures.failed(&certified_id, &rejection);
            refused(&rejection)
        })?;
        failures.succeeded(&certified_id);
        if let (true, None, Some(id)) = (kind != CallKind::Hello, self.local.cluster_id(), call.cluster_id) {
            self.local.join(id).map_err(stopped)?;
            tracing::info!(cluster = text::hex(&id), from = call.from, "joining the cluster");
        }
        Ok(call)
    }

    /// Verifies every row of a received snapshot, before openraft has it: one that cannot be installed stops the node.
    #[expect(clippy::disallowed_methods, reason = "reading every row must not block requests")]
    async fn verify(
        &self,
        last: LogId,
        received: SnapshotFiles,
    ) -> Result<SnapshotMetaOf<TypeConfig>, Status> {
        let snapshots = self.snapshots.clone();
        let verified = tokio::task::spawn_blocking(move || snapshots.verify(received.directory())).await;
        let verified = verified.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        let meta = verified.map_err(|error| Status::invalid_argument(error.to_string()))?;
        if meta.last_log_id != Some(last) {
            return Err(Status::invalid_argument("the snapshot's files do not end at its last log id"));
        }
        // openraft takes a snapshot that contradicts applied entries for a bug of its own, and stops.
        let applied = self.handle.applied_log_id().map_err(stopped)?;
        if applied.is_some_and(|applied| last > applied && last.index <= applied.index) {
            return Err(Status::invalid_argument("the snapshot contradicts applied entries of this node"));
        }
        self.handle.check_agreement().map_err(Status::unavailable)?;
        Ok(meta)
    }

    /// Decodes a vote or pre-vote request.
    fn vote_request(&self, request: Request<proto::VoteRequest>) -> Result<VoteRequest<TypeConfig>, Status> {
        let from = self.from(&self.admit(&request, CallKind::Raft)?);
        wire::vote_request(request.into_inner(), from).map_err(|error| malformed(&error))
    }

    /// This node's wall clock, for readings.
    fn wall_millis(&self) -> i64 {
        self.handle.clock.now().millis()
    }

    /// Rejects a snapshot that would take the space of the log.
    fn check_snapshot_space(&self, head: &proto::SnapshotHead, held: &Digests) -> Result<(), Status> {
        let needed = snapshot_transfer::bytes_needed(head, held);
        match self.handle.measure_disk_space() {
            Some(space) if needed.saturating_add(space.reserve()) > space.free => {
                Err(Status::resource_exhausted(format!(
                    "the snapshot needs {needed} more bytes and a reserve of {}, and the disk of this node has {} bytes free",
                    space.reserve(),
                    space.free
                )))
            }
            _ => Ok(()),
        }
    }

    /// Removes the files of an interrupted transfer that was not resumed.
    fn discard_unfinished_snapshot(&self) {
        let Ok(mut receiving) = self.receiving.try_lock() else { return };
        let ends = |unfinished: &mut Unfinished| unfinished.begun + limits::SNAPSHOT_RESUME_WINDOW;
        drop(receiving.take_if(|unfinished| ends(unfinished) <= self.handle.clock.boot()));
    }

    fn from(&self, call: &CallMetadata) -> MessageContext {
        MessageContext { node_id: call.from, own_term: self.handle.term() }
    }

    fn appends(&self, call: &CallMetadata) -> Appends<M> {
        let (local, log) = (Arc::clone(&self.local), self.log.clone());
        Appends { local, log, handle: self.handle.clone(), node_id: call.from }
    }
}

/// Validates append requests before openraft sees them.
struct Appends<M: Machine> {
    local: Arc<LocalNode>,
    log: LogReader,
    handle: Handle<M>,
    node_id: u64,
}

impl<M: Machine> Appends<M> {
    /// Decodes a request that contradicts no committed entry of this node.
    fn check(&self, message: proto::AppendRequest) -> Result<AppendEntriesRequest<TypeConfig>, Status> {
        let from = MessageContext { node_id: self.node_id, own_term: self.handle.term() };
        let append = wire::append_request(message, from).map_err(|error| malformed(&error))?;
        let log_ids = append.prev_log_id.into_iter().chain(append.entries.iter().map(RaftEntry::log_id));
        let contradicted = self.log.contradicted(append.vote.leader_id, log_ids).map_err(stopped)?;
        match contradicted {
            Some(ours) => Err(refused(&self.local.contradicted(ours))),
            None => Ok(append),
        }
    }
}

#[tonic::async_trait]
impl<M: Machine> Peer for Peers<M> {
    type AppendStreamStream = ResponseStream<proto::AppendResponse>;
    type ForwardStream = ResponseStream<proto::Proposed>;
    type ObserveStream = ResponseStream<proto::ObservedMessage>;

    async fn hello(
        &self,
        request: Request<proto::HelloRequest>,
    ) -> Result<Response<proto::HelloResponse>, Status> {
        let call = self.admit(&request, CallKind::Hello)?;
        let bytes = |id: Option<[u8; 16]>| id.map(|id| id.to_vec().into()).unwrap_or_default();
        // A cluster that has a membership without the sender must not be bootstrapped again.
        let is_known = self.handle.disk_of(call.from).is_some()
            || (self.handle.known_members().is_empty()
                && self.local.initial_members.contains_key(&call.from));
        let members = request.into_inner().members;
        let theirs = members.into_iter().map(|member| (member.node_id, member.address));
        Ok(Response::new(proto::HelloResponse {
            disk_id: bytes(Some(self.local.disk_id)),
            cluster_id: bytes(self.local.cluster_id().filter(|_| is_known)),
            disk_of_sender: bytes(self.handle.disk_of(call.from)),
            belongs_to_cluster: self.local.cluster_id().is_some(),
            same_members: theirs.eq(self.local.initial_members.clone()),
        }))
    }

    async fn vote(
        &self,
        request: Request<proto::VoteRequest>,
    ) -> Result<Response<proto::VoteResponse>, Status> {
        let vote = self.vote_request(request)?;
        check_disk(&self.handle)?;
        let answer = self.handle.unless_failed(self.handle.raft.vote(vote)).await.map_err(stopped)?;
        let wall_millis = Some(self.wall_millis());
        Ok(Response::new(proto::VoteResponse { wall_millis, ..wire::vote_response_to_proto(&answer) }))
    }

    async fn pre_vote(
        &self,
        request: Request<proto::VoteRequest>,
    ) -> Result<Response<proto::VoteResponse>, Status> {
        let vote = self.vote_request(request)?;
        check_disk(&self.handle)?;
        let answer = self.handle.unless_failed(self.handle.raft.pre_vote(vote)).await.map_err(stopped)?;
        Ok(Response::new(wire::vote_response_to_proto(&answer)))
    }

    async fn append(
        &self,
        request: Request<proto::AppendRequest>,
    ) -> Result<Response<proto::AppendResponse>, Status> {
        let call = self.admit(&request, CallKind::Raft)?;
        let own_term = self.handle.term();
        let mut message = request.into_inner();
        let (memories, members) = (std::mem::take(&mut message.memories), self.handle.known_members());
        let is_other_member = |disk: &DiskKey| disk.0 != self.local.node_id && members.has_disk(disk);
        self.local.disk_records.merge(&memories, is_other_member);
        let append = self.appends(&call).check(message)?;
        if append.vote.leader_id.term >= own_term {
            self.handle.candidacy.record_heartbeat(self.handle.clock.boot());
        }
        check_disk(&self.handle)?;
        self.discard_unfinished_snapshot();
        let prev = append.prev_log_id;
        let last = append.entries.last().map(|entry| entry.log_id).or(prev);
        let answer =
            self.handle.unless_failed(self.handle.raft.append_entries(append)).await.map_err(stopped)?;
        let result = match answer {
            AppendEntriesResponse::Success => Ok(last),
            AppendEntriesResponse::PartialSuccess(matched) => Ok(matched),
            AppendEntriesResponse::Conflict => {
                let prev = prev.ok_or_else(|| Status::internal("conflict without a previous entry"))?;
                Err(StreamAppendError::Conflict(prev))
            }
            AppendEntriesResponse::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote)),
        };
        let wall_millis = Some(self.wall_millis());
        Ok(Response::new(proto::AppendResponse { wall_millis, ..wire::append_response_to_proto(&result) }))
    }

    async fn append_stream(
        &self,
        request: Request<Streaming<proto::AppendRequest>>,
    ) -> Result<Response<Self::AppendStreamStream>, Status> {
        let call = self.admit(&request, CallKind::Raft)?;
        check_disk(&self.handle)?;
        let checks = self.appends(&call);
        // The status that ended the stream, sent after the responses to the requests before it.
        let ended = Arc::new(Mutex::new(None));
        let end = Arc::clone(&ended);
        let handle = self.handle.clone();
        let appends = request.into_inner().scan((), move |(), message| {
            let append = message.and_then(|message| check_disk(&handle).and(checks.check(message)));
            let refuse = |status| *end.lock() = Some(status);
            futures::future::ready(append.map_err(refuse).ok())
        });
        let answers = self.handle.stream_append(appends);
        let answers = answers
            .map(|answer| answer.map(|result| wire::append_response_to_proto(&result)).map_err(stopped));
        let last = futures::stream::poll_fn(move |_| {
            let status = ended.lock().take();
            std::task::Poll::Ready(status.map(Err))
        });
        Ok(Response::new(Box::pin(answers.chain(last))))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<proto::SnapshotPart>>,
    ) -> Result<Response<proto::SnapshotResponse>, Status> {
        let call = self.admit(&request, CallKind::Raft)?;
        check_disk(&self.handle)?;
        self.handle.check_agreement().map_err(Status::unavailable)?;
        let busy = |_| Status::resource_exhausted("this node is receiving a snapshot already");
        let mut receiving = self.receiving.try_lock().map_err(busy)?;
        let mut parts = request.into_inner();
        let reject = |refused: &snapshot_transfer::SnapshotError| {
            tracing::warn!(from = call.from, reason = %refused, "rejected a snapshot");
            Status::invalid_argument(refused.to_string())
        };
        let head = snapshot_transfer::head(&mut parts).await.map_err(|refused| reject(&refused))?;
        let (vote, last) = wire::snapshot_head(&head, self.from(&call)).map_err(|error| malformed(&error))?;
        // It stays there if this call is cancelled.
        let unfinished = receiving.get_or_insert_with(|| Unfinished {
            files: self.snapshots.receiving(),
            digests: Digests::new(),
            begun: Duration::ZERO,
        });
        unfinished.begun = self.handle.clock.boot();
        let (directory, held) = (unfinished.files.directory(), &mut unfinished.digests);
        let prepared = snapshot_transfer::prepare(&head, directory, held).await;
        prepared.map_err(|error| reject(&error.into()))?;
        self.check_snapshot_space(&head, held)?;
        let (files, count) = (head.files.len(), held.len());
        tracing::info!(from = call.from, index = last.index, files, held = count, "receiving a snapshot");
        let into = (directory, held);
        let received = snapshot_transfer::receive(&head, &mut parts, into, &self.local.receiving).await;
        if let Err(refused) = received {
            if !refused.is_interruption() {
                *receiving = None;
            }
            return Err(reject(&refused));
        }
        tracing::info!(from = call.from, index = last.index, "received a snapshot");
        let snapshot = unfinished.files.clone();
        let verification = self.verify(last, snapshot.clone());
        let meta = snapshot_transfer::conclude(&mut receiving, verification).await?;
        let snapshot = SnapshotOf::<TypeConfig, SnapshotFiles> { meta, snapshot };
        let installed = self.handle.raft.install_full_snapshot(vote, snapshot);
        let answer = self.handle.unless_failed(installed).await.map_err(stopped)?;
        Ok(Response::new(proto::SnapshotResponse { vote: Some(codec::vote_to_proto(&answer.vote)) }))
    }

    async fn held_snapshot_files(
        &self,
        request: Request<proto::HeldSnapshotFilesRequest>,
    ) -> Result<Response<proto::HeldSnapshotFilesResponse>, Status> {
        self.admit(&request, CallKind::Raft)?;
        // During a transfer, the next call is refused.
        let receiving = self.receiving.try_lock().ok();
        let unfinished = receiving.as_ref().and_then(|receiving| receiving.as_ref());
        let digests = unfinished.map(|unfinished| unfinished.digests.clone()).unwrap_or_default();
        Ok(Response::new(proto::HeldSnapshotFilesResponse { digests: digests.into_iter().collect() }))
    }

    async fn read_index(
        &self,
        request: Request<proto::ReadIndexRequest>,
    ) -> Result<Response<proto::ReadIndexResponse>, Status> {
        let call = self.admit(&request, CallKind::Member)?;
        let proto::ReadIndexRequest { for_lease, reader_call } = request.into_inner();
        if for_lease {
            // Before the index is confirmed: entries acknowledged meanwhile may be missing in the answer.
            self.handle.progress.record_lease_request(call.from, self.handle.clock.boot());
        }
        let confirmed = self.handle.answer_index(reader_call.as_ref()).await;
        let confirmed = confirmed.ok_or_else(|| Status::unavailable(SubmitError::NotLeader.to_string()))?;
        let clocks = Some(wire::clock_report_to_proto(&self.handle.measure_clocks()));
        let sources = sources::leases_to_proto(&confirmed.sources);
        Ok(Response::new(proto::ReadIndexResponse { index: confirmed.index, clocks, sources }))
    }

    async fn applied(
        &self,
        request: Request<proto::AppliedRequest>,
    ) -> Result<Response<proto::AppliedResponse>, Status> {
        self.admit(&request, CallKind::Member)?;
        let waited = self.handle.until_applied(request.into_inner().index);
        // After the timeout, the current index is the answer.
        drop(tokio::time::timeout(limits::APPLIED_WAIT, waited).await);
        Ok(Response::new(proto::AppliedResponse { index: self.handle.applied() }))
    }

    async fn barrier(
        &self,
        request: Request<proto::BarrierRequest>,
    ) -> Result<Response<proto::BarrierResponse>, Status> {
        self.admit(&request, CallKind::Member)?;
        let confirmed = self.handle.answer_barrier(&request.into_inner()).await;
        confirmed.map(Response::new).map_err(|error| Status::aborted(error.to_string()))
    }

    async fn transfer_leader(
        &self,
        request: Request<proto::TransferLeaderRequest>,
    ) -> Result<Response<proto::TransferLeaderResponse>, Status> {
        let from = self.from(&self.admit(&request, CallKind::Raft)?);
        let is_successor = request.get_ref().to == self.local.node_id;
        let transfer =
            wire::transfer_request(request.into_inner(), from).map_err(|error| malformed(&error))?;
        check_disk(&self.handle)?;
        if is_successor && self.handle.space.is_full() {
            return Err(Status::unavailable("the disk of this node is full"));
        }
        let taken_over = self.handle.raft.handle_transfer_leader(transfer);
        match self.handle.unless_failed(taken_over).await.map_err(stopped)? {
            Ok(()) => Ok(Response::new(proto::TransferLeaderResponse {})),
            Err(refused) => Err(Status::aborted(refused.to_string())),
        }
    }

    async fn forward(
        &self,
        request: Request<Streaming<proto::Forwarded>>,
    ) -> Result<Response<Self::ForwardStream>, Status> {
        self.admit(&request, CallKind::Member)?;
        let handle = self.handle.clone();
        let answers = request.into_inner().map(move |message| {
            let (handle, now) = (handle.clone(), handle.clock.boot());
            async move {
                let (submission, remaining) =
                    forwarding::from_proto(message?).map_err(Status::invalid_argument)?;
                let sequence = submission.sequence;
                // Rejects this command only: others in flight go on.
                let outcome = if !M::can_decode(&submission.command) {
                    Err(SubmitError::UnknownCommand)
                } else if let Err(shortage) = handle.check_space(&submission.command) {
                    Err(SubmitError::DiskShortage(shortage))
                } else {
                    handle.batcher.submit(submission, now + remaining).await
                };
                Ok(forwarding::proposed(sequence, outcome))
            }
        });
        Ok(Response::new(Box::pin(answers.buffer_unordered(limits::PROPOSALS_QUEUED_MAX))))
    }

    async fn observe(
        &self,
        request: Request<proto::ObserveRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        self.admit(&request, CallKind::Member)?;
        Ok(Response::new(Box::pin(self.handle.publisher.observe()?)))
    }

    async fn report(
        &self,
        request: Request<proto::ReportRequest>,
    ) -> Result<Response<proto::NodeReport>, Status> {
        self.admit(&request, CallKind::Member)?;
        Ok(Response::new(self.handle.report()))
    }

    async fn state_hash(
        &self,
        request: Request<proto::StateHashRequest>,
    ) -> Result<Response<proto::StateHashResponse>, Status> {
        let call = self.admit(&request, CallKind::Member)?;
        let proto::StateHashRequest { index, hash } = request.into_inner();
        let malformed = |_| Status::invalid_argument("hash: must be 32 bytes");
        let theirs = hash.as_ref().try_into().map_err(malformed)?;
        self.handle.compare_hash(call.from, index, theirs).map(Response::new).map_err(stopped)
    }

    async fn step_down(
        &self,
        request: Request<proto::StepDownRequest>,
    ) -> Result<Response<proto::StepDownResponse>, Status> {
        self.admit(&request, CallKind::Member)?;
        if self.handle.step_down(request.into_inner().to).await {
            Ok(Response::new(proto::StepDownResponse {}))
        } else {
            Err(Status::aborted("this node does not lead, or no voter took over"))
        }
    }
}
