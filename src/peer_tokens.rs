//! Credentials that came from peer fabrics: tokens of a peer, presented to be exchanged, and tokens of this fabric that
//! were minted from one ([the page on federation](../docs/design/federation.md), §8.4).
//!
//! Both are judged by the copy of the peer's ledger, under a lease on it that is taken after the request has arrived and
//! before anything of the copy is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::id::{TrustDomain, WorkloadId};
use crate::policy::blast_radius::Containment;
use crate::state::{LeaseProof, PeerVerdict, Source, SourceProof, State, Unjudged, peer_key};
use crate::telemetry::Metrics;
use crate::token::fabric_peers::{AboveCeiling, Ceiling, Role};
use crate::token::federated::verify_of_peer;
use crate::token::foreign::Credential;
use crate::token::issued::Fabric;
use crate::token::jws::{Algorithm, Compact};
use crate::token::key_set::VerifyingKey;
use crate::token::lineage::Fact;
use crate::token::signature_cache::SignatureCache;
use crate::token::{self, CertificateDigest, lineage};

/// A peer whose tokens are accepted.
#[derive(Clone, Debug)]
pub struct AcceptedPeer {
    /// Its label.
    pub name: String,
    /// `iss` of its tokens.
    pub issuer: String,
    /// Trust domains of its subjects and actors.
    pub trust_domains: Vec<TrustDomain>,
    /// Maximum time since the last response of the peer; beyond it: its credentials are refused.
    pub stale_after: Duration,
    /// Limits of its tokens.
    pub ceiling: Ceiling,
}

/// A credential that came from a peer is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The token is not valid.
    #[error(transparent)]
    Token(#[from] token::Error),
    /// The state cannot be known; a retry may succeed.
    #[error("peer fabric {peer}: {reason}")]
    Unjudged {
        /// Label of the peer.
        peer: String,
        /// The cause.
        reason: String,
    },
    /// An operator has paused the peer.
    #[error("peer fabric {0}: paused by an operator")]
    Paused(String),
    /// The token breaks the ceiling of the peer.
    #[error("peer fabric {peer}: {broken}")]
    AboveCeiling {
        /// Label of the peer.
        peer: String,
        /// The broken rule.
        broken: AboveCeiling,
    },
}

/// Verifies and judges credentials that came from peers. Cheap to clone.
#[derive(Clone)]
pub struct PeerTokens(Arc<Parts>);

struct Parts {
    /// Our `iss`.
    issuer: String,
    peers: BTreeMap<String, AcceptedPeer>,
    /// `iss` of every peer, also of those whose tokens are not accepted.
    configured: BTreeSet<String>,
    state: State,
    signatures: SignatureCache,
    containment: Containment,
    metrics: Metrics,
}

impl PeerTokens {
    /// `issuer` is ours, `configured` the issuers of all peers; no two peers have the same.
    #[must_use]
    pub fn new(
        issuer: String,
        (accepted, configured): (impl IntoIterator<Item = AcceptedPeer>, BTreeSet<String>),
        state: State,
        signatures: SignatureCache,
        (containment, metrics): (Containment, Metrics),
    ) -> Self {
        let peers = accepted.into_iter().map(|peer| (peer.issuer.clone(), peer)).collect();
        Self(Arc::new(Parts { issuer, peers, configured, state, signatures, containment, metrics }))
    }

    /// The accepted peer with this `iss`.
    #[must_use]
    pub fn peer(&self, issuer: &str) -> Option<&AcceptedPeer> {
        self.0.peers.get(issuer)
    }

    /// The accepted peer whose workloads are of this trust domain.
    #[must_use]
    pub fn of_domain(&self, trust_domain: &TrustDomain) -> Option<&AcceptedPeer> {
        self.0.peers.values().find(|peer| peer.trust_domains.contains(trust_domain))
    }

    /// Whether a fact is one of a peer's credentials: named by the peer, a workload of the peer, or the peer
    /// itself. The times in its tokens are those of its clock, so a revocation of ours, which compares times,
    /// could miss one.
    #[must_use]
    pub fn is_of_peer(&self, fact: &Fact) -> bool {
        let workload = || fact.value().parse().ok().filter(|_| fact.issuer().is_empty());
        self.peer(fact.issuer()).is_some()
            || fact.kind() == lineage::FABRIC
            || workload().is_some_and(|id: WorkloadId| self.of_domain(id.trust_domain()).is_some())
    }

    /// Verifies a token of the peer in this role, judges it, and limits it by the peer's ceiling. `certificate` is that of
    /// the connection of the token.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn verify(
        &self,
        fresh: &LeaseProof,
        (token, peer, role): (&Compact<'_>, &AcceptedPeer, Role),
        certificate: Option<&CertificateDigest>,
        now: Timestamp,
    ) -> Result<Credential, Refused> {
        let lease = self.lease(fresh, peer)?;
        let Parts { issuer, state, signatures, containment, .. } = &*self.0;
        let key = self.key(&lease, peer, token)?;
        let fabric = Fabric { iss: &peer.issuer, trust_domains: &peer.trust_domains };
        let verified = verify_of_peer(token, issuer, fabric, &key, signatures, certificate, now)?;
        // The peer may not know our revocations, and may mint later tokens from a credential issued before
        // one.
        if state.revokes(fresh, verified.lineage(), None, verified.root_iat()) {
            return Err(token::Error::Revoked.into());
        }
        self.refused_by(peer, state.judge_peer_token(&lease, verified.at(), verified.lineage()))?;
        let limited = peer.ceiling.limit(verified, role, containment, now);
        limited.map_err(|broken| Refused::AboveCeiling { peer: peer.name.clone(), broken })
    }

