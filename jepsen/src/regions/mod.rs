//! Two regions: `west` is the origin of agents, `east` relies on its ledger, and all traffic between them goes over a proxy
//! of the harness.

mod load;
mod nemesis;
mod probes;
mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep_until};

use crate::history::{Recorder, Run};
use crate::run::recorded;
use load::Load;
use nemesis::{FaultRunner, schedule};
use world::World;

/// `stale_after` of the origin at the relying region: nearly the shortest that the configuration permits.
const STALE_AFTER: Duration = Duration::from_secs(3);
/// The lease of the members of a cluster.
const FRESHNESS: Duration = Duration::from_secs(1);
/// Maximum wait for all nodes after the faults, before liveness counts as lost.
const HEALED_MAX: Duration = Duration::from_secs(60);

/// Programs and directories of both regions.
#[derive(clap::Args, Clone)]
pub struct RegionOptions {
    /// The trust-fabric program
    #[arg(long)]
    pub program: PathBuf,
    /// The policy of a new cluster
    #[arg(long, default_value = "policies")]
    pub policies: PathBuf,
    /// Number of nodes of each region
    #[arg(long, default_value_t = 3, value_parser = nodes)]
    pub nodes: u64,
}

fn nodes(text: &str) -> Result<u64, &'static str> {
    text.parse().ok().filter(|nodes| [1, 3].contains(nodes)).ok_or("must be 1 or 3")
}

/// Faults and load of one run.
pub struct Plan {
    pub seconds: u64,
    pub seed: u64,
    /// A deliberate break of the program, which is recorded and switched on.
    pub broken: Option<String>,
}

/// Runs it in `directory`, which gets the schedule, the history, and the nodes with their logs.
///
/// # Errors
///
/// If the harness itself fails. A promise that is broken is no error: it is in the history.
pub async fn run(options: &RegionOptions, plan: &Plan, directory: &Path) -> Result<PathBuf> {
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let steps = schedule(plan.seed, plan.seconds);
    fs::write(directory.join("schedule.json"), serde_json::to_string_pretty(&steps)?)?;
    let history = directory.join("history.jsonl");
    let mut world = World::start(options, &directory.join("cluster"), plan.broken.as_deref()).await?;
    let facts = Run {
        seed: plan.seed,
        nodes: 2 * options.nodes,
        workload: "federation".to_owned(),
        nemesis: "regions".to_owned(),
        ..recorded(&options.program, plan.broken.as_deref())?
    };
    let recorder = Arc::new(Recorder::create(&history, facts)?);
    let clients = world.clients(&recorder)?;
    let mut load = Load::start(&clients, &world, plan.seed);
    let faults = FaultRunner { link: &world.link, recorder: &recorder, seed: plan.seed };
    let begun = Instant::now();
    tokio::select! {
        ended = faults.run(&mut world.regions, steps, begun) => ended?,
        failed = load.failed() => failed?,
    }
    sleep_until(begun + Duration::from_secs(plan.seconds)).await;
    faults.revive(&mut world.regions)?;
    probes::look(&clients, &world.fabrics).await?;
    load.stop().await?;
    // Regions that are not well now have lost their liveness, which is recorded; the reads show other
    // violations.
    world.until_ready(HEALED_MAX).await;
    probes::until_equal(&clients, &world.fabrics).await;
    clients.begin_final();
    probes::read_ledgers(&clients, &world.fabrics, plan.seed).await?;
    load.read_all().await?;
    recorder.flush()?;
    Ok(history)
}
