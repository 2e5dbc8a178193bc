//! The accept loop over loopback: limits, the reserve, TLS and shutdown.

use hyper::client::conn::http2;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::*;
use crate::clock::Timestamp;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// A listener on loopback.
struct Listening {
    address: SocketAddr,
    metrics: Metrics,
    shutdown: CancellationToken,
    server: JoinSet<()>,
    served: Served,
}

async fn listening(kind: Kind, caps: Caps, connections_max: usize) -> Listening {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind");
    let address = listener.local_addr().expect("address");
    let (metrics, shutdown) = (Metrics::new().expect("metrics"), CancellationToken::new());
    let served = Served::default();
    let limiter = ConnectionLimiter::new(caps, connections_max);
    let mut server = JoinSet::new();
    server.spawn(serve(listener, kind, routes(&served), limiter, metrics.clone(), shutdown.clone()));
    Listening { address, metrics, shutdown, server, served }
}

impl Listening {
    /// Waits until the metrics contain `line`.
    async fn until_counted(&self, line: &str) {
        loop {
            let page = self.metrics.render().expect("page");
            if page.lines().any(|counted| counted == line) {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connect")
    }
}

/// Sends a request and reads its response, or nothing if the connection was closed.
async fn ask(stream: &mut TcpStream, request: &[u8]) -> String {
    let mut text = vec![0; 4096];
    if stream.write_all(request).await.is_err() {
        return String::new();
    }
    let read = stream.read(&mut text).await.unwrap_or(0);
    String::from_utf8_lossy(&text[..read]).into_owned()
}

#[tokio::test]
async fn address_beyond_its_limit_is_closed() {
    let caps = Caps { per_address: 2, ..Caps::default() };
    let server = listening(Kind::Plain, caps, 100).await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    assert_eq!(statuses(&ask(&mut first, GET).await), [200]);
    assert_eq!(statuses(&ask(&mut second, GET).await), [200]);
    let mut third = server.connect().await;
    assert_eq!(ask(&mut third, GET).await, "");
    server.until_counted(r#"svc_http_connections_refused_total{reason="address"} 1"#).await;
    server.until_counted(r#"svc_http_connections{listener="plain"} 2"#).await;
    drop(first);
    server.until_counted(r#"svc_http_connections{listener="plain"} 1"#).await;
    server.until_counted(r#"svc_http_connections_closed_total{reason="closed"} 1"#).await;
    let mut again = server.connect().await;
    assert_eq!(statuses(&ask(&mut again, GET).await), [200]);
}

#[tokio::test]
async fn connections_beyond_the_reserve_are_closed() {
    let server = listening(Kind::Plain, Caps::default(), 1).await;
    let peer = b"GET /peer HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut regular = server.connect().await;
    assert!(ask(&mut regular, peer).await.contains("in_reserve: false"));
    let mut in_reserve = server.connect().await;
    let text = ask(&mut in_reserve, peer).await;
    assert!(text.contains("in_reserve: true") && text.contains("\r\nconnection: close\r\n"), "{text}");
    let mut silent = Vec::new();
    for _ in 0..=limits::CONNECTIONS_IN_RESERVE_MAX {
        silent.push(server.connect().await);
    }
    server.until_counted(r#"svc_http_connections_refused_total{reason="full"} 1"#).await;
    assert_eq!(statuses(&ask(&mut regular, GET).await), [200], "an open connection keeps its permit");
}

#[tokio::test(start_paused = true)]
async fn silent_connection_of_the_reserve_is_closed_sooner() {
    let server = listening(Kind::Plain, Caps::default(), 0).await;
    let began = sleep(Duration::ZERO).deadline();
    let mut silent = server.connect().await;
    assert_eq!(ask(&mut silent, b"").await, "");
    let took = sleep(Duration::ZERO).deadline().duration_since(began);
    let limit = limits::FIRST_REQUEST_IN_RESERVE_TIMEOUT;
    assert!((limit..limit * 2).contains(&took), "{took:?}");
    server.until_counted(r#"svc_http_connections_closed_total{reason="first_request"} 1"#).await;
}

#[tokio::test]
async fn sender_of_a_large_refused_body_reads_the_response() {
    let server = listening(Kind::Plain, Caps::default(), 100).await;
    for _ in 0..5 {
        let mut client = server.connect().await;
        let body = vec![b'x'; 2 * 1024 * 1024];
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: {}\r\n\r\n", body.len());
        client.write_all(head.as_bytes()).await.expect("head");
        // The body is sent after the response has arrived.
        client.readable().await.expect("answer");
        for piece in body.chunks(64 * 1024) {
            client.write_all(piece).await.expect("body");
            tokio::task::yield_now().await;
        }
        client.shutdown().await.expect("end");
        let mut text = String::new();
        client.read_to_string(&mut text).await.expect("no reset");
        assert_eq!(statuses(&text), [400]);
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_closes_idle_and_drains_busy_connections() {
    let mut server = listening(Kind::Plain, Caps::default(), 100).await;
    let (mut idle, mut busy) = (server.connect().await, server.connect().await);
    assert_eq!(statuses(&ask(&mut idle, GET).await), [200]);
    // The response takes 14 s of the listener's time; the drain timeout is 10 s.
    assert_eq!(statuses(&ask(&mut busy, GET).await), [200]);
    busy.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("request");
    while server.served.lock().expect("lock").len() < 3 {
        tokio::task::yield_now().await;
    }
    sleep(Duration::from_secs(6)).await;
    server.shutdown.cancel();
    assert_eq!(ask(&mut idle, b"").await, "");
    assert_eq!(statuses(&ask(&mut busy, b"").await), [200]);
    server.server.join_next().await.expect("listener").expect("no panic");
    server.until_counted(r#"svc_http_connections{listener="plain"} 0"#).await;
    server.until_counted(r#"svc_http_connections_closed_total{reason="shutdown"} 2"#).await;
    assert!(TcpStream::connect(server.address).await.is_err(), "the listener is closed");
}

// --- TLS ---------------------------------------------------------------------------------------

/// A TLS configuration of a server, and of a client that trusts it and offers `protocols`.
fn tls(protocols: &[&str]) -> (Handshake, watch::Sender<u64>, TlsConnector) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).expect("certificate");
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let provider = Arc::new(default_provider());
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .expect("server");
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).expect("root");
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let (generation, changes) = watch::channel(0);
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let handshake = Handshake {
        acceptor: Arc::new(move || acceptor.clone()),
        changes,
        has_changed: Arc::new(|_, _: Option<&TrustDomain>| true),
        peer_certificate: |_| {
            Ok(Some(PeerCertificate {
                spiffe_id: "spiffe://a.example/one".parse().map_err(|_| "id")?,
                thumbprint: [1; 32],
                not_after: Timestamp::from_secs(0),
            }))
        },
    };
    (handshake, generation, TlsConnector::from(Arc::new(client)))
}

type TlsClient = tokio_rustls::client::TlsStream<TcpStream>;

async fn connect_tls(server: &Listening, connector: &TlsConnector) -> TlsClient {
    let name = ServerName::try_from("localhost").expect("name");
    connector.connect(name, server.connect().await).await.expect("handshake")
}

async fn ask_tls(stream: &mut TlsClient, request: &[u8]) -> String {
    let mut text = vec![0; 4096];
    drop(stream.write_all(request).await);
    let read = stream.read(&mut text).await.unwrap_or(0);
    String::from_utf8_lossy(&text[..read]).into_owned()
}

#[tokio::test]
async fn tls_http1_is_strict_and_has_a_client_certificate() {
    let (handshake, _generation, connector) = tls(&["http/1.1"]);
    let server = listening(Kind::Tls(handshake), Caps::default(), 100).await;
    let mut client = connect_tls(&server, &connector).await;
    let text = ask_tls(&mut client, b"GET /peer HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(text.contains("spiffe://a.example/one"), "{text}");
    server.until_counted(r#"svc_http_connections{listener="tls"} 1"#).await;
    let text = ask_tls(&mut client, b"GET / HTTP/1.1\nHost: a\n\n").await;
    assert_eq!(statuses(&text), [400], "{text}");
    drop(client);
    server.until_counted(r#"svc_http_connections_closed_total{reason="violation"} 1"#).await;
}

#[tokio::test]
async fn tls_http2_connection_closes_on_reload() {
    let (handshake, generation, connector) = tls(&["h2", "http/1.1"]);
    let server = listening(Kind::Tls(handshake), Caps::default(), 100).await;
    generation.send_replace(1);
    // An earlier change does not close the second connection.
    for round in 1..=2_u64 {
        let client = connect_tls(&server, &connector).await;
        let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
            .handshake::<_, http_body_util::Empty<Bytes>>(TokioIo::new(client))
            .await
            .expect("HTTP/2");
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        // Twice: a connection that drains takes no second request.
        for _ in 0..2 {
            let request = Request::get("https://a/peer").body(http_body_util::Empty::new()).expect("request");
            let answer = sender.send_request(request).await.expect("answer");
            let body = answer.into_body().collect().await.expect("body").to_bytes();
            assert!(String::from_utf8_lossy(&body).contains("spiffe://a.example/one"));
            tokio::task::yield_now().await;
        }
        generation.send_replace(1 + round);
        driver.join_next().await.expect("client").expect("no panic").expect("a graceful end");
        server
            .until_counted(&format!(r#"svc_http_connections_closed_total{{reason="reload"}} {round}"#))
            .await;
    }
}

#[tokio::test]
async fn identity_beyond_its_limit_is_closed() {
    let (handshake, _generation, connector) = tls(&["http/1.1"]);
    let caps = Caps { per_identity: 1, ..Caps::default() };
    let server = listening(Kind::Tls(handshake), caps, 100).await;
    let mut first = connect_tls(&server, &connector).await;
    assert_eq!(statuses(&ask_tls(&mut first, GET).await), [200]);
    let mut second = connect_tls(&server, &connector).await;
    assert_eq!(ask_tls(&mut second, GET).await, "");
    server.until_counted(r#"svc_http_connections_refused_total{reason="identity"} 1"#).await;
    assert_eq!(statuses(&ask_tls(&mut first, GET).await), [200]);
    drop(first);
    server.until_counted(r#"svc_http_connections{listener="tls"} 0"#).await;
    let mut third = connect_tls(&server, &connector).await;
    assert_eq!(statuses(&ask_tls(&mut third, GET).await), [200]);
}

#[tokio::test]
async fn failed_handshake_is_refused_and_blocks_no_other() {
    let (handshake, _generation, connector) = tls(&["http/1.1"]);
    let server = listening(Kind::Tls(handshake), Caps::default(), 100).await;
    let _silent = server.connect().await;
    let mut plain = server.connect().await;
    assert!(statuses(&ask(&mut plain, GET).await).is_empty());
    server.until_counted(r#"svc_http_connections_refused_total{reason="handshake"} 1"#).await;
    let mut client = connect_tls(&server, &connector).await;
    assert_eq!(statuses(&ask_tls(&mut client, GET).await), [200]);
}

#[tokio::test(start_paused = true)]
async fn missing_handshake_times_out() {
    let (handshake, _generation, _connector) = tls(&["http/1.1"]);
    let server = listening(Kind::Tls(handshake), Caps::default(), 100).await;
    let mut silent = server.connect().await;
    assert_eq!(ask(&mut silent, b"").await, "");
    server.until_counted(r#"svc_http_connections_refused_total{reason="handshake_timeout"} 1"#).await;
}

#[tokio::test]
async fn blocked_write_times_out() {
    // Tests the write timeout without waiting for it: a response larger than the buffers is pending.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind");
    let _client = TcpStream::connect(listener.local_addr().expect("address")).await.expect("connect");
    let (socket, _) = listener.accept().await.expect("accept");
    let mut socket = TimeoutStream::new(socket);
    socket.set_write_timeout(Some(Duration::from_millis(1)));
    let mut socket = Box::pin(socket);
    let error = loop {
        if let Err(error) = socket.write_all(&[0; 8 * 1024]).await {
            break error;
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

/// A client that disappears without FIN kept the permit of its live feed until the kernel's buffer was full of heartbeats.
#[tokio::test]
async fn vanished_client_is_detected_by_the_kernel() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind");
    let address = listener.local_addr().expect("address");
    let context = ListenerContext {
        kind: Kind::Plain,
        router: Router::new(),
        limiter: ConnectionLimiter::new(Caps::default(), 1),
        metrics: Metrics::new().expect("metrics"),
        shutdown: CancellationToken::new(),
    };
    let (accepted, connected) = futures::join!(context.accept(&listener), TcpStream::connect(address));
    let (socket, _) = accepted.expect("a connection");
    let unanswered = SockRef::from(&socket).tcp_user_timeout().expect("the option");
    assert_eq!(unanswered, Some(limits::WRITE_STALL_TIMEOUT));
    drop(connected);
}
