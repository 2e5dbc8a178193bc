//! One tool: its versions are replayed in their order.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::super::{Found, Numbered, end, name, text};
use super::{Member, Sequence};
use crate::history::{Kind, Nanos, Outcome};

/// Number of a registration and of its revision.
type Version = (u64, u64);

/// Position in the history of a tool: of a version first the write, then its reads, then its removal; after the last
/// version of a registration the reads of the absent tool.
type Group = (u64, u64, Step);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Written,
    Read,
    Removed,
    Absent,
}

/// `registration.revision` as at the end of an entity tag, with or without its quotes. Before it may be the incarnation, which
/// is the same during a run.
fn version(value: &Value) -> Option<Version> {
    let value = text(value)?;
    let mut parts = value.trim_matches('"').rsplit('.');
    let (revision, registration) = (parts.next()?, parts.next()?);
    Some((registration.parse().ok()?, revision.parse().ok()?))
}

/// The operations of one tool, with the versions of its writes as far as they are known.
struct Tool<'h, 'f> {
    name: &'h str,
    found: &'f mut Found,
    by_value: HashMap<String, Numbered<'h>>,
    versions: HashMap<usize, Version>,
    writers: BTreeMap<Version, Numbered<'h>>,
    order: Sequence<Group>,
}

pub(super) fn replay<'h>(name: &'h str, operations: &[Numbered<'h>], found: &mut Found) {
    let mut tool = Tool {
        name,
        found,
        by_value: HashMap::new(),
        versions: HashMap::new(),
        writers: BTreeMap::new(),
        order: Sequence::new(),
    };
    let of = |kind| operations.iter().copied().filter(move |(_, operation)| operation.kind == kind);
    let is_ok = |(_, operation): &Numbered<'h>| operation.outcome == Outcome::Ok;
    tool.take_writes(of(Kind::Write));
    let absent = tool.take_reads(of(Kind::Read).filter(is_ok));
    let removals: Vec<_> =
        of(Kind::Remove).filter(|(_, operation)| operation.outcome != Outcome::Fail).collect();
    tool.take_removals(&removals);
    tool.fill_gaps();
    tool.follow_conditions();
    let removed = tool.explain_registrations(&removals);
    tool.place_absent(&absent, &removed);
    tool.reach_named(of(Kind::Read).filter(is_ok));
    tool.respect_time(operations);
}

