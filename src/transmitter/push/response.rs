//! Classification of a receiver's response to a push (RFC 8935 §2). Pure.
//!
//! | response | verdict |
//! |---|---|
//! | 202 | delivered |
//! | another 2xx | delivered, though not as RFC 8935 §2.2 specifies |
//! | 400 or 403 with `err` `invalid_key`, `authentication_failed`, `invalid_issuer` or `invalid_audience` | refused: concerns this fabric or the stream rather than the event |
//! | 400 or 403 with another `err` | dead letter: a retry would be refused again |
//! | 401; 403 without `err` | refused, as above |
//! | 400 without `err` | retry: from a proxy, no statement about the event |
//! | 408, 429, 5xx, any other, a redirect, none | retry |
//!
//! A refused event is retried. After [`limits::PUSH_REFUSALS_MAX`] attempts the worker sends a verification event: if
//! the receiver refuses it too, the stream is paused; otherwise the event becomes a dead letter.

use std::time::Duration;

use serde_json::Value;

use crate::json;
use crate::limits;
use crate::outbound::client::{Error, PushAnswer};
use crate::transmitter::obstacle::Obstacle;

/// Result of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushResponse {
    /// The receiver has the event.
    Delivered {
        /// Whether the status was 202 (RFC 8935 §2.2).
        as_specified: bool,
    },
    /// The receiver rejected the event permanently.
    DeadLetter {
        /// Its `err` (RFC 8935 §2.4).
        err: String,
        description: String,
    },
    /// The receiver refuses the sender, its key, or the `iss` or `aud` of the stream: for all events, or for this one.
    Refused {
        /// Its `err`, one of [`SENDER_ERRS`], or the HTTP status.
        err: String,
        description: String,
    },
    /// The event is retried.
    Retry {
        /// For the reason of the stream's status: without text of the receiver and without an address.
        reason: String,
        /// Value of the metric label.
        result: &'static str,
        /// `Retry-After` of the receiver.
        after: Option<Duration>,
    },
}

/// Why an event was not sent; no statement about its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// A limit of concurrent pushes is reached.
    NoPermit,
    /// The stream has changed since the attempt began.
    Changed,
    /// The event could not be read.
    Unread,
    /// No key signs.
    Unsigned,
    /// The node has no freshness lease.
    Stale,
    /// The stream has an obstacle.
    Withheld(Obstacle),
}

impl Unsent {
    /// Value of the label `result` in `svc_push_total`.
    pub const fn result(self) -> &'static str {
        match self {
            Self::NoPermit => "no_place",
            Self::Changed => "changed",
            Self::Unread => "unread",
            Self::Unsigned => "unsigned",
            Self::Stale => "stale",
            Self::Withheld(obstacle) => obstacle.into_str(),
        }
    }
}

/// The errors of RFC 8935 §2.4 that concern the sender or the stream rather than the event.
const SENDER_ERRS: [&str; 4] = ["invalid_key", "authentication_failed", "invalid_issuer", "invalid_audience"];

impl PushResponse {
    /// Classifies a response, or its absence; [`Unsent`] if the request did not leave this node.
    pub fn of(response: Result<PushAnswer, Error>) -> Result<Self, Unsent> {
        match response {
            Ok(response) => Ok(Self::of_http(&response)),
            Err(Error::LimitReached) => Err(Unsent::NoPermit),
            Err(error) => Ok(Self::of_error(&error)),
        }
    }

    fn of_http(response: &PushAnswer) -> Self {
        match response.status {
            202 => Self::Delivered { as_specified: true },
            200..=299 => Self::Delivered { as_specified: false },
            status @ (400 | 403) => match (err_of(&response.body), status) {
                (Some((err, description)), _) if SENDER_ERRS.contains(&err.as_str()) => {
                    Self::Refused { err, description }
                }
                (Some((err, description)), _) => Self::DeadLetter { err, description },
                (None, 400) => Self::retry("the receiver answered 400 without an err", "answered_400"),
                (None, _) => Self::refused(status),
            },
            401 => Self::refused(401),
            status => Self::Retry {
                reason: format!("the receiver answered {status}"),
                result: match status {
                    429 => "answered_429",
                    500..=599 => "answered_5xx",
                    _ => "answered_other",
                },
                after: response.retry_after,
            },
        }
    }

