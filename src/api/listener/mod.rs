//! The listeners: connections over plain TCP or TLS, their limits and their end. Requests belong to the router.
//!
//! Not `axum::serve`: it has no deadlines, no limit on connections and no strict framing.

mod connection;
mod connection_limit;
mod fd_limit;
mod framing;
mod head;
mod idle_tracker;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConnection;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use self::connection::{Changes, Connection};
use self::connection_limit::ConnectionPermit;
use self::idle_tracker::Ended;
use super::connect_info::{Channel, ClientConnection};
use crate::id::TrustDomain;
use crate::limits;
use crate::telemetry::Metrics;
use crate::tls::{PeerCertificate, handshake_failure};

pub(crate) use self::connection_limit::{Caps, ConnectionLimiter};
pub(crate) use self::fd_limit::{Error as DescriptorsError, connections_max};
pub(crate) use self::head::Violation;
pub(crate) use self::idle_tracker::Download;

/// The protocol of a listener.
#[derive(Clone, Debug, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Kind {
    /// HTTP/1.1 over TCP.
    Plain,
    /// HTTP/2 or HTTP/1.1 over TLS, as the client chooses (RFC 7301).
    Tls(Handshake),
}

/// The TLS configuration of a listener and the identity of its clients.
#[derive(Clone)]
pub struct Handshake {
    /// The current configuration; it must offer `h2` and `http/1.1`.
    pub acceptor: Arc<dyn Fn() -> TlsAcceptor + Send + Sync>,
    /// The generation of the configuration.
    pub changes: watch::Receiver<u64>,
    /// Whether the new configuration might refuse a connection that was made in a generation, with a certificate of a
    /// trust domain. The connection is then closed gracefully.
    pub has_changed: HasChanged,
    /// The verified certificate of the client, if it sent one; an error closes the connection.
    pub peer_certificate: fn(&ServerConnection) -> Result<Option<PeerCertificate>, String>,
}

type HasChanged = Arc<dyn Fn(u64, Option<&TrustDomain>) -> bool + Send + Sync>;

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").field("generation", &*self.changes.borrow()).finish_non_exhaustive()
    }
}

