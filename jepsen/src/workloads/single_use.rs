//! Single use: nonces, execution-scoped tokens and identifiers of security event tokens, presented to all nodes at once,
//! with and without `Idempotency-Key`. One presentation of each succeeds.

use std::sync::Arc;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use trust_fabric_bench::credentials::AUDIENCE;
use trust_fabric_bench::registry::body_hash;

use super::keys::part;
use super::{REVOKED, TOOL_ONCE, mint, verdict, verification};
use crate::clients::{Answer, Clients, Intent, Process, exchange, idempotency, post, signal, subject};
use crate::history::{Kind, Outcome, Workload};

const CLIENTS: u64 = 3;

/// A nonce, token or SET for a single use, with the requests that present it.
struct Once {
    used: &'static str,
    key: String,
    caller: &'static str,
    judge: fn(&Answer) -> (Outcome, Value),
    /// For each node.
    presentations: Vec<Presentation>,
}

struct Presentation {
    request: Vec<u8>,
    idempotency_key: Option<String>,
    content: u64,
}

pub fn start(clients: &Arc<Clients>, seed: u64, running: &mut JoinSet<Result<()>>) {
    for _ in 0..CLIENTS {
        let process = clients.process(seed);
        running.spawn(client(process));
    }
}

async fn client(mut process: Process) -> Result<()> {
    let clients = Arc::clone(process.clients());
    while !clients.is_stopped() {
        let number = clients.number();
        let once = match process.draw.below(3) {
            0 => nonce(&mut process, number)?,
            1 => set(&clients, number),
            _ => match token(&mut process, number).await? {
                Some(once) => once,
                None => continue,
            },
        };
        race(&mut process, &once).await?;
    }
    Ok(())
}

/// Presents it to all nodes at once, then once more to one of them.
async fn race(process: &mut Process, once: &Once) -> Result<()> {
    let clients = Arc::clone(process.clients());
    let nodes = clients.all();
    let mut racers: Vec<_> =
        once.presentations.iter().map(|_| clients.process(process.draw.next())).collect();
    let at_nodes = once.presentations.iter().zip(nodes.iter().cycle());
    let racing: Vec<_> = racers
        .iter_mut()
        .zip(at_nodes)
        .map(|(racer, (one, node))| present(racer, once, one, *node))
        .collect();
    for raced in join_all(racing).await {
        raced?;
    }
    let retried = process.draw.below(once.presentations.len() as u64);
    let retried = usize::try_from(retried).unwrap_or_default();
    // A retry goes to the next node.
    present(process, once, &once.presentations[retried], nodes[(retried + 1) % nodes.len()]).await
}

async fn present(process: &mut Process, once: &Once, one: &Presentation, node: usize) -> Result<()> {
    let intent = Intent {
        workload: Workload::SingleUse,
        kind: Kind::Spend,
        key: &once.key,
        input: json!({
            "what": once.used, "idempotency_key": one.idempotency_key, "content": one.content,
        }),
    };
    process.operate(intent, (once.caller, node), &one.request, once.judge).await.map(drop)
}

/// Waits for all of them, at the same time.
async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, output) in &mut running {
            if output.is_none()
                && let std::task::Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *output = Some(ready);
            }
        }
        if running.iter().any(|(_, output)| output.is_none()) {
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(running.iter_mut().filter_map(|(_, output)| output.take()).collect())
    })
    .await
}

/// Keys of the presentations: none, one of their own each, or the same.
fn keys(process: &mut Process, number: u64) -> Vec<Option<String>> {
    let (run, nodes) = (process.clients().run.clone(), process.clients().all().len());
    let mode = process.draw.below(3);
    (0..nodes)
        .map(|node| match mode {
            0 => None,
            1 => Some(format!("{run}-{number}-{node}")),
            _ => Some(format!("{run}-{number}")),
        })
        .collect()
}

/// A nonce of one subject in exchanges.
fn nonce(process: &mut Process, number: u64) -> Result<Once> {
    let clients = Arc::clone(process.clients());
    let account = format!("n{}", clients.run);
    let nonce = format!("{}-{number}", clients.run);
    let credential = clients.issuer.credential_of(&account, number)?;
    let execution = json!({"htm": "POST", "htu": AUDIENCE, "nonce": nonce});
    let body = exchange(&credential, Some(execution));
    let presentations = keys(process, number).into_iter().map(|key| Presentation {
        request: post("/v1/exchange/token", &idempotency(key.as_deref()), &body),
        idempotency_key: key,
        content: 0,
    });
    let judge = |answer: &Answer| match answer.status {
        // Answers with the same idempotency key have the same `jti`; the signatures differ.
        Some(200) => {
            let token = answer.body["access_token"].as_str().unwrap_or_default();
            // Without a readable token the value is null, which the checker reports.
            let accepted = |claims: Value| json!({"accepted": true, "jti": claims["jti"]});
            (Outcome::Ok, part(token, 1).map(accepted).unwrap_or_default())
        }
        // Other credentials are refused with this status too, such as one of the future by a wrong clock.
        Some(400) if answer.says("nonce already used") => (Outcome::Ok, json!(false)),
        _ => (answer.outcome(&[]), Value::Null),
    };
    let presentations = presentations.collect();
    Ok(Once { used: "nonce", key: nonce, caller: "workload", judge, presentations })
}

/// An execution-scoped token in verifications.
async fn token(process: &mut Process, number: u64) -> Result<Option<Once>> {
    let account = format!("x{}", process.clients().run);
    let nonce = format!("t{}-{number}", process.clients().run);
    let hash = body_hash(number);
    let execution = json!({"htm": "POST", "htu": AUDIENCE, "nonce": nonce, "payload_hash": hash});
    let Some(token) = mint(process, &account, Some(execution)).await? else { return Ok(None) };
    let presentations = keys(process, number).into_iter().map(|key| Presentation {
        request: verification(TOOL_ONCE, &token, key.as_deref(), Some(&hash)),
        idempotency_key: key,
        content: 0,
    });
    let presentations = presentations.collect();
    Ok(Some(Once { used: "execution_token", key: nonce, caller: "gateway", judge: verdict, presentations }))
}

/// One `jti` with two contents.
fn set(clients: &Clients, number: u64) -> Once {
    let jti = format!("once{}-{number}", clients.run);
    let sub_id = json!({"format": "uri", "uri": subject(&format!("gone{}-{number}", clients.run))});
    let presentations = (0..clients.all().len() as u64).map(|node| {
        let content = node % 2;
        let mut body = signal(&jti, &sub_id, REVOKED, &json!({"content": content}));
        // The same content has the same time.
        body["iat"] = json!(clients.issued_at);
        Presentation { request: post("/v1/signals/events", "", &body), idempotency_key: None, content }
    });
    let judge = |answer: &Answer| match answer.status {
        Some(202) if answer.body["status"] == "accepted" => (Outcome::Ok, json!("new")),
        Some(202) if answer.body["status"] == "duplicate" => (Outcome::Ok, json!("duplicate")),
        Some(409) => (Outcome::Ok, json!(false)),
        _ => (answer.outcome(&[]), Value::Null),
    };
    let presentations = presentations.collect();
    Once { used: "set", key: jti, caller: "transmitter", judge, presentations }
}
