//! How much waits for a stream, and what is dropped when that is too much (contract §6). Pure.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::state::{EventId, StreamCursor};

/// How much a stream holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holds {
    /// Most events that wait.
    pub events_max: u64,
    /// How many more there must be before something is dropped, so that not every event has a proposal of its
    /// own, and a stream that is resumed with all it holds can begin to deliver.
    pub events_slack: u64,
    /// Longest time that an event waits.
    pub age_max: Duration,
    /// How much longer it must be before something is dropped, for the same reasons.
    pub age_slack: Duration,
}

/// How much waits for one stream, in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Where counting began: the cursor as it was then.
    from: StreamCursor,
    /// Events from there on.
    arrived: u64,
    /// None that waits is older.
    oldest: Timestamp,
    /// Nor has one that waits an id before it.
    first: EventId,
}

/// What is too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// More events than are held: so many of them are to go.
    Events(u64),
    /// Events that are older than they are held: those from before this time are to go.
    Age(Timestamp),
}

impl Backlog {
    /// Of a stream that stands there, before its events are counted.
    #[must_use]
    pub const fn new(cursor: StreamCursor) -> Self {
        let first = cursor.next;
        Self { from: cursor, arrived: 0, oldest: Timestamp::from_millis(0), first }
    }

    /// Counts an event that waited there or has come since; whether it does wait.
    pub fn arrived(&mut self, id: EventId, passed: Timestamp) -> bool {
        if id < self.from.next || self.from.done.contains(&id) {
            return false;
        }
        if self.arrived == 0 {
            (self.oldest, self.first) = (passed, id);
        }
        self.arrived = self.arrived.saturating_add(1);
        true
    }

    /// Where counting begins.
    #[must_use]
    pub const fn begin(&self) -> EventId {
        self.from.next
    }

    /// How many wait, if the stream stands there now.
    #[must_use]
    pub const fn waiting(&self, now: &StreamCursor) -> u64 {
        self.arrived.saturating_sub(over(now).saturating_sub(over(&self.from)))
    }

    /// Nothing waits: what comes next is the oldest.
    pub fn emptied(&mut self, now: &StreamCursor) {
        *self = Self::new(now.clone());
    }

    /// Takes note that nothing which waits is older.
    pub fn is_not_older_than(&mut self, (first, passed): (EventId, Timestamp)) {
        (self.oldest, self.first) = (self.oldest.max(passed), self.first.max(first));
    }

    /// Whether something that was counted is not in the outbox any more, which begins there.
    #[must_use]
    pub fn is_cut_off(&self, begin: EventId) -> bool {
        self.arrived > 0 && self.first < begin
    }

    /// What is too much of so many, at a time that has passed.
    #[must_use]
    pub fn excess(&self, holds: &Holds, waiting: u64, passed: Timestamp) -> Option<Excess> {
        if waiting == 0 {
            None
        } else if waiting > holds.events_max.saturating_add(holds.events_slack) {
            Some(Excess::Events(waiting.saturating_sub(holds.events_max)))
        } else if passed.since(self.oldest) > holds.age_max.saturating_add(holds.age_slack) {
            Some(Excess::Age(passed.minus(holds.age_max)))
        } else {
            None
        }
    }
}

/// How many events it is over with, whichever way.
const fn over(cursor: &StreamCursor) -> u64 {
    cursor.delivered.saturating_add(cursor.dead_letters).saturating_add(cursor.dropped)
}

/// A cursor that leaves the oldest events behind.
#[derive(Debug)]
pub struct Dropping {
    cursor: StreamCursor,
    excess: Excess,
    dropped: u64,
    /// The oldest event that stays, and when it came.
    oldest: Option<(EventId, Timestamp)>,
}

impl Dropping {
    /// From where the stream stands.
    #[must_use]
    pub const fn new(cursor: StreamCursor, excess: Excess) -> Self {
        Self { cursor, excess, dropped: 0, oldest: None }
    }

    /// Looks at the next event from the cursor on, and whether it is one of the stream's; whether to look
    /// further.
    pub fn look(&mut self, id: EventId, passed: Timestamp, is_for_it: bool) -> bool {
        if is_for_it && !self.cursor.done.contains(&id) {
            let is_dropped = match self.excess {
                Excess::Events(events) => self.dropped < events,
                Excess::Age(before) => passed < before,
            };
            if !is_dropped {
                self.oldest = Some((id, passed));
                return false;
            }
            self.dropped = self.dropped.saturating_add(1);
        }
        self.cursor.next = id.next();
        true
    }

    /// The cursor as far as was looked, how many events that drops, and the oldest that stays if it was seen.
    #[must_use]
    pub fn end(mut self) -> (StreamCursor, u64, Option<(EventId, Timestamp)>) {
        self.cursor.done = self.cursor.done.split_off(&self.cursor.next);
        self.cursor.dropped = self.cursor.dropped.saturating_add(self.dropped);
        (self.cursor, self.dropped, self.oldest)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const HOLDS: Holds = Holds {
        events_max: 10,
        events_slack: 2,
        age_max: Duration::from_secs(100),
        age_slack: Duration::from_secs(5),
    };

    fn id(index: u64) -> EventId {
        EventId { index, number: 0 }
    }

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(i64::try_from(secs).expect("small"))
    }

