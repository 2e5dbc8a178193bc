//! Timers of a worker.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use super::Work;

/// Backoff: no push until it ends.
pub struct BackoffTimer {
    pub sleep: Pin<Box<Sleep>>,
    /// Whether the receiver requested it.
    pub is_requested: bool,
}

/// Timer of the next proposal.
pub struct ProposalTimer {
    pub sleep: Pin<Box<Sleep>>,
    /// The last proposal failed: accumulated events do not bring the next one forward.
    pub is_retry: bool,
}

impl ProposalTimer {
    pub fn after(wait: Duration, is_retry: bool) -> Self {
        Self { sleep: Box::pin(sleep(wait)), is_retry }
    }
}

/// Completes with the timer; never without one.
pub async fn elapsed(sleep: Option<&mut Pin<Box<Sleep>>>) {
    match sleep {
        Some(sleep) => sleep.await,
        None => std::future::pending().await,
    }
}

/// Completes with the work; never without any.
pub async fn finished<T>(work: &mut Option<Work<T>>) -> T {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}
