//! Tests of the listener from outside: raw bytes in, status lines out. Tests of deadlines use a paused clock.

use std::convert::Infallible;
use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Mutex;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::stream;
use http_body_util::BodyExt as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::*;

mod cases;
mod deadlines;
mod framing;
mod http2;
mod network;

/// Paths of served requests, in order.
type Served = Arc<Mutex<Vec<String>>>;

/// Responds with the path and the length of the body; some paths are slow.
fn routes(served: &Served) -> Router {
    let served = Arc::clone(served);
    Router::new().fallback(move |request: Request| answer(Arc::clone(&served), request))
}

async fn answer(served: Served, request: Request) -> Response {
    let violation = request.extensions().get::<Violation>().copied();
    let peer = request.extensions().get::<Arc<ClientConnection>>().cloned();
    if let Some(violation) = violation {
        return (violation.status(), violation.to_string()).into_response();
    }
    let path = request.uri().path().to_owned();
    let Ok(body) = request.into_body().collect().await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    served.lock().expect("lock").push(path.clone());
    match path.as_str() {
        "/slow" => {
            sleep(Duration::from_secs(14)).await;
            "slow".into_response()
        }
        "/stream" => {
            // Longer than an idle connection lives, with pauses longer than a reader may stall.
            let pieces = stream::unfold(0, |piece| async move {
                sleep(Duration::from_secs(100)).await;
                (piece < 4).then_some((Ok::<_, Infallible>(Bytes::from_static(b"piece;")), piece + 1))
            });
            Body::from_stream(pieces).into_response()
        }
        "/download" => {
            let pieces = stream::unfold(0, |piece| async move {
                sleep(Duration::from_secs(25)).await;
                (piece < 40).then_some((Ok::<_, Infallible>(Bytes::from_static(b"piece;")), piece + 1))
            });
            (Extension(Download), Body::from_stream(pieces)).into_response()
        }
        "/large" => {
            let pieces =
                stream::iter((0..64).map(|_| Ok::<_, Infallible>(Bytes::from(vec![b'x'; 64 * 1024]))));
            Body::from_stream(pieces).into_response()
        }
        "/peer" => format!("{peer:?}").into_response(),
        _ => format!("{path} {}", body.to_bytes().len()).into_response(),
    }
}

fn peer() -> ClientConnection {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    ClientConnection { address, local_address: address, channel: Channel::Plain, in_reserve: false }
}

/// A connection over memory.
struct Wire {
    client: DuplexStream,
    server: JoinSet<Ended>,
    shutdown: CancellationToken,
    served: Served,
}

impl Wire {
    fn http1() -> Self {
        Self::new(peer(), Connection::http1)
    }

    fn new<F>(peer: ClientConnection, serve: impl FnOnce(Connection, DuplexStream) -> F) -> Self
    where
        F: Future<Output = Ended> + Send + 'static,
    {
        // Small, so that an unread response soon blocks.
        let (client, stream) = tokio::io::duplex(16 * 1024);
        let served = Served::default();
        let shutdown = CancellationToken::new();
        let connection = Connection {
            router: routes(&served),
            peer: Arc::new(peer),
            first_request_by: sleep(limits::FIRST_REQUEST_TIMEOUT).deadline(),
            changes: None,
            shutdown: shutdown.clone(),
        };
        let mut server = JoinSet::new();
        server.spawn(serve(connection, stream));
        Self { client, server, shutdown, served }
    }

    async fn send(&mut self, bytes: &[u8]) {
        // The server may have closed already; only its response counts.
        drop(self.client.write_all(bytes).await);
    }

    /// Reads until the connection is closed.
    async fn rest(&mut self) -> String {
        let mut text = Vec::new();
        self.client.read_to_end(&mut text).await.expect("read");
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Reads until `mark` arrives.
    async fn until(&mut self, mark: &str) -> String {
        let mut text = Vec::new();
        while !String::from_utf8_lossy(&text).contains(mark) {
            let mut byte = [0];
            assert_eq!(self.client.read(&mut byte).await.expect("read"), 1, "{mark}: {text:?}");
            text.push(byte[0]);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    async fn ended(&mut self) -> Ended {
        self.server.join_next().await.expect("one connection").expect("no panic")
    }

    fn served(&self) -> Vec<String> {
        self.served.lock().expect("lock").clone()
    }
}

/// The statuses of all responses in `text`, in order.
fn statuses(text: &str) -> Vec<u16> {
    text.split("HTTP/1.1 ").filter_map(|answer| answer.get(..3)?.parse().ok()).collect()
}