impl<'h> Tool<'h, '_> {
    /// Acknowledged writes state their version.
    fn take_writes(&mut self, writes: impl Iterator<Item = Numbered<'h>>) {
        for (number, operation) in writes {
            let Some(value) = text(&operation.input["value"]) else {
                self.found.add_unreadable((number, operation));
                continue;
            };
            if let Some((other, _)) = self.by_value.insert(value, (number, operation)) {
                let detail = format!("{}: two writes of one value cannot be distinguished", self.name);
                self.found.add("readable", detail, &[other, number]);
            }
            if operation.outcome == Outcome::Ok {
                match version(&operation.value["revision"]) {
                    Some(version) => self.attribute(version, (number, operation), number),
                    None => self.found.add_unreadable((number, operation)),
                }
            }
        }
    }

    /// Records that `write` made `version`, as the operation numbered `shown` states.
    fn attribute(&mut self, version: Version, write: Numbered<'h>, shown: usize) {
        let (number, operation) = write;
        if let Some(other) = self.versions.insert(number, version).filter(|other| *other != version) {
            let detail = format!("{} made the versions {other:?} and {version:?}", name(operation));
            self.found.add("one version for each write", detail, &[number, shown]);
        }
        if let Some((other, before)) =
            self.writers.insert(version, write).filter(|(other, _)| *other != number)
        {
            let detail = format!(
                "version {version:?} of {} comes from two writes: {} and {}",
                self.name,
                name(before),
                name(operation)
            );
            self.found.add("one write for each version", detail, &[other, number, shown]);
        }
    }

    /// Each read returns a value that was written, with its version. The result is the reads of an absent tool.
    fn take_reads(&mut self, reads: impl Iterator<Item = Numbered<'h>>) -> Vec<Numbered<'h>> {
        let mut absent = Vec::new();
        for (number, operation) in reads {
            if operation.value["value"].is_null() {
                absent.push((number, operation));
                continue;
            }
            let value = text(&operation.value["value"]).unwrap_or_default();
            let Some(version) = version(&operation.value["revision"]) else {
                self.found.add_unreadable((number, operation));
                continue;
            };
            let member = Member::of((number, operation));
            self.order.add((version.0, version.1, Step::Read), member);
            match self.by_value.get(&value).copied() {
                None => {
                    let detail = format!("{} returned {value}, which was never written", name(operation));
                    self.found.add("value was written", detail, &[number]);
                }
                Some((writer, write)) if write.outcome == Outcome::Fail => {
                    let detail = format!("{} returned {value} of a failed write", name(operation));
                    self.found.add("failed write has no effect", detail, &[writer, number]);
                }
                Some(write) => self.attribute(version, write, number),
            }
        }
        absent
    }

    /// Acknowledged removals of a named version. Nothing follows it in its registration.
    fn take_removals(&mut self, removals: &[Numbered<'h>]) {
        let mut of_registration: HashMap<u64, usize> = HashMap::new();
        for &(number, operation) in removals.iter().filter(|(_, removal)| removal.outcome == Outcome::Ok) {
            let Some((registration, revision)) = version(&operation.input["if_match"]) else { continue };
            self.order.add((registration, revision, Step::Removed), Member::of((number, operation)));
            if let Some(other) = of_registration.insert(registration, number) {
                let detail =
                    format!("registration {registration} of {} was removed more than once", self.name);
                self.found.add("removed once", detail, &[other, number]);
            }
            let later = (registration, revision.saturating_add(1))..=(registration, u64::MAX);
            if let Some((version, (other, _))) = self.writers.range(later).next() {
                let detail = format!("{} removed a version before {version:?}", name(operation));
                self.found.add("condition", detail, &[number, *other]);
            }
        }
    }

    /// Versions whose write is not known are those of writes with unknown outcome.
    fn fill_gaps(&mut self) {
        let mut unresolved: Vec<_> = self
            .by_value
            .values()
            .copied()
            .filter(|(number, write)| {
                write.outcome == Outcome::Unknown && !self.versions.contains_key(number)
            })
            .collect();
        unresolved.sort_by_key(|(_, write)| write.invoke);
        let mut missing = Vec::new();
        for registration in self.registrations() {
            let last = self.last_revision(registration);
            let known = self.writers.range((registration, 0)..=(registration, u64::MAX)).count() as u64;
            if last - known.min(last) > unresolved.len() as u64 {
                let detail = format!(
                    "{}: registration {registration} has {last} versions, of which {known} have a known write",
                    self.name
                );
                self.found.add("every version has a write", detail, &[]);
                continue;
            }
            let versions = (1..=last).map(|revision| (registration, revision));
            missing.extend(versions.filter(|version| !self.writers.contains_key(version)));
        }
        for (write, member) in self.writers.iter().map(|(version, write)| (*version, Member::of(*write))) {
            self.order.add((write.0, write.1, Step::Written), member);
        }
        let bounds = self.order.bounds();
        for (registration, revision) in missing {
            let group = (registration, revision, Step::Written);
            let bound = bounds.after(group);
            let previous = (registration, revision - 1);
            let exact = unresolved.iter().position(|(_, write)| {
                version(&write.input["if_match"]) == Some(previous) && write.invoke <= bound
            });
            let any = || {
                let is_free = |(_, write): &Numbered<'h>| write.input["if_match"].is_null();
                unresolved.iter().position(|write| is_free(write) && write.1.invoke <= bound)
            };
            if let Some(at) = exact.or_else(any) {
                let write = unresolved.remove(at);
                self.order.add(group, Member::of(write));
                self.writers.insert((registration, revision), write);
            } else {
                let detail = format!("version {:?} of {} has no write", (registration, revision), self.name);
                self.found.add("every version has a write", detail, &[]);
            }
        }
    }

    /// A write under a condition follows the version that it names.
    fn follow_conditions(&mut self) {
        for ((registration, revision), (number, write)) in &self.writers {
            let condition = &write.input["if_match"];
            let follows = version(condition)
                .is_some_and(|of| of.0 == *registration && of.1.checked_add(1) == Some(*revision));
            if condition.is_null() || follows {
                continue;
            }
            let detail = format!(
                "{} made version {:?}, although its condition was {condition}",
                name(write),
                (registration, revision)
            );
            self.found.add("condition", detail, &[*number]);
        }
    }

    /// Registrations that are known to have been removed. A registration that another one follows is.
    fn explain_registrations(&mut self, removals: &[Numbered<'h>]) -> Vec<u64> {
        let mut removed = Vec::new();
        let registrations = self.registrations();
        for (at, registration) in registrations.iter().copied().enumerate() {
            let last = self.last_revision(registration);
            let condition = |(_, removal): &Numbered<'h>| version(&removal.input["if_match"]);
            let is_known = |removal: &&Numbered<'h>| {
                removal.1.outcome == Outcome::Ok && condition(removal).is_some_and(|of| of.0 == registration)
            };
            let is_possible = |removal: &&Numbered<'h>| match condition(removal) {
                Some(version) => removal.1.outcome == Outcome::Unknown && version == (registration, last),
                None => removal.1.input["if_match"].is_null(),
            };
            if removals.iter().any(|removal| is_known(&removal)) {
                removed.push(registration);
            } else if let Some(removal) =
                removals.iter().filter(is_possible).min_by_key(|removal| removal.1.invoke)
            {
                removed.push(registration);
                let member = Member { ended: Nanos::MAX, ..Member::of(*removal) };
                self.order.add((registration, last, Step::Removed), member);
            } else if let Some(next) = registrations.get(at + 1) {
                let detail = format!(
                    "{} was registered again ({next}) although registration {registration} was not removed",
                    self.name
                );
                let writer = self.writers.range((*next, 0)..).next();
                let numbers: Vec<_> = writer.map(|(_, (number, _))| *number).into_iter().collect();
                self.found.add("absence has a removal", detail, &numbers);
            }
        }
        removed
    }

    /// Puts each read of the absent tool into the first time of its absence that real time permits.
    fn place_absent(&mut self, absent: &[Numbered<'h>], removed: &[u64]) {
        let bounds = self.order.bounds();
        let gaps: Vec<Group> = std::iter::once((0, 0, Step::Absent))
            .chain(removed.iter().map(|registration| (*registration, u64::MAX, Step::Absent)))
            .collect();
        for &(number, operation) in absent {
            let member = Member::of((number, operation));
            // Later gaps have later bounds.
            let first = gaps.partition_point(|gap| bounds.after(*gap) < member.begun);
            if let Some(gap) = gaps.get(first) {
                self.order.add(*gap, member);
                continue;
            }
            let detail = format!("{} found nothing, although nothing removed the tool", name(operation));
            self.found.add("absence has a removal", detail, &[number]);
        }
    }

    /// A read at a named index sees every write that was answered at or below it.
    fn reach_named(&mut self, reads: impl Iterator<Item = Numbered<'h>>) {
        let mut writes: Vec<_> = self
            .writers
            .iter()
            .filter(|(_, (_, write))| write.outcome == Outcome::Ok)
            .filter_map(|(version, (number, write))| Some((write.index?, *version, *number)))
            .collect();
        writes.sort_unstable();
        let mut highest = ((0, 0), usize::MAX);
        for write in &mut writes {
            highest = highest.max((write.1, write.2));
            (write.1, write.2) = highest;
        }
        for (number, operation) in reads {
            let Some(named) = operation.input["min_index"].as_u64() else { continue };
            let Some(read) = version(&operation.value["revision"]) else { continue };
            let count = writes.partition_point(|(index, ..)| *index <= named);
            let Some((index, version, write)) = count.checked_sub(1).map(|last| writes[last]) else {
                continue;
            };
            if read < version {
                let detail = format!(
                    "{} named index {named} and returned version {read:?}, although {version:?} was answered at {index}",
                    name(operation)
                );
                self.found.add("named index", detail, &[write, number]);
            }
        }
    }

    fn respect_time(&mut self, operations: &[Numbered<'h>]) {
        let operations: HashMap<usize, _> = operations.iter().copied().collect();
        for (first, second) in self.order.contradictions() {
            let (before, after) = (operations[&first], operations[&second]);
            let detail = format!(
                "{}: by its version, {} comes before {}, which had ended when it began",
                self.name,
                name(before),
                name(after)
            );
            let is_lost = before.is_final && before.kind == Kind::Read;
            let rule = if is_lost { "acknowledged change is there at the end" } else { "real time" };
            self.found.add(rule, detail, &[first, second]);
        }
    }

    fn registrations(&self) -> Vec<u64> {
        let mut registrations: Vec<_> = self.writers.keys().map(|(registration, _)| *registration).collect();
        registrations.extend(self.order.groups.keys().map(|(registration, ..)| *registration));
        registrations.sort_unstable();
        registrations.dedup();
        registrations
    }

    fn last_revision(&self, registration: u64) -> u64 {
        let (all, first) = ((registration, u64::MAX), (registration, 0));
        let written = self.writers.range(first..=all).next_back().map(|((_, revision), _)| *revision);
        let groups = (registration, 0, Step::Written)..(registration, u64::MAX, Step::Absent);
        let seen = self.order.groups.range(groups).next_back().map(|((_, revision, _), _)| *revision);
        written.max(seen).unwrap_or_default()
    }
}

impl Member {
    fn of((number, operation): Numbered<'_>) -> Self {
        // A read at a named index may be of the past.
        let is_named = operation.kind == Kind::Read && !operation.input["min_index"].is_null();
        let begun = if is_named { 0 } else { operation.invoke };
        Self { number, begun, ended: end(operation) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn version_is_the_end_of_an_entity_tag() {
        for tag in ["7.2", "\"7.2\"", "80d8ade3.7.2", "\"80d8ade3.7.2\""] {
            assert_eq!(version(&json!(tag)), Some((7, 2)), "{tag}");
        }
        for other in [json!("7"), json!("x.2"), json!(null)] {
            assert_eq!(version(&other), None, "{other}");
        }
    }
}
