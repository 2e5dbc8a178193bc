//! Who waits for a place, what that says of a receiver, and what changes meanwhile.

use futures::FutureExt as _;

use super::*;
use crate::outbound::client;
use crate::state::{CallerFacts, OperatorRevocation, Target};
use crate::token::lineage::Fact;
use crate::token::signing_key::SigningAlgorithm;
use crate::transmitter::push::attempt::{Delivery, Outcome};

/// Attack: somebody takes the places of a receiver's pushes, so that it seems not to answer and is paused.
#[tokio::test]
async fn a_push_that_gets_no_place_is_no_failure_of_its_receiver() {
    let mut bench = Bench::still().await;
    // The first failure would pause the stream.
    bench.limits.failing_max = Duration::ZERO;
    bench.client = client(client::CallLimits {
        push_permit_wait: Duration::from_millis(20),
        ..client::CallLimits::default()
    });
    let mut receiver = Receiver::start().await;
    let held = bench.all_places(&receiver.url).await;
    bench.transmit();
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.tell(&["a"]).await;
    bench.until_shown(r#"svc_push_total{result="no_place"} 3"#).await;
    assert!(receiver.is_idle());
    drop(held);
    assert_eq!(take(&mut receiver, 1).await, ["a"]);
    bench.until_cursor(&stream_id, |cursor| cursor.delivered == 1).await;
    assert_eq!(bench.core.state.stream(&stream_id).map(|stream| stream.status), Some(StreamStatus::Enabled));
    bench.end().await;
}

/// A push that waits for its place until `meanwhile` has happened; how it ended, and by which key what arrived was signed.
async fn waits<'b>(
    bench: &'b mut Bench,
    meanwhile: impl AsyncFnOnce(&'b Bench, &str),
) -> (Outcome, Option<String>) {
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.tell(&["a"]).await;
    let held = bench.all_places(&receiver.url).await;
    let stream = bench.core.state.stream(&stream_id).expect("there");
    let delivery = Delivery { shared: bench.shared(), stream, id: bench.last_event().id, epoch: 0 };
    let mut push = Box::pin(delivery.push());
    assert!((&mut push).now_or_never().is_none(), "it waits");
    meanwhile(bench, &stream_id).await;
    drop(held);
    let mut arrived = None;
    let answer = async {
        let push = receiver.next().await;
        arrived = Some(push.kid.clone());
        push.answer(202, "");
        std::future::pending().await
    };
    let pushed = tokio::select! {
        pushed = push => pushed,
        never = answer => never,
    };
    (pushed.outcome, arrived)
}

#[tokio::test]
async fn a_key_that_is_tainted_while_a_push_waits_does_not_sign_it() {
    let mut bench = Bench::still().await;
    let mut before = String::new();
    let (outcome, kid) = waits(&mut bench, async |bench, _| {
        // A successor that is old enough by then.
        bench.core.clock.advance(limits::KEY_PUBLISH_AHEAD);
        let kid = bench.keyring.signing_kid(SigningAlgorithm::Rs256, bench.core.clock.now());
        before = kid.expect("a key");
        bench.keyring.taint(&before, ISSUER, &CallerFacts::default()).await.expect("tainted");
    })
    .await;
    assert!(matches!(outcome, Outcome::Answered(_, Verdict::Delivered { .. })));
    let now = bench.keyring.signing_kid(SigningAlgorithm::Rs256, bench.core.clock.now());
    assert!(kid.is_some() && kid == now && kid != Some(before), "{kid:?}");
    bench.end().await;
}

#[tokio::test]
async fn nothing_is_sent_for_an_owner_who_is_blocked_while_a_push_waits() {
    let mut bench = Bench::still().await;
    let (outcome, arrived) = waits(&mut bench, async |bench, _| {
        let fact = Fact::client(ISSUER, "");
        let revocation = OperatorRevocation {
            fact: &fact,
            target: Target::Fact,
            blocks: true,
            reason: String::new(),
            caller: String::new(),
            event: None,
        };
        bench.core.state.as_node().revoke(revocation, None).await.expect("blocked");
    })
    .await;
    let Outcome::Unsent(unsent) = outcome else { panic!("sent") };
    assert_eq!((unsent.result(), arrived), ("owner_blocked", None));
    bench.end().await;
}

#[tokio::test]
async fn nothing_is_sent_for_a_stream_that_is_paused_or_moved_while_a_push_waits() {
    let mut bench = Bench::still().await;
    let (outcome, arrived) = waits(&mut bench, async |bench, stream_id| {
        bench.set_status(stream_id, StreamStatus::Paused).await;
    })
    .await;
    assert!(matches!(outcome, Outcome::Unsent(Unsent::Changed)) && arrived.is_none());
    let (outcome, arrived) = waits(&mut bench, async |bench, stream_id| {
        let stream = bench.core.state.stream(stream_id).expect("there");
        let url = Some("http://127.0.0.1:9/".to_owned());
        let config = StreamConfig { endpoint_url: url, ..stream.config.clone() };
        bench.core.state.as_node().update_stream(config, stream.revision).await.expect("updated");
    })
    .await;
    assert!(matches!(outcome, Outcome::Unsent(Unsent::Changed)) && arrived.is_none());
    bench.end().await;
}

/// The wall clock of the node that leads was set back behind the log.
#[tokio::test]
async fn a_clock_that_was_set_back_does_not_make_the_key_too_young_to_sign() {
    let mut bench = Bench::still().await;
    let mut receiver = Receiver::start().await;
    bench.stream(Some(&receiver.url)).await;
    bench.tell(&["a"]).await;
    let set_back = Clock::manual(Timestamp::from_secs(1_700_000_000));
    let transmitter = bench.transmitter(set_back);
    bench.transmitter.spawn(transmitter.run());
    assert_eq!(take(&mut receiver, 1).await, ["a"]);
    bench.end().await;
}

/// The callers table was changed while a stream was there, and its owner went on receiving.
#[tokio::test]
async fn nothing_is_pushed_for_an_owner_without_streams_manage() {
    let mut bench = Bench::still().await;
    let mut receiver = Receiver::start().await;
    let stream_id = bench.stream(Some(&receiver.url)).await;
    bench.may_own = false;
    bench.transmit();
    bench.tell(&["a"]).await;
    bench.until_shown(r#"svc_push_total{result="owner_not_allowed"}"#).await;
    assert!(receiver.is_idle());
    bench.fall_silent().await;
    bench.may_own = true;
    bench.transmit();
    assert_eq!(take(&mut receiver, 1).await, ["a"]);
    bench.until_cursor(&stream_id, |cursor| cursor.delivered == 1).await;
    bench.end().await;
}
