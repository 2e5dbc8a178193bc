//! `bench replace`: under load, every node is killed and replaced by a new one, the cluster grows from three nodes to
//! five and shrinks to three. Each step is one command.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tokio::time::sleep;

use crate::health::View;
use crate::members::{ClusterArgs, voters};
use crate::report::Report;
use crate::rolling::{EXIT_TIMEOUT, finish};
use crate::traffic::Rates;
use crate::traffic::history::{Kind, Outcome};
use crate::traffic::under_load::UnderLoad;

/// Nodes that are added beside the replacements.
const GROWTH: usize = 2;
/// Maximum wait for a change of the membership.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval at which the members are read.
const POLL: Duration = Duration::from_millis(50);
/// Maximum wait for the signing key of a node that joined: it is published for ten minutes before.
const KEY_TIMEOUT: Duration = Duration::from_secs(700);

#[derive(clap::Args, Clone)]
pub struct Plan {
    /// Requests per second in all, in the mix of `rolling`; a client tries until a request succeeds
    #[arg(long, default_value_t = 200.0)]
    rate: f64,
    /// Seconds without load before the first step. From ten minutes on, a node that joins mints nothing for ten
    /// minutes
    #[arg(long, default_value_t = 0)]
    age: u64,
    /// Wait until a replacement is ready, its signing key included, before the next step
    #[arg(long)]
    until_ready: bool,
    /// Also write the result to this file
    #[arg(long)]
    output: Option<PathBuf>,
}

/// One command, and its duration.
pub type Step = (String, Duration);

pub async fn run(place: &ClusterArgs, plan: &Plan) -> Result<bool> {
    let founders = usize::try_from(place.nodes)?;
    let place = ClusterArgs { joiners: place.nodes + GROWTH as u64, ..place.clone() };
    let members = place.members()?;
    let nodes: Vec<usize> = (0..founders).collect();
    if plan.age > 0 {
        eprintln!("waiting for {} s", plan.age);
        sleep(Duration::from_secs(plan.age)).await;
    }
    let rates = Rates { tries_max: usize::MAX, ..Rates::mixed(plan.rate) };
    let cluster = UnderLoad::start(members, rates, nodes.clone()).await?;
    let mut change = Change { until_ready: plan.until_ready, ..Change::of(cluster, nodes) };
    for dead in 0..founders {
        change.replace(dead, founders + dead).await.with_context(|| format!("replace node {}", dead + 1))?;
    }
    for node in 2 * founders..2 * founders + GROWTH {
        change.add(node).await.with_context(|| format!("add node {}", node + 1))?;
    }
    for _ in 0..GROWTH {
        // The leader is removed, whichever node it is.
        let leaves = change.cluster.leader()?;
        change.remove(leaves).await.with_context(|| format!("remove node {}", leaves + 1))?;
    }
    let Change { cluster, steps, .. } = change;
    let (_members, traffic) = cluster.end().await?;
    let mut report = Report::new("Members replaced, added and removed under load");
    report.line(&format!(
        "{founders} nodes, each killed (kill -9) and replaced in turn; then {founders} → {} → {founders}; {} requests per\n\
         second, open loop, at the voters in turn, each tried until it succeeds.\n",
        founders + GROWTH,
        plan.rate,
    ));
    report.table(&["step", "seconds"]);
    for (name, took) in &steps {
        report.row(&[name.clone(), format!("{:.2}", took.as_secs_f64())]);
    }
    report.line("");
    finish(&mut report, &traffic, false).await?;
    report.finish(plan.output.as_deref())
}

/// A cluster whose members change.
pub struct Change {
    pub cluster: UnderLoad,
    /// Indices of the voters.
    pub nodes: Vec<usize>,
    pub steps: Vec<Step>,
    until_ready: bool,
}

impl Change {
    pub const fn of(cluster: UnderLoad, nodes: Vec<usize>) -> Self {
        Self { cluster, nodes, steps: Vec::new(), until_ready: false }
    }

    pub fn done(&mut self, name: String, begun: Instant) {
        eprintln!("{name}: {:.2} s", begun.elapsed().as_secs_f64());
        self.steps.push((name, begun.elapsed()));
    }

    async fn replace(&mut self, dead: usize, new: usize) -> Result<()> {
        let leads = self.cluster.leader().ok() == Some(dead);
        let begun = Instant::now();
        self.cluster.fault_begins(dead);
        self.cluster.members.kill(dead)?;
        self.cluster.members.until_exited(dead, EXIT_TIMEOUT).await?;
        self.nodes.retain(|node| *node != dead);
        let id = dead + 1;
        self.token(&["cluster", "replace", &id.to_string()], new).await?;
        self.join(new).await?;
        self.nodes.push(new);
        self.until_voters().await?;
        let name = if leads { "the leader" } else { "a follower" };
        self.done(
            format!("node {id}, {name}, replaced by node {}: from the kill to a voter", new + 1),
            begun,
        );
        self.settle(new).await
    }

