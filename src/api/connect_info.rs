//! What the listener knows of the other end of a connection before any request is read.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::tls::PeerCertificate;

/// The other end of a connection. Every request carries an `Arc` of it in its extensions.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it comes from, as TCP says; no header changes it.
    pub address: SocketAddr,
    /// Which of our addresses it reached.
    pub local_address: SocketAddr,
    /// How it is protected.
    pub channel: Channel,
    /// It was let in beyond the usual number of connections, for health routes only.
    pub in_reserve: bool,
}

/// How a connection is protected.
#[derive(Clone, Debug)]
pub enum Channel {
    /// Plain TCP.
    Plain,
    /// TLS, with the verified certificate of the client if it sent one.
    Tls(Option<PeerCertificate>),
}

/// What counts as one address: one IPv6 customer has a /64 (RFC 6177), and a mapped IPv4 address is
/// itself.
#[must_use]
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 @ IpAddr::V4(_) => v4,
    }
}
