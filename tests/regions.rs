//! Fabrics that read each other's ledgers over TLS, each a cluster of one node in this process.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "regions/calls.rs"]
mod calls;
#[path = "regions/copies.rs"]
mod copies;
#[path = "regions/damage.rs"]
mod damage;
#[path = "regions/fake_peer.rs"]
mod fake_peer;
#[path = "regions/heavy_peers.rs"]
mod heavy_peers;
#[path = "support/ports.rs"]
mod ports;
#[path = "regions/strict.rs"]
mod strict;
#[path = "regions/tokens.rs"]
mod tokens;

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use trust_fabric::clock::Clock;
use trust_fabric::config::{self, Overrides};
use trust_fabric::{node, pki};

const PROGRAM: &str = env!("CARGO_BIN_EXE_trust-fabric");
const IDP: &str = "https://idp.example";
/// Number of requests after which a condition is taken for one that never holds.
const LOOKS_MAX: usize = 100_000;

/// A fabric of one node. Its issuer is `https://<name>.example`, its trust domain `<name>.example`.
struct Fabric {
    name: String,
    directory: TempDir,
    made: pki::IssuedCertificates,
    https: SocketAddr,
    /// The sections of its peers.
    peers: String,
    /// Its policies.
    policies: PathBuf,
    running: Option<(thread::JoinHandle<Result<(), node::Error>>, CancellationToken)>,
    operator: Client,
    clock: Clock,
}

/// A peer in the configuration of a fabric.
struct PeerSection<'s> {
    name: &'s str,
    of: &'s Fabric,
    more: &'s str,
}

