//! Security event tokens (RFC 8417) in the profile of SSF 1.0 §4, signed, or as the JSON object of the specification.
//!
//! Form, times, audience and signature are checked here. Replay, the issuer's authority over the subject and the
//! effect of an event are the receiver's.

use serde_json::{Map, Value};

use super::claims;
use super::foreign;
use super::jws::{Algorithm, Compact};
use super::key_set::VerifyingKey;
use super::subject_id::{self, SubjectId};
use crate::clock::Timestamp;
use crate::id::{Digest128, DigestKind};
use crate::{json, limits, text};

/// A security event token with checked form, times and audience.
#[derive(Clone, Debug, PartialEq)]
pub struct SecurityEventToken {
    /// `iss`, equal to the one of the rules.
    pub iss: String,
    /// `jti`, up to `OPAQUE_BYTES_MAX` bytes; not checked for replay.
    pub jti: String,
    pub iat: Timestamp,
    /// `aud`, which includes one of our names.
    pub aud: Vec<String>,
    pub txn: Option<String>,
    /// `svc_via`: the issuers before this one, first issuer first.
    pub via: Vec<String>,
    pub subject: SubjectId,
    /// `sub_id` as it was sent, for policy and record.
    pub sub_id: Value,
    /// 1 to `SET_EVENTS_MAX` events; exactly one if signed.
    pub events: Vec<EventClaims>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct EventClaims {
    /// Event type: an absolute URI of up to `URI_BYTES_MAX` bytes.
    pub uri: String,
    /// Its claims, as sent.
    pub claims: Map<String, Value>,
    /// `event_timestamp`, else `toe` of the token (RFC 8417 §2.2), in milliseconds: not in the future, of any age.
    pub happened_at: Option<Timestamp>,
}

/// A token whose sender is verified; nothing else is checked yet.
#[derive(Clone, Debug)]
pub struct UncheckedSet {
    /// `iss`: the one of the rules.
    pub iss: String,
    /// `jti`, up to `OPAQUE_BYTES_MAX` bytes.
    pub jti: String,
    /// `iat`, unchecked.
    pub iat: Timestamp,
    /// Digest of the canonical JSON of all claims (RFC 8785); it distinguishes a retry from another token with the same
    /// `jti`.
    pub content: Digest128,
    is_signed: bool,
    others: Map<String, Value>,
}

/// Rules by which a token is checked.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// Our names; `aud` must include one of them, byte for byte.
    pub audiences: &'a [String],
    /// The algorithms of the issuer; empty for an unsigned token.
    pub algorithms: &'a [Algorithm],
    /// The issuer for which the caller or the key is authorized; `iss` must equal it byte for byte.
    pub iss: &'a str,
    /// The time of receipt.
    pub now: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A field is absent, of a wrong type or beyond a limit, or a time is not acceptable.
    #[error("{field}: {rule}")]
    Invalid {
        /// Path of the field, for example `sub_id.email`; `set` for the whole token.
        field: String,
        rule: &'static str,
    },
    /// Not an acceptable compact JWS, or of another type.
    #[error("{0}")]
    Malformed(super::Error),
    /// `iss` is not the issuer of the key or of the caller.
    #[error("iss: must be the issuer that sends it")]
    Issuer,
    /// `aud` names other receivers only.
    #[error("aud: must name this receiver")]
    Audience,
    /// The key or algorithm is not one of the issuer.
    #[error("{0}")]
    Key(super::Error),
    /// The signature does not verify.
    #[error("token signature is invalid")]
    Signature,
}

impl Error {
    /// The error code of RFC 8935 §2.4.
    #[must_use]
    pub const fn err(&self) -> &'static str {
        match self {
            Self::Invalid { .. } | Self::Malformed(_) => "invalid_request",
            Self::Issuer => "invalid_issuer",
            Self::Audience => "invalid_audience",
            Self::Key(_) => "invalid_key",
            Self::Signature => "authentication_failed",
        }
    }
}

impl From<super::Error> for Error {
    fn from(error: super::Error) -> Self {
        use super::Error as Token;
        match error {
            Token::UnknownIssuer | Token::IssuerMismatch => Self::Issuer,
            Token::AudienceMismatch => Self::Audience,
            Token::SignatureInvalid => Self::Signature,
            Token::UnknownKey
            | Token::AmbiguousKey
            | Token::KeyInToken
            | Token::AlgorithmRefused
            | Token::AlgorithmNotAllowed => Self::Key(error),
            error => Self::Malformed(error),
        }
    }
}

impl From<subject_id::Error> for Error {
    fn from(subject_id::Error { field, rule }: subject_id::Error) -> Self {
        Self::Invalid { field, rule }
    }
}

/// RFC 8417 §2.3: `typ` of a signed token.
const TYP: &str = "secevent+jwt";

/// Claim of an event: its time, a NumericDate (CAEP §2).
pub const EVENT_TIMESTAMP: &str = "event_timestamp";

const URI_RULE: &str = "must be a string of 1 to 2048 bytes";
const OPAQUE_RULE: &str = "must be a string of 1 to 256 bytes";