    fn cursor(next: u64, done: &[u64]) -> StreamCursor {
        let done = done.iter().copied().map(id).collect();
        StreamCursor {
            next: id(next),
            done,
            delivered: 70,
            dropped: 3,
            dead_letters: 2,
            ..StreamCursor::default()
        }
    }

    /// Events of these seconds, each with the index of its second.
    fn backlog(from: &StreamCursor, seconds: std::ops::Range<u64>) -> Backlog {
        let mut backlog = Backlog::new(from.clone());
        for second in seconds {
            backlog.arrived(id(second), at(second));
        }
        backlog
    }

    #[test]
    fn what_is_over_whichever_way_does_not_wait() {
        let from = cursor(5, &[7, 8]);
        let backlog = backlog(&from, 0..15);
        assert_eq!(backlog.waiting(&from), 8, "5, 6 and 9 to 14");
        let later = StreamCursor { delivered: 72, dropped: 4, dead_letters: 5, ..from.clone() };
        assert_eq!(backlog.waiting(&later), 2);
        assert_eq!(backlog.waiting(&StreamCursor { delivered: 170, ..from }), 0);
    }

    #[test]
    fn a_stream_holds_so_many_events_and_a_few_more_before_some_are_dropped() {
        let from = cursor(0, &[]);
        let backlog = backlog(&from, 0..1);
        for (waiting, excess) in [
            (0, None),
            (10, None),
            (12, None),
            (13, Some(Excess::Events(3))),
            (1000, Some(Excess::Events(990))),
        ] {
            assert_eq!(backlog.excess(&HOLDS, waiting, at(50)), excess, "{waiting}");
        }
    }

    #[test]
    fn a_stream_holds_an_event_so_long_and_a_little_more_before_it_is_dropped() {
        let backlog = backlog(&cursor(7, &[]), 7..9);
        assert_eq!(backlog.excess(&HOLDS, 2, at(107)), None);
        assert_eq!(backlog.excess(&HOLDS, 2, at(112)), None);
        assert_eq!(backlog.excess(&HOLDS, 2, at(113)), Some(Excess::Age(at(13))));
        assert_eq!(backlog.excess(&HOLDS, 0, at(500)), None, "nothing waits");
        let mut backlog = backlog;
        backlog.is_not_older_than((id(8), at(8)));
        assert_eq!(backlog.excess(&HOLDS, 1, at(113)), None);
    }

    #[test]
    fn what_comes_when_nothing_waited_is_the_oldest() {
        let mut backlog = backlog(&cursor(0, &[]), 0..3);
        let now = StreamCursor { next: id(3), delivered: 73, ..cursor(0, &[]) };
        assert_eq!(backlog.waiting(&now), 0);
        backlog.emptied(&now);
        assert!(backlog.arrived(id(90), at(90)));
        assert!(!backlog.arrived(id(2), at(2)));
        assert_eq!(backlog.waiting(&now), 1);
        assert_eq!(backlog.excess(&HOLDS, 1, at(190)), None);
        assert_eq!(backlog.excess(&HOLDS, 1, at(196)), Some(Excess::Age(at(96))));
    }

    #[test]
    fn what_is_not_in_the_outbox_any_more_makes_a_count_doubtful() {
        let mut backlog = backlog(&cursor(0, &[]), 4..7);
        assert!(!backlog.is_cut_off(id(4)));
        assert!(backlog.is_cut_off(id(5)));
        backlog.is_not_older_than((id(5), at(5)));
        assert!(!backlog.is_cut_off(id(5)));
        assert!(!Backlog::new(cursor(0, &[])).is_cut_off(id(5)), "nothing was counted");
    }

    /// Drops from events of the seconds from 0 on, of which the odd ones are the stream's.
    fn drop_odd(from: &StreamCursor, excess: Excess) -> (StreamCursor, u64, Option<(EventId, Timestamp)>) {
        let mut dropping = Dropping::new(from.clone(), excess);
        for second in from.next.index..20 {
            if !dropping.look(id(second), at(second), second % 2 == 1) {
                break;
            }
        }
        dropping.end()
    }

    #[test]
    fn the_oldest_are_dropped_and_no_more_than_the_excess() {
        let (cursor_now, dropped, oldest) = drop_odd(&cursor(0, &[]), Excess::Events(3));
        assert_eq!((cursor_now.next, cursor_now.dropped, dropped), (id(6).next(), 6, 3));
        assert_eq!(oldest, Some((id(7), at(7))));
        // What is done already is passed, and counts for nothing.
        let (cursor_now, dropped, _) = drop_odd(&cursor(0, &[3, 7, 17]), Excess::Events(3));
        assert_eq!((cursor_now.next, dropped), (id(10).next(), 3), "1, 5 and 9 go");
        assert_eq!(cursor_now.done, BTreeSet::from([id(17)]));
        let (cursor_now, dropped, oldest) = drop_odd(&cursor(0, &[]), Excess::Age(at(9)));
        assert_eq!((cursor_now.next, dropped, oldest), (id(8).next(), 4, Some((id(9), at(9)))));
        let (cursor_now, dropped, oldest) = drop_odd(&cursor(0, &[]), Excess::Events(100));
        assert_eq!((cursor_now.next, dropped, oldest), (id(19).next(), 10, None));
    }
}
