//! `bench verify`: throughput of verifications beside its ceiling, and the cost of auditing them.
//!
//! The ceiling has two costs, measured in the same minute on the same machine: the verification of an ES256
//! signature, and a response of the same listener without a handler. The audit cannot be switched off. Its
//! cost lies between that of its two threads, which do nothing else here, and the difference to a
//! verification for an unknown tool, which verifies the token and is not audited.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};

use crate::load::{self, as_f64};
use crate::node::{Node, Start, ThreadUsage};
use crate::overload::Cores;
use crate::registry::{self, Draws};
use crate::report::{Report, ms};
use crate::window::{Window, middle};

/// Rounds; the median counts.
const ROUNDS: usize = 5;
const CONNECTIONS: usize = 256;
const TOOLS: u64 = 1000;
/// Tokens that are verified repeatedly.
const TOKENS: usize = 64;
/// Upper bound of verifications of new tokens per second and core.
const PER_SEC_MAX: usize = 10_000;
/// Fraction of the peak at which latency is measured.
const LATENCY_LOAD: f64 = 0.5;
/// The thread that writes audit entries.
const AUDIT_WRITER: &str = "audit-writer";
/// The thread that writes the log, which contains only audit blocks here.
const LOG_WRITER: &str = "log-writer";

const COLUMNS: [&str; 12] = [
    "round",
    "verify ES256",
    "bare HTTP",
    "ceiling",
    "new tokens",
    "of the ceiling",
    "tokens seen before",
    "of bare HTTP",
    "unknown tool",
    "p50",
    "p99",
    "generator busy",
];

pub async fn run(start: &Start, cores: Cores, seconds: u64) -> Result<bool> {
    let duration = Duration::from_secs(seconds);
    let node = start.node(Some(cores.node_core)).await?;
    drop(node.mint().await?);
    let target = node.target("gateway")?;
    registry::register(&target, 0, TOOLS).await?;
    node.until_quiet().await?;
    let bare = load::bare(&target.host);
    let mut report = Report::new("Verifications");
    report.line(
        "The node has one core and the generator another; rates are per second in closed loop, times in\n\
         milliseconds in open loop at half the rate of tokens that were seen before.\n",
    );
    report.table(&COLUMNS);

    let (draws, place, host) = (Draws::default(), (&node, &target), target.host.as_str());
    let before = Totals::now(&node)?;
    let (mut rounds, mut shares, mut all) = (Vec::new(), Shares::default(), Vec::new());
    for round in 0..ROUNDS {
        let new = Arc::new(node.tokens(PER_SEC_MAX * usize::try_from(seconds)?).await?);
        let few = Arc::new(new.iter().take(TOKENS).cloned().collect::<Vec<_>>());
        // Each new token once, independent of earlier draws.
        let each_once = registry::verify(&Draws::default(), host, TOOLS, Arc::clone(&new));
        let again = registry::verify(&draws, host, TOOLS, Arc::clone(&few));
        let unknown = registry::verify_unknown(&draws, host, TOOLS, few);

        let crypto = verifications_per_sec()?;
        let floor = Window::closed(place, &bare, load::BARE_STATUS, CONNECTIONS, duration).await?;
        let once = Window::closed(place, &each_once, 200, CONNECTIONS, duration).await?;
        let threads = node.threads()?;
        let seen = Window::closed(place, &again, 200, CONNECTIONS, duration).await?;
        shares.add(&threads, &node.threads()?, seen.tally.total());
        let absent = Window::closed(place, &unknown, 404, CONNECTIONS, duration).await?;
        let open = Window::open(place, &again, seen.per_sec() * LATENCY_LOAD, CONNECTIONS, duration).await?;
        if once.tally.total() > new.len() as u64 {
            report.line("(tokens were verified twice: too few were minted)");
        }
        let ceiling = 1.0 / (1.0 / crypto + 1.0 / floor.per_sec());
        let measured = [
            crypto,
            floor.per_sec(),
            ceiling,
            once.per_sec(),
            100.0 * once.per_sec() / ceiling,
            seen.per_sec(),
            100.0 * seen.per_sec() / floor.per_sec(),
            absent.per_sec(),
            open.ms(0.5),
            open.ms(0.99),
            seen.own_percent(),
        ];
        write_row(&mut report, &(round + 1).to_string(), &measured);
        rounds.push((measured, [once.micros_each(), seen.micros_each(), absent.micros_each()]));
        all.extend([once, seen, open]);
        report.fail(floor.wrong() + absent.wrong());
    }
    let of_all: [f64; 11] =
        std::array::from_fn(|column| middle(rounds.iter().map(|round| round.0[column]).collect()));
    write_row(&mut report, "**median**", &of_all);
    let micros: [f64; 3] =
        std::array::from_fn(|column| middle(rounds.iter().map(|round| round.1[column]).collect()));
    write_audit(&mut report, micros, &shares);
    node.until_quiet().await?;
    let verified = all.iter().map(|window| window.tally.count(200)).sum();
    before.write_bytes(&mut report, &Totals::now(&node)?, verified);
    report.fail(all.iter().map(Window::wrong).sum());
    report.finish(start.output.as_deref())
}

