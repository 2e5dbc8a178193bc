//! The Trust Fabric: a broker of trust for workloads and AI agents.
//!
//! It exchanges a credential of a workload, as far as policy allows, for a short-lived token.
//!
//! # Layout
//!
//! A lower layer never imports an upper one, and use-cases never import each other; a test checks both.
//!
//! 6. [`node`] (the only wiring) · [`config`] (the only reader of files and environment) · [`cli`] ·
//!    [`data_directory`] · [`demo`] · [`pki`] (development certificates)
//! 5. [`api`]: the only HTTP server
//! 4. [`exchange`]: RFC 8693 · [`identity`]: agents · [`tools`]: registry, the nine checks,
//!    audit · [`receiver`]: signals · [`revocation`]: by operators · [`transmitter`]: streams · [`feed`]: live events ·
//!    [`federation`]: peer fabrics, and the ledger that they read
//! 3. [`state`] (replicated) · [`cluster`] (consensus and storage) · [`keyring`] (this node's signing
//!    keys) · [`own_tokens`] (our tokens, presented to us) · [`peer_tokens`] (credentials of peer fabrics) ·
//!    [`active_policy`] (the compiled bundle) ·
//!    [`outbound`] (the only HTTP client) · [`tls`] · [`journal`] (records that wait to be shipped) ·
//!    [`backup`] (the format of backups)
//! 2. [`token`]: pure JOSE and claim rules
//! 1. [`policy`]: the only Rego
//! 0. [`id`] · [`breaks`] · [`clock`] · [`json`] · [`text`] · [`limits`] · [`limiter`] · [`telemetry`]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]

pub(crate) mod active_policy;
pub mod api;
pub(crate) mod backup;
pub mod breaks;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod config;
pub(crate) mod data_directory;
pub(crate) mod demo;
pub mod exchange;
pub(crate) mod federation;
mod feed;
pub mod id;
pub(crate) mod identity;
pub(crate) mod journal;
pub mod json;
pub mod keyring;
pub(crate) mod limiter;
pub mod limits;
pub mod node;
pub(crate) mod outbound;
pub(crate) mod own_tokens;
pub(crate) mod peer_tokens;
pub mod pki;
pub mod policy;
mod receiver;
mod revocation;
pub mod state;
pub(crate) mod telemetry;
pub(crate) mod text;
pub(crate) mod tls;
pub mod token;
pub mod tools;
mod transmitter;

pub use receiver::set_input;
