//! A push receiver that accepts everything and records arrivals: event, `jti`, time, and order within the
//! subject.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::wire;

const TAKEN: &[u8] = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";
/// Size of the accept queue.
const BACKLOG: u32 = 128;
/// Maximum wait for arrivals: the backoff of a receiver that was down is up to five minutes.
pub const ARRIVAL_MAX: Duration = Duration::from_secs(600);
/// Interval of the checks for arrivals.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// Reserved address of a future receiver.
pub struct ReservedAddress(SocketAddr);

/// Listens until it is dropped.
pub struct Receiver {
    pub url: String,
    seen: ArrivalLog,
    _listening: JoinSet<()>,
}

/// Arrivals. Clones share them.
#[derive(Clone, Default)]
pub struct ArrivalLog(Arc<Mutex<Arrivals>>);

#[derive(Default)]
struct Arrivals {
    /// By `txn` and type.
    events: HashMap<(String, String), Arrival>,
    /// Log position of the latest event of each subject.
    latest: HashMap<String, (u64, u64)>,
    first: Option<Instant>,
    last: Option<Instant>,
    repeats: u64,
    renamed: u64,
    out_of_order: u64,
}

struct Arrival {
    jti: String,
    at: Instant,
}

impl ReservedAddress {
    /// Reserves a port.
    pub fn reserve() -> Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        Ok(Self(listener.local_addr()?))
    }

    pub fn url(&self) -> String {
        format!("http://{}/events", self.0)
    }
}

impl Receiver {
    pub fn start(place: &ReservedAddress) -> Result<Self> {
        let seen = ArrivalLog::default();
        let taken = seen.clone();
        let listening = listen(place, Arc::new(move |token| taken.take(token)))?;
        Ok(Self { url: place.url(), seen, _listening: listening })
    }

    pub fn seen(&self) -> ArrivalLog {
        self.seen.clone()
    }
}

/// Accepts a token that was pushed. An error closes the connection without an answer.
pub type Take = Arc<dyn Fn(&[u8]) -> Result<()> + Send + Sync>;

/// Listens until the set is dropped.
pub fn listen(place: &ReservedAddress, take: Take) -> Result<JoinSet<()>> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(place.0)?;
    let listener = socket.listen(BACKLOG)?;
    let mut listening = JoinSet::new();
    listening.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve(stream, Arc::clone(&take)));
        }
    });
    Ok(listening)
}

/// The claims of a SET, without verifying its signature, which is left to the tests.
pub fn claims(token: &[u8]) -> Result<Value> {
    let payload = token.split(|byte| *byte == b'.').nth(1).context("a token without three parts")?;
    Ok(serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload)?)?)
}

async fn serve(mut stream: TcpStream, take: Take) {
    let mut read = Vec::with_capacity(4096);
    loop {
        let Some((head, end)) = request(&read) else {
            // A killed node closes its connections.
            if stream.read_buf(&mut read).await.unwrap_or_default() == 0 {
                return;
            }
            continue;
        };
        if take(&read[head..end]).is_err() {
            return;
        }
        read.drain(..end);
        if stream.write_all(TAKEN).await.is_err() {
            return;
        }
    }
}

/// Bounds of the first request's body, if it is complete.
fn request(bytes: &[u8]) -> Option<(usize, usize)> {
    let head = wire::find(bytes, b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).ok()?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok()).flatten()
    });
    Some((head, head + length?)).filter(|(_, end)| *end <= bytes.len())
}

