//! Push delivery (RFC 8935), and the retention of all streams.
//!
//! [`PushWorkers::run`] works only while this node leads. One [`dispatcher`] reads each event once and passes it to
//! the streams that it matches; one [`worker`] per pushed stream delivers. Decisions are in files without I/O:
//! [`window`], [`response`], [`backoff`], [`backlog`], [`uncommitted`].

mod attempt;
mod backlog;
mod backoff;
mod catch_up;
mod dispatcher;
mod inbox;
mod response;
mod retention;
mod subscriptions;
mod timers;
mod turn;
mod uncommitted;
mod window;
mod worker;

#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::sync::Semaphore;

pub(crate) use backlog::Retention;
pub(crate) use backoff::Backoff;

use super::obstacle::Obstacles;
use super::set_builder::{self, SetBuilder};
use crate::clock::{Clock, Timestamp};
use crate::cluster::Corrupt;
use crate::id::{Digest128, DigestKind};
use crate::limits;
use crate::outbound::client::{Client, PushPermit};
use crate::state::{EventId, OutboxEvent, State, Stream, StreamStatus};
use crate::telemetry::Metrics;
use dispatcher::Dispatcher;
use response::{PushResponse, Unsent};

/// Work in flight.
type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Pushes the events of all streams.
pub struct PushWorkers {
    pub state: State,
    pub sets: SetBuilder,
    /// Finds streams that currently deliver nothing.
    pub obstacles: Obstacles,
    pub client: Client,
    pub clock: Clock,
    pub metrics: Metrics,
    /// Random, so that nodes and streams that failed together do not retry together.
    pub seed: [u8; 16],
    pub limits: PushLimits,
}

/// Limits of pushing; from [`crate::limits`], except in tests.
#[derive(Clone, Copy, Debug)]
pub struct PushLimits {
    /// Bounds of the backoff.
    pub backoff: Backoff,
    /// Duration of failure after which a stream is paused.
    pub failing_max: Duration,
    /// Concurrent pushes per stream.
    pub in_flight_max: usize,
    /// Longest time until a delivery is proposed to the log.
    pub advance_interval: Duration,
    /// Number of deliveries that are proposed earlier.
    pub advance_events: usize,
    /// Retention per stream.
    pub retention: Retention,
    /// Interval of the retention sweep.
    pub sweep_interval: Duration,
}

impl Default for PushLimits {
    fn default() -> Self {
        Self {
            backoff: Backoff { min: limits::PUSH_BACKOFF_MIN, max: limits::PUSH_BACKOFF_MAX },
            failing_max: limits::PUSH_FAILING_MAX,
            in_flight_max: limits::PUSHES_PER_STREAM_MAX,
            advance_interval: limits::PUSH_ADVANCE_INTERVAL,
            advance_events: limits::PUSH_ADVANCE_EVENTS,
            retention: Retention {
                events_max: limits::STREAM_BACKLOG_EVENTS_MAX as u64,
                events_slack: limits::STREAM_BACKLOG_SLACK,
                age_max: limits::STREAM_RETENTION,
                age_slack: limits::STREAM_RETENTION_SLACK,
            },
            sweep_interval: limits::STREAM_CHECK_INTERVAL,
        }
    }
}

/// Shared by all workers.
struct Shared {
    state: State,
    sets: SetBuilder,
    obstacles: Obstacles,
    client: Client,
    clock: Clock,
    metrics: Metrics,
    limits: PushLimits,
    /// A signature occupies a core for almost a millisecond; the other cores stay free for requests.
    signing: Semaphore,
}

impl PushWorkers {
    /// Pushes while this node leads; never returns.
    pub async fn run(self) {
        let seed = self.seed;
        let shared = self.shared();
        let cluster = shared.state.cluster();
        loop {
            cluster.until_this_node_leads().await;
            // Dropping the dispatcher aborts everything that it started.
            tokio::select! {
                () = cluster.until_this_node_does_not_lead() => {}
                () = Dispatcher::new(Arc::clone(&shared), seed).run() => {}
            }
            shared.metrics.set_stream_backlog(0, 0);
        }
    }

    fn shared(self) -> Arc<Shared> {
        let Self { state, sets, obstacles, client, clock, metrics, limits, .. } = self;
        let signatures = available_parallelism().map_or(1, |cores| cores.get() / 2).max(1);
        let signing = Semaphore::new(signatures);
        Arc::new(Shared { state, sets, obstacles, client, clock, metrics, limits, signing })
    }
}

impl Shared {
    /// An event, if it is still in the outbox.
    fn event(&self, id: EventId) -> Result<Option<OutboxEvent>, Corrupt> {
        let mut event = None;
        self.state.outbox(id, &mut |row| {
            event = Some(row).filter(|row| row.id == id);
            false
        })?;
        Ok(event)
    }

    /// Pushes a token to the receiver of a stream. `build` builds it with the key that is active at that time.
    async fn deliver(
        &self,
        permit: PushPermit,
        stream: &Stream,
        build: impl Fn(Timestamp) -> Result<Arc<str>, set_builder::Error>,
    ) -> Result<PushResponse, Unsent> {
        let build = || {
            build(self.state.elapsed_time()).map_err(|error| {
                tracing::error!(%error, stream_id = stream.config.stream_id, "failed to sign an event");
                Unsent::Unsigned
            })
        };
        // Signed within the semaphore and cached, so that the `build` below costs nothing.
        let signing = self.signing.acquire().await.map_err(|_| Unsent::Unsigned)?;
        build()?;
        drop(signing);
        // Yield after the signature.
        tokio::task::yield_now().await;
        let fresh = self.state.fresh().await.map_err(|_| Unsent::Stale)?;
        // No await from here to the push: none begins after a block, a taint or a change of the stream was
        // acknowledged.
        if !self.is_unchanged(stream) {
            return Err(Unsent::Changed);
        }
        if let Some(obstacle) = self.obstacles.find(&fresh, stream) {
            return Err(Unsent::Withheld(obstacle));
        }
        let set = build()?;
        let started = self.clock.boot();
        let response = self.client.push(permit, set.as_ref().to_owned()).await;
        self.metrics.push_took(self.clock.boot().saturating_sub(started));
        let response = PushResponse::of(response)?;
        if matches!(response, PushResponse::Refused { .. }) && build() != Ok(set) {
            return Ok(PushResponse::key_replaced());
        }
        Ok(response)
    }

    /// Whether a stream is unchanged since the push was decided.
    fn is_unchanged(&self, stream: &Stream) -> bool {
        let now = self.state.stream(&stream.config.stream_id);
        now.is_some_and(|now| {
            now.status == StreamStatus::Enabled
                && now.revision == stream.revision
                && now.filter == stream.filter
        })
    }
}

/// The key of the order per subject (contract §6); two spellings are two subjects.
fn subject_of(event: &OutboxEvent) -> Digest128 {
    Digest128::of(DigestKind::Subject, b"", event.event.sub_id.to_string().as_bytes())
}
