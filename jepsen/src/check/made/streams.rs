//! Signals about a few subjects, and two streams that repeat some of them.

use std::collections::HashMap;

use serde_json::json;

use super::super::streams::{STREAMS, check, coverage};
use super::*;

const WORKLOAD: Workload = Workload::Streams;

pub(super) fn make(draws: &[u64]) -> History {
    let mut history = History::default();
    let mut numbers: HashMap<u64, u64> = HashMap::new();
    let mut log = Vec::new();
    for planned in planned(draws, 4) {
        // A subject has one sender, whose signals have growing numbers; their effects may change numbers.
        let number = numbers.entry(planned.process).or_default();
        *number += 1;
        let subject = format!("s{}", planned.process);
        let mut emit = operation(&planned, WORKLOAD, Kind::Emit, subject.clone());
        emit.input = json!({"jti": format!("{subject}-{number}"), "number": number});
        if planned.happens {
            log.push((planned.effect, subject, *number, planned.bits));
        }
        history.operations.push(emit);
    }
    for stream in 0..STREAMS as u64 {
        let mut at = 0;
        for position in 0..log.len() {
            // A receiver that answered nothing gets the last ones again.
            let mut bits = log[position].3;
            let again = if bits.is_one_of(6) { bits.below(3) } else { 0 };
            for (effect, subject, number, _) in
                &log[position.saturating_sub(usize::try_from(again).expect("few"))..=position]
            {
                at = effect.max(&at) + 3 + stream;
                let planned = Planned { invoke: at, end: at + 1, ..planned(&[99], 1)[0] };
                let mut arrival = operation(&planned, WORKLOAD, Kind::Deliver, subject.clone());
                arrival.outcome = Outcome::Ok;
                arrival.input = json!({"stream": stream});
                arrival.value = json!({"jti": format!("e-{subject}-{number}"), "number": number});
                history.operations.push(arrival);
            }
        }
    }
    sorted(history)
}

/// Arrivals of acknowledged signals on the second stream.
fn arrivals(history: &History) -> Vec<usize> {
    let is_acknowledged = |arrival: &Operation| {
        history.operations.iter().any(|emit| is_emit_of(emit, arrival) && emit.outcome == Outcome::Ok)
    };
    numbers(history, |made| made.kind == Kind::Deliver && made.input["stream"] == 1 && is_acknowledged(made))
}

fn is_emit_of(emit: &Operation, arrival: &Operation) -> bool {
    emit.kind == Kind::Emit && emit.key == arrival.key && emit.input["number"] == arrival.value["number"]
}

fn is_repeat(one: &Operation, other: &Operation) -> bool {
    one.kind == Kind::Deliver
        && other.kind == Kind::Deliver
        && (&one.key, &one.input, &one.value["number"]) == (&other.key, &other.input, &other.value["number"])
}

