//! Independent oracles in Python, from `tests/oracles`: they create input and verify output.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

/// The Python interpreter of the tests.
pub fn python() -> PathBuf {
    #[expect(clippy::disallowed_methods, reason = "the one variable of the tests; the Makefile sets it")]
    let path = std::env::var_os("TRUST_FABRIC_PYTHON");
    let path = path.map(PathBuf::from).filter(|path| path.exists());
    path.expect(
        "TRUST_FABRIC_PYTHON must name the Python of the test environment: run the tests with `make test`",
    )
}

/// Path of a script in `tests/oracles`.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles").join(name)
}

/// Runs a script with `order` on its standard input. Returns its output, and whether it exited with 0.
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
    let report = serde_json::from_slice(&output.stdout);
    (
        report.unwrap_or_else(|_| panic!("{name}: {}", String::from_utf8_lossy(&output.stdout))),
        output.status.success(),
    )
}

/// `transmitter.py`: a signal issuer whose SETs joserfc signs with its own keys.
pub struct Transmitter {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// Its public keys, RS256 and ES256.
    pub jwks: Value,
}

impl Transmitter {
    /// Starts it and waits until it has its keys.
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
        transmitter.jwks = transmitter.receive()["jwks"].take();
        transmitter
    }

    /// The SET that joserfc signs for an order: `{"set", "alg"?, "header"?}`.
    pub fn sign(&mut self, order: &Value) -> String {
        writeln!(self.stdin, "{order}").expect("write");
        let report = self.receive();
        report["token"].as_str().unwrap_or_else(|| panic!("{order}: {report}")).to_owned()
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("read");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("transmitter.py: {line:?}"))
    }
}

impl Drop for Transmitter {
    fn drop(&mut self) {
        // It may have exited already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// `receiver.py`: a receiver of pushed SETs that verifies each with joserfc and answers as ordered.
pub struct Receiver {
    child: Child,
    stdin: ChildStdin,
    report: UnboundedReceiver<Value>,
    /// Received before a test waited for them.
    pushes: VecDeque<Value>,
    port: u64,
}

impl Receiver {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        Self::start_at(0).await
    }

    /// Starts it on this port.
    #[expect(clippy::disallowed_methods, reason = "a line from Python is waited for beside the test")]
    pub async fn start_at(port: u16) -> Self {
        let mut child = Command::new(python())
            .arg(script("receiver.py"))
            .arg(port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start Python");
        let stdin = child.stdin.take().expect("stdin");
        let stdout = BufReader::new(child.stdout.take().expect("stdout"));
        let (say, report) = unbounded_channel();
        // Ends with the Python process, or with the test.
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or_else(|_| panic!("receiver.py: {line:?}"));
                if say.send(line).is_err() {
                    break;
                }
            }
        });
        let mut receiver = Self { child, stdin, report, pushes: VecDeque::new(), port: 0 };
        receiver.port = receiver.receive().await["port"].as_u64().expect("port");
        receiver
    }

    /// Its URL, under the name `localhost` or as `127.0.0.1`.
    pub fn url(&self, host: &str, path: &str) -> String {
        format!("http://{host}:{}{path}", self.port)
    }

    /// Sends an order and waits until it is in effect.
    pub async fn order(&mut self, order: &Value) {
        writeln!(self.stdin, "{order}").expect("write");
        loop {
            let report = self.receive().await;
            if report.get("ready").is_some() {
                return;
            }
            self.pushes.push_back(report);
        }
    }

    /// The next push: its path, its mode, and its claims, verified by joserfc.
    pub async fn next(&mut self) -> Value {
        let push = match self.pushes.pop_front() {
            Some(push) => push,
            None => self.receive().await,
        };
        assert!(push.get("refused").is_none(), "{push}");
        push
    }

    /// Pushes that no call of `next` returned.
    pub fn remaining(&mut self) -> Vec<Value> {
        while let Ok(push) = self.report.try_recv() {
            self.pushes.push_back(push);
        }
        self.pushes.drain(..).collect()
    }

    async fn receive(&mut self) -> Value {
        let received = timeout(Duration::from_secs(60), self.report.recv()).await;
        received.expect("receiver.py answers").expect("receiver.py runs")
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // It may have exited already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
