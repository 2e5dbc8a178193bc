//! Security event tokens (RFC 8417) in the profile of SSF 1.0 §4, signed, or as the JSON object of the
//! specification.
//!
//! The order of the checks is written on each function and followed top to bottom. Nothing here asks
//! whether the token came before, whether its issuer has authority over the subject, or what an event does.

use serde_json::{Map, Value};

use super::claims;
use super::foreign;
use super::jws::{Algorithm, Compact};
use super::key_set::VerifyingKey;
use super::subject_id::{self, SubjectId};
use crate::clock::Timestamp;
use crate::id::{Digest128, DigestKind};
use crate::policy::signals::AskedSet;
use crate::{json, limits};

/// A security event token whose form, times and audience are good.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    /// `iss`: the one of the rules.
    pub iss: String,
    /// `jti`, up to `OPAQUE_BYTES_MAX` bytes. Whether it came before is not asked here.
    pub jti: String,
    /// `iat`.
    pub iat: Timestamp,
    /// `aud`: at least one, and one of them names us.
    pub aud: Vec<String>,
    /// `txn`.
    pub txn: Option<String>,
    /// `svc_via`: the issuers through which it came before its own, the first one first.
    pub via: Vec<String>,
    /// Whom the events are about.
    pub subject: SubjectId,
    /// `sub_id` as it was sent, for policy and record.
    pub sub_id: Value,
    /// At least one, at most `SET_EVENTS_MAX`; exactly one if it was signed.
    pub events: Vec<Event>,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its type: an absolute URI of up to `URI_BYTES_MAX` bytes.
    pub uri: String,
    /// What it says, as it was sent.
    pub claims: Map<String, Value>,
    /// `event_timestamp`, else the `toe` of the token (RFC 8417 §2.2), to the millisecond, if one is there:
    /// not ahead of us, but as old as it likes.
    pub happened_at: Option<Timestamp>,
}

/// A token whose sender was verified, or is vouched for. Nothing else of it is judged yet.
#[derive(Clone, Debug)]
pub struct Sent {
    /// `iss`: the one of the rules.
    pub iss: String,
    /// `jti`, up to `OPAQUE_BYTES_MAX` bytes.
    pub jti: String,
    /// `iat`, of any time.
    pub iat: Timestamp,
    /// Digest of the canonical text of all claims (RFC 8785), which tells a repetition from another token under
    /// the same `jti`.
    pub content: Digest128,
    is_signed: bool,
    others: Map<String, Value>,
}

/// What a token is judged by.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// Our names: `aud` holds one of them, byte for byte.
    pub audiences: &'a [String],
    /// The algorithms of the issuer; a token that is not signed has none.
    pub algorithms: &'a [Algorithm],
    /// The issuer that the caller, or the key, speaks for: what `iss` must be, byte for byte.
    pub iss: &'a str,
    /// The time of receipt.
    pub now: Timestamp,
}

/// Why a token was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A member is absent, of another type, too long or too many, or a time is not acceptable.
    #[error("{field}: {rule}")]
    Invalid {
        /// Its path, for example `sub_id.email`; `set` for the whole.
        field: String,
        /// What it must be.
        rule: &'static str,
    },
    /// Not a compact JWS that may be read at all, or one of another type.
    #[error("{0}")]
    Malformed(super::Error),
    /// `iss` is not the issuer of the key, or not one that the caller speaks for.
    #[error("iss: must be the issuer that sends it")]
    Issuer,
    /// `aud` does not name us.
    #[error("aud: must name this receiver")]
    Audience,
    /// The key, or its algorithm, is none that the issuer may sign with.
    #[error("{0}")]
    Key(super::Error),
    /// The signature does not verify.
    #[error("token signature is invalid")]
    Signature,
}

impl Error {
    /// The code of RFC 8935 §2.4.
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

const URI_RULE: &str = "must be a string of 1 to 2048 bytes";
const OPAQUE_RULE: &str = "must be a string of 1 to 256 bytes";

impl Sent {
    /// Takes up a token that is not signed: `iss` is the one of the rules, which the caller speaks for.
    ///
    /// # Errors
    /// As [`Error`] says: for `iss`, and for `jti` and `iat`, if they are not of their type.
    pub fn vouched(value: Value, rules: &Rules<'_>) -> Result<Self, Error> {
        Self::read(object(value)?, false, rules)
    }

