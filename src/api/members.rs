//! `/v1/sys/cluster/…`: join tokens, joining, promotion, removal, and transfer of leadership.
//!
//! A change states which role a node shall have; the leader changes the membership accordingly. The response waits for
//! it for a while, and names the reason if the change still waits then.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::admin_audit::Act;
use super::cache_control::NO_STORE;
use super::caller::{Caller, ClusterAdmin, JoinTokenHolder};
use super::error::{Error, Refusal};
use super::openapi::params::IdempotencyKey;
use super::paging::{self, RawQuery};
use super::{App, body};
use crate::clock::Timestamp;
use crate::state::{Index, JoinToken, Joiner, Node, NodeRole, NodeStage, minting_key};
use crate::text::values;
use crate::{json, limits, text};

/// A request for a join token.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewJoinToken {
    /// The role of the new node; by default it becomes a voter when it has caught up.
    #[serde(default)]
    role: JoiningRole,
    /// The voter that it replaces, which must be stopped: it is removed in the change that makes the new node a voter.
    replaces: Option<u64>,
    /// Replaces it also if no other member can mint tokens yet.
    #[serde(default)]
    force: bool,
}

/// The role of a new node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JoiningRole {
    /// It votes once it has caught up.
    #[default]
    Voter,
    /// It receives the log and serves requests, without a vote.
    Learner,
}

/// A join token.
#[derive(Serialize, ToSchema)]
pub struct CreatedJoinToken {
    /// The token: a secret, shown once, for one node.
    join_token: String,
    /// The node id of the new node, for `node.id` in its configuration.
    node_id: u64,
    /// The SPIFFE ID that the peer certificate of the new node must have.
    spiffe_id: String,
    /// The end of the token. RFC 3339, UTC.
    expires_at: String,
}

/// A request of a node to join.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// The join token.
    token: String,
    /// Host and port at which the other nodes reach the peer listener of the node.
    address: String,
    /// The identity of its disk: 32 lower-case hexadecimal digits.
    disk_id: String,
    /// The newest feature level that its program supports; 0 if absent.
    #[serde(default)]
    feature_level: u32,
}

/// The result of a join.
#[derive(Serialize, ToSchema)]
pub struct Joined {
    /// The id of the cluster: 32 lower-case hexadecimal digits.
    cluster_id: String,
    /// The node id.
    node_id: u64,
}

/// A change of a member.
#[derive(Serialize, ToSchema)]
pub struct MemberChange {
    /// The node id.
    node_id: u64,
    /// The role that the node shall have.
    #[schema(value_type = values::WantedRole)]
    wanted: &'static str,
    /// Whether it has this role.
    done: bool,
    /// The reason for which it does not have it yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
}

/// A transfer of leadership.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewLeader {
    /// The voter that shall lead; by default any but the leader.
    node_id: Option<u64>,
}

/// The leader.
#[derive(Serialize, ToSchema)]
pub struct Leader {
    /// The node id of the leader.
    leader: u64,
}

/// Creates a join token, which allocates the id of the new node.
#[utoipa::path(
    post, path = "", operation_id = "createJoinToken", request_body = NewJoinToken, params(IdempotencyKey),
    responses(
        (status = 201, description = "The token", body = CreatedJoinToken),
        (status = 409, description = "A limit is reached; or the node to be replaced is no voter, or no other member can mint tokens yet; or a voter has no address for other nodes; or the `Idempotency-Key` was used before, whose token is shown only once"),
    )
)]
pub async fn invite(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    let bytes = body::json_bytes(&parts.headers, body, limits::BODY_BYTES_MAX).await?;
    let NewJoinToken { role, replaces, force } = json::read(&bytes)?;
    let role = match role {
        JoiningRole::Voter => NodeRole::Voter,
        JoiningRole::Learner if replaces.is_some() => {
            return Err(Error::invalid_request("role: must be voter of a node that replaces a voter"));
        }
        JoiningRole::Learner => NodeRole::Learner,
    };
    if let Some(replaced) = replaces.filter(|_| !force) {
        check_minters(&app, replaced).await?;
    }
    let cluster_id =
        app.state.cluster().cluster_id().ok_or_else(|| Error::unavailable("not bootstrapped"))?;
    let mut secret = [0; 32];
    aws_lc_rs::rand::fill(&mut secret).map_err(|_| Error::internal("the system provides no random bytes"))?;
    let caller = caller.with_key(&parts, &bytes)?;
    let purpose = replaces.map(|replaced| format!(" to replace node {replaced}")).unwrap_or_default();
    let description = format!("create a join token{purpose}{}", forced_note(force));
    let act = Act::begin(&app, &caller, description)?;
    let digest = JoinToken::digest_of(&secret);
    let allocated = app.state.on_behalf_of(&caller).allocate_node(digest, role, replaces).await;
    let allocated = allocated.map_err(Error::from).and_then(|allocated| {
        let node_id = allocated.outcome.node_id;
        if allocated.is_repeated { Err(token_shown_before(node_id)) } else { Ok(allocated.outcome) }
    });
    let node = act.end(allocated, |node| format!("node {}", node.node_id)).await?;
    tracing::warn!(node_id = node.node_id, caller = caller.id(), "join token created");
    let spiffe_id = app.state.cluster().spiffe_id_of(node.node_id);
    let created = CreatedJoinToken {
        join_token: JoinToken::new(cluster_id, node.node_id, secret).secret_text(),
        node_id: node.node_id,
        spiffe_id: spiffe_id.ok_or_else(|| Error::internal("this node has no peer listener"))?,
        expires_at: Timestamp::from_millis(node.token_expires_at_millis).to_rfc3339(),
    };
    Ok((StatusCode::CREATED, NO_STORE, Json(created)).into_response())
}

