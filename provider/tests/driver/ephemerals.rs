//! Ephemeral resources against a node: their tokens work while they are open, and are nowhere else.

use serde_json::{Value as Json, json};
use trust_fabric_provider::ephemerals;
use trust_fabric_provider::proto::tfplugin6 as proto;
use trust_fabric_provider::value::{self, Object, msgpack};

use super::agents::agent;
use super::fabric::Fabric;
use super::plugin::Plugin;
use super::workspace::{
    Message, Outcome, Workspace, assert_no_token, configure, dynamic, messages, succeeded, text, tool, with,
};

const TOOL: &str = "https://tools.dev.trust-fabric.local/sql-query";

/// An open ephemeral resource.
struct Open {
    type_name: &'static str,
    result: Object,
    private: Option<Vec<u8>>,
}

impl Open {
    fn text(&self, name: &str) -> String {
        self.result.text(name).expect("text").to_owned()
    }
}

/// Validates and opens.
async fn open(plugin: &mut Plugin, type_name: &'static str, config: &Json) -> Outcome<Open> {
    let attributes = ephemerals::named(type_name).expect("a type").table().attributes;
    let stated = value::json::decode(config, attributes).expect("a configuration");
    let config = dynamic(Some(&stated), attributes);
    let type_text = type_name.to_owned();
    let request = proto::ValidateEphemeralRequest { type_name: type_text.clone(), config: config.clone() };
    let validated = plugin.provider.validate_ephemeral_resource_config(request).await.expect("validated");
    succeeded(messages(validated.into_inner().diagnostics))?;
    let request = proto::OpenRequest { type_name: type_text, config };
    let opened = plugin.provider.open_ephemeral_resource(request).await.expect("opened").into_inner();
    succeeded(messages(opened.diagnostics))?;
    let result = msgpack::decode(&opened.result.expect("a result").msgpack, attributes);
    let result = result.expect("decoded").expect("an object");
    for attribute in attributes {
        let (stated, value) = (stated.value(attribute.name), result.value(attribute.name));
        assert!(stated.is_null() || stated == value, "{}", attribute.name);
        assert_ne!(value, &value::Value::Unknown, "{}", attribute.name);
    }
    assert_no_token(opened.private.as_deref().unwrap_or_default());
    Ok(Open { type_name, result, private: opened.private })
}

async fn close(plugin: &mut Plugin, open: &Open) -> Outcome<Vec<Message>> {
    let request = proto::CloseRequest { type_name: open.type_name.to_owned(), private: open.private.clone() };
    let closed = plugin.provider.close_ephemeral_resource(request).await.expect("closed");
    succeeded(messages(closed.into_inner().diagnostics))
}

#[tokio::test]
async fn agent_of_a_run_acts_until_it_is_closed() {
    let fabric = Fabric::start().await;
    let mut plugin = Plugin::start().await;
    let own = fabric.provider("terraform");
    configure(&mut plugin, &own).await.expect("configured");
    let config = with(&agent(), &json!({ "capabilities": ["tools.manage", "tools.read", "unknown"] }));
    let run = open(&mut plugin, "svc_agent_identity", &config).await.expect("opened");
    let granted = value::json::encode(run.result.value("granted_capabilities"));
    assert_eq!(granted, Some(json!(["tools.manage", "tools.read"])));
    assert!(
        run.text("expires_at").ends_with('Z') && run.result.text("blast_radius") == Some("namespace:demo")
    );
    let renewed = proto::RenewRequest { type_name: run.type_name.to_owned(), private: run.private.clone() };
    let renewed = plugin.provider.renew_ephemeral_resource(renewed).await.expect("answered").into_inner();
    assert_eq!((renewed.private, renewed.diagnostics), (run.private.clone(), vec![]));

    // A provider of an alias, with the token.
    let mut alias = Plugin::start().await;
    let bearer = with(&fabric.anonymous(), &json!({ "jwt_token": run.text("token") }));
    configure(&mut alias, &bearer).await.expect("configured");
    let mut workspace = Workspace::new(&mut alias, "svc_mcp_tool");
    workspace.apply(Some(&tool("t"))).await.expect("created");
    assert_eq!(workspace.value("registered_by"), run.text("agent_id"));
    close(&mut plugin, &run).await.expect("closed");
    let refused = workspace.plan(Some(&tool("t"))).await.expect_err("refused");
    assert!(text(&refused).contains("Status 401"), "{refused:?}");
    // Again, as after a lost response.
    close(&mut plugin, &run).await.expect("closed");

    // Also after Ctrl-C.
    let interrupted = open(&mut plugin, "svc_agent_identity", &config).await.expect("opened");
    plugin.provider.stop_provider(proto::StopRequest {}).await.expect("stopped");
    close(&mut plugin, &interrupted).await.expect("closed");
    let token = interrupted.text("token");
    assert_eq!(fabric.bearer(&token).get(&["v1", "tools"]).await.expect_err("refused").status(), Some(401));
    let mut plugin = Plugin::start().await;
    configure(&mut plugin, &own).await.expect("configured");

    let kept = with(&config, &json!({ "revoke_on_close": false }));
    let kept = open(&mut plugin, "svc_agent_identity", &kept).await.expect("opened");
    close(&mut plugin, &kept).await.expect("closed");
    fabric.bearer(&kept.text("token")).get(&["v1", "tools"]).await.expect("still accepted");
}

