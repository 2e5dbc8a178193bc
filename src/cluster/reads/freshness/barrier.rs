//! The acknowledgement barrier (rule 3 of [`super`]), which only the leader can decide.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::Freshness;
use crate::breaks::{self, Break};
use crate::cluster::peers::Purpose;
use crate::cluster::peers::proto::BarrierRequest;
use crate::cluster::reads::member_progress::MemberProgress;
use crate::cluster::type_config::MemberRecord;
use crate::cluster::{Handle, Machine};
use crate::limits;

/// Barriers that this node waited for, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acknowledgements {
    /// No member could answer from an older index any more.
    pub confirmed: u64,
    /// The barrier timed out.
    pub unconfirmed: u64,
}

/// Some member may still answer from an older index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not every member confirmed the index in time")]
pub struct BarrierTimeout;

impl Freshness {
    /// When this node was first observed as leader of `term`; the first call records it.
    pub(crate) fn observe_leading(&self, term: u64) -> Duration {
        let now = self.clock.boot();
        let mut leads = self.leads.lock();
        match *leads {
            Some((known, since)) if known == term => since,
            _ => {
                *leads = Some((term, now));
                now
            }
        }
    }

    /// Waits until no member can answer from an index older than `index`. `applied` ends when the entry is applied
    /// here; `others` returns the progress of the other members and since when this node leads; `reports` changes with
    /// that progress.
    pub(crate) async fn barrier(
        &self,
        index: u64,
        applied: impl Future<Output = ()>,
        others: impl Fn() -> Option<OtherMembers>,
        mut reports: watch::Receiver<()>,
    ) -> Result<(), BarrierTimeout> {
        let waited = async {
            applied.await;
            let barrier = Barrier { index, begun: self.clock.boot() };
            loop {
                let Some(others) = others() else { return Err(BarrierTimeout) };
                let remaining = barrier.remaining(&others, self.clock.boot());
                if remaining.is_zero() || breaks::active(Break::AcknowledgeWithoutBarrier) {
                    return Ok(());
                }
                tokio::select! {
                    () = tokio::time::sleep(remaining) => {}
                    Ok(()) = reports.changed() => {}
                }
            }
        };
        let waited = tokio::time::timeout(limits::BARRIER_TIMEOUT, waited).await;
        waited.unwrap_or(Err(BarrierTimeout))
    }
}

/// Progress of the other nodes that may hold a lease, as the leader knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OtherMembers {
    /// Every other member, learners included, and every removed one that requested a lease recently.
    pub(crate) members: Vec<MemberProgress>,
    /// Since when this node leads, on the boot clock. `None` if no other node was ever a member.
    pub(crate) led_since: Option<Duration>,
}

/// The barrier of entry `index`, which this node applied at `begun` of its boot clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Barrier {
    pub(super) index: u64,
    pub(super) begun: Duration,
}

impl Barrier {
    /// Remaining wait at `now`:
    ///
    /// 1. Until this node has led for the duration of a lease: a member that left the cluster under the previous leader
    ///    may hold one, and is unknown here. Also on a node that is the only member, unless no other node was ever one.
    /// 2. Per member that has not applied the entry: until every lease has expired that it requested before the entry
    ///    was applied here. A later request is answered with the entry. Leases granted by the previous leader have
    ///    expired by rule 1.
    pub(super) fn remaining(&self, others: &OtherMembers, now: Duration) -> Duration {
        let expires = |since: Duration| (since + limits::FRESHNESS_LEASE).saturating_sub(now);
        let lagging = others.members.iter().filter(|member| member.applied < self.index);
        let requested = lagging.filter_map(|member| member.lease_requested).max();
        let remaining = requested.map_or(Duration::ZERO, |requested| expires(requested.min(self.begun)));
        let led_since = others.led_since.filter(|_| !breaks::active(Break::NoWaitOfNewLeader));
        led_since.map_or(Duration::ZERO, expires).max(remaining)
    }
}

impl<M: Machine> Handle<M> {
    /// Counts of barriers that this node waited for.
    #[must_use]
    pub fn acknowledgements(&self) -> Acknowledgements {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Freshness { confirmed, unconfirmed, .. } = &*self.freshness;
        Acknowledgements { confirmed: count(confirmed), unconfirmed: count(unconfirmed) }
    }

    /// Acknowledgement barrier: waits until no member can answer from an index older than `index`, which only the
    /// leader can decide.
    ///
    /// # Errors
    /// [`BarrierTimeout`] after [`limits::BARRIER_TIMEOUT`].
    pub(crate) async fn barrier(&self, index: u64) -> Result<(), BarrierTimeout> {
        let acknowledged = self.until_leader_decides(|leader, member| async move {
            if leader == self.node_id {
                self.barrier_as_leader(index).await.ok()
            } else {
                self.barrier_of(leader, &member, index).await
            }
        });
        let waited = tokio::time::timeout(limits::BARRIER_TIMEOUT, acknowledged).await;
        let Freshness { confirmed, unconfirmed, .. } = &*self.freshness;
        if waited.is_ok() { confirmed } else { unconfirmed }.fetch_add(1, Ordering::Relaxed);
        waited.map_err(|_| BarrierTimeout)
    }

    /// The barrier on the leader.
    ///
    /// # Errors
    /// [`BarrierTimeout`], also if this node does not lead.
    pub(crate) async fn barrier_as_leader(&self, index: u64) -> Result<(), BarrierTimeout> {
        let _poll = self.progress.poll_for(index);
        let others = || self.others();
        let applied = self.until_applied_as_known(index);
        self.freshness.barrier(index, applied, others, self.progress.reports()).await
    }

    async fn barrier_of(&self, leader: u64, member: &MemberRecord, index: u64) -> Option<()> {
        let client = self.channels.shared(Purpose::Barriers, leader, member).ok()?;
        let mut peer = client.peer();
        let requests = peer.barrier(client.request(BarrierRequest { index, ..BarrierRequest::default() }));
        requests.await.ok().map(drop)
    }

    /// Progress of the other nodes that may hold a lease; `None` unless this node leads.
    fn others(&self) -> Option<OtherMembers> {
        let term = self.led_term()?;
        let led_since = self.freshness.observe_leading(term);
        let known = self.known_members();
        let led_since = (!known.was_always_alone(self.node_id)).then_some(led_since);
        let mut ids: BTreeSet<u64> = known.all().into_keys().collect();
        ids.extend(self.progress.lease_holders(self.clock.boot()));
        ids.remove(&self.node_id);
        let members = ids.into_iter().map(|id| self.progress.get(id)).collect();
        Some(OtherMembers { members, led_since })
    }
}
