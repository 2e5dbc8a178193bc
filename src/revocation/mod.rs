//! Revocation by operators: of a workload, agent, subject of an issuer, email address, client, token or signing
//! key, with everything that derives from it and was issued before.
//!
//! One log entry, however much derives from it. [`covers`] alone decides which agents are covered, for a dry run
//! and for the count of a revocation.

mod answers;
mod dry_run;
mod request;

use tokio::sync::Semaphore;

pub(crate) use self::answers::{Revocation, RevocationMade};
pub(crate) use self::dry_run::DryRunPage;
pub(crate) use self::request::{RevocationInput, RevocationRequest};

use crate::clock::Clock;
use crate::cluster::Corrupt;
use crate::id::{Digest128, TrustDomain, WorkloadId};
use crate::keyring::Keyring;
use crate::limits;
use crate::peer_tokens::PeerTokens;
use crate::state::{
    self, BlockId, CallContext, IssuedAgent, LinearizableRead, Refusal, SecurityEvent, State, SubjectBlock,
    command,
};
use crate::token::lineage::{FABRIC, Fact, SUBJECT, TOKEN, canonical_name};

/// Why nothing was revoked, or no dry run was possible.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field breaks a rule.
    #[error("{field}: {rule}")]
    Invalid { field: &'static str, rule: String },
    /// No fact, or several, are named.
    #[error("body: must name exactly one of subject, email, agent, client, jti, key, fabric")]
    NotOne,
    #[error("there is no agent with this agent_id")]
    UnknownAgent,
    /// Unknown signing key of this fabric.
    #[error("there is no signing key with this kid; with \"block\": true a deleted one is revoked")]
    UnknownKey,
    /// Unknown or lifted block.
    #[error("there is no block with this id")]
    UnknownBlock,
    /// All scan permits are in use.
    #[error("the limit of concurrent agent scans on this node is reached; retry")]
    Busy,
    /// The write failed, or its result is unknown.
    #[error(transparent)]
    State(#[from] state::Error),
}

impl From<Corrupt> for Error {
    fn from(error: Corrupt) -> Self {
        Self::State(error.into())
    }
}

/// Revokes on behalf of operators.
pub struct Revocations {
    pub issuer: String,
    /// Trust domain of every agent.
    pub trust_domain: TrustDomain,
    pub keyring: Keyring,
    /// Knows the peers whose tokens are accepted.
    pub peer_tokens: PeerTokens,
    pub state: State,
    pub clock: Clock,
    /// Permits for agent scans.
    pub scans: Semaphore,
}

/// Whether revoking `fact` covers `agent`. Only a workload has derived agents: an agent is issued to a client
/// certificate, never to an email address, a token or a subject of another issuer.
pub fn covers(agent: &IssuedAgent, fact: &Fact) -> bool {
    is_workload(fact) && agent.derives_from(fact.value())
}

fn is_workload(fact: &Fact) -> bool {
    fact.kind() == SUBJECT && fact.issuer().is_empty()
}

impl Revocations {
    /// The permits for agent scans of a node.
    pub fn scan_permits() -> Semaphore {
        Semaphore::new(limits::AGENT_SCANS_MAX)
    }

    /// Revokes. The steps are ordered so that a retry with the same
    /// `Idempotency-Key` completes an interrupted request:
    ///
    /// 1. the log entry: an agent of ours must exist, and a signing key of ours unless it is blocked; our key stops signing;
    ///    a foreign key and a fact of a peer fabric are blocked, as is every fact for which a block was requested
    /// 2. a successor for a signing key of this node
    /// 3. the count of covered agents
    ///
    /// [`Error::UnknownAgent`] and [`Error::UnknownKey`] change nothing.
    pub async fn revoke(
        &self,
        request: &RevocationRequest,
        caller: &CallContext,
    ) -> Result<RevocationMade, Error> {
        self.check_fabric(request.fact())?;
        let (fact, taints) = (request.fact(), self.is_own_key(request.fact()));
        let blocks = self.blocks_fact(request);
        if blocks && caller.facts.contain(&fact.digest()) {
            let rule = "must not name the caller itself, or what its credential derives from".to_owned();
            return Err(Error::Invalid { field: "block", rule });
        }
        let event = SecurityEvent::revoked(fact, "admin", request.reason(), self.clock.now());
        let command = command::Revoke {
            fact: Some(state::fact_row(fact)),
            reason: request.reason().to_owned(),
            blocks,
            must_be_agent: request.names_agent(),
            taints,
            event: event.map(Into::into),
            ..command::Revoke::default()
        };
        let revoked = self.state.on_behalf_of(caller).revoke(command).await;
        let (revoked, awaited) = revoked.map_err(map_error)?;
        if taints {
            self.keyring.replace_keys().await;
        }
        let agents = self.count(fact, &revoked).await?;
        Ok(self.made(request, (&revoked, awaited), blocks, agents))
    }

    /// A page of the agents and tools that a revocation would cover, at most `limit`; changes nothing. `after` is
    /// `next` of the page before; counts are on the first page only.
    pub async fn dry_run(
        &self,
        _current: &LinearizableRead,
        request: &RevocationRequest,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DryRunPage, Error> {
        let after = after.map(dry_run::DryRunCursor::parse).transpose()?;
        self.check_exists(request)?;
        let _permit = self.scans.try_acquire().map_err(|_| Error::Busy)?;
        let fact = request.fact();
        let page =
            DryRunPage::new(fact, self.kind_of(fact), self.is_revoked(fact)?, self.can_list_agents(fact));
        let fresh = self.state.fresh().await?;
        let now = self.state.not_before_log(self.clock.now());
        dry_run::Scan { state: &self.state, fresh, now, fact }.page(page, after, limit).await
    }

    /// At most `limit` blocks after `after`, in order of their ids, and the cursor if there are more.
    pub fn blocks(
        &self,
        _current: &LinearizableRead,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<SubjectBlock>, Option<BlockId>), Error> {
        let after: Option<BlockId> = after.map(str::parse).transpose().map_err(|_| invalid_cursor())?;
        Ok(self.state.blocks(after, limit)?)
    }

    /// Lifts a block, whichever issuer or operator set it. Credentials issued before the block stay revoked.
    pub async fn lift(&self, id: &str, caller: &CallContext) -> Result<(), Error> {
        let id: BlockId = id.parse().map_err(|_| Error::UnknownBlock)?;
        self.state.on_behalf_of(caller).lift_block(id).await.map_err(map_error)
    }

    /// At most `limit` revocations after `after`, in order of their ids, and the cursor if there are more.
    pub fn list(
        &self,
        _current: &LinearizableRead,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<Revocation>, Option<Digest128>), Error> {
        let after: Option<Digest128> = after.map(str::parse).transpose().map_err(|_| invalid_cursor())?;
        let (rows, next) = self.state.revocation_list(after, limit)?;
        Ok((rows.into_iter().map(|row| self.listed(row)).collect(), next))
    }

    /// The kind of a revoked fact: `agent` for a workload identifier of an agent, else the kind that is stored.
    pub fn kind<'f>(&self, fact: &'f command::Fact) -> &'f str {
        self.kind_in([&fact.kind, &fact.issuer, &fact.value])
    }

    /// As [`Self::kind`], of a fact to be revoked.
    fn kind_of<'f>(&self, fact: &'f Fact) -> &'f str {
        self.kind_in([fact.kind(), fact.issuer(), fact.value()])
    }

    fn kind_in<'f>(&self, [kind, issuer, value]: [&'f str; 3]) -> &'f str {
        let id = if kind == SUBJECT && issuer.is_empty() { value.parse().ok() } else { None };
        match id {
            Some(id) if WorkloadId::is_agent_of(&id, &self.trust_domain) => "agent",
            _ => kind,
        }
    }

    /// Allows an issuer of signals `more` facts beyond its quota, once; replaces an earlier allowance.
    pub async fn grant_allowance(&self, issuer: &str, more: u32, caller: &CallContext) -> Result<(), Error> {
        request::bounded("issuer", issuer, limits::URI_BYTES_MAX)?;
        self.state.on_behalf_of(caller).allow_revocations(issuer.to_owned(), more).await?;
        Ok(())
    }

    /// The revocation of a misspelled fabric would revoke nothing.
    fn check_fabric(&self, fact: &Fact) -> Result<(), Error> {
        if fact.kind() == FABRIC && self.peer_tokens.peer(fact.value()).is_none() {
            let rule = "must be the issuer of a peer whose tokens are accepted".to_owned();
            return Err(Error::Invalid { field: "fabric", rule });
        }
        Ok(())
    }

    fn check_exists(&self, request: &RevocationRequest) -> Result<(), Error> {
        let fact = request.fact();
        self.check_fabric(fact)?;
        if request.names_agent() && self.state.agent(fact.value())?.is_none() {
            return Err(Error::UnknownAgent);
        }
        let is_known = |kid: &str| self.state.index().signing_keys.contains_key(kid);
        if self.is_own_key(fact) && !request.block() && !is_known(fact.value()) {
            return Err(Error::UnknownKey);
        }
        Ok(())
    }

    /// Whether a request also blocks, even if it does not ask for it. The thief of another issuer's key chooses `iat`
    /// freely, so that a watermark alone would cover nothing; our own key is tainted instead, unless it was deleted. The
    /// `iat` of a peer's tokens is by its clock, and it goes on minting them from credentials that it does not know to be
    /// revoked here.
    fn blocks_fact(&self, request: &RevocationRequest) -> bool {
        let fact = request.fact();
        let is_foreign_key = fact.kind() == KEY && !self.is_own_key(fact);
        request.block() || is_foreign_key || self.peer_tokens.is_of_peer(fact)
    }

    /// Credentials that a revocation does not cover, for the operator to handle; none of a block.
    fn not_covered(&self, request: &RevocationRequest, blocks: bool) -> Vec<&'static str> {
        let fact = request.fact();
        let is_one_credential = [KEY, TOKEN].contains(&fact.kind());
        if blocks || is_one_credential {
            return Vec::new();
        }
        let is_caller = is_workload(fact) || fact.kind() == CLIENT && fact.issuer() == self.issuer;
        let mut uncovered = Vec::new();
        if !request.names_agent() {
            uncovered.push("credentials issued later");
        }
        if is_caller {
            uncovered.push("client certificates");
        }
        uncovered
    }

    /// Whether the covered agents can be listed. Tokens per signing key, and the agents that hold them, are not
    /// recorded: an agent whose last token is refused is not renewed.
    fn can_list_agents(&self, fact: &Fact) -> bool {
        let is_own_token = fact.kind() == TOKEN && fact.issuer() == self.issuer;
        fact.kind() != KEY && !is_own_token
    }

    fn is_own_key(&self, fact: &Fact) -> bool {
        fact.kind() == KEY && fact.issuer() == self.issuer
    }

    /// An agent stays revoked, and a key tainted, for longer than the revocation is retained.
    fn is_revoked(&self, fact: &Fact) -> Result<bool, Error> {
        let is_permanent = if is_workload(fact) {
            let agent = self.state.agent(&canonical_name(fact.value()))?;
            agent.is_some_and(|agent| agent.revoked_at.is_some())
        } else {
            let index = self.state.index();
            let key = index.signing_keys.get(fact.value()).filter(|_| self.is_own_key(fact));
            key.is_some_and(|key| key.tainted_at.is_some())
        };
        Ok(is_permanent || self.state.is_blocked_by_operator(fact)? || self.state.has_revocation(fact)?)
    }

    /// Never waits for a scan permit, nor longer than [`limits::AGENT_COUNT_WAIT`].
    async fn count(&self, fact: &Fact, revoked: &command::Revoked) -> Result<Option<u64>, Error> {
        match self.scans.try_acquire() {
            Ok(_permit) if self.can_list_agents(fact) => {
                within_limit(dry_run::count(&self.state, fact, revoked)).await.transpose()
            }
            _ => Ok(None),
        }
    }
}

