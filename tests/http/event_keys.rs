//! The RS256 keys of a transmitter, beside those for tokens (contract §3, Keys).

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use futures::future::join_all;
use serde_json::{Value, json};
use trust_fabric::clock::Clock;
use trust_fabric::keyring::{Error, GenerateEventKey, Keyring};
use trust_fabric::state::CallContext;
use trust_fabric::token::jws::Compact;
use trust_fabric::token::key_set::{KeySet, Purpose};
use trust_fabric::token::lineage;
use trust_fabric::token::signing_key::{EventSigningKey, SigningAlgorithm};

use crate::support::python::run;
use crate::support::{
    BAD_ACTOR, BAD_SUBJECT, FABRIC, JWT, Minted, Node, OWN, Response, Setup, TOOL, credential, encode, with,
};

const RS256: SigningAlgorithm = SigningAlgorithm::Rs256;
const SET: &str = "secevent+jwt";
const ROTATE: &str = "/v1/sys/keys/rotate?algorithm=RS256";

fn generate_set_key() -> GenerateEventKey {
    Arc::new(|| Box::pin(async { EventSigningKey::generate() }))
}

fn directory(node: &Node) -> PathBuf {
    node.directory.path().join("data/keys")
}

/// A transmitter's keyring over the files and the log of this node.
async fn transmitting(node: &Node) -> Keyring {
    let keyring = Keyring::open(&directory(node), node.state(), Some(generate_set_key())).expect("opens");
    keyring.ensure().await.expect("keys");
    keyring
}

/// The `kid`s of this algorithm in the JWK Set.
async fn published(node: &Node, algorithm: &str) -> BTreeSet<String> {
    let jwks = node.get("/v1/identity/jwks").await.json();
    let keys = jwks["keys"].as_array().expect("keys").iter();
    let keys = keys.filter(|key| key["alg"] == algorithm);
    keys.map(|key| key["kid"].as_str().expect("kid").to_owned()).collect()
}

/// The `kid`s with a private half in the data directory.
fn files(node: &Node) -> BTreeSet<String> {
    let files = std::fs::read_dir(directory(node)).expect("directory");
    let paths = files.map(|file| file.expect("file").path());
    paths.map(|path| path.file_stem().and_then(|stem| stem.to_str()).expect("a kid").to_owned()).collect()
}

#[tokio::test]
async fn transmitter_publishes_both_key_kinds_and_no_private_half() {
    let node = Node::start().await;
    let tokens = published(&node, "ES256").await;
    let keyring = transmitting(&node).await;
    let sets = published(&node, "RS256").await;
    assert_eq!((tokens.len(), sets.len()), (2, 2), "of each the key that signs and its successor");
    assert_eq!(published(&node, "ES256").await, tokens);
    assert_eq!(files(&node), &tokens | &sets);
    for kid in &sets {
        let path = directory(&node).join(format!("{kid}.p8"));
        assert_eq!(std::fs::metadata(path).expect("metadata").permissions().mode() & 0o777, 0o600);
    }
    let jwks = node.get("/v1/identity/jwks").await.json();
    for key in jwks["keys"].as_array().expect("keys").iter().filter(|key| key["kty"] == "RSA") {
        let names: Vec<&str> = key.as_object().expect("object").keys().map(String::as_str).collect();
        assert_eq!(names, ["alg", "e", "kid", "kty", "n", "use"]);
        assert_eq!((&key["alg"], &key["use"]), (&json!("RS256"), &json!("sig")));
    }
    // The first key signs at once: no verifier can hold an older JWK Set that lacks it and still need it.
    let key = keyring.event_signing_key(node.clock.now()).expect("signs");
    let listed = node.get("/v1/sys/keys").await.json();
    let listed = listed.as_array().expect("keys").iter();
    let listed: Vec<_> = listed.filter(|listed| listed["algorithm"] == "RS256").collect();
    let states: BTreeSet<_> = listed.iter().map(|key| key["state"].as_str().expect("state")).collect();
    assert_eq!((listed.len(), states), (2, BTreeSet::from(["active", "pending"])));
    let active = listed.iter().find(|key| key["state"] == "active").expect("active");
    assert_eq!(active["kid"], key.kid());
    // Any verifier accepts its signature.
    let text = key.sign(&json!({"jti": "1"}), SET).expect("signed");
    let compact = Compact::parse(&text).expect("compact");
    let keys = KeySet::parse(jwks.to_string().as_bytes(), Purpose::Issuer).expect("a key set");
    let public = keys.select(Some(key.kid()), compact.header().algorithm).expect("its key");
    assert!(compact.verify(&public).is_ok());
}

