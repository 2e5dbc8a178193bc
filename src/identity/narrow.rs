//! Narrowing: the requested agent ∩ policy. Nothing here widens.

use std::collections::BTreeSet;

use super::{Error, Request};
use crate::policy::blast_radius::{BlastRadius, Containment};
use crate::policy::identity::Allow;
use crate::state::Agent;

/// Requested rights of an agent: from a request within the limits of its parent, or from its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) capabilities: BTreeSet<String>,
    pub(super) blast_radius: Option<BlastRadius>,
    pub(super) delegation_depth: u32,
}

impl Wanted {
    pub(super) fn of_request(request: &Request) -> Self {
        Self {
            capabilities: request.capabilities.clone(),
            blast_radius: request.max_blast_radius.clone(),
            delegation_depth: request.delegation_depth,
        }
    }

    pub(super) fn of_record(agent: &Agent) -> Result<Self, Error> {
        let blast_radius = agent.blast_radius.as_deref().map(str::parse::<BlastRadius>).transpose();
        Ok(Self {
            capabilities: agent.capabilities.iter().cloned().collect(),
            blast_radius: blast_radius.map_err(Error::internal)?,
            delegation_depth: agent.delegation_depth,
        })
    }
}

/// Rights of an agent's record or token. Only [`narrow`] makes one, from an [`Allow`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    capabilities: BTreeSet<String>,
    blast_radius: Option<BlastRadius>,
    delegation_depth: u32,
    policy_digest: String,
}

impl Grant {
    /// Granted capabilities: at least one.
    #[must_use]
    pub fn capabilities(&self) -> &BTreeSet<String> {
        &self.capabilities
    }

    #[must_use]
    pub fn blast_radius(&self) -> Option<&BlastRadius> {
        self.blast_radius.as_ref()
    }

    /// Remaining depth.
    #[must_use]
    pub fn delegation_depth(&self) -> u32 {
        self.delegation_depth
    }

    /// Digest of the deciding policy bundle.
    #[must_use]
    pub fn policy_digest(&self) -> &str {
        &self.policy_digest
    }
}

/// Intersects the requested rights with the decision of the policy.
///
/// # Errors
/// [`Error::NothingGranted`], [`Error::BlastRadius`].
pub(super) fn narrow(permit: &Allow, wanted: &Wanted, containment: &Containment) -> Result<Grant, Error> {
    let capabilities: BTreeSet<_> =
        wanted.capabilities.intersection(permit.capabilities()).cloned().collect();
    // "Nothing left: 403."
    if capabilities.is_empty() {
        return Err(Error::NothingGranted);
    }
    // "Blast radius = the smaller; not comparable: 403."
    let blast_radius = match (&wanted.blast_radius, permit.blast_radius()) {
        (Some(wanted), Some(most)) => {
            Some(containment.smaller(wanted, most).map_err(|_| Error::BlastRadius)?)
        }
        (one, other) => one.as_ref().or(other).cloned(),
    };
    Ok(Grant {
        capabilities,
        blast_radius,
        delegation_depth: wanted.delegation_depth.min(permit.delegation_depth()),
        policy_digest: permit.policy_digest().to_owned(),
    })
}
