//! Reads the audit: a tool's trail, newest first, and whole blocks, oldest first.

use std::fmt;
use std::io::{self, Read as _};
use std::str::FromStr;

use tokio::sync::SemaphorePermit;

use super::entry::{Block, Entry, text_of};
use super::{Action, Audit, Decision, ShipError};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::{Digest128, DigestKind};
use crate::state::{self, AuditBlock, Current};
use crate::{json, limits};

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is neither such a tool, nor anything about one.
    #[error("there is no tool with this tool_id, and no audit of one")]
    UnknownTool,
    /// What was recorded last is not in the log yet.
    #[error("the latest audit cannot be shown now: {0}")]
    Unshipped(#[from] ShipError),
    /// The registry cannot be read.
    #[error(transparent)]
    Registry(#[from] state::Error),
    /// A row is not what was written.
    #[error("a row of the state is damaged")]
    Damaged(#[from] Corrupt),
    /// As many read already as may at once.
    #[error("too many are reading the audit")]
    Busy,
    /// A block is not what was written.
    #[error("a block of audit entries cannot be read")]
    Unreadable,
}

/// Which entries of a trail are asked for.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Most entries.
    pub limit: usize,
    /// Only those that came to this.
    pub decision: Option<Decision>,
    /// Only those about this kind of action.
    pub action: Option<Action>,
    /// Only those of this actor.
    pub actor: Option<String>,
    /// Only those from then on.
    pub since: Option<Timestamp>,
    /// Only those older than the one there.
    pub before: Option<Place>,
}

/// Where an entry stands: in which block, and as the how many-th in it, from 0. Written `block.entry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    block: u64,
    entry: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.block, self.entry)
    }
}

impl FromStr for Place {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (block, entry) = text.split_once('.').ok_or(())?;
        Ok(Self { block: block.parse().map_err(|_| ())?, entry: entry.parse().map_err(|_| ())? })
    }
}

/// A page of a trail, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Where to go on, if there may be more.
    pub next: Option<Place>,
}

/// A block, opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenBlock {
    /// Its place among the blocks of all nodes.
    pub number: u64,
    /// When it was appended, in log time.
    pub appended_at: Timestamp,
    /// What it holds.
    pub block: Block,
}

impl Audit {
    /// A page of a tool's trail. What this node has recorded before is in it.
    ///
    /// # Errors
    /// As [`ReadError`] says.
    pub async fn trail(&self, _current: &Current, tool_id: &str, query: &Query) -> Result<Page, ReadError> {
        let _place = self.place().await?;
        self.ship_for_reader().await?;
        let tool = Digest128::of(DigestKind::Tool, b"", tool_id.as_bytes());
        let mut reading = Reading::new(tool_id, query);
        let mut before = query.before.map(|place| place.block.saturating_add(1));
        for _ in 0..limits::AUDIT_BLOCKS_PER_PAGE_MAX {
            let Some(block) = self.state.audit_block_about(&tool, before)? else {
                // Its first page is the only one that can be of nothing at all.
                let is_known = before.is_some() || self.state.tool(tool_id)?.is_some();
                return if is_known { Ok(reading.page) } else { Err(ReadError::UnknownTool) };
            };
            // Nothing in it, or in those before it, is as young: a node judges nothing by a clock that is further ahead.
            let latest = block.appended_at.plus(limits::CLOCK_OFFSET_MAX);
            if query.since.is_some_and(|since| latest < since) {
                return Ok(reading.page);
            }
            if reading.is_full_after(&block)? {
                return Ok(reading.page);
            }
            before = Some(block.number);
            // A page takes some time; others have their turn.
            tokio::task::yield_now().await;
        }
        reading.page.next = before.map(|block| Place { block, entry: 0 });
        Ok(reading.page)
    }

    /// A page of the administrative acts.
    ///
    /// # Errors
    /// As [`Self::trail`], but for [`ReadError::UnknownTool`].
    pub async fn acts(&self, current: &Current, query: &Query) -> Result<Page, ReadError> {
        match self.trail(current, "", query).await {
            Err(ReadError::UnknownTool) => Ok(Page::default()),
            page => page,
        }
    }

