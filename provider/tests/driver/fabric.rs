//! A node of this build as a process, with TLS, callers and an issuer of credentials.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value as Json, json};
use tempfile::TempDir;
use trust_fabric_client::{Certificates, NodeClient};

const TRUST_DOMAIN: &str = "dev.trust-fabric.local";
/// The issuer that the shipped policy knows.
const FABRIC: &str = "https://localhost:8694";

/// Callers with a certificate, and their capabilities.
const CALLERS: [(&str, &str); 3] = [
    (
        "terraform",
        r#""tools.manage", "tools.read", "streams.manage", "streams.read", "identity.issue", "exchange""#,
    ),
    ("other", r#""tools.manage", "tools.read", "streams.manage", "streams.read", "identity.issue""#),
    ("workload", r#""exchange""#),
];

/// A node, killed when dropped.
pub struct Fabric {
    node: Child,
    directory: TempDir,
    pub http: SocketAddr,
    pub https: SocketAddr,
}

/// The product of this build. The tests of the workspace build it too.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("path");
    let program = test.ancestors().nth(2).expect("target directory").join("trust-fabric");
    assert!(program.exists(), "{}: build the workspace first (make build)", program.display());
    program
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("address")
}

impl Fabric {
    /// A node with TLS and [`CALLERS`].
    pub async fn start() -> Self {
        Self::start_in("production").await
    }

    /// A node without TLS, which serves everyone.
    pub async fn start_in_development() -> Self {
        Self::start_in("development").await
    }

    async fn start_in(mode: &str) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let (http, https) = (free_address(), free_address());
        let place = directory.path();
        let mut pki = Command::new(program());
        pki.arg("pki").arg("--dir").arg(place.join("pki")).args(["--trust-domain", TRUST_DOMAIN, "--issuer"]);
        for (name, _) in CALLERS {
            pki.args(["--caller", name]);
        }
        let made = pki.output().expect("run");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        write_policy(&place.join("policies"));
        fs::write(place.join("node.toml"), config(place, mode, http, https)).expect("written");
        let log = fs::File::create(place.join("node.log")).expect("log");
        let mut serve = Command::new(program());
        serve.arg("serve").arg("--config").arg(place.join("node.toml"));
        let node = serve.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("started");
        let mut fabric = Self { node, directory, http, https };
        fabric.until_ready().await;
        fabric
    }

    async fn until_ready(&mut self) {
        let client = NodeClient::new(&format!("http://{}", self.http)).expect("client");
        while client.text(&["readyz"]).await.is_err() {
            if let Some(status) = self.node.try_wait().expect("status") {
                panic!("{status}: {}", fs::read_to_string(self.file("node.log")).expect("log"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.file(name).to_str().expect("UTF-8").to_owned()
    }

    /// The configuration of a provider with the certificate of a caller.
    pub fn provider(&self, caller: &str) -> Json {
        json!({
            "endpoint": format!("https://{}", self.https),
            "ca_cert_file": self.text("pki/ca.pem"),
            "client_cert_file": self.text(&format!("pki/{caller}.pem")),
            "client_key_file": self.text(&format!("pki/{caller}-key.pem")),
        })
    }

    /// The same without a certificate.
    pub fn anonymous(&self) -> Json {
        json!({ "endpoint": format!("https://{}", self.https), "ca_cert_file": self.text("pki/ca.pem") })
    }

    /// A client with the certificate of a caller.
    pub fn client(&self, caller: &str) -> NodeClient {
        let certificates = Certificates {
            ca: Some(self.file("pki/ca.pem").into()),
            certificate: Some(self.file(&format!("pki/{caller}.pem")).into()),
            private_key: Some(self.file(&format!("pki/{caller}-key.pem")).into()),
        };
        NodeClient::with_certificates(&[format!("https://{}", self.https)], &certificates).expect("client")
    }

    /// A client with a bearer token and no certificate.
    pub fn bearer(&self, token: &str) -> NodeClient {
        let certificates =
            Certificates { ca: Some(self.file("pki/ca.pem").into()), ..Certificates::default() };
        let client = NodeClient::with_certificates(&[format!("https://{}", self.https)], &certificates);
        client.expect("client").with_bearer(token.to_owned())
    }

    /// A token of this fabric for itself, of the service account `demo/<name>`.
    pub async fn token(&self, name: &str) -> String {
        let mut command = Command::new(program());
        command.arg("credential").arg("--dir").arg(self.file("pki"));
        let made = command.args(["--service-account", &format!("demo/{name}")]).output().expect("run");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let credential = String::from_utf8(made.stdout).expect("UTF-8");
        let request = json!({
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": credential.trim(),
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "audience": FABRIC,
        });
        let answer =
            self.client("workload").post(&["v1", "exchange", "token"], &request).await.expect("a token");
        answer["access_token"].as_str().expect("text").to_owned()
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        drop(self.node.kill());
        drop(self.node.wait());
    }
}

/// The shipped policy; it also gives tokens for the fabric to `demo/terraform`, with capabilities for tools and streams, and
/// to `demo/visitor`, without; and agents to `terraform` and `other`.
fn write_policy(directory: &Path) {
    fs::create_dir(directory).expect("directory");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("checkout").join("policies");
    for name in ["exchange.rego", "identity.rego", "signals.rego"] {
        fs::copy(shipped.join(name), directory.join(name)).expect("copied");
    }
    let data = fs::read(shipped.join("data.json")).expect("read");
    let mut data: Json = serde_json::from_slice(&data).expect("JSON");
    let capabilities = json!(["tools.manage", "tools.read", "streams.manage", "streams.read", "db.read"]);
    data["exchange"]["audiences"][FABRIC]["capabilities"] = capabilities.clone();
    for (name, capabilities) in [("terraform", capabilities), ("visitor", json!(["db.read"]))] {
        data["exchange"]["workloads"][format!("wimse://{TRUST_DOMAIN}/ns/demo/sa/{name}")] =
            json!({ "audiences": [FABRIC], "default_audience": FABRIC, "capabilities": capabilities });
    }
    for name in ["terraform", "other"] {
        data["identity"]["callers"][format!("spiffe://{TRUST_DOMAIN}/{name}")] = json!({
            "platforms": ["mcp", "a2a", "watsonx", "custom"],
            "capabilities": ["db.read", "db.write", "tools.manage", "tools.read"],
            "blast_radius": "namespace:demo",
            "delegation_depth": 2,
        });
    }
    fs::write(directory.join("data.json"), data.to_string()).expect("written");
}

fn config(place: &Path, mode: &str, http: SocketAddr, https: SocketAddr) -> String {
    let place = place.display();
    let mut text = format!(
        r#"[node]
data_dir = "{place}/data"
mode = "{mode}"
[listen]
http = "{http}"
HTTPS[fabric]
issuer = "{FABRIC}"
trust_domain = "{TRUST_DOMAIN}"
[policy]
directory = "{place}/policies"
[limits]
requests_per_second_per_caller = 1000000
[cluster]
heartbeat = "20ms"
[log]
filter = "warn"
[transmitter]
base_url = "https://{https}"
allow_loopback_push = true
[[issuers]]
issuer = "http://127.0.0.1:8698"
subject = "kubernetes"
keys_file = "{place}/pki/issuer-keys.json"
trust_domains = ["{TRUST_DOMAIN}"]
"#
    );
    let is_secure = mode == "production";
    text = text.replace("HTTPS", &if is_secure { format!("https = \"{https}\"\n") } else { String::new() });
    if is_secure {
        let pki = format!("{place}/pki");
        let callers = CALLERS.map(|(name, capabilities)| {
            format!("[[callers]]\nid = \"spiffe://{TRUST_DOMAIN}/{name}\"\ncapabilities = [{capabilities}]\n")
        });
        let tls = format!(
            "[tls]\ncertificate = \"{pki}/node.pem\"\nprivate_key = \"{pki}/node-key.pem\"\n\
             client_ca = \"{pki}/ca.pem\"\n"
        );
        text = text + &tls + &callers.concat();
    }
    text
}
