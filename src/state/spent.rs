//! Single use, once in the whole cluster: the nonce of an execution scope is spent by the exchange that
//! brings it, and an execution-scoped token by its first verification.

use bytes::Bytes;
use prost::Message as _;

use super::bucket::Bucketed;
use super::command::{Command, IdempotencyRow, NonceRow, Refusal, Reply, SpendNonce};
use super::idempotency::{KEYS, digest};
use super::tables::{IDEMPOTENCY, NONCE, Tables, decode};
use super::{Error, Idempotency, State};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::Digest128;
use crate::limits;

const NONCES: Bucketed =
    Bucketed { table: NONCE, oldest: b"oldest_nonce_bucket", retention: limits::NONCE_RETENTION };

/// What the tables know of a nonce, and of the idempotency key that comes with it.
enum Known {
    /// Nothing of the nonce; the key may have come before, with the same request.
    Unspent { key_is_known: bool },
    /// The same request spent it, under the same key.
    SpentByThisRequest,
    /// Another request spent it.
    Spent,
    /// The key came with another request.
    KeyReused,
}

fn known(tables: &Tables<'_>, now: Timestamp, command: &SpendNonce) -> Result<Known, Corrupt> {
    let row = match &command.idempotency_key {
        none if none.is_empty() => None,
        key => KEYS.find(tables, now, &digest(key)?)?,
    };
    let key_is_known = row.is_some();
    if let Some(row) = row
        && decode::<IdempotencyRow>(IDEMPOTENCY, &row)?.request != command.request
    {
        return Ok(Known::KeyReused);
    }
    let Some(row) = NONCES.find(tables, now, &digest(&command.nonce)?)? else {
        return Ok(Known::Unspent { key_is_known });
    };
    let spent_with = decode::<NonceRow>(NONCE, &row)?.idempotency_key;
    let is_retry = key_is_known && spent_with == command.idempotency_key;
    Ok(if is_retry { Known::SpentByThisRequest } else { Known::Spent })
}

/// Spends a nonce. With the idempotency key it was spent with, the same request passes again;
/// another request under that key is refused. A refusal remembers nothing.
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn spend(tables: &mut Tables<'_>, now: Timestamp, command: &SpendNonce) -> Result<Reply, Corrupt> {
    let key_is_known = match known(tables, now, command)? {
        Known::KeyReused => return Ok(Reply::Refused(Refusal::IdempotencyKeyReused)),
        Known::Spent => return Ok(Reply::Refused(Refusal::NonceSpent)),
        Known::SpentByThisRequest => return Ok(Reply::Done { changed: false }),
        Known::Unspent { key_is_known } => key_is_known,
    };
    let row = NonceRow { idempotency_key: command.idempotency_key.clone() };
    NONCES.remember(tables, now, &digest(&command.nonce)?, row.encode_to_vec())?;
    if !command.idempotency_key.is_empty() && !key_is_known {
        let row = IdempotencyRow { request: command.request.clone(), reply: Bytes::new() };
        KEYS.remember(tables, now, &digest(&command.idempotency_key)?, row.encode_to_vec())?;
    }
    Ok(Reply::Done { changed: true })
}

fn command(nonce: Digest128, idempotency: Option<Idempotency>) -> SpendNonce {
    let bytes = |digest: Digest128| Bytes::copy_from_slice(digest.as_bytes());
    SpendNonce {
        nonce: bytes(nonce),
        idempotency_key: idempotency.map_or_else(Bytes::new, |idempotency| bytes(idempotency.key)),
        request: idempotency.map_or_else(Bytes::new, |idempotency| bytes(idempotency.request)),
    }
}

impl State {
    /// Spends a nonce, once in the whole cluster.
    ///
    /// # Errors
    /// [`Error::NonceSpent`], [`Error::IdempotencyKeyReused`], or as [`Error::Write`] says.
    pub async fn spend_nonce(&self, nonce: Digest128, idempotency: Option<Idempotency>) -> Result<(), Error> {
        self.propose(Command::SpendNonce(command(nonce, idempotency))).await.map(drop)
    }

    /// Whether this node knows that [`Self::spend_nonce`] would be refused because the nonce is spent. It
    /// may be spent meanwhile: only spending it decides.
    ///
    /// # Errors
    /// [`Error::IdempotencyKeyReused`], [`Error::Damaged`].
    pub fn is_spent(&self, nonce: Digest128, idempotency: Option<Idempotency>) -> Result<bool, Error> {
        let tables = Tables::new(self.core.view());
        match known(&tables, tables.passed()?, &command(nonce, idempotency))? {
            Known::KeyReused => Err(Error::IdempotencyKeyReused),
            Known::Spent => Ok(true),
            Known::SpentByThisRequest | Known::Unspent { .. } => Ok(false),
        }
    }
}
