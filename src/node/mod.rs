//! The only wiring: opens the data directory, starts the replica, brings up keys and policy, and serves.
//!
//! Only this module starts tasks and threads, so that a shutdown can wait for all of them.

mod bootstrap;
mod federation;
mod listeners;
mod push_certificate;
mod readiness;
mod replica;
mod restoring;
mod running;
mod signals;
mod tokens;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::bootstrap::{
    bootstrap, despite_elections, keep_version_recorded, startup_timeout, until_current, until_recovered,
};
use self::federation::{Fabrics, federation, read_peers};
use self::listeners::{Listeners, open_admin_socket};
use self::push_certificate::PushCertificate;
use self::replica::{Replica, start_replica, until_disk_has_space};
pub use self::restoring::{CreatedCluster, NewClusterOptions, mode, open_joining, open_stopped};
pub use self::running::Running;
use self::running::{Stop, stopped_after};
use self::signals::{feed, poller, reached_at, receiver, streams, transmitter};
use self::tokens::{own_tokens, peer_tokens, verifier};
use crate::active_policy::{ActivePolicy, LoadError, Workers};
use crate::api::listener::{self, ConnectionLimiter};
use crate::api::rate_limit::RateLimits;
use crate::api::{self, App, Front, LoadShedder};
use crate::clock::Clock;
use crate::cluster::Corrupt;
use crate::config::{self, Config};
use crate::data_directory;
use crate::exchange::Exchange;
use crate::identity::AgentIdentities;
use crate::keyring::{self, GenerateEventKey, Keyring};
use crate::limiter::KeyedLimiter;
use crate::outbound::client::{self, Client};
use crate::outbound::guard::Guard;
use crate::outbound::issuer_keys::IssuerKeys;
use crate::peer_tokens::PeerTokens;
use crate::policy::compile::Check;
use crate::revocation::Revocations;
use crate::state::{self, State};
use crate::telemetry::{self, Metrics};
use crate::token::issuer::{self, Issuers};
use crate::token::signature_cache::SignatureCache;
use crate::token::signing_key;
use crate::token::signing_key::EventSigningKey;
use crate::tools::audit;
use crate::tools::registry::Registry;
use crate::transmitter::set_builder::SetBuilder;
use crate::{limits, policy, tls};

