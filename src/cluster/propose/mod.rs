//! Proposals: a command is carried to whoever leads until it is known what came of it, and applied once however
//! often it is sent.
//!
//! It is known by the process that proposes it and a number. A leader that dies, is deposed, or cannot be reached
//! leaves open what came of it: then the same is sent again, to the next one. Whoever proposes waits until its
//! command is applied on this node, so it reads its own write.

pub(crate) mod batcher;
pub(crate) mod forwarding;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::apply::state_machine::StateMachine;
use super::propose::batcher::NotDone;
use super::type_config::TypeConfig;
use super::{Handle, Machine, Origin, Submission};
use crate::limits;

/// The consensus library, running our state machine.
pub type Raft<M> = openraft::Raft<TypeConfig, StateMachine<M>>;

/// Why a command was not applied, or not known to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The queue is full; nothing was proposed.
    #[error("too many writes are waiting")]
    Overloaded,
    /// The node that leads runs a version that does not know the command; nothing was proposed.
    #[error("the node that leads does not know this write: it runs an older version")]
    UnknownCommand,
    /// Nobody leads the cluster; nothing was proposed.
    #[error("the cluster has no leader")]
    NoLeader,
    /// Not answered in time: it may still be applied.
    #[error("the outcome of the write is unknown")]
    OutcomeUnknown,
    /// It is applied, and not known yet to every member that could still answer from before.
    #[error("the write is done, but not confirmed by the cluster in time: try again")]
    Unacknowledged,
    /// The node is stopping; nothing was proposed.
    #[error("the node is stopping")]
    Stopping,
}

/// A command's reply, and the index of the entry that carried it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The log index.
    pub index: u64,
    /// The reply, as the state machine encoded it.
    pub reply: Bytes,
}

/// The numbers of this process's commands.
pub struct Numbers {
    origin: Origin,
    given: Mutex<Given>,
}

struct Given {
    next: u64,
    /// Those that are not answered and not given up.
    open: BTreeSet<u64>,
}

impl Numbers {
    /// From 1.
    pub const fn new(origin: Origin) -> Self {
        Self { origin, given: Mutex::new(Given { next: 1, open: BTreeSet::new() }) }
    }

    /// A number of its own for a command, until it is dropped. `None` if as many are open as may, or the oldest is
    /// so old that the state machine would have to remember too much.
    fn take(self: &Arc<Self>) -> Option<Number> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = given.open.first().copied().unwrap_or(given.next);
        if given.open.len() >= limits::PROPOSALS_QUEUED_MAX
            || given.next - oldest >= limits::SUBMISSIONS_AHEAD_MAX
        {
            return None;
        }
        let sequence = given.next;
        given.next += 1;
        given.open.insert(sequence);
        Some(Number { sequence, numbers: Arc::clone(self) })
    }
}

/// The number of one command that is not answered yet.
struct Number {
    sequence: u64,
    numbers: Arc<Numbers>,
}

impl Number {
    /// The command as it is sent now.
    fn submission(&self, command: &Bytes) -> Submission {
        let given = self.numbers.given.lock().unwrap_or_else(PoisonError::into_inner);
        let low_watermark = given.open.first().copied().unwrap_or(given.next);
        let Numbers { origin, .. } = *self.numbers;
        Submission { origin, sequence: self.sequence, low_watermark, command: command.clone() }
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let mut given = self.numbers.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.open.remove(&self.sequence);
    }
}

impl<M: Machine> Handle<M> {
    /// Proposes an encoded command and waits until it is applied here.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn propose(&self, command: Bytes) -> Result<Outcome, Error> {
        let number = self.numbers.take().ok_or(Error::Overloaded)?;
        let until = self.clock.boot() + limits::PROPOSE_TIMEOUT;
        // What is known of it if time runs out.
        let mut known = Error::NoLeader;
        let carried = async {
            let outcome = loop {
                let (leader, member) = self.until_led().await;
                let submission = number.submission(&command);
                // Until it is answered: time may run out meanwhile.
                let before = std::mem::replace(&mut known, Error::OutcomeUnknown);
                let submitted = async {
                    if leader == self.node_id {
                        self.batches.submit(submission, until).await
                    } else {
                        self.forwards.submit((leader, member), submission, until).await
                    }
                };
                // A leader that hangs answers nothing; its successor is known all the same.
                let submitted = tokio::select! {
                    submitted = submitted => submitted,
                    () = self.until_not_led_by(leader) => Err(NotDone::Unknown),
                };
                known = match submitted {
                    Ok(outcome) => break outcome,
                    // It may have been proposed, now or before, and may still be applied.
                    Err(_) if before == Error::OutcomeUnknown => before,
                    Err(NotDone::Unknown) => Error::OutcomeUnknown,
                    Err(NotDone::Overloaded) => Error::Overloaded,
                    Err(NotDone::UnknownCommand) => Error::UnknownCommand,
                    Err(NotDone::NotLeader) => before,
                };
                tokio::time::sleep(limits::PROPOSE_RETRY_PAUSE).await;
            };
            // It stands; only this node may be behind.
            self.until_applied(outcome.index).await;
            outcome
        };
        let carried = tokio::time::timeout(limits::PROPOSE_TIMEOUT, carried).await;
        carried.map_err(|_| known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_below_the_watermark_is_open() {
        let numbers = Arc::new(Numbers::new(Origin::from_bytes([7; 16])));
        let watermark = |number: &Number| number.submission(&Bytes::new()).low_watermark;
        let (first, second) = (numbers.take().expect("room"), numbers.take().expect("room"));
        assert_eq!((first.sequence, second.sequence), (1, 2));
        assert_eq!((watermark(&first), watermark(&second)), (1, 1));
        drop(first);
        assert_eq!(watermark(&second), 2);
        let third = numbers.take().expect("room");
        drop(second);
        assert_eq!((third.sequence, watermark(&third)), (3, 3));
    }

    #[test]
    fn no_command_is_numbered_further_ahead_than_is_remembered() {
        let numbers = Arc::new(Numbers::new(Origin::from_bytes([7; 16])));
        let oldest = numbers.take().expect("room");
        for _ in 1..limits::SUBMISSIONS_AHEAD_MAX {
            drop(numbers.take().expect("room"));
        }
        assert!(numbers.take().is_none());
        drop(oldest);
        assert_eq!(numbers.take().expect("room").sequence, limits::SUBMISSIONS_AHEAD_MAX + 1);
    }

    #[test]
    fn beyond_as_many_as_may_be_open_nothing_is_proposed() {
        let numbers = Arc::new(Numbers::new(Origin::from_bytes([7; 16])));
        let mut open: Vec<_> =
            (0..limits::PROPOSALS_QUEUED_MAX).map(|_| numbers.take().expect("room")).collect();
        assert!(numbers.take().is_none());
        drop(open.pop());
        assert!(numbers.take().is_some());
    }
}