fn token_shown_before(node_id: u64) -> Error {
    let description = format!(
        "Idempotency-Key: was used before, for the join token of node {node_id}, which is shown only once; remove node \
         {node_id} and create another token"
    );
    Error::new(Refusal::Conflict, description)
}

/// Joins a node to the cluster by its join token. A repeated request of the same node gets the same response.
#[utoipa::path(post, path = "", operation_id = "joinCluster", request_body = JoinRequest, responses(
    (status = 200, description = "The node joined; the leader adds it as a learner", body = Joined),
    (status = 403, description = "The token is unknown, expired or of another cluster; or the connection is not TLS"),
    (status = 409, description = "The token was used by another node, the address is that of another node, the node was removed, or its program does not support the feature level of the cluster"),
))]
pub async fn join(
    caller: Caller<JoinTokenHolder>,
    State(app): State<App>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    let bytes = body::json_bytes(&parts.headers, body, limits::BODY_BYTES_MAX).await?;
    let JoinRequest { token, address, disk_id, feature_level } = json::read(&bytes)?;
    let token =
        JoinToken::parse(&token).map_err(|error| Error::invalid_request(format!("token: {error}")))?;
    if !text::is_host_and_port(&address) {
        return Err(Error::invalid_request("address: must be a host and a port"));
    }
    let disk_id = text::from_hex(&disk_id);
    let disk_id = disk_id.ok_or_else(|| Error::invalid_request("disk_id: must be 32 hexadecimal digits"))?;
    let cluster_id = app.state.cluster().cluster_id();
    if cluster_id != Some(token.cluster_id) {
        return Err(Error::forbidden("token: the join token is of another cluster"));
    }
    let node_id = token.node_id;
    let joiner = Joiner { node_id, token_digest: token.digest(), address, disk_id, feature_level };
    // Before the entry in the audit, which anonymous callers must not fill.
    let admitted = app.state.admit_joiner(joiner).await?;
    let act = Act::begin(&app, &caller, format!("join node {node_id}"))?;
    let joined = app.state.as_node().join_node(admitted).await.map_err(Error::from);
    let (_, node) = act.end(joined, |(_, node)| format!("address {}", node.address)).await?;
    tracing::warn!(node_id, address = node.address, "node joins the cluster");
    Ok((NO_STORE, Json(Joined { cluster_id: text::hex(&token.cluster_id), node_id })).into_response())
}

/// Makes a learner a voter. The leader does it when the node has caught up.
#[utoipa::path(
    post, path = "", operation_id = "promoteMember",
    params(("node_id" = u64, Path, description = "The learner"), IdempotencyKey),
    responses(
        (status = 200, description = "The node is a voter", body = MemberChange),
        (status = 202, description = "The node becomes a voter; `waits_for` names the reason for the delay", body = MemberChange),
        (status = 404, description = "There is no such node"),
        (status = 409, description = "The node has not joined, or was removed"),
    )
)]
pub async fn promote(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    node_id: Result<Path<u64>, PathRejection>,
    request: Request,
) -> Result<Response, Error> {
    let node_id = known(node_id)?;
    let description = format!("promote node {node_id}");
    change(&app, caller, (node_id, NodeRole::Voter), description, &request.into_parts().0).await
}

