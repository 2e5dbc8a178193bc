//! Changes with their events, and subscribers that resume on other nodes.

use serde_json::json;

use super::super::feed::check;
use super::*;

const WORKLOAD: Workload = Workload::Feed;

fn event(index: u64, subject: &str) -> Value {
    json!({"id": format!("0a1b-{index}-0"), "subject": subject})
}

pub(super) fn make(draws: &[u64]) -> History {
    let mut history = History::default();
    let mut log: Vec<(Nanos, String)> = Vec::new();
    let mut changes = Vec::new();
    for (number, planned) in planned(draws, 4).into_iter().enumerate() {
        let subject = format!("c{number}");
        if planned.happens {
            log.push((planned.effect, subject.clone()));
        }
        changes.push((operation(&planned, WORKLOAD, Kind::Change, subject), log.len() as u64, planned.bits));
    }
    for (mut change, least, mut bits) in changes {
        let most = (log.partition_point(|(at, _)| *at <= change.end) as u64).max(least);
        change.index = (change.outcome == Outcome::Ok).then(|| least + bits.below(most - least + 1));
        history.operations.push(change);
    }
    for subscriber in 0..2 {
        let mut bits = Bits(mixed(draws.first().copied().unwrap_or_default() + subscriber));
        let mut at = 0;
        let mut last_id = Value::Null;
        for (index, (effect, subject)) in (1..).zip(&log) {
            let planned = Planned { invoke: at, end: at + 1, ..planned(&[99], 1)[0] };
            if index == 1 || bits.is_one_of(4) {
                let mut resume = operation(&planned, WORKLOAD, Kind::Resume, format!("r{subscriber}"));
                (resume.outcome, resume.input) = (Outcome::Ok, json!({"last_id": last_id}));
                history.operations.push(resume);
            }
            at = effect.max(&(at + 2)) + 1;
            let planned = Planned { invoke: at, end: at, node: 1 + bits.below(3), ..planned };
            let mut arrival = operation(&planned, WORKLOAD, Kind::Event, format!("r{subscriber}"));
            arrival.outcome = Outcome::Ok;
            arrival.value = event(index, subject);
            last_id = arrival.value["id"].clone();
            history.operations.push(arrival);
            at += 1;
        }
    }
    let all: Vec<_> = (1..).zip(&log).map(|(index, (_, subject))| event(index, subject)).collect();
    for node in 1..=NODES {
        let mut list = finally(&history, node, WORKLOAD, Kind::All, format!("node {node}"));
        list.value = json!(all);
        history.operations.push(list);
    }
    sorted(history)
}

fn arrivals(history: &History) -> Vec<usize> {
    numbers(history, |made| made.kind == Kind::Event)
}

/// Two arrivals of one subscriber, one after the other.
fn neighbours(history: &History, bits: &mut Bits) -> Option<(usize, usize)> {
    let of: Vec<_> =
        arrivals(history).into_iter().filter(|number| history.operations[*number].key == "r1").collect();
    one_of(&of.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>(), bits)
}

/// Removes an event from the lists of the nodes and from the subscribers.
fn forget(history: &mut History, id: &Value) {
    history.operations.retain(|made| !(made.kind == Kind::Event && made.value["id"] == *id));
    for list in history.operations.iter_mut().filter(|made| made.kind == Kind::All) {
        list.value.as_array_mut().expect("a list").retain(|event| event["id"] != *id);
    }
}

