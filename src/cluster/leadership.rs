//! Who leads, as far as this node knows, and what only the leader can say.

use openraft::ReadPolicy;
use openraft::async_runtime::watch::WatchReceiver as _;

use super::apply::database::Database;
use super::peers::{DiskId, Purpose, wire};
use super::type_config::{LogId, Peer, StoredMembership};
use super::{Corrupt, Handle, Machine};
use crate::limits;

impl<M: Machine> Handle<M> {
    /// The members, as this node knows them.
    pub(super) fn membership(&self) -> StoredMembership {
        self.raft.server_metrics().borrow_watched().membership_config.as_ref().clone()
    }

    /// The disk by which the members know one of them.
    pub(super) fn disk_of(&self, node_id: u64) -> Option<DiskId> {
        self.membership().membership().get_node(&node_id).map(|peer| peer.disk_id)
    }

    /// The other members, learners among them.
    pub(super) fn other_members(&self) -> Vec<(u64, Peer)> {
        let membership = self.membership();
        let others = membership.membership().nodes().filter(|(id, _)| **id != self.node_id);
        others.map(|(id, peer)| (*id, peer.clone())).collect()
    }

    /// The term this node is in.
    pub(super) fn term(&self) -> u64 {
        self.raft.metrics().borrow_watched().current_term
    }

    /// Whether it has no log and has never voted.
    pub(super) fn is_blank(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.last_log_index.is_none() && metrics.current_term == 0
    }

    /// The last entry applied here.
    ///
    /// # Errors
    /// [`Corrupt`] if the row is not what was written.
    pub(super) fn applied_log_id(&self) -> Result<Option<LogId>, Corrupt> {
        Database::applied(&self.shared.database.load())
    }

    /// The leader this node last heard of; itself if it leads, as far as it knows. To be asked, not to be shown: a
    /// node that is cut off from all others goes on to name one, itself among them. None while the disk hangs: then
    /// this node leads nobody, and of what it had another write it could read nothing.
    #[must_use]
    pub fn leader(&self) -> Option<u64> {
        self.known_leader().filter(|_| !self.disk.hangs())
    }

    /// The leader this node last heard of, whatever its disk does.
    pub(super) fn known_leader(&self) -> Option<u64> {
        self.raft.server_metrics().borrow_watched().current_leader
    }

    /// [`Handle::leader`], if a majority has confirmed of late that it leads. For people: whoever asks it something finds out by
    /// asking.
    #[must_use]
    pub fn confirmed_leader(&self) -> Option<u64> {
        self.leader().filter(|_| self.freshness().lapsed < limits::LEADER_UNCONFIRMED_MAX)
    }

    /// Whether this node knows who belongs to its cluster.
    #[must_use]
    pub fn has_members(&self) -> bool {
        self.membership().membership().nodes().next().is_some()
    }

    /// Whether somebody leads, which a restarted node knows only from what it is told since.
    #[must_use]
    pub fn is_led(&self) -> bool {
        self.raft.server_metrics().borrow_watched().state.is_leader() || self.another_leads()
    }

    /// Which other nodes this one waits for to found a cluster, and why each does not answer.
    #[must_use]
    pub fn waits_for(&self) -> Option<String> {
        Some(self.channels.this.waits_for()).filter(|waits_for| !waits_for.is_empty())
    }

    /// Waits until `index` is applied here, and what this node knows of the leader is as new as that: a deposed leader
    /// that has applied an entry of its successor does not take itself for the leader any more. Never ends if the core
    /// has stopped.
    pub(super) async fn until_applied_as_known(&self, index: u64) {
        let mut metrics = self.raft.metrics();
        while metrics.borrow_watched().last_applied.is_none_or(|applied| applied.index < index) {
            if metrics.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until `wanted` is true of the leader that is known. Never ends if the core has stopped.
    async fn until_leader(&self, wanted: impl Fn(Option<u64>) -> bool) {
        self.until(|| wanted(self.leader())).await;
    }

    /// Waits until `is_so`, which is looked at when what is known of the leader or of the disk changes.
    pub(super) async fn until(&self, is_so: impl Fn() -> bool) {
        let (mut metrics, mut disk) = (self.raft.server_metrics(), self.disk.state());
        while !is_so() {
            let is_over = tokio::select! {
                changed = metrics.changed() => changed.is_err(),
                changed = disk.changed() => changed.is_err(),
            };
            if is_over {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until this node leads, or until it does not. Never ends if the core has stopped.
    pub async fn until_leads(&self, leads: bool) {
        self.until_leader(|leader| (leader == Some(self.node_id)) == leads).await;
    }

    /// Waits until a leader is known, and where it is reached. Never ends if the core has stopped.
    pub(super) async fn until_led(&self) -> (u64, Peer) {
        loop {
            self.until_leader(|leader| leader.is_some()).await;
            if let Some(leader) = self.leader()
                && let Some(peer) = self.membership().membership().get_node(&leader)
            {
                return (leader, peer.clone());
            }
            // A leader whose membership has not come here yet.
            tokio::time::sleep(limits::PROPOSE_RETRY_PAUSE).await;
        }
    }

    /// Waits until another node than `before` leads. Never ends if the core has stopped.
    pub(super) async fn until_not_led_by(&self, before: u64) {
        self.until_leader(|leader| leader.is_some_and(|leader| leader != before)).await;
    }

    /// Remembers since when this node leads.
    pub(super) fn note_leading(&self) {
        let metrics = self.raft.metrics();
        let (leader, term) = {
            let metrics = metrics.borrow_watched();
            (metrics.current_leader, metrics.current_term)
        };
        if leader == Some(self.node_id) {
            self.freshness.leads_since(term);
        }
    }

    /// As the leader: an index that covers everything acknowledged before this was called, once a quorum has
    /// confirmed that this node leads. `None` if it does not. Never by the library's own lease: it is forgotten by
    /// a voter that restarts.
    pub(super) async fn confirm_leadership(&self) -> Option<u64> {
        if self.disk.hangs() {
            return None;
        }
        let confirmed = self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await.ok()?;
        self.note_leading();
        Some(confirmed.read_log_id().index())
    }

    /// On any node: the same, of whoever leads. Each call asks anew, so that no answer is older than its
    /// question. `None` if nobody could be asked. `for_lease`: only then may a lease be taken from the answer.
    pub(super) async fn confirmed_index(&self, for_lease: bool) -> Option<u64> {
        let leader = self.leader()?;
        if leader == self.node_id {
            let index = self.confirm_leadership().await?;
            self.clocks.note(self.measure_clocks());
            return Some(index);
        }
        let member = self.membership().membership().get_node(&leader)?.clone();
        let client = self.channels.shared(Purpose::Questions, leader, &member).ok()?;
        let mut peer = client.peer();
        let asked = peer.read_index(client.request(super::peers::proto::ReadIndexRequest { for_lease }));
        let answer = tokio::time::timeout(limits::FRESHNESS_ATTEMPT, asked).await.ok()?;
        let answer = answer.ok()?.into_inner();
        self.clocks.note(wire::clock_report(answer.clocks));
        Some(answer.index)
    }
}
