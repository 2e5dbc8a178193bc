//! What is recorded, and what becomes of it when streams, addresses and nodes change.

use super::*;

#[tokio::test]
async fn many_deliveries_are_recorded_by_few_entries() {
    let mut bench = Bench::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    for _ in 0..10 {
        bench.tell(&["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]).await;
    }
    let before = bench.cursor(&stream_id).version;
    let begun = Clock::system().boot();
    take(&mut receiver, 100).await;
    let cursor = bench.until_cursor(&stream_id, |cursor| cursor.delivered == 100).await;
    let took = Clock::system().boot().saturating_sub(begun);
    let most = 2 + took.as_millis() / limits::PUSH_ADVANCE_INTERVAL.as_millis();
    assert!(u128::from(cursor.version - before) <= most, "{} entries in {took:?}", cursor.version - before);
    bench.end().await;
}

#[tokio::test]
async fn a_stream_that_was_behind_gets_all_it_holds_in_order() {
    let mut bench = Bench::still().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    let held = limits::STREAM_WINDOW * 2 + 500;
    let names: Vec<String> = (0..50).map(|subject| format!("s{subject}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    for _ in 0..held / 50 {
        bench.tell(&all).await;
    }
    bench.transmit();
    let mut last = BTreeMap::<String, u64>::new();
    for at in 0..held {
        let arrived = receiver.next().await;
        let before = last.insert(arrived.subject(), arrived.number());
        assert!(before < Some(arrived.number()), "{} of {before:?}", arrived.number());
        arrived.answer(202, "");
        if at == held / 2 {
            // What comes meanwhile has its place behind.
            bench.tell(&all).await;
        }
    }
    take(&mut receiver, 50).await;
    let all = held as u64 + 50;
    let cursor = bench.until_cursor(&stream_id, |cursor| cursor.delivered == all).await;
    assert!(cursor.done.is_empty());
    bench.end().await;
}

#[tokio::test]
async fn a_receiver_that_does_not_answer_or_is_not_there_delays_no_other() {
    let mut bench = Bench::start().await;
    let (mut silent, mut receiver) = (Receiver::start().await, Receiver::start().await);
    let silent_url = silent.url.replace("127.0.0.1", "localhost");
    bench.stream(Some(&silent_url)).await;
    bench.stream(Some("http://127.0.0.1:9/")).await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    let names: Vec<String> = (0..100).map(|subject| format!("s{subject}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    bench.tell(&all).await;
    let kept: Vec<Arrived> = join_all([silent.next()]).await.into_iter().collect();
    take(&mut receiver, 100).await;
    bench.until_cursor(&stream_id, |cursor| cursor.delivered == 100).await;
    drop(kept);
    bench.end().await;
}

#[tokio::test]
async fn another_address_gets_what_is_held_and_a_deleted_stream_nothing_more() {
    let mut bench = Bench::start().await;
    let (mut old, mut new) = (Receiver::start().await, Receiver::start().await);
    let stream_id = bench.stream(Some(&old.url)).await;
    bench.tell(&["a", "a"]).await;
    let first = old.next().await;
    let jti = first.jti();
    let stream = bench.core.state.stream(&stream_id).expect("there");
    let config = StreamConfig { endpoint_url: Some(new.url.clone()), ..stream.config.clone() };
    bench.core.state.as_node().update_stream(config, stream.revision).await.expect("updated");
    first.answer(503, "");
    let moved = new.next().await;
    assert_eq!(moved.jti(), jti);
    moved.answer(202, "");
    let second = new.next().await;
    bench.core.state.as_node().delete_stream(&stream_id).await.expect("deleted");
    second.answer(503, "");
    bench.tell(&["b"]).await;
    let other = bench.stream(Some(&old.url)).await;
    bench.tell(&["c"]).await;
    assert_eq!(take(&mut old, 1).await, ["c"]);
    bench.until_cursor(&other, |cursor| cursor.delivered == 1).await;
    assert!(new.is_idle());
    bench.end().await;
}

#[tokio::test]
async fn a_disabled_stream_holds_nothing_and_begins_with_what_comes() {
    let mut bench = Bench::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.tell(&["a", "a"]).await;
    let open = receiver.next().await;
    bench.set_status(&stream_id, StreamStatus::Disabled).await;
    bench.tell(&["b"]).await;
    drop(open);
    bench.set_status(&stream_id, StreamStatus::Enabled).await;
    bench.tell(&["c"]).await;
    assert_eq!(take(&mut receiver, 1).await, ["c"]);
    let cursor = bench.until_cursor(&stream_id, |cursor| cursor.delivered == 1).await;
    assert_eq!(cursor.dropped, 0);
    bench.end().await;
}

#[tokio::test]
async fn who_takes_over_in_the_middle_loses_nothing_and_repeats_the_same_jti() {
    let mut bench = Bench::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    let names: Vec<String> = (0..30).map(|subject| format!("s{}", subject % 10)).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    bench.tell(&all).await;
    let mut taken = BTreeMap::<String, u64>::new();
    let mut order = BTreeMap::<String, Vec<u64>>::new();
    for at in 0.. {
        if at == 12 {
            bench.fall_silent().await;
            receiver.forget();
            bench.transmit();
        }
        if taken.len() == 30 {
            break;
        }
        let arrived = receiver.next().await;
        let number = arrived.number();
        if *taken.entry(arrived.jti()).or_insert(number) == number {
            let of_subject = order.entry(arrived.subject()).or_default();
            if !of_subject.contains(&number) {
                of_subject.push(number);
            }
        } else {
            panic!("one jti for two events");
        }
        arrived.answer(202, "");
    }
    assert!(order.values().all(|numbers| numbers.is_sorted() && numbers.len() == 3), "{order:?}");
    bench.until_cursor(&stream_id, |cursor| cursor.delivered == 30).await;
    bench.end().await;
}

/// Whoever leads next reads from the earliest cursor: one of a stream that nothing is for must not be days old.
#[tokio::test]
async fn a_stream_that_nothing_is_for_passes_what_the_others_get() {
    let mut bench = Bench::still().await;
    let idle = bench.stream(Some("http://127.0.0.1:9/")).await;
    let stream = bench.core.state.stream(&idle).expect("there");
    let config = StreamConfig { events_delivered: Vec::new(), ..stream.config.clone() };
    bench.core.state.as_node().update_stream(config, stream.revision).await.expect("updated");
    let rows = limits::POLL_ROWS_PASSED_MIN;
    let some = vec!["a"; 100];
    for round in 0..2 {
        // The first were told while nobody led.
        for _ in 0..rows / 100 {
            bench.tell(&some).await;
        }
        if round == 0 {
            bench.transmit();
        }
        let end = *bench.core.state.outbox_end().borrow();
        let cursor = bench.until_cursor(&idle, |cursor| cursor.next == end).await;
        assert_eq!((cursor.delivered, cursor.dropped), (0, 0));
    }
    bench.end().await;
}
