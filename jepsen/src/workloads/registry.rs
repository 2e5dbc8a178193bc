//! Registry: reads, writes and compare-and-set of tools by their `ETag`, on all nodes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use trust_fabric_bench::wire;

use super::tool_entry;
use crate::clients::{Answer, Clients, Intent, Process};
use crate::history::{Kind, Outcome, Workload};

const CLIENTS: u64 = 6;
/// Time for which a tool is used; then another replaces it, so that histories by key stay short.
const TOOL_NANOS: u64 = 2_000_000_000;
/// Tools in use at a time.
const TOOLS: u64 = 4;
const STEP: Duration = Duration::from_millis(5);

#[derive(Default)]
pub struct Registry {
    /// The revision that was read last of each tool.
    seen: Mutex<HashMap<String, String>>,
    /// The highest log index of an answer.
    highest: AtomicU64,
}

impl Registry {
    pub fn start(self: &Arc<Self>, clients: &Arc<Clients>, seed: u64, running: &mut JoinSet<Result<()>>) {
        for _ in 0..CLIENTS {
            let (registry, process) = (Arc::clone(self), clients.process(seed));
            running.spawn(async move { registry.client(process).await });
        }
    }

    async fn client(self: Arc<Self>, mut process: Process) -> Result<()> {
        let clients = Arc::clone(process.clients());
        while !clients.stopped_within(STEP).await {
            let generation = clients.recorder.now() / TOOL_NANOS;
            let tool = format!("reg{}-{generation}-{}", clients.run, process.draw.below(TOOLS));
            let node = process.node();
            match process.draw.below(20) {
                0 => remove(&mut process, &tool, node).await?,
                1..=3 => {
                    let named = self.highest.load(Ordering::Relaxed);
                    self.read(&mut process, &tool, node, Some(named)).await?;
                }
                4..=9 => self.read(&mut process, &tool, node, None).await?,
                10..=13 => self.write(&mut process, &tool, node, None).await?,
                _ => {
                    let seen = self.seen().get(&tool).cloned();
                    self.write(&mut process, &tool, node, seen).await?;
                }
            }
        }
        Ok(())
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, HashMap<String, String>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With `named`, a read at that log index or a later one; otherwise a linearizable one.
    async fn read(&self, process: &mut Process, tool: &str, node: usize, named: Option<u64>) -> Result<()> {
        let intent = Intent {
            workload: Workload::Registry,
            kind: Kind::Read,
            key: tool,
            input: json!({"min_index": named}),
        };
        let headers = named.map(|index| format!("svc-min-index: {index}\r\n")).unwrap_or_default();
        let request = wire::request("GET", &format!("/v1/tools/{tool}"), "localhost", &headers);
        let judge = |answer: &Answer| {
            self.highest.fetch_max(answer.index().unwrap_or_default(), Ordering::Relaxed);
            record(answer)
        };
        let (_, value) = process.operate(intent, ("gateway", node), &request, judge).await?;
        if let Some(revision) = value["revision"].as_str() {
            self.seen().insert(tool.to_owned(), revision.to_owned());
        }
        Ok(())
    }

    async fn write(
        &self,
        process: &mut Process,
        tool: &str,
        node: usize,
        seen: Option<String>,
    ) -> Result<()> {
        let value = process.clients().number();
        let intent = Intent {
            workload: Workload::Registry,
            kind: Kind::Write,
            key: tool,
            input: json!({"value": value, "if_match": seen}),
        };
        let headers = seen.map(|revision| format!("if-match: \"{revision}\"\r\n")).unwrap_or_default();
        let body = tool_entry(tool, value).to_string();
        let path = format!("/v1/tools/{tool}");
        let request = wire::request_with("PUT", &path, "localhost", &headers, body.as_bytes());
        let judge = |answer: &Answer| {
            let value = revision(answer).map_or(Value::Null, |revision| json!({"revision": revision}));
            (answer.outcome(&[200, 201]), value)
        };
        let (_, value) = process.operate(intent, ("gateway", node), &request, judge).await?;
        if let Some(revision) = value["revision"].as_str() {
            self.seen().insert(tool.to_owned(), revision.to_owned());
        }
        Ok(())
    }

    /// Reads every tool of the run on every node.
    pub async fn read_all(&self, process: &mut Process) -> Result<()> {
        let tools: Vec<_> = self.seen().keys().cloned().collect();
        for tool in tools {
            for node in process.clients().all() {
                self.read(process, &tool, node, None).await?;
            }
        }
        Ok(())
    }
}

async fn remove(process: &mut Process, tool: &str, node: usize) -> Result<()> {
    let intent = Intent {
        workload: Workload::Registry,
        kind: Kind::Remove,
        key: tool,
        input: json!({"if_match": null}),
    };
    let request = wire::request("DELETE", &format!("/v1/tools/{tool}"), "localhost", "");
    let judge = |answer: &Answer| (answer.outcome(&[204]), Value::Null);
    process.operate(intent, ("gateway", node), &request, judge).await.map(drop)
}

/// `registration.revision` of the entity tag.
fn revision(answer: &Answer) -> Option<&str> {
    Some(answer.header("etag")?.trim_matches('"'))
}

/// Content and revision of a read.
fn record(answer: &Answer) -> (Outcome, Value) {
    match answer.status {
        Some(404) => (Outcome::Ok, Value::Null),
        Some(200) => {
            let content = answer.body["name"].as_str().and_then(|name| name.strip_prefix("content "));
            let content = content.and_then(|content| content.parse::<u64>().ok());
            (Outcome::Ok, json!({"value": content, "revision": revision(answer)}))
        }
        _ => (answer.outcome(&[]), Value::Null),
    }
}
