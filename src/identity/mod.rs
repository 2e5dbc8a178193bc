//! Agents: issue, renewal and revocation of their identity, and their encryption keys.
//!
//! [`AgentIdentities::issue`] is request, parent, policy, narrowing, log, mint; [`AgentIdentities::renew`] and
//! [`AgentIdentities::another_token`] start from the record.
//! Each step has a file.

pub(crate) mod encryption_keys;
mod error;
mod mint;
mod narrow;
mod parent;
mod request;

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use serde::Serialize;
use utoipa::ToSchema;

pub(crate) use error::Error;
pub(crate) use narrow::Grant;
pub(crate) use request::{AgentIdentityRequest, AgentRequest};

use self::narrow::RequestedRights;
use crate::clock::{Clock, Timestamp};
use crate::id::{Digest128, LogPosition, TrustDomain, WorkloadId};
use crate::keyring::Keyring;
use crate::policy::blast_radius::Containment;
use crate::policy::identity::{Allow, Parent, PolicyInput, RequestedIdentity};
use crate::policy::{Bundle, Denial, Point};
use crate::state::{
    self, Agent, AgentStatus, Awaited, CallContext, IssuedAgent, LeaseProof, LinearizableRead, SecurityEvent,
    State, stated,
};
use crate::telemetry::Metrics;
use crate::text::values;
use crate::token::foreign::Credential;
use crate::token::lineage::Fact;
use crate::token::signing_key::SigningKey;
use crate::token::{self, lineage};

/// Dependencies of agent identity.
pub struct AgentIdentities {
    /// Our `iss`, and the `aud` of identity tokens.
    pub issuer: String,
    /// Trust domain of every agent.
    pub trust_domain: TrustDomain,
    pub keyring: Keyring,
    pub state: State,
    /// Order of blast radii.
    pub containment: Containment,
    /// Compiled active policy.
    pub policy: Arc<ArcSwapOption<Bundle>>,
    pub clock: Clock,
    pub metrics: Metrics,
}

/// An issued identity. The token is a bearer token for this fabric, and a subject or actor token.
#[derive(Clone, Serialize, ToSchema)]
pub struct AgentIdentity {
    /// `wimse://<trust domain>/agent/<platform>/<uuid>`
    pub agent_id: String,
    /// The identity token, valid for one hour.
    pub token: String,
    /// As requested.
    #[schema(value_type = values::Platform)]
    pub platform: String,
    /// Granted capabilities.
    pub capabilities: Vec<String>,
    /// Granted blast radius; absent if unrestricted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blast_radius: Option<String>,
    /// End of the token. RFC 3339, UTC.
    pub expires_at: String,
    /// Its `jti`, for the log.
    #[serde(skip)]
    pub jti: String,
}

/// An agent. Times are RFC 3339, UTC.
#[derive(Serialize, ToSchema)]
pub struct AgentRecord {
    #[serde(flatten)]
    #[schema(inline)]
    agent: Agent,
    /// The caller that had it issued; absent for the anonymous caller of development mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    issued_by: Option<String>,
    /// Time of issue.
    issued_at: String,
    /// End of the identity; it is renewable until then.
    ends_at: String,
    /// `revoked`: the agent, an ancestor, or the issuing caller is revoked.
    #[schema(value_type = values::AgentStatus)]
    status: &'static str,
    /// Time of its own revocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<String>,
}

/// Times and position of one mint, read before any lookup.
struct MintTime {
    /// Revocations applied after it cover the token.
    position: LogPosition,
    now: Timestamp,
    /// The later of `now` and log time.
    log_now: Timestamp,
}

impl AgentIdentities {
    /// The policy, if it has a rule about agents. Checked before anything else.
    ///
    /// # Errors
    /// [`Error::NotConfigured`], [`Error::NoPolicy`].
    pub fn configured(&self) -> Result<Guard<Option<Arc<Bundle>>>, Error> {
        let policy = self.policy.load();
        match policy.as_ref() {
            None => Err(Error::NoPolicy),
            Some(bundle) if !bundle.decides_identity() => Err(Error::NotConfigured),
            Some(_) => Ok(policy),
        }
    }

