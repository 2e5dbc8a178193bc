//! How the members of a public JWK are read, whatever the key is for (RFC 7517 §4, RFC 7518 §6).
//!
//! Which keys are good for what is decided in [`super::key_set`] and [`super::encryption_key`].

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::jws;

/// The members that make a key private or symmetric (RFC 7518 §6.2.2, §6.3.2, §6.4; RFC 9964 for
/// `priv`).
pub(super) const SECRET_MEMBERS: [&str; 9] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k", "priv"];

/// A member is missing, of the wrong type or length, or not base64url.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub &'static str);

/// The text of a member that may be absent.
///
/// # Errors
/// [`Malformed`] if it is something else than text.
pub(super) fn optional_text<'j>(
    jwk: &'j Map<String, Value>,
    name: &'static str,
) -> Result<Option<&'j str>, Malformed> {
    jwk.get(name).map(|value| value.as_str().ok_or(Malformed(name))).transpose()
}

/// The bytes of a member that must be there.
///
/// # Errors
/// [`Malformed`] if it is absent or not base64url.
pub(super) fn bytes(jwk: &Map<String, Value>, name: &'static str) -> Result<Vec<u8>, Malformed> {
    let text = optional_text(jwk, name)?.ok_or(Malformed(name))?;
    jws::decode(text).map_err(|_| Malformed(name))
}

/// The same, of a fixed length.
///
/// # Errors
/// [`Malformed`] if it is absent, not base64url, or longer or shorter.
pub(super) fn fixed_bytes(
    jwk: &Map<String, Value>,
    name: &'static str,
    length: usize,
) -> Result<Vec<u8>, Malformed> {
    // RFC 7518 §6.2.1.2: coordinates have the full length of the field.
    bytes(jwk, name).and_then(|bytes| if bytes.len() == length { Ok(bytes) } else { Err(Malformed(name)) })
}

/// An uncompressed point (SEC 1 §2.3.3), which may lie anywhere.
///
/// # Errors
/// [`Malformed`] if a coordinate is.
pub(super) fn uncompressed_point(
    jwk: &Map<String, Value>,
    coordinate_bytes: usize,
) -> Result<Vec<u8>, Malformed> {
    let (x, y) = (fixed_bytes(jwk, "x", coordinate_bytes)?, fixed_bytes(jwk, "y", coordinate_bytes)?);
    Ok([&[4], x.as_slice(), y.as_slice()].concat())
}

/// RFC 7638 §3: the required members only, which are given in lexicographic order, no white space. The
/// values are base64url or fixed words, so none needs escaping.
///
/// # Errors
/// [`Malformed`] if one is absent or not text.
pub(super) fn thumbprint(jwk: &Map<String, Value>, required: &[&'static str]) -> Result<String, Malformed> {
    let mut members = Vec::with_capacity(required.len());
    for &name in required {
        let value = optional_text(jwk, name)?.ok_or(Malformed(name))?;
        members.push(format!("\"{name}\":\"{value}\""));
    }
    let canonical = format!("{{{}}}", members.join(","));
    Ok(URL_SAFE_NO_PAD.encode(jws::sha256(canonical.as_bytes())))
}
