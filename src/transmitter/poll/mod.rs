//! Streams that are polled (RFC 8936): what was received is written down, and what is open is given, the same
//! again until it is acknowledged.
//!
//! Nothing is remembered of a poll but the cursor in the log and signed tokens that make a repetition cheap, so
//! any node answers any poll.

mod poll_limit;
mod request;
mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use request::{Refused, Request};

use self::poll_limit::PollLimiter;
use self::scan::Found;
use super::cursor;
use super::obstacle::Obstacles;
use super::set_builder;
use super::set_builder::SetMaker;
use crate::clock::Clock;
use crate::limits;
use crate::state::{
    self, CallerFacts, EventId, LeaseProof, NewDeadLetter, OutboxEvent, State, Stream, StreamCursor,
    StreamStatus,
};
use crate::telemetry::Metrics;

/// Why a poll was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A member of the request is not what it must be.
    #[error("{field}: {rule}")]
    Invalid {
        /// Which.
        field: &'static str,
        /// What it must be.
        rule: &'static str,
    },
    /// There is no such stream, or it is somebody else's: which of the two is not said.
    #[error("there is no stream with this stream_id")]
    UnknownStream,
    /// The stream is not polled.
    #[error("stream_id: the stream is delivered by push")]
    DeliveredByPush,
    /// Whoever asks is blocked.
    #[error("the caller is blocked")]
    CallerBlocked,
    /// Others advance the same stream, look through the outbox and sign, or wait.
    #[error("too many polls at once, try again soon")]
    Busy,
    /// A token could not be made.
    #[error(transparent)]
    Set(#[from] set_builder::Error),
    /// The state refused, or could not be read or written.
    #[error(transparent)]
    State(#[from] state::Error),
}

/// Who polls.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'c> {
    /// Its identifier; `None` for nobody, whom only development mode lets in.
    pub id: Option<&'c str>,
    /// Whether it may see what others own.
    pub is_operator: bool,
    /// The facts by which the caller is judged when its commands are applied.
    pub facts: &'c CallerFacts,
}

/// What a poll is answered.
#[derive(Clone, Debug, Default)]
pub struct Polled {
    /// The tokens by `jti`, in the order of their events.
    pub sets: Vec<(String, Arc<str>)>,
    /// Whether there are more; `None` where nobody looked.
    pub more_available: Option<bool>,
}

/// What polls are answered by.
pub struct Poller {
    /// Makes the tokens.
    sets: SetMaker,
    /// Finds streams that deliver nothing now.
    obstacles: Obstacles,
    state: State,
    clock: Clock,
    metrics: Metrics,
    /// Ends every wait.
    shutdown: CancellationToken,
    limiter: PollLimiter,
}

/// One poll.
#[derive(Clone, Copy)]
struct Asked<'p> {
    stream_id: &'p str,
    asking: Asking<'p>,
}

/// Open events that are to be given.
#[derive(Default)]
struct Taken {
    events: Vec<OutboxEvent>,
    bytes: usize,
    has_more: bool,
    /// How many rows come before the first of them; all that were looked at, if there is none.
    rows_before: usize,
}

impl Poller {
    /// `shutdown` ends every wait.
    #[must_use]
    pub fn new(
        sets: SetMaker,
        obstacles: Obstacles,
        state: State,
        clock: Clock,
        metrics: Metrics,
        shutdown: CancellationToken,
    ) -> Self {
        Self { sets, obstacles, state, clock, metrics, shutdown, limiter: PollLimiter::default() }
    }

    /// Answers a poll: first what it says became of tokens is in the log, then it is given what is open. If that
    /// is nothing, it waits for something, if it may.
    ///
    /// # Errors
    /// As [`Error`] says. What was acknowledged may be in the log already; to say it again does no harm.
    pub async fn poll(&self, stream_id: &str, asking: Asking<'_>, request: Request) -> Result<Polled, Error> {
        let began = self.clock.boot();
        // Before anything is looked up (design §4): every signal that was answered is seen by this poll.
        let fresh = self.state.fresh().await?;
        self.check(&fresh, asking)?;
        let asked = Asked { stream_id, asking };
        // One that is not here may have been made through another node a moment ago.
        self.state.confirmed(|| Ok::<_, Error>(self.state.stream(stream_id))).await?;
        self.stream(asked)?;
        let Request { events_max, returns_immediately, acknowledged, refused } = request;
        // Not kept while it waits.
        self.record(asked, acknowledged, refused).await?;
        let wait_from = (!returns_immediately).then_some(began);
        let answer = self.answer(asked, fresh, events_max, wait_from).await?;
        self.metrics.polled_sets("returned", answer.sets.len());
        Ok(answer)
    }

