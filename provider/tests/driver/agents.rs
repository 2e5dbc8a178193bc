//! `svc_agent_identity` against a node: life, end, rotation, import, and no token anywhere.

use serde_json::{Value as Json, json};
use trust_fabric_client::{Method, NodeClient, Request};
use trust_fabric_provider::value::Value;

use super::fabric::Fabric;
use super::plugin::Plugin;
use super::proxy::{Fate, Proxy};
use super::workspace::{Workspace, configure, text, with};

const TYPE: &str = "svc_agent_identity";
const FORBIDDEN: &str = "HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-type: application/json\r\n\
                         content-length: 2\r\n\r\n{}";

async fn start() -> (Fabric, Plugin, NodeClient) {
    let fabric = Fabric::start().await;
    let mut plugin = Plugin::start().await;
    configure(&mut plugin, &fabric.provider("terraform")).await.expect("configured");
    let client = fabric.client("terraform");
    (fabric, plugin, client)
}

/// The smallest agent.
pub fn agent() -> Json {
    json!({ "agent_name": "planner", "platform": "mcp", "capabilities": ["db.read", "tools.read"] })
}

/// Another token of an agent.
pub async fn token_of(client: &NodeClient, agent_id: &str) -> String {
    let path = ["v1", "identity", "agents", agent_id, "token"];
    let answer = client.send(&Request { method: Method::POST, ..Request::get(&path) }).await;
    answer.expect("a token").body["token"].as_str().expect("text").to_owned()
}

fn id(workspace: &Workspace<'_>) -> String {
    workspace.value("agent_id").as_str().expect("text").to_owned()
}

async fn revoke(client: &NodeClient, agent_id: &str) {
    client.delete(&["v1", "identity", "agents", agent_id]).await.expect("revoked");
}

async fn status(client: &NodeClient, agent_id: &str) -> Json {
    client.get(&["v1", "identity", "agents", agent_id]).await.expect("a record")["status"].clone()
}

#[tokio::test]
async fn agent_is_issued_kept_replaced_and_revoked() {
    let (fabric, mut plugin, client) = start().await;
    let full = with(
        &agent(),
        &json!({
            "max_blast_radius": "namespace:demo", "delegation_depth": 1, "metadata": { "team": "reports" },
            "rotate_before": "96h", "timeouts": { "create": "30s" }, "capabilities": ["db.read", "unknown", "tools.read"],
        }),
    );
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&full)).await.expect("issued");
    let first = id(&workspace);
    assert_eq!(workspace.value("id"), first);
    assert_eq!(workspace.value("granted_capabilities"), json!(["db.read", "tools.read"]));
    assert_eq!(workspace.value("blast_radius"), "namespace:demo");
    assert_eq!(workspace.value("issued_by"), "spiffe://dev.trust-fabric.local/terraform");
    assert_eq!(workspace.value("status"), "active");
    let record = client.get(&["v1", "identity", "agents", &first]).await.expect("a record");
    for name in ["agent_name", "platform", "delegation_depth", "metadata", "issued_at", "ends_at"] {
        assert_eq!(workspace.value(name), record[name], "{name}");
    }
    workspace.store().await;
    let token = token_of(&client, &first).await;
    fabric.bearer(&token).get(&["v1", "tools"]).await.expect("accepted");

    for changes in [
        json!({}),
        json!({ "capabilities": ["unknown", "tools.read", "db.read"] }),
        json!({ "rotate_before": Json::Null }),
        json!({ "rotate_before": "720h", "timeouts": Json::Null }),
        // A member without a value is not sent.
        json!({ "metadata": with(&full["metadata"], &json!({ "absent": Json::Null })) }),
    ] {
        let config = with(&full, &changes);
        let plan = workspace.apply(Some(&config)).await.expect("kept");
        assert_eq!((plan.replaces, id(&workspace)), (Vec::<String>::new(), first.clone()), "{changes}");
        let plan = workspace.plan(Some(&config)).await.expect("planned");
        assert_eq!(plan.changes, Vec::<&str>::new(), "{changes}");
    }
    for (name, value) in [
        ("agent_name", json!("other")),
        ("platform", json!("custom")),
        ("capabilities", json!(["db.read"])),
        ("on_behalf_of", json!("wimse://dev.trust-fabric.local/agent/mcp/parent")),
        ("max_blast_radius", Json::Null),
        ("delegation_depth", json!(0)),
        ("metadata", json!({})),
    ] {
        let plan = workspace.plan(Some(&with(&full, &json!({ name: value })))).await.expect("planned");
        assert_eq!(plan.replaces, [name]);
        assert!(text(&workspace.messages).contains("revoked for ever"), "{name}: {:?}", workspace.messages);
    }
    workspace.apply(Some(&with(&full, &json!({ "agent_name": "other" })))).await.expect("replaced");
    let second = id(&workspace);
    assert_ne!(second, first);
    assert_eq!(
        (status(&client, &first).await, status(&client, &second).await),
        (json!("revoked"), json!("active"))
    );
    let refused = fabric.bearer(&token).get(&["v1", "tools"]).await.expect_err("refused");
    assert_eq!(refused.status(), Some(401));

    let plan = workspace.plan(None).await.expect("planned");
    assert!(text(&workspace.messages).contains("every agent and token that derives from it"));
    workspace.apply_plan(&plan, None).await.expect("revoked");
    assert_eq!(status(&client, &second).await, "revoked");
}

