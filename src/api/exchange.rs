//! `POST /v1/exchange/token`: wire types and translation (contract §4; RFC 8693 §2).

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::body::{self, Media};
use super::cache_control::NO_STORE;
use super::caller::{self, Caller};
use super::denials::Denied;
use super::error::Error;
use super::feed_activity::{self, Exchanged};
use super::idempotency;
use super::openapi::params::IdempotencyKey;
use crate::exchange::{self, ExchangeInput, ExecutionScope, RequestedConfirmation, RetryKey};
use crate::policy::Point;
use crate::text::values;
use crate::{json, limits};

/// A token exchange request (RFC 8693 §2.1). Unknown fields are ignored, except in `execution_scope`.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ExchangeRequest {
    /// The grant type of RFC 8693.
    #[schema(required = true, value_type = values::GrantType)]
    grant_type: Option<String>,
    /// The subject token, at most 16 KiB.
    #[schema(required = true, value_type = String, min_length = 1)]
    subject_token: Option<String>,
    /// The type of `subject_token`.
    #[schema(required = true, value_type = values::SubjectTokenType)]
    subject_token_type: Option<String>,
    /// Target trust domain or service URL; the default is the policy's for the subject.
    audience: Option<String>,
    /// Target as an absolute URI (RFC 8707), instead of `audience`.
    resource: Option<String>,
    /// Requested scope, space-separated; the default is everything that is granted.
    scope: Option<String>,
    /// JWT of the delegating agent.
    actor_token: Option<String>,
    /// The type of `actor_token`.
    #[schema(value_type = Option<values::SubjectTokenType>)]
    actor_token_type: Option<String>,
    /// The type of the minted token, which is a JWT in either case.
    #[schema(value_type = Option<values::RequestedTokenType>)]
    requested_token_type: Option<String>,
    /// Binds the token to one HTTP action.
    execution_scope: Option<ExecutionScope>,
    /// Binds the token to the caller's certificate (RFC 9201 §3.1, RFC 8705 §3).
    req_cnf: Option<RequestedConfirmation>,
}

/// The minted token (RFC 8693 §2.2.1).
#[derive(Serialize, ToSchema)]
pub struct ExchangeResponse {
    /// The WIMSE JWT.
    access_token: String,
    /// The type of the minted token.
    #[schema(value_type = values::IssuedTokenType)]
    issued_token_type: &'static str,
    /// How the token is used.
    #[schema(value_type = values::TokenType)]
    token_type: &'static str,
    /// Lifetime in seconds: 300, or 30 with an execution scope; on a retry, the rest of it.
    expires_in: u64,
    /// Granted scope.
    scope: String,
}

/// Exchanges a credential for a short-lived, narrower token.
#[utoipa::path(
    post, path = "", operation_id = "exchangeToken",
    request_body(content((ExchangeRequest = "application/json"), (ExchangeRequest = "application/x-www-form-urlencoded"))),
    params(IdempotencyKey),
    responses(
        (status = 200, description = "The minted token", body = ExchangeResponse),
        (status = 400, description = "The request or a credential is invalid; in forms also a denial"),
        (status = 403, description = "Denied by policy, delegation or narrowing"),
    )
)]
pub async fn post(
    caller: Caller<caller::Exchange>,
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    // An unread body closes the connection under a client that is still sending.
    let bytes = body::read(body, limits::BODY_BYTES_MAX).await?;
    let media = body::media(&headers, &[Media::Json, Media::Form])?;
    let key = idempotency::key(&headers)?;
    let retry = key.as_deref().map(|key| RetryKey { key, body: &bytes });
    let is_json = media == Media::Json;
    let input = if is_json { from_json(&bytes)? } else { from_form(&bytes)? };
    let kind = input.subject_token_type.clone();
    let (began, mut subject) = (app.clock.boot(), None);
    let (result, audience) = match exchange::ExchangeRequest::read(input) {
        Ok(request) => {
            (app.exchange.exchange(&request, &caller, retry, &mut subject).await, request.audience)
        }
        Err(error) => (Err(error), None),
    };
    if let Err(error) = &result
        && feed_activity::is_denial(error)
    {
        let denial = Denied {
            operation: "exchange",
            error,
            subject: subject.as_ref(),
            target: audience.as_deref(),
            policy: match error {
                exchange::Error::Denied(denial) => Some((Point::Exchange, denial)),
                _ => None,
            },
        };
        denial.keep(&app, &caller);
    }
    app.feed.activity(|| {
        let duration = app.clock.boot().saturating_sub(began);
        Exchanged { result: &result, subject, caller: caller.id(), audience, duration }.into()
    });
    let label = result.as_ref().map_or_else(exchange::Error::label, |_| "granted");
    app.metrics.exchanges.inc([kind_label(kind.as_deref()), label]);
    let minted = result.map_err(|error| if is_json { error.into() } else { Error::of_form(error) })?;
    tracing::info!(
        request_id = super::request_id::current(),
        jti = minted.jti,
        sub = minted.sub,
        via = (!minted.via.is_empty()).then(|| minted.via.join(" ")),
        "token minted"
    );
    let answer = ExchangeResponse {
        access_token: minted.access_token,
        issued_token_type: "urn:ietf:params:oauth:token-type:jwt",
        token_type: "Bearer",
        expires_in: minted.expires_in_secs,
        scope: minted.scope,
    };
    // RFC 6749 §5.1: "MUST include the HTTP Cache-Control response header field with no-store".
    Ok((NO_STORE, Json(answer)).into_response())
}

