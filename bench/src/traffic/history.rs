//! Events of a run, and their violations.
//!
//! A *request* is due at a time of the schedule, and is sent to one node after the other until one answers
//! it. A *try* is one sending of it. All times are microseconds since the start of the run.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Microseconds since the start of the run.
pub type Micros = u64;

/// Kinds of requests, in the order of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Exchange,
    Verify,
    Signal,
    Write,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Exchange, Self::Verify, Self::Signal, Self::Write];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Exchange => "exchange",
            Self::Verify => "verify",
            Self::Signal => "signal",
            Self::Write => "tool write",
        }
    }

    /// Its index in [`Kind::ALL`].
    pub const fn place(self) -> usize {
        self as usize
    }
}

/// Result of a try or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The expected response.
    Good,
    /// 503 with unknown outcome.
    Unknown,
    /// 503 or 429.
    NotNow,
    /// No response: the connection was refused or broke, or a timeout.
    None,
    /// Any other response.
    Wrong(u16),
}

/// One sending of a request to one node.
#[derive(Clone, Copy, Debug)]
pub struct Try {
    pub kind: Kind,
    pub node: usize,
    pub sent: Micros,
    pub done: Micros,
    pub outcome: Outcome,
}

/// A request with all its tries.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub kind: Kind,
    pub due: Micros,
    pub done: Micros,
    /// Outcome of its first try.
    pub first: Outcome,
    /// Outcome of its last try.
    pub outcome: Outcome,
}

/// A fault of a node.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub node: usize,
    /// Just before the fault.
    pub at: Micros,
    /// Time at which another node led, if one did.
    pub led_at: Option<Micros>,
    /// Time at which the node was healthy again, or the end of the run.
    pub well_at: Micros,
}

/// A verification of a token whose subject is revoked in this run, sooner or later.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    pub subject: u64,
    pub node: usize,
    /// Just before its first byte was sent.
    pub begun: Micros,
    pub is_accepted: bool,
}

/// Everything recorded.
#[derive(Default)]
pub struct History {
    pub requests: Vec<Request>,
    pub tries: Vec<Try>,
    pub faults: Vec<Fault>,
    pub checks: Vec<Check>,
    /// Time of the first acknowledged revocation of each subject.
    pub revoked: BTreeMap<u64, Micros>,
    /// Numbers of the tools with an acknowledged write.
    pub written: BTreeSet<u64>,
    /// Leaders, each with its start.
    pub leaders: Vec<(Micros, Option<usize>)>,
    /// First answers that were neither good nor an orderly refusal.
    pub odd: Vec<String>,
    /// Connections that failed, by how.
    pub broken: BTreeMap<&'static str, u64>,
    /// Due time of the last request.
    pub end: Micros,
}

/// Effect of one fault on one kind of request.
///
/// The span of a fault lasts until the next one, or until the end of the run. `silence` is the gap: the
/// longest time of the span without a good response, counted from the last good response before the fault. A
/// client that sends without pause and tries the next node at once gets nothing for so long. `wait` is the
/// longest time from the due time of a request to its good response, over the requests that were due in the
/// span or waited when it began. It is never much shorter than the gap, and longer if one request was unlucky
/// while others were answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub silence: Micros,
    pub wait: Micros,
    /// Whether a request was answered well between the fault and the end of its span.
    pub has_ended: bool,
}

/// An acknowledged write that is missing or different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    pub node: usize,
    pub number: u64,
    /// It exists, with other content.
    pub is_other: bool,
}

impl History {
    /// The span of each fault.
    pub fn spans(&self) -> impl Iterator<Item = (&Fault, std::ops::Range<Micros>)> {
        self.faults.iter().enumerate().map(|(place, fault)| {
            let end = self.faults.get(place + 1).map_or(self.end, |next| next.at);
            (fault, fault.at..end.max(fault.at))
        })
    }

    /// The longest time between two good responses of one kind.
    pub fn longest_silence(&self, kind: Kind) -> Micros {
        let is_good = |request: &&Request| request.kind == kind && request.outcome == Outcome::Good;
        let mut done: Vec<_> = self.requests.iter().filter(is_good).map(|request| request.done).collect();
        done.sort_unstable();
        done.windows(2).map(|two| two[1] - two[0]).max().unwrap_or_default()
    }

