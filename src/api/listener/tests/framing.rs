//! HTTP/1.1 framing: every byte sequence has one reading.

use super::cases::CASES;
use super::*;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn raw_requests_have_the_statuses_of_the_table() {
    assert!(CASES.len() >= 60, "{}", CASES.len());
    for (name, bytes, expected) in CASES {
        let mut wire = Wire::http1();
        wire.send(bytes.as_bytes()).await;
        let text = wire.rest().await;
        assert_eq!(statuses(&text), *expected, "{name}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn segmentation_of_a_request_does_not_matter() {
    for (name, bytes, expected) in CASES {
        let mut wire = Wire::http1();
        for byte in bytes.as_bytes() {
            wire.send(&[*byte]).await;
            tokio::task::yield_now().await;
        }
        let text = wire.rest().await;
        assert_eq!(statuses(&text), *expected, "{name}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn violation_is_named_and_ends_the_connection() {
    for (bytes, expected) in [
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", Violation::Host),
        ("GET / HTTP/1.1\nHost: a\n\n", Violation::LineEnd),
        ("GET / HTTP/1.1\r\nHost: a\0\r\n\r\n", Violation::ControlCharacter),
        ("GET /\r\n\r\n", Violation::RequestLine),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", Violation::Target),
        ("GET / HTTP/1.0\r\nHost: a\r\n\r\n", Violation::Version),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", Violation::Header),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\n", Violation::ContentLength),
        ("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", Violation::TransferEncoding),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
            Violation::TwoLengths,
        ),
    ] {
        let mut wire = Wire::http1();
        wire.send(bytes.as_bytes()).await;
        let text = wire.rest().await;
        assert!(text.ends_with(&format!("\r\n\r\n{expected}")), "{bytes}: {text}");
        assert!(text.contains("\r\nconnection: close\r\n"), "{bytes}: {text}");
        assert_eq!(wire.served(), Vec::<String>::new(), "{bytes}");
        drop(wire.client);
        let ended = wire.server.join_next().await.expect("one").expect("no panic");
        assert_eq!(ended, Ended::Violation, "{bytes}");
    }
}

#[tokio::test(start_paused = true)]
async fn heads_beyond_their_limits_are_refused() {
    let headers = |count: usize| {
        let more = "X: y\r\n".repeat(count - 1);
        format!("GET / HTTP/1.1\r\nHost: a\r\n{more}\r\n")
    };
    // "GET " and " HTTP/1.1\r\n" take 15 bytes of the line.
    let line = |bytes: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(bytes - 16));
    let head = |bytes: usize| {
        let start = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
        format!("{start}{}\r\n\r\n", "a".repeat(bytes - start.len() - 4))
    };
    for (name, request, expected) in [
        ("headers", headers(limits::HEADERS_MAX), 200),
        ("one header more", headers(limits::HEADERS_MAX + 1), 431),
        ("line", line(limits::REQUEST_LINE_BYTES_MAX), 200),
        ("line one byte longer", line(limits::REQUEST_LINE_BYTES_MAX + 1), 414),
        ("head", head(limits::HEAD_BYTES_MAX), 200),
        ("head one byte longer", head(limits::HEAD_BYTES_MAX + 1), 431),
        ("a line without an end", "G".repeat(100_000), 414),
        ("a header without an end", format!("GET / HTTP/1.1\r\nX:{}", "a".repeat(100_000)), 431),
    ] {
        let mut wire = Wire::http1();
        let (mut reader, mut writer) = tokio::io::split(wire.client);
        let mut text = String::new();
        let sending = async {
            drop(writer.write_all(request.as_bytes()).await);
        };
        let (read, ()) = tokio::join!(reader.read_to_string(&mut text), sending);
        read.expect("read");
        assert_eq!(statuses(&text), [expected], "{name}: {text}");
        drop((reader, writer));
        wire.server.join_next().await.expect("one").expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn request_after_a_chunked_one_is_not_served() {
    let chunked = "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    for body in ["0\r\n\r\n", "2\r\nhi\r\n0\r\n\r\n", "2;x=y\r\nhi\r\n0\r\nTrailer: x\r\n\r\n"] {
        let mut wire = Wire::http1();
        wire.send(format!("{chunked}{body}{smuggled}").as_bytes()).await;
        let text = wire.rest().await;
        assert_eq!(statuses(&text), [200], "{body:?}: {text}");
        assert!(text.contains("\r\nconnection: close\r\n"), "{text}");
        assert_eq!(wire.served(), ["/first"], "{body:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn violation_does_not_affect_the_previous_response() {
    let mut wire = Wire::http1();
    wire.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n").await;
    let text = wire.rest().await;
    assert_eq!(statuses(&text), [200, 400], "{text}");
    assert_eq!(wire.served(), ["/slow"]);
}

#[tokio::test(start_paused = true)]
async fn violation_is_answered_in_order() {
    let mut wire = Wire::http1();
    wire.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await;
    sleep(Duration::from_secs(1)).await;
    wire.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\nHost: a\n\n").await;
    let text = wire.rest().await;
    assert_eq!(statuses(&text), [200, 200, 400], "{text}");
    assert_eq!(wire.served(), ["/slow", "/"]);
}

#[tokio::test(start_paused = true)]
async fn body_in_single_bytes_is_complete() {
    let mut wire = Wire::http1();
    wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 300\r\n\r\n").await;
    for _ in 0..300 {
        wire.send(b"\n").await;
        tokio::task::yield_now().await;
    }
    assert!(wire.until("/ 300").await.starts_with("HTTP/1.1 200"));
    wire.send(GET).await;
    assert!(wire.until("/ 0").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test(start_paused = true)]
async fn expect_100_continue_is_answered() {
    let mut wire = Wire::http1();
    wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n").await;
    assert_eq!(wire.until("\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    wire.send(b"hi").await;
    assert!(wire.until("/ 2").await.starts_with("HTTP/1.1 200"));
    wire.send(GET).await;
    assert!(wire.until("/ 0").await.starts_with("HTTP/1.1 200"));
}
