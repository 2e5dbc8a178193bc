//! `GET /v1/tools/{tool_id}/audit`, `GET /v1/audit` and `GET /v1/audit/blocks`: the audit of a tool, of administrative
//! acts, and of every node in blocks.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::caller::{Caller, ReadAudit};
use super::error::Error;
use super::openapi::params::Page;
use super::paging::{self, QueryParams, RawQuery};
use crate::clock::Timestamp;
use crate::state::LinearizableRead;
use crate::tools::audit::entry::{AuditBlockDocument, Entry};
use crate::tools::audit::trail::{self, DecodedBlock, ReadError};
use crate::tools::audit::{Action, Decision};

/// The target of a request, with its query.
type UriAndQuery = (Uri, RawQuery);

/// An audit block of one node.
#[derive(Serialize, ToSchema)]
pub struct AuditBlock {
    /// Its number among the blocks of all nodes.
    number: u64,
    /// When it was appended: log time, RFC 3339, UTC.
    appended_at: String,
    /// Bucket of the callers of the entries: the first byte of the SHA-256 of `caller`, modulo 64.
    bucket: u8,
    /// Base64url SHA-256 of the JSON array of the hashes of the entries.
    content: String,
    /// Number of entries.
    count: u64,
    /// In the order of recording; absent if they were dropped, because all entries together were too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Vec<Entry>>,
    /// Time of the first entry: RFC 3339, UTC.
    first: String,
    /// Base64url SHA-256 of the RFC 8785 form of `bucket`, `content`, `count`, `first`, `last`, `node_id`, `prev_hash` and
    /// `sequence`.
    hash: String,
    /// Time of the last entry: RFC 3339, UTC.
    last: String,
    /// The node that recorded it.
    node_id: u64,
    /// `hash` of the previous block of the node; empty for the first.
    prev_hash: String,
    /// Number among the blocks of the node, from 1.
    sequence: u64,
}

/// A tool's audit, newest first.
#[utoipa::path(
    get, path = "", operation_id = "getToolAudit",
    params(
        ("tool_id" = String, Path, description = "The tool; it may be deregistered"),
        ("decision" = Option<Decision>, Query, description = "Only entries with this decision"),
        ("since" = Option<String>, Query, description = "Only entries since this time, RFC 3339"),
        Page,
    ),
    responses(
        (status = 200, description = "A page of entries, newest first", body = [Entry]),
        (status = 404, description = "The tool does not exist and has no audit"),
    )
)]
pub async fn of_tool(
    _caller: Caller<ReadAudit>,
    State(app): State<App>,
    current: LinearizableRead,
    tool_id: Result<Path<String>, PathRejection>,
    (uri, query): UriAndQuery,
) -> Result<Response, Error> {
    // A tool_id is UTF-8.
    let Ok(Path(tool_id)) = tool_id else { return Err(ReadError::UnknownTool.into()) };
    let params = QueryParams::read(query, &["limit", "decision", "since", "cursor"])?;
    let page = params.page()?;
    let before = page.after.as_deref().map(trail_cursor);
    let query = trail::Query {
        limit: page.limit,
        decision: params.value("decision").map(decision).transpose()?,
        since: params.value("since").map(since).transpose()?,
        before: before.transpose()?,
        ..trail::Query::default()
    };
    let page = app.audit.trail(&current, &tool_id, &query).await?;
    paging::answer(&uri, &page.entries, page.next.map(|cursor| cursor.to_string()).as_deref())
}

