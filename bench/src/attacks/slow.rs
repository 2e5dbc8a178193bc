//! Connections that begin something and never finish it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::Outcome;
use crate::node::Node;
use crate::wire::{Io, Target};

/// Connections per attack.
pub const CONNECTIONS: usize = 1000;
/// Maximum time for which a connection is held: longer than any deadline of the node.
const HELD_MAX: Duration = Duration::from_secs(25);
/// Interval between two bytes.
const DRIP: Duration = Duration::from_secs(1);
/// Concurrent connection attempts.
const AT_ONCE: usize = 64;

/// The unfinished part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// TCP without a byte.
    Silent,
    /// Half a head, byte by byte.
    HalfHead,
    /// A head and half of its body, byte by byte.
    HalfBody,
    /// Half a `ClientHello`.
    HalfHandshake,
}

pub const VARIANTS: [Variant; 4] =
    [Variant::Silent, Variant::HalfHead, Variant::HalfBody, Variant::HalfHandshake];

impl Variant {
    pub fn name(self) -> &'static str {
        match self {
            Self::Silent => "slow loris: silent TCP",
            Self::HalfHead => "slow loris: half a head, byte by byte",
            Self::HalfBody => "slow loris: half a body, byte by byte",
            Self::HalfHandshake => "slow loris: stalled TLS handshake",
        }
    }

    /// Whether it needs the TLS listener.
    pub fn needs_tls(self) -> bool {
        self == Self::HalfHandshake
    }

    /// Bytes sent at once.
    fn beginning(self, target: &Target) -> Result<Vec<u8>> {
        let host = &target.host;
        Ok(match self {
            Self::Silent => Vec::new(),
            Self::HalfHead => format!("GET /livez HTTP/1.1\r\nhost: {host}\r\nx-slow: ").into_bytes(),
            Self::HalfBody => format!(
                "POST /v1/exchange/token HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{{"
            )
            .into_bytes(),
            Self::HalfHandshake => {
                let mut hello = client_hello(target)?;
                hello.truncate(hello.len() / 2);
                hello
            }
        })
    }

    fn drips(self) -> bool {
        matches!(self, Self::HalfHead | Self::HalfBody)
    }
}

/// Opens `count` connections to the attacked listener and waits for their end.
pub async fn attack(node: &Node, variant: Variant, count: usize) -> Result<Outcome> {
    let target = match (variant, &node.https) {
        // A body is read only from a permitted caller.
        (Variant::HalfBody, _) => node.target("workload")?,
        (Variant::HalfHead | Variant::HalfHandshake, Some(https)) => https.clone(),
        _ => node.http.clone(),
    };
    hold(&target, variant, count).await?.until_closed().await
}

/// Open connections, each with its task.
pub struct Held {
    ends: JoinSet<End>,
    refused: u64,
}

struct End {
    after: Option<Duration>,
    status: u16,
}

/// Opens `count` connections and starts the attack on each.
pub async fn hold(target: &Target, variant: Variant, count: usize) -> Result<Held> {
    let beginning = Arc::new(variant.beginning(target)?);
    // The unfinished handshake is written by hand.
    let target = if variant == Variant::HalfHandshake {
        Target { tls: None, ..target.clone() }
    } else {
        target.clone()
    };
    let mut opening: JoinSet<io::Result<Box<dyn Io>>> = JoinSet::new();
    let mut held = Held { ends: JoinSet::new(), refused: 0 };
    for _ in 0..count {
        if opening.len() == AT_ONCE
            && let Some(opened) = opening.join_next().await
        {
            held.begin(opened?, &beginning, variant.drips());
        }
        let target = target.clone();
        opening.spawn(async move { Ok(target.connect().await?.into_io()) });
    }
    while let Some(opened) = opening.join_next().await {
        held.begin(opened?, &beginning, variant.drips());
    }
    Ok(held)
}

impl Held {
    fn begin(&mut self, opened: io::Result<Box<dyn Io>>, beginning: &Arc<Vec<u8>>, drips: bool) {
        match opened {
            Ok(io) => {
                self.ends.spawn(until_end(io, Arc::clone(beginning), drips));
            }
            Err(_) => self.refused += 1,
        }
    }

    /// Number of opened connections, closed ones included.
    pub fn opened(&self) -> usize {
        self.ends.len()
    }

    /// Waits until the node has closed all of them, or for [`HELD_MAX`].
    pub async fn until_closed(mut self) -> Result<Outcome> {
        let mut outcome = Outcome { tries: self.refused, ..Outcome::default() };
        if self.refused > 0 {
            outcome.note(format!("{} connections were not opened", self.refused));
        }
        let mut statuses = std::collections::BTreeMap::<u16, u64>::new();
        while let Some(end) = self.ends.join_next().await {
            let end = end?;
            outcome.tries += 1;
            match end.after {
                Some(after) => outcome.closed_within = outcome.closed_within.max(Some(after)),
                None => outcome.left_open += 1,
            }
            *statuses.entry(end.status).or_default() += 1;
        }
        for (status, count) in statuses.iter().filter(|(status, _)| **status != 0) {
            outcome.note(format!("{count} connections received {status}"));
            if (200..400).contains(status) {
                outcome.wrong_accepts += count;
            }
            if crate::load::is_server_error(*status) {
                outcome.server_errors += count;
            }
        }
        if outcome.left_open > 0 {
            outcome.note(format!("{} connections were still open after {HELD_MAX:?}", outcome.left_open));
        }
        Ok(outcome)
    }
}

/// Sends the beginning, continues byte by byte, and returns when the node closes.
async fn until_end(mut io: Box<dyn Io>, beginning: Arc<Vec<u8>>, drips: bool) -> End {
    let begun = Instant::now();
    let mut end = End { after: None, status: 0 };
    let mut read = Vec::new();
    if io.write_all(&beginning).await.is_err() || io.flush().await.is_err() {
        end.after = Some(begun.elapsed());
        return end;
    }
    let mut drip = interval(DRIP);
    drip.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            got = io.read_buf(&mut read) => match got {
                Ok(count) if count > 0 => {
                    let digits = read.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
                    end.status = digits.and_then(|digits| digits.parse().ok()).unwrap_or(end.status);
                }
                _ => {
                    end.after = Some(begun.elapsed());
                    return end;
                }
            },
            // The read notices that the node closed.
            _ = drip.tick(), if drips => drop(io.write_all(b"a").await.and(io.flush().await)),
            () = sleep_until(begun + HELD_MAX) => return end,
        }
    }
}

/// The first message of a TLS handshake.
fn client_hello(target: &Target) -> Result<Vec<u8>> {
    let Some(tls) = &target.tls else { return Ok(Vec::new()) };
    let mut client = rustls::ClientConnection::new(Arc::clone(tls), ServerName::try_from("localhost")?)?;
    let mut hello = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut hello)?;
    }
    Ok(hello)
}
