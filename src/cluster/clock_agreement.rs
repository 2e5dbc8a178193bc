//! Agreement of the voters' wall clocks. Pure: readings go in; the time stamp of a log entry, or the offset of each
//! node, comes out. One wrong clock, the leader's included, moves the median of three or more by no more than the other
//! clocks differ.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{LogTimes, Stamp};
use crate::clock::Timestamp;
use crate::limits;

/// A reading of another node's wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The latest time that the clock can have shown when the response arrived.
    wall: Timestamp,
    /// Arrival of the response, on this node's boot clock.
    received: Duration,
}

impl Reading {
    /// A clock that showed `wall` between two instants of this node's boot clock. `None` if these are too far apart, or
    /// the time is out of range.
    pub(crate) fn new(wall: Timestamp, sent: Duration, received: Duration) -> Option<Self> {
        let round_trip = received.checked_sub(sent)?;
        let is_calendar = (0..=limits::NUMERIC_DATE_MAX_SECS).contains(&wall.secs());
        (is_calendar && round_trip <= limits::CLOCK_ROUND_TRIP_MAX)
            .then(|| Self { wall: wall.plus(round_trip), received })
    }

    /// The time of the clock at `now`, if the reading is not too old.
    pub(crate) fn at(self, now: Duration) -> Option<Timestamp> {
        let age = now.saturating_sub(self.received);
        (age <= limits::CLOCK_READING_VALID).then(|| self.wall.plus(age))
    }
}

/// The wall clocks of a cluster at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// Whether the clocks of a majority of the voters are known.
    pub(crate) has_majority: bool,
    /// Median of the voters' clocks; the lower one of an even number.
    median: Option<Timestamp>,
    /// Whether a majority of the voters is close to the median.
    is_agreed: bool,
    /// Time of the clock that is furthest ahead.
    latest: Option<Timestamp>,
    /// Distance between the voters' earliest and latest clock.
    spread: Duration,
    /// Milliseconds from the median to each clock; negative if the clock is slow.
    offsets: BTreeMap<u64, i64>,
}

impl Agreement {
    /// Agreement of these clocks. Non-voters are compared with the median and do not affect it.
    pub(crate) fn of(voters: &BTreeSet<u64>, clocks: &BTreeMap<u64, Timestamp>) -> Self {
        let of_voters = clocks.iter().filter(|(id, _)| voters.contains(id));
        let mut sorted: Vec<Timestamp> = of_voters.map(|(_, wall)| *wall).collect();
        sorted.sort_unstable();
        let majority = voters.len() / 2 + 1;
        let Some(median) = sorted.get(sorted.len().saturating_sub(1) / 2).copied() else {
            return Self::default();
        };
        let close =
            sorted.iter().filter(|wall| wall.distance(median) <= limits::CLOCK_AGREEMENT_OFFSET_MAX).count();
        let offset = |wall: &Timestamp| wall.millis().saturating_sub(median.millis());
        Self {
            has_majority: sorted.len() >= majority,
            median: Some(median),
            is_agreed: close >= majority,
            latest: clocks.values().max().copied(),
            spread: sorted.first().zip(sorted.last()).map_or(Duration::ZERO, |(a, b)| a.distance(*b)),
            offsets: clocks.iter().map(|(id, wall)| (*id, offset(wall))).collect(),
        }
    }

    /// Time stamp of the next log entry. `last` are the times of the last applied entry, which was stamped at least
    /// `elapsed` ago.
    pub(crate) fn stamp(&self, last: LogTimes, elapsed: Duration) -> Stamp {
        // The first entry has no predecessor to continue from.
        let is_first = last == LogTimes::default();
        let time = match self.median.filter(|_| self.is_agreed || is_first) {
            Some(median) => last.time.max(median),
            None => last.time.plus(elapsed),
        };
        let latest = self.latest.map_or(time, |latest| latest.max(time));
        Stamp { time, latest, elapsed: last.elapsed.plus(elapsed) }
    }

    /// Report for other nodes and for operators.
    pub(crate) fn report(&self) -> ClockReport {
        ClockReport { is_agreed: self.is_agreed, spread: self.spread, offsets: self.offsets.clone() }
    }
}

/// Whether a leader may propose: it must have read the clocks of a majority in its term. A leader elected while other
/// voters were unreachable may be the one whose clock is wrong.
#[derive(Debug, Default)]
pub(crate) struct FirstReading {
    in_term: Option<u64>,
}

