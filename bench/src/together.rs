//! `bench together`: all nodes are killed right after a revocation was acknowledged; it must still apply
//! after their restart.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::client::Client;
use crate::health::{Health, View};
use crate::members::{ClusterArgs, Members};
use crate::report::Report;

/// Maximum wait for all nodes.
const READY_TIMEOUT: Duration = Duration::from_secs(90);

#[derive(clap::Args, Clone)]
pub struct Plan {
    /// Rounds
    #[arg(long, default_value_t = 50)]
    rounds: u64,
    /// Also write the result to this file
    #[arg(long)]
    output: Option<PathBuf>,
}

pub async fn run(place: &ClusterArgs, plan: &Plan) -> Result<bool> {
    let mut members = place.members()?;
    let health = Health::of(&members).await?;
    let client = Client::new(&members)?;
    client.register(false).await?;
    let mut report = Report::new("All nodes killed right after a revocation was acknowledged");
    let (mut held, mut slowest) = (0, Duration::ZERO);
    for number in 0..plan.rounds {
        let (refusals, killed_after) = one(number, &client, &mut members, &health)
            .await
            .with_context(|| format!("in round {}", number + 1))?;
        slowest = slowest.max(killed_after);
        let is_revoked = refusals == members.count();
        held += u64::from(is_revoked);
        eprintln!("round {} of {}: refused by {refusals} nodes", number + 1, plan.rounds);
        if !is_revoked {
            report.line(&format!("- round {}: refused by {refusals} nodes only", number + 1));
        }
    }
    report.line(&format!(
        "- still revoked, on each of {} nodes: {held} of {}\n- the last kill at most {:.1} ms after the 202",
        members.count(),
        plan.rounds,
        slowest.as_secs_f64() * 1000.0
    ));
    report.fail(plan.rounds - held);
    report.finish(plan.output.as_deref())
}

/// Number of nodes that refuse the token after the restart, and the time from the 202 to the last kill.
async fn one(
    number: u64,
    client: &Client,
    members: &mut Members,
    health: &Health,
) -> Result<(usize, Duration)> {
    let account = client.account(number);
    let token = client.token(&account, number).await?;
    let nodes: Vec<_> = (0..members.count()).collect();
    let mut place = number << 20;
    let mut next = || {
        place += 1;
        client.verification(&token, place, None)
    };
    if !client.eventual_verdict(0, &next()).await? {
        bail!("the token is refused before it was revoked");
    }
    // Nodes take turns in acknowledging.
    let first = usize::try_from(number)? % nodes.len();
    client.revoke(&account, &[first]).await?;
    let acknowledged = Instant::now();
    for node in &nodes {
        members.kill(*node)?;
    }
    let killed_after = acknowledged.elapsed();
    let is_silent = |view: &View| view.0.iter().all(Option::is_none);
    health.until("a killed node still answered", READY_TIMEOUT, is_silent).await?;
    for node in &nodes {
        members.start(*node)?;
    }
    // Verified before they are ready too: no node may accept it meanwhile.
    let mut refusals = 0;
    for node in &nodes {
        refusals += usize::from(!client.eventual_verdict(*node, &next()).await?);
    }
    health.until("not all nodes were ready", READY_TIMEOUT, View::is_ready).await?;
    let mut still = 0;
    for node in &nodes {
        still += usize::from(!client.eventual_verdict(*node, &next()).await?);
    }
    Ok((refusals.min(still), killed_after))
}
