//! Agents of the origin that every node of the other regions accepts until they are revoked at home.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use super::{Plan, World};
use crate::client::{once, verdict};
use crate::region::{Callers, Region};
use crate::registry::write_verification;
use crate::report::Report;
use crate::traffic::findings::quantiles;
use crate::wire::Target;

/// Time before its revocation at which an agent is prepared.
const PREPARED_BEFORE: Duration = Duration::from_secs(3);
/// Interval of the verifications of one token on one node.
const POLL: Duration = Duration::from_millis(10);
/// Maximum wait for one response.
const TRY_MAX: Duration = Duration::from_secs(5);
/// Maximum time until a node refuses.
const REFUSED_MAX: Duration = Duration::from_secs(60);
/// Verifications after a refusal, and their interval.
const AGAIN: u32 = 5;
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Time for which a killed leader is down.
const DOWN: Duration = Duration::from_millis(1500);

/// A node of a region that reads the ledger.
struct Node {
    region: usize,
    target: Target,
    is_down: Arc<AtomicBool>,
}

/// Data of all tasks.
struct Shared {
    origin: Callers,
    /// Callers, issuer and tool of each reading region.
    readers: Vec<(Callers, String, String)>,
    nodes: Vec<Node>,
}

/// Times of one revocation.
struct Outcome {
    /// From the due time to the 202.
    answered: Duration,
    /// From the 202 to the first refusal of the last node.
    refused: Duration,
    /// From the due time to that refusal.
    in_all: Duration,
    accepts_after_refusal: u64,
}

pub async fn run(world: &mut World, plan: &Plan, report: &mut Report) -> Result<()> {
    let shared = Arc::new(Shared::of(world));
    let interval = Duration::from_secs_f64(1.0 / plan.rate.max(0.01));
    let begun = Instant::now();
    let over = Arc::new(AtomicBool::new(false));
    let measuring =
        tokio::spawn(measure(Arc::clone(&shared), (begun, interval, plan.revocations), Arc::clone(&over)));
    let mut kills = 0;
    if let Some(every) = plan.kill_leaders_every {
        kills = kill_leaders(world, &shared, Duration::from_secs_f64(every), &over).await?;
    }
    let outcomes = measuring.await??;
    report.line(&format!(
        "{} agents are revoked, {} per second in open loop, each seen by {} nodes, polled every {} ms; leaders killed: {kills}.\n",
        outcomes.len(), plan.rate, shared.nodes.len(), POLL.as_millis(),
    ));
    report.table(&["ms", "p50", "p99", "max"]);
    for (name, of) in [
        ("from the 202 until the last running node refuses", (|one| one.refused) as fn(&Outcome) -> Duration),
        ("from the due time to the 202", |one| one.answered),
        ("from the due time until the last running node refuses", |one| one.in_all),
    ] {
        let micros = |one: &Outcome| u64::try_from(of(one).as_micros()).unwrap_or(u64::MAX);
        let mut micros: Vec<_> = outcomes.iter().map(micros).collect();
        micros.sort_unstable();
        let [p50, p99, max] = quantiles(&micros);
        report.row(&[name.to_owned(), p50, p99, max]);
    }
    let wrong = outcomes.iter().map(|one| one.accepts_after_refusal).sum();
    report.line(&format!("\nAccepts after a refusal of the same node: {wrong}."));
    report.fail(wrong);
    Ok(())
}

impl Shared {
    fn of(world: &World) -> Self {
        let reader = |region: &Region| (region.callers.clone(), region.issuer.clone(), region.tool());
        let targets = world.readers.iter().enumerate().flat_map(|(index, region)| {
            region.callers.gateway.iter().map(move |target| (index, target.clone()))
        });
        let node = |(region, target)| Node { region, target, is_down: Arc::default() };
        Self {
            origin: world.origin.callers.clone(),
            readers: world.readers.iter().map(reader).collect(),
            nodes: targets.map(node).collect(),
        }
    }
}

/// Starts the task of each revocation at its time.
async fn measure(
    shared: Arc<Shared>,
    (begun, interval, count): (Instant, Duration, u64),
    over: Arc<AtomicBool>,
) -> Result<Vec<Outcome>> {
    let mut tasks = JoinSet::new();
    let mut prepared = begun;
    for number in 0..count {
        sleep_until(prepared.into()).await;
        tasks.spawn(revoke_one(Arc::clone(&shared), prepared + PREPARED_BEFORE));
        prepared += interval;
        if number > 0 && number.is_multiple_of(100) {
            eprintln!("{number} of {count} revocations");
        }
    }
    let mut outcomes = Vec::new();
    while let Some(outcome) = tasks.join_next().await {
        outcomes.push(outcome?);
    }
    over.store(true, Ordering::Relaxed);
    outcomes.into_iter().collect()
}

