//! Acknowledgements without a network: the barrier and the calls are arguments.

use std::cell::{Cell, RefCell};
use std::future::ready;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::Notify;

use super::*;
use crate::federation::engine::{Engine, Known};
use crate::id::Incarnation;

fn imported(generation: u64, index: u64, endpoint: usize) -> Imported {
    let to = LogPosition { incarnation: Incarnation::from_bytes([1; 16]), index };
    Imported { generation, to, endpoint }
}

/// Without this rule of the model (`AcknowledgesAfterBarrier`), the origin fabric would end its wait while a
/// node here answers from an earlier state.
#[test]
fn acknowledgement_waits_for_the_barrier() {
    let (has, had) = watch::channel(None);
    let enforced = watch::Sender::new(None);
    let (passed, sent) = (Notify::new(), RefCell::new(Vec::new()));
    let barrier = || passed.notified().map(|()| true);
    let send = |imported: Imported| {
        sent.borrow_mut().push(imported.to.index);
        ready(true)
    };
    let mut acknowledged = Box::pin(acknowledge(had, &enforced, barrier, send));
    has.send_replace(Some(imported(1, 7, 0)));
    assert!(acknowledged.as_mut().now_or_never().is_none());
    assert!(sent.borrow().is_empty(), "the barrier has not ended");
    // It is no barrier of an import that came after it had begun.
    has.send_replace(Some(imported(1, 9, 0)));
    for expected in [vec![7], vec![7, 9]] {
        passed.notify_one();
        assert!(acknowledged.as_mut().now_or_never().is_none());
        assert_eq!(*sent.borrow(), expected);
    }
}

#[test]
fn acknowledgement_without_a_barrier_is_not_sent() {
    let (has, had) = watch::channel(None);
    let enforced = watch::Sender::new(None);
    let (is_ended, sent) = (Cell::new(false), RefCell::new(Vec::new()));
    let send = |imported: Imported| {
        sent.borrow_mut().push(imported.to.index);
        ready(true)
    };
    let mut acknowledged = Box::pin(acknowledge(had, &enforced, || ready(is_ended.get()), send));
    has.send_replace(Some(imported(1, 7, 0)));
    assert!(acknowledged.as_mut().now_or_never().is_none() && sent.borrow().is_empty());
    is_ended.set(true);
    has.send_replace(Some(imported(1, 7, 0)));
    assert!(acknowledged.as_mut().now_or_never().is_none());
    assert_eq!(*sent.borrow(), [7], "after the next response");
}

#[test]
fn position_is_acknowledged_until_it_is_received() {
    let (has, had) = watch::channel(None);
    let enforced = watch::Sender::new(None);
    let (is_there, sent) = (Cell::new(false), RefCell::new(Vec::new()));
    let send = |imported: Imported| {
        sent.borrow_mut().push((imported.generation, imported.to.index, imported.endpoint));
        ready(is_there.get())
    };
    let mut acknowledged = Box::pin(acknowledge(had, &enforced, || ready(true), send));
    let mut expected = Vec::new();
    for (response, receives, is_new) in [
        (imported(1, 7, 0), false, true),
        (imported(1, 7, 1), true, true),
        (imported(1, 7, 1), true, false),
        (imported(1, 9, 1), true, true),
        (imported(2, 9, 1), true, true),
    ] {
        is_there.set(receives);
        has.send_replace(Some(response));
        assert!(acknowledged.as_mut().now_or_never().is_none());
        let Imported { generation, to, endpoint } = response;
        expected.extend(is_new.then_some((generation, to.index, endpoint)));
        assert_eq!(*sent.borrow(), expected);
    }
    drop(has);
    assert!(acknowledged.now_or_never().is_some(), "it ends with the calls");
}

#[test]
fn acknowledgement_names_what_it_has_and_is_not_held() {
    let to = imported(1, 7, 0).to;
    let request = enforced(to);
    assert_eq!((request.since, request.enforced), (Some(to.to_string()), Some(7)));
    assert!(request.honours_lease && request.hold_ms == 0);
}

/// A new leader of the peer has not heard the call that acknowledged it, also if that call was received.
#[test]
fn every_call_repeats_what_is_enforced() {
    let (has, had) = watch::channel(None);
    let (passed, enforced) = (Notify::new(), watch::Sender::new(None));
    let barrier = || passed.notified().map(|()| true);
    let mut acknowledged = Box::pin(acknowledge(had, &enforced, barrier, |_| ready(false)));
    has.send_replace(Some(imported(1, 7, 0)));
    assert!(acknowledged.as_mut().now_or_never().is_none());
    assert_eq!(
        repeated(*enforced.borrow(), &call(1, Some(imported(1, 9, 0).to))),
        None,
        "before the barrier"
    );
    passed.notify_one();
    assert!(acknowledged.as_mut().now_or_never().is_none());
    let other = LogPosition { incarnation: Incarnation::from_bytes([2; 16]), index: 9 };
    for (call, expected) in [
        (call(1, Some(imported(1, 7, 0).to)), Some(7)),
        (call(1, Some(imported(1, 9, 0).to)), Some(7)),
        (call(1, Some(imported(1, 6, 0).to)), None),
        (call(1, Some(other)), None),
        (call(2, Some(imported(2, 9, 0).to)), None),
        (call(1, None), None),
    ] {
        assert_eq!(repeated(*enforced.borrow(), &call), expected, "{call:?}");
    }
}

/// A call from a copy and a position.
fn call(generation: u64, since: Option<LogPosition>) -> Call {
    let mut engine = Engine::new("https://eu.example".to_owned(), 1, Duration::from_secs(5), Duration::ZERO);
    let mut call = engine.call(Known { generation, ..Known::default() });
    call.expected.since = since;
    call
}
