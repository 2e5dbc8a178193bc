//! Reads of our own ledger: sums, pages in its order, and the buckets of an epoch.

use tokio::sync::watch;

use super::{EntryPosition, LedgerState, OWN, Sum, epoch_key, epoch_of, is_watermark, order_key, sum};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, LinearizableRead, View};
use crate::id::{Digest128, Incarnation};
use crate::limits;
use crate::state::State;
use crate::state::command::{BlockRow, Fact as FactRow, LedgerEpochRow, LedgerRow, RevocationRow};
use crate::state::machine::idempotency::digest;
use crate::state::tables::{BLOCK, LEDGER_SUM, REVOCATION, REVOCATION_ORDER, Tables, decode, try_scan};

/// Number of buckets of an epoch, by the first byte of an id.
const BUCKETS: usize = 256;

/// The sums of the ledger at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerSums {
    /// Log index of the entry that changed the ledger last.
    pub changed_at: u64,
    /// Entries up to this log index may be forgotten.
    pub forgotten_to: u64,
    /// The first epoch of which no entry is forgotten.
    pub complete_from: u32,
    /// Blocks in force.
    pub blocks: Sum,
    /// Watermarks by epoch, in order.
    pub epochs: Vec<(u32, Sum)>,
}

impl LedgerSums {
    /// Epochs from `floor` on.
    fn covered(&self, floor: u32) -> &[(u32, Sum)] {
        let first = self.epochs.partition_point(|(epoch, _)| *epoch < floor);
        &self.epochs[first..]
    }

    /// The root over epochs from `floor` on and the blocks in force.
    #[must_use]
    pub fn root(&self, incarnation: &Incarnation, floor: u32) -> [u8; 32] {
        sum::root(incarnation, floor, self.covered(floor), &self.blocks)
    }

    /// Number of entries under that root.
    #[must_use]
    pub fn count(&self, floor: u32) -> u64 {
        self.covered(floor).iter().map(|(_, sum)| sum.count).sum::<u64>().saturating_add(self.blocks.count)
    }

    #[must_use]
    pub fn of_epoch(&self, epoch: u32) -> Sum {
        let found = self.epochs.binary_search_by_key(&epoch, |(epoch, _)| *epoch);
        found.map_or_else(|_| Sum::default(), |at| self.epochs[at].1)
    }
}

/// A position in the order of the ledger: after an entry, or after every entry of a log index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerCursor(Vec<u8>);

impl LedgerCursor {
    /// After every entry up to this log index.
    #[must_use]
    pub fn after_index(index: u64) -> Self {
        Self(order_key(index, &[u8::MAX; 33]))
    }

    /// After the entry with this log index and key; `None` if no entry has such a key.
    #[must_use]
    pub fn after_entry(index: u64, fact: &[u8]) -> Option<Self> {
        matches!(fact.len(), 16 | 32).then(|| Self(order_key(index, fact)))
    }

    /// Log index, and key of the entry.
    #[must_use]
    pub fn parts(&self) -> (u64, &[u8]) {
        let (index, fact) = self.0.split_first_chunk().unwrap_or((&[0; 8], &[]));
        (u64::from_be_bytes(*index), fact)
    }

    /// The smallest key after it.
    fn next_key(&self) -> Vec<u8> {
        [&self.0[..], &[0]].concat()
    }
}

/// Selection of entries.
#[derive(Clone, Debug, Default)]
pub struct LedgerQuery {
    /// Entries after it.
    pub after: Option<LedgerCursor>,
    /// Watermarks of this epoch only.
    pub epoch: Option<u32>,
    /// Entries whose id has this first byte only.
    pub bucket: Option<u8>,
    /// Maximum number of entries.
    pub limit: usize,
}

impl LedgerQuery {
    fn selects(&self, position: EntryPosition, fact: &[u8]) -> bool {
        self.bucket.is_none_or(|bucket| fact.first() == Some(&bucket))
            && self.epoch.is_none_or(|epoch| epoch == position.epoch && is_watermark(fact))
    }
}

/// An entry with its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Log index.
    pub index: u64,
    pub epoch: u32,
    pub state: LedgerState,
    /// Digest of the fact.
    pub id: Digest128,
    /// Digest of author and family of a block; `None` for a watermark.
    pub by: Option<Digest128>,
    /// The fact; `None` if only the digest is known.
    pub fact: Option<FactRow>,
    /// Reason; may be empty.
    pub reason: String,
    /// Of a watermark: the stamp of its log entry. Of a block or lift: the time of the event, as its author states it.
    pub at: Timestamp,
}

/// Entries in order, and the cursor if there may be more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerPage {
    pub entries: Vec<LedgerEntry>,
    /// Cursor of the next page.
    pub next: Option<LedgerCursor>,
}

