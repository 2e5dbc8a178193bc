//! Proposals: many commands in one log entry, several entries under way.
//!
//! Whoever proposes waits until its command is applied on this node, so it reads its own write.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use openraft::errors::{ClientWriteError, RaftError};
use tokio::sync::{mpsc, oneshot};

use super::machine::StateMachine;
use super::types::{Commands, TypeConfig};
use super::{Machine, Stamp, network::NoPeers};
use crate::clock::{Clock, Timestamp};
use crate::limits;

/// The consensus library, running our state machine.
pub type Raft<M> = openraft::Raft<TypeConfig, StateMachine<M>>;

/// Why a command was not applied, or not known to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The queue is full; nothing was proposed.
    #[error("too many writes are waiting")]
    Overloaded,
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

struct Proposal {
    command: Bytes,
    answer: oneshot::Sender<Result<Outcome, Error>>,
}

/// Where commands are handed in.
#[derive(Clone)]
pub struct Proposer {
    queue: mpsc::Sender<Proposal>,
}

impl Proposer {
    /// A proposer, and the work that must run for it to get anywhere. The work ends when every
    /// clone of the proposer is gone.
    pub fn new<M: Machine>(raft: Raft<M>, clock: Clock) -> (Self, impl Future<Output = ()> + Send) {
        let (proposer, queue) = Self::queue();
        (proposer, work(raft, clock, queue))
    }

    fn queue() -> (Self, mpsc::Receiver<Proposal>) {
        let (sender, queue) = mpsc::channel(limits::PROPOSALS_QUEUED_MAX);
        (Self { queue: sender }, queue)
    }

    /// Proposes an encoded command and waits until it is applied here.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn propose(&self, command: Bytes) -> Result<Outcome, Error> {
        let (answer, outcome) = oneshot::channel();
        self.queue.try_send(Proposal { command, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Error::Overloaded,
            mpsc::error::TrySendError::Closed(_) => Error::Stopping,
        })?;
        match tokio::time::timeout(limits::PROPOSE_TIMEOUT, outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => Err(Error::OutcomeUnknown),
        }
    }
}

async fn work<M: Machine>(raft: Raft<M>, clock: Clock, mut queue: mpsc::Receiver<Proposal>) {
    let mut under_way = FuturesUnordered::new();
    let mut stamps = Stamps { clock, last: None };
    loop {
        let room = under_way.len() < limits::ENTRIES_IN_FLIGHT_MAX;
        tokio::select! {
            first = queue.recv(), if room => {
                let Some(first) = first else { break };
                let batch = gather(first, &mut queue);
                under_way.push(propose_batch(&raft, stamps.next(), batch));
            }
            Some(()) = under_way.next() => {}
        }
    }
    while under_way.next().await.is_some() {}
}

/// What waits behind `first`, up to the limits of one entry.
fn gather(first: Proposal, queue: &mut mpsc::Receiver<Proposal>) -> Vec<Proposal> {
    let mut bytes = first.command.len();
    let mut batch = vec![first];
    while batch.len() < limits::COMMANDS_PER_ENTRY_MAX && bytes < limits::ENTRY_BYTES_FULL {
        let Ok(next) = queue.try_recv() else { break };
        bytes += next.command.len();
        batch.push(next);
    }
    batch
}

/// The times that entries are stamped with: never back, and never further ahead than time has
/// really passed. One wrong reading of the clock would otherwise stay in the log for good.
struct Stamps {
    clock: Clock,
    last: Option<(Timestamp, Duration)>,
}

impl Stamps {
    fn next(&mut self) -> Stamp {
        let (wall, boot) = (self.clock.now(), self.clock.boot());
        let stamp = match self.last {
            None => wall,
            Some((last, at)) => {
                let expected = last.plus(boot.saturating_sub(at));
                if wall.since(expected) > limits::CLOCK_STEP_MAX {
                    tracing::warn!(ahead = ?wall.since(expected), "the clock was set ahead; it is not followed");
                    expected
                } else {
                    last.max(wall)
                }
            }
        };
        let elapsed = self.last.map_or(Duration::ZERO, |(_, at)| boot.saturating_sub(at));
        self.last = Some((stamp, boot));
        Stamp { time: stamp, wall, elapsed }
    }
}

async fn propose_batch<M: Machine>(raft: &Raft<M>, stamp: Stamp, batch: Vec<Proposal>) {
    let (commands, answers): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|proposal| (proposal.command, proposal.answer)).unzip();
    let written = raft.client_write(Commands(M::batch(stamp, commands))).await;
    match written {
        Ok(written) => {
            let index = written.log_id.index;
            let replies = written.data.0;
            for (answer, reply) in answers.into_iter().zip(replies) {
                // The asker may have given up; the command stands all the same.
                drop(answer.send(Ok(Outcome { index, reply })));
            }
        }
        Err(error) => {
            let error = match error {
                RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => Error::NoLeader,
                RaftError::APIError(_) | RaftError::Fatal(_) => Error::OutcomeUnknown,
            };
            for answer in answers {
                drop(answer.send(Err(error.clone())));
            }
        }
    }
}

