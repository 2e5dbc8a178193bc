//! Single steps of the dispatcher.

use super::*;
use crate::state::StreamCursor;
use crate::transmitter::push::Retention;
use crate::transmitter::push::tests::Harness;

/// A dispatcher that has read everything.
fn dispatcher(harness: &Harness) -> Dispatcher {
    let mut dispatcher = Dispatcher::new(harness.shared(), [7; 16]);
    dispatcher.position = *harness.node.state.outbox_end().borrow();
    dispatcher.follow_streams();
    dispatcher
}

fn read_all(dispatcher: &mut Dispatcher) {
    while dispatcher.read().expect("read") {}
}

/// The stream was disabled in between: events counted before are no longer undelivered.
#[tokio::test]
async fn wrong_count_is_doubted_the_next_time_too() {
    let mut harness = Harness::still().await;
    harness.limits.retention = Retention { events_max: 10, events_slack: 2, ..harness.limits.retention };
    let stream_id = harness.stream(None).await;
    let mut dispatcher = dispatcher(&harness);
    read_all(&mut dispatcher);
    for _ in 0..2 {
        harness.append(&["a"; 10]).await;
        read_all(&mut dispatcher);
        for status in [StreamStatus::Disabled, StreamStatus::Enabled] {
            harness.set_status(&stream_id, status).await;
        }
        dispatcher.follow_streams();
        harness.append(&["b"; 5]).await;
        read_all(&mut dispatcher);
        dispatcher.sweep();
        assert!(dispatcher.enforcing.is_none(), "five events are within the retention");
        assert!(dispatcher.catch_up.contains(&stream_id), "it is recounted");
        read_all(&mut dispatcher);
        dispatcher.sweep();
        assert!(dispatcher.enforcing.is_none());
    }
    drop(dispatcher);
    harness.end().await;
}

#[tokio::test]
async fn dispatch_to_many_streams_yields_after_a_few_events() {
    let mut harness = Harness::still().await;
    let streams = usize::try_from(limits::STREAMS_PER_CALLER_MAX).expect("small");
    for _ in 0..streams {
        harness.stream(None).await;
    }
    let mut dispatcher = dispatcher(&harness);
    read_all(&mut dispatcher);
    dispatcher.rows = 0;
    harness.append(&["a"; 60]).await;
    let turn = limits::OUTBOX_MATCHES_PER_STEP.div_ceil(streams);
    assert!(dispatcher.read().expect("read"));
    assert_eq!(dispatcher.rows, turn);
    // The same for the catch-up, in which the other streams take no part.
    read_all(&mut dispatcher);
    for (stream_id, subscription) in dispatcher.subscriptions.iter_mut() {
        dispatcher.catch_up.start(stream_id, subscription.backlog.begin());
    }
    dispatcher.rows = 0;
    assert!(dispatcher.read().expect("read"));
    assert_eq!(dispatcher.rows, turn);
    drop(dispatcher);
    harness.end().await;
}

#[tokio::test]
async fn excess_of_all_streams_is_dropped_in_one_pass() {
    let mut harness = Harness::still().await;
    harness.limits.retention = Retention { events_max: 10, events_slack: 2, ..harness.limits.retention };
    let mut stream_ids = Vec::new();
    for _ in 0..limits::STREAMS_ENFORCED_AT_ONCE + 2 {
        stream_ids.push(harness.stream(None).await);
    }
    let mut dispatcher = dispatcher(&harness);
    read_all(&mut dispatcher);
    harness.append(&["a"; 20]).await;
    read_all(&mut dispatcher);
    dispatcher.sweep();
    // The consumer of one of them takes some of its events before the pass: it is neither paused nor loses any.
    let (state, taken) = (&harness.node.state, &stream_ids[0]);
    let stream = state.stream(taken).expect("the stream");
    let cursor = state.stream_cursor(taken).expect("its cursor").as_ref().clone();
    let next = EventId { number: 8, ..*state.outbox_end().borrow() };
    let cursor = StreamCursor { next, delivered: 8, ..cursor };
    state.as_node().advance_stream(&stream, cursor, Vec::new()).await.expect("advanced");
    let enforced = finished(&mut dispatcher.enforcing).await;
    assert_eq!(enforced.len(), stream_ids.len() - 1);
    dispatcher.enforced(enforced);
    for stream_id in &stream_ids {
        let dropped = state.stream_cursor(stream_id).expect("its cursor").dropped;
        assert_eq!(dropped, if stream_id == taken { 0 } else { 10 }, "{stream_id}");
        let status = state.stream(stream_id).map(|stream| stream.status);
        let expected = if stream_id == taken { StreamStatus::Enabled } else { StreamStatus::Paused };
        assert_eq!(status, Some(expected), "{stream_id}");
    }
    dispatcher.sweep();
    assert!(dispatcher.enforcing.is_none(), "all are within their retention");
    drop(dispatcher);
    harness.end().await;
}
