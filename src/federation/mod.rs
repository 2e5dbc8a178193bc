//! Federation, as far as it is built: the ledger of this fabric's own revocations, as other fabrics and operators read
//! it. Nothing is imported from another fabric.

mod serve;

use tokio::sync::Semaphore;

pub(crate) use self::serve::{ExportQuery, HashQuery, LedgerHash};

use crate::clock::Clock;
use crate::cluster::Corrupt;
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

/// Serves the ledger.
pub struct Federation {
    /// Our `iss`, the origin of our own ledger.
    issuer: String,
    state: State,
    clock: Clock,
    /// Permits to scan an epoch.
    scans: Semaphore,
}

impl Federation {
    /// That of a node.
    #[must_use]
    pub fn new(issuer: String, state: State, clock: Clock) -> Self {
        Self { issuer, state, clock, scans: Semaphore::new(limits::LEDGER_SCANS_MAX) }
    }
}
