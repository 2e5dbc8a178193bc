//! The settings of `[[federation.peers]]` that limit a peer's tokens.

use std::collections::{BTreeMap, BTreeSet};

use super::checker::duration;
use super::schema::PeerFabric;
use crate::api::caller::Capability;
use crate::policy::blast_radius::{BlastRadius, Containment};
use crate::token::fabric_peers::{Ceiling, Role};
use crate::{limits, text};

/// A setting of the section and the rule that it breaks.
pub(super) type Broken = (&'static str, String);

/// Checks the settings, each alone. A peer whose tokens are not accepted has none of them.
pub(super) fn check(row: &PeerFabric, containment: Option<&Containment>) -> Result<Ceiling, Vec<Broken>> {
    let mut broken = Vec::new();
    let roles = keep("as", roles(row), &mut broken);
    let capabilities = keep("capabilities", capabilities(&row.capabilities), &mut broken);
    let largest = row.max_blast_radius.as_deref().map(|text| own_radius(text, containment)).transpose();
    let max_blast_radius = keep("max_blast_radius", largest, &mut broken);
    let blast_radius = keep("blast_radius", counterparts(&row.blast_radius, containment), &mut broken);
    let max_delegation_depth = keep("max_delegation_depth", depth(row.max_delegation_depth), &mut broken);
    let (shortest, longest) = (limits::PEER_FABRIC_CHAIN_MIN, limits::CREDENTIAL_AGE_MAX);
    let max_chain = keep("max_chain", duration(&row.max_chain, shortest, longest), &mut broken);
    let ceiling = || {
        Some(Ceiling {
            roles: roles?,
            capabilities: capabilities?,
            max_blast_radius: max_blast_radius?,
            blast_radius: blast_radius?,
            max_delegation_depth: max_delegation_depth?,
            max_chain: max_chain?,
        })
    };
    ceiling().filter(|_| broken.is_empty()).ok_or(broken)
}

fn keep<T>(setting: &'static str, outcome: Result<T, String>, broken: &mut Vec<Broken>) -> Option<T> {
    outcome.map_err(|rule| broken.push((setting, rule))).ok()
}

/// Default: none, so that a peer's tokens are not accepted by accident.
fn roles(row: &PeerFabric) -> Result<BTreeSet<Role>, String> {
    let role = |text: &String| match text.as_str() {
        "subject" => Ok(Role::Subject),
        "actor" => Ok(Role::Actor),
        _ => Err(format!("{text:?}: must be \"subject\" or \"actor\"")),
    };
    let roles = row.roles.iter().map(role).collect::<Result<BTreeSet<_>, _>>()?;
    if roles.len() < row.roles.len() {
        Err("must name each role once".to_owned())
    } else if !roles.is_empty() && !row.accept {
        Err("needs accept = true: the peer's tokens are judged by its ledger".to_owned())
    } else {
        Ok(roles)
    }
}

/// A capability of our own routes would let a peer's workload administer this fabric.
fn capabilities(stated: &[String]) -> Result<BTreeSet<String>, String> {
    if stated.len() > limits::CAPABILITIES_MAX {
        return Err(format!("must have at most {}", limits::CAPABILITIES_MAX));
    }
    for word in stated {
        if !text::is_scope_word(word) || word.len() > limits::CAPABILITY_BYTES_MAX {
            return Err(format!("{word:?}: must be a scope word"));
        }
        if word.parse::<Capability>().is_ok() {
            return Err(format!("{word:?}: is a capability of this fabric's own routes"));
        }
    }
    Ok(stated.iter().cloned().collect())
}

/// A blast radius of a known kind: nothing would fit one of another kind.
fn own_radius(text: &str, containment: Option<&Containment>) -> Result<BlastRadius, String> {
    let radius: BlastRadius = text.parse().map_err(|error| format!("{text:?}: {error}"))?;
    // An invalid order is a mistake of its own.
    if containment.is_none_or(|containment| containment.fits(&radius, &radius)) {
        Ok(radius)
    } else {
        Err(format!("{text:?}: its kind is not one of blast_radius.order"))
    }
}

fn counterparts(
    stated: &BTreeMap<String, String>,
    containment: Option<&Containment>,
) -> Result<BTreeMap<BlastRadius, BlastRadius>, String> {
    if stated.len() > limits::BLAST_RADIUS_PARENTS_MAX {
        return Err(format!("must have at most {}", limits::BLAST_RADIUS_PARENTS_MAX));
    }
    let counterpart = |(theirs, ours): (&String, &String)| {
        let key = theirs.parse().map_err(|error| format!("{theirs:?}: {error}"))?;
        Ok((key, own_radius(ours, containment)?))
    };
    stated.iter().map(counterpart).collect()
}

fn depth(stated: u64) -> Result<u32, String> {
    let depth = u32::try_from(stated).ok().filter(|depth| *depth <= limits::DELEGATION_DEPTH_MAX);
    depth.ok_or_else(|| format!("must be 0 to {}", limits::DELEGATION_DEPTH_MAX))
}
