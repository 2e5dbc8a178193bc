//! Attacks, floods, overload and speed of a Trust Fabric node, measured over the wire.
//!
//! Prints Markdown. Exits with 1 if a request was accepted that must not be, or answered with a server error
//! except 503. No duration or size fails a run by itself.

mod attacks;
mod beside;
mod cap;
mod connections;
mod etcd;
mod exchange;
mod failover;
mod federation;
mod feed;
mod full;
mod good_client;
mod handover;
mod join;
mod oha;
mod overload;
mod race;
mod reading;
mod replace;
mod report;
mod resume;
mod revocations;
mod rolling;
mod scaling;
mod signals;
mod snapshots;
mod streams;
mod together;
mod tools;
mod traffic;
mod verify;
mod window;
mod writes;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use trust_fabric_bench::{
    certificates, chart, client, cpu, credentials, curves, floor, health, link, load, members, node,
    push_receiver, region, registry, settings, sse, wire,
};

use node::Start;
use overload::{Cores, Load};
use tools::Size;

/// File descriptors of the largest flood, on both sides.
const DESCRIPTORS: u64 = 30_000;
/// Attackers yield to the client and the node: in a real attack they have other machines.
const ATTACKER_NICENESS: i32 = 10;

/// Attacks, floods, overload and speed of a Trust Fabric node.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Every attack, one after the other, beside a well-behaved client
    Attacks {
        #[command(flatten)]
        start: Start,
        /// Only attacks whose name contains this text
        #[arg(long)]
        only: Option<String>,
        /// Exchanges of the well-behaved client per second
        #[arg(long, default_value_t = 200.0)]
        rate: f64,
    },
    /// Thousands of idle connections
    Connections {
        #[command(flatten)]
        start: Start,
        /// Connections to the plain listener
        #[arg(long, default_value_t = 10_000)]
        plain_connections: usize,
        /// TLS handshakes that stall
        #[arg(long, default_value_t = 2_000)]
        stalled: usize,
        /// Exchanges of the well-behaved client per second
        #[arg(long, default_value_t = 200.0)]
        rate: f64,
    },
    /// Several times the capacity
    Overload {
        #[command(flatten)]
        start: Start,
        #[command(flatten)]
        load: Load,
    },
    /// Processor time and latency of exchanges, beside a floor server that verifies and signs
    Exchange {
        #[command(flatten)]
        start: Start,
        #[command(flatten)]
        plan: beside::Plan,
    },
    /// The floor server itself, until it is killed; `exchange` and `verify` start it
    #[command(hide = true)]
    Floor {
        #[arg(long)]
        config: PathBuf,
    },
    /// A registry of many tools beside one of few: memory, verifications, reads, pages
    Tools {
        #[command(flatten)]
        start: Start,
        #[command(flatten)]
        cores: Cores,
        #[command(flatten)]
        size: Size,
    },
    /// An index of many revocations beside an empty one: memory, start, verifications
    Revocations {
        #[command(flatten)]
        start: Start,
        #[command(flatten)]
        cores: Cores,
        #[command(flatten)]
        size: revocations::Size,
    },
    /// A node with many revocations, tools and streams beside an empty one: exchanges and verifications in pairs
    Full {
        #[command(flatten)]
        start: Start,
        #[command(flatten)]
        cores: Cores,
        #[command(flatten)]
        size: full::Size,
    },
    /// Time until a signal is acknowledged, beside a sync of the disk
    Signals {
        #[command(flatten)]
        start: Start,
        #[command(flatten)]
        cores: Cores,
        /// Seconds of each measurement
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// Signals per second
        #[arg(long, default_value_t = 100.0)]
        rate: f64,
    },
    /// Many subscribers of the live feed, half of which never read; and subscribers that disconnect and
    /// resume
    Feed {
        #[command(flatten)]
        start: Start,
        #[command(flatten)]
        cores: Cores,
        #[command(flatten)]
        size: feed::Size,
    },
    /// Pushes to a receiver that was down, beside another stream; and a kill in the middle
    Streams {
        #[command(flatten)]
        start: Start,
        #[command(flatten)]
        cores: Cores,
        #[command(flatten)]
        size: streams::Size,
    },
    /// Processor time and latency of verifications, beside a floor server that verifies one signature; and the cost of
    /// auditing them
    Verify {
        #[command(flatten)]
        start: Start,
        #[command(flatten)]
        plan: beside::Plan,
    },
    /// A fixed load on a cluster while its leader is repeatedly killed, paused or partitioned: gaps, lost
    /// writes, stale accepts
    ///
    /// The gap of a fault, for one kind of request, is the longest time without a good response from the last
    /// one before the fault to the next fault, or to the end: it affects a client that sends without pause
    /// and tries the next node at once. The longest wait is that of one request, from its due time, over all
    /// its tries. An acknowledged write is lost if a node does not have it with its content at the end. An
    /// accept is stale if the verification began, on any node, after the 202 of the revocation of its
    /// subject. Unknown outcomes (503 that states so) are counted apart. Exits with 1 if a write is lost, an
    /// accept is stale, or a response is neither good nor an orderly 503 or 429.
    Failover {
        #[command(flatten)]
        place: members::ClusterArgs,
        #[command(flatten)]
        plan: failover::Plan,
    },
    /// Every node in turn is stopped and started again under load, if wanted with another program
    ///
    /// Exits with 1 if a request fails on two nodes, a write is lost or an accept is stale.
    Rolling {
        #[command(flatten)]
        place: members::ClusterArgs,
        #[command(flatten)]
        plan: rolling::Plan,
    },
    /// Every node is killed and replaced by a new one under load; then two nodes are added and two removed
    Replace {
        #[command(flatten)]
        place: members::ClusterArgs,
        #[command(flatten)]
        plan: replace::Plan,
    },
    /// A node with many tools and revocations is restored from a backup, and two nodes join it under load
    Join {
        #[command(flatten)]
        place: members::ClusterArgs,
        #[command(flatten)]
        plan: join::Plan,
    },
    /// Planned changes of the leader: the gap of acknowledged writes
    Handover {
        #[command(flatten)]
        place: members::ClusterArgs,
        #[command(flatten)]
        plan: handover::Plan,
    },
    /// Nodes with the smallest log, which is purged all the time, and followers that catch up by snapshots
    Snapshots {
        #[command(flatten)]
        place: members::ClusterArgs,
        #[command(flatten)]
        plan: snapshots::Plan,
    },
    /// A leader that sleeps through a revocation, or is partitioned from the other nodes, with verifications
    /// in its sockets: none that began after the 202 may be accepted
    Resume {
        #[command(flatten)]
        place: members::ClusterArgs,
        #[command(flatten)]
        plan: resume::Plan,
    },
    /// All nodes killed right after the 202 of a revocation, which must still apply
    Together {
        #[command(flatten)]
        place: members::ClusterArgs,
        #[command(flatten)]
        plan: together::Plan,
    },
    /// One execution-scoped token presented to all nodes at once, while the leader is killed now and then:
    /// exactly one accepts it
    Race {
        #[command(flatten)]
        place: members::ClusterArgs,
        #[command(flatten)]
        plan: race::Plan,
    },
    /// Two or three regions: agents of the first work in the others, are revoked at home, and are refused there
    ///
    /// The other regions read the ledger of the first over a TCP proxy of the bench, which delays and cuts. A part
    /// runs if its option is given. The time of a revocation counts from its 202 until the last running node of the
    /// other regions refuses the agent's token, and from the due time of the request. Exits with 1 if a node accepts
    /// a token after it has refused it.
    Federation {
        #[command(flatten)]
        place: members::ClusterArgs,
        #[command(flatten)]
        plan: federation::Plan,
    },
    /// A TCP proxy between regions that run, which delays and loses, until SIGTERM or SIGINT
    ///
    /// Its end cuts the link: open connections end and new ones are refused. SIGSTOP makes it silent: connections
    /// stay open and nothing arrives, until SIGCONT.
    Link {
        #[command(flatten)]
        plan: link::Plan,
    },
    /// Durable writes at 1, 64 and 512 clients, beside three members of etcd over gRPC, in turns
    Writes {
        #[command(flatten)]
        place: members::ClusterArgs,
        #[command(flatten)]
        plan: writes::Plan,
    },
    /// Exchanges or verifications per second at one, two and three nodes, each capped at a part of a core; needs root
    Scaling {
        #[command(flatten)]
        place: members::ClusterArgs,
        #[command(flatten)]
        plan: scaling::Plan,
    },
}

