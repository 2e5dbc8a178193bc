//! From journal segments to audit blocks in the log, one for each bucket of callers. A segment is removed once its blocks
//! are applied on this node; shipping it twice changes nothing.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::pin::Pin;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Sleep;

use super::entry::{Entry, content_hash, text_of};
use super::trail::header_document;
use super::writer::Job;
use super::{Backlog, ShipError};
use crate::clock::Timestamp;
use crate::id::Digest128;
use crate::journal::{Contents, Directory};
use crate::state::command::{AuditContent, AuditHead, AuditHeader, AuditNodeRow, NewAuditBlock};
use crate::state::{AuditHash, State};
use crate::telemetry::Metrics;
use crate::{json, limits};

/// Zstd level: the fastest that still compresses the common parts of audit entries.
const COMPRESSION_LEVEL: i32 = 1;
/// Bytes compressed between two yields to other tasks.
const BYTES_PER_TURN: usize = 64 * 1024;
/// A journal record is the bucket, the digest of the tool, the hash of the entry, and its text.
const TOOL_BYTES: usize = 16;
const HASH_BYTES: usize = 32;

/// Ships segments in order.
#[derive(Debug)]
pub struct Shipper {
    directory: Directory,
    queue: mpsc::Sender<Job>,
    backlog: Backlog,
    metrics: Metrics,
    /// The last removed segment.
    done: u64,
    /// Number of the last completed shipment.
    completed: u64,
    /// Notes of entries about the audit itself that are still to be written.
    notes: Vec<String>,
    /// The last segment that such an entry is about.
    reported: u64,
    /// Failed attempts to read the segment after `done`.
    unread: u32,
    /// Elapses when reads may ship again.
    next_shipment: Option<Pin<Box<Sleep>>>,
}

impl Shipper {
    /// Ships the segments after `done`.
    #[must_use]
    pub fn new(
        directory: Directory,
        queue: mpsc::Sender<Job>,
        backlog: Backlog,
        metrics: Metrics,
        done: u64,
    ) -> Self {
        Self {
            directory,
            queue,
            backlog,
            metrics,
            done,
            completed: 0,
            notes: Vec::new(),
            reported: 0,
            unread: 0,
            next_shipment: None,
        }
    }

    /// Queues an entry about the audit itself.
    pub fn note(&mut self, notes: String) {
        tracing::error!(notes, "audit entries lost");
        self.notes.push(notes);
    }

    /// Whether a shipment that began after this one has completed.
    #[must_use]
    pub fn has_completed_after(&self, shipment: u64) -> bool {
        self.completed > shipment
    }

    /// Ships all entries recorded before the call; `shipment` is the number of this shipment. Cancel-safe.
    ///
    /// # Errors
    /// [`ShipError`]; unshipped segments stay.
    pub async fn ship(&mut self, state: &State, shipment: u64) -> Result<(), ShipError> {
        let shipped = self.ship_all(state).await;
        self.next_shipment = Some(Box::pin(tokio::time::sleep(limits::AUDIT_SHIP_INTERVAL)));
        shipped?;
        self.completed = shipment;
        Ok(())
    }

    /// Waits until [`limits::AUDIT_SHIP_INTERVAL`] after the last shipment.
    pub async fn until_next_shipment(&mut self) {
        if let Some(pause) = &mut self.next_shipment {
            pause.await;
        }
    }

    async fn ship_all(&mut self, state: &State) -> Result<(), ShipError> {
        while let Some(notes) = self.notes.last() {
            let notes = notes.clone();
            self.request(|done| Job::Note(notes, done)).await?;
            self.notes.pop();
        }
        if self.backlog.is_empty() {
            return Ok(());
        }
        let sealed = self.request(Job::Seal).await?;
        while self.done < sealed {
            let shipped = self.ship_one(state, self.done.saturating_add(1)).await;
            self.metrics.audit_blocks.inc([if shipped.is_ok() { "shipped" } else { "failed" }]);
            shipped?;
        }
        Ok(())
    }

    async fn request<T>(&self, job: impl FnOnce(super::writer::Done<T>) -> Job) -> Result<T, ShipError> {
        let (done, answer) = oneshot::channel();
        self.queue.send(job(done)).await.map_err(|_| ShipError::Stopping)?;
        answer.await.map_err(|_| ShipError::Stopping)?.map_err(ShipError::Unsealed)
    }

    async fn ship_one(&mut self, state: &State, segment: u64) -> Result<(), ShipError> {
        let last = state.last_audit_block()?;
        // Otherwise the blocks were applied before, but the reply was lost.
        let is_in_log = last.segment >= segment || self.append(state, segment, last).await?;
        if is_in_log { self.directory.remove(segment) } else { self.directory.set_aside(segment) }?;
        self.backlog.remove(segment);
        (self.done, self.unread) = (segment, 0);
        // If this fails, heads are retained a little longer.
        drop(self.queue.send(Job::Shipped(segment)).await);
        Ok(())
    }

