//! Revocations: a node refuses from some time between the effect and the acknowledgement on.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::revoke::{check, coverage};
use super::super::witness;
use super::*;

const WORKLOAD: Workload = Workload::Revoke;

pub(super) fn make(draws: &[u64]) -> History {
    let mut history = History::default();
    // By subject: the time of each effect, and from which time each node refuses credentials issued before
    // it.
    let mut revoked: BTreeMap<u64, Vec<(Nanos, [Nanos; 3])>> = BTreeMap::new();
    for mut planned in planned(draws, 5) {
        let subject = planned.bits.below(4);
        let key = format!("s{subject}");
        if planned.bits.is_one_of(5) {
            let made = operation(&planned, WORKLOAD, Kind::Revoke, key);
            if planned.happens {
                let acknowledged = planned.end.max(planned.effect);
                let span = acknowledged - planned.effect + 1;
                let refuses = [0; 3].map(|_| planned.effect + planned.bits.below(span));
                revoked.entry(subject).or_default().push((planned.effect, refuses));
            }
            history.operations.push(made);
            continue;
        }
        let issued = planned.invoke.saturating_sub(planned.bits.below(30) * TICK + 1);
        let node = usize::try_from(planned.node).expect("few") - 1;
        let covers =
            |(effect, refuses): &(Nanos, [Nanos; 3])| issued < *effect && refuses[node] <= planned.effect;
        let is_accepted = !revoked.get(&subject).is_some_and(|revocations| revocations.iter().any(covers));
        let mut made = operation(&planned, WORKLOAD, Kind::Use, key);
        made.input = json!({"what": "token", "issued": issued});
        if made.outcome == Outcome::Ok {
            made.value = json!(is_accepted);
        }
        history.operations.push(made);
    }
    sorted(history)
}

/// Pairs of an acknowledged revocation and a later use of a credential of the same subject that was issued
/// before it.
fn pairs(history: &History) -> Vec<(usize, usize)> {
    let revocations = numbers(history, |made| made.kind == Kind::Revoke && made.outcome == Outcome::Ok);
    let uses = numbers(history, |made| made.kind == Kind::Use && made.outcome == Outcome::Ok);
    let is_pair = |revocation: &Operation, used: &Operation| {
        revocation.key == used.key
            && revocation.end < used.invoke
            && used.input["issued"].as_u64() < Some(revocation.invoke)
    };
    let all = revocations.iter().flat_map(|one| uses.iter().map(|other| (*one, *other)));
    all.filter(|(one, other)| is_pair(&history.operations[*one], &history.operations[*other])).collect()
}

const RULES: &[&str] = &["no accept after the acknowledgement"];

const WRONG: [Wrong; 4] = [
    Wrong {
        name: "accept after the acknowledgement",
        rules: RULES,
        change: |history, bits| {
            let Some((_, used)) = one_of(&pairs(history), bits) else { return false };
            history.operations[used].value = json!(true);
            true
        },
    },
    Wrong {
        name: "accept on another node one nanosecond after the acknowledgement",
        rules: RULES,
        change: |history, bits| {
            let Some((revocation, used)) = one_of(&pairs(history), bits) else { return false };
            let end = history.operations[revocation].end;
            let used = &mut history.operations[used];
            (used.invoke, used.value, used.node) = (end + 1, json!(true), used.node % NODES + 1);
            true
        },
    },
    Wrong {
        name: "acknowledgement of a revocation that had no effect",
        rules: RULES,
        change: |history, bits| {
            let uses = numbers(history, |made| made.kind == Kind::Use && made.value == true);
            let Some(used) = one_of(&uses, bits) else { return false };
            let used = history.operations[used].clone();
            let Some(at) = used.invoke.checked_sub(2 * TICK) else { return false };
            if used.input["issued"].as_u64() >= Some(at) {
                return false;
            }
            history.operations.push(Operation {
                kind: Kind::Revoke,
                invoke: at,
                end: at + TICK,
                input: Value::Null,
                value: Value::Null,
                ..used
            });
            true
        },
    },
    NO_VERDICT,
];

#[test]
fn accepts_of_the_revoked_are_reported() {
    each_is_reported(make, check, &WRONG);
}

#[test]
fn correct_revocations_are_not_reported() {
    none_is_reported(make, check);
}

#[test]
fn use_that_begins_with_the_acknowledgement_may_be_accepted() {
    let made = |kind, invoke, end, value: Value| {
        let planned = Planned { invoke, end, ..planned(&[99], 1)[0] };
        let input = json!({"issued": 1});
        Operation { outcome: Outcome::Ok, input, value, ..operation(&planned, WORKLOAD, kind, "s".into()) }
    };
    let mut history = History {
        operations: vec![
            made(Kind::Revoke, 10, 20, Value::Null),
            made(Kind::Use, 20, 30, json!(true)),
            made(Kind::Use, 21, 30, json!(false)),
        ],
        ..History::default()
    };
    assert_eq!(check(&history), []);
    assert_eq!(coverage(&history).map(|(_, count)| count), [1, 1, 1]);
    history.operations[1].invoke = 21;
    assert_eq!(check(&history).len(), 1);
}

#[test]
fn duplicate_may_be_answered_at_an_older_index() {
    let made = |invoke, index, status: &str| {
        let planned = Planned { invoke, end: invoke + 5, outcome: Outcome::Ok, ..planned(&[99], 1)[0] };
        let made = operation(&planned, WORKLOAD, Kind::Revoke, "s".into());
        Operation { index: Some(index), value: json!(status), ..made }
    };
    let mut history =
        History { operations: vec![made(10, 9, "accepted"), made(20, 8, "duplicate")], ..History::default() };
    assert_eq!(witness::check(&history), []);
    history.operations[1].value = json!("accepted");
    assert_eq!(witness::check(&history).len(), 1);
}
