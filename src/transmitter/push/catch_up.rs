//! Catch-up of streams whose count begins before the dispatcher's position: in groups, so that however many streams
//! change, the outbox is read once per group.

use std::collections::BTreeMap;

use crate::state::EventId;

/// Streams that catch up, with their start.
#[derive(Debug, Default)]
pub struct CatchUp {
    /// The group that is being read, up to `position`.
    group: BTreeMap<String, EventId>,
    position: EventId,
    next_group: BTreeMap<String, EventId>,
}

impl CatchUp {
    /// Catches a stream up from `from`, instead of any earlier request.
    pub fn start(&mut self, stream_id: &str, from: EventId) {
        self.group.remove(stream_id);
        self.next_group.insert(stream_id.to_owned(), from);
    }

    /// Stops catching a stream up.
    pub fn remove(&mut self, stream_id: &str) {
        self.group.remove(stream_id);
        self.next_group.remove(stream_id);
    }

    /// Whether a stream has not caught up.
    pub fn contains(&self, stream_id: &str) -> bool {
        self.group.contains_key(stream_id) || self.next_group.contains_key(stream_id)
    }

    /// Whether a stream is in the group that is being read.
    pub fn is_reading(&self, stream_id: &str) -> bool {
        self.group.contains_key(stream_id)
    }

    /// Position to read next, if any stream is before `end`.
    pub fn next(&mut self, end: EventId) -> Option<EventId> {
        if self.group.is_empty() || self.position >= end {
            self.group = std::mem::take(&mut self.next_group);
            self.position = self.group.values().min().copied().unwrap_or(end);
        }
        if self.position >= end {
            self.group.clear();
        }
        (!self.group.is_empty()).then_some(self.position)
    }

    /// Records that everything before `position` was read. A group at `end` has caught up.
    pub fn read_up_to(&mut self, position: EventId, end: EventId) {
        self.position = self.position.max(position);
        if self.position >= end {
            self.group.clear();
        }
    }

    /// Whether no group is being read.
    pub fn is_idle(&self) -> bool {
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
    fn group_is_read_from_its_earliest_stream_to_the_end() {
        let mut catch_up = CatchUp::default();
        assert_eq!(catch_up.next(id(9)), None);
        catch_up.start("a", id(5));
        catch_up.start("b", id(3));
        assert!(catch_up.contains("a") && !catch_up.is_reading("a"));
        assert_eq!(catch_up.next(id(9)), Some(id(3)));
        assert!(catch_up.is_reading("a") && catch_up.is_reading("b"));
        catch_up.read_up_to(id(7), id(9));
        assert!(!catch_up.is_idle());
        catch_up.start("c", id(1));
        assert_eq!(catch_up.next(id(12)), Some(id(7)), "the end has moved");
        assert!(!catch_up.is_reading("c"), "too late for this group");
        catch_up.read_up_to(id(12), id(12));
        assert!(catch_up.is_idle() && !catch_up.contains("a"));
        assert_eq!(catch_up.next(id(12)), Some(id(1)));
        assert!(!catch_up.contains("a") && catch_up.is_reading("c"));
        catch_up.read_up_to(id(12), id(12));
        assert_eq!(catch_up.next(id(12)), None);
        assert!(!catch_up.contains("c"));
    }

    #[test]
    fn restarted_stream_joins_the_next_group() {
        let mut catch_up = CatchUp::default();
        catch_up.start("a", id(1));
        catch_up.start("b", id(1));
        assert_eq!(catch_up.next(id(9)), Some(id(1)));
        catch_up.read_up_to(id(4), id(9));
        catch_up.start("a", id(2));
        assert!(catch_up.contains("a") && !catch_up.is_reading("a"));
        catch_up.remove("b");
        assert_eq!(catch_up.next(id(9)), Some(id(2)), "the first group is empty");
        catch_up.remove("a");
        assert_eq!(catch_up.next(id(9)), None);
    }

    #[test]
    fn stream_at_the_end_has_caught_up() {
        let mut catch_up = CatchUp::default();
        catch_up.start("a", id(9));
        assert_eq!(catch_up.next(id(9)), None);
        assert!(!catch_up.contains("a"));
    }
}
