//! Agents: grant, parent, end and status.
//!
//! Agents are read from the tables, not kept in memory: a caller that issues agents must not determine how much memory
//! a node needs.

use bytes::Bytes;
use prost::Message as _;

use super::events::SecurityEvent;
use super::revocations::RevocationDetails;
use super::{encryption_keys, feed, outbox, revocations};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, LeaseProof, View};
use crate::id::WorkloadId;
use crate::limits;
use crate::state::command::{
    Agent, AgentIssued, AgentRow, Command, Fact, FloorRow, IssueAgent, Refusal, Reply, RevokeAgent, Revoked,
};
use crate::state::tables::quotas::Quota;
use crate::state::tables::{
    AGENT, AGENT_END, AGENT_ISSUER_REVOKED, AGENT_OF_ISSUER, EntryTime, FLOOR, META, Tables, decode,
    eight_bytes, time_key,
};
use crate::state::{Awaited, Error, OnBehalf, State};
use crate::token::lineage::{self, canonical_name};

/// Row of the meta table: number of agents.
const AGENTS: &[u8] = b"agents";

#[derive(Clone, Debug, PartialEq)]
pub struct IssuedAgent {
    /// Its grant.
    pub agent: Agent,
    /// Caller that issued it; empty for an anonymous caller.
    pub issued_by: String,
    /// Log time of its issue.
    pub issued_at: Timestamp,
    /// Its end: limit of renewals and of the lifetimes of its identity tokens.
    pub ends_at: Timestamp,
    /// Time at which it was revoked itself; revocations of its ancestors and issuers are not recorded here.
    pub revoked_at: Option<Timestamp>,
    /// Log index of the entry that issued it.
    pub issued_index: u64,
    /// Callers that issued it or one of its ancestors, without duplicates and without anonymous callers.
    pub issuers: Vec<String>,
}

impl IssuedAgent {
    /// Whether it derives from this workload and is revoked with it: the workload is this agent, one of its ancestors, or
    /// issued one of these.
    #[must_use]
    pub fn derives_from(&self, workload: &str) -> bool {
        let mut names = self.agent.ancestors.iter().chain(&self.issuers).chain([&self.agent.agent_id]);
        names.any(|name| lineage::is_same_name(name, workload))
    }
}

/// Status of an agent at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum AgentStatus {
    /// Neither revoked nor expired.
    Active,
    /// It, one of its ancestors or one of their issuers is revoked, for good.
    Revoked,
    /// It has expired.
    Ended,
}

impl TryFrom<AgentRow> for IssuedAgent {
    type Error = Corrupt;

    fn try_from(row: AgentRow) -> Result<Self, Corrupt> {
        let issuers = issuers(&row).map(str::to_owned).collect();
        Ok(Self {
            agent: row.agent.ok_or_else(|| Corrupt::row("a row of an agent has no agent"))?,
            issued_by: row.issued_by,
            issued_at: Timestamp::from_millis(row.issued_at_millis),
            ends_at: Timestamp::from_millis(row.ends_at_millis),
            revoked_at: (row.revoked_at_millis != 0).then(|| Timestamp::from_millis(row.revoked_at_millis)),
            issued_index: row.issued_index,
            issuers,
        })
    }
}

/// Issues an agent. It ends with its parent at the latest.
pub fn issue(tables: &mut Tables<'_>, now: Timestamp, command: IssueAgent) -> Result<Reply, Corrupt> {
    let mut agent = command.agent.ok_or_else(|| Corrupt::row("an issue command has no agent"))?;
    let id = agent.agent_id.clone();
    if find(tables, &id)?.is_some() {
        return Ok(Reply::Refused(Refusal::NotTheOwner));
    }
    let mut ends_at = now.plus(limits::AGENT_LIFETIME_MAX);
    let mut ancestors_issued_by = Vec::new();
    if let Some(parent) = &agent.on_behalf_of {
        let row = match find_active(tables, now, parent)? {
            Ok(row) => row,
            Err(refusal) => return Ok(Reply::Refused(refusal)),
        };
        ends_at = ends_at.min(Timestamp::from_millis(row.ends_at_millis));
        agent.ancestors = std::iter::once(parent.clone()).chain(ancestors(&row).iter().cloned()).collect();
        let others = issuers(&row).filter(|issuer| *issuer != command.issued_by);
        ancestors_issued_by = others.map(str::to_owned).collect();
    }
    delete_expired(tables, now)?;
    let of_caller = Quota::Agents.of(tables, &command.issued_by)?;
    if tables.number(AGENTS)? >= limits::AGENTS_MAX || of_caller >= limits::AGENTS_PER_CALLER_MAX {
        return Ok(Reply::Refused(Refusal::TooManyAgents));
    }
    let row = AgentRow {
        agent: Some(agent),
        issued_by: command.issued_by,
        issued_at_millis: now.millis(),
        ends_at_millis: ends_at.millis(),
        issued_index: tables.entry_index(),
        ancestors_issued_by,
        ..AgentRow::default()
    };
    tables.add(AGENTS, 1)?;
    Quota::Agents.add(tables, &row.issued_by)?;
    tables.put(AGENT, id.as_bytes(), row.encode_to_vec());
    tables.put(AGENT_OF_ISSUER, &of_issuer(&row.issued_by, &id), Vec::new());
    tables.put(AGENT_END, &end(ends_at, &id), Vec::new());
    feed::append(tables, now, feed::NewFeedEvent::of_agent(&id, &row.issued_by, "issued"))?;
    Ok(Reply::Agent(AgentIssued { agent_id: id }))
}

