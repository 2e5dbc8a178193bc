//! Tests of cursors and dead letters.

use serde_json::json;

use super::*;
use crate::state::testing::{StateHarness, create_stream, signal};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const DONE: Reply = Reply::Done { changed: true };

fn id(index: u64, number: u32) -> EventId {
    EventId { index, number }
}

fn letter(id: EventId) -> command::DeadLetter {
    command::DeadLetter {
        id: Some(id),
        err: "invalid_request".to_owned(),
        description: "no".to_owned(),
        event_type: "urn:event".to_owned(),
        sub_id: json!({"format": "opaque", "id": "1"}).to_string(),
    }
}

/// Advances the stream from `version`.
fn advance(version: u64, cursor: StreamCursor, dead: Vec<command::DeadLetter>) -> Command {
    let (stream_id, cursor) = ("s".to_owned(), Some(cursor.into()));
    Command::AdvanceStream(AdvanceStream { stream_id, version, cursor, dead_letters: dead, filter: None })
}

fn to(next: EventId) -> StreamCursor {
    StreamCursor { next, ..StreamCursor::default() }
}

impl StateHarness {
    /// A stream that begins at 1-0, and events up to entry 5, two in each.
    fn with_events() -> Self {
        let mut harness = Self::with_stream();
        for jti in ["1", "2", "3", "4"] {
            harness.one(START, signal(jti, &["a", "b"]));
        }
        harness
    }

    fn place(&self) -> StreamCursor {
        StreamCursor::clone(&self.machine.index().stream_cursors["s"])
    }

    fn letters(&self, after: Option<EventId>, limit: usize) -> (Vec<EventId>, Option<EventId>) {
        let (letters, next) = dead_letters(&self.rows, "s", after, limit).expect("reads");
        (letters.into_iter().map(|(id, _)| id).collect(), next)
    }
}

#[test]
fn cursor_advances_only_from_the_version_that_was_read() {
    let mut harness = StateHarness::with_events();
    assert_eq!(harness.one(START, advance(1, to(id(2, 2)), Vec::new())), DONE);
    assert_eq!(harness.place(), StreamCursor { next: id(2, 2), version: 2, ..StreamCursor::default() });
    let rows = harness.rows.without_deduplication();
    for version in [0, 1, 3, u64::MAX] {
        let reply = harness.one(START, advance(version, to(id(3, 0)), vec![letter(id(2, 1))]));
        assert_eq!(reply, Reply::Refused(Refusal::StreamChanged), "{version}");
    }
    assert_eq!(harness.rows.without_deduplication(), rows);
    // Of two commands with the same version, one succeeds.
    let both = vec![advance(2, to(id(3, 0)), Vec::new()), advance(2, to(id(4, 0)), Vec::new())];
    assert_eq!(harness.apply(START, both), [DONE, Reply::Refused(Refusal::StreamChanged)]);
    assert_eq!(harness.place().next, id(3, 0));
}

#[test]
fn neither_cursor_nor_counts_decrease() {
    let mut harness = StateHarness::with_events();
    let far = StreamCursor { delivered: 5, dropped: 3, ..to(id(4, 0)) };
    harness.one(START, advance(1, far, Vec::new()));
    harness.one(START, advance(2, StreamCursor { delivered: 4, dropped: 2, ..to(id(2, 0)) }, Vec::new()));
    let cursor = harness.place();
    assert_eq!((cursor.next, cursor.delivered, cursor.dropped, cursor.version), (id(4, 0), 5, 3, 3));
}

