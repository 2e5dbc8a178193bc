//! Between the nodes of a cluster: gRPC over mutual TLS, on a port of its own (`proto/peer.proto`).
//!
//! Every call states who calls whom, on which disks and in which cluster, and is let in only if the certificate
//! says the same. Nothing here knows what a command means or when a lease ends: it carries questions, and hands
//! them to those who do.

mod answers;
mod call;
mod channels;
mod client;
mod connection;
mod found;
mod server;
mod snapshot;
mod this;
pub(super) mod wire;

#[cfg(test)]
mod tests;

pub use self::call::{ClusterId, DiskId, WAY_BACK};
pub use self::channels::{Channels, Purpose};
pub use self::client::Network;
pub use self::found::found;
pub use self::server::{Peers, serve};
pub use self::this::{Founders, This};
pub use self::wire::proto;
