//! Reasons for which an exchange is refused. `api` maps each to a status and a code.

use crate::peer_tokens::Refused;
use crate::policy::{Denial, DenialKind};
use crate::state::Refusal;
use crate::{keyring, state, token};

/// Reason for which an exchange is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `grant_type` is not that of RFC 8693 §2.1.
    #[error("grant_type must be urn:ietf:params:oauth:grant-type:token-exchange")]
    UnsupportedGrantType,
    /// A field is missing or breaks its rule.
    #[error("{field}: {rule}")]
    Invalid {
        /// The field, for example `execution_scope.htm`.
        field: &'static str,
        rule: &'static str,
    },
    /// `subject_token_type` is not supported (contract §3).
    #[error("unsupported subject_token_type")]
    UnsupportedSubjectTokenType,
    /// `actor_token_type` is not supported (contract §3).
    #[error("unsupported actor_token_type")]
    UnsupportedActorTokenType,
    /// More than one audience (RFC 8707 §2); a token has one.
    #[error("exactly one audience or resource may be requested")]
    SeveralAudiences,
    /// The subject token is not valid. The reason goes to the log only.
    #[error("subject_token is not valid")]
    SubjectToken(#[source] token::Error),
    /// The actor token is not valid. The reason goes to the log only.
    #[error("actor_token is not valid")]
    ActorToken(#[source] token::Error),
    /// The issuer's keys are not available now.
    #[error("the keys of the token's issuer cannot be fetched now")]
    IssuerUnavailable,
    /// A credential that came from a peer fabric is not judged now, or the peer or its ceiling does not admit it.
    #[error(transparent)]
    Peer(Refused),
    /// `may_act` of the subject token names another actor (RFC 8693 §4.4).
    #[error("may_act of the subject token does not name this actor")]
    ActorNotNamed,
    /// The actor is already in the chain, or is its subject.
    #[error("the actor is already part of the delegation chain")]
    ActorLoop,
    /// The actor has no remaining depth.
    #[error("delegation depth exhausted: the agent was issued with depth 0, or has used it up")]
    DelegationDepthExhausted,
    /// More than [`crate::limits::ACT_DEPTH_MAX`] actors.
    #[error("the delegation chain has too many actors")]
    ChainTooLong,
    /// More than [`crate::limits::LINEAGE_MAX`] digests.
    #[error("the token would derive from too many facts")]
    LineageTooLong,
    /// More than [`crate::limits::VIA_MAX`] peer fabrics.
    #[error("subject and actor came through too many fabrics")]
    TooManyFabrics,
    /// A workload of this peer fabric presents nothing that came from it.
    #[error("a caller of the peer fabric {0} exchanges only credentials that came from it")]
    CallerOfPeer(String),
    /// The caller is blocked, whatever credential it presents.
    #[error("the caller is blocked")]
    CallerBlocked,
    /// No policy has been loaded.
    #[error("no policy is loaded")]
    NoPolicy,
    /// Policy denied the request.
    #[error("policy denied: {}", .0.reason)]
    Denied(Denial),
    /// Policy did not decide within its timeout; a retry may succeed.
    #[error("policy did not decide in time")]
    PolicyTimedOut(Denial),
    /// The requested scope and the grant have nothing in common.
    #[error("policy denied: nothing of the requested scope can be granted")]
    NothingGranted {
        /// The words of each party, for operators.
        detail: String,
    },
    /// The blast radii of subject, actor and policy cannot be compared.
    #[error("policy denied: insufficient blast radius")]
    BlastRadius {
        /// Those of each party, for operators.
        detail: String,
    },
    /// The token would be larger than [`crate::limits::TOKEN_BYTES_MAX`], so that no verifier would accept it.
    #[error("the token would be larger than 16 KiB, which no verifier accepts: request less scope")]
    TokenTooLarge,
    /// The token that a retry would repeat has expired or was revoked.
    #[error("Idempotency-Key: the token of the first request has expired or was revoked")]
    TokenEnded,
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
    /// Value of the metric label `result`.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::UnsupportedGrantType | Self::Invalid { .. } | Self::SeveralAudiences => "invalid_request",
            Self::UnsupportedSubjectTokenType | Self::UnsupportedActorTokenType => "unsupported_token_type",
            Self::SubjectToken(_) => "subject_token",
            Self::ActorToken(_) => "actor_token",
            Self::IssuerUnavailable => "issuer_unavailable",
            Self::Peer(Refused::Unjudged { .. }) => "peer_unjudged",
            Self::Peer(_) | Self::CallerOfPeer(_) => "peer",
            Self::ActorNotNamed | Self::ActorLoop | Self::DelegationDepthExhausted | Self::ChainTooLong => {
                "delegation"
            }
            Self::CallerBlocked => "caller_blocked",
            Self::LineageTooLong | Self::TooManyFabrics => "lineage",
            Self::Denied(denial) => match denial.kind {
                DenialKind::Audience => "audience",
                DenialKind::Policy => "policy",
                DenialKind::Failed | DenialKind::TimedOut | DenialKind::Undefined | DenialKind::Malformed => {
                    "policy_failed"
                }
            },
            Self::PolicyTimedOut(_) => "policy_failed",
            Self::NothingGranted { .. } | Self::TokenTooLarge => "scope",
            Self::BlastRadius { .. } => "blast_radius",
            Self::TokenEnded => "idempotency_key",
            Self::NoPolicy | Self::CannotSign(_) | Self::NotBootstrapped => "unavailable",
            Self::State(error) => match error {
                state::Error::Refused(Refusal::NonceSpent) => "nonce_spent",
                state::Error::Refused(Refusal::IdempotencyKeyReused) => "idempotency_key",
                state::Error::Refused(Refusal::CallerRefused) => "caller_blocked",
                state::Error::Refused(Refusal::TooManyNonces | Refusal::TooManyIdempotencyKeys) => "too_many",
                state::Error::Lease(_)
                | state::Error::Write(_)
                | state::Error::Refused(Refusal::TokenEnded) => "unavailable",
                _ => "internal",
            },
            Self::Internal(_) => "internal",
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
