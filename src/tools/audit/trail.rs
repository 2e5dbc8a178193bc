//! Reads of the audit: a tool's trail, newest first, and whole blocks, oldest first.

use std::fmt;
use std::io::{self, Read as _};
use std::str::FromStr;

use tokio::sync::SemaphorePermit;

use super::entry::{AuditBlockDocument, Entry, text_of};
use super::{Action, Audit, Decision, ShipError};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::{Digest128, DigestKind};
use crate::state::command::AuditHeader;
use crate::state::{self, AuditBlock, LinearizableRead};
use crate::{json, limits};

/// Reason for which a read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No such tool and no entry about one.
    #[error("there is no tool with this tool_id, and no audit entry about one")]
    UnknownTool,
    /// The newest entries are not in the log yet.
    #[error("the latest audit entries are not available now")]
    Unshipped(#[from] ShipError),
    /// The registry cannot be read.
    #[error(transparent)]
    Registry(#[from] state::Error),
    /// A row is corrupt.
    #[error(transparent)]
    Damaged(#[from] Corrupt),
    /// Limit of concurrent reads reached.
    #[error("limit of concurrent audit reads reached")]
    Busy,
    /// A block is corrupt.
    #[error("an audit block is corrupt")]
    Unreadable,
}

/// Page and filters of a trail.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Maximum entries of the page.
    pub limit: usize,
    /// Only this outcome.
    pub decision: Option<Decision>,
    /// Only this kind of action.
    pub action: Option<Action>,
    /// Only this actor.
    pub actor: Option<String>,
    /// Only entries at or after this time.
    pub since: Option<Timestamp>,
    /// Only entries older than this position.
    pub before: Option<TrailCursor>,
}

/// The next page begins with the newest entry below `segment_end`, the number after the last block of a segment, and in that
/// segment before `entry`. Written `segment_end` or `segment_end/time/block/line`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrailCursor {
    segment_end: u64,
    entry: Option<EntryKey<String>>,
}

/// Order of the entries of a segment. It does not change if the content of a block is dropped between two pages. The blocks are by
/// caller; entries of one caller stay in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EntryKey<T> {
    time: T,
    block: u64,
    line: usize,
}

impl EntryKey<String> {
    fn borrowed(&self) -> EntryKey<&str> {
        EntryKey { time: &self.time, block: self.block, line: self.line }
    }
}

impl fmt::Display for TrailCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.entry {
            Some(EntryKey { time, block, line }) => write!(f, "{}/{time}/{block}/{line}", self.segment_end),
            None => write!(f, "{}", self.segment_end),
        }
    }
}

impl FromStr for TrailCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        fn number<N: FromStr>(text: &str) -> Result<N, ()> {
            text.parse().map_err(|_| ())
        }
        match *text.split('/').collect::<Vec<_>>() {
            [segment_end] => Ok(Self { segment_end: number(segment_end)?, entry: None }),
            [segment_end, time, block, line] => {
                let entry = EntryKey { time: time.to_owned(), block: number(block)?, line: number(line)? };
                Ok(Self { segment_end: number(segment_end)?, entry: Some(entry) })
            }
            _ => Err(()),
        }
    }
}

/// A page of a trail, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub entries: Vec<Entry>,
    /// Cursor of the next page, if there may be one.
    pub next: Option<TrailCursor>,
}

/// A decompressed block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedBlock {
    /// Number among the blocks of all nodes.
    pub number: u64,
    /// Log time of the append.
    pub appended_at: Timestamp,
    pub block: AuditBlockDocument,
}

