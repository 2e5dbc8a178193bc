//! Peer fabrics at the edge: their certificates are callers of federation routes only, and their roots come from bundles.

use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use trust_fabric::clock::Clock;
use trust_fabric::config::{self, Overrides};
use trust_fabric::{api, pki};

use crate::support::certificates::Curl;
use crate::support::{FABRIC, Node, Setup, TRUST_DOMAIN};

const HASH: &str = "/v1/federation/revocation-hash";
const BUNDLE: &str = "/v1/federation/bundle";
const SYNC: &str = "/v1/federation/sync";
const PEERS: &str = "/v1/federation/peers";

/// Certificates of a fabric: a CA, a node, and callers.
pub struct Fabric {
    directory: TempDir,
    trust_domain: String,
    made: pki::IssuedCertificates,
}

impl Fabric {
    pub fn new(trust_domain: &str, callers: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let domain = trust_domain.parse().expect("trust domain");
        let callers = callers
            .iter()
            .map(|name| pki::CertificateSubject::within(name, &domain).expect("caller"))
            .collect();
        let plan = pki::CertificatePlan {
            directory: directory.path().join("pki"),
            trust_domain: domain,
            hosts: Vec::new(),
            peers: Vec::new(),
            callers,
            lifetime_days: 365,
        };
        let made = pki::make(&plan, Clock::system().now()).expect("made");
        Self { directory, trust_domain: trust_domain.to_owned(), made }
    }

    pub fn caller(&self, at: usize) -> &pki::IssuedCertificate {
        &self.made.callers[at].1
    }

    fn root(&self) -> Value {
        let root = CertificateDer::from_pem_file(&self.made.ca.certificate).expect("PEM");
        json!({"kty": "EC", "use": "x509-svid", "x5c": [STANDARD.encode(root)]})
    }

    /// Section of this peer: its nodes are `node` and `one`.
    pub fn section(&self, name: &str, more: &str) -> String {
        let (trust_domain, file) = (&self.trust_domain, self.directory.path().join("bundle.json"));
        write_public(&file, &bundle(&[self], 1));
        format!(
            r#"
[[federation.peers]]
name = "{name}"
issuer = "https://{trust_domain}"
trust_domains = ["{trust_domain}"]
ids = ["spiffe://{trust_domain}/node", "spiffe://{trust_domain}/one"]
bundle_file = "{file}"
{more}
"#,
            file = file.display(),
        )
    }

    /// Our own section: this fabric's first caller is our certificate for peers.
    pub fn own_section(&self) -> String {
        let own = self.caller(0);
        let (certificate, private_key) = (own.certificate.display(), own.private_key.display());
        format!("\n[federation]\ncertificate = \"{certificate}\"\nprivate_key = \"{private_key}\"\n")
    }
}

fn bundle(of: &[&Fabric], sequence: u64) -> String {
    let keys: Vec<Value> = of.iter().map(|fabric| fabric.root()).collect();
    json!({"keys": keys, "spiffe_sequence": sequence}).to_string()
}

/// Writes a file that others may not write.
fn write_public(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(&new, mode).expect("mode");
    fs::rename(new, path).expect("renamed");
}

/// A secure node with these sections, and the certificate of [`Fabric::own_section`].
async fn node_with(sections: &str) -> (Node, Fabric) {
    let own = Fabric::new(TRUST_DOMAIN, &["federation"]);
    let more_config = format!("{}{sections}", own.own_section());
    let setup =
        Setup { is_secure: true, more_config, allowed_networks: &["127.0.0.0/8"], ..Setup::default() };
    (Node::start_with(setup).await, own)
}

const SERVED: &str = "serve = true";
const READ: &str = "accept = true\nendpoints = [\"https://eu-1.example:8694\"]";

