//! Tests of the waits for outside readers, over instants. Each rule of the model has one that fails without it.

use super::*;

const READER: Digest128 = Digest128::from_bytes([7; 16]);
const SECOND: Duration = Duration::from_secs(1);
const SHORT: Duration = Duration::from_millis(5_250);
const LONG: Duration = Duration::from_secs(315);
/// When this node is observed to lead.
const LED: Duration = Duration::from_secs(1_000);
const TERM: u64 = 5;

fn short_call() -> ReaderCall {
    ReaderCall { reader: READER, lease: Some(limits::PEER_FABRIC_LEASE), enforced: 0 }
}

fn long_call() -> ReaderCall {
    ReaderCall { lease: None, ..short_call() }
}

/// The wait of an entry that this node has applied at `begun`.
fn wait(begun: Duration) -> ReaderWait {
    ReaderWait { index: 7, begun, led_since: LED }
}

fn check(readers: &Readers, wait: ReaderWait, now: Duration) -> Result<ReaderState, Duration> {
    wait.check(readers.recorded(TERM, READER), now)
}

/// `WaitsForThePeer`
#[test]
fn wait_ends_with_the_acknowledgement_or_the_lease() {
    let (readers, begun) = (Readers::default(), LED + LONG);
    assert!(readers.record(TERM, &short_call(), begun));
    assert_eq!(check(&readers, wait(begun), begun), Err(SHORT));
    assert_eq!(check(&readers, wait(begun), begun + SHORT), Ok(ReaderState::Lapsed));
    readers.record_enforced(TERM, &ReaderCall { enforced: 6, ..short_call() }, 9);
    assert_eq!(check(&readers, wait(begun), begun), Err(SHORT), "of an earlier entry");
    readers.record_enforced(TERM, &ReaderCall { enforced: 7, ..short_call() }, 9);
    assert_eq!(check(&readers, wait(begun), begun), Ok(ReaderState::Enforced));
    readers.record_enforced(TERM, &ReaderCall { enforced: 6, ..short_call() }, 9);
    assert_eq!(check(&readers, wait(begun), begun), Ok(ReaderState::Enforced), "a late call");
}

/// `WaitsFromApplied`: a call that arrives later is answered with the entry, and an earlier call does not
/// count for longer.
#[test]
fn wait_counts_from_the_entry_or_the_last_call() {
    let (readers, called) = (Readers::default(), LED + LONG);
    assert!(readers.record(TERM, &short_call(), called));
    let later = called + SECOND;
    assert_eq!(check(&readers, wait(later), later), Err(SHORT.saturating_sub(SECOND)), "from the call");
    assert!(readers.record(TERM, &short_call(), later + SECOND));
    assert_eq!(
        check(&readers, wait(later), later + SECOND),
        Err(SHORT.saturating_sub(SECOND)),
        "from the entry"
    );
    assert_eq!(check(&readers, wait(later), later + SHORT), Ok(ReaderState::Lapsed), "it calls for ever");
    let gone = later + SECOND + SHORT;
    assert_eq!(
        check(&readers, wait(gone), gone),
        Ok(ReaderState::Lapsed),
        "the next entry waits for nothing"
    );
}

/// `LongLeasesRunOut`
#[test]
fn long_leases_run_out_before_the_short_one_counts() {
    let (readers, called) = (Readers::default(), LED + LONG);
    let not_short =
        ReaderCall { lease: Some(limits::PEER_FABRIC_LEASE + Duration::from_millis(1)), ..long_call() };
    for long in [long_call(), not_short] {
        assert!(readers.record(TERM, &long, called));
        assert_eq!(check(&readers, wait(called), called + SHORT), Err(LONG.saturating_sub(SHORT)));
        assert_eq!(check(&readers, wait(called), called + LONG), Ok(ReaderState::Lapsed));
    }
    readers.record_enforced(TERM, &ReaderCall { enforced: 7, ..short_call() }, 7);
    assert_eq!(
        check(&readers, wait(called), called),
        Ok(ReaderState::Enforced),
        "its statement counts at once"
    );
}

