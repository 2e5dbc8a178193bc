//! Connections between nodes: TCP and TLS, both ways, each with a certificate. A connection ends when our own
//! certificates change, so that nobody goes on with one that would be refused now.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt as _};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use super::call_metadata;
use crate::id::{TrustDomain, WorkloadId};
use crate::limiter::{KeyedLimiter, KeyedPermit};
use crate::limits;
use crate::tls::{self, Tls};

/// Stands where TLS wants the name of a host: who answers is known by its certificate.
const ANY_NODE: &str = "node";

/// A TLS connection that ends when our certificates change.
pub struct Connection<S> {
    stream: S,
    /// Ends when it is to be closed.
    ended: Ended,
    certified: Certified,
    _permit: Option<KeyedPermit<u64>>,
}

type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Whom the certificate at the other end names.
#[derive(Clone, Debug)]
pub struct Certified(pub WorkloadId);

/// The connection of a node that was called.
pub type Incoming = Connection<tokio_rustls::server::TlsStream<TcpStream>>;

/// The connection to a node.
pub type Outgoing = Connection<tokio_rustls::client::TlsStream<TcpStream>>;

/// Ends at the next change of our certificates.
fn change_of(tls: &Tls) -> Ended {
    let mut changes = tls.changes();
    changes.mark_unchanged();
    Box::pin(async move {
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

/// Small messages, each awaited; and an end that is gone is noticed although it says nothing.
fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    SockRef::from(socket).set_tcp_user_timeout(Some(limits::PEER_SILENCE_MAX))
}

/// Connects to the node with this SPIFFE ID.
///
/// # Errors
/// If it cannot be reached in [`limits::PEER_CONNECT_TIMEOUT`], or somebody else answers.
pub async fn connect(tls: &Tls, address: &str, expected: &str) -> io::Result<Outgoing> {
    let connected = async {
        let ended = change_of(tls);
        let socket = TcpStream::connect(address).await?;
        prepare(&socket)?;
        let name = ServerName::try_from(ANY_NODE).map_err(io::Error::other)?;
        let stream = tls.connector().connect(name, socket).await?;
        let certificate = tls::server_certificate(stream.get_ref().1).map_err(io::Error::other)?;
        let certificate = certificate.ok_or_else(|| io::Error::other("the other end has no certificate"))?;
        let found = certificate.spiffe_id;
        if found.as_str() != expected {
            return Err(io::Error::other(format!("{found} answers at {address}, not {expected}")));
        }
        Ok(Connection { stream, ended, certified: Certified(found), _permit: None })
    };
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no connection to {address} in time"));
    timeout(limits::PEER_CONNECT_TIMEOUT, connected).await.map_err(late)?
}

/// Who lets nodes connect.
#[derive(Clone)]
struct Door {
    tls: Tls,
    trust_domain: TrustDomain,
    stopped: CancellationToken,
    /// Connections whose other end is not known yet, by address: whoever has no certificate takes no other's place.
    handshakes: KeyedLimiter<IpAddr>,
    /// Those of nodes.
    nodes: KeyedLimiter<u64>,
}

/// The connections that nodes make to this one. One that cannot be made is logged and left out. All are closed when
/// `stopped` is cancelled: whoever serves them would go on with each until its last call has ended, and some never end.
pub fn incoming(
    listener: TcpListener,
    (tls, trust_domain): (Tls, TrustDomain),
    stopped: CancellationToken,
) -> impl Stream<Item = io::Result<Incoming>> + Send {
    let handshakes = KeyedLimiter::new(limits::PEER_HANDSHAKES_OF_ADDRESS_MAX, limits::PEER_HANDSHAKES_MAX);
    let nodes = KeyedLimiter::new(limits::PEER_CONNECTIONS_OF_NODE_MAX, limits::PEER_CONNECTIONS_MAX);
    let door = Door { tls, trust_domain, stopped, handshakes, nodes };
    futures::stream::unfold((listener, door, FuturesUnordered::new()), |state| async move {
        let (listener, door, mut handshakes) = state;
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((socket, address)) => {
                        if let Ok(permit) = door.handshakes.try_acquire(Some(address.ip())) {
                            handshakes.push(door.clone().shake(socket, address, permit));
                        } else {
                            // Dropped, which closes it.
                            tracing::warn!(%address, "as many connections of nodes begin as may at once");
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "accept a connection of a node");
                        tokio::time::sleep(limits::ACCEPT_PAUSE).await;
                    }
                },
                Some(shaken) = handshakes.next(), if !handshakes.is_empty() => {
                    if let Some(connection) = shaken {
                        return Some((Ok(connection), (listener, door, handshakes)));
                    }
                }
            }
        }
    })
}

impl Door {
    /// A handshake that has its place. Whoever's certificate is not that of a node is sent away here: it could hold
    /// the place of one, and have what it sends looked at, without ever making a call.
    async fn shake(
        self,
        socket: TcpStream,
        address: SocketAddr,
        _permit: KeyedPermit<IpAddr>,
    ) -> Option<Incoming> {
        let Self { tls, trust_domain, stopped, nodes, .. } = self;
        let shaken = async {
            prepare(&socket)?;
            let changed = change_of(&tls);
            let ended = Box::pin(async move {
                tokio::select! {
                    () = changed => {}
                    () = stopped.cancelled() => {}
                }
            });
            let stream =
                tls.acceptor().accept(socket).await.map_err(|error| tls::handshake_failure(&error))?;
            let certificate = tls::peer_certificate(stream.get_ref().1)?.ok_or("no certificate")?;
            let certified = Certified(certificate.spiffe_id);
            let node_id = call_metadata::node_of(&trust_domain, &certified.0);
            let node_id = node_id.ok_or_else(|| format!("{} is not a node", certified.0))?;
            let permit = nodes.try_acquire(Some(node_id));
            let permit = permit.map_err(|_| format!("connection limit of node {node_id} reached"))?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Connection {
                stream,
                ended,
                certified,
                _permit: Some(permit),
            })
        };
        match timeout(limits::HANDSHAKE_TIMEOUT, shaken).await {
            Ok(Ok(connection)) => Some(connection),
            Ok(Err(reason)) => {
                tracing::warn!(%address, %reason, "a node's connection was refused");
                None
            }
            Err(_) => {
                tracing::warn!(%address, "a node's connection made no handshake in time");
                None
            }
        }
    }
}

impl<S> Connected for Connection<S> {
    type ConnectInfo = Certified;

    fn connect_info(&self) -> Certified {
        self.certified.clone()
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "this node closes the connection")
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ended.as_mut().poll(context).is_ready() {
            // Not to be asked again once it has ended.
            self.ended = Box::pin(std::future::ready(()));
            return Poll::Ready(Err(closed()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
