//! The client against servers of the tests.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use wiremock::matchers::{body_json, header as header_is, method, path, query_param, query_param_is_missing};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;
use crate::certificates::roots;

#[test]
fn server_url_must_be_a_host_alone() {
    for server in ["", "127.0.0.1:8693", "ftp://h", "http://h/path", "http://h?q", "http://u@h", "http://h#f"]
    {
        assert!(matches!(NodeClient::new(server), Err(Error::AddressMalformed(_))), "{server}");
    }
    assert!(NodeClient::new("http://127.0.0.1:8693/").is_ok());
}

#[tokio::test]
async fn request_is_sent_and_response_read() {
    let server = MockServer::start().await;
    Mock::given(method("PUT"))
        .and(path("/v1/sys/policy"))
        .and(body_json(json!({"a": 1})))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({"changed": true})))
        .mount(&server)
        .await;
    let client = NodeClient::new(&server.uri()).expect("client");
    let answer = client.put(&["v1", "sys", "policy"], &json!({"a": 1})).await.expect("answer");
    assert_eq!(answer, json!({"changed": true}));
}

#[tokio::test]
async fn segment_never_changes_the_path() {
    let server = MockServer::start().await;
    Mock::given(path("/v1/sys/keys/a%2Fb%3Fc/taint"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({})))
        .mount(&server)
        .await;
    let client = NodeClient::new(&server.uri()).expect("client");
    assert!(client.post(&["v1", "sys", "keys", "a/b?c", "taint"], &json!({})).await.is_ok());
}

#[tokio::test]
async fn refusal_shows_the_description_of_the_node() {
    let server = MockServer::start().await;
    let body = json!({"error": "not_found", "error_description": "there is no such key", "request_id": "1"});
    Mock::given(method("GET"))
        .respond_with(ResponseTemplate::new(404).set_body_json(body))
        .mount(&server)
        .await;
    let refused = NodeClient::new(&server.uri()).expect("client").get(&["x"]).await.expect_err("404");
    assert_eq!(refused.to_string(), "there is no such key");
}

#[tokio::test]
async fn server_that_is_not_a_node_is_detected() {
    let server = MockServer::start().await;
    let page = ResponseTemplate::new(200).set_body_string("<html>");
    Mock::given(method("GET")).respond_with(page).mount(&server).await;
    let outcome = NodeClient::new(&server.uri()).expect("client").get(&["x"]).await;
    assert!(matches!(outcome, Err(Error::Foreign(_))), "{outcome:?}");
}

/// A list in pages of `rows` rows each, the last of which states that there are no more.
async fn pages(pages: usize, rows: usize) -> MockServer {
    let server = MockServer::start().await;
    for page in 0..pages {
        let mut answer = ResponseTemplate::new(200).set_body_json(vec![page; rows]);
        if page + 1 < pages {
            let link = format!("<http://elsewhere.example/x?limit=1&cursor=p{}>; rel=\"next\"", page + 1);
            answer = answer.insert_header("link", link);
        }
        let asked = Mock::given(method("GET")).and(path("/v1/list"));
        let asked = if page == 0 {
            asked.and(query_param_is_missing("cursor"))
        } else {
            asked.and(query_param("cursor", format!("p{page}")))
        };
        asked.respond_with(answer).mount(&server).await;
    }
    server
}

