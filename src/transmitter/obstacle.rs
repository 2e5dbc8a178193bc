//! Reasons for which a stream delivers nothing although its receiver has enabled it: by push, by poll, and as the
//! stream is shown.
//!
//! They are judged when something is to be delivered, and are not part of the stream: once the reason is gone, the
//! stream delivers what it holds.

use std::sync::Arc;

use crate::clock::Clock;
use crate::outbound::guard::Guard;
use crate::state::{LeaseProof, State, Stream, StreamStatus};

/// Why a stream delivers nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// Its owner may not have streams, or may not any more.
    #[error("the owner of the stream is not in callers with streams.manage")]
    OwnerNotAllowed,
    /// Its owner is blocked.
    #[error("the owner of the stream is blocked")]
    OwnerBlocked,
    /// It is pushed to this machine, which this node does not do.
    #[error("endpoint_url is on this machine, and transmitter.allow_loopback_push is off")]
    LoopbackPush,
}

impl Obstacle {
    /// Its name in `svc_push_total`.
    #[must_use]
    pub const fn result(self) -> &'static str {
        match self {
            Self::OwnerNotAllowed => "owner_not_allowed",
            Self::OwnerBlocked => "owner_blocked",
            Self::LoopbackPush => "loopback_push",
        }
    }
}

/// Whether a caller may have streams, by the configuration of this node.
pub type MayOwn = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Finds obstacles. Cheap to clone.
#[derive(Clone)]
pub struct Obstacles {
    /// Our `iss`.
    issuer: String,
    may_own: MayOwn,
    guard: Guard,
    state: State,
    clock: Clock,
}

impl Obstacles {
    /// `issuer` is our `iss`.
    #[must_use]
    pub fn new(issuer: String, may_own: MayOwn, guard: Guard, state: State, clock: Clock) -> Self {
        Self { issuer, may_own, guard, state, clock }
    }

    /// The obstacle that a stream has now. A stream is created with a client certificate only, so that its owner is
    /// a caller and never the subject of a bearer token.
    #[must_use]
    pub fn of(&self, fresh: &LeaseProof, stream: &Stream) -> Option<Obstacle> {
        let owner = stream.config.owner.as_str();
        if !(self.may_own)(owner) {
            return Some(Obstacle::OwnerNotAllowed);
        }
        if self.state.is_blocked_caller(fresh, (&self.issuer, owner), self.clock.now()) {
            return Some(Obstacle::OwnerBlocked);
        }
        // A URL that no stream may name any more is no obstacle of this machine: each push to it fails.
        let url = self.guard.push_url(stream.config.endpoint_url.as_deref()?).ok()?;
        self.guard.may_push(&url).is_err().then_some(Obstacle::LoopbackPush)
    }

    /// The stream as it is shown: an enabled one that delivers nothing is paused for that reason.
    #[must_use]
    pub fn shown(&self, fresh: &LeaseProof, stream: Arc<Stream>) -> Arc<Stream> {
        match self.of(fresh, &stream).filter(|_| stream.status == StreamStatus::Enabled) {
            Some(obstacle) => {
                let (status, reason) = (StreamStatus::Paused, Some(obstacle.to_string()));
                Arc::new(Stream { status, reason, ..Stream::clone(&stream) })
            }
            None => stream,
        }
    }
}
