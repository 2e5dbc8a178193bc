//! One subscriber of the live feed: replays missed events from the table, then receives the broadcast.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::{Interval, MissedTickBehavior};

use super::frame::{self, FeedId, Frame, Kinds};
use super::subscriber_limit::SubscriberPermit;
use super::{Broadcast, Hub};
use crate::id::Incarnation;
use crate::limits;
use crate::state::EventId;

/// Event types after which a subscriber may have lost its permission.
const AUTHORITY_KINDS: [&str; 3] = ["revocation", "agent", "key"];

/// Start of a subscription.
pub(super) enum Start {
    /// From now on.
    Now,
    /// After this event.
    After(EventId),
    /// From now on, because the requested events are unavailable; with the oldest available event.
    Reset(Option<EventId>),
}

/// Source of the next events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Table,
    /// The broadcast.
    Live,
    /// Ended or disconnected.
    Ended,
}

/// Whole events for one write.
#[derive(Debug)]
pub struct Chunk {
    /// Empty if none has a requested type.
    pub bytes: Bytes,
    /// Whether the subscriber's permission must be checked again before the write: after events that may affect it, and
    /// with each heartbeat.
    pub needs_recheck: bool,
}

/// A subscriber of the live feed.
pub struct Subscriber {
    hub: Arc<Hub>,
    live: broadcast::Receiver<Broadcast>,
    incarnation: Incarnation,
    kinds: Kinds,
    greeting: Option<String>,
    heartbeats: Interval,
    source: Source,
    /// First event that was not processed.
    next: EventId,
    /// The last event processed, and the last whose id was sent.
    processed: Option<EventId>,
    sent: Option<EventId>,
    _permit: SubscriberPermit,
}

impl Subscriber {
    pub(super) fn new(
        hub: Arc<Hub>,
        (permit, live): (SubscriberPermit, broadcast::Receiver<Broadcast>),
        incarnation: Incarnation,
        kinds: Kinds,
        (start, end): (Start, EventId),
    ) -> Self {
        // The end is after the newest event, if there is one.
        let newest = end.number.checked_sub(1).map(|number| EventId { index: end.index, number });
        let (processed, next, source) = match &start {
            Start::After(after) => (Some(*after), after.next(), Source::Table),
            Start::Now | Start::Reset(_) => (newest, end, Source::Live),
        };
        let id = |event| FeedId { incarnation, event };
        let mut greeting = frame::greeting(processed.map(id));
        if let Start::Reset(first_available) = start {
            greeting.push_str(&frame::reset(first_available.map(id)));
        }
        let mut heartbeats = tokio::time::interval(limits::FEED_HEARTBEAT_INTERVAL);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Otherwise the first tick is immediate.
        heartbeats.reset();
        Self {
            hub,
            live,
            incarnation,
            kinds,
            greeting: Some(greeting),
            heartbeats,
            source,
            next,
            processed,
            sent: processed,
            _permit: permit,
        }
    }

    /// The next chunk: first the resume position, then events and heartbeats. `None` after the end, or after a
    /// disconnection of a slow subscriber. Cancel-safe.
    pub async fn next(&mut self) -> Option<Chunk> {
        if let Some(greeting) = self.greeting.take() {
            return Some(Chunk { bytes: greeting.into(), needs_recheck: false });
        }
        loop {
            match self.source {
                Source::Ended => return None,
                Source::Table => {
                    tokio::select! {
                        biased;
                        _ = self.heartbeats.tick() => return Some(self.heartbeat()),
                        () = self.hub.pause() => {}
                    }
                    if let Some(chunk) = self.read_page() {
                        return Some(chunk);
                    }
                }
                Source::Live => {
                    let received = tokio::select! {
                        biased;
                        _ = self.heartbeats.tick() => return Some(self.heartbeat()),
                        received = self.live.recv() => received,
                    };
                    if let Some(chunk) = self.drain(received) {
                        return Some(chunk);
                    }
                }
            }
        }
    }

    /// A heartbeat, with the resume position if only other types were processed since: otherwise the subscriber would
    /// resume with an id that is no longer retained.
    fn heartbeat(&mut self) -> Chunk {
        let has_moved = self.processed != self.sent;
        self.sent = self.processed;
        let position = self.processed.filter(|_| has_moved).map(|event| self.id(event));
        Chunk { bytes: frame::heartbeat(position), needs_recheck: true }
    }

