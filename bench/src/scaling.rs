//! `bench scaling`: exchanges or verifications per second at one, two and three nodes of one cluster. Each node may use
//! only a part of one core, so that the machine has capacity for all and for the generator.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;

use crate::cap::Cap;
use crate::client;
use crate::credentials::{self, PreparedRequests};
use crate::health::Health;
use crate::load::{self, Tally, Write, quantile_ms};
use crate::members::{ClusterArgs, Members};
use crate::node::cpu_secs;
use crate::registry::{self, Draws};
use crate::report::{Report, ms};
use crate::window::middle;
use crate::wire::{self, Target};

/// Upper bound of exchanges per second and capped node.
const PER_SEC_MAX: u64 = 6000;
/// Distinct tokens of the verifications.
const TOKENS: u64 = 16;

#[derive(clap::Args, Clone)]
pub struct Plan {
    /// Thousandths of one core per node
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    cap: u64,
    /// Connections per node
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Verify calls of so many tools, instead of exchanging
    #[arg(long, value_name = "TOOLS", value_parser = clap::value_parser!(u64).range(1..))]
    verify: Option<u64>,
    /// Also write the result to this file
    #[arg(long)]
    output: Option<PathBuf>,
}

impl Plan {
    const fn caller(&self) -> &'static str {
        if self.verify.is_some() { "gateway" } else { "workload" }
    }
}

pub async fn run(place: &ClusterArgs, plan: &Plan) -> Result<bool> {
    let members = place.members()?;
    let health = Health::of(&members).await?;
    let targets = members.targets(plan.caller())?;
    if let (Some(tools), Some(first)) = (plan.verify, targets.first()) {
        eprintln!("{tools} tools are registered");
        registry::register(first, 0, tools).await?;
    }
    let pids = (0..members.count()).map(|node| members.pid(node)).collect::<Result<Vec<_>>>()?;
    let caps = pids
        .iter()
        .enumerate()
        .map(|(node, pid)| Cap::new(&format!("node-{}", node + 1), plan.cap, &[*pid]))
        .collect::<Result<Vec<_>>>()?;
    let requests = plan.verify.map_or_else(
        || "exchange has a credential that was never used".to_owned(),
        |tools| format!("verification is about one of {tools} tools, with a token that was seen before"),
    );
    let mut report = Report::new("One, two and three nodes");
    report.line(&format!(
        "One cluster of {}; each node may use {:.2} of a core. Closed loop over {} connections to each node that is\n\
         asked; the others are idle but for the log. Every {requests}.\n",
        members.count(),
        load::as_f64(plan.cap) / 1000.0,
        plan.connections
    ));
    report.table(&[
        "nodes asked",
        "round",
        "answers in a second",
        "p50",
        "p99",
        "generator busy",
        "other answers",
    ]);
    let mut load = Load { members: &members, targets, plan, draws: Draws::default(), first: 1 << 33 };
    // Warm-up.
    load.measure(members.count()).await?;
    let mut rates = vec![Vec::new(); members.count()];
    // In turns, so that other load on the machine affects all alike.
    for round in 1..=plan.rounds {
        for asked in 1..=members.count() {
            let before = cpu_secs("self")?;
            let all = load.measure(asked).await?;
            let busy = 100.0 * (cpu_secs("self")? - before) / all.elapsed.as_secs_f64();
            let good = all.since_sent.get(&200);
            report.row(&[
                asked.to_string(),
                round.to_string(),
                format!("{:.0}", all.per_sec(200)),
                ms(quantile_ms(good, 0.5)),
                ms(quantile_ms(good, 0.99)),
                format!("{busy:.0} %"),
                (all.total() - all.count(200)).to_string(),
            ]);
            report.fail(all.server_errors());
            rates[asked - 1].push(all.per_sec(200));
        }
    }
    let medians: Vec<_> = rates.into_iter().map(middle).collect();
    report.line("");
    report.table(&["nodes asked", "answers in a second, median", "beside one"]);
    for (place, median) in medians.iter().enumerate() {
        report.row(&[
            (place + 1).to_string(),
            format!("{median:.0}"),
            format!("{:.2} ×", median / medians[0].max(1.0)),
        ]);
    }
    drop((caps, health));
    report.finish(plan.output.as_deref())
}

/// Exchanges with distinct credentials, or verifications.
struct Load<'m> {
    members: &'m Members,
    targets: Vec<Target>,
    plan: &'m Plan,
    draws: Draws,
    /// The number of the next credential.
    first: u64,
}

impl Load<'_> {
    /// Requests at so many nodes at once.
    async fn measure(&mut self, asked: usize) -> Result<Tally> {
        let Plan { connections, seconds, .. } = *self.plan;
        let targets = self.targets[..asked].to_vec();
        let mut writes = Vec::new();
        for target in targets {
            let write = match self.plan.verify {
                Some(tools) => {
                    let tokens = Arc::new(self.tokens().await?);
                    registry::verify(&self.draws, &target.host, tools, tokens)
                }
                None => self.exchanges(&target.host)?,
            };
            writes.push((target, write));
        }
        let mut loops = JoinSet::new();
        for (target, write) in writes {
            let duration = Duration::from_secs(seconds);
            loops.spawn(async move { load::closed_loop(&target, &write, connections, duration).await });
        }
        let mut all = Tally::new();
        while let Some(tally) = loops.join_next().await {
            let tally = tally??;
            all.elapsed = all.elapsed.max(tally.elapsed);
            all.add(&tally);
        }
        Ok(all)
    }

    fn exchanges(&mut self, host: &str) -> Result<Write> {
        let count = PER_SEC_MAX * self.plan.seconds * self.plan.cap / 1000;
        let prepared =
            PreparedRequests::new(&self.members.issuer, host, self.first, usize::try_from(count)?)?;
        self.first += count;
        Ok(prepared.into_write())
    }

    /// Minted tokens, which live for minutes.
    async fn tokens(&self) -> Result<Vec<String>> {
        let workload = self.members.targets("workload")?;
        let body = credentials::exchange(&self.members.issuer.credential(0)?);
        let request = wire::request_with("POST", "/v1/exchange/token", "localhost", "", body.as_bytes());
        let mut tokens = Vec::new();
        for _ in 0..TOKENS {
            tokens.push(client::minted(&client::until(&workload, &request, &[200]).await?)?);
        }
        Ok(tokens)
    }
}
