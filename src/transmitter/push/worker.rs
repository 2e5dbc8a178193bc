//! Pushes the events of one stream, one worker for each: what its receiver does to it is done to nobody else.
//!
//! A worker keeps the numbers of at most [`limits::STREAM_WINDOW`] events, and reads an event only to send it.
//! It ends when there is nothing to push any more: the stream is deleted, disabled, or polled.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::sleep;

use super::attempt::{Delivery, Outcome, Pushed};
use super::backoff::Jitter;
use super::inbox::Inbox;
use super::response::{Unsent, Verdict};
use super::timers::{Cooling, Due, ended, rested};
use super::uncommitted::{Ledger, Proposal};
use super::window::{Failed, Window};
use super::{Shared, Work, subject_of};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::{self, EventId, NewDeadLetter, OutboxEvent, Stream, StreamStatus};
use crate::transmitter::matching;

mod rejection;

use rejection::letter;

/// So many failures in a row, each after a wait, are an outage of the receiver and not of one event: when it is
/// over, nothing waits any longer.
const FAILURES_OF_AN_OUTAGE: u32 = 3;

/// `err` of the dead letter of an event that its receiver never took while it took others.
const UNDELIVERABLE: &str = "undeliverable";

/// What pushes one stream.
pub struct Worker {
    shared: Arc<Shared>,
    stream: Arc<Stream>,
    inbox: Arc<Inbox>,
    jitter: Jitter,
    window: Window,
    ledger: Ledger,
    under_way: FuturesUnordered<Work<Pushed>>,
    resting: FuturesUnordered<Work<EventId>>,
    /// Nothing is sent until then.
    cooling: Option<Cooling>,
    /// In a row, those at once counted as one.
    failures: u32,
    failing: Option<Failing>,
    /// What was sent before the receiver changed its stream says nothing about it as it is now.
    epoch: u64,
    /// When a change of its stream ended its waits last.
    freed: Option<Duration>,
    advancing: Option<(Proposed, Work<Result<(), state::Error>>)>,
    due: Option<Due>,
    pausing: Option<Work<Result<(), state::Error>>>,
    /// Events that were refused so often that a verification event decides; dead letters, if the receiver takes that.
    doubted: BTreeMap<EventId, NewDeadLetter>,
    /// The verification event that is under way, with the epoch in which it was begun.
    verifying: Option<Work<(u64, Result<Verdict, Unsent>)>>,
    is_odd: bool,
}

/// Since when a receiver has taken nothing, by the boot clock and by the wall clock.
#[derive(Clone, Copy)]
struct Failing {
    since: Duration,
    at: Timestamp,
}

/// What is counted when a proposal is applied.
#[derive(Clone, Copy)]
struct Proposed {
    delivered: u64,
    dead: u64,
    lost: u64,
}

impl Worker {
    /// For a stream that is pushed and stands there.
    pub fn new(shared: Arc<Shared>, stream: Arc<Stream>, inbox: Arc<Inbox>, seed: u64) -> Self {
        let cursor = shared.state.stream_cursor(&stream.config.stream_id);
        Self {
            shared,
            stream,
            inbox,
            jitter: Jitter::new(seed),
            window: Window::default(),
            ledger: Ledger::new(cursor.as_deref().cloned().unwrap_or_default()),
            under_way: FuturesUnordered::new(),
            resting: FuturesUnordered::new(),
            cooling: None,
            failures: 0,
            failing: None,
            epoch: 0,
            freed: None,
            advancing: None,
            due: None,
            pausing: None,
            doubted: BTreeMap::new(),
            verifying: None,
            is_odd: false,
        }
    }

    /// Pushes until there is nothing to push any more. May be given up at any point: what was not recorded is
    /// pushed again.
    pub async fn run(mut self) {
        while self.look_at_stream() {
            self.look_at_cursor();
            // Until a verification event is answered, more attempts would say nothing new.
            let is_waiting = self.pausing.is_some() || self.verifying.is_some();
            let is_sending = self.stream.status == StreamStatus::Enabled && !is_waiting;
            if is_sending {
                if let Err(error) = self.fill().await {
                    tracing::error!(%error, stream_id = self.stream_id(), "read the outbox");
                    self.cool(self.shared.limits.waits.max, false);
                }
                self.send();
            }
            self.pass();
            self.record();
            self.until_something_happens().await;
        }
    }

    fn stream_id(&self) -> &str {
        &self.stream.config.stream_id
    }

