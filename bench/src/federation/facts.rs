//! Many facts in the ledger of the origin: their import, what a few that differ cost, and a cut of the link.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::region::post;
use super::{Plan, World};
use crate::client::until;
use crate::load::as_f64;
use crate::node::memory_kib;
use crate::report::{Report, mib};
use crate::revocations::send;
use crate::settings::BULK_ISSUER;

/// Senders of signals.
const SENDERS: u64 = 32;
/// Subjects of a signal.
const SUBJECTS: u64 = 16;
/// Signals between two progress lines.
const PROGRESS_EVERY: u64 = 5000;

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

/// The origin revokes so many facts, by signals.
async fn fill(world: &World, facts: u64) -> Result<()> {
    let allowance = json!({"issuer": BULK_ISSUER, "more": facts + SUBJECTS});
    until(&world.origin.callers.operator, &post("/v1/sys/signals/allowance", &allowance), &[200]).await?;
    let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
    let (next, signals, begun) = (Arc::new(AtomicU64::new(0)), facts.div_ceil(SUBJECTS), Instant::now());
    let mut senders = JoinSet::<Result<()>>::new();
    for sender in 0..SENDERS {
        let targets = &world.origin.callers.transmitter;
        let index = usize::try_from(sender)? % targets.len().max(1);
        let Some(target) = targets.get(index).cloned() else { continue };
        let (next, fabric) = (Arc::clone(&next), world.origin.issuer.clone());
        senders.spawn(async move {
            let mut connection = None;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= signals {
                    return Ok(());
                }
                let subjects = number * SUBJECTS..facts.min((number + 1) * SUBJECTS);
                let request = signal(&fabric, &format!("{run}-{number}"), subjects);
                send(&target, &mut connection, &request).await?;
                if number > 0 && number.is_multiple_of(PROGRESS_EVERY) {
                    let per_sec = as_f64(number * SUBJECTS) / begun.elapsed().as_secs_f64();
                    eprintln!("{} facts, {per_sec:.0} in a second", number * SUBJECTS);
                }
            }
        });
    }
    while let Some(sender) = senders.join_next().await {
        sender??;
    }
    eprintln!("{facts} facts revoked in {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// A signal that revokes these subjects of its issuer.
fn signal(fabric: &str, jti: &str, subjects: std::ops::Range<u64>) -> Vec<u8> {
    let subject =
        |number| json!({"format": "iss_sub", "iss": BULK_ISSUER, "sub": format!("user-{jti}-{number}")});
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let set = json!({"iss": BULK_ISSUER, "jti": jti, "iat": now, "aud": fabric,
        "sub_id": {"format": "aliases", "identifiers": subjects.map(subject).collect::<Vec<_>>()},
        "events": {"https://schemas.openid.net/secevent/caep/event-type/session-revoked": {}}});
    post("/v1/signals/events", &set)
}
