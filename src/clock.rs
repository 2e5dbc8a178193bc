//! The only reader of time. All other code takes a [`Clock`] or an instant as an argument.
//!
//! There are two kinds of time: wall time for claims ([`Clock::now`]), and time since boot, suspension included,
//! for waits and deadlines ([`Clock::boot`]). Tests advance a manual clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::ClockId;

/// An instant of wall time, in milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Converts milliseconds since the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Converts a NumericDate in whole seconds (RFC 7519 §2).
    #[must_use]
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    #[must_use]
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// NumericDate in whole seconds, rounded down (RFC 7519 §2).
    #[must_use]
    pub const fn secs(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// RFC 3339 in UTC with milliseconds, for resources (contract §1, Times).
    #[must_use]
    pub fn to_rfc3339(self) -> String {
        let instant = chrono::DateTime::from_timestamp_millis(self.0).unwrap_or_default();
        instant.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
    }

    /// Parses RFC 3339 with any offset, rounded down to milliseconds. `None` if the text is invalid or the year does
    /// not have four digits.
    #[must_use]
    pub fn from_rfc3339(text: &str) -> Option<Self> {
        let instant = chrono::DateTime::parse_from_rfc3339(text).ok()?;
        let instant = Self(instant.timestamp_millis());
        (instant.to_rfc3339().len() == "2026-11-20T08:00:00.000Z".len()).then_some(instant)
    }

    /// This instant later by `duration`.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis_of(duration)))
    }

    /// This instant earlier by `duration`.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(millis_of(duration)))
    }

    /// Absolute difference between two instants.
    #[must_use]
    pub fn distance(self, other: Self) -> Duration {
        Duration::from_millis(self.0.abs_diff(other.0))
    }

    /// Time from `earlier` to this instant; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

fn millis_of(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Source of time: the machine's clocks, or a manual clock in tests.
#[derive(Clone, Debug)]
pub struct Clock {
    source: Source,
    /// Offset of wall time in milliseconds ([`Clock::shift`]).
    shifted: Arc<AtomicI64>,
    /// Offset of the time since boot in milliseconds ([`Clock::skip`]).
    skipped: Arc<AtomicU64>,
}

#[derive(Clone, Debug)]
enum Source {
    System,
    Manual(Arc<AtomicI64>),
}

impl Clock {
    /// The machine's clocks.
    #[must_use]
    pub fn system() -> Self {
        Self::of(Source::System)
    }

    /// A clock that changes only by [`Clock::advance`].
    #[must_use]
    pub fn manual(start: Timestamp) -> Self {
        Self::of(Source::Manual(Arc::new(AtomicI64::new(start.millis()))))
    }

    fn of(source: Source) -> Self {
        Self { source, shifted: Arc::default(), skipped: Arc::default() }
    }

    /// Advances a manual clock; has no effect on a system clock.
    pub fn advance(&self, duration: Duration) {
        if let Source::Manual(millis) = &self.source {
            millis.fetch_add(millis_of(duration), Ordering::SeqCst);
        }
    }

    /// Shifts the wall time of this clock and its clones; time since boot is unaffected. For tests within the
    /// process; tests of the binary replace `clock_gettime`.
    pub fn shift(&self, millis: i64) {
        self.shifted.fetch_add(millis, Ordering::SeqCst);
    }

    /// Advances the time since boot of this clock and its clones; wall time is unaffected. For tests within the process.
    pub fn skip(&self, duration: Duration) {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.skipped.fetch_add(millis, Ordering::SeqCst);
    }

    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    pub fn now(&self) -> Timestamp {
        let millis = match &self.source {
            Source::Manual(millis) => millis.load(Ordering::SeqCst),
            Source::System => {
                let since_epoch =
                    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                millis_of(since_epoch)
            }
        };
        Timestamp(millis.saturating_add(self.shifted.load(Ordering::SeqCst)))
    }

    /// Time since boot, suspension included (`CLOCK_BOOTTIME`).
    #[must_use]
    pub fn boot(&self) -> Duration {
        let since_boot = match &self.source {
            Source::Manual(millis) => {
                Duration::from_millis(u64::try_from(millis.load(Ordering::SeqCst)).unwrap_or(0))
            }
            Source::System => machine_time(ClockId::Boottime),
        };
        since_boot + Duration::from_millis(self.skipped.load(Ordering::Relaxed))
    }

    /// Wall time minus time since boot, in milliseconds. A manual clock that advances meanwhile does not change it.
    #[must_use]
    pub fn wall_minus_boot_millis(&self) -> i64 {
        match &self.source {
            Source::Manual(_) => self.shifted.load(Ordering::SeqCst),
            Source::System => {
                let boot = millis_of(self.boot());
                self.now().millis().saturating_sub(boot)
            }
        }
    }
}

/// Processor time that the calling thread has used (`CLOCK_THREAD_CPUTIME_ID`).
#[must_use]
pub fn thread_cpu() -> Duration {
    machine_time(ClockId::ThreadCPUTime)
}

fn machine_time(id: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(id);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_clock_keeps_wall_and_boot_together_while_it_advances() {
        let clock = Clock::manual(Timestamp::from_secs(100));
        std::thread::scope(|scope| {
            scope.spawn(|| (0..100_000).for_each(|_| clock.advance(Duration::from_secs(1))));
            assert!((0..100_000).all(|_| clock.wall_minus_boot_millis() == 0));
        });
        clock.shift(-7);
        assert_eq!(clock.wall_minus_boot_millis(), -7);
    }

    #[test]
    fn seconds_round_down_also_before_the_epoch() {
        assert_eq!(Timestamp::from_millis(1_999).secs(), 1);
        assert_eq!(Timestamp::from_millis(-1).secs(), -1);
    }

    #[test]
    fn time_parses_from_rfc_3339_only() {
        let written = Timestamp::from_millis(1_790_000_000_123).to_rfc3339();
        assert_eq!(Timestamp::from_rfc3339(&written), Some(Timestamp::from_millis(1_790_000_000_123)));
        let elsewhere = Timestamp::from_rfc3339("1970-01-01T02:00:00+02:00");
        assert_eq!(elsewhere, Some(Timestamp::from_secs(0)));
        for text in ["", "1", "2026-11-20", "2026-11-20T08:00:00", "9999-12-31T23:59:59-01:00", "yesterday"] {
            assert_eq!(Timestamp::from_rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn manual_clock_changes_only_by_advance() {
        let clock = Clock::manual(Timestamp::from_secs(100));
        let seen_elsewhere = clock.clone();
        clock.advance(Duration::from_secs(5));
        assert_eq!(seen_elsewhere.now(), Timestamp::from_secs(105));
    }

    #[test]
    fn shift_changes_wall_time_and_not_boot_time() {
        let clock = Clock::manual(Timestamp::from_secs(100));
        clock.clone().shift(-7_000);
        assert_eq!((clock.now(), clock.boot()), (Timestamp::from_secs(93), Duration::from_secs(100)));
    }

    #[test]
    fn time_since_a_later_instant_is_zero() {
        assert_eq!(Timestamp::from_secs(1).since(Timestamp::from_secs(2)), Duration::ZERO);
    }
}
