//! Leadership transfer, by a node that stops or that should not lead because its disk hangs or is full, or
//! its clock is wrong. Afterwards the node does not campaign for a while: an election would elect it again.
//!
//! During a transfer, openraft's leader proposes nothing and sends no heartbeats. It names a successor to every voter;
//! the successor campaigns when its log is as long as the leader's, and voters grant the vote although they heard the
//! leader recently. If it fails, the missing heartbeats cause an election.

use std::time::Duration;

use openraft::Instant as _;
use openraft::async_runtime::watch::WatchReceiver as _;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::type_config::{LogId, TypeConfig};
use super::{Handle, Machine};
use crate::limits;

type Metrics = openraft::RaftMetrics<TypeConfig>;

/// Whether this node may campaign, and whether another node leads.
#[derive(Default)]
pub(crate) struct Candidacy {
    /// Last leadership transfer, on the boot clock.
    transferred: Mutex<Option<Duration>>,
    /// Last heartbeat of another leader. openraft does not process it while the disk hangs.
    last_heartbeat: watch::Sender<Option<Duration>>,
}

impl Candidacy {
    fn pause(&self, now: Duration) {
        *self.transferred.lock() = Some(now);
    }

    /// Records a heartbeat of another leader at `now`.
    pub(crate) fn record_heartbeat(&self, now: Duration) {
        self.last_heartbeat.send_replace(Some(now));
    }

    /// Whether this node may campaign at `now`, after it had no confirmed leader for `leaderless`, at most since its start.
    /// With a full disk, and for a while after a transfer, only if no other node comes to lead.
    fn may_campaign(&self, now: Duration, leaderless: Duration, is_full: bool) -> bool {
        let transferred = *self.transferred.lock();
        let is_paused = transferred.is_some_and(|at| now < at + limits::CANDIDACY_PAUSE);
        !(is_paused || is_full) || leaderless >= limits::LEADERLESS_MAX
    }
}

/// Voters to which the leader with these metrics can transfer: those that answered a heartbeat less than
/// `recent_window` ago, longest log first.
fn successors(metrics: &Metrics, recent_window: Duration) -> Vec<u64> {
    let (Some(replication), Some(heartbeats)) = (&metrics.replication, &metrics.heartbeat) else {
        return Vec::new();
    };
    let is_there =
        |id: &u64| heartbeats.get(id).copied().flatten().is_some_and(|at| at.elapsed() < recent_window);
    let voters = metrics.membership_config.voter_ids();
    let mut able: Vec<(Option<LogId>, u64)> = voters
        .filter(|id| *id != metrics.id && is_there(id))
        .map(|id| (replication.get(&id).copied().flatten(), id))
        .collect();
    able.sort_by(|a, b| b.cmp(a));
    able.into_iter().map(|(_, id)| id).collect()
}

impl<M: Machine> Handle<M> {
    /// Transfers leadership, if this node leads and a successor is available. Nothing is proposed here until another
    /// node leads, and this node does not campaign for [`limits::CANDIDACY_PAUSE`]. Returns whether another node leads
    /// now.
    pub(crate) async fn transfer_leadership(&self) -> bool {
        self.transfer_leadership_to(None).await
    }

