//! Subject blocks: the facts that an issuer blocks, per family of events.
//!
//! Block and lift are each merged by the later time, so that they may arrive in any order: the later of them counts, and
//! of a tie the block. A block does not expire; a lifted row is deleted when no signal older than it can arrive any more.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use prost::Message as _;

use super::issuer_quotas::{self, QuotaKind};
use super::ledger::LedgerState;
use super::revoked_fact::retained_until;
use super::{feed, ledger};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, View};
use crate::id::{Digest128, DigestKind};
use crate::limits;
use crate::state::command::{BlockRow, Command, Effect, EffectKind, Fact, LiftBlock, Refusal, Reply};
use crate::state::machine::idempotency::digest;
use crate::state::tables::{BLOCK, BLOCKS, EntryTime, REVOCATION_END, Tables, decode, time_key, try_scan};
use crate::state::{Error, OnBehalf, State};
use crate::token::lineage;

/// Issuer in the key of an operator's block. No issuer has an empty `iss`.
const OPERATOR: &str = "";
/// Family in the key of an operator's block.
const OPERATOR_FAMILY: &str = "operator";

/// Id of a subject block: the digest of the fact, and that of issuer and family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockId([u8; 32]);

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl FromStr for BlockId {
    type Err = InvalidBlockId;

    fn from_str(text: &str) -> Result<Self, InvalidBlockId> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| InvalidBlockId)?;
        bytes.try_into().map(Self).map_err(|_| InvalidBlockId)
    }
}

/// The text is not base64url of 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be the base64url of 32 bytes")]
pub struct InvalidBlockId;

/// A block that is not lifted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectBlock {
    pub id: BlockId,
    /// The blocked fact.
    pub fact: Fact,
    /// Issuer of the signal, or the operator; empty for an anonymous caller.
    pub by: String,
    /// Family of events.
    pub family: String,
    /// Time of the event, as its issuer states it.
    pub at: Timestamp,
    /// Reason, as its issuer states it; may be empty.
    pub reason: String,
}

impl SubjectBlock {
    fn read(key: &[u8], row: BlockRow) -> Result<Self, Corrupt> {
        let id = key.try_into().map_err(|_| Corrupt::row("the key of a block is not 32 bytes"))?;
        Ok(Self {
            id: BlockId(id),
            fact: row.fact.unwrap_or_default(),
            by: if row.issuer.is_empty() { row.by } else { row.issuer },
            family: row.family,
            at: Timestamp::from_millis(row.blocked_at_millis.unwrap_or_default()),
            reason: row.reason,
        })
    }
}

/// Number of rows.
pub fn count(tables: &Tables<'_>) -> Result<u64, Corrupt> {
    tables.number(BLOCKS)
}

/// Blocks a fact, or lifts its block.
pub fn put(
    tables: &mut Tables<'_>,
    time: EntryTime,
    effect: &Effect,
    fact: Fact,
    issuer: &str,
    reason: &str,
) -> Result<(), Corrupt> {
    let key = key(&fact.digest, issuer, &effect.family);
    let known = tables.message::<BlockRow>(BLOCK, &key)?;
    let before = known.as_ref().map(|known| known.index);
    let known = if let Some(known) = known {
        tables.delete(REVOCATION_END, &time_key(known.kept_until_millis, &key));
        known
    } else {
        tables.add(BLOCKS, 1)?;
        issuer_quotas::count(tables, issuer, QuotaKind::Block, true)?;
        BlockRow::default()
    };
    let at = Some(effect.happened_at_millis);
    let is_block = effect.kind() == EffectKind::Block;
    let (blocked, lifted) = if is_block {
        (known.blocked_at_millis.max(at), known.lifted_at_millis)
    } else {
        (known.blocked_at_millis, known.lifted_at_millis.max(at))
    };
    let has_changed = (blocked, lifted) != (known.blocked_at_millis, known.lifted_at_millis);
    let mut row = BlockRow {
        blocked_at_millis: blocked,
        lifted_at_millis: lifted,
        fact: Some(Fact { digest: Bytes::new(), ..fact }),
        issuer: issuer.to_owned(),
        family: effect.family.clone(),
        kept_until_millis: retained_until(time).millis(),
        by: String::new(),
        index: tables.entry_index(),
        ..known
    };
    let is_in_force = is_blocked(&row);
    // The reason is that of the effect that decided, not of one that came late.
    if has_changed && is_in_force == is_block {
        reason.clone_into(&mut row.reason);
    }
    let state = if is_in_force { LedgerState::Blocked } else { LedgerState::Lifted };
    ledger::record(tables, time.elapsed, &key, before, state)?;
    tables.put(BLOCK, &key, row.encode_to_vec());
    if !is_in_force {
        tables.put(REVOCATION_END, &time_key(row.kept_until_millis, &key), Vec::new());
    }
    Ok(())
}