const WRONG: [Wrong; 13] = [
    Wrong {
        name: "events that one node did not list",
        rules: &["read at the end"],
        change: |history, bits| fails(history, Kind::All, bits),
    },
    Wrong {
        name: "missing event",
        rules: &["none missing"],
        change: |history, bits| {
            let Some((_, number)) = neighbours(history, bits) else { return false };
            let later = &history.operations[number + 1..];
            if !later.iter().any(|made| made.kind == Kind::Event && made.key == "r1") {
                return false;
            }
            history.operations.remove(number);
            true
        },
    },
    Wrong {
        name: "subscriber that waits in vain for its last events",
        rules: &["none missing"],
        change: |history, bits| {
            let Some((_, number)) = neighbours(history, bits) else { return false };
            let acknowledged = |event: &Operation| {
                history.operations.iter().any(|made| {
                    made.kind == Kind::Change
                        && made.outcome == Outcome::Ok
                        && event.value["subject"] == made.key.as_str()
                })
            };
            let is_last = |made: &Operation| made.kind == Kind::Event && made.key == "r1";
            if !history.operations[number..].iter().any(|made| is_last(made) && acknowledged(made)) {
                return false;
            }
            let later = history.operations.split_off(number);
            history.operations.extend(later.into_iter().filter(|made| !is_last(made)));
            true
        },
    },
    Wrong {
        name: "event received twice",
        rules: &["each id once"],
        change: |history, bits| {
            let Some(number) = one_of(&arrivals(history), bits) else { return false };
            let mut again = history.operations[number].clone();
            again.invoke += 1_000;
            history.operations.push(again);
            true
        },
    },
    Wrong {
        name: "changed order",
        rules: &["in order"],
        change: |history, bits| {
            let Some((one, other)) = neighbours(history, bits) else { return false };
            let value = history.operations[one].value.take();
            history.operations[one].value = history.operations[other].value.take();
            history.operations[other].value = value;
            true
        },
    },
    Wrong {
        name: "event lost everywhere",
        rules: &["none missing"],
        change: |history, bits| {
            let Some(number) = one_of(&arrivals(history), bits) else { return false };
            let (id, subject) = (
                history.operations[number].value["id"].clone(),
                history.operations[number].value["subject"].clone(),
            );
            let is_acknowledged = |made: &Operation| {
                made.kind == Kind::Change && made.outcome == Outcome::Ok && subject == made.key.as_str()
            };
            if !history.operations.iter().any(is_acknowledged) {
                return false;
            }
            forget(history, &id);
            true
        },
    },
    Wrong {
        name: "node that lacks an event",
        rules: &["same on every node"],
        change: |history, _| {
            let list = history.operations.iter_mut().rfind(|made| made.kind == Kind::All);
            let list = list.and_then(|list| list.value.as_array_mut());
            let Some(list) = list.filter(|list| list.len() > 2) else { return false };
            list.remove(1);
            true
        },
    },
    Wrong {
        name: "nodes that differ in a subject",
        rules: &["same on every node"],
        change: |history, _| {
            let list = history.operations.iter_mut().rfind(|made| made.kind == Kind::All);
            let list = list.and_then(|list| list.value.as_array_mut());
            let Some(event) = list.and_then(|list| list.first_mut()) else { return false };
            event["subject"] = json!("another");
            true
        },
    },
    Wrong {
        name: "list out of order",
        rules: &["in order"],
        change: |history, _| {
            let list = history.operations.iter_mut().rfind(|made| made.kind == Kind::All);
            let list = list.and_then(|list| list.value.as_array_mut());
            let Some(list) = list.filter(|list| list.len() > 2) else { return false };
            list.swap(0, 1);
            true
        },
    },
    Wrong {
        name: "index that was answered before the change began",
        rules: &["index order"],
        change: |history, bits| {
            let changes = numbers(history, |made| made.kind == Kind::Change && made.outcome == Outcome::Ok);
            let Some(change) = one_of(&changes, bits) else { return false };
            let index = history.operations[change].index;
            let Some(before) = history.operations[change].invoke.checked_sub(2) else { return false };
            let earlier = Operation {
                kind: Kind::Read,
                workload: Workload::Registry,
                invoke: 0,
                end: before,
                ..history.operations[change].clone()
            };
            history.operations.push(Operation { index, ..earlier });
            true
        },
    },
    Wrong {
        name: "event of a failed change",
        rules: &["no event without a change"],
        change: |history, bits| {
            let changes = numbers(history, |made| made.kind == Kind::Change && made.outcome == Outcome::Ok);
            let Some(change) = one_of(&changes, bits) else { return false };
            history.operations[change].outcome = Outcome::Fail;
            true
        },
    },
    Wrong {
        name: "subscriber without its first event",
        rules: &["none missing"],
        change: |history, _| {
            let of = numbers(history, |made| made.kind == Kind::Event && made.key == "r0");
            let (Some(first), true) = (of.first(), of.len() > 1) else { return false };
            let subject = history.operations[*first].value["subject"].clone();
            let begun = history.operations.iter().find(|made| subject == made.key.as_str());
            // It was connected from the start, time 1.
            if !begun.is_some_and(|change| change.outcome == Outcome::Ok && change.invoke > 1) {
                return false;
            }
            history.operations.remove(*first);
            let is_resume = |made: &Operation| made.kind == Kind::Resume && made.key == "r0";
            let mut resumes = history.operations.iter_mut().filter(|made| is_resume(made));
            resumes.next().is_some_and(|resume| resume.input["last_id"].is_null())
        },
    },
    Wrong {
        name: "nothing read at the end",
        rules: &["read at the end"],
        change: |history, _| {
            history.operations.retain(|made| made.kind != Kind::All);
            !history.operations.is_empty()
        },
    },
];

#[test]
fn wrong_feeds_are_reported() {
    each_is_reported(make, check, &WRONG);
}

#[test]
fn correct_feeds_are_not_reported() {
    none_is_reported(make, check);
}

#[test]
fn gap_after_an_announced_reset_is_not_reported() {
    let draws: Vec<_> = (0..40).map(mixed).collect();
    let mut history = make(&draws);
    let of = numbers(&history, |made| made.kind == Kind::Event && made.key == "r0");
    let (gap, next) = (of[10], of[11]);
    let at = history.operations[next].invoke;
    let reset = Operation {
        kind: Kind::Resume,
        invoke: at - 1,
        end: at - 1,
        value: json!("reset"),
        ..history.operations[gap].clone()
    };
    history.operations.remove(gap);
    assert_eq!(check(&history).len(), 1, "a gap");
    history.operations.push(reset);
    assert_eq!(check(&sorted(history)), [], "an announced gap");
}
