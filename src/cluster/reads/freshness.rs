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

pub(crate) mod barrier;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, Semaphore, watch};

use super::read_index::{ConfirmedIndex, ReadIndexError};
use super::sources::{SourceLease, Sources};
use crate::breaks::{self, Break};
use crate::clock::Clock;
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
    /// Time since the lease expired; zero while it is held; time since the start if it never was.
    pub(crate) lapsed: Duration,
    /// Requests that waited for the lease.
    pub(crate) waits: u64,
    /// Requests that waited and were refused.
    pub(crate) refused: u64,
}

/// How a node proves that it has applied every acknowledged entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
    /// Leases on outside sources, renewed with the lease of this node.
    pub(super) sources: Sources,
}

impl Freshness {
    pub(crate) fn new(clock: Clock, mode: FreshnessMode, is_disputed: Arc<AtomicBool>) -> Self {
        Self {
            mode,
            is_disputed,
            started: clock.boot(),
            ahead: AtomicI64::new(clock.wall_minus_boot_millis()),
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
            sources: Sources::default(),
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
        let ahead = self.clock.wall_minus_boot_millis();
        let before = self.ahead.swap(ahead, Ordering::AcqRel);
        let step = u64::try_from(ahead.saturating_sub(before)).map_or(Duration::ZERO, Duration::from_millis);
        if step > limits::FRESHNESS_CLOCK_STEP_MAX {
            self.void_before.fetch_max(nanos(self.clock.boot()), Ordering::AcqRel);
        }
    }

    /// Until when this node may have been suspended, on its boot clock: times that it recorded until then are void.
    pub(super) fn void_before(&self) -> Duration {
        self.compare_clocks();
        Duration::from_nanos(self.void_before.load(Ordering::Acquire))
    }

    /// Takes the lease that was requested at `sent`, once the confirmed index is applied.
    fn hold_since(&self, sent: Duration) {
        self.until.fetch_max(nanos(sent + HELD_FOR), Ordering::Release);
        self.renewed.send_replace(());
    }

    pub(crate) fn status(&self) -> LeaseStatus {
        LeaseStatus {
            is_held: self.is_held(),
            lapsed: self.lapsed(),
            waits: self.waits.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    /// As [`LeaseStatus::lapsed`].
    fn lapsed(&self) -> Duration {
        let until = Duration::from_nanos(self.until.load(Ordering::Acquire));
        self.clock.boot().saturating_sub(until.max(self.started))
    }

    /// Whether the lease was held, or this node was started, less than `limit` ago.
    pub(crate) fn was_fresh_within(&self, limit: Duration) -> bool {
        self.lapsed() < limit
    }

    /// Whether the lease was held less than `limit` ago.
    pub(crate) fn was_held_within(&self, limit: Duration) -> bool {
        self.until.load(Ordering::Acquire) > 0 && self.was_fresh_within(limit)
    }

    /// The proof, without a wait while the lease is held.
    pub(crate) async fn fresh(&self) -> Result<LeaseProof, LeaseError> {
        if self.is_held() || breaks::active(Break::ServeWithoutLease) {
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

    /// Renews the lease as long as the state is open: [`limits::FRESHNESS_RENEWAL`] after the last renewal, and when a request
    /// waits for it. `request_index` sends a `ReadIndex` request, with a lease or without, and returns the confirmed index. A
    /// renewal that fails, or takes longer than [`limits::FRESHNESS_ATTEMPT`], is retried; meanwhile the lease may
    /// expire.
    pub(crate) async fn renew_while_open<A>(
        &self,
        request_index: impl Fn(bool) -> A,
        mut applied: watch::Receiver<u64>,
    ) where
        A: Future<Output = Option<ConfirmedIndex>>,
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
        A: Future<Output = Option<ConfirmedIndex>>,
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
        let Some(leases) = Self::catch_up(request_index(for_lease), applied, confirmed_index).await else {
            return false;
        };
        self.sources.hold_since(sent, self.void_before(), leases);
        self.hold_since(if breaks::active(Break::LeaseFromAnswer) { self.clock.boot() } else { sent });
        true
    }

    /// Waits for the confirmed index, and until it is applied. Returns the leases on outside sources.
    async fn catch_up(
        requests: impl Future<Output = Option<ConfirmedIndex>>,
        applied: &mut watch::Receiver<u64>,
        confirmed_index: &mut u64,
    ) -> Option<Vec<SourceLease>> {
        let ConfirmedIndex { index, sources } = requests.await?;
        *confirmed_index = index;
        applied.wait_for(|applied| *applied >= index).await.ok().map(|_| sources)
    }
}

impl<M: Machine> Handle<M> {
    /// Renews the lease until the state is closed. Without this task there is no [`LeaseProof`].
    pub(crate) async fn renew_lease(self) {
        let applied = self.shared.applied.subscribe();
        self.freshness.renew_while_open(|for_lease| self.confirmed_index(for_lease, None), applied).await;
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

    /// [`Self::fresh`], or a proof of nothing under one of these breaks.
    pub(crate) async fn fresh_unless<const N: usize>(
        &self,
        any: [Break; N],
    ) -> Result<LeaseProof, LeaseError> {
        if any.into_iter().any(breaks::active) { Ok(LeaseProof(())) } else { self.fresh().await }
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

    pub(crate) fn freshness(&self) -> LeaseStatus {
        self.freshness.status()
    }

    /// Whether this node held the lease, or was started, less than `limit` ago.
    pub(crate) fn was_fresh_within(&self, limit: Duration) -> bool {
        self.freshness.was_fresh_within(limit)
    }
}

fn nanos(boot: Duration) -> u64 {
    u64::try_from(boot.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
