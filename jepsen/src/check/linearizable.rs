//! Linearizability of one object, by the algorithm of Wing and Gong with the memo of Lowe.
//!
//! It trusts nothing but times and answers: it searches an order of the calls that respects real time and in
//! which each answer is that of the model. A call with unknown outcome may take effect at any time after its
//! start, or never. The search is exponential in the worst case, so calls are divided by key and the steps
//! are counted.

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
        list.extend(ends.into_iter().enumerate().map(|(number, (_, is_return, call))| End {
            call,
            is_return,
            next: (number + 2) % count,
            previous: number,
        }));
        Self(list)
    }

    fn unlink(&mut self, number: usize) {
        let End { next, previous, .. } = self.0[number];
        self.0[previous].next = next;
        self.0[next].previous = previous;
    }

    /// Undoes the last [`Self::unlink`] that was not undone.
    fn link(&mut self, number: usize) {
        let End { next, previous, .. } = self.0[number];
        self.0[previous].next = number;
        self.0[next].previous = number;
    }
}

/// Searches an order of `calls`, in at most `steps_max` steps of the model.
pub fn check<M: Model>(model: &M, calls: &[Timed<M::Call>], steps_max: u64) -> Verdict {
    let mut ends = Ends::of(calls);
    // Numbers of the ends of each call.
    let mut numbers = vec![(0, None); calls.len()];
    for (number, end) in ends.0.iter().enumerate().skip(1) {
        if end.is_return {
            numbers[end.call].1 = Some(number);
        } else {
            numbers[end.call].0 = number;
        }
    }
    let mut waiting = calls.iter().filter(|timed| timed.ended.is_some()).count();
    let mut taken = Taken(vec![0; calls.len().div_ceil(64)]);
    let mut order: Vec<(usize, M::State)> = Vec::new();
    let mut state = model.initial();
    let mut seen = HashSet::new();
    let mut longest = Vec::new();
    let mut stuck = usize::MAX;
    let mut number = ends.0[0].next;
    for _ in 0..steps_max {
        if waiting == 0 {
            return Verdict::Linearizable;
        }
        let End { call, is_return, next, .. } = ends.0[number];
        if number != 0 && !is_return {
            let after = model.step(&state, &calls[call].call).filter(|after| {
                taken.flip(call);
                let is_new = seen.insert((taken.clone(), after.clone()));
                taken.flip(call);
                is_new
            });
            let Some(after) = after else {
                number = next;
                continue;
            };
            taken.flip(call);
            order.push((call, std::mem::replace(&mut state, after)));
            let (begin, returned) = numbers[call];
            ends.unlink(begin);
            if let Some(returned) = returned {
                ends.unlink(returned);
                waiting -= 1;
            }
            number = ends.0[0].next;
            continue;
        }
        // The call of this end returned before anything else could happen: a call in the order is wrong.
        if order.len() >= longest.len() && number != 0 {
            longest = order.iter().map(|(call, _)| *call).collect();
            stuck = call;
        }
        let Some((call, before)) = order.pop() else { return Verdict::Violated { longest, stuck } };
        state = before;
        taken.flip(call);
        let (begin, returned) = numbers[call];
        if let Some(returned) = returned {
            ends.link(returned);
            waiting += 1;
        }
        ends.link(begin);
        number = ends.0[begin].next;
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::collection::vec;
    use proptest::prelude::any;

    use super::*;

    /// A register of small numbers: few values, so that wrong orders often fit, too.
    struct Register;

    #[derive(Clone, Copy, Debug)]
    enum Call {
        Read(u8),
        Write(u8),
        Swap(u8, u8),
    }

    impl Model for Register {
        type State = u8;
        type Call = Call;

        fn initial(&self) -> u8 {
            0
        }

        fn step(&self, state: &u8, call: &Call) -> Option<u8> {
            match *call {
                Call::Read(value) => (*state == value).then_some(value),
                Call::Write(value) => Some(value),
                Call::Swap(from, to) => (*state == from).then_some(to),
            }
        }
    }

    fn timed(bits: u32) -> Timed<Call> {
        let below = |shift: u32, count: u32| (bits >> shift) % count;
        let value = |shift| u8::try_from(below(shift, 3)).expect("small");
        let call = match below(0, 4) {
            0 => Call::Write(value(3)),
            1 => Call::Swap(value(3), value(6)),
            _ => Call::Read(value(3)),
        };
        let begun = u64::from(below(9, 12));
        let ended = (below(20, 6) > 0).then(|| begun + u64::from(below(13, 8)));
        Timed { begun, ended, call }
    }

    /// Tries every order of every choice of the calls of unknown outcome.
    fn exists_order(calls: &[Timed<Call>], taken: &mut Vec<usize>, state: u8) -> bool {
        let is_open = |call: &usize| !taken.contains(call);
        let open: Vec<_> = (0..calls.len()).filter(is_open).collect();
        if open.iter().all(|call| calls[*call].ended.is_none()) {
            return true;
        }
        let earliest = open.iter().filter_map(|call| calls[*call].ended).min();
        for call in open {
            let is_first = earliest.is_none_or(|earliest| calls[call].begun <= earliest);
            let Some(after) = Register.step(&state, &calls[call].call).filter(|_| is_first) else { continue };
            taken.push(call);
            if exists_order(calls, taken, after) {
                return true;
            }
            taken.pop();
        }
        false
    }

    #[test]
    fn search_agrees_with_a_trial_of_every_order() {
        // A case may run again, so it cannot count in ordinary variables.
        let counts = [Cell::new(0), Cell::new(0)];
        let config =
            proptest::test_runner::Config { cases: 4000, failure_persistence: None, ..Default::default() };
        let mut runner = proptest::test_runner::TestRunner::new(config);
        let histories = vec(any::<u32>(), 0..8);
        runner
            .run(&histories, |bits| {
                let calls: Vec<_> = bits.into_iter().map(timed).collect();
                let expected = exists_order(&calls, &mut Vec::new(), 0);
                let found = check(&Register, &calls, 1_000_000);
                assert_eq!(found == Verdict::Linearizable, expected, "{calls:?}: {found:?}");
                assert_ne!(found, Verdict::Undecided);
                let count = &counts[usize::from(expected)];
                count.set(count.get() + 1);
                Ok(())
            })
            .expect("agreement");
        assert!(counts.iter().all(|count| count.get() > 500), "both happen: {counts:?}");
    }

    #[test]
    fn search_that_does_not_end_is_undecided() {
        let calls: Vec<_> = (0..20)
            .map(|number| Timed { begun: 0, ended: Some(100), call: Call::Write(number) })
            .chain([Timed { begun: 200, ended: Some(300), call: Call::Read(99) }])
            .collect();
        assert_eq!(check(&Register, &calls, 1000), Verdict::Undecided);
    }
}
