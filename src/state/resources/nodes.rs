//! Nodes: from the join token over the roles in the membership to the removal.
//!
//! Commands state which role a node shall have; the leader changes the membership accordingly, and every node records
//! the membership entries that it applies. A node id belongs to one disk and is never allocated again.

mod proposals;

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;

use super::feed::{self, FeedKind, NewFeedEvent};
use super::{feature_levels, signing_keys};
use crate::breaks::{self, Break};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, MemberEntry, WantedMember, WantedRole};
use crate::limits;
use crate::state::command::{
    AllocateNode, JoinNode, Node, NodeRole, NodeStage, NodeWritten, Refusal, Reply, WantRole,
};
use crate::state::tables::{NODES, Tables, decode};

/// Row of the meta table: the largest node id that was allocated or in a membership. It only grows.
const LAST_NODE_ID: &[u8] = b"last_node_id";

/// Address and disk of a node that joins, with the digest of its token's secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joiner {
    pub node_id: u64,
    /// SHA-256 of the secret.
    pub token_digest: [u8; 32],
    /// Host and port for other nodes.
    pub address: String,
    /// Identity of its disk.
    pub disk_id: [u8; 16],
    /// The newest feature level that its program supports.
    pub feature_level: u32,
}

/// A joiner that has the token of its node id. Only [`State::admit_joiner`] creates it.
#[derive(Debug)]
pub struct AdmittedJoiner(Joiner);

/// Allocates a node id and records the join token. Expired invitations are deleted.
pub fn allocate(tables: &mut Tables<'_>, now: Timestamp, command: &AllocateNode) -> Result<Reply, Corrupt> {
    let (expired, nodes): (Vec<_>, Vec<_>) =
        read(tables)?.into_values().partition(|node| is_invited(node) && is_expired(node, now));
    let last = tables.number(LAST_NODE_ID)?;
    if let Some(refusal) = allocation_refusal(&nodes, last, command) {
        return Ok(Reply::Refused(refusal));
    }
    for node in expired {
        delete(tables, node.node_id);
    }
    let reused = breaks::active(Break::ReuseNodeId).then(|| lowest_unused_id(&nodes)).flatten();
    let node = Node {
        node_id: reused.unwrap_or(tables.add(LAST_NODE_ID, 1)?),
        stage: NodeStage::Invited.into(),
        wanted: command.role,
        token_digest: exact::<32>(&command.token_digest, "a token digest")?,
        token_expires_at_millis: now.plus(limits::JOIN_TOKEN_LIFETIME).millis(),
        replaces: command.replaces,
        created_index: tables.entry_index(),
        ..Node::default()
    };
    put(tables, &node);
    append_feed_event(tables, now, node.node_id, &command.caller, "join token created")?;
    Ok(written(node))
}

/// The lowest id that no present node has. Only a build for tests allocates it.
fn lowest_unused_id(nodes: &[Node]) -> Option<u64> {
    let is_present =
        |id: u64| nodes.iter().any(|node| node.node_id == id && node.stage() != NodeStage::Removed);
    (1..=limits::NODE_ID_MAX).find(|id| !is_present(*id))
}

fn allocation_refusal(nodes: &[Node], last: u64, command: &AllocateNode) -> Option<Refusal> {
    if !matches!(command.role(), NodeRole::Learner | NodeRole::Voter) {
        return Some(Refusal::NodeRoleNotAllowed);
    }
    let mut voters = nodes.iter().filter(|node| node.stage() == NodeStage::Voter).peekable();
    if voters.peek().is_none() || voters.any(|voter| voter.address.is_empty()) {
        return Some(Refusal::ClusterWithoutListener);
    }
    if last >= limits::NODE_ID_MAX {
        return Some(Refusal::NodeIdsExhausted);
    }
    if nodes.iter().filter(|node| is_invited(node)).count() >= limits::JOIN_TOKENS_MAX {
        return Some(Refusal::TooManyJoinTokens);
    }
    let is_there = |id: u64| nodes.iter().any(|node| node.node_id == id && !is_removed(node));
    // A replacement takes the seat of its predecessor.
    let has_seat = |node: &&Node| !is_removed(node) && !node.replaces.is_some_and(is_there);
    match command.replaces {
        Some(id) if !is_replaceable(nodes, id) => Some(Refusal::NotReplaceable),
        None if nodes.iter().filter(has_seat).count() >= limits::MEMBERS_MAX => Some(Refusal::TooManyMembers),
        _ => None,
    }
}

