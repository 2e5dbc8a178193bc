//! The freshness lease and the barrier (design §4): how a node knows that it has applied all that was
//! acknowledged, and how long an acknowledgement waits for those that may not have.
//!
//! Three rules, each of which alone would not do:
//!
//! 1. A lease runs from the moment before the leader was asked, on the boot clock, and a margin shorter than
//!    others believe. It begins only when what the leader named is applied here. A node that has not applied what
//!    it was named last asks for the index alone, so that nobody waits for a lease that it does not get.
//! 2. The lease is looked at after a request has arrived and before anything is read for it: whoever read
//!    first could read what is old, catch up, and find the lease in order. A [`Fresh`] does not age while its
//!    request goes on, however long that waits: what is applied here and in memory only grows, so that
//!    everything that was acknowledged before the request began is found by whatever is read later.
//! 3. An acknowledgement waits until every other member has applied the entry, or every lease that it could
//!    hold from before has run out: a lease after the leader has applied the entry, or after the member's last
//!    request for one arrived, whichever is earlier.
//!
//! What decides is given the time. A cluster of one goes through the same rules: it asks the leader, which
//! it is, and waits for the other members, of which there are none.

use std::future::Future;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver as _;
use tokio::sync::{Notify, Semaphore, watch};

use super::member_progress::Member;
use super::read_index::NotCurrent;
use crate::clock::Clock;
use crate::cluster::peers::Purpose;
use crate::cluster::peers::proto::BarrierRequest;
use crate::cluster::propose::Error;
use crate::cluster::type_config::Peer;
use crate::cluster::{Handle, Machine};
use crate::limits;

/// How long a lease is held after it was requested.
const HELD_FOR: Duration = limits::FRESHNESS_LEASE.saturating_sub(limits::FRESHNESS_MARGIN);

/// Proof that this node had applied everything acknowledged before it was made. Only a lease makes one, or an index
/// that the leader has confirmed since the request arrived. It is good for the request it was made for and for no later
/// one, so it cannot be copied.
#[derive(Debug)]
pub struct Fresh(());

/// Why a request is not answered from this node's state. Nothing was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    /// It was waited for up to [`limits::FRESHNESS_WAIT`].
    #[error("this node cannot prove now that it knows everything that was revoked")]
    NoLease,
    /// As many requests wait for it as may, [`limits::FRESHNESS_WAITS_MAX`].
    #[error("too many requests wait until this node knows again everything that was revoked")]
    TooManyWait,
    /// The leader says that this node's wall clock is far from the others', or that nobody knows which is right.
    #[error("this node's clock is too far from those of the cluster to judge anything by time")]
    ClockWrong,
    /// It is not known to be close to the others'.
    #[error(
        "this node's clock is not close enough to those of the cluster to take credentials of other issuers"
    )]
    ClockApart,
}

/// How freshness is, for health and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether requests are answered without a wait.
    pub is_held: bool,
    /// For how long it has not been held; zero while it is. Since the machine was started, if it never was.
    pub lapsed: Duration,
    /// How many requests ever had to wait.
    pub waits: u64,
    /// How many of them were refused.
    pub refused: u64,
}

/// Acknowledgements that this node has waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acknowledgements {
    /// No member could answer from an older index any more.
    pub confirmed: u64,
    /// That was not known in time.
    pub unconfirmed: u64,
}

/// How a node proves that it has applied everything acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FreshnessMode {
    /// By a lease on the boot clock, which costs a request nothing.
    #[default]
    Lease,
    /// By asking the leader for each request, which needs no clock.
    ReadIndex,
}

/// The lease of this node, and who waits for it.
pub struct Freshness {
    mode: FreshnessMode,
    clock: Clock,
    /// When it was made, on the boot clock.
    started: Duration,
    /// Until when it is held, in nanoseconds of the boot clock.
    until: AtomicU64,
    /// How far the wall clock was ahead of the boot clock when they were last compared, in milliseconds.
    ahead: AtomicI64,
    /// Leases that were requested before this instant are void, in nanoseconds of the boot clock.
    void_before: AtomicU64,
    /// Somebody waits for a lease.
    wanted: Notify,
    /// A lease was taken.
    renewed: watch::Sender<()>,
    places: Semaphore,
    waits: AtomicU64,
    refused: AtomicU64,
    confirmed: AtomicU64,
    unconfirmed: AtomicU64,
    /// The term in which this node leads, and since when, as far as it was seen.
    leads: Mutex<Option<(u64, Duration)>>,
}