/// Removes a member, or a node that is about to join, for ever: its id is not used again.
#[utoipa::path(
    delete, path = "", operation_id = "removeMember",
    params(
        ("node_id" = u64, Path, description = "The node"),
        ("force" = Option<bool>, Query, description = "Removes it also if no other member can mint tokens yet"),
        IdempotencyKey,
    ),
    responses(
        (status = 200, description = "The node is removed", body = MemberChange),
        (status = 202, description = "The node is being removed; `waits_for` names the reason for the delay", body = MemberChange),
        (status = 404, description = "There is no such node"),
        (status = 409, description = "It is the last voter, or no other member can mint tokens yet"),
    )
)]
pub async fn remove(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    node_id: Result<Path<u64>, PathRejection>,
    query: RawQuery,
    request: Request,
) -> Result<Response, Error> {
    let is_forced = paging::QueryParams::read(query, &["force"])?.flag("force")?;
    let node_id = known(node_id)?;
    if !is_forced {
        check_minters(&app, node_id).await?;
    }
    let description = format!("remove node {node_id}{}", forced_note(is_forced));
    change(&app, caller, (node_id, NodeRole::Removed), description, &request.into_parts().0).await
}

fn known(node_id: Result<Path<u64>, PathRejection>) -> Result<u64, Error> {
    node_id.map(|Path(node_id)| node_id).map_err(|_| Error::not_found("there is no such node"))
}

/// The audit names an act that overrides a refusal.
const fn forced_note(is_forced: bool) -> &'static str {
    if is_forced { ", forced" } else { "" }
}

/// As [`other_minters`], on the members and keys after every change that was acknowledged before.
async fn check_minters(app: &App, leaving: u64) -> Result<(), Error> {
    let _current = app.state.current().await?;
    other_minters(&app.state.index(), leaving, app.key_time())
}

/// Refuses to remove the only member that can mint tokens: exchanges would be answered 503 until the signing
/// key of another one is old enough.
fn other_minters(index: &Index, leaving: u64, elapsed: Timestamp) -> Result<(), Error> {
    let key_of = |node_id| minting_key(&index.signing_keys, node_id);
    let can_mint = |node_id| key_of(node_id).is_some_and(|key| key.usable_from <= elapsed);
    let is_member = |stage| matches!(stage, NodeStage::Voter | NodeStage::Learner);
    let stays = |node: &&Arc<Node>| is_member(node.stage()) && node.wanted() != NodeRole::Removed;
    let staying: Vec<u64> = index.nodes.values().filter(stays).map(|node| node.node_id).collect();
    let others: Vec<u64> = staying.iter().copied().filter(|node_id| *node_id != leaving).collect();
    // A repeated request finds the node as the first one left it.
    let leaves_already = others.len() == staying.len();
    if leaves_already
        || others.is_empty()
        || !can_mint(leaving)
        || others.iter().any(|node_id| can_mint(*node_id))
    {
        return Ok(());
    }
    let next = others.iter().filter_map(|node_id| Some((key_of(*node_id)?.usable_at(), *node_id))).min();
    let until = next.map_or_else(
        || "another member has a signing key that is old enough".to_owned(),
        |(at, node_id)| format!("{}, when node {node_id} can", at.to_rfc3339()),
    );
    let description = format!(
        "node {leaving} is the only member that can mint tokens: without it exchanges are answered 503 until {until}; keep \
         it until then, or set force if it is lost"
    );
    Err(Error::new(Refusal::Conflict, description))
}

async fn change(
    app: &App,
    caller: Caller<ClusterAdmin>,
    (node_id, role): (u64, NodeRole),
    description: String,
    parts: &Parts,
) -> Result<Response, Error> {
    let wanted = if role == NodeRole::Voter { "voter" } else { "removed" };
    let caller = caller.with_key(parts, b"")?;
    let act = Act::begin(app, &caller, description)?;
    let changed = app.state.on_behalf_of(&caller).want_role(node_id, role).await;
    act.end(changed.map_err(Error::from), |_| String::new()).await?;
    tracing::warn!(node_id, wanted, caller = caller.id(), "change of a member requested");
    let is_done = || {
        let index = app.state.index();
        let stage = index.nodes.get(&node_id).map(|node| node.stage());
        match role {
            NodeRole::Voter => stage == Some(NodeStage::Voter),
            // The row of a node that has not joined is deleted.
            _ => matches!(stage, None | Some(NodeStage::Removed)),
        }
    };
    let finished = app.state.cluster().until_state(is_done);
    let done = tokio::time::timeout(limits::MEMBERSHIP_ANSWER_WAIT, finished).await.is_ok();
    let waits_for = if done { None } else { app.state.cluster().waiting_change(node_id).await };
    let status = if done { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, NO_STORE, Json(MemberChange { node_id, wanted, done, waits_for })).into_response())
}

