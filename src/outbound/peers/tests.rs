//! Calls to a node of a peer that speaks HTTP/2 frame by frame (RFC 9113 §4.1).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::*;
use crate::clock::{Clock, Timestamp};
use crate::outbound::guard::Rules;
use crate::telemetry::Metrics;
use crate::tls::{Authorities, Bundle, Files, KeyPairFiles, RemoteEnd, Roots};

type Authority = CertifiedIssuer<'static, KeyPair>;

const NODE: &str = "spiffe://peer.example/node";
const AMPLE: Duration = Duration::from_secs(30);
const BYTES_MAX: usize = 1000;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
/// `END_STREAM` of DATA and HEADERS, `ACK` of SETTINGS and PING.
const LAST: u8 = 1;
const END_HEADERS: u8 = 4;
/// `:status: 200` in HPACK's static table (RFC 7541 appendix A).
const STATUS_200: u8 = 0x88;

fn root(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("key")).expect("root")
}

fn leaf(id: &str, usage: ExtendedKeyUsagePurpose, issuer: &Authority) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().expect("key");
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(id.try_into().expect("ASCII"))];
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    (params.signed_by(&key, issuer).expect("leaf"), key)
}

/// Our side: files, the peer's bundle, and a client of the peer's node.
struct Caller {
    _directory: TempDir,
    root: Authority,
    bundle: Bundle,
    tls: Tls,
    clock: Clock,
    client: PeerClient,
}

impl Caller {
    fn of(peer: &Authority) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("mode");
            path
        };
        let root = root("own");
        let (certificate, key) = leaf("spiffe://own.example/a", ExtendedKeyUsagePurpose::ClientAuth, &root);
        let own = KeyPairFiles {
            certificate: write("own.pem", &certificate.pem()),
            private_key: write("own-key.pem", &key.serialize_pem()),
        };
        let bundle = Bundle::load(write("bundle.json", &bundle_of(&[peer]))).expect("a bundle");
        let trust_domain: TrustDomain = "peer.example".parse().expect("name");
        let roots = Roots::Bundle(bundle.clone());
        let authorities = vec![Authorities { trust_domain: trust_domain.clone(), roots, crl: None }];
        let metrics = Metrics::new().expect("metrics");
        let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
        let tls = Tls::load(Files { own, authorities }, RemoteEnd::Fabrics, clock.clone(), metrics);
        let tls = tls.expect("good files");
        let rules =
            Rules { allowed_networks: vec!["127.0.0.0/8".parse().expect("network")], ..Rules::default() };
        let ids = [NODE.parse().expect("id")].into();
        let client = PeerClient::new(tls.clone(), trust_domain, ids, Guard::new(rules), clock.clone());
        Self { _directory: directory, root, bundle, tls, clock, client }
    }

    async fn post(&self, endpoint: &Endpoint, timeout: Duration) -> Result<PeerResponse, PeerCallError> {
        self.client.post(endpoint, "/v1/a", Bytes::from_static(b"{}"), timeout, BYTES_MAX).await
    }
}

fn bundle_of(roots: &[&Authority]) -> String {
    let key =
        |root: &&Authority| json!({"kty": "EC", "use": "x509-svid", "x5c": [STANDARD.encode(root.der())]});
    json!({"keys": roots.iter().map(key).collect::<Vec<_>>()}).to_string()
}

/// Behaviour of a node after it has received a request.
#[derive(Clone)]
enum Answer {
    /// A head, and a body if it is not empty.
    Sends(Vec<u8>, Vec<u8>),
    /// Nothing, but it answers pings.
    Waits,
    /// Nothing at all.
    Hangs,
}

/// A node of the peer.
struct Node {
    endpoint: Endpoint,
    /// A request has arrived.
    asked: Arc<Notify>,
    /// Number of connections.
    connections: Arc<AtomicUsize>,
    _serving: JoinSet<()>,
}

