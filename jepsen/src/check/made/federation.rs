//! Two regions: a revocation is copied within the lease, and each node of the relying region refuses soon after.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::federation::{check, coverage};
use super::super::witness;
use super::*;

const WORKLOAD: Workload = Workload::Federation;
const STALE_AFTER: Nanos = 40 * TICK;
const FRESHNESS: Nanos = 10 * TICK;

/// A revocation: the time of its effect, and from which time each node refuses credentials issued before it.
struct Revoked {
    effect: Nanos,
    refuses: [Nanos; 3],
}

pub(super) fn make(draws: &[u64]) -> History {
    let mut history = History::default();
    let mut revoked: BTreeMap<u64, Vec<Revoked>> = BTreeMap::new();
    let mut agents = BTreeMap::new();
    for mut planned in planned(draws, 5) {
        let agent = planned.bits.below(6);
        let key = format!("a{agent}");
        // The last agent is never revoked.
        if agent < 5 && planned.bits.is_one_of(4) {
            let mut made = operation(&planned, WORKLOAD, Kind::Revoke, key);
            made.input = json!({"stale_after": STALE_AFTER, "freshness": FRESHNESS});
            if planned.happens {
                let latest = planned.end.max(planned.effect) + STALE_AFTER;
                let copied = planned.effect + planned.bits.below(latest - planned.effect + 1);
                let span = (latest - copied).min(FRESHNESS) + 1;
                let refuses = [0; 3].map(|_| copied + planned.bits.below(span));
                revoked.entry(agent).or_default().push(Revoked { effect: planned.effect, refuses });
            }
            history.operations.push(made);
            continue;
        }
        let issued = planned.invoke.saturating_sub(planned.bits.below(30) * TICK + 1);
        agents.insert(agent, issued);
        let node = usize::try_from(planned.node).expect("few") - 1;
        let covers = |one: &Revoked| issued < one.effect && one.refuses[node] <= planned.effect;
        let is_accepted = !revoked.get(&agent).is_some_and(|all| all.iter().any(covers));
        let mut made = operation(&planned, WORKLOAD, Kind::Use, key);
        made.input = json!({"what": "through", "issued": issued});
        if made.outcome == Outcome::Ok {
            made.value = json!(is_accepted);
        }
        history.operations.push(made);
    }
    let mut read = Vec::new();
    for node in 1..=NODES {
        for (agent, issued) in &agents {
            let covers = |one: &Revoked| issued < &one.effect;
            let is_accepted = !revoked.get(agent).is_some_and(|all| all.iter().any(covers));
            let mut used = finally(&history, node, WORKLOAD, Kind::Use, format!("a{agent}"));
            used.input = json!({"what": "through", "issued": issued});
            used.value = json!(is_accepted);
            read.push(used);
        }
        let mut ledger = finally(&history, node, WORKLOAD, Kind::Read, "ledger".to_owned());
        ledger.input = json!({"region": if node == 1 { "west" } else { "east" }});
        ledger.value = json!({"hash": "h", "count": revoked.len()});
        read.push(ledger);
    }
    history.operations.extend(read);
    sorted(history)
}

fn uses(history: &History, filter: impl Fn(&Operation) -> bool) -> Vec<usize> {
    numbers(history, |made| made.kind == Kind::Use && made.outcome == Outcome::Ok && filter(made))
}

fn issued(made: &Operation) -> Nanos {
    made.input["issued"].as_u64().expect("a time")
}

/// Pairs of an acknowledged revocation and a use of a credential that was issued before it.
fn covered(history: &History, filter: impl Fn(&Operation, &Operation) -> bool) -> Vec<(usize, usize)> {
    let revocations = numbers(history, |made| made.kind == Kind::Revoke && made.outcome == Outcome::Ok);
    let uses = uses(history, |_| true);
    let all = revocations.iter().flat_map(|one| uses.iter().map(|other| (*one, *other)));
    let is_pair = |(one, other): &(usize, usize)| {
        let (revocation, used) = (&history.operations[*one], &history.operations[*other]);
        revocation.key == used.key && issued(used) < revocation.invoke && filter(revocation, used)
    };
    all.filter(is_pair).collect()
}

const BEYOND: &[&str] = &["no accept beyond the lease"];
const AGAIN: &[&str] = &["no accept after a refusal"];
const EQUAL: &[&str] = &["equal ledgers"];

/// Adds an accept of a refused use, on a node `shift` further, `wait` after the refusal.
fn accept_again(history: &mut History, bits: &mut Bits, (wait, shift): (Nanos, u64)) -> bool {
    let refusals = uses(history, |made| made.value == false && !made.is_final);
    let Some(refused) = one_of(&refusals, bits) else { return false };
    let mut again = history.operations[refused].clone();
    let at = again.end + wait + 1;
    (again.invoke, again.end, again.value) = (at, at + 1, json!(true));
    again.node = (again.node - 1 + shift) % NODES + 1;
    history.operations.push(again);
    true
}

/// Changes one of these uses at the end.
fn change_final(
    history: &mut History,
    bits: &mut Bits,
    filter: impl Fn(&History, &Operation) -> bool,
    change: impl Fn(&mut Operation),
) -> bool {
    let found = uses(history, |made| made.is_final && filter(history, made));
    let Some(used) = one_of(&found, bits) else { return false };
    change(&mut history.operations[used]);
    true
}

fn is_revoked(history: &History, used: &Operation) -> bool {
    !covered(history, |_, other| other == used).is_empty()
}

