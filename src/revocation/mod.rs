//! What an operator revokes: a workload, an agent, a subject of an issuer, an email address, a client, a
//! token or a signing key, with everything that derives from it and was issued before.
//!
//! One entry of the log, whatever derives from it. Which agents that hits is decided by [`hits`] alone, for a
//! dry run as for the count of what was revoked.

mod dry_run;
mod request;

use tokio::sync::Semaphore;

pub use self::dry_run::{Counts, DryRun};
pub use self::request::{Members, Request};

use crate::clock::Clock;
use crate::cluster::Corrupt;
use crate::id::{Digest128, TrustDomain, WorkloadId};
use crate::keyring::Keyring;
use crate::limits;
use crate::state::{
    self, BlockId, CallerFacts, Idempotency, IssuedAgent, LinearizableRead, Revoked, RevokedFact,
    SecurityEvent, State, SubjectBlock, Target,
};
use crate::token::lineage::{Fact, SUBJECT, TOKEN, canonical_name};

/// Why nothing was revoked, or nothing is said of what would be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A member breaks its rule.
    #[error("{field}: {rule}")]
    Invalid {
        /// The member.
        field: &'static str,
        /// The rule.
        rule: String,
    },
    /// None, or several.
    #[error("body: must name exactly one of subject, email, agent, client, jti, key")]
    NotOne,
    /// There is no such agent.
    #[error("there is no agent with this agent_id")]
    UnknownAgent,
    /// There is no such signing key of this fabric.
    #[error("there is no signing key with this kid")]
    UnknownKey,
    /// There is no such block, or it is lifted.
    #[error("there is no block with this id")]
    UnknownBlock,
    /// Others look through the agents already.
    #[error("this node is looking through the agents for others: try again")]
    Busy,
    /// It could not be written, or is not known to be.
    #[error(transparent)]
    State(#[from] state::Error),
}

impl From<Corrupt> for Error {
    fn from(error: Corrupt) -> Self {
        Self::State(error.into())
    }
}

/// Everything that revoking needs.
pub struct Revocations {
    /// Our `iss`.
    pub issuer: String,
    /// The trust domain of every agent.
    pub trust_domain: TrustDomain,
    /// Our keys.
    pub keyring: Keyring,
    /// The replicated state.
    pub state: State,
    /// The time.
    pub clock: Clock,
    /// Places to look through all agents.
    pub scans: Semaphore,
}

/// A revocation that stands.
#[derive(Clone, Debug)]
pub struct Made {
    /// What the log says of it.
    pub made: state::AppliedRevocation,
    /// Whether it blocks as well.
    pub blocks: bool,
    /// How many agents it hit; `None` where that cannot be known, or took too long to count.
    pub agents: Option<u64>,
}

/// Whether an agent is revoked with a fact. Only a workload has agents that derive from it: an agent is issued
/// to a client certificate, never to an address, a token or a subject of another issuer.
#[must_use]
pub fn hits(agent: &IssuedAgent, fact: &Fact) -> bool {
    is_workload(fact) && agent.derives_from(fact.value())
}

/// Whether a fact is a workload identifier.
fn is_workload(fact: &Fact) -> bool {
    fact.kind() == SUBJECT && fact.issuer().is_empty()
}

impl Revocations {
    /// A place for each look through all agents.
    #[must_use]
    pub fn places() -> Semaphore {
        Semaphore::new(limits::AGENT_SCANS_MAX)
    }

    /// Revokes. `caller` is empty for nobody. In this order, so that a repetition with the same
    /// `Idempotency-Key` completes what was cut off:
    ///
    /// 1. the revocation, in one entry of the log: an agent or a signing key of ours must be there, the key
    ///    signs no more, and a key of somebody else is blocked as every fact is for which a block was requested
    /// 2. a signing key of this node has a successor
    /// 3. the agents that are gone are counted
    ///
    /// # Errors
    /// As [`Error`] says. Of [`Error::UnknownAgent`] and [`Error::UnknownKey`] nothing was changed.
    pub async fn revoke(
        &self,
        request: &Request,
        (caller, facts): (&str, &CallerFacts),
        idempotency: Option<Idempotency>,
    ) -> Result<Made, Error> {
        let (fact, target) = (request.fact(), self.target(request));
        let (reason, caller) = (request.reason().to_owned(), caller.to_owned());
        let blocks = self.blocks_fact(request);
        if blocks && facts.contain(&fact.digest()) {
            let rule = "must not name the caller itself, or what its credential derives from".to_owned();
            return Err(Error::Invalid { field: "block", rule });
        }
        let event = SecurityEvent::revoked(fact, "admin", &reason, self.clock.now());
        let revocation = state::OperatorRevocation { fact, target, blocks, reason, caller, event };
        let state = self.state.on_behalf_of(facts);
        let made = state.revoke(revocation, idempotency).await.map_err(not_there)?;
        if target == Target::OwnKey {
            self.keyring.replace_keys().await;
        }
        Ok(Made { made, blocks, agents: self.count(fact, &made).await? })
    }

