//! The plugin process: refusals of the handshake, its end, its schema.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::Command;
use trust_fabric_provider::proto::tfplugin6::provider_client::ProviderClient;
use trust_fabric_provider::proto::tfplugin6::{RawState, SchemaRequest, UpgradeRequest};
use trust_fabric_provider::value::{self, msgpack};
use trust_fabric_provider::{limits, resources};

use super::plugin::{Client, PROGRAM, Plugin};

#[tokio::test]
async fn program_started_by_hand_explains_itself() {
    let by_hand = Command::new(PROGRAM).env_clear().output().await.expect("run");
    let said = String::from_utf8(by_hand.stderr).expect("UTF-8");
    assert!(!by_hand.status.success() && said.contains("Terraform starts it"), "{said}");
    for (argument, expected) in [("--version", "terraform-provider-svc "), ("--help", "filesystem_mirror")] {
        let asked = Command::new(PROGRAM).arg(argument).output().await.expect("run");
        let said = String::from_utf8(asked.stdout).expect("UTF-8");
        assert!(asked.status.success() && said.contains(expected), "{said}");
    }
    let without =
        Client::new().command().env_remove("PLUGIN_CLIENT_CERT").stderr(Stdio::piped()).output().await;
    let without = without.expect("run");
    let said = String::from_utf8(without.stderr).expect("UTF-8");
    assert!(!without.status.success() && said.contains("PLUGIN_CLIENT_CERT is required"), "{said}");
    assert!(without.stdout.is_empty());
}

#[tokio::test]
async fn other_certificates_and_plain_text_are_refused() {
    let mut plugin = Plugin::start().await;
    let directory = plugin.socket.parent().expect("directory");
    let mode = std::fs::metadata(directory).expect("metadata").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);

    let other = Client::new();
    let refused = match other.connect(plugin.socket.clone(), plugin.own.clone()).await {
        Err(_) => true,
        // In TLS 1.3 the client learns of the refusal with the first response.
        Ok(channel) => ProviderClient::new(channel).get_provider_schema(SchemaRequest {}).await.is_err(),
    };
    assert!(refused);

    let mut plain = UnixStream::connect(&plugin.socket).await.expect("connected");
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("sent");
    let mut answer = Vec::new();
    // An alert at most, and the end of the connection.
    drop(plain.read_to_end(&mut answer).await);
    assert!(answer.len() <= 7, "{answer:?}");

    let schema = plugin.provider.get_provider_schema(SchemaRequest {}).await.expect("still served");
    assert!(schema.into_inner().resource_schemas.contains_key("svc_mcp_tool"));
}

#[tokio::test]
async fn socket_is_removed_at_every_end() {
    let plugin = Plugin::start().await;
    let directory = plugin.socket.parent().expect("directory").to_owned();
    assert!(directory.exists());
    assert_eq!(plugin.shut_down().await, Some(0));
    assert!(!directory.exists());

    let mut plugin = Plugin::start().await;
    let directory = plugin.socket.parent().expect("directory").to_owned();
    let process = plugin.child.id().expect("running").to_string();
    let send = async |signal: &str| {
        let sent = Command::new("sh").args(["-c", &format!("kill {signal} {process}")]).status().await;
        assert!(sent.expect("run").success());
    };
    // Ctrl-C reaches it too, and is left to Terraform: it still runs when any end of its own would be over.
    send("-INT").await;
    let after = limits::SHUTDOWN_MAX + Duration::from_millis(200);
    assert!(tokio::time::timeout(after, plugin.child.wait()).await.is_err(), "ended by SIGINT");
    send("-TERM").await;
    let ended = tokio::time::timeout(Duration::from_secs(3), plugin.child.wait()).await;
    assert_eq!(ended.expect("in time").expect("ended").code(), Some(0));
    assert!(!directory.exists());
}

/// A state that a build of schema version 0 stored. The files never change.
#[tokio::test]
async fn stored_state_of_version_0_is_read() {
    let mut plugin = Plugin::start().await;
    for resource in resources::all() {
        let table = resource.table();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/state-0").join(table.name);
        let json = std::fs::read(path.with_extension("json")).expect("a golden file");
        let request = UpgradeRequest {
            type_name: table.name.to_owned(),
            version: 0,
            raw_state: Some(RawState { json: json.clone() }),
        };
        let read = plugin.provider.upgrade_resource_state(request).await.expect("read").into_inner();
        let state = msgpack::decode(&read.upgraded_state.expect("a state").msgpack, table.attributes);
        let state = state.expect("decoded").expect("an object");
        let stored: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
        for (name, value) in stored.as_object().expect("an object") {
            assert_eq!(value::json::encode(state.value(name)).unwrap_or_default(), *value, "{name}");
        }
    }
}

#[tokio::test]
async fn schema_marks_are_those_of_the_pages() {
    let mut plugin = Plugin::start().await;
    let schema = plugin.provider.get_provider_schema(SchemaRequest {}).await.expect("schema").into_inner();
    let tool = schema.resource_schemas["svc_mcp_tool"].block.clone().expect("a block");
    let attribute =
        |name: &str| tool.attributes.iter().find(|attribute| attribute.name == name).expect("known").clone();
    let tool_id = attribute("tool_id");
    assert!(tool_id.required && !tool_id.optional && !tool_id.computed);
    let protocols = attribute("protocols");
    assert!(protocols.optional && protocols.computed && protocols.r#type == br#"["set","string"]"#);
    let timeouts = attribute("timeouts");
    assert!(timeouts.r#type.is_empty() && timeouts.nested_type.is_some());
    let token = schema.resource_schemas["svc_encryption_key"].block.clone().expect("a block");
    let write_only = token.attributes.iter().filter(|attribute| attribute.write_only && attribute.sensitive);
    assert_eq!(write_only.map(|attribute| &*attribute.name).collect::<Vec<_>>(), ["agent_token"]);
    let mut ephemeral: Vec<_> = schema.ephemeral_resource_schemas.keys().collect();
    ephemeral.sort();
    assert_eq!(ephemeral, ["svc_agent_identity", "svc_agent_token", "svc_token"]);
    for (name, secret) in [("svc_agent_identity", "token"), ("svc_token", "access_token")] {
        let block = schema.ephemeral_resource_schemas[name].block.clone().expect("a block");
        assert!(block.attributes.iter().any(|attribute| attribute.name == secret && attribute.sensitive));
    }
    let stream = schema.resource_schemas["svc_ssf_stream"].block.clone().expect("a block");
    assert!(
        stream.attributes.iter().any(|attribute| attribute.name == "endpoint_url" && attribute.sensitive)
    );
    let provider = schema.provider.expect("a schema").block.expect("a block");
    let sensitive = provider.attributes.iter().filter(|attribute| attribute.sensitive);
    assert_eq!(sensitive.map(|attribute| &*attribute.name).collect::<Vec<_>>(), ["client_key", "jwt_token"]);
}
