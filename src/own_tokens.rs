//! This fabric's own tokens when somebody presents them: as the credential of an exchange, as the bearer
//! of a request, or to a tool. One place for what they are judged by.

use std::sync::Arc;

use crate::clock::Timestamp;
use crate::id::TrustDomain;
use crate::keyring::Keyring;
use crate::state::{Fresh, State};
use crate::token::issued::{self, Fabric};
use crate::token::jws::Compact;
use crate::token::key_set::VerifyingKey;
use crate::token::signature_cache::SignatureCache;
use crate::token::subject::Credential;
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

    /// This fabric, as the issuer of its tokens.
    #[must_use]
    pub fn fabric(&self) -> Fabric<'_> {
        Fabric { iss: &self.0.issuer, trust_domains: &self.0.trust_domains }
    }

    /// The key of any node that signed under `kid`, if what it signed is accepted at `now`.
    #[must_use]
    pub fn key(&self, _fresh: &Fresh, kid: &str, now: Timestamp) -> Option<Arc<VerifyingKey>> {
        self.0.keyring.verifying_key(kid, self.0.state.not_before_log(now))
    }

    /// Signatures verified before.
    #[must_use]
    pub fn signatures(&self) -> &SignatureCache {
        &self.0.signatures
    }

    /// Verifies a token that was presented over a connection with this client certificate, if any.
    ///
    /// # Errors
    /// As [`issued::verify_own`]; [`token::Error::UnknownKey`] if no key of ours has its `kid`,
    /// [`token::Error::Revoked`].
    pub fn verify(
        &self,
        fresh: &Fresh,
        token: &Compact<'_>,
        certificate: Option<&CertificateDigest>,
        now: Timestamp,
    ) -> Result<Credential, token::Error> {
        let key = token.header().kid.as_deref().and_then(|kid| self.key(fresh, kid, now));
        let key = key.ok_or(token::Error::UnknownKey)?;
        let credential = issued::verify_own(token, self.fabric(), &key, self.signatures(), certificate, now)?;
        if self.0.state.revokes(fresh, credential.lineage(), credential.idx(), credential.iat()) {
            return Err(token::Error::Revoked);
        }
        Ok(credential)
    }
}
