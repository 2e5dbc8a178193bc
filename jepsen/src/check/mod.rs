//! Checkers: from a history to its violations. Each is a function of the whole history, so a recorded one can be
//! checked again.
//!
//! A checker refuses when in doubt: a search that did not end, an answer that cannot be read and an effect that is not
//! looked for at the end are violations. Numbers are those in [`History::operations`].

mod audit;
mod blocked;
mod federation;
mod feed;
mod keys;
mod linearizable;
mod liveness;
mod registry;
mod revoke;
mod single_use;
pub mod streams;
mod witness;

#[cfg(test)]
mod made;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::history::{History, Kind, Nanos, Operation, Outcome, Workload};

/// A broken promise.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Violation {
    pub checker: &'static str,
    /// The broken rule.
    pub rule: &'static str,
    /// A sentence for a reader.
    pub detail: String,
    /// The operations that show it.
    pub operations: Vec<usize>,
}

/// A checker with its name.
pub type Checker = (&'static str, fn(&History) -> Vec<Violation>);

pub const ALL: [Checker; 11] = [
    (witness::NAME, witness::check),
    (registry::NAME, registry::check),
    (revoke::NAME, revoke::check),
    (single_use::NAME, single_use::check),
    (streams::NAME, streams::check),
    (feed::NAME, feed::check),
    (audit::NAME, audit::check),
    (keys::NAME, keys::check),
    (blocked::NAME, blocked::check),
    (federation::NAME, federation::check),
    (liveness::NAME, liveness::check),
];

/// The violations of every checker.
pub fn all(history: &History) -> Vec<Violation> {
    ALL.iter().flat_map(|(_, check)| check(history)).collect()
}

/// Operations that could show a violation, by checker and name: a promise that was never tested is not kept.
pub fn coverage(history: &History) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::from(revoke::coverage(history));
    counts.extend(single_use::coverage(history));
    counts.extend(streams::coverage(history));
    counts.extend(federation::coverage(history));
    let is_named = |(_, read): &Numbered<'_>| is_ok(read, Kind::Read) && !read.input["min_index"].is_null();
    counts.insert("reads at a named index", of(history, Workload::Registry).filter(is_named).count() as u64);
    counts
}

/// An operation with its number in the history.
type Numbered<'h> = (usize, &'h Operation);

/// Violations that one checker has found.
struct Found {
    checker: &'static str,
    violations: Vec<Violation>,
}

impl Found {
    const fn by(checker: &'static str) -> Self {
        Self { checker, violations: Vec::new() }
    }

    fn add(&mut self, rule: &'static str, detail: String, operations: &[usize]) {
        let operations = operations.to_vec();
        self.violations.push(Violation { checker: self.checker, rule, detail, operations });
    }

    /// An answer without the fields that its kind has.
    fn add_unreadable(&mut self, (number, operation): Numbered<'_>) {
        let detail = format!("{} has an answer of another form: {}", name(operation), operation.value);
        self.add("readable", detail, &[number]);
    }
}

fn of(history: &History, workload: Workload) -> impl Iterator<Item = Numbered<'_>> {
    history.operations.iter().enumerate().filter(move |(_, operation)| operation.workload == workload)
}

/// Operations of one workload by their key.
fn by_key(history: &History, workload: Workload) -> BTreeMap<&str, Vec<Numbered<'_>>> {
    grouped(of(history, workload), |operation| operation.key.as_str())
}

fn grouped<'h, K: Ord>(
    operations: impl Iterator<Item = Numbered<'h>>,
    key: impl Fn(&'h Operation) -> K,
) -> BTreeMap<K, Vec<Numbered<'h>>> {
    let mut groups: BTreeMap<K, Vec<Numbered<'h>>> = BTreeMap::new();
    for (number, operation) in operations {
        groups.entry(key(operation)).or_default().push((number, operation));
    }
    groups
}

fn is_ok(operation: &Operation, kind: Kind) -> bool {
    operation.kind == kind && operation.outcome == Outcome::Ok
}

/// End of an operation; one with unknown outcome may take effect at any later time.
fn end(operation: &Operation) -> Nanos {
    if operation.outcome == Outcome::Unknown { Nanos::MAX } else { operation.end }
}

/// The text of a JSON value that names something: a string without its quotes.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// An operation as a reader names it.
pub(crate) fn name(operation: &Operation) -> String {
    let kind = serde_json::to_value(operation.kind).ok().and_then(|kind| text(&kind)).unwrap_or_default();
    format!(
        "{kind} of {} on node {} ({} to {} s)",
        operation.key,
        operation.node,
        seconds(operation.invoke),
        seconds(operation.end)
    )
}

/// Seconds with six decimals.
pub(crate) fn seconds(at: Nanos) -> String {
    format!("{}.{:06}", at / 1_000_000_000, at % 1_000_000_000 / 1000)
}
