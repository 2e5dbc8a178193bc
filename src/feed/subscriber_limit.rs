//! Limits of concurrent subscribers of the live feed, in all and per caller.

use super::Error;
use crate::limiter::{KeyedLimiter, KeyedPermit, LimitReached};
use crate::limits;
use crate::telemetry::{GaugeGuard, Metrics};

/// Limit of the subscribers of one node. Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub(super) struct SubscriberLimiter(KeyedLimiter<String>);

/// Permit of one subscriber.
#[derive(Debug)]
pub(super) struct SubscriberPermit {
    _permit: KeyedPermit<String>,
    _open: GaugeGuard,
}

impl Default for SubscriberLimiter {
    fn default() -> Self {
        Self(KeyedLimiter::new(limits::FEED_SUBSCRIBERS_PER_CALLER_MAX, limits::FEED_SUBSCRIBERS_MAX))
    }
}

impl SubscriberLimiter {
    pub(super) fn has_subscribers(&self) -> bool {
        self.0.is_used()
    }

    /// A permit for a subscriber with this identity. One without identity counts in the total only: in development
    /// mode that is every caller on this host.
    ///
    /// # Errors
    /// [`Error::TooManySubscribers`] or [`Error::TooManySubscribersOfCaller`].
    pub(super) fn acquire(&self, caller: Option<&str>, metrics: &Metrics) -> Result<SubscriberPermit, Error> {
        let permit = self.0.try_acquire(caller.map(str::to_owned)).map_err(|limit| match limit {
            LimitReached::Total => Error::TooManySubscribers,
            LimitReached::Key => Error::TooManySubscribersOfCaller,
        })?;
        Ok(SubscriberPermit { _permit: permit, _open: metrics.event_reader() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> Metrics {
        Metrics::new().expect("metrics")
    }

    #[test]
    fn subscribers_of_a_node_are_limited() {
        let (limiter, metrics) = (SubscriberLimiter::default(), metrics());
        let acquire = || limiter.acquire(None, &metrics);
        assert!(!limiter.has_subscribers());
        let mut permits: Vec<_> =
            (0..limits::FEED_SUBSCRIBERS_MAX).map(|_| acquire().expect("a permit")).collect();
        assert!(limiter.has_subscribers());
        assert!(matches!(acquire(), Err(Error::TooManySubscribers)));
        assert!(matches!(limiter.acquire(Some("a"), &metrics), Err(Error::TooManySubscribers)));
        let page = metrics.render().expect("page");
        assert!(page.contains(&format!("svc_event_readers {}", limits::FEED_SUBSCRIBERS_MAX)), "{page}");
        permits.pop();
        let next = acquire().expect("released");
        drop((permits, next));
        assert!(!limiter.has_subscribers());
        assert!(metrics.render().expect("page").contains("svc_event_readers 0"));
    }

    #[test]
    fn subscribers_of_one_identity_are_limited() {
        let (limiter, metrics) = (SubscriberLimiter::default(), metrics());
        let acquire = |caller| limiter.acquire(Some(caller), &metrics);
        let mut permits: Vec<_> =
            (0..limits::FEED_SUBSCRIBERS_PER_CALLER_MAX).map(|_| acquire("a").expect("a permit")).collect();
        assert!(matches!(acquire("a"), Err(Error::TooManySubscribersOfCaller)));
        let other = acquire("b").expect("another identity");
        permits.pop();
        permits.push(acquire("a").expect("released"));
        assert!(matches!(acquire("a"), Err(Error::TooManySubscribersOfCaller)));
        drop((permits, other));
        assert_eq!(limiter.0.keys(), 0);
        assert!(!limiter.has_subscribers());
    }
}
