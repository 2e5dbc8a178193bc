//! `/v1/sys/policy…`: the policy bundle of the cluster.

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::admin_audit::Act;
use super::body;
use super::caller::{Caller, ClusterAdmin};
use super::error::{self, Code, Error};
use super::paging::Members;
use crate::policy::Source;
use crate::state::LinearizableRead;
use crate::{active_policy, limits};

/// One file of a bundle.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyFile {
    /// For example `exchange.rego`.
    path: String,
    /// Its content.
    text: String,
}

/// The current bundle.
#[derive(Serialize, ToSchema)]
pub struct PolicyBundle {
    /// SHA-256 of its files in base64url; the claim `policy` of every token it granted.
    digest: String,
    /// Its files, by path.
    sources: Vec<PolicyFile>,
}

/// A bundle to become current.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutPolicy {
    /// Its files.
    sources: Vec<PolicyFile>,
    /// The digest that must be current; absent: whatever is.
    expected_current: Option<String>,
}

/// Which earlier bundle is to become current again.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// The number of the change that made it current.
    number: u64,
}

/// A bundle became current.
#[derive(Serialize, ToSchema)]
pub struct PolicyApplied {
    /// Its digest.
    digest: String,
    /// False if it was current already.
    changed: bool,
}

/// A change of the policy.
#[derive(Serialize, ToSchema)]
pub struct PolicyChange {
    /// Its number.
    number: u64,
    /// The bundle's digest.
    digest: String,
    /// RFC 3339, UTC, in log time.
    applied_at: String,
    /// By whom; empty for the bundle the cluster began with, and in development mode.
    applied_by: String,
}

/// The current bundle.
#[utoipa::path(
    get,
    path = "/v1/sys/policy",
    operation_id = "getPolicy",
    responses(
        (status = 200, description = "The bundle", body = PolicyBundle),
        (status = 404, description = "There is none", body = error::Body),
    )
)]
pub async fn get(
    _caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    _current: LinearizableRead,
) -> Result<Json<PolicyBundle>, Error> {
    let digest = app.state.index().policy.clone();
    let sources = app.state.policy_sources(&digest)?.ok_or_else(|| Error::not_found("there is no policy"))?;
    let sources = sources.into_iter().map(|file| PolicyFile { path: file.path, text: file.text }).collect();
    Ok(Json(PolicyBundle { digest, sources }))
}

/// Compiles a bundle and makes it current on every node.
#[utoipa::path(
    put,
    path = "/v1/sys/policy",
    operation_id = "putPolicy",
    request_body = PutPolicy,
    responses(
        (status = 200, description = "It is current", body = PolicyApplied),
        (status = 400, description = "It does not compile, or not in time", body = error::Body),
        (status = 409, description = "Somebody else changed the policy", body = error::Body),
        (status = 503, description = "Not possible now", body = error::Body),
    )
)]
pub async fn put(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<PolicyApplied>, Error> {
    let request: PutPolicy = body::json(&headers, body, limits::POLICY_BODY_BYTES_MAX).await?;
    let sources =
        request.sources.into_iter().map(|file| Source { path: file.path, text: file.text }).collect();
    let expected = request.expected_current.unwrap_or_default();
    apply(&app, &caller, sources, expected, None).await
}

/// Makes sources current, `rolled_back_to` an earlier change or not.
async fn apply(
    app: &App,
    caller: &Caller<ClusterAdmin>,
    sources: Vec<Source>,
    expected_current: String,
    rolled_back_to: Option<u64>,
) -> Result<Json<PolicyApplied>, Error> {
    // Empty for a caller that nobody knows, in development mode.
    let applied_by = caller.id().unwrap_or_default().to_owned();
    let what = match rolled_back_to {
        Some(number) => format!("roll the policy back to change {number}"),
        None => "apply a policy".to_owned(),
    };
    let act = Act::begin(app, caller, what)?;
    let applied = app.policy.apply(sources, (applied_by, caller.facts()), expected_current).await;
    let describe = |(digest, changed): &(String, bool)| {
        format!("{digest} is current{}", if *changed { "" } else { ", as it was before" })
    };
    let (digest, changed) = act.end(applied.map_err(Error::from), describe).await?;
    tracing::info!(digest, changed, caller = caller.id(), rolled_back_to, "policy applied");
    Ok(Json(PolicyApplied { digest, changed }))
}

/// Every change that is remembered.
#[utoipa::path(
    get,
    path = "/v1/sys/policy/history",
    operation_id = "policyHistory",
    responses((status = 200, description = "The changes, oldest first", body = [PolicyChange]))
)]
pub async fn history(
    _caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    _current: LinearizableRead,
) -> Json<Vec<PolicyChange>> {
    let change = |change: crate::state::PolicyChange| PolicyChange {
        number: change.number,
        digest: change.digest,
        applied_at: change.applied_at.to_rfc3339(),
        applied_by: change.applied_by,
    };
    Json(app.state.policy_history().into_iter().map(change).collect())
}