/// Revokes an agent and all that derives from it. Its row is deleted as soon as no token of it can live, so that a caller
/// at its quota gains capacity by revoking; its descendants stay revoked without the row.
pub fn revoke(tables: &mut Tables<'_>, time: EntryTime, command: RevokeAgent) -> Result<Reply, Corrupt> {
    let Some(row) = find(tables, &command.agent_id)? else {
        return Ok(Reply::Refused(Refusal::UnknownAgent));
    };
    if row.issued_by != command.caller && !command.is_operator {
        return Ok(Reply::Refused(Refusal::NotTheOwner));
    }
    if row.revoked_at_millis != 0 {
        return Ok(Reply::Done { changed: false });
    }
    let fact = Fact {
        digest: command.digest.clone(),
        kind: lineage::SUBJECT.to_owned(),
        issuer: String::new(),
        value: command.agent_id,
    };
    let details = RevocationDetails { fact: Some(fact), by: command.caller, ..RevocationDetails::default() };
    revocations::revoke(tables, time, &command.digest, details)?;
    if let Some(event) = command.event {
        outbox::append(tables, time, event)?;
    }
    Ok(Reply::Done { changed: true })
}

/// Records the revocation of a workload for agents. If the workload is an agent, that is for good: none of its tokens can
/// be renewed. If it has issued agents, those are revoked for as long as their rows exist, which is longer than the
/// revocation; agents that it issues later are not.
pub fn record_revocation(
    tables: &mut Tables<'_>,
    now: Timestamp,
    workload: &str,
    by: &str,
) -> Result<(), Corrupt> {
    let (workload, index) = (canonical_name(workload), tables.entry_index());
    if Quota::Agents.of(tables, &workload)? > 0 {
        tables.put(AGENT_ISSUER_REVOKED, workload.as_bytes(), index.to_be_bytes().to_vec());
    }
    let agent_id = workload.as_ref();
    let Some(row) = find(tables, agent_id)?.filter(|row| row.revoked_at_millis == 0) else { return Ok(()) };
    let ends_at = Timestamp::from_millis(row.ends_at_millis);
    let last_token_ends_at = ends_at.min(now.plus(limits::TOKEN_LIFETIME_MAX));
    tables.delete(AGENT_END, &end(ends_at, agent_id));
    tables.put(AGENT_END, &end(last_token_ends_at, agent_id), Vec::new());
    let (revoked_at_millis, revoked_by) = (now.millis(), by.to_owned());
    let row = AgentRow { revoked_at_millis, revoked_by, revoked_index: index, ..row };
    tables.put(AGENT, agent_id.as_bytes(), row.encode_to_vec());
    feed::append(tables, now, feed::NewFeedEvent::of_agent(agent_id, by, "revoked"))
}

/// The row of an agent of any status.
pub fn find(tables: &Tables<'_>, agent_id: &str) -> Result<Option<AgentRow>, Corrupt> {
    tables.message(AGENT, agent_id.as_bytes())
}

/// The row of an active agent, or the reason why it is not active.
pub fn find_active(
    tables: &Tables<'_>,
    now: Timestamp,
    agent_id: &str,
) -> Result<Result<AgentRow, Refusal>, Corrupt> {
    let Some(row) = find(tables, agent_id)? else { return Ok(Err(Refusal::UnknownAgent)) };
    Ok(match status(tables, now, &row.clone().try_into()?)? {
        AgentStatus::Active => Ok(row),
        AgentStatus::Revoked => Err(Refusal::AgentRevoked),
        AgentStatus::Ended => Err(Refusal::AgentEnded),
    })
}

fn status(tables: &Tables<'_>, now: Timestamp, agent: &IssuedAgent) -> Result<AgentStatus, Corrupt> {
    for ancestor in &agent.agent.ancestors {
        // No ancestor expires before its descendants: a missing row means that it was revoked.
        match find(tables, ancestor)? {
            Some(ancestor) if ancestor.revoked_at_millis == 0 => {}
            None if now >= agent.ends_at => return Ok(AgentStatus::Ended),
            Some(_) | None => return Ok(AgentStatus::Revoked),
        }
    }
    Ok(if agent.revoked_at.is_some() || is_issuer_revoked(tables, agent)? {
        AgentStatus::Revoked
    } else if now >= agent.ends_at || is_before_restore(tables, agent)? {
        AgentStatus::Ended
    } else {
        AgentStatus::Active
    })
}

/// Whether it was issued before a restore, which may have lost its revocation.
fn is_before_restore(tables: &Tables<'_>, agent: &IssuedAgent) -> Result<bool, Corrupt> {
    let floor = tables.message::<FloorRow>(META, FLOOR)?;
    Ok(floor.is_some_and(|floor| agent.issued_index < floor.index))
}

