//! `/v1/sys/health`, `/livez`, `/readyz`.
//!
//! `/livez` says that the process answers; it depends on nothing else, so that a supervisor never
//! kills a node for its cluster's troubles. `/readyz` and health say whether it can do its work. A follower that
//! has a leader and a lease is as ready as the leader. A leader that no majority has confirmed for a while is none. Of
//! two things that are missing health only warns, and the node is not ready:
//!
//! - a freshness lease: requests wait for it, and most come through
//! - a signing key that is old enough: a node that has joined "serves everything but minting and is not ready
//!   until its key is W old" (contract §3)

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::caller::{self, Caller};
use super::error;

/// How the node is.
#[derive(Serialize, ToSchema)]
pub struct Health {
    /// Whether the cluster has begun its life.
    initialized: bool,
    /// Whether the node cannot sign tokens now.
    locked: bool,
    /// The product's version.
    version: &'static str,
    /// What the node calls itself.
    unit_id: String,
    /// `pass`; `warn` while requests wait because this node cannot prove that it knows everything that was
    /// revoked, or while it mints nothing because its signing key is not old enough; `fail`.
    status: &'static str,
    /// What is missing; empty if nothing is, absent for callers who are not authenticated.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<Vec<&'static str>>,
    /// `leader` or `follower`; absent without a leader, and for callers who are not authenticated.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    /// The id of the leader, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<u64>,
}

/// Why a health route answers 503: something is missing, or the request could not be looked at.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "described, never made: each answer is written by its own code")]
enum NotReady {
    Missing(Health),
    Refused(error::Body),
}

/// What is missing without a freshness lease.
const LEASE: &str = "freshness lease";
/// What is missing to a node that cannot mint.
const SIGNING_KEY: &str = "signing key";

fn health(app: &App) -> Health {
    let initialized = app.state.position().is_some();
    let locked = app.keyring.signing_key(app.key_time()).is_err();
    let leader = app.state.core().confirmed_leader();
    let mut missing = Vec::new();
    for (is_missing, what) in [
        (!initialized, "bootstrap"),
        (leader.is_none(), "leader"),
        (locked, SIGNING_KEY),
        (app.policy.is_behind(), "policy"),
        (!app.state.core().freshness().is_held, LEASE),
    ] {
        if is_missing {
            missing.push(what);
        }
    }
    Health {
        initialized,
        locked,
        version: env!("CARGO_PKG_VERSION"),
        unit_id: app.unit_id.clone(),
        status: match missing.as_slice() {
            [] => "pass",
            some if some.iter().all(|what| [LEASE, SIGNING_KEY].contains(what)) => "warn",
            _ => "fail",
        },
        missing: Some(missing),
        role: leader.map(|leader| if leader == app.state.core().node_id() { "leader" } else { "follower" }),
        leader,
    }
}

fn answer(mut health: Health, details: bool) -> Response {
    let status = if health.status == "fail" { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    if !details {
        health = Health { missing: None, role: None, leader: None, ..health };
    }
    (status, [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], Json(health)).into_response()
}

/// How the node is.
#[utoipa::path(
    get,
    path = "/v1/sys/health",
    operation_id = "health",
    responses(
        (status = 200, description = "The node does its work", body = Health),
        (status = 503, description = "Something is missing", body = NotReady),
    )
)]
pub async fn get(caller: Caller<caller::Health>, State(app): State<App>) -> Response {
    answer(health(&app), app.tells_details(&caller))
}

/// Whether the node can do its work.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "ready",
    responses(
        (status = 200, description = "It can", body = Health),
        (status = 503, description = "Something is missing", body = NotReady),
    )
)]
pub async fn ready(caller: Caller<caller::Health>, State(app): State<App>) -> Response {
    let mut health = health(&app);
    if health.status == "warn" {
        health.status = "fail";
    }
    answer(health, app.tells_details(&caller))
}

/// The process answers.
#[derive(Serialize, ToSchema)]
pub struct Live {
    /// `pass`
    status: &'static str,
}

/// Whether the process answers.
#[utoipa::path(
    get,
    path = "/livez",
    operation_id = "live",
    responses((status = 200, description = "It does", body = Live))
)]
pub async fn live(_caller: Caller<caller::Health>) -> Json<Live> {
    Json(Live { status: "pass" })
}
