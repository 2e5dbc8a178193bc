//! Agents of the origin that work in the relying region, until they are revoked at home.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use trust_fabric_bench::region::{AGENTS, agent, exchange, revocation};

use super::world::{Fabrics, World};
use super::{FRESHNESS, STALE_AFTER};
use crate::clients::{Clients, Intent, Process, acknowledged, post, signal};
use crate::history::{Kind, Nanos, Outcome, Workload};
use crate::workloads::{REVOKED, verdict, verification};

const CLIENTS: u64 = 8;
/// The tool of each region.
const TOOL: &str = "sql";
/// Uses of earlier agents for each new one.
const REPEATS: usize = 6;
/// Maximum time for which an agent tries to cross.
const CROSS_MAX: Duration = Duration::from_secs(8);
/// Longest time for which an agent is used after its revocation was acknowledged, until all nodes refuse it.
const REFUSED_MAX: Duration = Duration::from_secs(STALE_AFTER.as_secs() + 3);
const PAUSE: Duration = Duration::from_millis(60);
/// Agents of each kind that are used on every node at the end.
const KEPT: usize = 150;
/// Age up to which tokens are used: they live five minutes.
const AGE_MAX: Duration = Duration::from_secs(200);

/// An agent of the origin that was accepted by the relying region.
#[derive(Clone)]
struct Agent {
    id: String,
    /// Minted at the origin for the relying region.
    crossing: String,
    /// Minted by the relying region from it; the latest one, which may be younger than the revocation.
    through: String,
    /// Time of the history before which the crossing token was issued.
    issued: Nanos,
    minted: Instant,
    number: u64,
}

impl Agent {
    fn is_young(&self) -> bool {
        self.minted.elapsed() < AGE_MAX
    }
}

/// Agents whose revocation was sent, and the others.
#[derive(Default)]
struct Agents {
    revoked: Mutex<Vec<Agent>>,
    others: Mutex<Vec<Agent>>,
}

/// The running clients.
pub struct Load {
    clients: Arc<Clients>,
    fabrics: Fabrics,
    agents: Arc<Agents>,
    running: JoinSet<Result<()>>,
    seed: u64,
}

/// One client.
struct Traveller {
    process: Process,
    clients: Arc<Clients>,
    fabrics: Fabrics,
}

impl Load {
    pub fn start(clients: &Arc<Clients>, world: &World, seed: u64) -> Self {
        let (fabrics, agents) = (world.fabrics.clone(), Arc::new(Agents::default()));
        let mut running = JoinSet::new();
        for _ in 0..CLIENTS {
            let (agents, traveller) = (Arc::clone(&agents), Traveller::new(clients, &fabrics, seed));
            running.spawn(async move { agents.client(traveller).await });
        }
        Self { clients: Arc::clone(clients), fabrics, agents, running, seed }
    }

    /// Waits for a client that ends too early.
    pub async fn failed(&mut self) -> Result<()> {
        match self.running.join_next().await {
            Some(ended) => ended?.and_then(|()| bail!("a client has ended before the load")),
            None => std::future::pending().await,
        }
    }

