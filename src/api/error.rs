//! The error object, and the one map from refusals to status and code (contract §1).

mod refused;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::check_result::CheckResult;
use super::listener::Violation;
use super::text;
use crate::limits;
use crate::text::values;

pub use self::refused::{Refused, set_error_code};

/// The description of a fault of this node.
const INTERNAL: &str = "internal error";

/// Error codes of the specification, and those of RFC 8693 for form requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// Syntax, a missing or invalid field, an invalid credential.
    InvalidRequest,
    /// Wrong `grant_type`.
    UnsupportedGrantType,
    /// Denied by policy, or the caller lacks a capability.
    AccessDenied,
    /// Internal error, or temporarily unavailable.
    ServerError,
    /// The component is not configured.
    NotImplemented,
    /// Unknown route or identifier.
    NotFound,
    /// The route does not support the method.
    MethodNotAllowed,
    /// Form requests only (RFC 8693 §2.2.2).
    InvalidTarget,
    /// Form requests only (RFC 6749 §5.2).
    InvalidScope,
    /// Client authentication that the token endpoint does not support (RFC 6749 §5.2).
    InvalidClient,
}

/// The error object.
#[derive(Debug, Serialize, ToSchema)]
pub struct Body {
    /// The code.
    pub error: Code,
    /// Human-readable: printable ASCII without secrets and tokens.
    pub error_description: String,
    /// The check that the token failed (`/v1/mcp/verify` only).
    #[schema(value_type = Option<values::Check>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<&'static str>,
    /// The checks that were run, in order; the last one failed (`/v1/mcp/verify` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checks: Option<Vec<CheckResult>>,
    /// The value of the header `X-Request-Id`.
    pub request_id: String,
}

/// A kind of refusal: one row of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request breaks a rule.
    Invalid,
    /// The head breaks a rule of the listener.
    Violation(StatusCode),
    UnsupportedGrantType,
    /// A refused form, with a code of RFC 6749 or RFC 8693.
    Form(Code),
    /// No valid credential.
    Unauthenticated,
    /// HTTP Basic at the token endpoint.
    InvalidClient,
    Denied,
    NotFound,
    MethodNotAllowed,
    /// The body did not arrive in time.
    TooSlow,
    /// Against the stored state, or a quota of what the caller owns.
    Conflict,
    PreconditionFailed,
    TooLarge,
    UnsupportedMedia,
    /// The `Idempotency-Key` was used with another request.
    KeyReused,
    /// A rate or quota that recovers by itself.
    TooMany {
        retry_after_secs: u32,
    },
    /// The text goes to the log only.
    Internal,
    /// A component is not configured.
    NotConfigured,
    /// To be retried after a second.
    Unavailable,
    /// A peer fabric has not responded lately, or its ledger is not known well enough; to be retried later.
    PeerUnjudged,
}

impl Refusal {
    const fn status_and_code(self) -> (StatusCode, Code) {
        use StatusCode as S;
        match self {
            Self::Invalid => (S::BAD_REQUEST, Code::InvalidRequest),
            Self::Violation(status) => (status, Code::InvalidRequest),
            Self::UnsupportedGrantType => (S::BAD_REQUEST, Code::UnsupportedGrantType),
            Self::Form(code) => (S::BAD_REQUEST, code),
            Self::Unauthenticated => (S::UNAUTHORIZED, Code::AccessDenied),
            Self::InvalidClient => (S::UNAUTHORIZED, Code::InvalidClient),
            Self::Denied => (S::FORBIDDEN, Code::AccessDenied),
            Self::NotFound => (S::NOT_FOUND, Code::NotFound),
            Self::MethodNotAllowed => (S::METHOD_NOT_ALLOWED, Code::MethodNotAllowed),
            Self::TooSlow => (S::REQUEST_TIMEOUT, Code::InvalidRequest),
            Self::Conflict => (S::CONFLICT, Code::InvalidRequest),
            Self::PreconditionFailed => (S::PRECONDITION_FAILED, Code::InvalidRequest),
            Self::TooLarge => (S::PAYLOAD_TOO_LARGE, Code::InvalidRequest),
            Self::UnsupportedMedia => (S::UNSUPPORTED_MEDIA_TYPE, Code::InvalidRequest),
            Self::KeyReused => (S::UNPROCESSABLE_ENTITY, Code::InvalidRequest),
            Self::TooMany { .. } => (S::TOO_MANY_REQUESTS, Code::AccessDenied),
            Self::Internal => (S::INTERNAL_SERVER_ERROR, Code::ServerError),
            Self::NotConfigured => (S::NOT_IMPLEMENTED, Code::NotImplemented),
            Self::Unavailable | Self::PeerUnjudged => (S::SERVICE_UNAVAILABLE, Code::ServerError),
        }
    }