/// Serves `router` on `listener` until `shutdown`, then drains for at most [`limits::DRAIN_TIMEOUT`].
///
/// Each request carries an `Arc<ClientConnection>` in its extensions. A request with refused framing arrives as an empty `GET /`
/// that also carries a [`Violation`].
pub async fn serve(
    listener: TcpListener,
    kind: Kind,
    router: Router,
    limiter: ConnectionLimiter,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let context = Arc::new(ListenerContext { kind, router, limiter, metrics, shutdown });
    let mut connections = JoinSet::new();
    while let Some((socket, address)) = context.accept(&listener).await {
        match context.limiter.acquire(address.ip()) {
            Ok(permit) => {
                connections.spawn(Arc::clone(&context).connection(socket, address, permit));
            }
            // Dropping the socket closes it.
            Err(reason) => context.metrics.http_connections_refused.inc([reason.into_str()]),
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(limits::DRAIN_TIMEOUT, drained).await.is_err() {
        tracing::warn!(open = connections.len(), "connections closed at the drain timeout");
    }
}

/// State that the connections of one listener share.
struct ListenerContext {
    kind: Kind,
    router: Router,
    limiter: ConnectionLimiter,
    metrics: Metrics,
    shutdown: CancellationToken,
}

/// The socket of a connection, with a write timeout.
type Socket = std::pin::Pin<Box<TimeoutStream<TcpStream>>>;

impl ListenerContext {
    /// The next connection; `None` at shutdown.
    async fn accept(&self, listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
        let next = async {
            loop {
                match listener.accept().await {
                    Ok((socket, address)) => {
                        set_user_timeout(&socket);
                        // A dual-stack socket reports IPv4 addresses as mapped IPv6.
                        return (socket, SocketAddr::new(address.ip().to_canonical(), address.port()));
                    }
                    Err(error) => {
                        // Out of descriptors, or the client disconnected: neither ends the listener.
                        tracing::warn!(%error, "failed to accept a connection");
                        sleep(limits::ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        tokio::select! {
            connection = next => Some(connection),
            () = self.shutdown.cancelled() => None,
        }
    }

    /// Serves one connection to its end.
    async fn connection(self: Arc<Self>, socket: TcpStream, address: SocketAddr, permit: ConnectionPermit) {
        let open = self.metrics.http_connection(self.kind.into_str());
        // Responses are small, and clients wait for each.
        drop(socket.set_nodelay(true));
        let Ok(local_address) = socket.local_addr() else { return };
        let first_request_timeout = if permit.is_in_reserve() {
            limits::FIRST_REQUEST_IN_RESERVE_TIMEOUT
        } else {
            limits::FIRST_REQUEST_TIMEOUT
        };
        let accepted = Accepted {
            first_request_by: sleep(first_request_timeout).deadline(),
            handshake_timeout: first_request_timeout.min(limits::HANDSHAKE_TIMEOUT),
            peer: ClientConnection {
                address,
                local_address,
                channel: Channel::Plain,
                in_reserve: permit.is_in_reserve(),
            },
        };
        let mut socket = TimeoutStream::new(socket);
        socket.set_write_timeout(Some(limits::WRITE_STALL_TIMEOUT));
        let socket = Box::pin(socket);
        let ended = match &self.kind {
            Kind::Plain => Some(self.connection_over(accepted, None).http1(socket).await),
            // Boxed: it is larger, and plain connections should not pay for it.
            Kind::Tls(handshake) => Box::pin(self.tls(handshake, socket, accepted)).await,
        };
        if let Some(ended) = ended {
            self.metrics.http_connections_closed.inc([ended.into_str()]);
        }
        drop((open, permit));
    }

    /// Serves one TLS connection; `None` if it was refused before a request.
    async fn tls(&self, handshake: &Handshake, socket: Socket, mut accepted: Accepted) -> Option<Ended> {
        // The generation is read before the configuration: a change in between closes one connection too many, never
        // too few.
        let mut changes = handshake.changes.clone();
        let generation = *changes.borrow_and_update();
        let result = tokio::select! {
            result = timeout(accepted.handshake_timeout, (handshake.acceptor)().accept(socket)) => result,
            () = self.shutdown.cancelled() => return Some(Ended::Shutdown),
        };
        let stream = match result {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return self.refuse("handshake", &handshake_failure(&error)),
            Err(_) => return self.refuse("handshake_timeout", &"handshake timeout"),
        };
        let certificate = match (handshake.peer_certificate)(stream.get_ref().1) {
            Ok(certificate) => certificate,
            Err(error) => return self.refuse("handshake", &error),
        };
        let identity =
            certificate.as_ref().map(|certificate| self.limiter.acquire_for(&certificate.spiffe_id));
        let _permit = match identity.transpose() {
            Ok(permit) => permit,
            Err(reason) => return self.refuse(reason.into_str(), &reason),
        };
        accepted.peer.channel = Channel::Tls(certificate);
        let changes =
            Changes { receiver: changes, generation, has_changed: Arc::clone(&handshake.has_changed) };
        let connection = self.connection_over(accepted, Some(changes));
        Some(if is_http2(&stream) { connection.http2(stream).await } else { connection.http1(stream).await })
    }

    fn connection_over(&self, accepted: Accepted, changes: Option<Changes>) -> Connection {
        Connection {
            router: self.router.clone(),
            peer: Arc::new(accepted.peer),
            first_request_by: accepted.first_request_by,
            changes,
            shutdown: self.shutdown.clone(),
        }
    }

    fn refuse(&self, reason: &'static str, error: &dyn fmt::Display) -> Option<Ended> {
        tracing::debug!(reason, %error, "connection refused");
        self.metrics.http_connections_refused.inc([reason]);
        None
    }
}

/// Writes into the kernel's buffer succeed although the client is gone; without this timeout a live feed would keep its
/// permit for as long as TCP retransmits.
fn set_user_timeout(socket: &TcpStream) {
    // A kernel without this option serves without the timeout.
    drop(SockRef::from(socket).set_tcp_user_timeout(Some(limits::WRITE_STALL_TIMEOUT)));
}

/// An accepted connection.
struct Accepted {
    peer: ClientConnection,
    first_request_by: Instant,
    handshake_timeout: Duration,
}

fn is_http2<S>(stream: &TlsStream<S>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2")
}

#[cfg(test)]
mod tests;