/// The status of a call with a client certificate; `None` if the handshake fails.
fn status(node: &Node, caller: &pki::IssuedCertificate) -> Option<u16> {
    let caller = Some((caller.certificate.as_path(), caller.private_key.as_path()));
    let curl = Curl { ca: &node.certificates().ca.certificate, caller };
    curl.status("GET", &format!("{}{HASH}", node.tls_base()), None)
}

/// Attack: a node of a peer, or any workload of its trust domain, calls a route of ours, with or without a token.
#[tokio::test]
async fn certificate_of_a_peer_is_a_caller_of_no_other_route() {
    let eu = Fabric::new("eu.example", &["one", "other"]);
    let (node, _own) = node_with(&eu.section("eu", SERVED)).await;
    let token = node.own_token("agents", "operator").await.token;
    let bearer = format!("Bearer {token}");
    let channels = [node.secure(Some(eu.caller(0))), node.secure(Some(eu.caller(1)))];
    let anonymous = node.anonymous();
    let mut refused = 0;
    for row in api::rows() {
        let (method, path) = (row.method.as_str(), row.path.replace(['{', '}'], ""));
        let name = format!("{method} {}", row.path);
        let need = row.access.to_string();
        if need.starts_with("peer") {
            continue;
        }
        let without = node.call_over(&anonymous, method, &path, &[], "").await;
        let is_open = !matches!(without.status, 401 | 403);
        for (channel, headers) in [
            (&channels[0], &[][..]),
            (&channels[1], &[][..]),
            (&channels[0], &[("authorization", bearer.as_str())][..]),
        ] {
            let answer = node.call_over(channel, method, &path, headers, "").await;
            if is_open || need == "metrics" {
                assert_eq!(answer.status, without.status, "{name}: {}", answer.body);
            } else {
                answer.is_refused(403, "access_denied", "federation routes");
                refused += 1;
            }
        }
        // The rate limit does not recover while the clock stands still. The lease ends with it, of which health tells.
        node.advance_secs(1);
        let _lease = node.state().fresh().await.expect("a lease");
    }
    assert!(refused > 100, "{refused}");
    let health = node.call_over(&channels[0], "GET", "/v1/sys/health", &[], "").await.json();
    assert!(health.get("leader").is_none(), "no details for a peer: {health}");
}

#[tokio::test]
async fn ledger_is_read_by_nodes_of_served_peers_and_operators() {
    let (eu, ap, third) = (
        Fabric::new("eu.example", &["one", "other"]),
        Fabric::new("ap.example", &["one"]),
        Fabric::new("third.example", &["one"]),
    );
    let sections = format!("{}{}", eu.section("eu", SERVED), ap.section("ap", READ));
    let (node, _own) = node_with(&sections).await;
    let get = async |caller: &pki::IssuedCertificate, headers: &[(&str, &str)]| {
        node.call_over(&node.secure(Some(caller)), "GET", HASH, headers, "").await
    };
    assert_eq!(get(eu.caller(0), &[]).await.status, 200);
    get(eu.caller(1), &[]).await.is_refused(403, "access_denied", "node of this SPIFFE ID");
    get(ap.caller(0), &[]).await.is_refused(403, "access_denied", "node of this SPIFFE ID");
    let token = node.own_token("agents", "operator").await.token;
    let bearer = format!("Bearer {token}");
    let both = get(eu.caller(0), &[("authorization", bearer.as_str())]).await;
    both.is_refused(401, "access_denied", "no Authorization header");
    for (name, expected) in [("operator", 200), ("stranger", 403)] {
        let answer = node.call_over(&node.certified(name), "GET", HASH, &[], "").await;
        assert_eq!(answer.status, expected, "{name}");
    }
    let anonymous = node.call_over(&node.anonymous(), "GET", HASH, &[], "").await;
    anonymous.is_refused(401, "access_denied", "is required");
    // A CA of one peer issues a name of the other; and a fabric that is no peer.
    assert_eq!(status(&node, eu.caller(0)), Some(200));
    let forged = Fabric::new("eu.example", &["one"]);
    assert_eq!((status(&node, forged.caller(0)), status(&node, third.caller(0))), (None, None));
    // Our own block on a node of a peer.
    let block = json!({"subject": "spiffe://eu.example/one", "reason": "stolen", "block": true}).to_string();
    let media = [("content-type", "application/json")];
    let blocked = node.call_over(&node.certified("operator"), "POST", "/v1/revocations", &media, block).await;
    assert_eq!(blocked.status, 202, "{}", blocked.body);
    get(eu.caller(0), &[]).await.is_refused(403, "access_denied", "blocked");
}

