//! `bench signals`: time until a signal is acknowledged, beside the time of a disk sync, in turns; and
//! requests with signals.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde_json::json;

use crate::credentials::FABRIC;
use crate::load::{Write, as_f64};
use crate::node::Start;
use crate::overload::Cores;
use crate::report::{Report, ms};
use crate::settings::SIGNAL_ISSUER;
use crate::window::{Window, median, middle};
use crate::wire;

/// Rounds; the median counts.
const ROUNDS: usize = 5;
const CONNECTIONS: usize = 32;
/// Timed syncs per round.
const SYNCS: usize = 200;
/// Bytes per sync: one page.
const SYNC_BYTES: usize = 4096;

/// The body of a signal from an issuer to a fabric, which revokes every session of these subjects of the
/// issuer.
pub fn session_revoked(
    (issuer, fabric): (&str, &str),
    jti: &str,
    subjects: impl Iterator<Item = String>,
) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let subject = |sub: String| json!({"format": "iss_sub", "iss": issuer, "sub": sub});
    let set = json!({
        "iss": issuer,
        "jti": jti,
        "iat": now,
        "aud": fabric,
        "sub_id": {"format": "aliases", "identifiers": subjects.map(subject).collect::<Vec<_>>()},
        "events": {"https://schemas.openid.net/secevent/caep/event-type/session-revoked": {}},
    });
    set.to_string()
}

/// The request with this signal.
pub fn request(host: &str, body: &str) -> Vec<u8> {
    wire::request_with("POST", "/v1/signals/events", host, "", body.as_bytes())
}

pub async fn run(start: &Start, cores: Cores, seconds: u64, rate: f64) -> Result<bool> {
    let node = start.node(Some(cores.node_core)).await?;
    let target = node.target("transmitter")?;
    let host = target.host.clone();
    let duration = Duration::from_secs(seconds);
    let mut report = Report::new("Signals");
    report.line(&format!(
        "{rate:.0} signals in a second in open loop, each of which revokes one subject; and {SYNCS} syncs of one\n\
         page on the same disk before each measurement. Milliseconds.\n"
    ));
    report.table(&["round", "acknowledged", "p50", "p99", "one sync, p50", "one sync, p99", "other answers"]);
    let (mut windows, mut syncs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let synced = sync_times(&start.dir)?;
        let host = host.clone();
        let write: Write = Arc::new(move |number, buffer| {
            let subject = [format!("u{round}-{number}")].into_iter();
            let body = session_revoked((SIGNAL_ISSUER, FABRIC), &format!("{round}-{number}"), subject);
            *buffer = request(&host, &body);
        });
        let window =
            Window::open_expecting((&node, &target), &write, 202, rate, CONNECTIONS, duration).await?;
        write_row(&mut report, &(round + 1).to_string(), std::slice::from_ref(&window), &[synced]);
        windows.push(window);
        syncs.push(synced);
    }
    write_row(&mut report, "**median**", &windows, &syncs);
    report.fail(windows.iter().map(Window::wrong).sum());
    report.finish(start.output.as_deref())
}

fn write_row(report: &mut Report, name: &str, windows: &[Window], syncs: &[[f64; 2]]) {
    let others: u64 = windows.iter().map(|window| window.tally.total() - window.tally.count(202)).sum();
    let sync = |at: usize| ms(middle(syncs.iter().map(|sync| sync[at]).collect()));
    report.row(&[
        name.to_owned(),
        format!("{:.0}", median(windows, |window| as_f64(window.tally.count(202)))),
        ms(median(windows, |window| window.ms(0.5))),
        ms(median(windows, |window| window.ms(0.99))),
        sync(0),
        sync(1),
        others.to_string(),
    ]);
}

/// Median and 99th percentile of a sync of one page in `directory`, in milliseconds.
fn sync_times(directory: &Path) -> Result<[f64; 2]> {
    let path = directory.join("sync-probe");
    let mut file = File::create(&path)?;
    let mut times = Vec::with_capacity(SYNCS);
    for at in 0..SYNCS {
        file.seek(SeekFrom::Start((at * SYNC_BYTES) as u64))?;
        file.write_all(&[7; SYNC_BYTES])?;
        let begun = Instant::now();
        file.sync_data()?;
        times.push(begun.elapsed().as_secs_f64() * 1000.0);
    }
    std::fs::remove_file(path)?;
    times.sort_by(f64::total_cmp);
    let at = |quantile: usize| times.get(times.len() * quantile / 100).copied().unwrap_or_default();
    Ok([at(50), at(99)])
}