#[tokio::test]
async fn revoked_agent_leaves_the_state_with_a_warning() {
    let (_fabric, mut plugin, client) = start().await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let parent = with(&agent(), &json!({ "delegation_depth": 1 }));
    workspace.apply(Some(&parent)).await.expect("issued");
    let parent_id = id(&workspace);
    let child = with(&agent(), &json!({ "on_behalf_of": parent_id }));
    let mut workspace = Workspace::new(workspace.plugin, TYPE);
    workspace.apply(Some(&child)).await.expect("issued");
    let child_id = id(&workspace);
    revoke(&client, &parent_id).await;

    // Its parent is revoked, and so is the child.
    let refused = workspace.plan(Some(&child)).await.expect("planned");
    assert!(workspace.state.is_none() && refused.changes.contains(&"agent_id"));
    let warning = text(&workspace.messages);
    assert!(warning.contains(&child_id) && warning.contains("is revoked"), "{warning}");
    workspace.apply(Some(&agent())).await.expect("issued again");
    assert_ne!(id(&workspace), child_id);

    // One that is revoked after the plan is deleted all the same.
    let plan = workspace.plan(None).await.expect("planned");
    revoke(&client, &id(&workspace)).await;
    workspace.apply_plan(&plan, None).await.expect("deleted");
    assert!(workspace.state.is_none());
}

#[tokio::test]
async fn agent_near_its_end_is_replaced() {
    let (_fabric, mut plugin, client) = start().await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&agent())).await.expect("issued");
    let first = id(&workspace);
    let plan = workspace.plan(Some(&agent())).await.expect("planned");
    assert_eq!(plan.changes, Vec::<&str>::new(), "a new agent is not due");
    // As if it had been issued a month ago.
    let old = workspace.state.clone().expect("a state");
    let old = old.with("issued_at", Value::text("2020-01-01T00:00:00.000Z"));
    workspace.state = Some(old.with("ends_at", Value::text("2020-01-31T00:00:00.000Z")));
    let plan = workspace.plan_without_refresh(Some(&agent())).await.expect("planned");
    assert_eq!(plan.replaces, ["ends_at"]);
    assert!(
        text(&workspace.messages).contains("It ends at 2020-01-31T00:00:00.000Z"),
        "{:?}",
        workspace.messages
    );
    workspace.apply_plan(&plan, Some(&agent())).await.expect("replaced");
    assert_ne!(id(&workspace), first);
    assert_eq!(status(&client, &first).await, "revoked");
    let plan = workspace.plan(Some(&agent())).await.expect("planned");
    assert_eq!(plan.changes, Vec::<&str>::new());
}

