//! Limits of concurrent polls, in all and per caller: a caller with many streams leaves permits to the others.

use super::Error;
use crate::limiter::{KeyedLimiter, KeyedPermit};
use crate::limits;

pub(super) type PollPermit = KeyedPermit<String>;

/// Limits of the polls of one node. A caller without identity counts in the total only: in development mode that is
/// every caller on this host.
pub(super) struct PollLimiter {
    scans: KeyedLimiter<String>,
    waits: KeyedLimiter<String>,
}

impl Default for PollLimiter {
    fn default() -> Self {
        Self {
            scans: KeyedLimiter::new(limits::POLL_SCANS_PER_CALLER_MAX, limits::POLL_SCANS_MAX),
            waits: KeyedLimiter::new(limits::POLLS_WAITING_PER_CALLER_MAX, limits::POLLS_WAITING_MAX),
        }
    }
}

impl PollLimiter {
    /// A permit to scan the outbox and to sign. It waits for one of its caller first, so that only polls of one caller
    /// wait for each other.
    ///
    /// # Errors
    /// [`Error::Busy`] after [`limits::POLL_SCAN_WAIT`].
    pub(super) async fn scan(&self, caller: Option<&str>) -> Result<PollPermit, Error> {
        let permit = self.scans.acquire(caller.map(str::to_owned));
        tokio::time::timeout(limits::POLL_SCAN_WAIT, permit).await.ok().flatten().ok_or(Error::Busy)
    }

    /// A permit to wait for events.
    ///
    /// # Errors
    /// [`Error::Busy`]: an empty response at once would be followed by the next poll at once.
    pub(super) fn wait(&self, caller: Option<&str>) -> Result<PollPermit, Error> {
        self.waits.try_acquire(caller.map(str::to_owned)).map_err(|_| Error::Busy)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn scan_beyond_the_limit_waits_then_is_busy() {
        let limiter = PollLimiter::default();
        let mut scanning = Vec::new();
        for _ in 0..limits::POLL_SCANS_MAX {
            scanning.push(limiter.scan(None).now_or_never().expect("no wait").expect("a permit"));
        }
        let mut waiting = Box::pin(limiter.scan(None));
        assert!((&mut waiting).now_or_never().is_none());
        scanning.pop();
        let taken = waiting.await.expect("the next permit");
        let almost = limits::POLL_SCAN_WAIT.mul_f64(0.999);
        assert!(tokio::time::timeout(almost, limiter.scan(None)).await.is_err(), "it still waits");
        assert!(matches!(limiter.scan(None).await, Err(Error::Busy)));
        drop((taken, scanning));
    }

    #[test]
    fn wait_beyond_the_limit_is_busy() {
        let limiter = PollLimiter::default();
        let mut waiting: Vec<_> =
            (0..limits::POLLS_WAITING_MAX).map(|_| limiter.wait(None).expect("a permit")).collect();
        assert!(matches!(limiter.wait(None), Err(Error::Busy)));
        waiting.pop();
        assert!(limiter.wait(None).is_ok(), "released");
    }

    /// Attack: one caller sends as many polls as there are permits.
    #[tokio::test(start_paused = true)]
    async fn polls_of_one_caller_leave_permits_to_others() {
        let limiter = PollLimiter::default();
        let waiting: Vec<_> =
            (0..limits::POLLS_WAITING_MAX).filter_map(|_| limiter.wait(Some("greedy")).ok()).collect();
        assert_eq!(waiting.len(), limits::POLLS_WAITING_PER_CALLER_MAX);
        let mut scanning = Vec::new();
        for _ in 0..limits::POLLS_WAITING_MAX {
            // Those without a permit wait in order.
            let mut scan = Box::pin(limiter.scan(Some("greedy")));
            scanning.push(((&mut scan).now_or_never(), scan));
        }
        let permitted = scanning.iter().filter(|(permit, _)| permit.is_some()).count();
        assert_eq!(permitted, limits::POLL_SCANS_PER_CALLER_MAX);
        assert!(limiter.wait(Some("other")).is_ok());
        assert!(limiter.scan(Some("other")).now_or_never().is_some_and(|permit| permit.is_ok()));
        drop((scanning, waiting));
        assert_eq!((limiter.scans.keys(), limiter.waits.keys()), (0, 0));
    }
}
