//! Live feed: a subscriber that resumes on changing nodes sees each event once, in order, and none is missing.
//!
//! The table of events, read from every node at the end, is the order of the log: ids are
//! `<incarnation>-<index>-<number>`. Each acknowledged change is in it, at an index that its time permits.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::{Found, Numbered, Violation, grouped, is_ok, name, of, text};
use crate::history::{History, Kind, Nanos, Outcome, Workload};

pub const NAME: &str = "feed";

/// Log index and number in its entry.
type Id = (u64, u64);

fn id(event: &Value) -> Option<Id> {
    id_of(&event["id"])
}

fn id_of(value: &Value) -> Option<Id> {
    let mut parts = value.as_str()?.rsplitn(3, '-');
    let (number, index) = (parts.next()?, parts.next()?);
    Some((index.parse().ok()?, number.parse().ok()?))
}

/// Subjects by id.
type Table = BTreeMap<Id, String>;

pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Found::by(NAME);
    let operations: Vec<_> = of(history, Workload::Feed).collect();
    if operations.is_empty() {
        return Vec::new();
    }
    let table = common_table(&operations, &mut found);
    changes(history, &operations, &table, &mut found);
    let of_subscriber = |(_, operation): &Numbered<'_>| {
        matches!(operation.kind, Kind::Event | Kind::Resume) && operation.outcome == Outcome::Ok
    };
    let begun = begins(&operations, &table);
    let subscribers = operations.iter().copied().filter(of_subscriber);
    for (subscriber, operations) in grouped(subscribers, |operation| operation.key.as_str()) {
        follow(subscriber, &operations, &table, &begun, &mut found);
    }
    found.violations
}

