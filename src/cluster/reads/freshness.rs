//! The freshness lease and the acknowledgement barrier (design §4): how a node proves that it has applied every
//! acknowledged entry, and how long an acknowledgement waits for members that have not. Three rules, all of which are
//! needed:
//!
//! 1. A lease starts at the boot-clock instant before the request was sent, and ends a margin earlier than the leader
//!    assumes. It begins only when the confirmed index is applied here. A node that has not applied the last confirmed
//!    index requests the index alone, so that no acknowledgement waits for a lease that this node cannot use.
//! 2. The lease is checked after a request has arrived and before anything is read for it. Otherwise the request could
//!    read old state, and find a valid lease after the node has caught up. A [`LeaseProof`] stays valid for the whole
//!    request: applied state only grows, so later reads find every entry acknowledged before the request began.
//! 3. An acknowledgement waits until every other node has applied the entry, or every lease that it may hold from
//!    before has expired: one lease after the leader applied the entry, or after the node's last lease request
//!    arrived, whichever is earlier. A node that was removed from the membership counts as long as its lease may last.
//!
//! The decisions take the time as an argument. A cluster of one follows the same rules, with itself as leader and no
//! other member.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver as _;
use tokio::sync::{Notify, Semaphore, watch};

use super::member_progress::MemberProgress;
use super::read_index::ReadIndexError;
use crate::clock::Clock;
use crate::cluster::peers::Purpose;
use crate::cluster::peers::proto::BarrierRequest;
use crate::cluster::type_config::MemberRecord;
use crate::cluster::{Handle, Machine};
use crate::limits;

/// Duration of a lease, from its request, on the requesting node.
const HELD_FOR: Duration = limits::FRESHNESS_LEASE.saturating_sub(limits::FRESHNESS_MARGIN);

/// Proof that this node had applied every entry acknowledged before the proof was created: by its lease, or by an index
/// that the leader confirmed after the request arrived. It is valid for that request only, so it cannot be copied.
#[derive(Debug)]
pub struct LeaseProof(());

/// A request cannot be answered from this node's state. Nothing was read for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// No lease within [`limits::FRESHNESS_WAIT`].
    #[error("this node holds no freshness lease: it may not know every revocation")]
    NoLease,
    /// [`limits::FRESHNESS_WAITS_MAX`] requests are waiting.
    #[error("too many requests wait for the freshness lease of this node")]
    TooManyWait,
    /// The leader reports that this node's wall clock is far from the median, or that the voters' clocks do not agree.
    #[error("the wall clock of this node is too far from the cluster's to decide anything by time")]
    ClockWrong,
    /// This node's wall clock is not known to be close to the median.
    #[error(
        "the wall clock of this node is not close enough to the cluster's to accept credentials of other issuers"
    )]
    ClockApart,
}

/// Status of the lease, for health and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseStatus {
    /// Whether requests are served without a wait.
    pub(crate) is_held: bool,
    /// Time since the lease expired; zero while it is held; time since boot if it never was.
    pub(crate) lapsed: Duration,
    /// Requests that waited for the lease.
    pub(crate) waits: u64,
    /// Requests that waited and were refused.
    pub(crate) refused: u64,
}

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

/// How a node proves that it has applied every acknowledged entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FreshnessMode {
    /// A lease on the boot clock: no cost per request.
    #[default]
    Lease,
    /// A `ReadIndex` request to the leader for each request: no clock needed.
    ReadIndex,
}

/// The lease of this node, and the requests that wait for it.
pub(crate) struct Freshness {
    mode: FreshnessMode,
    clock: Clock,
    /// Whether the state of this node is in dispute. No lease counts as held then.
    is_disputed: Arc<AtomicBool>,
    /// Start of this node, on the boot clock.
    started: Duration,
    /// End of the lease, in nanoseconds of the boot clock.
    until: AtomicU64,
    /// Wall clock minus boot clock at the last comparison, in milliseconds.
    ahead: AtomicI64,
    /// Leases requested before this instant are void, in nanoseconds of the boot clock.
    void_before: AtomicU64,
    /// A request waits for the lease.
    wanted: Notify,
    /// The lease was renewed.
    renewed: watch::Sender<()>,
    permits: Semaphore,
    waits: AtomicU64,
    refused: AtomicU64,
    confirmed: AtomicU64,
    unconfirmed: AtomicU64,
    /// The term in which this node leads, and when that was observed first.
    leads: Mutex<Option<(u64, Duration)>>,
}

