//! A region: a fabric with a trust domain, an issuer and a CA of its own, and the requests of its clients.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::client::{minted, once, until};
use crate::members::{ClusterArgs, Members};
use crate::node::make_certificates;
use crate::settings::Names;
use crate::wire::{self, Target};

/// The caller that issues agents and exchanges their tokens.
pub const AGENTS: &str = "agents";
/// The certificate for calls to peers.
const FEDERATION: &str = "federation";
const OWN_TYPE: &str = "urn:svc:token-type:agent-a2a";
/// Interval of polls.
const POLL: Duration = Duration::from_millis(50);
/// Maximum wait for a state of a peer.
const CONNECTED_MAX: Duration = Duration::from_secs(120);
/// `stale_after` of a region that names none.
const STALE_AFTER: Duration = Duration::from_secs(10);

/// A region before it starts.
pub struct Plan<'a> {
    pub name: &'a str,
    /// Time since the last answer of the origin after which its tokens are answered 503.
    pub stale_after: Duration,
    place: ClusterArgs,
}

/// A running region.
pub struct Region {
    pub name: String,
    pub issuer: String,
    pub members: Members,
    pub callers: Callers,
}

/// The nodes of a region as targets, for each kind of caller.
#[derive(Clone)]
pub struct Callers {
    pub operator: Vec<Target>,
    pub agents: Vec<Target>,
    pub gateway: Vec<Target>,
    pub transmitter: Vec<Target>,
}

impl<'a> Plan<'a> {
    /// Creates its certificates and its policy.
    pub fn new(name: &'a str, place: &ClusterArgs) -> Result<Self> {
        let dir = place.dir.join(name);
        let program = place.program.as_ref().context("--program")?;
        let trust_domain = format!("{name}.example");
        if !dir.join("pki/ca.pem").exists() {
            fs::create_dir_all(&dir)?;
            make_certificates(program, &dir.join("pki"), &trust_domain, &[AGENTS, FEDERATION])?;
        }
        let bundle =
            Command::new(program).args(["federation", "bundle"]).arg(dir.join("pki/ca.pem")).output()?;
        if !bundle.status.success() {
            bail!("federation bundle: {}", String::from_utf8_lossy(&bundle.stderr));
        }
        fs::write(dir.join("bundle.json"), bundle.stdout)?;
        write_policies(&place.policies, &dir.join("policies"))?;
        let dir = dir.canonicalize()?;
        let pki = dir.join("pki");
        let names = Names {
            issuer: format!("https://{trust_domain}"),
            more: format!(
                "[[callers]]\nid = \"spiffe://{trust_domain}/{AGENTS}\"\ncapabilities = [\"exchange\", \"identity.issue\"]\n\
                 [outbound]\nallowed_networks = [\"127.0.0.0/8\"]\n\
                 [federation]\ncertificate = \"{pki}/{FEDERATION}.pem\"\nprivate_key = \"{pki}/{FEDERATION}-key.pem\"\n",
                pki = pki.display(),
            ),
            trust_domain,
        };
        let place = ClusterArgs { policies: dir.join("policies"), dir, names, ..place.clone() };
        Ok(Self { name, stale_after: STALE_AFTER, place })
    }

    /// Makes `other` a peer. With addresses of its nodes, its ledger is read and its agents are accepted.
    pub fn knows(&mut self, other: &Self, addresses: &[SocketAddr]) {
        let (domain, issuer) = (&other.place.names.trust_domain, &other.place.names.issuer);
        let endpoints = addresses.iter().map(|address| format!("https://{address}")).collect::<Vec<_>>();
        let direction = if addresses.is_empty() {
            "serve = true\n".to_owned()
        } else {
            format!(
                "accept = true\nas = [\"subject\"]\ncapabilities = [\"db.read\"]\nmax_blast_radius = \"namespace:demo\"\n\
                 stale_after = \"{}ms\"\n[federation.peers.blast_radius]\n\"namespace:demo\" = \"namespace:demo\"\n",
                self.stale_after.as_millis()
            )
        };
        // Writing to a string does not fail.
        let _ = write!(
            self.place.names.more,
            "[[federation.peers]]\nname = \"{name}\"\nissuer = \"{issuer}\"\ntrust_domains = [\"{domain}\"]\n\
             endpoints = {endpoints:?}\nids = [\"spiffe://{domain}/node\", \"spiffe://{domain}/{FEDERATION}\"]\n\
             bundle_file = \"{bundle}\"\n{direction}",
            name = other.name,
            bundle = other.place.dir.join("bundle.json").display(),
        );
    }

