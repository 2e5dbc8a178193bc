//! The tool registry.
//!
//! The content of a tool was validated before; here `apply` decides ownership and preconditions. A caller
//! that registers tools must not determine how much memory a node needs: reads use
//! [`crate::state::tables::row_cache`], which is bounded, or the database.

use prost::Message as _;

use super::feed::{self, FeedKind, NewFeedEvent};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, View};
use crate::limits;
use crate::state::command::{
    Command, DeregisterTool, How, PutTool, Refusal, Replied, Reply, Tool, ToolRow, ToolVersion, ToolWritten,
};
use crate::state::tables::quotas::Quota;
use crate::state::tables::{TOOL, TOOL_OF_PROTOCOL, TOOLS, Tables, decode, try_scan};
use crate::state::{Error, OnBehalf, State};

/// Row of the meta table: number of the last registration. It only grows, so that versions of two registrations of one id
/// always differ.
const LAST_REGISTRATION: &[u8] = b"last_tool_registration";

/// Registers or replaces a tool. Checks, in this order:
///
/// 1. a different content requires that the command replaces
/// 2. and that the caller is the owner or an operator
/// 3. the preconditions of the caller, which the version before an equal content meets too: the request may repeat the
///    one that replaced it (RFC 9110 §13.1.1)
/// 4. an equal content changes nothing, for any caller
///
/// RFC 9110 §13.2.1: "A server MUST ignore all received preconditions if its response to the same request
/// without those conditions [...] would have been a status code other than a 2xx (Successful) or 412".
pub fn put(tables: &mut Tables<'_>, now: Timestamp, command: PutTool) -> Result<Reply, Corrupt> {
    let tool = command.tool.ok_or_else(|| Corrupt::row("a put command has no tool"))?;
    let Some(there) = row_of(tables, &tool.tool_id)? else {
        if command.must_exist || !command.expected.is_empty() {
            return Ok(Reply::Refused(Refusal::PreconditionFailed));
        }
        return register(tables, now, tool, command.caller);
    };
    let is_same = there.tool.as_ref() == Some(&tool);
    if !is_same && !command.replaces {
        return Ok(Reply::Refused(Refusal::ToolExists));
    }
    if !is_same && !may_change(&there, &command.caller, command.is_operator) {
        return Ok(Reply::Refused(Refusal::NotTheOwner));
    }
    let may_repeat = is_same && is_expected(&command.expected, previous(&there));
    if command.must_be_new || !(is_expected(&command.expected, there.version) || may_repeat) {
        return Ok(Reply::Refused(Refusal::PreconditionFailed));
    }
    if is_same { Ok(written(How::Unchanged, there)) } else { replace(tables, now, tool, there) }
}

/// Deregisters a tool. A caller that may not change it does not learn its version (RFC 9110 §13.2.1).
pub fn deregister(
    tables: &mut Tables<'_>,
    now: Timestamp,
    command: &DeregisterTool,
) -> Result<Reply, Corrupt> {
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
    if !is_expected(&command.expected, there.version) {
        return Ok(Reply::Refused(Refusal::PreconditionFailed));
    }
    for protocol in protocols {
        tables.delete(TOOL_OF_PROTOCOL, &protocol_key(protocol, &command.tool_id));
    }
    tables.delete(TOOL, command.tool_id.as_bytes());
    if tables.number(TOOLS)? == 0 {
        return Err(Corrupt::row("the number of tools is negative"));
    }
    tables.subtract(TOOLS, 1)?;
    Quota::Tools.remove(tables, &there.registered_by)?;
    append_feed_event(tables, now, &there, "deregistered")?;
    Ok(Reply::Done { changed: true })
}

fn register(tables: &mut Tables<'_>, now: Timestamp, tool: Tool, caller: String) -> Result<Reply, Corrupt> {
    let of_caller = Quota::Tools.of(tables, &caller)?;
    if tables.number(TOOLS)? >= limits::TOOLS_MAX || of_caller >= limits::TOOLS_PER_CALLER_MAX {
        return Ok(Reply::Refused(Refusal::TooManyTools));
    }
    let registration = tables.add(LAST_REGISTRATION, 1)?;
    tables.add(TOOLS, 1)?;
    Quota::Tools.add(tables, &caller)?;
    let row = ToolRow {
        tool: Some(tool),
        version: Some(ToolVersion { registration, revision: 1 }),
        registered_by: caller,
        registered_at_millis: now.millis(),
        updated_at_millis: now.millis(),
    };
    put_row(tables, &row);
    append_feed_event(tables, now, &row, "registered")?;
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
    append_feed_event(tables, now, &row, "replaced")?;
    Ok(written(How::Replaced, row))
}

