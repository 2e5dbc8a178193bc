//! The wall clocks of the members: the leader reads them in heartbeat responses, a candidate in vote responses. Every
//! other node learns its own offset from the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use openraft::async_runtime::watch::WatchReceiver as _;
use parking_lot::Mutex;

use super::apply::state_machine::Shared;
use super::clock_agreement::{Agreement, ClockReport, ClockVerdict, ElapsedInTerm, FirstReading, Reading};
use super::type_config::StoredMembership;
use super::{Handle, LeaseError, LeaseProof, Machine, Raft, Stamp};
use crate::breaks::{self, Break};
use crate::clock::{Clock, Timestamp};
use crate::limits;

/// The members' wall clocks, as this node knows them.
pub(crate) struct Clocks {
    clock: Clock,
    node_id: u64,
    /// The last reading of each member that answered this node.
    readings: Mutex<BTreeMap<u64, Reading>>,
    /// The leader's last report.
    report: ArcSwap<ClockReport>,
}

impl Clocks {
    /// Without readings of other nodes.
    pub(crate) fn new(clock: Clock, node_id: u64) -> Self {
        Self { clock, node_id, readings: Mutex::default(), report: ArcSwap::default() }
    }

    /// The boot clock, which times readings.
    pub(crate) fn boot(&self) -> Duration {
        self.clock.boot()
    }

    /// Records a reading: the response to a request sent at `sent` states the wall clock as `wall`.
    pub(crate) fn record_reading(&self, node_id: u64, wall: Timestamp, sent: Duration) {
        if let Some(reading) = Reading::new(wall, sent, self.clock.boot()) {
            self.readings.lock().insert(node_id, reading);
        }
    }

    /// The wall clocks now, from valid readings and this node's own clock.
    pub(crate) fn agreement(&self, voters: &BTreeSet<u64>) -> Agreement {
        let now = self.clock.boot();
        let readings = self.readings.lock();
        let read = readings.iter().filter_map(|(id, reading)| Some((*id, reading.at(now)?)));
        let clocks = read.chain([(self.node_id, self.clock.now())]).collect();
        Agreement::of(voters, &clocks)
    }

    /// Records the leader's report, and logs a changed verdict.
    pub(crate) fn record_report(&self, report: ClockReport) {
        let verdict = report.verdict(self.node_id);
        let before = self.report.swap(Arc::new(report)).verdict(self.node_id);
        if verdict != before {
            let report = self.report.load();
            let offset_millis = report.offsets.get(&self.node_id).copied();
            let (is_agreed, spread) = (report.is_agreed, report.spread);
            match verdict {
                ClockVerdict::Good => {
                    tracing::info!(offset_millis, "wall clock of this node agrees with the cluster");
                }
                ClockVerdict::Apart => tracing::warn!(
                    offset_millis,
                    is_agreed,
                    ?spread,
                    "wall clock of this node is off or unconfirmed: credentials of other issuers are refused"
                ),
                ClockVerdict::FarApart => tracing::error!(
                    offset_millis,
                    is_agreed,
                    ?spread,
                    "wall clock of this node is wrong, or the voters' clocks do not agree: decisions by time are refused"
                ),
            }
        }
    }

    /// The leader's last report.
    pub(crate) fn report(&self) -> Arc<ClockReport> {
        self.report.load_full()
    }
}

/// Stamps the log entries that this node proposes as leader.
pub(crate) struct Stamps<M: Machine> {
    /// openraft.
    pub(crate) raft: Raft<M>,
    pub(crate) clocks: Arc<Clocks>,
    /// The state, with the times of the last entry.
    machine: Arc<M>,
    /// When that entry was applied.
    shared: Arc<Shared>,
    /// Whether the clocks of a majority were read in this term.
    first: FirstReading,
    elapsed: ElapsedInTerm,
}

impl<M: Machine> Stamps<M> {
    /// Before any clock was read.
    pub(crate) fn new(raft: Raft<M>, clocks: &Arc<Clocks>, machine: &Arc<M>, shared: &Arc<Shared>) -> Self {
        let (clocks, machine, shared) = (Arc::clone(clocks), Arc::clone(machine), Arc::clone(shared));
        Self {
            raft,
            clocks,
            machine,
            shared,
            first: FirstReading::default(),
            elapsed: ElapsedInTerm::default(),
        }
    }

