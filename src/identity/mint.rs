//! Builds the claims of an identity token from a grant (contract §3, Tokens, and §4).

use super::Error;
use super::narrow::Grant;
use crate::clock::Timestamp;
use crate::id::{Digest128, LogPosition, WorkloadId};
use crate::limits;
use crate::state::IssuedAgent;
use crate::token::lineage::{self, FAMILY_END};
use crate::token::mint::{AccessTokenClaims, AgentClaims};

/// Inputs of the claims that do not follow from the grant.
pub(super) struct MintContext<'c> {
    /// Our issuer.
    pub iss: &'c str,
    /// Key that signs it.
    pub kid: &'c str,
    /// Lineage carried over from the renewed token: the keys that signed its predecessors; or the operator that has it
    /// minted.
    pub lineage: Vec<Digest128>,
    /// Time of the request.
    pub now: Timestamp,
    /// Time of issue of the agent's oldest ancestor, or of the agent itself.
    pub root_issued_at: Timestamp,
    /// Last applied log id, read before any lookup.
    pub position: LogPosition,
    /// Family of the token: random at issue, the same after a renewal.
    pub family: String,
    /// Random number within the family.
    pub number: u64,
    /// New transaction id.
    pub txn: String,
}

/// Builds the claims of an identity token. Lifetime: [`limits::AGENT_TOKEN_LIFETIME`], at most until the agent expires.
///
/// # Errors
/// [`Error::Ended`] if the lifetime is below one second, [`Error::RenewedTooOften`].
pub(super) fn claims(
    issued: &IssuedAgent,
    grant: &Grant,
    context: MintContext<'_>,
) -> Result<AccessTokenClaims, Error> {
    let MintContext { iss, kid, lineage: carried, now, root_issued_at, position, family, number, txn } =
        context;
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
    // The issuers too: an agent is revoked with the workload that had requested it.
    for ancestor in agent.ancestors.iter().chain(&issued.issuers) {
        let digest = lineage::workload(&ancestor.parse::<WorkloadId>().map_err(Error::internal)?);
        if !derives_from.contains(&digest) {
            derives_from.push(digest);
        }
    }
    // An exchange adds the subject, the client and the token, and the key that signs it.
    let added = 3 + usize::from(!derives_from.contains(&lineage::signing_key(iss, kid)));
    if derives_from.len() + added > limits::LINEAGE_MAX {
        return Err(Error::RenewedTooOften);
    }
    Ok(AccessTokenClaims {
        iss: iss.to_owned(),
        sub: agent.agent_id.clone(),
        // For us alone: it must be exchanged before a tool accepts it.
        aud: iss.to_owned(),
        iat,
        nbf: iat,
        exp,
        jti,
        client_id: agent.agent_id.clone(),
        txn,
        scope: Some(grant.capabilities.iter().map(String::as_str).collect::<Vec<_>>().join(" ")),
        capabilities: grant.capabilities.iter().cloned().collect(),
        blast_radius: grant.blast_radius.as_ref().map(ToString::to_string),
        delegation_depth: Some(grant.delegation_depth),
        act: None,
        may_act: None,
        lineage: derives_from.iter().map(ToString::to_string).collect(),
        via: Vec::new(),
        // An agent is revoked with its ancestors and the callers that they were issued to; an exchange chain
        // ends with its identity token.
        root_iat: root_issued_at.secs().min(iat),
        root_exp: exp,
        execution: None,
        agent: Some(AgentClaims {
            platform: agent.platform.clone(),
            agent_name: agent.agent_name.clone(),
            on_behalf_of: agent.on_behalf_of.clone(),
        }),
        idx: position.to_string(),
        policy: grant.policy_digest.clone(),
        cnf: None,
    })
}
