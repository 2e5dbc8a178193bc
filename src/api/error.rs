//! The error object, and the one map from errors to status and code (contract §1).

mod of_state;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::check_result::CheckResult;
use super::listener::Violation;
use super::openapi::values;
use super::text;
use crate::exchange;
use crate::policy::DenialKind;
use crate::transmitter::streams;
use crate::{cluster, identity, json, keyring, receiver};
use crate::{feed, revocation};

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

/// `Retry-After` when a quota of rows is used up: TTL buckets expire by the minute.
const FULL_RETRY_SECS: u32 = 60;

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

#[derive(Debug)]
struct FailedCheck {
    check: &'static str,
    checks: Vec<CheckResult>,
}

#[derive(Debug)]
pub struct Error {
    status: StatusCode,
    code: Code,
    description: String,
    retry_after_secs: Option<u32>,
    challenge: Option<Challenge>,
    failed: Option<Box<FailedCheck>>,
    /// For the log only.
    detail: Option<String>,
}

impl Error {
    pub fn new(status: StatusCode, code: Code, description: impl Into<String>) -> Self {
        Self {
            status,
            code,
            description: description.into(),
            retry_after_secs: None,
            challenge: None,
            failed: None,
            detail: None,
        }
    }

    /// 400 `invalid_request`.
    pub fn invalid_request(description: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Code::InvalidRequest, description)
    }

    /// 503 `server_error`, to be retried after a second.
    pub fn unavailable(description: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, Code::ServerError, description);
        Self { retry_after_secs: Some(1), ..error }
    }

    pub fn violation(violation: Violation) -> Self {
        Self::new(violation.status(), Code::InvalidRequest, violation.to_string())
    }

    /// 500 `server_error`; the detail goes to the log only.
    pub fn internal(detail: impl std::fmt::Display) -> Self {
        let error = Self::new(StatusCode::INTERNAL_SERVER_ERROR, Code::ServerError, "internal error");
        Self { detail: Some(detail.to_string()), ..error }
    }

    /// 501 `not_implemented`: a component is not configured.
    pub fn not_configured(description: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, Code::NotImplemented, description)
    }

    /// 404 `not_found`.
    pub fn not_found(description: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, Code::NotFound, description)
    }

    /// 408 `invalid_request`: the body did not arrive in time.
    pub fn too_slow(description: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, Code::InvalidRequest, description)
    }

    /// 403 `access_denied`.
    pub fn forbidden(description: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, Code::AccessDenied, description)
    }

    /// 401 `access_denied`: no credential was presented.
    pub fn unauthenticated(description: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::UNAUTHORIZED, Code::AccessDenied, description);
        Self { challenge: Some(Challenge::Missing), ..error }
    }

    /// 401 `access_denied`: the credential is invalid.
    pub fn invalid_bearer(description: impl Into<String>) -> Self {
        Self { challenge: Some(Challenge::InvalidToken), ..Self::unauthenticated(description) }
    }

    /// 401 `invalid_client`: HTTP Basic at the token endpoint.
    pub fn basic_authentication() -> Self {
        let description = "clients authenticate with a certificate (tls_client_auth), not with HTTP Basic";
        let error = Self::new(StatusCode::UNAUTHORIZED, Code::InvalidClient, description);
        Self { challenge: Some(Challenge::Basic), ..error }
    }

    /// 403 `access_denied`: the caller lacks a capability.
    pub fn insufficient(capability: &'static str) -> Self {
        let error = Self::forbidden(format!("the caller does not have the capability {capability}"));
        Self { challenge: Some(Challenge::InsufficientScope(capability)), ..error }
    }

    /// 403 `access_denied` with the check that the token in the request failed. No challenge: the caller itself is
    /// authenticated and authorized.
    pub fn failed_check(
        check: &'static str,
        checks: Vec<CheckResult>,
        description: impl Into<String>,
    ) -> Self {
        Self { failed: Some(Box::new(FailedCheck { check, checks })), ..Self::forbidden(description) }
    }

    /// 429 `access_denied` with `Retry-After`.
    pub fn too_many_requests(description: &str, retry_after_secs: u32) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, Code::AccessDenied, description);
        Self { retry_after_secs: Some(retry_after_secs), ..error }
    }

    pub fn description(&self) -> &str {
        &self.description
    }

    /// Whether the node failed, as opposed to the request being refused.
    pub fn is_of_server(&self) -> bool {
        self.status.is_server_error()
    }

    /// Adds a detail for the log.
    #[must_use]
    pub fn with_detail(self, detail: impl std::fmt::Display) -> Self {
        Self { detail: Some(detail.to_string()), ..self }
    }

    /// A refused exchange in JSON.
    #[must_use]
    pub fn of_exchange(error: &exchange::Error) -> Self {
        use exchange::Error as E;
        let description = error.to_string();
        let refusal = match error {
            E::UnsupportedGrantType => {
                Self::new(StatusCode::BAD_REQUEST, Code::UnsupportedGrantType, description)
            }
            E::Invalid { .. }
            | E::UnsupportedSubjectTokenType
            | E::UnsupportedActorTokenType
            | E::SeveralAudiences
            | E::SubjectToken(_)
            | E::ActorToken(_)
            | E::NonceSpent
            | E::TokenEnded => Self::invalid_request(description),
            E::TooMany(_) => Self::too_many_requests(&description, FULL_RETRY_SECS),
            E::IdempotencyKeyReused => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, Code::InvalidRequest, description)
            }
            E::ActorNotNamed
            | E::ActorLoop
            | E::DelegationDepthExhausted
            | E::ChainTooLong
            | E::LineageTooLong
            | E::CallerBlocked
            | E::Denied(_)
            | E::NothingGranted
            | E::BlastRadius => Self::new(StatusCode::FORBIDDEN, Code::AccessDenied, description),
            E::IssuerUnavailable
            | E::PolicyTimedOut(_)
            | E::NoPolicy
            | E::CannotSign(_)
            | E::NotBootstrapped
            | E::Stale(_)
            | E::Write(_) => Self::unavailable(description),
            E::Internal(source) => Self::internal(source),
        };
        match source_of(error) {
            Some(source) => refusal.with_detail(source),
            None => refusal,
        }
    }

    /// A refused exchange in a form: policy and scope refusals are 400 with the codes of RFC 8693 and RFC 6749.
    #[must_use]
    pub fn of_form_exchange(error: &exchange::Error) -> Self {
        use exchange::Error as E;
        let code = match error {
            E::Denied(denial) if denial.kind == DenialKind::Audience => Code::InvalidTarget,
            E::SeveralAudiences => Code::InvalidTarget,
            E::NothingGranted => Code::InvalidScope,
            // RFC 8693 §2.2.2: a subject or actor token that is "unacceptable based on policy"
            E::ActorNotNamed
            | E::ActorLoop
            | E::DelegationDepthExhausted
            | E::ChainTooLong
            | E::LineageTooLong => Code::InvalidRequest,
            E::Denied(_) | E::BlastRadius => Code::AccessDenied,
            _ => return Self::of_exchange(error),
        };
        Self { status: StatusCode::BAD_REQUEST, code, ..Self::of_exchange(error) }
    }
}