    /// What revoking this would hit; nothing is changed. `after` is where the page before said that this one
    /// begins, of which the counts were said; at most `limit` agents and tools.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn dry_run(
        &self,
        _current: &LinearizableRead,
        request: &Request,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DryRun, Error> {
        let after = after.map(dry_run::Place::read).transpose()?;
        self.check_is_there(request)?;
        let _place = self.scans.try_acquire().map_err(|_| Error::Busy)?;
        let fact = request.fact();
        let page = DryRun::new(self.is_revoked(fact)?, self.knows_agents_of(fact));
        let fresh = self.state.fresh().await?;
        let now = self.state.not_before_log(self.clock.now());
        dry_run::Look { state: &self.state, fresh, now, fact }.page(page, after, limit).await
    }

    /// At most `limit` blocks behind `after`, in the order of their ids, and behind which there may be more.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `after` is no id; [`Error::State`].
    pub fn blocks(
        &self,
        _current: &LinearizableRead,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<SubjectBlock>, Option<BlockId>), Error> {
        let after: Option<BlockId> = after.map(str::parse).transpose().map_err(|_| wrong_cursor())?;
        Ok(self.state.blocks(after, limit)?)
    }

    /// Lifts a block, whoever blocked it. What was issued before it stays revoked.
    ///
    /// # Errors
    /// [`Error::UnknownBlock`], [`Error::State`].
    pub async fn lift(
        &self,
        id: &str,
        facts: &CallerFacts,
        idempotency: Option<Idempotency>,
    ) -> Result<(), Error> {
        let id: BlockId = id.parse().map_err(|_| Error::UnknownBlock)?;
        self.state.on_behalf_of(facts).lift_block(id, idempotency).await.map_err(not_there)
    }

    /// At most `limit` revocations behind `after`, in the order of their ids, and behind which there are more.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `after` is no id; [`Error::State`].
    pub fn list(
        &self,
        _current: &LinearizableRead,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<Revoked>, Option<Digest128>), Error> {
        let after: Option<Digest128> = after.map(str::parse).transpose().map_err(|_| wrong_cursor())?;
        Ok(self.state.revocation_list(after, limit)?)
    }

    /// What a revocation is of, in one word: `agent` for a workload that has the form of one, else as it is
    /// remembered.
    #[must_use]
    pub fn kind<'f>(&self, fact: &'f RevokedFact) -> &'f str {
        let id = if fact.kind == SUBJECT && fact.issuer.is_empty() { fact.value.parse().ok() } else { None };
        match id {
            Some(id) if WorkloadId::is_agent_of(&id, &self.trust_domain) => "agent",
            _ => &fact.kind,
        }
    }

    /// Lets an issuer of signals revoke `more` facts beyond its quota, for once: replaces what was allowed
    /// before. `issuer` is not empty and at most [`limits::URI_BYTES_MAX`] long.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::State`].
    pub async fn allow(&self, issuer: &str, more: u32, facts: &CallerFacts) -> Result<(), Error> {
        request::bounded("issuer", issuer, limits::URI_BYTES_MAX)?;
        self.state.on_behalf_of(facts).allow_revocations(issuer.to_owned(), more).await?;
        Ok(())
    }

    fn check_is_there(&self, request: &Request) -> Result<(), Error> {
        let fact = request.fact();
        if request.names_agent() && self.state.agent(fact.value())?.is_none() {
            return Err(Error::UnknownAgent);
        }
        if self.is_own_key(fact) && !self.state.index().signing_keys.contains_key(fact.value()) {
            return Err(Error::UnknownKey);
        }
        Ok(())
    }

    fn target(&self, request: &Request) -> Target {
        let fact = request.fact();
        if request.names_agent() {
            Target::Agent
        } else if self.is_own_key(fact) {
            Target::OwnKey
        } else {
            Target::Fact
        }
    }

    /// Whether a request blocks what it names. A taint of our own key already refuses everything the key signed. A
    /// thief of another issuer's key writes any `iat` into a token, so that a watermark alone would cover nothing.
    fn blocks_fact(&self, request: &Request) -> bool {
        let fact = request.fact();
        !self.is_own_key(fact) && (request.block() || fact.kind() == KEY)
    }

    /// The credentials that a revocation does not cover, for the operator to see to; none of a block.
    #[must_use]
    pub fn not_covered(&self, request: &Request, blocks: bool) -> Vec<&'static str> {
        let fact = request.fact();
        let is_one_credential = [KEY, TOKEN].contains(&fact.kind());
        if blocks || is_one_credential {
            return Vec::new();
        }
        let is_caller = is_workload(fact) || fact.kind() == CLIENT && fact.issuer() == self.issuer;
        let mut left = Vec::new();
        if !request.names_agent() {
            left.push("credentials issued later");
        }
        if is_caller {
            left.push("client certificates");
        }
        left
    }

    /// Whether it can be told which agents a fact ends. Nobody keeps a list of the tokens that a key has signed,
    /// nor of the agents that have them: one whose last token is refused is not renewed.
    fn knows_agents_of(&self, fact: &Fact) -> bool {
        let is_own_token = fact.kind() == TOKEN && fact.issuer() == self.issuer;
        fact.kind() != KEY && !is_own_token
    }

    fn is_own_key(&self, fact: &Fact) -> bool {
        fact.kind() == KEY && fact.issuer() == self.issuer
    }

    /// An agent stays revoked, and a key tainted, for longer than the revocation is remembered.
    fn is_revoked(&self, fact: &Fact) -> Result<bool, Error> {
        let is_gone_for_ever = if is_workload(fact) {
            let agent = self.state.agent(&canonical_name(fact.value()))?;
            agent.is_some_and(|agent| agent.revoked_at.is_some())
        } else {
            let index = self.state.index();
            let key = index.signing_keys.get(fact.value()).filter(|_| self.is_own_key(fact));
            key.is_some_and(|key| key.tainted_at.is_some())
        };
        Ok(is_gone_for_ever
            || self.state.is_blocked_by_operator(fact)?
            || self.state.revocation(fact)?.is_some())
    }

    /// A revocation never waits for a place to count, nor long for the count.
    async fn count(&self, fact: &Fact, made: &state::AppliedRevocation) -> Result<Option<u64>, Error> {
        match self.scans.try_acquire() {
            Ok(_place) if self.knows_agents_of(fact) => {
                in_time(dry_run::count(&self.state, fact, made)).await.transpose()
            }
            _ => Ok(None),
        }
    }
}