#[tokio::test]
async fn ledger_is_synced_and_peers_are_set() {
    let eu = Fabric::new("eu.example", &["one"]);
    let (node, _own) = node_with(&eu.section("eu", SERVED)).await;
    let (peer, operator) = (node.secure(Some(eu.caller(0))), node.certified("operator"));
    let json = [("content-type", "application/json")];
    let sync = async || node.call_over(&peer, "POST", SYNC, &json, r#"{"version": 1}"#).await;
    let answer = sync().await;
    assert_eq!((answer.status, &answer.json()["reset"]), (200, &json!(true)), "{}", answer.body);
    node.call_over(&operator, "POST", SYNC, &json, r#"{"version": 1}"#).await.is_refused(
        403,
        "access_denied",
        "nodes of peer fabrics",
    );
    let set = async |verb: &str| {
        let path = format!("{PEERS}/eu/{verb}");
        node.call_over(&operator, "POST", &path, &[], "").await
    };
    let mut feed = node.feed(&node.certified("gateway"), "?types=federation", &[]).await;
    assert_eq!(feed.status, 200);
    assert_eq!(set("pause").await.json()["state"], "paused");
    let event = feed.next().await.expect("an event");
    assert_eq!(event.words(), ("federation", "https://eu.example", "peer is paused"));
    sync().await.is_refused(403, "access_denied", "paused");
    for path in [HASH, "/v1/federation/revocation-export"] {
        node.call_over(&peer, "GET", path, &[], "").await.is_refused(403, "access_denied", "paused");
        assert_eq!(node.call_over(&operator, "GET", path, &[], "").await.status, 200, "{path}");
    }
    assert_eq!(set("resume").await.json()["state"], "not_read");
    assert_eq!(sync().await.status, 200);
    let peers = node.call_over(&operator, "GET", PEERS, &[], "").await.json();
    assert_eq!((&peers[0]["name"], peers[0]["serving"].is_object()), (&json!("eu"), true), "{peers}");
    set("remove").await.is_refused(404, "not_found", "the verb must be");
    // The log of one of the two has lost its end.
    let health = async || node.call_over(&operator, "GET", "/v1/sys/health", &[], "").await.json();
    let through = answer.json()["through"].as_u64().expect("an index");
    let since = format!("{}-{}", answer.json()["incarnation"].as_str().expect("text"), through + 1_000);
    let ahead = json!({"version": 1, "since": since}).to_string();
    assert_eq!(node.call_over(&peer, "POST", SYNC, &json, ahead).await.status, 409);
    assert_eq!(health().await["status"], "warn");
    assert_eq!(sync().await.status, 200);
    assert_eq!(health().await["status"], "pass");
    let acts = node.call_over(&node.certified("gateway"), "GET", "/v1/audit", &[], "").await;
    assert!(acts.body.contains("pause peer eu"), "{}", acts.body);
}

/// Attack: a receiver that has streams at both fabrics gets an event of one of them twice.
#[tokio::test]
async fn event_of_a_peer_is_not_relayed() {
    let eu = Fabric::new("eu.example", &["one"]);
    let signals = "[transmitter]\nbase_url = \"https://fabric.example\"\n\
        [[signals]]\nissuer = \"https://eu.example\"\ncallers = [\"spiffe://trust.example/gateway\"]\n\
        trust_domains = [\"trust.example\"]\n";
    let (node, _own) = node_with(&format!("{}{signals}", eu.section("eu", SERVED))).await;
    let post = async |path: &str, body: Value| {
        let json = [("content-type", "application/json")];
        node.call_over(&node.certified("gateway"), "POST", path, &json, body.to_string()).await
    };
    let revoked = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
    let stream = json!({
        "iss": FABRIC, "aud": "https://receiver.example/events", "events_requested": [revoked],
        "delivery_method": "poll",
    });
    let stream = post("/v1/signals/stream", stream).await;
    assert_eq!(stream.status, 201, "{}", stream.body);
    let set = json!({
        "iss": "https://eu.example", "jti": "of-a-peer", "iat": node.now_secs(), "aud": FABRIC,
        "sub_id": {"format": "uri", "uri": "wimse://trust.example/ns/demo/sa/reporter"}, "events": {revoked: {}},
    });
    let received = post("/v1/signals/events", set).await;
    assert_eq!((received.status, &received.json()["status"]), (202, &json!("accepted")), "{}", received.body);
    let path = format!("/v1/signals/poll/{}", stream.json()["stream_id"].as_str().expect("an id"));
    let polled = post(&path, json!({"returnImmediately": true})).await;
    assert_eq!((polled.status, &polled.json()["sets"]), (200, &json!({})));
}

#[tokio::test]
async fn bundle_of_our_roots_is_public_if_federation_is_configured() {
    let (mut node, _own) = node_with("").await;
    let answer = node.call_over(&node.plain(), "GET", BUNDLE, &[], "").await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let ca = CertificateDer::from_pem_file(&node.certificates().ca.certificate).expect("PEM");
    assert_eq!(answer.json()["keys"][0]["x5c"], json!([STANDARD.encode(ca)]));
    let etag = answer.header("etag").expect("an etag").to_owned();
    let again = node.call_over(&node.anonymous(), "GET", BUNDLE, &[("if-none-match", &etag)], "").await;
    assert_eq!(again.status, 304);
    node.restart_with(|config| config.fabric.trust_domain = "elsewhere.example".parse().expect("name")).await;
    let answer = node.call_over(&node.plain(), "GET", BUNDLE, &[], "").await;
    answer.is_refused(404, "not_found", "no CA of fabric.trust_domain");
    node.restart_with(|config| config.federation = None).await;
    let answer = node.call_over(&node.plain(), "GET", BUNDLE, &[], "").await;
    answer.is_refused(501, "not_implemented", "federation is not configured");
}

/// An endpoint of bundles with the certificate of a fabric's node.
struct Endpoint {
    url: String,
    _serving: JoinSet<()>,
}

impl Endpoint {
    async fn serve(of: &Fabric, document: String) -> Self {
        let chain = CertificateDer::pem_file_iter(&of.made.node.certificate).expect("file");
        let chain = chain.collect::<Result<_, _>>().expect("PEM");
        let key = PrivateKeyDer::from_pem_file(&of.made.node.private_key).expect("key");
        let server = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain, key);
        let mut server = server.expect("server");
        server.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(server));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let url = format!("https://{}/bundle", listener.local_addr().expect("address"));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.expect("a connection");
                let Ok(stream) = acceptor.accept(socket).await else { continue };
                let document = document.clone();
                let answer = service_fn(move |_: hyper::Request<Incoming>| {
                    let document = Full::new(Bytes::from(document.clone()));
                    async move { Ok::<_, Infallible>(hyper::Response::new(document)) }
                });
                let serving = http2::Builder::new(TokioExecutor::new());
                drop(serving.serve_connection(TokioIo::new(stream), answer).await);
            }
        });
        Self { url, _serving: serving }
    }

    fn section(&self, of: &Fabric) -> String {
        of.section("eu", &format!("bundle_endpoint = \"{}\"\n{SERVED}", self.url))
    }
}