fn source_of(error: &exchange::Error) -> Option<String> {
    if let exchange::Error::Denied(denial) | exchange::Error::PolicyTimedOut(denial) = error {
        return denial.detail.clone();
    }
    std::error::Error::source(error).map(ToString::to_string)
}

impl From<json::Error> for Error {
    fn from(error: json::Error) -> Self {
        Self::invalid_request(text::printable(&error.to_string()))
    }
}

impl From<cluster::Corrupt> for Error {
    fn from(error: cluster::Corrupt) -> Self {
        Self::internal(error)
    }
}

impl From<identity::Error> for Error {
    fn from(error: identity::Error) -> Self {
        use identity::Error as E;
        let description = error.to_string();
        let refusal = match &error {
            E::NotConfigured => Self::not_configured(description),
            E::Invalid { .. } => Self::invalid_request(description),
            E::UnknownAgent => Self::not_found(description),
            E::TooManyAgents => Self::new(StatusCode::CONFLICT, Code::InvalidRequest, description),
            E::TooManyIdempotencyKeys => Self::too_many_requests(&description, FULL_RETRY_SECS),
            E::IdempotencyKeyReused => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, Code::InvalidRequest, description)
            }
            E::ParentUnknown
            | E::ParentRevoked
            | E::ParentEnded
            | E::ParentTerminal
            | E::ChainTooLong
            | E::DepthExceedsParent { .. }
            | E::CapabilityExceedsParent { .. }
            | E::BlastRadiusExceedsParent { .. }
            | E::Denied(_)
            | E::NothingGranted
            | E::BlastRadius
            | E::NotAnIdentityToken
            | E::Revoked
            | E::RenewedTooOften
            | E::CallerBlocked
            | E::Ended => Self::forbidden(description),
            E::PolicyTimedOut(_)
            | E::NoPolicy
            | E::CannotSign(_)
            | E::NotBootstrapped
            | E::Stale(_)
            | E::NotCurrent(_)
            | E::Write(_) => Self::unavailable(description),
            E::Internal(source) => Self::internal(source),
        };
        let detail = match &error {
            E::Denied(denial) | E::PolicyTimedOut(denial) => denial.detail.clone(),
            _ => std::error::Error::source(&error).map(ToString::to_string),
        };
        Self { detail, ..refusal }
    }
}

