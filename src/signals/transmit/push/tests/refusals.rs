//! Receivers that do not take an event, for the time being or ever.

use super::*;
use crate::token::signing::SigningAlgorithm;

const INVALID_KEY: &str = r#"{"err": "invalid_key", "description": "who?"}"#;

#[tokio::test]
async fn what_was_signed_by_a_key_that_is_tainted_meanwhile_comes_again_by_the_next() {
    let mut bench = Bench::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    // The successor is old enough then.
    bench.core.clock.advance(limits::KEY_PUBLISH_AHEAD);
    bench.tell(&["a"]).await;
    let first = receiver.next().await;
    let (jti, kid) = (first.jti(), first.kid.clone());
    let signs = bench.keyring.signing_kid(SigningAlgorithm::Rs256, bench.core.clock.now());
    assert_eq!(signs.as_ref(), Some(&kid));
    bench.keyring.taint(&kid, ISSUER).await.expect("tainted");
    first.answer(400, INVALID_KEY);
    let again = receiver.next().await;
    assert_eq!(again.jti(), jti);
    assert_ne!(again.kid, kid);
    again.answer(202, "");
    bench.until_cursor(&stream_id, |cursor| cursor.delivered == 1 && cursor.dead_letters == 0).await;
    bench.shows(r#"svc_push_total{result="key_replaced"} 1"#);
    bench.end().await;
}

#[tokio::test]
async fn a_key_that_is_refused_again_and_again_makes_a_dead_letter() {
    let mut bench = Bench::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.tell(&["a"]).await;
    for _ in 0..limits::PUSH_KEY_REFUSALS_MAX {
        assert!(bench.dead_letters(&stream_id).is_empty());
        receiver.next().await.answer(400, INVALID_KEY);
    }
    bench.until_cursor(&stream_id, |cursor| cursor.dead_letters == 1).await;
    let letters = bench.dead_letters(&stream_id);
    assert_eq!((letters[0].err.as_str(), letters[0].description.as_str()), ("invalid_key", "who?"));
    bench.end().await;
}

/// Attack: an event that makes its receiver fail stands before all others until the window is full, and nothing
/// more is delivered.
#[tokio::test]
async fn an_event_that_is_never_taken_while_others_are_becomes_a_dead_letter() {
    let mut bench = Bench::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.tell(&["poison", "poison"]).await;
    let names: Vec<String> = (0..100).map(|subject| format!("s{subject}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let rounds = limits::STREAM_WINDOW / 100 + 1;
    for _ in 0..rounds {
        bench.tell(&all).await;
    }
    let delivered = rounds as u64 * 100 + 1;
    let mut poison = None;
    let over =
        bench.until_cursor(&stream_id, |cursor| (cursor.delivered, cursor.dead_letters) == (delivered, 1));
    let receive = async {
        loop {
            let arrived = receiver.next().await;
            let is_poison = arrived.subject() == "poison"
                && *poison.get_or_insert_with(|| arrived.number()) == arrived.number();
            arrived.answer(if is_poison { 500 } else { 202 }, "");
        }
    };
    tokio::select! {
        _ = over => {}
        () = receive => {}
    }
    let letters = bench.dead_letters(&stream_id);
    let letter = &letters[0];
    assert_eq!(
        (letter.err.as_str(), letter.description.as_str()),
        ("undeliverable", "the receiver answered 500")
    );
    assert_eq!(bench.core.state.stream(&stream_id).map(|stream| stream.status), Some(StreamStatus::Enabled));
    bench.end().await;
}
