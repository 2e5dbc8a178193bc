//! The only HTTP client: what this product fetches from others. Today: issuers' keys.
//!
//! No address ever comes out of a token. Redirects are not followed, no proxy is taken from the
//! environment, and every answer has a limit in time and size.

pub mod admin;
pub mod client;
pub mod issuer_keys;
