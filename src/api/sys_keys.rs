//! `/v1/sys/keys…`: the signing keys of the cluster, their rotation and their taint.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::caller::{Caller, ClusterAdmin};
use super::error::{self, Error};
use crate::clock::Timestamp;
use crate::state::SigningKeyFacts;

/// A signing key. Times are RFC 3339, UTC.
#[derive(Serialize, ToSchema)]
pub struct SigningKey {
    /// RFC 7638 thumbprint.
    kid: String,
    /// The node that holds the private half.
    node_id: u64,
    /// `pending`, `active`, `retired`, `dead` or `tainted`
    state: &'static str,
    /// Whether this node signs with it now.
    signs: bool,
    /// When it was published.
    published_at: String,
    /// From when it may sign.
    usable_from: String,
    /// When it was retired.
    #[serde(skip_serializing_if = "Option::is_none")]
    retired_at: Option<String>,
    /// When it was tainted.
    #[serde(skip_serializing_if = "Option::is_none")]
    tainted_at: Option<String>,
}

/// A rotation that happened.
#[derive(Serialize, ToSchema)]
pub struct Rotated {
    /// The key that signs no more.
    retired: String,
    /// The key that signs now.
    active: String,
}

/// A taint that happened.
#[derive(Serialize, ToSchema)]
pub struct Tainted {
    /// The key whose signatures are accepted no more.
    tainted: String,
}

/// The signing keys of every node.
#[utoipa::path(
    get,
    path = "/v1/sys/keys",
    operation_id = "listSigningKeys",
    responses((status = 200, description = "The keys, ordered by kid", body = [SigningKey]))
)]
pub async fn list(_caller: Caller<ClusterAdmin>, State(app): State<App>) -> Json<Vec<SigningKey>> {
    let now = app.key_time();
    let signing = app.keyring.signing_key(now).ok().map(|key| key.kid().to_owned());
    let keys =
        app.state.index().signing_keys.values().map(|key| describe(key, now, signing.as_deref())).collect();
    Json(keys)
}

fn describe(key: &SigningKeyFacts, now: Timestamp, signing: Option<&str>) -> SigningKey {
    SigningKey {
        kid: key.kid.clone(),
        node_id: key.node_id,
        state: key.state(now).as_str(),
        signs: signing == Some(&key.kid),
        published_at: key.published_at.to_rfc3339(),
        usable_from: key.usable_from.to_rfc3339(),
        retired_at: key.retired_at.map(Timestamp::to_rfc3339),
        tainted_at: key.tainted_at.map(Timestamp::to_rfc3339),
    }
}

/// Retires the key that this node signs with in favour of its aged successor.
#[utoipa::path(
    post,
    path = "/v1/sys/keys/rotate",
    operation_id = "rotateSigningKey",
    responses(
        (status = 200, description = "It was rotated", body = Rotated),
        (status = 409, description = "No successor is old enough", body = error::Body),
        (status = 503, description = "Not possible now", body = error::Body),
    )
)]
pub async fn rotate(caller: Caller<ClusterAdmin>, State(app): State<App>) -> Result<Json<Rotated>, Error> {
    let now = app.key_time();
    let retired = app.keyring.rotate(now).await?;
    let active = app.keyring.signing_key(now)?.kid().to_owned();
    tracing::info!(retired, active, caller = caller.id(), "signing key rotated");
    Ok(Json(Rotated { retired, active }))
}

/// Taints a key: nothing it signed is accepted any more.
#[utoipa::path(
    post,
    path = "/v1/sys/keys/{kid}/taint",
    operation_id = "taintSigningKey",
    params(("kid" = String, Path, description = "RFC 7638 thumbprint")),
    responses(
        (status = 200, description = "It is tainted", body = Tainted),
        (status = 404, description = "There is no such key", body = error::Body),
        (status = 503, description = "Not possible now", body = error::Body),
    )
)]
pub async fn taint(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    kid: Result<Path<String>, PathRejection>,
) -> Result<Json<Tainted>, Error> {
    // A kid is ASCII: what is not even UTF-8 names no key.
    let Ok(Path(kid)) = kid else { return Err(Error::not_found("there is no such key")) };
    app.keyring.taint(&kid, &app.issuer).await?;
    tracing::warn!(kid, caller = caller.id(), "signing key tainted");
    Ok(Json(Tainted { tainted: kid }))
}
