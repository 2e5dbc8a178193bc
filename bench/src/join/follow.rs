//! One node joins: the time of each step.

use std::fs;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tokio::time::sleep;

use crate::node::memory_kib;
use crate::replace::Change;
use crate::traffic::history::Micros;
use crate::wire::{self, Target};

/// Maximum duration of a join.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// Interval at which the log of the new node and the members are read.
const POLL: Duration = Duration::from_millis(100);

/// Steps after the start of the process: the log message of the new node that ends each.
const LOGGED: [(&str, &str); 4] = [
    ("started, until the first byte of a snapshot", "receiving a snapshot"),
    ("snapshot transferred", "received a snapshot"),
    ("every row verified", "snapshot verified"),
    ("installed, and read into memory", "snapshot installed"),
];

/// A node that joined.
pub struct Joined {
    pub node_id: u64,
    /// Steps in their order. They follow each other without a gap.
    pub steps: Vec<(String, Range<Micros>)>,
    /// Longest time without a report of the new node to the leader, after the first one.
    pub silence: Duration,
    /// Peak memory of the new node and of the first one, in KiB.
    pub peaks: [u64; 2],
}

impl Joined {
    /// Follows a join from the invitation until the node is a voter.
    pub async fn follow(change: &mut Change, new: usize) -> Result<Self> {
        let mut joined =
            Self { node_id: new as u64 + 1, steps: Vec::new(), silence: Duration::ZERO, peaks: [0; 2] };
        let mut from = change.cluster.traffic.now();
        change.token(&["cluster", "invite"], new).await?;
        change.join(new).await?;
        joined.ends(change, "`cluster invite`, `cluster join`", &mut from);
        let log = change.cluster.members.place(new)?.join("node.log");
        let operator = change.cluster.members.targets("operator")?.swap_remove(0);
        let (begun, mut heard, mut logged) = (Instant::now(), None, LOGGED.iter().peekable());
        loop {
            let text = fs::read_to_string(&log).with_context(|| log.display().to_string())?;
            while let Some((step, _)) = logged.next_if(|(_, message)| text.contains(message)) {
                joined.ends(change, step, &mut from);
            }
            if let Ok(member) = member(&operator, joined.node_id).await {
                joined.hear(&member, &mut heard);
                if matches!(member["role"].as_str(), Some("leader" | "follower")) {
                    break;
                }
            }
            if begun.elapsed() > TIMEOUT {
                bail!("no voter after {TIMEOUT:?}; see {}", log.display());
            }
            change.cluster.members.still_run()?;
            sleep(POLL).await;
        }
        change.nodes.push(new);
        joined.ends(change, "caught up, and a voter", &mut from);
        let members = &change.cluster.members;
        joined.peaks = [memory_kib(members.pid(new)?)?.1, memory_kib(members.pid(0)?)?.1];
        Ok(joined)
    }

    fn ends(&mut self, change: &Change, step: &str, from: &mut Micros) {
        let now = change.cluster.traffic.now();
        eprintln!("node {}, {step}: {:.1} s", self.node_id, crate::load::as_f64(now - *from) / 1e6);
        self.steps.push((step.to_owned(), *from..now));
        *from = now;
    }

    fn hear(&mut self, member: &Value, heard: &mut Option<Instant>) {
        if let Some(last) = *heard {
            self.silence = self.silence.max(last.elapsed());
        }
        if member["report"].is_object() {
            *heard = Some(Instant::now());
        }
    }

    /// From the invitation until it was a voter.
    pub fn span(&self) -> Range<Micros> {
        let begin = self.steps.first().map_or(0, |(_, span)| span.start);
        begin..self.steps.last().map_or(begin, |(_, span)| span.end)
    }
}

/// A member as the first node reports it.
async fn member(operator: &Target, node_id: u64) -> Result<Value> {
    let request = wire::request("GET", "/v1/sys/cluster", &operator.host, "connection: close\r\n");
    let answer = operator.call(&request).await?;
    let cluster: Value = serde_json::from_slice(answer.body())?;
    let members = cluster["members"].as_array().context("no members")?;
    let found = members.iter().find(|member| member["node_id"].as_u64() == Some(node_id));
    found.cloned().context("no such member")
}
