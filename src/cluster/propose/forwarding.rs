//! Forwarding: sends commands to the leader over one long-lived stream, many in flight, answered in any order.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::batcher::{AppliedCommand, SubmitError};
use crate::clock::Clock;
use crate::cluster::peers::{Channels, Purpose, proto};
use crate::cluster::type_config::MemberRecord;
use crate::cluster::{DiskShortage, ProposerId, Submission};
use crate::limits;
use crate::telemetry::FailureLog;

type OutcomeSender = oneshot::Sender<Result<AppliedCommand, SubmitError>>;

struct ForwardRequest {
    to: u64,
    member: MemberRecord,
    submission: Submission,
    /// Deadline on the boot clock.
    until: Duration,
    answer: OutcomeSender,
}

/// Queue of commands for the leader.
#[derive(Clone)]
pub(crate) struct Forwarder {
    queue: mpsc::Sender<ForwardRequest>,
}

/// The stream to one leader, and the commands in flight on it.
struct Stream {
    to: u64,
    commands: mpsc::Sender<proto::Forwarded>,
    answers: Streaming<proto::Proposed>,
    /// By sequence. Dropped with the stream: their outcome is then unknown.
    waiting: HashMap<u64, OutcomeSender>,
}

impl Forwarder {
    /// The queue, and the task that empties it. The task ends when every clone of the queue is dropped.
    pub(crate) fn new(channels: Arc<Channels>, clock: Clock) -> (Self, impl Future<Output = ()> + Send) {
        let (queue, items) = mpsc::channel(limits::PROPOSALS_QUEUED_MAX);
        (Self { queue }, work((channels, clock), items))
    }

    /// Sends a submission to the node `to`, the last known leader. It is not proposed after `until` of the boot clock.
    pub(crate) async fn submit(
        &self,
        (to, member): (u64, MemberRecord),
        submission: Submission,
        until: Duration,
    ) -> Result<AppliedCommand, SubmitError> {
        let (answer, outcome) = oneshot::channel();
        self.queue
            .try_send(ForwardRequest { to, member, submission, until, answer })
            .map_err(|_| SubmitError::Overloaded)?;
        outcome.await.unwrap_or(Err(SubmitError::Unknown))
    }
}

async fn work((channels, clock): (Arc<Channels>, Clock), mut items: mpsc::Receiver<ForwardRequest>) {
    let failures = FailureLog::new(clock.clone(), "forwarding to the leader");
    let mut stream: Option<Stream> = None;
    // A node that was unreachable, and when the next attempt is allowed: each attempt may take long, and other commands
    // wait.
    let mut unreached: Option<(u64, Duration)> = None;
    loop {
        tokio::select! {
            item = items.recv() => {
                let Some(item) = item else { break };
                let now = clock.boot();
                if item.answer.is_closed() || item.until <= now {
                    drop(item.answer.send(Err(SubmitError::Overloaded)));
                    continue;
                }
                let is_unreached = unreached.is_some_and(|(to, until)| to == item.to && now < until);
                if stream.as_ref().is_none_or(|stream| stream.to != item.to) && !is_unreached {
                    // Ends the wait of all commands on the previous stream.
                    drop(stream.take());
                    stream = Stream::open(&channels, &item, &failures).await;
                    let until = clock.boot() + limits::PEER_RETRY_PAUSE;
                    unreached = stream.is_none().then_some((item.to, until));
                }
                match &mut stream {
                    Some(stream) if stream.to == item.to => stream.send(item, now),
                    // No stream: nothing was sent.
                    _ => drop(item.answer.send(Err(SubmitError::NotLeader))),
                }
            }
            answer = next(&mut stream) => match answer {
                Some(Ok(proposed)) => stream.iter_mut().for_each(|stream| stream.take(&proposed)),
                Some(Err(status)) => {
                    if let Some(ended) = stream.take() {
                        failures.failed(&ended.to, &status.message());
                    }
                }
                None => stream = None,
            }
        }
    }
}

/// The next response; pending for ever without a stream.
async fn next(stream: &mut Option<Stream>) -> Option<Result<proto::Proposed, Status>> {
    match stream {
        Some(stream) => stream.answers.next().await,
        None => std::future::pending().await,
    }
}

