//! What a receiver asks when it polls (RFC 8936 §2.2), checked on its own.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::Error;
use crate::{limits, text};

/// A poll. Members that RFC 8936 does not have are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// `maxEvents`, at most [`limits::POLL_EVENTS_MAX`]; 0 of a poll that only acknowledges.
    pub events_max: usize,
    /// `returnImmediately`.
    pub returns_immediately: bool,
    /// `ack`: what was received, by `jti`.
    pub acknowledged: BTreeSet<String>,
    /// `setErrs`: what was received and is no good, by `jti`.
    pub refused: BTreeMap<String, Refused>,
}

/// Why a receiver refused a token (RFC 8935 §2.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The code.
    pub err: String,
    /// For people; printable, and cut where it is too long.
    pub description: String,
}

impl Request {
    /// Checks the members.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn read(value: &Value) -> Result<Self, Error> {
        let members = value.as_object().ok_or(invalid("body", "must be an object"))?;
        let events_max = match members.get("maxEvents") {
            None => limits::POLL_EVENTS_MAX,
            Some(number) => {
                let number =
                    number.as_u64().ok_or(invalid("maxEvents", "must be a whole number of 0 or more"))?;
                usize::try_from(number).unwrap_or(usize::MAX).min(limits::POLL_EVENTS_MAX)
            }
        };
        let returns_immediately = match members.get("returnImmediately") {
            None => false,
            Some(value) => value.as_bool().ok_or(invalid("returnImmediately", "must be true or false"))?,
        };
        let acknowledged = acknowledged(members)?;
        let refused = refused(members)?;
        if refused.keys().any(|jti| acknowledged.contains(jti)) {
            return Err(invalid("setErrs", "must name no token that ack names"));
        }
        Ok(Self { events_max, returns_immediately, acknowledged, refused })
    }
}

fn acknowledged(members: &Map<String, Value>) -> Result<BTreeSet<String>, Error> {
    let Some(value) = members.get("ack") else { return Ok(BTreeSet::new()) };
    let fault = || invalid("ack", "must be an array of at most 1000 strings");
    let list = value.as_array().filter(|list| list.len() <= limits::POLL_OUTCOMES_MAX).ok_or_else(fault)?;
    list.iter().map(|jti| jti.as_str().map(str::to_owned).ok_or_else(fault)).collect()
}

fn refused(members: &Map<String, Value>) -> Result<BTreeMap<String, Refused>, Error> {
    let Some(value) = members.get("setErrs") else { return Ok(BTreeMap::new()) };
    let object = value.as_object().filter(|object| object.len() <= limits::POLL_OUTCOMES_MAX);
    let object = object.ok_or(invalid("setErrs", "must be an object of at most 1000 members"))?;
    // A `jti` is not repeated in a refusal: it may be anything.
    let read = |(jti, value): (&String, &Value)| {
        let said = value.as_object().ok_or(invalid("setErrs", "each member must be an object"))?;
        let err = said
            .get("err")
            .and_then(Value::as_str)
            .filter(|err| text::is_printable(err, limits::SET_ERR_BYTES_MAX));
        let err = err.ok_or(invalid("setErrs.err", "must be 1 to 64 printable ASCII characters"))?;
        let description = match said.get("description") {
            None => "",
            Some(text) => text.as_str().ok_or(invalid("setErrs.description", "must be a string"))?,
        };
        Ok((jti.clone(), Refused { err: err.to_owned(), description: printable(description) }))
    };
    object.iter().map(read).collect()
}

/// What a receiver wrote for people, in its own language, without what acts on a terminal or a log: control
/// characters and those that turn the direction of writing.
fn printable(text: &str) -> String {
    let mut kept = String::new();
    for character in text.chars() {
        let turns =
            matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let shown = if character.is_control() || turns { '?' } else { character };
        if kept.len() + shown.len_utf8() > limits::SET_ERR_DESCRIPTION_BYTES_MAX {
            break;
        }
        kept.push(shown);
    }
    kept
}

