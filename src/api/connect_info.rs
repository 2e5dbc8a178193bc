//! The connection of a request, as far as the listener knows it before any request is read.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::tls::PeerCertificate;

/// A client's connection. Every request carries an `Arc` of it in its extensions.
#[derive(Clone, Debug)]
pub struct ClientConnection {
    /// The remote address of the TCP connection; no header changes it.
    pub address: SocketAddr,
    /// The local address.
    pub local_address: SocketAddr,
    /// Plain TCP or TLS.
    pub channel: Channel,
    /// Accepted beyond the usual number of connections, for health routes only.
    pub in_reserve: bool,
}

/// The protection of a connection.
#[derive(Clone, Debug)]
pub enum Channel {
    /// Plain TCP.
    Plain,
    /// TLS, with the verified certificate of the client if it sent one.
    Tls(Option<PeerCertificate>),
}

/// The unit of limits by address: an IPv6 /64, which one customer has (RFC 6177); a mapped IPv4 address counts as IPv4.
#[must_use]
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 @ IpAddr::V4(_) => v4,
    }
}
