//! Live feed: cluster events as they happen (contract §7).
//!
//! Events of the replicated table have ids that are equal on every node, so that a subscriber that resumes with its
//! last id misses none. One task, [`Broadcaster::run`], reads each new row and renders it once; subscribers share the
//! bytes. A [`Subscriber`] first replays missed events from the table, then receives the broadcast. Exchanges and
//! denials are [`Activity`]: broadcast best-effort and not stored, and gathered from the other members by
//! [`Gatherer::run`].

mod frame;
mod gathering;
mod subscriber;
mod subscriber_limit;

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

use frame::kinds;
pub(crate) use frame::{Activity, ActivityKind, ActivityResult, FeedId, Kinds};
pub(crate) use gathering::{FeedPeers, Gatherer};
pub(crate) use subscriber::Subscriber;

use self::frame::Frame;
use self::subscriber_limit::SubscriberLimiter;
use crate::clock::{Clock, Timestamp};
use crate::cluster::Corrupt;
use crate::id::Incarnation;
use crate::limits;
use crate::state::{EventId, FeedEvent, State};
use crate::telemetry::Metrics;

/// Why a subscription was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not an id of this feed.
    #[error("must be <incarnation>-<index>-<number>, the id of an event of this feed")]
    MalformedId,
    /// Unknown event type.
    #[error("types: each must be one of {}", kinds().collect::<Vec<_>>().join(", "))]
    UnknownType,
    /// The limit per node is reached.
    #[error("limit of feed subscribers of this node reached")]
    TooManySubscribers,
    /// The limit per caller is reached.
    #[error("limit of feed subscribers of this caller reached")]
    TooManySubscribersOfCaller,
    /// The node stops, or the cluster is not bootstrapped.
    #[error("the live feed is not available on this node")]
    Unavailable,
    /// The table is corrupt.
    #[error(transparent)]
    Damaged(#[from] Corrupt),
}

/// Source of events with ids.
pub trait FeedTable: Send + Sync {
    /// Incarnation of the cluster; `None` before bootstrap.
    fn incarnation(&self) -> Option<Incarnation>;

    /// Visits the events from `from` on, in order, until `visit` returns false.
    fn read(&self, from: EventId, visit: &mut dyn FnMut(FeedEvent) -> bool) -> Result<(), Corrupt>;

    /// The oldest retained event; every event before it was dropped.
    fn begin(&self) -> Result<EventId, Corrupt>;

    /// After the newest event. Changes when an event is readable and applied to all in-memory indexes: a row that is
    /// not in effect yet must not be published.
    fn end(&self) -> watch::Receiver<EventId>;
}

impl FeedTable for State {
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

/// Broadcast to all subscribers.
#[derive(Clone, Debug)]
enum Broadcast {
    Event(Frame),
    /// The feed has a gap. Subscribers are disconnected and receive `reset` when they resume.
    Gap(&'static str),
    /// The node stops.
    End,
}

/// Live feed of this node. Cheap to clone.
#[derive(Clone)]
pub struct Feed(Arc<Hub>);

/// Construction of [`Feed`].
pub struct Parts {
    /// Source of events with ids.
    pub table: Arc<dyn FeedTable>,
    /// The other members, whose activities are gathered.
    pub peers: Arc<dyn FeedPeers>,
    /// Name of this node.
    pub unit_id: String,
    pub clock: Clock,
    pub metrics: Metrics,
    /// Ends all subscriptions.
    pub shutdown: CancellationToken,
}

struct Hub {
    parts: Parts,
    end: watch::Receiver<EventId>,
    broadcast: broadcast::Sender<Broadcast>,
    activities: mpsc::Sender<(Timestamp, Activity)>,
    limiter: SubscriberLimiter,
    /// Number of subscribers about to read a page of the table.
    replaying: AtomicUsize,
}

impl Feed {
    /// The feed, and its broadcaster and gatherer, which must run.
    pub fn new(parts: Parts) -> (Self, Broadcaster, Gatherer) {
        let (broadcast, _) = broadcast::channel(limits::FEED_QUEUED_EVENTS_MAX);
        let (activities, queue) = mpsc::channel(limits::FEED_ACTIVITIES_QUEUED_MAX);
        let end = parts.table.end();
        let position = *end.borrow();
        let (limiter, replaying) = (SubscriberLimiter::default(), AtomicUsize::new(0));
        let hub = Arc::new(Hub { parts, end, broadcast, activities, limiter, replaying });
        let gatherer = Gatherer { hub: Arc::clone(&hub) };
        (Self(Arc::clone(&hub)), Broadcaster { hub, position, activities: queue }, gatherer)
    }

    /// Publishes an activity, if there is a subscriber on any node; otherwise it is not even built. Never waits: beyond the queue,
    /// activities are dropped and counted.
    pub fn activity(&self, activity: impl FnOnce() -> Activity) {
        if !self.0.limiter.has_subscribers() && !self.0.parts.peers.is_observed() {
            return;
        }
        if self.0.activities.try_send((self.0.parts.clock.now(), activity())).is_err() {
            self.0.parts.metrics.event_activities_dropped.inc([]);
        }
    }

