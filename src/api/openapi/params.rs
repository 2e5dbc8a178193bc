//! Parameters that several operations share. Handlers parse them with `QueryParams` and from the headers; these types
//! only describe them.
#![expect(dead_code, reason = "only described in OpenAPI")]

use utoipa::IntoParams;

/// Pagination.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Page {
    /// Maximum number of rows; a page may have fewer.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// The cursor of the next page, from the header `Link`.
    cursor: Option<String>,
}

/// A tool in the path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ToolId {
    /// The tool
    tool_id: String,
}

/// A stream in the query.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StreamId {
    /// The stream.
    stream_id: String,
}

/// A retry key.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub struct IdempotencyKey {
    /// A retry with the same key and request has the same outcome. The key is scoped to the caller.
    #[param(rename = "Idempotency-Key", min_length = 1, max_length = 256, pattern = "^[!-~]+$")]
    idempotency_key: Option<String>,
}

/// A precondition of a change.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub struct IfMatch {
    /// Entity tags, one of which must be current, or `*` for any (RFC 9110 §13.1.1).
    #[param(rename = "If-Match")]
    if_match: Option<String>,
}

/// A precondition of a read.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub struct IfNoneMatch {
    /// Entity tags that the client has; if one is current, the response is 304 (RFC 9110 §13.1.2).
    #[param(rename = "If-None-Match")]
    if_none_match: Option<String>,
}

/// A precondition of a creation.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub struct MustBeNew {
    /// `*`: only if it does not exist.
    #[param(rename = "If-None-Match", pattern = "^\\*$")]
    if_none_match: Option<String>,
}
