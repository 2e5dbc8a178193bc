//! TLS with certificates at both ends: what is served with, from files that may change under us, and who
//! the other end is; for callers, and between nodes. Nothing here accepts a connection and nothing decides
//! what the other end may do.

mod client_certificate;
mod client_verifier;
mod config;
mod files;
mod handshake_error;
mod node_verifier;
mod svid;

#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::digest;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub use self::client_certificate::KeyPairFiles;
pub use self::files::{Authorities, Files};
pub use self::handshake_error::handshake_failure;
pub use self::svid::{PeerCertificate, Refusal};

use self::config::Loaded;
use self::files::Contents;
use crate::clock::Clock;
use crate::limits;
use crate::telemetry::Metrics;

/// Why there is no TLS with these files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something else stands where the file should be.
    #[error("{}: is not a file", path.display())]
    NotAFile {
        /// Where.
        path: PathBuf,
    },
    /// A file is larger than any that makes sense.
    #[error("{}: is larger than {bytes_max} bytes", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
        /// The most that is read.
        bytes_max: usize,
    },
    /// Others than its owner may write a file.
    #[error("{}: mode {mode:o} lets others write it; take that away (chmod go-w)", path.display())]
    WritableByOthers {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Others than its owner may use the private key.
    #[error(
        "{}: mode {mode:o} is too open for a private key, or it is not ours; make it 0600, or 0640 if root owns it",
        path.display()
    )]
    KeyTooOpen {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A file is damaged: PEM, or a certificate in it.
    #[error("{}: is not PEM with certificates that can be read", path.display())]
    NotPem {
        /// Which.
        path: PathBuf,
    },
    /// No certificate of ours.
    #[error("{}: holds no certificate; our own must be the first in it", path.display())]
    NoCertificate {
        /// Which.
        path: PathBuf,
    },
    /// Our certificate is over.
    #[error("{}: our certificate ended at {not_after}; put a new one there", path.display())]
    CertificateExpired {
        /// Which.
        path: PathBuf,
        /// When (RFC 3339).
        not_after: String,
    },
    /// No private key of ours.
    #[error("{}: holds no usable private key; it must be unencrypted PKCS #8, PKCS #1 or SEC1", path.display())]
    NoPrivateKey {
        /// Which.
        path: PathBuf,
    },
    /// Certificate and private key are not of one pair.
    #[error(
        "{}: is not the private key of the first certificate in {}",
        private_key.display(),
        certificate.display()
    )]
    KeyMismatch {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        private_key: PathBuf,
    },
    /// No CA for clients is left.
    #[error("{}: holds no CA certificate that is still valid", path.display())]
    NoClientCa {
        /// Which.
        path: PathBuf,
    },
    /// A certificate among the CAs that is no CA's: its holder could name anybody.
    #[error("{}: holds a certificate that is not a CA's; only those of CAs belong there", path.display())]
    NotACa {
        /// Which.
        path: PathBuf,
    },
    /// A file of revocation lists without one: nobody would be revoked.
    #[error("{}: holds no revocation list; leave it out of the configuration if there is none", path.display())]
    NoCrl {
        /// Which.
        path: PathBuf,
    },
    /// A revocation list is damaged, or of a kind that cannot be checked (delta, indirect).
    #[error("{}: holds a revocation list that cannot be read; it must be a full X.509 v2 list in PEM", path.display())]
    CrlMalformed {
        /// Which.
        path: PathBuf,
    },
    /// rustls refused.
    #[error("tls: {0}")]
    Tls(#[from] rustls::Error),
    /// A connection whose client certificate we would have refused.
    #[error(transparent)]
    Peer(#[from] Refusal),
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum With {
    /// Callers of the API, who may come without a certificate.
    Callers,
    /// Nodes of this cluster, both ways: each has a certificate, over TLS 1.3, for HTTP/2.
    Peers,
}

impl With {
    /// As a label of a metric.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Callers => "callers",
            Self::Peers => "peers",
        }
    }
}

/// TLS as the files say, and as they will say. Cheap to clone; clones change together.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    files: Files,
    with: With,
    clock: Clock,
    metrics: Metrics,
    loaded: ArcSwap<Loaded>,
    generation: watch::Sender<u64>,
}

/// What a look at the files found out of order, so that it is said once.
#[derive(Clone, Copy, Default)]
struct Said {
    refused: Option<[u8; 32]>,
    expires_soon: Option<[u8; 32]>,
}

