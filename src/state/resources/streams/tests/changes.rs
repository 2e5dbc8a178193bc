//! Tests of changes of a stream concurrent with scans and decisions.

use super::*;
use crate::state::testing::about;

const OTHER: &str = "urn:other";

/// A signal with an event of a type that the stream was not created for.
fn other_signal(jti: &str) -> Command {
    let Command::AcceptSignal(mut accepted) = signal(jti, &[]) else { panic!("accepts") };
    let event = command::SecurityEvent { event_type: OTHER.to_owned(), ..about(jti) };
    accepted.events = vec![event];
    Command::AcceptSignal(accepted)
}

fn with_other_type(revision: u64) -> Command {
    update(revision, |stream| stream.events_delivered.push(OTHER.to_owned()))
}

impl StateHarness {
    /// Advances the stream to the end, after a scan with this filter.
    fn pass_all(&self, filter: Option<u64>) -> Command {
        let next = EventId { index: u64::MAX, number: 0 };
        let cursor = Some(StreamCursor { next, ..StreamCursor::default() }.into());
        let version = self.cursor().version;
        Command::AdvanceStream(AdvanceStream {
            stream_id: "s".to_owned(),
            version,
            cursor,
            filter,
            ..AdvanceStream::default()
        })
    }
}

/// The transmitter's pause, based on this number of changes.
fn transmitter_pauses_at(changes: u64, reason: &str) -> Command {
    let set = set(StreamStatus::Paused, reason);
    Command::SetStreamStatus(SetStreamStatus { by_transmitter: true, changes: Some(changes), ..set })
}

/// A poll had scanned the outbox for one type. Before it returned that there was nothing, its receiver requested another
/// type too, and an event of that type arrived.
#[test]
fn scan_with_another_filter_does_not_advance_the_cursor() {
    let mut harness = StateHarness::with_stream();
    let looked_by = Some(harness.stream().filter);
    let before = harness.cursor();
    stream_of(harness.one(START, with_other_type(1)));
    harness.one(START, other_signal("1"));
    let late = harness.pass_all(looked_by);
    refused(&harness.one(START, late), Refusal::StreamChanged);
    assert_eq!(harness.cursor(), before);
    // Also within one entry.
    let entry = vec![harness.pass_all(Some(harness.stream().filter)), subject(&email("a@b.example"), true)];
    assert_eq!(harness.apply(START, entry)[0], DONE);
    let removed = harness.stream().filter;
    let entry = vec![subject(&email("a@b.example"), false), harness.pass_all(Some(removed))];
    refused(&harness.apply(START, entry)[1], Refusal::StreamChanged);
    // Description and status do not change the filter.
    let filter = Some(harness.stream().filter);
    let change = |stream: &mut StreamConfig| {
        stream.events_delivered.push(OTHER.to_owned());
        stream.description = Some("mine".to_owned());
    };
    stream_of(harness.one(START, update(2, change)));
    harness.one(START, receiver_sets(StreamStatus::Paused, ""));
    assert_eq!(harness.one(START, harness.pass_all(filter)), DONE);
    assert_eq!(harness.one(START, harness.pass_all(None)), DONE, "as an older version wrote it");
    harness.restarts_the_same();
}

#[test]
fn added_type_counts_from_its_entry_on() {
    let mut harness = StateHarness::with_stream();
    harness.one(START, other_signal("1"));
    let entry = vec![other_signal("2"), with_other_type(1), other_signal("3")];
    harness.apply(START, entry);
    let added = harness.stream().added.types.clone();
    assert_eq!(added.keys().collect::<Vec<_>>(), [OTHER], "without the types of its creation");
    let counts = |harness: &StateHarness| {
        let since = harness.stream().added.types[OTHER];
        let events = harness.events_from(since);
        events.iter().map(|event| event.event.subject()).collect::<Vec<_>>()
    };
    assert_eq!(counts(&harness), ["3"]);
    let change = |stream: &mut StreamConfig| {
        stream.events_delivered.push(OTHER.to_owned());
        stream.description = Some("mine".to_owned());
    };
    stream_of(harness.one(START, update(2, change)));
    assert_eq!(harness.stream().added.types, added);
    stream_of(harness.one(START, update(3, |_| {})));
    assert_eq!(harness.stream().added, Added::default());
    stream_of(harness.one(START, with_other_type(4)));
    harness.one(START, other_signal("4"));
    assert_eq!(counts(&harness), ["4"]);
    harness.restarts_the_same();
}

#[test]
fn subject_added_again_counts_from_its_entry_on() {
    let mut harness = StateHarness::with_stream();
    let (a, b) = (email("a@b.example"), email("b@b.example"));
    harness.one(START, subject(&a, true));
    harness.one(START, subject(&b, true));
    harness.apply(START, vec![signal("1", &["before"]), subject(&a, false), signal("2", &["behind"])]);
    let stream = harness.stream();
    let [(added, since)] = stream.added.subjects.as_slice() else { panic!("{stream:?}") };
    assert_eq!(*added, SubjectId::Email("a@b.example".to_owned()));
    let events = harness.events_from(*since);
    assert_eq!(events.iter().map(|event| event.event.subject()).collect::<Vec<_>>(), ["behind"]);
    stream_of(harness.one(START, subject(&a, true)));
    assert_eq!(harness.stream().added.subjects, [], "excluded again");
    // Records before the cursor are deleted.
    stream_of(harness.one(START, subject(&a, false)));
    assert_eq!(harness.one(START, harness.pass_all(None)), DONE);
    stream_of(harness.one(START, subject(&b, false)));
    let stream = harness.stream();
    let [(added, _)] = stream.added.subjects.as_slice() else { panic!("{stream:?}") };
    assert_eq!(*added, SubjectId::Email("b@b.example".to_owned()));
    harness.restarts_the_same();
}

