//! A registry of a few tools with its log, read at every node at the end; for the witness and for the second opinion.

use serde_json::json;

use super::super::{registry, witness};
use super::*;

const WORKLOAD: Workload = Workload::Registry;
const TOOLS: u64 = 3;

/// Value, registration and revision of a tool.
type State = Option<(u64, (u64, u64))>;

/// Changes of all tools, each an entry of the log; the index of the first is 1. And versions that clients know.
#[derive(Default)]
struct Log {
    entries: Vec<(Nanos, u64, State)>,
    /// Time of the answer, and its tool.
    answered: Vec<(Nanos, String, Value)>,
}

impl Log {
    /// The state of a tool once `index` entries are applied.
    fn state(&self, tool: u64, index: u64) -> State {
        let applied = &self.entries[..usize::try_from(index).expect("few")];
        applied.iter().rev().find(|(_, of, _)| *of == tool).and_then(|(.., state)| *state)
    }

    fn index_at(&self, time: Nanos) -> u64 {
        self.entries.partition_point(|(at, ..)| *at <= time) as u64
    }

    /// A version that an answer contained before `time`.
    fn known(&self, tool: &str, time: Nanos, bits: &mut Bits) -> Value {
        let known = self.answered.iter().rev().filter(|(at, of, _)| of == tool && *at < time);
        let known: Vec<_> = known.map(|(.., version)| version).collect();
        let count = if bits.is_one_of(3) { known.len() } else { known.len().min(1) };
        one_of(&known[..count], bits).cloned().unwrap_or_default()
    }

    fn last_registration(&self) -> u64 {
        self.entries
            .iter()
            .filter_map(|(.., state)| state.map(|(_, (registration, _))| registration))
            .max()
            .unwrap_or(0)
    }
}

fn revision_text((registration, revision): (u64, u64)) -> Value {
    json!(format!("{registration}.{revision}"))
}

fn read_value(state: State) -> Value {
    state.map_or(Value::Null, |(value, version)| json!({"value": value, "revision": revision_text(version)}))
}

pub(super) fn make(draws: &[u64]) -> History {
    let mut log = Log::default();
    let mut made = Vec::new();
    for (value, planned) in (1..).zip(planned(draws, 6)) {
        let act = act(&mut log, planned, value);
        if act.0.outcome == Outcome::Ok && !act.0.value["revision"].is_null() {
            log.answered.push((act.0.end, act.0.key.clone(), act.0.value["revision"].clone()));
        }
        made.push(act);
    }
    let mut history = History::default();
    for (mut operation, least, mut bits) in made {
        // A node that answers has applied at least the entry of the operation, and at most those that exist.
        let most = log.index_at(operation.end).max(least);
        operation.index = (operation.outcome == Outcome::Ok).then(|| least + bits.below(most - least + 1));
        history.operations.push(operation);
    }
    let end = log.entries.len() as u64;
    for tool in 0..TOOLS {
        for node in 1..=NODES {
            let mut read = finally(&History::default(), node, WORKLOAD, Kind::Read, format!("t{tool}"));
            (read.invoke, read.end) = (1_000_000_000 + node, 2_000_000_000 + node);
            (read.value, read.index) = (read_value(log.state(tool, end)), Some(end));
            history.operations.push(read);
        }
    }
    sorted(history)
}

