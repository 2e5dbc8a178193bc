//! Verification of tokens that this fabric minted, when presented to the fabric or to a tool.

use std::sync::Arc;
use std::time::Duration;

use super::Error;
use super::claims::Claims;
use super::confirmation::{self, CertificateDigest};
use super::credential::Kind;
use super::credential::{self, Credential};
use super::execution::Execution;
use super::foreign::{check_key_name, check_type};
use super::jws::{Algorithm, Compact};
use super::key_set::VerifyingKey;
use super::signature_cache::SignatureCache;
use crate::clock::Timestamp;
use crate::id::{Digest128, TrustDomain, WorkloadId};
use crate::{limits, text};

/// The claim that only identity tokens of agents have.
pub(super) const PLATFORM: &str = "platform";
/// The claim that only tokens have which came through peer fabrics.
pub(super) const VIA: &str = "via";

/// A fabric, as the issuer of its tokens: this one or a peer.
#[derive(Clone, Copy, Debug)]
pub struct Fabric<'f> {
    /// Its `iss`, which is also the `aud` of tokens for it.
    pub iss: &'f str,
    /// Trust domains of the subjects that it mints for; ours: our own and those of configured issuers.
    pub trust_domains: &'f [TrustDomain],
}

/// Verifies a token of this fabric that is presented to the fabric, in this order:
///
/// 1. `typ` is exactly `at+jwt`
/// 2. `alg` is ES256
/// 3. `kid` is present and names `key`
/// 4. signature
/// 5. `iss` is ours, byte for byte
/// 6. `aud` is our `iss` and nothing else
/// 7. no execution scope
/// 8. `nbf`, `iat`, `exp`, age, and the chain's `root_exp`
/// 9. `cnf`, if present, names `presented`
/// 10. `sub` is of a trust domain we mint for
/// 11. `jti`, `lineage`, `idx`, and types and limits of all other claims
///
/// `key` is one of this fabric's own; `presented` is the certificate of the connection of the token.
pub fn verify_own(
    token: &Compact<'_>,
    fabric: Fabric<'_>,
    key: &VerifyingKey,
    signatures: &SignatureCache,
    presented: Option<&CertificateDigest>,
    now: Timestamp,
) -> Result<Credential, Error> {
    let claims = verified_claims(token, fabric, key, signatures, now)?;
    if !matches!(claims.aud.as_slice(), [only] if only == fabric.iss) {
        return Err(Error::AudienceMismatch);
    }
    if Execution::is_in(&claims) {
        return Err(Error::ExecutionScoped);
    }
    claims.check_times(now, limits::CREDENTIAL_AGE_MAX, limits::LEEWAY)?;
    if now >= root_exp(&claims)? {
        return Err(Error::ChainExpired);
    }
    read(&claims, fabric, key, presented)
}

/// Verifies a token of this fabric that is presented to a tool, in this order:
///
/// 1. to 5. as [`verify_own`]
/// 6. `aud` is one value; which one is check 2 of the tool call
/// 7. `nbf`, `iat`, `exp`, age; `exp` without leeway if it has an execution scope
/// 8. `cnf`, if present, names `presented`
/// 9. `sub` is of a trust domain we mint for
/// 10. `jti`, `lineage`, `idx`, the execution scope, and types and limits of all other claims
///
/// `root_exp` ends exchanges, not tool calls: it must be present but may be in the past. `presented` is the
/// certificate that the tool server saw on the connection of the call.
pub fn verify_presented_to_tool(
    token: &Compact<'_>,
    fabric: Fabric<'_>,
    key: &VerifyingKey,
    signatures: &SignatureCache,
    presented: Option<&CertificateDigest>,
    now: Timestamp,
) -> Result<Credential, Error> {
    let claims = verified_claims(token, fabric, key, signatures, now)?;
    if claims.aud.len() != 1 {
        return Err(Error::ClaimMalformed("aud"));
    }
    let exp_leeway = if Execution::is_in(&claims) { Duration::ZERO } else { limits::LEEWAY };
    claims.check_times(now, limits::CREDENTIAL_AGE_MAX, exp_leeway)?;
    read(&claims, fabric, key, presented)
}