impl Audit {
    /// One page of a tool's trail, including everything that this node has recorded.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn trail(
        &self,
        _current: &LinearizableRead,
        tool_id: &str,
        query: &Query,
    ) -> Result<Page, ReadError> {
        self.ship_for_reader().await?;
        let _permit = self.read_permit().await?;
        let tool = Digest128::of(DigestKind::Tool, b"", tool_id.as_bytes());
        let mut reading = Reading::new(tool_id, query);
        let mut before = query.before.as_ref().map(|cursor| cursor.segment_end);
        let mut blocks = 0;
        while blocks < limits::AUDIT_BLOCKS_PER_PAGE_MAX && reading.read < limits::AUDIT_PAGE_READ_BYTES_FULL
        {
            let segment = self.segment_about(&tool, before)?;
            let Some(newest) = segment.first() else {
                // Only a first page can be empty because the tool is unknown.
                let is_known = before.is_some() || self.state.tool(tool_id)?.is_some();
                return if is_known { Ok(reading.page) } else { Err(ReadError::UnknownTool) };
            };
            // Node clocks are at most this far ahead of log time: this block and older ones have no entry since then.
            let latest = newest.appended_at.plus(limits::CLOCK_OFFSET_MAX);
            if query.since.is_some_and(|since| latest < since) {
                return Ok(reading.page);
            }
            let first = newest.segment_first;
            if reading.is_full_after(&segment)? {
                return Ok(reading.page);
            }
            before = Some(first);
            blocks += segment.len();
            // Reading a page is long; other tasks run in between.
            tokio::task::yield_now().await;
        }
        reading.page.next = before.map(|segment_end| TrailCursor { segment_end, entry: None });
        Ok(reading.page)
    }

    /// The blocks about a tool in its newest segment below `before`, newest first.
    fn segment_about(&self, tool: &Digest128, mut before: Option<u64>) -> Result<Vec<AuditBlock>, ReadError> {
        let mut blocks: Vec<AuditBlock> = Vec::new();
        while let Some(block) = self.state.audit_block_about(tool, before)? {
            if blocks.first().is_some_and(|newest| block.number < newest.segment_first) {
                break;
            }
            before = Some(block.number);
            blocks.push(block);
        }
        Ok(blocks)
    }

    /// One page of administrative acts.
    ///
    /// # Errors
    /// As [`Self::trail`], but for [`ReadError::UnknownTool`].
    pub async fn acts(&self, current: &LinearizableRead, query: &Query) -> Result<Page, ReadError> {
        match self.trail(current, "", query).await {
            Err(ReadError::UnknownTool) => Ok(Page::default()),
            page => page,
        }
    }

    /// At most `limit` blocks with numbers above `after`, oldest first, fewer if they are large; and whether there are
    /// more. They include everything that this node has recorded.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn blocks(
        &self,
        _current: &LinearizableRead,
        after: u64,
        limit: usize,
    ) -> Result<(Vec<DecodedBlock>, bool), ReadError> {
        self.ship_for_reader().await?;
        let _permit = self.read_permit().await?;
        let (mut blocks, mut bytes) = (Vec::new(), 0);
        let mut last = after;
        while let Some(block) = self.state.audit_block_after(last)? {
            if blocks.len() >= limit.min(limits::AUDIT_BLOCKS_PER_PAGE_MAX)
                || bytes >= limits::AUDIT_PAGE_BYTES_FULL
            {
                return Ok((blocks, true));
            }
            last = block.number;
            let text = unpack(&block)?;
            bytes += text.len();
            blocks.push(decoded(&block, &text)?);
            tokio::task::yield_now().await;
        }
        Ok((blocks, false))
    }

    /// Bounds concurrent reads: a page decompresses many blocks, and verifications must not wait for that.
    async fn read_permit(&self) -> Result<SemaphorePermit<'_>, ReadError> {
        let permit = tokio::time::timeout(limits::AUDIT_READ_WAIT, self.readers.acquire()).await;
        permit.ok().and_then(Result::ok).ok_or(ReadError::Busy)
    }
}

/// A page while it is built.
struct Reading<'q> {
    tool_id: &'q str,
    query: &'q Query,
    /// Substring of every entry about the tool; a cheap filter before parsing.
    mark: String,
    since: Option<String>,
    page: Page,
    bytes: usize,
    /// Decompressed bytes.
    read: usize,
    last: Option<TrailCursor>,
}

impl<'q> Reading<'q> {
    fn new(tool_id: &'q str, query: &'q Query) -> Self {
        let mark = format!("\"tool_id\":{}", serde_json::Value::from(tool_id));
        // Time stamps have a fixed number of digits: their order is that of their texts.
        let since = query.since.map(Timestamp::to_rfc3339);
        Self { tool_id, query, mark, since, page: Page::default(), bytes: 0, read: 0, last: None }
    }

    /// Adds matching entries of the blocks of a segment; returns whether the page is full and there are more.
    fn is_full_after(&mut self, segment: &[AuditBlock]) -> Result<bool, ReadError> {
        let texts: Vec<String> = segment.iter().rev().map(unpack).collect::<Result<_, _>>()?;
        self.read = texts.iter().fold(self.read, |sum, text| sum.saturating_add(text.len()));
        let blocks = segment.iter().rev().zip(&texts);
        let lines = blocks.flat_map(|(block, text)| {
            let about_tool = text.lines().filter(|line| line.contains(&self.mark));
            let in_order = in_order(about_tool).enumerate();
            in_order.map(|(line, (time, text))| (EntryKey { time, block: block.number, line }, text))
        });
        let segment_end = segment.first().map_or(0, |newest| newest.number).saturating_add(1);
        let before = self.query.before.as_ref().filter(|cursor| cursor.segment_end == segment_end);
        let before = before.and_then(|cursor| cursor.entry.as_ref()).map(EntryKey::borrowed);
        let lines = lines.filter(|(key, _)| before.as_ref().is_none_or(|before| key < before));
        let mut lines: Vec<(EntryKey<&str>, &str)> = lines.collect();
        lines.sort_unstable_by(|(one, _), (other, _)| other.cmp(one));
        for (EntryKey { time, block, line: at }, line) in lines {
            let entry: Entry = json::read(line.as_bytes()).map_err(|_| ReadError::Unreadable)?;
            if !self.wants(&entry) {
                continue;
            }
            if self.page.entries.len() >= self.query.limit || self.bytes >= limits::AUDIT_PAGE_BYTES_FULL {
                self.page.next = self.last.take();
                return Ok(true);
            }
            self.bytes += line.len();
            let entry_key = EntryKey { time: time.to_owned(), block, line: at };
            self.last = Some(TrailCursor { segment_end, entry: Some(entry_key) });
            self.page.entries.push(entry);
        }
        Ok(false)
    }

