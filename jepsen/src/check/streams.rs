//! Streams: every acknowledged signal reaches every stream at least once, in order per subject, and a repeat has the
//! same `jti`.
//!
//! Signals of one subject are in order if one was acknowledged before the next began. The first arrivals count:
//! a receiver that answers nothing gets events again, from the first unanswered one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Found, Numbered, Violation, grouped, is_ok, of, text};
use crate::history::{History, Kind, Nanos, Outcome, Workload};

pub const NAME: &str = "streams";

/// Streams of a run.
pub const STREAMS: usize = 2;

/// Number of a signal of one subject.
type Signal<'h> = (&'h str, u64);

type Emitted<'h> = HashMap<Signal<'h>, Emit>;

/// The requests of one signal: it is sent until it is acknowledged.
struct Emit {
    operation_number: usize,
    /// Start of the first request that may have had an effect.
    begun: Nanos,
    /// End of the first one that was acknowledged.
    acknowledged: Nanos,
}

impl Emit {
    const NEVER: Self = Self { operation_number: usize::MAX, begun: Nanos::MAX, acknowledged: Nanos::MAX };

    fn add(&mut self, (operation_number, request): Numbered<'_>) {
        if request.outcome != Outcome::Fail {
            self.begun = self.begun.min(request.invoke);
        }
        if request.outcome == Outcome::Ok && request.end < self.acknowledged {
            (self.operation_number, self.acknowledged) = (operation_number, request.end);
        }
    }
}

pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Found::by(NAME);
    let mut emitted: Emitted<'_> = HashMap::new();
    for (operation_number, operation) in
        of(history, Workload::Streams).filter(|(_, emit)| emit.kind == Kind::Emit)
    {
        match operation.input["number"].as_u64() {
            Some(number) => {
                emitted
                    .entry((&operation.key, number))
                    .or_insert(Emit::NEVER)
                    .add((operation_number, operation));
            }
            None => found.add_unreadable((operation_number, operation)),
        }
    }
    let arrivals = of(history, Workload::Streams).filter(|(_, arrival)| is_ok(arrival, Kind::Deliver));
    let mut streams = grouped(arrivals, |arrival| text(&arrival.input["stream"]).unwrap_or_default());
    for stream in 0..STREAMS {
        streams.entry(stream.to_string()).or_default();
    }
    let mut orders: BTreeMap<&str, (String, Vec<u64>)> = BTreeMap::new();
    for (stream, arrivals) in &streams {
        let first = first_arrivals(stream, arrivals, &mut found);
        were_emitted(stream, &first, &emitted, &mut found);
        in_order(stream, &first, &emitted, &mut found);
        equal_orders(stream, &first, &mut orders, &mut found);
        all_arrive(stream, &first, &emitted, &mut found);
    }
    found.violations
}

/// First arrivals of one stream, in order of arrival.
type Arrivals<'h> = Vec<(Signal<'h>, Numbered<'h>)>;

/// One `jti` belongs to one signal of a subject, and one signal has one `jti`.
fn first_arrivals<'h>(stream: &str, arrivals: &[Numbered<'h>], found: &mut Found) -> Arrivals<'h> {
    let mut first = Vec::new();
    let mut jtis: HashMap<Signal<'_>, (String, usize)> = HashMap::new();
    let mut signals: HashMap<String, (Signal<'_>, usize)> = HashMap::new();
    for &(operation_number, arrival) in arrivals {
        let (Some(jti), Some(number)) = (text(&arrival.value["jti"]), arrival.value["number"].as_u64())
        else {
            found.add_unreadable((operation_number, arrival));
            continue;
        };
        let signal = (arrival.key.as_str(), number);
        let (known, before) = jtis.entry(signal).or_insert_with(|| {
            first.push((signal, (operation_number, arrival)));
            (jti.clone(), operation_number)
        });
        if *known != jti {
            let detail = format!("{stream}: signal {signal:?} arrived as jti {known} and as {jti}");
            found.add("same jti on repeats", detail, &[*before, operation_number]);
        }
        let (known, before) = signals.entry(jti.clone()).or_insert((signal, operation_number));
        if *known != signal {
            let detail = format!("{stream}: jti {jti} arrived for the signals {known:?} and {signal:?}");
            found.add("one signal for each jti", detail, &[*before, operation_number]);
        }
    }
    first
}

