//! Cursors of streams in the outbox, and their dead letters.
//!
//! A cursor is advanced from the version that was read, or not at all: two concurrent deliveries repeat events, but lose
//! none.

use std::collections::BTreeSet;

use prost::Message as _;

use super::{Stream, find, key_of};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, View};
use crate::limits;
use crate::state::command::{
    self, AdvanceStream, Command, DeadLetterRow, KeptDeadLetters, Refusal, Reply, StreamCursorRow,
};
use crate::state::resources::events::EventId;
use crate::state::tables::{DEAD_LETTER, STREAM_CURSOR, Tables, decode, try_scan};
use crate::state::{Error, OnBehalf, State};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamCursor {
    /// Every event before it is delivered, rejected permanently, or dropped.
    pub next: EventId,
    /// Completed events from `next` on. At most [`limits::STREAM_WINDOW`].
    pub done: BTreeSet<EventId>,
    /// Counter of changes, from 1. In a command: the version from which the cursor is advanced.
    pub version: u64,
    /// Number of acknowledged events.
    pub delivered: u64,
    /// Number of events dropped by age or backlog.
    pub dropped: u64,
    /// Number of events that the receiver rejected permanently, stored or not. Counted by the log.
    pub dead_letters: u64,
    /// Stored dead letters; `None` until they are counted.
    pub kept: Option<DeadLetterRange>,
}

/// Bounds of the stored dead letters of a stream, so that dropped ones are not scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLetterRange {
    count: u64,
    /// No stored dead letter is before it.
    first: EventId,
}

/// An event that a receiver rejected permanently.
pub type DeadLetter = (EventId, DeadLetterRow);

/// A dead letter to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDeadLetter {
    pub id: EventId,
    /// The receiver's code (RFC 8935 §2.4).
    pub err: String,
    /// The receiver's description.
    pub description: String,
    pub event_type: String,
    /// Subject identifier, as a JSON object.
    pub sub_id: String,
}

impl StreamCursor {
    /// Cursor of a new stream.
    pub(super) fn new(next: EventId) -> Self {
        Self { next, version: 1, ..Self::default() }
    }

    /// Decodes its row.
    pub fn from_row(row: &[u8]) -> Result<Self, Corrupt> {
        Ok(decode::<StreamCursorRow>(STREAM_CURSOR, row)?.into())
    }

    /// Skips to `next`: earlier events are not delivered any more.
    pub(super) fn anew(self, next: EventId) -> Self {
        let next = next.max(self.next);
        Self { next, done: BTreeSet::new(), version: self.version.saturating_add(1), ..self }
    }

    pub(super) fn put(self, tables: &mut Tables<'_>, stream_id: &str) {
        tables.put(STREAM_CURSOR, stream_id.as_bytes(), StreamCursorRow::from(self).encode_to_vec());
    }
}

impl From<StreamCursorRow> for StreamCursor {
    fn from(row: StreamCursorRow) -> Self {
        Self {
            next: row.next.unwrap_or_default(),
            done: row.done.into_iter().collect(),
            version: row.version,
            delivered: row.delivered,
            dropped: row.dropped,
            dead_letters: row.dead_letters,
            kept: row
                .kept
                .map(|kept| DeadLetterRange { count: kept.count, first: kept.first.unwrap_or_default() }),
        }
    }
}

impl From<StreamCursor> for StreamCursorRow {
    fn from(cursor: StreamCursor) -> Self {
        Self {
            next: Some(cursor.next),
            done: cursor.done.into_iter().collect(),
            version: cursor.version,
            delivered: cursor.delivered,
            dropped: cursor.dropped,
            dead_letters: cursor.dead_letters,
            kept: cursor.kept.map(|kept| KeptDeadLetters { count: kept.count, first: Some(kept.first) }),
        }
    }
}

/// Cursor of a stream that exists.
pub(super) fn cursor_of(tables: &Tables<'_>, stream_id: &str) -> Result<StreamCursor, Corrupt> {
    let row = tables.row(STREAM_CURSOR, stream_id.as_bytes())?;
    StreamCursor::from_row(&row.ok_or_else(|| Corrupt::row("a stream has no cursor"))?)
}

/// Advances the cursor of a stream, and stores its dead letters. A cursor never moves back, and never beyond the last
/// event: later events would be lost to the stream. So would the events in between, if a scan with another filter advanced
/// the cursor.
pub fn advance(tables: &mut Tables<'_>, now: Timestamp, command: AdvanceStream) -> Result<Reply, Corrupt> {
    let stream_id = command.stream_id.as_str();
    let Some(stream) = find(tables, stream_id)? else {
        return Ok(Reply::Refused(Refusal::UnknownStream));
    };
    let known = cursor_of(tables, stream_id)?;
    if known.version != command.version || command.filter.is_some_and(|filter| filter != stream.filter) {
        return Ok(Reply::Refused(Refusal::StreamChanged));
    }
    let proposed = command.cursor.map(StreamCursor::from);
    let proposed = proposed.ok_or_else(|| Corrupt::row("an advance command has no cursor"))?;
    let happened_before = tables.next_event();
    let next = known.next.max(proposed.next.min(happened_before));
    let done = proposed.done.into_iter().filter(|id| (next..happened_before).contains(id));
    let refused = command.dead_letters.len() as u64;
    let kept = put_dead_letters(tables, now, (stream_id, known.kept), command.dead_letters)?;
    let cursor = StreamCursor {
        next,
        done: done.take(limits::STREAM_WINDOW).collect(),
        version: known.version.saturating_add(1),
        delivered: known.delivered.max(proposed.delivered),
        dropped: known.dropped.max(proposed.dropped),
        dead_letters: known.dead_letters.saturating_add(refused),
        kept,
    };
    cursor.put(tables, stream_id);
    Ok(Reply::Done { changed: true })
}

