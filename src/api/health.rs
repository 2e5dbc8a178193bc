//! `/v1/sys/health`, `/livez`, `/readyz`.
//!
//! `/livez` depends on nothing but the process, so that a supervisor never kills a node for trouble of its cluster.
//! `/readyz` and health report whether the node can serve. A follower with a leader and a lease is as ready as the
//! leader; a leader that no majority has confirmed lately does not count. Four conditions make health warn and the node
//! not ready:
//!
//! - a requested stop: the node serves until clients have left
//! - no freshness lease: requests wait for it, and most succeed
//! - a wall clock apart from the others': only credentials of other issuers are refused
//! - no signing key of sufficient age: a node that joined mints nothing until then (contract §3)
//!
//! A peer fabric whose credentials are refused, because it has not responded or needs an operator, makes
//! health warn and leaves the node ready: every other request is served.
//!
//! Low disk space makes health warn and leaves the node ready: it refuses only writes that add data. A full disk makes
//! the node not ready while another voter is able to lead. While none is, revocations must still reach a node.

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
use crate::cluster::SpaceState;
use crate::state::{ClockReport, ClockVerdict};
use crate::text::values;

/// The health of a node.
#[derive(Serialize, ToSchema)]
pub struct Health {
    /// Whether the cluster is bootstrapped.
    initialized: bool,
    /// Whether the node cannot sign tokens.
    locked: bool,
    /// The product's version.
    version: &'static str,
    /// The name of the node.
    unit_id: String,
    /// `pass`; `warn`: the node was told to stop, it has no freshness lease and requests wait for it, its signing key is
    /// not old enough to mint, its clock disagrees and credentials of other issuers are refused, its disk is short of
    /// space and writes that add data are refused, or a peer fabric does not respond or is held; `fail`
    #[schema(value_type = values::HealthStatus)]
    status: &'static str,
    /// Unmet conditions; absent for anonymous callers, unless the node starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<Vec<&'static str>>,
    /// The role of the node; absent without a leader and for anonymous callers.
    #[schema(value_type = Option<values::NodeRole>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    /// The node id of the leader; absent in the same cases.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<u64>,
    /// The wall clocks as the leader last reported them; absent in the same cases.
    #[serde(skip_serializing_if = "Option::is_none")]
    clocks: Option<ClockOffsets>,
}

/// The wall clocks of the nodes.
#[derive(Serialize, ToSchema)]
pub struct ClockOffsets {
    /// Whether the clocks of a majority are close to their median.
    agreed: bool,
    /// By node id: seconds by which the node's clock is ahead of the median. Only clocks that were read lately.
    offset_seconds: BTreeMap<String, f64>,
}

impl From<&ClockReport> for ClockOffsets {
    fn from(report: &ClockReport) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "an offset of so many years is exact enough")]
        let secs = |(id, millis): (&u64, &i64)| (id.to_string(), *millis as f64 / 1000.0);
        Self { agreed: report.is_agreed, offset_seconds: report.offsets.iter().map(secs).collect() }
    }
}

/// The body of a 503: an unmet condition, or an error.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only described in OpenAPI")]
enum NotReady {
    Missing(Health),
    Refused(error::Body),
}

/// Unmet: the node was told to stop.
const CONTINUED: &str = "continued service";
/// Unmet: no freshness lease.
const LEASE: &str = "freshness lease";
/// Unmet: a member stopped because its log has another committed entry.
const AGREEMENT: &str = "agreement on committed entries";
/// Unmet: another member has another state.
const STATE: &str = "agreement on the state";
/// The node refuses writes that add data for lack of disk space. Unmet only if another node has space.
const SPACE: &str = "disk space";
/// Credentials of a peer fabric are refused. Never unmet: the node serves everything else.
const PEERS: &str = "peer fabrics";
/// Unmet: the node cannot mint.
const SIGNING_KEY: &str = "signing key";
/// Unmet: the node's clock is not known to be close to the median.
const CLOCK: &str = "clock agreement";
/// Unmet: the node's clock is too far from the median to evaluate any time.
const RIGHT_CLOCK: &str = "right clock";

fn is_locked(app: &App) -> bool {
    app.keyring.signing_key(app.key_time()).is_err()
}

