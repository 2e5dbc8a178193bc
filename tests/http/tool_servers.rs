//! The tool servers of `examples/` with their clients: the verdict reaches the client as each protocol
//! specifies, and no call passes without a verdict.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::support::tool_server::{
    Interference, ToolServer, environment, example, losing_the_first_verdict, token_for_another,
};
use crate::support::{FABRIC, Node, Setup, TOOL, python};

/// One per protocol.
const EXAMPLES: [&str; 3] = ["mcp", "http", "a2a"];
/// The response of every server to its client.
const ANSWER: &str = "7 orders from Dresden";
/// Lifetime of an execution-scoped token (contract §3), and the second at which it has expired.
const TOO_LATE_SECS: u64 = 30;

/// Asserts a call that did not reach the tool: its client received status, error and scope (RFC 6750 §3.1)
/// and the metadata URL (RFC 9728 §5.1).
#[track_caller]
fn assert_challenge(server: &ToolServer, refusal: Option<&str>, status: u16, error: &str) {
    let refusal = refusal.unwrap_or_else(|| panic!("{} answered", server.tool["tool_id"]));
    let (given, challenge) = refusal.split_once(' ').unwrap_or((refusal, ""));
    assert_eq!(given, status.to_string(), "{refusal}");
    assert!(challenge.starts_with("Bearer "), "{refusal}");
    assert!(challenge.contains(&format!("error=\"{error}\"")), "{refusal}");
    assert!(challenge.contains("scope=\"db.read\""), "{refusal}");
    assert!(challenge.contains(&format!("resource_metadata=\"{}\"", metadata_url(server))), "{refusal}");
}

/// RFC 9728 §3.1: inserted between host and path.
fn metadata_url(server: &ToolServer) -> String {
    let url = url::Url::parse(server.url()).expect("URL");
    format!("{}/.well-known/oauth-protected-resource{}", url.origin().ascii_serialization(), url.path())
}

/// Decision and failed check of the newest audit entry.
async fn newest_entry(node: &Node, server: &ToolServer) -> (String, String) {
    let id = server.tool["tool_id"].as_str().expect("tool_id");
    let trail = node.get(&format!("/v1/tools/{id}/audit?limit=1")).await.json();
    let text = |name: &str| trail[0][name].as_str().unwrap_or_default().to_owned();
    (text("decision"), text("check"))
}

async fn refuses_interference(name: &'static str) {
    let node = Node::start().await;
    let server = ToolServer::start(&node, name).await;

    let passed = server.call(&node, &[]);
    assert_eq!((passed.printed.as_str(), passed.refusal), (ANSWER, None));
    assert_eq!(newest_entry(&node, &server).await.0, "allow");

    let another = token_for_another(&node, TOOL, server.url()).await;
    server.set_interference(Interference::WithToken(another));
    assert_challenge(&server, server.call(&node, &[]).refusal.as_deref(), 401, "invalid_token");
    assert_eq!(newest_entry(&node, &server).await, ("deny".to_owned(), "audience".to_owned()));

    server.set_interference(Interference::BodyChanged);
    assert_challenge(&server, server.call(&node, &[]).refusal.as_deref(), 401, "invalid_token");
    assert_eq!(newest_entry(&node, &server).await, ("deny".to_owned(), "inp_hash".to_owned()));

    server.set_interference(Interference::Repeated);
    assert_challenge(&server, server.call(&node, &[]).refusal.as_deref(), 401, "invalid_token");
    assert_eq!(newest_entry(&node, &server).await, ("deny".to_owned(), "revocation".to_owned()));
    // Only the first of the two was answered.
    assert_eq!(server.statuses(), [200, 401, 401, 200, 401]);

    server.set_interference(Interference::Nothing);
    let refusal = server.call(&node, &["--scope", "offline"]).refusal;
    assert_challenge(&server, refusal.as_deref(), 403, "insufficient_scope");
    assert_eq!(newest_entry(&node, &server).await, ("deny".to_owned(), "capabilities".to_owned()));

    server.set_interference(Interference::Delayed(node.clock.clone(), TOO_LATE_SECS));
    assert_challenge(&server, server.call(&node, &[]).refusal.as_deref(), 401, "invalid_token");
    assert_eq!(newest_entry(&node, &server).await, ("deny".to_owned(), "token".to_owned()));
}

// The node needs a thread while the test blocks on a client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mcp_server_refuses_calls_that_fail_verification() {
    refuses_interference("mcp").await;
}

// The node needs a thread while the test blocks on a client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_tool_refuses_calls_that_fail_verification() {
    refuses_interference("http").await;
}

// The node needs a thread while the test blocks on a client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a2a_agent_refuses_calls_that_fail_verification() {
    refuses_interference("a2a").await;
}

