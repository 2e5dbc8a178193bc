//! Revocations and subject blocks in memory: one entry for a fact covers everything that derives from it (design §5). Fed
//! by `apply`, rebuilt at start.
//!
//! Ten million entries must fit, so an entry takes 26 bytes beside its key's control byte; facts and reasons stay in the
//! tables.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use parking_lot::RwLock;

use crate::breaks::{self, Break};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::{Digest128, Incarnation, LogPosition};

/// Maximum error of issuers' clocks: by such a clock, a credential issued up to this long after the entry may have been
/// issued before it (contract §6).
const FOREIGN_CLOCK_MARGIN: Duration = Duration::from_secs(7);

/// Number of parts, selected by the first byte of a digest: each has its own lock and grows independently.
const PARTS: usize = 256;

/// Watermark: log index in 48 bits, and log time in whole seconds, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct When {
    index: [u8; 6],
    at_secs: [u8; 4],
}

impl When {
    fn new(index: u64, at: Timestamp) -> Result<Self, Corrupt> {
        let too_large = || Corrupt::row("a revocation has a log index beyond 48 bits");
        let [0, 0, index @ ..] = index.to_be_bytes() else { return Err(too_large()) };
        // Rounded up, so that it never covers less. A time that does not fit covers everything.
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

/// Epoch floor: everything that was issued before a restore is refused, because the restored state does not
/// show what was revoked after its backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochFloor(When);

impl EpochFloor {
    /// The floor of a restore with this log index and stamp.
    ///
    /// # Errors
    /// [`Corrupt`] if the index does not fit.
    pub fn new(index: u64, at: Timestamp) -> Result<Self, Corrupt> {
        When::new(index, at).map(Self)
    }

    /// The last `iat` of other issuers' credentials that it refuses.
    #[must_use]
    pub fn last_refused(self) -> Timestamp {
        self.0.at().plus(FOREIGN_CLOCK_MARGIN)
    }
}

/// The incarnation of a cluster, and what is too old for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epoch {
    /// `None` before the cluster is bootstrapped.
    pub incarnation: Option<Incarnation>,
    /// `None` in a cluster that was not restored.
    pub floor: Option<EpochFloor>,
}

impl Epoch {
    /// Issue of a credential with this `idx` and `iat`; `None` if that alone refuses it. Only tokens of this fabric have
    /// an `idx`, so one of another incarnation was issued before a restore.
    fn issue_of(self, idx: Option<LogPosition>, iat: Timestamp) -> Option<Issued> {
        let issued = match idx {
            None => Issued::At(iat),
            Some(position) if Some(position.incarnation) == self.incarnation => Issued::Here(position.index),
            Some(_) => return None,
        };
        let floor = self.floor.filter(|_| !breaks::active(Break::ForgetEpochFloor));
        let is_before = floor.is_some_and(|EpochFloor(floor)| floor.covers(issued));
        (!is_before).then_some(issued)
    }
}

/// Issue of a credential, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Issued {
    /// Log index that the issuing node of this cluster had applied.
    Here(u64),
    /// Time by the clock of another issuer.
    At(Timestamp),
}

#[derive(Default)]
struct Part {
    watermarks: HashMap<Digest128, When>,
    /// (Fact, digest of blocker and family).
    blocks: BTreeSet<(Digest128, Digest128)>,
}

impl Part {
    fn blocks_fact(&self, fact: &Digest128) -> bool {
        let from = (*fact, Digest128::from_bytes([0; 16]));
        self.blocks.range(from..).next().is_some_and(|(blocked, _)| blocked == fact)
    }
}

/// Every revocation by the digest of its fact, and every block that is not lifted.
pub struct RevocationIndex(Vec<RwLock<Part>>);

impl Default for RevocationIndex {
    fn default() -> Self {
        Self(std::iter::repeat_with(RwLock::default).take(PARTS).collect())
    }
}

impl RevocationIndex {
    /// Watermark that covers every `idx` and `iat`.
    pub const EVERYTHING: (u64, Timestamp) = ((1 << 48) - 1, Timestamp::from_secs(4_294_967_295));

