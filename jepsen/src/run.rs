//! One run: a cluster, its load, a schedule of faults, and the reads after them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::clients::{Answer, Clients, Intent, unix_secs};
use crate::cluster::{Cluster, ClusterOptions, Variant};
use crate::disks::unmount_below;
use crate::history::{Kind, Leader, Outcome, Record, Recorder, Run, Workload};
use crate::liveness;
use crate::nemesis::FaultRunner;
use crate::schedule::{Nemesis, schedule};
use crate::workloads::Load;

/// Maximum wait for all nodes after the faults, before liveness counts as lost.
const HEALED_MAX: Duration = Duration::from_secs(60);

/// Name for a test build without a break.
const NO_BREAK: &str = "none";

/// Every workload of the load.
pub const WORKLOADS: [Workload; 8] = [
    Workload::Revoke,
    Workload::SingleUse,
    Workload::Registry,
    Workload::Streams,
    Workload::Feed,
    Workload::Audit,
    Workload::Keys,
    Workload::Blocked,
];

/// Faults and load of one run.
#[derive(Clone)]
pub struct Plan {
    pub nemesis: Nemesis,
    pub workloads: Vec<Workload>,
    pub seconds: u64,
    pub seed: u64,
    /// Name of a deliberate break of the program, which is recorded and switched on.
    pub broken: Option<String>,
}

impl Plan {
    fn variant(&self) -> Variant<'_> {
        Variant {
            joiners: self.nemesis.joiners(self.seed, self.seconds),
            small_log: self.nemesis == Nemesis::Purge,
            broken: self.broken.as_deref(),
        }
    }
}

/// Runs it in `directory`, which gets the schedule, the history, and the nodes with their logs.
///
/// # Errors
///
/// If the harness itself fails. A promise that is broken is no error: it is in the history.
pub async fn run(options: &ClusterOptions, plan: &Plan, directory: &Path) -> Result<PathBuf> {
    if directory.exists() {
        unmount_below(directory)?;
        fs::remove_dir_all(directory)?;
    }
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let steps = schedule(plan.seed, plan.nemesis, plan.seconds);
    fs::write(directory.join("schedule.json"), serde_json::to_string_pretty(&steps)?)?;
    let history = directory.join("history.jsonl");
    let cluster = Arc::new(Cluster::start(options, &directory.join("cluster"), plan.variant()).await?);
    let recorder = Arc::new(Recorder::create(&history, facts(options, plan)?)?);
    let clients = Clients::new(&cluster.members(), cluster.current(), Arc::clone(&recorder))?;
    let mut beside = JoinSet::new();
    beside.spawn(watch_leaders(Arc::clone(&cluster), Arc::clone(&recorder)));
    beside.spawn(supervise(Arc::clone(&cluster), Arc::clone(&recorder)));

    let mut load = Load::start(&clients, plan.seed, &plan.workloads).await?;
    let begun = Instant::now();
    let faults = FaultRunner {
        cluster: Arc::clone(&cluster),
        clients: Arc::clone(&clients),
        recorder: Arc::clone(&recorder),
        seed: plan.seed,
    };
    tokio::select! {
        ended = Arc::new(faults).run(steps, begun) => ended?,
        failed = load.failed() => failed?,
        failed = beside.join_next() => failed.context("a task has ended")???,
    }
    sleep_until(begun + Duration::from_secs(plan.seconds)).await;
    cluster.heal()?;
    liveness::look(&clients).await?;
    load.stop().await?;
    // A cluster that is not well now has lost its liveness, which is recorded; the reads show other
    // violations.
    cluster.until_ready(&clients.all_with_keys(), HEALED_MAX).await;
    clients.begin_final();
    let read = load.read_all().await;
    let chains = if plan.workloads.contains(&Workload::Audit) {
        verify_chains(&cluster, &clients).await
    } else {
        Ok(())
    };
    beside.shutdown().await;
    recorder.flush()?;
    read.and(chains)?;
    Ok(history)
}

/// Records whether the chains of the audit are intact, by the verification of an export of each node.
async fn verify_chains(cluster: &Cluster, clients: &Arc<Clients>) -> Result<()> {
    let mut process = clients.process(0);
    for node in cluster.all() {
        let invoke = clients.recorder.now();
        let intact = cluster.is_audit_intact(node).await?;
        let answer = Answer::observed(invoke, clients.recorder.now());
        let key = format!("node {}", node + 1);
        let intent = Intent { workload: Workload::Audit, kind: Kind::Chain, key: &key, input: Value::Null };
        let outcome = if intact.is_some() { Outcome::Ok } else { Outcome::Fail };
        process.record(intent, node, &answer, outcome, json!(intact))?;
    }
    Ok(())
}

/// The data about the program that each run records.
pub(crate) fn recorded(program: &Path, broken: Option<&str>) -> Result<Run> {
    let version = Command::new(program).arg("--version").output()?;
    Ok(Run {
        begun_unix_secs: unix_secs(),
        version: String::from_utf8_lossy(&version.stdout).trim().to_owned(),
        // A test build whose rules all hold is as sound as the product.
        broken: broken.filter(|broken| *broken != NO_BREAK).map(str::to_owned),
        ..Run::default()
    })
}

fn facts(options: &ClusterOptions, plan: &Plan) -> Result<Run> {
    let names = plan.workloads.iter().map(|workload| {
        let name = serde_json::to_value(workload).unwrap_or_default();
        name.as_str().unwrap_or_default().to_owned()
    });
    let names: Vec<_> = names.collect();
    let workload = if plan.workloads == WORKLOADS { "all".to_owned() } else { names.join("+") };
    Ok(Run {
        seed: plan.seed,
        nodes: options.nodes + plan.variant().joiners,
        workload,
        nemesis: format!("{}{}", plan.nemesis.name(), if options.hosts { " in namespaces" } else { "" }),
        ..recorded(&options.program, plan.broken.as_deref())?
    })
}

/// Records the leader that each node names, when it changes.
async fn watch_leaders(cluster: Arc<Cluster>, recorder: Arc<Recorder>) -> Result<()> {
    let mut changes = cluster.health.changes();
    let mut known = vec![None; changes.borrow().0.len()];
    loop {
        let view = changes.borrow_and_update().clone();
        for (node, (known, health)) in (1..).zip(known.iter_mut().zip(&view.0)) {
            let leader = health.and_then(|health| health.leader);
            if *known != leader {
                *known = leader;
                let time = recorder.now();
                recorder.write(&Record::Leader(Leader { time, seen_by: node, leader, term: None }))?;
            }
        }
        changes.changed().await?;
    }
}

/// Restarts processes that have ended without a fault, and records it.
async fn supervise(cluster: Arc<Cluster>, recorder: Arc<Recorder>) -> Result<()> {
    let told = |node: usize| {
        recorder.fault("exit", &[node], "the process ended by itself, and is started again", true)
    };
    cluster.supervise(told).await
}