fn write_row(report: &mut Report, name: &str, measured: &[f64; 11]) {
    let mut cells = vec![name.to_owned()];
    for (column, value) in COLUMNS.iter().skip(1).zip(measured) {
        cells.push(match *column {
            "of the ceiling" | "of bare HTTP" | "generator busy" => format!("{value:.0} %"),
            "p50" | "p99" => ms(*value),
            _ => format!("{value:.0}"),
        });
    }
    report.row(&cells);
}

/// Usage of each kind of thread during verifications of known tokens.
#[derive(Default)]
struct Shares {
    cpu_secs: BTreeMap<String, f64>,
    verifications: u64,
}

impl Shares {
    fn add(
        &mut self,
        before: &BTreeMap<String, ThreadUsage>,
        after: &BTreeMap<String, ThreadUsage>,
        verifications: u64,
    ) {
        for (name, used) in after {
            let then = before.get(name).copied().unwrap_or_default();
            *self.cpu_secs.entry(name.clone()).or_default() += used.cpu_secs - then.cpu_secs;
        }
        self.verifications += verifications;
    }

    fn all(&self) -> f64 {
        self.cpu_secs.values().sum::<f64>().max(f64::MIN_POSITIVE)
    }

    fn of(&self, name: &str) -> f64 {
        self.cpu_secs.get(name).copied().unwrap_or_default()
    }

    fn micros_each(&self, secs: f64) -> f64 {
        1e6 * secs / as_f64(self.verifications.max(1))
    }
}

fn write_audit(report: &mut Report, [once, seen, absent]: [f64; 3], shares: &Shares) {
    report.line("");
    report.table(&["processor of the node, tokens seen before", "µs for each verification", "of all"]);
    let mut names: Vec<_> = shares.cpu_secs.iter().filter(|(_, secs)| **secs > 0.0).collect();
    names.sort_by(|one, other| other.1.total_cmp(one.1));
    for (name, secs) in names {
        report.row(&[
            format!("threads `{name}`"),
            format!("{:.1}", shares.micros_each(*secs)),
            format!("{:.1} %", 100.0 * secs / shares.all()),
        ]);
    }
    let writers = shares.of(AUDIT_WRITER) + shares.of(LOG_WRITER);
    for (name, micros) in [
        ("auditing, at least: those that write the audit and the log", shares.micros_each(writers)),
        ("auditing, at most: beside an unknown tool, where nothing is audited", seen - absent),
    ] {
        report.row(&[name.to_owned(), format!("{micros:.1}"), format!("{:.1} %", 100.0 * micros / seen)]);
    }
    report.line("");
    report.line(&format!(
        "A new token costs {once:.1} µs of the node's processor, one that was seen before {seen:.1} µs, an unknown\n\
         tool {absent:.1} µs (medians of the rounds)."
    ));
}

/// Totals so far.
struct Totals {
    threads: BTreeMap<String, ThreadUsage>,
    data_bytes: u64,
}

impl Totals {
    fn now(node: &Node) -> Result<Self> {
        Ok(Self { threads: node.threads()?, data_bytes: node.data_bytes()? })
    }

    fn write_bytes(&self, report: &mut Report, after: &Self, verifications: u64) {
        let written =
            |whole: &Self, name| whole.threads.get(name).map_or(0, |used: &ThreadUsage| used.written_bytes);
        let by = |name| written(after, name) - written(self, name);
        let each = |bytes: u64| format!("{:.0}", as_f64(bytes) / as_f64(verifications.max(1)));
        report.line("");
        report.table(&["written", "bytes for each of the verifications"]);
        report.row(&["to the journal of the audit".to_owned(), each(by(AUDIT_WRITER))]);
        report.row(&["to the log, in blocks".to_owned(), each(by(LOG_WRITER))]);
        let grown = after.data_bytes.saturating_sub(self.data_bytes);
        report.row(&["by which the data directory has grown, log and state".to_owned(), each(grown)]);
        report.row(&["verifications".to_owned(), verifications.to_string()]);
    }
}

/// ES256 verifications per second on this core.
fn verifications_per_sec() -> Result<f64> {
    const TURN: u64 = 100;
    let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).map_err(|_| anyhow!("make a key"))?;
    let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.public_key().as_ref().to_vec());
    let message = [b'a'; 700];
    let signature = key.sign(&SystemRandom::new(), &message).map_err(|_| anyhow!("sign"))?;
    let begun = Instant::now();
    let mut done = 0;
    while begun.elapsed() < Duration::from_secs(1) {
        for _ in 0..TURN {
            public.verify(&message, signature.as_ref()).map_err(|_| anyhow!("verify"))?;
        }
        done += TURN;
    }
    Ok(as_f64(done) / begun.elapsed().as_secs_f64())
}
