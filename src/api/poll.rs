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
use super::error::{self, Error};
use crate::transmitter::poll;
use crate::transmitter::poll::{PollCaller, PollResult};
use crate::transmitter::set_builder;
use crate::{json, limits};

/// What a receiver asks, and what became of what it was given before. Unknown members are ignored. The use-case
/// reads it member by member, so this is its description only.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PollRequest {
    /// Most tokens of the answer, up to 100, which is the default; 0 only acknowledges.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_events: Option<u64>,
    /// Whether it is answered at once also if there is nothing to give; else it waits up to 10 s, also for a
    /// stream that is not enabled to be so.
    #[serde(skip_serializing_if = "Option::is_none")]
    return_immediately: Option<bool>,
    /// `jti` of tokens that were received, up to 1000; others than this stream's are ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    ack: Option<Vec<String>>,
    /// Tokens that were received and are no good, by `jti`, up to 1000. They are not given again.
    #[serde(skip_serializing_if = "Option::is_none")]
    set_errs: Option<BTreeMap<String, PollSetError>>,
}

/// Why a token is no good (RFC 8935 §2.3).
#[derive(Serialize, ToSchema)]
pub struct PollSetError {
    /// A code, 1 to 64 printable ASCII characters.
    err: String,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

/// What was not acknowledged yet.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PollAnswer {
    /// Tokens by `jti`, in the order of their events: the same again until they are acknowledged.
    #[serde(serialize_with = "in_order")]
    #[schema(value_type = BTreeMap<String, String>)]
    sets: Vec<(String, Arc<str>)>,
    /// Whether there are more; absent of a stream that is not enabled, and if none were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    more_available: Option<bool>,
}

fn in_order<S: Serializer>(sets: &[(String, Arc<str>)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(sets.iter().map(|(jti, set)| (jti.as_str(), &**set)))
}

/// Gives a stream's security event tokens to its receiver.
///
/// What `ack` and `setErrs` say is in the replicated log before it is answered.
#[utoipa::path(
    post,
    path = "/v1/signals/poll/{stream_id}",
    operation_id = "pollStream",
    request_body = PollRequest,
    params(("stream_id" = String, Path, description = "As it was given when the stream was made")),
    responses(
        (status = 200, description = "What is open, in order; nothing of a stream that is not enabled", body = PollAnswer),
        (status = 400, description = "A member is not valid, or the stream is delivered by push", body = error::Body),
        (status = 403, description = "The caller may not, or is blocked", body = error::Body),
        (status = 404, description = "There is no such stream, or it is somebody else's", body = error::Body),
        (status = 501, description = "This fabric transmits no signals: there is no [transmitter]", body = error::Body),
        (status = 503, description = "Not possible now, or too many polls wait; what was acknowledged is to be said again", body = error::Body),
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
    let asked = poll::PollRequest::parse(&json::parse(&bytes)?)?;
    // Not kept while the poll waits.
    drop(bytes);
    let asking = PollCaller { id: caller.id(), is_operator: caller.is_operator(), facts: caller.facts() };
    let PollResult { sets, more_available } = app.poller.poll(&stream_id, asking, asked).await?;
    Ok((NO_STORE, Json(PollAnswer { sets, more_available })).into_response())
}

impl From<poll::Error> for Error {
    fn from(error: poll::Error) -> Self {
        use poll::Error as E;
        let description = error.to_string();
        match error {
            E::Invalid { .. } | E::DeliveredByPush => Self::invalid_request(description),
            E::UnknownStream => Self::not_found(description),
            E::CallerBlocked => Self::forbidden(description),
            E::Busy => Self::unavailable(description),
            E::Set(error) => error.into(),
            E::State(error) => error.into(),
        }
    }
}

impl From<set_builder::Error> for Error {
    fn from(error: set_builder::Error) -> Self {
        let refusal = Self::unavailable(error.to_string());
        match std::error::Error::source(&error) {
            Some(source) => refusal.with_detail(source),
            None => refusal,
        }
    }
}
