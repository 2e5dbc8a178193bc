//! `Cache-Control`. Public documents have `max-age`, a strong `ETag` and 304 (RFC 9110 §13, RFC 9111).

use aws_lc_rs::digest;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::error::Error;
use crate::limits;

/// For tokens and for volatile state.
pub const NO_STORE: [(header::HeaderName, HeaderValue); 1] =
    [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];

/// Answers with a document, or 304 if the client has it.
///
/// # Errors
/// Only if a header value were not ASCII.
pub fn answer(headers: &HeaderMap, media: &'static str, document: String) -> Result<Response, Error> {
    let digest = digest::digest(&digest::SHA256, document.as_bytes());
    let etag = format!("\"{}\"", URL_SAFE_NO_PAD.encode(digest));
    let known = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|candidate| {
            matches!(candidate.trim(), "*") || candidate.trim().trim_start_matches("W/") == etag
        });
    let etag = HeaderValue::try_from(etag).map_err(Error::internal)?;
    let age = format!("public, max-age={}, must-revalidate", limits::JWKS_MAX_AGE.as_secs());
    let cache = HeaderValue::try_from(age).map_err(Error::internal)?;
    let common = [
        (header::ETAG, etag),
        (header::CACHE_CONTROL, cache),
        (header::VARY, HeaderValue::from_static("accept")),
    ];
    if known {
        return Ok((StatusCode::NOT_MODIFIED, common).into_response());
    }
    let media = [(header::CONTENT_TYPE, HeaderValue::from_static(media))];
    Ok((common, media, document).into_response())
}
