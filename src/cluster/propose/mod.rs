//! Proposals: a command is sent to the leader until its outcome is known, and applied once however often it is
//! proposed.
//!
//! A proposer id and a sequence identify it. If the leader dies, is deposed or is unreachable, the outcome is unknown:
//! the same submission is sent to the next leader. The proposer waits until its command is applied on this node, so it
//! reads its own write.

pub(crate) mod batcher;
pub(crate) mod forwarding;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use self::batcher::{AppliedCommand, SubmitError};
use super::type_config::MemberRecord;
use super::{DiskShortage, Handle, Machine, ProposerId, Submission};
use crate::limits;

/// Failure of a proposal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A queue is full. Nothing was proposed.
    #[error("too many writes are queued")]
    Overloaded,
    /// The leader runs a version that does not know the command. Nothing was proposed.
    #[error("the leader does not know this command: it runs an older version")]
    UnknownCommand,
    /// The command adds data, and the disk of this node or of the leader is short of space. Nothing was proposed.
    #[error(transparent)]
    DiskShortage(#[from] DiskShortage),
    /// No leader. Nothing was proposed.
    #[error("the cluster has no leader")]
    NoLeader,
    /// Timeout, or the replica of this node has failed: the command may still be applied.
    #[error("the outcome of the write is unknown")]
    OutcomeUnknown,
    /// Applied, but some member may still answer from an older state: the barrier timed out.
    #[error("the write is applied, but was not confirmed by every member in time: retry")]
    Unacknowledged,
}

/// Sequences of this process's commands.
pub(crate) struct SequenceAllocator {
    proposer: ProposerId,
    allocated: Mutex<Allocated>,
}

struct Allocated {
    next: u64,
    /// Sequences not answered and not abandoned.
    open: BTreeSet<u64>,
}

impl SequenceAllocator {
    /// Starts at 1.
    pub(crate) const fn new(proposer: ProposerId) -> Self {
        Self { proposer, allocated: Mutex::new(Allocated { next: 1, open: BTreeSet::new() }) }
    }

    /// Allocates a sequence, in use until it is dropped. `None` at the limit of open commands, or if the oldest is so
    /// old that the deduplication state would grow beyond its limit.
    fn take(self: &Arc<Self>) -> Option<OpenSequence> {
        let mut allocated = self.allocated.lock();
        let oldest = allocated.open.first().copied().unwrap_or(allocated.next);
        if allocated.open.len() >= limits::PROPOSALS_QUEUED_MAX
            || allocated.next - oldest >= limits::SUBMISSIONS_AHEAD_MAX
        {
            return None;
        }
        let sequence = allocated.next;
        allocated.next += 1;
        allocated.open.insert(sequence);
        Some(OpenSequence { sequence, sequences: Arc::clone(self) })
    }
}

/// Sequence of one unanswered command.
struct OpenSequence {
    sequence: u64,
    sequences: Arc<SequenceAllocator>,
}

impl OpenSequence {
    /// The submission, with the current low watermark.
    fn submission(&self, command: &Bytes) -> Submission {
        let allocated = self.sequences.allocated.lock();
        let low_watermark = allocated.open.first().copied().unwrap_or(allocated.next);
        let SequenceAllocator { proposer, .. } = *self.sequences;
        Submission { proposer, sequence: self.sequence, low_watermark, command: command.clone() }
    }
}

impl Drop for OpenSequence {
    fn drop(&mut self) {
        let mut allocated = self.sequences.allocated.lock();
        allocated.open.remove(&self.sequence);
    }
}

impl<M: Machine> Handle<M> {
    /// Proposes an encoded command and waits until it is applied on this node.
    ///
    /// # Errors
    /// [`Error`], but never [`Error::Unacknowledged`].
    pub(crate) async fn propose(&self, command: Bytes) -> Result<AppliedCommand, Error> {
        self.check_space(&command)?;
        let sequence = self.sequences.take().ok_or(Error::Overloaded)?;
        let deadline = self.clock.boot() + limits::PROPOSE_TIMEOUT;
        let mut on_timeout = Error::NoLeader;
        let proposed = async {
            let outcome = loop {
                let leader = self.until_led().await;
                let submission = sequence.submission(&command);
                // Unknown until it is answered: the timeout may come first.
                let before = std::mem::replace(&mut on_timeout, Error::OutcomeUnknown);
                match self.submit_once(leader, submission, deadline).await {
                    Ok(outcome) => break outcome,
                    Err(failure) => on_timeout = after_failure(before, failure),
                }
                if matches!(on_timeout, Error::DiskShortage(_)) {
                    return Err(on_timeout.clone());
                }
                tokio::time::sleep(limits::PROPOSE_RETRY_PAUSE).await;
            };
            // The entry is applied on the leader; this node may lag.
            self.until_applied(outcome.index).await;
            Ok(outcome)
        };
        let proposed = tokio::select! {
            biased;
            proposed = tokio::time::timeout(limits::PROPOSE_TIMEOUT, proposed) => proposed.ok(),
            // Nothing can be applied on this node any more: the process must not wait for it before it exits.
            () = self.until_stopped() => None,
        };
        proposed.unwrap_or(Err(on_timeout))
    }

