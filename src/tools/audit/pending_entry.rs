//! An entry begun before its action, so that no action goes unaudited.

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::writer::Job;
use super::{Audit, Decision, Draft, Error};
use crate::breaks::{self, Break};

/// Notes of an entry whose caller disconnected before the outcome was known.
pub const ABANDONED: &str = "the caller disconnected before the outcome was known";

/// An entry with a reserved slot in the writer's queue. It is always written: with its outcome, or, if it is dropped
/// first (as the handler of a disconnected caller is), as [`ABANDONED`].
#[derive(Debug)]
#[must_use = "a dropped entry is written as abandoned"]
pub struct PendingEntry(Option<(mpsc::OwnedPermit<Job>, Box<Draft>)>);

impl Audit {
    /// Begins an entry before its action.
    ///
    /// # Errors
    /// [`Error`]; the action must not be done then.
    pub fn begin(&self, draft: Draft) -> Result<PendingEntry, Error> {
        if self.backlog.is_full() {
            return Err(Error::Overloaded);
        }
        let permit = self.queue.clone().try_reserve_owned().map_err(|error| match error {
            TrySendError::Full(_) => Error::Overloaded,
            TrySendError::Closed(_) => Error::Unwritten,
        })?;
        Ok(PendingEntry(Some((permit, Box::new(draft)))))
    }

    /// Writes an entry about something that changed nothing. It is durable once this returns.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn record(&self, draft: Draft) -> Result<(), Error> {
        self.begin(draft)?.record(|_| ()).await
    }
}

impl PendingEntry {
    /// Writes the entry as `complete` leaves it. It is durable once this returns.
    ///
    /// # Errors
    /// [`Error::Unwritten`].
    pub async fn record(mut self, complete: impl FnOnce(&mut Draft)) -> Result<(), Error> {
        let Some((permit, mut draft)) = self.0.take() else { return Err(Error::Unwritten) };
        complete(&mut draft);
        let (done, written) = oneshot::channel();
        permit.send(Job::Record(draft, done));
        if breaks::active(Break::AnswerBeforeAudit) {
            return Ok(());
        }
        written.await.unwrap_or(Err(Error::Unwritten))
    }

    /// Withdraws the entry: nothing was done.
    pub fn withdraw(mut self) {
        self.0 = None;
    }
}

impl Drop for PendingEntry {
    /// Neither waits nor spawns: the slot in the queue is reserved.
    fn drop(&mut self) {
        let Some((permit, mut draft)) = self.0.take() else { return };
        draft.decision = Decision::Error;
        ABANDONED.clone_into(&mut draft.notes);
        let (done, _) = oneshot::channel();
        permit.send(Job::Record(draft, done));
    }
}
