//! What the live feed tells of exchanges and verifications (contract §7): who, what for, how it ended. Not more than
//! is answered and audited, and no token.

use std::time::Duration;

use crate::exchange::{self, Minted};
use crate::feed::{Activity, ActivityKind, ActivityResult};
use crate::id::WorkloadId;
use crate::tools::checks::Failure;

/// An exchange that has ended.
pub struct Exchanged<'e> {
    /// How.
    pub result: &'e Result<Minted, exchange::Error>,
    /// The subject of the credential, if it was verified.
    pub whose: Option<WorkloadId>,
    /// Who brought it.
    pub caller: Option<&'e str>,
    /// What was asked for.
    pub audience: Option<String>,
    /// How long it took.
    pub duration: Duration,
}

impl From<Exchanged<'_>> for Activity {
    fn from(exchanged: Exchanged<'_>) -> Self {
        let Exchanged { result, whose, caller, audience, duration } = exchanged;
        match result {
            Ok(minted) => Self {
                kind: ActivityKind::Exchange,
                subject: minted.sub.clone(),
                target: Some(minted.aud.clone()),
                result: ActivityResult::Ok,
                detail: Some(format!("granted {}", minted.scope)),
                duration,
            },
            Err(error) => {
                let (kind, result) = if is_denial(error) {
                    (ActivityKind::Denial, ActivityResult::Denied)
                } else {
                    (ActivityKind::Exchange, ActivityResult::Error)
                };
                let detail = match (&whose, caller) {
                    (None, Some(caller)) => format!("{error}; the caller is {caller}"),
                    _ => error.to_string(),
                };
                let subject = whose.map(|whose| whose.to_string()).unwrap_or_default();
                Self { kind, subject, target: audience, result, detail: Some(detail), duration }
            }
        }
    }
}

/// Whether an exchange was refused for who or what it was for, and not for its form or for what this node lacks.
fn is_denial(error: &exchange::Error) -> bool {
    use exchange::Error as E;
    match error {
        E::SubjectToken(_)
        | E::ActorToken(_)
        | E::ActorNotNamed
        | E::ActorLoop
        | E::DelegationDepthExhausted
        | E::ChainTooLong
        | E::LineageTooLong
        | E::CallerBlocked
        | E::Denied(_)
        | E::NothingGranted
        | E::BlastRadius
        | E::NonceSpent => true,
        E::UnsupportedGrantType
        | E::Invalid { .. }
        | E::UnsupportedSubjectTokenType
        | E::UnsupportedActorTokenType
        | E::SeveralAudiences
        | E::IssuerUnavailable
        | E::PolicyTimedOut(_)
        | E::NoPolicy
        | E::IdempotencyKeyReused
        | E::TokenEnded
        | E::TooMany(_)
        | E::CannotSign(_)
        | E::NotBootstrapped
        | E::Stale(_)
        | E::Write(_)
        | E::Internal(_) => false,
    }
}

/// A token that a tool's server brought, and that failed a check.
#[must_use]
pub fn refused(
    failure: &Failure,
    whose: Option<WorkloadId>,
    tool_id: Option<String>,
    duration: Duration,
) -> Activity {
    Activity {
        kind: ActivityKind::Denial,
        subject: whose.map(|whose| whose.to_string()).unwrap_or_default(),
        target: tool_id,
        result: ActivityResult::Denied,
        detail: Some(failure.to_string()),
        duration,
    }
}
