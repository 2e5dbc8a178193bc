//! Tests of the life of a stream and of its refusals.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::cluster::{Machine as _, Stamp};
use crate::state::command::{self, AdvanceStream, SetStreamStatus, encode, encode_once};
use crate::state::resources::events::{EventId, STREAM_UPDATED};
use crate::state::tables::{DEAD_LETTER, OWNED, STREAM_CURSOR};
use crate::state::testing::{StateHarness, batch, create_stream, delete_stream, signal};
use crate::state::{Replicated, Replied};

mod changes;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const SECOND: Duration = Duration::from_secs(1);
const DONE: Reply = Reply::Done { changed: true };

fn set(status: StreamStatus, reason: &str) -> SetStreamStatus {
    SetStreamStatus {
        stream_id: "s".to_owned(),
        status: status.into(),
        reason: reason.to_owned(),
        by_transmitter: false,
        changes: None,
    }
}

fn receiver_sets(status: StreamStatus, reason: &str) -> Command {
    Command::SetStreamStatus(set(status, reason))
}

fn transmitter_pauses(reason: &str) -> Command {
    Command::SetStreamStatus(SetStreamStatus { by_transmitter: true, ..set(StreamStatus::Paused, reason) })
}

fn verify(state: &str) -> Command {
    Command::VerifyStream(VerifyStream { stream_id: "s".to_owned(), state: state.to_owned() })
}

fn subject(sub_id: &Value, removed: bool) -> Command {
    let sub_id = sub_id.to_string();
    Command::ChangeStreamSubject(ChangeStreamSubject { stream_id: "s".to_owned(), sub_id, removed })
}

fn email(address: &str) -> Value {
    json!({"format": "email", "email": address})
}

fn update(revision: u64, change: impl FnOnce(&mut StreamConfig)) -> Command {
    let Command::CreateStream(created) = create_stream("s", "mallory") else { panic!("creates") };
    let mut stream = created.stream.expect("a stream");
    change(&mut stream);
    Command::UpdateStream(UpdateStream { stream: Some(stream), revision })
}

#[track_caller]
fn refused(reply: &Reply, refusal: Refusal) {
    assert_eq!(*reply, Reply::Refused(refusal));
}

#[track_caller]
fn stream_of(reply: Reply) -> Stream {
    match reply {
        Reply::Stream(StreamWritten { row: Some(row) }) => row.try_into().expect("a stream"),
        other => panic!("{other:?}"),
    }
}

impl StateHarness {
    fn stream(&self) -> Arc<Stream> {
        Arc::clone(&self.machine.index().streams["s"])
    }

    fn cursor(&self) -> Arc<StreamCursor> {
        Arc::clone(&self.machine.index().stream_cursors["s"])
    }

    fn undelivered(&self) -> Vec<(String, Value)> {
        let events = self.events_from(EventId::default()).into_iter();
        let own = events.filter(|event| event.stream_id.is_some()).map(|event| {
            assert_eq!(event.stream_id.as_deref(), Some("s"));
            assert_eq!(event.event.sub_id, json!({"format": "opaque", "id": "s"}));
            (event.event.event_type, Value::Object(event.event.claims))
        });
        own.collect()
    }

    fn restarts_the_same(&self) {
        let restarted = Replicated::default();
        restarted.rebuild(&self.rows).expect("rebuilds");
        assert_eq!(format!("{:?}", restarted.index()), format!("{:?}", self.machine.index()));
    }
}

#[test]
fn new_stream_is_enabled_and_begins_at_its_entry() {
    let mut harness = StateHarness::default();
    harness.apply(START, vec![create_stream("t", "bob"), create_stream("s", "alice")]);
    let stream = harness.stream();
    assert_eq!(
        (stream.status, stream.reason.clone(), stream.owes_update),
        (StreamStatus::Enabled, None, false)
    );
    assert_eq!((stream.created_at, stream.updated_at, stream.revision), (START, START, 1));
    assert_eq!((stream.config.owner.as_str(), stream.config.endpoint_url.clone()), ("alice", None));
    let next = EventId { index: 1, number: 1 };
    assert_eq!(*harness.cursor(), StreamCursor { next, version: 1, ..StreamCursor::default() });
    refused(&harness.one(START, create_stream("s", "mallory")), Refusal::StreamChanged);
    harness.restarts_the_same();
}