/// The library's configuration (reasons: `docs/decisions/2026-11-20-openraft-alpha-exact-pin.md`).
///
/// # Errors
/// If the figures contradict each other.
pub fn raft_config(heartbeat: Duration) -> Result<Arc<openraft::Config>, openraft::ConfigError> {
    let heartbeat_millis = u64::try_from(heartbeat.as_millis()).unwrap_or(u64::MAX);
    openraft::Config {
        cluster_name: "trust-fabric".to_owned(),
        heartbeat_interval: heartbeat_millis,
        election_timeout_min: heartbeat_millis * 3,
        election_timeout_max: heartbeat_millis * 6,
        // The default, 200 ms, also bounds how long a whole snapshot may take.
        install_snapshot_timeout: 60_000,
        // A follower should catch up from the log; a snapshot that purges what apply still needs
        // has taken whole clusters down.
        max_in_snapshot_log_to_keep: 500_000,
        snapshot_policy: openraft::SnapshotPolicy::LogsSinceLast(100_000),
        enable_pre_vote: Some(true),
        // A restarted leader must be elected again before it may believe it leads.
        enable_leader_restore: Some(false),
        ..openraft::Config::default()
    }
    .validate()
    .map(Arc::new)
}

/// The network of a cluster of one.
#[must_use]
pub const fn network() -> NoPeers {
    NoPeers
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn proposal(bytes: usize) -> Proposal {
        Proposal { command: Bytes::from(vec![0; bytes]), answer: oneshot::channel().0 }
    }

    #[tokio::test]
    async fn beyond_the_queue_nothing_is_proposed() {
        let (proposer, mut queue) = Proposer::queue();
        for _ in 0..limits::PROPOSALS_QUEUED_MAX {
            assert!(proposer.propose(Bytes::new()).now_or_never().is_none(), "waits for its outcome");
        }
        assert_eq!(proposer.propose(Bytes::new()).now_or_never(), Some(Err(Error::Overloaded)));
        drop(queue.try_recv().expect("one less"));
        assert!(proposer.propose(Bytes::new()).now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_is_not_applied_in_time_has_an_unknown_outcome() {
        let (proposer, _queue) = Proposer::queue();
        let a_tick = Duration::from_millis(2);
        let almost = limits::PROPOSE_TIMEOUT.saturating_sub(a_tick);
        let waited = tokio::time::timeout(almost, proposer.propose(Bytes::new())).await;
        assert!(waited.is_err(), "still waiting");
        let most = limits::PROPOSE_TIMEOUT + a_tick;
        let answered = tokio::time::timeout(most, proposer.propose(Bytes::new())).await;
        assert_eq!(answered, Ok(Err(Error::OutcomeUnknown)));
    }

    #[test]
    fn an_entry_takes_so_many_commands_or_so_many_bytes() {
        let (proposer, mut queue) = Proposer::queue();
        for (bytes, expected) in [
            (1, limits::COMMANDS_PER_ENTRY_MAX),
            (limits::ENTRY_BYTES_FULL / 4, 4),
            // One byte below full lets one more in.
            (limits::ENTRY_BYTES_FULL - 1, 2),
        ] {
            for _ in 0..=limits::COMMANDS_PER_ENTRY_MAX.min(expected + 1) {
                proposer.queue.try_send(proposal(bytes)).expect("room");
            }
            let first = queue.try_recv().expect("waits");
            assert_eq!(gather(first, &mut queue).len(), expected, "{bytes}");
            while queue.try_recv().is_ok() {}
        }
    }

    #[test]
    fn a_clock_set_far_ahead_is_not_followed() {
        let start = Timestamp::from_secs(1_000_000);
        let after = |step: Duration| {
            // A manual clock has one time for both, so the step is in what was stamped before.
            let clock = Clock::manual(start);
            let last = Some((start.minus(step), clock.boot()));
            Stamps { clock, last }.next().time
        };
        assert_eq!(after(limits::CLOCK_STEP_MAX), start);
        let beyond = limits::CLOCK_STEP_MAX + Duration::from_millis(1);
        assert_eq!(after(beyond), start.minus(beyond), "no further than time has passed");
    }

    #[test]
    fn a_stamp_tells_the_wall_clock_as_it_stands_and_only_time_that_has_passed() {
        let clock = Clock::manual(Timestamp::from_secs(1_000_000));
        let mut stamps = Stamps { clock: clock.clone(), last: None };
        // A process knows nothing of the time before it.
        assert_eq!(stamps.next().elapsed, Duration::ZERO);
        clock.advance(Duration::from_secs(7));
        let stamp = stamps.next();
        assert_eq!((stamp.elapsed, stamp.wall), (Duration::from_secs(7), clock.now()));
        stamps.last = stamps.last.map(|(time, boot)| (time.minus(Duration::from_secs(86_400)), boot));
        let stamp = stamps.next();
        assert_eq!((stamp.elapsed, stamp.wall), (Duration::ZERO, clock.now()));
        assert_eq!(stamp.time, clock.now().minus(Duration::from_secs(86_400)), "log time does not follow");
    }
}
