//! `Idempotency-Key`: one parser for every write (contract §1).

use axum::http::header::{IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, Method, Uri};

use super::error::Error;
use crate::id::{Digest128, DigestKind};
use crate::state::{self, Idempotency};
use crate::{limits, text};

/// The key; `None` without the header.
///
/// # Errors
/// 400 if it is not 1 to `OPAQUE_BYTES_MAX` printable ASCII characters, or was sent twice.
pub fn key(headers: &HeaderMap) -> Result<Option<String>, Error> {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim_matches('"');
    let well_formed = text::is_printable(text, limits::OPAQUE_BYTES_MAX) && values.next().is_none();
    if well_formed {
        Ok(Some(text.to_owned()))
    } else {
        Err(Error::invalid_request(
            "Idempotency-Key: must be 1 to 256 printable ASCII characters, given once",
        ))
    }
}

/// Digests of the key, which is scoped to its caller, and of the request: method, target, preconditions and body.
///
/// # Errors
/// Those of [`key`].
pub fn idempotency(
    headers: &HeaderMap,
    caller: Option<&str>,
    (method, uri): (&Method, &Uri),
    body: &[u8],
) -> Result<Option<Idempotency>, Error> {
    let caller = caller.unwrap_or_default();
    let owner = caller.as_bytes();
    let target = uri.path_and_query().map_or("", |target| target.as_str());
    let mut request = [method.as_str().as_bytes(), b" ", target.as_bytes(), b"\n"].concat();
    // No header value has a line break, so a body cannot imitate a precondition.
    for name in [IF_MATCH, IF_NONE_MATCH] {
        for value in headers.get_all(&name) {
            request.extend([name.as_str().as_bytes(), b":", value.as_bytes(), b"\n"].concat());
        }
    }
    request.push(b'\n');
    request.extend_from_slice(body);
    Ok(key(headers)?.map(|key| Idempotency {
        key: Digest128::of(DigestKind::IdempotencyKey, owner, key.as_bytes()),
        request: Digest128::of(DigestKind::RequestBody, owner, &request),
        owner: state::owner(caller),
    }))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn of(method: &Method, uri: &'static str, caller: &str, body: &str) -> Idempotency {
        conditional(method, uri, caller, body, &[])
    }

    fn conditional(
        method: &Method,
        uri: &'static str,
        caller: &str,
        body: &str,
        conditions: &[(HeaderName, &'static str)],
    ) -> Idempotency {
        let mut headers = HeaderMap::new();
        headers.append("idempotency-key", HeaderValue::from_static("k"));
        for (name, value) in conditions {
            headers.append(name, HeaderValue::from_static(value));
        }
        idempotency(&headers, Some(caller), (method, &Uri::from_static(uri)), body.as_bytes())
            .expect("well formed")
            .expect("a key")
    }

    #[test]
    fn key_is_scoped_to_caller_and_bound_to_the_request() {
        let one = of(&Method::PUT, "/v1/tools/a", "c", "{}");
        assert_eq!(of(&Method::PUT, "/v1/tools/a", "c", "{}"), one);
        assert_ne!(of(&Method::PUT, "/v1/tools/a", "d", "{}").key, one.key);
        for other in [
            of(&Method::POST, "/v1/tools/a", "c", "{}"),
            of(&Method::PUT, "/v1/tools/b", "c", "{}"),
            of(&Method::PUT, "/v1/tools/a?x", "c", "{}"),
            of(&Method::PUT, "/v1/tools/a", "c", "{ }"),
            conditional(&Method::PUT, "/v1/tools/a", "c", "{}", &[(IF_MATCH, "*")]),
            conditional(&Method::PUT, "/v1/tools/a", "c", "{}", &[(IF_NONE_MATCH, "*")]),
            of(&Method::PUT, "/v1/tools/a", "c", "if-match:*\n{}"),
            of(&Method::PUT, "/v1/tools/a", "c", "if-match:*\n\n{}"),
        ] {
            assert_eq!(other.key, one.key);
            assert_ne!(other.request, one.request);
        }
    }

    #[test]
    fn key_is_bounded_printable_ascii_sent_once() {
        let refused = |values: &[&str]| {
            let headers = values.iter().map(|value| {
                (
                    "idempotency-key".parse().expect("name"),
                    HeaderValue::from_bytes(value.as_bytes()).expect("value"),
                )
            });
            key(&headers.collect()).is_err()
        };
        let longest = "k".repeat(limits::OPAQUE_BYTES_MAX);
        assert!(!refused(&[&longest]) && refused(&[&format!("{longest}k")]));
        assert!(refused(&[""]) && refused(&["a b"]) && refused(&["\u{e9}"]));
        // `HeaderMap` keeps one of two values that are inserted; two that are appended stay.
        let mut twice = HeaderMap::new();
        twice.append("idempotency-key", HeaderValue::from_static("a"));
        twice.append("idempotency-key", HeaderValue::from_static("a"));
        assert!(key(&twice).is_err());
    }
}