/// Whether one of its issuers was revoked after its issue. An agent issued by the revoking entry itself counts as
/// issued before.
fn is_issuer_revoked(tables: &Tables<'_>, agent: &IssuedAgent) -> Result<bool, Corrupt> {
    for issuer in &agent.issuers {
        if issuer_revoked(tables, issuer)?.is_some_and(|revoked| revoked >= agent.issued_index) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Log index of the entry that revoked a workload with issued agents.
pub fn issuer_revoked(tables: &Tables<'_>, workload: &str) -> Result<Option<u64>, Corrupt> {
    let row = tables.row(AGENT_ISSUER_REVOKED, canonical_name(workload).as_bytes())?;
    row.map(|row| eight_bytes(AGENT_ISSUER_REVOKED.as_bytes(), row)).transpose()
}

/// Whether an agent was active until the entry of this revocation of `workload`.
fn was_active(
    tables: &Tables<'_>,
    agent: &IssuedAgent,
    workload: &str,
    made: &Revoked,
) -> Result<bool, Corrupt> {
    if agent.issued_index > made.index || agent.ends_at.millis() <= made.at_millis {
        return Ok(false);
    }
    for id in agent.agent.ancestors.iter().chain([&agent.agent.agent_id]) {
        // A missing row means that it was revoked before.
        let Some(row) = find(tables, id)? else { return Ok(false) };
        if row.revoked_at_millis != 0 && row.revoked_index < made.index {
            return Ok(false);
        }
    }
    for issuer in &agent.issuers {
        let revoked = match issuer_revoked(tables, issuer)? {
            Some(_) if lineage::is_same_name(issuer, workload) => made.issuer_revoked_before,
            revoked => revoked.unwrap_or_default(),
        };
        if revoked < made.index && revoked >= agent.issued_index.max(1) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Issuers without anonymous callers; the row has no duplicates.
fn issuers(row: &AgentRow) -> impl Iterator<Item = &str> {
    let issued_by = std::iter::once(&row.issued_by).chain(&row.ancestors_issued_by);
    issued_by.map(String::as_str).filter(|issuer| !issuer.is_empty())
}

fn ancestors(row: &AgentRow) -> &[String] {
    row.agent.as_ref().map(|agent| agent.ancestors.as_slice()).unwrap_or_default()
}

/// Deletes a few agents that expired, or were revoked, long ago.
fn delete_expired(tables: &mut Tables<'_>, now: Timestamp) -> Result<(), Corrupt> {
    // Rows that this entry has written have not expired.
    let until = now.minus(limits::ENDED_AGENT_RETENTION);
    let ended = tables.due(AGENT_END, &[], until, limits::ENDED_AGENTS_REMOVED_PER_ISSUE)?;
    for key in &ended {
        let id = std::str::from_utf8(&key[8..]).map_err(|_| Corrupt::row("an agent_id is not UTF-8"))?;
        let row = find(tables, id)?.ok_or_else(|| Corrupt::row("an expired agent has no row"))?;
        encryption_keys::remove_all(tables, id)?;
        tables.delete(AGENT_OF_ISSUER, &of_issuer(&row.issued_by, id));
        tables.delete(AGENT, id.as_bytes());
        tables.delete(AGENT_END, key);
        Quota::Agents.remove(tables, &row.issued_by)?;
        let is_last = Quota::Agents.of(tables, &row.issued_by)? == 0;
        let issuer = canonical_name(&row.issued_by);
        if is_last && tables.row(AGENT_ISSUER_REVOKED, issuer.as_bytes())?.is_some() {
            tables.delete(AGENT_ISSUER_REVOKED, issuer.as_bytes());
        }
    }
    if !ended.is_empty() {
        tables.subtract(AGENTS, ended.len() as u64)?;
    }
    Ok(())
}

fn of_issuer(issued_by: &str, agent_id: &str) -> Vec<u8> {
    [issued_by.as_bytes(), &[0], agent_id.as_bytes()].concat()
}

fn end(ends_at: Timestamp, agent_id: &str) -> Vec<u8> {
    time_key(ends_at.millis(), agent_id.as_bytes())
}

fn page(
    view: &dyn View,
    issued_by: Option<&str>,
    after: Option<&str>,
    limit: usize,
) -> Result<(Vec<IssuedAgent>, Option<String>), Corrupt> {
    let prefix = issued_by.map_or_else(Vec::new, |issued_by| of_issuer(issued_by, ""));
    // The smallest key after `after`.
    let from = after.map_or_else(|| prefix.clone(), |after| [&prefix, after.as_bytes(), &[0]].concat());
    let table = if issued_by.is_some() { AGENT_OF_ISSUER } else { AGENT };
    let mut ids = Vec::new();
    view.scan(table, &from, &mut |key, _| match key.strip_prefix(prefix.as_slice()) {
        Some(id) if ids.len() <= limit => {
            ids.push(id.to_vec());
            true
        }
        _ => false,
    })?;
    let (mut agents, mut bytes, mut last) = (Vec::new(), 0, None);
    for (at, id) in ids.into_iter().enumerate() {
        if at >= limit || bytes >= limits::TOOL_PAGE_BYTES_FULL {
            let next = last.map(String::from_utf8).transpose();
            return Ok((agents, next.map_err(|_| Corrupt::row("an agent_id is not UTF-8"))?));
        }
        // The row may have been deleted meanwhile.
        if let Some(row) = view.get(AGENT, &id)? {
            bytes += row.len();
            agents.push(decode::<AgentRow>(AGENT, &row)?.try_into()?);
        }
        last = Some(id);
    }
    Ok((agents, None))
}

impl State {
    /// An agent of any status.
    pub fn agent(&self, agent_id: &str) -> Result<Option<IssuedAgent>, Corrupt> {
        find(&Tables::new(self.cluster.view()), agent_id)?.map(TryInto::try_into).transpose()
    }

    /// At most `limit` agents after `after`, in the order of their ids, and the cursor of the next page. A page ends
    /// early at [`limits::TOOL_PAGE_BYTES_FULL`]. `issued_by`: only agents of this caller.
    pub fn agents(
        &self,
        issued_by: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<IssuedAgent>, Option<String>), Corrupt> {
        page(self.cluster.view(), issued_by, after, limit)
    }

    /// Status of an agent at `now`, which is not before log time.
    pub fn agent_status(
        &self,
        _fresh: &LeaseProof,
        agent: &IssuedAgent,
        now: Timestamp,
    ) -> Result<AgentStatus, Corrupt> {
        status(&Tables::new(self.cluster.view()), now, agent)
    }

    /// Whether an agent was active until a revocation of `workload`, as far as the rows show: an agent that
    /// was revoked or had expired before, or was issued after, was not affected.
    pub fn was_agent_active(
        &self,
        agent: &IssuedAgent,
        workload: &str,
        made: &Revoked,
    ) -> Result<bool, Corrupt> {
        was_active(&Tables::new(self.cluster.view()), agent, workload, made)
    }
}

impl OnBehalf<'_> {
    /// Issues an agent, or returns the one that the same request issued before. The result is its `agent_id`; its status
    /// is read separately.
    ///
    /// # Errors
    /// `Refusal::UnknownAgent`, `Refusal::AgentRevoked` or `Refusal::AgentEnded` for the parent;
    /// `Refusal::TooManyAgents`, `Refusal::IdempotencyKeyReused`.
    pub async fn issue_agent(self, agent: Agent) -> Result<String, Error> {
        let command = Command::IssueAgent(IssueAgent { agent: Some(agent), issued_by: self.name() });
        match self.propose_once(command).await?.outcome {
            Reply::Agent(AgentIssued { agent_id }) => Ok(agent_id),
            _ => Err(Error::Undecodable),
        }
    }

    /// Revokes an agent for good, and all that derives from it; `event` is transmitted over streams. Returns whether that
    /// changed anything, after the barrier and the waits for peers.
    ///
    /// # Errors
    /// `Refusal::UnknownAgent`, `Refusal::NotTheOwner`, `Refusal::IdempotencyKeyReused`, [`Error::PeersSilent`].
    pub async fn revoke_agent(
        self,
        agent_id: &WorkloadId,
        event: Option<SecurityEvent>,
    ) -> Result<(bool, Awaited), Error> {
        let command = RevokeAgent {
            agent_id: agent_id.as_str().to_owned(),
            digest: Bytes::copy_from_slice(lineage::workload(agent_id).as_bytes()),
            caller: self.name(),
            is_operator: self.is_operator(),
            event: event.map(Into::into),
        };
        let (reply, awaited) = self.propose_revocation(Command::RevokeAgent(command)).await?;
        Ok((reply.outcome.changed()?, awaited))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::id::{Digest128, DigestKind};
    use crate::state::Epoch;
    use crate::state::command::{self, EncryptionKeyRow};
    use crate::state::resources::revoked_fact::fact_row;
    use crate::state::tables::{ENCRYPTION_KEY, META, OWNED, REVOCATION};
    use crate::state::testing::StateHarness;

    const START: Timestamp = Timestamp::from_secs(1_800_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    fn id(name: &str) -> String {
        format!("wimse://a.example/agent/mcp/{name}")
    }

    fn new(name: &str, parent: Option<&str>) -> Command {
        let agent = Agent { agent_id: id(name), on_behalf_of: parent.map(id), ..Agent::default() };
        Command::IssueAgent(IssueAgent { agent: Some(agent), issued_by: "alice".to_owned() })
    }

    fn revocation_of(name: &str, caller: &str, is_operator: bool) -> Command {
        let digest = Digest128::of(DigestKind::Subject, b"", id(name).as_bytes());
        Command::RevokeAgent(RevokeAgent {
            agent_id: id(name),
            digest: Bytes::copy_from_slice(digest.as_bytes()),
            caller: caller.to_owned(),
            is_operator,
            event: None,
        })
    }

    #[track_caller]
    fn issued(reply: Reply) -> String {
        match reply {
            Reply::Agent(AgentIssued { agent_id }) => agent_id,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn row(harness: &StateHarness, agent_id: String) -> IssuedAgent {
        let row = &harness.rows.0[&(AGENT.to_owned(), agent_id.into_bytes())];
        AgentRow::decode(&row[..]).expect("a row").try_into().expect("an agent")
    }

    fn refused(reply: &Reply) -> Option<Refusal> {
        match reply {
            Reply::Refused(refusal) => Some(*refusal),
            _ => None,
        }
    }

    fn rows(harness: &StateHarness, table: &str) -> usize {
        harness.rows.0.keys().filter(|(of, _)| of == table).count()
    }

    #[test]
    fn agent_ends_with_its_parent_and_derives_from_its_ancestors() {
        let mut harness = StateHarness::default();
        let root = issued(harness.one(START, new("root", None)));
        let root = row(&harness, root);
        assert_eq!(root.ends_at, START.plus(limits::AGENT_LIFETIME_MAX));
        let later = START.plus(SECOND);
        let child = issued(harness.one(later, new("child", Some("root"))));
        let child = row(&harness, child);
        assert_eq!((child.issued_at, child.ends_at), (later, root.ends_at));
        let grandchild = issued(harness.one(later, new("grandchild", Some("child"))));
        let grandchild = row(&harness, grandchild);
        assert_eq!(grandchild.agent.ancestors, [id("child"), id("root")]);
        let own = issued(harness.one(later, new("own", None)));
        let own = row(&harness, own);
        assert_eq!((own.ends_at, own.agent.ancestors.len()), (later.plus(limits::AGENT_LIFETIME_MAX), 0));
    }

    #[test]
    fn agent_of_an_inactive_parent_is_refused() {
        let mut harness = StateHarness::default();
        harness.apply(START, vec![new("root", None), new("child", Some("root")), new("other", None)]);
        let refusal =
            |harness: &mut StateHarness, at, parent| refused(&harness.one(at, new("x", Some(parent))));
        assert_eq!(refusal(&mut harness, START, "none"), Some(Refusal::UnknownAgent));
        harness.one(START, revocation_of("root", "alice", false));
        for parent in ["root", "child"] {
            assert_eq!(refusal(&mut harness, START, parent), Some(Refusal::AgentRevoked), "{parent}");
        }
        let end = START.plus(limits::AGENT_LIFETIME_MAX);
        assert_eq!(refusal(&mut harness, end, "other"), Some(Refusal::AgentEnded));
        issued(harness.one(end, new("y", None)));
        let mut harness = StateHarness::default();
        harness.one(START, new("other", None));
        issued(harness.one(end.minus(Duration::from_millis(1)), new("x", Some("other"))));
    }

    /// Revokes a workload that is not an agent.
    fn without(workload: &str) -> Command {
        let fact = lineage::Fact::workload(&workload.parse().expect("an id"));
        let fact = Some(fact_row(&fact));
        Command::Revoke(command::Revoke { fact, ..command::Revoke::default() })
    }

    fn new_by(name: &str, parent: Option<&str>, caller: &str) -> Command {
        let agent = Agent { agent_id: id(name), on_behalf_of: parent.map(id), ..Agent::default() };
        Command::IssueAgent(IssueAgent { agent: Some(agent), issued_by: caller.to_owned() })
    }

    fn status_of(harness: &StateHarness, name: &str) -> AgentStatus {
        let tables = Tables::new(&harness.rows);
        let row = find(&tables, &id(name)).expect("readable").expect("there");
        status(&tables, START, &row.try_into().expect("an agent")).expect("readable")
    }

    #[test]
    fn revoked_issuer_revokes_its_earlier_agents() {
        let (one, other) = ("spiffe://a.example/one", "spiffe://a.example/other");
        let mut harness = StateHarness::default();
        for (name, parent, caller) in [
            ("root", None, one),
            ("child", Some("root"), other),
            ("grandchild", Some("child"), other),
            ("apart", None, other),
            ("alike", None, "spiffe://a.example/onemore"),
            ("nobodys", None, ""),
        ] {
            harness.one(START, new_by(name, parent, caller));
        }
        let child = issued(harness.one(START, new_by("again", Some("grandchild"), one)));
        let child = row(&harness, child);
        assert_eq!(child.issuers, [one, other], "each once");
        let derives = |name: &str, from: &str| {
            let row = find(&Tables::new(&harness.rows), &id(name)).expect("readable").expect("there");
            IssuedAgent::try_from(row).expect("an agent").derives_from(from)
        };
        assert!(derives("grandchild", one) && derives("grandchild", other) && derives("again", other));
        assert!(derives("grandchild", "wimse://a.example/one"), "under its other name");
        assert!(!derives("root", other) && !derives("apart", one) && !derives("nobodys", ""));

        // Under its other name.
        harness.one(START, without("wimse://a.example/one"));
        for name in ["root", "child", "grandchild", "again"] {
            assert_eq!(status_of(&harness, name), AgentStatus::Revoked, "{name}");
        }
        for name in ["apart", "alike", "nobodys"] {
            assert_eq!(status_of(&harness, name), AgentStatus::Active, "{name}");
        }
        let refusal = refused(&harness.one(START, new_by("late", Some("grandchild"), other)));
        assert_eq!(refusal, Some(Refusal::AgentRevoked));
        harness.one(START, new_by("fresh", None, one));
        harness.one(START, new_by("late", Some("fresh"), one));
        assert_eq!(
            (status_of(&harness, "fresh"), status_of(&harness, "late")),
            (AgentStatus::Active, AgentStatus::Active)
        );
        // The revocation is deleted before its agents are, and they stay revoked.
        let later = START.plus(limits::REVOCATION_RETENTION).plus(SECOND);
        harness.one(later, new_by("other", None, other));
        assert_eq!((rows(&harness, REVOCATION), status_of(&harness, "root")), (0, AgentStatus::Revoked));
        assert_eq!(status_of(&harness, "late"), AgentStatus::Active);
    }

    #[test]
    fn revocation_of_an_issuer_is_retained_as_long_as_its_agents() {
        let caller = "spiffe://a.example/one";
        let mut harness = StateHarness::default();
        harness.one(START, without(caller));
        assert_eq!(rows(&harness, AGENT_ISSUER_REVOKED), 0);
        harness.apply(START, vec![new_by("same", None, caller), without(caller)]);
        assert_eq!(status_of(&harness, "same"), AgentStatus::Revoked);
        harness.one(START, new_by("after", None, caller));
        let end = START.plus(limits::AGENT_LIFETIME_MAX).plus(limits::ENDED_AGENT_RETENTION);
        assert_eq!(rows(&harness, AGENT_ISSUER_REVOKED), 1);
        harness.one(end, new_by("x", None, "spiffe://a.example/other"));
        assert_eq!((rows(&harness, AGENT_ISSUER_REVOKED), rows(&harness, AGENT)), (0, 1));
    }

    #[test]
    fn agent_after_its_parents_revocation_in_one_entry_is_refused() {
        let mut harness = StateHarness::default();
        let replies = harness.apply(
            START,
            vec![new("root", None), revocation_of("root", "alice", false), new("child", Some("root"))],
        );
        assert_eq!(refused(&replies[2]), Some(Refusal::AgentRevoked));
    }

    #[test]
    fn agent_is_revoked_by_its_issuer_or_an_operator_once() {
        let mut harness = StateHarness::default();
        harness.apply(START, vec![new("a", None), new("b", None)]);
        assert_eq!(
            refused(&harness.one(START, revocation_of("a", "bob", false))),
            Some(Refusal::NotTheOwner)
        );
        assert_eq!(refused(&harness.one(START, revocation_of("a", "", false))), Some(Refusal::NotTheOwner));
        assert_eq!(
            refused(&harness.one(START, revocation_of("none", "alice", true))),
            Some(Refusal::UnknownAgent)
        );
        assert_eq!(rows(&harness, REVOCATION), 0);
        let changed = |reply| matches!(reply, Reply::Done { changed: true });
        assert!(changed(harness.one(START, revocation_of("a", "alice", false))));
        assert!(changed(harness.one(START, revocation_of("b", "bob", true))));
        let before = harness.rows.0[&(AGENT.to_owned(), id("a").into_bytes())].clone();
        assert!(!changed(harness.one(START.plus(SECOND), revocation_of("a", "bob", true))));
        assert_eq!(harness.rows.0[&(AGENT.to_owned(), id("a").into_bytes())], before);
        let row = AgentRow::decode(before.as_slice()).expect("row");
        assert_eq!((row.revoked_at_millis, row.revoked_by.as_str()), (START.millis(), "alice"));
        let digest = Digest128::of(DigestKind::Subject, b"", id("a").as_bytes());
        assert!(harness.machine.revocations().covers(Epoch::default(), &[digest], None, START));
        assert_eq!(
            digest,
            lineage::workload(&id("a").parse().expect("an identifier")),
            "as in the lineage of tokens"
        );
    }

    #[test]
    fn retry_with_its_idempotency_key_returns_the_first_agent_id() {
        let mut harness = StateHarness::default();
        let once = |name: &str| {
            let idempotency = command::Idempotency {
                key: Bytes::from_static(&[1; 16]),
                request: Bytes::from_static(&[7; 16]),
                owner: Bytes::from_static(&[9; 16]),
            };
            let agent = Agent { agent_id: id(name), agent_name: "n".repeat(256), ..Agent::default() };
            let command = IssueAgent { agent: Some(agent), issued_by: "alice".to_owned() };
            command::encode_once(Command::IssueAgent(command), Some(idempotency))
        };
        harness.encoded(START, vec![once("first")]);
        // Each request draws another id.
        let reply = harness.replied(START, vec![once("second")]).remove(0);
        assert!(reply.is_repeated);
        assert_eq!(reply.outcome, Reply::Agent(AgentIssued { agent_id: id("first") }));
        assert_eq!(rows(&harness, AGENT), 1);
    }

    #[test]
    fn page_of_agents_is_bounded_in_bytes() {
        let mut harness = StateHarness::default();
        let value = "v".repeat(limits::TOOL_PAGE_BYTES_FULL / 4);
        for name in ["a", "b", "c", "d", "e"] {
            let metadata = [("m".to_owned(), value.clone())].into();
            let agent = Agent { agent_id: id(name), metadata, ..Agent::default() };
            let command = IssueAgent { agent: Some(agent), issued_by: "alice".to_owned() };
            harness.one(START, Command::IssueAgent(command));
        }
        for issued_by in [None, Some("alice")] {
            let (first, next) = page(&harness.rows, issued_by, None, 1000).expect("page");
            assert_eq!((first.len(), next), (4, Some(id("d"))));
            let (second, next) = page(&harness.rows, issued_by, Some(&id("d")), 1000).expect("page");
            assert_eq!((second.len(), next), (1, None));
            let (few, next) = page(&harness.rows, issued_by, None, 2).expect("page");
            assert_eq!((few.len(), next), (2, Some(id("b"))));
        }
    }

    #[test]
    fn agent_id_is_issued_once() {
        let mut harness = StateHarness::default();
        harness.one(START, new("a", None));
        assert_eq!(refused(&harness.one(START, new("a", None))), Some(Refusal::NotTheOwner));
        assert_eq!(harness.rows.0[&(META.to_owned(), AGENTS.to_vec())], 1u64.to_be_bytes());
    }

    #[test]
    fn expired_agent_is_deleted_after_a_day() {
        let mut harness = StateHarness::default();
        harness.apply(START, vec![new("a", None), new("ab", None)]);
        for name in ["a", "ab"] {
            let key = [id(name).as_bytes(), &[0], b"kid"].concat();
            harness.rows.0.insert(
                (ENCRYPTION_KEY.to_owned(), key),
                EncryptionKeyRow { kid: "kid".to_owned(), ..EncryptionKeyRow::default() }.encode_to_vec(),
            );
        }
        harness.one(START, revocation_of("ab", "alice", false));
        let last = START.plus(limits::AGENT_LIFETIME_MAX).plus(limits::ENDED_AGENT_RETENTION);
        // The revoked one is deleted sooner.
        harness.one(last.minus(Duration::from_millis(1)), new("b", None));
        assert_eq!(
            [AGENT, AGENT_END, AGENT_OF_ISSUER, ENCRYPTION_KEY].map(|t| rows(&harness, t)),
            [2, 2, 2, 1]
        );
        harness.one(last, new("c", None));
        assert_eq!(
            [AGENT, AGENT_END, AGENT_OF_ISSUER, ENCRYPTION_KEY].map(|t| rows(&harness, t)),
            [2, 2, 2, 0]
        );
        assert_eq!(harness.rows.0[&(META.to_owned(), AGENTS.to_vec())], 2u64.to_be_bytes());
        // No token exists any more that its revocation could cover.
        assert_eq!(rows(&harness, REVOCATION), 0);
    }

    #[test]
    fn revoked_agent_is_deleted_after_its_last_token_expires() {
        let mut harness = StateHarness::default();
        harness.apply(START, vec![new("root", None), new("child", Some("root")), new("other", None)]);
        harness.one(START, revocation_of("root", "alice", false));
        assert_eq!(rows(&harness, AGENT_END), 3);
        let last = START.plus(limits::TOKEN_LIFETIME_MAX).plus(limits::ENDED_AGENT_RETENTION);
        issued(harness.one(last.minus(Duration::from_millis(1)), new("a", None)));
        assert_eq!((rows(&harness, AGENT), rows(&harness, AGENT_END)), (4, 4));
        issued(harness.one(last, new("b", None)));
        assert_eq!((rows(&harness, AGENT), rows(&harness, AGENT_END)), (4, 4), "one more and one less");
        assert!(!harness.rows.0.contains_key(&(AGENT.to_owned(), id("root").into_bytes())));
        assert_eq!(rows(&harness, REVOCATION), 0, "its revocation is not retained longer than its tokens");
        assert_eq!(refused(&harness.one(last, new("c", Some("child")))), Some(Refusal::AgentRevoked));
        let child = harness.rows.0[&(AGENT.to_owned(), id("child").into_bytes())].clone();
        let child = AgentRow::decode(child.as_slice()).expect("row").try_into().expect("an agent");
        let status = status(&Tables::new(&harness.rows), last, &child).expect("rows");
        assert_eq!(status, AgentStatus::Revoked, "as reads see the child");
        // A revocation near its end does not extend its life.
        let end = START.plus(limits::AGENT_LIFETIME_MAX);
        harness.one(end.minus(SECOND), revocation_of("other", "alice", false));
        assert!(harness.rows.0.contains_key(&(AGENT_END.to_owned(), super::end(end, &id("other")))));
    }

    #[test]
    fn agents_per_caller_are_limited() {
        let mut harness = StateHarness::default();
        harness.one(START, new("a", None));
        let row = (OWNED.to_owned(), Quota::Agents.key("alice"));
        assert_eq!(harness.rows.0.get(&row), Some(&1u64.to_be_bytes().to_vec()));
        harness.rows.0.insert(row.clone(), (limits::AGENTS_PER_CALLER_MAX - 1).to_be_bytes().to_vec());
        issued(harness.one(START, new("b", None)));
        assert_eq!(refused(&harness.one(START, new("c", None))), Some(Refusal::TooManyAgents));
        let agent = Agent { agent_id: id("bobs"), ..Agent::default() };
        let bobs = IssueAgent { agent: Some(agent), issued_by: "bob".to_owned() };
        issued(harness.one(START, Command::IssueAgent(bobs)));
        // A revocation frees capacity, but not at once.
        harness.one(START, revocation_of("b", "alice", false));
        assert_eq!(refused(&harness.one(START, new("c", None))), Some(Refusal::TooManyAgents));
        let later = START.plus(limits::TOKEN_LIFETIME_MAX).plus(limits::ENDED_AGENT_RETENTION);
        issued(harness.one(later, new("c", None)));
        assert_eq!(refused(&harness.one(later, new("d", None))), Some(Refusal::TooManyAgents));
    }

    #[test]
    fn agents_deleted_by_a_refused_issue_are_not_counted() {
        let mut harness = StateHarness::default();
        let agent = Agent { agent_id: id("bobs"), ..Agent::default() };
        let bobs = IssueAgent { agent: Some(agent), issued_by: "bob".to_owned() };
        harness.one(START, Command::IssueAgent(bobs));
        let row = (OWNED.to_owned(), Quota::Agents.key("alice"));
        harness.rows.0.insert(row, limits::AGENTS_PER_CALLER_MAX.to_be_bytes().to_vec());
        let later = START.plus(limits::AGENT_LIFETIME_MAX).plus(limits::ENDED_AGENT_RETENTION);
        assert_eq!(refused(&harness.one(later, new("a", None))), Some(Refusal::TooManyAgents));
        assert_eq!((rows(&harness, AGENT), rows(&harness, OWNED)), (0, 1));
        assert_eq!(harness.rows.0[&(META.to_owned(), AGENTS.to_vec())], 0u64.to_be_bytes());
    }

    #[test]
    fn deletion_of_expired_agents_is_bounded_per_command() {
        let mut harness = StateHarness::default();
        harness.apply(START, (0..7).map(|at| new(&format!("a{at}"), None)).collect());
        let later = START.plus(limits::AGENT_LIFETIME_MAX).plus(limits::ENDED_AGENT_RETENTION);
        harness.one(later, new("b0", None));
        assert_eq!(rows(&harness, AGENT), 7 - limits::ENDED_AGENTS_REMOVED_PER_ISSUE + 1);
        // Several commands of one entry do not delete the same row twice.
        harness.apply(later, vec![new("b1", None), new("b2", None)]);
        assert_eq!(rows(&harness, AGENT), 7 - 3 * limits::ENDED_AGENTS_REMOVED_PER_ISSUE + 3);
        harness.apply(later, vec![new("b3", None), new("b4", None)]);
        assert_eq!(
            (rows(&harness, AGENT), rows(&harness, AGENT_END), rows(&harness, AGENT_OF_ISSUER)),
            (5, 5, 5)
        );
        assert_eq!(harness.rows.0[&(META.to_owned(), AGENTS.to_vec())], 5u64.to_be_bytes());
    }

    #[test]
    fn agents_over_the_limit_are_refused() {
        let mut harness = StateHarness::default();
        harness.one(START, new("a", None));
        let set = |harness: &mut StateHarness, agents: u64| {
            harness.rows.0.insert((META.to_owned(), AGENTS.to_vec()), agents.to_be_bytes().to_vec());
        };
        set(&mut harness, limits::AGENTS_MAX - 1);
        issued(harness.one(START, new("b", None)));
        assert_eq!(refused(&harness.one(START, new("c", None))), Some(Refusal::TooManyAgents));
        // An agent that expired long ago frees capacity.
        let later = START.plus(limits::AGENT_LIFETIME_MAX).plus(limits::ENDED_AGENT_RETENTION);
        issued(harness.one(later, new("c", None)));
    }

    #[test]
    fn rows_of_agents_do_not_depend_on_batching() {
        let commands = |at: usize| {
            vec![
                new(&format!("r{at}"), None),
                new(&format!("c{at}"), Some(&format!("r{at}"))),
                revocation_of(&format!("r{at}"), "alice", false),
                new(&format!("d{at}"), Some(&format!("r{at}"))),
                new(&format!("s{at}"), None),
            ]
        };
        let (mut together, mut apart) = (StateHarness::default(), StateHarness::default());
        for round in 0..3 {
            let at = START.plus(limits::AGENT_LIFETIME_MAX * 2 * u32::try_from(round).expect("small"));
            together.apply(at, commands(round));
            for command in commands(round) {
                apart.one(at, command);
            }
            // Revocations and agents contain the index of their entry, and feed events have it in their ids.
            let without_entries = |harness: &StateHarness| {
                let rows = harness.rows.without_events();
                let rows = rows.into_iter().filter(|((table, _), _)| table != REVOCATION);
                let rows = rows.map(|((table, key), row)| {
                    let agent = (table == AGENT).then(|| decode::<AgentRow>(AGENT, &row).expect("a row"));
                    let agent = agent
                        .map(|agent| AgentRow { issued_index: 0, revoked_index: 0, ..agent }.encode_to_vec());
                    (table.clone(), key.clone(), agent.unwrap_or_else(|| row.clone()))
                });
                rows.collect::<Vec<_>>()
            };
            assert_eq!(without_entries(&together), without_entries(&apart));
        }
    }
}
