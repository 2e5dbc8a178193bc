//! Links between nodes, or between regions: a TCP proxy for each node, which delays, silences, cuts and counts. `bench
//! link` runs one alone; its end cuts it, and SIGSTOP makes it silent while its connections stay open.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

/// Bytes of one read.
const CHUNK_BYTES: usize = 64 * 1024;
/// Maximum chunks in flight in one direction of a connection.
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
    let link = Link::listen(&listen, callers()).await?;
    link.delay(Duration::from_millis(plan.rtt_ms));
    link.lose(plan.lose);
    for (address, node) in link.addresses.iter().zip(&nodes) {
        eprintln!("{address} leads to {node}, with a round trip of {} ms", plan.rtt_ms);
    }
    link.lead_to(nodes);
    end.await.map(|_| true)
}

/// An end of a connection: a node, or `None` for a caller that is no node of the link.
pub type End = Option<usize>;

/// The end from which a connection comes, by both of its addresses there.
pub type Origin = Arc<dyn Fn(SocketAddr, SocketAddr) -> End + Send + Sync>;

fn callers() -> Origin {
    Arc::new(|_, _| None)
}

/// Faults and delay of the bytes from one end to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// Connections end at once, in both directions.
    pub is_cut: bool,
    /// Bytes wait until the silence ends, as if they were lost and retransmitted: the connection stays open.
    pub is_silent: bool,
    pub delay: Duration,
}

/// By source and destination; a way that is missing is without a fault.
type Ways = BTreeMap<(End, End), Way>;

pub struct Link {
    /// The addresses at which each node is reached.
    pub addresses: Vec<SocketAddr>,
    targets: watch::Sender<Vec<String>>,
    ways: watch::Sender<Ways>,
    bytes: Arc<AtomicU64>,
}

impl Link {
    /// A link from callers to so many nodes on free ports.
    pub async fn open(nodes: usize, round_trip: Duration) -> Result<Self> {
        let link = Self::between(nodes, callers()).await?;
        link.delay(round_trip);
        Ok(link)
    }

    /// A link between the ends that `origin` distinguishes.
    pub async fn between(nodes: usize, origin: Origin) -> Result<Self> {
        Self::listen(&vec!["127.0.0.1:0".to_owned(); nodes], origin).await
    }

    async fn listen(listen: &[String], origin: Origin) -> Result<Self> {
        let (targets, ways) = (watch::Sender::new(Vec::new()), watch::Sender::new(Ways::new()));
        let (mut addresses, bytes) = (Vec::new(), Arc::new(AtomicU64::new(0)));
        for (node, address) in listen.iter().enumerate() {
            let listener = TcpListener::bind(address).await.with_context(|| address.clone())?;
            addresses.push(listener.local_addr()?);
            let proxy = Proxy {
                node,
                targets: targets.subscribe(),
                ways: ways.subscribe(),
                origin: Arc::clone(&origin),
                bytes: Arc::clone(&bytes),
            };
            tokio::spawn(proxy.accept(listener));
        }
        Ok(Self { addresses, targets, ways, bytes })
    }

    /// The nodes themselves, in the order of the addresses. A name is resolved for each connection.
    pub fn lead_to(&self, nodes: Vec<String>) {
        self.targets.send_replace(nodes);
    }

    /// Changes the way from one end to another.
    pub fn set(&self, from: End, to: End, change: impl Fn(&mut Way)) {
        self.ways.send_modify(|ways| change(ways.entry((from, to)).or_default()));
    }

    /// Changes every way from callers and back.
    fn set_all(&self, change: impl Fn(&mut Way)) {
        for node in 0..self.addresses.len() {
            self.set(None, Some(node), &change);
            self.set(Some(node), None, &change);
        }
    }

    /// Each direction takes half of the round trip.
    fn delay(&self, round_trip: Duration) {
        self.set_all(|way| way.delay = round_trip / 2);
    }

    fn lose(&self, loss: Loss) {
        for node in 0..self.addresses.len() {
            self.set(None, Some(node), |way| way.is_silent = loss == Loss::Requests);
            self.set(Some(node), None, |way| way.is_silent = loss == Loss::Responses);
        }
    }

    /// Ends every connection of callers and accepts none.
    pub fn cut(&self) {
        self.set_all(|way| way.is_cut = true);
    }

    pub fn heal(&self) {
        self.set_all(|way| way.is_cut = false);
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
    ways: watch::Receiver<Ways>,
    origin: Origin,
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
            if let Some(target) = target {
                tokio::spawn(self.clone().relay(near, target));
            }
        }
    }

    /// Forwards bytes until either side ends or the link is cut.
    async fn relay(mut self, near: TcpStream, target: String) {
        let (Ok(remote), Ok(local)) = (near.peer_addr(), near.local_addr()) else { return };
        let ends = ((self.origin)(remote, local), Some(self.node));
        let back = (ends.1, ends.0);
        let is_cut = |ways: &Ways| way(ways, ends).is_cut || way(ways, back).is_cut;
        if is_cut(&self.ways.borrow()) {
            return;
        }
        let Ok(far) = TcpStream::connect(target).await else { return };
        if near.set_nodelay(true).is_err() || far.set_nodelay(true).is_err() {
            return;
        }
        let (near, far) = (near.into_split(), far.into_split());
        let (requests, responses) = (self.clone(), self.clone());
        tokio::select! {
            _ = self.ways.wait_for(is_cut) => {}
            () = requests.pass(near.0, far.1, ends) => {}
            () = responses.pass(far.0, near.1, back) => {}
        }
    }

    /// Each chunk leaves after the delay at its arrival, in order, while the way is not silent. The end of a silent
    /// direction is silent too.
    async fn pass(mut self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, ends: (End, End)) {
        let mut chunks = VecDeque::<(Instant, Vec<u8>)>::new();
        let mut has_ended = false;
        loop {
            let way = way(&self.ways.borrow_and_update(), ends);
            if has_ended && chunks.is_empty() && !way.is_silent {
                return;
            }
            let due = chunks.front().map(|(due, _)| *due).filter(|_| !way.is_silent);
            let mut buffer = Vec::with_capacity(CHUNK_BYTES);
            tokio::select! {
                changed = self.ways.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
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
                        chunks.push_back((Instant::now() + way.delay, buffer));
                    }
                }
            }
        }
    }
}

fn way(ways: &Ways, ends: (End, End)) -> Way {
    ways.get(&ends).copied().unwrap_or_default()
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
            let link = Link::open(1, Duration::ZERO).await.expect("open");
            link.lose(loss);
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

    #[tokio::test]
    async fn bytes_of_a_silent_way_arrive_when_it_is_healed() {
        let (address, mut seen) = echo().await;
        let link = Link::between(2, Arc::new(|_, _| Some(1))).await.expect("open");
        link.lead_to(vec![address]);
        link.set(Some(1), Some(0), |way| way.is_silent = true);
        let mut stream = TcpStream::connect(link.addresses[0]).await.expect("connected");
        stream.write_all(b"ping").await.expect("written");
        assert!(timeout(LOST_AFTER, seen.recv()).await.is_err(), "lost while it is silent");
        link.set(Some(1), Some(0), |way| way.is_silent = false);
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.expect("read");
        assert_eq!((seen.recv().await.as_deref(), &answer), (Some(&b"ping"[..]), b"ping"));
    }
}
