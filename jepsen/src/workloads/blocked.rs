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
        if !block(&mut process, visitor).await? {
            break;
        }
        for node in clients.all() {
            request(&mut process, visitor, node).await?;
        }
        request_some(&mut process, visitor).await?;
        lift(&mut process, visitor).await?;
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

/// Sends the block until it is acknowledged. Returns whether it was before the load ended.
async fn block(process: &mut Process, visitor: &str) -> Result<bool> {
    let request = post("/v1/revocations", "", &json!({"subject": id(visitor), "block": true}));
    let judge = |answer: &Answer| (answer.outcome(&[202]), Value::Null);
    while !process.clients().is_stopped() {
        let at = ("operator", process.node());
        let (outcome, _) = process.operate(intent(Kind::Block, visitor), at, &request, judge).await?;
        if outcome == Outcome::Ok {
            return Ok(true);
        }
        tokio::time::sleep(super::PAUSE).await;
    }
    Ok(false)
}

/// Lifts the block of a caller, until a node does not list it any more.
async fn lift(process: &mut Process, visitor: &str) -> Result<()> {
    let subject = id(visitor);
    let listed = |answer: &Answer| {
        let blocks = answer.body.as_array().filter(|_| answer.status == Some(200));
        let block = blocks.map(|blocks| blocks.iter().find(|block| block["value"] == subject.as_str()));
        match block {
            Some(Some(block)) => (Outcome::Fail, block["id"].clone()),
            Some(None) => (Outcome::Ok, Value::Null),
            None => (Outcome::Fail, Value::Null),
        }
    };
    let judge = |answer: &Answer| (answer.outcome(&[204]), Value::Null);
    while !process.clients().is_stopped() {
        let at = ("operator", process.node());
        let seen = process.operate(intent(Kind::Lift, visitor), at, &get("/v1/blocks"), listed).await?;
        let block = match seen {
            (Outcome::Ok, _) => return Ok(()),
            (_, Value::String(block)) => block,
            _ => {
                tokio::time::sleep(super::PAUSE).await;
                continue;
            }
        };
        let request = wire::request("DELETE", &format!("/v1/blocks/{block}"), "localhost", "");
        let at = ("operator", process.node());
        process.operate(intent(Kind::Lift, visitor), at, &request, judge).await?;
    }
    Ok(())
}

/// The identity of a visitor.
fn id(visitor: &str) -> String {
    format!("spiffe://{TRUST_DOMAIN}/{visitor}")
}

fn intent(kind: Kind, visitor: &str) -> Intent<'_> {
    Intent { workload: Workload::Blocked, kind, key: visitor, input: Value::Null }
}
