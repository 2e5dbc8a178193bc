//! Oracles in Python: no format is both written and read by our own code here.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use trust_fabric::clock::Timestamp;
use trust_fabric::token::jws::{Algorithm, Compact};
use trust_fabric::token::key_set::{KeySet, Purpose};
use trust_fabric::token::security_event::{Error, Rules, SecurityEventToken, UncheckedSet};
use wiremock::ResponseTemplate;

use crate::support::python::{Transmitter, python, run, script};
use crate::support::{BAD_SUBJECT, FABRIC, JWT, NOW_SECS, Node, SVID, Setup, TOOL, credential, with};

#[tokio::test]
async fn pyjwt_credentials_are_accepted_and_faulty_ones_refused() {
    let node = Node::start().await;
    let order = |trust_domain: &str| json!({"issuer": node.issuers.kubernetes(), "audience": FABRIC, "trust_domain": trust_domain, "now": NOW_SECS});
    let (made, _) = run("make_credentials.py", &order("endpoint.example"));
    for (route, document) in [
        ("/cluster/.well-known/openid-configuration", &made["discovery"]),
        ("/cluster/openid/v1/jwks", &made["jwks"]),
        ("/bundle", &made["spiffe_bundle"]),
    ] {
        node.issuers.replace_mock(route, ResponseTemplate::new(200).set_body_json(document)).await;
    }
    let list = |name: &str| made[name].as_array().expect("a list").clone();
    let token = |item: &Value| item["token"].as_str().expect("a token").to_owned();
    for (name, kind, sub) in [
        ("credentials", JWT, "wimse://trust.example/ns/demo/sa/reporter"),
        ("svids", SVID, "spiffe://endpoint.example/ns/demo/sa/reporter"),
    ] {
        let items = list(name);
        assert_eq!(items.iter().map(|item| &item["alg"]).collect::<Vec<_>>(), ["RS256", "ES256"]);
        for item in items {
            let minted = node.granted(&credential(&token(&item), kind)).await;
            assert_eq!(minted.claims["sub"], sub, "{}", item["name"]);
        }
    }
    let refused = list("refused");
    assert!(refused.len() >= 10);
    for item in refused {
        let answer = node.exchange(&credential(&token(&item), JWT)).await;
        let expected = json!({"error": "invalid_request", "error_description": BAD_SUBJECT});
        assert_eq!(
            (answer.status, with(&answer.json(), &json!({"request_id": null}))),
            (400, expected),
            "{}",
            item["name"]
        );
    }
}

// The node needs a thread while the test blocks on Python.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pyjwt_and_joserfc_verify_minted_tokens() {
    // The libraries use the system clock, so the node's clock is set to it.
    let now_secs = Some(trust_fabric::clock::Clock::system().now().secs());
    let node = Node::start_with(Setup { now_secs, ..Setup::default() }).await;
    let times = json!({"iat": node.now_secs(), "nbf": node.now_secs(), "exp": node.now_secs() + 3600});
    let source = node.issuers.es256.sign(&with(&node.issuers.service_account("demo", "reporter"), &times));
    let minted = node.granted(&credential(&source, JWT)).await;
    let jwks_url = format!("{}/v1/identity/jwks", node.base());
    let good = json!({"token": minted.token, "jwks_url": jwks_url, "issuer": FABRIC, "audience": TOOL});
    let (report, accepted) = run("verify_token.py", &good);
    assert!(accepted, "{report}");
    assert_eq!((&report["header"], &report["claims"]), (&minted.header, &minted.claims));
    // The oracle refuses a changed signature.
    let (input, signature) = minted.token.rsplit_once('.').expect("three parts");
    let forged = format!("{input}.{}", signature.chars().rev().collect::<String>());
    for changes in [
        json!({"token": forged}),
        json!({"audience": FABRIC}),
        json!({"issuer": TOOL}),
        json!({"typ": "JWT"}),
    ] {
        let (report, accepted) = run("verify_token.py", &with(&good, &changes));
        assert!(!accepted && report.get("refused").is_some(), "{changes}: {report}");
    }
}

#[test]
fn second_rego_engine_gives_the_same_decisions() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(python())
        .arg(script("check_policy.py"))
        .arg(root.join("policies"))
        .args(
            ["exchange", "identity", "signals"]
                .map(|point| root.join(format!("tests/vectors/policy/{point}.json"))),
        )
        .output()
        .expect("run Python");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}{}", String::from_utf8_lossy(&output.stderr));
}

/// A transmitter's SET as our receiver reads it, with the transmitter's published keys.
fn received(jwks: &Value, token: &str) -> Result<SecurityEventToken, Error> {
    let token = Compact::parse(token)?;
    let keys = KeySet::parse(jwks.to_string().as_bytes(), Purpose::Issuer).expect("a key set");
    let key = keys.select(token.header().kid.as_deref(), token.header().algorithm)?;
    let rules = Rules {
        audiences: &["https://fabric.example".to_owned()],
        algorithms: &[Algorithm::Es256, Algorithm::Rs256],
        iss: &SecurityEventToken::unverified_issuer(&token)?,
        now: Timestamp::from_secs(1_800_000_000),
    };
    UncheckedSet::verify(&token, &key, &rules)?.check(&rules)
}

#[test]
fn sets_signed_by_joserfc_are_read_with_their_claims() {
    let mut transmitter = Transmitter::start();
    let jwks = transmitter.jwks.clone();
    let examples: Vec<Value> =
        serde_json::from_str(include_str!("../vectors/signals/examples.json")).expect("examples");
    for (example, alg) in examples.iter().flat_map(|example| [(example, "RS256"), (example, "ES256")]) {
        let report = &example["set"];
        let token = transmitter.sign(&json!({"alg": alg, "set": report}));
        let set = received(&jwks, &token).unwrap_or_else(|error| panic!("{}: {error}", example["name"]));
        let read = serde_json::to_value(trust_fabric::set_input(&set)).expect("JSON");
        assert_eq!(read, with(report, &json!({"aud": [report["aud"]]})), "{}", example["name"]);
    }
    // The oracle refuses invalid SETs.
    let good = examples[0]["set"].clone();
    let other = Transmitter::start();
    let token = transmitter.sign(&json!({"set": good, "header": {"kid": other.jwks["keys"][0]["kid"]}}));
    assert_eq!(received(&other.jwks, &token), Err(Error::Signature), "another transmitter's name");
    for (order, err) in [
        (json!({"set": good, "header": {"kid": "unheard-of"}}), "invalid_key"),
        (json!({"set": good, "header": {"typ": "JWT"}}), "invalid_request"),
        (json!({"set": good, "header": {"typ": null}}), "invalid_request"),
        (json!({"set": with(&good, &json!({"sub": "u-5512"}))}), "invalid_request"),
        (json!({"set": with(&good, &json!({"exp": 1_800_000_300}))}), "invalid_request"),
        (json!({"set": with(&good, &json!({"aud": "https://other.example"}))}), "invalid_audience"),
        (json!({"set": with(&good, &json!({"iat": 1_800_000_061}))}), "invalid_request"),
        (json!({"set": with(&good, &json!({"iat": 1_800_000_000 - 2 * 24 * 3600}))}), "invalid_request"),
        (json!({"set": with(&good, &json!({"events": {}}))}), "invalid_request"),
    ] {
        let token = transmitter.sign(&order);
        assert_eq!(received(&jwks, &token).map_err(|error| error.err()), Err(err), "{order}");
    }
}
