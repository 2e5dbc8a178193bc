//! The texts of the refusals of the log.

use std::fmt;

use super::command::Refusal;
use crate::limits::{JOIN_TOKENS_MAX, MEMBERS_MAX, NODE_ID_MAX};

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "the refusal is not known to this node",
            Self::GivenUp => "the command has an older number than its proposer resends",
            Self::TooManySubmissions => "limit of remembered commands of the proposer reached",
            Self::AlreadyBootstrapped => "the cluster is bootstrapped already",
            Self::NonceSpent => "execution_scope.nonce already used",
            Self::TooManyNonces => {
                "execution_scope.nonce: limit of stored nonces reached, for the cluster or for this caller"
            }
            Self::TokenSpent => "the token was already used",
            Self::TokenEnded => "the token has expired by log time",
            Self::LogTimeBehind => "log time is behind by more than five minutes, until clocks agree",
            Self::TooManySpentTokens => {
                "token: limit of stored used tokens reached, for the cluster or for this caller"
            }
            Self::TooManyIdempotencyKeys => {
                "Idempotency-Key: limit of stored keys reached, for the cluster or for this caller"
            }
            Self::IdempotencyKeyReused => "the Idempotency-Key was used with another request",
            Self::UnknownSigningKey => "there is no signing key with this kid",
            Self::NoAgedSuccessor => "no successor of this signing key is old enough to sign",
            Self::TooManySigningKeys => "the cluster has too many signing keys",
            Self::PolicyChanged => "the policy was changed by someone else",
            Self::ToolExists => "tool_id: is registered with other content; PUT replaces it",
            Self::UnknownTool => "there is no tool with this tool_id",
            Self::NotTheOwner => "it belongs to another caller",
            Self::PreconditionFailed => {
                "precondition of If-Match or If-None-Match failed: it was changed by someone else"
            }
            Self::TooManyTools => "tool limit reached, for the registry or for this caller",
            Self::UnknownAgent => "there is no agent with this agent_id",
            Self::AgentRevoked => "the agent is revoked",
            Self::AgentEnded => "the agent has expired",
            Self::TooManyAgents => "the cluster has too many agents, or too many of this caller",
            Self::TooManyEncryptionKeys => {
                "the subject has too many encryption keys, or its trust domain too many subjects with encryption keys"
            }
            Self::UnknownEncryptionKey => "the subject has no encryption key with this kid",
            Self::AuditBlockMissing => "an audit block is missing before this one",
            Self::JtiReused => "jti: the issuer used it for another security event token",
            Self::RevocationQuota => "the issuer has reached its revocation quota for this minute",
            Self::TooManyRevocations => "revocation limit of the cluster reached",
            Self::UnknownBlock => "there is no block with this id",
            Self::UnknownStream => "there is no stream with this stream_id",
            Self::TooManyStreams => "the cluster has too many streams, or too many of this caller",
            Self::StreamChanged => "the stream was changed by someone else",
            Self::StreamNotEnabled => "stream_id: the stream is not enabled",
            Self::VerifiedTooOften => "the stream was verified less than a minute ago",
            Self::TooManySubjects => "limit of subjects removed from the stream reached",
            Self::CallerRefused => "the caller is blocked or revoked",
            Self::UnknownNode => "node_id: there is no node with this id",
            Self::NodeRemoved => {
                "node_id: the node was removed; to return, it needs an empty data directory and a new join token"
            }
            Self::NodeNotJoined => "node_id: the node has not joined yet",
            Self::LastVoter => "node_id: it is the last voter, which cannot be removed",
            Self::UnknownJoinToken => "token: there is no such join token, or it has expired",
            Self::JoinTokenExpired => "token: the join token has expired",
            Self::JoinTokenUsed => "token: the join token was used by another disk or with another address",
            Self::TooManyJoinTokens => {
                return write!(f, "limit of {JOIN_TOKENS_MAX} unused join tokens reached");
            }
            Self::TooManyMembers => {
                return write!(f, "limit of {MEMBERS_MAX} members reached, unused join tokens included");
            }
            Self::NotReplaceable => "replaces: must be a voter that is not being removed or replaced",
            Self::NodeAddressUsed => "address: another node has it",
            Self::ClusterWithoutListener => {
                "this node was started without cluster.listen, so that no other node can reach it"
            }
            Self::NodeIdsExhausted => {
                return write!(f, "node ids are exhausted: the largest is {NODE_ID_MAX}");
            }
            Self::NodeRoleNotAllowed => {
                "role: must be voter or learner of a node that joins, and voter or removed of one that has joined"
            }
            Self::JoinerTooOld => {
                "feature_level: the cluster has a higher feature level than the program of the node supports: install \
                 a newer version on the node"
            }
            Self::FeatureLevelTooLow => {
                "the cluster has a lower feature level than this needs: upgrade every member, then run `trust-fabric \
                 cluster finalize`"
            }
            Self::MembersChanged => "the members of the cluster changed meanwhile: repeat the request",
            Self::UnknownPeer => "there is no peer with this issuer",
            Self::TooManyPeers => "the cluster has too many peers, counting those that were forgotten",
            Self::PeerGenerationChanged => "generation: the copy of the peer's ledger was replaced meanwhile",
            Self::PeerEntriesMissing => {
                "from: entries between the position of the copy and the import are missing"
            }
            Self::PeerOverQuota => "entries: quota of the peer reached, or the limit of all peers",
            Self::PeerImportMalformed => "the import of the peer's ledger is malformed",
            Self::PeerNotApprovable => {
                "the peer has no fault that can be approved: a log that was rolled back must begin a new incarnation"
            }
            Self::PeerHeld => {
                "the peer is held: a repair helps against a damaged copy only; approve or forget the peer"
            }
        })
    }
}
