//! `/v1/signals/stream`: wire types and translation, in the flat shape of the specification and in that of SSF
//! 1.0 §8.1.1. An answer always has both.

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::App;
use super::admin_audit::on_stream;
use super::body;
use super::cache_control::NO_STORE;
use super::caller::{self, Caller, CreateStream, ManageStreams, ReadStreams};
use super::error::{self, Error};
use super::{idempotency, paging};
use crate::state::{LinearizableRead, Stream};
use crate::token::event_types::EVENTS_SUPPORTED;
use crate::transmitter::streams;
use crate::transmitter::streams::{Delivery, Method, StreamInput, StreamView, UpdateKind};
use crate::{json, limits};

/// A stream that is asked for, in the flat shape of the specification (`delivery_method`, `endpoint_url`), in
/// that of SSF (`delivery`), or in both if they agree. An unknown member is refused.
///
/// In the flat shape `iss`, `aud`, `events_requested` and `delivery_method` are required. In that of SSF `aud`
/// is the caller unless it is said, and without `delivery` the stream is polled.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StreamRequest {
    /// Which stream: required by PATCH and PUT.
    stream_id: Option<String>,
    /// In the flat shape of POST any issuer: the answer and every event carry ours. Otherwise ours, or absent.
    iss: Option<String>,
    /// Whom the events are meant for. It cannot be changed.
    aud: Option<String>,
    /// 1 to 64 URIs of event types, of which at least one is supported. Those that PATCH or PUT adds count from
    /// there on.
    events_requested: Option<Vec<String>>,
    /// In the flat shape: only these of `events_requested`. In PATCH and PUT: what is delivered, or nothing.
    events_delivered: Option<Vec<String>>,
    /// `push` or `poll`
    delivery_method: Option<String>,
    /// Where to push to: https, or http for `localhost` and `127.0.0.1`.
    endpoint_url: Option<String>,
    /// How events are delivered.
    delivery: Option<DeliveryRequest>,
    /// For people: 1 to 256 bytes.
    description: Option<String>,
    /// The transmitter's to say: in PATCH and PUT as it was read, or not at all.
    events_supported: Option<Vec<String>>,
    /// The same; it is changed with `POST /v1/signals/status`.
    status: Option<String>,
    /// The same.
    reason: Option<String>,
    /// The same.
    min_verification_interval: Option<u64>,
    /// Of PATCH and PUT only, and not looked at: it has counted on since.
    delivered: Option<u64>,
    /// The same.
    dropped: Option<u64>,
    /// The same.
    dead_letters: Option<u64>,
}

/// How events are delivered (SSF 1.0 §6.1).
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DeliveryRequest {
    /// `urn:ietf:rfc:8935` (push) or `urn:ietf:rfc:8936` (poll)
    #[schema(required = true)]
    method: Option<String>,
    /// Where to push to.
    endpoint_url: Option<String>,
    /// Not supported, so that no secret of a receiver is kept here: what is pushed is signed.
    authorization_header: Option<String>,
}

/// A stream, in both shapes.
#[derive(Serialize, ToSchema)]
pub struct StreamAnswer {
    /// 32 lower-case hexadecimal digits.
    stream_id: String,
    /// Our `iss`.
    iss: String,
    /// Whom the events are meant for.
    aud: String,
    /// Every event type that can be delivered.
    events_supported: Vec<&'static str>,
    /// What the receiver asked for.
    events_requested: Vec<String>,
    /// What is delivered of that.
    events_delivered: Vec<String>,
    /// `enabled`, `paused` or `disabled`
    status: &'static str,
    /// Why it has this status, if somebody said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// `push` or `poll`
    delivery_method: &'static str,
    /// Where to push to, or where to poll.
    endpoint_url: String,
    /// The same in the shape of SSF.
    delivery: DeliveryAnswer,
    /// Seconds between two verifications.
    min_verification_interval: u64,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// How many events were delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    delivered: Option<u64>,
    /// How many were dropped, because the receiver did not take them for too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped: Option<u64>,
    /// How many the receiver refused for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letters: Option<u64>,
}

/// How events are delivered.
#[derive(Serialize, ToSchema)]
pub struct DeliveryAnswer {
    /// `urn:ietf:rfc:8935` (push) or `urn:ietf:rfc:8936` (poll)
    method: &'static str,
    /// Where to push to, or where to poll.
    endpoint_url: String,
}

/// What is answered to who reads: one stream if it is named, else all of the caller's.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum StreamsAnswer {
    /// The one that is named.
    One(Box<StreamAnswer>),
    /// A page of all.
    Page(Vec<StreamAnswer>),
}

