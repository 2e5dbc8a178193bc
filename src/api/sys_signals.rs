//! `/v1/sys/signals/…`: allowances of signal issuers beyond their quota.

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::admin_audit::Act;
use super::body;
use super::cache_control::NO_STORE;
use super::caller::{Caller, ClusterAdmin};
use super::error::Error;
use super::text;
use crate::{json, limits};

/// Revocations of an issuer beyond its quota.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Allowance {
    /// The `iss` of its signals.
    issuer: String,
    /// Facts that it may revoke or block beyond its quota; 0 withdraws the allowance.
    more: u32,
}

/// Allows an issuer of signals more revocations than its quota, once. It replaces an earlier allowance.
#[utoipa::path(post, path = "", operation_id = "allowRevocations", request_body = Allowance, responses(
    (status = 200, description = "The allowance", body = Allowance),
))]
pub async fn allow(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    let bytes = body::json_bytes(&parts.headers, body, limits::BODY_BYTES_MAX).await?;
    let allowance: Allowance = json::read(&bytes)?;
    let Allowance { issuer, more } = &allowance;
    // An allowance of a misspelled issuer would have no effect.
    if *more > 0 && app.receiver.issuers.get(issuer).is_none() {
        return Err(Error::invalid_request("issuer: must be that of a [[signals]] section"));
    }
    let act =
        Act::begin(&app, &caller, format!("allow {more} more revocations to {}", text::printable(issuer)))?;
    let allowed = app.revocations.grant_allowance(issuer, *more, &caller).await.map_err(Error::from);
    act.end(allowed, |()| String::new()).await?;
    tracing::warn!(
        request_id = caller.request_id,
        issuer,
        more,
        caller = caller.id(),
        "more revocations allowed than the quota"
    );
    Ok((NO_STORE, Json(allowance)).into_response())
}