#[tokio::test]
async fn list_is_read_to_its_end_or_the_limit() {
    let list = async |server: &MockServer| {
        NodeClient::new(&server.uri()).expect("client").list(&["v1", "list"]).await
    };
    assert_eq!(list(&pages(3, 2).await).await.expect("rows"), [0, 0, 1, 1, 2, 2].map(Value::from));
    assert_eq!(list(&pages(1, 0).await).await.expect("rows"), [] as [Value; 0]);
    assert_eq!(
        list(&pages(2, limits::LIST_ROWS_MAX / 2).await).await.expect("rows").len(),
        limits::LIST_ROWS_MAX
    );
    let more = list(&pages(3, limits::LIST_ROWS_MAX / 2).await).await;
    assert!(matches!(more, Err(Error::TooManyRows)));
    // No page at all, and one that leads to itself.
    let server = MockServer::start().await;
    Mock::given(method("GET"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({})))
        .mount(&server)
        .await;
    assert!(matches!(list(&server).await, Err(Error::Foreign(_))));
    let server = MockServer::start().await;
    let circle = ResponseTemplate::new(200).set_body_json(json!([1]));
    Mock::given(method("GET"))
        .respond_with(circle.insert_header("link", "</x?cursor=a>; rel=\"next\""))
        .mount(&server)
        .await;
    assert!(matches!(list(&server).await, Err(Error::Foreign(_))));
}

#[tokio::test]
async fn bearer_query_and_empty_response() {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(header_is("authorization", "Bearer a.b.c"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!(1)))
        .mount(&server)
        .await;
    Mock::given(method("POST"))
        .and(query_param("point", "a&b"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!(2)))
        .mount(&server)
        .await;
    Mock::given(method("DELETE")).respond_with(ResponseTemplate::new(204)).mount(&server).await;
    let client = NodeClient::new(&server.uri()).expect("client");
    assert_eq!(client.post_as("a.b.c", &["x"], &json!({})).await.expect("answer"), 1);
    assert_eq!(client.post_with(&["x"], &[("point", "a&b")], &json!({})).await.expect("answer"), 2);
    client.delete(&["x"]).await.expect("nothing");
    let bad = client.post_as("a\nb", &["x"], &json!({})).await;
    assert!(matches!(bad, Err(Error::Header("token"))));
    let authenticated = client.with_bearer("a.b.c".to_owned());
    assert_eq!(authenticated.post(&["x"], &json!({})).await.expect("response"), 1);
}

/// A CA, and beside it `<name>.pem` and `<name>-key.pem` of an end-entity certificate that it signed.
struct Signed {
    directory: TempDir,
    ca: CertifiedIssuer<'static, KeyPair>,
    leaf: rcgen::Certificate,
    key: KeyPair,
}

impl Signed {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("key")).expect("CA");
        let key = KeyPair::generate().expect("key");
        let names = CertificateParams::new(["127.0.0.1".to_owned()]).expect("names");
        let leaf = names.signed_by(&key, &ca).expect("leaf");
        let directory = tempfile::tempdir().expect("directory");
        for (name, text) in
            [("ca.pem", ca.pem()), ("leaf.pem", leaf.pem()), ("leaf-key.pem", key.serialize_pem())]
        {
            fs::write(directory.path().join(name), text).expect("written");
        }
        Self { directory, ca, leaf, key }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn certificates(&self) -> Certificates {
        Certificates {
            ca: Some(self.file("ca.pem").into()),
            certificate: Some(self.file("leaf.pem").into()),
            private_key: Some(self.file("leaf-key.pem").into()),
        }
    }
}

/// Sends one request to a server of `node` that requires a client certificate of `clients`.
async fn asked(node: &Signed, clients: &Signed, certificates: &Certificates) -> Result<Value, Error> {
    let mut roots = RootCertStore::empty();
    roots.add(clients.ca.der().clone()).expect("root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let key = PrivateKeyDer::Pkcs8(node.key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier.build().expect("verifier"))
        .with_single_cert(vec![node.leaf.der().clone()], key)
        .expect("certificate");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let server = format!("https://{}", listener.local_addr().expect("address"));
    let client = NodeClient::with_certificates(&[server], certificates)?;
    let answering = async {
        let (stream, _) = listener.accept().await.expect("accepted");
        let Ok(mut stream) = TlsAcceptor::from(Arc::new(config)).accept(stream).await else { return };
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a request"));
        }
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(answer).await.expect("answered");
    };
    tokio::join!(client.get(&["x"]), answering).0
}