/// The sums of our own ledger.
pub(super) fn sums(view: &dyn View) -> Result<LedgerSums, Corrupt> {
    sums_of(&Tables::new(view), &OWN)
}

/// The sums of the ledger of this origin, read in one scan, and so at one instant.
pub fn sums_of(tables: &Tables<'_>, origin: &[u8]) -> Result<LedgerSums, Corrupt> {
    let mut sums = LedgerSums::default();
    for (key, row) in tables.rows_under(LEDGER_SUM, origin)? {
        let epoch = &key[origin.len()..];
        if epoch.is_empty() {
            let row = decode::<LedgerRow>(LEDGER_SUM, &row)?;
            sums.blocks = Sum::read(row.blocks.as_ref())?;
            (sums.changed_at, sums.forgotten_to) = (row.changed_at, row.forgotten_to);
            sums.complete_from = row.complete_from;
        } else {
            let epoch = epoch.try_into().map_err(|_| Corrupt::row("the key of a ledger sum has no epoch"))?;
            let row = decode::<LedgerEpochRow>(LEDGER_SUM, &row)?;
            sums.epochs.push((u32::from_be_bytes(epoch), Sum::read(row.watermarks.as_ref())?));
        }
    }
    Ok(sums)
}

/// A smallest key of the watermarks of an epoch; `None` if there are none.
fn start_of(view: &dyn View, epoch: u32) -> Result<Option<Vec<u8>>, Corrupt> {
    let row = view.get(LEDGER_SUM, &epoch_key(&OWN, epoch))?;
    let row = row.map(|row| decode::<LedgerEpochRow>(LEDGER_SUM, &row)).transpose()?;
    Ok(row.map(|row| order_key(row.first_index, &[])))
}

/// Positions of the entries that one scan has found, with their keys.
#[derive(Default)]
struct ScannedEntries {
    found: Vec<(EntryPosition, Vec<u8>)>,
    /// Last position read.
    last: Option<LedgerCursor>,
    /// Whether the scan has reached the end.
    is_end: bool,
}

/// Reads positions from `from` on: at most `limit` that are selected, and at most
/// [`limits::LEDGER_ROWS_READ_PER_PAGE`] in all.
fn scan_entries(
    view: &dyn View,
    query: &LedgerQuery,
    from: &[u8],
    limit: usize,
) -> Result<ScannedEntries, Corrupt> {
    let mut scan = ScannedEntries { is_end: true, ..ScannedEntries::default() };
    let mut read = 0;
    try_scan(view, REVOCATION_ORDER, from, |key, row| {
        let (position, fact) = EntryPosition::read(key, row)?;
        if query.epoch.is_some_and(|epoch| position.epoch > epoch) {
            return Ok(false);
        }
        if scan.found.len() >= limit || read >= limits::LEDGER_ROWS_READ_PER_PAGE {
            scan.is_end = false;
            return Ok(false);
        }
        read += 1;
        if query.selects(position, fact) {
            scan.found.push((position, fact.to_vec()));
        }
        scan.last = Some(LedgerCursor(key.to_vec()));
        Ok(true)
    })?;
    Ok(scan)
}

/// A page. An entry that is written again meanwhile has moved to a later position: the scan goes on until it has found it
/// there, or the page is full.
pub(super) fn page(view: &dyn View, query: &LedgerQuery) -> Result<LedgerPage, Corrupt> {
    let mut page = LedgerPage::default();
    let start = query.epoch.map_or_else(|| Ok(Some(Vec::new())), |epoch| start_of(view, epoch))?;
    let Some(start) = start else { return Ok(page) };
    let mut from = query.after.as_ref().map_or_else(Vec::new, LedgerCursor::next_key).max(start);
    loop {
        let scan = scan_entries(view, query, &from, query.limit.saturating_sub(page.entries.len()))?;
        let mut has_moved = false;
        for (position, fact) in &scan.found {
            match entry(view, *position, fact)? {
                Read::Entry(entry) => page.entries.push(entry),
                Read::Moved => has_moved = true,
                Read::Forgotten => {}
            }
        }
        match scan.last {
            Some(last) if !scan.is_end || has_moved && page.entries.len() >= query.limit => {
                page.next = Some(last);
                return Ok(page);
            }
            Some(last) if has_moved => from = last.next_key(),
            _ => return Ok(page),
        }
    }
}

enum Read {
    Entry(LedgerEntry),
    /// It was written again after its position was read.
    Moved,
    /// It was deleted after its position was read.
    Forgotten,
}

