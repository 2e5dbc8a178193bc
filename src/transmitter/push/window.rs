//! Send order of a stream's open events: one subject never has two events in flight, and no event of a subject is sent
//! before an earlier one is done. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::id::Digest128;
use crate::state::EventId;

/// Open events of one stream.
#[derive(Debug, Default)]
pub struct Window {
    events: BTreeMap<EventId, PendingDelivery>,
    /// Open events per subject, in order.
    subjects: HashMap<Digest128, BTreeSet<EventId>>,
    /// Waiting events that are the first of their subject.
    ready: BTreeSet<EventId>,
    in_flight: usize,
    /// Number of events that the receiver accepted.
    accepted: u64,
    /// Since the last accepted event, an event failed that had no earlier failure.
    is_outage: bool,
}

#[derive(Debug)]
struct PendingDelivery {
    subject: Digest128,
    state: DeliveryState,
    failures: u32,
    /// Number of accepted events before it first failed.
    accepted_before: Option<u64>,
    alone: u32,
    refusals: u32,
}

/// Failures of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// All since [`Window::reset_failures`].
    pub failures: u32,
    /// Those while the receiver accepted other events.
    pub alone: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeliveryState {
    Waiting,
    InFlight,
    Resting,
}

impl Window {
    /// Adds an event, which must be later than the known ones of its subject. A known event is unchanged.
    pub fn add(&mut self, id: EventId, subject: Digest128) {
        if self.events.contains_key(&id) {
            return;
        }
        let (state, failures, alone, refusals) = (DeliveryState::Waiting, 0, 0, 0);
        self.events
            .insert(id, PendingDelivery { subject, state, failures, accepted_before: None, alone, refusals });
        let of_subject = self.subjects.entry(subject).or_default();
        of_subject.insert(id);
        if of_subject.first() == Some(&id) {
            self.ready.insert(id);
        }
    }

    /// Takes the earliest event that may be sent, unless `in_flight_max` are in flight.
    pub fn next(&mut self, in_flight_max: usize) -> Option<EventId> {
        if self.in_flight >= in_flight_max {
            return None;
        }
        let id = self.ready.pop_first()?;
        self.set_state(id, DeliveryState::InFlight);
        Some(id)
    }

    /// Removes an event; the next of its subject may be sent.
    pub fn done(&mut self, id: EventId) {
        let Some(event) = self.events.remove(&id) else { return };
        if event.state == DeliveryState::InFlight {
            self.in_flight -= 1;
        }
        self.ready.remove(&id);
        let Some(of_subject) = self.subjects.get_mut(&event.subject) else { return };
        of_subject.remove(&id);
        match of_subject.first() {
            None => drop(self.subjects.remove(&event.subject)),
            Some(&next)
                if self.events.get(&next).is_some_and(|event| event.state == DeliveryState::Waiting) =>
            {
                self.ready.insert(next);
            }
            Some(_) => {}
        }
    }

    /// The receiver accepted or permanently rejected an event: it is reachable, whatever else it fails.
    pub fn accepted(&mut self, id: EventId) {
        self.accepted = self.accepted.saturating_add(1);
        self.is_outage = false;
        self.done(id);
    }

    /// An event failed and rests.
    pub fn failed(&mut self, id: EventId) -> Failed {
        self.rest(id);
        let Some(event) = self.events.get_mut(&id) else { return Failed { failures: 0, alone: 0 } };
        event.failures = event.failures.saturating_add(1);
        let others = self.accepted - *event.accepted_before.get_or_insert(self.accepted);
        if others == 0 {
            self.is_outage = true;
        } else if !self.is_outage && u64::from(event.alone) < others {
            // At most one per accepted event: an outage may have begun after the last of them.
            event.alone += 1;
        }
        Failed { failures: event.failures, alone: event.alone }
    }

    /// An event was refused as one of this sender; returns how often.
    pub fn refused(&mut self, id: EventId) -> u32 {
        let Some(event) = self.events.get_mut(&id) else { return 0 };
        event.refusals = event.refusals.saturating_add(1);
        event.refusals
    }

    /// The receiver may decide differently from now on.
    pub fn reset_refusals(&mut self) {
        for event in self.events.values_mut() {
            event.refusals = 0;
        }
    }

    /// Whether an event is open and not in flight.
    pub fn is_idle(&self, id: EventId) -> bool {
        self.events.get(&id).is_some_and(|event| event.state != DeliveryState::InFlight)
    }

    /// An event was not sent and rests.
    pub fn rest(&mut self, id: EventId) {
        self.set_state(id, DeliveryState::Resting);
    }

    /// An event was not sent and may be sent at once.
    pub fn unsent(&mut self, id: EventId) {
        self.rest(id);
        self.wake(id);
    }

    /// Ends the rest of an event.
    pub fn wake(&mut self, id: EventId) {
        if self.events.get(&id).is_some_and(|event| event.state == DeliveryState::Resting) {
            self.set_state(id, DeliveryState::Waiting);
            // A resting event was in flight, so that it is the first of its subject.
            self.ready.insert(id);
        }
    }

