//! The feed: one small row for everything the live feed tells under an id, the same on every node.
//!
//! It is for people who watch, so only the newest are kept, whatever they are.

use prost::Message as _;
use tokio::sync::watch;

use super::events::{self, EventId, Span, cut};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, View};
use crate::limits;
use crate::state::State;
use crate::state::command::{FeedRow, stated};
use crate::state::tables::{FEED, Tables, decode};

/// Row of the meta table: the [`Span`] of the feed.
pub const SPAN: &[u8] = b"feed";

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedEvent {
    /// What it is called.
    pub id: EventId,
    /// `signal`, `caep`, `revocation`, `tool`, `agent`, `stream`, `key` or `cluster`.
    pub kind: String,
    /// Log time of its entry.
    pub at: Timestamp,
    /// Whom or what it is about.
    pub subject: String,
    /// What it has to do with.
    pub target: Option<String>,
    /// `ok`, `denied` or `error`.
    pub result: String,
    /// What happened.
    pub detail: Option<String>,
}

/// What is to be told of what stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Note<'n> {
    /// Its kind.
    pub kind: &'n str,
    /// Whom or what it is about.
    pub subject: &'n str,
    /// What it has to do with; empty for nothing.
    pub target: &'n str,
    /// What happened; empty for nothing.
    pub detail: &'n str,
}

impl<'n> Note<'n> {
    /// Of an agent: who did what to it.
    #[must_use]
    pub fn of_agent(agent_id: &'n str, by: &'n str, what: &'n str) -> Self {
        Self { kind: "agent", subject: agent_id, target: by, detail: what }
    }
}

/// Tells of something under an id of its own.
///
/// # Errors
/// [`Corrupt`] if a row is not what was written.
pub fn note(tables: &mut Tables<'_>, now: Timestamp, note: Note<'_>) -> Result<(), Corrupt> {
    let id = tables.take_event();
    put(tables, now, id, note)
}

/// Tells of something under an id that this entry has taken.
///
/// # Errors
/// [`Corrupt`] if a row is not what was written.
pub fn put(tables: &mut Tables<'_>, now: Timestamp, id: EventId, note: Note<'_>) -> Result<(), Corrupt> {
    let text = |text: &str| cut(text, limits::FEED_TEXT_BYTES_MAX).to_owned();
    let row = FeedRow {
        kind: note.kind.to_owned(),
        at_millis: now.millis(),
        subject: text(note.subject),
        target: text(note.target),
        result: "ok".to_owned(),
        detail: text(note.detail),
    };
    let mut span = Span::of(tables, SPAN)?;
    tables.put(FEED, &id.key(), row.encode_to_vec());
    span.end = id.next();
    span.events = span.events.saturating_add(1);
    if span.events >= limits::FEED_EVENTS_MAX.saturating_add(limits::FEED_DROPPED_AT_ONCE as u64) {
        drop_oldest(tables, &mut span)?;
    }
    span.put(tables, SPAN);
    Ok(())
}

/// Drops the oldest in one piece, none of them of this entry.
fn drop_oldest(tables: &mut Tables<'_>, span: &mut Span) -> Result<(), Corrupt> {
    let most = limits::FEED_DROPPED_AT_ONCE;
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
    /// Visits the feed from `from` on, in order, until `visit` answers false.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    pub fn feed(&self, from: EventId, visit: &mut dyn FnMut(FeedEvent) -> bool) -> Result<(), Corrupt> {
        read(self.core.view(), from, visit)
    }

    /// Behind the last event that was told. Changes with each entry that tells one, when it can be read.
    #[must_use]
    pub fn feed_end(&self) -> watch::Receiver<EventId> {
        self.core.machine().feed_end()
    }

    /// Every event before it was dropped: whoever has seen none since has missed some.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    pub fn feed_begin(&self) -> Result<EventId, Corrupt> {
        Ok(Span::at(self.core.view(), SPAN)?.begin)
    }
}

#[cfg(test)]
mod tests;
