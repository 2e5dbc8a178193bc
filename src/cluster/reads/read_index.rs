//! Linearizable reads (design §3): a read sees every write acknowledged before it began. Three rules:
//!
//! 1. A read shares only a `ReadIndex` request that had not been sent when the read began. The answer to one in flight
//!    does not cover writes acknowledged since it was sent.
//! 2. One request is in flight at a time; reads that begin meanwhile share the next. So the leader receives as many
//!    requests as it can answer, however many reads there are.
//! 3. A failed request is never resent: a new one is created, and a late answer to the old one is dropped.
//!
//! A read that names a log index (`Svc-Min-Index`) sends no request: it is answered here at that index or later.

use std::future::Future;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::readers::ReaderCall;
use super::sources::SourceLease;
use crate::breaks::{self, Break};
use crate::cluster::{Handle, Machine};
use crate::limits;

/// Proof that this node's state is as new as the read requires: every write acknowledged before it began, or the log
/// index that it names. Valid for that read only.
#[derive(Debug)]
pub struct LinearizableRead(());

/// A read cannot be answered from this node's state. Nothing was read for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadIndexError {
    /// No leader answered within [`limits::READ_INDEX_WAIT`].
    #[error("the cluster has no leader")]
    NoLeader,
    /// [`limits::READ_INDEX_WAITS_MAX`] or [`limits::FRESHNESS_WAITS_MAX`] reads are waiting.
    #[error("too many reads wait for the leader")]
    TooManyWait,
    /// The confirmed index was not applied here in time.
    #[error("this node has not applied the index that the leader confirmed")]
    Behind,
}

/// The leader's answer to a `ReadIndex` request.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfirmedIndex {
    /// The index that the reader must have applied.
    pub(crate) index: u64,
    /// The leases on outside sources that may begin when it is.
    pub(crate) sources: Vec<SourceLease>,
}

/// Queue of reads that wait for a confirmed index. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ReadIndex {
    queue: mpsc::Sender<oneshot::Sender<u64>>,
}

impl ReadIndex {
    /// The queue, and the task that sends the requests. At most `waits_max` reads wait for the next request, and as
    /// many for the one in flight.
    pub(crate) fn new(waits_max: usize) -> (Self, ReadIndexTask) {
        let (queue, waiting) = mpsc::channel(waits_max);
        (Self { queue }, ReadIndexTask { waiting, waits_max })
    }

    /// An index that a leader confirmed with a quorum after this call: every entry acknowledged before the call is at
    /// most there.
    pub(crate) async fn confirmed(&self) -> Result<u64, ReadIndexError> {
        let (answer, confirmed) = oneshot::channel();
        self.queue.try_send(answer).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => ReadIndexError::TooManyWait,
            mpsc::error::TrySendError::Closed(_) => ReadIndexError::NoLeader,
        })?;
        let waited = tokio::time::timeout(limits::READ_INDEX_WAIT, confirmed).await;
        waited.ok().and_then(Result::ok).ok_or(ReadIndexError::NoLeader)
    }
}

/// Sends `ReadIndex` requests to the leader on behalf of all reads.
pub(crate) struct ReadIndexTask {
    waiting: mpsc::Receiver<oneshot::Sender<u64>>,
    waits_max: usize,
}

impl ReadIndexTask {
    /// Runs until every [`ReadIndex`] is dropped. `request_index` sends a `ReadIndex` request and returns the confirmed
    /// index. Reads whose request fails, or takes longer than [`limits::READ_INDEX_ATTEMPT`], share the next one with
    /// the reads that began meanwhile.
    pub(crate) async fn run<A>(mut self, request_index: impl Fn() -> A)
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
            // Every read in the queue now began before the request is created.
            while waiting.len() < self.waits_max
                && let Ok(next) = self.waiting.try_recv()
            {
                waiting.push(next);
            }
            match tokio::time::timeout(limits::READ_INDEX_ATTEMPT, request_index()).await {
                Ok(Some(index)) => {
                    while breaks::active(Break::ShareReadInFlight)
                        && let Ok(later) = self.waiting.try_recv()
                    {
                        waiting.push(later);
                    }
                    for reader in waiting.drain(..) {
                        // The read may be gone.
                        reader.send(index).ok();
                    }
                }
                Ok(None) | Err(_) => tokio::time::sleep(limits::READ_INDEX_RETRY_PAUSE).await,
            }
        }
    }
}

/// Waits until the confirmed index is applied.
async fn until_applied_within(
    applied: impl Future<Output = ()>,
    limit: Duration,
) -> Result<LinearizableRead, ReadIndexError> {
    let waited = tokio::time::timeout(limit, applied).await;
    waited.map(|()| LinearizableRead(())).map_err(|_| ReadIndexError::Behind)
}

impl<M: Machine> Handle<M> {
    /// Sends `ReadIndex` requests for all reads. Without this task there is no [`LinearizableRead`] by the leader.
    pub(crate) async fn serve_read_index(self, read_index_task: ReadIndexTask) {
        let confirmed = || async { self.confirmed_index(false, None).await.map(|confirmed| confirmed.index) };
        read_index_task.run(confirmed).await;
    }

    /// The proof that every entry acknowledged before this call is applied here: sends a `ReadIndex` request, and waits
    /// until the confirmed index is applied.
    ///
    /// # Errors
    /// [`ReadIndexError`], after [`limits::READ_INDEX_WAIT`] for each of the two.
    pub(crate) async fn linearizable(&self) -> Result<LinearizableRead, ReadIndexError> {
        let is_skipped = breaks::active(Break::SkipReadIndex);
        let index = if is_skipped { self.applied() } else { self.reads.confirmed().await? };
        until_applied_within(self.until_agreed(index), limits::READ_INDEX_WAIT).await
    }

    /// The same proof for the call of an outside reader, with a request of its own that reports the call to the leader. A
    /// call that is not reported must not be answered.
    ///
    /// # Errors
    /// As [`Self::linearizable`].
    pub(crate) async fn linearizable_for(
        &self,
        call: ReaderCall,
    ) -> Result<LinearizableRead, ReadIndexError> {
        let confirmed = async {
            loop {
                let requests = self.confirmed_index(false, Some(call));
                match tokio::time::timeout(limits::READ_INDEX_ATTEMPT, requests).await {
                    Ok(Some(confirmed)) => return confirmed.index,
                    Ok(None) | Err(_) => tokio::time::sleep(limits::READ_INDEX_RETRY_PAUSE).await,
                }
            }
        };
        let index = tokio::time::timeout(limits::READ_INDEX_WAIT, confirmed).await;
        let index = index.map_err(|_| ReadIndexError::NoLeader)?;
        until_applied_within(self.until_agreed(index), limits::READ_INDEX_WAIT).await
    }

    /// Waits until `index` is applied here, and the state of this node is not in dispute.
    pub(in crate::cluster) async fn until_agreed(&self, index: u64) {
        self.until_applied(index).await;
        self.shared.divergence.until_settled().await;
    }

    /// The proof for a read that names `index`, if that is applied here and not in dispute.
    pub(crate) fn current_at(&self, index: u64) -> Option<LinearizableRead> {
        let is_here = self.applied() >= index && self.disputed_index().is_none();
        is_here.then_some(LinearizableRead(()))
    }
}

#[cfg(test)]
mod tests;