fn from_json(bytes: &[u8]) -> Result<ExchangeInput, Error> {
    let request: ExchangeRequest = json::read(bytes)?;
    Ok(ExchangeInput {
        grant_type: request.grant_type,
        subject_token: request.subject_token,
        subject_token_type: request.subject_token_type,
        audience: request.audience.into_iter().collect(),
        resource: request.resource.into_iter().collect(),
        scope: request.scope,
        actor_token: request.actor_token,
        actor_token_type: request.actor_token_type,
        requested_token_type: request.requested_token_type,
        execution_scope: request.execution_scope,
        req_cnf: request.req_cnf,
        actor_token_type_required: false,
    })
}

/// RFC 6749 §3.2: parameters without a value count as omitted, and only `audience` and `resource` may repeat (RFC 8693
/// §2.1). `execution_scope` and `req_cnf` are JSON texts.
fn from_form(bytes: &[u8]) -> Result<ExchangeInput, Error> {
    if std::str::from_utf8(bytes).is_err() {
        return Err(Error::invalid_request("body is not UTF-8"));
    }
    let mut input = ExchangeInput { actor_token_type_required: true, ..ExchangeInput::default() };
    let mut execution_scope = None;
    let mut req_cnf = None;
    for (name, value) in form_urlencoded::parse(bytes).filter(|(_, value)| !value.is_empty()) {
        if value.contains('\u{fffd}') {
            return Err(Error::invalid_request("body is not UTF-8"));
        }
        let single = match name.as_ref() {
            "audience" => {
                input.audience.push(value.into_owned());
                continue;
            }
            "resource" => {
                input.resource.push(value.into_owned());
                continue;
            }
            "grant_type" => &mut input.grant_type,
            "subject_token" => &mut input.subject_token,
            "subject_token_type" => &mut input.subject_token_type,
            "scope" => &mut input.scope,
            "actor_token" => &mut input.actor_token,
            "actor_token_type" => &mut input.actor_token_type,
            "requested_token_type" => &mut input.requested_token_type,
            "execution_scope" => &mut execution_scope,
            "req_cnf" => &mut req_cnf,
            _ => continue,
        };
        if single.replace(value.into_owned()).is_some() {
            return Err(Error::invalid_request(format!("{name}: must not be given twice")));
        }
    }
    input.execution_scope = execution_scope.map(|text| json::read(text.as_bytes())).transpose()?;
    input.req_cnf = req_cnf.map(|text| json::read(text.as_bytes())).transpose()?;
    Ok(input)
}

/// The subject token type as a bounded label.
fn kind_label(kind: Option<&str>) -> &'static str {
    match kind {
        Some("urn:ietf:params:oauth:token-type:jwt") => "jwt",
        Some("urn:svc:token-type:spiffe-svid") => "spiffe-svid",
        Some("urn:svc:token-type:agent-a2a") => "agent-a2a",
        _ => "unsupported",
    }
}
