//! Packed table: a table in memory, in key order and bounded in bytes.
//!
//! The key space is divided into spans. Of a span, either all rows are in memory, packed, or the span is evicted and
//! the database has to be read. So a row is never reported absent because it did not fit.
//!
//! A write goes to a map of recent rows first, because each packing costs as much as a hundred writes to the map. Once the
//! map is full, some rows of one span after the other are packed, many with one packing if they are neighbours.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::packed_rows;
use super::packed_rows::{PackedRows, Packer, Packing};
use crate::cluster::Corrupt;
use crate::limits;

/// Overhead of a span beside its key and its rows: its slot in a B-tree node, which is half to two thirds full, and the
/// slot of that node in its parent.
const SPAN_BYTES: usize = 72;
/// Header of an `Arc`: its reference counts.
const SHARED_BYTES: usize = 16;
/// Overhead of a recent row: its slot in a B-tree node.
const RECENT_BYTES: usize = 48;
/// Maximum share of the recent rows in the memory of a table: one of eight parts.
const RECENT_DIVISOR: usize = 8;

/// Result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The row, or `None` if there is none.
    Cached(Option<Vec<u8>>),
    /// The span is evicted.
    Evicted,
}

#[derive(Clone)]
enum Span {
    /// All of its rows, at least one.
    Cached(PackedRows),
    /// Evicted: only the database has the rows.
    Evicted,
}

/// A recent row; `None` if it was removed.
type Recent = Option<Arc<[u8]>>;

/// Spans by their first key. There is no packed row before the first span.
#[derive(Default)]
struct Spans {
    by_first: BTreeMap<Box<[u8]>, Span>,
    bytes: usize,
    /// Rows that replace packed ones. Those of an evicted span do not count.
    recent: BTreeMap<Box<[u8]>, Recent>,
    recent_bytes: usize,
}

/// A table, or as much of it as fits. One thread writes, any number reads.
pub struct PackedTable {
    packing: Packing,
    bytes_max: usize,
    recent_bytes_max: usize,
    spans: RwLock<Spans>,
    writer: Mutex<Writer>,
}

/// State of the thread that writes.
#[derive(Default)]
struct Writer {
    packer: Packer,
    /// Key of the last recent row that was packed.
    packed_to: Box<[u8]>,
}

/// Recent rows of one span, and the span with its first key.
struct Unpacked {
    first: Box<[u8]>,
    span: Option<Span>,
    recent: Vec<(Box<[u8]>, Recent)>,
}

/// A span, or the beginning of one, at the time of a read.
pub struct RangeRead {
    packing: Packing,
    span: Option<Span>,
    recent: Vec<(Box<[u8]>, Recent)>,
    /// First key after it; `None` if there was none.
    pub end: Option<Box<[u8]>>,
}

impl PackedTable {
    /// An empty table of up to `bytes_max` bytes of memory.
    #[must_use]
    pub fn new(packing: Packing, bytes_max: usize) -> Self {
        let recent_bytes_max = limits::ROWS_UNPACKED_BYTES_MAX.min(bytes_max / RECENT_DIVISOR);
        let bytes_max = bytes_max - recent_bytes_max;
        Self { packing, bytes_max, recent_bytes_max, spans: RwLock::default(), writer: Mutex::default() }
    }

    pub fn get(&self, key: &[u8]) -> Result<Lookup, Corrupt> {
        let spans = self.spans.read();
        let packed = match (spans.covering(key), spans.recent.get(key)) {
            (Some((_, Span::Evicted)), _) => return Ok(Lookup::Evicted),
            (_, Some(recent)) => return Ok(Lookup::Cached(recent.as_deref().map(<[u8]>::to_vec))),
            (Some((_, Span::Cached(packed))), None) => packed.clone(),
            (None, None) => return Ok(Lookup::Cached(None)),
        };
        drop(spans);
        for row in packed_rows::rows(&packed.unpack(self.packing)?) {
            let (there, row) = row?;
            if there >= key {
                return Ok(Lookup::Cached((there == key).then(|| row.to_vec())));
            }
        }
        Ok(Lookup::Cached(None))
    }

