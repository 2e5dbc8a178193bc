//! Configured issuers of signals, and the issuers whose credentials are accepted.

use std::collections::{BTreeMap, BTreeSet};

use super::authority::Authority;
use crate::id::WorkloadId;
use crate::token::issuer::{Issuer, KeySource};
use crate::token::jws::Algorithm;

/// One issuer of signals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalIssuer {
    /// `iss`, compared byte for byte.
    pub iss: String,
    /// Source of its keys; `None`: no signed token of this issuer is accepted.
    pub keys: Option<KeySource>,
    /// Algorithms that its tokens may use.
    pub algorithms: Vec<Algorithm>,
    /// Accepted `aud` values; a token must contain one.
    pub audiences: Vec<String>,
    /// Callers that may send plain SETs in its name.
    pub callers: BTreeSet<WorkloadId>,
    /// Subjects that it may revoke.
    pub authority: Authority,
    /// Maximum facts to revoke, block or lift per minute of log time.
    pub revocations_per_minute: u32,
    /// Whether it may block a caller with `cluster.admin`.
    pub may_block_operators: bool,
}

/// An `iss` is configured twice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("issuer {0} is configured twice")]
pub struct DuplicateIssuer(String);

/// All configured issuers of signals.
#[derive(Clone, Debug, Default)]
pub struct SignalIssuers(BTreeMap<String, SignalIssuer>);

impl SignalIssuers {
    /// Checks that every `iss` is unique.
    ///
    pub fn new(issuers: Vec<SignalIssuer>) -> Result<Self, DuplicateIssuer> {
        let mut all = BTreeMap::new();
        for issuer in issuers {
            if let Some(earlier) = all.insert(issuer.iss.clone(), issuer) {
                return Err(DuplicateIssuer(earlier.iss));
            }
        }
        Ok(Self(all))
    }

    /// The issuer with this `iss`.
    pub fn get(&self, iss: &str) -> Option<&SignalIssuer> {
        self.0.get(iss)
    }

    /// `iss` and key source of every issuer with keys.
    pub fn key_sources(&self) -> impl Iterator<Item = (&str, &KeySource)> {
        self.0.values().filter_map(|issuer| Some((issuer.iss.as_str(), issuer.keys.as_ref()?)))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none: then every signal is rejected.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Issuers whose credentials are accepted, with `verified_email`. No credential derives from facts of others.
#[derive(Clone, Debug, Default)]
pub struct CredentialIssuers(BTreeMap<String, bool>);

impl CredentialIssuers {
    /// This fabric and the configured issuers.
    pub fn new(own_issuer: &str, issuers: &[Issuer]) -> Self {
        let configured = issuers.iter().map(|issuer| (issuer.iss.clone(), issuer.verified_email));
        // Our own credentials contain no email address.
        Self(configured.chain([(own_issuer.to_owned(), false)]).collect())
    }

    /// Whether credentials of `iss` are accepted.
    pub fn contains(&self, iss: &str) -> bool {
        self.0.contains_key(iss)
    }

    /// Whether email addresses in its credentials are verified.
    pub fn verifies_email(&self, iss: &str) -> bool {
        self.0.get(iss).copied().unwrap_or(false)
    }
}