    /// Ends the rest of all events and forgets their failures.
    pub fn reset_failures(&mut self) {
        let resting: Vec<_> = self
            .events
            .iter()
            .filter(|(_, event)| event.state == DeliveryState::Resting)
            .map(|(id, _)| *id)
            .collect();
        for id in resting {
            self.wake(id);
        }
        for event in self.events.values_mut() {
            event.failures = 0;
        }
    }

    /// Removes events that are not to be sent. Those in flight stay until they end: a later event of their subject
    /// must not overtake them.
    pub fn retain(&mut self, mut keep: impl FnMut(EventId) -> bool) {
        let removed: Vec<_> = self
            .events
            .iter()
            .filter(|(id, event)| event.state != DeliveryState::InFlight && !keep(**id))
            .map(|(id, _)| *id)
            .collect();
        for id in removed {
            self.done(id);
        }
    }

    /// The open events, in order.
    pub fn ids(&self) -> impl Iterator<Item = EventId> {
        self.events.keys().copied()
    }

    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Number of events that may be sent.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    fn set_state(&mut self, id: EventId, state: DeliveryState) {
        let Some(event) = self.events.get_mut(&id) else { return };
        match (event.state, state) {
            (DeliveryState::InFlight, DeliveryState::Waiting | DeliveryState::Resting) => self.in_flight -= 1,
            (DeliveryState::Waiting | DeliveryState::Resting, DeliveryState::InFlight) => self.in_flight += 1,
            _ => {}
        }
        event.state = state;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::DigestKind;

    fn id(index: u64) -> EventId {
        EventId { index, number: 0 }
    }

    fn subject(name: u8) -> Digest128 {
        Digest128::of(DigestKind::Subject, b"", &[name])
    }

    /// Event n has the n-th subject.
    fn window(subjects: &[u8]) -> Window {
        let mut window = Window::default();
        for (index, name) in (0..).zip(subjects) {
            window.add(id(index), subject(*name));
        }
        window
    }

    #[test]
    fn subjects_are_parallel_and_each_is_in_order() {
        let mut window = window(b"aabca");
        assert_eq!(window.next(8), Some(id(0)));
        assert_eq!(window.next(8), Some(id(2)), "1 waits for 0");
        assert_eq!(window.next(8), Some(id(3)));
        assert_eq!(window.next(8), None);
        window.done(id(0));
        assert_eq!(window.next(8), Some(id(1)));
        assert_eq!(window.next(8), None, "4 waits for 1");
        window.done(id(1));
        assert_eq!(window.next(8), Some(id(4)));
    }

    #[test]
    fn events_in_flight_are_limited() {
        let mut window = window(b"abcd");
        assert_eq!((window.next(2), window.next(2), window.next(2)), (Some(id(0)), Some(id(1)), None));
        window.failed(id(0));
        assert_eq!(window.next(2), Some(id(2)), "a resting event is not in flight");
        assert_eq!(window.next(2), None);
    }

    #[test]
    fn failed_event_rests_and_blocks_its_subject() {
        let mut window = window(b"aab");
        assert_eq!(window.next(8), Some(id(0)));
        assert_eq!(window.failed(id(0)).failures, 1);
        assert_eq!(window.next(8), Some(id(2)), "the other subject continues");
        assert_eq!(window.next(8), None);
        window.wake(id(0));
        window.wake(id(1));
        assert_eq!(window.next(8), Some(id(0)));
        assert_eq!(window.failed(id(0)).failures, 2);
        window.reset_failures();
        assert_eq!(window.next(8), Some(id(0)));
        assert_eq!(window.failed(id(0)).failures, 1, "forgiven failures do not count");
    }

    #[test]
    fn unsent_event_is_sent_before_later_ones_of_its_subject() {
        let mut window = window(b"aab");
        assert_eq!(window.next(8), Some(id(0)));
        window.unsent(id(0));
        assert_eq!((window.next(8), window.next(8), window.next(8)), (Some(id(0)), Some(id(2)), None));
        window.rest(id(0));
        assert_eq!(window.next(8), None);
        window.wake(id(0));
        assert_eq!(window.next(8), Some(id(0)));
        assert_eq!(window.failed(id(0)).failures, 1, "unsent is no failure");
    }

    /// Sends an event, which fails.
    fn fail(window: &mut Window, index: u64) -> u32 {
        window.reset_failures();
        while window.next(8).is_some() {}
        window.failed(id(index)).alone
    }

    #[test]
    fn event_fails_alone_while_others_are_accepted() {
        let mut window = window(b"abcdef");
        assert_eq!(fail(&mut window, 0), 0);
        assert_eq!(fail(&mut window, 0), 0, "none was accepted since");
        window.accepted(id(1));
        assert_eq!((fail(&mut window, 0), fail(&mut window, 0)), (1, 1), "one was accepted since");
        // A first failure may be the beginning of an outage.
        assert_eq!((fail(&mut window, 2), fail(&mut window, 0)), (0, 1));
        window.accepted(id(3));
        assert_eq!(
            (fail(&mut window, 0), fail(&mut window, 2), fail(&mut window, 0)),
            (2, 1, 2),
            "two were accepted"
        );
    }

    /// After one failure, another event is accepted, then an outage begins. Regression: each retry in it
    /// counted as if others were accepted, and half a minute later the event was lost as a dead letter.
    #[test]
    fn failure_before_an_outage_does_not_count_as_alone_in_it() {
        let mut window = window(b"ab");
        assert_eq!(fail(&mut window, 0), 0);
        window.accepted(id(1));
        for _ in 0..100 {
            assert_eq!(fail(&mut window, 0), 1);
        }
    }

    #[test]
    fn no_event_fails_alone_in_an_outage() {
        let mut window = window(b"abcdef");
        assert_eq!(fail(&mut window, 0), 0);
        window.accepted(id(1));
        for _ in 0..100 {
            assert_eq!((fail(&mut window, 2), fail(&mut window, 3), fail(&mut window, 0)), (0, 0, 0));
        }
    }

    #[test]
    fn removed_event_in_flight_is_not_overtaken() {
        let mut window = window(b"aab");
        assert_eq!(window.next(8), Some(id(0)));
        window.retain(|id| id.index > 0);
        assert_eq!(window.next(8), Some(id(2)), "1 waits for 0");
        assert_eq!(window.next(8), None);
        window.done(id(0));
        assert_eq!(window.next(8), Some(id(1)));
        window.done(id(0));
        assert_eq!(window.len(), 2, "an event is done once");
    }

    /// Action of a receiver, a timer or a cursor.
    #[derive(Clone, Debug)]
    enum Step {
        Add(u8),
        Next,
        Done(usize),
        Failed(usize),
        Wake,
        Reset,
        Drop(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..5_u8).prop_map(Step::Add),
            6 => Just(Step::Next),
            4 => any::<usize>().prop_map(Step::Done),
            2 => any::<usize>().prop_map(Step::Failed),
            2 => Just(Step::Wake),
            1 => Just(Step::Reset),
            1 => (0..40_u64).prop_map(Step::Drop),
        ];
        proptest::collection::vec(step, 1..200)
    }

