//! Strict mode: a revocation is acknowledged when the peer cannot accept what it covers any more.

use std::cell::Cell;
use std::time::Instant;

use super::calls::{Served, after, with};
use super::tokens::{TOOL, agent, exchange, granted, set_policies, until_exchange, verify};
use super::*;

/// Longer than every lease.
const LONGEST: Duration = Duration::from_secs(320);
/// The lease that a peer honours, with its margin, and half a second.
const BOUND: Duration = Duration::from_millis(5_750);

/// The answer to a revocation.
struct Answered {
    status: u16,
    /// The state of each peer.
    peers: String,
    retry_after: Option<String>,
    body: Value,
    took: Duration,
}

#[expect(clippy::disallowed_methods, reason = "the time of a client")]
async fn revoked(at: &Fabric, body: &Value, key: &str) -> Answered {
    let begun = Instant::now();
    let request = at.operator.post(at.url("/v1/revocations")).header("idempotency-key", key);
    let request = request.header("content-type", "application/json").body(body.to_string());
    let answer = request.send().await.expect("an answer");
    let (status, took) = (answer.status().as_u16(), begun.elapsed());
    let header =
        |name: &str| answer.headers().get(name).map(|value| value.to_str().expect("text").to_owned());
    let (peers, retry_after) = (header("svc-federation").unwrap_or_default(), header("retry-after"));
    let body = serde_json::from_str(&answer.text().await.expect("text")).expect("JSON");
    Answered { status, peers, retry_after, body, took }
}

fn address(name: &str) -> Value {
    json!({"email": format!("{name}@x.example"), "issuer": IDP})
}

/// A revocation that is acknowledged; the state of each peer, and the time that it took.
async fn acknowledged(at: &Fabric, name: &str) -> (String, Duration) {
    let Answered { status, peers, body, took, .. } = revoked(at, &address(name), name).await;
    assert_eq!(status, 202, "{body}");
    (peers, took)
}

/// Two fabrics, each of which awaits the other and accepts its tokens.
async fn strict() -> (Fabric, Fabric) {
    let [one, other] = ports::free::<2>();
    let (mut eu, mut us) = (Fabric::new("eu", one), Fabric::new("us", other));
    set_policies(&mut eu);
    set_policies(&mut us);
    let more = "accept = true\nserve = true\nhonour_lease = true\nawait = true\nas = [\"subject\"]\ncapabilities = [\"db.read\"]";
    eu.add_peer(&PeerSection { name: "us", of: &us, more });
    us.add_peer(&PeerSection { name: "eu", of: &eu, more });
    eu.start().await;
    us.start().await;
    us.until_peer("eu", "live", 0).await;
    eu.until_peer("us", "live", 0).await;
    (eu, us)
}

/// No wait after the acknowledgement: a single request to the other fabric is refused.
#[tokio::test]
async fn nothing_revoked_is_accepted_after_the_acknowledgement() {
    let (eu, us) = strict().await;
    let tool = json!({"tool_id": "sql", "name": "SQL", "required_capabilities": ["db.read"]});
    assert_eq!(us.call(Method::POST, "/v1/tools", Some(&tool)).await.0, 201);
    for round in ["first", "second", "third"] {
        let (id, identity) = agent(&eu).await;
        let abroad = granted(&eu, &identity, &us.issuer()).await;
        let answer = until_exchange(&us, &abroad, 200).await;
        let at_tool = answer["access_token"].as_str().expect("a token").to_owned();
        assert_eq!(verify(&us, &at_tool).await.0, 200);
        let answered = revoked(&eu, &json!({"agent": id}), round).await;
        assert_eq!((answered.status, answered.peers.as_str()), (202, "us=enforced"), "{}", answered.body);
        assert_eq!(
            (exchange(&us, &abroad, TOOL).await.0, verify(&us, &at_tool).await.0),
            (400, 403),
            "{round}"
        );
    }
    // Both directions, although each awaits the other: an acknowledgement waits for no other fabric.
    let (peers, _) = acknowledged(&us, "ada").await;
    assert_eq!(peers, "eu=enforced");
    let peer = eu.peer("us").await;
    assert_eq!(peer["awaited"], true);
    assert!(peer["acknowledged"].is_string(), "{peer}");
}

