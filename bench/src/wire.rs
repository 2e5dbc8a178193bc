//! Connections to a node and a minimal HTTP/1.1 for measurements: request bytes in, status out.
//!
//! No client library: nothing is checked, corrected or retried, because half of the requests are invalid on
//! purpose and the others must not cost the generator more than the node.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Maximum wait for a connection, handshake included, in well-behaved traffic.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum wait for one response in well-behaved traffic.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum wait for the response to an attack.
const ATTACK_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a response.
const RESPONSE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Connections per source address; nodes limit them per address.
const CONNECTIONS_PER_SOURCE: u32 = 100;

pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A listener of the node.
#[derive(Clone)]
pub struct Target {
    pub address: SocketAddr,
    /// The `Host` that the node accepts.
    pub host: String,
    /// TLS, with or without a client certificate; `None` for the plain listener.
    pub tls: Option<Arc<rustls::ClientConfig>>,
}

impl Target {
    /// Opens TCP; on loopback from a source address that at most [`CONNECTIONS_PER_SOURCE`] connections
    /// share.
    pub async fn connect_tcp(&self) -> io::Result<TcpStream> {
        self.connect_tcp_with(None).await
    }

    /// The same with an optional size of the receive buffer.
    pub async fn connect_tcp_with(&self, receive_buffer: Option<u32>) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        if let Some(bytes) = receive_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        if self.address.ip().is_loopback() {
            socket.bind(SocketAddr::from((next_source(), 0)))?;
        }
        let stream = timeout(CONNECT_TIMEOUT, socket.connect(self.address)).await??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Opens a connection, with TLS if configured.
    pub async fn connect(&self) -> io::Result<Connection> {
        let stream = self.connect_tcp().await?;
        let io: Box<dyn Io> = match &self.tls {
            None => Box::new(stream),
            Some(config) => Box::new(handshake(stream, config).await?),
        };
        Ok(Connection::over(io))
    }

    /// Sends `request` on a new connection and reads one response.
    pub async fn call(&self, request: &[u8]) -> io::Result<Response> {
        let mut connection = self.connect().await?;
        connection.asks_for_heads = request.starts_with(b"HEAD ");
        timeout(ATTACK_RESPONSE_TIMEOUT, connection.call(request)).await?
    }
}

/// A TLS handshake for `localhost`.
pub async fn handshake(
    stream: TcpStream,
    config: &Arc<rustls::ClientConfig>,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    timeout(CONNECT_TIMEOUT, TlsConnector::from(Arc::clone(config)).connect(name, stream)).await?
}

/// The next source address of 127.1.0.0/16.
fn next_source() -> Ipv4Addr {
    static OPENED: AtomicU32 = AtomicU32::new(0);
    let place = OPENED.fetch_add(1, Ordering::Relaxed) / CONNECTIONS_PER_SOURCE;
    let [_, _, high, low] = (place % 0xffff).to_be_bytes();
    Ipv4Addr::new(127, 1, high, low.max(1))
}

#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    /// Head and body as received.
    pub bytes: Vec<u8>,
    /// Length of the head, with its final empty line.
    pub head: usize,
}

impl Response {
    pub fn body(&self) -> &[u8] {
        self.bytes.get(self.head..).unwrap_or_default()
    }
}

/// A connection with its read buffer.
pub struct Connection {
    io: Box<dyn Io>,
    read: Vec<u8>,
    /// Answers have no body, whatever length they state (RFC 9110 §9.3.2).
    asks_for_heads: bool,
    /// Whether the last response stated that the connection ends after it.
    is_last: bool,
}

impl Connection {
    pub fn over(io: Box<dyn Io>) -> Self {
        Self { io, read: Vec::with_capacity(4096), asks_for_heads: false, is_last: false }
    }

    /// The stream itself, without the read buffer.
    pub fn into_io(self) -> Box<dyn Io> {
        self.io
    }

