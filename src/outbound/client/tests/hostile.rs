//! Hostile receivers: the call to each fails, and soon.

use super::*;

/// The result of a push to a receiver that reads one request and then runs `answer`.
async fn pushed_to<F: Future<Output = io::Result<()>>>(
    limits: CallLimits,
    response: impl FnOnce(TcpStream) -> F,
) -> Result<PushAnswer, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = format!("http://{}/", listener.local_addr().expect("address"));
    let client = client(limits);
    let receiver = async {
        let (mut socket, _) = listener.accept().await.expect("accepted");
        head(&mut socket).await.expect("request");
        // It fails once the other side has closed.
        let _ = response(socket).await;
        future::pending().await
    };
    tokio::select! {
        outcome = push(&client, &address) => outcome,
        never = receiver => never,
    }
}

/// Writes `begin`, then `repeated` without end.
async fn without_end(mut socket: TcpStream, begin: &str, repeated: &[u8]) -> io::Result<()> {
    socket.write_all(begin.as_bytes()).await?;
    loop {
        socket.write_all(repeated).await?;
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn endless_response_times_out() {
    let limits = CallLimits { push_timeout: SHORT, response_bytes_max: usize::MAX, ..CallLimits::default() };
    for begin in [
        "",
        "HTTP/1.1 202 Accepted\r\n",
        "HTTP/1.1 400 Bad Request\r\ncontent-length: 1\r\n\r\n",
        "HTTP/1.1 400 Bad Request\r\ntransfer-encoding: chunked\r\n\r\n",
        "HTTP/1.1 400 Bad Request\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel",
    ] {
        let silent = async |mut socket: TcpStream| {
            socket.write_all(begin.as_bytes()).await?;
            future::pending().await
        };
        assert_eq!(pushed_to(limits, silent).await, Err(Error::TimedOut), "{begin:?}");
    }
    for (begin, repeated) in [
        // One byte at a time, in each transfer coding.
        ("HTTP/1.1 400 Bad Request\r\ncontent-length: 1000000000\r\n\r\n", "a"),
        ("HTTP/1.1 400 Bad Request\r\ntransfer-encoding: chunked\r\n\r\n", "1\r\na\r\n"),
        ("HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n", "a"),
        // Interim responses without end.
        ("", "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"),
        ("", "HTTP/1.1 100 Continue\r\n\r\n"),
    ] {
        let outcome = pushed_to(limits, |socket| without_end(socket, begin, repeated.as_bytes())).await;
        assert_eq!(outcome, Err(Error::TimedOut), "{begin:?} {repeated:?}");
    }
}

#[tokio::test]
async fn endless_response_is_read_to_the_limit() {
    let ten_megabytes = vec![b'a'; 10_000_000];
    for begin in [
        "HTTP/1.1 400 Bad Request\r\ncontent-length: 10000000\r\n\r\n",
        "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n",
        // The stated length is not trusted.
        "HTTP/1.1 400 Bad Request\r\ncontent-length: 1000000000000000\r\n\r\n",
        "HTTP/1.1 400 Bad Request\r\ntransfer-encoding: chunked\r\n\r\nfffffff\r\n",
    ] {
        let outcome = pushed_to(patient(), |socket| without_end(socket, begin, &ten_megabytes)).await;
        assert_eq!(outcome, Err(Error::TooLarge), "{begin:?}");
    }
}

/// Attack: a receiver accepts every event and never ends its response, so that the event is retried and holds a
/// permit each time.
#[tokio::test]
async fn success_status_counts_whatever_the_body() {
    let limits = CallLimits { push_timeout: AMPLE, response_bytes_max: 10, ..patient() };
    for status in [202, 204, 401, 403, 500] {
        for begin in ["content-length: 1000000000", "transfer-encoding: chunked", "connection: close"] {
            let begin = format!("HTTP/1.1 {status} x\r\n{begin}\r\n\r\n");
            let outcome = pushed_to(limits, |socket| without_end(socket, &begin, b"5\r\nhello\r\n")).await;
            assert_eq!(outcome.map(|response| response.status), Ok(status), "{begin:?}");
            let silent = async |mut socket: TcpStream| {
                socket.write_all(begin.as_bytes()).await?;
                future::pending().await
            };
            let outcome = pushed_to(limits, silent).await;
            assert_eq!(outcome.map(|response| response.status), Ok(status), "{begin:?}");
        }
    }
}

#[tokio::test]
async fn malformed_http_response_fails() {
    for response in [
        "SSH-2.0-OpenSSH_9.9\r\n",
        "HTTP/1.1 400 Bad Request\r\ncontent-length: 100\r\n\r\nhalf",
        "HTTP/1.1 202 Accepted\r\ncontent-length: -1\r\n\r\n",
        "HTTP/1.1 202 Accepted\r\ncontent-length: 18446744073709551616\r\n\r\n",
        "HTTP/1.1 202 Accepted\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\na",
        "HTTP/1.1 400 Bad Request\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        "HTTP/1.1 400 Bad Request\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhal",
        "HTTP/1.1 9999 Odd\r\n\r\n",
        "",
    ] {
        let then_gone = async |mut socket: TcpStream| socket.write_all(response.as_bytes()).await;
        assert_eq!(pushed_to(patient(), then_gone).await, Err(Error::Unreachable), "{response:?}");
    }
    let headers = |socket| without_end(socket, "HTTP/1.1 202 Accepted\r\n", b"a: b\r\n");
    assert_eq!(pushed_to(patient(), headers).await, Err(Error::Unreachable));
    let header = |socket| without_end(socket, "HTTP/1.1 202 Accepted\r\na: ", b"bbbbbbbb");
    assert_eq!(pushed_to(patient(), header).await, Err(Error::Unreachable));
}

#[tokio::test]
async fn compressed_response_is_not_decompressed() {
    // The start of a gzip stream that would expand to a gigabyte.
    let bomb: Vec<u8> = [0x1f, 0x8b, 0x08].into_iter().chain(std::iter::repeat_n(0, 1000)).collect();
    for encoding in ["gzip", "deflate", "br", "zstd", "gzip, gzip, gzip"] {
        let response = ResponseTemplate::new(400)
            .insert_header("content-encoding", encoding)
            .set_body_bytes(bomb.clone());
        let server = answering(response).await;
        assert_eq!(
            push(&client(patient()), &server.uri()).await.map(|response| response.body),
            Ok(bomb.clone())
        );
    }
}

#[tokio::test]
async fn slow_source_times_out() {
    let source = answering(ResponseTemplate::new(200).set_delay(AMPLE)).await;
    let limits = CallLimits { timeout: SHORT, ..CallLimits::default() };
    assert_eq!(client(limits).fetch(&source.uri()).await, Err(Error::TimedOut));
}

#[tokio::test]
async fn closed_and_refused_connections_are_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = format!("http://{}", listener.local_addr().expect("address"));
    let client = client(patient());
    let hang_up = async { drop((listener.accept().await.expect("accepted"), listener)) };
    let (outcome, ()) = tokio::join!(client.fetch(&address), hang_up);
    assert_eq!(outcome, Err(Error::Unreachable));
    assert_eq!(client.fetch(&address).await, Err(Error::Unreachable));
}
