//! Recording of deliveries, and recovery after changes of streams, endpoints and leaders.

use super::*;

#[tokio::test]
async fn deliveries_are_recorded_in_few_entries() {
    let mut harness = Harness::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    for _ in 0..10 {
        harness.append(&["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]).await;
    }
    let before = harness.cursor(&stream_id).version;
    let begun = Clock::system().boot();
    accept(&mut receiver, 100).await;
    let cursor = harness.until_cursor(&stream_id, |cursor| cursor.delivered == 100).await;
    let took = Clock::system().boot().saturating_sub(begun);
    let most = 2 + took.as_millis() / limits::PUSH_ADVANCE_INTERVAL.as_millis();
    assert!(u128::from(cursor.version - before) <= most, "{} entries in {took:?}", cursor.version - before);
    harness.end().await;
}

#[tokio::test]
async fn backlog_is_delivered_completely_in_order() {
    let mut harness = Harness::still().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    let held = limits::STREAM_WINDOW * 2 + 500;
    let names: Vec<String> = (0..50).map(|subject| format!("s{subject}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    for _ in 0..held / 50 {
        harness.append(&all).await;
    }
    harness.transmit();
    let mut last = BTreeMap::<String, u64>::new();
    for at in 0..held {
        let arrived = receiver.next().await;
        let before = last.insert(arrived.subject(), arrived.number());
        assert!(before < Some(arrived.number()), "{} of {before:?}", arrived.number());
        arrived.respond(202, "");
        if at == held / 2 {
            // Concurrent events come after the backlog.
            harness.append(&all).await;
        }
    }
    accept(&mut receiver, 50).await;
    let all = held as u64 + 50;
    let cursor = harness.until_cursor(&stream_id, |cursor| cursor.delivered == all).await;
    assert!(cursor.done.is_empty());
    harness.end().await;
}

#[tokio::test]
async fn silent_or_absent_receiver_delays_no_other() {
    let mut harness = Harness::start().await;
    let (mut silent, mut receiver) = (Receiver::start().await, Receiver::start().await);
    let silent_url = silent.url.replace("127.0.0.1", "localhost");
    harness.stream(Some(&silent_url)).await;
    harness.stream(Some("http://127.0.0.1:9/")).await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    let names: Vec<String> = (0..100).map(|subject| format!("s{subject}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    harness.append(&all).await;
    let held: Vec<Arrived> = join_all([silent.next()]).await.into_iter().collect();
    accept(&mut receiver, 100).await;
    harness.until_cursor(&stream_id, |cursor| cursor.delivered == 100).await;
    drop(held);
    harness.end().await;
}

#[tokio::test]
async fn moved_stream_keeps_its_backlog_and_deleted_stream_stops() {
    for (status, body) in [(503, ""), (400, r#"{"err":"invalid_request"}"#)] {
        moved_and_deleted(status, body).await;
    }
}

/// The old endpoint answers the push in flight so after the stream has moved.
async fn moved_and_deleted(status: u16, body: &str) {
    let mut harness = Harness::start().await;
    let (mut old, mut new) = (Receiver::start().await, Receiver::start().await);
    let stream_id = harness.stream(Some(&old.url)).await;
    harness.append(&["a", "a"]).await;
    let first = old.next().await;
    let jti = first.jti();
    let stream = harness.node.state.stream(&stream_id).expect("there");
    let config = StreamConfig { endpoint_url: Some(new.url.clone()), ..stream.config.clone() };
    harness.node.state.as_node().update_stream(config, stream.revision).await.expect("updated");
    first.respond(status, body);
    let moved = new.next().await;
    assert_eq!(moved.jti(), jti);
    moved.respond(202, "");
    let second = new.next().await;
    harness.node.state.as_node().delete_stream(&stream_id).await.expect("deleted");
    second.respond(503, "");
    harness.append(&["b"]).await;
    let other = harness.stream(Some(&old.url)).await;
    harness.append(&["c"]).await;
    assert_eq!(accept(&mut old, 1).await, ["c"]);
    harness.until_cursor(&other, |cursor| cursor.delivered == 1).await;
    assert!(new.is_idle());
    harness.end().await;
}

#[tokio::test]
async fn disabled_stream_drops_its_backlog() {
    let mut harness = Harness::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    harness.append(&["a", "a"]).await;
    let open = receiver.next().await;
    harness.set_status(&stream_id, StreamStatus::Disabled).await;
    harness.append(&["b"]).await;
    drop(open);
    harness.set_status(&stream_id, StreamStatus::Enabled).await;
    harness.append(&["c"]).await;
    assert_eq!(accept(&mut receiver, 1).await, ["c"]);
    let cursor = harness.until_cursor(&stream_id, |cursor| cursor.delivered == 1).await;
    assert_eq!(cursor.dropped, 0);
    harness.end().await;
}

#[tokio::test]
async fn failover_loses_nothing_and_repeats_the_same_jti() {
    let mut harness = Harness::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    let names: Vec<String> = (0..30).map(|subject| format!("s{}", subject % 10)).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    harness.append(&all).await;
    let mut accepted = BTreeMap::<String, u64>::new();
    let mut order = BTreeMap::<String, Vec<u64>>::new();
    for at in 0.. {
        if at == 12 {
            harness.stop_abruptly().await;
            receiver.forget();
            harness.transmit();
        }
        if accepted.len() == 30 {
            break;
        }
        let arrived = receiver.next().await;
        let number = arrived.number();
        if *accepted.entry(arrived.jti()).or_insert(number) == number {
            let of_subject = order.entry(arrived.subject()).or_default();
            if !of_subject.contains(&number) {
                of_subject.push(number);
            }
        } else {
            panic!("one jti for two events");
        }
        arrived.respond(202, "");
    }
    assert!(order.values().all(|numbers| numbers.is_sorted() && numbers.len() == 3), "{order:?}");
    harness.until_cursor(&stream_id, |cursor| cursor.delivered == 30).await;
    harness.end().await;
}

/// The next leader reads from the earliest cursor: that of a stream without matching events must not stay days behind.
#[tokio::test]
async fn stream_without_matching_events_advances() {
    let mut harness = Harness::still().await;
    let idle = harness.stream(Some("http://127.0.0.1:9/")).await;
    let stream = harness.node.state.stream(&idle).expect("there");
    let config = StreamConfig { events_delivered: Vec::new(), ..stream.config.clone() };
    harness.node.state.as_node().update_stream(config, stream.revision).await.expect("updated");
    let rows = limits::POLL_CURSOR_ADVANCE_ROWS_MIN;
    let some = vec!["a"; 100];
    for round in 0..2 {
        // The first round is appended without a running transmitter.
        for _ in 0..rows / 100 {
            harness.append(&some).await;
        }
        if round == 0 {
            harness.transmit();
        }
        let end = *harness.node.state.outbox_end().borrow();
        let cursor = harness.until_cursor(&idle, |cursor| cursor.next == end).await;
        assert_eq!((cursor.delivered, cursor.dropped), (0, 0));
    }
    harness.end().await;
}