    /// Whether the node has closed it, or announced that.
    pub async fn is_closed(&mut self) -> bool {
        let is_open = tokio::select! {
            biased;
            // Without a request there is nothing to read but the end.
            _ = self.io.read_buf(&mut self.read) => false,
            () = std::future::ready(()) => true,
        };
        !is_open || self.is_last
    }

    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.io.write_all(bytes).await?;
        self.io.flush().await
    }

    /// Sends a request and reads its response.
    pub async fn call(&mut self, request: &[u8]) -> io::Result<Response> {
        self.send(request).await?;
        self.answer().await
    }

    /// Sends a request and reads the status of its response without copying. `true`: the connection ends here.
    pub async fn call_status(&mut self, request: &[u8]) -> io::Result<(u16, bool)> {
        self.send(request).await?;
        let (status, _, end, last) = self.next().await?;
        self.read.drain(..end);
        Ok((status, last))
    }

    pub async fn answer(&mut self) -> io::Result<Response> {
        let (status, head, end, is_last) = self.next().await?;
        self.is_last = is_last;
        Ok(Response { status, bytes: self.read.drain(..end).collect(), head })
    }

    /// Status, end of head, end of response, and whether the connection ends after it.
    async fn next(&mut self) -> io::Result<(u16, usize, usize, bool)> {
        loop {
            if let Some(found) = complete_response(&self.read, self.asks_for_heads)? {
                if found.0 >= 200 {
                    return Ok(found);
                }
                self.read.drain(..found.2);
            } else if self.read.len() > RESPONSE_BYTES_MAX {
                return Err(io::Error::other("the answer is too large"));
            } else if self.io.read_buf(&mut self.read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// The first response in `bytes`, if it is complete.
fn complete_response(bytes: &[u8], only_head: bool) -> io::Result<Option<(u16, usize, usize, bool)>> {
    let Some(head) = find(bytes, b"\r\n\r\n").map(|at| at + 4) else { return Ok(None) };
    let status = bytes
        .get(9..12)
        .and_then(|digits| std::str::from_utf8(digits).ok())
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| io::Error::other("not an HTTP/1.1 answer"))?;
    let mut end = Some(head);
    let mut last = false;
    for line in bytes[..head].split(|byte| *byte == b'\n').skip(1) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let length: usize = std::str::from_utf8(value)
                .ok()
                .and_then(|digits| digits.parse().ok())
                .ok_or_else(|| io::Error::other("a content-length that is no number"))?;
            end = Some(head + length).filter(|end| *end <= bytes.len());
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            end = find(&bytes[head..], b"0\r\n\r\n").map(|at| head + at + 5);
        } else if name.eq_ignore_ascii_case(b"connection") {
            last = value.eq_ignore_ascii_case(b"close");
        }
    }
    if only_head {
        end = Some(head);
    }
    Ok(end.map(|end| (status, head, end, last)))
}

pub fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}

/// A request without a body.
pub fn request(method: &str, path: &str, host: &str, headers: &str) -> Vec<u8> {
    format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n").into_bytes()
}

/// A request with a JSON body.
pub fn request_with(method: &str, path: &str, host: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let headers = format!("content-type: application/json\r\ncontent-length: {length}\r\n{headers}");
    let mut bytes = request(method, path, host, &headers);
    bytes.extend_from_slice(body);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_is_complete_at_its_last_byte() {
        let bytes = b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1";
        for end in 0..70 {
            assert_eq!(complete_response(&bytes[..end], false).expect("well formed"), None, "{end}");
        }
        assert_eq!(complete_response(bytes, false).expect("well formed"), Some((401, 67, 70, true)));
    }

    #[test]
    fn chunked_response_ends_with_the_empty_chunk() {
        let bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n";
        assert_eq!(
            complete_response(bytes, false).expect("well formed"),
            Some((200, 47, bytes.len(), false))
        );
        assert_eq!(complete_response(&bytes[..bytes.len() - 1], false).expect("well formed"), None);
    }

    #[test]
    fn response_to_head_ends_with_its_head() {
        let bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n";
        assert_eq!(complete_response(bytes, true).expect("well formed"), Some((200, 38, 38, false)));
        assert_eq!(complete_response(bytes, false).expect("well formed"), None);
    }

    #[test]
    fn malformed_response_is_an_error() {
        assert!(complete_response(b"SSH-2.0-x\r\n\r\n", false).is_err());
    }
}
