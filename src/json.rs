//! The only reader of JSON that came from outside.
//!
//! One reading of every document: duplicate members, trailing data, invalid UTF-8 and nesting
//! beyond [`limits::JSON_DEPTH_MAX`] are refused before any type is filled (contract §1), so no
//! two parts of the product can read two meanings into the same bytes.

use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::limits;

/// Why a document was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// JSON is UTF-8 (RFC 8259 §8.1).
    #[error("body is not UTF-8")]
    NotUtf8,
    /// Not a JSON document, a duplicate member, trailing data or too deep a nesting.
    #[error("body is not acceptable JSON: {0}")]
    Syntax(String),
    /// A member has a wrong type, is missing, or is not known where unknown members are refused.
    #[error("{path}: {rule}")]
    Member {
        /// Where, for example `execution_scope.htm`; `body` for the document itself.
        path: String,
        /// What the rule is.
        rule: String,
    },
}

/// Reads a document into a value, strictly.
///
/// # Errors
/// As [`Error`] says.
pub fn parse(bytes: &[u8]) -> Result<Value, Error> {
    let text = std::str::from_utf8(bytes).map_err(|_| Error::NotUtf8)?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Strict { depth: 0 }
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| Error::Syntax(error.to_string()))?;
    Ok(value)
}

/// Reads a document that must be an object into `T`, strictly; an error names the member and the rule. A struct
/// could be filled from an array as well, member by member.
///
/// # Errors
/// As [`Error`] says.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    from_value(Value::Object(parse_object(bytes)?))
}

/// Reads a document that must be an object, strictly.
///
/// # Errors
/// As [`Error`] says.
pub fn parse_object(bytes: &[u8]) -> Result<Map<String, Value>, Error> {
    match parse(bytes)? {
        Value::Object(members) => Ok(members),
        _ => Err(Error::Member { path: "body".to_owned(), rule: "must be an object".to_owned() }),
    }
}

/// Fills `T` from a value that [`parse`] returned; an error names the member and the rule.
///
/// # Errors
/// [`Error::Member`].
pub fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        Error::Member {
            path: match path.as_str() {
                "." => "body".to_owned(),
                long if long.len() > NAME_SHOWN_BYTES_MAX => "a member".to_owned(),
                _ => path,
            },
            rule: without_value(&error.inner().to_string()),
        }
    })
}

/// serde's message without the value it repeats, which may be a token in the wrong place.
fn without_value(rule: &str) -> String {
    let repeats_a_value = ["invalid type: ", "invalid value: ", "invalid length "];
    let names_a_member = ["unknown field ", "unknown variant "];
    let begins = |with: &[&str]| with.iter().any(|words| rule.starts_with(words));
    match rule.rsplit_once(", expected ") {
        Some((_, expected)) if begins(&repeats_a_value) => format!("must be {expected}"),
        Some((_, expected))
            if begins(&names_a_member) && rule.len() - expected.len() > NAME_SHOWN_BYTES_MAX =>
        {
            format!("unknown member, expected {expected}")
        }
        _ => rule.to_owned(),
    }
}

/// A longer name of a member is not repeated: it may be a token in the wrong place.
const NAME_SHOWN_BYTES_MAX: usize = 64;

struct Strict {
    depth: usize,
}

impl Strict {
    fn inner<E: serde::de::Error>(&self) -> Result<Self, E> {
        if self.depth >= limits::JSON_DEPTH_MAX {
            return Err(E::custom(format_args!("nested deeper than {}", limits::JSON_DEPTH_MAX)));
        }
        Ok(Self { depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(self.inner()?)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let value = access.next_value_seed(self.inner()?)?;
            if members.contains_key(&name) {
                return Err(A::Error::custom(if name.len() > NAME_SHOWN_BYTES_MAX {
                    "duplicate member".to_owned()
                } else {
                    format!("duplicate member {name:?}")
                }));
            }
            members.insert(name, value);
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        match parse(text.as_bytes()) {
            Err(Error::Syntax(rule)) => rule,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn refuses_a_duplicate_member_at_any_depth() {
        assert!(refusal(r#"{"a":1,"a":1}"#).starts_with("duplicate member \"a\""));
        assert!(refusal(r#"[{"x":{"a":1,"\u0061":2}}]"#).starts_with("duplicate member \"a\""));
    }

    #[test]
    fn refuses_trailing_data() {
        assert!(refusal("{} {}").contains("trailing"));
    }

    #[test]
    fn refuses_nesting_beyond_the_limit_and_accepts_it_at_the_limit() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(limits::JSON_DEPTH_MAX).as_bytes()).is_ok());
        assert!(refusal(&nested(limits::JSON_DEPTH_MAX + 1)).contains("nested deeper"));
        assert!(refusal(&nested(1000)).contains("nested deeper"));
    }

    #[test]
    fn refuses_bytes_that_are_not_utf8() {
        assert_eq!(parse(b"{\"a\":\"\xff\"}"), Err(Error::NotUtf8));
    }

    #[test]
    fn names_the_member_and_the_rule() {
        #[derive(Debug, serde::Deserialize)]
        struct Inner {
            #[expect(dead_code, reason = "only its type matters")]
            htm: String,
        }
        #[derive(Debug, serde::Deserialize)]
        struct Outer {
            #[expect(dead_code, reason = "only its type matters")]
            execution_scope: Inner,
        }
        let error = read::<Outer>(br#"{"execution_scope":{"htm":1}}"#).expect_err("htm is a number");
        assert!(matches!(&error, Error::Member { path, .. } if path == "execution_scope.htm"), "{error}");
    }

    #[test]
    fn an_error_never_repeats_a_value_or_a_long_name() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Scope {
            #[serde(default)]
            #[expect(dead_code, reason = "only its type matters")]
            htm: u8,
        }
        let secret = "eyJhbGciOiJFUzI1NiJ9".repeat(5);
        for text in [
            format!("\"{secret}\""),
            format!("{{\"htm\":\"{secret}\"}}"),
            format!("{{\"{secret}\":1}}"),
            format!("{{\"{secret}\":1,\"{secret}\":2}}"),
        ] {
            let error = read::<Scope>(text.as_bytes()).expect_err("refused").to_string();
            assert!(!error.contains("eyJ"), "{error}");
        }
        assert_eq!(read::<Scope>(br#"{"htm":"x"}"#).expect_err("refused").to_string(), "htm: must be u8");
        let unknown = read::<Scope>(br#"{"htx":1}"#).expect_err("refused").to_string();
        assert!(unknown.contains("htx"), "{unknown}");
    }
}
