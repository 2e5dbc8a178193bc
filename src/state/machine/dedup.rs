//! Each command once, however often it is sent: what it came to is remembered until its proposer has the answer
//! (design §3, Forwarding).
//!
//! A process that proposes is known by its origin, its commands by their sequence. With each it says which of them it
//! will not send again, its low watermark. What is below that is not applied any more, and its reply is removed; what
//! is above is applied once, and gets the same reply again, also if that was a refusal.
//!
//! A process that was not heard of for [`limits::ORIGIN_KEPT`] waits for nothing any more: it gives up after
//! [`limits::PROPOSE_TIMEOUT`], by a clock that does not stand still while it does. All that it was answered is
//! removed. Its row stays, and with it how far it was: should a command of before be sent all the same, by a process or
//! a leader that was stopped in the middle, it is not applied a second time, and what the process had not sent before
//! is applied as ever. Of such rows the [`limits::ORIGINS_UNUSED_MAX`] newest are kept: a process starts once, so
//! whatever comes of one that is forgotten is older than so many starts.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;
use prost::Message as _;

use crate::clock::Timestamp;
use crate::cluster::{Corrupt, Origin};
use crate::limits;
use crate::state::command;
use crate::state::command::{Batch, CommandId, OriginRow, Refusal, Reply, Told};
use crate::state::tables::{META, ORIGIN, ORIGINS, ORIGINS_SWEPT, REPLY, Tables, decode};

/// What one entry knows of those who proposed its commands.
pub struct Once {
    passed: Timestamp,
    origins: BTreeMap<Origin, Heard>,
}

/// A process of which a command is in the entry.
struct Heard {
    row: OriginRow,
    /// No reply with this sequence or a larger one was there before the entry.
    next_before: u64,
    /// What the entry itself has replied to it, by sequence.
    replies: BTreeMap<u64, Bytes>,
}

impl Once {
    /// At the beginning of an entry, at this time that has passed. One from before commands had ids leaves the
    /// tables as it did then.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    pub fn begin(tables: &mut Tables<'_>, passed: Timestamp, batch: &Batch) -> Result<Self, Corrupt> {
        if batch.commands.iter().any(|command| command.id.is_some()) {
            sweep(tables, passed)?;
        }
        Ok(Self { passed, origins: BTreeMap::new() })
    }

    /// The reply to a command that is not to be applied, because it was or because it must not be. `None` if it is
    /// to be applied now.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    pub fn known(&mut self, tables: &mut Tables<'_>, id: &CommandId) -> Result<Option<Bytes>, Corrupt> {
        let Some(heard) = self.heard(tables, id.origin)? else {
            return Ok(Some(refused(Refusal::TooManySubmissions)));
        };
        let row = &mut heard.row;
        row.low_watermark = row.low_watermark.max(id.low_watermark);
        // Nobody counts to the last number there is: behind it none would be next.
        if id.sequence < row.low_watermark || id.sequence == u64::MAX {
            return Ok(Some(refused(Refusal::GivenUp)));
        }
        if id.sequence - row.low_watermark >= limits::SUBMISSIONS_AHEAD_MAX {
            return Ok(Some(refused(Refusal::TooManySubmissions)));
        }
        if let Some(reply) = heard.replies.get(&id.sequence) {
            return Ok(Some(reply.clone()));
        }
        // Most commands come in their order: for them no row is looked for.
        if id.sequence >= heard.next_before {
            return Ok(None);
        }
        let reply = tables.row(REPLY, &reply_key(id.origin.as_bytes(), id.sequence))?;
        Ok(reply.map(Bytes::from))
    }

    /// Remembers the reply to a command that was just applied, or refused.
    pub fn remember(&mut self, id: &CommandId, reply: &Bytes) {
        if let Some(heard) = self.origins.get_mut(&id.origin) {
            heard.row.next = heard.row.next.max(id.sequence + 1);
            heard.replies.insert(id.sequence, reply.clone());
        }
    }

    /// At the end of an entry: writes what may be asked for again, and removes what was received.
    pub fn end(self, tables: &mut Tables<'_>) {
        let mut left = limits::REPLIES_FORGOTTEN_AT_ONCE;
        for (origin, Heard { mut row, next_before, replies }) in self.origins {
            let origin = origin.as_bytes();
            for (sequence, reply) in replies.range(row.low_watermark..) {
                tables.put(REPLY, &reply_key(origin, *sequence), reply.to_vec());
            }
            left -= forget(tables, origin, &mut row, next_before, left);
            row.used_at_millis = self.passed.millis();
            tables.put(ORIGIN, origin, row.encode_to_vec());
        }
    }

    /// `None` if it is new and there is no room for it.
    fn heard(&mut self, tables: &mut Tables<'_>, origin: Origin) -> Result<Option<&mut Heard>, Corrupt> {
        let vacant = match self.origins.entry(origin) {
            Entry::Occupied(heard) => return Ok(Some(heard.into_mut())),
            Entry::Vacant(vacant) => vacant,
        };
        let row = if let Some(row) = tables.row(ORIGIN, origin.as_bytes())? {
            let mut row: OriginRow = decode(ORIGIN, &row)?;
            if is_unused(&row, self.passed) {
                give_up(&mut row);
            }
            row
        } else {
            let origins = tables.number(ORIGINS)?;
            if origins >= limits::ORIGINS_MAX {
                return Ok(None);
            }
            tables.put(META, ORIGINS, (origins + 1).to_be_bytes().to_vec());
            OriginRow { low_watermark: 1, next: 1, forgotten_to: 1, used_at_millis: 0 }
        };
        let next_before = row.next;
        Ok(Some(vacant.insert(Heard { row, next_before, replies: BTreeMap::new() })))
    }
}