/// One operation, with the least index of its answer.
fn act(log: &mut Log, mut planned: Planned, value: u64) -> (Operation, u64, Bits) {
    let tool = planned.bits.below(TOOLS);
    let kind = planned.bits.below(8);
    let index = log.entries.len() as u64;
    let now = log.state(tool, index);
    let condition = if planned.bits.is_one_of(2) {
        log.known(&format!("t{tool}"), planned.invoke, &mut planned.bits)
    } else {
        Value::Null
    };
    let holds = condition.is_null() || now.is_some_and(|(_, version)| revision_text(version) == condition);
    let intended = planned;
    let of = |kind| operation(&intended, WORKLOAD, kind, format!("t{tool}"));
    match kind {
        0..=2 => {
            let mut read = of(Kind::Read);
            read.input = json!({"min_index": null});
            read.value = read_value(now);
            (read, index, planned.bits)
        }
        3 => {
            let named = log.index_at(planned.invoke).saturating_sub(planned.bits.below(3));
            let position = named + planned.bits.below(index - named + 1);
            let mut read = of(Kind::Read);
            read.input = json!({"min_index": named});
            read.value = read_value(log.state(tool, position));
            (read, position, planned.bits)
        }
        4..=6 => {
            let mut write = of(Kind::Write);
            write.input = json!({"value": value, "if_match": condition});
            let version = match now {
                Some((_, (registration, revision))) => (registration, revision + 1),
                None => (log.last_registration() + 1, 1),
            };
            write.value = json!({"revision": revision_text(version)});
            let answer = if holds { Ok(Some((value, version))) } else { Err(412) };
            changed(log, &planned, write, tool, answer)
        }
        _ => {
            let mut removal = of(Kind::Remove);
            removal.input = json!({"if_match": condition});
            let answer = match now {
                None => Err(404),
                Some(_) if holds => Ok(None),
                Some(_) => Err(412),
            };
            changed(log, &planned, removal, tool, answer)
        }
    }
}

/// Applies a change, or refuses it.
fn changed(
    log: &mut Log,
    planned: &Planned,
    mut change: Operation,
    tool: u64,
    answer: Result<State, u16>,
) -> (Operation, u64, Bits) {
    match answer {
        Ok(state) if planned.happens => log.entries.push((planned.effect, tool, state)),
        Err(status) if change.outcome == Outcome::Ok => {
            (change.outcome, change.status) = (Outcome::Fail, Some(status));
        }
        _ => {}
    }
    if change.outcome != Outcome::Ok {
        change.value = Value::Null;
    }
    (change, log.entries.len() as u64, planned.bits)
}

fn reads(history: &History, filter: impl Fn(&Operation) -> bool) -> Vec<usize> {
    numbers(history, |made| {
        made.kind == Kind::Read
            && made.outcome == Outcome::Ok
            && made.input["min_index"].is_null()
            && filter(made)
    })
}

fn acknowledged(history: &History) -> Vec<usize> {
    numbers(history, |made| made.kind == Kind::Write && made.outcome == Outcome::Ok)
}

/// Two acknowledged writes of one tool, the second begun after the first had ended.
fn successive(history: &History) -> Vec<(usize, usize)> {
    let writes = acknowledged(history);
    let all = writes.iter().flat_map(|one| writes.iter().map(|other| (*one, *other)));
    let operations = &history.operations;
    all.filter(|(one, other)| {
        let (one, other) = (&operations[*one], &operations[*other]);
        one.key == other.key && one.end < other.invoke
    })
    .collect()
}

/// The value that a read of this write returns.
fn content(write: &Operation) -> Value {
    json!({"value": write.input["value"], "revision": write.value["revision"]})
}

/// Reads of a value and its write.
fn read_of(history: &History, bits: &mut Bits) -> Option<(usize, usize)> {
    let writes = numbers(history, |made| made.kind == Kind::Write);
    let value = |number: &usize| &history.operations[*number].input["value"];
    let of = |read: usize| {
        let made = &history.operations[read];
        let writer = writes.iter().find(|write| *value(write) == made.value["value"])?;
        Some((read, *writer))
    };
    let pairs: Vec<_> = reads(history, |read| !read.value.is_null()).into_iter().filter_map(of).collect();
    one_of(&pairs, bits)
}