    fn of_error(error: &Error) -> Self {
        match error {
            Error::TimedOut => Self::retry("the receiver did not answer in time", "timed_out"),
            Error::Redirected => Self::retry("the receiver answered with a redirect", "redirected"),
            Error::TooLarge => Self::retry("the receiver's answer was too large", "too_large"),
            Error::Url(_) | Error::AddressRefused(_) => Self::address_refused(),
            _ => Self::retry("the receiver could not be reached", "unreachable"),
        }
    }

    /// The endpoint's address is not allowed.
    pub fn address_refused() -> Self {
        Self::retry("the receiver's address is not allowed", "address_refused")
    }

    /// The receiver refuses a key that no longer signs.
    pub fn key_replaced() -> Self {
        Self::retry("the receiver refused a key that was replaced meanwhile", "key_replaced")
    }

    fn refused(status: u16) -> Self {
        Self::Refused { err: status.to_string(), description: String::new() }
    }

    fn retry(reason: &str, result: &'static str) -> Self {
        Self::Retry { reason: reason.to_owned(), result, after: None }
    }

    /// Value of the label `result` in `svc_push_total`.
    pub const fn result(&self) -> &'static str {
        match self {
            Self::Delivered { .. } => "delivered",
            Self::DeadLetter { .. } => "dead_letter",
            Self::Refused { .. } => "refused",
            Self::Retry { result, .. } => result,
        }
    }
}

/// `err` and `description` of a response, if it has an `err`.
fn err_of(body: &[u8]) -> Option<(String, String)> {
    let Ok(Value::Object(fields)) = json::parse(body) else { return None };
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    let err = printable(text("err"), limits::PUSH_ERR_BYTES_MAX);
    let description = printable(text("description"), limits::PUSH_DESCRIPTION_BYTES_MAX);
    (!err.is_empty()).then_some((err, description))
}

