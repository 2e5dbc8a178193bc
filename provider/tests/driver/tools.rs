//! `svc_mcp_tool` against a node: life, drift, conflicts, import.

use serde_json::{Value as Json, json};
use trust_fabric_client::{NodeClient, Request};

use super::fabric::Fabric;
use super::plugin::Plugin;
use super::workspace::{Workspace, configure, text, tool, with};

const TYPE: &str = "svc_mcp_tool";

async fn start() -> (Fabric, Plugin, NodeClient) {
    let fabric = Fabric::start().await;
    let mut plugin = Plugin::start().await;
    configure(&mut plugin, &fabric.provider("terraform")).await.expect("configured");
    let client = fabric.client("terraform");
    (fabric, plugin, client)
}

fn full() -> Json {
    json!({
        "tool_id": "full", "name": "Full", "resource_uri": "https://tools.example/a",
        "required_capabilities": ["b", "a"], "max_blast_radius": "namespace:demo",
        "requires_execution": true, "allowed_operations": ["POST"], "allowed_targets": ["https://t.example/"],
        "protocols": ["http", "mcp"], "description": "one\ntwo", "version": "1.2.0",
        "timeouts": { "create": "30s" },
    })
}

#[tokio::test]
async fn every_attribute_is_created_changed_and_kept() {
    let (_fabric, mut plugin, client) = start().await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&full())).await.expect("created");
    assert_eq!(workspace.value("id"), "full");
    assert_eq!(workspace.value("registered_by"), "spiffe://dev.trust-fabric.local/terraform");
    workspace.store().await;
    let other_order =
        with(&full(), &json!({ "required_capabilities": ["a", "b"], "protocols": ["mcp", "http"] }));
    let plan = workspace.plan(Some(&other_order)).await.expect("planned");
    assert_eq!(plan.changes, Vec::<&str>::new());

    for (name, value) in [
        ("name", json!("Fuller")),
        ("resource_uri", json!("https://tools.example/b")),
        ("required_capabilities", json!(["c"])),
        ("max_blast_radius", json!("cluster")),
        ("allowed_operations", json!(["GET", "POST"])),
        ("allowed_targets", json!([])),
        ("requires_execution", json!(false)),
        ("protocols", Json::Null),
        ("description", Json::Null),
        ("version", json!("2.0.0-rc.1")),
    ] {
        let config = with(&full(), &json!({ name: value }));
        let plan = workspace.apply(Some(&config)).await.expect(name);
        assert_eq!(plan.replaces, Vec::<String>::new(), "{name}");
        assert!(plan.changes.contains(&name) && plan.changes.contains(&"revision"), "{name}: {plan:?}");
        let record = client.get(&["v1", "tools", "full"]).await.expect("a record");
        assert_eq!(workspace.value("revision"), record["revision"], "{name}");
        let expected = if name == "protocols" { json!(["mcp"]) } else { value.clone() };
        let observed = record.get(name).cloned().unwrap_or_default();
        assert_eq!(observed, expected, "{name}");
        let plan = workspace.plan(Some(&config)).await.expect(name);
        assert_eq!(plan.changes, Vec::<&str>::new(), "{name}");
        workspace.apply(Some(&full())).await.expect(name);
    }
    workspace.apply(None).await.expect("deleted");
    assert_eq!(client.get(&["v1", "tools", "full"]).await.expect_err("gone").status(), Some(404));
}

#[tokio::test]
async fn changed_identifier_replaces_the_tool() {
    let (_fabric, mut plugin, client) = start().await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&tool("one"))).await.expect("created");
    let plan = workspace.apply(Some(&tool("two"))).await.expect("replaced");
    assert_eq!(plan.replaces, ["tool_id"]);
    let tools = client.list(&["v1", "tools"]).await.expect("a list");
    let ids: Vec<&Json> = tools.iter().map(|tool| &tool["tool_id"]).collect();
    assert_eq!(ids, ["two"]);
}

