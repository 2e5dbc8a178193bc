//! Streams that are counted from an earlier event on than the others: one group after the other, so that
//! however many change, the outbox is read for all of a group at once.

use std::collections::BTreeMap;

use crate::state::EventId;

/// Which streams are counted from where.
#[derive(Debug, Default)]
pub struct Behind {
    /// Those that are being counted, and how far that is.
    group: BTreeMap<String, EventId>,
    position: EventId,
    /// Those that are next.
    waiting: BTreeMap<String, EventId>,
}

impl Behind {
    /// Has a stream counted from there on, instead of what was to be counted of it.
    pub fn put(&mut self, stream_id: &str, from: EventId) {
        self.group.remove(stream_id);
        self.waiting.insert(stream_id.to_owned(), from);
    }

    /// It is not counted any more.
    pub fn remove(&mut self, stream_id: &str) {
        self.group.remove(stream_id);
        self.waiting.remove(stream_id);
    }

    /// Whether a stream is not where the others are.
    #[must_use]
    pub fn holds(&self, stream_id: &str) -> bool {
        self.group.contains_key(stream_id) || self.waiting.contains_key(stream_id)
    }

    /// Whether a stream is being counted.
    #[must_use]
    pub fn is_counted(&self, stream_id: &str) -> bool {
        self.group.contains_key(stream_id)
    }

    /// Where to read next, if any stream is behind `end`, where the others are.
    pub fn next(&mut self, end: EventId) -> Option<EventId> {
        if self.group.is_empty() || self.position >= end {
            self.group = std::mem::take(&mut self.waiting);
            self.position = self.group.values().min().copied().unwrap_or(end);
        }
        if self.position >= end {
            self.group.clear();
        }
        (!self.group.is_empty()).then_some(self.position)
    }

    /// Everything before it was read. A group that has come to `end`, where the others are, is not behind any more.
    pub fn read_up_to(&mut self, position: EventId, end: EventId) {
        self.position = self.position.max(position);
        if self.position >= end {
            self.group.clear();
        }
    }

    /// Whether no group is being read now.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.group.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u64) -> EventId {
        EventId { index, number: 0 }
    }

    #[test]
    fn a_group_is_read_from_its_earliest_stream_to_where_the_others_are() {
        let mut behind = Behind::default();
        assert_eq!(behind.next(id(9)), None);
        behind.put("a", id(5));
        behind.put("b", id(3));
        assert!(behind.holds("a") && !behind.is_counted("a"));
        assert_eq!(behind.next(id(9)), Some(id(3)));
        assert!(behind.is_counted("a") && behind.is_counted("b"));
        behind.read_up_to(id(7), id(9));
        assert!(!behind.is_at_rest());
        behind.put("c", id(1));
        assert_eq!(behind.next(id(12)), Some(id(7)), "the others have gone on");
        assert!(!behind.is_counted("c"), "it came too late for this group");
        behind.read_up_to(id(12), id(12));
        assert!(behind.is_at_rest() && !behind.holds("a"));
        assert_eq!(behind.next(id(12)), Some(id(1)));
        assert!(!behind.holds("a") && behind.is_counted("c"));
        behind.read_up_to(id(12), id(12));
        assert_eq!(behind.next(id(12)), None);
        assert!(!behind.holds("c"));
    }

    #[test]
    fn what_is_to_be_counted_again_is_counted_with_the_next_group_only() {
        let mut behind = Behind::default();
        behind.put("a", id(1));
        behind.put("b", id(1));
        assert_eq!(behind.next(id(9)), Some(id(1)));
        behind.read_up_to(id(4), id(9));
        behind.put("a", id(2));
        assert!(behind.holds("a") && !behind.is_counted("a"));
        behind.remove("b");
        assert_eq!(behind.next(id(9)), Some(id(2)), "nobody is left in the first group");
        behind.remove("a");
        assert_eq!(behind.next(id(9)), None);
    }

    #[test]
    fn a_stream_that_begins_where_the_others_are_is_not_behind() {
        let mut behind = Behind::default();
        behind.put("a", id(9));
        assert_eq!(behind.next(id(9)), None);
        assert!(!behind.holds("a"));
    }
}
