//! Outcomes of commands, stored under the caller's `Idempotency-Key` (contract §1, Writes).
//!
//! Only outcomes that changed something are stored: after a refusal the same key may be used again. They are stored
//! without the content of the request, so that large requests do not occupy the state twice.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;

use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::{Digest128, DigestKind};
use crate::limits;
use crate::state::command;
use crate::state::command::{
    Command, How, IdempotencyRow, Refusal, Replied, Reply, Stream, StreamRow, StreamWritten,
};
use crate::state::tables::ttl_buckets::{QuotaLimits, TtlBuckets};
use crate::state::tables::{IDEMPOTENCY, Tables, decode};

/// An `Idempotency-Key` and the request that came with it, as digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// Digest of (caller, key).
    pub key: Digest128,
    /// Digest of the request's body.
    pub request: Digest128,
    /// Digest of the caller, by [`owner`].
    pub owner: Digest128,
}

/// Digest of a caller as the owner of stored keys; an empty text for anonymous callers, which share one quota.
#[must_use]
pub fn owner(caller: &str) -> Digest128 {
    Digest128::of(DigestKind::Owner, b"", caller.as_bytes())
}

impl From<Idempotency> for command::Idempotency {
    fn from(idempotency: Idempotency) -> Self {
        let bytes = |digest: Digest128| Bytes::copy_from_slice(digest.as_bytes());
        let Idempotency { key, request, owner } = idempotency;
        Self { key: bytes(key), request: bytes(request), owner: bytes(owner) }
    }
}

/// Keys, by the digest of (caller, key).
pub const KEYS: TtlBuckets = TtlBuckets {
    table: IDEMPOTENCY,
    oldest: b"oldest_idempotency_bucket",
    retention: limits::IDEMPOTENCY_RETENTION,
    bucket: Duration::from_secs(6 * 3600),
};
const KEYS_LIMITS: QuotaLimits =
    QuotaLimits { per_owner: limits::IDEMPOTENCY_KEYS_PER_CALLER_MAX, total: limits::IDEMPOTENCY_KEYS_MAX };

/// The stored outcome of an earlier request, completed with the content of `command`, or a refusal if the key was used
/// with another request. `None` if the key is new. Of an agent only its id is returned.
pub fn outcome(
    tables: &Tables<'_>,
    now: Timestamp,
    idempotency: &command::Idempotency,
    command: &Command,
) -> Result<Option<Replied<Reply>>, Corrupt> {
    let Some(row) = KEYS.find(tables, now, &digest(&idempotency.key)?)? else { return Ok(None) };
    let row = decode::<IdempotencyRow>(IDEMPOTENCY, &row)?;
    if row.request != idempotency.request {
        return Ok(Some(Replied::first(Reply::Refused(Refusal::IdempotencyKeyReused))));
    }
    let reply = command::decode_reply(&row.reply);
    let reply = reply.ok_or_else(|| Corrupt::row("a remembered outcome cannot be decoded"))?;
    Ok(Some(Replied::repeated(with_content(reply.outcome, command))))
}

/// Whether the outcome of a new key can be stored. Checked before the command is carried out: an outcome that could not
/// be repeated must not come about.
pub fn has_capacity(
    tables: &Tables<'_>,
    now: Timestamp,
    idempotency: &command::Idempotency,
) -> Result<bool, Corrupt> {
    KEYS.has_capacity(tables, now, &digest(&idempotency.owner)?, &KEYS_LIMITS)
}

/// Stores the outcome of a request if it changed something.
pub fn store(
    tables: &mut Tables<'_>,
    now: Timestamp,
    idempotency: &command::Idempotency,
    reply: &Reply,
) -> Result<(), Corrupt> {
    let Some(reply) = without_content(reply) else { return Ok(()) };
    let reply = command::encode_reply(Replied::first(reply));
    let row = IdempotencyRow { request: idempotency.request.clone(), reply };
    let (owner, key) = (digest(&idempotency.owner)?, digest(&idempotency.key)?);
    KEYS.insert_owned(tables, now, &owner, &key, row.encode_to_vec())
}

/// The part of an outcome that is stored; `None` for one that is not stored.
fn without_content(reply: &Reply) -> Option<Reply> {
    match reply {
        Reply::Refused(_) | Reply::Done { changed: false } => None,
        Reply::Tool(written) if written.how() == How::Unchanged => None,
        Reply::Stream(written) => {
            let row = written.row.as_ref()?;
            let stream_id = row.stream.as_ref()?.stream_id.clone();
            let stream = Some(Stream { stream_id, ..Stream::default() });
            let row = StreamRow { stream, removed_subjects: Vec::new(), ..row.clone() };
            Some(Reply::Stream(StreamWritten { row: Some(row) }))
        }
        Reply::Node(written) if !written.changed => None,
        Reply::Done { .. }
        | Reply::Tool(_)
        | Reply::Agent(_)
        | Reply::EncryptionKey(_)
        | Reply::Revoked(_)
        | Reply::Minted(_)
        | Reply::Node(_) => Some(reply.clone()),
    }
}

/// Restores the content from the command: the same key and request imply the same content.
fn with_content(mut reply: Reply, command: &Command) -> Reply {
    if let (Reply::Stream(StreamWritten { row: Some(row) }), Command::CreateStream(command)) =
        (&mut reply, command)
    {
        // A retry draws another id; the stored one counts.
        let stream_id = row.stream.take().unwrap_or_default().stream_id;
        row.stream = command.stream.clone().map(|stream| Stream { stream_id, ..stream });
    }
    reply
}

/// Parses a digest of 16 bytes.
pub fn digest(bytes: &[u8]) -> Result<Digest128, Corrupt> {
    bytes.try_into().map(Digest128::from_bytes).map_err(|_| Corrupt::row("a digest is not 16 bytes"))
}
