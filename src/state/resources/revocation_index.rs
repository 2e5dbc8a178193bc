//! What is revoked and what is blocked, in memory: one entry for a fact covers everything that derives
//! from it (design §5). Fed by `apply`, rebuilt at start.
//!
//! Ten million entries must leave room for everything else, so an entry is 26 bytes beside its key's
//! control byte; what a revocation is about stays in the tables.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::{Digest128, Incarnation, LogPosition};

/// How far the clocks of issuers may be off: what a foreign clock says was issued until so long after
/// the entry was applied may have been issued before it (contract §6).
const FOREIGN_CLOCK_MARGIN: Duration = Duration::from_secs(7);

/// A part holds the digests that begin with its number: each is locked, and grows, alone.
const PARTS: usize = 256;

/// When something was revoked: log index in 48 bits, and log time in whole seconds, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct When {
    index: [u8; 6],
    at_secs: [u8; 4],
}

impl When {
    fn new(index: u64, at: Timestamp) -> Result<Self, Corrupt> {
        let too_large = || Corrupt::row("a revocation has a log index that no log reaches");
        let [0, 0, index @ ..] = index.to_be_bytes() else { return Err(too_large()) };
        // Never earlier than it was: it must not cover less. A time that does not fit covers everything.
        let at_secs = at.plus(Duration::from_millis(999)).secs().max(0);
        Ok(Self { index, at_secs: u32::try_from(at_secs).unwrap_or(u32::MAX).to_be_bytes() })
    }

    fn index(self) -> u64 {
        let mut bytes = [0; 8];
        bytes[2..].copy_from_slice(&self.index);
        u64::from_be_bytes(bytes)
    }

    fn at(self) -> Timestamp {
        Timestamp::from_secs(u32::from_be_bytes(self.at_secs).into())
    }

    fn covers(self, issued: Issued) -> bool {
        match issued {
            Issued::Here(index) => index < self.index(),
            Issued::At(time) => time <= self.at().plus(FOREIGN_CLOCK_MARGIN),
        }
    }
}

/// When a token was issued, as far as that can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Issued {
    /// By a node of this cluster that had applied the log up to this index.
    Here(u64),
    /// At this time, by another's clock.
    At(Timestamp),
}

#[derive(Default)]
struct Part {
    watermarks: HashMap<Digest128, When>,
    /// (Fact, who blocks it for the sake of which family).
    blocks: BTreeSet<(Digest128, Digest128)>,
}

impl Part {
    fn blocks_fact(&self, fact: &Digest128) -> bool {
        let from = (*fact, Digest128::from_bytes([0; 16]));
        self.blocks.range(from..).next().is_some_and(|(blocked, _)| blocked == fact)
    }
}

/// Every revocation by the digest of what it revokes, and every block that is not lifted.
pub struct RevocationIndex(Vec<RwLock<Part>>);

impl Default for RevocationIndex {
    fn default() -> Self {
        Self(std::iter::repeat_with(RwLock::default).take(PARTS).collect())
    }
}

impl fmt::Debug for RevocationIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RevocationIndex").field("watermarks", &self.watermarks()).finish_non_exhaustive()
    }
}

impl RevocationIndex {
    /// The index and time of a revocation that covers every `idx` and `iat`.
    pub const EVERYTHING: (u64, Timestamp) = ((1 << 48) - 1, Timestamp::from_secs(4_294_967_295));

    /// Takes up a revocation; the later one of a fact counts.
    ///
    /// # Errors
    /// [`Corrupt`] if no log reaches its index or its time.
    pub fn put(&self, digest: Digest128, index: u64, at: Timestamp) -> Result<(), Corrupt> {
        let fresh = When::new(index, at)?;
        let mut part = self.write(&digest);
        let known = part.watermarks.entry(digest).or_insert(fresh);
        *known = When { index: known.index.max(fresh.index), at_secs: known.at_secs.max(fresh.at_secs) };
        Ok(())
    }

    /// Becomes what `other` is, part by part: no reader finds less in between than either holds.
    pub fn replace(&self, other: Self) {
        for (part, other) in self.0.iter().zip(other.0) {
            let other = other.into_inner().unwrap_or_else(PoisonError::into_inner);
            *part.write().unwrap_or_else(PoisonError::into_inner) = other;
        }
    }

    /// Forgets a revocation.
    pub fn forget(&self, digest: &Digest128) {
        self.write(digest).watermarks.remove(digest);
    }

    /// Blocks a fact for the sake of `by`, or lifts that.
    pub fn set_block(&self, fact: Digest128, by: Digest128, is_blocked: bool) {
        let blocks = &mut self.write(&fact).blocks;
        if is_blocked {
            blocks.insert((fact, by))
        } else {
            blocks.remove(&(fact, by))
        };
    }

    /// How many revocations there are.
    #[must_use]
    pub fn watermarks(&self) -> usize {
        self.0.iter().map(|part| read(part).watermarks.len()).sum()
    }

