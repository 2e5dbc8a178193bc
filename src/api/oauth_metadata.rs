//! `GET /.well-known/oauth-authorization-server`: authorization server metadata (RFC 8414). Only existing endpoints are
//! named.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::caller::{Caller, Public};
use super::error::Error;
use super::openapi::params::IfNoneMatch;
use super::{App, cache_control};
use crate::exchange::GRANT_TYPE;

/// Authorization server metadata (RFC 8414 §2).
#[derive(Serialize, ToSchema)]
pub struct Metadata {
    /// The `iss` of the tokens.
    issuer: String,
    /// The token endpoint, which refuses authorization requests: there is no authorization endpoint, but clients require
    /// the field.
    authorization_endpoint: String,
    /// The token exchange endpoint.
    token_endpoint: String,
    /// The JWK Set.
    jwks_uri: String,
    /// Token exchange only.
    grant_types_supported: Vec<&'static str>,
    /// `none`: no authorization response contains a code or a token. Clients require a value.
    response_types_supported: Vec<&'static str>,
    /// `tls_client_auth` (RFC 8705 §2.1), or `none` in development mode.
    token_endpoint_auth_methods_supported: Vec<&'static str>,
    /// Whether tokens are bound to the caller's certificate on request (RFC 8705 §3.3).
    tls_client_certificate_bound_access_tokens: bool,
}

/// Authorization server metadata.
#[utoipa::path(get, path = "", operation_id = "authorizationServerMetadata", params(IfNoneMatch), responses(
    (status = 200, description = "The metadata", body = Metadata),
))]
pub async fn get(
    _caller: Caller<Public>,
    State(app): State<App>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let issuer = &app.issuer;
    let metadata = Metadata {
        issuer: issuer.clone(),
        authorization_endpoint: format!("{issuer}/v1/exchange/token"),
        token_endpoint: format!("{issuer}/v1/exchange/token"),
        jwks_uri: format!("{issuer}/v1/identity/jwks"),
        grant_types_supported: vec![GRANT_TYPE],
        response_types_supported: vec!["none"],
        token_endpoint_auth_methods_supported: vec![if app.requires_tls {
            "tls_client_auth"
        } else {
            "none"
        }],
        tls_client_certificate_bound_access_tokens: app.requires_tls,
    };
    let document = serde_json::to_string(&metadata).map_err(Error::internal)?;
    cache_control::answer(&headers, "application/json", document)
}
