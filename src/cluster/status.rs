//! Status of the cluster for operators: the membership as this node knows it, and the report of every member. Needs
//! neither a lease nor a leader; no decision depends on it.

use openraft::async_runtime::watch::WatchReceiver as _;

use super::disk_space::SpaceState;
use super::peers::proto::{NodeReport, ReportRequest, StepDownRequest};
use super::peers::{Purpose, reason};
use super::type_config::MemberRecord;
use super::{Handle, Machine};
use crate::clock::Timestamp;
use crate::limits;

/// The cluster as this node sees it.
#[derive(Clone, Debug)]
pub struct Status {
    pub(crate) node_id: u64,
    /// Last known leader, confirmed or not.
    pub(crate) leader: Option<u64>,
    /// Whether a quorum confirmed it recently.
    pub(crate) leader_is_confirmed: bool,
    /// Members of the last known membership, by id.
    pub(crate) members: Vec<Member>,
}

/// One member.
#[derive(Clone, Debug)]
pub struct Member {
    pub(crate) node_id: u64,
    /// Address for other nodes; empty in a cluster of one without listener.
    pub(crate) address: String,
    /// Whether it is a voter.
    pub(crate) is_voter: bool,
    /// Offset of its wall clock from the median, as the leader last reported it.
    pub(crate) clock_offset_millis: Option<i64>,
    /// Its report, or the reason for which it sent none.
    pub(crate) report: Result<NodeReport, String>,
}

/// Reason for which leadership was not transferred.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The successor cannot lead.
    #[error("node_id: node {0} is not a voter")]
    NotAVoter(u64),
    /// The leader is the only voter.
    #[error("there is no other voter")]
    NoOtherVoter,
    /// No leader is known.
    #[error("no leader is known")]
    NoLeader,
    /// The leader did not transfer it in time.
    #[error("leadership was not transferred: {0}")]
    Failed(String),
}

impl<M: Machine> Handle<M> {
    /// The cluster as this node sees it; requests the report of every other member, for at most
    /// [`limits::REPORT_TIMEOUT`].
    pub(crate) async fn status(&self) -> Status {
        let members = self.known_members();
        let voters: Vec<u64> = members.effective.voter_ids().collect();
        let clocks = self.clocks();
        let member = async |(node_id, record): (u64, &MemberRecord)| Member {
            node_id,
            address: record.address.clone(),
            is_voter: voters.contains(&node_id),
            clock_offset_millis: clocks.offsets.get(&node_id).copied(),
            report: self.report_of(node_id, record).await,
        };
        Status {
            node_id: self.node_id,
            leader: self.known_leader(),
            leader_is_confirmed: self.confirmed_leader().is_some(),
            members: futures::future::join_all(members.all().into_iter().map(member)).await,
        }
    }

    /// The reports of the other voters.
    pub(super) async fn other_voters(&self) -> Vec<(u64, Result<NodeReport, String>)> {
        let members = self.known_members();
        let others = members.effective.voter_ids().filter(|voter| *voter != self.node_id);
        let others = others.filter_map(|voter| Some((voter, members.get(voter)?)));
        let reports = others.map(async |(voter, record)| (voter, self.report_of(voter, record).await));
        futures::future::join_all(reports).await
    }

    async fn report_of(&self, node_id: u64, record: &MemberRecord) -> Result<NodeReport, String> {
        if node_id == self.node_id {
            return Ok(self.report());
        }
        let client = self.channels.shared(Purpose::Administration, node_id, record);
        let client = client.map_err(|error| error.to_string())?;
        let mut peer = client.peer();
        let answer = peer.report(client.request(ReportRequest {}));
        let answer = tokio::time::timeout(limits::REPORT_TIMEOUT, answer).await;
        let answer = answer.map_err(|_| "timeout".to_owned())?;
        answer.map(tonic::Response::into_inner).map_err(|status| reason(&status))
    }

