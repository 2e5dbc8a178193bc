//! Completed events of a stream that the log does not have yet. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits;
use crate::state::{EventId, NewDeadLetter, StreamCursor};
use crate::transmitter::cursor;

/// The cursor in the log, and the events completed since.
#[derive(Debug)]
pub struct Uncommitted {
    cursor: StreamCursor,
    /// Every event of the stream before it was seen.
    scanned_to: EventId,
    /// Position that is worth a log entry without any delivery.
    skip_to: EventId,
    delivered: BTreeSet<EventId>,
    dead: BTreeMap<EventId, NewDeadLetter>,
    /// Removed from the outbox before they were sent.
    lost: BTreeSet<EventId>,
}

/// A proposal for the log.
#[derive(Debug)]
pub struct Proposal {
    /// The new cursor, with the version of the one that it replaces.
    pub cursor: StreamCursor,
    pub dead: Vec<NewDeadLetter>,
    /// Number of newly delivered events.
    pub delivered: u64,
    /// Number of newly lost events.
    pub lost: u64,
}

impl Uncommitted {
    /// For a stream at `cursor`.
    pub fn new(cursor: StreamCursor) -> Self {
        let (scanned_to, delivered, lost) = (cursor.next, BTreeSet::new(), BTreeSet::new());
        let skip_to = EventId::default();
        Self { cursor, scanned_to, skip_to, delivered, dead: BTreeMap::new(), lost }
    }

    /// Version of the cursor in the log.
    pub const fn version(&self) -> u64 {
        self.cursor.version
    }

    /// How many more events may be started beside `open` ones, so that the cursor's `done` has room for any order of
    /// completion.
    pub fn capacity(&self, open: usize) -> usize {
        let used = open.saturating_add(self.cursor.done.len()).saturating_add(self.len());
        limits::STREAM_WINDOW.saturating_sub(used)
    }

    /// Position from which to read more events.
    pub const fn scanned_to(&self) -> EventId {
        self.scanned_to
    }

    /// Records that everything before `end` was seen.
    pub fn set_scanned_to(&mut self, end: EventId) {
        self.scanned_to = self.scanned_to.max(end);
    }

    /// Records the same without open events, after many rows that do not match.
    pub fn skip_to(&mut self, end: EventId) {
        self.set_scanned_to(end);
        self.skip_to = end;
    }

    /// Whether that position is worth a proposal.
    pub fn is_skip_due(&self) -> bool {
        self.skip_to > self.cursor.next
    }

    /// Whether the log has an event as completed.
    pub fn is_completed(&self, id: EventId) -> bool {
        id < self.cursor.next || self.cursor.done.contains(&id)
    }

    pub fn delivered(&mut self, id: EventId) {
        if !self.is_completed(id) {
            self.delivered.insert(id);
        }
    }

    pub fn dead(&mut self, letter: NewDeadLetter) {
        if !self.is_completed(letter.id) {
            self.dead.insert(letter.id, letter);
        }
    }

    /// An event was removed from the outbox.
    pub fn lost(&mut self, id: EventId) {
        if !self.is_completed(id) {
            self.lost.insert(id);
        }
    }

    /// Number of completed events that the log does not have.
    pub fn len(&self) -> usize {
        self.delivered.len() + self.dead.len() + self.lost.len()
    }

    /// The proposal, with `open` open events. Dead letters may be large and are limited per command.
    pub fn proposal(&self, open: impl Iterator<Item = EventId>) -> Proposal {
        let completed: BTreeSet<_> = self.delivered.union(&self.lost).copied().collect();
        let letters: Vec<_> = self.dead.values().take(limits::DEAD_LETTERS_PER_WRITE_MAX).cloned().collect();
        let dead: BTreeSet<_> = letters.iter().map(|letter| letter.id).collect();
        let open_events = open.chain(self.dead.keys().copied());
        let all: BTreeSet<_> =
            open_events.chain(self.cursor.done.iter().chain(&completed).copied()).collect();
        let matching: Vec<_> = all.into_iter().collect();
        let mut cursor =
            cursor::advance_with_dead_letters(&self.cursor, &matching, self.scanned_to, &completed, &dead);
        let lost = self.lost.len() as u64;
        cursor.delivered = cursor.delivered.saturating_sub(lost);
        cursor.dropped = cursor.dropped.saturating_add(lost);
        let delivered = self.delivered.len() as u64;
        Proposal { cursor, dead: letters, delivered, lost }
    }

