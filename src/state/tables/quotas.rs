//! How many tools, agents and streams each caller has in the cluster, so that none of them fills it alone.
//!
//! One small row per caller that has any; a row of none is not there.

use super::{OWNED, Tables, eight_bytes};
use crate::cluster::Corrupt;
use crate::token::lineage::canonical_name;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owned {
    /// Tools that the caller registered.
    Tools,
    /// Agents that the caller had issued.
    Agents,
    /// Streams that the caller created.
    Streams,
    /// Of a trust domain: subjects, agents of ours left out, that have encryption keys.
    KeySubjects,
}

impl Owned {
    /// How many there are of `caller`; empty for nobody, whose are counted alike.
    ///
    /// # Errors
    /// [`Corrupt`] if the row is not what was written.
    pub fn of(self, tables: &Tables<'_>, caller: &str) -> Result<u64, Corrupt> {
        let row = tables.row(OWNED, &self.key(caller))?;
        row.map_or(Ok(0), |row| eight_bytes(OWNED.as_bytes(), row))
    }

    /// One more.
    ///
    /// # Errors
    /// [`Corrupt`] if the row is not what was written.
    pub fn add(self, tables: &mut Tables<'_>, caller: &str) -> Result<(), Corrupt> {
        let count = self.of(tables, caller)?.saturating_add(1);
        tables.put(OWNED, &self.key(caller), count.to_be_bytes().to_vec());
        Ok(())
    }

    /// One less.
    ///
    /// # Errors
    /// [`Corrupt`] if the row is not what was written.
    pub fn remove(self, tables: &mut Tables<'_>, caller: &str) -> Result<(), Corrupt> {
        match self.of(tables, caller)? {
            0 => {}
            1 => tables.delete(OWNED, &self.key(caller)),
            count => tables.put(OWNED, &self.key(caller), (count - 1).to_be_bytes().to_vec()),
        }
        Ok(())
    }

    /// The row of `caller`, under whichever of its names.
    #[must_use]
    pub fn key(self, caller: &str) -> Vec<u8> {
        let what: &[u8] = match self {
            Self::Tools => b"tools",
            Self::Agents => b"agents",
            Self::Streams => b"streams",
            Self::KeySubjects => b"key_subjects",
        };
        [what, &[0], canonical_name(caller).as_bytes()].concat()
    }
}