    /// Verifies who signed a token, in this order:
    ///
    /// 1. `typ` is `secevent+jwt`
    /// 2. `alg` is in the issuer's list
    /// 3. the key is the one `kid` names
    /// 4. signature
    /// 5. no `sub` and no `exp`
    /// 6. `iss` is the one of the rules; `jti` and `iat` are of their type
    ///
    /// `key` is one of the keys of the issuer that the rules name; size, form and header were checked by
    /// [`Compact::parse`].
    ///
    /// # Errors
    /// As [`Error`] says, by the first check that fails.
    pub fn verify(token: &Compact<'_>, key: &VerifyingKey, rules: &Rules<'_>) -> Result<Self, Error> {
        let header = token.header();
        // RFC 8725 §3.11: explicit typing keeps a token of another kind from being taken for an event.
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
        let members = object(payload)?;
        // SSF 1.0 §4.1.2, §4.1.7: neither may be there, so that nobody takes it for an ID token.
        for name in ["sub", "exp"] {
            if members.contains_key(name) {
                return Err(invalid(name, "must not be in a security event token"));
            }
        }
        Self::read(members, true, rules)
    }

    fn read(members: Map<String, Value>, is_signed: bool, rules: &Rules<'_>) -> Result<Self, Error> {
        let claims = Value::Object(members);
        let content = Digest128::of(DigestKind::SignalContent, b"", json::canonical(&claims).as_bytes());
        let mut members = object(claims)?;
        let iss = text(&mut members, "iss", limits::URI_BYTES_MAX, URI_RULE)?;
        if iss != rules.iss {
            return Err(Error::Issuer);
        }
        let jti = text(&mut members, "jti", limits::OPAQUE_BYTES_MAX, OPAQUE_RULE)?;
        let iat = members.remove("iat").and_then(|value| claims::numeric_date("iat", &value).ok());
        let iat = iat.ok_or_else(|| invalid("iat", "must be a whole number of seconds since 1970"))?;
        Ok(Self { iss, jti, iat, content, is_signed, others: members })
    }

    /// Judges the rest, in this order:
    ///
    /// 1. `aud` names us; of a token that is not signed it is one string, else it may be an array
    /// 2. `iat` is at most 60 s ahead and 24 h old
    /// 3. `txn`, `svc_via`, `sub_id`, `toe`, and `events`, at least one and at most `SET_EVENTS_MAX`; exactly one of a
    ///    signed token
    ///
    /// Other members are ignored.
    ///
    /// # Errors
    /// As [`Error`] says, by the first check that fails.
    pub fn judge(self, rules: &Rules<'_>) -> Result<Set, Error> {
        let Self { iss, jti, iat, is_signed, others: mut members, content: _ } = self;
        if !is_signed && !members.get("aud").is_none_or(Value::is_string) {
            return Err(invalid("aud", URI_RULE));
        }
        let aud = audiences(members.remove("aud"))?;
        if !aud.iter().any(|aud| rules.audiences.contains(aud)) {
            return Err(Error::Audience);
        }
        check_age(iat, rules.now)?;
        let has_txn = members.contains_key("txn");
        let txn =
            has_txn.then(|| text(&mut members, "txn", limits::OPAQUE_BYTES_MAX, OPAQUE_RULE)).transpose()?;
        let via = members.remove("svc_via").map_or(Ok(Vec::new()), via)?;
        let sub_id = members.remove("sub_id").ok_or_else(|| invalid("sub_id", "must be an object"))?;
        let subject = SubjectId::read(&sub_id, "sub_id")?;
        let toe = members.get("toe").map(|value| happened_at(value, rules.now)).transpose();
        let toe = toe.map_err(|rule| invalid("toe", rule))?;
        let mut events = events(members.remove("events"), rules.now)?;
        // CAEP interoperability profile: exactly one event in a SET.
        if is_signed && events.len() != 1 {
            return Err(invalid("events", "must be one event in a signed token"));
        }
        for event in &mut events {
            event.happened_at = event.happened_at.or(toe);
        }
        Ok(Set { iss, jti, iat, aud, txn, via, subject, sub_id, events })
    }
}

impl Set {
    /// Reads a token that is not signed: as [`Sent::vouched`] and [`Sent::judge`] say.
    ///
    /// # Errors
    /// As [`Error`] says, by the first check that fails.
    pub fn from_json(value: Value, rules: &Rules<'_>) -> Result<Self, Error> {
        Sent::vouched(value, rules)?.judge(rules)
    }

    /// Verifies a signed token: as [`Sent::verify`] and [`Sent::judge`] say.
    ///
    /// # Errors
    /// As [`Error`] says, by the first check that fails.
    pub fn verify(token: &Compact<'_>, key: &VerifyingKey, rules: &Rules<'_>) -> Result<Self, Error> {
        Sent::verify(token, key, rules)?.judge(rules)
    }

    /// Who a signed token says it is from, unverified: good for choosing the rules and the key, for
    /// nothing else.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the payload is no object, [`Error::Invalid`] without a string `iss`.
    pub fn unverified_issuer(token: &Compact<'_>) -> Result<String, Error> {
        let stated = token.unverified_issuer()?.iss.filter(|iss| is_issuer(iss));
        stated.ok_or_else(|| invalid("iss", URI_RULE))
    }

