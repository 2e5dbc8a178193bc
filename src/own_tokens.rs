//! This fabric's own tokens when somebody presents them: as the credential of an exchange, or as the
//! bearer of a request. One place, so that both are judged alike.

use std::sync::Arc;

use crate::clock::Timestamp;
use crate::id::TrustDomain;
use crate::keyring::Keyring;
use crate::state::State;
use crate::token::jws::Compact;
use crate::token::signature_cache::SignatureCache;
use crate::token::subject::{self, Credential, Fabric};
use crate::token::{self, CertificateDigest};

/// What is needed to judge one of our own tokens. Cheap to clone.
#[derive(Clone)]
pub struct OwnTokens(Arc<Parts>);

/// The parts of [`OwnTokens`].
pub struct Parts {
    /// Our `iss`, and the `aud` of tokens meant for us.
    pub issuer: String,
    /// The trust domains whose workloads we issue for.
    pub trust_domains: Vec<TrustDomain>,
    /// Every node's published keys.
    pub keyring: Keyring,
    /// The time of the log.
    pub state: State,
    /// Signatures verified before.
    pub signatures: SignatureCache,
}

impl OwnTokens {
    /// From its parts.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// Our `iss`.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.0.issuer
    }

    /// Verifies a token that was presented over a connection with this client certificate, if any.
    ///
    /// # Errors
    /// As [`subject::verify_own`]; [`token::Error::UnknownKey`] if no key of ours has its `kid`,
    /// [`token::Error::Revoked`].
    pub fn verify(
        &self,
        token: &Compact<'_>,
        certificate: Option<&CertificateDigest>,
        now: Timestamp,
    ) -> Result<Credential, token::Error> {
        let Parts { issuer, trust_domains, keyring, state, signatures } = self.0.as_ref();
        let kid = token.header().kid.as_deref();
        let key = kid.and_then(|kid| keyring.verifying_key(kid, state.not_before_log(now)));
        let key = key.ok_or(token::Error::UnknownKey)?;
        let fabric = Fabric { iss: issuer, trust_domains };
        let credential = subject::verify_own(token, fabric, &key, signatures, certificate, now)?;
        if state.revokes(credential.lineage(), credential.idx(), credential.iat()) {
            return Err(token::Error::Revoked);
        }
        Ok(credential)
    }
}
