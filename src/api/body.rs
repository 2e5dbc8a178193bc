//! Reading a request's body: size, media type, encoding.

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;

use super::error::{Error, Refusal};
use crate::{json, limits};

/// Media types of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(const_into_str)]
pub enum Media {
    /// Also the default without `Content-Type`.
    #[strum(serialize = "application/json")]
    Json,
    #[strum(serialize = "application/x-www-form-urlencoded")]
    Form,
    /// RFC 8417 §2.3, RFC 8935 §2.1.
    #[strum(serialize = "application/secevent+jwt")]
    SecurityEvent,
}

/// Reads a body of at most `bytes_max`. The rest of a larger one is left to [`super::unread_body`].
///
/// # Errors
/// 413 if it is larger, 400 if it ends early, 408 if it takes longer than [`limits::BODY_TIMEOUT`].
pub async fn read(body: Body, bytes_max: usize) -> Result<Bytes, Error> {
    let in_time = tokio::time::timeout(limits::BODY_TIMEOUT, read_to_its_end(body, bytes_max)).await;
    in_time.unwrap_or_else(|_| Err(Error::new(Refusal::TooSlow, "the body did not arrive in time")))
}

async fn read_to_its_end(mut body: Body, bytes_max: usize) -> Result<Bytes, Error> {
    let mut kept = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Error::invalid_request("the body ended early"))?;
        let Ok(data) = frame.into_data() else { continue };
        if kept.len() + data.len() > bytes_max {
            let text = format!("the body is larger than {} KiB", bytes_max / 1024);
            return Err(Error::new(Refusal::TooLarge, text));
        }
        kept.extend_from_slice(&data);
    }
    Ok(kept.freeze())
}

/// The media type of a request, one of `accepted`, which always includes JSON.
///
/// # Errors
/// 415 for another type, another character set than UTF-8, or a content encoding.
pub fn media(headers: &HeaderMap, accepted: &[Media]) -> Result<Media, Error> {
    let unsupported = |what: &str| Error::new(Refusal::UnsupportedMedia, what);
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
    let name = parts.next();
    let Some(&media) = accepted.iter().find(|media| Some(media.into_str()) == name) else {
        let names = accepted.iter().map(Media::into_str).collect::<Vec<_>>().join(" or ");
        return Err(unsupported(&format!("Content-Type: must be {names} here")));
    };
    // RFC 8259 §11 defines no parameter; `charset=utf-8` is common and harmless.
    match parts.find(|part| !matches!(*part, "" | "charset=utf-8" | "charset=\"utf-8\"")) {
        None => Ok(media),
        Some(_) => Err(unsupported("Content-Type: only charset=utf-8 is supported")),
    }
}

/// Reads and parses a JSON body of at most `bytes_max`.
///
/// # Errors
/// Those of [`json_bytes`]; 400 that names the field and the rule.
pub async fn json<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    bytes_max: usize,
) -> Result<T, Error> {
    Ok(json::read(&json_bytes(headers, body, bytes_max).await?)?)
}

/// Reads a body of at most `bytes_max` whose media type is JSON.
///
/// # Errors
/// Those of [`read`] and [`media`].
pub async fn json_bytes(headers: &HeaderMap, body: Body, bytes_max: usize) -> Result<Bytes, Error> {
    let bytes = read(body, bytes_max).await?;
    media(headers, &[Media::Json])?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::http::StatusCode;
    use axum::response::IntoResponse as _;
    use futures::stream;

    use super::*;

    /// The status of a body's refusal.
    async fn refused(body: Body) -> StatusCode {
        let error = read(body, limits::BODY_BYTES_MAX).await.expect_err("refused");
        error.into_response().status()
    }

    #[tokio::test]
    async fn body_beyond_its_limit_is_refused_with_413() {
        let largest = Body::from(vec![b' '; limits::BODY_BYTES_MAX]);
        let bytes = read(largest, limits::BODY_BYTES_MAX).await.expect("at the limit");
        assert_eq!(bytes.len(), limits::BODY_BYTES_MAX);
        let larger = Body::from(vec![b' '; limits::BODY_BYTES_MAX + 1]);
        assert_eq!(refused(larger).await, StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test(start_paused = true)]
    async fn late_body_is_refused_with_408() {
        let silent = || Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        let a_tick = std::time::Duration::from_millis(2);
        let almost = limits::BODY_TIMEOUT.saturating_sub(a_tick);
        assert!(tokio::time::timeout(almost, refused(silent())).await.is_err(), "still waiting");
        let answered = tokio::time::timeout(limits::BODY_TIMEOUT + a_tick, refused(silent())).await;
        assert_eq!(answered, Ok(StatusCode::REQUEST_TIMEOUT));
    }
}
