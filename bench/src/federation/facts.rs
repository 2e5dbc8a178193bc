//! Many facts in the ledger of the origin: their import, the cost of a few that differ, and a cut of the
//! link.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use tokio::time::sleep;

use super::{Plan, World};
use crate::load::as_f64;
use crate::node::memory_kib;
use crate::report::{Report, mib};
use crate::revocations;

/// Imports many facts at once, and then a few more.
pub async fn import(world: &mut World, plan: &Plan, report: &mut Report) -> Result<()> {
    let before = memory(world)?;
    world.cut();
    fill(world, plan.entries).await?;
    let bytes = world.bytes();
    world.heal();
    let (took, entries) = world.until_equal().await?;
    let sent = world.bytes() - bytes;
    let grown = memory(world)?.saturating_sub(before);
    report.line("");
    report.table(&["import of a ledger that was written while the link was cut", ""]);
    report.row(&["entries", &entries.to_string()]);
    report.row(&["from the end of the cut until every node has them, s", &secs(took)]);
    report.row(&["entries per second", &format!("{:.0}", as_f64(plan.entries) / took.as_secs_f64())]);
    report
        .row(&["bytes of each entry over the links", &format!("{:.0}", as_f64(sent) / as_f64(plan.entries))]);
    report.row(&["memory of a node of the second region grown by, MiB", &mib(grown)]);

    world.cut();
    fill(world, plan.differing).await?;
    let bytes = world.bytes();
    world.heal();
    let (took, entries) = world.until_equal().await?;
    report.row(&[format!("{} of {entries} entries differ: until equal, s", plan.differing), secs(took)]);
    report
        .row(&["bytes over the links meanwhile, handshakes included", &(world.bytes() - bytes).to_string()]);
    Ok(())
}

/// Cuts the link while the origin revokes facts, and waits until every node has them.
pub async fn cut(world: &World, (minutes, facts): (f64, u64), report: &mut Report) -> Result<()> {
    let begun = Instant::now();
    world.cut();
    fill(world, facts).await?;
    sleep(Duration::from_secs_f64(60.0 * minutes).saturating_sub(begun.elapsed())).await;
    let (lasted, bytes) = (begun.elapsed(), world.bytes());
    world.heal();
    let (took, entries) = world.until_equal().await?;
    report.line("");
    report.table(&[
        "cut of the link, s",
        "facts meanwhile",
        "entries then",
        "until equal hashes, s",
        "bytes",
    ]);
    let sent = (world.bytes() - bytes).to_string();
    report.row(&[secs(lasted), facts.to_string(), entries.to_string(), secs(took), sent]);
    Ok(())
}

fn secs(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64())
}

/// Resident memory of the first node of the second region, in KiB.
fn memory(world: &World) -> Result<u64> {
    let Some(reader) = world.readers.first() else { return Ok(0) };
    Ok(memory_kib(reader.members.pid(0)?)?.0)
}

async fn fill(world: &World, facts: u64) -> Result<()> {
    let took = revoke(world, facts).await?;
    eprintln!("{facts} facts revoked in {:.1} s", took.as_secs_f64());
    Ok(())
}

/// The origin revokes so many new facts, by signals. Returns the time that it took.
pub async fn revoke(world: &World, facts: u64) -> Result<Duration> {
    let (origin, callers) = (&world.origin, &world.origin.callers);
    let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
    let nodes = (callers.operator.as_slice(), callers.transmitter.as_slice());
    revocations::fill(nodes, (&origin.issuer, &format!("{run}-")), facts).await
}
