//! One measurement of load: its responses, and the usage of the node and the generator.

use std::time::Duration;

use anyhow::Result;

use crate::load::{self, Tally, Write, as_f64, quantile_ms};
use crate::node::{Node, cpu_secs};
use crate::wire::Target;

/// Orderly refusals of an overloaded node.
const NOT_NOW: [u16; 2] = [429, 503];

pub struct Window {
    pub tally: Tally,
    /// The expected status.
    pub expected: u16,
    /// Requests due per second; 0 in closed loop.
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

    /// Open loop with `rate` per second over at most `connections` for `duration`. Expects 200.
    pub async fn open(
        (node, target): (&Node, &Target),
        write: &Write,
        rate: f64,
        connections: usize,
        duration: Duration,
    ) -> Result<Self> {
        Self::open_expecting((node, target), write, 200, rate, connections, duration).await
    }

    /// The same with another expected status.
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

    /// Expected answers per second.
    pub fn per_sec(&self) -> f64 {
        self.tally.per_sec(self.expected)
    }

    /// A quantile of the latency of expected responses since their due time, in milliseconds.
    pub fn ms(&self, quantile: f64) -> f64 {
        quantile_ms(self.tally.since_due.get(&self.expected), quantile)
    }

    /// Processor time of the node per request, in microseconds.
    pub fn micros_each(&self) -> f64 {
        1e6 * self.node_cpu_secs / as_f64(self.tally.total().max(1))
    }

    /// Usage of the node, in percent of one core.
    pub fn node_percent(&self) -> f64 {
        100.0 * self.node_cpu_secs / self.tally.elapsed.as_secs_f64()
    }

    /// Usage of the generator, in percent of one core.
    pub fn own_percent(&self) -> f64 {
        100.0 * self.own_cpu_secs / self.tally.elapsed.as_secs_f64()
    }

    /// Responses that are neither expected nor an orderly refusal.
    pub fn wrong(&self) -> u64 {
        let refused: u64 = NOT_NOW.into_iter().map(|status| self.tally.count(status)).sum();
        self.tally.total() - self.tally.count(self.expected) - refused
    }
}

/// The median of `of` over the windows; 0 for none.
pub fn median(windows: &[Window], of: impl Fn(&Window) -> f64) -> f64 {
    middle(windows.iter().map(of).collect())
}

/// The median, of an even number the mean of the two in the middle; 0 for none.
pub fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = |number: usize| values.get(number).copied().unwrap_or_default();
    let half = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(at(half.saturating_sub(1)), at(half))
    } else {
        at(half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_or_the_mean_of_two() {
        for (values, median) in
            [(vec![], 0.0), (vec![5.0], 5.0), (vec![3.0, 1.0], 2.0), (vec![9.0, 1.0, 4.0], 4.0)]
        {
            assert!((middle(values) - median).abs() < f64::EPSILON);
        }
    }
}
