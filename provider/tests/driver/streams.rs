//! `svc_ssf_stream` against a node: push and poll, refused values, and the status.

use serde_json::{Value as Json, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use trust_fabric_client::NodeClient;

use super::fabric::Fabric;
use super::plugin::Plugin;
use super::workspace::{Workspace, configure, text, with};

const TYPE: &str = "svc_ssf_stream";
const SESSION_REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
const CREDENTIAL_CHANGE: &str = "https://schemas.openid.net/secevent/caep/event-type/credential-change";

async fn start() -> (Fabric, Plugin, NodeClient) {
    let fabric = Fabric::start().await;
    let mut plugin = Plugin::start().await;
    configure(&mut plugin, &fabric.provider("terraform")).await.expect("configured");
    let client = fabric.client("terraform");
    (fabric, plugin, client)
}

fn poll() -> Json {
    json!({ "audience": "https://receiver.example", "events_requested": [SESSION_REVOKED], "delivery_method": "poll" })
}

async fn read(client: &NodeClient, stream_id: &Json) -> Json {
    let query = [("stream_id", stream_id.as_str().expect("text"))];
    client.get_with(&["v1", "signals", "stream"], &query).await.expect("a stream")
}

#[tokio::test]
async fn poll_stream_is_created_changed_imported_and_deleted() {
    let (_fabric, mut plugin, client) = start().await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&poll())).await.expect("created");
    assert_eq!((workspace.value("status"), workspace.value("endpoint_url")), (json!("enabled"), Json::Null));
    assert_eq!(workspace.value("issuer"), "https://localhost:8694");
    let stream_id = workspace.value("stream_id");
    let poll_url = workspace.value("poll_url");
    let path = ["v1", "signals", "poll", stream_id.as_str().expect("text")];
    assert!(poll_url.as_str().expect("text").ends_with(&path.join("/")), "{poll_url}");
    let answer = client.post(&path, &json!({ "returnImmediately": true })).await.expect("polled");
    assert_eq!(answer["sets"], json!({}));
    workspace.store().await;

    for changes in [
        json!({}),
        json!({ "description": "d" }),
        json!({ "events_requested": [CREDENTIAL_CHANGE, SESSION_REVOKED] }),
        json!({ "status": "paused" }),
        json!({ "delivery_method": "push", "endpoint_url": "https://receiver.example/events" }),
        json!({ "timeouts": { "read": "10s" } }),
    ] {
        let config = with(&poll(), &changes);
        let plan = workspace.apply(Some(&config)).await.expect("changed");
        assert_eq!(plan.replaces, Vec::<String>::new(), "{changes}");
        let record = read(&client, &stream_id).await;
        for name in changes.as_object().expect("object").keys().filter(|name| *name != "timeouts") {
            assert_eq!(&record[name], &config[name], "{name}");
        }
        let plan = workspace.plan(Some(&config)).await.expect("planned");
        assert_eq!(plan.changes, Vec::<&str>::new(), "{changes}");
    }
    let plan = workspace.plan(Some(&with(&poll(), &json!({ "audience": "other" })))).await.expect("planned");
    assert_eq!(plan.replaces, ["audience"]);

    workspace.apply(Some(&with(&poll(), &json!({ "status": "enabled" })))).await.expect("changed back");
    let mut imported = Workspace::new(&mut plugin, TYPE);
    imported.import(stream_id.as_str().expect("text")).await.expect("imported");
    let plan = imported.plan(Some(&poll())).await.expect("planned");
    assert_eq!(plan.changes, Vec::<&str>::new());
    imported.apply(None).await.expect("deleted");
    let gone = client
        .get_with(&["v1", "signals", "stream"], &[("stream_id", stream_id.as_str().expect("text"))])
        .await;
    assert_eq!(gone.expect_err("gone").status(), Some(404));
}

#[tokio::test]
async fn push_stream_delivers_to_its_endpoint() {
    let (_fabric, mut plugin, client) = start().await;
    let receiver = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let secret = "receiver-secret-4711";
    let url = format!("http://{}/{secret}", receiver.local_addr().expect("address"));
    let config = with(&poll(), &json!({ "delivery_method": "push", "endpoint_url": url }));
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&config)).await.expect("created");
    assert_eq!((workspace.value("endpoint_url"), workspace.value("poll_url")), (json!(url), Json::Null));

    let verification = json!({ "stream_id": workspace.value("stream_id"), "state": "s" });
    let verify = ["v1", "signals", "verification"];
    client.post(&verify, &verification).await.expect("queued");
    let (mut stream, _) = receiver.accept().await.expect("a push");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a request"));
    }
    assert!(head.starts_with(format!("POST /{secret} ").as_bytes()));
    let answer = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    stream.write_all(answer).await.expect("answered");

    workspace.apply(None).await.expect("deleted");
}

