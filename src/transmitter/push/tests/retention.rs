//! Retention of streams.

use super::*;

/// Ten events, two beyond before some are dropped; one minute, ten seconds beyond.
async fn narrow() -> Harness {
    let mut harness = Harness::still().await;
    harness.limits.retention = Retention {
        events_max: 10,
        events_slack: 2,
        age_max: Duration::from_secs(60),
        age_slack: Duration::from_secs(10),
    };
    harness
}

const TEN: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

#[tokio::test]
async fn excess_pauses_a_stream_and_drops_its_oldest_events() {
    let mut harness = narrow().await;
    let mut receiver = Receiver::start().await;
    let polled = harness.stream(None).await;
    let pushed = harness.stream(Some("http://127.0.0.1:9/")).await;
    let well = harness.stream(Some(&receiver.url)).await;
    harness.transmit();
    harness.append(&TEN).await;
    harness.append(&["k", "l"]).await;
    accept(&mut receiver, 12).await;
    let since = harness.node.clock.now().to_rfc3339();
    harness.until_cursor(&well, |cursor| cursor.delivered == 12).await;
    for stream_id in [&polled, &pushed] {
        assert_eq!(harness.cursor(stream_id).dropped, 0, "within the retention");
    }
    harness.append(&["m"]).await;
    accept(&mut receiver, 1).await;
    for stream_id in [&polled, &pushed] {
        let reason = harness.until_status(stream_id, StreamStatus::Paused).await;
        let expected = format!("more than 10 events wait, the oldest since {since}; the oldest are dropped");
        assert_eq!(reason, expected);
        let cursor = harness.until_cursor(stream_id, |cursor| cursor.dropped == 3).await;
        let mut left = Vec::new();
        harness
            .node
            .state
            .outbox(cursor.next, &mut |event| {
                left.push(event.event.sub_id["email"].as_str().expect("email").to_owned());
                true
            })
            .expect("rows");
        assert_eq!(left, ["d", "e", "f", "g", "h", "i", "j", "k", "l", "m"]);
    }
    assert_eq!(harness.node.state.stream(&well).map(|stream| stream.status), Some(StreamStatus::Enabled));
    // Paused streams go on retaining the newest.
    harness.append(&["n", "o", "p"]).await;
    accept(&mut receiver, 3).await;
    for stream_id in [&polled, &pushed] {
        harness.until_cursor(stream_id, |cursor| cursor.dropped == 6).await;
    }
    assert_eq!(harness.cursor(&well).dropped, 0);
    harness.end().await;
}

#[tokio::test]
async fn drop_replaces_the_reason_of_a_receivers_own_pause() {
    let mut harness = narrow().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    harness.set_status(&stream_id, StreamStatus::Paused).await;
    harness.transmit();
    harness.append(&TEN).await;
    harness.append(&["k", "l", "m"]).await;
    harness.until_cursor(&stream_id, |cursor| cursor.dropped == 3).await;
    let stream = harness.node.state.stream(&stream_id).expect("a stream");
    let reason = stream.reason.clone().expect("a reason");
    assert!(stream.owes_update && reason.starts_with("more than 10 events wait"), "{reason}");
    // Stated once, however often events are dropped.
    harness.append(&["n", "o", "p"]).await;
    harness.until_cursor(&stream_id, |cursor| cursor.dropped == 6).await;
    let changes = harness.node.state.stream(&stream_id).map(|stream| stream.changes);
    assert_eq!(changes, Some(stream.changes));
    harness.set_status(&stream_id, StreamStatus::Enabled).await;
    let mut events = Vec::new();
    for _ in 0..11 {
        let arrived = receiver.next().await;
        events.push(arrived.claims["events"].clone());
        arrived.respond(202, "");
    }
    let updated = json!({UPDATED: {"status": "enabled", "reason": reason}});
    assert_eq!(events.iter().filter(|events| **events == updated).count(), 1, "{events:?}");
    harness.end().await;
}

#[tokio::test]
async fn stream_enabled_with_full_backlog_delivers() {
    let mut harness = narrow().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    harness.set_status(&stream_id, StreamStatus::Paused).await;
    harness.transmit();
    harness.append(&TEN).await;
    harness.append(&TEN).await;
    harness.until_cursor(&stream_id, |cursor| cursor.dropped == 10).await;
    harness.set_status(&stream_id, StreamStatus::Enabled).await;
    // With stream-updated.
    assert_eq!(accept(&mut receiver, 11).await.len(), 11);
    harness.until_cursor(&stream_id, |cursor| cursor.delivered == 11).await;
    assert_eq!(
        harness.node.state.stream(&stream_id).map(|stream| stream.status),
        Some(StreamStatus::Enabled)
    );
    harness.end().await;
}

#[tokio::test]
async fn old_events_are_dropped_and_newer_ones_stay() {
    let mut harness = narrow().await;
    let stream_id = harness.stream(None).await;
    harness.transmit();
    let since = harness.node.clock.now().to_rfc3339();
    harness.append(&["a", "b"]).await;
    harness.node.clock.advance(Duration::from_secs(65));
    harness.append(&["c"]).await;
    assert_eq!(
        harness.node.state.stream(&stream_id).map(|stream| stream.status),
        Some(StreamStatus::Enabled)
    );
    // Elapsed time counts from when the entry was seen.
    let metric = r#"svc_stream_backlog{of="all"} 3"#;
    while !harness.metrics.render().expect("page").contains(metric) {
        tokio::task::yield_now().await;
    }
    // No log entry in between: the node extrapolates elapsed time.
    harness.node.clock.advance(Duration::from_secs(6));
    let reason = harness.until_status(&stream_id, StreamStatus::Paused).await;
    let expected = format!("events wait for more than 1m, the oldest since {since}; the oldest are dropped");
    assert_eq!(reason, expected);
    let cursor = harness.until_cursor(&stream_id, |cursor| cursor.dropped == 2).await;
    let mut left = 0;
    harness
        .node
        .state
        .outbox(cursor.next, &mut |_| {
            left += 1;
            true
        })
        .expect("rows");
    assert_eq!(left, 1);
    harness.end().await;
}

#[tokio::test]
async fn backlog_is_counted_in_metrics() {
    let mut harness = narrow().await;
    let stream_id = harness.stream(None).await;
    harness.stream(None).await;
    harness.transmit();
    harness.append(&["a", "b", "c"]).await;
    let has_metric =
        |line: &str| harness.metrics.render().expect("page").lines().any(|metric| metric == line);
    // The metric changes with the next sweep.
    while !has_metric(r#"svc_stream_backlog{of="all"} 6"#) {
        tokio::task::yield_now().await;
    }
    assert!(has_metric(r#"svc_stream_backlog{of="largest"} 3"#));
    let cursor = harness.cursor(&stream_id);
    let end = *harness.node.state.outbox_end().borrow();
    let read = StreamCursor { next: end, delivered: 3, ..cursor };
    let stream = harness.node.state.stream(&stream_id).expect("a stream");
    harness.node.state.as_node().advance_stream(&stream, read, Vec::new()).await.expect("advanced");
    while !has_metric(r#"svc_stream_backlog{of="all"} 3"#) {
        tokio::task::yield_now().await;
    }
    harness.end().await;
}
