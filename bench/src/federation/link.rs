//! The link between two regions: a TCP proxy for each node, which delays, cuts and counts.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Bytes of one read.
const CHUNK_BYTES: usize = 64 * 1024;
/// Maximum chunks on their way in one direction of a connection.
const CHUNKS_MAX: usize = 1024;

pub struct Link {
    /// The addresses at which each node of the origin is reached.
    pub addresses: Vec<SocketAddr>,
    targets: watch::Sender<Vec<SocketAddr>>,
    cut: watch::Sender<bool>,
    bytes: Arc<AtomicU64>,
}

impl Link {
    /// A link to so many nodes, which takes half of the round trip in each direction.
    pub async fn open(nodes: usize, round_trip: Duration) -> Result<Self> {
        let (targets, cut) = (watch::Sender::new(Vec::new()), watch::Sender::new(false));
        let (mut addresses, bytes) = (Vec::new(), Arc::new(AtomicU64::new(0)));
        for node in 0..nodes {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            addresses.push(listener.local_addr()?);
            let proxy = Proxy {
                node,
                targets: targets.subscribe(),
                cut: cut.subscribe(),
                delay: round_trip / 2,
                bytes: Arc::clone(&bytes),
            };
            tokio::spawn(proxy.accept(listener));
        }
        Ok(Self { addresses, targets, cut, bytes })
    }

    /// The nodes themselves, in the order of the addresses.
    pub fn lead_to(&self, nodes: Vec<SocketAddr>) {
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
    targets: watch::Receiver<Vec<SocketAddr>>,
    cut: watch::Receiver<bool>,
    delay: Duration,
    bytes: Arc<AtomicU64>,
}

impl Proxy {
    async fn accept(self, listener: TcpListener) {
        while let Ok((near, _)) = listener.accept().await {
            let target = self.targets.borrow().get(self.node).copied();
            if let Some(target) = target
                && !*self.cut.borrow()
            {
                tokio::spawn(self.clone().relay(near, target));
            }
        }
    }

    /// Passes bytes on until either side ends or the link is cut.
    async fn relay(self, near: TcpStream, target: SocketAddr) {
        let Ok(far) = TcpStream::connect(target).await else { return };
        if near.set_nodelay(true).is_err() || far.set_nodelay(true).is_err() {
            return;
        }
        let (near, far) = (near.into_split(), far.into_split());
        let mut cut = self.cut.clone();
        tokio::select! {
            _ = cut.wait_for(|is_cut| *is_cut) => {}
            () = self.pass(near.0, far.1) => {}
            () = self.pass(far.0, near.1) => {}
        }
    }

    /// Each chunk leaves `delay` after it arrived, in order.
    async fn pass(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
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
    use super::*;

    #[tokio::test]
    async fn link_delays_counts_and_cuts() {
        let echo = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let address = echo.local_addr().expect("address");
        tokio::spawn(async move {
            let (mut stream, _) = echo.accept().await.expect("accepted");
            let (mut from, mut to) = stream.split();
            drop(tokio::io::copy(&mut from, &mut to).await);
        });
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
