//! An issuer as an API server of Kubernetes is one: a CA of its own, and keys for authenticated callers only.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::support::{BAD_SUBJECT, JWT, NOW_SECS, Node, REPORTER, Setup, Signer, TOOL, credential, with};

const UNAVAILABLE: &str = "keys of the token's issuer cannot be fetched now";
const DISCOVERY: &str = "/.well-known/openid-configuration";
const JWKS: &str = "/openid/v1/jwks";

/// The shipped policy, with a row for the issuer, whose port is known only when it runs.
const POLICY: &str = concat!(
    include_str!("../../policies/exchange.rego"),
    "\nis_spoken_for(party) if {\n\tstartswith(party.issuer, \"https://127.0.0.1:\")\n\tparty.trust_domain == \"trust.example\"\n}\n"
);

/// A request as `path authorization`.
type Requests = Arc<Mutex<Vec<String>>>;

/// A server with a CA of its own that answers only the token in its file.
struct ApiServer {
    directory: TempDir,
    base: String,
    signer: Signer,
    requests: Requests,
    conduct: Arc<Mutex<Conduct>>,
    _serving: JoinSet<()>,
}

/// Its rules, which a test may change while it runs.
#[derive(Clone)]
struct Conduct {
    /// The only `Authorization` that it answers; every request, if empty.
    authorization: String,
    /// `jwks_uri` of the discovery document.
    jwks_uri: String,
    /// Answers JWKS with a redirect to this address, if there is one.
    redirect: Option<String>,
}

impl Conduct {
    /// Status, additional header and body of the answer.
    fn answer(&self, issuer: &str, jwks: &str, path: &str, authorization: &str) -> (&str, String, String) {
        let is_authorized = self.authorization.is_empty() || self.authorization == authorization;
        match (path, &self.redirect) {
            _ if !is_authorized => ("401 Unauthorized", String::new(), String::new()),
            (JWKS, Some(to)) => ("307 Temporary Redirect", format!("location: {to}\r\n"), String::new()),
            (JWKS, None) => ("200 OK", String::new(), jwks.to_owned()),
            (DISCOVERY, _) => {
                ("200 OK", String::new(), json!({"issuer": issuer, "jwks_uri": self.jwks_uri}).to_string())
            }
            _ => ("404 Not Found", String::new(), String::new()),
        }
    }
}

fn acceptor(ca: &CertifiedIssuer<'_, KeyPair>) -> TlsAcceptor {
    let key = KeyPair::generate().expect("key");
    let names = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("names");
    let certificate = names.signed_by(&key, ca).expect("a certificate");
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("a server");
    TlsAcceptor::from(Arc::new(config))
}

