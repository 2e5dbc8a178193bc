//! Client channels to other nodes, and the metadata of each call.

use std::collections::HashMap;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tonic::Request;
use tonic::transport::{Endpoint, Uri};

use super::call_metadata::CallMetadata;
use super::connection;
use super::local_node::LocalNode;
use super::response_check::VerifiedChannel;
use super::wire::proto::peer_client::PeerClient;
use crate::clock::Timestamp;
use crate::cluster::codec;
use crate::cluster::type_config::{DiskId, LeaderId, MemberRecord};
use crate::limits;
use crate::tls::Tls;

/// Creates channels to nodes.
pub(crate) struct Channels {
    /// This node, the caller.
    pub(crate) local: Arc<LocalNode>,
    /// `None` in a cluster of one.
    tls: Option<Tls>,
    /// One connection per node and purpose.
    shared: Mutex<HashMap<(u64, Purpose), (MemberRecord, Client)>>,
}

/// Purpose of a connection that many calls share. Each purpose has its own connection, so that its stream limit does
/// not delay another purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// Forwarded commands.
    Commands,
    /// `ReadIndex` and applied-index requests, on which leases depend.
    Reads,
    /// Barriers, each of which may wait for the duration of a lease.
    Barriers,
    /// Barriers of outside readers, each of which may wait for the duration of their leases.
    ReaderBarriers,
    /// Messages that a node publishes.
    Observation,
    /// Reports and leadership transfers, for operators.
    Administration,
}

/// A channel to one node, connected at first use and reconnected after a loss.
#[derive(Clone)]
pub(crate) struct Client {
    local: Arc<LocalNode>,
    to: u64,
    to_disk: Option<DiskId>,
    peer: PeerClient<VerifiedChannel>,
}

/// The cluster has one node.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("this node has no transport to other nodes")]
pub(crate) struct NoTransport;

impl Channels {
    pub(crate) fn new(local: Arc<LocalNode>, tls: Option<Tls>) -> Self {
        Self { local, tls, shared: Mutex::default() }
    }

    /// The end of the certificate of this node; `None` in a cluster of one.
    pub(crate) fn certificate_expires_at(&self) -> Option<Timestamp> {
        self.tls.as_ref().map(Tls::not_after)
    }

    /// A separate channel to a node, whose disk may be unknown.
    pub(crate) fn own(&self, to: u64, address: &str, to_disk: Option<DiskId>) -> Result<Client, NoTransport> {
        let (Some(tls), Some(identities)) = (&self.tls, &self.local.identities) else {
            return Err(NoTransport);
        };
        let tls = tls.clone();
        let expected: Arc<str> = identities.of(to).into();
        let address: Arc<str> = address.into();
        let connector = tower::service_fn(move |_: Uri| {
            let (tls, address, expected) = (tls.clone(), Arc::clone(&address), Arc::clone(&expected));
            async move { connection::connect(&tls, &address, &expected).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://node")
            .http2_keep_alive_interval(limits::PEER_PING_INTERVAL)
            .keep_alive_timeout(limits::PEER_PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(limits::PEER_WINDOW_BYTES)
            .initial_connection_window_size(limits::PEER_WINDOW_BYTES)
            .connect_with_connector_lazy(connector);
        let local = Arc::clone(&self.local);
        let peer = PeerClient::new(VerifiedChannel { channel, local, to, to_disk })
            .max_decoding_message_size(limits::PEER_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::PEER_MESSAGE_BYTES_MAX);
        Ok(Client { local: Arc::clone(&self.local), to, to_disk, peer })
    }

    /// Drops the shared channels to nodes that are no longer members.
    pub(crate) fn retain(&self, is_member: impl Fn(u64) -> bool) {
        let mut shared = self.shared.lock();
        shared.retain(|(node_id, _), _| is_member(*node_id));
    }

    /// The shared channel of one purpose to a member.
    pub(crate) fn shared(
        &self,
        purpose: Purpose,
        to: u64,
        member: &MemberRecord,
    ) -> Result<Client, NoTransport> {
        let mut shared = self.shared.lock();
        if let Some((known, client)) = shared.get(&(to, purpose))
            && known == member
        {
            return Ok(client.clone());
        }
        let client = self.own(to, &member.address, Some(member.disk_id))?;
        shared.insert((to, purpose), (member.clone(), client.clone()));
        Ok(client)
    }
}

impl Client {
    /// The gRPC client.
    pub(crate) fn peer(&self) -> PeerClient<VerifiedChannel> {
        self.peer.clone()
    }

    /// Adds the call metadata to a message.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let call = CallMetadata {
            cluster_id: self.local.cluster_id(),
            from: self.local.node_id,
            from_disk: self.local.disk_id,
            to: self.to,
            to_disk: self.to_disk,
            life: self.local.life,
            known: self.to_disk.and_then(|disk_id| self.local.disk_records.of((self.to, disk_id))),
            feature_level: self.local.feature_levels.cluster(),
        };
        call.write(request.metadata_mut());
        request
    }

    /// Records that the node granted this vote, or follows its leader.
    pub(crate) fn voted(&self, vote: LeaderId) {
        if let Some(disk_id) = self.to_disk {
            self.local.disk_records.voted((self.to, disk_id), vote);
        }
    }

    /// Records of the members' disks, for a heartbeat.
    pub(crate) fn memories(&self) -> Vec<codec::proto::Memory> {
        self.local.disk_records.to_proto()
    }
}
