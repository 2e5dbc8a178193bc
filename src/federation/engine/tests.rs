//! Calls, imports and retries of one peer.

use super::*;
use crate::clock::Timestamp;
use crate::id::Digest128;
use crate::state::LedgerState;

const PEER: &str = "https://eu.example";
const HERE: Incarnation = Incarnation::from_bytes([0x0f; 16]);
const OTHER: Incarnation = Incarnation::from_bytes([0x10; 16]);
const START: Duration = Duration::from_secs(1000);

const ENDPOINTS: usize = 3;

fn engine() -> Engine {
    Engine::new(PEER.to_owned(), ENDPOINTS, Duration::from_secs(60), START)
}

/// A copy that is up to date at log index 100.
fn known() -> Known {
    Known {
        generation: 4,
        incarnation: Some(HERE),
        position: 100,
        reached: 100,
        complete_from: 2900,
        blocks_of: 7,
        keys_etag: "keys".to_owned(),
        is_complete: true,
    }
}

/// A response to `call` that states nothing new.
fn empty(call: &Call, through: u64) -> Answer {
    Answer {
        incarnation: HERE,
        from: call.expected.since.map_or(0, |since| since.index),
        through,
        next: None,
        forgotten_to: 50,
        epoch: 3000,
        complete_from: 2800,
        is_reset: false,
        lease: None,
        at: Timestamp::from_secs(1_800_000_000),
        root: Some([7; 32]),
        count: 3,
        keys: None,
        entries: Vec::new(),
    }
}

fn entry(n: u64) -> Entry {
    let id = Digest128::from_bytes((u128::from(n) << 64).to_be_bytes());
    Entry { n, epoch: 3000, state: LedgerState::Revoked, id, by: None }
}

fn imported(import: Option<Import>) -> ImportLedger {
    import.expect("something to import").command
}

fn since(call: &Call) -> Option<String> {
    call.request.since.clone()
}

#[test]
fn first_call_requests_everything() {
    let call = engine().call(Known::default());
    assert_eq!((since(&call), call.request.floor_epoch, call.request.keys.clone()), (None, None, None));
    let call = engine().call(known());
    assert_eq!(since(&call), Some(format!("{HERE}-100")));
    assert_eq!((call.request.floor_epoch, call.request.keys.as_deref()), (Some(2900), Some("keys")));
}

/// A lease is renewed before it ends, also if the first node that is called after a failure does not answer.
#[test]
fn call_is_held_only_after_one_that_was_answered() {
    for (lease_secs, hold, answer) in [(60, 10_000, 2000), (5, 1250, 1250), (2, 500, 500)] {
        let mut engine = Engine::new(PEER.to_owned(), 1, Duration::from_secs(lease_secs), START);
        let waits = |engine: &mut Engine, hold: u64| {
            assert_eq!(engine.call(known()).request.hold_ms, hold);
            assert_eq!(engine.response_timeout(), Duration::from_millis(hold + answer));
        };
        waits(&mut engine, 0);
        engine.succeeded(Outcome::NothingNew, Duration::ZERO);
        waits(&mut engine, hold);
        // One endpoint that is silent leaves time for another before the lease ends, which is counted from the last good call.
        let spent = engine.hold + engine.response_timeout() + limits::PEER_FABRIC_RETRY_MIN;
        assert!(spent < Duration::from_secs(lease_secs).mul_f64(0.95), "{spent:?}");
        engine.failed(&Failure::OverQuota, 0);
        waits(&mut engine, 0);
    }
}

/// Attack on the log: 300 idle peers, each with a new position at every call.
#[test]
fn response_without_news_is_not_imported_for_a_minute() {
    let mut engine = engine();
    let mut now = START;
    for through in 101..159 {
        let call = engine.call(known());
        now += Duration::from_secs(1);
        assert_eq!(engine.answered(&call, &empty(&call, through), true, now), None);
        let next = engine.call(known());
        assert_eq!(since(&next), Some(format!("{HERE}-{through}")), "the position is remembered");
    }
    let call = engine.call(known());
    let later = START + limits::PEER_FABRIC_POSITION_WRITE_INTERVAL;
    let import = imported(engine.answered(&call, &empty(&call, 160), true, later));
    assert_eq!((import.entries.len(), import.from, import.through), (0, 100, 160));
    // Another copy knows nothing of that position.
    let other = Known { generation: 5, ..known() };
    assert_eq!(since(&engine.call(other)), Some(format!("{HERE}-100")));
}

