//! `bench connections`: thousands of idle connections and their cost.

use anyhow::Result;

use crate::attacks::slow::{self, Variant};
use crate::good_client::GoodClient;
use crate::load::quantile_ms;
use crate::node::{Node, Start};
use crate::report::{Report, mib, ms};
use crate::wire::Target;

/// Measurement of the well-behaved client before each flood.
const BEFORE: std::time::Duration = std::time::Duration::from_secs(5);

/// Runs the floods: `plain` connections idle and half-open, `stalled` TLS handshakes.
pub async fn run(start: &Start, plain: usize, stalled: usize, rate: f64) -> Result<bool> {
    let mut node = start.node(None).await?;
    drop(node.mint().await?);
    let mut report = Report::new("Idle and half-open connections");
    report.line(&format!(
        "A good client makes {rate} exchanges in a second. Memory of the node is resident, in MiB; latency is\n\
         in milliseconds, closing in seconds.\n"
    ));
    report.table(&[
        "connections",
        "opened",
        "memory before",
        "all open",
        "highest",
        "bytes for each",
        "closed within",
        "good p99 before",
        "during",
        "good client not served",
    ]);
    let good = GoodClient::start(&node, rate)?;
    let mut notes = Vec::new();
    for (name, target, variant, count) in floods(&node, plain, stalled) {
        let before = good.alone(BEFORE).await;
        let (memory_before, _) = node.memory_kib()?;
        node.reset_peak();
        drop(good.take());
        let held = slow::hold(&target, variant, count).await?;
        let opened = held.opened();
        let (memory_open, _) = node.memory_kib()?;
        let outcome = held.until_closed().await?;
        let during = good.take();
        node.still_runs()?;
        let (_, peak) = node.memory_kib()?;
        report.row(&[
            format!("{count} {name}"),
            opened.to_string(),
            mib(memory_before),
            mib(memory_open),
            mib(peak),
            (peak.saturating_sub(memory_before) * 1024 / opened.max(1) as u64).to_string(),
            outcome.closed(),
            ms(quantile_ms(before.since_due.get(&200), 0.99)),
            ms(quantile_ms(during.since_due.get(&200), 0.99)),
            format!("{} of {}", during.total() - during.count(200), during.total()),
        ]);
        report.fail(outcome.wrong_accepts + outcome.server_errors + during.server_errors());
        notes.extend(outcome.notes.into_iter().map(|note| format!("- {name}: {note}")));
    }
    drop(good);
    report.line("");
    for note in &notes {
        report.line(note);
    }
    report.finish(start.output.as_deref())
}

fn floods(node: &Node, plain: usize, stalled: usize) -> Vec<(&'static str, Target, Variant, usize)> {
    let mut floods = vec![
        ("idle, plain", node.http.clone(), Variant::Silent, plain),
        ("with half a head, plain", node.http.clone(), Variant::HalfHead, plain),
    ];
    if let Some(https) = &node.https {
        floods.push(("stalled TLS handshakes", https.clone(), Variant::HalfHandshake, stalled));
    }
    floods
}
