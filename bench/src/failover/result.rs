//! Results of a run, as Markdown and as JSON.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::seconds::{self, Second};
use super::{FaultKind, Plan, page};
use crate::load::as_f64;
use crate::report::Report;
use crate::traffic::Traffic;
use crate::traffic::findings::{Findings, counted, millis, ms, quantiles, write_promises, write_requests};
use crate::traffic::history::{Gap, History, Kind, Micros, quantile};

/// Targets for failed writes after a kill of the leader: percentile and seconds.
const WRITE_GAP_SECS: [(usize, f64); 3] = [(50, 0.6), (99, 1.5), (100, 3.0)];

/// Figures of a run.
pub struct Figures {
    pub seconds: Vec<Second>,
    /// By kind, for each fault.
    pub gaps: BTreeMap<Kind, Vec<Gap>>,
    pub json: Value,
}

/// Prints, writes the files, and returns whether there was no violation. An unfinished run is reported as far
/// as it went.
pub fn write(plan: &Plan, nodes: usize, traffic: &Traffic, looked: Result<Findings>) -> Result<bool> {
    let history = traffic.history();
    let gaps: BTreeMap<_, _> = Kind::ALL.map(|kind| (kind, history.gaps(kind))).into();
    let seconds = seconds::seconds(&history);
    let json = as_json(&history, &seconds, &gaps, looked.as_ref().ok());
    let figures = Figures { seconds, gaps, json };

    let mut report = Report::new("Failover under load");
    report.line(&format!(
        "{nodes} nodes; {} while requests come at a fixed rate, whatever the answers: {}. A request is sent to the\n\
         next node at once when one does not answer well; times count from when it was due, in milliseconds.\n",
        match plan.fault {
            FaultKind::Kill => format!("{} times kill -9 of the leader", history.faults.len()),
            FaultKind::Pause => format!("{} times SIGSTOP and SIGCONT of the leader", history.faults.len()),
            FaultKind::Cut => format!("{} times the leader cut off from its peers", history.faults.len()),
            FaultKind::None => "no faults".to_owned(),
        },
        Kind::ALL
            .map(|kind| format!("{} of {} in a second", plan.rates.of(kind), kind.name()))
            .join(", "),
    ));
    write_requests(&mut report, &history);
    if !history.faults.is_empty() {
        write_gaps(&mut report, plan, &history, &figures.gaps);
        write_elsewhere(&mut report, &history);
    }
    write_promises(&mut report, &history, looked.as_ref().ok());
    for odd in &history.odd {
        report.line(&format!("- neither good nor an orderly refusal: {odd}"));
    }
    if let Some(path) = &plan.json {
        fs::write(path, format!("{:#}\n", figures.json)).with_context(|| path.display().to_string())?;
    }
    if let Some(path) = &plan.html {
        fs::write(path, page::draw(&history, &figures)).with_context(|| path.display().to_string())?;
    }
    let is_good = report.finish(plan.output.as_deref())?;
    looked?;
    Ok(is_good)
}

fn write_gaps(report: &mut Report, plan: &Plan, history: &History, gaps: &BTreeMap<Kind, Vec<Gap>>) {
    report.line("");
    report.table(&["gap of a fault", "p50", "p99", "max", "longest wait, p50", "p99", "max", "never ended"]);
    for (kind, gaps) in gaps {
        let sorted = |of: fn(&Gap) -> Micros| {
            let mut values: Vec<_> = gaps.iter().map(of).collect();
            values.sort_unstable();
            values
        };
        let (gap, wait) = (sorted(|gap| gap.silence), sorted(|gap| gap.wait));
        let never = gaps.iter().filter(|gap| !gap.has_ended).count();
        let mut cells = vec![kind.name().to_owned()];
        cells.extend([&gap, &wait].into_iter().flat_map(|sorted| quantiles(sorted)));
        cells.push(never.to_string());
        report.row(&cells);
    }
    let mut led: Vec<_> =
        history.faults.iter().filter_map(|fault| Some(fault.led_at?.saturating_sub(fault.at))).collect();
    led.sort_unstable();
    let mut cells = vec!["another node was seen to lead".to_owned()];
    cells.extend(quantiles(&led));
    cells.resize(8, String::new());
    report.row(&cells);
    report.line(
        "\nThe gap of a fault is the longest time without a good answer from the last one before the fault until\n\
         the next fault; the longest wait is that of one request from when it was due, over all its tries.",
    );
    if plan.fault == FaultKind::Kill {
        let mut writes: Vec<_> =
            gaps.get(&Kind::Write).into_iter().flatten().map(|gap| gap.silence).collect();
        writes.sort_unstable();
        for (percent, most) in WRITE_GAP_SECS {
            let measured = quantile(&writes, percent).map_or(0.0, |micros| as_f64(micros) / 1e6);
            let verdict = if measured <= most { "yes" } else { "NO" };
            let which = if percent == 100 { "max".to_owned() } else { format!("p{percent}") };
            report.line(&format!("- gap of writes, {which} ≤ {most} s: {verdict} ({measured:.3} s)"));
        }
    }
}

fn write_elsewhere(report: &mut Report, history: &History) {
    report.line("");
    report.table(&["on the other nodes, until the node was well again", "tries", "not good", "longest, ms"]);
    for kind in Kind::ALL {
        let found = history.elsewhere(kind);
        report.row(&[
            kind.name().to_owned(),
            found.tries.to_string(),
            counted(&found.refused),
            ms(Some(found.wait)),
        ]);
    }
}

fn as_json(
    history: &History,
    seconds: &[Second],
    gaps: &BTreeMap<Kind, Vec<Gap>>,
    looked: Option<&Findings>,
) -> Value {
    let faults: Vec<_> = history
        .faults
        .iter()
        .enumerate()
        .map(|(place, fault)| {
            let kinds: serde_json::Map<_, _> = gaps
                .iter()
                .filter_map(|(kind, gaps)| {
                    let gap = gaps.get(place)?;
                    let value = json!({"gap_ms": millis(gap.silence), "longest_wait_ms": millis(gap.wait),
                        "has_ended": gap.has_ended});
                    Some((kind.name().to_owned(), value))
                })
                .collect();
            json!({
                "at_ms": millis(fault.at),
                "node": fault.node + 1,
                "another_led_after_ms": fault.led_at.map(|at| millis(at.saturating_sub(fault.at))),
                "well_after_ms": millis(fault.well_at.saturating_sub(fault.at)),
                "kinds": kinds,
            })
        })
        .collect();
    let elsewhere: serde_json::Map<_, _> = Kind::ALL
        .map(|kind| {
            let found = history.elsewhere(kind);
            let value =
                json!({"tries": found.tries, "not_good": found.refused, "longest_ms": millis(found.wait)});
            (kind.name().to_owned(), value)
        })
        .into_iter()
        .collect();
    json!({
        "seconds": seconds.iter().map(Second::json).collect::<Vec<_>>(),
        "faults": faults,
        "other_nodes": elsewhere,
        "acknowledged_writes": history.written.len(),
        "lost_acknowledged_writes": looked.map(|looked| looked.lost.len()),
        "revoked": history.revoked.len(),
        "stale_accepts": history.stale().len(),
        "odd_answers": history.odd,
    })
}
