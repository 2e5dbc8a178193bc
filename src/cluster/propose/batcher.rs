//! Batching on the leader: many commands in one log entry, several entries in flight.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use openraft::errors::{ClientWriteError, RaftError};
use tokio::sync::{mpsc, oneshot};

use crate::cluster::clocks::Stamps;
use crate::cluster::type_config::Commands;
use crate::cluster::{DiskShortage, Machine, Raft, Stamp, Submission};
use crate::limits;

/// Reply to a command, and the log index of its entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedCommand {
    /// Log index of the entry.
    pub(crate) index: u64,
    /// The encoded reply.
    pub(crate) reply: Bytes,
}

/// A submission is not known to be applied. It may be sent again unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubmitError {
    /// The leader's queue is full, or the deadline passed in it. Nothing was proposed.
    #[error("too many writes are queued")]
    Overloaded,
    /// The leader runs a version that does not know the command. Nothing was proposed.
    #[error("the leader does not know this command")]
    UnknownCommand,
    /// The command adds data, and the leader's disk is short of space. Nothing was proposed.
    #[error(transparent)]
    DiskShortage(DiskShortage),
    /// That node is not the leader, or has not read the clocks of a majority yet. Nothing was proposed.
    #[error("that node is not the leader")]
    NotLeader,
    /// It may have been proposed, and may still be applied.
    #[error("the outcome is unknown")]
    Unknown,
}

struct QueuedSubmission {
    submission: Submission,
    /// Deadline on the boot clock.
    until: Duration,
    answer: oneshot::Sender<Result<AppliedCommand, SubmitError>>,
}

/// Queue of submissions for the next log entries.
#[derive(Clone)]
pub(crate) struct Batcher {
    queue: mpsc::Sender<QueuedSubmission>,
}

impl Batcher {
    /// The queue, and the task that empties it. The task ends when every clone of the queue is dropped.
    pub(crate) fn new<M: Machine>(stamps: Stamps<M>) -> (Self, impl Future<Output = ()> + Send) {
        let (batcher, queue) = Self::queue();
        (batcher, work(stamps, queue))
    }

    fn queue() -> (Self, mpsc::Receiver<QueuedSubmission>) {
        let (sender, queue) = mpsc::channel(limits::PROPOSALS_QUEUED_MAX);
        (Self { queue: sender }, queue)
    }

    /// Proposes a submission and waits until it is applied on this node. It is not proposed after `until` of the boot
    /// clock.
    pub(crate) async fn submit(
        &self,
        submission: Submission,
        until: Duration,
    ) -> Result<AppliedCommand, SubmitError> {
        let (answer, outcome) = oneshot::channel();
        self.queue.try_send(QueuedSubmission { submission, until, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SubmitError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => SubmitError::NotLeader,
        })?;
        outcome.await.unwrap_or(Err(SubmitError::Unknown))
    }
}

async fn work<M: Machine>(mut stamps: Stamps<M>, mut queue: mpsc::Receiver<QueuedSubmission>) {
    let raft = stamps.raft.clone();
    let mut in_flight = FuturesUnordered::new();
    let mut commands_before = 0;
    loop {
        let entries_max =
            if commands_before < limits::PIPELINED_COMMANDS_MIN { 1 } else { limits::ENTRIES_IN_FLIGHT_MAX };
        let has_room = in_flight.len() < entries_max;
        tokio::select! {
            first = queue.recv(), if has_room => {
                let Some(first) = first else { break };
                let batch = gather(first, &mut queue, stamps.clocks.boot());
                if batch.is_empty() {
                    continue;
                }
                commands_before = batch.len();
                match stamps.next() {
                    Some(stamp) => in_flight.push(propose_batch(&raft, stamp, batch)),
                    None => refuse(batch),
                }
            }
            Some(()) = in_flight.next() => {}
        }
    }
    while in_flight.next().await.is_some() {}
}

/// `first` and the queued submissions after it, up to the limits of one entry. Those past their deadline are left out.
fn gather(
    first: QueuedSubmission,
    queue: &mut mpsc::Receiver<QueuedSubmission>,
    now: Duration,
) -> Vec<QueuedSubmission> {
    let (mut bytes, mut batch) = (0, Vec::new());
    let mut next = Some(first);
    while let Some(waiting) = next {
        if waiting.until > now {
            bytes += waiting.submission.command.len();
            batch.push(waiting);
        } else {
            drop(waiting.answer.send(Err(SubmitError::Overloaded)));
        }
        let has_room = batch.len() < limits::COMMANDS_PER_ENTRY_MAX && bytes < limits::ENTRY_BYTES_FULL;
        next = if has_room { queue.try_recv().ok() } else { None };
    }
    batch
}

