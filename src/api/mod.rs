//! The HTTP interface; [`routes`] is the route table.
//!
//! One file per resource, with wire types and translation only; use-cases decide. Nothing outside this module names
//! axum.

mod admin_audit;
pub(crate) mod admin_socket;
mod agents;
mod audit;
mod authorization_header;
mod awaited;
mod backup;
mod blocks;
mod body;
mod cache_control;
pub mod caller;
mod capability;
mod check_result;
mod cluster;
pub(crate) mod connect_info;
pub(crate) mod demo_issuer;
mod denials;
mod encryption_keys;
mod error;
mod etag;
mod events;
mod exchange;
mod federation;
mod federation_peers;
mod feed_activity;
mod finalize;
mod health;
mod idempotency;
mod jwks;
pub(crate) mod listener;
mod load_shedding;
mod members;
mod metrics;
mod middleware;
mod oauth_metadata;
mod openapi;
mod origin;
mod paging;
mod poll;
pub(crate) mod rate_limit;
mod read_consistency;
mod request_context;
mod request_id;
mod revocations;
mod routes;
mod signals;
mod ssf_configuration;
mod startup;
mod stream_controls;
mod streams;
mod sys_denials;
mod sys_keys;
mod sys_policy;
mod sys_signals;
mod text;
mod tools;
mod unread_body;
mod verify;

use std::sync::Arc;

pub use axum::Router;
use axum::middleware::from_fn_with_state;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::caller::{
    Access, Authenticated, Callers, ClusterAdmin, CreateStream, Health, Identities, IssueIdentity,
    JoinTokenHolder, LedgerReader, ManageStreams, ManageTools, Metrics as MetricsNeed, MetricsAccess,
    OwnToken, PeerNode, Public, ReadAudit, ReadEvents, ReadStreams, ReadTools, SendSignals, VerifyTools,
};
pub(crate) use self::denials::Denials;
pub(crate) use self::load_shedding::LoadShedder;
use self::rate_limit::RateLimits;
pub use self::routes::Route;
use self::routes::{Routes, routes};
pub(crate) use self::startup::Front;
use crate::active_policy::ActivePolicy;
use crate::clock::{Clock, Timestamp};
use crate::exchange::Exchange;
use crate::federation::Federation;
use crate::feed::Feed;
use crate::identity::AgentIdentities;
use crate::keyring::Keyring;
use crate::limiter::KeyedLimiter;
use crate::own_tokens::OwnTokens;
use crate::receiver::Receiver;
use crate::revocation::Revocations;
use crate::state::State;
use crate::telemetry::Metrics;
use crate::tools::audit::Audit;
use crate::tools::registry::Registry;
use crate::tools::verify::ToolCallVerifier;
use crate::transmitter::poll::Poller;
use crate::transmitter::streams::Streams;

/// The state of every handler. Cheap to clone.
#[derive(Clone, derive_more::Deref)]
pub struct App {
    #[deref(forward)]
    parts: Arc<Parts>,
    health_routes: Arc<[&'static str]>,
    /// `/openapi.json`, generated once.
    description: Arc<str>,
}

/// The parts of [`App`].
pub struct Parts {
    /// Token exchange.
    pub exchange: Exchange,
    /// The audit.
    pub audit: Audit,
    /// Verification of tool calls.
    pub verifier: ToolCallVerifier,
    /// The registry of tools.
    pub registry: Registry,
    /// Agent identities.
    pub identity: AgentIdentities,
    /// Revocations by operators.
    pub revocations: Revocations,
    /// The ledger.
    pub federation: Federation,
    /// Receiver of security events.
    pub receiver: Receiver,
    /// Configuration of streams.
    pub streams: Streams,
    /// Delivery by poll.
    pub poller: Poller,
    /// The live feed.
    pub feed: Feed,
    /// The latest denials of this node.
    pub denials: Denials,
    /// This node's signing keys.
    pub keyring: Keyring,
    /// The replicated state.
    pub state: State,
    /// The compiled policy.
    pub policy: ActivePolicy,
    /// Time.
    pub clock: Clock,
    /// Metrics.
    pub metrics: Metrics,
    /// Our `iss`.
    pub issuer: String,
    /// Host names that requests may carry, beside loopback names and the local address.
    pub names: Vec<String>,
    /// True outside development mode: plain HTTP then serves public routes only. In development mode an anonymous
    /// caller has every capability.
    pub requires_tls: bool,
    /// Capabilities by client certificate.
    pub callers: Callers,
    /// Access to `/metrics`.
    pub metrics_access: MetricsAccess,
    /// Verifies bearer tokens.
    pub own_tokens: OwnTokens,
    /// Rate limits of callers.
    pub rate_limits: RateLimits,
    /// Rate limits of addresses on health routes.
    pub health_rate_limits: RateLimits,
    /// Permits to read the rest of a request's body.
    pub unread_body_permits: Semaphore,
    /// Permits to wait for `Svc-Min-Index`.
    pub(crate) min_index_permits: KeyedLimiter<String>,
    /// Permits to read a backup.
    pub backup_permits: Arc<Semaphore>,
    /// Load shedding.
    pub load_shedder: LoadShedder,
    /// Cancelled when the node shall stop: it still serves, and is not ready.
    pub stop_requested: CancellationToken,
    /// The node's name in responses and events.
    pub unit_id: String,
}

impl App {
    /// Builds it from its parts.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let rows = rows();
        let health = rows.iter().filter(|row| row.access == Access::Health).map(|row| row.path);
        Self {
            parts: Arc::new(parts),
            health_routes: health.collect(),
            description: openapi::description().into(),
        }
    }

