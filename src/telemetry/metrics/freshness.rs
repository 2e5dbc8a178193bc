//! Metrics of the freshness lease and of the barrier.
//!
//! The core counts by itself. A scrape brings the counters up to date, also when two scrapes meet.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::IntCounter;

use super::Metrics;

/// Counts as of the last scrape.
#[derive(Debug, Default)]
pub struct Known {
    waits: AtomicU64,
    refused: AtomicU64,
    confirmed: AtomicU64,
    unconfirmed: AtomicU64,
}

fn catch_up(counter: &IntCounter, known: &AtomicU64, counted: u64) {
    let known = known.fetch_max(counted, Ordering::Relaxed);
    counter.inc_by(counted.saturating_sub(known));
}

impl Metrics {
    /// Whether the freshness lease is held, how many requests ever waited for one, and how many of them were
    /// refused.
    pub fn set_freshness(&self, is_held: bool, waits: u64, refused: u64) {
        self.freshness_lease_held.set(i64::from(is_held));
        catch_up(&self.freshness_waits, &self.freshness_known.waits, waits);
        catch_up(&self.freshness_refused, &self.freshness_known.refused, refused);
    }

    /// How many acknowledgements ever waited for the barrier and were confirmed, and how many were not.
    pub fn set_acknowledgements(&self, confirmed: u64, unconfirmed: u64) {
        for (result, known, counted) in [
            ("confirmed", &self.freshness_known.confirmed, confirmed),
            ("unconfirmed", &self.freshness_known.unconfirmed, unconfirmed),
        ] {
            catch_up(&self.acknowledgements.with_label_values(&[result]), known, counted);
        }
    }
}
