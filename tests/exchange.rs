//! Black-box tests of one node in this process, with real issuers, over HTTP.
//!
//! They are one program, because each program links the database. The tests are in `http/`; the node, the
//! client and the issuers are in `support/`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking"
)]

mod http;
mod support;
