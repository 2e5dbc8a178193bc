//! The freshness lease and the barrier (design §4): how a node knows that it has applied all that was
//! acknowledged, and how long an acknowledgement waits for those that may not have.
//!
//! Three rules, each of which alone would not do:
//!
//! 1. A lease runs from the moment before the leader was asked, on the boot clock, and a margin shorter than
//!    others believe. It begins only when what the leader named is applied here.
//! 2. The lease is looked at after a request has arrived and before anything is read for it: whoever read
//!    first could read what is old, catch up, and find the lease in order. A [`Fresh`] does not age while its
//!    request goes on, however long that waits: what is applied here and in memory only grows, so that
//!    everything that was acknowledged before the request began is found by whatever is read later.
//! 3. An acknowledgement waits until every other member has applied the entry, or every lease that it could
//!    hold from before has run out.
//!
//! What decides is given the time. A cluster of one goes through the same rules: it asks the leader, which
//! it is, and waits for the other members, of which there are none.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver as _;
use tokio::sync::{Notify, Semaphore, watch};

use super::peers::Purpose;
use super::peers::proto::BarrierRequest;
use super::propose::Error;
use super::types::Peer;
use super::{Handle, Machine};
use crate::clock::Clock;
use crate::limits;

/// Proof that this node had applied everything acknowledged before it was made. Only a lease makes one. It
/// is good for the request it was made for and for no later one, so it cannot be copied.
#[derive(Debug)]
pub struct Fresh(());

/// Why there is no [`Fresh`]. Nothing was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    /// It was waited for up to [`limits::FRESHNESS_WAIT`].
    #[error("this node cannot prove now that it knows everything that was revoked")]
    NoLease,
    /// As many requests wait for it as may, [`limits::FRESHNESS_WAITS_MAX`].
    #[error("too many requests wait until this node knows again everything that was revoked")]
    TooManyWait,
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

/// The lease of this node, and who waits for it.
pub struct Freshness {
    clock: Clock,
    /// Until when it is held, in nanoseconds of the boot clock.
    until: AtomicU64,
    /// Somebody waits for a lease.
    wanted: Notify,
    /// A lease was taken.
    renewed: watch::Sender<()>,
    places: Semaphore,
    waits: AtomicU64,
    refused: AtomicU64,
    /// The term in which this node leads, and since when, as far as it was seen.
    leads: Mutex<Option<(u64, Duration)>>,
}

impl Freshness {
    /// Without a lease.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            until: AtomicU64::new(0),
            wanted: Notify::new(),
            renewed: watch::Sender::new(()),
            places: Semaphore::new(limits::FRESHNESS_WAITS_MAX),
            waits: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            leads: Mutex::new(None),
        }
    }

    fn is_held(&self) -> bool {
        // Whoever sees the lease also sees what was applied before it was taken.
        nanos(self.clock.boot()) < self.until.load(Ordering::Acquire)
    }

    /// Takes the lease of a renewal that was asked for at `sent`, once what the leader named is applied.
    fn take(&self, sent: Duration) {
        let until = (sent + limits::FRESHNESS_LEASE).saturating_sub(limits::FRESHNESS_MARGIN);
        self.until.fetch_max(nanos(until), Ordering::Release);
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

    /// The proof, at once while the lease is held.
    ///
    /// # Errors
    /// As [`Stale`] says.
    pub async fn fresh(&self) -> Result<Fresh, Stale> {
        if self.is_held() {
            return Ok(Fresh(()));
        }
        self.waits.fetch_add(1, Ordering::Relaxed);
        let waited = self.wait().await;
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
    /// a reader must have applied; each call asks anew. What fails, or hangs beyond
    /// [`limits::FRESHNESS_ATTEMPT`], is tried again, and meanwhile the lease runs out by itself.
    pub async fn keep<A>(&self, ask: impl Fn() -> A, mut applied: watch::Receiver<u64>)
    where
        A: Future<Output = Option<u64>>,
    {
        while applied.has_changed().is_ok() {
            let attempt = self.renew(&ask, &mut applied);
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

    /// One renewal; whether there was one.
    async fn renew<A>(&self, ask: impl Fn() -> A, applied: &mut watch::Receiver<u64>) -> bool
    where
        A: Future<Output = Option<u64>>,
    {
        // Before anything of the request is made: what is acknowledged from now on may be missing here.
        let sent = self.clock.boot();
        let Some(index) = ask().await else { return false };
        if applied.wait_for(|applied| *applied >= index).await.is_err() {
            return false;
        }
        self.take(sent);
        true
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
    /// applied here; `others` answers how far each other member is known to have applied, and since when
    /// this node leads; `heard` changes when that may have.
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
    /// How far each has applied, as it said itself; zero if it has said nothing. Learners are among them.
    pub applied: Vec<u64>,
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
    ///    before the entry was applied here. One asked for later names the entry.
    fn rest(&self, others: &Others, now: Duration) -> Duration {
        if others.applied.is_empty() {
            return Duration::ZERO;
        }
        let run_out = |since: Duration| (since + limits::FRESHNESS_LEASE).saturating_sub(now);
        let is_behind = others.applied.iter().any(|applied| *applied < self.index);
        let behind = if is_behind { run_out(self.begun) } else { Duration::ZERO };
        run_out(others.led_since).max(behind)
    }
}

impl<M: Machine> Handle<M> {
    /// Asks whoever leads for leases, for ever. Without this nobody gets a [`Fresh`].
    pub(super) async fn keep_fresh(self) {
        let applied = self.shared.applied.subscribe();
        self.freshness.keep(|| self.confirmed_index(), applied).await;
    }

    /// Remembers since when this node leads.
    pub(super) fn note_leading(&self) {
        let metrics = self.raft.metrics();
        let (leader, term) = {
            let metrics = metrics.borrow_watched();
            (metrics.current_leader, metrics.current_term)
        };
        if leader == Some(self.node_id) {
            self.freshness.leads_since(term);
        }
    }

    /// The proof that this node has applied all that was acknowledged: at once while it holds its lease,
    /// else after waiting up to [`limits::FRESHNESS_WAIT`] for one. To be taken when a request has
    /// arrived and before anything is read for it.
    ///
    /// # Errors
    /// As [`Stale`] says.
    pub async fn fresh(&self) -> Result<Fresh, Stale> {
        self.freshness.fresh().await
    }

    /// Whether the lease is held, and how many had to wait for it.
    #[must_use]
    pub fn freshness(&self) -> Standing {
        self.freshness.standing()
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
        tokio::time::timeout(limits::BARRIER_TIMEOUT, asked).await.map_err(|_| Error::Unacknowledged)
    }

    /// The same, as the leader.
    ///
    /// # Errors
    /// [`Error::Unacknowledged`], also if this node does not lead.
    pub(super) async fn barrier_as_leader(&self, index: u64) -> Result<(), Error> {
        let _wanted = self.progress.want(index);
        let others = || self.others();
        self.freshness.barrier(index, self.until_applied(index), others, self.progress.heard()).await
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
        let applied = self.other_members().into_iter().map(|(id, _)| self.progress.of(id)).collect();
        Some(Others { applied, led_since })
    }
}

fn nanos(boot: Duration) -> u64 {
    u64::try_from(boot.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