    /// The stream as it is now; whether it is still pushed.
    fn look_at_stream(&mut self) -> bool {
        let Some(now) = self.shared.state.stream(self.stream_id()) else { return false };
        let before = std::mem::replace(&mut self.stream, now);
        let now = &self.stream;
        if before.filter != now.filter {
            // What was told and looked up is not all that it is for: another worker begins at the cursor.
            return false;
        }
        if before.status != now.status || before.config.endpoint_url != now.config.endpoint_url {
            // Another URL is another receiver, and one that resumes is there.
            self.begin_anew();
        }
        self.stream.config.endpoint_url.is_some() && self.stream.status != StreamStatus::Disabled
    }

    /// What was answered until now says nothing of what will be. A stream that is pushed waits no longer, once in
    /// the longest wait: whoever changes it again and again is waited for like any other.
    fn begin_anew(&mut self) {
        self.forget_answers();
        let (now, wait) = (self.shared.clock.boot(), self.shared.limits.waits.max);
        let is_freed = self.freed.is_some_and(|freed| now.saturating_sub(freed) < wait);
        if self.stream.status == StreamStatus::Enabled && !is_freed {
            self.freed = Some(now);
            (self.cooling, self.failures) = (None, 0);
            self.forgive();
        }
    }

    fn forget_answers(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.failing = None;
        self.doubted.clear();
        self.window.forget_refusals();
    }

    fn forgive(&mut self) {
        self.resting.clear();
        self.window.forgive();
    }

    /// The cursor as the log has it, if somebody else moved it.
    fn look_at_cursor(&mut self) {
        if self.advancing.is_some() {
            return;
        }
        let Some(now) = self.shared.state.stream_cursor(self.stream_id()) else { return };
        if now.version != self.ledger.version() {
            self.ledger.recorded(now.as_ref().clone());
            let ledger = &self.ledger;
            self.window.retain(|id| !ledger.is_over(id));
        }
    }