#[test]
fn done_events_are_stored_within_the_window() {
    let mut harness = StateHarness::with_events();
    let done = [id(2, 1), id(3, 0), id(3, 1), id(5, 2)].into();
    harness.one(START, advance(1, StreamCursor { done, ..to(id(3, 0)) }, Vec::new()));
    assert_eq!(harness.place().done, [id(3, 0), id(3, 1), id(5, 2)].into());
    // Also if the cursor is further than the command states.
    let done = [id(2, 1), id(3, 1)].into();
    harness.one(START, advance(2, StreamCursor { done, ..to(id(2, 0)) }, Vec::new()));
    assert_eq!(harness.place().done, [id(3, 1)].into());

    let many: Vec<String> = (0..=limits::STREAM_WINDOW).map(|number| number.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    harness.one(START, signal("5", &many));
    let most = u32::try_from(limits::STREAM_WINDOW).expect("fits");
    let index = harness.events_from(id(6, 0)).last().expect("an event").id.index;
    let done: BTreeSet<EventId> = (1..=most + 1).map(|number| id(index, number)).collect();
    harness.one(START, advance(3, StreamCursor { done: done.clone(), ..to(id(3, 0)) }, Vec::new()));
    let kept = harness.place().done;
    assert_eq!((kept.len(), kept.first(), kept.last()), (1000, done.first(), Some(&id(index, most))));
}

#[test]
fn future_events_cannot_be_done() {
    let mut harness = StateHarness::with_events();
    let done = [id(5, 1), id(6, 0), id(7, 0), id(u64::MAX, 0)].into();
    harness.one(START, advance(1, StreamCursor { done, ..to(id(3, 0)) }, Vec::new()));
    assert_eq!(harness.place().done, [id(5, 1)].into());
    // Otherwise the next event of this entry would never be delivered.
    harness.apply(START, vec![advance(2, to(id(u64::MAX, 0)), Vec::new()), signal("5", &["late"])]);
    let left = harness.events_from(harness.place().next);
    assert_eq!(left.iter().map(|event| event.event.subject()).collect::<Vec<_>>(), ["late"]);
}

#[test]
fn dead_letters_are_stored_and_counted() {
    let mut harness = StateHarness::with_events();
    let proposed = StreamCursor { dead_letters: 7, ..to(id(3, 0)) };
    harness.one(START, advance(1, proposed, vec![letter(id(2, 2)), letter(id(2, 1))]));
    harness.one(START, advance(2, to(id(4, 0)), vec![letter(id(3, 1))]));
    assert_eq!(harness.place().dead_letters, 3, "counted by the log, not by the command");
    let (letters, next) = dead_letters(&harness.rows, "s", None, 9).expect("reads");
    let first = DeadLetterRow {
        at_millis: START.millis(),
        err: "invalid_request".to_owned(),
        description: "no".to_owned(),
        event_type: "urn:event".to_owned(),
        sub_id: r#"{"format":"opaque","id":"1"}"#.to_owned(),
    };
    assert_eq!((letters.first(), letters.len(), next), (Some(&(id(2, 1), first)), 3, None));
}

#[test]
fn dead_letters_are_paged_per_stream() {
    let mut harness = StateHarness::with_events();
    // One id is a prefix of the other.
    harness.one(START, create_stream("s0", "bob"));
    let letters = vec![letter(id(2, 1)), letter(id(2, 2)), letter(id(3, 1))];
    harness.one(START, advance(1, to(id(4, 0)), letters));
    let Command::AdvanceStream(others) = advance(1, to(id(4, 0)), vec![letter(id(3, 2))]) else {
        panic!("moves")
    };
    harness.one(START, Command::AdvanceStream(AdvanceStream { stream_id: "s0".to_owned(), ..others }));
    assert_eq!(harness.letters(None, 2), (vec![id(2, 1), id(2, 2)], Some(id(2, 2))));
    assert_eq!(harness.letters(Some(id(2, 2)), 2), (vec![id(3, 1)], None));
    assert_eq!(harness.letters(None, 3), (vec![id(2, 1), id(2, 2), id(3, 1)], None));
    assert_eq!(harness.letters(Some(id(3, 1)), 3), (vec![], None));
}

#[test]
fn newest_dead_letters_are_stored_up_to_the_limit() {
    let mut harness = StateHarness::with_events();
    let most = limits::DEAD_LETTERS_PER_STREAM_MAX as u64;
    let many = |from: u64, count: u64| (from..from + count).map(|index| letter(id(index, 0))).collect();
    harness.one(START, advance(1, to(id(1, 0)), many(1, most)));
    assert_eq!(harness.letters(None, usize::MAX).0.len() as u64, most);
    harness.one(START, advance(2, to(id(1, 0)), many(most + 1, 2)));
    let (kept, _) = harness.letters(None, usize::MAX);
    assert_eq!((kept.len() as u64, kept.first()), (most, Some(&id(3, 0))));
    assert_eq!(harness.place().dead_letters, most + 2);
    // A duplicate counts once.
    harness.one(START, advance(3, to(id(1, 0)), many(most, 2)));
    assert_eq!(harness.letters(None, usize::MAX).0, kept);
}

/// Rows that record their scans: start key and number of visited rows.
struct Watched<'r> {
    rows: &'r crate::state::testing::Rows,
    scans: std::cell::RefCell<Vec<(Vec<u8>, usize)>>,
}

impl View for Watched<'_> {
    fn get(&self, table: &str, key: &[u8]) -> Result<Option<Vec<u8>>, Corrupt> {
        self.rows.get(table, key)
    }

    fn scan(
        &self,
        table: &str,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Corrupt> {
        let mut visited = 0;
        self.rows.scan(table, from, &mut |key, row| {
            visited += 1;
            visit(key, row)
        })?;
        self.scans.borrow_mut().push((from.to_vec(), visited));
        Ok(())
    }
}

