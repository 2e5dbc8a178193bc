//! `bench revocations`: the cost of an index of many revocations beside an empty one: memory, start of a
//! node, and verifications.
//!
//! Two nodes of the same program are measured in turns. The revocations come as signals with the maximum of
//! subjects each; an operator raises the quota of their issuer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::until;
use crate::credentials::FABRIC;
use crate::load::{self, as_f64};
use crate::node::{Node, Start};
use crate::overload::Cores;
use crate::registry::{self, Draws};
use crate::report::{Report, mib, ms};
use crate::settings::BULK_ISSUER;
use crate::signals;
use crate::window::{Window, median};
use crate::wire::{self, Connection, RESPONSE_TIMEOUT, Target};

/// Rounds; the median counts.
const ROUNDS: usize = 5;
/// Connections of each measurement, and of the signals.
const CONNECTIONS: usize = 32;
const SENDERS: usize = 96;
/// Subjects per signal.
const SUBJECTS: u64 = 16;
const TOOLS: u64 = 1000;
/// Distinct tokens.
const TOKENS: usize = 64;
/// Fraction of the lower peak at which latency is measured.
const LATENCY_LOAD: f64 = 0.5;
/// Pause before a signal that was answered 503 is retried.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum tries per signal.
const TRIES_MAX: u32 = 2000;
/// Revocations between two progress messages.
const PROGRESS_EVERY: u64 = 50_000;

#[derive(clap::Args, Clone, Copy)]
pub struct Size {
    /// Revocations in the index
    #[arg(long, default_value_t = 10_000_000)]
    revocations: u64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 3)]
    seconds: u64,
}

struct Side {
    node: Node,
    target: Target,
    tokens: Arc<Vec<String>>,
    draws: Draws,
}

pub async fn run(start: &Start, cores: Cores, size: Size) -> Result<bool> {
    let mut report = Report::new("Revocations");
    report.line("Two nodes share one core and take turns, the generator has another.\n");
    report.table(&["the node", "no revocation", &format!("{} revocations", size.revocations)]);
    let place = |name: &str| Start { dir: start.dir.join(name), ..start.clone() };
    let (empty, full) = (place("empty"), place("full"));
    let core = Some(cores.node_core);

    let first = start_timed(&empty, core, false).await?.0;
    let mut filled = start_timed(&full, core, false).await?.0;
    let none = filled.memory_kib()?.0;
    let (operator, transmitter) = (filled.target("operator")?, filled.target("transmitter")?);
    let took = fill((&[operator], &[transmitter]), (FABRIC, ""), size.revocations).await?;
    let quiet = filled.until_quiet().await?;
    filled.still_runs()?;
    row(&mut report, "memory before, MiB", [mib(first.memory_kib()?.0), mib(none)]);
    let rate = as_f64(size.revocations) / took.as_secs_f64();
    row(&mut report, "revoked in a second", ["–".to_owned(), format!("{rate:.0}")]);
    row(&mut report, "quiet after, s", ["–".to_owned(), format!("{:.0}", quiet.as_secs_f64())]);
    row(&mut report, "memory then, MiB", [mib(first.memory_kib()?.0), mib(filled.memory_kib()?.0)]);
    row(&mut report, "its highest, MiB", [mib(first.memory_kib()?.1), mib(filled.memory_kib()?.1)]);
    row(
        &mut report,
        "data directory, MiB",
        [mib(first.data_bytes()? / 1024), mib(filled.data_bytes()? / 1024)],
    );
    drop((first, filled));

    // Killed and restarted on their data.
    let (first, first_took) = start_timed(&empty, core, true).await?;
    let (filled, filled_took) = start_timed(&full, core, true).await?;
    let secs = |took: Duration| format!("{:.1}", took.as_secs_f64());
    row(&mut report, "ready again after a kill, s", [secs(first_took), secs(filled_took)]);
    row(
        &mut report,
        "memory after the start, MiB",
        [mib(first.memory_kib()?.0), mib(filled.memory_kib()?.0)],
    );

    let sides = [Side::of(first).await?, Side::of(filled).await?];
    let duration = Duration::from_secs(size.seconds);
    let mut closed: [Vec<Window>; 2] = Default::default();
    for round in 0..ROUNDS {
        for index in [round % 2, 1 - round % 2] {
            let (side, write) = (&sides[index], sides[index].write());
            let place = (&side.node, &side.target);
            closed[index].push(Window::closed(place, &write, 200, CONNECTIONS, duration).await?);
        }
    }
    let peaks = closed.each_ref().map(|windows| median(windows, Window::per_sec));
    let rate = LATENCY_LOAD * peaks[0].min(peaks[1]);
    let mut open: [Vec<Window>; 2] = Default::default();
    for round in 0..ROUNDS {
        for index in [round % 2, 1 - round % 2] {
            let (side, write) = (&sides[index], sides[index].write());
            let place = (&side.node, &side.target);
            open[index].push(Window::open(place, &write, rate, CONNECTIONS, duration).await?);
        }
    }
    let both = |windows: &[Vec<Window>; 2], of: fn(&Window) -> f64| windows.each_ref().map(|w| median(w, of));
    let rates = both(&closed, Window::per_sec);
    row(&mut report, "verifications in a second", rates.map(|rate| format!("{rate:.0}")));
    let micros = both(&closed, Window::micros_each);
    row(&mut report, "node, µs each", micros.map(|micros| format!("{micros:.1}")));
    row(&mut report, "p50 at half the rate, ms", both(&open, |window| window.ms(0.5)).map(ms));
    row(&mut report, "p99 at half the rate, ms", both(&open, |window| window.ms(0.99)).map(ms));
    row(&mut report, "rate beside no revocation", ["1.00".to_owned(), format!("{:.2}", rates[1] / rates[0])]);
    let memory = [&sides[0], &sides[1]].map(|side| side.node.memory_kib().map(|memory| mib(memory.1)));
    let [one, other] = memory;
    row(&mut report, "highest memory since the start, MiB", [one?, other?]);
    report.fail(closed.iter().chain(&open).flatten().map(Window::wrong).sum());
    report.finish(start.output.as_deref())
}

