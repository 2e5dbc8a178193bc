//! The only parser of JSON from outside.
//!
//! Duplicate names, trailing data, invalid UTF-8 and nesting deeper than [`limits::JSON_DEPTH_MAX`] are refused
//! before any type is filled (contract §1), so no two parts of the product can read the same bytes differently.

use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::limits;

/// Reason why a document is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// JSON is UTF-8 (RFC 8259 §8.1).
    #[error("body is not UTF-8")]
    NotUtf8,
    /// Invalid JSON, a duplicate field, trailing data or too deep nesting.
    #[error("body is not acceptable JSON: {0}")]
    Syntax(String),
    /// A field is missing, has a wrong type, or is unknown where unknown fields are refused.
    #[error("{path}: {rule}")]
    Field {
        /// Path of the field, for example `execution_scope.htm`; `body` for the document itself.
        path: String,
        /// The rule that it breaks.
        rule: String,
    },
}

/// Parses a document strictly.
pub fn parse(bytes: &[u8]) -> Result<Value, Error> {
    let text = std::str::from_utf8(bytes).map_err(|_| Error::NotUtf8)?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Strict { depth: 0 }
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| Error::Syntax(error.to_string()))?;
    Ok(value)
}

/// Parses a document that must be an object into `T`, strictly; an error names the field and the rule. Without the
/// check for an object, an array would fill a struct too, by position.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    from_value(Value::Object(parse_object(bytes)?))
}

/// Parses a document that must be an object, strictly.
pub fn parse_object(bytes: &[u8]) -> Result<Map<String, Value>, Error> {
    match parse(bytes)? {
        Value::Object(fields) => Ok(fields),
        _ => Err(Error::Field { path: "body".to_owned(), rule: "must be an object".to_owned() }),
    }
}

/// Fills `T` with fields of an object whose other fields are skipped and not checked: a hint, before
/// [`parse`] decides about the whole document. `None` if it is no object or `T` cannot be filled.
#[must_use]
pub fn peek<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    // An array would fill a struct too, by position.
    bytes.trim_ascii_start().starts_with(b"{").then(|| serde_json::from_slice(bytes).ok())?
}

/// Fills `T` from a value that [`parse`] returned; an error is an [`Error::Field`].
pub fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        Error::Field {
            path: match path.as_str() {
                "." => "body".to_owned(),
                long if long.len() > NAME_BYTES_MAX => "a field".to_owned(),
                _ => path,
            },
            rule: without_value(&error.inner().to_string()),
        }
    })
}

/// serde's message without the value that it repeats: a misplaced token must not appear in an error.
fn without_value(rule: &str) -> String {
    let repeats_a_value = ["invalid type: ", "invalid value: ", "invalid length "];
    let names_a_field = ["unknown field ", "unknown variant "];
    let begins = |with: &[&str]| with.iter().any(|words| rule.starts_with(words));
    match rule.rsplit_once(", expected ") {
        Some((_, expected)) if begins(&repeats_a_value) => format!("must be {}", in_json_words(expected)),
        Some((_, expected)) if begins(&names_a_field) && rule.len() - expected.len() > NAME_BYTES_MAX => {
            format!("unknown field, expected {expected}")
        }
        _ => match rule.strip_prefix("unknown variant ") {
            Some(value) => format!("unknown value {value}"),
            None => rule.to_owned(),
        },
    }
}

/// The name that serde gives an expected type, in the words of JSON.
fn in_json_words(expected: &str) -> &str {
    match expected {
        "a sequence" => "an array",
        "a map" => "an object",
        "any valid JSON value" => "a value",
        "option" => "a value or null",
        "a string or bytes" | "a borrowed string" | "a character" => "a string",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number of 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "unit" => "null",
        _ if expected.starts_with("struct ") => "an object",
        _ if expected.starts_with("a tuple of ") => "an array",
        _ if expected.starts_with("enum ") || expected.starts_with("variant ") => "one of the known values",
        _ => expected,
    }
}

/// Maximum length of a field name in an error; a longer one may be a misplaced token.
const NAME_BYTES_MAX: usize = 64;

/// The canonical text of a value (JSON Canonicalization Scheme, RFC 8785): equal for documents with the same fields,
/// regardless of their order and escapes. As RFC 8785 §3.2.2.3 requires, every number is an IEEE 754 double:
/// integers beyond 2^53 that round to the same double have the same text.
#[must_use]
pub fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write_canonical(value, &mut text);
    text
}

// Recursion is bounded: so is the depth of a value that [`parse`] returned.
fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Number(number) => text.push_str(&canonical_number(number.as_f64().unwrap_or_default())),
        Value::Array(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                text.push_str(if at > 0 { "," } else { "" });
                write_canonical(item, text);
            }
            text.push(']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            // RFC 8785 §3.2.3 sorts by UTF-16 code units, which is not the order of UTF-8 bytes.
            fields.sort_by(|(one, _), (other, _)| one.encode_utf16().cmp(other.encode_utf16()));
            text.push('{');
            for (at, (name, value)) in fields.into_iter().enumerate() {
                text.push_str(if at > 0 { "," } else { "" });
                write_canonical(&Value::from(name.as_str()), text);
                text.push(':');
                write_canonical(value, text);
            }
            text.push('}');
        }
        // serde_json escapes exactly what RFC 8785 §3.2.2.2 requires.
        Value::Null | Value::Bool(_) | Value::String(_) => text.push_str(&value.to_string()),
    }
}