    /// The status of this node as it sees itself.
    pub(crate) fn report(&self) -> NodeReport {
        let metrics = self.raft.metrics();
        let (term, last_log_index) = {
            let metrics = metrics.borrow_watched();
            (metrics.current_term, metrics.last_log_index.unwrap_or_default())
        };
        let lease = self.freshness();
        let disk_hangs = self.disk.hangs();
        // A leader hands over by this report, and a voter that is full by then refuses.
        let space = self.measure_disk_space();
        let snapshot = self.channels.local.receiving.get();
        let certificate_expires_at = self.channels.certificate_expires_at();
        NodeReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            term,
            leader: self.known_leader(),
            last_log_index,
            applied_index: self.applied(),
            lease_is_held: lease.is_held,
            lease_lapsed_ms: u64::try_from(lease.lapsed.as_millis()).unwrap_or(u64::MAX),
            disk_hangs,
            disk_free_bytes: space.map(|space| space.free),
            disk_total_bytes: space.map(|space| space.total),
            certificate_expires_at: certificate_expires_at.map(Timestamp::to_rfc3339),
            waiting_changes: self.waiting_changes().into_iter().collect(),
            snapshot_received_bytes: snapshot.map(|(received, _)| received),
            snapshot_total_bytes: snapshot.map(|(_, total)| total),
            feature_level: M::NEWEST_LEVEL,
            disk_is_low: self.space.state() != SpaceState::Enough,
            disk_is_full: self.space.is_full(),
            disputed_index: self.disputed_index(),
            federation_digest: self.settings_digest.as_deref().map(str::to_owned),
        }
    }

    /// The reason for which the change of a node waits, as the leader knows it.
    pub(crate) async fn waiting_change(&self, node_id: u64) -> Option<String> {
        let Some(leader) = self.confirmed_leader() else { return Some(TransferError::NoLeader.to_string()) };
        let record = self.known_members().get(leader).cloned()?;
        self.report_of(leader, &record).await.ok()?.waiting_changes.remove(&node_id)
    }

    /// SPIFFE ID that the certificate of a node must have; `None` without a peer listener.
    pub(crate) fn spiffe_id_of(&self, node_id: u64) -> Option<String> {
        self.channels.local.identities.as_ref().map(|identities| identities.of(node_id))
    }

    /// Transfers leadership to a voter, or from the leader to any other one, and returns the leader afterwards.
    ///
    /// # Errors
    /// [`TransferError`].
    pub(crate) async fn change_leader(&self, to: Option<u64>) -> Result<u64, TransferError> {
        let members = self.known_members();
        if let Some(to) = to.filter(|to| !members.effective.voter_ids().any(|voter| voter == *to)) {
            return Err(TransferError::NotAVoter(to));
        }
        let leader = self.confirmed_leader().ok_or(TransferError::NoLeader)?;
        if to == Some(leader) {
            return Ok(leader);
        }
        if members.effective.voter_ids().all(|voter| voter == leader) {
            return Err(TransferError::NoOtherVoter);
        }
        let failed = |reason: &str| TransferError::Failed(reason.to_owned());
        if leader == self.node_id {
            if !self.step_down(to).await {
                return Err(failed("no voter took over"));
            }
        } else {
            let record = members.get(leader).ok_or(TransferError::NoLeader)?;
            let client = self.channels.shared(Purpose::Administration, leader, record);
            let client = client.map_err(|error| failed(&error.to_string()))?;
            let mut peer = client.peer();
            let answer = peer.step_down(client.request(StepDownRequest { to }));
            let answer = tokio::time::timeout(limits::STEP_DOWN_TIMEOUT, answer).await;
            answer.map_err(|_| failed("timeout"))?.map_err(|status| failed(&reason(&status)))?;
        }
        // The new leader may not have reached this node yet.
        let changed = self.until_another_leader_than(leader);
        let changed = tokio::time::timeout(limits::HAND_OVER_ATTEMPT_TIMEOUT, changed).await;
        changed.map_err(|_| failed("this node does not know the new leader yet"))?;
        self.leader().ok_or(TransferError::NoLeader)
    }

    /// Transfers leadership away from this node. Returns whether another node leads now.
    pub(crate) async fn step_down(&self, to: Option<u64>) -> bool {
        self.known_leader() == Some(self.node_id) && self.transfer_leadership_to(to).await
    }
}