#[test]
fn retry_returns_the_stream_of_the_first_request() {
    let mut harness = StateHarness::default();
    let once = |stream_id: &str| {
        let digest = bytes::Bytes::from_static(&[7; 16]);
        let idempotency =
            command::Idempotency { key: digest.clone(), request: digest.clone(), owner: digest };
        encode_once(create_stream(stream_id, "alice"), Some(idempotency))
    };
    let first = harness.replied(START, vec![once("s")]).remove(0);
    let rows = harness.rows.without_events();
    let again = harness.replied(START, vec![once("another")]).remove(0);
    assert_eq!(again, Replied::repeated(first.outcome));
    assert_eq!(harness.rows.without_events(), rows, "no other is created");
    let kept = harness.rows.0.iter().find(|((table, _), _)| table == crate::state::tables::IDEMPOTENCY);
    let stores_request = |row: &Vec<u8>| row.windows(9).any(|part| part == b"receiver.");
    assert!(kept.is_some_and(|(_, row)| !stores_request(row)), "the configuration is not stored twice");
}

#[test]
fn streams_over_the_limits_are_refused() {
    let mut harness = StateHarness::default();
    let name = |number: u64| format!("s{number}");
    for number in 0..limits::STREAMS_PER_CALLER_MAX {
        stream_of(harness.one(START, create_stream(&name(number), "alice")));
    }
    refused(&harness.one(START, create_stream("more", "alice")), Refusal::TooManyStreams);
    harness.one(START, delete_stream("s0"));
    stream_of(harness.one(START, create_stream("more", "alice")));
    refused(&harness.one(START, create_stream("again", "alice")), Refusal::TooManyStreams);
    let mut others = 0;
    while harness.machine.index().streams.len() < usize::try_from(limits::STREAMS_MAX).expect("fits") {
        let owner = format!("caller {}", others / limits::STREAMS_PER_CALLER_MAX);
        stream_of(harness.one(START, create_stream(&format!("o{others}"), &owner)));
        others += 1;
    }
    refused(&harness.one(START, create_stream("last", "another")), Refusal::TooManyStreams);
    assert_eq!(harness.one(START, delete_stream("more")), DONE);
    stream_of(harness.one(START, create_stream("last", "another")));
}

#[test]
fn deletion_removes_the_rows_of_that_stream_only() {
    let mut harness = StateHarness::default();
    harness.apply(START, vec![create_stream("s", "alice"), create_stream("s0", "bob")]);
    for stream_id in ["s", "s0"] {
        let id = Some(EventId { index: 1, number: 0 });
        let letter = command::DeadLetter { id, ..command::DeadLetter::default() };
        let command = AdvanceStream {
            stream_id: stream_id.to_owned(),
            version: 1,
            cursor: Some(command::StreamCursorRow::default()),
            dead_letters: vec![letter],
            filter: None,
        };
        assert_eq!(harness.one(START, Command::AdvanceStream(command)), DONE);
    }
    assert_eq!(harness.one(START, delete_stream("s")), DONE);
    for table in [STREAM, STREAM_CURSOR, DEAD_LETTER, OWNED] {
        assert_eq!(harness.rows.0.keys().filter(|(of, _)| of == table).count(), 1, "{table}");
    }
    let index = harness.machine.index().clone();
    assert_eq!((index.streams.len(), index.stream_cursors.len()), (1, 1));
    harness.restarts_the_same();
}

