//! `GET /v1/events`: the live feed as a stream of server-sent events (contract §7; WHATWG HTML §9.2).
//!
//! Who reads was judged when the stream began, and is judged again with every heartbeat and whenever somebody's
//! authority has been taken away: the stream ends with it.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{IntoResponse, Response};
use futures::stream;

use super::App;
use super::caller::{Caller, ReadEvents, Shown};
use super::error::{self, Error};
use super::middleware;
use crate::clock::{Clock, Timestamp};
use crate::feed::{FeedId, Kinds, Subscriber};
use crate::token::foreign::Credential;

const LAST_EVENT_ID: &str = "Last-Event-ID";
const HEADERS: [(HeaderName, &str); 3] = [
    (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("x-accel-buffering"), "no"),
];

/// Tells what happens while it happens.
///
/// A stream of server-sent events. What every node knows has an id, by which a reader resumes on any node; who
/// asks for what came behind an id that is not kept any more is told `reset` first. `exchange` and `denial` have no
/// id and are told as far as there is room. A reader that is too slow is cut off, and resumes.
#[utoipa::path(
    get,
    path = "/v1/events",
    operation_id = "readEvents",
    params(
        ("types" = Option<String>, Query, description = "Only these, separated by commas: exchange, denial, caep, signal, tool, agent, stream, revocation, key, cluster"),
        ("last_event_id" = Option<String>, Query, description = "The same as Last-Event-ID, for who cannot send headers; the header wins"),
        ("Last-Event-ID" = Option<String>, Header, description = "The last id that was read: from behind it on"),
    ),
    responses(
        (status = 200, description = "Events, without an end", content_type = "text/event-stream", body = String),
        (status = 400, description = "An id or a type is not valid", body = error::Body),
        (status = 429, description = "This caller reads too often at once", body = error::Body),
        (status = 503, description = "Too many read on this node, it cannot tell now, or is behind the id", body = error::Body),
    )
)]
pub async fn read(
    caller: Caller<ReadEvents>,
    State(app): State<App>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, _) = request.into_parts();
    let asked = Asked::read(query, &parts.headers)?;
    let authority = Authority::of(&caller, &parts).ok_or_else(|| Error::internal("no connection"))?;
    app.state.fresh().await?;
    // Another node may be ahead and have told what this one does not know yet.
    if let Some(after) = asked.after.filter(|after| Some(after.incarnation) == app.state.index().incarnation)
    {
        middleware::reach(&app, after.event.index, LAST_EVENT_ID).await?;
    }
    let subscriber = app.feed.subscribe(caller.id(), asked.after, asked.kinds)?;
    // What took this caller's authority away before it listened is not told to it.
    authority.shown.judge::<ReadEvents>(&app).await?;
    let stream = Told { subscriber, authority, app };
    let body = stream::unfold(stream, |mut stream| async {
        let bytes = stream.next().await?;
        Some((Ok::<_, Infallible>(bytes), stream))
    });
    Ok((HEADERS, Body::from_stream(body)).into_response())
}

/// What a reader asks for.
#[derive(Debug, Default)]
struct Asked {
    after: Option<FeedId>,
    kinds: Kinds,
}

impl Asked {
    fn read(
        query: Result<Query<Vec<(String, String)>>, QueryRejection>,
        headers: &HeaderMap,
    ) -> Result<Self, Error> {
        let Query(members) = query.map_err(|_| Error::invalid_request("the query cannot be read"))?;
        let (mut types, mut after) = (Vec::new(), None);
        for (name, value) in &members {
            match name.as_str() {
                "types" => types.extend(value.split(',')),
                "last_event_id" if after.is_some() => {
                    return Err(Error::invalid_request("last_event_id: must not be given twice"));
                }
                "last_event_id" => after = Some(id("last_event_id", value)?),
                _ => return Err(Error::invalid_request("the query knows only types, last_event_id")),
            }
        }
        let mut values = headers.get_all(LAST_EVENT_ID).iter();
        // Who has seen no id sends an empty one.
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

/// By what a reader may read.
struct Authority {
    shown: Shown,
    /// When what was shown counts no more.
    ends: Option<Timestamp>,
}

impl Authority {
    fn of(caller: &Caller<ReadEvents>, parts: &Parts) -> Option<Self> {
        let shown = Shown::with(parts)?;
        let token_ends = caller.credential().map(Credential::exp);
        let ends = token_ends.into_iter().chain(shown.certificate_ends()).min();
        Some(Self { shown, ends })
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

/// A stream of events to one reader.
struct Told {
    subscriber: Subscriber,
    authority: Authority,
    app: App,
}

impl Told {
    /// The next bytes; `None` at the end, which is that of the reader's authority if nothing else ends it.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let chunk = tokio::select! {
                biased;
                () = self.authority.until_ended(&self.app.clock) => None,
                chunk = self.subscriber.next() => Some(chunk?),
            };
            let ended = self.authority.has_ended(&self.app.clock);
            let is_doubtful = chunk.as_ref().is_some_and(|chunk| chunk.needs_recheck);
            let shown = &self.authority.shown;
            if ended || (is_doubtful && shown.judge::<ReadEvents>(&self.app).await.is_err()) {
                self.subscriber.disconnect("authority");
                return None;
            }
            if let Some(chunk) = chunk.filter(|chunk| !chunk.bytes.is_empty()) {
                return Some(chunk.bytes);
            }
        }
    }
}
