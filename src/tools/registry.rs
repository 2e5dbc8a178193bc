//! The tool registry: the callers that may change a tool entry (contract §5), and the audit of each change.
//!
//! Two route sets share one registry; [`RegistryView`] names the one of a request.

use super::audit::{self, Action, Audit, Decision, Draft, PendingEntry};
use super::entry::Entry;
use crate::clock::Clock;
use crate::cluster;
use crate::state::command::{DeregisterTool, How, PutTool, ToolRow, ToolVersion};
use crate::state::{self, CallContext, LinearizableRead, Refusal, Replied, State, ToolPage, ToolQuery};
use crate::telemetry::Metrics;

/// Route set of a request, which determines the visible tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistryView {
    /// `/v1/tools`: all tools.
    Every,
    /// `/v1/mcp/tools`: tools that accept `mcp`.
    Mcp,
}

impl RegistryView {
    /// Protocol that a visible tool accepts.
    #[must_use]
    pub fn protocol(self) -> Option<&'static str> {
        match self {
            Self::Every => None,
            Self::Mcp => Some("mcp"),
        }
    }
}

/// Preconditions of a write (RFC 9110 §13.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Precondition {
    /// `If-Match`: one of these versions. Empty: no such precondition.
    pub expected: Vec<ToolVersion>,
    /// `If-Match: *`: the tool exists.
    pub must_exist: bool,
    /// `If-None-Match: *`: the tool does not exist.
    pub must_be_new: bool,
}

impl Precondition {
    /// Whether it holds for an existing tool.
    #[must_use]
    pub fn holds_for(&self, row: &ToolRow) -> bool {
        let is_expected = |version: ToolVersion| self.expected.contains(&version);
        !self.must_be_new && (self.expected.is_empty() || row.version.is_some_and(is_expected))
    }
}

/// Effect of a write. Its text goes into audit notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum RegistryChange {
    /// The tool is new.
    Registered,
    /// Its entry was replaced.
    Replaced,
    /// It had this entry already.
    Unchanged,
    /// It was removed.
    Deregistered,
}

/// Reason for which the registry refused a request.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Refused, or the outcome is unknown.
    #[error(transparent)]
    State(#[from] state::Error),
    /// Not done: its audit entry could not be begun.
    #[error(transparent)]
    Audit(#[from] audit::Error),
    /// Done or refused, but its audit entry could not be written. A retry is safe.
    #[error("{outcome}, but the audit entry could not be written; retry the same request")]
    Unaudited { outcome: String, source: audit::Error },
}

/// A tool after it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// Effect of the write.
    pub outcome: RegistryChange,
    /// The tool after it.
    pub row: ToolRow,
}

/// Dependencies of the registry.
pub struct Registry {
    pub state: State,
    /// The audit of this node.
    pub audit: Audit,
    pub clock: Clock,
    pub metrics: Metrics,
}

impl Registry {
    /// Registers a tool. An existing tool with the same entry stays as it is; with another entry it is a conflict.
    ///
    /// # Errors
    /// [`Error::State`] with the refusal of `apply`; [`Error::Audit`], [`Error::Unaudited`].
    pub async fn register(&self, entry: Entry, caller: &CallContext) -> Result<Written, Error> {
        self.put(entry, false, Precondition::default(), caller).await
    }