/// The agent exists, so that Terraform must know it: the next apply revokes it.
#[tokio::test]
async fn agent_that_cannot_be_read_is_kept_after_its_issue() {
    let fabric = Fabric::start_in_development().await;
    let proxy = Proxy::start_before(fabric.http, |request, writes| match writes {
        1 if request.starts_with("GET") => Fate::Answer(FORBIDDEN),
        _ => Fate::Pass,
    });
    let proxy = proxy.await;
    let mut plugin = Plugin::start().await;
    configure(&mut plugin, &json!({ "endpoint": proxy.endpoint() })).await.expect("configured");
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let refused = workspace.apply(Some(&agent())).await.expect_err("refused");
    assert!(text(&refused).contains("Status 403"), "{refused:?}");
    let client = NodeClient::new(&format!("http://{}", fabric.http)).expect("client");
    assert_eq!(status(&client, &id(&workspace)).await, "active");
    assert_eq!(workspace.value("ends_at"), Json::Null);
    let agent_id = id(&workspace);
    let plan = workspace.plan_without_refresh(None).await.expect("planned");
    workspace.apply_plan(&plan, None).await.expect("revoked");
    assert_eq!(status(&client, &agent_id).await, "revoked");
}

#[tokio::test]
async fn imported_agent_plans_nothing() {
    let (_fabric, mut plugin, client) = start().await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    for changes in [json!({}), json!({ "delegation_depth": 2, "metadata": { "a": "b" } })] {
        let config = with(&agent(), &changes);
        workspace.apply(Some(&config)).await.expect("issued");
        let agent_id = id(&workspace);
        workspace.state = None;
        workspace.import(&agent_id).await.expect("imported");
        let plan = workspace.plan(Some(&config)).await.expect("planned");
        assert_eq!(plan.changes, Vec::<&str>::new(), "{changes}");
        // Stated as granted, or as the default: no other agent.
        let stated = with(&config, &json!({ "max_blast_radius": "namespace:demo", "rotate_before": "96h" }));
        let plan = workspace.apply(Some(&stated)).await.expect("changed");
        assert_eq!((plan.replaces, id(&workspace)), (Vec::<String>::new(), agent_id.clone()));
        workspace.apply(None).await.expect("revoked");
        // An agent that is of no use is not imported.
        workspace.import(&agent_id).await.expect("read");
        assert!(workspace.state.is_none() && text(&workspace.messages).contains("is revoked"));
    }
    let refused = workspace.import("planner").await.expect_err("refused");
    assert!(text(&refused).contains("must be wimse://"), "{refused:?}");
    workspace.import("wimse://dev.trust-fabric.local/agent/mcp/none").await.expect("read");
    assert!(workspace.state.is_none());
    assert_eq!(client.list(&["v1", "identity", "agents"]).await.expect("a list").len(), 2);
}

#[tokio::test]
async fn refused_agent_states_attribute_or_rule() {
    let (fabric, mut plugin, client) = start().await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    for (changes, attribute) in [
        (json!({ "agent_name": "" }), "agent_name"),
        (json!({ "platform": "MCP" }), "platform"),
        (json!({ "capabilities": [] }), "capabilities"),
        (json!({ "capabilities": ["a b"] }), "capabilities"),
        (json!({ "on_behalf_of": "planner" }), "on_behalf_of"),
        (json!({ "max_blast_radius": "namespace:" }), "max_blast_radius"),
        (json!({ "delegation_depth": 11 }), "delegation_depth"),
        (json!({ "delegation_depth": -1 }), "delegation_depth"),
        (json!({ "metadata": { "a": "b\n" } }), "metadata"),
        (json!({ "rotate_before": "721h" }), "rotate_before"),
        (json!({ "rotate_before": "soon" }), "rotate_before"),
    ] {
        let refused = workspace.plan(Some(&with(&agent(), &changes))).await.expect_err("refused");
        assert_eq!(refused[0].attribute.as_deref(), Some(attribute), "{changes}: {refused:?}");
    }
    // Rules that only the fabric checks.
    let none = "wimse://dev.trust-fabric.local/agent/mcp/none";
    for (changes, said) in [
        (json!({ "capabilities": ["unknown"] }), "data.identity"),
        (json!({ "on_behalf_of": none }), "on_behalf_of: no agent of the caller"),
        (json!({ "metadata": { "\n": "b" } }), "metadata: names must be"),
    ] {
        let refused = workspace.apply(Some(&with(&agent(), &changes))).await.expect_err("refused");
        assert!(text(&refused).contains(said) && workspace.state.is_none(), "{changes}: {refused:?}");
    }
    assert_eq!(client.list(&["v1", "identity", "agents"]).await.expect("a list"), Vec::<Json>::new());
    let bearer = with(&fabric.anonymous(), &json!({ "jwt_token": "e30.e30.e30" }));
    configure(workspace.plugin, &bearer).await.expect("configured");
    let refused = workspace.plan(Some(&agent())).await.expect_err("refused");
    let said = "POST /v1/identity/agent takes a client certificate and no token";
    assert!(text(&refused).contains(said), "{refused:?}");
}

