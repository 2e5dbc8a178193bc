//! A run as one HTML page for a person: leaders and faults by node, operations by process, and each violation enlarged.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

use serde_json::Value;
use trust_fabric_bench::chart::{self, Axis, LEADER_HEIGHT, LEFT, WIDTH, bar, escaped, label};
use trust_fabric_bench::load::as_f64;

use crate::check::{Violation, name, seconds};
use crate::history::{Fault, History, Nanos, Operation, Outcome};
use crate::results::{RunResult, grouped};

/// Violations that are drawn enlarged, and operations in each.
const ENLARGED_MAX: usize = 20;
const ROWS_MAX: usize = 40;
const ROW_HEIGHT: f64 = 16.0;
/// Height of the operations of one process.
const PROCESS_HEIGHT: f64 = 6.0;
/// Space between two charts.
const BETWEEN: f64 = 14.0;
/// Bars that would be closer than this are drawn as one.
const APART: f64 = 1.0;
/// Characters of an input or answer.
const VALUE_CHARS_MAX: usize = 90;

/// The page.
pub fn draw(history: &History, violations: &[Violation]) -> String {
    let run = &history.run;
    let mut body = format!(
        "<p>{} nodes, seed {}, {}{}. Point at a bar for its operation.</p>",
        run.nodes,
        run.seed,
        escaped(&run.version),
        run.broken
            .as_ref()
            .map(|broken| format!(", broken on purpose: {}", escaped(broken)))
            .unwrap_or_default()
    );
    body += &summary(history, violations);
    for violation in violations.iter().take(ENLARGED_MAX) {
        body += &enlarged(history, violation);
    }
    if violations.len() > ENLARGED_MAX {
        // Writing to a string does not fail, here and below.
        let _ = write!(
            body,
            "<p>{} more violations are in the result file.</p>",
            violations.len() - ENLARGED_MAX
        );
    }
    body += "<h2>Timeline</h2><p>Above: for each node the leader that it sees, and its faults in red. Below: \
             operations by process; <b style=\"color:#3a9d6a\">answered</b>, <b style=\"color:#d98a1f\">without \
             effect</b>, <b style=\"color:#8a5fc9\">outcome unknown</b>, <b style=\"color:#c62f2f\">in a \
             violation</b>.</p>";
    body += &timeline(history, violations);
    body += &faults(history);
    chart::page(&format!("{} under {}", run.workload, run.nemesis), &body)
}

fn summary(history: &History, violations: &[Violation]) -> String {
    let result = RunResult::of(history, violations);
    let mut rows =
        String::from("<tr><th>operation</th><th>answered</th><th>without effect</th><th>unknown</th></tr>");
    let all = [("in all".to_owned(), result.operations)];
    let kinds = result.kinds.iter().map(|(kind, counts)| (json_name(kind), *counts));
    for (kind, counts) in kinds.chain(all) {
        let _ = write!(
            rows,
            "<tr><td>{kind}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            grouped(counts.ok),
            grouped(counts.fail),
            grouped(counts.unknown)
        );
    }
    let verdict = match violations.len() {
        0 => "No violation was found.".to_owned(),
        count => format!("<b>{count} violations.</b>"),
    };
    let faults: u64 = result.faults.values().sum();
    format!(
        "<p>{verdict} {faults} faults, {} changes of the leader in {} s.</p><table>{rows}</table>",
        result.leaders, result.seconds
    )
}

