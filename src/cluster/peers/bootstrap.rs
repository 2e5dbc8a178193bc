//! How a cluster begins: every node is started with the same list of members, in any order, and the first of the
//! list founds it when it has heard of each which disk it has. So the membership names every disk from its first
//! entry on, and a disk that was lost is refused from the first call on.
//!
//! A node that has a log already has nothing to do here: which members there are is in the log, whatever its
//! configuration says.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use openraft::errors::{InitializeError, RaftError};

use super::call_metadata;
use super::call_metadata::{ClusterId, DiskId, WAY_BACK};
use super::channels::Channels;
use super::client::reason;
use super::proto;
use crate::cluster::propose::Raft;
use crate::cluster::type_config::Peer;
use crate::cluster::{Handle, Machine};
use crate::limits;

/// What a node answered.
struct Answer {
    disk_id: DiskId,
    cluster_id: Option<ClusterId>,
    disk_of_sender: Option<DiskId>,
    same_members: bool,
}

/// Why this node cannot belong to the cluster it is configured for. It stops.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Misfit {
    OtherMembers(u64),
    OtherDisk { by: u64, cluster_id: ClusterId },
    NoMember { by: u64, cluster_id: ClusterId },
    OtherCluster { by: u64, cluster_id: ClusterId, ours: ClusterId },
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherMembers(by) => write!(
                f,
                "node {by} is configured with other members: cluster.members must be the same on every node that \
                 founds a cluster"
            ),
            Self::OtherDisk { by, cluster_id } => write!(
                f,
                "node {by} is of cluster {}, which knows this node's id by another disk: a disk that was lost may \
                 not come back under its id; {WAY_BACK}",
                call_metadata::shown(cluster_id)
            ),
            Self::NoMember { by, cluster_id } => write!(
                f,
                "node {by} is of cluster {} already, and this node is not a member of it: a cluster is founded \
                 once",
                call_metadata::shown(cluster_id)
            ),
            Self::OtherCluster { by, cluster_id, ours } => write!(
                f,
                "node {by} is of cluster {}, and this node of cluster {}",
                call_metadata::shown(cluster_id),
                call_metadata::shown(ours)
            ),
        }
    }
}

/// Runs until this node belongs to a cluster whose log it has begun to get, or founds one itself with the id
/// `drawn`. If it can belong to none it is stopped, with an explanation.
pub async fn found<M: Machine>(channels: Arc<Channels>, handle: Handle<M>, drawn: ClusterId) {
    let this = &channels.this;
    let others: Vec<(u64, String)> = this
        .founders
        .iter()
        .filter(|(id, _)| **id != this.node_id)
        .map(|(id, at)| (*id, at.clone()))
        .collect();
    let is_founder = this.founders.keys().next() == Some(&this.node_id);
    while handle.is_blank() {
        let asked = others.iter().map(|(id, address)| ask(&channels, *id, address));
        let answers: Vec<_> = futures::future::join_all(asked).await;
        let mut disks = BTreeMap::from([(this.node_id, this.disk_id)]);
        // The cluster that another has joined already, and of which nobody has an entry yet.
        let mut joined = this.cluster_id();
        let mut now_silent = Vec::new();
        for ((id, _), answer) in others.iter().zip(&answers) {
            match answer {
                Ok(answer) => {
                    if let Some(misfit) = misfit(*id, answer, this.disk_id, joined) {
                        this.stop(misfit.to_string());
                        return;
                    }
                    joined = joined.or(answer.cluster_id);
                    disks.insert(*id, answer.disk_id);
                }
                Err(reason) => now_silent.push(format!("node {id}: {reason}")),
            }
        }
        if is_founder && disks.len() == this.founders.len() && handle.is_blank() {
            let id = joined.unwrap_or(drawn);
            match begin(&handle.raft, &channels, id, &disks).await {
                Ok(()) => {
                    tracing::info!(
                        cluster = call_metadata::shown(&id),
                        members = disks.len(),
                        "a cluster is founded"
                    );
                    break;
                }
                Err(error) => return this.stop(format!("found a cluster: {error}")),
            }
        }
        // The first of the list founds the cluster; the others are told.
        if now_silent.is_empty() && !is_founder {
            now_silent
                .extend(this.founders.keys().next().map(|id| format!("node {id}: it founds the cluster")));
        }
        this.wait_for(now_silent.join("; "));
        tokio::time::sleep(limits::FOUNDING_PAUSE).await;
    }
    this.wait_for(String::new());
}

async fn ask(channels: &Channels, id: u64, address: &str) -> Result<Answer, String> {
    let client = channels.own(id, address, None).map_err(|error| error.to_string())?;
    let members = channels.this.founders.iter();
    let members = members.map(|(id, address)| proto::Member { node_id: *id, address: address.clone() });
    let mut peer = client.peer();
    let asked = peer.hello(client.request(proto::HelloRequest { members: members.collect() }));
    let answer = tokio::time::timeout(limits::PEER_CONNECT_TIMEOUT, asked).await;
    let answer = answer.map_err(|_| "no answer in time".to_owned())?;
    let answer = answer.map_err(|status| reason(&status))?.into_inner();
    let optional = |bytes: &[u8]| match bytes {
        [] => Ok(None),
        bytes => bytes.try_into().map(Some).map_err(|_| "an id is not 16 bytes".to_owned()),
    };
    Ok(Answer {
        disk_id: optional(&answer.disk_id)?.ok_or("disk_id is missing")?,
        cluster_id: optional(&answer.cluster_id)?,
        disk_of_sender: optional(&answer.disk_of_sender)?,
        same_members: answer.same_members,
    })
}

/// What an answer says against this node, which is on `disk_id` and belongs to `ours` if to any.
fn misfit(by: u64, answer: &Answer, disk_id: DiskId, ours: Option<ClusterId>) -> Option<Misfit> {
    let Some(cluster_id) = answer.cluster_id else {
        return (!answer.same_members).then_some(Misfit::OtherMembers(by));
    };
    match (answer.disk_of_sender, ours) {
        (Some(known), _) if known != disk_id => Some(Misfit::OtherDisk { by, cluster_id }),
        (_, Some(ours)) if ours != cluster_id => Some(Misfit::OtherCluster { by, cluster_id, ours }),
        // It may have joined a moment ago, and not know the members yet.
        (None, None) if !answer.same_members => Some(Misfit::NoMember { by, cluster_id }),
        _ => None,
    }
}

/// The first entry of the log: the members and their disks. The id of the cluster comes before it, so that a
/// crash between the two leaves a node that founds the same cluster.
async fn begin<M: Machine>(
    raft: &Raft<M>,
    channels: &Channels,
    id: ClusterId,
    disks: &BTreeMap<u64, DiskId>,
) -> Result<(), String> {
    let this = &channels.this;
    this.join(id).map_err(|error| error.to_string())?;
    let peer = |(id, address): (&u64, &String)| {
        let disk_id = disks.get(id).copied().unwrap_or_default();
        (*id, Peer { address: address.clone(), disk_id })
    };
    let members: BTreeMap<u64, Peer> = this.founders.iter().map(peer).collect();
    match raft.initialize(members).await {
        Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
