//! Agents over HTTP: issued, delegated, listed, renewed and revoked.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use trust_fabric::token::lineage;

use crate::support::{
    BAD_ACTOR, BAD_SUBJECT, Channel, FABRIC, JWT, Minted, Node, OWN, Response, Setup, TOOL, credential, with,
};

const AGENT: &str = "/v1/identity/agent";
const AGENTS: &str = "/v1/identity/agents";
const RENEW: &str = "/v1/identity/agent/renew";
const DAY_SECS: u64 = 24 * 3600;

/// The smallest request.
fn planner() -> Value {
    json!({"agent_name": "planner", "platform": "mcp", "capabilities": ["db.read"]})
}

/// An agent that may have children: everything that policy grants.
fn root() -> Value {
    let capabilities = ["db.read", "db.write"];
    with(
        &planner(),
        &json!({"capabilities": capabilities, "max_blast_radius": "namespace:demo", "delegation_depth": 3}),
    )
}

fn child_of(parent: &Issued) -> Value {
    with(&planner(), &json!({"agent_name": "child", "on_behalf_of": parent.id}))
}

/// An issued agent and its token.
struct Issued {
    id: String,
    minted: Minted,
}

impl Issued {
    fn token(&self) -> &str {
        &self.minted.token
    }

    fn path(&self) -> String {
        format!("{AGENTS}/{}", encoded(&self.id))
    }
}

fn encoded(id: &str) -> String {
    id.replace(':', "%3A").replace('/', "%2F")
}

/// Decodes the response like that of an exchange.
#[track_caller]
fn issued(answer: &Response) -> Issued {
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let body = answer.json();
    let as_exchanged = Response {
        status: 200,
        headers: answer.headers.clone(),
        body: with(&body, &json!({"access_token": body["token"]})).to_string(),
    };
    Issued { id: body["agent_id"].as_str().expect("agent_id").to_owned(), minted: as_exchanged.minted() }
}

async fn issue(node: &Node, request: &Value) -> Issued {
    issued(&node.post(AGENT, request).await)
}

async fn issue_over(node: &Node, channel: &Channel, request: &Value) -> Response {
    let media = [("content-type", "application/json")];
    node.call_over(channel, "POST", AGENT, &media, request.to_string()).await
}

async fn with_bearer(node: &Node, method: &str, path: &str, token: &str) -> Response {
    let value = format!("Bearer {token}");
    node.call(method, path, &[("authorization", &value)], "").await
}

async fn secure() -> Node {
    Node::start_with(Setup { is_secure: true, ..Setup::default() }).await
}

/// The digest of an identity token's family in `lineage`.
fn family(minted: &Minted) -> Value {
    lineage::family(FABRIC, minted.claims["jti"].as_str().expect("jti")).to_string().into()
}

/// The digest of a workload identifier in `lineage`.
fn digest(id: &str) -> Value {
    let id = id.parse().expect("an identifier");
    lineage::workload(&id).to_string().into()
}

