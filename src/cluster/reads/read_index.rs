//! Linearizable reads (design §3): what was written before somebody asked is there when they look.
//!
//! Three rules:
//!
//! 1. Whoever reads shares only a question that was not sent yet when they came. The answer to one under way
//!    says nothing of what was written since it was sent.
//! 2. One question is under way at a time; all who come meanwhile share the next. So the leader is asked as often
//!    as it can answer, however many read.
//! 3. A question that failed is never sent again: another one is, and an answer to the first that comes late is
//!    for nobody.
//!
//! A read that names a log index (`Svc-Min-Index`) asks nobody: it is answered here at that index or later.

use std::future::Future;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::cluster::{Handle, Machine};
use crate::limits;

/// Proof that this node's state is as new as its reader asked for: as all that was acknowledged before they
/// asked, or as the index that they named. It is good for the read it was made for and for no later one.
#[derive(Debug)]
pub struct Current(());

/// Why there is no [`Current`]. Nothing was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCurrent {
    /// No leader has answered within [`limits::READ_INDEX_WAIT`].
    #[error("the cluster has no leader")]
    NoLeader,
    /// As many wait for an answer as may, [`limits::READ_INDEX_WAITS_MAX`] or [`limits::FRESHNESS_WAITS_MAX`].
    #[error("too many reads wait for the leader")]
    TooManyWait,
    /// What the leader named is not applied here in time.
    #[error("this node has not applied yet what the leader has")]
    Behind,
}

/// Where questions are handed in. Cheap to clone.
#[derive(Clone)]
pub struct ReadIndex {
    queue: mpsc::Sender<oneshot::Sender<u64>>,
}

impl ReadIndex {
    /// Where questions are handed in, and who asks them. At most `waits_max` wait for the next question, and as many
    /// for the one under way.
    pub fn new(waits_max: usize) -> (Self, Questions) {
        let (queue, waiting) = mpsc::channel(waits_max);
        (Self { queue }, Questions { waiting, waits_max })
    }

    /// An index that some leader has confirmed with a quorum after this was called: everything acknowledged
    /// before is at most there.
    ///
    /// # Errors
    /// [`NotCurrent::NoLeader`], [`NotCurrent::TooManyWait`].
    pub async fn confirmed(&self) -> Result<u64, NotCurrent> {
        let (answer, confirmed) = oneshot::channel();
        self.queue.try_send(answer).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NotCurrent::TooManyWait,
            mpsc::error::TrySendError::Closed(_) => NotCurrent::NoLeader,
        })?;
        let waited = tokio::time::timeout(limits::READ_INDEX_WAIT, confirmed).await;
        waited.ok().and_then(Result::ok).ok_or(NotCurrent::NoLeader)
    }
}

/// Asks the leader for all who read.
pub struct Questions {
    waiting: mpsc::Receiver<oneshot::Sender<u64>>,
    waits_max: usize,
}

impl Questions {
    /// Asks until every [`ReadIndex`] is gone. `ask` confirms with the leader that it leads and answers the index up
    /// to which a reader must have applied; each call asks anew. Who waited for what fails, or hangs beyond
    /// [`limits::READ_INDEX_ATTEMPT`], shares the next question with those who came meanwhile.
    pub async fn keep<A>(mut self, ask: impl Fn() -> A)
    where
        A: Future<Output = Option<u64>>,
    {
        let mut waiting = Vec::new();
        loop {
            waiting.retain(|reader: &oneshot::Sender<u64>| !reader.is_closed());
            if waiting.is_empty() {
                let Some(first) = self.waiting.recv().await else { return };
                waiting.push(first);
            }
            // Everybody who is in the queue now came before the question is made.
            while waiting.len() < self.waits_max
                && let Ok(next) = self.waiting.try_recv()
            {
                waiting.push(next);
            }
            match tokio::time::timeout(limits::READ_INDEX_ATTEMPT, ask()).await {
                Ok(Some(index)) => {
                    for reader in waiting.drain(..) {
                        // They may have given up.
                        reader.send(index).ok();
                    }
                }
                Ok(None) | Err(_) => tokio::time::sleep(limits::READ_INDEX_RETRY_PAUSE).await,
            }
        }
    }
}

/// Waits for what a read asked for.
async fn in_time(applied: impl Future<Output = ()>, limit: Duration) -> Result<Current, NotCurrent> {
    let waited = tokio::time::timeout(limit, applied).await;
    waited.map(|()| Current(())).map_err(|_| NotCurrent::Behind)
}

impl<M: Machine> Handle<M> {
    /// Asks whoever leads for those who read, until nobody can any more. Without this nobody gets a [`Current`].
    pub(crate) async fn ask_for_readers(self, questions: Questions) {
        questions.keep(|| self.confirmed_index(false)).await;
    }

    /// The proof that everything acknowledged before this was called is applied here: asks the leader, and waits
    /// until this node has applied what it named.
    ///
    /// # Errors
    /// As [`NotCurrent`] says, after [`limits::READ_INDEX_WAIT`] for each of the two.
    pub async fn linearizable(&self) -> Result<Current, NotCurrent> {
        let index = self.reads.confirmed().await?;
        in_time(self.until_applied(index), limits::READ_INDEX_WAIT).await
    }

    /// The proof for a reader who named `index` and asks for no more, if that is applied here.
    #[must_use]
    pub fn current_at(&self, index: u64) -> Option<Current> {
        (self.applied() >= index).then_some(Current(()))
    }
}

#[cfg(test)]
mod tests;
