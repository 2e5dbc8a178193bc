//! Streams over HTTP: created, read, changed, paused, verified and deleted; owners and operators; both
//! request shapes.

use futures::future::join_all;
use serde_json::{Value, json};

use crate::support::{Channel, FABRIC, Node, Response, Setup, with};

const STREAM: &str = "/v1/signals/stream";
const STATUS: &str = "/v1/signals/status";
const VERIFICATION: &str = "/v1/signals/verification";
const ADD: &str = "/v1/signals/subjects:add";
const REMOVE: &str = "/v1/signals/subjects:remove";
const DEAD_LETTERS: &str = "/v1/signals/dead-letters";
const CONFIGURATION: &str = "/.well-known/ssf-configuration";

const REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
const CHANGED: &str = "https://schemas.openid.net/secevent/caep/event-type/credential-change";
const PUSH: &str = "urn:ietf:rfc:8935";
const POLL: &str = "urn:ietf:rfc:8936";
const RECEIVER: &str = "https://receiver.example/events";
const BASE: &str = "https://fabric.example:8694";
/// The id of no stream.
const UNKNOWN_ID: &str = "0123456789abcdef0123456789abcdef";

async fn start(is_secure: bool) -> Node {
    let more_config = format!("[transmitter]\nbase_url = \"{BASE}\"\n");
    Node::start_with(Setup { more_config, is_secure, ..Setup::default() }).await
}

async fn call(node: &Node, channel: &Channel, method: &str, path: &str, body: &Value) -> Response {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    node.call_over(channel, method, path, &[("content-type", "application/json")], body).await
}

/// The smallest request in the shape of the specification.
fn flat() -> Value {
    json!({
        "iss": FABRIC, "aud": "https://receiver.example", "events_requested": [REVOKED],
        "delivery_method": "push", "endpoint_url": RECEIVER,
    })
}

/// The smallest request in the shape of SSF, except for `aud`.
fn ssf() -> Value {
    json!({
        "aud": "https://receiver.example", "events_requested": [REVOKED],
        "delivery": {"method": PUSH, "endpoint_url": RECEIVER},
    })
}

#[track_caller]
fn id_of(answer: &Response) -> String {
    assert_eq!(answer.status, 201, "{}", answer.body);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let id = answer.json()["stream_id"].as_str().expect("stream_id").to_owned();
    assert!(id.len() == 32 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')), "{id}");
    id
}

async fn made(node: &Node, request: &Value) -> String {
    id_of(&node.post(STREAM, request).await)
}

async fn made_over(node: &Node, channel: &Channel, request: &Value) -> String {
    id_of(&call(node, channel, "POST", STREAM, request).await)
}

async fn read(node: &Node, id: &str) -> Value {
    let answer = node.get(&format!("{STREAM}?stream_id={id}")).await;
    assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")), "{}", answer.body);
    answer.json()
}

async fn patch(node: &Node, request: &Value) -> Response {
    node.call("PATCH", STREAM, &[("content-type", "application/json")], request.to_string()).await
}

/// The path of one of the node's URLs.
fn path_of<'a>(metadata: &'a Value, name: &str) -> &'a str {
    let url = metadata[name].as_str().expect(name);
    url.strip_prefix(BASE).unwrap_or_else(|| panic!("{name}: {url}"))
}

/// CAEP interoperability profile, "Transmitters": metadata, then create, read, status, verify, delete, at the
/// URLs of the metadata.
async fn complete_profile(request: &Value, expected: &Value) {
    let node = start(true).await;
    let metadata = node.get(CONFIGURATION).await.json();
    let [configuration, status, verification] =
        ["configuration_endpoint", "status_endpoint", "verification_endpoint"]
            .map(|name| path_of(&metadata, name).to_owned());
    let id = made(&node, request).await;
    let expected: Value = serde_json::from_str(&expected.to_string().replace("{id}", &id)).expect("JSON");
    let stream = read(&node, &id).await;
    for (name, value) in expected.as_object().expect("members") {
        assert_eq!(&stream[name], value, "{name}");
    }
    let of = format!("{configuration}?stream_id={id}");
    assert_eq!(node.get(&of).await.json(), stream);
    assert_eq!(node.get(&configuration).await.json(), json!([stream]));

    let enabled = json!({"stream_id": id, "status": "enabled"});
    assert_eq!(node.get(&format!("{status}?stream_id={id}")).await.json(), enabled);
    for asked in ["paused", "enabled"] {
        let answer = node.post(&status, &with(&enabled, &json!({"status": asked}))).await;
        assert_eq!((answer.status, answer.json()["status"].as_str()), (200, Some(asked)), "{}", answer.body);
    }
    let answer = node.post(&verification, &json!({"stream_id": id, "state": "ace"})).await;
    assert_eq!((answer.status, answer.body.as_str()), (204, ""));

    let delete = node.call("DELETE", &of, &[], "").await;
    assert_eq!((delete.status, delete.body.as_str()), (204, ""));
    let gone = "there is no stream with this stream_id";
    node.get(&of).await.is_refused(404, "not_found", gone);
    node.call("DELETE", &of, &[], "").await.is_refused(404, "not_found", gone);
    assert_eq!(node.get(&configuration).await.json(), json!([]));
}

