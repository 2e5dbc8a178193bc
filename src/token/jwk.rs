//! Readers for the fields of a public JWK (RFC 7517 §4, RFC 7518 §6). Which keys are accepted for which purpose is in
//! [`super::key_set`] and [`super::encryption_key`].

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::encoding::{decode, sha256};

/// Fields that make a key private or symmetric (RFC 7518 §6.2.2, §6.3.2, §6.4; RFC 9964 for `priv`).
pub(super) const SECRET_FIELDS: [&str; 9] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k", "priv"];

/// The named field is absent, of a wrong type or length, or not base64url.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub &'static str);

/// An optional string field.
pub(super) fn optional_text<'j>(
    jwk: &'j Map<String, Value>,
    name: &'static str,
) -> Result<Option<&'j str>, Malformed> {
    jwk.get(name).map(|value| value.as_str().ok_or(Malformed(name))).transpose()
}

/// A required base64url field.
pub(super) fn bytes(jwk: &Map<String, Value>, name: &'static str) -> Result<Vec<u8>, Malformed> {
    let text = optional_text(jwk, name)?.ok_or(Malformed(name))?;
    decode(text).map_err(|_| Malformed(name))
}

/// A required base64url field of a fixed length.
pub(super) fn fixed_bytes(
    jwk: &Map<String, Value>,
    name: &'static str,
    length: usize,
) -> Result<Vec<u8>, Malformed> {
    // RFC 7518 §6.2.1.2: coordinates have the full length of the field element.
    bytes(jwk, name).and_then(|bytes| if bytes.len() == length { Ok(bytes) } else { Err(Malformed(name)) })
}

/// An uncompressed point (SEC 1 §2.3.3), not checked to be on its curve.
pub(super) fn uncompressed_point(
    jwk: &Map<String, Value>,
    coordinate_bytes: usize,
) -> Result<Vec<u8>, Malformed> {
    let (x, y) = (fixed_bytes(jwk, "x", coordinate_bytes)?, fixed_bytes(jwk, "y", coordinate_bytes)?);
    Ok([&[4], x.as_slice(), y.as_slice()].concat())
}

/// RFC 7638 §3: the required fields only, in lexicographic order, without white space. Their values are base64url or
/// fixed words, so none needs escaping.
pub(super) fn thumbprint(jwk: &Map<String, Value>, required: &[&'static str]) -> Result<String, Malformed> {
    let mut fields = Vec::with_capacity(required.len());
    for &name in required {
        let value = optional_text(jwk, name)?.ok_or(Malformed(name))?;
        fields.push(format!("\"{name}\":\"{value}\""));
    }
    let canonical = format!("{{{}}}", fields.join(","));
    Ok(URL_SAFE_NO_PAD.encode(sha256(canonical.as_bytes())))
}
