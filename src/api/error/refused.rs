//! The refusals of the lower layers, each as one row of the map.

use super::{Code, Error, FailedCheck, INTERNAL, Refusal};
use crate::api::check_result::CheckResult;
use crate::cluster::{Corrupt, TransferError};
use crate::identity::encryption_keys;
use crate::policy::{Denial, DenialKind};
use crate::tools::audit::{self, trail::ReadError};
use crate::tools::{entry, registry, verify};
use crate::transmitter::{poll, set_builder, streams};
use crate::{
    active_policy, exchange, federation, feed, identity, json, keyring, peer_tokens, receiver, revocation,
    state,
};

/// Quotas are per minute, and TTL buckets expire by the minute.
const A_MINUTE: Refusal = Refusal::TooMany { retry_after_secs: 60 };

/// An error of a lower layer that a request can meet.
pub trait Refused: std::error::Error {
    /// Its row of the map.
    fn refusal(&self) -> Refusal;

    /// The text of the response. A fault of this node is not described to its caller.
    fn text(&self) -> String {
        match self.refusal() {
            Refusal::Internal => INTERNAL.to_owned(),
            _ => self.to_string(),
        }
    }

    /// For the log only.
    fn detail(&self) -> Option<String> {
        None
    }

    /// The check that the token in the request failed.
    fn failed_check(&self) -> Option<FailedCheck> {
        None
    }
}

impl<E: Refused> From<E> for Error {
    fn from(error: E) -> Self {
        let failed = error.failed_check().map(Box::new);
        let refusal = error.refusal();
        let is_internal = matches!(refusal, Refusal::Internal);
        let detail = error.detail().or_else(|| is_internal.then(|| error.to_string()));
        Self { failed, detail, ..Self::new(refusal, error.text()) }
    }
}

impl Error {
    /// A refused exchange in a form: policy and scope refusals are 400 with the codes of RFC 8693 and RFC 6749.
    #[must_use]
    pub fn of_form(error: exchange::Error) -> Self {
        use exchange::Error as E;
        let code = match &error {
            E::Denied(denial) if denial.kind == DenialKind::Audience => Code::InvalidTarget,
            E::SeveralAudiences => Code::InvalidTarget,
            E::NothingGranted { .. } | E::TokenTooLarge => Code::InvalidScope,
            // RFC 8693 §2.2.2: a subject or actor token that is "unacceptable based on policy"
            E::ActorNotNamed
            | E::ActorLoop
            | E::DelegationDepthExhausted
            | E::ChainTooLong
            | E::LineageTooLong
            | E::TooManyFabrics
            | E::CallerOfPeer(_) => Code::InvalidRequest,
            E::Denied(_) | E::BlastRadius { .. } => Code::AccessDenied,
            E::Peer(peer_tokens::Refused::Paused(_) | peer_tokens::Refused::AboveCeiling { .. }) => {
                Code::AccessDenied
            }
            _ => return error.into(),
        };
        Self { refusal: Refusal::Form(code), ..error.into() }
    }
}

/// The code of a refused signed token (RFC 8935 §2.3); `None` if it is refused as on any route.
pub fn set_error_code(error: &receiver::Error) -> Option<&'static str> {
    use receiver::Error as E;
    match error {
        E::Set(error) => Some(error.err()),
        E::Invalid { .. } | E::State(state::Error::Refused(state::Refusal::JtiReused)) => {
            Some("invalid_request")
        }
        E::OutsideAuthority { .. } | E::BlocksOperator | E::Denied(_) => Some("access_denied"),
        _ => None,
    }
}

macro_rules! one_row {
    ($($error:ty: $refusal:ident;)*) => {$(
        impl Refused for $error {
            fn refusal(&self) -> Refusal {
                Refusal::$refusal
            }
        }
    )*};
}

one_row! {
    json::Error: Invalid;
    entry::Error: Invalid;
    Corrupt: Internal;
    audit::Error: Unavailable;
}

impl Refused for state::Error {
    fn refusal(&self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal.refusal(),
            Self::Write(_) | Self::PeersSilent(_) | Self::Lease(_) | Self::ReadIndex(_) => {
                Refusal::Unavailable
            }
            Self::NotSupported { .. } => Refusal::Conflict,
            Self::Damaged(_) | Self::Undecodable => Refusal::Internal,
        }
    }
}

