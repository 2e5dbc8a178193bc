//! Blocks and lifts of callers, and requests of the callers on nodes that follow at different times.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::blocked::check;
use super::*;

const WORKLOAD: Workload = Workload::Blocked;

pub(super) fn make(draws: &[u64]) -> History {
    let mut history = History::default();
    let mut blocked: BTreeMap<u64, bool> = BTreeMap::new();
    for mut planned in planned(draws, 5) {
        let caller = planned.bits.below(3);
        let key = format!("c{caller}");
        let is_blocked = blocked.entry(caller).or_default();
        let kind = match planned.bits.below(6) {
            0 => Kind::Block,
            1 => Kind::Lift,
            _ => Kind::Use,
        };
        let mut made = operation(&planned, WORKLOAD, kind, key);
        match kind {
            Kind::Use if made.outcome == Outcome::Ok => made.value = json!(!*is_blocked),
            Kind::Use => {}
            _ if planned.happens => *is_blocked = kind == Kind::Block,
            _ => {}
        }
        history.operations.push(made);
    }
    for (caller, is_blocked) in blocked {
        let mut used = finally(&history, 1, WORKLOAD, Kind::Use, format!("c{caller}"));
        used.value = json!(!is_blocked);
        history.operations.push(used);
    }
    sorted(history)
}

/// Pairs of an acknowledged block and a later use of the caller, such that no lift may have taken effect
/// before the use ended.
fn blocked_uses(history: &History) -> Vec<(usize, usize)> {
    let made = &history.operations;
    let blocks = numbers(history, |made| made.kind == Kind::Block && made.outcome == Outcome::Ok);
    let uses = numbers(history, |made| made.kind == Kind::Use && made.outcome == Outcome::Ok);
    let is_lifted = |block: &Operation, used: &Operation| {
        made.iter().any(|lift| {
            lift.kind == Kind::Lift
                && lift.key == used.key
                && lift.outcome != Outcome::Fail
                && lift.invoke < used.end
                && (lift.outcome == Outcome::Unknown || lift.end > block.invoke)
        })
    };
    let all = blocks.iter().flat_map(|block| uses.iter().map(|used| (*block, *used)));
    all.filter(|(block, used)| {
        let (block, used) = (&made[*block], &made[*used]);
        block.key == used.key && block.end < used.invoke && !is_lifted(block, used)
    })
    .collect()
}

const WRONG: [Wrong; 3] = [
    Wrong {
        name: "admission after the acknowledgement",
        rules: &["no admission after the acknowledgement"],
        change: |history, bits| {
            let Some((_, used)) = one_of(&blocked_uses(history), bits) else { return false };
            history.operations[used].value = json!(true);
            true
        },
    },
    Wrong {
        name: "refusal at the end of a caller that was never blocked",
        rules: &["a lifted block ends"],
        change: |history, bits| {
            let uses = numbers(history, |made| made.kind == Kind::Use && made.is_final && made.value == true);
            let Some(used) = one_of(&uses, bits) else { return false };
            let key = history.operations[used].key.clone();
            history.operations.retain(|made| made.key != key || made.kind != Kind::Block);
            let is_it = |made: &&mut Operation| made.key == key && made.is_final;
            history.operations.iter_mut().find(is_it).expect("it is kept").value = json!(false);
            true
        },
    },
    NO_VERDICT,
];

#[test]
fn admissions_of_the_blocked_are_reported() {
    each_is_reported(make, check, &WRONG);
}

#[test]
fn correct_blocks_are_not_reported() {
    none_is_reported(make, check);
}
