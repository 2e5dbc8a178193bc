//! `bench writes`: durable writes per second, beside etcd, in turns.
//!
//! Both have three members on this machine with their own settings, and sync every commit on a quorum before
//! it is acknowledged. Clients are a closed loop over persistent connections, spread over all members. A
//! write of ours registers a tool over TLS with client certificates: it is parsed, verified, audited and
//! indexed. A write of etcd puts a value of the same size at a key, over HTTP without TLS through its JSON
//! gateway, which is in the same process and costs it some processor time; etcd's own gRPC clients are
//! faster.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde_json::json;
use tokio::task::JoinSet;

use crate::credentials::AUDIENCE;
use crate::etcd::{self, Etcd};
use crate::health::Health;
use crate::load::{self, Tally, Write, quantile_ms};
use crate::members::{ClusterArgs, Members};
use crate::node::cpu_secs;
use crate::report::{Report, ms};
use crate::wire::Target;

#[derive(clap::Args, Clone)]
pub struct Plan {
    /// Numbers of clients
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64, 1024])]
    clients: Vec<usize>,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Rounds; both take turns in each
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// The etcd program, as the Debian package etcd-server installs it (apt-get install etcd-server)
    #[arg(long, default_value = "etcd")]
    etcd: PathBuf,
    /// Measure these nodes alone
    #[arg(long)]
    without_etcd: bool,
    /// Also write the result to this file
    #[arg(long)]
    output: Option<PathBuf>,
}

pub async fn run(place: &ClusterArgs, plan: &Plan) -> Result<bool> {
    let etcd = if plan.without_etcd { None } else { Some(Etcd::start(&plan.etcd, &place.dir).await?) };
    let members = place.members()?;
    let health = Health::of(&members).await?;
    let run = format!("{:x}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis());
    let mut report = Report::new("Durable writes beside etcd");
    report.line(&format!(
        "Closed loop for {} s; writes in a second, times in milliseconds, processor time of all three members.\n",
        plan.seconds
    ));
    report.table(&[
        "clients",
        "round",
        "system",
        "writes",
        "p50",
        "p99",
        "µs each",
        "answers by status",
        "beside etcd",
    ]);
    for clients in &plan.clients {
        for round in 1..=plan.rounds {
            let beside = match &etcd {
                None => None,
                Some(etcd) => {
                    let write = puts(&run, *clients, round);
                    let pids = etcd.pids();
                    let (tally, cpu) = measure(&etcd.targets, &pids, &write, *clients, plan.seconds).await?;
                    write_row(&mut report, (*clients, round, "etcd"), (&tally, cpu), 200, None);
                    Some(tally.per_sec(200))
                }
            };
            let write = registrations(&run, *clients, round);
            let targets = members.targets("gateway")?;
            let (tally, cpu) = measure(&targets, &pids(&members), &write, *clients, plan.seconds).await?;
            write_row(&mut report, (*clients, round, "trust-fabric"), (&tally, cpu), 201, beside);
            report.fail(tally.server_errors());
        }
    }
    drop(health);
    report.finish(plan.output.as_deref())
}

/// The started processes.
fn pids(members: &Members) -> Vec<u32> {
    (0..members.count()).filter_map(|node| members.pid(node).ok()).collect()
}

/// All clients at once, spread over the targets; and the processor time.
async fn measure(
    targets: &[Target],
    pids: &[u32],
    write: &Write,
    clients: usize,
    seconds: u64,
) -> Result<(Tally, f64)> {
    let used = || pids.iter().map(|pid| cpu_secs(&pid.to_string())).sum::<Result<f64>>();
    let before = used()?;
    let mut loops = JoinSet::new();
    for (place, target) in targets.iter().enumerate() {
        let share = clients / targets.len() + usize::from(place < clients % targets.len());
        let (target, write) = (target.clone(), numbered(write, place as u64));
        if share > 0 {
            loops.spawn(async move {
                load::closed_loop(&target, &write, share, Duration::from_secs(seconds)).await
            });
        }
    }
    let mut all = Tally::new();
    while let Some(tally) = loops.join_next().await {
        let tally = tally??;
        all.elapsed = all.elapsed.max(tally.elapsed);
        all.add(&tally);
    }
    Ok((all, used()? - before))
}

/// The same requests with other numbers for each target.
fn numbered(write: &Write, place: u64) -> Write {
    let write = Arc::clone(write);
    Arc::new(move |number, request| write(place << 40 | number, request))
}

fn registrations(run: &str, clients: usize, round: u64) -> Write {
    let prefix = format!("w{run}-{clients}-{round}");
    Arc::new(move |number, request| {
        *request = crate::wire::request_with(
            "POST",
            "/v1/tools",
            "localhost",
            "",
            entry(&prefix, number).as_bytes(),
        );
    })
}

fn puts(run: &str, clients: usize, round: u64) -> Write {
    let prefix = format!("w{run}-{clients}-{round}");
    Arc::new(move |number, request| {
        *request = etcd::put(&format!("{prefix}-{number:016}"), entry(&prefix, number).as_bytes());
    })
}

fn entry(prefix: &str, number: u64) -> String {
    json!({
        "tool_id": format!("{prefix}-{number:016}"),
        "name": format!("Reports of shard {number}"),
        "resource_uri": AUDIENCE,
        "required_capabilities": ["db.read"],
        "version": "1.4.0",
    })
    .to_string()
}

fn write_row(
    report: &mut Report,
    (clients, round, who): (usize, u64, &str),
    (tally, cpu): (&Tally, f64),
    good: u16,
    etcd: Option<f64>,
) {
    let latencies = tally.since_sent.get(&good);
    report.row(&[
        clients.to_string(),
        round.to_string(),
        who.to_owned(),
        format!("{:.0}", tally.per_sec(good)),
        ms(quantile_ms(latencies, 0.5)),
        ms(quantile_ms(latencies, 0.99)),
        format!("{:.0}", 1e6 * cpu / load::as_f64(tally.count(good).max(1))),
        tally.statuses(),
        etcd.map_or_else(String::new, |etcd| format!("{:.2} ×", tally.per_sec(good) / etcd.max(1.0))),
    ]);
}
