//! Middleware of every request: id and trace, deadline, metrics, log line, and the refusals that hold on every route
//! ([`admissible`]). No handler logic and no authentication lives here.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::connect_info::{Channel, ClientConnection};
use super::error::{Error, Refusal};
use super::listener::Violation;
use super::load_shedding::Admitted;
use super::rate_limit::{Key, Remaining};
use super::request_context::RequestContext;
use super::{App, origin, request_id, unread_body};
use crate::federation::peers::Peers;
use crate::id::WorkloadId;
use crate::limits;
use crate::telemetry::TraceContext;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: &str = "traceparent";
const SVC_INDEX: HeaderName = HeaderName::from_static("svc-index");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const SVC_MIN_INDEX: &str = "svc-min-index";

/// Gives a response the id that its error object and its log line carry.
pub(super) async fn identified(answer: impl Future<Output = Response>) -> Response {
    let request_id = uuid::Uuid::new_v4().simple().to_string();
    let mut response = request_id::scope(request_id.clone(), answer).await;
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// Serves a request with everything that is common to all routes.
pub async fn wrap(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let began = app.clock.boot();
    let request_id = uuid::Uuid::new_v4().simple().to_string();
    let trace = trace_of(request.headers());
    let method = known_method(request.method());
    // The route's pattern, never the path: a label must not grow with what callers send.
    let route =
        request.extensions().get::<MatchedPath>().map_or("unmatched", |path| path.as_str()).to_owned();
    let context = Arc::new(RequestContext::default());
    request.extensions_mut().insert(Arc::clone(&context));

    let unanswered =
        Unanswered { app: &app, context: &context, method, route: &route, request_id: &request_id, began };
    let (parts, body) = request.into_parts();
    let invites_body = parts.headers.contains_key(header::EXPECT);
    let (body, rest) = unread_body::share(body);
    let request = Request::from_parts(parts, body);

    let answer = request_id::scope(request_id.clone(), async {
        let answering = async {
            let admission = admissible(&app, &route, &request, &context);
            match admit(&app, admission, &context).await {
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
    // After `Expect: 100-continue` the client has not sent the body; a shed request must cost nothing more.
    if !invites_body
        && !context.is_shed()
        && let Ok(_permit) = app.unread_body_permits.try_acquire()
    {
        rest.discard().await;
    }
    unanswered.answered();

    let headers = response.headers_mut();
    headers.insert(SVC_INDEX, HeaderValue::from(app.state.cluster().applied()));
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        headers.insert(REQUEST_ID, value);
    }
    if let Some(rate) = context.rate() {
        insert_rate_headers(headers, *rate);
    }
    let took = app.clock.boot().saturating_sub(began);
    app.metrics.http_request(&route, method, response.status().as_u16(), took);
    if context.is_shed() {
        return response;
    }
    tracing::info!(
        request_id,
        trace_id = trace.as_ref().map(TraceContext::trace_id),
        caller = context.caller(),
        method,
        route,
        status = response.status().as_u16(),
        duration_micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        "request"
    );
    response
}

/// A request whose client may disconnect before the response. Its command may have been applied, so it is counted and
/// logged with status 499.
struct Unanswered<'r> {
    app: &'r App,
    context: &'r RequestContext,
    method: &'static str,
    route: &'r str,
    request_id: &'r str,
    began: Duration,
}

impl Unanswered<'_> {
    /// The response is sent.
    fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        const CLIENT_CLOSED_REQUEST: u16 = 499;
        let Self { app, context, method, route, request_id, began } = self;
        let took = app.clock.boot().saturating_sub(*began);
        app.metrics.http_request(route, method, CLIENT_CLOSED_REQUEST, took);
        tracing::info!(
            request_id,
            caller = context.caller(),
            method,
            route,
            status = CLIENT_CLOSED_REQUEST,
            "client closed the request"
        );
    }
}

/// The class of a request for load shedding.
enum Admission {
    /// Never shed.
    Always,
    /// Shed under overload.
    IfNotOverloaded,
}

/// Refusals before the handler is known, in this order:
///
/// 1. the rate limit: by certificate or peer, else by address; for health routes by address
/// 2. framing violations
/// 3. a foreign host name, or a page of another site
/// 4. anything but health on a connection of the reserve
fn admissible(
    app: &App,
    route: &str,
    request: &Request,
    context: &RequestContext,
) -> Result<Admission, Error> {
    let refuse = |reason: &'static str, error: Error| {
        app.metrics.requests_refused.inc([reason]);
        error
    };
    let Some(connection) = request.extensions().get::<Arc<ClientConnection>>() else {
        return Err(Error::internal("a request lacks its connection"));
    };
    let is_health = app.health_routes.contains(&route);
    let by_address = Key::of_address(connection.address.ip());
    let decision = match &connection.channel {
        _ if is_health => app.health_rate_limits.acquire(by_address),
        Channel::Tls(Some(certificate)) => {
            let key = key_of_certificate(app.federation.peers(), &certificate.spiffe_id, by_address);
            app.rate_limits.acquire(key)
        }
        Channel::Tls(None) | Channel::Plain => app.rate_limits.acquire(by_address),
    };
    context.set_rate(decision.remaining);
    context.hold(decision.permit.map_err(|error| {
        context.set_shed();
        refuse("rate", error)
    })?);
    if let Some(violation) = request.extensions().get::<Violation>() {
        return Err(refuse("violation", Error::violation(*violation)));
    }
    origin::check(request.uri(), request.headers(), &app.names, connection.local_address.ip())
        .map_err(|error| refuse("origin", error))?;
    if is_health {
        Ok(Admission::Always)
    } else if connection.in_reserve {
        Err(refuse("reserve", Error::unavailable("too many connections, try again soon")))
    } else {
        Ok(Admission::IfNotOverloaded)
    }
}

