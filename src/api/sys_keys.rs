//! `/v1/sys/keys…`: signing keys, rotation and taint.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::admin_audit::Act;
use super::caller::{Caller, ClusterAdmin};
use super::error::Error;
use super::paging::{self, RawQuery};
use super::{App, awaited, text};
use crate::clock::Timestamp;
use crate::keyring;
use crate::state::{LinearizableRead, SigningKeyRecord};
use crate::text::values;
use crate::token::signing_key::SigningAlgorithm;

/// A signing key. Times are RFC 3339, UTC.
#[derive(Serialize, ToSchema)]
pub struct SigningKey {
    /// RFC 7638 thumbprint.
    kid: String,
    /// The node that has the private key.
    node_id: u64,
    /// `ES256` for tokens, `RS256` for security event tokens.
    #[schema(value_type = values::SigningAlgorithm)]
    algorithm: &'static str,
    /// The state of the key.
    #[schema(value_type = values::SigningKeyState)]
    state: &'static str,
    /// Whether this node signs with it now.
    signs: bool,
    /// When it was published.
    published_at: String,
    /// Earliest use.
    usable_from: String,
    /// When it was retired.
    #[serde(skip_serializing_if = "Option::is_none")]
    retired_at: Option<String>,
    /// When it was tainted.
    #[serde(skip_serializing_if = "Option::is_none")]
    tainted_at: Option<String>,
}

/// The result of a rotation.
#[derive(Serialize, ToSchema)]
pub struct Rotated {
    /// The retired key.
    retired: String,
    /// The active key.
    active: String,
}

/// The result of a taint.
#[derive(Serialize, ToSchema)]
pub struct Tainted {
    /// The tainted key. Signatures of it are no longer accepted.
    tainted: String,
}

/// The signing keys of every node.
#[utoipa::path(get, path = "", operation_id = "listSigningKeys", responses(
    (status = 200, description = "The keys, ordered by `kid`", body = [SigningKey]),
))]
pub async fn list(
    _caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    _current: LinearizableRead,
) -> Json<Vec<SigningKey>> {
    let now = app.key_time();
    let signing = SigningAlgorithm::ALL.map(|algorithm| app.keyring.signing_kid(algorithm, now));
    let keys = app.state.index().signing_keys.values().map(|key| describe(key, now, &signing)).collect();
    Json(keys)
}

fn describe(key: &SigningKeyRecord, now: Timestamp, signing: &[Option<String>]) -> SigningKey {
    SigningKey {
        kid: key.kid.clone(),
        node_id: key.node_id,
        algorithm: key.algorithm.into_str(),
        state: key.state(now).into_str(),
        signs: signing.iter().flatten().any(|kid| *kid == key.kid),
        published_at: key.published_at.to_rfc3339(),
        usable_from: key.usable_at().to_rfc3339(),
        retired_at: key.retired_at.map(Timestamp::to_rfc3339),
        tainted_at: key.tainted_at.map(Timestamp::to_rfc3339),
    }
}

/// Retires the active signing key of this node in favour of its successor.
#[utoipa::path(
    post, path = "", operation_id = "rotateSigningKey",
    params(
        ("algorithm" = Option<values::SigningAlgorithm>, Query, description = "`ES256`, the default, for tokens; `RS256` for security event tokens"),
    ),
    responses(
        (status = 200, description = "The key is rotated", body = Rotated),
        (status = 409, description = "No successor is old enough, or the node has no keys of this algorithm"),
    )
)]
pub async fn rotate(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    query: RawQuery,
) -> Result<Json<Rotated>, Error> {
    let query = paging::QueryParams::read(query, &["algorithm"])?;
    let algorithm = query.value("algorithm").map_or(Ok(SigningAlgorithm::Es256), str::parse);
    let algorithm = algorithm.map_err(|error| Error::invalid_request(format!("algorithm: {error}")))?;
    let now = app.key_time();
    let act = Act::begin(&app, &caller, format!("rotate the {algorithm} signing key"))?;
    let rotated = app.keyring.rotate(algorithm, now, &caller).await.map_err(Error::from);
    let retired = act.end(rotated, |retired| format!("{retired} is retired")).await?;
    let active = app.keyring.signing_kid(algorithm, now).ok_or(keyring::Error::NoUsableKey(algorithm))?;
    tracing::info!(retired, active, %algorithm, caller = caller.id(), "signing key rotated");
    Ok(Json(Rotated { retired, active }))
}

/// Taints a key: nothing that it signed is accepted any more.
#[utoipa::path(
    post, path = "", operation_id = "taintSigningKey",
    params(("kid" = String, Path, description = "RFC 7638 thumbprint")),
    responses(
        (status = 200, description = "The key is tainted", body = Tainted, headers(("Svc-Federation" = String, description = "The awaited peer fabrics: `us=enforced, ap=lapsed`"))),
        (status = 404, description = "The key does not exist"),
    )
)]
pub async fn taint(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    kid: Result<Path<String>, PathRejection>,
) -> Result<Response, Error> {
    // A kid is ASCII, so a path that is not UTF-8 names no key.
    let Ok(Path(kid)) = kid else { return Err(Error::not_found("there is no such key")) };
    let act = Act::begin(&app, &caller, format!("taint signing key {}", text::printable(&kid)))?;
    let tainted = app.keyring.taint(&kid, &app.issuer, &caller).await.map_err(Error::from);
    let awaited = act.end(tainted, |_| String::new()).await?;
    tracing::warn!(kid, caller = caller.id(), "signing key tainted");
    Ok((awaited::header(&awaited), Json(Tainted { tainted: kid })).into_response())
}
