//! Nodes: join tokens, joins, roles and recorded memberships.

mod roles;

use std::time::Duration;

use super::*;
use crate::cluster::Machine as _;
use crate::state::command::{self, Bootstrap, Command, encode_once};
use crate::state::testing::{StateHarness, TestNode};
use crate::state::{Error, Replicated, feature_level};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const EXPIRED: Timestamp = Timestamp::from_secs(1_800_000_600);
const DONE: Reply = Reply::Done { changed: true };
const UNCHANGED: Reply = Reply::Done { changed: false };

fn digest_of(secret: u8) -> Bytes {
    vec![secret; 32].into()
}

fn allocation(secret: u8, role: NodeRole, replaces: Option<u64>) -> AllocateNode {
    AllocateNode { token_digest: digest_of(secret), role: role.into(), replaces, caller: "alice".to_owned() }
}

fn invite(harness: &mut StateHarness, at: Timestamp, secret: u8, replaces: Option<u64>) -> Reply {
    harness.one(at, Command::AllocateNode(allocation(secret, NodeRole::Voter, replaces)))
}

/// The id that is allocated for a token.
fn invited(harness: &mut StateHarness, at: Timestamp, secret: u8) -> u64 {
    id_in(invite(harness, at, secret, None))
}

fn id_in(reply: Reply) -> u64 {
    match reply {
        Reply::Node(NodeWritten { changed: true, node: Some(node) }) => node.node_id,
        other => panic!("{other:?}"),
    }
}

fn joining(node_id: u64, secret: u8, disk: u8) -> JoinNode {
    let address = format!("n{node_id}:8695");
    let (token_digest, disk_id) = (digest_of(secret), vec![disk; 16].into());
    JoinNode { node_id, token_digest, address, disk_id, feature_level: 0 }
}

fn join_at(harness: &mut StateHarness, at: Timestamp, node: JoinNode) -> Reply {
    harness.one(at, Command::JoinNode(node))
}

fn want(harness: &mut StateHarness, node_id: u64, role: NodeRole) -> Reply {
    harness.one(START, Command::WantRole(WantRole { node_id, role: role.into(), caller: "alice".to_owned() }))
}

const fn refused(refusal: Refusal) -> Reply {
    Reply::Refused(refusal)
}

/// A member as a membership entry names it; its disk is that of [`joined`].
fn member(node_id: u64, is_voter: bool) -> MemberEntry {
    let disk_id = [u8::try_from(node_id).expect("small"); 16];
    MemberEntry { node_id, address: format!("n{node_id}:8695"), disk_id, is_voter }
}

fn voters(ids: &[u64]) -> Vec<MemberEntry> {
    ids.iter().map(|id| member(*id, true)).collect()
}

/// A cluster that was bootstrapped with voters 1 to 3.
fn three() -> StateHarness {
    let mut harness = StateHarness::default();
    harness.members(&voters(&[1, 2, 3]));
    let id = Bytes::from_static(&[7; 16]);
    harness.one(
        START,
        Command::Bootstrap(Bootstrap { cluster_id: id.clone(), incarnation: id, feature_level: 0 }),
    );
    harness
}

/// A node that has used its token.
fn joined(harness: &mut StateHarness) -> u64 {
    let id = invited(harness, START, 9);
    let disk = u8::try_from(id).expect("small");
    assert_eq!(id_in(join_at(harness, START, joining(id, 9, disk))), id);
    id
}

fn node(harness: &StateHarness, id: u64) -> Node {
    Node::clone(&harness.machine.index().nodes[&id])
}

fn stages(harness: &StateHarness) -> Vec<(u64, NodeStage, NodeRole)> {
    let index = harness.machine.index();
    index.nodes.iter().map(|(id, node)| (*id, node.stage(), node.wanted())).collect()
}