impl From<revocation::Error> for Error {
    fn from(error: revocation::Error) -> Self {
        use revocation::Error as E;
        let description = error.to_string();
        match error {
            E::Invalid { .. } | E::NotOne => Self::invalid_request(description),
            E::UnknownAgent | E::UnknownKey | E::UnknownBlock => Self::not_found(description),
            E::Busy => Self::unavailable(description),
            E::State(error) => error.into(),
        }
    }
}

/// A refused security event in the JSON form.
impl From<receiver::Error> for Error {
    fn from(error: receiver::Error) -> Self {
        use receiver::Error as E;
        let description = error.to_string();
        let refusal = match &error {
            E::NotConfigured | E::NoRule => Self::not_configured(description),
            E::Json(_) | E::Set(_) | E::Invalid { .. } => Self::invalid_request(description),
            E::JtiReused => Self::new(StatusCode::CONFLICT, Code::InvalidRequest, description),
            E::CallerRefused
            | E::SpeakerNotAllowed
            | E::SpeakerRevoked
            | E::OutsideAuthority { .. }
            | E::BlocksOperator
            | E::Denied(_) => Self::forbidden(description),
            E::Quota { retry_after_secs } => Self::too_many_requests(&description, *retry_after_secs),
            E::PolicyTimedOut(_)
            | E::Stale(_)
            | E::TooManyRevocations
            | E::IssuerUnavailable
            | E::NoPolicy
            | E::Write(_) => Self::unavailable(description),
            E::Internal(source) => Self::internal(source),
        };
        let detail = match &error {
            E::Denied(denial) | E::PolicyTimedOut(denial) => denial.detail.clone(),
            _ => None,
        };
        Self { detail: refusal.detail.clone().or(detail), ..refusal }
    }
}

impl From<streams::Error> for Error {
    fn from(error: streams::Error) -> Self {
        use streams::Error as E;
        let description = error.to_string();
        match error {
            E::NotConfigured => Self::not_configured(description),
            E::Invalid { .. } => Self::invalid_request(description),
            E::State(error) => error.into(),
        }
    }
}

impl From<feed::Error> for Error {
    fn from(error: feed::Error) -> Self {
        use feed::Error as E;
        let description = error.to_string();
        match error {
            E::MalformedId | E::UnknownType => Self::invalid_request(description),
            E::TooManySubscribers | E::NotNow => Self::unavailable(description),
            E::TooManySubscribersOfCaller => Self::too_many_requests(&description, 1),
            E::Damaged(corrupt) => Self::internal(corrupt),
        }
    }
}

impl From<keyring::Error> for Error {
    fn from(error: keyring::Error) -> Self {
        match error {
            keyring::Error::State(error) => error.into(),
            keyring::Error::NoUsableKey(_) => Self::unavailable(error.to_string()),
            keyring::Error::DoesNotTransmit(_) | keyring::Error::SuccessorTooYoung { .. } => {
                Self::new(StatusCode::CONFLICT, Code::InvalidRequest, error.to_string())
            }
            other => Self::internal(other),
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let request_id = super::request_id::current();
        if let Some(detail) = &self.detail {
            tracing::info!(request_id, detail, description = self.description, "refused");
        }
        let body = Body {
            error: self.code,
            error_description: text::printable(&self.description),
            check: self.failed.as_ref().map(|failed| failed.check),
            checks: self.failed.map(|failed| failed.checks),
            request_id,
        };
        let mut response = (self.status, Json(body)).into_response();
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
        if let Some(secs) = self.retry_after_secs {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(secs));
        }
        response
    }
}
