//! Tokens of a peer fabric: from the exchange to a tool, by the copy of its ledger.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use trust_fabric::api;
use trust_fabric::id::Incarnation;
use trust_fabric::state::command::{ImportLedger, PeerEntry, PeerKeys};
use trust_fabric::state::{Source, State, peer_key};
use trust_fabric::token::lineage;

use super::peers::Fabric;
use crate::support::{
    BAD_ACTOR, BAD_SUBJECT, FABRIC, JWT, Node, OWN, Response, SVID, Setup, TOOL, TRUST_DOMAIN, credential,
    with,
};

const PEER: &str = "https://eu.example";
const AGENT: &str = "wimse://eu.example/agent/mcp/1";
const INCARNATION: [u8; 16] = [1; 16];
const STALE_AFTER: Duration = Duration::from_secs(60);

/// A policy that grants more than the ceiling of the peer.
const WIDE: &str = "package svc.exchange\nimport rego.v1\n\
    decision := {\"allow\": true, \"reason\": \"granted\", \"grants\": {\
    \"audience\": input.request.audience, \"capabilities\": [\"db.read\", \"db.write\"], \"delegation_depth\": 2}}";

/// A policy that has a row for tokens of the peer `eu` alone.
const LABELLED: &str = "package svc.exchange\nimport rego.v1\n\
    decision := {\"allow\": true, \"reason\": \"granted\", \"grants\": {\
    \"audience\": input.request.audience, \"capabilities\": [\"db.read\"]}} if input.subject.fabric == \"eu\"";

/// The same, also for tokens of ours that came through it.
const THROUGH: &str = "package svc.exchange\nimport rego.v1\n\
    decision := {\"allow\": true, \"reason\": \"granted\", \"grants\": {\
    \"audience\": input.request.audience, \"capabilities\": [\"db.read\"]}} if input.subject.via == [\"eu\"]";

const CEILING: &str = "accept = true\nendpoints = [\"https://eu-1.example:8694\"]\nas = [\"subject\"]\n\
    capabilities = [\"db.read\"]\ncallers = [\"spiffe://eu.example/gateway\"]";

/// A node with this policy, and the peer.
async fn node_with(rego: Option<&'static str>, peer: &str) -> (Node, Fabric) {
    let eu = Fabric::new("eu.example", &["gateway", "other"]);
    let own = Fabric::new(TRUST_DOMAIN, &["federation"]);
    let more_config = format!("{}{}", own.own_section(), eu.section("eu", peer));
    (Node::start_with(Setup { is_secure: true, rego, more_config, ..Setup::default() }).await, eu)
}

/// The same, which has read the peer's ledger.
async fn joined_with(rego: Option<&'static str>) -> (Node, Fabric) {
    joined_from(rego, CEILING).await
}

async fn joined_from(rego: Option<&'static str>, peer: &str) -> (Node, Fabric) {
    let (node, eu) = node_with(rego, peer).await;
    let state = node.state();
    import(&node, &state, (0, 0), Vec::new()).await;
    until_judged(&node).await;
    drop(state);
    (node, eu)
}

/// Until the node has a lease on the ledger that was imported.
async fn until_judged(node: &Node) {
    let judged = async {
        while exchange(node, &json!({})).await.status == 503 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), judged).await.expect("a lease");
}

/// Imports a response of the peer about the 50 entries after this position, and records that it was heard.
async fn import(node: &Node, state: &State, (generation, from): (u64, u64), entries: Vec<PeerEntry>) {
    let call = state.cluster().begin_source_call().expect("it leads");
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
    assert!(imported.changed && state.cluster().record_source(call, source, STALE_AFTER));
}

/// A token of the peer for this fabric.
fn token(node: &Node, changes: &Value) -> String {
    let now = node.now_secs();
    let idx = format!("{}-40", Incarnation::from_bytes(INCARNATION));
    let claims = json!({
        "iss": PEER, "sub": AGENT, "aud": FABRIC, "jti": "t", "iat": now, "exp": now + 300, "root_iat": now, "root_exp": now + 3600,
        "client_id": AGENT, "lineage": [], "idx": idx, "capabilities": ["db.read", "db.write"],
    });
    let key = &node.issuers.es256;
    let header = json!({"alg": "ES256", "kid": key.kid(), "typ": "at+jwt"});
    key.sign_as(&header, &with(&claims, changes))
}

fn request(node: &Node, changes: &Value, audience: &str) -> Value {
    with(&credential(&token(node, changes), OWN), &json!({"audience": audience}))
}

