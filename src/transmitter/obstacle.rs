//! Obstacles: reasons for which an enabled stream delivers nothing, by push or poll.
//!
//! They are derived at each delivery and are not stored in the stream: without the obstacle, the stream delivers its
//! backlog.

use std::sync::Arc;

use crate::clock::Clock;
use crate::outbound::guard::Guard;
use crate::state::{LeaseProof, State, Stream, StreamStatus};

/// Reason for which a stream delivers nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Obstacle {
    /// Its owner has no `streams.manage`, or lost it.
    #[error("the owner of the stream is not in callers with streams.manage")]
    OwnerNotAllowed,
    #[error("the owner of the stream is blocked")]
    OwnerBlocked,
    /// Its endpoint is on this machine, and this node does not push there.
    #[error("endpoint_url is on this machine, and transmitter.allow_loopback_push is off")]
    LoopbackPush,
}

/// Whether a caller may own streams, by the configuration of this node.
pub type MayOwn = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Finds obstacles. Cheap to clone.
#[derive(Clone)]
pub struct Obstacles {
    issuer: String,
    may_own: MayOwn,
    guard: Guard,
    state: State,
    clock: Clock,
}

impl Obstacles {
    pub fn new(issuer: String, may_own: MayOwn, guard: Guard, state: State, clock: Clock) -> Self {
        Self { issuer, may_own, guard, state, clock }
    }

    /// The current obstacle of a stream. A stream is created with a client certificate only, so that its owner is never
    /// the subject of a bearer token.
    pub fn find(&self, fresh: &LeaseProof, stream: &Stream) -> Option<Obstacle> {
        let owner = stream.config.owner.as_str();
        if !(self.may_own)(owner) {
            return Some(Obstacle::OwnerNotAllowed);
        }
        if self.state.is_blocked_caller(fresh, (&self.issuer, owner), self.clock.now()) {
            return Some(Obstacle::OwnerBlocked);
        }
        // A URL that no stream may name any more is no obstacle: each push to it fails.
        let url = self.guard.push_url(stream.config.endpoint_url.as_deref()?).ok()?;
        self.guard.may_push(&url).is_err().then_some(Obstacle::LoopbackPush)
    }

    /// The stream as shown: an enabled one with an obstacle is paused, with the obstacle as reason.
    pub fn effective(&self, fresh: &LeaseProof, stream: Arc<Stream>) -> Arc<Stream> {
        match self.find(fresh, &stream).filter(|_| stream.status == StreamStatus::Enabled) {
            Some(obstacle) => {
                let (status, reason) = (StreamStatus::Paused, Some(obstacle.to_string()));
                Arc::new(Stream { status, reason, ..Stream::clone(&stream) })
            }
            None => stream,
        }
    }
}