    proptest! {
        #[test]
        fn any_steps_keep_order_lose_nothing_and_respect_the_limit(steps in steps()) {
            const AT_ONCE: usize = 3;
            let mut window = Window::default();
            let (mut added, mut done) = (Vec::new(), BTreeSet::new());
            let (mut in_flight, mut resting) = (Vec::<EventId>::new(), Vec::new());
            let subject_of = |added: &[u8], id: EventId| added[usize::try_from(id.index).expect("small")];
            let mut all = steps;
            // Finally a receiver that accepts everything.
            all.extend([Step::Reset]);
            all.extend((0..1000).map(|n| if n % 2 == 0 { Step::Next } else { Step::Done(0) }));
            for step in all {
                match step {
                    Step::Add(name) => {
                        window.add(id(added.len() as u64), subject(name));
                        added.push(name);
                    }
                    Step::Next => {
                        let Some(sent) = window.next(AT_ONCE) else { continue };
                        let name = subject_of(&added, sent);
                        for other in &in_flight {
                            prop_assert_ne!(subject_of(&added, *other), name, "two of one subject at once");
                        }
                        let earlier = (0..sent.index).map(id).filter(|id| subject_of(&added, *id) == name);
                        for id in earlier {
                            prop_assert!(done.contains(&id), "{id:?} was overtaken by {sent:?}");
                        }
                        prop_assert!(!done.contains(&sent), "sent after it was done");
                        in_flight.push(sent);
                        prop_assert!(in_flight.len() <= AT_ONCE);
                    }
                    Step::Done(at) if !in_flight.is_empty() => {
                        let id = in_flight.remove(at % in_flight.len());
                        window.done(id);
                        done.insert(id);
                    }
                    Step::Failed(at) if !in_flight.is_empty() => {
                        let id = in_flight.remove(at % in_flight.len());
                        window.failed(id);
                        resting.push(id);
                    }
                    Step::Wake if !resting.is_empty() => window.wake(resting.remove(0)),
                    Step::Reset => {
                        window.reset_failures();
                        resting.clear();
                    }
                    Step::Drop(before) => {
                        window.retain(|id| id.index >= before);
                        let gone = (0..before.min(added.len() as u64)).map(id);
                        let gone: Vec<_> = gone.filter(|id| !in_flight.contains(id)).collect();
                        resting.retain(|id| !gone.contains(id));
                        done.extend(gone);
                    }
                    Step::Done(_) | Step::Failed(_) | Step::Wake => {}
                }
            }
            prop_assert_eq!(done.len(), added.len(), "something was never sent");
            prop_assert_eq!((window.len(), window.ready(), window.in_flight), (0, 0, 0));
            prop_assert!(window.subjects.is_empty());
        }
    }
}