impl Freshness {
    pub(crate) fn new(clock: Clock, mode: FreshnessMode, is_disputed: Arc<AtomicBool>) -> Self {
        Self {
            mode,
            is_disputed,
            started: clock.boot(),
            ahead: AtomicI64::new(ahead(&clock)),
            void_before: AtomicU64::new(0),
            clock,
            until: AtomicU64::new(0),
            wanted: Notify::new(),
            renewed: watch::Sender::new(()),
            permits: Semaphore::new(limits::FRESHNESS_WAITS_MAX),
            waits: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            unconfirmed: AtomicU64::new(0),
            leads: Mutex::new(None),
        }
    }

    fn is_held(&self) -> bool {
        self.compare_clocks();
        // Acquire pairs with the release in `take`: entries applied before the renewal are visible.
        let until = self.until.load(Ordering::Acquire);
        let is_void = until.saturating_sub(nanos(HELD_FOR)) <= self.void_before.load(Ordering::Acquire);
        nanos(self.clock.boot()) < until && !is_void && !self.is_disputed.load(Ordering::Acquire)
    }

    /// Voids the lease if the wall clock has advanced further than the boot clock. A virtual machine that was paused
    /// stands still with its boot clock, and its wall clock is set afterwards. Setting the wall clock forward by hand
    /// costs one renewal.
    fn compare_clocks(&self) {
        let ahead = ahead(&self.clock);
        let before = self.ahead.swap(ahead, Ordering::AcqRel);
        let step = u64::try_from(ahead.saturating_sub(before)).map_or(Duration::ZERO, Duration::from_millis);
        if step > limits::FRESHNESS_CLOCK_STEP_MAX {
            self.void_before.fetch_max(nanos(self.clock.boot()), Ordering::AcqRel);
        }
    }

    /// Takes the lease that was requested at `sent`, once the confirmed index is applied.
    fn hold_since(&self, sent: Duration) {
        self.until.fetch_max(nanos(sent + HELD_FOR), Ordering::Release);
        self.renewed.send_replace(());
    }

