//! Which of a stream's events may be sent next: never two of one subject at once, and no later one of a
//! subject before the earlier one is done. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::id::Digest128;
use crate::state::EventId;

/// The events of one stream that are known and not done.
#[derive(Debug, Default)]
pub struct Window {
    events: BTreeMap<EventId, Event>,
    /// Those of each subject, in order.
    subjects: HashMap<Digest128, BTreeSet<EventId>>,
    /// Those that wait and are the first of their subject.
    ready: BTreeSet<EventId>,
    under_way: usize,
    /// How many the receiver took.
    taken: u64,
    /// Since it took the last one, it did not take one that it had not refused before.
    is_outage: bool,
}

#[derive(Debug)]
struct Event {
    subject: Digest128,
    place: Place,
    failures: u32,
    /// How many were taken before it failed for the first time.
    taken_before: Option<u64>,
    alone: u32,
    refusals: u32,
}

/// How often an event was not taken by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// In all, since that was forgiven.
    pub failures: u32,
    /// While the receiver took others.
    pub alone: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Waiting,
    UnderWay,
    Resting,
}

impl Window {
    /// Takes up an event, later than those of its subject that are known. One that is known is left as it is.
    pub fn add(&mut self, id: EventId, subject: Digest128) {
        if self.events.contains_key(&id) {
            return;
        }
        let (place, failures, alone, refusals) = (Place::Waiting, 0, 0, 0);
        self.events.insert(id, Event { subject, place, failures, taken_before: None, alone, refusals });
        let of_subject = self.subjects.entry(subject).or_default();
        of_subject.insert(id);
        if of_subject.first() == Some(&id) {
            self.ready.insert(id);
        }
    }

    /// The earliest event that may be sent while no more than `at_once` are under way; it is under way then.
    pub fn next(&mut self, at_once: usize) -> Option<EventId> {
        if self.under_way >= at_once {
            return None;
        }
        let id = self.ready.pop_first()?;
        self.put(id, Place::UnderWay);
        Some(id)
    }

    /// It is over with an event, and the next of its subject may be sent.
    pub fn done(&mut self, id: EventId) {
        let Some(event) = self.events.remove(&id) else { return };
        if event.place == Place::UnderWay {
            self.under_way -= 1;
        }
        self.ready.remove(&id);
        let Some(of_subject) = self.subjects.get_mut(&event.subject) else { return };
        of_subject.remove(&id);
        match of_subject.first() {
            None => drop(self.subjects.remove(&event.subject)),
            Some(&next) if self.events.get(&next).is_some_and(|event| event.place == Place::Waiting) => {
                self.ready.insert(next);
            }
            Some(_) => {}
        }
    }

    /// The receiver took an event, or said why it never will: whatever else it does not take, it is there.
    pub fn taken(&mut self, id: EventId) {
        self.taken = self.taken.saturating_add(1);
        self.is_outage = false;
        self.done(id);
    }

    /// An event was not taken, and rests; how often that happened to it by now.
    pub fn failed(&mut self, id: EventId) -> Failed {
        self.rest(id);
        let Some(event) = self.events.get_mut(&id) else { return Failed { failures: 0, alone: 0 } };
        event.failures = event.failures.saturating_add(1);
        let others = self.taken - *event.taken_before.get_or_insert(self.taken);
        if others == 0 {
            self.is_outage = true;
        } else if !self.is_outage && u64::from(event.alone) < others {
            // For each that was taken meanwhile once at the most: an outage may have begun behind the last of them.
            event.alone += 1;
        }
        Failed { failures: event.failures, alone: event.alone }
    }

    /// An event was refused as one of this sender; how often by now.
    pub fn refused(&mut self, id: EventId) -> u32 {
        let Some(event) = self.events.get_mut(&id) else { return 0 };
        event.refusals = event.refusals.saturating_add(1);
        event.refusals
    }

    /// The receiver may think otherwise of what it refused.
    pub fn forget_refusals(&mut self) {
        for event in self.events.values_mut() {
            event.refusals = 0;
        }
    }

    /// Whether an event is known and no push of it is under way.
    #[must_use]
    pub fn is_held(&self, id: EventId) -> bool {
        self.events.get(&id).is_some_and(|event| event.place != Place::UnderWay)
    }

    /// An event was not sent, and rests.
    pub fn rest(&mut self, id: EventId) {
        self.put(id, Place::Resting);
    }

    /// An event was not sent, and may be at once.
    pub fn unsent(&mut self, id: EventId) {
        self.rest(id);
        self.rested(id);
    }

