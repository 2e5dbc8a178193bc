//! Correct histories, generated from random bits, and the same histories made wrong on purpose.
//!
//! A simulated system executes each operation at one instant between its start and its end, except some of
//! unknown outcome, which happen later or never. It keeps every promise, so a checker that reports it is
//! wrong; a checker that reports nothing after a change is wrong, too.

mod audit;
mod blocked;
mod federation;
mod feed;
mod keys;
mod registry;
mod revoke;
mod single_use;
mod streams;

use proptest::collection::vec;
use proptest::prelude::{any, proptest};
use proptest::test_runner::Config;
use serde_json::Value;

use super::Violation;
use crate::history::{Fault, History, Kind, Nanos, Operation, Outcome, Workload};

/// Generates a history from numbers, one for each operation.
type Make = fn(&[u64]) -> History;
type Check = fn(&History) -> Vec<Violation>;

/// Choices of one operation.
#[derive(Clone, Copy)]
struct Bits(u64);

impl Bits {
    fn below(&mut self, end: u64) -> u64 {
        let drawn = self.0 % end;
        self.0 /= end;
        drawn
    }

    fn is_one_of(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// The finalizer of `SplitMix64`.
fn mixed(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// An operation before its answer is known.
#[derive(Clone, Copy)]
struct Planned {
    process: u64,
    node: u64,
    invoke: Nanos,
    /// Time of its effect.
    effect: Nanos,
    end: Nanos,
    outcome: Outcome,
    /// Whether an operation of unknown outcome happens.
    happens: bool,
    bits: Bits,
}

/// Nodes of the simulated system.
const NODES: u64 = 3;
/// Distance of times: those of one process are unique to it.
const TICK: Nanos = 100;

/// Operations of some processes, in the order of their effects.
fn planned(draws: &[u64], processes: u64) -> Vec<Planned> {
    let mut clocks = vec![0; usize::try_from(processes).expect("few")];
    let mut planned: Vec<_> = draws
        .iter()
        .map(|draw| {
            let mut bits = Bits(*draw);
            let process = bits.below(processes);
            let clock = &mut clocks[usize::try_from(process).expect("few")];
            let mut later = |from: Nanos| from + TICK * (1 + bits.below(12));
            let invoke = later(*clock);
            let mut effect = later(invoke);
            let end = later(effect);
            *clock = end;
            let chance = bits.below(16);
            if chance == 1 {
                effect = end + TICK * bits.below(40);
            }
            Planned {
                process,
                node: 1 + bits.below(NODES),
                invoke: invoke + process,
                effect: effect + process,
                end: end + process,
                outcome: match chance {
                    0..=2 => Outcome::Unknown,
                    3 => Outcome::Fail,
                    _ => Outcome::Ok,
                },
                happens: chance != 0 && chance != 3,
                bits,
            }
        })
        .collect();
    planned.sort_by_key(|operation| operation.effect);
    planned
}

/// An operation without input, answer and index.
fn operation(planned: &Planned, workload: Workload, kind: Kind, key: String) -> Operation {
    Operation {
        process: planned.process,
        workload,
        kind,
        key,
        input: Value::Null,
        invoke: planned.invoke,
        end: planned.end,
        outcome: planned.outcome,
        node: planned.node,
        status: None,
        index: None,
        value: Value::Null,
        is_final: false,
    }
}

/// An operation after all others.
fn finally(history: &History, node: u64, workload: Workload, kind: Kind, key: String) -> Operation {
    let last = history.operations.iter().map(|operation| operation.end).max().unwrap_or_default();
    let at = last.max(history.faults.iter().map(|fault| fault.time).max().unwrap_or_default()) + 100_000;
    let planned = Planned {
        process: 1000 + node,
        node,
        invoke: at,
        effect: at + 1,
        end: at + 2,
        outcome: Outcome::Ok,
        happens: true,
        bits: Bits(0),
    };
    Operation { is_final: true, ..operation(&planned, workload, kind, key) }
}

fn sorted(mut history: History) -> History {
    history.operations.sort_by_key(|operation| operation.invoke);
    history
}

fn fault(time: Nanos, kind: &str, node: u64) -> Fault {
    Fault { time, kind: kind.to_owned(), targets: vec![node], detail: String::new(), is_end: false }
}

/// A change that makes a correct history wrong, and the rules of which one must report it. The change returns
/// whether the history has operations that it can change.
struct Wrong {
    name: &'static str,
    rules: &'static [&'static str],
    change: fn(&mut History, &mut Bits) -> bool,
}

/// An answered use that is no verdict.
const NO_VERDICT: Wrong = Wrong {
    name: "an answer that is no verdict",
    rules: &["readable"],
    change: |history, bits| {
        let uses = numbers(history, |made| made.kind == Kind::Use && made.outcome == Outcome::Ok);
        let Some(used) = one_of(&uses, bits) else { return false };
        history.operations[used].value = serde_json::json!("yes");
        true
    },
};

/// Histories in which each change is tried, and the number of them to which it must apply.
const TRIED: u64 = 400;
const CHANGED_MIN: u64 = 20;

/// Every change is reported in every history, by one of its rules.
fn each_is_reported(make: Make, check: Check, wrongs: &[Wrong]) {
    for wrong in wrongs {
        let mut changed = 0;
        for seed in 0..TRIED {
            let draws: Vec<_> = (0..60).map(|number| mixed(seed * 1000 + number)).collect();
            let mut history = make(&draws);
            assert_eq!(check(&history), [], "seed {seed}, before the change");
            if !(wrong.change)(&mut history, &mut Bits(mixed(seed + 77_777))) {
                continue;
            }
            changed += 1;
            let found = check(&sorted(history));
            assert!(
                found.iter().any(|violation| wrong.rules.contains(&violation.rule)),
                "{}, seed {seed}: {found:?}",
                wrong.name
            );
        }
        assert!(changed >= CHANGED_MIN, "{}: it applied to {changed} histories only", wrong.name);
    }
}

/// No correct history is reported.
fn none_is_reported(make: Make, check: Check) {
    let config = Config { cases: 2000, failure_persistence: None, ..Config::default() };
    proptest!(config, |(draws in vec(any::<u64>(), 0..120))| {
        let found = check(&make(&draws));
        assert!(found.is_empty(), "{found:#?}");
    });
}

/// The numbers of some operations.
fn numbers(history: &History, filter: impl Fn(&Operation) -> bool) -> Vec<usize> {
    (0..history.operations.len()).filter(|number| filter(&history.operations[*number])).collect()
}

/// One of the operations of this kind fails.
fn fails(history: &mut History, kind: Kind, bits: &mut Bits) -> bool {
    let Some(number) = one_of(&numbers(history, |made| made.kind == kind), bits) else { return false };
    let failed = &mut history.operations[number];
    (failed.outcome, failed.value) = (Outcome::Fail, Value::Null);
    true
}

/// One of them, if there are any.
fn one_of<T: Copy>(of: &[T], bits: &mut Bits) -> Option<T> {
    let count = of.len() as u64;
    (count > 0).then(|| of[usize::try_from(bits.below(count)).expect("a number")])
}

#[test]
fn answers_of_another_form_are_reported() {
    let cases: [(Make, Check, Kind); 12] = [
        (registry::make, super::witness::check, Kind::Write),
        (registry::make, super::witness::check, Kind::Read),
        (revoke::make, super::revoke::check, Kind::Use),
        (single_use::make, super::single_use::check, Kind::Spend),
        (streams::make, super::streams::check, Kind::Deliver),
        (feed::make, super::feed::check, Kind::Event),
        (audit::make, super::audit::check, Kind::Verify),
        (keys::make, super::keys::check, Kind::Check),
        (keys::make, super::keys::check, Kind::Use),
        (blocked::make, super::blocked::check, Kind::Use),
        (federation::make, super::federation::check, Kind::Use),
        (federation::make, super::federation::check, Kind::Read),
    ];
    let draws: Vec<_> = (0..60).map(mixed).collect();
    for (make, check, kind) in cases {
        let mut history = make(&draws);
        let answered = numbers(&history, |made| {
            made.kind == kind && made.outcome == Outcome::Ok && !made.value.is_null()
        });
        history.operations[answered[0]].value = serde_json::json!({"value": "strange"});
        let found = check(&history);
        assert!(found.iter().any(|violation| violation.rule == "readable"), "{kind:?}: {found:?}");
    }
}
