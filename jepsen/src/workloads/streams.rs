//! Streams: signals about a few subjects, pushed to two receivers of the harness.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use trust_fabric_bench::credentials::FABRIC;
use trust_fabric_bench::push_receiver::{self, ReservedAddress};
use trust_fabric_bench::settings::SIGNAL_ISSUER;

use super::until;
use crate::check::streams::STREAMS;
use crate::clients::{Clients, Intent, Process, acknowledged, post, signal};
use crate::history::{Kind, Outcome, Workload};

/// Each has one client, so that the order of its signals is known.
const SUBJECTS: u64 = 4;
const PRESENTED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-presented";
const STEP: Duration = Duration::from_millis(30);
/// Maximum wait for the last events: pushes to a receiver that did not answer are in backoff.
const ARRIVAL_MAX: Duration = Duration::from_secs(20);
const LOOK_PAUSE: Duration = Duration::from_millis(50);

pub struct Streams {
    acknowledged: AtomicU64,
    /// Different signals that arrived, over all streams.
    arrived: Arc<Mutex<std::collections::HashSet<(usize, String)>>>,
    _listening: Vec<JoinSet<()>>,
}

impl Streams {
    pub async fn begin(clients: &Arc<Clients>) -> Result<Arc<Self>> {
        let arrived = Arc::new(Mutex::new(std::collections::HashSet::new()));
        let mut listening = Vec::new();
        for stream in 0..STREAMS {
            let address = ReservedAddress::reserve()?;
            let (process, arrived) = (Mutex::new(clients.process(0)), Arc::clone(&arrived));
            let take = move |token: &[u8]| {
                let claims = push_receiver::claims(token)?;
                let Some(delivered) = delivered(&claims) else { return Ok(()) };
                let (subject, value) = delivered?;
                let txn = claims["txn"].as_str().unwrap_or_default().to_owned();
                let intent = Intent {
                    workload: Workload::Streams,
                    kind: Kind::Deliver,
                    key: &subject,
                    input: json!({"stream": stream}),
                };
                process.lock().unwrap_or_else(PoisonError::into_inner).observe(intent, 0, value)?;
                arrived.lock().unwrap_or_else(PoisonError::into_inner).insert((stream, txn));
                Ok(())
            };
            listening.push(push_receiver::listen(&address, Arc::new(take))?);
            let body = json!({
                "iss": FABRIC, "aud": address.url(), "events_requested": [PRESENTED],
                "delivery_method": "push", "endpoint_url": address.url(),
            });
            until(clients, "receiver", &post("/v1/signals/stream", "", &body), &[201]).await?;
        }
        Ok(Arc::new(Self { acknowledged: AtomicU64::new(0), arrived, _listening: listening }))
    }

    pub fn start(self: &Arc<Self>, clients: &Arc<Clients>, seed: u64, running: &mut JoinSet<Result<()>>) {
        for number in 0..SUBJECTS {
            let (streams, process) = (Arc::clone(self), clients.process(seed));
            running.spawn(async move { streams.client(process, number).await });
        }
    }

    /// Sends the signals of one subject, each until it is acknowledged.
    async fn client(self: Arc<Self>, mut process: Process, subject: u64) -> Result<()> {
        let clients = Arc::clone(process.clients());
        let subject = format!("s{}-{subject}", clients.run);
        let sub_id = json!({"format": "iss_sub", "iss": SIGNAL_ISSUER, "sub": subject});
        let mut number = 0;
        while !clients.stopped_within(STEP).await {
            number += 1;
            let jti = format!("{subject}-{number}");
            let request = post("/v1/signals/events", "", &signal(&jti, &sub_id, PRESENTED, &json!({})));
            loop {
                let intent = Intent {
                    workload: Workload::Streams,
                    kind: Kind::Emit,
                    key: &subject,
                    input: json!({"jti": jti, "number": number}),
                };
                let node = process.node();
                let at = ("transmitter", node);
                let (outcome, _) = process.operate(intent, at, &request, acknowledged).await?;
                if outcome == Outcome::Ok {
                    self.acknowledged.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                if clients.is_stopped() {
                    break;
                }
                sleep(super::PAUSE).await;
            }
        }
        Ok(())
    }

    /// Waits until every acknowledged signal has arrived on every stream, or for `ARRIVAL_MAX`.
    pub async fn until_delivered(&self) {
        let begun = Instant::now();
        let wanted = usize::try_from(self.acknowledged.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let arrived = || self.arrived.lock().unwrap_or_else(PoisonError::into_inner).len();
        while arrived() < wanted.saturating_mul(STREAMS) && begun.elapsed() < ARRIVAL_MAX {
            sleep(LOOK_PAUSE).await;
        }
    }
}

/// Subject and value of a delivery; `None` for an event that the harness did not cause.
fn delivered(claims: &Value) -> Option<Result<(String, Value)>> {
    let subject = claims["sub_id"]["sub"].as_str()?.to_owned();
    let of = || {
        let txn = claims["txn"].as_str().context("no txn")?;
        let number: u64 = txn.rsplit_once('-').context("txn")?.1.parse()?;
        let jti = claims["jti"].as_str().context("no jti")?;
        Ok((subject, json!({"jti": jti, "number": number})))
    };
    Some(of())
}
