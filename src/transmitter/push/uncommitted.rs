//! What a worker has done with its stream's events and the log does not know yet. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits;
use crate::state::{EventId, NewDeadLetter, StreamCursor};
use crate::transmitter::cursor;

/// The cursor as the log has it, and what is over since.
#[derive(Debug)]
pub struct Ledger {
    cursor: StreamCursor,
    /// Every event of the stream before it is known here.
    looked_up_to: EventId,
    /// So much of it is worth an entry of the log, whatever is delivered.
    passed: EventId,
    delivered: BTreeSet<EventId>,
    dead: BTreeMap<EventId, NewDeadLetter>,
    /// Dropped from the outbox before they were sent.
    lost: BTreeSet<EventId>,
}

/// What is to be recorded.
#[derive(Debug)]
pub struct Proposal {
    /// The cursor as it is to be, with the version of the one it was made from.
    pub cursor: StreamCursor,
    /// The dead letters in it.
    pub dead: Vec<NewDeadLetter>,
    /// How many are delivered by it.
    pub delivered: u64,
    /// How many are lost by it.
    pub lost: u64,
}

impl Ledger {
    /// Of a stream that stands there.
    #[must_use]
    pub fn new(cursor: StreamCursor) -> Self {
        let (looked_up_to, delivered, lost) = (cursor.next, BTreeSet::new(), BTreeSet::new());
        let passed = EventId::default();
        Self { cursor, looked_up_to, passed, delivered, dead: BTreeMap::new(), lost }
    }