impl From<StreamRequest> for StreamInput {
    fn from(request: StreamRequest) -> Self {
        let delivery = request.delivery.map(|delivery| Delivery {
            method: delivery.method,
            endpoint_url: delivery.endpoint_url,
            authorization_header: delivery.authorization_header,
        });
        Self {
            stream_id: request.stream_id,
            iss: request.iss,
            aud: request.aud,
            events_supported: request.events_supported,
            events_requested: request.events_requested,
            events_delivered: request.events_delivered,
            status: request.status,
            reason: request.reason,
            delivery_method: request.delivery_method,
            endpoint_url: request.endpoint_url,
            delivery,
            min_verification_interval: request.min_verification_interval,
            description: request.description,
        }
    }
}

/// Makes a stream: the events it asks for are delivered to it from now on.
#[utoipa::path(
    post,
    path = "/v1/signals/stream",
    operation_id = "createStream",
    request_body = StreamRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "A retry with the same key and body is the same stream")),
    responses(
        (status = 201, description = "It is made, and enabled", body = StreamAnswer),
        (status = 400, description = "A member is missing, unknown or not valid", body = error::Body),
        (status = 409, description = "There are too many streams, or too many of this caller", body = error::Body),
        (status = 422, description = "The Idempotency-Key came with another request", body = error::Body),
        (status = 501, description = "The transmitter is not configured", body = error::Body),
        (status = 503, description = "Not possible now", body = error::Body),
    )
)]
pub async fn create(
    caller: Caller<CreateStream>,
    State(app): State<App>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    let bytes = read_body(&app, &parts.headers, body).await?;
    let idempotency =
        idempotency::idempotency(&parts.headers, caller.id(), (&parts.method, &parts.uri), &bytes)?;
    let request: StreamRequest = json::read(&bytes)?;
    let counted = [
        ("delivered", request.delivered.is_some()),
        ("dropped", request.dropped.is_some()),
        ("dead_letters", request.dead_letters.is_some()),
    ];
    if let Some((name, _)) = counted.into_iter().find(|(_, is_given)| *is_given) {
        return Err(Error::invalid_request(format!("{name}: is set by the transmitter; omit it")));
    }
    let mut drawn = [0; 16];
    aws_lc_rs::rand::fill(&mut drawn).map_err(|_| Error::internal("the machine gives no random bytes"))?;
    let who = streams::CallContext { idempotency, ..who(&caller) };
    let stream = app.streams.create(request.into(), &who, drawn).await?;
    log("stream created", &stream, caller.id());
    Ok((StatusCode::CREATED, NO_STORE, Json(described(&app, &stream))).into_response())
}

/// The stream that is named, or all that the caller made; an operator sees all.
#[utoipa::path(
    get,
    path = "/v1/signals/stream",
    operation_id = "getStreams",
    params(
        ("stream_id" = Option<String>, Query, description = "Only this one"),
        ("limit" = Option<usize>, Query, description = "Most streams of a page: 1 to 1000, default 100"),
        ("cursor" = Option<String>, Query, description = "As the Link header of the page before gave it"),
    ),
    responses(
        (status = 200, description = "The stream; or a page, ordered by stream_id, and Link names the next", body = StreamsAnswer),
        (status = 404, description = "There is no such stream, or it is somebody else's", body = error::Body),
        (status = 501, description = "The transmitter is not configured", body = error::Body),
    )
)]
pub async fn read(
    caller: Caller<ReadStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    uri: Uri,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Error> {
    app.streams.base_url()?;
    let query = paging::Members::read(query, &["stream_id", "limit", "cursor"])?;
    let Some(stream_id) = query.value("stream_id") else {
        let page = query.page()?;
        let (streams, next) =
            app.streams.list(&current, &who(&caller), page.after.as_deref(), page.limit).await?;
        let streams = streams.iter().map(|shown| counted(&app, shown)).collect();
        return paging::answer(&uri, &StreamsAnswer::Page(streams), next.as_deref());
    };
    if let Some(name) = ["limit", "cursor"].into_iter().find(|name| query.value(name).is_some()) {
        return Err(Error::invalid_request(format!("{name}: is for the list, without stream_id")));
    }
    let shown = app.streams.get(&current, stream_id, &who(&caller)).await?;
    Ok((NO_STORE, Json(StreamsAnswer::One(Box::new(counted(&app, &shown))))).into_response())
}

/// Changes what is stated of a stream; the rest stays.
#[utoipa::path(
    patch,
    path = "/v1/signals/stream",
    operation_id = "updateStream",
    request_body = StreamRequest,
    responses(
        (status = 200, description = "The stream as it is now", body = StreamAnswer),
        (status = 400, description = "A member is missing, unknown or not valid, or not the receiver's to change", body = error::Body),
        (status = 404, description = "There is no such stream, or it is somebody else's", body = error::Body),
        (status = 409, description = "Others are changing it", body = error::Body),
        (status = 501, description = "The transmitter is not configured", body = error::Body),
        (status = 503, description = "Not possible now", body = error::Body),
    )
)]
pub async fn update(
    caller: Caller<ManageStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    change((&app, &current), UpdateKind::Patch, &caller, &headers, body).await
}

