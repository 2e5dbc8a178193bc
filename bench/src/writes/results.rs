//! Results of `bench writes`: a table that grows, medians, JSON, and curves over the number of clients.

use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use super::Plan;
use crate::chart;
use crate::cpu::Group;
use crate::curves::{Curves, Series};
use crate::load::as_f64;
use crate::reading::{QUANTILES, Reading, Table};
use crate::report::{Report, mib, ms};
use crate::window::middle;

const COLUMNS: [&str; 12] = [
    "clients",
    "round",
    "system",
    "writes per second",
    "p50",
    "p99",
    "p99.9",
    "µs for each",
    "generator, µs",
    "MiB",
    "rate beside etcd",
    "processor beside etcd",
];

/// Both systems in one round with one number of clients.
struct Pair {
    round: u64,
    clients: usize,
    ours: Reading,
    etcd: Option<Reading>,
}

pub struct Results {
    begun: Instant,
    rounds: u64,
    pairs: Vec<Pair>,
    report: Report,
}

impl Results {
    pub fn new(plan: &Plan, cores: usize) -> Self {
        let mut report = Report::new("Durable writes beside etcd");
        let generator = if cores > 0 {
            format!("The generator has {cores} of the cores for itself.")
        } else {
            "The generator shares the cores of all members: rates and latencies include its work,\n\
             and that of its gRPC client is larger."
                .to_owned()
        };
        report.line(&format!(
            "Closed loop for {} s; times in milliseconds; processor time of all three members for each write. etcd is\n\
             asked over gRPC, the nodes over HTTP/1.1, both with mutual TLS; {} clients of etcd share a connection.\n\
             {generator}\n",
            plan.seconds, plan.etcd_clients_per_connection
        ));
        report.table(&COLUMNS);
        Self { begun: Instant::now(), rounds: plan.rounds, pairs: Vec::new(), report }
    }

    pub fn progress(&self, round: u64, clients: usize) {
        let secs = self.begun.elapsed().as_secs_f64();
        eprintln!("{secs:4.0} s: round {round} of {}: {clients} clients", self.rounds);
    }

    pub fn add(&mut self, round: u64, clients: usize, ours: Reading, etcd: Option<Reading>) {
        let pair = Pair { round, clients, ours, etcd };
        for row in rows(&round.to_string(), &[&pair]) {
            self.report.row(&row);
        }
        self.report.fail(pair.ours.tally.server_errors());
        for reading in [Some(&pair.ours), pair.etcd.as_ref()].into_iter().flatten() {
            if reading.tally.total() != reading.tally.count(reading.expected) {
                eprintln!("answers by status: {}", reading.tally.statuses());
            }
        }
        self.pairs.push(pair);
    }

    pub fn finish(mut self, plan: &Plan) -> Result<bool> {
        let of =
            |clients: usize| self.pairs.iter().filter(|pair| pair.clients == clients).collect::<Vec<_>>();
        let mut medians = Table::new(&COLUMNS);
        let mut columns = vec!["µs of the nodes for each write, by thread", "all"];
        columns.extend(Group::ALL.map(Group::name));
        let mut threads = Table::new(&columns);
        for &clients in &plan.clients {
            let pairs = of(clients);
            for row in rows("**median**", &pairs) {
                medians.row(row);
            }
            let mut cells = vec![format!("{clients} clients"), micros(&pairs, &|pair| pair.ours.micros())];
            cells.extend(Group::ALL.map(|group| micros(&pairs, &|pair| pair.ours.micros_of(group))));
            threads.row(cells);
        }
        medians.print(&mut self.report);
        threads.print(&mut self.report);
        let page = || {
            let curves = self.curves(&plan.clients);
            chart::page(
                "Durable writes beside etcd",
                &format!("{}{}{curves}", medians.html(), threads.html()),
            )
        };
        plan.files.write(&self.json(plan), page)?;
        self.report.finish(plan.output.as_deref())
    }

    fn json(&self, plan: &Plan) -> Value {
        let rounds = self.pairs.iter().map(|pair| {
            json!({
                "round": pair.round,
                "clients": pair.clients,
                "nodes": pair.ours.json(),
                "etcd": pair.etcd.as_ref().map(Reading::json),
                "rate_beside_etcd": pair.rate(),
                "cpu_beside_etcd": pair.processor(),
            })
        });
        json!({
            "bench": "writes",
            "seconds": plan.seconds,
            "etcd_clients_per_connection": plan.etcd_clients_per_connection,
            "rounds": rounds.collect::<Vec<_>>(),
        })
    }

