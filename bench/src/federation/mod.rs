//! `bench federation`: agents of one region that work in others, and the ledger by which those follow its
//! revocations.

mod cost;
mod facts;
mod witness;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tokio::time::sleep;

use crate::link::Link;
use crate::members::ClusterArgs;
use crate::region::{self, Region};
use crate::report::Report;

/// Names of the regions; the first is the origin.
const NAMES: [&str; 3] = ["eu", "us", "ap"];
/// Interval at which the hashes of the ledgers are compared.
const POLL: Duration = Duration::from_millis(50);
/// Maximum wait for equal hashes.
const EQUAL_MAX: Duration = Duration::from_secs(600);

/// Regions, and the parts of the run. --nodes is that of each region.
#[derive(clap::Args, Clone)]
pub struct Plan {
    /// Number of regions, of which the first is the origin
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..=3))]
    regions: u64,
    /// Milliseconds of a round trip between two regions
    #[arg(long, default_value_t = 0)]
    rtt_ms: u64,
    /// Agents of the origin that are accepted elsewhere and then revoked at home
    #[arg(long, default_value_t = 0)]
    revocations: u64,
    /// Revocations per second, in open loop
    #[arg(long, default_value_t = 10.0)]
    rate: f64,
    /// Meanwhile kill the leader of the origin and of the second region in turns, every so many seconds
    #[arg(long)]
    kill_leaders_every: Option<f64>,
    /// Minutes for which the link is cut
    #[arg(long)]
    cut_minutes: Option<f64>,
    /// Facts that the origin revokes during the cut
    #[arg(long, default_value_t = 1000)]
    revocations_during_cut: u64,
    /// Facts that the origin revokes while the link is cut, which are then imported at once: rate and memory
    #[arg(long, default_value_t = 0)]
    entries: u64,
    /// Facts by which the ledgers then differ: bytes until they are equal
    #[arg(long, default_value_t = 10)]
    differing: u64,
    /// Facts that the origin revokes per second while the cost of a local verification elsewhere is measured
    #[arg(long)]
    import_rate: Option<u64>,
    /// Also write the result to this file
    #[arg(long)]
    output: Option<PathBuf>,
}

/// The origin and the regions that read its ledger, each over a link of its own.
struct World {
    origin: Region,
    readers: Vec<Region>,
    links: Vec<Link>,
}

pub async fn run(place: &ClusterArgs, plan: &Plan) -> Result<bool> {
    let mut world = World::start(place, plan).await?;
    let mut report = Report::new("Federation");
    report.line(&format!(
        "{} regions of {} nodes; a round trip between the origin and another region takes {} ms.\n",
        plan.regions, place.nodes, plan.rtt_ms
    ));
    if plan.revocations > 0 {
        witness::run(&mut world, plan, &mut report).await?;
    }
    if plan.entries > 0 {
        facts::import(&mut world, plan, &mut report).await?;
    }
    if let Some(facts_per_sec) = plan.import_rate {
        cost::measure(&world, facts_per_sec, &mut report).await?;
    }
    if let Some(minutes) = plan.cut_minutes {
        facts::cut(&world, (minutes, plan.revocations_during_cut), &mut report).await?;
    }
    report.finish(plan.output.as_deref())
}

impl World {
    async fn start(place: &ClusterArgs, plan: &Plan) -> Result<Self> {
        let names = &NAMES[..usize::try_from(plan.regions)?];
        let mut plans =
            names.iter().map(|name| region::Plan::new(name, place)).collect::<Result<Vec<_>>>()?;
        let mut origin = plans.remove(0);
        let mut links = Vec::new();
        for reader in &mut plans {
            let link = Link::open(usize::try_from(place.nodes)?, Duration::from_millis(plan.rtt_ms)).await?;
            reader.knows(&origin, &link.addresses);
            origin.knows(reader, &[]);
            links.push(link);
        }
        eprintln!("{} regions of {} nodes start", plan.regions, place.nodes);
        let mut origin = origin.start().await?;
        let nodes =
            (0..origin.members.count()).map(|node| Ok(origin.members.https_address(node)?.to_string()));
        let addresses = nodes.collect::<Result<Vec<_>>>()?;
        let mut readers = Vec::new();
        for (reader, link) in plans.into_iter().zip(&links) {
            link.lead_to(addresses.clone());
            let reader = reader.start().await?;
            reader.until_peer_is("live").await?;
            eprintln!("{} reads the ledger of {}", reader.name, origin.name);
            readers.push(reader);
        }
        Ok(Self { origin, readers, links })
    }

    /// Waits until every node has the same ledger of the origin. Returns the time and the number of entries.
    async fn until_equal(&self) -> Result<(Duration, u64)> {
        let begun = Instant::now();
        while begun.elapsed() < EQUAL_MAX {
            if let Ok(Some(entries)) = self.equal_entries().await {
                return Ok((begun.elapsed(), entries));
            }
            sleep(POLL).await;
        }
        bail!("the ledgers still differ after {EQUAL_MAX:?}")
    }

    /// Entries of the ledger, if every node has the same one.
    async fn equal_entries(&self) -> Result<Option<u64>> {
        let own = self.origin.ledger(0, None).await?;
        for reader in &self.readers {
            for node in 0..reader.members.count() {
                if reader.ledger(node, Some(&self.origin.issuer)).await? != own {
                    return Ok(None);
                }
            }
        }
        Ok(Some(own.1))
    }

    fn bytes(&self) -> u64 {
        self.links.iter().map(Link::bytes).sum()
    }

    fn cut(&self) {
        self.links.iter().for_each(Link::cut);
    }

    fn heal(&self) {
        self.links.iter().for_each(Link::heal);
    }
}
