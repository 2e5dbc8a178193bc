//! Signing keys over HTTP: published, rotated, tainted, retained (contract §3, Keys).

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::support::{BAD_SUBJECT, FABRIC, JWT, Node, OWN, credential, with};

/// The token-signing keys in the JWK Set.
async fn published(node: &Node) -> Vec<String> {
    let jwks = node.get("/v1/identity/jwks").await.json();
    let keys = jwks["keys"].as_array().expect("keys");
    keys.iter()
        .filter(|key| key["alg"] == "ES256")
        .map(|key| key["kid"].as_str().expect("kid").to_owned())
        .collect()
}

async fn keys(node: &Node) -> Vec<Value> {
    node.get("/v1/sys/keys").await.json().as_array().expect("keys").clone()
}

/// A request for a token with a fresh credential of a service account.
fn request(node: &Node) -> Value {
    let now = node.now_secs();
    let times = json!({"iat": now, "nbf": now, "exp": now + 3600});
    let claims = with(&node.issuers.service_account("demo", "reporter"), &times);
    with(&credential(&node.issuers.es256.sign(&claims), JWT), &json!({"audience": FABRIC}))
}

#[tokio::test]
async fn only_public_keys_are_published_each_for_one_use() {
    let node = Node::start().await;
    let jwks = node.get("/v1/identity/jwks").await.json();
    let keys = jwks["keys"].as_array().expect("keys");
    let keys: Vec<_> = keys.iter().filter(|key| key["kty"] == "EC").collect();
    assert_eq!(keys.len(), 2, "the key that signs and its successor");
    for key in keys {
        let names: Vec<&str> = key.as_object().expect("object").keys().map(String::as_str).collect();
        assert_eq!(names, ["alg", "crv", "kid", "kty", "use", "x", "y"]);
        assert_eq!(
            (&key["alg"], &key["use"], &key["crv"]),
            (&json!("ES256"), &json!("sig"), &json!("P-256"))
        );
    }
}

#[tokio::test]
async fn jwk_set_is_cacheable_for_a_minute() {
    let node = Node::start().await;
    for path in ["/v1/identity/jwks", "/.well-known/oauth-authorization-server"] {
        let first = node.get(path).await;
        assert_eq!(first.header("cache-control"), Some("public, max-age=60, must-revalidate"));
        let etag = first.header("etag").expect("ETag").to_owned();
        assert!(etag.starts_with('"') && etag.ends_with('"') && etag.len() > 20, "strong: {etag}");
        let list = format!("\"x\", {etag}");
        let weak = format!("W/{etag}");
        for known in [etag.as_str(), list.as_str(), weak.as_str(), "*"] {
            let again = node.call("GET", path, &[("if-none-match", known)], "").await;
            assert_eq!((again.status, again.body.as_str()), (304, ""), "{known}");
            assert_eq!(again.header("etag"), Some(etag.as_str()));
            assert_eq!(again.header("cache-control"), Some("public, max-age=60, must-revalidate"));
        }
        let other = node.call("GET", path, &[("if-none-match", "\"x\"")], "").await;
        assert_eq!(other.status, 200);
    }
    let etag = node.get("/v1/identity/jwks").await.header("etag").expect("ETag").to_owned();
    node.advance_secs(600);
    assert_eq!(node.post("/v1/sys/keys/rotate", &json!({})).await.status, 200);
    let changed = node.call("GET", "/v1/identity/jwks", &[("if-none-match", &etag)], "").await;
    assert_eq!(changed.status, 200, "another set has another ETag");
}

#[tokio::test]
async fn jwk_set_media_type_is_returned_on_request() {
    let node = Node::start().await;
    for (accept, media) in [
        ("application/jwk-set+json", "application/jwk-set+json"),
        ("application/jwk-set+json, application/json;q=0.9", "application/jwk-set+json"),
        ("application/json", "application/json"),
        ("*/*", "application/json"),
    ] {
        let answer = node.call("GET", "/v1/identity/jwks", &[("accept", accept)], "").await;
        assert_eq!(answer.header("content-type"), Some(media), "{accept}");
    }
}

#[tokio::test]
async fn a_rotation_waits_for_the_successor_and_old_tokens_live_on() {
    let node = Node::start().await;
    node.post("/v1/sys/keys/rotate", &json!({})).await.is_refused(
        409,
        "invalid_request",
        "the next one is from 20",
    );
    node.advance_secs(599);
    node.post("/v1/sys/keys/rotate", &json!({})).await.is_refused(409, "invalid_request", "");
    node.advance_secs(1);
    let old = node.granted(&request(&node)).await;
    let rotated = node.post("/v1/sys/keys/rotate", &json!({})).await;
    assert_eq!(rotated.status, 200, "{}", rotated.body);
    let rotated = rotated.json();
    assert_eq!(rotated["retired"], old.header["kid"]);
    let new = node.granted(&request(&node)).await;
    assert_eq!((&new.header["kid"], new.header["kid"] == old.header["kid"]), (&rotated["active"], false));
    // Tokens of the retired key are still exchanged and verified.
    node.granted(&credential(&old.token, OWN)).await;
    node.verify(&old).await;
    assert_eq!(published(&node).await.len(), 3, "retired, active, successor");
    let retired = |keys: &[Value]| keys.iter().find(|key| key["kid"] == old.header["kid"]).cloned();
    assert_eq!(retired(&keys(&node).await).expect("listed")["state"], "retired");
    // It stays in the JWK Set until its longest token has expired.
    node.advance_secs(3600 + 4);
    assert!(published(&node).await.contains(&rotated["retired"].as_str().expect("kid").to_owned()));
    node.advance_secs(1);
    assert!(!published(&node).await.contains(&rotated["retired"].as_str().expect("kid").to_owned()));
    node.granted(&request(&node)).await;
}

