//! After the faults: agents cross again in time, and the ledgers become equal.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use trust_fabric_bench::region::{AGENTS, exchange};

use super::load::crossing;
use super::world::Fabrics;
use crate::clients::{Answer, Clients, Intent, get};
use crate::history::{Kind, Outcome, Workload};

/// Maximum time from the end of the faults until a request succeeds: the longest pause of the relying region between two
/// calls of a silent origin, and twice the time in which it finds out that a connection is dead.
const WORKS_MAX: Duration = Duration::from_secs(15);
/// Maximum wait for equal ledgers.
const EQUAL_MAX: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);

/// Mints on every node of the origin, and crosses to every node of the relying region, until each works; records whether it
/// did in time.
pub async fn look(clients: &Arc<Clients>, fabrics: &Fabrics) -> Result<()> {
    let mut trying = JoinSet::new();
    let begun = Instant::now();
    for node in 0..2 * fabrics.nodes {
        let (clients, fabrics) = (Arc::clone(clients), fabrics.clone());
        trying.spawn(async move {
            let invoke = clients.recorder.now();
            let mut works = false;
            while !works && begun.elapsed() < WORKS_MAX {
                works = works_at(&clients, &fabrics, node).await;
                if !works {
                    sleep(PAUSE).await;
                }
            }
            // An answer that came too late does not count.
            works &= begun.elapsed() < WORKS_MAX;
            let answer = Answer::observed(invoke, clients.recorder.now());
            let key = if node < fabrics.nodes { "mint" } else { "cross" };
            let intent = Intent { workload: Workload::Liveness, kind: Kind::Works, key, input: Value::Null };
            clients.process(node as u64).record(intent, node, &answer, Outcome::Ok, json!(works))
        });
    }
    while let Some(tried) = trying.join_next().await {
        tried??;
    }
    Ok(())
}

async fn works_at(clients: &Clients, fabrics: &Fabrics, node: usize) -> bool {
    // The nodes of the origin take turns in minting for those of the relying region.
    let Some((_, token)) = crossing(clients, fabrics, node % fabrics.nodes).await else { return false };
    if node < fabrics.nodes {
        return true;
    }
    let answer = clients.call(AGENTS, node, &exchange(&token, &fabrics.tool)).await;
    answer.status == Some(200)
}

/// Waits for equal ledgers of the origin on all nodes. If they are not in time, the reads show it.
pub async fn until_equal(clients: &Clients, fabrics: &Fabrics) {
    let begun = Instant::now();
    while begun.elapsed() < EQUAL_MAX {
        let mut hashes = Vec::new();
        for node in 0..2 * fabrics.nodes {
            hashes.push(content(&ledger(clients, fabrics, node).await)["hash"].clone());
        }
        if hashes[0].is_string() && hashes.iter().all(|hash| *hash == hashes[0]) {
            return;
        }
        sleep(PAUSE).await;
    }
}

/// Records the ledger of the origin as each node has it.
pub async fn read_ledgers(clients: &Arc<Clients>, fabrics: &Fabrics, seed: u64) -> Result<()> {
    let mut process = clients.process(seed);
    for node in 0..2 * fabrics.nodes {
        let answer = ledger(clients, fabrics, node).await;
        let region = if node < fabrics.nodes { &fabrics.origin } else { &fabrics.relying };
        let intent = Intent {
            workload: Workload::Federation,
            kind: Kind::Read,
            key: "ledger",
            input: json!({"region": region}),
        };
        process.record(intent, node, &answer, answer.outcome(&[200]), content(&answer))?;
    }
    Ok(())
}

fn content(answer: &Answer) -> Value {
    json!({"hash": answer.body["hash"], "count": answer.body["count"]})
}

async fn ledger(clients: &Clients, fabrics: &Fabrics, node: usize) -> Answer {
    let origin = if node < fabrics.nodes { String::new() } else { format!("?origin={}", fabrics.origin) };
    clients.call("operator", node, &get(&format!("/v1/federation/revocation-hash{origin}"))).await
}
