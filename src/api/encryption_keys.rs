//! `/v1/identity/agent/encryption-key`: public encryption keys of agents and other subjects.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::App;
use super::body;
use super::cache_control::NO_STORE;
use super::caller::{Authenticated, Caller, OwnToken};
use super::error::Error;
use super::jwks::{self, JwkSet};
use super::openapi::params::IdempotencyKey;
use super::paging::{QueryParams, RawQuery};
use crate::identity::encryption_keys::{RegisterEncryptionKey, RegisteredEncryptionKey};
use crate::state::LinearizableRead;
use crate::{json, limits};

/// Registers an encryption key of the bearer's subject. The bearer is an agent's identity token, or a token without an
/// actor whose `client_id` is its `sub`. The same key with another `alg` replaces the earlier one. A key of a subject
/// that is not an agent of this fabric expires 30 days after its last registration.
#[utoipa::path(
    post, path = "", operation_id = "registerEncryptionKey", request_body = RegisterEncryptionKey,
    params(IdempotencyKey),
    responses(
        (status = 200, description = "The key was already registered", body = RegisteredEncryptionKey),
        (status = 201, description = "The key is registered", body = RegisteredEncryptionKey),
        (status = 403, description = "The bearer is not the subject's own token, or the agent is revoked or ended"),
        (status = 404, description = "The agent does not exist"),
        (status = 429, description = "A quota of keys is used up, of the subject or of its trust domain; or the rate limit of the caller"),
        (status = 501, description = "Agent identity is not configured"),
    )
)]
pub async fn register(
    caller: Caller<OwnToken>,
    State(app): State<App>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    let bytes = body::json_bytes(&parts.headers, body, limits::ENCRYPTION_KEY_BODY_BYTES_MAX).await?;
    let caller = caller.with_key(&parts, &bytes)?;
    let request: RegisterEncryptionKey = json::read(&bytes)?;
    let registered = app.identity.register_encryption_key(caller.credential(), &caller, &request).await?;
    let (kid, is_new) = (&registered.kid, registered.is_new);
    tracing::info!(kid, is_new, caller = caller.id(), "encryption key registered");
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, NO_STORE, Json(registered)).into_response())
}

/// The encryption keys of an agent or another subject.
#[utoipa::path(
    get, path = "", operation_id = "encryptionKeys",
    params(("workload_id" = String, Query, description = "The subject")),
    responses(
        (status = 200, description = "The keys of the subject", content((JwkSet = "application/json"), (JwkSet = "application/jwk-set+json"))),
        (status = 404, description = "The agent does not exist, or is revoked or ended; or the subject has no key"),
        (status = 501, description = "Agent identity is not configured"),
    )
)]
pub async fn list(
    _caller: Caller<Authenticated>,
    State(app): State<App>,
    current: LinearizableRead,
    headers: HeaderMap,
    query: RawQuery,
) -> Result<Response, Error> {
    let query = QueryParams::read(query, &["workload_id"])?;
    let workload_id = needed(&query, "workload_id")?;
    let set = JwkSet { keys: app.identity.encryption_keys(&current, workload_id).await? };
    let media = [(header::CONTENT_TYPE, HeaderValue::from_static(jwks::media(&headers)))];
    // Not cached: the agent may be revoked at any time.
    Ok((NO_STORE, (media, Json(set))).into_response())
}

/// Removes an encryption key, for its subject or for the caller that had the agent issued.
#[utoipa::path(
    delete, path = "", operation_id = "removeEncryptionKey",
    params(
        ("workload_id" = String, Query, description = "The subject"),
        ("kid" = String, Query, description = "The RFC 7638 thumbprint of the key"),
        IdempotencyKey,
    ),
    responses(
        (status = 204, description = "The key is removed"),
        (status = 403, description = "The bearer is not the subject's own token, and the caller did not have the agent issued"),
        (status = 404, description = "The agent or the key does not exist"),
    )
)]
pub async fn remove(
    caller: Caller<Authenticated>,
    State(app): State<App>,
    query: RawQuery,
    request: Request,
) -> Result<Response, Error> {
    let (parts, _) = request.into_parts();
    let query = QueryParams::read(query, &["workload_id", "kid"])?;
    let workload_id = needed(&query, "workload_id")?;
    let kid = needed(&query, "kid")?.to_owned();
    let caller = caller.with_key(&parts, b"")?;
    app.identity.remove_encryption_key(caller.credential(), &caller, workload_id, kid.clone()).await?;
    tracing::info!(
        request_id = caller.request_id,
        kid,
        workload_id,
        caller = caller.id(),
        "encryption key removed"
    );
    Ok((StatusCode::NO_CONTENT, NO_STORE).into_response())
}

fn needed<'q>(query: &'q QueryParams, name: &'static str) -> Result<&'q str, Error> {
    query.value(name).ok_or_else(|| Error::invalid_request(format!("{name}: is required")))
}
