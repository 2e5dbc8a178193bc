//! `/v1/sys/cluster/finalize`: ends an upgrade. The feature level of the cluster is raised, which cannot be undone.

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::admin_audit::Act;
use super::cache_control::NO_STORE;
use super::caller::{Caller, ClusterAdmin};
use super::error::Error;
use super::openapi::params::IdempotencyKey;

/// The outcome of an upgrade.
#[derive(Serialize, ToSchema)]
pub struct Finalized {
    /// The feature level of the cluster.
    feature_level: u32,
}

/// Raises the feature level of the cluster to the newest that every member supports.
///
/// It cannot be undone: afterwards no member can return to a version that does not support the level. If the cluster has
/// the level already, nothing changes.
#[utoipa::path(post, path = "", operation_id = "finalizeUpgrade", params(IdempotencyKey), responses(
    (status = 200, description = "The cluster has this feature level", body = Finalized),
    (status = 409, description = "A member does not answer, or does not support the level; or a node joined meanwhile"),
))]
pub async fn post(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, _) = request.into_parts();
    let caller = caller.with_key(&parts, b"")?;
    let act = Act::begin(&app, &caller, "raise the feature level")?;
    let raised = app.state.on_behalf_of(&caller).raise_feature_level().await;
    let level = act.end(raised.map_err(Error::from), |level| format!("feature level {level}")).await?;
    tracing::warn!(feature_level = level, caller = caller.id(), "feature level raised");
    Ok((NO_STORE, Json(Finalized { feature_level: level })).into_response())
}