    /// Registers a tool or replaces its entry. A replacement is acknowledged once no member can answer from the earlier
    /// entry.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub async fn replace(
        &self,
        entry: Entry,
        precondition: Precondition,
        caller: &CallContext,
    ) -> Result<Written, Error> {
        self.put(entry, true, precondition, caller).await
    }

    async fn put(
        &self,
        entry: Entry,
        replaces: bool,
        precondition: Precondition,
        caller: &CallContext,
    ) -> Result<Written, Error> {
        let tool = entry.into_tool();
        let tool_id = tool.tool_id.clone();
        let command = PutTool {
            tool: Some(tool),
            caller: caller.id.clone().unwrap_or_default(),
            is_operator: caller.is_operator,
            replaces,
            expected: precondition.expected,
            must_exist: precondition.must_exist,
            must_be_new: precondition.must_be_new,
        };
        let action = if replaces { Action::Replace } else { Action::Register };
        let open = self.begin(action, &tool_id, caller)?;
        match self.state.on_behalf_of(caller).put_tool(command).await {
            Ok(Replied { outcome: written, is_repeated }) => {
                let (outcome, action) = match written.how() {
                    How::Registered => (RegistryChange::Registered, Action::Register),
                    How::Replaced => (RegistryChange::Replaced, Action::Replace),
                    How::Unchanged => (RegistryChange::Unchanged, action),
                };
                let row = written.row.ok_or(state::Error::Undecodable)?;
                self.done(open, Replied { outcome, is_repeated }, action).await?;
                // The earlier entry may have allowed other calls. An unchanged one may be the retry of a replacement
                // whose acknowledgement failed.
                if replaces && outcome != RegistryChange::Registered {
                    self.state.barrier().await?;
                }
                Ok(Written { outcome, row })
            }
            Err(error) => Err(self.refused(open, error, action, &tool_id).await),
        }
    }

    /// Deregisters a tool visible through `view`. Acknowledged once no member can still find it.
    ///
    /// # Errors
    /// As [`Self::register`]; `Refusal::UnknownTool`.
    pub async fn deregister(
        &self,
        tool_id: String,
        view: RegistryView,
        precondition: Precondition,
        caller: &CallContext,
    ) -> Result<(), Error> {
        let command = DeregisterTool {
            tool_id: tool_id.clone(),
            caller: caller.id.clone().unwrap_or_default(),
            is_operator: caller.is_operator,
            expected: precondition.expected,
            must_exist: precondition.must_exist,
            protocol: view.protocol().unwrap_or_default().to_owned(),
        };
        let open = self.begin(Action::Deregister, &tool_id, caller)?;
        match self.state.on_behalf_of(caller).deregister_tool(command).await {
            Ok(Replied { is_repeated, .. }) => {
                let reply = Replied { outcome: RegistryChange::Deregistered, is_repeated };
                self.done(open, reply, Action::Deregister).await?;
                Ok(self.state.barrier().await?)
            }
            Err(error) => {
                let is_gone = matches!(error, state::Error::Refused(Refusal::UnknownTool));
                let refused = self.refused(open, error, Action::Deregister, &tool_id).await;
                if is_gone {
                    // An earlier request whose acknowledgement failed may have removed it.
                    self.state.barrier().await?;
                }
                Err(refused)
            }
        }
    }

    /// A tool visible through `view`.
    ///
    /// # Errors
    /// `Refusal::UnknownTool`, or [`state::Error::Damaged`].
    pub fn tool(
        &self,
        _current: &LinearizableRead,
        tool_id: &str,
        view: RegistryView,
    ) -> Result<ToolRow, Error> {
        let row = self.state.tool(tool_id)?;
        let takes = |row: &ToolRow, wanted: &str| {
            row.tool.iter().flat_map(|tool| &tool.protocols).any(|protocol| protocol == wanted)
        };
        let visible = row.filter(|row| view.protocol().is_none_or(|protocol| takes(row, protocol)));
        Ok(visible.ok_or(state::Error::Refused(Refusal::UnknownTool))?)
    }

    /// One page of the tools, by `tool_id`.
    ///
    /// # Errors
    /// [`state::Error::Damaged`].
    pub fn tools(&self, _current: &LinearizableRead, query: ToolQuery<'_>) -> Result<ToolPage, Error> {
        Ok(self.state.tools(query)?)
    }

    /// Begins the audit entry before the proposal: nothing is done that cannot be audited, and a write is audited even
    /// if its caller has disconnected.
    fn begin(&self, action: Action, tool_id: &str, caller: &CallContext) -> Result<PendingEntry, Error> {
        let begun = self.audit.begin(Draft::undecided(action, tool_id, caller, self.clock.now()));
        if begun.is_err() {
            self.metrics.tool_writes.inc([action.into_str(), "unavailable"]);
        }
        Ok(begun?)
    }

    async fn done(
        &self,
        open: PendingEntry,
        reply: Replied<RegistryChange>,
        action: Action,
    ) -> Result<(), Error> {
        let outcome = format!("the tool was {}", reply.outcome);
        let (result, outcome) = match reply {
            // The original write has its own entry; a second one like it would record a change that did not happen.
            Replied { is_repeated: true, .. } => {
                let notes = "duplicate of an earlier request; nothing changed";
                ("repeated", format!("{notes} ({outcome})"))
            }
            Replied { outcome: RegistryChange::Unchanged, .. } => ("unchanged", outcome),
            Replied { .. } => ("done", outcome),
        };
        self.metrics.tool_writes.inc([action.into_str(), result]);
        let recorded = open.record(|draft| {
            (draft.action, draft.decision) = (action, Decision::Allow);
            draft.notes.clone_from(&outcome);
        });
        recorded.await.map_err(|source| Error::Unaudited { outcome, source })
    }

    /// A refusal is audited only if the tool exists: an unknown tool has no trail.
    async fn refused(&self, open: PendingEntry, error: state::Error, action: Action, tool_id: &str) -> Error {
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
        self.metrics.tool_writes.inc([action.into_str(), result]);
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
            // The caller gets "outcome unknown", with or without an audit entry.
            _ => error.into(),
        }
    }
}
