//! `/v1/identity/agent/encryption-key`: the keys to which others encrypt for an agent (contract §4).

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::App;
use super::cached::NO_STORE;
use super::caller::{Authenticated, Caller, OwnToken};
use super::error::{self, Error};
use super::jwks::{self, JwkSet};
use super::paging::Members;
use super::{body, idempotency};
use crate::identity::encryption_keys;
use crate::state::Current;
use crate::{json, limits};

/// A key to be registered. Unknown members are ignored.
#[derive(Deserialize, ToSchema)]
pub struct RegisterEncryptionKey {
    /// The agent, which must be the one that asks.
    workload_id: String,
    /// A public JWK (RFC 7517): `kty` EC on P-256, P-384 or P-521, OKP on X25519, or RSA from 2048 bits;
    /// `use` is `enc` or absent, `alg` of the ECDH-ES family, RSA-OAEP-256, -384 or -512, or absent.
    #[schema(value_type = Object)]
    key: Value,
}

/// A key that is registered.
#[derive(Serialize, ToSchema)]
pub struct RegisteredEncryptionKey {
    /// The agent.
    workload_id: String,
    /// RFC 7638 thumbprint.
    kid: String,
    /// The key, with `use` and `kid`.
    key: Map<String, Value>,
    /// `active`
    status: &'static str,
    /// RFC 3339, UTC, in log time: when it was registered first.
    registered_at: String,
}

/// Registers an encryption key of the agent whose own identity token is the bearer. The same key again,
/// perhaps with another `alg`, replaces it.
#[utoipa::path(
    post,
    path = "/v1/identity/agent/encryption-key",
    operation_id = "registerEncryptionKey",
    request_body = RegisterEncryptionKey,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same request again has the same outcome")),
    responses(
        (status = 200, description = "It was registered before", body = RegisteredEncryptionKey),
        (status = 201, description = "It is registered", body = RegisteredEncryptionKey),
        (status = 400, description = "The request or the key is not valid", body = error::Body),
        (status = 403, description = "The bearer is not the identity token of this agent, or its life has ended", body = error::Body),
        (status = 404, description = "The agent is unknown", body = error::Body),
        (status = 409, description = "The agent has too many keys", body = error::Body),
        (status = 422, description = "The Idempotency-Key came with another request", body = error::Body),
        (status = 501, description = "Agent identity is not configured", body = error::Body),
        (status = 503, description = "Not possible now", body = error::Body),
    )
)]
pub async fn register(
    caller: Caller<OwnToken>,
    State(app): State<App>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    let bytes = body::json_bytes(&parts.headers, body, limits::ENCRYPTION_KEY_BODY_BYTES_MAX).await?;
    let target = (&parts.method, &parts.uri);
    let idempotency = idempotency::idempotency(&parts.headers, caller.id(), target, &bytes)?;
    let request: RegisterEncryptionKey = json::read(&bytes)?;
    let registered = app.identity.register_encryption_key(
        caller.credential(),
        &request.workload_id,
        &request.key,
        idempotency,
    );
    let registered = registered.await?;
    let (kid, is_new) = (registered.kid, registered.is_new);
    tracing::info!(kid, is_new, caller = caller.id(), "encryption key registered");
    let answer = RegisteredEncryptionKey {
        workload_id: registered.workload_id.to_string(),
        kid,
        key: registered.jwk,
        status: "active",
        registered_at: registered.registered_at.to_rfc3339(),
    };
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, NO_STORE, Json(answer)).into_response())
}

/// The encryption keys of an agent.
#[utoipa::path(
    get,
    path = "/v1/identity/agent/encryption-key",
    operation_id = "encryptionKeys",
    params(("workload_id" = String, Query, description = "The agent")),
    responses(
        (status = 200, description = "Its keys; none if it has registered none", content(
            (JwkSet = "application/json"),
            (JwkSet = "application/jwk-set+json"),
        )),
        (status = 400, description = "The query is not valid", body = error::Body),
        (status = 404, description = "The agent is unknown, is revoked, or its life has ended", body = error::Body),
        (status = 501, description = "Agent identity is not configured", body = error::Body),
    )
)]
pub async fn list(
    _caller: Caller<Authenticated>,
    State(app): State<App>,
    current: Current,
    headers: HeaderMap,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Error> {
    let query = Members::read(query, &["workload_id"])?;
    let workload_id = query.value("workload_id");
    let workload_id = workload_id.ok_or_else(|| Error::invalid_request("workload_id: is needed"))?;
    let set = JwkSet { keys: app.identity.encryption_keys(&current, workload_id).await? };
    let media = [(header::CONTENT_TYPE, HeaderValue::from_static(jwks::media(&headers)))];
    // Nobody is to encrypt to an agent that was revoked meanwhile.
    Ok((NO_STORE, (media, Json(set))).into_response())
}

impl From<encryption_keys::Error> for Error {
    fn from(error: encryption_keys::Error) -> Self {
        use encryption_keys::Error as E;
        let description = error.to_string();
        match error {
            E::NotConfigured(error) => error.into(),
            E::NotAnAgent | E::AnotherAgent => Self::forbidden(description),
            E::WorkloadId(_) | E::Key(_) => Self::invalid_request(description),
            E::NoAgent => Self::not_found(description),
            E::State(error) => error.into(),
            E::Damaged(corrupt) => corrupt.into(),
            E::KeyDamaged(error) => Self::internal(error),
        }
    }
}
