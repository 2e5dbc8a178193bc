//! `bench writes`: durable writes beside etcd, in alternating rounds.
//!
//! Both have three members on this machine with their own settings, mutual TLS to clients and between members, and sync
//! every commit on a quorum before it is acknowledged. Clients are a closed loop over persistent connections, spread over
//! all members. A write of ours registers a tool over HTTP: it is parsed, verified, audited and indexed. A write of etcd
//! puts a value of the same size at a key, over gRPC.

mod results;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde_json::json;
use tokio::task::JoinSet;

use crate::credentials::AUDIENCE;
use crate::etcd::{self, Etcd, Put, PutRequest};
use crate::health::Health;
use crate::load::{self, Tally, Write};
use crate::members::ClusterArgs;
use crate::reading::{Files, Meter, Reading};
use crate::wire::Target;
use results::Results;

#[derive(clap::Args, Clone)]
pub struct Plan {
    /// Numbers of clients
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64, 512])]
    clients: Vec<usize>,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Rounds; both take turns in each, and the first one alternates
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// The etcd program, as the Debian package etcd-server installs it (apt-get install etcd-server)
    #[arg(long, default_value = "etcd")]
    etcd: PathBuf,
    /// Clients of etcd that share one connection; the nodes have one connection for each client
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    etcd_clients_per_connection: u64,
    /// Measure these nodes alone
    #[arg(long)]
    without_etcd: bool,
    #[command(flatten)]
    files: Files,
    /// Also write the result to this file
    #[arg(long)]
    output: Option<PathBuf>,
}

impl Plan {
    fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// `cores`: those of the generator alone, if it has some.
pub async fn run(place: &ClusterArgs, plan: &Plan, cores: usize) -> Result<bool> {
    let members = place.members()?;
    let health = Health::of(&members).await?;
    let pki = place.dir.canonicalize()?.join("pki");
    let etcd = if plan.without_etcd { None } else { Some(Etcd::start(&plan.etcd, &place.dir, &pki).await?) };
    let run = format!("{:x}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis());
    let targets = members.targets("gateway")?;
    let pids: Vec<u32> = (0..members.count()).filter_map(|node| members.pid(node).ok()).collect();
    let mut results = Results::new(plan, cores);
    for round in 1..=plan.rounds {
        for &clients in &plan.clients {
            results.progress(round, clients);
            let prefix = format!("w{run}-{clients}-{round}");
            let (mut ours, mut theirs) = (None, None);
            // The order alternates.
            for turn in 0..2 {
                if (round + turn) % 2 == 0 {
                    ours = Some(registered(&targets, &pids, &prefix, clients, plan.duration()).await?);
                } else if let Some(etcd) = &etcd {
                    theirs = Some(put(etcd, plan, &prefix, clients).await?);
                }
            }
            if let Some(ours) = ours {
                results.add(round, clients, ours, theirs);
            }
        }
    }
    drop(health);
    results.finish(plan)
}

async fn put(etcd: &Etcd, plan: &Plan, prefix: &str, clients: usize) -> Result<Reading> {
    let prefix = prefix.to_owned();
    let write: Put = Arc::new(move |number| PutRequest {
        key: tool_id(&prefix, number).into_bytes(),
        value: entry(&prefix, number).into_bytes(),
    });
    let pids = etcd.pids();
    let share = usize::try_from(plan.etcd_clients_per_connection)?;
    let channels = etcd.connections(clients, share).await?;
    let meter = Meter::start(&pids)?;
    let tally = etcd::closed_loop(&channels, &write, clients, plan.duration()).await?;
    meter.read(tally, etcd::GOOD)
}

async fn registered(
    targets: &[Target],
    pids: &[u32],
    prefix: &str,
    clients: usize,
    duration: Duration,
) -> Result<Reading> {
    let mut opened = Vec::new();
    for (place, target) in targets.iter().enumerate() {
        let share = clients / targets.len() + usize::from(place < clients % targets.len());
        opened.push(load::open(target, share).await?);
    }
    let meter = Meter::start(pids)?;
    let mut loops = JoinSet::new();
    for ((place, target), opened) in (0..).zip(targets).zip(opened) {
        let (target, write) = (target.clone(), registrations(prefix, place));
        loops.spawn(async move { load::closed_loop_over(opened, &target, &write, duration, u64::MAX).await });
    }
    let mut all = Tally::new();
    while let Some(tally) = loops.join_next().await {
        let tally = tally??;
        all.elapsed = all.elapsed.max(tally.elapsed);
        all.add(&tally);
    }
    meter.read(all, 201)
}

/// Registrations with other numbers at each node.
fn registrations(prefix: &str, place: u64) -> Write {
    let prefix = prefix.to_owned();
    Arc::new(move |number, request| {
        let body = entry(&prefix, place << 40 | number);
        *request = crate::wire::request_with("POST", "/v1/tools", "localhost", "", body.as_bytes());
    })
}

fn tool_id(prefix: &str, number: u64) -> String {
    format!("{prefix}-{number:016}")
}

fn entry(prefix: &str, number: u64) -> String {
    json!({
        "tool_id": tool_id(prefix, number),
        "name": format!("Reports of shard {number}"),
        "resource_uri": AUDIENCE,
        "required_capabilities": ["db.read"],
        "version": "1.4.0",
    })
    .to_string()
}
