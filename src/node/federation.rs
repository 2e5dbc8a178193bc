//! Wiring of federation: the ledger, the bundles of peers, our certificate for them, and the connections to their nodes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::task::JoinSet;

use super::Error;
use super::running::Stop;
use crate::clock::Clock;
use crate::cluster;
use crate::config::Config;
use crate::federation::peers::{Peer, Peers};
use crate::federation::pull::{Origin, Puller};
use crate::federation::{self, Federation, Reports};
use crate::id::{Digest128, DigestKind, TrustDomain, WorkloadId};
use crate::limits;
use crate::outbound::guard::Guard;
use crate::outbound::peers::{Endpoint, PeerClient};
use crate::state::{AwaitedPeers, State, peer_key};
use crate::telemetry::Metrics;
use crate::tls::{self, Authorities, Bundle, Files, KeyPairFiles, RemoteEnd, Roots, Tls};

/// Value of the metric label, besides those of TLS files.
const WITH: &str = "bundles";

/// The peers for which revocations wait.
pub(super) fn awaited_peers(config: &Config, clock: &Clock, metrics: &Metrics) -> AwaitedPeers {
    let peers = config.federation.iter().flat_map(|federation| federation.peers.iter());
    let awaited = peers.filter(|peer| peer.is_awaited);
    let named = awaited.map(|peer| (peer.name.clone(), peer_key(&peer.issuer)));
    AwaitedPeers::new(named, clock.clone(), metrics.clone())
}

/// The ledger and its readers. `tls` is that of callers.
pub(super) fn federation(
    config: &Config,
    tls: Option<Tls>,
    reports: Arc<Reports>,
    (state, clock): (&State, &Clock),
    stop: &Stop,
) -> Federation {
    Federation::new(federation::Parts {
        issuer: config.fabric.issuer.clone(),
        trust_domain: config.fabric.trust_domain.clone(),
        peers: config.federation.as_ref().map_or_else(Peers::default, |federation| federation.peers.clone()),
        tls,
        reports,
        state: state.clone(),
        clock: clock.clone(),
        stop_requested: stop.requested.clone(),
    })
}

/// Starts the calls to the peers whose credentials may be accepted. Returns the reports about the calls.
pub(super) fn read_peers(
    config: &Config,
    fabrics: Option<Fabrics>,
    (state, clock): (&State, &Clock),
    metrics: &Metrics,
    background: &mut JoinSet<()>,
) -> Arc<Reports> {
    let reports = Arc::<Reports>::default();
    let Some(fabrics) = fabrics else { return reports };
    let connections = fabrics.connect(&Guard::new(config.outbound.clone()), background);
    let read = connections.into_iter().filter(|(peer, _)| peer.accept);
    let origins: Vec<_> = read.map(|(peer, client)| Origin { peer, client }).collect();
    if !origins.is_empty() {
        let (state, clock, metrics) = (state.clone(), clock.clone(), metrics.clone());
        background.spawn(Puller::new(state, clock, metrics, Arc::clone(&reports), origins).run());
    }
    reports
}

/// The peer fabrics, whose bundles and our certificate for them are loaded.
pub(super) struct Fabrics {
    bundles: Vec<(Arc<Peer>, Bundle)>,
    tls: Tls,
    data_dir: PathBuf,
    clock: Clock,
    metrics: Metrics,
}

impl Fabrics {
    /// Reads the files; `None` without federation.
    pub(super) fn open(config: &Config, clock: &Clock, metrics: &Metrics) -> Result<Option<Self>, Error> {
        let Some(federation) = &config.federation else { return Ok(None) };
        let own = |source| Error::Federation { setting: "federation.certificate".to_owned(), source };
        let trust_domain = &config.fabric.trust_domain;
        if federation.peers.iter().any(|peer| peer.accept) {
            let id = federation.certificate.spiffe_id();
            check_svid(&federation.certificate, id, trust_domain).map_err(own)?;
        }
        if federation.peers.iter().any(|peer| peer.serve)
            && let Some(tls) = &config.tls
        {
            let served = |source| Error::Federation { setting: "tls.certificate".to_owned(), source };
            check_svid(&tls.files.own, tls.files.own.server_spiffe_id(), trust_domain).map_err(served)?;
        }
        let mut bundles = Vec::new();
        for (index, peer) in federation.peers.iter().enumerate() {
            let setting = || format!("federation.peers[{index}].bundle_file");
            let bundle = open_bundle(peer, &config.node.data_dir);
            let bundle = bundle.map_err(|source| Error::Federation { setting: setting(), source })?;
            check_roots(peer, &bundle, clock)
                .map_err(|source| Error::Federation { setting: setting(), source })?;
            bundles.push((Arc::clone(peer), bundle));
            warn_of_two_sources(config, peer);
        }
        let files = Files { own: federation.certificate.clone(), authorities: authorities(&bundles) };
        let tls = Tls::load(files, RemoteEnd::Fabrics, clock.clone(), metrics.clone());
        // The file may be one of a peer; the error names it.
        let tls = tls.map_err(|source| Error::Federation { setting: "federation".to_owned(), source })?;
        let data_dir = config.node.data_dir.clone();
        Ok(Some(Self { bundles, tls, data_dir, clock: clock.clone(), metrics: metrics.clone() }))
    }

