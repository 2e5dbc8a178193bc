//! Row cache: hot tables in memory that exceed the database's cache: tools, and heads of their hash chains. Fed by
//! applied entries, rebuilt at start.
//!
//! Callers write these rows, so the bound is in bytes, not in rows. Rows that do not fit are read from the database.

use super::packed_rows::Packing;
use super::packed_table::{Lookup, PackedTable};
use super::{AUDIT_HEAD, TOOL, try_scan};
use crate::cluster::{Corrupt, View, Write};
use crate::limits;

/// Tables in memory, as far as they fit.
pub struct RowCache {
    tools: PackedTable,
    audit_heads: PackedTable,
}

impl Default for RowCache {
    fn default() -> Self {
        Self {
            tools: PackedTable::new(Packing::Compressed, limits::TOOLS_PACKED_BYTES_MAX),
            // Hashes have nothing in common.
            audit_heads: PackedTable::new(Packing::Plain, limits::AUDIT_HEADS_PACKED_BYTES_MAX),
        }
    }
}

impl RowCache {
    fn packed(&self, table: &str) -> Option<&PackedTable> {
        match table {
            TOOL => Some(&self.tools),
            AUDIT_HEAD => Some(&self.audit_heads),
            _ => None,
        }
    }

    /// Updates the tables with a write.
    pub fn project(&self, write: &Write) -> Result<(), Corrupt> {
        match write {
            Write::Put { table, key, value } => {
                self.packed(table).map_or(Ok(()), |packed| packed.put(key, value))
            }
            Write::Delete { table, key } => self.packed(table).map_or(Ok(()), |packed| packed.remove(key)),
            Write::DeleteRange { table, .. } => {
                if let Some(packed) = self.packed(table) {
                    packed.evict_all();
                }
                Ok(())
            }
        }
    }

    /// Rebuilds the tables. Every row is read, also of spans that do not fit.
    pub fn rebuild(&self, view: &dyn View) -> Result<(), Corrupt> {
        for (table, packed) in [(TOOL, &self.tools), (AUDIT_HEAD, &self.audit_heads)] {
            // The old and the new table do not both fit.
            packed.evict_all();
            let mut builder = packed.builder();
            try_scan(view, table, &[], |key, row| builder.push(key, row).map(|()| true))?;
            packed.replace(builder)?;
        }
        Ok(())
    }

    /// A view that reads from memory where possible, and otherwise from `below`.
    #[must_use]
    pub fn over<'r>(&'r self, below: &'r dyn View) -> CachedView<'r> {
        CachedView { cache: self, below }
    }
}

/// View of [`RowCache::over`].
pub struct CachedView<'r> {
    cache: &'r RowCache,
    below: &'r dyn View,
}