/// Transfers leadership.
#[utoipa::path(post, path = "", operation_id = "transferLeadership", request_body = NewLeader, responses(
    (status = 200, description = "The leader", body = Leader),
    (status = 400, description = "The node is not a voter"),
    (status = 409, description = "There is no other voter"),
))]
pub async fn transfer(
    caller: Caller<ClusterAdmin>,
    State(app): State<App>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    let bytes = body::json_bytes(&parts.headers, body, limits::BODY_BYTES_MAX).await?;
    let NewLeader { node_id } = json::read(&bytes)?;
    let to = node_id.map_or_else(|| "another voter".to_owned(), |id| format!("node {id}"));
    let act = Act::begin(&app, &caller, format!("transfer leadership to {to}"))?;
    let transferred = app.state.cluster().change_leader(node_id).await.map_err(Error::from);
    let leader = act.end(transferred, |leader| format!("node {leader} leads")).await?;
    tracing::warn!(leader, caller = caller.id(), "leadership transferred");
    Ok((NO_STORE, Json(Leader { leader })).into_response())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::state::SigningKeyRecord;
    use crate::token::signing_key::SigningAlgorithm;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn key(node_id: u64, usable_from: Timestamp) -> SigningKeyRecord {
        SigningKeyRecord {
            kid: format!("key of {node_id}"),
            node_id,
            jwk: String::new(),
            algorithm: SigningAlgorithm::Es256,
            published_at: usable_from,
            retired_at: None,
            tainted_at: None,
            published_elapsed: usable_from,
            usable_from,
            ended_elapsed: None,
        }
    }

    fn index(keys: Vec<SigningKeyRecord>) -> Index {
        let node = |node_id| {
            let (stage, wanted) = (NodeStage::Voter.into(), NodeRole::Voter.into());
            (node_id, Arc::new(Node { node_id, stage, wanted, ..Node::default() }))
        };
        Index {
            nodes: Arc::new((1..=3).map(node).collect()),
            signing_keys: Arc::new(keys.into_iter().map(|key| (key.kid.clone(), key)).collect()),
            ..Index::default()
        }
    }

    fn refusal(index: &Index, leaving: u64) -> Option<String> {
        other_minters(index, leaving, NOW).err().map(|error| error.description().to_owned())
    }

    /// Regression: after all nodes were replaced within ten minutes, none could mint.
    #[test]
    fn only_member_that_can_mint_is_kept() {
        let (soon, later) = (NOW.plus(limits::MEMBERSHIP_ANSWER_WAIT), NOW.plus(limits::KEY_PUBLISH_AHEAD));
        let young = index(vec![key(1, NOW), key(2, later), key(3, soon)]);
        let refused = refusal(&young, 1).expect("refused");
        assert!(refused.contains("node 1 is the only member that can mint tokens"), "{refused}");
        assert!(refused.contains(&format!("until {}, when node 3 can", soon.to_rfc3339())), "{refused}");
        assert_eq!(refusal(&young, 2), None, "node 1 goes on");
        assert_eq!(refusal(&index(vec![key(1, NOW), key(2, NOW), key(3, soon)]), 1), None);
        assert_eq!(refusal(&index(vec![key(1, soon), key(2, soon)]), 1), None, "it cannot mint either");
        let refused = refusal(&index(vec![key(1, NOW)]), 1).expect("refused");
        assert!(refused.contains("until another member has a signing key"), "{refused}");
    }

    #[test]
    fn keys_that_ended_and_nodes_that_leave_mint_nothing() {
        let retired = SigningKeyRecord { retired_at: Some(NOW), ..key(2, NOW) };
        let of_events = SigningKeyRecord { algorithm: SigningAlgorithm::Rs256, ..key(3, NOW) };
        assert!(refusal(&index(vec![key(1, NOW), retired, of_events]), 1).is_some());
        for (stage, wanted) in [
            (NodeStage::Voter, NodeRole::Removed),
            (NodeStage::Joining, NodeRole::Voter),
            (NodeStage::Removed, NodeRole::Removed),
        ] {
            let mut index = index(vec![key(1, NOW), key(2, NOW)]);
            let mut nodes = BTreeMap::clone(&index.nodes);
            let node = Node { node_id: 2, stage: stage.into(), wanted: wanted.into(), ..Node::default() };
            nodes.insert(2, Arc::new(node));
            index.nodes = Arc::new(nodes);
            assert!(refusal(&index, 1).is_some(), "{stage:?}");
            assert_eq!(refusal(&index, 2), None, "{stage:?}: a repeated removal");
        }
        let mut alone = index(vec![key(1, NOW)]);
        let mut nodes = BTreeMap::clone(&alone.nodes);
        nodes.retain(|node_id, _| *node_id == 1);
        alone.nodes = Arc::new(nodes);
        assert_eq!(refusal(&alone, 1), None, "the last voter has its own refusal");
    }
}
