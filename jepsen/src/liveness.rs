//! After the faults: everything works on every node within five seconds.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::clients::{Answer, Clients, Intent, exchange, get, post, signal, subject};
use crate::history::{Kind, Outcome, Workload};
use crate::workloads::{REVOKED, tool_entry};

/// Maximum time from the end of the faults until a request succeeds.
const WORKS_MAX: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// One request of each kind.
struct Probe {
    name: &'static str,
    caller: &'static str,
    request: Vec<u8>,
    good: &'static [u16],
    /// A node whose signing key was tainted mints nothing until its successor is ten minutes old, and is not ready.
    needs_key: bool,
}

/// Tries every probe on every node until it succeeds, and records whether it did in time.
pub async fn look(clients: &Arc<Clients>) -> Result<()> {
    let mut trying = JoinSet::new();
    let begun = Instant::now();
    for node in clients.all() {
        for probe in probes(clients)? {
            if probe.needs_key && !clients.all_with_keys().contains(&node) {
                continue;
            }
            let mut process = clients.process(node as u64);
            trying.spawn(async move {
                let invoke = process.clients().recorder.now();
                let mut works = false;
                while !works && begun.elapsed() < WORKS_MAX {
                    let answer = process.clients().call(probe.caller, node, &probe.request).await;
                    works = answer.status.is_some_and(|status| probe.good.contains(&status));
                    if !works {
                        sleep(PAUSE).await;
                    }
                }
                // An answer that came too late does not count.
                works &= begun.elapsed() < WORKS_MAX;
                let end = process.clients().recorder.now();
                let intent = Intent {
                    workload: Workload::Liveness,
                    kind: Kind::Works,
                    key: probe.name,
                    input: Value::Null,
                };
                process.record(intent, node, &Answer::observed(invoke, end), Outcome::Ok, json!(works))
            });
        }
    }
    while let Some(tried) = trying.join_next().await {
        tried??;
    }
    Ok(())
}

fn probes(clients: &Clients) -> Result<Vec<Probe>> {
    let number = clients.number();
    let account = format!("l{}-{number}", clients.run);
    let credential = clients.issuer.credential_of(&account, number)?;
    let sub_id = json!({"format": "uri", "uri": subject(&format!("gone-{account}"))});
    let tool = tool_entry(&account, number);
    Ok(vec![
        Probe {
            name: "exchange",
            caller: "workload",
            request: post("/v1/exchange/token", "", &exchange(&credential, None)),
            good: &[200],
            needs_key: true,
        },
        Probe {
            name: "write",
            caller: "gateway",
            request: post("/v1/tools", "", &tool),
            good: &[200, 201],
            needs_key: false,
        },
        Probe {
            name: "read",
            caller: "gateway",
            request: get("/v1/tools?limit=1"),
            good: &[200],
            needs_key: false,
        },
        Probe {
            name: "revoke",
            caller: "transmitter",
            request: post("/v1/signals/events", "", &signal(&account, &sub_id, REVOKED, &json!({}))),
            good: &[202],
            needs_key: false,
        },
        Probe {
            name: "keys",
            caller: "gateway",
            request: get("/v1/identity/jwks"),
            good: &[200],
            needs_key: false,
        },
        Probe { name: "ready", caller: "gateway", request: get("/readyz"), good: &[200], needs_key: true },
    ])
}
