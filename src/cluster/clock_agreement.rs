//! Whether the wall clocks of the voters agree, and on which time.
//!
//! Nothing here reads a clock or talks to a node: readings go in, and the times that a log entry carries, or the
//! offset of each node, come out. One clock that is wrong, the leader's included, moves the median of three or more by
//! no more than the others differ.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{LogTimes, Stamp};
use crate::clock::Timestamp;
use crate::limits;

/// A reading of another node's wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The latest that the clock can have shown when the answer was received.
    wall: Timestamp,
    /// When the answer was received, on this node's boot clock.
    received: Duration,
}

impl Reading {
    /// A clock that showed `wall` some time between two moments of this node's boot clock. `None` if these are too far
    /// apart, or the time is in no calendar.
    pub fn new(wall: Timestamp, sent: Duration, received: Duration) -> Option<Self> {
        let round_trip = received.checked_sub(sent)?;
        let is_calendar = (0..=limits::NUMERIC_DATE_MAX_SECS).contains(&wall.secs());
        (is_calendar && round_trip <= limits::CLOCK_ROUND_TRIP_MAX)
            .then(|| Self { wall: wall.plus(round_trip), received })
    }

    /// The time that the clock shows at `now`, if the reading is not too old.
    pub fn at(self, now: Duration) -> Option<Timestamp> {
        let age = now.saturating_sub(self.received);
        (age <= limits::CLOCK_READING_VALID).then(|| self.wall.plus(age))
    }
}

/// The wall clocks of a cluster at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Whether the clocks of a majority of the voters are known.
    pub has_majority: bool,
    /// The median of the voters' clocks; of an even number, the lower middle one.
    median: Option<Timestamp>,
    /// Whether a majority of the voters is close to the median.
    is_agreed: bool,
    /// The time of the clock that is furthest ahead.
    latest: Option<Timestamp>,
    /// Between the voters' first and last.
    spread: Duration,
    /// Milliseconds from the median to each clock; negative of one that is behind.
    offsets: BTreeMap<u64, i64>,
}

impl Agreement {
    /// Of these clocks, each with the time that it shows. Members that are no voters are measured by the median and
    /// have no part in it.
    pub fn of(voters: &BTreeSet<u64>, clocks: &BTreeMap<u64, Timestamp>) -> Self {
        let of_voters = clocks.iter().filter(|(id, _)| voters.contains(id));
        let mut sorted: Vec<Timestamp> = of_voters.map(|(_, wall)| *wall).collect();
        sorted.sort_unstable();
        let majority = voters.len() / 2 + 1;
        let Some(median) = sorted.get(sorted.len().saturating_sub(1) / 2).copied() else {
            return Self::default();
        };
        let close = sorted.iter().filter(|wall| wall.distance(median) <= limits::CLOCK_AGREEMENT).count();
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

    /// The times of the next log entry. `last` are those of the last entry that this node has applied, which is
    /// `elapsed` ago at least.
    pub fn stamp(&self, last: LogTimes, elapsed: Duration) -> Stamp {
        // Before the first entry there is nothing to go on from.
        let is_first = last == LogTimes::default();
        let time = match self.median.filter(|_| self.is_agreed || is_first) {
            Some(median) => last.time.max(median),
            None => last.time.plus(elapsed),
        };
        let latest = self.latest.map_or(time, |latest| latest.max(time));
        Stamp { time, latest, passed: last.passed.plus(elapsed) }
    }

    /// The same, for other nodes and for people.
    pub fn report(&self) -> ClockReport {
        ClockReport { is_agreed: self.is_agreed, spread: self.spread, offsets: self.offsets.clone() }
    }
}

/// Whether a leader may make entries: it must have read the clocks of a majority in its term. One that was elected while
/// others were away may be the only one whose clock is wrong.
#[derive(Debug, Default)]
pub struct FirstReading {
    in_term: Option<u64>,
}

impl FirstReading {
    /// Whether the leader of `term` may, whose clocks stand like this.
    pub fn allows(&mut self, term: u64, agreement: &Agreement) -> bool {
        if agreement.has_majority {
            self.in_term = Some(term);
        }
        self.in_term == Some(term)
    }
}

/// How the wall clocks of the members stand, as the leader says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockReport {
    /// Whether a majority of the voters is close to the median of their clocks.
    pub is_agreed: bool,
    /// Between the voters' clocks that are furthest apart.
    pub spread: Duration,
    /// Milliseconds from the median to each clock that was read of late; negative of one that is behind.
    pub offsets: BTreeMap<u64, i64>,
}