fn is_never_revoked(history: &History, used: &Operation) -> bool {
    !history.operations.iter().any(|made| made.kind == Kind::Revoke && made.key == used.key)
}

fn change_ledger(history: &mut History, bits: &mut Bits, change: impl Fn(&mut Operation)) -> bool {
    let reads = numbers(history, |made| made.kind == Kind::Read);
    let Some(read) = one_of(&reads, bits) else { return false };
    change(&mut history.operations[read]);
    true
}

const WRONG: [Wrong; 13] = [
    Wrong {
        name: "accept beyond the lease",
        rules: BEYOND,
        change: |history, bits| {
            let late = |one: &Operation, used: &Operation| one.end + STALE_AFTER < used.invoke;
            let Some((_, used)) = one_of(&covered(history, late), bits) else { return false };
            history.operations[used].value = json!(true);
            true
        },
    },
    Wrong {
        name: "accept one nanosecond after the end of the lease",
        rules: BEYOND,
        change: |history, bits| {
            let Some((revocation, used)) = one_of(&covered(history, |_, _| true), bits) else { return false };
            let at = history.operations[revocation].end + STALE_AFTER + 1;
            let used = &mut history.operations[used];
            (used.invoke, used.end, used.value) = (at, at + 1, json!(true));
            true
        },
    },
    Wrong {
        name: "accept on a node that has refused",
        rules: AGAIN,
        change: |history, bits| accept_again(history, bits, (0, 0)),
    },
    Wrong {
        name: "accept on another node when the leases of the members have ended",
        rules: AGAIN,
        change: |history, bits| accept_again(history, bits, (FRESHNESS, 1)),
    },
    Wrong {
        name: "refusal of what was not revoked",
        rules: &["only what is revoked is refused"],
        change: |history, bits| {
            let found = uses(history, |made| is_never_revoked(history, made));
            let Some(used) = one_of(&found, bits) else { return false };
            history.operations[used].value = json!(false);
            true
        },
    },
    Wrong {
        name: "accept of the revoked at the end",
        rules: &["the revoked is refused at the end"],
        change: |history, bits| change_final(history, bits, is_revoked, |used| used.value = json!(true)),
    },
    Wrong {
        name: "no verdict about the revoked at the end",
        rules: &["the revoked is refused at the end"],
        change: |history, bits| change_final(history, bits, is_revoked, |used| used.outcome = Outcome::Fail),
    },
    Wrong {
        name: "refusal of the others at the end",
        rules: &["the others are accepted at the end"],
        change: |history, bits| {
            change_final(history, bits, is_never_revoked, |used| used.value = json!(false))
        },
    },
    Wrong {
        name: "no verdict about the others at the end",
        rules: &["the others are accepted at the end"],
        change: |history, bits| {
            change_final(history, bits, is_never_revoked, |used| used.outcome = Outcome::Unknown)
        },
    },
    Wrong {
        name: "another hash of a ledger",
        rules: EQUAL,
        change: |history, bits| change_ledger(history, bits, |read| read.value["hash"] = json!("other")),
    },
    Wrong {
        name: "another number of entries",
        rules: EQUAL,
        change: |history, bits| change_ledger(history, bits, |read| read.value["count"] = json!(99)),
    },
    Wrong {
        name: "a ledger that could not be read",
        rules: EQUAL,
        change: |history, bits| change_ledger(history, bits, |read| read.outcome = Outcome::Fail),
    },
    Wrong {
        name: "ledgers of one region only",
        rules: &["ledgers are compared"],
        change: |history, _| {
            history.operations.retain(|made| made.kind != Kind::Read || made.node != 1);
            !history.operations.is_empty()
        },
    },
];

#[test]
fn broken_promises_of_regions_are_reported() {
    each_is_reported(make, check, &WRONG);
}

#[test]
fn correct_regions_are_not_reported() {
    none_is_reported(make, check);
}

/// Each region has a log of its own: its indexes are compared only with each other.
#[test]
fn indexes_of_two_regions_are_not_compared() {
    let mut history = make(&[]);
    history.run.nodes = 2;
    for (number, (node, index)) in [(1, 700), (2, 300), (2, 301)].into_iter().enumerate() {
        let mut read = history.operations[0].clone();
        (read.invoke, read.end) = (1_000_000 + 10 * number as u64, 1_000_005 + 10 * number as u64);
        (read.node, read.index) = (node, Some(index));
        history.operations.push(read);
    }
    history.operations.retain(|made| made.index.is_some());
    assert_eq!(witness::check(&history), []);
    history.operations[2].index = Some(299);
    assert_eq!(witness::check(&history).len(), 1);
}

#[test]
fn use_that_begins_with_the_end_of_the_lease_may_be_accepted() {
    let made = |kind, invoke, end, input: Value, value: Value| {
        let planned = Planned { invoke, end, ..planned(&[99], 1)[0] };
        Operation { outcome: Outcome::Ok, input, value, ..operation(&planned, WORKLOAD, kind, "s".into()) }
    };
    let mut history = make(&[]);
    let times = json!({"stale_after": 100, "freshness": 10});
    history.operations.push(made(Kind::Revoke, 10, 20, times, Value::Null));
    history.operations.push(made(Kind::Use, 120, 130, json!({"issued": 1}), json!(true)));
    assert_eq!(check(&history), []);
    assert_eq!(coverage(&history).map(|(_, count)| count), [1, 0, 1]);
    history.operations.last_mut().expect("a use").invoke = 121;
    assert_eq!(check(&history).len(), 1);
}
