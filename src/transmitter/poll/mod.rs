//! Poll delivery (RFC 8936): records acknowledgements, then returns open events, the same ones until they are
//! acknowledged.
//!
//! No state but the cursor in the log and a cache of signed tokens, so that any node serves any poll.

mod poll_limit;
mod request;
mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use request::{PollRequest, RefusedSet};

use self::poll_limit::PollLimiter;
use self::scan::Scan;
use super::cursor;
use super::obstacle::Obstacles;
use super::set_builder::{self, SetBuilder};
use crate::clock::Clock;
use crate::limits;
use crate::state::{
    self, CallContext, EventId, LeaseProof, NewDeadLetter, OutboxEvent, Refusal, State, Stream, StreamCursor,
    StreamStatus,
};
use crate::telemetry::Metrics;

/// Why a poll was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field of the request breaks a rule.
    #[error("{field}: {rule}")]
    Invalid { field: &'static str, rule: &'static str },
    /// No such stream, or one of another owner; the caller cannot tell which.
    #[error("there is no stream with this stream_id")]
    UnknownStream,
    /// The stream uses push.
    #[error("stream_id: the stream is delivered by push")]
    DeliveredByPush,
    #[error("the caller is blocked")]
    CallerBlocked,
    /// A limit of concurrent polls is reached.
    #[error("limit of concurrent polls reached; retry")]
    Busy,
    /// No token could be built.
    #[error(transparent)]
    Set(#[from] set_builder::Error),
    /// The state refused, or could not be read or written.
    #[error(transparent)]
    State(#[from] state::Error),
}

#[derive(Clone, Debug, Default)]
pub struct PollResult {
    /// The tokens by `jti`, in the order of their events.
    pub sets: Vec<(String, Arc<str>)>,
    /// Whether there are more; `None` if the outbox was not scanned.
    pub more_available: Option<bool>,
}

/// Serves polls.
pub struct Poller {
    sets: SetBuilder,
    obstacles: Obstacles,
    state: State,
    clock: Clock,
    metrics: Metrics,
    /// Ends all waits.
    shutdown: CancellationToken,
    limiter: PollLimiter,
}

/// Context of one poll.
#[derive(Clone, Copy)]
struct PollContext<'p> {
    stream_id: &'p str,
    caller: &'p CallContext,
}

/// Open events for one response.
#[derive(Default)]
struct PollBatch {
    events: Vec<OutboxEvent>,
    bytes: usize,
    has_more: bool,
    /// Rows scanned before the first of them, or in all if there is none.
    rows_before: usize,
}

impl Poller {
    /// `shutdown` ends all waits.
    pub fn new(
        sets: SetBuilder,
        obstacles: Obstacles,
        state: State,
        clock: Clock,
        metrics: Metrics,
        shutdown: CancellationToken,
    ) -> Self {
        Self { sets, obstacles, state, clock, metrics, shutdown, limiter: PollLimiter::default() }
    }

    /// Serves a poll: writes the acknowledgements to the log, then returns open events. Without any, it waits if the
    /// request allows it. After an error, acknowledgements may be in the log already; a retry is harmless.
    pub async fn poll(
        &self,
        stream_id: &str,
        caller: &CallContext,
        request: PollRequest,
    ) -> Result<PollResult, Error> {
        let began = self.clock.boot();
        // Before any read (design §4): this poll sees every signal that was acknowledged before.
        let fresh = self.state.fresh().await?;
        self.check(&fresh, caller)?;
        let context = PollContext { stream_id, caller };
        // Another node may have just created a stream that is unknown here.
        self.state.confirmed(|| Ok::<_, Error>(self.state.stream(stream_id))).await?;
        self.stream(context)?;
        let PollRequest { events_max, returns_immediately, acknowledged, refused } = request;
        // Recorded before the wait, so that the sets are not retained during it.
        self.record(context, acknowledged, refused).await?;
        let wait_from = (!returns_immediately).then_some(began);
        let result = self.respond(context, fresh, events_max, wait_from).await?;
        self.metrics.polled_sets.add(["returned"], result.sets.len() as u64);
        Ok(result)
    }

    /// A blocked caller receives no events.
    fn check(&self, fresh: &LeaseProof, caller: &CallContext) -> Result<(), Error> {
        if self.state.refuses(fresh, &caller.facts) {
            return Err(Error::CallerBlocked);
        }
        Ok(())
    }

