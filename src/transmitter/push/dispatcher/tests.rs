//! What an engine does, one turn after the other.

use super::*;
use crate::transmitter::push::Holds;
use crate::transmitter::push::tests::Bench;

/// An engine that has seen everything until now.
fn engine(bench: &Bench) -> Engine {
    let mut engine = Engine::new(bench.shared(), [7; 16]);
    engine.position = *bench.core.state.outbox_end().borrow();
    engine.follow_streams();
    engine
}

fn read_all(engine: &mut Engine) {
    while engine.read().expect("read") {}
}

/// A stream was disabled for a moment: what was counted before does not wait any more.
#[tokio::test]
async fn a_count_that_was_found_wrong_once_is_doubted_the_next_time_too() {
    let mut bench = Bench::still().await;
    bench.limits.holds = Holds { events_max: 10, events_slack: 2, ..bench.limits.holds };
    let stream_id = bench.stream(None).await;
    let mut engine = engine(&bench);
    read_all(&mut engine);
    for _ in 0..2 {
        bench.tell(&["a"; 10]).await;
        read_all(&mut engine);
        for status in [StreamStatus::Disabled, StreamStatus::Enabled] {
            bench.set_status(&stream_id, status).await;
        }
        engine.follow_streams();
        bench.tell(&["b"; 5]).await;
        read_all(&mut engine);
        engine.look();
        assert!(engine.holding.is_empty(), "five wait, and nothing is dropped");
        assert!(engine.behind.holds(&stream_id), "it is counted again");
        read_all(&mut engine);
        engine.look();
        assert!(engine.holding.is_empty());
    }
    drop(engine);
    bench.end().await;
}

#[tokio::test]
async fn many_streams_are_told_of_a_few_events_before_others_have_their_turn() {
    let mut bench = Bench::still().await;
    let streams = usize::try_from(limits::STREAMS_PER_CALLER_MAX).expect("small");
    for _ in 0..streams {
        bench.stream(None).await;
    }
    let mut engine = engine(&bench);
    read_all(&mut engine);
    engine.rows = 0;
    bench.tell(&["a"; 60]).await;
    let turn = limits::OUTBOX_TOLD_PER_TURN.div_ceil(streams);
    assert!(engine.read().expect("read"));
    assert_eq!(engine.rows, turn);
    // The same of those that are counted again, for which the others have no share.
    read_all(&mut engine);
    for (stream_id, tracked) in engine.streams.iter_mut() {
        engine.behind.put(stream_id, tracked.backlog.begin());
    }
    engine.rows = 0;
    assert!(engine.read().expect("read"));
    assert_eq!(engine.rows, turn);
    drop(engine);
    bench.end().await;
}