    /// Adds a revocation; the later watermark of a fact counts.
    ///
    /// # Errors
    /// [`Corrupt`] if its index does not fit.
    pub fn put(&self, digest: Digest128, index: u64, at: Timestamp) -> Result<(), Corrupt> {
        let fresh = When::new(index, at)?;
        let mut part = self.part(&digest).write();
        let known = part.watermarks.entry(digest).or_insert(fresh);
        *known = When { index: known.index.max(fresh.index), at_secs: known.at_secs.max(fresh.at_secs) };
        Ok(())
    }

    /// Replaces the content part by part, so that no read finds less than the old or the new content.
    pub fn replace(&self, other: Self) {
        for (part, other) in self.0.iter().zip(other.0) {
            let other = other.into_inner();
            *part.write() = other;
        }
    }

    /// Removes a revocation.
    pub fn remove(&self, digest: &Digest128) {
        self.part(digest).write().watermarks.remove(digest);
    }

    /// Adds or removes the block of a fact by `by`.
    pub fn set_block(&self, fact: Digest128, by: Digest128, is_blocked: bool) {
        let blocks = &mut self.part(&fact).write().blocks;
        if is_blocked {
            blocks.insert((fact, by))
        } else {
            blocks.remove(&(fact, by))
        };
    }

    /// Number of revocations.
    #[must_use]
    pub fn watermarks(&self) -> usize {
        self.0.iter().map(|part| part.read().watermarks.len()).sum()
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.0.iter().map(|part| part.read().blocks.len()).sum()
    }

    /// Whether a credential that derives from `lineage` is revoked or blocked, or too old for the epoch. `idx` is the claim
    /// of a token of this fabric.
    #[must_use]
    pub fn covers(
        &self,
        epoch: Epoch,
        lineage: &[Digest128],
        idx: Option<LogPosition>,
        iat: Timestamp,
    ) -> bool {
        match epoch.issue_of(idx, iat) {
            None => true,
            Some(issued) => lineage.iter().any(|digest| self.part_covers(digest, issued)),
        }
    }

    /// Whether the sender of a signal that was issued at `iat` is revoked or blocked.
    #[must_use]
    pub fn covers_sender(&self, sender: &Digest128, iat: Timestamp) -> bool {
        self.part_covers(sender, Issued::At(iat))
    }

    /// Whether one of these facts is blocked.
    #[must_use]
    pub fn blocks_any(&self, facts: &[Digest128]) -> bool {
        facts.iter().any(|fact| self.part(fact).read().blocks_fact(fact))
    }

    fn part_covers(&self, digest: &Digest128, issued: Issued) -> bool {
        let part = self.part(digest).read();
        part.watermarks.get(digest).is_some_and(|when| when.covers(issued)) || part.blocks_fact(digest)
    }

    fn part(&self, digest: &Digest128) -> &RwLock<Part> {
        &self.0[usize::from(digest.as_bytes()[0]) % self.0.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::DigestKind;

    const AT: Timestamp = Timestamp::from_secs(1_800_000_000);

    const EPOCH: Epoch = Epoch { incarnation: Some(Incarnation::from_bytes([1; 16])), floor: None };

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
            self.covers(EPOCH, &[digest("another"), digest(name)], idx, iat)
        }
    }

