//! `admin.sock` in the data directory: detailed health, cluster status and metrics, also on a node without a lease, which
//! serves no caller, and on one that starts, which has no metrics yet. Access is the mode of the file (0600). Read-only.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixListener;

use super::error::Error;
use super::startup::Front;
use super::{cluster, health, metrics};
use crate::limits;

/// The name of the socket in the data directory.
pub const ADMIN_SOCKET: &str = "admin.sock";

/// Binds the socket and replaces one of an earlier process; the caller holds the lock of the data directory.
///
/// # Errors
/// If binding fails, for example because the path is too long for a socket.
pub fn bind(data: &Path) -> io::Result<UnixListener> {
    let path = data.join(ADMIN_SOCKET);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // No other user can connect in between: the directory belongs to this user only.
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves connections one after the other, for ever.
pub async fn serve(listener: UnixListener, front: Front) {
    let service = TowerToHyperService::new(routes(front));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection of admin.sock");
                tokio::time::sleep(limits::ADMIN_SOCKET_TIMEOUT).await;
                continue;
            }
        };
        let mut http = hyper::server::conn::http1::Builder::new();
        let served = http.timer(TokioTimer::new()).keep_alive(false);
        let served = served.serve_connection(TokioIo::new(stream), service.clone());
        // A stalled client delays the next one for no longer than this.
        drop(tokio::time::timeout(limits::ADMIN_SOCKET_TIMEOUT, served).await);
    }
}

fn routes(front: Front) -> Router {
    Router::new()
        .route("/v1/sys/health", get(get_health))
        .route("/v1/sys/cluster", get(get_cluster))
        .route("/metrics", get(get_metrics))
        .fallback(async || Error::not_found("there is no such route"))
        .with_state(front)
}

async fn get_health(State(front): State<Front>) -> Response {
    front.app().map_or_else(|| front.health(), health::detailed)
}

async fn get_cluster(State(front): State<Front>) -> Result<Response, Error> {
    let state = front.state().ok_or_else(|| front.unavailable())?;
    Ok(cluster::status(state, front.unit_id()).await)
}

async fn get_metrics(State(front): State<Front>) -> Result<Response, Error> {
    metrics::render(front.app().ok_or_else(|| front.unavailable())?)
}
