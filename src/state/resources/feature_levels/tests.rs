//! Feature levels: raises, joins, recorded versions, and commands below their level.

use bytes::Bytes;

use super::*;
use crate::cluster::{Machine as _, MemberEntry};
use crate::state::Replicated;
use crate::state::command::{
    AllocateNode, Bootstrap, JoinNode, MemberVersion, NodeRole, NodeWritten, RecordVersion, WantRole, encode,
};
use crate::state::feature_level::NEWEST;
use crate::state::testing::{StateHarness, TestNode, batch};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const DONE: Reply = Reply::Done { changed: true };
const UNCHANGED: Reply = Reply::Done { changed: false };

/// Voters 1 and 2, at this level.
fn cluster(feature_level: u32) -> StateHarness {
    let mut harness = StateHarness::default();
    let member = |node_id: u64| MemberEntry {
        node_id,
        address: format!("n{node_id}:8695"),
        disk_id: [1; 16],
        is_voter: true,
    };
    harness.members(&[member(1), member(2)]);
    let id = Bytes::from_static(&[7; 16]);
    let bootstrap = Bootstrap { cluster_id: id.clone(), incarnation: id, feature_level };
    assert_eq!(harness.one(START, Command::Bootstrap(bootstrap)), DONE);
    harness
}

fn raise_to(level: u32, node_ids: &[u64]) -> Command {
    let (node_ids, caller) = (node_ids.to_vec(), "alice".to_owned());
    Command::RaiseFeatureLevel(RaiseFeatureLevel { level, node_ids, caller })
}

fn version(version: &str, feature_level: u32) -> MemberVersion {
    MemberVersion { version: version.to_owned(), feature_level }
}

fn record(node_id: u64, version: MemberVersion) -> Command {
    Command::RecordVersion(RecordVersion { node_id, version: Some(version) })
}

/// Invites a node, and returns its id.
fn invite(harness: &mut StateHarness) -> u64 {
    let token_digest = Bytes::from(vec![1; 32]);
    let command = AllocateNode { token_digest, role: NodeRole::Voter.into(), ..AllocateNode::default() };
    match harness.one(START, Command::AllocateNode(command)) {
        Reply::Node(NodeWritten { node: Some(node), .. }) => node.node_id,
        other => panic!("{other:?}"),
    }
}

fn join(node_id: u64, feature_level: u32) -> Command {
    Command::JoinNode(JoinNode {
        node_id,
        token_digest: Bytes::from(vec![1; 32]),
        address: "n:1".to_owned(),
        disk_id: Bytes::from(vec![3; 16]),
        feature_level,
    })
}

fn level(harness: &StateHarness) -> u32 {
    harness.machine.index().feature_level
}

#[test]
fn level_is_raised_once_and_never_lowered() {
    let mut harness = cluster(0);
    assert_eq!(level(&harness), 0);
    assert_eq!(harness.one(START, raise_to(1, &[1, 2])), DONE);
    assert_eq!(level(&harness), 1);
    for (lower, node_ids) in [(1, &[][..]), (0, &[]), (0, &[1, 2])] {
        assert_eq!(harness.one(START, raise_to(lower, node_ids)), UNCHANGED);
        assert_eq!(level(&harness), 1);
    }
    let restarted = Replicated::default();
    restarted.rebuild(&harness.rows).expect("rebuilds");
    assert_eq!(restarted.index().feature_level, 1);
    assert_eq!(level(&cluster(1)), 1, "of a new cluster");
}

#[test]
fn raise_without_the_report_of_a_member_is_refused() {
    let mut harness = cluster(0);
    for node_ids in [&[][..], &[1], &[2], &[1, 3]] {
        let refused = harness.one(START, raise_to(1, node_ids));
        assert_eq!(refused, Reply::Refused(Refusal::MembersChanged), "{node_ids:?}");
    }
    // A node that joins after the members have reported.
    let id = invite(&mut harness);
    assert_eq!(harness.one(START, join(id, 0)), harness_node(&harness, id));
    assert_eq!(harness.one(START, raise_to(1, &[1, 2])), Reply::Refused(Refusal::MembersChanged));
    assert_eq!(level(&harness), 0);
    let removal = WantRole { node_id: id, role: NodeRole::Removed.into(), ..WantRole::default() };
    assert_eq!(harness.one(START, Command::WantRole(removal)), DONE);
    assert_eq!(harness.one(START, raise_to(1, &[1, 2])), DONE);
}

/// The reply to a join that has just been applied.
fn harness_node(harness: &StateHarness, id: u64) -> Reply {
    let node = Node::clone(&harness.machine.index().nodes[&id]);
    Reply::Node(NodeWritten { changed: true, node: Some(node) })
}

/// A node that does not support the level cannot apply what follows, so it stops.
#[test]
fn raise_beyond_this_program_stops_the_node() {
    for level in [NEWEST + 1, u32::MAX] {
        let harness = cluster(0);
        let batch = batch(crate::cluster::Stamp::default(), vec![encode(raise_to(level, &[1, 2]))]);
        let stopped = harness.machine.apply(&harness.rows, &batch, 9).expect_err("stops").to_string();
        let expected = format!("the cluster has feature level {level}, and this program, version");
        assert!(stopped.contains(&expected) && stopped.contains("this version is too old"), "{stopped}");
        let id = Bytes::from_static(&[7; 16]);
        let bootstrap = Bootstrap { cluster_id: id.clone(), incarnation: id, feature_level: level };
        let created = crate::state::testing::batch(
            crate::cluster::Stamp::default(),
            vec![encode(Command::Bootstrap(bootstrap))],
        );
        let empty = StateHarness::default();
        assert!(empty.machine.apply(&empty.rows, &created, 1).is_err());
    }
}

