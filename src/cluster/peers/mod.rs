//! Transport between nodes: gRPC over mutual TLS, on its own port (`proto/peer.proto`).
//!
//! Every call states the caller, the called node, their disks and the cluster, and is admitted only if the certificate
//! proves the caller. The meaning of commands and the end of leases are decided elsewhere: this module only carries the
//! calls.

mod bootstrap;
mod call_metadata;
mod channels;
mod client;
mod connection;
mod identities;
mod local_node;
mod observation;
mod response_check;
mod server;
mod snapshot_transfer;
mod transfer_progress;
pub(super) mod wire;

#[cfg(test)]
mod tests;

pub(crate) use self::bootstrap::bootstrap;
pub(crate) use self::channels::{Channels, Purpose};
pub(crate) use self::client::{Network, reason};
pub use self::identities::NodeIdentities;
pub(crate) use self::local_node::{FeatureLevels, InitialMembers, LocalNode};
pub(crate) use self::observation::Publisher;
pub(crate) use self::server::{Peers, serve};
pub(crate) use self::transfer_progress::SentSnapshot;
#[cfg(test)]
pub(crate) use self::transfer_progress::SentSnapshots;
pub(crate) use self::wire::proto;
