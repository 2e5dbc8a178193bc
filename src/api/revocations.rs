//! `/v1/revocations`: routes and translation (contract §4): revocations by operators, their dry run, and the list of
//! all.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::admin_audit::Act;
use super::body;
use super::cache_control::NO_STORE;
use super::caller::{Caller, ClusterAdmin};
use super::error::Error;
use super::openapi::params::{IdempotencyKey, Page};
use super::openapi::values;
use super::{paging, read_consistency};
use crate::revocation;
use crate::revocation::{DryRunPage, RevocationInput, Revocations};
use crate::state::{LinearizableRead, Revoked, stated};
use crate::{json, limits};

/// A revocation in force.
#[derive(Serialize, ToSchema)]
pub struct RevocationMade {
    /// The digest of the revoked fact, as in the claim `lineage`. Base64url.
    id: String,
    /// The kind of fact.
    #[schema(value_type = values::FactKind)]
    kind: String,
    /// The issuer of the value; absent for a workload identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// The revoked value.
    value: String,
    /// As requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Log time, RFC 3339, UTC.
    revoked_at: String,
    /// The log index of its entry. Tokens of this cluster with a smaller `idx` are refused.
    index: u64,
    /// Number of affected agents. Null if it cannot be known (a signing key or a token), if this node was scanning the
    /// agents for other requests, or if counting took more than two seconds.
    #[schema(required = true, value_type = Option<u64>)]
    agents: Option<u64>,
    /// Whether it is blocked as well, until the block is lifted.
    blocked: bool,
    /// Credentials that it does not cover.
    #[schema(value_type = Vec<values::NotCovered>)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_covered: Vec<&'static str>,
}

/// A retained revocation.
#[derive(Serialize, ToSchema)]
pub struct Revocation {
    /// The digest of the revoked fact, as in the claim `lineage`. Base64url.
    id: String,
    /// The kind of fact; absent if only the digest is known.
    #[schema(value_type = Option<values::FactKind>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// The issuer of the value; absent for a workload identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// The revoked value; absent if only the digest is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// The reason, as the operator or the issuer gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The operator, or the issuer of the signal; absent for an anonymous operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    /// Log time, RFC 3339, UTC.
    revoked_at: String,
    /// End of retention; every credential that it covers has expired by then.
    expires_at: String,
    /// The log index of its entry.
    index: u64,
}

/// Revokes everything that derives from one fact and was issued before, in one log entry; or computes what that would
/// cover.
#[utoipa::path(
    post, path = "", operation_id = "revoke", request_body = RevocationInput,
    params(("dry_run" = Option<bool>, Query, description = "Only compute what would be revoked"), IdempotencyKey, Page),
    responses(
        (status = 202, description = "The revocation is in force on every node", body = RevocationMade),
        (status = 200, description = "A page of the dry run", body = DryRunPage),
        (status = 404, description = "The agent or the signing key does not exist"),
    )
)]
pub async fn revoke(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    // An unread body closes the connection under a client that is still sending.
    let bytes = body::json_bytes(&parts.headers, body, limits::BODY_BYTES_MAX).await?;
    let caller = caller.with_key(&parts, &bytes)?;
    let query = paging::QueryParams::read(query, &["dry_run", "limit", "cursor"])?;
    let is_dry_run = is_dry_run(&query)?;
    let page = query.page()?;
    let input: RevocationInput = json::read(&bytes)?;
    let request = input.validate(&app.issuer, &app.revocations.trust_domain)?;
    if is_dry_run {
        let current = read_consistency::of(&app, &parts.headers).await?;
        let result = app.revocations.dry_run(&current, &request, page.after.as_deref(), page.limit).await?;
        return paging::answer(&parts.uri, &result, result.next.as_deref());
    }
    // Without the value, which may be an email address. The list of revocations has it under its id.
    let fact = request.fact();
    let verb = if request.block() { "revoke and block" } else { "revoke" };
    let act = Act::begin(&app, &caller, format!("{verb} {} {}", fact.kind(), fact.digest()))?;
    let receipt = app.revocations.revoke(&request, &caller).await.map_err(Error::from);
    let receipt = act.end(receipt, |receipt| format!("log index {}", receipt.applied.index)).await?;
    let answer = receipt_answer(&app.revocations, &request, &receipt);
    let RevocationMade { id, kind, index, agents, .. } = &answer;
    // Without the value, which may be an email address.
    tracing::warn!(request_id = caller.request_id, id, kind, index, agents, caller = caller.id(), "revoked");
    Ok((StatusCode::ACCEPTED, NO_STORE, Json(answer)).into_response())
}

/// Pagination is for a dry run only, so that a request that was meant as one revokes nothing.
fn is_dry_run(query: &paging::QueryParams) -> Result<bool, Error> {
    let is_dry_run = query.flag("dry_run")?;
    match ["limit", "cursor"].into_iter().find(|name| query.value(name).is_some()) {
        Some(name) if !is_dry_run => {
            Err(Error::invalid_request(format!("{name}: is for a dry run only (dry_run=true)")))
        }
        _ => Ok(is_dry_run),
    }
}

/// From the request and the log's reply only: a retry may come after the revocation has expired.
fn receipt_answer(
    revocations: &Revocations,
    request: &revocation::RevocationRequest,
    receipt: &revocation::RevocationReceipt,
) -> RevocationMade {
    let fact = request.fact();
    RevocationMade {
        id: fact.digest().to_string(),
        kind: revocations.kind_of(fact).to_owned(),
        issuer: stated(fact.issuer().to_owned()),
        value: fact.value().to_owned(),
        reason: stated(request.reason().to_owned()),
        revoked_at: receipt.applied.at.to_rfc3339(),
        index: receipt.applied.index,
        agents: receipt.agents,
        blocked: receipt.blocks,
        not_covered: revocations.not_covered(request, receipt.blocks),
    }
}

/// Revocations by operators and by signals.
#[utoipa::path(get, path = "", operation_id = "listRevocations", params(Page), responses(
    (status = 200, description = "A page, ordered by `id`", body = [Revocation]),
))]
pub async fn list(
    _caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    current: LinearizableRead,
    uri: Uri,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Error> {
    let page = paging::QueryParams::read(query, &["limit", "cursor"])?.page()?;
    let (revoked, next) = app.revocations.list(&current, page.after.as_deref(), page.limit)?;
    let rows: Vec<_> = revoked.into_iter().map(|revoked| row_of(&app.revocations, revoked)).collect();
    paging::answer(&uri, &rows, next.map(|next| next.to_string()).as_deref())
}

fn row_of(revocations: &Revocations, revoked: Revoked) -> Revocation {
    let Revoked { id, index, at, ends_at, fact, reason, by } = revoked;
    Revocation {
        id: id.to_string(),
        kind: fact.as_ref().map(|fact| revocations.kind(fact).to_owned()),
        issuer: fact.as_ref().and_then(|fact| stated(fact.issuer.clone())),
        value: fact.map(|fact| fact.value),
        reason: stated(reason),
        by: stated(by),
        revoked_at: at.to_rfc3339(),
        expires_at: ends_at.to_rfc3339(),
        index,
    }
}
