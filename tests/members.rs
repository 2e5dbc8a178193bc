//! Members of a cluster as processes: one that waits for the others, a leader that shuts down, nodes that join and leave.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "members/federation.rs"]
mod federation;
#[path = "members/joining.rs"]
mod joining;
#[path = "support/ports.rs"]
mod ports;
#[path = "members/restoring.rs"]
mod restoring;
#[path = "support/terminal.rs"]
mod terminal;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::{Client, Method, Response};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use trust_fabric::clock::Clock;
use trust_fabric::{limits, pki};

const TRUST_DOMAIN: &str = "dev.trust-fabric.local";

struct Site {
    directory: TempDir,
    made: pki::IssuedCertificates,
    members: Vec<(u64, SocketAddr)>,
    /// Number of the members that found the cluster. The others join it.
    initial_members: usize,
}

/// A member as a process, which is killed when dropped.
struct Member {
    id: u64,
    child: Child,
    log: BufReader<ChildStderr>,
    http: String,
    https: String,
}

impl Site {
    fn new() -> Self {
        Self::with_members(3)
    }

    fn with_members(initial_members: usize) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let trust_domain = TRUST_DOMAIN.parse().expect("trust domain");
        let operator = pki::CertificateSubject::within("operator", &trust_domain).expect("caller");
        let request = pki::CertificatePlan {
            directory: directory.path().join("pki"),
            trust_domain,
            hosts: Vec::new(),
            peers: (1..=4).map(|id| NonZeroU64::new(id).expect("not 0")).collect(),
            callers: vec![operator],
            lifetime_days: 365,
        };
        let made = pki::make(&request, Clock::system().now()).expect("made");
        pki::DevelopmentIssuer::make(&request.directory).expect("an issuer");
        let members = (1..).zip(ports::free::<4>()).collect();
        Self { directory, made, members, initial_members }
    }

    fn config(&self, id: u64) -> String {
        let (_, listen) = self.members.iter().find(|(known, _)| *known == id).expect("a member");
        let (_, peer) = self.made.peers.iter().find(|(known, _)| known.get() == id).expect("a member");
        let initial = self.members.iter().take(self.initial_members);
        let is_initial = initial.clone().any(|(member, _)| *member == id);
        let members = initial.filter(|_| is_initial);
        let members = members.map(|(id, at)| format!("{{ id = {id}, address = \"{at}\" }}"));
        let members = members.collect::<Vec<_>>().join(", ");
        format!(
            r#"
            [node]
            id = {id}
            data_dir = "{data}"
            [listen]
            http = "127.0.0.1:0"
            https = "127.0.0.1:0"
            shutdown_delay = "1s"
            [tls]
            certificate = "{certificate}"
            private_key = "{private_key}"
            client_ca = "{ca}"
            [cluster]
            listen = "{listen}"
            certificate = "{peer_certificate}"
            private_key = "{peer_private_key}"
            ca = "{ca}"
            members = [{members}]
            [log]
            filter = "error,trust_fabric::node=info,trust_fabric::cluster=info"
            [fabric]
            issuer = "https://localhost:8694"
            trust_domain = "{TRUST_DOMAIN}"
            [policy]
            directory = "{policies}"
            [[callers]]
            id = "spiffe://{TRUST_DOMAIN}/operator"
            capabilities = ["exchange", "tools.manage", "tools.read", "tools.verify", "events.read", "cluster.admin"]
            [[issuers]]
            issuer = "http://127.0.0.1:8698"
            subject = "kubernetes"
            keys_file = "{keys}"
            algorithms = ["ES256"]
            trust_domains = ["{TRUST_DOMAIN}"]
            "#,
            data = self.directory.path().join(format!("node-{id}")).display(),
            certificate = self.made.node.certificate.display(),
            private_key = self.made.node.private_key.display(),
            ca = self.made.ca.certificate.display(),
            keys = self.directory.path().join("pki/issuer-keys.json").display(),
            peer_certificate = peer.certificate.display(),
            peer_private_key = peer.private_key.display(),
            policies = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies").display(),
        )
    }

    /// Writes the configuration of a node.
    fn configured(&self, id: u64) -> PathBuf {
        let file = self.directory.path().join(format!("node-{id}.toml"));
        fs::write(&file, self.config(id)).expect("configuration");
        file
    }

    /// Starts a member and waits until it listens.
    fn start(&self, id: u64) -> Member {
        Self::start_with(id, &self.configured(id))
    }

    /// The same with this configuration.
    fn start_with(id: u64, file: &Path) -> Member {
        let mut child = serve(file).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start");
        let log = BufReader::new(child.stderr.take().expect("log"));
        let mut member = Member { id, child, log, http: String::new(), https: String::new() };
        let listening = member.wait_for_log("listening");
        let address = |name: &str| listening[name].as_str().expect("address").to_owned();
        member.http = format!("http://{}", address("address"));
        member.https = format!("https://{}", address("tls_address"));
        member
    }

    /// Runs the program with the `admin.sock` of a member. Returns whether it succeeded, and its output.
    fn over_admin_socket(&self, id: u64, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trust-fabric"));
        let data = self.directory.path().join(format!("node-{id}"));
        let ran = command.args(arguments).arg("--data-dir").arg(data).output().expect("runs");
        (ran.status.success(), String::from_utf8([ran.stdout, ran.stderr].concat()).expect("text"))
    }

    fn ca(&self) -> reqwest::Certificate {
        reqwest::Certificate::from_pem(&fs::read(&self.made.ca.certificate).expect("a file")).expect("CA")
    }

    /// A client with an operator's certificate.
    fn operator(&self) -> Client {
        let read = |path: &Path| fs::read(path).expect("a file");
        let (_, operator) = &self.made.callers[0];
        let pem = [read(&operator.private_key), read(&operator.certificate)].concat();
        let identity = reqwest::Identity::from_pem(&pem).expect("identity");
        let client = client().identity(identity).tls_certs_only([self.ca()]);
        client.build().expect("client")
    }
}

