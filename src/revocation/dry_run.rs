//! What a revocation would hit: the agents, page by page, the tools that its workload has registered, and the
//! streams that it made.
//!
//! Agents are looked through one by one, for nothing says which derive from whom but each for itself. That
//! costs some microseconds for each that there is, in steps between which other requests have their turn.

use super::{Error, hits, is_workload, wrong_cursor};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::limits;
use crate::state::{AgentStatus, AppliedRevocation, IssuedAgent, LeaseProof, State, Stream, ToolQuery};
use crate::token::lineage::{Fact, is_same_name};

/// What would be hit, or a page of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DryRun {
    /// Whether the same is revoked already.
    pub is_revoked: bool,
    /// Of all pages; only the first says them.
    pub counts: Option<Counts>,
    /// Agents that would be revoked, in the order of their ids; `None` where that cannot be known.
    pub agents: Option<Vec<String>>,
    /// Tools that the workload has registered, in the order of their ids. They stay registered.
    pub tools: Vec<String>,
    /// Streams that the workload made, in the order of their ids; only the first page says them. They stay.
    pub streams: Vec<String>,
    /// Where the next page begins.
    pub next: Option<String>,
}

/// How many would be hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Agents; `None` where that cannot be known.
    pub agents: Option<u64>,
    /// Tools.
    pub tools: u64,
    /// Streams.
    pub streams: u64,
}

/// Where a page begins: behind an agent, or behind a tool; behind an empty id, with the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Agents(String),
    Tools(String),
}

impl Place {
    pub(super) fn read(text: &str) -> Result<Self, Error> {
        match text.split_once(' ') {
            Some(("agents", id)) => Ok(Self::Agents(id.to_owned())),
            Some(("tools", id)) => Ok(Self::Tools(id.to_owned())),
            _ => Err(wrong_cursor()),
        }
    }

    fn write(self) -> String {
        match self {
            Self::Agents(id) => format!("agents {id}"),
            Self::Tools(id) => format!("tools {id}"),
        }
    }
}

impl DryRun {
    /// An empty page. `knows_agents`: whether it can be told which agents would be hit.
    pub(super) fn new(is_revoked: bool, knows_agents: bool) -> Self {
        Self { is_revoked, agents: knows_agents.then(Vec::new), ..Self::default() }
    }
}

/// How many agents a revocation hit: those that derive from the fact and were in force until it was made.
pub(super) async fn count(state: &State, fact: &Fact, made: &AppliedRevocation) -> Result<u64, Error> {
    let mut agents = 0_u64;
    let was_hit = |agent: &IssuedAgent| state.was_agent_active(agent, fact.value(), made);
    each_agent(state, fact, None, was_hit, |_| {
        agents = agents.saturating_add(1);
        true
    })
    .await?;
    Ok(agents)
}

/// A look at what revoking a fact would hit now.
pub(super) struct Look<'l> {
    pub(super) state: &'l State,
    pub(super) fresh: LeaseProof,
    pub(super) now: Timestamp,
    pub(super) fact: &'l Fact,
}