impl UncheckedSet {
    /// Reads an unsigned token, for whose `iss` the caller is authorized.
    ///
    /// # Errors
    /// [`Error::Issuer`] for another `iss`, [`Error::Invalid`] for `jti` and `iat`.
    pub fn unsigned(value: Value, rules: &Rules<'_>) -> Result<Self, Error> {
        Self::read(object(value)?, false, rules)
    }

    /// Verifies the sender of a signed token, in this order:
    ///
    /// 1. `typ` is `secevent+jwt`
    /// 2. `alg` is one of the issuer's
    /// 3. `kid` names `key`
    /// 4. signature
    /// 5. no `sub` and no `exp`
    /// 6. `iss` is the one of the rules; `jti` and `iat` are well formed
    ///
    /// `key` is a key of the issuer of the rules; size, form and header were checked by [`Compact::parse`].
    pub fn verify(token: &Compact<'_>, key: &VerifyingKey, rules: &Rules<'_>) -> Result<Self, Error> {
        let header = token.header();
        // RFC 8725 §3.11: explicit typing keeps a token of another kind from being used as an event.
        if !foreign::is_type(header, TYP) {
            return Err(Error::Malformed(super::Error::TypeMismatch));
        }
        // RFC 8725 §3.1: "verify that the algorithm is the one expected".
        if !rules.algorithms.contains(&header.algorithm) {
            return Err(Error::Key(super::Error::AlgorithmNotAllowed));
        }
        foreign::check_key_name(header, key)?;
        let signed = token.verify(key)?;
        let payload = json::parse(signed.payload()).map_err(|_| super::Error::PayloadMalformed)?;
        let fields = object(payload)?;
        // SSF 1.0 §4.1.2, §4.1.7: both are forbidden, so that an event cannot be used as an ID token.
        for name in ["sub", "exp"] {
            if fields.contains_key(name) {
                return Err(invalid(name, "must not be in a security event token"));
            }
        }
        Self::read(fields, true, rules)
    }

    fn read(fields: Map<String, Value>, is_signed: bool, rules: &Rules<'_>) -> Result<Self, Error> {
        let claims = Value::Object(fields);
        let content = Digest128::of(DigestKind::SignalContent, b"", json::canonical(&claims).as_bytes());
        let mut fields = object(claims)?;
        let iss = text(&mut fields, "iss", limits::URI_BYTES_MAX, URI_RULE)?;
        if iss != rules.iss {
            return Err(Error::Issuer);
        }
        let jti = text(&mut fields, "jti", limits::OPAQUE_BYTES_MAX, OPAQUE_RULE)?;
        let iat = fields.remove("iat").and_then(|value| claims::numeric_date("iat", &value).ok());
        let iat = iat.ok_or_else(|| invalid("iat", "must be a whole number of seconds since 1970"))?;
        Ok(Self { iss, jti, iat, content, is_signed, others: fields })
    }

    /// Checks the remaining claims, in this order:
    ///
    /// 1. `aud` includes one of our names; one string if unsigned, else possibly an array
    /// 2. `iat` is at most 60 s ahead and 24 h old
    /// 3. `txn`, `svc_via`, `sub_id`, `toe`, and `events`: 1 to `SET_EVENTS_MAX`, exactly one if signed
    ///
    /// Other claims are ignored.
    pub fn check(self, rules: &Rules<'_>) -> Result<SecurityEventToken, Error> {
        let Self { iss, jti, iat, is_signed, others: mut fields, content: _ } = self;
        if !is_signed && !fields.get("aud").is_none_or(Value::is_string) {
            return Err(invalid("aud", URI_RULE));
        }
        let aud = audiences(fields.remove("aud"))?;
        if !aud.iter().any(|aud| rules.audiences.contains(aud)) {
            return Err(Error::Audience);
        }
        check_age(iat, rules.now)?;
        let has_txn = fields.contains_key("txn");
        let txn =
            has_txn.then(|| text(&mut fields, "txn", limits::OPAQUE_BYTES_MAX, OPAQUE_RULE)).transpose()?;
        let via = fields.remove("svc_via").map_or(Ok(Vec::new()), via)?;
        let sub_id = fields.remove("sub_id").ok_or_else(|| invalid("sub_id", "must be an object"))?;
        let subject = SubjectId::read(&sub_id, "sub_id")?;
        let toe = fields.get("toe").map(|value| happened_at(value, rules.now)).transpose();
        let toe = toe.map_err(|rule| invalid("toe", rule))?;
        let mut events = events(fields.remove("events"), rules.now)?;
        // CAEP interoperability profile: a SET has exactly one event.
        if is_signed && events.len() != 1 {
            return Err(invalid("events", "must be one event in a signed token"));
        }
        for event in &mut events {
            event.happened_at = event.happened_at.or(toe);
        }
        Ok(SecurityEventToken { iss, jti, iat, aud, txn, via, subject, sub_id, events })
    }
}

