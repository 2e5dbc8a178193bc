//! The commands of the log as they are on disk (`proto/command.proto`), and nothing else.
//!
//! Fields are only added. A node that meets a version or command it does not know stops.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;

use crate::clock::Timestamp;
use crate::cluster::{Corrupt, Stamp};

/// Generated from `proto/command.proto`.
#[allow(clippy::pedantic, missing_docs, reason = "generated code")]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/trust_fabric.command.v1.rs"));
}

pub use proto::command::Body as Command;
pub use proto::effect::Kind as EffectKind;
pub use proto::tool_written::How;
pub use proto::{
    AcceptSignal, AdvanceStream, Agent, AgentIssued, AgentRow, AllowRevocations, AppendAuditBlock,
    AuditBlockRow, AuditHead, AuditNodeRow, BlockRow, Bootstrap, ChangeStreamSubject, CheckStateHash,
    CreateStream, DeadLetter, DeadLetterRow, DeleteStream, DeregisterTool, Effect, EncryptionKeyRegistered,
    EncryptionKeyRow, EventId, Fact, FeedRow, Idempotency, IdempotencyRow, IssueAgent, KeptDeadLetters,
    LiftBlock, Metadata, NonceRow, OutboxRow, PolicyHistoryRow, PolicyRow, PolicySource, PublishSigningKey,
    PutPolicy, PutTool, Refusal, RegisterEncryptionKey, Registrar, RetireSigningKey, RevocationQuotaRow,
    RevocationRow, Revoke, RevokeAgent, Revoked, SecurityEvent, SetStreamStatus, SigningKeyRow, Since,
    SpendNonce, Stream, StreamCursorRow, StreamRow, StreamStatus, StreamWritten, TaintSigningKey, Tool,
    ToolRow, ToolVersion, ToolWritten, UpdateStream, VerifyStream,
};

/// The version of the format that this version writes.
const VERSION: u32 = 1;

/// A text of a row, unless it is empty: there is no other way to leave one out.
#[must_use]
pub fn stated<T: AsRef<str>>(text: T) -> Option<T> {
    Some(text).filter(|text| !text.as_ref().is_empty())
}

/// A decoded batch.
#[derive(Debug)]
pub struct Batch {
    /// The leader's time when it was proposed.
    pub stamp: Stamp,
    /// The commands, in order, each with the caller's `Idempotency-Key`, if it sent one.
    pub commands: Vec<(Command, Option<Idempotency>)>,
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// It stands; whether it changed anything.
    Done {
        /// False for a repetition of what already was.
        changed: bool,
    },
    /// It was refused and changed nothing.
    Refused(Refusal),
    /// A tool is as it was asked to be.
    Tool(ToolWritten),
    /// An agent was issued.
    Agent(AgentIssued),
    /// An encryption key is there.
    EncryptionKey(EncryptionKeyRegistered),
    /// An operator's revocation stands.
    Revoked(Revoked),
    /// A stream is as it was asked to be.
    Stream(StreamWritten),
}

/// What a command came to, as it is told to whoever proposed it.
#[derive(Clone, Debug, PartialEq)]
pub struct Told<T> {
    /// What it came to.
    pub outcome: T,
    /// Whether that is what an earlier command with the same `Idempotency-Key` came to: this one changed
    /// nothing.
    pub is_repeated: bool,
}

impl<T> Told<T> {
    /// Of a command that was carried out, or refused, itself.
    pub const fn first(outcome: T) -> Self {
        Self { outcome, is_repeated: false }
    }

    /// Of a command that was carried out before.
    pub const fn repeated(outcome: T) -> Self {
        Self { outcome, is_repeated: true }
    }
}

/// Encodes one command.
#[must_use]
pub fn encode(command: Command) -> Bytes {
    encode_once(command, None)
}

/// Encodes one command, whose outcome is remembered under the caller's `Idempotency-Key`.
#[must_use]
pub fn encode_once(command: Command, idempotency: Option<Idempotency>) -> Bytes {
    proto::Command { body: Some(command), idempotency }.encode_to_vec().into()
}

/// Joins encoded commands into a batch.
#[must_use]
pub fn encode_batch(stamp: Stamp, commands: Vec<Bytes>) -> Bytes {
    let batch = proto::Batch {
        version: VERSION,
        time_millis: stamp.time.millis(),
        commands,
        wall_millis: stamp.wall.millis(),
        elapsed_millis: u64::try_from(stamp.elapsed.as_millis()).unwrap_or(u64::MAX),
    };
    batch.encode_to_vec().into()
}

/// Takes a batch apart.
///
/// # Errors
/// [`Corrupt`] if it is of another version or holds a command that is not known.
pub fn decode_batch(bytes: &[u8]) -> Result<Batch, Corrupt> {
    let undecodable = |error| Corrupt::row(format_args!("decode command: {error}"));
    let batch = proto::Batch::decode(bytes).map_err(undecodable)?;
    if batch.version != VERSION {
        return Err(Corrupt::newer(format_args!("the log holds commands of version {}", batch.version)));
    }
    let decode = |bytes: Bytes| {
        let command = proto::Command::decode(bytes).map_err(undecodable)?;
        let body = command.body.ok_or_else(|| Corrupt::newer("the log holds a command that is not known"))?;
        Ok((body, command.idempotency))
    };
    let commands = batch.commands.into_iter().map(decode).collect::<Result<_, _>>()?;
    let stamp = Stamp {
        time: Timestamp::from_millis(batch.time_millis),
        wall: Timestamp::from_millis(batch.wall_millis),
        elapsed: Duration::from_millis(batch.elapsed_millis),
    };
    Ok(Batch { stamp, commands })
}

