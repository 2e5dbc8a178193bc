//! What surrounds every request: its id and trace, its deadline, the index it asks for, its count
//! and its line in the log; and the one refusal that holds for every route, of what a browser sends
//! for another site ([`super::origin`]). Nothing here decides what a request means.

use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::{Code, Error};
use super::{App, origin};
use crate::limits;
use crate::telemetry::TraceContext;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: &str = "traceparent";
const SVC_INDEX: HeaderName = HeaderName::from_static("svc-index");
const SVC_MIN_INDEX: &str = "svc-min-index";

tokio::task_local! {
    static CURRENT_REQUEST_ID: String;
}

/// The id of the request this task is answering; empty outside of one.
#[must_use]
pub fn current_request_id() -> String {
    CURRENT_REQUEST_ID.try_with(Clone::clone).unwrap_or_default()
}

/// Answers a request with everything that surrounds it.
pub async fn around(State(app): State<App>, request: Request, next: Next) -> Response {
    let began = app.clock.boot();
    let request_id = uuid::Uuid::new_v4().simple().to_string();
    let trace = trace_of(request.headers());
    let method = request.method().clone();
    // The route's pattern, never the path: a label must not grow with what callers send.
    let route =
        request.extensions().get::<MatchedPath>().map_or("unmatched", |path| path.as_str()).to_owned();

    let answer = CURRENT_REQUEST_ID.scope(request_id.clone(), async {
        let answered = async {
            let admitted = match origin::check(request.headers(), &app.own_host) {
                Ok(()) => reach_min_index(&app, request.headers()).await,
                refused => refused,
            };
            match admitted {
                Ok(()) => as_error_object(next.run(request).await),
                Err(error) => closing(error.into_response()),
            }
        };
        match tokio::time::timeout(limits::REQUEST_TIMEOUT, answered).await {
            Ok(response) => response,
            Err(_) => Error::unavailable("the request took too long; its outcome is unknown").into_response(),
        }
    });
    let mut response = answer.await;

    let headers = response.headers_mut();
    headers.insert(SVC_INDEX, HeaderValue::from(app.state.core().applied()));
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        headers.insert(REQUEST_ID, value);
    }
    let took = app.clock.boot().saturating_sub(began);
    record(&app, method.as_str(), &route, response.status(), took);
    tracing::info!(
        request_id,
        trace_id = trace.as_ref().map(TraceContext::trace_id),
        method = method.as_str(),
        route,
        status = response.status().as_u16(),
        duration_micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        "request"
    );
    response
}

fn record(app: &App, method: &str, route: &str, status: StatusCode, took: Duration) {
    let method = match method {
        "GET" | "POST" | "PUT" | "DELETE" | "PATCH" | "HEAD" | "OPTIONS" => method,
        _ => "other",
    };
    app.metrics.http_request(route, method, status.as_u16(), took);
}

fn trace_of(headers: &HeaderMap) -> Option<TraceContext> {
    TraceContext::parse(headers.get(TRACEPARENT)?.to_str().ok()?)
}

/// `Svc-Min-Index`: the request is answered at that index or later, or 503 (contract §1).
async fn reach_min_index(app: &App, headers: &HeaderMap) -> Result<(), Error> {
    let Some(value) = headers.get(SVC_MIN_INDEX) else { return Ok(()) };
    let index = value.to_str().ok().and_then(|text| text.parse().ok());
    let index = index.ok_or_else(|| Error::invalid_request("Svc-Min-Index: must be a log index"))?;
    let reached = app.state.core().until_applied(index);
    tokio::time::timeout(limits::MIN_INDEX_WAIT, reached)
        .await
        .map_err(|_| Error::unavailable("this node has not applied Svc-Min-Index yet"))
}

/// The body was not read, so that the connection cannot go on; the caller is told.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
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
    closing(response)
}
