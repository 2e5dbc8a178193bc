//! Reasons for which an identity request is refused. `api` maps each to a status and a code.

use crate::cluster::Corrupt;
use crate::policy::blast_radius::BlastRadius;
use crate::policy::{Denial, DenialKind};
use crate::state::Refusal;
use crate::{keyring, state};

/// Reason for which an identity request is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The policy has no rule about agents.
    #[error("agent identity is not configured: the policy has no rule data.svc.identity.decision")]
    NotConfigured,
    /// A field is missing or breaks its rule.
    #[error("{field}: {rule}")]
    Invalid { field: &'static str, rule: String },
    /// The caller is blocked.
    #[error("the caller is blocked")]
    CallerBlocked,
    /// No such parent, or one of another caller; the response does not distinguish them.
    #[error("on_behalf_of: no agent of the caller has this agent_id")]
    ParentUnknown,
    /// The parent or one of its ancestors is revoked.
    #[error("on_behalf_of: the parent is revoked")]
    ParentRevoked,
    /// The parent has expired.
    #[error("on_behalf_of: the parent has expired")]
    ParentEnded,
    /// The parent has no remaining depth.
    #[error("on_behalf_of: the parent is a terminal agent, issued with delegation depth 0")]
    ParentTerminal,
    /// More than [`crate::limits::ACT_DEPTH_MAX`] ancestors.
    #[error("on_behalf_of: the parent has as many ancestors as an agent can have")]
    ChainTooLong,
    /// The child would have more depth than its parent leaves.
    #[error("delegation_depth: must be at most {most}, one less than the parent's")]
    DepthExceedsParent { most: u32 },
    /// The child would have a capability that its parent lacks.
    #[error("capabilities: the parent does not have {capability}")]
    CapabilityExceedsParent {
        /// The first such capability.
        capability: String,
    },
    /// The child's blast radius exceeds its parent's.
    #[error("max_blast_radius: must lie within the parent's, {limit}")]
    BlastRadiusExceedsParent {
        /// Blast radius of the parent.
        limit: BlastRadius,
    },
    /// Policy denied the request.
    #[error("policy denied: {}", .0.reason)]
    Denied(Denial),
    /// Policy did not decide within its timeout; a retry may succeed.
    #[error("policy did not decide in time")]
    PolicyTimedOut(Denial),
    /// The requested capabilities and the grant have nothing in common.
    #[error("policy denied: none of the requested capabilities can be granted")]
    NothingGranted {
        /// Those of the request and of the policy, for operators.
        detail: String,
    },
    /// The requested and the granted blast radius cannot be compared.
    #[error("policy denied: insufficient blast radius")]
    BlastRadius,
    /// The bearer token is not an agent identity token.
    #[error("the bearer token is not an agent's own identity token")]
    NotAnIdentityToken,
    /// No exchange would accept the token: its lineage is too long.
    #[error("the agent was renewed across too many signing keys: issue a new identity")]
    RenewedTooOften,
    /// The agent or one of its ancestors is revoked.
    #[error("the agent is revoked")]
    Revoked,
    /// The agent has expired.
    #[error("the agent has expired")]
    Ended,
    /// No such agent, or one of another caller; the response does not distinguish them.
    #[error("there is no agent with this agent_id")]
    UnknownAgent,
    /// No policy has been loaded.
    #[error("no policy is loaded")]
    NoPolicy,
    /// This node has no signing key to use.
    #[error("this node cannot sign tokens now")]
    CannotSign(#[source] keyring::Error),
    /// The cluster is not bootstrapped.
    #[error("the cluster is starting")]
    NotBootstrapped,
    /// The state refused, or could not be read or written, or the outcome is unknown.
    #[error(transparent)]
    State(#[from] state::Error),
    /// Any other error; never the caller's fault.
    #[error("internal error")]
    Internal(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    pub(super) fn internal(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Internal(error.into())
    }

    /// `apply` refused a new agent. Its errors about an agent concern the parent.
    pub(super) fn of_issue(error: state::Error) -> Self {
        match error {
            state::Error::Refused(Refusal::UnknownAgent) => Self::ParentUnknown,
            state::Error::Refused(Refusal::AgentRevoked) => Self::ParentRevoked,
            state::Error::Refused(Refusal::AgentEnded) => Self::ParentEnded,
            other => Self::State(other),
        }
    }

    /// `apply` refused a revocation.
    pub(super) fn of_revocation(error: state::Error) -> Self {
        match error {
            state::Error::Refused(Refusal::UnknownAgent | Refusal::NotTheOwner) => Self::UnknownAgent,
            other => Self::State(other),
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
        Self::State(error.into())
    }
}
