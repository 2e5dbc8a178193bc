//! Between the nodes of a cluster: gRPC over mutual TLS, on a port of its own (`proto/peer.proto`).
//!
//! Every call states who calls whom, on which disks and in which cluster, and is let in only if the certificate
//! says the same. Nothing here knows what a command means or when a lease ends: it carries questions, and hands
//! them to those who do.

mod bootstrap;
mod call_metadata;
mod channels;
mod client;
mod connection;
mod local_node;
mod response_check;
mod server;
mod snapshot_transfer;
pub(super) mod wire;

#[cfg(test)]
mod tests;

pub use self::bootstrap::found;
pub use self::call_metadata::{ClusterId, DiskId, WAY_BACK};
pub use self::channels::{Channels, Purpose};
pub use self::client::Network;
pub use self::local_node::{Founders, This};
pub use self::server::{Peers, serve};
pub use self::wire::proto;
