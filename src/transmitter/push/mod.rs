//! Pushes events to the receivers of streams (RFC 8935), and keeps what waits for any stream within its limits.
//!
//! [`Transmitter::run`] works only while this node leads. One [`engine`] reads each event once and tells those
//! streams that want it; one [`worker`] for each pushed stream does the rest. What is decided is in files
//! without I/O: [`window`], [`verdict`], [`backoff`], [`backlog`], [`ledger`].

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

pub use backlog::Holds;
pub use backoff::Waits;

use super::obstacle::Obstacles;
use super::set_builder;
use super::set_builder::SetMaker;
use crate::clock::{Clock, Timestamp};
use crate::cluster::Corrupt;
use crate::id::{Digest128, DigestKind};
use crate::limits;
use crate::outbound::client::{Client, PushPermit};
use crate::state::{EventId, OutboxEvent, State, Stream, StreamStatus};
use crate::telemetry::Metrics;
use dispatcher::Engine;
use response::{Unsent, Verdict};

/// What is under way.
type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Everything that pushing needs.
pub struct Transmitter {
    /// The replicated state.
    pub state: State,
    /// Makes what is pushed.
    pub sets: SetMaker,
    /// Finds streams that deliver nothing now.
    pub obstacles: Obstacles,
    /// Pushes it.
    pub client: Client,
    /// Time.
    pub clock: Clock,
    /// Counters.
    pub metrics: Metrics,
    /// Random, so that nodes and streams that failed together do not come back together.
    pub seed: [u8; 16],
    /// How much, how often and how long.
    pub limits: Limits,
}

/// How much, how often and how long: as [`crate::limits`] has it, but for tests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Between which a receiver that fails is left alone.
    pub waits: Waits,
    /// How long it may fail before its stream is paused.
    pub failing_max: Duration,
    /// Pushes of one stream at once.
    pub at_once: usize,
    /// The longest that a delivery is not recorded, if the log takes it.
    pub advance_interval: Duration,
    /// How many deliveries are recorded before that.
    pub advance_events: usize,
    /// How much a stream holds.
    pub holds: Holds,
    /// How often that is looked at.
    pub look_interval: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            waits: Waits { min: limits::PUSH_WAIT_MIN, max: limits::PUSH_WAIT_MAX },
            failing_max: limits::PUSH_FAILING_MAX,
            at_once: limits::PUSHES_PER_STREAM_MAX,
            advance_interval: limits::PUSH_ADVANCE_INTERVAL,
            advance_events: limits::PUSH_ADVANCE_EVENTS,
            holds: Holds {
                events_max: limits::STREAM_BACKLOG_MAX as u64,
                events_slack: limits::STREAM_BACKLOG_SLACK,
                age_max: limits::STREAM_HELD_MAX,
                age_slack: limits::STREAM_HELD_SLACK,
            },
            look_interval: limits::STREAM_LOOK_INTERVAL,
        }
    }
}

/// What all workers share.
struct Shared {
    state: State,
    sets: SetMaker,
    obstacles: Obstacles,
    client: Client,
    clock: Clock,
    metrics: Metrics,
    limits: Limits,
    /// A signature takes a core for most of a millisecond: whoever else the node serves has the other cores, or
    /// their turn between two of them.
    signing: Semaphore,
}

impl Transmitter {
    /// Pushes while this node leads; never ends.
    pub async fn run(self) {
        let seed = self.seed;
        let shared = self.shared();
        let core = shared.state.cluster();
        loop {
            core.until_leads(true).await;
            // All it has started ends with it.
            tokio::select! {
                () = core.until_leads(false) => {}
                () = Engine::new(Arc::clone(&shared), seed).run() => {}
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
    /// An event; `None` if it is not in the outbox any more.
    fn event(&self, id: EventId) -> Result<Option<OutboxEvent>, Corrupt> {
        let mut found = None;
        self.state.outbox(id, &mut |event| {
            found = Some(event).filter(|event| event.id == id);
            false
        })?;
        Ok(found)
    }

    /// Pushes a token to the receiver of a stream, which has a place for it. `make` makes it by the key that signs
    /// now.
    async fn deliver(
        &self,
        place: PushPermit,
        stream: &Stream,
        make: impl Fn(Timestamp) -> Result<Arc<str>, set_builder::Error>,
    ) -> Result<Verdict, Unsent> {
        let make = || {
            make(self.state.elapsed_time()).map_err(|error| {
                tracing::error!(%error, stream_id = stream.config.stream_id, "failed to sign an event");
                Unsent::Unsigned
            })
        };
        // In its turn, so that it need not be made below.
        let turn = self.signing.acquire().await.map_err(|_| Unsent::Unsigned)?;
        make()?;
        drop(turn);
        // Others first: this one has had its turn.
        tokio::task::yield_now().await;
        let fresh = self.state.fresh().await.map_err(|_| Unsent::Stale)?;
        // From here on nothing is waited for, so that nothing is begun once a block, a taint or a change of the
        // stream was acknowledged.
        if !self.is_as_it_was(stream) {
            return Err(Unsent::Changed);
        }
        if let Some(obstacle) = self.obstacles.of(&fresh, stream) {
            return Err(Unsent::Withheld(obstacle));
        }
        let set = make()?;
        let begun = self.clock.boot();
        let answer = self.client.push(place, set.as_ref().to_owned()).await;
        self.metrics.push_took(self.clock.boot().saturating_sub(begun));
        let verdict = Verdict::of(answer)?;
        if matches!(verdict, Verdict::Refused { .. }) && make() != Ok(set) {
            return Ok(Verdict::key_replaced());
        }
        Ok(verdict)
    }

    /// Whether a stream is pushed as it was when the push was decided.
    fn is_as_it_was(&self, stream: &Stream) -> bool {
        let now = self.state.stream(&stream.config.stream_id);
        now.is_some_and(|now| now.status == StreamStatus::Enabled && now.revision == stream.revision)
    }
}

/// Whom an event is about, as order is kept: two spellings are two subjects.
fn subject_of(event: &OutboxEvent) -> Digest128 {
    Digest128::of(DigestKind::Subject, b"", event.event.sub_id.to_string().as_bytes())
}