    /// Whoever is blocked hears nothing of others.
    fn check(&self, fresh: &LeaseProof, asking: Asking<'_>) -> Result<(), Error> {
        if self.state.refuses(fresh, asking.facts) {
            return Err(Error::CallerBlocked);
        }
        Ok(())
    }

    fn stream(&self, Asked { stream_id, asking }: Asked<'_>) -> Result<Arc<Stream>, Error> {
        let answers = |stream: &Arc<Stream>| stream.answers(asking.id, asking.is_operator);
        let stream = self.state.stream(stream_id).filter(answers).ok_or(Error::UnknownStream)?;
        if stream.config.endpoint_url.is_some() {
            return Err(Error::DeliveredByPush);
        }
        Ok(stream)
    }

    fn cursor(&self, stream: &Stream) -> Result<Arc<StreamCursor>, Error> {
        self.state.stream_cursor(&stream.config.stream_id).ok_or(Error::UnknownStream)
    }

    /// Writes down what became of tokens. A cursor is replaced only as it was read: of two pollers that do so at
    /// once, one looks again.
    async fn record(
        &self,
        asked: Asked<'_>,
        acknowledged: BTreeSet<String>,
        refused: BTreeMap<String, Refused>,
    ) -> Result<(), Error> {
        // What has not happened was given to nobody, and is not looked for.
        let end = *self.state.outbox_end().borrow();
        let id_of = |jti: String| self.sets.id_of(&jti, asked.stream_id).filter(|id| *id < end);
        let acknowledged: BTreeSet<EventId> = acknowledged.into_iter().filter_map(id_of).collect();
        let refused = refused.into_iter().filter_map(|(jti, refused)| Some((id_of(jti)?, refused)));
        let refused: BTreeMap<EventId, Refused> = refused.collect();
        if acknowledged.is_empty() && refused.is_empty() {
            return Ok(());
        }
        unless_overtaken(|| self.advance(asked, &acknowledged, &refused)).await
    }

    async fn advance(
        &self,
        asked: Asked<'_>,
        acknowledged: &BTreeSet<EventId>,
        refused: &BTreeMap<EventId, Refused>,
    ) -> Result<(), Error> {
        let stream = self.stream(asked)?;
        let mut cursor = self.cursor(&stream)?;
        let (found, mut letters) = self.look_for(asked, (&stream, &cursor), acknowledged, refused).await?;
        loop {
            let dead = cursor::open(&cursor, &found.matching).filter(|id| letters.contains_key(id));
            // Letters may be large: so many in one command.
            let dead: BTreeSet<EventId> = dead.take(limits::DEAD_LETTERS_AT_ONCE_MAX).collect();
            let advanced =
                cursor::with_dead_letters(&cursor, &found.matching, found.up_to, acknowledged, &dead);
            let delivered = advanced.delivered.saturating_sub(cursor.delivered);
            if delivered == 0 && dead.is_empty() {
                return Ok(());
            }
            let dead: Vec<NewDeadLetter> = dead.iter().filter_map(|id| letters.remove(id)).collect();
            let state = self.state.on_behalf_of(asked.asking.facts);
            state.advance_stream(&stream, advanced, dead.clone()).await?;
            self.count(&stream, delivered, &dead);
            cursor = self.cursor(&stream)?;
        }
    }

    fn count(&self, stream: &Stream, delivered: u64, dead: &[NewDeadLetter]) {
        self.metrics.polled_sets("acknowledged", usize::try_from(delivered).unwrap_or(usize::MAX));
        self.metrics.polled_sets("refused", dead.len());
        self.metrics.stream_events("delivered", delivered);
        self.metrics.stream_events("dead_letter", dead.len() as u64);
        for letter in dead {
            log_refused(&stream.config.stream_id, letter);
        }
    }