impl Fabric {
    fn new(name: &str, https: SocketAddr) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let trust_domain: trust_fabric::id::TrustDomain =
            format!("{name}.example").parse().expect("a trust domain");
        let callers = ["operator", "federation"];
        let callers =
            callers.map(|name| pki::CertificateSubject::within(name, &trust_domain).expect("a caller"));
        let request = pki::CertificatePlan {
            directory: directory.path().join("pki"),
            trust_domain,
            hosts: Vec::new(),
            peers: Vec::new(),
            callers: callers.into(),
            lifetime_days: 30,
        };
        let made = pki::make(&request, Clock::system().now()).expect("certificates");
        pki::DevelopmentIssuer::make(&request.directory).expect("an issuer");
        write_bundle(directory.path(), &made.ca.certificate);
        let operator = client_of(&made.callers[0].1, &made.ca.certificate);
        let name = name.to_owned();
        let policies = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies");
        Self {
            name,
            directory,
            made,
            https,
            peers: String::new(),
            policies,
            running: None,
            operator,
            clock: Clock::system(),
        }
    }

    fn issuer(&self) -> String {
        format!("https://{}.example", self.name)
    }

    /// Its certificate in calls to peers.
    fn caller_of_peers(&self) -> &pki::IssuedCertificate {
        &self.made.callers[1].1
    }

    fn bundle(&self) -> PathBuf {
        self.directory.path().join("bundle.json")
    }

    /// Adds a peer, which takes effect with the next start.
    fn add_peer(&mut self, peer: &PeerSection<'_>) {
        let PeerSection { name, of, more } = peer;
        write!(
            self.peers,
            r#"
            [[federation.peers]]
            name = "{name}"
            issuer = "{issuer}"
            trust_domains = ["{domain}.example"]
            endpoints = ["https://{endpoint}"]
            ids = ["spiffe://{domain}.example/node", "spiffe://{domain}.example/federation"]
            bundle_file = "{bundle}"
            stale_after = "2s"
            {more}
            "#,
            issuer = of.issuer(),
            domain = of.name,
            endpoint = of.https,
            bundle = of.bundle().display(),
        )
        .expect("a text");
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn config(&self) -> String {
        let pki = self.directory.path().join("pki");
        format!(
            r#"
            [node]
            id = 1
            data_dir = "{data}"
            [listen]
            http = "127.0.0.1:0"
            https = "{https}"
            [tls]
            certificate = "{certificate}"
            private_key = "{private_key}"
            client_ca = "{ca}"
            [fabric]
            issuer = "{issuer}"
            trust_domain = "{name}.example"
            [policy]
            directory = "{policies}"
            [outbound]
            allowed_networks = ["127.0.0.0/8"]
            [limits]
            requests_per_second_per_caller = 1000000
            [[callers]]
            id = "spiffe://{name}.example/operator"
            capabilities = [
                "cluster.admin", "metrics.read", "exchange", "identity.issue", "tools.manage", "tools.read", "tools.verify",
            ]
            [[issuers]]
            issuer = "http://127.0.0.1:8698"
            subject = "kubernetes"
            keys_file = "{keys}"
            algorithms = ["ES256"]
            trust_domains = ["{name}.example"]
            [[issuers]]
            issuer = "{IDP}"
            subject = "opaque"
            keys_file = "{keys}"
            trust_domains = ["idp.example"]
            [federation]
            certificate = "{federation_certificate}"
            private_key = "{federation_private_key}"
            {peers}
            "#,
            data = self.data().display(),
            https = self.https,
            certificate = self.made.node.certificate.display(),
            private_key = self.made.node.private_key.display(),
            federation_certificate = self.caller_of_peers().certificate.display(),
            federation_private_key = self.caller_of_peers().private_key.display(),
            ca = self.made.ca.certificate.display(),
            issuer = self.issuer(),
            name = self.name,
            policies = self.policies.display(),
            keys = pki.join("issuer-keys.json").display(),
            peers = self.peers,
        )
    }

    /// Starts its node, and waits until it is ready.
    async fn start(&mut self) {
        let file = self.directory.path().join("trust-fabric.toml");
        fs::write(&file, self.config()).expect("configuration");
        let config = config::load(Some(&file), &mut std::iter::empty(), &Overrides::default());
        let config = config.unwrap_or_else(|error| panic!("configuration: {error}"));
        let shutdown = CancellationToken::new();
        let (start, started) = oneshot::channel();
        self.running = Some((run_in_thread((config, self.clock.clone()), shutdown.clone(), start), shutdown));
        if started.await.is_err() {
            let thread = self.running.take().map(|(thread, _)| thread.join());
            panic!("the node does not start: {thread:?}");
        }
        until("ready", || async {
            let answer = self.operator.get(self.url("/readyz")).send().await.ok()?;
            (answer.status() == 200).then_some(())
        })
        .await;
    }

    async fn stop(&mut self) {
        if let Some((thread, shutdown)) = self.running.take() {
            shutdown.cancel();
            wait_for(thread).await;
        }
    }

    fn begin_stop(&self) {
        if let Some((_, shutdown)) = &self.running {
            shutdown.cancel();
        }
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.https)
    }

    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        call(&self.operator, method, self.url(path), body).await
    }

    async fn get(&self, path: &str) -> Value {
        let (status, answer) = self.call(Method::GET, path, None).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// Revokes and blocks an address: two entries of the ledger.
    async fn revoke(&self, name: &str) -> u64 {
        let body = json!({"email": format!("{name}@x.example"), "issuer": IDP, "block": true});
        let (status, answer) = self.call(Method::POST, "/v1/revocations", Some(&body)).await;
        assert_eq!(status, 202, "{answer}");
        answer["index"].as_u64().expect("an index")
    }

    /// The hash of its own ledger, or of the copy of another's, with the number of entries.
    async fn hash(&self, query: &str) -> (Value, u64) {
        let hash = self.get(&format!("/v1/federation/revocation-hash{query}")).await;
        (hash["hash"].clone(), hash["count"].as_u64().expect("a count"))
    }

    /// A peer, as this fabric sees it.
    async fn peer(&self, name: &str) -> Value {
        let peers = self.get("/v1/federation/peers").await;
        let peer = peers.as_array().expect("peers").iter().find(|peer| peer["name"] == name);
        peer.unwrap_or_else(|| panic!("{name} of {peers}")).clone()
    }

    /// Waits until a peer is in a state with a number of entries and blocks.
    async fn until_peer(&self, name: &str, state: &str, entries: u64) -> Value {
        let what = format!("{name} {state} with {entries} entries at {}", self.name);
        until(&what, || async {
            let peer = self.peer(name).await;
            let count =
                peer["entries"].as_u64().expect("a count") + peer["blocks"].as_u64().expect("a count");
            (peer["state"] == state && count == entries).then_some(peer)
        })
        .await
    }

    async fn set_peer(&self, name: &str, verb: &str) -> (u16, Value) {
        self.call(Method::POST, &format!("/v1/federation/peers/{name}/{verb}"), None).await
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if let Some((thread, shutdown)) = self.running.take() {
            shutdown.cancel();
            // A failed node has already failed the test.
            drop(thread.join());
        }
    }
}