/// `Number::toString` of ECMAScript (RFC 8785 §3.2.2.3). `number` is finite.
fn canonical_number(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    // The shortest digits that parse to this number: `d.ddde-x`. Of two equally close, ECMAScript takes the even one,
    // which formatting with an exact precision yields.
    let shortest = format!("{:e}", number.abs());
    let decimals = shortest.bytes().take_while(|byte| *byte != b'e').filter(u8::is_ascii_digit).count() - 1;
    let even = format!("{:.decimals$e}", number.abs());
    let shortest = if even.parse() == Ok(number.abs()) { even } else { shortest };
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let digits = mantissa.replace('.', "");
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or_default());
    // Number of digits before the decimal point.
    let whole = usize::try_from(exponent + 1).unwrap_or_default();
    let text = match exponent {
        0..=20 if digits.len() <= whole => {
            let missing = whole - digits.len();
            format!("{digits}{}", "0".repeat(missing))
        }
        0..=20 => format!("{}.{}", &digits[..whole], &digits[whole..]),
        -6..=-1 => format!("0.{}{digits}", zeros(-1 - exponent)),
        _ if digits.len() == 1 => format!("{digits}e{exponent:+}"),
        _ => format!("{}.{}e{exponent:+}", &digits[..1], &digits[1..]),
    };
    if number < 0.0 { format!("-{text}") } else { text }
}

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
        let mut fields = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let value = access.next_value_seed(self.inner()?)?;
            if fields.contains_key(&name) {
                return Err(A::Error::custom(if name.len() > NAME_BYTES_MAX {
                    "duplicate field".to_owned()
                } else {
                    format!("duplicate field {name:?}")
                }));
            }
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
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
    fn duplicate_field_at_any_depth_is_refused() {
        assert!(refusal(r#"{"a":1,"a":1}"#).starts_with("duplicate field \"a\""));
        assert!(refusal(r#"[{"x":{"a":1,"\u0061":2}}]"#).starts_with("duplicate field \"a\""));
    }

    #[test]
    fn trailing_data_is_refused() {
        assert!(refusal("{} {}").contains("trailing"));
    }

    #[test]
    fn nesting_over_the_limit_is_refused() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(limits::JSON_DEPTH_MAX).as_bytes()).is_ok());
        assert!(refusal(&nested(limits::JSON_DEPTH_MAX + 1)).contains("nested deeper"));
        assert!(refusal(&nested(1000)).contains("nested deeper"));
    }

    #[test]
    fn invalid_utf8_is_refused() {
        assert_eq!(parse(b"{\"a\":\"\xff\"}"), Err(Error::NotUtf8));
    }

    /// RFC 8785 §3.2.2 and §3.2.4: the input, and the bytes that it must become.
    #[test]
    fn rfc_8785_document_is_canonicalised() {
        let input = r#"{
            "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
            "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
            "literals": [null, true, false]
        }"#;
        let expected = [
            r#"{"literals":[null,true,false],"#,
            r#""numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"#,
            r#""string":"€$\u000f\nA'B\"\\\\\"/"}"#,
        ];
        assert_eq!(canonical(&parse(input.as_bytes()).expect("JSON")), expected.concat());
    }

    /// RFC 8785 §3.2.3: the order of the names is that of UTF-16 code units.
    #[test]
    fn rfc_8785_names_are_sorted_by_utf16() {
        let input = r#"{
            "\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh",
            "1": "One", "\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control",
            "\u00f6": "Latin Small Letter O With Diaeresis"
        }"#;
        let expected = [
            "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u{80}\":\"Control\",",
            "\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",",
            "\"😀\":\"Emoji: Grinning Face\",\"\u{fb33}\":\"Hebrew Letter Dalet With Dagesh\"}",
        ];
        assert_eq!(canonical(&parse(input.as_bytes()).expect("JSON")), expected.concat());
    }

    /// RFC 8785 appendix B, the finite numbers.
    #[test]
    fn rfc_8785_numbers_are_written_as_ecmascript_does() {
        for (bits, expected) in [
            (0x0000_0000_0000_0000, "0"),
            (0x8000_0000_0000_0000_u64, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5554, "333333333.33333325"),
            (0x41b3_de43_5555_5555, "333333333.3333333"),
            (0x41b3_de43_5555_5556, "333333333.3333334"),
            (0x41b3_de43_5555_5557, "333333333.33333343"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ] {
            assert_eq!(canonical_number(f64::from_bits(bits)), expected, "{bits:016x}");
        }
        assert_eq!(canonical(&parse(b"[56.0, 10, -1, 1e2]").expect("JSON")), "[56,10,-1,100]");
    }

    #[test]
    fn wrong_type_names_the_path_of_the_field() {
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
        assert!(matches!(&error, Error::Field { path, .. } if path == "execution_scope.htm"), "{error}");
    }

    #[test]
    fn error_contains_no_value_and_no_long_name() {
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
        assert_eq!(
            read::<Scope>(br#"{"htm":"x"}"#).expect_err("refused").to_string(),
            "htm: must be a whole number from 0 to 255"
        );
        assert_eq!(without_value("unknown variant `x`, expected `y`"), "unknown value `x`, expected `y`");
        assert_eq!(
            without_value("invalid type: null, expected enum Kind"),
            "must be one of the known values"
        );
        let unknown = read::<Scope>(br#"{"htx":1}"#).expect_err("refused").to_string();
        assert!(unknown.contains("htx"), "{unknown}");
    }
}
