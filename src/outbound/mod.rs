//! The only HTTP client: issuers' keys, which this product fetches, and events, which it pushes.
//!
//! No address ever comes out of a token. Redirects are not followed, no proxy is taken from the
//! environment, every address is judged when it is connected to, and every answer has a limit in time and size.

pub mod address;
mod call_limit;
pub mod client;
pub mod guard;
pub mod issuer_keys;
mod resolver;