/// Runs on its own runtime, so that the test can wait for its end.
#[expect(clippy::disallowed_methods, reason = "a test's node lives beside the test")]
fn run_in_thread(
    (config, clock): (config::Config, Clock),
    shutdown: CancellationToken,
    started: oneshot::Sender<()>,
) -> thread::JoinHandle<Result<(), node::Error>> {
    let run = async move {
        let running = node::start(config, clock, Path::new(PROGRAM), shutdown).await?;
        started.send(()).expect("the test waits");
        running.until_stopped().await
    };
    thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("runtime").block_on(run)
    })
}

#[expect(clippy::disallowed_methods, reason = "the test goes on meanwhile")]
async fn wait_for(thread: thread::JoinHandle<Result<(), node::Error>>) {
    let ended = tokio::task::spawn_blocking(|| thread.join()).await.expect("joined");
    ended.expect("no panic").expect("a clean stop");
}

/// Looks until there is something.
async fn until<T, F: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> F) -> T {
    for _ in 0..LOOKS_MAX {
        if let Some(found) = look().await {
            return found;
        }
        tokio::task::yield_now().await;
    }
    panic!("never: {what}");
}

async fn call(client: &Client, method: Method, url: String, body: Option<&Value>) -> (u16, Value) {
    let mut request = client.request(method, &url);
    if let Some(body) = body {
        request = request.header("content-type", "application/json").body(body.to_string());
    }
    let answer = request.send().await.unwrap_or_else(|error| panic!("{url}: {error:?}"));
    let status = answer.status().as_u16();
    let text = answer.text().await.expect("text");
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// A client with a certificate that trusts a CA.
fn client_of(own: &pki::IssuedCertificate, ca: &Path) -> Client {
    let read = |path: &Path| fs::read(path).expect("a file");
    let pem = [read(&own.private_key), read(&own.certificate)].concat();
    let identity = reqwest::Identity::from_pem(&pem).expect("identity");
    let ca = reqwest::Certificate::from_pem(&read(ca)).expect("CA");
    // The end of a fabric blocks the test, and with it the answer of an HTTP/2 client to the end of its connection.
    let client =
        Client::builder().http1_only().no_proxy().timeout(Duration::from_secs(30)).identity(identity);
    client.tls_certs_only([ca]).build().expect("client")
}

/// The SPIFFE bundle of a CA.
fn write_bundle(directory: &Path, ca: &Path) {
    let pem = fs::read_to_string(ca).expect("CA");
    let base64: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    assert!(STANDARD.decode(&base64).is_ok(), "one certificate");
    let bundle = json!({"keys": [{"kty": "EC", "use": "x509-svid", "x5c": [base64]}]});
    fs::write(directory.join("bundle.json"), bundle.to_string()).expect("bundle");
}

/// Two fabrics, the second of which reads the first.
async fn eu_read_by_us() -> (Fabric, Fabric) {
    let [one, other] = ports::free::<2>();
    let (mut eu, mut us) = (Fabric::new("eu", one), Fabric::new("us", other));
    eu.add_peer(&PeerSection { name: "us", of: &us, more: "serve = true" });
    us.add_peer(&PeerSection { name: "eu", of: &eu, more: "accept = true" });
    eu.start().await;
    us.start().await;
    (eu, us)
}
