//! Permits of pushes, and changes while a push waits for one.

use futures::FutureExt as _;

use super::*;
use crate::outbound::client;
use crate::state::{CallContext, command, fact_row};
use crate::token::lineage::Fact;
use crate::token::signing_key::SigningAlgorithm;
use crate::transmitter::push::attempt::{Attempt, AttemptOutcome};

/// Attack: another stream occupies the permits of a receiver, so that it seems to fail and is paused.
#[tokio::test]
async fn missing_permit_is_no_failure_of_the_receiver() {
    let mut harness = Harness::still().await;
    // The first failure would pause the stream.
    harness.limits.failing_max = Duration::ZERO;
    harness.client = client(client::CallLimits {
        push_permit_wait: Duration::from_millis(20),
        ..client::CallLimits::default()
    });
    let mut receiver = Receiver::start().await;
    let permits = harness.all_permits(&receiver.url).await;
    harness.transmit();
    let stream_id = harness.stream(Some(&receiver.url)).await;
    harness.append(&["a"]).await;
    harness.until_metric(r#"svc_push_total{result="no_place"} 3"#).await;
    assert!(receiver.is_idle());
    drop(permits);
    assert_eq!(accept(&mut receiver, 1).await, ["a"]);
    harness.until_cursor(&stream_id, |cursor| cursor.delivered == 1).await;
    assert_eq!(
        harness.node.state.stream(&stream_id).map(|stream| stream.status),
        Some(StreamStatus::Enabled)
    );
    harness.end().await;
}

/// A push that waits for its permit until `meanwhile` completed; its outcome, and the `kid` of the arrived token.
async fn waits<'b>(
    harness: &'b mut Harness,
    meanwhile: impl AsyncFnOnce(&'b Harness, &str),
) -> (AttemptOutcome, Option<String>) {
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    harness.append(&["a"]).await;
    let permits = harness.all_permits(&receiver.url).await;
    let stream = harness.node.state.stream(&stream_id).expect("there");
    let delivery = Attempt { shared: harness.shared(), stream, id: harness.last_event().id, epoch: 0 };
    let mut push = Box::pin(delivery.push());
    assert!((&mut push).now_or_never().is_none(), "it waits");
    meanwhile(harness, &stream_id).await;
    drop(permits);
    let mut arrived = None;
    let answer = async {
        let push = receiver.next().await;
        arrived = Some(push.kid.clone());
        push.respond(202, "");
        std::future::pending().await
    };
    let pushed = tokio::select! {
        pushed = push => pushed,
        never = answer => never,
    };
    (pushed.outcome, arrived)
}

#[tokio::test]
async fn key_tainted_while_a_push_waits_does_not_sign_it() {
    let mut harness = Harness::still().await;
    let mut before = String::new();
    let (outcome, kid) = waits(&mut harness, async |harness, _| {
        // The successor is old enough by then.
        harness.node.clock.advance(limits::KEY_PUBLISH_AHEAD);
        let kid = harness.keyring.signing_kid(SigningAlgorithm::Rs256, harness.node.clock.now());
        before = kid.expect("a key");
        harness.keyring.taint(&before, ISSUER, &CallContext::default()).await.expect("tainted");
    })
    .await;
    assert!(matches!(outcome, AttemptOutcome::Answered(_, PushResponse::Delivered { .. })));
    let now = harness.keyring.signing_kid(SigningAlgorithm::Rs256, harness.node.clock.now());
    assert!(kid.is_some() && kid == now && kid != Some(before), "{kid:?}");
    harness.end().await;
}

#[tokio::test]
async fn owner_blocked_while_a_push_waits_gets_no_event() {
    let mut harness = Harness::still().await;
    let (outcome, arrived) = waits(&mut harness, async |harness, _| {
        let fact = Some(fact_row(&Fact::client(ISSUER, "")));
        let revocation = command::Revoke { fact, blocks: true, ..command::Revoke::default() };
        harness.node.state.as_node().revoke(revocation).await.expect("blocked");
    })
    .await;
    let AttemptOutcome::Unsent(unsent) = outcome else { panic!("sent") };
    assert_eq!((unsent.result(), arrived), ("owner_blocked", None));
    harness.end().await;
}

#[tokio::test]
async fn stream_paused_or_moved_while_a_push_waits_gets_no_event() {
    let mut harness = Harness::still().await;
    let (outcome, arrived) = waits(&mut harness, async |harness, stream_id| {
        harness.set_status(stream_id, StreamStatus::Paused).await;
    })
    .await;
    assert!(matches!(outcome, AttemptOutcome::Unsent(Unsent::Changed)) && arrived.is_none());
    let (outcome, arrived) = waits(&mut harness, async |harness, stream_id| {
        let stream = harness.node.state.stream(stream_id).expect("there");
        let url = Some("http://127.0.0.1:9/".to_owned());
        let config = StreamConfig { endpoint_url: url, ..stream.config.clone() };
        harness.node.state.as_node().update_stream(config, stream.revision).await.expect("updated");
    })
    .await;
    assert!(matches!(outcome, AttemptOutcome::Unsent(Unsent::Changed)) && arrived.is_none());
    harness.end().await;
}

/// The leader's wall clock was set back to before the log.
#[tokio::test]
async fn clock_set_back_does_not_make_the_key_too_young() {
    let mut harness = Harness::still().await;
    let mut receiver = Receiver::start().await;
    harness.stream(Some(&receiver.url)).await;
    harness.append(&["a"]).await;
    let set_back = Clock::manual(Timestamp::from_secs(1_700_000_000));
    let transmitter = harness.transmitter(set_back);
    harness.transmitter.spawn(transmitter.run());
    assert_eq!(accept(&mut receiver, 1).await, ["a"]);
    harness.end().await;
}

/// The owner was removed from the callers after it had created the stream.
#[tokio::test]
async fn owner_without_streams_manage_gets_no_event() {
    let mut harness = Harness::still().await;
    let mut receiver = Receiver::start().await;
    let stream_id = harness.stream(Some(&receiver.url)).await;
    harness.may_own = false;
    harness.transmit();
    harness.append(&["a"]).await;
    harness.until_metric(r#"svc_push_total{result="owner_not_allowed"}"#).await;
    assert!(receiver.is_idle());
    harness.stop_abruptly().await;
    harness.may_own = true;
    harness.transmit();
    assert_eq!(accept(&mut receiver, 1).await, ["a"]);
    harness.until_cursor(&stream_id, |cursor| cursor.delivered == 1).await;
    harness.end().await;
}