// The node needs a thread while the test blocks on a client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_without_a_token_gets_the_metadata_url() {
    let node = Node::start().await;
    for name in EXAMPLES {
        let server = ToolServer::start(&node, name).await;
        let http = reqwest::Client::builder().no_proxy().build().expect("client");
        for authorization in [None, Some("Basic YTpi"), Some("Bearer"), Some("Bearer nonsense")] {
            let mut request = http.post(server.url()).body("{}");
            if let Some(authorization) = authorization {
                request = request.header("authorization", authorization);
            }
            let answer = request.send().await.expect("answer");
            assert_eq!(answer.status(), 401, "{name} {authorization:?}");
            let challenge = answer.headers()["www-authenticate"].to_str().expect("ASCII").to_owned();
            let metadata = format!("resource_metadata=\"{}\"", metadata_url(&server));
            assert!(challenge.starts_with("Bearer ") && challenge.contains(&metadata), "{challenge}");
        }
        let document = http.get(metadata_url(&server)).send().await.expect("answer");
        let document: Value = serde_json::from_str(&document.text().await.expect("text")).expect("JSON");
        // RFC 9728 §3.3: a client compares it with the URL of its request.
        assert_eq!(document["resource"], server.url(), "{name}");
        assert_eq!(document["authorization_servers"], json!([FABRIC]), "{name}");
        assert_eq!(document["scopes_supported"], json!(["db.read"]), "{name}");
        let broker = node.get("/.well-known/oauth-authorization-server").await.json();
        assert_eq!(broker["issuer"], document["authorization_servers"][0], "{name}");
    }
}

// The node needs a thread while the test blocks on a client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mcp_sdk_finds_us_from_the_refusal_by_itself() {
    let node = Node::start().await;
    let server = ToolServer::start(&node, "mcp").await;
    let (found, is_well) = python::run("discover_mcp.py", &json!({"url": server.url()}));
    assert!(is_well, "{found}");
    assert_eq!(found["status"], 401);
    assert_eq!(found["resource_metadata"], metadata_url(&server).as_str());
    assert_eq!((&found["scope"], &found["scopes_to_ask_for"]), (&json!("db.read"), &json!("db.read")));
    assert_eq!(found["authorization_servers"], json!([FABRIC]));
    assert_eq!(found["is_for_this_server"], true);
    assert_eq!(found["exception"], "MCPError");
}

// The node needs a thread while the test blocks on a client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_verdict_no_tool_answers() {
    let mut node = Node::start().await;
    let mut servers = Vec::new();
    for name in EXAMPLES {
        servers.push(ToolServer::start(&node, name).await);
    }
    node.stop().await;
    for server in &servers {
        let http = reqwest::Client::builder().no_proxy().build().expect("client");
        let request = http.post(server.url()).header("authorization", "Bearer a.b.c").body("{}");
        let answer = request.send().await.expect("answer");
        assert_eq!(answer.status(), 503, "{}", server.tool["tool_id"]);
        assert_eq!(answer.headers()["retry-after"], "1");
    }
}

// The node needs a thread while the test blocks on a client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_server_that_may_not_verify_does_not_serve() {
    let node = Node::start_with(Setup { is_secure: true, ..Setup::default() }).await;
    let server = ToolServer::start(&node, "http").await;
    let passed = server.call(&node, &[]);
    assert_eq!((passed.printed.as_str(), passed.refusal), (ANSWER, None));
    drop(server);
    node.call("DELETE", "/v1/tools/example-http", &[], "").await;
    let server = ToolServer::start_as(&node, "http", &environment(&node, "stranger")).await;
    // The caller is not at fault: no challenge.
    assert_eq!(server.call(&node, &[]).refusal.as_deref(), Some("503"));
}

// The verdict is lost after the token was used. The server retries under the same key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verdict_lost_on_the_way_costs_the_caller_nothing() {
    let node = Node::start().await;
    let lost = Arc::new(AtomicUsize::new(0));
    let proxy = losing_the_first_verdict(&node, Arc::clone(&lost));
    let server = ToolServer::start_as(&node, "http", &[("FABRIC_URL", proxy)]).await;
    let passed = server.call(&node, &[]);
    assert_eq!((passed.printed.as_str(), passed.refusal), (ANSWER, None));
    assert_eq!(lost.load(Ordering::SeqCst), 1);
}

#[test]
fn the_policy_that_is_shipped_grants_tokens_for_the_examples() {
    let read = |path: &str| {
        let text = std::fs::read_to_string(example(path)).expect("a file");
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    let tables = read("../policies/data.json");
    let demo = &tables["exchange"]["namespaces"]["dev.trust-fabric.local"]["demo"];
    for name in EXAMPLES {
        let tool = read(&format!("{name}/tool.json"));
        let url = &tool["resource_uri"];
        let row = &tables["exchange"]["audiences"][url.as_str().expect("resource_uri")];
        assert_eq!(row["capabilities"], tool["required_capabilities"], "{name}");
        assert_eq!(row["execution_required"], tool["requires_execution"], "{name}");
        assert!(demo["audiences"].as_array().expect("audiences").contains(url), "{name}");
        assert_eq!(demo["blast_radius"], tool["max_blast_radius"], "{name}");
    }
}