    /// Subscribes to these types: after `after`, or from now on. If the events after `after` are not available, the
    /// subscriber first receives `reset` and continues from now on.
    pub fn subscribe(
        &self,
        caller: Option<&str>,
        after: Option<FeedId>,
        kinds: Kinds,
    ) -> Result<Subscriber, Error> {
        let hub = &self.0;
        let incarnation = hub.parts.table.incarnation().ok_or(Error::Unavailable)?;
        // In this order: counted, subscribed to the broadcast, then the end is read. The broadcaster skips events
        // before an end at which it counted no subscriber, and broadcasts events after it. The check of shutdown comes
        // after, too.
        let permit = hub.limiter.acquire(caller, &hub.parts.metrics)?;
        let live = hub.broadcast.subscribe();
        if hub.parts.shutdown.is_cancelled() {
            return Err(Error::Unavailable);
        }
        let (begin, end) = (hub.parts.table.begin()?, *hub.end.borrow());
        let start = match after {
            None => subscriber::Start::Now,
            Some(after) if after.incarnation == incarnation && (begin..end).contains(&after.event) => {
                subscriber::Start::After(after.event)
            }
            Some(_) => subscriber::Start::Reset(self.first_between(begin, end)?),
        };
        Ok(Subscriber::new(Arc::clone(hub), (permit, live), incarnation, kinds, (start, end)))
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

/// Broadcasts the live feed.
pub struct Broadcaster {
    hub: Arc<Hub>,
    /// Everything before it was broadcast or skipped.
    position: EventId,
    activities: mpsc::Receiver<(Timestamp, Activity)>,
}

impl Broadcaster {
    /// Broadcasts events until the node stops, then ends every subscription; never returns.
    pub async fn run(mut self) {
        let mut end = self.hub.end.clone();
        let mut rounds = tokio::time::interval(limits::FEED_ACTIVITY_INTERVAL);
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
                        if self.broadcast_rows(*end.borrow_and_update()) {
                            // The rest in the next turn, after the subscribers.
                            tokio::time::sleep(limits::FEED_PAGE_PAUSE).await;
                            end.mark_changed();
                        }
                    }
                    // The state is gone.
                    Err(_) => break,
                },
                Some(first) = activity => self.broadcast_activities(first),
            }
        }
        self.hub.send(Broadcast::End);
        std::future::pending::<()>().await;
    }

    /// Broadcasts a page of rows before `end`; returns whether there may be more.
    fn broadcast_rows(&mut self, end: EventId) -> bool {
        let Parts { table, unit_id, .. } = &self.hub.parts;
        let incarnation = table.incarnation().filter(|_| self.hub.limiter.has_subscribers());
        let Some(incarnation) = incarnation else {
            // A later subscriber replays skipped rows from the table.
            self.position = end;
            return false;
        };
        let (first, mut frames, mut rows) = (self.position, Vec::new(), 0);
        let read = table.read(first, &mut |row| {
            if row.id >= end {
                return false;
            }
            self.position = row.id.next();
            frames.extend(Frame::of_row(incarnation, &row, unit_id));
            rows += 1;
            rows < limits::FEED_ROWS_PER_READ
        });
        let gap = match read.and_then(|()| table.begin()) {
            Ok(begin) if begin > first => Some("overtaken"),
            Ok(_) => None,
            Err(error) => {
                tracing::error!(%error, "failed to read the feed");
                Some("damaged")
            }
        };
        if let Some(reason) = gap {
            // Later subscribers begin here.
            self.position = end;
            self.hub.send(Broadcast::Gap(reason));
            return false;
        }
        frames.into_iter().map(Broadcast::Event).for_each(|event| self.hub.send(event));
        rows >= limits::FEED_ROWS_PER_READ
    }

    fn broadcast_activities(&mut self, first: (Timestamp, Activity)) {
        let rest =
            iter::from_fn(|| self.activities.try_recv().ok()).take(limits::FEED_ACTIVITIES_QUEUED_MAX - 1);
        let Parts { unit_id, peers, .. } = &self.hub.parts;
        for (at, activity) in iter::once(first).chain(rest) {
            if peers.is_observed() {
                peers.publish(gathering::encode(at, &activity, unit_id));
            }
            self.hub.send(Broadcast::Event(Frame::of_activity(at, &activity, unit_id)));
        }
    }
}

impl Hub {
    /// The pause before a page of the table. It grows with the number of subscribers that replay, so that all of them
    /// together leave time for everything else. There is no turn to wait for: a stalled subscriber that holds it would
    /// block the others.
    async fn pause(&self) {
        let guard = ReplayGuard(&self.replaying);
        let subscribers = self.replaying.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let pauses = subscribers.div_ceil(limits::FEED_PAGES_PER_PAUSE);
        tokio::time::sleep(limits::FEED_PAGE_PAUSE.saturating_mul(u32::try_from(pauses).unwrap_or(u32::MAX)))
            .await;
        drop(guard);
    }

    fn send(&self, event: Broadcast) {
        // An error means that there is no subscriber.
        drop(self.broadcast.send(event));
    }
}

/// RAII count of a subscriber that replays.
struct ReplayGuard<'h>(&'h AtomicUsize);

impl Drop for ReplayGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
