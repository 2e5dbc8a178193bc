//! Why a signal was not accepted, by reason. `api` maps each to a status and a code, once for each form.

use crate::cluster;
use crate::policy::{Denial, DenialKind};
use crate::token::security_event;
use crate::{json, state};

/// Why a signal was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No issuer of signals is configured.
    #[error("the receiver of signals is not configured: there is no [[signals]]")]
    NotConfigured,
    /// The policy has no rule about signals.
    #[error("the receiver of signals is not configured: the policy has no rule data.svc.signals.decision")]
    NoRule,
    /// The object is not acceptable JSON.
    #[error(transparent)]
    Json(#[from] json::Error),
    /// The token breaks a rule.
    #[error(transparent)]
    Set(#[from] security_event::Error),
    /// A member breaks a rule that only the receiver knows.
    #[error("{field}: {rule}")]
    Invalid {
        /// Its path.
        field: String,
        /// What it must be.
        rule: &'static str,
    },
    /// What is not signed comes from nobody who may say it in this issuer's name; or there is no such
    /// issuer: which of the two is not said.
    #[error("iss: the caller may not send unsigned signals in the name of this issuer")]
    NotItsSpeaker,
    /// The caller may say it in this issuer's name, but is blocked, or was revoked since.
    #[error("iss: the caller is revoked")]
    SpeakerRevoked,
    /// The caller was blocked, or its token revoked, before the signal was applied.
    #[error("the caller is blocked or revoked")]
    CallerRefused,
    /// The subject is not the issuer's to revoke.
    #[error("{field}: the issuer has no authority over this subject")]
    OutsideAuthority {
        /// The member that names it.
        field: String,
    },
    /// The subject is a caller with `cluster.admin`, which this issuer may not block.
    #[error("sub_id: the issuer may not block an operator: see signals.may_block_operators")]
    BlocksOperator,
    /// The issuer used its `jti` for a token with other claims.
    #[error("jti: the issuer used it for another security event token")]
    JtiReused,
    /// Policy says no.
    #[error("policy denied: {}", .0.reason)]
    Denied(Denial),
    /// Policy did not answer in time, which says nothing about the signal.
    #[error("policy did not decide in time")]
    PolicyTimedOut(Denial),
    /// This node does not know whom it may hear.
    #[error(transparent)]
    Stale(#[from] state::LeaseError),
    /// The issuer has revoked as much as it may.
    #[error("the issuer has revoked as much as it may in a minute; an operator can allow it more")]
    Quota {
        /// When it may again.
        retry_after_secs: u32,
    },
    /// The cluster remembers as much as it can.
    #[error("the cluster remembers as many revocations as it can")]
    TooManyRevocations,
    /// The issuer's keys are not known now.
    #[error("the keys of the issuer are not available now")]
    IssuerUnavailable,
    /// No policy has been loaded.
    #[error("no policy is loaded")]
    NoPolicy,
    /// It could not be written, or is not known to be.
    #[error("{0}")]
    Write(#[source] cluster::Error),
    /// Anything else, never the caller's fault.
    #[error("internal error")]
    Internal(#[source] state::Error),
}

/// A signal that was not accepted, for the answer and the log.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub error: Error,
    /// The issuer it names, if it came so far.
    pub iss: String,
    /// Its `jti`, if its sender was verified.
    pub jti: String,
}

impl Error {
    /// The label of the metric.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::NotConfigured | Self::NoRule => "not_configured",
            Self::Json(_) | Self::Set(_) | Self::Invalid { .. } => "invalid",
            Self::CallerRefused
            | Self::NotItsSpeaker
            | Self::SpeakerRevoked
            | Self::OutsideAuthority { .. }
            | Self::BlocksOperator => "outside_authority",
            Self::JtiReused => "conflict",
            Self::Denied(_) => "denied",
            Self::Quota { .. } => "quota",
            Self::PolicyTimedOut(_)
            | Self::Stale(_)
            | Self::TooManyRevocations
            | Self::IssuerUnavailable
            | Self::NoPolicy
            | Self::Write(_) => "unavailable",
            Self::Internal(_) => "error",
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