#[test]
fn commands_for_an_unknown_stream_are_refused() {
    let mut harness = StateHarness::default();
    harness.one(START, create_stream("t", "alice"));
    let advance = AdvanceStream { stream_id: "s".to_owned(), ..AdvanceStream::default() };
    let rows = harness.rows.without_deduplication();
    for command in [
        update(1, |_| {}),
        receiver_sets(StreamStatus::Disabled, ""),
        transmitter_pauses(""),
        subject(&email("a@b.example"), true),
        subject(&email("a@b.example"), false),
        verify(""),
        delete_stream("s"),
        Command::AdvanceStream(advance),
    ] {
        refused(&harness.one(START, command), Refusal::UnknownStream);
    }
    assert_eq!(harness.rows.without_deduplication(), rows);
}

#[test]
fn update_requires_the_revision_and_keeps_the_owner() {
    let mut harness = StateHarness::with_stream();
    let url = "https://receiver.example/push";
    let later = START.plus(SECOND);
    let push = |stream: &mut StreamConfig| stream.endpoint_url = Some(url.to_owned());
    let stream = stream_of(harness.one(later, update(1, push)));
    assert_eq!((stream.config.endpoint_url.as_deref(), stream.config.owner.as_str()), (Some(url), "alice"));
    assert_eq!((stream.revision, stream.created_at, stream.updated_at), (2, START, later));
    assert_eq!(*harness.stream(), stream);
    refused(&harness.one(later, update(1, |_| {})), Refusal::StreamChanged);
    refused(&harness.one(later, update(3, |_| {})), Refusal::StreamChanged);
    let rows = harness.rows.without_events();
    let again = stream_of(harness.one(later, update(2, push)));
    assert_eq!(
        (again, harness.rows.without_events()),
        (stream, rows),
        "an equal configuration changes nothing"
    );
    harness.restarts_the_same();
}

#[test]
fn status_changes_keep_the_revision() {
    let mut harness = StateHarness::with_stream();
    harness.one(START, transmitter_pauses("too slow"));
    harness.one(START, subject(&email("a@b.example"), true));
    let stream = stream_of(harness.one(START, update(1, |stream| stream.description = Some("mine".into()))));
    assert_eq!((stream.status, stream.reason.as_deref()), (StreamStatus::Paused, Some("too slow")));
    assert_eq!((stream.owes_update, stream.removed_subjects.len()), (true, 1));
}

#[test]
fn receiver_sets_any_status_without_an_event() {
    use StreamStatus::{Disabled, Enabled, Paused};
    let mut harness = StateHarness::with_stream();
    for status in [Paused, Disabled, Paused, Enabled, Disabled, Enabled, Paused, Enabled] {
        let stream = stream_of(harness.one(START.plus(SECOND), receiver_sets(status, "because")));
        assert_eq!((stream.status, stream.reason.as_deref()), (status, Some("because")));
        assert_eq!(*harness.stream(), stream);
    }
    assert!(harness.undelivered().is_empty());
    assert_eq!(harness.stream().updated_at, START.plus(SECOND));
    let events = harness.feed_ids_of("stream").len();
    stream_of(harness.one(START, receiver_sets(Enabled, "because")));
    assert_eq!(harness.feed_ids_of("stream").len(), events, "no event without a change");
}

#[test]
fn paused_stream_retains_and_disabled_stream_skips_events() {
    use StreamStatus::{Disabled, Enabled, Paused};
    let mut harness = StateHarness::with_stream();
    let held = harness.cursor().next;
    harness.one(START, receiver_sets(Paused, ""));
    harness.one(START, signal("1", &["a"]));
    harness.one(START, receiver_sets(Enabled, ""));
    assert_eq!(harness.cursor().next, held);
    for (jti, status) in [("2", Enabled), ("3", Paused)] {
        harness.one(START, receiver_sets(Disabled, ""));
        harness.one(START, signal(jti, &["missed"]));
        let version = harness.cursor().version;
        // Events before it in the entry are skipped too, events after it are delivered.
        let (before, behind) = (format!("{jti} before"), format!("{jti} behind"));
        let entry = vec![signal(&before, &["missed"]), receiver_sets(status, ""), signal(&behind, &["got"])];
        harness.apply(START, entry);
        let got = harness.events_from(harness.cursor().next);
        assert_eq!(got.iter().map(|event| event.event.subject()).collect::<Vec<_>>(), ["got"]);
        assert_eq!(harness.cursor().version, version + 1, "a concurrent delivery starts over");
    }
    harness.restarts_the_same();
}

