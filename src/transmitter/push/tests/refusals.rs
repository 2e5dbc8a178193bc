//! Receivers that refuse or reject events.

use super::*;
use crate::state::CallContext;
use crate::token::signing_key::SigningAlgorithm;

const INVALID_KEY: &str = r#"{"err": "invalid_key", "description": "who?"}"#;

#[tokio::test]
async fn refused_push_is_retried_with_the_successor_of_a_tainted_key() {
    let mut harness = Harness::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    // The successor is old enough by then.
    harness.node.clock.advance(limits::KEY_PUBLISH_AHEAD);
    harness.append(&["a"]).await;
    let first = receiver.next().await;
    let (jti, kid) = (first.jti(), first.kid.clone());
    let signs = harness.keyring.signing_kid(SigningAlgorithm::Rs256, harness.node.clock.now());
    assert_eq!(signs.as_ref(), Some(&kid));
    harness.keyring.taint(&kid, ISSUER, &CallContext::default()).await.expect("tainted");
    first.respond(400, INVALID_KEY);
    let retry = receiver.next().await;
    assert_eq!(retry.jti(), jti);
    assert_ne!(retry.kid, kid);
    retry.respond(202, "");
    harness.until_cursor(&stream_id, |cursor| cursor.delivered == 1 && cursor.dead_letters == 0).await;
    harness.assert_metric(r#"svc_push_total{result="key_replaced"} 1"#);
    harness.end().await;
}

const VERIFICATION: &str = "https://schemas.openid.net/secevent/ssf/event-type/verification";

fn is_enabled(harness: &Harness, stream_id: &str) -> bool {
    harness.node.state.stream(stream_id).is_some_and(|stream| stream.status == StreamStatus::Enabled)
}

/// Refuses the next event until a verification event arrives, which is returned.
async fn refuse(receiver: &mut Receiver, status: u16, body: &str) -> Arrived {
    let mut jti = None;
    for _ in 0..limits::PUSH_REFUSALS_MAX {
        let arrived = receiver.next().await;
        assert_eq!(*jti.get_or_insert_with(|| arrived.jti()), arrived.jti());
        arrived.respond(status, body);
    }
    let arrived = receiver.next().await;
    assert_eq!(arrived.claims["events"], json!({VERIFICATION: {}}));
    arrived
}

/// Attack: a caller that can cause events pauses a stream with an event that its receiver denies.
#[tokio::test]
async fn single_denied_event_is_a_dead_letter() {
    let mut harness = Harness::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    harness.append(&["a", "b", "c"]).await;
    for (status, body) in [
        (400, r#"{"err": "access_denied"}"#),
        (403, r#"{"err": "access_denied"}"#),
        (403, r#"{"err": "of_their_own"}"#),
    ] {
        receiver.next().await.respond(status, body);
    }
    harness.until_cursor(&stream_id, |cursor| cursor.dead_letters == 3).await;
    // An event that a proxy refuses once and then passes is not.
    harness.append(&["d", "e"]).await;
    let first = [receiver.next().await, receiver.next().await];
    for (arrived, status) in first.into_iter().zip([401, 403]) {
        arrived.respond(status, "<html>");
    }
    let mut accepted = accept(&mut receiver, 2).await;
    accepted.sort();
    assert_eq!(accepted, ["d", "e"]);
    harness.until_cursor(&stream_id, |cursor| cursor.delivered == 2).await;
    assert!(is_enabled(&harness, &stream_id));
    harness.end().await;
}

#[tokio::test]
async fn single_refused_event_is_a_dead_letter_after_verification() {
    let mut harness = Harness::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    for (number, (status, body, err)) in
        (1..).zip([(400, INVALID_KEY, "invalid_key"), (401, "", "401"), (403, "", "403")])
    {
        harness.append(&["a"]).await;
        let verification = refuse(&mut receiver, status, body).await;
        let opaque = json!({"format": "opaque", "id": stream_id});
        assert_eq!(verification.claims["sub_id"], opaque);
        assert_eq!(harness.cursor(&stream_id).dead_letters, number - 1);
        // A rejection of the verification event alone also shows that the sender is accepted.
        let (status, body) = if number == 1 { (202, "") } else { (400, r#"{"err": "invalid_request"}"#) };
        verification.respond(status, body);
        harness.until_cursor(&stream_id, |cursor| cursor.dead_letters == number).await;
        let letters = harness.dead_letters(&stream_id);
        assert_eq!(letters.last().map(|(_, letter)| letter.err.as_str()), Some(err));
        harness.append(&["b"]).await;
        assert_eq!(accept(&mut receiver, 1).await, ["b"], "no retry of the first");
        harness.until_cursor(&stream_id, |cursor| cursor.delivered == number).await;
        assert!(is_enabled(&harness, &stream_id));
    }
    harness.end().await;
}

/// A failed verification event decides nothing: the next refusal sends another one.
#[tokio::test]
async fn failed_verification_is_repeated() {
    let mut harness = Harness::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    harness.append(&["a"]).await;
    let first = refuse(&mut receiver, 401, "").await;
    let jti = first.jti();
    first.respond(503, "");
    receiver.next().await.respond(401, "");
    let second = receiver.next().await;
    assert_eq!(second.claims["events"], json!({VERIFICATION: {}}));
    assert_ne!(second.jti(), jti);
    second.respond(202, "");
    harness.until_cursor(&stream_id, |cursor| cursor.dead_letters == 1).await;
    assert!(is_enabled(&harness, &stream_id));
    harness.end().await;
}

/// Attack: an event that makes its receiver fail stays first in the window until it is full, and blocks the stream.
#[tokio::test]
async fn event_failing_alone_becomes_a_dead_letter() {
    let mut harness = Harness::start().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    harness.append(&["poison", "poison"]).await;
    let names: Vec<String> = (0..100).map(|subject| format!("s{subject}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let rounds = limits::STREAM_WINDOW / 100 + 1;
    for _ in 0..rounds {
        harness.append(&all).await;
    }
    let delivered = rounds as u64 * 100 + 1;
    let mut poison = None;
    let completed =
        harness.until_cursor(&stream_id, |cursor| (cursor.delivered, cursor.dead_letters) == (delivered, 1));
    let receive = async {
        loop {
            let arrived = receiver.next().await;
            let is_poison = arrived.subject() == "poison"
                && *poison.get_or_insert_with(|| arrived.number()) == arrived.number();
            arrived.respond(if is_poison { 500 } else { 202 }, "");
        }
    };
    tokio::select! {
        _ = completed => {}
        () = receive => {}
    }
    let letters = harness.dead_letters(&stream_id);
    let (_, letter) = &letters[0];
    assert_eq!(
        (letter.err.as_str(), letter.description.as_str()),
        ("undeliverable", "the receiver answered 500")
    );
    assert_eq!(
        harness.node.state.stream(&stream_id).map(|stream| stream.status),
        Some(StreamStatus::Enabled)
    );
    harness.end().await;
}
