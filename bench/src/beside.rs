//! Measures kinds of requests at a node and, in the same rounds, requests with the same bytes at a floor
//! server.
//!
//! Each round measures each kind at both in closed loop, alternately, and then the latency of both in open
//! loop at the same rate. Rates of two neighbouring measurements on a shared machine differ; processor time
//! per request does not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::chart;
use crate::cpu::Group;
use crate::curves::{Curves, Series};
use crate::floor::Floor;
use crate::load::{self, Tally, Write};
use crate::node::Node;
use crate::oha::Confirmed;
use crate::overload::Cores;
use crate::reading::{Files, Meter, QUANTILES, Reading, Table};
use crate::report::{Report, mib, ms};
use crate::window::middle;
use crate::wire::Target;

/// Fraction of the node's rate at which latency is measured.
const LATENCY_LOAD: f64 = 0.5;
/// Quantiles of the latency curve.
const CURVE: [f64; 9] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999];

#[derive(clap::Args, Clone)]
pub struct Plan {
    #[command(flatten)]
    pub cores: Cores,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    #[command(flatten)]
    pub files: Files,
    /// The load generator oha, which confirms the rate of requests that can be repeated
    #[arg(long, value_name = "PROGRAM")]
    pub oha: Option<std::path::PathBuf>,
}

impl Plan {
    fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Requests in closed loop at no more than this rate, and those in open loop after them.
    pub fn most(&self, per_sec: u32) -> Most {
        let millis = u64::try_from(self.duration().as_millis()).unwrap_or(u64::MAX);
        let closed = millis.saturating_mul(u64::from(per_sec)) / 1000 + 1;
        // Half of the rate, and rounded up.
        Most { closed, open: closed / 2 + 1 }
    }
}

/// Numbers of prepared requests.
#[derive(Clone, Copy)]
pub struct Most {
    pub closed: u64,
    pub open: u64,
}

impl Most {
    pub const UNBOUNDED: Self = Self { closed: u64::MAX, open: 0 };

    pub fn all(self) -> usize {
        usize::try_from(self.closed + self.open).unwrap_or(usize::MAX)
    }
}

/// A kind of request in one round.
pub struct Kind {
    pub name: &'static str,
    pub write: Write,
    /// The path of the floor server, whose requests have the same bytes otherwise.
    pub floor_path: &'static str,
    pub most: Most,
}

/// Both systems, and the results so far.
pub struct Beside<'n> {
    node: &'n Node,
    floor: &'n Floor,
    target: &'n Target,
    connections: usize,
    plan: &'n Plan,
    begun: Instant,
    rounds: Vec<Pair>,
    report: Report,
    /// Tables for the end of the report.
    more: Vec<Table>,
}

/// One kind of request in one round, at both systems.
struct Pair {
    kind: &'static str,
    round: usize,
    /// Since the start of the run.
    at: Duration,
    node: Reading,
    floor: Reading,
    node_open: Reading,
    floor_open: Reading,
}

impl Pair {
    /// In percent.
    fn of_the_floor(&self) -> f64 {
        100.0 * self.floor.micros() / self.node.micros().max(f64::MIN_POSITIVE)
    }
}

const COLUMNS: [&str; 11] = [
    "round",
    "request",
    "node, µs",
    "floor, µs",
    "of the floor",
    "per second",
    "floor",
    "p50",
    "p99",
    "p99.9",
    "generator busy",
];

