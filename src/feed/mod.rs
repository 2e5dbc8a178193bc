//! The live feed: what happens in the cluster, told to whoever reads while it happens (contract §7).
//!
//! What is in the replicated table has an id that is the same on every node, and a reader that comes back with the
//! last one misses nothing. One task, [`Teller::run`], reads new rows once and renders each once; readers share
//! the bytes. A [`Reader`] first reads from the table what it has missed, then what the teller tells. What
//! exchanges and verifications do is [`Activity`]: told as far as there is time and room, and not kept.

mod frame;
mod subscriber;
mod subscriber_limit;

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use frame::{Activity, ActivityKind, FeedId, KINDS, Kinds, Outcome};
pub use subscriber::{Chunk, Reader};

use self::frame::Frame;
use self::subscriber_limit::SubscriberLimiter;
use crate::clock::{Clock, Timestamp};
use crate::cluster::Corrupt;
use crate::id::Incarnation;
use crate::limits;
use crate::state::{EventId, FeedEvent, State};
use crate::telemetry::Metrics;

/// Why nobody is told anything.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An id that no event of any cluster has.
    #[error("must be <incarnation>-<index>-<number>, as an id: of this feed")]
    MalformedId,
    /// A type that there is not.
    #[error("types: each must be one of {}", KINDS.join(", "))]
    UnknownType,
    /// As many readers as may be on a node.
    #[error("too many read the events of this node")]
    TooManyReaders,
    /// As many readers as may be with one identity.
    #[error("too many read events with this identity")]
    TooManyOfCaller,
    /// The node stops, or its cluster has not begun its life.
    #[error("this node tells no events now")]
    NotNow,
    /// The table cannot be read.
    #[error(transparent)]
    Damaged(#[from] Corrupt),
}

/// Where events with an id come from.
pub trait Table: Send + Sync {
    /// Which life of the cluster it is; `None` before the first.
    fn incarnation(&self) -> Option<Incarnation>;

    /// Visits the events from `from` on, in order, until `visit` answers false.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    fn read(&self, from: EventId, visit: &mut dyn FnMut(FeedEvent) -> bool) -> Result<(), Corrupt>;

    /// Every event before it was dropped.
    ///
    /// # Errors
    /// As [`Table::read`].
    fn begin(&self) -> Result<EventId, Corrupt>;

    /// Behind the newest event; changes when one can be read, and all that is read from memory knows of it. Rows
    /// that are there before are told to nobody yet: what they took away is not taken away for everybody.
    fn end(&self) -> watch::Receiver<EventId>;
}

impl Table for State {
    fn incarnation(&self) -> Option<Incarnation> {
        self.index().incarnation
    }

    fn read(&self, from: EventId, visit: &mut dyn FnMut(FeedEvent) -> bool) -> Result<(), Corrupt> {
        self.feed(from, visit)
    }

    fn begin(&self) -> Result<EventId, Corrupt> {
        self.feed_begin()
    }

    fn end(&self) -> watch::Receiver<EventId> {
        self.feed_end()
    }
}

/// What goes to all readers.
#[derive(Clone, Debug)]
enum Told {
    /// An event.
    Event(Frame),
    /// What comes next cannot be told, and why: who listens is cut off, and finds out when it comes back.
    Gap(&'static str),
    /// The node stops.
    End,
}

/// The live feed of this node. Cheap to clone.
#[derive(Clone)]
pub struct Feed(Arc<Hub>);

/// The parts of [`Feed`].
pub struct Parts {
    /// Events with an id.
    pub table: Arc<dyn Table>,
    /// What this node calls itself.
    pub unit_id: String,
    /// Time.
    pub clock: Clock,
    /// Counters.
    pub metrics: Metrics,
    /// When the node stops, readers are let go.
    pub shutdown: CancellationToken,
}

struct Hub {
    parts: Parts,
    end: watch::Receiver<EventId>,
    told: broadcast::Sender<Told>,
    activities: mpsc::Sender<(Timestamp, Activity)>,
    subscribers: SubscriberLimiter,
    /// How many of them are about to read a page of the past.
    behind: AtomicUsize,
}

impl Feed {
    /// The feed, and who tells it: nothing is told until that runs.
    #[must_use]
    pub fn new(parts: Parts) -> (Self, Teller) {
        let (told, _) = broadcast::channel(limits::FEED_READER_QUEUE);
        let (activities, queue) = mpsc::channel(limits::FEED_ACTIVITIES_AT_ONCE);
        let end = parts.table.end();
        let place = *end.borrow();
        let (subscribers, behind) = (SubscriberLimiter::default(), AtomicUsize::new(0));
        let hub = Arc::new(Hub { parts, end, told, activities, subscribers, behind });
        (Self(Arc::clone(&hub)), Teller { hub, place, activities: queue })
    }

    /// Tells what somebody has done, if anybody reads; else it is not even put into words. Never waits: what is
    /// too much is not told.
    pub fn activity(&self, what: impl FnOnce() -> Activity) {
        if !self.0.subscribers.has_subscribers() {
            return;
        }
        if self.0.activities.try_send((self.0.parts.clock.now(), what())).is_err() {
            self.0.parts.metrics.event_activity_dropped();
        }
    }