/// Applies a refused command, which must change nothing.
fn assert_refused(harness: &mut StateHarness, at: Timestamp, command: Command, refusal: Refusal) {
    let (before, text) = (harness.machine.index().nodes.clone(), format!("{command:?}"));
    assert_eq!(harness.one(at, command), refused(refusal), "{text}");
    assert_eq!(harness.machine.index().nodes, before, "{text}");
}

#[test]
fn token_is_recorded_with_its_expiry_and_its_role() {
    let mut harness = three();
    for (secret, role) in [(1, NodeRole::Voter), (2, NodeRole::Learner)] {
        let id = id_in(harness.one(START, Command::AllocateNode(allocation(secret, role, None))));
        let index = harness.last_index();
        let expected = Node {
            node_id: id,
            stage: NodeStage::Invited.into(),
            wanted: role.into(),
            token_digest: digest_of(secret),
            token_expires_at_millis: EXPIRED.millis(),
            created_index: index,
            ..Node::default()
        };
        assert_eq!((id, node(&harness, id)), (3 + u64::from(secret), expected));
    }
    let ids: Vec<u64> = harness.machine.wanted_members().iter().map(|wanted| wanted.node_id).collect();
    assert_eq!(ids, [1, 2, 3], "an invitation is no member");
}

#[test]
fn token_for_another_role_is_refused() {
    let mut harness = three();
    for role in [NodeRole::Removed, NodeRole::Unspecified] {
        let command = Command::AllocateNode(allocation(1, role, None));
        assert_refused(&mut harness, START, command, Refusal::NodeRoleNotAllowed);
    }
}

#[test]
fn digest_of_another_length_is_corrupt() {
    let harness = three();
    for (secret, disk) in [(31, 16), (33, 16), (0, 16), (32, 15), (32, 0)] {
        let mut other = three();
        let id = invited(&mut other, START, 1);
        let token_digest = Bytes::from(vec![1; secret]);
        let (command, machine, rows) = if secret == 32 {
            let disk_id = Bytes::from(vec![1; disk]);
            (Command::JoinNode(JoinNode { disk_id, ..joining(id, 1, 1) }), &other.machine, &other.rows)
        } else {
            let command = AllocateNode { token_digest, ..allocation(1, NodeRole::Voter, None) };
            (Command::AllocateNode(command), &harness.machine, &harness.rows)
        };
        let stamp = crate::cluster::Stamp { time: START, ..Default::default() };
        let batch = crate::state::testing::batch(stamp, vec![command::encode(command)]);
        assert!(machine.apply(rows, &batch, 9).is_err(), "{secret} {disk}");
    }
}

#[test]
fn cluster_without_a_listener_creates_no_token() {
    let mut harness = StateHarness::default();
    let command = || Command::AllocateNode(allocation(1, NodeRole::Voter, None));
    assert_refused(&mut harness, START, command(), Refusal::ClusterWithoutListener);
    harness.members(&[MemberEntry { address: String::new(), ..member(1, true) }]);
    assert_refused(&mut harness, START, command(), Refusal::ClusterWithoutListener);
    let text = Refusal::ClusterWithoutListener.to_string();
    assert!(text.starts_with("this node was started without cluster.listen"), "{text}");
}

#[test]
fn token_over_the_limit_is_refused_until_one_expires() {
    let mut harness = StateHarness::default();
    harness.members(&voters(&[1]));
    // Replacements do not count as members, so that only the limit of tokens is met.
    let replace = |harness: &mut StateHarness, at| {
        harness.members(&voters(&(1..=20).collect::<Vec<_>>()));
        let last = u64::try_from(limits::JOIN_TOKENS_MAX).expect("small");
        for id in 1..=last {
            id_in(invite(harness, at, 1, Some(id)));
        }
        Command::AllocateNode(allocation(1, NodeRole::Voter, Some(last + 1)))
    };
    let more = replace(&mut harness, START);
    assert_refused(&mut harness, START, more.clone(), Refusal::TooManyJoinTokens);
    let just_before = EXPIRED.minus(Duration::from_millis(1));
    assert_refused(&mut harness, just_before, more.clone(), Refusal::TooManyJoinTokens);
    let id = id_in(harness.one(EXPIRED, more));
    assert_eq!(id, 37, "ids of expired tokens are not allocated again");
    let invited: Vec<u64> =
        stages(&harness).iter().filter(|row| row.1 == NodeStage::Invited).map(|r| r.0).collect();
    assert_eq!(invited, [id], "expired invitations are deleted");
}

