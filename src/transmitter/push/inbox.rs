//! Between the engine and a stream's worker: what the engine has seen for the stream and the worker has not.
//! Bounded: what is too much for it stays in the outbox, where the worker finds it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::id::Digest128;
use crate::limits;
use crate::state::EventId;

/// An event, and whom it is about.
pub type Known = (EventId, Digest128);

/// What is new for one stream.
#[derive(Debug, Default)]
pub struct Inbox {
    known: Mutex<Events>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Events {
    /// In order.
    first: VecDeque<Known>,
    /// The last event that found no place behind them.
    left_out: Option<EventId>,
    /// Nothing else for the stream is before it.
    passed: Option<EventId>,
}

impl Inbox {
    /// Puts an event behind all others.
    pub fn put(&self, id: EventId, subject: Digest128) {
        let mut events = self.events();
        if events.left_out.is_some() || events.first.len() >= limits::STREAM_WINDOW {
            events.left_out = Some(id);
        } else {
            events.first.push_back((id, subject));
        }
        drop(events);
        self.changed.notify_one();
    }

    /// Tells the worker that everything before `end` was put here which is for its stream.
    pub fn pass(&self, end: EventId) {
        self.events().passed = Some(end);
        self.changed.notify_one();
    }

    /// What was told so, if the worker has taken everything.
    pub fn passed(&self) -> Option<EventId> {
        let mut events = self.events();
        let is_empty = events.first.is_empty() && events.left_out.is_none();
        events.passed.take_if(|_| is_empty)
    }

    /// Tells the worker that its stream, or its cursor, has changed.
    pub fn wake(&self) {
        self.changed.notify_one();
    }

    /// Waits until something has changed since the last time.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes the first events, at most so many.
    pub fn take(&self, most: usize) -> Vec<Known> {
        let mut events = self.events();
        let most = most.min(events.first.len());
        events.first.drain(..most).collect()
    }

    /// Whether there are events in the outbox that found no place here, behind all that were taken.
    pub fn leaves_out(&self) -> bool {
        let events = self.events();
        events.first.is_empty() && events.left_out.is_some()
    }

    /// The worker has found everything before `end` in the outbox.
    pub fn found(&self, end: EventId) {
        let mut events = self.events();
        if events.first.is_empty() && events.left_out.is_some_and(|last| last < end) {
            events.left_out = None;
        }
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::DigestKind;

    fn known(index: u64) -> Known {
        (EventId { index, number: 0 }, Digest128::of(DigestKind::Subject, b"", b"somebody"))
    }

    fn put(inbox: &Inbox, events: std::ops::Range<u64>) {
        for (id, subject) in events.map(known) {
            inbox.put(id, subject);
        }
    }

    #[test]
    fn events_are_taken_in_their_order_and_once() {
        let inbox = Inbox::default();
        put(&inbox, 0..5);
        assert_eq!(inbox.take(2), [known(0), known(1)]);
        assert_eq!(inbox.take(9), [known(2), known(3), known(4)]);
        assert_eq!((inbox.take(9), inbox.leaves_out()), (vec![], false));
    }

    #[test]
    fn what_finds_no_place_is_to_be_found_in_the_outbox_and_nothing_comes_before_it() {
        let inbox = Inbox::default();
        let window = limits::STREAM_WINDOW as u64;
        put(&inbox, 0..window + 5);
        assert!(!inbox.leaves_out(), "those before it come first");
        assert_eq!(inbox.take(usize::MAX).len(), limits::STREAM_WINDOW);
        assert!(inbox.leaves_out());
        // One that comes now would overtake those that were left out.
        put(&inbox, window + 5..window + 6);
        assert_eq!(inbox.take(usize::MAX), []);
        inbox.found(known(window + 5).0);
        assert!(inbox.leaves_out(), "the last one was not found yet");
        inbox.found(known(window + 5).0.next());
        assert!(!inbox.leaves_out());
        put(&inbox, window + 6..window + 7);
        assert_eq!(inbox.take(usize::MAX), [known(window + 6)]);
    }

    #[test]
    fn nothing_is_passed_before_it_is_taken_or_found() {
        let inbox = Inbox::default();
        let window = limits::STREAM_WINDOW as u64;
        put(&inbox, 0..window + 1);
        let end = known(window + 7).0;
        inbox.pass(end);
        assert_eq!(inbox.passed(), None);
        assert_eq!(inbox.take(usize::MAX).len(), limits::STREAM_WINDOW);
        assert_eq!(inbox.passed(), None, "one was left out");
        inbox.found(end);
        assert_eq!((inbox.passed(), inbox.passed()), (Some(end), None));
    }

    #[tokio::test]
    async fn a_change_that_came_before_the_wait_is_not_missed() {
        let inbox = Inbox::default();
        put(&inbox, 0..3);
        inbox.changed().await;
        inbox.wake();
        inbox.changed().await;
    }
}
