//! The link between two regions: a TCP proxy for each node, which delays, loses, cuts and counts. `bench link` runs one
//! alone; its end cuts it, and SIGSTOP makes it silent while its connections stay open.

use std::collections::VecDeque;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, sink};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

/// Bytes of one read.
const CHUNK_BYTES: usize = 64 * 1024;
/// Maximum chunks on their way in one direction of a connection.
const CHUNKS_MAX: usize = 1024;
/// Pause after a connection that could not be accepted, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Addresses and faults of a link that runs alone.
#[derive(clap::Args, Clone)]
pub struct Plan {
    /// Address to listen on, and address of a node: `0.0.0.0:8704=eu-2:8694`. Can be repeated
    #[arg(long = "forward", value_name = "LISTEN=NODE", required = true, value_parser = forward)]
    forwards: Vec<(String, String)>,
    /// Milliseconds of a round trip, half of which each direction takes
    #[arg(long, default_value_t = 75)]
    rtt_ms: u64,
    /// Direction whose bytes never arrive, although connections are open
    #[arg(long, value_enum, default_value_t = Loss::Nothing)]
    lose: Loss,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Loss {
    Nothing,
    /// From the callers to the nodes
    Requests,
    /// From the nodes to the callers
    Responses,
}

fn forward(text: &str) -> Result<(String, String), &'static str> {
    let (listen, node) = text.split_once('=').ok_or("must be <listen>=<node>")?;
    Ok((listen.to_owned(), node.to_owned()))
}

/// Runs a link until `end`.
pub async fn run(plan: &Plan, end: impl Future<Output = Result<&'static str>>) -> Result<bool> {
    let (listen, nodes): (Vec<_>, Vec<_>) = plan.forwards.iter().cloned().unzip();
    let link = Link::listen(&listen, Duration::from_millis(plan.rtt_ms), plan.lose).await?;
    for (address, node) in link.addresses.iter().zip(&nodes) {
        eprintln!("{address} leads to {node}, with a round trip of {} ms", plan.rtt_ms);
    }
    link.lead_to(nodes);
    end.await.map(|_| true)
}

pub struct Link {
    /// The addresses at which each node of the origin is reached.
    pub addresses: Vec<SocketAddr>,
    targets: watch::Sender<Vec<String>>,
    cut: watch::Sender<bool>,
    bytes: Arc<AtomicU64>,
}

impl Link {
    /// A link to so many nodes on free ports.
    pub async fn open(nodes: usize, round_trip: Duration) -> Result<Self> {
        Self::listen(&vec!["127.0.0.1:0".to_owned(); nodes], round_trip, Loss::Nothing).await
    }

    /// A link that takes half of the round trip in each direction.
    async fn listen(listen: &[String], round_trip: Duration, loss: Loss) -> Result<Self> {
        let (targets, cut) = (watch::Sender::new(Vec::new()), watch::Sender::new(false));
        let (mut addresses, bytes) = (Vec::new(), Arc::new(AtomicU64::new(0)));
        for (node, address) in listen.iter().enumerate() {
            let listener = TcpListener::bind(address).await.with_context(|| address.clone())?;
            addresses.push(listener.local_addr()?);
            let proxy = Proxy {
                node,
                targets: targets.subscribe(),
                cut: cut.subscribe(),
                delay: round_trip / 2,
                loss,
                bytes: Arc::clone(&bytes),
            };
            tokio::spawn(proxy.accept(listener));
        }
        Ok(Self { addresses, targets, cut, bytes })
    }

    /// The nodes themselves, in the order of the addresses. A name is resolved for each connection.
    pub fn lead_to(&self, nodes: Vec<String>) {
        self.targets.send_replace(nodes);
    }

    /// Ends every connection and accepts none.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    pub fn heal(&self) {
        self.cut.send_replace(false);
    }

    /// Bytes that passed in both directions.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[derive(Clone)]
struct Proxy {
    node: usize,
    targets: watch::Receiver<Vec<String>>,
    cut: watch::Receiver<bool>,
    delay: Duration,
    loss: Loss,
    bytes: Arc<AtomicU64>,
}

