//! Tokens of a peer fabric: from the exchange to a tool, by the copy of its ledger.

use std::time::Duration;

use serde_json::{Value, json};
use trust_fabric::id::Incarnation;
use trust_fabric::state::command::{ImportLedger, PeerEntry, PeerKeys};
use trust_fabric::state::{Source, State, peer_key};
use trust_fabric::token::lineage;

use super::peers::Fabric;
use crate::support::{BAD_SUBJECT, FABRIC, Node, OWN, Response, Setup, TOOL, TRUST_DOMAIN, credential, with};

const PEER: &str = "https://eu.example";
const AGENT: &str = "wimse://eu.example/agent/mcp/1";
const INCARNATION: [u8; 16] = [1; 16];
const STALE_AFTER: Duration = Duration::from_secs(60);

/// A policy that grants more than the ceiling of the peer.
const WIDE: &str = "package svc.exchange\nimport rego.v1\n\
    decision := {\"allow\": true, \"reason\": \"granted\", \"grants\": {\
    \"audience\": input.request.audience, \"capabilities\": [\"db.read\", \"db.write\"], \"delegation_depth\": 2}}";

async fn node() -> Node {
    let ceiling = "accept = true\nendpoints = [\"https://eu-1.example:8694\"]\n\
        as = [\"subject\"]\ncapabilities = [\"db.read\"]";
    let (own, eu) = (Fabric::new(TRUST_DOMAIN, &["federation"]), Fabric::new("eu.example", &["one"]));
    let more_config = format!("{}{}", own.own_section(), eu.section("eu", ceiling));
    Node::start_with(Setup { is_secure: true, rego: Some(WIDE), more_config, ..Setup::default() }).await
}

/// Imports a response of the peer about the 50 entries after this position, and records that it was heard.
async fn import(node: &Node, state: &State, (generation, from): (u64, u64), entries: Vec<PeerEntry>) {
    let call = state.begin_source_call().expect("it leads");
    let key_set = json!({"keys": [node.issuers.es256.jwk()]}).to_string().into_bytes().into();
    let import = ImportLedger {
        issuer: PEER.to_owned(),
        generation,
        incarnation: INCARNATION.to_vec().into(),
        from,
        through: from + 50,
        epoch: 10,
        is_whole: true,
        is_reset: from == 0,
        entries,
        keys: Some(PeerKeys { etag: "\"1\"".to_owned(), key_set }),
        entries_max: 1000,
        ..ImportLedger::default()
    };
    let imported = state.import_ledger(import).await.expect("imported");
    let source = Source { id: peer_key(PEER), generation: imported.copy.generation };
    assert!(imported.changed && state.record_source(call, source, STALE_AFTER));
}

/// A token of the peer for this fabric.
fn token(node: &Node, changes: &Value) -> String {
    let now = node.now_secs();
    let idx = format!("{}-40", Incarnation::from_bytes(INCARNATION));
    let claims = json!({
        "iss": PEER, "sub": AGENT, "aud": FABRIC, "jti": "t", "iat": now, "exp": now + 300, "root_exp": now + 3600,
        "client_id": AGENT, "lineage": [], "idx": idx, "capabilities": ["db.read", "db.write"],
    });
    let key = &node.issuers.es256;
    let header = json!({"alg": "ES256", "kid": key.kid(), "typ": "at+jwt"});
    key.sign_as(&header, &with(&claims, changes))
}

async fn exchange(node: &Node, changes: &Value) -> Response {
    let request = with(&credential(&token(node, changes), OWN), &json!({"audience": TOOL}));
    node.exchange(&request).await
}

async fn verify(node: &Node, token: &str) -> Response {
    node.post("/v1/mcp/verify", &json!({"tool_id": "sql", "token": token})).await
}

#[tokio::test]
async fn token_of_a_peer_ends_with_its_ledger() {
    let node = node().await;
    let tool = json!({"tool_id": "sql", "name": "SQL", "required_capabilities": ["db.read"]});
    assert_eq!(node.post("/v1/tools", &tool).await.status, 201);
    exchange(&node, &json!({})).await.is_refused(503, "server_error", "peer fabric eu: not heard yet");
    let state = node.state();
    import(&node, &state, (0, 0), Vec::new()).await;
    let minted = loop {
        let answer = exchange(&node, &json!({})).await;
        if answer.status == 200 {
            break answer.minted();
        }
        answer.is_refused(503, "server_error", "peer fabric eu");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    // The ceiling holds although token and policy grant more.
    assert_eq!(minted.claims["capabilities"], json!(["db.read"]));
    assert_eq!((&minted.claims["via"], &minted.claims["sub"]), (&json!([PEER]), &json!(AGENT)));
    assert_eq!(minted.claims["root_exp"], node.now_secs() + 900);
    let fabric = json!(lineage::fabric(PEER).to_string());
    assert!(minted.claims["lineage"].as_array().expect("digests").contains(&fabric));
    assert_eq!(verify(&node, &minted.token).await.status, 200);

    // It is no bearer of our routes, and no actor.
    let bearer = format!("Bearer {}", minted.token);
    let answer = node.call("GET", "/v1/tools", &[("authorization", bearer.as_str())], "").await;
    assert_eq!(answer.status, 401, "{}", answer.body);
    let subject =
        with(&credential(&node.issuers.reporter(), crate::support::JWT), &json!({"audience": TOOL}));
    let actor = json!({"actor_token": token(&node, &json!({})), "actor_token_type": OWN});
    let answer = node.exchange(&with(&subject, &actor)).await;
    answer.is_refused(403, "access_denied", "peer fabric eu: as:");
    // A token of the peer about our workload.
    let ours = json!({"sub": format!("wimse://{TRUST_DOMAIN}/agent/mcp/1")});
    exchange(&node, &ours).await.is_refused(400, "invalid_request", BAD_SUBJECT);

    // The peer revokes the agent: both its token and ours are refused at once.
    let id = lineage::workload(&AGENT.parse().expect("an id"));
    let revoked =
        PeerEntry { n: 60, epoch: 10, state: 1, id: id.as_bytes().to_vec().into(), ..PeerEntry::default() };
    import(&node, &state, (1, 50), vec![revoked]).await;
    exchange(&node, &json!({})).await.is_refused(400, "invalid_request", BAD_SUBJECT);
    verify(&node, &minted.token).await.is_refused(403, "access_denied", "revocation: token revoked");
    let renewed = json!({"idx": format!("{}-60", Incarnation::from_bytes(INCARNATION))});
    let renewed = exchange(&node, &renewed).await.minted();
    assert_eq!(verify(&node, &renewed.token).await.status, 200);

    // Nothing is heard for too long.
    node.advance_secs(STALE_AFTER.as_secs());
    let silent = "peer fabric eu: last heard";
    exchange(&node, &json!({})).await.is_refused(503, "server_error", silent);
    verify(&node, &renewed.token).await.is_refused(503, "server_error", silent);
    drop(state);
}
