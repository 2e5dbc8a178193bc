//! HTTP/2 in raw frames: the announced limits, and abusive clients.

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
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
async fn limits_are_announced() {
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
    // RFC 9113 §6.5.2: the maximum frame size stays at its default, which is the minimum.
    for setting in [
        (3, limits::HTTP2_STREAMS_MAX),
        (4, limits::HTTP2_STREAM_WINDOW_BYTES),
        (6, limits::HTTP2_HEADER_LIST_BYTES_MAX),
    ] {
        assert!(stated.contains(&setting), "{setting:?} in {stated:?}");
    }
    assert!(
        !stated.iter().any(|(id, size)| *id == 5 && *size != limits::HTTP2_FRAME_BYTES_MAX),
        "{stated:?}"
    );
    // The window of a connection begins at 65 535, and the increment is announced (§6.9.2).
    let added = loop {
        let (kind, payload) = next(&mut wire).await.expect("a frame");
        if kind == WINDOW_UPDATE {
            break u32::from_be_bytes(payload.try_into().expect("increment"));
        }
    };
    assert_eq!(added + 65_535, limits::HTTP2_CONNECTION_WINDOW_BYTES);
}

#[tokio::test(start_paused = true)]
async fn oversized_frame_ends_the_connection() {
    let mut wire = http2().await;
    let length = usize::try_from(limits::HTTP2_FRAME_BYTES_MAX).expect("small") + 1;
    wire.send(&frame(DATA, 0, 1, &vec![0; length])).await;
    // FRAME_SIZE_ERROR.
    assert_eq!(error_code(&mut wire).await, Some(0x6));
    assert_eq!(wire.ended().await, Ended::Failed);
}

/// Stream errors that the client provokes; its own resets do not count.
#[tokio::test(start_paused = true)]
async fn many_stream_errors_end_the_connection() {
    let mut wire = http2().await;
    let mut burst = Vec::new();
    let mistakes = u32::try_from(limits::HTTP2_LOCAL_RESETS_MAX).expect("small") + 1;
    for stream in (0..mistakes).map(|at| 2 * at + 1) {
        // RFC 9113 §8.1.1: a length of 1 and no content is malformed, an error of the stream.
        burst.extend(frame(HEADERS, 0x5, stream, &[GET, &[0x0f, 0x0d, 1, b'1']].concat()));
    }
    wire.send(&burst).await;
    assert_eq!(error_code(&mut wire).await, Some(0xb));
    assert_eq!(wire.ended().await, Ended::Failed);
}

#[tokio::test(start_paused = true)]
async fn unanswered_ping_cuts_the_connection() {
    let mut wire = http2().await;
    let began = sleep(Duration::ZERO).deadline();
    let head = [&[0x82, 0x86, 0x04, 7], b"/stream".as_slice(), &[0x41, 1, b'a']].concat();
    wire.send(&frame(HEADERS, 0x5, 1, &head)).await;
    let mut pings = 0;
    while let Some((kind, _)) = next(&mut wire).await {
        pings += usize::from(kind == PING);
    }
    let took = sleep(Duration::ZERO).deadline().duration_since(began);
    let limit = limits::HTTP2_PING_INTERVAL + limits::HTTP2_PING_TIMEOUT;
    assert!(took >= limit && took < limit + Duration::from_secs(1), "{took:?}");
    assert_eq!(pings, 1);
    assert_eq!(wire.ended().await, Ended::Failed);
}

#[tokio::test(start_paused = true)]
async fn request_beyond_the_stream_limit_is_refused() {
    let mut wire = http2().await;
    let head = [&[0x82, 0x86, 0x04, 5], b"/slow".as_slice(), &[0x41, 1, b'a']].concat();
    let last = 2 * limits::HTTP2_STREAMS_MAX + 1;
    for stream in (1..=last).step_by(2) {
        wire.send(&frame(HEADERS, 0x5, stream, &head)).await;
    }
    let reset = loop {
        let (kind, payload) = next(&mut wire).await.expect("a frame");
        if kind == RST_STREAM {
            break payload;
        }
    };
    // REFUSED_STREAM.
    assert_eq!(reset, 7_u32.to_be_bytes());
    // Shorter than the duration of the requests.
    sleep(Duration::from_secs(1)).await;
    assert_eq!(wire.served().len(), usize::try_from(limits::HTTP2_STREAMS_MAX).expect("small"));
}

#[tokio::test(start_paused = true)]
async fn oversized_head_is_not_served() {
    // RFC 9113 §6.5.2: a field counts its name, its value and 32 bytes more.
    let most = usize::try_from(limits::HTTP2_HEADER_LIST_BYTES_MAX).expect("small");
    let others = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
    let counted: usize = others.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
    // The library refuses one byte below the announced limit.
    for (bytes, is_served) in [(most - 1, true), (most, false), (most + 1, false)] {
        let value = vec![b'y'; bytes - counted - 1 - 32];
        // A literal whose length takes two more bytes (RFC 7541 §5.1).
        let over = value.len() - 127;
        let length =
            [0x7f, u8::try_from(over % 128).expect("low") | 0x80, u8::try_from(over / 128).expect("high")];
        let block = [GET, &[0, 1, b'x'], &length, &value].concat();
        let mut wire = http2().await;
        wire.send(&frame(HEADERS, 0x5, 1, &block)).await;
        while next(&mut wire).await.expect("an answer").0 != HEADERS {}
        assert_eq!(!wire.served().is_empty(), is_served, "{bytes}");
    }
}

#[tokio::test(start_paused = true)]
async fn many_client_resets_end_the_connection() {
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
    assert!(wire.served().len() <= limits::HTTP2_PENDING_RESETS_MAX, "{}", wire.served().len());
}

#[tokio::test(start_paused = true)]
async fn endless_head_ends_the_connection() {
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
async fn plain_listener_refuses_http2() {
    let mut wire = Wire::http1();
    wire.send(PREFACE).await;
    assert_eq!(statuses(&wire.rest().await), [400]);
}
