//! Wiring of security events: receiver, streams, transmitter and live feed.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{Error, draw};
use crate::active_policy::ActivePolicy;
use crate::api::caller::Capability;
use crate::clock::Clock;
use crate::config::Config;
use crate::feed;
use crate::feed::Feed;
use crate::outbound::client::Client;
use crate::outbound::guard::Guard;
use crate::outbound::issuer_keys::IssuerKeys;
use crate::receiver::{CredentialIssuers, Receiver};
use crate::state::{CallerFacts, State};
use crate::telemetry::Metrics;
use crate::transmitter::obstacle::Obstacles;
use crate::transmitter::poll::Poller;
use crate::transmitter::push;
use crate::transmitter::push::PushWorkers;
use crate::transmitter::set_builder::SetBuilder;
use crate::transmitter::streams::Streams;

/// The live feed and its broadcaster.
pub(super) fn feed(
    config: &Config,
    state: &State,
    clock: Clock,
    metrics: &Metrics,
    shutdown: &CancellationToken,
) -> (Feed, feed::Broadcaster, feed::Gatherer) {
    Feed::new(feed::Parts {
        table: Arc::new(state.clone()),
        peers: Arc::new(state.clone()),
        unit_id: config.node.unit_id.clone(),
        clock,
        metrics: metrics.clone(),
        shutdown: shutdown.clone(),
    })
}

/// Pushes events to the receivers of streams.
pub(super) fn transmitter(
    config: &Config,
    sets: SetBuilder,
    client: Client,
    state: &State,
    clock: &Clock,
    metrics: &Metrics,
) -> Result<PushWorkers, Error> {
    Ok(PushWorkers {
        state: state.clone(),
        sets,
        obstacles: obstacles(config, state, clock),
        client,
        clock: clock.clone(),
        metrics: metrics.clone(),
        seed: draw()?,
        limits: push::PushLimits::default(),
    })
}

pub(super) fn receiver(
    config: &Config,
    outbound: Client,
    state: &State,
    policy: &ActivePolicy,
    clock: &Clock,
    metrics: &Metrics,
) -> Receiver {
    let peers = config.federation.iter().flat_map(|federation| federation.peers.iter());
    Receiver {
        own_issuer: config.fabric.issuer.clone(),
        peer_issuers: peers.map(|peer| peer.issuer.clone()).collect(),
        issuers: config.signals.clone(),
        operators: CallerFacts::of_certificates(&config.fabric.issuer, config.callers.operators()),
        credential_issuers: CredentialIssuers::new(&config.fabric.issuer, &config.issuers),
        issuer_keys: IssuerKeys::new(
            config.signals.key_sources().map(|(iss, keys)| (iss, keys, None)),
            outbound,
            clock.clone(),
            metrics.clone(),
        ),
        state: state.clone(),
        policy: policy.compiled(),
        clock: clock.clone(),
        metrics: metrics.clone(),
    }
}

/// Without a configured base URL, it is the address of the listener, whose port the operating system may have chosen.
pub(super) fn reached_at(config: &mut Config, address: SocketAddr) {
    let listened = format!("http://{}", config.listen.http);
    if let Some(transmitter) = config.transmitter.as_mut().filter(|found| found.base_url == listened) {
        transmitter.base_url = format!("http://{address}");
    }
}

/// Conditions under which a stream may not deliver.
fn obstacles(config: &Config, state: &State, clock: &Clock) -> Obstacles {
    let (requires_tls, callers) = (config.tls.is_some(), config.callers.clone());
    // Without TLS, in development mode, every caller has all capabilities.
    let may_own = move |owner: &str| {
        !requires_tls || owner.parse().is_ok_and(|id| callers.may(&id, Capability::StreamsManage))
    };
    let (issuer, guard) = (config.fabric.issuer.clone(), Guard::new(config.outbound.clone()));
    Obstacles::new(issuer, Arc::new(may_own), guard, state.clone(), clock.clone())
}

/// Serves polls.
pub(super) fn poller(
    config: &Config,
    sets: SetBuilder,
    state: &State,
    clock: &Clock,
    metrics: &Metrics,
    shutdown: &CancellationToken,
) -> Poller {
    let obstacles = obstacles(config, state, clock);
    Poller::new(sets, obstacles, state.clone(), clock.clone(), metrics.clone(), shutdown.clone())
}

pub(super) fn streams(config: &Config, state: &State, clock: &Clock) -> Streams {
    Streams {
        issuer: config.fabric.issuer.clone(),
        base_url: config.transmitter.as_ref().map(|transmitter| transmitter.base_url.clone()),
        guard: Guard::new(config.outbound.clone()),
        obstacles: obstacles(config, state, clock),
        state: state.clone(),
    }
}