fn append_feed_event(
    tables: &mut Tables<'_>,
    now: Timestamp,
    row: &ToolRow,
    detail: &str,
) -> Result<(), Corrupt> {
    let Some(tool) = &row.tool else { return Ok(()) };
    let target = tool.resource_uri.as_deref().unwrap_or_default();
    feed::append(tables, now, NewFeedEvent { kind: FeedKind::Tool, subject: &tool.tool_id, target, detail })
}

fn put_row(tables: &mut Tables<'_>, row: &ToolRow) {
    let Some(tool) = &row.tool else { return };
    tables.put(TOOL, tool.tool_id.as_bytes(), row.encode_to_vec());
    for protocol in &tool.protocols {
        tables.put(TOOL_OF_PROTOCOL, &protocol_key(protocol, &tool.tool_id), Vec::new());
    }
}

fn row_of(tables: &Tables<'_>, tool_id: &str) -> Result<Option<ToolRow>, Corrupt> {
    tables.message(TOOL, tool_id.as_bytes())
}

fn is_expected(expected: &[ToolVersion], version: Option<ToolVersion>) -> bool {
    expected.is_empty() || version.is_some_and(|version| expected.contains(&version))
}

/// The version that this one replaced.
fn previous(there: &ToolRow) -> Option<ToolVersion> {
    let ToolVersion { registration, revision } = there.version?;
    Some(ToolVersion { registration, revision: revision.checked_sub(1).filter(|revision| *revision > 0)? })
}

/// A tool without an owner, registered by an anonymous caller in development mode, can be changed by operators only.
fn may_change(there: &ToolRow, caller: &str, is_operator: bool) -> bool {
    is_operator || (!caller.is_empty() && there.registered_by == caller)
}

/// Without the tool: it is that of the command, and replies are stored until they are received.
fn written(how: How, row: ToolRow) -> Reply {
    Reply::Tool(ToolWritten { how: how.into(), row: Some(ToolRow { tool: None, ..row }) })
}

/// Index key. A protocol contains no zero byte, so the rows of one protocol are adjacent.
fn protocol_key(protocol: &str, tool_id: &str) -> Vec<u8> {
    [protocol.as_bytes(), &[0], tool_id.as_bytes()].concat()
}

/// A page of the registry, in the order of ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolPage {
    pub rows: Vec<ToolRow>,
    /// Cursor of the next page; `None` on the last one.
    pub next: Option<String>,
}

/// Query of the registry.
#[derive(Clone, Copy, Debug, Default)]
pub struct ToolQuery<'q> {
    /// Only tools after this id.
    pub after: Option<&'q str>,
    /// Only tools with this protocol.
    pub protocol: Option<&'q str>,
    /// Maximum number of tools. A page ends early at [`limits::TOOL_PAGE_BYTES_FULL`].
    pub limit: usize,
}

/// Tools scanned per tool of a page before the index of a protocol is used: most tools have one of few protocols, and
/// adjacent rows are read at once.
const SEEN_FOR_EACH: usize = 2;

fn page(view: &dyn View, query: ToolQuery<'_>) -> Result<ToolPage, Corrupt> {
    // The smallest key after `after`.
    let after = query.after.map_or_else(Vec::new, |after| [after.as_bytes(), &[0]].concat());
    let mut page = PageBuilder { page: ToolPage::default(), last: None, bytes: 0, query };
    let seen_max = query.protocol.map(|_| query.limit.saturating_mul(SEEN_FOR_EACH));
    let (mut seen, mut bytes) = (0, 0);
    let mut rest = None;
    try_scan(view, TOOL, &after, |tool_id, row| {
        if seen_max.is_some_and(|most| seen >= most || bytes >= limits::TOOL_PAGE_BYTES_FULL) {
            rest = Some(tool_id.to_vec());
            return Ok(false);
        }
        seen += 1;
        bytes += row.len();
        page.take(row)
    })?;
    if let (Some(protocol), Some(rest)) = (query.protocol, rest) {
        let prefix = protocol_key(protocol, "");
        try_scan(view, TOOL_OF_PROTOCOL, &[&prefix[..], &rest].concat(), |key, _| {
            let Some(tool_id) = key.strip_prefix(&prefix[..]) else { return Ok(false) };
            // The tool may have been deregistered since the scan began.
            view.get(TOOL, tool_id)?.map_or(Ok(true), |row| page.take(&row))
        })?;
    }
    Ok(page.page)
}

