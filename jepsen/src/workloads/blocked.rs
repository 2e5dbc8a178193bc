//! Blocked callers: no node admits a caller whose block was acknowledged before the request began.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use trust_fabric_bench::certificates::TRUST_DOMAIN;
use trust_fabric_bench::wire;

use crate::clients::{Answer, Clients, Intent, Process, VISITORS, get, post};
use crate::history::{Kind, Outcome, Workload};

const STEP: Duration = Duration::from_millis(40);
/// Requests between two changes.
const REQUESTS: u64 = 4;

pub fn start(clients: &Arc<Clients>, seed: u64, running: &mut JoinSet<Result<()>>) {
    for visitor in VISITORS {
        running.spawn(client(clients.process(seed), visitor));
    }
}

/// Blocks a caller, lets it try, lifts the block, and so on.
async fn client(mut process: Process, visitor: &'static str) -> Result<()> {
    let clients = Arc::clone(process.clients());
    while !clients.is_stopped() {
        request_some(&mut process, visitor).await?;
        let Some(id) = block(&mut process, visitor).await? else { return Ok(()) };
        for node in clients.all() {
            request(&mut process, visitor, node).await?;
        }
        request_some(&mut process, visitor).await?;
        lift(&mut process, visitor, &id).await?;
    }
    Ok(())
}

/// Tries every visitor on every node.
pub async fn read_all(process: &mut Process) -> Result<()> {
    for visitor in VISITORS {
        for node in process.clients().all() {
            request(process, visitor, node).await?;
        }
    }
    Ok(())
}

async fn request_some(process: &mut Process, visitor: &'static str) -> Result<()> {
    for _ in 0..REQUESTS {
        let node = process.node();
        request(process, visitor, node).await?;
        process.clients().stopped_within(STEP).await;
    }
    Ok(())
}

async fn request(process: &mut Process, visitor: &'static str, node: usize) -> Result<()> {
    let judge = |answer: &Answer| match answer.status {
        Some(200) => (Outcome::Ok, json!(true)),
        Some(403) => (Outcome::Ok, json!(false)),
        _ => (answer.outcome(&[]), Value::Null),
    };
    let at = (visitor, node);
    process.operate(intent(Kind::Use, visitor), at, &get("/v1/tools?limit=1"), judge).await.map(drop)
}

/// Sends the block until it is acknowledged. Returns its id, unless the load ends first.
async fn block(process: &mut Process, visitor: &str) -> Result<Option<String>> {
    let subject = format!("spiffe://{TRUST_DOMAIN}/{visitor}");
    let request = post("/v1/revocations", "", &json!({"subject": subject, "block": true}));
    let judge = |answer: &Answer| (answer.outcome(&[202]), answer.body["id"].clone());
    while !process.clients().is_stopped() {
        let at = ("operator", process.node());
        let (outcome, id) = process.operate(intent(Kind::Block, visitor), at, &request, judge).await?;
        if outcome == Outcome::Ok {
            return Ok(id.as_str().map(str::to_owned));
        }
        tokio::time::sleep(super::PAUSE).await;
    }
    Ok(None)
}

/// Lifts the block until it is gone.
async fn lift(process: &mut Process, visitor: &str, id: &str) -> Result<()> {
    let request = wire::request("DELETE", &format!("/v1/blocks/{id}"), "localhost", "");
    // A try that was not answered may have lifted it.
    let judge = |answer: &Answer| (answer.outcome(&[204, 404]), Value::Null);
    while !process.clients().is_stopped() {
        let at = ("operator", process.node());
        let (outcome, _) = process.operate(intent(Kind::Lift, visitor), at, &request, judge).await?;
        if outcome == Outcome::Ok {
            break;
        }
        tokio::time::sleep(super::PAUSE).await;
    }
    Ok(())
}

fn intent(kind: Kind, visitor: &str) -> Intent<'_> {
    Intent { workload: Workload::Blocked, kind, key: visitor, input: Value::Null }
}
