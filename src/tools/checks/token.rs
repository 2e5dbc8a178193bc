//! Check 1: the token is one of this fabric's, in force, and presented by its holder.

use std::fmt;
use std::sync::Arc;

use super::{Check, Failure, Outcome, Progress};
use crate::clock::Timestamp;
use crate::token::foreign::Credential;
use crate::token::issued::{self, Fabric};
use crate::token::jws::Compact;
use crate::token::key_set::VerifyingKey;
use crate::token::signature_cache::SignatureCache;
use crate::token::{CertificateDigest, Error};

/// A token that passed the first check. Its claims may be read from here on.
#[derive(Debug)]
pub struct Authentic(Progress);

impl Authentic {
    /// What the token says.
    #[must_use]
    pub fn credential(&self) -> &Credential {
        &self.0.credential
    }

    pub(super) fn into_progress(self) -> Progress {
        self.0
    }
}

/// What the signature of a token is judged by.
pub struct Keys<'k> {
    /// Who may have issued it.
    pub fabric: Fabric<'k>,
    /// The key under a `kid`, if what it signed is accepted now.
    pub key: &'k dyn Fn(&str) -> Option<Arc<VerifyingKey>>,
    /// Signatures verified before.
    pub signatures: &'k SignatureCache,
}

impl fmt::Debug for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("fabric", &self.fabric).finish_non_exhaustive()
    }
}

/// "Compact JWS, allowed alg and `typ`, known key bound to the issuer, signature, trusted `iss` bound to
/// the trust domain of `sub`, times, `jti`; `cnf` satisfied if present." `presented` is the certificate
/// that the tool saw on the connection of the call.
///
/// # Errors
/// The check failed.
pub fn token(
    text: &str,
    keys: &Keys<'_>,
    presented: Option<&CertificateDigest>,
    now: Timestamp,
) -> Result<Authentic, Failure> {
    let verified = Compact::parse(text).and_then(|token| {
        let kid = token.header().kid.as_deref();
        let key = kid.and_then(keys.key).ok_or(Error::UnknownKey)?;
        issued::verify_presented_to_tool(&token, keys.fabric, &key, keys.signatures, presented, now)
    });
    match verified {
        Ok(credential) => {
            let nothing_yet = Progress { credential, trace: Vec::new() };
            Ok(Authentic(nothing_yet.record(Check::Token, Outcome::Pass)))
        }
        Err(error) => Err(Failure { check: Check::Token, reason: reason(&error), trace: Vec::new() }),
    }
}

/// What the tool server is told. It had the token, and is authenticated: the reason is no secret to it.
fn reason(error: &Error) -> String {
    let text = match error {
        Error::TypeMismatch => "unsupported token type",
        Error::UnknownKey => "signing key unknown",
        Error::SignatureInvalid => "signature invalid",
        Error::IssuerMismatch | Error::TrustDomainNotAllowed => "issuer not trusted",
        Error::Expired | Error::TooOld => "token expired",
        Error::NotYetValid | Error::IssuedAhead => "token not yet valid",
        Error::NotItsHolder => "token is bound to another certificate than cnf names",
        other => return other.to_string(),
    };
    text.to_owned()
}
