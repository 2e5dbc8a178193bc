//! Poll streams over HTTP: the SETs of a receiver, and its acknowledgements and errors.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use trust_fabric::api::caller::{Callers, Capability};

use crate::support::{Channel, FABRIC, IDP, NOW_SECS, Node, OTHER_IDP, Response, Setup, python, with};

const STREAMS: &str = "/v1/signals/stream";
const CAEP: &str = "https://schemas.openid.net/secevent/caep/event-type";
const VERIFICATION: &str = "https://schemas.openid.net/secevent/ssf/event-type/verification";
const AUD: &str = "https://receiver.example/events";

fn session_revoked() -> String {
    format!("{CAEP}/session-revoked")
}

fn polled_stream() -> Value {
    json!({
        "iss": FABRIC, "aud": AUD, "events_requested": [session_revoked()], "delivery_method": "poll",
    })
}

/// The `stream_id` of a poll stream for `session-revoked`.
async fn stream(node: &Node) -> String {
    stream_of(node, &polled_stream()).await
}

async fn stream_of(node: &Node, request: &Value) -> String {
    let answer = node.post(STREAMS, request).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.json()["stream_id"].as_str().expect("stream_id").to_owned()
}

fn workload(name: &str) -> String {
    format!("wimse://trust.example/ns/demo/sa/{name}")
}

/// [`IDP`] reports revoked sessions of a workload.
async fn revoke(node: &Node, name: &str) {
    revoke_with(node, name, "gone").await;
}

fn credential_change() -> String {
    format!("{CAEP}/credential-change")
}

/// [`IDP`] reports a changed credential of a workload.
async fn change_credential(node: &Node, name: &str) {
    let set = json!({
        "iss": IDP, "jti": uuid::Uuid::new_v4().to_string(), "iat": node.now_secs(), "aud": FABRIC,
        "sub_id": {"format": "uri", "uri": workload(name)},
        "events": {credential_change(): {"change_type": "update", "credential_type": "x509"}},
    });
    let answer = node.post("/v1/signals/events", &set).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
}

async fn revoke_with(node: &Node, name: &str, reason: &str) {
    let set = json!({
        "iss": IDP, "jti": uuid::Uuid::new_v4().to_string(), "iat": node.now_secs(), "aud": FABRIC,
        "sub_id": {"format": "uri", "uri": workload(name)}, "txn": format!("txn-{name}"),
        "events": {session_revoked(): {"initiating_entity": "admin", "reason": reason}},
    });
    let answer = node.post("/v1/signals/events", &set).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
}

/// Revokes the sessions of so many workloads in turn.
async fn revoke_many(node: &Node, count: usize) -> Vec<String> {
    let names: Vec<String> = (0..count).map(|at| format!("w{at}")).collect();
    for name in &names {
        revoke(node, name).await;
    }
    names.iter().map(|name| workload(name)).collect()
}

async fn poll(node: &Node, stream_id: &str, request: &Value) -> Response {
    node.post(&format!("/v1/signals/poll/{stream_id}"), request).await
}

async fn poll_over(node: &Node, channel: &Channel, stream_id: &str) -> Response {
    let path = format!("/v1/signals/poll/{stream_id}");
    node.call_over(channel, "POST", &path, &[], json!({"returnImmediately": true}).to_string()).await
}

