//! A node that serves, and its end.
//!
//! A stop has an order, so that no client loses a request to it: the node is not ready, it hands leadership over while it
//! still serves, it accepts no more connections and answers the requests in flight, and only then its replica ends.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Error;
use super::replica::Replica;
use crate::limits;
use crate::state::State;

/// The steps of a stop.
pub(super) struct Stop {
    /// The node is not ready, and still serves.
    pub(super) requested: CancellationToken,
    /// The listeners accept no more connections.
    pub(super) drain: CancellationToken,
    /// Minimum time from the first step to the second.
    delay: Duration,
}

impl Stop {
    pub(super) fn new(requested: CancellationToken, delay: Duration) -> Self {
        Self { requested, drain: CancellationToken::new(), delay }
    }
}

/// A node that serves.
pub struct Running {
    /// Address of the plain HTTP listener.
    pub address: SocketAddr,
    /// Address of the TLS listener; `None` in development mode.
    pub tls_address: Option<SocketAddr>,
    /// Replicated state, for tests and the development broker.
    pub state: State,
    listener: JoinSet<()>,
    replica: Replica,
    stop: Stop,
}

impl Running {
    pub(super) fn new(
        (address, tls_address): (SocketAddr, Option<SocketAddr>),
        listener: JoinSet<()>,
        replica: Replica,
        stop: Stop,
    ) -> Self {
        Self { address, tls_address, state: replica.state.clone(), listener, replica, stop }
    }

    /// Serves until shutdown, and then until every request in flight is answered and the data directory is closed.
    ///
    /// # Errors
    /// [`Error::ReplicaFailed`], [`Error::TaskFailed`], [`Error::NotStopped`].
    pub async fn until_stopped(mut self) -> Result<(), Error> {
        let cluster = self.state.cluster().clone();
        let mut ended = tokio::select! {
            failure = cluster.until_failed() => Err(Error::ReplicaFailed(failure)),
            () = self.stop.requested.cancelled() => Ok(()),
            ended = self.listener.join_next() => match ended {
                Some(Err(panic)) => Err(Error::TaskFailed(panic)),
                _ => Ok(()),
            },
            ended = self.replica.background.join_next() => if let Some(Err(panic)) = ended {
                Err(Error::TaskFailed(panic))
            } else {
                // Tasks end with the replica: its failure is the cause.
                let failure = tokio::time::timeout(limits::FAILURE_CAUSE_WAIT, cluster.until_failed()).await;
                let failure = failure.unwrap_or_else(|_| "a task ended before the node".to_owned());
                Err(Error::ReplicaFailed(failure))
            },
        };
        self.stop.requested.cancel();
        tracing::info!(failure = ended.as_ref().err().map(tracing::field::display), "stopping");
        if ended.is_ok() {
            ended = tokio::select! {
                biased;
                failure = cluster.until_failed() => Err(Error::ReplicaFailed(failure)),
                () = self.drain() => Ok(()),
            };
        }
        if ended.is_err() {
            // A failed node answers no request.
            self.listener.shutdown().await;
        }
        self.stop.drain.cancel();
        drop((cluster, self.state, self.listener));
        stopped_after(ended, self.replica.stop().await)
    }

    /// Hands leadership over while it serves, then accepts no more connections and answers the requests in flight.
    async fn drain(&mut self) {
        let delayed = tokio::time::sleep(self.stop.delay);
        let (is_handed_over, ()) = tokio::join!(self.state.cluster().transfer_leadership(), delayed);
        if !is_handed_over {
            tracing::debug!("leadership was not handed over");
        }
        self.stop.drain.cancel();
        // Each listener ends once its own requests are answered.
        while self.listener.join_next().await.is_some() {}
    }
}

/// Final result: a part that does not end outweighs the reason for the shutdown.
pub(super) fn stopped_after<T>(ended: Result<T, Error>, stopped: Result<(), Error>) -> Result<T, Error> {
    match (ended, stopped) {
        (Err(reason), Err(Error::NotStopped { .. })) => Err(Error::NotStopped { cause: reason.to_string() }),
        (Err(reason), Err(error)) => {
            tracing::error!(%error, "failed to stop the node");
            Err(reason)
        }
        (ended, stopped) => stopped.and(ended),
    }
}
