//! The result of a run.

use std::ops::Range;

use anyhow::Result;

use super::follow::Joined;
use super::{Plan, secs};
use crate::load::as_f64;
use crate::report::{Report, mib};
use crate::rolling::finish;
use crate::traffic::Traffic;
use crate::traffic::findings::quantiles;
use crate::traffic::history::{History, Kind, Micros, Outcome};

pub async fn write(
    report: &mut Report,
    plan: &Plan,
    rows: &[(&str, String)],
    (joined, traffic): (&[Joined], &Traffic),
) -> Result<()> {
    report.line(&format!(
        "\nOne node restored from the backup; then two nodes join, one after the other; {} requests per second, open\n\
         loop, at the voters in turn, each tried until it succeeds.\n",
        plan.rate
    ));
    report.table(&["the restored node", ""]);
    for (name, value) in rows {
        report.row(&[*name, value.as_str()]);
    }
    report.line("");
    let columns =
        ["answered 202", "p50, ms", "p99, ms", "max, ms", "tool writes", "p50, ms", "p99, ms", "max, ms"];
    report.table(&[&["step", "seconds"], columns.as_slice()].concat());
    {
        let history = traffic.history();
        for Joined { node_id, steps, .. } in joined {
            for (step, span) in steps {
                let took = format!("{:.1}", as_f64(span.end - span.start) / 1e6);
                let mut cells = vec![format!("node {node_id}: {step}"), took];
                // A tool write waits for no barrier: the difference is what the barrier costs.
                for kind in [Kind::Signal, Kind::Write] {
                    cells.extend(answered(&history, kind, span));
                }
                report.row(&cells);
            }
        }
        report.line("");
        report.table(&["load", "seconds", "request", "good", "p50, ms", "p99, ms", "max, ms"]);
        for (phase, span) in phases(&history, joined) {
            for kind in Kind::ALL {
                let [good, p50, p99, max] = answered(&history, kind, &span);
                let took = format!("{:.0}", as_f64(span.end - span.start) / 1e6);
                report.row(&[phase.clone(), took, kind.name().to_owned(), good, p50, p99, max]);
            }
        }
    }
    report.line("");
    report.table(&[
        "join",
        "peak memory of the new node, MiB",
        "of node 1, MiB",
        "longest time without a report, s",
    ]);
    for Joined { node_id, peaks, silence, .. } in joined {
        report.row(&[format!("node {node_id}"), mib(peaks[0]), mib(peaks[1]), secs(*silence)]);
    }
    report.line("");
    finish(report, traffic, false).await
}

/// The joins, and the times around them.
fn phases(history: &History, joined: &[Joined]) -> Vec<(String, Range<Micros>)> {
    let (mut phases, mut from) = (Vec::new(), 0);
    for one in joined {
        let span = one.span();
        phases.push((format!("before node {} joins", one.node_id), from..span.start));
        from = span.end;
        phases.push((format!("while node {} joins", one.node_id), span));
    }
    phases.push(("afterwards".to_owned(), from..history.end.max(from)));
    phases
}

/// Good answers to the requests that were due in `span`: their number, and the quantiles of their time.
fn answered(history: &History, kind: Kind, span: &Range<Micros>) -> [String; 4] {
    let is_meant = |request: &&crate::traffic::history::Request| {
        request.kind == kind && span.contains(&request.due) && request.outcome == Outcome::Good
    };
    let mut waits: Vec<_> = history
        .requests
        .iter()
        .filter(is_meant)
        .map(|request| request.done.saturating_sub(request.due))
        .collect();
    waits.sort_unstable();
    let [p50, p99, max] = quantiles(&waits);
    [waits.len().to_string(), p50, p99, max]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::history::Request;

    fn joined(node_id: u64, span: Range<Micros>) -> Joined {
        let steps =
            vec![("a".to_owned(), span.start..span.start + 1), ("b".to_owned(), span.start + 1..span.end)];
        Joined { node_id, steps, silence: std::time::Duration::ZERO, peaks: [0; 2] }
    }

    #[test]
    fn phases_follow_each_other_without_a_gap() {
        let history = History { end: 100, ..History::default() };
        let spans: Vec<_> = phases(&history, &[joined(2, 10..30), joined(3, 50..70)])
            .into_iter()
            .map(|(_, span)| (span.start, span.end))
            .collect();
        assert_eq!(spans, [(0, 10), (10, 30), (30, 50), (50, 70), (70, 100)]);
    }

    #[test]
    fn good_answers_count_in_the_phase_of_their_due_time() {
        let one =
            |due, outcome| Request { kind: Kind::Signal, due, done: due + 2000, first: outcome, outcome };
        let requests = vec![
            one(9, Outcome::Good),
            one(10, Outcome::Good),
            one(19, Outcome::Good),
            one(20, Outcome::Good),
            one(15, Outcome::NotNow),
            Request { kind: Kind::Write, ..one(12, Outcome::Good) },
        ];
        let history = History { requests, ..History::default() };
        assert_eq!(answered(&history, Kind::Signal, &(10..20)), ["2", "2.0", "2.0", "2.0"]);
    }
}
