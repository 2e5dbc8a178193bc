//! `/v1/revocations`: wire types and translation (contract §4): what operators revoke, what that would hit,
//! and what is revoked.

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
use super::{idempotency, paging, read_consistency};
use crate::revocation;
use crate::revocation::{DryRun, RevocationInput, Revocations};
use crate::state::{LinearizableRead, Revoked, RevokedFact, stated};
use crate::token::lineage::Fact;
use crate::{json, limits};

/// What is to be revoked: exactly one of `subject`, `email`, `agent`, `client`, `jti` and `key`.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RevocationRequest {
    /// A workload identifier; with the `issuer` of somebody else, the `sub` of that issuer.
    subject: Option<String>,
    /// An email address that `issuer` has verified, byte for byte as it says it.
    email: Option<String>,
    /// An `agent_id`.
    agent: Option<String>,
    /// A `client_id` known to `issuer`.
    client: Option<String>,
    /// The `jti` of a token of `issuer`.
    jti: Option<String>,
    /// The `kid` of a signing key of `issuer`. One of this fabric is tainted.
    key: Option<String>,
    /// Whose word it is: required with `email`, never with `agent`, else this fabric if it is not said.
    issuer: Option<String>,
    /// Why: at most 256 printable ASCII characters.
    reason: Option<String>,
    /// Whether it is blocked as well: what is issued later and client certificates are refused too, until
    /// `DELETE /v1/blocks/{id}`. A signing key of this fabric is tainted all the same, one of another issuer blocked.
    block: bool,
}

/// A revocation that stands.
#[derive(Serialize, ToSchema)]
pub struct RevocationMade {
    /// The digest of what is revoked, as it stands in the claim `lineage`. Base64url.
    id: String,
    /// `subject`, `agent`, `email`, `client`, `token` or `key`
    kind: String,
    /// Whose word it is; absent for a workload identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// What is revoked.
    value: String,
    /// As given.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Log time. RFC 3339, UTC.
    revoked_at: String,
    /// The log index of its entry: tokens of this cluster whose `idx` is smaller are refused.
    index: u64,
    /// How many agents it hit. Null where that cannot be known, as of a signing key or a token, if this node was
    /// looking through the agents for others, or if counting them took more than two seconds.
    agents: Option<u64>,
    /// Whether it is blocked as well, until that is lifted.
    blocked: bool,
    /// The credentials that it does not cover: `credentials issued later`, `client certificates`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_covered: Vec<&'static str>,
}

/// What a revocation would hit, or a page of that.
#[derive(Serialize, ToSchema)]
pub struct RevocationDryRun {
    /// True: nothing was changed.
    dry_run: bool,
    /// The digest of what would be revoked.
    id: String,
    /// `subject`, `agent`, `email`, `client`, `token` or `key`
    kind: String,
    /// Whose word it is; absent for a workload identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// What would be revoked.
    value: String,
    /// Whether it is revoked already.
    is_revoked: bool,
    /// Of all pages; only on the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<HitCounts>,
    /// Agents that would be revoked, in the order of their ids; behind all of them come the tools. Null where they
    /// cannot be known: nobody keeps a list of what a key has signed, or of who has a token.
    agents: Option<Vec<String>>,
    /// Tools that the workload has registered. They stay registered: its tokens are refused, not its tools.
    tools: Vec<String>,
    /// Streams of signals that the workload made; only on the first page. They stay, and push nothing while it is
    /// blocked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    streams: Vec<String>,
}

/// How much a revocation would hit. Tokens are not counted: nobody keeps a list of them.
#[derive(Serialize, ToSchema)]
pub struct HitCounts {
    /// Agents that are in force; null where they cannot be known.
    agents: Option<u64>,
    /// Tools.
    tools: u64,
    /// Streams of signals.
    streams: u64,
}

