//! The replicated state: typed reads, and typed proposals.
//!
//! [`command`] is the format on disk, [`machine`] the pure function that applies it. Authorization is not decided
//! here, but by the use-cases.

mod caller;
pub mod command;
pub mod feature_level;
mod machine;
mod readers;
#[cfg(test)]
mod recorded_log;
mod refusal;
mod resources;
mod tables;
#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

pub use caller::{CallContext, CallerFacts, OnBehalf};
pub use command::{Agent, MintedToken, Node, NodeRole, NodeStage, PolicySource, Refusal, Replied, stated};
pub(crate) use machine::idempotency::Idempotency;
pub use machine::idempotency::owner;
pub(crate) use machine::{Index, Replicated, StateIdentity};
pub use readers::{Awaited, AwaitedPeers, ReaderCall, ReaderState};
pub(crate) use resources::agents::{AgentStatus, IssuedAgent};
pub(crate) use resources::audit_blocks::{AuditBlock, AuditHash};
pub(crate) use resources::encryption_keys::{EncryptionKeyRecord, Registrar};
pub use resources::events::{
    EventId, InvalidEventId, SESSION_REVOKED, STREAM_UPDATED, SecurityEvent, VERIFICATION,
};
pub use resources::feature_levels::recorded_version;
pub(crate) use resources::feed::{FeedEvent, FeedKind};
pub use resources::join_token::{InvalidJoinToken, JoinToken};
pub(crate) use resources::ledger::{
    LedgerCursor, LedgerEntry, LedgerPage, LedgerQuery, LedgerState, LedgerSums, Sum,
};
pub use resources::nodes::{AdmittedJoiner, Joiner};
pub(crate) use resources::outbox::OutboxEvent;
pub use resources::peers::{
    Imported, PEER_INDEX_MAX, PeerAct, PeerCopy, PeerFault, PeerVerdict, Unjudged, import_parts, peer_key,
};
pub use resources::restore::restore_command;
pub use resources::revocation_index::{Epoch, EpochFloor, RevocationIndex};
pub(crate) use resources::revoked_fact::fact_row;
pub(crate) use resources::signals::{Effect, Signal};
pub(crate) use resources::signing_keys::{SigningKeyRecord, SigningKeyState, minting_key};
pub use resources::streams::{
    Added, DeadLetter, NewDeadLetter, Stream, StreamConfig, StreamCursor, StreamStatus,
};
pub(crate) use resources::subject_blocks::{BlockId, SubjectBlock};
pub(crate) use resources::tools::{ToolPage, ToolQuery};

use crate::breaks::Break;
use crate::clock::Timestamp;
use crate::cluster::{self, BarrierTimeout, Corrupt, StateHash};
pub(crate) use crate::cluster::{
    ClockReport, ClockVerdict, LeaseError, LeaseProof, LinearizableRead, ReadIndexError,
};
pub use crate::cluster::{Source, SourceCall, SourceProof};
use crate::id::{Digest128, Incarnation, LogPosition};
use crate::token::signing_key::SigningAlgorithm;
use command::{Command, Reply};

