//! The outbox: security events for streams, each in the entry of its cause.
//!
//! A stream is a filter and a cursor over it, so the cost of an event is independent of the number of streams. Without
//! streams no event is written. Old events, or those over the size limit, are dropped from the front, a few with each
//! new event; events about tools, agents and keys are in the feed and displace none of these.

use prost::Message as _;
use tokio::sync::watch;

use super::events::{self, EventId, SecurityEvent, Span};
use super::feed::{self, FeedKind, NewFeedEvent};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, View};
use crate::limits;
use crate::state::State;
use crate::state::command;
use crate::state::command::{OutboxRow, stated};
use crate::state::tables::{EntryTime, OUTBOX, STREAMS, Tables, decode, try_scan};

/// Row of the meta table: the [`Span`] of the outbox.
pub const SPAN: &[u8] = b"outbox";
/// Estimated overhead of a row: its key, a checksum, database index.
const ROW_BYTES: u64 = 128;
/// More than an event takes: a table within it of its limit is full.
const FULL_MARGIN_BYTES: u64 = 1024 * 1024;

/// An event for streams.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboxEvent {
    pub id: EventId,
    pub event: SecurityEvent,
    /// Log time of its entry.
    pub at: Timestamp,
    /// Elapsed time of its entry, from which its retention counts.
    pub elapsed: Timestamp,
    /// The only stream that it is for; `None` for all.
    pub stream_id: Option<String>,
}

impl OutboxEvent {
    fn read(key: &[u8], row: &[u8]) -> Result<Self, Corrupt> {
        let row = decode::<OutboxRow>(OUTBOX, row)?;
        let event = row.event.ok_or_else(|| Corrupt::row("a row of the outbox has no event"))?;
        Ok(Self {
            id: EventId::from_key(key)?,
            event: event.try_into()?,
            at: Timestamp::from_millis(row.at_millis),
            elapsed: Timestamp::from_millis(row.elapsed_millis),
            stream_id: stated(row.stream_id),
        })
    }
}

/// Appends an event for all streams, if there are any, and to the live feed.
pub fn append(
    tables: &mut Tables<'_>,
    time: EntryTime,
    event: command::SecurityEvent,
) -> Result<(), Corrupt> {
    append_for(tables, time, event, "")
}

/// Appends an event for one stream.
pub fn append_for(
    tables: &mut Tables<'_>,
    time: EntryTime,
    event: command::SecurityEvent,
    stream_id: &str,
) -> Result<(), Corrupt> {
    let id = tables.take_event();
    let read = SecurityEvent::try_from(event.clone())?;
    let subject = read.subject();
    let feed_event =
        NewFeedEvent { kind: FeedKind::Caep, subject: &subject, target: &event.event_type, detail: "" };
    feed::append_with_id(tables, time.now, id, feed_event)?;
    let has_streams = tables.number(STREAMS)? > 0;
    let row = OutboxRow {
        event: Some(event),
        at_millis: time.now.millis(),
        elapsed_millis: time.elapsed.millis(),
        stream_id: stream_id.to_owned(),
    };
    let bytes = if has_streams { bytes_of(&row) } else { 0 };
    let mut span = Span::of(tables, SPAN)?;
    let before = span;
    drop_oldest(tables, time, &mut span, bytes)?;
    if has_streams {
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

/// Drops events after their retention, and frees at least `bytes` if the limit requires it, otherwise the table would keep
/// growing. Drops no event of this entry.
fn drop_oldest(tables: &mut Tables<'_>, time: EntryTime, span: &mut Span, bytes: u64) -> Result<(), Corrupt> {
    let (mut dropped, mut freed) = (Vec::new(), 0_u64);
    try_scan(tables.earlier(), OUTBOX, &span.begin.key(), |key, row| {
        if dropped.len() >= limits::OUTBOX_EVENTS_DROPPED_PER_APPEND && freed >= bytes {
            return Ok(false);
        }
        let row = decode::<OutboxRow>(OUTBOX, row)?;
        let left = span.bytes.saturating_sub(freed);
        let is_old = events::is_expired(Timestamp::from_millis(row.elapsed_millis), time.elapsed);
        let is_dropped = is_old || left.saturating_add(bytes) > limits::OUTBOX_BYTES_MAX;
        if is_dropped {
            freed = freed.saturating_add(bytes_of(&row));
            dropped.push(key.to_vec());
        }
        Ok(is_dropped)
    })?;
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
    /// Visits the outbox from `from` on, in order, until `visit` returns false.
    pub fn outbox(&self, from: EventId, visit: &mut dyn FnMut(OutboxEvent) -> bool) -> Result<(), Corrupt> {
        read(self.cluster.view(), from, visit)
    }

    /// Watches the end of the outbox: the id after its last event. Changes when the event can be read and the index in
    /// memory includes its entry.
    #[must_use]
    pub fn outbox_end(&self) -> watch::Receiver<EventId> {
        self.cluster.machine().outbox_end()
    }

    /// Counter of changes of streams, without those of cursors. Changes when the index in memory includes the change.
    #[must_use]
    pub fn stream_changes(&self) -> watch::Receiver<u64> {
        self.cluster.machine().stream_changes()
    }

    /// Id before which every event was dropped, and whether the outbox has reached its size: then appending drops events that
    /// may be undelivered.
    pub fn outbox_begin(&self) -> Result<(EventId, bool), Corrupt> {
        let span = Span::at(self.cluster.view(), SPAN)?;
        Ok((span.begin, span.bytes > limits::OUTBOX_BYTES_MAX - FULL_MARGIN_BYTES))
    }
}

#[cfg(test)]
mod tests;
