//! Reads each event once and tells the streams that want it, keeps a worker for each stream that is pushed, and
//! looks after what all streams hold.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval};

use super::backlog::Backlog;
use super::backoff::Jitter;
use super::catch_up::Behind;
use super::inbox::Inbox;
use super::retention::{Held, Holding};
use super::subscriptions::{Change, Streams, Tracked, change};
use super::worker::Worker;
use super::{Shared, Work, subject_of};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::{EventId, OutboxEvent, Stream, StreamStatus};

/// Streams by their ids.
type StreamMap = Arc<BTreeMap<String, Arc<Stream>>>;

/// What runs while this node leads.
pub struct Engine {
    shared: Arc<Shared>,
    seeds: Jitter,
    /// As they were when they were looked at last.
    known: StreamMap,
    streams: Streams,
    /// Everything before it was told to all streams but those that are behind.
    position: EventId,
    behind: Behind,
    /// Rows that were read since streams were told how far.
    rows: usize,
    workers: JoinSet<()>,
    stream_ids: HashMap<Id, String>,
    holding: FuturesUnordered<Work<Held>>,
    passing: Passing,
}

/// Time that has passed: the log says how much until its last entry, the boot clock how much since that was seen.
struct Passing {
    of_entry: Timestamp,
    seen: Duration,
}

impl Engine {
    /// Begins with what the streams hold now.
    pub fn new(shared: Arc<Shared>, seed: [u8; 16]) -> Self {
        let [seed, salt] =
            [&seed[..8], &seed[8..]].map(|half| half.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
        // Whoever leads again begins with other numbers.
        let seeds = Jitter::new(seed ^ salt.wrapping_mul(shared.state.cluster().applied()));
        let passing = Passing { of_entry: shared.state.index().elapsed, seen: shared.clock.boot() };
        Self {
            seeds,
            known: StreamMap::default(),
            streams: Streams::default(),
            position: EventId::default(),
            behind: Behind::default(),
            rows: 0,
            workers: JoinSet::new(),
            stream_ids: HashMap::new(),
            holding: FuturesUnordered::new(),
            passing,
            shared,
        }
    }

    /// Goes on for ever. Its workers end when it is dropped.
    pub async fn run(mut self) {
        let mut end = self.shared.state.outbox_end();
        let mut changes = self.shared.state.stream_changes();
        let mut look = interval(self.shared.limits.look_interval);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.position = *end.borrow_and_update();
        loop {
            changes.borrow_and_update();
            self.follow_streams();
            end.borrow_and_update();
            let has_more = self.read().unwrap_or_else(|error| {
                tracing::error!(%error, "read the outbox");
                false
            });
            tokio::select! {
                () = tokio::task::yield_now(), if has_more => {}
                // Neither ends before the core, which ends with the node.
                Ok(()) = end.changed() => {}
                Ok(()) = changes.changed() => {}
                _ = look.tick() => self.look(),
                Some(held) = self.holding.next() => self.held(&held),
                Some(ended) = self.workers.join_next_with_id() => self.worker_ended(ended),
            }
        }
    }

    /// Takes up what has changed about streams.
    fn follow_streams(&mut self) {
        let now = self.shared.state.streams();
        if Arc::ptr_eq(&now, &self.known) {
            return;
        }
        let before = std::mem::replace(&mut self.known, Arc::clone(&now));
        for stream_id in before.keys().filter(|stream_id| !now.contains_key(*stream_id)) {
            self.forget(stream_id);
        }
        for (stream_id, stream) in now.iter() {
            let change = match before.get(stream_id) {
                Some(before) if Arc::ptr_eq(before, stream) => continue,
                Some(before) => change(before, stream),
                None if stream.status == StreamStatus::Disabled => Change::Holds,
                None => Change::Counts,
            };
            match change {
                Change::Holds => self.forget(stream_id),
                Change::Counts => self.take_up(stream),
                Change::Wakes => match self.streams.get_mut(stream_id) {
                    Some(tracked) => {
                        tracked.is_suspect = true;
                        tracked.stream = Arc::clone(stream);
                        tracked.inbox.wake();
                    }
                    // It was disabled.
                    None => self.take_up(stream),
                },
            }
        }
    }

    fn forget(&mut self, stream_id: &str) {
        self.streams.remove(stream_id);
        self.behind.remove(stream_id);
    }

    /// Counts what waits for a stream from its cursor on, and pushes it if it is pushed.
    fn take_up(&mut self, stream: &Arc<Stream>) {
        let stream_id = &stream.config.stream_id;
        let cursor = self.shared.state.stream_cursor(stream_id).as_deref().cloned().unwrap_or_default();
        let backlog = Backlog::new(cursor);
        self.behind.put(stream_id, backlog.begin());
        let inbox = Arc::<Inbox>::default();
        // Its worker first, which may be at work on the stream as it was.
        self.streams.remove(stream_id);
        let worker = stream.config.endpoint_url.is_some().then(|| {
            let (shared, seed) = (Arc::clone(&self.shared), self.seeds.draw());
            let worker = Worker::new(shared, Arc::clone(stream), Arc::clone(&inbox), seed);
            let worker = self.workers.spawn(worker.run());
            self.stream_ids.insert(worker.id(), stream_id.clone());
            worker
        });
        let stream = Arc::clone(stream);
        self.streams.put(Tracked::new(stream, backlog, inbox, worker));
    }

    /// A worker ends by itself only when its stream is not pushed any more. If that has changed meanwhile, or
    /// the worker has failed, the next one begins where the cursor is.
    fn worker_ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = match &ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        let Some(stream_id) = self.stream_ids.remove(&id) else { return };
        if let Some(error) = ended.err().filter(JoinError::is_panic) {
            tracing::error!(%error, stream_id, "a worker has failed");
        }
        if let Some(tracked) = self.streams.get_mut(&stream_id)
            && tracked.worker.as_ref().is_some_and(|worker| worker.id() == id)
        {
            // At the next look: one that fails at once must not be all that happens here.
            tracked.worker = None;
        }
    }