/// Reason for which a node did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Binding to the address failed.
    #[error("failed to listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDirectory(#[from] data_directory::Error),
    /// Certificates, keys or revocation lists of the TLS listener.
    #[error("tls: {0}")]
    Tls(#[from] tls::Error),
    /// Certificates, keys or revocation lists of the peer listener.
    #[error("cluster: {0}")]
    PeerTls(tls::Error),
    /// A certificate or the roots of peer fabrics.
    #[error("{setting}: {source}")]
    Federation { setting: String, source: tls::Error },
    /// The client certificate of pushes.
    #[error("transmitter: {0}")]
    PushCertificate(tls::Error),
    /// The active policy does not compile on this node.
    #[error("the active policy does not compile on this node; the log has the reason")]
    NoPolicy,
    /// The limit of file descriptors is too low.
    #[error(transparent)]
    Descriptors(#[from] listener::DescriptorsError),
    /// Another process uses the data directory.
    #[error("data directory {}: another process is using it", path.display())]
    InUse { path: PathBuf },
    /// The data directory is corrupt, or of another node.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The entries in the log were not applied in time.
    #[error("recovery did not complete: {0}")]
    NotRecovered(String),
    /// The configured issuers contradict each other.
    #[error("issuers: {0}")]
    Issuers(#[from] issuer::Error),
    /// Reading the first policy failed.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// The first policy is invalid.
    #[error("policy: {0}")]
    Policy(LoadError),
    /// A write during startup failed.
    #[error("startup: {0}")]
    State(#[from] state::Error),
    /// Opening or creating signing keys failed.
    #[error("signing keys: {0}")]
    Keyring(#[from] keyring::Error),
    /// Creating the HTTP client failed.
    #[error("outbound: {0}")]
    Outbound(#[from] client::Error),
    /// Creating the metrics failed.
    #[error("telemetry: {0}")]
    Telemetry(#[from] telemetry::Error),
    /// Opening the audit failed.
    #[error("audit: {0}")]
    Audit(#[from] audit::ShipError),
    /// The operating system provides no random bytes.
    #[error("the operating system provides no random bytes")]
    NoRandomness,
    /// A task of the node panicked.
    #[error("a task has failed: {0}")]
    TaskFailed(tokio::task::JoinError),
    /// A part did not end in time. The process must be killed.
    #[error(
        "{cause}; shutdown timeout: a part of this node did not end in time, as when a disk hangs; the process is killed"
    )]
    NotStopped { cause: String },
    /// The replica failed. The process must exit: its memory may be ahead of the disk.
    #[error("the replica has failed: {0}")]
    ReplicaFailed(String),
}

/// Starts a node. `compiler` is this executable, started again in a child process to compile a policy. After an error,
/// the data directory is closed.
pub async fn start(
    config: Config,
    clock: Clock,
    compiler: &Path,
    shutdown: CancellationToken,
) -> Result<Running, Error> {
    // Its state is large, and callers have it within their own.
    Box::pin(start_up(config, clock, compiler, shutdown)).await
}

async fn start_up(
    mut config: Config,
    clock: Clock,
    compiler: &Path,
    shutdown: CancellationToken,
) -> Result<Running, Error> {
    let issuers = Issuers::new(config.issuers.clone())?;
    let metrics = Metrics::new()?;
    let fabrics = Fabrics::open(&config, &clock, &metrics)?;
    let listeners = Listeners::open(&config, fabrics.as_ref(), &clock, &metrics)?;
    let edge = (listeners.tls(), fabrics);
    let (address, tls_address) = listeners.addresses()?;
    // Includes a port chosen by the operating system.
    config.outbound.own_ports.extend([Some(address), tls_address].iter().flatten().map(SocketAddr::port));
    reached_at(&mut config, address);
    let stop = Stop::new(shutdown, config.listen.shutdown_delay);
    let mode = mode(&config);
    let limiter = ConnectionLimiter::new(config.limits.connections, listener::connections_max()?);
    data_directory::prepare(&config.node.data_dir, mode)?;

    let front = Front::new(config.node.unit_id.clone(), config.listen.hosts.clone(), clock.clone());
    let mut listener = listeners.serve(&front.router(), &limiter, &metrics, &stop.drain)?;
    listener.spawn(readiness::log_readiness(front.clone(), clock.clone(), stop.requested.clone()));
    tracing::info!(%address, tls_address = tls_address.map(tracing::field::display), "listening");
    let program = (compiler, issuers);
    let replica = recover(config, clock, program, &metrics, &stop, (front, &mut listener), edge);
    let replica = Box::pin(replica).await?;
    tracing::info!(%address, tls_address = tls_address.map(tracing::field::display), version = env!("CARGO_PKG_VERSION"), "serving");
    Ok(Running::new((address, tls_address), listener, replica, stop))
}

/// Starts the replica and the rest of the node, and opens `front`. A failed start leaves nothing running.
async fn recover(
    config: Config,
    clock: Clock,
    program: (&Path, Issuers),
    metrics: &Metrics,
    stop: &Stop,
    (front, listener): (Front, &mut JoinSet<()>),
    edge: (Option<tls::Tls>, Option<Fabrics>),
) -> Result<Replica, Error> {
    let data = config.node.data_dir.clone();
    until_disk_has_space(&data, &stop.requested).await?;
    let mut replica = start_replica(&config, &clock, metrics).await?;
    front.open(replica.state.clone());
    open_admin_socket(&data, front.clone(), &mut replica);
    let handle = replica.state.cluster().clone();
    let assembled = tokio::select! {
        assembled = assemble(config, clock, program, metrics, stop, &mut replica, edge) => assembled,
        failure = handle.until_failed() => Err(Error::ReplicaFailed(failure)),
        () = stop.requested.cancelled() => {
            Err(Error::NotRecovered("it was stopped before it had recovered".to_owned()))
        }
    };
    match assembled {
        Ok(app) => {
            replica.background.spawn(keep_version_recorded(replica.state.clone()));
            front.begin(app);
            Ok(replica)
        }
        Err(error) => {
            // The front holds the state, and stopping the replica waits until the state is dropped.
            listener.shutdown().await;
            drop((front, handle));
            stopped_after(Err(error), replica.stop().await)
        }
    }
}

/// Brings up keys and policy, and assembles the application.
async fn assemble(
    config: Config,
    clock: Clock,
    (compiler, issuers): (&Path, Issuers),
    metrics: &Metrics,
    stop: &Stop,
    replica: &mut Replica,
    (tls, fabrics): (Option<tls::Tls>, Option<Fabrics>),
) -> Result<App, Error> {
    let (state, startup_timeout) = (replica.state.clone(), startup_timeout(&config));
    until_recovered(&state, startup_timeout).await?;
    // Before decisions by absence, such as which of this node's keys the log does not have.
    until_current(&state, startup_timeout).await?;
    let workers = policy_workers(compiler);
    let first_policy = || async {
        (workers.load)(config.policy_sources()?, Check::PassesTests).await.map_err(Error::Policy)
    };
    despite_elections(&state, startup_timeout, || bootstrap(&state, &first_policy)).await?;
    let keyring = open_keyring(&config, &state).await?;
    replica.background.spawn(keyring.clone().run());
    let policy = ActivePolicy::new(state.clone(), workers, metrics.clone());
    policy.activate_current().await;
    policy.current().ok_or(Error::NoPolicy)?;
    replica.background.spawn(policy.clone().follow());
    replica.background.spawn(compare_state_hashes(state.clone()));
    let audit = replica.start_audit(&config, &clock, metrics)?;
    // With a lease, the node is ready from its first connection on.
    if let Err(error) = state.fresh().await {
        tracing::warn!(%error, "no freshness lease at startup");
    }

    let outbound = outbound(&config, &clock, metrics, replica)?;
    let signatures = SignatureCache::default();
    let peer_tokens = peer_tokens(&config, &state, &signatures, metrics);
    let own_tokens = own_tokens(&config, &keyring, &state, (&signatures, &peer_tokens));
    let exchange = Exchange {
        own_tokens: own_tokens.clone(),
        peer_tokens: peer_tokens.clone(),
        trust_domain: config.fabric.trust_domain.clone(),
        issuer_keys: IssuerKeys::new(
            issuers.iter().map(|issuer| (issuer.iss.as_str(), &issuer.keys, Some(&issuer.fetch_files))),
            outbound.clone(),
            clock.clone(),
            metrics.clone(),
        ),
        issuers,
        keyring: keyring.clone(),
        state: state.clone(),
        signatures,
        containment: config.blast_radius.clone(),
        policy: policy.compiled(),
        clock: clock.clone(),
        metrics: metrics.clone(),
    };
    let verifier = verifier(&config, &own_tokens, &state, &audit, (&clock, metrics));
    let registry = Registry {
        state: state.clone(),
        audit: audit.clone(),
        clock: clock.clone(),
        metrics: metrics.clone(),
    };
    let identity = identity(&config, &keyring, &state, &policy, &clock, metrics);
    let (feed, broadcaster, gatherer) = feed(&config, &state, clock.clone(), metrics, &stop.drain);
    replica.background.spawn(broadcaster.run());
    replica.background.spawn(gatherer.run());
    let sets = SetBuilder::new(config.fabric.issuer.clone(), keyring.clone(), state.clone());
    if config.transmitter.is_some() {
        let transmitter = transmitter(&config, sets.clone(), outbound.clone(), &state, &clock, metrics)?;
        replica.background.spawn(transmitter.run());
    }
    let receiver = receiver(&config, outbound, &state, &policy, &clock, metrics);
    let reports = read_peers(&config, fabrics, (&state, &clock), metrics, &mut replica.background);
    let poller = poller(&config, sets, &state, &clock, metrics, &stop.drain);
    let health_rate_limits = RateLimits::new(limits::HEALTH_REQUESTS_PER_SECOND, clock.clone());
    let rate_limits = RateLimits::new(config.limits.requests_per_second_per_caller, clock.clone());
    let (of_caller, total) = (limits::MIN_INDEX_WAITS_PER_CALLER_MAX, limits::MIN_INDEX_WAITS_MAX);
    let min_index_permits = KeyedLimiter::new(of_caller, total);
    Ok(App::new(api::Parts {
        exchange,
        audit,
        identity,
        revocations: revocations(&config, &keyring, peer_tokens, (&state, &clock)),
        federation: federation(&config, tls, reports, (&state, &clock), stop),
        receiver,
        streams: streams(&config, &state, &clock),
        poller,
        feed,
        denials: api::Denials::default(),
        registry,
        verifier,
        keyring,
        state,
        policy,
        clock,
        metrics: metrics.clone(),
        names: config.listen.hosts,
        requires_tls: config.tls.is_some(),
        callers: config.callers,
        metrics_access: config.metrics_access,
        own_tokens,
        rate_limits,
        health_rate_limits,
        unread_body_permits: Semaphore::new(limits::UNREAD_BODIES_MAX),
        min_index_permits,
        backup_permits: Arc::new(Semaphore::new(limits::BACKUPS_MAX)),
        load_shedder: LoadShedder::new(tokio::runtime::Handle::current().metrics().num_workers()),
        stop_requested: stop.requested.clone(),
        issuer: config.fabric.issuer,
        unit_id: config.node.unit_id,
    }))
}

/// The HTTP client, and the task that reloads its client certificate.
fn outbound(
    config: &Config,
    clock: &Clock,
    metrics: &Metrics,
    replica: &mut Replica,
) -> Result<Client, Error> {
    let client = Client::new(client::CallLimits::default(), Guard::new(config.outbound.clone()))?;
    if let Some(files) = config.transmitter.as_ref().and_then(|transmitter| transmitter.certificate.clone()) {
        let certificate = PushCertificate::load(files, client.clone(), clock.clone(), metrics.clone())?;
        replica.background.spawn(certificate.follow());
    }
    Ok(client)
}

/// The keys of this node, before it serves: creating those of a first start takes time.
async fn open_keyring(config: &Config, state: &State) -> Result<Keyring, Error> {
    let generate_event_key = config.transmitter.is_some().then(event_key_worker);
    let keyring = Keyring::open(&config.node.data_dir.join("keys"), state.clone(), generate_event_key)?;
    despite_elections(state, startup_timeout(config), || async { Ok(keyring.ensure().await?) }).await?;
    Ok(keyring)
}

fn identity(
    config: &Config,
    keyring: &Keyring,
    state: &State,
    policy: &ActivePolicy,
    clock: &Clock,
    metrics: &Metrics,
) -> AgentIdentities {
    AgentIdentities {
        issuer: config.fabric.issuer.clone(),
        trust_domain: config.fabric.trust_domain.clone(),
        keyring: keyring.clone(),
        state: state.clone(),
        containment: config.blast_radius.clone(),
        policy: policy.compiled(),
        clock: clock.clone(),
        metrics: metrics.clone(),
    }
}

fn revocations(
    config: &Config,
    keyring: &Keyring,
    peer_tokens: PeerTokens,
    (state, clock): (&State, &Clock),
) -> Revocations {
    Revocations {
        issuer: config.fabric.issuer.clone(),
        trust_domain: config.fabric.trust_domain.clone(),
        keyring: keyring.clone(),
        peer_tokens,
        state: state.clone(),
        clock: clock.clone(),
        scans: Revocations::scan_permits(),
    }
}

fn policy_workers(compiler: &Path) -> Workers {
    let compiler: Arc<Path> = compiler.into();
    let permits = Arc::new(Semaphore::new(limits::POLICY_LOADS_MAX));
    let of_explain = Arc::clone(&permits);
    Workers {
        load: Arc::new(move |sources, check| {
            let compiler = Arc::clone(&compiler);
            let work = move || policy::compile::load(&compiler, &sources, check);
            let loaded = on_thread(Arc::clone(&permits), work);
            Box::pin(async { Ok(loaded.await.ok_or(LoadError::Stopped)??) })
        }),
        explain: Arc::new(move |policy, point, question| {
            Box::pin(on_thread(Arc::clone(&of_explain), move || policy.explain(point, &question)))
        }),
    }
}

fn event_key_worker() -> GenerateEventKey {
    Arc::new(|| Box::pin(generate_event_key()))
}

#[expect(clippy::disallowed_methods, reason = "generating primes must not block requests")]
async fn generate_event_key() -> Result<EventSigningKey, signing_key::Error> {
    let generated = tokio::task::spawn_blocking(EventSigningKey::generate).await;
    generated.map_err(|_| signing_key::Error::Generation)?
}

/// Runs slow work on policies. It cannot be cancelled, so it holds its permit until it has ended. `None` if it panicked.
#[expect(clippy::disallowed_methods, reason = "a compiler process or an evaluation must not block requests")]
async fn on_thread<T: Send + 'static>(
    permits: Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let permit = permits.acquire_owned().await.ok()?;
    let worked = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work()
    });
    worked.await.ok()
}

/// Proposes this node's state hash at regular indexes, as leader. A node with another hash opens a dispute, which the voters
/// decide.
async fn compare_state_hashes(state: State) {
    let mut hashes = state.cluster().comparable_hashes();
    while hashes.changed().await.is_ok() {
        let newest = *hashes.borrow_and_update();
        let leads = state.cluster().leader() == Some(state.cluster().node_id());
        if let (Some((index, hash)), true) = (newest, leads)
            && let Err(error) = state.check_state_hash(index, hash).await
        {
            tracing::warn!(%error, index, "failed to propose the state hash");
        }
    }
}

fn draw() -> Result<[u8; 16], Error> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| Error::NoRandomness)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::cluster;
    use crate::state::Refusal;
    use crate::state::testing::TestNode;

    fn bundle(word: &str) -> policy::Bundle {
        let text = format!(
            "package svc.exchange\n\n# {word}\ndecision := {{\"allow\": false, \"reason\": \"no\"}}\n"
        );
        let sources = [policy::Source { path: "exchange.rego".to_owned(), text }];
        policy::Bundle::compile(&sources).expect("compiles")
    }

    /// Nodes that bootstrap together each see that there is no policy; one of them is faster, and then its operator.
    #[tokio::test]
    async fn concurrent_bootstrap_is_done_once() {
        let node = TestNode::start(Timestamp::from_secs(1_800_000_000)).await;
        let (state, incarnation) = (&node.state, node.state.index().incarnation);
        let faster = || async {
            state.seed_policy("theirs".to_owned(), Vec::new()).await.expect("there is none");
            let applied = state.as_node().put_policy("later".to_owned(), Vec::new(), "theirs".to_owned());
            assert!(applied.await.expect("applied"));
            Ok(bundle("ours"))
        };
        bootstrap(state, faster).await.expect("done by others");
        assert_eq!((state.index().policy.as_str(), state.index().incarnation), ("later", incarnation));
        assert!(matches!(
            state.bootstrap([8; 16], [9; 16], 0).await,
            Err(state::Error::Refused(Refusal::AlreadyBootstrapped))
        ));
        bootstrap(state, || async { Err(Error::NoPolicy) }).await.expect("nothing to do");
        node.end().await;
    }

    #[tokio::test]
    async fn lost_leader_is_retried_and_other_errors_end_the_start() {
        let node = TestNode::start(Timestamp::from_secs(1_800_000_000)).await;
        let tries = std::cell::Cell::new(0);
        let write = || async {
            tries.set(tries.get() + 1);
            match tries.get() {
                1 => Err(state::Error::Write(cluster::Error::NoLeader).into()),
                2 => Err(keyring::Error::State(state::Error::Write(cluster::Error::OutcomeUnknown)).into()),
                _ => Ok(()),
            }
        };
        despite_elections(&node.state, limits::RECOVERY_TIMEOUT, write).await.expect("written");
        assert_eq!(tries.get(), 3);
        for error in [
            state::Error::Refused(Refusal::TooManySigningKeys),
            state::Error::Write(cluster::Error::Unacknowledged),
        ] {
            let ended = despite_elections(&node.state, limits::RECOVERY_TIMEOUT, || async {
                Err(error.clone().into())
            })
            .await;
            assert!(matches!(ended, Err(Error::State(_))));
        }
        node.end().await;
    }
}
