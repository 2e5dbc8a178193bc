//! The exchange from the outside: one node in this process, real issuers, everything over HTTP.
//!
//! One program for all of it, because each links the database. What is said in which file stands in
//! `http/mod.rs`; the node, the client and the issuers are in `support`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking"
)]

mod http;
mod support;
