//! Random histories: order, sums and floors against an independent computation over the rows of revocations and blocks,
//! and pages of any size against the whole ledger.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A number modulo 2^256 in two halves.
#[derive(Clone, Copy, Default)]
struct Number(u128, u128);

impl Number {
    fn of(bytes: &[u8]) -> Self {
        let half = |bytes: &[u8]| u128::from_be_bytes(bytes.try_into().expect("16 bytes"));
        Self(half(&bytes[..16]), half(&bytes[16..]))
    }

    fn plus(self, other: Self) -> Self {
        let (low, carry) = self.1.overflowing_add(other.1);
        Self(self.0.wrapping_add(other.0).wrapping_add(carry.into()), low)
    }

    fn bytes(self) -> Vec<u8> {
        [self.0.to_be_bytes(), self.1.to_be_bytes()].concat()
    }
}

/// Entries that the ledger must have: key of the row → index, epoch, state.
type Expected = BTreeMap<Vec<u8>, (u64, u32, u8)>;

/// From the rows, and the elapsed time of each log index.
fn expected(harness: &StateHarness, times: &BTreeMap<u64, Timestamp>) -> Expected {
    let epoch = |index: u64| u32::try_from(times[&index].secs() / 600).expect("fits");
    let mut expected = Expected::new();
    for (key, row) in rows_of(harness, REVOCATION) {
        let row: RevocationRow = decode(REVOCATION, row).expect("a row");
        let kind = row.fact.map_or("key".to_owned(), |fact| fact.kind);
        let state = if ["token", "key"].contains(&kind.as_str()) { 4 } else { 1 };
        expected.insert(key.clone(), (row.index, epoch(row.index), state));
    }
    for (key, row) in rows_of(harness, BLOCK) {
        let row: BlockRow = decode(BLOCK, row).expect("a row");
        let state = if is_blocked(&row) { 2 } else { 3 };
        expected.insert(key.clone(), (row.index, epoch(row.index), state));
    }
    expected
}

fn expected_root(expected: &Expected, floor: u32) -> (u64, Vec<u8>) {
    let mut epochs: BTreeMap<u32, (u64, Number)> = BTreeMap::new();
    let mut blocks = (0, Number::default());
    for (key, (index, epoch, state)) in expected {
        let mut hashed = vec![0];
        hashed.extend(&key[..16]);
        hashed.push(*state);
        hashed.extend(index.to_be_bytes());
        let sum = match (key.len(), state) {
            (16, _) => {
                hashed.extend(epoch.to_be_bytes());
                epochs.entry(*epoch).or_default()
            }
            (_, 2) => {
                hashed.extend(&key[16..]);
                &mut blocks
            }
            _ => continue,
        };
        *sum = (sum.0 + 1, sum.1.plus(Number::of(digest(&SHA256, &hashed).as_ref())));
    }
    epochs.retain(|epoch, _| *epoch >= floor);
    let mut hashed = vec![1];
    hashed.extend([9; 16]);
    hashed.extend(floor.to_be_bytes());
    for (epoch, (count, sum)) in &epochs {
        hashed.extend(epoch.to_be_bytes());
        hashed.extend(count.to_be_bytes());
        hashed.extend(sum.bytes());
    }
    hashed.extend(blocks.0.to_be_bytes());
    hashed.extend(blocks.1.bytes());
    let count = epochs.values().map(|(count, _)| count).sum::<u64>() + blocks.0;
    (count, digest(&SHA256, &hashed).as_ref().to_vec())
}

