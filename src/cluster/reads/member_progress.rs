//! Progress of the other members: the index that each has applied, as it reports, and its last lease request. It allows
//! a barrier to end before a whole lease has expired.
//!
//! A reported index remains valid: a restarted member may have to apply entries again, but it gets no lease before it
//! has.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::cluster::peers::Purpose;
use crate::cluster::peers::proto::AppliedRequest;
use crate::cluster::type_config::MemberRecord;
use crate::cluster::{Handle, Machine};
use crate::limits;

/// Progress of one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberProgress {
    /// Index applied at least; zero before the first report.
    pub(crate) applied: u64,
    /// Arrival of its last lease request, on the boot clock.
    pub(crate) lease_requested: Option<Duration>,
}

/// Progress of all members that reported.
#[derive(Default)]
pub(crate) struct ProgressTracker {
    members: Mutex<BTreeMap<u64, MemberProgress>>,
    /// The largest index that a barrier waits for.
    wanted: watch::Sender<u64>,
    /// Barriers that wait.
    waiting: AtomicUsize,
    /// A member reported.
    reports: watch::Sender<()>,
}

/// Guard of a waiting barrier.
pub(crate) struct PollGuard<'p>(&'p ProgressTracker);

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ProgressTracker {
    /// Polls every member for `index` as long as the returned guard is held.
    pub(crate) fn poll_for(&self, index: u64) -> PollGuard<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.wanted.send_modify(|wanted| *wanted = index.max(*wanted));
        PollGuard(self)
    }

    fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn get(&self, node_id: u64) -> MemberProgress {
        self.members.lock().get(&node_id).copied().unwrap_or_default()
    }

    /// Records that a lease request of a member arrived at `now`. To be called before the index of the answer is read.
    pub(crate) fn record_lease_request(&self, node_id: u64, now: Duration) {
        let mut members = self.members.lock();
        let requested = &mut members.entry(node_id).or_default().lease_requested;
        *requested = (*requested).max(Some(now));
    }

    /// Nodes that may hold a lease at `now`, members or not: those that requested one within its duration.
    pub(crate) fn lease_holders(&self, now: Duration) -> Vec<u64> {
        let requested_lately = |progress: &MemberProgress| {
            progress.lease_requested.is_some_and(|requested| now < requested + limits::FRESHNESS_LEASE)
        };
        let members = self.members.lock();
        members.iter().filter(|(_, progress)| requested_lately(progress)).map(|(id, _)| *id).collect()
    }

    /// Changes with every report.
    pub(crate) fn reports(&self) -> watch::Receiver<()> {
        self.reports.subscribe()
    }

    pub(crate) fn record_applied(&self, node_id: u64, index: u64) {
        let mut members = self.members.lock();
        let known = &mut members.entry(node_id).or_default().applied;
        *known = index.max(*known);
        drop(members);
        self.reports.send_replace(());
    }
}

impl<M: Machine> Handle<M> {
    /// Polls the other members for their applied index while a barrier waits: one request per member at a time, for the
    /// newest wanted index. Runs for ever.
    pub(crate) async fn poll_members(self) {
        let mut wanted = self.progress.wanted.subscribe();
        let mut requests: FuturesUnordered<_> = FuturesUnordered::new();
        let mut in_flight = std::collections::BTreeSet::new();
        loop {
            let index = *wanted.borrow_and_update();
            for (node_id, member) in self.other_members() {
                let is_due = self.progress.is_waited_for() && self.progress.get(node_id).applied < index;
                if is_due && in_flight.insert(node_id) {
                    requests.push(self.poll_member(node_id, member, index));
                }
            }
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                Some(node_id) = requests.next(), if !requests.is_empty() => {
                    in_flight.remove(&node_id);
                }
            }
        }
    }

    async fn poll_member(&self, node_id: u64, member: MemberRecord, index: u64) -> u64 {
        if let Some(applied) = self.request_applied(node_id, &member, index).await {
            self.progress.record_applied(node_id, applied);
        } else {
            // Pause before the next attempt; the member's lease expires meanwhile.
            tokio::time::sleep(limits::FRESHNESS_RETRY_PAUSE).await;
        }
        node_id
    }

    async fn request_applied(&self, node_id: u64, member: &MemberRecord, index: u64) -> Option<u64> {
        let client = self.channels.shared(Purpose::Reads, node_id, member).ok()?;
        let mut peer = client.peer();
        let requests = peer.applied(client.request(AppliedRequest { index }));
        let answer =
            tokio::time::timeout(limits::APPLIED_WAIT + limits::FRESHNESS_ATTEMPT, requests).await.ok()?;
        Some(answer.ok()?.into_inner().index)
    }
}
