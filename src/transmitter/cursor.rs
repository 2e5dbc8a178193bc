//! Pure arithmetic over a stream's cursor.
//!
//! `next` is the first event that is not done; events after it that are done are in `done`. To bound `done`,
//! only the first open events may become done ([`open_events`]).

use std::collections::BTreeSet;

use crate::limits;
use crate::state::{EventId, StreamCursor};

/// The open events: those of `matching` from the cursor on that are not done, limited so that `done` cannot exceed
/// [`limits::STREAM_WINDOW`].
pub fn open_events<'a>(
    cursor: &'a StreamCursor,
    matching: &'a [EventId],
) -> impl Iterator<Item = EventId> + 'a {
    let capacity = limits::STREAM_WINDOW.saturating_sub(cursor.done.len()).max(1);
    let is_open = |id: &EventId| *id >= cursor.next && !cursor.done.contains(id);
    matching.iter().copied().filter(is_open).take(capacity)
}

/// The cursor after the open events of `done` are done. `matching` are the stream's events from `cursor.next` to
/// before `scanned_to`, in order. Each counts as delivered; for dead letters use [`advance_with_dead_letters`].
///
/// `version` stays, as the precondition of the write.
pub fn advance(
    cursor: &StreamCursor,
    matching: &[EventId],
    scanned_to: EventId,
    done: &BTreeSet<EventId>,
) -> StreamCursor {
    advance_with_dead_letters(cursor, matching, scanned_to, done, &BTreeSet::new())
}