    /// Starts the nodes and waits until each is ready.
    pub async fn start(self) -> Result<Region> {
        let members = self.place.members()?;
        let callers = Callers {
            operator: members.targets("operator")?,
            agents: members.targets(AGENTS)?,
            gateway: members.targets("gateway")?,
            transmitter: members.targets("transmitter")?,
        };
        let region = Region { name: self.name.to_owned(), issuer: self.place.names.issuer, members, callers };
        for node in 0..region.members.count() {
            region.until_ready(node).await?;
        }
        let tool = json!({"tool_id": "sql", "name": "SQL", "resource_uri": region.tool(),
            "required_capabilities": ["db.read"]});
        until(&region.callers.gateway, &post("/v1/tools", &tool), &[200, 201]).await?;
        Ok(region)
    }
}

/// The rules of the shipped policy with the tables of the regions, in which the bench issues the agents.
fn write_policies(shipped: &Path, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    for file in ["exchange.rego", "identity.rego", "signals.rego"] {
        fs::copy(shipped.join(file), directory.join(file)).with_context(|| file.to_owned())?;
    }
    let tables = shipped.join("../cluster/regions/data.json");
    let text = fs::read_to_string(&tables).with_context(|| tables.display().to_string())?;
    Ok(fs::write(directory.join("data.json"), text.replace("/gateway\"", &format!("/{AGENTS}\"")))?)
}

impl Region {
    pub fn tool(&self) -> String {
        format!("{}/sql-query", self.issuer.replace("https://", "https://tools."))
    }

    pub async fn until_ready(&self, node: usize) -> Result<()> {
        let target = self.callers.operator.get(node).cloned();
        let ready = wire::request("GET", "/readyz", "localhost", "");
        until(target.as_slice(), &ready, &[200]).await.map(drop)
    }

    /// The index of the leader, if a node reports that it leads.
    pub async fn leader(&self) -> Option<usize> {
        for node in 0..self.callers.operator.len() {
            let health = self.get(node, "/v1/sys/health").await.ok();
            if health.is_some_and(|health| health["role"] == "leader") {
                return Some(node);
            }
        }
        None
    }

    pub async fn get(&self, node: usize, path: &str) -> Result<Value> {
        let target = self.callers.operator.get(node).context("no such node")?;
        let answer = once(target, &wire::request("GET", path, "localhost", "")).await?;
        if answer.status != 200 {
            bail!("{path} of {}: {}", self.name, answer.status);
        }
        Ok(serde_json::from_slice(answer.body())?)
    }

    /// Hash and number of entries of the ledger of a fabric, as this node has it.
    pub async fn ledger(&self, node: usize, origin: Option<&str>) -> Result<(String, u64)> {
        let origin = origin.map(|origin| format!("?origin={origin}")).unwrap_or_default();
        let found = self.get(node, &format!("/v1/federation/revocation-hash{origin}")).await?;
        let hash = found["hash"].as_str().context("no hash")?.to_owned();
        Ok((hash, found["count"].as_u64().context("no count")?))
    }

    /// Waits until each node sees its only peer in this state.
    pub async fn until_peer_is(&self, state: &str) -> Result<()> {
        for node in 0..self.callers.operator.len() {
            let is_so = async {
                while self.get(node, "/v1/federation/peers").await.unwrap_or_default()[0]["state"] != state {
                    sleep(POLL).await;
                }
            };
            let waited = timeout(CONNECTED_MAX, is_so).await;
            waited
                .with_context(|| format!("the peer of {} is not {state} in {CONNECTED_MAX:?}", self.name))?;
        }
        Ok(())
    }
}

impl Callers {
    /// A new agent: its identifier and its identity token.
    pub async fn agent(&self) -> Result<(String, String)> {
        let answer = until(&self.agents, &agent(), &[200]).await?;
        let answer: Value = serde_json::from_slice(answer.body())?;
        let text = |name: &str| anyhow::Ok(answer[name].as_str().context("an agent without it")?.to_owned());
        Ok((text("agent_id")?, text("token")?))
    }

    /// The token that this region mints for the audience from a token of a fabric.
    pub async fn exchange(&self, token: &str, audience: &str) -> Result<String> {
        minted(&until(&self.agents, &exchange(token, audience), &[200]).await?)
    }

    pub async fn revoke(&self, subject: &str) -> Result<()> {
        until(&self.operator, &revocation(subject), &[202]).await.map(drop)
    }
}

/// The request for a new agent.
pub fn agent() -> Vec<u8> {
    let body = json!({"agent_name": "traveller", "platform": "mcp", "capabilities": ["db.read"],
        "max_blast_radius": "namespace:demo"});
    post("/v1/identity/agent", &body)
}

/// The request for a token for the audience from a token of a fabric.
pub fn exchange(token: &str, audience: &str) -> Vec<u8> {
    let body = json!({"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token_type": OWN_TYPE, "subject_token": token, "audience": audience});
    post("/v1/exchange/token", &body)
}

/// The request of an operator that revokes a subject.
pub fn revocation(subject: &str) -> Vec<u8> {
    post("/v1/revocations", &json!({"subject": subject, "reason": "bench"}))
}

fn post(path: &str, body: &Value) -> Vec<u8> {
    wire::request_with("POST", path, "localhost", "", body.to_string().as_bytes())
}