impl Stream {
    async fn open(channels: &Channels, item: &ForwardRequest, failures: &FailureLog<u64>) -> Option<Self> {
        let client = channels.shared(Purpose::Commands, item.to, &item.member).ok()?;
        // Room for all commands in flight, so that sending never waits for a response.
        let (commands, sent) = mpsc::channel(limits::PROPOSALS_QUEUED_MAX);
        let mut peer = client.peer();
        let opened = peer.forward(client.request(ReceiverStream::new(sent)));
        match tokio::time::timeout(limits::PEER_CONNECT_TIMEOUT, opened).await {
            Ok(Ok(answers)) => {
                failures.succeeded(&item.to);
                Some(Self { to: item.to, commands, answers: answers.into_inner(), waiting: HashMap::new() })
            }
            Ok(Err(status)) => {
                failures.failed(&item.to, &status.message());
                None
            }
            Err(_) => {
                failures.failed(&item.to, &"timeout");
                None
            }
        }
    }

    fn send(&mut self, item: ForwardRequest, now: Duration) {
        let sequence = item.submission.sequence;
        if self.commands.try_send(to_proto(item.submission, item.until.saturating_sub(now))).is_ok() {
            // A retry replaces the waiter of its first attempt, which is gone.
            self.waiting.insert(sequence, item.answer);
        } else {
            drop(item.answer.send(Err(SubmitError::Overloaded)));
        }
        // Waiters past their deadline are dropped.
        if self.waiting.len() > limits::PROPOSALS_QUEUED_MAX {
            self.waiting.retain(|_, answer| !answer.is_closed());
        }
    }

    fn take(&mut self, proposed: &proto::Proposed) {
        use proto::proposed::Outcome as Reported;
        let Some(answer) = self.waiting.remove(&proposed.sequence) else { return };
        let node_id = self.to;
        let outcome = match &proposed.outcome {
            Some(Reported::Done(done)) => Ok(AppliedCommand { index: done.index, reply: done.reply.clone() }),
            Some(Reported::Refused(refusal)) => Err(match proto::Refusal::try_from(*refusal) {
                Ok(proto::Refusal::NotLeader) => SubmitError::NotLeader,
                Ok(proto::Refusal::Overloaded) => SubmitError::Overloaded,
                Ok(proto::Refusal::UnknownCommand) => SubmitError::UnknownCommand,
                Ok(proto::Refusal::Unspecified) | Err(_) => SubmitError::Unknown,
            }),
            Some(Reported::DiskShortage(proto::DiskShortage { free_bytes: free, needed_bytes: needed })) => {
                Err(SubmitError::DiskShortage(DiskShortage { node_id, free: *free, needed: *needed }))
            }
            None => Err(SubmitError::Unknown),
        };
        drop(answer.send(outcome));
    }
}

fn to_proto(submission: Submission, remaining: Duration) -> proto::Forwarded {
    let Submission { proposer, sequence, low_watermark, command } = submission;
    let origin = bytes::Bytes::copy_from_slice(proposer.as_bytes());
    let patience_millis = u32::try_from(remaining.as_millis()).unwrap_or(u32::MAX);
    proto::Forwarded { origin, sequence, low_watermark, command, patience_millis }
}

/// Decodes a forwarded command and the remaining time of its proposer.
pub(crate) fn from_proto(forwarded: proto::Forwarded) -> Result<(Submission, Duration), &'static str> {
    let proto::Forwarded { origin, sequence, low_watermark, command, patience_millis } = forwarded;
    let origin = origin.as_ref().try_into().map_err(|_| "origin: must be 16 bytes")?;
    if sequence == 0 || low_watermark == 0 || low_watermark > sequence {
        return Err("low_watermark: must be from 1 to the sequence");
    }
    let remaining = Duration::from_millis(patience_millis.into()).min(limits::PROPOSE_TIMEOUT);
    let submission =
        Submission { proposer: ProposerId::from_bytes(origin), sequence, low_watermark, command };
    Ok((submission, remaining))
}

/// Encodes the outcome of a forwarded command.
pub(crate) fn proposed(sequence: u64, outcome: Result<AppliedCommand, SubmitError>) -> proto::Proposed {
    use proto::proposed::Outcome as Reported;
    let outcome = match outcome {
        Ok(AppliedCommand { index, reply }) => Reported::Done(proto::Done { index, reply }),
        Err(SubmitError::NotLeader) => Reported::Refused(proto::Refusal::NotLeader.into()),
        Err(SubmitError::Overloaded) => Reported::Refused(proto::Refusal::Overloaded.into()),
        Err(SubmitError::UnknownCommand) => Reported::Refused(proto::Refusal::UnknownCommand.into()),
        Err(SubmitError::Unknown) => Reported::Refused(proto::Refusal::Unspecified.into()),
        Err(SubmitError::DiskShortage(DiskShortage { free, needed, .. })) => {
            Reported::DiskShortage(proto::DiskShortage { free_bytes: free, needed_bytes: needed })
        }
    };
    proto::Proposed { sequence, outcome: Some(outcome) }
}
