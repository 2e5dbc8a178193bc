//! `trust-fabric backup …` against a node.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use crate::support::{FABRIC, Node, program};

/// Runs a command that calls no node: whether it succeeded, its standard output and its standard error.
fn offline(arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_trust-fabric")).args(arguments).output().expect("runs");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn saved_backup_is_inspected_verified_and_audited() {
    let node = Node::start().await;
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("state.backup");
    let file = path.to_str().expect("UTF-8");
    let out = program::succeed(&node, &["backup", "save", file]);
    assert!(out.contains("saved"), "{out}");
    assert_eq!(fs::metadata(&path).expect("file").permissions().mode() & 0o777, 0o600);
    program::fail(&node, &["backup", "save", file], &["exists"]);

    let (success, out, err) = offline(&["backup", "verify", file]);
    assert!(success && out.contains("verified"), "{out}{err}");
    let (_, out, _) = offline(&["backup", "inspect", file]);
    assert!(out.contains(FABRIC) && out.contains("state hash"), "{out}");
    let (_, out, _) = offline(&["backup", "inspect", file, "-o", "json"]);
    let manifest = trust_fabric::json::parse(out.as_bytes()).expect("JSON");
    assert_eq!((manifest["issuer"].as_str(), manifest["mode"].as_str()), (Some(FABRIC), Some("development")));
    let (index, hash) = node.state().cluster().state_hash().expect("hash");
    assert!(manifest["log_id"]["index"].as_u64().is_some_and(|saved| saved <= index), "{manifest}");
    assert_eq!(manifest["state_hash"].as_str().map(str::len), Some(2 * hash.len()));

    let mut bytes = fs::read(&path).expect("file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).expect("written");
    let (success, _, err) = offline(&["backup", "verify", file]);
    assert!(!success && err.contains("backup"), "{err}");
    assert_eq!(fs::read_dir(directory.path()).expect("directory").count(), 1, "nothing temporary is left");
    let acts = node.get("/v1/audit").await.body;
    assert!(acts.contains("read a backup of the state: up to log index"), "{acts}");
}

#[tokio::test]
async fn backup_to_standard_output_is_the_file() {
    let node = Node::start().await;
    let saved = Command::new(env!("CARGO_BIN_EXE_trust-fabric"))
        .args(["backup", "save", "-", "--server", node.base()])
        .stdin(Stdio::null())
        .output()
        .expect("runs");
    assert!(saved.status.success() && saved.stderr.is_empty(), "{saved:?}");
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("state.backup");
    fs::write(&path, saved.stdout).expect("written");
    let (success, out, err) = offline(&["backup", "verify", path.to_str().expect("UTF-8")]);
    assert!(success, "{out}{err}");
}