    /// The span of `key` from there on, up to [`limits::ROWS_UNPACKED_PER_READ`] recent rows.
    #[must_use]
    pub fn reading(&self, key: &[u8]) -> RangeRead {
        let spans = self.spans.read();
        let span = spans.covering(key).map(|(_, span)| span.clone());
        let mut end = spans.after(key).map(|(first, _)| first);
        let mut recent = Vec::new();
        if !matches!(span, Some(Span::Evicted)) {
            let mut rows = spans.recent_between(key, end);
            recent.extend(
                rows.by_ref()
                    .take(limits::ROWS_UNPACKED_PER_READ)
                    .map(|(key, row)| (key.into(), row.clone())),
            );
            end = rows.next().map(|(key, _)| key).or(end);
        }
        RangeRead { packing: self.packing, span, recent, end: end.map(Box::from) }
    }

    pub fn put(&self, key: &[u8], row: &[u8]) -> Result<(), Corrupt> {
        self.change(key, Some(row))
    }

    pub fn remove(&self, key: &[u8]) -> Result<(), Corrupt> {
        self.change(key, None)
    }

    fn change(&self, key: &[u8], row: Option<&[u8]>) -> Result<(), Corrupt> {
        let mut writer = self.writer.lock();
        let mut spans = self.spans.write();
        match spans.covering(key) {
            Some((_, Span::Evicted)) => return Ok(()),
            None if row.is_none() => spans.forget(key),
            _ => spans.remember(key, row.map(Arc::from)),
        }
        let mut bytes = spans.recent_bytes;
        drop(spans);
        while bytes > self.recent_bytes_max {
            bytes = self.pack_recent(&mut writer)?;
        }
        Ok(())
    }

    /// Packs recent rows of one span: the next ones in key order. If they do not fit, the span is evicted. Returns the
    /// bytes of the recent rows that are left.
    fn pack_recent(&self, writer: &mut Writer) -> Result<usize, Corrupt> {
        let Some(Unpacked { first, span, recent }) = self.spans.read().unpacked_after(&writer.packed_to)
        else {
            return Ok(0);
        };
        // Rows of an evicted span are read from the database.
        let packed = match &span {
            Some(Span::Evicted) => None,
            Some(Span::Cached(packed)) => Some(packed.unpack(self.packing)?),
            None => Some(Cow::default()),
        };
        let mut new = Vec::new();
        if let Some(packed) = &packed {
            let rows = merged(packed, &recent)?;
            for part in packed_rows::parts(&rows, self.packing.full())? {
                let begins = if new.is_empty() { first.clone() } else { first_key(part)? };
                new.push((begins, Span::Cached(writer.packer.pack(self.packing, part)?)));
            }
        }
        let mut spans = self.spans.write();
        for (key, _) in &recent {
            spans.forget(key);
        }
        if packed.is_some() {
            spans.replace(first, new, self.bytes_max);
        }
        writer.packed_to = recent.into_iter().next_back().map(|(key, _)| key).unwrap_or_default();
        Ok(spans.recent_bytes)
    }

    /// Evicts everything.
    pub fn evict_all(&self) {
        let mut spans = self.spans.write();
        *spans = Spans::default();
        spans.evict(Box::default(), self.bytes_max);
    }

    /// Replaces the content.
    pub fn replace(&self, mut builder: TableBuilder) -> Result<(), Corrupt> {
        builder.pack()?;
        *self.spans.write() = builder.spans;
        Ok(())
    }

    /// A builder for a table of the same kind, fed in key order.
    #[must_use]
    pub fn builder(&self) -> TableBuilder {
        TableBuilder {
            packing: self.packing,
            bytes_max: self.bytes_max,
            spans: Spans::default(),
            packer: Packer::default(),
            first: Box::default(),
            rows: Vec::new(),
            is_full: false,
        }
    }
}

