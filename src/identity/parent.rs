//! The parent of an agent (`on_behalf_of`): whether it may have this child (contract §3, Delegation).

use super::narrow::RequestedRights;
use super::{AgentRequest, Error};
use crate::clock::Timestamp;
use crate::limits;
use crate::policy::blast_radius::{BlastRadius, Containment};
use crate::state::{AgentStatus, CallContext, IssuedAgent, LeaseProof, State};

/// The parent named in a request. Checks, in this order:
///
/// 1. it exists, and was issued to the caller, or the caller is an operator
/// 2. neither it nor an ancestor is revoked
/// 3. it has not expired
///
/// # Errors
/// [`Error::ParentUnknown`], [`Error::ParentRevoked`], [`Error::ParentEnded`].
pub(super) async fn of(
    request: &AgentRequest,
    caller: &CallContext,
    state: &State,
    fresh: &LeaseProof,
    now: Timestamp,
) -> Result<Option<IssuedAgent>, Error> {
    let Some(id) = &request.on_behalf_of else { return Ok(None) };
    let parent = super::find_agent(state, id).await?.filter(|parent| super::may_see(caller, parent));
    let parent = parent.ok_or(Error::ParentUnknown)?;
    match state.agent_status(fresh, &parent, now)? {
        AgentStatus::Active => Ok(Some(parent)),
        AgentStatus::Revoked => Err(Error::ParentRevoked),
        AgentStatus::Ended => Err(Error::ParentEnded),
    }
}

/// Bounds a child by its parent: "depth ≤ parent − 1, capabilities and blast radius ⊆ parent's". A child that states
/// no blast radius gets its parent's.
///
/// # Errors
/// The first bound that is exceeded.
pub(super) fn limit(
    parent: &IssuedAgent,
    request: &AgentRequest,
    containment: &Containment,
) -> Result<RequestedRights, Error> {
    let parent = &parent.agent;
    let most = parent.delegation_depth.checked_sub(1).ok_or(Error::ParentTerminal)?;
    if parent.ancestors.len() >= limits::ACT_DEPTH_MAX {
        return Err(Error::ChainTooLong);
    }
    if request.delegation_depth > most {
        return Err(Error::DepthExceedsParent { most });
    }
    let lacking = request.capabilities.iter().find(|capability| !parent.capabilities.contains(capability));
    if let Some(capability) = lacking {
        return Err(Error::CapabilityExceedsParent { capability: capability.clone() });
    }
    let limit = parent.blast_radius.as_deref().map(str::parse::<BlastRadius>).transpose();
    let limit = limit.map_err(Error::internal)?;
    let blast_radius = match (&request.max_blast_radius, limit) {
        (Some(requested), Some(limit)) if !containment.fits(requested, &limit) => {
            return Err(Error::BlastRadiusExceedsParent { limit });
        }
        (Some(requested), _) => Some(requested.clone()),
        (None, limit) => limit,
    };
    Ok(RequestedRights { blast_radius, ..RequestedRights::of_request(request) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::identity::AgentIdentityRequest;
    use crate::state::Agent;

    fn parent(depth: u32, ancestors: usize, radius: Option<&str>) -> IssuedAgent {
        IssuedAgent {
            agent: Agent {
                capabilities: vec!["db.read".to_owned(), "db.write".to_owned()],
                blast_radius: radius.map(str::to_owned),
                delegation_depth: depth,
                ancestors: vec![String::new(); ancestors],
                ..Agent::default()
            },
            issued_by: String::new(),
            issued_at: Timestamp::default(),
            ends_at: Timestamp::default(),
            revoked_at: None,
            issued_index: 0,
            issuers: Vec::new(),
        }
    }

    fn agent_request(capability: &str, depth: u32, radius: Option<&str>) -> AgentRequest {
        AgentIdentityRequest {
            agent_name: Some("child".to_owned()),
            platform: Some("mcp".to_owned()),
            capabilities: Some(vec![capability.to_owned()]),
            delegation_depth: Some(json!(depth)),
            max_blast_radius: radius.map(str::to_owned),
            ..AgentIdentityRequest::default()
        }
        .validate()
        .expect("well formed")
    }

    fn outcome(parent: &IssuedAgent, request: &AgentRequest) -> String {
        match limit(parent, request, &Containment::default()) {
            Ok(requested) => {
                requested.blast_radius.map_or_else(|| "none".to_owned(), |radius| radius.to_string())
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn child_has_at_most_the_rights_of_its_parent() {
        let one = parent(2, 0, Some("namespace:pay"));
        for (request, expected) in [
            (agent_request("db.read", 1, None), "namespace:pay"),
            (agent_request("db.read", 0, Some("workspace:pay/ledger")), "workspace:pay/ledger"),
            (agent_request("db.write", 1, Some("namespace:pay")), "namespace:pay"),
            (
                agent_request("db.read", 2, None),
                "delegation_depth: must be at most 1, one less than the parent's",
            ),
            (agent_request("db", 0, None), "capabilities: the parent does not have db"),
            (agent_request("db.readall", 0, None), "capabilities: the parent does not have db.readall"),
            (
                agent_request("db.read", 0, Some("namespace:payroll")),
                "max_blast_radius: must lie within the parent's, namespace:pay",
            ),
            (
                agent_request("db.read", 0, Some("namespace")),
                "max_blast_radius: must lie within the parent's, namespace:pay",
            ),
            (
                agent_request("db.read", 0, Some("galaxy")),
                "max_blast_radius: must lie within the parent's, namespace:pay",
            ),
        ] {
            assert_eq!(outcome(&one, &request), expected);
        }
        assert_eq!(outcome(&parent(1, 0, None), &agent_request("db.read", 0, None)), "none");
        assert_eq!(outcome(&parent(1, 0, None), &agent_request("db.read", 0, Some("global"))), "global");
    }

    #[test]
    fn terminal_agent_and_agent_at_chain_end_have_no_children() {
        let request = agent_request("db.read", 0, None);
        assert!(
            outcome(&parent(0, 0, None), &request).contains("terminal agent, issued with delegation depth 0")
        );
        assert_eq!(outcome(&parent(1, limits::ACT_DEPTH_MAX - 1, None), &request), "none");
        assert!(outcome(&parent(1, limits::ACT_DEPTH_MAX, None), &request).contains("as many ancestors"));
    }
}