fn steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let kind = || prop_oneof![Just(EffectKind::Watermark), Just(EffectKind::Block), Just(EffectKind::Lift)];
    let wait = prop_oneof![3 => 0u64..300, 2 => Just(600u64), 1 => 80_000u64..90_000];
    let step = prop_oneof![
        3 => (0u8..6, any::<bool>()).prop_map(|(number, blocks)| Step::Revoke { number, blocks }),
        1 => (0u8..3).prop_map(Step::Token),
        4 => (0u8..6, kind(), 0u16..50)
            .prop_map(|(number, kind, before)| Step::Signal { number, kind, before }),
        2 => (0usize..8).prop_map(Step::Lift),
        1 => (0u8..2).prop_map(Step::Taint),
        3 => wait.prop_map(Step::Wait),
    ];
    vec(vec(step, 1..4), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn random_history_has_the_order_and_sums_of_its_rows(entries in steps()) {
        let mut history = History::new();
        let (mut before, mut forgotten_to, mut complete_from) = (Expected::new(), 0, 0);
        for steps in entries {
            let ended = history.entry(&steps);
            let harness = &history.harness;
            let expected = expected(harness, &history.times);
            for (key, (index, epoch, _)) in ended.iter().map(|key| (key, before[key])) {
                forgotten_to = forgotten_to.max(index);
                complete_from = if key.len() == 16 { complete_from.max(epoch + 1) } else { complete_from };
            }
            let mut order: Vec<_> =
                expected.iter().map(|(key, (index, _, state))| (*index, key.clone(), *state)).collect();
            order.sort();
            let found: Vec<_> =
                positions(harness).into_iter().map(|(index, key, state)| (index, key, state as u8)).collect();
            prop_assert_eq!(found, order);
            let sums = sums(&harness.rows).expect("sums");
            prop_assert_eq!((sums.forgotten_to, sums.complete_from), (forgotten_to, complete_from));
            let now = epoch_of(history.at);
            for floor in [complete_from, now, now + 1] {
                let (count, root) = expected_root(&expected, floor);
                prop_assert_eq!((sums.count(floor), sums.root(&ID, floor).to_vec()), (count, root));
            }
            prop_assert!(sums.epochs.iter().all(|(_, sum)| sum.count > 0), "{:?}", sums.epochs);
            prop_assert!(sums.changed_at >= expected.values().map(|(index, ..)| *index).max().unwrap_or(0));
            before = expected;
        }
    }

    #[test]
    fn pages_of_any_size_are_the_whole_ledger(entries in steps(), limit in 1usize..5) {
        let mut history = History::new();
        for steps in &entries {
            history.entry(steps);
        }
        let rows = &history.harness.rows;
        let all = whole(rows);
        let read = |query: LedgerQuery| {
            let (mut entries, mut query) = (Vec::new(), LedgerQuery { limit, ..query });
            loop {
                let page = page(rows, &query).expect("a page");
                assert!(page.entries.len() <= limit);
                entries.extend(page.entries);
                query.after = page.next;
                if query.after.is_none() {
                    return entries;
                }
            }
        };
        prop_assert_eq!(&read(LedgerQuery::default()), &all);
        for since in all.iter().map(|entry| entry.index) {
            let after = Some(LedgerCursor::after_index(since));
            let later: Vec<_> = all.iter().filter(|entry| entry.index > since).cloned().collect();
            prop_assert_eq!(read(LedgerQuery { after, ..LedgerQuery::default() }), later);
        }
        for (epoch, sum) in sums(rows).expect("sums").epochs {
            let of_epoch = |entry: &&LedgerEntry| entry.epoch == epoch && entry.by.is_none();
            let listed: Vec<_> = all.iter().filter(of_epoch).cloned().collect();
            prop_assert_eq!(listed.len() as u64, sum.count);
            let mut buckets = [Sum::default(); 256];
            prop_assert_eq!(add_to_buckets(rows, epoch, None, &mut buckets).expect("buckets"), None);
            prop_assert_eq!(buckets.iter().fold(Sum::default(), Sum::plus), sum);
            let query = |bucket| LedgerQuery { epoch: Some(epoch), bucket, ..LedgerQuery::default() };
            for entry in &listed {
                let bucket = entry.id.as_bytes()[0];
                let same: Vec<_> =
                    listed.iter().filter(|entry| entry.id.as_bytes()[0] == bucket).cloned().collect();
                prop_assert_eq!(buckets[usize::from(bucket)].count, same.len() as u64);
                prop_assert_eq!(read(query(Some(bucket))), same);
            }
            prop_assert_eq!(read(query(None)), listed);
        }
    }
}
