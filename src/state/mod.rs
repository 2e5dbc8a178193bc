//! The replicated state: typed reads, and typed proposals.
//!
//! [`command`] is the format on disk, [`machine`] the pure function that applies it. Nothing here
//! decides who may do what; that is the use-cases' work.

mod caller;
pub mod command;
mod machine;
mod resources;
mod tables;
#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

pub use caller::{CallerFacts, OnBehalf};
pub use command::{Agent, Metadata, MintedToken, PolicySource, Told, stated};
pub use machine::idempotency::{Idempotency, owner};
pub use machine::{Index, Replicated};
pub use resources::agents::{AgentStanding, IssuedAgent};
pub use resources::audit_blocks::{AuditBlock, AuditHash, LastAuditBlock, NewAuditBlock};
pub use resources::encryption_keys::{EncryptionKeyFacts, Registrar};
pub use resources::events::{
    EventId, NoEventId, SESSION_REVOKED, STREAM_UPDATED, SecurityEvent, VERIFICATION,
};
pub use resources::feed::FeedEvent;
pub use resources::outbox::OutboxEvent;
pub use resources::revocation_index::RevocationIndex;
pub use resources::revocations::{FactText, Made, Revocation, Revoked, Target};
pub use resources::signals::{Effect, Signal};
pub use resources::signing_keys::{SigningKeyFacts, SigningKeyState};
pub use resources::streams::{
    Added, DeadLetter, NewDeadLetter, Stream, StreamConfig, StreamCursor, StreamStatus, UnknownStatus,
};
pub use resources::subject_blocks::{BlockId, Blocked};
pub use resources::tools::{ToolPage, ToolQuery};

use crate::clock::Timestamp;
use crate::cluster::{self, Corrupt, StateHash};
pub use crate::cluster::{ClockReport, ClockVerdict, Current, Fresh, NotCurrent, Stale};
use crate::id::{Digest128, Incarnation, LogPosition};
use crate::token::signing_key::SigningAlgorithm;
use command::{Command, Refusal, Reply};