    /// Time stamp of the next entry. `None` unless this node leads and has read the clocks of a majority in its term.
    pub(crate) fn next(&mut self) -> Option<Stamp> {
        let (term, voters) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let leads = metrics.current_leader == Some(self.clocks.node_id);
            let voters = || new_voters(&metrics.membership_config);
            (leads.then_some(metrics.current_term)?, voters())
        };
        let alone = breaks::active(Break::IgnorePeerClocks).then(|| BTreeSet::from([self.clocks.node_id]));
        let agreement = self.clocks.agreement(&alone.unwrap_or(voters));
        // The times are read first: if an entry is applied between the two reads, too little elapsed time is added,
        // never too much.
        let last = self.machine.times();
        if !self.first.allows(term, &agreement, last) {
            return None;
        }
        let now = self.clocks.boot();
        let elapsed = self.elapsed.count(term, now, last.elapsed.plus(self.shared.since_applied(now)));
        Some(agreement.stamp(last, elapsed.since(last.elapsed)))
    }
}

/// The voters whose clocks count: during a change of voters, those of the new configuration. Clocks decide no safety of
/// the log, so that no quorum of both configurations is needed.
fn new_voters(membership: &StoredMembership) -> BTreeSet<u64> {
    membership.get_joint_config().last().cloned().unwrap_or_default()
}

impl<M: Machine> Handle<M> {
    /// Clock report of this node, as leader.
    pub(super) fn measure_clocks(&self) -> ClockReport {
        let voters = new_voters(&self.known_members().effective);
        self.clocks.agreement(&voters).report()
    }

    /// Transfers leadership to a voter that can keep it while this node leads and its clock is far from an agreed median.
    /// Runs for ever.
    pub(super) async fn step_down_with_wrong_clock(self) {
        loop {
            if self.clocks().is_wrong(self.node_id) && self.leader() == Some(self.node_id) {
                let voters = self.able_voters().await;
                if !voters.is_empty() {
                    tracing::warn!("wall clock of this leader is wrong: transferring leadership");
                    self.transfer_to_one_of(voters).await;
                }
            }
            tokio::time::sleep(limits::FRESHNESS_RENEWAL).await;
        }
    }

    /// The leader's last clock report.
    pub(crate) fn clocks(&self) -> Arc<ClockReport> {
        self.clocks.report()
    }

    /// Decisions that this node may base on its wall clock.
    pub(crate) fn clock_verdict(&self) -> ClockVerdict {
        self.clocks().verdict(self.node_id)
    }

    /// Checks that decisions may be based on this node's wall clock.
    ///
    /// # Errors
    /// [`LeaseError::ClockWrong`].
    pub(crate) fn check_clock(&self, _fresh: &LeaseProof) -> Result<(), LeaseError> {
        if self.clock_verdict() < ClockVerdict::FarApart { Ok(()) } else { Err(LeaseError::ClockWrong) }
    }

    /// Checks that credentials of other issuers may be accepted: revocations cover them by their time of issue.
    ///
    /// # Errors
    /// [`LeaseError::ClockApart`].
    pub(crate) fn check_clock_for_foreign(&self, _fresh: &LeaseProof) -> Result<(), LeaseError> {
        if self.clock_verdict() == ClockVerdict::Good { Ok(()) } else { Err(LeaseError::ClockApart) }
    }

    /// The current wall time by the median of the voters' clocks, as far as this node knows it.
    pub(crate) fn cluster_time(&self) -> Timestamp {
        self.clocks().corrected(self.node_id, self.clock.now())
    }

    /// Elapsed time now: that of the last entry plus the time since it was applied here. May be late, never early.
    pub(crate) fn elapsed_time(&self) -> Timestamp {
        // The order of [`Stamps::next`].
        let elapsed = self.machine.times().elapsed;
        elapsed.plus(self.shared.since_applied(self.clock.boot()))
    }
}