/// The claims, if `key` signed them and `iss` is the fabric.
pub(super) fn verified_claims(
    token: &Compact<'_>,
    fabric: Fabric<'_>,
    key: &VerifyingKey,
    signatures: &SignatureCache,
    now: Timestamp,
) -> Result<Arc<Claims>, Error> {
    let header = token.header();
    check_type(Kind::AgentA2a, header)?;
    if header.algorithm != Algorithm::Es256 {
        return Err(Error::AlgorithmNotAllowed);
    }
    if header.kid.is_none() {
        return Err(Error::UnknownKey);
    }
    check_key_name(header, key)?;
    let claims = signatures.verify(token, fabric.iss, key, now)?;
    match claims.iss.as_deref() {
        Some(iss) if iss == fabric.iss => Ok(claims),
        Some(_) => Err(Error::IssuerMismatch),
        None => Err(Error::ClaimMissing("iss")),
    }
}

/// Subject, binding and all other claims.
pub(super) fn read(
    claims: &Claims,
    fabric: Fabric<'_>,
    key: &VerifyingKey,
    presented: Option<&CertificateDigest>,
) -> Result<Credential, Error> {
    let is_bound = confirmation::check(claims, presented)?;
    let sub: WorkloadId = claims.sub.parse().map_err(|_| Error::SubjectMalformed)?;
    if !fabric.trust_domains.contains(sub.trust_domain()) {
        return Err(Error::TrustDomainNotAllowed);
    }
    if claims.jti.is_none() {
        return Err(Error::ClaimMissing("jti"));
    }
    let chain = (root_iat(claims)?, root_exp(claims)?);
    let mut credential = credential::read(Kind::AgentA2a, fabric.iss, sub, chain, key, claims)?;
    credential.lineage = carried_lineage(claims)?;
    // Minted into identity tokens only.
    credential.is_agent_identity = claims.others.contains_key(PLATFORM);
    credential.via = via(claims)?;
    credential.is_bound = is_bound;
    credential.execution = Execution::read(claims)?;
    let idx = claims.text("idx", limits::OPAQUE_BYTES_MAX)?.ok_or(Error::ClaimMissing("idx"))?;
    credential.idx = Some(idx.parse().map_err(|_| Error::ClaimMalformed("idx"))?);
    Ok(credential.with_own_lineage())
}

/// No later than `iat`, whatever the token states.
fn root_iat(claims: &Claims) -> Result<Timestamp, Error> {
    let stated = claims.numeric_date("root_iat")?.ok_or(Error::ClaimMissing("root_iat"))?;
    Ok(stated.min(claims.iat))
}

pub(super) fn root_exp(claims: &Claims) -> Result<Timestamp, Error> {
    claims.numeric_date("root_exp")?.ok_or(Error::ClaimMissing("root_exp"))
}

/// Peer fabrics through which the token came, each once.
fn via(claims: &Claims) -> Result<Vec<String>, Error> {
    const MALFORMED: Error = Error::ClaimMalformed(VIA);
    let Some(carried) = claims.others.get(VIA) else { return Ok(Vec::new()) };
    let carried = carried.as_array().filter(|issuers| (1..=limits::VIA_MAX).contains(&issuers.len()));
    let mut via: Vec<String> = Vec::new();
    for issuer in carried.ok_or(MALFORMED)? {
        let issuer = issuer.as_str().filter(|issuer| text::fits(issuer, limits::URI_BYTES_MAX));
        let issuer = issuer.filter(|issuer| !via.iter().any(|known| known == issuer));
        via.push(issuer.ok_or(MALFORMED)?.to_owned());
    }
    Ok(via)
}

fn carried_lineage(claims: &Claims) -> Result<Vec<Digest128>, Error> {
    const MALFORMED: Error = Error::ClaimMalformed("lineage");
    let carried = claims.others.get("lineage").ok_or(Error::ClaimMissing("lineage"))?;
    let carried =
        carried.as_array().filter(|digests| digests.len() <= limits::LINEAGE_MAX).ok_or(MALFORMED)?;
    let digest = |value: &serde_json::Value| value.as_str()?.parse().ok();
    carried.iter().map(|value| digest(value).ok_or(MALFORMED)).collect()
}