fn serve(file: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trust-fabric"));
    command.arg("serve").arg("--config").arg(file);
    command
}

fn client() -> reqwest::ClientBuilder {
    Client::builder().http1_only().no_proxy().timeout(Duration::from_secs(30))
}

impl Member {
    /// Waits for a log message. Returns its event.
    fn wait_for_log(&mut self, message: &str) -> Value {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            assert!(self.log.read_line(&mut line).expect("log") > 0, "no log message {message:?}: {all}");
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            if event["message"] == message {
                return event;
            }
            all.push_str(&line);
        }
    }

    async fn get(&self, client: &Client, path: &str) -> Response {
        client.get(format!("{}{path}", self.http)).send().await.expect("answer")
    }

    /// Shuts the member down and waits for its exit. Returns the log of the shutdown.
    fn stop(mut self) -> String {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("signalled");
        let mut printed = String::new();
        while self.log.read_line(&mut printed).expect("log") > 0 {}
        self.child.wait().expect("end");
        printed
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

async fn json_of(answer: Response) -> Value {
    serde_json::from_str(&answer.text().await.expect("text")).expect("JSON")
}

/// Checks the responses of a member that waits for `missing`.
async fn assert_waits_for(member: &Member, client: &Client, missing: &str) {
    assert_eq!(member.get(client, "/livez").await.status(), 200);
    for path in ["/readyz", "/v1/sys/health"] {
        let answer = member.get(client, path).await;
        assert_eq!(answer.status(), 503, "{path}");
        let answer = json_of(answer).await;
        assert_eq!(answer["missing"], json!([missing]), "{path}: {answer}");
        assert_eq!(answer["status"], "fail", "{path}");
    }
    for path in ["/v1/tools", "/.well-known/oauth-authorization-server", "/nothing"] {
        let answer = member.get(client, path).await;
        assert_eq!(answer.status(), 503, "{path}");
        assert!(answer.headers().contains_key("retry-after"), "{path}");
        let id = answer.headers()["x-request-id"].to_str().expect("text").to_owned();
        let answer = json_of(answer).await;
        assert_eq!((&answer["error"], &answer["request_id"]), (&json!("server_error"), &json!(id)), "{path}");
    }
}

/// Regression: such a member opened no port and logged nothing.
#[tokio::test]
async fn lone_member_reports_why_it_waits() {
    let site = Site::new();
    let client = client().build().expect("client");
    let mut member = site.start(2);
    loop {
        let printed = member.wait_for_log("this node is not ready: it is starting");
        let waits_for = printed["waits_for"].as_str().unwrap_or_default();
        if printed["missing"] == "members" && waits_for.contains("node 1") && waits_for.contains("node 3") {
            break;
        }
    }
    assert_waits_for(&member, &client, "members").await;
    let (is_ready, health) = site.over_admin_socket(2, &["health"]);
    assert!(!is_ready && health.contains("the node is not ready: no members"), "{health}");
    let (_, metrics) = site.over_admin_socket(2, &["health", "--metrics"]);
    assert!(metrics.contains("this node is starting: it has no members yet"), "{metrics}");
    let (_, absent) = site.over_admin_socket(3, &["health"]);
    assert!(absent.contains("node-3/admin.sock cannot be reached: No such file or directory"), "{absent}");
    let jwks = member.get(&client, "/v1/identity/jwks").await;
    assert_eq!(jwks.status(), 503, "it knows no keys: none at all would be a wrong answer");
    let printed = member.stop();
    assert!(printed.contains("it was stopped before it had recovered"), "{printed}");
}

/// It would serve alone and be ready, while the others wait for it.
#[test]
fn cluster_of_one_is_not_started_with_members() {
    let site = Site::new();
    let file = site.configured(1);
    let several = site.config(1);
    let (before, section) = several.split_once("[cluster]").expect("a section");
    let (_, after) = section.split_once("[log]").expect("a section");
    fs::write(&file, format!("{before}[log]{after}")).expect("configuration");
    let mut alone = Site::start_with(1, &file);
    alone.wait_for_log("this node is ready");
    alone.stop();
    let output = serve(&site.configured(1)).output().expect("ends");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && log.contains("the log belongs to a cluster of one"), "{log}");
}