/// A violation with its operations, and those around it of the same keys.
fn enlarged(history: &History, violation: &Violation) -> String {
    let shown: Vec<_> =
        violation.operations.iter().filter(|number| **number < history.operations.len()).collect();
    let mut text = format!(
        "<h3>{}: {}</h3><p>{}</p>",
        escaped(violation.checker),
        escaped(violation.rule),
        escaped(&violation.detail)
    );
    let operation = |number: &usize| &history.operations[*number];
    let (Some(first), Some(last)) = (
        shown.iter().map(|number| operation(number).invoke).min(),
        shown.iter().map(|number| operation(number).end).max(),
    ) else {
        return text;
    };
    let keys: BTreeSet<&str> = shown.iter().map(|number| operation(number).key.as_str()).collect();
    let margin = ((last - first) / 10).max(10_000_000);
    let (from, until) = (first.saturating_sub(margin), last.saturating_add(margin));
    let middle = first / 2 + last / 2;
    let mut around: Vec<usize> = (0..history.operations.len())
        .filter(|number| {
            let other = operation(number);
            keys.contains(other.key.as_str()) && other.end >= from && other.invoke <= until
        })
        .collect();
    around.sort_by_key(|number| {
        (!violation.operations.contains(number), operation(number).invoke.abs_diff(middle))
    });
    around.truncate(ROWS_MAX);
    around.sort_by_key(|number| operation(number).invoke);
    let mut drawn = String::new();
    let x = |at: Nanos| LEFT + WIDTH * as_f64(at.clamp(from, until) - from) / as_f64((until - from).max(1));
    for (row, number) in (0..).zip(&around) {
        let one = operation(number);
        let y = as_f64(row) * ROW_HEIGHT;
        label(&mut drawn, &format!("{} {}, node {}", json_name(&one.kind), one.process, one.node), y + 12.0);
        let (left, right) = (x(one.invoke), x(one.end));
        let class = class(one, violation.operations.contains(number));
        bar(&mut drawn, class, (left, y + 3.0), ((right - left).max(2.0), 10.0), &title(one));
        let anchor = if left > LEFT + WIDTH / 2.0 { ("end", left - 4.0) } else { ("start", right + 4.0) };
        let _ = write!(
            drawn,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{}\">{}</text>",
            anchor.1,
            y + 12.0,
            anchor.0,
            escaped(&shortened(&one.value))
        );
    }
    let _ = write!(text, "<p>{} s to {} s:</p>", seconds(from), seconds(until));
    text += &chart::image(&drawn, as_f64(around.len() as u64) * ROW_HEIGHT);
    text
}

/// Leaders and faults by node, then operations by process.
fn timeline(history: &History, violations: &[Violation]) -> String {
    let ends = history.operations.iter().map(|operation| operation.end);
    let others = history.faults.iter().map(|fault| fault.time);
    let end = ends.chain(others).chain(history.leaders.iter().map(|leader| leader.time)).max().unwrap_or(0);
    let axis = Axis::new(end.div_ceil(1_000_000_000));
    let spans = fault_spans(history, end);
    let mut drawn = String::new();
    let mut top = BETWEEN;
    for node in 1..=history.run.nodes {
        label(&mut drawn, &format!("node {node}"), top + 12.0);
        axis.leaders(&mut drawn, leaders(history, node, end).into_iter(), top);
        for (fault, from, until) in spans.iter().filter(|(fault, ..)| fault.targets.contains(&node)) {
            let (left, right) = (axis.x(secs(*from)), axis.x(secs(*until)));
            let title = format!("{} {} ({} s)", fault.kind, fault.detail, seconds(*from));
            bar(&mut drawn, "e", (left, top + 18.0), ((right - left).max(1.5), 5.0), &title);
            bar(&mut drawn, "s", (left, top), ((right - left).max(1.5), LEADER_HEIGHT), &title);
        }
        top += LEADER_HEIGHT + 12.0;
    }
    let broken: BTreeSet<usize> =
        violations.iter().flat_map(|violation| violation.operations.iter().copied()).collect();
    let workloads: BTreeSet<_> = history.operations.iter().map(|operation| operation.workload).collect();
    for workload in workloads {
        top += BETWEEN;
        label(&mut drawn, &json_name(&workload), top + 8.0);
        let of: Vec<_> = history
            .operations
            .iter()
            .enumerate()
            .filter(|(_, operation)| operation.workload == workload)
            .collect();
        top += processes(&mut drawn, axis, &of, &broken, top);
    }
    axis.numbers(&mut drawn, top + 16.0);
    chart::image(&drawn, top + 24.0)
}

