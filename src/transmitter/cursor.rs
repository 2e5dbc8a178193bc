//! How far a stream has come: pure arithmetic over its cursor.
//!
//! A cursor stands before the first event that is not done; what is done behind that one stands in `done`. So
//! that this stays small, only the first events that are open can become done: [`open`] says which.

use std::collections::BTreeSet;

use crate::limits;
use crate::state::{EventId, StreamCursor};

/// The events that are open: of those that a stream is for, from its cursor on and in order, the ones that are
/// not done; and of them only so many that [`limits::STREAM_WINDOW`] holds whichever of them become done.
pub fn open<'a>(cursor: &'a StreamCursor, matching: &'a [EventId]) -> impl Iterator<Item = EventId> + 'a {
    let places = limits::STREAM_WINDOW.saturating_sub(cursor.done.len()).max(1);
    let is_open = |id: &EventId| *id >= cursor.next && !cursor.done.contains(id);
    matching.iter().copied().filter(is_open).take(places)
}

/// The cursor when those of `done` that are open are done. `matching` are the events that the stream is for,
/// from `cursor.next` on and in order, as far as was looked: up to before `looked_up_to`. Each of them counts
/// as delivered; [`with_dead_letters`] does not count those that were refused for good.
///
/// Its `version` stays, so that it can be seen what it was made from.
#[must_use]
pub fn advance(
    cursor: &StreamCursor,
    matching: &[EventId],
    looked_up_to: EventId,
    done: &BTreeSet<EventId>,
) -> StreamCursor {
    with_dead_letters(cursor, matching, looked_up_to, done, &BTreeSet::new())
}

