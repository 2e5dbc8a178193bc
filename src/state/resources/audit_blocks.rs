//! Audit blocks. Their contents are not read here.
//!
//! Each block continues the hash chain of its node. The blocks of all nodes are numbered in log order; the oldest are
//! dropped by age or total size.

use bytes::Bytes;
use prost::Message as _;

use crate::clock::Timestamp;
use crate::cluster::{Corrupt, View};
use crate::id::Digest128;
use crate::limits;
use crate::state::command::{
    AppendAuditBlock, AuditBlockRow, AuditHead, AuditNodeRow, Command, Refusal, Reply,
};
use crate::state::machine::idempotency::digest;
use crate::state::tables::{
    AUDIT_BLOCK, AUDIT_HEAD, AUDIT_NODE, AUDIT_TRAIL, DROPPED_BY_AGE, DROPPED_BY_BYTES, EntryTime, Tables,
    decode,
};
use crate::state::{Error, State};

/// Row of the meta table: number of the newest block.
const NEWEST: &[u8] = b"newest_audit_block";
/// Row of the meta table: number of the oldest retained block.
const OLDEST: &[u8] = b"oldest_audit_block";
/// Row of the meta table: total size of the retained blocks, by [`bytes_of`].
const BYTES: &[u8] = b"audit_bytes";
/// Estimated overhead of a block's row, and of the two rows of each tool in it: keys, checksums, database index.
const ROW_BYTES: u64 = 128;

/// SHA-256 of an entry or a block.
pub type AuditHash = [u8; 32];

/// A block to be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAuditBlock {
    /// Number among the blocks of this node, from 1.
    pub sequence: u64,
    /// Hash of its predecessor; `None` for the first.
    pub prev_hash: Option<AuditHash>,
    /// Hash of the block.
    pub hash: AuditHash,
    /// Number of entries.
    pub entries: u32,
    /// Hash of the last entry about each tool.
    pub heads: Vec<(Digest128, AuditHash)>,
    /// The entries, compressed.
    pub payload: Bytes,
}

/// A stored block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditBlock {
    /// Number among the blocks of all nodes, from 1.
    pub number: u64,
    /// Node that wrote it.
    pub node_id: u64,
    /// Number among the blocks of that node, from 1.
    pub sequence: u64,
    /// Hash of its predecessor of that node; empty for the first.
    pub prev_hash: Bytes,
    /// Hash of the block.
    pub hash: Bytes,
    /// Number of entries.
    pub entries: u32,
    /// The entries, compressed.
    pub payload: Bytes,
    /// Log time at which it was appended.
    pub appended_at: Timestamp,
}

/// The last block of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastAuditBlock {
    /// Its number; 0 if there is none.
    pub sequence: u64,
    /// Its hash; `None` if there is none.
    pub hash: Option<AuditHash>,
}

impl State {
    /// Appends a block of this node; false if it is stored already. [`Error::AuditBlockMissing`] if its predecessor is
    /// not.
    pub async fn append_audit_block(&self, block: NewAuditBlock) -> Result<bool, Error> {
        let head = |(tool, hash): (Digest128, AuditHash)| AuditHead {
            tool: Bytes::copy_from_slice(tool.as_bytes()),
            hash: Bytes::copy_from_slice(&hash),
        };
        let command = AppendAuditBlock {
            node_id: self.cluster.node_id(),
            sequence: block.sequence,
            prev_hash: block.prev_hash.map_or_else(Bytes::new, |hash| Bytes::copy_from_slice(&hash)),
            hash: Bytes::copy_from_slice(&block.hash),
            entries: block.entries,
            heads: block.heads.into_iter().map(head).collect(),
            payload: block.payload,
        };
        self.as_node().propose(Command::AppendAuditBlock(command)).await
    }

