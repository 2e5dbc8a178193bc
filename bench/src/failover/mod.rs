//! `bench failover`: a fixed rate of requests to all nodes while the leader is repeatedly killed, paused or
//! partitioned.
//!
//! Open loop: a request is due whether or not those before it were answered. Its latency counts from its due
//! time, over all tries. [`history::Gap`] defines the gap of a fault.

mod conduct;
mod history;
mod page;
mod result;
mod seconds;
mod traffic;
mod view;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::health::{Health, View};
use crate::members::ClusterArgs;
use history::Kind;
use seconds::{Cell, Second};
use traffic::{Rates, Traffic};

/// Maximum wait for all nodes to be healthy, at the start and after each fault.
pub const READY_TIMEOUT: Duration = Duration::from_secs(90);
/// Duration of the load before the first and after the last fault.
const CALM: Duration = Duration::from_secs(3);

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
    let mut members = place.members()?;
    let health = Health::of(&members).await?;
    let traffic = Arc::new(Traffic::new(&members, plan.rates)?);
    traffic.prepare().await?;

    let (stop, stopped) = watch::channel(false);
    let (told, round) = watch::channel(String::new());
    let mut beside = JoinSet::new();
    beside.spawn(record_leaders(Arc::clone(&traffic), health.changes()));
    beside.spawn(show(Arc::clone(&traffic), round));
    let load = tokio::spawn(Arc::clone(&traffic).run(stopped));

    tokio::time::sleep(CALM).await;
    let conducted = conduct::rounds(plan, &mut members, &health, &traffic, &told).await;
    tokio::time::sleep(CALM).await;
    {
        let end = traffic.now();
        let mut history = traffic.history();
        history.end = end;
        for fault in &mut history.faults {
            fault.well_at = fault.well_at.min(end);
        }
    }
    stop.send(true).context("the load has ended early")?;
    load.await??;
    drop(beside);

    let looked = match conducted {
        Ok(()) => result::look(&health, &traffic).await,
        Err(error) => Err(error),
    };
    members.still_run()?;
    result::write(plan, members.count(), &traffic, looked)
}

async fn record_leaders(traffic: Arc<Traffic>, mut views: watch::Receiver<View>) {
    loop {
        let leader = views.borrow_and_update().leader();
        let now = traffic.now();
        {
            let mut history = traffic.history();
            if history.leaders.last().is_none_or(|(_, last)| *last != leader) {
                history.leaders.push((now, leader));
            }
        }
        if views.changed().await.is_err() {
            return;
        }
    }
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