/// Each process is a row; a row is used again once its process has ended. The result is the height.
fn processes(
    drawn: &mut String,
    axis: Axis,
    operations: &[(usize, &Operation)],
    broken: &BTreeSet<usize>,
    top: f64,
) -> f64 {
    let mut ends: HashMap<u64, Nanos> = HashMap::new();
    for (_, operation) in operations {
        let end = ends.entry(operation.process).or_default();
        *end = operation.end.max(*end);
    }
    let mut rows: Vec<Row> = Vec::new();
    let mut row_of: HashMap<u64, usize> = HashMap::new();
    for (number, operation) in operations {
        let row = *row_of.entry(operation.process).or_insert_with(|| {
            let free = rows.iter().position(|row| row.until < operation.invoke);
            let row = free.unwrap_or(rows.len());
            if free.is_none() {
                rows.push(Row::default());
            }
            rows[row].until = ends[&operation.process];
            row
        });
        let y = top + as_f64(row as u64) * PROCESS_HEIGHT;
        let (left, right) = (axis.x(secs(operation.invoke)), axis.x(secs(operation.end)));
        let class = class(operation, broken.contains(number));
        rows[row].add(
            drawn,
            Bar { class, left, right: right.max(left + APART), count: 1, first: operation },
            y,
        );
    }
    for (number, row) in (0..).zip(&mut rows) {
        row.flush(drawn, top + as_f64(number) * PROCESS_HEIGHT);
    }
    as_f64(rows.len() as u64) * PROCESS_HEIGHT
}

/// A row of operations. Those of one kind that are too close to distinguish are one bar.
#[derive(Default)]
struct Row<'h> {
    until: Nanos,
    waiting: Option<Bar<'h>>,
}

#[derive(Clone, Copy)]
struct Bar<'h> {
    class: &'static str,
    left: f64,
    right: f64,
    count: u64,
    first: &'h Operation,
}

impl<'h> Row<'h> {
    fn add(&mut self, drawn: &mut String, next: Bar<'h>, y: f64) {
        match &mut self.waiting {
            Some(bar) if bar.class == next.class && next.left - bar.right < APART => {
                bar.right = bar.right.max(next.right);
                bar.count += 1;
            }
            _ => {
                self.flush(drawn, y);
                self.waiting = Some(next);
            }
        }
    }

    fn flush(&mut self, drawn: &mut String, y: f64) {
        let Some(Bar { class, left, right, count, first }) = self.waiting.take() else { return };
        let more = if count > 1 { format!("; and {} more", count - 1) } else { String::new() };
        let title = format!("{}{more}", title(first));
        bar(drawn, class, (left, y), (right - left, PROCESS_HEIGHT - 1.0), &title);
    }
}

/// The leaders that one node saw.
fn leaders(history: &History, node: u64, end: Nanos) -> Vec<(f64, f64, Option<usize>)> {
    let seen: Vec<_> = history.leaders.iter().filter(|leader| leader.seen_by == node).collect();
    let ends = seen.iter().skip(1).map(|next| next.time).chain([end]);
    seen.iter()
        .zip(ends)
        .map(|(leader, until)| {
            let leads = leader.leader.and_then(|leader| usize::try_from(leader).ok()?.checked_sub(1));
            (secs(leader.time), secs(until), leads)
        })
        .collect()
}

/// Faults that have begun, with start and end.
fn fault_spans(history: &History, end: Nanos) -> Vec<(&Fault, Nanos, Nanos)> {
    let mut spans: Vec<(&Fault, Nanos, Nanos)> = Vec::new();
    let mut open: BTreeMap<(&str, &[u64]), usize> = BTreeMap::new();
    for fault in &history.faults {
        let key = (fault.kind.as_str(), fault.targets.as_slice());
        if !fault.is_end {
            open.insert(key, spans.len());
            spans.push((fault, fault.time, end));
        } else if let Some(begun) = open.remove(&key) {
            spans[begun].2 = fault.time;
        } else {
            // An event without a start, such as the exit of a process.
            spans.push((fault, fault.time, fault.time));
        }
    }
    spans
}

