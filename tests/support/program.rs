//! The program itself, run as a person runs it against a node.

use std::process::{Command, Stdio};

use super::Node;

/// What a command wrote on standard output and on standard error, and whether it succeeded. It has no terminal.
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

/// What a command that must succeed wrote on standard output.
#[track_caller]
pub fn succeed(node: &Node, arguments: &[&str]) -> String {
    let (success, out, err) = run(node, arguments);
    assert!(success, "{arguments:?}: {err}");
    out
}

/// Of a command that must fail, and say each of these texts.
#[track_caller]
pub fn fail(node: &Node, arguments: &[&str], texts: &[&str]) {
    let (success, out, err) = run(node, arguments);
    assert!(!success && texts.iter().all(|text| err.contains(text)), "{arguments:?}: {out}{err}");
}
