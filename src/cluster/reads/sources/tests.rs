//! Tests of the leases on outside sources, over instants and over a manual clock.

use std::pin::pin;
use std::sync::Arc;

use futures::FutureExt as _;
use tokio::sync::watch;

use super::*;
use crate::clock::{Clock, Timestamp};
use crate::cluster::reads::freshness::{Freshness, FreshnessMode};
use crate::cluster::reads::read_index::ConfirmedIndex;
use crate::state::testing::TestNode;

const MILLISECOND: Duration = Duration::from_millis(1);
const LENGTH: Duration = Duration::from_secs(60);
const MARGIN: Duration = Duration::from_secs(3);
const HOUR: Duration = Duration::from_secs(3600);
const SOURCE: Source = Source { id: Digest128::from_bytes([7; 16]), generation: 1 };
const NEXT_COPY: Source = Source { generation: 2, ..SOURCE };

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn other(number: usize) -> Source {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&number.to_be_bytes());
    Source { id: Digest128::from_bytes(id), generation: 1 }
}

/// A call in term 5.
fn call(at: Duration) -> SourceCall {
    SourceCall { term: 5, at }
}

fn named(source: Source, remaining: Duration, length: Duration) -> SourceLease {
    SourceLease { source, remaining, length }
}

/// Whether the lease is held at `now` by a node that allows as long as the leader.
fn is_held(sources: &Sources, source: Source, now: Duration) -> bool {
    sources.prove(source, LENGTH, (now, Duration::ZERO)).is_ok()
}

/// As on a node that was not suspended.
fn hold(sources: &Sources, sent: Duration, named: Vec<SourceLease>) {
    sources.hold_since(sent, Duration::ZERO, named);
}

#[test]
fn record_counts_from_the_call() {
    let sources = Sources::default();
    assert!(sources.record(call(HOUR), SOURCE, LENGTH));
    let at = |after| sources.recorded(5, HOUR + after, Duration::ZERO);
    assert_eq!(at(secs(20)), [named(SOURCE, secs(40), LENGTH)]);
    // A part of a millisecond is none.
    let almost_over = LENGTH.saturating_sub(Duration::from_micros(1_500));
    assert_eq!(at(almost_over), [named(SOURCE, MILLISECOND, LENGTH)]);
    assert_eq!(at(LENGTH.saturating_sub(Duration::from_micros(999))), []);
    assert_eq!(at(LENGTH + HOUR), []);
}

#[test]
fn record_of_an_earlier_call_has_no_effect() {
    let sources = Sources::default();
    assert!(sources.record(call(HOUR), SOURCE, LENGTH));
    for (source, earlier) in [(SOURCE, secs(10)), (NEXT_COPY, secs(10))] {
        assert!(!sources.record(call(HOUR.saturating_sub(earlier)), source, LENGTH));
    }
    assert_eq!(sources.recorded(5, HOUR, Duration::ZERO), [named(SOURCE, LENGTH, LENGTH)]);
    assert!(sources.record(call(HOUR + secs(1)), NEXT_COPY, LENGTH), "a later call");
    assert_eq!(sources.recorded(5, HOUR + secs(1), Duration::ZERO), [named(NEXT_COPY, LENGTH, LENGTH)]);
}

#[test]
fn records_end_with_the_term() {
    let sources = Sources::default();
    assert!(sources.record(call(HOUR), SOURCE, LENGTH));
    assert_eq!(sources.heard(SOURCE, Some(6), HOUR), None);
    assert_eq!(sources.recorded(6, HOUR, Duration::ZERO), []);
    assert_eq!(sources.recorded(5, HOUR, Duration::ZERO), [], "also when an old term is named again");
}

#[test]
fn record_from_before_a_suspension_is_void() {
    let sources = Sources::default();
    assert!(sources.record(call(HOUR), SOURCE, LENGTH));
    assert_eq!(sources.recorded(5, HOUR + secs(1), HOUR), []);
    assert!(sources.record(call(HOUR + MILLISECOND), SOURCE, LENGTH));
    assert_eq!(sources.recorded(5, HOUR + MILLISECOND, HOUR).len(), 1);
}

#[test]
fn longest_lease_is_limited() {
    let sources = Sources::default();
    assert!(sources.record(call(HOUR), SOURCE, Duration::MAX));
    let longest = limits::SOURCE_LEASE_MAX;
    assert_eq!(sources.recorded(5, HOUR, Duration::ZERO), [named(SOURCE, longest, longest)]);
}

#[test]
fn lease_counts_from_the_request_minus_a_margin() {
    let sources = Sources::default();
    // The leader called 20 s before it read its record; the margin is 3 s.
    hold(&sources, HOUR, vec![named(SOURCE, secs(40), LENGTH)]);
    let end = HOUR + secs(37);
    assert!(is_held(&sources, SOURCE, end.saturating_sub(MILLISECOND)));
    assert!(!is_held(&sources, SOURCE, end), "counted from later, or without the margin");
    let late = sources.prove(SOURCE, LENGTH, (HOUR + secs(53), Duration::ZERO));
    let late = late.expect_err("over");
    assert_eq!(late, NoSourceLease { heard_ago: Some(secs(73)) });
    assert_eq!(late.to_string(), "last heard 73 s ago");
    assert_eq!(sources.heard(SOURCE, None, HOUR), Some(secs(20)), "as a follower knows it");
}

