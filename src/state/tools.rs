//! The registry of tools as replicated state.
//!
//! What a tool may be was decided before it was proposed; here is decided who may change which state
//! of it. Tools are not kept in memory: whoever registers them must not decide how much a node needs.

use prost::Message as _;

use super::command::{
    Command, DeregisterTool, How, PutTool, Refusal, Reply, Tool, ToolRow, ToolVersion, ToolWritten,
};
use super::tables::{META, TOOL, TOOL_OF_PROTOCOL, TOOLS, Tables, decode};
use super::{Error, Idempotency, State};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, View};
use crate::limits;

/// Row of the meta table: the number of the last registration. It only grows, so that no state of a tool
/// is taken for one of another registration of its id.
const LAST_REGISTRATION: &[u8] = b"last_tool_registration";

/// Registers or replaces a tool. In this order:
///
/// 1. what the caller says is there, is there
/// 2. what is there is what is asked for: nothing changes, whoever asks
/// 3. another content replaces what is there only if the command says so
/// 4. and only for whoever registered it, or an operator
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn put(tables: &mut Tables<'_>, now: Timestamp, command: PutTool) -> Result<Reply, Corrupt> {
    let tool = command.tool.ok_or_else(|| Corrupt::row("a command to put a tool has none"))?;
    let Some(there) = row_of(tables, &tool.tool_id)? else {
        if command.must_exist || !command.expected.is_empty() {
            return Ok(Reply::Refused(Refusal::PreconditionFailed));
        }
        return register(tables, now, tool, command.caller);
    };
    if command.must_be_new || !is_expected(&command.expected, &there) {
        return Ok(Reply::Refused(Refusal::PreconditionFailed));
    }
    if there.tool.as_ref() == Some(&tool) {
        return Ok(written(How::Unchanged, there));
    }
    if !command.replaces {
        return Ok(Reply::Refused(Refusal::ToolExists));
    }
    if !may_change(&there, &command.caller, command.is_operator) {
        return Ok(Reply::Refused(Refusal::NotTheOwner));
    }
    replace(tables, now, tool, there)
}

/// Deregisters a tool. Whoever may not change it is not told which state it is in (RFC 9110 §13.2.1).
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn deregister(tables: &mut Tables<'_>, command: &DeregisterTool) -> Result<Reply, Corrupt> {
    let Some(there) = row_of(tables, &command.tool_id)? else {
        return Ok(Reply::Refused(Refusal::UnknownTool));
    };
    let protocols = there.tool.as_ref().map_or(&[][..], |tool| &tool.protocols);
    if !command.protocol.is_empty() && !protocols.contains(&command.protocol) {
        return Ok(Reply::Refused(Refusal::UnknownTool));
    }
    if !may_change(&there, &command.caller, command.is_operator) {
        return Ok(Reply::Refused(Refusal::NotTheOwner));
    }
    if !is_expected(&command.expected, &there) {
        return Ok(Reply::Refused(Refusal::PreconditionFailed));
    }
    for protocol in protocols {
        tables.delete(TOOL_OF_PROTOCOL, &protocol_key(protocol, &command.tool_id));
    }
    tables.delete(TOOL, command.tool_id.as_bytes());
    let tools = tables.number(TOOLS)?.checked_sub(1);
    let tools = tools.ok_or_else(|| Corrupt::row("there are fewer tools than none"))?;
    tables.put(META, TOOLS, tools.to_be_bytes().to_vec());
    Ok(Reply::Done { changed: true })
}

fn register(tables: &mut Tables<'_>, now: Timestamp, tool: Tool, caller: String) -> Result<Reply, Corrupt> {
    let tools = tables.number(TOOLS)?;
    if tools >= limits::TOOLS_MAX {
        return Ok(Reply::Refused(Refusal::TooManyTools));
    }
    let registration = tables.number(LAST_REGISTRATION)? + 1;
    tables.put(META, LAST_REGISTRATION, registration.to_be_bytes().to_vec());
    tables.put(META, TOOLS, (tools + 1).to_be_bytes().to_vec());
    let row = ToolRow {
        tool: Some(tool),
        version: Some(ToolVersion { registration, revision: 1 }),
        registered_by: caller,
        registered_at_millis: now.millis(),
        updated_at_millis: now.millis(),
    };
    put_row(tables, &row);
    Ok(written(How::Registered, row))
}

fn replace(tables: &mut Tables<'_>, now: Timestamp, tool: Tool, there: ToolRow) -> Result<Reply, Corrupt> {
    let version = there.version.ok_or_else(|| Corrupt::row("a tool has no version"))?;
    for protocol in there.tool.iter().flat_map(|tool| &tool.protocols) {
        if !tool.protocols.contains(protocol) {
            tables.delete(TOOL_OF_PROTOCOL, &protocol_key(protocol, &tool.tool_id));
        }
    }
    let row = ToolRow {
        tool: Some(tool),
        version: Some(ToolVersion { revision: version.revision + 1, ..version }),
        updated_at_millis: now.millis(),
        ..there
    };
    put_row(tables, &row);
    Ok(written(How::Replaced, row))
}

fn put_row(tables: &mut Tables<'_>, row: &ToolRow) {
    let Some(tool) = &row.tool else { return };
    tables.put(TOOL, tool.tool_id.as_bytes(), row.encode_to_vec());
    for protocol in &tool.protocols {
        tables.put(TOOL_OF_PROTOCOL, &protocol_key(protocol, &tool.tool_id), Vec::new());
    }
}

