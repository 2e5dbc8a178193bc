//! Single use: of one nonce, execution token or SET at most one presentation succeeds, ever.
//!
//! A presentation is one request with all its retries: the same `Idempotency-Key` and the same content. Every answer to
//! it is the same. Without a key each request is a presentation of its own.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Found, Numbered, Violation, by_key, grouped, name, text};
use crate::history::{History, Kind, Operation, Outcome, Workload};

pub const NAME: &str = "single use";

/// A request with its retries: key and content, or its number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Presentation {
    Keyed(String, Option<String>),
    Alone(usize),
}

fn presentation((number, operation): Numbered<'_>) -> Presentation {
    match text(&operation.input["idempotency_key"]) {
        Some(key) => Presentation::Keyed(key, text(&operation.input["content"])),
        None => Presentation::Alone(number),
    }
}

/// Whether the answer is the success. `None`: it cannot be read.
pub(super) fn is_success(operation: &Operation) -> Option<bool> {
    match &operation.value {
        Value::Bool(is_accepted) => Some(*is_accepted),
        Value::String(answer) if answer == "new" => Some(true),
        Value::String(answer) if answer == "duplicate" => Some(false),
        Value::Object(answer) => answer.get("accepted").and_then(Value::as_bool),
        _ => None,
    }
}

pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Found::by(NAME);
    for (key, operations) in by_key(history, Workload::SingleUse) {
        let spends: Vec<_> =
            operations.into_iter().filter(|(_, operation)| operation.kind == Kind::Spend).collect();
        let mut answers = Vec::new();
        for spend in spends.iter().filter(|(_, operation)| operation.outcome == Outcome::Ok) {
            match is_success(spend.1) {
                Some(is_success) => answers.push((*spend, is_success)),
                None => found.add_unreadable(*spend),
            }
        }
        at_most_one(key, &answers, &mut found);
        equal_answers(&answers, &mut found);
        refusals_have_a_reason(key, &spends, &answers, &mut found);
    }
    found.violations
}

/// An answered spend, and whether it succeeded.
type Answer<'h> = (Numbered<'h>, bool);

fn at_most_one(key: &str, answers: &[Answer<'_>], found: &mut Found) {
    let mut successes: BTreeMap<Presentation, Numbered<'_>> = BTreeMap::new();
    for (spend, _) in answers.iter().filter(|(_, is_success)| *is_success) {
        successes.entry(presentation(*spend)).or_insert(*spend);
    }
    if successes.len() > 1 {
        let numbers: Vec<_> = successes.values().map(|(number, _)| *number).collect();
        let names: Vec<_> = successes.values().map(|(_, operation)| name(operation)).collect();
        found.add(
            "at most one success",
            format!("{key} was accepted by {}: {}", names.len(), names.join("; ")),
            &numbers,
        );
    }
}

/// A retry has the answer of the first, and the same token. A SET has no key: its retry is a duplicate.
fn equal_answers(answers: &[Answer<'_>], found: &mut Found) {
    let spends = answers.iter().map(|(spend, _)| *spend);
    let presentations = grouped(spends, |operation| {
        (text(&operation.input["idempotency_key"]), text(&operation.input["content"]))
    });
    for (presentation, answers) in presentations {
        if presentation.0.is_none() {
            continue;
        }
        for pair in answers.windows(2) {
            let [(first, before), (second, after)] = *pair else { continue };
            if before.value != after.value {
                let detail = format!(
                    "{} was answered {}, its retry {} {}",
                    name(before),
                    before.value,
                    name(after),
                    after.value
                );
                found.add("a retry has the same answer", detail, &[first, second]);
            }
        }
    }
}

/// A refusal needs another presentation that may have succeeded, begun before the refusal was answered.
fn refusals_have_a_reason(key: &str, spends: &[Numbered<'_>], answers: &[Answer<'_>], found: &mut Found) {
    let is_refused =
        |number: usize| answers.iter().any(|((other, _), is_success)| *other == number && !is_success);
    let winner = spends
        .iter()
        .filter(|(number, operation)| operation.outcome != Outcome::Fail && !is_refused(*number))
        .min_by_key(|(_, operation)| operation.invoke);
    for ((number, refused), _) in answers.iter().filter(|(_, is_success)| !is_success) {
        if winner.is_none_or(|(_, winner)| winner.invoke > refused.end) {
            let detail = format!("{} was refused before anything can have used {key}", name(refused));
            found.add("a refusal has a reason", detail, &[*number]);
        }
    }
}

/// Keys that were accepted, refusals, and keys that were presented more than once.
pub fn coverage(history: &History) -> [(&'static str, u64); 3] {
    let (mut accepted, mut refused, mut raced) = (0, 0, 0);
    for spends in by_key(history, Workload::SingleUse).values() {
        let answers = spends.iter().filter(|(_, operation)| operation.outcome == Outcome::Ok);
        let answers: Vec<_> = answers.filter_map(|(_, operation)| is_success(operation)).collect();
        accepted += u64::from(answers.contains(&true));
        refused += answers.iter().filter(|is_success| !**is_success).count() as u64;
        raced += u64::from(spends.len() > 1);
    }
    [("single uses accepted", accepted), ("second uses refused", refused), ("single uses raced", raced)]
}