#[test]
fn shorter_length_of_leader_and_node_counts() {
    for (leaders, own, expected) in [
        (secs(60), secs(60), secs(57)),
        (secs(60), secs(20), secs(19)),
        (secs(20), secs(60), secs(19)),
        (secs(20), Duration::ZERO, Duration::ZERO),
        (secs(60), HOUR, secs(57)),
    ] {
        let sources = Sources::default();
        hold(&sources, HOUR, vec![named(SOURCE, leaders, leaders)]);
        let at = |after| sources.prove(SOURCE, own, (HOUR + after, Duration::ZERO)).is_ok();
        assert!(!at(expected), "{leaders:?} {own:?}");
        assert_eq!(at(expected.saturating_sub(MILLISECOND)), !expected.is_zero(), "{leaders:?} {own:?}");
    }
    // The node's own length counts from the leader's call too: 30 s of it have passed.
    let sources = Sources::default();
    hold(&sources, HOUR, vec![named(SOURCE, secs(30), LENGTH)]);
    assert!(sources.prove(SOURCE, secs(20), (HOUR, Duration::ZERO)).is_err());
}

#[test]
fn node_booted_just_now_computes_no_negative_times() {
    let sources = Sources::default();
    hold(&sources, secs(1), vec![named(SOURCE, secs(5), LENGTH)]);
    assert!(is_held(&sources, SOURCE, secs(2)));
    assert!(!is_held(&sources, SOURCE, secs(3)));
    assert!(sources.prove(SOURCE, secs(2), (secs(1), Duration::ZERO)).is_err());
}

#[test]
fn lease_is_of_one_copy() {
    let sources = Sources::default();
    hold(&sources, HOUR, vec![named(SOURCE, LENGTH, LENGTH)]);
    for stranger in [NEXT_COPY, Source { generation: 0, ..SOURCE }, other(1)] {
        let refused = sources.prove(stranger, LENGTH, (HOUR, Duration::ZERO)).expect_err("another");
        assert_eq!((refused.heard_ago, refused.to_string().as_str()), (None, "not heard yet"));
    }
    // The leader's present copy replaces the earlier one, although its last call is older.
    hold(&sources, HOUR, vec![named(NEXT_COPY, secs(30), LENGTH)]);
    assert!(is_held(&sources, NEXT_COPY, HOUR) && !is_held(&sources, SOURCE, HOUR));
}

#[test]
fn earlier_call_never_shortens_a_lease() {
    let sources = Sources::default();
    hold(&sources, HOUR, vec![named(SOURCE, secs(50), LENGTH)]);
    hold(&sources, HOUR + secs(1), vec![named(SOURCE, secs(10), LENGTH)]);
    assert!(is_held(&sources, SOURCE, HOUR + secs(40)));
    // A new leader without records names none: the lease goes on until its end.
    hold(&sources, HOUR + secs(2), Vec::new());
    assert!(is_held(&sources, SOURCE, HOUR + secs(40)));
    assert!(!is_held(&sources, SOURCE, HOUR + secs(50)));
    // A later call counts by the length that its leader allows.
    hold(&sources, HOUR + secs(3), vec![named(SOURCE, secs(2), secs(2))]);
    assert!(!is_held(&sources, SOURCE, HOUR + secs(5)));
}

#[test]
fn lease_requested_before_a_suspension_is_void() {
    let sources = Sources::default();
    hold(&sources, HOUR, vec![named(SOURCE, LENGTH, LENGTH)]);
    let at = |void_before| sources.prove(SOURCE, LENGTH, (HOUR + secs(1), void_before));
    assert!(at(HOUR.saturating_sub(MILLISECOND)).is_ok());
    assert!(at(HOUR).is_err());
}

/// Regression: a void lease of a later call blocked the lease of every leader whose call was earlier.
#[test]
fn void_lease_is_replaced_by_that_of_an_earlier_call() {
    let sources = Sources::default();
    sources.hold_since(HOUR, Duration::ZERO, vec![named(SOURCE, LENGTH, LENGTH)]);
    sources.hold_since(HOUR + secs(1), HOUR, vec![named(SOURCE, secs(40), LENGTH)]);
    assert!(sources.prove(SOURCE, LENGTH, (HOUR + secs(1), HOUR)).is_ok());
}