#[tokio::test]
async fn agent_of_another_identity_is_no_ended_agent() {
    let (fabric, mut plugin, client) = start().await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&agent())).await.expect("issued");
    configure(workspace.plugin, &fabric.provider("other")).await.expect("configured");
    for config in [Some(&agent()), None] {
        let refused = workspace.plan(config).await.expect_err("refused");
        for part in ["spiffe://dev.trust-fabric.local/terraform", "spiffe://dev.trust-fabric.local/other"] {
            assert!(text(&refused).contains(part), "{refused:?}");
        }
    }
    let plan = workspace.plan_without_refresh(None).await.expect("planned");
    workspace.apply_plan(&plan, None).await.expect_err("refused");
    assert_eq!(status(&client, &id(&workspace)).await, "active");
}

/// The rules of the provider never refuse a value that the fabric accepts.
#[tokio::test]
async fn every_agent_that_the_fabric_accepts_is_planned() {
    let (_fabric, mut plugin, client) = start().await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let mut accepted = 0;
    let long = |text: &str, count: usize| json!(text.repeat(count));
    let texts = [
        long("a", 256),
        long("a", 257),
        long("é", 128),
        json!("a\u{7f}"),
        json!(" "),
        json!("mcp"),
        json!("x:y"),
        json!("a2a"),
        json!("namespace:a/b"),
        json!("wimse://d/p"),
        json!("spiffe://d/p/q"),
        json!("wimse://d/"),
        long("a", 128),
        long("a", 512),
        long("a", 513),
        json!("é"),
        json!("custom"),
        json!("watsonx"),
        json!(""),
    ];
    let mut changes: Vec<Json> = Vec::new();
    for value in &texts {
        for name in ["agent_name", "platform", "on_behalf_of", "max_blast_radius"] {
            changes.push(json!({ name: value }));
        }
        changes.push(json!({ "capabilities": [value, "db.read"] }));
        changes.push(json!({ "metadata": { "a": value } }));
        changes.push(json!({ "metadata": { value.as_str().expect("text"): "v" } }));
    }
    changes.extend([0, 2, 10, 11].map(|depth| json!({ "delegation_depth": depth })));
    for count in [0, 64, 65, 128, 129] {
        let names: Vec<_> = (0..count).map(|at| format!("w{at}")).chain(["db.read".to_owned()]).collect();
        let pairs: serde_json::Map<_, _> = (0..count).map(|at| (format!("m{at}"), json!("v"))).collect();
        changes.extend([json!({ "capabilities": names }), json!({ "metadata": pairs })]);
    }
    for change in changes {
        let config = with(&agent(), &change);
        let locally = workspace.validate(&config).await;
        let answer = client.post(&["v1", "identity", "agent"], &config).await;
        accepted += usize::from(answer.is_ok());
        // A refusal of the policy comes after the rules of the fabric.
        let is_valid = answer.map_or_else(|refused| refused.status() == Some(403), |_| true);
        assert!(!is_valid || locally.is_ok(), "{change}: {locally:?}");
    }
    assert!(accepted > 30, "{accepted}");
}
