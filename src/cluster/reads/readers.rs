//! Waits for outside readers ([the page on federation](../../../docs/design/federation.md), §8.3). A reader copies a part of
//! the state by calls, and decides by its copy for the time of a lease, which counts from its call. The node that it calls
//! responds from a confirmed index. The state defines the part; a reader is an opaque id here.
//!
//! A write is acknowledged once no reader that is waited for can decide from a copy without it. Five rules, all of which are
//! needed:
//!
//! 1. Every node reports each call of a reader to the leader, with its request for the index. The leader records it when the
//!    request arrives, before it confirms the index: a call that is recorded after the entry was applied is answered with it.
//! 2. The wait ends when the reader has stated that it serves no request from before the entry.
//! 3. It also ends when the short lease has passed since this leader applied the entry, or since the last call that it
//!    recorded, if that is earlier.
//! 4. It does not end so before the longest lease has passed since the last call for which no short lease is known. A new
//!    leader counts as if such a call had arrived when it was first observed to lead: it does not know those under its
//!    predecessor.
//! 5. Only a node that has applied the entry and leads, in one term from then on, ends the wait.
//!
//! Times are those of the boot clock; the decisions take the time as an argument. Each length is longer by a margin, for boot
//! clocks that run at different rates.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::cluster::peers::{Purpose, proto};
use crate::cluster::type_config::MemberRecord;
use crate::cluster::{Handle, Machine};
use crate::id::Digest128;
use crate::limits;

/// A call of an outside reader, as the node that answers it reports it to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderCall {
    pub reader: Digest128,
    /// The longest lease that it takes from the response; `None` if that is not known.
    pub lease: Option<Duration>,
    /// The log index from before which it serves no request any more, as it states; 0 if it states none.
    pub enforced: u64,
}

impl ReaderCall {
    fn is_short(&self) -> bool {
        self.lease.is_some_and(|lease| lease <= limits::PEER_FABRIC_LEASE)
    }
}

/// The reason why a wait for a reader is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaderState {
    /// It has stated that it serves no request from before the entry.
    Enforced,
    /// It has not, and no lease from before the entry is left.
    Lapsed,
}

/// A reader may still decide from a copy without the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a reader did not acknowledge the index in time, and may hold a lease")]
pub struct ReaderTimeout;

/// The calls of one reader in one term.
#[derive(Clone, Copy, Debug)]
struct RecordedCall {
    /// Arrival of the last one.
    called: Duration,
    /// Arrival of the last one whose lease is not known to be short.
    called_long: Option<Duration>,
    /// The largest index that it stated.
    enforced: u64,
}

/// The calls of one term, by reader.
#[derive(Debug, Default)]
struct RecordedCalls {
    term: u64,
    by_reader: BTreeMap<Digest128, RecordedCall>,
}

impl RecordedCalls {
    /// Forgets the calls of an earlier term. `None` for an earlier term than that of the calls.
    fn of_term(&mut self, term: u64) -> Option<&mut BTreeMap<Digest128, RecordedCall>> {
        if self.term < term {
            *self = Self { term, by_reader: BTreeMap::new() };
        }
        (self.term == term).then_some(&mut self.by_reader)
    }
}

/// The calls of readers that this node recorded as the leader.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    calls: Mutex<RecordedCalls>,
    /// Changes with each acknowledgement.
    acknowledged: watch::Sender<()>,
}

impl Readers {
    /// Records a call that arrived at `now`, before the index is confirmed from which it is answered. False if it cannot be
    /// recorded: then it must not be answered.
    fn record(&self, term: u64, call: &ReaderCall, now: Duration) -> bool {
        let mut calls = self.calls.lock();
        let Some(by_reader) = calls.of_term(term) else { return false };
        if !by_reader.contains_key(&call.reader) && by_reader.len() >= limits::READERS_MAX {
            // A removed reader counts as never recorded: no lease of it is left.
            by_reader.retain(|_, recorded| now < recorded.called + longest());
            if by_reader.len() >= limits::READERS_MAX {
                return false;
            }
        }
        let first = RecordedCall { called: now, called_long: None, enforced: 0 };
        let recorded = by_reader.entry(call.reader).or_insert(first);
        recorded.called = recorded.called.max(now);
        if !call.is_short() {
            recorded.called_long = recorded.called_long.max(Some(now));
        }
        true
    }