    /// A reader of these types: from behind `after` on, or from now on. If what came behind `after` is not
    /// known here, the reader is told so first, and reads from now on.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn subscribe(
        &self,
        caller: Option<&str>,
        after: Option<FeedId>,
        kinds: Kinds,
    ) -> Result<Reader, Error> {
        let hub = &self.0;
        let incarnation = hub.parts.table.incarnation().ok_or(Error::NotNow)?;
        // Counted and listening first, and then asked for the end: the teller passes over what is before an end
        // at which nobody read, and tells what is behind it. So it is with the end of the node.
        let permit = hub.subscribers.acquire(caller, &hub.parts.metrics)?;
        let live = hub.told.subscribe();
        if hub.parts.shutdown.is_cancelled() {
            return Err(Error::NotNow);
        }
        let (begin, end) = (hub.parts.table.begin()?, *hub.end.borrow());
        let start = match after {
            None => subscriber::Start::Now,
            Some(after) if after.incarnation == incarnation && (begin..end).contains(&after.event) => {
                subscriber::Start::Behind(after.event)
            }
            Some(_) => subscriber::Start::Reset(self.first_between(begin, end)?),
        };
        Ok(Reader::new(Arc::clone(hub), (permit, live), incarnation, kinds, (start, end)))
    }

    fn first_between(&self, begin: EventId, end: EventId) -> Result<Option<EventId>, Corrupt> {
        let mut first = None;
        self.0.parts.table.read(begin, &mut |row| {
            first = Some(row.id);
            false
        })?;
        Ok(first.filter(|first| *first < end))
    }
}

/// Who tells the live feed.
pub struct Teller {
    hub: Arc<Hub>,
    /// What is before it was told, or passed over.
    place: EventId,
    activities: mpsc::Receiver<(Timestamp, Activity)>,
}

impl Teller {
    /// Tells what happens. When the node stops, every reader is let go; it never ends by itself.
    pub async fn run(mut self) {
        let mut end = self.hub.end.clone();
        let mut rounds = tokio::time::interval(limits::FEED_ACTIVITY_PAUSE);
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let shutdown = self.hub.parts.shutdown.clone();
        loop {
            let activity = async {
                rounds.tick().await;
                self.activities.recv().await
            };
            tokio::select! {
                () = shutdown.cancelled() => break,
                changed = end.changed() => match changed {
                    Ok(()) => {
                        if self.tell_rows(*end.borrow_and_update()) {
                            // The rest in the next turn, after those who read have had theirs.
                            tokio::time::sleep(limits::FEED_PAGE_PAUSE).await;
                            end.mark_changed();
                        }
                    }
                    // There is no more state.
                    Err(_) => break,
                },
                Some(first) = activity => self.tell_activities(first),
            }
        }
        self.hub.tell(Told::End);
        std::future::pending::<()>().await;
    }

    /// Tells a page of rows before `end`. Whether there may be more.
    fn tell_rows(&mut self, end: EventId) -> bool {
        let Parts { table, unit_id, .. } = &self.hub.parts;
        let incarnation = table.incarnation().filter(|_| self.hub.subscribers.has_subscribers());
        let Some(incarnation) = incarnation else {
            // Who comes now reads from the table what was passed over.
            self.place = end;
            return false;
        };
        let (first, mut frames, mut rows) = (self.place, Vec::new(), 0);
        let read = table.read(first, &mut |row| {
            if row.id >= end {
                return false;
            }
            self.place = row.id.next();
            frames.extend(Frame::of_row(incarnation, &row, unit_id));
            rows += 1;
            rows < limits::FEED_ROWS_AT_ONCE
        });
        let gap = match read.and_then(|()| table.begin()) {
            Ok(begin) if begin > first => Some("overtaken"),
            Ok(_) => None,
            Err(error) => {
                tracing::error!(%error, "read the feed");
                Some("damaged")
            }
        };
        if let Some(why) = gap {
            // Who comes from now on reads from here.
            self.place = end;
            self.hub.tell(Told::Gap(why));
            return false;
        }
        frames.into_iter().map(Told::Event).for_each(|told| self.hub.tell(told));
        rows >= limits::FEED_ROWS_AT_ONCE
    }

    fn tell_activities(&mut self, first: (Timestamp, Activity)) {
        let rest =
            iter::from_fn(|| self.activities.try_recv().ok()).take(limits::FEED_ACTIVITIES_AT_ONCE - 1);
        for (at, activity) in iter::once(first).chain(rest) {
            self.hub.tell(Told::Event(Frame::of_activity(at, &activity, &self.hub.parts.unit_id)));
        }
    }
}

impl Hub {
    /// The pause before a page of the past. The more readers there are behind, the longer it is, so that all of them
    /// together leave time for everything else. There is no turn to wait for: a reader that is not taken from,
    /// although it has the turn, would keep the others waiting.
    async fn pause(&self) {
        let behind = Behind(&self.behind);
        let readers = self.behind.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let pauses = readers.div_ceil(limits::FEED_PAGES_PER_PAUSE);
        tokio::time::sleep(limits::FEED_PAGE_PAUSE.saturating_mul(u32::try_from(pauses).unwrap_or(u32::MAX)))
            .await;
        drop(behind);
    }

    fn tell(&self, told: Told) {
        // Nobody reading is no error.
        drop(self.told.send(told));
    }
}

/// One reader that is about to read a page of the past.
struct Behind<'h>(&'h AtomicUsize);

impl Drop for Behind<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
