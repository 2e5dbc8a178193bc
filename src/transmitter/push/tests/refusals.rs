//! Receivers that do not take an event, for the time being or ever.

use super::*;
use crate::state::CallerFacts;
use crate::token::signing_key::SigningAlgorithm;

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
    bench.keyring.taint(&kid, ISSUER, &CallerFacts::default()).await.expect("tainted");
    first.answer(400, INVALID_KEY);
    let again = receiver.next().await;
    assert_eq!(again.jti(), jti);
    assert_ne!(again.kid, kid);
    again.answer(202, "");
    bench.until_cursor(&stream_id, |cursor| cursor.delivered == 1 && cursor.dead_letters == 0).await;
    bench.shows(r#"svc_push_total{result="key_replaced"} 1"#);
    bench.end().await;
}

const VERIFICATION: &str = "https://schemas.openid.net/secevent/ssf/event-type/verification";

fn is_enabled(bench: &Bench, stream_id: &str) -> bool {
    bench.core.state.stream(stream_id).is_some_and(|stream| stream.status == StreamStatus::Enabled)
}

/// Refuses the next event as often as it takes for a verification event to come, and returns that.
async fn refuse(receiver: &mut Receiver, status: u16, body: &str) -> Arrived {
    let mut jti = None;
    for _ in 0..limits::PUSH_REFUSALS_MAX {
        let arrived = receiver.next().await;
        assert_eq!(*jti.get_or_insert_with(|| arrived.jti()), arrived.jti());
        arrived.answer(status, body);
    }
    let arrived = receiver.next().await;
    assert_eq!(arrived.claims["events"], json!({VERIFICATION: {}}));
    arrived
}

/// Attack: a caller of the transmitter that can cause events pauses a stream with the first of them that its receiver
/// denies.
#[tokio::test]
async fn event_denied_alone_is_a_dead_letter_and_the_stream_goes_on() {
    let mut bench = Bench::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.tell(&["a", "b", "c"]).await;
    for (status, body) in [
        (400, r#"{"err": "access_denied"}"#),
        (403, r#"{"err": "access_denied"}"#),
        (403, r#"{"err": "of_their_own"}"#),
    ] {
        receiver.next().await.answer(status, body);
    }
    bench.until_cursor(&stream_id, |cursor| cursor.dead_letters == 3).await;
    // Nor does one that a proxy refuses once, and then passes.
    bench.tell(&["d", "e"]).await;
    let first = [receiver.next().await, receiver.next().await];
    for (arrived, status) in first.into_iter().zip([401, 403]) {
        arrived.answer(status, "<html>");
    }
    let mut taken = take(&mut receiver, 2).await;
    taken.sort();
    assert_eq!(taken, ["d", "e"]);
    bench.until_cursor(&stream_id, |cursor| cursor.delivered == 2).await;
    assert!(is_enabled(&bench, &stream_id));
    bench.end().await;
}

#[tokio::test]
async fn event_refused_alone_is_a_dead_letter_after_a_verification() {
    let mut bench = Bench::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    for (number, (status, body, err)) in
        (1..).zip([(400, INVALID_KEY, "invalid_key"), (401, "", "401"), (403, "", "403")])
    {
        bench.tell(&["a"]).await;
        let verification = refuse(&mut receiver, status, body).await;
        let opaque = json!({"format": "opaque", "id": stream_id});
        assert_eq!(verification.claims["sub_id"], opaque);
        assert_eq!(bench.cursor(&stream_id).dead_letters, number - 1);
        // A receiver that takes the sender and refuses such events has taken the sender.
        let (status, body) = if number == 1 { (202, "") } else { (400, r#"{"err": "invalid_request"}"#) };
        verification.answer(status, body);
        bench.until_cursor(&stream_id, |cursor| cursor.dead_letters == number).await;
        let letters = bench.dead_letters(&stream_id);
        assert_eq!(letters.last().map(|letter| letter.err.as_str()), Some(err));
        bench.tell(&["b"]).await;
        assert_eq!(take(&mut receiver, 1).await, ["b"], "nothing is tried again");
        bench.until_cursor(&stream_id, |cursor| cursor.delivered == number).await;
        assert!(is_enabled(&bench, &stream_id));
    }
    bench.end().await;
}

/// A verification event that gets no answer decides nothing: the next refusal has another one sent.
#[tokio::test]
async fn verification_without_an_answer_is_sent_again() {
    let mut bench = Bench::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.tell(&["a"]).await;
    let first = refuse(&mut receiver, 401, "").await;
    let jti = first.jti();
    first.answer(503, "");
    receiver.next().await.answer(401, "");
    let second = receiver.next().await;
    assert_eq!(second.claims["events"], json!({VERIFICATION: {}}));
    assert_ne!(second.jti(), jti);
    second.answer(202, "");
    bench.until_cursor(&stream_id, |cursor| cursor.dead_letters == 1).await;
    assert!(is_enabled(&bench, &stream_id));
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