/// How much a node may judge by its wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClockVerdict {
    /// Everything.
    Good,
    /// No credentials of other issuers: the clock is a little off, or nobody knows which clock is right.
    Apart,
    /// Nothing.
    FarApart,
}

impl ClockReport {
    /// How much this node may judge by its wall clock.
    #[must_use]
    pub fn verdict(&self, node_id: u64) -> ClockVerdict {
        let offset = self.offsets.get(&node_id).map(|millis| Duration::from_millis(millis.unsigned_abs()));
        match offset {
            Some(offset) if offset > limits::CLOCK_OFFSET_MAX => ClockVerdict::FarApart,
            _ if !self.is_agreed && self.spread > limits::CLOCK_OFFSET_MAX => ClockVerdict::FarApart,
            Some(offset) if self.is_agreed && offset <= limits::CLOCK_AGREEMENT => ClockVerdict::Good,
            _ => ClockVerdict::Apart,
        }
    }

    /// `now` as the median of the voters shows it, as far as that is known: of a clock without an agreement, itself.
    #[must_use]
    pub fn corrected(&self, node_id: u64, now: Timestamp) -> Timestamp {
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

    /// The clocks of voters 1, 2, …, in milliseconds from noon; `None` of one that was not read.
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
    fn a_reading_that_took_long_or_is_old_counts_for_nothing() {
        let (sent, long) = (5 * SECOND, limits::CLOCK_ROUND_TRIP_MAX);
        let over = Duration::from_millis(1);
        assert_eq!(Reading::new(NOON, sent, sent + long + over), None);
        assert_eq!(Reading::new(NOON, sent, sent.saturating_sub(over)), None);
        let received = sent + long;
        let reading = Reading::new(NOON, sent, received).expect("in time");
        assert_eq!(reading.at(received), Some(NOON.plus(long)), "the latest that it can show");
        assert_eq!(reading.at(received + SECOND), Some(NOON.plus(long + SECOND)), "it goes on");
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
    fn a_member_that_is_no_voter_is_measured_and_moves_nothing() {
        let clocks = BTreeMap::from([(1, at(0)), (2, at(100)), (3, at(-100)), (9, at(60_000))]);
        let found = Agreement::of(&BTreeSet::from([1, 2, 3]), &clocks);
        assert_eq!((found.median, found.spread), (Some(NOON), Duration::from_millis(200)));
        assert_eq!(found.report().verdict(9), ClockVerdict::FarApart);
        assert_eq!(found.report().verdict(1), ClockVerdict::Good);
        assert_eq!(
            found.stamp(LogTimes::default(), SECOND).latest,
            at(60_000),
            "but it may have judged by it"
        );
    }

    #[test]
    fn one_wrong_clock_changes_what_is_covered_and_not_log_time() {
        let last = LogTimes { time: at(-500), passed: at(-90_000) };
        for wrong in [-3_600_000, -10_000, 3_600_000, 100 * 86_400_000] {
            let stamp = read(&[wrong, 0, 100]).stamp(last, SECOND);
            assert!((at(0)..=at(100)).contains(&stamp.time), "{wrong}: {:?}", stamp.time);
            assert_eq!(stamp.latest, at(wrong.max(100)), "{wrong}");
            assert_eq!(stamp.passed, at(-89_000));
        }
    }

    #[test]
    fn without_agreement_log_time_goes_on_by_elapsed_time() {
        let last = LogTimes { time: at(-500), passed: at(-90_000) };
        let stamp = read(&[0, 10_000, -10_000]).stamp(last, SECOND);
        assert_eq!((stamp.time, stamp.latest, stamp.passed), (at(500), at(10_000), at(-89_000)));
        let unread = agreement(&[None, None, None]).stamp(last, SECOND);
        assert_eq!((unread.time, unread.latest), (at(500), at(500)));
    }

    #[test]
    fn with_agreement_log_time_follows_however_far_and_never_back() {
        let year = Duration::from_secs(365 * 86_400);
        let last = LogTimes { time: NOON.minus(year), passed: NOON };
        assert_eq!(read(&[0, 0, 0]).stamp(last, SECOND).time, NOON);
        let last = LogTimes { time: NOON.plus(year), passed: NOON };
        assert_eq!(read(&[0, 0, 0]).stamp(last, SECOND).time, NOON.plus(year));
    }

    #[test]
    fn a_new_leader_makes_no_entry_before_it_has_read_a_majority() {
        let mut first = FirstReading::default();
        let (few, many) = (agreement(&[Some(0), None, None]), agreement(&[Some(0), Some(9), None]));
        assert!(!first.allows(3, &few) && first.allows(3, &many));
        assert!(first.allows(3, &few), "log time goes on without them");
        assert!(!first.allows(4, &few), "another may have led");
        assert!(first.allows(4, &read(&[0])), "a cluster of one follows its own clock");
    }

    #[test]
    fn a_clock_is_judged_by_its_distance_and_by_agreement() {
        use ClockVerdict::{Apart, FarApart, Good};
        let report = read(&[0, 1, 2_001, -2_000, 5_002, -5_001, 0]).report();
        let verdicts: Vec<_> = (1..=8).map(|id| report.verdict(id)).collect();
        // One that was not read may be anywhere.
        assert_eq!(verdicts, [Good, Good, Apart, Good, FarApart, FarApart, Good, Apart]);
        assert_eq!(report.corrected(5, at(5_002)), NOON);
        let report = read(&[0, 4_000]).report();
        assert_eq!((report.verdict(1), report.verdict(2)), (Apart, Apart));
        assert_eq!(report.corrected(2, at(4_000)), at(4_000));
        let report = read(&[0, 5_001]).report();
        assert_eq!((report.verdict(1), report.verdict(2)), (FarApart, FarApart), "which of them is right?");
        assert_eq!(ClockReport::default().verdict(1), Apart);
    }

    proptest! {
        /// As long as more than half of the voters have right clocks, whoever else is read and whatever they show.
        #[test]
        fn what_is_agreed_on_is_close_to_a_clock_that_is_right(
            right in vec(proptest::option::weighted(0.8, -500_i64..500), 2..5),
            wrong in vec(proptest::option::of(any::<i32>().prop_map(i64::from)), 0..2),
            last in -1_000_000_i64..0,
        ) {
            let clocks: Vec<_> = right.iter().chain(&wrong).copied().collect();
            let found = agreement(&clocks);
            let last = LogTimes { time: at(last), passed: at(0) };
            let stamp = found.stamp(last, SECOND);
            prop_assert!(stamp.time >= last.time && stamp.latest >= stamp.time);
            for clock in clocks.iter().flatten() {
                prop_assert!(stamp.latest >= at(*clock), "a clock ahead of it was read");
            }
            let tolerance = limits::CLOCK_AGREEMENT + Duration::from_millis(500);
            prop_assert!(stamp.time <= NOON.plus(tolerance), "{stamp:?}");
            if found.is_agreed {
                prop_assert!(found.has_majority);
                prop_assert!(stamp.time >= NOON.minus(tolerance), "{stamp:?}");
            }
        }
    }
}