#[test]
fn used_token_makes_room_for_another() {
    let mut harness = StateHarness::default();
    harness.members(&voters(&(1..=17).collect::<Vec<_>>()));
    let ids: Vec<u64> = (1..=16).map(|id| id_in(invite(&mut harness, START, 1, Some(id)))).collect();
    assert_eq!(invite(&mut harness, START, 1, Some(17)), refused(Refusal::TooManyJoinTokens));
    id_in(join_at(&mut harness, START, joining(ids[0], 1, 1)));
    id_in(invite(&mut harness, START, 1, Some(17)));
}

#[test]
fn member_over_the_limit_is_refused() {
    let mut harness = three();
    for secret in 1..=6 {
        invited(&mut harness, START, secret);
    }
    let more = Command::AllocateNode(allocation(7, NodeRole::Learner, None));
    assert_refused(&mut harness, START, more.clone(), Refusal::TooManyMembers);
    id_in(invite(&mut harness, START, 8, Some(2)));
    assert_refused(&mut harness, START, more.clone(), Refusal::TooManyMembers);
    assert_eq!(want(&mut harness, 4, NodeRole::Removed), DONE);
    assert_eq!(id_in(harness.one(START, more.clone())), 11);
    assert_refused(&mut harness, START, more.clone(), Refusal::TooManyMembers);
    assert_eq!(id_in(harness.one(EXPIRED, more)), 12, "expired tokens do not count");
}

/// A replacement counts as a member as soon as its predecessor is gone.
#[test]
fn seat_of_a_removed_member_goes_to_its_replacement() {
    let mut harness = StateHarness::default();
    let all: Vec<u64> = (1..=9).collect();
    harness.members(&voters(&all));
    let replacement = id_in(invite(&mut harness, START, 1, Some(9)));
    assert_eq!(replacement, 10);
    harness.members(&voters(&all[..8]));
    let more = Command::AllocateNode(allocation(2, NodeRole::Voter, None));
    assert_refused(&mut harness, START, more, Refusal::TooManyMembers);
}

#[test]
fn only_a_lasting_voter_is_replaced_and_only_once() {
    let mut harness = three();
    let learner = joined(&mut harness);
    harness.members(&[voters(&[1, 2, 3]), vec![member(learner, false)]].concat());
    let open = invited(&mut harness, START, 1);
    assert_eq!(want(&mut harness, 2, NodeRole::Removed), DONE);
    for id in [0, 2, learner, open, 99] {
        let command = Command::AllocateNode(allocation(1, NodeRole::Voter, Some(id)));
        assert_refused(&mut harness, START, command, Refusal::NotReplaceable);
    }
    let first = id_in(invite(&mut harness, START, 1, Some(3)));
    let second = || Command::AllocateNode(allocation(2, NodeRole::Voter, Some(3)));
    assert_refused(&mut harness, START, second(), Refusal::NotReplaceable);
    assert_eq!(want(&mut harness, first, NodeRole::Removed), DONE);
    assert!(id_in(harness.one(START, second())) > first);
    assert!(id_in(harness.one(EXPIRED, second())) > first, "an expired replacement is none");
}

