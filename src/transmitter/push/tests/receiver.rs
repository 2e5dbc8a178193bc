//! A receiver that passes each push to the test, which answers it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// Accepts pushes.
pub struct Receiver {
    pub url: String,
    arrivals: mpsc::UnboundedReceiver<Arrived>,
    _listening: JoinSet<()>,
}

/// A push without a response yet. Dropping it closes the connection.
pub struct Arrived {
    /// Claims of its token, unverified.
    pub claims: Value,
    pub kid: String,
    sender: oneshot::Sender<String>,
}

impl Receiver {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let url = format!("http://{}/events", listener.local_addr().expect("address"));
        let (arrived, arrivals) = mpsc::unbounded_channel();
        let mut listening = JoinSet::new();
        listening.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((connection, _)) = listener.accept().await {
                connections.spawn(serve(connection, arrived.clone()));
            }
        });
        Self { url, arrivals, _listening: listening }
    }

    pub async fn next(&mut self) -> Arrived {
        let next = tokio::time::timeout(std::time::Duration::from_secs(60), self.arrivals.recv()).await;
        next.expect("a push comes").expect("listening")
    }

    /// Whether no push is queued.
    pub fn is_idle(&mut self) -> bool {
        self.arrivals.try_recv().is_err()
    }

    /// Closes the connections of queued pushes.
    pub fn forget(&mut self) {
        while self.arrivals.try_recv().is_ok() {}
    }
}

impl Arrived {
    pub fn jti(&self) -> String {
        self.claims["jti"].as_str().expect("jti").to_owned()
    }

    /// Email address of its subject, or nothing.
    pub fn subject(&self) -> String {
        self.claims["sub_id"]["email"].as_str().unwrap_or_default().to_owned()
    }

    /// Order of its event in the log.
    pub fn number(&self) -> u64 {
        let jti = self.jti();
        let mut parts = jti.rsplit('-').skip(1).map(|part| part.parse::<u64>().expect("a number"));
        let number = parts.next().expect("number");
        parts.next().expect("index") * 1_000_000 + number
    }

    pub fn respond(self, status: u16, body: &str) {
        self.respond_with(status, "", body);
    }

    pub fn respond_with(self, status: u16, headers: &str, body: &str) {
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} x\r\n{headers}content-length: {length}\r\n\r\n{body}");
        // The peer may have given up.
        drop(self.sender.send(answer));
    }
}

async fn serve(connection: TcpStream, arrived: mpsc::UnboundedSender<Arrived>) {
    let mut connection = BufReader::new(connection);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            if connection.read_line(&mut head).await.unwrap_or_default() == 0 {
                return;
            }
        }
        for line in head.lines() {
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().expect("length");
            }
        }
        assert!(head.contains("content-type: application/secevent+jwt\r\n"), "{head}");
        let mut body = vec![0; length];
        if connection.read_exact(&mut body).await.is_err() {
            return;
        }
        let token = String::from_utf8(body).expect("text");
        let mut parts = token.split('.').map(|part| URL_SAFE_NO_PAD.decode(part).expect("base64url"));
        let mut part = || crate::json::parse(&parts.next().expect("three parts")).expect("JSON");
        let (header, claims) = (part(), part());
        let kid = header["kid"].as_str().expect("kid").to_owned();
        let (sender, response) = oneshot::channel();
        if arrived.send(Arrived { claims, kid, sender }).is_err() {
            return;
        }
        let Ok(answer) = response.await else { return };
        if connection.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}
