//! A node in this process, on its own port, with a clock that tests advance.

use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use trust_fabric::clock::{Clock, Timestamp};
use trust_fabric::config::{self, Config, Overrides};
use trust_fabric::state::State;
use trust_fabric::{node, pki};

use super::certificates::development_pki;
use super::description::Description;
use super::feed::Feed;
use super::issuer::bundle;
use super::{FABRIC, IDP, Issuers, MIGRATE, Minted, NOW_SECS, OTHER_IDP, Response, TOOL, TRUST_DOMAIN, with};

const PROGRAM: &str = env!("CARGO_BIN_EXE_trust-fabric");

/// Creates a data directory at the path.
pub type CreateData = Box<dyn FnOnce(&Path)>;

/// Deviations from the usual node.
#[derive(Default)]
pub struct Setup {
    /// Replaces the shipped `policies/exchange.rego`.
    pub rego: Option<&'static str>,
    /// Files of the shipped policy to leave out: `identity.rego`, `signals.rego`.
    pub without: &'static [&'static str],
    /// Configures no signal issuer.
    pub without_signal_issuers: bool,
    /// Additional lines of the configuration file.
    pub more_config: String,
    /// `outbound.allowed_networks`.
    pub allowed_networks: &'static [&'static str],
    /// Replaces [`NOW_SECS`].
    pub now_secs: Option<i64>,
    /// TLS and a table of callers, as in production, instead of development mode.
    pub is_secure: bool,
    /// Creates the data directory, before the node starts.
    pub data: Option<CreateData>,
    /// Continues to serve when its Raft instance has stopped, as a partitioned node does.
    pub survives_replica: bool,
}

/// A listener, and the client certificate for it.
#[derive(Clone)]
pub struct Channel {
    base: String,
    http: reqwest::Client,
}

/// Callers whose certificates a secure node knows. `stranger` has no capability, `second` has those of
/// `gateway` for agents and streams, and `chief` has these and those of `operator`.
pub const CALLERS: [&str; 5] = ["gateway", "operator", "stranger", "second", "chief"];

/// A node, its issuers and its client.
pub struct Node {
    pub issuers: Issuers,
    pub clock: Clock,
    pub directory: TempDir,
    config: Config,
    survives_replica: bool,
    thread: Option<thread::JoinHandle<Result<(), node::Error>>>,
    shutdown: CancellationToken,
    /// `None` while the node is stopped.
    state: Option<State>,
    base: String,
    tls_base: Option<String>,
    certificates: Option<(TempDir, pki::IssuedCertificates)>,
    http: reqwest::Client,
    description: Description,
}

/// Addresses of HTTP and TLS, and the state.
type Started = (SocketAddr, Option<SocketAddr>, State);

/// Runs on its own runtime, so that [`Node`] can wait for the end when it is dropped: a process that exits
/// while the database is open may be aborted by it.
#[expect(clippy::disallowed_methods, reason = "a test's node lives beside the test")]
fn run_in_thread(
    (config, clock, shutdown, started): (Config, Clock, CancellationToken, oneshot::Sender<Started>),
    survives_replica: bool,
) -> thread::JoinHandle<Result<(), node::Error>> {
    let run = async move {
        let running = node::start(config, clock, Path::new(PROGRAM), shutdown.clone()).await?;
        let told = (running.address, running.tls_address, running.state.clone());
        started.send(told).map_err(drop).expect("the test waits");
        if survives_replica {
            shutdown.cancelled().await;
        }
        running.until_stopped().await
    };
    thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("runtime").block_on(run)
    })
}

#[expect(clippy::disallowed_methods, reason = "the test goes on meanwhile")]
async fn wait_for<T: Send + 'static>(thread: thread::JoinHandle<T>) -> thread::Result<T> {
    tokio::task::spawn_blocking(|| thread.join()).await.expect("joined")
}

