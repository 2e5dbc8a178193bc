//! The commands of the log as they are on disk (`proto/command.proto`).
//!
//! Fields are only added. A node that reads an unknown version or command stops.

use bytes::Bytes;
use prost::Message as _;

use super::Error;
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, ProposerId, Stamp, Submission};

/// Generated from `proto/command.proto`.
#[allow(clippy::pedantic, missing_docs, reason = "generated code")]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/trust_fabric.command.v1.rs"));
}

pub use proto::command::Body as Command;
pub use proto::effect::Kind as EffectKind;
pub use proto::tool_written::How;
pub use proto::{
    AcceptSignal, AdvanceStream, Agent, AgentIssued, AgentRow, AllocateNode, AllowRevocations,
    AppendAuditBlocks, AuditBlockRow, AuditBucketsRow, AuditContent, AuditHead, AuditHeader, AuditNodeRow,
    BearerIssued, BlockRow, Bootstrap, Caller, ChangeStreamSubject, CheckStateHash, CreateStream, DeadLetter,
    DeadLetterRow, DeleteStream, DeregisterTool, Effect, EncryptionKeyRegistered, EncryptionKeyRow, EventId,
    Fact, FeedRow, FloorRow, Idempotency, IdempotencyRow, ImportLedger, IssueAgent, JoinNode,
    KeptDeadLetters, LedgerEpochRow, LedgerRow, LedgerSum, LiftBlock, MintedToken, NewAuditBlock, Node,
    NodeRole, NodeStage, NodeWritten, OutboxRow, PeerAct, PeerEntry, PeerFault, PeerKeys, PeerRow,
    PolicyHistoryRow, PolicyRow, PolicySource, ProposerRow, PublishSigningKey, PutPolicy, PutTool,
    RaiseFeatureLevel, RecordExchange, Refusal, RegisterEncryptionKey, Registrar, RemoveEncryptionKey,
    ReplyRow, Restore, RetireSigningKey, RevocationQuotaRow, RevocationRow, Revoke, RevokeAgent, Revoked,
    SecurityEvent, SetPeer, SetStreamStatus, SigningKeyRow, Since, SpendToken, Stream, StreamCursorRow,
    StreamRow, StreamStatus, StreamWritten, TaintSigningKey, Tool, ToolRow, ToolVersion, ToolWritten,
    UpdateStream, VerifyStream, WantRole,
};
#[cfg(not(feature = "level-0"))]
pub use proto::{MemberVersion, RecordVersion};

/// Version of the format.
const VERSION: u32 = 2;

/// `None` for an empty text: a row has no other way to leave one out.
#[must_use]
pub fn stated<T: AsRef<str>>(text: T) -> Option<T> {
    Some(text).filter(|text| !text.as_ref().is_empty())
}

/// A decoded batch.
#[derive(Debug)]
pub struct Batch {
    /// Times of the leader when it proposed the batch.
    pub stamp: Stamp,
    /// The commands, in order.
    pub commands: Vec<Submitted>,
}

/// A decoded command with its id, idempotency key and caller.
#[derive(Debug)]
pub struct Submitted {
    pub id: CommandId,
    pub command: Command,
    /// The caller's `Idempotency-Key`.
    pub idempotency: Option<Idempotency>,
    /// The caller that caused it; `None` for the node itself and for an anonymous caller.
    pub caller: Option<Caller>,
}

/// Id of a command, and the low watermark of its proposer, as in [`Submission`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandId {
    /// Id of the proposing process.
    pub proposer: ProposerId,
    /// Number of the command.
    pub sequence: u64,
    /// The proposer resends no command with a smaller sequence.
    pub low_watermark: u64,
}

/// Outcome of a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// It is applied.
    Done {
        /// False if the state was so already.
        changed: bool,
    },
    /// It was refused and changed nothing.
    Refused(Refusal),
    /// A tool is registered.
    Tool(ToolWritten),
    /// An agent was issued.
    Agent(AgentIssued),
    /// An encryption key is registered.
    EncryptionKey(EncryptionKeyRegistered),
    /// An operator's revocation is applied.
    Revoked(Revoked),
    /// A stream is created or changed.
    Stream(StreamWritten),
    /// An exchange is recorded.
    Minted(MintedToken),
    /// A node id is allocated, or its node joined.
    Node(NodeWritten),
}

