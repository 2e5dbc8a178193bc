//! When to refuse work so that the work that was taken gets done. Two counts, and no clock: how many
//! requests are under way, and how many of them have not had their first turn yet. A machine that is
//! slow for another reason refuses nobody. Health routes do not come here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::error::Error;
use crate::limits;

/// How much is under way on this node. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Pressure(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    under_way: AtomicUsize,
    waiting: AtomicUsize,
}

/// One more in a count, for as long as this lives.
#[derive(Debug)]
struct Counted<'c>(&'c AtomicUsize);

impl<'c> Counted<'c> {
    /// `None` if there are `most` already.
    fn within(count: &'c AtomicUsize, most: usize) -> Option<Self> {
        let counted = Self(count);
        (count.fetch_add(1, Ordering::Relaxed) < most).then_some(counted)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that was let in; dropping it makes its place free.
#[derive(Debug)]
pub struct Admitted(Arc<Counts>);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pressure {
    /// Lets a request in and waits for its turn, behind everything that is ready now. So requests that
    /// arrive while others are worked on are seen at once, and what is too much is refused before it
    /// costs anything.
    ///
    /// # Errors
    /// 503 if too many are under way or waiting.
    pub async fn admit(&self) -> Result<Admitted, Error> {
        let overloaded = || Error::unavailable("overloaded, try again soon");
        self.0.under_way.fetch_add(1, Ordering::Relaxed);
        let admitted = Admitted(Arc::clone(&self.0));
        if self.0.under_way.load(Ordering::Relaxed) > limits::REQUESTS_MAX {
            return Err(overloaded());
        }
        let waiting = Counted::within(&self.0.waiting, limits::REQUESTS_WAITING_MAX);
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
    async fn beyond_the_limit_a_request_is_refused_and_an_ended_one_makes_room() {
        let pressure = Pressure::default();
        let mut admitted = Vec::new();
        for _ in 0..limits::REQUESTS_MAX {
            admitted.push(pressure.admit().await.expect("room"));
        }
        assert!(pressure.admit().await.is_err());
        admitted.pop();
        assert!(pressure.admit().await.is_ok());
    }

    #[tokio::test]
    async fn requests_that_come_at_once_wait_up_to_a_limit_and_the_rest_is_refused_at_once() {
        let pressure = Pressure::default();
        let mut waiting: Vec<_> =
            (0..limits::REQUESTS_WAITING_MAX).map(|_| Box::pin(pressure.admit())).collect();
        for request in &mut waiting {
            assert!(request.now_or_never().is_none(), "it waits for its turn");
        }
        let refused = pressure.admit().now_or_never().expect("no wait for a refusal");
        assert!(refused.is_err());
        let answered = join_all(waiting).await;
        assert!(answered.iter().all(Result::is_ok), "who waited is let in");
        assert!(pressure.admit().await.is_ok());
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_while_it_waits_leaves_no_trace() {
        let pressure = Pressure::default();
        for _ in 0..2 * limits::REQUESTS_MAX {
            assert!(pressure.admit().now_or_never().is_none());
        }
        assert!(pressure.admit().await.is_ok());
        assert_eq!(pressure.0.under_way.load(Ordering::Relaxed), 0);
    }
}
