//! Verification of a token of a peer fabric that is presented to this one.
//!
//! A peer speaks for its own workloads, agents and actors, and for no other fabric. The use-cases judge the token by
//! the peer's ledger, at [`PeerToken::at`]; [`super::fabric_peers`] applies the ceiling of the peer.

use super::act::Act;
use super::confirmation::CertificateDigest;
use super::credential::Credential;
use super::execution::Execution;
use super::issued::{self, Fabric};
use super::jws::Compact;
use super::key_set::VerifyingKey;
use super::signature_cache::SignatureCache;
use super::{Error, lineage};
use crate::clock::Timestamp;
use crate::id::{Digest128, LogPosition, WorkloadId};
use crate::limits;

/// A verified token of a peer. Neither judged by the peer's ledger nor limited by its ceiling.
#[derive(Clone, Debug)]
pub struct PeerToken {
    pub(super) credential: Credential,
    at: LogPosition,
}

impl PeerToken {
    /// Position in the peer's log before which its node had looked up revocations (`idx`).
    #[must_use]
    pub fn at(&self) -> LogPosition {
        self.at
    }

    /// Digests of everything from which it derives, the peer itself included.
    #[must_use]
    pub fn lineage(&self) -> &[Digest128] {
        &self.credential.lineage
    }

    /// Its subject.
    #[must_use]
    pub fn sub(&self) -> &WorkloadId {
        &self.credential.sub
    }

    /// Time of issue of the oldest credential of its chain, by its issuer's clock.
    #[must_use]
    pub fn root_iat(&self) -> Timestamp {
        self.credential.root_iat
    }
}

/// Verifies a token of `peer` that is presented to the fabric with the issuer `ours`, in this order:
///
/// 1. `typ` is exactly `at+jwt`, `alg` is ES256
/// 2. `kid` is present and names `key`
/// 3. signature
/// 4. `iss` is the peer, byte for byte; `aud` is `ours` and nothing else
/// 5. no execution scope; lifetime, `nbf`, `iat`, `exp`, and the chain's `root_exp`
/// 6. it is no agent's identity token, and came through no other fabric
/// 7. `cnf`, if present, names `presented`
/// 8. `sub` is of a trust domain of the peer
/// 9. `jti`, `lineage`, `idx`, and types and limits of all other claims
/// 10. every actor is the peer's: its `iss`, and a workload of its trust domains
///
/// `key` is of the peer's current key set and of no other; `presented` is the certificate of the connection of the token.
/// No token is accepted that the peer's policy did not grant for this fabric: an identity token has the peer
/// as its `aud`.
pub fn verify_of_peer(
    token: &Compact<'_>,
    ours: &str,
    peer: Fabric<'_>,
    key: &VerifyingKey,
    signatures: &SignatureCache,
    presented: Option<&CertificateDigest>,
    now: Timestamp,
) -> Result<PeerToken, Error> {
    let claims = issued::verified_claims(token, peer, key, signatures, now)?;
    if !matches!(claims.aud.as_slice(), [only] if only == ours) {
        return Err(Error::AudienceMismatch);
    }
    if Execution::is_in(&claims) {
        return Err(Error::ExecutionScoped);
    }
    // The retention of its ledger here depends on this limit.
    if claims.exp > claims.iat.plus(limits::TOKEN_LIFETIME) {
        return Err(Error::LifetimeTooLong);
    }
    claims.check_times(now, limits::TOKEN_LIFETIME + limits::LEEWAY, limits::LEEWAY)?;
    if now >= issued::root_exp(&claims)? {
        return Err(Error::ChainExpired);
    }
    if claims.others.contains_key(issued::PLATFORM) {
        return Err(Error::IdentityOfAnotherFabric);
    }
    if claims.others.contains_key(issued::VIA) {
        return Err(Error::ThroughAnotherFabric);
    }
    let mut credential = issued::read(&claims, peer, key, presented)?.0;
    let at = credential.idx.take().ok_or(Error::ClaimMissing("idx"))?;
    if !credential.act.iter().flat_map(Act::chain).all(|actor| is_of(peer, actor)) {
        return Err(Error::ActorNotOfIssuer);
    }
    for fact in [lineage::fabric(peer.iss), lineage::subject(peer.iss, &credential.original_sub)] {
        if !credential.lineage.contains(&fact) {
            credential.lineage.push(fact);
        }
    }
    credential.via = vec![peer.iss.to_owned()];
    Ok(PeerToken { credential: Credential(credential), at })
}

/// Whether the peer may name this actor: no fabric vouches for an actor of another one.
fn is_of(peer: Fabric<'_>, actor: &Act) -> bool {
    let id: Option<WorkloadId> = actor.sub.parse().ok();
    actor.iss == peer.iss && id.is_some_and(|id| peer.trust_domains.contains(id.trust_domain()))
}

#[cfg(test)]
mod tests;
