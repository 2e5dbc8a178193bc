//! Base64url and SHA-256, as JOSE uses them.

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::Error;

/// Unpadded base64url without stray bits in the last character (RFC 7515 §2).
pub(super) fn decode(text: &str) -> Result<Vec<u8>, Error> {
    URL_SAFE_NO_PAD.decode(text).map_err(|_| Error::NotCompact)
}

pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    sha256_of(&[bytes])
}

/// SHA-256 of the concatenated parts.
pub(super) fn sha256_of(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(part);
    }
    let mut output = [0; 32];
    output.copy_from_slice(context.finish().as_ref());
    output
}
