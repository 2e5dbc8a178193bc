//! Verification of this fabric's own tokens: as the credential of an exchange, as the bearer token of a request, or
//! at a tool.

use std::sync::Arc;

use crate::clock::Timestamp;
use crate::id::TrustDomain;
use crate::keyring::Keyring;
use crate::state::{LeaseProof, State};
use crate::token::foreign::Credential;
use crate::token::issued::{self, Fabric};
use crate::token::jws::Compact;
use crate::token::key_set::VerifyingKey;
use crate::token::signature_cache::SignatureCache;
use crate::token::{self, CertificateDigest};

/// Verifies our own tokens. Cheap to clone.
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
    /// Revocations and elapsed time.
    pub state: State,
    /// Cache of verified signatures.
    pub signatures: SignatureCache,
}

impl OwnTokens {
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

    /// The key of any node with this `kid`, if its signatures are accepted now.
    #[must_use]
    pub fn key(&self, _fresh: &LeaseProof, kid: &str) -> Option<Arc<VerifyingKey>> {
        self.0.keyring.verifying_key(kid, self.0.state.elapsed_time())
    }

    /// Cache of verified signatures.
    #[must_use]
    pub fn signatures(&self) -> &SignatureCache {
        &self.0.signatures
    }

    /// Verifies a bearer token that was presented over a connection with this client certificate, if any.
    ///
    /// # Errors
    /// As [`OwnTokens::verify_chained`]; [`token::Error::PeerNotAccepted`] for a token that came through a peer fabric:
    /// its subject acts in its own fabric, and at the tools of this one.
    pub fn verify(
        &self,
        fresh: &LeaseProof,
        token: &Compact<'_>,
        certificate: Option<&CertificateDigest>,
        now: Timestamp,
    ) -> Result<Credential, token::Error> {
        let credential = self.verify_chained(fresh, token, certificate, now)?;
        if credential.via().is_empty() { Ok(credential) } else { Err(token::Error::PeerNotAccepted) }
    }

    /// Verifies a token that is presented to be exchanged. One that came through a peer fabric is not yet judged by the
    /// peer's ledger. `now` is raised to log time: log time ends agents, and no token of an agent outlives its agent.
    ///
    /// # Errors
    /// As [`issued::verify_own`]; [`token::Error::UnknownKey`] if no key of ours has its `kid`,
    /// [`token::Error::Revoked`].
    pub fn verify_chained(
        &self,
        fresh: &LeaseProof,
        token: &Compact<'_>,
        certificate: Option<&CertificateDigest>,
        now: Timestamp,
    ) -> Result<Credential, token::Error> {
        let now = self.0.state.not_before_log(now);
        let key = token.header().kid.as_deref().and_then(|kid| self.key(fresh, kid));
        let key = key.ok_or(token::Error::UnknownKey)?;
        let credential = issued::verify_own(token, self.fabric(), &key, self.signatures(), certificate, now)?;
        if self.0.state.revokes(fresh, credential.lineage(), credential.idx(), credential.iat()) {
            return Err(token::Error::Revoked);
        }
        Ok(credential)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::state::testing::TestNode;
    use crate::token::mint::{self, AccessTokenClaims};

    const START: Timestamp = Timestamp::from_secs(1_800_000_000);
    const FABRIC: &str = "https://fabric.example";

    /// A node whose clock is behind log time accepted an agent's token after the log had ended the agent.
    #[tokio::test]
    async fn token_ends_at_log_time_on_a_node_with_a_slow_clock() {
        let node = TestNode::start(START).await;
        let keyring = node.keyring().await;
        let own_tokens = OwnTokens::new(Parts {
            issuer: FABRIC.to_owned(),
            trust_domains: vec!["a.example".parse().expect("trust domain")],
            keyring: keyring.clone(),
            state: node.state.clone(),
            signatures: SignatureCache::default(),
        });
        let end = START.plus(Duration::from_secs(60));
        let agent = "wimse://a.example/agent/mcp/1".to_owned();
        let claims = AccessTokenClaims {
            iss: FABRIC.to_owned(),
            sub: agent.clone(),
            aud: FABRIC.to_owned(),
            iat: START.secs(),
            nbf: START.secs(),
            exp: end.secs(),
            jti: "j".to_owned(),
            client_id: agent,
            txn: "t".to_owned(),
            scope: None,
            capabilities: Vec::new(),
            blast_radius: None,
            delegation_depth: None,
            act: None,
            may_act: None,
            lineage: Vec::new(),
            via: Vec::new(),
            root_exp: end.secs(),
            execution: None,
            agent: None,
            idx: node.state.position().expect("bootstrapped").to_string(),
            policy: "p".to_owned(),
            cnf: None,
        };
        let key = keyring.signing_key(START).expect("signs");
        let token = mint::sign_access_token(&claims, &key).expect("signs");
        let token = Compact::parse(&token).expect("compact");
        let slow = end.minus(Duration::from_millis(1));
        let fresh = node.state.fresh().await.expect("a lease");
        assert!(own_tokens.verify(&fresh, &token, None, slow).is_ok());
        node.clock.advance(Duration::from_secs(60));
        node.state.as_node().allow_revocations(FABRIC.to_owned(), 1).await.expect("an entry");
        let refused = own_tokens.verify(&fresh, &token, None, slow).err();
        assert_eq!(refused, Some(token::Error::ChainExpired));
        drop((own_tokens, keyring, key));
        node.end().await;
    }
}
