//! `/v1/tools…` and `/v1/mcp/tools…`: routes and headers (contract §4, §5).
//!
//! Both route sets differ only in their path and in [`RegistryView`].

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{CACHE_CONTROL, ETAG, IF_MATCH, IF_NONE_MATCH, LOCATION};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use super::App;
use super::caller::{Caller, ManageTools, ReadTools};
use super::error::Error;
use super::etag;
use super::etag::Tags;
use super::paging::{self, RawQuery};
use super::{body, text};
use crate::api::openapi::params::{self, IdempotencyKey, IfMatch, IfNoneMatch, MustBeNew, Page};
use crate::state::command::{ToolRow, ToolVersion};
use crate::state::{self, LinearizableRead, Refusal, ToolQuery};
use crate::text::values;
use crate::tools::entry::{self, ToolEntry, ToolRecord};
use crate::tools::registry::{Precondition, RegistryChange, RegistryView, Written};
use crate::{json, limits};

type ToolId = Result<Path<String>, PathRejection>;

/// Registers a tool.
#[utoipa::path(
    post, path = "", operation_id = "registerTool", request_body = ToolEntry, params(IdempotencyKey),
    responses(
        (status = 201, description = "The tool is registered", body = ToolRecord),
        (status = 200, description = "The tool was already registered with the same content", body = ToolRecord),
        (status = 409, description = "The tool is registered with other content, or the registry is full"),
    )
)]
pub async fn register(
    caller: Caller<ManageTools>,
    State(app): State<App>,
    request: Request,
) -> Result<Response, Error> {
    register_through(RegistryView::Every, &app, caller, request).await
}

/// Registers a tool that supports MCP.
#[utoipa::path(
    post, path = "", operation_id = "registerMcpTool", request_body = ToolEntry, params(IdempotencyKey),
    responses(
        (status = 201, description = "The tool is registered", body = ToolRecord),
        (status = 200, description = "The tool was already registered with the same content", body = ToolRecord),
        (status = 409, description = "The tool is registered with other content, or the registry is full"),
    )
)]
pub async fn register_mcp(
    caller: Caller<ManageTools>,
    State(app): State<App>,
    request: Request,
) -> Result<Response, Error> {
    register_through(RegistryView::Mcp, &app, caller, request).await
}

async fn register_through(
    view: RegistryView,
    app: &App,
    caller: Caller<ManageTools>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, bytes) = read(request).await?;
    // Preconditions belong to the tool, not to the list.
    etag::refuse(&parts.headers, &[IF_MATCH, IF_NONE_MATCH])?;
    let entry = json::read::<ToolEntry>(&bytes)?.validate()?;
    if let Some(protocol) = view.protocol()
        && !entry.protocols().iter().any(|known| known == protocol)
    {
        return Err(Error::invalid_request(format!("protocols: must include {protocol} here")));
    }
    let caller = caller.with_key(&parts, &bytes)?;
    let written = app.registry.register(entry, &caller).await?;
    answer_write(app, view, written)
}

/// Registers or replaces a tool.
#[utoipa::path(
    put, path = "", operation_id = "putTool", request_body = ToolEntry,
    params(params::ToolId, IfMatch, MustBeNew, IdempotencyKey),
    responses(
        (status = 201, description = "The tool is registered", body = ToolRecord),
        (status = 200, description = "The tool is replaced or unchanged", body = ToolRecord),
        (status = 403, description = "Another caller registered the tool"),
        (status = 409, description = "The registry is full"),
    )
)]
pub async fn put(
    caller: Caller<ManageTools>,
    State(app): State<App>,
    tool_id: ToolId,
    request: Request,
) -> Result<Response, Error> {
    let (parts, bytes) = read(request).await?;
    let condition =
        Precondition { must_be_new: must_be_new(&parts.headers)?, ..if_match(&app, &parts.headers)? };
    let mut input: ToolEntry = json::read(&bytes)?;
    // A tool_id is UTF-8.
    let tool_id = tool_id.map_or_else(|_| String::new(), |Path(tool_id)| tool_id);
    if input.tool_id.as_ref().is_some_and(|given| *given != tool_id) {
        return Err(Error::invalid_request("tool_id: must be the one in the path, or absent"));
    }
    input.tool_id = Some(tool_id);
    let entry = input.validate()?;
    let caller = caller.with_key(&parts, &bytes)?;
    let written = app.registry.replace(entry, condition, &caller).await?;
    answer_write(&app, RegistryView::Every, written)
}

/// Lists tools, ordered by `tool_id`.
#[utoipa::path(
    get, path = "", operation_id = "listTools",
    params(("protocol" = Option<values::Protocol>, Query, description = "Only tools that support this protocol"), Page),
    responses(
        (status = 200, description = "A page, ordered by `tool_id`", body = [ToolRecord]),
    )
)]
pub async fn list(
    _caller: Caller<ReadTools>,
    State(app): State<App>,
    current: LinearizableRead,
    uri: Uri,
    query: RawQuery,
) -> Result<Response, Error> {
    let query = paging::QueryParams::read(query, &["limit", "cursor", "protocol"])?;
    let protocol = query.value("protocol");
    if protocol.is_some_and(|protocol| !values::Protocol::TEXTS.contains(&protocol)) {
        return Err(Error::invalid_request(format!("protocol: {}", entry::PROTOCOL_RULE)));
    }
    answer_list(&app, &current, &uri, &query, protocol)
}