const fn invalid(field: &'static str, rule: &'static str) -> Error {
    Error::Invalid { field, rule }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value) -> Request {
        Request::read(value).unwrap_or_else(|error| panic!("{value}: {error}"))
    }

    /// The member at fault, and what is said of it.
    fn fault(value: &Value) -> (&'static str, String) {
        match Request::read(value) {
            Err(error @ Error::Invalid { field, .. }) => (field, error.to_string()),
            other => panic!("{value}: {other:?}"),
        }
    }

    fn jtis(count: usize) -> Vec<String> {
        (0..count).map(|at| at.to_string()).collect()
    }

    #[test]
    fn what_is_not_said_is_as_the_standard_has_it() {
        let nothing = Request { events_max: limits::POLL_EVENTS_MAX, ..Request::default() };
        assert_eq!(read(&json!({})), nothing);
        assert_eq!(read(&json!({"ack": [], "setErrs": {}, "unknown": [1], "max_events": 3})), nothing);
    }

    #[test]
    fn every_member_is_read() {
        let value = json!({
            "maxEvents": 3, "returnImmediately": true, "ack": ["a", "b", "a"],
            "setErrs": {"c": {"err": "invalid_key", "description": "schlüssel?\n\u{202e}"}, "d": {"err": "x", "more": 1}},
        });
        let refused =
            |err: &str, description: &str| Refused { err: err.into(), description: description.into() };
        let request = Request {
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
    fn more_events_than_the_limit_are_not_refused_but_not_given() {
        for (asked, given) in [
            (json!(0), 0),
            (json!(1), 1),
            (json!(limits::POLL_EVENTS_MAX), limits::POLL_EVENTS_MAX),
            (json!(limits::POLL_EVENTS_MAX + 1), limits::POLL_EVENTS_MAX),
            (json!(u64::MAX), limits::POLL_EVENTS_MAX),
        ] {
            assert_eq!(read(&json!({"maxEvents": asked})).events_max, given, "{asked}");
        }
    }

    #[test]
    fn each_bad_member_is_named_with_its_rule() {
        for bad in [json!([]), json!("x"), json!(null), json!([{"maxEvents": 1}])] {
            assert_eq!(fault(&bad), ("body", "body: must be an object".to_owned()));
        }
        for bad in [json!(-1), json!(1.5), json!("1"), json!(null), json!([]), json!(1e300)] {
            let said = "maxEvents: must be a whole number of 0 or more".to_owned();
            assert_eq!(fault(&json!({"maxEvents": bad})), ("maxEvents", said));
        }
        for bad in [json!(0), json!("true"), json!(null)] {
            let said = "returnImmediately: must be true or false".to_owned();
            assert_eq!(fault(&json!({"returnImmediately": bad})), ("returnImmediately", said));
        }
        for bad in [json!("a"), json!({}), json!(null), json!([1]), json!(["a", null]), json!([["a"]])] {
            let said = "ack: must be an array of at most 1000 strings".to_owned();
            assert_eq!(fault(&json!({"ack": bad})), ("ack", said));
        }
        for bad in [json!([]), json!("a"), json!(null)] {
            let said = "setErrs: must be an object of at most 1000 members".to_owned();
            assert_eq!(fault(&json!({"setErrs": bad})), ("setErrs", said));
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
        assert_eq!(fault(&both).1, "setErrs: must name no token that ack names");
    }

    #[test]
    fn as_many_outcomes_as_the_limit_are_taken_and_no_more() {
        let most = limits::POLL_OUTCOMES_MAX;
        assert_eq!(read(&json!({"ack": jtis(most)})).acknowledged.len(), most);
        assert_eq!(fault(&json!({"ack": jtis(most + 1)})).0, "ack");
        let errors = |count| {
            let errors: Map<_, _> = jtis(count).into_iter().map(|jti| (jti, json!({"err": "x"}))).collect();
            json!({"setErrs": errors})
        };
        assert_eq!(read(&errors(most)).refused.len(), most);
        assert_eq!(fault(&errors(most + 1)).0, "setErrs");
    }

    #[test]
    fn a_description_is_cut_where_it_is_too_long_and_never_inside_a_character() {
        let most = limits::SET_ERR_DESCRIPTION_BYTES_MAX;
        let cut = |text: String| {
            let request = read(&json!({"setErrs": {"a": {"err": "x", "description": text}}}));
            request.refused["a"].description.clone()
        };
        assert_eq!(cut("a".repeat(most)), "a".repeat(most));
        assert_eq!(cut("a".repeat(most + 1)), "a".repeat(most));
        assert_eq!(cut(format!("{}ü", "a".repeat(most - 1))), "a".repeat(most - 1));
        assert_eq!(
            read(&json!({"setErrs": {"a": {"err": "x".repeat(limits::SET_ERR_BYTES_MAX)}}})).refused.len(),
            1
        );
    }
}
