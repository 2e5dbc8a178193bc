//! Certificates from the documented OpenSSL commands, and those of `trust-fabric pki` with curl and Python's
//! requests.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier as _;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{CertificateError, Error, RootCertStore, ServerConfig};
use trust_fabric::clock::Clock;
use trust_fabric::config::{self, Overrides};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

use crate::support::certificates::{Curl, development_pki, documented_blocks, run_documented_commands};
use crate::support::python;

fn chain(path: &Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(path).expect("file").collect::<Result<_, _>>().expect("PEM")
}

fn roots(path: &Path) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    assert_ne!(roots.add_parsable_certificates(chain(path)).0, 0);
    Arc::new(roots)
}

fn now() -> UnixTime {
    let secs = u64::try_from(Clock::system().now().secs()).expect("after 1970");
    UnixTime::since_unix_epoch(Duration::from_secs(secs))
}

/// Whether `openssl` with these arguments succeeds.
fn openssl(directory: &Path, words: &str) -> bool {
    let output = Command::new("openssl").args(words.split(' ')).current_dir(directory).output();
    output.expect("run openssl").status.success()
}

/// URI names, and whether it is valid for servers and for clients.
fn names_and_usage(leaf: &CertificateDer<'_>) -> (Vec<String>, bool, bool) {
    let (_, leaf) = X509Certificate::from_der(leaf).expect("certificate");
    assert!(!leaf.is_ca());
    let usage = leaf.key_usage().expect("once").expect("key usage").value;
    assert_eq!(usage.to_string(), "Digital Signature");
    let purposes = leaf.extended_key_usage().expect("once").expect("extended key usage").value;
    let names = &leaf.subject_alternative_name().expect("once").expect("names").value.general_names;
    let uris = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    });
    (uris.collect(), purposes.server_auth, purposes.client_auth)
}

#[test]
fn documented_commands_create_and_revoke_certificates() {
    let directory = run_documented_commands();
    let path = |name: &str| directory.path().join(name);
    for (name, purposes) in
        [("node", (true, false)), ("operator", (false, true)), ("workload", (false, true))]
    {
        let chain = chain(&path(&format!("{name}-chain.pem")));
        assert_eq!(chain.len(), 2, "{name}");
        let (uris, server, client) = names_and_usage(&chain[0]);
        assert_eq!(uris, [format!("spiffe://trust.example.com/{name}")]);
        assert_eq!((server, client), purposes, "{name}");
    }
    for purpose in ["sslserver", "sslclient"] {
        let checked = |name: &str| {
            openssl(
                directory.path(),
                &format!(
                    "verify -CAfile root.pem -untrusted issuing.pem -purpose {purpose} -crl_check_all \
                     -CRLfile crl.pem {name}.pem"
                ),
            )
        };
        let expected = (purpose == "sslserver", purpose == "sslclient", false);
        assert_eq!((checked("node"), checked("operator"), checked("workload")), expected, "{purpose}");
    }
    assert!(!path("node-key.pem.new").exists() && !path("crl.pem.new").exists());
}

#[test]
fn the_page_for_production_suits_the_tls_of_a_node() {
    let directory = run_documented_commands();
    let path = |name: &str| directory.path().join(name);
    let provider = Arc::new(aws_lc_rs::default_provider());
    let lists = CertificateRevocationListDer::pem_file_iter(path("crl.pem")).expect("file");
    let lists: Vec<_> = lists.collect::<Result<_, _>>().expect("PEM");
    assert_eq!(lists.len(), 2);
    let verifier = |lists| {
        let builder =
            WebPkiClientVerifier::builder_with_provider(roots(&path("root.pem")), Arc::clone(&provider));
        builder.with_crls(lists).enforce_revocation_expiration().build().expect("verifier")
    };
    let outcome = |verifier: &dyn ClientCertVerifier, name: &str, at: UnixTime| {
        let chain = chain(&path(&format!("{name}-chain.pem")));
        verifier.verify_client_cert(&chain[0], &chain[1..], at).map(drop)
    };
    let refused = |reason: CertificateError| Err(Error::InvalidCertificate(reason));
    let both = verifier(lists.clone());
    assert_eq!(outcome(both.as_ref(), "operator", now()), Ok(()));
    assert_eq!(outcome(both.as_ref(), "workload", now()), refused(CertificateError::Revoked));
    assert!(outcome(both.as_ref(), "node", now()).is_err(), "a node is no caller");
    // "the file needs a list of each CA, and each must be renewed in time"
    for list in lists {
        let one = verifier(vec![list]);
        assert_eq!(
            outcome(one.as_ref(), "operator", now()),
            refused(CertificateError::UnknownRevocationStatus)
        );
    }
    let later = UnixTime::since_unix_epoch(Duration::from_secs(now().as_secs() + 8 * 24 * 3600));
    let expired = outcome(both.as_ref(), "operator", later);
    assert!(
        matches!(
            expired,
            Err(Error::InvalidCertificate(CertificateError::ExpiredRevocationListContext { .. }))
        ),
        "{expired:?}"
    );
    let servers = WebPkiServerVerifier::builder_with_provider(roots(&path("root.pem")), provider);
    let servers = servers.build().expect("verifier");
    let node = chain(&path("node-chain.pem"));
    for (name, is_named) in [("fabric.example.org", true), ("localhost", true), ("other.example.org", false)]
    {
        let name = ServerName::try_from(name).expect("name");
        let outcome = servers.verify_server_cert(&node[0], &node[1..], &name, &[], now());
        assert_eq!(outcome.is_ok(), is_named, "{name:?}: {outcome:?}");
    }
}