/// Lists tools that support MCP, ordered by `tool_id`.
#[utoipa::path(get, path = "", operation_id = "listMcpTools", params(Page), responses(
    (status = 200, description = "A page, ordered by `tool_id`", body = [ToolRecord]),
))]
pub async fn list_mcp(
    _caller: Caller<ReadTools>,
    State(app): State<App>,
    current: LinearizableRead,
    uri: Uri,
    query: RawQuery,
) -> Result<Response, Error> {
    let query = paging::QueryParams::read(query, &["limit", "cursor"])?;
    answer_list(&app, &current, &uri, &query, RegistryView::Mcp.protocol())
}

fn answer_list(
    app: &App,
    current: &LinearizableRead,
    uri: &Uri,
    query: &paging::QueryParams,
    protocol: Option<&str>,
) -> Result<Response, Error> {
    let page = query.page()?;
    let wanted = ToolQuery { after: page.after.as_deref(), protocol, limit: page.limit };
    let page = app.registry.tools(current, wanted)?;
    let records = page.rows.into_iter().map(ToolRecord::try_from).collect::<Result<Vec<_>, _>>()?;
    paging::answer(uri, &records, page.next.as_deref())
}

/// Reads a tool.
#[utoipa::path(get, path = "", operation_id = "getTool", params(params::ToolId, IfMatch, IfNoneMatch), responses(
    (status = 200, description = "The tool", body = ToolRecord),
    (status = 404, description = "The tool does not exist"),
))]
pub async fn get(
    _caller: Caller<ReadTools>,
    State(app): State<App>,
    current: LinearizableRead,
    tool_id: ToolId,
    headers: HeaderMap,
) -> Result<Response, Error> {
    answer_one(&app, &current, RegistryView::Every, &id_of(tool_id)?, &headers)
}

/// Reads a tool that supports MCP.
#[utoipa::path(get, path = "", operation_id = "getMcpTool", params(params::ToolId, IfMatch, IfNoneMatch), responses(
    (status = 200, description = "The tool", body = ToolRecord),
    (status = 404, description = "The tool does not exist or does not support MCP"),
))]
pub async fn get_mcp(
    _caller: Caller<ReadTools>,
    State(app): State<App>,
    current: LinearizableRead,
    tool_id: ToolId,
    headers: HeaderMap,
) -> Result<Response, Error> {
    answer_one(&app, &current, RegistryView::Mcp, &id_of(tool_id)?, &headers)
}

fn answer_one(
    app: &App,
    current: &LinearizableRead,
    view: RegistryView,
    tool_id: &str,
    headers: &HeaderMap,
) -> Result<Response, Error> {
    let row = app.registry.tool(current, tool_id, view)?;
    if !if_match(app, headers)?.holds_for(&row) {
        return Err(state::Error::Refused(Refusal::PreconditionFailed).into());
    }
    let etag = etag_of(app, &row)?;
    let is_known = etag::is_known(headers, &etag)?;
    let etag = HeaderValue::try_from(etag).map_err(Error::internal)?;
    let common = [(ETAG, etag), (CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
    if is_known {
        return Ok((StatusCode::NOT_MODIFIED, common).into_response());
    }
    Ok((common, Json(ToolRecord::try_from(row)?)).into_response())
}

/// Deregisters a tool. Its audit stays.
#[utoipa::path(
    delete, path = "", operation_id = "deregisterTool", params(params::ToolId, IfMatch, IdempotencyKey),
    responses(
        (status = 204, description = "The tool is deregistered"),
        (status = 403, description = "Another caller registered the tool"),
        (status = 404, description = "The tool does not exist"),
    )
)]
pub async fn deregister(
    caller: Caller<ManageTools>,
    State(app): State<App>,
    tool_id: ToolId,
    request: Request,
) -> Result<StatusCode, Error> {
    deregister_through(RegistryView::Every, &app, caller, id_of(tool_id)?, request).await
}

/// Deregisters a tool that supports MCP. Its audit stays.
#[utoipa::path(
    delete, path = "", operation_id = "deregisterMcpTool", params(params::ToolId, IfMatch, IdempotencyKey),
    responses(
        (status = 204, description = "The tool is deregistered"),
        (status = 403, description = "Another caller registered the tool"),
        (status = 404, description = "The tool does not exist or does not support MCP"),
    )
)]
pub async fn deregister_mcp(
    caller: Caller<ManageTools>,
    State(app): State<App>,
    tool_id: ToolId,
    request: Request,
) -> Result<StatusCode, Error> {
    deregister_through(RegistryView::Mcp, &app, caller, id_of(tool_id)?, request).await
}