    async fn add(&mut self, new: usize) -> Result<()> {
        let begun = Instant::now();
        self.token(&["cluster", "invite"], new).await?;
        self.join(new).await?;
        self.nodes.push(new);
        self.until_voters().await?;
        self.done(format!("node {} added: from the invitation to a voter", new + 1), begun);
        self.settle(new).await
    }

    async fn remove(&mut self, node: usize) -> Result<()> {
        let begun = Instant::now();
        self.nodes.retain(|voter| *voter != node);
        self.cluster.traffic.send_to(self.nodes.clone());
        self.cluster.members.terminate(node)?;
        self.cluster.members.until_exited(node, EXIT_TIMEOUT).await?;
        let id = (node + 1).to_string();
        let via = self.nodes[0];
        self.cluster.members.administer(via, &["cluster", "remove", &id]).await?;
        self.until_voters().await?;
        self.done(format!("node {id}, the leader, stopped and removed"), begun);
        // Not until ready: in an old cluster no new node has a key that may sign.
        let nodes = self.nodes.clone();
        let is_led = |view: &View| view.leader_of(&nodes).is_some();
        self.cluster.health.until("no node led", CHANGE_TIMEOUT, is_led).await?;
        Ok(())
    }

    /// Writes a join token for a new node.
    pub async fn token(&mut self, arguments: &[&str], new: usize) -> Result<()> {
        let begun = Instant::now();
        let via = self.nodes[0];
        let arguments = [arguments, &["--output", "json"]].concat();
        let made = self.until_done(via, &arguments).await?;
        let made: Value = serde_json::from_str(&made)?;
        if made["node_id"].as_u64() != Some(new as u64 + 1) {
            bail!("the join token is for node {}, not for node {}", made["node_id"], new + 1);
        }
        let token = made["join_token"].as_str().context("no join_token")?;
        fs::write(self.cluster.members.place(new)?.join("token"), token)?;
        self.done(format!("`{}`", arguments[..arguments.len() - 2].join(" ")), begun);
        Ok(())
    }

    /// Runs `cluster join` for a new node, and starts it.
    pub async fn join(&mut self, new: usize) -> Result<()> {
        let begun = Instant::now();
        let place = self.cluster.members.place(new)?;
        let [token, config] = ["token", "node.toml"].map(|name| place.join(name).display().to_string());
        let address = self.cluster.members.peer_address(new)?.to_string();
        let via = self.nodes[0];
        let arguments = ["cluster", "join", &token, "--config", &config, "--address", &address];
        self.until_done(via, &arguments).await?;
        self.cluster.members.start(new)?;
        self.done("`cluster join`".to_owned(), begun);
        Ok(())
    }

    /// Runs a command until it succeeds: after the kill of a leader there is none for a moment.
    async fn until_done(&mut self, via: usize, arguments: &[&str]) -> Result<String> {
        let begun = Instant::now();
        loop {
            match self.cluster.members.administer(via, arguments).await {
                Err(error) if begun.elapsed() < CHANGE_TIMEOUT => {
                    eprintln!("{error:#}");
                    sleep(POLL).await;
                }
                done => return done,
            }
        }
    }

    /// Waits until the voters are the wanted ones.
    async fn until_voters(&mut self) -> Result<()> {
        let begun = Instant::now();
        let mut wanted: Vec<u64> = self.nodes.iter().map(|node| *node as u64 + 1).collect();
        wanted.sort_unstable();
        loop {
            let via = self.nodes[0];
            let said =
                self.cluster.members.administer(via, &["cluster", "members", "--output", "json"]).await;
            let found = said.as_deref().map(voters);
            if let Ok(found) = &found
                && *found == wanted
            {
                return Ok(());
            }
            if begun.elapsed() > CHANGE_TIMEOUT {
                bail!("the voters are {found:?}, not {wanted:?}: {said:?}");
            }
            sleep(POLL).await;
        }
    }

    /// Uses a new voter, and waits until it serves, or is ready.
    pub async fn settle(&mut self, new: usize) -> Result<()> {
        let begun = Instant::now();
        let answers =
            |view: &View| view.0.get(new).is_some_and(|said| said.is_some_and(|said| said.leader.is_some()));
        self.cluster.health.until("the new node did not serve", CHANGE_TIMEOUT, answers).await?;
        self.cluster.traffic.send_to(self.nodes.clone());
        if self.until_ready {
            let nodes = self.nodes.clone();
            let are_ready = |view: &View| view.is_ready_at(&nodes);
            self.cluster.health.until("not all nodes were ready", KEY_TIMEOUT, are_ready).await?;
            self.done(format!("node {} ready", new + 1), begun);
        }
        let failed = self
            .cluster
            .traffic
            .history()
            .requests
            .iter()
            .filter(|request| request.kind == Kind::Exchange && request.outcome != Outcome::Good)
            .count();
        if failed > 0 {
            eprintln!("exchanges failed so far: {failed}");
        }
        self.cluster.members.still_run()
    }
}
