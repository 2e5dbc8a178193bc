//! `/v1/sys/policy…`: the policy bundle of the cluster.

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::admin_audit::Act;
use super::body;
use super::caller::{Caller, ClusterAdmin};
use super::error::Error;
use super::paging::{QueryParams, RawQuery};
use crate::clock::Timestamp;
use crate::limits;
use crate::policy::Source;
use crate::policy::compile::Check;
use crate::state::LinearizableRead;
use crate::text::values;

/// The current policy bundle.
#[derive(Serialize, ToSchema)]
pub struct PolicyBundle {
    /// SHA-256 of its files in base64url, as in the claim `policy` of every token that it granted.
    digest: String,
    /// Its files, ordered by path.
    sources: Vec<Source>,
}

/// A policy bundle to apply.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutPolicy {
    /// Its files.
    sources: Vec<Source>,
    /// The digest that must be current; the default is any.
    expected_current: Option<String>,
}

/// The earlier change to return to.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// The number of the change that made it current.
    number: u64,
}

/// The result of a change.
#[derive(Serialize, ToSchema)]
pub struct PolicyApplied {
    /// Its digest.
    digest: String,
    /// False if the bundle was already current.
    changed: bool,
}

/// A change of the policy bundle.
#[derive(Serialize, ToSchema)]
pub struct PolicyChange {
    /// Its number.
    number: u64,
    /// The bundle's digest.
    digest: String,
    /// Log time, RFC 3339, UTC.
    applied_at: String,
    /// The caller; empty for the bundle of the bootstrap, and in development mode.
    applied_by: String,
}

/// The current policy bundle.
#[utoipa::path(get, path = "", operation_id = "getPolicy", responses(
    (status = 200, description = "The bundle", body = PolicyBundle),
    (status = 404, description = "There is no policy"),
))]
pub async fn get(
    _caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    _current: LinearizableRead,
) -> Result<Json<PolicyBundle>, Error> {
    let digest = app.state.index().policy.clone();
    let sources = app.state.policy_sources(&digest)?.ok_or_else(|| Error::not_found("there is no policy"))?;
    let sources = sources.into_iter().map(|file| Source { path: file.path, text: file.text }).collect();
    Ok(Json(PolicyBundle { digest, sources }))
}

/// Applies a policy bundle on every node, after compiling it and running its tests.
#[utoipa::path(put, path = "", operation_id = "putPolicy", request_body = PutPolicy, responses(
    (status = 200, description = "The bundle is current", body = PolicyApplied),
    (status = 400, description = "The request is invalid, the bundle does not compile in time, or one of its tests fails"),
    (status = 409, description = "The current bundle is not `expected_current`"),
))]
pub async fn put(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<PolicyApplied>, Error> {
    let request: PutPolicy = body::json(&headers, body, limits::POLICY_BODY_BYTES_MAX).await?;
    let expected = request.expected_current.unwrap_or_default();
    apply(&app, &caller, (request.sources, Check::PassesTests), expected, None).await
}

/// Applies sources, of a rollback or not.
async fn apply(
    app: &App,
    caller: &Caller<ClusterAdmin>,
    sources: (Vec<Source>, Check),
    expected_current: String,
    rolled_back_to: Option<u64>,
) -> Result<Json<PolicyApplied>, Error> {
    let what = match rolled_back_to {
        Some(number) => format!("roll the policy back to change {number}"),
        None => "apply a policy".to_owned(),
    };
    let act = Act::begin(app, caller, what)?;
    let applied = app.policy.apply(sources, caller, expected_current).await;
    let describe = |(digest, changed): &(String, bool)| {
        format!("{digest} is current{}", if *changed { "" } else { ", as it was before" })
    };
    let (digest, changed) = act.end(applied.map_err(Error::from), describe).await?;
    tracing::info!(digest, changed, caller = caller.id(), rolled_back_to, "policy applied");
    Ok(Json(PolicyApplied { digest, changed }))
}

/// The history of policy changes.
#[utoipa::path(get, path = "", operation_id = "policyHistory", responses(
    (status = 200, description = "The changes, oldest first", body = [PolicyChange]),
))]
pub async fn history(
    _caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    _current: LinearizableRead,
) -> Json<Vec<PolicyChange>> {
    let index = app.state.index();
    let changes = index.policy_history.iter().map(|(number, row)| PolicyChange {
        number: *number,
        digest: row.digest.clone(),
        applied_at: Timestamp::from_millis(row.applied_at_millis).to_rfc3339(),
        applied_by: row.applied_by.clone(),
    });
    Json(changes.collect())
}

/// Applies an earlier policy bundle again; its tests are not run.
#[utoipa::path(post, path = "", operation_id = "rollbackPolicy", request_body = Rollback, responses(
    (status = 200, description = "The bundle is current", body = PolicyApplied),
    (status = 404, description = "The change does not exist"),
    (status = 409, description = "A concurrent change of the policy"),
))]
pub async fn rollback(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    _current: LinearizableRead,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<PolicyApplied>, Error> {
    let request: Rollback = body::json(&headers, body, limits::BODY_BYTES_MAX).await?;
    // A concurrent change of the policy is not overwritten.
    let expected = app.state.index().policy.clone();
    let change = app.state.index().policy_history.get(&request.number).cloned();
    let change = change.ok_or_else(|| Error::not_found("there is no policy change of this number"))?;
    let sources = app.state.policy_sources(&change.digest)?.unwrap_or_default();
    let sources = sources.into_iter().map(|file| Source { path: file.path, text: file.text }).collect();
    apply(&app, &caller, (sources, Check::Compiles), expected, Some(request.number)).await
}

/// Evaluates the current policy for an input, with the values of its rules.
#[utoipa::path(
    post, path = "", operation_id = "explainPolicy", request_body = Object,
    params(
        ("point" = Option<values::PolicyPoint>, Query, description = "The decision point; the default is `exchange`"),
    ),
    responses(
        (status = 200, description = "The decision and the values of the rules", body = Object),
        (status = 404, description = "There is no policy"),
    )
)]
pub async fn explain(
    _caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    query: RawQuery,
    request: Request,
) -> Result<Json<crate::policy::Explanation>, Error> {
    let (parts, body) = request.into_parts();
    let question: serde_json::Value = body::json(&parts.headers, body, limits::BODY_BYTES_MAX).await?;
    let point = QueryParams::read(query, &["point"])?.value("point").map(str::parse).transpose();
    let point = point.map_err(|rule: String| Error::invalid_request(format!("point: {rule}")))?;
    let explanation = app.policy.explain(point.unwrap_or_default(), question).await?;
    explanation.map(Json).ok_or_else(|| Error::not_found("there is no policy"))
}