/// Terraform leaves an ephemeral resource open if the apply of its users fails, and ends the plugin.
#[tokio::test]
async fn agent_of_a_failed_run_is_revoked_at_the_end() {
    let fabric = Fabric::start().await;
    let mut plugin = Plugin::start().await;
    configure(&mut plugin, &fabric.provider("terraform")).await.expect("configured");
    let left = open(&mut plugin, "svc_agent_identity", &agent()).await.expect("opened");
    let config = with(&agent(), &json!({ "revoke_on_close": false }));
    let kept = open(&mut plugin, "svc_agent_identity", &config).await.expect("opened");
    assert_eq!(plugin.shut_down().await, Some(0));
    let client = fabric.client("terraform");
    for (run, status) in [(left, "revoked"), (kept, "active")] {
        let record = client.get(&["v1", "identity", "agents", &run.text("agent_id")]).await;
        assert_eq!(record.expect("a record")["status"], status);
    }
}

#[tokio::test]
async fn agent_that_cannot_be_revoked_is_named() {
    let fabric = Fabric::start().await;
    let mut plugin = Plugin::start().await;
    configure(&mut plugin, &fabric.provider("terraform")).await.expect("configured");
    let run = open(&mut plugin, "svc_agent_identity", &agent()).await.expect("opened");
    configure(&mut plugin, &fabric.provider("workload")).await.expect("configured");
    let refused = close(&mut plugin, &run).await.expect_err("refused");
    let said = text(&refused);
    assert!(
        said.contains("The fabric refused to revoke the agent") && said.contains(&run.text("agent_id")),
        "{said}"
    );
}

#[tokio::test]
async fn token_of_a_managed_agent_is_minted_for_its_issuer() {
    let fabric = Fabric::start().await;
    let mut plugin = Plugin::start().await;
    configure(&mut plugin, &fabric.provider("terraform")).await.expect("configured");
    let mut workspace = Workspace::new(&mut plugin, "svc_agent_identity");
    workspace.apply(Some(&agent())).await.expect("issued");
    let config = json!({ "agent_id": workspace.value("agent_id") });
    let minted = open(workspace.plugin, "svc_agent_token", &config).await.expect("opened");
    fabric.bearer(&minted.text("token")).get(&["v1", "tools"]).await.expect("accepted");
    assert_eq!(minted.private, None);
    close(workspace.plugin, &minted).await.expect("closed");
    fabric.bearer(&minted.text("token")).get(&["v1", "tools"]).await.expect("accepted until it expires");

    configure(workspace.plugin, &fabric.provider("other")).await.expect("configured");
    let refused = open(workspace.plugin, "svc_agent_token", &config).await.err().expect("refused");
    assert!(text(&refused).contains("another identity had it issued"), "{refused:?}");
    configure(workspace.plugin, &fabric.provider("terraform")).await.expect("configured");
    workspace.apply(None).await.expect("revoked");
    let refused = open(&mut plugin, "svc_agent_token", &config).await.err().expect("refused");
    assert!(text(&refused).contains("the agent is revoked"), "{refused:?}");
}

