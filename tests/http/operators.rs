//! Blocked operators, and the rules that keep a cluster from locking its operators out.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use trust_fabric::limits;

use crate::support::raw::{self, Wire};
use crate::support::{Channel, FABRIC, IDP, JWT, Node, OTHER_IDP, Response, Setup, credential, with};

const OPERATOR: &str = "spiffe://trust.example/operator";
const SECOND: &str = "spiffe://trust.example/second";
const BLOCKS: &str = "/v1/blocks";
const DISABLED: &str = "https://schemas.openid.net/secevent/risc/event-type/account-disabled";

async fn secure() -> Node {
    Node::start_with(Setup { is_secure: true, ..Setup::default() }).await
}

async fn send(node: &Node, by: &Channel, method: &str, path: &str, body: &Value) -> Response {
    let json = [("content-type", "application/json")];
    node.call_over(by, method, path, &json, body.to_string()).await
}

async fn revoke(node: &Node, by: &str, request: &Value) -> Response {
    send(node, &node.certified(by), "POST", "/v1/revocations", request).await
}

async fn blocks(node: &Node) -> Vec<Value> {
    let answer = send(node, &node.certified("chief"), "GET", BLOCKS, &Value::Null).await;
    answer.json().as_array().expect("a list").clone()
}

fn disable_account(node: &Node, iss: &str, id: &str) -> Value {
    json!({
        "iss": iss, "jti": uuid::Uuid::new_v4().to_string(), "iat": node.now_secs(), "aud": FABRIC,
        "sub_id": {"format": "uri", "uri": id}, "events": {DISABLED: {}},
    })
}

