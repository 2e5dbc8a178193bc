//! An issuer like the API server of a Kubernetes cluster: a CA of its own, and documents for authenticated callers only.

use std::fs;
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::clock::{Clock, Timestamp};
use crate::outbound::client::{CallLimits, Client};
use crate::outbound::guard::{Guard, Rules};
use crate::outbound::issuer_keys::{Error, IssuerKeys};
use crate::telemetry::Metrics;
use crate::token::issuer::KeySource;
use crate::token::jws::Algorithm;
use crate::token::signing_key::SigningKey;

/// A server that states `jwks_uri` in its discovery document, and serves its documents to the bearer of `token`, or to all without one.
struct Server {
    directory: TempDir,
    base: String,
    token: Arc<Mutex<String>>,
    jwks_uri: Arc<Mutex<String>>,
    /// `Authorization` of every request.
    presented: Arc<Mutex<Vec<String>>>,
    _serving: JoinSet<()>,
}

impl Server {
    async fn start() -> Self {
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().expect("key")).expect("a CA");
        let key = KeyPair::generate().expect("key");
        let names = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("names");
        let certificate = names.signed_by(&key, &ca).expect("a certificate");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a server");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let base = format!("https://{}", listener.local_addr().expect("address"));
        let directory = tempfile::tempdir().expect("directory");
        fs::write(directory.path().join("ca.crt"), ca.pem()).expect("written");
        fs::write(directory.path().join("token"), "first\n").expect("written");
        let token = Arc::new(Mutex::new("first".to_owned()));
        let jwks_uri = Arc::new(Mutex::new(format!("{base}/openid/v1/jwks")));
        let presented = Arc::new(Mutex::new(Vec::new()));
        let mut jwk = SigningKey::generate().expect("key").public_jwk().clone();
        jwk["kid"] = "a".into();
        let keys = json!({"keys": [jwk]}).to_string();
        let (issuer, valid, uri, seen) =
            (base.clone(), Arc::clone(&token), Arc::clone(&jwks_uri), Arc::clone(&presented));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.expect("a connection");
                let Ok(mut stream) = acceptor.accept(socket).await else { continue };
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else { break };
                    request.push(byte);
                }
                let request = String::from_utf8(request).expect("text");
                let authorization = request.lines().find_map(|line| line.strip_prefix("authorization: "));
                let authorization = authorization.unwrap_or_default().to_owned();
                let is_valid = {
                    let token = valid.lock().expect("token");
                    token.is_empty() || authorization == format!("Bearer {token}")
                };
                seen.lock().expect("requests").push(authorization);
                let body = if request.starts_with("GET /openid/v1/jwks ") {
                    keys.clone()
                } else {
                    json!({"issuer": issuer, "jwks_uri": *uri.lock().expect("uri")}).to_string()
                };
                let status = if is_valid { "200 OK" } else { "401 Unauthorized" };
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(format!("{head}{body}").as_bytes()).await.ok();
                stream.shutdown().await.ok();
            }
        });
        Self { directory, base, token, jwks_uri, presented, _serving: serving }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn files(&self) -> FetchFiles {
        FetchFiles { ca: Some(self.path("ca.crt")), bearer_token: Some(self.path("token")) }
    }

    fn keys(&self, files: &FetchFiles) -> (IssuerKeys, Clock) {
        let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
        let rules =
            Rules { allowed_networks: vec!["127.0.0.0/8".parse().expect("network")], ..Rules::default() };
        let client = Client::new(CallLimits::default(), Guard::new(rules)).expect("client");
        let issuers = [(self.base.as_str(), &KeySource::Discovery, Some(files))];
        (IssuerKeys::new(issuers, client, clock.clone(), Metrics::new().expect("metrics")), clock)
    }

    async fn has_key(&self, keys: &IssuerKeys) -> bool {
        let found = keys.key_for(&self.base, Some("a"), Algorithm::Es256).await;
        assert!(found.is_ok() || found.as_ref().err() == Some(&Error::Unavailable), "{found:?}");
        found.is_ok()
    }

    fn presented(&self) -> Vec<String> {
        std::mem::take(&mut *self.presented.lock().expect("requests"))
    }
}

