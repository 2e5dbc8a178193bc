//! `/v1/signals/status`, `verification`, `subjects:add`, `subjects:remove` and `dead-letters`: wire types and
//! translation of what is done with a stream that is there (SSF 1.0 §8.1.2 to §8.1.4).

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
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
use super::error::{self, Error};
use super::paging;
use super::streams::{named, read_body, who};
use crate::json;
use crate::state::{DeadLetter, EventId, LinearizableRead, Stream, stated};

/// A status that is asked for. An unknown member is refused.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusRequest {
    /// Which stream.
    stream_id: String,
    /// `enabled`; `paused`: what happens is held for it; `disabled`: what happens is not held
    status: String,
    /// Why: 1 to 256 bytes.
    reason: Option<String>,
}

/// The status of a stream.
#[derive(Serialize, ToSchema)]
pub struct StatusAnswer {
    /// Which.
    stream_id: String,
    /// `enabled`, `paused` or `disabled`
    status: &'static str,
    /// Why, if somebody said so: the receiver, or this fabric where it has paused the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// A verification event that is asked for. An unknown member is refused.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VerificationRequest {
    /// Which stream.
    stream_id: String,
    /// Comes back in the event: at most 256 bytes.
    state: Option<String>,
}

/// A subject of a stream. An unknown member is refused, also in the subject.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubjectRequest {
    /// Which stream.
    stream_id: String,
    /// A subject identifier: `format` is `spiffe_id`, `uri`, `email`, `iss_sub`, `opaque`, `jwt_id`, `complex` or
    /// `aliases`.
    #[schema(value_type = Map<String, Value>)]
    subject: Value,
    /// Whether the receiver has verified the subject. Every subject is treated alike.
    #[expect(dead_code, reason = "its type is checked, and every subject is treated alike")]
    verified: Option<bool>,
}

/// An event that the receiver of a stream refused for good.
#[derive(Serialize, ToSchema)]
pub struct DeadLetterAnswer {
    /// `<log index>-<number>` of the event; it is in the `jti` under which it was sent.
    id: String,
    /// When it was refused: log time, RFC 3339, UTC.
    at: String,
    /// What the receiver said (RFC 8935 §2.4).
    err: String,
    /// What it said for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// The type of the event.
    event_type: String,
    /// Whom it is about; empty if that takes more than 512 bytes, which are not kept.
    sub_id: Map<String, Value>,
}

/// The status of a stream.
#[utoipa::path(
    get,
    path = "/v1/signals/status",
    operation_id = "getStreamStatus",
    params(("stream_id" = String, Query, description = "Which")),
    responses(
        (status = 200, description = "The status", body = StatusAnswer),
        (status = 400, description = "No stream is named", body = error::Body),
        (status = 404, description = "There is no such stream, or it is somebody else's", body = error::Body),
        (status = 501, description = "The transmitter is not configured", body = error::Body),
    )
)]
pub async fn status(
    caller: Caller<ReadStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Error> {
    app.streams.base_url()?;
    let query = paging::Members::read(query, &["stream_id"])?;
    Ok(of_status(&app.streams.get(&current, named(&query)?, &who(&caller)).await?.stream))
}

/// Enables, pauses or disables a stream. What happens while it is paused is held for it; while it is disabled,
/// it is not.
#[utoipa::path(
    post,
    path = "/v1/signals/status",
    operation_id = "setStreamStatus",
    request_body = StatusRequest,
    responses(
        (status = 200, description = "The status as it is now", body = StatusAnswer),
        (status = 400, description = "A member is missing, unknown or not valid", body = error::Body),
        (status = 404, description = "There is no such stream, or it is somebody else's", body = error::Body),
        (status = 501, description = "The transmitter is not configured", body = error::Body),
        (status = 503, description = "Not possible now", body = error::Body),
    )
)]
pub async fn set_status(
    caller: Caller<ManageStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    let StatusRequest { stream_id, status, reason } = read(&app, &headers, body).await?;
    let who = who(&caller);
    let set = app.streams.set_status(&current, &stream_id, (&status, reason), &who);
    let stream = on_stream((&app, &current), &caller, ("set the status of", &stream_id), set).await?;
    let request_id = super::middleware::current_request_id();
    let status = stream.status.as_str();
    tracing::info!(request_id, stream_id, status, caller = caller.id(), "stream status set");
    Ok(of_status(&stream))
}

