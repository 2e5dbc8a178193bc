//! `/v1/revocations`: wire types and translation (contract §4): revocations by operators, their dry run, and the list of
//! all.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::admin_audit::Act;
use super::body;
use super::cache_control::NO_STORE;
use super::caller::{Caller, ClusterAdmin};
use super::error::{self, Error};
use super::openapi::params::{IdempotencyKey, Page};
use super::openapi::values;
use super::{idempotency, paging, read_consistency};
use crate::revocation;
use crate::revocation::{DryRun, RevocationInput, Revocations};
use crate::state::{LinearizableRead, Revoked, RevokedFact, stated};
use crate::token::lineage::Fact;
use crate::{json, limits};

/// A revocation of exactly one of `subject`, `email`, `agent`, `client`, `jti` and `key`.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RevocationRequest {
    /// A workload identifier; with another `issuer`, the `sub` of that issuer.
    subject: Option<String>,
    /// An email address that `issuer` has verified, byte for byte.
    email: Option<String>,
    /// An `agent_id`.
    agent: Option<String>,
    /// A `client_id` known to `issuer`.
    client: Option<String>,
    /// The `jti` of a token of `issuer`.
    jti: Option<String>,
    /// The `kid` of a signing key of `issuer`. One of this fabric is tainted.
    key: Option<String>,
    /// The issuer of the value: required with `email`, not allowed with `agent`; the default is this fabric.
    issuer: Option<String>,
    /// The reason: at most 256 printable ASCII characters.
    reason: Option<String>,
    /// Whether to block it as well: credentials issued later and client certificates are refused until
    /// `DELETE /v1/blocks/{id}`. A signing key of this fabric is tainted in any case, one of another issuer is blocked.
    block: bool,
}

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

/// The result of a dry run, or a page of it.
#[derive(Serialize, ToSchema)]
pub struct RevocationDryRun {
    /// Always true: nothing was changed.
    dry_run: bool,
    /// The digest of the fact.
    id: String,
    /// The kind of fact.
    #[schema(value_type = values::FactKind)]
    kind: String,
    /// The issuer of the value; absent for a workload identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// The value that would be revoked.
    value: String,
    /// Whether it is already revoked.
    is_revoked: bool,
    /// Totals over all pages; only on the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<HitCounts>,
    /// Affected agents, ordered by id; the tools follow after the last agent. Null if they cannot be known: there is no
    /// list of a key's signatures or of a token's holders.
    #[schema(required = true, value_type = Option<Vec<String>>)]
    agents: Option<Vec<String>>,
    /// Tools that the workload registered. They stay registered.
    tools: Vec<String>,
    /// Streams that the workload created; only on the first page. They stay, and push nothing while it is blocked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    streams: Vec<String>,
}

