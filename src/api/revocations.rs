//! `/v1/revocations`: routes and translation (contract §4): revocations by operators, their dry run, and the list of
//! all.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};

use super::App;
use super::admin_audit::Act;
use super::awaited;
use super::body;
use super::cache_control::NO_STORE;
use super::caller::{Caller, ClusterAdmin};
use super::error::Error;
use super::openapi::params::{IdempotencyKey, Page};
use super::paging::{self, RawQuery};
use super::read_consistency;
use crate::revocation::{DryRunPage, Revocation, RevocationInput, RevocationMade};
use crate::state::LinearizableRead;
use crate::{json, limits};

/// Revokes everything that derives from one fact and was issued before, in one log entry; or computes what that would
/// cover.
#[utoipa::path(
    post, path = "", operation_id = "revoke", request_body = RevocationInput,
    params(("dry_run" = Option<bool>, Query, description = "Only compute what would be revoked"), IdempotencyKey, Page),
    responses(
        (status = 202, description = "The revocation is in force on every node, and at awaited peers", body = RevocationMade, headers(("Svc-Federation" = String, description = "The awaited peer fabrics: `us=enforced, ap=lapsed`"))),
        (status = 200, description = "A page of the dry run", body = DryRunPage),
        (status = 404, description = "The agent or the signing key does not exist"),
    )
)]
pub async fn revoke(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    query: RawQuery,
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
    let made = app.revocations.revoke(&request, &caller).await.map_err(Error::from);
    let made = act.end(made, |made| format!("log index {}", made.index)).await?;
    let RevocationMade { id, kind, index, agents, awaited, .. } = &made;
    // Without the value, which may be an email address.
    tracing::warn!(request_id = caller.request_id, id, kind, index, agents, caller = caller.id(), "revoked");
    Ok((StatusCode::ACCEPTED, NO_STORE, awaited::header(awaited), Json(&made)).into_response())
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

/// Revocations by operators and by signals.
#[utoipa::path(get, path = "", operation_id = "listRevocations", params(Page), responses(
    (status = 200, description = "A page, ordered by `id`", body = [Revocation]),
))]
pub async fn list(
    _caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    current: LinearizableRead,
    uri: Uri,
    query: RawQuery,
) -> Result<Response, Error> {
    let page = paging::QueryParams::read(query, &["limit", "cursor"])?.page()?;
    let (rows, next) = app.revocations.list(&current, page.after.as_deref(), page.limit)?;
    paging::answer(&uri, &rows, next.map(|next| next.to_string()).as_deref())
}
