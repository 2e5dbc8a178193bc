//! Configured foreign issuers, and the choice of one for a token.
//!
//! An issuer is chosen by unverified claims; afterwards the token is verified against that issuer. No token
//! determines where keys are fetched.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Error as TokenError;
use super::credential::Kind;
use super::jws::{Algorithm, IssuerHint};
use crate::id::{TrustDomain, WorkloadId};

/// Location of an issuer's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A JWK Set in a file.
    File(PathBuf),
    /// A JWK Set at a URL.
    Url(String),
    /// The `jwks_uri` of `<iss>/.well-known/openid-configuration` (OpenID Connect Discovery §4).
    Discovery,
    /// The `jwks_uri` of the metadata of an SSF transmitter (SSF 1.0 §7).
    TransmitterMetadata,
    /// A SPIFFE bundle in a file.
    SpiffeBundleFile(PathBuf),
    /// A SPIFFE bundle endpoint of the web profile (SPIFFE Federation §5.2.1).
    SpiffeBundleEndpoint(String),
}

impl KeySource {
    /// Whether the keys come as a SPIFFE bundle.
    #[must_use]
    pub fn is_spiffe_bundle(&self) -> bool {
        matches!(self, Self::SpiffeBundleFile(_) | Self::SpiffeBundleEndpoint(_))
    }
}

/// Files with which the documents of an issuer are fetched; read for each fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchFiles {
    /// PEM certificates: the only roots of the connection, instead of the system's.
    pub ca: Option<PathBuf>,
    /// A bearer token, for the origin of the configured address alone.
    pub bearer_token: Option<PathBuf>,
}

/// Mapping of `sub` to a workload identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SubjectMapping {
    /// `system:serviceaccount:<ns>:<sa>` becomes `wimse://<trust-domain>/ns/<ns>/sa/<sa>`.
    Kubernetes,
    /// `sub` is a workload identifier already.
    Identifier,
    /// Any text becomes one path segment; the mapping is injective.
    Opaque,
}

/// Kind of the tokens of an issuer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssuerKind {
    /// JWTs with `iss`.
    Jwt { subject: SubjectMapping },
    /// JWT-SVIDs of one trust domain, whose `iss` is optional.
    Spiffe,
}

#[derive(Clone, Debug)]
pub struct Issuer {
    /// `iss`, compared byte for byte. For SPIFFE: the only `iss` that a JWT-SVID may have.
    pub iss: String,
    pub kind: IssuerKind,
    pub keys: KeySource,
    pub fetch_files: FetchFiles,
    /// The algorithms its tokens may use.
    pub algorithms: Vec<Algorithm>,
    /// Accepted `aud` values; a token must hold one.
    pub audiences: Vec<String>,
    /// Trust domains that it may name; `sub` is mapped into the first.
    pub trust_domains: Vec<TrustDomain>,
    /// Maximum age of its credentials, from `iat`.
    pub max_credential_age: Duration,
    /// Whether its `email` counts when `email_verified` is `true`.
    pub verified_email: bool,
}

/// Algorithms of an issuer that configures none.
pub const ALGORITHMS_DEFAULT: [Algorithm; 2] = [Algorithm::Es256, Algorithm::Rs256];

/// Refusal of an issuer configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// `iss` is empty.
    #[error("an issuer has no name")]
    Nameless,
    /// One `iss` is configured twice.
    #[error("issuer {0} is configured twice")]
    Duplicate(String),
    /// No accepted `aud`: every token would be refused.
    #[error("issuer {0} has no audience")]
    NoAudience(String),
    /// No algorithm: every token would be refused.
    #[error("issuer {0} has no algorithm")]
    NoAlgorithm(String),
    /// No trust domain.
    #[error("issuer {0} has no trust domain")]
    NoTrustDomain(String),
    /// JWT-SVID §2.1 excludes `EdDSA`.
    #[error("issuer {0} issues JWT-SVIDs, which cannot use EdDSA")]
    AlgorithmNotOfSpiffe(String),
    /// SPIFFE bundles are key sources of SPIFFE issuers only.
    #[error("issuer {0} has a key source of the wrong kind")]
    KeySourceMismatch(String),
    /// Two SPIFFE issuers for one trust domain: bundles are never merged (SPIFFE Federation §4).
    #[error("trust domain {0} has two bundles")]
    TwoBundles(TrustDomain),
    /// Opaque subjects of two issuers would map to the same identifiers.
    #[error("trust domain {0} has two issuers of opaque subjects")]
    OpaqueSubjectsMerged(TrustDomain),
}

