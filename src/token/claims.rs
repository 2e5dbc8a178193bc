//! Registered claims (RFC 7519 §4.1), typed strictly, and readers for the other claims.
//!
//! Claims are read from a verified payload only. Here are types and limits; the rules of each credential kind are in
//! `foreign` and `issued`.

use std::time::Duration;

use serde_json::{Map, Value};

use super::Error;
use super::jws::Signed;
use crate::clock::Timestamp;
use crate::{json, limits, text};

/// The claims of a verified token.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims {
    /// `iss`. Optional only because a JWT-SVID may lack it (JWT-SVID §3).
    pub iss: Option<String>,
    pub sub: String,
    /// `aud`: at least one, whether it was a string or an array (RFC 7519 §4.1.3).
    pub aud: Vec<String>,
    pub exp: Timestamp,
    pub iat: Timestamp,
    pub nbf: Option<Timestamp>,
    pub jti: Option<String>,
    pub others: Map<String, Value>,
}

impl Claims {
    /// Reads the registered claims of a payload.
    ///
    /// # Errors
    /// [`Error::PayloadMalformed`], [`Error::ClaimMissing`] or [`Error::ClaimMalformed`].
    pub fn read(signed: &Signed) -> Result<Self, Error> {
        let Ok(Value::Object(mut fields)) = json::parse(signed.payload()) else {
            return Err(Error::PayloadMalformed);
        };
        let mut take = |name| fields.remove(name);
        Ok(Self {
            iss: take("iss").map(|value| text("iss", value, limits::URI_BYTES_MAX)).transpose()?,
            sub: text("sub", required("sub", take("sub"))?, limits::WORKLOAD_ID_BYTES_MAX)?,
            aud: audiences(required("aud", take("aud"))?)?,
            exp: numeric_date("exp", &required("exp", take("exp"))?)?,
            iat: numeric_date("iat", &required("iat", take("iat"))?)?,
            nbf: take("nbf").map(|value| numeric_date("nbf", &value)).transpose()?,
            jti: take("jti").map(|value| text("jti", value, limits::OPAQUE_BYTES_MAX)).transpose()?,
            others: fields,
        })
    }

    /// Bytes in memory, estimated from the allocations of its parts.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let texts = [&self.iss, &self.jti].into_iter().flatten().chain(&self.aud).chain([&self.sub]);
        let texts: usize = texts.map(String::capacity).sum();
        size_of::<Self>() + texts + self.aud.len() * size_of::<String>() + object_bytes(&self.others)
    }

    /// Checks `nbf`, `iat`, `exp` and age at `now`. `nbf` and `iat` get [`limits::LEEWAY`] for clock skew, `exp` gets
    /// `exp_leeway`. The age gets none: it is our own limit, not the issuer's statement.
    ///
    /// # Errors
    /// [`Error::ClaimMalformed`] if `exp` is not after `iat`, [`Error::NotYetValid`],
    /// [`Error::IssuedAhead`], [`Error::Expired`] or [`Error::TooOld`].
    pub fn check_times(&self, now: Timestamp, age_max: Duration, exp_leeway: Duration) -> Result<(), Error> {
        if self.exp <= self.iat {
            return Err(Error::ClaimMalformed("exp"));
        }
        // RFC 7519 §4.1.5: "the time before which the JWT MUST NOT be accepted".
        if self.nbf.is_some_and(|nbf| nbf > now.plus(limits::LEEWAY)) {
            return Err(Error::NotYetValid);
        }
        if self.iat > now.plus(limits::LEEWAY) {
            return Err(Error::IssuedAhead);
        }
        // RFC 7519 §4.1.4: "on or after which the JWT MUST NOT be accepted".
        if now >= self.exp.plus(exp_leeway) {
            return Err(Error::Expired);
        }
        if now >= self.iat.plus(age_max) {
            return Err(Error::TooOld);
        }
        Ok(())
    }

    /// A string claim, if present.
    ///
    /// # Errors
    /// [`Error::ClaimMalformed`] if it is not a string of 1 to `bytes_max` bytes.
    pub fn text(&self, name: &'static str, bytes_max: usize) -> Result<Option<String>, Error> {
        self.others.get(name).map(|value| text(name, value.clone(), bytes_max)).transpose()
    }

    /// A list of scope words, if present; repetitions are allowed.
    ///
    /// # Errors
    /// [`Error::ClaimMalformed`] for more than `CAPABILITIES_MAX` words, or for one that is no scope word.
    pub fn words(&self, name: &'static str) -> Result<Option<Vec<String>>, Error> {
        let Some(value) = self.others.get(name) else { return Ok(None) };
        let words = value.as_array().ok_or(Error::ClaimMalformed(name))?;
        bounded_words(name, words.iter().map(|word| word.as_str().unwrap_or_default())).map(Some)
    }

    /// The words of `scope`, if present, separated by one space (RFC 6749 §3.3).
    ///
    /// # Errors
    /// [`Error::ClaimMalformed`] if it is not a string of scope words.
    pub fn scope(&self) -> Result<Option<Vec<String>>, Error> {
        const NAME: &str = "scope";
        let Some(value) = self.others.get(NAME) else { return Ok(None) };
        let scope = value.as_str().ok_or(Error::ClaimMalformed(NAME))?;
        if scope.is_empty() {
            return Ok(Some(Vec::new()));
        }
        bounded_words(NAME, scope.split(' ')).map(Some)
    }

    /// A whole number, if present.
    ///
    /// # Errors
    /// [`Error::ClaimMalformed`] if it is not a whole number from 0 to `largest`.
    pub fn whole_number(&self, name: &'static str, largest: u32) -> Result<Option<u32>, Error> {
        let Some(value) = self.others.get(name) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.filter(|number| *number <= largest).map(Some).ok_or(Error::ClaimMalformed(name))
    }

    /// A NumericDate, if present.
    ///
    /// # Errors
    /// [`Error::ClaimMalformed`].
    pub fn numeric_date(&self, name: &'static str) -> Result<Option<Timestamp>, Error> {
        self.others.get(name).map(|value| numeric_date(name, value)).transpose()
    }
}