fn is_replaceable(nodes: &[Node], id: u64) -> bool {
    let is_it = |node: &Node| {
        node.node_id == id && node.stage() == NodeStage::Voter && node.wanted() == NodeRole::Voter
    };
    let is_successor = |node: &Node| node.replaces == Some(id) && node.wanted() != NodeRole::Removed;
    nodes.iter().any(is_it) && !nodes.iter().any(is_successor)
}

/// Records address and disk of a node that joins. Checks, in this order:
///
/// 1. the node is not removed
/// 2. the token is its own
/// 3. a token that was used is of the same disk and address, which changes nothing, also after its expiry
/// 4. the token has not expired
/// 5. its program supports the feature level of the cluster
/// 6. no other node has the address; the replaced one may have it
pub fn join(tables: &mut Tables<'_>, now: Timestamp, command: JoinNode) -> Result<Reply, Corrupt> {
    let node = tables.message::<Node>(NODES, &command.node_id.to_be_bytes())?;
    let node = match admit(node, &command.token_digest) {
        Ok(node) => node,
        Err(refusal) => return Ok(Reply::Refused(refusal)),
    };
    if !is_invited(&node) {
        let is_same = node.disk_id == command.disk_id && node.address == command.address;
        let unchanged = || Reply::Node(NodeWritten { changed: false, node: Some(node) });
        return Ok(if is_same { unchanged() } else { Reply::Refused(Refusal::JoinTokenUsed) });
    }
    if is_expired(&node, now) {
        return Ok(Reply::Refused(Refusal::JoinTokenExpired));
    }
    if command.feature_level < feature_levels::of_cluster(tables)? {
        return Ok(Reply::Refused(Refusal::JoinerTooOld));
    }
    let has_address = |other: &Node| {
        other.address == command.address && !is_removed(other) && node.replaces != Some(other.node_id)
    };
    if read(tables)?.values().any(has_address) {
        return Ok(Reply::Refused(Refusal::NodeAddressUsed));
    }
    let node = Node {
        stage: NodeStage::Joining.into(),
        disk_id: exact::<16>(&command.disk_id, "a disk id")?,
        address: command.address,
        joined_index: tables.entry_index(),
        ..node
    };
    put(tables, &node);
    append_feed_event(tables, now, node.node_id, &node.address, "joined")?;
    Ok(written(node))
}

/// The node, if the token with this digest is its own. A member of the bootstrap has none.
fn admit(node: Option<Node>, token_digest: &[u8]) -> Result<Node, Refusal> {
    let node = node.ok_or(Refusal::UnknownJoinToken)?;
    if is_removed(&node) {
        return Err(Refusal::NodeRemoved);
    }
    let is_own = !node.token_digest.is_empty() && node.token_digest[..] == *token_digest;
    if is_own { Ok(node) } else { Err(Refusal::UnknownJoinToken) }
}

/// Changes the role that a node shall have. The removal of an invitation deletes it; a node that is no member yet is
/// removed at once.
pub fn want_role(tables: &mut Tables<'_>, now: Timestamp, command: &WantRole) -> Result<Reply, Corrupt> {
    let nodes = read(tables)?;
    let node = match role_change(&nodes, command) {
        Ok(Some(node)) => node,
        Ok(None) => return Ok(Reply::Done { changed: false }),
        Err(refusal) => return Ok(Reply::Refused(refusal)),
    };
    let is_removal = command.role() == NodeRole::Removed;
    let detail = match node.stage() {
        NodeStage::Invited => {
            delete(tables, node.node_id);
            "join token revoked"
        }
        NodeStage::Joining if is_removal => {
            let removed = removed(node.node_id, tables.entry_index());
            put(tables, &removed);
            "removed"
        }
        _ => {
            put(tables, &Node { wanted: command.role, ..node.clone() });
            if is_removal { "removal requested" } else { "promotion requested" }
        }
    };
    append_feed_event(tables, now, node.node_id, &command.caller, detail)?;
    Ok(Reply::Done { changed: true })
}