/// A signal that was refused, or never sent, does not arrive; none arrives before it was sent.
fn were_emitted(stream: &str, first: &Arrivals<'_>, emitted: &Emitted<'_>, found: &mut Found) {
    for (signal, (operation_number, arrival)) in first {
        if emitted.get(signal).is_none_or(|emit| emit.begun > arrival.end) {
            let detail = format!("{stream}: signal {signal:?} arrived, although it was not accepted before");
            found.add("only accepted signals", detail, &[*operation_number]);
        }
    }
}

fn in_order(stream: &str, first: &Arrivals<'_>, emitted: &Emitted<'_>, found: &mut Found) {
    let mut latest: HashMap<&str, (Nanos, usize)> = HashMap::new();
    for (signal, (operation_number, _)) in first {
        let Some(emit) = emitted.get(signal) else { continue };
        let (begun, before) = latest.entry(signal.0).or_insert((0, *operation_number));
        if emit.acknowledged < *begun {
            let detail = format!("{stream}: signal {signal:?} arrived after a later one of its subject");
            found.add("order per subject", detail, &[*before, *operation_number]);
        }
        if emit.begun > *begun {
            (*begun, *before) = (emit.begun, *operation_number);
        }
    }
}

/// All streams have one log: signals of one subject arrive in one order, also where the order of sending is not known.
fn equal_orders<'h>(
    stream: &str,
    first: &Arrivals<'h>,
    orders: &mut BTreeMap<&'h str, (String, Vec<u64>)>,
    found: &mut Found,
) {
    let mut here: BTreeMap<&str, Vec<(u64, usize)>> = BTreeMap::new();
    for ((subject, number), (operation_number, _)) in first {
        here.entry(subject).or_default().push((*number, *operation_number));
    }
    for (subject, arrivals) in here {
        let Some((other, order)) = orders.get(subject) else {
            let order = arrivals.iter().map(|(number, _)| *number).collect();
            orders.insert(subject, (stream.to_owned(), order));
            continue;
        };
        let positions: HashMap<u64, usize> =
            order.iter().enumerate().map(|(at, number)| (*number, at)).collect();
        let common = arrivals
            .iter()
            .filter_map(|(number, operation_number)| Some((positions.get(number)?, operation_number)));
        let common: Vec<_> = common.collect();
        if let Some(pair) = common.windows(2).find(|pair| pair[0].0 > pair[1].0) {
            let detail = format!("signals of {subject} arrived in different orders: {stream}, {other}");
            found.add("one order on all streams", detail, &[*pair[0].1, *pair[1].1]);
        }
    }
}

fn all_arrive(stream: &str, first: &Arrivals<'_>, emitted: &Emitted<'_>, found: &mut Found) {
    let arrived: BTreeSet<Signal<'_>> = first.iter().map(|(signal, _)| *signal).collect();
    let mut missing: Vec<_> = emitted
        .iter()
        .filter(|(signal, emit)| emit.acknowledged < Nanos::MAX && !arrived.contains(*signal))
        .map(|(signal, emit)| (emit.operation_number, *signal))
        .collect();
    missing.sort_unstable();
    for (operation_number, signal) in missing {
        let detail = format!("{stream}: signal {signal:?} was acknowledged and never arrived");
        found.add("at least once", detail, &[operation_number]);
    }
}

/// Signals that were acknowledged, and arrivals.
pub fn coverage(history: &History) -> [(&'static str, u64); 2] {
    let count = |kind| of(history, Workload::Streams).filter(|(_, one)| is_ok(one, kind)).count() as u64;
    [("signals acknowledged", count(Kind::Emit)), ("arrivals", count(Kind::Deliver))]
}