    /// Records the index that a call states, unless it is greater than `confirmed`, which was confirmed after
    /// the call had arrived: if the log lost its end, a statement about the lost part would count for later
    /// entries.
    fn record_enforced(&self, term: u64, call: &ReaderCall, confirmed: u64) {
        if call.enforced > confirmed {
            return;
        }
        let mut calls = self.calls.lock();
        if let Some(recorded) = calls.of_term(term).and_then(|by_reader| by_reader.get_mut(&call.reader))
            && recorded.enforced < call.enforced
        {
            recorded.enforced = call.enforced;
            self.acknowledged.send_replace(());
        }
    }

    fn recorded(&self, term: u64, reader: Digest128) -> Option<RecordedCall> {
        self.calls.lock().of_term(term)?.get(&reader).copied()
    }
}

/// The wait of an entry for one reader, on the leader.
#[derive(Clone, Copy, Debug)]
struct ReaderWait {
    index: u64,
    /// When this node found that it has applied the entry and leads.
    begun: Duration,
    /// Since when it leads.
    led_since: Duration,
}

impl ReaderWait {
    /// The reason why it is over at `now`, or the rest of it without an acknowledgement.
    fn check(&self, recorded: Option<RecordedCall>, now: Duration) -> Result<ReaderState, Duration> {
        if recorded.is_some_and(|recorded| recorded.enforced >= self.index) {
            return Ok(ReaderState::Enforced);
        }
        let short = recorded.map_or(Duration::ZERO, |recorded| {
            recorded.called.min(self.begun) + with_margin(limits::PEER_FABRIC_LEASE)
        });
        let called_long = recorded.and_then(|recorded| recorded.called_long);
        let long = called_long.map_or(self.led_since, |called| called.max(self.led_since)) + longest();
        let remaining = short.max(long).saturating_sub(now);
        if remaining.is_zero() { Ok(ReaderState::Lapsed) } else { Err(remaining) }
    }
}

fn with_margin(lease: Duration) -> Duration {
    lease + lease / limits::SOURCE_LEASE_MARGIN_DIVISOR
}

fn longest() -> Duration {
    with_margin(limits::PEER_FABRIC_STALE_AFTER_MAX)
}

pub(in crate::cluster) fn call_to_proto(call: &ReaderCall) -> proto::ReaderCall {
    proto::ReaderCall {
        reader: Bytes::copy_from_slice(call.reader.as_bytes()),
        lease_millis: call.lease.map(|lease| u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)),
        enforced: call.enforced,
    }
}

/// `None` if the reader has no id.
pub(in crate::cluster) fn call_from_proto(call: &proto::ReaderCall) -> Option<ReaderCall> {
    let reader = id_from_proto(&call.reader)?;
    let lease = call.lease_millis.map(Duration::from_millis);
    Some(ReaderCall { reader, lease, enforced: call.enforced })
}

fn id_from_proto(reader: &[u8]) -> Option<Digest128> {
    reader.try_into().ok().map(Digest128::from_bytes)
}

impl<M: Machine> Handle<M> {
    /// Records the call of a reader, if this node leads. False if the call must not be answered.
    pub(in crate::cluster) fn record_reader(&self, call: &ReaderCall) -> bool {
        self.led_term().is_some_and(|term| self.readers.record(term, call, self.clock.boot()))
    }

    /// Records the index that a call states, once an index is confirmed for the call.
    pub(in crate::cluster) fn record_enforced(&self, call: &ReaderCall, confirmed: u64) {
        if let Some(term) = self.led_term() {
            self.readers.record_enforced(term, call, confirmed);
        }
    }

    /// The largest index that a reader has stated to enforce; `None` unless this node leads and knows one.
    pub(crate) fn reader_enforced(&self, reader: Digest128) -> Option<u64> {
        let recorded = self.readers.recorded(self.led_term()?, reader)?;
        Some(recorded.enforced).filter(|enforced| *enforced > 0)
    }

