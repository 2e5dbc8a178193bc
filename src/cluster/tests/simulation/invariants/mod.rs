//! The invariants of a run, each in a file of its own, and the trace. Every invariant is tested on a history that breaks
//! it.

mod blocked_callers;
mod election_safety;
mod leader_completeness;
mod log_matching;
mod reads;
mod revocations;
mod single_use;
mod state_machine_safety;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use self::blocked_callers::BlockedCallers;
use self::election_safety::ElectionSafety;
use self::leader_completeness::LeaderCompleteness;
use self::reads::Reads;
use self::revocations::Revocations;
use self::single_use::SingleUse;
use self::state_machine_safety::StateMachineSafety;
use crate::clock::{Clock, Timestamp};
use crate::cluster::tests::simulation::world::START;
use crate::cluster::type_config::LogId;

/// Result of a check: the violation.
pub type Checked = Result<(), String>;

#[derive(Default)]
struct Invariants {
    elections: ElectionSafety,
    known_leaders: BTreeSet<(u64, u64)>,
    leaders: LeaderCompleteness,
    machine: StateMachineSafety,
    revocations: Revocations,
    single_use: SingleUse,
    reads: Reads,
    blocked: BlockedCallers,
    /// Number of events: the order of events of one millisecond counts, too.
    events: u64,
}

/// Every event of a run, in its order.
#[derive(Default)]
struct Trace {
    lines: Vec<String>,
    violations: Vec<String>,
}

/// The observer of a run.
pub struct Checks {
    invariants: Mutex<Invariants>,
    trace: Mutex<Trace>,
    /// Time of the run, which no fault changes.
    clock: Clock,
}

/// The end of a run.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub violations: Vec<String>,
    pub lines: Vec<String>,
}

impl Checks {
    pub fn new(clock: Clock) -> Self {
        Self { invariants: Mutex::default(), trace: Mutex::default(), clock }
    }

    fn invariants(&self) -> MutexGuard<'_, Invariants> {
        let mut invariants = self.invariants.lock().expect("invariants");
        invariants.events += 1;
        invariants
    }

    /// Adds a line to the trace.
    pub fn note(&self, line: &str) {
        let line = format!("{:>6} {line}", self.clock.boot().as_millis());
        let mut trace = self.trace.lock().expect("trace");
        trace.lines.push(line);
    }

    pub fn check(&self, checked: Checked) {
        if let Err(violation) = checked {
            self.note(&format!("VIOLATION {violation}"));
            self.trace.lock().expect("trace").violations.push(violation);
        }
    }

    /// The time of the right clocks.
    pub fn time(&self) -> Timestamp {
        START.plus(self.clock.boot())
    }

    /// The number of the next event.
    pub fn now(&self) -> u64 {
        self.invariants().events
    }

    /// A node sends entries or heartbeats as the leader of a term.
    pub fn leads(
        &self,
        term: u64,
        node: u64,
        log: impl FnOnce(&BTreeMap<u64, LogId>) -> BTreeMap<u64, LogId>,
    ) {
        let mut invariants = self.invariants();
        // A superseded one, which sends late, need not have what its successor committed.
        let is_latest = invariants.known_leaders.last().is_none_or(|last| *last < (term, node));
        let is_new = invariants.known_leaders.insert((term, node));
        let checked = if is_new && is_latest {
            invariants.leaders.leads(term, &log(&invariants.leaders.all()))
        } else {
            Ok(())
        };
        drop(invariants);
        if is_new {
            self.note(&format!("node {node} leads term {term}"));
        }
        self.check(checked);
    }

    /// A node has applied an entry, after which its state has this hash.
    pub fn applied(&self, node: u64, log_id: LogId, hash: u64) {
        let mut invariants = self.invariants();
        invariants.leaders.committed(log_id);
        let elected = invariants.elections.committed(log_id);
        let checked = invariants.machine.applied(node, log_id, hash).and(elected);
        drop(invariants);
        self.note(&format!("node {node} applies {log_id}: {hash:016x}"));
        self.check(checked);
    }

    /// A node has installed a snapshot up to an entry; its state has this hash.
    pub fn installed(&self, node: u64, log_id: LogId, hash: u64) {
        let checked = self.invariants().machine.applied(node, log_id, hash);
        self.note(&format!("node {node} installs a snapshot up to {log_id}: {hash:016x}"));
        self.check(checked);
    }

    /// A write with this index was answered.
    pub fn answered(&self, index: u64) {
        self.invariants().reads.answered(index);
    }

    /// The largest index that was answered.
    pub fn answered_up_to(&self) -> u64 {
        self.invariants().reads.answered_up_to()
    }

    /// A read that began after everything up to `known` was answered sees the log up to `seen`.
    pub fn read(&self, known: u64, seen: u64) {
        self.check(reads::check(known, seen));
    }

    /// The revocation of a fact is acknowledged.
    pub fn revoked(&self, fact: u64) {
        let mut invariants = self.invariants();
        let now = invariants.events;
        invariants.revocations.acknowledged(fact, now);
    }

    /// A node accepted a credential of a fact, for a request that began with event `begun`.
    pub fn accepted(&self, node: u64, fact: u64, begun: u64) {
        let checked = self.invariants().revocations.accepted(node, fact, begun);
        self.check(checked);
    }

    /// A token was spent, or was spent before. `is_own`: no other request has it.
    pub fn spent(&self, token: u64, is_first: bool, is_own: bool) {
        let checked = self.invariants().single_use.answered(token, is_first, is_own);
        self.check(checked);
    }

    /// The block of a caller was answered.
    pub fn blocked(&self, caller: u64) {
        let mut invariants = self.invariants();
        let now = invariants.events;
        invariants.blocked.blocked(caller, now);
    }

    /// A command that a caller gave with event `begun` was applied, or refused because it is blocked.
    pub fn commanded(&self, caller: u64, begun: u64, is_refused: bool) {
        let checked = self.invariants().blocked.commanded(caller, begun, is_refused);
        self.check(checked);
    }

    /// The logs of the nodes that run.
    pub fn logs(&self, logs: &BTreeMap<u64, BTreeMap<u64, LogId>>) {
        self.check(log_matching::check(logs));
    }

    /// The entries that are known to be committed.
    pub fn committed(&self) -> BTreeMap<u64, LogId> {
        self.invariants().leaders.all()
    }

    pub fn outcome(&self) -> Outcome {
        let trace = self.trace.lock().expect("trace");
        Outcome { violations: trace.violations.clone(), lines: trace.lines.clone() }
    }
}
