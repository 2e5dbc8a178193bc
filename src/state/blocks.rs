//! Blocks as rows: which issuer blocks which fact for the sake of which family of events.
//!
//! Block and lift are each merged by the later time, so that they may come in any order: what counts is
//! which of them happened last, and of a tie the block. A block does not end by itself; a row that blocks
//! nothing is forgotten when no signal can come any more that is older than it.

use prost::Message as _;

use super::command::{BlockRow, Effect, EffectKind, Fact};
use super::idempotency::digest;
use super::revocations::forget_later;
use super::tables::{BLOCK, BLOCKS, META, Tables, decode};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::{Digest128, DigestKind};
use crate::limits;

/// How many rows there are.
///
/// # Errors
/// [`Corrupt`] if the row is not what was written.
pub fn count(tables: &Tables<'_>) -> Result<u64, Corrupt> {
    tables.number(BLOCKS)
}

/// Blocks a fact, or lifts that.
///
/// # Errors
/// [`Corrupt`] if a row is not what was written.
pub fn put(
    tables: &mut Tables<'_>,
    now: Timestamp,
    effect: &Effect,
    fact: Fact,
    issuer: &str,
    reason: &str,
) -> Result<(), Corrupt> {
    let by = Digest128::of(DigestKind::SignalFamily, issuer.as_bytes(), effect.family.as_bytes());
    let key = [&fact.digest[..], by.as_bytes()].concat();
    let known = if let Some(row) = tables.row(BLOCK, &key)? {
        decode::<BlockRow>(BLOCK, &row)?
    } else {
        let blocks = count(tables)?.saturating_add(1);
        tables.put(META, BLOCKS, blocks.to_be_bytes().to_vec());
        BlockRow::default()
    };
    let at = Some(effect.happened_at_millis);
    let (blocked, lifted) = match effect.kind() {
        EffectKind::Block => (known.blocked_at_millis.max(at), known.lifted_at_millis),
        _ => (known.blocked_at_millis, known.lifted_at_millis.max(at)),
    };
    let row = BlockRow {
        blocked_at_millis: blocked,
        lifted_at_millis: lifted,
        fact: Some(Fact { digest: bytes::Bytes::new(), ..fact }),
        issuer: issuer.to_owned(),
        family: effect.family.clone(),
        reason: reason.to_owned(),
        changed_at_millis: now.millis(),
    };
    tables.put(BLOCK, &key, row.encode_to_vec());
    if !is_blocked(&row) {
        forget_later(tables, now, &key);
    }
    Ok(())
}

/// Forgets a row, if it has blocked nothing for long enough.
///
/// # Errors
/// [`Corrupt`] if it is not what was written.
pub fn forget_if_ended(tables: &mut Tables<'_>, now: Timestamp, key: &[u8]) -> Result<(), Corrupt> {
    let Some(row) = tables.row(BLOCK, key)? else { return Ok(()) };
    let row = decode::<BlockRow>(BLOCK, &row)?;
    let ends_at = Timestamp::from_millis(row.changed_at_millis).plus(limits::REVOCATION_RETENTION);
    if !is_blocked(&row) && ends_at < now {
        tables.delete(BLOCK, key);
        let blocks = count(tables)?.saturating_sub(1);
        tables.put(META, BLOCKS, blocks.to_be_bytes().to_vec());
    }
    Ok(())
}

/// `None` is less than any time.
fn is_blocked(row: &BlockRow) -> bool {
    row.blocked_at_millis.is_some() && row.blocked_at_millis >= row.lifted_at_millis
}

/// What the index in memory needs of a row of [`BLOCK`]: the fact, who blocks it, and whether it is blocked.
///
/// # Errors
/// [`Corrupt`] if it is not what was written.
pub fn standing(key: &[u8], row: &[u8]) -> Result<(Digest128, Digest128, bool), Corrupt> {
    let (fact, by) = key.split_at_checked(16).ok_or_else(|| Corrupt::row("the key of a block is short"))?;
    let row = decode::<BlockRow>(BLOCK, row)?;
    Ok((digest(fact)?, digest(by)?, is_blocked(&row)))
}
