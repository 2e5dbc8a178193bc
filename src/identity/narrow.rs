//! Narrowing: the requested agent ∩ policy. Nothing here widens.

use std::collections::BTreeSet;

use super::{AgentRequest, Error};
use crate::policy::blast_radius::{BlastRadius, Containment};
use crate::policy::identity::{Allow, Rights};
use crate::state::Agent;

/// Requested rights of an agent: from a request within the limits of its parent, or from its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestedRights {
    pub(super) capabilities: BTreeSet<String>,
    pub(super) blast_radius: Option<BlastRadius>,
    pub(super) delegation_depth: u32,
}

impl RequestedRights {
    pub(super) fn of_request(request: &AgentRequest) -> Self {
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

/// Rights of an agent's record or token, with at least one capability. Only [`narrow`] creates one, from an [`Allow`].
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Deref)]
pub struct Grant(Rights);

/// Intersects the requested rights with the decision of the policy.
///
/// # Errors
/// [`Error::NothingGranted`], [`Error::BlastRadius`].
pub(super) fn narrow(
    allow: &Allow,
    requested: &RequestedRights,
    containment: &Containment,
) -> Result<Grant, Error> {
    let capabilities: BTreeSet<_> =
        requested.capabilities.intersection(&allow.capabilities).cloned().collect();
    // "Nothing left: 403."
    if capabilities.is_empty() {
        let words = |words: &BTreeSet<String>| words.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
        let (requested, permitted) = (words(&requested.capabilities), words(&allow.capabilities));
        return Err(Error::NothingGranted { detail: format!("requested: {requested}; policy: {permitted}") });
    }
    // "Blast radius = the smaller; not comparable: 403."
    let blast_radius = match (&requested.blast_radius, &allow.blast_radius) {
        (Some(requested), Some(most)) => {
            Some(containment.smaller(requested, most).map_err(|_| Error::BlastRadius)?)
        }
        (one, other) => one.as_ref().or(other.as_ref()).cloned(),
    };
    Ok(Grant(Rights {
        capabilities,
        blast_radius,
        delegation_depth: requested.delegation_depth.min(allow.delegation_depth),
        policy_digest: allow.policy_digest.clone(),
    }))
}
