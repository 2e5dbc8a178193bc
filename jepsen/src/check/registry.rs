//! Second opinion on the registry of tools: each tool is a register with compare-and-set, and its history is
//! linearizable. It trusts neither log indexes nor the order of revisions.

use std::collections::HashMap;

use super::linearizable::{self, Model, Timed, Verdict};
use super::{Found, Numbered, Violation, by_key, name, text};
use crate::history::{History, Kind, Outcome, Workload};

pub const NAME: &str = "registry";

/// Maximum steps of the search for one tool; beyond it: undecided, which is a violation. About a second.
const STEPS_MAX: u64 = 2_000_000;

/// Number of a value in the history of one tool.
type Version = u64;

/// A register; `None`: the tool is absent.
struct Tool;

enum Call {
    Write {
        value: Version,
        expected: Option<Version>,
    },
    Remove {
        expected: Option<Version>,
    },
    Read(Option<Version>),
    /// Refused because the tool was not of this version.
    Differs(Version),
}

impl Model for Tool {
    type State = Option<Version>;
    type Call = Call;

    fn initial(&self) -> Self::State {
        None
    }

    fn step(&self, state: &Self::State, call: &Call) -> Option<Self::State> {
        let matches = |expected: &Option<Version>| expected.is_none_or(|expected| *state == Some(expected));
        match call {
            Call::Write { value, expected } => matches(expected).then_some(Some(*value)),
            Call::Remove { expected } => (state.is_some() && matches(expected)).then_some(None),
            Call::Read(value) => (state == value).then_some(*state),
            Call::Differs(value) => (*state != Some(*value)).then_some(*state),
        }
    }
}

pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Found::by(NAME);
    for (tool, operations) in by_key(history, Workload::Registry) {
        let calls = calls(&operations);
        match linearizable::check(&Tool, &calls.0, STEPS_MAX) {
            Verdict::Linearizable => {}
            Verdict::Violated { longest, stuck } => {
                let (number, operation) = calls.1[stuck];
                let detail = format!(
                    "{tool}: no order of its operations explains all answers; after {} of them, {} never fits",
                    longest.len(),
                    name(operation)
                );
                let before = longest.last().map(|call| calls.1[*call].0);
                let numbers: Vec<_> = before.into_iter().chain([number]).collect();
                found.add("linearizable", detail, &numbers);
            }
            Verdict::Undecided => {
                let detail = format!("{tool}: the search of {} operations did not end", operations.len());
                found.add("decided", detail, &[]);
            }
        }
    }
    found.violations
}

/// Calls of the model, with the operations from which they come. Failed operations without a condition and
/// reads without an answer have no call.
fn calls<'h>(operations: &[Numbered<'h>]) -> (Vec<Timed<Call>>, Vec<Numbered<'h>>) {
    let mut numbers = Numbers::of(operations);
    let mut calls = (Vec::new(), Vec::new());
    for &(number, operation) in operations {
        let expected = text(&operation.input["if_match"]).map(|revision| numbers.of_revision(&revision));
        let call = match (operation.kind, operation.outcome) {
            (Kind::Write, Outcome::Ok | Outcome::Unknown) => {
                Call::Write { value: numbers.of_value(text(&operation.input["value"])), expected }
            }
            (Kind::Remove, Outcome::Ok | Outcome::Unknown) => Call::Remove { expected },
            (Kind::Read, Outcome::Ok) => {
                let value = text(&operation.value["value"]);
                Call::Read(value.map(|value| numbers.of_value(Some(value))))
            }
            (Kind::Write | Kind::Remove, Outcome::Fail) if matches!(operation.status, Some(404 | 412)) => {
                let Some(expected) = expected else { continue };
                Call::Differs(expected)
            }
            _ => continue,
        };
        let ended = (operation.outcome != Outcome::Unknown).then_some(operation.end);
        // A read at a named index may be older than the present.
        if operation.kind == Kind::Read && !operation.input["min_index"].is_null() {
            continue;
        }
        calls.0.push(Timed { begun: operation.invoke, ended, call });
        calls.1.push((number, operation));
    }
    calls
}

/// Numbers of the values of one tool, and the value of each revision as writes and reads were answered.
struct Numbers {
    values: HashMap<Option<String>, Version>,
    revisions: HashMap<String, Version>,
}

impl Numbers {
    fn of(operations: &[Numbered<'_>]) -> Self {
        let mut numbers = Self { values: HashMap::new(), revisions: HashMap::new() };
        for (_, operation) in operations.iter().filter(|(_, operation)| operation.outcome == Outcome::Ok) {
            let value = match operation.kind {
                Kind::Write => text(&operation.input["value"]),
                Kind::Read => text(&operation.value["value"]),
                _ => None,
            };
            if let (Some(value), Some(revision)) = (value, text(&operation.value["revision"])) {
                let number = numbers.of_value(Some(value));
                numbers.revisions.insert(revision, number);
            }
        }
        numbers
    }

    fn of_value(&mut self, value: Option<String>) -> Version {
        let next = (self.values.len() + self.revisions.len()) as u64;
        *self.values.entry(value).or_insert(next)
    }

    /// A revision that no answer contained has a value that no read returns.
    fn of_revision(&mut self, revision: &str) -> Version {
        let next = (self.values.len() + self.revisions.len()) as u64;
        *self.revisions.entry(revision.to_owned()).or_insert(next)
    }
}
