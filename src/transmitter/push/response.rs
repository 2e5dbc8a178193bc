//! The meaning of a receiver's answer to a push (RFC 8935 §2). Pure.
//!
//! | answer | meaning for the event |
//! |---|---|
//! | 202 | delivered |
//! | another 2xx | delivered, though not in the way of RFC 8935 §2.2 |
//! | 400 or 403 with `err` `invalid_key`, `authentication_failed`, `invalid_issuer` or `invalid_audience` | refused: the answer concerns this fabric or the stream more likely than the event |
//! | 400 or 403 with another `err` | dead letter: sent again it would be refused again |
//! | 401; 403 without `err` | refused, as above |
//! | 400 without `err` | stays: the answer of a proxy, which says nothing of this event |
//! | 408, 429, 5xx, any other, a redirect, none | stays, and is sent again later |
//!
//! A refused event stays. After [`limits::PUSH_REFUSALS_MAX`] attempts the worker has a verification event sent: if
//! the receiver refuses that too, the stream is paused; otherwise the event is a dead letter.

use std::time::Duration;

use serde_json::Value;

use crate::json;
use crate::limits;
use crate::outbound::client::{Error, PushAnswer};
use crate::transmitter::obstacle::Obstacle;

/// What becomes of an event that was pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The receiver has it.
    Delivered {
        /// Whether it said so as RFC 8935 wants it.
        as_specified: bool,
    },
    /// The receiver will never take it.
    DeadLetter {
        /// Its `err` (RFC 8935 §2.4).
        err: String,
        /// Its `description`, or nothing.
        description: String,
    },
    /// The receiver refuses the sender, its key, or the `iss` or `aud` of the stream: perhaps of every event, perhaps
    /// only of this one.
    Refused {
        /// Its `err`, one of [`SENDER_ERRS`], or the status that it answered.
        err: String,
        /// Its `description`, or nothing.
        description: String,
    },
    /// It stays, and is sent again.
    Again {
        /// Why, for whoever reads the stream's status: nothing that the receiver wrote, and no address.
        reason: String,
        /// The same for the metric.
        result: &'static str,
        /// How long the receiver wants to be left alone.
        after: Option<Duration>,
    },
}

/// Why an event was not sent, which says nothing of its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// Too many others were, at the same time.
    NoPlace,
    /// Its stream has changed meanwhile.
    Changed,
    /// It could not be read.
    Unread,
    /// Nothing can be signed now.
    Unsigned,
    /// This node does not know now what is blocked.
    Stale,
    /// Its stream delivers nothing now.
    Withheld(Obstacle),
}

impl Unsent {
    /// Its name in `svc_push_total`.
    #[must_use]
    pub const fn result(self) -> &'static str {
        match self {
            Self::NoPlace => "no_place",
            Self::Changed => "changed",
            Self::Unread => "unread",
            Self::Unsigned => "unsigned",
            Self::Stale => "stale",
            Self::Withheld(obstacle) => obstacle.result(),
        }
    }
}

/// The errors of RFC 8935 §2.4 that concern the sender or the stream more likely than the event.
const SENDER_ERRS: [&str; 4] = ["invalid_key", "authentication_failed", "invalid_issuer", "invalid_audience"];

impl Verdict {
    /// What an answer comes to, or that there was none.
    ///
    /// # Errors
    /// [`Unsent`] if this node did not get as far as the receiver.
    pub fn of(answer: Result<PushAnswer, Error>) -> Result<Self, Unsent> {
        match answer {
            Ok(answer) => Ok(Self::of_answer(&answer)),
            Err(Error::LimitReached) => Err(Unsent::NoPlace),
            Err(error) => Ok(Self::of_error(&error)),
        }
    }

    fn of_answer(answer: &PushAnswer) -> Self {
        match answer.status {
            202 => Self::Delivered { as_specified: true },
            200..=299 => Self::Delivered { as_specified: false },
            status @ (400 | 403) => match (err_of(&answer.body), status) {
                (Some((err, description)), _) if SENDER_ERRS.contains(&err.as_str()) => {
                    Self::Refused { err, description }
                }
                (Some((err, description)), _) => Self::DeadLetter { err, description },
                (None, 400) => Self::again("the receiver answered 400 without an err", "answered_400"),
                (None, _) => Self::refused(status),
            },
            401 => Self::refused(401),
            status => Self::Again {
                reason: format!("the receiver answered {status}"),
                result: match status {
                    429 => "answered_429",
                    500..=599 => "answered_5xx",
                    _ => "answered_other",
                },
                after: answer.retry_after,
            },
        }
    }

    fn of_error(error: &Error) -> Self {
        match error {
            Error::TimedOut => Self::again("the receiver did not answer in time", "timed_out"),
            Error::Redirected => Self::again("the receiver answered with a redirect", "redirected"),
            Error::TooLarge => Self::again("the receiver's answer was too large", "too_large"),
            Error::Url(_) | Error::AddressRefused(_) => Self::address_refused(),
            _ => Self::again("the receiver could not be reached", "unreachable"),
        }
    }

    /// The address is none that is pushed to.
    #[must_use]
    pub fn address_refused() -> Self {
        Self::again("the receiver's address is not allowed", "address_refused")
    }

    /// The receiver does not take a key that signs no more.
    #[must_use]
    pub fn key_replaced() -> Self {
        Self::again("the receiver refused a key that was replaced meanwhile", "key_replaced")
    }

    fn refused(status: u16) -> Self {
        Self::Refused { err: status.to_string(), description: String::new() }
    }

