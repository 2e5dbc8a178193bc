//! Deadlines: idle and stalled connections are closed, slow handlers are not cut. The clock is paused.

use axum::http::Request as HttpRequest;
use hyper::client::conn::http2;

use super::*;

/// Tokio rounds timers up to this.
const TICK: Duration = Duration::from_millis(50);

struct Watch(Instant);

impl Watch {
    fn start() -> Self {
        Self(sleep(Duration::ZERO).deadline())
    }

    /// Asserts that the elapsed time is between `least` and `most`.
    fn assert_between(&self, least: Duration, most: Duration) {
        let now = sleep(Duration::ZERO).deadline();
        let elapsed = now.duration_since(self.0);
        assert!(
            elapsed >= least && elapsed <= most + TICK,
            "{elapsed:?} is not within {least:?} and {most:?}"
        );
    }
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn connection_without_a_request_is_closed() {
    for sent in ["", "G", "GET / HTTP/1.1\r\nHost: a\r\n"] {
        let watch = Watch::start();
        let mut wire = Wire::http1();
        wire.send(sent.as_bytes()).await;
        assert_eq!(wire.rest().await, "", "{sent}");
        watch.assert_between(limits::FIRST_REQUEST_TIMEOUT, limits::FIRST_REQUEST_TIMEOUT);
        let ended = wire.ended().await;
        assert!(matches!(ended, Ended::FirstRequest | Ended::HeaderTimeout), "{sent}: {ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn slow_head_gains_no_time() {
    let watch = Watch::start();
    let mut wire = Wire::http1();
    wire.send(GET).await;
    wire.until("/ 0").await;
    sleep(Duration::from_secs(20)).await;
    for byte in GET {
        wire.send(&[*byte]).await;
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(wire.rest().await, "");
    watch.assert_between(Duration::from_secs(30), Duration::from_secs(20 + GET.len() as u64));
    assert_eq!(wire.ended().await, Ended::HeaderTimeout);
}

#[tokio::test(start_paused = true)]
async fn partial_head_after_a_request_does_not_end_it() {
    let mut wire = Wire::http1();
    wire.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\nGET / HT").await;
    let watch = Watch::start();
    assert_eq!(statuses(&wire.rest().await), [200]);
    watch.assert_between(Duration::from_secs(14), Duration::from_secs(14) + limits::HEADER_TIMEOUT);
    assert_eq!(wire.ended().await, Ended::HeaderTimeout);
}

#[tokio::test(start_paused = true)]
async fn idle_connection_is_closed() {
    let mut wire = Wire::http1();
    for _ in 0..3 {
        wire.send(GET).await;
        wire.until("/ 0").await;
        sleep(limits::IDLE_TIMEOUT.saturating_sub(Duration::from_secs(1))).await;
    }
    wire.send(GET).await;
    wire.until("/ 0").await;
    let watch = Watch::start();
    assert_eq!(wire.rest().await, "");
    watch.assert_between(limits::IDLE_TIMEOUT, limits::IDLE_TIMEOUT + limits::CONNECTION_CHECK_INTERVAL);
    assert_eq!(wire.ended().await, Ended::Idle);
}

#[tokio::test(start_paused = true)]
async fn slow_response_is_not_cut() {
    let mut wire = Wire::http1();
    wire.send(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let text = wire.until("\r\n0\r\n\r\n").await;
    assert_eq!(text.matches("piece;").count(), 4, "{text}");
    let watch = Watch::start();
    assert_eq!(wire.rest().await, "");
    watch.assert_between(limits::IDLE_TIMEOUT, limits::IDLE_TIMEOUT + limits::CONNECTION_CHECK_INTERVAL);
}

#[tokio::test(start_paused = true)]
async fn stalled_client_is_cut() {
    let mut wire = Wire::http1();
    wire.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let watch = Watch::start();
    assert_eq!(wire.ended().await, Ended::WriteStall);
    // The first sample is taken after the deadline of the first request.
    watch.assert_between(
        limits::WRITE_STALL_TIMEOUT,
        limits::FIRST_REQUEST_TIMEOUT + limits::WRITE_STALL_TIMEOUT + limits::CONNECTION_CHECK_INTERVAL * 2,
    );
}

#[tokio::test(start_paused = true)]
async fn slow_client_is_not_cut() {
    let mut wire = Wire::http1();
    wire.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut piece = vec![0; 64 * 1024];
    for _ in 0..64 {
        sleep(Duration::from_secs(10)).await;
        wire.client.read_exact(&mut piece).await.expect("still open");
    }
}

#[tokio::test(start_paused = true)]
async fn busy_connection_is_closed_at_its_maximum_age() {
    for (channel, age_max) in
        [(Channel::Plain, limits::CONNECTION_AGE_MAX), (Channel::Tls(None), limits::TLS_CONNECTION_AGE_MAX)]
    {
        let mut wire = Wire::new(ClientConnection { channel, ..peer() }, Connection::http1);
        let watch = Watch::start();
        let mut answered = 0;
        while wire.client.write_all(GET).await.is_ok() {
            let mut answer = [0; 1024];
            match wire.client.read(&mut answer).await {
                Ok(1..) => answered += 1,
                _ => break,
            }
            sleep(Duration::from_secs(30)).await;
        }
        watch.assert_between(age_max, age_max + Duration::from_secs(31));
        assert!(answered >= 20, "{answered}");
        assert_eq!(wire.ended().await, Ended::Age);
    }
}

/// Regression: a backup that took longer than a TLS connection lives was cut off each time.
#[tokio::test(start_paused = true)]
async fn download_outlives_the_maximum_age_of_its_connection() {
    let mut wire = Wire::new(ClientConnection { channel: Channel::Tls(None), ..peer() }, Connection::http1);
    wire.send(b"GET /download HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let watch = Watch::start();
    let text = wire.rest().await;
    assert_eq!(text.matches("piece;").count(), 40, "{text}");
    let whole = Duration::from_secs(41 * 25);
    assert!(whole > limits::TLS_CONNECTION_AGE_MAX.saturating_add(limits::DRAIN_TIMEOUT));
    watch.assert_between(whole, whole);
    assert_eq!(wire.ended().await, Ended::Age);
}

/// Regression: a backup was cut off by each renewal of a revocation list.
#[tokio::test(start_paused = true)]
async fn download_outlives_a_reload() {
    let (reloads, receiver) = watch::channel(0);
    let changes = Some(Changes { receiver, generation: 0, has_changed: Arc::new(|_, _| true) });
    let serve = |connection, stream| Connection { changes, ..connection }.http1(stream);
    let mut wire = Wire::new(ClientConnection { channel: Channel::Tls(None), ..peer() }, serve);
    wire.send(b"GET /download HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let begin = wire.until("piece;").await;
    reloads.send_replace(1);
    let text = begin + &wire.rest().await;
    assert_eq!(text.matches("piece;").count(), 40, "{text}");
    assert_eq!(wire.ended().await, Ended::Reload);
}

#[tokio::test(start_paused = true)]
async fn linger_after_a_violation_is_bounded() {
    let mut wire = Wire::http1();
    wire.send(b"GET / HTTP/1.1\nHost: a\n\n").await;
    wire.until("CR LF").await;
    let watch = Watch::start();
    assert_eq!(wire.ended().await, Ended::Violation);
    watch.assert_between(limits::LINGER_TIMEOUT, limits::LINGER_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn connection_of_the_reserve_serves_one_request() {
    let mut wire = Wire::new(ClientConnection { in_reserve: true, ..peer() }, Connection::http1);
    wire.send(GET).await;
    wire.send(GET).await;
    let text = wire.rest().await;
    assert_eq!(statuses(&text), [200], "{text}");
    assert!(text.contains("\r\nconnection: close\r\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn shutdown_finishes_the_current_request_only() {
    let mut wire = Wire::http1();
    wire.send(GET).await;
    wire.until("/ 0").await;
    wire.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await;
    sleep(Duration::from_secs(5)).await;
    wire.shutdown.cancel();
    wire.send(GET).await;
    let text = wire.rest().await;
    assert_eq!(statuses(&text), [200], "{text}");
    assert!(text.contains("\r\nconnection: close\r\n"), "{text}");
    assert_eq!(wire.ended().await, Ended::Shutdown);
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_at_most_for_the_drain_timeout() {
    let mut wire = Wire::http1();
    wire.send(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n").await;
    sleep(Duration::from_secs(5)).await;
    wire.shutdown.cancel();
    let watch = Watch::start();
    assert_eq!(wire.ended().await, Ended::Shutdown);
    watch.assert_between(limits::DRAIN_TIMEOUT, limits::DRAIN_TIMEOUT);
}

// --- HTTP/2 ------------------------------------------------------------------------------------

type Sender = http2::SendRequest<http_body_util::Empty<Bytes>>;

/// A connection over memory with an HTTP/2 client, and the client's task.
async fn http2(window: u32) -> (Wire, Sender, JoinSet<hyper::Result<()>>) {
    let mut wire = Wire::new(peer(), Connection::http2);
    let client = std::mem::replace(&mut wire.client, tokio::io::duplex(1).0);
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(client))
        .await
        .expect("handshake");
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    (wire, sender, driver)
}

fn get(uri: &str) -> HttpRequest<http_body_util::Empty<Bytes>> {
    HttpRequest::get(uri).body(http_body_util::Empty::new()).expect("request")
}

async fn text_of(answer: Response<hyper::body::Incoming>) -> String {
    String::from_utf8_lossy(&answer.into_body().collect().await.expect("body").to_bytes()).into_owned()
}

#[tokio::test(start_paused = true)]
async fn http2_is_served_and_closed_when_idle() {
    let (mut wire, mut sender, mut driver) = http2(65_535).await;
    let slow = sender.send_request(get("http://a/slow"));
    let quick = sender.send_request(get("http://a/quick"));
    let quick = quick.await.expect("answer");
    assert_eq!(wire.served(), ["/slow", "/quick"], "both at once");
    assert_eq!(text_of(quick).await, "/quick 0");
    assert_eq!(text_of(slow.await.expect("answer")).await, "slow");
    let watch = Watch::start();
    assert_eq!(wire.ended().await, Ended::Idle);
    watch.assert_between(limits::IDLE_TIMEOUT, limits::IDLE_TIMEOUT + limits::CONNECTION_CHECK_INTERVAL);
    driver.join_next().await.expect("client").expect("no panic").expect("a graceful end");
}

#[tokio::test(start_paused = true)]
async fn http2_without_a_request_is_closed() {
    let watch = Watch::start();
    let (mut wire, _sender, _driver) = http2(65_535).await;
    assert_eq!(wire.ended().await, Ended::FirstRequest);
    watch.assert_between(limits::FIRST_REQUEST_TIMEOUT, limits::FIRST_REQUEST_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn partial_http2_preface_is_closed() {
    let watch = Watch::start();
    let mut wire = Wire::new(peer(), Connection::http2);
    wire.send(b"PRI * HTTP/2.0\r\n\r\n").await;
    assert_eq!(wire.ended().await, Ended::FirstRequest);
    watch.assert_between(limits::FIRST_REQUEST_TIMEOUT, limits::FIRST_REQUEST_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn http2_client_without_a_window_is_cut() {
    let (mut wire, mut sender, _driver) = http2(1).await;
    let answer = sender.send_request(get("http://a/large")).await.expect("answer");
    for _ in 0..6 {
        // Other requests on the same connection do not hide it.
        drop(sender.send_request(get("http://a/quick")).await);
        sleep(Duration::from_secs(5)).await;
    }
    assert_eq!(wire.ended().await, Ended::WriteStall);
    drop(answer);
}

#[tokio::test(start_paused = true)]
async fn http2_requests_need_one_authority_and_a_path() {
    let (_wire, mut sender, _driver) = http2(65_535).await;
    let with_host = |host: &str| {
        let mut request = get("http://a/x");
        request.headers_mut().insert("host", host.parse().expect("host"));
        request
    };
    for (request, expected) in [
        (get("http://a/x"), None),
        (with_host("a"), None),
        (with_host("b"), Some(Violation::Host)),
        (get("http://user@a/x"), Some(Violation::Host)),
    ] {
        let name = format!("{request:?}");
        let answer = sender.send_request(request).await.expect("answer");
        let text = text_of(answer).await;
        assert_eq!(text, expected.map_or("/x 0".to_owned(), |violation| violation.to_string()), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_finishes_http2_requests() {
    let (mut wire, mut sender, mut driver) = http2(65_535).await;
    let slow = sender.send_request(get("http://a/slow"));
    let driving = async { slow.await.expect("answer") };
    tokio::pin!(driving);
    tokio::select! {
        _ = &mut driving => panic!("too early"),
        () = sleep(Duration::from_secs(6)) => {}
    }
    wire.shutdown.cancel();
    assert_eq!(text_of(driving.await).await, "slow");
    assert_eq!(wire.ended().await, Ended::Shutdown);
    driver.join_next().await.expect("client").expect("no panic").expect("a graceful end");
}

#[tokio::test(start_paused = true)]
async fn requests_end_with_their_http2_connection() {
    let (mut wire, mut sender, _driver) = http2(65_535).await;
    let slow = sender.send_request(get("http://a/slow"));
    sleep(Duration::from_secs(1)).await;
    wire.shutdown.cancel();
    assert_eq!(wire.ended().await, Ended::Shutdown);
    assert!(slow.await.is_err(), "cut before its answer");
    tokio::task::yield_now().await;
    assert_eq!(Arc::strong_count(&wire.served), 1, "no handler is left that could still use it");
}
