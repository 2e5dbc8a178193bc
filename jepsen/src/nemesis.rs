//! Applies a schedule of faults to a cluster, and records their starts and ends.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use trust_fabric_bench::link::Way;

use crate::clients::{Answer, Clients, Intent, get, post};
use crate::cluster::{Cluster, Control};
use crate::history::{Kind, Recorder, Workload};
use crate::schedule::{Draw, Fault, Step, Who};

/// Maximum wait for all nodes to be ready between two restarts, and after a fault of a directory.
const READY_MAX: Duration = Duration::from_secs(10);
/// Time between the copy of a directory and the start on it.
const COPY_AGE: Duration = Duration::from_millis(1_200);
/// Maximum wait for the exit of a process that was killed.
const KILLED_MAX: Duration = Duration::from_secs(5);

pub struct FaultRunner {
    pub cluster: Arc<Cluster>,
    pub clients: Arc<Clients>,
    pub recorder: Arc<Recorder>,
    /// Seed of the numbers that a fault draws while it lasts.
    pub seed: u64,
}

impl FaultRunner {
    /// Runs the schedule: faults of processes one after the other, and beside them those of the network.
    pub async fn run(self: Arc<Self>, steps: Vec<Step>, begun: Instant) -> Result<()> {
        let (network, processes): (Vec<_>, Vec<_>) =
            steps.into_iter().partition(|step| step.fault.is_of_network());
        let mut lanes = JoinSet::new();
        for lane in [network, processes] {
            let runner = Arc::clone(&self);
            lanes.spawn(async move {
                for step in lane {
                    sleep_until(begun + Duration::from_millis(step.at_millis)).await;
                    runner.step(&step).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = lanes.join_next().await {
            ended??;
        }
        Ok(())
    }

    async fn step(&self, step: &Step) -> Result<()> {
        let (fault, kind, hold) = (&step.fault, step.fault.name(), step.hold());
        match fault {
            Fault::Restart => self.restart(kind).await,
            Fault::SetBack(number) => self.set_back(kind, self.nodes(Who::Follower(*number))[0], hold).await,
            Fault::Taint => self.taint(kind, hold).await,
            Fault::Rotate(number) => self.rotate(kind, self.nth(*number), hold).await,
            Fault::Replace(who) => self.replace(kind, self.nodes(*who)[0], hold).await,
            Fault::Members(who) => self.exchange(kind, self.nodes(*who)[0], hold).await,
            Fault::Purge(number) => self.purge(kind, self.nodes(Who::Follower(*number))[0], hold).await,
            Fault::Kill(who)
            | Fault::PowerCut(who)
            | Fault::Pause(who)
            | Fault::Clock(who, _)
            | Fault::Drift(who, _)
            | Fault::SlowDisk(who, _)
            | Fault::FailedSync(who)
            | Fault::FullDisk(who)
            | Fault::Partition(who)
            | Fault::OneWay(who, _)
            | Fault::Flapping(who, _) => self.keep_up(fault, &self.nodes(*who), hold).await,
            Fault::Bridge(number) => self.keep_up(fault, &[self.nth(*number)], hold).await,
            Fault::Certificates | Fault::Ring(_) | Fault::Slow(_) | Fault::Lossy(_) => {
                self.keep_up(fault, &self.cluster.all(), hold).await
            }
        }
    }

    /// Keeps a fault up for its time, between the records of its start and its end.
    async fn keep_up(&self, fault: &Fault, nodes: &[usize], hold: Duration) -> Result<()> {
        let (kind, detail) = (fault.name(), format!("{fault:?}"));
        if matches!(fault, Fault::PowerCut(_)) {
            // A frozen node has sent all its answers before the power is cut.
            self.cluster.freeze(nodes).await?;
        }
        self.recorder.fault(kind, nodes, &detail, false)?;
        match (fault.is_of_network(), self.cluster.has_hosts()) {
            (false, _) => {
                self.begin(fault, nodes).await?;
                sleep(hold).await;
            }
            (true, true) => self.unplug(fault, nodes, hold).await?,
            (true, false) => self.network(fault, nodes, hold).await,
        }
        self.end(fault, nodes)?;
        self.recorder.fault(kind, nodes, &detail, true)
    }

    /// Begins a fault of processes.
    async fn begin(&self, fault: &Fault, nodes: &[usize]) -> Result<()> {
        let cluster = &self.cluster;
        match fault {
            Fault::Kill(_) => cluster.kill(nodes),
            Fault::PowerCut(_) => cluster.cut_power(nodes).await,
            Fault::Pause(_) => cluster.pause(nodes),
            Fault::Certificates => cluster.renew_certificates(),
            // `controls` refuses all but those of the preloaded library.
            other => nodes.iter().try_for_each(|node| cluster.control(*node, &controls(other)?)),
        }
    }

    /// Ends a fault that was kept up.
    fn end(&self, fault: &Fault, nodes: &[usize]) -> Result<()> {
        let cluster = &self.cluster;
        match fault {
            Fault::Kill(_) | Fault::PowerCut(_) => {
                nodes.iter().try_for_each(|node| cluster.start_again(*node))
            }
            Fault::Pause(_) => cluster.resume(nodes),
            Fault::Certificates => Ok(()),
            Fault::Clock(..)
            | Fault::Drift(..)
            | Fault::SlowDisk(..)
            | Fault::FailedSync(_)
            | Fault::FullDisk(_) => nodes.iter().try_for_each(|node| cluster.heal_process(*node)),
            fault if fault.is_of_network() => {
                cluster.heal_network();
                Ok(())
            }
            other => bail!("{other:?} ends by itself"),
        }
    }

    /// Keeps a fault of the network up for its time.
    async fn network(&self, fault: &Fault, nodes: &[usize], hold: Duration) {
        let (cluster, end) = (&self.cluster, Instant::now() + hold);
        let others: Vec<_> = cluster.all().into_iter().filter(|node| !nodes.contains(node)).collect();
        let silence = |way: &mut Way| way.is_silent = true;
        match fault {
            Fault::Partition(_) => {
                cluster.ways(nodes, &others, silence);
                cluster.ways(&others, nodes, silence);
            }
            Fault::OneWay(_, outward) => {
                let (from, to) = if *outward { (nodes, &others[..]) } else { (&others[..], nodes) };
                cluster.ways(from, to, silence);
            }
            Fault::Bridge(_) => {
                let (left, right) = others.split_at(others.len() / 2);
                cluster.ways(left, right, silence);
                cluster.ways(right, left, silence);
            }
            Fault::Ring(shift) => {
                // Each node reaches itself and as many neighbours on both sides as make a majority.
                let all = cluster.all();
                let reach = all.len() / 4;
                let angle = |node: usize| (node + usize::try_from(*shift).unwrap_or_default()) % all.len();
                for &one in &all {
                    for &other in &all {
                        let apart = angle(one).abs_diff(angle(other));
                        if apart.min(all.len() - apart) > reach.max(1) {
                            cluster.ways(&[one], &[other], silence);
                        }
                    }
                }
            }
            Fault::Slow(millis) => {
                let delay = Duration::from_millis(*millis);
                cluster.ways(nodes, nodes, |way| way.delay = delay);
            }
            Fault::Flapping(_, millis) => {
                let mut is_silent = false;
                while Instant::now() < end {
                    is_silent = !is_silent;
                    cluster.ways(nodes, &others, |way| way.is_silent = is_silent);
                    cluster.ways(&others, nodes, |way| way.is_silent = is_silent);
                    sleep(Duration::from_millis(*millis)).await;
                }
            }
            Fault::Lossy(millis) => {
                let mut draw = Draw::new(self.seed);
                while Instant::now() < end {
                    let (from, to) = (draw.one_of(nodes), draw.one_of(nodes));
                    cluster.ways(&[from], &[to], |way| way.is_cut = true);
                    sleep(Duration::from_millis(*millis)).await;
                    cluster.ways(&[from], &[to], |way| way.is_cut = false);
                }
            }
            _ => {}
        }
        sleep_until(end).await;
    }

    /// Waits for the nodes; if they are not ready in time, that is found after the load.
    async fn until_ready(&self) {
        self.cluster.until_ready(&self.clients.all_with_keys(), READY_MAX).await;
    }

    /// Isolates nodes from the others for a time, without a break or in intervals.
    async fn unplug(&self, fault: &Fault, nodes: &[usize], hold: Duration) -> Result<()> {
        let end = Instant::now() + hold;
        let mut is_plugged = true;
        while Instant::now() < end {
            is_plugged = !is_plugged;
            self.cluster.plug(nodes, is_plugged)?;
            match fault {
                Fault::Flapping(_, millis) => sleep(Duration::from_millis(*millis)).await,
                _ => sleep_until(end).await,
            }
        }
        self.cluster.plug(nodes, true)
    }

    /// Every node in turn is stopped gracefully and started again; the next one when all are ready.
    async fn restart(&self, kind: &str) -> Result<()> {
        for node in self.cluster.all() {
            self.recorder.fault(kind, &[node], "SIGTERM", false)?;
            self.cluster.stop(node).await?;
            self.cluster.start_again(node)?;
            self.recorder.fault(kind, &[node], "started", true)?;
            self.until_ready().await;
        }
        Ok(())
    }

    /// A node is started on an older copy of its directory, several times, and at last on its own one.
    async fn set_back(&self, kind: &str, node: usize, hold: Duration) -> Result<()> {
        let cluster = &self.cluster;
        self.recorder.fault(kind, &[node], "copied while it is paused", false)?;
        cluster.pause(&[node])?;
        let copied = cluster.copy_data(node);
        cluster.resume(&[node])?;
        copied?;
        sleep(COPY_AGE).await;
        cluster.kill(&[node])?;
        cluster.until_exited(node, KILLED_MAX).await?;
        cluster.swap_data(node)?;
        self.recorder.fault(kind, &[node], "started on the copy", false)?;
        let end = Instant::now() + hold;
        while Instant::now() < end {
            cluster.start_down(node)?;
            cluster.until_exited(node, end - Instant::now()).await?;
        }
        cluster.kill(&[node])?;
        cluster.until_exited(node, KILLED_MAX).await?;
        cluster.swap_data(node)?;
        cluster.start_again(node)?;
        self.recorder.fault(kind, &[node], "started on its own directory", true)?;
        self.until_ready().await;
        Ok(())
    }

    /// A node is killed and its directory lost; the next node replaces it.
    async fn replace(&self, kind: &str, node: usize, hold: Duration) -> Result<()> {
        let cluster = &self.cluster;
        self.recorder.fault(kind, &[node], "killed, its directory is lost", false)?;
        cluster.kill(&[node])?;
        cluster.until_exited(node, KILLED_MAX).await?;
        cluster.lose_data(node)?;
        sleep(hold).await;
        let new = cluster.replace(node).await?;
        self.recorder.fault(kind, &[node], &format!("replaced by node {}", new + 1), true)?;
        self.until_ready().await;
        Ok(())
    }

    /// A node is stopped gracefully and removed, and the next node joins.
    async fn exchange(&self, kind: &str, node: usize, hold: Duration) -> Result<()> {
        let cluster = &self.cluster;
        self.recorder.fault(kind, &[node], "SIGTERM, then removed", false)?;
        cluster.stop(node).await?;
        sleep(hold).await;
        let new = cluster.exchange(node).await?;
        self.recorder.fault(kind, &[node], &format!("node {} has joined", new + 1), true)?;
        self.until_ready().await;
        Ok(())
    }

    /// A follower is down until the others have purged entries that it lacks: it returns by a snapshot.
    async fn purge(&self, kind: &str, node: usize, hold: Duration) -> Result<()> {
        let cluster = &self.cluster;
        self.recorder.fault(kind, &[node], "killed while the log is purged", false)?;
        let before = cluster.snapshots_installed(node)?;
        cluster.kill(&[node])?;
        sleep(hold).await;
        cluster.start_again(node)?;
        self.until_ready().await;
        let installed = cluster.snapshots_installed(node)? - before;
        self.recorder.fault(kind, &[node], &format!("ready; snapshots installed: {installed}"), true)
    }

    /// Taints the key with which one node of the run mints; always the same one, since others have to mint.
    async fn taint(&self, kind: &str, hold: Duration) -> Result<()> {
        let node = self.nth(self.seed);
        let mut process = self.clients.process(self.seed);
        let Some(kid) = signing_key(&self.clients, node).await else { return Ok(()) };
        self.recorder.fault(kind, &[node], &kid, false)?;
        self.clients.lose_key(node);
        let intent = Intent { workload: Workload::Keys, kind: Kind::Taint, key: &kid, input: Value::Null };
        let request = post(&format!("/v1/sys/keys/{kid}/taint"), "", &json!({}));
        let judge = |answer: &Answer| (answer.outcome(&[200]), Value::Null);
        let at = process.node();
        process.operate(intent, ("operator", at), &request, judge).await?;
        sleep(hold).await;
        self.recorder.fault(kind, &[node], &kid, true)
    }

    /// Retires the key with which a node mints, in favour of its successor.
    async fn rotate(&self, kind: &str, node: usize, hold: Duration) -> Result<()> {
        self.recorder.fault(kind, &[node], "retire the key", false)?;
        let request = post("/v1/sys/keys/rotate", "", &json!({}));
        let answer = self.clients.call("operator", node, &request).await;
        sleep(hold).await;
        self.recorder.fault(kind, &[node], &format!("{:?} {}", answer.status, answer.body), true)
    }

    fn nth(&self, number: u64) -> usize {
        let nodes = self.cluster.all();
        nodes[usize::try_from(number).unwrap_or_default() % nodes.len()]
    }

    /// The nodes that a fault concerns now.
    fn nodes(&self, who: Who) -> Vec<usize> {
        let cluster = &self.cluster;
        // Without a leader, the first member takes its part.
        let leader = cluster.leader().unwrap_or_else(|| cluster.all()[0]);
        let mut followers: Vec<_> = cluster.all().into_iter().filter(|node| *node != leader).collect();
        let turned = |nodes: &mut Vec<usize>, number: u64| {
            let by = usize::try_from(number).unwrap_or_default() % nodes.len();
            nodes.rotate_left(by);
        };
        match who {
            Who::Leader => vec![leader],
            Who::Follower(number) => {
                turned(&mut followers, number);
                followers.truncate(1);
                followers
            }
            Who::Minority { with_leader, shift } => {
                turned(&mut followers, shift);
                if with_leader {
                    followers.insert(0, leader);
                }
                followers.truncate((cluster.all().len() - 1) / 2);
                followers
            }
            Who::All => cluster.all(),
        }
    }
}

/// The integers of the preloaded library for a fault.
fn controls(fault: &Fault) -> Result<Vec<(Control, i64)>> {
    Ok(match fault {
        Fault::Clock(_, secs) => vec![(Control::ClockOffset, secs * 1_000_000_000)],
        Fault::Drift(_, nanos) => {
            let now = clock_gettime(ClockId::Monotonic);
            vec![(Control::DriftBegin, now.tv_sec * 1_000_000_000 + now.tv_nsec), (Control::Drift, *nanos)]
        }
        Fault::SlowDisk(_, Some(millis)) => vec![(Control::SyncDelay, i64::try_from(millis * 1_000_000)?)],
        Fault::SlowDisk(_, None) => vec![(Control::SyncHangs, 1)],
        Fault::FailedSync(_) => vec![(Control::SyncError, Errno::IO.raw_os_error().into())],
        Fault::FullDisk(_) => vec![(Control::SpaceError, Errno::NOSPC.raw_os_error().into())],
        other => bail!("{other:?} is no fault of the preloaded library"),
    })
}

/// The key with which a node mints or will mint.
async fn signing_key(clients: &Clients, node: usize) -> Option<String> {
    let answer = clients.call("operator", node, &get("/v1/sys/keys")).await;
    let of_node = |key: &&Value| key["node_id"] == node as u64 + 1 && key["algorithm"] == "ES256";
    let lives = |key: &&Value| matches!(key["state"].as_str(), Some("active" | "pending"));
    let key = answer.body.as_array()?.iter().filter(of_node).find(lives)?;
    Some(key["kid"].as_str()?.to_owned())
}
