//! What is appended with its cause, and what is dropped.

use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::cluster::{Machine as _, Stamp};
use crate::state::Replicated;
use crate::state::command::{
    AcceptSignal, Agent, Command, IssueAgent, PutPolicy, PutTool, Refusal, Reply, Revoke, RevokeAgent, Tool,
    encode,
};
use crate::state::resources::revocations::fact_row;
use crate::state::tables::META;
use crate::state::testing::{Bench, ISS, Rows, about, batch, create_stream, delete_stream, signal};
use crate::token::lineage::Fact;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const SECOND: Duration = Duration::from_secs(1);
const AGENT: &str = "wimse://a.example/agent/mcp/1";
const DONE: Reply = Reply::Done { changed: true };
const AGAIN: Reply = Reply::Done { changed: false };

impl Bench {
    /// With one stream.
    pub fn with_stream() -> Self {
        let mut bench = Self::default();
        assert!(matches!(bench.one(START, create_stream("s", "alice")), Reply::Stream(_)));
        bench
    }

    /// What waits from `from` on.
    pub fn waiting_from(&self, from: EventId) -> Vec<OutboxEvent> {
        let mut waiting = Vec::new();
        read(&self.rows, from, &mut |event| {
            waiting.push(event);
            true
        })
        .expect("reads");
        waiting
    }

    /// Whom all that waits is about.
    pub fn waiting(&self) -> Vec<String> {
        self.waiting_from(EventId::default()).iter().map(|waiting| waiting.event.subject()).collect()
    }

    fn outbox(&self) -> Span {
        Span::at(&self.rows, SPAN).expect("reads")
    }

