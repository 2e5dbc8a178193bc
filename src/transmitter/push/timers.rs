//! What a worker waits for, if it does.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use super::Work;

/// Nothing is sent until then.
pub struct Cooling {
    /// Until then.
    pub sleep: Pin<Box<Sleep>>,
    /// The receiver asked for it.
    pub is_asked: bool,
}

/// When the next proposal is due.
pub struct Due {
    /// Then.
    pub sleep: Pin<Box<Sleep>>,
    /// However many events come together meanwhile: the last one came to nothing.
    pub is_held: bool,
}

impl Due {
    /// After a wait.
    pub fn after(wait: Duration, is_held: bool) -> Self {
        Self { sleep: Box::pin(sleep(wait)), is_held }
    }
}

/// Ends with the wait; never without one.
pub async fn rested(sleep: Option<&mut Pin<Box<Sleep>>>) {
    match sleep {
        Some(sleep) => sleep.await,
        None => std::future::pending().await,
    }
}

/// Ends with the work; never without any.
pub async fn ended<T>(work: &mut Option<Work<T>>) -> T {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}