impl ApiServer {
    async fn start() -> Self {
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().expect("key")).expect("a CA");
        let acceptor = acceptor(&ca);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let base = format!("https://{}", listener.local_addr().expect("address"));
        let directory = tempfile::tempdir().expect("directory");
        fs::write(directory.path().join("ca.crt"), ca.pem()).expect("written");
        let token_file = directory.path().join("token");
        fs::write(&token_file, "node-token").expect("written");
        let signer = Signer::es256("cluster");
        let requests = Requests::default();
        let conduct = Arc::new(Mutex::new(Conduct {
            authorization: "Bearer node-token".to_owned(),
            jwks_uri: format!("{base}{JWKS}"),
            redirect: None,
        }));
        let (issuer, seen, rules) = (base.clone(), Arc::clone(&requests), Arc::clone(&conduct));
        let jwks = json!({"keys": [signer.jwk()]}).to_string();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.expect("a connection");
                let Ok(mut stream) = acceptor.accept(socket).await else { continue };
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else { break };
                    head.push(byte);
                }
                let head = String::from_utf8(head).expect("text");
                let path = head.split(' ').nth(1).unwrap_or_default();
                let sent = head.lines().find_map(|line| line.strip_prefix("authorization: "));
                let sent = sent.unwrap_or_default();
                seen.lock().expect("requests").push(format!("{path} {sent}"));
                let rules = rules.lock().expect("rules").clone();
                let (status, more, body) = rules.answer(&issuer, &jwks, path, sent);
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status}\r\n{more}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
                );
                stream.write_all(answer.as_bytes()).await.ok();
                stream.shutdown().await.ok();
            }
        });
        Self { directory, base, signer, requests, conduct, _serving: serving }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn conduct(&self) -> MutexGuard<'_, Conduct> {
        self.conduct.lock().expect("conduct")
    }

    /// A fabric in the cluster, with the section of the guide.
    async fn node(&self) -> Node {
        self.node_with(Some(&self.file("ca.crt")), Some(&self.file("token"))).await
    }

    async fn node_with(&self, ca: Option<&Path>, token: Option<&Path>) -> Node {
        let setting = |name: &str, file: Option<&Path>| {
            file.map(|file| format!("{name} = \"{}\"\n", file.display())).unwrap_or_default()
        };
        let more_config = format!(
            "\n[[issuers]]\nissuer = \"{}\"\nsubject = \"kubernetes\"\ndiscovery = true\n{}{}\
             trust_domains = [\"trust.example\"]\n",
            self.base,
            setting("ca_file", ca),
            setting("bearer_token_file", token)
        );
        let allowed_networks = &["127.0.0.0/8"];
        Node::start_with(Setup { rego: Some(POLICY), more_config, allowed_networks, ..Setup::default() })
            .await
    }

    /// Trusts the CA of another server too.
    fn trust(&self, other: &Self) {
        let roots = [self, other].map(|of| fs::read(of.file("ca.crt")).expect("read"));
        fs::write(self.file("ca.crt"), roots.concat()).expect("written");
    }

    async fn is_unavailable(&self, node: &Node) {
        node.exchange(&self.pod_token(node, None)).await.is_refused(503, "server_error", UNAVAILABLE);
    }

    /// A projected token of a pod for `audience`, with `expirationSeconds: 600`.
    fn pod_token(&self, node: &Node, audience: Option<&str>) -> Value {
        let now = node.now_secs();
        let changes = json!({"iss": self.base, "iat": now, "nbf": now, "exp": now + 607});
        let mut claims = with(&node.issuers.service_account("demo", "reporter"), &changes);
        if let Some(audience) = audience {
            claims["aud"] = json!([audience]);
        }
        with(&credential(&self.signer.sign(&claims), JWT), &json!({"audience": TOOL}))
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().expect("requests"))
    }
}

/// Output of the exchange and the tool's verification in the guide. Certificates and addresses are those of the test.
fn documented_calls(node: &Node, token: &str) -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide/exchange.md");
    let page = fs::read_to_string(page).expect("read the page");
    let section = page.split("## Service-account tokens of Kubernetes").nth(1).expect("the section");
    let section = section.split("\n## ").next().expect("the section");
    let blocks: Vec<&str> =
        section.split("```sh\n").skip(1).map(|rest| rest.split("```").next().expect("an end")).collect();
    assert_eq!(blocks.len(), 3, "settings, exchange and verification");
    let file = tempfile::NamedTempFile::new().expect("file");
    fs::write(file.path(), token).expect("written");
    let settings =
        format!("set -- --noproxy '*'\nfabric={}\ntoken_file={}\n", node.base(), file.path().display());
    let script = [settings.as_str(), blocks[1], blocks[2]].concat();
    let output = Command::new("sh").args(["-euc", &script]).output().expect("a shell");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

