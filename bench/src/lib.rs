//! Nodes under test, their certificates and callers, links between them, and connections to them: what the bench and the
//! harness of faults share. The product is known by its ports and its command line only.

// A caller that ignores a value of a measurement loses nothing else.
#![allow(clippy::must_use_candidate)]

pub mod certificates;
pub mod chart;
pub mod client;
pub mod cpu;
pub mod credentials;
pub mod curves;
pub mod floor;
pub mod health;
pub mod hosts;
pub mod link;
pub mod load;
pub mod members;
pub mod node;
pub mod push_receiver;
pub mod region;
pub mod registry;
pub mod settings;
pub mod sse;
pub mod wire;