    /// An event that rested may be sent again.
    pub fn rested(&mut self, id: EventId) {
        if self.events.get(&id).is_some_and(|event| event.place == Place::Resting) {
            self.put(id, Place::Waiting);
            // What rests was under way, so that it is the first of its subject.
            self.ready.insert(id);
        }
    }

    /// All that rested may be sent again, as if they had never failed.
    pub fn forgive(&mut self) {
        let resting: Vec<_> = self
            .events
            .iter()
            .filter(|(_, event)| event.place == Place::Resting)
            .map(|(id, _)| *id)
            .collect();
        for id in resting {
            self.rested(id);
        }
        for event in self.events.values_mut() {
            event.failures = 0;
        }
    }

    /// Forgets what is not to be sent any more. What is under way stays until it is over: a later event of its
    /// subject must not overtake it.
    pub fn retain(&mut self, mut keep: impl FnMut(EventId) -> bool) {
        let gone: Vec<_> = self
            .events
            .iter()
            .filter(|(id, event)| event.place != Place::UnderWay && !keep(**id))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.done(id);
        }
    }

    /// All that are not done, in order.
    pub fn ids(&self) -> impl Iterator<Item = EventId> {
        self.events.keys().copied()
    }

    /// How many are not done.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// How many could be sent at once.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    fn put(&mut self, id: EventId, place: Place) {
        let Some(event) = self.events.get_mut(&id) else { return };
        match (event.place, place) {
            (Place::UnderWay, Place::Waiting | Place::Resting) => self.under_way -= 1,
            (Place::Waiting | Place::Resting, Place::UnderWay) => self.under_way += 1,
            _ => {}
        }
        event.place = place;
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

    /// Events 0, 1, 2 … of these subjects.
    fn window(subjects: &[u8]) -> Window {
        let mut window = Window::default();
        for (index, name) in (0..).zip(subjects) {
            window.add(id(index), subject(*name));
        }
        window
    }

    #[test]
    fn different_subjects_are_sent_at_once_and_one_subject_in_its_order() {
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
    fn no_more_are_under_way_than_is_allowed() {
        let mut window = window(b"abcd");
        assert_eq!((window.next(2), window.next(2), window.next(2)), (Some(id(0)), Some(id(1)), None));
        window.failed(id(0));
        assert_eq!(window.next(2), Some(id(2)), "what rests takes no place");
        assert_eq!(window.next(2), None);
    }

    #[test]
    fn what_failed_rests_with_all_that_come_behind_it() {
        let mut window = window(b"aab");
        assert_eq!(window.next(8), Some(id(0)));
        assert_eq!(window.failed(id(0)).failures, 1);
        assert_eq!(window.next(8), Some(id(2)), "the other subject goes on");
        assert_eq!(window.next(8), None);
        window.rested(id(0));
        window.rested(id(1));
        assert_eq!(window.next(8), Some(id(0)));
        assert_eq!(window.failed(id(0)).failures, 2);
        window.forgive();
        assert_eq!(window.next(8), Some(id(0)));
        assert_eq!(window.failed(id(0)).failures, 1, "what it was forgiven does not count");
    }

    #[test]
    fn what_was_not_sent_may_be_sent_again_before_all_that_come_behind_it() {
        let mut window = window(b"aab");
        assert_eq!(window.next(8), Some(id(0)));
        window.unsent(id(0));
        assert_eq!((window.next(8), window.next(8), window.next(8)), (Some(id(0)), Some(id(2)), None));
        window.rest(id(0));
        assert_eq!(window.next(8), None);
        window.rested(id(0));
        assert_eq!(window.next(8), Some(id(0)));
        assert_eq!(window.failed(id(0)).failures, 1, "not being sent is no failure");
    }

    /// Sends an event that is not taken.
    fn fail(window: &mut Window, index: u64) -> u32 {
        window.forgive();
        while window.next(8).is_some() {}
        window.failed(id(index)).alone
    }

    #[test]
    fn an_event_fails_alone_while_the_receiver_takes_others() {
        let mut window = window(b"abcdef");
        assert_eq!(fail(&mut window, 0), 0);
        assert_eq!(fail(&mut window, 0), 0, "nothing was taken since");
        window.taken(id(1));
        assert_eq!((fail(&mut window, 0), fail(&mut window, 0)), (1, 1), "one was taken since");
        // One that fails for the first time may be the begin of an outage.
        assert_eq!((fail(&mut window, 2), fail(&mut window, 0)), (0, 1));
        window.taken(id(3));
        assert_eq!(
            (fail(&mut window, 0), fail(&mut window, 2), fail(&mut window, 0)),
            (2, 1, 2),
            "two of them"
        );
    }

    /// One hiccup, another event that was taken, and then an outage: each try in it counted as if others were taken
    /// meanwhile, and after half a minute the event was lost as a dead letter.
    #[test]
    fn an_event_that_failed_before_an_outage_does_not_fail_alone_in_it() {
        let mut window = window(b"ab");
        assert_eq!(fail(&mut window, 0), 0);
        window.taken(id(1));
        for _ in 0..100 {
            assert_eq!(fail(&mut window, 0), 1);
        }
    }

    #[test]
    fn in_an_outage_no_event_fails_alone() {
        let mut window = window(b"abcdef");
        assert_eq!(fail(&mut window, 0), 0);
        window.taken(id(1));
        for _ in 0..100 {
            assert_eq!((fail(&mut window, 2), fail(&mut window, 3), fail(&mut window, 0)), (0, 0, 0));
        }
    }

    #[test]
    fn what_is_given_up_while_it_is_under_way_is_not_overtaken() {
        let mut window = window(b"aab");
        assert_eq!(window.next(8), Some(id(0)));
        window.retain(|id| id.index > 0);
        assert_eq!(window.next(8), Some(id(2)), "1 still waits for 0");
        assert_eq!(window.next(8), None);
        window.done(id(0));
        assert_eq!(window.next(8), Some(id(1)));
        window.done(id(0));
        assert_eq!(window.len(), 2, "what is done is done once");
    }

    /// What a receiver, a clock and a cursor do to a window.
    #[derive(Clone, Debug)]
    enum Step {
        Add(u8),
        Next,
        Done(usize),
        Failed(usize),
        Rested,
        Forgive,
        GiveUp(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..5_u8).prop_map(Step::Add),
            6 => Just(Step::Next),
            4 => any::<usize>().prop_map(Step::Done),
            2 => any::<usize>().prop_map(Step::Failed),
            2 => Just(Step::Rested),
            1 => Just(Step::Forgive),
            1 => (0..40_u64).prop_map(Step::GiveUp),
        ];
        proptest::collection::vec(step, 1..200)
    }

    proptest! {
        #[test]
        fn order_is_kept_nothing_is_lost_and_no_more_are_under_way_than_allowed(steps in steps()) {
            const AT_ONCE: usize = 3;
            let mut window = Window::default();
            let (mut added, mut over) = (Vec::new(), BTreeSet::new());
            let (mut under_way, mut resting) = (Vec::<EventId>::new(), Vec::new());
            let subject_of = |added: &[u8], id: EventId| added[usize::try_from(id.index).expect("small")];
            let mut all = steps;
            // And then a receiver that takes everything.
            all.extend([Step::Forgive]);
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
                        for other in &under_way {
                            prop_assert_ne!(subject_of(&added, *other), name, "two of one subject at once");
                        }
                        let earlier = (0..sent.index).map(id).filter(|id| subject_of(&added, *id) == name);
                        for id in earlier {
                            prop_assert!(over.contains(&id), "{id:?} was overtaken by {sent:?}");
                        }
                        prop_assert!(!over.contains(&sent), "sent after it was done");
                        under_way.push(sent);
                        prop_assert!(under_way.len() <= AT_ONCE);
                    }
                    Step::Done(at) if !under_way.is_empty() => {
                        let id = under_way.remove(at % under_way.len());
                        window.done(id);
                        over.insert(id);
                    }
                    Step::Failed(at) if !under_way.is_empty() => {
                        let id = under_way.remove(at % under_way.len());
                        window.failed(id);
                        resting.push(id);
                    }
                    Step::Rested if !resting.is_empty() => window.rested(resting.remove(0)),
                    Step::Forgive => {
                        window.forgive();
                        resting.clear();
                    }
                    Step::GiveUp(before) => {
                        window.retain(|id| id.index >= before);
                        let gone = (0..before.min(added.len() as u64)).map(id);
                        let gone: Vec<_> = gone.filter(|id| !under_way.contains(id)).collect();
                        resting.retain(|id| !gone.contains(id));
                        over.extend(gone);
                    }
                    Step::Done(_) | Step::Failed(_) | Step::Rested => {}
                }
            }
            prop_assert_eq!(over.len(), added.len(), "something was never sent");
            prop_assert_eq!((window.len(), window.ready(), window.under_way), (0, 0, 0));
            prop_assert!(window.subjects.is_empty());
        }
    }
}
