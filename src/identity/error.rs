//! Why an identity was refused, by reason. `api` maps each to a status and a code, once.

use crate::cluster::{self, Corrupt};
use crate::policy::blast_radius::BlastRadius;
use crate::policy::{Denial, DenialKind};
use crate::{keyring, state};

/// Why an identity was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The policy has no rule about agents.
    #[error("agent identity is not configured: the policy has no rule data.svc.identity.decision")]
    NotConfigured,
    /// A member is missing, or breaks its rule.
    #[error("{field}: {rule}")]
    Invalid {
        /// The member.
        field: &'static str,
        /// The rule.
        rule: String,
    },
    /// The caller is blocked.
    #[error("the caller is blocked")]
    CallerBlocked,
    /// There is no such parent, or it is somebody else's: which of the two is not said.
    #[error("on_behalf_of: the caller has had no agent with this agent_id issued")]
    ParentUnknown,
    /// The parent, or one of its own, is revoked.
    #[error("on_behalf_of: the parent is revoked")]
    ParentRevoked,
    /// The parent has come to its end.
    #[error("on_behalf_of: the parent has come to the end of its life")]
    ParentEnded,
    /// The parent may have no children.
    #[error("on_behalf_of: the parent is a terminal agent, issued with delegation depth 0")]
    ParentTerminal,
    /// More than [`crate::limits::ACT_DEPTH_MAX`] ancestors.
    #[error("on_behalf_of: the parent has as many ancestors as an agent can have")]
    ChainTooLong,
    /// The child would have more hops than are left.
    #[error("delegation_depth: must be at most {most}, one less than the parent's")]
    DepthExceedsParent {
        /// What is left.
        most: u32,
    },
    /// The child would do what its parent may not.
    #[error("capabilities: the parent does not have {capability}")]
    CapabilityExceedsParent {
        /// The first that it lacks.
        capability: String,
    },
    /// The child would reach further than its parent.
    #[error("max_blast_radius: must lie within the parent's, {limit}")]
    BlastRadiusExceedsParent {
        /// The parent's.
        limit: BlastRadius,
    },
    /// Policy says no.
    #[error("policy denied: {}", .0.reason)]
    Denied(Denial),
    /// Policy did not answer in time, which says nothing about what was asked.
    #[error("policy did not decide in time")]
    PolicyTimedOut(Denial),
    /// Nothing that was asked for is granted.
    #[error("policy denied: none of the requested capabilities can be granted")]
    NothingGranted,
    /// What was asked for and what is granted cannot be compared.
    #[error("policy denied: insufficient blast radius")]
    BlastRadius,
    /// The bearer is none that an agent renews itself with.
    #[error("the bearer token is not an agent's own identity token")]
    NotAnIdentityToken,
    /// More keys have signed its tokens than a lineage can name.
    #[error("the agent was renewed across too many signing keys: have it issued anew")]
    RenewedTooOften,
    /// The agent, or one on whose behalf it acts, is revoked.
    #[error("the agent is revoked")]
    Revoked,
    /// The agent has come to its end.
    #[error("the agent has come to the end of its life")]
    Ended,
    /// There is no such agent, or it is somebody else's: which of the two is not said.
    #[error("there is no agent with this agent_id")]
    UnknownAgent,
    /// More agents than the limit, of all or of the caller.
    #[error("the cluster has too many agents, or too many of this caller")]
    TooManyAgents,
    /// The `Idempotency-Key` came with another request before.
    #[error("Idempotency-Key was used with another request")]
    IdempotencyKeyReused,
    /// More idempotency keys than the limit, of all or of the caller.
    #[error("Idempotency-Key: the cluster remembers as many keys as it can, or as it may of this caller")]
    TooManyIdempotencyKeys,
    /// No policy has been loaded.
    #[error("no policy is loaded")]
    NoPolicy,
    /// This node cannot sign.
    #[error("this node cannot sign tokens now")]
    CannotSign(#[source] keyring::Error),
    /// The cluster has not begun its life.
    #[error("the cluster is starting")]
    NotBootstrapped,
    /// It cannot be proven that this node knows what was revoked.
    #[error(transparent)]
    Stale(#[from] state::Stale),
    /// This node's state is not known to be as new as what was acknowledged.
    #[error(transparent)]
    NotCurrent(state::NotCurrent),
    /// It could not be written, or is not known to be.
    #[error("{0}")]
    Write(#[source] cluster::Error),
    /// Anything else, never the caller's fault.
    #[error("internal error")]
    Internal(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    pub(super) fn internal(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Internal(error.into())
    }

    /// The log refused a new agent; what it says of an agent, it says of the parent.
    pub(super) fn of_issue(error: state::Error) -> Self {
        match error {
            state::Error::UnknownAgent => Self::ParentUnknown,
            state::Error::AgentRevoked => Self::ParentRevoked,
            state::Error::AgentEnded => Self::ParentEnded,
            other => Self::of_write(other),
        }
    }

    /// The log refused a revocation.
    pub(super) fn of_revocation(error: state::Error) -> Self {
        match error {
            state::Error::UnknownAgent | state::Error::NotTheOwner => Self::UnknownAgent,
            other => Self::of_write(other),
        }
    }

    /// It could not be found out whether there is such an agent.
    pub(super) fn of_lookup(error: state::Error) -> Self {
        match error {
            state::Error::NotCurrent(error) => Self::NotCurrent(error),
            other => Self::internal(other),
        }
    }

    fn of_write(error: state::Error) -> Self {
        match error {
            state::Error::TooManyAgents => Self::TooManyAgents,
            state::Error::IdempotencyKeyReused => Self::IdempotencyKeyReused,
            state::Error::CallerRefused => Self::CallerBlocked,
            state::Error::TooManyIdempotencyKeys => Self::TooManyIdempotencyKeys,
            state::Error::Write(error) => Self::Write(error),
            other => Self::internal(other),
        }
    }
}

impl From<Denial> for Error {
    fn from(denial: Denial) -> Self {
        match denial.kind {
            DenialKind::TimedOut => Self::PolicyTimedOut(denial),
            _ => Self::Denied(denial),
        }
    }
}

impl From<Corrupt> for Error {
    fn from(error: Corrupt) -> Self {
        Self::internal(error)
    }
}