#[test]
fn entries_after_an_unwritten_position_continue_the_copy() {
    let mut engine = engine();
    let call = engine.call(known());
    assert_eq!(engine.answered(&call, &empty(&call, 120), true, START), None);
    let call = engine.call(known());
    let answer = Answer { entries: vec![entry(125)], ..empty(&call, 130) };
    let import = imported(engine.answered(&call, &answer, true, START));
    assert_eq!((import.entries.len(), import.from, import.through, import.generation), (1, 100, 130, 4));
    assert!(import.is_whole && !import.is_reset);
}

#[test]
fn every_kind_of_news_is_imported() {
    let call = engine().call(known());
    let base = empty(&call, 100);
    let keys = AnswerKeys { etag: "new".to_owned(), key_set: r#"{"keys":[]}"#.to_owned() };
    let unread = Known { is_complete: false, ..known() };
    let cases = [
        (known(), Answer { keys: Some(keys), ..base.clone() }, true),
        (known(), Answer { incarnation: OTHER, from: 0, is_reset: true, ..base.clone() }, true),
        (known(), Answer { is_reset: true, from: 0, ..base.clone() }, true),
        (known(), Answer { next: Some("more".to_owned()), ..base.clone() }, true),
        (known(), base.clone(), false),
        (unread, base.clone(), true),
        (Known::default(), Answer { is_reset: true, ..base.clone() }, true),
    ];
    for (known, answer, is_equal) in cases {
        let mut engine = engine();
        let call = engine.call(known);
        let import = imported(engine.answered(&call, &answer, is_equal, START));
        assert_eq!(import.from, if answer.is_reset { 0 } else { 100 }, "{answer:?}");
        assert_eq!((import.is_reset, import.is_whole), (answer.is_reset, answer.is_whole()));
        assert_eq!(import.keys.is_some(), answer.keys.is_some());
    }
}

#[test]
fn next_page_is_requested_until_a_call_fails() {
    let mut engine = engine();
    let call = engine.call(known());
    let page =
        Answer { next: Some("p2".to_owned()), entries: vec![entry(101)], root: None, ..empty(&call, 100) };
    let import = imported(engine.answered(&call, &page, true, START));
    assert!(!import.is_whole && import.root.is_empty());
    assert_eq!(engine.call(known()).request.cursor, None, "the page is not imported yet");
    engine.imported(&page, &known());
    assert_eq!(engine.call(known()).request.cursor.as_deref(), Some("p2"));
    engine.failed(&Failure::Status(503), 0);
    assert_eq!(engine.call(known()).request.cursor, None, "from the position again");
    engine.imported(&page, &known());
    engine.succeeded(Outcome::Held(Duration::ZERO), Duration::ZERO);
    assert_eq!(engine.call(known()).request.cursor, None, "not all of the page is imported");
}

/// The late import of a former leader moves the copy, or begins to read it again: the next page does not continue that.
#[test]
fn next_page_of_another_copy_is_not_requested() {
    let mut engine = engine();
    let call = engine.call(known());
    let page = Answer { next: Some("p2".to_owned()), entries: vec![entry(101)], ..empty(&call, 120) };
    let after = Known { position: 120, ..known() };
    let others = [
        known(),
        Known { position: 130, ..after.clone() },
        Known { generation: 5, ..after.clone() },
        Known { blocks_of: 8, ..after.clone() },
        Known::default(),
    ];
    for other in others {
        engine.imported(&page, &after);
        assert_eq!(engine.call(other.clone()).request.cursor, None, "{other:?}");
        assert_eq!(engine.call(after.clone()).request.cursor, None, "it is not requested later");
        // It was changed before it was read after the import.
        engine.imported(&page, &other);
        let is_same = engine.call(other.clone()).request.cursor.is_some();
        assert!(!is_same || other.position == 120, "{other:?}");
    }
}

#[test]
fn root_is_compared_from_the_epoch_that_both_have() {
    let call = engine().call(known());
    assert_eq!(floor_epoch(&call, &empty(&call, 100)), 2900);
    let forgetful = Answer { complete_from: 2950, ..empty(&call, 100) };
    assert_eq!(floor_epoch(&call, &forgetful), 2950);
    // Epochs of another incarnation are not ours.
    let other = Answer { incarnation: OTHER, ..empty(&call, 100) };
    assert_eq!(floor_epoch(&call, &other), 2800);
}

/// Regression: while a copy was read again after a repair, a peer whose log had lost its end was called in a tight loop, and
/// accepted once its log had grown.
#[test]
fn log_that_lost_its_end_during_a_repair_is_noticed() {
    let mut engine = engine();
    let repaired = Known { position: 0, reached: 100, is_complete: false, ..known() };
    let call = engine.call(repaired);
    let next = Some("next".to_owned());
    for (answer, is_ahead) in [
        (empty(&call, 99), true),
        (empty(&call, 100), false),
        (Answer { next, ..empty(&call, 99) }, false),
        (Answer { incarnation: OTHER, ..empty(&call, 99) }, false),
    ] {
        assert_eq!(call.known.is_ahead_of(&answer), is_ahead, "{answer:?}");
    }
    let command = engine.rolled_back(&call).expect("a command");
    assert_eq!((command.from, command.through), (100, 99));
}

#[test]
fn lost_end_of_a_log_is_stated_below_the_position() {
    let engine = engine();
    let call = self::engine().call(known());
    let command = engine.rolled_back(&call).expect("a command");
    assert_eq!((command.from, command.through, command.generation), (100, 99, 4));
    assert!(!command.is_whole);
    assert_eq!(engine.rolled_back(&self::engine().call(Known::default())), None);
}

#[test]
fn failed_call_is_repeated_at_the_next_endpoint() {
    let mut engine = engine();
    let mut endpoints = Vec::new();
    for _ in 0..4 {
        endpoints.push(engine.call(known()).endpoint);
        engine.failed(&Failure::Unanswered("reset".to_owned()), 0);
    }
    assert_eq!(endpoints, [0, 1, 2, 0]);
    engine.succeeded(Outcome::Imported(Duration::ZERO), Duration::ZERO);
    assert_eq!(engine.call(known()).endpoint, 1, "an endpoint that answers is kept");
}

#[test]
fn wait_after_failures_doubles_with_jitter() {
    let mut engine = engine();
    let mut bounds = Vec::new();
    for failures in 0..8_u32 {
        let mut other = engine.clone();
        let (least, most) =
            (engine.failed(&Failure::Status(503), 0), other.failed(&Failure::Status(503), u64::MAX - 1));
        assert!(least <= most && most <= limits::PEER_FABRIC_RETRY_MAX, "{failures}: {least:?} to {most:?}");
        bounds.push(least * 2);
    }
    let doubled: Vec<_> = [200, 400, 800, 1600, 3200, 5000, 5000, 5000].map(Duration::from_millis).to_vec();
    assert_eq!(bounds, doubled);
    engine.succeeded(Outcome::NothingNew, Duration::ZERO);
    assert_eq!(
        engine.failed(&Failure::Status(503), 0),
        limits::PEER_FABRIC_RETRY_MIN / 2,
        "a success ends the series"
    );
}

/// Attack: nonsense, or more than the quota, in every response. One endpoint that answers so does not end the lease: the
/// next one is called first.
#[test]
fn response_that_has_no_effect_costs_one_call_a_minute() {
    let rule = Malformed { field: "through".to_owned(), rule: "must be less".to_owned() };
    for failure in [Failure::Malformed(rule), Failure::OverQuota, Failure::RolledBack] {
        let mut engine = engine();
        for _ in 1..ENDPOINTS {
            assert!(engine.failed(&failure, 0) < limits::PEER_FABRIC_RETRY_MAX, "{failure}");
        }
        for _ in 0..2 {
            assert_eq!(engine.failed(&failure, 0), limits::PEER_FABRIC_RETRY_LASTING, "{failure}");
        }
    }
}

/// A response that does not arrive in time over a slow connection was requested again in full, for ever.
#[test]
fn call_that_was_not_answered_requests_fewer_entries() {
    let mut engine = engine();
    let requested = |engine: &mut Engine| {
        let call = engine.call(known());
        assert_eq!(call.request.limit, Some(call.expected.limit as u64));
        call.expected.limit
    };
    engine.failed(&Failure::Status(503), 0);
    assert_eq!(requested(&mut engine), limits::SYNC_ENTRIES_MAX);
    engine.failed(&Failure::Unanswered("timeout".to_owned()), 0);
    assert_eq!(requested(&mut engine), limits::SYNC_ENTRIES_MAX / 2);
    for _ in 0..10 {
        engine.failed(&Failure::Unanswered("timeout".to_owned()), 0);
    }
    assert_eq!(requested(&mut engine), limits::SYNC_ENTRIES_MIN);
    for outcome in [Outcome::Imported(Duration::ZERO), Outcome::NothingNew] {
        let before = requested(&mut engine);
        engine.succeeded(outcome, Duration::ZERO);
        assert_eq!(requested(&mut engine), before * 2, "{outcome:?}");
    }
    for _ in 0..10 {
        engine.succeeded(Outcome::Imported(Duration::ZERO), Duration::ZERO);
    }
    assert_eq!(requested(&mut engine), limits::SYNC_ENTRIES_MAX);
}

/// Attack: responses at once, although there is nothing new.
#[test]
fn response_that_was_not_held_is_not_followed_at_once() {
    let mut engine = engine();
    let short = Duration::from_millis(3);
    assert_eq!(engine.succeeded(Outcome::NothingNew, short), limits::PEER_FABRIC_RETRY_MIN);
    assert_eq!(engine.succeeded(Outcome::Held(Duration::ZERO), short), limits::PEER_FABRIC_RETRY_MAX);
    assert_eq!(engine.succeeded(Outcome::NothingNew, limits::SYNC_HOLD_MAX), Duration::ZERO);
}

/// The wait after the import of a response.
fn pause_after(engine: &mut Engine, known: Known, change: impl Fn(&mut Answer), now: Duration) -> Duration {
    let call = engine.call(known);
    let mut answer = empty(&call, 120);
    change(&mut answer);
    let import = engine.answered(&call, &answer, true, now).expect("something to import");
    engine.succeeded(Outcome::Imported(import.pause), Duration::ZERO)
}

fn new_keys() -> AnswerKeys {
    AnswerKeys { etag: "new".to_owned(), key_set: r#"{"keys":[]}"#.to_owned() }
}

/// Attack: pages without entries, and sets of keys, as fast as we call.
#[test]
fn import_without_entries_is_not_followed_at_once() {
    let mut engine = engine();
    let with_entry = |answer: &mut Answer| answer.entries = vec![entry(110)];
    assert_eq!(pause_after(&mut engine, known(), with_entry, START), Duration::ZERO);
    let page = |answer: &mut Answer| answer.next = Some("p2".to_owned());
    assert_eq!(pause_after(&mut engine, known(), page, START), limits::PEER_FABRIC_RETRY_MIN);
    let keys = |answer: &mut Answer| {
        (answer.keys, answer.entries) = (Some(new_keys()), vec![entry(110)]);
    };
    assert_eq!(pause_after(&mut engine, known(), keys, START), limits::PEER_FABRIC_RETRY_MAX);
    // The first copy has a first set of keys.
    assert_eq!(pause_after(&mut engine, Known::default(), keys, START), Duration::ZERO);
}

/// Regression: with a lease as short as the wait after a new set of keys, each change of the keys ended it.
#[test]
fn wait_after_new_keys_is_shorter_than_the_lease() {
    for lease in [limits::PEER_FABRIC_STALE_AFTER_MIN, limits::PEER_FABRIC_LEASE] {
        let mut engine = Engine::new(PEER.to_owned(), 1, lease, START);
        let keys = |answer: &mut Answer| {
            (answer.keys, answer.entries) = (Some(new_keys()), vec![entry(110)]);
        };
        let pause = pause_after(&mut engine, known(), keys, START);
        assert!(pause > Duration::ZERO && pause <= lease / 4, "{lease:?}: {pause:?}");
    }
}

/// Attack: a fresh incarnation, or a reset, in every response, whole or not.
#[test]
fn ledger_that_always_begins_anew_is_paced() {
    let created = |answer: &mut Answer| {
        (answer.incarnation, answer.is_reset, answer.entries) = (OTHER, true, vec![entry(1)]);
        (answer.keys, answer.next) = (Some(new_keys()), Some("p2".to_owned()));
    };
    let again =
        |answer: &mut Answer| (answer.is_reset, answer.from, answer.entries) = (true, 0, vec![entry(1)]);
    let anew = Known { keys_etag: String::new(), is_complete: false, ..known() };
    let mut engine = engine();
    assert_eq!(pause_after(&mut engine, Known::default(), again, START), Duration::ZERO, "the first copy");
    assert_eq!(pause_after(&mut engine, anew.clone(), created, START), Duration::ZERO, "once");
    assert_eq!(pause_after(&mut engine, anew, created, START), limits::PEER_FABRIC_RETRY_LASTING);
    engine.failed(&Failure::Status(503), 0);
    assert_eq!(pause_after(&mut engine, known(), again, START), limits::PEER_FABRIC_RETRY_LASTING);
    let later = START + limits::PEER_FABRIC_RETRY_LASTING;
    assert_eq!(pause_after(&mut engine, known(), again, later), Duration::ZERO);
}
