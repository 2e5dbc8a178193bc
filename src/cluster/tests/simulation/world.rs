//! A run: a cluster is bootstrapped, disturbed and healed, and must then work again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use openraft::rt::AsyncRuntime as _;

use super::SimRuntime;
use super::clients::{Clients, fact};
use super::disk::Content;
use super::invariants::{Checks, Outcome};
use super::network::{Faults, Net};
use super::node::{Remains, SimNode};
use super::random::Random;
use crate::clock::{Clock, Timestamp};
use crate::cluster::type_config::MemberRecord;
use crate::state::command::{Bootstrap, Command, encode};
use crate::state::feature_level;

pub(super) const START: Timestamp = Timestamp::from_secs(1_800_000_000);
/// Faults of a run.
const FAULTS: u64 = 24;
const CLIENTS: u64 = 6;
/// After the faults are healed, everything works within this time.
const HEALED_WITHIN: Duration = Duration::from_secs(5);
/// A fact that no client revokes.
const NEVER_REVOKED: u64 = 1_000;

pub struct World {
    net: Arc<Net>,
    random: Random,
    voters: BTreeSet<u64>,
    clocks: BTreeMap<u64, Clock>,
    /// Nodes that do not run.
    down: BTreeMap<u64, Remains>,
    /// The one node whose wall clock is wrong, and by how much.
    shifted: (u64, i64),
}

/// Advances the clocks with the time of the runtime.
async fn advance(clocks: Vec<Clock>) {
    const STEP: Duration = Duration::from_millis(1);
    loop {
        tokio::time::sleep(STEP).await;
        for clock in &clocks {
            clock.advance(STEP);
        }
    }
}

impl World {
    async fn found(nodes: u64, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let time = Clock::manual(Timestamp::from_millis(0));
        let clocks: BTreeMap<u64, Clock> = (1..=nodes).map(|id| (id, Clock::manual(START))).collect();
        drop(SimRuntime::spawn(advance(clocks.values().chain([&time]).cloned().collect())));
        let checks = Arc::new(Checks::new(time));
        let net = Arc::new(Net::new(Random::new(random.next()), checks));
        let shifted = (1 + random.below(nodes), 0);
        let mut world =
            Self { net, random, voters: (1..=nodes).collect(), clocks, down: BTreeMap::new(), shifted };
        for id in world.voters.clone() {
            world.start(id, Remains { content: Content::default(), kept: Arc::default() }).await;
        }
        let member = |id: &u64| (*id, MemberRecord { address: format!("n{id}:1"), disk_id: [1; 16] });
        let members: BTreeMap<u64, MemberRecord> = world.voters.iter().map(member).collect();
        for node in world.nodes() {
            node.raft.initialize(members.clone()).await.expect("the same members on all nodes");
        }
        let id = |byte| Bytes::copy_from_slice(&[byte; 16]);
        let (cluster_id, incarnation, feature_level) = (id(1), id(2), feature_level::NEWEST);
        let bootstrap = encode(Command::Bootstrap(Bootstrap { cluster_id, incarnation, feature_level }));
        let first = world.nodes().remove(0);
        first.propose(bootstrap).await.expect("bootstraps");
        world
    }

    fn nodes(&self) -> Vec<Arc<SimNode>> {
        self.net.nodes.lock().expect("nodes").values().cloned().collect()
    }

    fn note(&self, line: &str) {
        self.net.checks.note(line);
    }

    async fn start(&mut self, id: u64, remains: Remains) {
        let own = (self.clocks[&id].clone(), Random::new(self.random.next()));
        SimNode::start(id, remains, (&self.net, &self.voters), own).await;
        self.note(&format!("node {id} starts"));
    }

    fn crash(&mut self, id: u64) {
        let keeps_state = self.random.percent(50);
        if let Some(node) = self.net.node(id) {
            self.note(&format!("node {id} crashes, and keeps its state: {keeps_state}"));
            self.down.insert(id, node.crash(keeps_state));
        }
    }

    async fn restart_all(&mut self) {
        for (id, remains) in std::mem::take(&mut self.down) {
            self.start(id, remains).await;
        }
    }

    /// Cuts these nodes off, in one direction or in both.
    fn isolate(&self, apart: &BTreeSet<u64>, directions: (bool, bool)) {
        let mut faults = self.net.faults.lock().expect("faults");
        for near in apart {
            for far in self.voters.difference(apart) {
                faults.cut.extend(directions.0.then_some((*near, *far)));
                faults.cut.extend(directions.1.then_some((*far, *near)));
            }
        }
        drop(faults);
        self.note(&format!("nodes {apart:?} are cut off, out and in: {directions:?}"));
    }

    fn any(&mut self) -> u64 {
        1 + self.random.below(self.voters.len() as u64)
    }

    fn leader(&mut self) -> u64 {
        let leading = self.nodes().into_iter().filter(|node| node.led_term().is_some());
        leading.map(|node| node.life.node).last().unwrap_or_else(|| self.any())
    }