#[tokio::test]
async fn refused_value_is_at_its_attribute_and_not_shown() {
    let (_fabric, mut plugin, _) = start().await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let secret = "https://receiver.example/secret-4711";
    let push = |url: Json| json!({ "delivery_method": "push", "endpoint_url": url });
    for (changes, attribute) in [
        (push(Json::Null), "endpoint_url"),
        (json!({ "endpoint_url": secret }), "endpoint_url"),
        (push(json!("http://receiver.example/secret-4711")), "endpoint_url"),
        (push(json!("secret-4711")), "endpoint_url"),
        (json!({ "delivery_method": "pull" }), "delivery_method"),
        (json!({ "events_requested": [] }), "events_requested"),
        (json!({ "events_requested": ["no-uri"] }), "events_requested"),
        (json!({ "status": "running" }), "status"),
        (json!({ "description": "" }), "description"),
    ] {
        let refused = workspace.plan(Some(&with(&poll(), &changes))).await.expect_err("refused");
        assert_eq!(refused[0].attribute.as_deref(), Some(attribute), "{changes}: {refused:?}");
        assert!(!format!("{refused:?}").contains("secret-4711"), "{refused:?}");
    }
    // Rules that only the fabric checks.
    for (changes, attribute) in [
        (json!({ "events_requested": ["https://e.example/unsupported"] }), "events_requested"),
        (json!({ "events_delivered": [CREDENTIAL_CHANGE] }), "events_delivered"),
        (json!({ "issuer": "https://other.example" }), "issuer"),
        (push(json!("https://receiver.example:443/secret-4711")), "endpoint_url"),
    ] {
        let refused = workspace.apply(Some(&with(&poll(), &changes))).await.expect_err("refused");
        assert_eq!(refused[0].attribute.as_deref(), Some(attribute), "{changes}: {refused:?}");
        assert!(!format!("{refused:?}").contains("secret-4711"), "{refused:?}");
        assert!(workspace.state.is_none());
    }
}

#[tokio::test]
async fn status_of_another_party_is_shown_or_undone() {
    let (_fabric, mut plugin, client) = start().await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    workspace.apply(Some(&poll())).await.expect("created");
    let paused = json!({
        "stream_id": workspace.value("stream_id"), "status": "paused", "reason": "backlog of the receiver",
    });
    client.post(&["v1", "signals", "status"], &paused).await.expect("paused");

    let plan = workspace.plan(Some(&poll())).await.expect("planned");
    assert_eq!(plan.changes, Vec::<&str>::new(), "shown, not undone");
    assert_eq!(workspace.value("status"), "paused");
    assert!(
        text(&workspace.messages).contains("paused: backlog of the receiver"),
        "{:?}",
        workspace.messages
    );

    let enabled = with(&poll(), &json!({ "status": "enabled" }));
    let plan = workspace.apply(Some(&enabled)).await.expect("undone");
    assert!(plan.changes.contains(&"status"), "{plan:?}");
    assert_eq!(read(&client, &workspace.value("stream_id")).await["status"], "enabled");
    assert_eq!(workspace.value("reason"), Json::Null);
}

#[tokio::test]
async fn narrowed_events_stay_until_they_are_changed() {
    let (_fabric, mut plugin, client) = start().await;
    let mut workspace = Workspace::new(&mut plugin, TYPE);
    let both = json!({ "events_requested": [SESSION_REVOKED, CREDENTIAL_CHANGE] });
    let narrow = with(&with(&poll(), &both), &json!({ "events_delivered": [CREDENTIAL_CHANGE] }));
    workspace.apply(Some(&narrow)).await.expect("created");
    let plan = workspace.apply(Some(&with(&narrow, &json!({ "description": "d" })))).await.expect("changed");
    assert_eq!(plan.replaces, Vec::<String>::new());
    let record = read(&client, &workspace.value("stream_id")).await;
    assert_eq!(record["events_delivered"], json!([CREDENTIAL_CHANGE]));
    let fewer = with(&narrow, &json!({ "events_requested": [CREDENTIAL_CHANGE] }));
    let plan = workspace.plan(Some(&fewer)).await.expect("planned");
    assert_eq!(plan.replaces, ["events_requested"], "Terraform ignores an attribute that does not change");
    let left_out = with(&with(&poll(), &both), &json!({ "description": "d" }));
    let plan = workspace.plan(Some(&left_out)).await.expect("planned");
    assert_eq!(plan.changes, Vec::<&str>::new(), "left out of the configuration: as it is");
}
