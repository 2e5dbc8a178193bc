//! Tests of the outbox: events are appended with their cause, and dropped.

use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::cluster::{Machine as _, Stamp};
use crate::state::Replicated;
use crate::state::command::{
    AcceptSignal, Agent, Command, IssueAgent, PutPolicy, PutTool, Refusal, Reply, Revoke, RevokeAgent, Tool,
    encode,
};
use crate::state::resources::revoked_fact::fact_row;
use crate::state::tables::META;
use crate::state::testing::{ISS, Rows, StateHarness, about, batch, create_stream, delete_stream, signal};
use crate::token::lineage::Fact;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const SECOND: Duration = Duration::from_secs(1);
const AGENT: &str = "wimse://a.example/agent/mcp/1";
const DONE: Reply = Reply::Done { changed: true };
const AGAIN: Reply = Reply::Done { changed: false };

impl StateHarness {
    /// A harness with one stream.
    pub fn with_stream() -> Self {
        let mut harness = Self::default();
        assert!(matches!(harness.one(START, create_stream("s", "alice")), Reply::Stream(_)));
        harness
    }

    /// Outbox events from `from` on.
    pub fn events_from(&self, from: EventId) -> Vec<OutboxEvent> {
        let mut events = Vec::new();
        read(&self.rows, from, &mut |event| {
            events.push(event);
            true
        })
        .expect("reads");
        events
    }

    /// Subjects of all outbox events.
    pub fn waiting(&self) -> Vec<String> {
        self.events_from(EventId::default()).iter().map(|event| event.event.subject()).collect()
    }

    fn outbox(&self) -> Span {
        Span::at(&self.rows, SPAN).expect("reads")
    }

    /// Sets the total size of the events.
    fn set_bytes(&mut self, bytes: u64) {
        let rows = Rows::default();
        let mut tables = Tables::new(&rows);
        Span { bytes, ..self.outbox() }.put(&mut tables, SPAN);
        let row = tables.row(META, SPAN).expect("reads").expect("there");
        self.rows.0.insert((META.to_owned(), SPAN.to_vec()), row);
    }
}

fn id(index: u64, number: u32) -> EventId {
    EventId { index, number }
}

/// Size of a row with an event about a subject of one letter.
fn weight() -> u64 {
    let row = OutboxRow {
        event: Some(about("x")),
        at_millis: START.millis(),
        elapsed_millis: START.millis(),
        stream_id: String::new(),
    };
    bytes_of(&row)
}

#[test]
fn event_is_appended_in_the_entry_of_its_applied_cause() {
    let mut harness = StateHarness::with_stream();
    assert_eq!(harness.one(START, signal("1", &["a", "b"])), DONE);
    assert_eq!(harness.waiting(), ["a", "b"]);
    assert_eq!(harness.one(START, signal("1", &["c"])), AGAIN);
    assert_eq!(harness.apply(START, vec![signal("2", &["d"]), signal("2", &["e"])]), [DONE, AGAIN]);
    let Command::AcceptSignal(beyond) = signal("3", &["f"]) else { panic!("a signal") };
    let beyond = Command::AcceptSignal(AcceptSignal { quota: 1, ..beyond });
    assert_eq!(harness.one(START, beyond), Reply::Refused(Refusal::RevocationQuota));
    assert_eq!(harness.waiting(), ["a", "b", "d"]);
    let waiting = harness.events_from(EventId::default());
    assert!(waiting.iter().all(|waiting| (waiting.at, waiting.elapsed) == (START, START)));
    assert!(waiting.iter().all(|waiting| waiting.stream_id.is_none()));
}

