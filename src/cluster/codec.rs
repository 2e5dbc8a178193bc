//! Conversion between openraft's types and the protobuf messages of `proto/log.proto`. Decoding is strict: a missing
//! field is an [`Error`], never a default.

use std::collections::{BTreeMap, BTreeSet};

use openraft::entry::RaftEntry as _;
use openraft::{EntryPayload, vote::RaftLeaderId as _};
use prost::Message as _;

use super::disk_rollback::{DiskKey, DiskRecord, Life};
use super::type_config::{
    Commands, Entry, LeaderId, LogId, MemberRecord, Membership, StoredMembership, Vote,
};

/// Generated from `proto/log.proto`.
#[allow(clippy::pedantic, missing_docs, reason = "generated code")]
pub(crate) mod proto {
    include!(concat!(env!("OUT_DIR"), "/trust_fabric.log.v1.rs"));
}

/// A message does not decode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// Not protobuf of the expected message.
    #[error("decode {0}: {1}")]
    Undecodable(&'static str, prost::DecodeError),
    /// A required field is missing.
    #[error("decode {0}: {1} is missing")]
    Missing(&'static str, &'static str),
    /// Voters and members contradict each other.
    #[error("decode membership: {0}")]
    Membership(String),
}

fn leader_to_proto(leader: &LeaderId) -> proto::LeaderId {
    proto::LeaderId { term: leader.term(), node_id: *leader.node_id() }
}

fn leader_from_proto(leader: Option<proto::LeaderId>, of: &'static str) -> Result<LeaderId, Error> {
    let leader = leader.ok_or(Error::Missing(of, "leader"))?;
    Ok(LeaderId::new(leader.term, leader.node_id))
}

pub(crate) fn log_id_to_proto(log_id: &LogId) -> proto::LogId {
    proto::LogId { leader: Some(leader_to_proto(&log_id.leader_id)), index: log_id.index }
}

pub(crate) fn log_id_from_proto(log_id: proto::LogId) -> Result<LogId, Error> {
    Ok(LogId::new(leader_from_proto(log_id.leader, "log id")?, log_id.index))
}

pub(crate) fn encode_log_id(log_id: &LogId) -> Vec<u8> {
    log_id_to_proto(log_id).encode_to_vec()
}

pub(crate) fn decode_log_id(bytes: &[u8]) -> Result<LogId, Error> {
    log_id_from_proto(proto::LogId::decode(bytes).map_err(|error| Error::Undecodable("log id", error))?)
}

pub(crate) fn encode_vote(vote: &Vote) -> Vec<u8> {
    vote_to_proto(vote).encode_to_vec()
}

pub(crate) fn vote_to_proto(vote: &Vote) -> proto::Vote {
    proto::Vote { leader: Some(leader_to_proto(&vote.leader_id)), committed: vote.committed }
}

pub(crate) fn decode_vote(bytes: &[u8]) -> Result<Vote, Error> {
    vote_from_proto(proto::Vote::decode(bytes).map_err(|error| Error::Undecodable("vote", error))?)
}

pub(crate) fn vote_from_proto(vote: proto::Vote) -> Result<Vote, Error> {
    Ok(Vote { leader_id: leader_from_proto(vote.leader, "vote")?, committed: vote.committed })
}

pub(crate) fn life_to_proto(life: &Life) -> proto::Life {
    proto::Life {
        start: life.start,
        id: bytes::Bytes::copy_from_slice(&life.id),
        vote: life.vote.as_ref().map(leader_to_proto),
        end: life.end.as_ref().map(log_id_to_proto),
    }
}

pub(crate) fn life_from_proto(life: &proto::Life) -> Result<Life, Error> {
    Ok(Life {
        start: life.start,
        id: life.id.as_ref().try_into().map_err(|_| Error::Missing("life", "id"))?,
        vote: life.vote.map(|vote| leader_from_proto(Some(vote), "life")).transpose()?,
        end: life.end.map(log_id_from_proto).transpose()?,
    })
}

pub(crate) fn memory_to_proto((node_id, disk_id): DiskKey, memory: &DiskRecord) -> proto::Memory {
    proto::Memory {
        node_id,
        disk_id: bytes::Bytes::copy_from_slice(&disk_id),
        life: Some(life_to_proto(&memory.life)),
        vote: memory.vote.as_ref().map(leader_to_proto),
        held: memory.held.as_ref().map(log_id_to_proto),
        contradiction: memory.contradiction.as_ref().map(log_id_to_proto),
    }
}

pub(crate) fn memory_from_proto(memory: &proto::Memory) -> Result<(DiskKey, DiskRecord), Error> {
    let disk_id = memory.disk_id.as_ref().try_into().map_err(|_| Error::Missing("memory", "disk id"))?;
    let life = life_from_proto(memory.life.as_ref().ok_or(Error::Missing("memory", "life"))?)?;
    let vote = memory.vote.map(|vote| leader_from_proto(Some(vote), "memory")).transpose()?;
    let held = memory.held.map(log_id_from_proto).transpose()?;
    let contradiction = memory.contradiction.map(log_id_from_proto).transpose()?;
    Ok(((memory.node_id, disk_id), DiskRecord { life, vote, held, contradiction }))
}

/// Encodes the records of the members' disks.
pub(crate) fn encode_memories(members: Vec<proto::Memory>) -> Vec<u8> {
    proto::Memories { members }.encode_to_vec()
}

/// Decodes the records of the members' disks.
pub(crate) fn decode_memories(bytes: &[u8]) -> Result<Vec<(DiskKey, DiskRecord)>, Error> {
    let memories = proto::Memories::decode(bytes).map_err(|error| Error::Undecodable("memories", error))?;
    memories.members.iter().map(memory_from_proto).collect()
}