fn faults(history: &History) -> String {
    let mut rows =
        String::from("<tr><th>fault</th><th>nodes</th><th>from, s</th><th>until, s</th><th></th></tr>");
    for (fault, from, until) in fault_spans(history, Nanos::MAX) {
        let until = if until == Nanos::MAX { "-".to_owned() } else { seconds(until) };
        let _ = write!(
            rows,
            "<tr><td>{}</td><td>{:?}</td><td>{}</td><td>{until}</td><td>{}</td></tr>",
            escaped(&fault.kind),
            fault.targets,
            seconds(from),
            escaped(&fault.detail)
        );
    }
    format!("<h2>Faults</h2><table>{rows}</table>")
}

const fn class(operation: &Operation, is_broken: bool) -> &'static str {
    match operation.outcome {
        _ if is_broken => "v",
        Outcome::Ok => "o",
        Outcome::Fail => "w",
        Outcome::Unknown => "u",
    }
}

fn title(operation: &Operation) -> String {
    let mut text = format!("process {}: {}", operation.process, name(operation));
    for (what, value) in [("", &operation.input), ("answer ", &operation.value)] {
        if !value.is_null() {
            let _ = write!(text, "; {what}{}", shortened(value));
        }
    }
    if let Some(status) = operation.status {
        let _ = write!(text, "; HTTP {status}");
    }
    if let Some(index) = operation.index {
        let _ = write!(text, "; index {index}");
    }
    text
}

fn shortened(value: &Value) -> String {
    let text = if value.is_null() { String::new() } else { value.to_string() };
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn json_name(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}

fn secs(at: Nanos) -> f64 {
    as_f64(at) / 1e9
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::history::{Kind, Leader, Run, Workload};

    fn history(operations: u64) -> History {
        let operation = |number: u64| Operation {
            process: number % 4,
            workload: Workload::Registry,
            kind: Kind::Write,
            key: "<tool>".to_owned(),
            input: json!({"value": number}),
            invoke: number * 10_000_000,
            end: number * 10_000_000 + 9_000_000,
            outcome: [Outcome::Ok, Outcome::Ok, Outcome::Fail, Outcome::Unknown]
                [usize::try_from(number % 4).expect("few")],
            node: 1,
            status: Some(200),
            index: Some(number),
            value: json!({"revision": "1.1"}),
            is_final: false,
        };
        let fault = |time, is_end| Fault {
            time,
            kind: "kill".to_owned(),
            targets: vec![2],
            detail: "leader".to_owned(),
            is_end,
        };
        let leader = |time, leader| Leader { time, seen_by: 1, leader, term: None };
        History {
            run: Run {
                workload: "all".to_owned(),
                nemesis: "kill-one".to_owned(),
                nodes: 3,
                ..Run::default()
            },
            operations: (0..operations).map(operation).collect(),
            faults: vec![fault(1_000_000_000, false), fault(3_000_000_000, true), fault(5_000_000_000, true)],
            leaders: vec![leader(0, Some(1)), leader(1_000_000_000, None), leader(2_000_000_000, Some(3))],
        }
    }

    #[test]
    fn timeline_shows_leaders_faults_and_operations() {
        let page = draw(&history(100), &[]);
        for part in [
            "all under kill-one",
            "No violation was found.",
            "node 1 leads",
            "no leader",
            "node 3 leads",
            "kill leader (1.000000 s)",
            "<td>1.000000</td><td>3.000000</td>",
            "<td>write</td><td>50</td><td>25</td><td>25</td>",
            "write of &lt;tool&gt; on node 1",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(!page.contains("<tool>") && !page.contains("http"), "escaped, and without network");
    }

    #[test]
    fn violation_is_drawn_with_its_operations() {
        let detail = "stale & wrong".to_owned();
        let violation = Violation { checker: "witness", rule: "real time", detail, operations: vec![3, 7] };
        let page = draw(&history(100), &[violation]);
        assert!(page.contains("<h3>witness: real time</h3><p>stale &amp; wrong</p>"), "{page}");
        let broken = page.matches("class=\"v\"").count();
        assert_eq!(broken, 4, "two enlarged, two in the timeline");
    }

    #[test]
    fn long_run_is_still_a_page_of_moderate_size() {
        let page = draw(&history(200_000), &[]);
        assert!(page.len() < 4_000_000, "{} bytes", page.len());
    }
}