    /// The log has another cursor, from this worker or not.
    pub fn committed(&mut self, cursor: StreamCursor) {
        self.cursor = cursor;
        self.scanned_to = self.scanned_to.max(self.cursor.next);
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

    /// For a stream whose events 1 to 9 were seen.
    fn uncommitted() -> Uncommitted {
        let mut uncommitted =
            Uncommitted::new(StreamCursor { next: id(1), version: 4, ..StreamCursor::default() });
        uncommitted.set_scanned_to(id(10));
        uncommitted
    }

    #[test]
    fn completed_events_are_proposed_up_to_the_first_open() {
        let mut uncommitted = uncommitted();
        for delivered in [1, 2, 5] {
            uncommitted.delivered(id(delivered));
        }
        uncommitted.dead(letter(3));
        uncommitted.lost(id(7));
        assert_eq!(uncommitted.len(), 5);
        let proposal = uncommitted.proposal([4, 6, 8, 9].into_iter().map(id));
        let cursor = &proposal.cursor;
        assert_eq!((cursor.next, &cursor.done, cursor.version), (id(4), &ids(&[5, 7]), 4));
        assert_eq!((cursor.delivered, cursor.dropped), (3, 1));
        assert_eq!((proposal.delivered, proposal.dead, proposal.lost), (3, vec![letter(3)], 1));
    }

    #[test]
    fn recorded_events_are_not_proposed_again() {
        let mut uncommitted = uncommitted();
        uncommitted.delivered(id(1));
        uncommitted.delivered(id(5));
        let cursor =
            StreamCursor { version: 5, ..uncommitted.proposal([2, 3, 4, 6].into_iter().map(id)).cursor };
        uncommitted.delivered(id(3));
        uncommitted.committed(cursor.clone());
        assert_eq!((uncommitted.len(), uncommitted.version()), (1, 5));
        assert!(
            uncommitted.is_completed(id(1))
                && uncommitted.is_completed(id(5))
                && !uncommitted.is_completed(id(3))
        );
        uncommitted.delivered(id(5));
        uncommitted.dead(letter(1));
        uncommitted.lost(id(5));
        assert_eq!(uncommitted.len(), 1, "the log has the others");
        let next = uncommitted.proposal([2, 4, 6].into_iter().map(id));
        assert_eq!((next.cursor.next, next.cursor.delivered, next.delivered), (id(2), 3, 1));
        assert_eq!(next.cursor.done, ids(&[3, 5]));
    }

    #[test]
    fn events_dropped_by_others_are_completed() {
        let mut uncommitted = uncommitted();
        uncommitted.delivered(id(2));
        uncommitted.dead(letter(30));
        uncommitted.committed(StreamCursor {
            next: id(20),
            version: 9,
            dropped: 19,
            ..StreamCursor::default()
        });
        assert_eq!((uncommitted.len(), uncommitted.scanned_to()), (1, id(20)));
        let proposal = uncommitted.proposal(std::iter::empty());
        assert_eq!((proposal.cursor.delivered, proposal.cursor.dropped), (0, 19));
        assert_eq!(proposal.dead, [letter(30)]);
    }

    #[test]
    fn dead_letters_per_proposal_are_limited() {
        let most = limits::DEAD_LETTERS_PER_WRITE_MAX as u64;
        let mut uncommitted = Uncommitted::new(StreamCursor::default());
        uncommitted.set_scanned_to(id(most + 3));
        (0..most + 2).for_each(|index| uncommitted.dead(letter(index)));
        uncommitted.delivered(id(most + 2));
        let proposal = uncommitted.proposal(std::iter::empty());
        assert_eq!(proposal.dead.len(), limits::DEAD_LETTERS_PER_WRITE_MAX);
        assert_eq!((proposal.cursor.next, proposal.cursor.done), (id(most), ids(&[most + 2])));
        uncommitted.committed(StreamCursor {
            next: id(most),
            done: ids(&[most + 2]),
            ..StreamCursor::default()
        });
        let proposal = uncommitted.proposal(std::iter::empty());
        assert_eq!(
            (proposal.dead, proposal.cursor.next),
            (vec![letter(most), letter(most + 1)], id(most + 3))
        );
    }

    #[test]
    fn many_other_events_are_passed_without_delivery() {
        let mut uncommitted = uncommitted();
        assert!(!uncommitted.is_skip_due(), "seen rows alone are not worth a proposal");
        uncommitted.skip_to(id(50));
        assert!(uncommitted.is_skip_due());
        let proposal = uncommitted.proposal(std::iter::empty());
        assert_eq!((proposal.cursor.next, proposal.cursor.delivered), (id(50), 0));
        uncommitted.committed(proposal.cursor);
        assert!(!uncommitted.is_skip_due());
    }

    #[test]
    fn window_has_room_for_any_order_of_completion() {
        let mut uncommitted = uncommitted();
        assert_eq!(uncommitted.capacity(0), limits::STREAM_WINDOW);
        assert_eq!(uncommitted.capacity(limits::STREAM_WINDOW + 1), 0);
        uncommitted.delivered(id(2));
        uncommitted.dead(letter(3));
        assert_eq!(uncommitted.capacity(7), limits::STREAM_WINDOW - 9);
        uncommitted.committed(uncommitted.proposal([1].into_iter().map(id)).cursor);
        assert_eq!(uncommitted.capacity(7), limits::STREAM_WINDOW - 9, "they are in the cursor");
    }
}