fn membership_to_proto(membership: &Membership) -> proto::Membership {
    let voters = |config: &BTreeSet<u64>| proto::Voters { node_ids: config.iter().copied().collect() };
    let peer = |peer: &MemberRecord| proto::Peer {
        address: peer.address.clone(),
        disk_id: bytes::Bytes::copy_from_slice(&peer.disk_id),
    };
    proto::Membership {
        configs: membership.get_joint_config().iter().map(voters).collect(),
        peers: membership.nodes().map(|(id, node)| (*id, peer(node))).collect(),
    }
}

fn membership_from_proto(membership: proto::Membership) -> Result<Membership, Error> {
    let configs: Vec<BTreeSet<u64>> =
        membership.configs.into_iter().map(|voters| voters.node_ids.into_iter().collect()).collect();
    let mut peers = BTreeMap::new();
    for (id, peer) in membership.peers {
        let disk_id = peer.disk_id.as_ref().try_into().map_err(|_| Error::Missing("peer", "disk id"))?;
        peers.insert(id, MemberRecord { address: peer.address, disk_id });
    }
    if configs.is_empty() && peers.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(configs, peers).map_err(|error| Error::Membership(error.to_string()))
}

pub(crate) fn encode_membership(stored: &StoredMembership) -> Vec<u8> {
    proto::StoredMembership {
        log_id: stored.log_id().as_ref().map(log_id_to_proto),
        membership: Some(membership_to_proto(stored.membership())),
    }
    .encode_to_vec()
}

pub(crate) fn decode_membership(bytes: &[u8]) -> Result<StoredMembership, Error> {
    let stored = proto::StoredMembership::decode(bytes)
        .map_err(|error| Error::Undecodable("stored membership", error))?;
    let membership = stored.membership.ok_or(Error::Missing("stored membership", "membership"))?;
    let log_id = stored.log_id.map(log_id_from_proto).transpose()?;
    Ok(StoredMembership::new(log_id, membership_from_proto(membership)?))
}

pub(crate) fn encode_entry(entry: &Entry) -> Vec<u8> {
    entry_to_proto(entry).encode_to_vec()
}

pub(crate) fn entry_to_proto(entry: &Entry) -> proto::Entry {
    let payload = match &entry.payload {
        EntryPayload::Blank => None,
        EntryPayload::Normal(commands) => Some(proto::entry::Payload::Commands(commands.0.clone())),
        EntryPayload::Membership(membership) => {
            Some(proto::entry::Payload::Membership(membership_to_proto(membership)))
        }
    };
    proto::Entry { log_id: Some(log_id_to_proto(&entry.log_id())), payload }
}

pub(crate) fn decode_entry(bytes: &[u8]) -> Result<Entry, Error> {
    entry_from_proto(proto::Entry::decode(bytes).map_err(|error| Error::Undecodable("log entry", error))?)
}

pub(crate) fn entry_from_proto(entry: proto::Entry) -> Result<Entry, Error> {
    let log_id = log_id_from_proto(entry.log_id.ok_or(Error::Missing("log entry", "log id"))?)?;
    let payload = match entry.payload {
        None => EntryPayload::Blank,
        Some(proto::entry::Payload::Commands(bytes)) => EntryPayload::Normal(Commands(bytes)),
        Some(proto::entry::Payload::Membership(membership)) => {
            EntryPayload::Membership(membership_from_proto(membership)?)
        }
    };
    Ok(Entry { log_id, payload })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_id(term: u64, index: u64) -> LogId {
        LogId::new(LeaderId::new(term, 7), index)
    }

    fn membership() -> Membership {
        let peers = BTreeMap::from([
            (1, MemberRecord { address: "a:8695".into(), disk_id: [1; 16] }),
            (2, MemberRecord { address: String::new(), disk_id: [2; 16] }),
        ]);
        Membership::new(vec![BTreeSet::from([1]), BTreeSet::from([1, 2])], peers).expect("valid")
    }

    #[test]
    fn entry_of_every_kind_round_trips() {
        for payload in [
            EntryPayload::Blank,
            EntryPayload::Normal(Commands(bytes::Bytes::from_static(b"commands"))),
            EntryPayload::Normal(Commands(bytes::Bytes::new())),
            EntryPayload::Membership(membership()),
        ] {
            let entry = Entry { log_id: log_id(3, 9), payload };
            assert_eq!(decode_entry(&encode_entry(&entry)), Ok(entry));
        }
    }

    #[test]
    fn votes_and_memberships_round_trip() {
        let vote = Vote { leader_id: LeaderId::new(5, 2), committed: true };
        assert_eq!(decode_vote(&encode_vote(&vote)), Ok(vote));
        for stored in [StoredMembership::default(), StoredMembership::new(Some(log_id(1, 1)), membership())] {
            assert_eq!(decode_membership(&encode_membership(&stored)), Ok(stored));
        }
    }

    #[test]
    fn missing_field_is_an_error() {
        assert_eq!(decode_vote(&[]), Err(Error::Missing("vote", "leader")));
        assert_eq!(decode_log_id(&[]), Err(Error::Missing("log id", "leader")));
        assert_eq!(decode_entry(&[]), Err(Error::Missing("log entry", "log id")));
        assert!(decode_entry(b"\xff\xff").is_err());
    }

    #[test]
    fn bytes_on_disk_are_pinned() {
        let entry = Entry {
            log_id: log_id(3, 9),
            payload: EntryPayload::Normal(Commands(bytes::Bytes::from_static(b"x"))),
        };
        assert_eq!(encode_entry(&entry), [10, 8, 10, 4, 8, 3, 16, 7, 16, 9, 18, 1, b'x']);
    }
}
