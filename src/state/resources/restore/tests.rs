//! The command of a restore: incarnation, floor, nodes and keys.

use std::time::Duration;

use super::*;
use crate::cluster::{Machine as _, MemberEntry, Stamp};
use crate::id::{Digest128, LogPosition};
use crate::limits;
use crate::state::Replicated;
use crate::state::command::{
    Agent, Bootstrap, Caller, IssueAgent, PublishSigningKey, Refusal, RegisterEncryptionKey, Registrar,
    SpendToken, encode, encode_for,
};
use crate::state::resources::agents;
use crate::state::resources::revoked_fact::fact_row;
use crate::state::tables::{
    ENCRYPTION_KEY, ENCRYPTION_KEY_END, ENCRYPTION_KEY_OF, IDEMPOTENCY, NODES, OWNED, SIGNING_KEY,
};
use crate::state::testing::StateHarness;
use crate::token::lineage::Fact;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const HOUR: Duration = Duration::from_secs(3600);
const WORKLOAD: &str = "wimse://a.example/ns/demo/sa/reporter";

fn member(node_id: u64) -> MemberEntry {
    MemberEntry { node_id, address: format!("node-{node_id}:8695"), disk_id: [7; 16], is_voter: true }
}

fn publish(kid: &str, node_id: u64) -> Command {
    let (kid, jwk, algorithm) = (kid.into(), "{}".into(), String::new());
    Command::PublishSigningKey(PublishSigningKey { kid, node_id, jwk, algorithm })
}

fn restore(byte: u8, node_id: u64) -> Command {
    let [cluster_id, incarnation] = [byte, byte + 1].map(|byte| Bytes::from(vec![byte; 16]));
    Command::Restore(Restore { cluster_id, incarnation, node_id })
}

/// Three nodes with keys, after a bootstrap long ago.
fn cluster() -> StateHarness {
    let mut harness = StateHarness::default();
    harness.members(&[member(1), member(2), member(3)]);
    let id = Bytes::from(vec![1; 16]);
    harness.one(
        START.minus(HOUR),
        Command::Bootstrap(Bootstrap { cluster_id: id.clone(), incarnation: id, feature_level: 0 }),
    );
    harness.apply(START.minus(HOUR), (1..=3).map(|id| publish(&format!("k{id}"), id)).collect());
    let registrar = Some(Registrar { lineage: vec![vec![0xff; 16].into()], ..Registrar::default() });
    let (workload_id, kid, jwk) = (WORKLOAD.to_owned(), "e".to_owned(), "{}".to_owned());
    let register = RegisterEncryptionKey { workload_id, kid, jwk, registrar, is_agent: false };
    harness.one(START.minus(HOUR), Command::RegisterEncryptionKey(register));
    harness
}

/// The same, restored by node 2.
fn restored() -> StateHarness {
    let mut harness = cluster();
    harness.members(&[member(2)]);
    assert_eq!(harness.one(START, restore(5, 2)), DONE);
    harness
}

#[test]
fn incarnation_and_floor_are_rows_that_a_rebuild_reads() {
    let harness = restored();
    let index = harness.last_index();
    let floor = EpochFloor::new(index, START).expect("fits");
    let rebuilt = Replicated::default();
    rebuilt.rebuild(&harness.rows).expect("rebuilds");
    for machine in [&harness.machine, &rebuilt] {
        let known = machine.index();
        assert_eq!(known.cluster_id, Some(Incarnation::from_bytes([5; 16])));
        assert_eq!(known.incarnation, Some(Incarnation::from_bytes([6; 16])));
        assert_eq!(known.floor, Some(floor));
        let covers = |idx, iat| machine.revocations().covers(known.epoch(), &[], idx, iat);
        assert!(covers(None, START) && !covers(None, START.plus(HOUR)));
        let at = |byte, index| Some(LogPosition { incarnation: Incarnation::from_bytes([byte; 16]), index });
        assert!(covers(at(1, index), START.plus(HOUR)), "a token from before");
        assert!(!covers(at(6, index), START.minus(HOUR)), "a token from after");
    }
}

