//! `bench tools`: the cost of a registry of many tools beside one of few.
//!
//! Two nodes of the same program, one for each size, are measured in turns, so that other load on the machine
//! affects both.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use crate::load::{Write, as_f64};
use crate::node::{Node, Start};
use crate::overload::Cores;
use crate::registry::{self, Draws};
use crate::report::{Report, mib, ms};
use crate::window::{Window, median};
use crate::wire::Target;

/// Rounds; the median counts.
const ROUNDS: usize = 3;
const CONNECTIONS: usize = 32;
/// Distinct tokens.
const TOKENS: usize = 64;
/// Fraction of the lower peak at which latency is measured.
const LATENCY_LOAD: f64 = 0.5;

#[derive(clap::Args, Clone, Copy)]
pub struct Size {
    /// Tools of the large registry
    #[arg(long, default_value_t = 1_000_000)]
    tools: u64,
    /// Tools of the small registry
    #[arg(long, default_value_t = 10_000)]
    small: u64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

/// A node with its tools.
struct Registry {
    node: Node,
    target: Target,
    tools: u64,
    draws: Draws,
    /// Memory of the node at each stage, and the course of the registrations.
    told: Vec<(&'static str, String)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Verify,
    Get,
    List,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Verify, Self::Get, Self::List];

    const fn name(self) -> &'static str {
        match self {
            Self::Verify => "verify",
            Self::Get => "get",
            Self::List => "list of 100",
        }
    }
}

/// The windows of one kind of request at each registry.
type Windows = [Vec<Window>; 2];

pub async fn run(start: &Start, cores: Cores, size: Size) -> Result<bool> {
    let mut registries = Vec::new();
    for (name, tools) in [("small", size.small), ("large", size.tools)] {
        let start = Start { dir: start.dir.join(name), ..start.clone() };
        registries.push(Registry::filled(&start, cores.node_core, tools, size.small).await?);
    }
    let duration = Duration::from_secs(size.seconds);
    let mut report = Report::new("Tools");
    report.line(
        "Two nodes share one core and take turns, the generator has another; requests are about tools at\n\
         random. Rates are per second, times in milliseconds; each figure is the median of the rounds.\n",
    );

    let mut closed: [Windows; 3] = Default::default();
    for round in 0..ROUNDS {
        for (kind, windows) in Kind::ALL.into_iter().zip(&mut closed) {
            for index in turns(round) {
                let registry = &registries[index];
                let write = registry.write(kind).await?;
                let place = (&registry.node, &registry.target);
                windows[index].push(Window::closed(place, &write, 200, CONNECTIONS, duration).await?);
            }
        }
    }
    let mut open: [Windows; 3] = Default::default();
    for round in 0..ROUNDS {
        for ((kind, windows), closed) in Kind::ALL.into_iter().zip(&mut open).zip(&closed) {
            let peaks = closed.each_ref().map(|windows| median(windows, Window::per_sec));
            let rate = LATENCY_LOAD * peaks[0].min(peaks[1]);
            for index in turns(round) {
                let registry = &registries[index];
                let write = registry.write(kind).await?;
                let place = (&registry.node, &registry.target);
                windows[index].push(Window::open(place, &write, rate, CONNECTIONS, duration).await?);
            }
        }
    }

    let numbers = [size.small, size.tools];
    write_rates(&mut report, numbers, &closed);
    write_latencies(&mut report, numbers, &open);
    write_ratios(&mut report, &closed, &open);
    for registry in &mut registries {
        registry.node.until_quiet().await?;
        registry.report_memory("memory after the measurements, MiB", "its highest then, MiB")?;
        registry.node.still_runs()?;
    }
    write_registries(&mut report, &registries);
    report.fail(closed.iter().chain(&open).flatten().flatten().map(Window::wrong).sum());
    report.finish(start.output.as_deref())
}

