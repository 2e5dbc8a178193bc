//! The node as a process: shutdown, logs, misbehaving connections.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use wiremock::ResponseTemplate;

use crate::support::{JWT, Node, OWN, credential};

#[tokio::test]
async fn request_in_flight_is_answered_at_shutdown() {
    let node = Node::start().await;
    let keys = json!({"keys": [node.issuers.es256.jwk()]});
    let slow = ResponseTemplate::new(200).set_body_json(keys).set_delay(Duration::from_secs(1));
    node.issuers.replace_mock("/cluster/openid/v1/jwks", slow).await;
    let request = credential(&node.issuers.reporter(), JWT);
    let stop = async {
        while node.issuers.server.received_requests().await.expect("recorded").len() < 2 {
            tokio::task::yield_now().await;
        }
        node.begin_shutdown();
    };
    let (answer, ()) = futures::join!(node.exchange(&request), stop);
    answer.minted();
    let address = node.base().trim_start_matches("http://").to_owned();
    node.wait_for_shutdown().await;
    assert!(TcpStream::connect(address).await.is_err(), "the listener is closed");
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn logs_carry_request_and_trace_and_never_a_token() {
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_env_filter("trust_fabric=trace")
        .with_writer(move || writer.clone())
        .finish();
    // The node logs from its own threads.
    tracing::subscriber::set_global_default(subscriber).expect("the only subscriber");
    let node = Node::start().await;
    let token = node.issuers.reporter();
    let own = node.own_token("demo", "reporter").await.token;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("00-{trace}-b7ad6b7169203331-01");
    let answer = node.exchange_with(&credential(&token, JWT), &[("traceparent", &parent)]).await;
    let minted = answer.minted();
    let broken = format!("{token}x");
    let misplaced = json!({"grant_type": token, "execution_scope": token, (token.clone()): 1});
    let refused = node.exchange(&credential(&broken, JWT)).await;
    node.exchange(&credential(&own, OWN)).await;
    node.exchange(&misplaced).await;
    node.call(
        "GET",
        &format!("/v1/{token}?token={token}"),
        &[("authorization", &format!("Bearer {token}"))],
        "",
    )
    .await;
    let log = String::from_utf8(written.0.lock().expect("lock").clone()).expect("UTF-8");
    for token in [&token, &own, &minted.token] {
        for part in token.split('.').skip(1) {
            assert!(!log.contains(&part[..24]), "a token is in the log");
        }
    }
    let with_id = |answer: &crate::support::Response| {
        let id = answer.header("x-request-id").expect("id").to_owned();
        log.lines().filter(|line| line.contains(&id)).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(with_id(&answer).iter().any(|line| line.contains(trace)), "the trace is missing");
    assert!(with_id(&answer).iter().any(|line| line.contains(minted.claims["jti"].as_str().expect("jti"))));
    // The reason for the refusal of a credential is only in the log.
    assert!(with_id(&refused).iter().any(|line| line.contains("signature") || line.contains("compact")));
}

/// Sends these bytes and reads until the node closes the connection.
async fn raw(node: &Node, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(node.base().trim_start_matches("http://")).await.expect("connect");
    stream.write_all(request).await.expect("write");
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn requests_with_two_readings_are_refused_and_the_node_lives_on() {
    let node = Node::start().await;
    let many: String = (0..200).map(|at: u8| ["x-", &at.to_string(), ": 1\r\n"].concat()).collect();
    let head = "POST /v1/exchange/token HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    for (name, request, status) in [
        ("two lengths", format!("{head}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}"), "400"),
        ("a length that is no number", format!("{head}content-length: +2\r\n\r\n{{}}"), "400"),
        ("not HTTP", "\u{16}\u{3}\u{1}\r\n\r\n".to_owned(), "400"),
        ("many headers", format!("GET /livez HTTP/1.1\r\nhost: x\r\n{many}\r\n"), "431"),
    ] {
        let answer = raw(&node, request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{name}: {answer}");
    }
    // A truncated body is no request.
    let mut stream = TcpStream::connect(node.base().trim_start_matches("http://")).await.expect("connect");
    stream.write_all(format!("{head}content-length: 100\r\n\r\n{{").as_bytes()).await.expect("write");
    drop(stream);
    assert_eq!(node.get("/livez").await.status, 200);
    node.granted(&credential(&node.issuers.reporter(), JWT)).await;
}
