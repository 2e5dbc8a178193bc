//! Membership changes. The state defines the role that each node shall have; the leader changes the
//! membership accordingly, one change at a time, and completes a change that an earlier leader began. Voters
//! always change through a joint membership.
//!
//! A change that cannot be made yet waits, with a reason for the operator: a learner that lags, voters that do not
//! answer. A leader never proposes its own removal: it transfers leadership, and its successor removes it.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use openraft::ChangeMembers;
use openraft::Instant as _;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::raft::Precondition;

use super::corrupt::RETURN_ADVICE;
use super::known_members::KnownMembers;
use super::type_config::{LogId, MemberRecord, TypeConfig};
use super::{Handle, Machine, WantedMember, WantedRole};
use crate::limits;

/// Node ids whose change waits, each with the reason.
type WaitingChanges = BTreeMap<u64, WaitReason>;

/// Reason why a membership change waits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum WaitReason {
    /// The leader may have diverged, and the voters decide that.
    #[error("the state of the leader is in dispute")]
    Disputed,
    /// The entry of another change is not committed yet.
    #[error("another membership change is in progress")]
    InProgress,
    /// The learner does not answer the leader.
    #[error("the node does not answer the leader")]
    NoAnswer,
    /// The learner lags.
    #[error(
        "the node lags behind the leader by {lag} log entries; at most {} are allowed",
        limits::LEARNER_LAG_MAX
    )]
    Lags {
        /// Entries of the leader's log that it does not have.
        lag: u64,
    },
    /// The voter to be replaced is alive.
    #[error("node {0}, which is to be replaced, still answers the leader: stop it, or remove it instead")]
    ReplacedIsAlive(u64),
    /// The leader is too new to know whether the voter to be replaced is alive.
    #[error("the leader is new and does not know yet whether node {0}, which is to be replaced, answers")]
    ReplacedIsUnknown(u64),
    /// Afterwards too few voters would be there to elect a leader.
    #[error("{present} of {voters} voters would answer the leader afterwards, which is no quorum")]
    NoQuorum {
        /// Voters of the new membership that answer.
        present: usize,
        /// Voters of the new membership.
        voters: usize,
    },
    /// No other node would be a voter.
    #[error("it is the last voter")]
    LastVoter,
    /// The node to be removed leads, and no other voter can take over.
    #[error("the node leads, and no other voter can take over")]
    NoSuccessor,
}

/// Whether a member answered a heartbeat recently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Answers {
    /// The leader is too new to know.
    #[default]
    Unknown,
    Yes,
    No,
}

/// The leader's knowledge of another member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Contact {
    answers: Answers,
    /// Entries of the leader's log that it does not have.
    lag: u64,
}

/// One step towards the wanted membership.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Ends a joint membership.
    Complete,
    AddLearner(u64, MemberRecord),
    RemoveLearner(u64),
    /// Changes the voters through a joint membership. Voters that leave are removed.
    SetVoters(BTreeSet<u64>),
    /// Transfers leadership, because this node is to be removed.
    Transfer,
}

/// The membership as the leader sees it.
struct Cluster<'c> {
    node_id: u64,
    /// Whether the state of this node is in dispute.
    is_disputed: bool,
    members: &'c KnownMembers,
    contacts: &'c BTreeMap<u64, Contact>,
}

