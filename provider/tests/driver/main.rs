//! The provider as Terraform drives it, against a real node: a client of the plugin protocol, without a `terraform`
//! program.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod agents;
mod api_server;
mod credentials;
mod ephemerals;
mod fabric;
mod fabrics;
mod identities;
mod keys;
mod kubectl;
mod network;
mod pages;
mod plugin;
mod process;
mod proxy;
mod streams;
mod terraform;
mod tools;
mod versions;
mod workspace;
