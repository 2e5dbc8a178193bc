//! "`nonce`: spent once in the whole cluster per subject", and retries (contract §1, §3).

use serde_json::{Value, json};

use crate::support::{JWT, Minted, Node, REPORTER, TOOL, credential, with};

fn bound(token: &str, nonce: &str) -> Value {
    let scope = json!({"htm": "POST", "htu": "https://tools.example/sql", "nonce": nonce});
    with(&credential(token, JWT), &json!({"execution_scope": scope}))
}

#[tokio::test]
async fn a_nonce_is_spent_once_also_after_a_restart() {
    let mut node = Node::start().await;
    let first = bound(&node.issuers.reporter(), "n");
    node.granted(&first).await;
    node.exchange(&first).await.is_refused(400, "invalid_request", "nonce already used");
    node.restart().await;
    node.exchange(&first).await.is_refused(400, "invalid_request", "nonce already used");
    // Another token of the same subject, and another name of the same subject.
    node.exchange(&bound(&node.issuers.reporter(), "n")).await.is_refused(
        400,
        "invalid_request",
        "already used",
    );
    let identifier = node.issuers.agents.sign(&node.issuers.identifier(REPORTER));
    node.exchange(&bound(&identifier, "n")).await.is_refused(400, "invalid_request", "already used");
    node.granted(&bound(&identifier, "m")).await;
}

#[tokio::test]
async fn nonce_belongs_to_one_subject() {
    let node = Node::start().await;
    for name in ["reporter", "writer"] {
        let token = node.issuers.es256.sign(&node.issuers.service_account("demo", name));
        node.granted(&bound(&token, "n")).await;
    }
}

#[tokio::test]
async fn one_of_many_concurrent_uses_of_a_nonce_passes() {
    let node = Node::start().await;
    let request = bound(&node.issuers.reporter(), "n");
    let answers = futures::future::join_all((0..32).map(|_| node.exchange(&request))).await;
    let passed = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(passed, 1);
    assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 400)));
}

#[tokio::test]
async fn nonce_is_retained_as_long_as_a_credential_can_present_it() {
    let node = Node::start().await;
    let long = json!({"exp": 1_900_000_000});
    let token = node.issuers.es256.sign(&with(&node.issuers.service_account("demo", "reporter"), &long));
    node.granted(&bound(&token, "n")).await;
    for _ in 0..24 {
        node.advance_secs(3600 - 1);
        node.exchange(&bound(&token, "n")).await.is_refused(400, "invalid_request", "already used");
    }
    node.advance_secs(24);
    node.exchange(&bound(&token, "n")).await.is_refused(400, "invalid_request", "subject_token is not valid");
}

#[tokio::test]
async fn a_refused_exchange_spends_nothing() {
    let node = Node::start().await;
    let request = bound(&node.issuers.reporter(), "n");
    node.exchange(&with(&request, &json!({"scope": "root"}))).await.is_refused(403, "access_denied", "scope");
    node.exchange(&with(&request, &json!({"audience": "https://x.example"}))).await.is_refused(
        403,
        "access_denied",
        "",
    );
    node.granted(&request).await;
}

/// Regression: the tokens of a request and its retry had two `jti`, so that each passed verification once.
#[tokio::test]
async fn retried_exchange_repeats_the_token_of_the_first() {
    let mut node = Node::start().await;
    let tool = json!({"tool_id": "sql", "name": "SQL", "resource_uri": TOOL});
    assert_eq!(node.post("/v1/tools", &tool).await.status, 201);
    let key = [("idempotency-key", "attempt-1")];
    let verify = async |node: &Node, minted: &Minted| {
        node.post("/v1/mcp/verify", &json!({"tool_id": "sql", "token": minted.token})).await
    };
    let bare = |token: &str| {
        let scope = json!({"htm": "POST", "htu": "https://tools.example/sql"});
        with(&credential(token, JWT), &json!({"execution_scope": scope}))
    };
    for request in [
        bound(&node.issuers.reporter(), "n"),
        bare(&node.issuers.es256.sign(&node.issuers.service_account("demo", "writer"))),
    ] {
        let first = node.exchange_with(&request, &key).await;
        assert_eq!(first.json()["expires_in"], 30);
        let first = first.minted();
        node.advance_secs(10);
        node.restart().await;
        // Another entry is applied in between: `idx` is that of the retry.
        assert_eq!(node.post("/v1/revocations", &json!({"jti": "other"})).await.status, 202);
        let again = node.exchange_with(&request, &key).await;
        assert_eq!(again.json()["expires_in"], 20);
        let again = again.minted();
        for name in ["jti", "iat", "nbf", "exp"] {
            assert_eq!(first.claims[name], again.claims[name], "{name}");
        }
        assert_ne!(first.claims["idx"], again.claims["idx"]);
        assert_eq!(verify(&node, &again).await.status, 200);
        for minted in [&first, &again] {
            verify(&node, minted).await.is_refused(403, "access_denied", "token already used");
        }
        let without_key = node.exchange(&request).await;
        assert_eq!(without_key.status == 200, request["execution_scope"].get("nonce").is_none());
        // After its `exp` there is nothing to repeat, although the credential is valid.
        node.advance_secs(20);
        let late = node.exchange_with(&request, &key).await;
        late.is_refused(
            400,
            "invalid_request",
            "Idempotency-Key: the token of the first request has expired",
        );
    }
}