/// Wrong for both: neither the order of versions nor any other order explains it.
const WRONG: [Wrong; 7] = [
    Wrong {
        name: "stale read",
        rules: &["real time", "acknowledged change is there at the end", "linearizable"],
        change: |history, bits| {
            let Some((old, new)) = one_of(&successive(history), bits) else { return false };
            let (key, end) = (history.operations[new].key.clone(), history.operations[new].end);
            let later = reads(history, |read| read.key == key && read.invoke > end);
            let Some(read) = one_of(&later, bits) else { return false };
            history.operations[read].value = content(&history.operations[old]);
            true
        },
    },
    Wrong {
        name: "read of a later write",
        rules: &["real time", "linearizable"],
        change: |history, bits| {
            let Some(write) = one_of(&acknowledged(history), bits) else { return false };
            let (key, begun) = (history.operations[write].key.clone(), history.operations[write].invoke);
            let earlier = reads(history, |read| read.key == key && read.end < begun);
            let Some(read) = one_of(&earlier, bits) else { return false };
            history.operations[read].value = content(&history.operations[write]);
            true
        },
    },
    Wrong {
        name: "lost acknowledged write",
        rules: &["acknowledged change is there at the end", "linearizable"],
        change: |history, bits| {
            let Some((old, new)) = one_of(&successive(history), bits) else { return false };
            let (old, new) = (history.operations[old].clone(), history.operations[new].clone());
            for read in history.operations.iter_mut().filter(|read| read.is_final && read.key == new.key) {
                read.value = content(&old);
            }
            true
        },
    },
    Wrong {
        name: "value that was never written",
        rules: &["value was written", "linearizable"],
        change: |history, bits| {
            let Some((read, _)) = read_of(history, bits) else { return false };
            history.operations[read].value["value"] = json!(999_999);
            true
        },
    },
    Wrong {
        name: "effect of a failed write",
        rules: &["failed write has no effect", "linearizable"],
        change: |history, bits| {
            let Some((_, write)) = read_of(history, bits) else { return false };
            history.operations[write].outcome = Outcome::Fail;
            true
        },
    },
    Wrong {
        name: "nothing at the end although nothing was removed",
        rules: &["absence has a removal", "linearizable"],
        change: |history, bits| {
            let Some(write) = one_of(&acknowledged(history), bits) else { return false };
            let key = history.operations[write].key.clone();
            if history.operations.iter().any(|made| made.key == key && made.kind == Kind::Remove) {
                return false;
            }
            for read in history.operations.iter_mut().filter(|read| read.is_final && read.key == key) {
                read.value = Value::Null;
            }
            true
        },
    },
    Wrong {
        name: "compare-and-set against an older version",
        rules: &["condition", "linearizable"],
        change: |history, bits| {
            let pairs = successive(history);
            let Some((first, second)) = one_of(&pairs, bits) else { return false };
            let thirds: Vec<_> =
                pairs.iter().filter(|(one, _)| *one == second).map(|(_, third)| *third).collect();
            let Some(third) = one_of(&thirds, bits) else { return false };
            let old = history.operations[first].value["revision"].clone();
            history.operations[third].input["if_match"] = old;
            true
        },
    },
];