/// Has a verification event sent over a stream.
#[utoipa::path(
    post,
    path = "/v1/signals/verification",
    operation_id = "verifyStream",
    request_body = VerificationRequest,
    responses(
        (status = 204, description = "It will be sent"),
        (status = 400, description = "A member is missing, unknown or not valid, or the stream is not enabled", body = error::Body),
        (status = 404, description = "There is no such stream, or it is somebody else's", body = error::Body),
        (status = 429, description = "Sooner than `min_verification_interval` after the one before, or too many requests of this caller", body = error::Body),
        (status = 501, description = "The transmitter is not configured", body = error::Body),
        (status = 503, description = "Not possible now", body = error::Body),
    )
)]
pub async fn verify(
    caller: Caller<ManageStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    let VerificationRequest { stream_id, state } = read(&app, &headers, body).await?;
    let who = who(&caller);
    let verified = app.streams.verify(&current, &stream_id, state, &who);
    on_stream((&app, &current), &caller, ("verify", &stream_id), verified).await?;
    Ok((StatusCode::NO_CONTENT, NO_STORE).into_response())
}

/// Has a stream told about a subject again that was removed from it: of what happens from here on. One that stays
/// removed because another one matches it, as aliases and complex subjects do, is refused.
#[utoipa::path(
    post,
    path = "/v1/signals/subjects:add",
    operation_id = "addSubject",
    request_body = SubjectRequest,
    responses(
        (status = 200, description = "The stream is told about it"),
        (status = 400, description = "A member is missing, unknown or not valid, or another subject that was removed matches this one", body = error::Body),
        (status = 404, description = "There is no such stream, or it is somebody else's", body = error::Body),
        (status = 501, description = "The transmitter is not configured", body = error::Body),
        (status = 503, description = "Not possible now", body = error::Body),
    )
)]
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

/// Has a stream no longer told about a subject.
#[utoipa::path(
    post,
    path = "/v1/signals/subjects:remove",
    operation_id = "removeSubject",
    request_body = SubjectRequest,
    responses(
        (status = 204, description = "The stream is no longer told about it"),
        (status = 400, description = "A member is missing, unknown or not valid", body = error::Body),
        (status = 404, description = "There is no such stream, or it is somebody else's", body = error::Body),
        (status = 409, description = "As many subjects are removed as can be", body = error::Body),
        (status = 501, description = "The transmitter is not configured", body = error::Body),
        (status = 503, description = "Not possible now", body = error::Body),
    )
)]
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

/// The events of a stream that its receiver refused for good, the last 1000.
#[utoipa::path(
    get,
    path = "/v1/signals/dead-letters",
    operation_id = "listDeadLetters",
    params(
        ("stream_id" = String, Query, description = "Which stream"),
        ("limit" = Option<usize>, Query, description = "Most of a page: 1 to 1000, default 100"),
        ("cursor" = Option<String>, Query, description = "As the Link header of the page before gave it"),
    ),
    responses(
        (status = 200, description = "A page, oldest first; Link names the next", body = [DeadLetterAnswer]),
        (status = 400, description = "No stream is named, or the page is not valid", body = error::Body),
        (status = 404, description = "There is no such stream, or it is somebody else's", body = error::Body),
        (status = 501, description = "The transmitter is not configured", body = error::Body),
    )
)]
pub async fn dead_letters(
    caller: Caller<ReadStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    uri: Uri,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Error> {
    app.streams.base_url()?;
    let query = paging::Members::read(query, &["stream_id", "limit", "cursor"])?;
    let page = query.page()?;
    let after = page.after.as_deref().map(event_id).transpose()?;
    let stream_id = named(&query)?;
    let (letters, next) =
        app.streams.dead_letters(&current, stream_id, (after, page.limit), &who(&caller))?;
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
    let (who, what) = (who(caller), if is_removed { "remove a subject of" } else { "add a subject to" });
    let changed = app.streams.change_subject(current, &stream_id, (&subject, is_removed), &who);
    on_stream((app, current), caller, (what, &stream_id), changed).await
}

fn of_status(stream: &Stream) -> Response {
    let answer = StatusAnswer {
        stream_id: stream.config.stream_id.clone(),
        status: stream.status.as_str(),
        reason: stream.reason.clone(),
    };
    (NO_STORE, Json(answer)).into_response()
}

fn row_of(letter: DeadLetter) -> DeadLetterAnswer {
    let DeadLetter { id, at, err, description, event_type, sub_id } = letter;
    let sub_id = json::parse_object(sub_id.as_bytes());
    DeadLetterAnswer {
        id: id.to_string(),
        at: at.to_rfc3339(),
        err,
        description: stated(description),
        event_type,
        sub_id: sub_id.unwrap_or_default(),
    }
}

/// As [`EventId`] writes itself.
fn event_id(text: &str) -> Result<EventId, Error> {
    text.parse().map_err(|_| Error::invalid_request("cursor: must be one that a Link header gave"))
}
