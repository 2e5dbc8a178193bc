//! `/v1/identity/agent/encryption-key`: the keys with which others encrypt to an agent.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use trust_fabric::limits;

use crate::support::python::run;
use crate::support::{FABRIC, NOW_SECS, Node, OWN, Response, Setup, credential, encode, with};

const PATH: &str = "/v1/identity/agent/encryption-key";
const NOT_ITS_OWN: &str = "the bearer token must be the subject's own";
/// The public key of RFC 8037 §A.6.
const X: &str = "3p7bfXt9wbTTW2HC7OQ1Nz-DQ8hbeGdNrfx-FG-IK08";

/// An agent and its identity token.
struct Agent {
    id: String,
    token: String,
}

async fn issue(node: &Node, changes: &Value) -> Agent {
    let request = json!({"agent_name": "planner", "platform": "mcp", "capabilities": ["db.read"]});
    let answer = node.post("/v1/identity/agent", &with(&request, changes)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let text = |name: &str| answer.json()[name].as_str().expect("text").to_owned();
    Agent { id: text("agent_id"), token: text("token") }
}

async fn agent(node: &Node) -> Agent {
    issue(node, &json!({})).await
}

async fn revoke(node: &Node, agent: &Agent) {
    let path = format!("/v1/identity/agents/{}", agent.id.replace(':', "%3A").replace('/', "%2F"));
    assert_eq!(node.call("DELETE", &path, &[], "").await.status, 204);
}

/// A valid key for each number.
fn key(number: u8) -> Value {
    let mut x = [9; 32];
    x[0] = number;
    json!({"kty": "OKP", "crv": "X25519", "x": encode(x)})
}

async fn register_with(node: &Node, token: &str, headers: &[(&str, &str)], body: &str) -> Response {
    let authorization = format!("Bearer {token}");
    let ours = [("authorization", authorization.as_str()), ("content-type", "application/json")];
    let headers: Vec<_> = headers.iter().copied().chain(ours).collect();
    node.call("POST", PATH, &headers, body).await
}

async fn register(node: &Node, agent: &Agent, key: &Value) -> Response {
    let body = json!({"workload_id": agent.id, "key": key}).to_string();
    register_with(node, &agent.token, &[], &body).await
}

async fn keys_of(node: &Node, workload_id: &str) -> Response {
    node.get(&format!("{PATH}?workload_id={workload_id}")).await
}

#[tokio::test]
async fn a_key_is_registered_once_and_read_back() {
    let mut node = Node::start().await;
    let agent = agent(&node).await;
    assert_eq!(keys_of(&node, &agent.id).await.json(), json!({"keys": []}));
    let jwk = json!({"kty": "OKP", "crv": "X25519", "x": X});
    let answer = register(&node, &agent, &with(&jwk, &json!({"ext": true, "key_ops": []}))).await;
    // RFC 7638, computed without the product.
    let kid = "giQqigT_IKcuzHl0FVJ3k5ts3_TWNAxvsC08UZsfcM8";
    let kept = with(&jwk, &json!({"use": "enc", "kid": kid}));
    let expected = json!({
        "workload_id": agent.id, "kid": kid, "key": kept, "status": "active",
        "registered_at": "2027-01-15T08:00:00.000Z",
    });
    assert_eq!((answer.status, answer.json()), (201, expected.clone()), "{}", answer.body);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    // Registering the same key again changes nothing.
    node.advance_secs(60);
    let again = register(&node, &agent, &kept).await;
    assert_eq!((again.status, again.json()), (200, expected.clone()));
    // Another `alg` replaces the earlier registration of the same key.
    let changed = register(&node, &agent, &with(&jwk, &json!({"alg": "ECDH-ES+A256KW"}))).await;
    let kept = with(&kept, &json!({"alg": "ECDH-ES+A256KW"}));
    assert_eq!((changed.status, changed.json()), (200, with(&expected, &json!({"key": kept}))));
    node.restart().await;
    for (accept, media) in [
        ("application/json", "application/json"),
        ("application/jwk-set+json", "application/jwk-set+json"),
        ("*/*", "application/json"),
    ] {
        let path = format!("{PATH}?workload_id={}", agent.id);
        let answer = node.call("GET", &path, &[("accept", accept)], "").await;
        assert_eq!((answer.status, answer.json()), (200, json!({"keys": [kept]})));
        assert_eq!(answer.header("content-type"), Some(media));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
    }
    // "encryption keys never appear" in the JWK Set of signing keys.
    assert!(!node.get("/v1/identity/jwks").await.body.contains(kid));
    assert_eq!(node.now_secs(), NOW_SECS + 60);
}

#[tokio::test]
async fn an_agent_registers_its_own_keys_only() {
    let node = Node::start().await;
    let (one, other) = (agent(&node).await, agent(&node).await);
    let body = |agent: &Agent| json!({"workload_id": agent.id, "key": key(1)}).to_string();
    let answer = register_with(&node, &other.token, &[], &body(&one)).await;
    let another = "workload_id: must be the subject of the bearer token";
    answer.is_refused(403, "access_denied", another);
    let workload = node.own_token("agents", "orchestrator").await;
    let answer = register_with(&node, &workload.token, &[], &body(&one)).await;
    answer.is_refused(403, "access_denied", another);
    // A token with an actor has the subject of the exchanged token and speaks for both.
    let reporter = node.own_token("demo", "reporter").await;
    let request = with(&credential(&reporter.token, OWN), &json!({"audience": FABRIC}));
    let acted = with(&request, &json!({"actor_token": workload.token, "actor_token_type": OWN}));
    let acted = node.exchange(&acted).await.minted();
    assert_eq!(acted.claims["sub"], reporter.claims["sub"]);
    let its_own = json!({"workload_id": acted.claims["sub"], "key": key(1)}).to_string();
    let answer = register_with(&node, &acted.token, &[], &its_own).await;
    answer.is_refused(403, "access_denied", NOT_ITS_OWN);
    // No bearer token, and tokens of other subjects.
    let answer = node.call("POST", PATH, &[("content-type", "application/json")], body(&one)).await;
    answer.is_refused(401, "access_denied", "the agent's own bearer token is required");
    let answer = register_with(&node, &node.issuers.reporter(), &[], &body(&one)).await;
    answer.is_refused(401, "access_denied", "the bearer token is not valid");
    for agent in [one, other] {
        assert_eq!(keys_of(&node, &agent.id).await.json(), json!({"keys": []}));
    }
}

#[tokio::test]
async fn keys_are_readable_over_tls_by_known_callers() {
    let node = Node::start_with(Setup { is_secure: true, ..Setup::default() }).await;
    let agent = agent(&node).await;
    assert_eq!(register(&node, &agent, &key(1)).await.status, 201);
    let path = format!("{PATH}?workload_id={}", agent.id);
    let stranger = node.call_over(&node.certified("stranger"), "GET", &path, &[], "").await;
    assert_eq!(stranger.status, 200, "{}", stranger.body);
    let authorization = format!("Bearer {}", agent.token);
    let bearer = [("authorization", authorization.as_str())];
    let itself = node.call_over(&node.anonymous(), "GET", &path, &bearer, "").await;
    assert_eq!((itself.status, &itself.body), (200, &stranger.body));
    let nobody = node.call_over(&node.anonymous(), "GET", &path, &[], "").await;
    nobody.is_refused(401, "access_denied", "a client certificate or a bearer token is required");
}

#[tokio::test]
async fn keys_of_unknown_revoked_and_ended_agents_are_not_returned() {
    let node = Node::start().await;
    let parent = issue(&node, &json!({"delegation_depth": 1})).await;
    let child = issue(&node, &json!({"on_behalf_of": parent.id})).await;
    let other = agent(&node).await;
    for agent in [&parent, &child, &other] {
        assert_eq!(register(&node, agent, &key(1)).await.status, 201);
    }
    let unknown = "no active agent has this workload_id";
    keys_of(&node, "wimse://trust.example/agent/mcp/none").await.is_refused(404, "not_found", unknown);
    let keyless = keys_of(&node, "wimse://trust.example/ns/demo/sa/reporter").await;
    keyless.is_refused(404, "not_found", "no encryption key is registered for this workload_id");
    revoke(&node, &parent).await;
    for revoked in [&parent, &child] {
        keys_of(&node, &revoked.id).await.is_refused(404, "not_found", unknown);
        let answer = register(&node, revoked, &key(2)).await;
        answer.is_refused(401, "access_denied", "the bearer token is not valid");
    }
    assert_eq!(keys_of(&node, &other.id).await.status, 200);
    node.advance_secs(30 * 24 * 3600 - 1);
    assert_eq!(keys_of(&node, &other.id).await.status, 200);
    node.advance_secs(1);
    keys_of(&node, &other.id).await.is_refused(404, "not_found", unknown);
}

/// Attack: a thief of a token registers its own key to read messages to the agent. The key must not return
/// when the revocation expires.
#[tokio::test]
async fn a_key_is_as_good_as_the_token_that_registered_it() {
    let node = Node::start().await;
    // A retry of the issue starts another token family of the same agent.
    let request = json!({"agent_name": "planner", "platform": "mcp", "capabilities": ["db.read"]});
    let issued = async || {
        let headers = [("idempotency-key", "issue"), ("content-type", "application/json")];
        let answer = node.call("POST", "/v1/identity/agent", &headers, request.to_string()).await.json();
        let text = |name: &str| answer[name].as_str().expect("text").to_owned();
        Agent { id: text("agent_id"), token: text("token") }
    };
    let (stolen, good) = (issued().await, issued().await);
    assert_eq!(stolen.id, good.id);
    let of = |answer: Response| -> Vec<Value> {
        let keys = answer.json()["keys"].as_array().expect("keys").clone();
        keys.into_iter().map(|key| key["x"].clone()).collect()
    };
    for (agent, number) in [(&stolen, 1), (&good, 2)] {
        assert_eq!(register(&node, agent, &key(number)).await.status, 201);
    }
    assert_eq!(of(keys_of(&node, &good.id).await).len(), 2);
    let payload =
        URL_SAFE_NO_PAD.decode(stolen.token.split('.').nth(1).expect("a payload")).expect("base64url");
    let payload: Value = serde_json::from_slice(&payload).expect("claims");
    let answer = node.post("/v1/revocations", &json!({"jti": payload["jti"]})).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    assert_eq!(of(keys_of(&node, &good.id).await), [key(2)["x"].clone()]);
    // It stays removed when the revocation expires.
    for _ in 0..3 {
        node.advance_secs(limits::REVOCATION_RETENTION.as_secs() / 2);
        agent(&node).await;
    }
    assert_eq!(node.get("/v1/revocations").await.json(), json!([]));
    assert_eq!(of(keys_of(&node, &good.id).await), [key(2)["x"].clone()]);
}

#[tokio::test]
async fn any_subject_registers_keys_with_its_own_token() {
    let mut node = Node::start().await;
    let workload = node.own_token("agents", "orchestrator").await;
    let id = workload.claims["sub"].as_str().expect("sub").to_owned();
    let body = |number| json!({"workload_id": id, "key": key(number)}).to_string();
    for (number, status) in [(1, 201), (1, 200), (2, 201)] {
        let answer = register_with(&node, &workload.token, &[], &body(number)).await;
        assert_eq!((answer.status, &answer.json()["workload_id"]), (status, &json!(id)), "{}", answer.body);
    }
    node.restart().await;
    assert_eq!(keys_of(&node, &id).await.json()["keys"].as_array().map(Vec::len), Some(2));
    let kid = keys_of(&node, &id).await.json()["keys"][0]["kid"].as_str().expect("kid").to_owned();
    let bearer = format!("Bearer {}", workload.token);
    let path = format!("{PATH}?workload_id={id}&kid={kid}");
    assert_eq!(node.call("DELETE", &path, &[("authorization", &bearer)], "").await.status, 204);
    assert_eq!(keys_of(&node, &id).await.json()["keys"].as_array().map(Vec::len), Some(1));
    // The keys of a revoked subject are removed.
    assert_eq!(node.post("/v1/revocations", &json!({"subject": id})).await.status, 202);
    keys_of(&node, &id).await.is_refused(404, "not_found", "no encryption key");
    // Without an agent record a key ends 30 days after its last registration.
    node.advance_secs(10);
    let again = node.own_token("agents", "orchestrator").await;
    assert_eq!(register_with(&node, &again.token, &[], &body(3)).await.status, 201);
    for (secs, status) in [(30 * 24 * 3600 - 1, 200), (1, 404)] {
        node.advance_secs(secs);
        agent(&node).await;
        assert_eq!(keys_of(&node, &id).await.status, status);
    }
}

/// Attack: a gateway that exchanges for others obtains their tokens and registers its own key for them.
#[tokio::test]
async fn token_of_another_client_registers_no_key() {
    let node = Node::start_with(Setup { is_secure: true, ..Setup::default() }).await;
    let workload = node.own_token("agents", "orchestrator").await;
    assert_ne!(workload.claims["client_id"], workload.claims["sub"]);
    let body = json!({"workload_id": workload.claims["sub"], "key": key(1)}).to_string();
    let answer = register_with(&node, &workload.token, &[], &body).await;
    answer.is_refused(403, "access_denied", NOT_ITS_OWN);
}

#[tokio::test]
async fn key_is_removed_by_its_subject_and_by_the_issuer_of_an_agent() {
    let node = Node::start_with(Setup { is_secure: true, ..Setup::default() }).await;
    let (agent, other) = (agent(&node).await, agent(&node).await);
    let mut kids = Vec::new();
    for number in 0..3 {
        let answer = register(&node, &agent, &key(number)).await;
        kids.push(answer.json()["kid"].as_str().expect("kid").to_owned());
    }
    let path = |kid: &str| format!("{PATH}?workload_id={}&kid={kid}", agent.id);
    let bearer = |agent: &Agent| format!("Bearer {}", agent.token);
    let (its_own, others) = (bearer(&agent), bearer(&other));
    let [its_own, others] = [&its_own, &others].map(|value| [("authorization", value.as_str())]);
    let neither = "workload_id: must be the subject of the bearer token, or an agent issued to the caller";
    for name in ["stranger", "operator"] {
        let answer = node.call_over(&node.certified(name), "DELETE", &path(&kids[0]), &[], "").await;
        answer.is_refused(403, "access_denied", neither);
    }
    let channel = node.anonymous();
    let answer = node.call_over(&channel, "DELETE", &path(&kids[0]), &others, "").await;
    answer.is_refused(403, "access_denied", neither);
    for (query, expected) in [
        (String::new(), "workload_id: is required"),
        (format!("?workload_id={}", agent.id), "kid: is required"),
        ("?workload_id=planner&kid=k".to_owned(), "workload_id: workload identifier must be"),
        ("?agent_id=a".to_owned(), "the query parameters are workload_id, kid"),
    ] {
        let path = format!("{PATH}{query}");
        let answer = node.call_over(&channel, "DELETE", &path, &its_own, "").await;
        answer.is_refused(400, "invalid_request", expected);
    }
    assert_eq!(node.call_over(&channel, "DELETE", &path(&kids[0]), &its_own, "").await.status, 204);
    let again = node.call_over(&channel, "DELETE", &path(&kids[0]), &its_own, "").await;
    again.is_refused(404, "not_found", "the subject has no encryption key with this kid");
    // By the caller that issued the agent. A retry under its key has the same outcome.
    let (gateway, retry) = (node.certified("gateway"), [("idempotency-key", "r")]);
    for _ in 0..2 {
        assert_eq!(node.call_over(&gateway, "DELETE", &path(&kids[1]), &retry, "").await.status, 204);
    }
    let reused = node.call_over(&gateway, "DELETE", &path(&kids[2]), &retry, "").await;
    reused.is_refused(422, "invalid_request", "the Idempotency-Key was used with another request");
    let none = path(&kids[2]).replace(&agent.id, "wimse://trust.example/agent/mcp/none");
    let unknown = node.call_over(&gateway, "DELETE", &none, &[], "").await;
    unknown.is_refused(404, "not_found", "no active agent has this workload_id");
    let list = format!("{PATH}?workload_id={}", agent.id);
    let left = node.call_over(&gateway, "GET", &list, &[], "").await.json();
    assert_eq!((left["keys"].as_array().map(Vec::len), &left["keys"][0]["kid"]), (Some(1), &json!(kids[2])));
}

#[tokio::test]
async fn an_agent_has_a_limited_number_of_keys() {
    let node = Node::start().await;
    let (full, other) = (agent(&node).await, agent(&node).await);
    for number in 0..limits::ENCRYPTION_KEYS_PER_SUBJECT_MAX {
        let number = u8::try_from(number).expect("few");
        assert_eq!(register(&node, &full, &key(number)).await.status, 201, "{number}");
    }
    let answer = register(&node, &full, &key(100)).await;
    answer.is_refused(429, "access_denied", "the subject has too many encryption keys");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(register(&node, &full, &key(0)).await.status, 200);
    assert_eq!(register(&node, &other, &key(100)).await.status, 201);
    let keys = keys_of(&node, &full.id).await.json();
    assert_eq!(keys["keys"].as_array().map(Vec::len), Some(limits::ENCRYPTION_KEYS_PER_SUBJECT_MAX));
}

#[tokio::test]
async fn members_are_checked_and_named() {
    let node = Node::start().await;
    let agent = agent(&node).await;
    let body = |key: &Value| json!({"workload_id": agent.id, "key": key}).to_string();
    let good = key(1);
    let ed25519 = with(&good, &json!({"crv": "Ed25519"}));
    let low = with(&good, &json!({"x": encode([0; 32])}));
    let off = json!({"kty": "EC", "crv": "P-256", "x": encode([1; 32]), "y": encode([1; 32])});
    let rsa = json!({"kty": "RSA", "n": encode([0xff; 128]), "e": "AQAB"});
    for (body, expected) in [
        (json!({"key": good}).to_string(), "workload_id"),
        (json!({"workload_id": 1, "key": good}).to_string(), "workload_id: must be a string"),
        (
            json!({"workload_id": "planner", "key": good}).to_string(),
            "workload_id: workload identifier must be",
        ),
        (json!({"workload_id": agent.id}).to_string(), "key"),
        (body(&json!("key")), "key: must be a JWK, a JSON object"),
        (body(&json!(null)), "key: must be a JWK, a JSON object"),
        (body(&with(&good, &json!({"d": "AAAA"}))), "key.d: makes the key private or symmetric"),
        (body(&json!({"kty": "oct", "k": "AAAA"})), "key.k: makes the key private or symmetric"),
        (body(&with(&good, &json!({"x5c": ["MIIB"]}))), "key.x5c: must be absent"),
        (body(&with(&good, &json!({"kty": "AKP"}))), "key.kty: must be EC, OKP or RSA"),
        (body(&ed25519), "key.crv: must be X25519"),
        (body(&with(&good, &json!({"use": "sig"}))), "key.use: must be enc, or absent"),
        (body(&with(&good, &json!({"key_ops": ["verify"]}))), "key.key_ops: must be a list of deriveKey"),
        (body(&with(&good, &json!({"alg": "ES256"}))), "key.alg: must be ECDH-ES"),
        (body(&with(&rsa, &json!({"alg": "RSA1_5"}))), "key.alg: is too weak; must be RSA-OAEP-256"),
        (body(&with(&good, &json!({"x": format!("{X}=")}))), "key.x: must be a string"),
        (body(&with(&good, &json!({"x": {"x": X}}))), "key.x: must be a string"),
        (body(&with(&good, &json!({"x": encode([0xff; 32])}))), "key.x: must be less than 2^255 - 19"),
        (body(&low), "key.x: is a point of small order"),
        (body(&off), "key.x: is not, with y, a point of the curve"),
        (body(&rsa), "key.n: an RSA key must have 2048 to 8192 bits"),
        (body(&with(&good, &json!({"kid": "mine"}))), "key.kid: must be "),
        (body(&good).replacen("\"kty\"", "\"kty\":\"OKP\",\"kty\"", 1), "duplicate field"),
        ("{".to_owned(), "body is not acceptable JSON"),
        (String::new(), "body is not acceptable JSON"),
    ] {
        let answer = register_with(&node, &agent.token, &[], &body).await;
        answer.is_refused(400, "invalid_request", expected);
    }
    for (query, expected) in [
        ("", "workload_id: is required"),
        ("?workload_id=", "workload_id: workload identifier must be"),
        ("?workload_id=planner", "workload_id: workload identifier must be"),
        ("?workload_id=a&workload_id=b", "workload_id: must not be given twice"),
        ("?agent_id=a", "the query parameters are workload_id"),
    ] {
        node.get(&format!("{PATH}{query}")).await.is_refused(400, "invalid_request", expected);
    }
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let authorization = format!("Bearer {}", agent.token);
    let headers = [form[0], ("authorization", authorization.as_str())];
    let answer = node.call("POST", PATH, &headers, "workload_id=a").await;
    answer.is_refused(415, "invalid_request", "Content-Type");
    assert_eq!(keys_of(&node, &agent.id).await.json(), json!({"keys": []}));
}

#[tokio::test]
async fn a_key_is_registered_in_a_body_of_a_limited_size() {
    let node = Node::start().await;
    let agent = agent(&node).await;
    let body = json!({"workload_id": agent.id, "key": key(1)}).to_string();
    let padded = |bytes: usize| format!("{body}{}", " ".repeat(bytes - body.len()));
    let larger = padded(limits::ENCRYPTION_KEY_BODY_BYTES_MAX + 1);
    let answer = register_with(&node, &agent.token, &[], &larger).await;
    answer.is_refused(413, "invalid_request", "the body is larger than 16 KiB");
    let largest = padded(limits::ENCRYPTION_KEY_BODY_BYTES_MAX);
    assert_eq!(register_with(&node, &agent.token, &[], &largest).await.status, 201);
}

#[tokio::test]
async fn retry_has_the_same_outcome_and_its_key_fits_nothing_else() {
    let node = Node::start().await;
    let (one, other) = (agent(&node).await, agent(&node).await);
    let retry = [("idempotency-key", "retry-1")];
    let body = |agent: &Agent, number| json!({"workload_id": agent.id, "key": key(number)}).to_string();
    let first = register_with(&node, &one.token, &retry, &body(&one, 1)).await;
    let second = register_with(&node, &one.token, &retry, &body(&one, 1)).await;
    assert_eq!((first.status, second.status), (201, 201));
    assert_eq!(first.body, second.body);
    let answer = register_with(&node, &one.token, &retry, &body(&one, 2)).await;
    answer.is_refused(422, "invalid_request", "the Idempotency-Key was used with another request");
    // An idempotency key belongs to its caller.
    assert_eq!(register_with(&node, &other.token, &retry, &body(&other, 2)).await.status, 201);
    let twice = [("idempotency-key", "a"), ("idempotency-key", "b")];
    let answer = register_with(&node, &one.token, &twice, &body(&one, 3)).await;
    answer.is_refused(400, "invalid_request", "Idempotency-Key: must be");
}

// The node needs a thread while the test blocks on Python.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_decrypts_joserfc_ciphertext_for_its_published_keys() {
    let node = Node::start().await;
    let agent = agent(&node).await;
    let (made, _) = run("encrypt_to_agent.py", &json!({"make": true}));
    let (private, public) =
        (made["private"].as_array().expect("keys"), made["public"].as_array().expect("keys"));
    assert_eq!(public.len(), 5);
    for (private, public) in private.iter().zip(public) {
        let answer = register(&node, &agent, public).await;
        // The `kid` that joserfc computed.
        assert_eq!((answer.status, &answer.json()["kid"]), (201, &private["kid"]), "{}", answer.body);
        let refused = register(&node, &agent, private).await;
        refused.is_refused(400, "invalid_request", "makes the key private or symmetric");
    }
    let set = keys_of(&node, &agent.id).await.json();
    let (sent, encrypted) = run("encrypt_to_agent.py", &json!({"encrypt": set, "text": "meet at noon"}));
    assert!(encrypted, "{sent}");
    let order = json!({"decrypt": sent["messages"], "private": private});
    let (read, decrypted) = run("encrypt_to_agent.py", &order);
    assert!(decrypted, "{read}");
    let texts = read["texts"].as_object().expect("texts");
    assert_eq!(texts.len(), 5);
    assert!(texts.values().all(|text| text == "meet at noon"), "{read}");
}

#[tokio::test]
async fn without_a_rule_about_agents_there_are_no_keys_of_agents() {
    let node = Node::start_with(Setup { without: &["identity.rego"], ..Setup::default() }).await;
    let text = "agent identity is not configured: the policy has no rule data.svc.identity.decision";
    let workload = node.own_token("agents", "orchestrator").await;
    let body = json!({"workload_id": workload.claims["sub"], "key": key(1)}).to_string();
    let answer = register_with(&node, &workload.token, &[], &body).await;
    answer.is_refused(501, "not_implemented", text);
    keys_of(&node, "wimse://trust.example/agent/mcp/none").await.is_refused(501, "not_implemented", text);
}
