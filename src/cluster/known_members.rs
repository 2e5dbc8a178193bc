//! The members that a node knows: those of the effective membership, which is the last membership entry of its log, and
//! those of the committed one. They differ while an entry is uncommitted; the node must then accept both, because it
//! cannot know which of them will hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use openraft::async_runtime::watch::WatchReceiver as _;

use super::disk_rollback::DiskKey;
use super::type_config::{MemberRecord, StoredMembership, TypeConfig};
use super::{Handle, Machine};

/// Members of the effective and of the committed membership.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownMembers {
    /// The last membership entry of the log, committed or not.
    pub(crate) effective: Arc<StoredMembership>,
    /// The last membership entry known to be committed.
    pub(crate) committed: Arc<StoredMembership>,
}

impl KnownMembers {
    pub(crate) fn of(metrics: &openraft::metrics::RaftServerMetrics<TypeConfig>) -> Self {
        Self {
            effective: Arc::clone(&metrics.membership_config),
            committed: Arc::clone(&metrics.committed_membership_config),
        }
    }

    /// A member. Its record is the same in both: an id has one disk and one address.
    pub(crate) fn get(&self, node_id: u64) -> Option<&MemberRecord> {
        self.effective.get_node(&node_id).or_else(|| self.committed.get_node(&node_id))
    }

    /// Every member, learners included.
    pub(crate) fn all(&self) -> BTreeMap<u64, &MemberRecord> {
        self.committed.nodes().chain(self.effective.nodes()).map(|(id, member)| (*id, member)).collect()
    }

    /// Whether the node has no membership yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// Whether a disk is that of a member.
    pub(crate) fn has_disk(&self, (node_id, disk_id): &DiskKey) -> bool {
        self.get(*node_id).is_some_and(|member| member.disk_id == *disk_id)
    }

    /// Whether the membership is still the one with which a cluster of this node alone was bootstrapped: no
    /// other node was ever a member.
    pub(crate) fn was_always_alone(&self, node_id: u64) -> bool {
        let is_first = self.effective.log_id().is_some_and(|log_id| log_id.index == 0);
        is_first && self.all().keys().eq([&node_id])
    }
}

impl<M: Machine> Handle<M> {
    /// The members, as this node knows them.
    pub(crate) fn known_members(&self) -> KnownMembers {
        KnownMembers::of(&self.raft.server_metrics().borrow_watched())
    }
}