    /// Which cursor of the log this is.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.cursor.version
    }

    /// How many more events may be taken up beside so many that are not done: whichever of them are done first,
    /// the cursor must have room for them.
    #[must_use]
    pub fn room(&self, not_done: usize) -> usize {
        let taken = not_done.saturating_add(self.cursor.done.len()).saturating_add(self.unrecorded());
        limits::STREAM_WINDOW.saturating_sub(taken)
    }

    /// Where to look for more.
    #[must_use]
    pub const fn looked_up_to(&self) -> EventId {
        self.looked_up_to
    }

    /// Takes note that everything before `end` is known; whether there is anything new before it.
    pub fn look_up_to(&mut self, end: EventId) {
        self.looked_up_to = self.looked_up_to.max(end);
    }

    /// Takes note of the same, where nothing before it waits, and of much that the stream is not for.
    pub fn pass(&mut self, end: EventId) {
        self.look_up_to(end);
        self.passed = end;
    }

    /// Whether the log is to know that.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.passed > self.cursor.next
    }

    /// Whether the log knows that it is over with an event.
    #[must_use]
    pub fn is_over(&self, id: EventId) -> bool {
        id < self.cursor.next || self.cursor.done.contains(&id)
    }

    /// The receiver has an event.
    pub fn delivered(&mut self, id: EventId) {
        if !self.is_over(id) {
            self.delivered.insert(id);
        }
    }

    /// The receiver will never take an event.
    pub fn dead(&mut self, letter: NewDeadLetter) {
        if !self.is_over(letter.id) {
            self.dead.insert(letter.id, letter);
        }
    }

    /// An event is not there any more.
    pub fn lost(&mut self, id: EventId) {
        if !self.is_over(id) {
            self.lost.insert(id);
        }
    }

    /// How many events it is over with and the log does not know.
    #[must_use]
    pub fn unrecorded(&self) -> usize {
        self.delivered.len() + self.dead.len() + self.lost.len()
    }

    /// What is to be recorded while those of `not_done` are known too. Of dead letters, which may be large, only
    /// so many at once.
    #[must_use]
    pub fn proposal(&self, not_done: impl Iterator<Item = EventId>) -> Proposal {
        let over: BTreeSet<_> = self.delivered.union(&self.lost).copied().collect();
        let letters: Vec<_> = self.dead.values().take(limits::DEAD_LETTERS_AT_ONCE_MAX).cloned().collect();
        let dead: BTreeSet<_> = letters.iter().map(|letter| letter.id).collect();
        let open = not_done.chain(self.dead.keys().copied());
        let all: BTreeSet<_> = open.chain(self.cursor.done.iter().chain(&over).copied()).collect();
        let matching: Vec<_> = all.into_iter().collect();
        let mut cursor = cursor::with_dead_letters(&self.cursor, &matching, self.looked_up_to, &over, &dead);
        let lost = self.lost.len() as u64;
        cursor.delivered = cursor.delivered.saturating_sub(lost);
        cursor.dropped = cursor.dropped.saturating_add(lost);
        let delivered = self.delivered.len() as u64;
        Proposal { cursor, dead: letters, delivered, lost }
    }

    /// The log has another cursor now, of our making or not.
    pub fn recorded(&mut self, cursor: StreamCursor) {
        self.cursor = cursor;
        self.looked_up_to = self.looked_up_to.max(self.cursor.next);
        let cursor = &self.cursor;
        let is_open = |id: &EventId| *id >= cursor.next && !cursor.done.contains(id);
        self.delivered.retain(is_open);
        self.dead.retain(|id, _| is_open(id));
        self.lost.retain(is_open);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u64) -> EventId {
        EventId { index, number: 0 }
    }

    fn ids(indices: &[u64]) -> BTreeSet<EventId> {
        indices.iter().copied().map(id).collect()
    }

    fn letter(index: u64) -> NewDeadLetter {
        NewDeadLetter {
            id: id(index),
            err: "invalid_key".to_owned(),
            description: String::new(),
            event_type: "e".to_owned(),
            sub_id: "{}".to_owned(),
        }
    }

    /// Of a stream that knows the events 1 to 9.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(StreamCursor { next: id(1), version: 4, ..StreamCursor::default() });
        ledger.look_up_to(id(10));
        ledger
    }

    #[test]
    fn what_is_over_is_recorded_in_its_kind_and_up_to_the_first_that_is_not() {
        let mut ledger = ledger();
        for delivered in [1, 2, 5] {
            ledger.delivered(id(delivered));
        }
        ledger.dead(letter(3));
        ledger.lost(id(7));
        assert_eq!(ledger.unrecorded(), 5);
        let proposal = ledger.proposal([4, 6, 8, 9].into_iter().map(id));
        let cursor = &proposal.cursor;
        assert_eq!((cursor.next, &cursor.done, cursor.version), (id(4), &ids(&[5, 7]), 4));
        assert_eq!((cursor.delivered, cursor.dropped), (3, 1));
        assert_eq!((proposal.delivered, proposal.dead, proposal.lost), (3, vec![letter(3)], 1));
    }

    #[test]
    fn what_the_log_knows_is_not_recorded_again() {
        let mut ledger = ledger();
        ledger.delivered(id(1));
        ledger.delivered(id(5));
        let cursor = StreamCursor { version: 5, ..ledger.proposal([2, 3, 4, 6].into_iter().map(id)).cursor };
        ledger.delivered(id(3));
        ledger.recorded(cursor.clone());
        assert_eq!((ledger.unrecorded(), ledger.version()), (1, 5));
        assert!(ledger.is_over(id(1)) && ledger.is_over(id(5)) && !ledger.is_over(id(3)));
        ledger.delivered(id(5));
        ledger.dead(letter(1));
        ledger.lost(id(5));
        assert_eq!(ledger.unrecorded(), 1, "it is over with those");
        let next = ledger.proposal([2, 4, 6].into_iter().map(id));
        assert_eq!((next.cursor.next, next.cursor.delivered, next.delivered), (id(2), 3, 1));
        assert_eq!(next.cursor.done, ids(&[3, 5]));
    }

    #[test]
    fn what_somebody_else_dropped_is_over_and_where_to_look_goes_with_it() {
        let mut ledger = ledger();
        ledger.delivered(id(2));
        ledger.dead(letter(30));
        ledger.recorded(StreamCursor { next: id(20), version: 9, dropped: 19, ..StreamCursor::default() });
        assert_eq!((ledger.unrecorded(), ledger.looked_up_to()), (1, id(20)));
        let proposal = ledger.proposal(std::iter::empty());
        assert_eq!((proposal.cursor.delivered, proposal.cursor.dropped), (0, 19));
        assert_eq!(proposal.dead, [letter(30)]);
    }

    #[test]
    fn only_so_many_dead_letters_are_recorded_at_once() {
        let most = limits::DEAD_LETTERS_AT_ONCE_MAX as u64;
        let mut ledger = Ledger::new(StreamCursor::default());
        ledger.look_up_to(id(most + 3));
        (0..most + 2).for_each(|index| ledger.dead(letter(index)));
        ledger.delivered(id(most + 2));
        let proposal = ledger.proposal(std::iter::empty());
        assert_eq!(proposal.dead.len(), limits::DEAD_LETTERS_AT_ONCE_MAX);
        assert_eq!((proposal.cursor.next, proposal.cursor.done), (id(most), ids(&[most + 2])));
        ledger.recorded(StreamCursor { next: id(most), done: ids(&[most + 2]), ..StreamCursor::default() });
        let proposal = ledger.proposal(std::iter::empty());
        assert_eq!(
            (proposal.dead, proposal.cursor.next),
            (vec![letter(most), letter(most + 1)], id(most + 3))
        );
    }

    #[test]
    fn what_a_stream_is_not_for_is_passed_when_it_is_much() {
        let mut ledger = ledger();
        assert!(!ledger.is_passing(), "what was only looked at can be looked at again");
        ledger.pass(id(50));
        assert!(ledger.is_passing());
        let proposal = ledger.proposal(std::iter::empty());
        assert_eq!((proposal.cursor.next, proposal.cursor.delivered), (id(50), 0));
        ledger.recorded(proposal.cursor);
        assert!(!ledger.is_passing());
    }

    #[test]
    fn there_is_room_for_a_window_of_events_whichever_are_done_first() {
        let mut ledger = ledger();
        assert_eq!(ledger.room(0), limits::STREAM_WINDOW);
        assert_eq!(ledger.room(limits::STREAM_WINDOW + 1), 0);
        ledger.delivered(id(2));
        ledger.dead(letter(3));
        assert_eq!(ledger.room(7), limits::STREAM_WINDOW - 9);
        ledger.recorded(ledger.proposal([1].into_iter().map(id)).cursor);
        assert_eq!(ledger.room(7), limits::STREAM_WINDOW - 9, "they stand in the cursor");
    }
}