    /// Reads the next events of both kinds, a few at once; whether there are more.
    fn read(&mut self) -> Result<bool, Corrupt> {
        let Self { shared, streams, position, behind, .. } = self;
        let mut turn = Turn::default();
        shared.state.outbox(*position, &mut |event| {
            let told = tell(shared, streams, &event, |stream_id| !behind.holds(stream_id));
            *position = event.id.next();
            turn.goes_on(told)
        })?;
        let mut has_more = turn.is_over();
        let mut rows = turn.rows;
        if let Some(from) = behind.next(*position) {
            let mut read_up_to = *position;
            let mut turn = Turn::default();
            shared.state.outbox(from, &mut |event| {
                if event.id >= *position {
                    return false;
                }
                let told = tell(shared, streams, &event, |stream_id| behind.is_counted(stream_id));
                let goes_on = turn.goes_on(told);
                if !goes_on {
                    read_up_to = event.id.next();
                }
                goes_on
            })?;
            behind.read_up_to(read_up_to, *position);
            rows += turn.rows;
            // The next group, or to find that there is none.
            has_more = true;
        }
        self.rows = self.rows.saturating_add(rows);
        self.pass();
        Ok(has_more)
    }

    /// Tells streams how far they were told everything, once in a while: those that nothing is for have no other
    /// way to know, and whoever leads next would read all of it again.
    fn pass(&mut self) {
        if self.rows < limits::POLL_ROWS_PASSED_MIN || !self.behind.is_at_rest() {
            return;
        }
        self.rows = 0;
        for (stream_id, tracked) in self.streams.iter_mut() {
            if tracked.worker.is_some() && !self.behind.holds(stream_id) {
                tracked.inbox.pass(self.position);
            }
        }
    }

