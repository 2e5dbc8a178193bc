//! `/v1/sys/health`, `/livez`, `/readyz`.
//!
//! `/livez` says that the process answers; it depends on nothing else, so that a supervisor never
//! kills a node for its cluster's troubles. `/readyz` and health say whether it can do its work. A follower that
//! has a leader and a lease is as ready as the leader. A leader that no majority has confirmed for a while is none. Of
//! three things that are missing health only warns, and the node is not ready:
//!
//! - a freshness lease: requests wait for it, and most come through
//! - a wall clock that is close to those of the others: credentials of other issuers are refused, and nothing else
//! - a signing key that is old enough: a node that has joined "serves everything but minting and is not ready
//!   until its key is W old" (contract §3)

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::caller::{self, Caller};
use super::error;
use crate::state::{ClockReport, ClockVerdict};

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
    /// revoked, while it mints nothing because its signing key is not old enough, or while it takes no credentials of
    /// other issuers because its clock is not known to be right; `fail`.
    status: &'static str,
    /// What is missing; empty if nothing is, absent for callers who are not authenticated, unless the node starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<Vec<&'static str>>,
    /// `leader` or `follower`; absent without a leader, and for callers who are not authenticated.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    /// The id of the leader, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<u64>,
    /// How the clocks of the nodes stand, as the leader said last; likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    clocks: Option<ClockOffsets>,
}

/// The wall clocks of the nodes.
#[derive(Serialize, ToSchema)]
pub struct ClockOffsets {
    /// Whether those of a majority are close to their median.
    agreed: bool,
    /// By node id, of each that was read of late: seconds from the median to its clock, negative if that is behind.
    offset_seconds: BTreeMap<String, f64>,
}

impl From<&ClockReport> for ClockOffsets {
    fn from(report: &ClockReport) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "an offset of so many years is exact enough")]
        let secs = |(id, millis): (&u64, &i64)| (id.to_string(), *millis as f64 / 1000.0);
        Self { agreed: report.is_agreed, offset_seconds: report.offsets.iter().map(secs).collect() }
    }
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
/// What is missing to a leader while a member has stopped because its log has another committed entry.
const AGREEMENT: &str = "agreement on committed entries";
/// What is missing to a node that cannot mint.
const SIGNING_KEY: &str = "signing key";
/// What is missing to a node whose clock is not known to be close to the others'.
const CLOCK: &str = "clock agreement";
/// What is missing to a node whose clock is so far from the others' that it judges nothing by time.
const RIGHT_CLOCK: &str = "right clock";

fn is_locked(app: &App) -> bool {
    app.keyring.signing_key(app.key_time()).is_err()
}

/// What the node lacks; empty if it is ready.
pub(super) fn missing(app: &App) -> Vec<&'static str> {
    let core = app.state.cluster();
    let clock = core.clock_verdict();
    let all = [
        (app.state.position().is_none(), "bootstrap"),
        (core.disk_hangs(), "disk"),
        (core.confirmed_leader().is_none(), "leader"),
        (is_locked(app), SIGNING_KEY),
        (app.policy.is_outdated(), "policy"),
        (!core.contradictions().is_empty(), AGREEMENT),
        (!core.freshness().is_held, LEASE),
        (clock == ClockVerdict::Apart, CLOCK),
        (clock == ClockVerdict::FarApart, RIGHT_CLOCK),
    ];
    all.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, what)| what).collect()
}

/// What a node answers that has not recovered its state, to whoever asks: nobody can be authenticated yet.
pub(super) fn starting(unit_id: &str, initialized: bool, missing: Vec<&'static str>) -> Response {
    let health = Health {
        initialized,
        locked: true,
        version: env!("CARGO_PKG_VERSION"),
        unit_id: unit_id.to_owned(),
        status: "fail",
        missing: Some(missing),
        role: None,
        leader: None,
        clocks: None,
    };
    answer(health, true)
}

fn health(app: &App) -> Health {
    let initialized = app.state.position().is_some();
    let locked = is_locked(app);
    let leader = app.state.cluster().confirmed_leader();
    let missing = missing(app);
    Health {
        initialized,
        locked,
        version: env!("CARGO_PKG_VERSION"),
        unit_id: app.unit_id.clone(),
        status: match missing.as_slice() {
            [] => "pass",
            some if some.iter().all(|what| [LEASE, SIGNING_KEY, CLOCK].contains(what)) => "warn",
            _ => "fail",
        },
        missing: Some(missing),
        role: leader
            .map(|leader| if leader == app.state.cluster().node_id() { "leader" } else { "follower" }),
        leader,
        clocks: Some(ClockOffsets::from(app.state.cluster().clocks().as_ref())),
    }
}

fn answer(mut health: Health, details: bool) -> Response {
    let status = if health.status == "fail" { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    if !details {
        health = Health { missing: None, role: None, leader: None, clocks: None, ..health };
    }
    (status, [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], Json(health)).into_response()
}

/// How the node is, with details.
pub fn detailed(app: &App) -> Response {
    answer(health(app), true)
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

/// The same, of a node that starts.
pub(super) fn lives() -> Response {
    Json(Live { status: "pass" }).into_response()
}