#[test]
fn sources_are_limited() {
    let (sources, most) = (Sources::default(), limits::SOURCES_MAX);
    for number in 0..=most {
        assert_eq!(sources.record(call(HOUR), other(number), LENGTH), number < most);
        hold(&sources, HOUR, vec![named(other(number), LENGTH, LENGTH)]);
    }
    assert_eq!(sources.recorded(5, HOUR, Duration::ZERO).len(), most);
    assert!(is_held(&sources, other(0), HOUR) && !is_held(&sources, other(most), HOUR));
    // Those that are not called any more make room.
    let later = HOUR + limits::SOURCE_LEASE_MAX + secs(1);
    hold(&sources, later, Vec::new());
    hold(&sources, later, vec![named(other(most), LENGTH, LENGTH)]);
    assert!(is_held(&sources, other(most), later));
}

#[test]
fn named_leases_survive_the_wire() {
    let leases = [named(SOURCE, secs(40), LENGTH), named(other(1), MILLISECOND, limits::SOURCE_LEASE_MAX)];
    assert_eq!(leases_from_proto(leases_to_proto(&leases)), leases);
}

#[test]
fn inconsistent_lease_of_a_message_is_dropped() {
    let good = leases_to_proto(&[named(SOURCE, LENGTH, LENGTH)]).remove(0);
    let longest = millis(limits::SOURCE_LEASE_MAX);
    for (name, bad) in [
        ("short id", proto::SourceLease { source: Bytes::from_static(&[7; 15]), ..good.clone() }),
        ("long id", proto::SourceLease { source: Bytes::from_static(&[7; 17]), ..good.clone() }),
        ("remaining over length", proto::SourceLease { remaining_millis: 60_001, ..good.clone() }),
        ("too long", proto::SourceLease { length_millis: longest + 1, ..good.clone() }),
        ("huge", proto::SourceLease { remaining_millis: u64::MAX, length_millis: u64::MAX, ..good.clone() }),
    ] {
        assert_eq!(leases_from_proto(vec![bad, good.clone()]), [named(SOURCE, LENGTH, LENGTH)], "{name}");
    }
    assert_eq!(leases_from_proto(vec![good; limits::SOURCES_MAX + 1]), []);
}

/// A leader that was deposed and leads again records no earlier call.
#[tokio::test]
async fn call_of_another_term_is_not_recorded() {
    let node = TestNode::start(Timestamp::from_secs(1_800_000_000)).await;
    let handle = node.state.cluster();
    let call = handle.begin_source_call().expect("it leads");
    for term in [call.term - 1, call.term + 1] {
        assert!(!handle.record_source(SourceCall { term, ..call }, SOURCE, LENGTH));
    }
    assert!(handle.record_source(call, SOURCE, LENGTH));
    node.end().await;
}

fn freshness() -> (Freshness, Clock) {
    let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
    (Freshness::new(clock.clone(), FreshnessMode::Lease, Arc::default()), clock)
}

/// As [`Handle::source_lease`] does.
fn is_given(freshness: &Freshness, clock: &Clock) -> bool {
    let void_before = freshness.void_before();
    freshness.sources.prove(SOURCE, LENGTH, (clock.boot(), void_before)).is_ok()
}

/// The leader's answer: entry 7, and a whole lease.
fn answer() -> ConfirmedIndex {
    ConfirmedIndex { index: 7, sources: vec![named(SOURCE, LENGTH, LENGTH)] }
}

#[tokio::test]
async fn lease_on_a_source_begins_when_the_index_is_applied() {
    let (freshness, clock) = freshness();
    let (sender, applied) = watch::channel(6);
    let mut renewing = pin!(freshness.renew_while_open(async |_| Some(answer()), applied));
    assert!(renewing.as_mut().now_or_never().is_none());
    assert!(!is_given(&freshness, &clock), "an entry is missing");
    sender.send_replace(7);
    assert!(renewing.as_mut().now_or_never().is_none());
    assert!(is_given(&freshness, &clock));
    // Counted from the request, not from when the index was applied.
    clock.advance(LENGTH.saturating_sub(MARGIN));
    assert!(!is_given(&freshness, &clock));
}

#[tokio::test]
async fn lease_on_a_source_counts_from_the_request() {
    let (freshness, clock) = freshness();
    let (_sender, applied) = watch::channel(7);
    let answers_late = |_| async {
        clock.advance(secs(20));
        Some(answer())
    };
    let mut renewing = pin!(freshness.renew_while_open(answers_late, applied));
    // A request for the index alone, then one for the leases.
    assert!(renewing.as_mut().now_or_never().is_none());
    clock.advance(secs(36));
    assert!(is_given(&freshness, &clock));
    clock.advance(secs(1));
    assert!(!is_given(&freshness, &clock));
}

#[tokio::test]
async fn suspended_node_holds_no_lease_on_a_source() {
    let (freshness, clock) = freshness();
    let (_sender, applied) = watch::channel(7);
    let mut renewing = pin!(freshness.renew_while_open(async |_| Some(answer()), applied));
    assert!(renewing.as_mut().now_or_never().is_none());
    assert!(is_given(&freshness, &clock));
    let step = i64::try_from(limits::FRESHNESS_CLOCK_STEP_MAX.as_millis()).expect("small");
    clock.shift(step + 1);
    assert!(!is_given(&freshness, &clock));
    assert!(!is_given(&freshness, &clock), "it stays void");
}
