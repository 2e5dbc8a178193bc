//! The parts of a large import.

use crate::limits;
use crate::state::command::ImportLedger;

/// Splits an import into parts of at most [`limits::FEDERATED_ENTRIES_PER_IMPORT_MAX`] entries. Each is imported after the
/// one before it, and names the generation of the copy then: the first part may have begun a new one.
#[must_use]
pub fn import_parts(import: ImportLedger) -> Vec<ImportLedger> {
    parts_of(import, limits::FEDERATED_ENTRIES_PER_IMPORT_MAX)
}

pub(super) fn parts_of(mut import: ImportLedger, most: usize) -> Vec<ImportLedger> {
    let mut entries = std::mem::take(&mut import.entries);
    let mut parts = Vec::new();
    while entries.len() > most.max(1) {
        let rest = entries.split_off(most.max(1));
        // The entries of the next log index may be incomplete.
        let through = rest[0].n.saturating_sub(1);
        parts.push(ImportLedger {
            entries,
            through,
            is_whole: false,
            root: bytes::Bytes::new(),
            keys: None,
            ..import.clone()
        });
        (import.from, import.is_reset) = (through, false);
        entries = rest;
    }
    parts.push(ImportLedger { entries, ..import });
    parts
}
