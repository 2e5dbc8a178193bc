//! `bench overload`: goodput of a node that is offered five times its capacity.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::credentials::PreparedRequests;
use crate::load::{self, Latencies, Tally, Write, as_f64, quantile_ms};
use crate::node::{Start, cpu_secs};
use crate::report::{Report, ms};

/// Duration of each step of the search for the capacity.
const STEP: Duration = Duration::from_secs(3);
/// Connections of the steps.
const STEPS: [usize; 4] = [8, 32, 64, 128];
/// Upper bound of exchanges per second and core.
const PER_SEC_MAX: usize = 30_000;
/// Target latency of refusals.
const REFUSAL_MS_MAX: f64 = 50.0;
/// Target goodput as a fraction of the peak.
const GOODPUT_MIN: f64 = 0.8;

#[derive(clap::Args, Clone, Copy)]
pub struct Load {
    /// Multiple of the capacity that is offered
    #[arg(long, default_value_t = 5.0)]
    pub factor: f64,
    /// Duration in seconds
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
    /// Number of connections
    #[arg(long, default_value_t = 400)]
    pub connections: usize,
    #[command(flatten)]
    pub cores: Cores,
}

/// Cores of the node and the generator.
#[derive(clap::Args, Clone, Copy)]
pub struct Cores {
    /// The core of the node
    #[arg(long, default_value_t = 0)]
    pub node_core: usize,
    /// The core of the generator
    #[arg(long, default_value_t = 1)]
    pub generator_core: usize,
}

/// Finds the capacity and offers a multiple of it.
pub async fn run(start: &Start, load: Load) -> Result<bool> {
    let node = start.node(Some(load.cores.node_core)).await?;
    drop(node.mint().await?);
    let target = node.target("workload")?;
    let mut first = 1;
    let mut prepare = |count: usize| -> Result<Write> {
        let prepared = PreparedRequests::new(&node.issuer, &target.host, first, count)?;
        first += count as u64;
        Ok(prepared.into_write())
    };

    let mut report = Report::new("Overload");
    report.line("The node has one core and the generator another. Each exchange has a credential that was never used.\n");
    report.table(&["closed loop over", "exchanges in a second", "p50 ms", "p99 ms", "statuses"]);
    let mut capacity: f64 = 0.0;
    let mut errors = 0;
    for connections in STEPS {
        let expected = if capacity > 0.0 { capacity * 1.5 } else { as_f64(PER_SEC_MAX as u64) / 2.0 };
        let write = prepare(requests(expected * STEP.as_secs_f64()))?;
        let tally = load::closed_loop(&target, &write, connections, STEP).await?;
        capacity = capacity.max(tally.per_sec(200));
        errors += tally.server_errors();
        let good = tally.since_sent.get(&200);
        report.row(&[
            format!("{connections} connections"),
            format!("{:.0}", tally.per_sec(200)),
            ms(quantile_ms(good, 0.5)),
            ms(quantile_ms(good, 0.99)),
            tally.statuses(),
        ]);
    }

    let duration = Duration::from_secs(load.seconds);
    let rate = capacity * load.factor;
    let write = prepare(requests(rate * duration.as_secs_f64()))?;
    let (node_before, own_before, begun) = (node.cpu_secs()?, cpu_secs("self")?, Instant::now());
    let tally = load::open_loop(&target, &write, load.connections, rate, duration).await?;
    let wall = begun.elapsed().as_secs_f64();
    let (node_cpu, own_cpu) = (node.cpu_secs()? - node_before, cpu_secs("self")? - own_before);
    errors += tally.server_errors();
    write_result(&mut report, &tally, capacity, rate, duration);
    report.line(&format!("| processor of the node | {:.0} % of one core |", 100.0 * node_cpu / wall));
    report.line(&format!("| processor of the generator | {:.0} % of one core |", 100.0 * own_cpu / wall));
    report.fail(errors);
    report.finish(start.output.as_deref())
}

fn write_result(report: &mut Report, tally: &Tally, capacity: f64, rate: f64, duration: Duration) {
    // Answers after the last due time are no throughput under load.
    let goodput = as_f64(tally.count(200)) / tally.elapsed.max(duration).as_secs_f64();
    let ratio = goodput / capacity.max(1.0);
    let refused = [429, 503];
    let (due, sent) = (together(&tally.since_due, &refused), together(&tally.since_sent, &refused));
    let (due, sent) = (due.as_ref(), sent.as_ref());
    let verdict = |good: bool| if good { "yes" } else { "NO" };
    report.line("");
    report.table(&["overload", ""]);
    let answered = as_f64(tally.total() - tally.count(0)) / tally.elapsed.as_secs_f64();
    let unsent = 100.0 * (1.0 - as_f64(tally.total()) / (rate * duration.as_secs_f64()).max(1.0));
    for (name, value) in [
        ("capacity", format!("{capacity:.0} exchanges in a second")),
        ("offered", format!("{rate:.0} in a second for {} s", duration.as_secs())),
        ("due and never sent, as every connection waited", format!("{:.0} %", unsent.max(0.0))),
        (
            "answered",
            format!("{answered:.0} in a second; the last after {:.1} s", tally.elapsed.as_secs_f64()),
        ),
        ("statuses", tally.statuses()),
        ("goodput", format!("{goodput:.0} in a second, {:.0} % of the capacity", 100.0 * ratio)),
        ("at least 80 %", verdict(ratio >= GOODPUT_MIN).to_owned()),
        ("granted, p50 and p99 ms since due", both(tally.since_due.get(&200))),
        ("granted, p50 and p99 ms since sent", both(tally.since_sent.get(&200))),
        ("refused, p50 and p99 ms since due", both(due)),
        ("refused, p50 and p99 ms since sent", both(sent)),
        (
            "refusals within 50 ms (p99 since sent)",
            verdict(sent.is_some() && quantile_ms(sent, 0.99) <= REFUSAL_MS_MAX).to_owned(),
        ),
    ] {
        report.row(&[name.to_owned(), value]);
    }
}

/// The latencies of all these statuses.
fn together(latencies: &Latencies, statuses: &[u16]) -> Option<Histogram<u64>> {
    let mut seen = statuses.iter().filter_map(|status| latencies.get(status));
    let mut all = seen.next()?.clone();
    for more in seen {
        // Same range and precision: they always add.
        let _ = all.add(more);
    }
    Some(all)
}

fn both(latencies: Option<&Histogram<u64>>) -> String {
    format!("{}, {}", ms(quantile_ms(latencies, 0.5)), ms(quantile_ms(latencies, 0.99)))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and far below 2^52")]
fn requests(count: f64) -> usize {
    count.ceil() as usize + 1
}