fn row(report: &mut Report, name: &str, [one, other]: [String; 2]) {
    report.row(&[name.to_owned(), one, other]);
}

async fn start_timed(start: &Start, core: Option<usize>, again: bool) -> Result<(Node, Duration)> {
    let begun = Instant::now();
    let node = if again { start.node_again(core).await? } else { start.node(core).await? };
    Ok((node, begun.elapsed()))
}

impl Side {
    async fn of(node: Node) -> Result<Self> {
        let target = node.target("gateway")?;
        registry::register(&target, 0, TOOLS).await?;
        node.until_quiet().await?;
        let tokens = Arc::new(node.tokens(TOKENS).await?);
        Ok(Self { node, target, tokens, draws: Draws::default() })
    }

    fn write(&self) -> load::Write {
        registry::verify(&self.draws, &self.target.host, TOOLS, Arc::clone(&self.tokens))
    }
}

/// Revokes so many subjects of a fabric, whose names begin with `run`, by signals to each node in turn. Returns the duration.
pub async fn fill(
    (operator, transmitter): (&[Target], &[Target]),
    (fabric, run): (&str, &str),
    revocations: u64,
) -> Result<Duration> {
    let allowance = json!({"issuer": BULK_ISSUER, "more": revocations}).to_string();
    let path = "/v1/sys/signals/allowance";
    let allowance = wire::request_with("POST", path, "localhost", "", allowance.as_bytes());
    until(operator, &allowance, &[200]).await?;
    let (next, signals) = (Arc::new(AtomicU64::new(0)), revocations.div_ceil(SUBJECTS));
    let mut senders = JoinSet::<Result<()>>::new();
    let begun = Instant::now();
    for target in transmitter.iter().cycle().take(SENDERS).cloned() {
        let (next, fabric, run) = (Arc::clone(&next), fabric.to_owned(), run.to_owned());
        senders.spawn(async move {
            let mut connection = None;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= signals {
                    return Ok(());
                }
                let subjects = (number * SUBJECTS..revocations.min((number + 1) * SUBJECTS))
                    .map(|subject| format!("user-{run}{subject:012}"));
                let names = (BULK_ISSUER, fabric.as_str());
                let body = signals::session_revoked(names, &format!("{run}{number}"), subjects);
                send(&target, &mut connection, &signals::request(&target.host, &body)).await?;
                if number > 0 && number.is_multiple_of(PROGRESS_EVERY) {
                    let per_sec = as_f64(number * SUBJECTS) / begun.elapsed().as_secs_f64();
                    eprintln!("{} revocations, {per_sec:.0} in a second", number * SUBJECTS);
                }
            }
        });
    }
    while let Some(sender) = senders.join_next().await {
        sender??;
    }
    Ok(begun.elapsed())
}

/// Retries until it is acknowledged: a duplicate counts once.
pub async fn send(target: &Target, connection: &mut Option<Connection>, request: &[u8]) -> Result<()> {
    for _ in 0..TRIES_MAX {
        let mut open = match connection.take() {
            Some(open) => open,
            None => target.connect().await?,
        };
        match timeout(RESPONSE_TIMEOUT, open.call_status(request)).await {
            Ok(Ok((status, last))) => {
                *connection = (!last).then_some(open);
                match status {
                    202 => return Ok(()),
                    429 | 503 => tokio::time::sleep(PAUSE).await,
                    other => bail!("a signal is answered {other}"),
                }
            }
            Ok(Err(_)) | Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    bail!("a signal was not acknowledged")
}