#[tokio::test]
async fn keys_are_fetched_with_the_ca_and_the_token_of_the_issuer() {
    let server = Server::start().await;
    let (keys, clock) = server.keys(&server.files());
    assert!(server.has_key(&keys).await);
    assert_eq!(server.presented(), ["Bearer first", "Bearer first"]);
    // The kubelet replaces the token before it ends.
    "second".clone_into(&mut server.token.lock().expect("token"));
    fs::write(server.path("token"), "second").expect("written");
    clock.advance(limits::ISSUER_KEYS_REFRESH);
    assert!(server.has_key(&keys).await);
    assert_eq!(server.presented(), ["Bearer second", "Bearer second"]);
}

#[tokio::test]
async fn issuer_of_a_private_ca_is_not_trusted_without_it() {
    let server = Server::start().await;
    let other = Server::start().await;
    for ca in [None, Some(other.path("ca.crt"))] {
        let (keys, _) = server.keys(&FetchFiles { ca, ..server.files() });
        assert!(!server.has_key(&keys).await);
    }
    assert_eq!(server.presented(), Vec::<String>::new(), "the token was sent to an unknown server");
    let (keys, _) = server.keys(&FetchFiles { bearer_token: None, ..server.files() });
    assert!(!server.has_key(&keys).await);
    assert_eq!(server.presented(), [""]);
}

/// Attack: a discovery document sends the token to another server, which the CA also vouches for.
#[tokio::test]
async fn token_is_not_sent_to_another_origin() {
    let (server, thief) = (Server::start().await, Server::start().await);
    let roots =
        [fs::read(server.path("ca.crt")), fs::read(thief.path("ca.crt"))].map(|pem| pem.expect("read"));
    fs::write(server.path("ca.crt"), roots.concat()).expect("written");
    *server.jwks_uri.lock().expect("uri") = format!("{}/openid/v1/jwks", thief.base);
    let (keys, _) = server.keys(&server.files());
    assert!(!server.has_key(&keys).await);
    assert_eq!((server.presented().len(), thief.presented().len()), (1, 0));
    // An issuer that needs no token may publish its keys elsewhere.
    for open in [&server, &thief] {
        open.token.lock().expect("token").clear();
    }
    let (keys, _) = server.keys(&FetchFiles { bearer_token: None, ..server.files() });
    assert!(server.has_key(&keys).await);
    assert_eq!(thief.presented(), [""]);
}

#[tokio::test]
async fn unusable_file_fails_the_fetch_and_names_itself() {
    let server = Server::start().await;
    let long = vec![b'a'; limits::TOKEN_BYTES_MAX + 1];
    for content in [&b""[..], b"\n", b"two words", b"line\r\nx-injected: 1", b"\xff", &long] {
        fs::write(server.path("token"), content).expect("written");
        let refused = read(&server.files()).await.expect_err("refused").to_string();
        let token = server.path("token").display().to_string();
        assert_eq!(
            refused,
            format!(
                "bearer_token_file {token}: is not a bearer token of at most {} bytes",
                limits::TOKEN_BYTES_MAX
            )
        );
    }
    fs::remove_file(server.path("token")).expect("removed");
    let refused = read(&server.files()).await.expect_err("refused").to_string();
    assert!(refused.starts_with("bearer_token_file ") && refused.contains("No such file"), "{refused}");
    fs::write(server.path("ca.crt"), "no PEM").expect("written");
    let refused = read(&server.files()).await.expect_err("refused").to_string();
    assert!(
        refused.starts_with("ca_file ") && refused.ends_with("is not PEM with certificates"),
        "{refused}"
    );
    let (keys, _) = server.keys(&server.files());
    assert!(!server.has_key(&keys).await);
    assert_eq!(server.presented(), Vec::<String>::new());
}
