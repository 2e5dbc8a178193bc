//! `GET /v1/sys/denials/{request_id}`: one of the latest denials of this node, explained.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::caller::{Caller, ClusterAdmin};
use super::denials::Question;
use super::error::Error;
use crate::json;
use crate::policy::Explanation;
use crate::text::values;

/// A denied request.
#[derive(Serialize, ToSchema)]
pub struct ExplainedDenial {
    /// `X-Request-Id` of its response.
    request_id: String,
    /// The node that denied it.
    unit_id: String,
    /// RFC 3339, UTC.
    denied_at: String,
    /// The denied operation.
    #[schema(value_type = values::DeniedOperation)]
    operation: &'static str,
    /// The text of the response.
    reason: String,
    /// The cause, which the response does not state, for example why a token is not valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// The authenticated caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<String>,
    /// The subject, if its credential was verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// The requested audience, or the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// The decision of the policy, if that denied the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<ExplainedDecision>,
}

/// A denial by policy.
#[derive(Serialize, ToSchema)]
pub struct ExplainedDecision {
    /// The decision point.
    #[schema(value_type = values::PolicyPoint)]
    point: &'static str,
    /// The bundle that denied.
    digest: String,
    /// Whether this node still decides by it. The explanation is always that of the current bundle.
    is_current: bool,
    /// The input of the decision.
    #[schema(value_type = Object)]
    input: serde_json::Value,
    /// The output of the current bundle, with the values of its rules, and changes with which it would allow.
    #[schema(value_type = Object)]
    explanation: Explanation,
}

/// Explains one of the latest denials of this node.
///
/// Each node retains its own latest 10 000 denials in memory: `404` from one node states nothing about the
/// others.
#[utoipa::path(
    get, path = "", operation_id = "explainDenial",
    params(("request_id" = String, Path, description = "`X-Request-Id` of the denied request")),
    responses(
        (status = 200, description = "The denial", body = ExplainedDenial),
        (status = 404, description = "This node keeps no denial of the request"),
    )
)]
pub async fn explain(
    _caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    request_id: Result<Path<String>, PathRejection>,
) -> Result<Json<ExplainedDenial>, Error> {
    let denied = request_id.ok().and_then(|Path(request_id)| app.denials.find(&request_id));
    let absent = || Error::not_found("this node keeps no denial with this request_id; another node may");
    let denied = denied.ok_or_else(absent)?;
    let policy = match denied.question {
        Some(question) => Some(explained(&app, question).await?),
        None => None,
    };
    Ok(Json(ExplainedDenial {
        request_id: denied.request_id,
        unit_id: app.unit_id.clone(),
        denied_at: denied.at.to_rfc3339(),
        operation: denied.operation,
        reason: denied.reason,
        detail: denied.detail,
        caller: denied.caller,
        subject: denied.subject,
        target: denied.target,
        policy,
    }))
}

async fn explained(app: &App, question: Question) -> Result<ExplainedDecision, Error> {
    let Question { point, policy_digest: digest, input } = question;
    let input = json::parse(input.as_bytes()).map_err(Error::internal)?;
    let is_current = app.policy.current().is_some_and(|current| current.digest() == digest);
    let explanation = app.policy.explain(point, input.clone()).await?;
    let explanation = explanation.ok_or_else(|| Error::not_found("there is no policy"))?;
    Ok(ExplainedDecision { point: point.into_str(), digest, is_current, input, explanation })
}
