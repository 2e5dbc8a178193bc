//! The status of the cluster as this node knows it, for operators. It needs no lease and no leader, and nothing is
//! decided by it.

use openraft::async_runtime::watch::WatchReceiver as _;

use super::reads::freshness::Standing;
use super::type_config::LogId;
use super::{Handle, Machine};

/// What a node knows of itself and of its cluster.
#[derive(Clone, Debug)]
pub struct Status {
    /// This node.
    pub node_id: u64,
    /// Its term.
    pub term: u64,
    /// The leader that it last heard of, confirmed or not.
    pub leader: Option<u64>,
    /// The same, if a majority has confirmed it of late.
    pub confirmed_leader: Option<u64>,
    /// The last entry of its log.
    pub last_log_index: Option<u64>,
    /// The last entry that it has applied.
    pub applied: u64,
    /// Its freshness lease.
    pub lease: Standing,
    /// The members by its last membership.
    pub members: Vec<Member>,
}

/// One member.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its id.
    pub node_id: u64,
    /// Its address for other nodes.
    pub address: String,
    /// Whether it votes.
    pub is_voter: bool,
    /// The last entry that its log shares with the leader's; `None` on a node that does not lead.
    pub matched: Option<u64>,
}

impl<M: Machine> Handle<M> {
    /// The status of the cluster as this node knows it.
    #[must_use]
    pub fn status(&self) -> Status {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched().clone();
        let membership = metrics.membership_config.membership();
        let matched = |id: &u64| metrics.replication.as_ref()?.get(id)?.as_ref().map(LogId::index);
        let member = |(id, peer): (&u64, &super::type_config::Peer)| Member {
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