    /// Judges a token of this fabric by the ledger of each peer through which it came. This fabric's own
    /// revocations are checked separately.
    ///
    /// # Errors
    /// [`Refused`]; [`token::Error::PeerNotAccepted`] if one of them is not accepted.
    pub fn judge_through(&self, fresh: &LeaseProof, credential: &Credential) -> Result<(), Refused> {
        for issuer in &credential.via {
            let peer = self.peer(issuer).ok_or(token::Error::PeerNotAccepted)?;
            let lease = self.lease(fresh, peer)?;
            let idx = credential.idx.ok_or(token::Error::ClaimMissing("idx"))?;
            self.refused_by(peer, self.0.state.judge_through_token(&lease, idx.index, &credential.lineage))?;
        }
        Ok(())
    }

    /// Whether a token of this fabric may be an actor: a peer whose tokens are not accepted as actors must not get there by a
    /// second exchange. As a subject, it is the subject of the first exchange.
    ///
    /// # Errors
    /// [`Refused::AboveCeiling`].
    pub fn check_role(&self, role: Role, credential: &Credential) -> Result<(), Refused> {
        let mut peers = credential.via.iter().filter_map(|issuer| self.peer(issuer));
        match peers.find(|peer| role == Role::Actor && !peer.ceiling.roles.contains(&role)) {
            Some(peer) => Err(Refused::AboveCeiling { peer: peer.name.clone(), broken: AboveCeiling::Role }),
            None => Ok(()),
        }
    }

    /// Whether a token is meant for one of the peers, which could use it elsewhere.
    #[must_use]
    pub fn has_peer_as_audience(&self, credential: &Credential) -> bool {
        credential.aud.iter().any(|aud| self.0.configured.contains(aud))
    }

    /// Labels of the peers through which a credential came, its own issuer among them.
    #[must_use]
    pub fn labels<'p>(&'p self, credential: &Credential) -> Vec<&'p str> {
        credential.via.iter().filter_map(|issuer| self.peer(issuer)).map(|peer| peer.name.as_str()).collect()
    }

    /// A paused peer is refused for that reason, whether or not it has a lease: it is often paused because it is silent.
    fn lease(&self, fresh: &LeaseProof, peer: &AcceptedPeer) -> Result<SourceProof, Refused> {
        if self.0.state.is_peer_paused(&peer.issuer) {
            return Err(Refused::Paused(peer.name.clone()));
        }
        let generation = self.0.state.peer_generation(&peer.issuer);
        let source = Source { id: peer_key(&peer.issuer), generation };
        let lease = self.0.state.cluster().source_lease(fresh, source, peer.stale_after);
        lease.map_err(|error| self.unjudged(peer, error.to_string()))
    }

    /// No `kid` causes a fetch: the keys come with the ledger. An unknown key may be new if the ledger is not read up to
    /// the position that the token states.
    fn key(
        &self,
        lease: &SourceProof,
        peer: &AcceptedPeer,
        token: &Compact<'_>,
    ) -> Result<Arc<VerifyingKey>, Refused> {
        let keys = self.0.state.peer_keys(lease);
        let keys = keys.ok_or_else(|| self.unjudged(peer, "its ledger is being replaced".to_owned()))?;
        let kid = token.header().kid.as_deref().ok_or(token::Error::UnknownKey)?;
        match keys.select(Some(kid), Algorithm::Es256) {
            Err(token::Error::UnknownKey) => {
                let stated = token.unverified_position().ok_or(token::Error::UnknownKey)?;
                if self.0.state.has_peer_keys_of(lease, stated) {
                    Err(token::Error::UnknownKey.into())
                } else {
                    Err(self.unjudged(peer, "the key of the token is not known yet".to_owned()))
                }
            }
            key => Ok(key?),
        }
    }

    fn unjudged(&self, peer: &AcceptedPeer, reason: String) -> Refused {
        self.0.metrics.federation_unjudged(&peer.name);
        Refused::Unjudged { peer: peer.name.clone(), reason }
    }

    fn refused_by(&self, peer: &AcceptedPeer, verdict: PeerVerdict) -> Result<(), Refused> {
        let reason = match verdict {
            PeerVerdict::Clear => return Ok(()),
            PeerVerdict::Revoked => return Err(token::Error::Revoked.into()),
            PeerVerdict::Paused => return Err(Refused::Paused(peer.name.clone())),
            PeerVerdict::Unjudged(Unjudged::Joining) => "its ledger is not read yet".to_owned(),
            PeerVerdict::Unjudged(Unjudged::Held(fault)) => format!("held: {}", fault.into_str()),
            PeerVerdict::Unjudged(Unjudged::UnknownIncarnation) => {
                "the token is of an incarnation that is not read".to_owned()
            }
        };
        Err(self.unjudged(peer, reason))
    }
}

#[cfg(test)]
mod tests;