    /// Gaps of all faults for one kind.
    pub fn gaps(&self, kind: Kind) -> Vec<Gap> {
        let mut good: Vec<_> = self
            .requests
            .iter()
            .filter(|request| request.kind == kind && request.outcome == Outcome::Good)
            .collect();
        good.sort_by_key(|request| request.done);
        self.spans()
            .map(|(_, span)| {
                let after = good.partition_point(|request| request.done <= span.start);
                let mut last = after.checked_sub(1).map_or(span.start, |before| good[before].done);
                let mut found = Gap { silence: 0, wait: 0, has_ended: false };
                for request in &good[after..] {
                    let done = request.done.min(span.end);
                    found.silence = found.silence.max(done.saturating_sub(last));
                    last = done;
                    found.has_ended |= request.done < span.end;
                    if request.due < span.end {
                        found.wait = found.wait.max(request.done - request.due.min(request.done));
                    }
                }
                found.silence = found.silence.max(span.end.saturating_sub(last));
                found
            })
            .collect()
    }

    /// Failed tries of one kind on nodes without a fault, and their longest good one: from each fault until
    /// its node was healthy again.
    pub fn elsewhere(&self, kind: Kind) -> Elsewhere {
        let mut found = Elsewhere::default();
        for one in self.tries.iter().filter(|one| one.kind == kind) {
            // The last fault before its end: no try takes longer than the time between two.
            let next = self.faults.partition_point(|fault| fault.at <= one.done);
            let Some(fault) = next.checked_sub(1).map(|last| &self.faults[last]) else { continue };
            if one.node == fault.node || one.sent >= fault.well_at {
                continue;
            }
            found.tries += 1;
            if one.outcome == Outcome::Good {
                found.wait = found.wait.max(one.done - one.sent.min(one.done));
            } else {
                *found.refused.entry(name(one.outcome)).or_default() += 1;
            }
        }
        found
    }

    /// Verifications that accepted a subject although they began after its revocation was acknowledged.
    pub fn stale(&self) -> Vec<Check> {
        let is_stale = |check: &&Check| {
            check.is_accepted && self.revoked.get(&check.subject).is_some_and(|at| check.begun > *at)
        };
        self.checks.iter().filter(is_stale).copied().collect()
    }

    /// Acknowledged writes that one of `nodes` lacks. Each node is a map from number to tool; `entry` is the
    /// written content.
    pub fn lost(&self, nodes: &[BTreeMap<u64, Value>], entry: impl Fn(u64) -> Value) -> Vec<Lost> {
        let mut lost = Vec::new();
        for number in &self.written {
            let entry = entry(*number);
            for (node, records) in nodes.iter().enumerate() {
                let record = records.get(number);
                if !record.is_some_and(|record| holds(record, &entry)) {
                    lost.push(Lost { node, number: *number, is_other: record.is_some() });
                }
            }
        }
        lost
    }
}

/// Observations of the nodes without a fault.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    pub tries: u64,
    /// Responses that were not good, by name.
    pub refused: BTreeMap<String, u64>,
    /// Longest time from the start of a try to its good response.
    pub wait: Micros,
}

/// The percentile of sorted values; `None` for none.
pub fn quantile(sorted: &[Micros], percent: usize) -> Option<Micros> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

pub fn name(outcome: Outcome) -> String {
    match outcome {
        Outcome::Good => "good".to_owned(),
        Outcome::Unknown => "outcome unknown".to_owned(),
        Outcome::NotNow => "not now".to_owned(),
        Outcome::None => "no answer".to_owned(),
        Outcome::Wrong(status) => status.to_string(),
    }
}

