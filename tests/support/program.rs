//! The program, run from the command line against a node.

use std::process::{Command, Stdio};

use super::Node;

/// Runs a command without a terminal: whether it succeeded, its standard output and its standard error.
pub fn run(node: &Node, arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_trust-fabric"))
        .args(arguments)
        .args(["--server", node.base()])
        .stdin(Stdio::null())
        .output()
        .expect("run the program");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// Standard output of a command that must succeed.
#[track_caller]
pub fn succeed(node: &Node, arguments: &[&str]) -> String {
    let (success, out, err) = run(node, arguments);
    assert!(success, "{arguments:?}: {err}");
    out
}

/// Asserts that a command fails and prints each of these texts.
#[track_caller]
pub fn fail(node: &Node, arguments: &[&str], texts: &[&str]) {
    let (success, out, err) = run(node, arguments);
    assert!(!success && texts.iter().all(|text| err.contains(text)), "{arguments:?}: {out}{err}");
}