#[test]
fn replacement_names_its_predecessor_and_may_have_its_address() {
    let mut harness = three();
    let id = id_in(invite(&mut harness, START, 1, Some(2)));
    let same_address = JoinNode { address: "n2:8695".to_owned(), ..joining(id, 1, 4) };
    let of_another = JoinNode { address: "n3:8695".to_owned(), ..joining(id, 1, 4) };
    assert_eq!(join_at(&mut harness, START, of_another), refused(Refusal::NodeAddressUsed));
    id_in(join_at(&mut harness, START, same_address));
    let wanted = harness.machine.wanted_members();
    let replacement = wanted.iter().find(|wanted| wanted.node_id == id).expect("wanted");
    assert_eq!((replacement.replaces, replacement.role), (Some(2), WantedRole::Voter));
    // The joint membership has both, the final one the new voter only.
    let new = MemberEntry { address: "n2:8695".to_owned(), ..member(id, true) };
    harness.members(&[voters(&[1, 2, 3]), vec![new.clone()]].concat());
    assert_eq!((node(&harness, 2).stage(), node(&harness, id).stage()), (NodeStage::Voter, NodeStage::Voter));
    harness.members(&[voters(&[1, 3]), vec![new]].concat());
    assert_eq!(harness.machine.removed_at(2), Some(harness.last_index()));
    assert_eq!(node(&harness, id).stage(), NodeStage::Voter);
}

#[test]
fn ids_are_never_allocated_again() {
    let mut harness = three();
    assert_eq!(invited(&mut harness, START, 1), 4);
    assert_eq!(want(&mut harness, 4, NodeRole::Removed), DONE);
    assert_eq!(invited(&mut harness, START, 2), 5);
    assert_eq!(invited(&mut harness, EXPIRED, 3), 6, "5 has expired");
    harness.members(&voters(&[1, 2, 3, 40]));
    harness.members(&voters(&[1, 2]));
    assert_eq!(invited(&mut harness, EXPIRED, 4), 41);
    let restarted = Replicated::default();
    restarted.rebuild(&harness.rows).expect("rebuilds");
    assert_eq!(restarted.index().nodes, harness.machine.index().nodes);
    harness.machine = restarted;
    assert_eq!(invited(&mut harness, EXPIRED, 5), 42);
}

#[test]
fn node_ids_end_at_their_maximum() {
    let mut harness = three();
    let max = limits::NODE_ID_MAX;
    let last =
        |node_id| MemberEntry { node_id, address: "last:1".to_owned(), disk_id: [1; 16], is_voter: true };
    harness.members(&[voters(&[1, 2]), vec![last(max - 1)]].concat());
    assert_eq!(invited(&mut harness, START, 1), max);
    let more = || Command::AllocateNode(allocation(2, NodeRole::Voter, None));
    assert_refused(&mut harness, START, more(), Refusal::NodeIdsExhausted);
    harness.members(&[voters(&[1, 2]), vec![last(u64::MAX)]].concat());
    assert_refused(&mut harness, START, more(), Refusal::NodeIdsExhausted);
}

#[test]
fn join_records_address_and_disk_once() {
    let mut harness = three();
    let id = invited(&mut harness, START, 1);
    let before = node(&harness, id);
    id_in(join_at(&mut harness, START, joining(id, 1, 4)));
    let stored = Node {
        stage: NodeStage::Joining.into(),
        address: "n4:8695".to_owned(),
        disk_id: vec![4; 16].into(),
        joined_index: harness.last_index(),
        ..before
    };
    assert_eq!(node(&harness, id), stored);
    let wanted = harness.machine.wanted_members().pop().expect("wanted");
    let (node_id, address, role) = (id, "n4:8695".to_owned(), WantedRole::Voter);
    assert_eq!(wanted, WantedMember { node_id, address, disk_id: [4; 16], role, replaces: None });
    let repeated = Reply::Node(NodeWritten { changed: false, node: Some(stored) });
    for at in [START, EXPIRED] {
        assert_eq!(join_at(&mut harness, at, joining(id, 1, 4)), repeated, "also after its expiry");
    }
    harness.members(&[voters(&[1, 2, 3]), vec![member(id, false)]].concat());
    let Reply::Node(repeated) = join_at(&mut harness, EXPIRED, joining(id, 1, 4)) else { panic!("a node") };
    assert_eq!(repeated.node.expect("a node").stage(), NodeStage::Learner);
    assert!(!repeated.changed);
}