/// The allocator of the product, for the floor server.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match run(&Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("something was accepted that must not be, or failed inside the node");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(command: &Command) -> Result<bool> {
    raise_descriptors()?;
    match command {
        Command::Attacks { start, only, rate } => {
            attackers()?.block_on(attacks::run(start, only.as_deref(), *rate))
        }
        Command::Connections { start, plain_connections, stalled, rate } => {
            attackers()?.block_on(connections::run(start, *plain_connections, *stalled, *rate))
        }
        Command::Overload { start, load } => generator(load.cores)?.block_on(overload::run(start, *load)),
        Command::Exchange { start, plan } => {
            generator(plan.cores)?.block_on(uninterrupted(exchange::run(start, plan)))
        }
        Command::Floor { config } => {
            let config = serde_json::from_slice(&std::fs::read(config)?)?;
            Builder::new_multi_thread().enable_all().build()?.block_on(floor::serve(config))?;
            Ok(true)
        }
        Command::Tools { start, cores, size } => {
            generator(*cores)?.block_on(tools::run(start, *cores, *size))
        }
        Command::Revocations { start, cores, size } => {
            generator(*cores)?.block_on(revocations::run(start, *cores, *size))
        }
        Command::Full { start, cores, size } => generator(*cores)?.block_on(full::run(start, *cores, *size)),
        Command::Signals { start, cores, seconds, rate } => {
            generator(*cores)?.block_on(signals::run(start, *cores, *seconds, *rate))
        }
        Command::Feed { start, cores, size } => generator(*cores)?.block_on(feed::run(start, *cores, *size)),
        Command::Streams { start, cores, size } => {
            generator(*cores)?.block_on(streams::run(start, *cores, *size))
        }
        Command::Verify { start, plan } => {
            generator(plan.cores)?.block_on(uninterrupted(verify::run(start, plan)))
        }
        Command::Failover { place, plan } => clients()?.block_on(uninterrupted(failover::run(place, plan))),
        Command::Rolling { place, plan } => clients()?.block_on(uninterrupted(rolling::run(place, plan))),
        Command::Replace { place, plan } => clients()?.block_on(uninterrupted(replace::run(place, plan))),
        Command::Join { place, plan } => clients()?.block_on(uninterrupted(join::run(place, plan))),
        Command::Handover { place, plan } => clients()?.block_on(uninterrupted(handover::run(place, plan))),
        Command::Snapshots { place, plan } => clients()?.block_on(uninterrupted(snapshots::run(place, plan))),
        Command::Resume { place, plan } => clients()?.block_on(uninterrupted(resume::run(place, plan))),
        Command::Together { place, plan } => clients()?.block_on(uninterrupted(together::run(place, plan))),
        Command::Race { place, plan } => clients()?.block_on(uninterrupted(race::run(place, plan))),
        Command::Federation { place, plan } => {
            clients()?.block_on(uninterrupted(federation::run(place, plan)))
        }
        Command::Link { plan } => clients()?.block_on(link::run(plan, told_to_end())),
        Command::Writes { place, plan } => {
            let (runtime, cores) = generator_apart()?;
            runtime.block_on(uninterrupted(writes::run(place, plan, cores)))
        }
        Command::Scaling { place, plan } => clients()?.block_on(uninterrupted(scaling::run(place, plan))),
    }
}

