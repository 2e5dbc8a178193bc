//! Leadership is handed over by a node that stops, or that should not lead: its disk hangs, its clock is wrong.
//! Afterwards it does not stand for election for a while, because an election would bring the same node back.
//!
//! The library's leader that hands over proposes nothing more and sends no heartbeats. It names a successor to every
//! voter; the successor stands for election as soon as its log is as long as the leader's, and is elected although
//! the leader was heard a moment ago. If it is not, the missing heartbeats bring an election.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use openraft::Instant as _;
use openraft::async_runtime::watch::WatchReceiver as _;
use tokio::sync::watch;

use super::type_config::{LogId, TypeConfig};
use super::{Handle, Machine};
use crate::limits;

type Metrics = openraft::RaftMetrics<TypeConfig>;

/// Whether this node may stand for election, and whether another leads meanwhile.
#[derive(Default)]
pub struct Candidacy {
    /// When it handed over last, on the boot clock.
    handed_over: Mutex<Option<Duration>>,
    /// When another node said last that it leads. The library may know nothing of it: it takes up no leader while the
    /// disk hangs.
    heard: watch::Sender<Option<Duration>>,
}

impl Candidacy {
    fn pause(&self, now: Duration) {
        *self.handed_over.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// Another node said at `now` that it leads.
    pub fn hear(&self, now: Duration) {
        self.heard.send_replace(Some(now));
    }

    /// At `now`, when no leader has been confirmed to this node for `leaderless`.
    fn is_open(&self, now: Duration, leaderless: Duration) -> bool {
        let handed_over = *self.handed_over.lock().unwrap_or_else(PoisonError::into_inner);
        let is_paused = handed_over.is_some_and(|at| now < at + limits::CANDIDACY_PAUSE);
        !is_paused || leaderless >= limits::LEADERLESS_MAX
    }
}

/// The voters that can take over from the leader whose metrics these are: those that answered a heartbeat less than
/// `recently` ago, the one with most of the log first.
fn successors(metrics: &Metrics, recently: Duration) -> Vec<u64> {
    let (Some(replication), Some(heartbeats)) = (&metrics.replication, &metrics.heartbeat) else {
        return Vec::new();
    };
    let is_there = |id: &u64| heartbeats.get(id).copied().flatten().is_some_and(|at| at.elapsed() < recently);
    let voters = metrics.membership_config.voter_ids();
    let mut able: Vec<(Option<LogId>, u64)> = voters
        .filter(|id| *id != metrics.id && is_there(id))
        .map(|id| (replication.get(&id).copied().flatten(), id))
        .collect();
    able.sort_by(|a, b| b.cmp(a));
    able.into_iter().map(|(_, id)| id).collect()
}

impl<M: Machine> Handle<M> {
    /// Hands leadership over, if this node leads and another can take over; then nothing is proposed here any more
    /// until another leads, and this node does not stand for election for [`limits::CANDIDACY_PAUSE`]. Whether another
    /// node leads now.
    pub async fn hand_over(&self) -> bool {
        let successors = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            if metrics.current_leader != Some(self.node_id) {
                return metrics.current_leader.is_some();
            }
            successors(&metrics, self.recently())
        };
        if successors.is_empty() {
            return false;
        }
        self.candidacy.pause(self.clock.boot());
        let handed_over = async {
            for successor in successors.into_iter().cycle() {
                tracing::info!(successor, "this node hands leadership over");
                if self.raft.trigger().transfer_leader(successor).await.is_err() {
                    return;
                }
                let elected = async {
                    tokio::select! {
                        () = self.until(|| self.is_deposed()) => {}
                        () = self.until_another_leads() => {}
                    }
                };
                if tokio::time::timeout(limits::HAND_OVER_ATTEMPT, elected).await.is_ok() {
                    return;
                }
            }
        };
        drop(tokio::time::timeout(limits::HAND_OVER_MAX, handed_over).await);
        self.is_deposed() || self.another_leads()
    }

    fn is_deposed(&self) -> bool {
        self.known_leader().is_some_and(|leader| leader != self.node_id)
    }

    /// As many heartbeats as the longest election takes, and at least as long as a lease.
    fn recently(&self) -> Duration {
        let heartbeat = Duration::from_millis(self.raft.config().heartbeat_interval);
        limits::FRESHNESS_LEASE.max(6 * heartbeat)
    }

    /// Whether another node said of late that it leads.
    pub(super) fn another_leads(&self) -> bool {
        let heard = *self.candidacy.heard.borrow();
        heard.is_some_and(|at| self.clock.boot() < at + self.recently())
    }

    /// Waits until another node says that it leads, which leaders say with every heartbeat.
    pub(super) async fn until_another_leads(&self) {
        let mut heard = self.candidacy.heard.subscribe();
        heard.mark_unchanged();
        drop(heard.changed().await);
    }

    /// Keeps this node from standing for election while it should not. Runs for ever.
    pub(super) async fn keep_candidacy(self) {
        loop {
            let is_open = self.candidacy.is_open(self.clock.boot(), self.freshness().lapsed);
            // A vote that is not written is none.
            self.raft.runtime_config().elect(is_open && !self.disk.hangs());
            tokio::time::sleep(limits::CANDIDACY_LOOK_INTERVAL).await;
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
    use crate::cluster::type_config::{Membership, Peer, StoredMembership};

    const LONG: Duration = Duration::from_secs(100);

    #[test]
    fn a_leader_hands_over_to_the_member_that_has_most_of_its_log() {
        let log_id = |index| Some(LogId::new(CommittedLeaderIdOf::<TypeConfig>::new(1, 1), index));
        let now = Some(SerdeInstant::new(TypeConfig::now()));
        let voters = BTreeSet::from([1, 2, 3, 4, 5]);
        let nodes: BTreeMap<u64, Peer> = (1..=6).map(|id| (id, Peer::default())).collect();
        let members = Membership::new(vec![voters], nodes).expect("members");
        let mut metrics = Metrics::new_initial(1);
        assert_eq!(successors(&metrics, LONG), Vec::<u64>::new(), "a follower hands nothing over");
        metrics.membership_config = Arc::new(StoredMembership::new(None, members));
        metrics.replication =
            Some(BTreeMap::from([(2, log_id(7)), (3, log_id(9)), (4, log_id(9)), (6, log_id(9))]));
        metrics.heartbeat = Some(BTreeMap::from([(2, now), (3, now), (4, None), (5, now), (6, now)]));
        assert_eq!(successors(&metrics, LONG), [3, 2, 5], "no learner, and nobody who does not answer");
        assert_eq!(successors(&metrics, Duration::ZERO), Vec::<u64>::new());
    }

    #[test]
    fn after_a_hand_over_a_node_stands_again_when_it_may() {
        let (candidacy, at) = (Candidacy::default(), LONG);
        assert!(candidacy.is_open(at, Duration::ZERO), "it never handed over");
        candidacy.pause(at);
        let last = (at + limits::CANDIDACY_PAUSE).saturating_sub(Duration::from_nanos(1));
        let led = limits::LEADERLESS_MAX.saturating_sub(Duration::from_nanos(1));
        assert!(!candidacy.is_open(at, led) && !candidacy.is_open(last, led));
        assert!(candidacy.is_open(at, limits::LEADERLESS_MAX), "nobody else leads");
        assert!(candidacy.is_open(last + Duration::from_nanos(1), Duration::ZERO));
    }
}