/// The relying fabric is gone: one revocation waits for its lease, the next ones do not.
#[tokio::test]
async fn strict_waits_for_the_lease_and_no_longer() {
    let (eu, mut us) = strict().await;
    assert_eq!(acknowledged(&eu, "ada").await.0, "us=enforced");
    eu.clock.skip(LONGEST);
    until("called again", || async {
        let peer = eu.peer("us").await;
        (peer["serving"]["asked_ms_ago"].as_u64()? < 60_000).then_some(())
    })
    .await;
    // It is awaited once that call is recorded.
    let attempts = Cell::new(0);
    until("awaited again", || async {
        attempts.set(attempts.get() + 1);
        let (peers, _) = acknowledged(&eu, &format!("bob-{}", attempts.get())).await;
        (peers == "us=enforced").then_some(())
    })
    .await;
    us.stop().await;
    let (peers, took) = acknowledged(&eu, "eve").await;
    assert_eq!(peers, "us=lapsed");
    assert!(took < BOUND, "{took:?}");
    for name in ["mallory", "trent"] {
        let (peers, took) = acknowledged(&eu, name).await;
        assert_eq!(peers, "us=lapsed");
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
    us.start().await;
    us.until_peer("eu", "live", 4 + attempts.get()).await;
    assert_eq!(acknowledged(&eu, "peggy").await.0, "us=enforced");
}

/// Attack: a peer calls for ever and never acknowledges. It costs a lease each time, and no more.
#[tokio::test]
async fn strict_with_a_peer_that_never_acknowledges() {
    let served = Served::start("await = true").await;
    let first = served.answered(&json!({"version": 1, "honours_lease": true})).await;
    served.eu.clock.skip(LONGEST);
    let call = with(&with(&after(&first), "honours_lease", json!(true)), "hold_ms", json!(200));
    for name in ["ada", "bob"] {
        served.answered(&call).await;
        let (peers, took) = tokio::select! {
            acknowledged = acknowledged(&served.eu, name) => acknowledged,
            () = async { loop { served.answered(&call).await; } } => panic!("it calls for ever"),
        };
        assert_eq!(peers, "us=lapsed");
        assert!((Duration::from_secs(4)..BOUND).contains(&took), "{took:?}");
    }
}

/// Attack: strict mode begins while the peer holds a long lease; and a leader does not know which ones it does.
#[tokio::test]
async fn strict_is_not_acknowledged_while_a_long_lease_may_be_held() {
    let served = Served::start("await = true").await;
    served.eu.clock.skip(LONGEST);
    let first = served.answered(&json!({"version": 1})).await;
    let refused = revoked(&served.eu, &address("ada"), "ada").await;
    assert_eq!((refused.status, refused.retry_after.as_deref()), (503, Some("1")), "{}", refused.body);
    let text = refused.body["error_description"].as_str().expect("a text");
    assert!(text.contains("the write is applied") && text.contains("peer fabrics us"), "{text}");
    // The statement of the peer counts at once, also for the repetition, whose log index it does not reach.
    let call = with(&after(&first), "honours_lease", json!(true));
    let second = served.answered(&call).await;
    let enforced =
        with(&with(&after(&second), "honours_lease", json!(true)), "enforced", second["through"].clone());
    served.answered(&enforced).await;
    let again = revoked(&served.eu, &address("ada"), "ada").await;
    assert_eq!((again.status, again.peers.as_str()), (202, "us=enforced"), "{}", again.body);
    // The long lease is over.
    served.eu.clock.skip(LONGEST);
    let (peers, took) = acknowledged(&served.eu, "bob").await;
    assert_eq!(peers, "us=lapsed");
    assert!(took < Duration::from_secs(1), "{took:?}");
}

/// A revocation of a fabric that awaits no peer is as before.
#[tokio::test]
async fn revocation_without_await_names_no_peer() {
    let (eu, _us) = eu_read_by_us().await;
    let (peers, took) = acknowledged(&eu, "ada").await;
    assert_eq!(peers, "");
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(eu.peer("us").await["awaited"], false);
}
