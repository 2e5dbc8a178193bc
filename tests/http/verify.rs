//! `POST /v1/mcp/verify`: verdicts on tokens presented to tools (contract §5).

use std::path::Path;

use aws_lc_rs::digest;
use futures::future::join_all;
use serde_json::{Value, json};

use crate::support::{
    FABRIC, JWT, Minted, NOW_SECS, Node, ORCHESTRATOR, REPORTER, Response, Setup, TOOL, credential, encode,
    malleate, with,
};

const JSON: (&str, &str) = ("content-type", "application/json");
const BODY: &[u8] = br#"{"query":"select 1"}"#;
const CHECKS: [&str; 9] = [
    "token",
    "revocation",
    "protocol",
    "audience",
    "capabilities",
    "blast_radius",
    "exec_act",
    "inp_hash",
    "target",
];

fn hash(bytes: &[u8]) -> String {
    encode(digest::digest(&digest::SHA256, bytes))
}

/// A tool with every requirement.
fn strict_tool() -> Value {
    json!({
        "tool_id": "sql", "name": "SQL", "resource_uri": TOOL,
        "required_capabilities": ["db.read"], "max_blast_radius": "namespace:demo",
        "requires_execution": true, "allowed_operations": ["POST"], "allowed_targets": [TOOL],
        "protocols": ["mcp"],
    })
}

/// A tool without requirements.
fn plain_tool() -> Value {
    json!({"tool_id": "bare", "name": "takes anything"})
}

async fn register(node: &Node, entry: &Value) {
    let answer = node.post("/v1/tools", entry).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
}

/// A node with the tool of every requirement.
async fn node_with_strict_tool() -> Node {
    let node = Node::start().await;
    register(&node, &strict_tool()).await;
    node
}

/// An execution-scoped token for the tool `sql`, for the service account `demo:reporter`.
async fn execution_token(node: &Node, changes: &Value) -> Minted {
    let claims = with(
        &node.issuers.service_account("demo", "reporter"),
        &json!({"iat": node.now_secs(), "nbf": node.now_secs(), "exp": node.now_secs() + 3600}),
    );
    let scope = json!({"htm": "POST", "htu": TOOL, "payload_hash": hash(BODY)});
    let request = with(&credential(&node.issuers.es256.sign(&claims), JWT), &json!({"audience": TOOL}));
    node.granted(&with(&with(&request, &json!({"execution_scope": scope})), changes)).await
}

/// The same without an execution scope.
async fn plain_token(node: &Node, changes: &Value) -> Minted {
    execution_token(node, &with(&json!({"execution_scope": null}), changes)).await
}

fn verify_request(token: &str) -> Value {
    json!({"tool_id": "sql", "token": token, "request_body_hash": hash(BODY)})
}

async fn verify(node: &Node, request: &Value) -> Response {
    node.post("/v1/mcp/verify", request).await
}

async fn verify_with_key(node: &Node, request: &Value, key: &str) -> Response {
    node.call("POST", "/v1/mcp/verify", &[JSON, ("idempotency-key", key)], request.to_string()).await
}

#[track_caller]
fn assert_passes(answer: &Response) {
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.json()["verified"], true);
}

/// Asserts a failed check, named alone at the head of the text.
#[track_caller]
fn assert_fails(answer: &Response, check: &str, reason: &str) {
    answer.is_refused(403, "access_denied", reason);
    assert_eq!(answer.json()["check"], check, "{}", answer.body);
    let text = answer.refusal().2;
    assert_eq!(text, format!("{check}: {reason}"));
    // The tool server itself is not refused.
    assert_eq!(answer.header("www-authenticate"), None);
}