    /// Issues an identity to a new agent and mints its first token. A refused request changes nothing.
    ///
    /// # Errors
    /// [`Error`]: each variant is one rule.
    pub async fn issue(&self, request: &AgentRequest, caller: &CallContext) -> Result<AgentIdentity, Error> {
        let fresh = self.state.fresh().await?;
        self.state.check_clock(&fresh)?;
        let mint_time = self.mint_time()?;
        if self.state.refuses(&fresh, &caller.facts) {
            return Err(Error::CallerBlocked);
        }
        let parent = parent::of(request, caller, &self.state, &fresh, mint_time.log_now).await?;
        let requested = match &parent {
            Some(parent) => parent::limit(parent, request, &self.containment)?,
            None => RequestedRights::of_request(request),
        };
        let AgentRequest { agent_name, platform, metadata, .. } = request;
        let issued_by = caller.id();
        let allow = self.decide(&requested, agent_name, platform, metadata, parent.as_ref(), issued_by)?;
        let grant = narrow::narrow(&allow, &requested, &self.containment)?;
        // Checked before the write: a node that cannot sign writes nothing.
        let key = self.keyring.signing_key(self.state.elapsed_time()).map_err(Error::CannotSign)?;

        let agent = self.record(request, &grant)?;
        let state = self.state.on_behalf_of(caller);
        let issued = state.issue_agent(agent).await;
        let agent_id = issued.map_err(Error::of_issue)?;
        // With an `Idempotency-Key` it may be an earlier agent that has expired.
        let issued = self.acting(&fresh, &agent_id, mint_time.log_now).await?;
        let minted = self.mint(&issued, &allow, (new_family(), Vec::new()), &mint_time, &key)?;
        self.metrics.agent_identities_issued.inc([request.platform]);
        Ok(minted)
    }

    /// Mints a new identity token for an agent that presents its current one.
    ///
    /// # Errors
    /// [`Error`]: each variant is one rule.
    pub async fn renew(&self, bearer: &Credential) -> Result<AgentIdentity, Error> {
        let fresh = self.state.fresh().await?;
        self.state.check_clock(&fresh)?;
        let mint_time = self.mint_time()?;
        // An access token may be narrower than the identity token that it was exchanged from; renewal would widen it.
        if !bearer.is_agent_identity {
            return Err(Error::NotAnIdentityToken);
        }
        // The edge verified the token before `mint_time`: a revocation applied between would not cover the new token.
        if self.state.revokes(&fresh, &bearer.lineage, bearer.idx, bearer.iat) {
            return Err(Error::Revoked);
        }
        let issued = self.acting(&fresh, bearer.sub.as_str(), mint_time.log_now).await?;
        let family = family(bearer).ok_or(Error::NotAnIdentityToken)?;
        self.mint_of_record(&issued, (family, renewed_lineage(bearer)), &mint_time)
    }

    /// Mints an identity token of a new family for an agent that was issued to this caller; an operator may name any.
    ///
    /// # Errors
    /// [`Error::UnknownAgent`] also for an agent of another caller; the others as [`AgentIdentities::renew`].
    pub async fn another_token(&self, agent_id: &str, caller: &CallContext) -> Result<AgentIdentity, Error> {
        let fresh = self.state.fresh().await?;
        self.state.check_clock(&fresh)?;
        let mint_time = self.mint_time()?;
        if self.state.refuses(&fresh, &caller.facts) {
            return Err(Error::CallerBlocked);
        }
        let issued = find_agent(&self.state, agent_id).await?.filter(|agent| may_see(caller, agent));
        let issued = self.active(&fresh, issued.ok_or(Error::UnknownAgent)?, mint_time.log_now)?;
        // An operator to which the agent was not issued. The issuers are in every lineage.
        let other = caller.id().filter(|id| issued.issuers.iter().all(|issuer| issuer != id));
        let other = other.and_then(|id| id.parse().ok());
        let derives_from = other.iter().map(lineage::workload).collect();
        self.mint_of_record(&issued, (new_family(), derives_from), &mint_time)
    }

    /// Mints a token of a recorded agent, with the rights that policy grants it by now.
    fn mint_of_record(
        &self,
        issued: &IssuedAgent,
        family: (String, Vec<Digest128>),
        mint_time: &MintTime,
    ) -> Result<AgentIdentity, Error> {
        let parent = match &issued.agent.on_behalf_of {
            None => None,
            Some(parent) => Some(self.state.agent(parent)?.ok_or(Error::Ended)?),
        };
        let requested = RequestedRights::of_record(&issued.agent)?;
        let issued_by = stated(issued.issued_by.as_str());
        let Agent { agent_name, platform, metadata, .. } = &issued.agent;
        let allow = self.decide(&requested, agent_name, platform, metadata, parent.as_ref(), issued_by)?;
        let key = self.keyring.signing_key(self.state.elapsed_time()).map_err(Error::CannotSign)?;
        self.mint(issued, &allow, family, mint_time, &key)
    }

    /// An agent issued to this caller; an operator sees all.
    ///
    /// # Errors
    /// [`Error::UnknownAgent`] also for an agent of another caller; [`Error::State`].
    pub async fn show(
        &self,
        _current: &LinearizableRead,
        agent_id: &str,
        caller: &CallContext,
    ) -> Result<AgentRecord, Error> {
        let fresh = self.state.fresh().await?;
        let agent = self.state.agent(agent_id)?.filter(|agent| may_see(caller, agent));
        self.record_of(&fresh, agent.ok_or(Error::UnknownAgent)?)
    }