    fn wants(&self, entry: &Entry) -> bool {
        entry.tool_id == self.tool_id
            && self.query.decision.is_none_or(|decision| entry.decision == decision.into_str())
            && self.query.action.is_none_or(|action| entry.action.as_deref() == Some(action.into_str()))
            && (self.query.actor.is_none() || self.query.actor == entry.actor)
            && self.since.as_ref().is_none_or(|since| entry.timestamp >= *since)
    }
}

/// Lines of a block with times that do not go back, although the clock of the node was set back between two of them: so a
/// chain, which is within a block, stays in order.
fn in_order<'t>(lines: impl Iterator<Item = &'t str>) -> impl Iterator<Item = (&'t str, &'t str)> {
    let mut latest = "";
    lines.map(move |line| {
        latest = latest.max(time_of(line));
        (latest, line)
    })
}

/// The text of the time of an entry in its canonical form: its order is that of the times. Escaped quotes in other fields
/// differ from those of the name.
fn time_of(line: &str) -> &str {
    let time = line.split_once(",\"timestamp\":\"").map_or("", |(_, rest)| rest);
    time.split_once('"').map_or(time, |(time, _)| time)
}

/// Decompressed lines of a block; empty without its content.
fn unpack(block: &AuditBlock) -> Result<String, ReadError> {
    let unreadable = |error: io::Error| {
        tracing::error!(%error, number = block.number, "failed to decompress audit block");
        ReadError::Unreadable
    };
    let Some(payload) = &block.payload else { return Ok(String::new()) };
    let most = limits::AUDIT_BLOCK_BYTES_MAX as u64;
    let mut text = String::new();
    let unpacked = zstd::stream::read::Decoder::new(&payload[..]).map_err(unreadable)?;
    unpacked.take(most.saturating_add(1)).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > most {
        return Err(unreadable(io::Error::other("larger than the maximum of a block")));
    }
    Ok(text)
}

/// A block and its decompressed lines.
pub(super) fn decoded(block: &AuditBlock, text: &str) -> Result<DecodedBlock, ReadError> {
    let entries =
        block.payload.as_ref().map(|_| text.lines().map(|line| json::read(line.as_bytes())).collect());
    Ok(DecodedBlock {
        number: block.number,
        appended_at: block.appended_at,
        block: AuditBlockDocument {
            entries: entries.transpose().map_err(|_| ReadError::Unreadable)?,
            hash: text_of(&block.header.hash),
            ..header_document(block.node_id, &block.header)
        },
    })
}

/// A block without its entries and its hash.
#[must_use]
pub fn header_document(node_id: u64, header: &AuditHeader) -> AuditBlockDocument {
    AuditBlockDocument {
        // `apply` refuses a larger one.
        bucket: u8::try_from(header.bucket).unwrap_or(u8::MAX),
        content: text_of(&header.content_hash),
        count: header.count.into(),
        entries: None,
        first: Timestamp::from_millis(header.first_millis).to_rfc3339(),
        hash: String::new(),
        last: Timestamp::from_millis(header.last_millis).to_rfc3339(),
        node_id,
        prev_hash: text_of(&header.prev_hash),
        sequence: header.sequence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_790_000_000);

    /// A block with an entry for each of the seconds after [`START`].
    fn block(number: u64, seconds: &[i64]) -> AuditBlock {
        let entries = seconds.iter().map(|second| Entry {
            tool_id: "a".to_owned(),
            notes: second.to_string(),
            timestamp: Timestamp::from_secs(START.secs() + second).to_rfc3339(),
            ..Entry::default()
        });
        let lines = entries.map(|entry| serde_json::to_string(&entry).expect("JSON") + "\n");
        let text: String = lines.collect();
        AuditBlock {
            number,
            node_id: 1,
            header: AuditHeader::default(),
            payload: Some(zstd::encode_all(text.as_bytes(), 0).expect("compressed").into()),
            segment_first: 1,
            appended_at: START,
        }
    }

    #[test]
    fn next_page_goes_on_when_content_is_dropped_between() {
        let mut segment = vec![block(2, &[1, 3, 5]), block(1, &[0, 2, 4])];
        let first = Query { limit: 2, ..Query::default() };
        let mut reading = Reading::new("a", &first);
        assert!(reading.is_full_after(&segment).expect("readable"));
        let notes = |page: &Page| page.entries.iter().map(|entry| entry.notes.clone()).collect::<Vec<_>>();
        assert_eq!(notes(&reading.page), ["5", "4"]);
        segment[1].payload = None;
        let before = reading.page.next.map(|cursor| cursor.to_string().parse().expect("cursor"));
        let next = Query { before, ..first };
        let mut reading = Reading::new("a", &next);
        assert!(!reading.is_full_after(&segment).expect("readable"));
        assert_eq!(notes(&reading.page), ["3", "1"]);
    }
}
