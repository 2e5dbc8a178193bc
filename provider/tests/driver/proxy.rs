//! A proxy before a node without TLS, which answers, delays or cuts single requests.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The fate of a request.
pub enum Fate {
    /// The node answers.
    Pass,
    /// The node answers, and the answer is lost.
    Lose,
    /// This answer instead of the node's.
    Answer(&'static str),
    /// No answer at all.
    Hang,
}

/// A running proxy.
pub struct Proxy {
    pub address: SocketAddr,
    /// The requests so far.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// The fate of a request depends on its number among the writes, from 0; reads pass.
    pub async fn start(node: SocketAddr, fate: impl Fn(usize) -> Fate + Send + Sync + 'static) -> Self {
        let of_write = move |request: &str, number| if is_read(request) { Fate::Pass } else { fate(number) };
        Self::start_before(node, of_write).await
    }

    /// The fate of a request depends on itself and on the number of writes before it.
    pub async fn start_before(
        node: SocketAddr,
        fate: impl Fn(&str, usize) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, fate) = (Arc::clone(&requests), Arc::new(fate));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("accepted");
                let (seen, fate) = (Arc::clone(&seen), Arc::clone(&fate));
                tokio::spawn(async move { serve(stream, node, &seen, &*fate).await });
            }
        });
        Self { address, requests }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The writes that arrived.
    pub fn writes(&self) -> Vec<String> {
        self.requests.lock().expect("requests").clone()
    }
}

fn is_read(request: &str) -> bool {
    request.starts_with("GET")
}

/// The value of a header.
pub fn header<'r>(request: &'r str, name: &str) -> Option<&'r str> {
    request.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

async fn serve(
    mut client: TcpStream,
    node: SocketAddr,
    seen: &Mutex<Vec<String>>,
    fate: &(dyn Fn(&str, usize) -> Fate + Sync),
) {
    let Some(request) = read(&mut client).await else { return };
    let number = {
        let mut seen = seen.lock().expect("requests");
        let number = seen.len();
        if !is_read(&request) {
            seen.push(request.clone());
        }
        number
    };
    let answer = match fate(&request, number) {
        Fate::Answer(answer) => answer.to_owned(),
        Fate::Hang => std::future::pending().await,
        Fate::Pass => forward(node, &request).await,
        Fate::Lose => {
            forward(node, &request).await;
            return;
        }
    };
    client.write_all(answer.as_bytes()).await.expect("answered");
}

/// The answer of the node, after which it closes the connection.
async fn forward(node: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(node).await.expect("connected");
    let request = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

/// One request with its body.
async fn read(client: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(client.read_u8().await.ok()?);
    }
    let head = String::from_utf8(request).expect("ASCII");
    let length = header(&head, "content-length").map_or(0, |length| length.parse().expect("a number"));
    let mut body = vec![0; length];
    client.read_exact(&mut body).await.ok()?;
    Some(head + &String::from_utf8(body).expect("UTF-8"))
}
