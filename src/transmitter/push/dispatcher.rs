//! Reads each event once and dispatches it to the streams that it matches, runs a worker per pushed stream, and sweeps
//! the retention of all streams.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval};

use super::backlog::{Backlog, Excess};
use super::backoff::Jitter;
use super::catch_up::CatchUp;
use super::inbox::Inbox;
use super::retention::{self, Enforced, StreamInExcess};
use super::subscriptions::{Change, Subscription, Subscriptions, change};
use super::timers::finished;
use super::turn::Turn;
use super::worker::Worker;
use super::{Shared, Work, subject_of};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::{EventId, OutboxEvent, Stream, StreamStatus};

type StreamMap = Arc<BTreeMap<String, Arc<Stream>>>;

/// Runs while this node leads.
pub struct Dispatcher {
    shared: Arc<Shared>,
    seeds: Jitter,
    /// The streams of the last comparison.
    streams: StreamMap,
    subscriptions: Subscriptions,
    /// Everything before it was dispatched to all streams but those that catch up.
    position: EventId,
    catch_up: CatchUp,
    /// Rows read since positions were last passed to workers.
    rows: usize,
    workers: JoinSet<()>,
    stream_ids: HashMap<Id, String>,
    /// The pass that enforces the retention.
    enforcing: Option<Work<Vec<Enforced>>>,
    elapsed_time: ElapsedTime,
}

/// Elapsed time: log time up to the last entry, boot clock since that entry was seen.
struct ElapsedTime {
    at_last_entry: Timestamp,
    seen_at: Duration,
}

impl Dispatcher {
    /// Starts with the current streams.
    pub fn new(shared: Arc<Shared>, seed: [u8; 16]) -> Self {
        let [seed, salt] =
            [&seed[..8], &seed[8..]].map(|half| half.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
        // A node that leads again draws other numbers.
        let seeds = Jitter::new(seed ^ salt.wrapping_mul(shared.state.cluster().applied()));
        let elapsed_time =
            ElapsedTime { at_last_entry: shared.state.index().elapsed, seen_at: shared.clock.boot() };
        Self {
            seeds,
            streams: StreamMap::default(),
            subscriptions: Subscriptions::default(),
            position: EventId::default(),
            catch_up: CatchUp::default(),
            rows: 0,
            workers: JoinSet::new(),
            stream_ids: HashMap::new(),
            enforcing: None,
            elapsed_time,
            shared,
        }
    }

    /// Never returns. Dropping it ends the workers.
    pub async fn run(mut self) {
        let mut end = self.shared.state.outbox_end();
        let mut changes = self.shared.state.stream_changes();
        let mut sweep = interval(self.shared.limits.sweep_interval);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.position = *end.borrow_and_update();
        loop {
            changes.borrow_and_update();
            self.follow_streams();
            end.borrow_and_update();
            let has_more = self.read().unwrap_or_else(|error| {
                tracing::error!(%error, "failed to read the outbox");
                false
            });
            tokio::select! {
                () = tokio::task::yield_now(), if has_more => {}
                // Both senders live until the node ends.
                Ok(()) = end.changed() => {}
                Ok(()) = changes.changed() => {}
                _ = sweep.tick() => self.sweep(),
                enforced = finished(&mut self.enforcing) => self.enforced(enforced),
                Some(ended) = self.workers.join_next_with_id() => self.worker_ended(ended),
            }
        }
    }

    /// Applies changes of the streams.
    fn follow_streams(&mut self) {
        let now = self.shared.state.streams();
        if Arc::ptr_eq(&now, &self.streams) {
            return;
        }
        let before = std::mem::replace(&mut self.streams, Arc::clone(&now));
        for stream_id in before.keys().filter(|stream_id| !now.contains_key(*stream_id)) {
            self.unsubscribe(stream_id);
        }
        for (stream_id, stream) in now.iter() {
            let change = match before.get(stream_id) {
                Some(before) if Arc::ptr_eq(before, stream) => continue,
                Some(before) => change(before, stream),
                None if stream.status == StreamStatus::Disabled => Change::Removed,
                None => Change::Recounted,
            };
            match change {
                Change::Removed => self.unsubscribe(stream_id),
                Change::Recounted => self.subscribe(stream),
                Change::Woken => match self.subscriptions.get_mut(stream_id) {
                    Some(subscription) => {
                        subscription.is_suspect = true;
                        subscription.stream = Arc::clone(stream);
                        subscription.inbox.wake();
                    }
                    // It was disabled.
                    None => self.subscribe(stream),
                },
            }
        }
    }

    fn unsubscribe(&mut self, stream_id: &str) {
        self.subscriptions.remove(stream_id);
        self.catch_up.remove(stream_id);
    }

    /// Counts the backlog of a stream from its cursor on, and starts a worker if it is pushed.
    fn subscribe(&mut self, stream: &Arc<Stream>) {
        let stream_id = &stream.config.stream_id;
        let cursor = self.shared.state.stream_cursor(stream_id).as_deref().cloned().unwrap_or_default();
        let backlog = Backlog::new(cursor);
        // First ends its worker, which may be working with the old stream.
        self.unsubscribe(stream_id);
        self.catch_up.start(stream_id, backlog.begin());
        let inbox = Arc::<Inbox>::default();
        let worker = stream.config.endpoint_url.is_some().then(|| {
            let (shared, seed) = (Arc::clone(&self.shared), self.seeds.draw());
            let worker = Worker::new(shared, Arc::clone(stream), Arc::clone(&inbox), seed);
            let worker = self.workers.spawn(worker.run());
            self.stream_ids.insert(worker.id(), stream_id.clone());
            worker
        });
        let stream = Arc::clone(stream);
        self.subscriptions.put(Subscription::new(stream, backlog, inbox, worker));
    }

    /// A worker ends by itself only when its stream is no longer pushed. If that has changed again, or the worker
    /// failed, the sweep starts the next one at the cursor.
    fn worker_ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = match &ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        let Some(stream_id) = self.stream_ids.remove(&id) else { return };
        if let Some(error) = ended.err().filter(JoinError::is_panic) {
            tracing::error!(%error, stream_id, "push worker failed; restarting from its cursor");
        }
        if let Some(subscription) = self.subscriptions.get_mut(&stream_id)
            && subscription.worker.as_ref().is_some_and(|worker| worker.id() == id)
        {
            // At the next sweep: a worker that fails at once must not occupy this loop.
            subscription.worker = None;
        }
    }

