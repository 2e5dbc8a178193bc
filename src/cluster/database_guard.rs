//! Proof that the databases are open, and the end of the wait until they are closed.

use std::convert::Infallible;

use tokio::sync::mpsc;

/// Held by every owner of an open database.
pub(crate) type DatabaseGuard = mpsc::Sender<Infallible>;

/// Reports when no owner of a database is left. openraft's tasks end a little after it reports that it has stopped.
pub struct Closed(mpsc::Receiver<Infallible>);

impl Closed {
    pub(super) fn new(owners: mpsc::Receiver<Infallible>) -> Self {
        Self(owners)
    }

    /// Waits until every reader and writer of the databases is gone, except for the log writer.
    pub(crate) async fn wait(mut self) {
        // Nothing is ever sent: this ends when the last sender is dropped.
        let _ = self.0.recv().await;
    }
}
