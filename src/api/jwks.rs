//! `GET /v1/identity/jwks`: the public halves of every node's signing keys (RFC 7517 §5).

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::caller::{Caller, Public};
use super::error::Error;
use super::openapi::params::IfNoneMatch;
use super::{App, cache_control};
use crate::limits;

/// A JWK Set (RFC 7517 §5).
#[derive(Serialize, ToSchema)]
pub struct JwkSet {
    /// Public keys, each with `kty`, `use`, `alg`, `kid` and the fields of its type.
    pub(super) keys: Vec<serde_json::Map<String, serde_json::Value>>,
}

/// The public keys of this fabric's tokens and security events.
#[utoipa::path(get, path = "", operation_id = "jwks", params(IfNoneMatch), responses(
    (status = 200, description = "The keys", content((JwkSet = "application/json"), (JwkSet = "application/jwk-set+json"))),
    (status = 503, description = "The node has had no freshness lease for too long"),
))]
pub async fn get(
    _caller: Caller<Public>,
    State(app): State<App>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    // A disconnected node does not learn of tainted keys. One that was only suspended regains its lease at once.
    if !app.state.cluster().was_fresh_within(limits::JWKS_WITHOUT_LEASE_MAX)
        && app.state.fresh().await.is_err()
    {
        let limit = limits::JWKS_WITHOUT_LEASE_MAX.as_secs();
        let description = format!("no freshness lease for {limit} s: keys may have been tainted");
        return Err(Error::unavailable(description));
    }
    cache_control::answer(&headers, media(&headers), app.keyring.jwks(app.key_time()).to_string())
}

/// `application/jwk-set+json` if the client accepts it, else JSON (contract §4).
pub fn media(headers: &HeaderMap) -> &'static str {
    let is_accepted = headers
        .get_all(header::ACCEPT)
        .iter()
        .any(|value| value.to_str().is_ok_and(|value| value.contains("application/jwk-set+json")));
    if is_accepted { "application/jwk-set+json" } else { "application/json" }
}
