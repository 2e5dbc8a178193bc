//! Decoded rows of tools that are read often: to unpack and decode one costs a tenth of a verification.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use moka::sync::Cache;
use prost::Message as _;

use crate::cluster::Corrupt;
use crate::limits;
use crate::state::command::{Tool, ToolRow};

/// Memory of an entry, beside its key and its decoded row.
const ENTRY_BYTES: usize = 512;
/// Memory of an entry of a list in a decoded row, beside its text.
const LIST_ENTRY_BYTES: usize = 48;

/// Decoded rows, bounded by [`limits::TOOL_CACHE_BYTES_MAX`].
pub struct ToolCache {
    rows: Cache<Arc<[u8]>, Arc<ToolRow>>,
    /// Number of changes of the table. Locked while a row is added or removed.
    changes: Mutex<u64>,
}

impl Default for ToolCache {
    fn default() -> Self {
        let bytes = |key: &Arc<[u8]>, row: &Arc<ToolRow>| {
            u32::try_from(ENTRY_BYTES + key.len() + decoded_bytes(row)).unwrap_or(u32::MAX)
        };
        let rows = Cache::builder().max_capacity(limits::TOOL_CACHE_BYTES_MAX).weigher(bytes).build();
        Self { rows, changes: Mutex::default() }
    }
}

impl ToolCache {
    /// The row of a tool, from memory or from `read`.
    pub fn get(
        &self,
        key: &[u8],
        read: impl FnOnce() -> Result<Option<ToolRow>, Corrupt>,
    ) -> Result<Option<Arc<ToolRow>>, Corrupt> {
        if let Some(row) = self.rows.get(key) {
            return Ok(Some(row));
        }
        let before = *self.changes();
        let row = read()?.map(Arc::new);
        if let Some(row) = &row {
            // A row that may have been read before a change is not retained.
            let changes = self.changes();
            if *changes == before {
                self.rows.insert(key.into(), Arc::clone(row));
            }
        }
        Ok(row)
    }

    /// Forgets the row of a tool that has changed.
    pub fn changed(&self, key: &[u8]) {
        let mut changes = self.changes();
        *changes += 1;
        self.rows.invalidate(key);
    }

    /// Forgets all rows.
    pub fn clear(&self) {
        let mut changes = self.changes();
        *changes += 1;
        // One by one: `invalidate_all` compares times of the clock.
        for (key, _) in &self.rows {
            self.rows.invalidate(&**key);
        }
    }

    fn changes(&self) -> MutexGuard<'_, u64> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Estimated memory of a decoded row.
fn decoded_bytes(row: &ToolRow) -> usize {
    let entries = row.tool.as_ref().map_or(0, |tool| {
        let Tool { required_capabilities, allowed_operations, allowed_targets, protocols, .. } = tool;
        required_capabilities.len() + allowed_operations.len() + allowed_targets.len() + protocols.len()
    });
    row.encoded_len() + LIST_ENTRY_BYTES * entries
}

impl std::fmt::Debug for ToolCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToolCache").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"tool";

    fn row(registrar: &str) -> ToolRow {
        ToolRow { registered_by: registrar.to_owned(), ..ToolRow::default() }
    }

    fn registrar(cache: &ToolCache, stored: Option<&str>) -> Option<String> {
        let found = cache.get(KEY, || Ok(stored.map(row))).expect("a row");
        found.map(|row| row.registered_by.clone())
    }

    #[test]
    fn row_is_read_once_until_it_changes() {
        let cache = ToolCache::default();
        assert_eq!(registrar(&cache, None), None);
        assert_eq!(registrar(&cache, Some("a")).as_deref(), Some("a"), "absence is not retained");
        assert_eq!(registrar(&cache, Some("b")).as_deref(), Some("a"));
        cache.changed(b"other");
        assert_eq!(registrar(&cache, Some("b")).as_deref(), Some("a"));
        cache.changed(KEY);
        assert_eq!(registrar(&cache, Some("b")).as_deref(), Some("b"));
        cache.clear();
        assert_eq!(registrar(&cache, None), None);
    }

    #[test]
    fn row_read_before_a_change_is_not_retained() {
        for change in [|cache: &ToolCache| cache.changed(KEY), ToolCache::clear] {
            let cache = ToolCache::default();
            let read = || {
                change(&cache);
                Ok(Some(row("before")))
            };
            assert!(cache.get(KEY, read).expect("a row").is_some());
            assert_eq!(registrar(&cache, Some("after")).as_deref(), Some("after"));
        }
    }

    #[test]
    fn memory_is_bounded() {
        let cache = ToolCache::default();
        let large = "x".repeat(64 * 1024);
        for number in 0..1_000_u32 {
            let read = || Ok(Some(row(&large)));
            cache.get(&number.to_be_bytes(), read).expect("a row");
        }
        cache.rows.run_pending_tasks();
        assert!(cache.rows.weighted_size() <= limits::TOOL_CACHE_BYTES_MAX);
        assert!(cache.rows.entry_count() > 0);
    }
}