#[tokio::test]
async fn push_stream_completes_the_caep_interoperability_profile() {
    let expected = json!({
        "iss": FABRIC, "aud": "spiffe://trust.example/gateway", "status": "enabled",
        "events_requested": [REVOKED], "events_delivered": [REVOKED],
        "delivery": {"method": PUSH, "endpoint_url": RECEIVER},
        "delivery_method": "push", "endpoint_url": RECEIVER, "min_verification_interval": 60,
        "delivered": 0, "dropped": 0, "dead_letters": 0,
    });
    complete_profile(&with(&ssf(), &json!({"aud": null})), &expected).await;
}

#[tokio::test]
async fn poll_stream_completes_the_caep_interoperability_profile() {
    let url = format!("{BASE}/v1/signals/poll/{{id}}");
    let expected = json!({
        "aud": "spiffe://trust.example/gateway", "status": "enabled", "events_delivered": [REVOKED],
        "delivery": {"method": POLL, "endpoint_url": url}, "delivery_method": "poll", "endpoint_url": url,
    });
    complete_profile(&json!({"events_requested": [REVOKED], "delivery": {"method": POLL}}), &expected).await;
    // SSF 1.0: no `delivery` means poll.
    complete_profile(&json!({"events_requested": [REVOKED]}), &expected).await;
}

#[tokio::test]
async fn discovery_document_lists_exactly_the_existing_endpoints() {
    let node = start(true).await;
    let answer = node.call_over(&node.plain(), "GET", CONFIGURATION, &[], "").await;
    assert_eq!(
        (answer.status, answer.header("cache-control")),
        (200, Some("public, max-age=60, must-revalidate"))
    );
    let metadata = answer.json();
    assert_eq!(
        metadata,
        json!({
            "spec_version": "1_0",
            "issuer": FABRIC,
            "jwks_uri": format!("{FABRIC}/v1/identity/jwks"),
            "delivery_methods_supported": [PUSH, POLL],
            "configuration_endpoint": format!("{BASE}/v1/signals/stream"),
            "status_endpoint": format!("{BASE}/v1/signals/status"),
            "add_subject_endpoint": format!("{BASE}/v1/signals/subjects:add"),
            "remove_subject_endpoint": format!("{BASE}/v1/signals/subjects:remove"),
            "verification_endpoint": format!("{BASE}/v1/signals/verification"),
            "authorization_schemes": [{"spec_urn": "urn:ietf:rfc:6749"}, {"spec_urn": "urn:ietf:rfc:8705"}],
            "default_subjects": "ALL",
        })
    );
    for name in metadata.as_object().expect("members").keys().filter(|name| name.ends_with("_endpoint")) {
        let answer = node.post(path_of(&metadata, name), &json!({})).await;
        answer.is_refused(400, "invalid_request", "");
    }
    let etag = answer.header("etag").expect("ETag").to_owned();
    let again = node.call("GET", CONFIGURATION, &[("if-none-match", &etag)], "").await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));
}

#[tokio::test]
async fn development_node_publishes_its_listening_address() {
    let node = Node::start().await;
    let metadata = node.get(CONFIGURATION).await.json();
    assert_eq!(metadata["status_endpoint"], format!("{}{STATUS}", node.base()));
    // Without an identified caller there is no audience.
    let request = json!({"events_requested": [REVOKED]});
    node.post(STREAM, &request).await.is_refused(400, "invalid_request", "aud: is required");
    let request = with(&request, &json!({"aud": "me", "delivery": {"method": POLL}}));
    let id = made(&node, &request).await;
    let url = read(&node, &id).await["endpoint_url"].as_str().expect("endpoint_url").to_owned();
    assert_eq!(url, format!("{}/v1/signals/poll/{id}", node.base()));
}

#[tokio::test]
async fn without_a_transmitter_nothing_answers() {
    let node = Node::start_with(Setup { is_secure: true, ..Setup::default() }).await;
    let text = "the transmitter of signals is not configured";
    node.get(CONFIGURATION).await.is_refused(404, "not_found", text);
    let channel = node.certified("gateway");
    for (method, path) in operations(UNKNOWN_ID) {
        let answer = call(&node, &channel, method, &path, &body_for(method, &path, UNKNOWN_ID)).await;
        answer.is_refused(501, "not_implemented", text);
    }
    call(&node, &channel, "POST", STREAM, &flat()).await.is_refused(501, "not_implemented", text);
    call(&node, &channel, "GET", STREAM, &Value::Null).await.is_refused(501, "not_implemented", text);
}

