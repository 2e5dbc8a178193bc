//! Mutual TLS, for callers and between nodes: configuration from files that may change at run time, and the identity
//! of the remote end. Accepting connections and authorization are not here.

mod bundle;
mod client_certificate;
mod client_verifier;
mod config;
mod files;
mod handshake_error;
mod node_verifier;
mod svid;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub(crate) use self::bundle::{Bundle, BundleError};
pub(crate) use self::client_certificate::KeyPair;
pub(crate) use self::config::bundle_of_file;
pub(crate) use self::files::{Authorities, Files, KeyPairFiles, Roots};
pub(crate) use self::handshake_error::{handshake_failure, outbound_failure};
pub(crate) use self::svid::{PeerCertificate, SvidError};

use self::config::Loaded;
use self::files::Contents;
use crate::clock::{Clock, Timestamp};
use crate::id::{TrustDomain, WorkloadId};
use crate::limits;
use crate::telemetry::{Metrics, Validity};

/// Failure to load TLS from the files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// Not a regular file.
    #[error("{}: is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    /// The file exceeds its limit.
    #[error("{}: is larger than {bytes_max} bytes", path.display())]
    TooLarge { path: PathBuf, bytes_max: usize },
    /// Users other than the owner may write the file.
    #[error("{}: mode {mode:o} lets other users write it; run chmod go-w", path.display())]
    WritableByOthers { path: PathBuf, mode: u32 },
    /// Users other than the owner may use the private key.
    #[error(
        "{}: mode {mode:o} is too open for a private key, or it has another owner; make it 0600, or 0640 if root owns it",
        path.display()
    )]
    KeyTooOpen { path: PathBuf, mode: u32 },
    /// The file is not PEM, or a certificate in it is malformed.
    #[error("{}: is not PEM with readable certificates", path.display())]
    NotPem { path: PathBuf },
    /// No certificate of this node.
    #[error("{}: contains no certificate; this node's own must be the first", path.display())]
    NoCertificate { path: PathBuf },
    /// The certificate is not an X.509-SVID.
    #[error("{}: {source}", path.display())]
    NotAnSvid { path: PathBuf, source: SvidError },
    /// The certificate names a workload of another trust domain.
    #[error("{}: certificate is of trust domain {found}, must be of {expected}", path.display())]
    OtherTrustDomain { path: PathBuf, found: String, expected: String },
    /// This node's certificate has expired.
    #[error("{}: certificate expired at {not_after}; replace it", path.display())]
    CertificateExpired { path: PathBuf, not_after: String },
    /// No private key of this node.
    #[error("{}: contains no usable private key; it must be unencrypted PKCS #8, PKCS #1 or SEC1", path.display())]
    NoPrivateKey { path: PathBuf },
    /// Certificate and private key are not a pair.
    #[error(
        "{}: is not the private key of the first certificate in {}",
        private_key.display(),
        certificate.display()
    )]
    KeyMismatch { certificate: PathBuf, private_key: PathBuf },
    /// No valid CA for clients.
    #[error("{}: contains no unexpired CA certificate", path.display())]
    NoClientCa { path: PathBuf },
    /// A certificate among the CAs that is not a CA certificate: its holder could issue any name.
    #[error("{}: contains a certificate that is not a CA certificate", path.display())]
    NotACa { path: PathBuf },
    /// A CA of two trust domains, one of them a peer's.
    #[error("{}: contains a root of trust domain {other}, and is of {trust_domain}: a CA speaks for one", path.display())]
    SharedRoot { path: PathBuf, trust_domain: String, other: String },
    /// The bundle of a peer cannot be read.
    #[error("{}: {source}", path.display())]
    Bundle { path: PathBuf, source: BundleError },
    /// No revocation list: no certificate would be revoked.
    #[error("{}: contains no revocation list; remove the setting if there is none", path.display())]
    NoCrl { path: PathBuf },
    /// A revocation list is malformed or of an unsupported kind (delta, indirect).
    #[error("{}: contains an unreadable revocation list; it must be a full X.509 v2 list in PEM", path.display())]
    CrlMalformed { path: PathBuf },
    #[error("tls: {0}")]
    Tls(#[from] rustls::Error),
    /// The certificate of the remote end is refused.
    #[error(transparent)]
    Peer(#[from] SvidError),
}

/// The remote end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum RemoteEnd {
    /// Callers of the API; a client certificate is optional.
    Callers,
    /// Nodes of this cluster, in both directions: certificate required, TLS 1.3, HTTP/2.
    Peers,
    /// Nodes of peer fabrics that we call: TLS 1.3, HTTP/2.
    Fabrics,
}