impl Refused for state::Refusal {
    fn refusal(&self) -> Refusal {
        match self {
            Self::TooManyRevocations
            | Self::GivenUp
            | Self::TooManySubmissions
            | Self::TokenEnded
            | Self::LogTimeBehind => Refusal::Unavailable,
            Self::RevocationQuota
            | Self::VerifiedTooOften
            | Self::TooManyNonces
            | Self::TooManySpentTokens
            | Self::TooManyIdempotencyKeys
            | Self::TooManyEncryptionKeys => A_MINUTE,
            Self::NonceSpent | Self::TokenSpent | Self::StreamNotEnabled | Self::NodeRoleNotAllowed => {
                Refusal::Invalid
            }
            Self::IdempotencyKeyReused => Refusal::KeyReused,
            Self::UnknownSigningKey
            | Self::UnknownTool
            | Self::UnknownAgent
            | Self::UnknownEncryptionKey
            | Self::UnknownBlock
            | Self::UnknownStream
            | Self::UnknownNode
            | Self::UnknownPeer => Refusal::NotFound,
            Self::NotTheOwner
            | Self::AgentRevoked
            | Self::AgentEnded
            | Self::CallerRefused
            | Self::UnknownJoinToken
            | Self::JoinTokenExpired => Refusal::Denied,
            Self::PreconditionFailed => Refusal::PreconditionFailed,
            Self::NoAgedSuccessor
            | Self::JtiReused
            | Self::TooManySigningKeys
            | Self::PolicyChanged
            | Self::AlreadyBootstrapped
            | Self::ToolExists
            | Self::TooManyTools
            | Self::TooManyAgents
            | Self::TooManyStreams
            | Self::StreamChanged
            | Self::TooManySubjects
            | Self::NodeRemoved
            | Self::NodeNotJoined
            | Self::LastVoter
            | Self::JoinTokenUsed
            | Self::TooManyJoinTokens
            | Self::TooManyMembers
            | Self::NotReplaceable
            | Self::NodeAddressUsed
            | Self::ClusterWithoutListener
            | Self::NodeIdsExhausted
            | Self::JoinerTooOld
            | Self::FeatureLevelTooLow
            | Self::MembersChanged
            | Self::TooManyPeers
            | Self::PeerGenerationChanged
            | Self::PeerEntriesMissing
            | Self::PeerOverQuota
            | Self::PeerImportMalformed
            | Self::PeerNotApprovable
            | Self::PeerHeld => Refusal::Conflict,
            Self::Unspecified | Self::AuditBlockMissing => Refusal::Internal,
        }
    }
}

impl Refused for TransferError {
    fn refusal(&self) -> Refusal {
        match self {
            Self::NotAVoter(_) => Refusal::Invalid,
            Self::NoOtherVoter => Refusal::Conflict,
            Self::NoLeader | Self::Failed(_) => Refusal::Unavailable,
        }
    }
}

impl Refused for keyring::Error {
    fn refusal(&self) -> Refusal {
        match self {
            Self::State(error) => error.refusal(),
            Self::NoUsableKey(_) => Refusal::Unavailable,
            Self::DoesNotTransmit(_) | Self::SuccessorTooYoung { .. } => Refusal::Conflict,
            Self::File { .. } | Self::TooOpen { .. } | Self::Key { .. } | Self::Generate(_) => {
                Refusal::Internal
            }
        }
    }
}

impl Refused for active_policy::Error {
    fn refusal(&self) -> Refusal {
        match self {
            Self::Refused(_) => Refusal::Invalid,
            Self::State(error) => error.refusal(),
            Self::NotActive => Refusal::Unavailable,
            Self::LoaderFailed(_) => Refusal::Internal,
        }
    }
}

impl Refused for peer_tokens::Refused {
    fn refusal(&self) -> Refusal {
        match self {
            Self::Token(_) => Refusal::Invalid,
            Self::Unjudged { .. } => Refusal::PeerUnjudged,
            Self::Paused(_) | Self::AboveCeiling { .. } => Refusal::Denied,
        }
    }
}