    const fn retry_after_secs(self) -> Option<u32> {
        match self {
            Self::TooMany { retry_after_secs } => Some(retry_after_secs),
            Self::Unavailable => Some(1),
            Self::PeerUnjudged => Some(limits::PEER_FABRIC_UNJUDGED_RETRY_SECS),
            _ => None,
        }
    }
}

/// The challenge of `WWW-Authenticate` (RFC 6750 §3).
#[derive(Clone, Copy, Debug)]
enum Challenge {
    /// No credential: "SHOULD NOT include an error code".
    Missing,
    InvalidToken,
    /// The credential lacks this capability.
    InsufficientScope(&'static str),
    /// HTTP Basic was used. RFC 6749 §5.2: the challenge is that of "the authentication scheme used by the client".
    Basic,
}

/// The check that a token in the request failed. It causes no challenge: the caller itself is authenticated
/// and authorized.
#[derive(Debug)]
pub struct FailedCheck {
    check: &'static str,
    checks: Vec<CheckResult>,
}

#[derive(Debug)]
pub struct Error {
    refusal: Refusal,
    description: String,
    challenge: Option<Challenge>,
    failed: Option<Box<FailedCheck>>,
    /// For the log only.
    detail: Option<String>,
}

impl Error {
    pub fn new(refusal: Refusal, description: impl Into<String>) -> Self {
        Self { refusal, description: description.into(), challenge: None, failed: None, detail: None }
    }

    pub fn invalid_request(description: impl Into<String>) -> Self {
        Self::new(Refusal::Invalid, description)
    }

    pub fn unavailable(description: impl Into<String>) -> Self {
        Self::new(Refusal::Unavailable, description)
    }

    pub fn not_found(description: impl Into<String>) -> Self {
        Self::new(Refusal::NotFound, description)
    }

    pub fn forbidden(description: impl Into<String>) -> Self {
        Self::new(Refusal::Denied, description)
    }

    pub fn violation(violation: Violation) -> Self {
        Self::new(Refusal::Violation(violation.status()), violation.to_string())
    }

    /// The detail goes to the log only.
    pub fn internal(detail: impl std::fmt::Display) -> Self {
        Self::new(Refusal::Internal, INTERNAL).with_detail(detail)
    }

    /// No credential was presented.
    pub fn unauthenticated(description: impl Into<String>) -> Self {
        Self::new(Refusal::Unauthenticated, description).with_challenge(Challenge::Missing)
    }

    /// The credential is invalid.
    pub fn invalid_bearer(description: impl Into<String>) -> Self {
        Self::new(Refusal::Unauthenticated, description).with_challenge(Challenge::InvalidToken)
    }

    /// HTTP Basic at the token endpoint.
    pub fn basic_authentication() -> Self {
        let description = "clients authenticate with a certificate (tls_client_auth), not with HTTP Basic";
        Self::new(Refusal::InvalidClient, description).with_challenge(Challenge::Basic)
    }

    /// The caller lacks a capability.
    pub fn insufficient(capability: &'static str) -> Self {
        Self::forbidden(format!("the caller does not have the capability {capability}"))
            .with_challenge(Challenge::InsufficientScope(capability))
    }

    pub fn description(&self) -> &str {
        &self.description
    }

    /// Whether the node failed, as opposed to the request being refused.
    pub fn is_of_server(&self) -> bool {
        self.refusal.status_and_code().0.is_server_error()
    }

    /// Adds a detail for the log.
    #[must_use]
    pub fn with_detail(self, detail: impl std::fmt::Display) -> Self {
        Self { detail: Some(detail.to_string()), ..self }
    }

    fn with_challenge(self, challenge: Challenge) -> Self {
        Self { challenge: Some(challenge), ..self }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let request_id = super::request_id::current();
        if let Some(detail) = &self.detail {
            tracing::info!(request_id, detail, description = self.description, "refused");
        }
        let (status, code) = self.refusal.status_and_code();
        let body = Body {
            error: code,
            error_description: text::printable(&self.description),
            check: self.failed.as_ref().map(|failed| failed.check),
            checks: self.failed.map(|failed| failed.checks),
            request_id,
        };
        let mut response = (status, Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(challenge) = self.challenge {
            let value = match challenge {
                Challenge::Basic => "Basic realm=\"trust-fabric\"".to_owned(),
                Challenge::Missing => "Bearer realm=\"trust-fabric\"".to_owned(),
                Challenge::InvalidToken => {
                    "Bearer realm=\"trust-fabric\", error=\"invalid_token\"".to_owned()
                }
                Challenge::InsufficientScope(scope) => {
                    format!("Bearer realm=\"trust-fabric\", error=\"insufficient_scope\", scope=\"{scope}\"")
                }
            };
            headers.extend(HeaderValue::try_from(value).ok().map(|value| (header::WWW_AUTHENTICATE, value)));
        }
        if let Some(secs) = self.refusal.retry_after_secs() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(secs));
        }
        response
    }
}