/// Regression: the token was accepted again once the clock showed the times of its life a second time.
#[tokio::test]
async fn clock_set_back_does_not_release_a_used_token() {
    let node = Node::start().await;
    let tool = json!({"tool_id": "sql", "name": "SQL", "resource_uri": TOOL});
    assert_eq!(node.post("/v1/tools", &tool).await.status, 201);
    let verify = async |minted: &Minted| {
        node.post("/v1/mcp/verify", &json!({"tool_id": "sql", "token": minted.token})).await
    };
    let token = node.issuers.reporter();
    let used = node.granted(&bound(&token, "n")).await;
    let unused = node.granted(&bound(&token, "m")).await;
    let retried = async || {
        let body = json!({"tool_id": "sql", "token": used.token}).to_string();
        node.call("POST", "/v1/mcp/verify", &[("idempotency-key", "attempt-1")], body).await
    };
    for _ in 0..2 {
        assert_eq!(retried().await.status, 200);
    }
    node.set_back_secs(1_000);
    node.advance_secs(1_000);
    verify(&used).await.is_refused(403, "access_denied", "token already used");
    // Log time reaches the end of both tokens. By the clock, which is set back again, they are valid.
    node.advance_secs(30);
    assert_eq!(node.post("/v1/revocations", &json!({"jti": "other"})).await.status, 202);
    node.set_back_secs(1_030);
    node.advance_secs(1_001);
    verify(&used).await.is_refused(403, "access_denied", "token already used");
    for answer in [verify(&unused).await, retried().await] {
        answer.is_refused(403, "access_denied", "token has expired by log time");
    }
    // A token without an execution scope is not concerned, nor is one that ends after log time.
    node.granted(&credential(&token, JWT)).await;
    node.granted(&bound(&token, "l")).await;
    node.set_back_secs(5);
    node.advance_secs(1);
    node.exchange(&bound(&token, "k")).await.is_refused(503, "server_error", "token has expired by log time");
    let metrics = node.get("/metrics").await.body;
    assert!(metrics.contains("svc_log_time_ahead_seconds 33\n"), "{metrics}");
    node.advance_secs(28);
    node.granted(&bound(&token, "k")).await;
}

/// A revoked `jti` is not minted again, although the log index of the retry is later than the revocation.
#[tokio::test]
async fn retried_exchange_mints_no_revoked_jti() {
    let node = Node::start().await;
    let tool = json!({"tool_id": "sql", "name": "SQL", "resource_uri": TOOL});
    assert_eq!(node.post("/v1/tools", &tool).await.status, 201);
    let request = bound(&node.issuers.reporter(), "n");
    let key = [("idempotency-key", "attempt-1")];
    let first = node.exchange_with(&request, &key).await.minted();
    let again = node.exchange_with(&request, &key).await.minted();
    assert_eq!(node.post("/v1/revocations", &json!({"jti": first.claims["jti"]})).await.status, 202);
    let refused = node.exchange_with(&request, &key).await;
    refused.is_refused(400, "invalid_request", "has expired or was revoked");
    for minted in [first, again] {
        let answer = node.post("/v1/mcp/verify", &json!({"tool_id": "sql", "token": minted.token})).await;
        answer.is_refused(403, "access_denied", "token revoked");
    }
}

#[tokio::test]
async fn exchange_without_execution_scope_ignores_its_key() {
    let node = Node::start().await;
    let request = credential(&node.issuers.reporter(), JWT);
    let key = [("idempotency-key", "attempt-1")];
    let first = node.exchange_with(&request, &key).await.minted();
    let again = node.exchange_with(&with(&request, &json!({"scope": "db.read"})), &key).await.minted();
    assert_ne!(first.claims["jti"], again.claims["jti"]);
}

#[tokio::test]
async fn retry_with_its_key_passes_and_other_callers_fail() {
    let mut node = Node::start().await;
    let request = bound(&node.issuers.reporter(), "n");
    let key = [("idempotency-key", "attempt-1")];
    let first = node.exchange_with(&request, &key).await.minted();
    let again = node.exchange_with(&request, &key).await.minted();
    assert_eq!(first.claims["jti"], again.claims["jti"]);
    node.exchange(&request).await.is_refused(400, "invalid_request", "already used");
    // Twice: at the second attempt this key and this request are known together too.
    for _ in 0..2 {
        let other_key = node.exchange_with(&request, &[("idempotency-key", "attempt-2")]).await;
        other_key.is_refused(400, "invalid_request", "already used");
    }
    let other = with(&request, &json!({"scope": "db.read"}));
    node.exchange_with(&other, &key).await.is_refused(422, "invalid_request", "Idempotency-Key");
    node.restart().await;
    node.exchange_with(&request, &key).await.minted();
    // A retry repeats every check.
    node.advance_secs(4000);
    node.exchange_with(&request, &key).await.is_refused(400, "invalid_request", "subject_token");
}

#[tokio::test]
async fn one_subject_cannot_use_the_key_of_another() {
    let node = Node::start().await;
    let key = [("idempotency-key", "shared")];
    for name in ["reporter", "writer"] {
        let token = node.issuers.es256.sign(&node.issuers.service_account("demo", name));
        node.exchange_with(&bound(&token, "n"), &key).await.minted();
    }
}
