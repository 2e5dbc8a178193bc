//! Dry run of a revocation: pages of the agents that it would cover, of the tools that its workload has registered,
//! and the streams that it owns.
//!
//! All agents are scanned, because each agent's row alone says from which facts it derives: some microseconds each,
//! in steps between which other tasks run.

use serde::Serialize;
use utoipa::ToSchema;

use super::{Error, covers, invalid_cursor, is_workload};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::command::Revoked;
use crate::state::{AgentStatus, IssuedAgent, LeaseProof, State, Stream, ToolQuery, stated};
use crate::text::values;
use crate::token::lineage::{Fact, is_same_name};

/// The result of a dry run, or a page of it.
#[derive(Serialize, ToSchema)]
#[schema(as = RevocationDryRun)]
pub struct DryRunPage {
    /// Always true: nothing was changed.
    dry_run: bool,
    /// The digest of the fact.
    id: String,
    /// The kind of fact.
    #[schema(value_type = values::FactKind)]
    kind: String,
    /// The issuer of the value; absent for a workload identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// The value that would be revoked.
    value: String,
    /// Whether it is already revoked.
    is_revoked: bool,
    /// Totals over all pages; only on the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<HitCounts>,
    /// Affected agents, ordered by id; the tools follow after the last agent. Null if they cannot be known: there is no
    /// list of a key's signatures or of a token's holders.
    #[schema(required = true, value_type = Option<Vec<String>>)]
    agents: Option<Vec<String>>,
    /// Tools that the workload registered. They stay registered.
    tools: Vec<String>,
    /// Streams that the workload created; only on the first page. They stay, and push nothing while it is blocked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    streams: Vec<String>,
    /// Cursor of the next page.
    #[serde(skip)]
    pub next: Option<String>,
}

/// Totals of a dry run. Tokens are not counted, because there is no list of them.
#[derive(Default, Serialize, ToSchema)]
pub struct HitCounts {
    /// Active agents; null if they cannot be known.
    #[schema(required = true, value_type = Option<u64>)]
    agents: Option<u64>,
    /// Tools.
    tools: u64,
    /// Streams.
    streams: u64,
}

/// Cursor of a page: after an agent, or after a tool; an empty id is before the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DryRunCursor {
    Agents(String),
    Tools(String),
}

impl DryRunCursor {
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        match text.split_once(' ') {
            Some(("agents", id)) => Ok(Self::Agents(id.to_owned())),
            Some(("tools", id)) => Ok(Self::Tools(id.to_owned())),
            _ => Err(invalid_cursor()),
        }
    }

    fn into_text(self) -> String {
        match self {
            Self::Agents(id) => format!("agents {id}"),
            Self::Tools(id) => format!("tools {id}"),
        }
    }
}

impl DryRunPage {
    /// An empty page. `can_list_agents`: whether the covered agents can be listed.
    pub(super) fn new(fact: &Fact, kind: &str, is_revoked: bool, can_list_agents: bool) -> Self {
        Self {
            dry_run: true,
            id: fact.digest().to_string(),
            kind: kind.to_owned(),
            issuer: stated(fact.issuer().to_owned()),
            value: fact.value().to_owned(),
            is_revoked,
            counts: None,
            agents: can_list_agents.then(Vec::new),
            tools: Vec::new(),
            streams: Vec::new(),
            next: None,
        }
    }
}

/// Number of agents that a revocation covers: those that derive from the fact and were active until then.
pub(super) async fn count(state: &State, fact: &Fact, revoked: &Revoked) -> Result<u64, Error> {
    let mut agents = 0_u64;
    let was_covered = |agent: &IssuedAgent| state.was_agent_active(agent, fact.value(), revoked);
    each_agent(state, fact, None, was_covered, |_| {
        agents = agents.saturating_add(1);
        true
    })
    .await?;
    Ok(agents)
}

/// Scan for the effects of revoking a fact now.
pub(super) struct Scan<'l> {
    pub(super) state: &'l State,
    pub(super) fresh: LeaseProof,
    pub(super) now: Timestamp,
    pub(super) fact: &'l Fact,
}