fn entry(view: &dyn View, position: EntryPosition, fact: &[u8]) -> Result<Read, Corrupt> {
    let table = if is_watermark(fact) { REVOCATION } else { BLOCK };
    let Some(row) = view.get(table, fact)? else { return Ok(Read::Forgotten) };
    let (id, by) = fact.split_at(fact.len().min(16));
    let (index, known, reason, at) = if is_watermark(fact) {
        let row = decode::<RevocationRow>(table, &row)?;
        (row.index, row.fact, row.reason, Some(row.at_millis))
    } else {
        let row = decode::<BlockRow>(table, &row)?;
        let is_blocked = position.state == LedgerState::Blocked;
        let at = if is_blocked { row.blocked_at_millis } else { row.lifted_at_millis };
        (row.index, row.fact, row.reason, at)
    };
    if index != position.index {
        return Ok(Read::Moved);
    }
    Ok(Read::Entry(LedgerEntry {
        index,
        epoch: position.epoch,
        state: position.state,
        id: digest(id)?,
        by: if by.is_empty() { None } else { Some(digest(by)?) },
        fact: known,
        reason,
        at: Timestamp::from_millis(at.unwrap_or_default()),
    }))
}

/// Adds some watermarks of an epoch to its buckets; returns the cursor if there may be more.
pub(super) fn add_to_buckets(
    view: &dyn View,
    epoch: u32,
    after: Option<&LedgerCursor>,
    buckets: &mut [Sum; BUCKETS],
) -> Result<Option<LedgerCursor>, Corrupt> {
    let Some(start) = start_of(view, epoch)? else { return Ok(None) };
    let query = LedgerQuery { epoch: Some(epoch), ..LedgerQuery::default() };
    let from = after.map_or(start, LedgerCursor::next_key);
    let scan = scan_entries(view, &query, &from, limits::LEDGER_ROWS_PER_STEP)?;
    for (position, fact) in &scan.found {
        let hash = sum::entry_hash(fact, position.state, position.index, position.epoch);
        let bucket = &mut buckets[usize::from(fact.first().copied().unwrap_or_default())];
        *bucket = bucket.plus(&Sum::of_one(hash));
    }
    Ok(scan.last.filter(|_| !scan.is_end))
}

/// `index`, if the ledger has an entry from there on; otherwise the log index of its last entry, 0 if it is empty. A reader
/// that has a whole response through that index has the ledger as of `index`.
pub(super) fn end_until(view: &dyn View, index: u64) -> Result<u64, Corrupt> {
    let has_entry_from = |from: u64| {
        let (from, to) = (order_key(from, &[]), order_key(u64::MAX, &[u8::MAX; 33]));
        Ok::<_, Corrupt>(view.first_between(REVOCATION_ORDER, &from, &to)?.is_some())
    };
    if has_entry_from(index)? {
        return Ok(index);
    }
    let (mut low, mut high) = (0, index);
    while low < high {
        let middle = high - (high - low) / 2;
        if has_entry_from(middle)? {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Ok(low)
}

impl State {
    /// The log index of our own ledger as of `index`: that of its last entry, or `index` if there are entries from there on.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn end_of_ledger(&self, index: u64) -> Result<u64, Corrupt> {
        end_until(self.cluster.view(), index)
    }

    /// The sums of our own ledger.
    pub fn ledger_sums(&self, _current: &LinearizableRead) -> Result<LedgerSums, Corrupt> {
        sums(self.cluster.view())
    }

    /// Counter of new entries of our own ledger and of changed signing keys. Changes when they can be read.
    #[must_use]
    pub fn ledger_changes(&self) -> watch::Receiver<u64> {
        self.cluster.machine().ledger_changes()
    }

    /// The epoch in which an entry would be recorded now.
    #[must_use]
    pub fn ledger_epoch(&self) -> u32 {
        epoch_of(self.index().elapsed)
    }

    /// A page of our own ledger, in the order of log index and id.
    pub fn ledger_page(
        &self,
        _current: &LinearizableRead,
        query: &LedgerQuery,
    ) -> Result<LedgerPage, Corrupt> {
        page(self.cluster.view(), query)
    }

    /// The watermarks of an epoch by the first byte of their ids. Other tasks run meanwhile, and entries may move.
    pub async fn ledger_buckets(
        &self,
        _current: &LinearizableRead,
        epoch: u32,
    ) -> Result<Box<[Sum; BUCKETS]>, Corrupt> {
        let mut buckets = Box::new([Sum::default(); BUCKETS]);
        let mut after = None;
        loop {
            after = add_to_buckets(self.cluster.view(), epoch, after.as_ref(), &mut buckets)?;
            if after.is_none() {
                return Ok(buckets);
            }
            tokio::task::yield_now().await;
        }
    }
}