// The node needs a thread while the test blocks on Python.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pyjwt_and_joserfc_verify_sets_and_tokens() {
    // The libraries use the system clock, so the node's clock is set to it.
    let now_secs = Some(Clock::system().now().secs());
    let node = Node::start_with(Setup { now_secs, ..Setup::default() }).await;
    let keyring = transmitting(&node).await;
    let minted = node.own_token("agents", "operator").await;
    let jwks_url = format!("{}/v1/identity/jwks", node.base());
    let order = json!({"token": minted.token, "jwks_url": jwks_url, "issuer": FABRIC, "audience": FABRIC});
    let (report, accepted) = run("verify_token.py", &order);
    assert!(accepted, "{report}");
    // Only the claims that the script requires; the signature is under test.
    let claims = json!({"iss": FABRIC, "aud": "https://receiver.example", "sub": "x", "jti": "1",
        "iat": node.now_secs(), "exp": node.now_secs() + 300, "events": {}});
    let key = keyring.event_signing_key(node.clock.now()).expect("signs");
    let token = key.sign(&claims, SET).expect("signed");
    let order = with(
        &order,
        &json!({"token": token, "audience": claims["aud"], "typ": SET, "algorithms": ["RS256"]}),
    );
    let (report, accepted) = run("verify_token.py", &order);
    assert!(accepted, "{report}");
    assert_eq!(report["header"], json!({"alg": "RS256", "typ": SET, "kid": key.kid()}));
    assert_eq!(report["claims"], claims);
    let (report, accepted) =
        run("verify_token.py", &with(&order, &json!({"algorithms": ["ES256", "PS256"]})));
    assert!(!accepted, "{report}");
}

/// Tokens that a thief of an event key can sign: each names that key and has the claims of a token of ours.
fn forged(node: &Node, kid: &str, claims: &Value) -> Vec<(String, String)> {
    let der = std::fs::read(directory(node).join(format!("{kid}.p8"))).expect("the private half");
    let key = RsaKeyPair::from_pkcs8(&der).expect("an RSA key");
    let forge = |alg: &str, typ: &str| {
        let header = json!({"alg": alg, "typ": typ, "kid": kid}).to_string();
        let input = format!("{}.{}", encode(header), encode(claims.to_string()));
        let mut signature = vec![0; key.public_modulus_len()];
        key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), input.as_bytes(), &mut signature)
            .expect("signature");
        (format!("{alg} {typ}"), format!("{input}.{}", encode(signature)))
    };
    let types = ["at+jwt", "JWT", SET];
    types.into_iter().flat_map(|typ| [forge("RS256", typ), forge("ES256", typ)]).collect()
}

async fn as_bearer(node: &Node, method: &str, path: &str, token: &str, body: &Value) -> Response {
    let value = format!("Bearer {token}");
    let headers = [("authorization", value.as_str()), ("content-type", "application/json")];
    node.call(method, path, &headers, body.to_string()).await
}

/// A token for `audience`, from the credential of a service account.
async fn token_for(node: &Node, audience: &str) -> Minted {
    let times = json!({"iat": node.now_secs(), "nbf": node.now_secs(), "exp": node.now_secs() + 3600});
    let claims = with(&node.issuers.service_account("demo", "reporter"), &times);
    let request = credential(&node.issuers.es256.sign(&claims), JWT);
    node.granted(&with(&request, &json!({"audience": audience}))).await
}

