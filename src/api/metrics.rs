//! `GET /metrics`: Prometheus text format 0.0.4.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use strum::VariantArray as _;

use super::App;
use super::caller::{Caller, Metrics};
use super::error::Error;
use crate::federation::PeerState;
use crate::state::{SigningKeyState, StreamStatus};
use crate::telemetry::PeerSample;
use crate::token::signing_key::SigningAlgorithm;

/// Metrics in the Prometheus text format.
#[utoipa::path(get, path = "", operation_id = "metrics", responses(
    (status = 200, description = "The metrics", content_type = "text/plain", body = String),
))]
pub async fn get(_caller: Caller<Metrics>, State(app): State<App>) -> Result<Response, Error> {
    render(&app)
}

fn render_peers(app: &App) {
    for status in app.federation.statuses().unwrap_or_default() {
        let states = PeerState::VARIANTS.iter().map(|state| (state.into_str(), *state == status.state));
        let copy = status.copy.as_ref();
        let sample = PeerSample {
            heard_ago: status.heard_ago,
            entries: copy.map_or(0, |copy| copy.entries.saturating_add(copy.blocks)),
            clock_offset_millis: status.report.and_then(|report| report.clock_offset_millis),
        };
        app.metrics.set_peer(&status.peer.name, states, sample);
    }
}

/// The current metrics.
pub fn render(app: &App) -> Result<Response, Error> {
    let core = app.state.cluster();
    let metrics = &app.metrics;
    metrics.raft_applied_index.set([], core.applied());
    metrics.raft_is_leader.set([], core.confirmed_leader() == Some(core.node_id()));
    metrics.set_leadership(core.term(), core.leader_changes());
    let (space, state) = core.disk_space();
    metrics.log_disk_hangs.set([], core.disk_hangs());
    metrics.disk_free_bytes.set([], space.free);
    metrics.disk_space_state.set([], state as u8);
    let freshness = core.freshness();
    metrics.set_freshness(freshness.is_held, freshness.waits, freshness.refused);
    let clocks = core.clocks();
    // Without agreement, the cluster time is the clock of this node.
    let is_known = clocks.is_agreed && clocks.offsets.contains_key(&core.node_id());
    let log_time = app.state.index().time;
    let log_time_ahead = if is_known { log_time.since(app.state.cluster_time()) } else { Duration::ZERO };
    metrics.set_clocks(clocks.is_agreed, log_time_ahead, clocks.offsets.iter());
    let acknowledgements = core.acknowledgements();
    metrics.set_acknowledgements(acknowledgements.confirmed, acknowledgements.unconfirmed);
    let decisions = app.policy.current().map_or(0, |policy| policy.exchange_decisions_cached());
    metrics.policy_decisions_cached.set([], decisions);
    metrics.signature_cache_bytes.set([], app.exchange.signature_cache_bytes());
    let index = app.state.index();
    metrics.tools.set([], index.tools);
    metrics.set_audit_blocks_dropped(index.audit_dropped_by_age, index.audit_dropped_by_bytes);
    for status in [StreamStatus::Enabled, StreamStatus::Paused, StreamStatus::Disabled] {
        let streams = index.streams.values().filter(|stream| stream.status == status).count();
        metrics.streams.set([status.into_str()], streams);
    }
    drop(index);
    render_peers(app);
    metrics.revocations.set([], app.state.revocation_count());
    metrics.blocks.set([], app.state.block_count());
    let now = app.key_time();
    let index = app.state.index();
    for algorithm in SigningAlgorithm::ALL {
        for state in [
            SigningKeyState::Pending,
            SigningKeyState::Active,
            SigningKeyState::Retired,
            SigningKeyState::Dead,
            SigningKeyState::Tainted,
        ] {
            let keys = index.signing_keys.values();
            let keys = keys.filter(|key| key.algorithm == algorithm && key.state(now) == state).count();
            metrics.signing_keys.set([algorithm.into_str(), state.into_str()], keys);
        }
    }
    drop(index);
    let text = metrics.render().map_err(Error::internal)?;
    let media = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, media)], text).into_response())
}