/// Wrong for the witness only: versions and log indexes, which the second opinion does not use.
const WRONG_FOR_WITNESS: [Wrong; 9] = [
    Wrong {
        name: "two writes of one version",
        rules: &["one write for each version"],
        change: |history, bits| {
            let Some((one, other)) = one_of(&successive(history), bits) else { return false };
            history.operations[other].value = history.operations[one].value.clone();
            true
        },
    },
    Wrong {
        name: "one write with two versions",
        rules: &["one version for each write"],
        change: |history, bits| {
            let Some((read, _)) = read_of(history, bits) else { return false };
            let others = numbers(history, |other| {
                other.kind == Kind::Read && other.value["value"] == history.operations[read].value["value"]
            });
            history.operations[read].value["revision"] = json!("4000.1");
            others.len() > 1
        },
    },
    Wrong {
        name: "versions against real time",
        rules: &["real time", "one write for each version", "one version for each write"],
        change: |history, bits| {
            let Some((one, other)) = one_of(&successive(history), bits) else { return false };
            let revision = history.operations[one].value["revision"].take();
            history.operations[one].value["revision"] = history.operations[other].value["revision"].take();
            history.operations[other].value["revision"] = revision;
            true
        },
    },
    Wrong {
        name: "version without a write",
        rules: &["every version has a write"],
        change: |history, bits| {
            let registration = |number: usize| {
                let revision = history.operations[number].value["revision"].as_str().unwrap_or_default();
                revision.split('.').next().map(str::to_owned)
            };
            // No read shows it, and no write of unknown outcome can have made it.
            let is_needed = |(one, other): &(usize, usize)| {
                let write = &history.operations[*one];
                registration(*one) == registration(*other)
                    && !history.operations.iter().any(|made| {
                        let is_read = made.kind == Kind::Read && made.value["value"] == write.input["value"];
                        let is_unknown = made.kind == Kind::Write && made.outcome == Outcome::Unknown;
                        made.key == write.key && (is_read || is_unknown)
                    })
            };
            let pairs: Vec<_> = successive(history).into_iter().filter(is_needed).collect();
            let Some((write, _)) = one_of(&pairs, bits) else { return false };
            history.operations.remove(write);
            true
        },
    },
    Wrong {
        name: "read at an index before one that was answered",
        rules: &["index order", "session"],
        change: |history, bits| {
            let answered = numbers(history, |made| made.index > Some(0));
            let Some(before) = one_of(&answered, bits) else { return false };
            let (end, index) = (history.operations[before].end, history.operations[before].index);
            let Some(read) = one_of(&reads(history, |read| read.invoke > end), bits) else { return false };
            history.operations[read].index = index.map(|index| index - 1);
            true
        },
    },
    Wrong {
        name: "write at an index that was answered before",
        rules: &["index order", "session"],
        change: |history, bits| {
            let answered = numbers(history, |made| made.index.is_some());
            let Some(before) = one_of(&answered, bits) else { return false };
            let (end, index) = (history.operations[before].end, history.operations[before].index);
            let writes = acknowledged(history);
            let later: Vec<_> =
                writes.into_iter().filter(|write| history.operations[*write].invoke > end).collect();
            let Some(write) = one_of(&later, bits) else { return false };
            history.operations[write].index = index;
            true
        },
    },
    Wrong {
        name: "read at a named index that misses a write below it",
        rules: &["named index"],
        change: |history, bits| {
            let Some((old, new)) = one_of(&successive(history), bits) else { return false };
            let (key, index) = (history.operations[new].key.clone(), history.operations[new].index);
            let later = numbers(history, |read| {
                read.key == key
                    && read.outcome == Outcome::Ok
                    && read.input["min_index"].as_u64() >= index
                    && !read.value.is_null()
            });
            let Some(read) = one_of(&later, bits) else { return false };
            history.operations[read].value = content(&history.operations[old]);
            true
        },
    },
    Wrong {
        name: "version that is removed twice",
        rules: &["removed once"],
        change: |history, bits| {
            let removals = numbers(history, |made| {
                made.kind == Kind::Remove && made.outcome == Outcome::Ok && made.input["if_match"].is_string()
            });
            let Some(removal) = one_of(&removals, bits) else { return false };
            let removal = history.operations[removal].clone();
            history.operations.push(Operation { invoke: removal.end + 1, end: removal.end + 2, ..removal });
            true
        },
    },
    Wrong {
        name: "tool that is not read at the end",
        rules: &["read at the end"],
        change: |history, bits| {
            let Some(write) = one_of(&acknowledged(history), bits) else { return false };
            let key = history.operations[write].key.clone();
            history.operations.retain(|made| !(made.is_final && made.key == key));
            true
        },
    },
];

#[test]
fn wrong_registries_are_reported_by_the_witness() {
    each_is_reported(make, witness::check, &WRONG);
    each_is_reported(make, witness::check, &WRONG_FOR_WITNESS);
}

#[test]
fn wrong_registries_are_reported_by_the_second_opinion() {
    each_is_reported(make, registry::check, &WRONG);
}

#[test]
fn correct_registries_are_not_reported_by_the_witness() {
    none_is_reported(make, witness::check);
}

#[test]
fn correct_registries_are_not_reported_as_a_second_opinion() {
    none_is_reported(make, registry::check);
}

#[test]
fn search_that_does_not_end_is_reported() {
    let planned = Planned { outcome: Outcome::Ok, ..planned(&[99], 1)[0] };
    let made = |kind, invoke, input, value| {
        let made = operation(&planned, WORKLOAD, kind, "t".to_owned());
        Operation { invoke, end: invoke + 1000, input, value, ..made }
    };
    let mut operations: Vec<_> =
        (0..40).map(|value| made(Kind::Write, value, json!({"value": value}), Value::Null)).collect();
    operations.push(made(Kind::Read, 5000, Value::Null, json!({"value": 99, "revision": "1.99"})));
    let history = History { operations, ..History::default() };
    let rules: Vec<_> = registry::check(&history).into_iter().map(|violation| violation.rule).collect();
    assert_eq!(rules, ["decided"]);
}
