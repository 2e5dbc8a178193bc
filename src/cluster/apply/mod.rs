//! Applying committed entries: the state machine adapter, its database and its snapshots.

use std::io;

pub(crate) mod database;
mod directory;
pub(crate) mod snapshot;
pub(crate) mod state_machine;

/// Runs work on the whole state, which may take minutes, beside the threads that serve requests: on a machine with few
/// cores they would answer nothing meanwhile.
#[expect(
    clippy::disallowed_methods,
    reason = "the work ends by itself, and owns what a stopping node waits for"
)]
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}