#[derive(Clone, Debug, Default)]
pub struct Issuers {
    all: Vec<Issuer>,
    by_iss: HashMap<String, usize>,
    by_trust_domain: HashMap<TrustDomain, usize>,
}

impl Issuers {
    /// Checks each issuer and their combination.
    pub fn new(issuers: Vec<Issuer>) -> Result<Self, Error> {
        let mut by_iss = HashMap::new();
        let mut by_trust_domain = HashMap::new();
        let mut opaque = HashMap::new();
        for (index, issuer) in issuers.iter().enumerate() {
            let first_trust_domain = check(issuer)?;
            if by_iss.insert(issuer.iss.clone(), index).is_some() {
                return Err(Error::Duplicate(issuer.iss.clone()));
            }
            match issuer.kind {
                IssuerKind::Spiffe => {
                    for trust_domain in &issuer.trust_domains {
                        if by_trust_domain.insert(trust_domain.clone(), index).is_some() {
                            return Err(Error::TwoBundles(trust_domain.clone()));
                        }
                    }
                }
                IssuerKind::Jwt { subject: SubjectMapping::Opaque } => {
                    if opaque.insert(first_trust_domain, index).is_some() {
                        return Err(Error::OpaqueSubjectsMerged(first_trust_domain.clone()));
                    }
                }
                IssuerKind::Jwt { .. } => {}
            }
        }
        Ok(Self { all: issuers, by_iss, by_trust_domain })
    }

    /// The issuer of a token: by `iss`, or for a JWT-SVID by the trust domain of `sub`. Both are unverified here and
    /// checked after the signature.
    ///
    /// # Errors
    /// [`TokenError::ClaimMissing`] or [`TokenError::UnknownIssuer`], always for [`Kind::AgentA2a`].
    pub fn choose(&self, kind: Kind, hint: &IssuerHint) -> Result<&Issuer, TokenError> {
        let index = match kind {
            Kind::Jwt => self.by_iss.get(hint.iss.as_ref().ok_or(TokenError::ClaimMissing("iss"))?),
            Kind::SpiffeSvid => {
                let sub = hint.sub.as_ref().ok_or(TokenError::ClaimMissing("sub"))?;
                let id: WorkloadId = sub.parse().map_err(|_| TokenError::SubjectMalformed)?;
                self.by_trust_domain.get(id.trust_domain())
            }
            Kind::AgentA2a => None,
        };
        index
            .and_then(|&index| self.all.get(index))
            .filter(|issuer| (issuer.kind == IssuerKind::Spiffe) == (kind == Kind::SpiffeSvid))
            .ok_or(TokenError::UnknownIssuer)
    }

    /// In the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = &Issuer> {
        self.all.iter()
    }
}

