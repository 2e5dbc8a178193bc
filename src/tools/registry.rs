//! The registry: what a tool entry may say (contract §5), and who may change it.
//!
//! One registry behind two doors; which of them a request came through is one argument, [`Door`].
//! Nothing here decides about a token.

use std::fmt;

use super::Caller;
use super::audit::{self, Action, Audit, Decision, Draft, Open};
use super::entry::Entry;
use crate::clock::Clock;
use crate::cluster;
use crate::state::command::{DeregisterTool, How, PutTool, ToolRow, ToolVersion};
use crate::state::{self, Current, State, Told, ToolPage, ToolQuery};
use crate::telemetry::Metrics;

/// Which tools a request can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// `/v1/tools`: every one.
    Every,
    /// `/v1/mcp/tools`: those that take `mcp`.
    Mcp,
}

impl Door {
    /// The protocol that a tool must take.
    #[must_use]
    pub fn protocol(self) -> Option<&'static str> {
        match self {
            Self::Every => None,
            Self::Mcp => Some("mcp"),
        }
    }
}

/// What the caller says is there (RFC 9110 §13.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// `If-Match`: one of these states. Empty: not asked for.
    pub expected: Vec<ToolVersion>,
    /// `If-Match: *`: any.
    pub must_exist: bool,
    /// `If-None-Match: *`: none.
    pub must_be_new: bool,
}

impl Condition {
    /// Whether it holds for a tool that is there.
    #[must_use]
    pub fn holds_for(&self, there: &ToolRow) -> bool {
        let is_expected = |version: ToolVersion| self.expected.contains(&version);
        !self.must_be_new && (self.expected.is_empty() || there.version.is_some_and(is_expected))
    }
}

/// What was done. The text is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The tool is new.
    Registered,
    /// Its entry is another.
    Replaced,
    /// Its entry was what it should be.
    Unchanged,
    /// It is gone.
    Deregistered,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Registered => "registered",
            Self::Replaced => "replaced",
            Self::Unchanged => "found unchanged",
            Self::Deregistered => "deregistered",
        })
    }
}

/// Why the registry did not do, or does not say, what it was asked to.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// It was refused, or is not known to have been done.
    #[error(transparent)]
    State(#[from] state::Error),
    /// It could not be audited, so that it was not done.
    #[error(transparent)]
    Audit(#[from] audit::Error),
    /// What came of it could not be audited. The same request may be sent again.
    #[error("{outcome}, but that could not be audited; send the same request again")]
    Unaudited {
        /// What came of it, for people.
        outcome: String,
        /// Why.
        source: audit::Error,
    },
}

/// A tool after it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// What was done.
    pub outcome: Outcome,
    /// The tool as it is now.
    pub row: ToolRow,
}

/// Everything the registry needs.
pub struct Registry {
    /// The replicated state.
    pub state: State,
    /// The audit of this node.
    pub audit: Audit,
    /// Time.
    pub clock: Clock,
    /// Counters.
    pub metrics: Metrics,
}

