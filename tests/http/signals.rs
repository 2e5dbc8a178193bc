//! Signals over HTTP: permitted senders, validation, and answers.

use futures::stream::{self, StreamExt as _};
use serde_json::{Value, json};
use wiremock::ResponseTemplate;

use crate::support::python::Transmitter;
use crate::support::{
    BAD_SUBJECT, Channel, FABRIC, IDP, JWT, NOW_SECS, Node, OTHER_IDP, REPORTER, Response, Setup, TOOL,
    credential, encode, with,
};

const EVENTS: &str = "/v1/signals/events";
const CAEP: &str = "https://schemas.openid.net/secevent/caep/event-type";
const RISC: &str = "https://schemas.openid.net/secevent/risc/event-type";
const DAY_SECS: i64 = 24 * 3600;

fn revoked() -> Value {
    json!({(format!("{CAEP}/session-revoked")): {"initiating_entity": "admin", "reason": "credential leaked"}})
}

fn account(what: &str, claims: &Value) -> Value {
    json!({(format!("{RISC}/account-{what}")): claims})
}

fn workload(id: &str) -> Value {
    json!({"format": "uri", "uri": id})
}

/// A SET of [`IDP`] about a subject.
fn set(node: &Node, sub_id: &Value, events: &Value) -> Value {
    json!({
        "iss": IDP, "jti": uuid::Uuid::new_v4().to_string(), "iat": node.now_secs(), "aud": FABRIC,
        "sub_id": sub_id, "events": events, "txn": "t-1",
    })
}

/// A valid SET about a workload of no other test.
fn valid_set(node: &Node) -> Value {
    set(node, &workload("wimse://trust.example/ns/demo/sa/nobody"), &revoked())
}

/// Signed by [`IDP`].
fn signed(node: &Node, set: &Value) -> String {
    node.issuers.idp.sign_as(&header(node), set)
}

fn header(node: &Node) -> Value {
    with(&node.issuers.idp.header(), &json!({"typ": "secevent+jwt"}))
}

async fn send(node: &Node, set: &Value) -> Response {
    node.post(EVENTS, set).await
}

async fn send_over(node: &Node, channel: &Channel, set: &Value) -> Response {
    node.call_over(channel, "POST", EVENTS, &[("content-type", "application/json")], set.to_string()).await
}

async fn send_signed(node: &Node, token: &str) -> Response {
    node.call("POST", EVENTS, &[("content-type", "application/secevent+jwt")], token).await
}

#[track_caller]
fn assert_status(answer: &Response, status: &str) {
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (202, json!({ "status": status }).to_string().as_str())
    );
}

/// RFC 8935 §2.2.
#[track_caller]
fn assert_empty_202(answer: &Response) {
    assert_eq!((answer.status, answer.body.as_str()), (202, ""));
    assert!(answer.header("content-type").is_none());
}

/// RFC 8935 §2.3. `description` is a substring.
#[track_caller]
fn assert_err(answer: &Response, err: &str, description: &str) {
    assert_eq!(answer.status, 400, "{}", answer.body);
    let body = answer.json();
    assert_eq!(body["err"], err, "{}", answer.body);
    assert!(body["description"].as_str().is_some_and(|text| text.contains(description)), "{}", answer.body);
    assert_eq!(body.as_object().map(serde_json::Map::len), Some(2), "{}", answer.body);
}

async fn secure() -> Node {
    Node::start_with(Setup { is_secure: true, ..Setup::default() }).await
}

/// A credential of `demo:<name>`, issued now, with a lifetime of an hour.
fn service_account(node: &Node, name: &str) -> Value {
    let times = json!({"iat": node.now_secs(), "nbf": node.now_secs(), "exp": node.now_secs() + 3600});
    let claims = with(&node.issuers.service_account("demo", name), &times);
    credential(&node.issuers.es256.sign(&claims), JWT)
}

async fn is_revoked(node: &Node, request: &Value) {
    node.exchange(request).await.is_refused(400, "invalid_request", BAD_SUBJECT);
}