impl Cluster<'_> {
    /// The next step, and the changes that wait.
    fn next(&self, wanted: &[WantedMember]) -> (Option<Step>, WaitingChanges) {
        let mut waiting = WaitingChanges::new();
        let membership = self.members.effective.membership();
        let all_wait = |reason: &WaitReason| {
            let changes = wanted.iter().filter(|wanted| !self.is_reached(wanted));
            (None, changes.map(|wanted| (wanted.node_id, reason.clone())).collect())
        };
        if self.is_disputed {
            return all_wait(&WaitReason::Disputed);
        }
        if self.members.effective != self.members.committed {
            return all_wait(&WaitReason::InProgress);
        }
        if membership.get_joint_config().len() > 1 {
            return (Some(Step::Complete), waiting);
        }
        let mut next = None;
        for wanted in wanted.iter().filter(|wanted| !self.is_reached(wanted)) {
            match self.step_for(wanted) {
                Ok(step) if next.is_none() => next = Some(step),
                Ok(_) => drop(waiting.insert(wanted.node_id, WaitReason::InProgress)),
                Err(reason) => drop(waiting.insert(wanted.node_id, reason)),
            }
        }
        (next, waiting)
    }

    fn voters(&self) -> BTreeSet<u64> {
        self.members.effective.voter_ids().collect()
    }

    /// Whether a node has its wanted role.
    fn is_reached(&self, wanted: &WantedMember) -> bool {
        let is_member = self.members.effective.get_node(&wanted.node_id).is_some();
        match wanted.role {
            WantedRole::Removed => !is_member,
            WantedRole::Learner => is_member,
            WantedRole::Voter => self.voters().contains(&wanted.node_id),
        }
    }

    fn step_for(&self, wanted: &WantedMember) -> Result<Step, WaitReason> {
        let id = wanted.node_id;
        let is_member = self.members.effective.get_node(&id).is_some();
        match wanted.role {
            WantedRole::Removed if self.voters().contains(&id) => self.remove_voter(id),
            WantedRole::Removed => Ok(Step::RemoveLearner(id)),
            WantedRole::Learner | WantedRole::Voter if !is_member => {
                let record = MemberRecord { address: wanted.address.clone(), disk_id: wanted.disk_id };
                Ok(Step::AddLearner(id, record))
            }
            WantedRole::Learner | WantedRole::Voter => self.promote(wanted),
        }
    }

    fn remove_voter(&self, id: u64) -> Result<Step, WaitReason> {
        let mut goal = self.voters();
        goal.remove(&id);
        if goal.is_empty() {
            return Err(WaitReason::LastVoter);
        }
        if id != self.node_id {
            return self.set_voters(goal);
        }
        if !goal.iter().any(|voter| self.contact(*voter).answers == Answers::Yes) {
            return Err(WaitReason::NoSuccessor);
        }
        // The successor must be able to remove this node, or it might transfer the leadership back.
        self.set_voters(goal).map(|_| Step::Transfer)
    }

    fn promote(&self, wanted: &WantedMember) -> Result<Step, WaitReason> {
        let Contact { answers, lag } = self.contact(wanted.node_id);
        if answers != Answers::Yes {
            return Err(WaitReason::NoAnswer);
        }
        if lag > limits::LEARNER_LAG_MAX {
            return Err(WaitReason::Lags { lag });
        }
        let mut goal = self.voters();
        goal.insert(wanted.node_id);
        if let Some(replaced) = wanted.replaces
            && goal.contains(&replaced)
        {
            match self.contact(replaced).answers {
                Answers::Yes => return Err(WaitReason::ReplacedIsAlive(replaced)),
                Answers::Unknown => return Err(WaitReason::ReplacedIsUnknown(replaced)),
                Answers::No => drop(goal.remove(&replaced)),
            }
        }
        self.set_voters(goal)
    }

    /// A change of voters, if a quorum of the new ones is there.
    fn set_voters(&self, goal: BTreeSet<u64>) -> Result<Step, WaitReason> {
        let present = goal.iter().filter(|voter| self.contact(**voter).answers == Answers::Yes).count();
        let voters = goal.len();
        if present > voters / 2 {
            Ok(Step::SetVoters(goal))
        } else {
            Err(WaitReason::NoQuorum { present, voters })
        }
    }

    fn contact(&self, id: u64) -> Contact {
        if id == self.node_id {
            return Contact { answers: Answers::Yes, lag: 0 };
        }
        self.contacts.get(&id).copied().unwrap_or_default()
    }
}

/// Changes that wait for a reason of another kind than before: the lag of a node changes all the time.
fn newly_waiting<'w>(
    waiting: &'w WaitingChanges,
    before: &WaitingChanges,
) -> impl Iterator<Item = (&'w u64, &'w WaitReason)> {
    let is_known = |id: &u64, reason: &WaitReason| {
        before.get(id).is_some_and(|before| mem::discriminant(before) == mem::discriminant(reason))
    };
    waiting.iter().filter(move |(id, reason)| !is_known(id, reason))
}

/// Text for a node that is no longer a member.
pub(super) fn removed(node_id: u64, index: u64) -> String {
    format!("node {node_id} was removed from the cluster at log index {index}; {RETURN_ADVICE}")
}

impl<M: Machine> Handle<M> {
    /// Follows the membership: as leader, changes it; as a removed node, stops. Runs for ever.
    pub(super) async fn manage_membership(self) {
        let mut logged = WaitingChanges::new();
        loop {
            let members = self.known_members();
            if !members.is_empty() {
                self.channels.retain(|id| members.get(id).is_some());
            }
            if let Some(index) = self.machine.removed_at(self.node_id)
                && self.known_leader() != Some(self.node_id)
            {
                self.channels.local.stop_for_good(removed(self.node_id, index));
                return std::future::pending().await;
            }
            let is_changed = self.leader() == Some(self.node_id) && self.change_membership(&mut logged).await;
            if !is_changed {
                tokio::time::sleep(limits::MEMBERSHIP_CHECK_INTERVAL).await;
            }
        }
    }

