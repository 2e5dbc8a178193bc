//! Validation of a poll request (RFC 8936 §2.2).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::Error;
use crate::{limits, text};

/// A validated poll. Fields that RFC 8936 does not define are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PollRequest {
    /// `maxEvents`, at most [`limits::POLL_EVENTS_MAX`]; 0 only acknowledges.
    pub events_max: usize,
    /// `returnImmediately`.
    pub returns_immediately: bool,
    /// `ack`, by `jti`.
    pub acknowledged: BTreeSet<String>,
    /// `setErrs`, by `jti`.
    pub refused: BTreeMap<String, RefusedSet>,
}

/// Why a receiver refused a token (RFC 8935 §2.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedSet {
    /// Error code.
    pub err: String,
    /// For people; printable, cut at its limit.
    pub description: String,
}

impl PollRequest {
    /// Validates.
    pub fn parse(value: &Value) -> Result<Self, Error> {
        let fields = value.as_object().ok_or(invalid("body", "must be an object"))?;
        let events_max = match fields.get("maxEvents") {
            None => limits::POLL_EVENTS_MAX,
            Some(number) => {
                let number =
                    number.as_u64().ok_or(invalid("maxEvents", "must be a whole number of 0 or more"))?;
                usize::try_from(number).unwrap_or(usize::MAX).min(limits::POLL_EVENTS_MAX)
            }
        };
        let returns_immediately = match fields.get("returnImmediately") {
            None => false,
            Some(value) => value.as_bool().ok_or(invalid("returnImmediately", "must be true or false"))?,
        };
        let acknowledged = acknowledged(fields)?;
        let refused = refused(fields)?;
        if refused.keys().any(|jti| acknowledged.contains(jti)) {
            return Err(invalid("setErrs", "must not name a token that ack names"));
        }
        Ok(Self { events_max, returns_immediately, acknowledged, refused })
    }
}

fn acknowledged(fields: &Map<String, Value>) -> Result<BTreeSet<String>, Error> {
    let Some(value) = fields.get("ack") else { return Ok(BTreeSet::new()) };
    let fault = || invalid("ack", "must be an array of at most 1000 strings");
    let list = value.as_array().filter(|list| list.len() <= limits::POLL_OUTCOMES_MAX).ok_or_else(fault)?;
    list.iter().map(|jti| jti.as_str().map(str::to_owned).ok_or_else(fault)).collect()
}

fn refused(fields: &Map<String, Value>) -> Result<BTreeMap<String, RefusedSet>, Error> {
    let Some(value) = fields.get("setErrs") else { return Ok(BTreeMap::new()) };
    let object = value.as_object().filter(|object| object.len() <= limits::POLL_OUTCOMES_MAX);
    let object = object.ok_or(invalid("setErrs", "must be an object of at most 1000 fields"))?;
    // A `jti` is never quoted in an error: it may contain anything.
    let parse = |(jti, value): (&String, &Value)| {
        let fields = value.as_object().ok_or(invalid("setErrs", "each field must be an object"))?;
        let err = fields
            .get("err")
            .and_then(Value::as_str)
            .filter(|err| text::is_printable(err, limits::SET_ERR_BYTES_MAX));
        let err = err.ok_or(invalid("setErrs.err", "must be 1 to 64 printable ASCII characters"))?;
        let description = match fields.get("description") {
            None => "",
            Some(text) => text.as_str().ok_or(invalid("setErrs.description", "must be a string"))?,
        };
        Ok((jti.clone(), RefusedSet { err: err.to_owned(), description: printable(description) }))
    };
    object.iter().map(parse).collect()
}

/// Replaces the characters that act on a terminal or a log: control characters and those that change the direction of
/// writing. Cuts at the limit.
fn printable(text: &str) -> String {
    let mut printable = String::new();
    for character in text.chars() {
        let is_directional =
            matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let character = if character.is_control() || is_directional { '?' } else { character };
        if printable.len() + character.len_utf8() > limits::SET_ERR_DESCRIPTION_BYTES_MAX {
            break;
        }
        printable.push(character);
    }
    printable
}