/// The clock of the machine is wrong by an hour, or the log showed a later time.
#[test]
fn floor_is_the_latest_of_log_and_clocks_and_never_sinks() {
    let at = |harness: &StateHarness| harness.machine.index().floor.expect("floor").last_refused();
    let mut harness = restored();
    let first = at(&harness);
    assert_eq!(harness.one(START.minus(HOUR), restore(7, 2)), DONE);
    assert_eq!(at(&harness), first);
    let stamp = Stamp { time: START, latest: START.plus(HOUR), elapsed: START };
    harness.stamped_as(stamp, vec![encode(restore(9, 2))]);
    assert_eq!(at(&harness), first.plus(HOUR));
    assert_eq!(harness.one(START, restore(11, 2)), DONE);
    assert_eq!(at(&harness), first.plus(HOUR), "a second restore of an older backup");
}

#[test]
fn creating_node_is_the_only_one_and_ids_above_it_are_free() {
    let harness = restored();
    let nodes = harness.machine.index().nodes.clone();
    assert_eq!(nodes.keys().copied().collect::<Vec<_>>(), [2]);
    assert_eq!(harness.machine.removed_at(1), None, "a fact of another cluster");
    let wanted = harness.machine.wanted_members();
    assert_eq!((wanted.len(), wanted[0].address.as_str()), (1, "node-2:8695"));
    assert_eq!(harness.rows.0.keys().filter(|(table, _)| table == NODES).count(), 1);
    let mut harness = harness;
    let allocate = command::AllocateNode {
        token_digest: vec![9; 32].into(),
        role: command::NodeRole::Voter.into(),
        ..command::AllocateNode::default()
    };
    let allocated = harness.one(START, Command::AllocateNode(allocate));
    assert!(
        matches!(&allocated, Reply::Node(written) if written.node.as_ref().is_some_and(|node| node.node_id == 3))
    );
}

#[test]
fn earlier_keys_are_gone_and_first_keys_sign_at_once() {
    let mut harness = restored();
    for table in [SIGNING_KEY, ENCRYPTION_KEY, ENCRYPTION_KEY_OF, ENCRYPTION_KEY_END] {
        assert!(!harness.rows.0.keys().any(|(known, _)| known == table), "{table}");
    }
    assert!(!harness.rows.0.keys().any(|(table, key)| table == OWNED && key.starts_with(b"key_subjects")));
    assert!(harness.machine.index().signing_keys.is_empty());
    // That of the node that bootstraps and that of a node that joins at once; a second key of a node is pending.
    harness.apply(START, vec![publish("a", 2), publish("b", 3), publish("c", 3)]);
    let known = harness.machine.index().signing_keys.clone();
    let waits = ["a", "b", "c"].map(|kid| known[kid].usable_from.since(known[kid].published_at));
    assert_eq!(waits, [Duration::ZERO, Duration::ZERO, limits::KEY_PUBLISH_AHEAD]);
}

#[test]
fn blocks_revocations_and_agents_survive() {
    let mut harness = cluster();
    let id = "wimse://a.example/agent/mcp/1";
    let agent = Agent { agent_id: id.to_owned(), ..Agent::default() };
    harness.one(START, Command::IssueAgent(IssueAgent { agent: Some(agent), issued_by: String::new() }));
    let stolen = Fact::workload(&WORKLOAD.parse().expect("an id"));
    let revoke = command::Revoke { fact: Some(fact_row(&stolen)), blocks: true, ..Default::default() };
    harness.one(START, Command::Revoke(revoke));
    harness.members(&[member(1)]);
    assert_eq!(harness.one(START, restore(5, 1)), DONE);
    let epoch = harness.machine.index().epoch();
    assert!(harness.machine.revocations().covers(epoch, &[stolen.digest()], None, START.plus(HOUR)));
    assert_eq!(harness.machine.index().revocations, 1);
    assert!(harness.rows.0.keys().any(|(_, key)| key == id.as_bytes()));
}

