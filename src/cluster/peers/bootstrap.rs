//! Bootstrap: every node starts with the same list of members, in any order. The node with the smallest id bootstraps
//! the cluster when it knows the disk identity of every member, so the first membership entry names every disk, and a
//! lost disk is rejected from the first call on.
//!
//! A node with a log has nothing to bootstrap: the log names the members, regardless of the configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use openraft::errors::{InitializeError, RaftError};

use super::channels::Channels;
use super::client::reason;
use super::local_node::LocalNode;
use super::proto;
use crate::cluster::corrupt::REPLACE_ADVICE;
use crate::cluster::type_config::{ClusterId, DiskId, MemberRecord};
use crate::cluster::{Handle, Machine, Raft};
use crate::{limits, text};

/// Response to `Hello`.
struct NodeInfo {
    disk_id: DiskId,
    belongs_to_cluster: bool,
    cluster_id: Option<ClusterId>,
    disk_of_sender: Option<DiskId>,
    same_members: bool,
}

/// Reason why this node cannot be a member of the configured cluster. It stops.
#[derive(Clone, Debug, PartialEq, Eq)]
enum BootstrapConflict {
    OtherMembers(u64),
    OtherDisk { by: u64, cluster_id: ClusterId },
    NoMember(u64),
    OtherCluster { by: u64, cluster_id: ClusterId, ours: ClusterId },
}

impl fmt::Display for BootstrapConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherMembers(by) => write!(
                f,
                "node {by} is configured with other members: cluster.members must be the same on every node that \
                 bootstraps a cluster"
            ),
            Self::OtherDisk { by, cluster_id } => write!(
                f,
                "node {by} belongs to cluster {}, which has another disk identity for this node id: a node whose disk \
                 was lost must not return under its id; {REPLACE_ADVICE}",
                text::hex(cluster_id)
            ),
            Self::NoMember(by) => write!(
                f,
                "node {by} belongs to a cluster already, and this node is not a member of it: a cluster is bootstrapped \
                 once; to join it, run `trust-fabric cluster join`"
            ),
            Self::OtherCluster { by, cluster_id, ours } => write!(
                f,
                "node {by} belongs to cluster {}, this node to cluster {}",
                text::hex(cluster_id),
                text::hex(ours)
            ),
        }
    }
}

/// Runs until this node has the first entry of its cluster's log, or bootstraps the cluster itself with the id `drawn`.
/// If it cannot be a member, it is stopped with the reason.
pub(crate) async fn bootstrap<M: Machine>(channels: Arc<Channels>, handle: Handle<M>, drawn: ClusterId) {
    let local = &channels.local;
    if local.has_joined {
        return until_added(local, &handle).await;
    }
    let others: Vec<(u64, String)> = local
        .initial_members
        .iter()
        .filter(|(id, _)| **id != local.node_id)
        .map(|(id, at)| (*id, at.clone()))
        .collect();
    let is_bootstrapper = local.initial_members.keys().next() == Some(&local.node_id);
    while handle.is_blank() {
        let requests = others.iter().map(|(id, address)| hello(&channels, *id, address));
        let answers: Vec<_> = futures::future::join_all(requests).await;
        let mut disks = BTreeMap::from([(local.node_id, local.disk_id)]);
        // The cluster id that another node has stored already, although no node has its first entry yet.
        let mut joined = local.cluster_id();
        let mut missing = Vec::new();
        for ((id, _), answer) in others.iter().zip(&answers) {
            match answer {
                Ok(answer) => {
                    if let Some(conflict) = conflict_with(*id, answer, local.disk_id, joined) {
                        local.stop(conflict.to_string());
                        return;
                    }
                    joined = joined.or(answer.cluster_id);
                    disks.insert(*id, answer.disk_id);
                }
                Err(reason) => missing.push(format!("node {id}: {reason}")),
            }
        }
        if is_bootstrapper && disks.len() == local.initial_members.len() && handle.is_blank() {
            let id = joined.unwrap_or(drawn);
            match initialize(&handle.raft, &channels, id, &disks).await {
                Ok(()) => {
                    tracing::info!(cluster = text::hex(&id), members = disks.len(), "cluster bootstrapped");
                    break;
                }
                Err(error) => return local.stop(format!("failed to bootstrap the cluster: {error}")),
            }
        }
        // The node with the smallest id bootstraps; the others wait for its first entry.
        if missing.is_empty() && !is_bootstrapper {
            missing.extend(
                local.initial_members.keys().next().map(|id| format!("node {id}: it bootstraps the cluster")),
            );
        }
        local.wait_for(missing.join("; "));
        tokio::time::sleep(limits::BOOTSTRAP_POLL_INTERVAL).await;
    }
    local.wait_for(String::new());
}

