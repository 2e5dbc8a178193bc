//! Audit: every answered verification is in the trail of its tool, and the chains are intact.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{mint, tool_entry, until, verification};
use crate::clients::{Answer, Clients, Intent, Process, get, post};
use crate::history::{Kind, Outcome, Workload};

const CLIENTS: u64 = 2;
/// Verifications of one tool: its trail is one page.
const PER_TOOL: u64 = 500;
const STEP: Duration = Duration::from_millis(15);
/// Verifications with one token.
const PER_TOKEN: u64 = 50;
/// Time in which entries are shipped, several times.
const SHIPPED: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Audit {
    numbers: AtomicU64,
    tools: Mutex<BTreeSet<String>>,
}

impl Audit {
    pub fn start(self: &Arc<Self>, clients: &Arc<Clients>, seed: u64, running: &mut JoinSet<Result<()>>) {
        for _ in 0..CLIENTS {
            let (audit, process) = (Arc::clone(self), clients.process(seed));
            running.spawn(async move { audit.client(process).await });
        }
    }

    async fn client(self: Arc<Self>, mut process: Process) -> Result<()> {
        let clients = Arc::clone(process.clients());
        let account = format!("a{}", clients.run);
        while !clients.is_stopped() {
            let Some(token) = mint(&mut process, &account, None).await? else { continue };
            for _ in 0..PER_TOKEN {
                if clients.stopped_within(STEP).await {
                    break;
                }
                let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                let Some(tool) = self.tool(&clients, number).await? else { continue };
                verify(&mut process, &tool, &token).await?;
            }
        }
        Ok(())
    }

    /// The tool of a verification, which exists. Every second one refuses the audience of the tokens.
    async fn tool(&self, clients: &Clients, number: u64) -> Result<Option<String>> {
        let is_refusing = number % 4 == 3;
        let kind = if is_refusing { "refusing" } else { "accepting" };
        let tool = format!("audit{}-{kind}-{}", clients.run, number / PER_TOOL);
        if self.tools().contains(&tool) {
            return Ok(Some(tool));
        }
        let mut entry = tool_entry(&tool, 0);
        if is_refusing {
            entry["resource_uri"] = json!("https://tools.dev.trust-fabric.local/other");
        }
        let request = post("/v1/tools", "", &entry);
        // During faults the registration waits; the verification with it.
        if until(clients, "gateway", &request, &[200, 201]).await.is_err() {
            return Ok(None);
        }
        self.tools().insert(tool.clone());
        Ok(Some(tool))
    }

    fn tools(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the trail of every tool on every node.
    pub async fn read_all(&self, process: &mut Process) -> Result<()> {
        sleep(SHIPPED).await;
        let tools = self.tools().clone();
        for tool in tools {
            for node in process.clients().all() {
                let key = format!("node {}", node + 1);
                let intent = Intent {
                    workload: Workload::Audit,
                    kind: Kind::Trail,
                    key: &key,
                    input: json!({"tool": tool}),
                };
                let (answer, entries) = trail(process.clients(), node, &tool).await;
                let (outcome, value) = match entries {
                    Some(entries) => (Outcome::Ok, Value::Array(entries)),
                    None => (answer.outcome(&[]), Value::Null),
                };
                process.record(intent, node, &answer, outcome, value)?;
            }
        }
        Ok(())
    }
}

async fn verify(process: &mut Process, tool: &str, token: &str) -> Result<()> {
    let node = process.node();
    let request = verification(tool, token, None, None);
    let answer = process.clients().call("gateway", node, &request).await;
    // Without an answer the request id is not known; the outcome is unknown.
    let unanswered = format!("unanswered-{}", process.clients().number());
    let key = answer.header("x-request-id").unwrap_or(&unanswered).to_owned();
    let (outcome, value) = match answer.status {
        Some(200) => (Outcome::Ok, json!(true)),
        Some(403) if answer.body["check"].is_string() => (Outcome::Ok, json!(false)),
        _ => (answer.outcome(&[]), Value::Null),
    };
    let intent =
        Intent { workload: Workload::Audit, kind: Kind::Verify, key: &key, input: json!({"tool": tool}) };
    process.record(intent, node, &answer, outcome, value)
}

/// The last answer of all pages of a trail, and its verifications, if every page was answered.
async fn trail(clients: &Clients, node: usize, tool: &str) -> (Answer, Option<Vec<Value>>) {
    let mut path = format!("/v1/tools/{tool}/audit?limit=1000");
    let (mut all, mut invoke) = (Vec::new(), None);
    loop {
        let mut answer = clients.call("operator", node, &get(&path)).await;
        answer.invoke = *invoke.get_or_insert(answer.invoke);
        let Some(entries) = answer.body.as_array().filter(|_| answer.status == Some(200)) else {
            return (answer, None);
        };
        let verifications = entries.iter().filter(|entry| entry["action"] == "verify");
        let of = |entry: &Value| json!({"request_id": entry["request_id"], "decision": entry["decision"]});
        all.extend(verifications.map(of));
        // A page ends early if its entries are in many blocks.
        let next = answer.header("link").and_then(|link| link.split_once('<')?.1.split_once('>'));
        match next {
            Some((next, _)) => next.clone_into(&mut path),
            None => return (answer, Some(all)),
        }
    }
}
