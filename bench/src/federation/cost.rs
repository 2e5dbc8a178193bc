//! Processor time of a local verification while the ledger of the origin is imported, compared with none.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::time::{interval, sleep};

use super::{World, facts};
use crate::load::{self, Write, as_f64};
use crate::node::cpu_secs;
use crate::region::Region;
use crate::registry::write_verification;
use crate::report::Report;
use crate::window::middle;

/// Rounds; the median counts.
const ROUNDS: u32 = 7;
/// Duration of each of the four measurements of a round.
const WINDOW: Duration = Duration::from_secs(8);
/// Verifications per second, in open loop, and the connections over which they are sent.
const VERIFICATIONS_PER_SEC: f64 = 1_000.0;
const CONNECTIONS: usize = 32;
/// Facts are revoked in steps of this length.
const STEP: Duration = Duration::from_millis(250);

/// Measures one node of the second region: idle, with imports, with verifications, and with both. A verification costs the
/// difference that it makes to each of the first two.
pub async fn measure(world: &World, facts_per_sec: u64, report: &mut Report) -> Result<()> {
    let reader = world.readers.first().context("no region reads")?;
    let node = reader.members.pid(0)?.to_string();
    report.line(&format!(
        "\n{VERIFICATIONS_PER_SEC} verifications of a local token per second on one node, alone and while {facts_per_sec} facts of \
         the origin are imported per second; processor seconds of the node in {} s each.\n",
        WINDOW.as_secs()
    ));
    report.table(&["round", "idle", "imports", "verifications", "both", "µs alone", "µs beside", "ratio"]);
    let mut ratios = Vec::new();
    for round in 1..=ROUNDS {
        let write = verification(reader).await?;
        let quiet = async {
            sleep(WINDOW).await;
            Ok(())
        };
        let (idle, ()) = used(&node, quiet).await?;
        let (alone, verified) = used(&node, verify(reader, &write)).await?;
        let (imports, ()) = used(&node, revoke(world, facts_per_sec)).await?;
        let both = async { tokio::try_join!(verify(reader, &write), revoke(world, facts_per_sec)) };
        let (both, (verified_beside, ())) = used(&node, both).await?;
        let micros_alone = 1e6 * (alone - idle) / as_f64(verified);
        let micros_beside = 1e6 * (both - imports) / as_f64(verified_beside);
        ratios.push(micros_beside / micros_alone);
        let secs = [idle, imports, alone, both].map(|secs| format!("{secs:.2}"));
        let each = [micros_alone, micros_beside].map(|micros| format!("{micros:.1}"));
        let ratio = format!("{:.3}", micros_beside / micros_alone);
        report.row(&[&[round.to_string()][..], &secs, &each, &[ratio]].concat());
        world.until_equal().await?;
    }
    report.line(&format!("\nMedian of the ratios: {:.3}.", middle(ratios)));
    Ok(())
}

/// Processor time that the node uses during `work`, and its result.
async fn used<T>(node: &str, work: impl Future<Output = Result<T>>) -> Result<(f64, T)> {
    let before = cpu_secs(node)?;
    let done = work.await?;
    Ok((cpu_secs(node)? - before, done))
}

/// The request that verifies a token of an agent of this region.
async fn verification(region: &Region) -> Result<Write> {
    let (_, identity) = region.callers.agent().await?;
    let token = region.callers.exchange(&identity, &region.tool()).await?;
    Ok(Arc::new(move |number, request| write_verification(request, "localhost", "sql", &token, number)))
}

/// Returns the number of accepted verifications.
async fn verify(region: &Region, write: &Write) -> Result<u64> {
    let target = region.callers.gateway.first().context("no node")?;
    let tally = load::open_loop(target, write, CONNECTIONS, VERIFICATIONS_PER_SEC, WINDOW).await?;
    anyhow::ensure!(tally.count(200) > 0, "no verification was answered 200: {}", tally.statuses());
    Ok(tally.count(200))
}

/// The origin revokes so many facts per second.
async fn revoke(world: &World, facts_per_sec: u64) -> Result<()> {
    let (begun, mut steps) = (Instant::now(), interval(STEP));
    let per_step = facts_per_sec * u64::try_from(STEP.as_millis())? / 1000;
    while begun.elapsed() + STEP <= WINDOW {
        steps.tick().await;
        facts::revoke(world, per_step).await?;
    }
    sleep(WINDOW.saturating_sub(begun.elapsed())).await;
    Ok(())
}
