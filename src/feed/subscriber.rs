//! One reader of the live feed: from the table what it has missed, then what is told to all.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::{Interval, MissedTickBehavior};

use super::frame::{self, FeedId, Frame, Kinds};
use super::subscriber_limit::SubscriberPermit;
use super::{Hub, Told};
use crate::id::Incarnation;
use crate::limits;
use crate::state::EventId;

/// Types after which a reader may no longer be allowed to read.
const OF_AUTHORITY: [&str; 3] = ["revocation", "agent", "key"];

/// From where on a reader reads.
pub(super) enum Start {
    /// From now on.
    Now,
    /// From behind this event on.
    Behind(EventId),
    /// From now on, because it asked for what is not known here. This is the oldest event that is.
    Reset(Option<EventId>),
}

/// Where a reader reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// In the table.
    Table,
    /// What is told to all.
    Live,
    /// It was let go, or cut off.
    Ended,
}

/// What a reader is told at once: whole events.
#[derive(Debug)]
pub struct Chunk {
    /// As they go out; empty if the reader asked for none of them.
    pub bytes: Bytes,
    /// Whether it is to be asked before it goes out if the reader may still read: something was revoked, or
    /// a heartbeat is due.
    pub concerns_authority: bool,
}

/// A reader of the live feed.
pub struct Reader {
    hub: Arc<Hub>,
    live: broadcast::Receiver<Told>,
    incarnation: Incarnation,
    kinds: Kinds,
    greeting: Option<String>,
    heartbeats: Interval,
    source: Source,
    /// The first event that was not looked at.
    next: EventId,
    /// The last event that was looked at, and the last whose id was told.
    passed: Option<EventId>,
    told: Option<EventId>,
    _permit: SubscriberPermit,
}

impl Reader {
    pub(super) fn new(
        hub: Arc<Hub>,
        (permit, live): (SubscriberPermit, broadcast::Receiver<Told>),
        incarnation: Incarnation,
        kinds: Kinds,
        (start, end): (Start, EventId),
    ) -> Self {
        // The end is behind an event, if there ever was one.
        let newest = end.number.checked_sub(1).map(|number| EventId { index: end.index, number });
        let (passed, next, source) = match &start {
            Start::Behind(after) => (Some(*after), after.next(), Source::Table),
            Start::Now | Start::Reset(_) => (newest, end, Source::Live),
        };
        let id = |event| FeedId { incarnation, event };
        let mut greeting = frame::greeting(passed.map(id));
        if let Start::Reset(first_available) = start {
            greeting.push_str(&frame::reset(first_available.map(id)));
        }
        let mut heartbeats = tokio::time::interval(limits::FEED_HEARTBEAT);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first is due after as long, not at once.
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
            passed,
            told: passed,
            _permit: permit,
        }
    }

    /// What is told next: first how to come back, then events and heartbeats. `None` when the reader was let go,
    /// or is cut off because it took too long. Nothing is lost if it is not waited for.
    pub async fn next(&mut self) -> Option<Chunk> {
        if let Some(greeting) = self.greeting.take() {
            return Some(Chunk { bytes: greeting.into(), concerns_authority: false });
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
                    let told = tokio::select! {
                        biased;
                        _ = self.heartbeats.tick() => return Some(self.heartbeat()),
                        told = self.live.recv() => told,
                    };
                    if let Some(chunk) = self.take(told) {
                        return Some(chunk);
                    }
                }
            }
        }
    }

    /// A sign of life, with the reader's place if it has passed by what it did not ask for: else it would come
    /// back with an id that is no longer kept.
    fn heartbeat(&mut self) -> Chunk {
        let has_moved = self.passed != self.told;
        self.told = self.passed;
        let place = self.passed.filter(|_| has_moved).map(|event| self.id(event));
        Chunk { bytes: frame::heartbeat(place), concerns_authority: true }
    }

    /// Notes that the reader is cut off, for example because it may no longer read.
    pub fn cut_off(&mut self, reason: &'static str) {
        self.source = Source::Ended;
        self.hub.parts.metrics.event_reader_dropped(reason);
    }

    /// A page of the table. Nothing is waited for between reading it and answering it.
    fn read_page(&mut self) -> Option<Chunk> {
        // Listening first, then asking for the end, then reading: what comes meanwhile is told too, and is passed
        // over by its id.
        self.live = self.hub.told.subscribe();
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
            self.pass(row.id);
            page.concerns_authority |= OF_AUTHORITY.contains(&&*row.kind);
            // What nobody asked for is not put into words.
            if self.kinds.has(&row.kind)
                && let Some(frame) = Frame::of_row(self.incarnation, &row, &hub.parts.unit_id)
            {
                self.add(&mut page, &frame);
            }
            rows += 1;
            is_full = rows >= limits::FEED_ROWS_AT_ONCE || page.is_full();
            !is_full
        });
        match read.and_then(|()| hub.parts.table.begin()) {
            // The oldest are dropped meanwhile, and who reads slowly is overtaken: it comes back, and is told.
            Ok(begin) if begin > first => {
                self.cut_off("overtaken");
                return None;
            }
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, "read the feed");
                self.cut_off("damaged");
                return None;
            }
        }
        self.source = if is_full { Source::Table } else { Source::Live };
        page.into_chunk()
    }

    /// What was told, and what else is there already, up to a size. After the end of the feed, or a gap in it,
    /// the reader is told what it got before, and nothing more.
    fn take(&mut self, told: Result<Told, RecvError>) -> Option<Chunk> {
        let mut page = Page::default();
        let mut told = told.map_err(|error| matches!(error, RecvError::Lagged(_)));
        loop {
            match told {
                Ok(Told::Event(frame)) => self.add_live(&mut page, &frame),
                Ok(Told::End) | Err(false) => self.source = Source::Ended,
                Ok(Told::Gap(why)) => self.cut_off(why),
                Err(true) => self.cut_off("slow"),
            }
            if self.source == Source::Ended || page.is_full() {
                return page.into_chunk();
            }
            told = match self.live.try_recv() {
                Ok(told) => Ok(told),
                Err(TryRecvError::Empty) => return page.into_chunk(),
                Err(error) => Err(matches!(error, TryRecvError::Lagged(_))),
            };
        }
    }

    fn add_live(&mut self, page: &mut Page, frame: &Frame) {
        if let Some(id) = frame.id {
            // It was read from the table, or is older than this reader.
            if id < self.next {
                return;
            }
            self.pass(id);
        }
        self.add(page, frame);
    }

    fn add(&mut self, page: &mut Page, frame: &Frame) {
        page.concerns_authority |= OF_AUTHORITY.contains(&frame.kind);
        if self.kinds.has(frame.kind) {
            page.bytes.extend_from_slice(&frame.bytes);
            self.told = frame.id.or(self.told);
        }
    }

    fn pass(&mut self, id: EventId) {
        self.passed = Some(id);
        self.next = id.next();
    }

    fn id(&self, event: EventId) -> FeedId {
        FeedId { incarnation: self.incarnation, event }
    }
}

/// Events on their way into a chunk.
#[derive(Default)]
struct Page {
    bytes: BytesMut,
    concerns_authority: bool,
}

impl Page {
    fn is_full(&self) -> bool {
        self.bytes.len() >= limits::FEED_CHUNK_BYTES_FULL
    }

    fn into_chunk(self) -> Option<Chunk> {
        let Self { bytes, concerns_authority } = self;
        let chunk = Chunk { bytes: bytes.freeze(), concerns_authority };
        (!chunk.bytes.is_empty() || concerns_authority).then_some(chunk)
    }
}
