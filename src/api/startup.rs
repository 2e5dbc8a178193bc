//! The router of the listeners. Until the node has recovered its state it serves health, with the reason, and the keys
//! that it stored; every other request gets 503. Afterwards the route table serves all requests.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State as Extract};
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse as _, Response};
use tower::ServiceExt as _;

use super::connect_info::ClientConnection;
use super::error::Error;
use super::listener::Violation;
use super::{App, cache_control, health, jwks, middleware, origin};
use crate::clock::Clock;
use crate::state::State;
use crate::{keyring, limits};

/// Serves requests from process start. Cheap to clone.
#[derive(Clone)]
pub struct Front(Arc<Parts>);

struct Parts {
    unit_id: String,
    names: Vec<String>,
    clock: Clock,
    /// By the boot clock.
    started: Duration,
    /// Set once the data directory is open.
    state: OnceLock<State>,
    /// Set once the node is ready to serve.
    app: OnceLock<(App, Router)>,
}

impl Front {
    /// For a node named `unit_id` that starts now and is addressed by `names`.
    #[must_use]
    pub fn new(unit_id: String, names: Vec<String>, clock: Clock) -> Self {
        let started = clock.boot();
        Self(Arc::new(Parts { unit_id, names, clock, started, state: OnceLock::new(), app: OnceLock::new() }))
    }

    /// The data directory is open; its state may be old.
    pub fn open(&self, state: State) {
        self.0.state.get_or_init(|| state);
    }

    /// Serves the route table from now on.
    pub fn begin(&self, app: App) {
        self.0.app.get_or_init(|| (app.clone(), super::router(app)));
    }

    /// The router of the listeners.
    pub fn router(&self) -> Router {
        Router::new().fallback(answer).with_state(self.clone())
    }

    /// Whether the route table is served.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.0.app.get().is_some()
    }

    /// Reasons why the node is not ready; empty if it is.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        match (self.0.app.get(), self.0.state.get()) {
            (Some((app, _)), _) => health::missing(app),
            (None, None) => vec!["data directory"],
            (None, Some(state)) if !state.cluster().has_members() => vec!["members"],
            (None, Some(state)) if !state.cluster().is_led() => vec!["leader"],
            (None, Some(state)) if state.cluster().disputed_index().is_some() => {
                vec!["agreement on the state"]
            }
            (None, Some(_)) => vec!["state of the cluster"],
        }
    }

    /// The nodes it waits for, and why.
    #[must_use]
    pub fn waits_for(&self) -> Option<String> {
        self.0.state.get().and_then(|state| state.cluster().waits_for())
    }

    /// The application, once the route table is served.
    pub(super) fn app(&self) -> Option<&App> {
        self.0.app.get().map(|(app, _)| app)
    }

    /// The state, once the data directory is open.
    pub(super) fn state(&self) -> Option<&State> {
        self.0.state.get()
    }

    pub(super) fn unit_id(&self) -> &str {
        &self.0.unit_id
    }

    /// Health until the route table is served.
    pub(super) fn health(&self) -> Response {
        let initialized = self.state().is_some_and(|state| state.position().is_some());
        health::starting(&self.0.unit_id, initialized, self.missing())
    }

    /// The refusal of every other request until then.
    pub(super) fn unavailable(&self) -> Error {
        Error::unavailable(format!("this node is starting: it has no {} yet", self.missing().join(", ")))
    }

    fn answer(&self, request: &Request) -> Result<Response, Error> {
        if let Some(violation) = request.extensions().get::<Violation>() {
            return Err(Error::violation(*violation));
        }
        let peer = request.extensions().get::<Arc<ClientConnection>>();
        let peer = peer.ok_or_else(|| Error::internal("a request lacks its connection"))?;
        origin::check(request.uri(), request.headers(), &self.0.names, peer.local_address.ip())?;
        match request.uri().path() {
            _ if ![Method::GET, Method::HEAD].contains(request.method()) => {}
            "/livez" => return Ok(health::live_response()),
            "/readyz" | "/v1/sys/health" => return Ok(self.health()),
            "/v1/identity/jwks" => return self.jwks(request.headers()),
            _ => {}
        }
        Err(self.unavailable())
    }

    /// The stored keys. Only for a while: one of them may have been tainted since.
    fn jwks(&self, headers: &HeaderMap) -> Result<Response, Error> {
        let Parts { clock, started, state, .. } = &*self.0;
        let is_new = clock.boot() < *started + limits::JWKS_WITHOUT_LEASE_MAX;
        match state.get().filter(|state| is_new && state.position().is_some()) {
            Some(state) => {
                let keys = keyring::jwks(state, state.elapsed_time());
                cache_control::answer(headers, jwks::media(headers), keys.to_string())
            }
            None => Err(Error::unavailable("this node does not know the keys of its cluster")),
        }
    }
}

async fn answer(Extract(front): Extract<Front>, request: Request) -> Response {
    if let Some((_, router)) = front.0.app.get() {
        let Ok(response) = router.clone().oneshot(request).await;
        return response;
    }
    middleware::identified(async move { front.answer(&request).unwrap_or_else(Error::into_response) }).await
}
