//! `/v1/blocks`: wire types and translation: list and lift subject blocks.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::admin_audit::Act;
use super::cache_control::NO_STORE;
use super::caller::{Caller, ClusterAdmin};
use super::error::Error;
use super::openapi::params::{IdempotencyKey, Page};
use super::paging::{self, RawQuery};
use super::text;
use crate::revocation;
use crate::revocation::Revocations;
use crate::state::{LinearizableRead, SubjectBlock, stated};
use crate::text::values;

/// A subject block in force: every credential that derives from the fact is refused, whenever it was issued.
#[derive(Serialize, ToSchema)]
pub struct Block {
    /// The digest of fact, blocker and family. Base64url.
    id: String,
    /// The kind of fact.
    #[schema(value_type = values::FactKind)]
    kind: String,
    /// The issuer of the value; absent for a workload identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// The blocked value.
    value: String,
    /// The issuer of the signal, or the operator; absent for an anonymous operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    /// The family of events, one of which lifts the block; `operator` for an operator's block.
    family: String,
    /// The time of the event, as the blocker stated it. RFC 3339, UTC.
    blocked_at: String,
    /// The reason, as the blocker stated it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Blocks by operators and by signals.
#[utoipa::path(get, path = "", operation_id = "listBlocks", params(Page), responses(
    (status = 200, description = "A page, ordered by `id`", body = [Block]),
))]
pub async fn list(
    _caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    current: LinearizableRead,
    uri: Uri,
    query: RawQuery,
) -> Result<Response, Error> {
    let page = paging::QueryParams::read(query, &["limit", "cursor"])?.page()?;
    let (blocked, next) = app.revocations.blocks(&current, page.after.as_deref(), page.limit)?;
    let rows: Vec<_> = blocked.into_iter().map(|blocked| row_of(&app.revocations, blocked)).collect();
    paging::answer(&uri, &rows, next.map(|next| next.to_string()).as_deref())
}

fn row_of(revocations: &Revocations, blocked: SubjectBlock) -> Block {
    let SubjectBlock { id, fact, by, family, at, reason } = blocked;
    Block {
        id: id.to_string(),
        kind: revocations.kind(&fact).to_owned(),
        issuer: stated(fact.issuer),
        value: fact.value,
        by: stated(by),
        family,
        blocked_at: at.to_rfc3339(),
        reason: stated(reason),
    }
}

/// Lifts a block. Credentials issued before the block stay revoked; an issuer may block again with a later event.
#[utoipa::path(
    delete, path = "", operation_id = "liftBlock",
    params(("id" = String, Path, description = "The `id` of the block"), IdempotencyKey),
    responses(
        (status = 204, description = "The block is lifted"),
        (status = 404, description = "The block does not exist"),
    )
)]
pub async fn lift(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, _) = request.into_parts();
    let Ok(Path(id)) = id else { return Err(revocation::Error::UnknownBlock.into()) };
    let caller = caller.with_key(&parts, b"")?;
    let act = Act::begin(&app, &caller, format!("lift block {}", text::printable(&id)))?;
    let lifted = app.revocations.lift(&id, &caller).await.map_err(Error::from);
    act.end(lifted, |()| String::new()).await?;
    tracing::warn!(request_id = caller.request_id, id, caller = caller.id(), "block lifted");
    Ok((StatusCode::NO_CONTENT, NO_STORE).into_response())
}