async fn register(member: &Member, operator: &Client, number: usize) -> u16 {
    let tool = json!({"tool_id": format!("tool-{number}"), "name": "a tool", "protocols": ["mcp"]});
    let url = format!("{}/v1/tools", member.https);
    let asked = operator.request(Method::POST, url).header("content-type", "application/json");
    asked.body(tool.to_string()).send().await.expect("answer").status().as_u16()
}

/// Three members that are ready, and the position of the leader.
async fn ready(site: &Site, operator: &Client) -> (Vec<Member>, usize) {
    let mut members: Vec<Member> = (1..=3).map(|id| site.start(id)).collect();
    for member in &mut members {
        member.wait_for_log("serving");
    }
    let anonymous = client().build().expect("client");
    for member in &members {
        while member.get(&anonymous, "/readyz").await.status() != 200 {}
    }
    for (at, member) in members.iter().enumerate() {
        let health = operator.get(format!("{}/v1/sys/health", member.https)).send().await.expect("answer");
        if json_of(health).await["role"] == "leader" {
            return (members, at);
        }
    }
    panic!("no member leads");
}

/// Regression: a planned stop caused an election, and writes waited for it.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the log is read beside the writes")]
async fn leader_hands_over_before_it_stops() {
    let site = Site::new();
    let operator = site.operator();
    let (mut members, leads) = ready(&site, &operator).await;
    let stopping = members.remove(leads);
    let anonymous = client().build().expect("client");
    let stopped = tokio::task::spawn_blocking(|| stopping.stop());
    let mut number = 0;
    while !stopped.is_finished() {
        for member in &members {
            assert_eq!(register(member, &operator, number).await, 201, "{number}");
            number += 1;
        }
    }
    let printed = stopped.await.expect("stopped");
    assert!(printed.contains("transferring leadership"), "{printed}");
    assert!(number > 0);

    // The last member that restarts alone knows the keys of its cluster, and serves them for a limited time.
    let known = members[0].get(&anonymous, "/v1/identity/jwks").await.text().await.expect("text");
    let id = members[0].id;
    drop(members);
    let mut alone = site.start(id);
    while alone.wait_for_log("this node is not ready: it is starting")["missing"] != "leader" {}
    assert_waits_for(&alone, &anonymous, "leader").await;
    // Regression: the status without a leader could not be read from the node that had been restarted.
    let (_, health) = site.over_admin_socket(id, &["health"]);
    assert!(health.contains("the node is not ready: no leader"), "{health}");
    let (is_shown, status) = site.over_admin_socket(id, &["cluster", "status"]);
    let has_none = status.contains("no leader") || status.contains("not confirmed");
    assert!(is_shown && has_none && status.contains("follower"), "{status}");
    let jwks = alone.get(&anonymous, "/v1/identity/jwks").await;
    assert_eq!(jwks.status(), 200);
    assert_eq!(jwks.text().await.expect("text"), known);
}