    /// Blocks with numbers above `after`, oldest first, up to `limit`; fewer if they are large. Whether
    /// there are more. What this node has recorded before is in one of them.
    ///
    /// # Errors
    /// As [`ReadError`] says.
    pub async fn blocks(
        &self,
        _current: &Current,
        after: u64,
        limit: usize,
    ) -> Result<(Vec<OpenBlock>, bool), ReadError> {
        let _place = self.place().await?;
        self.ship_for_reader().await?;
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
            blocks.push(open(&block, &text)?);
            tokio::task::yield_now().await;
        }
        Ok((blocks, false))
    }

    /// A page opens many blocks, so that few are filled at once: who verifies must not wait for who reads.
    async fn place(&self) -> Result<SemaphorePermit<'_>, ReadError> {
        let place = tokio::time::timeout(limits::AUDIT_READ_WAIT, self.readers.acquire()).await;
        place.ok().and_then(Result::ok).ok_or(ReadError::Busy)
    }
}

/// A page while it is filled.
struct Reading<'q> {
    tool_id: &'q str,
    query: &'q Query,
    /// What every entry about the tool has in its line, and maybe some others.
    mark: String,
    since: Option<String>,
    page: Page,
    bytes: usize,
    last: Option<Place>,
}

impl<'q> Reading<'q> {
    fn new(tool_id: &'q str, query: &'q Query) -> Self {
        let mark = format!("\"tool_id\":{}", serde_json::Value::from(tool_id));
        // Times are written with the same number of digits: their order is that of their texts.
        let since = query.since.map(Timestamp::to_rfc3339);
        Self { tool_id, query, mark, since, page: Page::default(), bytes: 0, last: None }
    }

    /// Takes what it wants from a block; whether the page is full, and there is more.
    fn is_full_after(&mut self, block: &AuditBlock) -> Result<bool, ReadError> {
        let text = unpack(block)?;
        let lines: Vec<&str> = text.lines().collect();
        let end = match self.query.before {
            Some(place) if place.block == block.number => place.entry.min(lines.len()),
            _ => lines.len(),
        };
        for (at, line) in lines.iter().enumerate().take(end).rev() {
            if !line.contains(&self.mark) {
                continue;
            }
            let entry: Entry = json::read(line.as_bytes()).map_err(|_| ReadError::Unreadable)?;
            if !self.wants(&entry) {
                continue;
            }
            if self.page.entries.len() >= self.query.limit || self.bytes >= limits::AUDIT_PAGE_BYTES_FULL {
                self.page.next = self.last;
                return Ok(true);
            }
            self.bytes += line.len();
            self.last = Some(Place { block: block.number, entry: at });
            self.page.entries.push(entry);
        }
        Ok(false)
    }

    fn wants(&self, entry: &Entry) -> bool {
        entry.tool_id == self.tool_id
            && self.query.decision.is_none_or(|decision| entry.decision == decision.as_str())
            && self.query.action.is_none_or(|action| entry.action.as_deref() == Some(action.as_str()))
            && (self.query.actor.is_none() || self.query.actor == entry.actor)
            && self.since.as_ref().is_none_or(|since| entry.timestamp >= *since)
    }
}

/// The lines of a block.
fn unpack(block: &AuditBlock) -> Result<String, ReadError> {
    let unreadable = |error: io::Error| {
        tracing::error!(%error, number = block.number, "open a block of audit entries");
        ReadError::Unreadable
    };
    let most = limits::AUDIT_BLOCK_BYTES_MAX as u64;
    let mut text = String::new();
    let unpacked = zstd::stream::read::Decoder::new(&block.payload[..]).map_err(unreadable)?;
    unpacked.take(most.saturating_add(1)).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > most {
        return Err(unreadable(io::Error::other("it is larger than a block can be")));
    }
    Ok(text)
}

fn open(block: &AuditBlock, text: &str) -> Result<OpenBlock, ReadError> {
    let entries = text.lines().map(|line| json::read(line.as_bytes()));
    Ok(OpenBlock {
        number: block.number,
        appended_at: block.appended_at,
        block: Block {
            entries: entries.collect::<Result<_, _>>().map_err(|_| ReadError::Unreadable)?,
            hash: text_of(&block.hash),
            node_id: block.node_id,
            prev_hash: text_of(&block.prev_hash),
            sequence: block.sequence,
        },
    })
}