impl<'n> Beside<'n> {
    pub fn new(
        title: &str,
        (node, target, floor): (&'n Node, &'n Target, &'n Floor),
        connections: usize,
        plan: &'n Plan,
    ) -> Self {
        let mut report = Report::new(title);
        report.line(&format!(
            "Node and floor server have core {} in turns, the generator has core {} for itself; {connections}\n\
             connections over TLS with a client certificate; the log filter is the default. Processor time for each\n\
             request in closed loop; times in milliseconds, at the node, in open loop at half its rate.\n",
            plan.cores.node_core, plan.cores.generator_core
        ));
        if plan.cores.node_core == plan.cores.generator_core {
            report.line("(The generator has no core of its own: rates and latencies include its work.)\n");
        }
        report.table(&COLUMNS);
        Self {
            node,
            floor,
            target,
            connections,
            plan,
            begun: Instant::now(),
            rounds: Vec::new(),
            report,
            more: Vec::new(),
        }
    }

    /// Measures a kind in a round; rounds are numbered from 1.
    pub async fn measure(&mut self, round: usize, kind: &Kind) -> Result<()> {
        let at = self.begun.elapsed();
        let rounds = self.plan.rounds;
        eprintln!("{:4.0} s: round {round} of {rounds}: {}", at.as_secs_f64(), kind.name);
        let floor_write = at_path(&kind.write, kind.floor_path);
        let (node, floor) = if round % 2 == 1 {
            let node = self.closed(true, &kind.write, kind.most).await?;
            (node, self.closed(false, &floor_write, kind.most).await?)
        } else {
            let floor = self.closed(false, &floor_write, kind.most).await?;
            (self.closed(true, &kind.write, kind.most).await?, floor)
        };
        let rate = node.per_sec() * LATENCY_LOAD;
        let first = if kind.most.open == 0 { 0 } else { kind.most.closed };
        let node_open = self.open(true, &from(&kind.write, first), rate).await?;
        let floor_open = self.open(false, &from(&floor_write, first), rate).await?;
        let pair = Pair { kind: kind.name, round, at, node, floor, node_open, floor_open };
        for reading in [&pair.node, &pair.floor, &pair.node_open, &pair.floor_open] {
            self.report.fail(reading.tally.server_errors());
            if reading.tally.total() != reading.tally.count(200) {
                eprintln!("{}: {}", kind.name, reading.tally.statuses());
            }
        }
        let mut cells = vec![round.to_string(), kind.name.to_owned()];
        cells.extend(figures(&[&pair]));
        self.report.row(&cells);
        self.rounds.push(pair);
        Ok(())
    }

    fn side(&self, is_node: bool) -> (u32, &Target) {
        if is_node { (self.node.pid(), self.target) } else { (self.floor.pid(), self.floor.target()) }
    }

    async fn closed(&self, is_node: bool, write: &Write, most: Most) -> Result<Reading> {
        let (pid, target) = self.side(is_node);
        let pids = [pid];
        let opened = load::open(target, self.connections).await?;
        let meter = Meter::start(&pids)?;
        let duration = self.plan.duration();
        let tally = load::closed_loop_over(opened, target, write, duration, most.closed).await?;
        meter.read(tally, 200)
    }

    async fn open(&self, is_node: bool, write: &Write, rate: f64) -> Result<Reading> {
        let (pid, target) = self.side(is_node);
        let pids = [pid];
        let meter = Meter::start(&pids)?;
        let duration = self.plan.duration();
        let tally = load::open_loop(target, write, self.connections, rate, duration).await?;
        meter.read(tally, 200)
    }

    /// Runs another load generator against the node.
    pub async fn confirm(&mut self, by: &Confirmed<'_>, path: &str, request: &[u8]) -> Result<()> {
        eprintln!("{:4.0} s: oha", self.begun.elapsed().as_secs_f64());
        let table = by.run(self.node, path, request).await?;
        self.more.push(table);
        Ok(())
    }

    /// Adds a table to the end of the report.
    pub fn table(&mut self, table: Table) {
        self.more.push(table);
    }

    /// Good answers of the node to the kinds whose names contain a word.
    pub fn answered(&self, word: &str) -> u64 {
        let pairs = self.rounds.iter().filter(|pair| pair.kind.contains(word));
        pairs.flat_map(|pair| [&pair.node, &pair.node_open]).map(|reading| reading.tally.count(200)).sum()
    }

    /// Prints the medians and writes the files.
    pub fn finish(mut self, name: &str, output: Option<&std::path::Path>) -> Result<bool> {
        let mut kinds: Vec<&'static str> = self.rounds.iter().map(|pair| pair.kind).collect();
        kinds.dedup();
        kinds.truncate(kinds.len() / self.plan.rounds.max(1));
        let of = |kind: &str| self.rounds.iter().filter(|pair| pair.kind == kind).collect::<Vec<_>>();
        let mut medians = Table::new(&COLUMNS[1..]);
        let mut columns = vec!["node, µs for each request", "all"];
        columns.extend(Group::ALL.map(Group::name));
        columns.extend(["floor", "MiB of the node", "of the floor"]);
        let mut threads = Table::new(&columns);
        for kind in &kinds {
            let pairs = of(kind);
            medians.row([vec![format!("**{kind}**")], figures(&pairs)].concat());
            threads.row([vec![(*kind).to_owned()], components(&pairs)].concat());
        }
        medians.print(&mut self.report);
        threads.print(&mut self.report);
        for table in &self.more {
            table.print(&mut self.report);
        }
        let json = self.json(name, &kinds);
        let page = || {
            let curves: String = kinds.iter().map(|kind| curves(kind, &of(kind))).collect();
            let more: String = self.more.iter().map(Table::html).collect();
            chart::page(name, &format!("{}{}{more}{curves}", medians.html(), threads.html()))
        };
        self.plan.files.write(&json, page)?;
        self.report.finish(output)
    }

    fn json(&self, name: &str, kinds: &[&str]) -> Value {
        let medians = kinds.iter().map(|kind| {
            let of = |value: fn(&Pair) -> f64| {
                middle(self.rounds.iter().filter(|pair| pair.kind == *kind).map(value).collect())
            };
            let medians = json!({
                "cpu_micros": of(|pair| pair.node.micros()),
                "floor_cpu_micros": of(|pair| pair.floor.micros()),
                "of_the_floor_percent": of(Pair::of_the_floor),
            });
            ((*kind).to_owned(), medians)
        });
        let rounds = self.rounds.iter().map(|pair| {
            json!({
                "round": pair.round,
                "request": pair.kind,
                "at_secs": pair.at.as_secs_f64(),
                "of_the_floor_percent": pair.of_the_floor(),
                "node": pair.node.json(),
                "floor": pair.floor.json(),
                "node_open": pair.node_open.json(),
                "floor_open": pair.floor_open.json(),
            })
        });
        json!({
            "bench": name,
            "seconds": self.plan.seconds,
            "connections": self.connections,
            "node_core": self.plan.cores.node_core,
            "generator_core": self.plan.cores.generator_core,
            "medians": medians.collect::<Map<_, _>>(),
            "rounds": rounds.collect::<Vec<_>>(),
        })
    }
}

/// The medians of some pairs, for all columns after the request.
fn figures(pairs: &[&Pair]) -> Vec<String> {
    let of = |value: &dyn Fn(&Pair) -> f64| middle(pairs.iter().map(|pair| value(pair)).collect());
    let mut cells = vec![
        format!("{:.1}", of(&|pair| pair.node.micros())),
        format!("{:.1}", of(&|pair| pair.floor.micros())),
        format!("{:.0} %", of(&|pair| pair.of_the_floor())),
        format!("{:.0}", of(&|pair| pair.node.per_sec())),
        format!("{:.0}", of(&|pair| pair.floor.per_sec())),
    ];
    cells.extend(QUANTILES.map(|(at, _)| ms(of(&|pair| pair.node_open.ms(at)))));
    cells.push(format!("{:.0} %", of(&|pair| pair.node.busy_percent())));
    cells
}

fn components(pairs: &[&Pair]) -> Vec<String> {
    let of = |value: &dyn Fn(&Pair) -> f64| middle(pairs.iter().map(|pair| value(pair)).collect());
    let mut cells = vec![format!("{:.1}", of(&|pair| pair.node.micros()))];
    cells.extend(Group::ALL.map(|group| format!("{:.1}", of(&|pair| pair.node.micros_of(group)))));
    cells.push(format!("{:.1}", of(&|pair| pair.floor.micros())));
    let last = |reading: fn(&Pair) -> u64| mib(pairs.last().map(|pair| reading(pair)).unwrap_or_default());
    cells.extend([last(|pair| pair.node.rss_kib), last(|pair| pair.floor.rss_kib)]);
    cells
}

/// Processor time over the run, and latency by quantile.
fn curves(kind: &str, pairs: &[&Pair]) -> String {
    let at = |value: fn(&Pair) -> f64, name: &str| Series {
        name: name.to_owned(),
        points: pairs.iter().map(|pair| (pair.at.as_secs_f64(), value(pair))).collect(),
    };
    let marks = pairs.iter().map(|pair| (pair.at.as_secs_f64(), format!("{:.0} s", pair.at.as_secs_f64())));
    let processor = Curves {
        title: &format!("{kind}: processor time for each request, µs, by the time of the run"),
        marks: marks.collect(),
        series: vec![at(|pair| pair.node.micros(), "node"), at(|pair| pair.floor.micros(), "floor")],
    };
    let places = || (0_u32..).map(f64::from).zip(CURVE);
    let latency = |readings: &dyn Fn(&Pair) -> &Reading, name: &str| {
        let all = together(pairs.iter().map(|pair| &readings(pair).tally));
        let points = places().map(|(x, quantile)| (x, load::quantile_ms(all.as_ref(), quantile)));
        Series { name: name.to_owned(), points: points.collect() }
    };
    let latencies = Curves {
        title: &format!("{kind}: latency at half the rate of the node, ms, by quantile"),
        marks: places().map(|(x, quantile)| (x, format!("{} %", 100.0 * quantile))).collect(),
        series: vec![latency(&|pair| &pair.node_open, "node"), latency(&|pair| &pair.floor_open, "floor")],
    };
    format!("<h2>{}</h2>{}{}", chart::escaped(kind), processor.draw(), latencies.draw())
}

fn together<'t>(tallies: impl Iterator<Item = &'t Tally>) -> Option<Histogram<u64>> {
    let mut all = Tally::new();
    for tally in tallies {
        all.add(tally);
    }
    let mut since_due: BTreeMap<_, _> = all.since_due;
    since_due.remove(&200)
}

/// The same requests with another path.
fn at_path(write: &Write, path: &'static str) -> Write {
    let write = Arc::clone(write);
    Arc::new(move |number, request| {
        write(number, request);
        let mut spaces = request.iter().enumerate().filter(|(_, byte)| **byte == b' ').map(|(at, _)| at);
        if let (Some(before), Some(after)) = (spaces.next(), spaces.next()) {
            request.splice(before + 1..after, path.bytes());
        }
    })
}

/// The same requests, numbered from `first`.
fn from(write: &Write, first: u64) -> Write {
    let write = Arc::clone(write);
    Arc::new(move |number, request| write(first + number, request))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_at_the_floor_differ_in_their_path_only() {
        let write: Write = Arc::new(|number, request: &mut Vec<u8>| {
            *request = format!("POST /v1/a/b HTTP/1.1\r\nhost: x\r\n\r\n{number} a b").into_bytes();
        });
        let mut request = Vec::new();
        at_path(&from(&write, 40), "/floor")(2, &mut request);
        assert_eq!(request, b"POST /floor HTTP/1.1\r\nhost: x\r\n\r\n42 a b");
    }
}
