//! Changes of the membership: each is a command of the operator, and a process that is started.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tokio::time::sleep;
use trust_fabric_bench::members::voters;

use crate::cluster::Cluster;

/// Maximum time of a command, which is repeated while there is no leader, and of a change.
const CHANGE_MAX: Duration = Duration::from_secs(30);
/// Interval at which the members are read.
const POLL: Duration = Duration::from_millis(50);

impl Cluster {
    /// Replaces a dead member, whose directory is lost, by the next node.
    pub async fn replace(&self, dead: usize) -> Result<usize> {
        self.forget(dead);
        let id = (dead + 1).to_string();
        self.add(&["cluster", "replace", &id]).await
    }

    /// Removes a stopped member, and lets the next node join.
    pub async fn exchange(&self, stopped: usize) -> Result<usize> {
        self.forget(stopped);
        let id = (stopped + 1).to_string();
        self.until_done(&["cluster", "remove", &id]).await?;
        self.until_voters(&self.all()).await?;
        self.add(&["cluster", "invite"]).await
    }

    /// Adds a node with the join token of this command, and waits until it is a voter.
    async fn add(&self, command: &[&str]) -> Result<usize> {
        let made = self.until_done(&[command, &["--output", "json"]].concat()).await?;
        let made: Value = serde_json::from_str(&made)?;
        let id = made["node_id"].as_u64().context("no node_id")?;
        let new = usize::try_from(id)? - 1;
        let place = self.members().place(new).context("more nodes join than the run has")?;
        let (token, config) = (place.join("token"), place.join("node.toml").display().to_string());
        fs::write(&token, made["join_token"].as_str().context("no join_token")?)?;
        let (token, address) = (token.display().to_string(), self.peer_address(new)?);
        self.until_done(&["cluster", "join", &token, "--config", &config, "--address", &address]).await?;
        self.start_again(new)?;
        let wanted = [self.all(), vec![new]].concat();
        self.until_voters(&wanted).await?;
        // As behind a load balancer, no client uses it before it is ready.
        if !self.until_ready(&[new], CHANGE_MAX).await {
            bail!("node {id} has joined and is not ready");
        }
        self.remember(new);
        Ok(new)
    }

    /// Runs a command at any member until it succeeds: after the death of a leader there is none for a moment.
    async fn until_done(&self, arguments: &[&str]) -> Result<String> {
        let begun = Instant::now();
        for node in self.all().into_iter().cycle() {
            match self.administer(node, arguments).await {
                Err(error) if begun.elapsed() > CHANGE_MAX => return Err(error),
                Err(_) => sleep(POLL).await,
                done => return done,
            }
        }
        bail!("the cluster has no members")
    }

    /// Waits until these are the voters.
    async fn until_voters(&self, nodes: &[usize]) -> Result<()> {
        let begun = Instant::now();
        let mut wanted: Vec<_> = nodes.iter().map(|node| *node as u64 + 1).collect();
        wanted.sort_unstable();
        loop {
            let listed = self.until_done(&["cluster", "members", "--output", "json"]).await?;
            let found = voters(&listed);
            if found == wanted {
                return Ok(());
            }
            if begun.elapsed() > CHANGE_MAX {
                bail!("the voters are {found:?}, not {wanted:?}");
            }
            sleep(POLL).await;
        }
    }
}
