//! `trust-fabric revoke`, `revocations` and `signals` against a node.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::program::{fail, run, run_on_a_terminal, succeed};
use crate::support::terminal;
use crate::support::{BAD_SUBJECT, FABRIC, JWT, Node, OWN, REPORTER, credential, with};

fn json_of(text: &str) -> Value {
    trust_fabric::json::parse(text.as_bytes()).expect("JSON")
}

async fn issue(node: &Node, parent: Option<&str>) -> String {
    let request = json!({
        "agent_name": "n", "platform": "mcp", "capabilities": ["db.read"], "on_behalf_of": parent,
        "delegation_depth": i32::from(parent.is_none()),
    });
    let answer = node.post("/v1/identity/agent", &request).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["agent_id"].as_str().expect("agent_id").to_owned()
}

fn listed(node: &Node) -> Vec<Value> {
    json_of(&succeed(node, &["revocations", "-o", "json"])).as_array().expect("a list").clone()
}

#[tokio::test]
async fn an_agent_is_looked_at_revoked_and_listed_by_command() {
    let node = Node::start().await;
    let root = issue(&node, None).await;
    let mut hit = vec![root.clone(), issue(&node, Some(&root)).await, issue(&node, Some(&root)).await];
    hit.sort();
    let other = issue(&node, None).await;
    let printed = succeed(&node, &["revoke", &root, "--dry-run"]);
    assert!(printed.starts_with(&format!("dry run: revoking agent {root} would affect\n")), "{printed}");
    assert!(
        printed.contains("3 agents, and every token that derives from it") && !printed.contains(&other),
        "{printed}"
    );
    let named: Vec<_> = printed.lines().filter_map(|line| line.strip_prefix("agent   ")).collect();
    assert_eq!(named, hit);
    let printed = succeed(&node, &["revoke", &root, "--dry-run", "-o", "json"]);
    assert_eq!(json_of(printed.trim())["counts"], json!({"agents": 3, "tools": 0, "streams": 0}));
    assert!(listed(&node).is_empty(), "a dry run changes nothing");

    // Without a terminal there is no prompt.
    let printed = succeed(&node, &["revoke", &root, "--reason", "prompt injection"]);
    assert!(
        printed.contains(&format!("agent {root} is revoked")) && printed.contains("agents  3"),
        "{printed}"
    );
    let rows = listed(&node);
    assert_eq!(
        (rows.len(), &rows[0]["reason"], &rows[0]["kind"]),
        (1, &json!("prompt injection"), &json!("agent"))
    );
    assert!(succeed(&node, &["agent", "show", &other]).contains("active"));
    assert!(succeed(&node, &["agent", "show", &hit[2]]).contains("revoked"));
    assert!(succeed(&node, &["revoke", &root, "--dry-run"]).contains("(already revoked)"));
    fail(
        &node,
        &["revoke", "wimse://trust.example/agent/mcp/none"],
        &["there is no agent with this agent_id"],
    );
}

#[tokio::test]
async fn terminal_prompts_with_the_affected_agents() {
    let node = Node::start().await;
    let root = issue(&node, None).await;
    issue(&node, Some(&root)).await;
    for typed in ["n\n", "\n", "yess\n", terminal::END] {
        let (success, printed) = run_on_a_terminal(&node, typed, &["revoke", &root]);
        assert!(!success && printed.contains("nothing was changed"), "{typed:?}: {printed}");
        assert!(
            printed.contains(&format!("revoke agent {root}?")) && printed.contains("2 agents"),
            "{printed}"
        );
    }
    assert!(listed(&node).is_empty());
    let (success, printed) = run_on_a_terminal(&node, "y\n", &["revoke", &root]);
    assert!(success && printed.contains("is revoked"), "{printed}");
    let (success, printed) = run_on_a_terminal(&node, "", &["revoke", &root, "--yes"]);
    assert!(success && !printed.contains("[y/N]"), "{printed}");
    assert_eq!(listed(&node).len(), 1);
}