/// One thread on any core: the nodes share the machine.
fn clients() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Ends at SIGINT and SIGTERM, so that started processes are stopped.
async fn uninterrupted(measuring: impl Future<Output = Result<bool>>) -> Result<bool> {
    tokio::select! {
        outcome = measuring => outcome,
        reason = told_to_end() => bail!("{}", reason?),
    }
}

/// Waits for SIGINT or SIGTERM.
async fn told_to_end() -> Result<&'static str> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => Ok("interrupted"),
        _ = terminate.recv() => Ok("terminated"),
    }
}

/// The node inherits the limit.
fn raise_descriptors() -> Result<()> {
    let now = getrlimit(Resource::Nofile);
    let wanted = |most: u64| Rlimit { current: Some(most), maximum: Some(most) };
    let most = now.maximum.unwrap_or(DESCRIPTORS);
    // Only root may raise the hard limit; else up to that limit.
    if most < DESCRIPTORS && setrlimit(Resource::Nofile, wanted(DESCRIPTORS)).is_ok() {
        return Ok(());
    }
    setrlimit(Resource::Nofile, wanted(most)).context("raise the limit of open files")
}

fn attackers() -> Result<Runtime> {
    // Without the right to, they do not yield.
    let yielding = || {
        let _ = setpriority_process(None, ATTACKER_NICENESS);
    };
    Ok(Builder::new_multi_thread().worker_threads(2).on_thread_start(yielding).enable_all().build()?)
}

/// One thread on one core: a generator that migrates measures itself.
fn generator(cores: Cores) -> Result<Runtime> {
    let mut one = CpuSet::new();
    one.set(cores.generator_core);
    sched_setaffinity(None, &one).context("run on the generator's core")?;
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// With more than two cores, a quarter of them for the generator, and the others for what this thread starts. Returns the
/// number of the generator's own cores.
fn generator_apart() -> Result<(Runtime, usize)> {
    let all = sched_getaffinity(None)?;
    let mut cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core)).collect();
    if cores.len() <= 2 {
        return Ok((clients()?, 0));
    }
    let own = cores.split_off(cores.len() - cores.len().div_ceil(4));
    let of = |cores: &[usize]| {
        let mut set = CpuSet::new();
        for core in cores {
            set.set(*core);
        }
        set
    };
    sched_setaffinity(None, &of(&cores)).context("leave the cores of the generator")?;
    let (set, workers) = (of(&own), own.len());
    let pinned = move || {
        // The affinity is that of cores that this process may use.
        let _ = sched_setaffinity(None, &set);
    };
    let runtime =
        Builder::new_multi_thread().worker_threads(workers).on_thread_start(pinned).enable_all().build()?;
    Ok((runtime, workers))
}
