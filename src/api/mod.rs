//! The HTTP interface, and the whole of it: [`router`] is the route table.
//!
//! One file per resource, with wire types and translation only; what a request means is decided in
//! a use-case. Nothing outside this module names axum.

mod around;
mod body;
mod cached;
pub mod demo_issuer;
mod error;
mod exchange;
mod health;
mod jwks;
pub mod listener;
mod metadata;
mod metrics;
mod openapi;
mod origin;
mod sys_keys;
mod sys_policy;

use std::ops::Deref;
use std::sync::Arc;

use axum::Router;
use axum::middleware;
use axum::routing::{get, post};

use crate::active_policy::ActivePolicy;
use crate::clock::{Clock, Timestamp};
use crate::exchange::Exchange;
use crate::keyring::Keyring;
use crate::state::State;
use crate::telemetry::Metrics;

/// What the handlers need. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Parts>);

/// The parts of [`App`].
pub struct Parts {
    /// The use-case of `/v1/exchange/token`.
    pub exchange: Exchange,
    /// This node's signing keys.
    pub keyring: Keyring,
    /// The replicated state.
    pub state: State,
    /// The compiled policy, and how another one becomes current.
    pub policy: ActivePolicy,
    /// Time.
    pub clock: Clock,
    /// Counters.
    pub metrics: Metrics,
    /// Our `iss`.
    pub issuer: String,
    /// The host of our `iss`.
    pub own_host: String,
    /// What this node calls itself.
    pub unit_id: String,
}

impl App {
    /// From its parts.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// The time by which signing keys are judged.
    fn key_time(&self) -> Timestamp {
        self.state.not_before_log(self.clock.now())
    }
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// Every route. `docs/decisions/2026-11-20-loopback-until-callers-are-known.md` says why none asks
/// who calls.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/v1/exchange/token", post(exchange::post))
        .route("/v1/identity/jwks", get(jwks::get))
        .route("/.well-known/oauth-authorization-server", get(metadata::get))
        .route("/v1/sys/health", get(health::get))
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(metrics::get))
        .route("/openapi.json", get(openapi::get))
        .route("/v1/sys/keys", get(sys_keys::list))
        .route("/v1/sys/keys/rotate", post(sys_keys::rotate))
        .route("/v1/sys/keys/{kid}/taint", post(sys_keys::taint))
        .route("/v1/sys/policy", get(sys_policy::get).put(sys_policy::put))
        .route("/v1/sys/policy/history", get(sys_policy::history))
        .route("/v1/sys/policy/rollback", post(sys_policy::rollback))
        .route("/v1/sys/policy/explain", post(sys_policy::explain))
        .fallback(not_found)
        .layer(middleware::from_fn_with_state(app.clone(), around::around))
        .with_state(app)
}

async fn not_found() -> error::Error {
    error::Error::not_found("there is no such route")
}
