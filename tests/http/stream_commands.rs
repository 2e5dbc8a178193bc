//! `trust-fabric stream …` against a node.

use serde_json::{Value, json};

use crate::support::{Node, program};

const REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
const PUSH: [&str; 5] = ["create", "--push", "https://receiver.example/events", "--aud", "siem"];

#[track_caller]
fn succeed(node: &Node, arguments: &[&str]) -> String {
    program::succeed(node, &[&["stream"], arguments].concat())
}

#[track_caller]
fn fail(node: &Node, arguments: &[&str], text: &str) {
    program::fail(node, &[&["stream"], arguments].concat(), &[text]);
}

fn json_of(text: &str) -> Value {
    trust_fabric::json::parse(text.as_bytes()).expect("JSON")
}

/// The value beside a name in the output.
fn value<'t>(shown: &'t str, name: &str) -> &'t str {
    let mut lines = shown.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(found, _)| *found == name).unwrap_or_else(|| panic!("{name}: {shown}")).1.trim()
}

#[tokio::test]
async fn commands_create_show_pause_verify_and_delete_streams() {
    let node = Node::start().await;
    let more = ["--event", "session-revoked", "--event", "urn:x:y", "--description", "the SIEM"];
    let out = succeed(&node, &[&PUSH[..], &more].concat());
    let id = out.split(' ').nth(1).expect("stream_id").to_owned();
    assert!(out.starts_with("stream ") && out.contains("https://receiver.example/events"), "{out}");
    let shown = succeed(&node, &["show", &id]);
    assert_eq!((value(&shown, "status"), value(&shown, "events_delivered")), ("enabled", REVOKED));
    assert_eq!((value(&shown, "description"), value(&shown, "aud")), ("the SIEM", "siem"));
    assert_eq!(
        (value(&shown, "delivered"), value(&shown, "dropped"), value(&shown, "dead_letters")),
        ("0", "0", "0")
    );
    assert!(shown.lines().any(|line| line.trim() == "urn:x:y") && !shown.contains("reason"), "{shown}");

    assert_eq!(
        succeed(&node, &["pause", &id, "--reason", "maintenance"]),
        format!("stream {id} is paused: maintenance\n")
    );
    let shown = succeed(&node, &["show", &id]);
    assert_eq!((value(&shown, "status"), value(&shown, "reason")), ("paused", "maintenance"));
    fail(&node, &["verify", &id], "the stream is not enabled");
    assert_eq!(succeed(&node, &["disable", &id]), format!("stream {id} is disabled\n"));
    assert_eq!(succeed(&node, &["resume", &id]), format!("stream {id} is enabled\n"));
    assert!(succeed(&node, &["verify", &id, "--state", "s"]).contains("a verification event is sent"));
    fail(&node, &["verify", &id], "less than a minute ago");
    assert_eq!(json_of(&succeed(&node, &["show", &id, "-o", "json"]))["stream_id"], json!(id));
    assert_eq!(json_of(&succeed(&node, &["dead-letters", &id, "-o", "json"])), json!([]));

    assert_eq!(succeed(&node, &["delete", &id]), format!("stream {id} is deleted\n"));
    for arguments in
        [["show", &id], ["delete", &id], ["pause", &id], ["dead-letters", &id], ["delete", "a&b=c"]]
    {
        fail(&node, &arguments, "there is no stream with this stream_id");
    }
}

#[tokio::test]
async fn poll_stream_reports_its_url_and_requests_all_by_default() {
    let node = Node::start().await;
    let made = json_of(&succeed(&node, &["create", "--poll", "--aud", "siem", "-o", "json"]));
    let id = made["stream_id"].as_str().expect("stream_id");
    assert_eq!(made["endpoint_url"], format!("{}/v1/signals/poll/{id}", node.base()));
    assert_eq!(made["events_delivered"], made["events_supported"]);
    succeed(&node, &PUSH);
    let table = succeed(&node, &["list"]);
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.lines().any(|line| line.contains(id) && line.contains("poll")), "{table}");
    assert_eq!(
        json_of(&succeed(&node, &["list", "--limit", "1", "-o", "json"])).as_array().map(Vec::len),
        Some(1)
    );
}

#[tokio::test]
async fn refusals_by_the_node_are_printed() {
    let node = Node::start().await;
    fail(&node, &["create", "--push", "http://receiver.example", "--aud", "a"], "delivery.endpoint_url: ");
    fail(&node, &["create", "--poll"], "aud: is required");
    fail(&node, &["create", "--poll", "--aud", "a", "--event", "revoked"], "events_requested[0]: must be");
    fail(&node, &["create"], "--push");
    fail(&node, &["show"], "STREAM_ID");
    assert_eq!(succeed(&node, &["list", "-o", "json"]).trim(), "[]");
    let (_, help, _) = program::run(&node, &["stream", "create", "--help"]);
    assert!(help.contains("trust-fabric stream create --push https://receiver.example.org/events"), "{help}");
}