    /// Health shows details to authenticated callers only; in development mode to every caller.
    fn shows_details<N>(&self, caller: &caller::Caller<N>) -> bool {
        caller.id().is_some() || !self.requires_tls
    }

    /// The time at which the states of signing keys are evaluated.
    fn key_time(&self) -> Timestamp {
        self.state.elapsed_time()
    }
}

/// Every route, with its requirement on the caller (contract §2).
fn routes() -> Routes {
    routes![
        (POST, "/v1/exchange/token", caller::Exchange, exchange::post),
        (POST, "/v1/identity/agent", IssueIdentity, agents::issue),
        (POST, "/v1/identity/agent/renew", OwnToken, agents::renew),
        (GET, "/v1/identity/agents", Identities, agents::list),
        (GET, "/v1/identity/agents/{agent_id}", Identities, agents::show),
        (DELETE, "/v1/identity/agents/{agent_id}", Identities, agents::revoke),
        (POST, "/v1/identity/agents/{agent_id}/token", IssueIdentity, agents::mint_token),
        (GET, "/v1/identity/jwks", Public, jwks::get),
        (POST, "/v1/identity/agent/encryption-key", OwnToken, encryption_keys::register),
        (GET, "/v1/identity/agent/encryption-key", Authenticated, encryption_keys::list),
        (DELETE, "/v1/identity/agent/encryption-key", Authenticated, encryption_keys::remove),
        (GET, "/.well-known/oauth-authorization-server", Public, oauth_metadata::get),
        (POST, "/v1/mcp/verify", VerifyTools, verify::post),
        (POST, "/v1/signals/events", SendSignals, signals::receive),
        (POST, "/v1/signals/stream", CreateStream, streams::create),
        (GET, "/v1/signals/stream", ReadStreams, streams::read),
        (PATCH, "/v1/signals/stream", ManageStreams, streams::update),
        (PUT, "/v1/signals/stream", ManageStreams, streams::replace),
        (DELETE, "/v1/signals/stream", ManageStreams, streams::delete),
        (GET, "/v1/signals/status", ReadStreams, stream_controls::status),
        (POST, "/v1/signals/status", ManageStreams, stream_controls::set_status),
        (POST, "/v1/signals/verification", ManageStreams, stream_controls::verify),
        (POST, "/v1/signals/subjects:add", ManageStreams, stream_controls::add_subject),
        (POST, "/v1/signals/subjects:remove", ManageStreams, stream_controls::remove_subject),
        (GET, "/v1/signals/dead-letters", ReadStreams, stream_controls::dead_letters),
        (GET, "/.well-known/ssf-configuration", Public, ssf_configuration::get),
        (POST, "/v1/signals/poll/{stream_id}", ReadStreams, poll::post),
        (GET, "/v1/sys/health", Health, health::get),
        (GET, "/livez", Health, health::live),
        (GET, "/readyz", Health, health::ready),
        (GET, "/metrics", MetricsNeed, metrics::get),
        (GET, "/openapi.json", Public, openapi::get),
        (GET, "/v1/sys/backup", ClusterAdmin, backup::save),
        (GET, "/v1/sys/cluster", ClusterAdmin, cluster::get),
        (POST, "/v1/sys/cluster/join-tokens", ClusterAdmin, members::invite),
        (POST, "/v1/sys/cluster/join", JoinTokenHolder, members::join),
        (POST, "/v1/sys/cluster/members/{node_id}/promote", ClusterAdmin, members::promote),
        (DELETE, "/v1/sys/cluster/members/{node_id}", ClusterAdmin, members::remove),
        (POST, "/v1/sys/cluster/leader", ClusterAdmin, members::transfer),
        (POST, "/v1/sys/cluster/finalize", ClusterAdmin, finalize::post),
        (GET, "/v1/sys/keys", ClusterAdmin, sys_keys::list),
        (POST, "/v1/sys/keys/rotate", ClusterAdmin, sys_keys::rotate),
        (POST, "/v1/sys/keys/{kid}/taint", ClusterAdmin, sys_keys::taint),
        (GET, "/v1/sys/policy", ClusterAdmin, sys_policy::get),
        (PUT, "/v1/sys/policy", ClusterAdmin, sys_policy::put),
        (GET, "/v1/sys/policy/history", ClusterAdmin, sys_policy::history),
        (POST, "/v1/sys/policy/rollback", ClusterAdmin, sys_policy::rollback),
        (POST, "/v1/sys/policy/explain", ClusterAdmin, sys_policy::explain),
        (GET, "/v1/sys/denials/{request_id}", ClusterAdmin, sys_denials::explain),
        (POST, "/v1/tools", ManageTools, tools::register),
        (GET, "/v1/tools", ReadTools, tools::list),
        (GET, "/v1/tools/{tool_id}", ReadTools, tools::get),
        (PUT, "/v1/tools/{tool_id}", ManageTools, tools::put),
        (DELETE, "/v1/tools/{tool_id}", ManageTools, tools::deregister),
        (POST, "/v1/mcp/tools", ManageTools, tools::register_mcp),
        (GET, "/v1/mcp/tools", ReadTools, tools::list_mcp),
        (DELETE, "/v1/mcp/tools", ManageTools, tools::deregister_mcp_by_query),
        (GET, "/v1/mcp/tools/{tool_id}", ReadTools, tools::get_mcp),
        (DELETE, "/v1/mcp/tools/{tool_id}", ManageTools, tools::deregister_mcp),
        (GET, "/v1/tools/{tool_id}/audit", ReadAudit, audit::of_tool),
        (GET, "/v1/audit", ReadAudit, audit::acts),
        (GET, "/v1/audit/blocks", ReadAudit, audit::blocks),
        (POST, "/v1/revocations", ClusterAdmin, revocations::revoke),
        (GET, "/v1/revocations", ClusterAdmin, revocations::list),
        (GET, "/v1/events", ReadEvents, events::read),
        (GET, "/v1/blocks", ClusterAdmin, blocks::list),
        (DELETE, "/v1/blocks/{id}", ClusterAdmin, blocks::lift),
        (GET, "/v1/federation/bundle", Public, federation::bundle),
        (GET, "/v1/federation/revocation-hash", LedgerReader, federation::hash),
        (GET, "/v1/federation/revocation-export", LedgerReader, federation::export),
        (POST, "/v1/federation/sync", PeerNode, federation::sync),
        (GET, "/v1/federation/peers", ClusterAdmin, federation_peers::list),
        (POST, "/v1/federation/peers/{name}/{verb}", ClusterAdmin, federation_peers::act),
        (POST, "/v1/sys/signals/allowance", ClusterAdmin, sys_signals::allow),
    ]
}

/// The rows of the route table.
#[must_use]
pub fn rows() -> Vec<Route> {
    routes().rows().to_vec()
}

/// The routes with their middleware.
fn router(app: App) -> Router {
    routes()
        .into_router()
        .fallback(not_found)
        .layer(from_fn_with_state(app.clone(), middleware::wrap))
        .with_state(app)
}

async fn not_found() -> error::Error {
    error::Error::not_found("there is no such route")
}
