//! The only HTTP client: fetches issuer keys, pushes events and calls peer fabrics.
//!
//! No URL comes from a token. Redirects are not followed, no proxy is taken from the environment, every address is
//! checked when it is connected to, and every response is limited in time and size.

pub(crate) mod address;
mod call_limit;
pub(crate) mod client;
pub(crate) mod guard;
pub(crate) mod issuer_keys;
pub(crate) mod peers;
mod resolver;
