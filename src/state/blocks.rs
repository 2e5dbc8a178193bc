//! Blocks as rows: which issuer blocks which fact for the sake of which family of events.
//!
//! Block and lift are each merged by the later time, so that they may come in any order: what counts is
//! which of them happened last, and of a tie the block. A block does not end by itself; a row that blocks
//! nothing is forgotten when no signal can come any more that is older than it.

use prost::Message as _;

use super::command::{BlockRow, Effect, EffectKind, Fact};
use super::idempotency::digest;
use super::revocations::{end, kept_until};
use super::signals::{self, Kept};
use super::tables::{BLOCK, BLOCKS, META, Moment, REVOCATION_END, Tables, decode};
use crate::cluster::Corrupt;
use crate::id::{Digest128, DigestKind};

/// How many rows there are.
///
/// # Errors
/// [`Corrupt`] if the row is not what was written.
pub fn count(tables: &Tables<'_>) -> Result<u64, Corrupt> {
    tables.number(BLOCKS)
}

/// The key of the row that says whether `issuer` blocks a fact for the sake of `family`.
#[must_use]
pub fn key(fact: &Fact, issuer: &str, family: &str) -> Vec<u8> {
    let by = Digest128::of(DigestKind::SignalFamily, issuer.as_bytes(), family.as_bytes());
    [&fact.digest[..], by.as_bytes()].concat()
}

/// Blocks a fact, or lifts that.
///
/// # Errors
/// [`Corrupt`] if a row is not what was written.
pub fn put(
    tables: &mut Tables<'_>,
    moment: Moment,
    effect: &Effect,
    fact: Fact,
    issuer: &str,
    reason: &str,
) -> Result<(), Corrupt> {
    let key = key(&fact, issuer, &effect.family);
    let known = if let Some(row) = tables.row(BLOCK, &key)? {
        let known = decode::<BlockRow>(BLOCK, &row)?;
        tables.delete(REVOCATION_END, &end(known.kept_until_millis, &key));
        known
    } else {
        let blocks = count(tables)?.saturating_add(1);
        tables.put(META, BLOCKS, blocks.to_be_bytes().to_vec());
        signals::count(tables, issuer, Kept::Block, true)?;
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
        kept_until_millis: kept_until(moment).millis(),
    };
    tables.put(BLOCK, &key, row.encode_to_vec());
    if !is_blocked(&row) {
        tables.put(REVOCATION_END, &end(row.kept_until_millis, &key), Vec::new());
    }
    Ok(())
}

/// Forgets a row, if it has blocked nothing for long enough.
///
/// # Errors
/// [`Corrupt`] if it is not what was written.
pub fn forget_if_ended(tables: &mut Tables<'_>, moment: Moment, key: &[u8]) -> Result<(), Corrupt> {
    let Some(row) = tables.row(BLOCK, key)? else { return Ok(()) };
    let row = decode::<BlockRow>(BLOCK, &row)?;
    if !is_blocked(&row) && row.kept_until_millis < moment.passed.millis() {
        tables.delete(BLOCK, key);
        let blocks = count(tables)?.saturating_sub(1);
        tables.put(META, BLOCKS, blocks.to_be_bytes().to_vec());
        signals::count(tables, &row.issuer, Kept::Block, false)?;
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
