//! Call metadata: caller, called node, disks and cluster of every call, checked against the certificate, the membership
//! and the disk records.

use prost::Message as _;
use tonic::metadata::{BinaryMetadataValue, MetadataMap, MetadataValue};

use super::identities::NodeIdentities;
use super::wire::proto;
use crate::cluster::codec;
use crate::cluster::disk_rollback::{DiskRecord, DiskRollback, Life};
use crate::cluster::type_config::{ClusterId, DiskId, LogId};
use crate::id::WorkloadId;

/// Metadata key.
const KEY: &str = "trust-fabric-call-bin";

/// A call is rejected. The text goes to the caller, which logs it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallRejection {
    /// Metadata is missing or does not decode.
    #[error("the call metadata is missing or malformed")]
    Unstated,
    /// The certificate is not that of the stated caller.
    #[error("the certificate names {certified}, but node {from} is {expected}")]
    Identity {
        /// Subject of the certificate.
        certified: WorkloadId,
        /// The stated caller.
        from: u64,
        /// The expected subject.
        expected: String,
    },
    /// The call is for another node.
    #[error("the call is for node {to}, this is node {this}")]
    NotThisNode {
        /// The stated node.
        to: u64,
        this: u64,
    },
    /// This node has another disk than the caller states.
    #[error(
        "node {0} has another disk than the cluster expects: a node whose disk was lost must not return under its id"
    )]
    OtherDisk(u64),
    /// The caller has another disk than the membership.
    #[error(
        "the membership has another disk for node {0}: a node whose disk was lost must not return under its id"
    )]
    DiskOfCaller(u64),
    /// The caller's disk was rolled back or copied.
    #[error("node {node}: {why}")]
    DiskRollback {
        /// The caller.
        node: u64,
        /// The missing part.
        why: DiskRollback,
    },
    /// This node's disk was rolled back or copied, by the caller's record.
    #[error("node {node}, by the record of node {by}: {why}")]
    LocalDiskRollback {
        node: u64,
        /// The caller.
        by: u64,
        /// The missing part.
        why: DiskRollback,
    },
    /// A leader's log differs at a committed entry.
    #[error(
        "log entry {0}, committed on node {1}, differs from the leader's: acknowledged writes are lost on one \
         side; an operator must decide which"
    )]
    Contradiction(LogId, u64),
    /// The caller belongs to another cluster.
    #[error("this node belongs to cluster {ours}, the caller to cluster {theirs}")]
    OtherCluster { ours: String, theirs: String },
    /// The caller is not a member.
    #[error("node {0} is not a member of this cluster")]
    NotAMember(u64),
    /// The caller was removed from the membership.
    #[error("node {node} was removed from the cluster at log index {index}")]
    Removed {
        /// The caller.
        node: u64,
        /// Index of the entry that removed it.
        index: u64,
    },
    /// The cluster has a feature level that this node does not support.
    #[error(
        "the cluster has feature level {cluster}, and node {node} supports at most {newest}: install a newer version on \
         node {node}, then start it again"
    )]
    FeatureLevel {
        node: u64,
        /// Level of the cluster.
        cluster: u32,
        /// The newest level that this node supports.
        newest: u32,
    },
    /// This node has no membership yet, and the caller is not one of its configured initial members.
    #[error("this node has no membership yet, and node {0} is not one of its configured initial members")]
    NotInitialMember(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallMetadata {
    /// `None` before the caller belongs to a cluster.
    pub(crate) cluster_id: Option<ClusterId>,
    /// The caller.
    pub(crate) from: u64,
    /// Disk of the caller.
    pub(crate) from_disk: DiskId,
    /// The called node.
    pub(crate) to: u64,
    /// Disk of the called node; `None` if the caller does not know it yet.
    pub(crate) to_disk: Option<DiskId>,
    /// Life of the calling process.
    pub(crate) life: Life,
    /// The caller's record of the called disk.
    pub(crate) known: Option<DiskRecord>,
    /// Feature level of the cluster, as the caller has applied it.
    pub(crate) feature_level: u32,
}

impl CallMetadata {
    pub(crate) fn write(&self, metadata: &mut MetadataMap) {
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
            feature_level: self.feature_level,
        };
        let value: BinaryMetadataValue = MetadataValue::from_bytes(&message.encode_to_vec());
        metadata.insert_bin(KEY, value);
    }

    pub(crate) fn read(metadata: &MetadataMap) -> Result<Self, CallRejection> {
        let bytes = metadata.get_bin(KEY).ok_or(CallRejection::Unstated)?.to_bytes();
        let bytes = bytes.map_err(|_| CallRejection::Unstated)?;
        let message = proto::Call::decode(bytes).map_err(|_| CallRejection::Unstated)?;
        let id = |bytes: &[u8]| bytes.try_into().map_err(|_| CallRejection::Unstated);
        let optional = |bytes: &[u8]| if bytes.is_empty() { Ok(None) } else { id(bytes).map(Some) };
        let life = codec::life_from_proto(message.life.as_ref().ok_or(CallRejection::Unstated)?);
        let known = message.known.as_ref().map(codec::memory_from_proto).transpose();
        Ok(Self {
            cluster_id: optional(&message.cluster_id)?,
            from: message.from,
            from_disk: id(&message.from_disk)?,
            to: message.to,
            to_disk: optional(&message.to_disk)?,
            life: life.map_err(|_| CallRejection::Unstated)?,
            known: known.map_err(|_| CallRejection::Unstated)?.map(|(_, known)| known),
            feature_level: message.feature_level,
        })
    }
}

/// Checks that the certificate is the stated caller's, and that this is the called node.
pub(crate) fn check_identity(
    call: &CallMetadata,
    certified: &WorkloadId,
    identities: &NodeIdentities,
    this: u64,
) -> Result<(), CallRejection> {
    let expected = identities.of(call.from);
    if certified.as_str() != expected {
        return Err(CallRejection::Identity { certified: certified.clone(), from: call.from, expected });
    }
    if call.to != this {
        return Err(CallRejection::NotThisNode { to: call.to, this });
    }
    Ok(())
}
