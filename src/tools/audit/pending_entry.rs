//! An entry begun before its action, so that no action goes unaudited.

use std::sync::Arc;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::denials::Denials;
use super::writer::Job;
use super::{Audit, Decision, Draft, Error};
use crate::breaks::{self, Break};

/// Notes of an entry whose caller disconnected before the outcome was known.
pub const ABANDONED: &str = "the caller disconnected before the outcome was known";

/// An entry with a reserved slot in the writer's queue. It is always written: with its outcome, or, if it is dropped
/// first (as the handler of a disconnected caller is), as [`ABANDONED`].
#[derive(Debug)]
#[must_use = "a dropped entry is written as abandoned"]
pub struct PendingEntry {
    reserved: Option<(mpsc::OwnedPermit<Job>, Box<Draft>)>,
    denials: Arc<Denials>,
}

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
        Ok(PendingEntry { reserved: Some((permit, Box::new(draft))), denials: Arc::clone(&self.denials) })
    }

    /// Writes an entry about something that changed nothing. It is durable once this returns.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn record(&self, draft: Draft) -> Result<(), Error> {
        self.begin(draft)?.record(|_| ()).await
    }

    /// Writes an entry for the equal denials of each minute that is over, or of `all`. Denials that cannot be written now
    /// are written later.
    pub(super) async fn write_joined(&self, all: bool) {
        while let Some(draft) = self.denials.take(all) {
            let written = match self.begin(draft.clone()) {
                Ok(pending) => pending.write().await,
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                tracing::warn!(%error, "failed to write the audit entry of equal denials");
                return self.denials.put_back(draft);
            }
        }
    }
}

impl PendingEntry {
    /// Writes the entry as `complete` leaves it. It is durable once this returns, unless it is a denial equal to one of
    /// the minute before: that is counted only.
    ///
    /// # Errors
    /// [`Error::Unwritten`].
    pub async fn record(mut self, complete: impl FnOnce(&mut Draft)) -> Result<(), Error> {
        let Some((_, draft)) = &mut self.reserved else { return Err(Error::Unwritten) };
        complete(draft);
        let Some(key) = Denials::key_of(draft) else { return self.write().await };
        if self.denials.is_joined(key, draft) {
            self.withdraw();
            return Ok(());
        }
        let denials = Arc::clone(&self.denials);
        let written = self.write().await;
        if written.is_err() {
            // The next one is the first of its minute.
            denials.forget(key);
        }
        written
    }

    async fn write(mut self) -> Result<(), Error> {
        let Some((permit, draft)) = self.reserved.take() else { return Err(Error::Unwritten) };
        let (done, written) = oneshot::channel();
        permit.send(Job::Record(draft, done));
        if breaks::active(Break::AnswerBeforeAudit) {
            return Ok(());
        }
        written.await.unwrap_or(Err(Error::Unwritten))
    }

    /// Withdraws the entry: nothing was done.
    pub fn withdraw(mut self) {
        self.reserved = None;
    }
}

impl Drop for PendingEntry {
    /// Neither waits nor spawns: the slot in the queue is reserved.
    fn drop(&mut self) {
        let Some((permit, mut draft)) = self.reserved.take() else { return };
        draft.decision = Decision::Error;
        ABANDONED.clone_into(&mut draft.notes);
        let (done, _) = oneshot::channel();
        permit.send(Job::Record(draft, done));
    }
}