// The server needs a thread while the test blocks on the shell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn projected_token_is_exchanged_and_passes_at_a_tool() {
    let server = ApiServer::start().await;
    let node = server.node().await;
    let minted = node.granted(&server.pod_token(&node, None)).await;
    assert_eq!(minted.claims["sub"], REPORTER);
    assert_eq!(minted.claims["root_exp"], NOW_SECS + 607);
    let expected = [DISCOVERY, JWKS].map(|path| format!("{path} Bearer node-token"));
    assert_eq!(server.requests(), expected);
    let tool =
        json!({"tool_id": "sql", "name": "SQL", "resource_uri": TOOL, "required_capabilities": ["db.read"]});
    assert_eq!(node.post("/v1/tools", &tool).await.status, 201);
    let request = json!({"tool_id": "sql", "token": minted.answer["access_token"]});
    let verdict = node.post("/v1/mcp/verify", &request).await;
    assert_eq!((verdict.status, &verdict.json()["subject"]), (200, &json!(REPORTER)), "{}", verdict.body);
    let output =
        documented_calls(&node, server.pod_token(&node, None)["subject_token"].as_str().expect("text"));
    let verdict: Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!((&verdict["verified"], &verdict["subject"]), (&json!(true), &json!(REPORTER)));
    // The default token of a pod is for the API server, not for the fabric.
    let other = server.pod_token(&node, Some("https://kubernetes.default.svc"));
    node.exchange(&other).await.is_refused(400, "invalid_request", BAD_SUBJECT);
}

/// Attack: a redirect carries the token of the node to another server, which the CA also vouches for.
#[tokio::test]
async fn redirect_does_not_carry_the_token_to_another_server() {
    let (server, thief) = (ApiServer::start().await, ApiServer::start().await);
    server.trust(&thief);
    server.conduct().redirect = Some(format!("{}{JWKS}", thief.base));
    server.is_unavailable(&server.node().await).await;
    assert_eq!((server.requests().len(), thief.requests().len()), (2, 0));
}

/// Attack: a discovery document sends the token to another server, which the CA also vouches for.
#[tokio::test]
async fn discovery_does_not_carry_the_token_to_another_origin() {
    let (server, thief) = (ApiServer::start().await, ApiServer::start().await);
    server.trust(&thief);
    server.conduct().jwks_uri = format!("{}{JWKS}", thief.base);
    server.is_unavailable(&server.node().await).await;
    assert_eq!((server.requests().len(), thief.requests().len()), (1, 0));
    // An issuer that needs no token may publish its keys elsewhere.
    for open in [&server, &thief] {
        open.conduct().authorization.clear();
    }
    let node = server.node_with(Some(&server.file("ca.crt")), None).await;
    node.exchange(&server.pod_token(&node, None)).await.is_refused(400, "invalid_request", BAD_SUBJECT);
    assert_eq!(thief.requests(), [format!("{JWKS} ")], "the key of the thief is not that of the token");
}

#[tokio::test]
async fn issuer_of_a_private_ca_is_not_trusted_without_it() {
    let (server, other) = (ApiServer::start().await, ApiServer::start().await);
    for ca in [None, Some(other.file("ca.crt"))] {
        server.is_unavailable(&server.node_with(ca.as_deref(), Some(&server.file("token"))).await).await;
    }
    assert_eq!(server.requests(), Vec::<String>::new(), "the token was sent to an unknown server");
    server.is_unavailable(&server.node_with(Some(&server.file("ca.crt")), None).await).await;
    assert_eq!(server.requests(), [format!("{DISCOVERY} ")]);
}

#[tokio::test]
async fn token_file_is_read_for_each_fetch() {
    let server = ApiServer::start().await;
    fs::remove_file(server.file("token")).expect("removed");
    let node = server.node().await;
    server.is_unavailable(&node).await;
    assert_eq!(server.requests(), Vec::<String>::new());
    // Other issuers are not concerned.
    node.granted(&credential(&node.issuers.reporter(), JWT)).await;
    // The kubelet writes the file: no restart is needed.
    fs::write(server.file("token"), "node-token\n").expect("written");
    node.advance_secs(30);
    node.granted(&server.pod_token(&node, None)).await;
    server.requests();
    // It replaces the token before it ends.
    "Bearer second".clone_into(&mut server.conduct().authorization);
    fs::write(server.file("token"), "second").expect("written");
    node.advance_secs(300);
    node.granted(&server.pod_token(&node, None)).await;
    let expected = [DISCOVERY, JWKS].map(|path| format!("{path} Bearer second"));
    assert_eq!(server.requests(), expected);
}
