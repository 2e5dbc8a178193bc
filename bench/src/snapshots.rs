//! `bench snapshots`: nodes with a small log, which is purged up to a snapshot all the time, under load; a follower is
//! paused now and then until it must catch up by a snapshot.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::time::sleep;

use crate::health::View;
use crate::members::{ClusterArgs, Members};
use crate::report::Report;
use crate::rolling::finish;
use crate::traffic::Rates;
use crate::traffic::under_load::{LEADER_TIMEOUT, UnderLoad};

#[derive(clap::Args, Clone)]
pub struct Plan {
    /// Minutes of the load
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Requests per second in all, in the mix of `rolling`
    #[arg(long, default_value_t = 500.0)]
    rate: f64,
    /// `cluster.log_bytes_max`; half of the default holds some 50 entries
    #[arg(long, default_value_t = 128 * 1024)]
    log_bytes: u64,
    /// Seconds between two pauses of a follower
    #[arg(long, default_value_t = 20.0)]
    interval: f64,
    /// Seconds of each pause; the log is held for a silent member for 10 seconds
    #[arg(long, default_value_t = 15.0)]
    pause: f64,
    /// Number of purges, over all nodes, that the run must exceed
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
    /// Log entries between the first and the last purge.
    purged: u64,
    /// Purges of entries that a member still needed.
    needed: usize,
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
    let mut ready = Vec::new();
    while begun.elapsed() < length {
        sleep(Duration::from_secs_f64(plan.interval)).await;
        let is_led = |view: &View| view.leader_of(&all).is_some();
        cluster.health.until("no node led", LEADER_TIMEOUT, is_led).await?;
        let leader = cluster.leader()?;
        let followers: Vec<usize> = all.iter().copied().filter(|node| *node != leader).collect();
        let node = followers[ready.len() % followers.len()];
        cluster.fault_begins(node);
        cluster.members.pause(node)?;
        sleep(Duration::from_secs_f64(plan.pause)).await;
        cluster.members.resume_node(node)?;
        let waited = cluster.until_ready().await.with_context(|| format!("node {}", node + 1))?;
        cluster.members.still_run()?;
        ready.push(waited);
        let purges = counts(&mut cluster.members)?.iter().map(|counts| counts.purges).sum::<usize>();
        eprintln!(
            "{:.0} s: pause {} of node {}, ready after {waited:?}; {purges} purges",
            begun.elapsed().as_secs_f64(),
            ready.len(),
            node + 1,
        );
    }
    let (mut members, traffic) = cluster.end().await?;
    let counts = counts(&mut members)?;
    let mut report = Report::new("A small log, purged all the time");
    report.line(&format!(
        "{} nodes with `cluster.log_bytes_max = {}` for {:.1} minutes; {} requests per second, open loop; a\n\
         follower was paused (SIGSTOP) {} times for {} s.\n",
        members.count(),
        plan.log_bytes,
        begun.elapsed().as_secs_f64() / 60.0,
        plan.rate,
        ready.len(),
        plan.pause,
    ));
    report.table(&[
        "node",
        "purges, each after a snapshot",
        "entries per purge",
        "purges of entries that a member needed",
        "snapshots installed",
        "panics",
    ]);
    for (node, counts) in counts.iter().enumerate() {
        let entries = counts.purged / (counts.purges.max(2) as u64 - 1);
        let Counts { purges, needed, installed, panics, .. } = *counts;
        let [node, purges, needed, installed, panics] =
            [node + 1, purges, needed, installed, panics].map(|count| count.to_string());
        report.row(&[node, purges, entries.to_string(), needed, installed, panics]);
        report.fail(counts.panics as u64);
    }
    let purges: usize = counts.iter().map(|counts| counts.purges).sum();
    let verdict = if purges > plan.purges { "yes" } else { "NO" };
    report.line(&format!("\n- more than {} purges: {verdict} ({purges})\n", plan.purges));
    ready.sort_unstable();
    report.line(&format!(
        "- ready after a pause, seconds: p50 {:.1}, max {:.1}",
        ready.get(ready.len() / 2).map_or(0.0, Duration::as_secs_f64),
        ready.last().map_or(0.0, Duration::as_secs_f64),
    ));
    {
        let history = traffic.history();
        let led: Vec<_> = history.leaders.iter().map(|(_, leader)| *leader).collect();
        let lost = led.iter().skip(1).filter(|leader| leader.is_none()).count();
        let mut leaders: Vec<_> = led.into_iter().flatten().collect();
        leaders.dedup();
        report.line(&format!("- times without a leader after the start: {lost}"));
        report.line(&format!("- changes of the leader: {}\n", leaders.len().saturating_sub(1)));
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
    let mut first = None;
    for line in log.lines() {
        if line.contains("the log exceeded its size limit: purged") {
            counts.purges += 1;
            let upto = number_in(line, "\"upto\":");
            first = first.or(upto);
            counts.purged = upto.zip(first).map_or(counts.purged, |(upto, first)| upto.saturating_sub(first));
        }
        counts.needed += usize::from(line.contains("purging log entries that a member lacks"));
        counts.installed += usize::from(line.contains("snapshot installed"));
        counts.panics += usize::from(line.contains("panicked"));
    }
    counts
}

/// The number after `name`.
fn number_in(line: &str, name: &str) -> Option<u64> {
    let (_, rest) = line.split_once(name)?;
    let digits = rest.find(|next: char| !next.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_messages_are_counted_by_kind() {
        let found = counted(
            "{\"message\":\"the log exceeded its size limit: purged\",\"upto\":7}\n{\"message\":\"snapshot installed\"}\n\
             thread 'x' panicked at a.rs\n{\"message\":\"purging log entries that a member lacks\"}\n\
             {\"upto\":50,\"message\":\"the log exceeded its size limit: purged\"}\n",
        );
        let Counts { purges, purged, needed, installed, panics } = found;
        assert_eq!((purges, purged, needed, installed, panics), (2, 43, 1, 1, 1));
    }
}