    /// Takes up as many events as there is room for, if there are few to be sent: first those that the engine
    /// knows, then those that were too many for it.
    async fn fill(&mut self) -> Result<(), Corrupt> {
        let enough = self.shared.limits.at_once.saturating_mul(4);
        while self.window.ready() < enough {
            let known = self.inbox.take(enough.min(self.ledger.room(self.window.len())));
            if known.is_empty() {
                break;
            }
            for (id, subject) in known {
                if id >= self.ledger.looked_up_to() && !self.ledger.is_over(id) {
                    self.window.add(id, subject);
                }
                self.ledger.look_up_to(id.next());
            }
        }
        while self.inbox.leaves_out()
            && self.window.ready() < enough
            && self.ledger.room(self.window.len()) > 0
        {
            self.fill_from_outbox()?;
            self.inbox.found(self.ledger.looked_up_to());
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn fill_from_outbox(&mut self) -> Result<(), Corrupt> {
        // Read first: everything before it can be seen then.
        let end = *self.shared.state.outbox_end().borrow();
        let mut room = self.ledger.room(self.window.len());
        let mut rows = 0;
        let (window, ledger, stream) = (&mut self.window, &mut self.ledger, &self.stream);
        self.shared.state.outbox(ledger.looked_up_to(), &mut |event| {
            if matching::is_for(stream, &event) && !ledger.is_over(event.id) {
                window.add(event.id, subject_of(&event));
                room -= 1;
            }
            ledger.look_up_to(event.id.next());
            rows += 1;
            room > 0 && rows < limits::OUTBOX_ROWS_PER_TURN
        })?;
        if room > 0 && rows < limits::OUTBOX_ROWS_PER_TURN {
            ledger.look_up_to(end);
        }
        Ok(())
    }

    /// Leaves behind what the stream is not for, if it holds nothing: whoever begins again reads from its cursor.
    fn pass(&mut self) {
        if self.window.len() == 0
            && let Some(end) = self.inbox.passed()
        {
            self.ledger.pass(end);
        }
    }

    fn send(&mut self) {
        let at_once = match (&self.cooling, self.failures) {
            (Some(_), _) => 0,
            (None, 0) => self.shared.limits.at_once,
            // One is enough to see whether the receiver is back.
            (None, _) => 1,
        };
        while let Some(id) = self.window.next(at_once) {
            let delivery = Delivery {
                shared: Arc::clone(&self.shared),
                stream: Arc::clone(&self.stream),
                id,
                epoch: self.epoch,
            };
            self.under_way.push(Box::pin(delivery.push()));
        }
    }

    /// Proposes what is over, if so much came together or it is due.
    fn record(&mut self) {
        let unrecorded = self.ledger.unrecorded();
        if self.advancing.is_some() || (unrecorded == 0 && !self.ledger.is_passing()) {
            return;
        }
        let limits = &self.shared.limits;
        let due = self.due.get_or_insert_with(|| Due::after(limits.advance_interval, false));
        if !due.sleep.is_elapsed() && (due.is_held || unrecorded < limits.advance_events) {
            return;
        }
        self.due = None;
        let Proposal { cursor, dead, delivered, lost } = self.ledger.proposal(self.window.ids());
        let proposed = Proposed { delivered, dead: dead.len() as u64, lost };
        let (state, stream) = (self.shared.state.clone(), Arc::clone(&self.stream));
        let work = async move { state.as_node().advance_stream(&stream, cursor, dead).await };
        self.advancing = Some((proposed, Box::pin(work)));
    }

    async fn until_something_happens(&mut self) {
        let inbox = Arc::clone(&self.inbox);
        tokio::select! {
            Some(pushed) = self.under_way.next() => self.judge(pushed),
            Some(id) = self.resting.next() => self.window.rested(id),
            (proposed, outcome) = advanced(&mut self.advancing) => self.recorded(proposed, outcome),
            outcome = ended(&mut self.pausing) => self.paused(outcome),
            (epoch, outcome) = ended(&mut self.verifying) => self.verified(epoch, outcome),
            () = rested(self.cooling.as_mut().map(|cooling| &mut cooling.sleep)) => self.cooling = None,
            () = rested(self.due.as_mut().map(|due| &mut due.sleep).filter(|sleep| !sleep.is_elapsed())) => {}
            () = inbox.changed() => {}
        }
    }

    fn recorded(&mut self, proposed: Proposed, outcome: Result<(), state::Error>) {
        self.advancing = None;
        match outcome {
            Ok(()) => {
                let metrics = &self.shared.metrics;
                metrics.stream_events("delivered", proposed.delivered);
                metrics.stream_events("dead_letter", proposed.dead);
                metrics.stream_events("dropped", proposed.lost);
            }
            // Somebody else moved the cursor: what is left of it is proposed again.
            Err(state::Error::StreamChanged | state::Error::UnknownStream) => {
                self.due = Some(Due::after(self.shared.limits.advance_interval, true));
            }
            Err(error) => {
                tracing::warn!(%error, stream_id = self.stream_id(), "record what was pushed");
                self.due = Some(Due::after(self.shared.limits.waits.min, true));
            }
        }
    }

    /// What an answer comes to.
    fn judge(&mut self, pushed: Pushed) {
        let Pushed { id, epoch, outcome } = pushed;
        let is_of_now = epoch == self.epoch && self.stream.status == StreamStatus::Enabled;
        let (event, verdict) = match outcome {
            Outcome::Answered(event, verdict) => (event, verdict),
            Outcome::Unsent(unsent) => return self.unsent(id, unsent),
            Outcome::Gone => {
                tracing::error!(stream_id = self.stream_id(), %id, "an event was dropped before it was pushed");
                self.ledger.lost(id);
                self.window.done(id);
                return;
            }
        };
        match verdict {
            Verdict::Delivered { as_specified } => {
                self.note_odd(as_specified);
                self.succeeded();
                self.ledger.delivered(id);
                self.window.taken(id);
            }
            Verdict::DeadLetter { err, description } => {
                self.succeeded();
                self.window.taken(id);
                self.dead(letter(&event, err, description));
            }
            Verdict::Refused { err, description } => {
                let refusals = self.window.refused(id);
                self.not_taken(&event, &format!("the receiver answered {err}"), None, is_of_now);
                if is_of_now && refusals >= limits::PUSH_REFUSALS_MAX && self.window.is_held(id) {
                    self.doubted.insert(id, letter(&event, err, description));
                    self.verify();
                }
            }
            Verdict::Again { reason, after, .. } => self.not_taken(&event, &reason, after, is_of_now),
        }
    }

    /// An event stays, unless its receiver took others for as long as it did not take this one.
    fn not_taken(&mut self, event: &OutboxEvent, reason: &str, asked: Option<Duration>, is_of_now: bool) {
        let alone = self.rest(event.id, asked);
        if alone >= limits::PUSH_FAILURES_ALONE_MAX {
            self.dead(letter(event, UNDELIVERABLE.to_owned(), reason.to_owned()));
        } else if is_of_now {
            self.failed(reason, asked);
        }
    }

    /// This node did not get as far as the receiver, which is not blamed.
    fn unsent(&mut self, id: EventId, unsent: Unsent) {
        if self.ledger.is_over(id) {
            self.window.done(id);
            return;
        }
        match unsent {
            // That was a wait, or ends none.
            Unsent::NoPlace | Unsent::Changed => self.window.unsent(id),
            Unsent::Unread | Unsent::Unsigned | Unsent::Stale | Unsent::Withheld(_) => {
                let wait = self.shared.limits.waits.min;
                self.window.rest(id);
                self.rest_for(id, wait);
                if self.cooling.is_none() {
                    self.cool(wait, false);
                }
            }
        }
    }

    /// The event is sent again after its wait, if it is still to be sent; how often it failed alone.
    fn rest(&mut self, id: EventId, asked: Option<Duration>) -> u32 {
        if self.ledger.is_over(id) {
            self.window.done(id);
            return 0;
        }
        let Failed { failures, alone } = self.window.failed(id);
        let waits = &self.shared.limits.waits;
        let wait = asked.map_or_else(|| waits.after(failures, &mut self.jitter), |wait| waits.asked(wait));
        self.rest_for(id, wait);
        alone
    }

    fn rest_for(&mut self, id: EventId, wait: Duration) {
        self.resting.push(Box::pin(async move {
            sleep(wait).await;
            id
        }));
    }

    fn succeeded(&mut self) {
        if self.failures >= FAILURES_OF_AN_OUTAGE {
            self.forgive();
        }
        (self.failures, self.failing) = (0, None);
        // A receiver that asked to be left alone is.
        self.cooling.take_if(|cooling| !cooling.is_asked);
    }

    fn failed(&mut self, reason: &str, asked: Option<Duration>) {
        let (now, at) = (self.shared.clock.boot(), self.shared.clock.now());
        let failing = *self.failing.get_or_insert(Failing { since: now, at });
        let limits = &self.shared.limits;
        if now.saturating_sub(failing.since) >= limits.failing_max {
            self.pause(format!("push has failed since {}: {reason}", failing.at.to_rfc3339()));
            return;
        }
        // Those that were under way together fail together.
        if self.cooling.is_none() {
            self.failures = self.failures.saturating_add(1);
            tracing::debug!(stream_id = self.stream_id(), reason, failures = self.failures, "push failed");
        }
        match asked {
            Some(wait) => self.cool(limits.waits.asked(wait), true),
            None if self.cooling.is_none() => {
                let wait = limits.waits.after(self.failures, &mut self.jitter);
                self.cool(wait, false);
            }
            None => {}
        }
    }

    fn cool(&mut self, wait: Duration, is_asked: bool) {
        self.cooling = Some(Cooling { sleep: Box::pin(sleep(wait)), is_asked });
    }

    fn pause(&mut self, reason: String) {
        if self.pausing.is_some() {
            return;
        }
        tracing::warn!(stream_id = self.stream_id(), reason, "stream paused");
        let (state, stream) = (self.shared.state.clone(), Arc::clone(&self.stream));
        self.pausing = Some(Box::pin(async move { state.pause_stream(&stream, &reason).await }));
    }

    fn paused(&mut self, outcome: Result<(), state::Error>) {
        self.pausing = None;
        match outcome {
            // Or it is not enabled any more: then somebody else was first.
            Ok(()) | Err(state::Error::StreamNotEnabled | state::Error::UnknownStream) => {
                self.forget_answers();
            }
            // Its owner has changed it, which may be the remedy: the next failure says.
            Err(state::Error::StreamChanged) => {}
            Err(error) => {
                tracing::warn!(%error, stream_id = self.stream_id(), "pause a stream");
                self.cool(self.shared.limits.waits.min, false);
            }
        }
    }

    /// Says once that a receiver does not answer as RFC 8935 §2.2 wants it.
    fn note_odd(&mut self, as_specified: bool) {
        if !as_specified && !self.is_odd {
            tracing::warn!(
                stream_id = self.stream_id(),
                "the receiver takes events with another status than 202; they count as delivered"
            );
        }
        self.is_odd |= !as_specified;
    }
}

async fn advanced(
    advancing: &mut Option<(Proposed, Work<Result<(), state::Error>>)>,
) -> (Proposed, Result<(), state::Error>) {
    match advancing {
        Some((proposed, work)) => (*proposed, work.await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
