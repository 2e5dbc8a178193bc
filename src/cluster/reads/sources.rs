//! Leases on outside sources ([the page on federation](../../../docs/design/federation.md), §8.2): for how long a node
//! may decide by a copy of data that another system changes. The state holds the copy; a source is an opaque id here.
//! Four rules, all of which are needed:
//!
//! 1. The leader records the time before it sends a call. When it has applied everything in the response, that time is its
//!    record. A leader forgets its records when its term ends.
//! 2. An answer to `ReadIndex` names the records that the leader read before it confirmed the index, so the index covers
//!    their imports.
//! 3. The lease of a node begins when it has applied that index. It counts from the time at which the node sent its
//!    request, is no longer than the leader and the node each allow, and ends a margin earlier.
//! 4. It is checked after a request has arrived and before anything is read for it. There is no wait.
//!
//! Times are those of the boot clock, in both modes of [`FreshnessMode`](super::freshness::FreshnessMode). They are void
//! if the node may have been suspended since. The decisions take the time as an argument.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::freshness::LeaseProof;
use crate::breaks::{self, Break};
use crate::cluster::peers::proto;
use crate::cluster::{Handle, Machine};
use crate::id::Digest128;
use crate::limits;

/// An outside source, as one copy of it in the state. A response that went into one copy proves nothing about another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The source.
    pub id: Digest128,
    /// Number of the copy.
    pub generation: u64,
}

/// A call to an outside source, begun by this node as the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceCall {
    term: u64,
    at: Duration,
}

/// Proof that the copy of this source was recent enough when the request arrived. It is valid for that request only, so
/// it cannot be copied.
#[derive(Debug)]
pub struct SourceProof(Source);

impl SourceProof {
    /// The source, and the copy of it that may be read.
    #[must_use]
    pub fn source(&self) -> Source {
        self.0
    }
}

/// This node may not decide by its copy of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSourceLease {
    /// Time since the last call of which this node knows that its response is applied.
    pub heard_ago: Option<Duration>,
}

impl fmt::Display for NoSourceLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.heard_ago {
            Some(ago) => write!(f, "last heard {} s ago", ago.as_secs()),
            None => f.write_str("not heard yet"),
        }
    }
}

impl std::error::Error for NoSourceLease {}

/// A lease on a source, as the leader names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceLease {
    source: Source,
    /// Remaining when the leader read its record.
    remaining: Duration,
    /// By the leader's configuration, from its call on.
    length: Duration,
}

/// The last call of the leader whose response is applied.
#[derive(Clone, Copy, Debug)]
struct Record {
    generation: u64,
    called_at: Duration,
    length: Duration,
}

impl Record {
    /// The rest of its lease at `now`, in whole milliseconds.
    fn remaining(&self, now: Duration) -> Duration {
        whole_millis((self.called_at + self.length).saturating_sub(now))
    }
}

/// The records of one term.
#[derive(Debug, Default)]
struct Records {
    term: u64,
    by_id: BTreeMap<Digest128, Record>,
}

impl Records {
    /// Forgets the records of another term.
    fn of_term(&mut self, term: u64) -> &mut BTreeMap<Digest128, Record> {
        if self.term != term {
            *self = Self { term, by_id: BTreeMap::new() };
        }
        &mut self.by_id
    }
}

/// A lease of this node.
#[derive(Clone, Copy, Debug)]
struct Lease {
    named: SourceLease,
    /// When the request was sent to which the leader answered with this lease.
    sent: Duration,
}

impl Lease {
    /// When it ends if this node allows `own` from the leader's call on.
    fn ends(&self, own: Duration) -> Duration {
        if breaks::active(Break::PeerLeaseWithoutBound) {
            return self.sent + limits::SOURCE_LEASE_MAX;
        }
        let length = self.named.length.min(own);
        let shorter_by = self.named.length.saturating_sub(length);
        let margin = length / limits::SOURCE_LEASE_MARGIN_DIVISOR;
        (self.sent + self.named.remaining).saturating_sub(shorter_by + margin)
    }

    /// Time since the leader's call; not less than it really is.
    fn age(&self, now: Duration) -> Duration {
        (now + self.named.length).saturating_sub(self.sent + self.named.remaining)
    }
}

/// Records of this node as the leader, and its leases.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    records: Mutex<Records>,
    leases: Mutex<BTreeMap<Digest128, Lease>>,
}

impl Sources {
    /// Records a call whose response is applied. False if a later one is recorded, or there are too many sources.
    fn record(&self, call: SourceCall, source: Source, length: Duration) -> bool {
        let mut records = self.records.lock();
        let by_id = records.of_term(call.term);
        let is_latest = match by_id.get(&source.id) {
            Some(known) => known.called_at <= call.at,
            None => by_id.len() < limits::SOURCES_MAX,
        };
        if is_latest {
            let length = whole_millis(length.min(limits::SOURCE_LEASE_MAX));
            by_id.insert(source.id, Record { generation: source.generation, called_at: call.at, length });
        }
        is_latest
    }

    /// The leases that the records of `term` still give at `now`.
    fn recorded(&self, term: u64, now: Duration, void_before: Duration) -> Vec<SourceLease> {
        let mut records = self.records.lock();
        let named = records.of_term(term).iter().filter(|(_, record)| record.called_at > void_before);
        let named = named.map(|(id, record)| SourceLease {
            source: Source { id: *id, generation: record.generation },
            remaining: record.remaining(now),
            length: record.length,
        });
        named.filter(|lease| !lease.remaining.is_zero()).collect()
    }