    /// How many blocks there are.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.0.iter().map(|part| read(part).blocks.len()).sum()
    }

    /// Whether a credential that derives from `lineage` is revoked or blocked, on a node whose log is of the
    /// incarnation `here`. `idx` is the claim of that name, if it is a token of a fabric; it counts only
    /// within our own incarnation (contract §3, `idx`).
    #[must_use]
    pub fn covers(
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
        lineage.iter().any(|digest| self.part_covers(digest, issued))
    }

    /// Whether one of these facts is blocked.
    #[must_use]
    pub fn blocks_any(&self, facts: &[Digest128]) -> bool {
        facts.iter().any(|fact| read(self.part(fact)).blocks_fact(fact))
    }

    fn part_covers(&self, digest: &Digest128, issued: Issued) -> bool {
        let part = read(self.part(digest));
        part.watermarks.get(digest).is_some_and(|when| when.covers(issued)) || part.blocks_fact(digest)
    }

    fn part(&self, digest: &Digest128) -> &RwLock<Part> {
        &self.0[usize::from(digest.as_bytes()[0]) % self.0.len()]
    }

    fn write(&self, digest: &Digest128) -> RwLockWriteGuard<'_, Part> {
        self.part(digest).write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(part: &RwLock<Part>) -> RwLockReadGuard<'_, Part> {
    part.read().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::DigestKind;

    const AT: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn digest(name: &str) -> Digest128 {
        Digest128::of(DigestKind::Subject, b"", name.as_bytes())
    }

    fn index_of(name: &str, index: u64, at: Timestamp) -> RevocationIndex {
        let revocations = RevocationIndex::default();
        revocations.put(digest(name), index, at).expect("fits");
        revocations
    }

    fn here(index: u64) -> LogPosition {
        LogPosition { incarnation: Incarnation::from_bytes([1; 16]), index }
    }

    impl RevocationIndex {
        fn refuses(&self, name: &str, idx: Option<LogPosition>, iat: Timestamp) -> bool {
            let incarnation = Some(Incarnation::from_bytes([1; 16]));
            self.covers(incarnation, &[digest("another"), digest(name)], idx, iat)
        }
    }

    #[test]
    fn a_revocation_covers_what_was_issued_before_it_and_nothing_after() {
        let revocations = index_of("wimse://a.example/x", 10, AT);
        let long_after = AT.plus(Duration::from_secs(3600));
        for (idx, iat, covered) in [
            (Some(here(9)), long_after, true),
            (Some(here(10)), AT.minus(Duration::from_secs(3600)), false),
            (None, AT.minus(Duration::from_secs(3600)), true),
            (None, AT.plus(FOREIGN_CLOCK_MARGIN), true),
            (None, AT.plus(FOREIGN_CLOCK_MARGIN).plus(Duration::from_millis(1)), false),
        ] {
            assert_eq!(revocations.refuses("wimse://a.example/x", idx, iat), covered, "{idx:?} {iat:?}");
            // A prefix of it is another subject, and so is what it is a prefix of.
            for other in ["wimse://a.example/", "wimse://a.example/xy"] {
                assert!(!revocations.refuses(other, idx, iat), "{other} {idx:?} {iat:?}");
            }
        }
    }

    #[test]
    fn an_index_of_another_incarnation_says_nothing_and_the_time_counts() {
        let revocations = index_of("x", 10, AT);
        let elsewhere = |index| Some(LogPosition { incarnation: Incarnation::from_bytes([2; 16]), index });
        assert!(
            revocations.refuses("x", elsewhere(1_000_000), AT),
            "a large index of another log is no proof"
        );
        assert!(!revocations.refuses("x", elsewhere(0), AT.plus(Duration::from_secs(60))));
    }

    #[test]
    fn an_older_revocation_that_comes_later_takes_nothing_back() {
        let revocations = index_of("x", 10, AT);
        revocations.put(digest("x"), 5, Timestamp::from_secs(0)).expect("fits");
        assert!(revocations.refuses("x", Some(here(9)), AT) && revocations.refuses("x", None, AT));
        assert_eq!(revocations.watermarks(), 1);
    }

    #[test]
    fn a_part_of_a_second_is_never_rounded_to_cover_less() {
        let revocations = index_of("x", 10, AT.plus(Duration::from_millis(1)));
        let last_covered = AT.plus(FOREIGN_CLOCK_MARGIN).plus(Duration::from_millis(1));
        assert!(revocations.refuses("x", None, last_covered));
    }

    #[test]
    fn what_is_forgotten_covers_nothing_and_leaves_the_others() {
        let revocations = index_of("x", 10, AT);
        revocations.put(digest("y"), 11, AT).expect("fits");
        revocations.forget(&digest("x"));
        assert!(!revocations.refuses("x", Some(here(0)), AT) && revocations.refuses("y", Some(here(0)), AT));
        assert_eq!(revocations.watermarks(), 1);
    }

    #[test]
    fn a_block_covers_everything_until_each_of_those_who_blocked_has_lifted_it() {
        let revocations = RevocationIndex::default();
        let (one, other) = (digest("one"), digest("other"));
        let much_later = AT.plus(Duration::from_secs(1_000_000));
        revocations.set_block(digest("x"), one, true);
        revocations.set_block(digest("x"), other, true);
        revocations.set_block(digest("x"), one, false);
        assert!(revocations.refuses("x", Some(here(1_000)), much_later), "the other's stands");
        assert!(!revocations.refuses("y", Some(here(0)), AT));
        revocations.set_block(digest("x"), other, false);
        assert!(!revocations.refuses("x", Some(here(0)), AT));
        assert_eq!(revocations.blocks(), 0);
    }

    #[test]
    fn an_index_that_no_log_reaches_is_corrupt_and_a_time_that_does_not_fit_covers_everything() {
        let revocations = RevocationIndex::default();
        let most = u64::from_be_bytes([0, 0, 255, 255, 255, 255, 255, 255]);
        revocations.put(digest("x"), most, Timestamp::from_secs(u32::MAX.into())).expect("fits");
        assert!(revocations.put(digest("x"), most + 1, AT).is_err());
        revocations.put(digest("y"), 1, Timestamp::from_secs(i64::from(u32::MAX) + 1)).expect("fits");
        assert!(revocations.refuses("y", None, Timestamp::from_secs(u32::MAX.into())));
    }

    #[test]
    fn an_entry_takes_few_enough_bytes() {
        assert_eq!(size_of::<(Digest128, When)>(), 26);
    }
}