#[tokio::test]
async fn a_signal_is_accepted_in_either_form_and_counts_once() {
    let node = Node::start().await;
    let first = valid_set(&node);
    let answer = send(&node, &first).await;
    assert_status(&answer, "accepted");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_status(&send(&node, &first).await, "duplicate");
    assert_empty_202(&send_signed(&node, &signed(&node, &first)).await);
    node.granted(&service_account(&node, "reporter")).await;
    let second = valid_set(&node);
    assert_empty_202(&send_signed(&node, &signed(&node, &second)).await);
    assert_empty_202(&send_signed(&node, &signed(&node, &second)).await);
    assert_status(&send(&node, &second).await, "duplicate");

    let metrics = node.get("/metrics").await.body;
    for line in [
        r#"svc_signals_total{result="accepted"} 2"#,
        r#"svc_signals_total{result="duplicate"} 4"#,
        "svc_revocations 1",
        "svc_blocks 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }
}

/// Regression: after an attack, or a restart of an issuer that counts its `jti` from 1, the second SET was
/// answered 202 and revoked nothing.
#[tokio::test]
async fn jti_reused_for_other_claims_is_refused() {
    let node = Node::start().await;
    let first = valid_set(&node);
    assert_status(&send(&node, &first).await, "accepted");
    let reporter = service_account(&node, "reporter");
    let event = json!({(format!("{CAEP}/session-revoked")): {"reason": "another"}});
    for changes in [
        json!({"sub_id": workload(REPORTER)}),
        json!({ "events": event }),
        json!({"txn": "t-2"}),
        json!({"iat": node.now_secs() - 1}),
        json!({"unknown_claim": 1}),
    ] {
        let other = with(&first, &changes);
        send(&node, &other).await.is_refused(409, "invalid_request", "jti: ");
        assert_err(&send_signed(&node, &signed(&node, &other)).await, "invalid_request", "jti: ");
    }
    node.granted(&reporter).await;
    let metrics = node.get("/metrics").await.body;
    assert!(metrics.contains(r#"svc_signals_total{result="conflict"} 10"#), "{metrics}");
    // The same claims in another order, with other white space and escapes, are the same content.
    let members: Vec<String> = first
        .as_object()
        .expect("claims")
        .iter()
        .rev()
        .map(|(name, value)| format!(" {} :  {}", json!(name).to_string().replace("jti", r"\u006ati"), value))
        .collect();
    let respelled = format!("{{{}}}", members.join(" ,"));
    let answer = node.call("POST", EVENTS, &[("content-type", "application/json")], respelled).await;
    assert_status(&answer, "duplicate");
}

/// Regression: a SET under a known `jti` was answered 202 before it was validated.
#[tokio::test]
async fn token_under_a_known_jti_is_validated_first() {
    let node = Node::start().await;
    let first = valid_set(&node);
    assert_status(&send(&node, &first).await, "accepted");
    for (changes, err, text) in [
        (json!({"sub_id": null}), "invalid_request", "sub_id: "),
        (json!({"events": {}}), "invalid_request", "events: "),
        (json!({"iat": 0}), "invalid_request", "iat: "),
        (json!({"iat": NOW_SECS + 9_999}), "invalid_request", "iat: "),
        (json!({"aud": TOOL}), "invalid_audience", "aud: "),
    ] {
        let bad = with(&first, &changes);
        send(&node, &bad).await.is_refused(400, "invalid_request", text);
        assert_err(&send_signed(&node, &signed(&node, &bad)).await, err, text);
    }
    // A duplicate is validated like the first SET: a day later it is too old.
    node.advance_secs(25 * 3600);
    send(&node, &first).await.is_refused(400, "invalid_request", "iat: ");
}

#[tokio::test]
async fn duplicate_is_recognised_after_a_policy_change() {
    let node = Node::start().await;
    let said = valid_set(&node);
    assert_status(&send(&node, &said).await, "accepted");
    replace_rule(&node, "package svc.signals\n\ndecision := {\"allow\": false, \"reason\": \"no\"}\n").await;
    assert_status(&send(&node, &said).await, "duplicate");
    assert_empty_202(&send_signed(&node, &signed(&node, &said)).await);
    // A sender without the issuer's key does not learn that the `jti` is known.
    let forged = node.issuers.other_idp.sign_as(&header(&node), &said);
    assert_err(&send_signed(&node, &forged).await, "authentication_failed", "signature");
    send(&node, &valid_set(&node)).await.is_refused(403, "access_denied", "policy denied");
    assert_err(
        &send_signed(&node, &signed(&node, &valid_set(&node))).await,
        "access_denied",
        "policy denied",
    );
}

#[tokio::test]
async fn blocked_caller_and_revoked_key_send_no_signal() {
    let node = secure().await;
    let (gateway, second) = (node.certified("gateway"), node.certified("second"));
    let blocked = with(
        &set(
            &node,
            &workload(&format!("spiffe://{}/second", crate::support::TRUST_DOMAIN)),
            &account("disabled", &json!({})),
        ),
        &json!({}),
    );
    let theirs = || with(&valid_set(&node), &json!({"iss": OTHER_IDP}));
    assert_status(&send_over(&node, &second, &theirs()).await, "accepted");
    assert_status(&send_over(&node, &gateway, &blocked).await, "accepted");
    send_over(&node, &second, &theirs()).await.is_refused(403, "access_denied", "the caller is blocked");
    assert_status(&send_over(&node, &gateway, &valid_set(&node)).await, "accepted");

    let node = Node::start().await;
    let token = signed(&node, &valid_set(&node));
    let kid = header(&node)["kid"].clone();
    let revoked = json!({"issuer": IDP, "key": kid, "reason": "stolen"});
    let answer = node.post("/v1/revocations", &revoked).await;
    assert!(matches!(answer.status, 200..=202), "{}", answer.body);
    assert_err(&send_signed(&node, &token).await, "invalid_key", "");
    let other =
        node.issuers.other_idp.sign_as(&header(&node), &with(&valid_set(&node), &json!({"iss": OTHER_IDP})));
    assert_empty_202(&send_signed(&node, &other).await);
}

/// A certificate stays valid: its requests are refused until the block is lifted.
#[tokio::test]
async fn blocked_caller_is_issued_nothing_by_its_certificate() {
    let node = secure().await;
    let (gateway, second) = (node.certified("gateway"), node.certified("second"));
    let exchange = service_account(&node, "reporter");
    let agent = json!({"agent_name": "planner", "platform": "mcp", "capabilities": ["db.read"]});
    let ask = async |path: &str, request: &Value| {
        let json = [("content-type", "application/json")];
        node.call_over(&second, "POST", path, &json, request.to_string()).await
    };
    let sub = workload(&format!("spiffe://{}/second", crate::support::TRUST_DOMAIN));
    let said = |kind: &str, at: i64| {
        let happened = json!({"event_timestamp": node.now_secs() + at});
        set(&node, &sub, &account(kind, &happened))
    };
    for path in ["/v1/exchange/token", "/v1/identity/agent"] {
        let request = if path.ends_with("token") { &exchange } else { &agent };
        assert_eq!(ask(path, request).await.status, 200, "{path}");
    }
    assert_status(&send_over(&node, &gateway, &said("disabled", -2)).await, "accepted");
    for path in ["/v1/exchange/token", "/v1/identity/agent"] {
        let request = if path.ends_with("token") { &exchange } else { &agent };
        ask(path, request).await.is_refused(403, "access_denied", "the caller is blocked");
    }
    assert_status(&send_over(&node, &gateway, &said("enabled", -1)).await, "accepted");
    for path in ["/v1/exchange/token", "/v1/identity/agent"] {
        let request = if path.ends_with("token") { &exchange } else { &agent };
        assert_eq!(ask(path, request).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn unknown_key_is_temporary_while_its_source_is_paused() {
    let node = Node::start().await;
    assert_empty_202(&send_signed(&node, &signed(&node, &valid_set(&node))).await);
    let fresh = with(&header(&node), &json!({"kid": "rotated"}));
    let token = node.issuers.idp.sign_as(&fresh, &valid_set(&node));
    node.advance_secs(10);
    send_signed(&node, &token).await.is_refused(503, "server_error", "keys of the issuer");
    node.advance_secs(30);
    assert_err(&send_signed(&node, &token).await, "invalid_key", "key");
}

#[tokio::test]
async fn one_of_many_concurrent_duplicates_is_accepted() {
    let node = Node::start().await;
    let said = valid_set(&node);
    let answers = futures::future::join_all((0..32).map(|_| send(&node, &said))).await;
    let accepted = answers.iter().filter(|answer| answer.json()["status"] == "accepted").count();
    assert_eq!(accepted, 1);
    assert!(answers.iter().all(|answer| answer.status == 202));
}

#[tokio::test]
async fn a_jti_counts_once_for_each_issuer_also_after_a_restart() {
    let mut node = Node::start().await;
    let first = valid_set(&node);
    assert_status(&send(&node, &first).await, "accepted");
    let other = with(&first, &json!({"iss": OTHER_IDP}));
    assert_status(&send(&node, &other).await, "accepted");
    node.restart().await;
    for set in [&first, &other] {
        assert_status(&send(&node, set).await, "duplicate");
    }
}

#[tokio::test]
async fn missing_or_mistyped_field_is_named() {
    let node = Node::start().await;
    let set = valid_set(&node);
    let cases = [
        ("iss", json!(1)),
        ("iss", json!("")),
        ("jti", json!(1)),
        ("jti", json!("")),
        ("jti", json!("j".repeat(257))),
        ("iat", json!("1800000000")),
        ("iat", json!(-1)),
        ("iat", json!(1.5)),
        ("aud", json!(1)),
        ("aud", json!("")),
        ("txn", json!(1)),
        ("sub_id", json!("a@b.example")),
        ("sub_id", json!([])),
        ("events", json!([])),
        ("events", json!("session-revoked")),
        ("events", json!({})),
        ("events", json!({(format!("{CAEP}/session-revoked")): "yes"})),
        ("events", json!({"session-revoked": {}})),
        ("events", json!({(format!("{CAEP}/session-revoked")): null})),
    ];
    let missing = ["iss", "jti", "iat", "aud", "sub_id", "events"].map(|name| (name, Value::Null));
    for (name, value) in missing.into_iter().chain(cases) {
        let bad = with(&set, &json!({ name: value }));
        send(&node, &bad).await.is_refused(400, "invalid_request", name);
        assert_err(&send_signed(&node, &signed(&node, &bad)).await, "invalid_request", name);
    }
    for (sub_id, name) in [
        (json!({"uri": REPORTER}), "sub_id.format"),
        (json!({"format": "uri"}), "sub_id.uri"),
        (json!({"format": "uri", "uri": "https://a.example"}), "sub_id.uri"),
        (json!({"format": "uri", "uri": 1}), "sub_id.uri"),
        (json!({"format": "spiffe_id", "spiffe_id": REPORTER}), "sub_id.spiffe_id"),
        (json!({"format": "email"}), "sub_id.email"),
        (json!({"format": "iss_sub", "iss": IDP}), "sub_id.sub"),
        (json!({"format": "opaque", "id": 7}), "sub_id.id"),
        (json!({"format": "jwt_id", "jti": "t"}), "sub_id.iss"),
        (json!({"format": "complex"}), "sub_id"),
        (json!({"format": "complex", "user": "u"}), "sub_id.user"),
        (json!({"format": "aliases", "identifiers": []}), "sub_id.identifiers"),
        (json!({"format": "unheard-of", "id": "7"}), "sub_id.format"),
        (json!({"format": "Email", "email": "a@b.example"}), "sub_id.format"),
        // A subject of ours is a workload.
        (json!({"format": "iss_sub", "iss": FABRIC, "sub": "reporter"}), "sub_id.sub"),
    ] {
        let bad = with(&set, &json!({"sub_id": sub_id}));
        send(&node, &bad).await.is_refused(400, "invalid_request", &format!("{name}: "));
        assert_err(&send_signed(&node, &signed(&node, &bad)).await, "invalid_request", &format!("{name}: "));
    }
    // Nothing of it was recorded.
    assert_status(&send(&node, &set).await, "accepted");
}

#[tokio::test]
async fn an_event_that_could_not_be_passed_on_is_refused_by_name() {
    let node = Node::start().await;
    let reporter = service_account(&node, "reporter");
    let reason = |bytes: usize| json!({ "reason": "x".repeat(bytes - r#"{"reason":""}"#.len()) });
    let event = |uri: &str, bytes: usize| json!({ uri: reason(bytes) });
    let revoked = format!("{CAEP}/session-revoked");
    let rule = "must be at most 5120 bytes as JSON, with sub_id, txn and svc_via, to be relayed";

    let said = set(&node, &workload(REPORTER), &event(&revoked, 5120));
    let text = format!("events.session-revoked: {rule}");
    send(&node, &said).await.is_refused(400, "invalid_request", &text);
    assert_err(&send_signed(&node, &signed(&node, &said)).await, "invalid_request", &text);
    // One such event is enough, and no other event of the SET takes effect.
    let purged = format!("{RISC}/account-purged");
    let both = json!({ (revoked.as_str()): {}, (purged.as_str()): reason(5120) });
    let text = format!("events.account-purged: {rule}");
    send(&node, &with(&said, &json!({ "events": both }))).await.is_refused(400, "invalid_request", &text);
    let part = |sub: &str| json!({"format": "iss_sub", "iss": IDP, "sub": sub});
    let parts =
        [part(&"a".repeat(2048)), part(&"b".repeat(2048)), part(&"c".repeat(2048)), part(&"d".repeat(2048))];
    let large =
        json!({ "sub_id": {"format": "aliases", "identifiers": parts}, "events": event(&revoked, 20) });
    let rule = "sub_id: must be at most 5120 bytes as JSON, with txn and svc_via, to be relayed";
    send(&node, &with(&said, &large)).await.is_refused(400, "invalid_request", rule);
    node.granted(&reporter).await;

    // A signal that was relayed before is larger at each hop.
    let via = json!({"svc_via": ["https://first.example"], "events": event(&revoked, 5120)});
    let relayed = with(&said, &via);
    assert_status(&send(&node, &with(&relayed, &json!({"jti": "relayed"}))).await, "accepted");
    is_revoked(&node, &reporter).await;
    node.advance_secs(8);
    let reporter = service_account(&node, "reporter");
    node.granted(&reporter).await;

    // An event without a receiver may be larger. A rejected SET is not recorded.
    let own = set(&node, &workload(REPORTER), &event("https://example.com/of-our-own", 100_000));
    assert_status(&send(&node, &own).await, "ignored");
    let full = with(&said, &json!({ "events": event(&revoked, 4096) }));
    assert_status(&send(&node, &full).await, "accepted");
    is_revoked(&node, &reporter).await;
    let metrics = node.get("/metrics").await.body;
    assert!(metrics.contains(r#"svc_signals_total{result="invalid"} 4"#), "{metrics}");
}

#[tokio::test]
async fn a_body_that_is_none_of_the_two_forms_is_refused() {
    let node = Node::start().await;
    let token = signed(&node, &valid_set(&node));
    for (body, text) in [
        ("", "body is not acceptable JSON"),
        ("[]", "must be an object"),
        // A signed SET inside JSON is not accepted.
        (&json!(token).to_string(), "must be an object"),
        (r#"{"iss": "a", "iss": "b"}"#, "duplicate"),
        (&format!("{}{}{}", r#"{"iss":"#, "[".repeat(40), "]".repeat(40)), "JSON"),
    ] {
        node.call("POST", EVENTS, &[], body).await.is_refused(400, "invalid_request", text);
    }
    let wrapped = json!({"set": token});
    send(&node, &wrapped).await.is_refused(400, "invalid_request", "iss");
    for media in ["application/x-www-form-urlencoded", "application/jwt", "text/plain", "application/jose"] {
        let answer = node.call("POST", EVENTS, &[("content-type", media)], token.clone()).await;
        answer.is_refused(
            415,
            "invalid_request",
            "must be application/json or application/secevent+jwt here",
        );
    }
    for body in [
        String::new(),
        valid_set(&node).to_string(),
        "a.b".to_owned(),
        format!("{token}\n"),
        "a".repeat(20_000),
    ] {
        assert_err(&send_signed(&node, &body).await, "invalid_request", "token");
    }
    let large = vec![b'a'; 300_000];
    let answer = node.call("POST", EVENTS, &[("content-type", "application/secevent+jwt")], large).await;
    answer.is_refused(413, "invalid_request", "");
    assert_empty_202(&send_signed(&node, &token).await);
}

#[tokio::test]
async fn future_old_or_misdirected_signal_is_refused() {
    let node = Node::start().await;
    let at = |iat: i64| with(&valid_set(&node), &json!({ "iat": iat }));
    for iat in [NOW_SECS + 60, NOW_SECS - DAY_SECS] {
        assert_status(&send(&node, &at(iat)).await, "accepted");
        assert_empty_202(&send_signed(&node, &signed(&node, &at(iat))).await);
    }
    for (iat, text) in [
        (NOW_SECS + 61, "iat: must be at most 60 s ahead"),
        (NOW_SECS * 1000, "iat: "),
        (NOW_SECS - DAY_SECS - 1, "iat: must be at most 24 h old"),
        (NOW_SECS - 2 * DAY_SECS, "iat: must be at most 24 h old"),
        (0, "iat: must be at most 24 h old"),
    ] {
        send(&node, &at(iat)).await.is_refused(400, "invalid_request", text);
        assert_err(&send_signed(&node, &signed(&node, &at(iat))).await, "invalid_request", text);
    }
    for aud in ["https://fabric.example/", "https://FABRIC.example", TOOL, "https://fabric.exampl"] {
        let bad = with(&valid_set(&node), &json!({ "aud": aud }));
        send(&node, &bad).await.is_refused(400, "invalid_request", "aud: ");
        assert_err(&send_signed(&node, &signed(&node, &bad)).await, "invalid_audience", "aud: ");
    }
    // Only a signed SET may have several audiences.
    let several = with(&valid_set(&node), &json!({"aud": [TOOL, FABRIC]}));
    send(&node, &several).await.is_refused(400, "invalid_request", "aud: ");
    assert_empty_202(&send_signed(&node, &signed(&node, &several)).await);
}

#[tokio::test]
async fn unsigned_signal_needs_a_caller_that_may_act_for_the_issuer() {
    let node = secure().await;
    let set = valid_set(&node);
    let (gateway, second) = (node.certified("gateway"), node.certified("second"));
    // Over HTTP without TLS; without a certificate; with one that may not send; and with a bearer token.
    send_over(&node, &node.plain(), &set).await.is_refused(403, "access_denied", "served over TLS only");
    send_over(&node, &node.anonymous(), &set).await.is_refused(401, "access_denied", "certificate");
    for name in ["stranger", "operator"] {
        let answer = send_over(&node, &node.certified(name), &set).await;
        answer.is_refused(403, "access_denied", "signals.send");
    }
    let bearer = format!("Bearer {}", node.own_token("agents", "operator").await.token);
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let answer = node.call_over(&node.anonymous(), "POST", EVENTS, &headers, set.to_string()).await;
    answer.is_refused(401, "access_denied", "client certificate");
    // Each only for its own issuer. An unknown issuer is answered alike.
    let other = with(&set, &json!({"iss": OTHER_IDP}));
    let unknown = with(&set, &json!({"iss": "https://idp.example/"}));
    let text = "iss: the caller may not send unsigned signals in the name of this issuer";
    for (channel, set) in [(&second, &set), (&gateway, &other), (&gateway, &unknown)] {
        send_over(&node, channel, set).await.is_refused(403, "access_denied", text);
    }
    assert_status(&send_over(&node, &gateway, &set).await, "accepted");
    assert_status(&send_over(&node, &second, &other).await, "accepted");
    // Any permitted sender may bring a signed SET.
    let media = [("content-type", "application/secevent+jwt")];
    let token = signed(&node, &valid_set(&node));
    let answer = node.call_over(&node.certified("stranger"), "POST", EVENTS, &media, token.clone()).await;
    answer.is_refused(403, "access_denied", "signals.send");
    assert_empty_202(&node.call_over(&second, "POST", EVENTS, &media, token).await);
}

#[tokio::test]
async fn set_is_verified_with_the_keys_of_its_issuer_alone() {
    let node = Node::start().await;
    let set = valid_set(&node);
    let (idp, other_idp) = (&node.issuers.idp, &node.issuers.other_idp);
    let header = header(&node);
    let changed = |changes: &Value| idp.sign_as(&with(&header, changes), &set);
    let claiming = |changes: &Value| signed(&node, &with(&set, changes));
    let token = signed(&node, &set);
    let (input, signature) = token.rsplit_once('.').expect("three parts");
    let flipped = if signature.starts_with('A') { "B" } else { "A" };
    let unsigned =
        format!("{}.{}.", encode(r#"{"alg":"none","typ":"secevent+jwt"}"#), encode(set.to_string()));
    let two = json!({(format!("{CAEP}/session-revoked")): {}, (format!("{RISC}/account-disabled")): {}});
    let own_key = with(&header, &json!({"jwk": idp.jwk()}));
    for (token, err, description) in [
        // Signed with another issuer's key under the same `kid`.
        (other_idp.sign_as(&header, &set), "authentication_failed", "signature"),
        (format!("{input}.{flipped}{}", &signature[1..]), "authentication_failed", "signature"),
        (format!("{input}."), "authentication_failed", "signature"),
        (changed(&json!({"kid": "unheard-of"})), "invalid_key", "key"),
        (changed(&json!({"typ": null})), "invalid_request", "typ"),
        (changed(&json!({"typ": "JWT"})), "invalid_request", "typ"),
        (changed(&json!({"typ": "at+jwt"})), "invalid_request", "typ"),
        (changed(&json!({"alg": "ES384"})), "invalid_key", "algorithm"),
        (changed(&json!({"alg": "HS256"})), "invalid_key", "algorithm"),
        (changed(&json!({"crit": ["exp"], "exp": 1})), "invalid_request", "extension"),
        (idp.sign_as(&own_key, &set), "invalid_key", "key"),
        (unsigned, "invalid_key", "algorithm"),
        (claiming(&json!({"iss": "https://stranger.example"})), "invalid_issuer", "iss"),
        (claiming(&json!({"iss": OTHER_IDP})), "authentication_failed", "signature"),
        // It would be an ID token or an access token elsewhere.
        (claiming(&json!({"sub": REPORTER})), "invalid_request", "sub"),
        (claiming(&json!({"exp": NOW_SECS + 300})), "invalid_request", "exp"),
        (claiming(&json!({"events": two})), "invalid_request", "events"),
    ] {
        assert_err(&send_signed(&node, &token).await, err, description);
    }
    // An object may have several events, each of which takes effect.
    assert_status(&send(&node, &with(&valid_set(&node), &json!({"events": two}))).await, "accepted");
    for typ in ["secevent+jwt", "application/secevent+jwt", "SecEvent+JWT"] {
        let token = idp.sign_as(&with(&header, &json!({"typ": typ})), &valid_set(&node));
        assert_empty_202(&send_signed(&node, &token).await);
    }
}

#[tokio::test]
async fn without_its_keys_an_issuer_is_told_to_come_again() {
    let node = Node::start().await;
    node.issuers.replace_mock("/idp/jwks", ResponseTemplate::new(500)).await;
    let token = signed(&node, &valid_set(&node));
    let answer = send_signed(&node, &token).await;
    answer.is_refused(503, "server_error", "keys of the issuer");
    // SETs of other issuers, and unsigned ones, do not need these keys.
    let other = with(&valid_set(&node), &json!({"iss": OTHER_IDP}));
    let other = node.issuers.other_idp.sign_as(&header(&node), &other);
    assert_empty_202(&send_signed(&node, &other).await);
    assert_status(&send(&node, &valid_set(&node)).await, "accepted");
    node.issuers.serve().await;
    node.advance_secs(60);
    assert_empty_202(&send_signed(&node, &token).await);
}

/// joserfc signs; no code of ours creates these SETs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_independent_transmitter_revokes_with_either_algorithm() {
    let node = Node::start().await;
    let mut transmitter = Transmitter::start();
    let jwks = ResponseTemplate::new(200).set_body_json(&transmitter.jwks);
    node.issuers.replace_mock("/idp/jwks", jwks).await;
    for (alg, name, events) in [
        ("RS256", "a", revoked()),
        ("ES256", "b", revoked()),
        ("RS256", "c", json!({(format!("{RISC}/credential-compromise")): {"credential_type": "x509"}})),
        ("ES256", "d", account("disabled", &json!({"reason": "hijacking"}))),
        (
            "RS256",
            "e",
            json!({(format!("{CAEP}/credential-change")): {
                "credential_type": "x509", "change_type": "revoke", "reason_admin": {"en": "lost"},
            }}),
        ),
    ] {
        let source = service_account(&node, name);
        node.granted(&source).await;
        let sub = format!("system:serviceaccount:demo:{name}");
        let sub_id = json!({"format": "iss_sub", "iss": node.issuers.kubernetes(), "sub": sub});
        let said = set(&node, &sub_id, &events);
        let token = transmitter.sign(&json!({"alg": alg, "set": said}));
        assert_empty_202(&send_signed(&node, &token).await);
        is_revoked(&node, &source).await;
        assert_empty_202(&send_signed(&node, &token).await);
    }
    node.granted(&service_account(&node, "f")).await;
    let metrics = node.get("/metrics").await.body;
    assert!(metrics.contains(r#"svc_signals_total{result="duplicate"} 5"#), "{metrics}");
    // Another transmitter, whose keys the issuer does not publish.
    let mut stranger = Transmitter::start();
    let token = stranger.sign(&json!({"set": valid_set(&node)}));
    assert_err(&send_signed(&node, &token).await, "invalid_key", "key");
    let known = transmitter.jwks["keys"][0]["kid"].clone();
    let token = stranger.sign(&json!({"set": valid_set(&node), "header": {"kid": known}}));
    assert_err(&send_signed(&node, &token).await, "authentication_failed", "signature");
}

/// Every example of the two specifications has the effect that policy states: signed by joserfc about a
/// subject whose credentials can be tested, and as an object about its own subject.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_of_caep_and_risc_has_its_effect_on_credentials() {
    let node = Node::start().await;
    let mut transmitter = Transmitter::start();
    let jwks = ResponseTemplate::new(200).set_body_json(&transmitter.jwks);
    node.issuers.replace_mock("/idp/jwks", jwks).await;
    let examples: Vec<Value> =
        serde_json::from_str(include_str!("../vectors/signals/examples.json")).expect("examples");
    let blocks = examples.iter().filter(|example| example["effect"]["effect"] == "block");
    let blocks: Vec<&Value> = blocks.collect();
    assert!(examples.len() >= 36 && blocks.len() >= 4);
    let is_granted = async |request: &Value| match node.exchange(request).await {
        answer if answer.status == 200 => true,
        answer => {
            answer.is_refused(400, "invalid_request", BAD_SUBJECT);
            false
        }
    };
    for (number, example) in examples.iter().enumerate() {
        let (said, effect) = (&example["set"], &example["effect"]["effect"]);
        let (name, alg) = (format!("e{number}"), if number % 2 == 0 { "RS256" } else { "ES256" });
        let about = |said: &Value, jti: String| {
            let sub_id = workload(&format!("wimse://trust.example/ns/demo/sa/{name}"));
            with(said, &json!({"jti": jti, "iat": node.now_secs(), "sub_id": sub_id}))
        };
        let before = service_account(&node, &name);
        if effect == "lift" {
            let blocked =
                blocks.iter().find(|block| block["effect"]["family"] == example["effect"]["family"]);
            let mut blocked = about(&blocked.expect("its block")["set"], format!("block-{number}"));
            for claims in blocked["events"].as_object_mut().expect("events").values_mut() {
                claims["event_timestamp"] = json!(NOW_SECS - 1_000);
            }
            assert_status(&send(&node, &blocked).await, "accepted");
        }
        let token = transmitter.sign(&json!({"alg": alg, "set": about(said, format!("about-{number}"))}));
        assert_empty_202(&send_signed(&node, &token).await);
        node.advance_secs(8);
        let after = service_account(&node, &name);
        let found = (is_granted(&before).await, is_granted(&after).await);
        let expected = match effect.as_str().expect("a word") {
            "none" => (true, true),
            // A lift does not restore what its block revoked.
            "watermark" | "lift" => (false, true),
            "block" => (false, false),
            other => panic!("{other}"),
        };
        assert_eq!(found, expected, "{}", example["name"]);
        // Its own subject may be one that no credential derives from.
        let sub_id = &said["sub_id"];
        let is_usable = sub_id["format"] != "saml_assertion_id"
            && (sub_id["format"] != "complex" || !(sub_id["user"].is_null() && sub_id["device"].is_null()));
        let status = if effect != "none" && is_usable { "accepted" } else { "ignored" };
        assert_status(&send(&node, &with(said, &json!({"jti": format!("own-{number}")}))).await, status);
    }
}

#[tokio::test]
async fn issuer_revokes_only_subjects_within_its_authority() {
    let node = Node::start().await;
    let svid = node.issuers.endpoint_svids.sign(&crate::support::Issuers::svid("endpoint.example"));
    let svid = credential(&svid, crate::support::SVID);
    let reporter = service_account(&node, "reporter");
    let own = node.granted(&reporter).await;
    let kubernetes = node.issuers.kubernetes();
    let sub = "system:serviceaccount:demo:reporter";
    let elsewhere = "spiffe://endpoint.example/ns/demo/sa/reporter";
    let complex = |user: &Value| json!({"format": "complex", "user": user});
    let aliases = |other: &Value| {
        let mine = json!({"format": "opaque", "id": "7"});
        json!({"format": "aliases", "identifiers": [mine, other]})
    };
    let of_kubernetes = json!({"format": "iss_sub", "iss": kubernetes, "sub": sub});
    let of_ours = json!({"format": "jwt_id", "iss": FABRIC, "jti": own.claims["jti"]});
    for (iss, sub_id, field) in [
        (IDP, json!({"format": "spiffe_id", "spiffe_id": elsewhere}), "sub_id.spiffe_id"),
        (IDP, workload(elsewhere), "sub_id.uri"),
        (IDP, workload("wimse://a.trust.example/ns/demo/sa/reporter"), "sub_id.uri"),
        (
            IDP,
            json!({"format": "iss_sub", "iss": "spiffe://endpoint.example", "sub": elsewhere}),
            "sub_id.iss",
        ),
        (IDP, json!({"format": "iss_sub", "iss": format!("{kubernetes}/"), "sub": sub}), "sub_id.iss"),
        (OTHER_IDP, of_kubernetes.clone(), "sub_id.iss"),
        (OTHER_IDP, json!({"format": "iss_sub", "iss": FABRIC, "sub": REPORTER}), "sub_id.iss"),
        (OTHER_IDP, of_ours.clone(), "sub_id.iss"),
        (OTHER_IDP, complex(&of_kubernetes), "sub_id.user.iss"),
        (OTHER_IDP, aliases(&of_kubernetes), "sub_id.identifiers[1].iss"),
    ] {
        let text = format!("{field}: the issuer has no authority over this subject");
        // Also for events without effect.
        for events in [revoked(), json!({(format!("{CAEP}/session-established")): {}})] {
            let bad = with(&set(&node, &sub_id, &events), &json!({ "iss": iss }));
            send(&node, &bad).await.is_refused(403, "access_denied", &text);
            let signer = if iss == IDP { &node.issuers.idp } else { &node.issuers.other_idp };
            let answer = send_signed(&node, &signer.sign_as(&header(&node), &bad)).await;
            assert_err(&answer, "access_denied", &text);
        }
    }
    // One alias was outside the authority, so no alias took effect, not even the first.
    node.granted(&reporter).await;
    node.granted(&svid).await;
    let metrics = node.get("/metrics").await.body;
    assert!(metrics.lines().any(|line| line == "svc_revocations 0"), "{metrics}");
    // An opaque name or an address is scoped to its issuer.
    for sub_id in [json!({"format": "opaque", "id": sub}), json!({"format": "email", "email": "a@b.example"})]
    {
        let theirs = with(&set(&node, &sub_id, &revoked()), &json!({"iss": OTHER_IDP}));
        assert_status(&send(&node, &theirs).await, "accepted");
    }
    let with_email = node.issuers.changed(&json!({"email": "a@b.example", "email_verified": true}));
    node.granted(&credential(&with_email, JWT)).await;
    assert_status(&send(&node, &set(&node, &of_kubernetes, &revoked())).await, "accepted");
    is_revoked(&node, &reporter).await;
}

#[tokio::test]
async fn prefix_of_a_subject_is_another_subject() {
    let node = Node::start().await;
    let kubernetes = node.issuers.kubernetes();
    let (short, long) = (service_account(&node, "cart"), service_account(&node, "cart-2"));
    for sub_id in [
        workload("wimse://trust.example/ns/demo/sa/car"),
        workload("wimse://trust.example/ns/demo"),
        workload("wimse://trust.example/ns/demo/sa/cart-"),
        json!({"format": "iss_sub", "iss": kubernetes, "sub": "system:serviceaccount:demo:"}),
        json!({"format": "iss_sub", "iss": kubernetes, "sub": "system:serviceaccount:demo"}),
        json!({"format": "iss_sub", "iss": kubernetes, "sub": "system:serviceaccount:demo:CART"}),
        json!({"format": "iss_sub", "iss": kubernetes, "sub": "*"}),
    ] {
        assert_status(&send(&node, &set(&node, &sub_id, &revoked())).await, "accepted");
        node.granted(&short).await;
        node.granted(&long).await;
    }
    assert_status(
        &send(&node, &set(&node, &workload("wimse://trust.example/ns/demo/sa/cart"), &revoked())).await,
        "accepted",
    );
    is_revoked(&node, &short).await;
    node.granted(&long).await;
}

/// Regression: a revocation or a block of a workload by one scheme of its name did not cover credentials and
/// certificates with the other.
#[tokio::test]
async fn both_schemes_of_a_workload_are_one_identity() {
    let node = secure().await;
    let gateway = node.certified("gateway");
    let over_gateway = async |request: &Value| {
        let media = [("content-type", "application/json")];
        node.call_over(&gateway, "POST", "/v1/exchange/token", &media, request.to_string()).await
    };
    let svid = node.issuers.endpoint_svids.sign(&crate::support::Issuers::svid("endpoint.example"));
    let svid = credential(&svid, crate::support::SVID);
    let cart = service_account(&node, "cart");
    for request in [&svid, &cart] {
        assert_eq!(over_gateway(request).await.status, 200);
    }
    let spiffe = json!({"format": "spiffe_id", "spiffe_id": "spiffe://trust.example/ns/demo/sa/cart"});
    assert_status(&send_over(&node, &gateway, &set(&node, &spiffe, &revoked())).await, "accepted");
    over_gateway(&cart).await.is_refused(400, "invalid_request", BAD_SUBJECT);
    // The certificate names it with `spiffe://`.
    let second = node.certified("second");
    let theirs = || with(&valid_set(&node), &json!({"iss": OTHER_IDP}));
    assert_status(&send_over(&node, &second, &theirs()).await, "accepted");
    let wimse = workload(&format!("wimse://{}/second", crate::support::TRUST_DOMAIN));
    let disabled = set(&node, &wimse, &account("disabled", &json!({})));
    assert_status(&send_over(&node, &gateway, &disabled).await, "accepted");
    send_over(&node, &second, &theirs()).await.is_refused(403, "access_denied", "the caller is blocked");
    // An operator names it with `wimse://`, the credential with `spiffe://`.
    let sub = crate::support::Issuers::svid("endpoint.example")["sub"].as_str().expect("sub").to_owned();
    let named = json!({"subject": sub.replace("spiffe://", "wimse://"), "reason": "stolen"});
    let media = [("content-type", "application/json")];
    let operator = node.certified("operator");
    let answer = node.call_over(&operator, "POST", "/v1/revocations", &media, named.to_string()).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    over_gateway(&svid).await.is_refused(400, "invalid_request", BAD_SUBJECT);
}

#[tokio::test]
async fn signal_without_effect_is_accepted_and_recorded() {
    let node = Node::start().await;
    let reporter = service_account(&node, "reporter");
    for (sub_id, events) in [
        (workload(REPORTER), json!({(format!("{CAEP}/session-established")): {}})),
        (workload(REPORTER), json!({"https://example.com/of-our-own": {"any": ["thing"]}})),
        (
            workload(REPORTER),
            json!({(format!("{CAEP}/credential-change")): {
                "credential_type": "pin", "change_type": "create",
            }}),
        ),
        (
            json!({"format": "opaque", "id": "stream-1"}),
            json!({
                "https://schemas.openid.net/secevent/ssf/event-type/verification": {"state": "x"},
            }),
        ),
        (json!({"format": "phone_number", "phone_number": "+12065550100"}), revoked()),
        (json!({"format": "account", "uri": "acct:a@b.example"}), revoked()),
        (json!({"format": "complex", "tenant": {"format": "opaque", "id": "d"}}), revoked()),
    ] {
        let said = set(&node, &sub_id, &events);
        assert_status(&send(&node, &said).await, "ignored");
        assert_status(&send(&node, &said).await, "duplicate");
    }
    node.granted(&reporter).await;
    let metrics = node.get("/metrics").await.body;
    assert!(metrics.contains(r#"svc_signals_total{result="ignored"} 7"#), "{metrics}");
}

#[tokio::test]
async fn only_the_blocking_issuer_lifts_with_a_later_event() {
    let node = Node::start().await;
    // Issued so late that no watermark of this test covers it.
    let later = async |node: &Node| {
        node.advance_secs(10);
        service_account(node, "reporter")
    };
    let at = |offset: i64| json!({"event_timestamp": NOW_SECS + offset});
    let said = async |iss: &str, events: Value| {
        let said = with(&set(&node, &workload(REPORTER), &events), &json!({ "iss": iss }));
        assert_status(&send(&node, &said).await, "accepted");
    };
    said(IDP, account("disabled", &at(10))).await;
    is_revoked(&node, &later(&node).await).await;
    // Of another issuer, of another family, an older one that came late, and a tie.
    said(OTHER_IDP, account("enabled", &at(20))).await;
    said(IDP, json!({(format!("{CAEP}/device-compliance-change")): {
        "previous_status": "not-compliant", "current_status": "compliant", "event_timestamp": NOW_SECS + 20,
    }}))
    .await;
    said(IDP, account("enabled", &at(9))).await;
    said(IDP, account("enabled", &at(10))).await;
    is_revoked(&node, &later(&node).await).await;
    let metrics = node.get("/metrics").await.body;
    assert!(metrics.lines().any(|line| line == "svc_blocks 1"), "{metrics}");
    said(IDP, account("enabled", &at(11))).await;
    node.granted(&later(&node).await).await;
    // A delayed block from before the lift does not block; its revocation stays.
    let before = later(&node).await;
    said(IDP, account("disabled", &at(10))).await;
    is_revoked(&node, &before).await;
    node.granted(&later(&node).await).await;
    // Two issuers block, so both must lift.
    said(IDP, account("disabled", &at(30))).await;
    said(OTHER_IDP, account("purged", &at(30))).await;
    said(IDP, account("enabled", &at(31))).await;
    is_revoked(&node, &later(&node).await).await;
    said(OTHER_IDP, account("enabled", &at(31))).await;
    node.granted(&later(&node).await).await;
}

#[tokio::test]
async fn future_event_is_refused_and_an_ancient_one_expires() {
    let node = Node::start().await;
    let disabled = |claims: &Value| set(&node, &workload(REPORTER), &account("disabled", claims));
    for wrong in [
        json!(NOW_SECS + 61),
        json!(NOW_SECS * 1000),
        json!(1e300),
        json!(-1),
        json!("1800000000"),
        json!(null),
        json!([NOW_SECS]),
    ] {
        let bad = disabled(&json!({"event_timestamp": wrong}));
        let text = "events.account-disabled.event_timestamp: must be seconds";
        send(&node, &bad).await.is_refused(400, "invalid_request", text);
        assert_err(&send_signed(&node, &signed(&node, &bad)).await, "invalid_request", text);
    }
    node.granted(&service_account(&node, "reporter")).await;
    // With a time of 1970 it blocks, and the first later lift ends that.
    assert_status(&send(&node, &disabled(&json!({"event_timestamp": 0}))).await, "accepted");
    node.advance_secs(10);
    is_revoked(&node, &service_account(&node, "reporter")).await;
    let enabled = set(&node, &workload(REPORTER), &account("enabled", &json!({"event_timestamp": 0.5})));
    assert_status(&send(&node, &enabled).await, "accepted");
    node.granted(&service_account(&node, "reporter")).await;
    // An event without a time happened when its SET was issued.
    let iat = node.now_secs() - 100;
    assert_status(&send(&node, &with(&disabled(&json!({})), &json!({ "iat": iat }))).await, "accepted");
    let early =
        with(&set(&node, &workload(REPORTER), &account("enabled", &json!({}))), &json!({"iat": iat - 1}));
    assert_status(&send(&node, &early).await, "accepted");
    node.advance_secs(10);
    is_revoked(&node, &service_account(&node, "reporter")).await;
    assert_status(
        &send(
            &node,
            &with(
                &valid_set(&node),
                &json!({
                    "sub_id": workload(REPORTER), "events": account("enabled", &json!({})), "iat": iat + 1,
                }),
            ),
        )
        .await,
        "accepted",
    );
    node.granted(&service_account(&node, "reporter")).await;
}

/// Replaces `policies/signals.rego`.
async fn replace_rule(node: &Node, text: &str) {
    let mut sources = node.get("/v1/sys/policy").await.json()["sources"].clone();
    for source in sources.as_array_mut().expect("sources") {
        if source["path"] == "signals.rego" {
            source["text"] = text.into();
        }
    }
    let applied = node.put("/v1/sys/policy", &json!({ "sources": sources })).await;
    assert_eq!(applied.status, 200, "{}", applied.body);
}
/// Attack: a member that the format of the subject does not have is shown in place of the subject.
#[tokio::test]
async fn event_names_the_subject_that_is_revoked() {
    let node = Node::start().await;
    let mut feed = node.feed(&node.plain(), "?types=signal", &[]).await;
    let bob = "wimse://trust.example/ns/demo/sa/bob";
    let alice = json!({"format": "iss_sub", "iss": IDP, "sub": "alice", "uri": bob});
    assert_eq!(send(&node, &set(&node, &alice, &revoked())).await.status, 202);
    let event = feed.next().await.expect("an event");
    assert!(event.words().1.contains("alice") && !event.words().1.contains("bob"), "{}", event.data);
}

#[tokio::test]
async fn signal_denied_or_undecided_by_policy_is_rejected() {
    let node = Node::start().await;
    // The rule needs the `change_type`.
    let unclear = set(&node, &workload(REPORTER), &json!({(format!("{CAEP}/credential-change")): {}}));
    send(&node, &unclear).await.is_refused(403, "access_denied", "policy denied: ");
    let said = set(&node, &workload(REPORTER), &revoked());
    let everything = r#"{"allow": true, "reason": "", "effects": {uri: {"effect": "none"} | some uri, _ in input.set.events}}"#;
    for (answer, text) in [
        (r#"{"allow": false, "reason": "not on a Sunday"}"#, "not on a Sunday"),
        (r#"{"allow": true, "reason": ""}"#, "no well-formed answer"),
        (r#"{"allow": true, "reason": "", "effects": {}}"#, "no well-formed answer"),
        (
            r#"{"allow": true, "reason": "", "effects": {"x": {"effect": "watermark"}}}"#,
            "no well-formed answer",
        ),
        (r#"{"allow": "true", "reason": "", "effects": {}}"#, "no well-formed answer"),
        ("1 / 0", "policy"),
    ] {
        replace_rule(&node, &format!("package svc.signals\n\nimport rego.v1\n\ndecision := {answer}\n"))
            .await;
        send(&node, &said).await.is_refused(403, "access_denied", text);
        assert_err(&send_signed(&node, &signed(&node, &said)).await, "access_denied", text);
    }
    // Two contradicting rules.
    let conflict =
        "package svc.signals\n\nimport rego.v1\n\ndecision := input.set.jti\n\ndecision := input.set.iss\n";
    replace_rule(&node, conflict).await;
    send(&node, &said).await.is_refused(403, "access_denied", "policy could not be evaluated");
    // An event for which policy states no effect has none.
    replace_rule(&node, &format!("package svc.signals\n\nimport rego.v1\n\ndecision := {everything}\n"))
        .await;
    assert_status(&send(&node, &said).await, "ignored");
    node.granted(&service_account(&node, "reporter")).await;
    let metrics = node.get("/metrics").await.body;
    assert!(metrics.contains(r#"svc_signals_total{result="denied"} 14"#), "{metrics}");
}

#[tokio::test]
async fn without_signal_rule_none_is_received_and_revocations_stay() {
    let node = Node::start_with(Setup { without: &["signals.rego"], ..Setup::default() }).await;
    let text = "the policy has no rule data.svc.signals.decision";
    send(&node, &valid_set(&node)).await.is_refused(501, "not_implemented", text);
    let answer = send_signed(&node, &signed(&node, &valid_set(&node))).await;
    answer.is_refused(501, "not_implemented", text);

    let node = Node::start().await;
    let reporter = service_account(&node, "reporter");
    assert_status(&send(&node, &set(&node, &workload(REPORTER), &revoked())).await, "accepted");
    let policy = node.get("/v1/sys/policy").await.json();
    let sources = policy["sources"].as_array().expect("sources").iter();
    let kept: Vec<_> = sources.filter(|source| source["path"] != "signals.rego").collect();
    assert_eq!(node.put("/v1/sys/policy", &json!({"sources": kept})).await.status, 200);
    send(&node, &valid_set(&node)).await.is_refused(501, "not_implemented", text);
    is_revoked(&node, &reporter).await;
}

#[tokio::test]
async fn without_an_issuer_of_signals_none_is_received() {
    let node = Node::start_with(Setup { without_signal_issuers: true, ..Setup::default() }).await;
    let text = "there is no [[signals]]";
    send(&node, &valid_set(&node)).await.is_refused(501, "not_implemented", text);
    let answer = send_signed(&node, &signed(&node, &valid_set(&node))).await;
    answer.is_refused(501, "not_implemented", text);
    node.call("POST", EVENTS, &[], "").await.is_refused(501, "not_implemented", text);
}

#[tokio::test]
async fn a_hundred_thousand_revocations_a_minute_exceed_the_quota() {
    const SUBJECTS: usize = 100_000;
    const IN_ONE: usize = 16;
    let few = "https://few.example";
    let more_config = format!(
        "\n[[issuers]]\nissuer = \"{few}\"\nsubject = \"opaque\"\nkeys_file = \"few.json\"\n\
         trust_domains = [\"few.example\"]\n\
         [[signals]]\nissuer = \"{few}\"\nrevocations_per_minute = 3\n\
         \n[limits]\nrequests_per_second_per_caller = 1000000\n"
    );
    let node = Node::start_with(Setup { more_config, ..Setup::default() }).await;
    let of = |first: usize| {
        let alias = |number| json!({"format": "opaque", "id": format!("subject-{number}")});
        let identifiers: Vec<Value> = (first..first + IN_ONE).map(alias).collect();
        set(&node, &json!({"format": "aliases", "identifiers": identifiers}), &revoked())
    };
    let sent = stream::iter((0..SUBJECTS).step_by(IN_ONE)).map(|first| {
        let said = of(first);
        let node = &node;
        async move { send(node, &said).await }
    });
    let answers: Vec<Response> = sent.buffer_unordered(32).collect().await;
    let accepted = answers.iter().filter(|answer| answer.status == 202).count();
    assert_eq!(accepted, 6_000 / IN_ONE);
    let refused = answers.iter().find(|answer| answer.status != 202).expect("one");
    refused.is_refused(429, "access_denied", "the issuer has reached its revocation quota for this minute");
    assert_eq!(refused.header("retry-after"), Some("60"));
    assert!(answers.iter().all(|answer| matches!(answer.status, 202 | 429)));
    let metrics = node.get("/metrics").await.body;
    for line in [
        "svc_revocations 6000".to_owned(),
        format!(r#"svc_signals_total{{result="quota"}} {}"#, SUBJECTS / IN_ONE - accepted),
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }
    // The quota is per issuer: others continue, each within its own.
    let theirs = |jti: &str| {
        with(
            &set(&node, &json!({"format": "opaque", "id": jti}), &revoked()),
            &json!({"iss": few, "jti": jti}),
        )
    };
    for jti in ["1", "2", "3"] {
        assert_status(&send(&node, &theirs(jti)).await, "accepted");
    }
    send(&node, &theirs("4")).await.is_refused(429, "access_denied", "reached its revocation quota");
    // An operator grants more once.
    let more = node.post("/v1/sys/signals/allowance", &json!({"issuer": few, "more": 2})).await;
    assert_eq!(more.status, 200, "{}", more.body);
    for jti in ["6", "7"] {
        assert_status(&send(&node, &theirs(jti)).await, "accepted");
    }
    send(&node, &theirs("8")).await.is_refused(429, "access_denied", "reached its revocation quota");
    // A duplicate uses no quota. A SET without effect is recorded and counts.
    assert_status(&send(&node, &theirs("1")).await, "duplicate");
    let nothing = json!({"jti": "5", "events": {(format!("{CAEP}/session-established")): {}}});
    let nothing = with(&theirs("5"), &nothing);
    send(&node, &nothing).await.is_refused(429, "access_denied", "reached its revocation quota");
    node.advance_secs(59);
    send(&node, &theirs("4")).await.is_refused(429, "access_denied", "reached its revocation quota");
    // A rejected SET may come again.
    node.advance_secs(1);
    assert_status(&send(&node, &theirs("4")).await, "accepted");
    assert_status(&send(&node, &of(SUBJECTS)).await, "accepted");
}
