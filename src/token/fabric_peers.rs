//! Ceilings of peer fabrics: the limits of a peer's token in this fabric.
//!
//! A ceiling narrows the credential itself, before delegation and policy see it. It therefore holds for each party of
//! an exchange, also for a peer's actor with a subject of this fabric.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::credential::Credential;
use super::federated::PeerToken;
use crate::clock::Timestamp;
use crate::policy::blast_radius::{BlastRadius, Containment};

/// Role in which a token is presented to an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Subject,
    Actor,
}

/// Limits that the configuration sets for the tokens of a peer. By default none is accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ceiling {
    /// Roles in which they are accepted.
    pub roles: BTreeSet<Role>,
    /// Capabilities, and words of `scope`, that mean the same here. No other one counts.
    pub capabilities: BTreeSet<String>,
    /// The largest blast radius; `None` if policy alone limits it.
    pub max_blast_radius: Option<BlastRadius>,
    /// Blast radii of the peer, each with its counterpart here.
    pub blast_radius: BTreeMap<BlastRadius, BlastRadius>,
    /// Maximum delegation depth here.
    pub max_delegation_depth: u32,
    /// Time after which a chain must return to its fabric.
    pub max_chain: Duration,
}

/// A token of a peer breaks its ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AboveCeiling {
    /// The peer's tokens are not accepted in this role.
    #[error("as: tokens of this peer are not accepted in this role")]
    Role,
    /// Its blast radius has no meaning here.
    #[error("blast_radius: that of the token has no counterpart here")]
    BlastRadiusUnmapped,
    /// Its blast radius and the largest one cannot be compared.
    #[error("max_blast_radius: that of the token is not comparable")]
    BlastRadiusNotComparable,
}

impl Ceiling {
    /// The credential of a judged token in this role, narrowed to the ceiling. A claim that the token lacks
    /// restricts nothing by itself, but the ceiling does; without `delegation_depth` there is no delegation.
    ///
    /// # Errors
    /// [`AboveCeiling`].
    pub fn limit(
        &self,
        token: PeerToken,
        role: Role,
        containment: &Containment,
        now: Timestamp,
    ) -> Result<Credential, AboveCeiling> {
        if !self.roles.contains(&role) {
            return Err(AboveCeiling::Role);
        }
        let mut credential = token.credential.0;
        credential.capabilities = Some(self.common(credential.capabilities));
        credential.scope = Some(self.common(credential.scope));
        let blast_radius = self.smallest(credential.blast_radius.as_deref(), containment)?;
        credential.blast_radius = blast_radius.as_ref().map(ToString::to_string);
        let depth = credential.delegation_depth.unwrap_or(0).min(self.max_delegation_depth);
        credential.delegation_depth = Some(depth);
        credential.root_exp = credential.root_exp.min(now.plus(self.max_chain));
        Ok(Credential(credential))
    }

    /// The stated words that are accepted here; all accepted ones if the claim is absent.
    fn common(&self, stated: Option<Vec<String>>) -> Vec<String> {
        match stated {
            Some(stated) => stated.into_iter().filter(|word| self.capabilities.contains(word)).collect(),
            None => self.capabilities.iter().cloned().collect(),
        }
    }

    /// The stated blast radius in the terms of this fabric, at most the largest one. To ignore one without a counterpart
    /// would widen the token.
    fn smallest(
        &self,
        stated: Option<&str>,
        containment: &Containment,
    ) -> Result<Option<BlastRadius>, AboveCeiling> {
        let Some(stated) = stated else { return Ok(self.max_blast_radius.clone()) };
        let stated = stated.parse().map_err(|_| AboveCeiling::BlastRadiusUnmapped)?;
        let ours = self.blast_radius.get(&stated).ok_or(AboveCeiling::BlastRadiusUnmapped)?;
        let Some(largest) = &self.max_blast_radius else { return Ok(Some(ours.clone())) };
        let smaller = containment.smaller(ours, largest);
        smaller.map(Some).map_err(|_| AboveCeiling::BlastRadiusNotComparable)
    }
}

#[cfg(test)]
mod tests;
