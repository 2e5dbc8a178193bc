//! The id of a request, which its error object and its log lines carry.

use std::future::Future;

tokio::task_local! {
    static CURRENT: String;
}

/// The id of the request that this task serves; empty outside of one.
#[must_use]
pub fn current() -> String {
    CURRENT.try_with(Clone::clone).unwrap_or_default()
}

/// Answers a request under this id.
pub async fn scope<T>(request_id: String, answer: impl Future<Output = T>) -> T {
    CURRENT.scope(request_id, answer).await
}
