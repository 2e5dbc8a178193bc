//! Runs a cluster under faults and a load, and checks what was recorded. Exits with 1 if a promise was broken.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use clap::Parser;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use trust_fabric_jepsen::check::{self, Violation};
use trust_fabric_jepsen::cluster::ClusterOptions;
use trust_fabric_jepsen::history::{History, Workload};
use trust_fabric_jepsen::regions::{self, RegionOptions};
use trust_fabric_jepsen::results::{Results, RunResult};
use trust_fabric_jepsen::run::{self, Plan, WORKLOADS};
use trust_fabric_jepsen::schedule::Nemesis;
use trust_fabric_jepsen::timeline;

/// Violations that are printed of one history.
const PRINTED_MAX: usize = 20;
/// The directory of result files among the results.
const FILES: &str = "results";

/// Faults against the promises of a cluster.
#[derive(Parser)]
enum Command {
    /// One run after the other, each with a new cluster and one nemesis; prints a table of these runs
    Run(Options),
    /// The same with two regions, of which one relies on the ledger of the other, and faults of the link between them
    Regions(RegionsOptions),
    /// Checks a recorded history again
    Check {
        /// A file history.jsonl
        history: PathBuf,
    },
    /// Sums the results of all runs in a directory
    Report {
        /// The directory of `run`
        #[arg(long)]
        results: PathBuf,
    },
}

#[derive(clap::Args)]
struct Options {
    #[command(flatten)]
    cluster: ClusterOptions,
    /// Faults of each run; default: those of the short table. Can be repeated
    #[arg(long, value_enum)]
    nemesis: Vec<Nemesis>,
    /// Every nemesis that the number of nodes permits
    #[arg(long, conflicts_with = "nemesis")]
    all: bool,
    /// Load; default: all of it. Can be repeated
    #[arg(long, value_parser = workload)]
    workload: Vec<Workload>,
    /// Seconds of load and faults in each run
    #[arg(long, default_value_t = 16)]
    seconds: u64,
    /// How many times every nemesis runs
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    #[command(flatten)]
    runs: RunOptions,
}

#[derive(clap::Args)]
struct RegionsOptions {
    #[command(flatten)]
    regions: RegionOptions,
    /// Seconds of load and faults in each run
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Number of runs
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    #[command(flatten)]
    runs: RunOptions,
}

/// Options of runs of one cluster and of two regions.
#[derive(clap::Args)]
struct RunOptions {
    /// Seed of the first run; the next one has the next seed. Default: the time
    #[arg(long)]
    seed: Option<u64>,
    /// A deliberate break of a test build; `none` for a test build in which every rule holds
    #[arg(long)]
    broken: Option<String>,
    /// Keep the directories of the nodes of a run without violations
    #[arg(long)]
    keep: bool,
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
    match command {
        Command::Run(options) => until_told(run_all(&options)),
        Command::Regions(options) => until_told(run_regions(&options)),
        Command::Check { history } => Ok(found(&History::read(&history)?).is_empty()),
        Command::Report { results } => {
            let results = Results::read(&results.join(FILES))?;
            let pages = format!("{}\n{}\n{}\n", results.table(), results.coverage(), results.breaks());
            match io::stdout().write_all(pages.as_bytes()) {
                // The reader, for example `head`, has seen enough.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                written => written?,
            }
            Ok(results.runs.iter().all(|run| run.run.broken.is_some() || run.violations.is_empty()))
        }
    }
}

/// Runs it until its end or a signal.
fn until_told(runs: impl Future<Output = Result<bool>>) -> Result<bool> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            ended = runs => ended,
            reason = told_to_end() => bail!("{}", reason?),
        }
    })
}

/// Violations of a history, printed.
fn found(history: &History) -> Vec<Violation> {
    let violations = check::all(history);
    for violation in violations.iter().take(PRINTED_MAX) {
        eprintln!("  {} ({}): {}", violation.checker, violation.rule, violation.detail);
    }
    if violations.len() > PRINTED_MAX {
        eprintln!("  and {} more", violations.len() - PRINTED_MAX);
    }
    violations
}

/// Waits for SIGINT or SIGTERM: the processes of the cluster are stopped then.
async fn told_to_end() -> Result<&'static str> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => Ok("interrupted"),
        _ = terminate.recv() => Ok("terminated"),
    }
}

