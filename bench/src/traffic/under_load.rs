//! A cluster under load.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use super::history::{Fault, Micros};
use super::{Rates, Traffic};
use crate::health::{Health, View};
use crate::members::Members;

/// Maximum wait for nodes to be healthy after a fault.
const READY_TIMEOUT: Duration = Duration::from_secs(180);
/// Maximum wait for another leader, and for the end of a process.
pub const LEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Duration of the load before the first and after the last fault.
const CALM: Duration = Duration::from_secs(3);

/// Nodes, their health, and the load on some of them.
pub struct UnderLoad {
    pub members: Members,
    pub health: Health,
    pub traffic: Arc<Traffic>,
    stop: watch::Sender<bool>,
    load: JoinHandle<Result<()>>,
    beside: JoinSet<()>,
}

impl UnderLoad {
    /// Waits until these nodes are ready, and begins the load on them.
    pub async fn start(members: Members, rates: Rates, nodes: Vec<usize>) -> Result<Self> {
        let health = Health::at(&members, &nodes).await?;
        let traffic = Arc::new(Traffic::new(&members, rates)?);
        traffic.send_to(nodes);
        traffic.prepare().await?;
        let (stop, stopped) = watch::channel(false);
        let mut beside = JoinSet::new();
        beside.spawn(record_leaders(Arc::clone(&traffic), health.changes()));
        let load = tokio::spawn(Arc::clone(&traffic).run(stopped));
        sleep(CALM).await;
        Ok(Self { members, health, traffic, stop, load, beside })
    }

    /// Runs `task` until the load ends.
    pub fn beside(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.beside.spawn(task);
    }

    /// The index of the leader.
    pub fn leader(&self) -> Result<usize> {
        self.health.now().leader_of(&self.traffic.in_use()).context("no leader")
    }

    /// Waits until the nodes in use are ready and agree on the leader, which ends the last fault.
    pub async fn until_ready(&self) -> Result<Duration> {
        let nodes = self.traffic.in_use();
        let are_ready = |view: &View| view.is_ready_at(&nodes);
        let waited = self.health.until("not all nodes were ready", READY_TIMEOUT, are_ready).await?;
        self.note(|fault, now| {
            fault.well_at = now;
            fault.led_at.get_or_insert(now);
        });
        Ok(waited)
    }

    /// Waits until another node leads after a fault of `node`.
    pub async fn until_another_leads(&self, node: usize) -> Result<()> {
        let nodes = self.traffic.in_use();
        let leads = |view: &View| view.leader_of(&nodes).is_some_and(|leader| leader != node);
        self.health.until("no other node led", LEADER_TIMEOUT, leads).await?;
        self.note(|fault, now| fault.led_at = Some(now));
        Ok(())
    }

    /// Waits until a node answers no more.
    pub async fn until_silent(&self, node: usize) -> Result<()> {
        let is_silent = |view: &View| view.0.get(node).is_none_or(Option::is_none);
        self.health.until("the node still answered", LEADER_TIMEOUT, is_silent).await?;
        Ok(())
    }

    /// Records that a fault of a node begins.
    pub fn fault_begins(&self, node: usize) {
        let at = self.traffic.now();
        self.traffic.history().faults.push(Fault { node, at, led_at: None, well_at: Micros::MAX });
    }

    fn note(&self, change: impl FnOnce(&mut Fault, Micros)) {
        let now = self.traffic.now();
        if let Some(fault) = self.traffic.history().faults.last_mut() {
            change(fault, now);
        }
    }

    /// Ends the load after a while without faults.
    pub async fn end(mut self) -> Result<(Members, Arc<Traffic>)> {
        sleep(CALM).await;
        {
            let end = self.traffic.now();
            let mut history = self.traffic.history();
            history.end = end;
            for fault in &mut history.faults {
                fault.well_at = fault.well_at.min(end);
            }
        }
        self.stop.send(true).context("the load has ended early")?;
        self.load.await??;
        self.beside.shutdown().await;
        self.members.still_run()?;
        Ok((self.members, self.traffic))
    }
}

async fn record_leaders(traffic: Arc<Traffic>, mut views: watch::Receiver<View>) {
    loop {
        let leader = views.borrow_and_update().leader_of(&traffic.in_use());
        let now = traffic.now();
        {
            let mut history = traffic.history();
            if history.leaders.last().is_none_or(|(_, last)| *last != leader) {
                history.leaders.push((now, leader));
            }
        }
        if views.changed().await.is_err() {
            return;
        }
    }
}
