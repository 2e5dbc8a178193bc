//! Programs in Python that make our input and judge our output, in `tests/peers`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

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

/// `transmitter.py`: an issuer of security events that joserfc signs, with keys of its own.
pub struct Transmitter {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// Its public keys, RS256 and ES256.
    pub jwks: Value,
}

impl Transmitter {
    /// Starts it, and waits until it has made its keys.
    pub fn start() -> Self {
        let mut child = Command::new(python())
            .arg(script("transmitter.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start Python");
        let stdin = child.stdin.take().expect("stdin");
        let stdout = BufReader::new(child.stdout.take().expect("stdout"));
        let mut transmitter = Self { child, stdin, stdout, jwks: Value::Null };
        transmitter.jwks = transmitter.heard()["jwks"].take();
        transmitter
    }

    /// The token that joserfc makes of an order: `{"set", "alg"?, "header"?}`.
    pub fn sign(&mut self, order: &Value) -> String {
        writeln!(self.stdin, "{order}").expect("write");
        let said = self.heard();
        said["token"].as_str().unwrap_or_else(|| panic!("{order}: {said}")).to_owned()
    }

    fn heard(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("read");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("transmitter.py: {line:?}"))
    }
}

impl Drop for Transmitter {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