async fn exchange(node: &Node, changes: &Value) -> Response {
    node.exchange(&request(node, changes, TOOL)).await
}

/// Exchanges a token of ours again.
async fn again(node: &Node, token: &str) -> Response {
    node.exchange(&with(&credential(token, OWN), &json!({"audience": TOOL}))).await
}

/// The token as an actor for a subject of ours.
async fn as_actor(node: &Node, token: &str) -> Response {
    let times = json!({"iat": node.now_secs(), "nbf": node.now_secs(), "exp": node.now_secs() + 3600});
    let subject = node.issuers.es256.sign(&with(&node.issuers.service_account("demo", "reporter"), &times));
    let actor = json!({"audience": TOOL, "actor_token": token, "actor_token_type": OWN});
    node.exchange(&with(&credential(&subject, JWT), &actor)).await
}

/// A request of an operator.
async fn operate(node: &Node, method: &str, path: &str, body: &Value) -> Response {
    let json = [("content-type", "application/json")];
    node.call_over(&node.certified("operator"), method, path, &json, body.to_string()).await
}

async fn tool(node: &Node) {
    let tool = json!({"tool_id": "sql", "name": "SQL", "required_capabilities": ["db.read"]});
    assert_eq!(node.post("/v1/tools", &tool).await.status, 201);
}

async fn verify(node: &Node, token: &str) -> Response {
    node.post("/v1/mcp/verify", &json!({"tool_id": "sql", "token": token})).await
}

#[tokio::test]
async fn token_of_a_peer_ends_with_its_ledger() {
    let (node, _eu) = node_with(Some(WIDE), CEILING).await;
    tool(&node).await;
    let answer = exchange(&node, &json!({})).await;
    answer.is_refused(503, "server_error", "peer fabric eu: not heard yet");
    assert_eq!(answer.header("retry-after"), Some("5"));
    let state = node.state();
    import(&node, &state, (0, 0), Vec::new()).await;
    until_judged(&node).await;
    let minted = exchange(&node, &json!({})).await.minted();
    // The ceiling holds although token and policy grant more.
    assert_eq!(minted.claims["capabilities"], json!(["db.read"]));
    assert_eq!((&minted.claims["via"], &minted.claims["sub"]), (&json!([PEER]), &json!(AGENT)));
    assert_eq!(
        (&minted.claims["root_exp"], &minted.claims["delegation_depth"]),
        (&json!(node.now_secs() + 900), &json!(0))
    );
    let fabric = json!(lineage::fabric(PEER).to_string());
    assert!(minted.claims["lineage"].as_array().expect("digests").contains(&fabric));
    assert_eq!(verify(&node, &minted.token).await.status, 200);
    // A chain goes on here, with the same end.
    let chain = node.exchange(&request(&node, &json!({}), FABRIC)).await.minted();
    node.advance_secs(1);
    let next = again(&node, &chain.token).await.minted();
    assert_eq!((&next.claims["via"], &next.claims["root_exp"]), (&json!([PEER]), &chain.claims["root_exp"]));
    assert!(next.claims["lineage"].as_array().expect("digests").contains(&fabric));

    // The peer revokes the agent: its token and all of ours are refused at once.
    let id = lineage::workload(&AGENT.parse().expect("an id"));
    let revoked =
        PeerEntry { n: 60, epoch: 10, state: 1, id: id.as_bytes().to_vec().into(), ..PeerEntry::default() };
    import(&node, &state, (1, 50), vec![revoked]).await;
    exchange(&node, &json!({})).await.is_refused(400, "invalid_request", BAD_SUBJECT);
    again(&node, &chain.token).await.is_refused(400, "invalid_request", BAD_SUBJECT);
    as_actor(&node, &chain.token).await.is_refused(400, "invalid_request", BAD_ACTOR);
    for minted in [&minted, &next] {
        verify(&node, &minted.token).await.is_refused(403, "access_denied", "revocation: token revoked");
    }
    let renewed = json!({"idx": format!("{}-60", Incarnation::from_bytes(INCARNATION))});
    let chain = node.exchange(&request(&node, &renewed, FABRIC)).await.minted();
    let renewed = exchange(&node, &renewed).await.minted();
    assert_eq!(verify(&node, &renewed.token).await.status, 200);

    // Nothing is heard for too long.
    node.advance_secs(STALE_AFTER.as_secs());
    for answer in [
        exchange(&node, &json!({})).await,
        again(&node, &chain.token).await,
        as_actor(&node, &chain.token).await,
        verify(&node, &renewed.token).await,
    ] {
        answer.is_refused(503, "server_error", "peer fabric eu: last heard");
        assert_eq!(answer.header("retry-after"), Some("5"));
    }
    drop(state);
}