/// Refuses the submissions. Their proposers retry after a pause, here or at the next leader.
fn refuse(batch: Vec<QueuedSubmission>) {
    for waiting in batch {
        drop(waiting.answer.send(Err(SubmitError::NotLeader)));
    }
}

async fn propose_batch<M: Machine>(raft: &Raft<M>, stamp: Stamp, batch: Vec<QueuedSubmission>) {
    let (submissions, answers): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|waiting| (waiting.submission, waiting.answer)).unzip();
    let written = raft.client_write(Commands(M::batch(stamp, submissions))).await;
    match written {
        Ok(written) => {
            let index = written.log_id.index;
            let replies = written.data.0;
            for (answer, reply) in answers.into_iter().zip(replies) {
                // The proposer may be gone; the command is applied.
                drop(answer.send(Ok(AppliedCommand { index, reply })));
            }
        }
        Err(error) => {
            // `LogEntryDiscarded`, of a deposed leader, and `Fatal` leave the outcome open: a successor may apply the
            // entry.
            let not_done = match error {
                RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => SubmitError::NotLeader,
                RaftError::APIError(_) | RaftError::Fatal(_) => SubmitError::Unknown,
            };
            for answer in answers {
                drop(answer.send(Err(not_done)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::cluster::ProposerId;

    fn submission(bytes: usize) -> Submission {
        let command = Bytes::from(vec![0; bytes]);
        Submission { proposer: ProposerId::from_bytes([7; 16]), sequence: 1, low_watermark: 1, command }
    }

    const NOW: Duration = Duration::from_secs(100);
    const SOON: Duration = Duration::from_secs(105);

    fn waiting(bytes: usize) -> QueuedSubmission {
        QueuedSubmission { submission: submission(bytes), until: SOON, answer: oneshot::channel().0 }
    }

    #[tokio::test]
    async fn full_queue_rejects_submissions() {
        let (batcher, mut queue) = Batcher::queue();
        for _ in 0..limits::PROPOSALS_QUEUED_MAX {
            assert!(batcher.submit(submission(0), SOON).now_or_never().is_none(), "waits for its outcome");
        }
        assert_eq!(batcher.submit(submission(0), SOON).now_or_never(), Some(Err(SubmitError::Overloaded)));
        drop(queue.try_recv().expect("one less"));
        assert!(batcher.submit(submission(0), SOON).now_or_never().is_none());
    }

    #[test]
    fn entry_is_limited_in_commands_and_bytes() {
        let (batcher, mut queue) = Batcher::queue();
        for (bytes, expected) in [
            (1, limits::COMMANDS_PER_ENTRY_MAX),
            (limits::ENTRY_BYTES_FULL / 4, 4),
            // One byte below the limit admits one more.
            (limits::ENTRY_BYTES_FULL - 1, 2),
        ] {
            for _ in 0..=limits::COMMANDS_PER_ENTRY_MAX.min(expected + 1) {
                batcher.queue.try_send(waiting(bytes)).expect("room");
            }
            let first = queue.try_recv().expect("waits");
            assert_eq!(gather(first, &mut queue, NOW).len(), expected, "{bytes}");
            while queue.try_recv().is_ok() {}
        }
    }

    /// Regression: an overloaded leader proposed submissions past their deadline while newer ones aged in the
    /// queue.
    #[test]
    fn submission_past_its_deadline_is_not_proposed() {
        let (batcher, mut queue) = Batcher::queue();
        let (answer, mut abandoned) = oneshot::channel();
        let late = QueuedSubmission { submission: submission(1), until: NOW, answer };
        batcher.queue.try_send(waiting(2)).expect("room");
        let batch = gather(late, &mut queue, NOW);
        assert_eq!(batch.iter().map(|waiting| waiting.submission.command.len()).collect::<Vec<_>>(), [2]);
        assert_eq!(abandoned.try_recv(), Ok(Err(SubmitError::Overloaded)));
        assert!(gather(QueuedSubmission { until: NOW, ..waiting(1) }, &mut queue, NOW).is_empty());
    }
}
