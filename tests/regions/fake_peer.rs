//! A peer whose node states anything.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Collected, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::*;

/// The response to a request: status and body.
type Script = Arc<Mutex<dyn FnMut(Value) -> (u16, Vec<u8>) + Send>>;
/// The body of a response, which may never end.
pub(super) type Body = BoxBody<Bytes, Infallible>;

/// A node of `fabric` that answers by a script, until it is dropped.
pub(super) struct FakeNode {
    pub(super) address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl FakeNode {
    pub(super) async fn start(
        fabric: &Fabric,
        script: impl FnMut(Value) -> (u16, Vec<u8>) + Send + 'static,
    ) -> Self {
        let script: Script = Arc::new(Mutex::new(script));
        Self::answering(fabric, move |asked| {
            let (status, body) = (script.lock().expect("the script"))(asked);
            (status, Full::new(body.into()).boxed())
        })
        .await
    }

    pub(super) async fn answering(
        fabric: &Fabric,
        response: impl Fn(Value) -> (u16, Body) + Clone + Send + Sync + 'static,
    ) -> Self {
        let certificates = CertificateDer::pem_file_iter(&fabric.made.node.certificate).expect("a file");
        let certificates = certificates.collect::<Result<Vec<_>, _>>().expect("certificates");
        let key = PrivateKeyDer::from_pem_file(&fabric.made.node.private_key).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let config = config.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
        let mut config = config.with_single_cert(certificates, key).expect("a certificate");
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(fabric.https).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.expect("a connection");
                let (acceptor, response) = (acceptor.clone(), response.clone());
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(socket).await else { return };
                    let service = service_fn(move |request| answer(request, response.clone()));
                    let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    drop(http.serve_connection(TokioIo::new(stream), service).await);
                });
            }
        });
        Self { address, _tasks: tasks }
    }
}

async fn answer(
    request: Request<Incoming>,
    response: impl Fn(Value) -> (u16, Body),
) -> Result<Response<Body>, Infallible> {
    let body = request.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default();
    let (status, body) = response(serde_json::from_slice(&body).unwrap_or_default());
    let response = Response::builder().status(status).header("content-type", "application/json");
    Ok(response.body(body).expect("a response"))
}

/// A valid response of a fabric `eu` with one entry at log index 7.
fn honest(request: &Value) -> Value {
    let incarnation = "0f".repeat(16);
    let is_first = request["since"].is_null();
    let entry = json!({"n": 7, "e": 5, "state": "revoked", "id": "AQEBAQEBAQEBAQEBAQEBAQ"});
    json!({
        "version": 1, "issuer": "https://eu.example", "incarnation": incarnation,
        "from": if is_first { 0 } else { 9 }, "through": 9, "next": null, "floor": 0, "epoch": 5, "floor_epoch": 0,
        "reset": is_first, "time": "2026-11-23T09:00:00.000Z", "root": null, "count": 1, "keys": null,
        "entries": if is_first { json!([entry]) } else { json!([]) },
    })
}

/// Reads a fake peer, whose responses from the second on are changed.
async fn read(change: impl Fn(&mut Value) + Send + 'static) -> (Fabric, FakeNode) {
    let [one, other] = ports::free::<2>();
    let (eu, mut us) = (Fabric::new("eu", one), Fabric::new("us", other));
    us.add_peer(&PeerSection { name: "eu", of: &eu, more: "accept = true" });
    let fake = FakeNode::start(&eu, move |request| {
        let mut response = honest(&request);
        if !request["since"].is_null() {
            change(&mut response);
        }
        (200, response.to_string().into_bytes())
    })
    .await;
    us.start().await;
    (us, fake)
}

#[tokio::test]
async fn honest_peer_is_live() {
    let (us, _fake) = read(|_| {}).await;
    let peer = us.until_peer("eu", "live", 1).await;
    assert_eq!(peer["position"], format!("{}-9", "0f".repeat(16)));
}

/// The error of the last call, once there is one.
async fn error_of(us: &Fabric) -> String {
    until("an error", || async { us.peer("eu").await["error"].as_str().map(str::to_owned) }).await
}

/// Attack: responses that break a rule. Nothing of them is imported, and the peer is called once a minute.
#[tokio::test]
async fn malformed_response_changes_nothing() {
    let (us, _fake) = read(|response| {
        response["entries"] = json!([
            {"n": 10, "e": 5, "state": "revoked", "id": "AgICAgICAgICAgICAgICAg"},
            {"n": 11, "e": 5, "state": "suspended", "id": "AwMDAwMDAwMDAwMDAwMDAw"},
        ]);
        response["through"] = json!(11);
    })
    .await;
    assert!(error_of(&us).await.starts_with("entries.state: "));
    let peer = us.until_peer("eu", "stale", 1).await;
    assert_eq!(peer["position"], format!("{}-9", "0f".repeat(16)));
    let metrics =
        us.operator.get(us.url("/metrics")).send().await.expect("metrics").text().await.expect("text");
    let line = "svc_federation_calls_total{peer=\"eu\",result=\"malformed\"} 1";
    assert!(metrics.lines().any(|metric| metric == line), "{metrics}");
}

/// Attack: the answer of a peer to a question about another. Our own ledger and judgement do not change.
#[tokio::test]
async fn peer_that_speaks_for_another_issuer_is_refused() {
    let (us, _fake) = read(|response| response["issuer"] = json!("https://us.example")).await;
    assert!(error_of(&us).await.starts_with("issuer: "));
    assert_eq!(us.hash("").await.1, 0, "nothing is in our own ledger");
}

/// Attack: a response without end.
#[tokio::test]
async fn response_larger_than_the_limit_is_refused() {
    let (us, _fake) = read(|response| response["padding"] = json!("x".repeat(2 * 1024 * 1024))).await;
    assert!(!error_of(&us).await.is_empty());
    assert_eq!(us.until_peer("eu", "stale", 1).await["entries"], 1);
}

/// Attack: a root that is not that of the entries, as of a log that was forked.
#[tokio::test]
async fn peer_with_another_root_is_held() {
    let (us, _fake) =
        read(|response| response["root"] = json!("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")).await;
    let held = us.until_peer("eu", "held", 1).await;
    assert_eq!(held["fault"], "root_differs");
}

/// Attack: `through` is the largest number, so that every later truth looks old.
#[tokio::test]
async fn peer_that_counts_to_the_end_harms_only_itself() {
    let (us, _fake) = read(|response| response["through"] = json!(1_u64 << 60)).await;
    assert!(error_of(&us).await.starts_with("through: "));
    let body = json!({"email": "ada@x.example", "issuer": IDP});
    assert_eq!(us.call(Method::POST, "/v1/revocations", Some(&body)).await.0, 202);
}