#[tokio::test]
async fn revocation_target_is_recognised_by_form_or_kind() {
    let node = Node::start().await;
    node.advance_secs(600);
    // For the node itself: a token for a tool is no credential anyway.
    let request = with(&credential(&node.issuers.reporter(), JWT), &json!({"audience": FABRIC}));
    let token = node.granted(&request).await;
    node.granted(&credential(&token.token, OWN)).await;
    let refused = async |token: &str| {
        node.exchange(&credential(token, OWN)).await.is_refused(400, "invalid_request", BAD_SUBJECT);
    };
    let made = |arguments: &[&str]| {
        json_of(&succeed(&node, &[&["revoke"], arguments, &["-o", "json", "--yes"]].concat()))
    };
    let jti = token.claims["jti"].as_str().expect("jti");
    assert_eq!(made(&[jti])["kind"], "token");
    refused(&token.token).await;
    let other = node.granted(&request).await;
    node.granted(&credential(&other.token, OWN)).await;
    let kid = other.header["kid"].as_str().expect("kid");
    let answer = made(&[kid]);
    assert_eq!((&answer["kind"], &answer["value"]), (&json!("key"), &json!(kid)));
    refused(&other.token).await;
    assert_eq!(made(&[REPORTER])["kind"], "subject");
    let issuer = node.issuers.kubernetes();
    let email = made(&["alice@a.example", "--issuer", &issuer]);
    assert_eq!((&email["kind"], &email["issuer"]), (&json!("email"), &json!(issuer)));
    for (kind, shown) in [("subject", "subject"), ("client", "client"), ("token", "token"), ("key", "key")] {
        let answer = made(&["planner", "--kind", kind, "--issuer", &issuer]);
        assert_eq!((&answer["kind"], &answer["value"]), (&json!(shown), &json!("planner")));
    }
    let before = listed(&node).len();
    let names_the_way = ["is ambiguous", "set --kind"];
    for arguments in [
        &["planner"][..],
        &["planner", "--issuer", &issuer],
        &[REPORTER, "--issuer", &issuer],
        // The thumbprint of no key of ours.
        &["NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"],
    ] {
        fail(&node, &[&["revoke"], arguments].concat(), &names_the_way);
    }
    fail(&node, &["revoke", "alice@a.example"], &["needs the issuer that verified it", "set --issuer"]);
    fail(
        &node,
        &["revoke", "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs", "--kind", "key"],
        &["no signing key"],
    );
    fail(&node, &["revoke", REPORTER, "--reason", "caf\u{e9}"], &["reason: must be at most 256"]);
    assert_eq!(listed(&node).len(), before);
}

#[tokio::test]
async fn list_stops_at_its_limit_and_reports_more() {
    let node = Node::start().await;
    for at in 0..101 {
        let answer = node.post("/v1/revocations", &json!({"jti": format!("j{at}")})).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
    }
    let count = |arguments: &[&str]| {
        let (success, out, err) = run(&node, &[&["revocations", "-o", "json"], arguments].concat());
        assert!(success, "{err}");
        (json_of(&out).as_array().map_or(0, Vec::len), err.contains("there are more"))
    };
    assert_eq!(count(&[]), (100, true));
    assert_eq!(count(&["--limit", "3"]), (3, true));
    assert_eq!(count(&["--limit", "101"]), (101, false));
    assert_eq!(count(&["--limit", "2000"]), (101, false));
    let table = succeed(&node, &["revocations", "--limit", "1"]);
    assert!(table.lines().count() == 2 && table.contains("token"), "{table}");
}

#[tokio::test]
async fn commands_block_list_and_unblock_issuer_keys() {
    let node = Node::start().await;
    let issuer = node.issuers.kubernetes();
    let revoke = ["revoke", "stolen", "--kind", "key", "--issuer", &issuer];
    let printed = succeed(&node, &[&revoke[..], &["--dry-run"]].concat());
    assert!(printed.contains("cannot be counted"), "{printed}");
    succeed(&node, &revoke);
    let rows = json_of(&succeed(&node, &["blocks", "-o", "json"]));
    assert_eq!((rows.as_array().map(Vec::len), &rows[0]["value"]), (Some(1), &json!("stolen")));
    let table = succeed(&node, &["blocks", "--limit", "1"]);
    assert!(table.lines().count() == 2 && table.contains("stolen") && table.contains("key"), "{table}");
    let id = rows[0]["id"].as_str().expect("an id");
    let unblock = ["unblock", "--server", node.base(), id];
    let lift =
        || Command::new(env!("CARGO_BIN_EXE_trust-fabric")).args(unblock).output().expect("run the program");
    let output = lift();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("is lifted"));
    let output = lift();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no block with this id"));
    assert_eq!(json_of(&succeed(&node, &["blocks", "-o", "json"])), json!([]));
}

#[tokio::test]
async fn an_issuer_is_allowed_more_by_command() {
    let node = Node::start().await;
    let printed = succeed(&node, &["signals", "allow", "https://idp.example", "--more", "7"]);
    assert_eq!(printed, "https://idp.example may revoke 7 more than its quota, once\n");
    fail(&node, &["signals", "allow", "", "--more", "7"], &["issuer: must be that of a [[signals]] section"]);
}

#[test]
fn the_help_of_a_command_that_revokes_shows_how() {
    let output = Command::new(env!("CARGO_BIN_EXE_trust-fabric"))
        .args(["revoke", "--help"])
        .output()
        .expect("run the program");
    let help = String::from_utf8(output.stdout).expect("UTF-8");
    for text in ["Examples:", "--dry-run", "--issuer https://idp.example.org", "SUBJECT|JTI|AGENT|KEY"] {
        assert!(help.contains(text), "{help}");
    }
}
