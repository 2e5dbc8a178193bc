//! A fake of a Kubernetes API server. **It is not a real one**: it shares no code with Kubernetes, and a test
//! that passes against it proves the behaviour that this file states, not that of a real API server.
//!
//! It serves, over TLS: discovery, `OpenAPI` v3, namespaces, custom resource definitions and the objects that they define,
//! with create, read, list, watch, replace, merge patch, server-side apply with field owners, the status subresource,
//! deletion with preconditions and finalizers, tables, dry runs and strict validation by schema, defaults and CEL. It
//! knows a client by a certificate or a bearer token. Every list is one field (`atomic`), as all lists in `spec` of a
//! fabric are. Clock and identifiers are fixed, so that the same requests have the same responses.

mod discovery;
mod objects;
mod ownership;
mod server;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::Method;
use serde_json::{Value as Json, json};
use tokio::sync::watch;

pub use server::{ApiServer, Authority, TOKEN};

/// One request, without its connection.
#[derive(Clone, Debug)]
pub struct Order {
    pub method: Method,
    pub path: String,
    pub query: BTreeMap<String, String>,
    pub accept: String,
    pub content_type: String,
    pub body: Vec<u8>,
}

/// One response.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Json(u16, Json),
    /// Of a path that no group serves.
    Text(u16, &'static str),
    /// A stream of events from this resource version on.
    Watch(Watch),
}

/// The subscription of a watcher.
#[derive(Clone, Debug, PartialEq)]
pub struct Watch {
    kind: String,
    namespace: Option<String>,
    name: Option<String>,
    from: u64,
    has_bookmarks: bool,
}

/// A change, for watchers.
#[derive(Clone, Debug)]
struct Event {
    version: u64,
    kind: String,
    change: &'static str,
    object: Json,
}

/// Everything that the server stores.
#[derive(Clone, Debug, Default)]
pub struct State {
    kinds: Vec<discovery::Kind>,
    objects: BTreeMap<objects::Key, objects::Object>,
    version: u64,
    events: Vec<Event>,
    /// Watchers from an older version receive the error that it is too old.
    oldest: u64,
}

/// The state, and the signal of its changes.
pub struct Store {
    state: Mutex<State>,
    version: watch::Sender<u64>,
}

impl Store {
    fn new() -> Self {
        Self { state: Mutex::new(State::new()), version: watch::Sender::new(0) }
    }

    /// Runs `act` on the state, and wakes watchers.
    pub fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut state);
        let version = state.version;
        self.version.send_if_modified(|known| std::mem::replace(known, version) != version);
        result
    }

    pub fn answer(&self, order: &Order) -> Reply {
        self.with(|state| state.answer(order))
    }

    /// The events of a watch that the watcher does not have.
    fn next(&self, watch: &mut Watch) -> Vec<Json> {
        self.with(|state| {
            if watch.from < state.oldest {
                let gone = status(410, "Expired", "too old resource version", &json!({}));
                watch.from = u64::MAX;
                return vec![json!({"type": "ERROR", "object": gone})];
            }
            let metadata = |event: &Event, name: &str| event.object["metadata"][name].clone();
            let is_watched = |event: &&Event| {
                event.version > watch.from
                    && event.kind == watch.kind
                    && watch.namespace.as_ref().is_none_or(|known| metadata(event, "namespace") == **known)
                    && watch.name.as_ref().is_none_or(|known| metadata(event, "name") == **known)
            };
            let events = state.events.iter().filter(is_watched);
            let mut events: Vec<Json> =
                events.map(|event| json!({"type": event.change, "object": event.object})).collect();
            watch.from = state.version;
            if watch.has_bookmarks {
                watch.has_bookmarks = false;
                let kind = state.kinds.iter().find(|known| known.id() == watch.kind);
                let object = json!({
                    "kind": kind.map(|kind| kind.name("kind")), "apiVersion": kind.map(discovery::Kind::api_version),
                    "metadata": {"resourceVersion": state.version.to_string()},
                });
                events.push(json!({"type": "BOOKMARK", "object": object}));
            }
            events
        })
    }
}

/// A `Status` of a failure.
fn status(code: u16, reason: &str, message: &str, details: &Json) -> Json {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "details": details, "code": code,
    })
}

fn failure(code: u16, reason: &str, message: impl AsRef<str>) -> Reply {
    Reply::Json(code, status(code, reason, message.as_ref(), &json!({})))
}

/// The requests that arrived, for tests that count or record them.
pub type Seen = Arc<Mutex<Vec<(Order, Reply)>>>;
