//! `bench join`: a cluster with many tools and revocations. A node is loaded once and saves a backup while it serves;
//! each later run restores that backup, and joins two nodes to the restored one under load.

mod follow;
mod make;
mod result;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::time::sleep;

use self::follow::Joined;
use crate::health::Health;
use crate::members::ClusterArgs;
use crate::node::{bytes_below, memory_kib, reset_peak};
use crate::replace::Change;
use crate::report::{Report, mib};
use crate::traffic::Rates;
use crate::traffic::under_load::UnderLoad;

/// Nodes that join the restored one.
const JOINERS: usize = 2;
/// A restored node refuses credentials that were issued up to 7 s after the last entry of the backup.
const REFUSED_AFTER_RESTORE: Duration = Duration::from_secs(8);

#[derive(clap::Args, Clone)]
pub struct Plan {
    /// The backup to restore. If it does not exist, a node is loaded and saves it; with --keep, the node that an earlier
    /// bench has loaded
    #[arg(long, value_name = "FILE")]
    backup: PathBuf,
    /// Tools of the node that is loaded
    #[arg(long, default_value_t = 1_000_000)]
    tools: u64,
    /// Revocations of the node that is loaded
    #[arg(long, default_value_t = 10_000_000)]
    revocations: u64,
    /// Requests per second in all, in the mix of `rolling`; a client tries until a request succeeds
    #[arg(long, default_value_t = 200.0)]
    rate: f64,
    /// Seconds of the load before the first join, between the joins and after the last one
    #[arg(long, default_value_t = 20)]
    calm: u64,
    /// Also write the result to this file
    #[arg(long)]
    output: Option<PathBuf>,
}

pub async fn run(place: &ClusterArgs, plan: &Plan) -> Result<bool> {
    let mut report = Report::new("A node joins a large cluster");
    if !plan.backup.exists() {
        make::backup(&mut report, place, plan).await?;
    }
    join(&mut report, place, plan).await?;
    report.finish(plan.output.as_deref())
}

async fn join(report: &mut Report, place: &ClusterArgs, plan: &Plan) -> Result<()> {
    // No node is started here: the first one is restored before its start.
    let place = ClusterArgs { nodes: 0, joiners: 1 + JOINERS as u64, keep: false, ..place.clone() };
    let mut members = place.members()?;
    let config = members.place(0)?.join("node.toml");
    let [file, config] = [&plan.backup, &config].map(|path| path.to_str());
    let (file, config) = file.zip(config).context("a path is not UTF-8")?;
    let address = members.peer_address(0)?.to_string();
    let mut rows = vec![("size of the backup, MiB", mib(fs::metadata(file)?.len() / 1024))];
    let begun = Instant::now();
    members.offline(0, &["restore", file, "--config", config, "--address", &address]).await?;
    rows.push(("`restore`, s", secs(begun.elapsed())));
    let begun = Instant::now();
    members.start(0)?;
    drop(Health::at(&members, &[0]).await?);
    rows.push(("from its start until ready, s", secs(begun.elapsed())));
    rows.push(("its data directory then, MiB", mib(bytes_below(&members.place(0)?.join("data"))? / 1024)));
    rows.push(("its memory then, MiB", mib(memory_kib(members.pid(0)?)?.0)));
    for (name, value) in &rows {
        eprintln!("{name}: {value}");
    }
    sleep(REFUSED_AFTER_RESTORE).await;

    let rates = Rates { tries_max: usize::MAX, ..Rates::mixed(plan.rate) };
    let mut change = Change::of(UnderLoad::start(members, rates, vec![0]).await?, vec![0]);
    let calm = Duration::from_secs(plan.calm);
    let mut joined = Vec::new();
    for new in 1..=JOINERS {
        sleep(calm).await;
        reset_peak(change.cluster.members.pid(0)?);
        joined
            .push(Joined::follow(&mut change, new).await.with_context(|| format!("join node {}", new + 1))?);
        change.settle(new).await?;
    }
    sleep(calm).await;
    let (_members, traffic) = change.cluster.end().await?;
    result::write(report, plan, &rows, (&joined, &traffic)).await
}

fn secs(took: Duration) -> String {
    format!("{:.1}", took.as_secs_f64())
}