const fn invalid(field: &'static str, rule: &'static str) -> Error {
    Error::Invalid { field, rule }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value) -> PollRequest {
        PollRequest::parse(value).unwrap_or_else(|error| panic!("{value}: {error}"))
    }

    /// The invalid field, and its error.
    fn fault(value: &Value) -> (&'static str, String) {
        match PollRequest::parse(value) {
            Err(error @ Error::Invalid { field, .. }) => (field, error.to_string()),
            other => panic!("{value}: {other:?}"),
        }
    }

    fn jtis(count: usize) -> Vec<String> {
        (0..count).map(|at| at.to_string()).collect()
    }

    #[test]
    fn absent_fields_have_the_standard_defaults() {
        let nothing = PollRequest { events_max: limits::POLL_EVENTS_MAX, ..PollRequest::default() };
        assert_eq!(read(&json!({})), nothing);
        assert_eq!(read(&json!({"ack": [], "setErrs": {}, "unknown": [1], "max_events": 3})), nothing);
    }

    #[test]
    fn every_field_is_parsed() {
        let value = json!({
            "maxEvents": 3, "returnImmediately": true, "ack": ["a", "b", "a"],
            "setErrs": {"c": {"err": "invalid_key", "description": "schlüssel?\n\u{202e}"}, "d": {"err": "x", "more": 1}},
        });
        let refused =
            |err: &str, description: &str| RefusedSet { err: err.into(), description: description.into() };
        let request = PollRequest {
            events_max: 3,
            returns_immediately: true,
            acknowledged: BTreeSet::from(["a".to_owned(), "b".to_owned()]),
            refused: BTreeMap::from([
                ("c".to_owned(), refused("invalid_key", "schlüssel???")),
                ("d".to_owned(), refused("x", "")),
            ]),
        };
        assert_eq!(read(&value), request);
    }

    #[test]
    fn max_events_beyond_limit_is_capped() {
        for (requested, expected) in [
            (json!(0), 0),
            (json!(1), 1),
            (json!(limits::POLL_EVENTS_MAX), limits::POLL_EVENTS_MAX),
            (json!(limits::POLL_EVENTS_MAX + 1), limits::POLL_EVENTS_MAX),
            (json!(u64::MAX), limits::POLL_EVENTS_MAX),
        ] {
            assert_eq!(read(&json!({"maxEvents": requested})).events_max, expected, "{requested}");
        }
    }

    #[test]
    fn each_invalid_field_is_named_with_its_rule() {
        for bad in [json!([]), json!("x"), json!(null), json!([{"maxEvents": 1}])] {
            assert_eq!(fault(&bad), ("body", "body: must be an object".to_owned()));
        }
        for bad in [json!(-1), json!(1.5), json!("1"), json!(null), json!([]), json!(1e300)] {
            let error = "maxEvents: must be a whole number of 0 or more".to_owned();
            assert_eq!(fault(&json!({"maxEvents": bad})), ("maxEvents", error));
        }
        for bad in [json!(0), json!("true"), json!(null)] {
            let error = "returnImmediately: must be true or false".to_owned();
            assert_eq!(fault(&json!({"returnImmediately": bad})), ("returnImmediately", error));
        }
        for bad in [json!("a"), json!({}), json!(null), json!([1]), json!(["a", null]), json!([["a"]])] {
            let error = "ack: must be an array of at most 1000 strings".to_owned();
            assert_eq!(fault(&json!({"ack": bad})), ("ack", error));
        }
        for bad in [json!([]), json!("a"), json!(null)] {
            let error = "setErrs: must be an object of at most 1000 fields".to_owned();
            assert_eq!(fault(&json!({"setErrs": bad})), ("setErrs", error));
        }
        for (bad, field) in [
            (json!("x"), "setErrs"),
            (json!(null), "setErrs"),
            (json!({}), "setErrs.err"),
            (json!({"err": ""}), "setErrs.err"),
            (json!({"err": 1}), "setErrs.err"),
            (json!({"err": "a b"}), "setErrs.err"),
            (json!({"err": "schlüssel"}), "setErrs.err"),
            (json!({"err": "x".repeat(limits::SET_ERR_BYTES_MAX + 1)}), "setErrs.err"),
            (json!({"err": "x", "description": 1}), "setErrs.description"),
            (json!({"err": "x", "description": null}), "setErrs.description"),
        ] {
            assert_eq!(fault(&json!({"setErrs": {"a": bad}})).0, field, "{bad}");
        }
        let both = json!({"ack": ["a", "b"], "setErrs": {"b": {"err": "x"}}});
        assert_eq!(fault(&both).1, "setErrs: must not name a token that ack names");
    }

    #[test]
    fn outcomes_are_limited() {
        let max = limits::POLL_OUTCOMES_MAX;
        assert_eq!(read(&json!({"ack": jtis(max)})).acknowledged.len(), max);
        assert_eq!(fault(&json!({"ack": jtis(max + 1)})).0, "ack");
        let errors = |count| {
            let errors: Map<_, _> = jtis(count).into_iter().map(|jti| (jti, json!({"err": "x"}))).collect();
            json!({"setErrs": errors})
        };
        assert_eq!(read(&errors(max)).refused.len(), max);
        assert_eq!(fault(&errors(max + 1)).0, "setErrs");
    }

    #[test]
    fn long_description_is_cut_between_characters() {
        let max = limits::SET_ERR_DESCRIPTION_BYTES_MAX;
        let cut = |text: String| {
            let request = read(&json!({"setErrs": {"a": {"err": "x", "description": text}}}));
            request.refused["a"].description.clone()
        };
        assert_eq!(cut("a".repeat(max)), "a".repeat(max));
        assert_eq!(cut("a".repeat(max + 1)), "a".repeat(max));
        assert_eq!(cut(format!("{}ü", "a".repeat(max - 1))), "a".repeat(max - 1));
        assert_eq!(
            read(&json!({"setErrs": {"a": {"err": "x".repeat(limits::SET_ERR_BYTES_MAX)}}})).refused.len(),
            1
        );
    }
}