#[tokio::test]
async fn drift_is_shown_exactly_and_undone() {
    let (_fabric, mut plugin, client) = start().await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&tool("t"))).await.expect("created");

    // Also after `mcp` is gone, the tool is found.
    let drifted = json!({ "name": "Tool", "protocols": ["http"], "required_capabilities": ["x"] });
    client.put(&["v1", "tools", "t"], &drifted).await.expect("changed");
    let plan = workspace.plan(Some(&tool("t"))).await.expect("planned");
    assert_eq!(workspace.value("protocols"), json!(["http"]));
    assert_eq!(plan.changes, ["required_capabilities", "protocols", "updated_at", "revision"]);
    workspace.apply(Some(&tool("t"))).await.expect("undone");
    let record = client.get(&["v1", "tools", "t"]).await.expect("a record");
    assert_eq!((&record["protocols"], &record["required_capabilities"]), (&json!(["mcp"]), &json!([])));

    client.delete(&["v1", "tools", "t"]).await.expect("deleted");
    let plan = workspace.plan(Some(&tool("t"))).await.expect("planned");
    assert!(workspace.state.is_none() && plan.changes.contains(&"tool_id"), "{plan:?}");
    workspace.apply(Some(&tool("t"))).await.expect("created again");
    client.delete(&["v1", "tools", "t"]).await.expect("deleted");
    let plan = workspace.plan_without_refresh(None).await.expect("planned");
    workspace.apply_plan(&plan, None).await.expect("a tool that is gone is deleted");
}

#[tokio::test]
async fn null_and_empty_lists_are_no_difference() {
    let (_fabric, mut plugin, _) = start().await;
    for (tool_id, lists) in [("null", Json::Null), ("empty", json!([]))] {
        let config = with(
            &tool(tool_id),
            &json!({
                "required_capabilities": lists, "allowed_operations": lists, "allowed_targets": lists,
            }),
        );
        let mut workspace = Workspace::new(&mut plugin, TYPE);
        workspace.apply(Some(&config)).await.expect("created");
        let plan = workspace.plan(Some(&config)).await.expect("planned");
        assert_eq!(plan.changes, Vec::<&str>::new(), "{tool_id}");
        assert_eq!(workspace.value("allowed_targets"), lists);
    }
}

#[tokio::test]
async fn change_between_plan_and_apply_is_not_overwritten() {
    let (_fabric, mut plugin, client) = start().await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&tool("t"))).await.expect("created");
    let config = with(&tool("t"), &json!({ "name": "Ours" }));
    let plan = workspace.plan(Some(&config)).await.expect("planned");
    client.put(&["v1", "tools", "t"], &json!({ "name": "Theirs" })).await.expect("changed");
    let refused = workspace.apply_plan(&plan, Some(&config)).await.expect_err("refused");
    assert!(
        text(&refused).contains("changed outside of Terraform since it was read; run plan again"),
        "{refused:?}"
    );
    assert_eq!(client.get(&["v1", "tools", "t"]).await.expect("a record")["name"], "Theirs");
    assert_eq!(workspace.value("name"), "Tool");
    workspace.apply(Some(&config)).await.expect("planned again");
    assert_eq!(client.get(&["v1", "tools", "t"]).await.expect("a record")["name"], "Ours");
}

#[tokio::test]
async fn tool_that_exists_is_refused_or_taken_over() {
    let (_fabric, mut plugin, client) = start().await;
    client.post(&["v1", "tools"], &json!({ "tool_id": "t", "name": "Theirs" })).await.expect("registered");
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let refused = workspace.apply(Some(&tool("t"))).await.expect_err("refused");
    assert!(text(&refused).contains("import it or choose another tool_id"), "{refused:?}");
    assert!(workspace.state.is_none());
    workspace.apply(Some(&with(&tool("t"), &json!({ "name": "Theirs" })))).await.expect("taken over");
    assert!(text(&workspace.messages).contains("The tool existed"), "{:?}", workspace.messages);
}

#[tokio::test]
async fn imported_tool_plans_nothing() {
    let (_fabric, mut plugin, client) = start().await;
    let mut config = full();
    config.as_object_mut().expect("an object").remove("timeouts");
    client.post(&["v1", "tools"], &config).await.expect("registered");
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.import("full").await.expect("imported");
    let plan = workspace.plan(Some(&config)).await.expect("planned");
    assert_eq!(plan.changes, Vec::<&str>::new());
    // Its entity tag was read with it.
    workspace.apply(Some(&with(&config, &json!({ "name": "n" })))).await.expect("changed");

    // Terraform reports an object that is not there.
    workspace.import("unknown").await.expect("imported");
    assert!(workspace.state.is_none());
    let refused = workspace.import("a/b").await.expect_err("refused");
    assert_eq!(refused[0].attribute.as_deref(), Some("tool_id"), "{refused:?}");
}

