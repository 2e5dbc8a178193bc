//! Who calls whom: stated in every call, and held against the certificate, the cluster and the disks.

use prost::Message as _;
use tonic::metadata::{BinaryMetadataValue, MetadataMap, MetadataValue};

use super::wire::proto;
use crate::cluster::codec;
use crate::cluster::set_back::{Life, Memory, SetBack};
use crate::cluster::type_config::LogId;
use crate::id::{TrustDomain, WorkloadId};

/// The metadata that carries it.
const KEY: &str = "trust-fabric-call-bin";

/// The id of a cluster: drawn by the node that founds it.
pub type ClusterId = [u8; 16];

/// The identity of a disk: drawn when it is first used.
pub type DiskId = [u8; 16];

/// How a member whose disk was lost, set back or copied is put right.
pub const WAY_BACK: &str = "start it with the newest copy of its data directory if there is one; otherwise the member \
                            must be replaced (`trust-fabric cluster replace`, which this version does not have yet)";

/// Why a call is refused. Said to the caller, whose log shows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does not say who calls whom.
    #[error("the call does not say who calls whom")]
    Unstated,
    /// The certificate is that of somebody else.
    #[error("the certificate is that of {certified}, not of node {from}, whose is {expected}")]
    Identity {
        /// Whom the certificate names.
        certified: WorkloadId,
        /// Who it says it is.
        from: u64,
        /// Whom its certificate should name.
        expected: String,
    },
    /// It is not for this node.
    #[error("the call is for node {to}; this is node {this}")]
    NotThisNode {
        /// Whom it is for.
        to: u64,
        /// Who this is.
        this: u64,
    },
    /// The node that was called has another disk than the caller knows.
    #[error(
        "node {0} has another disk than the cluster knows: a disk that was lost may not come back under its id"
    )]
    OtherDisk(u64),
    /// The caller has another disk than the cluster knows.
    #[error(
        "the cluster knows node {0} by another disk: a disk that was lost may not come back under its id"
    )]
    DiskOfCaller(u64),
    /// The caller's disk was set back.
    #[error("node {node}: {why}")]
    SetBack {
        /// The caller.
        node: u64,
        /// The missing part.
        why: SetBack,
    },
    /// This node's disk was set back, as the caller shows.
    #[error("node {node}, as node {by} knows: {why}")]
    ThisSetBack {
        /// This node.
        node: u64,
        /// The caller.
        by: u64,
        /// The missing part.
        why: SetBack,
    },
    /// A leader's log has another entry in the place of a committed one.
    #[error(
        "entry {0}, which node {1} knows to be committed, is another one in the log of the leader: acknowledged \
         writes are lost on one side, and an operator must decide which"
    )]
    Contradiction(LogId, u64),
    /// The caller is of another cluster.
    #[error("this node is of cluster {ours}, the call is of cluster {theirs}")]
    OtherCluster {
        /// Ours.
        ours: String,
        /// Theirs.
        theirs: String,
    },
    /// The cluster has no such member.
    #[error("node {0} is not a member of this cluster")]
    NotAMember(u64),
    /// This node knows no members yet, and is not configured to found a cluster with the caller.
    #[error("this node knows no members yet, and node {0} is not one of those it is to found a cluster with")]
    NotAFounder(u64),
}

/// A call, as it is stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// `None` if the caller belongs to no cluster yet.
    pub cluster_id: Option<ClusterId>,
    /// Who calls.
    pub from: u64,
    /// On which disk.
    pub from_disk: DiskId,
    /// Whom.
    pub to: u64,
    /// On which disk; `None` if the caller does not know it yet.
    pub to_disk: Option<DiskId>,
    /// The process that calls.
    pub life: Life,
    /// What the caller remembers of the disk that is called.
    pub known: Option<Memory>,
}

impl Call {
    /// As metadata.
    pub fn write(&self, metadata: &mut MetadataMap) {
        let optional =
            |id: Option<[u8; 16]>| id.map(|id| bytes::Bytes::copy_from_slice(&id)).unwrap_or_default();
        let message = proto::Call {
            cluster_id: optional(self.cluster_id),
            from: self.from,
            from_disk: optional(Some(self.from_disk)),
            to: self.to,
            to_disk: optional(self.to_disk),
            life: Some(codec::life_to_proto(&self.life)),
            known: self
                .known
                .as_ref()
                .map(|known| codec::memory_to_proto((self.to, self.to_disk.unwrap_or_default()), known)),
        };
        let value: BinaryMetadataValue = MetadataValue::from_bytes(&message.encode_to_vec());
        metadata.insert_bin(KEY, value);
    }

    /// From metadata.
    pub fn read(metadata: &MetadataMap) -> Result<Self, Refusal> {
        let bytes = metadata.get_bin(KEY).ok_or(Refusal::Unstated)?.to_bytes();
        let bytes = bytes.map_err(|_| Refusal::Unstated)?;
        let message = proto::Call::decode(bytes).map_err(|_| Refusal::Unstated)?;
        let id = |bytes: &[u8]| bytes.try_into().map_err(|_| Refusal::Unstated);
        let optional = |bytes: &[u8]| if bytes.is_empty() { Ok(None) } else { id(bytes).map(Some) };
        let life = codec::life_from_proto(message.life.as_ref().ok_or(Refusal::Unstated)?);
        let known = message.known.as_ref().map(codec::memory_from_proto).transpose();
        Ok(Self {
            cluster_id: optional(&message.cluster_id)?,
            from: message.from,
            from_disk: id(&message.from_disk)?,
            to: message.to,
            to_disk: optional(&message.to_disk)?,
            life: life.map_err(|_| Refusal::Unstated)?,
            known: known.map_err(|_| Refusal::Unstated)?.map(|(_, known)| known),
        })
    }
}

/// The SPIFFE ID that the certificate of a node must name.
#[must_use]
pub fn spiffe_id(trust_domain: &TrustDomain, node_id: u64) -> String {
    format!("spiffe://{trust_domain}/node/{node_id}")
}

/// The node that a SPIFFE ID names, if it names one.
#[must_use]
pub fn node_of(trust_domain: &TrustDomain, certified: &WorkloadId) -> Option<u64> {
    let node_id = certified.as_str().rsplit('/').next()?.parse().ok()?;
    (certified.as_str() == spiffe_id(trust_domain, node_id)).then_some(node_id)
}

/// Checks that the certificate is that of the node that says it calls, and that this is the node it calls.
pub fn check_identity(
    call: &Call,
    certified: &WorkloadId,
    trust_domain: &TrustDomain,
    this: u64,
) -> Result<(), Refusal> {
    let expected = spiffe_id(trust_domain, call.from);
    if certified.as_str() != expected {
        return Err(Refusal::Identity { certified: certified.clone(), from: call.from, expected });
    }
    if call.to != this {
        return Err(Refusal::NotThisNode { to: call.to, this });
    }
    Ok(())
}

/// An id as it is shown to people.
#[must_use]
pub fn shown(id: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*id))
}
