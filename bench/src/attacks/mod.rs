//! `bench attacks`: every attack against one node, beside a well-behaved client.
//!
//! One file per family of attacks. An attack reports its tries and violations; this file measures the client.

mod bodies;
mod callers;
mod framing;
mod hosts;
mod http2;
mod paths;
mod routes;
pub mod slow;

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::time::timeout;

use crate::good_client::GoodClient;
use crate::load::{is_server_error, quantile_ms};
use crate::node::{Node, Start};
use crate::report::{Report, mib, ms};
use routes::Route;

/// Measurement of the client before each attack.
const BEFORE: Duration = Duration::from_secs(3);
/// A short attack is repeated for this long, so that the client can notice it.
const DURING_MIN: Duration = Duration::from_secs(3);
/// Maximum rounds of one attack.
const ROUNDS_MAX: usize = 200;
/// Maximum time of one round; beyond it the attack is aborted and reported.
const ROUND_MAX: Duration = Duration::from_secs(120);
/// Maximum notes per attack.
const NOTES_MAX: usize = 8;

/// Shared context of the attacks.
struct AttackContext<'n> {
    node: &'n Node,
    /// All routes of `/openapi.json`.
    routes: Vec<Route>,
    /// A token that the node minted for another audience.
    minted: String,
}

#[derive(Clone, Copy)]
enum Attack {
    Certificates,
    Headers,
    Bearers,
    Framing,
    Hosts,
    Paths,
    Compressed,
    Slow(slow::Variant),
    Http2(http2::Flood),
}

impl Attack {
    fn all() -> Vec<Self> {
        let single = [
            Self::Certificates,
            Self::Headers,
            Self::Bearers,
            Self::Framing,
            Self::Hosts,
            Self::Paths,
            Self::Compressed,
        ];
        let slow = slow::VARIANTS.into_iter().map(Self::Slow);
        let floods = http2::FLOODS.into_iter().map(Self::Http2);
        single.into_iter().chain(slow).chain(floods).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Certificates => "no or a bad client certificate, every protected route",
            Self::Headers => "spoofed forwarding and certificate headers, every protected route",
            Self::Bearers => "bad bearers, every protected route",
            Self::Framing => "raw HTTP/1.1 framing",
            Self::Hosts => "Host attacks on public documents",
            Self::Paths => "path tricks, every route",
            Self::Compressed => "compressed bodies",
            Self::Slow(variant) => variant.name(),
            Self::Http2(flood) => flood.name(),
        }
    }

    /// Development mode has neither callers nor TLS.
    fn needs_tls(self) -> bool {
        match self {
            Self::Certificates | Self::Headers | Self::Bearers | Self::Http2(_) => true,
            Self::Slow(variant) => variant.needs_tls(),
            _ => false,
        }
    }

    async fn run(self, field: &AttackContext<'_>) -> Result<Outcome> {
        match self {
            Self::Certificates => callers::certificates(field).await,
            Self::Headers => callers::headers(field).await,
            Self::Bearers => callers::bearers(field).await,
            Self::Framing => framing::attack(field).await,
            Self::Hosts => hosts::attack(field).await,
            Self::Paths => paths::attack(field).await,
            Self::Compressed => bodies::compressed(field).await,
            Self::Slow(variant) => slow::attack(field.node, variant, slow::CONNECTIONS).await,
            Self::Http2(flood) => http2::attack(field, flood).await,
        }
    }
}

/// Result of an attack.
#[derive(Default)]
pub struct Outcome {
    /// Requests, streams, frames or connections, depending on the attack.
    pub tries: u64,
    /// Responses that accepted an attack.
    pub wrong_accepts: u64,
    /// Responses 500 and above, except 503.
    pub server_errors: u64,
    /// Time until the node had closed the last connection of the attack.
    pub closed_within: Option<Duration>,
    /// Connections still open at the end of the wait.
    pub left_open: u64,
    /// Notes for the report.
    pub notes: Vec<String>,
}