impl Node {
    async fn start(
        id: &str,
        issuer: &Authority,
        caller: &Caller,
        protocols: &[&str],
        answer: Answer,
    ) -> Self {
        let (certificate, key) = leaf(id, ExtendedKeyUsagePurpose::ServerAuth, issuer);
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(caller.root.der().clone()).expect("root");
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(verifier.build().expect("verifier"))
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("server");
        server.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(server));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let rules =
            Rules { allowed_networks: vec!["127.0.0.0/8".parse().expect("network")], ..Rules::default() };
        let url = format!("https://{}", listener.local_addr().expect("address"));
        let endpoint = Endpoint::base(&url, &Guard::new(rules)).expect("an endpoint");
        let (asked, mut serving) = (Arc::new(Notify::new()), JoinSet::new());
        let notified = Arc::clone(&asked);
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.expect("a connection");
                count.fetch_add(1, Ordering::Relaxed);
                let (acceptor, answer, asked) = (acceptor.clone(), answer.clone(), Arc::clone(&notified));
                connections.spawn(async move {
                    if let Ok(stream) = acceptor.accept(socket).await {
                        drop(converse(stream, answer, &asked).await);
                    }
                });
            }
        });
        Self { endpoint, asked, connections, _serving: serving }
    }

    async fn of(caller: &Caller, issuer: &Authority, answer: Answer) -> Self {
        Self::start(NODE, issuer, caller, &["h2"], answer).await
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("small").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

async fn converse(mut stream: TlsStream<TcpStream>, answer: Answer, asked: &Notify) -> std::io::Result<()> {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [_, a, b, kind, flags, stream_id @ ..] = head;
        let mut payload = vec![0; usize::from(u16::from_be_bytes([a, b]))];
        stream.read_exact(&mut payload).await?;
        if matches!(kind, DATA | HEADERS) && flags & LAST != 0 {
            asked.notify_one();
        }
        let sent = match (kind, &answer) {
            _ if matches!(answer, Answer::Hangs) => Vec::new(),
            (SETTINGS, _) if flags & LAST == 0 => frame(SETTINGS, LAST, 0, &[]),
            (PING, _) if flags & LAST == 0 => frame(PING, LAST, 0, &payload),
            (DATA | HEADERS, Answer::Sends(head, body)) if flags & LAST != 0 => {
                let id = u32::from_be_bytes(stream_id);
                let ends = if body.is_empty() { END_HEADERS | LAST } else { END_HEADERS };
                let mut sent = frame(HEADERS, ends, id, head);
                if !body.is_empty() {
                    sent.extend(frame(DATA, LAST, id, body));
                }
                sent
            }
            _ => Vec::new(),
        };
        stream.write_all(&sent).await?;
        stream.flush().await?;
    }
}

fn good(body: &[u8]) -> Answer {
    Answer::Sends(vec![STATUS_200], body.to_vec())
}

fn tls(reason: &str) -> PeerCallError {
    PeerCallError::Tls(reason.to_owned())
}

#[tokio::test]
async fn node_of_the_peer_is_called_with_our_certificate() {
    let peer = root("peer");
    let caller = Caller::of(&peer);
    let node = Node::of(&caller, &peer, good(b"{\"a\": 1}")).await;
    for _ in 0..2 {
        let answer = caller.post(&node.endpoint, AMPLE).await.expect("an answer");
        assert_eq!((answer.status, answer.body.as_ref()), (200, &b"{\"a\": 1}"[..]));
    }
    // Ends the call without a certificate, which this node requires.
    assert!(caller.client.bundle(&node.endpoint).await.is_err());
}

/// Attack: another server at the address of a node.
#[tokio::test]
async fn other_server_at_the_address_is_refused() {
    let (peer, other) = (root("peer"), root("other"));
    let caller = Caller::of(&peer);
    let answer = good(b"{}");
    let elsewhere = "spiffe://peer.example/other";
    for (id, issuer, protocols, reason) in [
        (NODE, &other, &["h2"][..], "certificate has no path to an accepted CA"),
        (NODE, &caller.root, &["h2"][..], "certificate has no path to an accepted CA"),
        (elsewhere, &peer, &["h2"][..], "certificate is of another SPIFFE ID than those of the peer"),
        (
            "spiffe://own.example/node",
            &caller.root,
            &["h2"][..],
            "certificate is of a trust domain that is not configured",
        ),
        (NODE, &peer, &["http/1.1"][..], "handshake refused by the node of the peer"),
    ] {
        let node = Node::start(id, issuer, &caller, protocols, answer.clone()).await;
        assert_eq!(caller.post(&node.endpoint, AMPLE).await, Err(tls(reason)), "{id}");
    }
}

#[tokio::test]
async fn node_that_does_not_know_our_root_refuses_us() {
    let peer = root("peer");
    let (caller, stranger) = (Caller::of(&peer), Caller::of(&peer));
    let node = Node::of(&stranger, &peer, good(b"{}")).await;
    let refused = caller.post(&node.endpoint, AMPLE).await;
    assert_eq!(refused, Err(tls("handshake refused by the node of the peer")));
}