#[tokio::test]
async fn token_signed_by_an_event_key_is_refused_everywhere() {
    const BEARER: &str = "the bearer token is not valid";
    let node = Node::start().await;
    let keyring = transmitting(&node).await;
    let key = keyring.event_signing_key(node.clock.now()).expect("signs");
    assert!(keyring.verifying_key(key.kid(), node.clock.now()).is_none());
    let tokens = published(&node, "ES256").await;
    assert!(tokens.iter().all(|kid| keyring.verifying_key(kid, node.clock.now()).is_some()));

    let operator = node.own_token("agents", "operator").await;
    let orchestrator = node.own_token("agents", "orchestrator").await;
    let agent = json!({"agent_name": "planner", "platform": "mcp", "capabilities": ["db.read"]});
    let agent = node.post("/v1/identity/agent", &agent).await;
    let body = with(&agent.json(), &json!({"access_token": agent.json()["token"]})).to_string();
    let agent = Response { body, ..agent }.minted();
    let tool = token_for(&node, TOOL).await;
    assert_eq!(node.post("/v1/tools", &json!({"tool_id": "bare", "name": "any"})).await.status, 201);
    let encryption_key = json!({"workload_id": agent.claims["sub"], "key": {
        "kty": "OKP", "crv": "X25519", "x": "3p7bfXt9wbTTW2HC7OQ1Nz-DQ8hbeGdNrfx-FG-IK08",
    }});
    let none = json!({});
    let (keys, renew, register) =
        ("/v1/sys/keys", "/v1/identity/agent/renew", "/v1/identity/agent/encryption-key");
    let subject = |token: &str| with(&credential(token, OWN), &json!({"audience": FABRIC}));
    let delegated = async |token: &str| {
        let actor = json!({"actor_token": token, "actor_token_type": OWN});
        node.exchange(&with(&subject(&token_for(&node, FABRIC).await.token), &actor)).await
    };
    let verify =
        async |token: &str| node.post("/v1/mcp/verify", &json!({"tool_id": "bare", "token": token})).await;

    // The genuine tokens are accepted everywhere.
    node.granted(&subject(&operator.token)).await;
    assert_eq!(delegated(&orchestrator.token).await.status, 200);
    assert_eq!(as_bearer(&node, "GET", keys, &operator.token, &none).await.status, 200);
    assert_eq!(as_bearer(&node, "POST", renew, &agent.token, &none).await.status, 200);
    assert_eq!(as_bearer(&node, "POST", register, &agent.token, &encryption_key).await.status, 201);
    assert_eq!(verify(&tool.token).await.status, 200);

    for (what, token) in forged(&node, key.kid(), &operator.claims) {
        node.exchange(&subject(&token)).await.is_refused(400, "invalid_request", BAD_SUBJECT);
        let answer = as_bearer(&node, "GET", keys, &token, &none).await;
        assert_eq!(answer.refusal(), (401, "access_denied".into(), BEARER.into()), "{what}");
    }
    for (_, token) in forged(&node, key.kid(), &orchestrator.claims) {
        delegated(&token).await.is_refused(400, "invalid_request", BAD_ACTOR);
    }
    for (_, token) in forged(&node, key.kid(), &agent.claims) {
        as_bearer(&node, "POST", renew, &token, &none).await.is_refused(401, "access_denied", BEARER);
        as_bearer(&node, "POST", register, &token, &encryption_key).await.is_refused(
            401,
            "access_denied",
            BEARER,
        );
    }
    for (what, token) in forged(&node, key.kid(), &tool.claims) {
        let answer = verify(&token).await;
        answer.is_refused(403, "access_denied", "token: signing key unknown");
        assert_eq!(answer.json()["check"], "token", "{what}");
    }
}