#[tokio::test]
async fn token_is_exchanged_and_is_no_key_of_its_subject() {
    let fabric = Fabric::start().await;
    let mut plugin = Plugin::start().await;
    configure(&mut plugin, &fabric.provider("terraform")).await.expect("configured");
    let run = open(&mut plugin, "svc_agent_identity", &agent()).await.expect("opened");
    let plain = json!({
        "subject_token": run.text("token"), "subject_token_type": "urn:svc:token-type:agent-a2a", "audience": TOOL,
        "scope": "db.read",
    });
    let token = open(&mut plugin, "svc_token", &plain).await.expect("opened");
    assert_eq!(token.result.value("expires_in"), &value::Value::Number(300));
    assert!(token.private.is_none() && token.text("scope") == "db.read");
    let scope = json!({ "htm": "POST", "htu": TOOL });
    let scoped = with(&plain, &json!({ "execution_scope": scope, "scope": Json::Null }));
    let token = open(&mut plugin, "svc_token", &scoped).await.expect("opened");
    assert_eq!(token.result.value("expires_in"), &value::Value::Number(30));
    assert_eq!(token.text("scope"), "db.read");

    // Into a write-only attribute, where it is of no use, and not shown.
    let mut workspace = Workspace::new(&mut plugin, "svc_encryption_key");
    let key = json!({
        "public_key": super::keys::key(1), "workload_id": run.text("agent_id"),
        "agent_token": token.text("access_token"),
    });
    let refused = workspace.apply(Some(&key)).await.expect_err("refused");
    assert!(text(&refused).contains("Status 401") && workspace.state.is_none(), "{refused:?}");
}

#[tokio::test]
async fn refused_opening_shows_no_secret() {
    let fabric = Fabric::start().await;
    let mut plugin = Plugin::start().await;
    configure(&mut plugin, &fabric.provider("terraform")).await.expect("configured");
    let secret = "secret-4711.secret-4712.secret-4713";
    let exchange = |changes: Json| with(&json!({ "subject_token": secret, "audience": TOOL }), &changes);
    for (type_name, config, attribute, said) in [
        ("svc_agent_identity", with(&agent(), &json!({ "platform": "x" })), Some("platform"), "must be mcp"),
        (
            "svc_agent_identity",
            with(&agent(), &json!({ "delegation_depth": 11 })),
            Some("delegation_depth"),
            "0 to 10",
        ),
        ("svc_agent_identity", with(&agent(), &json!({ "capabilities": ["x"] })), None, "data.identity"),
        ("svc_agent_token", json!({ "agent_id": "planner" }), Some("agent_id"), "must be wimse://"),
        (
            "svc_token",
            exchange(json!({ "subject_token_type": "jwt" })),
            Some("subject_token_type"),
            "must be urn:",
        ),
        ("svc_token", exchange(json!({})), None, "Status 400"),
        (
            "svc_token",
            exchange(json!({ "execution_scope": { "htm": "post", "htu": TOOL } })),
            Some("execution_scope"),
            "execution_scope.htm: must be an HTTP method",
        ),
    ] {
        let refused = open(&mut plugin, type_name, &config).await.err().expect("refused");
        assert_eq!(refused[0].attribute.as_deref(), attribute, "{refused:?}");
        assert!(text(&refused).contains(said) && !text(&refused).contains("4711"), "{said}: {refused:?}");
    }
    for (config, said) in [
        (fabric.anonymous(), "POST /v1/identity/agent takes a client certificate"),
        (json!({}), "endpoint is not set"),
        (
            with(&fabric.provider("terraform"), &json!({ "jwt_token": "UNKNOWN" })),
            "jwt_token is not known yet",
        ),
    ] {
        configure(&mut plugin, &config).await.expect("configured");
        let refused = open(&mut plugin, "svc_agent_identity", &agent()).await.err().expect("refused");
        assert!(text(&refused).contains(said), "{refused:?}");
    }
}
