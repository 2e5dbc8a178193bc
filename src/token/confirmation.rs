//! Proof of possession by client certificate: the claim `cnf` with `x5t#S256` (RFC 7800 §3.1, RFC 8705 §3.1).

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;

use super::Error;
use super::claims::Claims;

/// The only member of `cnf` that is minted and understood.
const MEMBER: &str = "x5t#S256";

/// SHA-256 of a certificate in DER, 32 bytes; base64url as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CertificateDigest([u8; 32]);

impl CertificateDigest {
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl FromStr for CertificateDigest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| Error::ClaimMalformed("cnf"))?;
        bytes.try_into().map(Self).map_err(|_| Error::ClaimMalformed("cnf"))
    }
}

impl fmt::Display for CertificateDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

/// `cnf` as minted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Confirmation {
    /// SHA-256 of the DER certificate in base64url.
    #[serde(rename = "x5t#S256")]
    pub certificate_digest: String,
}

impl From<CertificateDigest> for Confirmation {
    fn from(digest: CertificateDigest) -> Self {
        Self { certificate_digest: digest.to_string() }
    }
}

/// Whether the token is certificate-bound, after checking that `presented`, the certificate of its connection, is the
/// one it is bound to. An unknown confirmation method is not satisfied.
///
/// # Errors
/// [`Error::ClaimMalformed`], [`Error::NotItsHolder`].
pub(super) fn check(claims: &Claims, presented: Option<&CertificateDigest>) -> Result<bool, Error> {
    let Some(cnf) = claims.others.get("cnf") else { return Ok(false) };
    let fields = cnf.as_object().filter(|fields| !fields.is_empty());
    let fields = fields.ok_or(Error::ClaimMalformed("cnf"))?;
    let Some(bound_to) = fields.get(MEMBER).filter(|_| fields.len() == 1) else {
        return Err(Error::NotItsHolder);
    };
    let bound_to: CertificateDigest =
        bound_to.as_str().ok_or(Error::ClaimMalformed("cnf")).and_then(str::parse)?;
    if presented == Some(&bound_to) { Ok(true) } else { Err(Error::NotItsHolder) }
}
