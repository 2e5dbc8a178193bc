//! The program, run from the command line against a node.

use std::process::{Command, Stdio};

use super::{Node, terminal};

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

/// Runs a command on a terminal with typed input: whether it succeeded, and everything that the terminal showed.
pub fn run_on_a_terminal(node: &Node, typed: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trust-fabric"));
    command.args(arguments).args(["--server", node.base()]);
    let (code, shown) = terminal::run(command, typed);
    (code == Some(0), shown)
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