#[test]
fn records_of_added_subjects_are_limited() {
    let mut harness = StateHarness::with_stream();
    let address = |number: usize| email(&format!("{number}@b.example"));
    for number in 0..=limits::EXCLUDED_SUBJECTS_PER_STREAM_MAX {
        stream_of(harness.one(START, subject(&address(number), true)));
        stream_of(harness.one(START, subject(&address(number), false)));
    }
    let stream = harness.stream();
    assert_eq!(stream.added.subjects.len(), limits::EXCLUDED_SUBJECTS_PER_STREAM_MAX);
    assert_eq!(
        stream.added.subjects[0].0,
        SubjectId::Email("1@b.example".to_owned()),
        "the first is deleted"
    );
    let long = |at: usize| json!({"format": "iss_sub", "iss": at.to_string(), "sub": "s".repeat(limits::WORKLOAD_ID_BYTES_MAX)});
    for at in 0..10 {
        stream_of(harness.one(START, subject(&long(at), true)));
        stream_of(harness.one(START, subject(&long(at), false)));
    }
    assert_eq!(harness.stream().added.subjects.len(), 7, "as many as fit");
    harness.restarts_the_same();
}

#[test]
fn pause_by_transmitter_on_a_stale_version_is_refused() {
    let mut harness = StateHarness::with_stream();
    let decided_by = harness.stream().changes;
    let push = |stream: &mut StreamConfig| stream.endpoint_url = Some("https://b.example/".to_owned());
    stream_of(harness.one(START, update(1, push)));
    refused(&harness.one(START, transmitter_pauses_at(decided_by, "401")), Refusal::StreamChanged);
    let decided_by = harness.stream().changes;
    harness.one(START, receiver_sets(StreamStatus::Paused, ""));
    harness.one(START, receiver_sets(StreamStatus::Enabled, ""));
    refused(&harness.one(START, transmitter_pauses_at(decided_by, "401")), Refusal::StreamChanged);
    assert_eq!(harness.stream().status, StreamStatus::Enabled);
    // Neither a verification nor an advance counts as a change.
    let decided_by = harness.stream().changes;
    stream_of(harness.one(START, verify("")));
    assert_eq!(harness.one(START, harness.pass_all(None)), DONE);
    assert_eq!(
        stream_of(harness.one(START, transmitter_pauses_at(decided_by, "401"))).status,
        StreamStatus::Paused
    );
    harness.restarts_the_same();
}

#[test]
fn stream_paused_by_its_receiver_takes_our_reason() {
    let mut harness = StateHarness::with_stream();
    harness.one(START, receiver_sets(StreamStatus::Paused, "mine"));
    let paused = stream_of(harness.one(START, transmitter_pauses_at(harness.stream().changes, "too much")));
    assert_eq!((paused.reason.as_deref(), paused.owes_update), (Some("too much"), true));
    harness.one(START, receiver_sets(StreamStatus::Enabled, ""));
    let event = (STREAM_UPDATED.to_owned(), json!({"status": "enabled", "reason": "too much"}));
    assert_eq!(harness.undelivered(), [event]);
    // Also if the receiver stated the same reason.
    harness.one(START, receiver_sets(StreamStatus::Paused, "too much"));
    assert!(
        stream_of(harness.one(START, transmitter_pauses_at(harness.stream().changes, "too much")))
            .owes_update
    );
    harness.one(START, receiver_sets(StreamStatus::Disabled, ""));
    refused(
        &harness.one(START, transmitter_pauses_at(harness.stream().changes, "x")),
        Refusal::StreamNotEnabled,
    );
}

#[test]
fn row_without_counts_is_read_and_counted_from_then_on() {
    let mut harness = StateHarness::with_stream();
    let stream = StreamConfig { stream_id: "s".to_owned(), ..StreamConfig::default() };
    let row = StreamRow { stream: Some(stream), revision: 1, ..StreamRow::default() };
    harness.rows.0.insert((STREAM.to_owned(), b"s".to_vec()), row.encode_to_vec());
    harness.machine = Replicated::default();
    harness.machine.rebuild(&harness.rows).expect("rebuilds");
    assert_eq!((harness.stream().changes, harness.stream().filter), (0, 0));
    assert_eq!(harness.one(START, harness.pass_all(Some(0))), DONE);
    stream_of(harness.one(START, subject(&email("a@b.example"), true)));
    refused(&harness.one(START, harness.pass_all(Some(0))), Refusal::StreamChanged);
    assert_eq!(harness.one(START, harness.pass_all(Some(1))), DONE);
}