impl RangeRead {
    /// Visits the rows from `from` on, in order, until `visit` returns false. Returns the last result of `visit`, or true;
    /// `None` if the span is evicted.
    pub fn visit(
        &self,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<Option<bool>, Corrupt> {
        let unpacked = match &self.span {
            Some(Span::Cached(packed)) => packed.unpack(self.packing)?,
            Some(Span::Evicted) => return Ok(None),
            None => Cow::default(),
        };
        // A read may end within its span.
        let is_here = |key: &[u8]| key >= from && self.end.as_deref().is_none_or(|end| key < end);
        each_merged(&unpacked, &self.recent, &mut |key, row| !is_here(key) || visit(key, row)).map(Some)
    }
}

/// A table that is built in key order.
pub struct TableBuilder {
    packing: Packing,
    bytes_max: usize,
    spans: Spans,
    packer: Packer,
    first: Box<[u8]>,
    rows: Vec<u8>,
    is_full: bool,
}

impl TableBuilder {
    /// Appends a row after all others. Rows that do not fit are evicted.
    pub fn push(&mut self, key: &[u8], row: &[u8]) -> Result<(), Corrupt> {
        if self.is_full {
            return Ok(());
        }
        // Capacity for later writes.
        let full = self.packing.full() / 4 * 3;
        if !self.rows.is_empty() && self.rows.len() + key.len() + row.len() > full {
            self.pack()?;
            self.first = key.into();
        }
        packed_rows::frame(&mut self.rows, key, row);
        Ok(())
    }

    fn pack(&mut self) -> Result<(), Corrupt> {
        if self.is_full || self.rows.is_empty() {
            return Ok(());
        }
        let first = std::mem::take(&mut self.first);
        let span = Span::Cached(self.packer.pack(self.packing, &self.rows)?);
        self.rows.clear();
        if self.spans.bytes + bytes_of(&first, &span) <= self.bytes_max {
            self.spans.insert(first, span);
        } else {
            self.spans.evict(first, self.bytes_max);
            self.is_full = true;
        }
        Ok(())
    }
}

impl Spans {
    fn remember(&mut self, key: &[u8], row: Recent) {
        self.forget(key);
        self.recent_bytes += recent_bytes_of(key, &row);
        self.recent.insert(key.into(), row);
    }

    fn forget(&mut self, key: &[u8]) {
        if let Some((key, row)) = self.recent.remove_entry(key) {
            self.recent_bytes -= recent_bytes_of(&key, &row);
        }
    }

    fn recent_between<'s>(
        &'s self,
        from: &[u8],
        end: Option<&[u8]>,
    ) -> impl Iterator<Item = (&'s [u8], &'s Recent)> {
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        self.recent.range::<[u8], _>((Bound::Included(from), end)).map(|(key, row)| (&**key, row))
    }

    /// The first recent rows after a key, up to [`limits::ROWS_PACKED_AT_ONCE`] of one span. After the last key it begins anew.
    fn unpacked_after(&self, after: &[u8]) -> Option<Unpacked> {
        let mut following = self.recent.range::<[u8], _>((Bound::Excluded(after), Bound::Unbounded));
        let (key, _) = following.next().or_else(|| self.recent.first_key_value())?;
        let (first, span) = match self.covering(key) {
            Some((first, span)) => (first.into(), Some(span.clone())),
            None => (Box::default(), None),
        };
        let end = self.after(key).map(|(first, _)| first);
        let recent = self.recent_between(key, end).take(limits::ROWS_PACKED_AT_ONCE);
        Some(Unpacked { first, span, recent: recent.map(|(key, row)| (key.into(), row.clone())).collect() })
    }

    /// Replaces a span. If the new ones do not fit, it is evicted.
    fn replace(&mut self, first: Box<[u8]>, new: Vec<(Box<[u8]>, Span)>, bytes_max: usize) {
        self.remove(&first);
        let bytes: usize = new.iter().map(|(first, span)| bytes_of(first, span)).sum();
        if new.is_empty() {
            self.join(&first);
        } else if self.bytes + bytes <= bytes_max {
            for (first, span) in new {
                self.insert(first, span);
            }
        } else {
            self.evict(first, bytes_max);
        }
    }

    fn covering(&self, key: &[u8]) -> Option<(&[u8], &Span)> {
        let (first, span) =
            self.by_first.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()?;
        Some((first, span))
    }

    fn after(&self, key: &[u8]) -> Option<(&[u8], &Span)> {
        let (first, span) =
            self.by_first.range::<[u8], _>((Bound::Excluded(key), Bound::Unbounded)).next()?;
        Some((first, span))
    }

    fn insert(&mut self, first: Box<[u8]>, span: Span) {
        self.bytes += bytes_of(&first, &span);
        self.by_first.insert(first, span);
    }