#[tokio::test]
async fn presents_its_certificate_and_trusts_only_the_given_ca() {
    let (node, clients) = (Signed::new(), Signed::new());
    let good = Certificates { ca: Some(node.file("ca.pem").into()), ..clients.certificates() };
    assert_eq!(asked(&node, &clients, &good).await.expect("an answer"), json!({}));
    let nameless = Certificates { ca: Some(node.file("ca.pem").into()), ..Certificates::default() };
    let stranger = Certificates { ca: Some(node.file("ca.pem").into()), ..node.certificates() };
    for (certificates, said) in [
        (clients.certificates(), "invalid peer certificate"),
        (Certificates { ca: None, ..good }, "invalid peer certificate"),
        (nameless, "CertificateRequired"),
        (stranger, "alert"),
    ] {
        let refused = asked(&node, &clients, &certificates).await.expect_err("refused");
        let Error::Handshake { reason, .. } = &refused else { panic!("{certificates:?}: {refused}") };
        assert!(reason.contains(said), "{certificates:?}: {refused}");
    }
}

#[test]
fn error_names_the_file_without_the_expected_content() {
    let (one, other) = (Signed::new(), Signed::new());
    let empty = one.directory.path().join("empty.pem");
    fs::write(&empty, "nothing").expect("written");
    let refused = |certificates: &Certificates| {
        NodeClient::with_certificates(&["https://h"], certificates).expect_err("refused").to_string()
    };
    let good = one.certificates();
    for (certificates, said) in [
        (Certificates { ca: Some(one.file("gone.pem").into()), ..good.clone() }, "gone.pem: No such file"),
        (
            Certificates { ca: Some(empty.clone().into()), ..good.clone() },
            "empty.pem: holds no certificate in PEM",
        ),
        (
            Certificates { ca: Some(one.file("leaf-key.pem").into()), ..good.clone() },
            "leaf-key.pem: holds no certificate",
        ),
        (
            Certificates { certificate: Some(empty.clone().into()), ..good.clone() },
            "empty.pem: holds no certificate",
        ),
        (
            Certificates { private_key: Some(empty.into()), ..good.clone() },
            "empty.pem: holds no private key in PEM",
        ),
        (
            Certificates { private_key: Some(one.file("leaf.pem").into()), ..good.clone() },
            "leaf.pem: holds no private key",
        ),
        (Certificates { private_key: Some(one.file("").into()), ..good.clone() }, "Is a directory"),
        (
            Certificates { private_key: None, ..good.clone() },
            "a certificate was given without its private key",
        ),
        (
            Certificates { certificate: None, ..good.clone() },
            "a private key was given without its certificate",
        ),
        (
            Certificates { private_key: Some(other.file("leaf-key.pem").into()), ..good.clone() },
            "certificates cannot be used",
        ),
    ] {
        let line = refused(&certificates);
        assert!(line.contains(said) && !line.contains("BEGIN"), "{line}");
    }
    assert!(NodeClient::with_certificates(&["https://h"], &good).is_ok());
}

#[test]
fn pem_text_is_used_and_never_shown() {
    let signed = Signed::new();
    let text = |name, file| Pem::Text { name, text: fs::read_to_string(signed.file(file)).expect("read") };
    let certificates = Certificates {
        ca: Some(text("ca_cert", "ca.pem")),
        certificate: Some(text("client_cert", "leaf.pem")),
        private_key: Some(text("client_key", "leaf-key.pem")),
    };
    assert!(NodeClient::with_certificates(&["https://h"], &certificates).is_ok());
    let shown = format!("{certificates:?}");
    assert!(shown.contains("client_key") && !shown.contains("BEGIN"), "{shown}");
    let swapped = Certificates { private_key: certificates.certificate.clone(), ..certificates };
    let refused = NodeClient::with_certificates(&["https://h"], &swapped).expect_err("refused");
    assert_eq!(refused.to_string(), "client_cert: holds no private key in PEM");
}

