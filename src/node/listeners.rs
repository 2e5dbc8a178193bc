//! The listeners for callers: sockets, admission, TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Error;
use super::federation::Fabrics;
use super::replica::Replica;
use crate::api::listener::{self, ConnectionLimiter, Handshake, Kind};
use crate::api::{Front, Router, admin_socket};
use crate::clock::Clock;
use crate::config::Config;
use crate::id::TrustDomain;
use crate::limits;
use crate::telemetry::Metrics;
use crate::tls::{self, RemoteEnd, Tls};

/// Bound sockets. They are bound first at startup: a port in use is reported before anything is written.
pub(super) struct Listeners {
    http: TcpSocket,
    https: Option<(TcpSocket, Tls)>,
}

impl Listeners {
    /// Accepts the certificates of `[tls]`, and those of peer fabrics.
    pub(super) fn open(
        config: &Config,
        fabrics: Option<&Fabrics>,
        clock: &Clock,
        metrics: &Metrics,
    ) -> Result<Self, Error> {
        let http = bind(config.listen.http)?;
        let Some(tls) = &config.tls else {
            tracing::warn!("development mode: no TLS; every local caller has all capabilities");
            return Ok(Self { http, https: None });
        };
        let socket = bind(tls.address)?;
        let mut files = tls.files.clone();
        files.authorities.extend(fabrics.into_iter().flat_map(Fabrics::authorities));
        let tls = Tls::load(files, RemoteEnd::Callers, clock.clone(), metrics.clone())?;
        Ok(Self { http, https: Some((socket, tls)) })
    }

    /// TLS of the callers; `None` in development mode.
    pub(super) fn tls(&self) -> Option<Tls> {
        self.https.as_ref().map(|(_, tls)| tls.clone())
    }

    /// Addresses of plain HTTP and TLS.
    pub(super) fn addresses(&self) -> Result<(SocketAddr, Option<SocketAddr>), Error> {
        let https = self.https.as_ref().map(|(socket, _)| address_of(socket)).transpose()?;
        Ok((address_of(&self.http)?, https))
    }

    /// Serves until the shutdown, and reloads the TLS files.
    pub(super) fn serve(
        self,
        router: &Router,
        limiter: &ConnectionLimiter,
        metrics: &Metrics,
        shutdown: &CancellationToken,
    ) -> Result<JoinSet<()>, Error> {
        let http = listen(self.http)?;
        let https = self.https.map(|(socket, tls)| Ok::<_, Error>((listen(socket)?, tls))).transpose()?;
        let mut listening = JoinSet::new();
        let mut serve_on = |socket, kind| {
            // Each listener has its own reserve: anonymous connections to one must not exhaust the other.
            let (router, limiter) = (router.clone(), limiter.with_own_reserve());
            let served = listener::serve(socket, kind, router, limiter, metrics.clone(), shutdown.clone());
            listening.spawn(served);
        };
        serve_on(http, Kind::Plain);
        if let Some((socket, tls)) = https {
            serve_on(socket, Kind::Tls(handshake(&tls)));
            let shutdown = shutdown.clone();
            listening.spawn(async move {
                tokio::select! {
                    () = tls.follow() => {}
                    () = shutdown.cancelled() => {}
                }
            });
        }
        Ok(listening)
    }
}

/// Opens `admin.sock`; the node works without it.
pub(super) fn open_admin_socket(data: &Path, front: Front, replica: &mut Replica) {
    match admin_socket::bind(data) {
        Ok(listener) => drop(replica.background.spawn(admin_socket::serve(listener, front))),
        Err(error) => tracing::warn!(%error, path = %data.display(), "failed to open admin.sock"),
    }
}

fn handshake(tls: &Tls) -> Handshake {
    let changes = tls.changes();
    let (tls, of_changes) = (tls.clone(), tls.clone());
    Handshake {
        acceptor: Arc::new(move || tls.acceptor()),
        changes,
        has_changed: Arc::new(move |generation, of: Option<&TrustDomain>| {
            of_changes.has_changed(generation, of)
        }),
        peer_certificate: |connection| tls::peer_certificate(connection).map_err(|error| error.to_string()),
    }
}

/// A bound socket that does not accept connections yet.
fn bind(address: SocketAddr) -> Result<TcpSocket, Error> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let bound = socket.and_then(|socket| {
        // Allows a port that an earlier process has just closed, as `std` and tokio do.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(socket)
    });
    bound.map_err(|source| Error::Listen { address, source })
}

fn address_of(socket: &TcpSocket) -> Result<SocketAddr, Error> {
    let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
    socket.local_addr().map_err(|source| Error::Listen { address: unknown, source })
}

fn listen(socket: TcpSocket) -> Result<TcpListener, Error> {
    let address = address_of(&socket)?;
    socket.listen(limits::CONNECTIONS_QUEUED_MAX).map_err(|source| Error::Listen { address, source })
}