/// The same with `dead`, which are done as well and were not delivered: the log counts them when it remembers
/// them.
#[must_use]
pub fn with_dead_letters(
    cursor: &StreamCursor,
    matching: &[EventId],
    looked_up_to: EventId,
    done: &BTreeSet<EventId>,
    dead: &BTreeSet<EventId>,
) -> StreamCursor {
    let mut advanced = cursor.clone();
    for id in open(cursor, matching) {
        let is_dead = dead.contains(&id);
        if is_dead || done.contains(&id) {
            advanced.done.insert(id);
            advanced.delivered = advanced.delivered.saturating_add(u64::from(!is_dead));
        }
    }
    let first_open = matching.iter().copied().find(|id| *id >= cursor.next && !advanced.done.contains(id));
    advanced.next = first_open.unwrap_or(looked_up_to).max(cursor.next);
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

    fn at(next: usize) -> StreamCursor {
        StreamCursor { next: id(next), version: 7, ..StreamCursor::default() }
    }

    #[test]
    fn a_cursor_goes_to_the_first_event_that_is_not_done() {
        let matching = ids(0..6);
        let cursor = advance(&at(0), &matching, id(6), &set(&[id(1), id(3)]));
        assert_eq!((cursor.next, &cursor.done, cursor.delivered), (id(0), &set(&[id(1), id(3)]), 2));
        let cursor = advance(&cursor, &matching, id(6), &set(&[id(0)]));
        assert_eq!((cursor.next, &cursor.done, cursor.delivered), (id(2), &set(&[id(3)]), 3));
        let cursor = advance(&cursor, &ids(2..6), id(6), &set(&[id(2), id(4), id(5)]));
        assert_eq!((cursor.next, cursor.done.len(), cursor.delivered), (id(6), 0, 6));
        assert_eq!(cursor.version, 7);
    }

    #[test]
    fn what_matches_nothing_is_passed_without_a_delivery() {
        let cursor = advance(&at(1), &[], id(9), &BTreeSet::new());
        assert_eq!(cursor, StreamCursor { next: id(9), ..at(1) });
        let cursor = advance(&at(1), &[id(4)], id(9), &BTreeSet::new());
        assert_eq!(cursor, StreamCursor { next: id(4), ..at(1) });
        // Nothing new was looked at.
        assert_eq!(advance(&at(5), &[], id(5), &BTreeSet::new()), at(5));
        assert_eq!(advance(&at(5), &[], id(2), &BTreeSet::new()), at(5), "not back");
    }

    #[test]
    fn what_is_not_open_is_not_counted_however_often_it_is_said() {
        let cursor = advance(&at(2), &ids(2..5), id(5), &set(&ids(0..4)));
        assert_eq!((cursor.next, cursor.delivered), (id(4), 2), "two of the four are before the cursor");
        assert_eq!(advance(&cursor, &[id(4)], id(5), &set(&ids(0..4))), cursor);
        let cursor = advance(&at(0), &ids(0..3), id(3), &set(&[id(2)]));
        assert_eq!(advance(&cursor, &ids(0..3), id(3), &set(&[id(2)])), cursor, "done before");
        let beyond = advance(&at(0), &ids(0..3), id(3), &set(&[id(3), id(100)]));
        assert_eq!(beyond, at(0), "what the stream is not for");
    }

    #[test]
    fn a_dead_letter_is_done_and_not_delivered() {
        let dead = with_dead_letters(&at(0), &ids(0..3), id(3), &set(&ids(0..2)), &set(&[id(1)]));
        assert_eq!((dead.next, dead.delivered, dead.dead_letters), (id(2), 1, 0));
        let again = with_dead_letters(&dead, &ids(2..3), id(3), &BTreeSet::new(), &set(&[id(1)]));
        assert_eq!(again, dead, "only once");
    }

    #[test]
    fn only_a_window_of_events_is_open_and_the_first_always() {
        let window = limits::STREAM_WINDOW;
        let matching = ids(0..3 * window);
        assert_eq!(open(&at(0), &matching).count(), window);
        let all = set(&matching);
        let cursor = advance(&at(0), &matching, id(3 * window), &all);
        assert_eq!((cursor.next, cursor.done.len(), cursor.delivered), (id(window), 0, window as u64));
        // All but the first: whoever never acknowledges that one is told nothing beyond the window.
        let cursor = advance(&at(0), &matching, id(3 * window), &set(&ids(1..3 * window)));
        assert_eq!((cursor.next, cursor.done.len()), (id(0), window - 1));
        assert_eq!(open(&cursor, &matching).collect::<Vec<_>>(), [id(0)]);
        let cursor = advance(&cursor, &matching, id(3 * window), &set(&[id(0)]));
        assert_eq!((cursor.next, cursor.done.len()), (id(window), 0));
    }

    #[test]
    fn a_stream_that_delivers_more_than_before_keeps_its_window() {
        let window = limits::STREAM_WINDOW;
        let even: Vec<_> = (0..4 * window).step_by(2).map(id).collect();
        let mut cursor = advance(&at(0), &even, id(4 * window), &set(&even[1..]));
        assert_eq!(cursor.done.len(), window - 1);
        // From now on it is for the odd ones too.
        let all = ids(0..4 * window);
        let odd: BTreeSet<_> = (1..4 * window).step_by(2).map(id).collect();
        for _ in 0..3 {
            cursor = advance(&cursor, &all, id(4 * window), &odd);
            assert!(cursor.done.len() <= window, "{}", cursor.done.len());
        }
        assert_eq!(cursor.next, id(0));
        // Also where every place is taken the first is open, or the stream would stand for ever.
        let full = StreamCursor { done: ids(1..window + 1).into_iter().collect(), ..at(0) };
        assert_eq!(open(&full, &all).collect::<Vec<_>>(), [id(0)]);
        let cursor = advance(&full, &all, id(4 * window), &set(&[id(0)]));
        assert_eq!((cursor.next, cursor.done.len()), (id(window + 1), 0));
    }

    proptest! {
        #[test]
        fn whatever_is_done_in_whatever_order_a_cursor_keeps_its_promises(
            matching in prop::collection::btree_set(0_usize..120, 0..80),
            rounds in prop::collection::vec(
                (prop::collection::btree_set(0_usize..130, 0..20), 0_usize..=120, any::<bool>()),
                1..12,
            ),
        ) {
            let matching: Vec<EventId> = matching.into_iter().map(id).collect();
            let mut cursor = at(0);
            let (mut done, mut delivered_ever) = (BTreeSet::new(), 0);
            for (acked, looked, dead) in rounds {
                let looked_up_to = id(looked).max(cursor.next);
                let acked: BTreeSet<_> = acked.into_iter().map(id).collect();
                let seen: Vec<_> = matching
                    .iter()
                    .copied()
                    .filter(|id| (cursor.next..looked_up_to).contains(id))
                    .collect();
                let none = BTreeSet::new();
                let (delivered, refused) = if dead { (&none, &acked) } else { (&acked, &none) };
                let after = with_dead_letters(&cursor, &seen, looked_up_to, delivered, refused);
                let before = done.len();
                done.extend(seen.iter().filter(|id| acked.contains(id)).copied());
                prop_assert!(after.next >= cursor.next, "never back");
                let passed = matching.iter().filter(|id| **id < after.next);
                prop_assert!(passed.clone().all(|id| done.contains(id)), "never past what is not done");
                let behind = after.done.len() + passed.count();
                prop_assert_eq!(behind, done.len(), "nothing that is done is forgotten");
                prop_assert!(after.done.iter().all(|id| *id >= after.next));
                prop_assert!(after.done.len() <= limits::STREAM_WINDOW);
                delivered_ever += if dead { 0 } else { (done.len() - before) as u64 };
                prop_assert_eq!((after.delivered, after.dead_letters), (delivered_ever, 0));
                cursor = after;
            }
        }

        #[test]
        fn any_order_of_acknowledgements_ends_at_the_same_place(
            order in Just((0..40_usize).collect::<Vec<_>>()).prop_shuffle(),
            sizes in prop::collection::vec(1_usize..8, 40),
            left_out in 0_usize..40,
        ) {
            let matching = ids(0..40);
            let mut cursor = at(0);
            let mut rest = order.as_slice();
            for size in sizes {
                let (now, later) = rest.split_at(size.min(rest.len()));
                let acked: BTreeSet<_> = now.iter().filter(|at| **at != left_out).map(|at| id(*at)).collect();
                let seen: Vec<_> = matching.iter().copied().filter(|id| *id >= cursor.next).collect();
                cursor = advance(&cursor, &seen, id(40), &acked);
                rest = later;
            }
            prop_assert!(rest.is_empty());
            let at_once: BTreeSet<_> = matching.iter().copied().filter(|at| *at != id(left_out)).collect();
            prop_assert_eq!(&cursor, &advance(&at(0), &matching, id(40), &at_once));
            prop_assert_eq!(cursor.next, id(left_out));
        }
    }
}
