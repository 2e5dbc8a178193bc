//! `/v1/sys/signals/…`: what an operator allows the issuers of signals.

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
use super::error::{self, Error};
use super::text;
use crate::{json, limits};

/// What an issuer may revoke beyond its quota.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Allowance {
    /// Of the signals: its `iss`.
    issuer: String,
    /// How many facts it may revoke or block beyond its quota, until they are used up; 0 takes back what
    /// was allowed.
    more: u32,
}

/// Lets an issuer of signals revoke more than its quota for once; replaces what was allowed before.
#[utoipa::path(
    post,
    path = "/v1/sys/signals/allowance",
    operation_id = "allowRevocations",
    request_body = Allowance,
    responses(
        (status = 200, description = "It is allowed", body = Allowance),
        (status = 400, description = "A member is missing or not valid", body = error::Body),
        (status = 503, description = "Not possible now", body = error::Body),
    )
)]
pub async fn allow(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    let bytes = body::json_bytes(&parts.headers, body, limits::BODY_BYTES_MAX).await?;
    let allowance: Allowance = json::read(&bytes)?;
    let Allowance { issuer, more } = &allowance;
    let act =
        Act::begin(&app, &caller, format!("allow {more} more revocations to {}", text::printable(issuer)))?;
    let allowed = app.revocations.grant_allowance(issuer, *more, caller.facts()).await.map_err(Error::from);
    act.end(allowed, |()| String::new()).await?;
    let request_id = super::middleware::current_request_id();
    tracing::warn!(request_id, issuer, more, caller = caller.id(), "more revocations allowed than the quota");
    Ok((NO_STORE, Json(allowance)).into_response())
}
