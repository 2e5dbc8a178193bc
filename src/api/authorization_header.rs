//! The header `Authorization` of a request.

use axum::http::{HeaderMap, header};

use super::error::Error;

/// Whether the scheme is HTTP Basic (RFC 7617 §2).
pub(super) fn is_basic(headers: &HeaderMap) -> bool {
    let scheme = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.split(' ').next());
    scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case("basic"))
}

/// RFC 6750 §2.1: `Authorization: Bearer <token>`, the scheme case-insensitive (RFC 9110 §11.1). Another scheme is
/// refused, because its sender relies on it.
pub(super) fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Error> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let credentials = value.to_str().ok().and_then(|text| text.split_once(' '));
    match (credentials, values.next()) {
        (Some((scheme, token)), None) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(token)),
        _ => Err(Error::invalid_bearer("Authorization: must be exactly one Bearer token")),
    }
}
