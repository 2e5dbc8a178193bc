//! `admin.sock` in the data directory: detailed health, cluster status and metrics, also on a node without a lease, which
//! serves no caller. Access is the mode of the file (0600). Read-only.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixListener;

use super::error::Error;
use super::{App, cluster, health, metrics};
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
pub async fn serve(listener: UnixListener, app: App) {
    let service = TowerToHyperService::new(routes(app));
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

fn routes(app: App) -> Router {
    Router::new()
        .route("/v1/sys/health", get(async |State(app): State<App>| health::detailed(&app)))
        .route("/v1/sys/cluster", get(async |State(app): State<App>| cluster::status(&app).await))
        .route("/metrics", get(async |State(app): State<App>| metrics::render(&app)))
        .fallback(async || Error::not_found("there is no such route"))
        .with_state(app)
}