/// Attack: a token of the peer in every other place that takes a token.
#[tokio::test]
async fn token_of_a_peer_counts_at_the_exchange_only() {
    let (node, _eu) = joined_with(Some(WIDE)).await;
    tool(&node).await;
    let text = token(&node, &json!({}));
    assert_eq!(exchange(&node, &json!({})).await.status, 200);
    verify(&node, &text).await.is_refused(403, "access_denied", "token:");
    for kind in [JWT, SVID] {
        let request = with(&credential(&text, kind), &json!({"audience": TOOL}));
        node.exchange(&request).await.is_refused(400, "invalid_request", BAD_SUBJECT);
    }
    as_actor(&node, &text).await.is_refused(403, "access_denied", "peer fabric eu: as:");
    assert_no_bearer(&node, &text).await;
    // No agent of ours is the child of one of the peer.
    let child =
        json!({"agent_name": "x", "platform": "mcp", "capabilities": ["db.read"], "on_behalf_of": AGENT});
    let answer = node.post("/v1/identity/agent", &child).await;
    assert_eq!(answer.status, 403, "{}", answer.body);
    // Subjects, actors and fabrics for which the peer does not speak, and its identity tokens.
    for changes in [
        json!({"sub": format!("wimse://{TRUST_DOMAIN}/agent/mcp/1")}),
        json!({"act": {"iss": FABRIC, "sub": "wimse://eu.example/agent/mcp/2"}}),
        json!({"act": {"iss": PEER, "sub": format!("wimse://{TRUST_DOMAIN}/agent/mcp/2")}}),
        json!({"via": [PEER]}),
        json!({"aud": PEER}),
        json!({"aud": [FABRIC, PEER]}),
        json!({"platform": "mcp"}),
        json!({"exp": node.now_secs() + 301}),
        json!({"iss": "https://ap.example"}),
        json!({"iss": "https://eu.example/"}),
    ] {
        exchange(&node, &changes).await.is_refused(400, "invalid_request", BAD_SUBJECT);
    }
}

/// Attack: a token that came through a peer as a bearer of each of our routes.
#[tokio::test]
async fn token_through_a_peer_is_no_bearer() {
    let (node, _eu) = joined_with(Some(WIDE)).await;
    let minted = node.exchange(&request(&node, &json!({}), FABRIC)).await.minted();
    assert_eq!(again(&node, &minted.token).await.status, 200);
    assert_no_bearer(&node, &minted.token).await;
}

/// No route takes the token.
async fn assert_no_bearer(node: &Node, token: &str) {
    let (anonymous, bearer) = (node.anonymous(), format!("Bearer {token}"));
    let mut refused = 0;
    for row in api::rows() {
        let (method, path) = (row.method.as_str(), row.path.replace(['{', '}'], ""));
        let without = node.call_over(&anonymous, method, &path, &[], "").await;
        let answer =
            node.call_over(&anonymous, method, &path, &[("authorization", bearer.as_str())], "").await;
        if matches!(without.status, 401 | 403) {
            assert!(matches!(answer.status, 401 | 403), "{method} {path}: {}", answer.body);
            refused += 1;
        } else {
            assert_eq!(answer.status, without.status, "{method} {path}: {}", answer.body);
        }
        // The rate limit does not recover while the clock stands still.
        if refused % 20 == 0 {
            node.advance_secs(1);
        }
    }
    assert!(refused > 40, "{refused}");
}

#[tokio::test]
async fn token_of_a_peer_needs_rows_of_the_policy() {
    let (node, _eu) = joined_with(None).await;
    exchange(&node, &json!({})).await.is_refused(403, "access_denied", "policy denied");
}

#[tokio::test]
async fn policy_reads_the_label_of_the_peer() {
    let (node, _eu) = joined_with(Some(LABELLED)).await;
    let minted = node.exchange(&request(&node, &json!({}), FABRIC)).await.minted();
    // That token is one of ours.
    again(&node, &minted.token).await.is_refused(403, "access_denied", "policy denied");
}

