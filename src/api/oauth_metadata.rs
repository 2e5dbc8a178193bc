//! `GET /.well-known/oauth-authorization-server`: who we are (RFC 8414). Only what answers is named.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::caller::{Caller, Public};
use super::error::Error;
use super::{App, cache_control};
use crate::exchange::GRANT_TYPE;

/// Authorization server metadata (RFC 8414 §2).
#[derive(Serialize, ToSchema)]
pub struct Metadata {
    /// Our `iss`.
    issuer: String,
    /// Where tokens are exchanged.
    token_endpoint: String,
    /// Where the keys are.
    jwks_uri: String,
    /// Token exchange only.
    grant_types_supported: Vec<&'static str>,
    /// Required by RFC 8414; empty, because there is no authorization endpoint.
    response_types_supported: Vec<&'static str>,
    /// `tls_client_auth` (RFC 8705 §2.1), or `none` in development mode.
    token_endpoint_auth_methods_supported: Vec<&'static str>,
    /// Whether tokens are bound to the caller's certificate on request (RFC 8705 §3.3).
    tls_client_certificate_bound_access_tokens: bool,
}

/// Describes this fabric as an authorization server.
#[utoipa::path(
    get,
    path = "/.well-known/oauth-authorization-server",
    operation_id = "authorizationServerMetadata",
    responses(
        (status = 200, description = "The metadata", body = Metadata),
        (status = 304, description = "Not changed since the ETag"),
    )
)]
pub async fn get(
    _caller: Caller<Public>,
    State(app): State<App>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let issuer = &app.issuer;
    let metadata = Metadata {
        issuer: issuer.clone(),
        token_endpoint: format!("{issuer}/v1/exchange/token"),
        jwks_uri: format!("{issuer}/v1/identity/jwks"),
        grant_types_supported: vec![GRANT_TYPE],
        response_types_supported: Vec::new(),
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