    /// What lies up to the last token of which something became, and the letters of those that were refused.
    async fn look_for(
        &self,
        asked: Asked<'_>,
        (stream, cursor): (&Stream, &StreamCursor),
        acknowledged: &BTreeSet<EventId>,
        refused: &BTreeMap<EventId, Refused>,
    ) -> Result<(Found, BTreeMap<EventId, NewDeadLetter>), Error> {
        let (mut found, mut letters) = (Found::from(cursor), BTreeMap::new());
        let last = acknowledged.last().copied().max(refused.keys().last().copied());
        let Some(last) = last.filter(|last| *last >= cursor.next) else {
            return Ok((found, letters));
        };
        // What is done behind them is passed with them, up to what stays open.
        let furthest = cursor.done.last().copied().max(Some(last));
        let _permit = self.limiter.scan(asked.asking.id).await?;
        let (mut seen, mut stays_open) = (0, false);
        let mut take = |_, event: OutboxEvent| {
            seen += 1;
            let id = event.id;
            if let Some(refused) = refused.get(&id) {
                letters.insert(id, letter(event, refused));
            } else if !acknowledged.contains(&id) && !cursor.done.contains(&id) {
                stays_open = true;
            }
            // What is open is among these, and what is done already.
            let is_enough =
                Some(id) >= furthest || (stays_open && id >= last) || seen >= 2 * limits::STREAM_WINDOW;
            if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        scan::look(&self.state, stream, &mut found, &mut take).await.map_err(state::Error::from)?;
        Ok((found, letters))
    }

    /// What is open; if that is nothing, it waits for something, unless there is no time from which to wait.
    async fn answer(
        &self,
        asked: Asked<'_>,
        mut fresh: LeaseProof,
        events_max: usize,
        wait_from: Option<Duration>,
    ) -> Result<Polled, Error> {
        if events_max == 0 {
            return Ok(Polled::default());
        }
        let (mut end, mut changes) = (self.state.outbox_end(), self.state.stream_changes());
        let mut before: Option<(Arc<Stream>, u64, Found)> = None;
        loop {
            let permit = self.limiter.scan(asked.asking.id).await?;
            // What happens from here on wakes this poll, whether it is looked at now or not.
            end.mark_unchanged();
            changes.mark_unchanged();
            // As it is now: it may have been paused, changed or deleted while this poll waited.
            let stream = self.stream(asked)?;
            if stream.status != StreamStatus::Enabled || self.obstacles.of(&fresh, &stream).is_some() {
                drop(permit);
                // Whoever was answered at once would ask again at once.
                if let Some(began) = wait_from
                    && let Some(now) = self.wait(asked, &mut changes, began).await?
                {
                    fresh = now;
                    continue;
                }
                return Ok(Polled::default());
            }
            let cursor = self.cursor(&stream)?;
            // What was looked at before had nothing to give, and has not got any since.
            let is_same = |(known, version, _): &(Arc<Stream>, u64, Found)| {
                Arc::ptr_eq(known, &stream) && *version == cursor.version
            };
            let found = before.take().filter(is_same);
            let mut found = found.map_or_else(|| Found::from(&cursor), |(.., found)| found);

            let taken = self.take(&stream, &cursor, &mut found, events_max).await?;
            let sets = self.sign(&stream, &taken.events).await?;
            drop(permit);
            self.pass(&stream, &cursor, &found, taken.rows_before).await;
            if let Some(began) = wait_from.filter(|_| sets.is_empty() && found.is_at_end)
                && let Some(now) = self.wait(asked, &mut end, began).await?
            {
                fresh = now;
                before = Some((stream, cursor.version, found));
                continue;
            }
            let more_available = Some(taken.has_more || !found.is_at_end);
            return Ok(Polled { sets, more_available });
        }
    }

    /// Open events from where `found` ends on.
    async fn take(
        &self,
        stream: &Stream,
        cursor: &StreamCursor,
        found: &mut Found,
        events_max: usize,
    ) -> Result<Taken, Error> {
        let (mut taken, mut first_at) = (Taken::default(), None);
        // How many can be open, as `cursor::open` has it.
        let places = limits::STREAM_WINDOW.saturating_sub(cursor.done.len()).max(1);
        let mut take = |rows, event: OutboxEvent| {
            if cursor.done.contains(&event.id) {
                return ControlFlow::Continue(());
            }
            let is_full =
                taken.events.len() >= events_max.min(places) || taken.bytes >= limits::POLL_ANSWER_BYTES_FULL;
            if is_full {
                taken.has_more = true;
                return ControlFlow::Break(());
            }
            first_at.get_or_insert(rows);
            taken.bytes = taken.bytes.saturating_add(bytes_of(&event));
            taken.events.push(event);
            ControlFlow::Continue(())
        };
        scan::look(&self.state, stream, found, &mut take).await.map_err(state::Error::from)?;
        taken.rows_before = first_at.unwrap_or(found.rows);
        Ok(taken)
    }

    /// Lets the cursor pass what the stream is not for, so that it is not looked at again and again; not for a few
    /// rows, which cost less than a write. Nobody depends on it: what could not be written is passed later.
    async fn pass(&self, stream: &Stream, cursor: &StreamCursor, found: &Found, rows_before: usize) {
        if rows_before < limits::POLL_ROWS_PASSED_MIN {
            return;
        }
        let stream_id = &stream.config.stream_id;
        let passed = cursor::advance(cursor, &found.matching, found.up_to, &BTreeSet::new());
        match self.state.as_node().advance_stream(stream, passed, Vec::new()).await {
            Ok(()) | Err(state::Error::StreamChanged | state::Error::UnknownStream) => {}
            Err(error) => tracing::warn!(%error, stream_id, "let a stream pass what it is not for"),
        }
    }

    async fn sign(&self, stream: &Stream, events: &[OutboxEvent]) -> Result<Vec<(String, Arc<str>)>, Error> {
        let passed = self.state.elapsed_time();
        let incarnation = self.sets.incarnation()?;
        let mut sets = Vec::with_capacity(events.len());
        for event in events {
            let jti = SetMaker::jti(incarnation, &stream.config.stream_id, event.id);
            sets.push((jti, self.sets.make(stream, event, passed)?));
            // A signature takes the better part of a millisecond.
            tokio::task::yield_now().await;
        }
        Ok(sets)
    }

    /// Waits until something happens; if that is in time, whoever asks may still be answered, by what is known then.
    async fn wait<T>(
        &self,
        asked: Asked<'_>,
        happens: &mut watch::Receiver<T>,
        began: Duration,
    ) -> Result<Option<LeaseProof>, Error> {
        let left = limits::POLL_WAIT_MAX.saturating_sub(self.clock.boot().saturating_sub(began));
        let permit = self.limiter.wait(asked.asking.id)?;
        let counted = self.metrics.poll_waits();
        let has_happened = tokio::select! {
            has_happened = happened(happens, left) => has_happened,
            () = self.shutdown.cancelled() => false,
        };
        drop((permit, counted));
        if !has_happened {
            return Ok(None);
        }
        let fresh = self.state.fresh().await?;
        self.check(&fresh, asked.asking)?;
        Ok(Some(fresh))
    }
}

/// Tries again while others are faster, so often and no more.
async fn unless_overtaken<F>(attempt: impl Fn() -> F) -> Result<(), Error>
where
    F: Future<Output = Result<(), Error>>,
{
    for _ in 0..limits::POLL_ADVANCES_MAX {
        match attempt().await {
            Err(Error::State(state::Error::StreamChanged)) => tokio::task::yield_now().await,
            Err(Error::State(state::Error::UnknownStream)) => return Err(Error::UnknownStream),
            outcome => return outcome,
        }
    }
    Err(Error::Busy)
}

/// Waits until something happens, no longer than `left`.
async fn happened<T>(happens: &mut watch::Receiver<T>, left: Duration) -> bool {
    matches!(tokio::time::timeout(left, happens.changed()).await, Ok(Ok(())))
}

fn letter(event: OutboxEvent, refused: &Refused) -> NewDeadLetter {
    NewDeadLetter {
        id: event.id,
        err: refused.err.clone(),
        description: refused.description.clone(),
        event_type: event.event.event_type,
        sub_id: event.event.sub_id.to_string(),
    }
}

/// How many of these there can be is bounded by the events of the stream.
fn log_refused(stream_id: &str, letter: &NewDeadLetter) {
    tracing::warn!(
        stream_id,
        event = %letter.id,
        event_type = letter.event_type,
        err = letter.err,
        description = letter.description,
        "a receiver refused a security event"
    );
}

/// About how long an event's token is.
fn bytes_of(event: &OutboxEvent) -> usize {
    let text = |value: &serde_json::Value| value.to_string().len();
    let claims = event.event.claims.iter().map(|(name, value)| name.len() + text(value));
    text(&event.event.sub_id).saturating_add(claims.sum())
}

#[cfg(test)]
mod tests;