/// Answers 200 to a caller with a certificate and 401 to one without, until it is dropped.
async fn server(made: &trust_fabric::pki::IssuedCertificates, tasks: &mut JoinSet<()>) -> SocketAddr {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder =
        WebPkiClientVerifier::builder_with_provider(roots(&made.ca.certificate), Arc::clone(&provider));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(builder.allow_unauthenticated().build().expect("verifier"))
        .with_single_cert(
            chain(&made.node.certificate),
            PrivateKeyDer::from_pem_file(&made.node.private_key).expect("key"),
        )
        .expect("certificate");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("address");
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let status = if stream.get_ref().1.peer_certificates().is_some() { 200 } else { 401 };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => head.push(byte),
                    Err(_) => break,
                }
            }
            let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            drop(stream.write_all(answer.as_bytes()).await);
            drop(stream.shutdown().await);
        }
    });
    address
}

// The server needs a thread while the test blocks on curl and Python.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_and_requests_accept_and_show_the_certificates_of_pki() {
    let (directory, made) = development_pki(&["operator"]);
    let mut tasks = JoinSet::new();
    let address = server(&made, &mut tasks).await;
    let (_, operator) = &made.callers[0];
    let known =
        Curl { ca: &made.ca.certificate, caller: Some((&operator.certificate, &operator.private_key)) };
    let unknown = Curl { caller: None, ..known };
    for host in ["127.0.0.1", "localhost"] {
        let base = format!("https://{host}:{}", address.port());
        let statuses = [known, unknown].map(|curl| curl.status("GET", &format!("{base}/x"), None));
        assert_eq!(statuses, [Some(200), Some(401)], "{host}");
        let order = |ca: &Path| {
            json!({
                "base": base, "ca": ca, "cert": operator.certificate, "key": operator.private_key,
                "routes": [
                    {"method": "GET", "path": "/a"},
                    {"method": "POST", "path": "/b", "body": {"c": 1}},
                ],
            })
        };
        let (answers, _) = python::run("call_routes.py", &order(&made.ca.certificate));
        let statuses = |answers: &Value, name: &str| {
            answers.as_array().expect("a list").iter().map(|answer| answer[name].clone()).collect::<Vec<_>>()
        };
        assert_eq!(statuses(&answers, "with"), [200, 200], "{answers}");
        assert_eq!(statuses(&answers, "without"), [401, 401], "{answers}");
        // Both verify the node's certificate.
        let other = directory.path().join("other.pem");
        fs::copy(&development_pki(&[]).1.ca.certificate, &other).expect("copied");
        assert_eq!(Curl { ca: &other, ..known }.status("GET", &base, None), None);
        let (answers, _) = python::run("call_routes.py", &order(&other));
        assert_eq!(statuses(&answers, "with"), ["SSLError", "SSLError"], "{answers}");
    }
}

#[test]
fn documented_configuration_is_valid() {
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("node.toml");
    let rest = r#"
        node.data_dir = "data"
        fabric = { issuer = "https://fabric.example.org:8694", trust_domain = "trust.example.com" }
        policy.directory = "policies"
        issuers = [{ issuer = "https://k8s.example.com", subject = "kubernetes", discovery = true,
            trust_domains = ["trust.example.com"] }]
    "#;
    let page = documented_blocks("toml");
    assert!(!page.is_empty());
    fs::write(&file, format!("{}{}", rest.replace(",\n           ", ","), page.concat())).expect("written");
    let config = config::load(Some(&file), &mut std::iter::empty(), &Overrides::default()).expect("good");
    let authorities = config.tls.expect("TLS").files.authorities;
    assert_eq!(authorities[0].trust_domain.as_str(), "trust.example.com");
}
