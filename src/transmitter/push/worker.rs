//! Pushes the events of one stream. A failing receiver affects its own worker only.
//!
//! A worker stores the ids of at most [`limits::STREAM_WINDOW`] events and reads an event only to send it. It ends when
//! its stream is deleted, disabled or polled.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::sleep;

use super::attempt::{Attempt, AttemptOutcome, AttemptResult};
use super::backoff::Jitter;
use super::inbox::Inbox;
use super::response::{PushResponse, Unsent};
use super::timers::{BackoffTimer, ProposalTimer, elapsed, finished};
use super::uncommitted::{Proposal, Uncommitted};
use super::window::{Failed, Window};
use super::{Shared, Work, subject_of};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::{self, EventId, NewDeadLetter, OutboxEvent, Refusal, Stream, StreamStatus};
use crate::transmitter::matching;

mod pausing;
mod rejection;

use rejection::dead_letter;

/// This many failures in a row, each after a backoff, are an outage of the receiver, not of one event: its
/// end also ends the retry delays of all events.
const OUTAGE_FAILURES: u32 = 3;

/// `err` of the dead letter of an event that failed while others were accepted.
const UNDELIVERABLE: &str = "undeliverable";

pub struct Worker {
    shared: Arc<Shared>,
    stream: Arc<Stream>,
    inbox: Arc<Inbox>,
    jitter: Jitter,
    window: Window,
    uncommitted: Uncommitted,
    in_flight: FuturesUnordered<Work<AttemptResult>>,
    resting: FuturesUnordered<Work<EventId>>,
    /// Backoff: no push until it ends.
    backoff: Option<BackoffTimer>,
    /// In a row; concurrent ones count once.
    failures: u32,
    failing: Option<Failing>,
    /// Responses of an earlier epoch do not count: the stream has changed since.
    epoch: u64,
    /// Boot time at which a change of the stream last ended its backoff.
    backoff_reset: Option<Duration>,
    proposing: Option<(Proposed, Work<Result<(), state::Error>>)>,
    due: Option<ProposalTimer>,
    pausing: Option<Work<Result<(), state::Error>>>,
    /// Dead letters of events that were refused too often, if the receiver accepts the verification event.
    refused: BTreeMap<EventId, NewDeadLetter>,
    /// The verification event in flight, with its epoch.
    verifying: Option<Work<(u64, Result<PushResponse, Unsent>)>>,
    is_nonconforming: bool,
}

/// Beginning of an uninterrupted failure, by boot clock and by wall clock.
#[derive(Clone, Copy)]
struct Failing {
    since: Duration,
    at: Timestamp,
}

/// Counts for the metrics when a proposal is applied.
#[derive(Clone, Copy)]
struct Proposed {
    delivered: u64,
    dead: u64,
    lost: u64,
}

impl Worker {
    /// Begins at the cursor of a pushed stream.
    pub fn new(shared: Arc<Shared>, stream: Arc<Stream>, inbox: Arc<Inbox>, seed: u64) -> Self {
        let cursor = shared.state.stream_cursor(&stream.config.stream_id);
        Self {
            shared,
            stream,
            inbox,
            jitter: Jitter::new(seed),
            window: Window::default(),
            uncommitted: Uncommitted::new(cursor.as_deref().cloned().unwrap_or_default()),
            in_flight: FuturesUnordered::new(),
            resting: FuturesUnordered::new(),
            backoff: None,
            failures: 0,
            failing: None,
            epoch: 0,
            backoff_reset: None,
            proposing: None,
            due: None,
            pausing: None,
            refused: BTreeMap::new(),
            verifying: None,
            is_nonconforming: false,
        }
    }

    /// Pushes until the stream is no longer pushed. Cancel-safe: events that were not recorded are pushed again.
    pub async fn run(mut self) {
        while self.refresh_stream() {
            self.refresh_cursor();
            // More attempts before the response to the verification event would add no information.
            let is_waiting = self.pausing.is_some() || self.verifying.is_some();
            let is_sending = self.stream.status == StreamStatus::Enabled && !is_waiting;
            if is_sending {
                if let Err(error) = self.fill().await {
                    tracing::error!(%error, stream_id = self.stream_id(), "failed to read the outbox");
                    self.back_off(self.shared.limits.backoff.max, false);
                }
                self.send();
            }
            self.skip();
            self.propose();
            self.wait().await;
        }
    }

    fn stream_id(&self) -> &str {
        &self.stream.config.stream_id
    }

