//! `bench exchange`: throughput of exchanges beside its ceiling.
//!
//! The ceiling has two costs, measured in the same minute on the same machine: one ES256 verification and one
//! signature, and a response of the same listener without a handler.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};

use crate::credentials::PreparedRequests;
use crate::load::{self, Write, as_f64, quantile_ms};
use crate::node::Start;
use crate::overload::Load;
use crate::report::{Report, ms};

/// Rounds; the median counts.
const ROUNDS: usize = 5;
/// Duration of each measurement.
const STEP: Duration = Duration::from_secs(2);
const CONNECTIONS: usize = 32;
/// Fraction of the peak at which latency is measured.
const LATENCY_LOAD: f64 = 0.7;
/// Upper bound of exchanges per second and core.
const PER_SEC_MAX: usize = 30_000;

pub async fn run(start: &Start, load: Load) -> Result<bool> {
    let node = start.node(Some(load.cores.node_core)).await?;
    drop(node.mint().await?);
    let target = node.target("workload")?;
    let mut report = Report::new("Exchanges");
    report.line(
        "The node has one core and the generator another; rates are per second, times in milliseconds.\n",
    );
    report.table(&[
        "round",
        "verify + sign",
        "bare HTTP",
        "ceiling",
        "exchanges",
        "of the ceiling",
        "p50",
        "p99",
    ]);
    let bare = load::bare(&target.host);
    let mut rounds = Vec::new();
    let mut errors = 0;
    for round in 0..ROUNDS {
        let crypto = crypto_per_sec()?;
        let floor = load::closed_loop(&target, &bare, CONNECTIONS, STEP).await?;
        let count = PER_SEC_MAX * 2;
        let first = (round as u64 + 1) << 32;
        let prepared = Arc::new(PreparedRequests::new(&node.issuer, &target.host, first, count)?);
        let used = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let write: Write = {
            let (prepared, used) = (Arc::clone(&prepared), Arc::clone(&used));
            Arc::new(move |_, request: &mut Vec<u8>| {
                prepared.write(used.fetch_add(1, std::sync::atomic::Ordering::Relaxed), request);
            })
        };
        let peak = load::closed_loop(&target, &write, CONNECTIONS, STEP).await?;
        let open =
            load::open_loop(&target, &write, CONNECTIONS, peak.per_sec(200) * LATENCY_LOAD, STEP).await?;
        errors += floor.server_errors() + peak.server_errors() + open.server_errors();
        if used.load(std::sync::atomic::Ordering::Relaxed) > prepared.count() {
            report.line("(credentials were used twice: too few were prepared)");
        }
        let ceiling = 1.0 / (1.0 / crypto + 1.0 / floor.per_sec(load::BARE_STATUS));
        let good = open.since_due.get(&200);
        let measured = [
            crypto,
            floor.per_sec(load::BARE_STATUS),
            ceiling,
            peak.per_sec(200),
            100.0 * peak.per_sec(200) / ceiling,
            quantile_ms(good, 0.5),
            quantile_ms(good, 0.99),
        ];
        write_row(&mut report, &(round + 1).to_string(), &measured);
        rounds.push(measured);
    }
    let median: [f64; 7] = std::array::from_fn(|column| {
        let mut values: Vec<_> = rounds.iter().map(|round| round[column]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    });
    write_row(&mut report, "**median**", &median);
    report.fail(errors);
    report.finish(start.output.as_deref())
}

fn write_row(report: &mut Report, name: &str, measured: &[f64; 7]) {
    let [crypto, floor, ceiling, peak, part, p50, p99] = measured;
    report.row(&[
        name.to_owned(),
        format!("{crypto:.0}"),
        format!("{floor:.0}"),
        format!("{ceiling:.0}"),
        format!("{peak:.0}"),
        format!("{part:.0} %"),
        ms(*p50),
        ms(*p99),
    ]);
}

/// Pairs of a verification and a signature per second on this core.
fn crypto_per_sec() -> Result<f64> {
    const TURN: u64 = 100;
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).map_err(|_| anyhow!("make a key"))?;
    let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.public_key().as_ref().to_vec());
    let message = [b'a'; 700];
    let begun = Instant::now();
    let mut done = 0;
    while begun.elapsed() < Duration::from_secs(1) {
        for _ in 0..TURN {
            let signature = key.sign(&random, &message).map_err(|_| anyhow!("sign"))?;
            public.verify(&message, signature.as_ref()).map_err(|_| anyhow!("verify"))?;
        }
        done += TURN;
    }
    Ok(as_f64(done) / begun.elapsed().as_secs_f64())
}
