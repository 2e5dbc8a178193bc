//! Findings of a run: outcomes of the requests, lost writes, stale accepts.

use std::collections::BTreeMap;

use anyhow::Result;

use super::Traffic;
use super::history::{History, Kind, Lost, Micros, Outcome, Try, name, quantile};
use crate::load::as_f64;
use crate::report::Report;

/// Duration of a slow try.
const SLOW_MICROS: Micros = 2_000_000;
/// Maximum slow tries in a report.
const SLOW_MAX: usize = 10;

/// Findings after the load.
pub struct Findings {
    pub lost: Vec<Lost>,
    /// Tools of the run on each node in use.
    pub tools: Vec<usize>,
}

/// Reads everything acknowledged from every node in use.
pub async fn look(traffic: &Traffic) -> Result<Findings> {
    traffic.check_revoked().await;
    let mut nodes = Vec::new();
    for node in traffic.in_use() {
        nodes.push(traffic.tools_at(node).await?);
    }
    let lost = traffic.history().lost(&nodes, |number| traffic.entry(number));
    Ok(Findings { lost, tools: nodes.iter().map(BTreeMap::len).collect() })
}

/// The requests of each kind and their outcomes.
pub fn write_requests(report: &mut Report, history: &History) {
    report.table(&[
        "requests",
        "due",
        "good",
        "outcome unknown",
        "errors",
        "first try failed",
        "p50",
        "p99",
        "max",
    ]);
    for kind in Kind::ALL {
        let of_kind = || history.requests.iter().filter(|request| request.kind == kind);
        let mut errors = BTreeMap::<String, u64>::new();
        let mut first = BTreeMap::<String, u64>::new();
        let mut waits = Vec::new();
        let mut unknown = 0_u64;
        for request in of_kind() {
            if request.first != Outcome::Good {
                *first.entry(name(request.first)).or_default() += 1;
            }
            match request.outcome {
                Outcome::Good => waits.push(request.done.saturating_sub(request.due)),
                Outcome::Unknown => unknown += 1,
                other => *errors.entry(name(other)).or_default() += 1,
            }
            if matches!(request.outcome, Outcome::Wrong(_)) {
                report.fail(1);
            }
        }
        waits.sort_unstable();
        let [p50, p99, max] = quantiles(&waits);
        report.row(&[
            kind.name().to_owned(),
            of_kind().count().to_string(),
            waits.len().to_string(),
            unknown.to_string(),
            counted(&errors),
            counted(&first),
            p50,
            p99,
            max,
        ]);
    }
}

/// Requests that failed after all tries, first tries that failed, and broken connections.
pub fn write_failures(report: &mut Report, history: &History) -> u64 {
    let is_good = |outcome: Outcome| outcome == Outcome::Good;
    let failed = history.requests.iter().filter(|request| !is_good(request.outcome)).count() as u64;
    let first = history.requests.iter().filter(|request| !is_good(request.first)).count();
    report.line(&format!(
        "- failed after the retry: {failed} of {}; first try failed: {first}",
        history.requests.len()
    ));
    for (how, count) in &history.broken {
        report.line(&format!("  - {how}: {count}"));
    }
    report.line(&format!(
        "- longest gap between two acknowledged writes: {} ms",
        ms(Some(history.longest_silence(Kind::Write)))
    ));
    for odd in &history.odd {
        report.line(&format!("- neither good nor an orderly refusal: {odd}"));
    }
    failed
}

/// Tries that took longest, if they took longer than the barrier of a new leader, and the leaders of the run.
pub fn write_slow_tries(report: &mut Report, history: &History) {
    let took = |one: &Try| one.done.saturating_sub(one.sent);
    let mut slow: Vec<_> = history.tries.iter().filter(|one| took(one) > SLOW_MICROS).collect();
    slow.sort_unstable_by_key(|one| std::cmp::Reverse(took(one)));
    let seconds = |at: Micros| millis(at) / 1000.0;
    for one in slow.iter().take(SLOW_MAX) {
        report.line(&format!(
            "- slow: {} at {:.3} s, node {}: until {:.3} s, {}",
            one.kind.name(),
            seconds(one.sent),
            one.node + 1,
            seconds(one.done),
            name(one.outcome)
        ));
    }
    if let Some(first) = slow.first() {
        let before = first.sent.saturating_sub(SLOW_MICROS);
        let beside = history.leaders.iter().filter(|(at, _)| (before..first.done).contains(at));
        let leaders: Vec<_> = beside
            .map(|(at, leader)| {
                let who = leader.map_or_else(|| "none".to_owned(), |leader| format!("node {}", leader + 1));
                format!("{who} from {:.3} s", seconds(*at))
            })
            .collect();
        report.line(&format!("- leaders beside the slowest: {}", leaders.join(", ")));
    }
}

/// Gaps of writes of some of the faults, sorted.
pub fn write_gaps(history: &History, faults: std::ops::Range<usize>) -> Vec<Micros> {
    let all = history.gaps(Kind::Write);
    let mut gaps: Vec<_> = all.get(faults).into_iter().flatten().map(|gap| gap.silence).collect();
    gaps.sort_unstable();
    gaps
}

/// Lost acknowledged writes and stale accepts.
pub fn write_promises(report: &mut Report, history: &History, looked: Option<&Findings>) {
    let stale = history.stale();
    let after = history
        .checks
        .iter()
        .filter(|check| history.revoked.get(&check.subject).is_some_and(|at| check.begun > *at))
        .count();
    report.line("");
    match looked {
        Some(looked) => {
            let tools: Vec<_> = looked.tools.iter().map(usize::to_string).collect();
            report.line(&format!(
                "- lost acknowledged writes: {} of {} (tools on the nodes: {})",
                looked.lost.len(),
                history.written.len(),
                tools.join(", ")
            ));
            for lost in looked.lost.iter().take(10) {
                let how = if lost.is_other { "has other content" } else { "is not there" };
                report.line(&format!("  - node {}: tool {} {how}", lost.node + 1, lost.number));
            }
            report.fail(looked.lost.len() as u64);
        }
        None => report.line("- lost acknowledged writes: not checked, the run was not finished"),
    }
    report.line(&format!(
        "- stale accepts: {} of {after} verifications begun after the 202 of their subject's revocation ({} were revoked)",
        stale.len(),
        history.revoked.len(),
    ));
    for check in stale.iter().take(10) {
        report.line(&format!("  - node {}: workload {}", check.node + 1, check.subject));
    }
    report.fail(stale.len() as u64);
}

/// Median, 99th percentile and maximum, in milliseconds.
pub fn quantiles(sorted: &[Micros]) -> [String; 3] {
    [50, 99, 100].map(|percent| ms(quantile(sorted, percent)))
}

pub fn counted(errors: &BTreeMap<String, u64>) -> String {
    if errors.is_empty() {
        return "0".to_owned();
    }
    let each: Vec<_> = errors.iter().map(|(name, count)| format!("{name}: {count}")).collect();
    each.join(", ")
}

pub fn millis(micros: Micros) -> f64 {
    as_f64(micros) / 1000.0
}

pub fn ms(micros: Option<Micros>) -> String {
    micros.map_or_else(|| "-".to_owned(), |micros| format!("{:.1}", millis(micros)))
}