/// Why a proposal did not come to anything.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// It was not applied, or is not known to be.
    #[error(transparent)]
    Write(#[from] cluster::Error),
    /// It cannot be proven that this node knows what was revoked.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// This node's state is not known to be as new as what was acknowledged.
    #[error(transparent)]
    NotCurrent(#[from] NotCurrent),
    /// The nonce was spent before.
    #[error("the nonce was already used")]
    NonceSpent,
    /// More nonces than the limit, of all or of the caller.
    #[error(
        "execution_scope.nonce: the cluster remembers as many nonces as it can, or as it may of this caller"
    )]
    TooManyNonces,
    /// The execution-scoped token was used before.
    #[error("the token was already used")]
    TokenSpent,
    /// More spent tokens than the limit, of all or of the caller.
    #[error("token: the cluster remembers as many used tokens as it can, or as it may of this caller")]
    TooManySpentTokens,
    /// More idempotency keys than the limit, of all or of the caller.
    #[error("Idempotency-Key: the cluster remembers as many keys as it can, or as it may of this caller")]
    TooManyIdempotencyKeys,
    /// The idempotency key came with another request before.
    #[error("the Idempotency-Key was used with another request")]
    IdempotencyKeyReused,
    /// There is no such signing key.
    #[error("there is no signing key with this kid")]
    UnknownSigningKey,
    /// The node has no other key that may sign.
    #[error("no successor of this signing key is old enough to sign")]
    NoAgedSuccessor,
    /// More keys than the limit.
    #[error("the cluster has too many signing keys")]
    TooManySigningKeys,
    /// Somebody else changed the policy meanwhile.
    #[error("the policy was changed by someone else")]
    PolicyChanged,
    /// The cluster has been bootstrapped before.
    #[error("the cluster is bootstrapped already")]
    AlreadyBootstrapped,
    /// Another tool has the id.
    #[error("tool_id: is registered with other content; PUT replaces it")]
    ToolExists,
    /// There is no such tool.
    #[error("there is no tool with this tool_id")]
    UnknownTool,
    /// Somebody else registered the tool, or issued the agent.
    #[error("it belongs to another caller")]
    NotTheOwner,
    /// `If-Match` or `If-None-Match` does not hold.
    #[error("it was changed by someone else: the condition of If-Match or If-None-Match does not hold")]
    PreconditionFailed,
    /// More tools than the limit, of all or of the caller.
    #[error("the registry is full, or has as many tools of this caller as it takes")]
    TooManyTools,
    /// There is no such agent.
    #[error("there is no agent with this agent_id")]
    UnknownAgent,
    /// The agent, or one it derives from, is revoked.
    #[error("the agent is revoked")]
    AgentRevoked,
    /// The agent has come to the end of its life.
    #[error("the agent has come to the end of its life")]
    AgentEnded,
    /// More agents than the limit, of all or of the caller.
    #[error("the cluster has too many agents, or too many of this caller")]
    TooManyAgents,
    /// More encryption keys than the limit.
    #[error("the subject has too many encryption keys, or its trust domain too many subjects with some")]
    TooManyEncryptionKeys,
    /// There is no such encryption key.
    #[error("the subject has no encryption key with this kid")]
    UnknownEncryptionKey,
    /// A block of audit entries came before the one it follows.
    #[error("a block of audit entries is missing before this one")]
    AuditBlockMissing,
    /// The issuer of a signal used its `jti` for another one.
    #[error("jti: the issuer used it for another security event token")]
    JtiReused,
    /// The issuer of a signal has revoked as much as it may in a minute.
    #[error("the issuer has revoked as much as it may in a minute")]
    RevocationQuota,
    /// More revocations than the limit.
    #[error("the cluster remembers as many revocations as it can")]
    TooManyRevocations,
    /// There is no such block, or it is lifted.
    #[error("there is no block with this id")]
    UnknownBlock,
    /// There is no such stream.
    #[error("there is no stream with this stream_id")]
    UnknownStream,
    /// More streams than the limit, of all or of the caller.
    #[error("the cluster has too many streams, or too many of this caller")]
    TooManyStreams,
    /// Somebody else changed the stream, or moved it on, meanwhile.
    #[error("the stream was changed by someone else")]
    StreamChanged,
    /// It is paused or disabled.
    #[error("stream_id: the stream is not enabled")]
    StreamNotEnabled,
    /// The stream was verified a moment ago.
    #[error("the stream was verified less than a minute ago")]
    VerifiedTooOften,
    /// The caller was blocked, or its bearer token revoked, before the command was applied.
    #[error("the caller is blocked or revoked")]
    CallerRefused,
    /// More subjects are taken out of the stream than the limit.
    #[error("the stream is without as many subjects as it can be")]
    TooManySubjects,
    /// A row is not what was written.
    #[error("a row of the state is damaged")]
    Damaged(#[from] Corrupt),
    /// The reply is of a version this one does not know.
    #[error("the reply cannot be decoded")]
    Undecodable,
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unspecified => Self::Undecodable,
            Refusal::AlreadyBootstrapped => Self::AlreadyBootstrapped,
            Refusal::NonceSpent => Self::NonceSpent,
            Refusal::TooManyNonces => Self::TooManyNonces,
            Refusal::TokenSpent => Self::TokenSpent,
            Refusal::TooManySpentTokens => Self::TooManySpentTokens,
            Refusal::TooManyIdempotencyKeys => Self::TooManyIdempotencyKeys,
            Refusal::IdempotencyKeyReused => Self::IdempotencyKeyReused,
            Refusal::UnknownSigningKey => Self::UnknownSigningKey,
            Refusal::NoAgedSuccessor => Self::NoAgedSuccessor,
            Refusal::PolicyChanged => Self::PolicyChanged,
            Refusal::TooManySigningKeys => Self::TooManySigningKeys,
            Refusal::ToolExists => Self::ToolExists,
            Refusal::UnknownTool => Self::UnknownTool,
            Refusal::NotTheOwner => Self::NotTheOwner,
            Refusal::PreconditionFailed => Self::PreconditionFailed,
            Refusal::TooManyTools => Self::TooManyTools,
            Refusal::UnknownAgent => Self::UnknownAgent,
            Refusal::AgentRevoked => Self::AgentRevoked,
            Refusal::AgentEnded => Self::AgentEnded,
            Refusal::TooManyAgents => Self::TooManyAgents,
            Refusal::TooManyEncryptionKeys => Self::TooManyEncryptionKeys,
            Refusal::UnknownEncryptionKey => Self::UnknownEncryptionKey,
            Refusal::AuditBlockMissing => Self::AuditBlockMissing,
            Refusal::JtiReused => Self::JtiReused,
            Refusal::RevocationQuota => Self::RevocationQuota,
            Refusal::TooManyRevocations => Self::TooManyRevocations,
            Refusal::UnknownBlock => Self::UnknownBlock,
            Refusal::UnknownStream => Self::UnknownStream,
            Refusal::TooManyStreams => Self::TooManyStreams,
            Refusal::StreamChanged => Self::StreamChanged,
            Refusal::StreamNotEnabled => Self::StreamNotEnabled,
            Refusal::VerifiedTooOften => Self::VerifiedTooOften,
            Refusal::TooManySubjects => Self::TooManySubjects,
            Refusal::CallerRefused => Self::CallerRefused,
            // This time it was not applied. It was sent before, or is sent again, and may stand then.
            Refusal::GivenUp | Refusal::TooManySubmissions => Self::Write(cluster::Error::OutcomeUnknown),
        }
    }
}