#[tokio::test]
async fn response_is_read_to_the_limit() {
    let padded = |bytes: usize| {
        let answer = ResponseTemplate::new(200).set_body_bytes([b"{}", &*vec![b' '; bytes - 2]].concat());
        Mock::given(method("GET")).respond_with(answer)
    };
    for (bytes, is_read) in [(limits::RESPONSE_BYTES_MAX, true), (limits::RESPONSE_BYTES_MAX + 1, false)] {
        let server = MockServer::start().await;
        padded(bytes).mount(&server).await;
        let outcome = NodeClient::new(&server.uri()).expect("client").get(&["x"]).await;
        assert_eq!(outcome.is_ok(), is_read, "{bytes}");
        assert!(is_read || matches!(outcome, Err(Error::Foreign(_))), "{bytes}");
    }
}

#[tokio::test(start_paused = true)]
async fn unresponsive_node_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = format!("http://{}", listener.local_addr().expect("address"));
    let client = NodeClient::new(&address).expect("client");
    let outcome = client.get(&["x"]).await;
    assert!(matches!(outcome, Err(Error::TimedOut(_))), "{outcome:?}");
    assert!(outcome.is_err_and(|error| error.to_string().ends_with("did not respond in time")));
}

/// A node that answers one request with this text, and then sends nothing and does not end the connection.
async fn that_says(text: &'static str) -> (Events, tokio::net::TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = format!("http://{}", listener.local_addr().expect("address"));
    let client = NodeClient::new(&address).expect("client");
    let answering = async {
        let (mut stream, _) = listener.accept().await.expect("accepted");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a request"));
        }
        let head = String::from_utf8(head).expect("a head");
        assert!(head.starts_with("GET /v1/events?types=tool%2Ckey HTTP/1.1"), "{head}");
        assert!(head.contains("last-event-id: a-1-0"), "{head}");
        let answer = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n";
        stream.write_all([answer, text].concat().as_bytes()).await.expect("answered");
        stream
    };
    let asked = client.events(&[("types", "tool,key")], Some("a-1-0"));
    let (events, stream) = tokio::join!(asked, answering);
    (events.expect("a feed"), stream)
}

#[tokio::test]
async fn silent_feed_times_out() {
    let (mut events, node) = that_says("id: a-2-0\nevent: tool\ndata: {}\n\n: ping\n\n").await;
    let event = events.next().await.expect("no error").expect("an event");
    assert_eq!((event.kind.as_str(), event.data.as_str()), ("tool", "{}"));
    assert_eq!(events.last_id(), Some("a-2-0"));
    tokio::time::pause();
    let now = || tokio::time::sleep(Duration::ZERO).deadline();
    let begun = now();
    let silent = events.next().await.expect_err("silence");
    assert!(silent.to_string().ends_with("has sent nothing for 45 s"), "{silent}");
    assert!(now() - begun >= limits::EVENTS_SILENCE_TIMEOUT);
    drop(node);
}