    /// Submits to this leader, until another node leads: a leader that hangs never answers.
    async fn submit_once(
        &self,
        (leader, member): (u64, MemberRecord),
        submission: Submission,
        deadline: Duration,
    ) -> Result<AppliedCommand, SubmitError> {
        let submitted = async {
            if leader == self.node_id {
                self.batcher.submit(submission, deadline).await
            } else {
                self.forwarder.submit((leader, member), submission, deadline).await
            }
        };
        tokio::select! {
            submitted = submitted => submitted,
            () = self.until_another_leader_than(leader) => Err(SubmitError::Unknown),
        }
    }
}

/// The error of a proposal after a failed attempt; `before` is its error before the attempt.
fn after_failure(before: Error, failure: SubmitError) -> Error {
    // An earlier attempt may have been proposed, and may still be applied.
    if before == Error::OutcomeUnknown {
        return Error::OutcomeUnknown;
    }
    match failure {
        SubmitError::NotLeader => before,
        SubmitError::Unknown => Error::OutcomeUnknown,
        SubmitError::Overloaded => Error::Overloaded,
        SubmitError::UnknownCommand => Error::UnknownCommand,
        SubmitError::DiskShortage(shortage) => Error::DiskShortage(shortage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_watermark_is_the_lowest_open_sequence() {
        let sequences = Arc::new(SequenceAllocator::new(ProposerId::from_bytes([7; 16])));
        let watermark = |sequence: &OpenSequence| sequence.submission(&Bytes::new()).low_watermark;
        let (first, second) = (sequences.take().expect("room"), sequences.take().expect("room"));
        assert_eq!((first.sequence, second.sequence), (1, 2));
        assert_eq!((watermark(&first), watermark(&second)), (1, 1));
        drop(first);
        assert_eq!(watermark(&second), 2);
        let third = sequences.take().expect("room");
        drop(second);
        assert_eq!((third.sequence, watermark(&third)), (3, 3));
    }

    #[test]
    fn sequences_stay_within_the_deduplication_window() {
        let sequences = Arc::new(SequenceAllocator::new(ProposerId::from_bytes([7; 16])));
        let oldest = sequences.take().expect("room");
        for _ in 1..limits::SUBMISSIONS_AHEAD_MAX {
            drop(sequences.take().expect("room"));
        }
        assert!(sequences.take().is_none());
        drop(oldest);
        assert_eq!(sequences.take().expect("room").sequence, limits::SUBMISSIONS_AHEAD_MAX + 1);
    }

    #[test]
    fn open_sequences_are_limited() {
        let sequences = Arc::new(SequenceAllocator::new(ProposerId::from_bytes([7; 16])));
        let mut open: Vec<_> =
            (0..limits::PROPOSALS_QUEUED_MAX).map(|_| sequences.take().expect("room")).collect();
        assert!(sequences.take().is_none());
        drop(open.pop());
        assert!(sequences.take().is_some());
    }

    #[test]
    fn unknown_outcome_stays_unknown() {
        let shortage = DiskShortage { node_id: 2, free: 1, needed: 3 };
        let failures = [
            SubmitError::NotLeader,
            SubmitError::Unknown,
            SubmitError::Overloaded,
            SubmitError::UnknownCommand,
            SubmitError::DiskShortage(shortage),
        ];
        let after = |before: &Error| failures.map(|failure| after_failure(before.clone(), failure));
        for before in [Error::NoLeader, Error::Overloaded, Error::UnknownCommand] {
            let expected = [
                before.clone(),
                Error::OutcomeUnknown,
                Error::Overloaded,
                Error::UnknownCommand,
                Error::DiskShortage(shortage),
            ];
            assert_eq!(after(&before), expected, "{before:?}");
        }
        assert_eq!(after(&Error::OutcomeUnknown), [const { Error::OutcomeUnknown }; 5]);
    }
}