    /// Reads a few events at the position and of the catch-up; returns whether there are more.
    fn read(&mut self) -> Result<bool, Corrupt> {
        let Self { shared, subscriptions, position, catch_up, .. } = self;
        let mut turn = Turn::default();
        shared.state.outbox(*position, &mut |event| {
            let dispatched = dispatch(subscriptions, &event, |stream_id| !catch_up.contains(stream_id));
            *position = event.id.next();
            turn.has_capacity(dispatched)
        })?;
        let mut has_more = turn.is_exhausted();
        let mut rows = turn.rows;
        if let Some(from) = catch_up.next(*position) {
            let mut read_up_to = *position;
            let mut turn = Turn::default();
            shared.state.outbox(from, &mut |event| {
                if event.id >= *position {
                    return false;
                }
                let dispatched = dispatch(subscriptions, &event, |stream_id| catch_up.is_reading(stream_id));
                let has_capacity = turn.has_capacity(dispatched);
                if !has_capacity {
                    read_up_to = event.id.next();
                }
                has_capacity
            })?;
            catch_up.read_up_to(read_up_to, *position);
            rows += turn.rows;
            // The next group, or to detect that there is none.
            has_more = true;
        }
        self.rows = self.rows.saturating_add(rows);
        self.publish_position();
        Ok(has_more)
    }

    /// Passes the position to workers occasionally: a stream without matching events has no other way to advance, and
    /// the next leader would read all of it again.
    fn publish_position(&mut self) {
        if self.rows < limits::POLL_CURSOR_ADVANCE_ROWS_MIN || !self.catch_up.is_idle() {
            return;
        }
        self.rows = 0;
        for (stream_id, subscription) in self.subscriptions.iter_mut() {
            if subscription.worker.is_some() && !self.catch_up.contains(stream_id) {
                subscription.inbox.set_position(self.position);
            }
        }
    }