#[tokio::test]
async fn feed_ends_with_the_response_and_refusal_states_why() {
    let (mut events, node) = that_says("id: a-2-0\nevent: tool\ndata: {}\n\ndata: half").await;
    drop(node);
    assert!(events.next().await.expect("no error").is_some());
    assert_eq!(events.next().await.expect("no error"), None);
    let (mut cut_off, node) =
        that_says("id: a-2-0\nevent: tool\ndata: {}\n\nid: a-3-0\nevent: tool\nda").await;
    drop(node);
    while cut_off.next().await.expect("no error").is_some() {}
    assert_eq!(cut_off.last_id(), Some("a-2-0"));
    let (mut long, _node) =
        that_says(Box::leak("x".repeat(limits::EVENT_BYTES_MAX + 1).into_boxed_str())).await;
    assert!(matches!(long.next().await, Err(Error::Foreign(_))));
    let server = MockServer::start().await;
    let refusal = json!({"error": "access_denied", "error_description": "too many read"});
    for (answer, said) in [
        (ResponseTemplate::new(429).set_body_json(refusal), "too many read"),
        (ResponseTemplate::new(200).set_body_json(json!({})), "does not answer like a node"),
        (ResponseTemplate::new(204), "does not answer like a node"),
    ] {
        server.reset().await;
        Mock::given(method("GET")).and(path("/v1/events")).respond_with(answer).mount(&server).await;
        let client = NodeClient::new(&server.uri()).expect("client");
        let refused = client.events(&[], None).await.expect_err("refused").to_string();
        assert!(refused.contains(said), "{refused}");
    }
    let client = NodeClient::new(&server.uri()).expect("client");
    assert!(matches!(client.events(&[], Some("a\nb")).await, Err(Error::Header("id of an event"))));
}

#[test]
fn file_is_read_to_the_limit() {
    let signed = Signed::new();
    let (path, ca) = (signed.file("ca.pem"), fs::read_to_string(signed.file("ca.pem")).expect("read"));
    let most = usize::try_from(limits::PEM_BYTES_MAX).expect("small");
    for (bytes, is_read) in [(most, true), (most + 1, false)] {
        // The certificate ends where the file does.
        fs::write(&path, format!("{}{}", "\n".repeat(bytes - ca.trim_end().len()), ca.trim_end()))
            .expect("written");
        assert_eq!(roots(&path.clone().into()).is_ok(), is_read, "{bytes}");
    }
}

/// A node that responds to everything with `status`, and counts the requests.
async fn node(status: u16) -> MockServer {
    let server = MockServer::start().await;
    let body = json!({"error": "x", "error_description": format!("status {status}")});
    Mock::given(wiremock::matchers::any())
        .respond_with(ResponseTemplate::new(status).set_body_json(body).insert_header("retry-after", "7"))
        .mount(&server)
        .await;
    server
}

async fn requests(server: &MockServer) -> usize {
    server.received_requests().await.expect("recorded").len()
}

#[tokio::test]
async fn a_request_fails_over_and_stays_with_the_node_that_responds() {
    let unused = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let closed = format!("http://{}", unused.local_addr().expect("address"));
    drop(unused);
    let (busy, good) = (node(503).await, node(200).await);
    let client = NodeClient::with_certificates(&[closed, busy.uri(), good.uri()], &Certificates::default());
    let client = client.expect("client");
    client.get(&["x"]).await.expect("the third node");
    assert_eq!(client.server().as_str(), format!("{}/", good.uri()));
    client.get(&["x"]).await.expect("the third node");
    assert_eq!((requests(&busy).await, requests(&good).await), (1, 2));
}

#[tokio::test]
async fn error_that_says_most_about_the_outcome_is_returned() {
    let closed = || async {
        let unused = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        format!("http://{}", unused.local_addr().expect("address"))
    };
    let page = MockServer::start().await;
    let html = ResponseTemplate::new(200).set_body_string("<html>");
    Mock::given(wiremock::matchers::any()).respond_with(html).mount(&page).await;
    let busy = node(503).await;
    for urls in [
        [busy.uri(), closed().await, page.uri()],
        [closed().await, busy.uri(), page.uri()],
        [page.uri(), closed().await, busy.uri()],
    ] {
        let client = NodeClient::with_certificates(&urls, &Certificates::default()).expect("client");
        let error = client.get(&["x"]).await.expect_err("503");
        assert_eq!(error.status(), Some(503), "{urls:?}: {error}");
    }
    let urls = [page.uri(), closed().await];
    let client = NodeClient::with_certificates(&urls, &Certificates::default()).expect("client");
    let error = client.get(&["x"]).await.expect_err("no node");
    assert!(matches!(error, Error::Foreign(_)), "the request may have been carried out: {error}");
}