    fn stream(&self, PollContext { stream_id, caller }: PollContext<'_>) -> Result<Arc<Stream>, Error> {
        let is_visible = |stream: &Arc<Stream>| stream.answers(caller.id(), caller.is_operator);
        let stream = self.state.stream(stream_id).filter(is_visible).ok_or(Error::UnknownStream)?;
        if stream.config.endpoint_url.is_some() {
            return Err(Error::DeliveredByPush);
        }
        Ok(stream)
    }

    fn cursor(&self, stream: &Stream) -> Result<Arc<StreamCursor>, Error> {
        self.state.stream_cursor(&stream.config.stream_id).ok_or(Error::UnknownStream)
    }

    /// Records acknowledgements. A cursor is replaced only at the version that was read: of two concurrent polls, one
    /// retries.
    async fn record(
        &self,
        context: PollContext<'_>,
        acknowledged: BTreeSet<String>,
        refused: BTreeMap<String, RefusedSet>,
    ) -> Result<(), Error> {
        let id_of = |jti: String| self.sets.event_id(&jti, context.stream_id);
        let mut acknowledged: BTreeSet<EventId> = acknowledged.into_iter().filter_map(id_of).collect();
        let refused = refused.into_iter().filter_map(|(jti, refused)| Some((id_of(jti)?, refused)));
        let mut refused: BTreeMap<EventId, RefusedSet> = refused.collect();
        let end = || *self.state.outbox_end().borrow();
        let last = acknowledged.last().max(refused.keys().last());
        // Another node may have delivered an event that this one has not applied.
        if last.is_some_and(|last| *last >= end()) {
            self.state.current().await?;
        }
        // An event of the future cannot have been delivered; it is not looked up.
        let end = end();
        acknowledged.retain(|id| *id < end);
        refused.retain(|id, _| *id < end);
        if acknowledged.is_empty() && refused.is_empty() {
            return Ok(());
        }
        retry_if_overtaken(|| self.advance(context, &acknowledged, &refused)).await
    }

    async fn advance(
        &self,
        context: PollContext<'_>,
        acknowledged: &BTreeSet<EventId>,
        refused: &BTreeMap<EventId, RefusedSet>,
    ) -> Result<(), Error> {
        let stream = self.stream(context)?;
        let mut cursor = self.cursor(&stream)?;
        let (scan, mut letters) =
            self.scan_acknowledged(context, (&stream, &cursor), acknowledged, refused).await?;
        loop {
            let dead = cursor::open_events(&cursor, &scan.matching).filter(|id| letters.contains_key(id));
            // Dead letters may be large: limited per command.
            let dead: BTreeSet<EventId> = dead.take(limits::DEAD_LETTERS_PER_WRITE_MAX).collect();
            let advanced =
                cursor::advance_with_dead_letters(&cursor, &scan.matching, scan.up_to, acknowledged, &dead);
            let delivered = advanced.delivered.saturating_sub(cursor.delivered);
            if delivered == 0 && dead.is_empty() {
                return Ok(());
            }
            let dead: Vec<NewDeadLetter> = dead.iter().filter_map(|id| letters.remove(id)).collect();
            let state = self.state.on_behalf_of(context.caller);
            state.advance_stream(&stream, advanced, dead.clone()).await?;
            self.count(&stream, delivered, &dead);
            cursor = self.cursor(&stream)?;
        }
    }

    fn count(&self, stream: &Stream, delivered: u64, dead: &[NewDeadLetter]) {
        self.metrics.polled_sets.add(["acknowledged"], delivered);
        self.metrics.polled_sets.add(["refused"], dead.len() as u64);
        self.metrics.stream_events.add(["delivered"], delivered);
        self.metrics.stream_events.add(["dead_letter"], dead.len() as u64);
        for letter in dead {
            log_refused(&stream.config.stream_id, letter);
        }
    }

