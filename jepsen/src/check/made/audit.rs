//! Verifications and the trails of their tools, with a power cut that loses the end of one journal.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::audit::check;
use super::*;

const WORKLOAD: Workload = Workload::Audit;
/// So that a run takes seconds: the power is cut after half of it.
const STRETCH: Nanos = 200_000;

pub(super) fn make(draws: &[u64]) -> History {
    let mut history = History::default();
    let mut trails: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let planned = planned(draws, 4);
    let cut = planned.get(planned.len() / 2).map_or(0, |planned| planned.end * STRETCH);
    let cut_node = draws.first().map_or(1, |draw| 1 + draw % NODES);
    history.faults.push(fault(cut, "power-cut", cut_node));
    for (number, mut planned) in planned.into_iter().enumerate() {
        (planned.invoke, planned.end) = (planned.invoke * STRETCH, planned.end * STRETCH);
        let (id, tool) = (format!("q{number}"), format!("t{}", planned.bits.below(2)));
        let is_accepted = planned.bits.is_one_of(2);
        let mut verify = operation(&planned, WORKLOAD, Kind::Verify, id.clone());
        verify.input = json!({"tool": tool});
        if verify.outcome == Outcome::Ok {
            verify.value = json!(is_accepted);
        }
        let age = cut.saturating_sub(planned.end);
        let is_lost = planned.node == cut_node && cut >= planned.invoke && age < 100_000_000;
        let trail = trails.entry(tool).or_default();
        if planned.happens && !is_lost {
            let decision = if is_accepted { "allow" } else { "deny" };
            trail.push(json!({"request_id": id, "decision": decision}));
        } else if planned.bits.is_one_of(2) {
            trail.push(json!({"request_id": id, "decision": "error"}));
        }
        history.operations.push(verify);
    }
    for (tool, trail) in trails {
        for node in 1..=NODES {
            let mut read = finally(&history, node, WORKLOAD, Kind::Trail, format!("node {node}"));
            (read.input, read.value) = (json!({"tool": tool}), json!(trail));
            history.operations.push(read);
        }
    }
    for node in 1..=NODES {
        let mut chain = finally(&history, node, WORKLOAD, Kind::Chain, format!("node {node}"));
        chain.value = json!(true);
        history.operations.push(chain);
    }
    sorted(history)
}

/// A trail with an entry of an answered verification: their numbers, and that of the entry in the trail.
fn entries(history: &History) -> Vec<(usize, usize, usize)> {
    let verified = numbers(history, |made| made.kind == Kind::Verify && made.outcome == Outcome::Ok);
    let mut entries = Vec::new();
    for trail in numbers(history, |made| made.kind == Kind::Trail) {
        let listed = history.operations[trail].value.as_array().expect("a list");
        for (at, entry) in listed.iter().enumerate().filter(|(_, entry)| entry["decision"] != "error") {
            let is_of = |verify: &&usize| entry["request_id"] == history.operations[**verify].key.as_str();
            entries.extend(verified.iter().find(is_of).map(|verify| (trail, *verify, at)));
        }
    }
    entries
}

/// Those that were accepted: equal denials of a minute may be one entry.
fn accepted(history: &History) -> Vec<(usize, usize, usize)> {
    let mut entries = entries(history);
    entries.retain(|(_, verify, _)| history.operations[*verify].value == true);
    entries
}

fn list(history: &mut History, trail: usize) -> &mut Vec<Value> {
    history.operations[trail].value.as_array_mut().expect("a list")
}

