//! Where a stream stands in the outbox, and what its receiver refused for good.
//!
//! Whoever delivers moves a stream on from the place that it has read, or not at all: two that deliver at once
//! repeat events, and lose none.

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
use crate::state::tables::{DEAD_LETTER, STREAM_CURSOR, Tables, decode};
use crate::state::{Error, OnBehalf, State};

/// Where a stream stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamCursor {
    /// Everything before it is delivered, refused for good, or dropped.
    pub next: EventId,
    /// What of the rest is too. At most [`limits::STREAM_WINDOW`].
    pub done: BTreeSet<EventId>,
    /// Counts the changes, from 1. To advance: the one that this was made from.
    pub version: u64,
    /// Events that its receiver took.
    pub delivered: u64,
    /// Events that were held for too long, or were too many.
    pub dropped: u64,
    /// Events that its receiver refused for good, whether they are remembered or not. The log counts them.
    pub dead_letters: u64,
    /// Which of them are remembered; `None` until that was counted.
    pub kept: Option<Kept>,
}

/// Which dead letters of a stream are remembered, so that nobody walks through those that were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    count: u64,
    /// None of them is before it.
    first: EventId,
}

/// An event that a receiver refused for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// What it is called.
    pub id: EventId,
    /// When it was given up, in log time.
    pub at: Timestamp,
    /// The receiver's code (RFC 8935 §2.4).
    pub err: String,
    /// The receiver's words.
    pub description: String,
    /// Its type.
    pub event_type: String,
    /// Whom it is about, as a JSON object; an empty one if that was too long to be kept.
    pub sub_id: String,
}

/// An event that a receiver has just refused for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDeadLetter {
    /// What it is called.
    pub id: EventId,
    /// The receiver's code (RFC 8935 §2.4).
    pub err: String,
    /// The receiver's words.
    pub description: String,
    /// Its type.
    pub event_type: String,
    /// Whom it is about, as a JSON object.
    pub sub_id: String,
}

impl StreamCursor {
    /// At its beginning.
    pub(super) fn new(next: EventId) -> Self {
        Self { next, version: 1, ..Self::default() }
    }

    /// From its row.
    ///
    /// # Errors
    /// [`Corrupt`] if it is not what was written.
    pub fn from_row(row: &[u8]) -> Result<Self, Corrupt> {
        Ok(decode::<StreamCursorRow>(STREAM_CURSOR, row)?.into())
    }

    /// Anew from `next` on: what lies before it is not delivered any more.
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
            next: row.next.unwrap_or_default().into(),
            done: row.done.into_iter().map(EventId::from).collect(),
            version: row.version,
            delivered: row.delivered,
            dropped: row.dropped,
            dead_letters: row.dead_letters,
            kept: row
                .kept
                .map(|kept| Kept { count: kept.count, first: kept.first.unwrap_or_default().into() }),
        }
    }
}

impl From<StreamCursor> for StreamCursorRow {
    fn from(cursor: StreamCursor) -> Self {
        Self {
            next: Some(cursor.next.into()),
            done: cursor.done.into_iter().map(command::EventId::from).collect(),
            version: cursor.version,
            delivered: cursor.delivered,
            dropped: cursor.dropped,
            dead_letters: cursor.dead_letters,
            kept: cursor
                .kept
                .map(|kept| KeptDeadLetters { count: kept.count, first: Some(kept.first.into()) }),
        }
    }
}

/// The place of a stream that is there.
pub(super) fn cursor_of(tables: &Tables<'_>, stream_id: &str) -> Result<StreamCursor, Corrupt> {
    let row = tables.row(STREAM_CURSOR, stream_id.as_bytes())?;
    StreamCursor::from_row(&row.ok_or_else(|| Corrupt::row("a stream has no place in the outbox"))?)
}

