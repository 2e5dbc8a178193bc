//! Live feed: subscribers that disconnect and resume on other nodes, beside registrations of tools.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use trust_fabric_bench::sse::{self, Events};
use trust_fabric_bench::wire::Io;

use super::{tool_entry, until};
use crate::clients::{Answer, Clients, Intent, Process, post};
use crate::history::{Kind, Outcome, Workload};

const SUBSCRIBERS: u64 = 2;
/// Time of the changes of one client.
const STEP: Duration = Duration::from_millis(40);
/// Maximum wait for a connection, and for an event before another node is tried.
const OPEN_MAX: Duration = Duration::from_secs(3);
const SILENT_MAX: Duration = Duration::from_secs(2);
/// Maximum wait for the last event.
const LAST_MAX: Duration = Duration::from_secs(20);

pub struct Feed {
    /// Id of the event before all of the run.
    first_id: String,
    /// Subject of the last event.
    last: watch::Sender<Option<String>>,
    subscribers: Mutex<JoinSet<Result<()>>>,
}

type Stream = Events<Box<dyn Io>>;

impl Feed {
    /// Causes the first event, after which all subscribers begin.
    pub async fn begin(clients: &Arc<Clients>) -> Result<Arc<Self>> {
        let mut events = open(clients, 0, None).await?;
        let tool = format!("feed{}-begin", clients.run);
        until(clients, "gateway", &post("/v1/tools", "", &tool_entry(&tool, 0)), &[200, 201]).await?;
        let reading = async {
            loop {
                let event = events.next().await?;
                if subject(&event.data) == Some(tool.clone()) {
                    return event.id.context("an event without an id");
                }
            }
        };
        let first_id = timeout(LAST_MAX, reading).await.context("the first event did not arrive")??;
        let last = watch::Sender::new(None);
        Ok(Arc::new(Self { first_id, last, subscribers: Mutex::default() }))
    }

    pub fn start(self: &Arc<Self>, clients: &Arc<Clients>, seed: u64, running: &mut JoinSet<Result<()>>) {
        let mut subscribers = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        for number in 0..SUBSCRIBERS {
            let (feed, process) = (Arc::clone(self), clients.process(seed));
            subscribers.spawn(async move { feed.subscribe(process, &format!("subscriber {number}")).await });
        }
        let process = clients.process(seed);
        running.spawn(change_all(process));
    }

    /// Reads the feed until its last event, over many connections.
    async fn subscribe(&self, mut process: Process, name: &str) -> Result<()> {
        let clients = Arc::clone(process.clients());
        let mut last_id = self.first_id.clone();
        loop {
            let node = process.node();
            let invoke = clients.recorder.now();
            let opened = timeout(OPEN_MAX, open(&clients, node, Some(&last_id))).await;
            let Ok(Ok(mut events)) = opened else {
                sleep(super::PAUSE).await;
                continue;
            };
            let mut answer = Answer::observed(invoke, clients.recorder.now());
            answer.status = Some(200);
            process.record(resume(name, &last_id), node, &answer, Outcome::Ok, Value::Null)?;
            let until = Instant::now() + Duration::from_millis(process.draw.within(100, 4_000));
            loop {
                // After `until` it reads one more event, so that each connection makes progress.
                let Ok(Ok(event)) = timeout(SILENT_MAX, events.next()).await else { break };
                if event.kind == "reset" {
                    process.observe(resume(name, &last_id), node, json!("reset"))?;
                    continue;
                }
                let (Some(id), Some(subject)) = (event.id, subject(&event.data)) else { continue };
                let value = json!({"id": id, "subject": subject});
                process.observe(intent(Kind::Event, name), node, value)?;
                last_id = id;
                if self.last.borrow().as_deref() == Some(&subject) {
                    return Ok(());
                }
                if Instant::now() > until {
                    break;
                }
            }
        }
    }

    /// Causes the last event, waits for the subscribers, and reads the whole feed on every node.
    pub async fn read_all(&self, process: &mut Process) -> Result<()> {
        let clients = Arc::clone(process.clients());
        let tool = format!("feed{}-end", clients.run);
        self.last.send_replace(Some(tool.clone()));
        let begun = Instant::now();
        while change(process, &tool).await? != Outcome::Ok {
            if begun.elapsed() > LAST_MAX {
                bail!("the last change is not acknowledged");
            }
            sleep(super::PAUSE).await;
        }
        let mut subscribers =
            std::mem::take(&mut *self.subscribers.lock().unwrap_or_else(PoisonError::into_inner));
        // A subscriber that does not reach the last event is found by the checker.
        let ending = async {
            while let Some(ended) = subscribers.join_next().await {
                ended??;
            }
            anyhow::Ok(())
        };
        if let Ok(ended) = timeout(LAST_MAX, ending).await {
            ended?;
        }
        for node in clients.all() {
            let invoke = clients.recorder.now();
            let all = timeout(LAST_MAX, self.all(&clients, node, &tool)).await;
            let answer = Answer::observed(invoke, clients.recorder.now());
            let (outcome, value) = match all {
                Ok(Ok(events)) => (Outcome::Ok, Value::Array(events)),
                _ => (Outcome::Fail, Value::Null),
            };
            process.record(
                intent(Kind::All, &format!("node {}", node + 1)),
                node,
                &answer,
                outcome,
                value,
            )?;
        }
        Ok(())
    }

    async fn all(&self, clients: &Clients, node: usize, last: &str) -> Result<Vec<Value>> {
        let mut events = open(clients, node, Some(&self.first_id)).await?;
        let mut all = Vec::new();
        loop {
            let event = events.next().await?;
            if event.kind == "reset" {
                bail!("the first event is too old");
            }
            let (Some(id), Some(subject)) = (event.id, subject(&event.data)) else { continue };
            let is_last = subject == last;
            all.push(json!({"id": id, "subject": subject}));
            if is_last {
                return Ok(all);
            }
        }
    }
}

/// Registers tools, each once: a tool has one event.
async fn change_all(mut process: Process) -> Result<()> {
    let clients = Arc::clone(process.clients());
    while !clients.stopped_within(STEP).await {
        let tool = format!("feed{}-{}", clients.run, clients.number());
        change(&mut process, &tool).await?;
    }
    Ok(())
}

async fn change(process: &mut Process, tool: &str) -> Result<Outcome> {
    let request = post("/v1/tools", "", &tool_entry(tool, 0));
    let judge = |answer: &Answer| (answer.outcome(&[200, 201]), Value::Null);
    let node = process.node();
    let (outcome, _) =
        process.operate(intent(Kind::Change, tool), ("gateway", node), &request, judge).await?;
    Ok(outcome)
}

fn intent(kind: Kind, key: &str) -> Intent<'_> {
    Intent { workload: Workload::Feed, kind, key, input: Value::Null }
}

fn resume<'a>(name: &'a str, last_id: &str) -> Intent<'a> {
    Intent { input: json!({"last_id": last_id}), ..intent(Kind::Resume, name) }
}

/// Opens the feed of tools at a node.
async fn open(clients: &Clients, node: usize, last_id: Option<&str>) -> Result<Stream> {
    let io = clients.target("operator", node)?.connect().await?.into_io();
    sse::open(io, "/v1/events?types=tool", "localhost", last_id).await
}

fn subject(data: &str) -> Option<String> {
    let data: Value = serde_json::from_str(data).ok()?;
    Some(data["subject"].as_str()?.to_owned())
}
