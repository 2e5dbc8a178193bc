//! `/v1/signals/status`, `verification`, `subjects:add`, `subjects:remove` and `dead-letters`: wire types and translation
//! of operations on an existing stream (SSF 1.0 §8.1.2 to §8.1.4).

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::App;
use super::admin_audit::on_stream;
use super::cache_control::NO_STORE;
use super::caller::{Caller, ManageStreams, ReadStreams};
use super::error::Error;
use super::openapi::params::{Page, StreamId};
use super::paging::{self, RawQuery};
use super::streams::StreamErrors;
use super::streams::{named, read_body};
use crate::clock::Timestamp;
use crate::json;
use crate::state::{DeadLetter, EventId, LinearizableRead, Stream, stated};
use crate::text::values;

/// A change of status. An unknown field is refused.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusRequest {
    /// The stream.
    stream_id: String,
    /// `paused`: events are retained; `disabled`: events are not retained.
    #[schema(value_type = values::StreamStatus)]
    status: String,
    /// The reason: 1 to 256 bytes.
    reason: Option<String>,
}

/// The status of a stream.
#[derive(Serialize, ToSchema)]
pub struct StatusAnswer {
    /// The stream.
    stream_id: String,
    /// The status.
    #[schema(value_type = values::StreamStatus)]
    status: &'static str,
    /// The reason, as the receiver or this fabric gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// A request for a verification event. An unknown field is refused.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VerificationRequest {
    /// The stream.
    stream_id: String,
    /// Returned in the event: at most 256 bytes.
    state: Option<String>,
}

/// A subject of a stream. An unknown field is refused, also in the subject.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubjectRequest {
    /// The stream.
    stream_id: String,
    /// A subject identifier: `format` is `spiffe_id`, `uri`, `email`, `iss_sub`, `opaque`, `jwt_id`, `complex` or
    /// `aliases`.
    #[schema(value_type = Map<String, Value>)]
    subject: Value,
    /// Whether the receiver has verified the subject. It makes no difference.
    #[expect(dead_code, reason = "only its type is checked")]
    verified: Option<bool>,
}

/// An event that the receiver of a stream rejected permanently.
#[derive(Serialize, ToSchema)]
pub struct DeadLetterAnswer {
    /// `<log index>-<number>` of the event, as in the `jti` of its token.
    id: String,
    /// When it was rejected: log time, RFC 3339, UTC.
    at: String,
    /// The error code of the receiver (RFC 8935 §2.4).
    err: String,
    /// The description of the receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// The event type.
    event_type: String,
    /// The subject identifier; empty if it exceeds 512 bytes.
    sub_id: Map<String, Value>,
}

/// The status of a stream.
#[utoipa::path(get, path = "", operation_id = "getStreamStatus", params(StreamId), responses(
    (status = 200, description = "The status", body = StatusAnswer),
    StreamErrors,
))]
pub async fn status(
    caller: Caller<ReadStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    query: RawQuery,
) -> Result<Response, Error> {
    app.streams.base_url()?;
    let query = paging::QueryParams::read(query, &["stream_id"])?;
    Ok(of_status(&app.streams.get(&current, named(&query)?, &caller).await?.stream))
}

/// Enables, pauses or disables a stream. Events are retained for a paused stream, not for a disabled one.
#[utoipa::path(post, path = "", operation_id = "setStreamStatus", request_body = StatusRequest, responses(
    (status = 200, description = "The changed status", body = StatusAnswer),
    StreamErrors,
))]
pub async fn set_status(
    caller: Caller<ManageStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    let StatusRequest { stream_id, status, reason } = read(&app, &headers, body).await?;
    let set = app.streams.set_status(&current, &stream_id, (&status, reason), &caller);
    let stream = on_stream((&app, &current), &caller, ("set the status of", &stream_id), set).await?;
    let status = stream.status.into_str();
    tracing::info!(
        request_id = caller.request_id,
        stream_id,
        status,
        caller = caller.id(),
        "stream status set"
    );
    Ok(of_status(&stream))
}