    /// Status of the lease.
    pub(crate) fn status(&self) -> LeaseStatus {
        let until = Duration::from_nanos(self.until.load(Ordering::Acquire));
        LeaseStatus {
            is_held: self.is_held(),
            lapsed: self.clock.boot().saturating_sub(until),
            waits: self.waits.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    /// Whether the lease was held, or this node was started, less than `limit` ago.
    pub(crate) fn was_fresh_within(&self, limit: Duration) -> bool {
        let until = Duration::from_nanos(self.until.load(Ordering::Acquire));
        self.clock.boot().saturating_sub(until.max(self.started)) < limit
    }

    /// The proof, without a wait while the lease is held.
    pub(crate) async fn fresh(&self) -> Result<LeaseProof, LeaseError> {
        if self.is_held() {
            return Ok(LeaseProof(()));
        }
        self.count_wait(self.wait()).await
    }

    async fn count_wait(
        &self,
        waited: impl Future<Output = Result<LeaseProof, LeaseError>>,
    ) -> Result<LeaseProof, LeaseError> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let waited = waited.await;
        if waited.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        waited
    }

    async fn wait(&self) -> Result<LeaseProof, LeaseError> {
        let _permit = self.permits.try_acquire().map_err(|_| LeaseError::TooManyWait)?;
        let mut renewed = self.renewed.subscribe();
        let until_held = async {
            while !self.is_held() {
                self.wanted.notify_one();
                if renewed.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::time::timeout(limits::FRESHNESS_WAIT, until_held).await.map_err(|_| LeaseError::NoLease)?;
        Ok(LeaseProof(()))
    }

    /// Renews the lease as long as the state is open: every [`limits::FRESHNESS_RENEWAL`], and when a request waits for
    /// it. `request_index` sends a `ReadIndex` request, with a lease or without, and returns the confirmed index. A
    /// renewal that fails, or takes longer than [`limits::FRESHNESS_ATTEMPT`], is retried; meanwhile the lease may
    /// expire.
    pub(crate) async fn renew_while_open<A>(
        &self,
        request_index: impl Fn(bool) -> A,
        mut applied: watch::Receiver<u64>,
    ) where
        A: Future<Output = Option<u64>>,
    {
        // At startup the confirmed index is unknown.
        let mut confirmed_index = u64::MAX;
        while applied.has_changed().is_ok() {
            let attempt = self.renew(&request_index, &mut applied, &mut confirmed_index);
            match tokio::time::timeout(limits::FRESHNESS_ATTEMPT, attempt).await {
                Ok(true) => {
                    tokio::select! {
                        () = tokio::time::sleep(limits::FRESHNESS_RENEWAL) => {}
                        () = self.wanted.notified() => {}
                    }
                }
                Ok(false) | Err(_) => tokio::time::sleep(limits::FRESHNESS_RETRY_PAUSE).await,
            }
        }
    }

    /// One renewal; returns whether it succeeded. `confirmed_index` is the last confirmed index: a node that has not
    /// applied it requests the index alone first.
    async fn renew<A>(
        &self,
        request_index: impl Fn(bool) -> A,
        applied: &mut watch::Receiver<u64>,
        confirmed_index: &mut u64,
    ) -> bool
    where
        A: Future<Output = Option<u64>>,
    {
        if *applied.borrow() < *confirmed_index
            && Self::catch_up(request_index(false), applied, confirmed_index).await.is_none()
        {
            return false;
        }
        self.compare_clocks();
        // Before the request is built: entries acknowledged from now on may be missing here.
        let sent = self.clock.boot();
        let for_lease = self.mode == FreshnessMode::Lease;
        if Self::catch_up(request_index(for_lease), applied, confirmed_index).await.is_none() {
            return false;
        }
        self.hold_since(sent);
        true
    }

    /// Waits for the confirmed index, and until it is applied.
    async fn catch_up(
        requests: impl Future<Output = Option<u64>>,
        applied: &mut watch::Receiver<u64>,
        confirmed_index: &mut u64,
    ) -> Option<()> {
        let index = requests.await?;
        *confirmed_index = index;
        applied.wait_for(|applied| *applied >= index).await.ok().map(drop)
    }

    /// When this node was first observed as leader of `term`.
    pub(crate) fn leads_since(&self, term: u64) -> Duration {
        let now = self.clock.boot();
        let mut leads = self.leads.lock().unwrap_or_else(PoisonError::into_inner);
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
                if remaining.is_zero() {
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
struct Barrier {
    index: u64,
    begun: Duration,
}

impl Barrier {
    /// Remaining wait at `now`:
    ///
    /// 1. Until this node has led for the duration of a lease: a member that left the cluster under the previous leader
    ///    may hold one, and is unknown here. Also on a node that is the only member, unless no other node was ever one.
    /// 2. Per member that has not applied the entry: until every lease has expired that it requested before the entry
    ///    was applied here. A later request is answered with the entry. Leases granted by the previous leader have
    ///    expired by rule 1.
    fn remaining(&self, others: &OtherMembers, now: Duration) -> Duration {
        let expires = |since: Duration| (since + limits::FRESHNESS_LEASE).saturating_sub(now);
        let lagging = others.members.iter().filter(|member| member.applied < self.index);
        let requested = lagging.filter_map(|member| member.lease_requested).max();
        let remaining = requested.map_or(Duration::ZERO, |requested| expires(requested.min(self.begun)));
        others.led_since.map_or(Duration::ZERO, expires).max(remaining)
    }
}

impl<M: Machine> Handle<M> {
    /// Renews the lease until the state is closed. Without this task there is no [`LeaseProof`].
    pub(crate) async fn renew_lease(self) {
        let applied = self.shared.applied.subscribe();
        self.freshness.renew_while_open(|for_lease| self.confirmed_index(for_lease), applied).await;
    }

    /// The proof that this node has applied every acknowledged entry: at once while the lease is held, otherwise after
    /// a wait of at most [`limits::FRESHNESS_WAIT`]. To be taken when a request has arrived and before anything is read
    /// for it.
    pub(crate) async fn fresh(&self) -> Result<LeaseProof, LeaseError> {
        match self.freshness.mode {
            FreshnessMode::Lease => self.freshness.fresh().await,
            FreshnessMode::ReadIndex => self.freshness.count_wait(self.fresh_by_read_index()).await,
        }
    }

    /// The proof without a clock: the leader confirms an index after the call, and it is applied here.
    async fn fresh_by_read_index(&self) -> Result<LeaseProof, LeaseError> {
        let proven = async {
            let index = self.reads.confirmed().await?;
            self.until_agreed(index).await;
            Ok(LeaseProof(()))
        };
        let proven = tokio::time::timeout(limits::FRESHNESS_WAIT, proven).await;
        proven.unwrap_or(Err(ReadIndexError::NoLeader)).map_err(|error| match error {
            ReadIndexError::TooManyWait => LeaseError::TooManyWait,
            ReadIndexError::NoLeader | ReadIndexError::Behind => LeaseError::NoLease,
        })
    }

    /// Status of the freshness lease.
    pub(crate) fn freshness(&self) -> LeaseStatus {
        self.freshness.status()
    }

    /// Whether this node held the lease, or was started, less than `limit` ago.
    pub(crate) fn was_fresh_within(&self, limit: Duration) -> bool {
        self.freshness.was_fresh_within(limit)
    }

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
        let acknowledged = async {
            loop {
                let (leader, member) = self.until_led().await;
                let confirmed = async {
                    if leader == self.node_id {
                        self.barrier_as_leader(index).await.is_ok()
                    } else {
                        self.barrier_of(leader, &member, index).await
                    }
                };
                // A deposed leader fails; a leader that hangs is replaced.
                let is_confirmed = tokio::select! {
                    is_confirmed = confirmed => is_confirmed,
                    () = self.until_not_led_by(leader) => false,
                };
                if is_confirmed {
                    return;
                }
                tokio::time::sleep(limits::FRESHNESS_RETRY_PAUSE).await;
            }
        };
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

    async fn barrier_of(&self, leader: u64, member: &MemberRecord, index: u64) -> bool {
        let Ok(client) = self.channels.shared(Purpose::Barriers, leader, member) else { return false };
        let mut peer = client.peer();
        let requests = peer.barrier(client.request(BarrierRequest { index }));
        requests.await.is_ok()
    }

    /// Progress of the other nodes that may hold a lease; `None` unless this node leads.
    fn others(&self) -> Option<OtherMembers> {
        let metrics = self.raft.metrics();
        let (leader, term) = {
            let metrics = metrics.borrow_watched();
            (metrics.current_leader, metrics.current_term)
        };
        if leader != Some(self.node_id) {
            return None;
        }
        let led_since = self.freshness.leads_since(term);
        let known = self.known_members();
        let led_since = (!known.was_always_alone(self.node_id)).then_some(led_since);
        let mut ids: BTreeSet<u64> = known.all().into_keys().collect();
        ids.extend(self.progress.lease_holders(self.clock.boot()));
        ids.remove(&self.node_id);
        let members = ids.into_iter().map(|id| self.progress.get(id)).collect();
        Some(OtherMembers { members, led_since })
    }
}

/// Wall clock minus boot clock, in milliseconds.
fn ahead(clock: &Clock) -> i64 {
    let boot = i64::try_from(clock.boot().as_millis()).unwrap_or(i64::MAX);
    clock.now().millis().saturating_sub(boot)
}

fn nanos(boot: Duration) -> u64 {
    u64::try_from(boot.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
