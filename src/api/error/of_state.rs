//! Refusals of the replicated state as responses.

use axum::http::StatusCode;

use super::{Code, Error, FULL_RETRY_SECS};
use crate::state;

impl From<state::Error> for Error {
    fn from(error: state::Error) -> Self {
        use state::Error as E;
        let description = error.to_string();
        match error {
            E::Write(_) | E::Lease(_) | E::ReadIndex(_) | E::TooManyRevocations => {
                Self::unavailable(description)
            }
            // Both quotas are per minute.
            E::RevocationQuota | E::VerifiedTooOften => Self::too_many_requests(&description, 60),
            E::TooManyNonces
            | E::TooManySpentTokens
            | E::TooManyIdempotencyKeys
            | E::TooManyEncryptionKeys => Self::too_many_requests(&description, FULL_RETRY_SECS),
            E::NonceSpent | E::TokenSpent | E::StreamNotEnabled => Self::invalid_request(description),
            E::IdempotencyKeyReused => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, Code::InvalidRequest, description)
            }
            E::UnknownSigningKey
            | E::UnknownTool
            | E::UnknownAgent
            | E::UnknownEncryptionKey
            | E::UnknownBlock
            | E::UnknownStream => Self::not_found(description),
            E::NotTheOwner | E::AgentRevoked | E::AgentEnded | E::CallerRefused => {
                Self::forbidden(description)
            }
            E::PreconditionFailed => {
                Self::new(StatusCode::PRECONDITION_FAILED, Code::InvalidRequest, description)
            }
            E::NoAgedSuccessor
            | E::JtiReused
            | E::TooManySigningKeys
            | E::PolicyChanged
            | E::AlreadyBootstrapped
            | E::ToolExists
            | E::TooManyTools
            | E::TooManyAgents
            | E::TooManyStreams
            | E::StreamChanged
            | E::TooManySubjects => Self::new(StatusCode::CONFLICT, Code::InvalidRequest, description),
            E::FeatureLevelTooLow | E::NotSupported { .. } | E::MembersChanged => {
                Self::new(StatusCode::CONFLICT, Code::InvalidRequest, description)
            }
            E::Node(error) => Self::of_node(error, description),
            E::Damaged(corrupt) => Self::internal(corrupt),
            E::Undecodable | E::AuditBlockMissing => Self::internal(description),
        }
    }
}

impl Error {
    /// A refused change of nodes.
    fn of_node(error: state::NodeError, description: String) -> Self {
        use state::NodeError as E;
        match error {
            E::RoleNotAllowed => Self::invalid_request(description),
            E::Unknown => Self::not_found(description),
            E::UnknownToken | E::TokenExpired => Self::forbidden(description),
            E::Removed
            | E::NotJoined
            | E::LastVoter
            | E::TokenUsed
            | E::TooManyTokens
            | E::TooManyMembers
            | E::NotReplaceable
            | E::AddressUsed
            | E::NoListener
            | E::JoinerTooOld
            | E::IdsExhausted => Self::new(StatusCode::CONFLICT, Code::InvalidRequest, description),
        }
    }
}
