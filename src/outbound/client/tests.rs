//! Requests to local listeners, and their possible responses.

mod hostile;
mod names;

use std::io;
use std::net::{IpAddr, TcpListener as StdListener};

use futures::FutureExt as _;
use futures::future::{self, BoxFuture};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;
use crate::outbound::guard::Rules;

/// Ample time for a busy machine, not part of what is tested.
const AMPLE: Duration = Duration::from_secs(30);
/// Timeout of calls that never finish.
const SHORT: Duration = Duration::from_millis(200);

fn rules() -> Rules {
    Rules { allow_loopback_http: true, ..Rules::default() }
}

/// A client that may fetch from and push to this host.
fn client(limits: CallLimits) -> Client {
    Client::new(limits, Guard::new(rules())).expect("client")
}

fn patient() -> CallLimits {
    CallLimits { timeout: AMPLE, push_timeout: AMPLE, ..CallLimits::default() }
}

async fn answering(response: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(method("GET")).respond_with(response.clone()).mount(&server).await;
    Mock::given(method("POST")).respond_with(response).mount(&server).await;
    server
}

async fn push(client: &Client, address: &str) -> Result<PushAnswer, Error> {
    push_of(client, "somebody", address).await
}

async fn push_of(client: &Client, owner: &str, address: &str) -> Result<PushAnswer, Error> {
    let permit = client.push_permit(client.guard().push_url(address).expect("url"), owner).await?;
    client.push(permit, "a.b.c".to_owned()).await
}

/// A listener at each of the addresses, on one common port.
fn listeners<const N: usize>(addresses: [&str; N]) -> ([StdListener; N], u16) {
    loop {
        let port =
            StdListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("bound").port();
        let bound: Vec<_> =
            addresses.iter().filter_map(|address| StdListener::bind((*address, port)).ok()).collect();
        let Ok(bound) = <[StdListener; N]>::try_from(bound) else { continue };
        for socket in &bound {
            socket.set_nonblocking(true).expect("nonblocking");
        }
        return (bound, port);
    }
}

/// Number of established connections, known to the system at once.
fn arrived(listener: &StdListener) -> usize {
    std::iter::from_fn(|| listener.accept().ok()).count()
}

/// Reads the head of a request and any bytes received with it.
async fn head(socket: &mut TcpStream) -> io::Result<String> {
    let (mut read, mut buffer) = (Vec::new(), [0; 1024]);
    while !read.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let count = socket.read(&mut buffer).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        read.extend_from_slice(&buffer[..count]);
    }
    Ok(String::from_utf8_lossy(&read).into_owned())
}

// --- redirects -----------------------------------------------------------------------------------

#[tokio::test]
async fn redirect_is_not_followed() {
    let target = answering(ResponseTemplate::new(200).set_body_string("{}")).await;
    let port = target.address().port();
    let locations = [
        target.uri(),
        format!("//127.0.0.1:{port}/"),
        "/again".to_owned(),
        "https://169.254.169.254/".to_owned(),
    ];
    for status in [300, 301, 302, 303, 304, 305, 307, 308] {
        for location in &locations {
            let response = ResponseTemplate::new(status)
                .insert_header("location", location.as_str())
                .insert_header("refresh", format!("0; url={location}").as_str());
            let source = answering(response).await;
            let client = client(patient());
            assert_eq!(client.fetch(&source.uri()).await, Err(Error::Redirected), "{status}");
            assert_eq!(push(&client, &source.uri()).await, Err(Error::Redirected), "{status}");
            assert_eq!(source.received_requests().await.expect("recorded").len(), 2);
        }
    }
    assert!(target.received_requests().await.expect("recorded").is_empty());
}

#[tokio::test]
async fn redirect_in_a_body_or_other_status_is_ignored() {
    let target = answering(ResponseTemplate::new(200)).await;
    let page = format!("<meta http-equiv=\"refresh\" content=\"0; url={}\">", target.uri());
    let response = ResponseTemplate::new(200)
        .insert_header("location", target.uri().as_str())
        .insert_header("content-type", "text/html")
        .set_body_string(page);
    let source = answering(response).await;
    assert_eq!(push(&client(patient()), &source.uri()).await.map(|response| response.status), Ok(200));
    assert!(target.received_requests().await.expect("recorded").is_empty());
}

// --- requests and responses --------------------------------------------------------------------

#[tokio::test]
async fn push_is_exactly_an_rfc_8935_request() {
    let server = answering(ResponseTemplate::new(202)).await;
    let response = push(&client(patient()), &format!("{}/events?a=b", server.uri())).await;
    assert_eq!(response, Ok(PushAnswer { status: 202, retry_after: None, body: Vec::new() }));
    let requests = server.received_requests().await.expect("recorded");
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!((request.method.as_str(), request.body.as_slice()), ("POST", b"a.b.c".as_slice()));
    assert_eq!((request.url.path(), request.url.query()), ("/events", Some("a=b")));
    let mut headers: Vec<_> =
        request.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().expect("text"))).collect();
    headers.sort_unstable();
    let host = server.address().to_string();
    let expected = [
        ("accept", "application/json"),
        ("content-length", "5"),
        ("content-type", "application/secevent+jwt"),
        ("host", &host),
    ];
    assert_eq!(headers, expected);
}