/// Stores the newest dead letters of this command and of those before. Reads as many rows as there are new dead letters.
fn put_dead_letters(
    tables: &mut Tables<'_>,
    now: Timestamp,
    (stream_id, known): (&str, Option<DeadLetterRange>),
    dead: Vec<command::DeadLetter>,
) -> Result<Option<DeadLetterRange>, Corrupt> {
    if dead.is_empty() {
        return Ok(known);
    }
    let prefix = key_of(stream_id);
    let mut kept = match known {
        Some(kept) => kept,
        // Once for a stream with dead letters of an older version.
        None => DeadLetterRange {
            count: tables.keys_under(DEAD_LETTER, &prefix, &[], usize::MAX)?.len() as u64,
            first: EventId::default(),
        },
    };
    for letter in dead {
        let id = letter.id.ok_or_else(|| Corrupt::row("a dead letter has no id"))?;
        let row = DeadLetterRow {
            at_millis: now.millis(),
            err: letter.err,
            description: letter.description,
            event_type: letter.event_type,
            sub_id: letter.sub_id,
        };
        let key = [&prefix[..], &id.key()].concat();
        if tables.row(DEAD_LETTER, &key)?.is_none() {
            kept.count = kept.count.saturating_add(1);
            kept.first = kept.first.min(id);
        }
        tables.put(DEAD_LETTER, &key, row.encode_to_vec());
    }
    let surplus = kept.count.saturating_sub(limits::DEAD_LETTERS_PER_STREAM_MAX as u64);
    let surplus = usize::try_from(surplus).unwrap_or(usize::MAX);
    if surplus > 0 {
        for key in tables.keys_under(DEAD_LETTER, &prefix, &kept.first.key(), surplus)? {
            tables.delete(DEAD_LETTER, &key);
            kept.count = kept.count.saturating_sub(1);
            kept.first = EventId::from_key(key.get(prefix.len()..).unwrap_or_default())?.next();
        }
    }
    Ok(Some(kept))
}

/// A truncated subject identifier would name another subject.
fn kept_subject(sub_id: String) -> String {
    if sub_id.len() <= limits::DEAD_LETTER_SUBJECT_BYTES_MAX { sub_id } else { "{}".to_owned() }
}

/// Deletes the cursor of a stream, with its dead letters.
pub(super) fn delete(tables: &mut Tables<'_>, stream_id: &str) {
    tables.delete(STREAM_CURSOR, stream_id.as_bytes());
    // The smallest key after all with this prefix, whose last byte is zero.
    let behind = [stream_id.as_bytes(), &[1]].concat();
    tables.delete_range(DEAD_LETTER, key_of(stream_id), behind);
}

fn dead_letters(
    view: &dyn View,
    stream_id: &str,
    after: Option<EventId>,
    limit: usize,
) -> Result<(Vec<DeadLetter>, Option<EventId>), Corrupt> {
    let prefix = key_of(stream_id);
    let from = after.map_or_else(|| prefix.clone(), |after| [&prefix[..], &after.next().key()].concat());
    let (mut letters, mut next) = (Vec::new(), None);
    try_scan(view, DEAD_LETTER, &from, |key, row| {
        let Some(id) = key.strip_prefix(&prefix[..]) else { return Ok(false) };
        if letters.len() >= limit {
            next = letters.last().map(|(last, _): &DeadLetter| *last);
            return Ok(false);
        }
        letters.push((EventId::from_key(id)?, decode::<DeadLetterRow>(DEAD_LETTER, row)?));
        Ok(true)
    })?;
    Ok((letters, next))
}

impl State {
    /// At most `limit` dead letters of a stream after `after`, oldest first, and the cursor of the next page.
    pub fn dead_letters(
        &self,
        stream_id: &str,
        after: Option<EventId>,
        limit: usize,
    ) -> Result<(Vec<DeadLetter>, Option<EventId>), Corrupt> {
        dead_letters(self.cluster().view(), stream_id, after, limit)
    }
}

impl OnBehalf<'_> {
    /// Advances a stream from the version of `cursor`, and stores dead letters, which the log counts. `stream` is the one
    /// whose filter selected the events.
    ///
    /// # Errors
    /// `Refusal::UnknownStream`; `Refusal::StreamChanged` if its cursor or filter has changed since.
    pub async fn advance_stream(
        self,
        stream: &Stream,
        cursor: StreamCursor,
        dead: Vec<NewDeadLetter>,
    ) -> Result<(), Error> {
        let letter = |dead: NewDeadLetter| command::DeadLetter {
            id: Some(dead.id),
            err: dead.err,
            description: dead.description,
            event_type: dead.event_type,
            sub_id: kept_subject(dead.sub_id),
        };
        let command = AdvanceStream {
            stream_id: stream.config.stream_id.clone(),
            version: cursor.version,
            cursor: Some(cursor.into()),
            dead_letters: dead.into_iter().map(letter).collect(),
            filter: Some(stream.filter),
        };
        self.propose(Command::AdvanceStream(command)).await.map(drop)
    }
}

#[cfg(test)]
mod tests;
