//! The connections: TLS, the credential of a request, bodies, streams of events.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use serde_json::Value as Json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::{Order, Reply, Seen, Store, Watch, failure};

/// The bearer token that the server knows.
pub const TOKEN: &str = "token-of-an-administrator";

type Body = BoxBody<Bytes, Infallible>;

/// A CA, and what it signs.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A running server, stopped when dropped.
pub struct ApiServer {
    pub address: SocketAddr,
    pub authority: Authority,
    pub store: Arc<Store>,
    seen: Seen,
    serving: JoinHandle<()>,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Fake Kubernetes");
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("key")).expect("CA"))
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Certificate and key of these names, or of a client with none.
    pub fn issue(&self, names: &[&str]) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().expect("key");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).expect("names");
        (params.signed_by(&key, &self.0).expect("signed"), key)
    }
}

impl ApiServer {
    /// A server that knows namespaces and definitions.
    pub async fn start() -> Self {
        let authority = Authority::new();
        let (certificate, key) = authority.issue(&["localhost", "127.0.0.1"]);
        let mut roots = RootCertStore::empty();
        roots.add(authority.0.der().clone()).expect("root");
        let provider = Arc::new(default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let clients = clients.allow_unauthenticated().build().expect("verifier");
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(clients)
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            )
            .expect("certificate");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("address");
        let (store, seen) = (Arc::new(Store::new()), Seen::default());
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let serving = tokio::spawn(serve(listener, acceptor, Arc::clone(&store), Arc::clone(&seen)));
        Self { address, authority, store, seen, serving }
    }

    /// A server on which the chart of definitions is installed.
    pub async fn with_definition() -> Self {
        let server = Self::start().await;
        let definition = trust_fabric_spec::crd::definition().expect("a definition");
        server.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition);
        server
    }

    /// Creates an object in the list at a path.
    pub fn create(&self, path: &str, object: &Json) {
        let body = object.to_string().into_bytes();
        let reply = self.store.answer(&Order { method: hyper::Method::POST, body, ..Order::get(path) });
        assert!(matches!(reply, Reply::Json(201, _)), "{reply:?}");
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Requests and responses since the last call.
    pub fn seen(&self) -> Vec<(Order, Reply)> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until this many requests of a method arrived since the last [`Self::seen`].
    pub async fn until(&self, method: &hyper::Method, count: usize) {
        let arrived = || {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.iter().filter(|(order, _)| order.method == *method).count()
        };
        while arrived() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A kubeconfig with one user, whose members are `user`.
    pub fn kubeconfig(&self, user: &Json) -> String {
        use base64::Engine as _;
        let ca = base64::engine::general_purpose::STANDARD.encode(self.authority.pem());
        serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url(), "certificate-authority-data": ca}}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "user", "namespace": "default"}}],
        })
        .to_string()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Order {
    pub fn get(path: &str) -> Self {
        Self {
            method: hyper::Method::GET,
            path: path.to_owned(),
            query: std::collections::BTreeMap::new(),
            accept: "application/json".to_owned(),
            content_type: "application/json".to_owned(),
            body: Vec::new(),
        }
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, store: Arc<Store>, seen: Seen) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        tokio::spawn(connection(stream, acceptor.clone(), Arc::clone(&store), Arc::clone(&seen)));
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, store: Arc<Store>, seen: Seen) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let has_certificate = stream.get_ref().1.peer_certificates().is_some();
    let service = service_fn(move |request: Request<Incoming>| {
        let (store, seen) = (Arc::clone(&store), Arc::clone(&seen));
        async move { Ok::<_, Infallible>(answer(request, has_certificate, &store, &seen).await) }
    });
    let http = hyper::server::conn::http1::Builder::new();
    // A client may go away at any time.
    drop(http.serve_connection(TokioIo::new(stream), service).await);
}

async fn answer(
    request: Request<Incoming>,
    has_certificate: bool,
    store: &Arc<Store>,
    seen: &Mutex<Vec<(Order, Reply)>>,
) -> Response<Body> {
    let (head, body) = request.into_parts();
    let text = |headers: &HeaderMap, name| {
        headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    let query = url::form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes());
    let order = Order {
        method: head.method,
        path: head.uri.path().to_owned(),
        query: query.into_owned().collect(),
        accept: text(&head.headers, ACCEPT),
        content_type: text(&head.headers, CONTENT_TYPE),
        body: body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default(),
    };
    let is_known = has_certificate || text(&head.headers, AUTHORIZATION) == format!("Bearer {TOKEN}");
    let reply = if is_known { store.answer(&order) } else { failure(401, "Unauthorized", "Unauthorized") };
    seen.lock().unwrap_or_else(PoisonError::into_inner).push((order, reply.clone()));
    match reply {
        Reply::Json(code, json) => response(code, "application/json", whole(json.to_string())),
        Reply::Text(code, text) => response(code, "text/plain; charset=utf-8", whole(text)),
        Reply::Watch(watch) => response(200, "application/json", events(Arc::clone(store), watch)),
    }
}

fn response(code: u16, content_type: &str, body: Body) -> Response<Body> {
    let built = Response::builder().status(code).header(CONTENT_TYPE, content_type).body(body);
    built.expect("a response")
}

fn whole(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed()
}

/// The body of a watch: one line per event, until the watcher goes or its version is too old.
fn events(store: Arc<Store>, mut watch: Watch) -> Body {
    let (sender, receiver) = tokio::sync::mpsc::channel(16);
    tokio::spawn(async move {
        let mut version = store.version.subscribe();
        loop {
            version.mark_unchanged();
            for event in store.next(&mut watch) {
                let line = Bytes::from(format!("{event}\n"));
                if sender.send(line).await.is_err() {
                    return;
                }
            }
            if watch.from == u64::MAX || version.changed().await.is_err() {
                return;
            }
        }
    });
    let frames = ReceiverStream::new(receiver).map(|line| Ok(Frame::data(line)));
    StreamBody::new(frames).boxed()
}