impl FirstReading {
    /// Whether the leader of `term` may propose, with these clocks, after an entry with the times `last`. The first entry
    /// sets log time, and needs the clocks of a majority itself.
    pub(crate) fn allows(&mut self, term: u64, agreement: &Agreement, last: LogTimes) -> bool {
        if agreement.has_majority {
            self.in_term = Some(term);
        }
        agreement.has_majority || (self.in_term == Some(term) && last != LogTimes::default())
    }
}

/// Elapsed time as the leader of one term counts it.
///
/// An entry counts from the application of the last one, because only then its times are known. If each entry did, the time
/// between its stamp and its application would be lost with each: under load, most of the time. In its own term the leader
/// knows when it stamped the entries before.
#[derive(Debug, Default)]
pub(crate) struct ElapsedInTerm {
    term: u64,
    /// Boot time at which `elapsed` was counted.
    counted_at: Duration,
    elapsed: Timestamp,
}

impl ElapsedInTerm {
    /// Elapsed time at `now` of the boot clock. `at_least` follows from the last applied entry.
    pub(crate) fn count(&mut self, term: u64, now: Duration, at_least: Timestamp) -> Timestamp {
        let continued = self.elapsed.plus(now.saturating_sub(self.counted_at));
        if self.term == term && continued >= at_least {
            return continued;
        }
        *self = Self { term, counted_at: now, elapsed: at_least };
        at_least
    }
}

/// The leader's report on the members' wall clocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockReport {
    /// Whether a majority of the voters is close to the median of their clocks.
    pub(crate) is_agreed: bool,
    /// Distance between the voters' earliest and latest clock.
    pub(crate) spread: Duration,
    /// Milliseconds from the median to each clock read recently; negative if the clock is slow.
    pub(crate) offsets: BTreeMap<u64, i64>,
}

/// Decisions that a node may base on its wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClockVerdict {
    /// All decisions.
    Good,
    /// No credentials of other issuers: the clock is slightly off, or the clocks do not agree.
    Apart,
    /// None.
    FarApart,
}

impl ClockReport {
    /// Decisions that this node may base on its wall clock.
    pub(crate) fn verdict(&self, node_id: u64) -> ClockVerdict {
        let offset = self.offsets.get(&node_id).map(|millis| Duration::from_millis(millis.unsigned_abs()));
        match offset {
            Some(offset) if offset > limits::CLOCK_OFFSET_MAX => ClockVerdict::FarApart,
            _ if !self.is_agreed && self.spread > limits::CLOCK_OFFSET_MAX => ClockVerdict::FarApart,
            Some(offset) if self.is_agreed && offset <= limits::CLOCK_AGREEMENT_OFFSET_MAX => {
                ClockVerdict::Good
            }
            _ => ClockVerdict::Apart,
        }
    }

    /// Whether the clock of a node is far from an agreed median.
    pub(crate) fn is_wrong(&self, node_id: u64) -> bool {
        self.is_agreed && self.verdict(node_id) == ClockVerdict::FarApart
    }