/// Waits until the metric page has `line`.
async fn until_counted(node: &Node, line: &str) {
    loop {
        let page = node.call_over(&node.certified("operator"), "GET", "/metrics", &[], "").await.body;
        if page.contains(line) {
            return;
        }
        node.advance_secs(1);
    }
}

#[tokio::test]
async fn roots_of_a_peer_come_from_its_endpoint() {
    let (old, new) = (Fabric::new("eu.example", &["one"]), Fabric::new("eu.example", &["one"]));
    let endpoint = Endpoint::serve(&old, bundle(&[&new], 2)).await;
    let (node, _own) = node_with(&endpoint.section(&old)).await;
    until_counted(&node, r#"svc_tls_reloads_total{result="ok",with="callers"} 1"#).await;
    assert_eq!((status(&node, new.caller(0)), status(&node, old.caller(0))), (Some(200), None));
}

/// Regression: a restarted node trusted the root of the file again, which the peer has withdrawn, and could not reach the
/// endpoint any more.
#[tokio::test]
async fn roots_of_the_endpoint_survive_a_restart() {
    let (old, new) = (Fabric::new("eu.example", &["one"]), Fabric::new("eu.example", &["one"]));
    let endpoint = Endpoint::serve(&old, bundle(&[&new], 2)).await;
    let (mut node, _own) = node_with(&endpoint.section(&old)).await;
    until_counted(&node, r#"svc_tls_reloads_total{result="ok",with="callers"} 1"#).await;
    drop(endpoint);
    node.restart().await;
    assert_eq!((status(&node, new.caller(0)), status(&node, old.caller(0))), (Some(200), None));
    // An operator changes the file.
    let file = old.directory.path().join("bundle.json");
    write_public(&file, &bundle(&[&old], 3));
    until_counted(&node, r#"svc_tls_reloads_total{result="ok",with="callers"} 1"#).await;
    write_public(&file, &bundle(&[&old], 1));
    node.restart().await;
    assert_eq!((status(&node, new.caller(0)), status(&node, old.caller(0))), (None, Some(200)));
}

/// Attack: a CA of a peer issues names without end, each of which would have a rate of its own.
#[tokio::test]
async fn callers_of_a_peer_share_rates() {
    let eu = Fabric::new("eu.example", &["one", "two", "other", "third"]);
    let section = eu.section("eu", SERVED).replace("eu.example/node", "eu.example/two");
    let (node, _own) = node_with(&section).await;
    let remaining = async |at: usize| {
        let channel = node.secure(Some(eu.caller(at)));
        let answer = node.call_over(&channel, "GET", HASH, &[], "").await;
        let rate = answer.header("ratelimit").expect("a rate").to_owned();
        let rest = rate.split(';').find_map(|part| part.strip_prefix("r=")).map(str::parse::<u32>);
        rest.expect("a remainder").expect("a number")
    };
    let nodes = [remaining(0).await, remaining(1).await];
    let others = [remaining(2).await, remaining(3).await];
    assert_eq!((nodes[1], others[1]), (nodes[0] - 1, others[0] - 1));
    assert!(others[0] < nodes[0], "by address, from which the test has called before");
}

/// Attack: another server answers at the endpoint, with a root of the attacker.
#[tokio::test]
async fn bundle_is_not_taken_from_another_server() {
    let (eu, forged) = (Fabric::new("eu.example", &["one"]), Fabric::new("eu.example", &["one"]));
    for (server, document) in [
        (&forged, bundle(&[&forged], 2)),
        (&eu, bundle(&[&forged], 0)),
        (&eu, "<html>".to_owned()),
        (&eu, "{\"keys\": []}".repeat(2)),
    ] {
        let endpoint = Endpoint::serve(server, document).await;
        let (node, _own) = node_with(&endpoint.section(&eu)).await;
        until_counted(&node, r#"svc_tls_reloads_total{result="failed",with="bundles"} 1"#).await;
        assert_eq!((status(&node, eu.caller(0)), status(&node, forged.caller(0))), (Some(200), None));
    }
}

#[tokio::test]
async fn open_connection_ends_with_the_root_of_its_peer() {
    let (eu, new) = (Fabric::new("eu.example", &["one"]), Fabric::new("eu.example", &["one"]));
    let (node, _own) = node_with(&eu.section("eu", SERVED)).await;
    let (peer, operator) = (node.secure(Some(eu.caller(0))), node.certified("operator"));
    for channel in [&peer, &operator] {
        assert_eq!(node.call_over(channel, "GET", HASH, &[], "").await.status, 200);
    }
    write_public(&eu.directory.path().join("bundle.json"), &bundle(&[&new], 2));
    until_counted(&node, r#"svc_http_connections_closed_total{reason="reload"} 1"#).await;
    assert_eq!((status(&node, eu.caller(0)), status(&node, new.caller(0))), (None, Some(200)));
    // That of the operator is still open.
    let page = node.call_over(&operator, "GET", "/metrics", &[], "").await.body;
    assert!(page.contains(r#"svc_http_connections_closed_total{reason="reload"} 1"#), "{page}");
}

/// The reason for which a node does not start.
async fn refusal(sections: &str, own: &Fabric) -> String {
    let more_config = format!("{}{sections}", own.own_section());
    Node::refused(Setup { is_secure: true, more_config, ..Setup::default() }).await
}

#[tokio::test]
async fn unusable_files_of_federation_are_refused_at_start() {
    let (own, eu) = (Fabric::new(TRUST_DOMAIN, &["federation"]), Fabric::new("eu.example", &["one"]));
    let ap = Fabric::new("ap.example", &["one"]);
    let foreign = refusal(&ap.section("ap", READ), &eu).await;
    assert!(foreign.starts_with("federation.certificate: "), "{foreign}");
    assert!(foreign.contains("is of trust domain eu.example, must be of trust.example"), "{foreign}");
    let section = eu.section("eu", SERVED);
    fs::remove_file(eu.directory.path().join("bundle.json")).expect("removed");
    let missing = refusal(&section, &own).await;
    assert!(missing.starts_with("federation.peers[0].bundle_file: "), "{missing}");
    let section = eu.section("eu", SERVED);
    let other = ap.section("ap", SERVED);
    write_public(&ap.directory.path().join("bundle.json"), &bundle(&[&ap, &eu], 1));
    let shared = refusal(&format!("{section}{other}"), &own).await;
    let section = ap.section("ap", READ);
    write_public(&ap.directory.path().join("bundle.json"), "{\"keys\": []}");
    let empty = refusal(&section, &own).await;
    assert!(empty.starts_with("federation.peers[0].bundle_file: "), "{empty}");
    assert!(empty.contains("contains no unexpired CA certificate"), "{empty}");
    assert!(shared.contains("contains a root of trust domain eu.example"), "{shared}");
}

#[test]
fn example_of_the_guide_is_a_valid_configuration() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/federation.md"));
    let page = page.expect("the page");
    let section =
        page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a section");
    let file = tempfile::NamedTempFile::with_suffix(".toml").expect("file");
    let text = format!(
        "node.data_dir = \"/d\"\nfabric.issuer = \"https://us.example.com\"\nfabric.trust_domain = \"us.example.com\"\n\
         policy.directory = \"policies\"\ntls.certificate = \"a\"\ntls.private_key = \"b\"\ntls.client_ca = \"c\"\n\
         [[issuers]]\nissuer = \"https://k8s.example.com\"\nsubject = \"kubernetes\"\ndiscovery = true\n\
         trust_domains = [\"us.example.com\"]\n{section}"
    );
    fs::write(file.path(), text).expect("written");
    let config = config::load(Some(file.path()), &mut std::iter::empty(), &Overrides::default());
    assert!(config.expect("valid").federation.is_some());
}