#[tokio::test]
async fn policy_sees_the_peer_of_a_through_token() {
    let (node, _eu) = joined_with(Some(THROUGH)).await;
    let minted = node.exchange(&request(&node, &json!({}), FABRIC)).await.minted();
    assert_eq!(again(&node, &minted.token).await.status, 200);
}

/// Attack: a peer's token that is accepted as a subject only becomes an actor by a second exchange.
#[tokio::test]
async fn through_token_of_a_subject_is_no_actor() {
    let (node, _eu) = joined_from(Some(WIDE), &format!("{CEILING}\nmax_delegation_depth = 2")).await;
    let minted = node.exchange(&request(&node, &json!({"delegation_depth": 2}), FABRIC)).await.minted();
    assert_eq!(minted.claims["delegation_depth"], 2);
    assert_eq!(again(&node, &minted.token).await.status, 200);
    as_actor(&node, &minted.token).await.is_refused(403, "access_denied", "peer fabric eu: as:");
    let (node, _eu) = joined_from(
        Some(WIDE),
        &format!("{}\nmax_delegation_depth = 2", CEILING.replace("\"subject\"", "\"subject\", \"actor\"")),
    )
    .await;
    let minted = node.exchange(&request(&node, &json!({"delegation_depth": 2}), FABRIC)).await.minted();
    let answer = as_actor(&node, &minted.token).await.minted();
    assert_eq!((&answer.claims["via"], &answer.claims["act"]["sub"]), (&json!([PEER]), &json!(AGENT)));
    let answer = as_actor(&node, &token(&node, &json!({"delegation_depth": 2}))).await.minted();
    assert_eq!((&answer.claims["via"], &answer.claims["act"]["sub"]), (&json!([PEER]), &json!(AGENT)));
}

/// Attack: an issuer that may speak for the peer's trust domain names an agent of the peer.
#[tokio::test]
async fn agent_of_a_peer_from_another_issuer_is_refused() {
    let more = "[[issuers]]\nissuer = \"https://ci.example\"\nsubject = \"identifier\"\n\
        keys_file = \"KEYS\"\nalgorithms = [\"ES256\"]\ntrust_domains = [\"eu.example\"]";
    let signer = crate::support::Signer::es256("ci");
    let directory = tempfile::tempdir().expect("directory");
    let keys = directory.path().join("keys.json");
    std::fs::write(&keys, json!({"keys": [signer.jwk()]}).to_string()).expect("written");
    let more = more.replace("KEYS", &keys.display().to_string());
    let (node, _eu) = joined_from(Some(WIDE), &format!("{CEILING}\n{more}")).await;
    let now = node.now_secs();
    let of = |sub: &str| {
        let claims = json!({
            "iss": "https://ci.example", "sub": sub, "aud": FABRIC, "iat": now, "nbf": now, "exp": now + 300, "jti": sub,
        });
        with(&credential(&signer.sign(&claims), JWT), &json!({"audience": TOOL}))
    };
    assert_eq!(node.exchange(&of("wimse://eu.example/ci")).await.status, 200);
    node.exchange(&of(AGENT)).await.is_refused(400, "invalid_request", BAD_SUBJECT);
}

/// Attack: a peer presents a token that was meant for it at a tool of ours that has no audience of its own. It may be one
/// whose own tokens are not accepted here.
#[tokio::test]
async fn token_for_a_peer_passes_no_tool() {
    for peer in [CEILING, "serve = true"] {
        let (node, _eu) = node_with(Some(WIDE), peer).await;
        tool(&node).await;
        let times = json!({"iat": node.now_secs(), "nbf": node.now_secs(), "exp": node.now_secs() + 3600});
        let ours = node.issuers.es256.sign(&with(&node.issuers.service_account("demo", "reporter"), &times));
        for (audience, status) in [("https://ap.example", 200), (PEER, 403)] {
            let request = with(&credential(&ours, JWT), &json!({"audience": audience}));
            let answer = verify(&node, &node.exchange(&request).await.minted().token).await;
            assert_eq!(answer.status, status, "{peer}: {}", answer.body);
        }
    }
}

