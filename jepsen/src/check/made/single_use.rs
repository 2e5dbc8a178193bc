//! Nonces, tokens and SETs for a single use, presented by several processes.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::single_use::check;
use super::*;

pub(super) fn make(draws: &[u64]) -> History {
    let mut history = History::default();
    let mut winners: BTreeMap<u64, Option<String>> = BTreeMap::new();
    for mut planned in planned(draws, 5) {
        let key = planned.bits.below(8);
        let is_set = key.is_multiple_of(2);
        let idempotency =
            (!is_set && planned.bits.is_one_of(2)).then(|| format!("k{}", planned.bits.below(3)));
        let mut made = operation(&planned, Workload::SingleUse, Kind::Spend, format!("n{key}"));
        made.input = json!({"what": "nonce", "idempotency_key": idempotency, "content": 0});
        let is_success = match winners.get(&key) {
            Some(winner) => idempotency.is_some() && *winner == idempotency,
            None => true,
        };
        if planned.happens {
            winners.entry(key).or_insert(idempotency);
        }
        if made.outcome == Outcome::Ok {
            made.value = match (is_set, is_success) {
                (true, true) => json!("new"),
                (true, false) => json!("duplicate"),
                (false, _) => json!(is_success),
            };
        }
        history.operations.push(made);
    }
    sorted(history)
}

fn is_success(made: &Operation) -> bool {
    made.value == true || made.value == "new"
}

/// Refusals, if another presentation of the same key succeeded.
fn refused(history: &History) -> Vec<usize> {
    let wins = |key: &str| history.operations.iter().any(|made| made.key == key && is_success(made));
    numbers(history, |made| (made.value == false || made.value == "duplicate") && wins(&made.key))
}

/// A presentation with an idempotency key that succeeded, after its end.
fn retried(history: &History, bits: &mut Bits) -> Option<Operation> {
    let keyed = numbers(history, |made| made.value == true && made.input["idempotency_key"].is_string());
    let first = history.operations[one_of(&keyed, bits)?].clone();
    Some(Operation { invoke: first.end + 1, end: first.end + 2, ..first })
}

const WRONG: [Wrong; 5] = [
    Wrong {
        name: "second success",
        rules: &["at most one success"],
        change: |history, bits| {
            let Some(refused) = one_of(&refused(history), bits) else { return false };
            let made = &mut history.operations[refused];
            made.value = if made.value == false { json!(true) } else { json!("new") };
            // A retry of the first would be no second success.
            made.input["idempotency_key"] = json!("another");
            true
        },
    },
    Wrong {
        name: "retry with another token",
        rules: &["a retry has the same answer"],
        change: |history, bits| {
            let Some(retry) = retried(history, bits) else { return false };
            let of = |jti: &str| json!({"accepted": true, "jti": jti});
            let is_same = |made: &Operation| (&made.key, &made.input) == (&retry.key, &retry.input);
            for made in history.operations.iter_mut().filter(|made| made.value == true && is_same(made)) {
                made.value = of("one");
            }
            history.operations.push(Operation { value: of("another"), ..retry });
            true
        },
    },
    Wrong {
        name: "retry with another answer",
        rules: &["a retry has the same answer"],
        change: |history, bits| {
            let Some(retry) = retried(history, bits) else { return false };
            history.operations.push(Operation { value: json!(false), ..retry });
            true
        },
    },
    Wrong {
        name: "refusals although nothing was accepted",
        rules: &["a refusal has a reason"],
        change: |history, bits| {
            let Some(refused) = one_of(&refused(history), bits) else { return false };
            let key = history.operations[refused].key.clone();
            let answer = history.operations[refused].value.clone();
            if history.operations.iter().any(|made| made.key == key && made.outcome == Outcome::Unknown) {
                return false;
            }
            for made in history.operations.iter_mut().filter(|made| made.key == key && is_success(made)) {
                made.value = answer.clone();
            }
            true
        },
    },
    Wrong {
        name: "refusal before the first use",
        rules: &["a refusal has a reason"],
        change: |history, bits| {
            let Some(refused) = one_of(&refused(history), bits) else { return false };
            let key = history.operations[refused].key.clone();
            let of_key = history.operations.iter().filter(|made| made.key == key);
            let first = of_key.map(|made| made.invoke).min().unwrap_or_default();
            let Some(invoke) = first.checked_sub(2) else { return false };
            let made = &mut history.operations[refused];
            (made.invoke, made.end) = (invoke, invoke + 1);
            true
        },
    },
];

#[test]
fn second_successes_are_reported() {
    each_is_reported(make, check, &WRONG);
}

#[test]
fn correct_single_uses_are_not_reported() {
    none_is_reported(make, check);
}