/// The order alternates from round to round.
const fn turns(round: usize) -> [usize; 2] {
    if round.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

impl Registry {
    /// A new node with `tools` tools. Its memory is reported at `small` tools too.
    async fn filled(start: &Start, core: usize, tools: u64, small: u64) -> Result<Self> {
        let node = start.node(Some(core)).await?;
        drop(node.mint().await?);
        let target = node.target("gateway")?;
        let mut registry = Self { node, target, tools, draws: Draws::default(), told: Vec::new() };
        registry.told.push(("memory without tools, MiB", mib(registry.node.memory_kib()?.0)));
        let first = small.min(tools);
        let mut elapsed = registry::register(&registry.target, 0, first).await?;
        registry.node.until_quiet().await?;
        let label = "memory with the first of them, MiB";
        registry.told.push((label, format!("{} ({first})", mib(registry.node.memory_kib()?.0))));
        elapsed += registry::register(&registry.target, first, tools).await?;
        let rate = as_f64(tools) / elapsed.as_secs_f64();
        registry.told.push(("registered in a second", format!("{rate:.0}")));
        let quiet = registry.node.until_quiet().await?;
        registry.told.push(("quiet after, s", format!("{:.0}", quiet.as_secs_f64())));
        registry.report_memory("memory with all, MiB", "its highest until then, MiB")?;
        let data = registry.node.data_bytes()? / 1024;
        registry.told.push(("data directory, MiB", mib(data)));
        registry.node.reset_peak();
        Ok(registry)
    }

    fn report_memory(&mut self, now: &'static str, highest: &'static str) -> Result<()> {
        let (memory, peak) = self.node.memory_kib()?;
        self.told.push((now, mib(memory)));
        self.told.push((highest, mib(peak)));
        Ok(())
    }

    /// Requests of one kind, with new tokens, which live for minutes.
    async fn write(&self, kind: Kind) -> Result<Write> {
        let (draws, host, tools) = (&self.draws, &self.target.host, self.tools);
        Ok(match kind {
            Kind::Verify => {
                let tokens = Arc::new(self.node.tokens(TOKENS).await?);
                registry::verify(draws, host, tools, tokens)
            }
            Kind::Get => registry::get(draws, host, tools),
            Kind::List => registry::list(draws, host, tools),
        })
    }
}

fn write_rates(report: &mut Report, numbers: [u64; 2], closed: &[Windows; 3]) {
    report.table(&[
        "closed loop",
        "tools",
        "answers",
        "of each round",
        "p50",
        "p99",
        "node, µs each",
        "node busy",
        "generator busy",
        "other answers",
    ]);
    for (kind, windows) in Kind::ALL.into_iter().zip(closed) {
        for (tools, windows) in numbers.into_iter().zip(windows) {
            let rounds: Vec<_> = windows.iter().map(|window| format!("{:.0}", window.per_sec())).collect();
            report.row(&[
                kind.name().to_owned(),
                tools.to_string(),
                format!("{:.0}", median(windows, Window::per_sec)),
                rounds.join(", "),
                ms(median(windows, |window| window.ms(0.5))),
                ms(median(windows, |window| window.ms(0.99))),
                format!("{:.1}", median(windows, Window::micros_each)),
                format!("{:.0} %", median(windows, Window::node_percent)),
                format!("{:.0} %", median(windows, Window::own_percent)),
                others(windows),
            ]);
        }
    }
}

fn write_latencies(report: &mut Report, numbers: [u64; 2], open: &[Windows; 3]) {
    report.line("");
    report.table(&[
        "open loop",
        "tools",
        "due",
        "answered",
        "p50",
        "p99",
        "p99 of each round",
        "other answers",
    ]);
    for (kind, windows) in Kind::ALL.into_iter().zip(open) {
        for (tools, windows) in numbers.into_iter().zip(windows) {
            let due = windows.first().map_or(0.0, |window| window.rate);
            let rounds: Vec<_> = windows.iter().map(|window| ms(window.ms(0.99))).collect();
            report.row(&[
                kind.name().to_owned(),
                tools.to_string(),
                format!("{due:.0}"),
                format!("{:.0}", median(windows, Window::per_sec)),
                ms(median(windows, |window| window.ms(0.5))),
                ms(median(windows, |window| window.ms(0.99))),
                rounds.join(", "),
                others(windows),
            ]);
        }
    }
}

fn write_ratios(report: &mut Report, closed: &[Windows; 3], open: &[Windows; 3]) {
    report.line("");
    report.table(&[
        "large beside small",
        "rate",
        "node, µs each",
        "p50 of the open loop",
        "p99 of the open loop",
    ]);
    let ratio = |[small, large]: &Windows, of: &dyn Fn(&Window) -> f64| {
        format!("{:.2}", median(large, of) / median(small, of).max(f64::MIN_POSITIVE))
    };
    for ((kind, closed), open) in Kind::ALL.into_iter().zip(closed).zip(open) {
        report.row(&[
            kind.name().to_owned(),
            ratio(closed, &Window::per_sec),
            ratio(closed, &Window::micros_each),
            ratio(open, &|window| window.ms(0.5)),
            ratio(open, &|window| window.ms(0.99)),
        ]);
    }
}

fn write_registries(report: &mut Report, registries: &[Registry]) {
    report.line("");
    let numbers: Vec<_> = registries.iter().map(|registry| format!("{} tools", registry.tools)).collect();
    report.table(&["the node", numbers[0].as_str(), numbers[1].as_str()]);
    for (small, large) in registries[0].told.iter().zip(&registries[1].told) {
        report.row(&[small.0, small.1.as_str(), large.1.as_str()]);
    }
}

/// Number of responses other than 200 in all windows.
fn others(windows: &[Window]) -> String {
    windows.iter().map(|window| window.tally.total() - window.tally.count(200)).sum::<u64>().to_string()
}
