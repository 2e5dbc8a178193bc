//! Audit blocks. Their entries are not read here.
//!
//! Each block continues the hash chain of its node and has entries of one bucket of callers. The blocks of all nodes are
//! numbered in log order. Over the total size, the oldest block of the largest bucket loses its content and retains its
//! header, so that one caller evicts no other's entries and every chain stays verifiable.

use std::cmp::Reverse;

use bytes::Bytes;
use prost::Message as _;

use crate::clock::Timestamp;
use crate::cluster::{Corrupt, View};
use crate::id::Digest128;
use crate::limits;
use crate::state::command::{
    AppendAuditBlocks, AuditBlockRow, AuditBucketsRow, AuditContent, AuditHeader, AuditNodeRow, Command,
    NewAuditBlock, Refusal, Reply,
};
use crate::state::machine::idempotency::digest;
use crate::state::tables::{
    AUDIT_BLOCK, AUDIT_CONTENT, AUDIT_HEAD, AUDIT_NODE, AUDIT_TRAIL, DROPPED_BY_AGE, DROPPED_BY_BYTES,
    EntryTime, META, Tables, decode,
};
use crate::state::{Error, State};

/// Row of the meta table: number of the newest block.
const NEWEST: &[u8] = b"newest_audit_block";
/// Row of the meta table: number of the oldest block with a header.
const OLDEST: &[u8] = b"oldest_audit_block";
/// Row of the meta table: [`AuditBucketsRow`].
const BUCKETS: &[u8] = b"audit_buckets";
/// Estimated overhead of the row of a content, and of the two rows of each tool in it: keys, checksums, database index.
const ROW_BYTES: u64 = 128;

/// SHA-256 of an entry or a block.
pub type AuditHash = [u8; 32];

/// A stored block.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditBlock {
    /// Number among the blocks of all nodes, from 1.
    pub number: u64,
    /// Node that wrote it.
    pub node_id: u64,
    /// The fields that its hash covers, beside the node id.
    pub header: AuditHeader,
    /// The entries, compressed; `None` if they were dropped.
    pub payload: Option<Bytes>,
    /// Number of the first block of the same segment.
    pub segment_first: u64,
    /// Log time at which it was appended.
    pub appended_at: Timestamp,
}

impl State {
    /// Appends the blocks of a segment of this node; false if they are stored already. `Refusal::AuditBlockMissing` if
    /// their predecessor is not.
    pub async fn append_audit_blocks(&self, segment: u64, blocks: Vec<NewAuditBlock>) -> Result<bool, Error> {
        let command = AppendAuditBlocks { node_id: self.cluster.node_id(), segment, blocks };
        self.as_node().propose(Command::AppendAuditBlocks(command)).await
    }

    /// The last block of this node.
    pub fn last_audit_block(&self) -> Result<AuditNodeRow, Corrupt> {
        let tables = Tables::new(self.cluster.view());
        let row = tables.message::<AuditNodeRow>(AUDIT_NODE, &self.cluster.node_id().to_be_bytes())?;
        Ok(row.unwrap_or_default())
    }

    /// Hash of the last entry about a tool in the blocks of this node and a bucket.
    pub fn audit_head(&self, tool: &Digest128, bucket: u8) -> Result<Option<AuditHash>, Corrupt> {
        let view = self.cluster.machine().row_cache().over(self.cluster.view());
        let row = view.get(AUDIT_HEAD, &head_key(tool, bucket, self.cluster.node_id()))?;
        row.map(|row| hash(&row)).transpose()
    }

    /// The newest block with entries about a tool and a number below `before`.
    pub fn audit_block_about(
        &self,
        tool: &Digest128,
        before: Option<u64>,
    ) -> Result<Option<AuditBlock>, Corrupt> {
        block_about(self.cluster.view(), tool, before)
    }

    /// The oldest retained block with a number above `after`.
    pub fn audit_block_after(&self, after: u64) -> Result<Option<AuditBlock>, Corrupt> {
        block_after(self.cluster.view(), after)
    }
}

