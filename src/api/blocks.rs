//! `/v1/blocks`: wire types and translation: what is refused until that is lifted, and lifting it.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::admin_audit::Act;
use super::cache_control::NO_STORE;
use super::caller::{Caller, ClusterAdmin};
use super::error::{self, Error};
use super::text;
use super::{idempotency, paging};
use crate::revocation;
use crate::revocation::Revocations;
use crate::state::{LinearizableRead, SubjectBlock, stated};

/// A block that is not lifted: whatever derives from the fact is refused, whenever it was issued.
#[derive(Serialize, ToSchema)]
pub struct Block {
    /// Its name: the digest of the fact, and of who blocks it for the sake of what. Base64url.
    id: String,
    /// `subject`, `agent`, `email`, `client`, `token` or `key`
    kind: String,
    /// Whose word it is; absent for a workload identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// What is blocked.
    value: String,
    /// The issuer of the signal, or the operator; absent for nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    /// The family of events, of which another one lifts it; `operator` for an operator's block.
    family: String,
    /// When it happened, as whoever blocked it says. RFC 3339, UTC.
    blocked_at: String,
    /// Why, as whoever blocked it said.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// What is blocked, by operators and by signals.
#[utoipa::path(
    get,
    path = "/v1/blocks",
    operation_id = "listBlocks",
    params(
        ("limit" = Option<usize>, Query, description = "Most blocks of a page: 1 to 1000, default 100; there may be fewer"),
        ("cursor" = Option<String>, Query, description = "As the Link header of the page before gave it"),
    ),
    responses(
        (status = 200, description = "A page, ordered by id; Link names the next", body = [Block]),
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

/// Lifts a block, whoever blocked it. What was issued before the block stays revoked; an issuer may block again,
/// with a later event.
#[utoipa::path(
    delete,
    path = "/v1/blocks/{id}",
    operation_id = "liftBlock",
    params(
        ("id" = String, Path, description = "As the list says it"),
        ("Idempotency-Key" = Option<String>, Header, description = "A retry with the same key is answered alike"),
    ),
    responses(
        (status = 204, description = "It is lifted"),
        (status = 404, description = "There is no such block, or it is lifted", body = error::Body),
        (status = 422, description = "The Idempotency-Key came with another request", body = error::Body),
        (status = 503, description = "Not possible now", body = error::Body),
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
    let idempotency =
        idempotency::idempotency(&parts.headers, caller.id(), (&parts.method, &parts.uri), b"")?;
    let act = Act::begin(&app, &caller, format!("lift block {}", text::printable(&id)))?;
    let lifted = app.revocations.lift(&id, caller.facts(), idempotency).await.map_err(Error::from);
    act.end(lifted, |()| String::new()).await?;
    let request_id = super::middleware::current_request_id();
    tracing::warn!(request_id, id, caller = caller.id(), "block lifted");
    Ok((StatusCode::NO_CONTENT, NO_STORE).into_response())
}
