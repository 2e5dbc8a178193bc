//! Single use: the nonce of an execution scope is spent once in the whole cluster.

use bytes::Bytes;
use prost::Message as _;

use super::bucket::Bucketed;
use super::command::{IdempotencyRow, NonceRow, Refusal, Reply, SpendNonce};
use super::idempotency::{KEYS, digest};
use super::tables::{IDEMPOTENCY, NONCE, Tables, decode};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::limits;

const NONCES: Bucketed =
    Bucketed { table: NONCE, oldest: b"oldest_nonce_bucket", retention: limits::NONCE_RETENTION };

/// Spends a nonce. With the idempotency key it was spent with, the same request passes again;
/// another request under that key is refused. A refusal remembers nothing.
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn spend(tables: &mut Tables<'_>, now: Timestamp, command: &SpendNonce) -> Result<Reply, Corrupt> {
    let key = if command.idempotency_key.is_empty() { None } else { Some(digest(&command.idempotency_key)?) };
    let known = match &key {
        None => None,
        Some(key) => KEYS.find(tables, now, key)?,
    };
    if let Some(row) = &known
        && decode::<IdempotencyRow>(IDEMPOTENCY, row)?.request != command.request
    {
        return Ok(Reply::Refused(Refusal::IdempotencyKeyReused));
    }
    let nonce = digest(&command.nonce)?;
    if let Some(row) = NONCES.find(tables, now, &nonce)? {
        let spent_with = decode::<NonceRow>(NONCE, &row)?.idempotency_key;
        let is_retry = known.is_some() && spent_with == command.idempotency_key;
        return Ok(if is_retry {
            Reply::Done { changed: false }
        } else {
            Reply::Refused(Refusal::NonceSpent)
        });
    }
    let row = NonceRow { idempotency_key: command.idempotency_key.clone() };
    NONCES.remember(tables, now, &nonce, row.encode_to_vec())?;
    if let (Some(key), None) = (&key, known) {
        let row = IdempotencyRow { request: command.request.clone(), reply: Bytes::new() };
        KEYS.remember(tables, now, key, row.encode_to_vec())?;
    }
    Ok(Reply::Done { changed: true })
}