/// `CountsFromTheLastLongCall`: short calls before and after it change nothing.
#[test]
fn long_leases_count_from_the_last_long_call() {
    let (readers, called) = (Readers::default(), LED + LONG);
    for (after, call) in
        [short_call(), long_call(), short_call(), long_call(), short_call()].iter().enumerate()
    {
        assert!(readers.record(TERM, call, called + Duration::from_secs(after as u64)));
    }
    assert_eq!(check(&readers, wait(called), called + LONG), Err(3 * SECOND));
    assert_eq!(check(&readers, wait(called), called + 3 * SECOND + LONG), Ok(ReaderState::Lapsed));
}

/// `NewLeaderWaitsForLongLeases`: it does not know the calls under its predecessor.
#[test]
fn new_leader_waits_for_the_longest_lease() {
    let readers = Readers::default();
    assert_eq!(check(&readers, wait(LED), LED + SHORT), Err(LONG.saturating_sub(SHORT)));
    assert_eq!(check(&readers, wait(LED), LED + LONG), Ok(ReaderState::Lapsed), "a reader that never called");
    assert!(readers.record(TERM, &short_call(), LED + SECOND));
    assert_eq!(check(&readers, wait(LED), LED + SHORT + SECOND), Err(LONG.saturating_sub(SHORT + SECOND)));
}

#[test]
fn notes_end_with_the_term() {
    let (readers, now) = (Readers::default(), LED + LONG);
    assert!(readers.record(TERM, &long_call(), now));
    readers.record_enforced(TERM, &ReaderCall { enforced: 7, ..short_call() }, 7);
    assert!(readers.record(TERM + 1, &short_call(), now + SECOND));
    let noted = readers.recorded(TERM + 1, READER).expect("noted");
    assert_eq!((noted.called, noted.called_long, noted.enforced), (now + SECOND, None, 0));
    // A call whose term was read before the election is not answered, and forgets nothing.
    assert!(!readers.record(TERM, &short_call(), now + SECOND));
    assert!(readers.recorded(TERM + 1, READER).is_some() && readers.recorded(TERM, READER).is_none());
}

/// Of a log that lost its end, an acknowledgement of the lost part would count for the entries that replace it.
#[test]
fn acknowledgement_beyond_the_log_is_not_noted() {
    let (readers, now) = (Readers::default(), LED + LONG);
    let call = ReaderCall { enforced: 10, ..short_call() };
    readers.record_enforced(TERM, &call, 10);
    assert!(readers.recorded(TERM, READER).is_none(), "the call itself is not noted");
    assert!(readers.record(TERM, &call, now));
    readers.record_enforced(TERM, &call, 9);
    assert_eq!(readers.recorded(TERM, READER).expect("noted").enforced, 0);
    readers.record_enforced(TERM, &call, 10);
    assert_eq!(readers.recorded(TERM, READER).expect("noted").enforced, 10);
}

/// A call that cannot be noted is refused: its response would give a lease for which no entry waits.
#[test]
fn readers_beyond_the_limit_are_refused() {
    let readers = Readers::default();
    let other = |number: usize| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        ReaderCall { reader: Digest128::from_bytes(id), ..short_call() }
    };
    for number in 0..limits::READERS_MAX {
        assert!(readers.record(TERM, &other(number), LED));
    }
    assert!(!readers.record(TERM, &short_call(), LED + LONG.saturating_sub(SECOND)));
    assert!(readers.record(TERM, &other(3), LED + SECOND), "one that is known");
    assert!(readers.record(TERM, &short_call(), LED + LONG), "no lease of the others is left");
    assert!(
        readers.recorded(TERM, other(3).reader).is_some()
            && readers.recorded(TERM, other(4).reader).is_none()
    );
}

#[test]
fn call_survives_the_way_to_the_leader() {
    for call in [short_call(), long_call(), ReaderCall { enforced: 1 << 40, ..short_call() }] {
        assert_eq!(call_from_proto(&call_to_proto(&call)), Some(call));
    }
    let without_id =
        proto::ReaderCall { reader: Bytes::from_static(&[7; 15]), ..call_to_proto(&short_call()) };
    assert_eq!(call_from_proto(&without_id), None);
}
