//! Purge of the log that exceeds its size limit: after a snapshot, and once no member that answers lacks the entries.
//!
//! A member that receives a snapshot needs every entry after it. If these are purged meanwhile it needs another
//! snapshot, and so on: under load it would never catch up. Only the leader knows what the members lack; a follower
//! purges its log at once. The log is held for a member until it is silent, or the log or the disk is too full.

use std::time::Duration;

use openraft::Instant as _;
use openraft::async_runtime::watch::WatchReceiver as _;
use tokio::sync::watch;

use super::disk_space::SpaceState;
use super::log::purge::Surplus;
use super::peers::SentSnapshot;
use super::type_config::{LogId, TypeConfig};
use super::{Handle, Machine};
use crate::limits;

type Metrics = openraft::RaftMetrics<TypeConfig>;

impl<M: Machine> Handle<M> {
    /// Purges the log whenever it exceeds its limit. Ends with the log.
    pub(super) async fn keep_log_within_limit(self, mut surplus: watch::Receiver<Option<Surplus>>) {
        while surplus.changed().await.is_ok() {
            let Some(Surplus { upto, .. }) = *surplus.borrow_and_update() else { continue };
            let upto = self.until_no_member_lacks(upto, &mut surplus).await;
            match self.purge_log(upto).await {
                Ok(()) => tracing::info!(upto, "the log exceeded its size limit: purged"),
                Err(error) => {
                    tracing::warn!(error, upto, "failed to purge the log, which exceeds its size limit");
                }
            }
        }
    }

    /// Waits while a member that answers this leader lacks entries up to `upto`. Returns the index up to which to
    /// purge: if the log must not grow any more, all that exceeds its limit by then.
    pub(super) async fn until_no_member_lacks(
        &self,
        upto: u64,
        surplus: &mut watch::Receiver<Option<Surplus>>,
    ) -> u64 {
        while let Some(member) = self.member_that_lacks(upto) {
            let newest = *surplus.borrow_and_update();
            let is_short = self.space.state() != SpaceState::Enough;
            if let Some(Surplus { upto, .. }) = newest.filter(|newest| newest.is_urgent || is_short) {
                tracing::warn!(member, upto, "purging log entries that a member lacks: it needs a snapshot");
                return upto;
            }
            tokio::time::sleep(limits::LOG_HELD_CHECK_INTERVAL).await;
        }
        upto
    }

    /// On the leader, a member that answers and lacks entries up to `upto`.
    fn member_that_lacks(&self, upto: u64) -> Option<u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let recent = limits::LOG_HELD_FOR_SILENT.max(self.recent_window());
        let sent = |node_id| self.channels.local.sent_snapshots.get(node_id);
        member_that_lacks(&metrics, (recent, self.clock.boot()), sent, upto)
    }

    /// Purges the log up to an entry, once that is applied and in a snapshot.
    async fn purge_log(&self, upto: u64) -> Result<(), String> {
        // There may be no further append that repeats the request, so this one waits until the entry is applied.
        let wait = self.raft.wait(Some(limits::LOG_PURGE_WAIT));
        let applied = wait.applied_index_at_least(Some(upto), "applied").await;
        let metrics = applied.map_err(|error| error.to_string())?;
        if metrics.snapshot.is_none_or(|snapshot| snapshot.index < upto) {
            self.snapshot().await?;
            let covers = |index: Option<u64>| index >= Some(upto);
            let taken = wait.metrics(|now| covers(now.snapshot.map(|id| id.index)), "a snapshot").await;
            taken.map_err(|error| error.to_string())?;
        }
        self.raft.trigger().purge_log(upto).await.map_err(|error| error.to_string())
    }
}