/// Makes an earlier bundle current again.
#[utoipa::path(
    post,
    path = "/v1/sys/policy/rollback",
    operation_id = "rollbackPolicy",
    request_body = Rollback,
    responses(
        (status = 200, description = "It is current", body = PolicyApplied),
        (status = 404, description = "There is no such change", body = error::Body),
        (status = 503, description = "Not possible now", body = error::Body),
    )
)]
pub async fn rollback(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    _current: LinearizableRead,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<PolicyApplied>, Error> {
    let request: Rollback = body::json(&headers, body, limits::BODY_BYTES_MAX).await?;
    // A policy that somebody applies meanwhile is not overwritten.
    let expected = app.state.index().policy.clone();
    let history = app.state.policy_history();
    let change = history.into_iter().find(|change| change.number == request.number);
    let change = change.ok_or_else(|| Error::not_found("there is no policy change of this number"))?;
    let sources = app.state.policy_sources(&change.digest)?.unwrap_or_default();
    let sources = sources.into_iter().map(|file| Source { path: file.path, text: file.text }).collect();
    apply(&app, &caller, sources, expected, Some(request.number)).await
}

/// What the current policy answers to a question, and the rules it came from.
#[utoipa::path(
    post,
    path = "/v1/sys/policy/explain",
    operation_id = "explainPolicy",
    request_body = Object,
    params(("point" = Option<String>, Query, description = "Which rule is asked: `exchange` (default), `identity` or `signals`")),
    responses(
        (status = 200, description = "The answer and the values of the rules", body = Object),
        (status = 400, description = "The question or the point is not valid", body = error::Body),
        (status = 404, description = "There is no policy", body = error::Body),
    )
)]
pub async fn explain(
    _caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
    request: Request,
) -> Result<Json<crate::policy::Explanation>, Error> {
    let (parts, body) = request.into_parts();
    let question: serde_json::Value = body::json(&parts.headers, body, limits::BODY_BYTES_MAX).await?;
    let point = Members::read(query, &["point"])?.value("point").map(str::parse).transpose();
    let point = point.map_err(|rule: String| Error::invalid_request(format!("point: {rule}")))?;
    let explanation = app.policy.explain(point.unwrap_or_default(), question).await?;
    explanation.map(Json).ok_or_else(|| Error::not_found("there is no policy"))
}

impl From<active_policy::Error> for Error {
    fn from(error: active_policy::Error) -> Self {
        let description = error.to_string();
        match error {
            active_policy::Error::Refused(_) => Self::invalid_request(description),
            active_policy::Error::State(error) => error.into(),
            active_policy::Error::NotActive => Self::unavailable(description),
            active_policy::Error::LoaderFailed(_) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, Code::ServerError, "internal error")
                    .with_detail(description)
            }
        }
    }
}
