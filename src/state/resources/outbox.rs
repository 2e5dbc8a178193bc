//! The outbox: security events for streams, each in the entry of its cause.
//!
//! A stream is a filter and a place in it, so that an event costs the same however many streams there are.
//! None is written while there is no stream. What is old, or too much, is dropped from the first one on, a few
//! with each event; what tools, agents and keys do is in another table and pushes nothing out of this one.

use prost::Message as _;
use tokio::sync::watch;

use super::events::{self, EventId, SecurityEvent, Span};
use super::feed::{self, Note};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, View};
use crate::limits;
use crate::state::State;
use crate::state::command;
use crate::state::command::{OutboxRow, stated};
use crate::state::tables::{Moment, OUTBOX, STREAMS, Tables, decode};

/// Row of the meta table: the [`Span`] of the outbox.
pub const SPAN: &[u8] = b"outbox";
/// What a row takes beside itself: its key, a checksum, and what the database needs to find it.
const ROW_BYTES: u64 = 128;

/// An event as it waits for streams.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboxEvent {
    /// What it is called.
    pub id: EventId,
    /// What it says.
    pub event: SecurityEvent,
    /// Log time of its entry.
    pub at: Timestamp,
    /// Time that had passed then: what it is kept by.
    pub passed: Timestamp,
    /// The only stream it is for; `None` for all.
    pub stream_id: Option<String>,
}

impl OutboxEvent {
    fn read(key: &[u8], row: &[u8]) -> Result<Self, Corrupt> {
        let row = decode::<OutboxRow>(OUTBOX, row)?;
        let event = row.event.ok_or_else(|| Corrupt::row("a row of the outbox is without the event"))?;
        Ok(Self {
            id: EventId::from_key(key)?,
            event: event.try_into()?,
            at: Timestamp::from_millis(row.at_millis),
            passed: Timestamp::from_millis(row.passed_millis),
            stream_id: stated(row.stream_id),
        })
    }
}

/// Appends an event for all streams, if there are any, and tells it to the live feed.
///
/// # Errors
/// [`Corrupt`] if a row or the event is not what was written.
pub fn append(tables: &mut Tables<'_>, moment: Moment, event: command::SecurityEvent) -> Result<(), Corrupt> {
    append_for(tables, moment, event, "")
}

/// Appends an event for one stream.
///
/// # Errors
/// [`Corrupt`] if a row or the event is not what was written.
pub fn append_for(
    tables: &mut Tables<'_>,
    moment: Moment,
    event: command::SecurityEvent,
    stream_id: &str,
) -> Result<(), Corrupt> {
    let id = tables.take_event();
    let read = SecurityEvent::try_from(event.clone())?;
    let subject = read.subject();
    let note = Note { kind: "caep", subject: &subject, target: &event.event_type, ..Note::default() };
    feed::put(tables, moment.now, id, note)?;
    let is_heard = tables.number(STREAMS)? > 0;
    let row = OutboxRow {
        event: Some(event),
        at_millis: moment.now.millis(),
        passed_millis: moment.passed.millis(),
        stream_id: stream_id.to_owned(),
    };
    let bytes = if is_heard { bytes_of(&row) } else { 0 };
    let mut span = Span::of(tables, SPAN)?;
    let before = span;
    drop_oldest(tables, moment, &mut span, bytes)?;
    if is_heard {
        span.end = id.next();
        span.events = span.events.saturating_add(1);
        span.bytes = span.bytes.saturating_add(bytes);
        tables.put(OUTBOX, &id.key(), row.encode_to_vec());
    }
    if span != before {
        span.put(tables, SPAN);
    }
    Ok(())
}

fn bytes_of(row: &OutboxRow) -> u64 {
    (row.encoded_len() as u64).saturating_add(ROW_BYTES)
}

/// Drops what is older than it is kept, and makes room for `bytes`: a few events, and no fewer bytes than are
/// added, or the table would grow for ever. Nothing of this entry is dropped by it.
fn drop_oldest(tables: &mut Tables<'_>, moment: Moment, span: &mut Span, bytes: u64) -> Result<(), Corrupt> {
    let (mut dropped, mut freed, mut outcome) = (Vec::new(), 0_u64, Ok(()));
    tables.earlier_rows(OUTBOX, &span.begin.key(), &mut |key, row| {
        if dropped.len() >= limits::OUTBOX_DROPPED_AT_ONCE && freed >= bytes {
            return false;
        }
        match decode::<OutboxRow>(OUTBOX, row) {
            Ok(row) => {
                let left = span.bytes.saturating_sub(freed);
                let is_old = events::is_over(Timestamp::from_millis(row.passed_millis), moment.passed);
                let is_dropped = is_old || left.saturating_add(bytes) > limits::OUTBOX_BYTES_MAX;
                if is_dropped {
                    freed = freed.saturating_add(bytes_of(&row));
                    dropped.push(key.to_vec());
                }
                is_dropped
            }
            Err(error) => {
                outcome = Err(error);
                false
            }
        }
    })?;
    outcome?;
    for key in &dropped {
        tables.delete(OUTBOX, key);
        span.begin = EventId::from_key(key)?.next();
    }
    span.events = span.events.saturating_sub(dropped.len() as u64);
    span.bytes = span.bytes.saturating_sub(freed);
    Ok(())
}

fn read(view: &dyn View, from: EventId, visit: &mut dyn FnMut(OutboxEvent) -> bool) -> Result<(), Corrupt> {
    events::scan(view, (OUTBOX, SPAN), from, OutboxEvent::read, visit)
}

impl State {
    /// Visits the outbox from `from` on, in order, until `visit` answers false.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    pub fn outbox(&self, from: EventId, visit: &mut dyn FnMut(OutboxEvent) -> bool) -> Result<(), Corrupt> {
        read(self.core.view(), from, visit)
    }

    /// Behind the last event that was appended. Changes with each entry that appends one, when the event can be
    /// read and what is kept in memory is of that entry.
    #[must_use]
    pub fn outbox_end(&self) -> watch::Receiver<EventId> {
        self.core.machine().outbox_end()
    }

    /// Counts the changes of streams, those of their places left out. Changes when what is kept in memory is of
    /// the entry that made the change.
    #[must_use]
    pub fn stream_changes(&self) -> watch::Receiver<u64> {
        self.core.machine().stream_changes()
    }

    /// Every event before it was dropped.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    pub fn outbox_begin(&self) -> Result<EventId, Corrupt> {
        Ok(Span::at(self.core.view(), SPAN)?.begin)
    }
}

#[cfg(test)]
mod tests;
