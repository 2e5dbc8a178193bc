//! Push streams to an independent receiver: content, order, and the effect of its responses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::python::Receiver;
use crate::support::{FABRIC, IDP, Node, Setup, with};

const STREAM: &str = "/v1/signals/stream";
const STATUS: &str = "/v1/signals/status";
const REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
const AUD: &str = "https://receiver.example/events";

/// A receiver that has the keys of this node and accepts everything.
async fn receiver(node: &Node) -> Receiver {
    let mut receiver = Receiver::start().await;
    configure(&mut receiver, node).await;
    receiver
}

async fn configure(receiver: &mut Receiver, node: &Node) {
    let jwks = node.get("/v1/identity/jwks").await.json();
    receiver.order(&json!({"jwks": jwks, "iss": FABRIC, "aud": AUD})).await;
}

/// Creates a push stream to the receiver. Returns its id.
async fn stream(node: &Node, url: &str) -> String {
    let request = json!({
        "iss": FABRIC, "aud": AUD, "events_requested": [REVOKED], "delivery_method": "push", "endpoint_url": url,
    });
    let answer = node.post(STREAM, &request).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.json()["stream_id"].as_str().expect("stream_id").to_owned()
}

fn workload(name: &str) -> String {
    format!("wimse://trust.example/ns/demo/sa/{name}")
}

/// [`IDP`] reports revoked sessions of a workload.
async fn revoke(node: &Node, name: &str, txn: &str) {
    let set = json!({
        "iss": IDP, "jti": uuid::Uuid::new_v4().to_string(), "iat": node.now_secs(), "aud": FABRIC,
        "sub_id": {"format": "uri", "uri": workload(name)}, "txn": txn,
        "events": {REVOKED: {"initiating_entity": "admin", "reason": "gone"}},
    });
    let answer = node.post("/v1/signals/events", &set).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
}

/// So many events about five workloads in turn, numbered by `txn`.
async fn revoke_many(node: &Node, numbers: std::ops::Range<u32>) {
    for number in numbers {
        revoke(node, &format!("w{}", number % 5), &number.to_string()).await;
    }
}

fn jti(push: &Value) -> String {
    push["claims"]["jti"].as_str().expect("jti").to_owned()
}

fn txn(push: &Value) -> u32 {
    push["claims"]["txn"].as_str().and_then(|txn| txn.parse().ok()).expect("a number")
}

/// Accepts pushes until so many different events arrived. Each event has one `jti`, and those of one subject
/// arrive in order, retries apart.
async fn receive_all(receiver: &mut Receiver, seen: &mut BTreeMap<u32, String>, count: usize) {
    while seen.len() < count {
        let push = receiver.next().await;
        assert_eq!(push["mode"], "202", "{push}");
        let (number, jti) = (txn(&push), jti(&push));
        if let Some(before) = seen.get(&number) {
            assert_eq!(*before, jti, "a repetition is the same token");
            continue;
        }
        let overtaken: Vec<_> =
            (0..number).filter(|earlier| earlier % 5 == number % 5 && !seen.contains_key(earlier)).collect();
        assert_eq!(overtaken, [0; 0], "{number} came before them");
        seen.insert(number, jti);
    }
    assert_eq!(seen.values().collect::<BTreeSet<_>>().len(), seen.len(), "one jti for two events");
}

/// A node with TLS and more lines in `[transmitter]`.
async fn secure(more: &str) -> Node {
    let more_config = format!("[transmitter]\nbase_url = \"https://fabric.example:8694\"\n{more}");
    Node::start_with(Setup { is_secure: true, more_config, ..Setup::default() }).await
}

