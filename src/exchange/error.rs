//! Why an exchange was refused, by reason. `api` maps each to a status and a code, once.

use crate::policy::{Denial, DenialKind};
use crate::{cluster, keyring, state, token};

/// Why an exchange was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `grant_type` is not the one of RFC 8693 §2.1.
    #[error("grant_type must be urn:ietf:params:oauth:grant-type:token-exchange")]
    UnsupportedGrantType,
    /// A member is missing, or breaks its rule.
    #[error("{field}: {rule}")]
    Invalid {
        /// The member, for example `execution_scope.htm`.
        field: &'static str,
        /// The rule.
        rule: &'static str,
    },
    /// `subject_token_type` is none of the three of the specification.
    #[error("unsupported subject_token_type")]
    UnsupportedSubjectTokenType,
    /// `actor_token_type` is none of the three of the specification.
    #[error("unsupported actor_token_type")]
    UnsupportedActorTokenType,
    /// More than one audience (RFC 8707 §2; one per token).
    #[error("exactly one audience or resource may be asked for")]
    SeveralAudiences,
    /// The subject token is not acceptable. The reason is for the log only.
    #[error("subject_token is not valid")]
    SubjectToken(#[source] token::Error),
    /// The actor token is not acceptable. The reason is for the log only.
    #[error("actor_token is not valid")]
    ActorToken(#[source] token::Error),
    /// The keys of a credential's issuer cannot be had now.
    #[error("the keys of the token's issuer cannot be fetched now")]
    IssuerUnavailable,
    /// `may_act` of the subject token names somebody else (RFC 8693 §4.4).
    #[error("may_act of the subject token does not name this actor")]
    ActorNotNamed,
    /// The actor stands in the chain already, or is its subject.
    #[error("the actor is already part of the delegation chain")]
    ActorLoop,
    /// The actor may not act for others.
    #[error("delegation depth exhausted: the agent was issued with depth 0, or has used it up")]
    DelegationDepthExhausted,
    /// More than [`crate::limits::ACT_DEPTH_MAX`] actors.
    #[error("the delegation chain has too many actors")]
    ChainTooLong,
    /// More than [`crate::limits::LINEAGE_MAX`] facts.
    #[error("the token would derive from too many facts")]
    LineageTooLong,
    /// The caller is blocked, whoever's credential it brings.
    #[error("the caller is blocked")]
    CallerBlocked,
    /// No policy has been loaded.
    #[error("no policy is loaded")]
    NoPolicy,
    /// Policy says no.
    #[error("policy denied: {}", .0.reason)]
    Denied(Denial),
    /// Policy did not answer in time, which says nothing about what was asked.
    #[error("policy did not decide in time")]
    PolicyTimedOut(Denial),
    /// Nothing that was asked for is granted.
    #[error("policy denied: nothing of the requested scope can be granted")]
    NothingGranted,
    /// The blast radii of subject, actor and policy cannot be compared.
    #[error("policy denied: insufficient blast radius")]
    BlastRadius,
    /// The nonce was used before.
    #[error("execution_scope.nonce already used")]
    NonceSpent,
    /// The `Idempotency-Key` came with another body before.
    #[error("Idempotency-Key was used with another request")]
    IdempotencyKeyReused,
    /// A retry came after the token of the first request had ended, or was revoked.
    #[error("Idempotency-Key: the token of the first request has expired or was revoked")]
    TokenEnded,
    /// The cluster remembers as much as it can, or as it may of the caller.
    #[error("{0}")]
    TooMany(#[source] state::Error),
    /// This node cannot sign.
    #[error("this node cannot sign tokens now")]
    CannotSign(#[source] keyring::Error),
    /// The cluster has not begun its life.
    #[error("the cluster is starting")]
    NotBootstrapped,
    /// It cannot be proven that this node knows what was revoked.
    #[error(transparent)]
    Stale(state::Stale),
    /// The nonce could not be written, or is not known to be.
    #[error("{0}")]
    Write(#[source] cluster::Error),
    /// Anything else, never the caller's fault.
    #[error("internal error")]
    Internal(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// One word for the metric's label `result`.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::UnsupportedGrantType | Self::Invalid { .. } | Self::SeveralAudiences => "invalid_request",
            Self::UnsupportedSubjectTokenType | Self::UnsupportedActorTokenType => "unsupported_token_type",
            Self::SubjectToken(_) => "subject_token",
            Self::ActorToken(_) => "actor_token",
            Self::IssuerUnavailable => "issuer_unavailable",
            Self::ActorNotNamed | Self::ActorLoop | Self::DelegationDepthExhausted | Self::ChainTooLong => {
                "delegation"
            }
            Self::CallerBlocked => "caller_blocked",
            Self::LineageTooLong => "lineage",
            Self::Denied(denial) => match denial.kind {
                DenialKind::Audience => "audience",
                DenialKind::Policy => "policy",
                DenialKind::Failed | DenialKind::TimedOut | DenialKind::Undefined | DenialKind::Malformed => {
                    "policy_failed"
                }
            },
            Self::PolicyTimedOut(_) => "policy_failed",
            Self::NothingGranted => "scope",
            Self::BlastRadius => "blast_radius",
            Self::NonceSpent => "nonce_spent",
            Self::IdempotencyKeyReused | Self::TokenEnded => "idempotency_key",
            Self::TooMany(_) => "too_many",
            Self::NoPolicy
            | Self::CannotSign(_)
            | Self::NotBootstrapped
            | Self::Stale(_)
            | Self::Write(_) => "unavailable",
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

impl From<state::Error> for Error {
    fn from(error: state::Error) -> Self {
        match error {
            state::Error::NonceSpent => Self::NonceSpent,
            state::Error::IdempotencyKeyReused => Self::IdempotencyKeyReused,
            state::Error::CallerRefused => Self::CallerBlocked,
            full @ (state::Error::TooManyNonces | state::Error::TooManyIdempotencyKeys) => {
                Self::TooMany(full)
            }
            state::Error::Stale(error) => Self::Stale(error),
            state::Error::Write(error) => Self::Write(error),
            other => Self::Internal(other.into()),
        }
    }
}
