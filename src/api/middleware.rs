//! What surrounds every request: its id and trace, its deadline, its count
//! and its line in the log; and the refusals that hold whatever is asked for ([`admissible`]). Nothing
//! here decides what a request means, or who sends it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::connect_info::{Channel, Peer};
use super::error::{Code, Error};
use super::listener::Violation;
use super::load_shedding::Admitted;
use super::rate_limit::{Key, Remaining};
use super::request_context::Notes;
use super::{App, origin, unread_body};
use crate::limits;
use crate::telemetry::TraceContext;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: &str = "traceparent";
const SVC_INDEX: HeaderName = HeaderName::from_static("svc-index");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const SVC_MIN_INDEX: &str = "svc-min-index";

tokio::task_local! {
    static CURRENT_REQUEST_ID: String;
}

/// The id of the request this task is answering; empty outside of one.
#[must_use]
pub fn current_request_id() -> String {
    CURRENT_REQUEST_ID.try_with(Clone::clone).unwrap_or_default()
}

/// Gives an answer the id that its request has in the error object and in the log.
pub(super) async fn identified(answer: impl Future<Output = Response>) -> Response {
    let request_id = uuid::Uuid::new_v4().simple().to_string();
    let mut response = CURRENT_REQUEST_ID.scope(request_id.clone(), answer).await;
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// Answers a request with everything that surrounds it.
pub async fn around(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let began = app.clock.boot();
    let request_id = uuid::Uuid::new_v4().simple().to_string();
    let trace = trace_of(request.headers());
    let method = known_method(request.method());
    // The route's pattern, never the path: a label must not grow with what callers send.
    let route =
        request.extensions().get::<MatchedPath>().map_or("unmatched", |path| path.as_str()).to_owned();
    let notes = Arc::new(Notes::default());
    request.extensions_mut().insert(Arc::clone(&notes));

    let unanswered =
        Unanswered { app: &app, notes: &notes, method, route: &route, request_id: &request_id, began };
    let (parts, body) = request.into_parts();
    let invites_body = parts.headers.contains_key(header::EXPECT);
    let (body, leftover) = unread_body::share(body);
    let request = Request::from_parts(parts, body);

    let answer = CURRENT_REQUEST_ID.scope(request_id.clone(), async {
        let answering = async {
            let admission = admissible(&app, &route, &request, &notes);
            match admit(&app, admission, &notes).await {
                Ok(_admitted) => as_error_object(next.run(request).await),
                Err(error) => error.into_response(),
            }
        };
        match tokio::time::timeout(limits::REQUEST_TIMEOUT, answering).await {
            Ok(response) => response,
            Err(_) => Error::unavailable("the request took too long; its outcome is unknown").into_response(),
        }
    });
    let mut response = answer.await;
    // Who waits to be invited is told the answer instead; who is refused for being too many, at once.
    if !invites_body
        && !notes.is_shed()
        && let Ok(_place) = app.leftover_places.try_acquire()
    {
        leftover.discard().await;
    }
    unanswered.answered();

    let headers = response.headers_mut();
    headers.insert(SVC_INDEX, HeaderValue::from(app.state.cluster().applied()));
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        headers.insert(REQUEST_ID, value);
    }
    if let Some(rate) = notes.rate() {
        say_rate(headers, *rate);
    }
    let took = app.clock.boot().saturating_sub(began);
    app.metrics.http_request(&route, method, response.status().as_u16(), took);
    if notes.is_shed() {
        return response;
    }
    tracing::info!(
        request_id,
        trace_id = trace.as_ref().map(TraceContext::trace_id),
        caller = notes.caller(),
        method,
        route,
        status = response.status().as_u16(),
        duration_micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        "request"
    );
    response
}

/// A request whose caller may go away before it is answered. What it asked for may have been done, so it
/// is counted and logged all the same, with the status that others use for it.
struct Unanswered<'r> {
    app: &'r App,
    notes: &'r Notes,
    method: &'static str,
    route: &'r str,
    request_id: &'r str,
    began: Duration,
}

impl Unanswered<'_> {
    /// It was answered after all.
    fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        const CLIENT_CLOSED_REQUEST: u16 = 499;
        let Self { app, notes, method, route, request_id, began } = self;
        let took = app.clock.boot().saturating_sub(*began);
        app.metrics.http_request(route, method, CLIENT_CLOSED_REQUEST, took);
        tracing::info!(
            request_id,
            caller = notes.caller(),
            method,
            route,
            status = CLIENT_CLOSED_REQUEST,
            "request whose caller went away"
        );
    }
}

/// How a request may be let in.
enum Admission {
    /// Whatever else is going on.
    Always,
    /// Unless the node has more to do than it can.
    IfNotOverloaded,
}