/// Every operation on an existing stream.
fn operations(id: &str) -> Vec<(&'static str, String)> {
    vec![
        ("GET", format!("{STREAM}?stream_id={id}")),
        ("PATCH", STREAM.to_owned()),
        ("PUT", STREAM.to_owned()),
        ("GET", format!("{STATUS}?stream_id={id}")),
        ("POST", STATUS.to_owned()),
        ("POST", VERIFICATION.to_owned()),
        ("POST", REMOVE.to_owned()),
        ("POST", ADD.to_owned()),
        ("GET", format!("{DEAD_LETTERS}?stream_id={id}")),
        ("DELETE", format!("{STREAM}?stream_id={id}")),
    ]
}

/// A valid body of each operation.
fn body_for(method: &str, path: &str, id: &str) -> Value {
    match (method, path) {
        ("PATCH", _) => json!({"stream_id": id, "description": "changed"}),
        ("PUT", _) => with(&flat(), &json!({"stream_id": id})),
        (_, STATUS) => json!({"stream_id": id, "status": "enabled"}),
        (_, VERIFICATION) => json!({"stream_id": id}),
        (_, ADD | REMOVE) => {
            json!({"stream_id": id, "subject": {"format": "email", "email": "a@b.example"}})
        }
        _ => Value::Null,
    }
}

#[tokio::test]
async fn to_everybody_else_a_stream_is_not_there_in_any_operation() {
    let node = start(true).await;
    let id = made(&node, &flat()).await;
    let before = read(&node, &id).await;
    let second = node.certified("second");
    let bearer = node.own_token("agents", "streamer").await.token;
    let authorization = format!("Bearer {bearer}");
    let headers = [("content-type", "application/json"), ("authorization", authorization.as_str())];
    let refusal = |answer: &Response| (answer.status, with(&answer.json(), &json!({"request_id": null})));
    for (method, path) in operations(&id) {
        let body = body_for(method, &path, &id);
        let answer = call(&node, &second, method, &path, &body).await;
        answer.is_refused(404, "not_found", "there is no stream with this stream_id");
        let unknown = (path.replace(&id, UNKNOWN_ID), body_for(method, &path, UNKNOWN_ID));
        let unknown = call(&node, &second, method, &unknown.0, &unknown.1).await;
        assert_eq!(refusal(&answer), refusal(&unknown), "{method} {path}");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let by_bearer = node.call_over(&node.anonymous(), method, &path, &headers, body).await;
        assert_eq!(refusal(&by_bearer), refusal(&unknown), "{method} {path}");
    }
    assert_eq!(call(&node, &second, "GET", STREAM, &Value::Null).await.json(), json!([]));
    assert_eq!(read(&node, &id).await, before, "nothing has changed");

    // Errors of a request about another caller's stream are not reported either.
    let wrong = json!({"stream_id": id, "aud": "https://other.example"});
    call(&node, &second, "PATCH", STREAM, &wrong).await.is_refused(404, "not_found", "");
    let wrong = json!({"stream_id": id, "status": "gone"});
    call(&node, &second, "POST", STATUS, &wrong).await.is_refused(404, "not_found", "");
}

#[tokio::test]
async fn an_operator_sees_and_changes_every_stream() {
    let node = start(true).await;
    for who in ["certificate", "bearer"] {
        let id = made(&node, &flat()).await;
        let token = node.own_token("agents", "stream-operator").await.token;
        let authorization = format!("Bearer {token}");
        for (method, path) in operations(&id) {
            let body = body_for(method, &path, &id);
            let body = if body.is_null() { String::new() } else { body.to_string() };
            let media = ("content-type", "application/json");
            let answer = if who == "bearer" {
                let headers = [media, ("authorization", authorization.as_str())];
                node.call_over(&node.anonymous(), method, &path, &headers, body).await
            } else {
                node.call_over(&node.certified("chief"), method, &path, &[media], body).await
            };
            assert!(matches!(answer.status, 200 | 204), "{who} {method} {path}: {}", answer.body);
        }
    }
    let mine = made(&node, &flat()).await;
    let theirs = made_over(&node, &node.certified("second"), &flat()).await;
    let listed = call(&node, &node.certified("chief"), "GET", STREAM, &Value::Null).await.json();
    let listed: Vec<_> =
        listed.as_array().expect("a list").iter().map(|row| row["stream_id"].clone()).collect();
    let mut expected = vec![mine, theirs];
    expected.sort();
    assert_eq!(listed, expected);
}