/// Regression: the port was closed while a load balancer still sent requests to it, and before leadership had moved.
#[tokio::test]
async fn stopping_leader_serves_and_is_not_ready() {
    let site = Site::new();
    let operator = site.operator();
    let (mut members, leads) = ready(&site, &operator).await;
    let mut stopping = members.remove(leads);
    // Regression: this ended the process at once.
    kill_process(Pid::from_child(&stopping.child), Signal::HUP).expect("signalled");
    kill_process(Pid::from_child(&stopping.child), Signal::TERM).expect("signalled");
    // No connection is kept: each request shows that the port is open.
    let anonymous = client().pool_max_idle_per_host(0).build().expect("client");
    while stopping.get(&anonymous, "/readyz").await.status() == 200 {}
    let health = operator.get(format!("{}/readyz", stopping.https)).send().await.expect("answer");
    assert_eq!(health.status(), 503);
    let health = json_of(health).await;
    assert!(health["missing"].as_array().expect("list").contains(&json!("continued service")), "{health}");
    stopping.wait_for_log("leader changed");
    assert_eq!(register(&stopping, &operator, 0).await, 201);
    assert!(stopping.child.wait().expect("end").success());
    for member in &members {
        assert_eq!(register(member, &operator, 1 + usize::try_from(member.id).expect("small")).await, 201);
    }
}

/// A paused member can hold its lease, and with it a tool as it was, for up to D.
#[tokio::test]
async fn tool_changes_wait_for_the_lease_of_a_paused_member() {
    let site = Site::new();
    let operator = site.operator();
    let (members, leads) = ready(&site, &operator).await;
    let (leader, paused) = (&members[leads], &members[(leads + 1) % 3]);
    assert_eq!(register(leader, &operator, 0).await, 201);
    let tool = json!({"tool_id": "tool-0", "name": "another", "protocols": ["mcp"]}).to_string();
    for (method, body, status) in [(Method::PUT, tool, 200), (Method::DELETE, String::new(), 204)] {
        while paused.get(&operator, "/readyz").await.status() != 200 {}
        let clock = Clock::system();
        let begun = clock.boot();
        kill_process(Pid::from_child(&paused.child), Signal::STOP).expect("paused");
        let request = operator.request(method.clone(), format!("{}/v1/tools/tool-0", leader.https));
        let request = request.header("content-type", "application/json").body(body);
        let answer = request.send().await.expect("answer");
        let waited = clock.boot().saturating_sub(begun);
        kill_process(Pid::from_child(&paused.child), Signal::CONT).expect("resumed");
        assert_eq!(answer.status(), status, "{method}: {}", answer.text().await.expect("text"));
        // The member renewed its lease a moment before it was paused.
        assert!(waited >= limits::FRESHNESS_LEASE / 2, "{method}: {waited:?}");
    }
}

/// Posts an exchange that is denied to `member` until `denied`, the feed of another one, shows it.
async fn denial_shown(member: &Member, operator: &Client, feed: &mut Response) -> Value {
    let token = "eyJhbGciOiJFUzI1NiIsImtpZCI6ImEifQ.eyJpc3MiOiJodHRwczovL2EuZXhhbXBsZSJ9.AAAA";
    let body = json!({
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": token,
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "audience": "https://tools.example",
    });
    let url = format!("{}/v1/exchange/token", member.https);
    let mut read = String::new();
    loop {
        let posted = operator.post(&url).header("content-type", "application/json").body(body.to_string());
        assert_eq!(posted.send().await.expect("answer").status(), 400);
        let Ok(chunk) = tokio::time::timeout(limits::FEED_ACTIVITY_INTERVAL, feed.chunk()).await else {
            continue;
        };
        read.push_str(&String::from_utf8_lossy(&chunk.expect("the feed").expect("a chunk")));
        let unit_id = format!("\"unit_id\":\"node-{}\"", member.id);
        let data = read.lines().filter_map(|line| line.strip_prefix("data: "));
        if let Some(data) = data.clone().find(|data| data.contains(&unit_id)) {
            assert!(!data.contains("\"id\":"), "{data}");
            return serde_json::from_str(data).expect("JSON");
        }
    }
}

#[tokio::test]
async fn live_feed_shows_the_denials_of_every_member() {
    let site = Site::new();
    let operator = site.operator();
    let (members, _) = ready(&site, &operator).await;
    let read = operator.get(format!("{}/v1/events?types=denial,exchange", members[0].https));
    let mut feed = read.header("accept", "text/event-stream").send().await.expect("answer");
    assert_eq!(feed.status(), 200);
    for member in &members {
        let shown = denial_shown(member, &operator, &mut feed).await;
        assert_eq!((&shown["type"], &shown["result"]), (&json!("denial"), &json!("denied")), "{shown}");
    }
}