#[tokio::test]
async fn a_download_and_the_feed_fail_over() {
    let (busy, good) = (node(503).await, node(200).await);
    let client = || {
        NodeClient::with_certificates(&[busy.uri(), good.uri()], &Certificates::default()).expect("client")
    };
    client().download(&["x"]).await.expect("the second node");
    // The second node responds, although not with a feed: the refusal of the first says more.
    let error = client().events(&[], None).await.expect_err("no feed");
    assert_eq!((error.status(), requests(&good).await), (Some(503), 2));
}

/// Regression: a deletion whose first response was lost was reported as one of something that is not there.
#[tokio::test]
async fn repeated_deletion_of_what_is_gone_is_no_error() {
    let unused = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let closed = format!("http://{}", unused.local_addr().expect("address"));
    drop(unused);
    let (busy, gone) = (node(503).await.uri(), node(404).await.uri());
    for (urls, is_deleted) in
        [([busy, gone.clone()], true), ([closed, gone.clone()], false), ([gone.clone(), gone], false)]
    {
        let client = NodeClient::with_certificates(&urls, &Certificates::default()).expect("client");
        assert_eq!(client.delete(&["x"]).await.is_ok(), is_deleted, "{urls:?}");
        assert!(client.get(&["x"]).await.is_err());
    }
}

#[tokio::test]
async fn a_post_is_repeated_only_with_an_idempotency_key() {
    let (busy, good) = (node(503).await, node(200).await);
    let client = || {
        NodeClient::with_certificates(&[busy.uri(), good.uri()], &Certificates::default()).expect("client")
    };
    let refused = client().post(&["x"], &json!({})).await.expect_err("503");
    assert_eq!(refused.status(), Some(503));
    assert_eq!(requests(&good).await, 0);
    let body = json!({});
    client().post_once("k", &["x"], &body).await.expect("the second node");
    let keys: Vec<_> = busy.received_requests().await.expect("recorded");
    assert_eq!(keys[1].headers["idempotency-key"], "k");
    assert_eq!(requests(&good).await, 1);
}

#[tokio::test]
async fn a_refusal_is_not_taken_to_another_node() {
    let (strict, other) = (node(403).await, node(200).await);
    let client = NodeClient::with_certificates(&[strict.uri(), other.uri()], &Certificates::default());
    let Err(Error::Refused(refusal)) = client.expect("client").get(&["x"]).await else { panic!("refused") };
    assert_eq!((refusal.status, refusal.code.as_str()), (403, "x"));
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(7)));
    assert_eq!(requests(&other).await, 0);
}

#[tokio::test]
async fn headers_of_request_and_response_are_mapped() {
    let server = MockServer::start().await;
    let response = ResponseTemplate::new(200).set_body_json(json!({}));
    Mock::given(method("PUT"))
        .and(header_is("if-match", "\"1\""))
        .respond_with(response.insert_header("etag", "\"2\"").insert_header("svc-index", "42"))
        .mount(&server)
        .await;
    let (client, body) = (NodeClient::new(&server.uri()).expect("client"), json!({}));
    let put = Request { method: Method::PUT, if_match: Some("\"1\""), ..Request::post(&["x"], &body) };
    let written = client.send(&put).await.expect("written");
    assert_eq!((written.etag.as_deref(), written.index, written.status), (Some("\"2\""), Some(42), 200));
}

#[test]
fn one_to_sixteen_endpoints_are_accepted() {
    let with = |count: usize| {
        let servers = vec!["http://127.0.0.1:1"; count];
        NodeClient::with_certificates(&servers, &Certificates::default())
    };
    assert!(matches!(with(0), Err(Error::EndpointCount)));
    assert!(with(limits::ENDPOINTS_MAX).is_ok());
    assert!(matches!(with(limits::ENDPOINTS_MAX + 1), Err(Error::EndpointCount)));
}