#[tokio::test]
async fn response_is_limited_in_size_and_time_and_redirects_nowhere() {
    let peer = root("peer");
    let caller = Caller::of(&peer);
    let of_size = async |bytes: usize| {
        let node = Node::of(&caller, &peer, good(&vec![b'a'; bytes])).await;
        caller.post(&node.endpoint, AMPLE).await.map(|answer| answer.body.len())
    };
    assert_eq!(of_size(BYTES_MAX).await, Ok(BYTES_MAX));
    assert_eq!(of_size(BYTES_MAX + 1).await, Err(client::Error::TooLarge.into()));
    let waiting = Node::of(&caller, &peer, Answer::Waits).await;
    let late = caller.post(&waiting.endpoint, Duration::from_millis(200)).await;
    assert_eq!(late, Err(client::Error::TimedOut.into()));
    // `:status: 307` as a literal, and `location: /b`, with indexed names.
    let head = [&[0x08, 3][..], b"307", &[0x0f, 0x1f, 2], b"/b"].concat();
    let elsewhere = Node::of(&caller, &peer, Answer::Sends(head, Vec::new())).await;
    let redirected = caller.post(&elsewhere.endpoint, AMPLE).await;
    assert_eq!(redirected, Err(client::Error::Redirected.into()));
}

#[tokio::test]
async fn connection_without_answers_to_pings_is_closed() {
    let peer = root("peer");
    let caller = Caller::of(&peer);
    let node = Node::of(&caller, &peer, Answer::Hangs).await;
    let clock = Clock::system();
    let began = clock.boot();
    assert_eq!(caller.post(&node.endpoint, AMPLE).await, Err(client::Error::TimedOut.into()));
    assert!(clock.boot() < began + AMPLE / 2, "by the ping");
}

/// Regression: a connection served calls after the certificate of the node had expired.
#[tokio::test]
async fn connection_is_made_again_after_its_age_limit() {
    let peer = root("peer");
    let caller = Caller::of(&peer);
    let node = Node::of(&caller, &peer, good(b"{}")).await;
    let almost = limits::TLS_CONNECTION_AGE_MAX.saturating_sub(Duration::from_millis(1));
    for (pause, expected) in [(Duration::ZERO, 1), (almost, 1), (Duration::from_millis(1), 2), (almost, 2)] {
        caller.clock.advance(pause);
        caller.post(&node.endpoint, AMPLE).await.expect("an answer");
        assert_eq!(node.connections.load(Ordering::Relaxed), expected, "{pause:?}");
    }
}

#[tokio::test]
async fn call_in_flight_ends_with_the_root_of_the_peer() {
    let (peer, new) = (root("peer"), root("new"));
    let caller = Caller::of(&peer);
    let node = Node::of(&caller, &peer, Answer::Waits).await;
    let mut following = JoinSet::new();
    following.spawn(caller.tls.clone().follow());
    let rotated = async {
        node.asked.notified().await;
        caller.bundle.accept(bundle_of(&[&new]).as_bytes()).expect("accepted");
    };
    let (ended, ()) = tokio::join!(caller.post(&node.endpoint, AMPLE), rotated);
    assert_eq!(ended, Err(PeerCallError::Reloaded));
    let refused = caller.post(&node.endpoint, AMPLE).await;
    assert_eq!(refused, Err(tls("certificate has no path to an accepted CA")));
}

#[test]
fn endpoint_is_an_https_url_that_the_guard_allows() {
    let guard = Guard::new(Rules { allow_loopback_http: true, ..Rules::default() });
    for url in ["https://eu-1.example.com:8694", "https://10.0.0.1:8694", "https://[fd00::1]:8694/"] {
        assert!(Endpoint::base(url, &guard).is_ok(), "{url}");
    }
    for url in [
        "http://localhost:8694",
        "http://eu-1.example.com",
        "https://127.0.0.1:1",
        "https://169.254.169.254",
        "https://[::ffff:10.0.0.1]",
        "https://a@eu-1.example.com",
        "https://eu-1.example.com/v1",
        "https://eu-1.example.com/?a",
        "https://eu-1.example.com/#a",
    ] {
        assert!(Endpoint::base(url, &guard).is_err(), "{url}");
    }
    assert!(Endpoint::document("https://eu-1.example.com/bundle", &guard).is_ok());
    assert!(Endpoint::document("http://localhost/bundle", &guard).is_err());
}
