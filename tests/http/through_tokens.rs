//! Tokens of this fabric whose `via` names a fabric that is not accepted.

use serde_json::{Value, json};
use trust_fabric::keyring::Keyring;

use crate::support::{BAD_ACTOR, BAD_SUBJECT, FABRIC, JWT, Node, OWN, TOOL, credential, with};

/// A token with these claims, signed by the node's own key.
fn signed(node: &Node, claims: &Value) -> String {
    let directory = node.directory.path().join("data/keys");
    let keyring = Keyring::open(&directory, node.state(), None).expect("opens");
    let key = keyring.signing_key(node.clock.now()).expect("signs");
    key.sign(claims, "at+jwt").expect("signed")
}

#[tokio::test]
async fn token_through_an_unaccepted_fabric_is_refused() {
    let node = Node::start().await;
    assert_eq!(node.post("/v1/tools", &json!({"tool_id": "bare", "name": "any"})).await.status, 201);
    let own = node.own_token("agents", "operator").await;
    let actor = node.own_token("agents", "orchestrator").await;
    let times = json!({"iat": node.now_secs(), "nbf": node.now_secs(), "exp": node.now_secs() + 3600});
    let reporter = with(&node.issuers.service_account("demo", "reporter"), &times);
    let request = credential(&node.issuers.es256.sign(&reporter), JWT);
    let tool = node.granted(&with(&request, &json!({"audience": TOOL}))).await;
    let for_us = with(&request, &json!({"audience": FABRIC}));
    // The same claims are accepted without `via`.
    for (changes, is_accepted) in [(json!({}), true), (json!({"via": ["https://peer.example"]}), false)] {
        let [own, actor, tool] =
            [&own, &actor, &tool].map(|minted| signed(&node, &with(&minted.claims, &changes)));
        let as_subject = with(&credential(&own, OWN), &json!({"audience": FABRIC}));
        let as_subject = node.exchange(&as_subject).await;
        let as_actor = json!({"actor_token": actor, "actor_token_type": OWN});
        let as_actor = node.exchange(&with(&for_us, &as_actor)).await;
        let bearer = format!("Bearer {own}");
        let as_bearer = node.call("GET", "/v1/sys/keys", &[("authorization", bearer.as_str())], "").await;
        let at_tool = node.post("/v1/mcp/verify", &json!({"tool_id": "bare", "token": tool})).await;
        if is_accepted {
            for answer in [as_subject, as_actor, as_bearer, at_tool] {
                assert_eq!(answer.status, 200, "{}", answer.body);
            }
        } else {
            as_subject.is_refused(400, "invalid_request", BAD_SUBJECT);
            as_actor.is_refused(400, "invalid_request", BAD_ACTOR);
            as_bearer.is_refused(401, "access_denied", "the bearer token is not valid");
            at_tool.is_refused(403, "access_denied", "revocation: token revoked");
        }
    }
}