const WRONG: [Wrong; 9] = [
    Wrong {
        name: "lost signal",
        rules: &["at least once"],
        change: |history, bits| {
            let Some(number) = one_of(&arrivals(history), bits) else { return false };
            let lost = history.operations[number].clone();
            history.operations.retain(|made| !is_repeat(made, &lost));
            true
        },
    },
    Wrong {
        name: "streams that received nothing",
        rules: &["at least once"],
        change: |history, _| {
            history.operations.retain(|made| made.kind == Kind::Emit);
            history.operations.iter().any(|emit| emit.outcome == Outcome::Ok)
        },
    },
    Wrong {
        name: "one of two streams that received nothing",
        rules: &["at least once"],
        change: |history, _| {
            history.operations.retain(|made| made.kind == Kind::Emit || made.input["stream"] == 0);
            history.operations.iter().any(|emit| emit.kind == Kind::Emit && emit.outcome == Outcome::Ok)
        },
    },
    Wrong {
        name: "changed order",
        rules: &["order per subject"],
        change: |history, bits| {
            let Some(number) = one_of(&arrivals(history), bits) else { return false };
            let moved = history.operations[number].clone();
            let sent = |arrival: &Operation| {
                history
                    .operations
                    .iter()
                    .find(|emit| is_emit_of(emit, arrival))
                    .map(|emit| (emit.invoke, emit.end))
            };
            let Some((_, acknowledged)) = sent(&moved) else { return false };
            let later = numbers(history, |made| {
                made.kind == Kind::Deliver
                    && (&made.key, &made.input) == (&moved.key, &moved.input)
                    && sent(made).is_some_and(|(begun, _)| begun > acknowledged)
            });
            let Some(last) = later.last() else { return false };
            let at = history.operations[*last].end + 1;
            history.operations.retain(|made| !is_repeat(made, &moved));
            history.operations.push(Operation { invoke: at, end: at + 1, ..moved });
            true
        },
    },
    Wrong {
        name: "repeat with another jti",
        rules: &["same jti on repeats"],
        change: |history, bits| {
            let Some(number) = one_of(&arrivals(history), bits) else { return false };
            let mut repeat = history.operations[number].clone();
            repeat.value["jti"] = json!("another");
            (repeat.invoke, repeat.end) = (repeat.end + 1, repeat.end + 2);
            history.operations.push(repeat);
            true
        },
    },
    Wrong {
        name: "one jti for two signals",
        rules: &["one signal for each jti"],
        change: |history, bits| {
            let arrivals = arrivals(history);
            let (Some(one), Some(other)) = (one_of(&arrivals, bits), one_of(&arrivals, bits)) else {
                return false;
            };
            if is_repeat(&history.operations[one], &history.operations[other]) {
                return false;
            }
            history.operations[one].value["jti"] = history.operations[other].value["jti"].clone();
            true
        },
    },
    Wrong {
        name: "arrival of a refused signal",
        rules: &["only accepted signals"],
        change: |history, bits| {
            let Some(number) = one_of(&arrivals(history), bits) else { return false };
            let arrival = history.operations[number].clone();
            for emit in history.operations.iter_mut().filter(|emit| is_emit_of(emit, &arrival)) {
                emit.outcome = Outcome::Fail;
            }
            true
        },
    },
    Wrong {
        name: "arrival before the signal was sent",
        rules: &["only accepted signals"],
        change: |history, bits| {
            let Some(number) = one_of(&arrivals(history), bits) else { return false };
            let mut early = history.operations[number].clone();
            let begun =
                history.operations.iter().find(|emit| is_emit_of(emit, &early)).map(|emit| emit.invoke);
            let Some(at) = begun.and_then(|begun| begun.checked_sub(2)) else { return false };
            (early.invoke, early.end) = (at, at + 1);
            history.operations.push(early);
            true
        },
    },
    Wrong {
        name: "different orders of concurrent signals on two streams",
        rules: &["one order on all streams"],
        change: |history, bits| {
            let Some(number) = one_of(&arrivals(history), bits) else { return false };
            let first = history.operations[number].clone();
            let others = numbers(history, |made| {
                made.kind == Kind::Deliver
                    && (&made.key, &made.input) == (&first.key, &first.input)
                    && made.invoke > first.end
                    && !is_repeat(made, &first)
            });
            let Some(last) = others.last() else { return false };
            let at = history.operations[*last].end + 1;
            // The order in which the two were sent is not known.
            for emit in history.operations.iter_mut().filter(|made| made.kind == Kind::Emit) {
                emit.outcome = Outcome::Unknown;
            }
            history.operations.retain(|made| !is_repeat(made, &first));
            history.operations.push(Operation { invoke: at, end: at + 1, ..first });
            true
        },
    },
];

#[test]
fn wrong_streams_are_reported() {
    each_is_reported(make, check, &WRONG);
}

#[test]
fn correct_streams_are_not_reported() {
    none_is_reported(make, check);
}

#[test]
fn arrivals_on_streams_are_counted() {
    let draws: Vec<_> = (0..60).map(mixed).collect();
    let history = make(&draws);
    let counts: HashMap<_, _> = coverage(&history).into();
    let arrivals = numbers(&history, |made| made.kind == Kind::Deliver).len() as u64;
    assert_eq!(counts["arrivals"], arrivals);
    assert!(counts["signals acknowledged"] > 20, "{counts:?}");
}
