//! `/v1/identity/agent/encryption-key`: the keys to which others encrypt for an agent or another subject.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::App;
use super::cache_control::NO_STORE;
use super::caller::{Authenticated, Caller, OwnToken};
use super::error::{self, Error};
use super::jwks::{self, JwkSet};
use super::paging::Members;
use super::{agents, body, idempotency};
use crate::identity::{self, encryption_keys};
use crate::state::LinearizableRead;
use crate::{json, limits};

/// A key to be registered. Unknown members are ignored.
#[derive(Deserialize, ToSchema)]
pub struct RegisterEncryptionKey {
    /// The subject of the bearer token.
    workload_id: String,
    /// A public JWK (RFC 7517): `kty` EC on P-256, P-384 or P-521, OKP on X25519, or RSA from 2048 bits;
    /// `use` is `enc` or absent, `alg` of the ECDH-ES family, RSA-OAEP-256, -384 or -512, or absent.
    #[schema(value_type = Object)]
    key: Value,
}

/// A key that is registered.
#[derive(Serialize, ToSchema)]
pub struct RegisteredEncryptionKey {
    /// Whose it is.
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

/// Registers an encryption key of the subject whose own token is the bearer: an agent's identity token, or a token
/// without an actor whose `client_id` is its `sub`. The same key again, perhaps with another `alg`, replaces it. A key of
/// a subject that is no agent of this fabric ends 30 days after its last registration.
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
        (status = 403, description = "The bearer is not this subject's own, or the agent is revoked or has ended", body = error::Body),
        (status = 404, description = "The agent is unknown", body = error::Body),
        (status = 422, description = "The Idempotency-Key came with another request", body = error::Body),
        (status = 429, description = "The subject has too many keys, or its trust domain too many subjects with some", body = error::Body),
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

/// The encryption keys of an agent, or of another subject that has registered some.
#[utoipa::path(
    get,
    path = "/v1/identity/agent/encryption-key",
    operation_id = "encryptionKeys",
    params(("workload_id" = String, Query, description = "The subject")),
    responses(
        (status = 200, description = "Its keys; none if it has registered none", content(
            (JwkSet = "application/json"),
            (JwkSet = "application/jwk-set+json"),
        )),
        (status = 400, description = "The query is not valid", body = error::Body),
        (status = 404, description = "The agent is unknown, revoked or at its end; or the subject has no key", body = error::Body),
        (status = 501, description = "Agent identity is not configured", body = error::Body),
    )
)]
pub async fn list(
    _caller: Caller<Authenticated>,
    State(app): State<App>,
    current: LinearizableRead,
    headers: HeaderMap,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Error> {
    let query = Members::read(query, &["workload_id"])?;
    let workload_id = needed(&query, "workload_id")?;
    let set = JwkSet { keys: app.identity.encryption_keys(&current, workload_id).await? };
    let media = [(header::CONTENT_TYPE, HeaderValue::from_static(jwks::media(&headers)))];
    // Nobody is to encrypt to an agent that was revoked meanwhile.
    Ok((NO_STORE, (media, Json(set))).into_response())
}

/// Removes an encryption key, for its subject's own bearer or for the caller that had the agent issued.
#[utoipa::path(
    delete,
    path = "/v1/identity/agent/encryption-key",
    operation_id = "removeEncryptionKey",
    params(
        ("workload_id" = String, Query, description = "The subject"),
        ("kid" = String, Query, description = "The key, by its RFC 7638 thumbprint"),
        ("Idempotency-Key" = Option<String>, Header, description = "The same request again has the same outcome"),
    ),
    responses(
        (status = 204, description = "It is removed"),
        (status = 400, description = "The query is not valid", body = error::Body),
        (status = 403, description = "Neither the subject's own bearer, nor the caller that had the agent issued", body = error::Body),
        (status = 404, description = "The agent is unknown, or has no such key", body = error::Body),
        (status = 422, description = "The Idempotency-Key came with another request", body = error::Body),
        (status = 503, description = "Not possible now", body = error::Body),
    )
)]
pub async fn remove(
    caller: Caller<Authenticated>,
    State(app): State<App>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, _) = request.into_parts();
    let query = Members::read(query, &["workload_id", "kid"])?;
    let workload_id = needed(&query, "workload_id")?;
    let kid = needed(&query, "kid")?.to_owned();
    let idempotency =
        idempotency::idempotency(&parts.headers, caller.id(), (&parts.method, &parts.uri), b"")?;
    let who = identity::Caller { idempotency, ..agents::who(&caller) };
    app.identity.remove_encryption_key(caller.credential(), &who, workload_id, kid.clone()).await?;
    let request_id = super::middleware::current_request_id();
    tracing::info!(request_id, kid, workload_id, caller = caller.id(), "encryption key removed");
    Ok((StatusCode::NO_CONTENT, NO_STORE).into_response())
}

fn needed<'q>(query: &'q Members, name: &'static str) -> Result<&'q str, Error> {
    query.value(name).ok_or_else(|| Error::invalid_request(format!("{name}: is needed")))
}

impl From<encryption_keys::Error> for Error {
    fn from(error: encryption_keys::Error) -> Self {
        use encryption_keys::Error as E;
        let description = error.to_string();
        match error {
            E::NotConfigured(error) => error.into(),
            E::NotItsOwn | E::AnotherSubject | E::NotItsIssuer => Self::forbidden(description),
            E::WorkloadId(_) | E::Key(_) => Self::invalid_request(description),
            E::NoAgent | E::NoKey => Self::not_found(description),
            E::State(error) => error.into(),
            E::Damaged(corrupt) => corrupt.into(),
            E::KeyDamaged(error) => Self::internal(error),
        }
    }
}