#[tokio::test]
async fn both_shapes_make_a_stream_and_are_both_answered() {
    let node = start(true).await;
    let both = with(&flat(), &json!({"delivery": {"method": PUSH, "endpoint_url": RECEIVER}}));
    let mut answers = Vec::new();
    for request in [flat(), ssf(), both] {
        let answer = node.post(STREAM, &request).await;
        id_of(&answer);
        let body = answer.json();
        assert!(body["events_supported"].as_array().expect("a list").contains(&json!(CHANGED)));
        answers.push(with(&body, &json!({"stream_id": null, "events_supported": null})));
    }
    assert_eq!(
        answers[0],
        json!({
            "iss": FABRIC, "aud": "https://receiver.example", "status": "enabled",
            "events_requested": [REVOKED], "events_delivered": [REVOKED],
            "delivery_method": "push", "endpoint_url": RECEIVER,
            "delivery": {"method": PUSH, "endpoint_url": RECEIVER}, "min_verification_interval": 60,
        })
    );
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    let described =
        with(&ssf(), &json!({"description": "the SIEM", "events_requested": [CHANGED, "urn:x:y", REVOKED]}));
    let answer = node.post(STREAM, &described).await.json();
    assert_eq!(
        (&answer["description"], &answer["events_delivered"]),
        (&json!("the SIEM"), &json!([CHANGED, REVOKED]))
    );
}

