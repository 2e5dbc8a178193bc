//! Wanted roles, and recorded memberships.

use super::*;

/// The leader had proposed its addition when the removal was applied.
#[test]
fn node_removed_while_it_is_added_is_removed_afterwards() {
    let mut harness = three();
    let id = joined(&mut harness);
    assert_eq!(want(&mut harness, id, NodeRole::Removed), DONE);
    harness.members(&[voters(&[1, 2, 3]), vec![member(id, false)]].concat());
    assert_eq!(harness.machine.removed_at(id), None);
    let wanted = harness.machine.wanted_members().pop().expect("wanted");
    assert_eq!((wanted.node_id, wanted.role), (id, WantedRole::Removed));
    harness.members(&voters(&[1, 2, 3]));
    assert_eq!(harness.machine.removed_at(id), Some(harness.last_index()));
}

#[test]
fn role_changes_only_to_voter_or_removed() {
    let mut harness = three();
    let command = AllocateNode { token_digest: digest_of(9), ..allocation(9, NodeRole::Learner, None) };
    let id = id_in(harness.one(START, Command::AllocateNode(command)));
    for role in [NodeRole::Learner, NodeRole::Unspecified] {
        assert_eq!(want(&mut harness, 1, role), refused(Refusal::NodeRoleNotAllowed));
    }
    assert_eq!(want(&mut harness, 99, NodeRole::Voter), refused(Refusal::UnknownNode));
    assert_eq!(want(&mut harness, 99, NodeRole::Removed), refused(Refusal::UnknownNode));
    assert_eq!(want(&mut harness, id, NodeRole::Voter), refused(Refusal::NodeNotJoined));
    id_in(join_at(&mut harness, START, joining(id, 9, 4)));
    assert_eq!(want(&mut harness, id, NodeRole::Voter), DONE);
    assert_eq!(want(&mut harness, id, NodeRole::Voter), UNCHANGED);
    assert_eq!(node(&harness, id).stage(), NodeStage::Joining, "the membership decides the stage");
    assert_eq!(want(&mut harness, 1, NodeRole::Voter), UNCHANGED);
    assert_eq!(want(&mut harness, 1, NodeRole::Removed), DONE);
    assert_eq!(want(&mut harness, 1, NodeRole::Removed), UNCHANGED);
    assert_eq!(node(&harness, 1).stage(), NodeStage::Voter);
    assert_eq!(want(&mut harness, 1, NodeRole::Voter), DONE, "a removal that waits is withdrawn");
}

#[test]
fn last_voter_is_not_removed() {
    let mut harness = StateHarness::default();
    harness.members(&voters(&[1, 2]));
    assert_eq!(want(&mut harness, 1, NodeRole::Removed), DONE);
    assert_eq!(want(&mut harness, 2, NodeRole::Removed), refused(Refusal::LastVoter));
    harness.members(&voters(&[2]));
    assert_eq!(want(&mut harness, 2, NodeRole::Removed), refused(Refusal::LastVoter));
    // Neither an invitation nor a node that shall be a learner takes over.
    invited(&mut harness, START, 1);
    let learner = Command::AllocateNode(allocation(3, NodeRole::Learner, None));
    let learner = id_in(harness.one(START, learner));
    id_in(join_at(&mut harness, START, joining(learner, 3, 4)));
    assert_eq!(want(&mut harness, 2, NodeRole::Removed), refused(Refusal::LastVoter));
    assert_eq!(want(&mut harness, learner, NodeRole::Voter), DONE);
    assert_eq!(want(&mut harness, 2, NodeRole::Removed), DONE);
    assert_eq!(want(&mut harness, learner, NodeRole::Removed), refused(Refusal::LastVoter));
}

#[test]
fn bootstrap_members_get_rows_and_log_time_does_not_begin() {
    let mut harness = StateHarness::default();
    let member = MemberEntry { address: String::new(), ..member(7, true) };
    harness.members(&[member]);
    let expected = Node {
        node_id: 7,
        stage: NodeStage::Voter.into(),
        wanted: NodeRole::Voter.into(),
        disk_id: vec![7; 16].into(),
        created_index: 1,
        joined_index: 1,
        ..Node::default()
    };
    assert_eq!(node(&harness, 7), expected);
    assert_eq!(harness.rows.0.len(), 2, "the row, and the largest id");
}

#[test]
fn membership_entry_sets_roles_and_removes_for_ever() {
    let mut harness = three();
    let id = joined(&mut harness);
    let open = invited(&mut harness, START, 1);
    let row = |id, stage, role| (id, stage, role);
    let others = |stage| {
        vec![
            row(1, NodeStage::Voter, NodeRole::Voter),
            row(2, NodeStage::Voter, NodeRole::Voter),
            row(3, NodeStage::Voter, NodeRole::Voter),
            row(id, stage, NodeRole::Voter),
            row(open, NodeStage::Invited, NodeRole::Voter),
        ]
    };
    harness.members(&voters(&[1, 2, 3]));
    assert_eq!(stages(&harness), others(NodeStage::Joining), "a joining node is not removed");
    harness.members(&[voters(&[1, 2, 3]), vec![member(id, false)]].concat());
    assert_eq!(stages(&harness), others(NodeStage::Learner));
    assert_eq!(node(&harness, id).token_digest, digest_of(9), "a retry is still answered");
    harness.members(&voters(&[1, 2, 3, id]));
    assert_eq!(stages(&harness), others(NodeStage::Voter));
    harness.members(&voters(&[1, id]));
    let removed = harness.last_index();
    for gone in [2, 3] {
        assert_eq!(harness.machine.removed_at(gone), Some(removed));
    }
    harness.members(&voters(&[1, id]));
    assert_eq!(harness.machine.removed_at(2), Some(removed), "recorded once");
    assert_eq!(harness.machine.removed_at(1), None);
    assert_eq!(harness.machine.removed_at(open), None);
    assert_eq!(harness.machine.removed_at(99), None);
    let wanted: Vec<u64> = harness.machine.wanted_members().iter().map(|wanted| wanted.node_id).collect();
    assert_eq!(wanted, [1, id]);
}

#[test]
fn unchanged_membership_writes_nothing() {
    let harness = three();
    let writes = harness.machine.record_members(&harness.rows, &voters(&[3, 1, 2]), 9).expect("records");
    assert_eq!(writes, []);
}

#[test]
fn rebuild_restores_nodes() {
    let mut harness = three();
    let id = joined(&mut harness);
    invited(&mut harness, START, 1);
    harness.members(&voters(&[1, 2, id]));
    let restarted = Replicated::default();
    restarted.rebuild(&harness.rows).expect("rebuilds");
    assert_eq!(restarted.index().nodes, harness.machine.index().nodes);
    assert_eq!(restarted.wanted_members(), harness.machine.wanted_members());
    assert_eq!(restarted.removed_at(3), harness.machine.removed_at(3));
}

#[test]
fn row_of_another_node_or_with_a_cut_disk_is_corrupt() {
    let row = |disk: usize| Node {
        node_id: 4,
        stage: NodeStage::Voter.into(),
        disk_id: vec![4; disk].into(),
        ..Node::default()
    };
    assert!(from_row(&4u64.to_be_bytes(), &row(16).encode_to_vec()).is_ok());
    assert!(from_row(&5u64.to_be_bytes(), &row(16).encode_to_vec()).is_err());
    assert!(from_row(&4u64.to_be_bytes(), &row(15).encode_to_vec()).is_err());
}
