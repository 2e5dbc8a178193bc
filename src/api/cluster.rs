//! `/v1/sys/cluster`: the members of the cluster with their reports, and the nodes that are about to join or
//! leave. Also served by `admin.sock`, for a node without a lease.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::cache_control::NO_STORE;
use super::caller::{Caller, ClusterAdmin};
use crate::clock::Timestamp;
use crate::cluster::{self, NodeReport, Status};
use crate::state::{self, Node, NodeRole, NodeStage, SigningKeyRecord, minting_key, recorded_version};
use crate::text;
use crate::text::values;

/// The cluster as the answering node sees it.
#[derive(Serialize, ToSchema)]
pub struct ClusterStatus {
    /// The name of the answering node.
    unit_id: String,
    /// Its node id.
    node_id: u64,
    /// The id of the cluster: 32 lower-case hexadecimal digits; absent before the bootstrap.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_id: Option<String>,
    /// The feature level of the cluster, as the answering node has applied it.
    feature_level: u32,
    /// The node id of the last known leader, which may be gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<u64>,
    /// Whether a quorum confirmed it recently.
    leader_is_confirmed: bool,
    /// The members, and the nodes that are about to join, by node id.
    members: Vec<ClusterMember>,
}

/// A member, or a node that is about to join.
#[derive(Serialize, ToSchema)]
pub struct ClusterMember {
    /// The node id.
    node_id: u64,
    /// Host and port for other nodes; absent before the node joined, and in a cluster of one without a peer listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    /// `leader`, `follower` and `learner` are members; a node that is `joining` used its join token, and an `invited`
    /// one has not
    #[schema(value_type = values::MemberRole)]
    role: &'static str,
    /// The role that it shall have, if it differs.
    #[schema(value_type = Option<values::WantedRole>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    wanted: Option<&'static str>,
    /// The reason for which it does not have that role yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
    /// The voter that it replaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaces: Option<u64>,
    /// The end of its join token, until it is used. RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_expires_at: Option<String>,
    /// Log entries of the leader that it does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    lag: Option<u64>,
    /// Seconds by which its clock is ahead of the median of the voters' clocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_offset_seconds: Option<f64>,
    /// Its report; absent if it did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<NodeReport>,
    /// The reason for which there is no report.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreachable: Option<String>,
    /// Its program at its last start, as the state records it from feature level 1 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<RecordedVersion>,
    /// Whether its signing key is old enough to mint tokens.
    can_mint: bool,
    /// The time from which it is. RFC 3339, UTC; absent without a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    mints_from: Option<String>,
}

/// The program of a member.
#[derive(Serialize, ToSchema)]
pub struct RecordedVersion {
    /// The product's version.
    version: String,
    /// The newest feature level that it supports.
    feature_level: u32,
}

impl ClusterMember {
    fn new(node_id: u64) -> Self {
        Self {
            node_id,
            address: None,
            role: "invited",
            wanted: None,
            waits_for: None,
            replaces: None,
            token_expires_at: None,
            lag: None,
            clock_offset_seconds: None,
            report: None,
            unreachable: None,
            recorded: None,
            can_mint: false,
            mints_from: None,
        }
    }

    fn of_member(member: cluster::Member, leader: Option<u64>) -> Self {
        let role = match member.is_voter {
            _ if leader == Some(member.node_id) => "leader",
            true => "follower",
            false => "learner",
        };
        let (report, unreachable) = match member.report {
            Ok(report) => (Some(report), None),
            Err(reason) => (None, Some(reason)),
        };
        Self {
            address: Some(member.address).filter(|address| !address.is_empty()),
            role,
            clock_offset_seconds: member.clock_offset_millis.map(seconds),
            report,
            unreachable,
            ..Self::new(member.node_id)
        }
    }

    /// Adds the intention and the version that the state records.
    fn add_row(&mut self, node: &Node) {
        self.recorded = recorded_version(node)
            .map(|(version, feature_level)| RecordedVersion { version: version.to_owned(), feature_level });
        match node.stage() {
            NodeStage::Invited => {
                let end = Timestamp::from_millis(node.token_expires_at_millis);
                self.token_expires_at = Some(end.to_rfc3339());
            }
            NodeStage::Joining => {
                (self.role, self.address) = ("joining", Some(node.address.clone()));
            }
            _ => {}
        }
        let is_voter = matches!(self.role, "leader" | "follower");
        self.wanted = match node.wanted() {
            NodeRole::Voter if !is_voter => Some("voter"),
            NodeRole::Learner if self.role != "learner" => Some("learner"),
            NodeRole::Removed => Some("removed"),
            _ => None,
        };
        self.replaces = node.replaces.filter(|_| self.wanted.is_some());
    }

    fn add_key(&mut self, key: Option<&SigningKeyRecord>, elapsed: Timestamp) {
        self.can_mint = key.is_some_and(|key| key.usable_from <= elapsed);
        self.mints_from = key.map(|key| key.usable_at().to_rfc3339());
    }
}

#[expect(clippy::cast_precision_loss, reason = "an offset of so many years is exact enough")]
fn seconds(millis: i64) -> f64 {
    millis as f64 / 1000.0
}

/// The members of the cluster with their reports. A node that does not answer within half a second has none.
#[utoipa::path(get, path = "", operation_id = "cluster", responses(
    (status = 200, description = "The cluster as the answering node sees it", body = ClusterStatus),
))]
pub async fn get(_caller: Caller<ClusterAdmin>, State(app): State<App>) -> Response {
    status(&app.state, &app.unit_id).await
}

/// The response, for authorized callers. Also before the node has recovered its state.
pub(super) async fn status(state: &state::State, unit_id: &str) -> Response {
    let Status { node_id, leader, leader_is_confirmed, members } = state.cluster().status().await;
    let members = members.into_iter().map(|member| ClusterMember::of_member(member, leader));
    let mut members: BTreeMap<u64, ClusterMember> = members.map(|member| (member.node_id, member)).collect();
    let index = state.index();
    for node in index.nodes.values() {
        if matches!(node.stage(), NodeStage::Invited | NodeStage::Joining) {
            members.entry(node.node_id).or_insert_with(|| ClusterMember::new(node.node_id));
        }
        if let Some(member) = members.get_mut(&node.node_id) {
            member.add_row(node);
            member.add_key(minting_key(&index.signing_keys, node.node_id), state.elapsed_time());
        }
    }
    add_leaders_view(&mut members, leader);
    let cluster = ClusterStatus {
        unit_id: unit_id.to_owned(),
        node_id,
        cluster_id: state.cluster().cluster_id().map(|id| text::hex(&id)),
        feature_level: index.feature_level,
        leader,
        leader_is_confirmed,
        members: members.into_values().collect(),
    };
    (NO_STORE, Json(cluster)).into_response()
}

/// Adds the facts that the leader's report has: lag, and the reasons for which changes wait.
fn add_leaders_view(members: &mut BTreeMap<u64, ClusterMember>, leader: Option<u64>) {
    let report = leader.and_then(|leader| members.get(&leader)?.report.as_ref());
    let view = report.map(|report| (report.last_log_index, report.waiting_changes.clone()));
    for (node_id, member) in members {
        if let Some((last, waiting)) = &view {
            member.lag = member.report.as_ref().map(|report| last.saturating_sub(report.last_log_index));
            member.waits_for = waiting.get(node_id).cloned();
        }
        if member.role == "invited" {
            member.waits_for = Some("the node has not joined yet".to_owned());
        }
    }
}