/// Totals of a dry run. Tokens are not counted, because there is no list of them.
#[derive(Serialize, ToSchema)]
pub struct HitCounts {
    /// Active agents; null if they cannot be known.
    #[schema(required = true, value_type = Option<u64>)]
    agents: Option<u64>,
    /// Tools.
    tools: u64,
    /// Streams.
    streams: u64,
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

impl From<RevocationRequest> for RevocationInput {
    fn from(request: RevocationRequest) -> Self {
        let RevocationRequest { subject, email, agent, client, jti, key, issuer, reason, block } = request;
        Self { subject, email, agent, client, jti, key, issuer, reason, block }
    }
}

/// Revokes everything that derives from one fact and was issued before, in one log entry; or computes what that would
/// cover.
#[utoipa::path(
    post,
    path = "/v1/revocations",
    operation_id = "revoke",
    request_body = RevocationRequest,
    params(
        ("dry_run" = Option<bool>, Query, description = "Only compute what would be revoked"),
        IdempotencyKey,
        Page,
    ),
    responses(
        (status = 202, description = "The revocation is in force on every node", body = RevocationMade),
        (status = 200, description = "A page of the dry run", body = RevocationDryRun),
        (status = 404, description = "The agent or the signing key does not exist", body = error::Body),
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
    let idempotency =
        idempotency::idempotency(&parts.headers, caller.id(), (&parts.method, &parts.uri), &bytes)?;
    let query = paging::QueryParams::read(query, &["dry_run", "limit", "cursor"])?;
    let is_dry_run = is_dry_run(&query)?;
    let page = query.page()?;
    let input: RevocationRequest = json::read(&bytes)?;
    let request =
        revocation::RevocationRequest::parse(input.into(), &app.issuer, &app.revocations.trust_domain)?;
    if is_dry_run {
        let current = read_consistency::of(&app, &parts.headers).await?;
        let result = app.revocations.dry_run(&current, &request, page.after.as_deref(), page.limit).await?;
        return dry_run_page(&parts.uri, &app.revocations, request.fact(), result);
    }
    // Without the value, which may be an email address. The list of revocations has it under its id.
    let fact = request.fact();
    let verb = if request.block() { "revoke and block" } else { "revoke" };
    let act = Act::begin(&app, &caller, format!("{verb} {} {}", fact.kind(), fact.digest()))?;
    let by = (caller.id().unwrap_or_default(), caller.facts());
    let receipt = app.revocations.revoke(&request, by, idempotency).await.map_err(Error::from);
    let receipt = act.end(receipt, |receipt| format!("log index {}", receipt.applied.index)).await?;
    let answer = receipt_answer(&app.revocations, &request, &receipt);
    let RevocationMade { id, kind, index, agents, .. } = &answer;
    let request_id = super::request_id::current();
    // Without the value, which may be an email address.
    tracing::warn!(request_id, id, kind, index, agents, caller = caller.id(), "revoked");
    Ok((StatusCode::ACCEPTED, NO_STORE, Json(answer)).into_response())
}

/// Pagination is for a dry run only, so that a request that was meant as one revokes nothing.
fn is_dry_run(query: &paging::QueryParams) -> Result<bool, Error> {
    let is_dry_run = match query.value("dry_run") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(Error::invalid_request("dry_run: must be true or false")),
    };
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
    let RevokedFact { kind, issuer, value } = text_of(revocations, request.fact());
    RevocationMade {
        id: request.fact().digest().to_string(),
        kind,
        issuer: stated(issuer),
        value,
        reason: stated(request.reason().to_owned()),
        revoked_at: receipt.applied.at.to_rfc3339(),
        index: receipt.applied.index,
        agents: receipt.agents,
        blocked: receipt.blocks,
        not_covered: revocations.not_covered(request, receipt.blocks),
    }
}

fn dry_run_page(
    uri: &Uri,
    revocations: &Revocations,
    fact: &Fact,
    result: DryRun,
) -> Result<Response, Error> {
    let RevokedFact { kind, issuer, value } = text_of(revocations, fact);
    let answer = RevocationDryRun {
        dry_run: true,
        id: fact.digest().to_string(),
        kind,
        issuer: stated(issuer),
        value,
        is_revoked: result.is_revoked,
        counts: result.counts.map(|counts| HitCounts {
            agents: counts.agents,
            tools: counts.tools,
            streams: counts.streams,
        }),
        agents: result.agents,
        tools: result.tools,
        streams: result.streams,
    };
    paging::answer(uri, &answer, result.next.as_deref())
}

fn text_of(revocations: &Revocations, fact: &Fact) -> RevokedFact {
    let text = RevokedFact {
        kind: fact.kind().to_owned(),
        issuer: fact.issuer().to_owned(),
        value: fact.value().to_owned(),
    };
    RevokedFact { kind: revocations.kind(&text).to_owned(), ..text }
}

/// Revocations by operators and by signals.
#[utoipa::path(
    get,
    path = "/v1/revocations",
    operation_id = "listRevocations",
    params(Page),
    responses((status = 200, description = "A page, ordered by `id`", body = [Revocation]))
)]
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
