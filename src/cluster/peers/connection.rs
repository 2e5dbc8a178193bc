//! Connections between nodes: TCP and mutual TLS. A connection is closed when this node's certificates change, so that
//! none outlives a certificate or CA that would be refused now.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
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

use super::identities::NodeIdentities;
use crate::clock::Clock;
use crate::id::WorkloadId;
use crate::limiter::{KeyedLimiter, KeyedPermit};
use crate::limits;
use crate::telemetry::FailureLog;
use crate::tls::{self, Tls};

/// Server name for TLS; the node is authenticated by its SPIFFE ID instead.
const ANY_NODE: &str = "node";

/// A TLS connection that is closed when this node's certificates change.
pub(crate) struct Connection<S> {
    stream: S,
    /// Completes when the connection is to be closed.
    ended: Ended,
    certified: Certified,
    _permit: Option<KeyedPermit<u64>>,
}

type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Subject of the peer node's certificate.
#[derive(Clone, Debug)]
pub(crate) struct Certified(pub WorkloadId);

/// Connection of a calling node.
pub(crate) type Incoming = Connection<tokio_rustls::server::TlsStream<TcpStream>>;

/// Connection to a node.
pub(crate) type Outgoing = Connection<tokio_rustls::client::TlsStream<TcpStream>>;

/// Completes at the next change of this node's certificates.
fn change_of(tls: &Tls) -> Ended {
    let mut changes = tls.changes();
    changes.mark_unchanged();
    Box::pin(async move {
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

/// No delay for small messages; and a dead connection is detected without traffic from the peer node.
fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    SockRef::from(socket).set_tcp_user_timeout(Some(limits::PEER_STALL_TIMEOUT))
}

/// Connects to the node with this SPIFFE ID, within [`limits::PEER_CONNECT_TIMEOUT`].
pub(crate) async fn connect(tls: &Tls, address: &str, expected: &str) -> io::Result<Outgoing> {
    let connected = async {
        let ended = change_of(tls);
        let socket = TcpStream::connect(address).await?;
        prepare(&socket)?;
        let name = ServerName::try_from(ANY_NODE).map_err(io::Error::other)?;
        let stream = tls.connector().connect(name, socket).await?;
        let certificate = tls::server_certificate(stream.get_ref().1).map_err(io::Error::other)?;
        let certificate = certificate.ok_or_else(|| io::Error::other("the server has no certificate"))?;
        let found = certificate.spiffe_id;
        if found.as_str() != expected {
            return Err(io::Error::other(format!("node at {address} is {found}, expected {expected}")));
        }
        Ok(Connection { stream, ended, certified: Certified(found), _permit: None })
    };
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("timeout while connecting to {address}"));
    timeout(limits::PEER_CONNECT_TIMEOUT, connected).await.map_err(late)?
}

/// Accepts connections of nodes.
#[derive(Clone)]
struct NodeAcceptor {
    tls: Tls,
    identities: NodeIdentities,
    stopped: CancellationToken,
    /// Handshakes in progress, by address, so that unauthenticated connections take no capacity of nodes.
    handshakes: KeyedLimiter<IpAddr>,
    /// Connections of nodes, by node id.
    nodes: KeyedLimiter<u64>,
    /// Failed handshakes, by address.
    failures: Arc<FailureLog<IpAddr>>,
}

/// Name of the peer listener in log lines.
const PEER_LISTENER: &str = "peer listener";

/// Accepted connections of nodes. A failed handshake is logged. All connections are closed when `stopped` is cancelled:
/// the server would otherwise wait for the last call of each, and some never end.
pub(crate) fn incoming(
    listener: TcpListener,
    (tls, identities): (Tls, NodeIdentities),
    clock: Clock,
    stopped: CancellationToken,
) -> impl Stream<Item = io::Result<Incoming>> + Send {
    let handshakes = KeyedLimiter::new(limits::PEER_HANDSHAKES_PER_ADDRESS_MAX, limits::PEER_HANDSHAKES_MAX);
    let nodes = KeyedLimiter::new(limits::PEER_CONNECTIONS_PER_NODE_MAX, limits::PEER_CONNECTIONS_MAX);
    let failures = Arc::new(FailureLog::new(clock.clone(), "handshake of a peer connection"));
    let accepts = FailureLog::new(clock, "accepting a peer connection");
    let acceptor = NodeAcceptor { tls, identities, stopped, handshakes, nodes, failures };
    futures::stream::unfold((listener, acceptor, accepts, FuturesUnordered::new()), |state| async move {
        let (listener, acceptor, accepts, mut handshakes) = state;
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((socket, address)) => {
                        accepts.succeeded(&PEER_LISTENER);
                        if let Ok(permit) = acceptor.handshakes.try_acquire(Some(address.ip())) {
                            handshakes.push(acceptor.clone().handshake(socket, address, permit));
                        } else {
                            acceptor.failures.failed(&address.ip(), &"handshake limit reached");
                        }
                    }
                    Err(error) => {
                        accepts.failed(&PEER_LISTENER, &error);
                        tokio::time::sleep(limits::ACCEPT_PAUSE).await;
                    }
                },
                Some(connected) = handshakes.next(), if !handshakes.is_empty() => {
                    if let Some(connection) = connected {
                        return Some((Ok(connection), (listener, acceptor, accepts, handshakes)));
                    }
                }
            }
        }
    })
}

impl NodeAcceptor {
    /// Performs a handshake that holds a permit. A certificate that is not a node's is rejected here: otherwise it
    /// could hold a node's permit, and have its frames parsed, without ever making a call.
    async fn handshake(
        self,
        socket: TcpStream,
        address: SocketAddr,
        _permit: KeyedPermit<IpAddr>,
    ) -> Option<Incoming> {
        let Self { tls, identities, stopped, nodes, failures, .. } = self;
        let connected = async {
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
            let node_id = identities.node_of(&certified.0);
            let node_id = node_id.ok_or_else(|| format!("{} is not a node", certified.0))?;
            let permit = nodes.try_acquire(Some(node_id));
            let permit = permit.map_err(|_| format!("node {node_id}: connection limit reached"))?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Connection {
                stream,
                ended,
                certified,
                _permit: Some(permit),
            })
        };
        match timeout(limits::HANDSHAKE_TIMEOUT, connected).await {
            Ok(Ok(connection)) => {
                failures.succeeded(&address.ip());
                Some(connection)
            }
            Ok(Err(reason)) => {
                failures.failed(&address.ip(), &reason);
                None
            }
            Err(_) => {
                failures.failed(&address.ip(), &"timeout");
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
            // Must not be polled after completion.
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