#[tokio::test]
async fn callers_at_the_same_moment_make_no_key_too_many() {
    let node = Node::start().await;
    let keyring = Keyring::open(&directory(&node), node.state(), Some(generate_set_key())).expect("opens");
    for outcome in join_all((0..8).map(|_| keyring.ensure())).await {
        outcome.expect("keys");
    }
    let (tokens, sets) = (published(&node, "ES256").await, published(&node, "RS256").await);
    assert_eq!((tokens.len(), sets.len()), (2, 2));
    assert_eq!(files(&node), &tokens | &sets);
}

/// The log entry is all that remains of a request whose caller disconnected.
#[tokio::test]
async fn tainted_key_is_replaced_after_its_caller_disconnected() {
    let node = Node::start().await;
    let kid = published(&node, "ES256").await.pop_first().expect("a key");
    let state = node.state();
    let mut told = state.feed_end();
    state
        .as_node()
        .taint_signing_key(kid.clone(), lineage::signing_key(FABRIC, &kid))
        .await
        .expect("tainted");
    loop {
        let keys = published(&node, "ES256").await;
        assert!(!keys.contains(&kid));
        if keys.len() == 2 {
            break;
        }
        told.changed().await.expect("it goes on");
    }
}

#[tokio::test]
async fn a_key_for_events_is_rotated_apart_from_those_for_tokens() {
    // This node is no transmitter, so it replaces none of these keys.
    let node = Node::start_with(Setup { is_secure: true, ..Setup::default() }).await;
    let keyring = transmitting(&node).await;
    let now = || node.clock.now();
    let (first, token) = (keyring.event_signing_key(now()), keyring.signing_key(now()));
    let (first, token) = (first.expect("signs").kid().to_owned(), token.expect("signs").kid().to_owned());
    node.advance_secs(599);
    let early = keyring.rotate(RS256, now(), &CallContext::default()).await;
    assert!(matches!(early, Err(Error::SuccessorTooYoung { usable_at: Some(_) })), "{early:?}");
    node.advance_secs(1);
    assert_eq!(keyring.rotate(RS256, now(), &CallContext::default()).await.expect("rotated"), first);
    let next = keyring.event_signing_key(now()).expect("signs").kid().to_owned();
    assert_ne!(next, first);
    assert_eq!(keyring.signing_key(now()).expect("signs").kid(), token, "no other key has changed");
    // The retired key stays published and its private half is removed; its successor has one.
    let sets = published(&node, "RS256").await;
    assert!(sets.len() == 3 && sets.contains(&first), "{sets:?}");
    assert_eq!((files(&node).contains(&first), files(&node).len()), (false, 4));
    // SETs that it signed do not expire, and late receivers accept them.
    node.advance_secs(24 * 3600 + 4);
    assert!(published(&node, "RS256").await.contains(&first));
    node.advance_secs(1);
    assert!(!published(&node, "RS256").await.contains(&first));
}

#[tokio::test]
async fn tainted_event_key_leaves_the_set_and_its_successor_ages() {
    let node = Node::start_with(Setup { is_secure: true, ..Setup::default() }).await;
    let keyring = transmitting(&node).await;
    let first = keyring.event_signing_key(node.clock.now()).expect("signs").kid().to_owned();
    let before = published(&node, "RS256").await;
    let taint = format!("/v1/sys/keys/{first}/taint");
    let tainted = node.call_over(&node.certified("operator"), "POST", &taint, &[], "").await;
    assert_eq!(tainted.status, 200, "{}", tainted.body);
    keyring.ensure().await.expect("a successor");
    let after = published(&node, "RS256").await;
    assert_eq!((after.len(), after.intersection(&before).count()), (2, 1));
    assert!(!after.contains(&first) && !files(&node).contains(&first));
    let refused = keyring.event_signing_key(node.clock.now()).err();
    assert!(matches!(refused, Some(Error::NoUsableKey(RS256))), "{refused:?}");
    // Tokens are still signed, and the node serves.
    node.own_token("agents", "operator").await;
    assert_eq!(node.get("/readyz").await.status, 200);
    node.advance_secs(600);
    assert!(after.contains(keyring.event_signing_key(node.clock.now()).expect("signs").kid()));
}