/// What is counted, unless that takes too long.
async fn in_time<T>(counting: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limits::AGENT_COUNT_WAIT, counting).await.ok()
}

/// What the log refuses because it is not there.
fn not_there(error: state::Error) -> Error {
    match error {
        state::Error::UnknownAgent => Error::UnknownAgent,
        state::Error::UnknownSigningKey => Error::UnknownKey,
        state::Error::UnknownBlock => Error::UnknownBlock,
        error => Error::State(error),
    }
}

/// The kind of a signing key.
const KEY: &str = "key";
/// The kind of a client.
const CLIENT: &str = "client";

fn wrong_cursor() -> Error {
    Error::Invalid { field: "cursor", rule: "must be one that a Link header gave".to_owned() }
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
    async fn a_count_that_takes_too_long_is_not_waited_for() {
        assert_eq!(in_time(async { 7 }).await, Some(7));
        let almost = limits::AGENT_COUNT_WAIT.mul_f64(0.999);
        assert_eq!(in_time(tokio::time::sleep(almost)).await, Some(()));
        assert_eq!(in_time(std::future::pending::<u64>()).await, None);
    }

    #[test]
    fn an_agent_is_hit_with_itself_its_ancestors_and_whoever_had_them_issued_and_with_nothing_else() {
        let (id, parent, caller) =
            ("wimse://a.example/agent/mcp/x", "wimse://a.example/agent/mcp/p", "spiffe://a.example/gateway");
        let agent = agent(id, &[parent, "wimse://a.example/agent/mcp/pp"], &[caller]);
        let hit = |text: &str| hits(&agent, &Fact::workload(&text.parse().expect("an id")));
        for text in [id, parent, "wimse://a.example/agent/mcp/pp", caller] {
            assert!(hit(text), "{text}");
        }
        // Under its other name too.
        assert!(hit("spiffe://a.example/agent/mcp/x") && hit("wimse://a.example/gateway"));
        // A prefix of it, what it is a prefix of, and another case are others.
        for text in [
            "wimse://a.example/agent/mcp",
            "wimse://a.example/agent/mcp/xy",
            "wimse://a.example/agent/mcp/X",
            "spiffe://a.example/gate",
            "spiffe://a.example/gateway2",
        ] {
            assert!(!hit(text), "{text}");
        }
        for fact in [
            Fact::subject("https://a.example", id),
            Fact::email("https://a.example", id),
            Fact::client("", id),
            Fact::token("", id),
            Fact::signing_key("", id),
        ] {
            assert!(!hits(&agent, &fact), "{fact:?}");
        }
    }
}