    /// Removes a span. Its keys then belong to the span before it, or have no rows.
    fn remove(&mut self, first: &[u8]) {
        if let Some((first, span)) = self.by_first.remove_entry(first) {
            self.bytes -= bytes_of(&first, &span);
        }
    }

    /// Joins two evicted spans that are adjacent at `key`.
    fn join(&mut self, key: &[u8]) {
        if matches!(self.covering(key), Some((_, Span::Evicted)))
            && let Some((next, Span::Evicted)) = self.after(key)
        {
            let next = Box::<[u8]>::from(next);
            self.remove(&next);
        }
    }

    /// Evicts the span that begins with `first`, joined with adjacent evicted ones; evicts further spans if even that does
    /// not fit.
    fn evict(&mut self, first: Box<[u8]>, bytes_max: usize) {
        let first = match self.covering(&first) {
            Some((before, Span::Evicted)) => before.into(),
            _ => first,
        };
        self.remove(&first);
        self.insert(first.clone(), Span::Evicted);
        while let Some((next, span)) = self.after(&first)
            && (matches!(span, Span::Evicted) || self.bytes > bytes_max)
        {
            let next = Box::<[u8]>::from(next);
            self.remove(&next);
        }
        if self.bytes > bytes_max {
            self.remove(&first);
            if let Some((before, _)) = self.covering(&first) {
                let before = before.into();
                return self.evict(before, bytes_max);
            }
            // Even without capacity, the rows must not be reported absent.
            self.insert(first, Span::Evicted);
        }
    }
}

/// The rows with changes, both in key order.
fn merged(rows: &[u8], changes: &[(Box<[u8]>, Recent)]) -> Result<Vec<u8>, Corrupt> {
    let added: usize =
        changes.iter().map(|(key, row)| key.len() + row.as_ref().map_or(0, |row| row.len()) + 20).sum();
    let mut new = Vec::with_capacity(rows.len() + added);
    each_merged(rows, changes, &mut |key, row| {
        packed_rows::frame(&mut new, key, row);
        true
    })?;
    Ok(new)
}

