//! When to refuse work so that the work that was taken gets done: a limit on requests under way, and
//! one on how long a task that is ready waits for its turn. Health routes are never refused here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::error::Error;
use crate::clock::Clock;
use crate::limits;

/// How much is under way on this node. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Pressure(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    requests: AtomicUsize,
    delay_micros: AtomicU64,
}

/// A request that was let in; dropping it makes its place free.
#[derive(Debug)]
pub struct Admitted(Arc<Counts>);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pressure {
    /// Lets a request in.
    ///
    /// # Errors
    /// 503 if too many are under way, or what is ready waits too long already.
    pub fn admit(&self) -> Result<Admitted, Error> {
        let delay = Duration::from_micros(self.0.delay_micros.load(Ordering::Relaxed));
        let admitted = self.enter();
        if delay > limits::OVERLOAD_DELAY || self.0.requests.load(Ordering::Relaxed) > limits::REQUESTS_MAX {
            return Err(Error::unavailable("overloaded, try again soon"));
        }
        Ok(admitted)
    }

    /// Counts a request that is never refused.
    #[must_use]
    pub fn enter(&self) -> Admitted {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        Admitted(Arc::clone(&self.0))
    }

    /// Measures, for as long as it is polled, how long a task that is ready waits for its turn: by
    /// how much a short sleep is late.
    pub async fn measure(self, clock: Clock) {
        loop {
            let before = clock.boot();
            tokio::time::sleep(limits::OVERLOAD_PULSE).await;
            let late = clock.boot().saturating_sub(before).saturating_sub(limits::OVERLOAD_PULSE);
            let micros = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
            self.0.delay_micros.store(micros, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_limit_a_request_is_refused_and_an_ended_one_makes_room() {
        let pressure = Pressure::default();
        let mut admitted: Vec<_> =
            (0..limits::REQUESTS_MAX).map(|_| pressure.admit().expect("room")).collect();
        assert!(pressure.admit().is_err());
        // Health has no limit of its own to run into.
        drop(pressure.enter());
        admitted.pop();
        assert!(pressure.admit().is_ok());
    }

    #[test]
    fn work_that_waits_too_long_refuses_more_work() {
        let pressure = Pressure::default();
        let micros = u64::try_from(limits::OVERLOAD_DELAY.as_micros()).expect("short");
        pressure.0.delay_micros.store(micros, Ordering::Relaxed);
        assert!(pressure.admit().is_ok());
        pressure.0.delay_micros.store(micros + 1, Ordering::Relaxed);
        assert!(pressure.admit().is_err());
    }
}
