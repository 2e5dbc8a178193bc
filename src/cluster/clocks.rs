//! The wall clocks of the members: the leader reads them in the answers to its heartbeats, a candidate in the answers to
//! its requests for votes, and every node knows from the leader how far its own is from the others'.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use openraft::async_runtime::watch::WatchReceiver as _;

use super::apply::state_machine::Shared;
use super::clock_agreement::{Agreement, ClockReport, ClockVerdict, FirstReading, Reading};
use super::propose::Raft;
use super::{Fresh, Handle, Machine, Stale, Stamp};
use crate::clock::{Clock, Timestamp};
use crate::limits;

/// The wall clocks of the members, as this node knows them.
pub struct Clocks {
    clock: Clock,
    node_id: u64,
    /// One for each member that answered this node.
    readings: Mutex<BTreeMap<u64, Reading>>,
    /// What the leader said last.
    report: ArcSwap<ClockReport>,
}

impl Clocks {
    /// Nothing is known but this node's own clock.
    pub fn new(clock: Clock, node_id: u64) -> Self {
        Self { clock, node_id, readings: Mutex::default(), report: ArcSwap::default() }
    }

    /// Time since boot, by which a reading is timed.
    pub fn boot(&self) -> Duration {
        self.clock.boot()
    }

    /// A node whose answer to a request that was sent at `sent` says that its wall clock shows `wall`.
    pub fn hear(&self, node_id: u64, wall: Timestamp, sent: Duration) {
        if let Some(reading) = Reading::new(wall, sent, self.clock.boot()) {
            self.readings.lock().unwrap_or_else(PoisonError::into_inner).insert(node_id, reading);
        }
    }

    /// The wall clocks now, as far as they were read of late; this node's own is always known.
    pub fn agreement(&self, voters: &BTreeSet<u64>) -> Agreement {
        let now = self.clock.boot();
        let readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        let read = readings.iter().filter_map(|(id, reading)| Some((*id, reading.at(now)?)));
        let clocks = read.chain([(self.node_id, self.clock.now())]).collect();
        Agreement::of(voters, &clocks)
    }

    /// What the leader says of them.
    pub fn note(&self, report: ClockReport) {
        let verdict = report.verdict(self.node_id);
        let before = self.report.swap(Arc::new(report)).verdict(self.node_id);
        if verdict != before {
            let report = self.report.load();
            let offset_millis = report.offsets.get(&self.node_id).copied();
            let (is_agreed, spread) = (report.is_agreed, report.spread);
            match verdict {
                ClockVerdict::Good => {
                    tracing::info!(offset_millis, "this node's clock is close to the cluster's");
                }
                ClockVerdict::Apart => tracing::warn!(
                    offset_millis,
                    is_agreed,
                    ?spread,
                    "this node's clock is not known to be right: it takes no credentials of other issuers"
                ),
                ClockVerdict::FarApart => tracing::error!(
                    offset_millis,
                    is_agreed,
                    ?spread,
                    "this node's clock is wrong, or nobody knows which is right: nothing is judged by time here"
                ),
            }
        }
    }

    /// What the leader said last.
    pub fn report(&self) -> Arc<ClockReport> {
        self.report.load_full()
    }
}

/// The times of the log entries that this node makes while it leads.
pub struct Stamps<M: Machine> {
    /// The consensus library.
    pub raft: Raft<M>,
    /// The wall clocks.
    pub clocks: Arc<Clocks>,
    /// The state, which has the times of the last entry.
    machine: Arc<M>,
    /// When that was applied.
    shared: Arc<Shared>,
    /// Whether the clocks of a majority were read.
    first: FirstReading,
}

impl<M: Machine> Stamps<M> {
    /// Of this node, which has read no clocks yet.
    pub fn new(raft: Raft<M>, clocks: &Arc<Clocks>, machine: &Arc<M>, shared: &Arc<Shared>) -> Self {
        let (clocks, machine, shared) = (Arc::clone(clocks), Arc::clone(machine), Arc::clone(shared));
        Self { raft, clocks, machine, shared, first: FirstReading::default() }
    }

    /// The times of the next entry. `None` unless this node leads and has read the clocks of a majority in its term.
    pub fn next(&mut self) -> Option<Stamp> {
        let (term, voters) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let leads = metrics.current_leader == Some(self.clocks.node_id);
            let voters = || metrics.membership_config.membership().voter_ids().collect();
            (leads.then_some(metrics.current_term)?, voters())
        };
        let agreement = self.clocks.agreement(&voters);
        if !self.first.allows(term, &agreement) {
            return None;
        }
        // The times first: if an entry is applied meanwhile, too little has elapsed, never too much.
        let last = self.machine.times();
        Some(agreement.stamp(last, self.shared.since_applied(self.clocks.boot())))
    }
}

impl<M: Machine> Handle<M> {
    /// As the leader: how the clocks of the members stand.
    pub(super) fn measure_clocks(&self) -> ClockReport {
        let voters = self.membership().membership().voter_ids().collect();
        self.clocks.agreement(&voters).report()
    }

    /// Hands leadership over whenever this node leads and its clock is far from those that agree. Runs for ever.
    pub(super) async fn leave_with_wrong_clock(self) {
        loop {
            let report = self.clocks();
            let is_wrong = report.is_agreed && report.verdict(self.node_id) == ClockVerdict::FarApart;
            if is_wrong && self.leader() == Some(self.node_id) {
                tracing::warn!("this node's clock is wrong: another is to lead");
                self.hand_over().await;
            }
            tokio::time::sleep(limits::FRESHNESS_RENEWAL).await;
        }
    }

    /// How the clocks of the members stand, as the leader said last.
    #[must_use]
    pub fn clocks(&self) -> Arc<ClockReport> {
        self.clocks.report()
    }

    /// How much this node may judge by its wall clock.
    #[must_use]
    pub fn clock_verdict(&self) -> ClockVerdict {
        self.clocks().verdict(self.node_id)
    }

    /// Whether anything may be judged by this node's wall clock.
    ///
    /// # Errors
    /// [`Stale::ClockWrong`].
    pub fn judges_by_time(&self, _fresh: &Fresh) -> Result<(), Stale> {
        if self.clock_verdict() < ClockVerdict::FarApart { Ok(()) } else { Err(Stale::ClockWrong) }
    }

    /// Whether credentials of other issuers may be: what was revoked of them is told by their time.
    ///
    /// # Errors
    /// [`Stale::ClockApart`].
    pub fn judges_foreign(&self, _fresh: &Fresh) -> Result<(), Stale> {
        if self.clock_verdict() == ClockVerdict::Good { Ok(()) } else { Err(Stale::ClockApart) }
    }

    /// The wall time now as the voters' clocks show it, as far as this node knows.
    #[must_use]
    pub fn cluster_time(&self) -> Timestamp {
        self.clocks().corrected(self.node_id, self.clock.now())
    }

    /// Elapsed time now: that of the last entry, and what has passed since it was applied here. Late, never early.
    #[must_use]
    pub fn elapsed_time(&self) -> Timestamp {
        // The time first, as in [`Stamps::next`].
        let passed = self.machine.times().passed;
        passed.plus(self.shared.since_applied(self.clock.boot()))
    }
}
