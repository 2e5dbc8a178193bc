//! `POST /v1/signals/poll/{stream_id}`: wire types and translation (RFC 8936).

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::App;
use super::body;
use super::cache_control::NO_STORE;
use super::caller::{Caller, ReadStreams};
use super::error::Error;
use super::streams::StreamErrors;
use crate::transmitter::poll::{self, PollResult};
use crate::{json, limits};

/// A poll, with the acknowledgements of earlier tokens (RFC 8936 §2.2). Unknown fields are ignored.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PollRequest {
    /// Maximum number of tokens in the response, up to 100, the default; 0 only acknowledges.
    #[schema(minimum = 0)]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_events: Option<u64>,
    /// Whether to answer at once although no event is queued; otherwise the poll waits up to 10 s, also for a stream that
    /// is not enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    return_immediately: Option<bool>,
    /// `jti` of received tokens, up to 1000; those of other streams are ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    ack: Option<Vec<String>>,
    /// Rejected tokens by `jti`, up to 1000. They are not delivered again.
    #[serde(skip_serializing_if = "Option::is_none")]
    set_errs: Option<BTreeMap<String, PollSetError>>,
}

/// The reason why a token was rejected (RFC 8935 §2.3).
#[derive(Serialize, ToSchema)]
pub struct PollSetError {
    /// An error code, 1 to 64 printable ASCII characters.
    err: String,
    /// Human-readable.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

/// Tokens that are not acknowledged.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PollAnswer {
    /// Tokens by `jti`, in the order of their events; repeated until they are acknowledged.
    #[serde(serialize_with = "in_order")]
    #[schema(value_type = BTreeMap<String, String>)]
    sets: Vec<(String, Arc<str>)>,
    /// Whether more are queued; absent if the stream is not enabled or `maxEvents` is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    more_available: Option<bool>,
}

fn in_order<S: Serializer>(sets: &[(String, Arc<str>)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(sets.iter().map(|(jti, set)| (jti.as_str(), &**set)))
}

/// Polls a stream for its security event tokens.
///
/// `ack` and `setErrs` are in the replicated log before the response.
#[utoipa::path(
    post, path = "", operation_id = "pollStream", request_body = PollRequest,
    params(("stream_id" = String, Path, description = "The stream")),
    responses(
        (status = 200, description = "Tokens in the order of their events; none if the stream is not enabled", body = PollAnswer),
        (status = 400, description = "The request is invalid, or the stream is delivered by push"),
        (status = 503, description = "Temporarily unavailable, or too many polls wait; repeat the acknowledgements"),
        StreamErrors,
    )
)]
pub async fn post(
    caller: Caller<ReadStreams>,
    State(app): State<App>,
    stream_id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Error> {
    app.streams.base_url()?;
    let (parts, body) = request.into_parts();
    let Ok(Path(stream_id)) = stream_id else { return Err(poll::Error::UnknownStream.into()) };
    let bytes = body::json_bytes(&parts.headers, body, limits::POLL_BODY_BYTES_MAX).await?;
    let request_body = poll::PollRequest::parse(&json::parse(&bytes)?)?;
    // The body is not retained while the poll waits.
    drop(bytes);
    let PollResult { sets, more_available } = app.poller.poll(&stream_id, &caller, request_body).await?;
    Ok((NO_STORE, Json(PollAnswer { sets, more_available })).into_response())
}