impl Registry {
    /// Registers a tool. One that is there with the same entry is left as it is, with another it is
    /// refused.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn register(&self, entry: Entry, caller: &Caller) -> Result<Written, Error> {
        self.put(entry, false, Condition::default(), caller).await
    }

    /// Registers a tool, or replaces its entry. A replacement is answered only when no member can answer by the entry
    /// before it.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn replace(
        &self,
        entry: Entry,
        condition: Condition,
        caller: &Caller,
    ) -> Result<Written, Error> {
        self.put(entry, true, condition, caller).await
    }

    async fn put(
        &self,
        entry: Entry,
        replaces: bool,
        condition: Condition,
        caller: &Caller,
    ) -> Result<Written, Error> {
        let tool = entry.into_tool();
        let tool_id = tool.tool_id.clone();
        let command = PutTool {
            tool: Some(tool),
            caller: caller.id.clone().unwrap_or_default(),
            is_operator: caller.is_operator,
            replaces,
            expected: condition.expected,
            must_exist: condition.must_exist,
            must_be_new: condition.must_be_new,
        };
        let asked = if replaces { Action::Replace } else { Action::Register };
        let open = self.begin(asked, &tool_id, caller)?;
        match self.state.on_behalf_of(&caller.facts).put_tool(command, caller.idempotency).await {
            Ok(Told { outcome: written, is_repeated }) => {
                let (outcome, action) = match written.how() {
                    How::Registered => (Outcome::Registered, Action::Register),
                    How::Replaced => (Outcome::Replaced, Action::Replace),
                    How::Unchanged => (Outcome::Unchanged, asked),
                };
                let row = written.row.ok_or(state::Error::Undecodable)?;
                self.done(open, Told { outcome, is_repeated }, action).await?;
                // What was there allowed other calls. A request that found it unchanged may be the retry of one whose
                // acknowledgement failed.
                if replaces && outcome != Outcome::Registered {
                    self.state.acknowledged().await?;
                }
                Ok(Written { outcome, row })
            }
            Err(error) => Err(self.refused(open, error, asked, &tool_id).await),
        }
    }

    /// Deregisters a tool that can be seen through `door`. Answered only when no member can still find it.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn deregister(
        &self,
        tool_id: String,
        door: Door,
        condition: Condition,
        caller: &Caller,
    ) -> Result<(), Error> {
        let command = DeregisterTool {
            tool_id: tool_id.clone(),
            caller: caller.id.clone().unwrap_or_default(),
            is_operator: caller.is_operator,
            expected: condition.expected,
            must_exist: condition.must_exist,
            protocol: door.protocol().unwrap_or_default().to_owned(),
        };
        let open = self.begin(Action::Deregister, &tool_id, caller)?;
        match self.state.on_behalf_of(&caller.facts).deregister_tool(command, caller.idempotency).await {
            Ok(Told { is_repeated, .. }) => {
                let told = Told { outcome: Outcome::Deregistered, is_repeated };
                self.done(open, told, Action::Deregister).await?;
                Ok(self.state.acknowledged().await?)
            }
            Err(error) => {
                let is_gone = matches!(error, state::Error::UnknownTool);
                let refused = self.refused(open, error, Action::Deregister, &tool_id).await;
                if is_gone {
                    // It may have gone by an earlier request whose acknowledgement failed.
                    self.state.acknowledged().await?;
                }
                Err(refused)
            }
        }
    }

    /// A tool that can be seen through `door`.
    ///
    /// # Errors
    /// [`state::Error::UnknownTool`], or [`state::Error::Damaged`].
    pub fn tool(&self, _current: &Current, tool_id: &str, door: Door) -> Result<ToolRow, Error> {
        let row = self.state.tool(tool_id)?;
        let takes = |row: &ToolRow, wanted: &str| {
            row.tool.iter().flat_map(|tool| &tool.protocols).any(|protocol| protocol == wanted)
        };
        let visible = row.filter(|row| door.protocol().is_none_or(|protocol| takes(row, protocol)));
        Ok(visible.ok_or(state::Error::UnknownTool)?)
    }

    /// A page of the tools, in the order of ids.
    ///
    /// # Errors
    /// [`state::Error::Damaged`].
    pub fn tools(&self, _current: &Current, query: ToolQuery<'_>) -> Result<ToolPage, Error> {
        Ok(self.state.tools(query)?)
    }

    /// Before anything is proposed: what cannot be audited is not done, and what is done is audited even if
    /// nobody waits for it.
    fn begin(&self, action: Action, tool_id: &str, caller: &Caller) -> Result<Open, Error> {
        let begun = self.audit.begin(Draft::undecided(action, tool_id, caller, self.clock.now()));
        if begun.is_err() {
            self.metrics.tool_write(action.as_str(), "unavailable");
        }
        Ok(begun?)
    }

    async fn done(&self, open: Open, told: Told<Outcome>, action: Action) -> Result<(), Error> {
        let outcome = format!("the tool was {}", told.outcome);
        let (result, outcome) = match told {
            // The write has its own entry; a second one like it would say what did not happen.
            Told { is_repeated: true, .. } => {
                let asked = "the outcome of an earlier request, asked for again; nothing changed";
                ("repeated", format!("{asked} ({outcome})"))
            }
            Told { outcome: Outcome::Unchanged, .. } => ("unchanged", outcome),
            Told { .. } => ("done", outcome),
        };
        self.metrics.tool_write(action.as_str(), result);
        let recorded = open.record(|draft| {
            (draft.action, draft.decision) = (action, Decision::Allow);
            draft.notes.clone_from(&outcome);
        });
        recorded.await.map_err(|source| Error::Unaudited { outcome, source })
    }

    /// A refusal is audited if it is about a tool that is there: what never was has no trail.
    async fn refused(&self, open: Open, error: state::Error, action: Action, tool_id: &str) -> Error {
        let (decision, result) = match &error {
            state::Error::Write(cluster::Error::OutcomeUnknown) | state::Error::Undecodable => {
                (Some(Decision::Error), "unknown")
            }
            state::Error::Write(_) | state::Error::Damaged(_) => (None, "unavailable"),
            _ => {
                let is_there = self.state.tool(tool_id).is_ok_and(|row| row.is_some());
                (is_there.then_some(Decision::Deny), "refused")
            }
        };
        self.metrics.tool_write(action.as_str(), result);
        let Some(decision) = decision else {
            open.withdraw();
            return error.into();
        };
        let recorded = open.record(|draft| {
            draft.decision = decision;
            draft.notes = error.to_string();
        });
        match (recorded.await, decision) {
            (Err(source), Decision::Deny) => {
                Error::Unaudited { outcome: "the write was refused".to_owned(), source }
            }
            // Its caller is told that the outcome is unknown, whatever became of the audit.
            _ => error.into(),
        }
    }
}