    /// One page, of at most `limit` agents after `after`, of those issued to this caller (an operator sees all); and the
    /// cursor of the next page.
    ///
    /// # Errors
    /// [`Error::State`].
    pub async fn list(
        &self,
        _current: &LinearizableRead,
        caller: &CallContext,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<AgentRecord>, Option<String>), Error> {
        let fresh = self.state.fresh().await?;
        let issued_by = (!caller.is_operator).then(|| caller.name());
        let (agents, next) = self.state.agents(issued_by, after, limit)?;
        let records: Result<_, _> = agents.into_iter().map(|agent| self.record_of(&fresh, agent)).collect();
        Ok((records?, next))
    }

    /// Revokes an agent and everything that derives from it, permanently. Returns whether it was active, and the awaited
    /// peers.
    ///
    /// # Errors
    /// [`Error::UnknownAgent`] also for an agent of another caller.
    pub async fn revoke(&self, agent_id: &str, caller: &CallContext) -> Result<(bool, Awaited), Error> {
        let is_own = self.is_issued_by(agent_id, caller.name()).await?;
        let agent_id: WorkloadId = agent_id.parse().map_err(|_| Error::UnknownAgent)?;
        // An operator that revokes its own agent acts as its issuer.
        let by = if is_own { "user" } else { "admin" };
        let event = SecurityEvent::revoked(&Fact::workload(&agent_id), by, "", self.clock.now());
        let state = self.state.on_behalf_of(caller);
        let revoked = state.revoke_agent(&agent_id, event).await;
        revoked.map_err(Error::of_revocation)
    }

    /// Whether this agent was issued to the caller `name`; `false` if it does not exist.
    ///
    /// # Errors
    /// [`Error::UnknownAgent`] if `agent_id` is no identifier; those of a lookup.
    pub async fn is_issued_by(&self, agent_id: &str, name: &str) -> Result<bool, Error> {
        let agent_id: WorkloadId = agent_id.parse().map_err(|_| Error::UnknownAgent)?;
        Ok(find_agent(&self.state, agent_id.as_str()).await?.is_some_and(|agent| agent.issued_by == name))
    }

    fn record_of(&self, fresh: &LeaseProof, issued: IssuedAgent) -> Result<AgentRecord, Error> {
        let now = self.state.not_before_log(self.clock.now());
        Ok(AgentRecord {
            status: self.state.agent_status(fresh, &issued, now)?.into_str(),
            agent: issued.agent,
            issued_by: stated(issued.issued_by),
            issued_at: issued.issued_at.to_rfc3339(),
            ends_at: issued.ends_at.to_rfc3339(),
            revoked_at: issued.revoked_at.map(Timestamp::to_rfc3339),
        })
    }

    fn mint_time(&self) -> Result<MintTime, Error> {
        let position = self.state.position().ok_or(Error::NotBootstrapped)?;
        let now = self.clock.now();
        Ok(MintTime { position, now, log_now: self.state.not_before_log(now) })
    }

    fn decide(
        &self,
        requested: &RequestedRights,
        agent_name: &str,
        platform: &str,
        metadata: &BTreeMap<String, String>,
        parent: Option<&IssuedAgent>,
        caller: Option<&str>,
    ) -> Result<Allow, Error> {
        let policy = self.configured()?;
        let policy = policy.as_ref().ok_or(Error::NoPolicy)?;
        let radius = requested.blast_radius.as_ref().map(ToString::to_string);
        let decision = policy.decide_identity(&PolicyInput {
            request: RequestedIdentity {
                agent_name,
                platform,
                capabilities: &requested.capabilities,
                max_blast_radius: radius.as_deref(),
                delegation_depth: requested.delegation_depth,
                metadata,
            },
            parent: parent.map(policy_parent),
            caller,
            trust_domain: self.trust_domain.as_str(),
        });
        let result = decision.as_ref().map_or_else(Denial::label, |_| "allow");
        self.metrics.policy_decisions.inc([Point::Identity.into_str(), result]);
        decision.map_err(Error::from)
    }

    /// An active agent; one whose record is gone has expired.
    async fn acting(&self, fresh: &LeaseProof, agent_id: &str, now: Timestamp) -> Result<IssuedAgent, Error> {
        let issued = find_agent(&self.state, agent_id).await?.ok_or(Error::Ended)?;
        self.active(fresh, issued, now)
    }

    /// The agent, if it is active.
    fn active(&self, fresh: &LeaseProof, issued: IssuedAgent, now: Timestamp) -> Result<IssuedAgent, Error> {
        match self.state.agent_status(fresh, &issued, now)? {
            AgentStatus::Active => Ok(issued),
            AgentStatus::Revoked => Err(Error::Revoked),
            AgentStatus::Ended => Err(Error::Ended),
        }
    }

