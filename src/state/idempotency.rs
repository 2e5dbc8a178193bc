//! The outcome of a command, remembered under the caller's `Idempotency-Key` (contract §1, Writes).
//!
//! Only what stands is remembered: a refusal leaves nothing behind, and the same key may try again.

use bytes::Bytes;
use prost::Message as _;

use super::bucket::Bucketed;
use super::command::{self, Idempotency, IdempotencyRow, Refusal, Reply, Told};
use super::tables::{IDEMPOTENCY, Tables, decode};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::Digest128;
use crate::limits;

/// By the digest of (caller, key).
pub const KEYS: Bucketed = Bucketed {
    table: IDEMPOTENCY,
    oldest: b"oldest_idempotency_bucket",
    retention: limits::IDEMPOTENCY_RETENTION,
};

/// What came of the same request before: its outcome again, or a refusal if the key came with another
/// request. `None` if the key is new.
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn outcome(
    tables: &Tables<'_>,
    now: Timestamp,
    idempotency: &Idempotency,
) -> Result<Option<Told<Reply>>, Corrupt> {
    let Some(row) = KEYS.find(tables, now, &digest(&idempotency.key)?)? else { return Ok(None) };
    let row = decode::<IdempotencyRow>(IDEMPOTENCY, &row)?;
    // A nonce that was spent under the key has left no outcome: this is another request.
    if row.request != idempotency.request || row.reply.is_empty() {
        return Ok(Some(Told::first(Reply::Refused(Refusal::IdempotencyKeyReused))));
    }
    let reply = command::decode_reply(&row.reply);
    let reply = reply.ok_or_else(|| Corrupt::row("a remembered outcome cannot be decoded"))?;
    Ok(Some(Told::repeated(reply.outcome)))
}

/// Remembers what came of a request, unless it was refused.
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn remember(
    tables: &mut Tables<'_>,
    now: Timestamp,
    idempotency: &Idempotency,
    reply: &Bytes,
) -> Result<(), Corrupt> {
    if command::decode_reply(reply).is_none_or(|told| matches!(told.outcome, Reply::Refused(_))) {
        return Ok(());
    }
    let row = IdempotencyRow { request: idempotency.request.clone(), reply: reply.clone() };
    KEYS.remember(tables, now, &digest(&idempotency.key)?, row.encode_to_vec())
}

/// A digest as the log has it.
///
/// # Errors
/// [`Corrupt`] if it is not 16 bytes.
pub fn digest(bytes: &[u8]) -> Result<Digest128, Corrupt> {
    bytes.try_into().map(Digest128::from_bytes).map_err(|_| Corrupt::row("a digest is not 16 bytes"))
}