/// Unmet conditions of readiness.
pub(super) fn missing(app: &App) -> Vec<&'static str> {
    let cluster = app.state.cluster();
    let clock = cluster.clock_verdict();
    let all = [
        (app.stop_requested.is_cancelled(), CONTINUED),
        (app.state.position().is_none(), "bootstrap"),
        (cluster.disk_hangs(), "disk"),
        (cluster.confirmed_leader().is_none(), "leader"),
        (is_locked(app), SIGNING_KEY),
        (app.policy.is_outdated(), "policy"),
        (!cluster.contradictions().is_empty(), AGREEMENT),
        (cluster.disputed_index().is_some(), STATE),
        (cluster.is_spared(), SPACE),
        (!cluster.freshness().is_held, LEASE),
        (clock == ClockVerdict::Apart, CLOCK),
        (clock == ClockVerdict::FarApart, RIGHT_CLOCK),
    ];
    all.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, what)| what).collect()
}

/// Health of a node that has not recovered its state. No caller can be authenticated yet, so every caller sees details.
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

/// `status` with these unmet conditions, and with or without another reason to warn.
fn status(missing: &[&str], warns: bool) -> &'static str {
    match missing {
        [] if warns => "warn",
        [] => "pass",
        some if some.iter().all(|what| [CONTINUED, LEASE, SIGNING_KEY, CLOCK].contains(what)) => "warn",
        _ => "fail",
    }
}

/// Health, and whether the node is ready.
fn health(app: &App) -> (Health, bool) {
    let initialized = app.state.position().is_some();
    let locked = is_locked(app);
    let leader = app.state.cluster().confirmed_leader();
    let mut missing = missing(app);
    let is_ready = missing.is_empty();
    let is_short = app.state.cluster().disk_space().1 != SpaceState::Enough;
    let lacks_a_peer = app.federation.lacks_a_peer();
    let status = status(&missing, is_short || lacks_a_peer);
    missing.extend((is_short && !missing.contains(&SPACE)).then_some(SPACE));
    missing.extend(lacks_a_peer.then_some(PEERS));
    let health = Health {
        initialized,
        locked,
        version: env!("CARGO_PKG_VERSION"),
        unit_id: app.unit_id.clone(),
        status,
        missing: Some(missing),
        role: leader
            .map(|leader| if leader == app.state.cluster().node_id() { "leader" } else { "follower" }),
        leader,
        clocks: Some(ClockOffsets::from(app.state.cluster().clocks().as_ref())),
    };
    (health, is_ready)
}

fn answer(mut health: Health, details: bool) -> Response {
    let status = if health.status == "fail" { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    if !details {
        health = Health { missing: None, role: None, leader: None, clocks: None, ..health };
    }
    (status, [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], Json(health)).into_response()
}

/// Health with details.
pub fn detailed(app: &App) -> Response {
    answer(health(app).0, true)
}

/// Health of the node.
#[utoipa::path(get, path = "", operation_id = "health", responses(
    (status = 200, description = "The node serves requests", body = Health),
    (status = 503, description = "A condition is unmet", body = NotReady),
))]
pub async fn get(caller: Caller<caller::Health>, State(app): State<App>) -> Response {
    answer(health(&app).0, app.shows_details(&caller))
}

/// Readiness of the node.
#[utoipa::path(get, path = "", operation_id = "ready", responses(
    (status = 200, description = "The node is ready", body = Health),
    (status = 503, description = "A condition is unmet", body = NotReady),
))]
pub async fn ready(caller: Caller<caller::Health>, State(app): State<App>) -> Response {
    let (mut health, is_ready) = health(&app);
    if !is_ready {
        health.status = "fail";
    }
    answer(health, app.shows_details(&caller))
}

/// Liveness.
#[derive(Serialize, ToSchema)]
pub struct Live {
    /// Always `pass`.
    #[schema(value_type = values::Liveness)]
    status: &'static str,
}

/// Liveness of the process.
#[utoipa::path(get, path = "", operation_id = "live", responses(
    (status = 200, description = "The process is alive", body = Live),
))]
pub async fn live(_caller: Caller<caller::Health>) -> Json<Live> {
    Json(Live { status: "pass" })
}

/// Liveness of a node that starts.
pub(super) fn live_response() -> Response {
    Json(Live { status: "pass" }).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_disk_warns_unless_another_node_has_space() {
        let cases: [(&[&str], bool, &str); 5] = [
            (&[], false, "pass"),
            (&[], true, "warn"),
            (&[SPACE], true, "fail"),
            (&[LEASE], true, "warn"),
            (&["leader"], true, "fail"),
        ];
        for (missing, is_short, expected) in cases {
            assert_eq!(status(missing, is_short), expected, "{missing:?} {is_short}");
        }
    }
}
