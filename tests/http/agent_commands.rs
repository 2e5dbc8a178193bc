//! `trust-fabric agent …` against a node.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Node, OWN, credential, program};

#[track_caller]
fn succeed(node: &Node, arguments: &[&str]) -> String {
    program::succeed(node, &[&["agent"], arguments].concat())
}

#[track_caller]
fn fail(node: &Node, arguments: &[&str], text: &str) {
    program::fail(node, &[&["agent"], arguments].concat(), &[text]);
}

const LEAST: [&str; 7] = ["issue", "--name", "planner", "--platform", "mcp", "--capability", "db.read"];

fn json_of(text: &str) -> Value {
    trust_fabric::json::parse(text.as_bytes()).expect("JSON")
}

fn issue(node: &Node, more: &[&str]) -> Value {
    json_of(&succeed(node, &[&LEAST, more, &["--output", "json"]].concat()))
}

#[tokio::test]
async fn commands_issue_show_draw_renew_and_revoke_agents() {
    let node = Node::start().await;
    let file = node.directory.path().join("token");
    let path = file.to_str().expect("a path");
    let more = ["--delegation-depth", "2", "--max-blast-radius", "namespace:demo", "--metadata", "team=pay"];
    let out = succeed(&node, &[&LEAST, more.as_slice(), &["--token-file", path]].concat());
    let token = read(&file);
    assert!(out.contains(path) && out.contains("namespace:demo") && !out.contains(&token), "{out}");
    let id = out.split(' ').next().expect("agent_id").to_owned();
    assert!(id.starts_with("wimse://trust.example/agent/mcp/"), "{out}");
    node.granted(&credential(&token, OWN)).await;

    let child = issue(&node, &["--on-behalf-of", &id, "--delegation-depth", "1"]);
    let child = child["agent_id"].as_str().expect("agent_id");
    issue(&node, &["--on-behalf-of", child]);
    let drawn = succeed(&node, &["tree"]);
    let lines: Vec<_> = drawn.lines().collect();
    assert_eq!(lines.len(), 3, "{drawn}");
    assert!(lines[0].starts_with("planner  mcp  active  depth 2"), "{drawn}");
    assert!(lines[1].starts_with("└── planner") && lines[1].ends_with(child), "{drawn}");
    assert!(lines[2].starts_with("    └── planner") && lines[2].contains("depth 0"), "{drawn}");
    assert_eq!(succeed(&node, &["tree", child]).lines().count(), 2);
    fail(&node, &["tree", "wimse://trust.example/agent/mcp/none"], "there is no such agent");

    let shown = json_of(&succeed(&node, &["show", &id, "--output", "json"]));
    assert_eq!((&shown["metadata"], &shown["delegation_depth"]), (&json!({"team": "pay"}), &json!(2)));
    assert!(succeed(&node, &["show", &id]).contains("blast_radius      namespace:demo"));
    let table = succeed(&node, &["list"]);
    assert_eq!(table.lines().count(), 4, "{table}");
    assert_eq!(json_of(&succeed(&node, &["list", "-o", "json"])).as_array().map(Vec::len), Some(3));

    node.advance_secs(60);
    let out = succeed(&node, &["renew", "--token-file", path]);
    let renewed = read(&file);
    assert!(renewed != token && out.contains("is renewed") && !out.contains(&renewed), "{out}");
    node.granted(&credential(&renewed, OWN)).await;

    let out = succeed(&node, &["token", &id, "--token-file", path]);
    let another = read(&file);
    assert!(another != renewed && out.contains("is given another token") && !out.contains(&another), "{out}");
    node.granted(&credential(&another, OWN)).await;
    fail(&node, &["token", &id], "--token-file");
    fail(&node, &["token", "none", "-o", "json"], "there is no agent with this agent_id");

    assert!(succeed(&node, &["revoke", &id]).contains("is revoked"));
    fail(&node, &["renew", "--token-file", path], "the bearer token is not valid");
    assert_eq!(read(&file), another, "the file is unchanged");
    assert!(succeed(&node, &["tree"]).lines().all(|line| line.contains("  revoked  ")));
    fail(&node, &["show", "none"], "there is no agent with this agent_id");
    fail(&node, &["revoke", "../keys"], "there is no agent with this agent_id");
}

fn read(file: &Path) -> String {
    let mode = std::fs::metadata(file).expect("file").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    std::fs::read_to_string(file).expect("token").trim().to_owned()
}

#[tokio::test]
async fn oversized_agent_token_is_refused() {
    let node = Node::start().await;
    fail(&node, &LEAST, "--token-file");
    let nowhere = node.directory.path().join("no/where");
    let nowhere = nowhere.to_str().expect("a path");
    fail(&node, &[&LEAST[..], &["--token-file", nowhere]].concat(), "no/where");
    fail(&node, &["issue", "--name", "a", "--platform", "slack", "--capability", "x"], "possible values");
    fail(&node, &[&LEAST[..], &["--capability", "a b", "-o", "json"]].concat(), "capabilities: must be");
    assert_eq!(succeed(&node, &["list", "-o", "json"]).trim(), "[]");
}

#[tokio::test]
async fn a_list_is_read_to_its_last_page() {
    let node = Node::start().await;
    let request = json!({"agent_name": "a", "platform": "a2a", "capabilities": ["db.read"]});
    for _ in 0..101 {
        assert_eq!(node.post("/v1/identity/agent", &request).await.status, 200);
    }
    assert_eq!(json_of(&succeed(&node, &["list", "-o", "json"])).as_array().map(Vec::len), Some(101));
    assert_eq!(succeed(&node, &["tree"]).lines().count(), 101);
}
