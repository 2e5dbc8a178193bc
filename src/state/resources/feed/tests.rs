//! Tests of the feed: its events and its bound.

use bytes::Bytes;

use super::*;
use crate::state::command::{
    AcceptSignal, Agent, Bootstrap, Command, DeregisterTool, IssueAgent, LiftBlock, PublishSigningKey,
    PutPolicy, PutTool, RegisterEncryptionKey, Reply, RetireSigningKey, Revoke, RevokeAgent, TaintSigningKey,
    Tool,
};
use crate::state::resources::revoked_fact::fact_row;
use crate::state::tables::{BLOCK, META};
use crate::state::testing::StateHarness;
use crate::token::lineage::Fact;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const AGENT: &str = "wimse://a.example/agent/mcp/1";

impl StateHarness {
    /// Feed events from `from` on.
    pub fn feed_events_from(&self, from: EventId) -> Vec<FeedEvent> {
        let mut events = Vec::new();
        read(&self.rows, from, &mut |event| {
            events.push(event);
            true
        })
        .expect("reads");
        events
    }

    /// Feed events of one command, as "kind subject target detail".
    fn feed_of(&mut self, command: Command) -> Vec<String> {
        let from = *self.machine.feed_end().borrow();
        self.one(START, command);
        let text = |event: FeedEvent| {
            let (target, detail) = (event.target.unwrap_or_default(), event.detail.unwrap_or_default());
            assert_eq!((event.result.as_str(), event.at), ("ok", START));
            format!("{} {} [{target}] {detail}", event.kind, event.subject)
        };
        self.feed_events_from(from).into_iter().map(text).collect()
    }

    /// Kinds of all feed events.
    pub fn feed_kinds(&self) -> Vec<String> {
        self.feed_events_from(EventId::default()).into_iter().map(|event| event.kind).collect()
    }

    /// Ids of the feed events of this kind.
    pub fn feed_ids_of(&self, kind: &str) -> Vec<EventId> {
        let events = self.feed_events_from(EventId::default());
        events.into_iter().filter(|event| event.kind == kind).map(|event| event.id).collect()
    }

    fn span(&self) -> Span {
        Span::at(&self.rows, SPAN).expect("reads")
    }
}

fn tool(name: &str) -> Command {
    let tool = Tool {
        tool_id: "t".to_owned(),
        name: name.to_owned(),
        protocols: vec!["mcp".to_owned()],
        resource_uri: Some("https://t.example".to_owned()),
        ..Tool::default()
    };
    Command::PutTool(PutTool {
        tool: Some(tool),
        caller: "alice".to_owned(),
        replaces: true,
        ..PutTool::default()
    })
}

fn policy(digest: &str) -> Command {
    Command::PutPolicy(PutPolicy {
        digest: digest.to_owned(),
        applied_by: "alice".to_owned(),
        ..PutPolicy::default()
    })
}

#[test]
fn every_change_is_in_the_feed_once() {
    let mut harness = StateHarness::default();
    let id = Bytes::from_static(&[7; 16]);
    let bootstrap = || {
        Command::Bootstrap(Bootstrap { cluster_id: id.clone(), incarnation: id.clone(), feature_level: 0 })
    };
    assert_eq!(harness.feed_of(bootstrap()), [format!("cluster {} [] bootstrapped", "07".repeat(16))]);
    assert!(harness.feed_of(bootstrap()).is_empty());

    assert_eq!(harness.feed_of(policy("p")), ["cluster p [alice] policy applied"]);
    assert!(harness.feed_of(policy("p")).is_empty());

    assert_eq!(harness.feed_of(tool("one")), ["tool t [https://t.example] registered"]);
    assert!(harness.feed_of(tool("one")).is_empty());
    assert_eq!(harness.feed_of(tool("two")), ["tool t [https://t.example] replaced"]);
    let deregistration = || DeregisterTool {
        tool_id: "t".to_owned(),
        caller: "alice".to_owned(),
        ..DeregisterTool::default()
    };
    assert_eq!(
        harness.feed_of(Command::DeregisterTool(deregistration())),
        ["tool t [https://t.example] deregistered"]
    );
    assert!(harness.feed_of(Command::DeregisterTool(deregistration())).is_empty());

    let publish = |kid: &str| {
        Command::PublishSigningKey(PublishSigningKey {
            kid: kid.to_owned(),
            node_id: 1,
            jwk: "{}".to_owned(),
            algorithm: String::new(),
        })
    };
    for kid in ["k1", "k2"] {
        assert_eq!(harness.feed_of(publish(kid)), [format!("key {kid} [] published")]);
        assert!(harness.feed_of(publish(kid)).is_empty());
    }
    let retire = || Command::RetireSigningKey(RetireSigningKey { kid: "k1".to_owned() });
    assert!(harness.feed_of(retire()).is_empty(), "no successor is active");
    let taint = || Command::TaintSigningKey(TaintSigningKey { kid: "k1".to_owned(), digest: id.clone() });
    assert_eq!(harness.feed_of(taint()), ["key k1 [] tainted"]);
    assert!(harness.feed_of(taint()).is_empty());
}