impl SecurityEventToken {
    /// `iss` of a signed token, unverified: only for choosing the rules and the key.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the payload is not an object, [`Error::Invalid`] without a valid `iss`.
    pub fn unverified_issuer(token: &Compact<'_>) -> Result<String, Error> {
        let stated = token.unverified_issuer()?.iss.filter(|iss| is_issuer(iss));
        stated.ok_or_else(|| invalid("iss", URI_RULE))
    }

    /// `iss` of an unsigned token: only for choosing the rules.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not an object or has no valid `iss`.
    pub fn stated_issuer(value: &Value) -> Result<&str, Error> {
        let fields = value.as_object().ok_or_else(|| invalid("set", "must be an object"))?;
        let stated = fields.get("iss").and_then(Value::as_str).filter(|iss| is_issuer(iss));
        stated.ok_or_else(|| invalid("iss", URI_RULE))
    }
}

fn is_issuer(iss: &str) -> bool {
    text::fits(iss, limits::URI_BYTES_MAX)
}

fn invalid(field: impl Into<String>, rule: &'static str) -> Error {
    Error::Invalid { field: field.into(), rule }
}

fn object(value: Value) -> Result<Map<String, Value>, Error> {
    match value {
        Value::Object(fields) => Ok(fields),
        _ => Err(invalid("set", "must be an object")),
    }
}

fn text(
    fields: &mut Map<String, Value>,
    name: &str,
    bytes_max: usize,
    rule: &'static str,
) -> Result<String, Error> {
    match fields.remove(name) {
        Some(Value::String(text)) if text::fits(&text, bytes_max) => Ok(text),
        _ => Err(invalid(name, rule)),
    }
}

/// The issuers of `svc_via`; their number is limited by the receiver.
fn via(value: Value) -> Result<Vec<String>, Error> {
    let issuer = |value: Value| match value {
        Value::String(text) if is_issuer(&text) => Ok(text),
        _ => Err(invalid("svc_via", "must be an array of issuers, each a string of 1 to 2048 bytes")),
    };
    let Value::Array(issuers) = value else { return Err(invalid("svc_via", "must be an array of issuers")) };
    issuers.into_iter().map(issuer).collect()
}

/// One string, or a non-empty array bounded by the size of the token.
fn audiences(value: Option<Value>) -> Result<Vec<String>, Error> {
    let one = |value| match value {
        Value::String(aud) if text::fits(&aud, limits::URI_BYTES_MAX) => Ok(aud),
        _ => Err(invalid("aud", URI_RULE)),
    };
    match value {
        Some(Value::Array(values)) if !values.is_empty() => values.into_iter().map(one).collect(),
        value => Ok(vec![one(value.unwrap_or_default())?]),
    }
}

fn check_age(iat: Timestamp, now: Timestamp) -> Result<(), Error> {
    if iat > now.plus(limits::SET_IAT_AHEAD_MAX) {
        return Err(invalid("iat", "must be at most 60 s ahead of this receiver's clock"));
    }
    if iat < now.minus(limits::SET_AGE_MAX) {
        return Err(invalid("iat", "must be at most 24 h old"));
    }
    Ok(())
}

fn events(value: Option<Value>, now: Timestamp) -> Result<Vec<EventClaims>, Error> {
    let Some(Value::Object(events)) = value else { return Err(invalid("events", "must be an object")) };
    if !(1..=limits::SET_EVENTS_MAX).contains(&events.len()) {
        return Err(invalid("events", "must have 1 to 16 events"));
    }
    events.into_iter().map(|(uri, claims)| event(uri, claims, now)).collect()
}

fn event(uri: String, claims: Value, now: Timestamp) -> Result<EventClaims, Error> {
    if !text::is_uri(&uri) {
        return Err(invalid("events", "must have absolute URIs of at most 2048 bytes as names"));
    }
    let at = |member: &str| {
        // The last segment identifies the event type; a whole URI is too long for an error text.
        let name: String = uri.rsplit(['/', ':']).next().unwrap_or_default().chars().take(64).collect();
        format!("events.{name}{member}")
    };
    let Value::Object(claims) = claims else { return Err(invalid(at(""), "must be an object")) };
    let happened_at = claims.get(EVENT_TIMESTAMP).map(|value| happened_at(value, now)).transpose();
    let happened_at = happened_at.map_err(|rule| invalid(at(".event_timestamp"), rule))?;
    Ok(EventClaims { uri, claims, happened_at })
}

/// A NumericDate, possibly with a fraction (RFC 7519 §2). A time in the far past is only recorded; one in the future
/// would outlast every lift of a block.
fn happened_at(value: &Value, now: Timestamp) -> Result<Timestamp, &'static str> {
    const RULE: &str = "must be seconds since 1970, not milliseconds, at most 60 s ahead";
    let secs = value.as_f64().filter(|secs| (0.0..1e15).contains(secs)).ok_or(RULE)?;
    #[expect(clippy::cast_possible_truncation, reason = "in range, checked first")]
    let at = Timestamp::from_millis((secs * 1000.0).round() as i64);
    if at > now.plus(limits::SET_IAT_AHEAD_MAX) { Err(RULE) } else { Ok(at) }
}

#[cfg(test)]
mod tests;
