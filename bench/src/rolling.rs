//! `bench rolling`: one node after the other is stopped with SIGTERM and started again under load, if wanted with
//! another program.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tokio::time::sleep;

use crate::members::ClusterArgs;
use crate::report::Report;
use crate::traffic::findings::{self, write_failures, write_promises, write_requests, write_slow_tries};
use crate::traffic::history::Micros;
use crate::traffic::under_load::UnderLoad;
use crate::traffic::{Rates, Traffic};

/// Maximum time for the process of a stopped node to exit: that of the systemd unit.
pub const EXIT_TIMEOUT: Duration = Duration::from_secs(45);

#[derive(clap::Args, Clone)]
pub struct Plan {
    /// Requests per second in all: 56 % verifications, 20 % exchanges, 20 % tool registrations, 4 % signals
    #[arg(long, default_value_t = 500.0)]
    rate: f64,
    /// Restarts of each node
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Further rounds until so many requests were answered
    #[arg(long, default_value_t = 0)]
    requests: usize,
    /// Seconds between a node that is ready again and the next stop
    #[arg(long, default_value_t = 1.0)]
    pause: f64,
    /// The program with which every node is started again: a rolling upgrade
    #[arg(long, value_name = "PATH")]
    program_after: Option<PathBuf>,
    /// Every second round returns to the first program
    #[arg(long, requires = "program_after")]
    back: bool,
    /// Also write the result to this file
    #[arg(long)]
    output: Option<PathBuf>,
}

/// Durations of one restart.
#[derive(Clone, Copy)]
pub struct Restart {
    /// From SIGTERM to the exit of the process.
    pub exited: Duration,
    /// From the start to `/readyz` 200, and the agreement of all nodes on a leader.
    pub ready: Duration,
}

pub async fn run(place: &ClusterArgs, plan: &Plan) -> Result<bool> {
    let members = place.members()?;
    let all: Vec<usize> = (0..members.count()).collect();
    let mut cluster = UnderLoad::start(members, Rates::mixed(plan.rate), all.clone()).await?;
    let mut restarts = Vec::new();
    let mut round = 0;
    while round < plan.rounds || cluster.traffic.history().requests.len() < plan.requests {
        if let Some(after) = &plan.program_after {
            let is_back = plan.back && round % 2 == 1;
            let program = if is_back { place.program.as_ref().context("--program")? } else { after };
            for node in &all {
                cluster.members.set_program(*node, program)?;
            }
        }
        for node in &all {
            let leads = cluster.leader()? == *node;
            let restart = restart(&mut cluster, *node).await.with_context(|| format!("node {}", node + 1))?;
            eprintln!(
                "round {}, node {}{}: exited after {:?}, ready after {:?}",
                round + 1,
                node + 1,
                if leads { ", which led" } else { "" },
                restart.exited,
                restart.ready
            );
            restarts.push(restart);
            sleep(Duration::from_secs_f64(plan.pause)).await;
        }
        round += 1;
    }
    let (members, traffic) = cluster.end().await?;
    let mut report = Report::new("Rolling restart under load");
    report.line(&format!(
        "{} nodes, {} restarts (SIGTERM, exit, start, ready){}; {} requests per second, open loop, at all nodes in\n\
         turn; a request that fails is tried once more on the next node.\n",
        members.count(),
        restarts.len(),
        match (&plan.program_after, plan.back) {
            (None, _) => "",
            (Some(_), false) => " with another program",
            (Some(_), true) => " with another program and back, in turns",
        },
        plan.rate,
    ));
    finish(&mut report, &traffic, true).await?;
    write_restarts(&mut report, &restarts);
    report.finish(plan.output.as_deref())
}

/// Stops a node in order, starts it again, and waits until all nodes are ready.
pub async fn restart(cluster: &mut UnderLoad, node: usize) -> Result<Restart> {
    cluster.fault_begins(node);
    let begun = Instant::now();
    cluster.members.terminate(node)?;
    let code = cluster.members.until_exited(node, EXIT_TIMEOUT).await?;
    if code != Some(0) {
        bail!("it exited with {code:?}");
    }
    let exited = begun.elapsed();
    cluster.until_silent(node).await?;
    let begun = Instant::now();
    cluster.members.start(node)?;
    cluster.until_ready().await?;
    cluster.members.still_run()?;
    Ok(Restart { exited, ready: begun.elapsed() })
}

/// Writes the requests and their outcomes. Failed requests are violations if no failure is allowed.
pub async fn finish(report: &mut Report, traffic: &Traffic, allows_no_failure: bool) -> Result<()> {
    let found = findings::look(traffic).await?;
    let history = traffic.history();
    write_requests(report, &history);
    report.line("");
    let failed = write_failures(report, &history);
    write_slow_tries(report, &history);
    if allows_no_failure {
        report.fail(failed);
    }
    write_promises(report, &history, Some(&found));
    Ok(())
}

/// Median, 99th percentile and maximum of both durations.
pub fn write_restarts(report: &mut Report, restarts: &[Restart]) {
    report.line("");
    report.table(&["restarts", "p50, ms", "p99, ms", "max, ms"]);
    for (name, of) in [
        ("from SIGTERM to the exit", (|restart| restart.exited) as fn(&Restart) -> Duration),
        ("from the start until ready", |restart| restart.ready),
    ] {
        let micros = |restart| Micros::try_from(of(restart).as_micros()).unwrap_or(Micros::MAX);
        let mut values: Vec<_> = restarts.iter().map(micros).collect();
        values.sort_unstable();
        let [p50, p99, max] = findings::quantiles(&values);
        report.row(&[name.to_owned(), p50, p99, max]);
    }
}