#[tokio::test]
async fn refused_value_is_at_its_attribute() {
    let (_fabric, mut plugin, _) = start().await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    for (name, value) in [
        ("tool_id", json!("a b")),
        ("name", json!("")),
        ("resource_uri", json!("relative")),
        ("resource_uri", json!("https://h/#f")),
        ("required_capabilities", json!(["ok", "not ok"])),
        ("max_blast_radius", json!("Namespace")),
        ("requires_execution", json!(true)),
        ("allowed_operations", json!([""])),
        ("protocols", json!(["http"])),
        ("protocols", json!(["mcp", "ftp"])),
        ("version", json!("1.2")),
        ("description", json!("\u{7}")),
        ("timeouts", json!({ "create": "2 minutes" })),
    ] {
        let refused = workspace.validate(&with(&tool("t"), &json!({ name: value }))).await;
        let refused = refused.expect_err(name);
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!(refused[0].attribute.as_deref(), Some(name), "{refused:?}");
        assert!(refused[0].text.contains(name), "{refused:?}");
    }
    // A rule that only the fabric checks.
    let config = with(&tool("t"), &json!({ "resource_uri": "https://h/{a}" }));
    let refused = workspace.apply(Some(&config)).await.expect_err("refused");
    assert_eq!(refused[0].attribute.as_deref(), Some("resource_uri"), "{refused:?}");
    assert!(refused[0].text.contains("Status 400"), "{refused:?}");
}

/// A value that the fabric accepts is never refused while a plan is made.
#[tokio::test]
async fn rules_refuse_nothing_that_the_fabric_accepts() {
    let (_fabric, mut plugin, client) = start().await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let long = |text: &str, times: usize| json!(text.repeat(times));
    let texts: Vec<Json> = [
        "",
        "a",
        "é",
        "a b",
        "a\nb",
        "a\tb",
        "a\"b",
        "a\\b",
        "a/b",
        "a#b",
        "a%b",
        ".",
        "..",
        "a.b",
        "A",
        "a:b",
        "a:b/c",
        "a:",
        ":a",
        "a:b//c",
        "a:..",
        "https://h",
        "https://h/ü",
        "urn:x:y",
        "mailto:a",
        "http:",
        "1",
        "1.2.3",
        "1.2.3+b",
        "01.2.3",
        "v1.2.3",
        "mcp",
        "http",
        "a2a/2025-draft-01",
        "MCP",
        "cluster",
        "x-1:a_b",
    ]
    .iter()
    .map(|text| json!(text))
    .chain([
        long("a", 128),
        long("a", 129),
        long("a", 256),
        long("a", 257),
        long("a", 2049),
        long("é", 2048),
        long("é", 2049),
    ])
    .collect();
    let lists = |at: usize| (0..at).map(|n| format!("w{n}")).collect::<Vec<_>>();
    let mut accepted = 0;
    for name in [
        "tool_id",
        "name",
        "resource_uri",
        "max_blast_radius",
        "description",
        "version",
        "required_capabilities",
        "allowed_operations",
        "allowed_targets",
        "protocols",
    ] {
        let is_list =
            matches!(name, "required_capabilities" | "allowed_operations" | "allowed_targets" | "protocols");
        let values = texts.iter().map(|value| match (name, is_list) {
            ("protocols", _) => json!([value, "mcp"]),
            (_, true) => json!([value]),
            (_, false) => value.clone(),
        });
        let counts = [0, 128, 129, 256, 257].map(|count| json!(lists(count)));
        let counts = counts.into_iter().filter(|_| is_list);
        for (at, value) in values.chain(counts).enumerate() {
            let config = with(&tool(&format!("{name}-{at}")), &json!({ name: value }));
            // A set has no duplicates, and an empty one would be read back as `mcp`, a difference for ever.
            if config["protocols"] == json!(["mcp", "mcp"]) || config["protocols"] == json!([]) {
                continue;
            }
            let locally = workspace.validate(&config).await;
            let answer = client.send(&Request::post(&["v1", "mcp", "tools"], &config)).await;
            accepted += usize::from(answer.is_ok());
            assert!(answer.is_err() || locally.is_ok(), "{name} {value}: {locally:?}");
        }
    }
    assert!(accepted > 100, "{accepted}");
}
