//! Events of the live feed: one small row each, with an id, the same on every node.
//!
//! The feed serves people who watch, so only the newest events are retained, regardless of their kind.

use prost::Message as _;
use tokio::sync::watch;

use super::events::{self, EventId, Span, truncate};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, View};
use crate::limits;
use crate::state::State;
use crate::state::command::{FeedRow, stated};
use crate::state::tables::{FEED, Tables, decode};

/// Row of the meta table: the [`Span`] of the feed.
pub const SPAN: &[u8] = b"feed";

/// Type of an event of the live feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum FeedKind {
    Caep,
    Signal,
    Tool,
    Agent,
    Stream,
    Revocation,
    Key,
    Cluster,
    Federation,
}

/// An event of the live feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedEvent {
    pub id: EventId,
    /// The text of a [`FeedKind`].
    pub kind: String,
    /// Log time of its entry.
    pub at: Timestamp,
    /// Subject of the event.
    pub subject: String,
    /// Related object.
    pub target: Option<String>,
    /// `ok`, `denied` or `error`.
    pub result: String,
    pub detail: Option<String>,
}

/// An event to be appended to the feed.
#[derive(Clone, Copy, Debug)]
pub struct NewFeedEvent<'e> {
    pub kind: FeedKind,
    pub subject: &'e str,
    /// Related object; empty if there is none.
    pub target: &'e str,
    /// Details; empty if there are none.
    pub detail: &'e str,
}

impl<'e> NewFeedEvent<'e> {
    /// An event about an agent: the caller, and what it did.
    #[must_use]
    pub fn of_agent(agent_id: &'e str, by: &'e str, detail: &'e str) -> Self {
        Self { kind: FeedKind::Agent, subject: agent_id, target: by, detail }
    }
}

/// Appends an event under a new id.
pub fn append(tables: &mut Tables<'_>, now: Timestamp, event: NewFeedEvent<'_>) -> Result<(), Corrupt> {
    let id = tables.take_event();
    append_with_id(tables, now, id, event)
}

/// Appends an event under an id that this entry has allocated.
pub fn append_with_id(
    tables: &mut Tables<'_>,
    now: Timestamp,
    id: EventId,
    event: NewFeedEvent<'_>,
) -> Result<(), Corrupt> {
    let text = |text: &str| truncate(text, limits::FEED_TEXT_BYTES_MAX).to_owned();
    let row = FeedRow {
        kind: event.kind.into_str().to_owned(),
        at_millis: now.millis(),
        subject: text(event.subject),
        target: text(event.target),
        result: "ok".to_owned(),
        detail: text(event.detail),
    };
    let mut span = Span::of(tables, SPAN)?;
    tables.put(FEED, &id.key(), row.encode_to_vec());
    span.end = id.next();
    span.events = span.events.saturating_add(1);
    if span.events >= limits::FEED_EVENTS_MAX.saturating_add(limits::FEED_EVENTS_DROPPED_TOGETHER as u64) {
        drop_oldest(tables, &mut span)?;
    }
    span.put(tables, SPAN);
    Ok(())
}

/// Drops the oldest events by one range deletion, none of them of this entry.
fn drop_oldest(tables: &mut Tables<'_>, span: &mut Span) -> Result<(), Corrupt> {
    let most = limits::FEED_EVENTS_DROPPED_TOGETHER;
    let (mut seen, mut kept) = (0, None);
    tables.earlier_keys(FEED, &span.begin.key(), &mut |key| {
        if seen == most {
            kept = Some(key.to_vec());
        }
        seen += 1;
        kept.is_none()
    })?;
    let Some(kept) = kept else { return Ok(()) };
    let begin = EventId::from_key(&kept)?;
    tables.delete_range(FEED, span.begin.key().to_vec(), kept);
    span.begin = begin;
    span.events = span.events.saturating_sub(most as u64);
    Ok(())
}

fn event(key: &[u8], row: &[u8]) -> Result<FeedEvent, Corrupt> {
    let row = decode::<FeedRow>(FEED, row)?;
    Ok(FeedEvent {
        id: EventId::from_key(key)?,
        kind: row.kind,
        at: Timestamp::from_millis(row.at_millis),
        subject: row.subject,
        target: stated(row.target),
        result: row.result,
        detail: stated(row.detail),
    })
}

fn read(view: &dyn View, from: EventId, visit: &mut dyn FnMut(FeedEvent) -> bool) -> Result<(), Corrupt> {
    events::scan(view, (FEED, SPAN), from, event, visit)
}

impl State {
    /// Visits the feed from `from` on, in order, until `visit` returns false.
    pub fn feed(&self, from: EventId, visit: &mut dyn FnMut(FeedEvent) -> bool) -> Result<(), Corrupt> {
        read(self.cluster.view(), from, visit)
    }

    /// Watches the end of the feed: the id after its last event. Changes when the event can be read.
    #[must_use]
    pub fn feed_end(&self) -> watch::Receiver<EventId> {
        self.cluster.machine().feed_end()
    }

    /// Id before which every event was dropped: a subscriber with an older cursor has missed some.
    pub fn feed_begin(&self) -> Result<EventId, Corrupt> {
        Ok(Span::at(self.cluster.view(), SPAN)?.begin)
    }
}

#[cfg(test)]
mod tests;