#[test]
fn cost_of_a_dead_letter_is_independent_of_their_number() {
    let mut harness = StateHarness::with_events();
    let most = limits::DEAD_LETTERS_PER_STREAM_MAX as u64;
    let many = |from: u64, count: u64| (from..from + count).map(|index| letter(id(index, 0))).collect();
    harness.one(START, advance(1, to(id(1, 0)), many(1, most)));
    harness.one(START, advance(2, to(id(1, 0)), many(most + 1, 70)));
    let Command::AdvanceStream(next) = advance(3, to(id(1, 0)), many(most + 71, 3)) else { panic!("moves") };
    let watched = Watched { rows: &harness.rows, scans: Vec::new().into() };
    super::advance(&mut Tables::of_entry(&watched, 9), START, next).expect("moves");
    let first_kept = [&b"s\0"[..], &id(70, 0).next().key()].concat();
    assert_eq!(watched.scans.take(), [(first_kept, 4)], "after all dropped ones");
    // Below the limit, no row is scanned.
    let mut harness = StateHarness::with_events();
    harness.one(START, advance(1, to(id(1, 0)), many(1, 9)));
    let Command::AdvanceStream(next) = advance(2, to(id(1, 0)), many(10, 3)) else { panic!("moves") };
    let watched = Watched { rows: &harness.rows, scans: Vec::new().into() };
    super::advance(&mut Tables::of_entry(&watched, 9), START, next).expect("moves");
    assert_eq!(watched.scans.take(), []);
}

#[test]
fn newest_dead_letters_are_stored_in_any_order_of_one_entry() {
    let mut harness = StateHarness::with_events();
    let many = |from: u64, count: u64| (from..from + count).map(|index| letter(id(index, 0))).collect();
    let entry = vec![
        advance(1, to(id(1, 0)), many(2_000, 600)),
        advance(2, to(id(1, 0)), many(1_000, 600)),
        advance(3, to(id(1, 0)), many(3_000, 600)),
        // Older than all stored ones.
        advance(4, to(id(1, 0)), many(5, 3)),
    ];
    assert_eq!(harness.apply(START, entry), [DONE, DONE, DONE, DONE]);
    let (kept, _) = harness.letters(None, usize::MAX);
    let expected: Vec<EventId> = (2_200..2_600).chain(3_000..3_600).map(|index| id(index, 0)).collect();
    assert_eq!((kept, harness.place().dead_letters), (expected, 1_803));
}

#[test]
fn uncounted_dead_letters_of_an_old_row_are_counted_once() {
    let mut harness = StateHarness::with_events();
    let most = limits::DEAD_LETTERS_PER_STREAM_MAX as u64;
    let many = |from: u64, count: u64| (from..from + count).map(|index| letter(id(index, 0))).collect();
    harness.one(START, advance(1, to(id(1, 0)), many(1, most)));
    let old = StreamCursor { kept: None, ..harness.place() };
    let row = StreamCursorRow::from(old).encode_to_vec();
    harness.rows.0.insert((STREAM_CURSOR.to_owned(), b"s".to_vec()), row);
    harness.one(START, advance(2, to(id(1, 0)), many(most + 1, 2)));
    let (kept, _) = harness.letters(None, usize::MAX);
    assert_eq!((kept.len() as u64, kept.first()), (most, Some(&id(3, 0))));
    assert_eq!(harness.place().kept, Some(DeadLetterRange { count: most, first: id(2, 1) }));
    // The value in a command is ignored.
    let proposed = StreamCursor { kept: Some(DeadLetterRange { count: 0, first: id(9, 9) }), ..to(id(1, 0)) };
    harness.one(START, advance(3, proposed, Vec::new()));
    assert_eq!(harness.place().kept, Some(DeadLetterRange { count: most, first: id(2, 1) }));
}

#[test]
fn long_subject_is_left_out_of_a_dead_letter() {
    let sub_id = |bytes: usize| {
        let empty = json!({"format": "opaque", "id": ""}).to_string().len();
        json!({"format": "opaque", "id": "x".repeat(bytes - empty)}).to_string()
    };
    let most = limits::DEAD_LETTER_SUBJECT_BYTES_MAX;
    assert_eq!(kept_subject(sub_id(most)), sub_id(most));
    assert_eq!(kept_subject(sub_id(most + 1)), "{}", "not truncated");
}

#[test]
fn invalid_dead_letter_is_corrupt() {
    let mut harness = StateHarness::with_events();
    let of_nothing = command::DeadLetter { id: None, ..letter(id(1, 0)) };
    let Command::AdvanceStream(command) = advance(1, to(id(2, 0)), vec![of_nothing]) else { panic!("moves") };
    assert!(super::advance(&mut Tables::of_entry(&harness.rows, 6), START, command).is_err());
    for (key, row) in [(vec![0; 11], vec![]), (vec![0; 12], vec![0xff])] {
        let key = [b"s\0", &key[..]].concat();
        harness.rows.0.insert((DEAD_LETTER.to_owned(), key.clone()), row);
        assert!(dead_letters(&harness.rows, "s", None, 9).is_err());
        harness.rows.0.remove(&(DEAD_LETTER.to_owned(), key));
    }
}

#[test]
fn cursor_round_trips_through_its_row() {
    let done = [id(3, 1), id(4, 0)].into();
    let kept = Some(DeadLetterRange { count: 2, first: id(1, 7) });
    let cursor =
        StreamCursor { next: id(2, 1), done, version: 3, delivered: 4, dropped: 5, dead_letters: 6, kept };
    let row = StreamCursorRow::from(cursor.clone()).encode_to_vec();
    assert_eq!(StreamCursor::from_row(&row).expect("reads"), cursor);
    assert!(StreamCursor::from_row(&[0xff]).is_err());
}
