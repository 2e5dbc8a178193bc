//! `bench race`: one execution-scoped token is presented to all nodes at once; exactly one may accept it.
//!
//! A presentation to a node that was killed is retried at the next one with the same `Idempotency-Key`: it is
//! the same presentation and has the same response. So each round has as many presentations as nodes, each with
//! one response, of which exactly one accepts.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::client::Client;
use crate::health::{Health, View};
use crate::members::{ClusterArgs, Members};
use crate::report::Report;

/// Maximum wait for another leader, and for all nodes to be ready again.
const READY_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum time for one presentation.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);

#[derive(clap::Args, Clone)]
pub struct Plan {
    /// Rounds, each with its own token
    #[arg(long, default_value_t = 10_000)]
    rounds: u64,
    /// Concurrent rounds
    #[arg(long, default_value_t = 8)]
    at_once: u64,
    /// Seconds between two kills of the leader; 0: never
    #[arg(long, default_value_t = 15.0)]
    kill_every: f64,
    /// Also write the result to this file
    #[arg(long)]
    output: Option<PathBuf>,
}

/// Counts of round results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RoundCounts {
    /// Exactly one acceptance.
    once: u64,
    /// None, although every presentation was answered.
    never: u64,
    /// More than one.
    more: u64,
    /// No acceptance, and a presentation without a response.
    unknown: u64,
}

impl RoundCounts {
    fn add(&mut self, verdicts: &[Option<bool>]) {
        let accepted = verdicts.iter().filter(|verdict| **verdict == Some(true)).count();
        match accepted {
            0 if verdicts.contains(&None) => self.unknown += 1,
            0 => self.never += 1,
            1 => self.once += 1,
            _ => self.more += 1,
        }
    }
}

pub async fn run(place: &ClusterArgs, plan: &Plan) -> Result<bool> {
    let mut members = place.members()?;
    let health = Health::of(&members).await?;
    let client = Arc::new(Client::new(&members)?);
    client.register(true).await?;
    let next = Arc::new(AtomicU64::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..plan.at_once {
        let (client, next, rounds) = (Arc::clone(&client), Arc::clone(&next), plan.rounds);
        workers.spawn(async move {
            let mut ends = RoundCounts::default();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= rounds {
                    return anyhow::Ok(ends);
                }
                ends.add(&one(&client, number).await.with_context(|| format!("in round {number}"))?);
                if number.is_multiple_of(500) {
                    eprintln!("round {number} of {rounds}: {ends:?}");
                }
            }
        });
    }
    let begun = Instant::now();
    let mut kills = 0;
    let mut all = RoundCounts::default();
    let racing = async {
        while let Some(ends) = workers.join_next().await {
            let ends = ends??;
            all.once += ends.once;
            all.never += ends.never;
            all.more += ends.more;
            all.unknown += ends.unknown;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        raced = racing => raced?,
        failed = kill(plan.kill_every, &mut members, &health, &mut kills) => failed?,
    }
    let mut report = Report::new("One execution token at all nodes at once");
    report.line(&format!(
        "{} rounds in {:.0} s, {} at once; the leader was killed {kills} times.\n",
        plan.rounds,
        begun.elapsed().as_secs_f64(),
        plan.at_once
    ));
    report.table(&["accepted", "rounds"]);
    for (name, count) in [
        ("exactly once", all.once),
        ("never", all.never),
        ("more than once", all.more),
        ("not at all, with a missing response", all.unknown),
    ] {
        report.row(&[name.to_owned(), count.to_string()]);
    }
    report.fail(all.never + all.more);
    report.finish(plan.output.as_deref())
}

/// Responses to the presentations of one token.
async fn one(client: &Arc<Client>, number: u64) -> Result<Vec<Option<bool>>> {
    let account = client.account(0);
    let token = client.execution_token(&account, number).await?;
    let nodes = client.gateway.len();
    let mut presenting = JoinSet::new();
    for first in 0..nodes {
        let key = format!("{account}-{number}-{first}");
        let request = client.verification(&token, number, Some(&key));
        let client = Arc::clone(client);
        presenting.spawn(async move {
            let begun = Instant::now();
            let mut node = first;
            loop {
                if let Some(verdict) = client.verdict(node % nodes, &request).await {
                    return Some(verdict);
                }
                if begun.elapsed() > PATIENCE {
                    return None;
                }
                node += 1;
                sleep(PAUSE).await;
            }
        });
    }
    let mut verdicts = Vec::new();
    while let Some(verdict) = presenting.join_next().await {
        verdicts.push(verdict?);
    }
    Ok(verdicts)
}

/// Kills the leader repeatedly; ends only with an error.
async fn kill(every_secs: f64, members: &mut Members, health: &Health, kills: &mut u64) -> Result<()> {
    if every_secs <= 0.0 {
        return std::future::pending().await;
    }
    loop {
        sleep_until(Instant::now() + Duration::from_secs_f64(every_secs)).await;
        let node = health.now().leader().context("no leader")?;
        members.kill(node)?;
        *kills += 1;
        let is_silent = |view: &View| view.0.get(node).is_none_or(Option::is_none);
        health.until("the node still answered", READY_TIMEOUT, is_silent).await?;
        members.start(node)?;
        health.until("not all nodes were ready", READY_TIMEOUT, View::is_ready).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_accepted_twice_or_never_is_reported() {
        let mut ends = RoundCounts::default();
        ends.add(&[Some(true), Some(false), Some(false)]);
        ends.add(&[Some(true), None, Some(false)]);
        ends.add(&[Some(false), None, Some(false)]);
        assert_eq!(ends, RoundCounts { once: 2, unknown: 1, ..RoundCounts::default() });
        ends.add(&[Some(true), Some(false), Some(true)]);
        ends.add(&[Some(false), Some(false), Some(false)]);
        assert_eq!((ends.more, ends.never), (1, 1));
    }
}