    /// As [`Handle::transfer_leadership`], only to the voter `to` if that is set.
    pub(super) async fn transfer_leadership_to(&self, to: Option<u64>) -> bool {
        let mut successors = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            if metrics.current_leader != Some(self.node_id) {
                return metrics.current_leader.is_some();
            }
            successors(&metrics, self.recent_window())
        };
        successors.retain(|successor| to.is_none_or(|to| to == *successor));
        if successors.is_empty() {
            return false;
        }
        self.candidacy.pause(self.clock.boot());
        let transferred = async {
            for successor in successors.into_iter().cycle() {
                tracing::info!(successor, "transferring leadership");
                if self.unless_failed(self.raft.trigger().transfer_leader(successor)).await.is_err() {
                    return;
                }
                let elected = async {
                    tokio::select! {
                        () = self.until(|| self.is_deposed()) => {}
                        () = self.until_another_leads() => {}
                    }
                };
                if tokio::time::timeout(limits::HAND_OVER_ATTEMPT_TIMEOUT, elected).await.is_ok() {
                    return;
                }
            }
        };
        drop(tokio::time::timeout(limits::HAND_OVER_TIMEOUT, transferred).await);
        self.is_deposed() || self.another_leads()
    }

    fn is_deposed(&self) -> bool {
        self.known_leader().is_some_and(|leader| leader != self.node_id)
    }

    /// Duration of the longest election timeout, and at least of a lease.
    pub(super) fn recent_window(&self) -> Duration {
        let heartbeat = Duration::from_millis(self.raft.config().heartbeat_interval);
        limits::FRESHNESS_LEASE.max(6 * heartbeat)
    }

    /// Whether another leader sent a heartbeat recently.
    pub(super) fn another_leads(&self) -> bool {
        let last_heartbeat = *self.candidacy.last_heartbeat.borrow();
        last_heartbeat.is_some_and(|at| self.clock.boot() < at + self.recent_window())
    }

    /// Waits for the next heartbeat of another leader.
    pub(super) async fn until_another_leads(&self) {
        let mut last_heartbeat = self.candidacy.last_heartbeat.subscribe();
        last_heartbeat.mark_unchanged();
        drop(last_heartbeat.changed().await);
    }

    /// Disables elections of this node while it should not campaign. Runs for ever.
    pub(super) async fn update_candidacy(self) {
        loop {
            let (now, leaderless) = (self.clock.boot(), self.freshness().lapsed);
            let may_campaign = self.candidacy.may_campaign(now, leaderless, self.space.is_full());
            // A vote needs a durable write.
            self.raft.runtime_config().elect(may_campaign && !self.disk.hangs());
            tokio::time::sleep(limits::CANDIDACY_CHECK_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use openraft::alias::CommittedLeaderIdOf;
    use openraft::metrics::SerdeInstant;
    use openraft::type_config::TypeConfigExt as _;
    use openraft::vote::RaftLeaderId as _;

    use super::*;
    use crate::cluster::type_config::{MemberRecord, Membership, StoredMembership};

    const LONG: Duration = Duration::from_secs(100);

    #[test]
    fn transfer_prefers_the_voter_with_the_longest_log() {
        let log_id = |index| Some(LogId::new(CommittedLeaderIdOf::<TypeConfig>::new(1, 1), index));
        let now = Some(SerdeInstant::new(TypeConfig::now()));
        let voters = BTreeSet::from([1, 2, 3, 4, 5]);
        let nodes: BTreeMap<u64, MemberRecord> = (1..=6).map(|id| (id, MemberRecord::default())).collect();
        let members = Membership::new(vec![voters], nodes).expect("members");
        let mut metrics = Metrics::new_initial(1);
        assert_eq!(successors(&metrics, LONG), Vec::<u64>::new(), "a follower transfers nothing");
        metrics.membership_config = Arc::new(StoredMembership::new(None, members));
        metrics.replication =
            Some(BTreeMap::from([(2, log_id(7)), (3, log_id(9)), (4, log_id(9)), (6, log_id(9))]));
        metrics.heartbeat = Some(BTreeMap::from([(2, now), (3, now), (4, None), (5, now), (6, now)]));
        assert_eq!(
            successors(&metrics, LONG),
            [3, 2, 5],
            "no learner, and no voter without heartbeat responses"
        );
        assert_eq!(successors(&metrics, Duration::ZERO), Vec::<u64>::new());
    }

    #[test]
    fn node_campaigns_again_after_the_pause_or_without_leader() {
        let (candidacy, at) = (Candidacy::default(), LONG);
        assert!(candidacy.may_campaign(at, Duration::ZERO, false), "no transfer yet");
        assert!(!candidacy.may_campaign(at, Duration::ZERO, true), "a full disk");
        candidacy.pause(at);
        let last = (at + limits::CANDIDACY_PAUSE).saturating_sub(Duration::from_nanos(1));
        let led = limits::LEADERLESS_MAX.saturating_sub(Duration::from_nanos(1));
        assert!(!candidacy.may_campaign(at, led, false) && !candidacy.may_campaign(last, led, false));
        for is_full in [false, true] {
            assert!(candidacy.may_campaign(at, limits::LEADERLESS_MAX, is_full), "no other leader");
        }
        assert!(candidacy.may_campaign(last + Duration::from_nanos(1), Duration::ZERO, false));
    }
}