#[tokio::test]
async fn an_identity_token_has_exactly_its_claims() {
    let node = Node::start().await;
    let request = with(
        &root(),
        &json!({"capabilities": ["db.write", "db.read", "db.write"], "metadata": {"team": "pay"}, "unknown": 1}),
    );
    let answer = node.post(AGENT, &request).await;
    let agent = issued(&answer);
    node.verify(&agent.minted).await;
    let uuid = agent.id.strip_prefix("wimse://trust.example/agent/mcp/").expect("a WIMSE identifier");
    assert_eq!(uuid::Uuid::parse_str(uuid).expect("a uuid").get_version_num(), 4);
    assert_eq!(answer.header("location"), Some(agent.path().as_str()));
    assert_eq!(
        with(&answer.json(), &json!({"token": null, "agent_id": null})),
        json!({
            "platform": "mcp", "capabilities": ["db.read", "db.write"], "blast_radius": "namespace:demo",
            "expires_at": "2027-01-15T09:00:00.000Z",
        })
    );
    let claims = &agent.minted.claims;
    for name in ["jti", "txn", "idx", "policy"] {
        assert!(claims[name].as_str().is_some_and(|text| !text.is_empty()), "{name}");
    }
    let now = node.now_secs();
    assert_eq!(
        with(claims, &json!({"jti": null, "txn": null, "idx": null, "policy": null})),
        json!({
            "iss": FABRIC, "sub": agent.id, "client_id": agent.id, "aud": FABRIC,
            "iat": now, "nbf": now, "exp": now + 3600, "root_iat": now, "root_exp": now + 3600,
            "scope": "db.read db.write", "capabilities": ["db.read", "db.write"],
            "blast_radius": "namespace:demo", "delegation_depth": 3, "lineage": [family(&agent.minted)],
            "platform": "mcp", "agent_name": "planner",
        })
    );
    assert_eq!(agent.minted.header["typ"], "at+jwt");
    assert_eq!(agent.minted.header["alg"], "ES256");
    let metrics = node.get("/metrics").await.body;
    assert!(metrics.contains(r#"svc_agent_identities_issued_total{platform="mcp"} 1"#), "{metrics}");
    assert!(
        metrics.contains(r#"svc_policy_decisions_total{decision="allow",point="identity"} 1"#),
        "{metrics}"
    );
}

#[tokio::test]
async fn agent_has_one_of_four_platforms_and_is_terminal_by_default() {
    let node = Node::start().await;
    for platform in ["mcp", "a2a", "watsonx", "custom"] {
        let agent = issue(&node, &with(&planner(), &json!({"platform": platform}))).await;
        assert!(agent.id.starts_with(&format!("wimse://trust.example/agent/{platform}/")), "{}", agent.id);
        assert_eq!(agent.minted.claims["platform"], platform);
        assert_eq!(agent.minted.claims["delegation_depth"], 0);
        // The policy sets a blast radius.
        assert_eq!(agent.minted.claims["blast_radius"], "cluster");
    }
}

#[tokio::test]
async fn members_are_checked_and_named() {
    let node = Node::start().await;
    for (changes, text) in [
        (json!({"agent_name": null}), "agent_name: is required"),
        (json!({"agent_name": ""}), "agent_name: must be 1 to 256 bytes"),
        (json!({"agent_name": "a\u{7}"}), "agent_name: must be 1 to 256 bytes without control"),
        (json!({"agent_name": "n".repeat(257)}), "agent_name: must be 1 to 256 bytes"),
        (json!({"agent_name": 1}), "agent_name: must be a string"),
        (json!({"platform": null}), "platform: is required"),
        (json!({"platform": "slack"}), "platform: must be one of mcp, a2a, watsonx, custom"),
        (json!({"platform": "MCP"}), "platform: must be one of"),
        (json!({"capabilities": null}), "capabilities: is required"),
        (json!({"capabilities": []}), "capabilities: must not be empty"),
        (json!({"capabilities": "db.read"}), "capabilities: must be an array"),
        (json!({"capabilities": [1]}), "capabilities[0]: must be a string"),
        (json!({"capabilities": ["db read"]}), "capabilities: must be at most 128 words"),
        (json!({"capabilities": [""]}), "capabilities: must be at most 128 words"),
        (json!({"capabilities": ["a\\b"]}), "capabilities: must be at most 128 words"),
        (json!({"delegation_depth": -1}), "delegation_depth: must be a whole number from 0 to 10"),
        (json!({"delegation_depth": 11}), "delegation_depth: must be a whole number from 0 to 10"),
        (json!({"delegation_depth": 1.5}), "delegation_depth: must be a whole number from 0 to 10"),
        (json!({"delegation_depth": "1"}), "delegation_depth: must be a whole number from 0 to 10"),
        (json!({"max_blast_radius": "namespace:"}), "max_blast_radius: blast radius must be"),
        (json!({"max_blast_radius": "Namespace:a"}), "max_blast_radius: blast radius must be"),
        (json!({"on_behalf_of": "planner"}), "on_behalf_of: must be the agent_id of an agent"),
        (json!({"on_behalf_of": ""}), "on_behalf_of: must be the agent_id of an agent"),
        (json!({"metadata": {"a": 1}}), "metadata.a: must be a string"),
        (json!({"metadata": []}), "metadata: must be an object"),
        (json!({"metadata": {"": "v"}}), "metadata: names must be"),
        (json!({"metadata": {"a": "v".repeat(513)}}), "metadata: values must be at most 512 bytes"),
    ] {
        let answer = node.post(AGENT, &with(&planner(), &changes)).await;
        answer.is_refused(400, "invalid_request", text);
    }
    for (body, text) in [
        ("", "body is not acceptable JSON"),
        ("1", "body: must be"),
        (r#"{"agent_name": "a", "agent_name": "b"}"#, "duplicate"),
        (r#"{"metadata": {"a": "b", "a": "c"}}"#, "duplicate"),
    ] {
        node.call("POST", AGENT, &[], body).await.is_refused(400, "invalid_request", text);
    }
    let form = [("content-type", "application/x-www-form-urlencoded")];
    node.call("POST", AGENT, &form, "agent_name=a").await.is_refused(415, "invalid_request", "");
    let large = with(&planner(), &json!({"agent_name": "n".repeat(300_000)}));
    node.post(AGENT, &large).await.is_refused(413, "invalid_request", "");
    assert_eq!(node.get(AGENTS).await.json(), json!([]), "nothing was issued");
}

#[tokio::test]
async fn without_a_rule_about_agents_none_is_issued_or_renewed() {
    let node = Node::start_with(Setup { without: &["identity.rego"], ..Setup::default() }).await;
    let bearer = node.own_token("agents", "orchestrator").await.token;
    let text = "agent identity is not configured: the policy has no rule data.svc.identity.decision";
    with_bearer(&node, "POST", RENEW, &bearer).await.is_refused(501, "not_implemented", text);
    node.call("POST", AGENT, &[], "").await.is_refused(501, "not_implemented", text);
    // The result does not depend on the request.
    node.post(AGENT, &planner()).await.is_refused(501, "not_implemented", text);
    node.granted(&credential(&node.issuers.reporter(), JWT)).await;
}

/// Regression: removing the agent rule from the policy turns agents off in an emergency. The route that
/// revokes them then answered 501 too.
#[tokio::test]
async fn agents_are_listed_and_revoked_without_an_agent_rule() {
    let node = Node::start().await;
    let agent = issue(&node, &root()).await;
    let policy = node.get("/v1/sys/policy").await.json();
    let sources = policy["sources"].as_array().expect("sources").iter();
    let kept: Vec<_> = sources.filter(|source| source["path"] != "identity.rego").collect();
    let applied = node.put("/v1/sys/policy", &json!({"sources": kept})).await;
    assert_eq!(applied.status, 200, "{}", applied.body);
    with_bearer(&node, "POST", RENEW, &agent.minted.token).await.is_refused(501, "not_implemented", "rule");
    assert_eq!(node.get(AGENTS).await.json().as_array().map(Vec::len), Some(1));
    let path = format!("{AGENTS}/{}", encoded(&agent.id));
    assert_eq!(node.call("DELETE", &path, &[], "").await.status, 204);
    assert_eq!(node.get(&path).await.json()["status"], "revoked");
    let answer = node.exchange(&credential(&agent.minted.token, OWN)).await;
    answer.is_refused(400, "invalid_request", BAD_SUBJECT);
}

/// Attack: a foreign credential for our trust domain could name an agent. Without a record the agent had no
/// parents and no end, and returned after its revocation.
#[tokio::test]
async fn no_foreign_issuer_speaks_as_an_agent() {
    let node = Node::start().await;
    let agent = issue(&node, &root()).await;
    for sub in [agent.id.as_str(), "wimse://trust.example/agent/x", "spiffe://trust.example/agent/mcp/x"] {
        let answer = node.exchange(&credential(&node.issuers.changed(&json!({"sub": sub})), JWT)).await;
        answer.is_refused(400, "invalid_request", BAD_SUBJECT);
    }
    let act = json!({"act": {"iss": FABRIC, "sub": "wimse://trust.example/agent/mcp/never-issued"}});
    let answer = node.exchange(&credential(&node.issuers.changed(&act), JWT)).await;
    answer.is_refused(400, "invalid_request", BAD_SUBJECT);
    let sub = "wimse://trust.example/ns/demo/sa/agent";
    node.granted(&credential(&node.issuers.changed(&json!({"sub": sub})), JWT)).await;
}

#[tokio::test]
async fn issuer_gets_another_token_for_its_agent() {
    let node = secure().await;
    let gateway = node.certified("gateway");
    let agent = issued(&issue_over(&node, &gateway, &root()).await);
    let path = format!("{}/token", agent.path());
    node.advance_secs(600);
    let another = issued(&node.call_over(&gateway, "POST", &path, &[], "").await);
    let (first, second) = (&agent.minted.claims, &another.minted.claims);
    assert_eq!((&another.id, &second["root_iat"]), (&agent.id, &first["iat"]));
    for name in ["capabilities", "blast_radius", "delegation_depth", "platform", "agent_name"] {
        assert_eq!(second[name], first[name], "{name}");
    }
    // Its own family, and the workload that had it issued.
    assert_eq!(second["lineage"], json!([family(&another.minted), first["lineage"][1]]));
    assert_ne!(family(&another.minted), family(&agent.minted));
    let revoked = json!({"jti": first["jti"], "issuer": FABRIC});
    let media = [("content-type", "application/json")];
    let operator = node.certified("operator");
    let revoked = node.call_over(&operator, "POST", "/v1/revocations", &media, revoked.to_string()).await;
    assert_eq!(revoked.status, 202, "{}", revoked.body);
    with_bearer(&node, "POST", RENEW, agent.token()).await.is_refused(401, "access_denied", "not valid");
    assert_eq!(with_bearer(&node, "POST", RENEW, another.token()).await.status, 200);
}

/// Regression: the token did not derive from the operator that had it minted, and was renewed after the operator was revoked.
#[tokio::test]
async fn token_minted_by_an_operator_ends_with_the_operator() {
    let node = secure().await;
    let (gateway, chief) = (node.certified("gateway"), node.certified("chief"));
    let agent = issued(&issue_over(&node, &gateway, &root()).await);
    let path = format!("{}/token", agent.path());
    let minted = issued(&node.call_over(&chief, "POST", &path, &[], "").await);
    let renewed = issued(&with_bearer(&node, "POST", RENEW, minted.token()).await);
    let (operator, media) = (node.certified("operator"), [("content-type", "application/json")]);
    let chief = json!({"subject": "spiffe://trust.example/chief"}).to_string();
    let revoked = node.call_over(&operator, "POST", "/v1/revocations", &media, chief).await;
    assert_eq!(revoked.status, 202, "{}", revoked.body);
    for token in [minted.token(), renewed.token()] {
        with_bearer(&node, "POST", RENEW, token).await.is_refused(401, "access_denied", "not valid");
    }
    assert_eq!(with_bearer(&node, "POST", RENEW, agent.token()).await.status, 200);
}

#[tokio::test]
async fn token_of_an_agent_is_for_its_issuer_while_it_is_active() {
    let node = secure().await;
    let (gateway, second) = (node.certified("gateway"), node.certified("second"));
    let agent = issued(&issue_over(&node, &gateway, &root()).await);
    let child = issued(&issue_over(&node, &gateway, &child_of(&agent)).await);
    let token = async |channel: &Channel, agent: &str| {
        node.call_over(channel, "POST", &format!("{AGENTS}/{}/token", encoded(agent)), &[], "").await
    };
    let absent = "there is no agent with this agent_id";
    token(&second, &agent.id).await.is_refused(404, "not_found", absent);
    for id in ["wimse://trust.example/agent/mcp/none", "none", "%FF"] {
        token(&gateway, id).await.is_refused(404, "not_found", absent);
    }
    assert_eq!(token(&gateway, &child.id).await.status, 200);
    assert_eq!(node.call_over(&gateway, "DELETE", &agent.path(), &[], "").await.status, 204);
    for id in [&agent.id, &child.id] {
        token(&gateway, id).await.is_refused(403, "access_denied", "the agent is revoked");
    }
    let last = issued(&issue_over(&node, &gateway, &planner()).await);
    node.advance_secs(30 * DAY_SECS);
    token(&gateway, &last.id).await.is_refused(403, "access_denied", "the agent has expired");
}

/// Attack: a peer revokes by time. A child that is issued after the revocation of its ancestor must not begin a new chain.
#[tokio::test]
async fn chain_of_an_agent_begins_with_its_oldest_ancestor() {
    let node = Node::start().await;
    let root = issue(&node, &root()).await;
    let begun = node.now_secs();
    node.advance_secs(60);
    let child = issue(&node, &with(&child_of(&root), &json!({"delegation_depth": 1}))).await;
    node.advance_secs(60);
    let grandchild = issue(&node, &child_of(&child)).await;
    let renewed = issued(&with_bearer(&node, "POST", RENEW, child.token()).await);
    for agent in [&root, &child, &grandchild, &renewed] {
        assert_eq!(agent.minted.claims["root_iat"], begun, "{}", agent.id);
    }
    let exchanged = node.granted(&credential(grandchild.token(), OWN)).await;
    assert_eq!(exchanged.claims["root_iat"], begun);
    assert_eq!(issue(&node, &planner()).await.minted.claims["root_iat"], begun + 120);
}

/// Attack: a renewed token did not derive from the token it renewed. One that was forged with a stolen key
/// became valid under another key and outlived the taint of the stolen one.
#[tokio::test]
async fn renewed_token_is_covered_by_the_taint_of_the_first_key() {
    let node = Node::start().await;
    node.advance_secs(600);
    let agent = issue(&node, &root()).await;
    let first = agent.minted.header["kid"].as_str().expect("kid").to_owned();
    assert_eq!(node.post("/v1/sys/keys/rotate", &json!({})).await.status, 200);
    let mut token = agent.minted.token.clone();
    for _ in 0..2 {
        let renewed = issued(&with_bearer(&node, "POST", RENEW, &token).await);
        assert_ne!(renewed.minted.header["kid"], first);
        token = renewed.minted.token;
    }
    assert_eq!(node.post(&format!("/v1/sys/keys/{first}/taint"), &json!({})).await.status, 200);
    with_bearer(&node, "POST", RENEW, &token).await.is_refused(401, "access_denied", "not valid");
    let answer = node.exchange(&credential(&token, OWN)).await;
    answer.is_refused(400, "invalid_request", BAD_SUBJECT);
    // The agent itself is valid: it can be issued another token.
    issue(&node, &root()).await;
}

/// Attack: an agent that derives from a forged token is renewed until the key with which it was forged is deleted. Then
/// neither a taint nor a revocation found the key, while the agent could live for 30 days.
#[tokio::test]
async fn deleted_key_is_revoked_by_a_block() {
    let node = Node::start().await;
    node.advance_secs(600);
    let agent = issue(&node, &root()).await;
    let first = agent.minted.header["kid"].as_str().expect("kid").to_owned();
    let mut token = agent.minted.token;
    for _ in 0..5 {
        assert_eq!(node.post("/v1/sys/keys/rotate", &json!({})).await.status, 200);
        node.advance_secs(3_000);
        token = issued(&with_bearer(&node, "POST", RENEW, &token).await).minted.token;
    }
    let unknown = "there is no signing key with this kid";
    node.post(&format!("/v1/sys/keys/{first}/taint"), &json!({})).await.is_refused(404, "not_found", unknown);
    let without_block = json!({"key": first});
    node.post("/v1/revocations", &without_block).await.is_refused(404, "not_found", unknown);
    node.post("/v1/revocations?dry_run=true", &without_block).await.is_refused(404, "not_found", unknown);
    let block = with(&without_block, &json!({"block": true}));
    assert_eq!(node.post("/v1/revocations?dry_run=true", &block).await.status, 200);
    let revoked = node.post("/v1/revocations", &block).await;
    assert_eq!((revoked.status, &revoked.json()["blocked"]), (202, &json!(true)), "{}", revoked.body);
    with_bearer(&node, "POST", RENEW, &token).await.is_refused(401, "access_denied", "not valid");
    issue(&node, &root()).await;
}

/// Each key that signed a predecessor stays in the lineage. Regression: the last renewals were answered with tokens that no
/// exchange accepted.
#[tokio::test]
async fn every_renewed_token_can_be_exchanged() {
    let node = Node::start().await;
    node.advance_secs(600);
    let mut token = issue(&node, &root()).await.minted.token;
    for renewals in 0..40 {
        let exchanged = node.exchange(&credential(&token, OWN)).await;
        assert_eq!(exchanged.status, 200, "after {renewals}: {}", exchanged.body);
        assert_eq!(node.post("/v1/sys/keys/rotate", &json!({})).await.status, 200);
        node.advance_secs(600);
        let renewed = with_bearer(&node, "POST", RENEW, &token).await;
        if renewed.status != 200 {
            assert!(renewals > 20, "{renewals}");
            renewed.is_refused(403, "access_denied", "too many signing keys");
            return;
        }
        token = issued(&renewed).minted.token;
    }
    panic!("it was renewed across 40 keys");
}

/// A block of a key that still signs taints it too: it leaves the JWK Set, and the node signs with another one.
#[tokio::test]
async fn block_of_a_known_key_taints_it() {
    let node = Node::start().await;
    node.advance_secs(600);
    let agent = issue(&node, &root()).await;
    let kid = agent.minted.header["kid"].clone();
    let revoked = node.post("/v1/revocations", &json!({"key": kid, "block": true})).await;
    assert_eq!((revoked.status, &revoked.json()["blocked"]), (202, &json!(true)), "{}", revoked.body);
    let keys = node.get("/v1/sys/keys").await.json();
    let key = keys.as_array().expect("keys").iter().find(|key| key["kid"] == kid).expect("listed").clone();
    assert_eq!(key["state"], "tainted");
    with_bearer(&node, "POST", RENEW, agent.token()).await.is_refused(401, "access_denied", "not valid");
    assert_ne!(issue(&node, &root()).await.minted.header["kid"], kid);
}

#[tokio::test]
async fn policy_decides_by_the_callers_own_row() {
    let node = secure().await;
    let (gateway, second) = (node.certified("gateway"), node.certified("second"));
    let wide =
        with(&root(), &json!({"capabilities": ["db.read", "db.write", "unknown"], "delegation_depth": 10}));
    let answer = issue_over(&node, &gateway, &wide).await;
    let agent = issued(&answer);
    assert_eq!(agent.minted.claims["capabilities"], json!(["db.read", "db.write"]));
    assert_eq!(agent.minted.claims["delegation_depth"], 10);
    let agent = issued(&issue_over(&node, &second, &wide).await);
    assert_eq!(agent.minted.claims["capabilities"], json!(["db.read"]));
    assert_eq!(agent.minted.claims["delegation_depth"], 1);
    for (changes, text) in [
        (json!({"platform": "a2a"}), "policy denied: the caller may not have agents of this platform"),
        (json!({"capabilities": ["db.write"]}), "policy denied: the caller may not give its agents any"),
        (json!({"capabilities": ["db"]}), "policy denied: the caller may not give its agents any"),
    ] {
        let answer = issue_over(&node, &second, &with(&planner(), &changes)).await;
        answer.is_refused(403, "access_denied", text);
    }
    // The blast radius of the policy is any cluster.
    for (radius, granted) in
        [("global", Some("cluster")), ("galaxy:m31", None), ("cluster:east", Some("cluster:east"))]
    {
        let answer =
            issue_over(&node, &gateway, &with(&planner(), &json!({"max_blast_radius": radius}))).await;
        match granted {
            Some(granted) => assert_eq!(answer.json()["blast_radius"], granted),
            None => answer.is_refused(403, "access_denied", "policy denied: insufficient blast radius"),
        }
    }
    issue_over(&node, &node.certified("operator"), &planner()).await.is_refused(
        403,
        "access_denied",
        "identity.issue",
    );
}

#[tokio::test]
async fn policy_that_grants_no_requested_capability_denies() {
    let node = Node::start().await;
    let identity = "package svc.identity\nimport rego.v1\n\
        decision := {\"allow\": true, \"reason\": \"\", \"grants\": {\"capabilities\": [\"other\"]}}";
    let sources = node.get("/v1/sys/policy").await.json()["sources"].as_array().expect("sources").clone();
    let sources: Vec<_> = sources
        .into_iter()
        .map(
            |file| {
                if file["path"] == "identity.rego" { with(&file, &json!({"text": identity})) } else { file }
            },
        )
        .collect();
    let before = issue(&node, &planner()).await;
    assert_eq!(node.put("/v1/sys/policy", &json!({"sources": sources})).await.status, 200);
    let text = "policy denied: none of the requested capabilities can be granted";
    node.post(AGENT, &planner()).await.is_refused(403, "access_denied", text);
    // A policy that grants less applies to the next token.
    let renewed = with_bearer(&node, "POST", RENEW, before.token()).await;
    let request_id = renewed.json()["request_id"].as_str().expect("an id").to_owned();
    renewed.is_refused(403, "access_denied", text);
    let explained = node.get(&format!("/v1/sys/denials/{request_id}")).await.json();
    assert_eq!((&explained["operation"], &explained["target"]), (&json!("identity"), &json!(before.id)));
}

#[tokio::test]
async fn a_chain_of_agents_has_less_with_each() {
    let node = Node::start().await;
    let mut chain = vec![issue(&node, &root()).await];
    for depth in (0..3).rev() {
        let parent = chain.last().expect("a parent");
        let child = issue(&node, &with(&child_of(parent), &json!({"delegation_depth": depth}))).await;
        let claims = &child.minted.claims;
        assert_eq!(claims["on_behalf_of"], parent.id);
        assert_eq!(
            (&claims["delegation_depth"], &claims["capabilities"]),
            (&json!(depth), &json!(["db.read"]))
        );
        assert_eq!(claims["blast_radius"], "namespace:demo", "it has its parent's");
        let ancestors = chain.iter().rev().map(|agent| digest(&agent.id));
        let lineage: Vec<_> = std::iter::once(family(&child.minted)).chain(ancestors).collect();
        assert_eq!(claims["lineage"], json!(lineage));
        chain.push(child);
    }
    let last = chain.last().expect("a child");
    let text = "on_behalf_of: the parent is a terminal agent, issued with delegation depth 0";
    node.post(AGENT, &child_of(last)).await.is_refused(403, "access_denied", text);
    let shown = node.get(&last.path()).await.json();
    assert_eq!((&shown["on_behalf_of"], &shown["delegation_depth"]), (&json!(chain[2].id), &json!(0)));
}

#[tokio::test]
async fn a_child_never_has_more_than_its_parent() {
    let node = Node::start().await;
    let capabilities = ["db.read", "tools.read"];
    let parent =
        issue(&node, &with(&root(), &json!({"capabilities": capabilities, "delegation_depth": 2}))).await;
    for (changes, text) in [
        (json!({"delegation_depth": 2}), "delegation_depth: must be at most 1, one less than the parent's"),
        (json!({"capabilities": ["db.read", "db.write"]}), "capabilities: the parent does not have db.write"),
        (json!({"capabilities": ["db"]}), "capabilities: the parent does not have db"),
        (json!({"capabilities": ["db.read.all"]}), "capabilities: the parent does not have db.read.all"),
        (
            json!({"max_blast_radius": "cluster"}),
            "max_blast_radius: must lie within the parent's, namespace:demo",
        ),
        (json!({"max_blast_radius": "namespace:demo2"}), "max_blast_radius: must lie within the parent's"),
        (json!({"max_blast_radius": "namespace"}), "max_blast_radius: must lie within the parent's"),
        (json!({"max_blast_radius": "galaxy:m31"}), "max_blast_radius: must lie within the parent's"),
        (json!({"max_blast_radius": "workspace:other/a"}), "max_blast_radius: must lie within the parent's"),
    ] {
        node.post(AGENT, &with(&child_of(&parent), &changes)).await.is_refused(403, "access_denied", text);
    }
    let within = json!({"max_blast_radius": "workspace:demo/a", "delegation_depth": 1, "platform": "a2a"});
    let child = issue(&node, &with(&child_of(&parent), &within)).await;
    assert_eq!(child.minted.claims["blast_radius"], "workspace:demo/a");
}

#[tokio::test]
async fn parent_must_be_known_owned_live_and_unrevoked() {
    let node = secure().await;
    let (gateway, second, chief) =
        (node.certified("gateway"), node.certified("second"), node.certified("chief"));
    let parent = issued(&issue_over(&node, &gateway, &root()).await);
    let unknown = "on_behalf_of: no agent of the caller has this agent_id";
    for id in [
        "wimse://trust.example/agent/mcp/3f1c2a9e-7d44-4a53-9a2e-0c5b6f0d1e22",
        "wimse://trust.example/ns/demo/sa/reporter",
        "wimse://other.example/agent/mcp/x",
    ] {
        let request = with(&planner(), &json!({"on_behalf_of": id}));
        issue_over(&node, &gateway, &request).await.is_refused(403, "access_denied", unknown);
    }
    // Another caller's parent is indistinguishable from an unknown one.
    issue_over(&node, &second, &child_of(&parent)).await.is_refused(403, "access_denied", unknown);
    let child =
        issued(&issue_over(&node, &chief, &with(&child_of(&parent), &json!({"delegation_depth": 1}))).await);
    assert_eq!(child.minted.claims["on_behalf_of"], parent.id);
    // An agent of `chief` is not the gateway's, although its parent is.
    issue_over(&node, &gateway, &child_of(&child)).await.is_refused(403, "access_denied", unknown);

    let other = issued(&issue_over(&node, &gateway, &root()).await);
    let grandchild = with(&child_of(&other), &json!({"delegation_depth": 1}));
    let grandchild = issued(&issue_over(&node, &gateway, &grandchild).await);
    assert_eq!(node.call_over(&gateway, "DELETE", &other.path(), &[], "").await.status, 204);
    for revoked in [&other, &grandchild] {
        let answer = issue_over(&node, &gateway, &child_of(revoked)).await;
        answer.is_refused(403, "access_denied", "on_behalf_of: the parent is revoked");
    }
    node.advance_secs(30 * DAY_SECS);
    let answer = issue_over(&node, &gateway, &child_of(&parent)).await;
    answer.is_refused(403, "access_denied", "on_behalf_of: the parent has expired");
}

#[tokio::test]
async fn revoked_agent_and_child_tokens_are_refused_in_every_use() {
    let node = Node::start().await;
    let capabilities = ["db.read", "identity.issue", "cluster.admin"];
    let parent = issue(&node, &with(&root(), &json!({"capabilities": capabilities}))).await;
    let able = json!({"capabilities": capabilities, "delegation_depth": 1});
    let child = issue(&node, &with(&child_of(&parent), &able)).await;
    let exchanged =
        |token: &str, audience: &str| with(&credential(token, OWN), &json!({"audience": audience}));
    let acted = |actor: &str| {
        with(
            &credential(&node.issuers.reporter(), JWT),
            &json!({"actor_token": actor, "actor_token_type": OWN}),
        )
    };

    // As subject token, for a tool and for the node itself: the new token ends no later.
    let for_tool = node.granted(&exchanged(child.token(), TOOL)).await;
    assert_eq!((&for_tool.claims["sub"], &for_tool.claims["aud"]), (&json!(child.id), &json!(TOOL)));
    assert_eq!(for_tool.claims["root_exp"], child.minted.claims["exp"]);
    assert!(for_tool.claims.get("platform").is_none() && for_tool.claims.get("agent_name").is_none());
    let lineage: BTreeSet<_> =
        for_tool.claims["lineage"].as_array().expect("lineage").iter().map(Value::to_string).collect();
    assert!(
        lineage.contains(&digest(&parent.id).to_string()) && lineage.contains(&digest(&child.id).to_string())
    );
    // As actor token: it costs one hop.
    let delegated = node.granted(&acted(child.token())).await;
    assert_eq!(delegated.claims["act"], json!({"iss": FABRIC, "sub": child.id}));
    assert_eq!(delegated.claims["delegation_depth"], 0);
    // A terminal agent acts only for itself.
    let terminal = issue(&node, &planner()).await;
    let exhausted = "delegation depth exhausted: the agent was issued with depth 0";
    node.exchange(&acted(terminal.token())).await.is_refused(403, "access_denied", exhausted);
    // As bearer token.
    assert_eq!(with_bearer(&node, "GET", "/v1/sys/keys", child.token()).await.status, 200);
    let insufficient = with_bearer(&node, "GET", "/v1/sys/keys", terminal.token()).await;
    insufficient.is_refused(403, "access_denied", "cluster.admin");
    let for_us = node.granted(&exchanged(child.token(), FABRIC)).await;
    let by_child = with(&acted(child.token()), &json!({"audience": FABRIC}));
    let by_child = node.granted(&by_child).await;

    assert_eq!(node.call("DELETE", &parent.path(), &[], "").await.status, 204);
    for token in [parent.token(), child.token(), &for_us.token, &by_child.token] {
        let bearer = with_bearer(&node, "GET", "/v1/sys/keys", token).await;
        bearer.is_refused(401, "access_denied", "the bearer token is not valid");
        with_bearer(&node, "POST", RENEW, token).await.is_refused(401, "access_denied", "not valid");
        node.exchange(&exchanged(token, TOOL)).await.is_refused(400, "invalid_request", BAD_SUBJECT);
        node.exchange(&acted(token)).await.is_refused(400, "invalid_request", BAD_ACTOR);
    }
    assert_eq!(node.get(&parent.path()).await.json()["status"], "revoked");
    let shown = node.get(&child.path()).await.json();
    assert_eq!((&shown["status"], shown.get("revoked_at")), (&json!("revoked"), None));
    assert_eq!(node.get(&terminal.path()).await.json()["status"], "active");
    node.granted(&exchanged(terminal.token(), TOOL)).await;
}

#[tokio::test]
async fn revocation_survives_a_restart_and_is_idempotent() {
    let mut node = Node::start().await;
    let parent = issue(&node, &root()).await;
    let child = issue(&node, &child_of(&parent)).await;
    assert_eq!(node.call("DELETE", &parent.path(), &[], "").await.status, 204);
    let shown = node.get(&parent.path()).await.json();
    node.restart().await;
    node.advance_secs(5);
    assert_eq!(node.call("DELETE", &parent.path(), &[], "").await.status, 204);
    assert_eq!(node.get(&parent.path()).await.json(), shown);
    for token in [parent.token(), child.token()] {
        with_bearer(&node, "POST", RENEW, token).await.is_refused(401, "access_denied", "not valid");
    }
    for id in ["none", "wimse://trust.example/agent/mcp/none", "%FF"] {
        let path = format!("{AGENTS}/{}", encoded(id));
        for method in ["DELETE", "GET"] {
            let answer = node.call(method, &path, &[], "").await;
            answer.is_refused(404, "not_found", "there is no agent with this agent_id");
        }
    }
}

#[tokio::test]
async fn an_agent_renews_itself_with_its_own_identity_token_only() {
    let node = Node::start().await;
    let parent = issue(&node, &root()).await;
    let agent = issue(&node, &child_of(&parent)).await;
    node.advance_secs(3599);
    let answer = with_bearer(&node, "POST", RENEW, agent.token()).await;
    let renewed = issued(&answer);
    node.verify(&renewed.minted).await;
    assert_eq!((&renewed.id, answer.header("location")), (&agent.id, None));
    let fresh = json!({
        "jti": null, "txn": null, "iat": null, "nbf": null, "exp": null, "root_exp": null, "idx": null, "lineage": null,
    });
    assert_eq!(with(&renewed.minted.claims, &fresh), with(&agent.minted.claims, &fresh));
    assert_ne!(renewed.minted.claims["jti"], agent.minted.claims["jti"]);
    // It derives from all facts of the first token, and from the key that signed the first.
    let kid = agent.minted.header["kid"].as_str().expect("kid");
    let key = lineage::signing_key(FABRIC, kid).to_string();
    let (family, parent) = (family(&agent.minted), digest(&parent.id));
    assert_eq!(agent.minted.claims["lineage"], json!([family, parent]));
    assert_eq!(renewed.minted.claims["lineage"], json!([family, parent, key]));
    assert_eq!(renewed.minted.claims["exp"], node.now_secs() + 3600);
    // The renewed token renews again, and so does the first until its last second. It has no leeway: its
    // successor could not live.
    issued(&with_bearer(&node, "POST", RENEW, renewed.token()).await);
    issued(&with_bearer(&node, "POST", RENEW, agent.token()).await);
    node.advance_secs(1);
    let expired = with_bearer(&node, "POST", RENEW, agent.token()).await;
    expired.is_refused(401, "access_denied", "the bearer token is not valid");

    // A narrower token exchanged from it never becomes wider again.
    let narrow = with(&credential(renewed.token(), OWN), &json!({"audience": FABRIC, "scope": "db.read"}));
    let narrow = node.granted(&narrow).await.token;
    let text = "the bearer token is not an agent's own identity token";
    with_bearer(&node, "POST", RENEW, &narrow).await.is_refused(403, "access_denied", text);
    let workload = node.own_token("agents", "orchestrator").await.token;
    with_bearer(&node, "POST", RENEW, &workload).await.is_refused(403, "access_denied", text);
    let for_tool = with(&credential(renewed.token(), OWN), &json!({"audience": TOOL}));
    let for_tool = node.granted(&for_tool).await.token;
    for foreign in [for_tool.as_str(), &node.issuers.reporter(), "x.y.z"] {
        let answer = with_bearer(&node, "POST", RENEW, foreign).await;
        answer.is_refused(401, "access_denied", "the bearer token is not valid");
    }
    let nobody = node.call("POST", RENEW, &[], "").await;
    nobody.is_refused(401, "access_denied", "the agent's own bearer token is required");
    assert!(nobody.header("www-authenticate").is_some());
}

#[tokio::test]
async fn agent_is_renewed_until_its_last_second_and_no_longer() {
    let node = Node::start().await;
    let parent = issue(&node, &root()).await;
    node.advance_secs(DAY_SECS);
    // The agent ends with its parent.
    let mut agent = issue(&node, &child_of(&parent)).await;
    let ends = parent.minted.claims["iat"].as_i64().expect("iat") + 30 * 86_400;
    assert_eq!(node.get(&agent.path()).await.json()["ends_at"], "2027-02-14T08:00:00.000Z");
    while node.now_secs() + 3599 < ends {
        node.advance_secs(3599);
        agent = issued(&with_bearer(&node, "POST", RENEW, agent.token()).await);
    }
    node.advance_secs(u64::try_from(ends - node.now_secs() - 1).expect("ahead"));
    let last = issued(&with_bearer(&node, "POST", RENEW, agent.token()).await);
    assert_eq!((&last.minted.claims["exp"], &last.minted.claims["root_exp"]), (&json!(ends), &json!(ends)));
    node.advance_secs(1);
    // The agent's tokens end with it.
    let ended = with_bearer(&node, "POST", RENEW, last.token()).await;
    ended.is_refused(401, "access_denied", "the bearer token is not valid");
    assert_eq!(node.get(&agent.path()).await.json()["status"], "ended");
    assert_eq!(node.get(&parent.path()).await.json()["status"], "ended");
    // Retained for a day, and removed when others are issued.
    node.advance_secs(DAY_SECS);
    issue(&node, &planner()).await;
    node.get(&agent.path()).await.is_refused(404, "not_found", "no agent");
    assert_eq!(node.get(AGENTS).await.json().as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_retry_with_the_same_key_is_the_same_agent_with_a_new_token() {
    let mut node = Node::start().await;
    let body = root().to_string();
    let key = [("idempotency-key", "k1"), ("content-type", "application/json")];
    let first = issued(&node.call("POST", AGENT, &key, body.clone()).await);
    node.restart().await;
    node.advance_secs(10);
    let again = issued(&node.call("POST", AGENT, &key, body.clone()).await);
    assert_eq!(again.id, first.id);
    assert_ne!(again.minted.claims["jti"], first.minted.claims["jti"]);
    assert_eq!(again.minted.claims["iat"], node.now_secs());
    let other = node.call("POST", AGENT, &key, planner().to_string()).await;
    other.is_refused(422, "invalid_request", "Idempotency-Key was used with another request");
    let another = [("idempotency-key", "k2")];
    assert_ne!(issued(&node.call("POST", AGENT, &another, body.clone()).await).id, first.id);
    assert_eq!(node.get(AGENTS).await.json().as_array().map(Vec::len), Some(2));
    // A refusal leaves no trace.
    let denied = with(&planner(), &json!({"capabilities": ["unknown"]})).to_string();
    let third = [("idempotency-key", "k3")];
    node.call("POST", AGENT, &third, denied).await.is_refused(403, "access_denied", "policy denied");
    issued(&node.call("POST", AGENT, &third, planner().to_string()).await);
    node.call("POST", AGENT, &[("idempotency-key", "a b")], body.clone()).await.is_refused(
        400,
        "invalid_request",
        "Idempotency-Key",
    );
    // A retry for an agent that was revoked meanwhile returns no token.
    assert_eq!(node.call("DELETE", &first.path(), &[("idempotency-key", "k4")], "").await.status, 204);
    assert_eq!(node.call("DELETE", &first.path(), &[("idempotency-key", "k4")], "").await.status, 204);
    let revoked = node.call("POST", AGENT, &key, body).await;
    revoked.is_refused(403, "access_denied", "the agent is revoked");
    let reused = node.call("DELETE", &again.path(), &[("idempotency-key", "k1")], "").await;
    reused.is_refused(422, "invalid_request", "Idempotency-Key");
}

#[tokio::test]
async fn caller_sees_and_revokes_its_agents_and_an_operator_all() {
    let node = secure().await;
    let (gateway, second, chief) =
        (node.certified("gateway"), node.certified("second"), node.certified("chief"));
    let metadata = json!({"metadata": {"b": "2", "a": "\u{202e}\"<x>"}});
    let mine = issued(&issue_over(&node, &gateway, &with(&root(), &metadata)).await);
    let theirs = issued(&issue_over(&node, &second, &planner()).await);
    let shown = node.call_over(&gateway, "GET", &mine.path(), &[], "").await;
    assert_eq!(shown.header("cache-control"), Some("no-store"));
    assert_eq!(
        shown.json(),
        json!({
            "agent_id": mine.id, "agent_name": "planner", "platform": "mcp",
            "capabilities": ["db.read", "db.write"], "blast_radius": "namespace:demo", "delegation_depth": 3,
            "metadata": {"a": "\u{202e}\"<x>", "b": "2"}, "issued_by": "spiffe://trust.example/gateway",
            "issued_at": "2027-01-15T08:00:00.000Z", "ends_at": "2027-02-14T08:00:00.000Z", "status": "active",
        })
    );
    let ids = async |channel: &Channel| {
        let list = node.call_over(channel, "GET", AGENTS, &[], "").await.json();
        list.as_array().expect("a list").iter().map(|agent| agent["agent_id"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&gateway).await, [json!(mine.id).to_string()]);
    assert_eq!(ids(&second).await, [json!(theirs.id).to_string()]);
    assert_eq!(ids(&chief).await.len(), 2);
    let text = "there is no agent with this agent_id";
    for method in ["GET", "DELETE"] {
        let answer = node.call_over(&second, method, &mine.path(), &[], "").await;
        answer.is_refused(404, "not_found", text);
        let operator = node.call_over(&node.certified("operator"), method, &mine.path(), &[], "").await;
        operator.is_refused(403, "access_denied", "identity.issue");
    }
    assert_eq!(node.call_over(&second, "GET", &theirs.path(), &[], "").await.status, 200);
    assert_eq!(node.call_over(&chief, "GET", &theirs.path(), &[], "").await.status, 200);
    assert_eq!(node.call_over(&chief, "DELETE", &theirs.path(), &[], "").await.status, 204);
    let revoked = node.call_over(&second, "GET", &theirs.path(), &[], "").await.json();
    assert_eq!(
        (&revoked["status"], &revoked["revoked_at"]),
        (&json!("revoked"), &json!("2027-01-15T08:00:00.000Z"))
    );
    // An agent that may issue agents has issued none, whatever its issuer has.
    let able = with(&planner(), &json!({"capabilities": ["identity.issue"]}));
    let able = issued(&issue_over(&node, &gateway, &able).await);
    let bearer = format!("Bearer {}", able.token());
    let list = node.call_over(&node.anonymous(), "GET", AGENTS, &[("authorization", &bearer)], "").await;
    assert_eq!(list.json(), json!([]));
}

#[tokio::test]
async fn pages_lead_through_all_agents_once_and_in_order() {
    let node = secure().await;
    let (gateway, chief) = (node.certified("gateway"), node.certified("chief"));
    let mut expected = BTreeSet::new();
    for at in 0..7 {
        let channel = if at == 3 { &chief } else { &gateway };
        let platform = ["mcp", "a2a"][at % 2];
        let agent =
            issued(&issue_over(&node, channel, &with(&planner(), &json!({"platform": platform}))).await);
        if at != 3 {
            expected.insert(agent.id);
        }
    }
    let walk = async |channel: &Channel, limit: usize| {
        let mut path = format!("{AGENTS}?limit={limit}");
        let mut found = Vec::new();
        loop {
            let answer = node.call_over(channel, "GET", &path, &[], "").await;
            let page = answer.json();
            let page = page.as_array().expect("a list");
            assert!(page.len() <= limit);
            found.extend(page.iter().map(|agent| agent["agent_id"].as_str().expect("id").to_owned()));
            let Some(link) = answer.header("link") else { return found };
            assert_eq!(page.len(), limit);
            let next = link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\""));
            path = next.expect("a link").to_owned();
        }
    };
    for limit in [1, 2, 3, 5, 6, 7, 1000] {
        assert_eq!(walk(&gateway, limit).await, expected.iter().cloned().collect::<Vec<_>>(), "{limit}");
    }
    assert_eq!(walk(&chief, 2).await.len(), 7);
    for (query, text) in [
        ("limit=0", "limit: must be a whole number from 1 to 1000"),
        ("limit=1001", "limit"),
        ("cursor=!", "cursor: must be from a Link header"),
        ("status=active", "the query parameters are limit, cursor"),
    ] {
        let answer = node.call_over(&gateway, "GET", &format!("{AGENTS}?{query}"), &[], "").await;
        answer.is_refused(400, "invalid_request", text);
    }
    // A cursor of another caller shows nothing of that caller.
    let answer = node.call_over(&chief, "GET", &format!("{AGENTS}?limit=1"), &[], "").await;
    let cursor = answer.header("link").and_then(|link| link.split("cursor=").nth(1)).expect("a cursor");
    let cursor = cursor.split('>').next().expect("a cursor");
    let found =
        node.call_over(&node.certified("second"), "GET", &format!("{AGENTS}?cursor={cursor}"), &[], "").await;
    assert_eq!(found.json(), json!([]));
}

#[tokio::test]
async fn the_largest_identity_token_fits_into_the_head_of_a_request() {
    let node = Node::start().await;
    let identity = "package svc.identity\nimport rego.v1\n\
        decision := {\"allow\": true, \"reason\": \"\", \"grants\": {\"capabilities\": input.request.capabilities, \
        \"delegation_depth\": 10}}";
    let sources = node.get("/v1/sys/policy").await.json()["sources"].as_array().expect("sources").clone();
    let sources: Vec<_> = sources
        .into_iter()
        .map(
            |file| {
                if file["path"] == "identity.rego" { with(&file, &json!({"text": identity})) } else { file }
            },
        )
        .collect();
    assert_eq!(node.put("/v1/sys/policy", &json!({"sources": sources})).await.status, 200);
    let capabilities: Vec<_> = (0..128).map(|at| format!("{at:016}")).collect();
    let mut request = json!({
        "agent_name": "\"".repeat(256), "platform": "watsonx", "capabilities": capabilities,
        "max_blast_radius": format!("namespace:{}", "n".repeat(246)), "delegation_depth": 10,
    });
    for depth in (0..=10).rev() {
        let agent = issue(&node, &with(&request, &json!({"delegation_depth": depth}))).await;
        assert!(agent.token().len() < 14_000, "{}", agent.token().len());
        issued(&with_bearer(&node, "POST", RENEW, agent.token()).await);
        request = with(&request, &json!({"on_behalf_of": agent.id}));
    }
}