    /// Disconnects the subscriber, for example because it lost its permission.
    pub fn disconnect(&mut self, reason: &'static str) {
        self.source = Source::Ended;
        self.hub.parts.metrics.event_readers_dropped.inc([reason]);
    }

    /// Reads a page of the table. No await between reading and returning it.
    fn read_page(&mut self) -> Option<Chunk> {
        // In this order: subscribed, end read, table read. Concurrent events are broadcast too, and skipped by their
        // id.
        self.live = self.hub.broadcast.subscribe();
        if self.hub.parts.shutdown.is_cancelled() {
            self.source = Source::Ended;
            return None;
        }
        let (hub, first) = (Arc::clone(&self.hub), self.next);
        let end = *hub.end.borrow();
        let (mut page, mut rows, mut is_full) = (Page::default(), 0, false);
        let read = hub.parts.table.read(first, &mut |row| {
            if row.id >= end {
                return false;
            }
            self.mark_processed(row.id);
            page.needs_recheck |= AUTHORITY_KINDS.contains(&&*row.kind);
            // Other types are not rendered.
            if self.kinds.contains(&row.kind)
                && let Some(frame) = Frame::of_row(self.incarnation, &row, &hub.parts.unit_id)
            {
                self.add(&mut page, &frame);
            }
            rows += 1;
            is_full = rows >= limits::FEED_ROWS_PER_READ || page.is_full();
            !is_full
        });
        match read.and_then(|()| hub.parts.table.begin()) {
            // Events were dropped faster than they were read: the subscriber receives `reset` when it resumes.
            Ok(begin) if begin > first => {
                self.disconnect("overtaken");
                return None;
            }
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, "failed to read the feed");
                self.disconnect("damaged");
                return None;
            }
        }
        self.source = if is_full { Source::Table } else { Source::Live };
        page.into_chunk()
    }

    /// The received broadcast with everything queued, up to a size. At the end or a gap the subscriber still receives
    /// the events before it.
    fn drain(&mut self, received: Result<Broadcast, RecvError>) -> Option<Chunk> {
        let mut page = Page::default();
        let mut received = received.map_err(|error| matches!(error, RecvError::Lagged(_)));
        loop {
            match received {
                Ok(Broadcast::Event(frame)) => self.add_live(&mut page, &frame),
                Ok(Broadcast::End) | Err(false) => self.source = Source::Ended,
                Ok(Broadcast::Gap(why)) => self.disconnect(why),
                Err(true) => self.disconnect("slow"),
            }
            if self.source == Source::Ended || page.is_full() {
                return page.into_chunk();
            }
            received = match self.live.try_recv() {
                Ok(broadcast) => Ok(broadcast),
                Err(TryRecvError::Empty) => return page.into_chunk(),
                Err(error) => Err(matches!(error, TryRecvError::Lagged(_))),
            };
        }
    }

    fn add_live(&mut self, page: &mut Page, frame: &Frame) {
        if let Some(id) = frame.id {
            // Read from the table, or older than this subscription.
            if id < self.next {
                return;
            }
            self.mark_processed(id);
        }
        self.add(page, frame);
    }

    fn add(&mut self, page: &mut Page, frame: &Frame) {
        page.needs_recheck |= AUTHORITY_KINDS.contains(&frame.kind);
        if self.kinds.contains(frame.kind) {
            page.bytes.extend_from_slice(&frame.bytes);
            self.sent = frame.id.or(self.sent);
        }
    }

    fn mark_processed(&mut self, id: EventId) {
        self.processed = Some(id);
        self.next = id.next();
    }

    fn id(&self, event: EventId) -> FeedId {
        FeedId { incarnation: self.incarnation, event }
    }
}

/// Events of one chunk.
#[derive(Default)]
struct Page {
    bytes: BytesMut,
    needs_recheck: bool,
}

impl Page {
    fn is_full(&self) -> bool {
        self.bytes.len() >= limits::FEED_CHUNK_BYTES_FULL
    }

    fn into_chunk(self) -> Option<Chunk> {
        let Self { bytes, needs_recheck } = self;
        let chunk = Chunk { bytes: bytes.freeze(), needs_recheck };
        (!chunk.bytes.is_empty() || needs_recheck).then_some(chunk)
    }
}
