//! `/v1/signals/stream`: wire types and translation, in the flat shape of the specification and in that of SSF 1.0
//! §8.1.1. A response always has both.

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::{IntoResponses, ToSchema};

use super::App;
use super::admin_audit::on_stream;
use super::body;
use super::cache_control::NO_STORE;
use super::caller::{Caller, CreateStream, ManageStreams, ReadStreams};
use super::error::Error;
use super::openapi::params::{IdempotencyKey, Page, StreamId};
use super::paging::{self, RawQuery};
use crate::state::{LinearizableRead, Stream};
use crate::text::values;
use crate::token::event_types::EVENTS_SUPPORTED;
use crate::transmitter::streams::{Method, StreamInput, StreamView, UpdateKind};
use crate::{json, limits};

/// A stream, in both shapes.
#[derive(Serialize, ToSchema)]
pub struct StreamAnswer {
    /// 32 lower-case hexadecimal digits.
    stream_id: String,
    /// The `iss` of its events.
    iss: String,
    /// The `aud` of its events.
    aud: String,
    /// Every supported event type.
    events_supported: Vec<&'static str>,
    /// The requested event types.
    events_requested: Vec<String>,
    /// The delivered event types.
    events_delivered: Vec<String>,
    /// The status.
    #[schema(value_type = values::StreamStatus)]
    status: &'static str,
    /// The reason of the status, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The delivery method.
    #[schema(value_type = values::DeliveryMethod)]
    delivery_method: &'static str,
    /// The push endpoint or the poll endpoint.
    endpoint_url: String,
    /// The delivery method in the shape of SSF.
    delivery: DeliveryAnswer,
    /// Minimum interval between two verifications, in seconds.
    min_verification_interval: u64,
    /// Human-readable.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// Number of delivered events.
    #[serde(skip_serializing_if = "Option::is_none")]
    delivered: Option<u64>,
    /// Number of dropped events, because the receiver did not accept them in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped: Option<u64>,
    /// Number of events that the receiver rejected permanently.
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letters: Option<u64>,
}

/// The delivery method (SSF 1.0 §6.1).
#[derive(Serialize, ToSchema)]
pub struct DeliveryAnswer {
    /// Push (RFC 8935) or poll (RFC 8936).
    #[schema(value_type = values::DeliveryMethodUrn)]
    method: &'static str,
    /// The push endpoint or the poll endpoint.
    endpoint_url: String,
}

/// One stream if `stream_id` is given, else a page.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum StreamsAnswer {
    /// The named stream.
    One(Box<StreamAnswer>),
    /// A page.
    Page(Vec<StreamAnswer>),
}

/// Refusals of every operation on a stream.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only described in OpenAPI")]
pub enum StreamErrors {
    /// The stream does not exist or belongs to another caller
    #[response(status = 404)]
    Unknown,
    /// The transmitter is not configured
    #[response(status = 501)]
    NotConfigured,
}

/// Creates a stream. The requested events are delivered over it from now on.
#[utoipa::path(
    post, path = "", operation_id = "createStream", request_body = StreamInput, params(IdempotencyKey),
    responses(
        (status = 201, description = "The stream is created and enabled", body = StreamAnswer),
        (status = 409, description = "The quota of streams is used up, in all or of the caller"),
        (status = 501, description = "The transmitter is not configured"),
    )
)]
pub async fn create(
    caller: Caller<CreateStream>,
    State(app): State<App>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    let bytes = read_body(&app, &parts.headers, body).await?;
    let caller = caller.with_key(&parts, &bytes)?;
    let input: StreamInput = json::read(&bytes)?;
    let mut drawn = [0; 16];
    aws_lc_rs::rand::fill(&mut drawn).map_err(|_| Error::internal("the system provides no random bytes"))?;
    let stream = app.streams.create(input, &caller, drawn).await?;
    log("stream created", &stream, caller.id());
    Ok((StatusCode::CREATED, NO_STORE, Json(described(&app, &stream))).into_response())
}

/// The named stream, or all streams of the caller; an operator sees all.
#[utoipa::path(
    get, path = "", operation_id = "getStreams",
    params(("stream_id" = Option<String>, Query, description = "Only this stream; not with `limit` or `cursor`"), Page),
    responses(
        (status = 200, description = "The stream, or a page ordered by `stream_id`", body = StreamsAnswer),
        StreamErrors,
    )
)]
pub async fn read(
    caller: Caller<ReadStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    uri: Uri,
    query: RawQuery,
) -> Result<Response, Error> {
    app.streams.base_url()?;
    let query = paging::QueryParams::read(query, &["stream_id", "limit", "cursor"])?;
    let Some(stream_id) = query.value("stream_id") else {
        let page = query.page()?;
        let (streams, next) = app.streams.list(&current, &caller, page.after.as_deref(), page.limit).await?;
        let streams = streams.iter().map(|shown| counted(&app, shown)).collect();
        return paging::answer(&uri, &StreamsAnswer::Page(streams), next.as_deref());
    };
    if let Some(name) = ["limit", "cursor"].into_iter().find(|name| query.value(name).is_some()) {
        return Err(Error::invalid_request(format!("{name}: not supported with stream_id")));
    }
    let shown = app.streams.get(&current, stream_id, &caller).await?;
    Ok((NO_STORE, Json(StreamsAnswer::One(Box::new(counted(&app, &shown))))).into_response())
}