const WRONG: [Wrong; 11] = [
    Wrong {
        name: "missing entry",
        rules: &["every verification is there"],
        change: |history, bits| {
            let cut = history.faults[0].clone();
            let entries: Vec<_> = accepted(history)
                .into_iter()
                .filter(|(_, verify, _)| !cut.targets.contains(&history.operations[*verify].node))
                .collect();
            let Some((trail, _, at)) = one_of(&entries, bits) else { return false };
            list(history, trail).remove(at);
            true
        },
    },
    Wrong {
        name: "entry lost by a power cut that came a second later",
        rules: &["every verification is there"],
        change: |history, bits| {
            let cut = history.faults[0].clone();
            let entries: Vec<_> = accepted(history)
                .into_iter()
                .filter(|(_, verify, _)| {
                    let verify = &history.operations[*verify];
                    cut.targets.contains(&verify.node) && verify.end + 1_000_000_000 < cut.time
                })
                .collect();
            let Some((trail, _, at)) = one_of(&entries, bits) else { return false };
            list(history, trail).remove(at);
            true
        },
    },
    Wrong {
        name: "entry lost after the power cut",
        rules: &["every verification is there"],
        change: |history, bits| {
            let cut = history.faults[0].time;
            let entries: Vec<_> = accepted(history)
                .into_iter()
                .filter(|(_, verify, _)| history.operations[*verify].invoke > cut)
                .collect();
            let Some((trail, _, at)) = one_of(&entries, bits) else { return false };
            list(history, trail).remove(at);
            true
        },
    },
    Wrong {
        name: "no denial of a tool by a node",
        rules: &["every verification is there"],
        change: |history, bits| {
            let cut = history.faults[0].clone();
            let mut denied = entries(history);
            denied.retain(|(_, verify, _)| {
                let verify = &history.operations[*verify];
                verify.value == false && !cut.targets.contains(&verify.node)
            });
            let Some((trail, verify, _)) = one_of(&denied, bits) else { return false };
            let verify = history.operations[verify].clone();
            let is_equal = |other: &Operation| {
                other.node == verify.node && other.input == verify.input && other.value == false
            };
            let of_node: Vec<_> = history.operations.iter().filter(|other| is_equal(other)).collect();
            let keys: Vec<_> = of_node.iter().map(|other| other.key.clone()).collect();
            list(history, trail).retain(|entry| !keys.iter().any(|key| entry["request_id"] == key.as_str()));
            true
        },
    },
    Wrong {
        name: "another decision",
        rules: &["same decision"],
        change: |history, bits| {
            let Some((trail, _, at)) = one_of(&entries(history), bits) else { return false };
            let decision = &mut list(history, trail)[at]["decision"];
            *decision = if decision == "allow" { json!("deny") } else { json!("allow") };
            true
        },
    },
    Wrong {
        name: "entry listed twice",
        rules: &["each entry once"],
        change: |history, bits| {
            let Some((trail, _, at)) = one_of(&entries(history), bits) else { return false };
            let entry = list(history, trail)[at].clone();
            list(history, trail).push(entry);
            true
        },
    },
    Wrong {
        name: "broken chain",
        rules: &["chains are intact"],
        change: |history, _| {
            let chain = history.operations.iter_mut().find(|made| made.kind == Kind::Chain);
            chain.is_some_and(|chain| {
                chain.value = json!(false);
                true
            })
        },
    },
    Wrong {
        name: "chain that was not exported",
        rules: &["read at the end"],
        change: |history, bits| fails(history, Kind::Chain, bits),
    },
    Wrong {
        name: "no chain",
        rules: &["read at the end"],
        change: |history, _| {
            history.operations.retain(|made| made.kind != Kind::Chain);
            !history.operations.is_empty()
        },
    },
    Wrong {
        name: "trail that one node did not list",
        rules: &["read at the end"],
        change: |history, bits| fails(history, Kind::Trail, bits),
    },
    Wrong {
        name: "trail that is not read",
        rules: &["read at the end"],
        change: |history, _| {
            history.operations.retain(|made| made.kind != Kind::Trail);
            history.operations.iter().any(|made| made.outcome == Outcome::Ok && made.kind == Kind::Verify)
        },
    },
];

#[test]
fn wrong_audits_are_reported() {
    each_is_reported(make, check, &WRONG);
}

#[test]
fn correct_audits_are_not_reported() {
    none_is_reported(make, check);
}
