//! `bench failover`: a fixed rate of requests to all nodes while the leader is repeatedly killed, paused or
//! partitioned.
//!
//! Open loop: a request is due whether or not those before it were answered. Its latency counts from its due
//! time, over all tries. [`crate::traffic::history::Gap`] defines the gap of a fault.

mod conduct;
mod page;
mod result;
mod seconds;
mod view;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use tokio::sync::watch;

use crate::members::ClusterArgs;
use crate::traffic::history::Kind;
use crate::traffic::under_load::UnderLoad;
use crate::traffic::{Rates, Traffic, findings};
use seconds::{Cell, Second};

/// Fault of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FaultKind {
    /// kill -9, and a restart
    Kill,
    /// SIGSTOP, and SIGCONT later
    Pause,
    /// Network partition from the other nodes while clients still reach it; needs --hosts
    Cut,
    /// No fault
    None,
}

/// Faults and outputs.
#[derive(clap::Args, Clone)]
pub struct Plan {
    /// Fault of the leader
    #[arg(long, value_enum, default_value_t = FaultKind::Kill)]
    fault: FaultKind,
    /// Number of faults
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Seconds from one fault to the next; more if the nodes are not healthy by then
    #[arg(long, default_value_t = 5.0)]
    interval: f64,
    /// Seconds for which the leader is down, paused or partitioned
    #[arg(long, default_value_t = 1.5)]
    down: f64,
    #[command(flatten)]
    rates: Rates,
    /// Also write the result to this file, as Markdown
    #[arg(long)]
    output: Option<PathBuf>,
    /// Write all records to this file, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draw the run into this file, as one HTML page
    #[arg(long)]
    html: Option<PathBuf>,
}

pub async fn run(place: &ClusterArgs, plan: &Plan) -> Result<bool> {
    let members = place.members()?;
    let all = (0..members.count()).collect();
    let mut cluster = UnderLoad::start(members, plan.rates, all).await?;
    let (told, round) = watch::channel(String::new());
    cluster.beside(show(Arc::clone(&cluster.traffic), round));
    let conducted = conduct::rounds(plan, &mut cluster, &told).await;
    let (members, traffic) = cluster.end().await?;
    let looked = match conducted {
        Ok(()) => findings::look(&traffic).await,
        Err(error) => Err(error),
    };
    result::write(plan, members.count(), &traffic, looked)
}

async fn show(traffic: Arc<Traffic>, round: watch::Receiver<String>) {
    let mut view = view::View::new();
    let mut every = tokio::time::interval(Duration::from_secs(1));
    every.tick().await;
    let mut seen = 0;
    loop {
        every.tick().await;
        let second = {
            let history = traffic.history();
            let new = history.requests.get(seen..).unwrap_or_default();
            seen = history.requests.len();
            let kinds = Kind::ALL.map(|kind| Cell::of(new.iter().filter(|request| request.kind == kind)));
            Second { kinds, leader: history.leaders.last().and_then(|(_, leader)| *leader) }
        };
        view.show(second, &round.borrow());
    }
}