#[test]
fn event_of_a_revocation_is_appended_once() {
    let mut harness = StateHarness::with_stream();
    let revoke = |kind: &str, must_be_agent: bool| {
        let fact = match kind {
            "agent" => Fact::workload(&AGENT.parse().expect("an id")),
            _ => Fact::subject(ISS, "alice"),
        };
        let (fact, event) = (Some(fact_row(&fact)), Some(about(kind)));
        Command::Revoke(Revoke { fact, event, must_be_agent, ..Revoke::default() })
    };
    assert_eq!(harness.one(START, revoke("agent", true)), Reply::Refused(Refusal::UnknownAgent));
    assert!(harness.waiting().is_empty());
    assert!(matches!(harness.one(START, revoke("alice", false)), Reply::Revoked(_)));
    assert_eq!(harness.waiting(), ["alice"]);

    let agent = Agent { agent_id: AGENT.to_owned(), ..Agent::default() };
    harness.one(START, Command::IssueAgent(IssueAgent { agent: Some(agent), issued_by: "carol".to_owned() }));
    let delete = |caller: &str| {
        Command::RevokeAgent(RevokeAgent {
            agent_id: AGENT.to_owned(),
            digest: Bytes::from_static(&[9; 16]),
            caller: caller.to_owned(),
            is_operator: false,
            event: Some(about(AGENT)),
        })
    };
    assert_eq!(harness.one(START, delete("mallory")), Reply::Refused(Refusal::NotTheOwner));
    assert_eq!(harness.one(START, delete("carol")), DONE);
    assert_eq!(harness.one(START, delete("carol")), AGAIN);
    assert_eq!(harness.waiting(), ["alice", AGENT]);
}

#[test]
fn event_without_streams_is_in_the_feed_only() {
    let mut harness = StateHarness::default();
    harness.one(START, signal("1", &["a"]));
    assert!(harness.waiting().is_empty());
    let in_feed = |harness: &StateHarness| harness.feed_kinds().iter().filter(|kind| *kind == "caep").count();
    assert_eq!(in_feed(&harness), 1);
    // Nor is it appended for a stream that a later command of the same entry creates.
    harness.apply(START, vec![signal("2", &["b"]), create_stream("s", "alice"), signal("3", &["c"])]);
    assert_eq!((harness.waiting(), in_feed(&harness)), (vec!["c".to_owned()], 3));
    harness.apply(START, vec![delete_stream("s"), signal("4", &["d"])]);
    assert_eq!((harness.waiting(), in_feed(&harness)), (vec!["c".to_owned()], 4));
}

#[test]
fn outbox_ids_increase_and_equal_those_of_the_feed() {
    let mut harness = StateHarness::with_stream();
    // The feed event of the signal itself has the first id.
    harness.apply(START, vec![signal("1", &["a", "b"]), signal("2", &["c"])]);
    harness.apply(START, vec![signal("3", &["d"])]);
    let ids: Vec<EventId> =
        harness.events_from(EventId::default()).iter().map(|waiting| waiting.id).collect();
    assert_eq!(ids, [id(2, 1), id(2, 2), id(2, 4), id(3, 1)]);
    assert_eq!(*harness.machine.outbox_end().borrow(), id(3, 2));
    let caep: Vec<EventId> = harness.feed_ids_of("caep");
    assert_eq!(caep, ids);
    let from: Vec<EventId> = harness.events_from(id(2, 2)).iter().map(|waiting| waiting.id).collect();
    assert_eq!(from, ids[1..]);
}

#[test]
fn same_log_yields_the_same_rows_and_index() {
    let log = |harness: &mut StateHarness| {
        harness.apply(START, vec![create_stream("s", "alice"), signal("1", &["a", "b"])]);
        harness.apply(START.plus(SECOND), vec![signal("2", &["c"]), create_stream("t", "bob")]);
    };
    let (mut one, mut other) = (StateHarness::default(), StateHarness::default());
    log(&mut one);
    log(&mut other);
    assert_eq!(one.rows.0, other.rows.0);
    let restarted = Replicated::default();
    let end = restarted.outbox_end();
    restarted.rebuild(&one.rows).expect("rebuilds");
    assert!(end.has_changed().expect("open"), "watchers are notified");
    assert_eq!(*restarted.outbox_end().borrow(), *one.machine.outbox_end().borrow());
    assert_eq!(*restarted.feed_end().borrow(), *one.machine.feed_end().borrow());
    assert_eq!(format!("{:?}", restarted.index()), format!("{:?}", one.machine.index()));
}

