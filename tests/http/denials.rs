//! Denials that an operator explains afterwards, by the id of their request.

use serde_json::{Value, json};

use crate::support::{JWT, Node, Response, TOOL, credential, program, with};

const DENIALS: &str = "/v1/sys/denials";
const UNKNOWN: &str = "https://unknown.example";

async fn explained(node: &Node, denied: &Response) -> Value {
    let request_id = denied.json()["request_id"].as_str().expect("request_id").to_owned();
    let answer = node.get(&format!("{DENIALS}/{request_id}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.json()["request_id"], request_id);
    answer.json()
}

fn for_unknown_audience(node: &Node) -> Value {
    with(&credential(&node.issuers.reporter(), JWT), &json!({"audience": UNKNOWN}))
}

#[tokio::test]
async fn denied_exchange_is_explained_with_changes_that_allow_it() {
    let node = Node::start().await;
    let request = for_unknown_audience(&node);
    let denied = node.exchange(&request).await;
    denied.is_refused(403, "access_denied", "not known to the policy");
    let explained = explained(&node, &denied).await;
    assert_eq!((&explained["operation"], &explained["target"]), (&json!("exchange"), &json!(UNKNOWN)));
    assert_eq!(explained["reason"], denied.json()["error_description"]);
    assert_eq!(explained["subject"], "wimse://trust.example/ns/demo/sa/reporter");
    let policy = &explained["policy"];
    assert_eq!((&policy["point"], &policy["is_current"]), (&json!("exchange"), &json!(true)));
    assert_eq!(policy["input"]["request"]["audience"], UNKNOWN);
    let change = json!({"member": "request.audience", "set": TOOL});
    let changes = policy["explanation"]["allowed_if"].as_array().expect("changes");
    assert!(changes.contains(&change), "{changes:?}");
    // The change that it names works.
    node.granted(&with(&request, &json!({"audience": TOOL}))).await;
    let token = request["subject_token"].as_str().expect("token");
    assert!(!explained.to_string().contains(token), "no part of an explanation is a credential");
}

#[tokio::test]
async fn explanation_says_that_the_policy_was_replaced() {
    let node = Node::start().await;
    let denied = node.exchange(&for_unknown_audience(&node)).await;
    let digest = node.get("/v1/sys/policy").await.json()["digest"].clone();
    let text = "package svc.exchange\n\ndecision := {\"allow\": false, \"reason\": \"closed\"}\n";
    let sources = json!({"sources": [{"path": "exchange.rego", "text": text}]});
    assert_eq!(node.put("/v1/sys/policy", &sources).await.status, 200);
    let policy = &explained(&node, &denied).await["policy"];
    assert_eq!((&policy["digest"], &policy["is_current"]), (&digest, &json!(false)));
    assert_eq!(policy["explanation"]["answer"]["reason"], "closed");
    assert_eq!(policy["explanation"]["allowed_if"], json!([]));
}

#[tokio::test]
async fn denials_of_every_operation_are_explained() {
    let node = Node::start().await;
    let of = async |denied: Response, status: u16, operation: &str| {
        assert_eq!(denied.status, status, "{}", denied.body);
        let explained = explained(&node, &denied).await;
        assert_eq!(explained["operation"], operation, "{explained}");
        explained
    };
    // A credential that does not verify is denied before any policy.
    let foreign = credential("e30.e30.AAAA", JWT);
    let explained = of(node.exchange(&foreign).await, 400, "exchange").await;
    assert!(explained.get("policy").is_none() && explained.get("subject").is_none(), "{explained}");

    let tool =
        json!({"tool_id": "sql", "name": "SQL", "resource_uri": TOOL, "required_capabilities": ["db.admin"]});
    assert_eq!(node.post("/v1/tools", &tool).await.status, 201);
    let minted = node.granted(&credential(&node.issuers.reporter(), JWT)).await;
    let call = json!({"tool_id": "sql", "token": minted.answer["access_token"]});
    let explained = of(node.post("/v1/mcp/verify", &call).await, 403, "verification").await;
    assert_eq!(explained["target"], "sql");
    assert!(explained["reason"].as_str().expect("text").contains("capabilities"), "{explained}");

    let agent = json!({"agent_name": "a", "platform": "mcp", "capabilities": ["nobody.has.this"]});
    let explained = of(node.post("/v1/identity/agent", &agent).await, 403, "identity").await;
    assert_eq!(explained["policy"]["point"], "identity");
}

/// The cause is for operators: the sender of a credential may not be its owner.
#[tokio::test]
async fn only_the_explanation_states_the_cause() {
    let node = Node::start().await;
    let token = node.issuers.reporter();
    let tampered = format!("{}AAAAA", &token[..token.len() - 5]);
    let invalid = node.exchange(&credential(&tampered, JWT)).await;
    let ungranted = with(&credential(&token, JWT), &json!({"scope": "mail.send"}));
    let ungranted = node.exchange(&ungranted).await;
    for (denied, cause) in [(invalid, "signature is invalid"), (ungranted, "requested: mail.send; policy: ")]
    {
        assert!(!denied.body.contains(cause), "{}", denied.body);
        let explained = explained(&node, &denied).await;
        assert!(explained["detail"].as_str().expect("a cause").contains(cause), "{explained}");
    }
}

#[tokio::test]
async fn request_without_a_kept_denial_is_not_found() {
    let mut node = Node::start().await;
    node.get(&format!("{DENIALS}/none")).await.is_refused(404, "not_found", "another node may");
    let denied = node.exchange(&for_unknown_audience(&node)).await;
    let request_id = denied.json()["request_id"].as_str().expect("request_id").to_owned();
    node.restart().await;
    node.get(&format!("{DENIALS}/{request_id}")).await.is_refused(404, "not_found", "request_id");
}

#[tokio::test]
async fn command_explains_a_denial_on_one_screen() {
    let (node, other) = (Node::start().await, Node::start().await);
    let denied = node.exchange(&for_unknown_audience(&node)).await;
    let request_id = denied.json()["request_id"].as_str().expect("request_id").to_owned();
    let explain = ["policy", "explain", &request_id];
    // The other node, which is asked first, does not know it.
    let shown = program::succeed(&node, &[&explain[..], &["--server", other.base()]].concat());
    for part in
        ["denied    exchange\n", UNKNOWN, "audience_problems", &format!("request.audience is \"{TOOL}\"")]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(shown.lines().count() <= 60, "{shown}");
    let absent = ["no queried node retains a denial", "name every node with --server"];
    program::fail(&other, &explain, &absent);
    program::fail(&node, &["policy", "explain"], &["<REQUEST_ID>"]);
}