fn row_of(tables: &Tables<'_>, tool_id: &str) -> Result<Option<ToolRow>, Corrupt> {
    let row = tables.row(TOOL, tool_id.as_bytes())?;
    row.map(|row| decode::<ToolRow>(TOOL, &row)).transpose()
}

fn is_expected(expected: &[ToolVersion], there: &ToolRow) -> bool {
    expected.is_empty() || there.version.is_some_and(|version| expected.contains(&version))
}

/// What nobody registered, in development mode, belongs to nobody.
fn may_change(there: &ToolRow, caller: &str, is_operator: bool) -> bool {
    is_operator || (!caller.is_empty() && there.registered_by == caller)
}

fn written(how: How, row: ToolRow) -> Reply {
    Reply::Tool(ToolWritten { how: how.into(), row: Some(row) })
}

/// No protocol has a zero byte in its name, so no other protocol's rows lie between.
fn protocol_key(protocol: &str, tool_id: &str) -> Vec<u8> {
    [protocol.as_bytes(), &[0], tool_id.as_bytes()].concat()
}

/// A part of the registry, in the order of ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolPage {
    /// The tools.
    pub rows: Vec<ToolRow>,
    /// The id behind which the next page begins; `None` if nothing is there.
    pub next: Option<String>,
}

/// Which tools are wanted of the registry.
#[derive(Clone, Copy, Debug, Default)]
pub struct ToolQuery<'q> {
    /// Only those behind this id.
    pub after: Option<&'q str>,
    /// Only those that take this protocol.
    pub protocol: Option<&'q str>,
    /// Most tools. A page ends sooner where it has [`limits::TOOL_PAGE_BYTES_FULL`].
    pub limit: usize,
}

fn tool(view: &dyn View, tool_id: &str) -> Result<Option<ToolRow>, Corrupt> {
    let row = view.get(TOOL, tool_id.as_bytes())?;
    row.map(|row| decode::<ToolRow>(TOOL, &row)).transpose()
}

fn page(view: &dyn View, query: ToolQuery<'_>) -> Result<ToolPage, Corrupt> {
    // The first key that is greater.
    let after = query.after.map_or_else(Vec::new, |after| [after.as_bytes(), &[0]].concat());
    let mut page = Filling { page: ToolPage::default(), last: None, bytes: 0, limit: query.limit };
    let mut outcome = Ok(true);
    match query.protocol {
        None => view.scan(TOOL, &after, &mut |_, row| {
            outcome = page.take(row);
            matches!(outcome, Ok(true))
        })?,
        Some(protocol) => {
            let prefix = protocol_key(protocol, "");
            view.scan(TOOL_OF_PROTOCOL, &[&prefix[..], &after].concat(), &mut |key, _| {
                let Some(tool_id) = key.strip_prefix(&prefix[..]) else { return false };
                outcome = match view.get(TOOL, tool_id) {
                    // Deregistered since the scan began.
                    Ok(None) => Ok(true),
                    Ok(Some(row)) => page.take(&row),
                    Err(error) => Err(error),
                };
                matches!(outcome, Ok(true))
            })?;
        }
    }
    outcome?;
    Ok(page.page)
}

/// A page while it is read.
struct Filling {
    page: ToolPage,
    last: Option<String>,
    bytes: usize,
    limit: usize,
}

impl Filling {
    /// One more row; whether another may follow.
    fn take(&mut self, row: &[u8]) -> Result<bool, Corrupt> {
        if self.page.rows.len() >= self.limit || self.bytes >= limits::TOOL_PAGE_BYTES_FULL {
            self.page.next = self.last.take();
            return Ok(false);
        }
        let read = decode::<ToolRow>(TOOL, row)?;
        self.last = read.tool.as_ref().map(|tool| tool.tool_id.clone());
        self.bytes += row.len();
        self.page.rows.push(read);
        Ok(true)
    }
}

impl State {
    /// Registers or replaces a tool, as the command says.
    ///
    /// # Errors
    /// [`Error::ToolExists`], [`Error::NotTheOwner`], [`Error::PreconditionFailed`],
    /// [`Error::TooManyTools`], [`Error::IdempotencyKeyReused`], or as [`Error::Write`] says.
    pub async fn put_tool(
        &self,
        command: PutTool,
        idempotency: Option<Idempotency>,
    ) -> Result<ToolWritten, Error> {
        match self.propose_once(Command::PutTool(command), idempotency).await? {
            Reply::Tool(written) => Ok(written),
            _ => Err(Error::Undecodable),
        }
    }

    /// Deregisters a tool.
    ///
    /// # Errors
    /// [`Error::UnknownTool`], [`Error::NotTheOwner`], [`Error::PreconditionFailed`],
    /// [`Error::IdempotencyKeyReused`], or as [`Error::Write`] says.
    pub async fn deregister_tool(
        &self,
        command: DeregisterTool,
        idempotency: Option<Idempotency>,
    ) -> Result<(), Error> {
        match self.propose_once(Command::DeregisterTool(command), idempotency).await? {
            Reply::Done { .. } => Ok(()),
            _ => Err(Error::Undecodable),
        }
    }

    /// A tool as it is registered now.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn tool(&self, tool_id: &str) -> Result<Option<ToolRow>, Error> {
        Ok(tool(self.core.view(), tool_id)?)
    }

    /// A page of the registry.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn tools(&self, query: ToolQuery<'_>) -> Result<ToolPage, Error> {
        Ok(page(self.core.view(), query)?)
    }
}