impl Freshness {
    /// Without a lease.
    pub fn new(clock: Clock, mode: FreshnessMode) -> Self {
        Self {
            mode,
            started: clock.boot(),
            ahead: AtomicI64::new(ahead(&clock)),
            void_before: AtomicU64::new(0),
            clock,
            until: AtomicU64::new(0),
            wanted: Notify::new(),
            renewed: watch::Sender::new(()),
            places: Semaphore::new(limits::FRESHNESS_WAITS_MAX),
            waits: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            unconfirmed: AtomicU64::new(0),
            leads: Mutex::new(None),
        }
    }

    fn is_held(&self) -> bool {
        self.compare_clocks();
        // Whoever sees the lease also sees what was applied before it was taken.
        let until = self.until.load(Ordering::Acquire);
        let requested = until.saturating_sub(nanos(HELD_FOR));
        nanos(self.clock.boot()) < until && requested > self.void_before.load(Ordering::Acquire)
    }

    /// Drops the lease if the wall clock has advanced further than the boot clock: a machine that was stopped together
    /// with its boot clock, such as a virtual machine that was paused, is told the time afterwards. A wall clock that
    /// was set forward costs one renewal.
    fn compare_clocks(&self) {
        let ahead = ahead(&self.clock);
        let before = self.ahead.swap(ahead, Ordering::AcqRel);
        let step = u64::try_from(ahead.saturating_sub(before)).map_or(Duration::ZERO, Duration::from_millis);
        if step > limits::FRESHNESS_CLOCK_STEP_MAX {
            self.void_before.fetch_max(nanos(self.clock.boot()), Ordering::AcqRel);
        }
    }

    /// Takes the lease of a renewal that was asked for at `sent`, once what the leader named is applied.
    fn take(&self, sent: Duration) {
        self.until.fetch_max(nanos(sent + HELD_FOR), Ordering::Release);
        self.renewed.send_replace(());
    }