/// Changes the given fields of a stream; absent fields stay.
#[utoipa::path(patch, path = "", operation_id = "updateStream", request_body = StreamInput, responses(
    (status = 200, description = "The changed stream", body = StreamAnswer),
    (status = 409, description = "A concurrent change of the stream"),
    StreamErrors,
))]
pub async fn update(
    caller: Caller<ManageStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    change((&app, &current), UpdateKind::Patch, &caller, &headers, body).await
}

/// Replaces a stream's configuration; absent optional fields are removed.
#[utoipa::path(put, path = "", operation_id = "replaceStream", request_body = StreamInput, responses(
    (status = 200, description = "The changed stream", body = StreamAnswer),
    (status = 409, description = "A concurrent change of the stream"),
    StreamErrors,
))]
pub async fn replace(
    caller: Caller<ManageStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    change((&app, &current), UpdateKind::Replace, &caller, &headers, body).await
}

async fn change(
    (app, current): (&App, &LinearizableRead),
    extent: UpdateKind,
    caller: &Caller<ManageStreams>,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    let members = json::parse_object(&read_body(app, headers, body).await?)?;
    if extent == UpdateKind::Patch {
        states_something(&members)?;
    }
    let input: StreamInput = json::from_value(Value::Object(members))?;
    let stream_id = input.stream_id.clone();
    let changed = app.streams.change(current, input, extent, caller);
    let shown = match stream_id {
        Some(stream_id) => on_stream((app, current), caller, ("change", &stream_id), changed).await?,
        None => changed.await?,
    };
    log("stream changed", &shown.stream, caller.id());
    Ok((NO_STORE, Json(described(app, &shown.stream))).into_response())
}

/// PATCH keeps absent fields. A null would count as absent, whatever its sender meant.
fn states_something(members: &Map<String, Value>) -> Result<(), Error> {
    let null = |path: &str, members: &Map<String, Value>| {
        let (name, _) = members.iter().find(|(_, value)| value.is_null())?;
        Some(format!("{path}{name}"))
    };
    let delivery = members.get("delivery").and_then(Value::as_object);
    match null("", members).or_else(|| null("delivery.", delivery?)) {
        Some(path) => Err(Error::invalid_request(format!(
            "{path}: must not be null: PATCH keeps an absent field, PUT removes it"
        ))),
        None => Ok(()),
    }
}

/// Deletes a stream and its retained events.
#[utoipa::path(delete, path = "", operation_id = "deleteStream", params(StreamId), responses(
    (status = 204, description = "The stream is deleted"),
    StreamErrors,
))]
pub async fn delete(
    caller: Caller<ManageStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    query: RawQuery,
) -> Result<Response, Error> {
    app.streams.base_url()?;
    let query = paging::QueryParams::read(query, &["stream_id"])?;
    let stream_id = named(&query)?;
    let deleted = app.streams.delete(&current, stream_id, &caller);
    on_stream((&app, &current), &caller, ("delete", stream_id), deleted).await?;
    tracing::info!(request_id = caller.request_id, stream_id, caller = caller.id(), "stream deleted");
    Ok((StatusCode::NO_CONTENT, NO_STORE).into_response())
}

/// Reads a body before any refusal: an unread body closes the connection under a client that is still sending.
pub(super) async fn read_body(app: &App, headers: &HeaderMap, body: Body) -> Result<Bytes, Error> {
    let bytes = body::json_bytes(headers, body, limits::BODY_BYTES_MAX).await?;
    app.streams.base_url()?;
    Ok(bytes)
}

/// `stream_id` of a query.
pub(super) fn named(query: &paging::QueryParams) -> Result<&str, Error> {
    query.value("stream_id").ok_or_else(|| Error::invalid_request("stream_id: is required"))
}

fn log(what: &str, stream: &Stream, caller: Option<&str>) {
    let request_id = super::request_id::current();
    let (stream_id, method) = (&stream.config.stream_id, Method::of(&stream.config).into_str());
    // Without the endpoint URL, which may contain a secret of the receiver.
    tracing::info!(request_id, stream_id, method, caller, "{what}");
}

/// The stream with its counters.
fn counted(app: &App, shown: &StreamView) -> StreamAnswer {
    StreamAnswer {
        delivered: Some(shown.cursor.delivered),
        dropped: Some(shown.cursor.dropped),
        dead_letters: Some(shown.cursor.dead_letters),
        ..described(app, &shown.stream)
    }
}

fn described(app: &App, stream: &Stream) -> StreamAnswer {
    let config = &stream.config;
    let method = Method::of(config);
    let endpoint_url = config.endpoint_url.clone().unwrap_or_else(|| app.streams.poll_url(&config.stream_id));
    StreamAnswer {
        stream_id: config.stream_id.clone(),
        iss: app.issuer.clone(),
        aud: config.aud.clone(),
        events_supported: EVENTS_SUPPORTED.to_vec(),
        events_requested: config.events_requested.clone(),
        events_delivered: config.events_delivered.clone(),
        status: stream.status.into_str(),
        reason: stream.reason.clone(),
        delivery_method: method.into_str(),
        endpoint_url: endpoint_url.clone(),
        delivery: DeliveryAnswer { method: method.urn(), endpoint_url },
        min_verification_interval: limits::VERIFICATION_INTERVAL_MIN.as_secs(),
        description: config.description.clone(),
        delivered: None,
        dropped: None,
        dead_letters: None,
    }
}
