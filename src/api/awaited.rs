//! `Svc-Federation`: the outcome of a revocation at the peer fabrics for which it waited.

use axum::http::{HeaderName, HeaderValue};

use crate::state::Awaited;

/// The name, in lower case as HTTP/2 requires.
const NAME: HeaderName = HeaderName::from_static("svc-federation");

/// The header of a response that acknowledges a revocation; `None` if no peer is awaited.
pub fn header(awaited: &Awaited) -> Option<[(HeaderName, HeaderValue); 1]> {
    if awaited.is_empty() {
        return None;
    }
    // The names of peers are ASCII.
    HeaderValue::try_from(awaited.to_string()).ok().map(|value| [(NAME, value)])
}
