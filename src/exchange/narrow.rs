//! Narrowing: granted = requested ∩ subject's ∩ actor's ∩ policy's (contract §3, Narrowing).
//!
//! A party that does not state a claim does not restrict it. Nothing here widens.

use std::collections::BTreeSet;

use super::Error;
use super::delegation::DelegationPair;
use crate::policy::blast_radius::{BlastRadius, Containment};
use crate::policy::exchange::Allow;
use crate::token::foreign::Credential;

/// Content of a [`Grant`].
#[derive(Debug)]
pub struct GrantContent {
    /// Decision of the policy.
    pub allow: Allow,
    /// Subject and actor.
    pub pair: DelegationPair,
    pub capabilities: BTreeSet<String>,
    /// Words of `scope`: the capabilities and the plain scopes.
    pub scope: BTreeSet<String>,
    pub blast_radius: Option<BlastRadius>,
    /// Remaining depth.
    pub delegation_depth: u32,
}

/// Content of the new token. Only [`narrow`] creates one, from an [`Allow`] and a [`DelegationPair`].
#[derive(Debug, derive_more::Deref)]
pub struct Grant(GrantContent);

/// Intersects the decision of the policy with the requested scope and the claims of subject and actor.
///
/// # Errors
/// [`Error::NothingGranted`], [`Error::BlastRadius`].
pub fn narrow(
    allow: Allow,
    pair: DelegationPair,
    requested: &[String],
    containment: &Containment,
) -> Result<Grant, Error> {
    let parties = || std::iter::once(&pair.subject).chain(&pair.actor);
    // A request without `scope` is one for everything that is granted.
    let is_requested = |word: &String| requested.is_empty() || requested.contains(word);
    let capabilities: BTreeSet<String> = allow
        .capabilities
        .iter()
        .filter(|capability| is_requested(capability))
        .filter(|capability| parties().all(|party| has_capability(party, capability)))
        .cloned()
        .collect();
    let mut scope: BTreeSet<String> = allow
        .scopes
        .iter()
        .filter(|word| is_requested(word))
        .filter(|word| parties().all(|party| has_scope(party, word)))
        .cloned()
        .collect();
    scope.extend(capabilities.iter().cloned());
    // An empty result is refused with 403.
    if scope.is_empty() {
        let permitted: Vec<_> = allow.capabilities.union(&allow.scopes).map(String::as_str).collect();
        let words = |stated: Option<&[String]>| stated.map(|words| words.join(" "));
        let (subject, actor) = (&pair.subject, pair.actor.as_ref());
        let detail = compared([
            ("requested", words(Some(requested).filter(|words| !words.is_empty()))),
            ("policy", Some(permitted.join(" "))),
            ("scope of the subject", words(subject.scope.as_deref())),
            ("capabilities of the subject", words(subject.capabilities.as_deref())),
            ("scope of the actor", words(actor.and_then(|actor| actor.scope.as_deref()))),
            ("capabilities of the actor", words(actor.and_then(|actor| actor.capabilities.as_deref()))),
        ]);
        return Err(Error::NothingGranted { detail });
    }
    let blast_radius =
        smallest(&allow, parties(), containment).map_err(|_: Incomparable| Error::BlastRadius {
            detail: compared([
                ("policy", allow.blast_radius.as_ref().map(ToString::to_string)),
                ("subject", pair.subject.blast_radius.clone()),
                ("actor", pair.actor.as_ref().and_then(|actor| actor.blast_radius.clone())),
            ]),
        })?;
    let delegation_depth =
        pair.depth_max.map_or(allow.delegation_depth, |depth| depth.min(allow.delegation_depth));
    Ok(Grant(GrantContent { allow, pair, capabilities, scope, blast_radius, delegation_depth }))
}

/// A scope word names a capability (contract §3): each of both claims restricts, if present.
fn has_capability(party: &Credential, capability: &String) -> bool {
    party.capabilities.as_ref().is_none_or(|stated| stated.contains(capability))
        && has_scope(party, capability)
}

fn has_scope(party: &Credential, word: &String) -> bool {
    party.scope.as_ref().is_none_or(|stated| stated.contains(word))
}

/// The statements of the parties, for an operator. One that states nothing restricts nothing and is left out.
fn compared<const PARTIES: usize>(stated: [(&str, Option<String>); PARTIES]) -> String {
    let stated = stated.into_iter().filter_map(|(party, value)| Some(format!("{party}: {}", value?)));
    stated.collect::<Vec<_>>().join("; ")
}

/// Blast radii that cannot be compared.
struct Incomparable;

/// The smaller blast radius; 403 if they are not comparable.
fn smallest<'p>(
    allow: &Allow,
    parties: impl Iterator<Item = &'p Credential>,
    containment: &Containment,
) -> Result<Option<BlastRadius>, Incomparable> {
    let mut smallest = allow.blast_radius.clone();
    for stated in parties.filter_map(|party| party.blast_radius.as_deref()) {
        let stated: BlastRadius = stated.parse().map_err(|_| Incomparable)?;
        smallest = Some(match smallest {
            None => stated,
            Some(so_far) => containment.smaller(&so_far, &stated).map_err(|_| Incomparable)?,
        });
    }
    Ok(smallest)
}
