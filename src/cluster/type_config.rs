//! openraft's type parameters and the aliases that follow from them. No module outside `cluster` names them.

use std::fmt;

use bytes::Bytes;

/// An encoded batch of commands, as proposed. The log never decodes it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Commands(pub Bytes);

impl fmt::Debug for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of commands", self.0.len())
    }
}

/// The replies to a batch, in command order, each encoded by the state machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replies(pub Vec<Bytes>);

/// Id of a cluster: drawn by the node that bootstraps it.
pub(crate) type ClusterId = [u8; 16];

/// Identity of a disk: drawn when it is first used.
pub(crate) type DiskId = [u8; 16];

/// A node in the membership.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberRecord {
    /// Address for other nodes; empty in a cluster of one.
    pub(crate) address: String,
    /// Identity of the disk that holds its log.
    pub(crate) disk_id: DiskId,
}

impl fmt::Display for MemberRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.address)
    }
}

openraft::declare_raft_types!(
    /// Type configuration of the one Raft group.
    pub(crate) TypeConfig:
        D = Commands,
        R = Replies,
        NodeId = u64,
        Node = MemberRecord,
);

/// Log id: leader id and index.
pub(crate) type LogId = openraft::alias::LogIdOf<TypeConfig>;
/// Term and candidate of a vote.
pub(crate) type LeaderId = openraft::alias::LeaderIdOf<TypeConfig>;
pub(crate) type Vote = openraft::alias::VoteOf<TypeConfig>;
/// A log entry.
pub(crate) type Entry = openraft::alias::EntryOf<TypeConfig>;
/// Membership and the log id of its entry.
pub(crate) type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
/// Voters and learners.
pub(crate) type Membership = openraft::Membership<u64, MemberRecord>;