#[test]
fn disabling_clears_the_done_events() {
    let mut harness = StateHarness::with_stream();
    harness.one(START, signal("1", &["a", "b"]));
    let done = vec![EventId { index: 2, number: 2 }];
    let cursor = Some(command::StreamCursorRow { done, delivered: 1, ..command::StreamCursorRow::default() });
    let advance = AdvanceStream { stream_id: "s".to_owned(), version: 1, cursor, ..AdvanceStream::default() };
    assert_eq!(harness.one(START, Command::AdvanceStream(advance)), DONE);
    assert_eq!(harness.cursor().done.len(), 1);
    harness.apply(
        START,
        vec![receiver_sets(StreamStatus::Disabled, ""), receiver_sets(StreamStatus::Enabled, "")],
    );
    assert_eq!((harness.cursor().done.len(), harness.cursor().delivered), (0, 1));
}

#[test]
fn transmitter_pauses_only_an_enabled_stream() {
    let mut harness = StateHarness::with_stream();
    for status in [StreamStatus::Paused, StreamStatus::Disabled] {
        harness.one(START, receiver_sets(status, "mine"));
        let rows = harness.rows.without_deduplication();
        refused(&harness.one(START, transmitter_pauses("too slow")), Refusal::StreamNotEnabled);
        assert_eq!(harness.rows.without_events(), crate::state::testing::Rows(rows).without_events());
    }
    harness.one(START, receiver_sets(StreamStatus::Enabled, ""));
    assert_eq!(
        stream_of(harness.one(START, transmitter_pauses("too slow"))).reason.as_deref(),
        Some("too slow")
    );
    refused(&harness.one(START, transmitter_pauses("still too slow")), Refusal::StreamNotEnabled);
}

#[test]
fn pause_by_transmitter_sends_one_update_when_enabled() {
    let mut harness = StateHarness::with_stream();
    harness.one(START, transmitter_pauses("too slow"));
    assert!(harness.stream().owes_update && harness.undelivered().is_empty());
    let stream = stream_of(harness.one(START, receiver_sets(StreamStatus::Enabled, "fixed")));
    assert_eq!((stream.owes_update, stream.reason.as_deref()), (false, Some("fixed")));
    let event = (STREAM_UPDATED.to_owned(), json!({"status": "enabled", "reason": "too slow"}));
    assert_eq!(harness.undelivered(), std::slice::from_ref(&event));
    assert!(
        harness.events_from(harness.cursor().next).iter().any(|event| event.stream_id.is_some()),
        "it is after the cursor"
    );
    for status in [StreamStatus::Paused, StreamStatus::Enabled] {
        harness.one(START, receiver_sets(status, ""));
    }
    assert_eq!(harness.undelivered(), [event], "sent once");
    harness.restarts_the_same();
}

#[test]
fn update_is_owed_until_the_stream_is_enabled() {
    let mut harness = StateHarness::with_stream();
    harness.one(START, transmitter_pauses("too slow"));
    for status in [StreamStatus::Disabled, StreamStatus::Paused, StreamStatus::Disabled] {
        let stream = stream_of(harness.one(START, receiver_sets(status, "mine")));
        assert!(stream.owes_update && stream.reason.as_deref() == Some("mine"));
    }
    assert!(harness.undelivered().is_empty());
    harness.one(START, receiver_sets(StreamStatus::Enabled, ""));
    let event = (STREAM_UPDATED.to_owned(), json!({"status": "enabled", "reason": "too slow"}));
    assert_eq!(harness.undelivered(), [event]);
    // It skipped earlier events, so this is the first one.
    let first = harness.events_from(harness.cursor().next).remove(0);
    assert_eq!(first.event.event_type, STREAM_UPDATED);
}

