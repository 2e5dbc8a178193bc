//! The log as witness, for the registry and the log indexes of all answers, in O(n log n).
//!
//! The versions of a tool are an order of its writes. The order must respect real time, and repeating the writes in it
//! must give every answer. A write of unknown outcome took effect if its value was read or a version needs it. The log
//! index of an answer is at least every log index that was answered before its operation began.

use std::collections::BTreeMap;

use super::single_use::is_success;
use super::{Found, Numbered, Violation, by_key, grouped, name};
use crate::history::{History, Kind, Nanos, Operation, Outcome, Workload};

mod versions;

pub const NAME: &str = "witness";

pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Found::by(NAME);
    // Two regions have a log each; the nodes of the first are numbered first.
    let log = |one: &Operation| one.workload == Workload::Federation && one.node > history.run.nodes / 2;
    for operations in grouped(history.operations.iter().enumerate(), log).into_values() {
        indexes(history, operations, &mut found);
    }
    for (tool, operations) in by_key(history, Workload::Registry) {
        versions::replay(tool, &operations, &mut found);
        looked_at(tool, &operations, &mut found);
    }
    found.violations
}

/// Relation of the index of an answer to the indexes that were answered before its operation began.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// It is an entry of its own.
    Above,
    /// It is a linearizable read, or an entry.
    AtLeast,
    /// It is a read at a named index.
    Named(u64),
    /// It is a lookup under a lease, or has no index.
    Free,
}

fn reach(operation: &Operation) -> Reach {
    if operation.outcome != Outcome::Ok {
        return Reach::Free;
    }
    match operation.kind {
        // Each changes a tool, and the entry is proposed after the operation began.
        Kind::Write | Kind::Remove => Reach::Above,
        Kind::Read => operation.input["min_index"].as_u64().map_or(Reach::AtLeast, Reach::Named),
        // Looked up: it is acknowledged by the index of the first.
        Kind::Revoke | Kind::Emit if operation.value == "duplicate" => Reach::Free,
        Kind::Revoke | Kind::Emit | Kind::Change | Kind::Taint => Reach::AtLeast,
        Kind::Spend if is_success(operation) == Some(true) => Reach::AtLeast,
        _ => Reach::Free,
    }
}

/// In one log the index of every answer is at least each index that was answered before its operation began. That makes the
/// indexes of one process monotone, too.
fn indexes(history: &History, mut begins: Vec<Numbered<'_>>, found: &mut Found) {
    let answered = |operation: &Operation| Some((operation.end, operation.index?));
    begins.sort_by_key(|(_, operation)| operation.invoke);
    let mut ends: Vec<(Nanos, u64, usize)> = begins
        .iter()
        .filter_map(|(number, operation)| answered(operation).map(|(end, index)| (end, index, *number)))
        .collect();
    ends.sort_unstable();
    let mut ends = ends.into_iter().peekable();
    let mut highest: Option<(u64, usize)> = None;
    for (number, operation) in begins {
        while let Some((_, index, number)) = ends.next_if(|(end, ..)| *end < operation.invoke) {
            highest = highest.max(Some((index, number)));
        }
        let reach = reach(operation);
        if reach == Reach::Free {
            continue;
        }
        let Some(index) = operation.index else {
            found.add("readable", format!("{} has no log index", name(operation)), &[number]);
            continue;
        };
        match (reach, highest) {
            (Reach::Named(named), _) if index < named => {
                let detail = format!("{} named index {named} and was answered at {index}", name(operation));
                found.add("named index", detail, &[number]);
            }
            (Reach::Above | Reach::AtLeast, Some((before, other)))
                if index < before || (reach == Reach::Above && index == before) =>
            {
                let earlier = &history.operations[other];
                let detail = format!(
                    "{} was answered at index {index}, although {before} was answered before: {}",
                    name(operation),
                    name(earlier)
                );
                let is_session = earlier.process == operation.process;
                found.add(if is_session { "session" } else { "index order" }, detail, &[other, number]);
            }
            _ => {}
        }
    }
}

/// A tool with an acknowledged change is read at the end, or its loss would not be seen.
fn looked_at(tool: &str, operations: &[Numbered<'_>], found: &mut Found) {
    let is_changed = |(_, operation): &&Numbered<'_>| {
        matches!(operation.kind, Kind::Write | Kind::Remove) && operation.outcome == Outcome::Ok
    };
    let is_last_look = |(_, operation): &Numbered<'_>| {
        operation.is_final && operation.kind == Kind::Read && operation.outcome == Outcome::Ok
    };
    if let Some((number, _)) = operations.iter().find(is_changed)
        && !operations.iter().any(is_last_look)
    {
        found.add("read at the end", format!("{tool} was changed and not read at the end"), &[*number]);
    }
}

/// Groups of operations that must happen one after the other: those of a later group do not end before one of an
/// earlier group begins.
struct Sequence<G> {
    groups: BTreeMap<G, Vec<Member>>,
}

/// An operation in its group. One that may have happened earlier than it began has `begun` 0.
#[derive(Clone, Copy)]
struct Member {
    number: usize,
    begun: Nanos,
    ended: Nanos,
}

impl<G: Ord + Copy> Sequence<G> {
    const fn new() -> Self {
        Self { groups: BTreeMap::new() }
    }

    fn add(&mut self, group: G, member: Member) {
        self.groups.entry(group).or_default().push(member);
    }

    fn bounds(&self) -> Bounds<G> {
        let mut earliest = Nanos::MAX;
        let mut bounds = Vec::with_capacity(self.groups.len());
        for (group, members) in self.groups.iter().rev() {
            let of_group = members.iter().map(|member| member.ended).min().unwrap_or(Nanos::MAX);
            earliest = earliest.min(of_group);
            bounds.push((*group, earliest));
        }
        bounds.reverse();
        Bounds(bounds)
    }

    /// Pairs whose order contradicts real time: for each operation at most one, with the latest begin before it.
    fn contradictions(&self) -> Vec<(usize, usize)> {
        let mut pairs = Vec::new();
        let mut latest: Option<Member> = None;
        for members in self.groups.values() {
            for member in members {
                if let Some(latest) = latest.filter(|latest| member.ended < latest.begun) {
                    pairs.push((latest.number, member.number));
                }
            }
            latest = latest.into_iter().chain(members.iter().copied()).max_by_key(|member| member.begun);
        }
        pairs
    }
}

/// For each group the earliest end in it and the groups after it.
struct Bounds<G>(Vec<(G, Nanos)>);

impl<G: Ord + Copy> Bounds<G> {
    /// The earliest end in the groups after `group`.
    fn after(&self, group: G) -> Nanos {
        let next = self.0.partition_point(|(other, _)| *other <= group);
        self.0.get(next).map_or(Nanos::MAX, |(_, earliest)| *earliest)
    }
}