/// Administrative acts: changes of policy, signing keys, revocations, blocks, allowances, members, the feature level and
/// peer fabrics, backups, and changes of agents and streams by operators that do not own them.
#[utoipa::path(
    get, path = "", operation_id = "listAdministrativeActs",
    params(
        ("action" = Option<String>, Query, description = "`admin`, the default: other actions are in the audit of their tool"),
        ("actor" = Option<String>, Query, description = "Only acts of this identity, byte for byte"),
        ("since" = Option<String>, Query, description = "Only entries since this time, RFC 3339"),
        Page,
    ),
    responses(
        (status = 200, description = "A page of entries, newest first", body = [Entry]),
    )
)]
pub async fn acts(
    _caller: Caller<ReadAudit>,
    State(app): State<App>,
    current: LinearizableRead,
    (uri, query): UriAndQuery,
) -> Result<Response, Error> {
    let params = QueryParams::read(query, &["action", "actor", "since", "limit", "cursor"])?;
    let page = params.page()?;
    if params.value("action").is_some_and(|action| action != Action::Admin.into_str()) {
        return Err(Error::invalid_request(
            "action: must be admin; other actions are in the audit of their tool",
        ));
    }
    let query = trail::Query {
        limit: page.limit,
        action: Some(Action::Admin),
        actor: params.value("actor").map(str::to_owned),
        since: params.value("since").map(since).transpose()?,
        before: page.after.as_deref().map(trail_cursor).transpose()?,
        decision: None,
    };
    let page = app.audit.acts(&current, &query).await?;
    paging::answer(&uri, &page.entries, page.next.map(|cursor| cursor.to_string()).as_deref())
}

/// The audit of every node in blocks, oldest first, for an export.
#[utoipa::path(
    get, path = "", operation_id = "listAuditBlocks",
    params(
        ("after" = Option<u64>, Query, description = "Only blocks with greater numbers; ignored with `cursor`"),
        Page,
    ),
    responses(
        (status = 200, description = "A page of blocks, oldest first", body = [AuditBlock]),
    )
)]
pub async fn blocks(
    _caller: Caller<ReadAudit>,
    State(app): State<App>,
    current: LinearizableRead,
    (uri, query): UriAndQuery,
) -> Result<Response, Error> {
    let params = QueryParams::read(query, &["after", "limit", "cursor"])?;
    let page = params.page()?;
    let number = |text: &str, rule: &str| text.parse::<u64>().map_err(|_| Error::invalid_request(rule));
    let after =
        params.value("after").map(|text| number(text, "after: must be a whole number")).transpose()?;
    let cursor = page.after.as_deref();
    let cursor = cursor.map(|text| number(text, "cursor: must be from a Link header")).transpose()?;
    let (blocks, is_more) = app.audit.blocks(&current, cursor.or(after).unwrap_or(0), page.limit).await?;
    let next = blocks.last().filter(|_| is_more).map(|block| block.number.to_string());
    let blocks: Vec<AuditBlock> = blocks.into_iter().map(AuditBlock::from).collect();
    paging::answer(&uri, &blocks, next.as_deref())
}

fn trail_cursor(cursor: &str) -> Result<trail::TrailCursor, Error> {
    cursor.parse().map_err(|()| Error::invalid_request("cursor: must be from a Link header"))
}

fn decision(text: &str) -> Result<Decision, Error> {
    let all = [Decision::Allow, Decision::Deny, Decision::Error];
    let known = all.into_iter().find(|decision| decision.into_str() == text);
    known.ok_or_else(|| Error::invalid_request("decision: must be allow, deny or error"))
}

fn since(text: &str) -> Result<Timestamp, Error> {
    let rule = "since: must be an RFC 3339 time, for example 2026-11-20T08:00:00Z";
    Timestamp::from_rfc3339(text).ok_or_else(|| Error::invalid_request(rule))
}

impl From<DecodedBlock> for AuditBlock {
    fn from(block: DecodedBlock) -> Self {
        let DecodedBlock { number, appended_at, block } = block;
        let AuditBlockDocument {
            bucket,
            content,
            count,
            entries,
            first,
            hash,
            last,
            node_id,
            prev_hash,
            sequence,
        } = block;
        let appended_at = appended_at.to_rfc3339();
        Self {
            number,
            appended_at,
            bucket,
            content,
            count,
            entries,
            first,
            hash,
            last,
            node_id,
            prev_hash,
            sequence,
        }
    }
}
