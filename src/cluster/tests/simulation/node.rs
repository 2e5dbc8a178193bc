//! A simulated node. Its parts are those of the product: openraft with the product's configuration, the state machine,
//! the lease, the barrier, `ReadIndex`, and the agreement of clocks. Only the glue between them is written again here,
//! because in the product it calls gRPC: each function names the one that it stands for.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use openraft::ReadPolicy;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::rt::AsyncRuntime as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::disk::{Content, SimLog};
use super::network::{Connections, Life, Net};
use super::random::Random;
use super::state::{Kept, SimState, millis};
use super::{SimConfig, SimRuntime};
use crate::clock::Clock;
use crate::cluster::clock_agreement::{ElapsedInTerm, FirstReading};
use crate::cluster::clocks::Clocks;
use crate::cluster::reads::freshness::Freshness;
use crate::cluster::reads::freshness::barrier::OtherMembers;
use crate::cluster::reads::member_progress::ProgressTracker;
use crate::cluster::reads::read_index::{ConfirmedIndex, ReadIndex};
use crate::cluster::type_config::Commands;
use crate::cluster::{FreshnessMode, Machine as _, ProposerId, Stamp, Submission, raft_config};
use crate::limits;
use crate::state::Replicated;

/// As in `trust-fabric.example.toml`.
const HEARTBEAT: Duration = Duration::from_millis(50);

/// One start of a node.
pub struct SimNode {
    pub life: Life,
    pub raft: openraft::Raft<SimConfig, SimState>,
    pub machine: Arc<Replicated>,
    pub clock: Clock,
    pub log: SimLog,
    /// Ends with the node.
    pub stopped: CancellationToken,
    kept: Arc<Mutex<Kept>>,
    applied: watch::Sender<u64>,
    applied_at: Arc<AtomicU64>,
    freshness: Freshness,
    progress: ProgressTracker,
    reads: ReadIndex,
    clocks: Arc<Clocks>,
    first: Mutex<FirstReading>,
    elapsed: Mutex<ElapsedInTerm>,
    net: Arc<Net>,
    voters: BTreeSet<u64>,
    proposer: ProposerId,
    /// The next sequence, and those that are not answered.
    sequences: Mutex<(u64, BTreeSet<u64>)>,
}

/// The remains of a crash.
pub struct Remains {
    pub content: Content,
    pub kept: Arc<Mutex<Kept>>,
}

/// An applied command: its log index and its reply.
pub type Outcome = (u64, Bytes);

impl SimNode {
    /// Starts a node on the remains of a crash.
    pub async fn start(
        id: u64,
        remains: Remains,
        (net, voters): (&Arc<Net>, &BTreeSet<u64>),
        (clock, mut random): (Clock, Random),
    ) -> Arc<Self> {
        let life = Life { node: id, is_alive: Arc::new(AtomicBool::new(true)) };
        let mut proposer = [0; 16];
        proposer[..8].copy_from_slice(&random.next().to_be_bytes());
        let log = SimLog::open(remains.content, random);
        let clocks = Arc::new(Clocks::new(clock.clone(), id));
        let (machine, applied, applied_at) =
            (Arc::new(Replicated::default()), watch::Sender::new(0), Arc::default());
        let state = SimState {
            node: id,
            machine: Arc::clone(&machine),
            kept: Arc::clone(&remains.kept),
            applied: applied.clone(),
            applied_at: Arc::clone(&applied_at),
            durable: log.durable(),
            clock: clock.clone(),
            checks: Arc::clone(&net.checks),
        };
        state.open();
        let connections =
            Connections { life: life.clone(), net: Arc::clone(net), clocks: Arc::clone(&clocks) };
        let config = raft_config::raft_config(HEARTBEAT).expect("a configuration");
        let raft = openraft::Raft::new(id, config, connections, log.clone(), state).await.expect("starts");
        let (reads, read_index_task) = ReadIndex::new(limits::READ_INDEX_WAITS_MAX);
        let node = Arc::new(Self {
            life,
            raft,
            machine,
            freshness: Freshness::new(clock.clone(), FreshnessMode::Lease, Arc::default()),
            clock,
            log,
            stopped: CancellationToken::new(),
            kept: remains.kept,
            applied,
            applied_at,
            progress: ProgressTracker::default(),
            reads,
            clocks,
            first: Mutex::default(),
            elapsed: Mutex::default(),
            net: Arc::clone(net),
            voters: voters.clone(),
            proposer: ProposerId::from_bytes(proposer),
            sequences: Mutex::new((1, BTreeSet::new())),
        });
        node.run({
            let node = Arc::clone(&node);
            async move {
                let request = |for_lease| node.confirmed_index(for_lease);
                node.freshness.renew_while_open(request, node.applied.subscribe()).await;
            }
        });
        node.run({
            let node = Arc::clone(&node);
            async move {
                let request = || async { node.confirmed_index(false).await.map(|confirmed| confirmed.index) };
                read_index_task.run(request).await;
            }
        });
        net.nodes.lock().expect("nodes").insert(id, Arc::clone(&node));
        node
    }

