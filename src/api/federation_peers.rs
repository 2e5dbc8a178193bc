//! `/v1/federation/peers`: wire types and translation: the peer fabrics, as this node sees them.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::admin_audit::Act;
use super::cache_control::NO_STORE;
use super::caller::{Caller, ClusterAdmin};
use super::error::Error;
use crate::federation::{self, PeerStatus};
use crate::state::LinearizableRead;
use crate::text::values;

/// A peer fabric.
#[derive(Serialize, ToSchema)]
pub struct Peer {
    /// Its name in the configuration.
    name: String,
    /// The `iss` of its tokens.
    issuer: String,
    /// `not_read`: this fabric does not accept its credentials. `joining`: its ledger was not read to its end yet.
    /// `live`: the copy of its ledger is recent enough to decide by. `stale`: it has not responded for too
    /// long. `held`: an operator must decide. `paused`: by an operator.
    #[schema(value_type = values::PeerState)]
    state: &'static str,
    /// The reason why it is held.
    #[schema(value_type = Option<values::PeerFault>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'static str>,
    /// The log position, `<incarnation>-<index>`, up to which its ledger is copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<String>,
    /// Milliseconds since the last call to it whose response this node knows to be applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    heard_ms_ago: Option<u64>,
    /// Number of entries of its ledger in the copy.
    entries: u64,
    /// Number of its blocks in force.
    blocks: u64,
    /// Digest of the settings of this peer on the answering node, without paths of files. Nodes of one version with different
    /// ones treat the peer differently until they agree.
    config_digest: String,
    /// The address that was called last; like the next three fields, on the leader only.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    /// Milliseconds by which its clock is ahead of this node's, as its last response states. Nothing depends on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_offset_ms: Option<i64>,
    /// Milliseconds of the last call without new entries, beyond the time for which the peer held it: the
    /// round trip, and the peer's proof that it is current.
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_ms: Option<u64>,
    /// The reason why the last call had no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Its last call to this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    serving: Option<Serving>,
    /// Whether revocations of this fabric wait for it.
    awaited: bool,
    /// The log position of this fabric, `<incarnation>-<index>`, such that no node of the peer decides by an
    /// earlier one, as the peer stated in any call; on the leader only.
    #[serde(skip_serializing_if = "Option::is_none")]
    acknowledged: Option<String>,
}

/// The last call of a peer to this node.
#[derive(Serialize, ToSchema)]
pub struct Serving {
    /// The log position up to which it has our ledger; absent: it had none of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<String>,
    /// The log position of this fabric such that no node of the peer decides by an earlier one, as it states;
    /// only of a peer that honours our lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    enforced: Option<String>,
    /// Milliseconds since the call.
    asked_ms_ago: u64,
}

/// The peer fabrics, as this node sees them.
#[utoipa::path(get, path = "", operation_id = "listPeers", responses(
    (status = 200, description = "The peers, in the order of the configuration", body = [Peer]),
    (status = 501, description = "Federation is not configured"),
))]
pub async fn list(
    _caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    _current: LinearizableRead,
) -> Result<Response, Error> {
    let peers: Vec<_> = app.federation.statuses()?.into_iter().map(peer_of).collect();
    Ok((NO_STORE, Json(peers)).into_response())
}

/// Pauses, resumes, approves, repairs or forgets a peer fabric.
///
/// `pause`: its calls and its credentials are refused; its ledger is still read. `resume` ends the pause.
/// `approve`: the fault for which it is held is accepted, and no earlier credential counts. `repair`: the
/// copy of its ledger is read again from the beginning, because the disk of a node has corrupted it; earlier
/// credentials count once it is read. `forget`: the copy is deleted, and no earlier credential counts.
#[utoipa::path(
    post, path = "", operation_id = "setPeer",
    params(
        ("name" = String, Path, description = "The name of the peer in the configuration"),
        ("verb" = String, Path, description = "`pause`, `resume`, `approve`, `repair` or `forget`"),
    ),
    responses(
        (status = 200, description = "The peer", body = Peer),
        (status = 404, description = "There is no peer with this name, or no such verb"),
        (status = 409, description = "The peer has no fault that can be approved, or one that a repair does not settle"),
        (status = 501, description = "Federation is not configured"),
    )
)]
pub async fn act(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    _current: LinearizableRead,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Error> {
    let Ok(Path((name, verb))) = path else { return Err(federation::Error::UnknownPeer.into()) };
    let peer = app.federation.peer(&name)?;
    let act = federation::act_of(&verb);
    let act =
        act.ok_or_else(|| Error::not_found("the verb must be pause, resume, approve, repair or forget"))?;
    let entry = Act::begin(&app, &caller, format!("{verb} peer {name}"))?;
    let done = app.federation.set_peer(peer, act, &caller).await.map_err(Error::from);
    entry.end(done, |()| String::new()).await?;
    tracing::warn!(
        request_id = caller.request_id,
        peer = name,
        verb,
        caller = caller.id(),
        "peer fabric changed"
    );
    let status = app.federation.status(peer)?;
    Ok((NO_STORE, Json(peer_of(status))).into_response())
}

fn peer_of(status: PeerStatus) -> Peer {
    let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let position = status.position();
    let PeerStatus { peer, state, copy, heard_ago, report, asked, acknowledged } = status;
    Peer {
        name: peer.name.clone(),
        issuer: peer.issuer.clone(),
        state: state.into_str(),
        fault: copy.as_ref().and_then(|copy| copy.fault).map(|fault| fault.into_str()),
        position: position.map(|position| position.to_string()),
        heard_ms_ago: heard_ago.map(millis),
        entries: copy.as_ref().map_or(0, |copy| copy.entries),
        blocks: copy.as_ref().map_or(0, |copy| copy.blocks),
        config_digest: peer.digest().to_string(),
        endpoint: report.as_ref().map(|report| report.endpoint.clone()),
        clock_offset_ms: report.as_ref().and_then(|report| report.clock_offset_millis),
        round_trip_ms: report.as_ref().and_then(|report| report.round_trip).map(millis),
        error: report.and_then(|report| report.error),
        serving: asked.map(|(call, ago)| Serving {
            position: call.since.map(|since| since.to_string()),
            enforced: call.enforced.map(|enforced| enforced.to_string()),
            asked_ms_ago: millis(ago),
        }),
        awaited: peer.is_awaited,
        acknowledged: acknowledged.map(|acknowledged| acknowledged.to_string()),
    }
}