#[test]
fn retired_key_is_in_the_feed() {
    let mut harness = StateHarness::default();
    for kid in ["k1", "k2"] {
        let key = PublishSigningKey {
            kid: kid.to_owned(),
            node_id: 1,
            jwk: "{}".to_owned(),
            algorithm: String::new(),
        };
        harness.one(START.minus(limits::KEY_PUBLISH_AHEAD), Command::PublishSigningKey(key));
    }
    let retire = || Command::RetireSigningKey(RetireSigningKey { kid: "k1".to_owned() });
    assert_eq!(harness.feed_of(retire()), ["key k1 [] retired"]);
    assert!(harness.feed_of(retire()).is_empty());
}

#[test]
fn changes_of_an_agent_are_in_the_feed() {
    let mut harness = StateHarness::default();
    let agent = |id: &str| {
        let agent = Agent { agent_id: id.to_owned(), ..Agent::default() };
        Command::IssueAgent(IssueAgent { agent: Some(agent), issued_by: "alice".to_owned() })
    };
    assert_eq!(harness.feed_of(agent(AGENT)), [format!("agent {AGENT} [alice] issued")]);
    assert!(harness.feed_of(agent(AGENT)).is_empty());
    let key = || {
        let (agent_id, kid) = (AGENT.to_owned(), "k".to_owned());
        Command::RegisterEncryptionKey(RegisterEncryptionKey {
            workload_id: agent_id,
            is_agent: true,
            kid,
            registrar: Some(crate::state::command::Registrar::default()),
            ..RegisterEncryptionKey::default()
        })
    };
    assert_eq!(harness.feed_of(key()), [format!("agent {AGENT} [] encryption key registered")]);
    assert!(harness.feed_of(key()).is_empty());
    let fact = Fact::workload(&AGENT.parse().expect("an id"));
    let digest = Bytes::copy_from_slice(fact.digest().as_bytes());
    let revoke = || {
        let (agent_id, caller) = (AGENT.to_owned(), "alice".to_owned());
        Command::RevokeAgent(RevokeAgent {
            agent_id,
            digest: digest.clone(),
            caller,
            ..RevokeAgent::default()
        })
    };
    assert_eq!(harness.feed_of(revoke()), [format!("agent {AGENT} [alice] revoked")]);
    assert!(harness.feed_of(revoke()).is_empty());
}

#[test]
fn revocations_and_lifts_are_in_the_feed() {
    let mut harness = StateHarness::default();
    let fact = Fact::signing_key("https://idp.example", "k");
    let revoke = Command::Revoke(Revoke {
        fact: Some(fact_row(&fact)),
        reason: "stolen".to_owned(),
        caller: "alice".to_owned(),
        blocks: true,
        ..Revoke::default()
    });
    assert_eq!(harness.feed_of(revoke), ["revocation k [https://idp.example] stolen"]);
    let id = harness.rows.0.keys().find(|(table, _)| table == BLOCK).map(|(_, key)| Bytes::from(key.clone()));
    let lift = || Command::LiftBlock(LiftBlock { id: id.clone().expect("a block") });
    assert_eq!(harness.feed_of(lift()), ["revocation k [https://idp.example] block lifted"]);
    assert!(harness.feed_of(lift()).is_empty());
}

#[test]
fn signal_of_an_old_log_has_an_event_without_subject() {
    let mut harness = StateHarness::default();
    let signal = AcceptSignal {
        jti: Bytes::from_static(&[1; 16]),
        issuer: "https://idp.example".to_owned(),
        quota: 1,
        content: Bytes::from_static(&[7; 16]),
        ..AcceptSignal::default()
    };
    let events = harness.feed_of(Command::AcceptSignal(signal));
    assert_eq!(events, ["signal  [https://idp.example] 0 effects"]);
}

