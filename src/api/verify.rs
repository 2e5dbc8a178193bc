//! `POST /v1/mcp/verify`: wire types and translation (contract §5).

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::cache_control::NO_STORE;
use super::caller::{Caller, VerifyTools};
use super::check_result::CheckResult;
use super::denials::Denied;
use super::error::Error;
use super::openapi::params::IdempotencyKey;
use super::{App, body, feed_activity};
use crate::text::values;
use crate::tools::verify::{self, Verdict, VerifyInput};
use crate::{json, limits};

/// The result of a verification that passed.
#[derive(Serialize, ToSchema)]
pub struct VerifyResponse {
    /// Always true: a token that fails is answered 403.
    verified: bool,
    /// The tool.
    tool_id: String,
    /// The protocol of the call.
    #[schema(value_type = values::Protocol)]
    protocol: &'static str,
    /// `sub`.
    subject: String,
    /// The current actor.
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<String>,
    /// `iss`.
    issuer: String,
    /// `jti`.
    jti: String,
    /// Correlates a delegation chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    txn: Option<String>,
    /// The capabilities of the token.
    capabilities: Vec<String>,
    /// The blast radius of the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    blast_radius: Option<String>,
    /// RFC 3339, UTC.
    expires_at: String,
    /// The nine checks, in order.
    checks: Vec<CheckResult>,
}

/// Verifies a token for a tool call.
#[utoipa::path(
    post, path = "", operation_id = "verifyToken", request_body = VerifyInput, params(IdempotencyKey),
    responses(
        (status = 200, description = "All nine checks passed or were skipped", body = VerifyResponse),
        (status = 403, description = "A check failed; `check` names it"),
        (status = 404, description = "The tool does not exist"),
        (status = 503, description = "Temporarily unavailable, or the audit could not record the verdict"),
    )
)]
pub async fn post(
    caller: Caller<VerifyTools>,
    State(app): State<App>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    let bytes = body::json_bytes(&parts.headers, body, limits::BODY_BYTES_MAX).await?;
    let input: VerifyInput = json::read(&bytes)?;
    let caller = caller.with_key(&parts, &bytes)?;
    let (began, mut subject) = (app.clock.boot(), None);
    let tool_id = input.tool_id.clone();
    let outcome = app.verifier.verify(input, &caller, &mut subject).await;
    if let Err(error @ verify::Error::Failed(failure)) = &outcome {
        let (subject_id, target) = (subject.as_ref(), tool_id.as_deref());
        let denied = Denied { operation: "verification", error, subject: subject_id, target, policy: None };
        denied.keep(&app, &caller);
        let duration = app.clock.boot().saturating_sub(began);
        app.feed.activity(|| feed_activity::refused(failure, subject, tool_id, duration));
    }
    let verdict = outcome?;
    Ok((NO_STORE, Json(VerifyResponse::from(verdict))).into_response())
}

impl From<Verdict> for VerifyResponse {
    fn from(verdict: Verdict) -> Self {
        let credential = verdict.verified.credential();
        Self {
            verified: true,
            protocol: verdict.protocol,
            subject: credential.sub.to_string(),
            actor: credential.act.as_ref().map(|act| act.sub.clone()),
            issuer: credential.iss.clone(),
            jti: credential.jti.clone().unwrap_or_default(),
            txn: credential.txn.clone(),
            capabilities: credential.capabilities.clone().unwrap_or_default(),
            blast_radius: credential.blast_radius.clone(),
            expires_at: credential.exp.to_rfc3339(),
            checks: verdict.verified.trace().iter().copied().map(CheckResult::of).collect(),
            tool_id: verdict.tool_id,
        }
    }
}