#[tokio::test]
async fn every_status_but_a_redirect_is_a_push_result() {
    for status in [200, 202, 204, 400, 401, 403, 429, 500, 503] {
        let body = if status == 204 { "" } else { "{\"err\":\"invalid_key\"}" };
        let server = answering(ResponseTemplate::new(status).set_body_string(body)).await;
        let response = push(&client(patient()), &server.uri()).await.expect("answer");
        let read = if matches!(status, 400 | 403) { body } else { "" };
        assert_eq!((response.status, response.body.as_slice()), (status, read.as_bytes()));
    }
}

#[test]
fn retry_after_is_read_in_both_forms() {
    let date = Some("Sun, 22 Nov 2026 06:00:00 GMT");
    for (stated, date, expected) in [
        ("0", None, Some(0)),
        ("120", None, Some(120)),
        ("99999999999999999999", None, Some(u32::MAX.into())),
        ("Sun, 22 Nov 2026 06:01:30 GMT", date, Some(90)),
        // In the past.
        ("Sun, 22 Nov 2026 05:00:00 GMT", date, Some(0)),
        ("Sun, 22 Nov 2026 06:01:30 GMT", None, None),
        ("-1", date, None),
        ("1.5", date, None),
        ("", date, None),
        ("soon", date, None),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, stated.parse().expect("value"));
        date.map(|date| headers.insert(header::DATE, date.parse().expect("value")));
        assert_eq!(retry_after(&headers), expected.map(Duration::from_secs), "{stated}");
    }
}

#[tokio::test]
async fn document_requires_status_200() {
    for status in [201, 204, 206, 404, 500] {
        let source = answering(ResponseTemplate::new(status)).await;
        let outcome = client(patient()).fetch(&source.uri()).await;
        assert_eq!(outcome, Err(Error::Status(status)), "{status}");
    }
}

#[tokio::test]
async fn fetches_a_document() {
    let source = MockServer::start().await;
    Mock::given(path("/keys"))
        .respond_with(ResponseTemplate::new(200).set_body_string("{}"))
        .mount(&source)
        .await;
    let address = format!("{}/keys", source.uri());
    assert_eq!(client(patient()).fetch(&address).await, Ok(b"{}".to_vec()));
}

#[tokio::test]
async fn document_is_read_to_the_limit() {
    let source = answering(ResponseTemplate::new(200).set_body_bytes(vec![b' '; 1025])).await;
    let limits = CallLimits { bytes_max: 1024, ..patient() };
    assert_eq!(client(limits).fetch(&source.uri()).await, Err(Error::TooLarge));
    let limits = CallLimits { bytes_max: 1025, ..patient() };
    assert_eq!(client(limits).fetch(&source.uri()).await.map(|document| document.len()), Ok(1025));
}

#[tokio::test]
async fn push_response_is_read_to_the_limit() {
    for (length, outcome) in [
        (limits::PUSH_RESPONSE_BYTES_MAX, Ok(400)),
        (limits::PUSH_RESPONSE_BYTES_MAX + 1, Err(Error::TooLarge)),
    ] {
        let server = answering(ResponseTemplate::new(400).set_body_bytes(vec![b' '; length])).await;
        assert_eq!(push(&client(patient()), &server.uri()).await.map(|response| response.status), outcome);
    }
}

// --- timeouts and permits ------------------------------------------------------------------------

/// A resolver that never answers.
struct Silence;