/// An agent crosses, is accepted by every node, and is revoked at its due time.
async fn revoke_one(shared: Arc<Shared>, due: Instant) -> Result<Outcome> {
    let (agent, identity) = shared.origin.agent().await?;
    let mut requests = Vec::new();
    for (callers, issuer, tool) in &shared.readers {
        let crossing = shared.origin.exchange(&identity, issuer).await?;
        let token = callers.exchange(&crossing, tool).await?;
        let mut request = Vec::new();
        write_verification(&mut request, "localhost", "sql", &token, 0);
        requests.push(request);
    }
    for place in 0..shared.nodes.len() {
        shared.until(place, &requests, true).await.context("an agent before its revocation")?;
    }
    sleep_until(due.into()).await;
    shared.origin.revoke(&agent).await?;
    let answered = Instant::now();
    let (requests, mut polls) = (Arc::new(requests), JoinSet::new());
    for place in 0..shared.nodes.len() {
        let (shared, requests) = (Arc::clone(&shared), Arc::clone(&requests));
        polls.spawn(async move { shared.refusals(place, &requests).await });
    }
    let (mut last, mut accepts_after_refusal) = (answered, 0);
    while let Some(poll) = polls.join_next().await {
        let (refused, accepts) = poll??;
        last = last.max(refused.unwrap_or(answered));
        accepts_after_refusal += accepts;
    }
    Ok(Outcome {
        answered: answered - due,
        refused: last - answered,
        in_all: last - due,
        accepts_after_refusal,
    })
}

impl Shared {
    /// Waits for this verdict of a node. Returns the time of the response, or `None` if the node was killed.
    async fn until(&self, place: usize, requests: &[Vec<u8>], accepted: bool) -> Result<Option<Instant>> {
        let node = self.nodes.get(place).context("no such node")?;
        let request = requests.get(node.region).context("no such region")?;
        let begun = Instant::now();
        while begun.elapsed() < REFUSED_MAX {
            if node.is_down.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if ask(&node.target, request).await == Some(accepted) {
                return Ok(Some(Instant::now()));
            }
            sleep(POLL).await;
        }
        bail!(
            "node {place} did not {} a token in {REFUSED_MAX:?}",
            if accepted { "accept" } else { "refuse" }
        )
    }

    /// The time of the first refusal, and the number of accepts after it.
    async fn refusals(&self, place: usize, requests: &[Vec<u8>]) -> Result<(Option<Instant>, u64)> {
        let refused = self.until(place, requests, false).await?;
        let node = self.nodes.get(place).context("no such node")?;
        let request = requests.get(node.region).context("no such region")?;
        let mut accepts = 0;
        for _ in 0..AGAIN {
            sleep(AGAIN_AFTER).await;
            // A node that was killed has not refused it yet.
            accepts += u64::from(refused.is_some() && ask(&node.target, request).await == Some(true));
        }
        Ok((refused, accepts))
    }
}

async fn ask(target: &Target, request: &[u8]) -> Option<bool> {
    verdict(&timeout(TRY_MAX, once(target, request)).await.ok()?.ok()?)
}

/// Kills the leaders of the origin and of the second region in turns, and starts them again. Returns their number.
async fn kill_leaders(world: &mut World, shared: &Shared, every: Duration, over: &AtomicBool) -> Result<u64> {
    let mut kills = 0;
    while !over.load(Ordering::Relaxed) {
        sleep(every.saturating_sub(DOWN)).await;
        let is_reader = kills % 2 == 0;
        let region = if is_reader { world.readers.first_mut() } else { Some(&mut world.origin) };
        let region = region.context("no region")?;
        let Some(leader) = region.leader().await else { continue };
        eprintln!("the leader of {}, node {}, is killed", region.name, leader + 1);
        let down = shared.nodes.get(leader).filter(|_| is_reader).map(|node| Arc::clone(&node.is_down));
        if let Some(down) = &down {
            down.store(true, Ordering::Relaxed);
        }
        region.members.kill(leader)?;
        sleep(DOWN).await;
        region.members.start(leader)?;
        region.until_ready(leader).await?;
        if let Some(down) = &down {
            down.store(false, Ordering::Relaxed);
        }
        kills += 1;
    }
    Ok(kills)
}