/// Appends the blocks of a segment, and drops older ones over the limits.
pub fn append(
    tables: &mut Tables<'_>,
    time: EntryTime,
    command: AppendAuditBlocks,
) -> Result<Reply, Corrupt> {
    let AppendAuditBlocks { node_id, segment, blocks } = command;
    let node = node_id.to_be_bytes();
    let mut last: AuditNodeRow = tables.message(AUDIT_NODE, &node)?.unwrap_or_default();
    // A node that has received no reply for a segment sends it again.
    if segment <= last.segment {
        return Ok(Reply::Done { changed: false });
    }
    let mut follows = segment == last.segment.saturating_add(1);
    last.segment = segment;
    let mut parts = Vec::with_capacity(blocks.len());
    for NewAuditBlock { header, content } in blocks {
        let (header, content) = (header.unwrap_or_default(), content.unwrap_or_default());
        follows &= header.sequence == last.sequence.saturating_add(1) && header.prev_hash == last.hash;
        (last.sequence, last.hash) = (header.sequence, Bytes::copy_from_slice(&hash(&header.hash)?));
        parts.push((bucket_of(&header)?, header, content));
    }
    if !follows {
        return Ok(Reply::Refused(Refusal::AuditBlockMissing));
    }
    let mut retained = Retained::read(tables)?;
    let (first, mut appended) = (tables.number(NEWEST)?.saturating_add(1), 0_u64);
    for (bucket, header, content) in parts {
        let number = tables.add(NEWEST, 1)?;
        for head in &content.heads {
            let tool = digest(&head.tool)?;
            tables.put(AUDIT_TRAIL, &in_trail(&tool, number), Vec::new());
            tables.put(AUDIT_HEAD, &head_key(&tool, bucket, node_id), hash(&head.hash)?.to_vec());
        }
        let bytes = bytes_of(&content);
        let size = retained.size(bucket);
        size.bytes = size.bytes.saturating_add(bytes);
        appended = appended.saturating_add(bytes);
        let row = AuditBlockRow {
            node_id,
            header: Some(header),
            appended_at_millis: time.now.millis(),
            appended_elapsed_millis: time.elapsed.millis(),
            segment_first: first,
        };
        tables.put(AUDIT_BLOCK, &number.to_be_bytes(), row.encode_to_vec());
        tables.put(AUDIT_CONTENT, &in_bucket(bucket, number), content.encode_to_vec());
    }
    tables.put(AUDIT_NODE, &node, last.encode_to_vec());
    let most = limits::AUDIT_BYTES_DROPPED_FULL.max(appended);
    retained.drop_blocks(tables, time.elapsed, first, most)?;
    retained.drop_contents(tables, first, most)?;
    retained.write(tables);
    Ok(Reply::Done { changed: true })
}

/// Size of a content: many small tools count as much as one large payload.
fn bytes_of(content: &AuditContent) -> u64 {
    let rows = content.heads.len().saturating_add(1);
    (content.encoded_len() as u64).saturating_add((rows as u64).saturating_mul(ROW_BYTES))
}

/// Contents of one bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    bytes: u64,
    /// No earlier block has content of the bucket.
    oldest: u64,
}

/// Contents of every bucket.
struct Retained([Size; limits::AUDIT_BUCKETS]);

impl Retained {
    fn read(tables: &Tables<'_>) -> Result<Self, Corrupt> {
        let row: AuditBucketsRow = tables.message(META, BUCKETS)?.unwrap_or_default();
        let mut sizes = [Size::default(); limits::AUDIT_BUCKETS];
        for (size, (bytes, oldest)) in sizes.iter_mut().zip(row.bytes.into_iter().zip(row.oldest)) {
            *size = Size { bytes, oldest };
        }
        Ok(Self(sizes))
    }

    fn write(&self, tables: &mut Tables<'_>) {
        let (bytes, oldest) = self.0.iter().map(|size| (size.bytes, size.oldest)).unzip();
        tables.put(META, BUCKETS, AuditBucketsRow { bytes, oldest }.encode_to_vec());
    }

    /// `bucket` is one that [`bucket_of`] returned.
    fn size(&mut self, bucket: u8) -> &mut Size {
        &mut self.0[usize::from(bucket) % limits::AUDIT_BUCKETS]
    }

    fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, size| sum.saturating_add(size.bytes))
    }

    /// The largest bucket; of several, the first.
    fn largest(&self) -> u8 {
        let sizes = self.0.iter().zip(0_u8..);
        sizes.max_by_key(|(size, bucket)| (size.bytes, Reverse(*bucket))).map_or(0, |(_, bucket)| bucket)
    }

    /// Drops whole blocks before `first` that are too old or too many, until `most` bytes are dropped, so that an entry is
    /// applied in bounded time.
    fn drop_blocks(
        &mut self,
        tables: &mut Tables<'_>,
        elapsed: Timestamp,
        first: u64,
        most: u64,
    ) -> Result<(), Corrupt> {
        let newest = tables.number(NEWEST)?;
        let kept_from = elapsed.minus(limits::AUDIT_RETENTION).millis();
        let begin = tables.number(OLDEST)?.max(1);
        let (mut oldest, mut dropped) = (begin, 0_u64);
        while oldest < first && dropped < most {
            let row = block_row(tables, oldest)?;
            let are_too_many = newest - oldest >= limits::AUDIT_HEADERS_MAX;
            if row.appended_elapsed_millis >= kept_from && !are_too_many {
                break;
            }
            let freed = self.drop_content(tables, oldest, &row)?;
            tables.delete(AUDIT_BLOCK, &oldest.to_be_bytes());
            dropped = dropped.saturating_add(freed).saturating_add(ROW_BYTES);
            oldest = oldest.saturating_add(1);
        }
        if oldest > begin {
            tables.set_number(OLDEST, oldest);
            tables.add(DROPPED_BY_AGE, oldest - begin)?;
        }
        Ok(())
    }

    /// Drops contents of blocks before `first` while all are too large, the oldest of the largest bucket next, until `most`
    /// bytes are dropped: at least as many as were appended, because otherwise the total would keep growing.
    fn drop_contents(&mut self, tables: &mut Tables<'_>, first: u64, most: u64) -> Result<(), Corrupt> {
        let (mut dropped, mut blocks) = (0_u64, 0);
        while self.total() > limits::AUDIT_BYTES_MAX && dropped < most {
            let bucket = self.largest();
            let from = self.size(bucket).oldest.to_be_bytes();
            let key = tables.keys_under(AUDIT_CONTENT, &[bucket], &from, 1)?.pop();
            let number = key.as_deref().and_then(|key| key.strip_prefix(&[bucket]));
            let number = number.and_then(|number| number.try_into().ok()).map(u64::from_be_bytes);
            let Some(number) = number.filter(|number| *number < first) else { break };
            let row = block_row(tables, number)?;
            dropped = dropped.saturating_add(self.drop_content(tables, number, &row)?);
            blocks += 1;
        }
        if blocks > 0 {
            tables.add(DROPPED_BY_BYTES, blocks)?;
        }
        Ok(())
    }

    /// Drops the content of a block, if it is there; returns its size.
    fn drop_content(
        &mut self,
        tables: &mut Tables<'_>,
        number: u64,
        row: &AuditBlockRow,
    ) -> Result<u64, Corrupt> {
        let bucket = row.header.as_ref().map_or(Ok(0), bucket_of)?;
        let key = in_bucket(bucket, number);
        let Some(content) = tables.message::<AuditContent>(AUDIT_CONTENT, &key)? else { return Ok(0) };
        for head in &content.heads {
            let tool = digest(&head.tool)?;
            tables.delete(AUDIT_TRAIL, &in_trail(&tool, number));
            let head_key = head_key(&tool, bucket, row.node_id);
            // The hash is equal if no later block of this node and bucket is about the tool; then the head is dropped
            // too.
            if tables.row(AUDIT_HEAD, &head_key)?.is_some_and(|row| row == head.hash) {
                tables.delete(AUDIT_HEAD, &head_key);
            }
        }
        tables.delete(AUDIT_CONTENT, &key);
        let freed = bytes_of(&content);
        let size = self.size(bucket);
        *size = Size { bytes: size.bytes.saturating_sub(freed), oldest: number.saturating_add(1) };
        Ok(freed)
    }
}

fn block_row(tables: &Tables<'_>, number: u64) -> Result<AuditBlockRow, Corrupt> {
    let row = tables.message::<AuditBlockRow>(AUDIT_BLOCK, &number.to_be_bytes())?;
    row.ok_or_else(|| Corrupt::row(format_args!("audit block {number} is missing")))
}

