//! Federation: the peer fabrics, the ledger of this fabric's own revocations, as peers and operators read it, and the
//! copies of the peers' ledgers.

mod admin;
mod engine;
pub(crate) mod peers;
pub(crate) mod pull;
mod report;
mod serve;
mod sync;
pub mod wire;

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub(crate) use self::admin::{PeerState, PeerStatus, act_of};
pub(crate) use self::report::{Report, Reports};
pub(crate) use self::serve::{ExportQuery, HashQuery, LedgerHash, Reader};
pub(crate) use self::sync::LastCall;

use self::peers::Peers;
use self::sync::Calls;
use crate::clock::Clock;
use crate::cluster::Corrupt;
use crate::id::TrustDomain;
use crate::limits;
use crate::state::{self, State};
use crate::tls::{BundleError, Tls};

/// Reason why the ledger was not read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A parameter breaks a rule.
    #[error("{field}: {rule}")]
    Invalid { field: &'static str, rule: String },
    /// A position that the ledger cannot continue from.
    #[error("since: {0}")]
    Position(String),
    /// No ledger of this origin.
    #[error("origin: this node has no ledger of this fabric")]
    UnknownOrigin,
    /// No peer of this name.
    #[error("there is no peer with this name")]
    UnknownPeer,
    /// The peer is paused.
    #[error("the peer is paused")]
    Paused,
    /// All permits for held calls of the peer, or of all peers, are in use.
    #[error("the limit of concurrent calls of a peer on this node is reached")]
    TooManyCalls,
    /// No section `[federation]`.
    #[error("federation is not configured")]
    NotConfigured,
    /// The configuration has no CA of our own trust domain.
    #[error("this fabric publishes no roots: tls has no CA of fabric.trust_domain")]
    NoRoots,
    /// A CA of our own trust domain cannot be published.
    #[error("this fabric publishes no roots: tls.client_ca: {0}")]
    UnpublishableRoot(BundleError),
    /// All scan permits are in use.
    #[error("the limit of concurrent scans of the ledger on this node is reached; retry")]
    Busy,
    /// The epoch changed during every scan.
    #[error("epoch: its entries change faster than they are read; retry")]
    Changing,
    /// The cluster has no incarnation yet.
    #[error("the cluster is not bootstrapped yet")]
    NotBootstrapped,
    /// The state cannot be read.
    #[error(transparent)]
    State(#[from] state::Error),
}

impl From<Corrupt> for Error {
    fn from(error: Corrupt) -> Self {
        Self::State(error.into())
    }
}

/// Serves our own ledger, and shows the peers.
pub struct Federation {
    parts: Parts,
    calls: Calls,
    /// Permits to scan an epoch.
    scans_of_operators: Semaphore,
    scans_of_peers: Semaphore,
}

/// The parts of [`Federation`].
pub struct Parts {
    /// Our `iss`, the origin of our own ledger.
    pub issuer: String,
    /// Our trust domain.
    pub trust_domain: TrustDomain,
    /// The peer fabrics.
    pub peers: Peers,
    /// The certificates of callers, and the roots of our trust domain; `None` in development mode.
    pub tls: Option<Tls>,
    /// The calls of this node to peers, while it leads.
    pub reports: Arc<Reports>,
    pub state: State,
    pub clock: Clock,
    /// Cancelled when the node shall stop: held calls end.
    pub stop_requested: CancellationToken,
}

impl Federation {
    /// That of a node.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let scans = || Semaphore::new(limits::LEDGER_SCANS_MAX);
        Self { parts, calls: Calls::default(), scans_of_operators: scans(), scans_of_peers: scans() }
    }

    /// The peer fabrics.
    #[must_use]
    pub fn peers(&self) -> &Peers {
        &self.parts.peers
    }

    /// The SPIFFE bundle of our roots, by which peers verify our certificates.
    ///
    /// # Errors
    /// [`Error::NotConfigured`], [`Error::NoRoots`], [`Error::UnpublishableRoot`].
    pub fn bundle(&self) -> Result<String, Error> {
        if !self.parts.peers.is_configured() {
            return Err(Error::NotConfigured);
        }
        let tls = self.parts.tls.as_ref().ok_or(Error::NoRoots)?;
        tls.bundle_of(&self.parts.trust_domain).map_err(Error::UnpublishableRoot)?.ok_or(Error::NoRoots)
    }
}