#[test]
fn outbox_end_changes_only_with_a_new_event() {
    let mut harness = StateHarness::with_stream();
    let end = harness.machine.outbox_end();
    harness.one(START, Command::PutPolicy(PutPolicy { digest: "p".to_owned(), ..PutPolicy::default() }));
    assert!(!end.has_changed().expect("open"));
    harness.one(START, signal("1", &["a"]));
    assert!(end.has_changed().expect("open"));
}

#[test]
fn events_are_dropped_after_their_retention() {
    let mut harness = StateHarness::with_stream();
    harness.one(START, signal("1", &["a"]));
    let kept = START.plus(limits::OUTBOX_RETENTION);
    harness.one(kept, signal("2", &["b"]));
    assert_eq!(harness.waiting(), ["a", "b"]);
    let over = kept.plus(Duration::from_millis(1));
    harness.one(over, signal("3", &["c"]));
    assert_eq!(harness.waiting(), ["b", "c"]);
    assert_eq!((harness.outbox().begin, harness.outbox().events), (id(2, 2), 2));
    assert_eq!(harness.outbox().bytes, 2 * weight());
}

#[test]
fn wall_clock_does_not_change_the_retention_of_events() {
    let mut harness = StateHarness::with_stream();
    harness.one(START, signal("1", &["a"]));
    // Log time leaps by a week, elapsed time does not advance.
    let ahead = START.plus(Duration::from_secs(7 * 24 * 3600));
    let stamp = Stamp { time: ahead, latest: ahead, elapsed: START };
    harness.stamped_as(stamp, vec![encode(signal("2", &["b"]))]);
    assert_eq!(harness.waiting(), ["a", "b"]);
    // Elapsed time advances, log time does not.
    let elapsed = START.plus(limits::OUTBOX_RETENTION).plus(SECOND);
    let stamp = Stamp { time: START, latest: START, elapsed };
    harness.stamped_as(stamp, vec![encode(signal("3", &["c"]))]);
    assert_eq!(harness.waiting(), ["c"]);
}