/// Deregisters a tool that supports MCP, named in the query. Its audit stays.
#[utoipa::path(
    delete, path = "", operation_id = "deregisterMcpToolByQuery",
    params(("tool_id" = String, Query, description = "The tool"), IfMatch, IdempotencyKey),
    responses(
        (status = 204, description = "The tool is deregistered"),
        (status = 403, description = "Another caller registered the tool"),
        (status = 404, description = "The tool does not exist or does not support MCP"),
    )
)]
pub async fn deregister_mcp_by_query(
    caller: Caller<ManageTools>,
    State(app): State<App>,
    query: RawQuery,
    request: Request,
) -> Result<StatusCode, Error> {
    let query = paging::QueryParams::read(query, &["tool_id"])?;
    let tool_id = query.value("tool_id").filter(|tool_id| !tool_id.is_empty());
    let tool_id = tool_id.ok_or_else(|| Error::invalid_request("tool_id: is required in the query"))?;
    deregister_through(RegistryView::Mcp, &app, caller, tool_id.to_owned(), request).await
}

async fn deregister_through(
    view: RegistryView,
    app: &App,
    caller: Caller<ManageTools>,
    tool_id: String,
    request: Request,
) -> Result<StatusCode, Error> {
    let (parts, _) = request.into_parts();
    etag::refuse(&parts.headers, &[IF_NONE_MATCH])?;
    let condition = if_match(app, &parts.headers)?;
    let caller = caller.with_key(&parts, b"")?;
    app.registry.deregister(tool_id, view, condition, &caller).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Reads a request with a tool.
async fn read(request: Request) -> Result<(request::Parts, Bytes), Error> {
    let (parts, body) = request.into_parts();
    let bytes = body::json_bytes(&parts.headers, body, limits::TOOL_BODY_BYTES_MAX).await?;
    Ok((parts, bytes))
}

/// A `tool_id` is UTF-8.
fn id_of(tool_id: ToolId) -> Result<String, Error> {
    tool_id.map(|Path(tool_id)| tool_id).map_err(|_| state::Error::Refused(Refusal::UnknownTool).into())
}

/// `If-Match`. A list without any valid version becomes a version that never exists.
fn if_match(app: &App, headers: &HeaderMap) -> Result<Precondition, Error> {
    const NEVER: ToolVersion = ToolVersion { registration: 0, revision: 0 };
    Ok(match etag::tags(headers, &IF_MATCH)? {
        None => Precondition::default(),
        Some(Tags::Any) => Precondition { must_exist: true, ..Precondition::default() },
        Some(Tags::These(tags)) => {
            // RFC 9110 §13.1.1: "MUST use the strong comparison function".
            let strong = tags.iter().filter(|tag| !tag.is_weak);
            let mut expected: Vec<ToolVersion> =
                strong.filter_map(|tag| version_of(app, &tag.opaque)).collect();
            if expected.is_empty() {
                expected.push(NEVER);
            }
            Precondition { expected, ..Precondition::default() }
        }
    })
}

/// `If-None-Match` of a write.
fn must_be_new(headers: &HeaderMap) -> Result<bool, Error> {
    match etag::tags(headers, &IF_NONE_MATCH)? {
        None => Ok(false),
        Some(Tags::Any) => Ok(true),
        Some(Tags::These(_)) => Err(Error::invalid_request("If-None-Match: only * is supported here")),
    }
}

fn answer_write(app: &App, view: RegistryView, written: Written) -> Result<Response, Error> {
    let etag = HeaderValue::try_from(etag_of(app, &written.row)?).map_err(Error::internal)?;
    let record = ToolRecord::try_from(written.row)?;
    if written.outcome != RegistryChange::Registered {
        return Ok(([(ETAG, etag)], Json(record)).into_response());
    }
    let list = match view {
        RegistryView::Every => "/v1/tools",
        RegistryView::Mcp => "/v1/mcp/tools",
    };
    let location = format!("{list}/{}", text::segment(record.tool_id()));
    let location = HeaderValue::try_from(location).map_err(Error::internal)?;
    Ok((StatusCode::CREATED, [(ETAG, etag), (LOCATION, location)], Json(record)).into_response())
}

/// The strong entity tag of a tool.
fn etag_of(app: &App, row: &ToolRow) -> Result<String, Error> {
    let version = row.version.ok_or_else(|| Error::internal("a tool has no version"))?;
    Ok(text_of(app, version))
}

/// Begins with the incarnation of the cluster: one that is restored from a backup counts again.
fn text_of(app: &App, version: ToolVersion) -> String {
    let incarnation =
        app.state.index().incarnation.map(|incarnation| incarnation.to_string()).unwrap_or_default();
    format!("\"{incarnation:.8}.{}.{}\"", version.registration, version.revision)
}

/// The version that an entity tag names. Tags are compared character by character, so only one spelling counts.
fn version_of(app: &App, etag: &str) -> Option<ToolVersion> {
    let (_, version) = etag.trim_matches('"').split_once('.')?;
    let (registration, revision) = version.split_once('.')?;
    let version = ToolVersion { registration: registration.parse().ok()?, revision: revision.parse().ok()? };
    (text_of(app, version) == etag).then_some(version)
}