    /// The roots of the peers, for the listener of callers.
    pub(super) fn authorities(&self) -> Vec<Authorities> {
        authorities(&self.bundles)
    }

    /// Keeps certificates and bundles current; returns the connections to each peer.
    pub(super) fn connect(self, guard: &Guard, background: &mut JoinSet<()>) -> Vec<(Arc<Peer>, PeerClient)> {
        let Self { bundles, tls, data_dir, clock, metrics } = self;
        background.spawn(tls.clone().follow());
        let mut connections = Vec::new();
        for (peer, bundle) in bundles {
            let (trust_domain, ids) = (peer.roots.trust_domain.clone(), peer.ids.clone());
            let client = PeerClient::new(tls.clone(), trust_domain, ids, guard.clone(), clock.clone());
            let endpoint = peer.roots.endpoint.clone().map(|endpoint| (client.clone(), endpoint));
            let task = BundleTask {
                name: peer.name.clone(),
                bundle,
                endpoint,
                kept: kept_path(&data_dir, &peer),
                clock: clock.clone(),
                metrics: metrics.clone(),
                failed: None,
            };
            background.spawn(task.follow());
            connections.push((peer, client));
        }
        connections
    }
}

/// The bundle of the endpoint that was accepted before the restart, else that of the file.
fn open_bundle(peer: &Peer, data_dir: &Path) -> Result<Bundle, tls::Error> {
    let bundle = Bundle::load(peer.roots.file.clone())?;
    if peer.roots.endpoint.is_some() && bundle.resume(&kept_path(data_dir, peer))? {
        tracing::info!(
            peer = peer.name,
            "using the bundle of a peer that its endpoint served before the restart"
        );
    }
    Ok(bundle)
}

/// A peer without roots cannot be read. One that has withdrawn its roots must not be able to prevent our start.
fn check_roots(peer: &Peer, bundle: &Bundle, clock: &Clock) -> Result<(), tls::Error> {
    if !bundle.unexpired(clock.now()).is_empty() {
        return Ok(());
    }
    if peer.accept && bundle.is_of_file() {
        return Err(tls::Error::NoClientCa { path: bundle.file().to_owned() });
    }
    tracing::warn!(peer = peer.name, "bundle of a peer has no unexpired root: its certificates are refused");
    Ok(())
}

/// The file that keeps the newest bundle of a peer's endpoint.
fn kept_path(data_dir: &Path, peer: &Peer) -> PathBuf {
    let digest = Digest128::of(DigestKind::Fabric, peer.issuer.as_bytes(), b"");
    data_dir.join(format!("peer-bundle-{}.kept", URL_SAFE_NO_PAD.encode(digest.as_bytes())))
}

/// Each peer's roots count for the trust domain of its nodes alone.
fn authorities(bundles: &[(Arc<Peer>, Bundle)]) -> Vec<Authorities> {
    let authorities = bundles.iter().map(|(peer, bundle)| Authorities {
        trust_domain: peer.roots.trust_domain.clone(),
        roots: Roots::Bundle(bundle.clone()),
        crl: peer.roots.crl.clone(),
    });
    authorities.collect()
}

/// Peers recognize a node by its SPIFFE ID, and know the roots of our trust domain.
fn check_svid(
    files: &KeyPairFiles,
    id: Result<WorkloadId, tls::Error>,
    trust_domain: &TrustDomain,
) -> Result<(), tls::Error> {
    let id = id?;
    if id.trust_domain() == trust_domain {
        return Ok(());
    }
    let (found, expected) = (id.trust_domain().to_string(), trust_domain.to_string());
    Err(tls::Error::OtherTrustDomain { path: files.certificate.clone(), found, expected })
}