#[tokio::test]
async fn invalid_stream_fields_are_refused_by_name() {
    let node = start(true).await;
    let push = |url: &str| json!({"delivery": {"method": PUSH, "endpoint_url": url}});
    for (base, changes, text) in [
        (flat(), json!({"endpoint_url": null}), "endpoint_url: is required for push"),
        (ssf(), json!({"delivery": {"method": PUSH}}), "delivery.endpoint_url: is required for push"),
        (ssf(), json!({"delivery": {"endpoint_url": RECEIVER}}), "delivery.method: is required"),
        (ssf(), json!({"delivery": {"method": "push"}}), "delivery.method: must be urn:ietf:rfc:8935"),
        (ssf(), json!({"delivery": RECEIVER}), "delivery: must be"),
        (
            ssf(),
            json!({"delivery": {"method": POLL, "endpoint_url": RECEIVER}}),
            "delivery.endpoint_url: is set",
        ),
        (flat(), json!({"delivery_method": "poll"}), "endpoint_url: is set by the transmitter for poll"),
        (flat(), json!({"delivery_method": "carrier pigeon"}), "delivery_method: must be push or poll"),
        (flat(), push("https://other.example/"), "endpoint_url: contradicts delivery.endpoint_url"),
        (flat(), json!({"delivery": {"method": POLL}}), "delivery_method: contradicts delivery.method"),
        (
            ssf(),
            json!({"delivery": {"method": PUSH, "endpoint_url": RECEIVER, "authorization_header": "Bearer x"}}),
            "delivery.authorization_header: is not supported: this fabric stores no secret of a receiver",
        ),
        (
            ssf(),
            json!({"delivery": {"method": PUSH, "endpoint_url": RECEIVER, "retries": 3}}),
            "delivery.retries",
        ),
        (flat(), json!({"filter": "*"}), "filter: unknown"),
        (ssf(), json!({"iss": "https://other.example"}), "iss: must be this fabric's own"),
        (flat(), json!({"iss": 1}), "iss: must be a string"),
        (flat(), json!({"iss": null}), "iss: is required"),
        (flat(), json!({"aud": null}), "aud: is required"),
        (flat(), json!({"aud": ["https://receiver.example"]}), "aud: must be a string"),
        (flat(), json!({"aud": ""}), "aud: must be 1 to"),
        (flat(), json!({"events_requested": null}), "events_requested: is required"),
        (flat(), json!({"events_requested": []}), "events_requested: must be 1 to 64"),
        (flat(), json!({"events_requested": REVOKED}), "events_requested: must be"),
        (
            flat(),
            json!({"events_requested": ["session-revoked"]}),
            "events_requested[0]: must be an absolute URI",
        ),
        (
            flat(),
            json!({"events_requested": ["urn:x:y"]}),
            "events_requested: none of these event types is supported",
        ),
        (flat(), json!({"events_delivered": [CHANGED]}), "events_delivered[0]: must be one of"),
        (flat(), json!({"stream_id": UNKNOWN_ID}), "stream_id: is set by the transmitter"),
        (flat(), json!({"status": "paused"}), "status: is set by the transmitter"),
        (flat(), json!({"dead_letters": 0}), "dead_letters: is set by the transmitter"),
        (flat(), json!({"description": "d".repeat(257)}), "description: must be 1 to 256 bytes"),
        // Misleading URLs; the tests of the guard have the whole table.
        (flat(), json!({"endpoint_url": "http://receiver.example/events"}), "endpoint_url: "),
        (flat(), json!({"endpoint_url": "http://localhost.evil.example/"}), "endpoint_url: "),
        (flat(), json!({"endpoint_url": "http://127.0.0.1@evil.example/"}), "endpoint_url: "),
        (flat(), json!({"endpoint_url": "http://127.0.0.1.evil.example/"}), "endpoint_url: "),
        (flat(), json!({"endpoint_url": "http://[::ffff:169.254.169.254]/"}), "endpoint_url: "),
        (flat(), json!({"endpoint_url": "http://2130706433/"}), "endpoint_url: "),
        (flat(), json!({"endpoint_url": "http://0177.0.0.1/"}), "endpoint_url: "),
        (flat(), json!({"endpoint_url": "https://user@receiver.example/"}), "endpoint_url: "),
        (flat(), json!({"endpoint_url": "https://receiver.example/#x"}), "endpoint_url: "),
        (flat(), json!({"endpoint_url": "file:///etc/passwd"}), "endpoint_url: "),
        (flat(), json!({"endpoint_url": "//receiver.example/"}), "endpoint_url: "),
        (flat(), json!({"endpoint_url": ""}), "endpoint_url: "),
        (ssf(), push("http://169.254.169.254/latest/meta-data"), "delivery.endpoint_url: "),
    ] {
        let answer = node.post(STREAM, &with(&base, &changes)).await;
        let description = answer.refusal().2;
        assert!(
            answer.status == 400 && description.starts_with(text),
            "{changes}: {} {description}",
            answer.status
        );
    }
    for (body, text) in [
        ("", "body is not acceptable JSON"),
        ("[]", "body: must be an object"),
        (r#"{"iss": "a", "iss": "b"}"#, "duplicate"),
        (r#"{"delivery": {"method": "a", "method": "b"}}"#, "duplicate"),
    ] {
        node.call("POST", STREAM, &[], body).await.is_refused(400, "invalid_request", text);
    }
    let form = [("content-type", "application/x-www-form-urlencoded")];
    node.call("POST", STREAM, &form, "iss=a").await.is_refused(415, "invalid_request", "");
    assert_eq!(node.get(STREAM).await.json(), json!([]), "nothing was made");
}

#[tokio::test]
async fn a_push_to_this_machine_is_made_by_its_two_names() {
    let node = start(true).await;
    for url in ["http://localhost:9/x", "http://127.0.0.1:9/x", "https://receiver.example:444/x?y=z"] {
        let id = made(&node, &with(&flat(), &json!({"endpoint_url": url}))).await;
        assert_eq!(read(&node, &id).await["endpoint_url"], url);
    }
}

#[tokio::test]
async fn patch_changes_stated_fields_and_put_all() {
    let mut node = start(true).await;
    let id = made(&node, &with(&flat(), &json!({"description": "mine"}))).await;
    let before = read(&node, &id).await;
    let answer = patch(&node, &json!({"stream_id": id, "events_requested": [CHANGED]})).await;
    assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")), "{}", answer.body);
    let changes = json!({"events_requested": [CHANGED], "events_delivered": [CHANGED]});
    let expected = with(&before, &changes);
    assert_eq!(read(&node, &id).await, expected);
    assert_eq!(
        answer.json(),
        with(&expected, &json!({"delivered": null, "dropped": null, "dead_letters": null}))
    );
    // The representation that was read may be sent back, changed or not.
    let answer = node.put(STREAM, &expected).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(read(&node, &id).await, expected);
    let sent = with(&expected, &json!({"events_requested": [REVOKED, CHANGED], "description": null}));
    assert_eq!(node.put(STREAM, &sent).await.status, 200);
    let now = read(&node, &id).await;
    assert_eq!((&now["events_delivered"], now.get("description")), (&json!([REVOKED, CHANGED]), None));
    // PUT without a delivery means poll, as at creation.
    let answer = node.put(STREAM, &json!({"stream_id": id, "events_requested": [REVOKED]})).await.json();
    let url = format!("{BASE}/v1/signals/poll/{id}");
    assert_eq!((&answer["delivery_method"], &answer["endpoint_url"]), (&json!("poll"), &json!(url)));
    assert_eq!(answer["aud"], "https://receiver.example");
    let push = json!({"stream_id": id, "delivery": {"method": PUSH, "endpoint_url": RECEIVER}});
    assert_eq!(patch(&node, &push).await.json()["endpoint_url"], RECEIVER);

    let before = read(&node, &id).await;
    for (changes, text) in [
        (json!({"aud": "https://other.example"}), "aud: cannot be changed"),
        (json!({"iss": "https://other.example"}), "iss: must be"),
        (json!({"status": "paused"}), "status: is changed with POST /v1/signals/status"),
        (json!({"events_supported": [REVOKED]}), "events_supported: is set by the transmitter"),
        (json!({"events_delivered": [CHANGED]}), "events_delivered: is set by the transmitter"),
        (json!({"min_verification_interval": 1}), "min_verification_interval: is set by the transmitter"),
        (
            json!({"delivery_method": "poll", "endpoint_url": RECEIVER}),
            "endpoint_url: is set by the transmitter",
        ),
        (json!({"endpoint_url": "http://localhost.evil.example/"}), "endpoint_url: "),
        (json!({"events_requested": ["urn:x:y"]}), "events_requested: none of these"),
        (json!({"inactivity_timeout": 1}), "inactivity_timeout: unknown"),
        (json!({"stream_id": null}), "stream_id: is required"),
    ] {
        let answer = patch(&node, &with(&json!({"stream_id": id}), &changes)).await;
        let description = answer.refusal().2;
        assert!(answer.status == 400 && description.starts_with(text), "{changes}: {description}");
    }
    for (member, body) in [
        ("description", json!({"stream_id": id, "description": null})),
        ("delivery", json!({"stream_id": id, "delivery": null})),
        (
            "delivery.endpoint_url",
            json!({"stream_id": id, "delivery": {"method": PUSH, "endpoint_url": null}}),
        ),
    ] {
        patch(&node, &body).await.is_refused(400, "invalid_request", &format!("{member}: must not be null"));
    }
    node.put(STREAM, &json!({"events_requested": [REVOKED]})).await.is_refused(
        400,
        "invalid_request",
        "stream_id",
    );
    let unknown = json!({"stream_id": UNKNOWN_ID, "events_requested": [REVOKED]});
    node.put(STREAM, &unknown).await.is_refused(404, "not_found", "");
    assert_eq!(read(&node, &id).await, before, "a refused request changes nothing");
    node.restart().await;
    assert_eq!(read(&node, &id).await, before);
}

#[tokio::test]
async fn changes_at_once_are_all_made_or_refused() {
    let node = start(true).await;
    let id = made(&node, &flat()).await;
    let gateway = node.certified("gateway");
    for turn in 0..20 {
        let events = if turn % 2 == 0 { json!([CHANGED]) } else { json!([REVOKED]) };
        let description = format!("turn {turn}");
        let requests = [
            json!({"stream_id": id, "description": description}),
            json!({"stream_id": id, "events_requested": events}),
        ];
        for answer in
            join_all(requests.iter().map(|request| call(&node, &gateway, "PATCH", STREAM, request))).await
        {
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
        let now = read(&node, &id).await;
        assert_eq!(
            (&now["description"], &now["events_delivered"]),
            (&json!(description), &events),
            "none is lost"
        );
    }
    let requests: Vec<_> = (0..40).map(|n| json!({"stream_id": id, "description": format!("{n}")})).collect();
    let answers = requests.iter().map(|request| call(&node, &gateway, "PATCH", STREAM, request));
    let answers = join_all(answers).await;
    let mut made = Vec::new();
    for answer in answers {
        if answer.status == 200 {
            made.push(answer.json()["description"].clone());
        } else {
            answer.is_refused(409, "invalid_request", "");
        }
    }
    assert!(made.contains(&read(&node, &id).await["description"]), "{made:?}");
}

#[tokio::test]
async fn a_receiver_changes_the_status_from_any_to_any() {
    let node = start(true).await;
    let id = made(&node, &flat()).await;
    let statuses = ["enabled", "paused", "disabled"];
    let set = async |status: &str| node.post(STATUS, &json!({"stream_id": id, "status": status})).await;
    for from in statuses {
        for to in statuses {
            assert_eq!(set(from).await.status, 200);
            let answer = set(to).await;
            let expected = json!({"stream_id": id, "status": to});
            assert_eq!((answer.status, answer.json()), (200, expected.clone()), "{from} {to}");
            assert_eq!(answer.header("cache-control"), Some("no-store"));
            let answer = node.get(&format!("{STATUS}?stream_id={id}")).await;
            assert_eq!((answer.status, answer.json()), (200, expected), "{from} {to}");
            assert_eq!(answer.header("cache-control"), Some("no-store"));
            assert_eq!(read(&node, &id).await["status"], to);
        }
    }
    let reason = "r".repeat(256);
    let with_reason = json!({"stream_id": id, "status": "paused", "reason": reason});
    assert_eq!(node.post(STATUS, &with_reason).await.json(), with_reason);
    assert_eq!(read(&node, &id).await["reason"], reason);
    for (changes, text) in [
        (json!({"status": "gone"}), "status: must be enabled, paused or disabled"),
        (json!({"status": "Enabled"}), "status: must be enabled, paused or disabled"),
        (json!({"status": null}), "status"),
        (json!({"stream_id": null}), "stream_id"),
        (json!({"reason": format!("{reason}r")}), "reason: must be 1 to 256 bytes"),
        (json!({"until": "tomorrow"}), "until: unknown"),
    ] {
        let answer = node.post(STATUS, &with(&with_reason, &changes)).await;
        answer.is_refused(400, "invalid_request", text);
    }
    node.get(STATUS).await.is_refused(400, "invalid_request", "stream_id: is required");
    node.get(&format!("{STATUS}?stream_id={id}&stream_id={id}")).await.is_refused(
        400,
        "invalid_request",
        "twice",
    );
    node.call("DELETE", STREAM, &[], "").await.is_refused(400, "invalid_request", "stream_id: is required");
    assert_eq!(node.get(&format!("{STATUS}?stream_id={id}")).await.json(), with_reason);
    // The next change removes the reason.
    let enabled = json!({"stream_id": id, "status": "enabled"});
    assert_eq!(node.post(STATUS, &enabled).await.json(), enabled);
}

#[tokio::test]
async fn verification_bounds_state_length_and_interval() {
    let node = start(true).await;
    let id = made(&node, &flat()).await;
    let verify = async |state: &Value| node.post(VERIFICATION, &with(&json!({"stream_id": id}), state)).await;
    let longest = "s".repeat(256);
    verify(&json!({"state": format!("{longest}s")})).await.is_refused(
        400,
        "invalid_request",
        "state: must be",
    );
    verify(&json!({"state": 1})).await.is_refused(400, "invalid_request", "state");
    verify(&json!({"stat": "s"})).await.is_refused(400, "invalid_request", "stat: unknown");
    assert_eq!(verify(&json!({"state": longest})).await.status, 204);
    for secs in [0, 59] {
        node.advance_secs(secs);
        let answer = verify(&json!({})).await;
        answer.is_refused(429, "access_denied", "less than a minute ago");
        assert_eq!(answer.header("retry-after"), Some("60"));
    }
    node.advance_secs(1);
    assert_eq!(verify(&json!({})).await.status, 204);
    node.advance_secs(61);
    for status in ["paused", "disabled"] {
        node.post(STATUS, &json!({"stream_id": id, "status": status})).await;
        verify(&json!({})).await.is_refused(400, "invalid_request", "the stream is not enabled");
    }
    node.post(STATUS, &json!({"stream_id": id, "status": "enabled"})).await;
    assert_eq!(verify(&json!({})).await.status, 204);
}

#[tokio::test]
async fn excluded_subjects_are_limited_and_can_be_added() {
    let node = start(true).await;
    let id = made(&node, &flat()).await;
    let subject = |n: usize| json!({"format": "email", "email": format!("a{n}@b.example")});
    let ask = async |path: &str, subject: Value| {
        node.post(path, &json!({"stream_id": id, "subject": subject})).await
    };
    let outcome = |answer: Response| (answer.status, answer.body);
    for n in 0..64 {
        assert_eq!(outcome(ask(REMOVE, subject(n)).await), (204, String::new()), "{n}");
    }
    ask(REMOVE, subject(64)).await.is_refused(409, "invalid_request", "subjects");
    // An excluded subject counts once.
    assert_eq!(ask(REMOVE, subject(0)).await.status, 204);
    assert_eq!(outcome(ask(ADD, subject(0)).await), (200, String::new()));
    assert_eq!(outcome(ask(ADD, subject(0)).await), (200, String::new()), "it is there already");
    assert_eq!(ask(REMOVE, subject(64)).await.status, 204);
    let verified = json!({"stream_id": id, "subject": subject(1), "verified": true});
    assert_eq!(node.post(ADD, &verified).await.status, 200);
    for (changes, text) in [
        (json!({"subject": null}), "subject"),
        (json!({"subject": "a@b.example"}), "subject: must be an object"),
        (json!({"subject": {"format": "email"}}), "subject.email: must be a string"),
        (json!({"subject": {"format": "x"}}), "subject.format: unknown subject identifier format"),
        (
            json!({"subject": {"format": "email", "email": "a@b.example", "x": 1}}),
            "subject.x: is not a field",
        ),
        (
            json!({"subject": {"format": "phone_number", "phone_number": "+12065550100"}}),
            "subject.format: must be a format by which",
        ),
        (json!({"verified": "yes"}), "verified: must be"),
        (json!({"tenant": "x"}), "tenant: unknown"),
        (json!({"stream_id": null}), "stream_id"),
    ] {
        for path in [ADD, REMOVE] {
            node.post(path, &with(&verified, &changes)).await.is_refused(400, "invalid_request", text);
        }
    }
    // A subject that another exclusion still matches is not reported as added.
    let aliases = json!({"format": "aliases", "identifiers": [subject(1), subject(2)]});
    assert_eq!(ask(ADD, subject(3)).await.status, 200);
    assert_eq!(ask(REMOVE, aliases.clone()).await.status, 204);
    let text = "subject: another subject that was removed matches it";
    ask(ADD, subject(1)).await.is_refused(400, "invalid_request", text);
    ask(ADD, subject(2)).await.is_refused(400, "invalid_request", text);
    for subject in [aliases, subject(1), subject(2)] {
        assert_eq!(ask(ADD, subject.clone()).await.status, 200, "{subject}");
    }
    node.post("/v1/signals/subjects", &verified).await.is_refused(404, "not_found", "no such route");
}

#[tokio::test]
async fn streams_are_limited_per_caller() {
    let node = start(true).await;
    let gateway = node.certified("gateway");
    let mut ids = Vec::new();
    for _ in 0..100 {
        ids.push(made_over(&node, &gateway, &flat()).await);
    }
    let answer = node.post(STREAM, &flat()).await;
    answer.is_refused(409, "invalid_request", "streams");
    let second = node.certified("second");
    made_over(&node, &second, &flat()).await;
    let of = format!("{STREAM}?stream_id={}", ids[0]);
    assert_eq!(node.call("DELETE", &of, &[], "").await.status, 204);
    made(&node, &flat()).await;
    node.post(STREAM, &flat()).await.is_refused(409, "invalid_request", "streams");
}

#[tokio::test]
async fn a_retry_with_the_same_key_is_the_same_stream() {
    let node = start(true).await;
    let create = async |key: &str, request: &Value| {
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        node.call("POST", STREAM, &headers, request.to_string()).await
    };
    let first = create("k", &flat()).await;
    let id = id_of(&first);
    assert_eq!(create("k", &flat()).await.json(), first.json());
    create("k", &ssf()).await.is_refused(422, "invalid_request", "Idempotency-Key");
    assert_ne!(id_of(&create("l", &flat()).await), id);
    assert_eq!(node.get(STREAM).await.json().as_array().map(Vec::len), Some(2));
    // An idempotency key belongs to its caller.
    let headers = [("content-type", "application/json"), ("idempotency-key", "k")];
    let other = node.call_over(&node.certified("second"), "POST", STREAM, &headers, flat().to_string()).await;
    assert_ne!(id_of(&other), id);
}

#[tokio::test]
async fn pages_lead_through_all_streams_once_and_in_order() {
    let node = start(true).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(made(&node, &flat()).await);
    }
    ids.sort();
    made_over(&node, &node.certified("second"), &flat()).await;
    let (mut path, mut seen) = (format!("{STREAM}?limit=2"), Vec::new());
    loop {
        let answer = node.get(&path).await;
        let rows = answer.json();
        seen.extend(rows.as_array().expect("a page").iter().map(|row| row["stream_id"].clone()));
        let Some(link) = answer.header("link") else { break };
        path = link.trim_start_matches('<').split('>').next().expect("a link").to_owned();
    }
    assert_eq!(seen, ids);
    for query in ["limit=0", "limit=1001", "cursor=%3D", "owner=me"] {
        node.get(&format!("{STREAM}?{query}")).await.is_refused(400, "invalid_request", "");
    }
    for query in ["limit=1", "cursor=eA"] {
        let answer = node.get(&format!("{STREAM}?stream_id={}&{query}", ids[0])).await;
        answer.is_refused(400, "invalid_request", "not supported with stream_id");
    }
    let letters = node.get(&format!("{DEAD_LETTERS}?stream_id={}", ids[0])).await;
    assert_eq!((letters.status, letters.json()), (200, json!([])));
    node.get(DEAD_LETTERS).await.is_refused(400, "invalid_request", "stream_id: is required");
    let strange = format!("{DEAD_LETTERS}?stream_id={}&cursor=eA", ids[0]);
    node.get(&strange).await.is_refused(400, "invalid_request", "cursor: must be from a Link header");
}

#[tokio::test]
async fn a_stream_is_made_with_a_certificate_only() {
    let node = start(true).await;
    let token = node.own_token("agents", "stream-operator").await.token;
    let authorization = format!("Bearer {token}");
    let headers = [("content-type", "application/json"), ("authorization", authorization.as_str())];
    let answer = node.call_over(&node.anonymous(), "POST", STREAM, &headers, flat().to_string()).await;
    answer.is_refused(401, "access_denied", "client certificate");
    let stranger = call(&node, &node.certified("stranger"), "POST", STREAM, &flat()).await;
    stranger.is_refused(403, "access_denied", "streams.manage");
    let reader = call(&node, &node.certified("operator"), "GET", STREAM, &Value::Null).await;
    reader.is_refused(403, "access_denied", "streams.read");
}