async fn trail(node: &Node, tool_id: &str) -> Vec<Value> {
    let answer = node.get(&format!("/v1/tools/{tool_id}/audit")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json().as_array().expect("an array").clone()
}

/// The token with another character in the middle of its signature.
fn changed_signature(token: &str) -> String {
    let (rest, last) = token.split_at(token.len() - 40);
    let other = if last.starts_with('A') { "B" } else { "A" };
    format!("{rest}{other}{}", &last[1..])
}

#[tokio::test]
async fn passing_token_returns_its_subject_and_every_check() {
    let node = node_with_strict_tool().await;
    let actor = node.own_token("agents", "orchestrator").await;
    let minted = execution_token(&node, &json!({"actor_token": actor.token, "scope": "db.read"})).await;
    let answer = verify(&node, &verify_request(&minted.token)).await;
    assert_passes(&answer);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let checks: Vec<_> = CHECKS.iter().map(|check| json!({"check": check, "result": "pass"})).collect();
    let expected = json!({
        "verified": true, "tool_id": "sql", "protocol": "mcp", "subject": REPORTER, "actor": ORCHESTRATOR,
        "issuer": FABRIC, "jti": minted.claims["jti"], "txn": minted.claims["txn"],
        "capabilities": ["db.read"], "blast_radius": "namespace:demo",
        "expires_at": "2027-01-15T08:00:30.000Z", "checks": checks,
    });
    assert_eq!(answer.json(), expected);
}

#[tokio::test]
async fn checks_without_a_requirement_are_reported_as_skipped() {
    let node = Node::start().await;
    register(&node, &plain_tool()).await;
    let minted = plain_token(&node, &json!({})).await;
    let answer = verify(&node, &json!({"tool_id": "bare", "token": minted.token})).await;
    assert_passes(&answer);
    assert_eq!(answer.json().get("actor"), None);
    for (at, check) in CHECKS.iter().enumerate() {
        let result = if at < 3 { "pass" } else { "skip" };
        assert_eq!(answer.json()["checks"][at], json!({"check": check, "result": result}));
    }
    // A token without an execution scope passes any number of times.
    assert_passes(&verify(&node, &json!({"tool_id": "bare", "token": minted.token})).await);
}

#[tokio::test]
async fn every_member_is_checked_and_named() {
    let node = node_with_strict_tool().await;
    let minted = execution_token(&node, &json!({})).await;
    let good = verify_request(&minted.token);
    for (changes, text) in [
        (json!({"tool_id": null}), "tool_id: is required"),
        (json!({"tool_id": ""}), "tool_id: is required"),
        (json!({"tool_id": 1}), "tool_id"),
        (json!({"token": null}), "token: is required"),
        (json!({"token": ""}), "token: is required"),
        (json!({"token": {}}), "token"),
        (json!({"protocol": "MCP"}), "protocol: must be mcp, http or a2a/2025-draft-01"),
        (json!({"protocol": "a2a"}), "protocol: must be"),
        (json!({"protocol": ""}), "protocol: must be"),
        (json!({"request_body_hash": ""}), "request_body_hash: must be a SHA-256 digest"),
        (json!({"request_body_hash": "AAAA"}), "request_body_hash: must be"),
        (json!({"request_body_hash": format!("{}=A", hash(BODY))}), "request_body_hash: must be"),
        (json!({"request_body_hash": format!("{}+", &hash(BODY)[1..])}), "request_body_hash: must be"),
        (json!({"request_body_hash": "0".repeat(64)}), "request_body_hash: must be"),
        (json!({"cnf": {"x5t#S256": "AAAA"}}), "cnf.x5t#S256: must be 32 bytes"),
        (json!({"cnf": {"jkt": hash(BODY)}}), "jkt"),
        (json!({"cnf": {}}), "x5t#S256"),
        (json!({"cnf": "x"}), "cnf"),
    ] {
        let answer = verify(&node, &with(&good, &changes)).await;
        answer.is_refused(400, "invalid_request", text);
        assert_eq!(answer.json().get("check"), None, "{}", answer.body);
    }
    for body in ["", "[]", "null", "{", r#"{"tool_id":"sql","tool_id":"sql","token":"x"}"#] {
        node.call("POST", "/v1/mcp/verify", &[JSON], body).await.is_refused(400, "invalid_request", "");
    }
    let form = [("content-type", "application/x-www-form-urlencoded")];
    node.call("POST", "/v1/mcp/verify", &form, "tool_id=sql").await.is_refused(415, "invalid_request", "");
    let huge = with(&good, &json!({"x": "x".repeat(300_000)}));
    verify(&node, &huge).await.is_refused(413, "invalid_request", "");
    // None of it used the token. Unknown fields are ignored, and padding is tolerated.
    let padded = json!({"request_body_hash": format!("{}=", hash(BODY)), "x": 1});
    assert_passes(&verify(&node, &with(&good, &padded)).await);
}

#[tokio::test]
async fn unknown_tool_is_404_for_any_token_and_has_no_trail() {
    let node = node_with_strict_tool().await;
    let good = execution_token(&node, &json!({})).await.token;
    let long = "t".repeat(10_000);
    for tool_id in ["sq", "sql ", "SQL", "sql/x", "\u{202e}", long.as_str()] {
        for token in [good.as_str(), "x"] {
            let answer = verify(&node, &with(&verify_request(token), &json!({"tool_id": tool_id}))).await;
            answer.is_refused(404, "not_found", "there is no tool with this tool_id");
        }
    }
    node.get("/v1/tools/sq/audit").await.is_refused(404, "not_found", "");
    assert_passes(&verify(&node, &verify_request(&good)).await);
}

#[tokio::test]
async fn failed_check_has_one_name_in_answer_metric_and_audit() {
    let node = node_with_strict_tool().await;
    register(
        &node,
        &with(&strict_tool(), &json!({"tool_id": "mail", "resource_uri": "https://tools.example/mail"})),
    )
    .await;
    register(
        &node,
        &with(&strict_tool(), &json!({"tool_id": "root", "required_capabilities": ["db.rea", "db.read"]})),
    )
    .await;
    register(&node, &with(&strict_tool(), &json!({"tool_id": "small", "max_blast_radius": "namespace:dem"})))
        .await;
    register(&node, &with(&strict_tool(), &json!({"tool_id": "get", "allowed_operations": ["GET", "POS"]})))
        .await;
    register(
        &node,
        &with(&strict_tool(), &json!({"tool_id": "there", "allowed_targets": [format!("{TOOL}/")]})),
    )
    .await;
    let used = execution_token(&node, &json!({})).await.token;
    assert_passes(&verify(&node, &verify_request(&used)).await);
    let good = execution_token(&node, &json!({})).await;
    let changed = changed_signature(&good.token);
    let elsewhere = json!({"protocol": "http"});
    let other_body = json!({"request_body_hash": hash(b"another")});
    let cases = [
        ("sql", &changed, json!({}), "token", "signature invalid"),
        ("sql", &used, json!({}), "revocation", "token already used"),
        ("sql", &good.token, elsewhere, "protocol", "protocol http not accepted by tool"),
        ("mail", &good.token, json!({}), "audience", "token aud does not match tool resource_uri"),
        ("root", &good.token, json!({}), "capabilities", "missing capability db.rea"),
        ("small", &good.token, json!({}), "blast_radius", "namespace:demo exceeds namespace:dem"),
        ("get", &good.token, json!({}), "exec_act", "operation POST not allowed"),
        ("sql", &good.token, other_body, "inp_hash", "request body hash mismatch"),
        ("there", &good.token, json!({}), "target", "target not allowed"),
    ];
    for (tool_id, token, changes, check, reason) in &cases {
        let request = with(&with(&verify_request(token), &json!({"tool_id": tool_id})), changes);
        let answer = verify(&node, &request).await;
        assert_fails(&answer, check, reason);
        let newest = trail(&node, tool_id).await.swap_remove(0);
        assert_eq!(newest["request_id"], answer.json()["request_id"]);
        assert_eq!((&newest["action"], &newest["decision"]), (&json!("verify"), &json!("deny")));
        assert_eq!((&newest["check"], &newest["notes"]), (&json!(check), &json!(reason)));
        // Without a valid signature no subject is recorded.
        let subject = if *check == "token" { "" } else { REPORTER };
        assert_eq!(newest["subject"], subject, "{newest}");
        let page = node.get("/metrics").await.body;
        let counted = format!(r#"svc_verify_checks_total{{check="{check}",result="fail"}} 1"#);
        assert!(page.contains(&counted), "{counted}");
    }
    assert_passes(&verify(&node, &verify_request(&good.token)).await);
    let newest = trail(&node, "sql").await.swap_remove(0);
    assert_eq!((&newest["decision"], &newest["subject"]), (&json!("allow"), &json!(REPORTER)));
    assert_eq!((&newest["jti"], &newest["txn"]), (&good.claims["jti"], &good.claims["txn"]));
    assert_eq!(newest.get("check"), None);
    let page = node.get("/metrics").await.body;
    for line in [
        r#"svc_verify_total{result="allow"} 2"#,
        r#"svc_verify_total{result="deny"} 9"#,
        // Two passed, and eight others were valid tokens.
        r#"svc_verify_checks_total{check="token",result="pass"} 10"#,
        r#"svc_verify_checks_total{check="target",result="pass"} 2"#,
    ] {
        assert!(page.contains(line), "{line}");
    }
}

#[tokio::test]
async fn one_of_200_concurrent_verifications_passes() {
    let node = node_with_strict_tool().await;
    let minted = execution_token(&node, &json!({})).await;
    // Half of them with the other valid signature: it is the same token.
    let requests = [verify_request(&minted.token), verify_request(&malleate(&minted.token))];
    let ask = async |at: usize| loop {
        let answer = verify(&node, &requests[at % 2]).await;
        // Refused for overload, before verification.
        if answer.status != 503 {
            return answer;
        }
    };
    let answers = join_all((0..200).map(ask)).await;
    let passed = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(passed, 1);
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        assert_fails(answer, "revocation", "token already used");
    }
    let allowed = node.get("/v1/tools/sql/audit?decision=allow").await.json();
    let allowed =
        allowed.as_array().expect("entries").iter().filter(|entry| entry["action"] == "verify").count();
    assert_eq!(allowed, 1);
}

#[tokio::test]
async fn retry_with_its_key_passes_and_other_requests_fail() {
    let mut node = node_with_strict_tool().await;
    let token = execution_token(&node, &json!({})).await.token;
    let request = verify_request(&token);
    assert_passes(&verify_with_key(&node, &request, "attempt-1").await);
    assert_passes(&verify_with_key(&node, &request, "attempt-1").await);
    assert_fails(&verify(&node, &request).await, "revocation", "token already used");
    for _ in 0..2 {
        let answer = verify_with_key(&node, &request, "attempt-2").await;
        assert_fails(&answer, "revocation", "token already used");
    }
    // The key with another body, of the same token or of another.
    let other = with(&request, &json!({"x": 1}));
    verify_with_key(&node, &other, "attempt-1").await.is_refused(422, "invalid_request", "Idempotency-Key");
    let another = verify_request(&execution_token(&node, &json!({})).await.token);
    verify_with_key(&node, &another, "attempt-1").await.is_refused(422, "invalid_request", "Idempotency-Key");
    assert_eq!(trail(&node, "sql").await[0]["decision"], "deny");
    node.restart().await;
    assert_passes(&verify_with_key(&node, &request, "attempt-1").await);
    assert_fails(&verify(&node, &request).await, "revocation", "token already used");
    // A retry repeats every check.
    let replaced = with(&strict_tool(), &json!({"protocols": ["http"]}));
    assert_eq!(node.put("/v1/tools/sql", &replaced).await.status, 200);
    let answer = verify_with_key(&node, &request, "attempt-1").await;
    assert_fails(&answer, "protocol", "protocol mcp not accepted by tool");
    assert_eq!(node.put("/v1/tools/sql", &strict_tool()).await.status, 200);
    node.advance_secs(30);
    assert_fails(&verify_with_key(&node, &request, "attempt-1").await, "token", "token expired");
}

#[tokio::test]
async fn a_verification_that_is_refused_spends_nothing() {
    let node = node_with_strict_tool().await;
    let token = execution_token(&node, &json!({})).await.token;
    let wrong = with(&verify_request(&token), &json!({"request_body_hash": hash(b"another")}));
    for _ in 0..2 {
        let answer = verify_with_key(&node, &wrong, "attempt").await;
        assert_fails(&answer, "inp_hash", "request body hash mismatch");
    }
    let missing = with(&verify_request(&token), &json!({"request_body_hash": null}));
    assert_fails(&verify(&node, &missing).await, "inp_hash", "request_body_hash missing");
    // The idempotency key is free too.
    assert_passes(&verify_with_key(&node, &verify_request(&token), "attempt").await);
}

#[tokio::test]
async fn current_tool_entry_applies_not_that_at_issue() {
    let node = node_with_strict_tool().await;
    register(&node, &plain_tool()).await;
    let token = plain_token(&node, &json!({})).await.token;
    let request = json!({"tool_id": "bare", "token": token});
    assert_passes(&verify(&node, &request).await);
    let stricter = with(&plain_tool(), &json!({"required_capabilities": ["db.drop"]}));
    assert_eq!(node.put("/v1/tools/bare", &stricter).await.status, 200);
    assert_fails(&verify(&node, &request).await, "capabilities", "missing capability db.drop");
    assert_eq!(node.call("DELETE", "/v1/tools/bare", &[], "").await.status, 204);
    verify(&node, &request).await.is_refused(404, "not_found", "tool_id");
    register(&node, &plain_tool()).await;
    assert_passes(&verify(&node, &request).await);
}

#[tokio::test]
async fn execution_scoped_token_has_no_leeway_and_others_five_seconds() {
    let node = node_with_strict_tool().await;
    register(&node, &plain_tool()).await;
    let one_call = execution_token(&node, &json!({})).await.token;
    let any_call = plain_token(&node, &json!({})).await.token;
    node.advance_secs(29);
    let wrong = with(&verify_request(&one_call), &json!({"request_body_hash": hash(b"x")}));
    assert_fails(&verify(&node, &wrong).await, "inp_hash", "request body hash mismatch");
    node.advance_secs(1);
    assert_fails(&verify(&node, &verify_request(&one_call)).await, "token", "token expired");
    let request = json!({"tool_id": "bare", "token": any_call});
    node.advance_secs(274);
    assert_passes(&verify(&node, &request).await);
    node.advance_secs(1);
    assert_eq!(node.now_secs(), NOW_SECS + 305);
    assert_fails(&verify(&node, &request).await, "token", "token expired");
}

#[tokio::test]
async fn tool_refuses_tokens_for_us_and_from_foreign_issuers() {
    let node = Node::start().await;
    register(&node, &plain_tool()).await;
    let ours = node.own_token("agents", "orchestrator").await.token;
    let answer = verify(&node, &json!({"tool_id": "bare", "token": ours})).await;
    assert_fails(&answer, "audience", "token is meant for the fabric itself");
    // A credential that an exchange would accept is no token for a tool.
    let foreign = node.issuers.reporter();
    let answer = verify(&node, &json!({"tool_id": "bare", "token": foreign})).await;
    assert_fails(&answer, "token", "signing key unknown");
}

#[tokio::test]
async fn a_tainted_keys_tokens_pass_no_tool() {
    let node = Node::start().await;
    register(&node, &plain_tool()).await;
    let minted = plain_token(&node, &json!({})).await;
    let request = json!({"tool_id": "bare", "token": minted.token});
    assert_passes(&verify(&node, &request).await);
    let kid = minted.header["kid"].as_str().expect("kid");
    assert_eq!(node.call("POST", &format!("/v1/sys/keys/{kid}/taint"), &[], "").await.status, 200);
    assert_fails(&verify(&node, &request).await, "token", "signing key unknown");
}

#[tokio::test]
async fn tokens_of_a_revoked_agent_and_child_fail_verification() {
    let node = Node::start().await;
    register(&node, &plain_tool()).await;
    let issue = async |changes: Value| {
        let request =
            json!({"agent_name": "a", "platform": "mcp", "capabilities": ["db.read"], "delegation_depth": 2});
        let answer = node.post("/v1/identity/agent", &with(&request, &changes)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let agent = answer.json();
        let text = |name: &str| agent[name].as_str().expect(name).to_owned();
        (text("agent_id"), text("token"))
    };
    let (parent, parent_token) = issue(json!({})).await;
    let (_, child_token) = issue(json!({"on_behalf_of": parent, "delegation_depth": 1})).await;
    let mut requests = Vec::new();
    for token in [&parent_token, &child_token] {
        let request = with(&credential(token, crate::support::OWN), &json!({"audience": TOOL}));
        let minted = node.granted(&request).await;
        requests.push(json!({"tool_id": "bare", "token": minted.token}));
    }
    for request in &requests {
        assert_passes(&verify(&node, request).await);
    }
    let path = format!("/v1/identity/agents/{}", parent.replace(':', "%3A").replace('/', "%2F"));
    assert_eq!(node.call("DELETE", &path, &[], "").await.status, 204);
    for request in &requests {
        assert_fails(&verify(&node, request).await, "revocation", "token revoked");
    }
}

#[tokio::test]
async fn bound_token_passes_with_the_clients_certificate() {
    let node = Node::start_with(Setup { is_secure: true, ..Setup::default() }).await;
    register(&node, &plain_tool()).await;
    let digest = super::bound_tokens::digest_of(&node.certificates().callers[0].1);
    let minted = plain_token(&node, &json!({"req_cnf": {"x5t#S256": digest}})).await;
    assert_eq!(minted.claims["cnf"]["x5t#S256"], digest);
    // Over a connection with that certificate, which belongs to the tool server and proves nothing.
    let request = json!({"tool_id": "bare", "token": minted.token});
    let elsewhere = "token is bound to another certificate than cnf names";
    assert_fails(&verify(&node, &request).await, "token", elsewhere);
    let other = json!({"cnf": {"x5t#S256": hash(b"another certificate")}});
    assert_fails(&verify(&node, &with(&request, &other)).await, "token", elsewhere);
    assert_passes(&verify(&node, &with(&request, &json!({"cnf": {"x5t#S256": digest}}))).await);
}

#[tokio::test]
async fn token_ahead_of_the_local_log_waits_and_then_gets_503() {
    let mut node = Node::start().await;
    register(&node, &plain_tool()).await;
    node.stop().await;
    let data = node.directory.path().join("data");
    let earlier = node.directory.path().join("earlier");
    copy(&data, &earlier);
    node.start_again().await;
    let spend = async |node: &Node, from: usize| {
        for at in from..from + 24 {
            let scope = json!({"htm": "POST", "htu": TOOL, "nonce": format!("n{at}")});
            execution_token(node, &json!({"execution_scope": scope})).await;
        }
    };
    spend(&node, 0).await;
    let request = json!({"tool_id": "bare", "token": plain_token(&node, &json!({})).await.token});
    assert_passes(&verify(&node, &request).await);
    node.stop().await;
    std::fs::remove_dir_all(&data).expect("remove");
    std::fs::rename(&earlier, &data).expect("rename");
    node.start_again().await;
    let answer = verify(&node, &request).await;
    answer.is_refused(503, "server_error", "this node has not yet applied the log");
    // The index is applied while the request waits, or before the next one.
    spend(&node, 100).await;
    assert_passes(&verify(&node, &request).await);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("directory");
    let mode = std::fs::metadata(from).expect("metadata").permissions();
    std::fs::set_permissions(to, mode).expect("permissions");
    for entry in std::fs::read_dir(from).expect("directory") {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).expect("entry");
        if path.is_dir() {
            copy(&path, &to.join(name));
        } else if path.is_file() {
            std::fs::copy(&path, to.join(name)).expect("copy");
        }
    }
}