impl Drop for Node {
    fn drop(&mut self) {
        self.begin_shutdown();
        // The shutdown waits for every handle of the state.
        self.state = None;
        if let Some(thread) = self.thread.take() {
            // A failed node has already failed the test.
            drop(thread.join());
        }
    }
}

impl Node {
    /// A node with the shipped policy over the data of [`tables`].
    pub async fn start() -> Self {
        Self::start_with(Setup::default()).await
    }

    pub async fn start_with(mut setup: Setup) -> Self {
        let issuers = Issuers::start().await;
        let directory = tempfile::tempdir().expect("directory");
        let certificates = setup.is_secure.then(|| development_pki(&CALLERS));
        let edge = certificates.as_ref().map_or_else(development_mode, |(_, made)| production(made));
        let file = write_files(directory.path(), &issuers, &setup, &edge);
        if let Some(create) = setup.data.take() {
            create(&directory.path().join("data"));
        }
        let config =
            config::load(Some(&file), &mut std::iter::empty(), &Overrides::default()).expect("configuration");
        let clock = Clock::manual(Timestamp::from_secs(setup.now_secs.unwrap_or(NOW_SECS)));
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(Duration::from_secs(30))
            .build()
            .expect("client");
        let mut node = Self {
            issuers,
            clock,
            directory,
            config,
            survives_replica: setup.survives_replica,
            thread: None,
            shutdown: CancellationToken::new(),
            state: None,
            base: String::new(),
            tls_base: None,
            certificates,
            http,
            description: Description::new(json!({"paths": {}})),
        };
        node.run().await;
        let document = node.http.get(format!("{}/openapi.json", node.base)).send().await.expect("openapi");
        let document = serde_json::from_str(&document.text().await.expect("text")).expect("JSON");
        node.description = Description::new(document);
        node
    }

    /// The reason for which a node with this setup does not start.
    pub async fn refused(setup: Setup) -> String {
        let issuers = Issuers::start().await;
        let directory = tempfile::tempdir().expect("directory");
        let (_pki, made) = development_pki(&CALLERS);
        let file = write_files(directory.path(), &issuers, &setup, &production(&made));
        let config =
            config::load(Some(&file), &mut std::iter::empty(), &Overrides::default()).expect("configuration");
        let clock = Clock::manual(Timestamp::from_secs(NOW_SECS));
        let started = node::start(config, clock, Path::new(PROGRAM), CancellationToken::new()).await;
        started.err().expect("refused").to_string()
    }

    async fn run(&mut self) {
        self.shutdown = CancellationToken::new();
        let (start, started) = oneshot::channel();
        let node = (self.config.clone(), self.clock.clone(), self.shutdown.clone(), start);
        self.thread = Some(run_in_thread(node, self.survives_replica));
        let (plain, tls, state) = started.await.expect("the node starts");
        self.state = Some(state);
        self.base = format!("http://{plain}");
        self.tls_base = tls.map(|tls| format!("https://{tls}"));
        // The node listens before its policy is compiled.
        loop {
            match self.get("/readyz").await.status {
                200 => break,
                // While the clock stands still the rate limit never recovers.
                429 => panic!("the node was asked too often before it was ready"),
                _ => tokio::task::yield_now().await,
            }
        }
    }

