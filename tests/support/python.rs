//! Programs in Python that make our input and judge our output, in `tests/peers`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// The Python of the tests.
pub fn python() -> PathBuf {
    #[expect(clippy::disallowed_methods, reason = "the one variable of the tests; the Makefile sets it")]
    let path = std::env::var_os("TRUST_FABRIC_PYTHON");
    let path = path.map(PathBuf::from).filter(|path| path.exists());
    path.expect(
        "TRUST_FABRIC_PYTHON must name the Python of the test environment: run the tests with `make test`",
    )
}

/// A script of `tests/peers`.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(name)
}

/// Runs a script with `order` on its standard input; its answer, and whether it exited with 0.
pub fn run(name: &str, order: &Value) -> (Value, bool) {
    let mut child = Command::new(python())
        .arg(script(name))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start Python");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(order.to_string().as_bytes()).expect("write");
    drop(stdin);
    let output = child.wait_with_output().expect("run");
    let said = serde_json::from_slice(&output.stdout);
    (
        said.unwrap_or_else(|_| panic!("{name}: {}", String::from_utf8_lossy(&output.stdout))),
        output.status.success(),
    )
}
