//! Runs a cluster under faults and a load, and checks what was recorded. Exits with 1 if a promise was broken.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum as _};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use trust_fabric_jepsen::cluster::Place;
use trust_fabric_jepsen::history::{History, Workload};
use trust_fabric_jepsen::run::{self, Plan, WORKLOADS};
use trust_fabric_jepsen::schedule::Nemesis;

/// Faults against the promises of a cluster.
#[derive(Parser)]
enum Command {
    /// One run after the other, each with a new cluster and one nemesis
    Run(Options),
}

#[derive(clap::Args)]
struct Options {
    #[command(flatten)]
    place: Place,
    /// Faults of each run; default: those of the short table. Can be repeated
    #[arg(long, value_enum)]
    nemesis: Vec<Nemesis>,
    /// Load; default: all of it. Can be repeated
    #[arg(long, value_parser = workload)]
    workload: Vec<Workload>,
    /// Seconds of load and faults in each run
    #[arg(long, default_value_t = 16)]
    seconds: u64,
    /// Seed of the first run; the next one has the next seed. Default: the time
    #[arg(long)]
    seed: Option<u64>,
    /// How many times every nemesis runs
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// A deliberate break of a test build
    #[arg(long)]
    broken: Option<String>,
    /// A directory for runs and results
    #[arg(long)]
    results: PathBuf,
}

fn workload(text: &str) -> Result<Workload, serde_json::Error> {
    serde_json::from_value(serde_json::Value::String(text.replace('-', "_")))
}

fn main() -> ExitCode {
    match start(Command::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("a promise was broken");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}

fn start(command: Command) -> Result<bool> {
    let Command::Run(options) = command;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            ended = run_all(&options) => ended,
            reason = told_to_end() => bail!("{}", reason?),
        }
    })
}

/// Waits for SIGINT or SIGTERM: the processes of the cluster are stopped then.
async fn told_to_end() -> Result<&'static str> {
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => Ok("interrupted"),
        _ = terminate.recv() => Ok("terminated"),
    }
}

async fn run_all(options: &Options) -> Result<bool> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let first = options.seed.unwrap_or(now);
    let nemeses = if options.nemesis.is_empty() { Nemesis::SHORT.to_vec() } else { options.nemesis.clone() };
    let workloads =
        if options.workload.is_empty() { WORKLOADS.to_vec() } else { options.workload.clone() };
    let runs = (0..options.rounds).flat_map(|_| nemeses.clone());
    for (seed, nemesis) in (first..).zip(runs) {
        let plan = Plan {
            nemesis,
            workloads: workloads.clone(),
            seconds: options.seconds,
            seed,
            broken: options.broken.clone(),
        };
        let name = format!("{}-{seed}", nemesis.name());
        eprintln!("{name}: seed {seed}, {} s", options.seconds);
        let directory = options.results.join("runs").join(&name);
        let history = History::read(&run::run(&options.place, &plan, &directory).await?)?;
        eprintln!("{name}: {} operations, {} faults", history.operations.len(), history.faults.len());
    }
    let _ = Nemesis::value_variants();
    Ok(true)
}