/// A member other than this leader that answered within `recent` before `now` and lacks entries up to `upto`, also
/// after the snapshot that it has or receives.
fn member_that_lacks(
    metrics: &Metrics,
    (recent, now): (Duration, Duration),
    sent: impl Fn(u64) -> Option<SentSnapshot>,
    upto: u64,
) -> Option<u64> {
    let (replication, heartbeats) = (metrics.replication.as_ref()?, metrics.heartbeat.as_ref()?);
    let lacks = |(id, matched): (&u64, &Option<LogId>)| {
        let answered = heartbeats.get(id).copied().flatten();
        let sent = sent(*id);
        let receives = sent.is_some_and(|sent| now < sent.answers_until);
        let answers = receives || answered.is_some_and(|at| at.elapsed() < recent);
        let has = matched.map(|matched| matched.index).max(sent.map(|sent| sent.end));
        (*id != metrics.id && answers && has < Some(upto)).then_some(*id)
    };
    replication.iter().find_map(lacks)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use openraft::alias::CommittedLeaderIdOf;
    use openraft::metrics::SerdeInstant;
    use openraft::type_config::TypeConfigExt as _;
    use openraft::vote::RaftLeaderId as _;

    use super::*;
    use crate::cluster::peers::SentSnapshots;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn log_is_held_for_members_that_answer_and_lack_it() {
        let matched = |index| Some(LogId::new(CommittedLeaderIdOf::<TypeConfig>::new(1, 1), index));
        let now = TypeConfig::now();
        let (answered, silent) = (Some(SerdeInstant::new(now)), Some(SerdeInstant::new(now - PATIENCE)));
        let mut metrics = Metrics::new_initial(1);
        let held_for = |metrics: &Metrics, end: Option<u64>| {
            let sent = end.map(|end| SentSnapshot { end, answers_until: Duration::ZERO });
            member_that_lacks(metrics, (PATIENCE, PATIENCE), |_| sent, 7)
        };
        assert_eq!(held_for(&metrics, None), None, "a follower");
        for (has, heartbeat, sent, expected) in [
            (matched(6), answered, None, Some(2)),
            (matched(7), answered, None, None),
            (None, answered, None, Some(2)),
            (matched(2), answered, Some(6), Some(2)),
            (matched(2), answered, Some(7), None),
            (None, answered, Some(9), None),
            (matched(7), answered, Some(3), None),
            (matched(6), silent, None, None),
            (matched(6), None, None, None),
        ] {
            // The leader itself, and a member that was just removed.
            metrics.replication = Some(BTreeMap::from([(1, matched(1)), (2, has)]));
            metrics.heartbeat = Some(BTreeMap::from([(1, answered), (2, heartbeat), (3, answered)]));
            assert_eq!(held_for(&metrics, sent), expected, "{has:?} {heartbeat:?} {sent:?}");
        }
    }

    /// It answers no heartbeat while it installs the snapshot, and has not answered the next one yet afterwards.
    #[test]
    fn log_is_held_for_a_member_that_installs_a_snapshot() {
        let silent = Some(SerdeInstant::new(TypeConfig::now() - PATIENCE));
        let mut metrics = Metrics::new_initial(1);
        metrics.replication = Some(BTreeMap::from([(2, None)]));
        metrics.heartbeat = Some(BTreeMap::from([(2, silent)]));
        let sent = SentSnapshots::default();
        let begun = Duration::from_secs(100);
        let held_at =
            |now: Duration| member_that_lacks(&metrics, (PATIENCE, now), |id| sent.get(id), 7).is_some();
        assert!(!held_at(begun), "nothing is sent");
        sent.begin(2, 6);
        assert!(!held_at(begun), "no answer yet: it may be gone");
        sent.answered(2);
        assert!(held_at(begun + 9 * PATIENCE));
        sent.ended(2, true, begun);
        assert!(held_at(begun + limits::LOG_HELD_FOR_SILENT / 2));
        assert!(!held_at(begun + limits::LOG_HELD_FOR_SILENT));
        sent.begin(2, 6);
        sent.answered(2);
        sent.ended(2, false, begun);
        assert!(!held_at(begun) && sent.get(2).is_none());
    }
}