impl Tls {
    /// Reads the files. The other end is known by a certificate of one of their trust domains only.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn load(files: Files, with: With, clock: Clock, metrics: Metrics) -> Result<Self, Error> {
        let loaded = config::load(&files, &Contents::read(&files)?, with, &clock)?;
        metrics.set_tls_certificate_not_after(with.as_str(), loaded.not_after.secs());
        let loaded = ArcSwap::from_pointee(loaded);
        let generation = watch::Sender::new(0);
        Ok(Self(Arc::new(Shared { files, with, clock, metrics, loaded, generation })))
    }

    /// For the next handshake. It is not to be kept: the one after may need another.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.0.loaded.load().server))
    }

    /// The same for a connection to a node. The name that is given to it is not looked at: who answers is known
    /// by [`server_certificate`].
    #[must_use]
    pub fn connector(&self) -> TlsConnector {
        TlsConnector::from(Arc::clone(&self.0.loaded.load().client))
    }

    /// A number that grows with each change of the files that was loaded. A connection made before it
    /// grew may be one that would not be made again, and is to be closed. Take this before
    /// [`Tls::acceptor`], so that no change falls between the two.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.generation.subscribe()
    }

    /// Looks at the files every [`limits::TLS_RELOAD_INTERVAL`], for ever. Their contents count, not
    /// their times: that is how a Kubernetes secret changes.
    pub async fn follow(self) {
        let mut ticks = tokio::time::interval(limits::TLS_RELOAD_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut looks = JoinSet::new();
        let mut said = Said::default();
        loop {
            ticks.tick().await;
            let tls = self.clone();
            // Reading a large revocation list takes longer than others should wait.
            looks.spawn_blocking(move || tls.look(said));
            match looks.join_next().await {
                Some(Ok(now_said)) => said = now_said,
                Some(Err(error)) => tracing::error!(%error, "look at the files of tls"),
                None => {}
            }
        }
    }

    /// One look: takes over what changed if all of it is good, and keeps what there is if not.
    fn look(&self, mut said: Said) -> Said {
        let shared = &self.0;
        let contents = Contents::read(&shared.files);
        let current = shared.loaded.load().digest;
        // What cannot be read is known by why.
        let seen = contents.as_ref().map_or_else(|error| digest_of(&error.to_string()), Contents::digest);
        if seen == current {
            said.refused = None;
        } else if said.refused != Some(seen) {
            let loaded = contents
                .and_then(|contents| config::load(&shared.files, &contents, shared.with, &shared.clock));
            said.refused = self.take_over(loaded).is_err().then_some(seen);
        }
        self.say_if_expiring(&mut said);
        said
    }

    fn take_over(&self, loaded: Result<Loaded, Error>) -> Result<(), ()> {
        let Shared { loaded: current, metrics, generation, with, .. } = self.0.as_ref();
        match loaded {
            Ok(loaded) => {
                metrics.set_tls_certificate_not_after(with.as_str(), loaded.not_after.secs());
                metrics.tls_reload(with.as_str(), "ok");
                let not_after = loaded.not_after.to_rfc3339();
                // First the files, then the number: who sees the number gets the new files.
                current.store(Arc::new(loaded));
                generation.send_modify(|generation| *generation = generation.saturating_add(1));
                tracing::info!(not_after, "the files of tls changed and are in use");
                Ok(())
            }
            Err(error) => {
                metrics.tls_reload(with.as_str(), "failed");
                tracing::warn!(%error, "the files of tls changed and cannot be used; those before stay in use");
                Err(())
            }
        }
    }

    /// Once for each certificate, when less than a tenth of its life is left.
    fn say_if_expiring(&self, said: &mut Said) {
        let loaded = self.0.loaded.load();
        let life = loaded.not_after.since(loaded.not_before);
        let left = loaded.not_after.since(self.0.clock.now());
        if left < life / 10 && said.expires_soon != Some(loaded.digest) {
            said.expires_soon = Some(loaded.digest);
            tracing::warn!(not_after = loaded.not_after.to_rfc3339(), "our tls certificate ends soon");
        }
    }
}

/// The certificate of the client, or `None` if it sent none. After the handshake.
///
/// # Errors
/// [`Error::Peer`], which the handshake has already ruled out.
pub fn peer_certificate(connection: &rustls::ServerConnection) -> Result<Option<PeerCertificate>, Error> {
    let sent = connection.peer_certificates().and_then(<[_]>::first);
    Ok(sent.map(|certificate| svid::peer_certificate(certificate)).transpose()?)
}

/// The certificate of the node that was connected to. After the handshake.
///
/// # Errors
/// [`Error::Peer`], which the handshake has already ruled out.
pub fn server_certificate(connection: &rustls::ClientConnection) -> Result<Option<PeerCertificate>, Error> {
    let sent = connection.peer_certificates().and_then(<[_]>::first);
    Ok(sent.map(|certificate| svid::peer_certificate(certificate)).transpose()?)
}

fn digest_of(text: &str) -> [u8; 32] {
    let mut whole = digest::Context::new(&digest::SHA256);
    whole.update(text.as_bytes());
    files::sha256(whole)
}
