//! `admin.sock` in the data directory: detailed health, cluster status and metrics, also on a node without a lease, which
//! serves no caller. Access is the mode of the file (0600). Read-only.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use tokio::net::UnixListener;

use super::error::Error;
use super::{App, health, metrics};
use crate::cluster::{self, Status};
use crate::limits;

/// The name of the socket in the data directory.
pub const ADMIN_SOCKET: &str = "admin.sock";

/// The status of a node and of its cluster, as far as the node knows.
#[derive(Serialize)]
struct ClusterStatus {
    node_id: u64,
    unit_id: String,
    role: &'static str,
    term: u64,
    leader: Option<u64>,
    leader_is_confirmed: bool,
    last_log_index: Option<u64>,
    applied_index: u64,
    lease_is_held: bool,
    lease_lapsed_ms: u64,
    members: Vec<Member>,
}

#[derive(Serialize)]
struct Member {
    node_id: u64,
    address: String,
    role: &'static str,
    /// Known to the leader only.
    #[serde(skip_serializing_if = "Option::is_none")]
    matched_index: Option<u64>,
}

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
        .route("/v1/sys/cluster", get(async |State(app): State<App>| cluster(&app)))
        .route("/metrics", get(async |State(app): State<App>| metrics::render(&app)))
        .fallback(async || Error::not_found("there is no such route"))
        .with_state(app)
}

fn cluster(app: &App) -> Response {
    let Status { node_id, term, leader, confirmed_leader, last_log_index, applied, lease, members } =
        app.state.cluster().status();
    let role_of = |id: u64, is_voter: bool| match is_voter {
        _ if leader == Some(id) => "leader",
        true => "follower",
        false => "learner",
    };
    let is_voter = members.iter().any(|member| member.node_id == node_id && member.is_voter);
    let member = |member: cluster::Member| Member {
        node_id: member.node_id,
        role: role_of(member.node_id, member.is_voter),
        address: member.address,
        matched_index: member.matched,
    };
    let status = ClusterStatus {
        node_id,
        unit_id: app.unit_id.clone(),
        role: role_of(node_id, is_voter),
        term,
        leader,
        leader_is_confirmed: confirmed_leader.is_some(),
        last_log_index,
        applied_index: applied,
        lease_is_held: lease.is_held,
        lease_lapsed_ms: u64::try_from(lease.lapsed.as_millis()).unwrap_or(u64::MAX),
        members: members.into_iter().map(member).collect(),
    };
    Json(status).into_response()
}