impl Refused for exchange::Error {
    fn refusal(&self) -> Refusal {
        match self {
            Self::UnsupportedGrantType => Refusal::UnsupportedGrantType,
            Self::Invalid { .. }
            | Self::UnsupportedSubjectTokenType
            | Self::UnsupportedActorTokenType
            | Self::SeveralAudiences
            | Self::SubjectToken(_)
            | Self::ActorToken(_)
            | Self::TokenEnded => Refusal::Invalid,
            Self::ActorNotNamed
            | Self::ActorLoop
            | Self::DelegationDepthExhausted
            | Self::ChainTooLong
            | Self::LineageTooLong
            | Self::TooManyFabrics
            | Self::CallerOfPeer(_)
            | Self::CallerBlocked
            | Self::Denied(_)
            | Self::NothingGranted { .. }
            | Self::TokenTooLarge
            | Self::BlastRadius { .. } => Refusal::Denied,
            Self::IssuerUnavailable
            | Self::PolicyTimedOut(_)
            | Self::NoPolicy
            | Self::CannotSign(_)
            | Self::NotBootstrapped => Refusal::Unavailable,
            Self::Peer(refused) => refused.refusal(),
            Self::State(error) => error.refusal(),
            Self::Internal(_) => Refusal::Internal,
        }
    }

    fn detail(&self) -> Option<String> {
        match self {
            Self::Denied(denial) | Self::PolicyTimedOut(denial) => denial.detail.clone(),
            Self::NothingGranted { detail } | Self::BlastRadius { detail } => Some(detail.clone()),
            _ => source(self),
        }
    }
}

impl Refused for identity::Error {
    fn refusal(&self) -> Refusal {
        match self {
            Self::NotConfigured => Refusal::NotConfigured,
            Self::Invalid { .. } => Refusal::Invalid,
            Self::UnknownAgent => Refusal::NotFound,
            Self::ParentUnknown
            | Self::ParentRevoked
            | Self::ParentEnded
            | Self::ParentTerminal
            | Self::ChainTooLong
            | Self::DepthExceedsParent { .. }
            | Self::CapabilityExceedsParent { .. }
            | Self::BlastRadiusExceedsParent { .. }
            | Self::Denied(_)
            | Self::NothingGranted { .. }
            | Self::BlastRadius
            | Self::NotAnIdentityToken
            | Self::Revoked
            | Self::RenewedTooOften
            | Self::CallerBlocked
            | Self::Ended => Refusal::Denied,
            Self::PolicyTimedOut(_) | Self::NoPolicy | Self::CannotSign(_) | Self::NotBootstrapped => {
                Refusal::Unavailable
            }
            Self::State(error) => error.refusal(),
            Self::Internal(_) => Refusal::Internal,
        }
    }

    fn detail(&self) -> Option<String> {
        match self {
            Self::Denied(denial) | Self::PolicyTimedOut(denial) => denial.detail.clone(),
            Self::NothingGranted { detail } => Some(detail.clone()),
            _ => source(self),
        }
    }
}

impl Refused for encryption_keys::Error {
    fn refusal(&self) -> Refusal {
        match self {
            Self::NotConfigured(error) => error.refusal(),
            Self::NotItsOwn | Self::AnotherSubject | Self::NotItsIssuer => Refusal::Denied,
            Self::WorkloadId(_) | Self::Key(_) => Refusal::Invalid,
            Self::NoAgent | Self::NoKey => Refusal::NotFound,
            Self::State(error) => error.refusal(),
            Self::Damaged(_) | Self::KeyDamaged(_) => Refusal::Internal,
        }
    }

    fn detail(&self) -> Option<String> {
        if let Self::NotConfigured(error) = self { error.detail() } else { None }
    }
}

impl Refused for federation::Error {
    fn refusal(&self) -> Refusal {
        match self {
            Self::Invalid { .. } => Refusal::Invalid,
            Self::Position(_) => Refusal::Conflict,
            Self::UnknownOrigin | Self::UnknownPeer | Self::NoRoots | Self::UnpublishableRoot(_) => {
                Refusal::NotFound
            }
            Self::NotConfigured => Refusal::NotConfigured,
            Self::Paused => Refusal::Denied,
            Self::TooManyCalls => Refusal::TooMany { retry_after_secs: 1 },
            Self::Busy | Self::Changing | Self::NotBootstrapped => Refusal::Unavailable,
            Self::State(error) => error.refusal(),
        }
    }
}

impl Refused for revocation::Error {
    fn refusal(&self) -> Refusal {
        match self {
            Self::Invalid { .. } | Self::NotOne => Refusal::Invalid,
            Self::UnknownAgent | Self::UnknownKey | Self::UnknownBlock => Refusal::NotFound,
            Self::Busy => Refusal::Unavailable,
            Self::State(error) => error.refusal(),
        }
    }
}