/// Encodes a reply.
#[must_use]
pub fn encode_reply(reply: Told<Reply>) -> Bytes {
    let body = match reply.outcome {
        Reply::Done { changed } => proto::reply::Body::Done(proto::Done { changed }),
        Reply::Refused(reason) => proto::reply::Body::Refused(proto::Refused { reason: i32::from(reason) }),
        Reply::Tool(written) => proto::reply::Body::ToolWritten(written),
        Reply::Agent(issued) => proto::reply::Body::AgentIssued(issued),
        Reply::EncryptionKey(registered) => proto::reply::Body::EncryptionKeyRegistered(registered),
        Reply::Revoked(revoked) => proto::reply::Body::Revoked(revoked),
        Reply::Stream(written) => proto::reply::Body::StreamWritten(written),
    };
    proto::Reply { body: Some(body), repeated: reply.is_repeated }.encode_to_vec().into()
}

/// Decodes a reply; `None` if it is none that this version knows.
#[must_use]
pub fn decode_reply(bytes: &[u8]) -> Option<Told<Reply>> {
    let reply = proto::Reply::decode(bytes).ok()?;
    let outcome = match reply.body? {
        proto::reply::Body::Done(done) => Reply::Done { changed: done.changed },
        proto::reply::Body::Refused(refused) => Reply::Refused(Refusal::try_from(refused.reason).ok()?),
        proto::reply::Body::ToolWritten(written) => Reply::Tool(written),
        proto::reply::Body::AgentIssued(issued) => Reply::Agent(issued),
        proto::reply::Body::EncryptionKeyRegistered(registered) => Reply::EncryptionKey(registered),
        proto::reply::Body::Revoked(revoked) => Reply::Revoked(revoked),
        proto::reply::Body::StreamWritten(written) => Reply::Stream(written),
    };
    Some(Told { outcome, is_repeated: reply.repeated })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(time: Timestamp) -> Stamp {
        Stamp { time, wall: time.plus(Duration::from_millis(1)), elapsed: Duration::from_millis(2) }
    }

    #[test]
    fn a_batch_survives_encoding() {
        let commands = vec![
            encode(Command::RetireSigningKey(RetireSigningKey { kid: "k".into() })),
            encode(Command::SpendNonce(SpendNonce {
                nonce: Bytes::from_static(&[7; 16]),
                ..Default::default()
            })),
        ];
        let batch = decode_batch(&encode_batch(stamp(Timestamp::from_secs(9)), commands)).expect("decodes");
        assert_eq!(batch.stamp, stamp(Timestamp::from_secs(9)));
        assert!(matches!(
            &batch.commands[..],
            [(Command::RetireSigningKey(_), None), (Command::SpendNonce(_), None)]
        ));
    }

    #[test]
    fn a_node_stops_at_a_version_or_command_it_does_not_know() {
        let newer = proto::Batch { version: 2, ..Default::default() }.encode_to_vec();
        let refusal = decode_batch(&newer).expect_err("newer").to_string();
        assert!(refusal.contains("too old"), "{refusal}");
        // Field 99 of `Command`, length-delimited, empty.
        let unknown = encode_batch(Stamp::default(), vec![Bytes::from_static(&[0x9a, 0x06, 0x00])]);
        assert!(decode_batch(&unknown).expect_err("unknown").to_string().contains("not known"));
    }

    #[test]
    fn the_bytes_on_disk_do_not_change() {
        let command =
            encode(Command::TaintSigningKey(TaintSigningKey { kid: "k".into(), ..Default::default() }));
        assert_eq!(command[..], [42, 3, 10, 1, b'k']);
        let batch =
            encode_batch(Stamp { time: Timestamp::from_millis(5), ..Stamp::default() }, vec![command]);
        assert_eq!(batch[..], [8, 1, 16, 5, 26, 5, 42, 3, 10, 1, b'k']);
        for reply in [
            Reply::Done { changed: true },
            Reply::Done { changed: false },
            Reply::Refused(Refusal::NonceSpent),
        ] {
            for told in [Told::first(reply.clone()), Told::repeated(reply.clone())] {
                assert_eq!(decode_reply(&encode_reply(told.clone())), Some(told));
            }
        }
    }

    #[test]
    fn the_bytes_of_streams_on_disk_do_not_change() {
        let event = SecurityEvent {
            event_type: "t".into(),
            sub_id: "{}".into(),
            claims: "{}".into(),
            txn: String::new(),
        };
        let event_bytes = [10, 1, b't', 18, 2, b'{', b'}', 26, 2, b'{', b'}'];
        let id = |index, number| Some(EventId { index, number });
        let s = || "s".to_owned();
        let stream = || Some(Stream { stream_id: s(), endpoint_url: "u".into(), ..Stream::default() });
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
            status: StreamStatus::StreamDisabled.into(),
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
    fn replies_about_streams_survive_encoding() {
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
            let told = Told::first(reply);
            assert_eq!(decode_reply(&encode_reply(told.clone())), Some(told));
        }
    }
}
