//! One measurement of one system: its responses, the processor time of its processes, and their memory.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use crate::chart::escaped;
use crate::cpu::{Counters, Group, Usage};
use crate::load::{Tally, as_f64, quantile_ms};
use crate::node::{cpu_secs, memory_kib};
use crate::report::Report;

/// Quantiles of latency, with their names.
pub const QUANTILES: [(f64, &str); 3] = [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")];

/// A measurement that has begun.
pub struct Meter<'p> {
    pids: &'p [u32],
    before: Counters,
    own_secs: f64,
}

impl<'p> Meter<'p> {
    pub fn start(pids: &'p [u32]) -> Result<Self> {
        Ok(Self { pids, before: Counters::now(pids)?, own_secs: cpu_secs("self")? })
    }

    pub fn read(self, tally: Tally, expected: u16) -> Result<Reading> {
        let usage = Counters::now(self.pids)?.since(&self.before);
        let own_secs = cpu_secs("self")? - self.own_secs;
        let mut rss_kib = 0;
        for pid in self.pids {
            rss_kib += memory_kib(*pid)?.0;
        }
        Ok(Reading { tally, expected, usage, own_secs, rss_kib })
    }
}

pub struct Reading {
    pub tally: Tally,
    pub expected: u16,
    pub usage: Usage,
    /// Processor time of the generator.
    pub own_secs: f64,
    /// Resident memory of all processes.
    pub rss_kib: u64,
}

impl Reading {
    /// Good responses per second.
    pub fn per_sec(&self) -> f64 {
        self.tally.per_sec(self.expected)
    }

    /// Processor time for each good response, in microseconds.
    pub fn micros(&self) -> f64 {
        self.each(self.usage.all())
    }

    pub fn micros_of(&self, group: Group) -> f64 {
        self.each(self.usage.of(group))
    }

    /// Processor time of the generator for each good response, in microseconds.
    pub fn own_micros(&self) -> f64 {
        self.each(self.own_secs)
    }

    fn each(&self, secs: f64) -> f64 {
        1e6 * secs / as_f64(self.tally.count(self.expected).max(1))
    }

    /// Since sending, which is the due time in closed loop.
    pub fn ms(&self, quantile: f64) -> f64 {
        quantile_ms(self.tally.since_due.get(&self.expected), quantile)
    }

    /// Usage of the generator, in percent of one core.
    pub fn busy_percent(&self) -> f64 {
        100.0 * self.own_secs / self.tally.elapsed.as_secs_f64()
    }

    pub fn json(&self) -> Value {
        let groups = Group::ALL.map(|group| (group.name().to_owned(), json!(rounded(self.micros_of(group)))));
        let quantiles = QUANTILES.map(|(at, name)| (name.to_owned(), json!(self.ms(at))));
        json!({
            "per_second": rounded(self.per_sec()),
            "cpu_micros": rounded(self.micros()),
            "cpu_micros_by_thread": groups.into_iter().collect::<Map<_, _>>(),
            "latency_ms": quantiles.into_iter().collect::<Map<_, _>>(),
            "memory_kib": self.rss_kib,
            "generator_cpu_micros": rounded(self.own_micros()),
            "answers": self.tally.statuses(),
        })
    }
}

/// With two decimals.
fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// A table for Markdown and HTML.
pub struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<T: AsRef<str>>(columns: &[T]) -> Self {
        Self { columns: columns.iter().map(|name| name.as_ref().to_owned()).collect(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub fn print(&self, report: &mut Report) {
        report.line("");
        report.table(&self.columns.iter().map(String::as_str).collect::<Vec<_>>());
        for row in &self.rows {
            report.row(row);
        }
    }

    pub fn html(&self) -> String {
        let line = |cells: &[String], cell: &str| {
            let cells = cells.iter().fold(String::new(), |mut line, text| {
                // Writing to a string does not fail.
                let _ = write!(line, "<{cell}>{}</{cell}>", escaped(text));
                line
            });
            format!("<tr>{cells}</tr>")
        };
        let rows: String = self.rows.iter().map(|row| line(row, "td")).collect();
        format!("<table>{}{rows}</table>", line(&self.columns, "th"))
    }
}

/// Files for the results.
#[derive(clap::Args, Clone, Default)]
pub struct Files {
    /// Also write every measurement to this file, as JSON
    #[arg(long)]
    pub json: Option<std::path::PathBuf>,
    /// Also write a page with curves to this file
    #[arg(long)]
    pub html: Option<std::path::PathBuf>,
}

impl Files {
    pub fn write(&self, json: &Value, html: impl FnOnce() -> String) -> Result<()> {
        let write = |path: &Path, text: String| {
            std::fs::write(path, text).with_context(|| path.display().to_string())
        };
        if let Some(path) = &self.json {
            write(path, format!("{json:#}\n"))?;
        }
        if let Some(path) = &self.html {
            write(path, html())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn usage_is_divided_by_the_good_responses_only() {
        let own = [std::process::id()];
        let mut tally = Tally::new();
        let now = Instant::now();
        for status in [201, 201, 503, 0] {
            tally.record(status, now, now);
        }
        tally.elapsed = Duration::from_secs(2);
        let reading = Meter::start(&own).expect("counters").read(tally, 201).expect("counters");
        assert!((reading.per_sec() - 1.0).abs() < 1e-9);
        assert!((reading.micros() - 1e6 * reading.usage.all() / 2.0).abs() < 1e-6);
        let json = reading.json();
        assert_eq!(json["answers"], "no answer: 1, 201: 2, 503: 1");
        assert!(json["memory_kib"].as_u64().expect("a number") > 0);
        assert!(
            json["latency_ms"]["p99.9"].is_number() && json["cpu_micros_by_thread"]["RocksDB"].is_number()
        );
    }

    #[test]
    fn tables_contain_text_as_text() {
        let mut table = Table::new(&["a", "b"]);
        table.row(vec!["1 < 2".to_owned(), "3".to_owned()]);
        assert_eq!(
            table.html(),
            "<table><tr><th>a</th><th>b</th></tr><tr><td>1 &lt; 2</td><td>3</td></tr></table>"
        );
    }
}
