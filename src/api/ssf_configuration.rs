//! `GET /.well-known/ssf-configuration`: transmitter metadata (SSF 1.0 §7). Only existing endpoints are named.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::caller::{Caller, Public};
use super::error::Error;
use super::openapi::params::IfNoneMatch;
use super::{App, cache_control};
use crate::transmitter::streams::Method;

/// Transmitter configuration metadata (SSF 1.0 §7.1).
#[derive(Serialize, ToSchema)]
pub struct SsfConfiguration {
    /// `1_0`
    spec_version: &'static str,
    /// The `iss` of every delivered token.
    issuer: String,
    /// The JWK Set with the signing keys.
    jwks_uri: String,
    /// Push (RFC 8935) and poll (RFC 8936).
    delivery_methods_supported: Vec<&'static str>,
    /// Create, read, change and delete streams.
    configuration_endpoint: String,
    /// Read and set the status of a stream.
    status_endpoint: String,
    /// Add a subject again that was removed from a stream.
    add_subject_endpoint: String,
    /// Remove a subject from a stream.
    remove_subject_endpoint: String,
    /// Request a verification event.
    verification_endpoint: String,
    /// Bearer tokens (RFC 6749), and client certificates (RFC 8705), which creating a stream requires.
    authorization_schemes: Vec<AuthorizationScheme>,
    /// `ALL`: a stream covers every subject that was not removed from it.
    default_subjects: &'static str,
}

/// An authorization scheme (SSF 1.0 §7.1.1).
#[derive(Serialize, ToSchema)]
pub struct AuthorizationScheme {
    /// The specification of the scheme.
    spec_urn: &'static str,
}

/// Transmitter metadata.
#[utoipa::path(get, path = "", operation_id = "ssfConfiguration", params(IfNoneMatch), responses(
    (status = 200, description = "The metadata", body = SsfConfiguration),
    (status = 404, description = "The transmitter is not configured"),
))]
pub async fn get(
    _caller: Caller<Public>,
    State(app): State<App>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let base_url = app.streams.base_url().map_err(|error| Error::not_found(error.to_string()))?;
    let issuer = &app.issuer;
    let endpoint = |path: &str| format!("{base_url}/v1/signals/{path}");
    let metadata = SsfConfiguration {
        spec_version: "1_0",
        issuer: issuer.clone(),
        jwks_uri: format!("{issuer}/v1/identity/jwks"),
        delivery_methods_supported: vec![Method::Push.urn(), Method::Poll.urn()],
        configuration_endpoint: endpoint("stream"),
        status_endpoint: endpoint("status"),
        add_subject_endpoint: endpoint("subjects:add"),
        remove_subject_endpoint: endpoint("subjects:remove"),
        verification_endpoint: endpoint("verification"),
        authorization_schemes: ["urn:ietf:rfc:6749", "urn:ietf:rfc:8705"]
            .map(|spec_urn| AuthorizationScheme { spec_urn })
            .into(),
        default_subjects: "ALL",
    };
    let document = serde_json::to_string(&metadata).map_err(Error::internal)?;
    cache_control::answer(&headers, "application/json", document)
}