#[test]
fn verification_event_is_for_its_stream_with_its_state() {
    let mut harness = StateHarness::with_stream();
    harness.one(START, create_stream("t", "bob"));
    stream_of(harness.one(START, verify("VGhpcw==")));
    stream_of(harness.one(START.plus(limits::VERIFICATION_INTERVAL_MIN), verify("")));
    let of = |claims: Value| (VERIFICATION.to_owned(), claims);
    assert_eq!(harness.undelivered(), [of(json!({"state": "VGhpcw=="})), of(json!({}))]);
}

#[test]
fn only_an_enabled_stream_can_be_verified() {
    let mut harness = StateHarness::with_stream();
    for status in [StreamStatus::Paused, StreamStatus::Disabled] {
        harness.one(START, receiver_sets(status, ""));
        refused(&harness.one(START, verify("")), Refusal::StreamNotEnabled);
    }
    harness.one(START, receiver_sets(StreamStatus::Enabled, ""));
    stream_of(harness.one(START, verify("")));
}

#[test]
fn stream_is_verified_once_per_minute_of_elapsed_time() {
    let mut harness = StateHarness::with_stream();
    let replies = harness.apply(START, vec![verify(""), verify("")]);
    refused(&replies[1], Refusal::VerifiedTooOften);
    assert_eq!(harness.undelivered().len(), 1, "also within one entry");
    let (almost, minute) = (Duration::from_millis(59_999), limits::VERIFICATION_INTERVAL_MIN);
    refused(&harness.one(START.plus(almost), verify("")), Refusal::VerifiedTooOften);
    stream_of(harness.one(START.plus(minute), verify("")));
    // A wall clock set ahead does not advance elapsed time, and one set back does not stop it.
    let at =
        |time: Timestamp, elapsed| Stamp { time, latest: time, elapsed: START.plus(minute).plus(elapsed) };
    let ahead = START.plus(Duration::from_secs(86_400));
    let reply = harness.stamped_as(at(ahead, SECOND), vec![encode(verify(""))]).remove(0);
    refused(&reply.outcome, Refusal::VerifiedTooOften);
    let reply = harness.stamped_as(at(START.minus(minute), minute), vec![encode(verify(""))]).remove(0);
    stream_of(reply.outcome);
    // A change of status does not reset the interval.
    harness.one(START, receiver_sets(StreamStatus::Paused, ""));
    harness.one(START, receiver_sets(StreamStatus::Enabled, ""));
    refused(&harness.one(START, verify("")), Refusal::VerifiedTooOften);
}

#[test]
fn subject_is_excluded_once_and_added_again() {
    let mut harness = StateHarness::with_stream();
    let (a, b) = (email("a@b.example"), email("b@b.example"));
    for sub_id in [&a, &b, &a] {
        stream_of(harness.one(START, subject(sub_id, true)));
    }
    let read = |sub_id: &Value| SubjectId::read(sub_id, "sub_id").expect("a subject");
    assert_eq!(harness.stream().removed_subjects, [read(&a), read(&b)]);
    for sub_id in [&a, &a, &email("c@b.example")] {
        stream_of(harness.one(START, subject(sub_id, false)));
    }
    assert_eq!(harness.stream().removed_subjects, [read(&b)]);
    harness.restarts_the_same();
}

#[test]
fn excluded_subjects_are_limited() {
    let mut harness = StateHarness::with_stream();
    for number in 0..limits::EXCLUDED_SUBJECTS_PER_STREAM_MAX {
        stream_of(harness.one(START, subject(&email(&format!("{number}@b.example")), true)));
    }
    refused(&harness.one(START, subject(&email("more@b.example"), true)), Refusal::TooManySubjects);
    stream_of(harness.one(START, subject(&email("0@b.example"), true)));
    stream_of(harness.one(START, subject(&email("0@b.example"), false)));
    stream_of(harness.one(START, subject(&email("more@b.example"), true)));

    let mut harness = StateHarness::with_stream();
    let long = |letter: &str, bytes: usize| {
        let empty = json!({"format": "iss_sub", "iss": letter, "sub": ""}).to_string().len();
        json!({"format": "iss_sub", "iss": letter, "sub": "s".repeat(bytes - empty)})
    };
    let quarter = limits::EXCLUDED_SUBJECTS_BYTES_MAX / 8;
    for letter in ["a", "b", "c", "d", "e", "f", "g"] {
        stream_of(harness.one(START, subject(&long(letter, quarter), true)));
    }
    refused(&harness.one(START, subject(&long("h", quarter + 1), true)), Refusal::TooManySubjects);
    stream_of(harness.one(START, subject(&long("h", quarter), true)));
}