/// A peer chooses the names in its certificates, so each of them must not have a rate of its own.
fn key_of_certificate(peers: &Peers, id: &WorkloadId, by_address: Key) -> Key {
    match peers.by_id(id) {
        Some(peer) => Key::Peer(peer.name.clone()),
        None if peers.have(id.trust_domain()) => by_address,
        None => Key::Workload(id.clone()),
    }
}

/// Waits for the request's turn. Health does not wait.
async fn admit(
    app: &App,
    admission: Result<Admission, Error>,
    context: &RequestContext,
) -> Result<Option<Admitted>, Error> {
    match admission? {
        Admission::Always => Ok(None),
        Admission::IfNotOverloaded => {
            let admitted = app.load_shedder.admit().await;
            let refuse = |_: &Error| {
                app.metrics.requests_refused.inc(["overload"]);
                context.set_shed();
            };
            admitted.inspect_err(refuse).map(Some)
        }
    }
}

/// draft-ietf-httpapi-ratelimit-headers-10 §3: the quota of a window of one second, and its remainder.
fn insert_rate_headers(headers: &mut HeaderMap, rate: Remaining) {
    let policy = HeaderValue::try_from(format!("\"caller\";q={};w=1", rate.quota));
    let left = HeaderValue::try_from(format!("\"caller\";r={};t=1", rate.requests));
    headers.extend(policy.ok().map(|value| (RATE_LIMIT_POLICY, value)));
    headers.extend(left.ok().map(|value| (RATE_LIMIT, value)));
}

/// The method as a bounded label.
fn known_method(method: &Method) -> &'static str {
    const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    METHODS.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

fn trace_of(headers: &HeaderMap) -> Option<TraceContext> {
    TraceContext::parse(headers.get(TRACEPARENT)?.to_str().ok()?)
}

/// `Svc-Min-Index`: the response is of that index or later, or 503. Only an authenticated caller may wait, so that
/// anonymous ones cannot hold all permits; `caller` is its identity.
///
/// # Errors
/// 400 if it is not a log index; 503 if it is not reached in time.
pub(super) async fn reach_min_index(
    app: &App,
    headers: &HeaderMap,
    caller: Option<&str>,
) -> Result<(), Error> {
    let what = "Svc-Min-Index";
    match min_index(headers)? {
        Some(index) if caller.is_some() || !app.requires_tls => reach(app, index, what, caller).await,
        Some(index) if app.state.cluster().applied() < index => Err(not_applied(what)),
        _ => Ok(()),
    }
}

/// The log index in `Svc-Min-Index`.
///
/// # Errors
/// 400 if it is not a log index.
pub(super) fn min_index(headers: &HeaderMap) -> Result<Option<u64>, Error> {
    let Some(value) = headers.get(SVC_MIN_INDEX) else { return Ok(None) };
    let index = value.to_str().ok().and_then(|text| text.parse().ok());
    index.map(Some).ok_or_else(|| Error::invalid_request("Svc-Min-Index: must be a log index"))
}

/// Waits up to [`limits::MIN_INDEX_WAIT`] until this node has applied `index`, which the header `what` of a request
/// of `caller` states.
///
/// # Errors
/// 503 if it has not by then, or too many requests wait.
pub(super) async fn reach(app: &App, index: u64, what: &str, caller: Option<&str>) -> Result<(), Error> {
    if app.state.cluster().applied() >= index {
        return Ok(());
    }
    // A waiting request costs its sender nothing, so their number is bounded.
    let _permit = app
        .min_index_permits
        .try_acquire(caller.map(str::to_owned))
        .map_err(|_| Error::unavailable(format!("too many requests wait for their {what}")))?;
    let reached = app.state.cluster().until_applied(index);
    tokio::time::timeout(limits::MIN_INDEX_WAIT, reached).await.map_err(|_| not_applied(what))
}

fn not_applied(what: &str) -> Error {
    Error::unavailable(format!("this node has not applied {what} yet"))
}

/// Gives the router's own 405 the error object of the contract.
fn as_error_object(response: Response) -> Response {
    if response.status() != StatusCode::METHOD_NOT_ALLOWED {
        return response;
    }
    let allow = response.headers().get(header::ALLOW).cloned();
    let error = Error::new(Refusal::MethodNotAllowed, "this route does not support this method");
    let mut response = error.into_response();
    if let Some(allow) = allow {
        response.headers_mut().insert(header::ALLOW, allow);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_method_counts_as_other() {
        for method in ["BREW", "PROPFIND", "get"] {
            assert_eq!(known_method(&Method::from_bytes(method.as_bytes()).expect("a token")), "other");
        }
        assert_eq!(known_method(&Method::PATCH), "PATCH");
    }
}
