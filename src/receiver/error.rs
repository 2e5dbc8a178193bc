//! Errors of the receiver. `api` maps each to a status and a code, once per form of SET.

use crate::policy::{Denial, DenialKind};
use crate::state::Refusal;
use crate::token::security_event;
use crate::{json, state};

/// Why a signal was rejected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No `[[signals]]` is configured.
    #[error("the receiver of signals is not configured: there is no [[signals]]")]
    NotConfigured,
    /// The policy has no rule for signals.
    #[error("the receiver of signals is not configured: the policy has no rule data.svc.signals.decision")]
    NoRule,
    /// The object is not strict JSON.
    #[error(transparent)]
    Json(#[from] json::Error),
    /// The token is invalid.
    #[error(transparent)]
    Set(#[from] security_event::Error),
    /// A field breaks a rule of the receiver.
    #[error("{field}: {rule}")]
    Invalid { field: String, rule: &'static str },
    /// The caller may not send plain SETs of this issuer, or there is no such issuer. The caller cannot tell which.
    #[error("iss: the caller may not send unsigned signals in the name of this issuer")]
    SpeakerNotAllowed,
    /// The caller may speak for this issuer, but is blocked, or was revoked after `iat`.
    #[error("iss: the caller is revoked")]
    SpeakerRevoked,
    /// The issuer may not revoke the subject.
    #[error("{field}: the issuer has no authority over this subject")]
    OutsideAuthority {
        /// Path of the field that names it.
        field: String,
    },
    /// The subject is a caller with `cluster.admin`, which this issuer may not block.
    #[error("sub_id: the issuer may not block an operator: see signals.may_block_operators")]
    BlocksOperator,
    /// Policy denied it.
    #[error("policy denied: {}", .0.reason)]
    Denied(Denial),
    /// Policy did not decide in time: no statement about the signal.
    #[error("policy did not decide in time")]
    PolicyTimedOut(Denial),
    /// The issuer's quota of revocations per minute is used up.
    #[error(
        "the issuer has reached its revocation quota for this minute; an operator can grant an allowance"
    )]
    Quota { retry_after_secs: u32 },
    /// The issuer's keys could not be fetched.
    #[error("the keys of the issuer are not available")]
    IssuerUnavailable,
    /// No policy has been loaded.
    #[error("no policy is loaded")]
    NoPolicy,
    /// The state refused, or could not be read or written, or the outcome is unknown.
    #[error(transparent)]
    State(state::Error),
}

/// A rejected signal, for the response and the log.
#[derive(Debug)]
pub struct RejectedSignal {
    pub error: Error,
    /// Its issuer, if it was parsed that far.
    pub iss: String,
    /// Its `jti`, if its sender was verified.
    pub jti: String,
}

impl Error {
    /// Value of the metric label `result`.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::NotConfigured | Self::NoRule => "not_configured",
            Self::Json(_) | Self::Set(_) | Self::Invalid { .. } => "invalid",
            Self::SpeakerNotAllowed
            | Self::SpeakerRevoked
            | Self::OutsideAuthority { .. }
            | Self::BlocksOperator => "outside_authority",
            Self::Denied(_) => "denied",
            Self::Quota { .. } => "quota",
            Self::PolicyTimedOut(_) | Self::IssuerUnavailable | Self::NoPolicy => "unavailable",
            Self::State(error) => match error {
                state::Error::Refused(Refusal::JtiReused) => "conflict",
                state::Error::Refused(Refusal::CallerRefused) => "outside_authority",
                state::Error::Refused(Refusal::TooManyRevocations)
                | state::Error::Lease(_)
                | state::Error::ReadIndex(_)
                | state::Error::PeersSilent(_)
                | state::Error::Write(_) => "unavailable",
                _ => "error",
            },
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