#[tokio::test]
async fn former_transmitter_keeps_event_keys_until_rotation() {
    let mut node = Node::start_with(Setup { is_secure: true, ..Setup::default() }).await;
    drop(transmitting(&node).await);
    let (tokens, sets) = (published(&node, "ES256").await, published(&node, "RS256").await);
    node.restart().await;
    assert_eq!(published(&node, "RS256").await, sets);
    assert_eq!(files(&node), &tokens | &sets);
    node.advance_secs(600);
    let rotate = async |path: &str| node.call_over(&node.certified("operator"), "POST", path, &[], "").await;
    assert_eq!(rotate("/v1/sys/keys/rotate").await.status, 200);
    assert!(files(&node).is_superset(&sets));
    let rotated = rotate(ROTATE).await;
    assert_eq!(rotated.status, 200, "{}", rotated.body);
    let rotated = rotated.json();
    let kids = ["retired", "active"].map(|member| rotated[member].as_str().expect("kid").to_owned());
    assert_eq!(BTreeSet::from(kids.clone()), sets);
    assert_eq!(files(&node).intersection(&sets).collect::<Vec<_>>(), [&kids[1]]);
    // It creates no other key, so it keeps the last.
    assert_eq!(published(&node, "RS256").await, sets);
    rotate(ROTATE).await.is_refused(409, "invalid_request", "old enough");
    assert!(files(&node).contains(&kids[1]));
}

#[tokio::test]
async fn rotation_selects_by_algorithm_and_refuses_unknown_ones() {
    let node = Node::start_with(Setup { is_secure: true, ..Setup::default() }).await;
    let rotate = async |query: &str| {
        let path = format!("/v1/sys/keys/rotate{query}");
        node.call_over(&node.certified("operator"), "POST", &path, &[], "").await
    };
    node.advance_secs(600);
    for query in ["?algorithm=", "?algorithm=rs256", "?algorithm=PS256", "?algorithm=%ff"] {
        rotate(query).await.is_refused(400, "invalid_request", "");
    }
    rotate("?algorithm=RS384").await.is_refused(400, "invalid_request", "algorithm: must be ES256 or RS256");
    rotate("?algorithm=ES256&algorithm=ES256").await.is_refused(
        400,
        "invalid_request",
        "algorithm: must not",
    );
    rotate("?alg=RS256").await.is_refused(400, "invalid_request", "the query parameters are algorithm");
    rotate("?algorithm=RS256").await.is_refused(409, "invalid_request", "does not transmit");
    assert_eq!(published(&node, "ES256").await.len(), 2, "nothing was rotated");
    assert_eq!(rotate("?algorithm=ES256").await.status, 200);
    assert_eq!(published(&node, "ES256").await.len(), 3);
}

#[tokio::test]
async fn keys_are_listed_and_rotated_by_command_with_their_algorithm() {
    let mut node = Node::start().await;
    drop(transmitting(&node).await);
    node.restart().await;
    node.advance_secs(600);
    let keys = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_trust-fabric"))
            .arg("keys")
            .args(arguments)
            .args(["--server", node.base()])
            .output()
            .expect("run the program");
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let sets = published(&node, "RS256").await;
    let (success, out, err) = keys(&["rotate", "--algorithm", "RS256"]);
    assert!(success, "{err}");
    assert!(sets.iter().all(|kid| out.contains(kid)), "{out}");
    let (success, out, err) = keys(&["list"]);
    assert!(success, "{err}");
    for kid in &sets {
        assert!(out.lines().any(|line| line.contains(kid) && line.contains("RS256")), "{out}");
    }
    let (success, out, err) = keys(&["rotate"]);
    assert!(success && sets.iter().all(|kid| !out.contains(kid)), "{out}{err}");
    let (success, _, err) = keys(&["rotate", "--algorithm", "HS256"]);
    assert!(!success && err.contains("must be ES256 or RS256"), "{err}");
}