/// A revocation that is remembered.
#[derive(Serialize, ToSchema)]
pub struct Revocation {
    /// The digest of what is revoked, as it stands in the claim `lineage`. Base64url.
    id: String,
    /// `subject`, `agent`, `email`, `client`, `token` or `key`; absent if only the digest is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// Whose word it is; absent for a workload identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// What is revoked; absent if only the digest is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// Why, as whoever revoked it said.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The operator, or the issuer of the signal; absent for nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    /// Log time. RFC 3339, UTC.
    revoked_at: String,
    /// Until when it is remembered: whatever it covers is dead then.
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

/// Revokes whatever derives from one fact and was issued before, in one entry of the log; or says what that
/// would hit.
#[utoipa::path(
    post,
    path = "/v1/revocations",
    operation_id = "revoke",
    request_body = RevocationRequest,
    params(
        ("dry_run" = Option<bool>, Query, description = "Only say what would be hit"),
        ("limit" = Option<usize>, Query, description = "Most agents and tools of a page: 1 to 1000, default 100; only of a dry run"),
        ("cursor" = Option<String>, Query, description = "As the Link header of the page before gave it; only of a dry run"),
        ("Idempotency-Key" = Option<String>, Header, description = "A retry with the same key and body is the same revocation"),
    ),
    responses(
        (status = 202, description = "It is revoked: whatever begins afterwards is refused", body = RevocationMade),
        (status = 200, description = "What it would hit; Link names the next page", body = RevocationDryRun),
        (status = 400, description = "A member is missing or not valid", body = error::Body),
        (status = 404, description = "There is no such agent, or no such signing key of this fabric", body = error::Body),
        (status = 422, description = "The Idempotency-Key came with another request", body = error::Body),
        (status = 503, description = "Not possible now, or there are too many revocations", body = error::Body),
    )
)]
pub async fn revoke(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    // A body that is not read closes the connection under a caller that is still writing.
    let bytes = body::json_bytes(&parts.headers, body, limits::BODY_BYTES_MAX).await?;
    let idempotency =
        idempotency::idempotency(&parts.headers, caller.id(), (&parts.method, &parts.uri), &bytes)?;
    let query = paging::Members::read(query, &["dry_run", "limit", "cursor"])?;
    let is_dry_run = is_dry_run(&query)?;
    let page = query.page()?;
    let members: RevocationRequest = json::read(&bytes)?;
    let request =
        revocation::RevocationRequest::parse(members.into(), &app.issuer, &app.revocations.trust_domain)?;
    if is_dry_run {
        let current = read_consistency::of(&app, &parts.headers).await?;
        let found = app.revocations.dry_run(&current, &request, page.after.as_deref(), page.limit).await?;
        return said(&parts.uri, &app.revocations, request.fact(), found);
    }
    // Without the value: it may be an email address. The list of revocations has it under its id.
    let fact = request.fact();
    let verb = if request.block() { "revoke and block" } else { "revoke" };
    let act = Act::begin(&app, &caller, format!("{verb} {} {}", fact.kind(), fact.digest()))?;
    let by = (caller.id().unwrap_or_default(), caller.facts());
    let made = app.revocations.revoke(&request, by, idempotency).await.map_err(Error::from);
    let made = act.end(made, |made| format!("log index {}", made.applied.index)).await?;
    let answer = made_of(&app.revocations, &request, &made);
    let RevocationMade { id, kind, index, agents, .. } = &answer;
    let request_id = super::middleware::current_request_id();
    // Without what it is: that may be somebody's address.
    tracing::warn!(request_id, id, kind, index, agents, caller = caller.id(), "revoked");
    Ok((StatusCode::ACCEPTED, NO_STORE, Json(answer)).into_response())
}

/// A page is a dry run's; whoever asks for one by mistake has not revoked anything yet.
fn is_dry_run(query: &paging::Members) -> Result<bool, Error> {
    let is_dry_run = match query.value("dry_run") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(Error::invalid_request("dry_run: must be true or false")),
    };
    match ["limit", "cursor"].into_iter().find(|name| query.value(name).is_some()) {
        Some(name) if !is_dry_run => {
            Err(Error::invalid_request(format!("{name}: is for a dry run only: dry_run=true")))
        }
        _ => Ok(is_dry_run),
    }
}

/// Of the request and of what the log has answered: a retry may come when nothing else is remembered.
fn made_of(
    revocations: &Revocations,
    request: &revocation::RevocationRequest,
    made: &revocation::RevocationReceipt,
) -> RevocationMade {
    let RevokedFact { kind, issuer, value } = text_of(revocations, request.fact());
    RevocationMade {
        id: request.fact().digest().to_string(),
        kind,
        issuer: stated(issuer),
        value,
        reason: stated(request.reason().to_owned()),
        revoked_at: made.applied.at.to_rfc3339(),
        index: made.applied.index,
        agents: made.agents,
        blocked: made.blocks,
        not_covered: revocations.not_covered(request, made.blocks),
    }
}

fn said(uri: &Uri, revocations: &Revocations, fact: &Fact, found: DryRun) -> Result<Response, Error> {
    let RevokedFact { kind, issuer, value } = text_of(revocations, fact);
    let answer = RevocationDryRun {
        dry_run: true,
        id: fact.digest().to_string(),
        kind,
        issuer: stated(issuer),
        value,
        is_revoked: found.is_revoked,
        counts: found.counts.map(|counts| HitCounts {
            agents: counts.agents,
            tools: counts.tools,
            streams: counts.streams,
        }),
        agents: found.agents,
        tools: found.tools,
        streams: found.streams,
    };
    paging::answer(uri, &answer, found.next.as_deref())
}

fn text_of(revocations: &Revocations, fact: &Fact) -> RevokedFact {
    let text = RevokedFact {
        kind: fact.kind().to_owned(),
        issuer: fact.issuer().to_owned(),
        value: fact.value().to_owned(),
    };
    RevokedFact { kind: revocations.kind(&text).to_owned(), ..text }
}

/// What is revoked, by operators and by signals.
#[utoipa::path(
    get,
    path = "/v1/revocations",
    operation_id = "listRevocations",
    params(
        ("limit" = Option<usize>, Query, description = "Most revocations of a page: 1 to 1000, default 100"),
        ("cursor" = Option<String>, Query, description = "As the Link header of the page before gave it"),
    ),
    responses(
        (status = 200, description = "A page, ordered by id; Link names the next", body = [Revocation]),
    )
)]
pub async fn list(
    _caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    current: LinearizableRead,
    uri: Uri,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Error> {
    let page = paging::Members::read(query, &["limit", "cursor"])?.page()?;
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