    /// Runs a task until the node ends.
    fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stopped = self.stopped.clone();
        drop(SimRuntime::spawn(async move {
            stopped.run_until_cancelled(task).await;
        }));
    }

    /// Ends the node at once. The synced part of its log is left, and its state, or of that its latest snapshot alone.
    pub fn crash(self: Arc<Self>, keeps_state: bool) -> Remains {
        self.life.is_alive.store(false, Ordering::SeqCst);
        self.net.nodes.lock().expect("nodes").remove(&self.life.node);
        self.stopped.cancel();
        let content = self.log.after_a_crash();
        let kept = {
            let kept = self.kept.lock().expect("state");
            if keeps_state { kept.copy() } else { kept.only_snapshot() }
        };
        drop(SimRuntime::spawn(async move { drop(self.raft.shutdown().await) }));
        Remains { content, kept: Arc::new(Mutex::new(kept)) }
    }

    /// `Handle::purge_log` up to an entry that is applied.
    pub fn purge(self: &Arc<Self>, upto: u64) {
        let node = Arc::clone(self);
        self.run(async move {
            let taken = node.raft.trigger().snapshot().await;
            let covers = |metrics: &openraft::RaftMetrics<SimConfig>| {
                metrics.snapshot.is_some_and(|snapshot| snapshot.index >= upto)
            };
            let limit = Some(limits::LOG_PURGE_WAIT);
            if taken.is_ok() && node.raft.wait(limit).metrics(covers, "a snapshot").await.is_ok() {
                drop(node.raft.trigger().purge_log(upto).await);
            }
        });
    }

    /// `Handle::leader`.
    pub fn leader(&self) -> Option<u64> {
        self.raft.server_metrics().borrow_watched().current_leader
    }

    /// `Handle::led_term`.
    pub fn led_term(&self) -> Option<u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        (metrics.current_leader == Some(self.life.node)).then_some(metrics.current_term)
    }

    pub fn applied(&self) -> u64 {
        *self.applied.borrow()
    }

    async fn until_applied(&self, index: u64) {
        drop(self.applied.subscribe().wait_for(|applied| *applied >= index).await);
    }

    /// `Handle::until_applied_as_known`.
    async fn until_applied_as_known(&self, index: u64) {
        self.until_applied(index).await;
        let mut metrics = self.raft.metrics();
        while metrics.borrow_watched().last_applied.is_none_or(|applied| applied.index < index) {
            if metrics.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// `Handle::answer_index` and `Handle::confirm_leadership`.
    async fn answer_index(&self) -> Option<u64> {
        let confirmed = self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await.ok()?;
        if let Some(term) = self.led_term() {
            self.freshness.observe_leading(term);
        }
        Some(confirmed.read_log_id().index())
    }

    /// `Handle::confirmed_index`, and the handler of the call.
    async fn confirmed_index(&self, for_lease: bool) -> Option<ConfirmedIndex> {
        let (leader, from) = (self.leader()?, self.life.node);
        let index = if leader == from {
            self.answer_index().await?
        } else {
            let call = self.net.call(&self.life, leader, move |node| async move {
                if for_lease {
                    node.progress.record_lease_request(from, node.clock.boot());
                }
                node.answer_index().await
            });
            tokio::time::timeout(limits::FRESHNESS_ATTEMPT, call).await.ok()??
        };
        Some(ConfirmedIndex { index, ..ConfirmedIndex::default() })
    }

    /// Whether the credential of a fact is accepted here; `None` without a lease. As in a use-case, the lease comes first.
    pub async fn accepts(&self, fact: &crate::token::lineage::Fact) -> Option<bool> {
        let _fresh = self.freshness.fresh().await.ok()?;
        let (epoch, issued) = (self.machine.index().epoch(), crate::clock::Timestamp::from_secs(1));
        Some(!self.machine.revocations().covers(epoch, &[fact.digest()], None, issued))
    }

    /// The log index up to which a linearizable read sees everything. `Handle::linearizable`.
    pub async fn read(&self) -> Option<u64> {
        let index = self.reads.confirmed().await.ok()?;
        let applied = self.until_applied(index);
        tokio::time::timeout(limits::READ_INDEX_WAIT, applied).await.ok()?;
        Some(self.applied())
    }

    /// `Handle::others`.
    fn others(&self) -> Option<OtherMembers> {
        let led_since = Some(self.freshness.observe_leading(self.led_term()?));
        let mut ids = self.voters.clone();
        ids.extend(self.progress.lease_holders(self.clock.boot()));
        ids.remove(&self.life.node);
        let members = ids.into_iter().map(|id| self.progress.get(id)).collect();
        Some(OtherMembers { members, led_since })
    }

    /// `Handle::poll_members`, for one barrier.
    async fn poll(&self, member: u64, index: u64) {
        loop {
            let call = self.net.call(&self.life, member, move |node| async move {
                drop(tokio::time::timeout(limits::APPLIED_WAIT, node.until_applied(index)).await);
                Some(node.applied())
            });
            let limit = limits::APPLIED_WAIT + limits::FRESHNESS_ATTEMPT;
            if let Ok(Some(applied)) = tokio::time::timeout(limit, call).await {
                self.progress.record_applied(member, applied);
                if applied >= index {
                    return;
                }
            }
            tokio::time::sleep(limits::FRESHNESS_RETRY_PAUSE).await;
        }
    }

    /// `Handle::barrier_as_leader`.
    async fn barrier_as_leader(&self, index: u64) -> Option<()> {
        let others = self.voters.iter().filter(|id| **id != self.life.node);
        let polls = join_all(others.map(|id| self.poll(*id, index)));
        let applied = self.until_applied_as_known(index);
        let barrier = self.freshness.barrier(index, applied, || self.others(), self.progress.reports());
        let forever = async {
            polls.await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            ended = barrier => ended.ok(),
            () = forever => None,
        }
    }

    /// `Handle::barrier`.
    pub async fn barrier(&self, index: u64) -> bool {
        let decided = async {
            loop {
                let decided = match self.leader() {
                    Some(leader) if leader == self.life.node => self.barrier_as_leader(index).await,
                    Some(leader) => {
                        let call = self.net.call(&self.life, leader, move |node| async move {
                            node.barrier_as_leader(index).await
                        });
                        tokio::time::timeout(limits::FRESHNESS_LEASE * 2, call).await.ok().flatten()
                    }
                    None => None,
                };
                if decided.is_some() {
                    return;
                }
                tokio::time::sleep(limits::FRESHNESS_RETRY_PAUSE).await;
            }
        };
        tokio::time::timeout(limits::BARRIER_TIMEOUT, decided).await.is_ok()
    }

    /// `Stamps::next`.
    fn stamp(&self) -> Option<Stamp> {
        let term = self.led_term()?;
        let agreement = self.clocks.agreement(&self.voters);
        let times = self.machine.times();
        if !self.first.lock().expect("first").allows(term, &agreement, times) {
            return None;
        }
        let now = self.clock.boot();
        let since = millis(now).saturating_sub(self.applied_at.load(Ordering::SeqCst));
        let at_least = times.elapsed.plus(Duration::from_millis(since));
        let elapsed = self.elapsed.lock().expect("elapsed").count(term, now, at_least);
        Some(agreement.stamp(times, elapsed.since(times.elapsed)))
    }

    /// `Batcher::submit`, with one command in each entry.
    async fn submit(&self, submission: Submission) -> Option<Outcome> {
        let batch = Replicated::batch(self.stamp()?, vec![submission]);
        let written = self.raft.client_write(Commands(batch)).await.ok()?;
        Some((written.log_id.index, written.data.0.into_iter().next()?))
    }

    /// `Handle::propose`: the same submission goes to each leader until one answers.
    pub async fn propose(&self, command: Bytes) -> Option<Outcome> {
        let sequence = {
            let mut sequences = self.sequences.lock().expect("sequences");
            sequences.0 += 1;
            let sequence = sequences.0;
            sequences.1.insert(sequence);
            sequence
        };
        let proposed = async {
            let outcome = loop {
                let low_watermark = *self.sequences.lock().expect("sequences").1.first().expect("open");
                let command = command.clone();
                let submission = Submission { proposer: self.proposer, sequence, low_watermark, command };
                let submitted = match self.leader() {
                    Some(leader) if leader == self.life.node => {
                        tokio::time::timeout(limits::FRESHNESS_LEASE, self.submit(submission))
                            .await
                            .ok()
                            .flatten()
                    }
                    Some(leader) => {
                        let call = self.net.call(&self.life, leader, move |node| async move {
                            node.submit(submission).await
                        });
                        tokio::time::timeout(limits::FRESHNESS_LEASE / 2, call).await.ok().flatten()
                    }
                    None => None,
                };
                if let Some(outcome) = submitted {
                    break outcome;
                }
                tokio::time::sleep(limits::PROPOSE_RETRY_PAUSE).await;
            };
            self.until_applied(outcome.0).await;
            outcome
        };
        let proposed = tokio::time::timeout(limits::PROPOSE_TIMEOUT, proposed).await.ok();
        self.sequences.lock().expect("sequences").1.remove(&sequence);
        proposed
    }
}