/// The rules for one issuer alone; returns its first trust domain.
fn check(issuer: &Issuer) -> Result<&TrustDomain, Error> {
    let named = |error: fn(String) -> Error| Err(error(issuer.iss.clone()));
    let spiffe = issuer.kind == IssuerKind::Spiffe;
    if issuer.iss.is_empty() {
        return Err(Error::Nameless);
    }
    if issuer.audiences.is_empty() {
        return named(Error::NoAudience);
    }
    if issuer.algorithms.is_empty() {
        return named(Error::NoAlgorithm);
    }
    if spiffe && issuer.algorithms.contains(&Algorithm::EdDsa) {
        return named(Error::AlgorithmNotOfSpiffe);
    }
    if spiffe != issuer.keys.is_spiffe_bundle() {
        return named(Error::KeySourceMismatch);
    }
    match (spiffe, issuer.trust_domains.as_slice()) {
        // A SPIFFE bundle is of one trust domain, named by the configuration (SPIFFE Federation §5).
        (true, [only]) => Ok(only),
        (false, [first, ..]) => Ok(first),
        _ => named(Error::NoTrustDomain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;

    fn jwt(iss: &str, subject: SubjectMapping) -> Issuer {
        Issuer {
            iss: iss.to_owned(),
            kind: IssuerKind::Jwt { subject },
            keys: KeySource::Discovery,
            fetch_files: FetchFiles::default(),
            algorithms: ALGORITHMS_DEFAULT.to_vec(),
            audiences: vec!["https://fabric.example".to_owned()],
            trust_domains: vec!["trust.example".parse().expect("trust domain")],
            max_credential_age: limits::CREDENTIAL_AGE_MAX,
            verified_email: false,
        }
    }

    fn spiffe(iss: &str) -> Issuer {
        let keys = KeySource::SpiffeBundleEndpoint("https://bundle.example".to_owned());
        Issuer { kind: IssuerKind::Spiffe, keys, ..jwt(iss, SubjectMapping::Identifier) }
    }

    fn refusal(issuers: Vec<Issuer>) -> Error {
        Issuers::new(issuers).expect_err("must be refused")
    }

    #[test]
    fn issuer_without_name_audience_or_algorithm_is_refused() {
        let good = jwt("https://a", SubjectMapping::Kubernetes);
        assert!(Issuers::new(vec![good.clone()]).is_ok());
        let name = || "https://a".to_owned();
        assert_eq!(refusal(vec![Issuer { iss: String::new(), ..good.clone() }]), Error::Nameless);
        assert_eq!(refusal(vec![Issuer { audiences: vec![], ..good.clone() }]), Error::NoAudience(name()));
        assert_eq!(refusal(vec![Issuer { algorithms: vec![], ..good.clone() }]), Error::NoAlgorithm(name()));
        assert_eq!(
            refusal(vec![Issuer { trust_domains: vec![], ..good.clone() }]),
            Error::NoTrustDomain(name())
        );
        assert_eq!(refusal(vec![good.clone(), good]), Error::Duplicate(name()));
    }

    #[test]
    fn spiffe_issuer_with_eddsa_two_domains_or_a_jwks_is_refused() {
        let good = spiffe("spiffe://trust.example");
        let name = || good.iss.clone();
        assert!(Issuers::new(vec![good.clone()]).is_ok());
        let algorithms = vec![Algorithm::EdDsa];
        assert_eq!(refusal(vec![Issuer { algorithms, ..good.clone() }]), Error::AlgorithmNotOfSpiffe(name()));
        let keys = KeySource::Discovery;
        assert_eq!(refusal(vec![Issuer { keys, ..good.clone() }]), Error::KeySourceMismatch(name()));
        let mut two = good.clone();
        two.trust_domains.push("other.example".parse().expect("trust domain"));
        assert_eq!(refusal(vec![two]), Error::NoTrustDomain(name()));
        let second = spiffe("spiffe://elsewhere");
        let trust_domain = good.trust_domains[0].clone();
        assert_eq!(refusal(vec![good.clone(), second]), Error::TwoBundles(trust_domain));
    }

    #[test]
    fn two_opaque_issuers_of_one_trust_domain_are_refused() {
        let (a, b) = (jwt("https://a", SubjectMapping::Opaque), jwt("https://b", SubjectMapping::Opaque));
        let trust_domain = a.trust_domains[0].clone();
        assert_eq!(refusal(vec![a, b]), Error::OpaqueSubjectsMerged(trust_domain));
    }
}