impl Look<'_> {
    /// Fills a page, from where the one before says that it begins.
    pub(super) async fn page(
        self,
        mut page: DryRun,
        after: Option<Place>,
        limit: usize,
    ) -> Result<DryRun, Error> {
        let (state, fact) = (self.state, self.fact);
        let of_workload = if is_workload(fact) { state.tools_of(fact.value())? } else { 0 };
        let is_first = after.is_none();
        let tools_after = match after {
            Some(Place::Tools(id)) => Some(id),
            Some(Place::Agents(id)) => {
                page.next = self.add_agents(&mut page, Some(id), limit, false).await?;
                None
            }
            None => {
                page.next = self.add_agents(&mut page, None, limit, true).await?;
                None
            }
        };
        if is_first && let Some(counts) = &mut page.counts {
            counts.tools = of_workload;
            page.streams = streams_of(state, fact);
            counts.streams = u64::try_from(page.streams.len()).unwrap_or(u64::MAX);
        }
        if page.next.is_none() && of_workload > 0 {
            let room = limit.saturating_sub(page.agents.as_ref().map_or(0, Vec::len));
            let after = tools_after.filter(|id| !id.is_empty());
            add_tools(state, fact.value(), after, room, &mut page).await?;
        }
        Ok(page)
    }

    /// As many agents as there is room for, and where there are more. The first page counts them all.
    async fn add_agents(
        &self,
        page: &mut DryRun,
        after: Option<String>,
        limit: usize,
        is_first: bool,
    ) -> Result<Option<String>, Error> {
        let Self { state, fact, .. } = self;
        let Some(named) = &mut page.agents else {
            page.counts = is_first.then(Counts::default);
            return Ok(None);
        };
        let mut agents = 0_u64;
        let is_hit = |agent: &IssuedAgent| {
            Ok(state.agent_status(&self.fresh, agent, self.now)? == AgentStatus::Active)
        };
        each_agent(state, fact, after, is_hit, |agent| {
            agents = agents.saturating_add(1);
            let has_room = named.len() < limit;
            if has_room {
                named.push(agent.agent.agent_id);
            }
            has_room || is_first
        })
        .await?;
        page.counts = is_first.then_some(Counts { agents: Some(agents), ..Counts::default() });
        let is_more = u64::try_from(named.len()).unwrap_or(u64::MAX) < agents;
        Ok(named.last().filter(|_| is_more).cloned().map(|id| Place::Agents(id).write()))
    }
}

/// A workload has at most [`limits::STREAMS_PER_CALLER_MAX`].
fn streams_of(state: &State, fact: &Fact) -> Vec<String> {
    let is_owner = |stream: &Stream| is_workload(fact) && is_same_name(&stream.config.owner, fact.value());
    let streams = state.streams();
    streams.iter().filter(|(_, stream)| is_owner(stream)).map(|(stream_id, _)| stream_id.clone()).collect()
}

/// As many tools as there is room for, and whether there are more.
async fn add_tools(
    state: &State,
    registered_by: &str,
    mut after: Option<String>,
    room: usize,
    page: &mut DryRun,
) -> Result<(), Error> {
    loop {
        let query =
            ToolQuery { after: after.as_deref(), protocol: None, limit: limits::AGENT_SCAN_ROWS_AT_ONCE };
        let some = state.tools(query)?;
        for row in some.rows.into_iter().filter(|row| is_same_name(&row.registered_by, registered_by)) {
            if page.tools.len() >= room {
                let last = page.tools.last().cloned().unwrap_or_default();
                page.next = Some(Place::Tools(last).write());
                return Ok(());
            }
            page.tools.extend(row.tool.map(|tool| tool.tool_id));
        }
        after = some.next;
        if after.is_none() {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

/// Visits every agent behind `after` that derives from the fact and that `is_hit` takes, in the order of ids,
/// until `visit` answers false.
async fn each_agent(
    state: &State,
    fact: &Fact,
    mut after: Option<String>,
    is_hit: impl Fn(&IssuedAgent) -> Result<bool, Corrupt>,
    mut visit: impl FnMut(IssuedAgent) -> bool,
) -> Result<(), Error> {
    if !is_workload(fact) {
        return Ok(());
    }
    loop {
        let (agents, next) = state.agents(None, after.as_deref(), limits::AGENT_SCAN_ROWS_AT_ONCE)?;
        for agent in agents.into_iter().filter(|agent| hits(agent, fact)) {
            if is_hit(&agent)? && !visit(agent) {
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
    fn a_place_survives_its_text_form_and_nothing_else_is_one() {
        for place in [
            Place::Agents("wimse://a.example/agent/mcp/x".to_owned()),
            Place::Tools(String::new()),
            Place::Tools("a tool".to_owned()),
        ] {
            assert_eq!(Place::read(&place.clone().write()).expect("a place"), place);
        }
        for text in ["", "agents", "tool x", "Agents x"] {
            let error = Place::read(text).expect_err(text).to_string();
            assert_eq!(error, "cursor: must be one that a Link header gave");
        }
    }
}
