//! Backlog of a stream, and the excess that is dropped (contract §6). Pure.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::state::{EventId, OutboxEvent, StreamCursor};

/// Retention of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Maximum undelivered events.
    pub events_max: u64,
    /// Events beyond the maximum before any is dropped: saves a proposal per event, and lets a stream that is resumed
    /// with a full backlog begin to deliver.
    pub events_slack: u64,
    /// Maximum age of an undelivered event.
    pub age_max: Duration,
    /// Age beyond the maximum before an event is dropped, for the same reasons.
    pub age_slack: Duration,
}

/// Count of a stream's undelivered events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// The cursor at which the count began.
    from: StreamCursor,
    /// Matching events from there on.
    counted: u64,
    /// No undelivered event is older.
    oldest: Timestamp,
    /// No undelivered event has a smaller id.
    first: EventId,
}

/// Excess over the retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// Number of events to drop.
    Events(u64),
    /// Events from before this time are to be dropped.
    Age(Timestamp),
    /// Some of the undelivered events before `end` are no longer in the outbox, which exceeded its size.
    Removed {
        /// Number of undelivered events before `end`, with those that were removed.
        undelivered: u64,
        end: EventId,
    },
}

impl Backlog {
    /// For a stream at `cursor`, before its events are counted.
    pub const fn new(cursor: StreamCursor) -> Self {
        let first = cursor.next;
        Self { from: cursor, counted: 0, oldest: Timestamp::from_millis(0), first }
    }

    /// Counts a matching event and returns whether it is undelivered.
    pub fn count(&mut self, id: EventId, elapsed: Timestamp) -> bool {
        if id < self.from.next || self.from.done.contains(&id) {
            return false;
        }
        if self.counted == 0 {
            (self.oldest, self.first) = (elapsed, id);
        }
        self.counted = self.counted.saturating_add(1);
        true
    }

    /// Position at which the count begins.
    pub const fn begin(&self) -> EventId {
        self.from.next
    }

    /// Number of undelivered events, with the stream's cursor at `now`.
    pub const fn undelivered(&self, now: &StreamCursor) -> u64 {
        self.counted.saturating_sub(completed(now).saturating_sub(completed(&self.from)))
    }

    /// Resets an empty backlog: the next event is the oldest.
    pub fn reset(&mut self, now: &StreamCursor) {
        *self = Self::new(now.clone());
    }

    /// Records that no undelivered event is older.
    pub fn set_oldest(&mut self, (first, elapsed): (EventId, Timestamp)) {
        (self.oldest, self.first) = (self.oldest.max(elapsed), self.first.max(first));
    }

    /// Whether a counted event was removed from the outbox, which begins at `begin`.
    pub fn is_truncated(&self, begin: EventId) -> bool {
        self.counted > 0 && self.first < begin
    }

    /// The excess of `undelivered` events at `elapsed`, in elapsed time.
    pub fn excess(&self, retention: &Retention, undelivered: u64, elapsed: Timestamp) -> Option<Excess> {
        if undelivered == 0 {
            None
        } else if undelivered > retention.events_max.saturating_add(retention.events_slack) {
            Some(Excess::Events(undelivered.saturating_sub(retention.events_max)))
        } else if elapsed.since(self.oldest) > retention.age_max.saturating_add(retention.age_slack) {
            Some(Excess::Age(elapsed.minus(retention.age_max)))
        } else {
            None
        }
    }
}

/// Number of completed events.
const fn completed(cursor: &StreamCursor) -> u64 {
    cursor.delivered.saturating_add(cursor.dead_letters).saturating_add(cursor.dropped)
}

/// Drops the oldest events from a cursor.
#[derive(Debug)]
pub struct Dropping {
    cursor: StreamCursor,
    excess: Excess,
    /// The next event to visit.
    next: Option<EventId>,
    dropped: u64,
    /// Log time of the first dropped event.
    since: Option<Timestamp>,
    oldest: Option<(EventId, Timestamp)>,
}

impl Dropping {
    /// Begins at the stream's cursor.
    pub const fn new(cursor: StreamCursor, excess: Excess) -> Self {
        let dropped = if let Excess::Removed { undelivered, .. } = excess { undelivered } else { 0 };
        Self { next: Some(cursor.next), cursor, excess, dropped, since: None, oldest: None }
    }

    /// Version of the cursor at which it began.
    pub const fn version(&self) -> u64 {
        self.cursor.version
    }

    /// The next event to visit; `None` if no later one matters.
    pub const fn next(&self) -> Option<EventId> {
        self.next
    }

    /// Visits an event of the outbox. Events come in order; one before the cursor changes nothing.
    pub fn visit(&mut self, event: &OutboxEvent, matches: impl FnOnce(&OutboxEvent) -> bool) {
        if self.next.is_none_or(|next| event.id < next) {
            return;
        }
        if matches!(self.excess, Excess::Removed { end, .. } if event.id >= end) {
            self.next = None;
            return;
        }
        if matches(event) && !self.cursor.done.contains(&event.id) {
            self.visit_undelivered(event);
        }
        if self.oldest.is_none() {
            self.cursor.next = event.id.next();
        }
        self.next = self.next.map(|_| event.id.next());
    }