    /// As if all that waits took so much.
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

/// What a row with an event about a subject of one letter takes.
fn weight() -> u64 {
    let row = OutboxRow {
        event: Some(about("x")),
        at_millis: START.millis(),
        passed_millis: START.millis(),
        stream_id: String::new(),
    };
    bytes_of(&row)
}

#[test]
fn an_event_is_appended_in_the_entry_of_its_cause_and_only_if_that_stands() {
    let mut bench = Bench::with_stream();
    assert_eq!(bench.one(START, signal("1", &["a", "b"])), DONE);
    assert_eq!(bench.waiting(), ["a", "b"]);
    assert_eq!(bench.one(START, signal("1", &["c"])), AGAIN);
    assert_eq!(bench.apply(START, vec![signal("2", &["d"]), signal("2", &["e"])]), [DONE, AGAIN]);
    let Command::AcceptSignal(beyond) = signal("3", &["f"]) else { panic!("a signal") };
    let beyond = Command::AcceptSignal(AcceptSignal { quota: 1, ..beyond });
    assert_eq!(bench.one(START, beyond), Reply::Refused(Refusal::RevocationQuota));
    assert_eq!(bench.waiting(), ["a", "b", "d"]);
    let waiting = bench.waiting_from(EventId::default());
    assert!(waiting.iter().all(|waiting| (waiting.at, waiting.passed) == (START, START)));
    assert!(waiting.iter().all(|waiting| waiting.stream_id.is_none()));
}

#[test]
fn what_an_operator_and_an_issuer_revoke_is_appended_once() {
    let mut bench = Bench::with_stream();
    let revoke = |kind: &str, must_be_agent: bool| {
        let fact = match kind {
            "agent" => Fact::workload(&AGENT.parse().expect("an id")),
            _ => Fact::subject(ISS, "alice"),
        };
        let (fact, event) = (Some(fact_row(&fact)), Some(about(kind)));
        Command::Revoke(Revoke { fact, event, must_be_agent, ..Revoke::default() })
    };
    assert_eq!(bench.one(START, revoke("agent", true)), Reply::Refused(Refusal::UnknownAgent));
    assert!(bench.waiting().is_empty());
    assert!(matches!(bench.one(START, revoke("alice", false)), Reply::Revoked(_)));
    assert_eq!(bench.waiting(), ["alice"]);

    let agent = Agent { agent_id: AGENT.to_owned(), ..Agent::default() };
    bench.one(START, Command::IssueAgent(IssueAgent { agent: Some(agent), issued_by: "carol".to_owned() }));
    let delete = |caller: &str| {
        Command::RevokeAgent(RevokeAgent {
            agent_id: AGENT.to_owned(),
            digest: Bytes::from_static(&[9; 16]),
            caller: caller.to_owned(),
            is_operator: false,
            event: Some(about(AGENT)),
        })
    };
    assert_eq!(bench.one(START, delete("mallory")), Reply::Refused(Refusal::NotTheOwner));
    assert_eq!(bench.one(START, delete("carol")), DONE);
    assert_eq!(bench.one(START, delete("carol")), AGAIN);
    assert_eq!(bench.waiting(), ["alice", AGENT]);
}

#[test]
fn without_a_stream_nothing_is_appended_and_the_live_feed_tells_it_all_the_same() {
    let mut bench = Bench::default();
    bench.one(START, signal("1", &["a"]));
    assert!(bench.waiting().is_empty());
    let told = |bench: &Bench| bench.feed_kinds().iter().filter(|kind| *kind == "caep").count();
    assert_eq!(told(&bench), 1);
    // Not even within one entry is it appended for a stream that comes behind it.
    bench.apply(START, vec![signal("2", &["b"]), create_stream("s", "alice"), signal("3", &["c"])]);
    assert_eq!((bench.waiting(), told(&bench)), (vec!["c".to_owned()], 3));
    bench.apply(START, vec![delete_stream("s"), signal("4", &["d"])]);
    assert_eq!((bench.waiting(), told(&bench)), (vec!["c".to_owned()], 4));
}

#[test]
fn ids_grow_within_an_entry_and_across_entries_and_are_those_of_the_feed() {
    let mut bench = Bench::with_stream();
    // A signal is told first, under an id of its own.
    bench.apply(START, vec![signal("1", &["a", "b"]), signal("2", &["c"])]);
    bench.apply(START, vec![signal("3", &["d"])]);
    let ids: Vec<EventId> = bench.waiting_from(EventId::default()).iter().map(|waiting| waiting.id).collect();
    assert_eq!(ids, [id(2, 1), id(2, 2), id(2, 4), id(3, 1)]);
    assert_eq!(*bench.machine.outbox_end().borrow(), id(3, 2));
    let caep: Vec<EventId> = bench.feed_ids_of("caep");
    assert_eq!(caep, ids);
    let from: Vec<EventId> = bench.waiting_from(id(2, 2)).iter().map(|waiting| waiting.id).collect();
    assert_eq!(from, ids[1..]);
}

#[test]
fn the_same_log_gives_the_same_rows_and_a_restart_the_same_memory() {
    let log = |bench: &mut Bench| {
        bench.apply(START, vec![create_stream("s", "alice"), signal("1", &["a", "b"])]);
        bench.apply(START.plus(SECOND), vec![signal("2", &["c"]), create_stream("t", "bob")]);
    };
    let (mut one, mut other) = (Bench::default(), Bench::default());
    log(&mut one);
    log(&mut other);
    assert_eq!(one.rows.0, other.rows.0);
    let restarted = Replicated::default();
    let end = restarted.outbox_end();
    restarted.rebuild(&one.rows).expect("rebuilds");
    assert!(end.has_changed().expect("open"), "whoever waits looks again");
    assert_eq!(*restarted.outbox_end().borrow(), *one.machine.outbox_end().borrow());
    assert_eq!(*restarted.feed_end().borrow(), *one.machine.feed_end().borrow());
    assert_eq!(format!("{:?}", restarted.index()), format!("{:?}", one.machine.index()));
}

#[test]
fn whoever_waits_is_woken_by_an_event_and_by_nothing_else() {
    let mut bench = Bench::with_stream();
    let end = bench.machine.outbox_end();
    bench.one(START, Command::PutPolicy(PutPolicy { digest: "p".to_owned(), ..PutPolicy::default() }));
    assert!(!end.has_changed().expect("open"));
    bench.one(START, signal("1", &["a"]));
    assert!(end.has_changed().expect("open"));
}

#[test]
fn events_are_kept_as_long_as_was_promised_and_then_dropped() {
    let mut bench = Bench::with_stream();
    bench.one(START, signal("1", &["a"]));
    let kept = START.plus(limits::EVENTS_KEPT);
    bench.one(kept, signal("2", &["b"]));
    assert_eq!(bench.waiting(), ["a", "b"]);
    let over = kept.plus(Duration::from_millis(1));
    bench.one(over, signal("3", &["c"]));
    assert_eq!(bench.waiting(), ["b", "c"]);
    assert_eq!((bench.outbox().begin, bench.outbox().events), (id(2, 2), 2));
    assert_eq!(bench.outbox().bytes, 2 * weight());
}

#[test]
fn a_clock_that_is_set_does_not_decide_how_long_events_are_kept() {
    let mut bench = Bench::with_stream();
    bench.one(START, signal("1", &["a"]));
    // Log time leaps by a week, and no time has passed.
    let ahead = START.plus(Duration::from_secs(7 * 24 * 3600));
    let stamp = Stamp { time: ahead, latest: ahead, passed: START };
    bench.stamped_as(stamp, vec![encode(signal("2", &["b"]))]);
    assert_eq!(bench.waiting(), ["a", "b"]);
    // Time passes, and log time stands still.
    let passed = START.plus(limits::EVENTS_KEPT).plus(SECOND);
    let stamp = Stamp { time: START, latest: START, passed };
    bench.stamped_as(stamp, vec![encode(signal("3", &["c"]))]);
    assert_eq!(bench.waiting(), ["c"]);
}

#[test]
fn so_many_events_are_dropped_at_once_and_more_with_the_next() {
    let at_once = limits::OUTBOX_DROPPED_AT_ONCE;
    let mut bench = Bench::with_stream();
    let many: Vec<String> = (0..3 * at_once).map(|number| format!("{number:02}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    bench.one(START, signal("1", &many));
    let over = START.plus(limits::EVENTS_KEPT).plus(SECOND);
    bench.one(over, signal("2", &["x"]));
    assert_eq!(bench.waiting().len(), 2 * at_once + 1);
    bench.one(over, signal("3", &["y", "z"]));
    assert_eq!(bench.waiting(), ["x", "y", "z"], "also twice in one entry");
    assert_eq!(bench.outbox().events, 3);
}

#[test]
fn what_is_old_is_dropped_also_when_nobody_listens_any_more() {
    let mut bench = Bench::with_stream();
    bench.one(START, signal("1", &["a"]));
    bench.one(START, delete_stream("s"));
    bench.one(START.plus(limits::EVENTS_KEPT).plus(SECOND), signal("2", &["b"]));
    assert!(bench.waiting().is_empty());
    assert_eq!((bench.outbox().events, bench.outbox().bytes), (0, 0));
}

#[test]
fn beyond_so_many_bytes_the_oldest_events_are_dropped() {
    let mut bench = Bench::with_stream();
    for (jti, subject) in [("1", "a"), ("2", "b"), ("3", "c")] {
        bench.one(START, signal(jti, &[subject]));
    }
    assert_eq!(bench.outbox().bytes, 3 * weight());
    bench.set_bytes(limits::OUTBOX_BYTES_MAX - weight());
    bench.one(START, signal("4", &["d"]));
    assert_eq!((bench.waiting().len(), bench.outbox().bytes), (4, limits::OUTBOX_BYTES_MAX), "at the limit");
    bench.one(START, signal("5", &["e"]));
    assert_eq!(bench.waiting(), ["b", "c", "d", "e"], "as many as must");
    assert_eq!(bench.outbox().bytes, limits::OUTBOX_BYTES_MAX);
}

#[test]
fn a_large_event_makes_room_for_itself_and_the_table_never_grows_beyond() {
    let mut bench = Bench::with_stream();
    let many: Vec<String> = (0..200).map(|number| format!("{number:03}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    bench.one(START, signal("1", &many));
    bench.set_bytes(limits::OUTBOX_BYTES_MAX);
    let large = "x".repeat(limits::EVENT_SAID_BYTES_MAX);
    bench.one(START, signal("2", &[&large]));
    assert!(bench.outbox().bytes <= limits::OUTBOX_BYTES_MAX, "{}", bench.outbox().bytes);
    assert!(bench.waiting().len() > 100, "and no more goes than must: {}", bench.waiting().len());
    assert_eq!(bench.waiting().last(), Some(&large));
}

#[test]
fn nothing_of_its_own_entry_is_dropped_however_full_it_is() {
    let mut bench = Bench::with_stream();
    bench.one(START, signal("1", &["a"]));
    bench.set_bytes(2 * limits::OUTBOX_BYTES_MAX);
    bench.one(START, signal("2", &["b", "c", "d"]));
    assert_eq!(bench.waiting(), ["b", "c", "d"]);
}

#[test]
fn a_flood_of_tools_pushes_no_event_out() {
    let mut bench = Bench::with_stream();
    bench.one(START, signal("1", &["a"]));
    let tool = |number: u64| {
        let tool =
            Tool { tool_id: format!("t{number}"), protocols: vec!["mcp".to_owned()], ..Tool::default() };
        Command::PutTool(PutTool { tool: Some(tool), caller: "mallory".to_owned(), ..PutTool::default() })
    };
    let flood = limits::FEED_EVENTS_MAX + 2 * limits::FEED_DROPPED_AT_ONCE as u64;
    for from in (0..flood).step_by(512) {
        bench.apply(START, (from..from + 512).map(tool).collect());
    }
    assert!(!bench.feed_kinds().iter().any(|kind| kind == "caep"), "the feed tells of tools only");
    assert_eq!(bench.waiting(), ["a"]);
}

#[test]
fn a_damaged_event_stops_whoever_reads_it() {
    let mut bench = Bench::with_stream();
    bench.one(START, signal("1", &["a"]));
    let sound = bench.rows.0.clone();
    let row =
        |event: Option<command::SecurityEvent>| OutboxRow { event, ..OutboxRow::default() }.encode_to_vec();
    let no_object = command::SecurityEvent { claims: "[]".to_owned(), ..about("a") };
    for (key, row) in [
        (id(2, 0).key().to_vec(), vec![0xff]),
        (id(2, 0).key().to_vec(), row(None)),
        (id(2, 0).key().to_vec(), row(Some(no_object))),
        (vec![0; 13], row(Some(about("a")))),
    ] {
        bench.rows.0.clone_from(&sound);
        bench.rows.0.insert((OUTBOX.to_owned(), key), row);
        assert!(read(&bench.rows, EventId::default(), &mut |_| true).is_err());
    }
    bench.rows.0.clone_from(&sound);
    bench.rows.0.insert((META.to_owned(), SPAN.to_vec()), vec![0; 39]);
    assert!(read(&bench.rows, EventId::default(), &mut |_| true).is_err());
    let restarted = Replicated::default();
    assert!(restarted.rebuild(&bench.rows).is_err());
}

#[test]
fn a_command_whose_event_is_no_object_stops_the_node() {
    let bench = Bench::with_stream();
    for broken in [
        command::SecurityEvent { sub_id: "\"a\"".to_owned(), ..about("a") },
        command::SecurityEvent { claims: String::new(), ..about("a") },
    ] {
        let Command::AcceptSignal(signal) = signal("1", &[]) else { panic!("a signal") };
        let signal = AcceptSignal { events: vec![broken], ..signal };
        let batch = batch(Stamp::default(), vec![encode(Command::AcceptSignal(signal))]);
        assert!(bench.machine.apply(&bench.rows, &batch, 2).is_err());
    }
    // And not because of something else in it.
    let batch = batch(Stamp::default(), vec![encode(signal("1", &["a"]))]);
    assert!(bench.machine.apply(&bench.rows, &batch, 2).is_ok());
}