    async fn disturb(&mut self) {
        match self.random.below(16) {
            0..2 => {
                let apart = BTreeSet::from([self.any()]);
                self.isolate(&apart, (true, true));
            }
            2..5 => {
                let minority = self.voters.len() / 2;
                let mut apart = BTreeSet::from([self.leader()]);
                while apart.len() < minority {
                    apart.insert(self.any());
                }
                self.isolate(&apart, (true, true));
            }
            5 => {
                let (apart, is_out) = (BTreeSet::from([self.any()]), self.random.percent(50));
                self.isolate(&apart, (is_out, !is_out));
            }
            6..8 => {
                let (from, to) = (self.any(), self.any());
                let least = 10_000 + self.random.below(150_000);
                self.net.faults.lock().expect("faults").slow.insert((from, to), (least, least + 60_000));
                self.note(&format!("messages from {from} to {to} take {least} us"));
            }
            8 => {
                let loss = self.random.below(30);
                self.net.faults.lock().expect("faults").loss = loss;
                self.note(&format!("{loss} % of all messages are lost"));
            }
            9 => {
                let id = self.any();
                self.crash(id);
            }
            10 => {
                for id in self.voters.clone() {
                    self.crash(id);
                }
                self.restart_all().await;
            }
            11 => {
                let millis = i64::try_from(self.random.below(7_200_000)).expect("hours") - 3_600_000;
                self.set_wall_clock(millis);
            }
            12..14 => {
                let (id, kept) = (self.any(), self.random.below(4));
                if let Some(node) = self.net.node(id) {
                    let upto = node.applied().saturating_sub(kept);
                    self.note(&format!("node {id} takes a snapshot and purges its log up to {upto}"));
                    node.purge(upto);
                }
            }
            _ => {
                self.restart_all().await;
                *self.net.faults.lock().expect("faults") = Faults::default();
                self.note("the network is healed");
            }
        }
    }

    /// Sets the one wall clock that may be wrong.
    fn set_wall_clock(&mut self, millis: i64) {
        let (id, before) = self.shifted;
        self.shifted = (id, millis);
        self.clocks[&id].shift(millis - before);
        self.note(&format!("the wall clock of node {id} is off by {millis} ms"));
    }

    fn check_logs(&self) {
        let committed = self.net.checks.committed();
        let logs = self.nodes().iter().map(|node| (node.life.node, node.log.log_ids(&committed))).collect();
        self.net.checks.logs(&logs);
    }

    /// Everything works again, on every node.
    async fn until_healed(&self, clients: &Clients) {
        for node in self.nodes() {
            loop {
                let spent = clients.spend(&node, clients.tokens.fetch_add(1, Ordering::SeqCst), true).await;
                let is_back = spent == Some(true)
                    && node.barrier(node.applied()).await
                    && node.accepts(&fact(NEVER_REVOKED)).await == Some(true)
                    && node.read().await.is_some();
                if is_back {
                    break;
                }
            }
        }
        let end = self.net.checks.committed().into_keys().max().unwrap_or_default();
        for node in self.nodes() {
            while node.applied() < end {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }

    /// Bootstraps, disturbs and heals a cluster of this many nodes.
    pub async fn play(nodes: u64, seed: u64) -> Outcome {
        let mut world = Self::found(nodes, seed).await;
        let (has_ended, tokens) = (AtomicBool::new(false), AtomicU64::new(1));
        let clients = Arc::new(Clients { net: Arc::clone(&world.net), has_ended, tokens });
        let running: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let random = Random::new(world.random.next());
                SimRuntime::spawn(Arc::clone(&clients).run(random))
            })
            .collect();
        for _ in 0..FAULTS {
            let pause = world.random.micros(20_000, 600_000);
            tokio::time::sleep(pause).await;
            world.disturb().await;
            world.check_logs();
        }
        *world.net.faults.lock().expect("faults") = Faults::default();
        world.restart_all().await;
        world.set_wall_clock(0);
        world.note("everything is healed");
        let healed = tokio::time::timeout(HEALED_WITHIN, world.until_healed(&clients)).await;
        let checks = Arc::clone(&world.net.checks);
        checks.check(healed.map_err(|_| format!("not every node works {HEALED_WITHIN:?} after the faults")));
        clients.has_ended.store(true, Ordering::SeqCst);
        for client in running {
            client.await.expect("a client that ends");
        }
        world.check_logs();
        let committed = checks.committed();
        for node in world.nodes() {
            let log = node.log.log_ids(&committed);
            let missing = committed.values().find(|log_id| log.get(&log_id.index) != Some(log_id));
            let id = node.life.node;
            checks.check(missing.map_or(Ok(()), |log_id| Err(format!("node {id} lacks committed {log_id}"))));
        }
        checks.outcome()
    }
}
