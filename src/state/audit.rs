//! Blocks of audit entries as replicated state. Their contents are never read here.
//!
//! A block is one node's, and each follows the one before it of the same node. Blocks of all nodes have
//! numbers in the order of the log; the oldest are dropped when they are old or too many.

use bytes::Bytes;
use prost::Message as _;

use super::command::{AppendAuditBlock, AuditBlockRow, AuditHead, AuditNodeRow, Command, Refusal, Reply};
use super::idempotency::digest;
use super::tables::{AUDIT_BLOCK, AUDIT_HEAD, AUDIT_NODE, AUDIT_TRAIL, META, TOOL, Tables, decode};
use super::{Error, State};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, View};
use crate::id::Digest128;
use crate::limits;

/// Row of the meta table: the number of the last block.
const NEWEST: &[u8] = b"newest_audit_block";
/// Row of the meta table: the number of the oldest block that is kept.
const OLDEST: &[u8] = b"oldest_audit_block";
/// Row of the meta table: the bytes of all payloads that are kept.
const BYTES: &[u8] = b"audit_bytes";

/// SHA-256 of an entry or a block.
pub type AuditHash = [u8; 32];

/// A block as it is given to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAuditBlock {
    /// Counts the blocks of this node from 1.
    pub sequence: u64,
    /// The hash of the one before it; `None` for the first.
    pub prev_hash: Option<AuditHash>,
    /// Its own.
    pub hash: AuditHash,
    /// How many entries it holds.
    pub entries: u32,
    /// The last entry about each tool.
    pub heads: Vec<(Digest128, AuditHash)>,
    /// The entries, compressed.
    pub payload: Bytes,
}

/// A block as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditBlock {
    /// Its place among the blocks of all nodes, from 1.
    pub number: u64,
    /// Whose it is.
    pub node_id: u64,
    /// Counts the blocks of that node from 1.
    pub sequence: u64,
    /// The hash of the one before it of that node; empty for the first.
    pub prev_hash: Bytes,
    /// Its own.
    pub hash: Bytes,
    /// How many entries it holds.
    pub entries: u32,
    /// The entries, compressed.
    pub payload: Bytes,
    /// When it was appended, in log time.
    pub appended_at: Timestamp,
}

/// The last block of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastAuditBlock {
    /// Its sequence; 0 if there is none.
    pub sequence: u64,
    /// Its hash; `None` if there is none.
    pub hash: Option<AuditHash>,
}

impl State {
    /// Appends a block of this node; whether it was not there yet.
    ///
    /// # Errors
    /// [`Error::AuditBlockMissing`], or as [`Error::Write`] says.
    pub async fn append_audit_block(&self, block: NewAuditBlock) -> Result<bool, Error> {
        let head = |(tool, hash): (Digest128, AuditHash)| AuditHead {
            tool: Bytes::copy_from_slice(tool.as_bytes()),
            hash: Bytes::copy_from_slice(&hash),
        };
        let command = AppendAuditBlock {
            node_id: self.core.node_id(),
            sequence: block.sequence,
            prev_hash: block.prev_hash.map_or_else(Bytes::new, |hash| Bytes::copy_from_slice(&hash)),
            hash: Bytes::copy_from_slice(&block.hash),
            entries: block.entries,
            heads: block.heads.into_iter().map(head).collect(),
            payload: block.payload,
        };
        self.propose(Command::AppendAuditBlock(command)).await
    }

    /// The last block of this node.
    ///
    /// # Errors
    /// [`Corrupt`] if the row is not what was written.
    pub fn last_audit_block(&self) -> Result<LastAuditBlock, Corrupt> {
        let row = self.core.view().get(AUDIT_NODE, &self.core.node_id().to_be_bytes())?;
        let Some(row) = row else { return Ok(LastAuditBlock::default()) };
        let row = decode::<AuditNodeRow>(AUDIT_NODE, &row)?;
        Ok(LastAuditBlock { sequence: row.sequence, hash: Some(hash(&row.hash)?) })
    }

    /// The last entry about a tool in the blocks of this node.
    ///
    /// # Errors
    /// [`Corrupt`] if the row is not what was written.
    pub fn audit_head(&self, tool: &Digest128) -> Result<Option<AuditHash>, Corrupt> {
        let row = self.core.view().get(AUDIT_HEAD, &of_node(tool.as_bytes(), self.core.node_id()))?;
        row.map(|row| hash(&row)).transpose()
    }

    /// The newest block with entries about a tool; below the number `before`, if there is one.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    pub fn audit_block_about(
        &self,
        tool: &Digest128,
        before: Option<u64>,
    ) -> Result<Option<AuditBlock>, Corrupt> {
        block_about(self.core.view(), tool, before)
    }

    /// The oldest block that is kept and has a number above `after`.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    pub fn audit_block_after(&self, after: u64) -> Result<Option<AuditBlock>, Corrupt> {
        block_after(self.core.view(), after)
    }

    /// Whether a tool is registered.
    ///
    /// # Errors
    /// [`Corrupt`] if the row is not what was written.
    pub fn is_tool_registered(&self, tool_id: &str) -> Result<bool, Corrupt> {
        Ok(self.core.view().get(TOOL, tool_id.as_bytes())?.is_some())
    }
}