    /// Takes the leases that the leader named in answer to a request sent at `sent`, once the index is applied that it
    /// named with them. A lease of an earlier call does not replace that of a later one, unless that is on another copy or
    /// void.
    pub(super) fn hold_since(&self, sent: Duration, void_before: Duration, named: Vec<SourceLease>) {
        let mut leases = self.leases.lock();
        for named in named {
            let lease = Lease { named, sent };
            let is_newer = match leases.get(&named.source.id) {
                Some(known) if known.sent > void_before && known.named.source == named.source => {
                    lease.age(sent) <= known.age(sent)
                }
                Some(_) => true,
                None => leases.len() < limits::SOURCES_MAX,
            };
            if is_newer {
                leases.insert(named.source.id, lease);
            }
        }
        // A source that is no longer called makes room.
        leases.retain(|_, lease| lease.age(sent) <= limits::SOURCE_LEASE_MAX);
    }

    /// The lease on this copy of the source, if it is held at `now`.
    fn prove(
        &self,
        source: Source,
        own: Duration,
        (now, void_before): (Duration, Duration),
    ) -> Result<SourceProof, NoSourceLease> {
        let lease = self.leases.lock().get(&source.id).copied().filter(|lease| lease.named.source == source);
        let is_held = |lease: &Lease| lease.sent > void_before && now < lease.ends(own);
        if lease.as_ref().is_some_and(is_held) {
            return Ok(SourceProof(source));
        }
        Err(NoSourceLease { heard_ago: lease.map(|lease| lease.age(now)) })
    }

    /// Time since the last call that this node knows to be answered and applied.
    fn heard(&self, source: Source, term: Option<u64>, now: Duration) -> Option<Duration> {
        let records = self.records.lock();
        let record = records.by_id.get(&source.id).filter(|record| record.generation == source.generation);
        let recorded = record.filter(|_| Some(records.term) == term);
        let recorded = recorded.map(|record| now.saturating_sub(record.called_at));
        let lease = self.leases.lock().get(&source.id).copied().filter(|lease| lease.named.source == source);
        recorded.or(lease.map(|lease| lease.age(now)))
    }
}

fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(millis(duration))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(in crate::cluster) fn leases_to_proto(leases: &[SourceLease]) -> Vec<proto::SourceLease> {
    let message = |lease: &SourceLease| proto::SourceLease {
        source: Bytes::copy_from_slice(lease.source.id.as_bytes()),
        generation: lease.source.generation,
        remaining_millis: millis(lease.remaining),
        length_millis: millis(lease.length),
    };
    leases.iter().map(message).collect()
}

/// Decodes the leases in an answer of the leader. A lease that is longer than the maximum or inconsistent is
/// left out.
pub(in crate::cluster) fn leases_from_proto(messages: Vec<proto::SourceLease>) -> Vec<SourceLease> {
    let decoded = |message: proto::SourceLease| {
        let id = Digest128::from_bytes(message.source.as_ref().try_into().ok()?);
        let (remaining, length) =
            (Duration::from_millis(message.remaining_millis), Duration::from_millis(message.length_millis));
        let is_consistent = remaining <= length && length <= limits::SOURCE_LEASE_MAX;
        let source = Source { id, generation: message.generation };
        is_consistent.then_some(SourceLease { source, remaining, length })
    };
    if messages.len() > limits::SOURCES_MAX {
        return Vec::new();
    }
    messages.into_iter().filter_map(decoded).collect()
}

impl<M: Machine> Handle<M> {
    /// Begins a call to an outside source. To be taken before the call is sent; `None` unless this node leads.
    #[must_use]
    pub fn begin_source_call(&self) -> Option<SourceCall> {
        Some(SourceCall { term: self.led_term()?, at: self.clock.boot() })
    }

    /// Records that everything in a complete response to `call` is applied on this node, in this copy of the source: that
    /// into which it was imported or, if there was nothing to import, that for which the call was sent. Nodes may decide by
    /// that copy for `length` from the call on. False if the record has no effect: this node was deposed since, may have
    /// been suspended since, or has recorded a later call.
    #[must_use]
    pub fn record_source(&self, call: SourceCall, source: Source, length: Duration) -> bool {
        let is_valid = self.led_term() == Some(call.term) && call.at > self.freshness.void_before();
        is_valid && self.freshness.sources.record(call, source, length)
    }

    /// Time since the last call that this node knows to be answered and applied.
    pub(crate) fn source_heard(&self, source: Source) -> Option<Duration> {
        self.freshness.sources.heard(source, self.led_term(), self.clock.boot())
    }

    /// The leases that the records of this node give, if it leads. To be read before the index is confirmed with which
    /// they are named.
    pub(in crate::cluster) fn recorded_sources(&self) -> Vec<SourceLease> {
        let Some(term) = self.led_term() else { return Vec::new() };
        let void_before = self.freshness.void_before();
        self.freshness.sources.recorded(term, self.clock.boot(), void_before)
    }

    /// The lease on this copy of the source, at once: a lease on the state, `fresh`, was taken after the request had
    /// arrived. A request takes it once, before anything of the copy is read for it. `own` is the longest time since the
    /// leader's call that the configuration of this node allows.
    pub(crate) fn source_lease(
        &self,
        _fresh: &LeaseProof,
        source: Source,
        own: Duration,
    ) -> Result<SourceProof, NoSourceLease> {
        let void_before = self.freshness.void_before();
        self.freshness.sources.prove(source, own, (self.clock.boot(), void_before))
    }
}

#[cfg(test)]
mod tests;
