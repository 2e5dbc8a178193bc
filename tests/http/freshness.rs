//! Revocations that race with minting, and requests that wait for freshness (contract §8).

use std::time::Duration;

use serde_json::json;
use wiremock::ResponseTemplate;

use crate::support::{BAD_SUBJECT, FABRIC, JWT, Node, ORCHESTRATOR, OWN, TOOL, credential, with};

/// Attack: obtain a token that no revocation covers, with a subject verified before the revocation and a
/// token minted after it.
#[tokio::test]
async fn token_minted_while_a_revocation_is_applied_is_refused() {
    let node = Node::start().await;
    allow_foreign_actors(&node).await;
    // Another key signs after the tainted one.
    node.advance_secs(600);
    let subject = node.own_token("demo", "reporter").await;
    let kid = subject.header["kid"].as_str().expect("kid");
    // The keys of the actor's issuer are fetched after the subject is verified, and slowly.
    let keys = json!({"keys": [node.issuers.agents.jwk()]});
    let slow = ResponseTemplate::new(200).set_body_json(keys).set_delay(Duration::from_secs(1));
    node.issuers.replace_mock("/agents/jwks", slow).await;
    let actor = with(&node.issuers.identifier(ORCHESTRATOR), &json!({"delegation_depth": 1}));
    let actor = node.issuers.agents.sign(&actor);
    let request = with(
        &credential(&subject.token, OWN),
        &json!({"audience": FABRIC, "actor_token": actor, "actor_token_type": JWT}),
    );
    let taint = async {
        let is_asked = async || {
            let requests = node.issuers.server.received_requests().await.expect("recorded");
            requests.iter().any(|request| request.url.path() == "/agents/jwks")
        };
        while !is_asked().await {
            tokio::task::yield_now().await;
        }
        let path = format!("/v1/sys/keys/{kid}/taint");
        let answer = node.call("POST", &path, &[], "").await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.header("svc-index").and_then(|index| index.parse::<u64>().ok()).expect("index")
    };
    let (answer, tainted_at) = futures::join!(node.exchange(&request), taint);
    let minted = answer.minted();
    assert_ne!(minted.header["kid"], kid, "the key itself is good");
    let idx = minted.claims["idx"].as_str().and_then(|idx| idx.split_once('-')).expect("idx");
    assert!(idx.1.parse::<u64>().expect("index") < tainted_at);

    let again = with(&credential(&minted.token, OWN), &json!({"audience": TOOL}));
    node.exchange(&again).await.is_refused(400, "invalid_request", BAD_SUBJECT);
    let bearer = format!("Bearer {}", minted.token);
    let answer = node.call("GET", "/v1/tools", &[("authorization", &bearer)], "").await;
    answer.is_refused(401, "access_denied", "the bearer token is not valid");
    // A credential issued after the revocation is accepted.
    let later = node.own_token("demo", "reporter").await;
    node.granted(&with(&credential(&later.token, OWN), &json!({"audience": TOOL}))).await;
}

/// The shipped policy requires actors with a token minted by the node.
async fn allow_foreign_actors(node: &Node) {
    let mut sources = node.get("/v1/sys/policy").await.json()["sources"].clone();
    let rule = r#"input.actor.kind != "agent-a2a""#;
    for source in sources.as_array_mut().expect("sources") {
        if source["path"] == "exchange.rego" {
            let text = source["text"].as_str().expect("text");
            assert!(text.contains(rule), "the rule is not there any more");
            source["text"] = text.replace(rule, "false").into();
        }
    }
    let applied = node.put("/v1/sys/policy", &json!({ "sources": sources })).await;
    assert_eq!(applied.status, 200, "{}", applied.body);
}

#[tokio::test]
async fn a_pause_longer_than_the_lease_costs_a_wait_and_no_error() {
    let node = Node::start().await;
    let request = credential(&node.issuers.reporter(), JWT);
    for _ in 0..20 {
        node.granted(&request).await;
        node.advance_secs(1);
    }
    let page = node.get("/metrics").await.body;
    assert!(page.contains("svc_freshness_refused_total 0"), "requests were refused");
    assert!(!page.contains("svc_freshness_waits_total 0"), "no request waited");
}