/// Current TLS configuration, reloaded from the files. Cheap to clone; clones share it.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    files: Files,
    with: RemoteEnd,
    clock: Clock,
    metrics: Metrics,
    loaded: ArcSwap<Loaded>,
    generation: watch::Sender<u64>,
}

/// Conditions that were already logged, so that each is logged once.
#[derive(Clone, Copy, Default)]
struct LoggedState {
    refused: Option<[u8; 32]>,
    expires_soon: Option<[u8; 32]>,
}

impl Tls {
    /// Reads the files. The remote end must have a certificate of one of their trust domains.
    pub fn load(files: Files, with: RemoteEnd, clock: Clock, metrics: Metrics) -> Result<Self, Error> {
        let mut loaded = config::load(&files, Contents::read(&files, clock.now())?, with, &clock, None)?;
        if let Some((_, error)) = loaded.unusable.pop() {
            return Err(error);
        }
        config::check_distinct_roots(&files, &loaded)?;
        metrics.set_tls_validity(with.into_str(), &loaded.validity);
        let loaded = ArcSwap::from_pointee(loaded);
        let generation = watch::Sender::new(0);
        Ok(Self(Arc::new(Shared { files, with, clock, metrics, loaded, generation })))
    }

    /// For one handshake; not to be retained, because the next one may need another configuration.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.0.loaded.load().server))
    }

    /// For one connection to a node. The server name is ignored; the node is identified by [`server_certificate`].
    #[must_use]
    pub fn connector(&self) -> TlsConnector {
        TlsConnector::from(Arc::clone(&self.0.loaded.load().client))
    }

    /// The configuration of connections to the nodes of a peer fabric, which have one of `ids`.
    #[must_use]
    pub fn client_of(
        &self,
        ids: Arc<BTreeSet<WorkloadId>>,
        presents_certificate: bool,
    ) -> rustls::ClientConfig {
        self.0.loaded.load().client_of(ids, presents_certificate)
    }

    /// A generation that grows with each reload. A connection made before it grew might be refused now and is closed
    /// ([`Tls::has_changed`]). Call it before [`Tls::acceptor`], so that no reload falls between the two.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.generation.subscribe()
    }

    /// Whether a connection with a certificate of `trust_domain`, made in `generation`, might be refused now. The bundle
    /// of a peer concerns its own trust domain: otherwise a peer could end the connections of all others.
    #[must_use]
    pub fn has_changed(&self, generation: u64, trust_domain: Option<&TrustDomain>) -> bool {
        let loaded = self.0.loaded.load();
        let bundle = trust_domain.and_then(|trust_domain| loaded.bundles.get(trust_domain));
        loaded.files.since > generation || bundle.is_some_and(|bundle| bundle.since > generation)
    }

    /// Waits until [`Tls::has_changed`].
    pub async fn until_changed(&self, generation: u64, trust_domain: &TrustDomain) {
        let mut changes = self.changes();
        while !self.has_changed(generation, Some(trust_domain)) && changes.changed().await.is_ok() {}
    }

    /// The CAs of a trust domain as a SPIFFE bundle; `None` without one.
    ///
    /// # Errors
    /// [`BundleError::NoJwk`].
    pub fn bundle_of(&self, trust_domain: &TrustDomain) -> Result<Option<String>, BundleError> {
        let loaded = self.0.loaded.load();
        loaded.roots.get(trust_domain).map(|roots| bundle::document(roots)).transpose()
    }

    /// The end of our certificate.
    #[must_use]
    pub fn not_after(&self) -> Timestamp {
        self.0.loaded.load().validity.certificate.end
    }

    /// Polls the files every [`limits::TLS_RELOAD_INTERVAL`], for ever. Contents are compared, not times: that is how a
    /// Kubernetes secret changes.
    pub async fn follow(self) {
        let mut ticks = tokio::time::interval(limits::TLS_RELOAD_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut polls = JoinSet::new();
        let mut logged = LoggedState::default();
        loop {
            ticks.tick().await;
            let tls = self.clone();
            // Parsing a large revocation list would block other tasks.
            polls.spawn_blocking(move || tls.poll(logged));
            match polls.join_next().await {
                Some(Ok(now_logged)) => logged = now_logged,
                Some(Err(error)) => tracing::error!(%error, "failed to poll tls files"),
                None => {}
            }
        }
    }

    /// One poll: adopts changed files if all of them are valid, otherwise keeps the configuration in use.
    fn poll(&self, mut logged: LoggedState) -> LoggedState {
        let shared = &self.0;
        let contents = Contents::read(&shared.files, shared.clock.now());
        let current = shared.loaded.load_full();
        // An unreadable file is identified by its error.
        let seen = contents
            .as_ref()
            .map_or_else(|error| files::digest_of([error.to_string().as_bytes()]), Contents::digest);
        if seen == current.digest {
            logged.refused = None;
        } else if logged.refused != Some(seen) {
            let (files, clock) = (&shared.files, &shared.clock);
            let loaded = contents
                .and_then(|contents| config::load(files, contents, shared.with, clock, Some(&current)));
            logged.refused = self.adopt(loaded).is_err().then_some(seen);
        }
        self.warn_if_expiring(&mut logged);
        logged
    }

    fn adopt(&self, loaded: Result<Loaded, Error>) -> Result<(), ()> {
        let Shared { loaded: current, metrics, generation, with, .. } = self.0.as_ref();
        match loaded {
            Ok(mut loaded) => {
                loaded.succeed(&current.load(), generation.borrow().saturating_add(1));
                metrics.set_tls_validity(with.into_str(), &loaded.validity);
                metrics.tls_reloads.inc([with.into_str(), "ok"]);
                for (trust_domain, error) in &loaded.unusable {
                    tracing::warn!(%trust_domain, %error, "failed to load the files of a peer, its certificates are refused");
                }
                let not_after = loaded.validity.certificate.end.to_rfc3339();
                // Configuration before generation: a waiter on the generation sees the new configuration.
                current.store(Arc::new(loaded));
                generation.send_modify(|generation| *generation = generation.saturating_add(1));
                tracing::info!(not_after, "tls files reloaded");
                Ok(())
            }
            Err(error) => {
                metrics.tls_reloads.inc([with.into_str(), "failed"]);
                tracing::warn!(%error, "failed to reload tls files, keeping the previous ones");
                Err(())
            }
        }
    }

    /// Once per certificate, when less than a tenth of its validity is left.
    fn warn_if_expiring(&self, logged: &mut LoggedState) {
        let loaded = self.0.loaded.load();
        let Validity { begin, end: not_after } = loaded.validity.certificate;
        let (life, left) = (not_after.since(begin), not_after.since(self.0.clock.now()));
        if left < life / 10 && logged.expires_soon != Some(loaded.digest) {
            logged.expires_soon = Some(loaded.digest);
            tracing::warn!(not_after = not_after.to_rfc3339(), "tls certificate expires soon");
        }
    }
}

/// The certificate of the client after the handshake; `None` if it sent none.
pub fn peer_certificate(connection: &rustls::ServerConnection) -> Result<Option<PeerCertificate>, Error> {
    let sent = connection.peer_certificates().and_then(<[_]>::first);
    Ok(sent.map(|certificate| svid::peer_certificate(certificate)).transpose()?)
}

/// The certificate of the node that answered, after the handshake.
pub fn server_certificate(connection: &rustls::ClientConnection) -> Result<Option<PeerCertificate>, Error> {
    let sent = connection.peer_certificates().and_then(<[_]>::first);
    Ok(sent.map(|certificate| svid::server_certificate(certificate)).transpose()?)
}