/// Moves a stream on, and remembers what its receiver refused. Nothing goes back, and nothing is taken for done
/// that has not happened: it would be lost to the stream when it does. So would what lies between, if the stream
/// was moved by whoever looked for other events than it is for.
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn advance(tables: &mut Tables<'_>, now: Timestamp, command: AdvanceStream) -> Result<Reply, Corrupt> {
    let stream_id = command.stream_id.as_str();
    let Some(stream) = find(tables, stream_id)? else {
        return Ok(Reply::Refused(Refusal::UnknownStream));
    };
    let known = cursor_of(tables, stream_id)?;
    if known.version != command.version || command.filter.is_some_and(|filter| filter != stream.filter) {
        return Ok(Reply::Refused(Refusal::StreamChanged));
    }
    let told = command.cursor.map(StreamCursor::from);
    let told = told.ok_or_else(|| Corrupt::row("a command moves a stream nowhere"))?;
    let happened_before = tables.next_event();
    let next = known.next.max(told.next.min(happened_before));
    let done = told.done.into_iter().filter(|id| (next..happened_before).contains(id));
    let refused = command.dead_letters.len() as u64;
    let kept = put_dead_letters(tables, now, (stream_id, known.kept), command.dead_letters)?;
    let cursor = StreamCursor {
        next,
        done: done.take(limits::STREAM_WINDOW).collect(),
        version: known.version.saturating_add(1),
        delivered: known.delivered.max(told.delivered),
        dropped: known.dropped.max(told.dropped),
        dead_letters: known.dead_letters.saturating_add(refused),
        kept,
    };
    cursor.put(tables, stream_id);
    Ok(Reply::Done { changed: true })
}

/// The newest of one command are kept, and of those before. As many rows are read as letters come, and no others.
fn put_dead_letters(
    tables: &mut Tables<'_>,
    now: Timestamp,
    (stream_id, known): (&str, Option<Kept>),
    dead: Vec<command::DeadLetter>,
) -> Result<Option<Kept>, Corrupt> {
    if dead.is_empty() {
        return Ok(known);
    }
    let prefix = key_of(stream_id);
    let mut kept = match known {
        Some(kept) => kept,
        // Once for each stream, of which an older version has written the letters.
        None => Kept {
            count: tables.keys_under(DEAD_LETTER, &prefix, &[], usize::MAX)?.len() as u64,
            first: EventId::default(),
        },
    };
    for letter in dead {
        let id: EventId = letter.id.ok_or_else(|| Corrupt::row("a dead letter has no id"))?.into();
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

/// Half a subject would be another's.
fn kept_subject(sub_id: String) -> String {
    if sub_id.len() <= limits::DEAD_LETTER_SUBJECT_BYTES_MAX { sub_id } else { "{}".to_owned() }
}

/// Forgets where a stream stood, with its dead letters.
pub(super) fn forget(tables: &mut Tables<'_>, stream_id: &str) {
    tables.delete(STREAM_CURSOR, stream_id.as_bytes());
    // The least key behind all that begin so: the last byte of the prefix is zero.
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
    let (mut letters, mut next, mut outcome) = (Vec::new(), None, Ok(()));
    view.scan(DEAD_LETTER, &from, &mut |key, row| {
        let Some(id) = key.strip_prefix(&prefix[..]) else { return false };
        if letters.len() >= limit {
            next = letters.last().map(|last: &DeadLetter| last.id);
            return false;
        }
        match dead_letter(id, row) {
            Ok(letter) => letters.push(letter),
            Err(error) => outcome = Err(error),
        }
        outcome.is_ok()
    })?;
    outcome.map(|()| (letters, next))
}

fn dead_letter(id: &[u8], row: &[u8]) -> Result<DeadLetter, Corrupt> {
    let row = decode::<DeadLetterRow>(DEAD_LETTER, row)?;
    Ok(DeadLetter {
        id: EventId::from_key(id)?,
        at: Timestamp::from_millis(row.at_millis),
        err: row.err,
        description: row.description,
        event_type: row.event_type,
        sub_id: row.sub_id,
    })
}

impl State {
    /// At most `limit` events behind `after` that a stream's receiver refused for good, oldest first, and behind
    /// which there are more, if there are.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    pub fn dead_letters(
        &self,
        stream_id: &str,
        after: Option<EventId>,
        limit: usize,
    ) -> Result<(Vec<DeadLetter>, Option<EventId>), Corrupt> {
        dead_letters(self.core().view(), stream_id, after, limit)
    }
}

impl OnBehalf<'_> {
    /// Moves a stream on from the place with the version of `cursor`, and remembers what its receiver refused for
    /// good, which the log counts. `stream` is what its events were looked for by.
    ///
    /// # Errors
    /// [`Error::UnknownStream`]; [`Error::StreamChanged`] if it stands elsewhere by now, or is for other events; or
    /// as [`Error::Write`] says.
    pub async fn advance_stream(
        self,
        stream: &Stream,
        cursor: StreamCursor,
        dead: Vec<NewDeadLetter>,
    ) -> Result<(), Error> {
        let letter = |dead: NewDeadLetter| command::DeadLetter {
            id: Some(dead.id.into()),
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