#[tokio::test]
async fn paused_peer_is_refused_everywhere() {
    let (node, eu) = joined_with(Some(WIDE)).await;
    tool(&node).await;
    let minted = exchange(&node, &json!({})).await.minted();
    let chain = node.exchange(&request(&node, &json!({}), FABRIC)).await.minted();
    let set = async |verb: &str| {
        let answer = operate(&node, "POST", &format!("/v1/federation/peers/eu/{verb}"), &json!({})).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    };
    set("pause").await;
    let paused = "peer fabric eu: paused by an operator";
    exchange(&node, &json!({})).await.is_refused(403, "access_denied", paused);
    again(&node, &chain.token).await.is_refused(403, "access_denied", paused);
    as_actor(&node, &chain.token).await.is_refused(403, "access_denied", paused);
    verify(&node, &minted.token).await.is_refused(403, "access_denied", "revocation:");
    call_exchange(&node, &eu, 0, &request(&node, &json!({}), TOOL)).await.is_refused(
        403,
        "access_denied",
        paused,
    );
    set("resume").await;
    assert_eq!(exchange(&node, &json!({})).await.status, 200);
    assert_eq!(verify(&node, &minted.token).await.status, 200);
    // A peer that is silent is paused for that reason, and the answer is the same.
    set("pause").await;
    node.advance_secs(301);
    exchange(&node, &json!({})).await.is_refused(403, "access_denied", paused);
}

async fn call_exchange(node: &Node, eu: &Fabric, caller: usize, request: &Value) -> Response {
    let json = [("content-type", "application/json")];
    let channel = node.secure(Some(eu.caller(caller)));
    node.call_over(&channel, "POST", "/v1/exchange/token", &json, request.to_string()).await
}

/// Attack: a workload of the peer calls the exchange, listed or not, with a credential of ours.
#[tokio::test]
async fn caller_of_a_peer_exchanges_tokens_of_its_peer_only() {
    let (node, eu) = joined_with(Some(WIDE)).await;
    tool(&node).await;
    let theirs = request(&node, &json!({}), TOOL);
    let minted = call_exchange(&node, &eu, 0, &theirs).await.minted();
    assert_eq!(minted.claims["client_id"], json!("spiffe://eu.example/gateway"));
    assert_eq!(verify(&node, &minted.token).await.status, 200);
    call_exchange(&node, &eu, 1, &theirs).await.is_refused(403, "access_denied", "federation routes");
    let times = json!({"iat": node.now_secs(), "nbf": node.now_secs(), "exp": node.now_secs() + 3600});
    let ours = node.issuers.es256.sign(&with(&node.issuers.service_account("demo", "reporter"), &times));
    let ours = with(&credential(&ours, JWT), &json!({"audience": TOOL}));
    assert_eq!(node.exchange(&ours).await.status, 200);
    let refused = call_exchange(&node, &eu, 0, &ours).await;
    refused.is_refused(403, "access_denied", "a caller of the peer fabric eu exchanges only");
    for (method, path) in [("GET", "/v1/tools"), ("GET", "/v1/federation/peers"), ("POST", "/v1/mcp/verify")]
    {
        let answer = node.call_over(&node.secure(Some(eu.caller(0))), method, path, &[], "").await;
        assert_eq!(answer.status, 403, "{path}: {}", answer.body);
    }
    // The peer blocks that workload.
    let id = lineage::workload(&"spiffe://eu.example/gateway".parse().expect("an id"));
    let id = id.as_bytes().to_vec().into();
    let block = PeerEntry { n: 60, epoch: 10, state: 2, id, by: vec![9; 16].into() };
    let state = node.state();
    import(&node, &state, (1, 50), vec![block]).await;
    drop(state);
    verify(&node, &minted.token).await.is_refused(403, "access_denied", "revocation: token revoked");
    let blocked = call_exchange(&node, &eu, 0, &theirs).await.minted();
    verify(&node, &blocked.token).await.is_refused(403, "access_denied", "revocation: token revoked");
}

/// Attack: a stolen credential of an issuer of both fabrics is exchanged in the peer, which does not know of its revocation.
#[tokio::test]
async fn revoked_credential_is_not_laundered_by_a_peer() {
    let (node, _eu) = joined_with(Some(WIDE)).await;
    let alice = json!({"subject": "alice", "issuer": "https://idp.example"});
    let fact = lineage::subject("https://idp.example", "alice").to_string();
    let of_age = |secs: i64| json!({"lineage": [fact], "root_iat": node.now_secs() - secs});
    assert_eq!(exchange(&node, &of_age(60)).await.status, 200);
    let made = operate(&node, "POST", "/v1/revocations", &alice).await;
    assert_eq!((made.status, &made.json()["blocked"]), (202, &json!(false)), "{}", made.body);
    node.advance_secs(30);
    exchange(&node, &of_age(90)).await.is_refused(400, "invalid_request", BAD_SUBJECT);
    // Alice has logged in again since, and what derives from it is accepted.
    let minted = node.exchange(&request(&node, &of_age(15), FABRIC)).await.minted();
    assert_eq!(minted.claims["root_iat"], node.now_secs() - 15);
    assert_eq!(again(&node, &minted.token).await.minted().claims["root_iat"], node.now_secs() - 15);
    let future = exchange(&node, &json!({"root_iat": node.now_secs() + 900})).await.minted();
    assert_eq!(future.claims["root_iat"], node.now_secs());
}

