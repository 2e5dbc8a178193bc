//! Audit: every allowed verification is in the trail of its tool on every node, once, with its decision; of the denied
//! ones of a tool, which are equal, the first; and the chains are intact.
//!
//! A power cut or a lost disk may take the entries of one node that were not yet shipped; they are shipped within
//! 200 ms while there is a leader.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Found, Numbered, Violation, grouped, is_ok, name, of, text};
use crate::history::{History, Kind, Nanos, Operation, Outcome, Workload};

pub const NAME: &str = "audit";

/// Time with a leader after which an entry is in the log: 200 ms until it is shipped, and its write under load.
const SHIPPED_NANOS: Nanos = 500_000_000;

/// Time after a denial in which a node counts equal ones instead of listing each.
const JOINED_NANOS: Nanos = 60_000_000_000;

/// Faults that lose the end of a node's journal.
const LOSSES: [&str; 3] = ["power-cut", "set-back", "lost-disk"];

pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Found::by(NAME);
    let operations: Vec<_> = of(history, Workload::Audit).collect();
    let verified = operations.iter().copied().filter(|(_, operation)| is_ok(operation, Kind::Verify));
    let by_tool = grouped(verified, |operation| text(&operation.input["tool"]).unwrap_or_default());
    let mut trails = BTreeSet::new();
    for (number, trail) in operations.iter().copied().filter(|(_, operation)| is_ok(operation, Kind::Trail)) {
        let tool = text(&trail.input["tool"]).unwrap_or_default();
        let entries = entries((number, trail), &mut found);
        let verified = by_tool.get(&tool).map(Vec::as_slice).unwrap_or_default();
        compare(history, verified, (number, trail), &entries, &mut found);
        trails.insert(tool);
    }
    for (tool, verified) in &by_tool {
        if !trails.contains(tool) {
            let detail = format!("the trail of {tool} was not read at the end");
            found.add("read at the end", detail, &[verified[0].0]);
        }
    }
    read_at_the_end(&operations, &mut found);
    found.violations
}

/// Every node gave its trails and the export of its chains after the faults, and the chains are intact.
fn read_at_the_end(operations: &[Numbered<'_>], found: &mut Found) {
    for &(number, read) in
        operations.iter().filter(|(_, read)| matches!(read.kind, Kind::Trail | Kind::Chain))
    {
        if read.outcome != Outcome::Ok {
            found.add("read at the end", format!("{} was not answered", name(read)), &[number]);
        } else if read.kind == Kind::Chain && read.value != true {
            found.add("chains are intact", format!("node {}: a chain is broken", read.node), &[number]);
        }
    }
    let is_missing = operations.iter().all(|(_, read)| read.kind != Kind::Chain);
    if let Some((number, _)) = operations.first().filter(|_| is_missing) {
        found.add("read at the end", "the chains were not read".to_owned(), &[*number]);
    }
}

/// Whether each request of a trail was accepted; each request has one entry with a verdict.
fn entries((number, trail): Numbered<'_>, found: &mut Found) -> HashMap<String, bool> {
    let mut entries = HashMap::new();
    for entry in trail.value.as_array().map(Vec::as_slice).unwrap_or_default() {
        let is_accepted = match entry["decision"].as_str() {
            Some("allow") => true,
            Some("deny") => false,
            // The request was decided, and answered with an error.
            Some("error") => continue,
            _ => {
                found.add_unreadable((number, trail));
                continue;
            }
        };
        let id = text(&entry["request_id"]).unwrap_or_default();
        if entries.insert(id.clone(), is_accepted).is_some() {
            let detail = format!("{} lists request {id} more than once", name(trail));
            found.add("each entry once", detail, &[number]);
        }
    }
    entries
}

fn compare(
    history: &History,
    verified: &[Numbered<'_>],
    (trail, read): Numbered<'_>,
    entries: &HashMap<String, bool>,
    found: &mut Found,
) {
    for &(number, verify) in verified.iter().filter(|(_, verify)| verify.end < read.invoke) {
        let Some(is_accepted) = verify.value.as_bool() else {
            found.add_unreadable((number, verify));
            continue;
        };
        match entries.get(&verify.key) {
            Some(other) if *other != is_accepted => {
                let detail = format!("{}: the trail has another decision", name(verify));
                found.add("same decision", detail, &[number, trail]);
            }
            None if !may_be_lost(history, verify)
                && (is_accepted || !is_joined(verified, verify, entries)) =>
            {
                let detail = format!("{} is not in the trail of node {}", name(verify), read.node);
                found.add("every verification is there", detail, &[number, trail]);
            }
            _ => {}
        }
    }
}

/// Whether the trail has an equal denial of the node in the minute before: those of one tool are equal.
fn is_joined(verified: &[Numbered<'_>], verify: &Operation, entries: &HashMap<String, bool>) -> bool {
    verified.iter().any(|(_, other)| {
        other.node == verify.node
            && other.invoke < verify.end
            && verify.invoke < other.end.saturating_add(JOINED_NANOS)
            && entries.get(&other.key) == Some(&false)
    })
}

/// Whether a loss struck the node before it had had the time to ship this entry.
fn may_be_lost(history: &History, verify: &Operation) -> bool {
    history
        .faults
        .iter()
        .filter(|fault| !fault.is_end && fault.targets.contains(&verify.node))
        .filter(|fault| LOSSES.iter().any(|kind| fault.kind.starts_with(kind)))
        .filter(|fault| fault.time >= verify.invoke)
        .any(|fault| time_with_leader(history, verify.end, fault.time) < SHIPPED_NANOS)
}

/// Time between two instants during which some node saw a leader.
fn time_with_leader(history: &History, from: Nanos, until: Nanos) -> Nanos {
    let mut seen: BTreeMap<u64, bool> = BTreeMap::new();
    let (mut since, mut sum) = (from.min(until), 0);
    for leader in &history.leaders {
        if leader.time > since && seen.values().any(|leads| *leads) {
            sum += leader.time.min(until) - since;
        }
        since = since.max(leader.time.min(until));
        seen.insert(leader.seen_by, leader.leader.is_some());
    }
    // Without records, a leader is assumed: less is excused.
    if seen.is_empty() || seen.values().any(|leads| *leads) {
        sum += until.saturating_sub(since);
    }
    sum
}
