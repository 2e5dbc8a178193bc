//! Bounded queue from the dispatcher to one stream worker. On overflow, events stay in the outbox and the worker reads
//! them from there.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::id::Digest128;
use crate::limits;
use crate::state::EventId;

/// An event and its subject.
pub type QueuedEvent = (EventId, Digest128);

/// Queue to one stream's worker.
#[derive(Debug, Default)]
pub struct Inbox {
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<QueuedEvent>,
    /// The last event that overflowed.
    overflow: Option<EventId>,
    /// Everything before it was put.
    position: Option<EventId>,
}

impl Inbox {
    /// Appends an event.
    pub fn put(&self, id: EventId, subject: Digest128) {
        let mut queue = self.queue.lock();
        if queue.overflow.is_some() || queue.events.len() >= limits::STREAM_WINDOW {
            // A recount puts events again, from the cursor on.
            queue.overflow = queue.overflow.max(Some(id));
        } else {
            queue.events.push_back((id, subject));
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// Records that all of the stream's events before `end` were put.
    pub fn set_position(&self, end: EventId) {
        self.queue.lock().position = Some(end);
        self.changed.notify_one();
    }

    /// The `end` of [`Self::set_position`], once the queue is empty.
    pub fn take_position(&self) -> Option<EventId> {
        let mut queue = self.queue.lock();
        let is_empty = queue.events.is_empty() && queue.overflow.is_none();
        queue.position.take_if(|_| is_empty)
    }

    /// Wakes the worker after a change of its stream or cursor.
    pub fn wake(&self) {
        self.changed.notify_one();
    }

    /// Waits for a change since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes the first events, at most `max`.
    pub fn take(&self, max: usize) -> Vec<QueuedEvent> {
        let mut queue = self.queue.lock();
        let max = max.min(queue.events.len());
        queue.events.drain(..max).collect()
    }

    /// Whether the queue is empty and events after it overflowed.
    pub fn has_overflow(&self) -> bool {
        let queue = self.queue.lock();
        queue.events.is_empty() && queue.overflow.is_some()
    }

    /// Records that the worker has read the outbox up to `end`.
    pub fn read_up_to(&self, end: EventId) {
        let mut queue = self.queue.lock();
        if queue.events.is_empty() && queue.overflow.is_some_and(|last| last < end) {
            queue.overflow = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::DigestKind;

    fn event(index: u64) -> QueuedEvent {
        (EventId { index, number: 0 }, Digest128::of(DigestKind::Subject, b"", b"subject"))
    }

    fn put(inbox: &Inbox, events: std::ops::Range<u64>) {
        for (id, subject) in events.map(event) {
            inbox.put(id, subject);
        }
    }

    #[test]
    fn events_are_taken_once_in_order() {
        let inbox = Inbox::default();
        put(&inbox, 0..5);
        assert_eq!(inbox.take(2), [event(0), event(1)]);
        assert_eq!(inbox.take(9), [event(2), event(3), event(4)]);
        assert_eq!((inbox.take(9), inbox.has_overflow()), (vec![], false));
    }

    /// Regression: a recount while the worker drained the outbox ended its reading, and the rest was never sent.
    #[test]
    fn events_put_again_do_not_hide_overflow() {
        let inbox = Inbox::default();
        let window = limits::STREAM_WINDOW as u64;
        put(&inbox, 0..window + 5);
        inbox.set_position(event(window + 7).0);
        inbox.take(usize::MAX);
        put(&inbox, 3..4);
        inbox.read_up_to(event(window + 1).0);
        assert!(inbox.has_overflow());
        assert_eq!(inbox.take_position(), None);
        inbox.read_up_to(event(window + 5).0);
        assert!(!inbox.has_overflow());
    }

    #[test]
    fn overflow_is_read_from_outbox_before_later_events() {
        let inbox = Inbox::default();
        let window = limits::STREAM_WINDOW as u64;
        put(&inbox, 0..window + 5);
        assert!(!inbox.has_overflow(), "queued events come first");
        assert_eq!(inbox.take(usize::MAX).len(), limits::STREAM_WINDOW);
        assert!(inbox.has_overflow());
        // An event that is put now would overtake the overflow.
        put(&inbox, window + 5..window + 6);
        assert_eq!(inbox.take(usize::MAX), []);
        inbox.read_up_to(event(window + 5).0);
        assert!(inbox.has_overflow(), "the last one was not read yet");
        inbox.read_up_to(event(window + 5).0.next());
        assert!(!inbox.has_overflow());
        put(&inbox, window + 6..window + 7);
        assert_eq!(inbox.take(usize::MAX), [event(window + 6)]);
    }

    #[test]
    fn position_is_passed_only_after_all_events() {
        let inbox = Inbox::default();
        let window = limits::STREAM_WINDOW as u64;
        put(&inbox, 0..window + 1);
        let end = event(window + 7).0;
        inbox.set_position(end);
        assert_eq!(inbox.take_position(), None);
        assert_eq!(inbox.take(usize::MAX).len(), limits::STREAM_WINDOW);
        assert_eq!(inbox.take_position(), None, "one overflowed");
        inbox.read_up_to(end);
        assert_eq!((inbox.take_position(), inbox.take_position()), (Some(end), None));
    }

    #[tokio::test]
    async fn change_before_the_wait_is_not_missed() {
        let inbox = Inbox::default();
        put(&inbox, 0..3);
        inbox.changed().await;
        inbox.wake();
        inbox.changed().await;
    }
}