/// Visits the rows with changes in key order, until `visit` returns false. Returns its last result, or true.
fn each_merged(
    rows: &[u8],
    changes: &[(Box<[u8]>, Recent)],
    visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Result<bool, Corrupt> {
    let mut changes = changes.iter().peekable();
    for row in packed_rows::rows(rows) {
        let (key, row) = row?;
        while let Some((changed, new)) = changes.next_if(|(changed, _)| **changed < *key) {
            if new.as_ref().is_some_and(|new| !visit(changed, new)) {
                return Ok(false);
            }
        }
        let continues = match changes.next_if(|(changed, _)| **changed == *key) {
            Some((_, new)) => new.as_ref().is_none_or(|new| visit(key, new)),
            None => visit(key, row),
        };
        if !continues {
            return Ok(false);
        }
    }
    Ok(changes.all(|(key, new)| new.as_ref().is_none_or(|new| visit(key, new))))
}

fn first_key(rows: &[u8]) -> Result<Box<[u8]>, Corrupt> {
    match packed_rows::rows(rows).next() {
        Some(row) => Ok(row?.0.into()),
        None => Err(Corrupt::row("packed rows in memory are empty")),
    }
}

/// Memory used by a span, in bytes.
fn bytes_of(first: &[u8], span: &Span) -> usize {
    let packed = match span {
        Span::Cached(packed) => allocated(packed.bytes() + SHARED_BYTES),
        Span::Evicted => 0,
    };
    SPAN_BYTES + allocated(first.len()) + packed
}

/// Memory used by a recent row, in bytes.
fn recent_bytes_of(key: &[u8], row: &Recent) -> usize {
    RECENT_BYTES + allocated(key.len()) + row.as_ref().map_or(0, |row| allocated(row.len() + SHARED_BYTES))
}

/// Size class of an allocation: jemalloc has four between powers of two.
fn allocated(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        1..=128 => bytes.next_multiple_of(16),
        _ => bytes.next_multiple_of(1 << ((bytes - 1).ilog2() - 2)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Incompressible bytes, different for each seed.
    pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        };
        (0..bytes).map(|_| next()).collect()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put(Vec<u8>, Vec<u8>),
        Remove(Vec<u8>),
        PackAll,
        /// As at start, or when a snapshot is installed.
        Rebuild,
    }

    fn keys() -> impl Strategy<Value = Vec<u8>> {
        // Few enough to collide, and some that are prefixes of others.
        (0u8..40, 0usize..3).prop_map(|(letter, length)| [&b"id"[..length], &[letter]].concat())
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let put = (keys(), any::<u64>(), 0usize..1500)
            .prop_map(|(key, seed, length)| Step::Put(key, noise(seed, length)));
        let step = prop_oneof![8 => put, 3 => keys().prop_map(Step::Remove), 1 => Just(Step::PackAll), 1 => Just(Step::Rebuild)];
        vec(step, 0..150)
    }

    fn filled(like: &PackedTable, model: &BTreeMap<Vec<u8>, Vec<u8>>) -> TableBuilder {
        let mut builder = like.builder();
        for (key, row) in model {
            builder.push(key, row).expect("packs");
        }
        builder
    }

    impl PackedTable {
        /// The rows in memory, and whether they are complete.
        fn rows(&self) -> (BTreeMap<Vec<u8>, Vec<u8>>, bool) {
            let (mut rows, mut is_all) = (BTreeMap::<Vec<u8>, Vec<u8>>::new(), true);
            let mut from = Some(Box::<[u8]>::default());
            while let Some(begin) = from {
                let reading = self.reading(&begin);
                let visited = reading.visit(&begin, &mut |key, row| {
                    assert!(rows.last_key_value().is_none_or(|(last, _)| &last[..] < key), "in order");
                    assert!(reading.end.as_deref().is_none_or(|end| key < end), "in its span");
                    rows.insert(key.to_vec(), row.to_vec());
                    true
                });
                is_all &= visited.expect("reads").is_some();
                from = reading.end;
            }
            (rows, is_all)
        }

        fn spans(&self) -> usize {
            self.spans.read().by_first.len()
        }

        /// Memory in use, in bytes.
        fn bytes(&self) -> usize {
            let spans = self.spans.read();
            spans.bytes + spans.recent_bytes
        }

        /// Packs every recent row.
        fn pack_all(&self) -> Result<(), Corrupt> {
            let mut writer = self.writer.lock();
            while self.pack_recent(&mut writer)? > 0 {}
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn table_agrees_with_a_map_for_any_writes_and_capacity(
            steps in steps(),
            bytes_max in prop_oneof![Just(200usize), Just(8_000), Just(40_000), Just(usize::MAX / 2)],
            packing in prop_oneof![Just(Packing::Plain), Just(Packing::Compressed)],
        ) {
            let table = PackedTable::new(packing, bytes_max);
            let mut model = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Put(key, row) => {
                        table.put(&key, &row).expect("puts");
                        model.insert(key, row);
                    }
                    Step::Remove(key) => {
                        table.remove(&key).expect("removes");
                        model.remove(&key);
                    }
                    Step::PackAll => table.pack_all().expect("packs"),
                    Step::Rebuild => table.replace(filled(&table, &model)).expect("fills"),
                }
                let (rows, is_all) = table.rows();
                prop_assert!(is_all || bytes_max < usize::MAX / 2);
                let is_right = rows.iter().all(|(key, row)| model.get(key) == Some(row));
                prop_assert!(is_right && (!is_all || rows.len() == model.len()));
                for letter in 0..40 {
                    for key in [vec![letter], vec![b'i', letter], vec![b'i', b'd', letter]] {
                        let found = table.get(&key).expect("reads");
                        prop_assert!(found == Lookup::Cached(model.get(&key).cloned()) || (found == Lookup::Evicted && !is_all));
                        prop_assert!(found == Lookup::Evicted || rows.get(&key) == model.get(&key));
                    }
                }
                let spans = table.spans.read();
                let bytes: usize = spans.by_first.iter().map(|(first, span)| bytes_of(first, span)).sum();
                let recent: usize = spans.recent.iter().map(|(key, row)| recent_bytes_of(key, row)).sum();
                prop_assert!((spans.bytes, spans.recent_bytes) == (bytes, recent) && bytes + recent <= bytes_max, "{} {}", spans.bytes, bytes);
                let are_apart = |pair: &[&Span]| !matches!(pair, [Span::Evicted, Span::Evicted]);
                prop_assert!(spans.by_first.values().collect::<Vec<_>>().windows(2).all(are_apart));
            }
        }
    }

    #[test]
    fn rows_over_the_capacity_are_evicted_and_never_absent() {
        for is_filled_in_order in [true, false] {
            let table = PackedTable::new(Packing::Compressed, 64 * 1024);
            let model: BTreeMap<Vec<u8>, Vec<u8>> =
                (0..400u64).map(|number| (noise(number, 16), noise(number, 600))).collect();
            if is_filled_in_order {
                table.replace(filled(&table, &model)).expect("fills");
            } else {
                model.iter().rev().for_each(|(key, row)| table.put(key, row).expect("puts"));
            }
            let found: Vec<Lookup> = model.keys().map(|key| table.get(key).expect("reads")).collect();
            let here = found.iter().filter(|found| **found != Lookup::Evicted).count();
            assert!((50..110).contains(&here), "{here}");
            for ((_, row), found) in model.iter().zip(found) {
                assert!(found == Lookup::Evicted || found == Lookup::Cached(Some(row.clone())));
            }
            assert!(table.bytes() <= 64 * 1024 && table.bytes() > 40 * 1024, "{}", table.bytes());
        }
    }

    #[test]
    fn row_over_the_capacity_is_evicted_and_others_stay() {
        let table = PackedTable::new(Packing::Plain, 16 * 1024);
        (0..100u8).for_each(|key| table.put(&[key], &[key; 40]).expect("puts"));
        table.put(&[50, 1], &noise(1, 16 * 1024)).expect("puts");
        assert_eq!(table.get(&[50, 1]).expect("reads"), Lookup::Evicted);
        for far in [0, 99] {
            assert_eq!(table.get(&[far]).expect("reads"), Lookup::Cached(Some(vec![far; 40])));
        }
    }

    #[test]
    fn removed_rows_use_no_memory() {
        let table = PackedTable::new(Packing::Compressed, usize::MAX / 2);
        let keys: Vec<Vec<u8>> = (0..500u64).map(|number| noise(number, 9)).collect();
        for key in &keys {
            table.put(key, &key.repeat(30)).expect("puts");
        }
        table.pack_all().expect("packs");
        assert!(table.spans() > 10 && table.bytes() > 10_000);
        for key in &keys {
            table.remove(key).expect("removes");
        }
        table.pack_all().expect("packs");
        assert_eq!((table.spans(), table.bytes()), (0, 0));
        assert_eq!(table.get(&keys[0]).expect("reads"), Lookup::Cached(None));
        table.put(&keys[0], b"again").expect("puts");
        assert_eq!(table.get(&keys[0]).expect("reads"), Lookup::Cached(Some(b"again".to_vec())));
    }

    #[test]
    fn corrupt_rows_fail_reads_and_writes() {
        let table = PackedTable::new(Packing::Compressed, usize::MAX / 2);
        table.put(b"a", &b"row".repeat(99)).expect("puts");
        table.pack_all().expect("packs");
        let mut spans = table.spans.write();
        for span in spans.by_first.values_mut() {
            if let Span::Cached(packed) = span {
                *packed = packed.corrupt(100);
            }
        }
        drop(spans);
        assert!(table.get(b"a").is_err() && table.get(b"b").is_err());
        assert!(table.reading(b"").visit(b"", &mut |_, _| true).is_err());
        table.put(b"b", b"row").expect("it is not packed yet");
        assert!(table.pack_all().is_err());
        table.evict_all();
        assert_eq!(table.get(b"a").expect("reads"), Lookup::Evicted);
    }

    #[test]
    fn bytes_are_counted_by_size_class() {
        for (bytes, given) in [(1, 16), (16, 16), (17, 32), (128, 128), (129, 160), (160, 160), (161, 192)] {
            assert_eq!(allocated(bytes), given, "{bytes}");
        }
        for (bytes, given) in
            [(256, 256), (257, 320), (1025, 1280), (2048, 2048), (2049, 2560), (70_000, 81_920)]
        {
            assert_eq!(allocated(bytes), given, "{bytes}");
        }
    }
}