    /// Record of a new agent with a new identifier.
    fn record(&self, request: &AgentRequest, grant: &Grant) -> Result<Agent, Error> {
        let unique = uuid::Uuid::new_v4();
        let agent_id = format!("wimse://{}/agent/{}/{unique}", self.trust_domain, request.platform);
        let agent_id: WorkloadId = agent_id.parse().map_err(Error::internal)?;
        Ok(Agent {
            agent_id: agent_id.as_str().to_owned(),
            agent_name: request.agent_name.clone(),
            platform: request.platform.to_owned(),
            capabilities: grant.capabilities.iter().cloned().collect(),
            blast_radius: grant.blast_radius.as_ref().map(ToString::to_string),
            delegation_depth: grant.delegation_depth,
            on_behalf_of: request.on_behalf_of.clone(),
            // `apply` sets them from the parent's record.
            ancestors: Vec::new(),
            metadata: request.metadata.clone(),
        })
    }

    /// The token carries the rights of the record that policy still permits. `family` and `lineage` are those of the
    /// renewed token; otherwise the family is new, and the lineage is the operator that has it minted, if any.
    fn mint(
        &self,
        issued: &IssuedAgent,
        allow: &Allow,
        (family, lineage): (String, Vec<Digest128>),
        mint_time: &MintTime,
        key: &SigningKey,
    ) -> Result<AgentIdentity, Error> {
        let grant = narrow::narrow(allow, &RequestedRights::of_record(&issued.agent)?, &self.containment)?;
        let claims = mint::claims(
            issued,
            &grant,
            mint::MintContext {
                iss: &self.issuer,
                kid: key.kid(),
                lineage,
                now: mint_time.now,
                root_issued_at: self.root_issued_at(issued)?,
                position: mint_time.position,
                family,
                number: uuid::Uuid::new_v4().as_u64_pair().0,
                txn: uuid::Uuid::new_v4().to_string(),
            },
        )?;
        let token = token::mint::sign_access_token(&claims, key).map_err(Error::internal)?;
        Ok(AgentIdentity {
            agent_id: claims.sub,
            token,
            platform: issued.agent.platform.clone(),
            capabilities: claims.capabilities,
            blast_radius: claims.blast_radius,
            expires_at: Timestamp::from_secs(claims.exp).to_rfc3339(),
            jti: claims.jti,
        })
    }

    /// Log time of the issue of the oldest ancestor, or of the agent itself if it has none.
    fn root_issued_at(&self, issued: &IssuedAgent) -> Result<Timestamp, Error> {
        let Some(root) = issued.agent.ancestors.last() else { return Ok(issued.issued_at) };
        // No ancestor expires before its descendants: a missing record means that it was revoked.
        Ok(self.state.agent(root)?.ok_or(Error::Revoked)?.issued_at)
    }
}

fn may_see(caller: &CallContext, agent: &IssuedAgent) -> bool {
    caller.is_operator || agent.issued_by == caller.name()
}

/// An agent issued through any node, by a linearizable read if this node has no record.
async fn find_agent(state: &State, agent_id: &str) -> Result<Option<IssuedAgent>, Error> {
    let look = || Ok::<_, state::Error>(state.agent(agent_id)?);
    Ok(state.confirmed(look).await?)
}

fn policy_parent(parent: &IssuedAgent) -> Parent<'_> {
    Parent {
        id: &parent.agent.agent_id,
        agent_name: &parent.agent.agent_name,
        platform: &parent.agent.platform,
        capabilities: &parent.agent.capabilities,
        blast_radius: parent.agent.blast_radius.as_deref(),
        delegation_depth: parent.agent.delegation_depth,
        issued_by: stated(parent.issued_by.as_str()),
    }
}

/// Family of the first token of an agent, or of another one that derives from no other token.
fn new_family() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Family of an identity token, from its `jti`.
fn family(bearer: &Credential) -> Option<String> {
    let (family, _) = bearer.jti.as_deref()?.split_once(lineage::FAMILY_END)?;
    Some(family.to_owned())
}

/// Lineage of a renewed token: that of the presented one, including its family, without its `jti` and without the
/// agent, which the new token adds.
fn renewed_lineage(bearer: &Credential) -> Vec<Digest128> {
    let mut own = vec![lineage::workload(&bearer.sub)];
    own.extend(bearer.jti.as_deref().map(|jti| lineage::token(&bearer.iss, jti)));
    own.extend(bearer.client_id.as_deref().map(|client_id| lineage::client(&bearer.iss, client_id)));
    bearer.lineage.iter().filter(|digest| !own.contains(digest)).copied().collect()
}
