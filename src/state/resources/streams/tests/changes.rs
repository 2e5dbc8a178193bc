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

impl Bench {
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
fn we_pause_as_of(changes: u64, reason: &str) -> Command {
    let set = set(StreamStatus::Paused, reason);
    Command::SetStreamStatus(SetStreamStatus { by_transmitter: true, changes: Some(changes), ..set })
}

/// A poll had scanned the outbox for one type. Before it returned that there was nothing, its receiver requested another
/// type too, and an event of that type arrived.
#[test]
fn scan_with_another_filter_does_not_advance_the_cursor() {
    let mut bench = Bench::with_stream();
    let looked_by = Some(bench.stream().filter);
    let before = bench.cursor();
    stands(bench.one(START, with_other_type(1)));
    bench.one(START, other_signal("1"));
    let late = bench.pass_all(looked_by);
    refused(&bench.one(START, late), Refusal::StreamChanged);
    assert_eq!(bench.cursor(), before);
    // Also within one entry.
    let entry = vec![bench.pass_all(Some(bench.stream().filter)), subject(&email("a@b.example"), true)];
    assert_eq!(bench.apply(START, entry)[0], DONE);
    let removed = bench.stream().filter;
    let entry = vec![subject(&email("a@b.example"), false), bench.pass_all(Some(removed))];
    refused(&bench.apply(START, entry)[1], Refusal::StreamChanged);
    // Description and status do not change the filter.
    let filter = Some(bench.stream().filter);
    let change = |stream: &mut command::Stream| {
        stream.events_delivered.push(OTHER.to_owned());
        "mine".clone_into(&mut stream.description);
    };
    stands(bench.one(START, update(2, change)));
    bench.one(START, receiver_sets(StreamStatus::Paused, ""));
    assert_eq!(bench.one(START, bench.pass_all(filter)), DONE);
    assert_eq!(bench.one(START, bench.pass_all(None)), DONE, "as an older version wrote it");
    bench.restarts_the_same();
}

#[test]
fn added_type_counts_from_its_entry_on() {
    let mut bench = Bench::with_stream();
    bench.one(START, other_signal("1"));
    let entry = vec![other_signal("2"), with_other_type(1), other_signal("3")];
    bench.apply(START, entry);
    let added = bench.stream().added.types.clone();
    assert_eq!(added.keys().collect::<Vec<_>>(), [OTHER], "without the types of its creation");
    let counts = |bench: &Bench| {
        let since = bench.stream().added.types[OTHER];
        let events = bench.waiting_from(since);
        events.iter().map(|event| event.event.subject()).collect::<Vec<_>>()
    };
    assert_eq!(counts(&bench), ["3"]);
    let change = |stream: &mut command::Stream| {
        stream.events_delivered.push(OTHER.to_owned());
        "mine".clone_into(&mut stream.description);
    };
    stands(bench.one(START, update(2, change)));
    assert_eq!(bench.stream().added.types, added);
    stands(bench.one(START, update(3, |_| {})));
    assert_eq!(bench.stream().added, Added::default());
    stands(bench.one(START, with_other_type(4)));
    bench.one(START, other_signal("4"));
    assert_eq!(counts(&bench), ["4"]);
    bench.restarts_the_same();
}

#[test]
fn subject_added_again_counts_from_its_entry_on() {
    let mut bench = Bench::with_stream();
    let (a, b) = (email("a@b.example"), email("b@b.example"));
    bench.one(START, subject(&a, true));
    bench.one(START, subject(&b, true));
    bench.apply(START, vec![signal("1", &["before"]), subject(&a, false), signal("2", &["behind"])]);
    let stream = bench.stream();
    let [(added, since)] = stream.added.subjects.as_slice() else { panic!("{stream:?}") };
    assert_eq!(*added, SubjectId::Email("a@b.example".to_owned()));
    let events = bench.waiting_from(*since);
    assert_eq!(events.iter().map(|event| event.event.subject()).collect::<Vec<_>>(), ["behind"]);
    stands(bench.one(START, subject(&a, true)));
    assert_eq!(bench.stream().added.subjects, [], "excluded again");
    // Records before the cursor are deleted.
    stands(bench.one(START, subject(&a, false)));
    assert_eq!(bench.one(START, bench.pass_all(None)), DONE);
    stands(bench.one(START, subject(&b, false)));
    let stream = bench.stream();
    let [(added, _)] = stream.added.subjects.as_slice() else { panic!("{stream:?}") };
    assert_eq!(*added, SubjectId::Email("b@b.example".to_owned()));
    bench.restarts_the_same();
}

#[test]
fn records_of_added_subjects_are_limited() {
    let mut bench = Bench::with_stream();
    let address = |number: usize| email(&format!("{number}@b.example"));
    for number in 0..=limits::STREAM_SUBJECTS_MAX {
        stands(bench.one(START, subject(&address(number), true)));
        stands(bench.one(START, subject(&address(number), false)));
    }
    let stream = bench.stream();
    assert_eq!(stream.added.subjects.len(), limits::STREAM_SUBJECTS_MAX);
    assert_eq!(
        stream.added.subjects[0].0,
        SubjectId::Email("1@b.example".to_owned()),
        "the first is deleted"
    );
    let long = |at: usize| json!({"format": "iss_sub", "iss": at.to_string(), "sub": "s".repeat(limits::WORKLOAD_ID_BYTES_MAX)});
    for at in 0..10 {
        stands(bench.one(START, subject(&long(at), true)));
        stands(bench.one(START, subject(&long(at), false)));
    }
    assert_eq!(bench.stream().added.subjects.len(), 7, "as many as fit");
    bench.restarts_the_same();
}

#[test]
fn pause_by_transmitter_on_a_stale_version_is_refused() {
    let mut bench = Bench::with_stream();
    let decided_by = bench.stream().changes;
    stands(bench.one(START, update(1, |stream| "https://b.example/".clone_into(&mut stream.endpoint_url))));
    refused(&bench.one(START, we_pause_as_of(decided_by, "401")), Refusal::StreamChanged);
    let decided_by = bench.stream().changes;
    bench.one(START, receiver_sets(StreamStatus::Paused, ""));
    bench.one(START, receiver_sets(StreamStatus::Enabled, ""));
    refused(&bench.one(START, we_pause_as_of(decided_by, "401")), Refusal::StreamChanged);
    assert_eq!(bench.stream().status, StreamStatus::Enabled);
    // Neither a verification nor an advance counts as a change.
    let decided_by = bench.stream().changes;
    stands(bench.one(START, verify("")));
    assert_eq!(bench.one(START, bench.pass_all(None)), DONE);
    assert_eq!(stands(bench.one(START, we_pause_as_of(decided_by, "401"))).status, StreamStatus::Paused);
    bench.restarts_the_same();
}

#[test]
fn stream_paused_by_its_receiver_takes_our_reason() {
    let mut bench = Bench::with_stream();
    bench.one(START, receiver_sets(StreamStatus::Paused, "mine"));
    let paused = stands(bench.one(START, we_pause_as_of(bench.stream().changes, "too much")));
    assert_eq!((paused.reason.as_deref(), paused.owes_update), (Some("too much"), true));
    bench.one(START, receiver_sets(StreamStatus::Enabled, ""));
    let event = (STREAM_UPDATED.to_owned(), json!({"status": "enabled", "reason": "too much"}));
    assert_eq!(bench.waiting_for_it(), [event]);
    // Also if the receiver stated the same reason.
    bench.one(START, receiver_sets(StreamStatus::Paused, "too much"));
    assert!(stands(bench.one(START, we_pause_as_of(bench.stream().changes, "too much"))).owes_update);
    bench.one(START, receiver_sets(StreamStatus::Disabled, ""));
    refused(&bench.one(START, we_pause_as_of(bench.stream().changes, "x")), Refusal::StreamNotEnabled);
}

#[test]
fn row_without_counts_is_read_and_counted_from_then_on() {
    let mut bench = Bench::with_stream();
    let stream = command::Stream { stream_id: "s".to_owned(), ..command::Stream::default() };
    let row = StreamRow { stream: Some(stream), revision: 1, ..StreamRow::default() };
    bench.rows.0.insert((STREAM.to_owned(), b"s".to_vec()), row.encode_to_vec());
    bench.machine = Replicated::default();
    bench.machine.rebuild(&bench.rows).expect("rebuilds");
    assert_eq!((bench.stream().changes, bench.stream().filter), (0, 0));
    assert_eq!(bench.one(START, bench.pass_all(Some(0))), DONE);
    stands(bench.one(START, subject(&email("a@b.example"), true)));
    refused(&bench.one(START, bench.pass_all(Some(0))), Refusal::StreamChanged);
    assert_eq!(bench.one(START, bench.pass_all(Some(1))), DONE);
}
