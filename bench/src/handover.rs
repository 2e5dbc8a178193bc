//! `bench handover`: planned changes of the leader under writes: a restart with SIGTERM, and `cluster transfer`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::sleep;

use crate::members::ClusterArgs;
use crate::report::Report;
use crate::rolling::{finish, restart, write_restarts};
use crate::traffic::Rates;
use crate::traffic::findings::{quantiles, write_gaps};
use crate::traffic::history::{Micros, quantile};
use crate::traffic::under_load::UnderLoad;

/// Targets for the gap of writes: percentile and milliseconds.
const GAP_MS: [(usize, Micros); 2] = [(50, 50), (100, 300)];

/// The event of each third of the rounds.
const KINDS: [&str; 3] =
    ["SIGTERM of the leader, restart", "`cluster transfer`", "no change: `cluster members`"];

#[derive(clap::Args, Clone)]
pub struct Plan {
    /// Changes of the leader of each kind
    #[arg(long, default_value_t = 30)]
    rounds: usize,
    /// Tool registrations per second
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// Seconds between nodes that are ready and the next change
    #[arg(long, default_value_t = 1.0)]
    pause: f64,
    /// Also write the result to this file
    #[arg(long)]
    output: Option<PathBuf>,
}

pub async fn run(place: &ClusterArgs, plan: &Plan) -> Result<bool> {
    let members = place.members()?;
    let all = (0..members.count()).collect();
    let mut cluster = UnderLoad::start(members, Rates::writes(plan.rate), all).await?;
    let pause = Duration::from_secs_f64(plan.pause);
    let mut restarts = Vec::new();
    for round in 1..=plan.rounds {
        let leader = cluster.leader()?;
        restarts.push(restart(&mut cluster, leader).await.with_context(|| format!("in round {round}"))?);
        eprintln!("round {round} of {}: node {} restarted", plan.rounds, leader + 1);
        sleep(pause).await;
    }
    for round in 1..=plan.rounds {
        let leader = cluster.leader()?;
        cluster.fault_begins(leader);
        let said = cluster.members.administer(leader, &["cluster", "transfer"]).await?;
        cluster.until_another_leads(leader).await?;
        cluster.until_ready().await?;
        eprintln!("round {round} of {}: {}", plan.rounds, said.trim());
        sleep(pause).await;
    }
    for _ in 0..plan.rounds {
        let leader = cluster.leader()?;
        cluster.fault_begins(leader);
        cluster.members.administer(leader, &["cluster", "members"]).await?;
        sleep(pause).await;
    }
    let (members, traffic) = cluster.end().await?;
    let mut report = Report::new("Planned changes of the leader");
    report.line(&format!(
        "{} nodes; {} tool registrations per second, open loop, at all nodes in turn. Gaps in milliseconds.\n",
        members.count(),
        plan.rate,
    ));
    report.table(&["gap of acknowledged writes", "changes", "p50", "p99", "max", "p50 ≤ 50, max ≤ 300"]);
    {
        let history = traffic.history();
        for (place, name) in KINDS.iter().enumerate() {
            let gaps = write_gaps(&history, place * plan.rounds..(place + 1) * plan.rounds);
            let is_met = GAP_MS
                .iter()
                .all(|(percent, most)| quantile(&gaps, *percent).is_some_and(|gap| gap <= most * 1000));
            let [p50, p99, max] = quantiles(&gaps);
            let is_met = if is_met { "yes" } else { "NO" };
            report.row(&[(*name).to_owned(), gaps.len().to_string(), p50, p99, max, is_met.to_owned()]);
        }
        report.line(&format!(
            "\nThe last row is the noise of this machine: the same load and a command that changes nothing. The\n\
             resolution is the time between two writes, {:.0} ms.\n",
            1000.0 / plan.rate,
        ));
    }
    finish(&mut report, &traffic, true).await?;
    write_restarts(&mut report, &restarts);
    report.finish(plan.output.as_deref())
}