    /// Looks at what all streams hold, and has what is too much dropped. And begins again what has failed.
    fn look(&mut self) {
        let passed = self.passed();
        // If it cannot be read, neither can what is counted by it.
        let begin = self.shared.state.outbox_begin().unwrap_or_default();
        let (mut sum, mut most) = (0_u64, 0_u64);
        let mut unmanned = Vec::new();
        for (stream_id, tracked) in self.streams.iter_mut() {
            let Some(cursor) = self.shared.state.stream_cursor(stream_id) else { continue };
            let waiting = tracked.backlog.waiting(&cursor);
            sum = sum.saturating_add(waiting);
            most = most.max(waiting);
            if tracked.worker.is_none() && tracked.stream.config.endpoint_url.is_some() {
                unmanned.push(Arc::clone(&tracked.stream));
            }
            if tracked.is_enforced || self.behind.holds(stream_id) {
                continue;
            }
            let was_recounted = std::mem::take(&mut tracked.is_recounted);
            let Some(excess) = tracked.backlog.excess(&self.shared.limits.holds, waiting, passed) else {
                continue;
            };
            let is_doubtful = std::mem::take(&mut tracked.is_suspect) || tracked.backlog.is_cut_off(begin);
            if is_doubtful && !was_recounted {
                // Nothing is dropped because of what was counted and does not wait.
                tracked.is_recounted = true;
                tracked.backlog = Backlog::new(cursor.as_ref().clone());
                self.behind.put(stream_id, tracked.backlog.begin());
                continue;
            }
            tracked.is_enforced = true;
            let holding =
                Holding { shared: Arc::clone(&self.shared), stream: Arc::clone(&tracked.stream), excess };
            self.holding.push(Box::pin(holding.enforce()));
        }
        self.shared.metrics.set_stream_backlog(sum, most);
        for stream in unmanned {
            self.take_up(&stream);
        }
    }

    fn held(&mut self, held: &Held) {
        let Some(tracked) = self.streams.get_mut(&held.stream_id) else { return };
        tracked.is_enforced = false;
        if let Some(oldest) = held.oldest {
            tracked.backlog.is_not_older_than(oldest);
        }
        tracked.inbox.wake();
    }

    fn passed(&mut self) -> Timestamp {
        let (of_entry, now) = (self.shared.state.index().elapsed, self.shared.clock.boot());
        if of_entry > self.passing.of_entry {
            self.passing = Passing { of_entry, seen: now };
        }
        self.passing.of_entry.plus(now.saturating_sub(self.passing.seen))
    }
}

/// How much was done before others have their turn.
#[derive(Default)]
struct Turn {
    rows: usize,
    told: usize,
}

impl Turn {
    /// A row was read and so many streams were told; whether there may be another one.
    const fn goes_on(&mut self, told: usize) -> bool {
        self.rows += 1;
        self.told = self.told.saturating_add(told);
        !self.is_over()
    }

    const fn is_over(&self) -> bool {
        self.rows >= limits::OUTBOX_ROWS_PER_TURN || self.told >= limits::OUTBOX_TOLD_PER_TURN
    }
}

/// Tells an event to the streams that want it, of those that are asked; how many want it.
fn tell(
    shared: &Shared,
    streams: &mut Streams,
    event: &OutboxEvent,
    mut is_asked: impl FnMut(&str) -> bool,
) -> usize {
    let mut subject = None;
    streams.visit(event, |stream_id, tracked| {
        if !is_asked(stream_id) {
            return;
        }
        if let Some(cursor) = shared.state.stream_cursor(stream_id)
            && tracked.backlog.waiting(&cursor) == 0
        {
            tracked.backlog.emptied(&cursor);
        }
        if tracked.backlog.arrived(event.id, event.elapsed) && tracked.worker.is_some() {
            let subject = subject.get_or_insert_with(|| subject_of(event));
            tracked.inbox.put(event.id, *subject);
        }
    })
}

#[cfg(test)]
mod tests;
