//! `bench streams`: pushes to a receiver that was down, and their effect on another stream: each event at
//! least once and in order, the speed of the catch-up, and the losses of a kill in the middle. Beside them a
//! receiver that polls and never acknowledges.
//!
//! The receivers are in this process and answer 202 to everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::RSA_PKCS1_SHA256;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::credentials::FABRIC;
use crate::load::{self, as_f64};
use crate::node::{Node, Start};
use crate::overload::Cores;
use crate::push_receiver::{ARRIVAL_MAX, Receiver, ReservedAddress};
use crate::report::{Report, mib, ms};
use crate::revocations::send;
use crate::settings::SIGNAL_ISSUER;
use crate::signals;
use crate::wire::{self, Target};

/// Events of the stream that was down: two per signal, which revoke nothing.
const HELD: [&str; 2] = [
    "https://schemas.openid.net/secevent/caep/event-type/session-established",
    "https://schemas.openid.net/secevent/caep/event-type/session-presented",
];
/// The event of the other stream.
const QUICK: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";
/// Number of subjects.
const SUBJECTS: u64 = 1000;
/// Connections that send signals.
const SENDERS: usize = 16;
/// Signals of the other stream per second.
const QUICK_RATE: u64 = 50;
/// Duration of the measurement of signatures.
const SIGN_TIME: Duration = Duration::from_secs(2);
/// Polls that never acknowledge.
const POLLS: usize = 100;