/// The node to be changed; `None` if it shall have the role already.
fn role_change<'n>(nodes: &'n BTreeMap<u64, Node>, command: &WantRole) -> Result<Option<&'n Node>, Refusal> {
    let is_removal = match command.role() {
        NodeRole::Voter => false,
        NodeRole::Removed => true,
        NodeRole::Learner | NodeRole::Unspecified => return Err(Refusal::NodeRoleNotAllowed),
    };
    let node = nodes.get(&command.node_id).ok_or(Refusal::UnknownNode)?;
    let will_vote = |other: &Node| has_joined(other) && other.wanted() == NodeRole::Voter;
    match node.stage() {
        NodeStage::Removed if is_removal => Ok(None),
        NodeStage::Removed => Err(Refusal::NodeRemoved),
        NodeStage::Invited if is_removal => Ok(Some(node)),
        NodeStage::Invited => Err(Refusal::NodeNotJoined),
        _ if node.wanted() == command.role() => Ok(None),
        _ if is_removal && !nodes.values().any(|other| other.node_id != node.node_id && will_vote(other)) => {
            Err(Refusal::LastVoter)
        }
        _ => Ok(Some(node)),
    }
}

/// Records the membership of an entry. A member of the bootstrap gets its row here.
pub fn record_members(tables: &mut Tables<'_>, members: &[MemberEntry], index: u64) -> Result<(), Corrupt> {
    let nodes = read(tables)?;
    let (now, last) = (tables.log_time()?, tables.number(LAST_NODE_ID)?);
    let mut changed: Vec<Node> =
        members.iter().map(|member| recorded(nodes.get(&member.node_id), member, index)).collect();
    let is_gone = |node: &&Node| {
        let was_member = matches!(node.stage(), NodeStage::Learner | NodeStage::Voter);
        was_member && !members.iter().any(|member| member.node_id == node.node_id)
    };
    for node in nodes.values().filter(is_gone) {
        changed.push(removed(node.node_id, index));
        signing_keys::retire_of_node(tables, node.node_id)?;
    }
    for node in &changed {
        let before = nodes.get(&node.node_id);
        if before == Some(node) {
            continue;
        }
        put(tables, node);
        // Members of the bootstrap are recorded before log time begins.
        if before.is_some_and(|before| before.stage != node.stage) {
            let detail = match node.stage() {
                NodeStage::Voter => "voter",
                NodeStage::Learner => "learner",
                _ => "removed",
            };
            append_feed_event(tables, now, node.node_id, &node.address, detail)?;
        }
    }
    if let Some(largest) = members.iter().map(|member| member.node_id).max().filter(|id| *id > last) {
        tables.set_number(LAST_NODE_ID, largest);
    }
    Ok(())
}

/// The row of a member. One that was removed while its addition was in progress is still to be removed.
fn recorded(before: Option<&Node>, member: &MemberEntry, index: u64) -> Node {
    let stage = if member.is_voter { NodeStage::Voter } else { NodeStage::Learner };
    let initial = || Node {
        node_id: member.node_id,
        wanted: NodeRole::Voter.into(),
        created_index: index,
        joined_index: index,
        ..Node::default()
    };
    Node {
        stage: stage.into(),
        address: member.address.clone(),
        disk_id: Bytes::copy_from_slice(&member.disk_id),
        removed_index: 0,
        ..before.cloned().unwrap_or_else(initial)
    }
}

/// Deletes every node but the survivor of a new cluster. Ids above its own are allocated again.
pub fn retain_only(tables: &mut Tables<'_>, node_id: u64) -> Result<(), Corrupt> {
    let mut nodes = read(tables)?;
    let survivor = nodes.remove(&node_id).filter(|node| node.stage() == NodeStage::Voter);
    let survivor = survivor.ok_or_else(|| Corrupt::row("the survivor of a restored cluster is no voter"))?;
    for other in nodes.into_keys() {
        delete(tables, other);
    }
    let (stage, wanted) = (NodeStage::Voter.into(), NodeRole::Voter.into());
    let survivor = Node {
        node_id,
        stage,
        wanted,
        address: survivor.address,
        disk_id: survivor.disk_id,
        created_index: tables.entry_index(),
        joined_index: tables.entry_index(),
        ..Node::default()
    };
    put(tables, &survivor);
    tables.set_number(LAST_NODE_ID, node_id);
    Ok(())
}