/// Attack: the ledger of the peer blocks everything that a token of ours derives from.
#[tokio::test]
async fn entries_of_a_peer_about_ours_refuse_only_what_came_from_it() {
    let (node, _eu) = joined_with(Some(WIDE)).await;
    tool(&node).await;
    let ours = with(&credential(&node.issuers.reporter(), JWT), &json!({"audience": TOOL}));
    let minted = node.exchange(&ours).await.minted();
    let lineage = &minted.claims["lineage"];
    assert_eq!(exchange(&node, &json!({"lineage": lineage})).await.status, 200);
    let digests = lineage.as_array().expect("digests").iter().filter_map(Value::as_str);
    let blocks = digests.zip(60..).map(|(digest, n)| {
        let id = URL_SAFE_NO_PAD.decode(digest).expect("base64url").into();
        PeerEntry { n, epoch: 10, state: 2, id, by: vec![9; 16].into() }
    });
    let (state, blocks) = (node.state(), blocks.collect::<Vec<_>>());
    assert!(!blocks.is_empty());
    import(&node, &state, (1, 50), blocks).await;
    drop(state);
    exchange(&node, &json!({"lineage": lineage})).await.is_refused(400, "invalid_request", BAD_SUBJECT);
    assert_eq!(verify(&node, &minted.token).await.status, 200);
    assert_eq!(node.exchange(&ours).await.status, 200);
}

/// A clock of the peer that is ahead dates its tokens after our revocation, which must cover them nevertheless.
#[tokio::test]
async fn own_revocation_of_a_peers_fact_is_a_block() {
    let (node, _eu) = joined_with(Some(WIDE)).await;
    tool(&node).await;
    let facts = [
        json!({"subject": AGENT}),
        json!({"subject": AGENT.replace("wimse", "spiffe")}),
        json!({"subject": AGENT, "issuer": PEER}),
        json!({"jti": "t-3", "issuer": PEER}),
        json!({"fabric": PEER}),
    ];
    for (at, fact) in facts.iter().enumerate() {
        let jti = json!({"jti": format!("t-{at}")});
        let minted = exchange(&node, &jti).await.minted();
        assert_eq!(verify(&node, &minted.token).await.status, 200, "{fact}");
        let dry = operate(&node, "POST", "/v1/revocations?dry_run=true", fact).await;
        assert_eq!(dry.status, 200, "{}", dry.body);
        let made = operate(&node, "POST", "/v1/revocations", fact).await;
        assert_eq!((made.status, &made.json()["blocked"]), (202, &json!(true)), "{}", made.body);
        node.advance_secs(10);
        exchange(&node, &jti).await.is_refused(400, "invalid_request", BAD_SUBJECT);
        verify(&node, &minted.token).await.is_refused(403, "access_denied", "revocation: token revoked");
        let blocks = operate(&node, "GET", "/v1/blocks", &json!({})).await.json();
        let [block] = blocks.as_array().expect("blocks").as_slice() else { panic!("{blocks}") };
        let path = format!("/v1/blocks/{}", block["id"].as_str().expect("an id"));
        assert_eq!(operate(&node, "DELETE", &path, &json!({})).await.status / 100, 2);
        let changes = json!({"jti": "later"});
        let later = exchange(&node, &changes).await;
        assert_eq!(later.status, 200, "{fact}: {}", later.body);
        verify(&node, &minted.token).await.is_refused(403, "access_denied", "revocation: token revoked");
    }
    for fabric in ["https://eu.example/", FABRIC, "https://ap.example"] {
        let answer = operate(&node, "POST", "/v1/revocations", &json!({"fabric": fabric})).await;
        answer.is_refused(400, "invalid_request", "fabric: must be the issuer of a peer");
    }
    let ours = json!({"subject": format!("wimse://{TRUST_DOMAIN}/x")});
    let made = operate(&node, "POST", "/v1/revocations", &ours).await;
    assert_eq!((made.status, &made.json()["blocked"]), (202, &json!(false)), "{}", made.body);
}