/// A poll with `returnImmediately`.
async fn poll_now(node: &Node, stream_id: &str, members: &Value) -> Response {
    let answer = poll(node, stream_id, &with(members, &json!({"returnImmediately": true}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer
}

/// `jti` and claims of the SETs in a response, in order.
fn received_sets(answer: &Response) -> Vec<(String, Value)> {
    // A map of serde_json would sort by name.
    let at = answer.body.find('{').expect("an object");
    assert_eq!(&answer.body[at..at + 8], "{\"sets\":", "{}", answer.body);
    let names = answer.json();
    let mut sets: Vec<_> = names["sets"].as_object().expect("sets").iter().collect();
    sets.sort_by_key(|(jti, _)| answer.body.find(&format!("\"{jti}\":")).expect("named"));
    let claims = |set: &Value| {
        let payload = set.as_str().expect("a token").split('.').nth(1).expect("three parts");
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).expect("base64url")).expect("claims")
    };
    sets.into_iter().map(|(jti, set)| (jti.clone(), claims(set))).collect()
}

fn jtis(answer: &Response) -> Vec<String> {
    received_sets(answer).into_iter().map(|(jti, _)| jti).collect()
}

/// Subjects of the SETs in a response.
fn subjects(answer: &Response) -> Vec<String> {
    let uri = |claims: &Value| claims["sub_id"]["uri"].as_str().unwrap_or_default().to_owned();
    received_sets(answer).iter().map(|(_, claims)| uri(claims)).collect()
}

/// Report of `poller.py` on a stream, each of whose SETs it verified.
fn received(node: &Node, stream_id: &str, mode: &str) -> Value {
    let order = json!({
        "base": node.base(), "stream_id": stream_id, "iss": FABRIC, "aud": AUD, "mode": mode, "page": 7,
    });
    let (report, is_good) = python::run("poller.py", &order);
    assert!(is_good, "{report}");
    assert_eq!(report["faults"], json!([]), "{mode}");
    report
}

fn uris(report: &Value) -> Vec<String> {
    let claims = report["received"].as_array().expect("received");
    claims.iter().map(|claims| claims["sub_id"]["uri"].as_str().expect("uri").to_owned()).collect()
}

fn times(report: &Value) -> Vec<u64> {
    let times = report["times"].as_object().expect("times").values();
    times.map(|times| times.as_u64().expect("a number")).collect()
}

/// joserfc verifies; no code of ours reads these SETs.
#[tokio::test]
async fn an_independent_receiver_gets_everything_once_and_in_order() {
    let node = Node::start().await;
    let stream_id = stream(&node).await;
    let revoked = revoke_many(&node, 20).await;
    let report = received(&node, &stream_id, "all");
    assert_eq!(uris(&report), revoked);
    assert!(times(&report).iter().all(|times| *times == 1), "{report}");
    let first = &report["received"][0];
    let events = json!({session_revoked(): {"event_timestamp": NOW_SECS, "initiating_entity": "admin", "reason": "gone"}});
    assert_eq!(
        (&first["events"], &first["txn"], &first["iat"]),
        (&events, &json!("txn-w0"), &json!(NOW_SECS))
    );
    assert!(received_sets(&poll_now(&node, &stream_id, &json!({})).await).is_empty());
}

#[tokio::test]
async fn receiver_that_acknowledges_half_gets_the_rest_again() {
    let node = Node::start().await;
    let stream_id = stream(&node).await;
    let revoked = revoke_many(&node, 20).await;
    let report = received(&node, &stream_id, "half");
    assert_eq!(uris(&report), revoked);
    assert!(times(&report).iter().any(|times| *times > 1), "{report}");
    assert!(received_sets(&poll_now(&node, &stream_id, &json!({})).await).is_empty());
}

#[tokio::test]
async fn unknown_jtis_acknowledge_nothing() {
    let node = Node::start().await;
    let (stream_id, other) = (stream(&node).await, stream(&node).await);
    let revoked = revoke_many(&node, 10).await;
    // The `jti`s of another stream acknowledge nothing.
    let others = jtis(&poll_now(&node, &other, &json!({})).await);
    assert_eq!(others.len(), 10);
    assert_eq!(jtis(&poll_now(&node, &stream_id, &json!({"ack": others})).await).len(), 10);
    let report = received(&node, &stream_id, "wrong");
    assert_eq!(uris(&report), revoked);
    assert!(times(&report).contains(&7), "the first page seven times: {report}");
    assert_eq!(jtis(&poll_now(&node, &other, &json!({})).await), others);
}

#[tokio::test]
async fn rejected_sets_are_retained_as_dead_letters_with_their_error() {
    let node = Node::start().await;
    let stream_id = stream(&node).await;
    let revoked = revoke_many(&node, 20).await;
    let report = received(&node, &stream_id, "errors");
    assert_eq!(uris(&report), revoked);
    assert!(times(&report).iter().all(|times| *times == 1), "{report}");
    let metrics = node.get("/metrics").await.body;
    // Three of each page of seven, and of the last six: every second.
    for line in [
        r#"svc_polled_sets_total{result="returned"} 20"#,
        r#"svc_polled_sets_total{result="acknowledged"} 11"#,
        r#"svc_polled_sets_total{result="refused"} 9"#,
    ] {
        assert!(metrics.lines().any(|shown| shown == line), "{line} in {metrics}");
    }
    let path = format!("/v1/signals/dead-letters?stream_id={stream_id}");
    let letters = node.get(&path).await;
    assert_eq!(letters.status, 200, "{}", letters.body);
    let letters = letters.json();
    let letters = letters.as_array().expect("an array");
    assert_eq!(letters.len(), 9);
    assert!(letters.iter().all(|letter| letter["err"] == "invalid_request"), "{letters:?}");
    assert!(letters.iter().all(|letter| letter["description"] == "not understood"), "{letters:?}");
}

#[tokio::test]
async fn two_independent_receivers_at_once_lose_nothing() {
    let node = Node::start().await;
    let stream_id = stream(&node).await;
    let revoked = revoke_many(&node, 30).await;
    let report = received(&node, &stream_id, "two");
    let heard: BTreeSet<String> = uris(&report).into_iter().collect();
    assert_eq!(heard, revoked.into_iter().collect());
    assert!(received_sets(&poll_now(&node, &stream_id, &json!({})).await).is_empty());
}

#[tokio::test]
async fn unacknowledged_sets_are_repeated_byte_for_byte() {
    let node = Node::start().await;
    let stream_id = stream(&node).await;
    let revoked = revoke_many(&node, 120).await;
    let first = poll_now(&node, &stream_id, &json!({})).await;
    assert_eq!((subjects(&first), &first.json()["moreAvailable"]), (revoked[..100].to_vec(), &json!(true)));
    assert_eq!(first.header("cache-control"), Some("no-store"));
    for _ in 0..20 {
        assert_eq!(poll_now(&node, &stream_id, &json!({})).await.body, first.body);
    }
    // Time alone changes nothing.
    node.advance_secs(3600);
    assert_eq!(poll_now(&node, &stream_id, &json!({})).await.body, first.body);
    let few = poll_now(&node, &stream_id, &json!({"maxEvents": 2})).await;
    assert_eq!((subjects(&few), &few.json()["moreAvailable"]), (revoked[..2].to_vec(), &json!(true)));
    let rest = poll_now(&node, &stream_id, &json!({"ack": jtis(&first)})).await;
    assert_eq!((subjects(&rest), &rest.json()["moreAvailable"]), (revoked[100..].to_vec(), &json!(false)));
}

#[tokio::test]
async fn a_poll_waits_until_a_signal_comes() {
    let node = Node::start().await;
    let stream_id = stream(&node).await;
    let asked = json!({});
    let mut waiting = Box::pin(poll(&node, &stream_id, &asked));
    // The poll waits before anything is sent.
    loop {
        tokio::select! {
            early = &mut waiting => panic!("answered without an event: {}", early.body),
            page = node.get("/metrics") => {
                assert_eq!(page.status, 200, "{}", page.body);
                if page.body.contains("svc_polls_waiting 1\n") {
                    break;
                }
            }
        }
    }
    let (answer, ()) = tokio::join!(waiting, revoke(&node, "late"));
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(subjects(&answer), [workload("late")]);
    assert!(node.get("/metrics").await.body.contains("svc_polls_waiting 0\n"));
}

#[tokio::test]
async fn a_poll_that_only_acknowledges_waits_for_nothing() {
    let node = Node::start().await;
    let stream_id = stream(&node).await;
    revoke_many(&node, 2).await;
    let first = poll_now(&node, &stream_id, &json!({})).await;
    let answer = poll(&node, &stream_id, &json!({"maxEvents": 0, "ack": jtis(&first)})).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, r#"{"sets":{}}"#));
    assert!(received_sets(&poll_now(&node, &stream_id, &json!({})).await).is_empty());
}

#[tokio::test]
async fn a_restart_loses_nothing_and_changes_no_name() {
    let mut node = Node::start().await;
    let stream_id = stream(&node).await;
    let revoked = revoke_many(&node, 6).await;
    let first = poll_now(&node, &stream_id, &json!({})).await;
    let names = jtis(&first);
    let left = poll_now(&node, &stream_id, &json!({"ack": [names[0], names[3]]})).await;
    node.restart().await;
    let again = poll_now(&node, &stream_id, &json!({})).await;
    assert_eq!(again.body, left.body, "the key is the same, and so is the text");
    assert_eq!(subjects(&again), [&revoked[1..3], &revoked[4..]].concat());
    revoke(&node, "after").await;
    let rest = poll_now(&node, &stream_id, &json!({"ack": jtis(&again)})).await;
    assert_eq!(subjects(&rest), [workload("after")]);
}

#[tokio::test]
async fn a_stream_answers_only_its_creator_and_operators() {
    let more_config = "[transmitter]\nbase_url = \"https://fabric.example:8694\"\n".to_owned();
    let node = Node::start_with(Setup { is_secure: true, more_config, ..Setup::default() }).await;
    let stream_id = stream(&node).await;
    let unknown = poll_over(&node, &node.certified("gateway"), &"0".repeat(32)).await;
    unknown.is_refused(404, "not_found", "there is no stream with this stream_id");
    for (name, status) in [("gateway", 200), ("second", 404), ("chief", 200), ("stranger", 403)] {
        let answer = poll_over(&node, &node.certified(name), &stream_id).await;
        assert_eq!(answer.status, status, "{name}: {}", answer.body);
        if status == 404 {
            assert_eq!(answer.refusal(), unknown.refusal(), "no word that it is there");
        }
    }
    // A blocked caller receives no events.
    node.disable_account("spiffe://trust.example/gateway").await;
    let again = poll_over(&node, &node.certified("gateway"), &stream_id).await;
    again.is_refused(403, "access_denied", "the caller is blocked");
}

#[tokio::test]
async fn a_stream_that_is_pushed_is_not_polled() {
    let node = Node::start().await;
    let push = json!({"delivery_method": "push", "endpoint_url": "https://receiver.example/events"});
    let stream_id = stream_of(&node, &with(&polled_stream(), &push)).await;
    let answer = poll(&node, &stream_id, &json!({})).await;
    answer.is_refused(400, "invalid_request", "stream_id: the stream is delivered by push");
}

#[tokio::test]
async fn a_bad_poll_is_refused_and_its_member_named() {
    let node = Node::start().await;
    let stream_id = stream(&node).await;
    let many: Vec<String> = (0..=1000).map(|at| at.to_string()).collect();
    for (members, description) in [
        (json!({"maxEvents": -1}), "maxEvents: must be a whole number of 0 or more"),
        (json!({"returnImmediately": "yes"}), "returnImmediately: must be true or false"),
        (json!({"ack": many}), "ack: must be an array of at most 1000 strings"),
        (json!({"ack": [1]}), "ack: must be an array of at most 1000 strings"),
        (json!({"setErrs": []}), "setErrs: must be an object of at most 1000 fields"),
        (json!({"setErrs": {"a": {}}}), "setErrs.err: must be 1 to 64 printable ASCII characters"),
        (json!({"setErrs": {"a": {"err": "x", "description": 1}}}), "setErrs.description: must be a string"),
        (json!([]), "body: must be an object"),
    ] {
        let answer = poll(&node, &stream_id, &members).await;
        answer.is_refused(400, "invalid_request", description);
    }
    let path = format!("/v1/signals/poll/{stream_id}");
    for (body, description) in [
        ("", "not acceptable JSON"),
        ("{", "not acceptable JSON"),
        (r#"{"maxEvents":1,"maxEvents":2}"#, "not acceptable JSON"),
        ("{} {}", "not acceptable JSON"),
    ] {
        node.call("POST", &path, &[], body).await.is_refused(400, "invalid_request", description);
    }
    let form = [("content-type", "application/x-www-form-urlencoded")];
    node.call("POST", &path, &form, "maxEvents=1").await.is_refused(415, "invalid_request", "Content-Type");
    // RFC 8936 may get fields that are unknown here.
    assert_eq!(poll_now(&node, &stream_id, &json!({"unknown": {"a": 1}})).await.status, 200);
    let largest = format!(r#"{{"returnImmediately":true{}}}"#, " ".repeat(1024 * 1024 - 26));
    assert_eq!(largest.len(), 1024 * 1024);
    assert_eq!(node.call("POST", &path, &[], largest.clone()).await.status, 200);
    let larger = node.call("POST", &path, &[], format!("{largest} ")).await;
    larger.is_refused(413, "invalid_request", "the body is larger than 1024 KiB");
    for unknown in
        ["0".repeat(32), "x".to_owned(), "%00".to_owned(), "%ff".to_owned(), stream_id.to_uppercase()]
    {
        let answer = poll(&node, &unknown, &json!({"returnImmediately": true})).await;
        answer.is_refused(404, "not_found", "there is no stream with this stream_id");
    }
}

#[tokio::test]
async fn a_stream_does_not_get_a_subject_that_was_removed_from_it() {
    let node = Node::start().await;
    let stream_id = stream(&node).await;
    let subject = json!({"stream_id": stream_id, "subject": {"format": "uri", "uri": workload("quiet")}});
    let removed = node.post("/v1/signals/subjects:remove", &subject).await;
    assert_eq!(removed.status, 204, "{}", removed.body);
    for name in ["loud", "quiet", "other"] {
        revoke(&node, name).await;
    }
    let answer = poll_now(&node, &stream_id, &json!({})).await;
    assert_eq!(subjects(&answer), [workload("loud"), workload("other")]);
    poll_now(&node, &stream_id, &json!({"ack": jtis(&answer)})).await;
    let added = node.post("/v1/signals/subjects:add", &subject).await;
    assert_eq!(added.status, 200, "{}", added.body);
    revoke_with(&node, "quiet", "again").await;
    let answer = poll_now(&node, &stream_id, &json!({})).await;
    assert_eq!(subjects(&answer), [workload("quiet")], "once: from where it was added on");
}

#[tokio::test]
async fn readded_subject_delivers_retained_and_new_events() {
    let node = Node::start().await;
    let stream_id = stream(&node).await;
    revoke(&node, "first").await;
    change_credential(&node, "before").await;
    let more = json!({"stream_id": stream_id, "events_requested": [session_revoked(), credential_change()]});
    let headers = [("content-type", "application/json")];
    let changed = node.call("PATCH", STREAMS, &headers, more.to_string()).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    change_credential(&node, "behind").await;
    revoke(&node, "last").await;
    let answer = poll_now(&node, &stream_id, &json!({})).await;
    assert_eq!(subjects(&answer), ["first", "behind", "last"].map(workload));
}

#[tokio::test]
async fn verification_arrives_with_its_state_on_any_stream() {
    let node = Node::start().await;
    let (stream_id, other) = (stream(&node).await, stream(&node).await);
    let request = json!({"stream_id": stream_id, "state": "VGhpcyBpcyBhbiBleGFtcGxlIHN0YXRlIHZhbHVlLgo="});
    let answer = node.post("/v1/signals/verification", &request).await;
    assert_eq!(answer.status, 204, "{}", answer.body);
    let arrived = received_sets(&poll_now(&node, &stream_id, &json!({})).await);
    let [(_, claims)] = arrived.as_slice() else { panic!("{arrived:?}") };
    assert_eq!(claims["events"], json!({VERIFICATION: {"state": request["state"]}}));
    assert_eq!(claims["sub_id"], json!({"format": "opaque", "id": stream_id}));
    assert!(received_sets(&poll_now(&node, &other, &json!({})).await).is_empty(), "another stream has it");
}

#[tokio::test]
async fn paused_stream_retains_events_and_a_disabled_one_does_not() {
    let node = Node::start().await;
    let stream_id = stream(&node).await;
    let set_status = async |status: &str| {
        let request = json!({"stream_id": stream_id, "status": status});
        let answer = node.post("/v1/signals/status", &request).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    };
    revoke_many(&node, 2).await;
    let before = poll_now(&node, &stream_id, &json!({})).await;
    set_status("paused").await;
    revoke(&node, "held").await;
    let answer = poll_now(&node, &stream_id, &json!({"ack": [jtis(&before)[0]]})).await;
    assert_eq!(answer.body, r#"{"sets":{}}"#);
    set_status("enabled").await;
    let held = poll_now(&node, &stream_id, &json!({})).await;
    assert_eq!(
        subjects(&held),
        [workload("w1"), workload("held")],
        "acknowledgements during the pause count"
    );
    set_status("disabled").await;
    revoke(&node, "missed").await;
    assert_eq!(poll_now(&node, &stream_id, &json!({})).await.body, r#"{"sets":{}}"#);
    set_status("enabled").await;
    revoke(&node, "fresh").await;
    assert_eq!(subjects(&poll_now(&node, &stream_id, &json!({})).await), [workload("fresh")]);
}

/// Attack: an issuer with authority over its own subjects only makes the broker report to all receivers that
/// another account is compromised, by a telephone number or by a second name beside its own.
#[tokio::test]
async fn subject_beyond_the_issuers_authority_is_not_relayed() {
    let node = Node::start().await;
    let stream_id = stream(&node).await;
    let own = json!({"format": "opaque", "id": "7"});
    let of_idp = json!({"format": "iss_sub", "iss": IDP, "sub": "ceo"});
    let beside = |member: &str, other: &Value| json!({"format": "complex", "user": own, member: other});
    let phone = json!({"format": "phone_number", "phone_number": "+12065550100"});
    let aliases = json!({"format": "aliases", "identifiers": [own, phone]});
    let send = async |sub_id: &Value| {
        let set = json!({
            "iss": OTHER_IDP, "jti": uuid::Uuid::new_v4().to_string(), "iat": node.now_secs(), "aud": FABRIC,
            "sub_id": sub_id, "events": {session_revoked(): {}},
        });
        node.post("/v1/signals/events", &set).await
    };
    for sub_id in [phone.clone(), beside("device", &phone), beside("tenant", &phone), aliases] {
        assert_eq!(send(&sub_id).await.status, 202, "{sub_id}");
    }
    for member in ["tenant", "org_unit", "group", "session", "device"] {
        let text = format!("sub_id.{member}.iss: the issuer has no authority");
        send(&beside(member, &of_idp)).await.is_refused(403, "access_denied", &text);
    }
    // Claims about its own subjects are not restricted.
    assert_eq!(send(&beside("tenant", &own)).await.status, 202);
    let received_sets = received_sets(&poll_now(&node, &stream_id, &json!({})).await);
    let told: Vec<&Value> = received_sets.iter().map(|(_, claims)| &claims["sub_id"]).collect();
    let named = json!({"format": "iss_sub", "iss": OTHER_IDP, "sub": "7"});
    assert_eq!(told, [&json!({"format": "complex", "user": named, "tenant": named})]);
}

/// In the flat shape `iss` is any name for the transmitter. The response and every SET carry ours.
#[tokio::test]
async fn flat_stream_of_any_issuer_carries_ours() {
    let node = Node::start().await;
    let request = with(&polled_stream(), &json!({"iss": "the unit next door"}));
    let answer = node.post(STREAMS, &request).await;
    assert_eq!((answer.status, &answer.json()["iss"]), (201, &json!(FABRIC)), "{}", answer.body);
    let stream_id = answer.json()["stream_id"].as_str().expect("stream_id").to_owned();
    revoke(&node, "reporter").await;
    let received_sets = received_sets(&poll_now(&node, &stream_id, &json!({})).await);
    assert_eq!(received_sets.len(), 1);
    assert_eq!(received_sets[0].1["iss"], FABRIC);
}

/// Regression: an operator could poll a stream whose owner is blocked or no longer a caller.
#[tokio::test]
async fn stream_of_an_owner_that_may_not_gives_nothing() {
    let mut node = Node::start_with(Setup {
        more_config: "[transmitter]\nbase_url = \"https://fabric.example:8694\"\n".to_owned(),
        is_secure: true,
        ..Setup::default()
    })
    .await;
    let stream_id = stream(&node).await;
    revoke(&node, "reporter").await;
    let (path, media) = (format!("{STREAMS}?stream_id={stream_id}"), [("content-type", "application/json")]);
    let shown = async |node: &Node| {
        let answer = node.call_over(&node.certified("chief"), "GET", &path, &[], "").await.json();
        (answer["status"].clone(), answer["reason"].clone())
    };
    let polled = async |node: &Node| {
        let answer = poll_over(node, &node.certified("chief"), &stream_id).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["sets"].as_object().expect("sets").len()
    };
    assert_eq!((shown(&node).await, polled(&node).await), ((json!("enabled"), Value::Null), 1));

    node.disable_account("spiffe://trust.example/gateway").await;
    let blocked = (json!("paused"), json!("the owner of the stream is blocked"));
    assert_eq!((shown(&node).await, polled(&node).await), (blocked.clone(), 0));
    // A status that was read may be sent back.
    let same = json!({"stream_id": stream_id, "status": blocked.0, "reason": blocked.1, "description": "d"});
    let answer = node.call_over(&node.certified("chief"), "PATCH", STREAMS, &media, same.to_string()).await;
    assert_eq!((answer.status, &answer.json()["reason"]), (200, &blocked.1), "{}", answer.body);
    let blocks = node.call_over(&node.certified("chief"), "GET", "/v1/blocks", &[], "").await.json();
    let block = format!("/v1/blocks/{}", blocks[0]["id"].as_str().expect("id"));
    assert_eq!(node.call_over(&node.certified("chief"), "DELETE", &block, &[], "").await.status, 204);
    assert_eq!((shown(&node).await, polled(&node).await), ((json!("enabled"), Value::Null), 1));

    let all = [Capability::ClusterAdmin, Capability::StreamsManage, Capability::StreamsRead];
    let chief = "spiffe://trust.example/chief".parse().expect("an id");
    let callers = Callers::new(BTreeMap::from([(chief, BTreeSet::from(all))]));
    node.restart_with(|config| config.callers = callers).await;
    let gone = (json!("paused"), json!("the owner of the stream is not in callers with streams.manage"));
    assert_eq!((shown(&node).await, polled(&node).await), (gone, 0));
}
