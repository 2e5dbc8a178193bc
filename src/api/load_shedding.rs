//! Load shedding: under overload new requests are refused so that accepted ones finish. It uses two counts and no
//! clock: requests in flight, and those among them that have not had their first turn. A machine that is slow for
//! another reason sheds nothing. Health routes are exempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::error::Error;
use crate::limits;

/// The load of this node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LoadShedder(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    in_flight: AtomicUsize,
    waiting: AtomicUsize,
    waiting_max: usize,
}

/// One unit of a count, for as long as this lives.
#[derive(Debug)]
struct CountGuard<'c>(&'c AtomicUsize);

impl<'c> CountGuard<'c> {
    /// `None` if the count has reached `most`.
    fn within(count: &'c AtomicUsize, most: usize) -> Option<Self> {
        let counted = Self(count);
        (count.fetch_add(1, Ordering::Relaxed) < most).then_some(counted)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The permit of an admitted request.
#[derive(Debug)]
pub struct Admitted(Arc<Counts>);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LoadShedder {
    /// For a runtime with this many worker threads.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        let waiting_max = limits::REQUESTS_WAITING_PER_WORKER_MAX * workers;
        Self(Arc::new(Counts {
            in_flight: AtomicUsize::default(),
            waiting: AtomicUsize::default(),
            waiting_max,
        }))
    }

    /// Admits a request and waits for its turn after everything that is runnable now. Requests that arrive
    /// during other work are thus seen at once, and the excess is refused before it costs anything.
    ///
    /// # Errors
    /// 503 if too many are in flight or waiting.
    pub async fn admit(&self) -> Result<Admitted, Error> {
        let overloaded = || Error::unavailable("overloaded, try again soon");
        self.0.in_flight.fetch_add(1, Ordering::Relaxed);
        let admitted = Admitted(Arc::clone(&self.0));
        if self.0.in_flight.load(Ordering::Relaxed) > limits::REQUESTS_MAX {
            return Err(overloaded());
        }
        let waiting = CountGuard::within(&self.0.waiting, self.0.waiting_max);
        let waiting = waiting.ok_or_else(overloaded)?;
        tokio::task::yield_now().await;
        drop(waiting);
        Ok(admitted)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::future::join_all;

    use super::*;

    #[tokio::test]
    async fn request_beyond_the_limit_is_refused_until_one_ends() {
        let shedder = LoadShedder::new(2);
        let mut admitted = Vec::new();
        for _ in 0..limits::REQUESTS_MAX {
            admitted.push(shedder.admit().await.expect("room"));
        }
        assert!(shedder.admit().await.is_err());
        admitted.pop();
        assert!(shedder.admit().await.is_ok());
    }

    #[tokio::test]
    async fn requests_beyond_the_waiting_limit_are_refused() {
        let shedder = LoadShedder::new(2);
        let mut waiting: Vec<_> =
            (0..2 * limits::REQUESTS_WAITING_PER_WORKER_MAX).map(|_| Box::pin(shedder.admit())).collect();
        for request in &mut waiting {
            assert!(request.now_or_never().is_none(), "it waits for its turn");
        }
        let refused = shedder.admit().now_or_never().expect("no wait for a refusal");
        assert!(refused.is_err());
        let answered = join_all(waiting).await;
        assert!(answered.iter().all(Result::is_ok), "waiting requests are admitted");
        assert!(shedder.admit().await.is_ok());
    }

    #[tokio::test]
    async fn cancelled_request_leaves_no_count() {
        let shedder = LoadShedder::new(2);
        for _ in 0..2 * limits::REQUESTS_MAX {
            assert!(shedder.admit().now_or_never().is_none());
        }
        assert!(shedder.admit().await.is_ok());
        assert_eq!(shedder.0.in_flight.load(Ordering::Relaxed), 0);
    }
}
