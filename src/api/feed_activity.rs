//! Feed activities of exchanges and verifications (contract §7): subject, target and result. Nothing beyond the response
//! and the audit, and no token.

use std::time::Duration;

use super::error::Refused as _;
use crate::exchange::{self, Minted};
use crate::feed::{Activity, ActivityKind, ActivityResult};
use crate::id::WorkloadId;
use crate::peer_tokens::Refused;
use crate::state::{self, Refusal};
use crate::tools::checks::Failure;

/// A finished exchange.
pub struct Exchanged<'e> {
    /// The result.
    pub result: &'e Result<Minted, exchange::Error>,
    /// The subject of the subject token, if it was verified.
    pub subject: Option<WorkloadId>,
    /// The authenticated caller.
    pub caller: Option<&'e str>,
    /// The requested audience.
    pub audience: Option<String>,
    /// The duration.
    pub duration: Duration,
}

impl From<Exchanged<'_>> for Activity {
    fn from(exchanged: Exchanged<'_>) -> Self {
        let Exchanged { result, subject, caller, audience, duration } = exchanged;
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
                let text = error.text();
                let detail = match (&subject, caller) {
                    (None, Some(caller)) => format!("{text}; the caller is {caller}"),
                    _ => text,
                };
                let subject = subject.map(|subject| subject.to_string()).unwrap_or_default();
                Self { kind, subject, target: audience, result, detail: Some(detail), duration }
            }
        }
    }
}

/// Whether the refusal is a denial: because of the subject, actor or grant, not because of form or availability.
#[must_use]
pub fn is_denial(error: &exchange::Error) -> bool {
    use exchange::Error as E;
    match error {
        E::SubjectToken(_)
        | E::ActorToken(_)
        | E::ActorNotNamed
        | E::ActorLoop
        | E::DelegationDepthExhausted
        | E::ChainTooLong
        | E::LineageTooLong
        | E::TooManyFabrics
        | E::CallerOfPeer(_)
        | E::CallerBlocked
        | E::Denied(_)
        | E::NothingGranted { .. }
        | E::TokenTooLarge
        | E::BlastRadius { .. }
        | E::Peer(Refused::Token(_) | Refused::Paused(_) | Refused::AboveCeiling { .. })
        | E::State(state::Error::Refused(Refusal::NonceSpent | Refusal::CallerRefused)) => true,
        E::UnsupportedGrantType
        | E::Invalid { .. }
        | E::UnsupportedSubjectTokenType
        | E::UnsupportedActorTokenType
        | E::SeveralAudiences
        | E::IssuerUnavailable
        | E::Peer(Refused::Unjudged { .. })
        | E::PolicyTimedOut(_)
        | E::NoPolicy
        | E::TokenEnded
        | E::CannotSign(_)
        | E::NotBootstrapped
        | E::State(_)
        | E::Internal(_) => false,
    }
}

/// The activity of a token that failed a check at a tool.
#[must_use]
pub fn refused(
    failure: &Failure,
    subject: Option<WorkloadId>,
    tool_id: Option<String>,
    duration: Duration,
) -> Activity {
    Activity {
        kind: ActivityKind::Denial,
        subject: subject.map(|subject| subject.to_string()).unwrap_or_default(),
        target: tool_id,
        result: ActivityResult::Denied,
        detail: Some(failure.to_string()),
        duration,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Corrupt;

    /// Regression: a subscriber read the text of a corrupt row.
    #[test]
    fn fault_of_the_node_is_not_described_to_subscribers() {
        let result = Err(exchange::Error::State(Corrupt::row("of-the-row").into()));
        let (subject, duration) = (None, Duration::ZERO);
        let exchanged = Exchanged { result: &result, subject, caller: Some("c"), audience: None, duration };
        let detail = Activity::from(exchanged).detail;
        assert_eq!(detail.as_deref(), Some("internal error; the caller is c"));
    }
}
