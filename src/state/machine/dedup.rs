//! Deduplication: a command is applied once, however often it is proposed; its reply is retained until its proposer
//! has received it (design §3, Forwarding).
//!
//! A command is identified by proposer id and sequence, and carries the proposer's low watermark: the lowest sequence
//! that it may resend. Below the watermark, commands are not applied and replies are deleted. At or above it, a command
//! is applied once, and every duplicate gets the same reply, also if that is a refusal.
//!
//! A proposer that was idle for [`limits::PROPOSER_RETENTION`] waits for no reply: it gives up after
//! [`limits::PROPOSE_TIMEOUT`] by its boot clock. Its replies are deleted; its row stays, so that a late duplicate from
//! a suspended process or leader is refused and a new command is applied. The [`limits::PROPOSERS_UNUSED_MAX`] newest idle
//! rows are retained: a duplicate of a deleted one would be older than that many process starts.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;
use prost::Message as _;

use crate::breaks::{self, Break};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, ProposerId};
use crate::limits;
use crate::state::command;
use crate::state::command::{CommandId, ProposerRow, Refusal, Replied, Reply, ReplyRow};
use crate::state::tables::{PROPOSER, PROPOSERS, PROPOSERS_SWEPT, REPLY, Tables};

/// Proposers of the commands of one entry.
pub struct Dedup {
    elapsed: Timestamp,
    proposers: BTreeMap<ProposerId, Proposer>,
}

/// A proposer with a command in the entry.
struct Proposer {
    row: ProposerRow,
    /// Before the entry, no reply had this sequence or a larger one.
    next_before: u64,
    /// Replies of this entry, by sequence.
    replies: BTreeMap<u64, Bytes>,
}

impl Dedup {
    /// Begins an entry at this elapsed time.
    pub fn begin(tables: &mut Tables<'_>, elapsed: Timestamp) -> Result<Self, Corrupt> {
        sweep(tables, elapsed)?;
        Ok(Self { elapsed, proposers: BTreeMap::new() })
    }

    /// The reply to a duplicate or to a command that must not be applied; `None` if it is to be applied now.
    pub fn reply_to(&mut self, tables: &mut Tables<'_>, id: &CommandId) -> Result<Option<Bytes>, Corrupt> {
        let Some(proposer) = self.proposer(tables, id.proposer)? else {
            return Ok(Some(refused(Refusal::TooManySubmissions)));
        };
        let row = &mut proposer.row;
        row.low_watermark = row.low_watermark.max(id.low_watermark);
        // The largest sequence is refused: `next` after it would overflow.
        if id.sequence < row.low_watermark || id.sequence == u64::MAX {
            return Ok(Some(refused(Refusal::GivenUp)));
        }
        if id.sequence - row.low_watermark >= limits::SUBMISSIONS_AHEAD_MAX {
            return Ok(Some(refused(Refusal::TooManySubmissions)));
        }
        if let Some(reply) = proposer.replies.get(&id.sequence) {
            return Ok(Some(reply.clone()));
        }
        // Commands mostly arrive in order, and then no row is read.
        if id.sequence >= proposer.next_before || breaks::active(Break::NoDeduplication) {
            return Ok(None);
        }
        let (number, at) = row_and_position(id.sequence);
        let row = tables.message::<ReplyRow>(REPLY, &reply_key(id.proposer.as_bytes(), number))?;
        Ok(row.and_then(|row| row.replies.into_iter().nth(at)).filter(|reply| !reply.is_empty()))
    }

    /// Records the reply to a command that was just applied, or refused.
    pub fn record(&mut self, id: &CommandId, reply: &Bytes) {
        if let Some(proposer) = self.proposers.get_mut(&id.proposer) {
            proposer.row.next = proposer.row.next.max(id.sequence + 1);
            proposer.replies.insert(id.sequence, reply.clone());
        }
    }

    /// Ends an entry: deletes the rows of replies below the low watermarks, and writes the replies that may be requested
    /// again.
    pub fn end(self, tables: &mut Tables<'_>) -> Result<(), Corrupt> {
        let mut left = limits::REPLY_ROWS_DELETED_PER_ENTRY;
        for (id, mut proposer) in self.proposers {
            let row = &mut proposer.row;
            left -= delete_replies(tables, id.as_bytes(), row, proposer.next_before, left);
            row.used_at_millis = self.elapsed.millis();
            tables.put(PROPOSER, id.as_bytes(), row.encode_to_vec());
            proposer.put_replies(tables, id.as_bytes())?;
        }
        Ok(())
    }

    /// `None` if the proposer is new and the limit of proposers is reached.
    fn proposer(
        &mut self,
        tables: &mut Tables<'_>,
        proposer: ProposerId,
    ) -> Result<Option<&mut Proposer>, Corrupt> {
        let vacant = match self.proposers.entry(proposer) {
            Entry::Occupied(proposer) => return Ok(Some(proposer.into_mut())),
            Entry::Vacant(vacant) => vacant,
        };
        let row = if let Some(mut row) = tables.message::<ProposerRow>(PROPOSER, proposer.as_bytes())? {
            if is_idle(&row, self.elapsed) {
                give_up(&mut row);
            }
            row
        } else {
            if tables.number(PROPOSERS)? >= limits::PROPOSERS_MAX {
                return Ok(None);
            }
            tables.add(PROPOSERS, 1)?;
            ProposerRow { low_watermark: 1, next: 1, first_retained: 1, used_at_millis: 0 }
        };
        let next_before = row.next;
        Ok(Some(vacant.insert(Proposer { row, next_before, replies: BTreeMap::new() })))
    }
}