/// Reason why a proposal or a read failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The write was not applied, was not confirmed by every member, or has an unknown outcome.
    #[error(transparent)]
    Write(#[from] cluster::Error),
    /// The freshness lease of this node cannot be proven.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A linearizable read was not possible.
    #[error(transparent)]
    ReadIndex(#[from] ReadIndexError),
    /// The log refused the command.
    #[error(transparent)]
    Refused(Refusal),
    /// A member does not support the feature level, or did not answer.
    #[error("feature level {level}: {reasons}")]
    NotSupported {
        level: u32,
        /// Each such member.
        reasons: String,
    },
    /// A revocation is applied, and these peers may still accept what it covers.
    #[error("the write is applied, but was not confirmed in time by the peer fabrics {0}: retry")]
    PeersSilent(String),
    /// A row is corrupt.
    #[error(transparent)]
    Damaged(#[from] Corrupt),
    /// The reply has a version that this node does not know.
    #[error("the reply cannot be decoded")]
    Undecodable,
}

impl From<BarrierTimeout> for Error {
    fn from(BarrierTimeout: BarrierTimeout) -> Self {
        Self::Write(cluster::Error::Unacknowledged)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unspecified => Self::Undecodable,
            // This proposal was not applied, but an earlier or later one of the same command may be.
            Refusal::GivenUp | Refusal::TooManySubmissions => Self::Write(cluster::Error::OutcomeUnknown),
            refusal => Self::Refused(refusal),
        }
    }
}

/// The replicated state. Cheap to clone.
#[derive(Clone)]
pub struct State {
    cluster: cluster::Handle<Replicated>,
    /// The peers that revocations wait for.
    awaited: Option<Arc<AwaitedPeers>>,
}

impl State {
    /// State of a running node.
    #[must_use]
    pub fn new(cluster: cluster::Handle<Replicated>) -> Self {
        Self { cluster, awaited: None }
    }

    /// The node's cluster handle: leader, recovery, shutdown.
    #[must_use]
    pub fn cluster(&self) -> &cluster::Handle<Replicated> {
        &self.cluster
    }

    /// Barrier for everything that this node has applied.
    ///
    /// # Errors
    /// [`cluster::Error::Unacknowledged`] after the timeout.
    pub async fn barrier(&self) -> Result<(), Error> {
        Ok(self.cluster.barrier(self.cluster.applied()).await?)
    }

    /// Bootstraps the cluster, with ids that the caller has drawn at random. `Refusal::AlreadyBootstrapped` if it was
    /// bootstrapped before.
    pub async fn bootstrap(
        &self,
        cluster_id: [u8; 16],
        incarnation: [u8; 16],
        feature_level: u32,
    ) -> Result<(), Error> {
        let command = command::Bootstrap {
            feature_level,
            cluster_id: Bytes::copy_from_slice(&cluster_id),
            incarnation: Bytes::copy_from_slice(&incarnation),
        };
        self.as_node().propose(Command::Bootstrap(command)).await.map(drop)
    }

    /// Publishes a signing key of this node. `jwk` is its public half.
    pub async fn publish_signing_key(
        &self,
        kid: String,
        jwk: String,
        algorithm: SigningAlgorithm,
    ) -> Result<(), Error> {
        let (node_id, algorithm) =
            (self.cluster.node_id(), resources::signing_keys::write_algorithm(algorithm));
        let command = command::PublishSigningKey { kid, node_id, jwk, algorithm };
        self.as_node().propose(Command::PublishSigningKey(command)).await.map(drop)
    }

    /// Proposes the state hash at an index, so that a node with another one stops.
    pub async fn check_state_hash(&self, index: u64, hash: StateHash) -> Result<(), Error> {
        let command = command::CheckStateHash { index, hash: Bytes::copy_from_slice(&hash) };
        self.as_node().propose(Command::CheckStateHash(command)).await.map(drop)
    }

    /// The freshness lease of this node. A request takes it once, after it has arrived and before anything is read for
    /// it.
    ///
    /// # Errors
    /// [`Error::Lease`] after a wait of up to [`crate::limits::FRESHNESS_WAIT`].
    pub async fn fresh(&self) -> Result<LeaseProof, Error> {
        Ok(self.cluster.fresh().await?)
    }

    /// [`Self::fresh`], which these breaks skip in a build for tests.
    pub(crate) async fn fresh_unless<const N: usize>(&self, any: [Break; N]) -> Result<LeaseProof, Error> {
        Ok(self.cluster.fresh_unless(any).await?)
    }

    /// A linearizable read, confirmed by ReadIndex.
    ///
    /// # Errors
    /// [`Error::ReadIndex`] after a wait of up to twice [`crate::limits::READ_INDEX_WAIT`].
    pub async fn current(&self) -> Result<LinearizableRead, Error> {
        Ok(self.cluster.linearizable().await?)
    }

    /// The result of `look`. If there is none, it may have been written through another node just before: the lookup is
    /// repeated as a linearizable read.
    pub async fn confirmed<T, E: From<Error>>(
        &self,
        look: impl Fn() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        let row = look()?;
        if row.is_some() {
            return Ok(row);
        }
        self.current().await?;
        look()
    }

    /// The rows in memory, as of the last entry applied.
    #[must_use]
    pub fn index(&self) -> arc_swap::Guard<Arc<Index>> {
        self.cluster.machine().index()
    }

    /// The later of `now` and log time, so that a clock set back does not revive expired rows.
    #[must_use]
    pub fn not_before_log(&self, now: Timestamp) -> Timestamp {
        now.max(self.index().time)
    }

    /// Elapsed time now; it determines the states of signing keys. No wall clock changes it.
    #[must_use]
    pub fn elapsed_time(&self) -> Timestamp {
        self.cluster.elapsed_time()
    }

    /// Wall time that the voters' clocks agree on, as far as this node knows. Times from outside are compared with it
    /// where a wrong clock of this node must not cause a refusal.
    #[must_use]
    pub fn cluster_time(&self) -> Timestamp {
        self.cluster.cluster_time()
    }

    /// Whether this node may compare any time with its own wall clock. [`Error::Lease`] if not.
    pub fn check_clock(&self, fresh: &LeaseProof) -> Result<(), Error> {
        Ok(self.cluster.check_clock(fresh)?)
    }

    /// Whether this node may verify times of credentials of other issuers. [`Error::Lease`] if not.
    pub fn check_clock_for_foreign(&self, fresh: &LeaseProof) -> Result<(), Error> {
        Ok(self.cluster.check_clock_for_foreign(fresh)?)
    }

    /// Log position of this node; `None` before the cluster is bootstrapped.
    #[must_use]
    pub fn position(&self) -> Option<LogPosition> {
        let incarnation: Incarnation = self.index().incarnation?;
        Some(LogPosition { incarnation, index: self.cluster.applied() })
    }

    /// Watches the digest of the current policy.
    #[must_use]
    pub fn policy_changes(&self) -> watch::Receiver<String> {
        self.cluster.machine().policy_changes()
    }

    pub fn policy_sources(&self, digest: &str) -> Result<Option<Vec<PolicySource>>, Corrupt> {
        machine::policy_sources(self.cluster.view(), digest)
    }
}

impl OnBehalf<'_> {
    /// Retires a signing key: it no longer signs.
    ///
    /// # Errors
    /// `Refusal::UnknownSigningKey`, `Refusal::NoAgedSuccessor`.
    pub async fn retire_signing_key(self, kid: String) -> Result<(), Error> {
        self.propose(Command::RetireSigningKey(command::RetireSigningKey { kid })).await.map(drop)
    }

    /// Taints a signing key: its signatures are no longer accepted, nor any token that derives from one. `digest` is
    /// that of the key in a token's `lineage`. Returns after the barrier and the waits for peers.
    /// `Refusal::UnknownSigningKey` if there is no such key.
    pub async fn taint_signing_key(self, kid: String, digest: Digest128) -> Result<Awaited, Error> {
        let digest = Bytes::copy_from_slice(digest.as_bytes());
        let command = Command::TaintSigningKey(command::TaintSigningKey { kid, digest });
        self.propose_revocation(command).await.map(|(_, awaited)| awaited)
    }
}

