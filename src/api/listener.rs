//! The accept loop: HTTP/1.1 with a deadline on headers, a cap on connections, and a drain.
//!
//! Not `axum::serve`: it installs no timer, so a caller that never finishes its headers is kept
//! for ever.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::limits;
use crate::telemetry::{Metrics, OpenConnection};

/// Serves `router` on `listener` until `shutdown`, then lets requests under way end, for at most
/// [`limits::DRAIN_TIMEOUT`].
pub async fn serve(listener: TcpListener, router: Router, metrics: Metrics, shutdown: CancellationToken) {
    let places = Arc::new(Semaphore::new(limits::CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    while let Some((stream, place)) = accept(&listener, &places, &shutdown).await {
        let open = (place, metrics.http_connection());
        connections.spawn(connection(stream, open, router.clone(), shutdown.clone()));
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits::DRAIN_TIMEOUT, drained).await.is_err() {
        tracing::warn!(open = connections.len(), "connections did not end in time and are closed");
    }
}

/// The next connection and its place; `None` at shutdown.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    shutdown: &CancellationToken,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let next = async {
        loop {
            // Beyond the cap callers wait in the kernel's queue, which has a limit of its own.
            let place = Arc::clone(places).acquire_owned().await.ok()?;
            match listener.accept().await {
                Ok((stream, _)) => return Some((stream, place)),
                Err(error) => {
                    // Out of descriptors, or the caller went away: neither ends the listener.
                    tracing::warn!(%error, "accept a connection");
                    tokio::time::sleep(limits::ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        connection = next => connection,
        () = shutdown.cancelled() => None,
    }
}

async fn connection(
    stream: TcpStream,
    open: (OwnedSemaphorePermit, OpenConnection),
    router: Router,
    shutdown: CancellationToken,
) {
    // Small answers, each awaited by its caller.
    drop(stream.set_nodelay(true));
    let service =
        hyper::service::service_fn(move |request: Request<Incoming>| answer(router.clone(), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEADER_TIMEOUT)
        .max_headers(limits::HEADERS_MAX)
        .max_buf_size(limits::HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection");
    }
    drop(open);
}

fn answer(
    router: Router,
    request: Request<Incoming>,
) -> impl Future<Output = Result<axum::response::Response, Infallible>> {
    router.oneshot(request.map(axum::body::Body::new))
}