fn removed(node_id: u64, removed_index: u64) -> Node {
    let (stage, wanted) = (NodeStage::Removed.into(), NodeRole::Removed.into());
    Node { node_id, stage, wanted, removed_index, ..Node::default() }
}

/// Whether a node was removed.
pub fn is_removed_node(tables: &Tables<'_>, node_id: u64) -> Result<bool, Corrupt> {
    let node = tables.message::<Node>(NODES, &node_id.to_be_bytes())?;
    Ok(node.is_some_and(|node| is_removed(&node)))
}

/// Index of the entry that removed a node.
pub fn removed_at(node: &Node) -> Option<u64> {
    is_removed(node).then_some(node.removed_index)
}

/// A node that joined and is not removed, and the role that it shall have.
pub fn wanted_member(node: &Node) -> Option<WantedMember> {
    let role = match node.wanted() {
        NodeRole::Learner => WantedRole::Learner,
        NodeRole::Voter => WantedRole::Voter,
        NodeRole::Removed => WantedRole::Removed,
        NodeRole::Unspecified => return None,
    };
    let disk_id = node.disk_id.as_ref().try_into().ok().filter(|_| has_joined(node))?;
    let Node { node_id, replaces, .. } = *node;
    Some(WantedMember { node_id, address: node.address.clone(), disk_id, role, replaces })
}

/// Decodes a row.
pub fn from_row(key: &[u8], row: &[u8]) -> Result<Node, Corrupt> {
    let node = decode::<Node>(NODES, row)?;
    if key != node.node_id.to_be_bytes() {
        return Err(Corrupt::row("a node has the row of another node id"));
    }
    if has_joined(&node) {
        exact::<16>(&node.disk_id, "a disk id")?;
    }
    Ok(node)
}

fn is_invited(node: &Node) -> bool {
    node.stage() == NodeStage::Invited
}

pub fn is_removed(node: &Node) -> bool {
    node.stage() == NodeStage::Removed
}

pub fn has_joined(node: &Node) -> bool {
    matches!(node.stage(), NodeStage::Joining | NodeStage::Learner | NodeStage::Voter)
}

fn is_expired(node: &Node, now: Timestamp) -> bool {
    node.token_expires_at_millis <= now.millis()
}

/// `bytes`, if there are `N`.
fn exact<const N: usize>(bytes: &Bytes, name: &str) -> Result<Bytes, Corrupt> {
    if bytes.len() == N {
        Ok(bytes.clone())
    } else {
        Err(Corrupt::row(format_args!("{name} is not {N} bytes")))
    }
}

pub fn read(tables: &Tables<'_>) -> Result<BTreeMap<u64, Node>, Corrupt> {
    let rows = tables.messages::<Node>(NODES)?;
    Ok(rows.into_iter().map(|(_, node)| (node.node_id, node)).collect())
}

pub fn put(tables: &mut Tables<'_>, node: &Node) {
    tables.put(NODES, &node.node_id.to_be_bytes(), node.encode_to_vec());
}

fn delete(tables: &mut Tables<'_>, node_id: u64) {
    tables.delete(NODES, &node_id.to_be_bytes());
}

fn written(node: Node) -> Reply {
    Reply::Node(NodeWritten { changed: true, node: Some(node) })
}

fn append_feed_event(
    tables: &mut Tables<'_>,
    now: Timestamp,
    node_id: u64,
    target: &str,
    detail: &str,
) -> Result<(), Corrupt> {
    let subject = &format!("node {node_id}");
    feed::append(tables, now, NewFeedEvent { kind: FeedKind::Cluster, subject, target, detail })
}

#[cfg(test)]
mod tests;
