//! The load of a run: for each promise, clients that would see it broken.

mod audit;
mod blocked;
mod feed;
mod keys;
mod registry;
mod revoke;
mod single_use;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use trust_fabric_bench::credentials::AUDIENCE;

use crate::clients::{Answer, Clients, Process, exchange, post};
use crate::history::{Outcome, Workload};

/// Maximum wait for a success of any node.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause before the next node is tried.
const PAUSE: Duration = Duration::from_millis(20);
/// A tool for tokens that are used many times, and one for tokens of one use.
const TOOL: &str = "plain";
const TOOL_ONCE: &str = "once";
/// The event that revokes.
pub(crate) const REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";

/// The workloads of a run, and their state for the reads at its end.
pub struct Load {
    clients: Arc<Clients>,
    seed: u64,
    workloads: Vec<Workload>,
    running: JoinSet<Result<()>>,
    revoke: Arc<revoke::Revoke>,
    audit: Arc<audit::Audit>,
    registry: Arc<registry::Registry>,
    streams: Option<Arc<streams::Streams>>,
    feed: Option<Arc<feed::Feed>>,
    keys: Arc<keys::Keys>,
}

impl Load {
    /// Registers tools and streams, and starts the clients.
    pub async fn start(clients: &Arc<Clients>, seed: u64, workloads: &[Workload]) -> Result<Self> {
        for (tool, execution) in [(TOOL, false), (TOOL_ONCE, true)] {
            let mut entry = tool_entry(tool, 0);
            if execution {
                entry["requires_execution"] = json!(true);
                entry["allowed_operations"] = json!(["POST"]);
            }
            until(clients, "gateway", &post("/v1/tools", "", &entry), &[200, 201]).await?;
        }
        let has = |workload| workloads.contains(&workload);
        let mut load = Self {
            clients: Arc::clone(clients),
            seed,
            workloads: workloads.to_vec(),
            running: JoinSet::new(),
            revoke: Arc::default(),
            audit: Arc::default(),
            registry: Arc::default(),
            streams: None,
            feed: None,
            keys: Arc::default(),
        };
        if has(Workload::Feed) {
            let feed = feed::Feed::begin(clients).await?;
            feed.start(clients, seed, &mut load.running);
            load.feed = Some(feed);
        }
        if has(Workload::Streams) {
            let streams = streams::Streams::begin(clients).await?;
            streams.start(clients, seed, &mut load.running);
            load.streams = Some(streams);
        }
        if has(Workload::Revoke) {
            load.revoke.start(clients, seed, &mut load.running);
        }
        if has(Workload::SingleUse) {
            single_use::start(clients, seed, &mut load.running);
        }
        if has(Workload::Registry) {
            load.registry.start(clients, seed, &mut load.running);
        }
        if has(Workload::Audit) {
            load.audit.start(clients, seed, &mut load.running);
        }
        if has(Workload::Keys) {
            load.keys.start(clients, seed, &mut load.running);
        }
        if has(Workload::Blocked) {
            blocked::start(clients, seed, &mut load.running);
        }
        Ok(load)
    }

    /// The first failure of a client; a broken promise is none.
    pub async fn failed(&mut self) -> Result<()> {
        while let Some(ended) = self.running.join_next().await {
            ended??;
        }
        std::future::pending().await
    }

    /// Ends the clients, except those that wait for the last events.
    pub async fn stop(&mut self) -> Result<()> {
        self.clients.stop();
        while let Some(ended) = self.running.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// Performs the reads after the faults, which show missing and unexpected effects.
    pub async fn read_all(&self) -> Result<()> {
        let mut process = self.clients.process(self.seed);
        let has = |workload| self.workloads.contains(&workload);
        if has(Workload::Revoke) {
            self.revoke.read_all(&mut process).await?;
        }
        if has(Workload::Registry) {
            self.registry.read_all(&mut process).await?;
        }
        if has(Workload::Keys) {
            self.keys.read_all(&mut process).await?;
        }
        if has(Workload::Blocked) {
            blocked::read_all(&mut process).await?;
        }
        if has(Workload::Audit) {
            self.audit.read_all(&mut process).await?;
        }
        if let Some(feed) = &self.feed {
            feed.read_all(&mut process).await?;
        }
        if let Some(streams) = &self.streams {
            streams.until_delivered().await;
        }
        Ok(())
    }
}

/// The entry of a tool; its content differs by the number.
pub fn tool_entry(tool: &str, content: u64) -> Value {
    json!({
        "tool_id": tool,
        "name": format!("content {content}"),
        "resource_uri": AUDIENCE,
        "required_capabilities": ["db.read"],
    })
}

/// Sends a request to the nodes in turn until one answers with one of these statuses. Not recorded.
pub async fn until(clients: &Clients, caller: &'static str, request: &[u8], good: &[u16]) -> Result<Answer> {
    let begun = Instant::now();
    let mut node = 0;
    loop {
        let nodes = clients.all();
        let answer = clients.call(caller, nodes[node % nodes.len()], request).await;
        match answer.status {
            Some(status) if good.contains(&status) => return Ok(answer),
            None | Some(429 | 503) => {}
            Some(status) => bail!("a valid request is answered {status} {}", answer.body),
        }
        if begun.elapsed() > PATIENCE {
            bail!("no node succeeded in {PATIENCE:?}; the last: {:?} {}", answer.status, answer.body);
        }
        node += 1;
        sleep(PAUSE).await;
    }
}

/// A token of a workload, if a node mints one before the load ends.
async fn mint(process: &mut Process, account: &str, execution: Option<Value>) -> Result<Option<String>> {
    let clients = Arc::clone(process.clients());
    let credential = clients.issuer.credential_of(account, clients.number())?;
    let request = post("/v1/exchange/token", "", &exchange(&credential, execution));
    while !clients.is_stopped() {
        let answer = clients.call("workload", process.node(), &request).await;
        match answer.status {
            Some(200) => return minted(&answer).map(Some),
            // A nonce was used by a try whose response was lost, or the clock of the node is wrong.
            Some(400) => {
                sleep(PAUSE).await;
                return Ok(None);
            }
            _ => sleep(PAUSE).await,
        }
    }
    Ok(None)
}

fn minted(answer: &Answer) -> Result<String> {
    Ok(answer.body["access_token"].as_str().context("no access_token")?.to_owned())
}

/// The request of a verification.
pub(crate) fn verification(tool: &str, token: &str, key: Option<&str>, hash: Option<&str>) -> Vec<u8> {
    let mut body = json!({"tool_id": tool, "token": token});
    if let Some(hash) = hash {
        body["request_body_hash"] = json!(hash);
    }
    post("/v1/mcp/verify", &crate::clients::idempotency(key), &body)
}

/// Whether a node accepts or refuses as revoked or used; anything else is no verdict.
pub(crate) fn verdict(answer: &Answer) -> (Outcome, Value) {
    match answer.status {
        Some(200) => (Outcome::Ok, json!(true)),
        Some(403) if answer.body["check"] == "revocation" => (Outcome::Ok, json!(false)),
        _ => (answer.outcome(&[]), Value::Null),
    }
}