impl Scan<'_> {
    /// Fills a page that begins at `after`.
    pub(super) async fn page(
        self,
        mut page: DryRunPage,
        after: Option<DryRunCursor>,
        limit: usize,
    ) -> Result<DryRunPage, Error> {
        let (state, fact) = (self.state, self.fact);
        let registered = if is_workload(fact) { state.tools_of(fact.value())? } else { 0 };
        let is_first = after.is_none();
        let tools_after = match after {
            Some(DryRunCursor::Tools(id)) => Some(id),
            Some(DryRunCursor::Agents(id)) => {
                page.next = self.add_agents(&mut page, Some(id), limit, false).await?;
                None
            }
            None => {
                page.next = self.add_agents(&mut page, None, limit, true).await?;
                None
            }
        };
        if is_first && let Some(counts) = &mut page.counts {
            counts.tools = registered;
            page.streams = streams_of(state, fact);
            counts.streams = u64::try_from(page.streams.len()).unwrap_or(u64::MAX);
        }
        if page.next.is_none() && registered > 0 {
            let capacity = limit.saturating_sub(page.agents.as_ref().map_or(0, Vec::len));
            let after = tools_after.filter(|id| !id.is_empty());
            add_tools(state, fact.value(), after, capacity, &mut page).await?;
        }
        Ok(page)
    }

    /// Adds agents up to `limit` and returns the cursor if there are more. The first page counts them all.
    async fn add_agents(
        &self,
        page: &mut DryRunPage,
        after: Option<String>,
        limit: usize,
        is_first: bool,
    ) -> Result<Option<String>, Error> {
        let Self { state, fact, .. } = self;
        let Some(listed) = &mut page.agents else {
            page.counts = is_first.then(HitCounts::default);
            return Ok(None);
        };
        let mut agents = 0_u64;
        let is_covered = |agent: &IssuedAgent| {
            Ok(state.agent_status(&self.fresh, agent, self.now)? == AgentStatus::Active)
        };
        each_agent(state, fact, after, is_covered, |agent| {
            agents = agents.saturating_add(1);
            let has_capacity = listed.len() < limit;
            if has_capacity {
                listed.push(agent.agent.agent_id);
            }
            has_capacity || is_first
        })
        .await?;
        page.counts = is_first.then(|| HitCounts { agents: Some(agents), ..HitCounts::default() });
        let has_more = u64::try_from(listed.len()).unwrap_or(u64::MAX) < agents;
        Ok(listed.last().filter(|_| has_more).cloned().map(|id| DryRunCursor::Agents(id).into_text()))
    }
}

/// A workload owns at most [`limits::STREAMS_PER_CALLER_MAX`].
fn streams_of(state: &State, fact: &Fact) -> Vec<String> {
    let is_owner = |stream: &Stream| is_workload(fact) && is_same_name(&stream.config.owner, fact.value());
    let streams = state.streams();
    streams.iter().filter(|(_, stream)| is_owner(stream)).map(|(stream_id, _)| stream_id.clone()).collect()
}

/// Adds tools up to `capacity` and sets the cursor if there are more.
async fn add_tools(
    state: &State,
    registered_by: &str,
    mut after: Option<String>,
    capacity: usize,
    page: &mut DryRunPage,
) -> Result<(), Error> {
    loop {
        let query =
            ToolQuery { after: after.as_deref(), protocol: None, limit: limits::AGENT_SCAN_ROWS_PER_STEP };
        let page_of_tools = state.tools(query)?;
        for row in
            page_of_tools.rows.into_iter().filter(|row| is_same_name(&row.registered_by, registered_by))
        {
            if page.tools.len() >= capacity {
                let last = page.tools.last().cloned().unwrap_or_default();
                page.next = Some(DryRunCursor::Tools(last).into_text());
                return Ok(());
            }
            page.tools.extend(row.tool.map(|tool| tool.tool_id));
        }
        after = page_of_tools.next;
        if after.is_none() {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

/// Visits every agent after `after` that derives from the fact and passes `is_covered`, in order of ids, until `visit`
/// returns false.
async fn each_agent(
    state: &State,
    fact: &Fact,
    mut after: Option<String>,
    is_covered: impl Fn(&IssuedAgent) -> Result<bool, Corrupt>,
    mut visit: impl FnMut(IssuedAgent) -> bool,
) -> Result<(), Error> {
    if !is_workload(fact) {
        return Ok(());
    }
    loop {
        let (agents, next) = state.agents(None, after.as_deref(), limits::AGENT_SCAN_ROWS_PER_STEP)?;
        for agent in agents.into_iter().filter(|agent| covers(agent, fact)) {
            if is_covered(&agent)? && !visit(agent) {
                return Ok(());
            }
        }
        after = next;
        if after.is_none() {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_survives_its_text_form() {
        for cursor in [
            DryRunCursor::Agents("wimse://a.example/agent/mcp/x".to_owned()),
            DryRunCursor::Tools(String::new()),
            DryRunCursor::Tools("a tool".to_owned()),
        ] {
            assert_eq!(DryRunCursor::parse(&cursor.clone().into_text()).expect("a cursor"), cursor);
        }
        for text in ["", "agents", "tool x", "Agents x"] {
            let error = DryRunCursor::parse(text).expect_err(text).to_string();
            assert_eq!(error, "cursor: must be from a Link header");
        }
    }
}