/// A page while it is filled.
struct PageBuilder<'q> {
    page: ToolPage,
    last: Option<String>,
    bytes: usize,
    query: ToolQuery<'q>,
}

impl PageBuilder<'_> {
    /// Adds a row; returns whether another may follow.
    fn take(&mut self, row: &[u8]) -> Result<bool, Corrupt> {
        let read = decode::<ToolRow>(TOOL, row)?;
        // The tool may have been replaced since the scan began.
        let takes = |wanted| read.tool.iter().flat_map(|tool| &tool.protocols).any(|known| known == wanted);
        if !self.query.protocol.is_none_or(takes) {
            return Ok(true);
        }
        if self.page.rows.len() >= self.query.limit || self.bytes >= limits::TOOL_PAGE_BYTES_FULL {
            self.page.next = self.last.take();
            return Ok(false);
        }
        self.last = read.tool.as_ref().map(|tool| tool.tool_id.clone());
        self.bytes += row.len();
        self.page.rows.push(read);
        Ok(true)
    }
}

impl State {
    /// A registered tool.
    pub fn tool(&self, tool_id: &str) -> Result<Option<ToolRow>, Error> {
        let view = self.cluster.machine().row_cache().over(self.cluster.view());
        Ok(row_of(&Tables::new(&view), tool_id)?)
    }

    /// Number of tools of a caller.
    pub fn tools_of(&self, caller: &str) -> Result<u64, Error> {
        Ok(Quota::Tools.of(&Tables::new(self.cluster.view()), caller)?)
    }

    /// A page of the registry.
    pub fn tools(&self, query: ToolQuery<'_>) -> Result<ToolPage, Error> {
        Ok(page(&self.cluster.machine().row_cache().over(self.cluster.view()), query)?)
    }
}

