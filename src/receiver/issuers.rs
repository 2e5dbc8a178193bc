//! Whose signals are received: the configuration of their issuers.

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
    /// Where its keys are; `None`: nothing that is signed in its name is accepted.
    pub keys: Option<KeySource>,
    /// The algorithms its tokens may use.
    pub algorithms: Vec<Algorithm>,
    /// The `aud` values of which its tokens must hold one.
    pub audiences: Vec<String>,
    /// Who may send what is not signed in its name.
    pub callers: BTreeSet<WorkloadId>,
    /// Whom it may revoke.
    pub authority: Authority,
    /// Most facts that it may revoke, block or lift in a minute of log time.
    pub revocations_per_minute: u32,
    /// Whether it may block a caller that has `cluster.admin`.
    pub may_block_operators: bool,
}

/// One `iss` is configured twice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("issuer {0} is configured twice")]
pub struct Duplicate(String);

/// All configured issuers of signals.
#[derive(Clone, Debug, Default)]
pub struct SignalIssuers(BTreeMap<String, SignalIssuer>);

impl SignalIssuers {
    /// Checks that no two of them have one name.
    ///
    /// # Errors
    /// [`Duplicate`].
    pub fn new(issuers: Vec<SignalIssuer>) -> Result<Self, Duplicate> {
        let mut all = BTreeMap::new();
        for issuer in issuers {
            if let Some(earlier) = all.insert(issuer.iss.clone(), issuer) {
                return Err(Duplicate(earlier.iss));
            }
        }
        Ok(Self(all))
    }

    /// The issuer with this `iss`.
    #[must_use]
    pub fn of(&self, iss: &str) -> Option<&SignalIssuer> {
        self.0.get(iss)
    }

    /// The `iss` of each that has keys, and where they are.
    pub fn key_sources(&self) -> impl Iterator<Item = (&str, &KeySource)> {
        self.0.values().filter_map(|issuer| Some((issuer.iss.as_str(), issuer.keys.as_ref()?)))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none: then no signal is received.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Whose credentials are accepted here: what others name, no credential derives from.
#[derive(Clone, Debug, Default)]
pub struct CredentialIssuers(BTreeMap<String, bool>);

impl CredentialIssuers {
    /// This fabric and the configured issuers.
    #[must_use]
    pub fn new(own_issuer: &str, issuers: &[Issuer]) -> Self {
        let of_others = issuers.iter().map(|issuer| (issuer.iss.clone(), issuer.verified_email));
        // No credential of our own has an address.
        Self(of_others.chain([(own_issuer.to_owned(), false)]).collect())
    }

    /// Whether credentials of `iss` are accepted.
    #[must_use]
    pub fn contains(&self, iss: &str) -> bool {
        self.0.contains_key(iss)
    }

    /// Whether the addresses in them are believed.
    #[must_use]
    pub fn believes_email_of(&self, iss: &str) -> bool {
        self.0.get(iss).copied().unwrap_or(false)
    }
}
