//! Quota counters: tools, agents and streams per caller, so that no caller fills the cluster alone.
//!
//! One small row per owner with a count above zero.

use super::{OWNED, Tables, eight_bytes};
use crate::cluster::Corrupt;
use crate::token::lineage::canonical_name;

/// Kind of the counted rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Tools that the caller registered.
    Tools,
    /// Agents that the caller issued.
    Agents,
    /// Streams that the caller created.
    Streams,
    /// Subjects of a trust domain, without agents, that have encryption keys.
    KeySubjects,
}

impl Quota {
    /// The count of `caller`; anonymous callers, with an empty name, share one.
    pub fn of(self, tables: &Tables<'_>, caller: &str) -> Result<u64, Corrupt> {
        let row = tables.row(OWNED, &self.key(caller))?;
        row.map_or(Ok(0), |row| eight_bytes(OWNED.as_bytes(), row))
    }

    /// Increments the count.
    pub fn add(self, tables: &mut Tables<'_>, caller: &str) -> Result<(), Corrupt> {
        let count = self.of(tables, caller)?.saturating_add(1);
        tables.put(OWNED, &self.key(caller), count.to_be_bytes().to_vec());
        Ok(())
    }

    /// Decrements the count.
    pub fn remove(self, tables: &mut Tables<'_>, caller: &str) -> Result<(), Corrupt> {
        match self.of(tables, caller)? {
            0 => {}
            1 => tables.delete(OWNED, &self.key(caller)),
            count => tables.put(OWNED, &self.key(caller), (count - 1).to_be_bytes().to_vec()),
        }
        Ok(())
    }

    /// Deletes the counts of all owners.
    pub fn delete_all(self, tables: &mut Tables<'_>) {
        let end = |end| [self.name(), &[end]].concat();
        tables.delete_range(OWNED, end(0), end(1));
    }

    /// Key of the row of `caller`, by its canonical name.
    #[must_use]
    pub fn key(self, caller: &str) -> Vec<u8> {
        [self.name(), &[0], canonical_name(caller).as_bytes()].concat()
    }

    const fn name(self) -> &'static [u8] {
        match self {
            Self::Tools => b"tools",
            Self::Agents => b"agents",
            Self::Streams => b"streams",
            Self::KeySubjects => b"key_subjects",
        }
    }
}