    /// Re-reads the stream; returns whether it is still pushed.
    fn refresh_stream(&mut self) -> bool {
        let Some(now) = self.shared.state.stream(self.stream_id()) else { return false };
        let before = std::mem::replace(&mut self.stream, now);
        let now = &self.stream;
        if before.filter != now.filter {
            // Events known here are not all that match: a new worker begins at the cursor.
            return false;
        }
        if before.status != now.status || before.config.endpoint_url != now.config.endpoint_url {
            // Another URL is another receiver; a receiver that enables its stream is available.
            self.start_epoch();
        }
        self.stream.config.endpoint_url.is_some() && self.stream.status != StreamStatus::Disabled
    }

    /// Starts a new epoch. An enabled stream also ends its backoff, but at most once per maximum backoff: otherwise an
    /// owner that toggles it repeatedly would get pushes without backoff.
    fn start_epoch(&mut self) {
        self.forget_responses();
        let (now, wait) = (self.shared.clock.boot(), self.shared.limits.backoff.max);
        let was_reset =
            self.backoff_reset.is_some_and(|backoff_reset| now.saturating_sub(backoff_reset) < wait);
        if self.stream.status == StreamStatus::Enabled && !was_reset {
            self.backoff_reset = Some(now);
            (self.backoff, self.failures) = (None, 0);
            self.reset_failures();
        }
    }

    fn forget_responses(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.failing = None;
        self.refused.clear();
        self.window.reset_refusals();
    }

    fn reset_failures(&mut self) {
        self.resting.clear();
        self.window.reset_failures();
    }

    /// Takes over the cursor of the log, if it was moved elsewhere.
    fn refresh_cursor(&mut self) {
        if self.proposing.is_some() {
            return;
        }
        let Some(now) = self.shared.state.stream_cursor(self.stream_id()) else { return };
        if now.version != self.uncommitted.version() {
            self.uncommitted.committed(now.as_ref().clone());
            let uncommitted = &self.uncommitted;
            self.window.retain(|id| !uncommitted.is_completed(id));
        }
    }