    fn visit_undelivered(&mut self, event: &OutboxEvent) {
        let is_dropped = match self.excess {
            Excess::Events(events) => self.dropped < events,
            Excess::Age(before) => event.elapsed < before,
            Excess::Removed { .. } => false,
        };
        if is_dropped {
            self.since.get_or_insert(event.at);
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        self.oldest.get_or_insert((event.id, event.elapsed));
        match self.excess {
            // It is there, so it was not removed.
            Excess::Removed { .. } => self.dropped = self.dropped.saturating_sub(1),
            Excess::Events(_) | Excess::Age(_) => self.next = None,
        }
    }

    /// The oldest event that stays with its elapsed time, if it was visited.
    pub const fn oldest(&self) -> Option<(EventId, Timestamp)> {
        self.oldest
    }

    /// Number of dropped events.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Reason for which events are dropped; `None` if there are none.
    pub fn reason(&self, retention: &Retention) -> Option<String> {
        let excess = match self.excess {
            Excess::Events(_) => format!("more than {} events wait", retention.events_max),
            Excess::Age(_) => {
                format!("events wait for more than {}", humantime::format_duration(retention.age_max))
            }
            Excess::Removed { .. } => {
                let removed = || {
                    format!("{} events were dropped: the events of all streams exceeded 1 GiB", self.dropped)
                };
                return (self.dropped > 0).then(removed);
            }
        };
        let since = self.since?.to_rfc3339();
        Some(format!("{excess}, the oldest since {since}; the oldest are dropped"))
    }

    /// The cursor after the dropped events.
    pub fn into_cursor(mut self) -> StreamCursor {
        self.cursor.done = self.cursor.done.split_off(&self.cursor.next);
        self.cursor.dropped = self.cursor.dropped.saturating_add(self.dropped);
        self.cursor
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Map;

    use super::*;
    use crate::state::SecurityEvent;

    const RETENTION: Retention = Retention {
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

    /// One event per second of the range, with the second as index.
    fn backlog(from: &StreamCursor, seconds: std::ops::Range<u64>) -> Backlog {
        let mut backlog = Backlog::new(from.clone());
        for second in seconds {
            backlog.count(id(second), at(second));
        }
        backlog
    }

    #[test]
    fn completed_events_are_not_backlog() {
        let from = cursor(5, &[7, 8]);
        let backlog = backlog(&from, 0..15);
        assert_eq!(backlog.undelivered(&from), 8, "5, 6 and 9 to 14");
        let later = StreamCursor { delivered: 72, dropped: 4, dead_letters: 5, ..from.clone() };
        assert_eq!(backlog.undelivered(&later), 2);
        assert_eq!(backlog.undelivered(&StreamCursor { delivered: 170, ..from }), 0);
    }

    #[test]
    fn events_beyond_maximum_and_slack_are_excess() {
        let from = cursor(0, &[]);
        let backlog = backlog(&from, 0..1);
        for (undelivered, excess) in [
            (0, None),
            (10, None),
            (12, None),
            (13, Some(Excess::Events(3))),
            (1000, Some(Excess::Events(990))),
        ] {
            assert_eq!(backlog.excess(&RETENTION, undelivered, at(50)), excess, "{undelivered}");
        }
    }

    #[test]
    fn age_beyond_maximum_and_slack_is_excess() {
        let backlog = backlog(&cursor(7, &[]), 7..9);
        assert_eq!(backlog.excess(&RETENTION, 2, at(107)), None);
        assert_eq!(backlog.excess(&RETENTION, 2, at(112)), None);
        assert_eq!(backlog.excess(&RETENTION, 2, at(113)), Some(Excess::Age(at(13))));
        assert_eq!(backlog.excess(&RETENTION, 0, at(500)), None, "empty");
        let mut backlog = backlog;
        backlog.set_oldest((id(8), at(8)));
        assert_eq!(backlog.excess(&RETENTION, 1, at(113)), None);
    }

    #[test]
    fn first_event_of_empty_backlog_is_oldest() {
        let mut backlog = backlog(&cursor(0, &[]), 0..3);
        let now = StreamCursor { next: id(3), delivered: 73, ..cursor(0, &[]) };
        assert_eq!(backlog.undelivered(&now), 0);
        backlog.reset(&now);
        assert!(backlog.count(id(90), at(90)));
        assert!(!backlog.count(id(2), at(2)));
        assert_eq!(backlog.undelivered(&now), 1);
        assert_eq!(backlog.excess(&RETENTION, 1, at(190)), None);
        assert_eq!(backlog.excess(&RETENTION, 1, at(196)), Some(Excess::Age(at(96))));
    }

    #[test]
    fn event_removed_from_outbox_is_noticed() {
        let mut backlog = backlog(&cursor(0, &[]), 4..7);
        assert!(!backlog.is_truncated(id(4)));
        assert!(backlog.is_truncated(id(5)));
        backlog.set_oldest((id(5), at(5)));
        assert!(!backlog.is_truncated(id(5)));
        assert!(!Backlog::new(cursor(0, &[])).is_truncated(id(5)), "nothing was counted");
    }

    fn event(second: u64) -> OutboxEvent {
        let event = SecurityEvent::of_stream("urn:event", "stream", Map::new());
        OutboxEvent { id: id(second), event, at: at(1000 + second), elapsed: at(second), stream_id: None }
    }

    /// Drops from one event per second up to 20, of which the odd ones match.
    fn drop_odd(from: &StreamCursor, excess: Excess) -> (StreamCursor, u64, Option<(EventId, Timestamp)>) {
        let mut dropping = Dropping::new(from.clone(), excess);
        for second in 0..20 {
            dropping.visit(&event(second), |event| event.id.index % 2 == 1);
        }
        let (dropped, oldest) = (dropping.dropped(), dropping.oldest());
        assert_eq!(dropping.next().is_none(), oldest.is_some());
        (dropping.into_cursor(), dropped, oldest)
    }

    #[test]
    fn oldest_events_are_dropped_up_to_the_excess() {
        let (cursor_now, dropped, oldest) = drop_odd(&cursor(0, &[]), Excess::Events(3));
        assert_eq!((cursor_now.next, cursor_now.dropped, dropped), (id(6).next(), 6, 3));
        assert_eq!(oldest, Some((id(7), at(7))));
        // Events that are done already do not count, nor those before the cursor.
        let (cursor_now, dropped, _) = drop_odd(&cursor(0, &[3, 7, 17]), Excess::Events(3));
        assert_eq!((cursor_now.next, dropped), (id(10).next(), 3), "1, 5 and 9 go");
        assert_eq!(cursor_now.done, BTreeSet::from([id(17)]));
        let (cursor_now, dropped, oldest) = drop_odd(&cursor(8, &[]), Excess::Events(1));
        assert_eq!((cursor_now.next, dropped, oldest), (id(10).next(), 1, Some((id(11), at(11)))));
        let (cursor_now, dropped, oldest) = drop_odd(&cursor(0, &[]), Excess::Age(at(9)));
        assert_eq!((cursor_now.next, dropped, oldest), (id(8).next(), 4, Some((id(9), at(9)))));
        let (cursor_now, dropped, oldest) = drop_odd(&cursor(0, &[]), Excess::Events(100));
        assert_eq!((cursor_now.next, dropped, oldest), (id(19).next(), 10, None));
    }

    /// Regression: a stream lost events without a count and a reason.
    #[test]
    fn events_removed_from_the_outbox_count_as_dropped() {
        // 1, 3, 5 and 7 wait, of which the outbox has lost those before 4.
        let mut dropping = Dropping::new(cursor(0, &[]), Excess::Removed { undelivered: 4, end: id(8) });
        for second in 4..20 {
            dropping.visit(&event(second), |event| event.id.index % 2 == 1);
        }
        assert_eq!((dropping.next(), dropping.oldest(), dropping.dropped()), (None, Some((id(5), at(5))), 2));
        let reason = dropping.reason(&RETENTION).expect("a reason");
        assert!(reason.starts_with("2 events were dropped"), "{reason}");
        let cursor_now = dropping.into_cursor();
        assert_eq!((cursor_now.next, cursor_now.dropped), (id(4).next(), 5));
        // None was removed: a count that begins early is no loss.
        let mut dropping = Dropping::new(cursor(4, &[]), Excess::Removed { undelivered: 2, end: id(8) });
        (4..9).for_each(|second| dropping.visit(&event(second), |event| event.id.index % 2 == 1));
        assert_eq!((dropping.dropped(), dropping.reason(&RETENTION)), (0, None));
        assert_eq!(dropping.oldest(), Some((id(5), at(5))));
    }

    #[test]
    fn reason_names_the_excess_and_its_first_event() {
        let reason = |excess| {
            let mut dropping = Dropping::new(cursor(2, &[3]), excess);
            (1..9).for_each(|second| dropping.visit(&event(second), |_| true));
            dropping.reason(&RETENTION)
        };
        let since = "the oldest since 1970-01-01T00:16:42.000Z; the oldest are dropped";
        assert_eq!(reason(Excess::Events(2)), Some(format!("more than 10 events wait, {since}")));
        assert_eq!(reason(Excess::Age(at(5))), Some(format!("events wait for more than 1m 40s, {since}")));
        assert_eq!(reason(Excess::Age(at(2))), None, "nothing is dropped");
    }
}