/// Like [`advance`], with `dead`, which are done but not delivered; `apply` counts them when it stores them.
pub fn advance_with_dead_letters(
    cursor: &StreamCursor,
    matching: &[EventId],
    scanned_to: EventId,
    done: &BTreeSet<EventId>,
    dead: &BTreeSet<EventId>,
) -> StreamCursor {
    let mut advanced = cursor.clone();
    for id in open_events(cursor, matching) {
        let is_dead = dead.contains(&id);
        if is_dead || done.contains(&id) {
            advanced.done.insert(id);
            advanced.delivered = advanced.delivered.saturating_add(u64::from(!is_dead));
        }
    }
    let first_open = matching.iter().copied().find(|id| *id >= cursor.next && !advanced.done.contains(id));
    advanced.next = first_open.unwrap_or(scanned_to).max(cursor.next);
    advanced.done = advanced.done.split_off(&advanced.next);
    advanced
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(at: usize) -> EventId {
        EventId {
            index: u64::try_from(at / 4).expect("small"),
            number: u32::try_from(at % 4).expect("small"),
        }
    }

    fn ids(range: std::ops::Range<usize>) -> Vec<EventId> {
        range.map(id).collect()
    }

    fn set(ids: &[EventId]) -> BTreeSet<EventId> {
        ids.iter().copied().collect()
    }

    fn cursor_at(next: usize) -> StreamCursor {
        StreamCursor { next: id(next), version: 7, ..StreamCursor::default() }
    }

    #[test]
    fn cursor_moves_to_first_event_not_done() {
        let matching = ids(0..6);
        let cursor = advance(&cursor_at(0), &matching, id(6), &set(&[id(1), id(3)]));
        assert_eq!((cursor.next, &cursor.done, cursor.delivered), (id(0), &set(&[id(1), id(3)]), 2));
        let cursor = advance(&cursor, &matching, id(6), &set(&[id(0)]));
        assert_eq!((cursor.next, &cursor.done, cursor.delivered), (id(2), &set(&[id(3)]), 3));
        let cursor = advance(&cursor, &ids(2..6), id(6), &set(&[id(2), id(4), id(5)]));
        assert_eq!((cursor.next, cursor.done.len(), cursor.delivered), (id(6), 0, 6));
        assert_eq!(cursor.version, 7);
    }

    #[test]
    fn other_events_are_skipped_without_delivery() {
        let cursor = advance(&cursor_at(1), &[], id(9), &BTreeSet::new());
        assert_eq!(cursor, StreamCursor { next: id(9), ..cursor_at(1) });
        let cursor = advance(&cursor_at(1), &[id(4)], id(9), &BTreeSet::new());
        assert_eq!(cursor, StreamCursor { next: id(4), ..cursor_at(1) });
        // Nothing new was scanned.
        assert_eq!(advance(&cursor_at(5), &[], id(5), &BTreeSet::new()), cursor_at(5));
        assert_eq!(advance(&cursor_at(5), &[], id(2), &BTreeSet::new()), cursor_at(5), "not back");
    }

    #[test]
    fn event_that_is_not_open_is_never_counted() {
        let cursor = advance(&cursor_at(2), &ids(2..5), id(5), &set(&ids(0..4)));
        assert_eq!((cursor.next, cursor.delivered), (id(4), 2), "two of the four are before the cursor");
        assert_eq!(advance(&cursor, &[id(4)], id(5), &set(&ids(0..4))), cursor);
        let cursor = advance(&cursor_at(0), &ids(0..3), id(3), &set(&[id(2)]));
        assert_eq!(advance(&cursor, &ids(0..3), id(3), &set(&[id(2)])), cursor, "done before");
        let beyond = advance(&cursor_at(0), &ids(0..3), id(3), &set(&[id(3), id(100)]));
        assert_eq!(beyond, cursor_at(0), "not events of the stream");
    }

    #[test]
    fn dead_letter_is_done_and_not_delivered() {
        let dead =
            advance_with_dead_letters(&cursor_at(0), &ids(0..3), id(3), &set(&ids(0..2)), &set(&[id(1)]));
        assert_eq!((dead.next, dead.delivered, dead.dead_letters), (id(2), 1, 0));
        let repeated = advance_with_dead_letters(&dead, &ids(2..3), id(3), &BTreeSet::new(), &set(&[id(1)]));
        assert_eq!(repeated, dead, "only once");
    }

    #[test]
    fn open_events_are_limited_to_window_and_include_the_first() {
        let window = limits::STREAM_WINDOW;
        let matching = ids(0..3 * window);
        assert_eq!(open_events(&cursor_at(0), &matching).count(), window);
        let all = set(&matching);
        let cursor = advance(&cursor_at(0), &matching, id(3 * window), &all);
        assert_eq!((cursor.next, cursor.done.len(), cursor.delivered), (id(window), 0, window as u64));
        // All but the first: a receiver that never acknowledges it gets nothing beyond the window.
        let cursor = advance(&cursor_at(0), &matching, id(3 * window), &set(&ids(1..3 * window)));
        assert_eq!((cursor.next, cursor.done.len()), (id(0), window - 1));
        assert_eq!(open_events(&cursor, &matching).collect::<Vec<_>>(), [id(0)]);
        let cursor = advance(&cursor, &matching, id(3 * window), &set(&[id(0)]));
        assert_eq!((cursor.next, cursor.done.len()), (id(window), 0));
    }

    #[test]
    fn wider_filter_keeps_the_window() {
        let window = limits::STREAM_WINDOW;
        let even: Vec<_> = (0..4 * window).step_by(2).map(id).collect();
        let mut cursor = advance(&cursor_at(0), &even, id(4 * window), &set(&even[1..]));
        assert_eq!(cursor.done.len(), window - 1);
        // From now on the odd events match too.
        let all = ids(0..4 * window);
        let odd: BTreeSet<_> = (1..4 * window).step_by(2).map(id).collect();
        for _ in 0..3 {
            cursor = advance(&cursor, &all, id(4 * window), &odd);
            assert!(cursor.done.len() <= window, "{}", cursor.done.len());
        }
        assert_eq!(cursor.next, id(0));
        // Also with a full window the first is open, or the stream would never advance.
        let full = StreamCursor { done: ids(1..window + 1).into_iter().collect(), ..cursor_at(0) };
        assert_eq!(open_events(&full, &all).collect::<Vec<_>>(), [id(0)]);
        let cursor = advance(&full, &all, id(4 * window), &set(&[id(0)]));
        assert_eq!((cursor.next, cursor.done.len()), (id(window + 1), 0));
    }

    proptest! {
        #[test]
        fn acknowledgements_in_any_order_keep_cursor_invariants(
            matching in prop::collection::btree_set(0_usize..120, 0..80),
            rounds in prop::collection::vec(
                (prop::collection::btree_set(0_usize..130, 0..20), 0_usize..=120, any::<bool>()),
                1..12,
            ),
        ) {
            let matching: Vec<EventId> = matching.into_iter().map(id).collect();
            let mut cursor = cursor_at(0);
            let (mut done, mut delivered_ever) = (BTreeSet::new(), 0);
            for (acked, scanned, dead) in rounds {
                let scanned_to = id(scanned).max(cursor.next);
                let acked: BTreeSet<_> = acked.into_iter().map(id).collect();
                let scanned_events: Vec<_> = matching
                    .iter()
                    .copied()
                    .filter(|id| (cursor.next..scanned_to).contains(id))
                    .collect();
                let none = BTreeSet::new();
                let (delivered, refused) = if dead { (&none, &acked) } else { (&acked, &none) };
                let after = advance_with_dead_letters(&cursor, &scanned_events, scanned_to, delivered, refused);
                let before = done.len();
                done.extend(scanned_events.iter().filter(|id| acked.contains(id)).copied());
                prop_assert!(after.next >= cursor.next, "never back");
                let before_next = matching.iter().filter(|id| **id < after.next);
                prop_assert!(before_next.clone().all(|id| done.contains(id)), "never past an open event");
                let total = after.done.len() + before_next.count();
                prop_assert_eq!(total, done.len(), "no done event is lost");
                prop_assert!(after.done.iter().all(|id| *id >= after.next));
                prop_assert!(after.done.len() <= limits::STREAM_WINDOW);
                delivered_ever += if dead { 0 } else { (done.len() - before) as u64 };
                prop_assert_eq!((after.delivered, after.dead_letters), (delivered_ever, 0));
                cursor = after;
            }
        }

        #[test]
        fn any_order_of_acknowledgements_ends_at_one_position(
            order in Just((0..40_usize).collect::<Vec<_>>()).prop_shuffle(),
            sizes in prop::collection::vec(1_usize..8, 40),
            unacknowledged in 0_usize..40,
        ) {
            let matching = ids(0..40);
            let mut cursor = cursor_at(0);
            let mut rest = order.as_slice();
            for size in sizes {
                let (now, later) = rest.split_at(size.min(rest.len()));
                let acked: BTreeSet<_> = now.iter().filter(|at| **at != unacknowledged).map(|at| id(*at)).collect();
                let scanned_events: Vec<_> = matching.iter().copied().filter(|id| *id >= cursor.next).collect();
                cursor = advance(&cursor, &scanned_events, id(40), &acked);
                rest = later;
            }
            prop_assert!(rest.is_empty());
            let at_once: BTreeSet<_> = matching.iter().copied().filter(|at| *at != id(unacknowledged)).collect();
            prop_assert_eq!(&cursor, &advance(&cursor_at(0), &matching, id(40), &at_once));
            prop_assert_eq!(cursor.next, id(unacknowledged));
        }
    }
}