    /// Compares the backlog of each stream with its retention, and restarts failed workers.
    fn sweep(&mut self) {
        let elapsed = self.elapsed();
        // If the beginning cannot be read, no event counts as removed.
        let (begin, is_full) = self.shared.state.outbox_begin().unwrap_or_default();
        let retention = &self.shared.limits.retention;
        let (mut sum, mut most) = (0_u64, 0_u64);
        let (mut without_worker, mut in_excess) = (Vec::new(), Vec::new());
        for (stream_id, subscription) in self.subscriptions.iter_mut() {
            let Some(cursor) = self.shared.state.stream_cursor(stream_id) else { continue };
            let undelivered = subscription.backlog.undelivered(&cursor);
            if undelivered == 0 {
                subscription.backlog.reset(&cursor);
            }
            sum = sum.saturating_add(undelivered);
            most = most.max(undelivered);
            if subscription.worker.is_none() && subscription.stream.config.endpoint_url.is_some() {
                without_worker.push(Arc::clone(&subscription.stream));
            }
            if self.enforcing.is_some() || self.catch_up.contains(stream_id) {
                continue;
            }
            let is_truncated = subscription.backlog.is_truncated(begin);
            // Otherwise age removed them, of which the retention of each stream is shorter: the count begins early.
            let is_removed = is_truncated && is_full;
            let excess = if is_removed {
                Some(Excess::Removed { undelivered, end: self.position })
            } else {
                subscription.backlog.excess(retention, undelivered, elapsed)
            };
            let Some(excess) = excess else {
                subscription.is_recounted = false;
                continue;
            };
            if subscription.is_doubtful(is_truncated && !is_removed) {
                // An event that was counted but is no longer undelivered must not cause a drop.
                subscription.backlog = Backlog::new(cursor.as_ref().clone());
                self.catch_up.start(stream_id, subscription.backlog.begin());
            } else {
                in_excess.push(StreamInExcess { stream: Arc::clone(&subscription.stream), cursor, excess });
            }
        }
        if !in_excess.is_empty() {
            self.enforcing = Some(Box::pin(retention::enforce(Arc::clone(&self.shared), in_excess)));
        }
        self.shared.metrics.set_stream_backlog(sum, most);
        for stream in without_worker {
            self.subscribe(&stream);
        }
    }

    fn enforced(&mut self, enforced: Vec<Enforced>) {
        self.enforcing = None;
        for Enforced { stream_id, oldest } in enforced {
            let Some(subscription) = self.subscriptions.get_mut(&stream_id) else { continue };
            if let Some(oldest) = oldest {
                subscription.backlog.set_oldest(oldest);
            }
            subscription.inbox.wake();
        }
    }

    fn elapsed(&mut self) -> Timestamp {
        let (at_last_entry, now) = (self.shared.state.index().elapsed, self.shared.clock.boot());
        if at_last_entry > self.elapsed_time.at_last_entry {
            self.elapsed_time = ElapsedTime { at_last_entry, seen_at: now };
        }
        self.elapsed_time.at_last_entry.plus(now.saturating_sub(self.elapsed_time.seen_at))
    }
}

/// Dispatches an event to the matching streams for which `is_selected`; returns how many deliver its type.
fn dispatch(
    subscriptions: &mut Subscriptions,
    event: &OutboxEvent,
    mut is_selected: impl FnMut(&str) -> bool,
) -> usize {
    let mut subject = None;
    subscriptions.visit(event, |stream_id, subscription| {
        if !is_selected(stream_id) {
            return;
        }
        if subscription.backlog.count(event.id, event.elapsed) && subscription.worker.is_some() {
            let subject = subject.get_or_insert_with(|| subject_of(event));
            subscription.inbox.put(event.id, *subject);
        }
    })
}

#[cfg(test)]
mod tests;