impl Proxy {
    async fn accept(self, listener: TcpListener) {
        loop {
            let Ok((near, _)) = listener.accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let target = self.targets.borrow().get(self.node).cloned();
            if let Some(target) = target
                && !*self.cut.borrow()
            {
                tokio::spawn(self.clone().relay(near, target));
            }
        }
    }

    /// Passes bytes on until either side ends or the link is cut.
    async fn relay(self, near: TcpStream, target: String) {
        let Ok(far) = TcpStream::connect(target).await else { return };
        if near.set_nodelay(true).is_err() || far.set_nodelay(true).is_err() {
            return;
        }
        let (near, far) = (near.into_split(), far.into_split());
        let mut cut = self.cut.clone();
        tokio::select! {
            _ = cut.wait_for(|is_cut| *is_cut) => {}
            () = self.pass(near.0, far.1, Loss::Requests) => {}
            () = self.pass(far.0, near.1, Loss::Responses) => {}
        }
    }

    /// Each chunk leaves `delay` after it arrived, in order. If this direction is lost, so is its end.
    async fn pass(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, direction: Loss) {
        if self.loss == direction {
            drop(copy(&mut from, &mut sink()).await);
            return pending().await;
        }
        let mut chunks = VecDeque::<(Instant, Vec<u8>)>::new();
        let mut has_ended = false;
        while !has_ended || !chunks.is_empty() {
            let due = chunks.front().map(|(due, _)| *due);
            let mut buffer = Vec::with_capacity(CHUNK_BYTES);
            tokio::select! {
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    let Some((_, chunk)) = chunks.pop_front() else { continue };
                    if to.write_all(&chunk).await.is_err() {
                        return;
                    }
                }
                read = from.read_buf(&mut buffer), if !has_ended && chunks.len() < CHUNKS_MAX => {
                    has_ended = !matches!(read, Ok(1..));
                    if !has_ended {
                        self.bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
                        chunks.push_back((Instant::now() + self.delay, buffer));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;

    /// Time after which bytes that did not arrive are lost.
    const LOST_AFTER: Duration = Duration::from_millis(200);

    /// A server that returns the bytes of its first connection, and sends a copy of them to the receiver.
    async fn echo() -> (String, mpsc::Receiver<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let address = listener.local_addr().expect("address").to_string();
        let (seen, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("accepted");
            let mut buffer = [0; 4];
            while stream.read_exact(&mut buffer).await.is_ok() {
                seen.send(buffer.to_vec()).await.expect("a receiver");
                stream.write_all(&buffer).await.expect("written");
            }
        });
        (address, receiver)
    }

    #[tokio::test]
    async fn lost_direction_never_arrives() {
        for (loss, arrives) in [
            (Loss::Nothing, (true, true)),
            (Loss::Requests, (false, false)),
            (Loss::Responses, (true, false)),
        ] {
            let (address, mut seen) = echo().await;
            let link = Link::listen(&["127.0.0.1:0".to_owned()], Duration::ZERO, loss).await.expect("open");
            link.lead_to(vec![address]);
            let mut stream = TcpStream::connect(link.addresses[0]).await.expect("connected");
            stream.write_all(b"ping").await.expect("written");
            let request = timeout(LOST_AFTER, seen.recv()).await;
            let response = timeout(LOST_AFTER, stream.read_exact(&mut [0; 4])).await;
            assert_eq!((request.is_ok(), response.is_ok()), arrives);
        }
    }

    #[tokio::test]
    async fn link_delays_counts_and_cuts() {
        let (address, _seen) = echo().await;
        let round_trip = Duration::from_millis(60);
        let link = Link::open(1, round_trip).await.expect("open");
        link.lead_to(vec![address]);
        let mut stream = TcpStream::connect(link.addresses[0]).await.expect("connected");
        let begun = Instant::now();
        stream.write_all(b"ping").await.expect("written");
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.expect("read");
        assert!(begun.elapsed() >= round_trip && &answer == b"ping");
        assert_eq!(link.bytes(), 8);
        link.cut();
        assert_eq!(stream.read(&mut answer).await.unwrap_or_default(), 0);
        let mut refused = TcpStream::connect(link.addresses[0]).await.expect("connected");
        assert_eq!(refused.read(&mut answer).await.unwrap_or_default(), 0);
    }
}