/// Waits until a node that joined an existing cluster has the first entry of its log.
async fn until_added<M: Machine>(local: &LocalNode, handle: &Handle<M>) {
    while handle.is_blank() {
        local.wait_for("the leader adds this node, which joined the cluster, as a learner".to_owned());
        tokio::time::sleep(limits::BOOTSTRAP_POLL_INTERVAL).await;
    }
    local.wait_for(String::new());
}

async fn hello(channels: &Channels, id: u64, address: &str) -> Result<NodeInfo, String> {
    let client = channels.own(id, address, None).map_err(|error| error.to_string())?;
    let members = channels.local.initial_members.iter();
    let members = members.map(|(id, address)| proto::Member { node_id: *id, address: address.clone() });
    let mut peer = client.peer();
    let answer = peer.hello(client.request(proto::HelloRequest { members: members.collect() }));
    let answer = tokio::time::timeout(limits::PEER_CONNECT_TIMEOUT, answer).await;
    let answer = answer.map_err(|_| "timeout".to_owned())?;
    let answer = answer.map_err(|status| reason(&status))?.into_inner();
    let optional = |bytes: &[u8]| match bytes {
        [] => Ok(None),
        bytes => bytes.try_into().map(Some).map_err(|_| "an id in the response is not 16 bytes".to_owned()),
    };
    Ok(NodeInfo {
        disk_id: optional(&answer.disk_id)?.ok_or("disk_id is missing")?,
        belongs_to_cluster: answer.belongs_to_cluster,
        cluster_id: optional(&answer.cluster_id)?,
        disk_of_sender: optional(&answer.disk_of_sender)?,
        same_members: answer.same_members,
    })
}

/// Checks a response against this node's disk and its cluster id, if it has one.
fn conflict_with(
    by: u64,
    answer: &NodeInfo,
    disk_id: DiskId,
    ours: Option<ClusterId>,
) -> Option<BootstrapConflict> {
    let Some(cluster_id) = answer.cluster_id else {
        return match answer {
            NodeInfo { belongs_to_cluster: true, .. } => Some(BootstrapConflict::NoMember(by)),
            NodeInfo { same_members: false, .. } => Some(BootstrapConflict::OtherMembers(by)),
            _ => None,
        };
    };
    match (answer.disk_of_sender, ours) {
        (Some(known), _) if known != disk_id => Some(BootstrapConflict::OtherDisk { by, cluster_id }),
        (_, Some(ours)) if ours != cluster_id => {
            Some(BootstrapConflict::OtherCluster { by, cluster_id, ours })
        }
        // It may have joined a moment ago, without the membership entry yet.
        (None, None) if !answer.same_members => Some(BootstrapConflict::NoMember(by)),
        _ => None,
    }
}

/// Writes the first log entry: the members and their disks. The cluster id is stored before it, so that a crash between
/// the two leaves a node that bootstraps the same cluster.
async fn initialize<M: Machine>(
    raft: &Raft<M>,
    channels: &Channels,
    id: ClusterId,
    disks: &BTreeMap<u64, DiskId>,
) -> Result<(), String> {
    let local = &channels.local;
    local.join(id).map_err(|error| error.to_string())?;
    let peer = |(id, address): (&u64, &String)| {
        let disk_id = disks.get(id).copied().unwrap_or_default();
        (*id, MemberRecord { address: address.clone(), disk_id })
    };
    let members: BTreeMap<u64, MemberRecord> = local.initial_members.iter().map(peer).collect();
    match raft.initialize(members).await {
        Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