/// What is refused before it is known what is asked for, in this order:
///
/// 1. what comes too often: of one certificate, else of one address; of health, of one address
/// 2. what is not HTTP as this node reads it
/// 3. what is sent to another name, or by another site's page
/// 4. anything but health on a connection beyond the usual number
fn admissible(app: &App, route: &str, request: &Request, notes: &Notes) -> Result<Admission, Error> {
    let refuse = |reason: &'static str, error: Error| {
        app.metrics.request_refused(reason);
        error
    };
    let Some(peer) = request.extensions().get::<Arc<Peer>>() else {
        return Err(Error::internal("a request without its connection"));
    };
    let is_health = app.health_routes.contains(&route);
    let by_address = Key::of_address(peer.address.ip());
    let taken = match &peer.channel {
        _ if is_health => app.health_rates.take(by_address),
        Channel::Tls(Some(certificate)) => app.rates.take(Key::Workload(certificate.spiffe_id.clone())),
        Channel::Tls(None) | Channel::Plain => app.rates.take(by_address),
    };
    notes.set_rate(taken.remaining);
    notes.hold(taken.place.map_err(|error| {
        notes.set_shed();
        refuse("rate", error)
    })?);
    if let Some(violation) = request.extensions().get::<Violation>() {
        return Err(refuse("violation", Error::violation(*violation)));
    }
    origin::check(request.uri(), request.headers(), &app.names, peer.local_address.ip())
        .map_err(|error| refuse("origin", error))?;
    if is_health {
        Ok(Admission::Always)
    } else if peer.in_reserve {
        Err(refuse("reserve", Error::unavailable("too many connections, try again soon")))
    } else {
        Ok(Admission::IfNotOverloaded)
    }
}

/// Admits a request when its turn has come. Health does not wait.
async fn admit(
    app: &App,
    admission: Result<Admission, Error>,
    notes: &Notes,
) -> Result<Option<Admitted>, Error> {
    match admission? {
        Admission::Always => Ok(None),
        Admission::IfNotOverloaded => {
            let admitted = app.pressure.admit().await;
            let refuse = |_: &Error| {
                app.metrics.request_refused("overload");
                notes.set_shed();
            };
            admitted.inspect_err(refuse).map(Some)
        }
    }
}

/// draft-ietf-httpapi-ratelimit-headers-10 §3: a policy of so many requests in a window of a second,
/// and what is left of it.
fn say_rate(headers: &mut HeaderMap, rate: Remaining) {
    let policy = HeaderValue::try_from(format!("\"caller\";q={};w=1", rate.quota));
    let left = HeaderValue::try_from(format!("\"caller\";r={};t=1", rate.requests));
    headers.extend(policy.ok().map(|value| (RATE_LIMIT_POLICY, value)));
    headers.extend(left.ok().map(|value| (RATE_LIMIT, value)));
}

/// The method as a label and in the log: what callers invent is one word.
fn known_method(method: &Method) -> &'static str {
    const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    METHODS.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

fn trace_of(headers: &HeaderMap) -> Option<TraceContext> {
    TraceContext::parse(headers.get(TRACEPARENT)?.to_str().ok()?)
}

/// `Svc-Min-Index`: the request is answered at that index or later, or 503. Only an authenticated caller may wait: a
/// stranger would hold the permits of others.
///
/// # Errors
/// 400 if it is no index; 503 if it is not reached.
pub(super) async fn reach_min_index(app: &App, headers: &HeaderMap, may_wait: bool) -> Result<(), Error> {
    let what = "Svc-Min-Index";
    match min_index(headers)? {
        Some(index) if may_wait => reach(app, index, what).await,
        Some(index) if app.state.cluster().applied() < index => Err(not_applied(what)),
        _ => Ok(()),
    }
}

/// The log index that a request names, if it names one.
///
/// # Errors
/// 400 if it is none.
pub(super) fn min_index(headers: &HeaderMap) -> Result<Option<u64>, Error> {
    let Some(value) = headers.get(SVC_MIN_INDEX) else { return Ok(None) };
    let index = value.to_str().ok().and_then(|text| text.parse().ok());
    index.map(Some).ok_or_else(|| Error::invalid_request("Svc-Min-Index: must be a log index"))
}

/// Waits up to [`limits::MIN_INDEX_WAIT`] until this node has applied `index`, which `what` of a request asks for.
///
/// # Errors
/// 503 if it has not by then, or too many wait.
pub(super) async fn reach(app: &App, index: u64, what: &str) -> Result<(), Error> {
    if app.state.cluster().applied() >= index {
        return Ok(());
    }
    // Waiting costs its sender nothing, so only so many may.
    let _place = app
        .min_index_places
        .try_acquire()
        .map_err(|_| Error::unavailable(format!("too many requests wait for their {what}")))?;
    let reached = app.state.cluster().until_applied(index);
    tokio::time::timeout(limits::MIN_INDEX_WAIT, reached).await.map_err(|_| not_applied(what))
}

fn not_applied(what: &str) -> Error {
    Error::unavailable(format!("this node has not applied {what} yet"))
}

/// What the router itself refuses gets the contract's error object too.
fn as_error_object(response: Response) -> Response {
    if response.status() != StatusCode::METHOD_NOT_ALLOWED {
        return response;
    }
    let allow = response.headers().get(header::ALLOW).cloned();
    let error = Error::new(
        StatusCode::METHOD_NOT_ALLOWED,
        Code::MethodNotAllowed,
        "this route does not have this method",
    );
    let mut response = error.into_response();
    if let Some(allow) = allow {
        response.headers_mut().insert(header::ALLOW, allow);
    }
    response
}
