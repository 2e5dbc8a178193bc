//! An entry that is begun before something is done, so that nothing is done without it.

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::writer::Job;
use super::{Audit, Decision, Draft, Error};

/// What an entry says whose outcome nobody waited for: its caller hung up, or the node gave it up.
pub const ABANDONED: &str = "nobody waited for the outcome; whether it was done is not known";

/// An entry that has its place in the queue already, and is written whatever happens: as it is recorded, or,
/// if it is dropped before (the handler of a caller that hangs up is), as one that says so.
#[derive(Debug)]
#[must_use = "an entry that is dropped says that its caller went away"]
pub struct Open(Option<(mpsc::OwnedPermit<Job>, Box<Draft>)>);

impl Audit {
    /// Begins an entry, before what it is about is done.
    ///
    /// # Errors
    /// As [`Error`] says: nothing may be done then.
    pub fn begin(&self, draft: Draft) -> Result<Open, Error> {
        if self.backlog.is_full() {
            return Err(Error::Overloaded);
        }
        let permit = self.queue.clone().try_reserve_owned().map_err(|error| match error {
            TrySendError::Full(_) => Error::Overloaded,
            TrySendError::Closed(_) => Error::Unwritten,
        })?;
        Ok(Open(Some((permit, Box::new(draft)))))
    }

    /// Writes an entry about what changed nothing. It survives the end of the process once this returns.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn record(&self, draft: Draft) -> Result<(), Error> {
        self.begin(draft)?.record(|_| ()).await
    }
}

impl Open {
    /// Writes the entry with what `say` adds to it. It survives the end of the process once this returns.
    ///
    /// # Errors
    /// [`Error::Unwritten`].
    pub async fn record(mut self, say: impl FnOnce(&mut Draft)) -> Result<(), Error> {
        let Some((permit, mut draft)) = self.0.take() else { return Err(Error::Unwritten) };
        say(&mut draft);
        let (done, written) = oneshot::channel();
        permit.send(Job::Record(draft, done));
        written.await.unwrap_or(Err(Error::Unwritten))
    }

    /// Takes the entry back: nothing was done that it could be about.
    pub fn withdraw(mut self) {
        self.0 = None;
    }
}

impl Drop for Open {
    /// Neither waits nor spawns: the place in the queue is reserved.
    fn drop(&mut self) {
        let Some((permit, mut draft)) = self.0.take() else { return };
        draft.decision = Decision::Error;
        ABANDONED.clone_into(&mut draft.notes);
        let (done, _) = oneshot::channel();
        permit.send(Job::Record(draft, done));
    }
}
