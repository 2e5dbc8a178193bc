//! `bench snapshots`: nodes with the smallest log, which is purged up to a snapshot all the time, under load; a follower
//! is paused now and then until it must catch up by a snapshot.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::time::sleep;

use crate::members::{ClusterArgs, Members};
use crate::report::Report;
use crate::rolling::finish;
use crate::traffic::Rates;
use crate::traffic::under_load::UnderLoad;

#[derive(clap::Args, Clone)]
pub struct Plan {
    /// Minutes of the load
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Requests per second in all, in the mix of `rolling`
    #[arg(long, default_value_t = 500.0)]
    rate: f64,
    /// `cluster.log_bytes_max`; the default is the smallest
    #[arg(long, default_value_t = 1024 * 1024)]
    log_bytes: u64,
    /// Seconds between two pauses of a follower
    #[arg(long, default_value_t = 20.0)]
    interval: f64,
    /// Seconds of each pause
    #[arg(long, default_value_t = 5.0)]
    pause: f64,
    /// Purges of all nodes that are wanted
    #[arg(long, default_value_t = 1000)]
    purges: usize,
    /// Also write the result to this file
    #[arg(long)]
    output: Option<PathBuf>,
}

/// Log messages of a node.
#[derive(Default)]
struct Counts {
    purges: usize,
    installed: usize,
    panics: usize,
}

pub async fn run(place: &ClusterArgs, plan: &Plan) -> Result<bool> {
    let place = ClusterArgs { log_bytes_max: Some(plan.log_bytes), ..place.clone() };
    let members = place.members()?;
    let all: Vec<usize> = (0..members.count()).collect();
    let rates = Rates { tries_max: usize::MAX, ..Rates::mixed(plan.rate) };
    let mut cluster = UnderLoad::start(members, rates, all.clone()).await?;
    let (begun, length) = (Instant::now(), Duration::from_secs_f64(plan.minutes * 60.0));
    let mut pauses = 0;
    while begun.elapsed() < length {
        sleep(Duration::from_secs_f64(plan.interval)).await;
        let leader = cluster.leader()?;
        let followers: Vec<usize> = all.iter().copied().filter(|node| *node != leader).collect();
        let node = followers[pauses % followers.len()];
        cluster.fault_begins(node);
        cluster.members.pause(node)?;
        sleep(Duration::from_secs_f64(plan.pause)).await;
        cluster.members.resume_node(node)?;
        let ready = cluster.until_ready().await.with_context(|| format!("node {}", node + 1))?;
        cluster.members.still_run()?;
        pauses += 1;
        let purges = counts(&mut cluster.members)?.iter().map(|counts| counts.purges).sum::<usize>();
        eprintln!(
            "{:.0} s: pause {pauses}, ready after {ready:?}; {purges} purges",
            begun.elapsed().as_secs_f64()
        );
    }
    let (mut members, traffic) = cluster.end().await?;
    let counts = counts(&mut members)?;
    let mut report = Report::new("A small log, purged all the time");
    report.line(&format!(
        "{} nodes with `cluster.log_bytes_max = {}` for {:.1} minutes; {} requests per second, open loop; a\n\
         follower was paused (SIGSTOP) {pauses} times for {} s.\n",
        members.count(),
        plan.log_bytes,
        begun.elapsed().as_secs_f64() / 60.0,
        plan.rate,
        plan.pause,
    ));
    report.table(&["node", "purges, each after a snapshot", "snapshots installed", "panics"]);
    for (node, counts) in counts.iter().enumerate() {
        let cells = [node + 1, counts.purges, counts.installed, counts.panics].map(|count| count.to_string());
        report.row(&cells);
        report.fail(counts.panics as u64);
    }
    let purges: usize = counts.iter().map(|counts| counts.purges).sum();
    let verdict = if purges > plan.purges { "yes" } else { "NO" };
    report.line(&format!("\n- more than {} purges: {verdict} ({purges})\n", plan.purges));
    {
        let history = traffic.history();
        let lost = history.leaders.iter().skip(1).filter(|(_, leader)| leader.is_none()).count();
        report.line(&format!("- times without a leader after the start: {lost}\n"));
    }
    finish(&mut report, &traffic, false).await?;
    report.finish(plan.output.as_deref())
}

fn counts(members: &mut Members) -> Result<Vec<Counts>> {
    let all = 0..members.count();
    all.map(|node| {
        let file = members.place(node)?.join("node.log");
        let log = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Ok(counted(&log))
    })
    .collect()
}

fn counted(log: &str) -> Counts {
    let mut counts = Counts::default();
    for line in log.lines() {
        counts.purges += usize::from(line.contains("the log exceeded its size limit: purged"));
        counts.installed += usize::from(line.contains("snapshot installed"));
        counts.panics += usize::from(line.contains("panicked"));
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_messages_are_counted_by_kind() {
        let found = counted(
            "{\"message\":\"the log exceeded its size limit: purged\"}\n{\"message\":\"snapshot installed\"}\n\
             thread 'x' panicked at a.rs\n{\"message\":\"the log exceeded its size limit: purged\"}\n",
        );
        assert_eq!((found.purges, found.installed, found.panics), (2, 1, 1));
    }
}
