//! No change of the membership lets a node answer from a state before an acknowledged revocation.

use stateright::{Checker as _, HasDiscoveries, Model as _};
use trust_fabric_models::membership::{
    ALLOCATE_AND_REPLACE, Change, JOIN, Members, NEVER_STALE, NEVER_STUCK, NEVER_WRONG, REMOVE_FOLLOWER,
    REMOVE_LEADER, REMOVE_LEADER_OF_TWO, REMOVE_ONE_OR_THE_OTHER, REMOVE_ONE_OR_THE_OTHER_OF_FOUR, REPLACE,
    Rule,
};

fn check(change: Change, terms: u8, readers: &[usize]) {
    for reader in readers {
        let model = Members { change, reader: *reader, terms, without: None };
        let checker = model.checker().threads(2).spawn_bfs().join();
        println!("reader {reader}, {terms} terms: {} states", checker.unique_state_count());
        for property in [NEVER_STALE, NEVER_WRONG, NEVER_STUCK] {
            if let Some(path) = checker.discovery(property) {
                panic!("{property}: {:?}", path.into_actions());
            }
        }
        checker.assert_properties();
    }
}

#[test]
fn removal_of_a_follower_lets_no_node_be_stale() {
    check(REMOVE_FOLLOWER, 2, &[0, 1, 2]);
}

#[test]
fn removal_of_the_leader_lets_no_node_be_stale() {
    check(REMOVE_LEADER, 2, &[0, 1, 2]);
    check(REMOVE_LEADER_OF_TWO, 2, &[0, 1]);
}

#[test]
fn replacement_lets_no_removed_member_be_stale() {
    check(REPLACE, 2, &[2]);
}

#[test]
fn replacement_lets_no_new_member_be_stale() {
    check(REPLACE, 2, &[3]);
}

#[test]
#[ignore = "takes most of a minute"]
fn replacement_lets_no_other_member_be_stale() {
    check(REPLACE, 2, &[0, 1]);
}

#[test]
fn joining_lets_no_node_be_stale() {
    check(JOIN, 2, &[0, 1, 3]);
}

#[test]
fn two_changes_let_no_node_be_stale() {
    check(REMOVE_ONE_OR_THE_OTHER, 2, &[0, 1, 2, 3]);
}

#[test]
#[ignore = "takes minutes"]
fn longer_runs_let_no_node_be_stale() {
    check(REMOVE_LEADER, 3, &[0, 1, 2]);
    check(REMOVE_LEADER_OF_TWO, 4, &[0, 1]);
    check(JOIN, 3, &[0, 1, 3]);
}

#[test]
#[ignore = "takes minutes"]
fn two_changes_of_four_let_no_node_be_stale() {
    check(REMOVE_ONE_OR_THE_OTHER_OF_FOUR, 2, &[0, 1, 2, 3]);
}

/// Finds the shortest order of events that breaks a property without this rule.
fn breaks(rule: Rule, property: &'static str, change: Change, reader: usize) {
    let model = Members { change, reader, terms: 2, without: Some(rule) };
    let checker =
        model.checker().threads(2).finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
    let path = checker.discovery(property);
    let path = path.unwrap_or_else(|| panic!("{rule:?} is unnecessary, or its violation invisible"));
    println!("without {rule:?}, {} states: {:?}", checker.unique_state_count(), path.into_actions());
}

#[test]
fn barrier_that_ignores_a_removed_member_is_stale() {
    breaks(Rule::WaitsForRemoved, NEVER_STALE, REMOVE_FOLLOWER, 2);
}

#[test]
fn barrier_that_ignores_a_learner_is_stale() {
    breaks(Rule::WaitsForLearners, NEVER_STALE, JOIN, 3);
}

/// The removed leader holds a lease, and its only successor knows no other member.
#[test]
fn last_member_that_does_not_wait_is_stale() {
    breaks(Rule::LastMemberWaits, NEVER_STALE, REMOVE_LEADER_OF_TWO, 0);
}

#[test]
fn learner_that_reads_without_a_lease_is_stale() {
    breaks(Rule::LearnersNeedALease, NEVER_STALE, JOIN, 3);
}

#[test]
fn replacement_in_one_step_is_stale() {
    breaks(Rule::ChangesJointly, NEVER_STALE, REPLACE, 3);
}

#[test]
fn change_before_the_last_one_is_committed_is_stale() {
    breaks(Rule::OneChangeAtATime, NEVER_STALE, REPLACE, 3);
}

#[test]
fn removed_leader_that_counts_itself_is_stale() {
    breaks(Rule::OthersCountForARemovedLeader, NEVER_STALE, REMOVE_LEADER_OF_TWO, 1);
}

/// Its only successor has the joint membership, and needs the vote of a node that no longer exists.
#[test]
fn leader_that_steps_down_unconfirmed_leaves_no_leader() {
    breaks(Rule::SuccessorsConfirm, NEVER_STUCK, REMOVE_LEADER_OF_TWO, 0);
}

#[test]
fn new_disk_under_an_old_id_is_stale() {
    breaks(Rule::NewDiskHasANewId, NEVER_STALE, REMOVE_FOLLOWER, 1);
}

/// Its removal is in the log of the old leader only, and it is elected.
#[test]
fn uncommitted_removal_refuses_a_member() {
    breaks(Rule::RemovalIsCommitted, NEVER_WRONG, REMOVE_FOLLOWER, 0);
}

/// It knows that the id was allocated, and missed that the node joined.
#[test]
fn id_below_the_next_one_refuses_a_member() {
    breaks(Rule::RemovalIsRecorded, NEVER_WRONG, ALLOCATE_AND_REPLACE, 0);
}