/// Requests a verification event over a stream.
#[utoipa::path(post, path = "", operation_id = "verifyStream", request_body = VerificationRequest, responses(
    (status = 204, description = "The event is queued"),
    (status = 400, description = "The request is invalid, or the stream is not enabled"),
    (status = 429, description = "Within `min_verification_interval` of the previous one, or the rate limit of the caller"),
    StreamErrors,
))]
pub async fn verify(
    caller: Caller<ManageStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    let VerificationRequest { stream_id, state } = read(&app, &headers, body).await?;
    let verified = app.streams.verify(&current, &stream_id, state, &caller);
    on_stream((&app, &current), &caller, ("verify", &stream_id), verified).await?;
    Ok((StatusCode::NO_CONTENT, NO_STORE).into_response())
}

/// Adds a subject again that was removed from a stream; later events about it are delivered. A subject that stays
/// excluded because another removed one matches it, as aliases and complex subjects do, is refused.
#[utoipa::path(post, path = "", operation_id = "addSubject", request_body = SubjectRequest, responses(
    (status = 200, description = "The subject is included"),
    (status = 400, description = "The request is invalid, or another removed subject matches this one"),
    StreamErrors,
))]
pub async fn add_subject(
    caller: Caller<ManageStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    change_subject((&app, &current), &caller, (&headers, body), false).await?;
    Ok((StatusCode::OK, NO_STORE).into_response())
}

/// Removes a subject from a stream.
#[utoipa::path(post, path = "", operation_id = "removeSubject", request_body = SubjectRequest, responses(
    (status = 204, description = "The subject is excluded"),
    (status = 409, description = "The quota of removed subjects is used up"),
    StreamErrors,
))]
pub async fn remove_subject(
    caller: Caller<ManageStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    change_subject((&app, &current), &caller, (&headers, body), true).await?;
    Ok((StatusCode::NO_CONTENT, NO_STORE).into_response())
}

/// The events that the receiver of a stream rejected permanently, the last 1000.
#[utoipa::path(get, path = "", operation_id = "listDeadLetters", params(StreamId, Page), responses(
    (status = 200, description = "A page, oldest first", body = [DeadLetterAnswer]),
    StreamErrors,
))]
pub async fn dead_letters(
    caller: Caller<ReadStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    uri: Uri,
    query: RawQuery,
) -> Result<Response, Error> {
    app.streams.base_url()?;
    let query = paging::QueryParams::read(query, &["stream_id", "limit", "cursor"])?;
    let page = query.page()?;
    let after = page.after.as_deref().map(event_id).transpose()?;
    let stream_id = named(&query)?;
    let (letters, next) = app.streams.dead_letters(&current, stream_id, (after, page.limit), &caller)?;
    let rows: Vec<_> = letters.into_iter().map(row_of).collect();
    paging::answer(&uri, &rows, next.map(|next| next.to_string()).as_deref())
}

async fn read<T: DeserializeOwned>(app: &App, headers: &HeaderMap, body: Body) -> Result<T, Error> {
    Ok(json::read(&read_body(app, headers, body).await?)?)
}

async fn change_subject(
    (app, current): (&App, &LinearizableRead),
    caller: &Caller<ManageStreams>,
    (headers, body): (&HeaderMap, Body),
    is_removed: bool,
) -> Result<(), Error> {
    let SubjectRequest { stream_id, subject, .. } = read(app, headers, body).await?;
    let what = if is_removed { "remove a subject of" } else { "add a subject to" };
    let changed = app.streams.change_subject(current, &stream_id, (&subject, is_removed), caller);
    on_stream((app, current), caller, (what, &stream_id), changed).await
}

fn of_status(stream: &Stream) -> Response {
    let answer = StatusAnswer {
        stream_id: stream.config.stream_id.clone(),
        status: stream.status.into_str(),
        reason: stream.reason.clone(),
    };
    (NO_STORE, Json(answer)).into_response()
}

fn row_of((id, row): DeadLetter) -> DeadLetterAnswer {
    DeadLetterAnswer {
        id: id.to_string(),
        at: Timestamp::from_millis(row.at_millis).to_rfc3339(),
        sub_id: json::parse_object(row.sub_id.as_bytes()).unwrap_or_default(),
        err: row.err,
        description: stated(row.description),
        event_type: row.event_type,
    }
}

/// The text form of [`EventId`].
fn event_id(text: &str) -> Result<EventId, Error> {
    text.parse().map_err(|_| Error::invalid_request("cursor: must be from a Link header"))
}