    #[test]
    fn revocation_covers_credentials_issued_before_it() {
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
            // Its prefix, or a subject of which it is a prefix, is another subject.
            for other in ["wimse://a.example/", "wimse://a.example/xy"] {
                assert!(!revocations.refuses(other, idx, iat), "{other} {idx:?} {iat:?}");
            }
        }
    }

    /// Regression: such a token was accepted if its `iat` was late enough. The revocations of the incarnation
    /// in which it was issued are unknown.
    #[test]
    fn idx_of_another_incarnation_is_refused() {
        let revocations = RevocationIndex::default();
        let elsewhere = |index| Some(LogPosition { incarnation: Incarnation::from_bytes([2; 16]), index });
        for index in [0, 10, 1_000_000, u64::MAX] {
            assert!(
                revocations.refuses("x", elsewhere(index), AT.plus(Duration::from_secs(3600))),
                "{index}"
            );
        }
        assert!(!revocations.refuses("x", Some(here(0)), AT));
    }

    #[test]
    fn floor_refuses_everything_issued_before_it() {
        let floor = EpochFloor::new(10, AT.plus(Duration::from_millis(1))).expect("fits");
        let epoch = Epoch { floor: Some(floor), ..EPOCH };
        let revocations = RevocationIndex::default();
        let last = AT.plus(Duration::from_secs(1)).plus(FOREIGN_CLOCK_MARGIN);
        assert_eq!(floor.last_refused(), last);
        let hour = Duration::from_secs(3600);
        for (idx, iat, refused) in [
            (None, AT.minus(hour), true),
            (None, last, true),
            (None, last.plus(Duration::from_millis(1)), false),
            (Some(here(9)), AT.plus(hour), true),
            (Some(here(10)), AT.minus(hour), false),
        ] {
            assert_eq!(revocations.covers(epoch, &[], idx, iat), refused, "{idx:?} {iat:?}");
        }
        assert!(!revocations.covers_sender(&digest("x"), AT.minus(hour)), "earlier signals are sent again");
    }

    #[test]
    fn older_revocation_does_not_lower_the_watermark() {
        let revocations = index_of("x", 10, AT);
        revocations.put(digest("x"), 5, Timestamp::from_secs(0)).expect("fits");
        assert!(revocations.refuses("x", Some(here(9)), AT) && revocations.refuses("x", None, AT));
        assert_eq!(revocations.watermarks(), 1);
    }

    #[test]
    fn time_of_a_watermark_is_rounded_up() {
        let revocations = index_of("x", 10, AT.plus(Duration::from_millis(1)));
        let last_covered = AT.plus(FOREIGN_CLOCK_MARGIN).plus(Duration::from_millis(1));
        assert!(revocations.refuses("x", None, last_covered));
    }

    #[test]
    fn removed_revocation_covers_nothing() {
        let revocations = index_of("x", 10, AT);
        revocations.put(digest("y"), 11, AT).expect("fits");
        revocations.remove(&digest("x"));
        assert!(!revocations.refuses("x", Some(here(0)), AT) && revocations.refuses("y", Some(here(0)), AT));
        assert_eq!(revocations.watermarks(), 1);
    }

    #[test]
    fn fact_is_blocked_until_every_block_is_lifted() {
        let revocations = RevocationIndex::default();
        let (one, other) = (digest("one"), digest("other"));
        let much_later = AT.plus(Duration::from_secs(1_000_000));
        revocations.set_block(digest("x"), one, true);
        revocations.set_block(digest("x"), other, true);
        revocations.set_block(digest("x"), one, false);
        assert!(revocations.refuses("x", Some(here(1_000)), much_later), "the other block remains");
        assert!(!revocations.refuses("y", Some(here(0)), AT));
        revocations.set_block(digest("x"), other, false);
        assert!(!revocations.refuses("x", Some(here(0)), AT));
        assert_eq!(revocations.blocks(), 0);
    }

    #[test]
    fn index_over_48_bits_is_corrupt_and_a_late_time_saturates() {
        let revocations = RevocationIndex::default();
        let most = u64::from_be_bytes([0, 0, 255, 255, 255, 255, 255, 255]);
        revocations.put(digest("x"), most, Timestamp::from_secs(u32::MAX.into())).expect("fits");
        assert!(revocations.put(digest("x"), most + 1, AT).is_err());
        revocations.put(digest("y"), 1, Timestamp::from_secs(i64::from(u32::MAX) + 1)).expect("fits");
        assert!(revocations.refuses("y", None, Timestamp::from_secs(u32::MAX.into())));
    }

    #[test]
    fn entry_takes_26_bytes() {
        assert_eq!(size_of::<(Digest128, When)>(), 26);
    }
}