async fn within_limit<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limits::AGENT_COUNT_WAIT, work).await.ok()
}

/// Maps refusals by the log.
fn map_error(error: state::Error) -> Error {
    match error {
        state::Error::Refused(Refusal::UnknownAgent) => Error::UnknownAgent,
        state::Error::Refused(Refusal::UnknownSigningKey) => Error::UnknownKey,
        state::Error::Refused(Refusal::UnknownBlock) => Error::UnknownBlock,
        error => Error::State(error),
    }
}

const KEY: &str = "key";
const CLIENT: &str = "client";

fn invalid_cursor() -> Error {
    Error::Invalid { field: "cursor", rule: "must be from a Link header".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::state::Agent;

    fn agent(id: &str, ancestors: &[&str], issuers: &[&str]) -> IssuedAgent {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        IssuedAgent {
            agent: Agent { agent_id: id.to_owned(), ancestors: owned(ancestors), ..Agent::default() },
            issued_by: String::new(),
            issued_at: Timestamp::default(),
            ends_at: Timestamp::default(),
            revoked_at: None,
            issued_index: 0,
            issuers: owned(issuers),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slow_count_is_abandoned() {
        assert_eq!(within_limit(async { 7 }).await, Some(7));
        let almost = limits::AGENT_COUNT_WAIT.mul_f64(0.999);
        assert_eq!(within_limit(tokio::time::sleep(almost)).await, Some(()));
        assert_eq!(within_limit(std::future::pending::<u64>()).await, None);
    }

    #[test]
    fn agent_is_covered_by_itself_ancestors_and_issuers_only() {
        let (id, parent, caller) =
            ("wimse://a.example/agent/mcp/x", "wimse://a.example/agent/mcp/p", "spiffe://a.example/gateway");
        let agent = agent(id, &[parent, "wimse://a.example/agent/mcp/pp"], &[caller]);
        let is_covered = |text: &str| covers(&agent, &Fact::workload(&text.parse().expect("an id")));
        for text in [id, parent, "wimse://a.example/agent/mcp/pp", caller] {
            assert!(is_covered(text), "{text}");
        }
        // Under its other spelling too.
        assert!(is_covered("spiffe://a.example/agent/mcp/x") && is_covered("wimse://a.example/gateway"));
        // A prefix, an extension and another case are different names.
        for text in [
            "wimse://a.example/agent/mcp",
            "wimse://a.example/agent/mcp/xy",
            "wimse://a.example/agent/mcp/X",
            "spiffe://a.example/gate",
            "spiffe://a.example/gateway2",
        ] {
            assert!(!is_covered(text), "{text}");
        }
        for fact in [
            Fact::subject("https://a.example", id),
            Fact::email("https://a.example", id),
            Fact::client("", id),
            Fact::token("", id),
            Fact::signing_key("", id),
        ] {
            assert!(!covers(&agent, &fact), "{fact:?}");
        }
    }
}