async fn run_all(options: &Options) -> Result<bool> {
    let first = first_seed(options.runs.seed)?;
    let mut workloads =
        if options.workload.is_empty() { WORKLOADS.to_vec() } else { options.workload.clone() };
    let mut nemeses = match options.nemesis.as_slice() {
        [] if options.all || options.cluster.disks => {
            Nemesis::all(options.cluster.nodes, options.cluster.disks)
        }
        [] => Nemesis::SHORT.to_vec(),
        some => some.to_vec(),
    };
    if options.cluster.hosts {
        if options.nemesis.iter().any(|nemesis| nemesis.needs_proxies()) {
            bail!("with --hosts only minority and flapping are partitions, and no node joins");
        }
        nemeses.retain(|nemesis| !nemesis.needs_proxies());
        // Receivers of pushes are on the loopback of this machine.
        workloads.retain(|workload| *workload != Workload::Streams);
    }
    if nemeses.iter().any(|nemesis| nemesis.needs_disks() != options.cluster.disks) {
        bail!("power cuts need --disks (and root), and other faults do not permit it");
    }
    let runs = (0..options.rounds).flat_map(|_| nemeses.clone());
    let mut results = Vec::new();
    for (seed, nemesis) in (first..).zip(runs) {
        let plan = Plan {
            nemesis,
            workloads: workloads.clone(),
            seconds: options.seconds,
            seed,
            broken: options.runs.broken.clone(),
        };
        results.push(one(options, &plan).await?);
    }
    summed(results, &options.runs.results, options.runs.broken.is_some())
}

async fn run_regions(options: &RegionsOptions) -> Result<bool> {
    let first = first_seed(options.runs.seed)?;
    let mut results = Vec::new();
    for seed in first..first + options.rounds {
        let plan = regions::Plan { seconds: options.seconds, seed, broken: options.runs.broken.clone() };
        let broken = plan.broken.as_ref().map(|broken| format!("-{broken}")).unwrap_or_default();
        let name = format!("regions-{}-{seed}{broken}", options.regions.nodes);
        let directory = begin(&options.runs.results, &name, seed, plan.seconds);
        let history = regions::run(&options.regions, &plan, &directory).await?;
        results.push(judged(&options.runs.results, &name, &history, options.runs.keep)?);
    }
    summed(results, &options.runs.results, options.runs.broken.is_some())
}

fn first_seed(seed: Option<u64>) -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    Ok(seed.unwrap_or(now))
}

/// Prints the sums of some runs. Returns whether they are without violations.
fn summed(runs: Vec<RunResult>, results: &Path, is_broken: bool) -> Result<bool> {
    let is_good = runs.iter().all(|result| result.violations.is_empty());
    let digest = Results::read(&results.join(FILES))?.digest;
    let results = Results { runs, digest };
    println!("{}", if is_broken { results.breaks() } else { results.table() });
    Ok(is_good)
}

/// One run, its violations and its result.
async fn one(options: &Options, plan: &Plan) -> Result<RunResult> {
    let broken = plan.broken.as_ref().map(|broken| format!("-{broken}")).unwrap_or_default();
    let name = format!("{}-{}-{}{broken}", plan.nemesis.name(), options.cluster.nodes, plan.seed);
    let directory = begin(&options.runs.results, &name, plan.seed, plan.seconds);
    let history = run::run(&options.cluster, plan, &directory).await?;
    judged(&options.runs.results, &name, &history, options.runs.keep)
}

/// Prints that a run begins. Returns its directory.
fn begin(results: &Path, name: &str, seed: u64, seconds: u64) -> PathBuf {
    let directory = results.join("runs").join(name);
    eprintln!("{name}: seed {seed}, {seconds} s, in {}", directory.display());
    directory
}

/// The violations and the result of a run that has ended.
fn judged(results: &Path, name: &str, history: &Path, keep: bool) -> Result<RunResult> {
    let directory = results.join("runs").join(name);
    let history = History::read(history)?;
    let violations = found(&history);
    let page = directory.join("timeline.html");
    std::fs::write(&page, timeline::draw(&history, &violations))?;
    let result = RunResult::of(&history, &violations);
    result.write(&results.join(FILES))?;
    eprintln!(
        "{name}: {} operations, {} of unknown outcome, {} faults, {} violations",
        result.operations.all(),
        result.operations.unknown,
        result.faults.values().sum::<u64>(),
        violations.len()
    );
    if violations.is_empty() && !keep {
        // Data of the nodes is large; the history is kept.
        std::fs::remove_dir_all(directory.join("cluster"))?;
    }
    Ok(result)
}
