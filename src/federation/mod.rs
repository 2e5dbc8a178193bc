//! Federation: the ledger of this fabric's own revocations, as other fabrics and operators read it, and the copies of
//! other fabrics' ledgers.

mod admin;
mod engine;
pub mod peers;
pub mod pull;
mod report;
mod serve;
mod sync;
pub mod wire;

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub(crate) use self::admin::{PeerState, PeerStatus, act_of};
pub(crate) use self::report::{Report, Reports};
pub(crate) use self::serve::{ExportQuery, HashQuery, LedgerHash};
pub(crate) use self::sync::LastCall;

use self::peers::Peers;
use self::sync::Calls;
use crate::clock::Clock;
use crate::cluster::Corrupt;
use crate::id::TrustDomain;
use crate::limits;
use crate::state::{self, State};

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
    /// No configuration of peers.
    #[error("federation is not configured")]
    NotConfigured,
    /// The peer is paused.
    #[error("the peer is paused")]
    Paused,
    /// All permits for held calls of the peer, or of all peers, are in use.
    #[error("the limit of concurrent calls of a peer on this node is reached")]
    TooManyCalls,
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

/// The parts of [`Federation`].
pub struct Parts {
    /// Our `iss`, the origin of our own ledger.
    pub issuer: String,
    /// Our trust domain.
    pub trust_domain: TrustDomain,
    /// The peers.
    pub peers: Peers,
    /// What the puller of this node knows of them.
    pub reports: Arc<Reports>,
    /// The replicated state.
    pub state: State,
    /// Time.
    pub clock: Clock,
    /// Cancelled when the node shall stop: held calls end.
    pub stop_requested: CancellationToken,
}

/// Serves our own ledger, and shows the peers.
pub struct Federation {
    issuer: String,
    trust_domain: TrustDomain,
    peers: Peers,
    reports: Arc<Reports>,
    state: State,
    clock: Clock,
    stop_requested: CancellationToken,
    calls: Calls,
    /// Permits to scan an epoch.
    scans: Semaphore,
}

impl Federation {
    /// That of a node.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let Parts { issuer, trust_domain, peers, reports, state, clock, stop_requested } = parts;
        let scans = Semaphore::new(limits::LEDGER_SCANS_MAX);
        let calls = Calls::default();
        Self { issuer, trust_domain, peers, reports, state, clock, stop_requested, calls, scans }
    }
}
