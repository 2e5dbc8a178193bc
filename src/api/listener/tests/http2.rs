//! HTTP/2 in raw frames: what is stated, and what a peer that wastes our time gets.

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
/// `GET http://a/` (RFC 7541 Appendix A; the authority as a literal).
const GET: &[u8] = &[0x82, 0x84, 0x86, 0x41, 0x01, b'a'];

/// A frame (RFC 9113 §4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("length").to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

async fn http2() -> Wire {
    let mut wire = Wire::new(peer(), Connection::http2);
    wire.send(PREFACE).await;
    wire.send(&frame(SETTINGS, 0, 0, &[])).await;
    wire
}

/// The next frame: its kind and payload.
async fn next(wire: &mut Wire) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 9];
    wire.client.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; usize::try_from(length).expect("length")];
    wire.client.read_exact(&mut payload).await.ok()?;
    Some((head[3], payload))
}

/// The error code of the GOAWAY that ends the connection (RFC 9113 §6.8).
async fn error_code(wire: &mut Wire) -> Option<u32> {
    let mut code = None;
    while let Some((kind, payload)) = next(wire).await {
        if kind == GOAWAY {
            code = Some(u32::from_be_bytes(payload[4..8].try_into().expect("code")));
        }
    }
    code
}

#[tokio::test(start_paused = true)]
async fn the_limits_are_stated() {
    let mut wire = http2().await;
    let (kind, payload) = next(&mut wire).await.expect("settings");
    assert_eq!(kind, SETTINGS);
    let stated: Vec<(u16, u32)> = payload
        .chunks(6)
        .map(|pair| {
            let value = pair[2..].try_into().expect("value");
            (u16::from_be_bytes([pair[0], pair[1]]), u32::from_be_bytes(value))
        })
        .collect();
    // RFC 9113 §6.5.2: the largest frame is left at its default, which is the least.
    for setting in [
        (3, limits::HTTP2_STREAMS_MAX),
        (4, limits::HTTP2_STREAM_WINDOW_BYTES),
        (6, limits::HTTP2_HEADER_LIST_BYTES_MAX),
    ] {
        assert!(stated.contains(&setting), "{setting:?} in {stated:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_taken_back_at_once_end_the_connection() {
    let mut wire = http2().await;
    let mut burst = Vec::new();
    for stream in (1..400).step_by(2) {
        burst.extend(frame(HEADERS, 0x5, stream, GET));
        burst.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    wire.send(&burst).await;
    // ENHANCE_YOUR_CALM (RFC 9113 §7).
    assert_eq!(error_code(&mut wire).await, Some(0xb));
    assert_eq!(wire.ended().await, Ended::Failed);
    assert!(wire.asked().len() <= limits::HTTP2_PENDING_RESETS_MAX, "{}", wire.asked().len());
}

#[tokio::test(start_paused = true)]
async fn a_head_without_an_end_ends_the_connection() {
    let mut wire = http2().await;
    let mut burst = frame(HEADERS, 0, 1, GET);
    for _ in 0..1000 {
        burst.extend(frame(CONTINUATION, 0, 1, &[]));
    }
    wire.send(&burst).await;
    assert_eq!(error_code(&mut wire).await, Some(0xb));
    assert_eq!(wire.ended().await, Ended::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_plain_listener_speaks_no_http2() {
    let mut wire = Wire::http1();
    wire.send(PREFACE).await;
    assert_eq!(statuses(&wire.rest().await), [400]);
}