    /// The last block of this node.
    pub fn last_audit_block(&self) -> Result<LastAuditBlock, Corrupt> {
        let tables = Tables::new(self.cluster.view());
        let row = tables.message::<AuditNodeRow>(AUDIT_NODE, &self.cluster.node_id().to_be_bytes())?;
        let Some(row) = row else { return Ok(LastAuditBlock::default()) };
        Ok(LastAuditBlock { sequence: row.sequence, hash: Some(hash(&row.hash)?) })
    }

    /// Hash of the last entry about a tool in the blocks of this node.
    pub fn audit_head(&self, tool: &Digest128) -> Result<Option<AuditHash>, Corrupt> {
        let view = self.cluster.machine().row_cache().over(self.cluster.view());
        let row = view.get(AUDIT_HEAD, &of_node(tool.as_bytes(), self.cluster.node_id()))?;
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

/// Appends a block, and drops some of the oldest if they exceed the limits.
pub fn append(tables: &mut Tables<'_>, time: EntryTime, command: AppendAuditBlock) -> Result<Reply, Corrupt> {
    let node = command.node_id.to_be_bytes();
    let last: AuditNodeRow = tables.message(AUDIT_NODE, &node)?.unwrap_or_default();
    // A node that has received no reply for a block sends it again.
    if command.sequence <= last.sequence {
        return Ok(Reply::Done { changed: false });
    }
    if command.sequence != last.sequence.saturating_add(1) || command.prev_hash != last.hash {
        return Ok(Reply::Refused(Refusal::AuditBlockMissing));
    }
    hash(&command.hash)?;
    let number = tables.add(NEWEST, 1)?;
    for head in &command.heads {
        let tool = digest(&head.tool)?;
        tables.put(AUDIT_TRAIL, &in_trail(&tool, number), Vec::new());
        tables.put(AUDIT_HEAD, &of_node(tool.as_bytes(), command.node_id), hash(&head.hash)?.to_vec());
    }
    let last = AuditNodeRow { sequence: command.sequence, hash: command.hash.clone() };
    tables.put(AUDIT_NODE, &node, last.encode_to_vec());
    let row = AuditBlockRow {
        block: Some(command),
        appended_at_millis: time.now.millis(),
        appended_passed_millis: time.elapsed.millis(),
    };
    let bytes = bytes_of(&row);
    tables.add(BYTES, bytes)?;
    tables.put(AUDIT_BLOCK, &number.to_be_bytes(), row.encode_to_vec());
    drop_oldest(tables, time.elapsed, number, bytes)?;
    Ok(Reply::Done { changed: true })
}

/// Size of a block: many small tools count as much as one large payload.
fn bytes_of(row: &AuditBlockRow) -> u64 {
    let rows = row.block.as_ref().map_or(0, |block| block.heads.len()).saturating_add(1);
    (row.encoded_len() as u64).saturating_add((rows as u64).saturating_mul(ROW_BYTES))
}

/// Drops blocks older than the newest, a bounded amount per entry so that it is applied in bounded time, but at least the
/// size that was `appended`: otherwise the total would keep growing.
fn drop_oldest(
    tables: &mut Tables<'_>,
    elapsed: Timestamp,
    newest: u64,
    appended: u64,
) -> Result<(), Corrupt> {
    let mut oldest = tables.number(OLDEST)?.max(1);
    let mut bytes = tables.number(BYTES)?;
    let (mut by_age, mut by_bytes) = (tables.number(DROPPED_BY_AGE)?, tables.number(DROPPED_BY_BYTES)?);
    let mut dropped = 0_u64;
    let kept_from = elapsed.minus(limits::AUDIT_RETENTION).millis();
    while oldest < newest && dropped < limits::AUDIT_BYTES_DROPPED_FULL.max(appended) {
        let key = oldest.to_be_bytes();
        let row = tables.message::<AuditBlockRow>(AUDIT_BLOCK, &key)?;
        let row = row.ok_or_else(|| Corrupt::row(format_args!("audit block {oldest} is missing")))?;
        if row.appended_passed_millis < kept_from {
            by_age = by_age.saturating_add(1);
        } else if bytes > limits::AUDIT_BYTES_MAX {
            by_bytes = by_bytes.saturating_add(1);
        } else {
            break;
        }
        let freed = bytes_of(&row);
        let block = row.block.unwrap_or_default();
        for head in &block.heads {
            let tool = digest(&head.tool)?;
            tables.delete(AUDIT_TRAIL, &in_trail(&tool, oldest));
            let head_key = of_node(tool.as_bytes(), block.node_id);
            // The hash is equal if no later block of this node is about the tool; then the head is dropped too.
            if tables.row(AUDIT_HEAD, &head_key)?.is_some_and(|row| row == head.hash) {
                tables.delete(AUDIT_HEAD, &head_key);
            }
        }
        tables.delete(AUDIT_BLOCK, &key);
        bytes = bytes.saturating_sub(freed);
        dropped = dropped.saturating_add(freed);
        oldest = oldest.saturating_add(1);
    }
    if dropped > 0 {
        tables.set_number(OLDEST, oldest);
        tables.set_number(BYTES, bytes);
        tables.set_number(DROPPED_BY_AGE, by_age);
        tables.set_number(DROPPED_BY_BYTES, by_bytes);
    }
    Ok(())
}

/// Key of [`AUDIT_TRAIL`]: newest first, since numbers count down from the largest.
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
    // Dropped rows are not scanned.
    let behind_oldest = in_trail(tool, oldest_of(view)?.saturating_sub(1));
    let found = view.first_between(AUDIT_TRAIL, &in_trail(tool, newest), &behind_oldest)?;
    let number = found.and_then(|(key, _)| {
        let number = key.strip_prefix(tool.as_bytes())?.try_into().ok()?;
        Some(u64::MAX - u64::from_be_bytes(number))
    });
    let Some(number) = number else { return Ok(None) };
    // The block may have been dropped since, and with it all before it.
    let row = view.get(AUDIT_BLOCK, &number.to_be_bytes())?;
    row.map(|row| block(number, &row)).transpose()
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
    block(u64::from_be_bytes(key), &row).map(Some)
}

/// Number of the oldest retained block.
fn oldest_of(view: &dyn View) -> Result<u64, Corrupt> {
    Ok(Tables::new(view).number(OLDEST)?.max(1))
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::cluster::{Machine as _, Stamp};
    use crate::state::Replicated;
    use crate::state::command::{decode_reply, encode};
    use crate::state::tables::META;
    use crate::state::testing::{Rows, batch};

    impl Rows {
        fn apply(&mut self, at: Timestamp, blocks: Vec<AppendAuditBlock>) -> Vec<Reply> {
            self.apply_as(Stamp { time: at, latest: at, elapsed: at }, blocks)
        }

        fn apply_as(&mut self, stamp: Stamp, blocks: Vec<AppendAuditBlock>) -> Vec<Reply> {
            let commands = blocks.into_iter().map(|block| encode(Command::AppendAuditBlock(block))).collect();
            let applied = Replicated::default().apply(self, &batch(stamp, commands), 1).expect("applies");
            self.write(applied.writes);
            applied.replies.iter().map(|reply| decode_reply(reply).expect("reply").outcome).collect()
        }

        fn count(&self, table: &str) -> usize {
            self.0.keys().filter(|(of, _)| of == table).count()
        }

        /// The numbers of the blocks about a tool, newest first.
        fn trail(&self, tool: u8) -> Vec<u64> {
            let mut before = None;
            std::iter::from_fn(|| {
                let block = block_about(self, &Digest128::from_bytes([tool; 16]), before).expect("rows")?;
                before = Some(block.number);
                Some(block.number)
            })
            .collect()
        }
    }

    const START: Timestamp = Timestamp::from_secs(1_800_000_000);
    const DONE: Reply = Reply::Done { changed: true };
    const AGAIN: Reply = Reply::Done { changed: false };
    const MISSING: Reply = Reply::Refused(Refusal::AuditBlockMissing);

    fn hash_of(node: u64, sequence: u64) -> Bytes {
        let mut hash = vec![u8::try_from(node).expect("small"); 32];
        hash[..8].copy_from_slice(&sequence.to_be_bytes());
        if sequence == 0 { Bytes::new() } else { hash.into() }
    }

    /// A block of a node about some tools.
    fn block(node: u64, sequence: u64, tools: &[u8]) -> AppendAuditBlock {
        let head =
            |tool: &u8| AuditHead { tool: vec![*tool; 16].into(), hash: hash_of(node, sequence + 1000) };
        AppendAuditBlock {
            node_id: node,
            sequence,
            prev_hash: hash_of(node, sequence.saturating_sub(1)),
            hash: hash_of(node, sequence),
            entries: 1,
            heads: tools.iter().map(head).collect(),
            payload: Bytes::from_static(b"not opened"),
        }
    }

    #[test]
    fn duplicate_block_changes_nothing_and_a_gap_is_refused() {
        let mut rows = Rows::default();
        assert_eq!(
            rows.apply(START, vec![block(1, 1, &[7]), block(1, 1, &[7]), block(1, 2, &[7])]),
            [DONE, AGAIN, DONE]
        );
        let before = rows.without_deduplication();
        assert_eq!(rows.apply(START, vec![block(1, 1, &[8]), block(1, 2, &[8])]), [AGAIN, AGAIN]);
        assert_eq!(rows.apply(START, vec![block(1, 4, &[7]), block(2, 2, &[7])]), [MISSING, MISSING]);
        let elsewhere = AppendAuditBlock { prev_hash: hash_of(2, 2), ..block(1, 3, &[7]) };
        assert_eq!(rows.apply(START, vec![elsewhere]), [MISSING]);
        rows.0.retain(|key, _| key.1 != b"time");
        let kept: BTreeMap<_, _> = before.into_iter().filter(|(key, _)| key.1 != b"time").collect();
        assert_eq!(rows.without_deduplication(), kept);
        assert_eq!(rows.apply(START, vec![block(1, 3, &[7]), block(2, 1, &[7])]), [DONE, DONE]);
    }

    #[test]
    fn trail_of_a_tool_is_newest_first_across_nodes() {
        let mut rows = Rows::default();
        let blocks = vec![block(1, 1, &[7, 8]), block(2, 1, &[7]), block(1, 2, &[8]), block(1, 3, &[7])];
        rows.apply(START, blocks);
        assert_eq!((rows.trail(7), rows.trail(8), rows.trail(9)), (vec![4, 2, 1], vec![3, 1], vec![]));
        assert_eq!(block_about(&rows, &Digest128::from_bytes([7; 16]), Some(0)).expect("rows"), None);
        let numbers = |after| block_after(&rows, after).expect("rows").map(|block| block.number);
        assert_eq!((numbers(0), numbers(3), numbers(4), numbers(u64::MAX)), (Some(1), Some(4), None, None));
    }

    /// A block about many tools.
    fn wide(node: u64, sequence: u64, tools: u16) -> AppendAuditBlock {
        let head = |tool: u16| {
            let mut digest = vec![255; 16];
            digest[..2].copy_from_slice(&tool.to_be_bytes());
            AuditHead { tool: digest.into(), hash: hash_of(node, sequence + 1000) }
        };
        AppendAuditBlock { heads: (0..tools).map(head).collect(), ..block(node, sequence, &[]) }
    }

    fn weight(block: &AppendAuditBlock) -> u64 {
        let [appended_at_millis, appended_passed_millis] = [START.millis(); 2];
        bytes_of(&AuditBlockRow { block: Some(block.clone()), appended_at_millis, appended_passed_millis })
    }

    impl Rows {
        fn number(&self, key: &[u8]) -> u64 {
            Tables::new(self).number(key).expect("number")
        }

        /// Sets the total size of the retained blocks.
        fn keep(&mut self, bytes: u64) {
            self.0.insert((META.to_owned(), BYTES.to_vec()), bytes.to_be_bytes().to_vec());
        }
    }

    #[test]
    fn dropped_blocks_are_not_scanned() {
        let mut rows = Rows::default();
        rows.apply(START, (1..=6).map(|sequence| block(1, sequence, &[7])).collect());
        // As if the database still had tombstones of dropped blocks.
        rows.0.insert((META.to_owned(), OLDEST.to_vec()), 4_u64.to_be_bytes().to_vec());
        assert_eq!(rows.trail(7), [6, 5, 4]);
        assert_eq!(block_after(&rows, 0).expect("rows").map(|block| block.number), Some(4));
        assert_eq!(block_after(&rows, 5).expect("rows").map(|block| block.number), Some(6));
        assert_eq!(block_after(&rows, 6).expect("rows"), None);
    }

    #[test]
    fn blocks_are_dropped_after_their_retention_with_all_rows() {
        let mut rows = Rows::default();
        for sequence in 1..=20 {
            rows.apply(START, vec![block(1, sequence, &[7, 200])]);
        }
        rows.apply(START, vec![block(2, 1, &[9])]);
        let last = START.plus(limits::AUDIT_RETENTION);
        rows.apply(last, vec![block(1, 21, &[7])]);
        assert_eq!(rows.count(AUDIT_BLOCK), 22, "retained to the last instant");
        let later = last.plus(Duration::from_millis(1));
        rows.apply(later, vec![block(1, 22, &[7])]);
        assert_eq!((rows.count(AUDIT_BLOCK), rows.trail(200), rows.trail(9)), (2, vec![], vec![]));
        assert_eq!((rows.count(AUDIT_TRAIL), rows.count(AUDIT_HEAD), rows.count(AUDIT_NODE)), (2, 1, 2));
        assert_eq!((rows.number(DROPPED_BY_AGE), rows.number(DROPPED_BY_BYTES)), (21, 0));
        assert_eq!(rows.number(BYTES), weight(&block(1, 21, &[7])) + weight(&block(1, 22, &[7])));
        assert_eq!(rows.apply(later, vec![block(2, 2, &[9])]), [DONE], "a node continues its chain");
    }

    /// A leader's clock was 100 days ahead: blocks written a second before were dropped as old.
    #[test]
    fn a_leap_of_log_time_drops_no_block() {
        let mut rows = Rows::default();
        rows.apply(START, vec![block(1, 1, &[7])]);
        let ahead = START.plus(limits::AUDIT_RETENTION).plus(Duration::from_secs(24 * 3600));
        let elapsed = START.plus(Duration::from_secs(1));
        rows.apply_as(Stamp { time: ahead, latest: ahead, elapsed }, vec![block(1, 2, &[7])]);
        assert_eq!((rows.trail(7), rows.number(DROPPED_BY_AGE)), (vec![2, 1], 0));
    }

    #[test]
    fn dropped_bytes_are_bounded_per_entry() {
        let mut rows = Rows::default();
        let most = limits::AUDIT_BYTES_DROPPED_FULL;
        let each = weight(&wide(1, 2, 1000));
        let at_once = most.div_ceil(each);
        assert!((2..100).contains(&at_once), "{at_once}");
        // Payloads are small: the tools cause the work.
        for sequence in 1..=2 * at_once {
            rows.apply(START, vec![wide(1, sequence, 1000)]);
        }
        let later = START.plus(limits::AUDIT_RETENTION).plus(Duration::from_secs(1));
        rows.apply(later, vec![block(1, 2 * at_once + 1, &[7])]);
        // The first block has no predecessor hash, and is a little smaller.
        let left = rows.count(AUDIT_BLOCK) as u64 - 1;
        assert!((at_once - 1..=at_once).contains(&left), "{left} of {}", 2 * at_once);
        rows.apply(later, vec![block(1, 2 * at_once + 2, &[7])]);
        assert!(rows.count(AUDIT_BLOCK) <= 3);
    }

    #[test]
    fn oldest_blocks_over_the_size_limit_are_dropped() {
        let mut rows = Rows::default();
        rows.apply(START, vec![block(1, 1, &[7]), block(1, 2, &[7])]);
        let (first, each) = (weight(&block(1, 1, &[7])), weight(&block(1, 2, &[7])));
        assert_eq!(rows.number(BYTES), first + each);
        assert!(each > ROW_BYTES * 2 + 10, "rows count, not payloads only");
        rows.keep(limits::AUDIT_BYTES_MAX - each);
        rows.apply(START, vec![block(1, 3, &[7])]);
        assert_eq!(rows.trail(7), [3, 2, 1], "at the limit");
        rows.apply(START, vec![block(1, 4, &[7])]);
        assert_eq!(rows.trail(7), [4, 3], "over it, until the total is below it");
        assert_eq!((rows.number(DROPPED_BY_AGE), rows.number(DROPPED_BY_BYTES)), (0, 2));
        assert_eq!(rows.number(BYTES), limits::AUDIT_BYTES_MAX - first);
    }

    #[test]
    fn total_size_stays_within_its_limit_for_any_block() {
        let mut rows = Rows::default();
        for sequence in 1..=20 {
            rows.apply(START, vec![wide(1, sequence, 1000)]);
        }
        rows.keep(limits::AUDIT_BYTES_MAX);
        // Larger than the bound of dropped bytes per entry.
        let large = AppendAuditBlock { payload: vec![1; 2 * 1024 * 1024].into(), ..block(1, 21, &[7]) };
        assert!(weight(&large) > limits::AUDIT_BYTES_DROPPED_FULL);
        for appended in [large, wide(1, 22, 500)] {
            rows.apply(START, vec![appended]);
            assert!(rows.number(BYTES) <= limits::AUDIT_BYTES_MAX, "{}", rows.number(BYTES));
        }
        assert!(rows.count(AUDIT_BLOCK) > 2, "no more is dropped than necessary");
    }

    #[test]
    fn newest_block_is_never_dropped() {
        let mut rows = Rows::default();
        rows.0
            .insert((META.to_owned(), BYTES.to_vec()), (2 * limits::AUDIT_BYTES_MAX).to_be_bytes().to_vec());
        rows.apply(START, vec![block(1, 1, &[7])]);
        assert_eq!(rows.trail(7), [1]);
    }

    #[test]
    fn rows_of_audit_blocks_do_not_depend_on_batching() {
        let blocks =
            || (1..=20).flat_map(|sequence| [block(1, sequence, &[1, 2]), block(2, sequence, &[2, 3])]);
        let (mut together, mut apart) = (Rows::default(), Rows::default());
        together.apply(START, blocks().collect());
        blocks().for_each(|block| drop(apart.apply(START, vec![block])));
        let later = START.plus(limits::AUDIT_RETENTION).plus(Duration::from_secs(1));
        for rows in [&mut together, &mut apart] {
            rows.apply(later, vec![block(1, 21, &[1])]);
        }
        assert_eq!(together.without_deduplication(), apart.without_deduplication());
    }

    #[test]
    fn block_without_a_valid_hash_or_digest_is_corrupt() {
        let rows = Rows::default();
        let no_hash = AppendAuditBlock { hash: Bytes::new(), ..block(1, 1, &[]) };
        let mut half = block(1, 1, &[7]);
        half.heads[0].tool = Bytes::from_static(&[7; 8]);
        for command in [no_hash, half] {
            let time = EntryTime { now: START, latest: START, elapsed: START };
            assert!(append(&mut Tables::new(&rows), time, command).is_err());
        }
    }
}