impl Outcome {
    /// Counts a response that must be a refusal with one of these statuses (0: no response).
    pub fn must_refuse(&mut self, what: &str, status: u16, expected: &[u16]) {
        self.tries += 1;
        if (100..400).contains(&status) {
            self.wrong_accepts += 1;
            self.note(format!("ACCEPTED with {status}: {what}"));
        } else if is_server_error(status) {
            self.server_errors += 1;
            self.note(format!("SERVER ERROR {status}: {what}"));
        } else if !expected.contains(&status) {
            self.note(format!("refused with {status} instead of {expected:?}: {what}"));
        }
    }

    /// Records a note once.
    pub fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn add(&mut self, other: Self) {
        self.tries += other.tries;
        self.wrong_accepts += other.wrong_accepts;
        self.server_errors += other.server_errors;
        self.left_open += other.left_open;
        self.closed_within = self.closed_within.max(other.closed_within);
        other.notes.into_iter().for_each(|note| self.note(note));
    }

    pub fn closed(&self) -> String {
        let within = self.closed_within.map(|within| format!("{:.1}", within.as_secs_f64()));
        let open = (self.left_open > 0).then(|| format!("{} LEFT OPEN", self.left_open));
        let said: Vec<_> = within.into_iter().chain(open).collect();
        if said.is_empty() { "–".to_owned() } else { said.join(", ") }
    }
}

/// Runs all attacks whose name contains `only`.
pub async fn run(start: &Start, only: Option<&str>, rate: f64) -> Result<bool> {
    let mut node = start.node(None).await?;
    let minted = node.mint().await?;
    let routes = routes::read(&node).await?;
    let mut report = Report::new("Attacks");
    report.line(&format!(
        "A good client makes {rate} exchanges in a second, each with a new credential; its latency counts from\n\
         the time each was due. Memory is resident, in MiB; times are in milliseconds, closing in seconds.\n"
    ));
    report.table(&[
        "attack",
        "tries",
        "wrong accepts",
        "5xx other than 503",
        "memory before",
        "after",
        "highest",
        "good p99 before",
        "during",
        "good client not served",
        "closed within",
    ]);
    let good = GoodClient::start(&node, rate)?;
    let mut notes = Vec::new();
    for attack in Attack::all() {
        if (start.plain && attack.needs_tls()) || only.is_some_and(|only| !attack.name().contains(only)) {
            continue;
        }
        let before = good.alone(BEFORE).await;
        let (memory_before, _) = node.memory_kib()?;
        node.reset_peak();
        drop(good.take());
        let field = AttackContext { node: &node, routes: routes.clone(), minted: minted.clone() };
        let outcome = rounds(attack, &field).await?;
        let during = good.take();
        node.still_runs()?;
        let (memory_after, peak) = node.memory_kib()?;
        let errors = outcome.server_errors + during.server_errors();
        report.row(&[
            attack.name().to_owned(),
            outcome.tries.to_string(),
            outcome.wrong_accepts.to_string(),
            errors.to_string(),
            mib(memory_before),
            mib(memory_after),
            mib(peak),
            ms(quantile_ms(before.since_due.get(&200), 0.99)),
            ms(quantile_ms(during.since_due.get(&200), 0.99)),
            format!("{} of {}", during.total() - during.count(200), during.total()),
            outcome.closed(),
        ]);
        report.fail(outcome.wrong_accepts + errors);
        notes.push((attack.name(), outcome.notes));
    }
    drop(good);
    for (name, lines) in notes.iter().filter(|(_, lines)| !lines.is_empty()) {
        report.line(&format!("\n**{name}**\n"));
        for line in lines.iter().take(NOTES_MAX) {
            report.line(&format!("- {line}"));
        }
        if lines.len() > NOTES_MAX {
            report.line(&format!("- and {} more", lines.len() - NOTES_MAX));
        }
    }
    report.finish(start.output.as_deref())
}

async fn rounds(attack: Attack, field: &AttackContext<'_>) -> Result<Outcome> {
    let begun = Instant::now();
    let mut all = Outcome::default();
    for _ in 0..ROUNDS_MAX {
        let Ok(outcome) = timeout(ROUND_MAX, attack.run(field)).await else {
            all.note(format!("ABORTED after {ROUND_MAX:?}: the numbers are not complete"));
            break;
        };
        all.add(outcome?);
        if begun.elapsed() >= DURING_MIN {
            break;
        }
    }
    Ok(all)
}