impl Reply {
    /// Whether the command changed anything; an error for a reply with content.
    pub fn changed(&self) -> Result<bool, Error> {
        match self {
            Self::Done { changed } => Ok(*changed),
            _ => Err(Error::Undecodable),
        }
    }
}

/// Outcome of a command, as it is returned to the proposer.
#[derive(Clone, Debug, PartialEq)]
pub struct Replied<T> {
    pub outcome: T,
    /// Whether it is the outcome of an earlier command with the same `Idempotency-Key`; then this one changed nothing.
    pub is_repeated: bool,
}

impl<T> Replied<T> {
    /// Outcome of this command.
    pub const fn first(outcome: T) -> Self {
        Self { outcome, is_repeated: false }
    }

    /// Outcome of an earlier command.
    pub const fn repeated(outcome: T) -> Self {
        Self { outcome, is_repeated: true }
    }
}

/// Encodes one command.
#[must_use]
pub fn encode(command: Command) -> Bytes {
    encode_once(command, None)
}

/// Encodes one command, whose outcome is stored under the caller's `Idempotency-Key`.
#[must_use]
pub fn encode_once(command: Command, idempotency: Option<Idempotency>) -> Bytes {
    encode_for(command, idempotency, None)
}

/// Encodes one command that a caller caused.
#[must_use]
pub fn encode_for(command: Command, idempotency: Option<Idempotency>, caller: Option<Caller>) -> Bytes {
    proto::Command { body: Some(command), idempotency, caller }.encode_to_vec().into()
}

/// Encodes submissions as a batch.
#[must_use]
pub fn encode_batch(stamp: Stamp, submissions: Vec<Submission>) -> Bytes {
    let mut batch = proto::Batch {
        version: VERSION,
        time_millis: stamp.time.millis(),
        latest_millis: stamp.latest.millis(),
        elapsed_millis: stamp.elapsed.millis(),
        ..proto::Batch::default()
    };
    for Submission { proposer, sequence, low_watermark, command } in submissions {
        batch.commands.push(command);
        let index = batch.proposers.iter().position(|known| known[..] == proposer.as_bytes()[..]);
        let index = index.unwrap_or_else(|| {
            batch.proposers.push(Bytes::copy_from_slice(proposer.as_bytes()));
            batch.proposers.len() - 1
        });
        let proposer = u32::try_from(index).unwrap_or(u32::MAX);
        match batch.runs.last_mut() {
            Some(run)
                if (run.proposer, run.low_watermark, end_of(run))
                    == (proposer, low_watermark, Some(sequence)) =>
            {
                run.commands += 1;
            }
            _ => {
                batch.runs.push(proto::Run {
                    proposer,
                    first_sequence: sequence,
                    low_watermark,
                    commands: 1,
                });
            }
        }
    }
    batch.encode_to_vec().into()
}

/// Sequence after a run; `None` on overflow.
fn end_of(run: &proto::Run) -> Option<u64> {
    run.first_sequence.checked_add(u64::from(run.commands))
}

/// Decodes a batch.
///
/// # Errors
/// [`Corrupt`] if it has another version, an unknown command, or contradicts itself.
pub fn decode_batch(bytes: &[u8]) -> Result<Batch, Corrupt> {
    let undecodable = |error| Corrupt::row(format_args!("decode command: {error}"));
    let batch = proto::Batch::decode(bytes).map_err(undecodable)?;
    let ids = ids_of(&batch)?;
    let decode = |(bytes, id): (Bytes, CommandId)| {
        let command = proto::Command::decode(bytes).map_err(undecodable)?;
        let body = command.body.ok_or_else(|| Corrupt::newer("the log holds a command that is not known"))?;
        Ok(Submitted { id, command: body, idempotency: command.idempotency, caller: command.caller })
    };
    let commands = batch.commands.into_iter().zip(ids).map(decode).collect::<Result<_, _>>()?;
    let stamp = Stamp {
        time: Timestamp::from_millis(batch.time_millis),
        latest: Timestamp::from_millis(batch.latest_millis),
        elapsed: Timestamp::from_millis(batch.elapsed_millis),
    };
    Ok(Batch { stamp, commands })
}

/// Whether a command may be proposed: [`decode_batch`] can decode it, and it is not one of an offline restore.
#[must_use]
pub fn is_proposable(command: &[u8]) -> bool {
    let body = proto::Command::decode(command).ok().and_then(|command| command.body);
    body.is_some_and(|body| !matches!(body, Command::Restore(_)))
}

