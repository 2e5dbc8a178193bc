//! The run second by second.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::load::as_f64;
use crate::traffic::history::{History, Kind, Micros, Outcome, Request, quantile};

/// Microseconds per second.
const SECOND: Micros = 1_000_000;

/// One kind of request in one second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    pub requests: u64,
    /// Neither good nor of unknown outcome.
    pub errors: u64,
    pub unknown: u64,
    /// Latency of good responses since their due time, in milliseconds; `None` without a good response.
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Second {
    /// In the order of [`Kind::ALL`].
    pub kinds: [Cell; 4],
    /// The leader at its end.
    pub leader: Option<usize>,
}

impl Cell {
    pub fn of<'r>(requests: impl Iterator<Item = &'r Request>) -> Self {
        let (mut cell, mut waits) = (Self::default(), Vec::new());
        for request in requests {
            cell.requests += 1;
            match request.outcome {
                Outcome::Good => waits.push(request.done.saturating_sub(request.due)),
                Outcome::Unknown => cell.unknown += 1,
                _ => cell.errors += 1,
            }
        }
        waits.sort_unstable();
        let ms = |percent| quantile(&waits, percent).map(|micros| as_f64(micros) / 1000.0);
        (cell.p50_ms, cell.p99_ms) = (ms(50), ms(99));
        cell
    }

    fn json(&self) -> Value {
        json!({"requests": self.requests, "errors": self.errors, "unknown": self.unknown,
            "p50_ms": self.p50_ms, "p99_ms": self.p99_ms})
    }
}

impl Second {
    pub fn json(&self) -> Value {
        let kinds: serde_json::Map<_, _> =
            Kind::ALL.iter().map(|kind| (kind.name().to_owned(), self.kinds[kind.place()].json())).collect();
        json!({"leader": self.leader.map(|node| node + 1), "kinds": kinds})
    }
}

/// All seconds; a request belongs to the second of its due time.
pub fn seconds(history: &History) -> Vec<Second> {
    let mut by_place = BTreeMap::<(Micros, Kind), Vec<&Request>>::new();
    for request in &history.requests {
        by_place.entry((request.due / SECOND, request.kind)).or_default().push(request);
    }
    (0..history.end.div_ceil(SECOND))
        .map(|second| {
            let kinds =
                Kind::ALL.map(|kind| Cell::of(by_place.get(&(second, kind)).into_iter().flatten().copied()));
            Second { kinds, leader: leader_at(history, (second + 1) * SECOND) }
        })
        .collect()
}

/// The leader at this time.
fn leader_at(history: &History, at: Micros) -> Option<usize> {
    let after = history.leaders.partition_point(|(since, _)| *since <= at);
    after.checked_sub(1).and_then(|place| history.leaders[place].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_belongs_to_the_second_in_which_it_was_due() {
        let request = |due, done, outcome| Request { kind: Kind::Verify, due, done, first: outcome, outcome };
        let history = History {
            requests: vec![
                request(10, 2_000_010, Outcome::Good),
                request(20, 1020, Outcome::Good),
                request(30, 40, Outcome::Unknown),
                request(1_000_001, 1_000_002, Outcome::NotNow),
            ],
            leaders: vec![(0, Some(0)), (1_500_000, None), (1_600_000, Some(2))],
            end: 1_700_000,
            ..History::default()
        };
        let seconds = seconds(&history);
        assert_eq!(seconds.len(), 2);
        let verify = &seconds[0].kinds[Kind::Verify.place()];
        assert_eq!((verify.requests, verify.errors, verify.unknown), (3, 0, 1));
        assert_eq!((verify.p50_ms, verify.p99_ms), (Some(1.0), Some(2000.0)));
        assert_eq!(seconds[0].leader, Some(0));
        let verify = &seconds[1].kinds[Kind::Verify.place()];
        assert_eq!((verify.requests, verify.errors, verify.p50_ms), (1, 1, None));
        assert_eq!(seconds[1].leader, Some(2));
        assert_eq!(seconds[0].kinds[Kind::Write.place()], Cell::default());
    }
}