/// Regression: an issue that was repeated under its `Idempotency-Key` returned an agent whose revocation the backup
/// lacked, and minted for it; children of such an agent were issued.
#[test]
fn earlier_agent_has_ended_and_outcomes_are_gone() {
    let mut harness = cluster();
    let id = "wimse://a.example/agent/mcp/1";
    let agent = Agent { agent_id: id.to_owned(), ..Agent::default() };
    let issue = Command::IssueAgent(IssueAgent { agent: Some(agent), issued_by: String::new() });
    let [key, request, owner] = [1, 2, 3].map(|byte| vec![byte; 16].into());
    let key = command::Idempotency { key, request, owner };
    let issued = harness.encoded(START, vec![encode_for(issue, Some(key), None)]).remove(0);
    assert!(matches!(issued, Reply::Agent(_)), "{issued:?}");
    let active = |harness: &StateHarness| {
        agents::find_active(&Tables::new(&harness.rows), START, id).expect("readable").map(|_| ())
    };
    assert_eq!(active(&harness), Ok(()));
    assert!(harness.rows.0.keys().any(|(table, _)| table == IDEMPOTENCY));
    harness.members(&[member(2)]);
    assert_eq!(harness.one(START, restore(5, 2)), DONE);
    assert_eq!(active(&harness), Err(Refusal::AgentEnded));
    assert!(!harness.rows.0.keys().any(|(table, _)| table == IDEMPOTENCY));
}

/// A command of a caller with an earlier token waits in a queue of another node.
#[test]
fn command_of_an_earlier_bearer_is_refused() {
    let mut harness = restored();
    let mut spend = |token: u8, incarnation: u8, index: u64| {
        let bearer = command::BearerIssued {
            incarnation: vec![incarnation; 16].into(),
            index,
            iat_millis: START.plus(HOUR).millis(),
        };
        let digests = Digest128::from_bytes([3; 16]).as_bytes().to_vec().into();
        let caller = Some(Caller { digests, bearer: Some(bearer) });
        let spend = SpendToken {
            token: vec![token; 16].into(),
            owner: vec![1; 16].into(),
            exp_millis: START.millis() + 1,
        };
        harness.encoded(START, vec![encode_for(Command::SpendToken(spend), None, caller)]).remove(0)
    };
    assert_eq!(spend(1, 1, 1_000), Reply::Refused(Refusal::CallerRefused));
    assert_eq!(spend(2, 6, 1_000), DONE);
}

#[test]
fn malformed_restore_is_corrupt() {
    let command = |cluster_id: usize, incarnation: Vec<u8>, node_id| {
        let cluster_id = vec![5; cluster_id].into();
        Command::Restore(Restore { cluster_id, incarnation: incarnation.into(), node_id })
    };
    for (command, rule) in [
        (command(15, vec![6; 16], 1), "16 bytes"),
        (command(16, vec![6; 17], 1), "16 bytes"),
        (command(16, vec![1; 16], 1), "another incarnation"),
        (command(16, vec![6; 16], 9), "no voter"),
    ] {
        let harness = cluster();
        let batch = crate::state::testing::batch(Stamp::default(), vec![encode(command)]);
        let refused = harness.machine.apply(&harness.rows, &batch, 9).expect_err("corrupt").to_string();
        assert!(refused.contains(rule), "{refused}");
    }
}

/// A node could otherwise end every token of a running cluster with one forwarded command.
#[test]
fn restore_is_never_proposed_to_a_running_cluster() {
    assert!(!command::is_proposable(&encode(restore(5, 1))));
    assert!(command::is_proposable(&encode(publish("k", 1))));
}

#[test]
fn encoding_of_the_command_and_its_reply_is_stable() {
    let (command, reply) = restore_command([1; 16], [2; 16], 3);
    let expected = [&[242, 1, 38, 10, 16][..], &[1; 16], &[18, 16], &[2; 16], &[24, 3]].concat();
    assert_eq!((&command[..], &reply[..]), (&expected[..], &[10, 2, 8, 1][..]));
    let mut harness = cluster();
    assert_eq!(harness.encoded(START, vec![command]), [DONE]);
}
