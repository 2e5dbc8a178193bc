//! Leader and membership as this node knows them, and the `ReadIndex` protocol.

use std::sync::atomic::Ordering;

use openraft::ReadPolicy;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::vote::RaftLeaderId as _;

use super::apply::database::Database;
use super::peers::{Purpose, proto, wire};
use super::reads::read_index::ConfirmedIndex;
use super::reads::readers::{self, ReaderCall};
use super::reads::sources;
use super::type_config::{DiskId, LogId, MemberRecord};
use super::{Corrupt, Handle, Machine};
use crate::limits;

impl<M: Machine> Handle<M> {
    /// Disk identity of a member.
    pub(super) fn disk_of(&self, node_id: u64) -> Option<DiskId> {
        self.known_members().get(node_id).map(|member| member.disk_id)
    }

    /// The other members, learners included.
    pub(super) fn other_members(&self) -> Vec<(u64, MemberRecord)> {
        let members = self.known_members();
        let others = members.all().into_iter().filter(|(id, _)| *id != self.node_id);
        others.map(|(id, member)| (id, member.clone())).collect()
    }

    /// Current term of this node.
    pub(crate) fn term(&self) -> u64 {
        self.raft.metrics().borrow_watched().current_term
    }

    /// Whether this node has no log entry and never voted.
    pub(super) fn is_blank(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.last_log_index.is_none() && metrics.current_term == 0
    }

    /// Log id of the last applied entry.
    pub(super) fn applied_log_id(&self) -> Result<Option<LogId>, Corrupt> {
        Database::applied(&self.shared.database.load())
    }

    /// The last known leader. A node that is cut off still names one, possibly itself: send requests to it,
    /// but do not conclude that it leads. `None` while this node's disk hangs: it does not lead then, and
    /// cannot store what another leader sends.
    pub(crate) fn leader(&self) -> Option<u64> {
        self.known_leader().filter(|_| !self.disk.hangs())
    }

    /// Number of times that this process learned of a leader.
    pub(crate) fn leader_changes(&self) -> u64 {
        self.leader_changes.load(Ordering::Relaxed)
    }