    /// How freshness is now.
    pub fn standing(&self) -> Standing {
        let until = Duration::from_nanos(self.until.load(Ordering::Acquire));
        Standing {
            is_held: self.is_held(),
            lapsed: self.clock.boot().saturating_sub(until),
            waits: self.waits.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    /// Whether the lease was held, or this node was started, less than `limit` ago.
    pub fn was_fresh_within(&self, limit: Duration) -> bool {
        let until = Duration::from_nanos(self.until.load(Ordering::Acquire));
        self.clock.boot().saturating_sub(until.max(self.started)) < limit
    }

    /// The proof, at once while the lease is held.
    ///
    /// # Errors
    /// As [`Stale`] says.
    pub async fn fresh(&self) -> Result<Fresh, Stale> {
        if self.is_held() {
            return Ok(Fresh(()));
        }
        self.counted(self.wait()).await
    }

    async fn counted(&self, waited: impl Future<Output = Result<Fresh, Stale>>) -> Result<Fresh, Stale> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let waited = waited.await;
        if waited.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        waited
    }

    async fn wait(&self) -> Result<Fresh, Stale> {
        let _place = self.places.try_acquire().map_err(|_| Stale::TooManyWait)?;
        let mut renewed = self.renewed.subscribe();
        let until_held = async {
            while !self.is_held() {
                self.wanted.notify_one();
                if renewed.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::time::timeout(limits::FRESHNESS_WAIT, until_held).await.map_err(|_| Stale::NoLease)?;
        Ok(Fresh(()))
    }

    /// Renews the lease for as long as the state is there: every [`limits::FRESHNESS_RENEWAL`], and when
    /// somebody waits for it. `ask` confirms with the leader that it leads and answers the index up to which
    /// a reader must have applied; each call asks anew, and says whether a lease may be taken from the answer.
    /// What fails, or hangs beyond [`limits::FRESHNESS_ATTEMPT`], is tried again, and meanwhile the lease runs
    /// out by itself.
    pub async fn keep<A>(&self, ask: impl Fn(bool) -> A, mut applied: watch::Receiver<u64>)
    where
        A: Future<Output = Option<u64>>,
    {
        // A node that starts does not know how much it has to apply.
        let mut named = u64::MAX;
        while applied.has_changed().is_ok() {
            let attempt = self.renew(&ask, &mut applied, &mut named);
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

    /// One renewal; whether there was one. `named` is the index that was named last: a node that has not applied it asks
    /// for the index alone first.
    async fn renew<A>(
        &self,
        ask: impl Fn(bool) -> A,
        applied: &mut watch::Receiver<u64>,
        named: &mut u64,
    ) -> bool
    where
        A: Future<Output = Option<u64>>,
    {
        if *applied.borrow() < *named && Self::catch_up(ask(false), applied, named).await.is_none() {
            return false;
        }
        self.compare_clocks();
        // Before anything of the request is made: what is acknowledged from now on may be missing here.
        let sent = self.clock.boot();
        let for_lease = self.mode == FreshnessMode::Lease;
        if Self::catch_up(ask(for_lease), applied, named).await.is_none() {
            return false;
        }
        self.take(sent);
        true
    }

    /// Waits for the answer, and until what it names is applied.
    async fn catch_up(
        asked: impl Future<Output = Option<u64>>,
        applied: &mut watch::Receiver<u64>,
        named: &mut u64,
    ) -> Option<()> {
        let index = asked.await?;
        *named = index;
        applied.wait_for(|applied| *applied >= index).await.ok().map(drop)
    }

    /// Since when this node leads in `term`: since it was seen first.
    pub fn leads_since(&self, term: u64) -> Duration {
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

    /// Ends when no member can answer from an index older than `index` any more. `applied` ends when it is
    /// applied here; `others` answers what is known of each other member, and since when this node leads; `heard` changes when that may have.
    ///
    /// # Errors
    /// [`Error::Unacknowledged`] after [`limits::BARRIER_TIMEOUT`], and if this node does not lead.
    pub async fn barrier(
        &self,
        index: u64,
        applied: impl Future<Output = ()>,
        others: impl Fn() -> Option<Others>,
        mut heard: watch::Receiver<()>,
    ) -> Result<(), Error> {
        let waited = async {
            applied.await;
            let barrier = Barrier { index, begun: self.clock.boot() };
            loop {
                let Some(others) = others() else { return Err(Error::Unacknowledged) };
                let rest = barrier.rest(&others, self.clock.boot());
                if rest.is_zero() {
                    return Ok(());
                }
                tokio::select! {
                    () = tokio::time::sleep(rest) => {}
                    Ok(()) = heard.changed() => {}
                }
            }
        };
        let waited = tokio::time::timeout(limits::BARRIER_TIMEOUT, waited).await;
        waited.unwrap_or(Err(Error::Unacknowledged))
    }
}

/// The other members, as the leader knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Each of them, learners too.
    pub members: Vec<Member>,
    /// Since when this node leads, on the boot clock.
    pub led_since: Duration,
}

/// An acknowledgement of the entry `index`, which this node had applied at `begun` of its boot clock.
#[derive(Clone, Copy, Debug)]
struct Barrier {
    index: u64,
    begun: Duration,
}

impl Barrier {
    /// How much longer it waits at `now`:
    ///
    /// 1. without other members: no longer
    /// 2. until this node has led for as long as a lease: who left the cluster under its predecessor, and is
    ///    not known here, may hold one
    /// 3. for a member that has not applied the entry: until every lease has run out that it asked for
    ///    before the entry was applied here. A request that arrives later is answered with the entry. Leases that a
    ///    predecessor gave have run out by rule 2.
    fn rest(&self, others: &Others, now: Duration) -> Duration {
        if others.members.is_empty() {
            return Duration::ZERO;
        }
        let run_out = |since: Duration| (since + limits::FRESHNESS_LEASE).saturating_sub(now);
        let behind = others.members.iter().filter(|member| member.applied < self.index);
        let requested = behind.filter_map(|member| member.lease_requested).max();
        let behind = requested.map_or(Duration::ZERO, |requested| run_out(requested.min(self.begun)));
        run_out(others.led_since).max(behind)
    }
}

impl<M: Machine> Handle<M> {
    /// Asks whoever leads for leases, for ever. Without this nobody gets a [`Fresh`].
    pub(crate) async fn keep_fresh(self) {
        let applied = self.shared.applied.subscribe();
        self.freshness.keep(|for_lease| self.confirmed_index(for_lease), applied).await;
    }

    /// The proof that this node has applied all that was acknowledged: at once while it holds its lease,
    /// else after waiting up to [`limits::FRESHNESS_WAIT`] for one. To be taken when a request has
    /// arrived and before anything is read for it.
    ///
    /// # Errors
    /// As [`Stale`] says.
    pub async fn fresh(&self) -> Result<Fresh, Stale> {
        match self.freshness.mode {
            FreshnessMode::Lease => self.freshness.fresh().await,
            FreshnessMode::ReadIndex => self.freshness.counted(self.fresh_by_read_index()).await,
        }
    }

    /// The same proof without a clock: the leader confirms an index after this was called, and it is applied here.
    async fn fresh_by_read_index(&self) -> Result<Fresh, Stale> {
        let proven = async {
            let index = self.reads.confirmed().await?;
            self.until_applied(index).await;
            Ok(Fresh(()))
        };
        let proven = tokio::time::timeout(limits::FRESHNESS_WAIT, proven).await;
        proven.unwrap_or(Err(NotCurrent::NoLeader)).map_err(|error| match error {
            NotCurrent::TooManyWait => Stale::TooManyWait,
            NotCurrent::NoLeader | NotCurrent::Behind => Stale::NoLease,
        })
    }

    /// Whether the lease is held, and how many had to wait for it.
    #[must_use]
    pub fn freshness(&self) -> Standing {
        self.freshness.standing()
    }

    /// Whether this node held the lease, or was started, less than `limit` ago.
    #[must_use]
    pub fn was_fresh_within(&self, limit: Duration) -> bool {
        self.freshness.was_fresh_within(limit)
    }

    /// How many acknowledgements waited here.
    #[must_use]
    pub fn acknowledgements(&self) -> Acknowledgements {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Freshness { confirmed, unconfirmed, .. } = &*self.freshness;
        Acknowledgements { confirmed: count(confirmed), unconfirmed: count(unconfirmed) }
    }

    /// Ends when no member can answer from an index older than `index` any more: the entry may be
    /// acknowledged. Only the leader can tell.
    ///
    /// # Errors
    /// [`Error::Unacknowledged`] after [`limits::BARRIER_TIMEOUT`].
    pub async fn barrier(&self, index: u64) -> Result<(), Error> {
        let asked = async {
            loop {
                let (leader, member) = self.until_led().await;
                let told = async {
                    if leader == self.node_id {
                        self.barrier_as_leader(index).await.is_ok()
                    } else {
                        self.barrier_of(leader, &member, index).await
                    }
                };
                // One that is deposed gives up; one that hangs has a successor.
                let is_told = tokio::select! {
                    is_told = told => is_told,
                    () = self.until_not_led_by(leader) => false,
                };
                if is_told {
                    return;
                }
                tokio::time::sleep(limits::FRESHNESS_RETRY_PAUSE).await;
            }
        };
        let waited = tokio::time::timeout(limits::BARRIER_TIMEOUT, asked).await;
        let Freshness { confirmed, unconfirmed, .. } = &*self.freshness;
        if waited.is_ok() { confirmed } else { unconfirmed }.fetch_add(1, Ordering::Relaxed);
        waited.map_err(|_| Error::Unacknowledged)
    }

    /// The same, as the leader.
    ///
    /// # Errors
    /// [`Error::Unacknowledged`], also if this node does not lead.
    pub(crate) async fn barrier_as_leader(&self, index: u64) -> Result<(), Error> {
        let _wanted = self.progress.want(index);
        let others = || self.others();
        let applied = self.until_applied_as_known(index);
        self.freshness.barrier(index, applied, others, self.progress.heard()).await
    }

    async fn barrier_of(&self, leader: u64, member: &Peer, index: u64) -> bool {
        let Ok(client) = self.channels.shared(Purpose::Barriers, leader, member) else { return false };
        let mut peer = client.peer();
        let asked = peer.barrier(client.request(BarrierRequest { index }));
        asked.await.is_ok()
    }

    /// The other members; `None` unless this node leads.
    fn others(&self) -> Option<Others> {
        let metrics = self.raft.metrics();
        let (leader, term) = {
            let metrics = metrics.borrow_watched();
            (metrics.current_leader, metrics.current_term)
        };
        if leader != Some(self.node_id) {
            return None;
        }
        let led_since = self.freshness.leads_since(term);
        let members = self.other_members().into_iter().map(|(id, _)| self.progress.of(id)).collect();
        Some(Others { members, led_since })
    }
}

/// How far the wall clock is ahead of the boot clock, in milliseconds.
fn ahead(clock: &Clock) -> i64 {
    let boot = i64::try_from(clock.boot().as_millis()).unwrap_or(i64::MAX);
    clock.now().millis().saturating_sub(boot)
}

fn nanos(boot: Duration) -> u64 {
    u64::try_from(boot.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
