//! A tool server of `examples/` as a process, behind a proxy with which a test changes calls.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use trust_fabric::clock::Clock;

use super::python::python;
use super::{JWT, Node, credential, with};

/// The marker of a tool call. Requests without it pass unchanged, so that the protocol's handshake does not
/// count as a call.
const ASKED: &[u8] = b"Dresden";
/// Replacement of the same length.
const CHANGED: &[u8] = b"Leipzig";

/// Effect of the proxy on a call.
#[derive(Clone)]
pub enum Interference {
    Nothing,
    /// Changes the body.
    BodyChanged,
    /// Sends the call twice and returns the second answer.
    Repeated,
    /// Advances the clock by so many seconds first.
    Delayed(Clock, u64),
    /// Replaces the token.
    WithToken(String),
}

/// A server of `examples/`, registered with the node and granted by its policy.
pub struct ToolServer {
    /// Its registry entry. `resource_uri` is the address of the proxy.
    pub tool: Value,
    name: &'static str,
    directory: TempDir,
    child: Child,
    on_the_way: Arc<Mutex<Interference>>,
    /// Statuses of the responses to calls, in order.
    statuses: Arc<Mutex<Vec<u16>>>,
}

/// Result of the client of an example.
pub struct Ended {
    pub printed: String,
    /// Status and challenge of the refusal, or the reason why there was none.
    pub refusal: Option<String>,
}