#[test]
fn state_of_a_newer_level_is_refused_at_start() {
    let mut harness = cluster(1);
    let row = crate::cluster::Write::Put {
        table: META,
        key: FEATURE_LEVEL.to_vec(),
        value: u64::from(NEWEST + 1).to_be_bytes().to_vec(),
    };
    harness.rows.write(vec![row]);
    let refused = Replicated::default().rebuild(&harness.rows).expect_err("refused").to_string();
    let expected = format!("feature level {}, and this program", NEWEST + 1);
    assert!(refused.contains(&expected) && refused.contains("start the version that wrote it"), "{refused}");
}

#[test]
fn joiner_below_the_level_is_refused_and_keeps_its_token() {
    let mut harness = cluster(1);
    let id = invite(&mut harness);
    assert_eq!(harness.one(START, join(id, 0)), Reply::Refused(Refusal::JoinerTooOld));
    assert_eq!(harness.one(START, join(id, 1)), harness_node(&harness, id));
}

#[test]
fn version_of_a_member_is_recorded_at_level_1_only() {
    let mut harness = cluster(0);
    let refused = harness.one(START, record(1, version("1.0.0", 1)));
    assert_eq!(refused, Reply::Refused(Refusal::FeatureLevelTooLow));
    assert_eq!(harness.one(START, raise_to(1, &[1, 2])), DONE);
    assert_eq!(harness.one(START, record(1, version("1.0.0", 1))), DONE);
    assert_eq!(harness.one(START, record(1, version("1.0.0", 1))), UNCHANGED);
    assert_eq!(harness.one(START, record(1, version("1.1.0", 2))), DONE);
    let recorded = |harness: &StateHarness, id| {
        let node = Node::clone(&harness.machine.index().nodes[&id]);
        recorded_version(&node).map(|(version, level)| (version.to_owned(), level))
    };
    assert_eq!(recorded(&harness, 1), Some(("1.1.0".to_owned(), 2)));
    assert_eq!(recorded(&harness, 2), None);
    let id = invite(&mut harness);
    for (node_id, refusal) in [(9, Refusal::UnknownNode), (id, Refusal::NodeNotJoined)] {
        assert_eq!(harness.one(START, record(node_id, version("1.0.0", 1))), Reply::Refused(refusal));
    }
    // A later membership entry keeps it.
    let voter = MemberEntry { node_id: 1, address: "n1:8695".to_owned(), disk_id: [1; 16], is_voter: true };
    harness.members(&[voter]);
    assert_eq!(recorded(&harness, 1), Some(("1.1.0".to_owned(), 2)));
    assert_eq!(harness.one(START, record(2, version("1.0.0", 1))), Reply::Refused(Refusal::NodeRemoved));
}

#[test]
fn obstacles_to_a_level_are_named() {
    let member = |node_id, report: Result<(&str, u32), &str>| MemberLevel {
        node_id,
        report: report.map(|(version, level)| (version.to_owned(), level)).map_err(str::to_owned),
    };
    let new = |node_id| member(node_id, Ok(("2.0.0", 1)));
    for (current, members, expected) in [
        (0, vec![new(1), new(2)], Ok(1)),
        (1, vec![new(1), new(2)], Ok(1)),
        // Nothing would change, so there is no obstacle.
        (1, vec![new(1), member(2, Err("timeout"))], Ok(1)),
        (0, vec![member(1, Ok(("1.0.0", 0)))], Ok(0)),
        (
            0,
            vec![new(1), member(2, Ok(("1.0.0", 0))), member(3, Err("timeout"))],
            Err(
                "feature level 1: node 2 runs version 1.0.0, which supports at most feature level 0; node 3 does not \
                 answer: timeout",
            ),
        ),
    ] {
        let level = level_of(current, &members).map_err(|error| error.to_string());
        assert_eq!(level, expected.map_err(str::to_owned), "{members:?}");
    }
}

/// Through the log of a running node.
#[tokio::test]
async fn running_node_proposes_nothing_above_the_level() {
    let node = TestNode::start_at_level(START, 0).await;
    let (state, index) = (&node.state, node.state.cluster().applied());
    let refused = state.as_node().propose(record(1, version("1.0.0", 1))).await;
    assert!(matches!(refused, Err(Error::Refused(Refusal::FeatureLevelTooLow))), "{refused:?}");
    state.record_version().await.expect("nothing to record");
    assert_eq!((state.owes_version(), state.cluster().applied()), (false, index));

    let raised = state.as_node().raise_feature_level().await;
    assert_eq!((raised.expect("raised"), state.owes_version()), (NEWEST, true));
    state.record_version().await.expect("recorded");
    let recorded = Node::clone(&state.index().nodes[&1]);
    assert_eq!(recorded_version(&recorded), Some((env!("CARGO_PKG_VERSION"), NEWEST)));
    let index = state.cluster().applied();
    state.record_version().await.expect("recorded before");
    assert_eq!((state.owes_version(), state.cluster().applied()), (false, index));
    node.end().await;
}
