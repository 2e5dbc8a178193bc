//! Audit blocks: their order, and what is dropped over the limits.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::cluster::{Machine as _, Stamp};
use crate::state::Replicated;
use crate::state::command::{AuditHead, decode_reply, encode};
use crate::state::testing::{Rows, batch};

impl Rows {
    fn apply(&mut self, at: Timestamp, blocks: Vec<AppendAuditBlocks>) -> Vec<Reply> {
        self.apply_as(Stamp { time: at, latest: at, elapsed: at }, blocks)
    }

    fn apply_as(&mut self, stamp: Stamp, blocks: Vec<AppendAuditBlocks>) -> Vec<Reply> {
        let commands = blocks.into_iter().map(|block| encode(Command::AppendAuditBlocks(block))).collect();
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

    /// Every block in order: its number, and whether it has content.
    fn blocks(&self) -> Vec<(u64, bool)> {
        let mut after = 0;
        std::iter::from_fn(|| {
            let block = block_after(self, after).expect("rows")?;
            after = block.number;
            Some((block.number, block.payload.is_some()))
        })
        .collect()
    }

    fn number(&self, key: &[u8]) -> u64 {
        Tables::new(self).number(key).expect("number")
    }

    fn bytes(&self) -> u64 {
        Retained::read(&Tables::new(self)).expect("row").total()
    }

    /// Adds to the size of a bucket, as if it had more contents.
    fn enlarge(&mut self, bucket: u8, bytes: u64) {
        let tables = Tables::new(self);
        let mut retained = Retained::read(&tables).expect("row");
        retained.size(bucket).bytes += bytes;
        let mut tables = Tables::new(self);
        retained.write(&mut tables);
        let writes = tables.into_writes();
        self.write(writes);
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

fn of_bucket(bucket: u8, node: u64, sequence: u64, heads: Vec<AuditHead>, payload: Bytes) -> NewAuditBlock {
    let header = AuditHeader {
        sequence,
        bucket: bucket.into(),
        prev_hash: hash_of(node, sequence.saturating_sub(1)),
        hash: hash_of(node, sequence),
        content_hash: vec![5; 32].into(),
        count: 1,
        first_millis: START.millis(),
        last_millis: START.millis(),
    };
    NewAuditBlock { header: Some(header), content: Some(AuditContent { heads, payload }) }
}

fn heads(node: u64, sequence: u64, tools: &[u8]) -> Vec<AuditHead> {
    let head = |tool: &u8| AuditHead { tool: vec![*tool; 16].into(), hash: hash_of(node, sequence + 1000) };
    tools.iter().map(head).collect()
}

/// A segment of one block of a bucket about some tools.
fn by(bucket: u8, node: u64, sequence: u64, tools: &[u8]) -> AppendAuditBlocks {
    let payload = Bytes::from_static(b"not opened");
    let block = of_bucket(bucket, node, sequence, heads(node, sequence, tools), payload);
    AppendAuditBlocks { node_id: node, segment: sequence, blocks: vec![block] }
}

fn block(node: u64, sequence: u64, tools: &[u8]) -> AppendAuditBlocks {
    by(0, node, sequence, tools)
}

/// A block about many tools.
fn wide(node: u64, sequence: u64, tools: u16) -> AppendAuditBlocks {
    let head = |tool: u16| {
        let mut digest = vec![255; 16];
        digest[..2].copy_from_slice(&tool.to_be_bytes());
        AuditHead { tool: digest.into(), hash: hash_of(node, sequence + 1000) }
    };
    let heads = (0..tools).map(head).collect();
    let block = of_bucket(0, node, sequence, heads, Bytes::from_static(b"not opened"));
    AppendAuditBlocks { node_id: node, segment: sequence, blocks: vec![block] }
}

fn weight(command: &AppendAuditBlocks) -> u64 {
    command.blocks.iter().filter_map(|block| block.content.as_ref()).map(bytes_of).sum()
}

#[test]
fn duplicate_segment_changes_nothing_and_a_gap_is_refused() {
    let mut rows = Rows::default();
    assert_eq!(
        rows.apply(START, vec![block(1, 1, &[7]), block(1, 1, &[7]), block(1, 2, &[7])]),
        [DONE, AGAIN, DONE]
    );
    let before = rows.without_deduplication();
    assert_eq!(rows.apply(START, vec![block(1, 1, &[8]), block(1, 2, &[8])]), [AGAIN, AGAIN]);
    assert_eq!(rows.apply(START, vec![block(1, 4, &[7]), block(2, 2, &[7])]), [MISSING, MISSING]);
    let mut elsewhere = block(1, 3, &[7]);
    elsewhere.blocks[0].header.as_mut().expect("header").prev_hash = hash_of(2, 2);
    assert_eq!(rows.apply(START, vec![elsewhere]), [MISSING]);
    rows.0.retain(|key, _| key.1 != b"time");
    let kept: BTreeMap<_, _> = before.into_iter().filter(|(key, _)| key.1 != b"time").collect();
    assert_eq!(rows.without_deduplication(), kept);
    assert_eq!(rows.apply(START, vec![block(1, 3, &[7]), block(2, 1, &[7])]), [DONE, DONE]);
}

#[test]
fn blocks_of_a_segment_follow_each_other_or_none_is_appended() {
    let mut rows = Rows::default();
    let mut segment = by(3, 1, 1, &[7]);
    segment.blocks.extend(by(5, 1, 2, &[7, 8]).blocks);
    assert_eq!(rows.apply(START, vec![segment]), [DONE]);
    assert_eq!((rows.blocks(), rows.trail(7)), (vec![(1, true), (2, true)], vec![2, 1]));
    // Segment 2 has no readable entry, segment 3 omits a block.
    let empty = AppendAuditBlocks { node_id: 1, segment: 2, blocks: Vec::new() };
    let mut torn = AppendAuditBlocks { segment: 3, ..by(3, 1, 3, &[7]) };
    torn.blocks.extend(by(5, 1, 5, &[7]).blocks);
    assert_eq!(rows.apply(START, vec![empty, torn]), [DONE, MISSING]);
    assert_eq!(rows.blocks().len(), 2);
    assert_eq!(rows.apply(START, vec![AppendAuditBlocks { segment: 3, ..by(3, 1, 3, &[7]) }]), [DONE]);
}

#[test]
fn trail_of_a_tool_is_newest_first_across_nodes() {
    let mut rows = Rows::default();
    let blocks = vec![block(1, 1, &[7, 8]), by(9, 2, 1, &[7]), block(1, 2, &[8]), block(1, 3, &[7])];
    rows.apply(START, blocks);
    assert_eq!((rows.trail(7), rows.trail(8), rows.trail(9)), (vec![4, 2, 1], vec![3, 1], vec![]));
    assert_eq!(block_about(&rows, &Digest128::from_bytes([7; 16]), Some(0)).expect("rows"), None);
    let numbers = |after| block_after(&rows, after).expect("rows").map(|block| block.number);
    assert_eq!((numbers(0), numbers(3), numbers(4), numbers(u64::MAX)), (Some(1), Some(4), None, None));
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
    assert_eq!(rows.count(AUDIT_CONTENT), 2);
    assert_eq!((rows.number(DROPPED_BY_AGE), rows.number(DROPPED_BY_BYTES)), (21, 0));
    assert_eq!(rows.bytes(), weight(&block(1, 21, &[7])) + weight(&block(1, 22, &[7])));
    assert_eq!(rows.apply(later, vec![block(2, 2, &[9])]), [DONE], "a node continues its chain");
}

/// Regression: a leader's clock was 100 days ahead, and blocks written a second before were dropped as old.
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
    let each = weight(&wide(1, 2, 1000)) + ROW_BYTES;
    let at_once = most.div_ceil(each);
    assert!((2..100).contains(&at_once), "{at_once}");
    // Payloads are small: the tools cause the work.
    for sequence in 1..=2 * at_once {
        rows.apply(START, vec![wide(1, sequence, 1000)]);
    }
    let later = START.plus(limits::AUDIT_RETENTION).plus(Duration::from_secs(1));
    rows.apply(later, vec![block(1, 2 * at_once + 1, &[7])]);
    let left = rows.count(AUDIT_BLOCK) as u64 - 1;
    assert!((at_once - 1..=at_once).contains(&left), "{left} of {}", 2 * at_once);
    rows.apply(later, vec![block(1, 2 * at_once + 2, &[7])]);
    assert!(rows.count(AUDIT_BLOCK) <= 3);
}

/// The attack: a caller writes more than the limit. Regression: the oldest entries of all callers were
/// dropped for it.
#[test]
fn flood_of_one_caller_evicts_only_its_own_entries() {
    let mut rows = Rows::default();
    rows.apply(START, vec![by(2, 1, 1, &[9]), by(2, 2, 1, &[9])]);
    rows.apply(START, (2..=10).map(|sequence| by(7, 1, sequence, &[7])).collect());
    rows.enlarge(7, limits::AUDIT_BYTES_MAX);
    for sequence in 11..=20 {
        rows.apply(START, vec![by(7, 1, sequence, &[7])]);
    }
    assert_eq!(rows.trail(9), [2, 1], "the other caller's entries are there");
    assert_eq!(rows.trail(7), [21], "older ones of the flood are not");
    // Every header is there, so each chain can be followed across the gap.
    let blocks = rows.blocks();
    assert_eq!(blocks.len(), 21);
    let with_content: Vec<u64> = blocks.iter().filter(|block| block.1).map(|block| block.0).collect();
    assert_eq!(with_content, [1, 2, 21]);
    assert_eq!((rows.number(DROPPED_BY_AGE), rows.number(DROPPED_BY_BYTES)), (0, 18));
    assert_eq!((rows.count(AUDIT_HEAD), rows.count(AUDIT_TRAIL)), (3, 3));
}

#[test]
fn oldest_content_of_the_largest_bucket_is_dropped() {
    let mut rows = Rows::default();
    rows.apply(START, vec![by(1, 1, 1, &[7]), by(1, 1, 2, &[7]), by(1, 1, 3, &[7]), by(2, 2, 1, &[8])]);
    let each = weight(&block(1, 2, &[7]));
    assert_eq!(rows.bytes(), 4 * each);
    assert!(each > ROW_BYTES * 2 + 10, "rows count, not payloads only");
    rows.enlarge(1, limits::AUDIT_BYTES_MAX - 5 * each);
    rows.apply(START, vec![by(2, 2, 2, &[8])]);
    assert_eq!((rows.trail(7), rows.trail(8)), (vec![3, 2, 1], vec![5, 4]), "at the limit");
    rows.apply(START, vec![by(2, 2, 3, &[8])]);
    assert_eq!((rows.trail(7), rows.trail(8)), (vec![3, 2], vec![6, 5, 4]), "over it, until it is not");
    assert_eq!((rows.number(DROPPED_BY_AGE), rows.number(DROPPED_BY_BYTES)), (0, 1));
    assert_eq!(rows.bytes(), limits::AUDIT_BYTES_MAX);
}

#[test]
fn total_size_stays_within_its_limit_for_any_block() {
    let mut rows = Rows::default();
    for sequence in 1..=20 {
        rows.apply(START, vec![wide(1, sequence, 1000)]);
    }
    let more = limits::AUDIT_BYTES_MAX - rows.bytes();
    rows.enlarge(0, more);
    // Larger than the bound of dropped bytes per entry.
    let mut large = block(1, 21, &[7]);
    large.blocks[0].content.as_mut().expect("content").payload = vec![1; 2 * 1024 * 1024].into();
    assert!(weight(&large) > limits::AUDIT_BYTES_DROPPED_FULL);
    for appended in [large, wide(1, 22, 500)] {
        rows.apply(START, vec![appended]);
        assert!(rows.bytes() <= limits::AUDIT_BYTES_MAX, "{}", rows.bytes());
    }
    assert!(rows.count(AUDIT_CONTENT) > 2, "no more is dropped than necessary");
}

#[test]
fn newest_block_is_never_dropped() {
    let mut rows = Rows::default();
    rows.enlarge(0, 2 * limits::AUDIT_BYTES_MAX);
    rows.apply(START, vec![block(1, 1, &[7])]);
    assert_eq!(rows.trail(7), [1]);
}

#[test]
fn headers_over_their_limit_are_dropped_with_their_blocks() {
    let mut rows = Rows::default();
    rows.apply(START, vec![block(1, 1, &[7]), block(1, 2, &[7]), block(1, 3, &[7])]);
    // As if two blocks fewer than the limit had been between the second and the third.
    let third = rows.0.remove(&(AUDIT_BLOCK.to_owned(), 3_u64.to_be_bytes().to_vec())).expect("row");
    let newest = limits::AUDIT_HEADERS_MAX;
    rows.0.insert((AUDIT_BLOCK.to_owned(), newest.to_be_bytes().to_vec()), third);
    rows.0.insert((META.to_owned(), NEWEST.to_vec()), newest.to_be_bytes().to_vec());
    assert_eq!(rows.blocks().len(), 3);
    rows.apply(START, vec![block(1, 4, &[7])]);
    let numbers: Vec<u64> = rows.blocks().into_iter().map(|(number, _)| number).collect();
    assert_eq!(numbers, [2, newest, newest + 1]);
    assert_eq!(rows.number(DROPPED_BY_AGE), 1);
}

#[test]
fn rows_of_audit_blocks_do_not_depend_on_batching() {
    let blocks = || (1..=20).flat_map(|sequence| [block(1, sequence, &[1, 2]), by(9, 2, sequence, &[2, 3])]);
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
fn malformed_audit_block_is_corrupt() {
    let rows = Rows::default();
    let changed = |change: fn(&mut NewAuditBlock)| {
        let mut command = block(1, 1, &[7]);
        change(&mut command.blocks[0]);
        command
    };
    for command in [
        changed(|block| block.header.as_mut().expect("header").hash = Bytes::new()),
        changed(|block| block.header.as_mut().expect("header").bucket = 64),
        changed(|block| block.content.as_mut().expect("content").heads[0].tool = Bytes::from_static(&[7; 8])),
    ] {
        let time = EntryTime { now: START, latest: START, elapsed: START };
        assert!(append(&mut Tables::new(&rows), time, command).is_err());
    }
}