#[derive(clap::Args, Clone, Copy)]
pub struct Size {
    /// Events to the receiver that is down for the first half
    #[arg(long, default_value_t = 100_000)]
    events: u64,
    /// Seconds for which the other stream is measured alone
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

pub async fn run(start: &Start, cores: Cores, size: Size) -> Result<bool> {
    let mut node = start.node(Some(cores.node_core)).await?;
    let mut report = Report::new("Streams");
    report.line(&format!(
        "{} events about {SUBJECTS} subjects to a receiver that is down for the first half of them; beside it another\n\
         stream, for which {QUICK_RATE} signals come in a second. The node has one core, the generator and the\n\
         receivers another.\n",
        size.events
    ));
    let ceiling = signatures_per_sec()?;
    let (place, quick) = (ReservedAddress::reserve()?, Receiver::start(&ReservedAddress::reserve()?)?);
    let held_id = create(&node, &place.url(), &HELD).await?;
    create(&node, &quick.url, &[QUICK]).await?;
    let polled_id = create_polled(&node, "receiver", &HELD).await?;

    let alone = latencies(&node, &quick, 0..QUICK_RATE * size.seconds).await?;
    let signals = size.events / HELD.len() as u64;
    send_signals(&node, 0..signals / 2).await?;
    let memory = node.memory_kib()?.0;
    let polled = poll(&node, &polled_id).await?;
    let mut alike = 0;
    for _ in 0..POLLS {
        alike += usize::from(poll(&node, &polled_id).await? == polled);
    }
    let memory_polled = node.memory_kib()?.0;
    let receiver = Receiver::start(&place)?;
    let meanwhile = {
        let numbers = QUICK_RATE * size.seconds..;
        let mut caught_up = JoinSet::new();
        let (target, wanted, seen) = (node.target("transmitter")?, size.events, receiver.seen());
        caught_up.spawn(async move {
            send_signals_to(&target, signals / 2..signals).await?;
            seen.until(wanted).await
        });
        let latencies = latencies_while(&node, &quick, numbers, &mut caught_up).await?;
        while let Some(done) = caught_up.join_next().await {
            done??;
        }
        latencies
    };
    let seen = receiver.seen();
    let took = seen.took();
    let rate = as_f64(size.events) / took.as_secs_f64();
    report.table(&["", "value"]);
    let mut row = |name: &str, value: String| report.row(&[name.to_owned(), value]);
    row("events delivered at least once", format!("{} of {}", seen.events(), size.events));
    row("delivered again, with the same jti", seen.repeats().to_string());
    row("with another jti", seen.renamed().to_string());
    row("out of their subject's order", seen.out_of_order().to_string());
    row("caught up, events in a second", format!("{rate:.0}"));
    row("RS256 signatures of one core in a second", format!("{ceiling:.0}"));
    row("memory of the node when the receiver came, MiB", mib(memory));
    row("its highest, MiB", mib(node.memory_kib()?.1));
    row(
        "never acknowledged: answers of as many polls that are the same, byte by byte",
        format!("{alike} of {POLLS}"),
    );
    row("memory of the node after them, MiB", mib(memory_polled));
    row("the other stream alone, p50 and p99, ms", both(&alone));
    row("the other stream meanwhile, p50 and p99, ms", both(&meanwhile));
    let mut wrong = u64::try_from(POLLS - alike)?
        + seen.renamed()
        + seen.out_of_order()
        + size.events.saturating_sub(seen.events());

    // The backlog is delivered until the node is killed in the middle.
    let more = size.events / 5;
    set_status(&node, &held_id, "paused").await?;
    send_signals(&node, signals..signals + more / HELD.len() as u64).await?;
    set_status(&node, &held_id, "enabled").await?;
    seen.until(size.events + more / 4).await?;
    let before = seen.events();
    node.still_runs()?;
    drop(node);
    let node = start.node_again(Some(cores.node_core)).await?;
    let all = size.events + more / HELD.len() as u64 * HELD.len() as u64;
    seen.until(all).await?;
    // Retries come first; nothing follows the last event.
    let lost = all.saturating_sub(seen.events());
    row("killed after, of", format!("{} of {}", before - size.events, all - size.events));
    row("lost", lost.to_string());
    row("delivered again, with the same jti", seen.repeats().to_string());
    row("with another jti", seen.renamed().to_string());
    row("out of their subject's order", seen.out_of_order().to_string());
    wrong += lost + seen.renamed() + seen.out_of_order();
    row("never acknowledged, at the end", status_line(&node, &polled_id).await?);
    drop(node);
    report.fail(wrong);
    report.finish(start.output.as_deref())
}

fn both(latencies: &[f64]) -> String {
    let mut sorted = latencies.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |percent: usize| sorted.get(sorted.len() * percent / 100).copied().unwrap_or_default();
    format!("{}, {} ({})", ms(at(50)), ms(at(99)), sorted.len())
}

/// Signatures per second of one core with a key of 2048 bits.
fn signatures_per_sec() -> Result<f64> {
    let key = KeyPair::generate(KeySize::Rsa2048).context("an RSA key")?;
    let (random, mut signature) = (SystemRandom::new(), vec![0; key.public_modulus_len()]);
    let (begun, mut signed) = (Instant::now(), 0);
    while begun.elapsed() < SIGN_TIME {
        let message = [7; 600];
        key.sign(&RSA_PKCS1_SHA256, &random, &message, &mut signature).context("sign")?;
        signed += 1;
    }
    Ok(as_f64(signed) / begun.elapsed().as_secs_f64())
}

/// Creates a push stream. Returns its id.
async fn create(node: &Node, url: &str, events: &[&str]) -> Result<String> {
    let target = node.target("receiver")?;
    let body = json!({
        "iss": FABRIC, "aud": url, "events_requested": events, "delivery_method": "push", "endpoint_url": url,
    });
    let answer = call(&target, "/v1/signals/stream", &body).await?;
    Ok(answer["stream_id"].as_str().context("no stream_id")?.to_owned())
}

/// Creates a poll stream as this caller. Returns its id.
pub async fn create_polled(node: &Node, caller: &str, events: &[&str]) -> Result<String> {
    let body = json!({
        "iss": FABRIC, "aud": "https://poller.example/", "events_requested": events, "delivery_method": "poll",
    });
    let answer = call(&node.target(caller)?, "/v1/signals/stream", &body).await?;
    Ok(answer["stream_id"].as_str().context("no stream_id")?.to_owned())
}

/// The response to a poll that acknowledges nothing.
async fn poll(node: &Node, stream_id: &str) -> Result<Vec<u8>> {
    let (target, path) = (node.target("receiver")?, format!("/v1/signals/poll/{stream_id}"));
    let body = json!({"returnImmediately": true}).to_string();
    let answer = target.call(&wire::request_with("POST", &path, &target.host, "", body.as_bytes())).await?;
    if answer.status != 200 {
        bail!("{path} is answered {}", answer.status);
    }
    Ok(answer.body().to_vec())
}

/// Status and reason of a stream, and the response to a poll of it.
async fn status_line(node: &Node, stream_id: &str) -> Result<String> {
    let (target, path) = (node.target("receiver")?, format!("/v1/signals/status?stream_id={stream_id}"));
    let answer = target.call(&wire::request_with("GET", &path, &target.host, "", b"")).await?;
    let status: Value = serde_json::from_slice(answer.body())?;
    let sets: Value = serde_json::from_slice(&poll(node, stream_id).await?)?;
    let sets = sets["sets"].as_object().map_or(0, serde_json::Map::len);
    let text = |name: &str| status[name].as_str().unwrap_or_default().to_owned();
    Ok(format!("{}: {}; {sets} tokens for a poll", text("status"), text("reason")))
}

async fn set_status(node: &Node, stream_id: &str, status: &str) -> Result<()> {
    let target = node.target("receiver")?;
    call(&target, "/v1/signals/status", &json!({"stream_id": stream_id, "status": status})).await.map(drop)
}

async fn call(target: &Target, path: &str, body: &Value) -> Result<Value> {
    let request = wire::request_with("POST", path, &target.host, "", body.to_string().as_bytes());
    let answer = target.call(&request).await?;
    if !matches!(answer.status, 200 | 201) {
        bail!("{path} is answered {}: {}", answer.status, String::from_utf8_lossy(answer.body()));
    }
    Ok(serde_json::from_slice(answer.body())?)
}

/// The body of signal `number` with these events, about one of [`SUBJECTS`] subjects.
fn signal(name: &str, number: u64, events: &[&str]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let events: serde_json::Map<_, _> = events.iter().map(|event| ((*event).to_owned(), json!({}))).collect();
    let set = json!({
        "iss": SIGNAL_ISSUER,
        "jti": format!("{name}-{number}"),
        "txn": format!("{name}-{number}"),
        "iat": now,
        "aud": FABRIC,
        "sub_id": {"format": "iss_sub", "iss": SIGNAL_ISSUER, "sub": format!("{name}-{}", number % SUBJECTS)},
        "events": events,
    });
    set.to_string()
}

async fn send_signals(node: &Node, numbers: std::ops::Range<u64>) -> Result<()> {
    send_signals_to(&node.target("transmitter")?, numbers).await
}

/// Sends these signals of the stream that was down, each until it is acknowledged.
async fn send_signals_to(target: &Target, numbers: std::ops::Range<u64>) -> Result<()> {
    let next = Arc::new(AtomicU64::new(numbers.start));
    let mut senders = JoinSet::<Result<()>>::new();
    for connection in load::open(target, SENDERS).await? {
        let (target, next, end) = (target.clone(), Arc::clone(&next), numbers.end);
        senders.spawn(async move {
            let mut connection = Some(connection);
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    return Ok(());
                }
                let body = signal("held", number, &HELD);
                send(&target, &mut connection, &signals::request(&target.host, &body)).await?;
            }
        });
    }
    while let Some(sender) = senders.join_next().await {
        sender??;
    }
    Ok(())
}

