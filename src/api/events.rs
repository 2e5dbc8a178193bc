//! `GET /v1/events`: the live feed as server-sent events (contract §7; WHATWG HTML §9.2).
//!
//! The subscriber is authorized when the stream begins, with every heartbeat, and after every event that can take
//! authority away. The stream ends when authorization fails.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::extract::{Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{IntoResponse, Response};
use futures::stream;

use super::App;
use super::caller::{Caller, PresentedCredentials, ReadEvents};
use super::error::Error;
use super::middleware;
use super::paging::RawQuery;
use crate::clock::{Clock, Timestamp};
use crate::feed::{FeedId, Kinds, Subscriber};

const LAST_EVENT_ID: &str = "Last-Event-ID";
const HEADERS: [(HeaderName, &str); 3] = [
    (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("x-accel-buffering"), "no"),
];

/// The live feed.
///
/// A stream of server-sent events. Replicated events have an id, from which a subscriber resumes on any node; if that
/// id is no longer retained, the first event is `reset`. `exchange` and `denial` have no id and are sent as far as
/// capacity allows. A subscriber that is too slow is disconnected and can resume.
#[utoipa::path(
    get, path = "", operation_id = "readEvents",
    params(
        ("types" = Option<String>, Query, description = "Only these types, separated by commas: exchange, denial, caep, signal, tool, agent, stream, revocation, key, cluster, federation"),
        ("last_event_id" = Option<String>, Query, description = "`Last-Event-ID` for clients that cannot send headers; the header has precedence"),
        ("Last-Event-ID" = Option<String>, Header, description = "The last received id; the stream continues after it"),
    ),
    responses(
        (status = 200, description = "Server-sent events, without an end", content_type = "text/event-stream", body = String),
        (status = 429, description = "The caller has too many live feeds, or the rate limit of the caller"),
        (status = 503, description = "The node has too many subscribers, is not ready, or has not applied the id yet"),
    )
)]
pub async fn read(
    caller: Caller<ReadEvents>,
    State(app): State<App>,
    query: RawQuery,
    request: Request,
) -> Result<Response, Error> {
    let (parts, _) = request.into_parts();
    let query = FeedQuery::read(query, &parts.headers)?;
    let authority = Authority::of(&caller, &parts).ok_or_else(|| Error::internal("no connection"))?;
    app.state.fresh().await?;
    // Another node may be ahead and have sent an event that this one has not applied yet.
    if let Some(after) = query.after.filter(|after| Some(after.incarnation) == app.state.index().incarnation)
    {
        middleware::reach(&app, after.event.index, LAST_EVENT_ID, caller.id()).await?;
    }
    let subscriber = app.feed.subscribe(caller.id(), query.after, query.kinds)?;
    // The caller may have lost its authority before the subscription began.
    authority.credentials.verify::<ReadEvents>(&app).await?;
    let stream = EventStream { subscriber, authority, app };
    let body = stream::unfold(stream, |mut stream| async {
        let bytes = stream.next().await?;
        Some((Ok::<_, Infallible>(bytes), stream))
    });
    Ok((HEADERS, Body::from_stream(body)).into_response())
}

/// The parameters of a subscription.
#[derive(Debug, Default)]
struct FeedQuery {
    after: Option<FeedId>,
    kinds: Kinds,
}

impl FeedQuery {
    fn read(query: RawQuery, headers: &HeaderMap) -> Result<Self, Error> {
        let Query(params) = query.map_err(|_| Error::invalid_request("the query is malformed"))?;
        let (mut types, mut after) = (Vec::new(), None);
        for (name, value) in &params {
            match name.as_str() {
                "types" => types.extend(value.split(',')),
                "last_event_id" if after.is_some() => {
                    return Err(Error::invalid_request("last_event_id: must not be given twice"));
                }
                "last_event_id" => after = Some(id("last_event_id", value)?),
                _ => return Err(Error::invalid_request("the query parameters are types and last_event_id")),
            }
        }
        let mut values = headers.get_all(LAST_EVENT_ID).iter();
        // A client that has seen no id sends an empty one.
        if let Some(value) = values.next().filter(|value| !value.is_empty()) {
            after = Some(id(LAST_EVENT_ID, value.to_str().unwrap_or_default())?);
        }
        if values.next().is_some() {
            return Err(Error::invalid_request("Last-Event-ID: must not be given twice"));
        }
        Ok(Self { after, kinds: Kinds::parse(types)? })
    }
}

fn id(member: &str, text: &str) -> Result<FeedId, Error> {
    text.parse().map_err(|error| Error::invalid_request(format!("{member}: {error}")))
}

/// The authorization of a subscriber.
struct Authority {
    credentials: PresentedCredentials,
    /// When its credentials expire.
    ends: Option<Timestamp>,
}

impl Authority {
    fn of(caller: &Caller<ReadEvents>, parts: &Parts) -> Option<Self> {
        let credentials = PresentedCredentials::with(parts)?;
        let token_ends = caller.credential().map(|credential| credential.exp);
        let ends = token_ends.into_iter().chain(credentials.certificate_ends()).min();
        Some(Self { credentials, ends })
    }

    fn has_ended(&self, clock: &Clock) -> bool {
        self.ends.is_some_and(|ends| clock.now() >= ends)
    }

    async fn until_ended(&self, clock: &Clock) {
        match self.ends {
            Some(ends) => tokio::time::sleep(ends.since(clock.now())).await,
            None => std::future::pending().await,
        }
    }
}

/// The events of one subscriber.
struct EventStream {
    subscriber: Subscriber,
    authority: Authority,
    app: App,
}

impl EventStream {
    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let chunk = tokio::select! {
                biased;
                () = self.authority.until_ended(&self.app.clock) => None,
                chunk = self.subscriber.next() => Some(chunk?),
            };
            let ended = self.authority.has_ended(&self.app.clock);
            let must_verify = chunk.as_ref().is_some_and(|chunk| chunk.needs_recheck);
            let credentials = &self.authority.credentials;
            if ended || (must_verify && credentials.verify::<ReadEvents>(&self.app).await.is_err()) {
                self.subscriber.disconnect("authority");
                return None;
            }
            if let Some(chunk) = chunk.filter(|chunk| !chunk.bytes.is_empty()) {
                return Some(chunk.bytes);
            }
        }
    }
}