    /// Appends the blocks of a segment; returns whether the segment could be read. An unreadable one has no blocks.
    async fn append(&mut self, state: &State, segment: u64, last: AuditNodeRow) -> Result<bool, ShipError> {
        let contents = self.read(segment)?;
        let is_readable = contents.is_some();
        let contents = contents.unwrap_or_default();
        let lost = match contents.corrupt_bytes {
            _ if !is_readable => {
                format!(
                    "audit journal segment {segment} of this node cannot be read; it was set aside; its entries are missing"
                )
            }
            0 => String::new(),
            bytes => {
                format!(
                    "{bytes} bytes of the audit journal of this node, in segment {segment}, cannot be read; entries are missing"
                )
            }
        };
        // The note is in the journal before the segment is removed.
        if !lost.is_empty() && self.reported < segment {
            tracing::error!(notes = lost, "audit entries lost");
            self.request(|done| Job::Note(lost, done)).await?;
            self.reported = segment;
        }
        let blocks = blocks(contents.records, state.cluster().node_id(), last).await?;
        state.append_audit_blocks(segment, blocks).await?;
        Ok(is_readable)
    }

    /// Reads the next segment; `None` after [`limits::AUDIT_READ_ATTEMPTS_MAX`] failures, so that it does not hold up the
    /// others.
    fn read(&mut self, segment: u64) -> Result<Option<Contents>, ShipError> {
        match self.directory.read(segment) {
            Ok(contents) => Ok(Some(contents)),
            Err(_) if self.unread.saturating_add(1) >= limits::AUDIT_READ_ATTEMPTS_MAX => Ok(None),
            Err(error) => {
                self.unread = self.unread.saturating_add(1);
                Err(error.into())
            }
        }
    }
}

/// A record of the journal.
#[derive(Debug)]
pub struct Parts {
    /// Bucket of the caller.
    pub bucket: u8,
    pub tool: Digest128,
    pub hash: AuditHash,
    /// The entry.
    pub text: Bytes,
}

/// Parts of a record; `None` if it is malformed.
#[must_use]
pub fn parts(record: &Bytes) -> Option<Parts> {
    let (bucket, rest) = record.split_first()?;
    let (tool, rest) = rest.split_first_chunk::<TOOL_BYTES>()?;
    let (hash, text) = rest.split_first_chunk::<HASH_BYTES>()?;
    let is_known = usize::from(*bucket) < limits::AUDIT_BUCKETS;
    let tool = Digest128::from_bytes(*tool);
    is_known.then(|| Parts { bucket: *bucket, tool, hash: *hash, text: record.slice_ref(text) })
}

/// A block for each bucket with records in a segment, each after the one before.
async fn blocks(
    records: Vec<Bytes>,
    node_id: u64,
    last: AuditNodeRow,
) -> Result<Vec<NewAuditBlock>, ShipError> {
    let mut buckets: BTreeMap<u8, Vec<Parts>> = BTreeMap::new();
    // The journal holds entries only; reading the heads reported any other record.
    for record in records.iter().filter_map(parts) {
        buckets.entry(record.bucket).or_default().push(record);
    }
    let (mut sequence, mut prev_hash) = (last.sequence, last.hash);
    let mut blocks = Vec::with_capacity(buckets.len());
    for (bucket, records) in buckets {
        sequence = sequence.saturating_add(1);
        let before = AuditHeader { sequence, bucket: bucket.into(), prev_hash, ..AuditHeader::default() };
        let block = block(&records, node_id, before).await?;
        prev_hash = block.header.as_ref().map(|header| header.hash.clone()).unwrap_or_default();
        blocks.push(block);
    }
    Ok(blocks)
}

/// The block of the records of one bucket.
async fn block(records: &[Parts], node_id: u64, mut header: AuditHeader) -> Result<NewAuditBlock, ShipError> {
    let mut heads = BTreeMap::new();
    let mut hashes = Vec::new();
    let mut compressor = zstd::stream::write::Encoder::new(Vec::new(), COMPRESSION_LEVEL)?;
    let mut bytes = 0;
    for Parts { tool, hash, text, .. } in records {
        heads.insert(*tool, *hash);
        hashes.push(text_of(hash));
        compressor.write_all(text)?;
        compressor.write_all(b"\n")?;
        bytes += text.len();
        if bytes >= BYTES_PER_TURN {
            bytes = 0;
            tokio::task::yield_now().await;
        }
    }
    header.content_hash = copied(&content_hash(&hashes).map_err(io::Error::other)?);
    header.count = u32::try_from(hashes.len()).unwrap_or(u32::MAX);
    header.first_millis = records.first().map_or(Ok(0), time_of)?;
    header.last_millis = records.last().map_or(Ok(0), time_of)?;
    header.hash = copied(&header_document(node_id, &header).computed_hash().map_err(io::Error::other)?);
    let head = |(tool, hash): (Digest128, AuditHash)| AuditHead {
        tool: copied(tool.as_bytes()),
        hash: copied(&hash),
    };
    let content =
        AuditContent { heads: heads.into_iter().map(head).collect(), payload: compressor.finish()?.into() };
    Ok(NewAuditBlock { header: Some(header), content: Some(content) })
}

fn copied(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn time_of(record: &Parts) -> Result<i64, ShipError> {
    let entry: Entry = json::read(&record.text).map_err(io::Error::other)?;
    let time = Timestamp::from_rfc3339(&entry.timestamp);
    Ok(time.ok_or_else(|| io::Error::other("an entry has no time"))?.millis())
}