fn bucket_of(header: &AuditHeader) -> Result<u8, Corrupt> {
    let bucket =
        u8::try_from(header.bucket).ok().filter(|bucket| usize::from(*bucket) < limits::AUDIT_BUCKETS);
    bucket.ok_or_else(|| Corrupt::row("the bucket of an audit block is unknown"))
}

/// Key of [`AUDIT_TRAIL`]: newest first, since numbers count down from the largest.
fn in_trail(tool: &Digest128, number: u64) -> Vec<u8> {
    [&tool.as_bytes()[..], &(u64::MAX - number).to_be_bytes()].concat()
}

/// Key of [`AUDIT_CONTENT`].
fn in_bucket(bucket: u8, number: u64) -> Vec<u8> {
    [&[bucket][..], &number.to_be_bytes()].concat()
}

/// Key of [`AUDIT_HEAD`].
fn head_key(tool: &Digest128, bucket: u8, node: u64) -> Vec<u8> {
    [&tool.as_bytes()[..], &[bucket], &node.to_be_bytes()].concat()
}

fn hash(bytes: &[u8]) -> Result<AuditHash, Corrupt> {
    bytes.try_into().map_err(|_| Corrupt::row("an audit hash is not 32 bytes"))
}

fn block_about(
    view: &dyn View,
    tool: &Digest128,
    before: Option<u64>,
) -> Result<Option<AuditBlock>, Corrupt> {
    // Dropped rows are not scanned.
    let behind_oldest = in_trail(tool, oldest_of(view)?.saturating_sub(1));
    let mut before = before.unwrap_or(u64::MAX);
    while let Some(newest) = before.checked_sub(1) {
        let found = view.first_between(AUDIT_TRAIL, &in_trail(tool, newest), &behind_oldest)?;
        let number = found.and_then(|(key, _)| {
            let number = key.strip_prefix(tool.as_bytes())?.try_into().ok()?;
            Some(u64::MAX - u64::from_be_bytes(number))
        });
        let Some(number) = number else { return Ok(None) };
        // The block or its content may have been dropped since.
        let row = view.get(AUDIT_BLOCK, &number.to_be_bytes())?;
        let found = row.map(|row| block(view, number, &row)).transpose()?;
        if let Some(found) = found.filter(|found| found.payload.is_some()) {
            return Ok(Some(found));
        }
        before = number;
    }
    Ok(None)
}

fn block_after(view: &dyn View, after: u64) -> Result<Option<AuditBlock>, Corrupt> {
    let from = after.saturating_add(1).max(oldest_of(view)?);
    let newest = Tables::new(view).number(NEWEST)?;
    if from > newest {
        return Ok(None);
    }
    let behind_newest = newest.saturating_add(1).to_be_bytes();
    let Some((key, row)) = view.first_between(AUDIT_BLOCK, &from.to_be_bytes(), &behind_newest)? else {
        return Ok(None);
    };
    let key = key.try_into().map_err(|_| Corrupt::row("the number of an audit block is not 8 bytes"))?;
    block(view, u64::from_be_bytes(key), &row).map(Some)
}

/// Number of the oldest retained block.
fn oldest_of(view: &dyn View) -> Result<u64, Corrupt> {
    Ok(Tables::new(view).number(OLDEST)?.max(1))
}

fn block(view: &dyn View, number: u64, row: &[u8]) -> Result<AuditBlock, Corrupt> {
    let row = decode::<AuditBlockRow>(AUDIT_BLOCK, row)?;
    let header = row.header.unwrap_or_default();
    let content = view.get(AUDIT_CONTENT, &in_bucket(bucket_of(&header)?, number))?;
    let content = content.map(|row| decode::<AuditContent>(AUDIT_CONTENT, &row)).transpose()?;
    Ok(AuditBlock {
        number,
        node_id: row.node_id,
        header,
        payload: content.map(|content| content.payload),
        segment_first: row.segment_first,
        appended_at: Timestamp::from_millis(row.appended_at_millis),
    })
}

#[cfg(test)]
mod tests;
