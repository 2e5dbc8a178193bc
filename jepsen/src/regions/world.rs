//! The nodes of both regions: 1 to n are those of the origin, the following ones those of the relying region.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::timeout;
use trust_fabric_bench::link::Link;
use trust_fabric_bench::members::ClusterArgs;
use trust_fabric_bench::region::{AGENTS, Plan, Region};

use super::{RegionOptions, STALE_AFTER};
use crate::clients::Clients;
use crate::cluster::BREAK;
use crate::history::Recorder;

const ORIGIN: &str = "west";
const RELYING: &str = "east";
/// The names in the tables of the shipped policy.
const SHIPPED: [(&str, &str); 2] = [("eu.example", "west.example"), ("us.example", "east.example")];
const CALLERS: [&str; 4] = ["gateway", "transmitter", "operator", AGENTS];

pub struct World {
    /// The origin, and the relying region.
    pub regions: [Region; 2],
    pub fabrics: Fabrics,
    /// From the relying region to each node of the origin.
    pub link: Link,
}

/// Names and nodes of both regions, for clients.
#[derive(Clone)]
pub struct Fabrics {
    /// `iss` of the origin.
    pub origin: String,
    /// `iss` of the relying region.
    pub relying: String,
    /// The audience of the tool of the relying region.
    pub tool: String,
    /// Nodes of each region.
    pub nodes: usize,
}

impl Fabrics {
    pub fn origin_nodes(&self) -> Vec<usize> {
        (0..self.nodes).collect()
    }

    pub fn relying_nodes(&self) -> Vec<usize> {
        (self.nodes..2 * self.nodes).collect()
    }
}

impl World {
    /// Starts both regions in `dir`, and waits until the relying one reads the ledger of the origin.
    pub async fn start(options: &RegionOptions, dir: &Path, broken: Option<&str>) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let (program, policies) = (options.program.canonicalize()?, options.policies.clone());
        let args = ClusterArgs {
            environment: broken.map(|broken| (BREAK.to_owned(), broken.to_owned())).into_iter().collect(),
            ..ClusterArgs::local(program, policies, dir.to_owned(), options.nodes)
        };
        let (mut origin, mut relying) = (Plan::new(ORIGIN, &args)?, Plan::new(RELYING, &args)?);
        relying.stale_after = STALE_AFTER;
        for name in [ORIGIN, RELYING] {
            let tables = dir.join(name).join("policies/data.json");
            let text = fs::read_to_string(&tables).with_context(|| tables.display().to_string())?;
            let renamed = SHIPPED.iter().fold(text, |text, (shipped, own)| text.replace(shipped, own));
            fs::write(&tables, renamed)?;
        }
        let nodes = usize::try_from(options.nodes)?;
        let link = Link::open(nodes, Duration::ZERO).await?;
        relying.knows(&origin, &link.addresses);
        origin.knows(&relying, &[]);
        let mut origin = origin.start().await?;
        let addresses = (0..nodes).map(|node| Ok(origin.members.https_address(node)?.to_string()));
        link.lead_to(addresses.collect::<Result<_>>()?);
        let relying = relying.start().await?;
        relying.until_peer_is("live").await?;
        let fabrics = Fabrics {
            origin: origin.issuer.clone(),
            relying: relying.issuer.clone(),
            tool: relying.tool(),
            nodes,
        };
        Ok(Self { regions: [origin, relying], fabrics, link })
    }

    /// Connections to the nodes of both regions, with the certificates of each.
    pub fn clients(&self, recorder: &Arc<Recorder>) -> Result<Arc<Clients>> {
        let mut targets = HashMap::new();
        for caller in CALLERS {
            let mut all = Vec::new();
            for region in &self.regions {
                all.extend(region.members.targets(caller)?);
            }
            targets.insert(caller, all);
        }
        let nodes = Arc::new(Mutex::new((0..2 * self.fabrics.nodes).collect()));
        let issuer = Arc::clone(&self.regions[0].members.issuer);
        Clients::of(targets, issuer, nodes, Arc::clone(recorder))
    }

    /// Waits until all nodes are ready. Returns whether they were in time.
    pub async fn until_ready(&self, longest: Duration) -> bool {
        let ready = async {
            for region in &self.regions {
                for node in 0..region.members.count() {
                    region.until_ready(node).await?;
                }
            }
            anyhow::Ok(())
        };
        timeout(longest, ready).await.is_ok_and(|ready| ready.is_ok())
    }
}