/// Attacks: a guessed secret, another's token, a used token on another disk, and the empty digest of a bootstrap member.
#[test]
fn join_with_a_wrong_token_is_refused() {
    let mut harness = three();
    let (own, other) = (invited(&mut harness, START, 1), invited(&mut harness, START, 2));
    for (node, refusal) in [
        (joining(own, 3, 4), Refusal::UnknownJoinToken),
        (joining(own, 2, 4), Refusal::UnknownJoinToken),
        (joining(99, 1, 4), Refusal::UnknownJoinToken),
        (joining(1, 1, 1), Refusal::UnknownJoinToken),
        (JoinNode { token_digest: Bytes::new(), ..joining(1, 1, 1) }, Refusal::UnknownJoinToken),
        (JoinNode { token_digest: Bytes::new(), ..joining(own, 1, 1) }, Refusal::UnknownJoinToken),
        (JoinNode { address: "n1:8695".to_owned(), ..joining(own, 1, 4) }, Refusal::NodeAddressUsed),
    ] {
        assert_refused(&mut harness, START, Command::JoinNode(node), refusal);
    }
    id_in(join_at(&mut harness, START, joining(own, 1, 4)));
    for (node, refusal) in [
        (joining(own, 1, 5), Refusal::JoinTokenUsed),
        (JoinNode { address: "n9:8695".to_owned(), ..joining(own, 1, 4) }, Refusal::JoinTokenUsed),
        (joining(own, 3, 4), Refusal::UnknownJoinToken),
        (JoinNode { address: "n4:8695".to_owned(), ..joining(other, 2, 5) }, Refusal::NodeAddressUsed),
    ] {
        assert_refused(&mut harness, START, Command::JoinNode(node), refusal);
    }
}

#[test]
fn join_with_an_expired_or_revoked_token_is_refused() {
    let mut harness = three();
    let [late, revoked, early] = [1, 2, 3].map(|secret| invited(&mut harness, START, secret));
    let last = EXPIRED.minus(Duration::from_millis(1));
    id_in(join_at(&mut harness, last, joining(early, 3, 6)));
    assert_eq!(want(&mut harness, revoked, NodeRole::Removed), DONE);
    let refusal = refused(Refusal::UnknownJoinToken);
    assert_eq!(join_at(&mut harness, last, joining(revoked, 2, 5)), refusal);
    let expired = Command::JoinNode(joining(late, 1, 4));
    assert_refused(&mut harness, EXPIRED, expired.clone(), Refusal::JoinTokenExpired);
    invited(&mut harness, EXPIRED, 4);
    assert_refused(&mut harness, EXPIRED, expired, Refusal::UnknownJoinToken);
}

#[test]
fn removed_node_does_not_join_again() {
    let mut harness = three();
    let id = joined(&mut harness);
    assert_eq!(want(&mut harness, id, NodeRole::Removed), DONE);
    let removed_index = harness.last_index();
    assert_eq!(harness.machine.removed_at(id), Some(removed_index), "it was no member yet");
    let retained = Node {
        node_id: id,
        stage: NodeStage::Removed.into(),
        wanted: NodeRole::Removed.into(),
        removed_index,
        ..Node::default()
    };
    assert_eq!(node(&harness, id), retained);
    for digest in [digest_of(9), Bytes::new()] {
        let again = Command::JoinNode(JoinNode { token_digest: digest, ..joining(id, 9, 4) });
        assert_refused(&mut harness, START, again, Refusal::NodeRemoved);
    }
    assert_eq!(want(&mut harness, id, NodeRole::Voter), refused(Refusal::NodeRemoved));
    assert_eq!(want(&mut harness, id, NodeRole::Removed), UNCHANGED);
    assert!(harness.machine.wanted_members().iter().all(|wanted| wanted.node_id != id));
}