impl View for CachedView<'_> {
    fn get(&self, table: &str, key: &[u8]) -> Result<Option<Vec<u8>>, Corrupt> {
        let found = self.cache.packed(table).map_or(Ok(Lookup::Evicted), |packed| packed.get(key))?;
        match found {
            Lookup::Cached(row) => Ok(row),
            Lookup::Evicted => self.below.get(table, key),
        }
    }

    fn scan_between(
        &self,
        table: &str,
        (from, to): (&[u8], &[u8]),
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Corrupt> {
        match self.cache.packed(table) {
            Some(_) => self.scan(table, from, &mut |key, row| key < to && visit(key, row)),
            None => self.below.scan_between(table, (from, to), visit),
        }
    }

    fn scan(
        &self,
        table: &str,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Corrupt> {
        let Some(packed) = self.cache.packed(table) else { return self.below.scan(table, from, visit) };
        let mut from = Box::<[u8]>::from(from);
        loop {
            let reading = packed.reading(&from);
            let end = reading.end.as_deref();
            let continues = if let Some(continues) = reading.visit(&from, visit)? {
                continues
            } else {
                let mut continues = true;
                self.below.scan(table, &from, &mut |key, row| {
                    if end.is_some_and(|end| key >= end) {
                        return false;
                    }
                    continues = visit(key, row);
                    continues
                })?;
                continues
            };
            match reading.end {
                Some(end) if continues => from = end,
                _ => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::clock::Timestamp;
    use crate::cluster::Machine as _;
    use crate::state::Replicated;
    use crate::state::command::{Command, DeregisterTool, PutTool, Tool};
    use crate::state::tables::META;
    use crate::state::testing::{Rows, StateHarness};

    const START: Timestamp = Timestamp::from_secs(1_800_000_000);

    impl RowCache {
        fn of_bytes(bytes: usize) -> Self {
            Self {
                tools: PackedTable::new(Packing::Compressed, bytes),
                audit_heads: PackedTable::new(Packing::Plain, bytes),
            }
        }
    }

    /// A database that fails on any read.
    struct FailingView;

    impl View for FailingView {
        fn get(&self, table: &str, _: &[u8]) -> Result<Option<Vec<u8>>, Corrupt> {
            Err(Corrupt::row(format_args!("{table} was read")))
        }

        fn scan(
            &self,
            table: &str,
            _: &[u8],
            _: &mut dyn FnMut(&[u8], &[u8]) -> bool,
        ) -> Result<(), Corrupt> {
            Err(Corrupt::row(format_args!("{table} was read")))
        }
    }

    /// At most `limit` rows from `from` on.
    fn scanned(view: &dyn View, table: &str, from: &[u8], limit: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut rows = Vec::new();
        view.scan(table, from, &mut |key, row| {
            rows.push((key.to_vec(), row.to_vec()));
            rows.len() < limit
        })
        .expect("scans");
        rows
    }

    fn put(tool_id: &str, description: String) -> Command {
        let tool = Tool {
            tool_id: tool_id.to_owned(),
            protocols: vec!["mcp".to_owned()],
            description: Some(description),
            ..Tool::default()
        };
        Command::PutTool(PutTool {
            tool: Some(tool),
            caller: "alice".to_owned(),
            replaces: true,
            ..PutTool::default()
        })
    }

    fn deregister(tool_id: &str) -> Command {
        Command::DeregisterTool(DeregisterTool {
            tool_id: tool_id.to_owned(),
            caller: "alice".to_owned(),
            ..DeregisterTool::default()
        })
    }

    #[derive(Clone, Debug)]
    enum Step {
        Apply(Vec<(String, Option<usize>)>),
        /// A new process on the same rows.
        Restart,
        /// Installation of a snapshot with these tools.
        Install(Vec<(String, usize)>),
    }

    fn ids() -> impl Strategy<Value = String> {
        prop_oneof!["[ab]{1,4}", "tool-[a-f]{2}", "[a-z.]{1,8}"]
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let batch = vec((ids(), proptest::option::weighted(0.75, 0usize..2000)), 1..12);
        let install = vec((ids(), 0usize..2000), 0..40);
        vec(
            prop_oneof![9 => batch.prop_map(Step::Apply), 1 => Just(Step::Restart), 1 => install.prop_map(Step::Install)],
            1..25,
        )
    }

    fn text(length: usize) -> String {
        (0..length).map(|at| char::from(b'a' + u8::try_from(at * at * 7 % 23).unwrap_or(0))).collect()
    }

    /// Changes of the tools by one entry.
    fn changes(before: &Rows, after: &Rows) -> Vec<Write> {
        let tools =
            |rows: &Rows| scanned(rows, TOOL, b"", usize::MAX).into_iter().collect::<BTreeMap<_, _>>();
        let (before, after) = (tools(before), tools(after));
        let deleted = before.keys().filter(|key| !after.contains_key(*key));
        let deleted = deleted.map(|key| Write::Delete { table: TOOL, key: key.clone() });
        let put = after.iter().filter(|(key, row)| before.get(*key) != Some(*row));
        let put = put.map(|(key, row)| Write::Put { table: TOOL, key: key.clone(), value: row.clone() });
        deleted.chain(put).collect()
    }

    proptest! {
        #[test]
        fn cache_equals_the_database_after_any_steps(
            steps in steps(),
            absent in vec(ids(), 9),
        ) {
            let mut harness = StateHarness::default();
            let small = RowCache::of_bytes(2000);
            for step in steps {
                match step {
                    Step::Apply(batch) => {
                        let command = |(id, length): (String, Option<usize>)| match length {
                            Some(length) => put(&id, text(length)),
                            None => deregister(&id),
                        };
                        let before = Rows(harness.rows.0.clone());
                        harness.apply(START, batch.into_iter().map(command).collect());
                        for write in changes(&before, &harness.rows) {
                            small.project(&write).expect("projects");
                        }
                    }
                    Step::Restart => {
                        harness.machine = Replicated::default();
                        harness.machine.rebuild(&harness.rows).expect("rebuilds");
                    }
                    Step::Install(tools) => {
                        let mut other = StateHarness::default();
                        other.apply(START, tools.iter().map(|(id, length)| put(id, text(*length))).collect());
                        harness.rows = other.rows;
                        harness.machine.rebuild(&harness.rows).expect("rebuilds");
                        small.rebuild(&harness.rows).expect("rebuilds");
                    }
                }
                let all = scanned(&harness.rows, TOOL, b"", usize::MAX);
                prop_assert_eq!(&scanned(&harness.machine.row_cache().over(&FailingView), TOOL, b"", usize::MAX), &all);
                for view in [harness.machine.row_cache().over(&harness.rows), small.over(&harness.rows)] {
                    prop_assert_eq!(&scanned(&view, TOOL, b"", usize::MAX), &all);
                    for (key, row) in &all {
                        prop_assert_eq!(view.get(TOOL, key).expect("reads"), Some(row.clone()));
                    }
                    for id in &absent {
                        let key = id.as_bytes();
                        prop_assert_eq!(view.get(TOOL, key).expect("reads"), harness.rows.get(TOOL, key).expect("reads"));
                        for limit in [1, 3] {
                            prop_assert_eq!(scanned(&view, TOOL, key, limit), scanned(&harness.rows, TOOL, key, limit));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn cached_tables_are_not_read_from_the_database() {
        let mut harness = StateHarness::default();
        harness.apply(START, vec![put("a", text(9)), put("b", text(9)), deregister("a")]);
        let head = Write::Put { table: AUDIT_HEAD, key: vec![1; 24], value: vec![2; 32] };
        harness.machine.project(&[head], 2).expect("projects");
        let view = harness.machine.row_cache().over(&FailingView);
        assert!(view.get(TOOL, b"b").expect("reads").is_some());
        assert_eq!(view.get(TOOL, b"a").expect("reads"), None);
        assert_eq!(view.get(AUDIT_HEAD, &[1; 24]).expect("reads"), Some(vec![2; 32]));
        assert_eq!(view.get(AUDIT_HEAD, &[2; 24]).expect("reads"), None);
        assert!(view.get(META, b"time").is_err() && scanned(&harness.rows, META, b"", 1).len() == 1);
    }

    #[test]
    fn deleted_range_is_read_from_the_database() {
        let cache = RowCache::default();
        cache.project(&Write::Put { table: TOOL, key: vec![1], value: vec![1] }).expect("projects");
        let range = Write::DeleteRange { table: TOOL, from: vec![0], to: vec![9] };
        cache.project(&range).expect("projects");
        assert_eq!(cache.over(&Rows::default()).get(TOOL, &[1]).expect("reads"), None);
    }

    #[test]
    fn rebuild_finds_corrupt_rows_beyond_the_capacity() {
        struct CorruptView;
        impl View for CorruptView {
            fn get(&self, _: &str, _: &[u8]) -> Result<Option<Vec<u8>>, Corrupt> {
                Ok(None)
            }
            fn scan(
                &self,
                _: &str,
                _: &[u8],
                visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
            ) -> Result<(), Corrupt> {
                let continues = (0..200u8).all(|key| visit(&[key], &[key; 500]));
                if continues { Err(Corrupt::row("the last row is corrupt")) } else { Ok(()) }
            }
        }
        assert!(RowCache::of_bytes(1000).rebuild(&CorruptView).is_err());
    }
}
