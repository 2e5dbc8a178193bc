//! A node for tests that kill or damage it: its directory, configuration and credentials.

#![allow(dead_code, reason = "each test program uses its own part")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use trust_fabric::clock::Clock;
use trust_fabric::config::{self, Config, Overrides};
use trust_fabric::node::{self, Running};
use trust_fabric::token::signing_key::SigningKey;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_trust-fabric");

/// The issuer in the shipped policy.
const ISSUER: &str = "http://127.0.0.1:8698";
const AUDIENCE: &str = "https://tools.dev.trust-fabric.local/sql-query";
const FABRIC: &str = "http://127.0.0.1:8693";

/// Directory with the files of a node. It is removed when this value is dropped.
pub struct Site {
    directory: PathBuf,
    issuer: SigningKey,
    /// Owned directory, removed on drop; `None` if [`Site::at`] borrowed one.
    _directory: Option<TempDir>,
}

impl Site {
    /// A new configuration and issuer keys, without data.
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let site = Self::at(directory.path());
        Self { _directory: Some(directory), ..site }
    }

    /// Uses a directory that another value owns.
    pub fn at(directory: &Path) -> Self {
        let issuer = SigningKey::generate().expect("key");
        let keys = json!({ "keys": [issuer.public_jwk()] });
        fs::write(directory.join("issuer.jwks"), keys.to_string()).expect("keys");
        Self { directory: directory.to_owned(), issuer, _directory: None }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// A path beside the data directory.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn config(&self, data: &Path) -> Config {
        let overrides = Overrides { data_dir: Some(data.to_owned()), ..Overrides::default() };
        config::load(Some(&self.config_file()), &mut std::iter::empty(), &overrides).expect("configuration")
    }

    fn config_file(&self) -> PathBuf {
        let path = self.beside("node.toml");
        let text = format!(
            r#"
            [node]
            mode = "development"
            data_dir = "{data}"
            [listen]
            http = "127.0.0.1:0"
            [limits]
            requests_per_second_per_caller = 1000000
            [fabric]
            issuer = "{FABRIC}"
            trust_domain = "dev.trust-fabric.local"
            [policy]
            directory = "{policies}"
            [cluster]
            heartbeat = "20ms"
            [log]
            filter = "error,trust_fabric::node=info"
            [[issuers]]
            issuer = "{ISSUER}"
            subject = "kubernetes"
            keys_file = "{keys}"
            algorithms = ["ES256"]
            trust_domains = ["dev.trust-fabric.local"]
            "#,
            data = self.data().display(),
            policies = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies").display(),
            keys = self.beside("issuer.jwks").display(),
        );
        fs::write(&path, text).expect("configuration file");
        path
    }

    pub async fn start(&self, data: &Path) -> Result<Node, node::Error> {
        Self::start_with(self.config(data)).await
    }

    pub async fn start_with(config: Config) -> Result<Node, node::Error> {
        let shutdown = CancellationToken::new();
        let running = node::start(config, Clock::system(), Path::new(PROGRAM), shutdown.clone()).await?;
        Ok(Node { running, shutdown })
    }

    /// Starts a node as a process and waits until it is ready; on failure returns its log.
    pub fn spawn(&self) -> Result<Process, String> {
        self.spawn_with(&[])
    }

    /// The same, with these variables of the environment.
    pub fn spawn_with(&self, environment: &[(&str, &str)]) -> Result<Process, String> {
        let mut command = Command::new(PROGRAM);
        command.envs(environment.iter().copied()).arg("serve").arg("--config").arg(self.config_file());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start");
        let log = BufReader::new(child.stderr.take().expect("log"));
        let mut process = Process { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), log };
        let mut printed = String::new();
        loop {
            let mut line = String::new();
            if process.log.read_line(&mut line).expect("log line") == 0 {
                let status = process.child.wait().expect("status");
                return Err(format!("{status}: {printed}"));
            }
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            if event["message"] == "serving" {
                process.address = event["address"].as_str().expect("address").parse().expect("address");
                // The node listens before its policy is compiled.
                while !is_ready(process.address) {}
                return Ok(process);
            }
            printed.push_str(&line);
        }
    }

    /// A service account token in the form of a Kubernetes API server.
    pub fn credential(&self) -> String {
        let now = Clock::system().now().secs();
        let claims = json!({
            "iss": ISSUER,
            "sub": "system:serviceaccount:demo:reporter",
            "aud": [FABRIC],
            "iat": now,
            "nbf": now,
            "exp": now + 3600,
            "jti": "1b4e28ba-2fa1-11d2-883f-0016d3cca427",
            "kubernetes.io": {
                "namespace": "demo",
                "serviceaccount": {"name": "reporter", "uid": "9f2d7b4e-0d6c-4d2a-8d0c-0b6f2e0a4c11"},
            },
        });
        self.issuer.sign(&claims, "JWT").expect("credential")
    }
}

pub fn is_ready(address: SocketAddr) -> bool {
    let mut answer = String::new();
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let asked = stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200")
}

/// The body of an exchange that uses `nonce`.
pub fn exchange(credential: &str, nonce: &str) -> Value {
    json!({
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": credential,
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "audience": AUDIENCE,
        "execution_scope": {"htm": "POST", "htu": AUDIENCE, "nonce": nonce},
    })
}

/// A node in this process.
pub struct Node {
    pub running: Running,
    shutdown: CancellationToken,
}

impl Node {
    /// Shuts down as on a signal.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.running.until_stopped().await.expect("stops");
    }
}

/// A node as a process, which is killed when dropped.
pub struct Process {
    pub child: Child,
    pub address: SocketAddr,
    log: BufReader<std::process::ChildStderr>,
}

impl Process {
    /// `kill -9`, and waits for the exit.
    pub fn kill(mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("end");
    }

    /// Waits for the exit. Returns status and log.
    pub fn wait_for_exit(mut self) -> (ExitStatus, String) {
        let mut printed = String::new();
        while self.log.read_line(&mut printed).expect("log") > 0 {}
        (self.child.wait().expect("end"), printed)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20)).build().expect("client")
}

/// Copies a directory and all its files except sockets, which a killed node leaves behind.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("directory");
    fs::set_permissions(to, fs::metadata(from).expect("mode").permissions()).expect("mode");
    for item in fs::read_dir(from).expect("read") {
        let item = item.expect("item");
        let target = to.join(item.file_name());
        let kind = item.file_type().expect("type");
        if kind.is_dir() {
            copy(&item.path(), &target);
        } else if kind.is_file() {
            fs::copy(item.path(), &target).expect("copy");
        }
    }
}

pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for item in fs::read_dir(directory).expect("read") {
        let path = item.expect("item").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    found
}

pub fn newest_snapshot(data: &Path) -> Option<PathBuf> {
    let items = fs::read_dir(data.join("snapshots")).ok()?;
    let paths = items.filter_map(|item| Some(item.ok()?.path()));
    let number = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("complete-")?.parse::<u64>().ok();
    paths.filter(|path| number(path).is_some()).max_by_key(number)
}