    /// Takes the next step, as leader, and logs the changes that begin to wait. Returns whether a step was taken.
    async fn change_membership(&self, logged: &mut WaitingChanges) -> bool {
        let (step, waiting) = self.next_change();
        for (node_id, reason) in newly_waiting(&waiting, logged) {
            tracing::info!(node_id, %reason, "membership change waits");
        }
        *logged = waiting;
        if step.is_none() {
            return false;
        }
        let changed = tokio::time::timeout(limits::MEMBERSHIP_CHANGE_TIMEOUT, self.take_next()).await;
        match changed.unwrap_or_else(|_| Err("timeout".to_owned())) {
            Ok(Some(step)) => {
                tracing::info!(?step, "membership changed");
                true
            }
            // It is no longer the next one after every committed entry is applied.
            Ok(None) => false,
            Err(error) => {
                tracing::warn!(%error, "failed to change the membership");
                false
            }
        }
    }

    /// Takes the next step once every committed entry is applied: a new leader may not know every wanted role yet.
    async fn take_next(&self) -> Result<Option<Step>, String> {
        let index = self.confirm_leadership().await.ok_or("this node does not lead")?;
        self.until_applied(index).await;
        let members = self.known_members();
        let step = self.next_change().0;
        if let Some(step) = &step {
            self.take(step, *members.effective.log_id()).await?;
        }
        Ok(step)
    }

    fn next_change(&self) -> (Option<Step>, WaitingChanges) {
        let (members, contacts) = (self.known_members(), self.contacts());
        let is_disputed = self.disputed_index().is_some();
        let cluster = Cluster { node_id: self.node_id, is_disputed, members: &members, contacts: &contacts };
        cluster.next(&self.machine.wanted_members())
    }

    /// As leader: by node id, the reason for which a change waits.
    pub(super) fn waiting_changes(&self) -> BTreeMap<u64, String> {
        if self.leader() != Some(self.node_id) {
            return BTreeMap::new();
        }
        let waiting = self.next_change().1.into_iter();
        waiting.map(|(node_id, reason)| (node_id, reason.to_string())).collect()
    }

    fn contacts(&self) -> BTreeMap<u64, Contact> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let last = metrics.last_log_index.unwrap_or_default();
        let (Some(replication), Some(heartbeats)) = (&metrics.replication, &metrics.heartbeat) else {
            return BTreeMap::new();
        };
        let (recent, term, now) = (self.recent_window(), metrics.current_term, self.clock.boot());
        let knows_silence = now >= self.freshness.observe_leading(term) + recent;
        let contact = |(id, matched): (&u64, &Option<LogId>)| {
            let lag = matched.map_or(last.saturating_add(1), |matched| last.saturating_sub(matched.index));
            let answered = heartbeats.get(id).copied().flatten();
            let answers = match answered {
                Some(at) if at.elapsed() < recent => Answers::Yes,
                _ if knows_silence => Answers::No,
                _ => Answers::Unknown,
            };
            (*id, Contact { answers, lag })
        };
        replication.iter().map(contact).collect()
    }

    /// Takes a step, unless the membership has changed since `expected`.
    async fn take(&self, step: &Step, expected: Option<LogId>) -> Result<(), String> {
        let change: ChangeMembers<u64, MemberRecord> = match step {
            Step::Transfer => {
                let is_transferred = self.transfer_leadership().await;
                return if is_transferred { Ok(()) } else { Err("no voter took over".to_owned()) };
            }
            // Without a change, only the joint membership ends.
            Step::Complete => ChangeMembers::AddVoterIds(BTreeSet::new()),
            Step::AddLearner(id, record) => ChangeMembers::AddNodes(BTreeMap::from([(*id, record.clone())])),
            Step::RemoveLearner(id) => ChangeMembers::RemoveNodes(BTreeSet::from([*id])),
            Step::SetVoters(voters) => ChangeMembers::ReplaceAllVoters(voters.clone()),
        };
        let unchanged = Precondition::<TypeConfig>::LastMembershipLogId { last_membership_log_id: expected };
        let changed = self.raft.change_membership_if(change, false, [unchanged]).await;
        changed.map(drop).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests;