/// One change of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyChange {
    /// Its number, from 1.
    pub number: u64,
    /// The bundle's digest.
    pub digest: String,
    /// When, in log time.
    pub applied_at: Timestamp,
    /// By whom; empty for the seed of a bootstrap.
    pub applied_by: String,
}

/// The replicated state. Cheap to clone.
#[derive(Clone)]
pub struct State {
    core: cluster::Handle<Replicated>,
}

impl State {
    /// Over a running core.
    #[must_use]
    pub fn new(core: cluster::Handle<Replicated>) -> Self {
        Self { core }
    }

    /// The core itself: leader, recovery, shutdown.
    #[must_use]
    pub fn core(&self) -> &cluster::Handle<Replicated> {
        &self.core
    }

    /// Ends when no member can answer from before what is applied here.
    ///
    /// # Errors
    /// [`cluster::Error::Unacknowledged`]: that is not known in time.
    pub async fn acknowledged(&self) -> Result<(), Error> {
        Ok(self.core.barrier(self.core.applied()).await?)
    }

    /// Begins the cluster's life, with ids the caller drew at random.
    ///
    /// # Errors
    /// [`Error::AlreadyBootstrapped`], or as [`Error::Write`] says.
    pub async fn bootstrap(&self, cluster_id: [u8; 16], incarnation: [u8; 16]) -> Result<(), Error> {
        let command = command::Bootstrap {
            cluster_id: Bytes::copy_from_slice(&cluster_id),
            incarnation: Bytes::copy_from_slice(&incarnation),
            is_timed: true,
        };
        self.as_node().propose(Command::Bootstrap(command)).await.map(drop)
    }

    /// Publishes a signing key of this node. `jwk` is its public half.
    ///
    /// # Errors
    /// [`Error::TooManySigningKeys`], or as [`Error::Write`] says.
    pub async fn publish_signing_key(
        &self,
        kid: String,
        jwk: String,
        algorithm: SigningAlgorithm,
    ) -> Result<(), Error> {
        let (node_id, algorithm) = (self.core.node_id(), resources::signing_keys::write_algorithm(algorithm));
        let command = command::PublishSigningKey { kid, node_id, jwk, algorithm };
        self.as_node().propose(Command::PublishSigningKey(command)).await.map(drop)
    }

    /// Makes a policy bundle the one that the cluster begins with.
    ///
    /// # Errors
    /// [`Error::PolicyChanged`] if there is a policy already, or as [`Error::Write`] says.
    pub async fn seed_policy(&self, digest: String, sources: Vec<PolicySource>) -> Result<(), Error> {
        let command = command::PutPolicy { digest, sources, is_seed: true, ..Default::default() };
        self.as_node().propose(Command::PutPolicy(command)).await.map(drop)
    }

    /// States the hash the state had at an index, so that a node with another one stops.
    ///
    /// # Errors
    /// As [`Error::Write`] says.
    pub async fn check_state_hash(&self, index: u64, hash: StateHash) -> Result<(), Error> {
        let command = command::CheckStateHash { index, hash: Bytes::copy_from_slice(&hash) };
        self.as_node().propose(Command::CheckStateHash(command)).await.map(drop)
    }

    /// The proof that this node knows everything whose revocation was acknowledged. A request takes it once,
    /// when it has arrived and before anything is read for it.
    ///
    /// # Errors
    /// [`Error::Stale`] after a wait of up to [`crate::limits::FRESHNESS_WAIT`].
    pub async fn fresh(&self) -> Result<Fresh, Error> {
        Ok(self.core.fresh().await?)
    }

    /// The proof that everything acknowledged before is applied here: asks the leader.
    ///
    /// # Errors
    /// [`Error::NotCurrent`] after a wait of up to twice [`crate::limits::READ_INDEX_WAIT`].
    pub async fn current(&self) -> Result<Current, Error> {
        Ok(self.core.linearizable().await?)
    }

    /// What `look` finds. What is not here may have been written through another node a moment ago: before that is
    /// said of it, the leader is asked, and it is looked for again.
    ///
    /// # Errors
    /// Those of `look`; [`Error::NotCurrent`].
    pub async fn confirmed<T, E: From<Error>>(
        &self,
        look: impl Fn() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        let found = look()?;
        if found.is_some() {
            return Ok(found);
        }
        self.current().await?;
        look()
    }

    /// What is kept in memory, as of the last entry applied.
    #[must_use]
    pub fn index(&self) -> arc_swap::Guard<Arc<Index>> {
        self.core.machine().index()
    }

    /// The later of `now` and log time: a clock that was set back does not bring back what has expired.
    #[must_use]
    pub fn not_before_log(&self, now: Timestamp) -> Timestamp {
        now.max(self.index().time)
    }

