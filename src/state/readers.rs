//! Strict mode ([the page on federation](../../docs/design/federation.md), §8.3): a revocation is acknowledged once the peer
//! fabrics that read our ledger, as far as the configuration names them, cannot accept what it covers any more.

use std::fmt;
use std::sync::Arc;

use futures::future::join_all;
use parking_lot::Mutex;

use super::{Error, LinearizableRead, State};
use crate::clock::Clock;
use crate::cluster::{Handle, Machine, ReaderTimeout};
pub use crate::cluster::{ReaderCall, ReaderState};
use crate::id::Digest128;
use crate::telemetry::Metrics;

/// The peers that revocations wait for.
pub struct AwaitedPeers {
    peers: Vec<AwaitedPeer>,
    clock: Clock,
    metrics: Metrics,
}

struct AwaitedPeer {
    name: Arc<str>,
    reader: Digest128,
    /// Outcome of the last wait; a change is logged.
    last: Mutex<Result<ReaderState, ReaderTimeout>>,
}

impl AwaitedPeers {
    /// Peers with these names and keys.
    #[must_use]
    pub fn new(peers: impl IntoIterator<Item = (String, Digest128)>, clock: Clock, metrics: Metrics) -> Self {
        let peer = |(name, reader): (String, Digest128)| AwaitedPeer {
            name: name.into(),
            reader,
            last: Mutex::new(Ok(ReaderState::Enforced)),
        };
        Self { peers: peers.into_iter().map(peer).collect(), clock, metrics }
    }

    async fn wait<M: Machine>(
        &self,
        cluster: &Handle<M>,
        peer: &AwaitedPeer,
        index: u64,
    ) -> (Arc<str>, Result<ReaderState, ReaderTimeout>) {
        let begun = self.clock.boot();
        let ended = cluster.reader_barrier(index, peer.reader).await;
        self.metrics.federation_awaited(&peer.name, self.clock.boot().saturating_sub(begun));
        peer.log(ended);
        (Arc::clone(&peer.name), ended)
    }
}

impl AwaitedPeer {
    /// Logs only a change, because each revocation waits.
    fn log(&self, ended: Result<ReaderState, ReaderTimeout>) {
        let last = std::mem::replace(&mut *self.last.lock(), ended);
        let peer = &*self.name;
        match ended {
            _ if ended == last => {}
            Ok(ReaderState::Enforced) => tracing::info!(peer, "peer fabric acknowledges revocations again"),
            Ok(ReaderState::Lapsed) => {
                tracing::warn!(peer, "peer fabric acknowledges no revocation, and no lease of it is left");
            }
            Err(ReaderTimeout) => {
                tracing::warn!(peer, "peer fabric acknowledges no revocation, and may still hold a lease");
            }
        }
    }
}

/// The outcome of a revocation at each awaited peer, in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Awaited(Vec<(Arc<str>, ReaderState)>);

impl Awaited {
    /// Whether no peer is awaited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// # Errors
    /// [`Error::PeersSilent`] with the names of those whose wait was not over.
    fn of(ended: Vec<(Arc<str>, Result<ReaderState, ReaderTimeout>)>) -> Result<Self, Error> {
        let silent: Vec<_> =
            ended.iter().filter(|(_, ended)| ended.is_err()).map(|(name, _)| &**name).collect();
        if !silent.is_empty() {
            return Err(Error::PeersSilent(silent.join(", ")));
        }
        Ok(Self(ended.into_iter().filter_map(|(name, ended)| Some((name, ended.ok()?))).collect()))
    }
}

/// `us=enforced, ap=lapsed`
impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, state)) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { ", " };
            let state = match state {
                ReaderState::Enforced => "enforced",
                ReaderState::Lapsed => "lapsed",
            };
            write!(f, "{separator}{name}={state}")?;
        }
        Ok(())
    }
}

impl State {
    /// The same state, whose revocations wait for these peers.
    #[must_use]
    pub fn awaiting(self, peers: AwaitedPeers) -> Self {
        Self { awaited: Some(Arc::new(peers)), ..self }
    }

    /// Waits until no node of this fabric, and none of an awaited peer, accepts what is revoked up to log index `index`,
    /// which is applied here.
    ///
    /// # Errors
    /// [`Error::Write`] after [`crate::limits::BARRIER_TIMEOUT`]; those of [`Self::await_peers`].
    pub(super) async fn enforced_everywhere(&self, index: u64) -> Result<Awaited, Error> {
        let here = async { Ok(self.cluster.barrier(index).await?) };
        let ((), awaited) = tokio::try_join!(here, self.await_peers(index))?;
        Ok(awaited)
    }

    /// Waits until every awaited peer has acknowledged our ledger as of log index `index`, which is applied
    /// here, or holds no earlier lease.
    ///
    /// # Errors
    /// [`Error::PeersSilent`] after [`crate::limits::READER_WAIT`]; [`Error::Damaged`].
    async fn await_peers(&self, index: u64) -> Result<Awaited, Error> {
        let Some(awaited) = self.awaited.as_deref().filter(|awaited| !awaited.peers.is_empty()) else {
            return Ok(Awaited::default());
        };
        // A peer is at `index` only when the ledger has an entry from there on. A repeated revocation has none.
        let index = self.end_of_ledger(index)?;
        let waits = awaited.peers.iter().map(|peer| awaited.wait(&self.cluster, peer, index));
        Awaited::of(join_all(waits).await)
    }

    /// A linearizable read for the call of a peer, which is reported to the leader.
    ///
    /// # Errors
    /// [`Error::ReadIndex`], as [`Self::current`].
    pub async fn current_for(&self, call: ReaderCall) -> Result<LinearizableRead, Error> {
        Ok(self.cluster.linearizable_for(call).await?)
    }

    /// The log index up to which a peer enforces our ledger, as it stated; `None` unless this node leads and knows one.
    #[must_use]
    pub fn enforced_by(&self, reader: Digest128) -> Option<u64> {
        self.cluster.reader_enforced(reader)
    }
}

#[cfg(test)]
mod tests;
