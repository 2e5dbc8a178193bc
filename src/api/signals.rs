//! `POST /v1/signals/events`: wire types and translation, in two forms (contract §6; RFC 8935 §2).

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::App;
use super::awaited;
use super::body::{self, Media};
use super::cache_control::NO_STORE;
use super::caller::{Caller, SendSignals};
use super::denials::Denied;
use super::error::{self, Error, Refusal, Refused as _};
use super::text;
use crate::limits;
use crate::policy::Point;
use crate::receiver::{self, Form, Received, RejectedSignal};
use crate::state::{self, CallContext};
use crate::text::values;

/// A security event token as a JSON object. Unknown fields are ignored.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct SecurityEventToken {
    /// A configured issuer for which the caller may send.
    iss: String,
    /// Unique per `iss`.
    jti: String,
    /// Seconds since the Unix epoch, at most 60 s ahead and 24 h old.
    iat: i64,
    /// This fabric.
    aud: String,
    /// The subject identifier: `format` is `spiffe_id`, `uri`, `email`, `iss_sub`, `opaque`, `jwt_id`, `complex` or
    /// `aliases`; other known formats are recorded without effect.
    sub_id: Map<String, Value>,
    /// The security events by event type, at least one.
    events: Map<String, Value>,
    /// Transaction identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    txn: Option<String>,
}

/// The result. Once it is sent, no node accepts credentials that the token revoked.
#[derive(Serialize, ToSchema)]
pub struct SignalAnswer {
    /// `duplicate`: the issuer sent the same token before; `ignored`: it has no effect.
    #[schema(value_type = values::SignalStatus)]
    status: &'static str,
}

/// The refusal of a signed token (RFC 8935 §2.3).
#[derive(Serialize, ToSchema)]
pub struct SetError {
    /// The error code.
    #[schema(value_type = values::SetErrorCode)]
    err: &'static str,
    /// Human-readable: printable ASCII.
    description: String,
}

/// The body of a 400, by the form of the request.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only described in OpenAPI")]
pub enum SignalRefusal {
    /// For the JSON object.
    Object(error::Body),
    /// For the signed token.
    Signed(SetError),
}

/// Receives a security event token.
///
/// The JSON object requires a client certificate that is configured to send for `iss`; a signed token is accepted from
/// any caller and verified with the keys of `iss`. `Idempotency-Key` is ignored: a token with the same `jti` and claims
/// is answered `duplicate`.
#[utoipa::path(
    post, path = "", operation_id = "receiveSecurityEvent",
    request_body(content((SecurityEventToken = "application/json"), (String = "application/secevent+jwt"))),
    responses(
        (status = 202, description = "No node accepts credentials that the token revokes. For a signed token the body is empty", body = SignalAnswer, headers(("Svc-Federation" = String, description = "The awaited peer fabrics: `us=enforced, ap=lapsed`"))),
        (status = 400, description = "The token is invalid, or a signed token is refused", body = SignalRefusal),
        (status = 403, description = "The caller may not send signals; for the JSON object also: not for `iss`, `iss` has no authority over the subject, or denied by policy"),
        (status = 409, description = "The issuer used the `jti` for another token"),
        (status = 429, description = "The revocation quota of the issuer is used up, or the rate limit of the caller"),
        (status = 501, description = "No issuer of signals is configured, or policy has no rule for signals"),
        (status = 503, description = "Temporarily unavailable, or the outcome is unknown"),
    )
)]
pub async fn receive(
    caller: Caller<SendSignals>,
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    let bytes = body::read(body, limits::BODY_BYTES_MAX).await?;
    let media = body::media(&headers, &[Media::Json, Media::SecurityEvent])?;
    let is_signed = media == Media::SecurityEvent;
    let form = if is_signed { Form::Signed(&bytes) } else { Form::Object(&bytes) };
    let received = match app.receiver.receive(form, &caller).await {
        Ok(received) => received,
        Err(refused) => {
            keep_denied(&app, &caller, &refused.error);
            log_refused(&refused, caller.id());
            return if is_signed { refusal_of_signed(refused.error) } else { Err(refused.error.into()) };
        }
    };
    log_received(&received, caller.id());
    // RFC 8935 §2.2: "a response with HTTP Status Code 202" and "an empty response body".
    if is_signed {
        return Ok((StatusCode::ACCEPTED, awaited::header(&received.awaited), NO_STORE).into_response());
    }
    let answer = SignalAnswer { status: received.status.into_str() };
    Ok((StatusCode::ACCEPTED, NO_STORE, awaited::header(&received.awaited), Json(answer)).into_response())
}

/// Keeps a denial for an explanation.
fn keep_denied(app: &App, caller: &CallContext, error: &receiver::Error) {
    if matches!(error.refusal(), Refusal::Denied) {
        let policy = match error {
            receiver::Error::Denied(denial) => Some((Point::Signals, denial)),
            _ => None,
        };
        Denied { operation: "signals", error, subject: None, target: None, policy }.keep(app, caller);
    }
}

/// RFC 8935 §2.3: a refused token is 400 with a code; other errors are as on any route.
fn refusal_of_signed(error: receiver::Error) -> Result<Response, Error> {
    let Some(err) = error::set_error_code(&error) else { return Err(error.into()) };
    let answer = SetError { err, description: text::printable(&error.to_string()) };
    let language = [(header::CONTENT_LANGUAGE, HeaderValue::from_static("en"))];
    Ok((StatusCode::BAD_REQUEST, NO_STORE, language, Json(answer)).into_response())
}

fn log_received(received: &Received, caller: Option<&str>) {
    let request_id = super::request_id::current();
    let (iss, jti) = (text::printable(&received.iss), text::printable(&received.jti));
    let decided = received.decided.as_ref();
    if let Some(decided) = decided.filter(|decided| !decided.unaccepted.is_empty()) {
        let fields = decided.unaccepted.join(" ");
        tracing::warn!(
            request_id,
            iss,
            jti,
            fields,
            "the subject of the signal matches no credential of this fabric"
        );
    }
    tracing::info!(
        request_id,
        iss,
        jti,
        caller,
        status = received.status.into_str(),
        effects = received.effects,
        events = decided.map(|decided| decided.events.join(" ")),
        format = decided.map(|decided| decided.format.as_str()),
        txn = decided.and_then(|decided| decided.txn.as_deref()).map(text::printable),
        policy = decided.map(|decided| decided.policy_digest.as_str()),
        passed_on = decided.map(|decided| decided.may_relay),
        "signal received"
    );
}

/// Logs refusals that may be an attack or a misconfiguration: a sender beyond its authority or quota, or a wrong key.
/// Their number is bounded by the caller's rate limit.
fn log_refused(refused: &RejectedSignal, caller: Option<&str>) {
    use receiver::Error as E;
    let is_suspect = match &refused.error {
        E::SpeakerNotAllowed
        | E::SpeakerRevoked
        | E::OutsideAuthority { .. }
        | E::BlocksOperator
        | E::State(state::Error::Refused(state::Refusal::JtiReused))
        | E::Denied(_)
        | E::Quota { .. } => true,
        E::Set(error) => matches!(error.err(), "authentication_failed" | "invalid_key" | "invalid_issuer"),
        _ => false,
    };
    let detail = match &refused.error {
        E::Denied(denial) => denial.detail.as_deref(),
        _ => None,
    };
    if is_suspect {
        tracing::warn!(
            request_id = super::request_id::current(),
            iss = text::printable(&refused.iss),
            jti = text::printable(&refused.jti),
            caller,
            reason = text::printable(&refused.error.to_string()),
            detail,
            "signal refused"
        );
    }
}