    /// Elapsed time now, by which signing keys are judged. No wall clock moves it.
    #[must_use]
    pub fn elapsed_time(&self) -> Timestamp {
        self.core.elapsed_time()
    }

    /// Wall time now as the clocks of the voters agree on it, as far as this node knows: what comes from outside is
    /// judged by it where a wrong clock must refuse nothing.
    #[must_use]
    pub fn cluster_time(&self) -> Timestamp {
        self.core.cluster_time()
    }

    /// Whether anything may be judged by this node's wall clock.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn judges_by_time(&self, fresh: &Fresh) -> Result<(), Error> {
        Ok(self.core.judges_by_time(fresh)?)
    }

    /// Whether credentials of other issuers may be.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn judges_foreign(&self, fresh: &Fresh) -> Result<(), Error> {
        Ok(self.core.judges_foreign(fresh)?)
    }

    /// Where in the log this node is; `None` before the cluster is bootstrapped.
    #[must_use]
    pub fn position(&self) -> Option<LogPosition> {
        let incarnation: Incarnation = self.index().incarnation?;
        Some(LogPosition { incarnation, index: self.core.applied() })
    }

    /// The digest of the current policy, and each change of it.
    #[must_use]
    pub fn policy_changes(&self) -> watch::Receiver<String> {
        self.core.machine().policy_changes()
    }

    /// The sources of a policy bundle.
    ///
    /// # Errors
    /// [`Corrupt`] if the row is not what was written.
    pub fn policy_sources(&self, digest: &str) -> Result<Option<Vec<PolicySource>>, Corrupt> {
        machine::policy_sources(self.core.view(), digest)
    }

    /// Every change of the policy that is remembered, oldest first.
    #[must_use]
    pub fn policy_history(&self) -> Vec<PolicyChange> {
        let index = self.index();
        let change = |(number, row): (&u64, &command::PolicyHistoryRow)| PolicyChange {
            number: *number,
            digest: row.digest.clone(),
            applied_at: Timestamp::from_millis(row.applied_at_millis),
            applied_by: row.applied_by.clone(),
        };
        index.policy_history.iter().map(change).collect()
    }
}

impl OnBehalf<'_> {
    /// Retires a signing key: it signs no more.
    ///
    /// # Errors
    /// [`Error::UnknownSigningKey`], [`Error::NoAgedSuccessor`], or as [`Error::Write`] says.
    pub async fn retire_signing_key(self, kid: String) -> Result<(), Error> {
        self.propose(Command::RetireSigningKey(command::RetireSigningKey { kid })).await.map(drop)
    }

    /// Taints a signing key: nothing it signed is accepted any more, nor what derives from that. `digest` is
    /// the key's in a token's `lineage`.
    ///
    /// # Errors
    /// [`Error::UnknownSigningKey`], or as [`Error::Write`] says.
    pub async fn taint_signing_key(self, kid: String, digest: Digest128) -> Result<(), Error> {
        let digest = Bytes::copy_from_slice(digest.as_bytes());
        let command = Command::TaintSigningKey(command::TaintSigningKey { kid, digest });
        self.propose_revocation(command, None).await.map(drop)
    }

    /// Makes a policy bundle current; whether that changed anything.
    ///
    /// # Errors
    /// [`Error::PolicyChanged`], or as [`Error::Write`] says.
    pub async fn put_policy(
        self,
        digest: String,
        sources: Vec<PolicySource>,
        applied_by: String,
        expected_current: String,
    ) -> Result<bool, Error> {
        let command = command::PutPolicy { digest, sources, applied_by, expected_current, is_seed: false };
        self.propose(Command::PutPolicy(command)).await
    }
}

/// What the log replied. A refusal is an error.
fn read_reply(outcome: &cluster::Outcome) -> Result<Told<Reply>, Error> {
    match command::decode_reply(&outcome.reply) {
        Some(Told { outcome: Reply::Refused(refusal), .. }) => Err(refusal.into()),
        Some(reply) => Ok(reply),
        None => Err(Error::Undecodable),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::testing::Core;
    use super::*;

    #[tokio::test]
    async fn what_is_not_here_is_looked_for_again_once_the_leader_was_asked_and_what_is_here_at_once() {
        let core = Core::start(Timestamp::from_secs(1_800_000_000)).await;
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
            let confirmed = core.state.confirmed(look_from(there_from)).await;
            assert_eq!((confirmed.expect("a leader"), looks.get()), (found, looked));
        }
        core.state.core().shutdown().await.expect("stops");
        let here = core.state.confirmed(look_from(1)).await;
        assert_eq!(here.expect("nobody is asked"), Some(7));
        let missing = core.state.confirmed(look_from(2)).await;
        assert!(
            matches!(missing, Err(Error::NotCurrent(NotCurrent::NoLeader))),
            "nobody says that it is not there"
        );
        core.end().await;
    }
}
