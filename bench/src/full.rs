//! `bench full`: exchanges and verifications at a node with many revocations, tools and streams beside an empty node.
//!
//! Two nodes of the same program share a core and take turns. The two measurements of a round are a pair: other load on the
//! machine affects both alike, so their ratio counts.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use crate::credentials::{FABRIC, PreparedRequests};
use crate::load::Write;
use crate::node::{Node, Start};
use crate::overload::Cores;
use crate::registry::{self, Draws};
use crate::report::{Report, mib};
use crate::revocations;
use crate::settings::SUBSCRIBERS;
use crate::streams;
use crate::window::{Window, middle};

const CONNECTIONS: usize = 32;
/// Tools of the empty node: a verification needs one.
const TOOLS: u64 = 1000;
/// Distinct tokens of the verifications.
const TOKENS: usize = 64;
/// Upper bound of exchanges per second; a measurement ends when its credentials are used.
const PER_SEC_MAX: usize = 12_000;
/// The event of the streams, which neither an exchange nor a verification sends.
const EVENT: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";

#[derive(clap::Args, Clone, Copy)]
pub struct Size {
    /// Revocations of the full node
    #[arg(long, default_value_t = 10_000_000)]
    revocations: u64,
    /// Tools of the full node
    #[arg(long, default_value_t = 1_000_000)]
    tools: u64,
    /// Streams of the full node
    #[arg(long, default_value_t = 1_000)]
    streams: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Rounds; the median of their ratios counts
    #[arg(long, default_value_t = 7)]
    rounds: u64,
}

/// A node and its content.
struct Side {
    node: Node,
    tools: u64,
    draws: Draws,
    /// The number of the next credential.
    next: u64,
}

#[derive(Clone, Copy)]
enum Kind {
    Exchange,
    Verify,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Exchange, Self::Verify];

    const fn name(self) -> &'static str {
        match self {
            Self::Exchange => "exchange, new ES256 credential",
            Self::Verify => "verify, token seen before",
        }
    }
}

pub async fn run(start: &Start, cores: Cores, size: Size) -> Result<bool> {
    let place = |name: &str| Start { dir: start.dir.join(name), ..start.clone() };
    let mut sides = [
        Side::filled(&place("empty"), cores.node_core, (0, TOOLS, 0)).await?,
        Side::filled(&place("full"), cores.node_core, (size.revocations, size.tools, size.streams)).await?,
    ];
    let mut report = Report::new("A full node beside an empty one");
    report.line(&format!(
        "Two nodes share one core and take turns, the generator has another. The full one has {} revocations, {} tools\n\
         and {} streams, the empty one {TOOLS} tools. Processor time of the node for each request, in closed loop over\n\
         {CONNECTIONS} connections.\n",
        size.revocations, size.tools, size.streams
    ));
    report.table(&["request", "round", "empty, µs", "full, µs", "ratio", "other answers"]);
    let mut ratios = Kind::ALL.map(|_| Vec::new());
    for round in 1..=size.rounds {
        for (kind, ratios) in Kind::ALL.into_iter().zip(&mut ratios) {
            let [empty, full] = pair(&mut sides, kind, round, size.seconds).await?;
            let ratio = full.micros_each() / empty.micros_each().max(f64::MIN_POSITIVE);
            let others = [&empty, &full].map(|window| window.tally.total() - window.tally.count(200));
            report.row(&[
                kind.name().to_owned(),
                round.to_string(),
                format!("{:.1}", empty.micros_each()),
                format!("{:.1}", full.micros_each()),
                format!("{ratio:.3}"),
                format!("{}, {}", others[0], others[1]),
            ]);
            report.fail(empty.wrong() + full.wrong());
            ratios.push(ratio);
        }
    }
    report.line("");
    report.table(&["request", "full beside empty, median"]);
    for (kind, ratios) in Kind::ALL.into_iter().zip(ratios) {
        report.row(&[kind.name().to_owned(), format!("{:.3}", middle(ratios))]);
    }
    report.line("");
    report.table(&["memory now, MiB", "its highest, MiB", "data directory, MiB"]);
    for side in &mut sides {
        side.node.still_runs()?;
        let (memory, peak) = side.node.memory_kib()?;
        report.row(&[mib(memory), mib(peak), mib(side.node.data_bytes()? / 1024)]);
    }
    report.finish(start.output.as_deref())
}

/// Measures both, the order alternates from round to round.
async fn pair(sides: &mut [Side; 2], kind: Kind, round: u64, seconds: u64) -> Result<[Window; 2]> {
    let [empty, full] = sides;
    if round.is_multiple_of(2) {
        let full = full.measure(kind, seconds).await?;
        Ok([empty.measure(kind, seconds).await?, full])
    } else {
        Ok([empty.measure(kind, seconds).await?, full.measure(kind, seconds).await?])
    }
}

impl Side {
    async fn filled(
        start: &Start,
        core: usize,
        (revoked, tools, streams): (u64, u64, usize),
    ) -> Result<Self> {
        let node = start.node(Some(core)).await?;
        drop(node.mint().await?);
        eprintln!("{tools} tools are registered");
        registry::register(&node.target("gateway")?, 0, tools).await?;
        if revoked > 0 {
            let (operator, transmitter) = (node.target("operator")?, node.target("transmitter")?);
            revocations::fill((&[operator], &[transmitter]), (FABRIC, ""), revoked).await?;
        }
        // Last: streams created earlier would lag far behind the events of the revocations.
        for number in 0..streams {
            streams::create_polled(&node, SUBSCRIBERS[number % SUBSCRIBERS.len()], &[EVENT]).await?;
        }
        node.until_quiet().await?;
        Ok(Self { node, tools, draws: Draws::default(), next: 1 })
    }

    async fn measure(&mut self, kind: Kind, seconds: u64) -> Result<Window> {
        let (caller, write) = match kind {
            Kind::Exchange => ("workload", self.exchanges(seconds)?),
            Kind::Verify => {
                let target = self.node.target("gateway")?;
                let tokens = Arc::new(self.node.tokens(TOKENS).await?);
                ("gateway", registry::verify(&self.draws, &target.host, self.tools, tokens))
            }
        };
        let target = self.node.target(caller)?;
        let duration = Duration::from_secs(seconds);
        Window::closed((&self.node, &target), &write, 200, CONNECTIONS, duration).await
    }

    /// Exchanges of credentials that were never used.
    fn exchanges(&mut self, seconds: u64) -> Result<Write> {
        let count = PER_SEC_MAX * usize::try_from(seconds)?;
        let host = self.node.target("workload")?.host;
        let prepared = PreparedRequests::new(&self.node.issuer, &host, self.next << 32, count)?;
        self.next += 1;
        Ok(prepared.into_write())
    }
}