    fn again(reason: &str, result: &'static str) -> Self {
        Self::Again { reason: reason.to_owned(), result, after: None }
    }

    /// Its name in `svc_push_total`.
    #[must_use]
    pub const fn result(&self) -> &'static str {
        match self {
            Self::Delivered { .. } => "delivered",
            Self::DeadLetter { .. } => "dead_letter",
            Self::Refused { .. } => "refused",
            Self::Again { result, .. } => result,
        }
    }
}

/// The `err` and the `description` of an answer; `None` if it gives no reason.
fn err_of(body: &[u8]) -> Option<(String, String)> {
    let Ok(Value::Object(answer)) = json::parse(body) else { return None };
    let text = |name: &str| answer.get(name).and_then(Value::as_str).unwrap_or_default();
    let err = printable(text("err"), limits::PUSH_ERR_BYTES_MAX);
    let description = printable(text("description"), limits::PUSH_DESCRIPTION_BYTES_MAX);
    (!err.is_empty()).then_some((err, description))
}

/// The text without what a terminal or a page could be led astray by, cut to so many bytes.
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

    fn answer(status: u16, body: &str) -> Verdict {
        let retry_after = Some(Duration::from_secs(20));
        let answer = PushAnswer { status, retry_after, body: body.as_bytes().to_vec() };
        Verdict::of(Ok(answer)).expect("an answer")
    }

    fn dead(err: &str, description: &str) -> Verdict {
        Verdict::DeadLetter { err: err.to_owned(), description: description.to_owned() }
    }

    fn refused(err: &str, description: &str) -> Verdict {
        Verdict::Refused { err: err.to_owned(), description: description.to_owned() }
    }

    #[test]
    fn each_answer_comes_to_what_the_contract_says() {
        assert_eq!(answer(202, ""), Verdict::Delivered { as_specified: true });
        for status in [200, 201, 204, 299] {
            assert_eq!(answer(status, ""), Verdict::Delivered { as_specified: false }, "{status}");
        }
        assert_eq!(answer(401, ""), refused("401", ""));
        assert_eq!(answer(401, r#"{"err": "access_denied"}"#), refused("401", ""));
        for body in ["", "no", "{}", r#"{"error": "access_denied"}"#] {
            assert_eq!(answer(403, body), refused("403", ""), "{body}");
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
            let again = Verdict::Again { reason: format!("the receiver answered {status}"), result, after };
            assert_eq!(answer(status, r#"{"err": "invalid_key"}"#), again, "{status}");
        }
    }

    #[test]
    fn an_answer_400_is_a_dead_letter_only_if_it_says_why() {
        for (body, verdict) in [
            (r#"{"err": "invalid_request"}"#, dead("invalid_request", "")),
            (r#"{"err": "invalid_key "}"#, dead("invalid_key ", "")),
            (r#"{"err": "access_denied", "description": "who?"}"#, dead("access_denied", "who?")),
            (r#"{"description": "no", "err": "x", "more": {}}"#, dead("x", "no")),
            (r#"{"err": "x", "description": 7}"#, dead("x", "")),
        ] {
            assert_eq!(answer(400, body), verdict, "{body}");
            assert_eq!(answer(403, body), verdict, "{body}");
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
            let said = answer(400, body);
            assert!(matches!(&said, Verdict::Again { result: "answered_400", .. }), "{body}: {said:?}");
        }
    }

    #[test]
    fn err_about_the_sender_is_no_dead_letter() {
        for err in ["invalid_key", "authentication_failed", "invalid_issuer", "invalid_audience"] {
            for status in [400, 403] {
                let said = answer(status, &format!(r#"{{"err": "{err}", "description": "who?"}}"#));
                assert_eq!(said, refused(err, "who?"));
            }
        }
    }

    #[test]
    fn what_a_receiver_writes_is_cut_and_printable() {
        let (err, description) = ("e".repeat(2000), "ä".repeat(2000));
        let said = answer(400, &format!(r#"{{"err": "{err}", "description": "{description}"}}"#));
        let Verdict::DeadLetter { err, description } = said else { panic!("{said:?}") };
        assert_eq!(err.len(), limits::PUSH_ERR_BYTES_MAX);
        assert_eq!(description.len(), limits::PUSH_DESCRIPTION_BYTES_MAX);
        let said = answer(400, r#"{"err": "a\u001b[2Jb\n\u202e", "description": "ünïcode\u0000\r"}"#);
        assert_eq!(said, dead("a?[2Jb??", "ünïcode??"));
    }

    #[test]
    fn no_answer_is_a_reason_to_try_again_that_names_no_address() {
        for (error, result) in [
            (Error::TimedOut, "timed_out"),
            (Error::Redirected, "redirected"),
            (Error::TooLarge, "too_large"),
            (Error::Url(UrlError::NotOnlyAddress), "address_refused"),
            (Error::Unreachable, "unreachable"),
        ] {
            let said = Verdict::of(Err(error)).expect("a verdict");
            let Verdict::Again { reason, result: counted, after: None } = &said else { panic!("{said:?}") };
            assert_eq!(*counted, result);
            assert!(
                reason.bytes().all(|byte| byte == b' ' || byte == b'\'' || byte.is_ascii_alphabetic()),
                "{reason}"
            );
            assert_eq!(said.result(), result);
        }
        assert_eq!(Verdict::of(Err(Error::LimitReached)), Err(Unsent::NoPlace), "no word about the receiver");
    }
}
