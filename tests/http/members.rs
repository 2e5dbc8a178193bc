//! `/v1/sys/cluster` on a node that is alone and has no peer listener. tests/members.rs has real clusters.

use serde_json::{Value, json};
use trust_fabric::state::feature_level;

use crate::support::{Node, Response, program, terminal};

async fn cluster(node: &Node) -> Value {
    node.get("/v1/sys/cluster").await.json()
}

async fn post(node: &Node, path: &str, body: Value) -> Response {
    node.call("POST", &format!("/v1/sys/cluster/{path}"), &[], body.to_string()).await
}

#[tokio::test]
async fn cluster_shows_members_and_their_reports() {
    let node = Node::start().await;
    let shown = cluster(&node).await;
    assert_eq!(
        (&shown["node_id"], &shown["leader"], &shown["leader_is_confirmed"]),
        (&json!(1), &json!(1), &json!(true)),
        "{shown}"
    );
    let member = &shown["members"][0];
    assert_eq!((&member["node_id"], &member["role"]), (&json!(1), &json!("leader")), "{shown}");
    assert!(member.get("address").is_none() && member.get("wanted").is_none(), "{shown}");
    assert!(member["can_mint"] == json!(true) && member["mints_from"].is_string(), "{shown}");
    let report = &member["report"];
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    assert!(report["disk_total_bytes"].as_u64() > report["disk_free_bytes"].as_u64(), "{shown}");
    assert_eq!(report["applied_index"], json!(node.state().cluster().applied()));
}

#[tokio::test]
async fn changes_of_members_are_validated() {
    let node = Node::start().await;
    let before = cluster(&node).await["members"].clone();
    for (path, body, status, reason) in [
        ("join-tokens", json!({}), 409, "started without cluster.listen"),
        ("join-tokens", json!({"role": "leader"}), 400, "role"),
        ("join-tokens", json!({"role": "learner", "replaces": 1}), 400, "role: must be voter"),
        ("join-tokens", json!({"more": 1}), 400, "more"),
        ("join-tokens", json!({"replaces": 1, "force": "yes"}), 400, "force"),
        ("join", json!({"token": "x", "address": "a:1", "disk_id": ""}), 400, "token: "),
        ("leader", json!({"node_id": 9}), 400, "node 9 is not a voter"),
    ] {
        post(&node, path, body).await.is_refused(status, "invalid_request", reason);
    }
    for path in ["members/9/promote", "members/x/promote"] {
        post(&node, path, json!({})).await.is_refused(404, "not_found", "no ");
    }
    post(&node, "leader", json!({})).await.is_refused(409, "invalid_request", "no other voter");
    for (query, status, reason) in [
        ("", 409, "last voter"),
        ("?force=true", 409, "last voter"),
        ("?force=1", 400, "force: must be true or false"),
        ("?accept_loss=true", 400, "the query parameters are force"),
    ] {
        let removal = node.call("DELETE", &format!("/v1/sys/cluster/members/1{query}"), &[], "").await;
        removal.is_refused(status, "invalid_request", reason);
    }
    program::fail(&node, &["cluster", "remove", "1", "--force"], &["last voter"]);
    program::fail(&node, &["cluster", "replace", "1", "--force"], &["started without cluster.listen"]);
    let promoted = post(&node, "members/1/promote", json!({})).await.json();
    assert_eq!(promoted, json!({"node_id": 1, "wanted": "voter", "done": true}));
    assert_eq!(post(&node, "leader", json!({"node_id": 1})).await.json(), json!({"leader": 1}));
    let ids = |members: &Value| members.as_array().expect("members").len();
    assert_eq!(ids(&cluster(&node).await["members"]), ids(&before));
}

#[tokio::test]
async fn confirmed_finalization_is_idempotent_and_audited() {
    let node = Node::start().await;
    let newest = feature_level::NEWEST;
    program::fail(&node, &["cluster", "finalize"], &["cannot be undone", "--yes"]);
    let raised = format!("the cluster has feature level {newest}");
    for _ in 0..2 {
        let out = program::succeed(&node, &["cluster", "finalize", "--yes"]);
        assert!(out.contains(&raised), "{out}");
    }
    let shown = cluster(&node).await;
    assert_eq!(
        (&shown["feature_level"], &shown["members"][0]["report"]["feature_level"]),
        (&json!(newest), &json!(newest)),
        "{shown}"
    );
    let out = program::succeed(&node, &["cluster", "status"]);
    assert!(out.contains(&format!(", feature level {newest}, leader node 1")), "{out}");
    let acts = node.get("/v1/audit").await.body;
    assert!(acts.contains(&format!("raise the feature level: feature level {newest}")), "{acts}");
}

#[tokio::test]
async fn terminal_confirms_a_finalization() {
    let node = Node::start().await;
    let before = cluster(&node).await["feature_level"].clone();
    let finalize = ["cluster", "finalize"];
    // A long answer is cut.
    let long = format!("{}\n", "y".repeat(200));
    for typed in ["n\n", "\n", "yess\n", "finalize\n", &long, terminal::END] {
        let (success, shown) = program::run_on_a_terminal(&node, typed, &finalize);
        assert!(!success && shown.contains("Raise the feature level of the cluster?"), "{typed:?}: {shown}");
        assert!(shown.contains("was not confirmed: --yes confirms it"), "{typed:?}: {shown}");
        assert_eq!(cluster(&node).await["feature_level"], before);
    }
    for typed in ["y\n", "Y\n", "yes\n"] {
        let (success, shown) = program::run_on_a_terminal(&node, typed, &finalize);
        assert!(success && shown.contains("the cluster has feature level"), "{typed:?}: {shown}");
    }
    let (success, shown) = program::run_on_a_terminal(&node, "", &["cluster", "finalize", "--yes"]);
    assert!(success && !shown.contains("[y/N]"), "{shown}");
}
