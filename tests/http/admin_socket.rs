//! `admin.sock`: status of a node for the operator of its machine, also without a freshness lease.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use trust_fabric::limits;

use crate::support::{Node, Setup};

async fn secure() -> Node {
    Node::start_with(Setup { is_secure: true, ..Setup::default() }).await
}

async fn send(node: &Node, method: &str, path: &str) -> (u16, String) {
    let socket = node.directory.path().join("data/admin.sock");
    let mut stream = UnixStream::connect(socket).await.expect("connects");
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    (head["HTTP/1.1 ".len()..][..3].parse().expect("status"), body.to_owned())
}

fn json_of(body: &str) -> Value {
    serde_json::from_str(body).expect("JSON")
}

/// Runs the program beside the node, whose runtime continues meanwhile.
fn program(node: &Node, arguments: &[&str]) -> (bool, String) {
    let data = node.directory.path().join("data");
    let mut command = Command::new(env!("CARGO_BIN_EXE_trust-fabric"));
    let ran = command.args(arguments).arg("--data-dir").arg(data).output().expect("runs");
    let text = [ran.stdout, ran.stderr].concat();
    (ran.status.success(), String::from_utf8(text).expect("text"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_is_served_without_a_lease() {
    let node = Node::start_with(Setup { is_secure: true, survives_replica: true, ..Setup::default() }).await;
    let socket = node.directory.path().join("data/admin.sock");
    let mode = std::fs::metadata(&socket).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (status, body) = send(&node, "GET", "/v1/sys/cluster").await;
    let cluster = json_of(&body);
    let report = &cluster["members"][0]["report"];
    assert_eq!((status, &report["lease_is_held"]), (200, &json!(true)), "{cluster}");
    assert_eq!(report["applied_index"], json!(node.state().cluster().applied()));
    assert_eq!(cluster["members"][0]["role"], "leader");
    let (is_ok, text) = program(&node, &["health"]);
    assert!(is_ok && text.contains("under-test: pass, leader"), "{text}");

    node.state().cluster().shutdown().await.expect("stops");
    node.clock.advance(limits::FRESHNESS_LEASE + limits::LEADER_UNCONFIRMED_MAX);
    let (status, body) = send(&node, "GET", "/v1/sys/health").await;
    assert_eq!((status, &json_of(&body)["missing"]), (503, &json!(["leader", "freshness lease"])));
    let cluster = json_of(&send(&node, "GET", "/v1/sys/cluster").await.1);
    assert_eq!(cluster["members"][0]["report"]["lease_is_held"], false, "{cluster}");
    let (status, metrics) = send(&node, "GET", "/metrics").await;
    assert!(status == 200 && metrics.contains("\nsvc_freshness_lease_held 0\n"), "{metrics}");
    let (is_ok, text) = program(&node, &["health"]);
    assert!(!is_ok && text.contains("no leader, no freshness lease"), "{text}");
    let (is_ok, text) = program(&node, &["cluster", "status"]);
    assert!(is_ok && text.contains("not confirmed") && text.contains("expired"), "{text}");
    let (is_ok, text) = program(&node, &["health", "--metrics"]);
    assert!(is_ok && text.contains("svc_freshness_lease_held 0"), "{text}");
}

#[tokio::test]
async fn nothing_else_is_served() {
    let node = secure().await;
    for path in ["/v1/sys/keys", "/v1/identity/jwks", "/v1/tools", "/"] {
        assert_eq!(send(&node, "GET", path).await.0, 404, "{path}");
    }
    for path in ["/v1/sys/health", "/v1/sys/cluster", "/metrics"] {
        assert_eq!(send(&node, "POST", path).await.0, 405, "{path}");
    }
}

#[tokio::test]
async fn silent_client_does_not_hold_up_the_next() {
    let mut node = secure().await;
    let silent = UnixStream::connect(node.directory.path().join("data/admin.sock")).await.expect("connects");
    assert_eq!(send(&node, "GET", "/metrics").await.0, 200);
    drop(silent);
    // The next process replaces the socket of the previous one.
    node.restart().await;
    assert_eq!(send(&node, "GET", "/metrics").await.0, 200);
}
