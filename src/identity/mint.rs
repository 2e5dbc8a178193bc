//! From a grant to the claims of an identity token (contract §3, Tokens, and §4).

use super::Error;
use super::narrow::Grant;
use crate::clock::Timestamp;
use crate::id::{Digest128, LogPosition, WorkloadId};
use crate::limits;
use crate::state::IssuedAgent;
use crate::token::lineage::{self, FAMILY_END};
use crate::token::mint::{AccessTokenClaims, AgentClaims};

/// What does not follow from the grant.
pub(super) struct Circumstances<'c> {
    /// Our issuer.
    pub iss: &'c str,
    /// What it derives from beside the agent's ancestors and issuers: the keys that signed what it renews.
    pub lineage: Vec<Digest128>,
    /// When.
    pub now: Timestamp,
    /// What this node had applied before it looked anything up.
    pub position: LogPosition,
    /// The family of the token: drawn when it is issued, kept when it is renewed.
    pub family: String,
    /// Drawn at random: which token of its family it is.
    pub number: u64,
    /// Fresh and unique.
    pub txn: String,
}

/// The claims of the token of an agent. It lives [`limits::AGENT_TOKEN_LIFETIME`], and never longer than
/// the agent.
///
/// # Errors
/// [`Error::Ended`] if it would not live a second, [`Error::RenewedTooOften`].
pub(super) fn claims(
    issued: &IssuedAgent,
    grant: &Grant,
    circumstances: Circumstances<'_>,
) -> Result<AccessTokenClaims, Error> {
    let Circumstances { iss, lineage: carried, now, position, family, number, txn } = circumstances;
    let agent = &issued.agent;
    let iat = now.secs();
    let exp = Timestamp::from_secs(iat).plus(limits::AGENT_TOKEN_LIFETIME).min(issued.ends_at).secs();
    if exp <= iat {
        return Err(Error::Ended);
    }
    let jti = format!("{family}{FAMILY_END}{number}");
    let mut derives_from = carried;
    let family = lineage::family(iss, &jti);
    if !derives_from.contains(&family) {
        derives_from.push(family);
    }
    // With whoever had it, or one of those, issued: an agent dies with the workload that asked for it.
    for ancestor in agent.ancestors.iter().chain(&issued.issuers) {
        let digest = lineage::workload(&ancestor.parse::<WorkloadId>().map_err(Error::internal)?);
        if !derives_from.contains(&digest) {
            derives_from.push(digest);
        }
    }
    if derives_from.len() > limits::LINEAGE_MAX {
        return Err(Error::RenewedTooOften);
    }
    Ok(AccessTokenClaims {
        iss: iss.to_owned(),
        sub: agent.agent_id.clone(),
        // It is for us alone: what a tool is shown must be exchanged first.
        aud: iss.to_owned(),
        iat,
        nbf: iat,
        exp,
        jti,
        client_id: agent.agent_id.clone(),
        txn,
        scope: Some(grant.capabilities().iter().map(String::as_str).collect::<Vec<_>>().join(" ")),
        capabilities: grant.capabilities().iter().cloned().collect(),
        blast_radius: grant.blast_radius().map(ToString::to_string),
        delegation_depth: Some(grant.delegation_depth()),
        act: None,
        may_act: None,
        lineage: derives_from.iter().map(ToString::to_string).collect(),
        // An exchange chain never outlives the identity token it began with.
        root_exp: exp,
        execution: None,
        agent: Some(AgentClaims {
            platform: agent.platform.clone(),
            agent_name: agent.agent_name.clone(),
            on_behalf_of: agent.on_behalf_of.clone(),
        }),
        idx: position.to_string(),
        policy: grant.policy_digest().to_owned(),
        cnf: None,
    })
}