impl Drop for ToolServer {
    fn drop(&mut self) {
        // Both fail only if it has exited already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl ToolServer {
    /// `examples/<name>/server.py`.
    pub async fn start(node: &Node, name: &'static str) -> Self {
        Self::start_as(node, name, &environment(node, "gateway")).await
    }

    /// The same with additional environment variables.
    pub async fn start_as(node: &Node, name: &'static str, environment: &[(&str, String)]) -> Self {
        let before = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let tool = entry(name, before.local_addr().expect("address"));
        admit(node, &tool).await;
        let answer = node.post("/v1/tools", &tool).await;
        assert_eq!(answer.status, 201, "{}", answer.body);

        let directory = tempfile::tempdir().expect("directory");
        let file = directory.path().join("tool.json");
        std::fs::write(&file, tool.to_string()).expect("write");
        let mut child = program(&format!("{name}/server.py"), environment)
            .args(["--port", "0", "--tool"])
            .arg(&file)
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the server");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
        let port = line.trim().strip_prefix("listening on port ").and_then(|port| port.parse().ok());
        let port: u16 = port.unwrap_or_else(|| panic!("{name}: {line:?}"));
        let server = Self {
            tool,
            name,
            directory,
            child,
            on_the_way: Arc::new(Mutex::new(Interference::Nothing)),
            statuses: Arc::default(),
        };
        server.carry(before, (Ipv4Addr::LOCALHOST, port).into());
        server
    }

    /// Address of the proxy.
    pub fn url(&self) -> &str {
        self.tool["resource_uri"].as_str().expect("resource_uri")
    }

    /// Sets the effect on later calls.
    pub fn set_interference(&self, what: Interference) {
        *self.on_the_way.lock().expect("lock") = what;
    }

    pub fn statuses(&self) -> Vec<u16> {
        self.statuses.lock().expect("lock").clone()
    }

    /// Runs `examples/<name>/client.py` as the reporter.
    pub fn call(&self, node: &Node, arguments: &[&str]) -> Ended {
        let file = self.directory.path().join("credential");
        std::fs::write(&file, node.issuers.reporter()).expect("write");
        let output = program(&format!("{}/client.py", self.name), &environment(node, "gateway"))
            .args(["--url", self.url(), "--credential"])
            .arg(&file)
            .args(arguments)
            .output()
            .expect("run the client");
        let printed = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let (printed, complaint) = (printed(&output.stdout), printed(&output.stderr));
        let refusal = complaint.lines().last().and_then(|line| line.strip_prefix("refused: "));
        assert_eq!(output.status.success(), refusal.is_none(), "{}: {printed} {complaint}", self.name);
        Ended { printed, refusal: refusal.map(str::to_owned) }
    }

    #[expect(clippy::disallowed_methods, reason = "it carries for as long as the test's process lives")]
    fn carry(&self, before: TcpListener, behind: SocketAddr) {
        let (on_the_way, statuses) = (Arc::clone(&self.on_the_way), Arc::clone(&self.statuses));
        thread::spawn(move || {
            for client in before.incoming() {
                let (on_the_way, statuses) = (Arc::clone(&on_the_way), Arc::clone(&statuses));
                let client = client.expect("a connection");
                thread::spawn(move || pass(client, behind, &on_the_way, &statuses));
            }
        });
    }
}

/// Passes one request and its response. A connection carries no more.
fn pass(
    mut client: TcpStream,
    behind: SocketAddr,
    on_the_way: &Mutex<Interference>,
    statuses: &Mutex<Vec<u16>>,
) {
    let Some((mut head, mut body)) = read_request(&mut client) else { return };
    let asked = body.windows(ASKED.len()).position(|window| window == ASKED);
    if let Some(at) = asked {
        let what = on_the_way.lock().expect("lock").clone();
        match what {
            Interference::Nothing => {}
            Interference::BodyChanged => body[at..at + CHANGED.len()].copy_from_slice(CHANGED),
            Interference::Repeated => drop(forward(behind, &head, &body, statuses)),
            Interference::Delayed(clock, secs) => clock.advance(Duration::from_secs(secs)),
            Interference::WithToken(token) => {
                let lines = head.lines().filter(|line| !is_named(line, "authorization"));
                head = lines
                    .chain([format!("authorization: Bearer {token}").as_str()])
                    .fold(String::new(), |head, line| head + line + "\r\n");
            }
        }
    }
    let uncounted = Mutex::default();
    let answer = forward(behind, &head, &body, if asked.is_some() { statuses } else { &uncounted });
    // The client may have gone.
    drop(client.write_all(&answer));
}

/// The head without its final empty line, and the body.
fn read_request(client: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut reader = BufReader::new(client);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line.trim().is_empty() {
            break;
        }
        if is_named(&line, "content-length") {
            length = line.split(':').nth(1)?.trim().parse().ok()?;
        }
        // The next request uses another connection.
        if !is_named(&line, "connection") {
            head.push_str(&line);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn is_named(line: &str, name: &str) -> bool {
    line.split_once(':').is_some_and(|(given, _)| given.eq_ignore_ascii_case(name))
}

fn forward(behind: SocketAddr, head: &str, body: &[u8], statuses: &Mutex<Vec<u16>>) -> Vec<u8> {
    let mut server = TcpStream::connect(behind).expect("the server listens");
    let request = [head.as_bytes(), b"connection: close\r\n\r\n", body].concat();
    server.write_all(&request).expect("write");
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).expect("an answer");
    statuses.lock().expect("lock").push(super::raw::status(&String::from_utf8_lossy(&answer)));
    answer
}

/// A proxy to the node that drops the first response to a verification and counts dropped responses.
#[expect(clippy::disallowed_methods, reason = "it carries for as long as the test's process lives")]
pub fn losing_the_first_verdict(node: &Node, lost: Arc<AtomicUsize>) -> String {
    let before = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let url = format!("http://{}", before.local_addr().expect("address"));
    let behind = node.address();
    thread::spawn(move || {
        for client in before.incoming() {
            let mut client = client.expect("a connection");
            let Some((head, body)) = read_request(&mut client) else { continue };
            let lines = head.lines().filter(|line| !is_named(line, "host"));
            let head = lines.collect::<Vec<_>>().join("\r\n");
            let answer = forward(behind, &format!("{head}\r\nhost: {behind}\r\n"), &body, &Mutex::default());
            let is_verdict = head.starts_with("POST /v1/mcp/verify");
            if is_verdict && lost.load(Ordering::SeqCst) == 0 {
                assert_eq!(super::raw::status(&String::from_utf8_lossy(&answer)), 200, "it passed");
                lost.store(1, Ordering::SeqCst);
            } else {
                client.write_all(&answer).expect("write");
            }
        }
    });
    url
}

/// The registry entry of an example whose clients use `address`.
fn entry(name: &str, address: SocketAddr) -> Value {
    let text = std::fs::read_to_string(example(&format!("{name}/tool.json"))).expect("an entry");
    let entry: Value = serde_json::from_str(&text).expect("JSON");
    let path = entry["resource_uri"].as_str().and_then(|uri| uri.splitn(4, '/').nth(3)).expect("a path");
    let url = format!("http://{address}/{path}");
    with(&entry, &json!({"resource_uri": url, "allowed_targets": [url]}))
}

/// Grants the workloads of `demo` tokens for this tool.
async fn admit(node: &Node, tool: &Value) {
    let operator = node.administrator();
    let headers = [("content-type", "application/json")];
    let bundle = node.call_over(&operator, "GET", "/v1/sys/policy", &[], "").await.json();
    let mut sources = bundle["sources"].clone();
    let files = sources.as_array_mut().expect("sources");
    let file = files.iter_mut().find(|file| file["path"] == "data.json").expect("tables");
    let mut tables: Value = serde_json::from_str(file["text"].as_str().expect("text")).expect("JSON");
    let exchange = &mut tables["exchange"];
    let url = tool["resource_uri"].as_str().expect("resource_uri");
    exchange["audiences"][url] =
        json!({"capabilities": tool["required_capabilities"], "execution_required": true});
    let namespace = &mut exchange["namespaces"][super::TRUST_DOMAIN]["demo"];
    namespace["audiences"].as_array_mut().expect("audiences").push(json!(url));
    file["text"] = json!(tables.to_string());
    let order = json!({"sources": sources}).to_string();
    let answer = node.call_over(&operator, "PUT", "/v1/sys/policy", &headers, order).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Environment in which an example reaches the node, as one of [`super::node::CALLERS`] if the node has a
/// table of callers.
pub fn environment(node: &Node, caller: &str) -> Vec<(&'static str, String)> {
    if !node.is_secure() {
        return vec![("FABRIC_URL", node.base().to_owned())];
    }
    let path = |path: &Path| path.display().to_string();
    let pair = node.pair(caller);
    vec![
        ("FABRIC_URL", node.tls_base().to_owned()),
        ("FABRIC_CA", path(&node.certificates().ca.certificate)),
        ("FABRIC_CERT", path(&pair.certificate)),
        ("FABRIC_KEY", path(&pair.private_key)),
    ]
}

/// Path of a file of `examples/`.
pub fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(path)
}

fn program(path: &str, environment: &[(&str, String)]) -> Command {
    let mut command = Command::new(python());
    // `-B`: no compiled Python in the checkout.
    command.arg("-B").arg(example(path)).envs(environment.iter().map(|(name, value)| (name, value)));
    command
}

/// A token of the reporter for another audience, bound to a call of this tool.
pub async fn token_for_another(node: &Node, audience: &str, htu: &str) -> String {
    let request = with(
        &credential(&node.issuers.reporter(), JWT),
        &json!({"audience": audience, "execution_scope": {"htm": "POST", "htu": htu}}),
    );
    node.granted(&request).await.token
}