    /// The stream's events up to the last acknowledged or refused one, and the dead letters of the refused.
    async fn scan_acknowledged(
        &self,
        context: PollContext<'_>,
        (stream, cursor): (&Stream, &StreamCursor),
        acknowledged: &BTreeSet<EventId>,
        refused: &BTreeMap<EventId, RefusedSet>,
    ) -> Result<(Scan, BTreeMap<EventId, NewDeadLetter>), Error> {
        let (mut scan, mut letters) = (Scan::from(cursor), BTreeMap::new());
        let last = acknowledged.last().copied().max(refused.keys().last().copied());
        let Some(last) = last.filter(|last| *last >= cursor.next) else {
            return Ok((scan, letters));
        };
        // Events that are done after them are passed with them, up to the first that stays open.
        let furthest = cursor.done.last().copied().max(Some(last));
        let _permit = self.limiter.scan(context.caller.id()).await?;
        let (mut seen, mut leaves_open) = (0, false);
        let mut take = |_, event: OutboxEvent| {
            seen += 1;
            let id = event.id;
            if let Some(refused) = refused.get(&id) {
                letters.insert(id, dead_letter(event, refused));
            } else if !acknowledged.contains(&id) && !cursor.done.contains(&id) {
                leaves_open = true;
            }
            // Twice the window covers all open and all done events.
            let is_complete =
                Some(id) >= furthest || (leaves_open && id >= last) || seen >= 2 * limits::STREAM_WINDOW;
            if is_complete { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        scan::scan(&self.state, stream, &mut scan, &mut take).await.map_err(state::Error::from)?;
        Ok((scan, letters))
    }

    /// The open events; without any, waits from `wait_from` on, if there is one.
    async fn respond(
        &self,
        context: PollContext<'_>,
        mut fresh: LeaseProof,
        events_max: usize,
        wait_from: Option<Duration>,
    ) -> Result<PollResult, Error> {
        if events_max == 0 {
            return Ok(PollResult::default());
        }
        let (mut end, mut changes) = (self.state.outbox_end(), self.state.stream_changes());
        let mut previous: Option<(Arc<Stream>, u64, Scan)> = None;
        loop {
            let permit = self.limiter.scan(context.caller.id()).await?;
            // An event from here on wakes this poll, whether or not the scan sees it.
            end.mark_unchanged();
            changes.mark_unchanged();
            // Read anew: it may have been paused, changed or deleted during the wait.
            let stream = self.stream(context)?;
            if stream.status != StreamStatus::Enabled || self.obstacles.find(&fresh, &stream).is_some() {
                drop(permit);
                // An immediate response would be followed by an immediate poll.
                if let Some(began) = wait_from
                    && let Some(now) = self.wait(context, &mut changes, began).await?
                {
                    fresh = now;
                    continue;
                }
                return Ok(PollResult::default());
            }
            let cursor = self.cursor(&stream)?;
            // The earlier scan found no open event, and the stream has not changed.
            let is_same = |(scanned, version, _): &(Arc<Stream>, u64, Scan)| {
                Arc::ptr_eq(scanned, &stream) && *version == cursor.version
            };
            let previous_scan = previous.take().filter(is_same);
            let mut scan = previous_scan.map_or_else(|| Scan::from(&cursor), |(.., scan)| scan);

            let batch = self.collect(&stream, &cursor, &mut scan, events_max).await?;
            let sets = self.sign(&stream, &batch.events).await?;
            drop(permit);
            self.skip(&stream, &cursor, &scan, batch.rows_before).await;
            if let Some(began) = wait_from.filter(|_| sets.is_empty() && scan.is_at_end)
                && let Some(now) = self.wait(context, &mut end, began).await?
            {
                fresh = now;
                previous = Some((stream, cursor.version, scan));
                continue;
            }
            let more_available = Some(batch.has_more || !scan.is_at_end);
            return Ok(PollResult { sets, more_available });
        }
    }

    /// Open events from the end of `scan` on.
    async fn collect(
        &self,
        stream: &Stream,
        cursor: &StreamCursor,
        scan: &mut Scan,
        events_max: usize,
    ) -> Result<PollBatch, Error> {
        let (mut batch, mut first_at) = (PollBatch::default(), None);
        // As many as `cursor::open_events` allows.
        let capacity = limits::STREAM_WINDOW.saturating_sub(cursor.done.len()).max(1);
        let mut take = |rows, event: OutboxEvent| {
            if cursor.done.contains(&event.id) {
                return ControlFlow::Continue(());
            }
            let is_full = batch.events.len() >= events_max.min(capacity)
                || batch.bytes >= limits::POLL_RESPONSE_BYTES_FULL;
            if is_full {
                batch.has_more = true;
                return ControlFlow::Break(());
            }
            first_at.get_or_insert(rows);
            batch.bytes = batch.bytes.saturating_add(bytes_of(&event));
            batch.events.push(event);
            ControlFlow::Continue(())
        };
        scan::scan(&self.state, stream, scan, &mut take).await.map_err(state::Error::from)?;
        batch.rows_before = first_at.unwrap_or(scan.rows);
        Ok(batch)
    }

    /// Moves the cursor past events of other streams, so that they are not scanned repeatedly; a few rows cost less
    /// than a write. Best effort: after a failed write the next poll tries.
    async fn skip(&self, stream: &Stream, cursor: &StreamCursor, scan: &Scan, rows_before: usize) {
        if rows_before < limits::POLL_CURSOR_ADVANCE_ROWS_MIN {
            return;
        }
        let stream_id = &stream.config.stream_id;
        let advanced = cursor::advance(cursor, &scan.matching, scan.up_to, &BTreeSet::new());
        match self.state.as_node().advance_stream(stream, advanced, Vec::new()).await {
            Ok(()) | Err(state::Error::Refused(Refusal::StreamChanged | Refusal::UnknownStream)) => {}
            Err(error) => tracing::warn!(%error, stream_id, "failed to advance a stream past other events"),
        }
    }

    async fn sign(&self, stream: &Stream, events: &[OutboxEvent]) -> Result<Vec<(String, Arc<str>)>, Error> {
        let elapsed = self.state.elapsed_time();
        let incarnation = self.sets.incarnation()?;
        let mut sets = Vec::with_capacity(events.len());
        for event in events {
            let jti = SetBuilder::jti(incarnation, &stream.config.stream_id, event.id);
            sets.push((jti, self.sets.build(stream, event, elapsed)?));
            // A signature takes almost a millisecond.
            tokio::task::yield_now().await;
        }
        Ok(sets)
    }

    /// Waits for `changes`; returns a new lease proof if it came in time and the caller is still admitted.
    async fn wait<T>(
        &self,
        context: PollContext<'_>,
        changes: &mut watch::Receiver<T>,
        began: Duration,
    ) -> Result<Option<LeaseProof>, Error> {
        let left = limits::POLL_WAIT_MAX.saturating_sub(self.clock.boot().saturating_sub(began));
        let permit = self.limiter.wait(context.caller.id())?;
        let counted = self.metrics.poll_waits();
        let has_changed = tokio::select! {
            has_changed = changed_within(changes, left) => has_changed,
            () = self.shutdown.cancelled() => false,
        };
        drop((permit, counted));
        if !has_changed {
            return Ok(None);
        }
        let fresh = self.state.fresh().await?;
        self.check(&fresh, context.caller)?;
        Ok(Some(fresh))
    }
}

/// Retries while concurrent polls win, up to [`limits::POLL_ADVANCE_ATTEMPTS_MAX`] times.
async fn retry_if_overtaken<F>(attempt: impl Fn() -> F) -> Result<(), Error>
where
    F: Future<Output = Result<(), Error>>,
{
    for _ in 0..limits::POLL_ADVANCE_ATTEMPTS_MAX {
        match attempt().await {
            Err(Error::State(state::Error::Refused(Refusal::StreamChanged))) => {
                tokio::task::yield_now().await;
            }
            Err(Error::State(state::Error::Refused(Refusal::UnknownStream))) => {
                return Err(Error::UnknownStream);
            }
            outcome => return outcome,
        }
    }
    Err(Error::Busy)
}

/// Waits for a change, up to `left`.
async fn changed_within<T>(changes: &mut watch::Receiver<T>, left: Duration) -> bool {
    matches!(tokio::time::timeout(left, changes.changed()).await, Ok(Ok(())))
}

fn dead_letter(event: OutboxEvent, refused: &RefusedSet) -> NewDeadLetter {
    NewDeadLetter {
        id: event.id,
        err: refused.err.clone(),
        description: refused.description.clone(),
        event_type: event.event.event_type,
        sub_id: event.event.sub_id.to_string(),
    }
}

/// The number of these lines is bounded by the events of the stream.
fn log_refused(stream_id: &str, letter: &NewDeadLetter) {
    tracing::warn!(
        stream_id,
        event = %letter.id,
        event_type = letter.event_type,
        err = letter.err,
        description = letter.description,
        "receiver refused a security event"
    );
}

/// Approximate length of an event's token.
fn bytes_of(event: &OutboxEvent) -> usize {
    let text = |value: &serde_json::Value| value.to_string().len();
    let claims = event.event.claims.iter().map(|(name, value)| name.len() + text(value));
    text(&event.event.sub_id).saturating_add(claims.sum())
}

#[cfg(test)]
mod tests;