#[tokio::test]
async fn a_tainted_key_is_refused_at_once_and_leaves_the_key_set() {
    let node = Node::start().await;
    node.advance_secs(600);
    let token = node.granted(&request(&node)).await;
    node.granted(&credential(&token.token, OWN)).await;
    let kid = token.header["kid"].as_str().expect("kid");
    let tainted = node.post(&format!("/v1/sys/keys/{kid}/taint"), &json!({})).await;
    assert_eq!((tainted.status, tainted.json()), (200, json!({"tainted": kid})));
    node.exchange(&credential(&token.token, OWN)).await.is_refused(400, "invalid_request", "subject_token");
    assert!(!published(&node).await.contains(&kid.to_owned()));
    let next = node.granted(&request(&node)).await;
    assert_ne!(next.header["kid"], kid);
    assert_eq!(keys(&node).await.iter().filter(|key| key["state"] == "tainted").count(), 1);
}

#[tokio::test]
async fn without_a_key_that_is_old_enough_nothing_is_minted() {
    let node = Node::start().await;
    let token = node.granted(&request(&node)).await;
    let kid = token.header["kid"].as_str().expect("kid");
    node.post(&format!("/v1/sys/keys/{kid}/taint"), &json!({})).await;
    node.exchange(&request(&node)).await.is_refused(503, "server_error", "cannot sign");
    // All else works, but load balancers should not choose it.
    for (path, status, word) in [("/readyz", 503, "fail"), ("/v1/sys/health", 200, "warn")] {
        let health = node.get(path).await;
        assert_eq!((health.status, &health.json()["missing"]), (status, &json!(["signing key"])));
        assert_eq!((&health.json()["locked"], &health.json()["status"]), (&json!(true), &json!(word)));
    }
    assert_eq!(node.get("/v1/tools").await.status, 200);
    assert_eq!(node.get("/livez").await.status, 200);
    node.advance_secs(600);
    node.granted(&request(&node)).await;
    assert_eq!(node.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn an_unknown_key_cannot_be_tainted() {
    let node = Node::start().await;
    for kid in ["unknown", "..%2f..%2fetc", "%00", "%ff"] {
        let answer = node.post(&format!("/v1/sys/keys/{kid}/taint"), &json!({})).await;
        let (status, ..) = answer.refusal();
        assert!(matches!(status, 400 | 404), "{kid}: {}", answer.body);
    }
}

#[tokio::test]
async fn keys_survive_a_restart_and_only_their_owner_can_read_them() {
    let mut node = Node::start().await;
    node.advance_secs(600);
    let token = node.granted(&request(&node)).await;
    node.post("/v1/sys/keys/rotate", &json!({})).await;
    let (before, listed) = (published(&node).await, keys(&node).await);
    node.restart().await;
    assert_eq!((published(&node).await, keys(&node).await), (before, listed));
    node.verify(&token).await;
    node.granted(&credential(&token.token, OWN)).await;
    let directory = node.directory.path().join("data/keys");
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    let files: Vec<_> =
        std::fs::read_dir(&directory).expect("directory").map(|file| file.expect("file").path()).collect();
    // The private half of the retired key is removed: it never signs again.
    let retired = format!("{}.p8", token.header["kid"].as_str().expect("kid"));
    assert!(files.len() >= 2 && !files.iter().any(|file| file.ends_with(&retired)), "{files:?}");
    assert!(files.iter().all(|file| mode(file) == 0o600));
}

/// Attack: the keyring once published every private half that was missing in the log. A tainted key that the
/// log had removed returned at the next rotation, and the thief's tokens with it.
#[tokio::test]
async fn a_tainted_key_never_comes_back() {
    let mut node = Node::start().await;
    node.advance_secs(600);
    let stolen = node.granted(&request(&node)).await;
    let kid = stolen.header["kid"].as_str().expect("kid").to_owned();
    node.post(&format!("/v1/sys/keys/{kid}/taint"), &json!({})).await;
    // Until the log has removed it, and two more keys are needed.
    for _ in 0..3 {
        node.advance_secs(2 * 3600);
        node.post("/v1/sys/keys/rotate", &json!({})).await;
        node.restart().await;
        assert!(!published(&node).await.contains(&kid));
        assert!(!node.directory.path().join(format!("data/keys/{kid}.p8")).exists());
    }
    let (status, ..) = node.exchange(&credential(&stolen.token, OWN)).await.refusal();
    assert_eq!(status, 400);
}

/// Attack: a taint covered the tokens that the key had signed, but not those exchanged from them, so that a
/// thief's chain continued under the next key.
#[tokio::test]
async fn descendants_of_a_tainted_key_are_refused_under_any_key() {
    let node = Node::start().await;
    node.advance_secs(600);
    let begun = node.own_token("agents", "orchestrator").await;
    let kid = begun.header["kid"].as_str().expect("kid").to_owned();
    assert_eq!(node.post("/v1/sys/keys/rotate", &json!({})).await.status, 200);
    let mut token = begun.token;
    for _ in 0..3 {
        let on = node.granted(&with(&credential(&token, OWN), &json!({"audience": FABRIC}))).await;
        assert_ne!(on.header["kid"], kid);
        token = on.token;
    }
    assert_eq!(node.post(&format!("/v1/sys/keys/{kid}/taint"), &json!({})).await.status, 200);
    let answer = node.exchange(&with(&credential(&token, OWN), &json!({"audience": FABRIC}))).await;
    answer.is_refused(400, "invalid_request", BAD_SUBJECT);
    // A chain with another origin continues.
    let other = node.own_token("agents", "orchestrator").await.token;
    node.granted(&with(&credential(&other, OWN), &json!({"audience": FABRIC}))).await;
}
