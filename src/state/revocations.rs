//! What is revoked, in memory: one entry for a fact covers everything that derives from it and was
//! issued before (design §5). Fed by `apply`, rebuilt at start, and only ever grows.

use std::fmt;
use std::time::Duration;

use prost::Message as _;

use super::State;
use super::command::RevocationRow;
use super::tables::{self, REVOCATION, Tables};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::{Digest128, Incarnation, LogPosition};

/// How far the clocks of issuers may be off: what a foreign clock says was issued until so long after
/// the entry was applied may have been issued before it (contract §6).
const FOREIGN_CLOCK_MARGIN: Duration = Duration::from_secs(7);

/// When something was revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The log index of the entry.
    pub index: u64,
    /// Log time of the entry.
    pub at: Timestamp,
}

/// When a token was issued, as far as that can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Issued {
    /// By a node of this cluster that had applied the log up to this index.
    Here(u64),
    /// At this time, by another's clock.
    At(Timestamp),
}

/// Every revocation, by the digest of what it revokes.
#[derive(Default)]
pub struct Revocations(papaya::HashMap<Digest128, Revocation>);

impl fmt::Debug for Revocations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.pin().iter()).finish()
    }
}

impl Revocations {
    /// Takes up a row of [`REVOCATION`]; the later revocation of a fact counts.
    ///
    /// # Errors
    /// [`Corrupt`] if it is not what was written.
    pub fn put(&self, key: &[u8], row: &[u8]) -> Result<(), Corrupt> {
        let digest = super::idempotency::digest(key)?;
        let row = tables::decode::<RevocationRow>(REVOCATION, row)?;
        let fresh = Revocation { index: row.index, at: Timestamp::from_millis(row.at_millis) };
        self.0.pin().update_or_insert(
            digest,
            |known| Revocation { index: known.index.max(fresh.index), at: known.at.max(fresh.at) },
            fresh,
        );
        Ok(())
    }

    /// Whether a fact was ever revoked.
    #[must_use]
    pub fn contain(&self, digest: &Digest128) -> bool {
        self.0.pin().contains_key(digest)
    }

    /// Whether a credential that derives from `lineage` is revoked, on a node whose log is of the
    /// incarnation `here`. As [`State::revokes`].
    #[must_use]
    pub fn revokes(
        &self,
        here: Option<Incarnation>,
        lineage: &[Digest128],
        idx: Option<LogPosition>,
        iat: Timestamp,
    ) -> bool {
        let issued = match idx {
            Some(position) if Some(position.incarnation) == here => Issued::Here(position.index),
            _ => Issued::At(iat),
        };
        self.cover(lineage, issued)
    }

    fn cover(&self, lineage: &[Digest128], issued: Issued) -> bool {
        let revocations = self.0.pin();
        lineage.iter().filter_map(|digest| revocations.get(digest)).any(|revocation| match issued {
            Issued::Here(index) => index < revocation.index,
            Issued::At(time) => time <= revocation.at.plus(FOREIGN_CLOCK_MARGIN),
        })
    }
}

/// Revokes everything that derives from `digest` and was issued before this entry.
pub fn revoke(tables: &mut Tables<'_>, now: Timestamp, index: u64, digest: &Digest128) {
    let row = RevocationRow { index, at_millis: now.millis() };
    tables.put(REVOCATION, digest.as_bytes(), row.encode_to_vec());
}

impl State {
    /// Whether a credential that derives from `lineage` is revoked. `idx` is the claim of that name, if
    /// it is a token of a fabric; it counts only within our own incarnation (contract §3, `idx`).
    #[must_use]
    pub fn revokes(&self, lineage: &[Digest128], idx: Option<LogPosition>, iat: Timestamp) -> bool {
        self.core.machine().revocations().revokes(self.index().incarnation, lineage, idx, iat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::DigestKind;

    #[test]
    fn a_revocation_covers_what_was_issued_before_it_and_nothing_after() {
        let revocations = Revocations::default();
        let digest = Digest128::of(DigestKind::Subject, b"", b"wimse://a.example/x");
        let other = Digest128::of(DigestKind::Subject, b"", b"wimse://a.example/xy");
        let at = Timestamp::from_secs(1_800_000_000);
        let row = RevocationRow { index: 10, at_millis: at.millis() }.encode_to_vec();
        revocations.put(digest.as_bytes(), &row).expect("row");
        for (issued, covered) in [
            (Issued::Here(9), true),
            (Issued::Here(10), false),
            (Issued::At(at.minus(Duration::from_secs(3600))), true),
            (Issued::At(at.plus(FOREIGN_CLOCK_MARGIN)), true),
            (Issued::At(at.plus(FOREIGN_CLOCK_MARGIN).plus(Duration::from_millis(1))), false),
        ] {
            assert_eq!(revocations.cover(&[other, digest], issued), covered, "{issued:?}");
            assert!(!revocations.cover(&[other], issued), "{issued:?}");
        }
        // An older one that comes later takes nothing back.
        let older = RevocationRow { index: 5, at_millis: 0 }.encode_to_vec();
        revocations.put(digest.as_bytes(), &older).expect("row");
        assert!(revocations.cover(&[digest], Issued::Here(9)));
    }
}
