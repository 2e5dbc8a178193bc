//! Log lines about a peer or a disk that fails repeatedly: the first failure at once, then one line with the
//! count per [`limits::FAILURE_LOG_INTERVAL`], and one line at recovery.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::limits;

/// Failures of one action, by peer or disk.
pub struct FailureLog<K> {
    clock: Clock,
    /// A noun phrase, for example `log replication`.
    action: &'static str,
    failing: Mutex<BTreeMap<K, Failing>>,
}

/// A peer or a disk that fails.
struct Failing {
    total: u64,
    /// Failures after the last line.
    unreported: u64,
    reported_at: Duration,
}

impl<K: Ord + Clone + Display> FailureLog<K> {
    /// Constructs a log without failures.
    #[must_use]
    pub fn new(clock: Clock, action: &'static str) -> Self {
        Self { clock, action, failing: Mutex::default() }
    }

    /// Records a failure, and logs it unless a line about the same peer or disk is recent.
    pub fn failed(&self, of: &K, cause: &dyn Display) {
        if let Some(count) = self.count(of) {
            tracing::warn!(%of, %cause, count, "{} failed", self.action);
        }
    }

    /// Records a success, and logs it if it follows failures.
    pub fn succeeded(&self, of: &K) {
        let recovered = self.failing.lock().remove(of);
        if let Some(Failing { total, .. }) = recovered {
            tracing::info!(%of, failures = total, "{} has recovered", self.action);
        }
    }

    /// Counts a failure. Returns the number of failures since the last line, if a line is due.
    fn count(&self, of: &K) -> Option<u64> {
        let now = self.clock.boot();
        let mut failing = self.failing.lock();
        if let Some(known) = failing.get_mut(of) {
            known.total += 1;
            known.unreported += 1;
            if now.saturating_sub(known.reported_at) < limits::FAILURE_LOG_INTERVAL {
                return None;
            }
            known.reported_at = now;
            return Some(std::mem::take(&mut known.unreported));
        }
        if failing.len() >= limits::FAILURE_LOG_KEYS_MAX {
            let oldest =
                failing.iter().min_by_key(|(_, known)| known.reported_at).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| failing.remove(&oldest));
        }
        failing.insert(of.clone(), Failing { total: 1, unreported: 0, reported_at: now });
        Some(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    fn failures() -> (Clock, FailureLog<u64>) {
        let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
        (clock.clone(), FailureLog::new(clock, "log replication"))
    }

    #[test]
    fn repeated_failures_are_counted_in_one_line_per_interval() {
        let (clock, failures) = failures();
        assert_eq!(failures.count(&1), Some(1));
        for _ in 0..551 {
            assert_eq!(failures.count(&1), None);
        }
        assert_eq!(failures.count(&2), Some(1), "another peer has its own line");
        clock.advance(limits::FAILURE_LOG_INTERVAL);
        assert_eq!(failures.count(&1), Some(552));
        assert_eq!(failures.count(&1), None);
    }

    #[test]
    fn failure_after_recovery_is_logged_at_once() {
        let (_, failures) = failures();
        assert_eq!((failures.count(&1), failures.count(&1)), (Some(1), None));
        failures.succeeded(&1);
        assert!(failures.failing.lock().is_empty());
        assert_eq!(failures.count(&1), Some(1));
    }

    #[test]
    fn keys_beyond_the_limit_replace_the_oldest() {
        let (clock, failures) = failures();
        for key in 0..=limits::FAILURE_LOG_KEYS_MAX as u64 {
            assert_eq!(failures.count(&key), Some(1));
            clock.advance(Duration::from_millis(1));
        }
        assert_eq!(failures.failing.lock().len(), limits::FAILURE_LOG_KEYS_MAX);
        assert!(!failures.failing.lock().contains_key(&0));
    }
}