#[test]
fn invalid_row_or_command_is_corrupt() {
    let harness = StateHarness::with_stream();
    for (table, key) in [(STREAM, "s"), (STREAM_CURSOR, "s")] {
        let mut rows = crate::state::testing::Rows(harness.rows.0.clone());
        rows.0.insert((table.to_owned(), key.as_bytes().to_vec()), vec![0xff]);
        assert!(Replicated::default().rebuild(&rows).is_err(), "{table}");
    }
    let row = |change: &dyn Fn(&mut StreamRow)| {
        let stream = StreamConfig { stream_id: "s".to_owned(), ..StreamConfig::default() };
        let mut row = StreamRow { stream: Some(stream), ..StreamRow::default() };
        change(&mut row);
        Stream::from_row(&row.encode_to_vec())
    };
    assert!(row(&|_| {}).is_ok());
    assert!(row(&|row| row.stream = None).is_err());
    assert!(row(&|row| row.status = 9).is_err());
    for sub_id in ["", "[]", "{}", r#"{"format":"email"}"#] {
        assert!(row(&|row| row.removed_subjects = vec![sub_id.to_owned()]).is_err(), "{sub_id}");
    }
    let of_nobody = ChangeStreamSubject { stream_id: "s".to_owned(), sub_id: "1".to_owned(), removed: true };
    for command in [
        Command::ChangeStreamSubject(of_nobody),
        Command::CreateStream(CreateStream::default()),
        Command::UpdateStream(UpdateStream::default()),
        Command::SetStreamStatus(SetStreamStatus { status: 9, ..set(StreamStatus::Paused, "") }),
        Command::AdvanceStream(AdvanceStream {
            stream_id: "s".to_owned(),
            version: 1,
            ..AdvanceStream::default()
        }),
    ] {
        let batch = batch(Stamp::default(), vec![encode(command.clone())]);
        assert!(harness.machine.apply(&harness.rows, &batch, 2).is_err(), "{command:?}");
    }
}

#[test]
fn rows_of_streams_do_not_depend_on_batching() {
    let commands = || {
        vec![
            create_stream("s", "alice"),
            create_stream("t", "alice"),
            update(1, |stream| stream.description = Some("mine".into())),
            subject(&email("a@b.example"), true),
            transmitter_pauses("too slow"),
            delete_stream("t"),
        ]
    };
    let (mut together, mut apart) = (StateHarness::default(), StateHarness::default());
    let replies = together.apply(START, commands());
    let one_by_one: Vec<Reply> = commands().into_iter().map(|command| apart.one(START, command)).collect();
    assert_eq!(replies, one_by_one);
    // A cursor begins at an event id, which depends on the batching.
    let rows = |harness: &StateHarness| {
        let mut rows = harness.rows.without_events();
        rows.retain(|(table, _), _| table != STREAM_CURSOR);
        rows
    };
    assert_eq!(rows(&together), rows(&apart));
    together.restarts_the_same();
}

#[test]
fn status_is_one_of_three_words() {
    for status in [StreamStatus::Enabled, StreamStatus::Paused, StreamStatus::Disabled] {
        assert_eq!(status.into_str().parse(), Ok(status));
        assert_eq!(status_of(status.into()).expect("known"), status);
    }
    for word in ["", "Enabled", "enabled ", "stopped"] {
        assert!(word.parse::<StreamStatus>().is_err());
    }
}