/// A key that was in progress when its node was removed stayed in the JWK Set for good, out of reach of its cluster.
#[test]
fn removed_node_publishes_no_key() {
    let mut harness = three();
    let id = joined(&mut harness);
    let publish = |kid: &str| {
        let (kid, jwk, algorithm) = (kid.to_owned(), "{}".to_owned(), String::new());
        Command::PublishSigningKey(command::PublishSigningKey { kid, node_id: id, jwk, algorithm })
    };
    assert_eq!(harness.one(START, publish("before")), DONE);
    assert_eq!(want(&mut harness, id, NodeRole::Removed), DONE);
    assert_refused(&mut harness, START, publish("after"), Refusal::NodeRemoved);
}

/// A retry draws another secret; its token would be void.
#[test]
fn retried_allocation_returns_the_first_token() {
    let mut harness = three();
    let [key, request, owner] = [1, 2, 3].map(|byte| vec![byte; 16].into());
    let key = command::Idempotency { key, request, owner };
    let allocate = |harness: &mut StateHarness, secret| {
        let command = Command::AllocateNode(allocation(secret, NodeRole::Voter, None));
        harness.replied(START, vec![encode_once(command, Some(key.clone()))]).remove(0)
    };
    let first = allocate(&mut harness, 1);
    let again = allocate(&mut harness, 2);
    assert!(!first.is_repeated && again.is_repeated);
    assert_eq!(first.outcome, again.outcome);
    let [digest] = [again.outcome].map(|outcome| match outcome {
        Reply::Node(NodeWritten { node: Some(node), .. }) => node.token_digest,
        other => panic!("{other:?}"),
    });
    assert_eq!(digest, digest_of(1));
    assert_eq!(harness.machine.index().nodes.len(), 4);
}

#[test]
fn outcome_does_not_depend_on_batching() {
    let commands = || {
        vec![
            Command::AllocateNode(allocation(1, NodeRole::Voter, None)),
            Command::JoinNode(joining(4, 1, 4)),
            Command::AllocateNode(allocation(2, NodeRole::Voter, Some(1))),
            Command::WantRole(WantRole { node_id: 5, role: NodeRole::Removed.into(), ..Default::default() }),
            Command::AllocateNode(allocation(3, NodeRole::Voter, Some(1))),
        ]
    };
    let (mut together, mut apart) = (three(), three());
    let replies = together.apply(START, commands());
    assert!(replies.iter().all(|reply| !matches!(reply, Reply::Refused(_))), "{replies:?}");
    for command in commands() {
        apart.one(START, command);
    }
    assert_eq!(stages(&together), stages(&apart));
}

/// Through the log of a running node, which was started without a listener.
#[tokio::test]
async fn running_node_refuses_tokens_and_false_joins() {
    let running = TestNode::start(START).await;
    let state = &running.state;
    let index = state.cluster().applied();
    let joiner = |node_id| Joiner {
        node_id,
        token_digest: [1; 32],
        address: "n:1".to_owned(),
        disk_id: [9; 16],
        feature_level: feature_level::NEWEST,
    };
    for node_id in [1, 2] {
        let refused = state.admit_joiner(joiner(node_id)).await;
        assert!(matches!(refused, Err(Error::Refused(Refusal::UnknownJoinToken))), "{refused:?}");
    }
    assert_eq!(state.cluster().applied(), index, "a wrong token costs no entry");
    let token = state.as_node().allocate_node([1; 32], NodeRole::Voter, None).await;
    assert!(matches!(token, Err(Error::Refused(Refusal::ClusterWithoutListener))), "{token:?}");
    let removal = state.as_node().want_role(1, NodeRole::Removed).await;
    assert!(matches!(removal, Err(Error::Refused(Refusal::LastVoter))), "{removal:?}");
    let rows = state.index().nodes.clone();
    assert_eq!(rows[&1].stage(), NodeStage::Voter, "recorded from the bootstrap entry");
    running.end().await;
}
