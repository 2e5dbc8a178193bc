//! The next step of a membership change.

use openraft::alias::CommittedLeaderIdOf;
use openraft::vote::RaftLeaderId as _;
use std::sync::Arc;

use super::*;
use crate::cluster::type_config::{Membership, StoredMembership};

const HERE: Contact = Contact { answers: Answers::Yes, lag: 0 };
const SILENT: Contact = Contact { answers: Answers::No, lag: 0 };

fn record(id: u64) -> MemberRecord {
    MemberRecord { address: format!("node-{id}:8695"), disk_id: [u8::try_from(id).expect("small"); 16] }
}

fn stored(index: u64, voters: &[&[u64]], learners: &[u64]) -> Arc<StoredMembership> {
    let configs: Vec<BTreeSet<u64>> = voters.iter().map(|set| set.iter().copied().collect()).collect();
    let ids = configs.iter().flatten().chain(learners);
    let nodes: BTreeMap<u64, MemberRecord> = ids.map(|id| (*id, record(*id))).collect();
    let log_id = LogId::new(CommittedLeaderIdOf::<TypeConfig>::new(1, 1), index);
    Arc::new(StoredMembership::new(Some(log_id), Membership::new(configs, nodes).expect("members")))
}

fn committed(voters: &[&[u64]], learners: &[u64]) -> KnownMembers {
    let entry = stored(5, voters, learners);
    KnownMembers { effective: Arc::clone(&entry), committed: entry }
}

fn wanted(node_id: u64, role: WantedRole, replaces: Option<u64>) -> WantedMember {
    let MemberRecord { address, disk_id } = record(node_id);
    WantedMember { node_id, address, disk_id, role, replaces }
}

/// The next step of node 1 as leader, if every member but these answers.
fn next(members: &KnownMembers, silent: &[u64], wanted: &[WantedMember]) -> (Option<Step>, WaitingChanges) {
    let ids = members.all().into_keys().filter(|id| *id != 1);
    let contact = |id| if silent.contains(&id) { SILENT } else { HERE };
    let contacts: BTreeMap<u64, Contact> = ids.map(|id| (id, contact(id))).collect();
    Cluster { node_id: 1, is_disputed: false, members, contacts: &contacts }.next(wanted)
}

fn waits(node_id: u64, reason: WaitReason) -> (Option<Step>, WaitingChanges) {
    (None, WaitingChanges::from([(node_id, reason)]))
}

fn takes(step: Step) -> (Option<Step>, WaitingChanges) {
    (Some(step), WaitingChanges::new())
}

#[test]
fn joined_node_becomes_a_learner_and_then_a_voter() {
    let joins = [wanted(4, WantedRole::Voter, None)];
    let before = committed(&[&[1, 2, 3]], &[]);
    assert_eq!(next(&before, &[], &joins), takes(Step::AddLearner(4, record(4))));
    let learns = committed(&[&[1, 2, 3]], &[4]);
    assert_eq!(next(&learns, &[], &joins), takes(Step::SetVoters(BTreeSet::from([1, 2, 3, 4]))));
    assert_eq!(next(&learns, &[], &[wanted(4, WantedRole::Learner, None)]), (None, WaitingChanges::new()));
    assert_eq!(next(&learns, &[4], &joins), waits(4, WaitReason::NoAnswer));
    let lag = limits::LEARNER_LAG_MAX + 1;
    let contacts = BTreeMap::from([(2, HERE), (3, HERE), (4, Contact { lag, ..HERE })]);
    let lags = Cluster { node_id: 1, is_disputed: false, members: &learns, contacts: &contacts }.next(&joins);
    assert_eq!(lags, waits(4, WaitReason::Lags { lag }));
}

#[test]
fn replacement_waits_until_the_replaced_voter_is_silent() {
    let replaces = [wanted(4, WantedRole::Voter, Some(3))];
    let learns = committed(&[&[1, 2, 3]], &[4]);
    assert_eq!(next(&learns, &[], &replaces), waits(4, WaitReason::ReplacedIsAlive(3)));
    assert_eq!(next(&learns, &[3], &replaces), takes(Step::SetVoters(BTreeSet::from([1, 2, 4]))));
    let contacts = BTreeMap::from([(2, HERE), (3, Contact::default()), (4, HERE)]);
    let new_leader = Cluster { node_id: 1, is_disputed: false, members: &learns, contacts: &contacts };
    assert_eq!(new_leader.next(&replaces), waits(4, WaitReason::ReplacedIsUnknown(3)));
    let itself = [wanted(4, WantedRole::Voter, Some(1))];
    assert_eq!(next(&learns, &[], &itself), waits(4, WaitReason::ReplacedIsAlive(1)));
    let removed_before = committed(&[&[1, 2]], &[4]);
    assert_eq!(next(&removed_before, &[], &replaces), takes(Step::SetVoters(BTreeSet::from([1, 2, 4]))));
}