    /// Ends the clients.
    pub async fn stop(&mut self) -> Result<()> {
        self.clients.stop();
        while let Some(ended) = self.running.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// Uses the latest agents on every node of the relying region.
    pub async fn read_all(&self) -> Result<()> {
        let mut chosen = Vec::new();
        for of in [&self.agents.revoked, &self.agents.others] {
            let all = of.lock().unwrap_or_else(PoisonError::into_inner);
            chosen.extend(all.iter().rev().filter(|agent| agent.is_young()).take(KEPT).cloned());
        }
        let mut reading = JoinSet::new();
        for node in self.fabrics.relying_nodes() {
            let mut traveller = Traveller::new(&self.clients, &self.fabrics, self.seed);
            let mut agents = chosen.clone();
            reading.spawn(async move {
                for agent in &mut agents {
                    traveller.verify(agent, node).await?;
                    traveller.cross(agent, node).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(read) = reading.join_next().await {
            read??;
        }
        Ok(())
    }
}

impl Agents {
    async fn client(self: Arc<Self>, mut traveller: Traveller) -> Result<()> {
        let clients = Arc::clone(&traveller.clients);
        while !clients.is_stopped() {
            let Some(mut agent) = traveller.mint().await? else {
                clients.stopped_within(PAUSE).await;
                continue;
            };
            if !traveller.first_cross(&mut agent).await? {
                continue;
            }
            let node = traveller.relying_node();
            traveller.verify(&agent, node).await?;
            if traveller.process.draw.below(4) == 0 {
                self.others.lock().unwrap_or_else(PoisonError::into_inner).push(agent);
            } else {
                // It may be revoked from the first attempt on, whatever its answer.
                let sent = traveller.revoke_beside_uses(&mut agent).await;
                self.revoked.lock().unwrap_or_else(PoisonError::into_inner).push(agent);
                sent?;
            }
            for _ in 0..REPEATS {
                if let Some(mut earlier) = self.earlier(&mut traveller.process) {
                    let node = traveller.relying_node();
                    traveller.use_either(&mut earlier, node).await?;
                }
            }
        }
        Ok(())
    }

    fn earlier(&self, process: &mut Process) -> Option<Agent> {
        let of = if process.draw.below(4) == 0 { &self.others } else { &self.revoked };
        let all = of.lock().unwrap_or_else(PoisonError::into_inner);
        (!all.is_empty()).then(|| process.draw.one_of(&all)).filter(Agent::is_young)
    }
}

/// A new agent of a node of the origin and its token for the relying region, if the node mints both. Not recorded.
pub async fn crossing(clients: &Clients, fabrics: &Fabrics, node: usize) -> Option<(String, String)> {
    let answer = clients.call(AGENTS, node, &agent()).await;
    let id = answer.body["agent_id"].as_str()?.to_owned();
    let identity = answer.body["token"].as_str()?;
    let answer = clients.call(AGENTS, node, &exchange(identity, &fabrics.relying)).await;
    Some((id, answer.body["access_token"].as_str()?.to_owned()))
}

impl Traveller {
    fn new(clients: &Arc<Clients>, fabrics: &Fabrics, seed: u64) -> Self {
        Self { process: clients.process(seed), clients: Arc::clone(clients), fabrics: fabrics.clone() }
    }

    fn origin_node(&mut self) -> usize {
        self.process.draw.one_of(&self.fabrics.origin_nodes())
    }

    fn relying_node(&mut self) -> usize {
        self.process.draw.one_of(&self.fabrics.relying_nodes())
    }

    async fn mint(&mut self) -> Result<Option<Agent>> {
        let node = self.origin_node();
        let Some((id, crossing)) = crossing(&self.clients, &self.fabrics, node).await else {
            return Ok(None);
        };
        let (issued, minted) = (self.clients.recorder.now(), Instant::now());
        let number = self.clients.number();
        Ok(Some(Agent { id, crossing, through: String::new(), issued, minted, number }))
    }

    /// Crosses until a node accepts it. Returns whether one did in time.
    async fn first_cross(&mut self, agent: &mut Agent) -> Result<bool> {
        while agent.minted.elapsed() < CROSS_MAX && !self.clients.is_stopped() {
            let node = self.relying_node();
            if self.cross(agent, node).await? == Some(true) {
                return Ok(true);
            }
            self.clients.stopped_within(PAUSE).await;
        }
        Ok(false)
    }

    /// Revokes it at the origin until that is acknowledged, while another process uses it; then uses it on every node until
    /// each refuses it, or until the lease has ended for a while.
    async fn revoke_beside_uses(&mut self, agent: &mut Agent) -> Result<()> {
        let clients = Arc::clone(&self.clients);
        let mut beside = Self::new(&clients, &self.fabrics, agent.number);
        let mut used = agent.clone();
        let using = async {
            let node = beside.relying_node();
            beside.use_either(&mut used, node).await
        };
        let (outcome, last) = tokio::join!(self.revoke(agent), using);
        last?;
        agent.through = used.through;
        if outcome? != Outcome::Ok {
            return Ok(());
        }
        let acknowledged = Instant::now();
        let mut nodes = self.fabrics.relying_nodes();
        while !nodes.is_empty() && acknowledged.elapsed() < REFUSED_MAX && !clients.is_stopped() {
            let mut accepting = Vec::new();
            for node in nodes {
                if self.use_either(agent, node).await? != Some(false) {
                    accepting.push(node);
                }
            }
            nodes = accepting;
            clients.stopped_within(PAUSE).await;
        }
        Ok(())
    }

    /// Sends the revocation to nodes of the origin until one acknowledges it, as a signal or as an operator.
    async fn revoke(&mut self, agent: &Agent) -> Result<Outcome> {
        let is_signal = self.process.draw.below(2) == 0;
        let (caller, request) = if is_signal {
            let sub_id = json!({"format": "uri", "uri": agent.id});
            let jti = format!("{}-{}", self.clients.run, agent.number);
            let mut body = signal(&jti, &sub_id, REVOKED, &json!({}));
            body["aud"] = json!(self.fabrics.origin);
            ("transmitter", post("/v1/signals/events", "", &body))
        } else {
            ("operator", revocation(&agent.id))
        };
        loop {
            let input = json!({
                "by": caller,
                "stale_after": u64::try_from(STALE_AFTER.as_nanos())?,
                "freshness": u64::try_from(FRESHNESS.as_nanos())?,
            });
            let intent = Intent { workload: Workload::Federation, kind: Kind::Revoke, key: &agent.id, input };
            let node = self.origin_node();
            let at = (caller, node);
            let (outcome, _) = self.process.operate(intent, at, &request, acknowledged).await?;
            if outcome == Outcome::Ok || self.clients.is_stopped() {
                return Ok(outcome);
            }
            self.clients.stopped_within(PAUSE).await;
        }
    }

    /// Exchanges the crossing token, or verifies the token that was minted from it.
    async fn use_either(&mut self, agent: &mut Agent, node: usize) -> Result<Option<bool>> {
        if self.process.draw.below(2) == 0 {
            self.cross(agent, node).await
        } else {
            self.verify(agent, node).await
        }
    }

    /// Exchanges the crossing token at a node of the relying region. The verdict, if there is one.
    async fn cross(&mut self, agent: &mut Agent, node: usize) -> Result<Option<bool>> {
        let request = exchange(&agent.crossing, &self.fabrics.tool);
        let answer = self.clients.call(AGENTS, node, &request).await;
        let (outcome, value) = match answer.status {
            Some(200) => (Outcome::Ok, json!(true)),
            // The answer does not state the reason, but a young token is refused for no other one.
            Some(400) => (Outcome::Ok, json!(false)),
            _ => (answer.outcome(&[]), Value::Null),
        };
        self.process.record(intent(agent, "crossing"), node, &answer, outcome, value.clone())?;
        if value == true {
            let token = answer.body["access_token"].as_str();
            token.context("no access_token")?.clone_into(&mut agent.through);
        }
        Ok(value.as_bool())
    }

    /// Verifies the token of the relying region at a node of it. The verdict, if there is one.
    async fn verify(&mut self, agent: &Agent, node: usize) -> Result<Option<bool>> {
        let request = verification(TOOL, &agent.through, None, None);
        let through = intent(agent, "through");
        let (_, value) = self.process.operate(through, ("gateway", node), &request, verdict).await?;
        Ok(value.as_bool())
    }
}

fn intent<'a>(agent: &'a Agent, what: &str) -> Intent<'a> {
    Intent {
        workload: Workload::Federation,
        kind: Kind::Use,
        key: &agent.id,
        input: json!({"what": what, "issued": agent.issued}),
    }
}