/// Blocks a fact as an operator, from log time on, or from the time of a lift if that is later.
pub fn put_by_operator(
    tables: &mut Tables<'_>,
    time: EntryTime,
    fact: Fact,
    reason: &str,
    by: &str,
) -> Result<(), Corrupt> {
    let key = key(&fact.digest, OPERATOR, OPERATOR_FAMILY);
    let known = tables.message::<BlockRow>(BLOCK, &key)?;
    let lifted_at = known.and_then(|row| row.lifted_at_millis);
    let effect = Effect {
        kind: EffectKind::Block.into(),
        fact: None,
        family: OPERATOR_FAMILY.to_owned(),
        happened_at_millis: time.now.millis().max(lifted_at.unwrap_or(i64::MIN)),
    };
    put(tables, time, &effect, fact, OPERATOR, reason)?;
    if let Some(row) = tables.message::<BlockRow>(BLOCK, &key)? {
        let row = BlockRow { by: by.to_owned(), ..row };
        tables.put(BLOCK, &key, row.encode_to_vec());
    }
    Ok(())
}

/// Lifts a block as an operator, also one of an issuer. The issuer may block again by a later event, whose time it may
/// state in whole seconds: the lift counts from the beginning of its second.
pub fn lift(tables: &mut Tables<'_>, time: EntryTime, key: &[u8]) -> Result<Reply, Corrupt> {
    let row = tables.message::<BlockRow>(BLOCK, key)?;
    let Some(row) = row.filter(is_blocked) else { return Ok(Reply::Refused(Refusal::UnknownBlock)) };
    let after = row.blocked_at_millis.unwrap_or_default().saturating_add(1);
    let kept_until_millis = retained_until(time).millis();
    let lifted_at_millis = Some(after.max(time.now.millis() / 1000 * 1000));
    ledger::record(tables, time.elapsed, key, Some(row.index), LedgerState::Lifted)?;
    let row = BlockRow { lifted_at_millis, kept_until_millis, index: tables.entry_index(), ..row };
    tables.put(BLOCK, key, row.encode_to_vec());
    tables.put(REVOCATION_END, &time_key(kept_until_millis, key), Vec::new());
    let fact = row.fact.unwrap_or_default();
    let feed_event = feed::NewFeedEvent {
        kind: feed::FeedKind::Revocation,
        subject: &fact.value,
        target: &fact.issuer,
        detail: "block lifted",
    };
    feed::append(tables, time.now, feed_event)?;
    Ok(Reply::Done { changed: true })
}

/// Key of the block of the fact with this digest by `issuer` for `family`.
#[must_use]
pub fn key(fact: &[u8], issuer: &str, family: &str) -> Vec<u8> {
    let by = Digest128::of(DigestKind::SignalFamily, issuer.as_bytes(), family.as_bytes());
    [fact, by.as_bytes()].concat()
}