#[test]
fn dropped_events_are_bounded_per_event() {
    let at_once = limits::OUTBOX_EVENTS_DROPPED_PER_APPEND;
    let mut harness = StateHarness::with_stream();
    let many: Vec<String> = (0..3 * at_once).map(|number| format!("{number:02}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    harness.one(START, signal("1", &many));
    let over = START.plus(limits::OUTBOX_RETENTION).plus(SECOND);
    harness.one(over, signal("2", &["x"]));
    assert_eq!(harness.waiting().len(), 2 * at_once + 1);
    harness.one(over, signal("3", &["y", "z"]));
    assert_eq!(harness.waiting(), ["x", "y", "z"], "also twice in one entry");
    assert_eq!(harness.outbox().events, 3);
}

#[test]
fn old_events_are_dropped_without_streams_too() {
    let mut harness = StateHarness::with_stream();
    harness.one(START, signal("1", &["a"]));
    harness.one(START, delete_stream("s"));
    harness.one(START.plus(limits::OUTBOX_RETENTION).plus(SECOND), signal("2", &["b"]));
    assert!(harness.waiting().is_empty());
    assert_eq!((harness.outbox().events, harness.outbox().bytes), (0, 0));
}

#[test]
fn oldest_events_over_the_size_limit_are_dropped() {
    let mut harness = StateHarness::with_stream();
    for (jti, subject) in [("1", "a"), ("2", "b"), ("3", "c")] {
        harness.one(START, signal(jti, &[subject]));
    }
    assert_eq!(harness.outbox().bytes, 3 * weight());
    harness.set_bytes(limits::OUTBOX_BYTES_MAX - weight());
    harness.one(START, signal("4", &["d"]));
    assert_eq!(
        (harness.waiting().len(), harness.outbox().bytes),
        (4, limits::OUTBOX_BYTES_MAX),
        "at the limit"
    );
    harness.one(START, signal("5", &["e"]));
    assert_eq!(harness.waiting(), ["b", "c", "d", "e"], "as few as possible");
    assert_eq!(harness.outbox().bytes, limits::OUTBOX_BYTES_MAX);
}

#[test]
fn large_event_drops_as_many_bytes_as_it_adds() {
    let mut harness = StateHarness::with_stream();
    let many: Vec<String> = (0..200).map(|number| format!("{number:03}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    harness.one(START, signal("1", &many));
    harness.set_bytes(limits::OUTBOX_BYTES_MAX);
    let large = "x".repeat(limits::RELAYED_EVENT_BYTES_MAX);
    harness.one(START, signal("2", &[&large]));
    assert!(harness.outbox().bytes <= limits::OUTBOX_BYTES_MAX, "{}", harness.outbox().bytes);
    assert!(harness.waiting().len() > 100, "no more is dropped than necessary: {}", harness.waiting().len());
    assert_eq!(harness.waiting().last(), Some(&large));
}

#[test]
fn entry_drops_none_of_its_own_events() {
    let mut harness = StateHarness::with_stream();
    harness.one(START, signal("1", &["a"]));
    harness.set_bytes(2 * limits::OUTBOX_BYTES_MAX);
    harness.one(START, signal("2", &["b", "c", "d"]));
    assert_eq!(harness.waiting(), ["b", "c", "d"]);
}

#[test]
fn flood_of_tools_displaces_no_event() {
    let mut harness = StateHarness::with_stream();
    harness.one(START, signal("1", &["a"]));
    let tool = |number: u64| {
        let tool =
            Tool { tool_id: format!("t{number}"), protocols: vec!["mcp".to_owned()], ..Tool::default() };
        Command::PutTool(PutTool { tool: Some(tool), caller: "mallory".to_owned(), ..PutTool::default() })
    };
    let flood = limits::FEED_EVENTS_MAX + 2 * limits::FEED_EVENTS_DROPPED_TOGETHER as u64;
    for from in (0..flood).step_by(512) {
        harness.apply(START, (from..from + 512).map(tool).collect());
    }
    assert!(!harness.feed_kinds().iter().any(|kind| kind == "caep"), "the feed has tools only");
    assert_eq!(harness.waiting(), ["a"]);
}

#[test]
fn corrupt_event_is_an_error() {
    let mut harness = StateHarness::with_stream();
    harness.one(START, signal("1", &["a"]));
    let sound = harness.rows.0.clone();
    let row =
        |event: Option<command::SecurityEvent>| OutboxRow { event, ..OutboxRow::default() }.encode_to_vec();
    let no_object = command::SecurityEvent { claims: "[]".to_owned(), ..about("a") };
    for (key, row) in [
        (id(2, 0).key().to_vec(), vec![0xff]),
        (id(2, 0).key().to_vec(), row(None)),
        (id(2, 0).key().to_vec(), row(Some(no_object))),
        (vec![0; 13], row(Some(about("a")))),
    ] {
        harness.rows.0.clone_from(&sound);
        harness.rows.0.insert((OUTBOX.to_owned(), key), row);
        assert!(read(&harness.rows, EventId::default(), &mut |_| true).is_err());
    }
    harness.rows.0.clone_from(&sound);
    harness.rows.0.insert((META.to_owned(), SPAN.to_vec()), vec![0; 39]);
    assert!(read(&harness.rows, EventId::default(), &mut |_| true).is_err());
    let restarted = Replicated::default();
    assert!(restarted.rebuild(&harness.rows).is_err());
}

#[test]
fn event_without_an_object_is_corrupt() {
    let harness = StateHarness::with_stream();
    for broken in [
        command::SecurityEvent { sub_id: "\"a\"".to_owned(), ..about("a") },
        command::SecurityEvent { claims: String::new(), ..about("a") },
    ] {
        let Command::AcceptSignal(signal) = signal("1", &[]) else { panic!("a signal") };
        let signal = AcceptSignal { events: vec![broken], ..signal };
        let batch = batch(Stamp::default(), vec![encode(Command::AcceptSignal(signal))]);
        assert!(harness.machine.apply(&harness.rows, &batch, 2).is_err());
    }
    // The same command with a valid event is applied.
    let batch = batch(Stamp::default(), vec![encode(signal("1", &["a"]))]);
    assert!(harness.machine.apply(&harness.rows, &batch, 2).is_ok());
}