/// The SPIRE of a region may speak for the same workloads as its fabric.
fn warn_of_two_sources(config: &Config, peer: &Peer) {
    for trust_domain in &peer.trust_domains {
        if config.issuers.iter().any(|issuer| issuer.trust_domains.contains(trust_domain)) {
            let peer = &peer.name;
            tracing::warn!(peer, %trust_domain, "trust domain of a peer is also one of [[issuers]]: two sources speak for it");
        }
    }
}

/// Keeps the bundle of one peer current, by its file and by its endpoint.
struct BundleTask {
    name: String,
    bundle: Bundle,
    endpoint: Option<(PeerClient, Endpoint)>,
    /// The file that keeps the newest bundle of the endpoint.
    kept: PathBuf,
    clock: Clock,
    metrics: Metrics,
    /// Last failure, so that it is logged once.
    failed: Option<String>,
}

impl BundleTask {
    async fn follow(mut self) {
        let mut ticks = tokio::time::interval(limits::TLS_RELOAD_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut reads = JoinSet::new();
        let mut fetch_at = self.clock.boot();
        loop {
            ticks.tick().await;
            let (bundle, kept) = (self.bundle.clone(), self.kept.clone());
            reads.spawn_blocking(move || read_again(&bundle, &kept));
            match reads.join_next().await {
                Some(Ok(Ok(false))) | None => {}
                Some(Ok(read)) => self.note(read),
                Some(Err(error)) => tracing::error!(%error, "failed to read the bundle of a peer"),
            }
            if self.endpoint.is_some() && self.clock.boot() >= fetch_at {
                let fetched = self.fetch().await;
                self.note(fetched);
                fetch_at = self.clock.boot() + self.bundle.refresh_interval();
            }
        }
    }

    async fn fetch(&self) -> Result<bool, String> {
        let Some((client, endpoint)) = &self.endpoint else { return Ok(false) };
        let document = client.bundle(endpoint).await.map_err(|error| error.to_string())?;
        let (bundle, kept) = (self.bundle.clone(), self.kept.clone());
        let mut accepting = JoinSet::new();
        accepting.spawn_blocking(move || accept(&bundle, &document, &kept));
        accepting.join_next().await.unwrap_or(Ok(Ok(false))).map_err(|error| error.to_string())?
    }

    fn note(&mut self, outcome: Result<bool, String>) {
        let peer = &self.name;
        match outcome {
            Ok(is_new) => {
                if is_new {
                    self.metrics.tls_reloads.inc([WITH, "ok"]);
                    tracing::info!(peer, "bundle of a peer replaced");
                }
                self.failed = None;
            }
            Err(error) if self.failed.as_ref() == Some(&error) => {}
            Err(error) => {
                self.metrics.tls_reloads.inc([WITH, "failed"]);
                tracing::warn!(
                    peer,
                    error,
                    "failed to refresh the bundle of a peer; the previous one stays in use"
                );
                self.failed = Some(error);
            }
        }
    }
}

/// Reads the file of a bundle. One that was changed replaces that of the endpoint, which is then kept no longer.
fn read_again(bundle: &Bundle, kept: &Path) -> Result<bool, String> {
    let is_new = bundle.read_again().map_err(|error| error.to_string())?;
    if bundle.is_of_file() {
        remove(kept).map_err(|error| format!("{}: {error}", kept.display()))?;
    }
    Ok(is_new)
}

/// Accepts a bundle of the endpoint and keeps it. It is in use even if it cannot be kept.
fn accept(bundle: &Bundle, document: &[u8], kept: &Path) -> Result<bool, String> {
    let is_new = bundle.accept(document).map_err(|error| error.to_string())?;
    let to_keep = bundle.to_keep(document);
    if !bundle.is_of_file() && std::fs::read(kept).ok().as_ref() != Some(&to_keep) {
        cluster::replace_file(kept, &to_keep).map_err(|error| format!("{}: {error}", kept.display()))?;
    }
    Ok(is_new)
}

fn remove(kept: &Path) -> io::Result<()> {
    match std::fs::remove_file(kept) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| cluster::sync_name_of(kept)),
    }
}
