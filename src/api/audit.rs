//! `GET /v1/tools/{tool_id}/audit`, `GET /v1/audit` and `GET /v1/audit/blocks`: the audit of one tool, of
//! administrative acts, or all of it.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::Uri;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::caller::{Caller, ReadAudit};
use super::error::{self, Error};
use super::paging::{self, Members};
use crate::clock::Timestamp;
use crate::state::LinearizableRead;
use crate::tools::audit::entry::{AuditBlockDocument, Entry};
use crate::tools::audit::trail::{self, DecodedBlock, ReadError};
use crate::tools::audit::{self, Action, Decision};

/// Where was asked, with its query.
type Asked = (Uri, Result<Query<Vec<(String, String)>>, QueryRejection>);

/// A block of one node's audit, as the log has it.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditBlock)]
pub struct KeptBlock {
    /// Its place among the blocks of all nodes.
    number: u64,
    /// When it was appended, in log time: RFC 3339, UTC.
    appended_at: String,
    /// In the order in which they were written.
    entries: Vec<Entry>,
    /// Base64url SHA-256 of the RFC 8785 form of `entries`, `node_id`, `prev_hash` and `sequence`, with the
    /// `hash` of each entry in the place of the entry.
    hash: String,
    /// Whose it is.
    node_id: u64,
    /// `hash` of the node's block before it; empty for the first.
    prev_hash: String,
    /// Counts the blocks of that node from 1.
    sequence: u64,
}

/// A tool's audit, newest first.
#[utoipa::path(
    get,
    path = "/v1/tools/{tool_id}/audit",
    operation_id = "getToolAudit",
    params(
        ("tool_id" = String, Path, description = "The tool, registered or not any more"),
        ("limit" = Option<usize>, Query, description = "Most entries; a page may have fewer"),
        ("decision" = Option<String>, Query, description = "Only `allow`, `deny` or `error`"),
        ("since" = Option<String>, Query, description = "Only entries from then on: RFC 3339"),
        ("cursor" = Option<String>, Query, description = "From a Link header"),
    ),
    responses(
        (status = 200, description = "A page of entries; Link names the next one", body = [Entry]),
        (status = 404, description = "There is no such tool, and no audit of one", body = error::Body),
    )
)]
pub async fn of_tool(
    _caller: Caller<ReadAudit>,
    State(app): State<App>,
    current: LinearizableRead,
    tool_id: Result<Path<String>, PathRejection>,
    (uri, query): Asked,
) -> Result<Response, Error> {
    // A tool_id is UTF-8: what is not names no tool.
    let Ok(Path(tool_id)) = tool_id else { return Err(ReadError::UnknownTool.into()) };
    let members = Members::read(query, &["limit", "decision", "since", "cursor"])?;
    let page = members.page()?;
    let before = page.after.as_deref().map(place);
    let query = trail::Query {
        limit: page.limit,
        decision: members.value("decision").map(decision).transpose()?,
        since: members.value("since").map(since).transpose()?,
        before: before.transpose()?,
        ..trail::Query::default()
    };
    let page = app.audit.trail(&current, &tool_id, &query).await?;
    paging::answer(&uri, &page.entries, page.next.map(|place| place.to_string()).as_deref())
}

/// The administrative acts: changes of policy, signing keys, revocations, blocks and allowances, and of streams by
/// operators that do not own them.
#[utoipa::path(
    get,
    path = "/v1/audit",
    operation_id = "listAdministrativeActs",
    params(
        ("action" = Option<String>, Query, description = "`admin`, which is the default: the other actions are in the audit of their tool"),
        ("actor" = Option<String>, Query, description = "Only acts of this identity, byte for byte"),
        ("since" = Option<String>, Query, description = "Only entries from then on: RFC 3339"),
        ("limit" = Option<usize>, Query, description = "Most entries; a page may have fewer"),
        ("cursor" = Option<String>, Query, description = "From a Link header"),
    ),
    responses((status = 200, description = "A page of entries, newest first; Link names the next one", body = [Entry]))
)]
pub async fn acts(
    _caller: Caller<ReadAudit>,
    State(app): State<App>,
    current: LinearizableRead,
    (uri, query): Asked,
) -> Result<Response, Error> {
    let members = Members::read(query, &["action", "actor", "since", "limit", "cursor"])?;
    let page = members.page()?;
    if members.value("action").is_some_and(|action| action != Action::Admin.as_str()) {
        return Err(Error::invalid_request(
            "action: must be admin; other actions are in the audit of their tool",
        ));
    }
    let query = trail::Query {
        limit: page.limit,
        action: Some(Action::Admin),
        actor: members.value("actor").map(str::to_owned),
        since: members.value("since").map(since).transpose()?,
        before: page.after.as_deref().map(place).transpose()?,
        decision: None,
    };
    let page = app.audit.acts(&current, &query).await?;
    paging::answer(&uri, &page.entries, page.next.map(|place| place.to_string()).as_deref())
}

