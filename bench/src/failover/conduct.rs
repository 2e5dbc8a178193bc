//! The faults, one after the other.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::{FaultKind, Plan};
use crate::traffic::under_load::UnderLoad;

/// Minimum time between a healthy cluster and the next fault.
const CALM_MIN: Duration = Duration::from_millis(500);

/// All rounds; the history has one fault per round.
pub async fn rounds(plan: &Plan, cluster: &mut UnderLoad, told: &watch::Sender<String>) -> Result<()> {
    for round in 1..=plan.rounds {
        let begun = Instant::now();
        told.send_replace(format!("round {round} of {}", plan.rounds));
        if plan.fault != FaultKind::None {
            let node = cluster.leader()?;
            hit(plan, node, cluster).await.with_context(|| format!("in round {round}"))?;
            cluster.members.still_run()?;
        }
        let next = begun + Duration::from_secs_f64(plan.interval);
        sleep_until(next.max(Instant::now() + CALM_MIN)).await;
    }
    Ok(())
}

async fn hit(plan: &Plan, node: usize, cluster: &mut UnderLoad) -> Result<()> {
    cluster.fault_begins(node);
    let since = Instant::now();
    match plan.fault {
        FaultKind::Kill => cluster.members.kill(node)?,
        FaultKind::Pause => cluster.members.pause(node)?,
        FaultKind::Cut => cluster.members.cut(node)?,
        FaultKind::None => return Ok(()),
    }
    if cluster.members.count() > 1 {
        cluster.until_another_leads(node).await?;
    }
    sleep_until(since + Duration::from_secs_f64(plan.down)).await;
    // Its state before the fault is dropped. A partitioned node still answers.
    if plan.fault != FaultKind::Cut {
        cluster.until_silent(node).await?;
    }
    match plan.fault {
        FaultKind::Kill => cluster.members.start(node)?,
        FaultKind::Pause => cluster.members.resume_node(node)?,
        FaultKind::Cut => cluster.members.join(node)?,
        FaultKind::None => {}
    }
    cluster.until_ready().await?;
    Ok(())
}