/// Regression: a production node pushed to any listener on its machine unless an operator had disabled that.
#[tokio::test]
async fn loopback_push_waits_until_it_is_switched_on() {
    let mut node = secure("").await;
    let mut receiver = receiver(&node).await;
    let stream_id = stream(&node, &receiver.url("127.0.0.1", "/events")).await;
    let reason = "endpoint_url is on this machine, and transmitter.allow_loopback_push is off";
    let shown = status(&node, &stream_id).await;
    assert_eq!(shown, json!({"stream_id": stream_id, "status": "paused", "reason": reason}));
    revoke(&node, "reporter", "1").await;
    let held = async || {
        let metrics = node.call_over(&node.certified("operator"), "GET", "/metrics", &[], "").await.body;
        metrics.contains(r#"svc_push_total{result="loopback_push"}"#)
    };
    until(&node, held).await;
    assert_eq!(receiver.remaining(), [Value::Null; 0]);
    node.restart_with(|config| config.outbound.allow_loopback_push = true).await;
    configure(&mut receiver, &node).await;
    assert_eq!(txn(&receiver.next().await), 1);
    let shown = status(&node, &stream_id).await;
    assert_eq!(shown, json!({"stream_id": stream_id, "status": "enabled"}));
}

/// Attack: the owner of a stream is blocked, and its receiver still listens.
#[tokio::test]
async fn blocked_owner_gets_no_pushes_until_the_block_is_lifted() {
    let node = secure("allow_loopback_push = true\n").await;
    let mut receiver = receiver(&node).await;
    let stream_id = stream(&node, &receiver.url("127.0.0.1", "/events")).await;
    // The event that reports the block would be the first push.
    node.disable_account("spiffe://trust.example/gateway").await;
    let operator = node.certified("operator");
    let request = json!({"subject": workload("reporter")}).to_string();
    let headers = [("content-type", "application/json")];
    let revoked = node.call_over(&operator, "POST", "/v1/revocations", &headers, request).await;
    assert_eq!(revoked.status, 202, "{}", revoked.body);
    let held = async || {
        let metrics = node.call_over(&operator, "GET", "/metrics", &[], "").await.body;
        metrics.contains(r#"svc_push_total{result="owner_blocked"}"#)
    };
    until(&node, held).await;
    assert_eq!(receiver.remaining(), Vec::<Value>::new());
    let chief = node.certified("chief");
    let shown = async || {
        node.call_over(&chief, "GET", &format!("{STATUS}?stream_id={stream_id}"), &[], "").await.json()
    };
    let reason = "the owner of the stream is blocked";
    assert_eq!(shown().await, json!({"stream_id": stream_id, "status": "paused", "reason": reason}));
    let blocks = node.call_over(&operator, "GET", "/v1/blocks", &[], "").await.json();
    let path = format!("/v1/blocks/{}", blocks[0]["id"].as_str().expect("id"));
    assert_eq!(node.call_over(&operator, "DELETE", &path, &[], "").await.status, 204);
    let push = receiver.next().await;
    assert_eq!(push["claims"]["sub_id"]["uri"], workload("reporter"), "{push}");
    assert_eq!(shown().await, json!({"stream_id": stream_id, "status": "enabled"}));
}

async fn status(node: &Node, stream_id: &str) -> Value {
    node.get(&format!("{STATUS}?stream_id={stream_id}")).await.json()
}

async fn set_status(node: &Node, stream_id: &str, status: &str) {
    let answer = node.post(STATUS, &json!({"stream_id": stream_id, "status": status})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Polls until the condition holds. The clock advances, because the rate limit uses the clock of the node.
async fn until(node: &Node, mut is_so: impl AsyncFnMut() -> bool) {
    while !is_so().await {
        node.clock.advance(Duration::from_millis(20));
    }
}

/// The delivery counters of a stream.
async fn delivery_counters(node: &Node, stream_id: &str) -> Value {
    let stream = node.get(&format!("{STREAM}?stream_id={stream_id}")).await.json();
    json!([stream["delivered"], stream["dropped"], stream["dead_letters"]])
}

#[tokio::test]
async fn pushed_sets_are_verified_by_an_independent_receiver() {
    let node = Node::start().await;
    let mut receiver = receiver(&node).await;
    let stream_id = stream(&node, &receiver.url("127.0.0.1", "/events")).await;
    revoke(&node, "reporter", "t-1").await;
    let push = receiver.next().await;
    assert_eq!(push["path"], "/events");
    let expected = json!({
        "iss": FABRIC, "aud": AUD, "iat": node.now_secs(), "txn": "t-1", "jti": push["claims"]["jti"],
        "svc_via": [IDP], "sub_id": {"format": "uri", "uri": workload("reporter")},
        "events": {REVOKED: {"event_timestamp": node.now_secs(), "initiating_entity": "admin", "reason": "gone"}},
    });
    assert_eq!(push["claims"], expected);
    assert!(jti(&push).ends_with(&format!("-{stream_id}")));
    until(&node, async || delivery_counters(&node, &stream_id).await == json!([1, 0, 0])).await;
    let metrics = node.get("/metrics").await.body;
    for line in [r#"svc_push_total{result="delivered"} 1"#, r#"svc_streams{status="enabled"} 1"#] {
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }
}

#[tokio::test]
async fn each_event_comes_once_and_those_of_a_subject_in_their_order() {
    let node = Node::start().await;
    let mut receiver = receiver(&node).await;
    let stream_id = stream(&node, &receiver.url("localhost", "/events")).await;
    revoke_many(&node, 0..40).await;
    receive_all(&mut receiver, &mut BTreeMap::new(), 40).await;
    until(&node, async || delivery_counters(&node, &stream_id).await == json!([40, 0, 0])).await;
    assert_eq!(receiver.remaining(), [Value::Null; 0]);
}

#[tokio::test]
async fn failed_push_is_retried_with_the_same_set() {
    let node = Node::start().await;
    let mut receiver = receiver(&node).await;
    let stream_id = stream(&node, &receiver.url("127.0.0.1", "/events")).await;
    receiver.order(&json!({"mode": "500"})).await;
    revoke(&node, "reporter", "1").await;
    let first = receiver.next().await;
    // A resumed stream is delivered at once, whatever its backoff was.
    for mode in ["503", "429", "404", "bare 400", "redirect", "hang up"] {
        // This is no way to force retries: a change ends the backoff once per longest backoff.
        node.clock.advance(Duration::from_secs(300));
        set_status(&node, &stream_id, "paused").await;
        receiver.order(&json!({"mode": mode, "retry_after": 3600})).await;
        receiver.remaining();
        set_status(&node, &stream_id, "enabled").await;
        let again = receiver.next().await;
        assert_eq!((&again["claims"], &again["path"]), (&first["claims"], &first["path"]), "{mode}");
    }
    node.clock.advance(Duration::from_secs(300));
    set_status(&node, &stream_id, "paused").await;
    // The receiver accepted it, however long its response is.
    receiver.order(&json!({"mode": "large"})).await;
    receiver.remaining();
    set_status(&node, &stream_id, "enabled").await;
    assert_eq!(receiver.next().await["claims"], first["claims"]);
    until(&node, async || delivery_counters(&node, &stream_id).await == json!([1, 0, 0])).await;
    assert_eq!(receiver.remaining(), [Value::Null; 0], "no redirect was followed, and nothing came twice");
}

#[tokio::test]
async fn failed_receiver_is_retried_without_a_trigger() {
    let node = Node::start().await;
    let mut receiver = receiver(&node).await;
    stream(&node, &receiver.url("127.0.0.1", "/events")).await;
    receiver.order(&json!({"mode": "500"})).await;
    revoke(&node, "reporter", "1").await;
    let first = receiver.next().await;
    receiver.order(&json!({"mode": "202"})).await;
    let mut again = receiver.next().await;
    while again["mode"] == "500" {
        again = receiver.next().await;
    }
    assert_eq!(again["claims"], first["claims"]);
}

#[tokio::test]
async fn permanent_rejection_is_reported_and_delays_nothing() {
    let node = Node::start().await;
    let mut receiver = receiver(&node).await;
    let stream_id = stream(&node, &receiver.url("127.0.0.1", "/events")).await;
    receiver.order(&json!({"mode": "400", "err": "invalid_request", "description": "who\u{1b}[2J"})).await;
    revoke(&node, "reporter", "1").await;
    let refused = receiver.next().await;
    until(&node, async || delivery_counters(&node, &stream_id).await == json!([0, 0, 1])).await;
    receiver.order(&json!({"mode": "202"})).await;
    revoke(&node, "reporter", "2").await;
    assert_eq!(txn(&receiver.next().await), 2);
    let letters = node.get(&format!("/v1/signals/dead-letters?stream_id={stream_id}")).await.json();
    let letters = letters.as_array().expect("a list");
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!((&letter["err"], &letter["description"]), (&json!("invalid_request"), &json!("who?[2J")));
    assert_eq!((&letter["event_type"], &letter["sub_id"]), (&json!(REVOKED), &refused["claims"]["sub_id"]));
    assert!(jti(&refused).contains(&format!("-{}-", letter["id"].as_str().expect("id"))));
    let metrics = node.get("/metrics").await.body;
    assert!(metrics.contains(r#"svc_push_total{result="dead_letter"} 1"#), "{metrics}");
}

/// Attack: one 401 or 403 paused the stream, so that anyone able to cause an event that the receiver denies
/// could cut the receiver off.
#[tokio::test]
async fn one_refusal_pauses_no_stream_and_the_event_comes_again() {
    let node = Node::start().await;
    let mut receiver = receiver(&node).await;
    let stream_id = stream(&node, &receiver.url("127.0.0.1", "/events")).await;
    receiver.order(&json!({"mode": "401"})).await;
    revoke(&node, "reporter", "1").await;
    let first = receiver.next().await;
    receiver.order(&json!({"mode": "202"})).await;
    let mut again = receiver.next().await;
    while again["mode"] == "401" {
        again = receiver.next().await;
    }
    assert_eq!(again["claims"], first["claims"]);
    until(&node, async || delivery_counters(&node, &stream_id).await == json!([1, 0, 0])).await;
    assert_eq!(status(&node, &stream_id).await, json!({"stream_id": stream_id, "status": "enabled"}));
}

#[tokio::test]
async fn misbehaving_receivers_delay_no_other_receiver() {
    let node = Node::start().await;
    let mut receiver = receiver(&node).await;
    for (path, mode) in [("/slow", "slow"), ("/large", "large"), ("/endless", "endless")] {
        receiver.order(&json!({"mode": mode, "only": path})).await;
        stream(&node, &receiver.url("localhost", path)).await;
    }
    let well = stream(&node, &receiver.url("127.0.0.1", "/well")).await;
    revoke_many(&node, 0..40).await;
    let (mut seen, mut others) = (BTreeMap::new(), BTreeSet::new());
    while seen.len() < 40 || others.len() < 3 {
        let push = receiver.next().await;
        if push["path"] == "/well" {
            seen.insert(txn(&push), jti(&push));
        } else {
            others.insert(push["path"].as_str().expect("path").to_owned());
        }
    }
    until(&node, async || delivery_counters(&node, &well).await == json!([40, 0, 0])).await;
}

#[tokio::test]
async fn a_receiver_that_was_not_there_gets_everything_when_it_is() {
    let node = Node::start().await;
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("address").port();
    let stream_id = stream(&node, &format!("http://127.0.0.1:{port}/events")).await;
    revoke_many(&node, 0..25).await;
    until(&node, async || {
        node.get("/metrics").await.body.contains(r#"svc_push_total{result="unreachable"}"#)
    })
    .await;
    let mut receiver = Receiver::start_at(port).await;
    configure(&mut receiver, &node).await;
    revoke_many(&node, 25..40).await;
    receive_all(&mut receiver, &mut BTreeMap::new(), 40).await;
    until(&node, async || delivery_counters(&node, &stream_id).await == json!([40, 0, 0])).await;
}

#[tokio::test]
async fn restart_loses_no_event_and_repeats_the_same_sets() {
    let mut node = Node::start().await;
    let mut receiver = receiver(&node).await;
    let stream_id = stream(&node, &receiver.url("127.0.0.1", "/events")).await;
    let mut seen = BTreeMap::new();
    for round in 0..3 {
        revoke_many(&node, round * 20..round * 20 + 20).await;
        let some = seen.len() + 7;
        receive_all(&mut receiver, &mut seen, some).await;
        node.restart().await;
    }
    receive_all(&mut receiver, &mut seen, 60).await;
    until(&node, async || delivery_counters(&node, &stream_id).await == json!([60, 0, 0])).await;
}

#[tokio::test]
async fn paused_stream_retains_events_and_a_disabled_one_does_not() {
    let node = Node::start().await;
    let mut receiver = receiver(&node).await;
    let stream_id = stream(&node, &receiver.url("127.0.0.1", "/events")).await;
    set_status(&node, &stream_id, "paused").await;
    revoke(&node, "reporter", "1").await;
    set_status(&node, &stream_id, "enabled").await;
    assert_eq!(txn(&receiver.next().await), 1);
    until(&node, async || delivery_counters(&node, &stream_id).await == json!([1, 0, 0])).await;
    set_status(&node, &stream_id, "disabled").await;
    revoke(&node, "reporter", "2").await;
    set_status(&node, &stream_id, "enabled").await;
    revoke(&node, "reporter", "3").await;
    assert_eq!(txn(&receiver.next().await), 3);
    until(&node, async || delivery_counters(&node, &stream_id).await == json!([2, 0, 0])).await;
}

#[tokio::test]
async fn new_endpoint_gets_the_backlog_and_deletion_ends_delivery() {
    let node = Node::start().await;
    let mut receiver = receiver(&node).await;
    receiver.order(&json!({"mode": "503", "only": "/old"})).await;
    let stream_id = stream(&node, &receiver.url("127.0.0.1", "/old")).await;
    revoke(&node, "reporter", "1").await;
    let first = receiver.next().await;
    let change = json!({"stream_id": stream_id, "endpoint_url": receiver.url("127.0.0.1", "/new")});
    let media = [("content-type", "application/json")];
    let answer = node.call("PATCH", STREAM, &media, change.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut moved = receiver.next().await;
    while moved["path"] == "/old" {
        moved = receiver.next().await;
    }
    assert_eq!((&moved["path"], &moved["claims"]), (&json!("/new"), &first["claims"]));
    receiver.order(&json!({"mode": "503", "only": "/new"})).await;
    revoke(&node, "reporter", "2").await;
    assert_eq!(txn(&receiver.next().await), 2);
    let answer = node.call("DELETE", &format!("{STREAM}?stream_id={stream_id}"), &[], "").await;
    assert_eq!(answer.status, 204, "{}", answer.body);
    receiver.remaining();
    let other = stream(&node, &receiver.url("127.0.0.1", "/other")).await;
    revoke_many(&node, 3..40).await;
    until(&node, async || delivery_counters(&node, &other).await == json!([37, 0, 0])).await;
    let paths: BTreeSet<_> = receiver.remaining().iter().map(|push| push["path"].to_string()).collect();
    assert_eq!(paths, BTreeSet::from(["\"/other\"".to_owned()]));
}

#[tokio::test]
async fn undelivered_events_are_visible_to_operators() {
    let node = Node::start().await;
    let polled = json!({"iss": FABRIC, "aud": AUD, "events_requested": [REVOKED], "delivery_method": "poll"});
    assert_eq!(node.post(STREAM, &polled).await.status, 201);
    let both = with(&polled, &json!({"delivery_method": "push", "endpoint_url": "http://127.0.0.1:9/"}));
    assert_eq!(node.post(STREAM, &both).await.status, 201);
    revoke_many(&node, 0..3).await;
    for line in [r#"svc_stream_backlog{of="all"} 6"#, r#"svc_stream_backlog{of="largest"} 3"#] {
        until(&node, async || node.get("/metrics").await.body.lines().any(|found| found == line)).await;
    }
}