#[test]
fn ids_increase_within_and_across_entries() {
    let mut harness = StateHarness::default();
    harness.apply(START, vec![policy("a"), policy("b")]);
    harness.apply(START, vec![policy("c")]);
    let ids: Vec<EventId> =
        harness.feed_events_from(EventId::default()).into_iter().map(|event| event.id).collect();
    let id = |index, number| EventId { index, number };
    assert_eq!(ids, [id(1, 0), id(1, 1), id(2, 0)]);
    assert_eq!(*harness.machine.feed_end().borrow(), id(2, 1));
    let from: Vec<EventId> = harness.feed_events_from(id(1, 1)).into_iter().map(|event| event.id).collect();
    assert_eq!(from, [id(1, 1), id(2, 0)], "from the requested id on");
}

#[test]
fn feed_end_changes_only_with_a_new_event() {
    let mut harness = StateHarness::default();
    let end = harness.machine.feed_end();
    harness.one(START, policy("a"));
    assert!(end.has_changed().expect("open"));
    let end = harness.machine.feed_end();
    harness.one(START, policy("a"));
    assert!(!end.has_changed().expect("open"));
}

#[test]
fn long_text_is_truncated() {
    let mut harness = StateHarness::default();
    let long = "x".repeat(limits::FEED_TEXT_BYTES_MAX);
    harness.apply(START, vec![policy(&long), policy(&format!("{long}y"))]);
    let events = harness.feed_events_from(EventId::default());
    assert_eq!((events[0].subject.as_str(), events[1].subject.as_str()), (long.as_str(), long.as_str()));
}

/// A feed of constructed rows, one in each entry from 1 on.
fn filled(events: u64) -> StateHarness {
    let mut harness = StateHarness::default();
    let row =
        FeedRow { kind: "tool".to_owned(), result: "ok".to_owned(), ..FeedRow::default() }.encode_to_vec();
    for index in 1..=events {
        harness.rows.0.insert((FEED.to_owned(), EventId { index, number: 0 }.key().to_vec()), row.clone());
    }
    let end = EventId { index: events, number: 1 };
    let rows = crate::state::testing::Rows::default();
    let mut tables = Tables::new(&rows);
    Span { end, events, ..Span::default() }.put(&mut tables, SPAN);
    let span = tables.row(META, SPAN).expect("reads").expect("there");
    harness.rows.0.insert((META.to_owned(), SPAN.to_vec()), span);
    harness.skip_to(events);
    harness
}

#[test]
fn oldest_events_are_dropped_in_one_range() {
    let at_once = limits::FEED_EVENTS_DROPPED_TOGETHER as u64;
    let full = limits::FEED_EVENTS_MAX + at_once;
    let mut harness = filled(full - 2);
    harness.one(START, policy("a"));
    assert_eq!((harness.span().begin, harness.span().events), (EventId::default(), full - 1));
    harness.one(START, policy("b"));
    let first = EventId { index: at_once + 1, number: 0 };
    assert_eq!((harness.span().begin, harness.span().events), (first, limits::FEED_EVENTS_MAX));
    let events = harness.feed_events_from(EventId::default());
    assert_eq!((events.len() as u64, events[0].id), (limits::FEED_EVENTS_MAX, first));
    harness.one(START, policy("c"));
    assert_eq!(harness.span().begin, first, "not with each new event");
}

#[test]
fn entry_drops_repeatedly_but_none_of_its_own_events() {
    let at_once = limits::FEED_EVENTS_DROPPED_TOGETHER as u64;
    let mut harness = filled(limits::FEED_EVENTS_MAX + at_once - 1);
    let many = 2 * at_once + 10;
    harness.apply(START, (0..many).map(|number| policy(&number.to_string())).collect());
    assert_eq!(harness.span().events, limits::FEED_EVENTS_MAX + 9);
    assert_eq!(harness.span().begin, EventId { index: 3 * at_once + 1, number: 0 });
    let events = harness.feed_events_from(EventId::default());
    assert_eq!(events.len() as u64, harness.span().events);
    assert_eq!(events.iter().filter(|event| event.kind == "cluster").count() as u64, many);
}

#[test]
fn corrupt_row_is_an_error() {
    let mut harness = StateHarness::default();
    harness.one(START, policy("a"));
    let sound = harness.rows.0.clone();
    // A key that is not an id, and a row that is not a message.
    for (key, row) in [(vec![0; 13], vec![]), (vec![0; 12], vec![0xff])] {
        harness.rows.0.clone_from(&sound);
        harness.rows.0.insert((FEED.to_owned(), key), row);
        assert!(read(&harness.rows, EventId::default(), &mut |_| true).is_err());
    }
    assert_eq!(
        harness.one(START, policy("b")),
        Reply::Done { changed: true },
        "a corrupt row that is not read has no effect"
    );
}