    /// Fills the window while few events may be sent: first from the inbox, then from the outbox if the inbox
    /// overflowed.
    async fn fill(&mut self) -> Result<(), Corrupt> {
        let enough = self.shared.limits.in_flight_max.saturating_mul(4);
        while self.window.ready() < enough {
            let queued = self.inbox.take(enough.min(self.uncommitted.capacity(self.window.len())));
            if queued.is_empty() {
                break;
            }
            for (id, subject) in queued {
                if id >= self.uncommitted.scanned_to() && !self.uncommitted.is_completed(id) {
                    self.window.add(id, subject);
                }
                self.uncommitted.set_scanned_to(id.next());
            }
        }
        while self.inbox.has_overflow()
            && self.window.ready() < enough
            && self.uncommitted.capacity(self.window.len()) > 0
        {
            self.fill_from_outbox()?;
            self.inbox.read_up_to(self.uncommitted.scanned_to());
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn fill_from_outbox(&mut self) -> Result<(), Corrupt> {
        // Read before the scan, which then sees everything before it.
        let end = *self.shared.state.outbox_end().borrow();
        let mut capacity = self.uncommitted.capacity(self.window.len());
        let mut rows = 0;
        let (window, uncommitted, stream) = (&mut self.window, &mut self.uncommitted, &self.stream);
        self.shared.state.outbox(uncommitted.scanned_to(), &mut |event| {
            if matching::matches(stream, &event) && !uncommitted.is_completed(event.id) {
                window.add(event.id, subject_of(&event));
                capacity -= 1;
            }
            uncommitted.set_scanned_to(event.id.next());
            rows += 1;
            capacity > 0 && rows < limits::OUTBOX_ROWS_PER_STEP
        })?;
        if capacity > 0 && rows < limits::OUTBOX_ROWS_PER_STEP {
            uncommitted.set_scanned_to(end);
        }
        Ok(())
    }

    /// Moves past events that do not match, if none is open: a new worker begins at the cursor.
    fn skip(&mut self) {
        if self.window.len() == 0
            && let Some(end) = self.inbox.take_position()
        {
            self.uncommitted.skip_to(end);
        }
    }

    fn send(&mut self) {
        let in_flight_max = match (&self.backoff, self.failures) {
            (Some(_), _) => 0,
            (None, 0) => self.shared.limits.in_flight_max,
            // One suffices to see whether the receiver is back.
            (None, _) => 1,
        };
        while let Some(id) = self.window.next(in_flight_max) {
            let attempt = Attempt {
                shared: Arc::clone(&self.shared),
                stream: Arc::clone(&self.stream),
                id,
                epoch: self.epoch,
            };
            self.in_flight.push(Box::pin(attempt.push()));
        }
    }

    /// Proposes completed events, once they are many enough or the timer is due.
    fn propose(&mut self) {
        let unrecorded = self.uncommitted.len();
        if self.proposing.is_some() || (unrecorded == 0 && !self.uncommitted.is_skip_due()) {
            return;
        }
        let limits = &self.shared.limits;
        let due = self.due.get_or_insert_with(|| ProposalTimer::after(limits.advance_interval, false));
        if !due.sleep.is_elapsed() && (due.is_retry || unrecorded < limits.advance_events) {
            return;
        }
        self.due = None;
        let Proposal { cursor, dead, delivered, lost } = self.uncommitted.proposal(self.window.ids());
        let proposed = Proposed { delivered, dead: dead.len() as u64, lost };
        let (state, stream) = (self.shared.state.clone(), Arc::clone(&self.stream));
        let work = async move { state.as_node().advance_stream(&stream, cursor, dead).await };
        self.proposing = Some((proposed, Box::pin(work)));
    }

    async fn wait(&mut self) {
        let inbox = Arc::clone(&self.inbox);
        tokio::select! {
            Some(result) = self.in_flight.next() => self.complete(result),
            Some(id) = self.resting.next() => self.window.wake(id),
            (proposed, outcome) = proposal_finished(&mut self.proposing) => self.proposed(proposed, outcome),
            outcome = finished(&mut self.pausing) => self.paused(outcome),
            (epoch, outcome) = finished(&mut self.verifying) => self.verified(epoch, outcome),
            () = elapsed(self.backoff.as_mut().map(|timer| &mut timer.sleep)) => self.backoff = None,
            () = elapsed(self.due.as_mut().map(|due| &mut due.sleep).filter(|sleep| !sleep.is_elapsed())) => {}
            () = inbox.changed() => {}
        }
    }

    fn proposed(&mut self, proposed: Proposed, outcome: Result<(), state::Error>) {
        self.proposing = None;
        match outcome {
            Ok(()) => {
                let metrics = &self.shared.metrics;
                metrics.stream_events.add(["delivered"], proposed.delivered);
                metrics.stream_events.add(["dead_letter"], proposed.dead);
                metrics.stream_events.add(["dropped"], proposed.lost);
            }
            // The cursor was moved elsewhere: the rest is proposed again.
            Err(state::Error::Refused(Refusal::StreamChanged | Refusal::UnknownStream)) => {
                self.due = Some(ProposalTimer::after(self.shared.limits.advance_interval, true));
            }
            Err(error) => {
                tracing::warn!(%error, stream_id = self.stream_id(), "failed to record pushed events");
                self.due = Some(ProposalTimer::after(self.shared.limits.backoff.min, true));
            }
        }
    }

    /// Whether the stream is as it was in this epoch: enabled, and with the same URL by now.
    fn is_current(&self, epoch: u64) -> bool {
        let now = self.shared.state.stream(self.stream_id());
        let is_unmoved = now.is_some_and(|now| now.config.endpoint_url == self.stream.config.endpoint_url);
        epoch == self.epoch && self.stream.status == StreamStatus::Enabled && is_unmoved
    }

    /// Handles the outcome of an attempt.
    fn complete(&mut self, result: AttemptResult) {
        let AttemptResult { id, epoch, outcome } = result;
        let is_current = self.is_current(epoch);
        let (event, response) = match outcome {
            AttemptOutcome::Answered(event, response) => (event, response),
            AttemptOutcome::Unsent(unsent) => return self.unsent(id, unsent),
            AttemptOutcome::Missing => {
                tracing::error!(stream_id = self.stream_id(), %id, "event left the outbox before it was pushed");
                self.uncommitted.lost(id);
                self.window.done(id);
                return;
            }
        };
        match response {
            PushResponse::Delivered { as_specified } => {
                self.warn_if_nonconforming(as_specified);
                self.succeeded();
                self.uncommitted.delivered(id);
                self.window.accepted(id);
            }
            // An earlier URL may have refused it.
            PushResponse::DeadLetter { .. } if !is_current => {
                self.rest(id, None);
            }
            PushResponse::DeadLetter { err, description } => {
                self.succeeded();
                self.window.accepted(id);
                self.reject(dead_letter(&event, err, description));
            }
            PushResponse::Refused { err, description } => {
                let refusals = self.window.refused(id);
                self.attempt_failed(&event, &format!("the receiver answered {err}"), None, is_current);
                if is_current && refusals >= limits::PUSH_REFUSALS_MAX && self.window.is_idle(id) {
                    self.refused.insert(id, dead_letter(&event, err, description));
                    self.verify();
                }
            }
            PushResponse::Retry { reason, after, .. } => {
                self.attempt_failed(&event, &reason, after, is_current);
            }
        }
    }

    /// Retries an event, or makes it a dead letter if it failed long enough while others were accepted.
    fn attempt_failed(
        &mut self,
        event: &OutboxEvent,
        reason: &str,
        retry_after: Option<Duration>,
        is_current: bool,
    ) {
        let alone = self.rest(event.id, retry_after);
        if !is_current {
            return;
        }
        if alone >= limits::PUSH_FAILURES_ALONE_MAX {
            self.reject(dead_letter(event, UNDELIVERABLE.to_owned(), reason.to_owned()));
        } else {
            self.failed(reason, retry_after);
        }
    }

    /// The event did not leave this node; the receiver has not failed.
    fn unsent(&mut self, id: EventId, unsent: Unsent) {
        if self.uncommitted.is_completed(id) {
            self.window.done(id);
            return;
        }
        match unsent {
            // The wait for a permit was the pause; a change needs none.
            Unsent::NoPermit | Unsent::Changed => self.window.unsent(id),
            Unsent::Unread | Unsent::Unsigned | Unsent::Stale | Unsent::Withheld(_) => {
                let wait = self.shared.limits.backoff.min;
                self.window.rest(id);
                self.rest_for(id, wait);
                if self.backoff.is_none() {
                    self.back_off(wait, false);
                }
            }
        }
    }

    /// Schedules a retry, if the event is still open; returns how often it failed alone.
    fn rest(&mut self, id: EventId, retry_after: Option<Duration>) -> u32 {
        if self.uncommitted.is_completed(id) {
            self.window.done(id);
            return 0;
        }
        let Failed { failures, alone } = self.window.failed(id);
        let backoff = &self.shared.limits.backoff;
        let wait = retry_after
            .map_or_else(|| backoff.after(failures, &mut self.jitter), |wait| backoff.requested(wait));
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
        if self.failures >= OUTAGE_FAILURES {
            self.reset_failures();
        }
        (self.failures, self.failing) = (0, None);
        // A `Retry-After` stays in force.
        self.backoff.take_if(|timer| !timer.is_requested);
    }

    fn failed(&mut self, reason: &str, retry_after: Option<Duration>) {
        let (now, at) = (self.shared.clock.boot(), self.shared.clock.now());
        let failing = *self.failing.get_or_insert(Failing { since: now, at });
        let limits = &self.shared.limits;
        if now.saturating_sub(failing.since) >= limits.failing_max {
            self.pause(format!("push has failed since {}: {reason}", failing.at.to_rfc3339()));
            return;
        }
        // Concurrent pushes fail together.
        if self.backoff.is_none() {
            self.failures = self.failures.saturating_add(1);
            tracing::debug!(stream_id = self.stream_id(), reason, failures = self.failures, "push failed");
        }
        match retry_after {
            Some(wait) => self.back_off(limits.backoff.requested(wait), true),
            None if self.backoff.is_none() => {
                let wait = limits.backoff.after(self.failures, &mut self.jitter);
                self.back_off(wait, false);
            }
            None => {}
        }
    }

    fn back_off(&mut self, wait: Duration, is_requested: bool) {
        self.backoff = Some(BackoffTimer { sleep: Box::pin(sleep(wait)), is_requested });
    }

    /// Logs once that a receiver deviates from RFC 8935 §2.2.
    fn warn_if_nonconforming(&mut self, as_specified: bool) {
        if !as_specified && !self.is_nonconforming {
            tracing::warn!(
                stream_id = self.stream_id(),
                "receiver acknowledges events with a status other than 202; they count as delivered"
            );
        }
        self.is_nonconforming |= !as_specified;
    }
}

async fn proposal_finished(
    proposing: &mut Option<(Proposed, Work<Result<(), state::Error>>)>,
) -> (Proposed, Result<(), state::Error>) {
    match proposing {
        Some((proposed, work)) => (*proposed, work.await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
