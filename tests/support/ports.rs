//! Ports for nodes that are told theirs.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// Below the ports that the system gives to outgoing connections, one of which could take a port between its choice and
/// the start of the node.
const PORTS: std::ops::Range<u16> = 10_000..20_000;
/// Ports for one process: tests run in processes of their own.
const PER_PROCESS: u16 = 8;

/// Addresses on loopback that are free, at most [`PER_PROCESS`].
pub fn free<const N: usize>() -> [SocketAddr; N] {
    let blocks = u32::from((PORTS.end - PORTS.start) / PER_PROCESS);
    let block = u16::try_from(std::process::id() % blocks).expect("a port");
    let listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let free = (PORTS.start + block * PER_PROCESS..PORTS.end).filter_map(|port| listen(port).ok());
    // All are bound at once, so that they differ.
    let bound: Vec<TcpListener> = free.take(N).collect();
    let addresses: Vec<SocketAddr> =
        bound.iter().map(|listener| listener.local_addr().expect("address")).collect();
    addresses.try_into().expect("free ports")
}