/// Whether a command adds data that stays for longer than minutes: tools, agents, encryption keys, streams, policies,
/// invitations, and the nonces of execution scopes. The rows of the others expire, are few, or free space.
#[must_use]
pub fn adds_data(command: &[u8]) -> bool {
    match proto::Command::decode(command).ok().and_then(|command| command.body) {
        Some(Command::PutPolicy(put)) => !put.is_seed,
        Some(
            Command::PutTool(_)
            | Command::IssueAgent(_)
            | Command::RegisterEncryptionKey(_)
            | Command::CreateStream(_)
            | Command::AllocateNode(_)
            | Command::RecordExchange(_),
        ) => true,
        _ => false,
    }
}

/// The id of each command of a batch.
fn ids_of(batch: &proto::Batch) -> Result<Vec<CommandId>, Corrupt> {
    let contradiction = |reason| Corrupt::row(format_args!("decode command: {reason}"));
    let commands = batch.commands.len();
    if batch.version != VERSION {
        let version = batch.version;
        return Err(Corrupt::newer(format_args!("the log holds commands of version {version}")));
    }
    let id = |bytes: &Bytes| bytes.as_ref().try_into().map(ProposerId::from_bytes);
    let proposers: Vec<ProposerId> = batch
        .proposers
        .iter()
        .map(id)
        .collect::<Result<_, _>>()
        .map_err(|_| contradiction("a proposer id is not 16 bytes"))?;
    let mut ids = Vec::with_capacity(commands);
    for run in &batch.runs {
        let proposer = usize::try_from(run.proposer).ok().and_then(|index| proposers.get(index));
        let proposer = *proposer.ok_or_else(|| contradiction("a run of commands has no proposer"))?;
        // The last sequence does not overflow, and no count alone exhausts memory.
        let is_whole = run.first_sequence.checked_add(u64::from(run.commands.saturating_sub(1))).is_some()
            && usize::try_from(run.commands).is_ok_and(|more| more <= commands - ids.len());
        if !is_whole {
            return Err(contradiction("a run has more commands than there are"));
        }
        let sequences = (0..u64::from(run.commands)).map(|offset| run.first_sequence + offset);
        let low_watermark = run.low_watermark;
        ids.extend(sequences.map(|sequence| CommandId { proposer, sequence, low_watermark }));
    }
    if ids.len() != commands {
        return Err(contradiction("there are commands without an id"));
    }
    Ok(ids)
}

/// Encodes a reply.
#[must_use]
pub fn encode_reply(reply: Replied<Reply>) -> Bytes {
    let body = match reply.outcome {
        Reply::Done { changed } => proto::reply::Body::Done(proto::Done { changed }),
        Reply::Refused(reason) => proto::reply::Body::Refused(proto::Refused { reason: i32::from(reason) }),
        Reply::Tool(written) => proto::reply::Body::ToolWritten(written),
        Reply::Agent(issued) => proto::reply::Body::AgentIssued(issued),
        Reply::EncryptionKey(registered) => proto::reply::Body::EncryptionKeyRegistered(registered),
        Reply::Revoked(revoked) => proto::reply::Body::Revoked(revoked),
        Reply::Stream(written) => proto::reply::Body::StreamWritten(written),
        Reply::Minted(token) => proto::reply::Body::Minted(token),
        Reply::Node(written) => proto::reply::Body::NodeWritten(written),
    };
    proto::Reply { body: Some(body), repeated: reply.is_repeated }.encode_to_vec().into()
}