/// Replaces what a receiver states of a stream; what it does not state is gone.
#[utoipa::path(
    put,
    path = "/v1/signals/stream",
    operation_id = "replaceStream",
    request_body = StreamRequest,
    responses(
        (status = 200, description = "The stream as it is now", body = StreamAnswer),
        (status = 400, description = "A member is missing, unknown or not valid, or not the receiver's to change", body = error::Body),
        (status = 404, description = "There is no such stream, or it is somebody else's", body = error::Body),
        (status = 409, description = "Others are changing it", body = error::Body),
        (status = 501, description = "The transmitter is not configured", body = error::Body),
        (status = 503, description = "Not possible now", body = error::Body),
    )
)]
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
    let request: StreamRequest = json::from_value(Value::Object(members))?;
    let (who, stream_id) = (who(caller), request.stream_id.clone());
    let changed = app.streams.change(current, request.into(), extent, &who);
    let shown = match stream_id {
        Some(stream_id) => on_stream((app, current), caller, ("change", &stream_id), changed).await?,
        None => changed.await?,
    };
    log("stream changed", &shown.stream, caller.id());
    Ok((NO_STORE, Json(described(app, &shown.stream))).into_response())
}

/// In PATCH what is absent stays. A null would be taken for absent, whatever its sender meant by it.
fn states_something(members: &Map<String, Value>) -> Result<(), Error> {
    let null = |path: &str, members: &Map<String, Value>| {
        let (name, _) = members.iter().find(|(_, value)| value.is_null())?;
        Some(format!("{path}{name}"))
    };
    let delivery = members.get("delivery").and_then(Value::as_object);
    match null("", members).or_else(|| null("delivery.", delivery?)) {
        Some(path) => Err(Error::invalid_request(format!(
            "{path}: must not be null: PATCH leaves what is absent as it is, PUT removes it"
        ))),
        None => Ok(()),
    }
}

/// Deletes a stream, with the events that it holds.
#[utoipa::path(
    delete,
    path = "/v1/signals/stream",
    operation_id = "deleteStream",
    params(("stream_id" = String, Query, description = "Which")),
    responses(
        (status = 204, description = "It is deleted"),
        (status = 400, description = "No stream is named", body = error::Body),
        (status = 404, description = "There is no such stream, or it is somebody else's", body = error::Body),
        (status = 501, description = "The transmitter is not configured", body = error::Body),
        (status = 503, description = "Not possible now", body = error::Body),
    )
)]
pub async fn delete(
    caller: Caller<ManageStreams>,
    State(app): State<App>,
    current: LinearizableRead,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Error> {
    app.streams.base_url()?;
    let query = paging::Members::read(query, &["stream_id"])?;
    let stream_id = named(&query)?;
    let who = who(&caller);
    let deleted = app.streams.delete(&current, stream_id, &who);
    on_stream((&app, &current), &caller, ("delete", stream_id), deleted).await?;
    let request_id = super::middleware::current_request_id();
    tracing::info!(request_id, stream_id, caller = caller.id(), "stream deleted");
    Ok((StatusCode::NO_CONTENT, NO_STORE).into_response())
}

/// A body, read before anything is answered: one that is not read closes the connection under a caller that is
/// still writing.
pub(super) async fn read_body(app: &App, headers: &HeaderMap, body: Body) -> Result<Bytes, Error> {
    let bytes = body::json_bytes(headers, body, limits::BODY_BYTES_MAX).await?;
    app.streams.base_url()?;
    Ok(bytes)
}

/// `stream_id` of a query.
pub(super) fn named(query: &paging::Members) -> Result<&str, Error> {
    query.value("stream_id").ok_or_else(|| Error::invalid_request("stream_id: is required"))
}

pub(super) fn who<N: caller::Need>(caller: &Caller<N>) -> streams::CallContext {
    streams::CallContext {
        id: caller.id().map(str::to_owned),
        is_operator: caller.is_operator(),
        facts: caller.shared_facts(),
        idempotency: None,
    }
}

fn log(what: &str, stream: &Stream, caller: Option<&str>) {
    let request_id = super::middleware::current_request_id();
    let (stream_id, method) = (&stream.config.stream_id, Method::of(&stream.config).as_str());
    // Without its address, which may hold what only its receiver knows.
    tracing::info!(request_id, stream_id, method, caller, "{what}");
}

/// With how far it is.
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
        status: stream.status.as_str(),
        reason: stream.reason.clone(),
        delivery_method: method.as_str(),
        endpoint_url: endpoint_url.clone(),
        delivery: DeliveryAnswer { method: method.urn(), endpoint_url },
        min_verification_interval: limits::VERIFICATION_INTERVAL_MIN.as_secs(),
        description: config.description.clone(),
        delivered: None,
        dropped: None,
        dead_letters: None,
    }
}