impl OnBehalf<'_> {
    /// Registers or replaces a tool.
    ///
    /// # Errors
    /// `Refusal::ToolExists`, `Refusal::NotTheOwner`, `Refusal::PreconditionFailed`,
    /// `Refusal::TooManyTools`, `Refusal::IdempotencyKeyReused`.
    pub async fn put_tool(self, command: PutTool) -> Result<Replied<ToolWritten>, Error> {
        let tool = command.tool.clone();
        let reply = self.propose_once(Command::PutTool(command)).await?;
        match reply.outcome {
            Reply::Tool(ToolWritten { how, row: Some(row) }) => {
                let outcome = ToolWritten { how, row: Some(ToolRow { tool, ..row }) };
                Ok(Replied { outcome, is_repeated: reply.is_repeated })
            }
            _ => Err(Error::Undecodable),
        }
    }

    /// Deregisters a tool.
    ///
    /// # Errors
    /// `Refusal::UnknownTool`, `Refusal::NotTheOwner`, `Refusal::PreconditionFailed`,
    /// `Refusal::IdempotencyKeyReused`.
    pub async fn deregister_tool(self, command: DeregisterTool) -> Result<Replied<()>, Error> {
        let reply = self.propose_once(Command::DeregisterTool(command)).await?;
        reply.outcome.changed()?;
        Ok(Replied { outcome: (), is_repeated: reply.is_repeated })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Machine as _;
    use crate::state::tables::{IDEMPOTENCY, META, OWNED};
    use crate::state::testing::StateHarness;
    use crate::state::{Replicated, command};

    const START: Timestamp = Timestamp::from_secs(1_800_000_000);
    const LATER: Timestamp = Timestamp::from_secs(1_800_000_060);

    fn tool(tool_id: &str, name: &str, protocols: &[&str]) -> Tool {
        Tool {
            tool_id: tool_id.to_owned(),
            name: name.to_owned(),
            protocols: protocols.iter().map(|protocol| (*protocol).to_owned()).collect(),
            ..Tool::default()
        }
    }

    /// Command of POST.
    fn new(tool_id: &str, name: &str) -> PutTool {
        PutTool {
            tool: Some(tool(tool_id, name, &["mcp"])),
            caller: "alice".to_owned(),
            ..PutTool::default()
        }
    }

    /// Command of PUT.
    fn put(tool_id: &str, name: &str) -> PutTool {
        PutTool { replaces: true, ..new(tool_id, name) }
    }

    fn deregistration(tool_id: &str) -> DeregisterTool {
        DeregisterTool {
            tool_id: tool_id.to_owned(),
            caller: "alice".to_owned(),
            ..DeregisterTool::default()
        }
    }

    fn version(registration: u64, revision: u64) -> ToolVersion {
        ToolVersion { registration, revision }
    }

    /// Outcome and row of a reply.
    #[track_caller]
    fn done(reply: Reply) -> (How, ToolRow) {
        match reply {
            Reply::Tool(written) => (written.how(), written.row.expect("a row")),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn version_of(reply: Reply) -> (How, ToolVersion) {
        let (how, row) = done(reply);
        (how, row.version.expect("a version"))
    }

    #[track_caller]
    fn refused(reply: &Reply, refusal: Refusal) {
        assert_eq!(*reply, Reply::Refused(refusal));
    }

    impl StateHarness {
        fn put_tool(&mut self, command: PutTool) -> Reply {
            self.one(START, Command::PutTool(command))
        }

        fn deregister(&mut self, command: DeregisterTool) -> Reply {
            self.one(START, Command::DeregisterTool(command))
        }

        fn takes(&self, tool_id: &str, protocol: &str) -> bool {
            self.rows.0.contains_key(&(TOOL_OF_PROTOCOL.to_owned(), protocol_key(protocol, tool_id)))
        }

        fn ids(&self, query: ToolQuery<'_>) -> (Vec<String>, Option<String>) {
            let page = page(&self.machine.row_cache().over(&self.rows), query).expect("page");
            let ids = page.rows.into_iter().map(|row| row.tool.expect("a tool").tool_id);
            (ids.collect(), page.next)
        }
    }

    #[test]
    fn equal_registration_changes_nothing_for_any_caller() {
        let mut harness = StateHarness::default();
        assert_eq!(version_of(harness.put_tool(new("t", "one"))), (How::Registered, version(1, 1)));
        let rows = harness.rows.without_deduplication();
        let other = PutTool { caller: "bob".to_owned(), ..new("t", "one") };
        let (how, row) = done(harness.put_tool(other));
        assert_eq!((how, row.registered_by.as_str()), (How::Unchanged, "alice"));
        let other = PutTool { caller: "bob".to_owned(), ..put("t", "one") };
        assert_eq!(version_of(harness.put_tool(other)), (How::Unchanged, version(1, 1)));
        assert_eq!(harness.rows.without_deduplication(), rows);
        refused(&harness.put_tool(new("t", "two")), Refusal::ToolExists);
        assert_eq!(harness.rows.without_deduplication(), rows);
    }

    #[test]
    fn tool_is_changed_by_its_owner_or_an_operator_only() {
        let mut harness = StateHarness::default();
        harness.put_tool(new("t", "one"));
        let rows = harness.rows.without_deduplication();
        for caller in ["bob", "", "alic", "alice2"] {
            let stranger = PutTool { caller: caller.to_owned(), ..put("t", "two") };
            refused(&harness.put_tool(stranger.clone()), Refusal::NotTheOwner);
            // Nor does a stranger learn its version.
            let stale = PutTool { expected: vec![version(9, 9)], ..stranger.clone() };
            refused(&harness.put_tool(stale), Refusal::NotTheOwner);
            refused(&harness.put_tool(PutTool { must_be_new: true, ..stranger }), Refusal::NotTheOwner);
            let stranger = DeregisterTool { caller: caller.to_owned(), ..deregistration("t") };
            refused(&harness.deregister(stranger), Refusal::NotTheOwner);
        }
        assert_eq!(harness.rows.without_deduplication(), rows);
        assert_eq!(version_of(harness.put_tool(put("t", "two"))), (How::Replaced, version(1, 2)));
        let operator = PutTool { caller: "bob".to_owned(), is_operator: true, ..put("t", "three") };
        let (how, row) = done(harness.one(LATER, Command::PutTool(operator)));
        assert_eq!((how, row.version), (How::Replaced, Some(version(1, 3))));
        // The owner remains the caller that registered it.
        assert_eq!((row.registered_by.as_str(), row.registered_at_millis), ("alice", START.millis()));
        assert_eq!(row.updated_at_millis, LATER.millis());
        let operator = DeregisterTool { caller: "bob".to_owned(), is_operator: true, ..deregistration("t") };
        assert_eq!(harness.deregister(operator), Reply::Done { changed: true });
    }

    #[test]
    fn tool_without_an_owner_cannot_be_changed() {
        let mut harness = StateHarness::default();
        harness.put_tool(PutTool { caller: String::new(), ..new("t", "one") });
        refused(
            &harness.put_tool(PutTool { caller: String::new(), ..put("t", "two") }),
            Refusal::NotTheOwner,
        );
    }

    #[test]
    fn failed_precondition_changes_nothing() {
        let mut harness = StateHarness::default();
        let must_exist = PutTool { must_exist: true, ..put("t", "one") };
        refused(&harness.put_tool(must_exist.clone()), Refusal::PreconditionFailed);
        let expects =
            |expected: &[ToolVersion], name: &str| PutTool { expected: expected.to_vec(), ..put("t", name) };
        refused(&harness.put_tool(expects(&[version(1, 1)], "one")), Refusal::PreconditionFailed);
        let must_be_new = PutTool { must_be_new: true, ..put("t", "one") };
        assert_eq!(version_of(harness.put_tool(must_be_new.clone())), (How::Registered, version(1, 1)));
        // Also if the content is equal.
        refused(&harness.put_tool(must_be_new), Refusal::PreconditionFailed);
        refused(&harness.put_tool(expects(&[version(1, 2)], "one")), Refusal::PreconditionFailed);
        assert_eq!(version_of(harness.put_tool(must_exist)), (How::Unchanged, version(1, 1)));
        let either = expects(&[version(9, 9), version(1, 1)], "two");
        assert_eq!(version_of(harness.put_tool(either.clone())), (How::Replaced, version(1, 2)));
        // It may be repeated: its acknowledgement may have been lost.
        assert_eq!(version_of(harness.put_tool(either)), (How::Unchanged, version(1, 2)));
        assert_eq!(version_of(harness.put_tool(put("t", "three"))), (How::Replaced, version(1, 3)));
        assert_eq!(version_of(harness.put_tool(put("t", "two"))), (How::Replaced, version(1, 4)));
        refused(
            &harness.put_tool(expects(&[version(1, 1), version(1, 2)], "two")),
            Refusal::PreconditionFailed,
        );
        let stale = DeregisterTool { expected: vec![version(1, 1)], ..deregistration("t") };
        refused(&harness.deregister(stale), Refusal::PreconditionFailed);
        let fresh = DeregisterTool { expected: vec![version(1, 4)], ..deregistration("t") };
        assert_eq!(harness.deregister(fresh), Reply::Done { changed: true });
    }

    #[test]
    fn one_of_two_writes_with_the_same_precondition_succeeds() {
        let mut harness = StateHarness::default();
        harness.put_tool(new("t", "one"));
        let write =
            |name: &str| Command::PutTool(PutTool { expected: vec![version(1, 1)], ..put("t", name) });
        let mut replies = harness.apply(START, vec![write("two"), write("three")]);
        refused(&replies.remove(1), Refusal::PreconditionFailed);
        assert_eq!(version_of(replies.remove(0)), (How::Replaced, version(1, 2)));
    }

    #[test]
    fn new_registration_of_an_id_has_another_version() {
        let mut harness = StateHarness::default();
        harness.put_tool(new("t", "one"));
        harness.put_tool(put("t", "two"));
        harness.deregister(deregistration("t"));
        assert_eq!(version_of(harness.put_tool(new("t", "one"))), (How::Registered, version(2, 1)));
        harness.put_tool(put("t", "two"));
        let stale = PutTool { expected: vec![version(1, 2)], ..put("t", "three") };
        refused(&harness.put_tool(stale), Refusal::PreconditionFailed);
    }

    #[test]
    fn deregistered_tool_is_in_no_list() {
        let mut harness = StateHarness::default();
        let both = PutTool { tool: Some(tool("t", "one", &["mcp", "http"])), ..new("t", "one") };
        harness.put_tool(both);
        let through =
            |protocol: &str| DeregisterTool { protocol: protocol.to_owned(), ..deregistration("t") };
        refused(&harness.deregister(through("a2a/2025-draft-01")), Refusal::UnknownTool);
        let only_http = PutTool { tool: Some(tool("t", "one", &["http"])), ..put("t", "one") };
        harness.put_tool(only_http);
        refused(&harness.deregister(through("mcp")), Refusal::UnknownTool);
        let of = |protocol| ToolQuery { protocol: Some(protocol), limit: 9, ..ToolQuery::default() };
        assert_eq!(harness.ids(of("mcp")).0, Vec::<String>::new());
        assert_eq!(harness.ids(of("http")).0, ["t"]);
        assert_eq!(harness.deregister(through("http")), Reply::Done { changed: true });
        refused(&harness.deregister(deregistration("t")), Refusal::UnknownTool);
        let left = harness.rows.0.keys().filter(|(table, _)| table == TOOL || table == TOOL_OF_PROTOCOL);
        assert_eq!(left.count(), 0);
        assert_eq!(harness.machine.index().tools, 0);
    }

    fn of_protocol(tool_id: &str, protocol: &str) -> PutTool {
        PutTool { tool: Some(tool(tool_id, "n", &[protocol])), ..new(tool_id, "n") }
    }

    #[test]
    fn list_of_a_protocol_ignores_stale_index_rows() {
        let mut harness = StateHarness::default();
        // So many that the index is used.
        for id in ["a", "b", "c", "t"] {
            harness.put_tool(of_protocol(id, "http"));
        }
        // As for a scan that began before the tool was replaced or deregistered.
        for id in ["s", "t"] {
            harness.rows.0.insert((TOOL_OF_PROTOCOL.to_owned(), protocol_key("mcp", id)), Vec::new());
        }
        harness.put_tool(new("u", "one"));
        let mcp = ToolQuery { protocol: Some("mcp"), limit: 1, after: None };
        assert_eq!(harness.ids(mcp), (vec!["u".to_owned()], None));
    }

    #[test]
    fn pages_of_a_protocol_have_each_of_its_tools_once() {
        let mut harness = StateHarness::default();
        for at in 0..120u32 {
            let protocol = if (at < 20 && at % 2 == 0) || at % 31 == 0 { "mcp" } else { "http" };
            harness.put_tool(of_protocol(&format!("t{at:03}"), protocol));
        }
        for protocol in ["mcp", "http", "a2a"] {
            let every = ToolQuery { limit: 1000, protocol: Some(protocol), after: None };
            let expected: Vec<String> = harness.ids(ToolQuery { protocol: None, ..every }).0;
            let expected: Vec<String> =
                expected.into_iter().filter(|id| harness.takes(id, protocol)).collect();
            for limit in [1, 2, 3, 7, 200] {
                let (mut ids, mut after) = (Vec::new(), None::<String>);
                loop {
                    let (page, next) = harness.ids(ToolQuery { limit, after: after.as_deref(), ..every });
                    assert!(page.len() == limit || next.is_none(), "{page:?}");
                    ids.extend(page);
                    after = next;
                    if after.is_none() {
                        break;
                    }
                }
                assert_eq!(ids, expected, "{protocol}, {limit} at a time");
            }
        }
    }

    #[test]
    fn page_of_a_rare_protocol_scans_few_rows() {
        struct Counted<'v>(&'v dyn View, std::cell::Cell<usize>);
        impl View for Counted<'_> {
            fn get(&self, table: &str, key: &[u8]) -> Result<Option<Vec<u8>>, Corrupt> {
                self.1.set(self.1.get() + 1);
                self.0.get(table, key)
            }
            fn scan(
                &self,
                table: &str,
                from: &[u8],
                visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
            ) -> Result<(), Corrupt> {
                self.0.scan(table, from, &mut |key, row| {
                    self.1.set(self.1.get() + 1);
                    visit(key, row)
                })
            }
        }
        let mut harness = StateHarness::default();
        for at in 0..500 {
            harness.put_tool(of_protocol(&format!("t{at:03}"), "http"));
        }
        harness.put_tool(of_protocol("z", "mcp"));
        let view = Counted(&harness.rows, std::cell::Cell::new(0));
        let query = ToolQuery { limit: 10, protocol: Some("mcp"), after: None };
        assert_eq!(page(&view, query).expect("page").rows.len(), 1);
        assert!(view.1.get() < 30, "{} rows", view.1.get());
    }

    #[test]
    fn pages_have_every_tool_once_in_id_order() {
        let mut harness = StateHarness::default();
        // One id is a prefix of another, and one protocol's name of another's.
        for (id, protocol) in [("b", "mcp"), ("a", "mc"), ("ab", "mcp"), ("a!", "mcp"), ("~", "mcp")] {
            harness.put_tool(of_protocol(id, protocol));
        }
        let mut query = ToolQuery { limit: 2, ..ToolQuery::default() };
        let (first, next) = harness.ids(query);
        assert_eq!((first, next.as_deref()), (vec!["a".to_owned(), "a!".to_owned()], Some("a!")));
        query.after = next.as_deref();
        let (second, next) = harness.ids(query);
        assert_eq!((second, next.as_deref()), (vec!["ab".to_owned(), "b".to_owned()], Some("b")));
        query.after = next.as_deref();
        assert_eq!(harness.ids(query), (vec!["~".to_owned()], None));
        // A page that ends with the list has no next one.
        let all = ToolQuery { limit: 5, ..ToolQuery::default() };
        assert_eq!(harness.ids(all).1, None);
        let mcp = ToolQuery { protocol: Some("mcp"), limit: 3, after: Some("a") };
        assert_eq!(
            harness.ids(mcp),
            (vec!["a!".to_owned(), "ab".to_owned(), "b".to_owned()], Some("b".to_owned()))
        );
    }

    #[test]
    fn page_is_bounded_in_bytes() {
        let mut harness = StateHarness::default();
        let description = "d".repeat(limits::TOOL_PAGE_BYTES_FULL / 4);
        for id in ["a", "b", "c", "d", "e"] {
            let tool = Tool { description: Some(description.clone()), ..tool(id, "n", &["mcp"]) };
            harness.put_tool(PutTool { tool: Some(tool), ..new(id, "n") });
        }
        for protocol in [None, Some("mcp")] {
            let query = ToolQuery { limit: 1000, protocol, after: None };
            let (first, next) = harness.ids(query);
            assert_eq!((first.len(), next.as_deref()), (4, Some("d")));
            assert_eq!(harness.ids(ToolQuery { after: Some("d"), ..query }), (vec!["e".to_owned()], None));
        }
    }

    #[test]
    fn tools_per_caller_are_limited() {
        let mut harness = StateHarness::default();
        harness.put_tool(new("first", "one"));
        harness.put_tool(put("first", "two"));
        let row = (OWNED.to_owned(), Quota::Tools.key("alice"));
        assert_eq!(harness.rows.0.get(&row), Some(&1u64.to_be_bytes().to_vec()));
        harness.rows.0.insert(row.clone(), (limits::TOOLS_PER_CALLER_MAX - 1).to_be_bytes().to_vec());
        assert_eq!(version_of(harness.put_tool(new("last", "one"))).0, How::Registered);
        refused(&harness.put_tool(new("more", "one")), Refusal::TooManyTools);
        let bob = |tool_id: &str| PutTool { caller: "bob".to_owned(), ..new(tool_id, "one") };
        assert_eq!(version_of(harness.put_tool(bob("bobs"))).0, How::Registered);
        // A tool removed by an operator no longer counts for its owner.
        harness.deregister(DeregisterTool {
            caller: "bob".to_owned(),
            is_operator: true,
            ..deregistration("first")
        });
        assert_eq!(version_of(harness.put_tool(new("more", "one"))).0, How::Registered);
        harness.deregister(DeregisterTool { caller: "bob".to_owned(), ..deregistration("bobs") });
        assert_eq!(harness.rows.0.keys().filter(|(table, _)| table == OWNED).count(), 1);
    }

    #[test]
    fn tools_over_the_limit_are_refused() {
        let mut harness = StateHarness::default();
        harness.put_tool(new("last", "one"));
        let count = |tools: u64| ((META.to_owned(), TOOLS.to_vec()), tools.to_be_bytes().to_vec());
        harness.rows.0.extend([count(limits::TOOLS_MAX - 1)]);
        assert_eq!(version_of(harness.put_tool(new("t", "one"))).0, How::Registered);
        refused(&harness.put_tool(new("u", "one")), Refusal::TooManyTools);
        // A registered tool can still be changed.
        assert_eq!(version_of(harness.put_tool(put("t", "two"))).0, How::Replaced);
        harness.deregister(deregistration("last"));
        assert_eq!(version_of(harness.put_tool(new("u", "one"))).0, How::Registered);
    }

    #[test]
    fn rows_of_tools_do_not_depend_on_batching() {
        let commands = || {
            vec![
                Command::PutTool(new("a", "one")),
                Command::PutTool(put("a", "two")),
                Command::PutTool(new("b", "one")),
                Command::DeregisterTool(deregistration("a")),
                Command::PutTool(new("a", "three")),
                Command::PutTool(new("a", "four")),
                Command::DeregisterTool(deregistration("c")),
            ]
        };
        let (mut together, mut apart) = (StateHarness::default(), StateHarness::default());
        let replies = together.apply(START, commands());
        let one_by_one: Vec<Reply> =
            commands().into_iter().map(|command| apart.one(START, command)).collect();
        assert_eq!(replies, one_by_one);
        assert_eq!(together.rows.without_events(), apart.rows.without_events());
        let restarted = Replicated::default();
        restarted.rebuild(&together.rows).expect("rebuilds");
        assert_eq!(restarted.index().tools, 2);
        assert_eq!(format!("{:?}", restarted.index()), format!("{:?}", apart.machine.index()));
    }

    #[test]
    fn stored_outcome_excludes_the_tool() {
        let mut harness = StateHarness::default();
        let once = |key: u8, name: &str| {
            let [key, request, owner] = [key, 7, 9].map(|byte| bytes::Bytes::from(vec![byte; 16]));
            let description = Some("d".repeat(limits::TOOL_DESCRIPTION_BYTES_MAX));
            let tool = Tool { description, ..tool("t", name, &["mcp"]) };
            let command = Command::PutTool(PutTool { tool: Some(tool), ..put("t", name) });
            command::encode_once(command, Some(command::Idempotency { key, request, owner }))
        };
        let remembered = |harness: &StateHarness| -> Vec<usize> {
            let is_key = |key: &[u8]| key.len() == 24;
            let rows = harness.rows.0.iter().filter(|((table, key), _)| table == IDEMPOTENCY && is_key(key));
            rows.map(|(_, row)| row.len()).collect()
        };
        let first = harness.replied(START, vec![once(1, "one")]).remove(0);
        assert_eq!(version_of(harness.encoded(START, vec![once(2, "one")]).remove(0)).0, How::Unchanged);
        let sizes = remembered(&harness);
        assert!(sizes.len() == 1 && sizes[0] < 100, "{sizes:?}");
        harness.deregister(deregistration("t"));
        // The tool of a repeated outcome comes from the retry itself, regardless of the registry.
        assert_eq!(harness.replied(START, vec![once(1, "one")]), [Replied::repeated(first.outcome)]);
    }

    #[test]
    fn retry_with_its_idempotency_key_returns_the_first_outcome() {
        let mut harness = StateHarness::default();
        let digest = |byte: u8| bytes::Bytes::from(vec![byte; 16]);
        let once = |name: &str, request: u8| {
            let (key, request, owner) = (digest(1), digest(request), digest(9));
            let idempotency = command::Idempotency { key, request, owner };
            command::encode_once(Command::PutTool(put("t", name)), Some(idempotency))
        };
        let first = harness.replied(START, vec![once("one", 7)]).remove(0);
        harness.put_tool(put("t", "two"));
        let rows = harness.rows.without_deduplication();
        let retried = harness.replied(START, vec![once("one", 7)]).remove(0);
        // It is marked as repeated, so that metrics and audit count it once.
        assert_eq!((first.is_repeated, retried.is_repeated), (false, true));
        assert_eq!(first.outcome, retried.outcome);
        assert_eq!(version_of(first.outcome), (How::Registered, version(1, 1)));
        assert_eq!(harness.rows.without_deduplication(), rows);
        assert_eq!(
            harness.encoded(START, vec![once("one", 8)]),
            [Reply::Refused(Refusal::IdempotencyKeyReused)]
        );
    }
}
