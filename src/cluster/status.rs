//! Cluster status as this node sees it, for operators. Needs no lease and no leader; no decision depends on it.

use openraft::async_runtime::watch::WatchReceiver as _;

use super::reads::freshness::LeaseStatus;
use super::type_config::LogId;
use super::{Handle, Machine};

/// A node's view of itself and of its cluster.
#[derive(Clone, Debug)]
pub struct Status {
    /// Id of this node.
    pub(crate) node_id: u64,
    /// Current term.
    pub(crate) term: u64,
    /// Last known leader, confirmed or not.
    pub(crate) leader: Option<u64>,
    /// The leader, if a quorum confirmed it recently.
    pub(crate) confirmed_leader: Option<u64>,
    /// Index of the last log entry.
    pub(crate) last_log_index: Option<u64>,
    /// Index of the last applied entry.
    pub(crate) applied: u64,
    /// Freshness lease of this node.
    pub(crate) lease: LeaseStatus,
    /// Members of the last known membership.
    pub(crate) members: Vec<Member>,
}

/// One member.
#[derive(Clone, Debug)]
pub struct Member {
    /// Node id.
    pub(crate) node_id: u64,
    /// Address for other nodes.
    pub(crate) address: String,
    /// Whether it is a voter.
    pub(crate) is_voter: bool,
    /// Last index at which its log matches the leader's; `None` on followers.
    pub(crate) matched: Option<u64>,
}

impl<M: Machine> Handle<M> {
    /// Cluster status as this node sees it.
    pub(crate) fn status(&self) -> Status {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched().clone();
        let membership = metrics.membership_config.membership();
        let matched = |id: &u64| metrics.replication.as_ref()?.get(id)?.as_ref().map(LogId::index);
        let member = |(id, peer): (&u64, &super::type_config::MemberRecord)| Member {
            node_id: *id,
            address: peer.address.clone(),
            is_voter: membership.voter_ids().any(|voter| voter == *id),
            matched: matched(id),
        };
        Status {
            node_id: self.node_id,
            term: metrics.current_term,
            leader: metrics.current_leader,
            confirmed_leader: self.confirmed_leader(),
            last_log_index: metrics.last_log_index,
            applied: self.applied(),
            lease: self.freshness(),
            members: membership.nodes().map(member).collect(),
        }
    }
}