/// Replaces characters that act on a terminal or a page, and cuts to `bytes_max`.
fn printable(text: &str, bytes_max: usize) -> String {
    let is_printable = |c: char| c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric();
    let mut printable = String::new();
    for c in text.chars().map(|c| if is_printable(c) { c } else { '?' }) {
        if printable.len() + c.len_utf8() > bytes_max {
            break;
        }
        printable.push(c);
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbound::guard::UrlError;

    fn respond(status: u16, body: &str) -> PushResponse {
        let retry_after = Some(Duration::from_secs(20));
        let response = PushAnswer { status, retry_after, body: body.as_bytes().to_vec() };
        PushResponse::of(Ok(response)).expect("a response")
    }

    fn dead(err: &str, description: &str) -> PushResponse {
        PushResponse::DeadLetter { err: err.to_owned(), description: description.to_owned() }
    }

    fn refused(err: &str, description: &str) -> PushResponse {
        PushResponse::Refused { err: err.to_owned(), description: description.to_owned() }
    }

    #[test]
    fn each_status_has_its_classification() {
        assert_eq!(respond(202, ""), PushResponse::Delivered { as_specified: true });
        for status in [200, 201, 204, 299] {
            assert_eq!(respond(status, ""), PushResponse::Delivered { as_specified: false }, "{status}");
        }
        assert_eq!(respond(401, ""), refused("401", ""));
        assert_eq!(respond(401, r#"{"err": "access_denied"}"#), refused("401", ""));
        for body in ["", "no", "{}", r#"{"error": "access_denied"}"#] {
            assert_eq!(respond(403, body), refused("403", ""), "{body}");
        }
        for (status, result) in [
            (100, "answered_other"),
            (199, "answered_other"),
            (300, "answered_other"),
            (402, "answered_other"),
            (404, "answered_other"),
            (405, "answered_other"),
            (408, "answered_other"),
            (410, "answered_other"),
            (413, "answered_other"),
            (429, "answered_429"),
            (500, "answered_5xx"),
            (503, "answered_5xx"),
            (599, "answered_5xx"),
            (600, "answered_other"),
        ] {
            let after = Some(Duration::from_secs(20));
            let retry =
                PushResponse::Retry { reason: format!("the receiver answered {status}"), result, after };
            assert_eq!(respond(status, r#"{"err": "invalid_key"}"#), retry, "{status}");
        }
    }

    #[test]
    fn status_400_is_a_dead_letter_only_with_err() {
        for (body, expected) in [
            (r#"{"err": "invalid_request"}"#, dead("invalid_request", "")),
            (r#"{"err": "invalid_key "}"#, dead("invalid_key ", "")),
            (r#"{"err": "access_denied", "description": "who?"}"#, dead("access_denied", "who?")),
            (r#"{"description": "no", "err": "x", "more": {}}"#, dead("x", "no")),
            (r#"{"err": "x", "description": 7}"#, dead("x", "")),
        ] {
            assert_eq!(respond(400, body), expected, "{body}");
            assert_eq!(respond(403, body), expected, "{body}");
        }
        for body in [
            "",
            "{}",
            "no",
            "[]",
            r#"{"err": ""}"#,
            r#"{"err": 7}"#,
            r#"{"err": null}"#,
            r#"{"err": "x""#,
            "\u{0}",
        ] {
            let response = respond(400, body);
            assert!(
                matches!(&response, PushResponse::Retry { result: "answered_400", .. }),
                "{body}: {response:?}"
            );
        }
    }

    #[test]
    fn err_about_the_sender_is_not_a_dead_letter() {
        for err in ["invalid_key", "authentication_failed", "invalid_issuer", "invalid_audience"] {
            for status in [400, 403] {
                let response = respond(status, &format!(r#"{{"err": "{err}", "description": "who?"}}"#));
                assert_eq!(response, refused(err, "who?"));
            }
        }
    }

    #[test]
    fn receiver_text_is_cut_and_printable() {
        let (err, description) = ("e".repeat(2000), "ä".repeat(2000));
        let response = respond(400, &format!(r#"{{"err": "{err}", "description": "{description}"}}"#));
        let PushResponse::DeadLetter { err, description } = response else { panic!("{response:?}") };
        assert_eq!(err.len(), limits::PUSH_ERR_BYTES_MAX);
        assert_eq!(description.len(), limits::PUSH_DESCRIPTION_BYTES_MAX);
        let response = respond(400, r#"{"err": "a\u001b[2Jb\n\u202e", "description": "ünïcode\u0000\r"}"#);
        assert_eq!(response, dead("a?[2Jb??", "ünïcode??"));
    }

    #[test]
    fn failed_request_is_retried_for_a_reason_without_address() {
        for (error, result) in [
            (Error::TimedOut, "timed_out"),
            (Error::Redirected, "redirected"),
            (Error::TooLarge, "too_large"),
            (Error::Url(UrlError::NotOnlyAddress), "address_refused"),
            (Error::Unreachable, "unreachable"),
        ] {
            let response = PushResponse::of(Err(error)).expect("a response");
            let PushResponse::Retry { reason, result: counted, after: None } = &response else {
                panic!("{response:?}")
            };
            assert_eq!(*counted, result);
            assert!(
                reason.bytes().all(|byte| byte == b' ' || byte == b'\'' || byte.is_ascii_alphabetic()),
                "{reason}"
            );
            assert_eq!(response.result(), result);
        }
        assert_eq!(
            PushResponse::of(Err(Error::LimitReached)),
            Err(Unsent::NoPermit),
            "no statement about the receiver"
        );
    }
}