/// The reply of the log. A refusal is an error.
fn read_reply(outcome: &cluster::AppliedCommand) -> Result<Replied<Reply>, Error> {
    match command::decode_reply(&outcome.reply) {
        Some(Replied { outcome: Reply::Refused(refusal), .. }) => Err(refusal.into()),
        Some(reply) => Ok(reply),
        None => Err(Error::Undecodable),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::testing::TestNode;
    use super::*;

    #[tokio::test]
    async fn missing_row_is_looked_up_again_after_a_read_index() {
        let node = TestNode::start(Timestamp::from_secs(1_800_000_000)).await;
        let looks = Cell::new(0);
        let look_from = |there_from: u32| {
            looks.set(0);
            let looks = &looks;
            move || {
                looks.set(looks.get() + 1);
                Ok::<_, Error>((looks.get() >= there_from).then_some(7))
            }
        };
        for (there_from, found, looked) in [(1, Some(7), 1), (2, Some(7), 2), (3, None, 2)] {
            let confirmed = node.state.confirmed(look_from(there_from)).await;
            assert_eq!((confirmed.expect("a leader"), looks.get()), (found, looked));
        }
        node.state.cluster().shutdown().await.expect("stops");
        let here = node.state.confirmed(look_from(1)).await;
        assert_eq!(here.expect("no ReadIndex"), Some(7));
        let missing = node.state.confirmed(look_from(2)).await;
        assert!(matches!(missing, Err(Error::ReadIndex(ReadIndexError::NoLeader))), "absence is unconfirmed");
        node.end().await;
    }
}
