//! What streams hold, and what is dropped.

use super::*;

/// A stream holds ten events, and two more before some are dropped; for a minute, and ten seconds more.
async fn narrow() -> Bench {
    let mut bench = Bench::still().await;
    bench.limits.holds = Holds {
        events_max: 10,
        events_slack: 2,
        age_max: Duration::from_secs(60),
        age_slack: Duration::from_secs(10),
    };
    bench
}

const TEN: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

#[tokio::test]
async fn a_stream_that_holds_too_much_is_paused_and_its_oldest_dropped_whoever_is_to_deliver_it() {
    let mut bench = narrow().await;
    let mut receiver = Receiver::start().await;
    let polled = bench.stream(None).await;
    let pushed = bench.stream(Some("http://127.0.0.1:9/")).await;
    let well = bench.stream(Some(&receiver.url)).await;
    bench.transmit();
    bench.tell(&TEN).await;
    bench.tell(&["k", "l"]).await;
    take(&mut receiver, 12).await;
    let since = bench.core.clock.now().to_rfc3339();
    bench.until_cursor(&well, |cursor| cursor.delivered == 12).await;
    for stream_id in [&polled, &pushed] {
        assert_eq!(bench.cursor(stream_id).dropped, 0, "so many it holds");
    }
    bench.tell(&["m"]).await;
    take(&mut receiver, 1).await;
    for stream_id in [&polled, &pushed] {
        let reason = bench.until_status(stream_id, StreamStatus::Paused).await;
        let expected = format!("more than 10 events wait, the oldest since {since}; the oldest are dropped");
        assert_eq!(reason, expected);
        let cursor = bench.until_cursor(stream_id, |cursor| cursor.dropped == 3).await;
        let mut left = Vec::new();
        bench
            .core
            .state
            .outbox(cursor.next, &mut |event| {
                left.push(event.event.sub_id["email"].as_str().expect("email").to_owned());
                true
            })
            .expect("rows");
        assert_eq!(left, ["d", "e", "f", "g", "h", "i", "j", "k", "l", "m"]);
    }
    assert_eq!(bench.core.state.stream(&well).map(|stream| stream.status), Some(StreamStatus::Enabled));
    // Those that are paused go on holding the newest.
    bench.tell(&["n", "o", "p"]).await;
    take(&mut receiver, 3).await;
    for stream_id in [&polled, &pushed] {
        bench.until_cursor(stream_id, |cursor| cursor.dropped == 6).await;
    }
    assert_eq!(bench.cursor(&well).dropped, 0);
    bench.end().await;
}

#[tokio::test]
async fn a_stream_that_its_receiver_paused_says_why_events_of_it_were_dropped() {
    let mut bench = narrow().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.set_status(&stream_id, StreamStatus::Paused).await;
    bench.transmit();
    bench.tell(&TEN).await;
    bench.tell(&["k", "l", "m"]).await;
    bench.until_cursor(&stream_id, |cursor| cursor.dropped == 3).await;
    let stream = bench.core.state.stream(&stream_id).expect("a stream");
    let reason = stream.reason.clone().expect("a reason");
    assert!(stream.owes_update && reason.starts_with("more than 10 events wait"), "{reason}");
    // Said once, however often some are dropped.
    bench.tell(&["n", "o", "p"]).await;
    bench.until_cursor(&stream_id, |cursor| cursor.dropped == 6).await;
    let changes = bench.core.state.stream(&stream_id).map(|stream| stream.changes);
    assert_eq!(changes, Some(stream.changes));
    bench.set_status(&stream_id, StreamStatus::Enabled).await;
    let mut told = Vec::new();
    for _ in 0..11 {
        let arrived = receiver.next().await;
        told.push(arrived.claims["events"].clone());
        arrived.answer(202, "");
    }
    let updated = json!({UPDATED: {"status": "enabled", "reason": reason}});
    assert_eq!(told.iter().filter(|events| **events == updated).count(), 1, "{told:?}");
    bench.end().await;
}

#[tokio::test]
async fn a_stream_that_is_resumed_with_all_it_holds_can_begin_to_deliver() {
    let mut bench = narrow().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.set_status(&stream_id, StreamStatus::Paused).await;
    bench.transmit();
    bench.tell(&TEN).await;
    bench.tell(&TEN).await;
    bench.until_cursor(&stream_id, |cursor| cursor.dropped == 10).await;
    bench.set_status(&stream_id, StreamStatus::Enabled).await;
    // With what became of it.
    assert_eq!(take(&mut receiver, 11).await.len(), 11);
    bench.until_cursor(&stream_id, |cursor| cursor.delivered == 11).await;
    assert_eq!(bench.core.state.stream(&stream_id).map(|stream| stream.status), Some(StreamStatus::Enabled));
    bench.end().await;
}

#[tokio::test]
async fn what_is_held_for_too_long_is_dropped_and_the_younger_stays() {
    let mut bench = narrow().await;
    let stream_id = bench.stream(None).await;
    bench.transmit();
    let since = bench.core.clock.now().to_rfc3339();
    bench.tell(&["a", "b"]).await;
    bench.core.clock.advance(Duration::from_secs(65));
    bench.tell(&["c"]).await;
    assert_eq!(bench.core.state.stream(&stream_id).map(|stream| stream.status), Some(StreamStatus::Enabled));
    // Time passes from when the entry was seen.
    let shown = r#"svc_stream_backlog{of="all"} 3"#;
    while !bench.metrics.render().expect("page").contains(shown) {
        tokio::task::yield_now().await;
    }
    // Nothing is told to the log meanwhile: the node knows how time passes.
    bench.core.clock.advance(Duration::from_secs(6));
    let reason = bench.until_status(&stream_id, StreamStatus::Paused).await;
    let expected = format!("events wait for more than 1m, the oldest since {since}; the oldest are dropped");
    assert_eq!(reason, expected);
    let cursor = bench.until_cursor(&stream_id, |cursor| cursor.dropped == 2).await;
    let mut left = 0;
    bench
        .core
        .state
        .outbox(cursor.next, &mut |_| {
            left += 1;
            true
        })
        .expect("rows");
    assert_eq!(left, 1);
    bench.end().await;
}

#[tokio::test]
async fn what_waits_is_counted_and_shown() {
    let mut bench = narrow().await;
    let stream_id = bench.stream(None).await;
    bench.stream(None).await;
    bench.transmit();
    bench.tell(&["a", "b", "c"]).await;
    let shown = |line: &str| bench.metrics.render().expect("page").lines().any(|shown| shown == line);
    // What is shown changes with the next look.
    while !shown(r#"svc_stream_backlog{of="all"} 6"#) {
        tokio::task::yield_now().await;
    }
    assert!(shown(r#"svc_stream_backlog{of="largest"} 3"#));
    let cursor = bench.cursor(&stream_id);
    let end = *bench.core.state.outbox_end().borrow();
    let read = StreamCursor { next: end, delivered: 3, ..cursor };
    let stream = bench.core.state.stream(&stream_id).expect("a stream");
    bench.core.state.as_node().advance_stream(&stream, read, Vec::new()).await.expect("advanced");
    while !shown(r#"svc_stream_backlog{of="all"} 3"#) {
        tokio::task::yield_now().await;
    }
    bench.end().await;
}