#[test]
fn removal_leaves_a_quorum_that_answers() {
    let (three, gone) = (committed(&[&[1, 2, 3]], &[]), [wanted(2, WantedRole::Removed, None)]);
    assert_eq!(next(&three, &[], &gone), takes(Step::SetVoters(BTreeSet::from([1, 3]))));
    assert_eq!(next(&three, &[2], &gone), takes(Step::SetVoters(BTreeSet::from([1, 3]))));
    assert_eq!(next(&three, &[3], &gone), waits(2, WaitReason::NoQuorum { present: 1, voters: 2 }));
    assert_eq!(next(&committed(&[&[1, 2]], &[]), &[2], &gone), takes(Step::SetVoters(BTreeSet::from([1]))));
    let learner = [wanted(4, WantedRole::Removed, None)];
    assert_eq!(next(&committed(&[&[1, 2, 3]], &[4]), &[4], &learner), takes(Step::RemoveLearner(4)));
    assert_eq!(next(&three, &[], &learner), (None, WaitingChanges::new()), "removed already");
}

#[test]
fn leader_never_removes_itself() {
    let gone = [wanted(1, WantedRole::Removed, None)];
    let three = committed(&[&[1, 2, 3]], &[]);
    assert_eq!(next(&three, &[], &gone), takes(Step::Transfer));
    assert_eq!(next(&three, &[3], &gone), waits(1, WaitReason::NoQuorum { present: 1, voters: 2 }));
    assert_eq!(next(&committed(&[&[1, 2]], &[]), &[2], &gone), waits(1, WaitReason::NoSuccessor));
    assert_eq!(next(&committed(&[&[1]], &[4]), &[], &gone), waits(1, WaitReason::LastVoter));
}

#[test]
fn one_change_is_made_at_a_time() {
    let both = [wanted(2, WantedRole::Removed, None), wanted(4, WantedRole::Voter, None)];
    let (step, waiting) = next(&committed(&[&[1, 2, 3]], &[]), &[], &both);
    assert_eq!(step, Some(Step::SetVoters(BTreeSet::from([1, 3]))));
    assert_eq!(waiting, WaitingChanges::from([(4, WaitReason::InProgress)]));
    let uncommitted = KnownMembers {
        effective: stored(6, &[&[1, 2, 3], &[1, 3]], &[]),
        committed: stored(5, &[&[1, 2, 3]], &[]),
    };
    let in_progress = WaitingChanges::from([(2, WaitReason::InProgress), (4, WaitReason::InProgress)]);
    assert_eq!(next(&uncommitted, &[], &both), (None, in_progress));
    let joint = committed(&[&[1, 2, 3], &[1, 3]], &[]);
    assert_eq!(next(&joint, &[], &[]), takes(Step::Complete), "begun by an earlier leader");
    // A change that waits does not stop another one.
    let (step, waiting) = next(
        &committed(&[&[1, 2, 3]], &[4]),
        &[4],
        &[wanted(4, WantedRole::Voter, None), wanted(5, WantedRole::Learner, None)],
    );
    assert_eq!(step, Some(Step::AddLearner(5, record(5))));
    assert_eq!(waiting, WaitingChanges::from([(4, WaitReason::NoAnswer)]));
}

#[test]
fn only_a_first_node_without_other_members_was_alone() {
    let alone = |index, voters: &[&[u64]]| {
        let entry = stored(index, voters, &[]);
        KnownMembers { effective: Arc::clone(&entry), committed: entry }.was_always_alone(1)
    };
    assert!(alone(0, &[&[1]]));
    assert!(!alone(7, &[&[1]]), "others were removed");
    assert!(!alone(0, &[&[1, 2, 3]]));
    assert!(!KnownMembers::default().was_always_alone(1));
}

/// Regression: a node that caught up for 40 s was logged 229 times, each time with another lag.
#[test]
fn changing_lag_is_logged_once() {
    let waiting = |reason: WaitReason| WaitingChanges::from([(4, reason)]);
    let logged = |now: &WaitingChanges, before: &WaitingChanges| newly_waiting(now, before).count();
    let (far, near) = (waiting(WaitReason::Lags { lag: 42_458 }), waiting(WaitReason::Lags { lag: 1_001 }));
    assert_eq!(logged(&far, &WaitingChanges::new()), 1);
    assert_eq!(logged(&near, &far), 0);
    assert_eq!(logged(&near, &waiting(WaitReason::NoAnswer)), 1);
    assert_eq!(logged(&near, &WaitingChanges::from([(5, WaitReason::Lags { lag: 1_001 })])), 1);
}

/// The leader could remove the voters that contradict it, or add one that has its state.
#[test]
fn no_membership_changes_during_a_dispute() {
    let changes = [wanted(2, WantedRole::Removed, None), wanted(4, WantedRole::Voter, Some(3))];
    let contacts = BTreeMap::from([(2, HERE), (3, SILENT), (4, HERE)]);
    let next = |members: &KnownMembers, is_disputed| {
        Cluster { node_id: 1, is_disputed, members, contacts: &contacts }.next(&changes)
    };
    let waiting = [2, 4].map(|id| (id, WaitReason::Disputed));
    let (members, joint) = (committed(&[&[1, 2, 3]], &[4]), committed(&[&[1, 2, 3], &[1, 2, 4]], &[]));
    assert_eq!(next(&members, true), (None, WaitingChanges::from(waiting)));
    assert_eq!(next(&joint, true).0, None);
    assert!(next(&members, false).0.is_some() && next(&joint, false).0 == Some(Step::Complete));
}