    /// `now` corrected to the median; unchanged without an agreement.
    pub(crate) fn corrected(&self, node_id: u64, now: Timestamp) -> Timestamp {
        let offset = self.offsets.get(&node_id).filter(|_| self.is_agreed).copied().unwrap_or_default();
        Timestamp::from_millis(now.millis().saturating_sub(offset))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const NOON: Timestamp = Timestamp::from_secs(1_800_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    /// Regression: elapsed time lost the time to the application of each entry, and a part of a millisecond.
    #[test]
    fn elapsed_time_keeps_up_under_load() {
        const STEP: Duration = Duration::from_micros(1_300);
        let origin = Timestamp::default();
        let (mut counted, mut last, mut now) = (ElapsedInTerm::default(), origin, Duration::ZERO);
        for _ in 0..10_000 {
            now += STEP;
            // The entry before was applied 100 µs ago.
            let elapsed = counted.count(3, now, last.plus(Duration::from_micros(100)));
            assert!(elapsed >= last && elapsed <= origin.plus(now));
            last = elapsed;
        }
        assert!(last >= origin.plus(now.saturating_sub(2 * STEP)), "{last:?} after {now:?}");
    }

    /// Entries of another leader may have counted less since: an entry of this one must not make up for it.
    #[test]
    fn elapsed_time_continues_from_another_leader() {
        let at = |secs| Timestamp::default().plus(Duration::from_secs(secs));
        let mut counted = ElapsedInTerm::default();
        for (term, now, at_least, expected) in [
            (1, 100, 50, 50),
            (1, 110, 50, 60),
            // After entries of term 2.
            (3, 200, 70, 70),
            (3, 201, 90, 90),
            (3, 202, 0, 91),
        ] {
            assert_eq!(counted.count(term, Duration::from_secs(now), at(at_least)), at(expected), "{now}");
        }
    }

    /// Clocks of voters 1, 2, …, in milliseconds from noon; `None` if unread.
    fn agreement(millis: &[Option<i64>]) -> Agreement {
        let ids = 1..=millis.len() as u64;
        let clocks = ids.clone().zip(millis).filter_map(|(id, millis)| Some((id, at((*millis)?)))).collect();
        Agreement::of(&ids.collect(), &clocks)
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(NOON.millis() + millis)
    }

    fn read(millis: &[i64]) -> Agreement {
        agreement(&millis.iter().copied().map(Some).collect::<Vec<_>>())
    }

    #[test]
    fn slow_or_old_reading_is_ignored() {
        let (sent, long) = (5 * SECOND, limits::CLOCK_ROUND_TRIP_MAX);
        let over = Duration::from_millis(1);
        assert_eq!(Reading::new(NOON, sent, sent + long + over), None);
        assert_eq!(Reading::new(NOON, sent, sent.saturating_sub(over)), None);
        let received = sent + long;
        let reading = Reading::new(NOON, sent, received).expect("in time");
        assert_eq!(reading.at(received), Some(NOON.plus(long)), "the latest that it can show");
        assert_eq!(reading.at(received + SECOND), Some(NOON.plus(long + SECOND)), "it advances");
        assert_eq!(reading.at(received + limits::CLOCK_READING_VALID + over), None);
        for never in [-1, i64::MIN, i64::MAX] {
            assert_eq!(Reading::new(Timestamp::from_millis(never), sent, sent), None);
        }
    }

    #[test]
    fn clocks_agree_if_a_majority_is_close_to_the_median() {
        for (clocks, is_agreed) in [
            (&[Some(0)][..], true),
            (&[Some(0), Some(2_000)], true),
            (&[Some(0), Some(2_001)], false),
            (&[Some(0), Some(2_000), Some(3_600_000)], true),
            (&[Some(0), Some(2_001), Some(3_600_000)], false),
            (&[Some(0), Some(1_000), Some(3_600_000)], true),
            (&[Some(-3_600_000), Some(0), Some(100)], true),
            (&[Some(-3_600_000), Some(0), Some(3_600_000)], false),
            (&[Some(0), Some(1_000), None], true),
            (&[Some(0), Some(3_000), None], false),
            (&[Some(0), None, None], false),
            (&[None, None, None], false),
        ] {
            let found = agreement(clocks);
            let read = clocks.iter().flatten().count();
            assert_eq!(found.has_majority, read > clocks.len() / 2, "{clocks:?}");
            assert_eq!(found.is_agreed, is_agreed, "{clocks:?}");
        }
    }

    #[test]
    fn non_voter_is_measured_without_moving_the_median() {
        let clocks = BTreeMap::from([(1, at(0)), (2, at(100)), (3, at(-100)), (9, at(60_000))]);
        let found = Agreement::of(&BTreeSet::from([1, 2, 3]), &clocks);
        assert_eq!((found.median, found.spread), (Some(NOON), Duration::from_millis(200)));
        assert_eq!(found.report().verdict(9), ClockVerdict::FarApart);
        assert_eq!(found.report().verdict(1), ClockVerdict::Good);
        assert_eq!(
            found.stamp(LogTimes::default(), SECOND).latest,
            at(60_000),
            "it may have decided by its clock"
        );
    }

    #[test]
    fn one_wrong_clock_moves_coverage_but_not_log_time() {
        let last = LogTimes { time: at(-500), elapsed: at(-90_000) };
        for wrong in [-3_600_000, -10_000, 3_600_000, 100 * 86_400_000] {
            let stamp = read(&[wrong, 0, 100]).stamp(last, SECOND);
            assert!((at(0)..=at(100)).contains(&stamp.time), "{wrong}: {:?}", stamp.time);
            assert_eq!(stamp.latest, at(wrong.max(100)), "{wrong}");
            assert_eq!(stamp.elapsed, at(-89_000));
        }
    }

    #[test]
    fn without_agreement_log_time_advances_by_elapsed_time() {
        let last = LogTimes { time: at(-500), elapsed: at(-90_000) };
        let stamp = read(&[0, 10_000, -10_000]).stamp(last, SECOND);
        assert_eq!((stamp.time, stamp.latest, stamp.elapsed), (at(500), at(10_000), at(-89_000)));
        let unread = agreement(&[None, None, None]).stamp(last, SECOND);
        assert_eq!((unread.time, unread.latest), (at(500), at(500)));
    }

    #[test]
    fn with_agreement_log_time_jumps_forward_but_never_back() {
        let year = Duration::from_secs(365 * 86_400);
        let last = LogTimes { time: NOON.minus(year), elapsed: NOON };
        assert_eq!(read(&[0, 0, 0]).stamp(last, SECOND).time, NOON);
        let last = LogTimes { time: NOON.plus(year), elapsed: NOON };
        assert_eq!(read(&[0, 0, 0]).stamp(last, SECOND).time, NOON.plus(year));
    }

    #[test]
    fn new_leader_stamps_nothing_before_reading_a_majority() {
        let mut first = FirstReading::default();
        let (few, many) = (agreement(&[Some(0), None, None]), agreement(&[Some(0), Some(9), None]));
        let last = LogTimes { time: Timestamp::from_secs(1), elapsed: Timestamp::from_secs(1) };
        assert!(!first.allows(3, &few, last) && first.allows(3, &many, last));
        assert!(first.allows(3, &few, last), "log time advances without them");
        assert!(!first.allows(3, &few, LogTimes::default()), "a wrong clock alone sets no log time");
        assert!(!first.allows(4, &few, last), "another may have led");
        assert!(first.allows(4, &read(&[0]), LogTimes::default()), "a cluster of one follows its own clock");
    }

    #[test]
    fn verdict_depends_on_distance_and_agreement() {
        use ClockVerdict::{Apart, FarApart, Good};
        let report = read(&[0, 1, 2_001, -2_000, 5_002, -5_001, 0]).report();
        let verdicts: Vec<_> = (1..=8).map(|id| report.verdict(id)).collect();
        // An unread clock is unknown.
        assert_eq!(verdicts, [Good, Good, Apart, Good, FarApart, FarApart, Good, Apart]);
        assert_eq!((1..=8).filter(|id| report.is_wrong(*id)).collect::<Vec<_>>(), [5, 6]);
        assert_eq!(report.corrected(5, at(5_002)), NOON);
        let report = read(&[0, 4_000]).report();
        assert_eq!((report.verdict(1), report.verdict(2)), (Apart, Apart));
        assert_eq!(report.corrected(2, at(4_000)), at(4_000));
        let report = read(&[0, 5_001]).report();
        assert_eq!(
            (report.verdict(1), report.verdict(2)),
            (FarApart, FarApart),
            "neither is known to be right"
        );
        assert!(!report.is_wrong(1) && !report.is_wrong(2), "nor wrong");
        assert_eq!(ClockReport::default().verdict(1), Apart);
    }

    proptest! {
        /// Holds as long as a majority of the voters have correct clocks, whichever others are read.
        #[test]
        fn agreed_time_is_close_to_a_correct_clock(
            right in vec(proptest::option::weighted(0.8, -500_i64..500), 2..5),
            wrong in vec(proptest::option::of(any::<i32>().prop_map(i64::from)), 0..2),
            last in -1_000_000_i64..0,
        ) {
            let clocks: Vec<_> = right.iter().chain(&wrong).copied().collect();
            let found = agreement(&clocks);
            let last = LogTimes { time: at(last), elapsed: at(0) };
            let stamp = found.stamp(last, SECOND);
            prop_assert!(stamp.time >= last.time && stamp.latest >= stamp.time);
            for clock in clocks.iter().flatten() {
                prop_assert!(stamp.latest >= at(*clock), "a clock ahead of it was read");
            }
            let tolerance = limits::CLOCK_AGREEMENT_OFFSET_MAX + Duration::from_millis(500);
            prop_assert!(stamp.time <= NOON.plus(tolerance), "{stamp:?}");
            if found.is_agreed {
                prop_assert!(found.has_majority);
                prop_assert!(stamp.time >= NOON.minus(tolerance), "{stamp:?}");
            }
        }
    }
}