    /// Who a token that is not signed says it is from: good for choosing the rules, for nothing else.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no object or has no string `iss`.
    pub fn stated_issuer(value: &Value) -> Result<&str, Error> {
        let members = value.as_object().ok_or_else(|| invalid("set", "must be an object"))?;
        let stated = members.get("iss").and_then(Value::as_str).filter(|iss| is_issuer(iss));
        stated.ok_or_else(|| invalid("iss", URI_RULE))
    }

    /// What the policy may see of it.
    #[must_use]
    pub fn asked(&self) -> AskedSet<'_> {
        AskedSet {
            iss: &self.iss,
            jti: &self.jti,
            iat: self.iat.secs(),
            aud: &self.aud,
            txn: self.txn.as_deref(),
            sub_id: &self.sub_id,
            events: self.events.iter().map(|event| (event.uri.as_str(), &event.claims)).collect(),
        }
    }
}

fn is_issuer(iss: &str) -> bool {
    (1..=limits::URI_BYTES_MAX).contains(&iss.len())
}

fn invalid(field: impl Into<String>, rule: &'static str) -> Error {
    Error::Invalid { field: field.into(), rule }
}

fn object(value: Value) -> Result<Map<String, Value>, Error> {
    match value {
        Value::Object(members) => Ok(members),
        _ => Err(invalid("set", "must be an object")),
    }
}

fn text(
    members: &mut Map<String, Value>,
    name: &str,
    bytes_max: usize,
    rule: &'static str,
) -> Result<String, Error> {
    match members.remove(name) {
        Some(Value::String(text)) if (1..=bytes_max).contains(&text.len()) => Ok(text),
        _ => Err(invalid(name, rule)),
    }
}

/// The issuers of `svc_via`. How many there may be is decided by the receiver.
fn via(value: Value) -> Result<Vec<String>, Error> {
    let issuer = |value: Value| match value {
        Value::String(text) if is_issuer(&text) => Ok(text),
        _ => Err(invalid("svc_via", "must be an array of issuers, each a string of 1 to 2048 bytes")),
    };
    let Value::Array(issuers) = value else { return Err(invalid("svc_via", "must be an array of issuers")) };
    issuers.into_iter().map(issuer).collect()
}

/// One string, or an array of at least one; their number is bounded by the token's size.
fn audiences(value: Option<Value>) -> Result<Vec<String>, Error> {
    let one = |value| match value {
        Value::String(aud) if (1..=limits::URI_BYTES_MAX).contains(&aud.len()) => Ok(aud),
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

fn events(value: Option<Value>, now: Timestamp) -> Result<Vec<Event>, Error> {
    let Some(Value::Object(events)) = value else { return Err(invalid("events", "must be an object")) };
    if !(1..=limits::SET_EVENTS_MAX).contains(&events.len()) {
        return Err(invalid("events", "must have 1 to 16 members"));
    }
    events.into_iter().map(|(uri, claims)| event(uri, claims, now)).collect()
}

fn event(uri: String, claims: Value, now: Timestamp) -> Result<Event, Error> {
    if !is_absolute_uri(&uri) {
        return Err(invalid("events", "must have absolute URIs of at most 2048 bytes as names"));
    }
    let at = |member: &str| {
        // Its last segment is what tells event types apart, and a whole URI is too long for an answer.
        let name: String = uri.rsplit(['/', ':']).next().unwrap_or_default().chars().take(64).collect();
        format!("events.{name}{member}")
    };
    let Value::Object(claims) = claims else { return Err(invalid(at(""), "must be an object")) };
    let happened_at = claims.get("event_timestamp").map(|value| happened_at(value, now)).transpose();
    let happened_at = happened_at.map_err(|rule| invalid(at(".event_timestamp"), rule))?;
    Ok(Event { uri, claims, happened_at })
}

/// A NumericDate, which may have a fraction (RFC 7519 §2). One of the far past is only recorded; one of
/// the future would outlast every lift of a block.
fn happened_at(value: &Value, now: Timestamp) -> Result<Timestamp, &'static str> {
    const RULE: &str = "must be seconds since 1970, not milliseconds, at most 60 s ahead";
    let secs = value.as_f64().filter(|secs| (0.0..1e15).contains(secs)).ok_or(RULE)?;
    #[expect(clippy::cast_possible_truncation, reason = "in range, checked first")]
    let at = Timestamp::from_millis((secs * 1000.0).round() as i64);
    if at > now.plus(limits::SET_IAT_AHEAD_MAX) { Err(RULE) } else { Ok(at) }
}

/// A scheme, a colon and something behind it, in the alphabet of RFC 3986, within its limit.
fn is_absolute_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    text.len() <= limits::URI_BYTES_MAX
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
        && !rest.is_empty()
        && rest.bytes().all(|b| b.is_ascii_graphic() && !br#""<>\^`{|}"#.contains(&b))
}

#[cfg(test)]
mod tests;