/// Whether `record` has every field of `entry`.
fn holds(record: &Value, entry: &Value) -> bool {
    entry
        .as_object()
        .is_some_and(|entry| entry.iter().all(|(member, value)| record.get(member) == Some(value)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn good(due: Micros, done: Micros) -> Request {
        Request { kind: Kind::Write, due, done, first: Outcome::Good, outcome: Outcome::Good }
    }

    fn fault(at: Micros) -> Fault {
        Fault { node: 0, at, led_at: None, well_at: at + 50 }
    }

    #[test]
    fn a_gap_begins_with_the_last_good_answer_before_the_fault() {
        let history = History {
            requests: vec![good(80, 90), good(90, 95), good(100, 700), good(110, 710), good(900, 910)],
            faults: vec![fault(100)],
            end: 1000,
            ..History::default()
        };
        assert_eq!(history.gaps(Kind::Write), [Gap { silence: 605, wait: 600, has_ended: true }]);
        assert_eq!(
            history.gaps(Kind::Verify),
            [Gap { silence: 900, wait: 0, has_ended: false }],
            "nothing of another kind counts"
        );
    }

    #[test]
    fn answers_that_are_not_good_do_not_end_a_gap() {
        let other = |outcome| Request { outcome, ..good(150, 200) };
        let history = History {
            requests: vec![
                good(0, 90),
                other(Outcome::NotNow),
                other(Outcome::Unknown),
                other(Outcome::None),
                other(Outcome::Wrong(409)),
                good(100, 400),
            ],
            faults: vec![fault(100)],
            end: 500,
            ..History::default()
        };
        assert_eq!(history.gaps(Kind::Write), [Gap { silence: 310, wait: 300, has_ended: true }]);
    }

    #[test]
    fn longest_silence_is_between_two_good_responses() {
        let history = History {
            requests: vec![good(90, 500), good(10, 20), Request { outcome: Outcome::NotNow, ..good(0, 200) }],
            ..History::default()
        };
        assert_eq!(history.longest_silence(Kind::Write), 480);
        assert_eq!(history.longest_silence(Kind::Verify), 0);
    }

    #[test]
    fn longest_stall_is_the_gap_although_some_were_answered_before() {
        let history = History {
            requests: vec![good(0, 99), good(100, 110), good(111, 500), good(112, 510)],
            faults: vec![fault(100)],
            end: 600,
            ..History::default()
        };
        assert_eq!(history.gaps(Kind::Write)[0].silence, 390);
    }

    #[test]
    fn each_fault_has_its_own_gap_and_none_is_lost_between_two() {
        let history = History {
            requests: vec![good(0, 99), good(100, 150), good(160, 420), good(430, 440)],
            faults: vec![fault(100), fault(300)],
            end: 500,
            ..History::default()
        };
        let gaps = history.gaps(Kind::Write);
        assert_eq!(gaps[0].silence, 150, "until the next fault");
        assert_eq!(
            gaps[1],
            Gap { silence: 270, wait: 260, has_ended: true },
            "from the last answer before it"
        );
    }

    #[test]
    fn cluster_that_never_recovers_is_reported() {
        let history = History {
            requests: vec![good(0, 90)],
            faults: vec![fault(100)],
            end: 5000,
            ..History::default()
        };
        assert_eq!(history.gaps(Kind::Write), [Gap { silence: 4910, wait: 0, has_ended: false }]);
    }

    #[test]
    fn quantile_is_one_of_the_values() {
        let values: Vec<_> = (1..=200).collect();
        assert_eq!(
            [50, 99, 100].map(|percent| quantile(&values, percent)),
            [Some(100), Some(198), Some(200)]
        );
        assert_eq!((quantile(&[7], 50), quantile(&[], 50)), (Some(7), None));
    }

    #[test]
    fn only_refusals_by_healthy_nodes_are_counted() {
        let one = |node, sent, outcome| Try { kind: Kind::Verify, node, sent, done: sent + 7, outcome };
        let history = History {
            tries: vec![
                one(1, 10, Outcome::NotNow),
                one(0, 110, Outcome::None),
                one(1, 110, Outcome::Good),
                one(2, 120, Outcome::NotNow),
                one(2, 121, Outcome::Wrong(403)),
                one(1, 200, Outcome::NotNow),
            ],
            faults: vec![fault(100)],
            end: 1000,
            ..History::default()
        };
        let found = history.elsewhere(Kind::Verify);
        assert_eq!((found.tries, found.wait), (3, 7));
        assert_eq!(found.refused, BTreeMap::from([("403".to_owned(), 1), ("not now".to_owned(), 1)]));
        assert_eq!(history.elsewhere(Kind::Write), Elsewhere::default());
    }

    #[test]
    fn an_accept_is_stale_if_it_was_begun_after_the_acknowledgement() {
        let check = |subject, begun, is_accepted| Check { subject, node: 1, begun, is_accepted };
        let mut history = History {
            checks: vec![check(1, 99, true), check(1, 100, true), check(1, 101, false), check(2, 500, true)],
            revoked: BTreeMap::from([(1, 100)]),
            ..History::default()
        };
        assert!(history.stale().is_empty(), "begun before, refused, or never acknowledged");
        history.checks.push(check(1, 101, true));
        let stale = history.stale();
        assert_eq!((stale.len(), stale[0].begun), (1, 101));
    }

    #[test]
    fn acknowledged_write_that_differs_on_a_node_is_lost() {
        let entry = |number: u64| json!({"tool_id": format!("t{number}"), "name": "n"});
        let record = |number: u64| json!({"tool_id": format!("t{number}"), "name": "n", "revision": 1});
        let whole = BTreeMap::from([(1, record(1)), (2, record(2)), (3, record(3))]);
        let history = History { written: BTreeSet::from([1, 2]), ..History::default() };
        assert!(history.lost(&[whole.clone(), whole.clone()], entry).is_empty());

        let without = BTreeMap::from([(1, record(1)), (3, record(3))]);
        let lost = history.lost(&[whole.clone(), without], entry);
        assert_eq!(lost, [Lost { node: 1, number: 2, is_other: false }]);

        let mut changed = whole.clone();
        changed.insert(1, json!({"tool_id": "t1", "name": "other"}));
        let lost = history.lost(&[changed, whole], entry);
        assert_eq!(lost, [Lost { node: 0, number: 1, is_other: true }]);
    }
}
