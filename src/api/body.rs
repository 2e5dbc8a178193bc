//! Reading a request's body: its size, its type, its encoding.

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::error::{Code, Error};
use crate::json;

/// The media types that requests may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// `application/json`, and no type at all.
    Json,
    /// `application/x-www-form-urlencoded`.
    Form,
}

/// Reads a body of at most `bytes_max`.
///
/// # Errors
/// 413 if it is larger, 400 if it breaks off.
pub async fn read(body: Body, bytes_max: usize) -> Result<Bytes, Error> {
    match Limited::new(body, bytes_max).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Error::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            Code::InvalidRequest,
            format!("the body is larger than {} KiB", bytes_max / 1024),
        )),
        Err(_) => Err(Error::invalid_request("the body could not be read to its end")),
    }
}

/// The media type of a request.
///
/// # Errors
/// 415 for any other type, another character set than UTF-8, or a body that is encoded.
pub fn media(headers: &HeaderMap) -> Result<Media, Error> {
    let unsupported =
        |what: &str| Error::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Code::InvalidRequest, what.to_owned());
    if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(unsupported("Content-Encoding: a body must not be encoded"));
    }
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (types.next(), types.next()) else {
        return match headers.get(header::CONTENT_TYPE) {
            None => Ok(Media::Json),
            Some(_) => Err(unsupported("Content-Type: given more than once")),
        };
    };
    let text = value.to_str().unwrap_or_default().to_ascii_lowercase();
    let mut parts = text.split(';').map(str::trim);
    let media = match parts.next() {
        Some("application/json") => Media::Json,
        Some("application/x-www-form-urlencoded") => Media::Form,
        _ => return Err(unsupported("Content-Type: not supported here")),
    };
    // RFC 8259 §11 knows no parameter; a character set of UTF-8 is what it means anyway.
    match parts.find(|part| !matches!(*part, "" | "charset=utf-8" | "charset=\"utf-8\"")) {
        None => Ok(media),
        Some(_) => Err(unsupported("Content-Type: only charset=utf-8 is supported")),
    }
}

/// Reads a JSON body of at most `bytes_max` into `T`.
///
/// # Errors
/// As [`read`] and [`media`]; 400 that names the member and the rule.
pub async fn json<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    bytes_max: usize,
) -> Result<T, Error> {
    match media(headers)? {
        Media::Json => Ok(json::read(&read(body, bytes_max).await?)?),
        Media::Form => Err(Error::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::InvalidRequest,
            "Content-Type: must be application/json here",
        )),
    }
}