fn refused(refusal: Refusal) -> Bytes {
    command::encode_reply(Told::first(Reply::Refused(refusal)))
}

fn is_unused(row: &OriginRow, passed: Timestamp) -> bool {
    passed.since(Timestamp::from_millis(row.used_at_millis)) >= limits::ORIGIN_KEPT
}

/// All that a process has sent so far is given up.
fn give_up(row: &mut OriginRow) {
    row.low_watermark = row.low_watermark.max(row.next);
}

/// Removes up to `most` of the replies below the low watermark, one by one, oldest first: a range that is removed
/// would slow every look for a reply. From `next` on no row was ever written. Answers how many.
fn forget(tables: &mut Tables<'_>, origin: &[u8], row: &mut OriginRow, next: u64, most: u64) -> u64 {
    let (from, end) = (row.forgotten_to, row.low_watermark.min(next));
    let until = end.min(from.saturating_add(most));
    for sequence in from..until {
        tables.delete(REPLY, &reply_key(origin, sequence));
    }
    row.forgotten_to = if until < end { until } else { row.low_watermark };
    until.saturating_sub(from)
}

/// Now and then, removes what was replied to processes that were not heard of for long, a bounded number at once, and
/// the processes themselves if there are many.
fn sweep(tables: &mut Tables<'_>, passed: Timestamp) -> Result<(), Corrupt> {
    let millis = i64::try_from(tables.number(ORIGINS_SWEPT)?).unwrap_or(i64::MAX);
    if passed.since(Timestamp::from_millis(millis)) < limits::ORIGINS_SWEPT_EVERY {
        return Ok(());
    }
    let mut left = limits::REPLIES_FORGOTTEN_AT_ONCE;
    let mut is_done = true;
    let mut without_replies = Vec::new();
    for (origin, mut row) in tables.messages::<OriginRow>(ORIGIN)? {
        if !is_unused(&row, passed) {
            continue;
        }
        if row.forgotten_to < row.next && left > 0 {
            give_up(&mut row);
            let next = row.next;
            left -= forget(tables, &origin, &mut row, next, left);
            tables.put(ORIGIN, &origin, row.encode_to_vec());
        }
        if row.forgotten_to < row.next {
            is_done = false;
        } else {
            without_replies.push((row.used_at_millis, origin));
        }
    }
    without_replies.sort_unstable();
    without_replies.truncate(without_replies.len().saturating_sub(limits::ORIGINS_UNUSED_MAX));
    for (_, origin) in &without_replies {
        tables.delete(ORIGIN, origin);
    }
    if !without_replies.is_empty() {
        let left = tables.number(ORIGINS)?.saturating_sub(without_replies.len() as u64);
        tables.put(META, ORIGINS, left.to_be_bytes().to_vec());
    }
    if is_done {
        let millis = u64::try_from(passed.millis()).unwrap_or(0);
        tables.put(META, ORIGINS_SWEPT, millis.to_be_bytes().to_vec());
    }
    Ok(())
}

fn reply_key(origin: &[u8], sequence: u64) -> Vec<u8> {
    [origin, &sequence.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests;