/// The audit of every node in blocks, oldest first: what an export is made of.
#[utoipa::path(
    get,
    path = "/v1/audit/blocks",
    operation_id = "listAuditBlocks",
    params(
        ("after" = Option<u64>, Query, description = "Only blocks with greater numbers"),
        ("limit" = Option<usize>, Query, description = "Most blocks; a page may have fewer"),
        ("cursor" = Option<String>, Query, description = "From a Link header; `after` does not count then"),
    ),
    responses((status = 200, description = "A page of blocks; Link names the next one", body = [KeptBlock]))
)]
pub async fn blocks(
    _caller: Caller<ReadAudit>,
    State(app): State<App>,
    current: LinearizableRead,
    (uri, query): Asked,
) -> Result<Response, Error> {
    let members = Members::read(query, &["after", "limit", "cursor"])?;
    let page = members.page()?;
    let number = |text: &str, rule: &str| text.parse::<u64>().map_err(|_| Error::invalid_request(rule));
    let after =
        members.value("after").map(|text| number(text, "after: must be a whole number")).transpose()?;
    let cursor = page.after.as_deref();
    let cursor =
        cursor.map(|text| number(text, "cursor: must be one that a Link header gave")).transpose()?;
    let (blocks, is_more) = app.audit.blocks(&current, cursor.or(after).unwrap_or(0), page.limit).await?;
    let next = blocks.last().filter(|_| is_more).map(|block| block.number.to_string());
    let blocks: Vec<KeptBlock> = blocks.into_iter().map(KeptBlock::from).collect();
    paging::answer(&uri, &blocks, next.as_deref())
}

fn place(cursor: &str) -> Result<trail::TrailCursor, Error> {
    cursor.parse().map_err(|()| Error::invalid_request("cursor: must be one that a Link header gave"))
}

fn decision(text: &str) -> Result<Decision, Error> {
    let all = [Decision::Allow, Decision::Deny, Decision::Error];
    let known = all.into_iter().find(|decision| decision.as_str() == text);
    known.ok_or_else(|| Error::invalid_request("decision: must be allow, deny or error"))
}

fn since(text: &str) -> Result<Timestamp, Error> {
    let rule = "since: must be a time as RFC 3339 writes it, for example 2026-11-20T08:00:00Z";
    Timestamp::from_rfc3339(text).ok_or_else(|| Error::invalid_request(rule))
}

impl From<DecodedBlock> for KeptBlock {
    fn from(block: DecodedBlock) -> Self {
        let DecodedBlock { number, appended_at, block } = block;
        let AuditBlockDocument { entries, hash, node_id, prev_hash, sequence } = block;
        Self { number, appended_at: appended_at.to_rfc3339(), entries, hash, node_id, prev_hash, sequence }
    }
}

impl From<audit::Error> for Error {
    fn from(error: audit::Error) -> Self {
        Self::unavailable(error.to_string())
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::UnknownTool => Self::not_found(error.to_string()),
            ReadError::Unshipped(_) | ReadError::Busy => Self::unavailable(error.to_string()),
            ReadError::Registry(error) => error.into(),
            ReadError::Damaged(corrupt) => Self::internal(corrupt),
            ReadError::Unreadable => Self::internal(error),
        }
    }
}