    /// Shuts down and starts on the same data.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.start_again().await;
    }

    /// The same with another configuration.
    pub async fn restart_with(&mut self, change: impl FnOnce(&mut Config)) {
        self.stop().await;
        change(&mut self.config);
        self.start_again().await;
    }

    /// Starts on the same data.
    pub async fn start_again(&mut self) {
        self.run().await;
    }

    /// Starts a graceful shutdown, as a signal does.
    pub fn begin_shutdown(&self) {
        self.shutdown.cancel();
    }

    /// Waits for the end after [`Node::begin_shutdown`].
    pub async fn wait_for_shutdown(mut self) {
        self.stop().await;
    }

    /// Shuts down.
    pub async fn stop(&mut self) {
        self.begin_shutdown();
        self.state = None;
        let thread = self.thread.take().expect("running");
        let ended = wait_for(thread).await;
        ended.expect("no panic").expect("a clean stop");
    }

    /// The replicated state. A shutdown waits until every clone is dropped.
    pub fn state(&self) -> State {
        self.state.clone().expect("running")
    }

    /// Base URL of HTTP.
    pub fn base(&self) -> &str {
        &self.base
    }

    pub fn plain(&self) -> Channel {
        Channel { base: self.base.clone(), http: self.http.clone() }
    }

    /// TLS without a client certificate.
    pub fn anonymous(&self) -> Channel {
        self.secure(None)
    }

    /// TLS with the certificate of one of [`CALLERS`].
    pub fn certified(&self, name: &str) -> Channel {
        self.secure(Some(self.pair(name)))
    }

    pub fn secure(&self, caller: Option<&pki::IssuedCertificate>) -> Channel {
        let (_, made) = self.certificates.as_ref().expect("a secure node");
        let read = |path: &Path| std::fs::read(path).expect("a file");
        let ca = reqwest::Certificate::from_pem(&read(&made.ca.certificate)).expect("CA");
        let mut client = reqwest::Client::builder()
            .http1_only()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(Duration::from_secs(30))
            .tls_certs_only([ca]);
        if let Some(caller) = caller {
            let pem = [read(&caller.private_key), read(&caller.certificate)].concat();
            client = client.identity(reqwest::Identity::from_pem(&pem).expect("identity"));
        }
        Channel { base: self.tls_base.clone().expect("TLS"), http: client.build().expect("client") }
    }

    /// The development PKI of this node.
    pub fn certificates(&self) -> &pki::IssuedCertificates {
        &self.certificates.as_ref().expect("a secure node").1
    }

    /// Whether it has a table of callers.
    pub fn is_secure(&self) -> bool {
        self.certificates.is_some()
    }

    /// The certificate of one of [`CALLERS`].
    pub fn pair(&self, name: &str) -> &pki::IssuedCertificate {
        let at = CALLERS.iter().position(|known| *known == name).expect("one of the callers");
        &self.certificates().callers[at].1
    }

    /// A caller that may change the policy.
    pub fn administrator(&self) -> Channel {
        if self.is_secure() { self.certified("operator") } else { self.plain() }
    }

    /// Address of the HTTP listener.
    pub fn address(&self) -> SocketAddr {
        self.base.strip_prefix("http://").and_then(|address| address.parse().ok()).expect("an address")
    }

    /// Address of the TLS listener.
    pub fn tls_address(&self) -> SocketAddr {
        self.tls_base().strip_prefix("https://").and_then(|address| address.parse().ok()).expect("an address")
    }

    /// Base URL of TLS.
    pub fn tls_base(&self) -> &str {
        self.tls_base.as_deref().expect("a secure node")
    }

    /// The channel of most tests: HTTP in development mode, else TLS as `gateway`.
    fn default_channel(&self) -> Channel {
        if self.is_secure() { self.certified("gateway") } else { self.plain() }
    }

    /// [`IDP`] reports the account of a workload as disabled, which blocks it.
    pub async fn disable_account(&self, id: &str) {
        let set = json!({
            "iss": IDP, "jti": uuid::Uuid::new_v4().to_string(), "iat": self.now_secs(), "aud": FABRIC,
            "sub_id": {"format": "uri", "uri": id},
            "events": {"https://schemas.openid.net/secevent/risc/event-type/account-disabled": {}},
        });
        let header = with(&self.issuers.idp.header(), &json!({"typ": "secevent+jwt"}));
        let token = self.issuers.idp.sign_as(&header, &set);
        let headers = [("content-type", "application/secevent+jwt")];
        let answer =
            self.call_over(&self.certified("second"), "POST", "/v1/signals/events", &headers, token).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
    }

    pub fn advance_secs(&self, secs: u64) {
        self.clock.advance(Duration::from_secs(secs));
    }

    /// Sets the wall clock back.
    pub fn set_back_secs(&self, secs: i64) {
        self.clock.shift(-secs * 1_000);
    }

    /// The time of the node in seconds.
    pub fn now_secs(&self) -> i64 {
        self.clock.now().secs()
    }

    /// Sends a request. The response must match `/openapi.json` and the invariants.
    pub async fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Vec<u8>>,
    ) -> Response {
        self.call_over(&self.default_channel(), method, path, headers, body).await
    }

    /// The same over another channel.
    pub async fn call_over(
        &self,
        channel: &Channel,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Vec<u8>>,
    ) -> Response {
        let body = body.into();
        let sent = String::from_utf8_lossy(&body).into_owned();
        let name = Method::from_bytes(method.as_bytes()).expect("method");
        let mut request = channel.http.request(name, format!("{}{path}", channel.base)).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.unwrap_or_else(|error| panic!("{method} {path}: {error:?}"));
        let answer = Response {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.text().await.expect("an answer in UTF-8"),
        };
        if method != "HEAD" {
            answer.assert_invariants(&sent);
        }
        self.description.check(method, path, &answer);
        answer
    }

    /// The live feed over a channel; `headers` may resume it. `query` is empty or begins with `?`.
    pub async fn feed(&self, channel: &Channel, query: &str, headers: &[(&str, &str)]) -> Feed {
        let mut request = channel.http.get(format!("{}/v1/events{query}", channel.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Feed::of(request.send().await.expect("an answer"))
    }

    pub async fn get(&self, path: &str) -> Response {
        if self.description.is_empty() {
            return self.bare(path).await;
        }
        self.call("GET", path, &[], "").await
    }

    /// Without `/openapi.json`.
    async fn bare(&self, path: &str) -> Response {
        let response = self.http.get(format!("{}{path}", self.base)).send().await.expect("answer");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Response { status, headers, body: response.text().await.expect("text") }
    }

    pub async fn post(&self, path: &str, body: &Value) -> Response {
        self.call("POST", path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Response {
        self.call("PUT", path, &[("content-type", "application/json")], body.to_string()).await
    }

    /// `POST /v1/exchange/token` in JSON.
    pub async fn exchange(&self, request: &Value) -> Response {
        self.exchange_with(request, &[]).await
    }

    pub async fn exchange_with(&self, request: &Value, headers: &[(&str, &str)]) -> Response {
        let headers: Vec<_> = headers.iter().copied().chain([("content-type", "application/json")]).collect();
        let answer = self.call("POST", "/v1/exchange/token", &headers, request.to_string()).await;
        // RFC 6749 §5.1.
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        answer
    }

    /// `POST /v1/exchange/token` as a form.
    pub async fn exchange_form(&self, pairs: &[(&str, &str)]) -> Response {
        let body: String = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
        let media = [("content-type", "application/x-www-form-urlencoded")];
        self.call("POST", "/v1/exchange/token", &media, body).await
    }

    /// A successful exchange. Its token is verified through the published keys.
    pub async fn granted(&self, request: &Value) -> Minted {
        let minted = self.exchange(request).await.minted();
        self.verify(&minted).await;
        // The lifetimes are fixed (contract §3, `exp`).
        let life = if minted.claims.get("htm").is_some() { 30 } else { 300 };
        assert_eq!(minted.answer["expires_in"], life);
        assert_eq!(minted.claims["exp"].as_i64(), minted.claims["iat"].as_i64().map(|iat| iat + life));
        assert_eq!(
            (&minted.claims["iat"], &minted.claims["nbf"]),
            (&self.now_secs().into(), &self.now_secs().into())
        );
        minted
    }

    /// Verifies the signature of a token through `/v1/identity/jwks`, without code of the product.
    pub async fn verify(&self, minted: &Minted) {
        let jwks = self.get("/v1/identity/jwks").await.json();
        let keys = jwks["keys"].as_array().expect("keys");
        let key = keys.iter().find(|key| key["kid"] == minted.header["kid"]).expect("the key is published");
        let coordinate =
            |name: &str| URL_SAFE_NO_PAD.decode(key[name].as_str().expect("text")).expect("base64url");
        let point = [vec![4], coordinate("x"), coordinate("y")].concat();
        let (input, signature) = minted.token.rsplit_once('.').expect("three parts");
        let signature = URL_SAFE_NO_PAD.decode(signature).expect("base64url");
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
            .verify(input.as_bytes(), &signature)
            .expect("a good signature");
    }

    /// A token for the node itself, from a service account of `namespace`.
    pub async fn own_token(&self, namespace: &str, name: &str) -> Minted {
        let claims = with(
            &self.issuers.service_account(namespace, name),
            &json!({"iat": self.now_secs(), "nbf": self.now_secs(), "exp": self.now_secs() + 3600}),
        );
        let token = self.issuers.es256.sign(&claims);
        self.granted(&with(&super::credential(&token, super::JWT), &json!({"audience": FABRIC}))).await
    }
}

/// Configuration in which every caller has every capability, over HTTP.
fn development_mode() -> String {
    "node.mode = \"development\"".to_owned()
}

/// Configuration with TLS and a table of callers.
fn production(made: &pki::IssuedCertificates) -> String {
    format!(
        r#"
listen.https = "127.0.0.1:0"
tls.certificate = "{certificate}"
tls.private_key = "{private_key}"
tls.client_ca = "{ca}"
callers = [
    {{ id = "spiffe://{TRUST_DOMAIN}/gateway", capabilities = [
        "exchange", "identity.issue", "signals.send", "tools.manage", "tools.read", "tools.verify",
        "audit.read", "events.read", "streams.manage", "streams.read",
    ] }},
    {{ id = "spiffe://{TRUST_DOMAIN}/operator", capabilities = ["cluster.admin", "metrics.read"] }},
    {{ id = "spiffe://{TRUST_DOMAIN}/second", capabilities = [
        "exchange", "identity.issue", "signals.send", "streams.manage", "streams.read",
    ] }},
    {{ id = "spiffe://{TRUST_DOMAIN}/chief", capabilities = [
        "identity.issue", "cluster.admin", "streams.manage", "streams.read",
    ] }},
]"#,
        certificate = made.node.certificate.display(),
        private_key = made.node.private_key.display(),
        ca = made.ca.certificate.display(),
    )
}

fn write_files(directory: &Path, issuers: &Issuers, setup: &Setup, edge: &str) -> std::path::PathBuf {
    let policies = directory.join("policies");
    std::fs::create_dir(&policies).expect("directory");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies/exchange.rego");
    let rego = setup.rego.map_or_else(|| std::fs::read_to_string(shipped).expect("policy"), str::to_owned);
    std::fs::write(policies.join("exchange.rego"), rego).expect("write");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies");
    for name in ["identity.rego", "signals.rego"].into_iter().filter(|name| !setup.without.contains(name)) {
        std::fs::copy(shipped.join(name), policies.join(name)).expect("copy");
    }
    std::fs::write(policies.join("data.json"), tables(issuers).to_string()).expect("write");
    let bundle_file = directory.join("bundle.json");
    std::fs::write(&bundle_file, bundle(&issuers.file_svids).to_string()).expect("write");
    let (data, server) = (directory.join("data"), issuers.server.uri());
    let text = format!(
        r#"{edge}
node.data_dir = "{data}"
node.unit_id = "under-test"
listen.http = "127.0.0.1:0"
[fabric]
issuer = "{FABRIC}"
trust_domain = "{TRUST_DOMAIN}"
[policy]
directory = "{policies}"
[outbound]
allow_loopback_http = true
allowed_networks = {networks:?}

[[issuers]]
issuer = "{kubernetes}"
subject = "kubernetes"
discovery = true
trust_domains = ["{TRUST_DOMAIN}"]

[[issuers]]
issuer = "{identifiers}"
subject = "identifier"
keys_url = "{server}/agents/jwks"
algorithms = ["ES256"]
trust_domains = ["{TRUST_DOMAIN}"]
verified_email = true

[[issuers]]
issuer = "spiffe://files.example"
kind = "spiffe"
bundle_file = "{bundle_file}"
trust_domains = ["files.example"]

[[issuers]]
issuer = "spiffe://endpoint.example"
kind = "spiffe"
bundle_endpoint = "{server}/bundle"
trust_domains = ["endpoint.example"]

[[issuers]]
issuer = "{IDP}"
subject = "opaque"
keys_url = "{server}/idp/jwks"
trust_domains = ["idp.example"]
verified_email = true

[[issuers]]
issuer = "{OTHER_IDP}"
subject = "opaque"
keys_url = "{server}/other-idp/jwks"
trust_domains = ["other-idp.example"]
verified_email = true
{signals}{more}"#,
        data = data.display(),
        policies = policies.display(),
        bundle_file = bundle_file.display(),
        kubernetes = issuers.kubernetes(),
        identifiers = issuers.identifiers(),
        networks = setup.allowed_networks,
        signals = if setup.without_signal_issuers { String::new() } else { signals(issuers) },
        more = setup.more_config,
    );
    let file = directory.join("trust-fabric.toml");
    std::fs::write(&file, text).expect("write");
    file
}

/// Configuration of the signal issuers.
fn signals(issuers: &Issuers) -> String {
    format!(
        r#"
[[signals]]
issuer = "{IDP}"
keys_url = "{server}/idp/jwks"
callers = ["spiffe://{TRUST_DOMAIN}/gateway"]
trust_domains = ["{TRUST_DOMAIN}"]
subject_issuers = ["{IDP}", "{kubernetes}", "{identifiers}", "{FABRIC}"]
may_block_operators = true

[[signals]]
issuer = "{OTHER_IDP}"
keys_url = "{server}/other-idp/jwks"
callers = ["spiffe://{TRUST_DOMAIN}/second"]
trust_domains = ["{TRUST_DOMAIN}"]
"#,
        server = issuers.server.uri(),
        kubernetes = issuers.kubernetes(),
        identifiers = issuers.identifiers(),
    )
}

/// Data of the shipped policy for the issuers of the tests.
pub fn tables(issuers: &Issuers) -> Value {
    let all = json!(["db.read", "db.write"]);
    let demo = json!({
        "audiences": [TOOL, FABRIC, MIGRATE], "default_audience": TOOL, "capabilities": all,
        "scopes": ["offline"], "blast_radius": "namespace:demo", "delegation_depth": 2,
    });
    let agents = json!({
        "audiences": [FABRIC], "default_audience": FABRIC, "capabilities": ["db.read"],
        "blast_radius": "cluster", "delegation_depth": 2,
    });
    let tools = json!({
        "audiences": [FABRIC], "default_audience": FABRIC, "capabilities": ["tools.manage", "tools.read"],
    });
    json!({"exchange": {
        "issuers": {
            (issuers.kubernetes()): {"kinds": ["jwt"], "trust_domains": [TRUST_DOMAIN]},
            (issuers.identifiers()): {"kinds": ["jwt"], "trust_domains": [TRUST_DOMAIN]},
            FABRIC: {"kinds": ["agent-a2a"], "trust_domains": [TRUST_DOMAIN]},
            "spiffe://files.example": {"kinds": ["spiffe-svid"], "trust_domains": ["files.example"]},
            "spiffe://endpoint.example": {"kinds": ["spiffe-svid"], "trust_domains": ["endpoint.example"]},
        },
        "audiences": {
            FABRIC: {
                "capabilities": [
                    "db.read", "db.write", "cluster.admin", "metrics.read", "tools.manage", "tools.read",
                    "streams.manage", "streams.read", "events.read",
                ],
                "execution_required": false,
            },
            TOOL: {"capabilities": all, "execution_required": false},
            MIGRATE: {"capabilities": ["db.write"], "execution_required": true},
        },
        "workloads": {
            "wimse://trust.example/ns/agents/sa/operator": {
                "audiences": [FABRIC], "default_audience": FABRIC,
                "capabilities": ["cluster.admin", "metrics.read"],
            },
            "wimse://trust.example/ns/agents/sa/toolsmith": tools,
            "wimse://trust.example/ns/agents/sa/toolsmith2": tools,
            "wimse://trust.example/ns/agents/sa/curator": {
                "audiences": [FABRIC], "default_audience": FABRIC,
                "capabilities": ["tools.manage", "tools.read", "cluster.admin"],
            },
            "wimse://trust.example/ns/agents/sa/streamer": {
                "audiences": [FABRIC], "default_audience": FABRIC,
                "capabilities": ["streams.manage", "streams.read"],
            },
            "wimse://trust.example/ns/agents/sa/stream-operator": {
                "audiences": [FABRIC], "default_audience": FABRIC,
                "capabilities": ["streams.manage", "streams.read", "cluster.admin"],
            },
            "wimse://trust.example/ns/agents/sa/watcher": {
                "audiences": [FABRIC], "default_audience": FABRIC, "capabilities": ["events.read"],
            },
            "wimse://trust.example/ns/agents/sa/spent": {
                "audiences": [FABRIC], "default_audience": FABRIC, "capabilities": ["db.read"],
            },
        },
        "namespaces": {
            TRUST_DOMAIN: {"demo": demo, "agents": agents},
            "files.example": {"demo": demo},
            "endpoint.example": {"demo": demo},
        },
        "paths": [{
            "trust_domain": TRUST_DOMAIN, "path": ["agent", "*", "*"],
            "audiences": [FABRIC, TOOL, MIGRATE], "default_audience": TOOL,
            "capabilities": ["db.read", "db.write"], "blast_radius": "cluster", "delegation_depth": 10,
        }],
        "actors": actors(),
        "actor_paths": [{
            "trust_domain": TRUST_DOMAIN, "path": ["agent", "*", "*"],
            "for_workloads": [], "for_namespaces": {TRUST_DOMAIN: ["demo", "agents"]},
            "for_paths": [{"trust_domain": TRUST_DOMAIN, "path": ["agent", "*", "*"]}], "actors_max": 20,
        }],
    }, "identity": identities(), "signals": effects()})
}

/// Effects of events, as shipped.
fn effects() -> Value {
    let shipped: Value = serde_json::from_str(include_str!("../../policies/data.json")).expect("JSON");
    shipped["signals"].clone()
}

/// Agent identities: any in development mode; those of three callers in a secure node.
fn identities() -> Value {
    let platforms = json!(["mcp", "a2a", "watsonx", "custom"]);
    let row = json!({
        "platforms": platforms, "blast_radius": "cluster", "delegation_depth": 10,
        "capabilities": ["db.read", "db.write", "identity.issue", "tools.read", "cluster.admin"],
    });
    let few = json!({"platforms": ["mcp"], "capabilities": ["db.read"], "delegation_depth": 1});
    json!({
        "nobody": row,
        "callers": {
            (format!("spiffe://{TRUST_DOMAIN}/gateway")): row,
            (format!("spiffe://{TRUST_DOMAIN}/second")): few,
            (format!("spiffe://{TRUST_DOMAIN}/chief")): row,
        },
    })
}

/// Every agent may act for the workloads of `demo` and for other agents.
fn actors() -> Value {
    let names =
        ["orchestrator", "spent", "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "a10", "a11"];
    let row =
        json!({"for_workloads": [], "for_namespaces": {TRUST_DOMAIN: ["demo", "agents"]}, "actors_max": 20});
    names.iter().map(|name| (format!("wimse://trust.example/ns/agents/sa/{name}"), row.clone())).collect()
}
