//! `bench resume`: a leader that slept through a revocation, or was partitioned, with verifications in its
//! sockets.
//!
//! Each round opens connections to the leader and stops it (SIGSTOP). Half of the connections get a
//! verification of one workload's token into the sockets of the sleeping process. Another node leads, the
//! workload is revoked there, and after the acknowledgement the other half get theirs. The old leader resumes
//! (SIGCONT) and answers all of them and new ones. A verification that began after the acknowledgement must
//! not be accepted; one that began before may be.
//!
//! With `--fault cut` the leader is partitioned from the other nodes instead, while clients still reach it.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::{Client, verdict};
use crate::health::{Health, View};
use crate::load;
use crate::members::{ClusterArgs, Members};
use crate::report::Report;
use crate::wire::Connection;

/// Maximum wait for another leader, and for the old one to return.
const LEADER_MAX: Duration = Duration::from_secs(90);
/// Maximum wait for queued answers.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Fault that hides the revocation from the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FaultKind {
    /// SIGSTOP, and SIGCONT later
    Pause,
    /// Network partition from the other nodes while clients still reach it; needs --hosts
    Cut,
}

impl FaultKind {
    fn begin(self, members: &mut Members, node: usize) -> Result<()> {
        match self {
            Self::Pause => members.pause(node),
            Self::Cut => members.cut(node),
        }
    }

    fn end(self, members: &mut Members, node: usize) -> Result<()> {
        match self {
            Self::Pause => members.resume_node(node),
            Self::Cut => members.join(node),
        }
    }
}

#[derive(clap::Args, Clone)]
pub struct Plan {
    /// Fault of the leader
    #[arg(long, value_enum, default_value_t = FaultKind::Pause)]
    fault: FaultKind,
    /// Rounds
    #[arg(long, default_value_t = 50)]
    rounds: u64,
    /// Verifications sent to the leader meanwhile: half before the revocation, half after it
    #[arg(long, default_value_t = 32)]
    queued: usize,
    /// Also write the result to this file
    #[arg(long)]
    output: Option<std::path::PathBuf>,
}

/// Counts of verdicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Verdicts {
    accepted: u64,
    refused: u64,
    /// 503, or no response.
    none: u64,
}

impl Verdicts {
    fn add(&mut self, verdict: Option<bool>) {
        match verdict {
            Some(true) => self.accepted += 1,
            Some(false) => self.refused += 1,
            None => self.none += 1,
        }
    }

    fn add_all(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.refused += other.refused;
        self.none += other.none;
    }

    fn cells(self) -> [String; 3] {
        [self.accepted, self.refused, self.none].map(|count| count.to_string())
    }
}

/// Verifications that began before the 202, after it during the fault, and after the fault.
type Round = [Verdicts; 3];

pub async fn run(place: &ClusterArgs, plan: &Plan) -> Result<bool> {
    let mut members = place.members()?;
    let health = Health::of(&members).await?;
    let client = Client::new(&members)?;
    client.register(false).await?;
    let mut report = Report::new("A leader that missed a revocation");
    report.line(&format!(
        "{:?} the leader, {} rounds, {} verifications sent in each.\n",
        plan.fault, plan.rounds, plan.queued
    ));
    let mut all = Round::default();
    for number in 0..plan.rounds {
        let round = one(number, plan, &client, &mut members, &health)
            .await
            .with_context(|| format!("in round {}", number + 1))?;
        for (sum, verdicts) in all.iter_mut().zip(round) {
            sum.add_all(verdicts);
        }
        eprintln!("round {} of {}: {round:?}", number + 1, plan.rounds);
    }
    report.table(&["verifications", "accepted", "refused", "503 or no answer"]);
    for (name, verdicts) in [
        "sent before the 202 of the revocation",
        "sent after it, before the old leader applied it",
        "sent to it and to the others afterwards",
    ]
    .iter()
    .zip(all)
    {
        let [accepted, refused, none] = verdicts.cells();
        report.row(&[(*name).to_owned(), accepted, refused, none]);
    }
    let stale = stale(&all);
    report.line(&format!("\n- accepts begun after the 202: {stale}"));
    report.fail(stale);
    report.finish(plan.output.as_deref())
}

/// Violations of a round.
fn stale(round: &Round) -> u64 {
    round[1].accepted + round[2].accepted
}

async fn one(
    number: u64,
    plan: &Plan,
    client: &Client,
    members: &mut Members,
    health: &Health,
) -> Result<Round> {
    let old = health.now().leader().context("no leader")?;
    let account = client.account(number);
    let token = client.token(&account, number).await?;
    let mut before = load::open(&client.gateway[old], plan.queued / 2).await?;
    let mut after = load::open(&client.gateway[old], plan.queued - plan.queued / 2).await?;
    let mut place = number << 20;
    let mut next = || {
        place += 1;
        client.verification(&token, place, None)
    };
    if !client.eventual_verdict(old, &next()).await? {
        bail!("the token is refused before it was revoked");
    }

    plan.fault.begin(members, old)?;
    for connection in &mut before {
        connection.send(&next()).await?;
    }
    let others: Vec<_> = (0..members.count()).filter(|node| *node != old).collect();
    let leads = |view: &View| view.leader().is_some_and(|leader| leader != old);
    if !others.is_empty() {
        health.until("no other node led", LEADER_MAX, leads).await?;
        client.revoke(&account, &others).await?;
    }
    for connection in &mut after {
        connection.send(&next()).await?;
    }
    // A partitioned node must answer now; a sleeping one later.
    let early = if plan.fault == FaultKind::Cut {
        answers(std::mem::take(&mut after)).await
    } else {
        Verdicts::default()
    };
    plan.fault.end(members, old)?;
    if others.is_empty() {
        // A single node: the queue comes before the revocation.
        client.revoke(&account, &[old]).await?;
        before.append(&mut after);
    }
    let mut awake = Verdicts::default();
    for node in [old].into_iter().chain(others) {
        for _ in 0..4 {
            awake.add(client.verdict(node, &next()).await);
        }
    }
    let mut later = answers(after).await;
    later.add_all(early);
    let round = [answers(before).await, later, awake];
    health.until("not all nodes were ready", LEADER_MAX, View::is_ready).await?;
    Ok(round)
}

/// Verdicts that arrive on these connections.
async fn answers(connections: Vec<Connection>) -> Verdicts {
    let mut reading = JoinSet::new();
    for mut connection in connections {
        reading.spawn(async move {
            let answer = timeout(RESPONSE_TIMEOUT, connection.answer()).await.ok()?.ok()?;
            verdict(&answer)
        });
    }
    let mut verdicts = Verdicts::default();
    while let Some(read) = reading.join_next().await {
        verdicts.add(read.ok().flatten());
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_accepts_that_began_after_the_acknowledgement_are_stale() {
        let of = |accepted| Verdicts { accepted, refused: 3, none: 2 };
        assert_eq!(stale(&[of(9), of(0), of(0)]), 0);
        assert_eq!(stale(&[of(9), of(1), of(0)]), 1);
        assert_eq!(stale(&[of(0), of(1), of(2)]), 3);
    }
}