/// Decodes a reply; `None` if this version does not know it.
#[must_use]
pub fn decode_reply(bytes: &[u8]) -> Option<Replied<Reply>> {
    let reply = proto::Reply::decode(bytes).ok()?;
    let outcome = match reply.body? {
        proto::reply::Body::Done(done) => Reply::Done { changed: done.changed },
        proto::reply::Body::Refused(refused) => Reply::Refused(Refusal::try_from(refused.reason).ok()?),
        proto::reply::Body::ToolWritten(written) => Reply::Tool(written),
        proto::reply::Body::AgentIssued(issued) => Reply::Agent(issued),
        proto::reply::Body::EncryptionKeyRegistered(registered) => Reply::EncryptionKey(registered),
        proto::reply::Body::Revoked(revoked) => Reply::Revoked(revoked),
        proto::reply::Body::StreamWritten(written) => Reply::Stream(written),
        proto::reply::Body::Minted(token) => Reply::Minted(token),
        proto::reply::Body::NodeWritten(written) => Reply::Node(written),
    };
    Some(Replied { outcome, is_repeated: reply.repeated })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn stamp(time: Timestamp) -> Stamp {
        let later = |millis| time.plus(Duration::from_millis(millis));
        Stamp { time, latest: later(1), elapsed: later(2) }
    }

    #[test]
    fn commands_that_remove_or_revoke_add_no_data() {
        let adding = [
            Command::PutTool(PutTool::default()),
            Command::IssueAgent(IssueAgent::default()),
            Command::RegisterEncryptionKey(RegisterEncryptionKey::default()),
            Command::CreateStream(CreateStream::default()),
            Command::AllocateNode(AllocateNode::default()),
            Command::PutPolicy(PutPolicy::default()),
            Command::RecordExchange(RecordExchange::default()),
        ];
        let others = [
            Command::PutPolicy(PutPolicy { is_seed: true, ..Default::default() }),
            Command::Revoke(Revoke::default()),
            Command::AcceptSignal(AcceptSignal::default()),
            Command::AllowRevocations(AllowRevocations::default()),
            Command::LiftBlock(LiftBlock::default()),
            Command::TaintSigningKey(TaintSigningKey::default()),
            Command::RetireSigningKey(RetireSigningKey::default()),
            Command::PublishSigningKey(PublishSigningKey::default()),
            Command::DeregisterTool(DeregisterTool::default()),
            Command::RevokeAgent(RevokeAgent::default()),
            Command::RemoveEncryptionKey(RemoveEncryptionKey::default()),
            Command::DeleteStream(DeleteStream::default()),
            Command::SetStreamStatus(SetStreamStatus::default()),
            Command::AdvanceStream(AdvanceStream::default()),
            Command::AppendAuditBlocks(AppendAuditBlocks::default()),
            Command::CheckStateHash(CheckStateHash::default()),
            Command::SpendToken(SpendToken::default()),
            Command::WantRole(WantRole::default()),
            Command::JoinNode(JoinNode::default()),
            Command::ImportLedger(ImportLedger::default()),
            Command::SetPeer(SetPeer::default()),
        ];
        for command in adding {
            assert!(adds_data(&encode(command.clone())), "{command:?}");
        }
        for command in others {
            assert!(!adds_data(&encode(command.clone())), "{command:?}");
        }
        assert!(!adds_data(b"unknown"), "refused elsewhere");
    }

    #[test]
    fn batch_round_trips() {
        let commands = [
            encode(Command::RetireSigningKey(RetireSigningKey { kid: "k".into() })),
            encode(Command::SpendToken(SpendToken {
                token: Bytes::from_static(&[7; 16]),
                ..Default::default()
            })),
        ];
        let submissions = vec![submission(1, 7, commands[0].clone()), submission(1, 8, commands[1].clone())];
        let stamp = stamp(Timestamp::from_secs(9));
        let batch = decode_batch(&encode_batch(stamp, submissions)).expect("decodes");
        assert_eq!(batch.stamp, stamp);
        let bodies: Vec<_> = batch.commands.iter().map(|submitted| &submitted.command).collect();
        assert!(matches!(bodies[..], [Command::RetireSigningKey(_), Command::SpendToken(_)]));
        assert!(batch.commands.iter().all(|submitted| submitted.idempotency.is_none()));
    }

    /// A submission with a low watermark a little below its sequence.
    fn submission(id: u8, sequence: u64, command: Bytes) -> Submission {
        let proposer = ProposerId::from_bytes([id; 16]);
        Submission { proposer, sequence, low_watermark: sequence.saturating_sub(5), command }
    }

    fn retire() -> Bytes {
        encode(Command::RetireSigningKey(RetireSigningKey { kid: "k".into() }))
    }

    #[test]
    fn ids_round_trip_in_any_order() {
        let last = u64::MAX;
        for ids in [
            &[][..],
            &[(1, 1, 1), (1, 2, 1), (1, 3, 1), (1, 4, 3), (1, 5, 3)],
            &[(1, 1, 1), (2, 2, 1), (1, 3, 1), (3, 1, 0), (3, 2, 0), (1, 4, 1)],
            &[(1, 5, 1), (1, 5, 1), (1, 4, 1), (1, 7, 1), (1, 8, 9)],
            &[(1, last - 1, last), (1, last, last), (1, 0, last), (1, last, last), (1, last, last)],
        ] {
            let submission = |&(id, sequence, low_watermark)| {
                let proposer = ProposerId::from_bytes([id; 16]);
                Submission { proposer, sequence, low_watermark, command: retire() }
            };
            let batch = encode_batch(Stamp::default(), ids.iter().map(submission).collect());
            let commands = decode_batch(&batch).expect("decodes").commands;
            let decoded = commands.iter().map(|submitted| {
                let id = submitted.id;
                (id.proposer.as_bytes()[0], id.sequence, id.low_watermark)
            });
            assert_eq!(decoded.collect::<Vec<_>>(), ids);
        }
    }

    #[test]
    fn consecutive_ids_are_encoded_as_one_run() {
        let submission = |sequence| Submission {
            proposer: ProposerId::from_bytes([1; 16]),
            sequence,
            low_watermark: 1_000_000,
            command: retire(),
        };
        let of = |commands: u64| (1_000_000..1_000_000 + commands).map(submission).collect();
        let bytes = encode_batch(Stamp::default(), of(512)).len();
        assert!(bytes <= 512 * (retire().len() + 2) + 40, "{bytes}");
    }

    #[test]
    fn contradictory_batch_is_corrupt() {
        let run = |proposer, first_sequence, commands| proto::Run {
            proposer,
            first_sequence,
            low_watermark: 1,
            commands,
        };
        let batch = |version, proposers: &[&'static [u8]], runs: &[proto::Run]| proto::Batch {
            version,
            commands: vec![retire(), retire()],
            proposers: proposers.iter().map(|bytes| Bytes::from_static(bytes)).collect(),
            runs: runs.to_vec(),
            ..proto::Batch::default()
        };
        let a: &[&[u8]] = &[&[1; 16]];
        let (long, short): (&[&[u8]], &[&[u8]]) = (&[&[1; 17]], &[&[1; 15]]);
        for (is_whole, batch) in [
            (true, batch(2, a, &[run(0, 1, 2)])),
            (true, batch(2, a, &[run(0, 1, 1), run(0, 1, 1)])),
            (true, batch(2, a, &[run(0, 1, 1), run(0, 2, 0), run(0, 2, 1)])),
            (true, batch(2, a, &[run(0, u64::MAX - 1, 2)])),
            (false, batch(1, &[], &[])),
            (false, batch(1, a, &[run(0, 1, 2)])),
            (false, batch(2, &[], &[])),
            (false, batch(2, a, &[])),
            (false, batch(2, a, &[run(0, 1, 1)])),
            (false, batch(2, a, &[run(0, 1, 3)])),
            (false, batch(2, a, &[run(0, 1, 2), run(0, 3, 1)])),
            (false, batch(2, a, &[run(0, 1, u32::MAX)])),
            (false, batch(2, a, &[run(0, u64::MAX, 2)])),
            (false, batch(2, a, &[run(1, 1, 2)])),
            (false, batch(2, a, &[run(u32::MAX, 1, 2)])),
            (false, batch(2, &[], &[run(0, 1, 2)])),
            (false, batch(2, long, &[run(0, 1, 2)])),
            (false, batch(2, short, &[run(0, 1, 2)])),
            (false, batch(2, &[&[1; 16], &[]], &[run(0, 1, 2)])),
        ] {
            let decoded = decode_batch(&batch.encode_to_vec());
            assert_eq!(decoded.is_ok(), is_whole, "{batch:?}");
        }
    }

    #[test]
    fn unknown_version_or_command_is_an_error() {
        for version in [0, 1, 3] {
            let other = proto::Batch { version, ..Default::default() }.encode_to_vec();
            let refusal = decode_batch(&other).expect_err("another version").to_string();
            assert!(refusal.contains("too old"), "{refusal}");
        }
        // Field 99 of `Command`, length-delimited, empty.
        let unknown = submission(1, 1, Bytes::from_static(&[0x9a, 0x06, 0x00]));
        let unknown = encode_batch(Stamp::default(), vec![unknown]);
        assert!(decode_batch(&unknown).expect_err("unknown").to_string().contains("not known"));
    }

    #[test]
    fn encoding_of_commands_is_stable() {
        let command =
            encode(Command::TaintSigningKey(TaintSigningKey { kid: "k".into(), ..Default::default() }));
        assert_eq!(command[..], [42, 3, 10, 1, b'k']);
        let stamp = Stamp { time: Timestamp::from_millis(5), ..Stamp::default() };
        let commands = (8..=9)
            .map(|sequence| Submission { low_watermark: 3, ..submission(7, sequence, command.clone()) });
        let other = Submission { low_watermark: 1, ..submission(6, 1, command.clone()) };
        let batch = encode_batch(stamp, commands.chain([other]).collect());
        let expected = [
            &[8, 2, 16, 5][..],
            &[26, 5, 42, 3, 10, 1, b'k'].repeat(3),
            &[50, 16],
            &[7; 16],
            &[50, 16],
            &[6; 16],
            &[58, 6, 16, 8, 24, 3, 32, 2],
            &[58, 8, 8, 1, 16, 1, 24, 1, 32, 1],
        ];
        assert_eq!(batch[..], expected.concat());
        for reply in [
            Reply::Done { changed: true },
            Reply::Done { changed: false },
            Reply::Refused(Refusal::NonceSpent),
        ] {
            for reply in [Replied::first(reply.clone()), Replied::repeated(reply.clone())] {
                assert_eq!(decode_reply(&encode_reply(reply.clone())), Some(reply));
            }
        }
    }

    #[test]
    fn encoding_of_stream_commands_is_stable() {
        let event = SecurityEvent {
            event_type: "t".into(),
            sub_id: "{}".into(),
            claims: "{}".into(),
            txn: String::new(),
            via: Vec::new(),
        };
        let event_bytes = [10, 1, b't', 18, 2, b'{', b'}', 26, 2, b'{', b'}'];
        let id = |index, number| Some(EventId { index, number });
        let s = || "s".to_owned();
        let stream = || Some(Stream { stream_id: s(), endpoint_url: Some("u".into()), ..Stream::default() });
        let cursor = StreamCursorRow {
            next: id(1, 2),
            done: id(3, 0).into_iter().collect(),
            delivered: 4,
            ..Default::default()
        };
        let letter = DeadLetter { id: id(1, 0), err: "e".into(), ..DeadLetter::default() };
        let signal = AcceptSignal { events: vec![event.clone()], subject: s(), ..AcceptSignal::default() };
        let status = SetStreamStatus {
            stream_id: s(),
            status: StreamStatus::Disabled.into(),
            reason: "r".into(),
            by_transmitter: true,
            changes: None,
        };
        let advance = AdvanceStream {
            stream_id: s(),
            version: 3,
            cursor: Some(cursor),
            dead_letters: vec![letter],
            filter: None,
        };
        let change = ChangeStreamSubject { stream_id: s(), sub_id: "{}".into(), removed: true };
        for (command, bytes) in [
            (Command::AcceptSignal(signal), [&[114, 16, 58, 11][..], &event_bytes, &[66, 1, b's']].concat()),
            (
                Command::Revoke(Revoke { event: Some(event.clone()), ..Revoke::default() }),
                [&[122, 13, 58, 11][..], &event_bytes].concat(),
            ),
            (
                Command::RevokeAgent(RevokeAgent { event: Some(event), ..RevokeAgent::default() }),
                [&[90, 13, 42, 11][..], &event_bytes].concat(),
            ),
            (
                Command::CreateStream(CreateStream { stream: stream() }),
                vec![146, 1, 8, 10, 6, 10, 1, b's', 50, 1, b'u'],
            ),
            (
                Command::UpdateStream(UpdateStream { stream: stream(), revision: 9 }),
                vec![154, 1, 10, 10, 6, 10, 1, b's', 50, 1, b'u', 16, 9],
            ),
            (Command::SetStreamStatus(status), vec![162, 1, 10, 10, 1, b's', 16, 2, 26, 1, b'r', 32, 1]),
            (Command::ChangeStreamSubject(change), vec![170, 1, 9, 10, 1, b's', 18, 2, b'{', b'}', 24, 1]),
            (
                Command::VerifyStream(VerifyStream { stream_id: s(), state: "x".into() }),
                vec![178, 1, 6, 10, 1, b's', 18, 1, b'x'],
            ),
            (Command::DeleteStream(DeleteStream { stream_id: s() }), vec![186, 1, 3, 10, 1, b's']),
            (
                Command::AdvanceStream(advance),
                [
                    &[194, 1, 28, 10, 1, b's', 16, 3][..],
                    &[26, 12, 10, 4, 8, 1, 16, 2, 18, 2, 8, 3, 32, 4],
                    &[34, 7, 10, 2, 8, 1, 18, 1, b'e'],
                ]
                .concat(),
            ),
        ] {
            assert_eq!(encode(command.clone())[..], bytes[..], "{command:?}");
        }
    }

    #[test]
    fn stream_replies_round_trip() {
        let row = StreamRow { stream: Some(Stream::default()), revision: 1, ..StreamRow::default() };
        let refusals = [
            Refusal::UnknownStream,
            Refusal::TooManyStreams,
            Refusal::StreamChanged,
            Refusal::StreamNotEnabled,
            Refusal::VerifiedTooOften,
            Refusal::TooManySubjects,
        ];
        assert_eq!(refusals.map(i32::from), [22, 23, 24, 25, 26, 27]);
        let refusals = refusals.into_iter().map(Reply::Refused);
        for reply in refusals.chain([Reply::Stream(StreamWritten { row: Some(row) })]) {
            let reply = Replied::first(reply);
            assert_eq!(decode_reply(&encode_reply(reply.clone())), Some(reply));
        }
    }

    #[test]
    fn encoding_of_node_commands_and_replies_is_stable() {
        let token_digest = Bytes::from_static(&[7; 2]);
        let role = NodeRole::Voter.into();
        let allocate =
            AllocateNode { token_digest: token_digest.clone(), role, replaces: Some(3), caller: "c".into() };
        let disk_id = vec![8; 2].into();
        let join = JoinNode { node_id: 4, token_digest, address: "a".into(), disk_id, feature_level: 1 };
        let raise = RaiseFeatureLevel { level: 1, node_ids: vec![3, 4], caller: "c".into() };
        let version = Some(MemberVersion { version: "v".into(), feature_level: 1 });
        let record = RecordVersion { node_id: 4, version };
        let want = WantRole { node_id: 4, role: NodeRole::Removed.into(), caller: "c".into() };
        for (command, bytes) in [
            (Command::AllocateNode(allocate), &[218, 1, 11, 10, 2, 7, 7, 16, 2, 24, 3, 34, 1, b'c'][..]),
            (Command::JoinNode(join), &[226, 1, 15, 8, 4, 18, 2, 7, 7, 26, 1, b'a', 34, 2, 8, 8, 40, 1]),
            (Command::WantRole(want), &[234, 1, 7, 8, 4, 16, 3, 26, 1, b'c']),
            (Command::RaiseFeatureLevel(raise), &[250, 1, 9, 8, 1, 18, 2, 3, 4, 26, 1, b'c']),
            (Command::RecordVersion(record), &[146, 2, 9, 8, 4, 18, 5, 10, 1, b'v', 16, 1]),
        ] {
            assert_eq!(encode(command.clone())[..], *bytes, "{command:?}");
            assert!(is_proposable(&encode(command)));
        }
        let node = Node { node_id: 4, stage: NodeStage::Removed.into(), removed_index: 9, ..Node::default() };
        assert_eq!(node.encode_to_vec(), [8, 4, 16, 5, 88, 9]);
        let refusals = [
            Refusal::UnknownNode,
            Refusal::NodeRemoved,
            Refusal::NodeNotJoined,
            Refusal::LastVoter,
            Refusal::UnknownJoinToken,
            Refusal::JoinTokenExpired,
            Refusal::JoinTokenUsed,
            Refusal::TooManyJoinTokens,
            Refusal::TooManyMembers,
            Refusal::NotReplaceable,
            Refusal::NodeAddressUsed,
            Refusal::ClusterWithoutListener,
            Refusal::NodeIdsExhausted,
            Refusal::NodeRoleNotAllowed,
            Refusal::FeatureLevelTooLow,
            Refusal::JoinerTooOld,
            Refusal::MembersChanged,
        ];
        assert!(refusals.iter().map(|refusal| i32::from(*refusal)).eq(37..=53));
        let written = Reply::Node(NodeWritten { changed: true, node: Some(node) });
        for reply in refusals.into_iter().map(Reply::Refused).chain([written]) {
            let reply = Replied::first(reply);
            assert_eq!(decode_reply(&encode_reply(reply.clone())), Some(reply));
        }
    }
}