/// Time from a signal of the other stream to its arrival, in milliseconds.
async fn latencies(node: &Node, quick: &Receiver, numbers: std::ops::Range<u64>) -> Result<Vec<f64>> {
    let mut connection = None;
    let (target, mut sent) = (node.target("transmitter")?, Vec::new());
    for number in numbers {
        sent.push(send_quick(&target, &mut connection, number).await?);
    }
    arrived(quick, sent).await
}

/// The same for the duration of `work`.
async fn latencies_while(
    node: &Node,
    quick: &Receiver,
    numbers: std::ops::RangeFrom<u64>,
    work: &mut JoinSet<Result<()>>,
) -> Result<Vec<f64>> {
    let mut connection = None;
    let (target, mut sent) = (node.target("transmitter")?, Vec::new());
    for number in numbers {
        sent.push(send_quick(&target, &mut connection, number).await?);
        if let Some(done) = work.try_join_next() {
            done??;
            break;
        }
    }
    arrived(quick, sent).await
}

/// Waits for the next turn and sends a signal. Returns its name and the time.
async fn send_quick(
    target: &Target,
    connection: &mut Option<wire::Connection>,
    number: u64,
) -> Result<(String, Instant)> {
    let begun = Instant::now();
    let request = signals::request(&target.host, &signal("quick", number, &[QUICK]));
    send(target, connection, &request).await?;
    let turn = Duration::from_secs(1) / u32::try_from(QUICK_RATE)?;
    sleep(turn.saturating_sub(begun.elapsed())).await;
    Ok((format!("quick-{number}"), begun))
}

async fn arrived(quick: &Receiver, sent: Vec<(String, Instant)>) -> Result<Vec<f64>> {
    let seen = quick.seen();
    let mut latencies = Vec::with_capacity(sent.len());
    for (name, begun) in sent {
        let at =
            timeout(ARRIVAL_MAX, seen.until_event(&name, QUICK)).await.context("a signal did not arrive")?;
        latencies.push(at.saturating_duration_since(begun).as_secs_f64() * 1000.0);
    }
    Ok(latencies)
}
