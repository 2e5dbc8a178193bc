//! Routes of the development issuer, which stands in for the API server of a Kubernetes cluster. The tokens are built
//! elsewhere.

use std::net::Ipv4Addr;
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use serde_json::Value;

/// Issues a credential for a namespace and a service account; the error text goes to the caller.
pub type Issue = dyn Fn(&str, &str) -> Result<String, String> + Send + Sync;

/// The documents and the issuing function.
#[derive(Clone)]
pub struct DemoIssuer {
    /// Its discovery document (OpenID Connect Discovery §3).
    pub discovery: Value,
    /// Its public keys.
    pub jwks: Value,
    /// Issues a credential.
    pub issue: Arc<Issue>,
}

/// The query of `/token`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    #[serde(default = "demo")]
    namespace: String,
    #[serde(default = "reporter")]
    service_account: String,
}

fn demo() -> String {
    "demo".to_owned()
}

fn reporter() -> String {
    "reporter".to_owned()
}

/// Every route of the demo issuer.
pub fn router(issuer: DemoIssuer) -> Router {
    Router::new()
        .route("/.well-known/openid-configuration", get(discovery))
        .route("/openid/v1/jwks", get(jwks))
        .route("/token", get(token))
        .layer(middleware::from_fn(guard))
        .with_state(issuer)
}

/// Keeps pages of other sites from fetching credentials through a browser on this machine.
async fn guard(request: Request, next: Next) -> Response {
    match super::origin::check(request.uri(), request.headers(), &[], Ipv4Addr::LOCALHOST.into()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

async fn discovery(State(issuer): State<DemoIssuer>) -> Json<Value> {
    Json(issuer.discovery)
}

/// The media type is that of a real API server.
async fn jwks(State(issuer): State<DemoIssuer>) -> Response {
    let media = HeaderValue::from_static("application/jwk-set+json");
    ([(header::CONTENT_TYPE, media)], issuer.jwks.to_string()).into_response()
}

async fn token(State(issuer): State<DemoIssuer>, Query(wanted): Query<Wanted>) -> Response {
    let no_store = [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    match (issuer.issue)(&wanted.namespace, &wanted.service_account) {
        Ok(token) => (no_store, token).into_response(),
        Err(rule) => (StatusCode::BAD_REQUEST, no_store, rule).into_response(),
    }
}
