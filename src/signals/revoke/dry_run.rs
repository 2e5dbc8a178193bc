//! What a revocation would hit: the agents, page by page, and the tools that its workload has registered.
//!
//! Agents are looked through one by one, for nothing says which derive from whom but each for itself. That
//! costs some microseconds for each that there is, in steps between which other requests have their turn.

use super::{Error, hits, is_workload, wrong_cursor};
use crate::limits;
use crate::state::{IssuedAgent, State, ToolQuery};
use crate::token::lineage::Fact;

/// What would be hit, or a page of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DryRun {
    /// Whether the same is revoked already.
    pub is_revoked: bool,
    /// Of all pages; only the first says them.
    pub counts: Option<Counts>,
    /// Agents that would be revoked, in the order of their ids.
    pub agents: Vec<String>,
    /// Tools that the workload has registered, in the order of their ids. They stay registered.
    pub tools: Vec<String>,
    /// Where the next page begins.
    pub next: Option<String>,
}

/// How many would be hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Agents.
    pub agents: u64,
    /// Tools.
    pub tools: u64,
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

/// How many agents derive from a fact.
pub(super) async fn count(state: &State, fact: &Fact) -> Result<u64, Error> {
    let mut agents = 0_u64;
    each_agent(state, fact, None, |_| {
        agents = agents.saturating_add(1);
        true
    })
    .await?;
    Ok(agents)
}

/// A page of what would be hit.
pub(super) async fn look(
    state: &State,
    fact: &Fact,
    is_revoked: bool,
    after: Option<Place>,
    limit: usize,
) -> Result<DryRun, Error> {
    let mut page = DryRun { is_revoked, ..DryRun::default() };
    let of_workload = if is_workload(fact) { state.tools_of(fact.value())? } else { 0 };
    let is_first = after.is_none();
    let tools_after = match after {
        Some(Place::Tools(id)) => Some(id),
        Some(Place::Agents(_)) | None => {
            let from = if let Some(Place::Agents(id)) = after { Some(id) } else { None };
            let mut agents = 0_u64;
            each_agent(state, fact, from, |agent| {
                agents = agents.saturating_add(1);
                let has_room = page.agents.len() < limit;
                if has_room {
                    page.agents.push(agent.agent.agent_id);
                }
                // The first page counts them all.
                has_room || is_first
            })
            .await?;
            if is_first {
                page.counts = Some(Counts { agents, tools: of_workload });
            }
            let is_more = u64::try_from(page.agents.len()).unwrap_or(u64::MAX) < agents;
            page.next = page.agents.last().filter(|_| is_more).cloned().map(|id| Place::Agents(id).write());
            None
        }
    };
    if page.next.is_none() && of_workload > 0 {
        let room = limit.saturating_sub(page.agents.len());
        let after = tools_after.filter(|id| !id.is_empty());
        add_tools(state, fact.value(), after, room, &mut page).await?;
    }
    Ok(page)
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
        for row in some.rows.into_iter().filter(|row| row.registered_by == registered_by) {
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

/// Visits every agent behind `after` that the fact hits, in the order of ids, until `visit` answers false.
async fn each_agent(
    state: &State,
    fact: &Fact,
    mut after: Option<String>,
    mut visit: impl FnMut(IssuedAgent) -> bool,
) -> Result<(), Error> {
    if !is_workload(fact) {
        return Ok(());
    }
    loop {
        let (agents, next) = state.agents(None, after.as_deref(), limits::AGENT_SCAN_ROWS_AT_ONCE)?;
        for agent in agents.into_iter().filter(|agent| hits(agent, fact)) {
            if !visit(agent) {
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