impl ArrivalLog {
    fn take(&self, token: &[u8]) -> Result<()> {
        let claims = claims(token)?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let (jti, txn) = (text(&claims["jti"]).context("jti")?, text(&claims["txn"]).unwrap_or_default());
        let event_type = claims["events"].as_object().and_then(|events| events.keys().next());
        let event_type = event_type.context("a token without an event")?.clone();
        let subject = claims["sub_id"].to_string();
        let mut parts = jti.rsplit('-').skip(1).map(str::parse::<u64>);
        let (number, index) = (parts.next().context("number")??, parts.next().context("index")??);

        let mut arrivals = self.arrivals();
        let now = Instant::now();
        arrivals.first.get_or_insert(now);
        arrivals.last = Some(now);
        if let Some(before) = arrivals.events.get(&(txn.clone(), event_type.clone())) {
            let is_same = before.jti == jti;
            arrivals.repeats += u64::from(is_same);
            arrivals.renamed += u64::from(!is_same);
            return Ok(());
        }
        let place = (index, number);
        let before = arrivals.latest.insert(subject, place);
        arrivals.out_of_order += u64::from(before > Some(place));
        arrivals.events.insert((txn, event_type), Arrival { jti, at: now });
        Ok(())
    }

    /// Time of the first arrival of an event.
    pub fn arrival(&self, txn: &str, event_type: &str) -> Option<Instant> {
        let key = (txn.to_owned(), event_type.to_owned());
        self.arrivals().events.get(&key).map(|arrival| arrival.at)
    }

    /// Number of distinct events.
    pub fn events(&self) -> u64 {
        self.arrivals().events.len() as u64
    }

    /// Arrivals of a known event under its `jti`.
    pub fn repeats(&self) -> u64 {
        self.arrivals().repeats
    }

    /// Arrivals of a known event under another `jti`.
    pub fn renamed(&self) -> u64 {
        self.arrivals().renamed
    }

    /// Arrivals after a later event of the same subject.
    pub fn out_of_order(&self) -> u64 {
        self.arrivals().out_of_order
    }

    /// Time from the first to the last arrival.
    pub fn took(&self) -> Duration {
        let arrivals = self.arrivals();
        let took = arrivals.first.zip(arrivals.last).map(|(first, last)| last - first);
        took.unwrap_or_default()
    }

    /// Waits for so many arrivals.
    pub async fn until(&self, events: u64) -> Result<()> {
        let begun = Instant::now();
        let (mut last, mut since) = (0, begun);
        while self.events() < events {
            let now = self.events();
            if now > last {
                (last, since) = (now, Instant::now());
            }
            if since.elapsed() > ARRIVAL_MAX {
                bail!("{now} of {events} events have arrived, and no more for {ARRIVAL_MAX:?}");
            }
            sleep(LOOK_PAUSE).await;
        }
        Ok(())
    }

    pub async fn until_event(&self, name: &str, event_type: &str) -> Instant {
        loop {
            if let Some(at) = self.arrival(name, event_type) {
                return at;
            }
            sleep(LOOK_PAUSE).await;
        }
    }

    fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(jti: &str, txn: &str, subject: &str) -> Vec<u8> {
        let claims = json!({"jti": jti, "txn": txn, "sub_id": {"id": subject}, "events": {"e": {}}});
        format!("h.{}.s", URL_SAFE_NO_PAD.encode(claims.to_string())).into_bytes()
    }

    #[test]
    fn repeated_late_and_renamed_events_are_counted_apart() {
        let seen = ArrivalLog::default();
        for (jti, txn, subject) in [
            ("i-5-0-s", "1", "a"),
            ("i-5-1-s", "2", "b"),
            ("i-7-0-s", "3", "a"),
            ("i-6-0-s", "4", "a"),
            ("i-5-0-s", "1", "a"),
            ("i-9-0-s", "1", "a"),
        ] {
            seen.take(&token(jti, txn, subject)).expect("a token");
        }
        assert_eq!((seen.events(), seen.repeats(), seen.renamed(), seen.out_of_order()), (4, 1, 1, 1));
        assert!(seen.take(b"no token").is_err());
    }

    #[test]
    fn a_request_is_complete_with_its_last_byte_and_not_before() {
        let bytes = b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcPOST";
        for end in 0..41 {
            assert_eq!(request(&bytes[..end]), None, "{end}");
        }
        assert_eq!(request(bytes), Some((38, 41)));
    }
}