    /// Waits until a reader can serve no request from before `index`, by its statement or because its leases are over;
    /// only the leader can decide that. A leader that is elected meanwhile begins the wait again.
    ///
    /// # Errors
    /// [`ReaderTimeout`] after [`limits::READER_WAIT`].
    pub(crate) async fn reader_barrier(
        &self,
        index: u64,
        reader: Digest128,
    ) -> Result<ReaderState, ReaderTimeout> {
        let decided = self.until_leader_decides(|leader, member| async move {
            if leader == self.node_id {
                self.reader_barrier_as_leader(index, reader).await.ok()
            } else {
                self.reader_barrier_of(leader, &member, index, reader).await
            }
        });
        tokio::time::timeout(limits::READER_WAIT, decided).await.map_err(|_| ReaderTimeout)
    }

    /// [`Self::reader_barrier`] on the leader.
    ///
    /// # Errors
    /// [`ReaderTimeout`], also if this node does not lead.
    pub(in crate::cluster) async fn reader_barrier_as_leader(
        &self,
        index: u64,
        reader: Digest128,
    ) -> Result<ReaderState, ReaderTimeout> {
        let waited = async {
            self.until_applied_as_known(index).await;
            let term = self.led_term()?;
            let (begun, led_since) = (self.clock.boot(), self.freshness.observe_leading(term));
            let wait = ReaderWait { index, begun, led_since };
            let mut acknowledged = self.readers.acknowledged.subscribe();
            while self.led_term() == Some(term) {
                match wait.check(self.readers.recorded(term, reader), self.clock.boot()) {
                    Ok(state) => return Some(state),
                    Err(remaining) => {
                        tokio::select! {
                            () = tokio::time::sleep(remaining) => {}
                            Ok(()) = acknowledged.changed() => {}
                        }
                    }
                }
            }
            None
        };
        let waited = tokio::time::timeout(limits::READER_WAIT, waited).await;
        waited.ok().flatten().ok_or(ReaderTimeout)
    }

    /// The barrier that another node requests: of the members or of a reader.
    ///
    /// # Errors
    /// [`ReaderTimeout`], also if this node does not lead or the reader has no id.
    pub(in crate::cluster) async fn answer_barrier(
        &self,
        request: &proto::BarrierRequest,
    ) -> Result<proto::BarrierResponse, ReaderTimeout> {
        if request.reader.is_empty() {
            self.barrier_as_leader(request.index).await.map_err(|_| ReaderTimeout)?;
            return Ok(proto::BarrierResponse::default());
        }
        let reader = id_from_proto(&request.reader).ok_or(ReaderTimeout)?;
        let state = self.reader_barrier_as_leader(request.index, reader).await?;
        Ok(proto::BarrierResponse { is_enforced: state == ReaderState::Enforced })
    }

    async fn reader_barrier_of(
        &self,
        leader: u64,
        member: &MemberRecord,
        index: u64,
        reader: Digest128,
    ) -> Option<ReaderState> {
        let client = self.channels.shared(Purpose::ReaderBarriers, leader, member).ok()?;
        let mut peer = client.peer();
        let reader = Bytes::copy_from_slice(reader.as_bytes());
        let requests = peer.barrier(client.request(proto::BarrierRequest { index, reader }));
        let answer = requests.await.ok()?.into_inner();
        Some(if answer.is_enforced { ReaderState::Enforced } else { ReaderState::Lapsed })
    }

    /// Calls the leader, and each later leader, until one decides.
    pub(in crate::cluster::reads) async fn until_leader_decides<T, A>(
        &self,
        ask: impl Fn(u64, MemberRecord) -> A,
    ) -> T
    where
        A: Future<Output = Option<T>>,
    {
        loop {
            let (leader, member) = self.until_led().await;
            // A deposed leader fails; a leader that hangs is replaced.
            let decided = tokio::select! {
                decided = ask(leader, member) => decided,
                () = self.until_another_leader_than(leader) => None,
            };
            if let Some(decided) = decided {
                return decided;
            }
            tokio::time::sleep(limits::FRESHNESS_RETRY_PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests;
