//! Verification of this fabric's own tokens: as the credential of an exchange, as the bearer token of a request, or
//! at a tool. [`OwnTokens::judge`] is the one place where a verified token is judged, also by the ledgers of the peer
//! fabrics through which it came.

use std::sync::Arc;

use crate::clock::Timestamp;
use crate::id::{LogPosition, TrustDomain};
use crate::keyring::Keyring;
use crate::limits;
use crate::peer_tokens::{PeerTokens, Refused};
use crate::state::{LeaseProof, State};
use crate::token::fabric_peers::Role;
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
    /// Judges those that came through peer fabrics.
    pub peer_tokens: PeerTokens,
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
    /// As [`issued::verify_own`]; [`token::Error::UnknownKey`] if no key of ours has its `kid`;
    /// [`token::Error::IndexAhead`]; [`token::Error::Revoked`]; [`token::Error::PeerNotAccepted`] for a token that came through
    /// a peer fabric: its subject acts in its own fabric, and at the tools of this one.
    pub async fn verify(
        &self,
        fresh: &LeaseProof,
        token: &Compact<'_>,
        certificate: Option<&CertificateDigest>,
        now: Timestamp,
    ) -> Result<Credential, token::Error> {
        let credential = self.authenticate(fresh, token, certificate, now).await?;
        if !credential.via.is_empty() {
            return Err(token::Error::PeerNotAccepted);
        }
        if self.is_revoked(fresh, &credential) { Err(token::Error::Revoked) } else { Ok(credential) }
    }

    /// Verifies a token that is presented to be exchanged, in this role.
    ///
    /// # Errors
    /// As [`OwnTokens::verify`], but a token that came through a peer fabric is judged: [`OwnTokens::judge`],
    /// [`PeerTokens::check_role`].
    pub async fn verify_chained(
        &self,
        fresh: &LeaseProof,
        (token, role): (&Compact<'_>, Role),
        certificate: Option<&CertificateDigest>,
        now: Timestamp,
    ) -> Result<Credential, Refused> {
        let credential = self.authenticate(fresh, token, certificate, now).await?;
        self.judge(fresh, &credential)?;
        self.0.peer_tokens.check_role(role, &credential)?;
        Ok(credential)
    }

    /// Judges a verified token of ours, by our revocations and by the ledger of each peer through which it came.
    ///
    /// # Errors
    /// [`token::Error::Revoked`]; as [`PeerTokens::judge_through`].
    pub fn judge(&self, fresh: &LeaseProof, credential: &Credential) -> Result<(), Refused> {
        if self.is_revoked(fresh, credential) {
            return Err(token::Error::Revoked.into());
        }
        self.0.peer_tokens.judge_through(fresh, credential)
    }

    /// Whether a token of ours is meant for a peer fabric, whose nodes see it.
    #[must_use]
    pub fn is_for_peer(&self, credential: &Credential) -> bool {
        self.0.peer_tokens.has_peer_as_audience(credential)
    }

    fn is_revoked(&self, fresh: &LeaseProof, credential: &Credential) -> bool {
        self.0.state.revokes(fresh, &credential.lineage, credential.idx, credential.iat)
    }

    /// Waits until this node has applied the `idx` of a verified token. Otherwise the holder of a stolen signing key could
    /// state one above every revocation. A position of another incarnation is not comparable, and precedes every revocation
    /// here. Returns whether it had to wait: meanwhile the token may have expired or its key been tainted.
    ///
    /// # Errors
    /// [`token::Error::IndexAhead`] after [`limits::FRESHNESS_WAIT`].
    pub async fn catch_up(&self, credential: &Credential) -> Result<bool, token::Error> {
        let here = self.0.state.index().incarnation;
        let idx = credential.idx.filter(|idx| Some(idx.incarnation) == here);
        let Some(LogPosition { index, .. }) = idx else { return Ok(false) };
        if self.0.state.cluster().applied() >= index {
            return Ok(false);
        }
        let applied = self.0.state.cluster().until_applied(index);
        let caught_up = tokio::time::timeout(limits::FRESHNESS_WAIT, applied).await;
        caught_up.map(|()| true).map_err(|_| token::Error::IndexAhead)
    }

    /// `now` is raised to log time: log time ends agents, and no token of an agent outlives its agent.
    async fn authenticate(
        &self,
        fresh: &LeaseProof,
        token: &Compact<'_>,
        certificate: Option<&CertificateDigest>,
        now: Timestamp,
    ) -> Result<Credential, token::Error> {
        let verify = || {
            let now = self.0.state.not_before_log(now);
            let key = token.header().kid.as_deref().and_then(|kid| self.key(fresh, kid));
            let key = key.ok_or(token::Error::UnknownKey)?;
            issued::verify_own(token, self.fabric(), &key, self.signatures(), certificate, now)
        };
        let credential = verify()?;
        if self.catch_up(&credential).await? { verify() } else { Ok(credential) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::policy::blast_radius::Containment;
    use crate::state::testing::TestNode;
    use crate::telemetry::Metrics;
    use crate::token::mint::{self, AccessTokenClaims};

    const START: Timestamp = Timestamp::from_secs(1_800_000_000);
    const FABRIC: &str = "https://fabric.example";

    /// A node that verifies its own tokens.
    struct Harness {
        node: TestNode,
        keyring: Keyring,
        own_tokens: OwnTokens,
    }

    impl Harness {
        async fn start() -> Self {
            let node = TestNode::start(START).await;
            let keyring = node.keyring().await;
            let own_tokens = OwnTokens::new(Parts {
                issuer: FABRIC.to_owned(),
                trust_domains: vec!["a.example".parse().expect("trust domain")],
                keyring: keyring.clone(),
                state: node.state.clone(),
                signatures: SignatureCache::default(),
                peer_tokens: PeerTokens::new(
                    FABRIC.to_owned(),
                    ([], BTreeSet::new()),
                    node.state.clone(),
                    SignatureCache::default(),
                    (Containment::default(), Metrics::new().expect("metrics")),
                ),
            });
            Self { node, keyring, own_tokens }
        }

        /// A token of an agent that ends with its chain at `end`.
        fn token(&self, idx: LogPosition, end: Timestamp) -> String {
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
                root_iat: START.secs(),
                root_exp: end.secs(),
                execution: None,
                agent: None,
                idx: idx.to_string(),
                policy: "p".to_owned(),
                cnf: None,
            };
            let key = self.keyring.signing_key(START).expect("signs");
            mint::sign_access_token(&claims, &key).expect("signs")
        }

        async fn verify(&self, token: &str, now: Timestamp) -> Result<Credential, token::Error> {
            let fresh = self.node.state.fresh().await.expect("a lease");
            let token = Compact::parse(token).expect("compact");
            self.own_tokens.verify(&fresh, &token, None, now).await
        }

        async fn end(self) {
            let Self { node, keyring, own_tokens } = self;
            drop((own_tokens, keyring));
            node.end().await;
        }
    }

    /// A node whose clock is behind log time accepted an agent's token after the log had ended the agent.
    #[tokio::test]
    async fn token_ends_at_log_time_on_a_node_with_a_slow_clock() {
        let harness = Harness::start().await;
        let state = harness.node.state.clone();
        let end = START.plus(Duration::from_secs(60));
        let token = harness.token(state.position().expect("bootstrapped"), end);
        let slow = end.minus(Duration::from_millis(1));
        assert!(harness.verify(&token, slow).await.is_ok());
        harness.node.clock.advance(Duration::from_secs(60));
        state.as_node().allow_revocations(FABRIC.to_owned(), 1).await.expect("an entry");
        let refused = harness.verify(&token, slow).await.err();
        assert_eq!(refused, Some(token::Error::ChainExpired));
        drop(state);
        harness.end().await;
    }

    /// Attack: the holder of a stolen signing key states an `idx` above every revocation. The keys that such a bearer
    /// registered survived the taint of the signing key, and it survived the revocation of its `jti`.
    #[tokio::test]
    async fn index_ahead_of_the_log_is_refused() {
        let harness = Harness::start().await;
        let state = harness.node.state.clone();
        let here = state.position().expect("bootstrapped");
        let end = START.plus(Duration::from_secs(60));
        let forged = harness.token(LogPosition { index: u64::MAX, ..here }, end);
        assert_eq!(harness.verify(&forged, START).await.err(), Some(token::Error::IndexAhead));
        // One that another node has minted just before is waited for.
        let ahead = harness.token(LogPosition { index: state.cluster().applied() + 1, ..here }, end);
        let entry =
            async { state.as_node().allow_revocations(FABRIC.to_owned(), 1).await.expect("an entry") };
        let (verified, _) = tokio::join!(harness.verify(&ahead, START), entry);
        assert!(verified.is_ok());
        drop(state);
        harness.end().await;
    }
}