/// Bytes that an object has allocated: nodes of a B-tree, which are at least half full, and its fields.
fn object_bytes(members: &Map<String, Value>) -> usize {
    const NODE_MEMBERS: usize = 11;
    const NODE: usize = NODE_MEMBERS * (size_of::<String>() + size_of::<Value>()) + 128;
    let nodes = members.len().div_ceil(NODE_MEMBERS / 2 + 1);
    nodes * NODE + members.iter().map(|(name, value)| name.capacity() + value_bytes(value)).sum::<usize>()
}

fn value_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.capacity(),
        Value::Array(elements) => {
            elements.capacity() * size_of::<Value>() + elements.iter().map(value_bytes).sum::<usize>()
        }
        Value::Object(members) => object_bytes(members),
    }
}

fn required(name: &'static str, value: Option<Value>) -> Result<Value, Error> {
    value.ok_or(Error::ClaimMissing(name))
}

fn text(name: &'static str, value: Value, bytes_max: usize) -> Result<String, Error> {
    match value {
        Value::String(text) if text::fits(&text, bytes_max) => Ok(text),
        _ => Err(Error::ClaimMalformed(name)),
    }
}

fn audiences(value: Value) -> Result<Vec<String>, Error> {
    let one = |value| text("aud", value, limits::URI_BYTES_MAX);
    match value {
        Value::Array(values) if !values.is_empty() => values.into_iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}

/// RFC 7519 §2 allows fractions. Some issuers write a whole number as `1.7e9`: that is accepted; fractions, negative
/// numbers and dates beyond the calendar are not.
pub(super) fn numeric_date(name: &'static str, value: &Value) -> Result<Timestamp, Error> {
    let secs = value.as_i64().or_else(|| {
        let number = value.as_f64()?;
        #[expect(clippy::cast_possible_truncation, reason = "whole and in range, checked first")]
        let whole = (number.fract() == 0.0 && number.abs() <= 1e15).then_some(number as i64);
        whole
    });
    secs.filter(|secs| (0..=limits::NUMERIC_DATE_MAX_SECS).contains(secs))
        .map(Timestamp::from_secs)
        .ok_or(Error::ClaimMalformed(name))
}

fn bounded_words<'w>(name: &'static str, words: impl Iterator<Item = &'w str>) -> Result<Vec<String>, Error> {
    let mut read = Vec::new();
    for word in words {
        if !text::is_scope_word(word) || read.len() == limits::CAPABILITIES_MAX {
            return Err(Error::ClaimMalformed(name));
        }
        read.push(word.to_owned());
    }
    Ok(read)
}