    /// Logs and counts the changes of the known leader and of the term. Runs for ever.
    pub(super) async fn log_leader_changes(self) {
        let mut metrics = self.raft.server_metrics();
        let mut known = (None, 0);
        loop {
            let now = {
                let metrics = metrics.borrow_watched();
                (metrics.current_leader, metrics.vote.leader_id.term())
            };
            if now != known {
                match now {
                    (Some(leader), term) => {
                        self.leader_changes.fetch_add(1, Ordering::Relaxed);
                        tracing::info!(leader, term, "leader changed");
                    }
                    (None, term) => tracing::info!(term, "no leader is known"),
                }
                known = now;
            }
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }

    /// The last known leader, regardless of this node's disk.
    pub(super) fn known_leader(&self) -> Option<u64> {
        self.raft.server_metrics().borrow_watched().current_leader
    }

    /// [`Handle::leader`], if a quorum confirmed it recently. For display: a request to the leader does not
    /// depend on it.
    pub(crate) fn confirmed_leader(&self) -> Option<u64> {
        self.leader().filter(|_| self.freshness.was_held_within(limits::LEADER_UNCONFIRMED_MAX))
    }

    /// Whether this node knows the membership.
    pub(crate) fn has_members(&self) -> bool {
        !self.known_members().is_empty()
    }

    /// Whether a leader is known to this process, as leader itself or by a heartbeat since its start.
    pub(crate) fn is_led(&self) -> bool {
        self.raft.server_metrics().borrow_watched().state.is_leader() || self.another_leads()
    }

    /// The nodes that bootstrap waits for, and why each does not answer.
    pub(crate) fn waits_for(&self) -> Option<String> {
        Some(self.channels.local.waits_for()).filter(|waits_for| !waits_for.is_empty())
    }

    /// Waits until `index` is applied here and the known leader is as new: a deposed leader that has applied an entry
    /// of its successor no longer takes itself for the leader. Pending for ever once Raft has stopped.
    pub(super) async fn until_applied_as_known(&self, index: u64) {
        // openraft takes entries for applied that are deferred during a dispute.
        self.until_applied(index).await;
        let mut metrics = self.raft.metrics();
        while metrics.borrow_watched().last_applied.is_none_or(|applied| applied.index < index) {
            if metrics.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until `wanted` holds for the known leader. Pending for ever once Raft has stopped.
    async fn until_leader(&self, wanted: impl Fn(Option<u64>) -> bool) {
        self.until(|| wanted(self.leader())).await;
    }

    /// Waits until `is_so`, which is evaluated when the known leader or the state of the disk changes.
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

    /// Waits until this node leads. Pending for ever once Raft has stopped.
    pub(crate) async fn until_this_node_leads(&self) {
        self.until_leader(|leader| leader == Some(self.node_id)).await;
    }

    /// Waits until this node does not lead. Pending for ever once Raft has stopped.
    pub(crate) async fn until_this_node_does_not_lead(&self) {
        self.until_leader(|leader| leader != Some(self.node_id)).await;
    }

    /// Waits for a known leader and its address. Pending for ever once Raft has stopped.
    pub(super) async fn until_led(&self) -> (u64, MemberRecord) {
        loop {
            self.until_leader(|leader| leader.is_some()).await;
            if let Some(leader) = self.leader()
                && let Some(member) = self.known_members().get(leader)
            {
                return (leader, member.clone());
            }
            // The membership entry with this leader is not here yet.
            tokio::time::sleep(limits::PROPOSE_RETRY_PAUSE).await;
        }
    }

    /// Waits until a node other than `before` leads. Pending for ever once Raft has stopped.
    pub(super) async fn until_another_leader_than(&self, before: u64) {
        self.until_leader(|leader| leader.is_some_and(|leader| leader != before)).await;
    }

    /// Waits until Raft has failed or stopped.
    pub(super) async fn until_stopped(&self) {
        let mut metrics = self.raft.server_metrics();
        while metrics.changed().await.is_ok() {}
    }

    /// The term in which this node leads, as far as it knows.
    pub(super) fn led_term(&self) -> Option<u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        (metrics.current_leader == Some(self.node_id)).then_some(metrics.current_term)
    }

    /// Records since when this node leads.
    pub(super) fn record_leading(&self) {
        if let Some(term) = self.led_term() {
            self.freshness.observe_leading(term);
        }
    }

    /// `ReadIndex` on the leader: an index that covers every entry acknowledged before the call, once a quorum has
    /// confirmed this node as leader. `None` if it does not lead. openraft's leader lease is never used: a voter that
    /// restarts forgets it.
    pub(super) async fn confirm_leadership(&self) -> Option<u64> {
        if self.disk.hangs() {
            return None;
        }
        let confirmed =
            self.unless_failed(self.raft.get_read_linearizer(ReadPolicy::ReadIndex)).await.ok()?;
        self.record_leading();
        Some(confirmed.read_log_id().index())
    }

    /// The answer of the leader to `ReadIndex`; `None` if it does not lead, or cannot record the call of a reader.
    pub(super) async fn answer_index(&self, call: Option<&proto::ReaderCall>) -> Option<ConfirmedIndex> {
        let call = call.map(|call| readers::call_from_proto(call).ok_or(())).transpose().ok()?;
        // Before the index: the leader ends no wait for this reader as if the call had not come.
        if call.is_some_and(|call| !self.record_reader(&call)) {
            return None;
        }
        // Before the index, which then covers the imports of every record that is named.
        let sources = self.recorded_sources();
        let index = self.confirm_leadership().await?;
        if let Some(call) = call {
            self.record_enforced(&call, index);
        }
        Some(ConfirmedIndex { index, sources })
    }

    /// `ReadIndex` on any node, by a request to the leader. Each call sends a new request, so no answer is older than
    /// its request. `None` if there is no answer. A lease may be taken from the answer only with `for_lease`, and only the
    /// call of a reader that is named may be answered from it.
    pub(super) async fn confirmed_index(
        &self,
        for_lease: bool,
        call: Option<ReaderCall>,
    ) -> Option<ConfirmedIndex> {
        let (leader, reader_call) = (self.leader()?, call.as_ref().map(readers::call_to_proto));
        if leader == self.node_id {
            let confirmed = self.answer_index(reader_call.as_ref()).await?;
            self.clocks.record_report(self.measure_clocks());
            return Some(confirmed);
        }
        let member = self.known_members().get(leader)?.clone();
        let client = self.channels.shared(Purpose::Reads, leader, &member).ok()?;
        let mut peer = client.peer();
        let answer = peer.read_index(client.request(proto::ReadIndexRequest { for_lease, reader_call }));
        let answer = tokio::time::timeout(limits::FRESHNESS_ATTEMPT, answer).await.ok()?;
        let answer = answer.ok()?.into_inner();
        self.clocks.record_report(wire::clock_report(answer.clocks));
        Some(ConfirmedIndex { index: answer.index, sources: sources::leases_from_proto(answer.sources) })
    }
}