    fn curves(&self, clients: &[usize]) -> String {
        let place = |clients: usize| as_f64(clients.max(1) as u64).log2();
        let series = |name: &str, value: &dyn Fn(&Reading) -> f64, is_etcd: bool| {
            let points = clients.iter().filter_map(|&count| {
                let pairs = self.pairs.iter().filter(|pair| pair.clients == count);
                let readings =
                    pairs.filter_map(|pair| if is_etcd { pair.etcd.as_ref() } else { Some(&pair.ours) });
                let values: Vec<_> = readings.map(value).collect();
                (!values.is_empty()).then(|| (place(count), middle(values)))
            });
            Series { name: name.to_owned(), points: points.collect() }
        };
        let chart = |title: &str, value: &dyn Fn(&Reading) -> f64| {
            let marks = clients.iter().map(|count| (place(*count), count.to_string())).collect();
            let series = vec![series("nodes", value, false), series("etcd", value, true)];
            Curves { title, marks, series }.draw()
        };
        [
            chart("processor time of all members for each write, µs, by clients", &Reading::micros),
            chart("writes per second, by clients", &Reading::per_sec),
            chart("p50, ms, by clients", &|reading| reading.ms(0.5)),
            chart("p99, ms, by clients", &|reading| reading.ms(0.99)),
        ]
        .concat()
    }
}

impl Pair {
    fn rate(&self) -> Option<f64> {
        Some(self.ours.per_sec() / self.etcd.as_ref()?.per_sec().max(1.0))
    }

    fn processor(&self) -> Option<f64> {
        Some(self.ours.micros() / self.etcd.as_ref()?.micros().max(f64::MIN_POSITIVE))
    }
}

fn micros(pairs: &[&Pair], value: &dyn Fn(&Pair) -> f64) -> String {
    format!("{:.1}", middle(pairs.iter().map(|pair| value(pair)).collect()))
}

/// The medians of some pairs, of each system.
fn rows(round: &str, pairs: &[&Pair]) -> Vec<Vec<String>> {
    let clients = pairs.first().map(|pair| pair.clients).unwrap_or_default();
    let row = |system: &str, readings: Vec<&Reading>| {
        let of =
            |value: &dyn Fn(&Reading) -> f64| middle(readings.iter().map(|reading| value(reading)).collect());
        let mut cells = vec![clients.to_string(), round.to_owned(), system.to_owned()];
        cells.push(format!("{:.0}", of(&Reading::per_sec)));
        cells.extend(QUANTILES.map(|(at, _)| ms(of(&|reading| reading.ms(at)))));
        cells.push(format!("{:.1}", of(&Reading::micros)));
        cells.push(format!("{:.1}", of(&Reading::own_micros)));
        cells.push(mib(readings.last().map(|reading| reading.rss_kib).unwrap_or_default()));
        cells
    };
    let beside = |value: fn(&Pair) -> Option<f64>| {
        let values: Vec<_> = pairs.iter().filter_map(|pair| value(pair)).collect();
        if values.is_empty() { String::new() } else { format!("{:.2} ×", middle(values)) }
    };
    let theirs: Vec<_> = pairs.iter().filter_map(|pair| pair.etcd.as_ref()).collect();
    let mut rows = Vec::new();
    if !theirs.is_empty() {
        rows.push([row("etcd", theirs), vec![String::new(), String::new()]].concat());
    }
    let ours = row("trust-fabric", pairs.iter().map(|pair| &pair.ours).collect());
    rows.push([ours, vec![beside(Pair::rate), beside(Pair::processor)]].concat());
    rows
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::Tally;
    use crate::reading::Meter;

    fn reading(answers: usize, expected: u16) -> Reading {
        let own = [std::process::id()];
        let mut tally = Tally::new();
        for _ in 0..answers {
            tally.record(expected, Instant::now(), Instant::now());
        }
        tally.elapsed = Duration::from_secs(1);
        Meter::start(&own).expect("counters").read(tally, expected).expect("counters")
    }

    #[test]
    fn ratios_are_those_of_one_round_to_etcd() {
        let pair = Pair { round: 1, clients: 64, ours: reading(30, 201), etcd: Some(reading(20, 200)) };
        assert_eq!(pair.rate(), Some(1.5));
        let rows = rows("1", &[&pair]);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows.iter().map(Vec::len).collect::<Vec<_>>(), [COLUMNS.len(); 2]);
        assert_eq!(rows[1][10], "1.50 ×");
    }

    #[test]
    fn without_etcd_there_is_no_ratio() {
        let pair = Pair { round: 1, clients: 1, ours: reading(3, 201), etcd: None };
        let rows = rows("1", &[&pair]);
        assert_eq!((rows.len(), rows[0][10].as_str(), rows[0][11].as_str()), (1, "", ""));
    }
}