impl Proposer {
    /// Adds the replies of this entry to the rows.
    fn put_replies(&self, tables: &mut Tables<'_>, id: &[u8]) -> Result<(), Corrupt> {
        let mut rows = BTreeMap::new();
        for (sequence, reply) in self.replies.range(self.row.low_watermark..) {
            let (number, at) = row_and_position(*sequence);
            let row = match rows.entry(number) {
                Entry::Occupied(row) => row.into_mut(),
                Entry::Vacant(vacant) => vacant.insert(self.retained(tables, id, number)?),
            };
            if row.replies.len() <= at {
                row.replies.resize(at + 1, Bytes::new());
            }
            if let Some(there) = row.replies.get_mut(at) {
                there.clone_from(reply);
            }
        }
        for (number, row) in rows {
            tables.put(REPLY, &reply_key(id, number), row.encode_to_vec());
        }
        Ok(())
    }

    /// A row of replies as it was before this entry, without those below the low watermark.
    fn retained(&self, tables: &Tables<'_>, id: &[u8], number: u64) -> Result<ReplyRow, Corrupt> {
        let (first, low_watermark) = (number * limits::REPLIES_PER_ROW, self.row.low_watermark);
        // Commands mostly arrive in order and are received soon, and then no row is read.
        if self.next_before <= first.max(low_watermark) {
            return Ok(ReplyRow::default());
        }
        let mut row = tables.message::<ReplyRow>(REPLY, &reply_key(id, number))?.unwrap_or_default();
        let received = (first..low_watermark).zip(&mut row.replies);
        received.for_each(|(_, reply)| reply.clear());
        Ok(row)
    }
}

fn refused(refusal: Refusal) -> Bytes {
    command::encode_reply(Replied::first(Reply::Refused(refusal)))
}

fn is_idle(row: &ProposerRow, elapsed: Timestamp) -> bool {
    elapsed.since(Timestamp::from_millis(row.used_at_millis)) >= limits::PROPOSER_RETENTION
}

/// Raises the low watermark above every sequence so far.
fn give_up(row: &mut ProposerRow) {
    row.low_watermark = row.low_watermark.max(row.next);
}

/// Deletes up to `most` of the rows with replies below the low watermark only, one by one, oldest first: a range deletion
/// would slow down every later lookup. There are no replies from `next` on. Returns the number of deleted rows.
fn delete_replies(tables: &mut Tables<'_>, id: &[u8], row: &mut ProposerRow, next: u64, most: u64) -> u64 {
    let from = row.first_retained / limits::REPLIES_PER_ROW;
    let end = if row.low_watermark < next {
        row.low_watermark / limits::REPLIES_PER_ROW
    } else {
        next.div_ceil(limits::REPLIES_PER_ROW)
    };
    let until = end.min(from.saturating_add(most));
    for number in from..until {
        tables.delete(REPLY, &reply_key(id, number));
    }
    row.first_retained = if until < end { until * limits::REPLIES_PER_ROW } else { row.low_watermark };
    until.saturating_sub(from)
}

/// At intervals, deletes the replies to idle proposers, a bounded number at a time, and the oldest idle proposers beyond
/// their limit.
fn sweep(tables: &mut Tables<'_>, elapsed: Timestamp) -> Result<(), Corrupt> {
    let millis = i64::try_from(tables.number(PROPOSERS_SWEPT)?).unwrap_or(i64::MAX);
    if elapsed.since(Timestamp::from_millis(millis)) < limits::PROPOSER_SWEEP_INTERVAL {
        return Ok(());
    }
    let mut left = limits::REPLY_ROWS_DELETED_PER_ENTRY;
    let mut is_done = true;
    let mut without_replies = Vec::new();
    for (id, mut row) in tables.messages::<ProposerRow>(PROPOSER)? {
        if !is_idle(&row, elapsed) {
            continue;
        }
        if row.first_retained < row.next && left > 0 {
            give_up(&mut row);
            let next = row.next;
            left -= delete_replies(tables, &id, &mut row, next, left);
            tables.put(PROPOSER, &id, row.encode_to_vec());
        }
        if row.first_retained < row.next {
            is_done = false;
        } else {
            without_replies.push((row.used_at_millis, id));
        }
    }
    without_replies.sort_unstable();
    without_replies.truncate(without_replies.len().saturating_sub(limits::PROPOSERS_UNUSED_MAX));
    for (_, id) in &without_replies {
        tables.delete(PROPOSER, id);
    }
    if !without_replies.is_empty() {
        tables.subtract(PROPOSERS, without_replies.len() as u64)?;
    }
    if is_done {
        tables.set_number(PROPOSERS_SWEPT, u64::try_from(elapsed.millis()).unwrap_or(0));
    }
    Ok(())
}

/// The number of the row of a sequence's reply, and its position in it.
fn row_and_position(sequence: u64) -> (u64, usize) {
    let at = sequence % limits::REPLIES_PER_ROW;
    (sequence / limits::REPLIES_PER_ROW, usize::try_from(at).unwrap_or_default())
}

fn reply_key(id: &[u8], number: u64) -> Vec<u8> {
    [id, &number.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests;
