//! The replicated resources, one file each: their commands, rows and reads.

pub(crate) mod agents;
pub(crate) mod audit_blocks;
pub(crate) mod encryption_keys;
pub(crate) mod events;
pub(crate) mod feature_levels;
pub(crate) mod feed;
pub(crate) mod issuer_quotas;
pub(crate) mod join_token;
pub(crate) mod ledger;
pub(crate) mod nodes;
pub(crate) mod nonces;
pub(crate) mod operator_revocations;
pub(crate) mod outbox;
pub(crate) mod peers;
pub(crate) mod policies;
pub(crate) mod restore;
pub(crate) mod revocation_index;
pub(crate) mod revocations;
pub(crate) mod revoked_fact;
pub(crate) mod signals;
pub(crate) mod signing_keys;
pub(crate) mod streams;
pub(crate) mod subject_blocks;
pub(crate) mod tools;

use self::nodes::NodeError;
use super::Error;
use super::command::Refusal;
use crate::cluster;

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unspecified => Self::Undecodable,
            Refusal::AlreadyBootstrapped => Self::AlreadyBootstrapped,
            Refusal::NonceSpent => Self::NonceSpent,
            Refusal::TooManyNonces => Self::TooManyNonces,
            Refusal::TokenSpent => Self::TokenSpent,
            Refusal::TooManySpentTokens => Self::TooManySpentTokens,
            Refusal::TooManyIdempotencyKeys => Self::TooManyIdempotencyKeys,
            Refusal::IdempotencyKeyReused => Self::IdempotencyKeyReused,
            Refusal::UnknownSigningKey => Self::UnknownSigningKey,
            Refusal::NoAgedSuccessor => Self::NoAgedSuccessor,
            Refusal::PolicyChanged => Self::PolicyChanged,
            Refusal::TooManySigningKeys => Self::TooManySigningKeys,
            Refusal::ToolExists => Self::ToolExists,
            Refusal::UnknownTool => Self::UnknownTool,
            Refusal::NotTheOwner => Self::NotTheOwner,
            Refusal::PreconditionFailed => Self::PreconditionFailed,
            Refusal::TooManyTools => Self::TooManyTools,
            Refusal::UnknownAgent => Self::UnknownAgent,
            Refusal::AgentRevoked => Self::AgentRevoked,
            Refusal::AgentEnded => Self::AgentEnded,
            Refusal::TooManyAgents => Self::TooManyAgents,
            Refusal::TooManyEncryptionKeys => Self::TooManyEncryptionKeys,
            Refusal::UnknownEncryptionKey => Self::UnknownEncryptionKey,
            Refusal::AuditBlockMissing => Self::AuditBlockMissing,
            Refusal::JtiReused => Self::JtiReused,
            Refusal::RevocationQuota => Self::RevocationQuota,
            Refusal::TooManyRevocations => Self::TooManyRevocations,
            Refusal::UnknownBlock => Self::UnknownBlock,
            Refusal::UnknownStream => Self::UnknownStream,
            Refusal::TooManyStreams => Self::TooManyStreams,
            Refusal::StreamChanged => Self::StreamChanged,
            Refusal::StreamNotEnabled => Self::StreamNotEnabled,
            Refusal::VerifiedTooOften => Self::VerifiedTooOften,
            Refusal::TooManySubjects => Self::TooManySubjects,
            Refusal::CallerRefused => Self::CallerRefused,
            Refusal::UnknownNode => Self::Node(NodeError::Unknown),
            Refusal::NodeRemoved => Self::Node(NodeError::Removed),
            Refusal::NodeNotJoined => Self::Node(NodeError::NotJoined),
            Refusal::LastVoter => Self::Node(NodeError::LastVoter),
            Refusal::UnknownJoinToken => Self::Node(NodeError::UnknownToken),
            Refusal::JoinTokenExpired => Self::Node(NodeError::TokenExpired),
            Refusal::JoinTokenUsed => Self::Node(NodeError::TokenUsed),
            Refusal::TooManyJoinTokens => Self::Node(NodeError::TooManyTokens),
            Refusal::TooManyMembers => Self::Node(NodeError::TooManyMembers),
            Refusal::NotReplaceable => Self::Node(NodeError::NotReplaceable),
            Refusal::NodeAddressUsed => Self::Node(NodeError::AddressUsed),
            Refusal::ClusterWithoutListener => Self::Node(NodeError::NoListener),
            Refusal::NodeIdsExhausted => Self::Node(NodeError::IdsExhausted),
            Refusal::NodeRoleNotAllowed => Self::Node(NodeError::RoleNotAllowed),
            Refusal::FeatureLevelTooLow => Self::FeatureLevelTooLow,
            Refusal::JoinerTooOld => Self::Node(NodeError::JoinerTooOld),
            Refusal::MembersChanged => Self::MembersChanged,
            Refusal::UnknownPeer => Self::UnknownPeer,
            Refusal::TooManyPeers => Self::TooManyPeers,
            Refusal::PeerGenerationChanged => Self::PeerGenerationChanged,
            Refusal::PeerEntriesMissing => Self::PeerEntriesMissing,
            Refusal::PeerOverQuota => Self::PeerOverQuota,
            Refusal::PeerImportMalformed => Self::PeerImportMalformed,
            Refusal::PeerNotApprovable => Self::PeerNotApprovable,
            // This proposal was not applied, but an earlier or later one of the same command may be.
            Refusal::GivenUp | Refusal::TooManySubmissions => Self::Write(cluster::Error::OutcomeUnknown),
        }
    }
}