impl Refused for receiver::Error {
    fn refusal(&self) -> Refusal {
        match self {
            Self::NotConfigured | Self::NoRule => Refusal::NotConfigured,
            Self::Json(_) | Self::Set(_) | Self::Invalid { .. } => Refusal::Invalid,
            Self::SpeakerNotAllowed
            | Self::SpeakerRevoked
            | Self::OutsideAuthority { .. }
            | Self::BlocksOperator
            | Self::Denied(_) => Refusal::Denied,
            Self::Quota { retry_after_secs } => Refusal::TooMany { retry_after_secs: *retry_after_secs },
            Self::PolicyTimedOut(_) | Self::IssuerUnavailable | Self::NoPolicy => Refusal::Unavailable,
            Self::State(error) => error.refusal(),
        }
    }

    fn detail(&self) -> Option<String> {
        match self {
            Self::Denied(Denial { detail, .. }) | Self::PolicyTimedOut(Denial { detail, .. }) => {
                detail.clone()
            }
            _ => None,
        }
    }
}

impl Refused for streams::Error {
    fn refusal(&self) -> Refusal {
        match self {
            Self::NotConfigured => Refusal::NotConfigured,
            Self::Invalid { .. } => Refusal::Invalid,
            Self::State(error) => error.refusal(),
        }
    }
}

impl Refused for poll::Error {
    fn refusal(&self) -> Refusal {
        match self {
            Self::Invalid { .. } | Self::DeliveredByPush => Refusal::Invalid,
            Self::UnknownStream => Refusal::NotFound,
            Self::CallerBlocked => Refusal::Denied,
            Self::Busy => Refusal::Unavailable,
            Self::Set(error) => error.refusal(),
            Self::State(error) => error.refusal(),
        }
    }

    fn detail(&self) -> Option<String> {
        if let Self::Set(error) = self { error.detail() } else { None }
    }
}

impl Refused for set_builder::Error {
    fn refusal(&self) -> Refusal {
        Refusal::Unavailable
    }

    fn detail(&self) -> Option<String> {
        source(self)
    }
}

impl Refused for feed::Error {
    fn refusal(&self) -> Refusal {
        match self {
            Self::MalformedId | Self::UnknownType => Refusal::Invalid,
            Self::TooManySubscribers | Self::Unavailable => Refusal::Unavailable,
            Self::TooManySubscribersOfCaller => Refusal::TooMany { retry_after_secs: 1 },
            Self::Damaged(_) => Refusal::Internal,
        }
    }
}

impl Refused for ReadError {
    fn refusal(&self) -> Refusal {
        match self {
            Self::UnknownTool => Refusal::NotFound,
            Self::Unshipped(_) | Self::Busy => Refusal::Unavailable,
            Self::Registry(error) => error.refusal(),
            Self::Damaged(_) | Self::Unreadable => Refusal::Internal,
        }
    }

    fn detail(&self) -> Option<String> {
        match self {
            Self::Unshipped(error) => Some(error.to_string()),
            _ => None,
        }
    }
}

impl Refused for registry::Error {
    fn refusal(&self) -> Refusal {
        match self {
            Self::State(error) => error.refusal(),
            Self::Audit(error) => error.refusal(),
            Self::Unaudited { .. } => Refusal::Unavailable,
        }
    }

    fn detail(&self) -> Option<String> {
        if let Self::Unaudited { source, .. } = self { Some(source.to_string()) } else { None }
    }
}

impl Refused for verify::Error {
    fn refusal(&self) -> Refusal {
        match self {
            Self::Invalid { .. } => Refusal::Invalid,
            Self::UnknownTool => Refusal::NotFound,
            Self::Failed(_) => Refusal::Denied,
            Self::Behind | Self::Audit(_) => Refusal::Unavailable,
            Self::Peer(refused) => refused.refusal(),
            Self::State(error) => error.refusal(),
        }
    }

    fn detail(&self) -> Option<String> {
        if let Self::Audit(error) = self { Some(error.to_string()) } else { None }
    }

    fn failed_check(&self) -> Option<FailedCheck> {
        let Self::Failed(failure) = self else { return None };
        let failed = CheckResult::failed(failure.check);
        let checks = failure.trace.iter().copied().map(CheckResult::of).chain([failed]).collect();
        Some(FailedCheck { check: failure.check.into_str(), checks })
    }
}

fn source(error: &dyn std::error::Error) -> Option<String> {
    error.source().map(ToString::to_string)
}
