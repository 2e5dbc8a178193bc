//! The consensus library's types, filled in. Nothing outside `cluster` names them.

use std::fmt;

use bytes::Bytes;

/// A batch of commands as the bytes that were proposed: encoded once, never decoded by the log.
#[derive(Clone, PartialEq, Eq)]
pub struct Commands(pub Bytes);

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

/// The replies to a batch, in its order, each encoded by the state machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replies(pub Vec<Bytes>);

/// What the membership remembers of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Where its peers reach it; empty while there are none.
    pub address: String,
    /// The disk its log lives on.
    pub disk_id: [u8; 16],
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.address)
    }
}

openraft::declare_raft_types!(
    /// Type configuration of the one Raft group.
    pub TypeConfig:
        D = Commands,
        R = Replies,
        NodeId = u64,
        Node = Peer,
);

/// The library's types, applied to ours.
pub type LogId = openraft::alias::LogIdOf<TypeConfig>;
/// The term of a vote, and the node that it is for.
pub type LeaderId = openraft::alias::LeaderIdOf<TypeConfig>;
/// A vote.
pub type Vote = openraft::alias::VoteOf<TypeConfig>;
/// A log entry.
pub type Entry = openraft::alias::EntryOf<TypeConfig>;
/// A membership and the entry that set it.
pub type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
/// A set of voters and learners.
pub type Membership = openraft::Membership<u64, Peer>;
