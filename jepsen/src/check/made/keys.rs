//! Minted tokens, their checks against key sets, taints of keys; and the probes after the faults.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::{keys, liveness};
use super::*;

const WORKLOAD: Workload = Workload::Keys;
const NOW: u64 = 1_790_000_000;

pub(super) fn make(draws: &[u64]) -> History {
    let mut history = History::default();
    let mut minted: Vec<(Nanos, String, u64, u64)> = Vec::new();
    let mut tainted: BTreeMap<u64, Nanos> = BTreeMap::new();
    for (number, mut planned) in planned(draws, 4).into_iter().enumerate() {
        let now = NOW + planned.effect / 1000;
        match planned.bits.below(8) {
            0 => {
                let kid = planned.bits.below(6);
                history.operations.push(operation(&planned, WORKLOAD, Kind::Taint, format!("k{kid}")));
                if planned.happens {
                    tainted.entry(kid).or_insert(planned.effect);
                }
            }
            1..=3 => {
                let kid = planned.bits.below(6);
                let jti = format!("j{number}");
                let mut mint = operation(&planned, WORKLOAD, Kind::Mint, jti.clone());
                if mint.outcome == Outcome::Ok {
                    mint.value = json!({"kid": format!("k{kid}"), "exp": now + 3});
                    minted.push((planned.end, jti, kid, now + 3));
                }
                history.operations.push(mint);
            }
            _ => {
                let known: Vec<_> = minted.iter().filter(|(end, ..)| *end < planned.invoke).collect();
                let Some((_, jti, kid, exp)) = one_of(&known, &mut planned.bits) else { continue };
                let is_there = tainted.get(kid).is_none_or(|at| *at > planned.effect);
                if planned.bits.is_one_of(3) {
                    let mut used = operation(&planned, WORKLOAD, Kind::Use, jti.clone());
                    if used.outcome == Outcome::Ok {
                        used.value = json!(is_there);
                    }
                    history.operations.push(used);
                    continue;
                }
                let mut check = operation(&planned, WORKLOAD, Kind::Check, jti.clone());
                check.input = json!({"at": now});
                if check.outcome == Outcome::Ok {
                    check.value = json!(is_there && (now < *exp || planned.bits.is_one_of(2)));
                }
                history.operations.push(check);
            }
        }
    }
    for (_, jti, kid, _) in &minted {
        let mut check = finally(&history, 1, WORKLOAD, Kind::Check, jti.clone());
        check.input = json!({"at": NOW});
        check.value = json!(!tainted.contains_key(kid));
        history.operations.push(check);
    }
    sorted(history)
}

fn checks(history: &History, is_verified: bool) -> Vec<usize> {
    numbers(history, |made| made.kind == Kind::Check && made.value == is_verified)
}

fn mint_of<'h>(history: &'h History, check: &Operation) -> &'h Operation {
    let is_mint = |made: &&Operation| made.kind == Kind::Mint && made.key == check.key;
    history.operations.iter().find(is_mint).expect("a mint")
}

const WRONG: [Wrong; 4] = [
    Wrong {
        name: "token that does not verify",
        rules: &["verifies until it expires"],
        change: |history, bits| {
            let Some(check) = one_of(&checks(history, true), bits) else { return false };
            let (made, mint) = (&history.operations[check], mint_of(history, &history.operations[check]));
            let kid = mint.value["kid"].as_str().unwrap_or_default();
            let is_taint = |made: &Operation| {
                made.kind == Kind::Taint && made.key == kid && made.outcome != Outcome::Fail
            };
            if made.input["at"].as_u64() >= mint.value["exp"].as_u64()
                || history.operations.iter().any(is_taint)
            {
                return false;
            }
            history.operations[check].value = json!(false);
            true
        },
    },
    Wrong {
        name: "tainted key in a key set at the end",
        rules: &["tainted keys leave the key set"],
        change: |history, bits| {
            let gone: Vec<_> = checks(history, false)
                .into_iter()
                .filter(|number| history.operations[*number].is_final)
                .collect();
            let Some(check) = one_of(&gone, bits) else { return false };
            let kid = mint_of(history, &history.operations[check]).value["kid"].clone();
            history.operations[check].value = json!(true);
            let is_taint = |made: &Operation| made.kind == Kind::Taint && kid == made.key.as_str();
            history.operations.iter().any(|made| is_taint(made) && made.outcome == Outcome::Ok)
        },
    },
    Wrong {
        name: "accept of a tainted key",
        rules: &["no accept of a tainted key"],
        change: |history, bits| {
            let refused = numbers(history, |made| made.kind == Kind::Use && made.value == false);
            let Some(used) = one_of(&refused, bits) else { return false };
            let kid = mint_of(history, &history.operations[used]).value["kid"].clone();
            let begun = history.operations[used].invoke;
            history.operations[used].value = json!(true);
            history.operations.iter().any(|made| {
                made.kind == Kind::Taint
                    && kid == made.key.as_str()
                    && made.outcome == Outcome::Ok
                    && made.end < begun
            })
        },
    },
    Wrong {
        name: "one jti for two tokens",
        rules: &["one token for each jti"],
        change: |history, bits| {
            let minted = numbers(history, |made| made.kind == Kind::Mint && made.outcome == Outcome::Ok);
            let Some(mint) = one_of(&minted, bits) else { return false };
            let again = history.operations[mint].clone();
            history.operations.push(again);
            true
        },
    },
];

#[test]
fn wrong_key_sets_are_reported() {
    each_is_reported(make, keys::check, &WRONG);
}

#[test]
fn correct_key_sets_are_not_reported() {
    none_is_reported(make, keys::check);
}

#[test]
fn probe_that_fails_or_is_missing_is_reported() {
    let mut history = History { faults: vec![fault(1, "kill", 1)], ..History::default() };
    assert_eq!(liveness::check(&history)[0].rule, "looked for");
    let mut works = finally(&history, 1, Workload::Liveness, Kind::Works, "write".to_owned());
    works.value = json!(true);
    history.operations.push(works.clone());
    assert_eq!(liveness::check(&history), []);
    history.operations.push(Operation { value: json!(false), ..works.clone() });
    history.operations.push(Operation { outcome: Outcome::Unknown, ..works });
    assert_eq!(liveness::check(&history).len(), 2);
}
