//! Linearizability of one object, by the algorithm of Wing and Gong with the memo of Lowe.
//!
//! It trusts nothing but times and answers: it searches an order of the calls that respects real time and in which
//! each answer is that of the model. A call with unknown outcome may take effect at any time after its begin, or never.
//! The search is exponential in the worst case, so calls are divided by key and the steps are counted.

use std::collections::HashSet;
use std::hash::Hash;

use crate::history::Nanos;

/// Sequential behaviour of one object.
pub trait Model {
    type State: Clone + Eq + Hash;
    type Call;

    fn initial(&self) -> Self::State;

    /// The state after `call`, or `None` if its answer is impossible in `state`.
    fn step(&self, state: &Self::State, call: &Self::Call) -> Option<Self::State>;
}

/// A call with its time.
#[derive(Clone, Debug)]
pub struct Timed<C> {
    pub begun: Nanos,
    /// `None`: the outcome is unknown.
    pub ended: Option<Nanos>,
    pub call: C,
}

/// Result of the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Linearizable,
    /// No order exists. The longest order that was found, and a call that never fits after it.
    Violated {
        longest: Vec<usize>,
        stuck: usize,
    },
    /// The steps were not enough.
    Undecided,
}

/// One end of a call, in the list of the ends that are not yet in the order.
struct End {
    call: usize,
    is_return: bool,
    next: usize,
    previous: usize,
}

/// The ends in order of time. Position 0 is the head; the list is circular.
struct Ends(Vec<End>);

impl Ends {
    fn of<C>(calls: &[Timed<C>]) -> Self {
        let mut ends: Vec<_> = calls
            .iter()
            .enumerate()
            .flat_map(|(call, timed)| {
                // At one time, a call begins before another ends: the two are concurrent.
                let returned = timed.ended.map(|at| (at, true, call));
                [Some((timed.begun, false, call)), returned].into_iter().flatten()
            })
            .collect();
        ends.sort_unstable();
        let count = ends.len() + 1;
        let mut list = vec![End { call: usize::MAX, is_return: false, next: 1 % count, previous: count - 1 }];
        list.extend(ends.into_iter().enumerate().map(|(place, (_, is_return, call))| End {
            call,
            is_return,
            next: (place + 2) % count,
            previous: place,
        }));
        Self(list)
    }

    fn unlink(&mut self, place: usize) {
        let End { next, previous, .. } = self.0[place];
        self.0[previous].next = next;
        self.0[next].previous = previous;
    }

    /// Undoes the last [`Self::unlink`] that was not undone.
    fn link(&mut self, place: usize) {
        let End { next, previous, .. } = self.0[place];
        self.0[previous].next = place;
        self.0[next].previous = place;
    }
}

/// Searches an order of `calls`, in at most `steps_max` steps of the model.
pub fn check<M: Model>(model: &M, calls: &[Timed<M::Call>], steps_max: u64) -> Verdict {
    let mut ends = Ends::of(calls);
    // Places of the ends of each call.
    let mut places = vec![(0, None); calls.len()];
    for (place, end) in ends.0.iter().enumerate().skip(1) {
        if end.is_return {
            places[end.call].1 = Some(place);
        } else {
            places[end.call].0 = place;
        }
    }
    let mut waiting = calls.iter().filter(|timed| timed.ended.is_some()).count();
    let mut taken = Taken(vec![0; calls.len().div_ceil(64)]);
    let mut order: Vec<(usize, M::State)> = Vec::new();
    let mut state = model.initial();
    let mut seen = HashSet::new();
    let mut longest = Vec::new();
    let mut stuck = usize::MAX;
    let mut place = ends.0[0].next;
    for _ in 0..steps_max {
        if waiting == 0 {
            return Verdict::Linearizable;
        }
        let End { call, is_return, next, .. } = ends.0[place];
        if place != 0 && !is_return {
            let after = model.step(&state, &calls[call].call).filter(|after| {
                taken.flip(call);
                let is_new = seen.insert((taken.clone(), after.clone()));
                taken.flip(call);
                is_new
            });
            let Some(after) = after else {
                place = next;
                continue;
            };
            taken.flip(call);
            order.push((call, std::mem::replace(&mut state, after)));
            let (begin, returned) = places[call];
            ends.unlink(begin);
            if let Some(returned) = returned {
                ends.unlink(returned);
                waiting -= 1;
            }
            place = ends.0[0].next;
            continue;
        }
        // The call of this end returned before anything else could happen: a call in the order is wrong.
        if order.len() >= longest.len() && place != 0 {
            longest = order.iter().map(|(call, _)| *call).collect();
            stuck = call;
        }
        let Some((call, before)) = order.pop() else { return Verdict::Violated { longest, stuck } };
        state = before;
        taken.flip(call);
        let (begin, returned) = places[call];
        if let Some(returned) = returned {
            ends.link(returned);
            waiting += 1;
        }
        ends.link(begin);
        place = ends.0[begin].next;
    }
    Verdict::Undecided
}

/// The calls in the order.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Taken(Vec<u64>);

impl Taken {
    fn flip(&mut self, call: usize) {
        self.0[call / 64] ^= 1 << (call % 64);
    }
}