/// Regression: an operator was blocked while the body of an admitted request was in transit, and the write
/// took effect.
#[tokio::test]
async fn operator_blocked_in_flight_changes_nothing() {
    let node = secure().await;
    let body = json!({"issuer": IDP, "more": 7}).to_string();
    let caller = Some(node.pair("operator"));
    let wire = Wire { address: node.tls_address(), tls: Some((&node.certificates().ca.certificate, caller)) };
    let mut stream = wire.connect().await.expect("connects");
    let head = format!(
        "POST /v1/sys/signals/allowance HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Expect: 100-continue\r\nConnection: close\r\n\r\n",
        node.tls_address(),
        body.len()
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    // The handler reads the body, so the caller is admitted.
    let mut invited = [0; 25];
    stream.read_exact(&mut invited).await.expect("invited");
    assert_eq!(&invited, b"HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(revoke(&node, "chief", &json!({"subject": OPERATOR, "block": true})).await.status, 202);
    let answer = raw::finish(stream, body.as_bytes()).await;
    assert_eq!(raw::status(&answer), 403, "{answer}");
    assert!(raw::body(&answer).contains("the caller is blocked or revoked"), "{answer}");
}

#[tokio::test]
async fn no_lease_admits_no_operator() {
    let node = Node::start_with(Setup {
        is_secure: true,
        more_config: "[metrics]\naccess = \"authenticated\"\n".to_owned(),
        survives_replica: true,
        ..Setup::default()
    })
    .await;
    let (operator, bearer) = (node.certified("operator"), node.own_token("agents", "operator").await.token);
    let bearer = format!("Bearer {bearer}");
    node.state().cluster().shutdown().await.expect("stops");
    node.clock.advance(limits::FRESHNESS_LEASE);
    let anonymous = node.anonymous();
    let block = format!("{BLOCKS}/{}", "A".repeat(43));
    let at_0 = ("svc-min-index", "0");
    let with_bearer = ("authorization", bearer.as_str());
    let asked = [
        (&operator, "GET", "/v1/sys/keys", vec![at_0]),
        (&operator, "DELETE", block.as_str(), vec![at_0]),
        (&operator, "GET", "/metrics", vec![]),
        (&anonymous, "GET", "/metrics", vec![with_bearer]),
        (&anonymous, "GET", "/v1/sys/keys", vec![with_bearer, at_0]),
    ];
    let asked = asked.iter().map(|(channel, method, path, headers)| async {
        let answer = node.call_over(channel, method, path, headers, "").await;
        answer.is_refused(503, "server_error", "no freshness lease");
    });
    futures::future::join_all(asked).await;
    let jwks = node.call_over(&operator, "GET", "/v1/identity/jwks", &[], "").await;
    assert_eq!(jwks.status, 200, "public routes stay available");
}

#[tokio::test]
async fn caller_cannot_block_itself() {
    let node = secure().await;
    for fact in [json!({"subject": OPERATOR}), json!({"client": OPERATOR})] {
        let answer = revoke(&node, "operator", &with(&fact, &json!({"block": true}))).await;
        answer.is_refused(400, "invalid_request", "block: must not name the caller itself");
    }
    let token = node.own_token("agents", "operator").await;
    let key = node.issuers.es256.kid();
    let of_bearer = [
        json!({"subject": token.claims["sub"], "block": true}),
        json!({"jti": token.claims["jti"], "block": true}),
        // The key that signed the credential from which the bearer token derives.
        json!({"key": key, "issuer": node.issuers.kubernetes()}),
    ];
    let bearer = format!("Bearer {}", token.token);
    for request in of_bearer {
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        let anonymous = node.anonymous();
        let answer =
            node.call_over(&anonymous, "POST", "/v1/revocations", &headers, request.to_string()).await;
        answer.is_refused(400, "invalid_request", "block: must not name the caller itself");
    }
    let gateway = node.certified("gateway");
    let itself = disable_account(&node, IDP, "spiffe://trust.example/gateway");
    let answer = send(&node, &gateway, "POST", "/v1/signals/events", &itself).await;
    answer.is_refused(400, "invalid_request", "sub_id: must not name the caller itself");
    assert_eq!(blocks(&node).await, [] as [Value; 0]);
    // It may revoke tokens issued to it.
    assert_eq!(revoke(&node, "operator", &json!({"subject": OPERATOR})).await.status, 202);
}

/// `IDP` of the tests may block operators, `OTHER_IDP` may not.
#[tokio::test]
async fn only_a_permitted_issuer_blocks_operators() {
    let node = secure().await;
    let second = node.certified("second");
    let send = async |set: &Value| send(&node, &second, "POST", "/v1/signals/events", set).await;
    let answer = send(&disable_account(&node, OTHER_IDP, OPERATOR)).await;
    answer.is_refused(403, "access_denied", "may not block an operator");
    assert_eq!(blocks(&node).await, [] as [Value; 0]);
    // A watermark is no block, and another workload is no operator.
    let revoked = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
    let watermark = with(&disable_account(&node, OTHER_IDP, OPERATOR), &json!({"events": {revoked: {}}}));
    assert_eq!(send(&watermark).await.status, 202);
    assert_eq!(send(&disable_account(&node, OTHER_IDP, "spiffe://trust.example/x")).await.status, 202);
    node.disable_account(OPERATOR).await;
    assert_eq!(blocks(&node).await.len(), 2);
}

#[tokio::test]
async fn ban_lasts_until_it_is_lifted() {
    let node = secure().await;
    let second = node.certified("second");
    let source = || credential(&node.issuers.reporter(), JWT);
    let exchange = async || {
        send(&node, &second, "POST", "/v1/exchange/token", &with(&source(), &json!({}))).await.status
    };
    assert_eq!(exchange().await, 200);
    // A watermark covers no certificate, and the response reports that.
    let made = revoke(&node, "operator", &json!({"subject": SECOND})).await;
    assert_eq!((made.status, &made.json()["blocked"]), (202, &json!(false)));
    assert_eq!(made.json()["not_covered"], json!(["credentials issued later", "client certificates"]));
    assert_eq!(exchange().await, 200);
    let made =
        revoke(&node, "operator", &json!({"subject": SECOND, "block": true, "reason": "leaked"})).await;
    assert_eq!((made.status, &made.json()["blocked"]), (202, &json!(true)));
    assert_eq!(made.json().get("not_covered"), None);
    assert_eq!(exchange().await, 403);
    node.advance_secs(3600);
    assert_eq!(exchange().await, 403);
    let listed = blocks(&node).await;
    assert_eq!(
        with(&listed[0], &json!({"id": null, "blocked_at": null})),
        json!({"kind": "subject", "value": SECOND, "by": OPERATOR, "family": "operator", "reason": "leaked"})
    );
    let path = format!("{BLOCKS}/{}", listed[0]["id"].as_str().expect("id"));
    assert_eq!(send(&node, &node.certified("operator"), "DELETE", &path, &Value::Null).await.status, 204);
    let claims = node.issuers.service_account("demo", "reporter");
    let claims =
        with(&claims, &json!({"iat": node.now_secs(), "nbf": node.now_secs(), "exp": node.now_secs() + 60}));
    let later = credential(&node.issuers.es256.sign(&claims), JWT);
    assert_eq!(send(&node, &second, "POST", "/v1/exchange/token", &later).await.status, 200);
}

#[tokio::test]
async fn ban_covers_every_kind() {
    let node = secure().await;
    let kubernetes = node.issuers.kubernetes();
    let [later, certificates] = ["credentials issued later", "client certificates"];
    let keys = send(&node, &node.certified("operator"), "GET", "/v1/sys/keys", &Value::Null).await.json();
    let own_key = keys.as_array().expect("keys").last().expect("a key")["kid"].clone();
    for (request, left, is_new) in [
        (json!({"subject": "spiffe://trust.example/x"}), json!([later, certificates]), true),
        (json!({"subject": "x", "issuer": kubernetes}), json!([later]), true),
        (json!({"email": "x@a.example", "issuer": IDP}), json!([later]), true),
        (json!({"client": "spiffe://trust.example/y"}), json!([later, certificates]), true),
        (json!({"client": "z", "issuer": IDP}), json!([later]), true),
        (json!({"jti": "x", "issuer": kubernetes}), json!(null), true),
        // Blocked without the request.
        (json!({"key": "x", "issuer": kubernetes}), json!(null), false),
        // Tainted too, which no operator can undo.
        (json!({"key": own_key}), json!(null), true),
    ] {
        let made = revoke(&node, "operator", &request).await.json();
        assert_eq!(made.get("not_covered").unwrap_or(&Value::Null), &left, "{request}");
        let before = blocks(&node).await.len();
        let made = revoke(&node, "operator", &with(&request, &json!({"block": true}))).await;
        assert_eq!((made.status, &made.json()["blocked"]), (202, &json!(true)), "{request}");
        assert_eq!(blocks(&node).await.len() - before, usize::from(is_new), "{request}");
    }
    for value in [FABRIC, "trust.example", "spiffe://trust.example"] {
        let answer = revoke(&node, "operator", &json!({"client": value, "block": true})).await;
        answer.is_refused(400, "invalid_request", "block: must not name this fabric");
    }
}
