//! One measurement of load: what was answered, and what the node and the generator used for it.

use std::time::Duration;

use anyhow::Result;

use crate::load::{self, Tally, Write, as_f64, quantile_ms};
use crate::node::{Node, cpu_secs};
use crate::wire::Target;

/// Answers that are orderly refusals of a node with too much to do.
const NOT_NOW: [u16; 2] = [429, 503];

/// What was measured.
pub struct Window {
    /// What was answered.
    pub tally: Tally,
    /// The status that a request should have.
    pub expected: u16,
    /// Requests that were due in a second; 0 in closed loop.
    pub rate: f64,
    /// Processor time of the node.
    pub node_cpu_secs: f64,
    /// Processor time of the generator.
    pub own_cpu_secs: f64,
}

impl Window {
    /// Closed loop over `connections` for `duration`.
    pub async fn closed(
        (node, target): (&Node, &Target),
        write: &Write,
        expected: u16,
        connections: usize,
        duration: Duration,
    ) -> Result<Self> {
        let before = (node.cpu_secs()?, cpu_secs("self")?);
        let tally = load::closed_loop(target, write, connections, duration).await?;
        Self::after(node, tally, (expected, 0.0), before)
    }

    /// Open loop with `rate` in a second over at most `connections` for `duration`; answers should be 200.
    pub async fn open(
        (node, target): (&Node, &Target),
        write: &Write,
        rate: f64,
        connections: usize,
        duration: Duration,
    ) -> Result<Self> {
        Self::open_expecting((node, target), write, 200, rate, connections, duration).await
    }

    /// The same where answers should have another status.
    pub async fn open_expecting(
        (node, target): (&Node, &Target),
        write: &Write,
        expected: u16,
        rate: f64,
        connections: usize,
        duration: Duration,
    ) -> Result<Self> {
        let before = (node.cpu_secs()?, cpu_secs("self")?);
        let tally = load::open_loop(target, write, connections, rate, duration).await?;
        Self::after(node, tally, (expected, rate), before)
    }

    fn after(
        node: &Node,
        tally: Tally,
        (expected, rate): (u16, f64),
        (node_before, own_before): (f64, f64),
    ) -> Result<Self> {
        let (node_cpu_secs, own_cpu_secs) = (node.cpu_secs()? - node_before, cpu_secs("self")? - own_before);
        Ok(Self { tally, expected, rate, node_cpu_secs, own_cpu_secs })
    }

    /// Expected answers in a second.
    pub fn per_sec(&self) -> f64 {
        self.tally.per_sec(self.expected)
    }

    /// A quantile of the latency of expected answers since each request was due, in milliseconds.
    pub fn ms(&self, quantile: f64) -> f64 {
        quantile_ms(self.tally.since_due.get(&self.expected), quantile)
    }

    /// Processor time of the node for each request, in microseconds.
    pub fn micros_each(&self) -> f64 {
        1e6 * self.node_cpu_secs / as_f64(self.tally.total().max(1))
    }

    /// How busy the node was, in percent of one core.
    pub fn node_percent(&self) -> f64 {
        100.0 * self.node_cpu_secs / self.tally.elapsed.as_secs_f64()
    }

    /// How busy the generator was, in percent of one core.
    pub fn own_percent(&self) -> f64 {
        100.0 * self.own_cpu_secs / self.tally.elapsed.as_secs_f64()
    }

    /// Answers that are neither what was expected nor an orderly refusal.
    pub fn wrong(&self) -> u64 {
        let refused: u64 = NOT_NOW.into_iter().map(|status| self.tally.count(status)).sum();
        self.tally.total() - self.tally.count(self.expected) - refused
    }
}

/// The middle one of what `of` says of each window; 0 for none.
pub fn median(windows: &[Window], of: impl Fn(&Window) -> f64) -> f64 {
    middle(windows.iter().map(of).collect())
}

/// The middle one; 0 for none.
pub fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
