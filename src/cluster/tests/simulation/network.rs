//! The simulated network: each message takes time of its own, so that messages overtake each other, or is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use openraft::OptionalSend;
use openraft::alias::SnapshotOf;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::rt::AsyncRuntime as _;
use openraft::{RaftNetworkFactory, RaftNetworkV2};
use tokio::sync::oneshot;

use super::invariants::Checks;
use super::node::SimNode;
use super::random::Random;
use super::state::Image;
use super::{SimConfig, SimRuntime};
use crate::clock::Timestamp;
use crate::cluster::clocks::Clocks;
use crate::cluster::type_config::{MemberRecord, Vote};

/// Time after which a sender gives up the transfer of a snapshot.
const SNAPSHOT_TRANSFER_MAX: Duration = Duration::from_secs(1);

/// Faults of links, each in one direction.
#[derive(Default)]
pub struct Faults {
    /// Links that lose everything.
    pub cut: BTreeSet<(u64, u64)>,
    /// Links with this delay, in microseconds.
    pub slow: BTreeMap<(u64, u64), (u64, u64)>,
    /// Percent of the messages that are lost on every link.
    pub loss: u64,
}

/// The network, and the nodes that run.
pub struct Net {
    pub nodes: Mutex<BTreeMap<u64, Arc<SimNode>>>,
    pub faults: Mutex<Faults>,
    random: Mutex<Random>,
    pub checks: Arc<Checks>,
}

/// One start of a node. After its crash nothing is sent or received for it.
#[derive(Clone)]
pub struct Life {
    pub node: u64,
    pub is_alive: Arc<AtomicBool>,
}

impl Net {
    pub fn new(random: Random, checks: Arc<Checks>) -> Self {
        let (nodes, faults) = (Mutex::default(), Mutex::default());
        Self { nodes, faults, random: Mutex::new(random), checks }
    }

    pub fn node(&self, id: u64) -> Option<Arc<SimNode>> {
        self.nodes.lock().expect("nodes").get(&id).cloned()
    }

    /// Carries a message; never ends if it is lost.
    async fn carry(&self, from: u64, to: u64) {
        let (is_lost, delay) = {
            let (faults, mut random) =
                (self.faults.lock().expect("faults"), self.random.lock().expect("random"));
            let (least, most) = faults.slow.get(&(from, to)).copied().unwrap_or((150, 2_500));
            let is_lost = faults.cut.contains(&(from, to)) || random.percent(faults.loss);
            (is_lost, random.micros(least, most))
        };
        if is_lost {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(delay).await;
        if self.faults.lock().expect("faults").cut.contains(&(from, to)) {
            std::future::pending::<()>().await;
        }
    }

    /// Calls a node; `None` if it refuses. Never ends if the request or the response is lost, or one of the two crashes. A
    /// request arrives, sooner or later, also if its caller has given up.
    pub async fn call<T, F>(
        self: &Arc<Self>,
        from: &Life,
        to: u64,
        serve: impl FnOnce(Arc<SimNode>) -> F + Send + 'static,
    ) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = Option<T>> + Send,
    {
        let (net, from) = (Arc::clone(self), from.clone());
        let (done, answer) = oneshot::channel();
        drop(SimRuntime::spawn(async move {
            net.carry(from.node, to).await;
            let Some(node) = net.node(to).filter(|_| from.is_alive.load(Ordering::SeqCst)) else { return };
            let life = node.life.clone();
            let answer = serve(node).await;
            if life.is_alive.load(Ordering::SeqCst) {
                net.carry(to, from.node).await;
                if from.is_alive.load(Ordering::SeqCst) {
                    drop(done.send(answer));
                }
            }
        }));
        match answer.await {
            Ok(answer) => answer,
            Err(_) => std::future::pending().await,
        }
    }
}

/// Creates the connections of one node.
pub struct Connections {
    pub life: Life,
    pub net: Arc<Net>,
    pub clocks: Arc<Clocks>,
}

pub struct Connection {
    life: Life,
    to: u64,
    net: Arc<Net>,
    clocks: Arc<Clocks>,
}

impl RaftNetworkFactory<SimConfig> for Connections {
    type Network = Connection;

    async fn new_client(&mut self, to: u64, _node: &MemberRecord) -> Connection {
        let (net, clocks) = (Arc::clone(&self.net), Arc::clone(&self.clocks));
        Connection { life: self.life.clone(), to, net, clocks }
    }
}

type Failure = RPCError<SimConfig>;

fn timeout() -> Failure {
    RPCError::Network(NetworkError::from_string("timeout"))
}

impl Connection {
    /// Calls within openraft's time limit. The answer states the wall clock of the node.
    async fn request<T, F>(
        &self,
        limit: Duration,
        serve: impl FnOnce(Arc<SimNode>) -> F + Send + 'static,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Option<T>> + Send,
    {
        let sent = self.clocks.boot();
        let call = self.net.call(&self.life, self.to, move |node| async move {
            let clock = node.clock.clone();
            let answer = serve(node).await?;
            Some((answer, clock.now()))
        });
        let answered = tokio::time::timeout(limit, call).await.ok().flatten();
        let (answer, wall): (T, Timestamp) = answered.ok_or_else(timeout)?;
        self.clocks.record_reading(self.to, wall, sent);
        Ok(answer)
    }
}

impl RaftNetworkV2<SimConfig> for Connection {
    type SnapshotData = Arc<Image>;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<SimConfig>, Failure> {
        if let Some(leader) =
            self.net.node(self.life.node).filter(|_| self.life.is_alive.load(Ordering::SeqCst))
        {
            self.net.checks.leads(request.vote.leader_id.term, self.life.node, |committed| {
                leader.log.log_ids(committed)
            });
        }
        self.request(
            option.hard_ttl(),
            move |node| async move { node.raft.append_entries(request).await.ok() },
        )
        .await
    }

    async fn vote(
        &mut self,
        request: VoteRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<SimConfig>, Failure> {
        self.request(option.hard_ttl(), move |node| async move { node.raft.vote(request).await.ok() }).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<SimConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<SimConfig>, Failure> {
        self.request(option.hard_ttl(), move |node| async move { node.raft.pre_vote(request).await.ok() })
            .await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<SimConfig, Arc<Image>>,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<SimConfig>, StreamingError<SimConfig>> {
        let installed = self.request(SNAPSHOT_TRANSFER_MAX, move |node| async move {
            node.raft.install_full_snapshot(vote, snapshot).await.ok()
        });
        installed.await.map_err(|_| StreamingError::Network(NetworkError::from_string("timeout")))
    }
}
