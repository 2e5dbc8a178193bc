//! Execution scope of a verified token (contract §3, `execution_scope`).

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::constant_time;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, URL_SAFE_NO_PAD};

use super::Error;
use super::claims::Claims;
use crate::limits;

/// Padding is optional; stray bits and other characters are refused.
const BASE64URL: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// SHA-256 of a request body; base64url as text.
#[derive(Clone, Copy, Debug)]
pub struct BodyHash([u8; 32]);

impl BodyHash {
    /// Constant-time comparison.
    #[must_use]
    pub fn equals(&self, other: &Self) -> bool {
        constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl FromStr for BodyHash {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bytes = BASE64URL.decode(text).map_err(|_| Error::ClaimMalformed("inp_hash"))?;
        bytes.try_into().map(Self).map_err(|_| Error::ClaimMalformed("inp_hash"))
    }
}

impl fmt::Display for BodyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

/// The claims of an execution scope. Every claim that is present binds; which claims are required is a setting of the
/// tool.
#[derive(Clone, Debug)]
pub struct Execution {
    pub htm: Option<String>,
    pub htu: Option<String>,
    /// Accepted once, when the token was minted.
    pub nonce: Option<String>,
    pub inp_hash: Option<BodyHash>,
    pub exec_act: Option<String>,
    /// Object of the operation.
    pub target: Option<String>,
}

impl Execution {
    const CLAIMS: [&str; 6] = ["htm", "htu", "nonce", "inp_hash", "exec_act", "target"];

    /// Whether any claim of an execution scope is present, well formed or not: in doubt the token is bound.
    pub(super) fn is_in(claims: &Claims) -> bool {
        Self::CLAIMS.iter().any(|name| claims.others.contains_key(*name))
    }

    /// The execution scope, if any.
    ///
    /// # Errors
    /// [`Error::ClaimMalformed`] for the first claim of a wrong type or beyond its limit.
    pub(super) fn read(claims: &Claims) -> Result<Option<Self>, Error> {
        if !Self::is_in(claims) {
            return Ok(None);
        }
        Ok(Some(Self {
            htm: claims.text("htm", limits::OPAQUE_BYTES_MAX)?,
            htu: claims.text("htu", limits::URI_BYTES_MAX)?,
            nonce: claims.text("nonce", limits::OPAQUE_BYTES_MAX)?,
            inp_hash: claims
                .text("inp_hash", limits::OPAQUE_BYTES_MAX)?
                .map(|text| text.parse())
                .transpose()?,
            exec_act: claims.text("exec_act", limits::OPAQUE_BYTES_MAX)?,
            target: claims.text("target", limits::URI_BYTES_MAX)?,
        }))
    }
}