/// The events of the log. Every node lists the same, in order; one may begin or end later.
fn common_table(operations: &[Numbered<'_>], found: &mut Found) -> Table {
    let mut lists: Vec<(Numbered<'_>, Table)> = Vec::new();
    for &(number, operation) in operations.iter().filter(|(_, operation)| is_ok(operation, Kind::All)) {
        let mut list = Table::new();
        let mut previous = None;
        for event in operation.value.as_array().map(Vec::as_slice).unwrap_or_default() {
            let (Some(id), Some(subject)) = (id(event), text(&event["subject"])) else {
                found.add_unreadable((number, operation));
                continue;
            };
            if previous.is_some_and(|previous| previous >= id) {
                let detail = format!("{} lists {id:?} after {previous:?}", name(operation));
                found.add("in order", detail, &[number]);
            }
            previous = Some(id);
            list.insert(id, subject);
        }
        lists.push(((number, operation), list));
    }
    let mut common = Table::new();
    for (_, list) in &lists {
        common.extend(list.iter().map(|(id, subject)| (*id, subject.clone())));
    }
    let unlisted = operations.iter().filter(|(_, all)| all.kind == Kind::All && all.outcome != Outcome::Ok);
    for (number, operation) in unlisted {
        let detail = format!("node {} did not list its events at the end", operation.node);
        found.add("read at the end", detail, &[*number]);
    }
    if lists.is_empty() {
        found.add("read at the end", "no node listed its events at the end".to_owned(), &[]);
    }
    for ((number, operation), list) in &lists {
        let range = list.keys().next().zip(list.keys().next_back());
        let Some((first, last)) = range else { continue };
        if let Some((id, subject)) =
            common.range(*first..=*last).find(|(id, subject)| list.get(id) != Some(subject))
        {
            let detail =
                format!("{} lacks event {id:?} of {subject}, which another node lists", name(operation));
            found.add("same on every node", detail, &[*number]);
        }
    }
    common
}

/// Each acknowledged change has an event, at an index above those that were answered before it began and not above
/// its own. A change that failed has none.
fn changes(history: &History, operations: &[Numbered<'_>], table: &Table, found: &mut Found) {
    let mut events: HashMap<&str, Vec<Id>> = HashMap::new();
    for (id, subject) in table {
        events.entry(subject).or_default().push(*id);
    }
    let mut answered: Vec<(Nanos, u64)> =
        history.operations.iter().filter_map(|other| Some((other.end, other.index?))).collect();
    answered.sort_unstable();
    let mut highest = 0;
    for (_, index) in &mut answered {
        highest = highest.max(*index);
        *index = highest;
    }
    let changes = operations.iter().copied().filter(|(_, operation)| operation.kind == Kind::Change);
    for (subject, changes) in grouped(changes, |operation| operation.key.as_str()) {
        let events = events.get(subject).map(Vec::as_slice).unwrap_or_default();
        let acknowledged = changes.iter().filter(|(_, change)| change.outcome == Outcome::Ok).count();
        let possible = changes.iter().filter(|(_, change)| change.outcome != Outcome::Fail).count();
        let numbers: Vec<_> = changes.iter().map(|(number, _)| *number).collect();
        if events.len() < acknowledged {
            let detail = format!(
                "{acknowledged} changes of {subject} were acknowledged, {} have events",
                events.len()
            );
            found.add("none missing", detail, &numbers);
        } else if events.len() > possible {
            let detail = format!("{subject} has {} events, of at most {possible} changes", events.len());
            found.add("no event without a change", detail, &numbers);
        } else if let ([(number, change)], [event]) = (changes.as_slice(), events) {
            let before = answered.partition_point(|(end, _)| *end < change.invoke);
            let above = before.checked_sub(1).map_or(0, |last| answered[last].1);
            let most = change.index.filter(|_| change.outcome == Outcome::Ok).unwrap_or(u64::MAX);
            if event.0 <= above || event.0 > most {
                let detail = format!(
                    "{} has index {}, although {above} was answered before it and {most} to it",
                    name(change),
                    event.0
                );
                found.add("index order", detail, &[*number]);
            }
        }
    }
}

/// Start times of the acknowledged changes that have one event, by its id: every subscriber waits for the
/// last of them.
fn begins(operations: &[Numbered<'_>], table: &Table) -> BTreeMap<Id, Nanos> {
    let mut ids: HashMap<&str, Option<Id>> = HashMap::new();
    for (id, subject) in table {
        ids.entry(subject).and_modify(|known| *known = None).or_insert(Some(*id));
    }
    let changes = operations.iter().filter(|(_, operation)| is_ok(operation, Kind::Change));
    changes.filter_map(|(_, change)| Some(((*ids.get(change.key.as_str())?)?, change.invoke))).collect()
}

/// One subscriber, from its first event to its last.
fn follow(
    subscriber: &str,
    operations: &[Numbered<'_>],
    table: &Table,
    begun: &BTreeMap<Id, Nanos>,
    found: &mut Found,
) {
    let mut seen: HashMap<Id, usize> = HashMap::new();
    let mut previous: Option<(Id, usize)> = None;
    // After a reset, which the node announces, events may be missing.
    let mut is_reset = false;
    // A change that begins once the subscriber is connected comes after its first event, or is it.
    let mut connected: Option<Nanos> = None;
    for &(number, operation) in operations {
        if operation.kind == Kind::Resume {
            is_reset |= operation.value == "reset";
            if connected.is_none() {
                // The first connection may name an event, after which nothing is missing either.
                previous = id_of(&operation.input["last_id"]).map(|id| (id, number));
                connected = Some(operation.end);
            }
            continue;
        }
        let (Some(id), Some(subject)) = (id(&operation.value), text(&operation.value["subject"])) else {
            found.add_unreadable((number, operation));
            continue;
        };
        if let Some(other) = seen.insert(id, number) {
            found.add(
                "each id once",
                format!("{subscriber} received {id:?} more than once"),
                &[other, number],
            );
            continue;
        }
        if table.get(&id).is_some_and(|other| *other != subject) {
            let detail = format!("{subscriber} received {id:?} of {subject}; the nodes list another");
            found.add("same on every node", detail, &[number]);
        }
        if let Some((before, other)) = previous {
            if id <= before {
                let detail = format!("{subscriber} received {id:?} after {before:?}");
                found.add("in order", detail, &[other, number]);
                continue;
            }
            let missed = table.range(next(before)..id).next();
            if let Some((missed, subject)) = missed.filter(|_| !is_reset) {
                let detail = format!(
                    "{subscriber} received no {missed:?} of {subject}, between {before:?} and {id:?}"
                );
                found.add("none missing", detail, &[other, number]);
            }
        }
        if previous.is_none()
            && let Some(at) = connected
            && let Some((missed, _)) = begun.range(..id).find(|(_, begun)| **begun > at)
        {
            let detail = format!("{subscriber} received no {missed:?}, although it was connected");
            found.add("none missing", detail, &[number]);
        }
        is_reset = false;
        previous = Some((id, number));
    }
    let last = begun.keys().next_back();
    match (previous, last) {
        (Some((end, number)), Some(last)) if end < *last && !is_reset => {
            let detail = format!("{subscriber} received {end:?} last, although {last:?} was acknowledged");
            found.add("none missing", detail, &[number]);
        }
        (None, Some(_)) => {
            let first = operations.first().map(|(number, _)| *number);
            let numbers: Vec<_> = first.into_iter().collect();
            found.add("none missing", format!("{subscriber} received nothing"), &numbers);
        }
        _ => {}
    }
}

fn next((index, number): Id) -> Id {
    (index, number.saturating_add(1))
}