/// Appends a block, and drops some of the oldest if they are beyond their limits.
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn append(tables: &mut Tables<'_>, now: Timestamp, command: AppendAuditBlock) -> Result<Reply, Corrupt> {
    let node = command.node_id.to_be_bytes();
    let last = match tables.row(AUDIT_NODE, &node)? {
        Some(row) => decode::<AuditNodeRow>(AUDIT_NODE, &row)?,
        None => AuditNodeRow::default(),
    };
    // Whoever was not told what became of a block sends it again.
    if command.sequence <= last.sequence {
        return Ok(Reply::Done { changed: false });
    }
    if command.sequence != last.sequence.saturating_add(1) || command.prev_hash != last.hash {
        return Ok(Reply::Refused(Refusal::AuditBlockMissing));
    }
    hash(&command.hash)?;
    let number = tables.number(NEWEST)?.saturating_add(1);
    for head in &command.heads {
        let tool = digest(&head.tool)?;
        tables.put(AUDIT_TRAIL, &in_trail(&tool, number), Vec::new());
        tables.put(AUDIT_HEAD, &of_node(tool.as_bytes(), command.node_id), hash(&head.hash)?.to_vec());
    }
    let last = AuditNodeRow { sequence: command.sequence, hash: command.hash.clone() };
    tables.put(AUDIT_NODE, &node, last.encode_to_vec());
    let bytes = tables.number(BYTES)?.saturating_add(command.payload.len() as u64);
    put_number(tables, BYTES, bytes);
    put_number(tables, NEWEST, number);
    let row = AuditBlockRow { block: Some(command), appended_at_millis: now.millis() };
    tables.put(AUDIT_BLOCK, &number.to_be_bytes(), row.encode_to_vec());
    drop_oldest(tables, now, number)?;
    Ok(Reply::Done { changed: true })
}

/// Never drops the block `newest`, and only so many at once: an entry of the log is applied in bounded
/// time, and the next block drops more.
fn drop_oldest(tables: &mut Tables<'_>, now: Timestamp, newest: u64) -> Result<(), Corrupt> {
    let mut oldest = tables.number(OLDEST)?.max(1);
    let mut bytes = tables.number(BYTES)?;
    let kept_from = now.minus(limits::AUDIT_RETENTION).millis();
    for _ in 0..limits::AUDIT_BLOCKS_DROPPED_MAX {
        if oldest >= newest {
            break;
        }
        let key = oldest.to_be_bytes();
        let row = tables.row(AUDIT_BLOCK, &key)?;
        let row = row.ok_or_else(|| Corrupt::row(format_args!("audit block {oldest} is not there")))?;
        let row = decode::<AuditBlockRow>(AUDIT_BLOCK, &row)?;
        if row.appended_at_millis >= kept_from && bytes <= limits::AUDIT_BYTES_MAX {
            break;
        }
        let block = row.block.unwrap_or_default();
        for head in &block.heads {
            let tool = digest(&head.tool)?;
            tables.delete(AUDIT_TRAIL, &in_trail(&tool, oldest));
            let head_key = of_node(tool.as_bytes(), block.node_id);
            // Nothing newer of this node is about the tool: names of tools that are no more do not stay.
            if tables.row(AUDIT_HEAD, &head_key)?.is_some_and(|row| row == head.hash) {
                tables.delete(AUDIT_HEAD, &head_key);
            }
        }
        tables.delete(AUDIT_BLOCK, &key);
        bytes = bytes.saturating_sub(block.payload.len() as u64);
        oldest = oldest.saturating_add(1);
    }
    put_number(tables, OLDEST, oldest);
    put_number(tables, BYTES, bytes);
    Ok(())
}

fn put_number(tables: &mut Tables<'_>, key: &[u8], number: u64) {
    tables.put(META, key, number.to_be_bytes().to_vec());
}

/// The newest first: numbers count down from the largest.
fn in_trail(tool: &Digest128, number: u64) -> Vec<u8> {
    of_node(tool.as_bytes(), u64::MAX - number)
}

fn of_node(tool: &[u8; 16], node: u64) -> Vec<u8> {
    [&tool[..], &node.to_be_bytes()].concat()
}

fn hash(bytes: &[u8]) -> Result<AuditHash, Corrupt> {
    bytes.try_into().map_err(|_| Corrupt::row("an audit hash is not 32 bytes"))
}

fn block_about(
    view: &dyn View,
    tool: &Digest128,
    before: Option<u64>,
) -> Result<Option<AuditBlock>, Corrupt> {
    let Some(newest) = before.unwrap_or(u64::MAX).checked_sub(1) else { return Ok(None) };
    let mut number = None;
    view.scan(AUDIT_TRAIL, &in_trail(tool, newest), &mut |key, _| {
        number = key
            .strip_prefix(tool.as_bytes())
            .and_then(|rest| Some(u64::from_be_bytes(rest.try_into().ok()?)));
        false
    })?;
    let Some(number) = number.map(|inverted| u64::MAX - inverted) else { return Ok(None) };
    // It may have been dropped since; so were all before it.
    let row = view.get(AUDIT_BLOCK, &number.to_be_bytes())?;
    row.map(|row| block(number, &row)).transpose()
}

fn block_after(view: &dyn View, after: u64) -> Result<Option<AuditBlock>, Corrupt> {
    let mut found = None;
    view.scan(AUDIT_BLOCK, &after.saturating_add(1).to_be_bytes(), &mut |key, row| {
        found = key.try_into().ok().map(|key| (u64::from_be_bytes(key), row.to_vec()));
        false
    })?;
    found.map(|(number, row)| block(number, &row)).transpose()
}

fn block(number: u64, row: &[u8]) -> Result<AuditBlock, Corrupt> {
    let row = decode::<AuditBlockRow>(AUDIT_BLOCK, row)?;
    let block = row.block.ok_or_else(|| Corrupt::row(format_args!("audit block {number} is empty")))?;
    Ok(AuditBlock {
        number,
        node_id: block.node_id,
        sequence: block.sequence,
        prev_hash: block.prev_hash,
        hash: block.hash,
        entries: block.entries,
        payload: block.payload,
        appended_at: Timestamp::from_millis(row.appended_at_millis),
    })
}