impl Lookup for Silence {
    fn addresses(&self, _: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn host_that_accepts_no_connection_times_out() {
    let client = silent(CallLimits::default());
    let a_moment = Duration::from_millis(100);
    let early = limits::OUTBOUND_CONNECT_TIMEOUT.saturating_sub(a_moment);
    let still_waiting = tokio::time::timeout(early, push(&client, "https://receiver.example/")).await;
    assert!(still_waiting.is_err());
    let late = limits::OUTBOUND_CONNECT_TIMEOUT + a_moment;
    let outcome = tokio::time::timeout(late, push(&client, "https://receiver.example/")).await;
    assert_eq!(outcome.expect("in time"), Err(Error::TimedOut));
}

#[tokio::test]
async fn unresponsive_host_delays_no_other() {
    let ([dead], port) = listeners(["127.0.0.1"]);
    let alive = answering(ResponseTemplate::new(200).set_body_string("{}")).await;
    let client = client(patient());
    let dead_url = format!("http://127.0.0.1:{port}/");
    let owners: Vec<_> =
        (0..2 * limits::OUTBOUND_CALLS_PER_HOST_MAX).map(|owner| owner.to_string()).collect();
    let unanswered = future::join_all(owners.iter().map(|owner| push_of(&client, owner, &dead_url)));
    let other = format!("http://localhost:{}/", alive.address().port());
    let others = async {
        for _ in 0..3 {
            assert_eq!(push(&client, &other).await.map(|response| response.status), Ok(200));
            // Fetches have permits of their own, to the same host too.
            assert_eq!(client.fetch(&alive.uri()).await, Ok(b"{}".to_vec()));
        }
    };
    tokio::select! {
        biased;
        _ = unanswered => panic!("answered"),
        () = others => {}
    }
    assert_eq!(arrived(&dead), limits::OUTBOUND_CALLS_PER_HOST_MAX);
}

/// A client whose names never resolve.
fn silent(limits: CallLimits) -> Client {
    let silence = || -> Arc<dyn Lookup> { Arc::new(Silence) };
    Client::with_lookups(limits, Guard::new(rules()), silence).expect("client")
}

#[tokio::test(start_paused = true)]
async fn push_timeout_starts_with_its_permit() {
    let permit_wait = SHORT * 3 / 2;
    let client =
        silent(CallLimits { push_timeout: SHORT, push_permit_wait: permit_wait, ..CallLimits::default() });
    let count = 3 * limits::PUSHES_PER_CALLER_AND_HOST_MAX;
    let pushes = (0..count).map(|_| push(&client, "https://receiver.example/"));
    let outcomes = tokio::time::timeout(SHORT * 3, future::join_all(pushes)).await.expect("in time");
    let (timed_out, limited): (Vec<_>, Vec<_>) =
        outcomes.into_iter().partition(|outcome| *outcome == Err(Error::TimedOut));
    assert_eq!(timed_out.len(), 2 * limits::PUSHES_PER_CALLER_AND_HOST_MAX);
    assert!(limited.iter().all(|outcome| *outcome == Err(Error::LimitReached)), "{limited:?}");
}

/// Attack: one caller has a hundred streams to a hundred names, and receivers that hold every push until shortly
/// before its timeout, to exhaust the permits of all others.
#[tokio::test(start_paused = true)]
async fn slow_receivers_of_one_owner_use_its_permits_only() {
    let client = silent(CallLimits { push_permit_wait: SHORT, ..CallLimits::default() });
    let permit = async |owner: &str, host: &str| {
        client.push_permit(client.guard().push_url(&format!("https://{host}/")).expect("url"), owner).await
    };
    let mut held = Vec::new();
    for stream in 0..100 {
        for _ in 0..2 * limits::PUSHES_PER_CALLER_AND_HOST_MAX {
            held.extend(permit("greedy", &format!("{stream}.greedy.example")).await.ok());
        }
        let of_host = limits::PUSHES_PER_CALLER_AND_HOST_MAX * (stream + 1);
        assert_eq!(held.len(), of_host.min(limits::PUSHES_PER_CALLER_MAX));
    }
    assert!(permit("other", "receiver.example").await.is_ok());
    // Nor does it exhaust the permits of a host that others push to.
    held.clear();
    for _ in 0..limits::OUTBOUND_CALLS_PER_HOST_MAX {
        held.extend(permit("greedy", "shared.example").await.ok());
    }
    assert_eq!(held.len(), limits::PUSHES_PER_CALLER_AND_HOST_MAX);
    assert!(permit("other", "shared.example").await.is_ok());
}

#[tokio::test]
async fn connections_are_reused_and_few_stay_idle() {
    const CALLS: usize = limits::OUTBOUND_IDLE_PER_HOST_MAX + 2;
    const ACCEPTED: &[u8] = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = format!("http://{}/", listener.local_addr().expect("address"));
    let client = client(patient());
    // All are open before the first is answered.
    let receiver = async {
        let mut sockets = Vec::new();
        for _ in 0..CALLS {
            let (mut socket, _) = listener.accept().await.expect("accepted");
            head(&mut socket).await.expect("request");
            sockets.push(socket);
        }
        for socket in &mut sockets {
            socket.write_all(ACCEPTED).await.expect("answered");
        }
        sockets
    };
    let pushes = future::join_all((0..CALLS).map(|_| push(&client, &address)));
    let (outcomes, mut sockets) = tokio::join!(pushes, receiver);
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    for _ in limits::OUTBOUND_IDLE_PER_HOST_MAX..CALLS {
        let ended = sockets.iter_mut().map(|socket| Box::pin(socket.read_u8()));
        let (outcome, index, _) = future::select_all(ended).await;
        assert!(outcome.is_err(), "closed");
        sockets.swap_remove(index);
    }
    // The next push uses one of the idle connections.
    let answer_again = async {
        let requests = sockets.iter_mut().map(|socket| {
            Box::pin(async {
                head(socket).await.expect("request");
                socket.write_all(ACCEPTED).await.expect("answered");
            })
        });
        future::select_all(requests).await;
    };
    let (outcome, ()) = tokio::join!(push(&client, &address), answer_again);
    assert_eq!(outcome.map(|response| response.status), Ok(202));
    assert!(listener.accept().now_or_never().is_none());
}
