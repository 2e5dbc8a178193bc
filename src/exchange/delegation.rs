//! Delegation: whether this actor may act for this subject, and the resulting actor chain
//! (contract §3, Delegation; RFC 8693 §4.1, §4.4).

use super::Error;
use crate::clock::Timestamp;
use crate::id::Digest128;
use crate::limits;
use crate::token::act::{Act, NamedActor};
use crate::token::foreign::Credential;
use crate::token::lineage::canonical_name;

/// Content of a [`DelegationPair`].
#[derive(Debug)]
pub struct Pair {
    /// Subject of the new token.
    pub subject: Credential,
    /// Actor of the new token.
    pub actor: Option<Credential>,
    /// The claim `act`: this actor, then every earlier actor.
    pub act: Option<Act>,
    /// Maximum remaining depth by subject and actor; `None` if neither states one.
    pub depth_max: Option<u32>,
    /// Lineage digests of both credentials.
    pub lineage: Vec<Digest128>,
    /// Peer fabrics through which subject or actor came.
    pub via: Vec<String>,
}

/// A subject and its actor that passed every delegation rule. Only [`pair`] creates one.
#[derive(Debug, derive_more::Deref)]
pub struct DelegationPair(Pair);

impl DelegationPair {
    /// Time of issue of the oldest credential of the chain: the earlier of both `root_iat`.
    #[must_use]
    pub fn root_iat(&self) -> Timestamp {
        let subject = self.subject.root_iat;
        self.actor.as_ref().map_or(subject, |actor| subject.min(actor.root_iat))
    }

    /// End of the chain: the earlier of both `root_exp`.
    #[must_use]
    pub fn root_exp(&self) -> Timestamp {
        let subject = self.subject.root_exp;
        self.actor.as_ref().map_or(subject, |actor| subject.min(actor.root_exp))
    }
}

/// Checks the rules of a pair, in this order:
///
/// 1. `may_act` of the subject, if present, names the actor
/// 2. the actor is not in the chain yet
/// 3. the actor has remaining depth
/// 4. the chain has at most [`limits::ACT_DEPTH_MAX`] actors
/// 5. the lineage has at most [`limits::LINEAGE_MAX`] digests
/// 6. subject and actor came through at most [`limits::VIA_MAX`] peer fabrics
pub fn pair(subject: Credential, actor: Option<Credential>) -> Result<DelegationPair, Error> {
    let (act, depth_max) = match &actor {
        // "No actor: depth unchanged."
        None => (subject.act.clone(), subject.delegation_depth),
        Some(actor) => {
            // "`may_act` in the subject token must name the actor if present."
            let named = NamedActor { iss: &actor.iss, sub: &actor.original_sub, id: actor.sub.as_str() };
            if subject.may_act.as_ref().is_some_and(|may_act| !may_act.names(&subject.iss, &named)) {
                return Err(Error::ActorNotNamed);
            }
            refuse_loop(&subject, actor)?;
            // "It spends one hop of the actor's `delegation_depth`"; absent is 0.
            let left = actor.delegation_depth.unwrap_or(0);
            let left = left.checked_sub(1).ok_or(Error::DelegationDepthExhausted)?;
            // "New depth = min(actor − 1, subject's if present)."
            let depth = subject.delegation_depth.map_or(left, |subject| subject.min(left));
            (Some(extend(actor, subject.act.as_ref())?), Some(depth))
        }
    };
    let lineage = union(&subject.lineage, actor.as_ref().map(|actor| actor.lineage.as_slice()));
    if lineage.len() > limits::LINEAGE_MAX {
        return Err(Error::LineageTooLong);
    }
    let via = union(&subject.via, actor.as_ref().map(|actor| actor.via.as_slice()));
    if via.len() > limits::VIA_MAX {
        return Err(Error::TooManyFabrics);
    }
    Ok(DelegationPair(Pair { subject, actor, act, depth_max, lineage, via }))
}

/// The values of the subject, then those that the actor adds.
fn union<T: Clone + PartialEq>(subjects: &[T], actors: Option<&[T]>) -> Vec<T> {
    let mut all = subjects.to_vec();
    for value in actors.unwrap_or_default() {
        if !all.contains(value) {
            all.push(value.clone());
        }
    }
    all
}

/// "An agent already in the chain: 403." The chain is the subject, the actor, and the actors in the `act` of both.
fn refuse_loop(subject: &Credential, actor: &Credential) -> Result<(), Error> {
    let prior = [actor.act.as_ref(), subject.act.as_ref()];
    let prior = prior.into_iter().flatten().flat_map(Act::chain).map(|act| act.sub.as_str());
    let mut seen = Vec::new();
    for name in [subject.sub.as_str(), actor.sub.as_str()].into_iter().chain(prior) {
        let name = canonical_name(name);
        if seen.contains(&name) {
            return Err(Error::ActorLoop);
        }
        seen.push(name);
    }
    Ok(())
}

/// This actor, then the actor's own chain, then the subject's chain.
fn extend(actor: &Credential, prior: Option<&Act>) -> Result<Act, Error> {
    let own = actor.act.iter().flat_map(Act::chain);
    let subjects = prior.into_iter().flat_map(Act::chain);
    let older: Vec<(String, String)> =
        own.chain(subjects).map(|act| (act.iss.clone(), act.sub.clone())).collect();
    if older.len() >= limits::ACT_DEPTH_MAX {
        return Err(Error::ChainTooLong);
    }
    let nested =
        older.into_iter().rev().fold(None, |inner, (iss, sub)| Some(Box::new(Act { iss, sub, act: inner })));
    Ok(Act { iss: actor.iss.clone(), sub: actor.sub.to_string(), act: nested })
}