/// Deletes a lifted row after its retention.
pub fn delete_if_expired(tables: &mut Tables<'_>, time: EntryTime, key: &[u8]) -> Result<(), Corrupt> {
    let Some(row) = tables.message::<BlockRow>(BLOCK, key)? else { return Ok(()) };
    if !is_blocked(&row) && row.kept_until_millis < time.elapsed.millis() {
        tables.delete(BLOCK, key);
        ledger::forget(tables, key, row.index)?;
        tables.subtract(BLOCKS, 1)?;
        issuer_quotas::count(tables, &row.issuer, QuotaKind::Block, false)?;
    }
    Ok(())
}

/// Whether a block of the fact with this digest exists, after the earlier commands of this entry.
pub fn is_fact_blocked(tables: &Tables<'_>, fact: &Digest128) -> Result<bool, Corrupt> {
    let rows = tables.messages_under::<BlockRow>(BLOCK, fact.as_bytes())?;
    Ok(rows.iter().any(|(_, row)| is_blocked(row)))
}

/// Whether a row blocks. `None` is less than any time.
fn is_blocked(row: &BlockRow) -> bool {
    row.blocked_at_millis.is_some() && row.blocked_at_millis >= row.lifted_at_millis
}

/// Fields of a row of [`BLOCK`] for the index in memory: fact, blocker, and whether it is blocked.
pub fn status(key: &[u8], row: &[u8]) -> Result<(Digest128, Digest128, bool), Corrupt> {
    let (fact, by) = key.split_at_checked(16).ok_or_else(|| Corrupt::row("the key of a block is short"))?;
    let row = decode::<BlockRow>(BLOCK, row)?;
    Ok((digest(fact)?, digest(by)?, is_blocked(&row)))
}

fn list(
    view: &dyn View,
    after: Option<BlockId>,
    limit: usize,
) -> Result<(Vec<SubjectBlock>, Option<BlockId>), Corrupt> {
    // The smallest key after `after`.
    let from = after.map_or_else(Vec::new, |after| [&after.0[..], &[0]].concat());
    let (mut blocked, mut last, mut next, mut seen) = (Vec::new(), after, None, 0);
    try_scan(view, BLOCK, &from, |key, row| {
        if blocked.len() >= limit || seen >= limits::SUBJECT_BLOCKS_READ_PER_PAGE {
            next = last;
            return Ok(false);
        }
        seen += 1;
        let row = decode::<BlockRow>(BLOCK, row)?;
        let is_blocked = is_blocked(&row);
        let block = SubjectBlock::read(key, row)?;
        last = Some(block.id);
        blocked.extend(Some(block).filter(|_| is_blocked));
        Ok(true)
    })?;
    Ok((blocked, next))
}

impl State {
    /// At most `limit` blocks that are not lifted, after `after`, in the order of their ids, and the cursor of the next
    /// page. A page is shorter where many rows are lifted.
    pub fn blocks(
        &self,
        after: Option<BlockId>,
        limit: usize,
    ) -> Result<(Vec<SubjectBlock>, Option<BlockId>), Corrupt> {
        list(self.cluster.view(), after, limit)
    }

    /// Whether an operator blocks a fact.
    pub fn is_blocked_by_operator(&self, fact: &lineage::Fact) -> Result<bool, Corrupt> {
        let key = key(fact.digest().as_bytes(), OPERATOR, OPERATOR_FAMILY);
        let row = Tables::new(self.cluster.view()).message(BLOCK, &key)?;
        Ok(row.is_some_and(|row| is_blocked(&row)))
    }
}

impl OnBehalf<'_> {
    /// Lifts a block, also one of an issuer.
    ///
    /// # Errors
    /// `Refusal::UnknownBlock` also if it is lifted, `Refusal::IdempotencyKeyReused`.
    pub async fn lift_block(self, id: BlockId) -> Result<(), Error> {
        let command = LiftBlock { id: Bytes::copy_from_slice(&id.0) };
        self.propose_once(Command::LiftBlock(command)).await?.outcome.changed().map(drop)
    }
}

#[cfg(test)]
mod tests;
