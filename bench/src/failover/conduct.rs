//! The faults, one after the other.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::history::{Fault, Micros};
use super::traffic::Traffic;
use super::{FaultKind, Plan, READY_TIMEOUT};
use crate::health::{Health, View};
use crate::members::Members;

/// Maximum wait for another leader.
const LEADER_MAX: Duration = Duration::from_secs(30);
/// Minimum time between a healthy cluster and the next fault.
const CALM_MIN: Duration = Duration::from_millis(500);

/// All rounds; the history has one fault per round.
pub async fn rounds(
    plan: &Plan,
    members: &mut Members,
    health: &Health,
    traffic: &Traffic,
    told: &watch::Sender<String>,
) -> Result<()> {
    for round in 1..=plan.rounds {
        let begun = Instant::now();
        told.send_replace(format!("round {round} of {}", plan.rounds));
        if plan.fault != FaultKind::None {
            let node = health.now().leader().context("no leader for the next fault")?;
            hit(plan, node, members, health, traffic).await.with_context(|| format!("in round {round}"))?;
            members.still_run()?;
        }
        let next = begun + Duration::from_secs_f64(plan.interval);
        sleep_until(next.max(Instant::now() + CALM_MIN)).await;
    }
    Ok(())
}

async fn hit(
    plan: &Plan,
    node: usize,
    members: &mut Members,
    health: &Health,
    traffic: &Traffic,
) -> Result<()> {
    let at = traffic.now();
    traffic.history().faults.push(Fault { node, at, led_at: None, well_at: Micros::MAX });
    let since = Instant::now();
    match plan.fault {
        FaultKind::Kill => members.kill(node)?,
        FaultKind::Pause => members.pause(node)?,
        FaultKind::Cut => members.cut(node)?,
        FaultKind::None => return Ok(()),
    }
    let note = |change: &dyn Fn(&mut Fault, Micros)| {
        let now = traffic.now();
        if let Some(fault) = traffic.history().faults.last_mut() {
            change(fault, now);
        }
    };
    if members.count() > 1 {
        let leads = |view: &View| view.leader().is_some_and(|leader| leader != node);
        health.until("no other node led", LEADER_MAX, leads).await?;
        note(&|fault, now| fault.led_at = Some(now));
    }
    sleep_until(since + Duration::from_secs_f64(plan.down)).await;
    // Its state before the fault is dropped. A partitioned node still answers.
    let is_silent = |view: &View| view.0.get(node).is_none_or(Option::is_none);
    if plan.fault != FaultKind::Cut {
        health.until("the node still answered", LEADER_MAX, is_silent).await?;
    }
    match plan.fault {
        FaultKind::Kill => members.start(node)?,
        FaultKind::Pause => members.resume_node(node)?,
        FaultKind::Cut => members.join(node)?,
        FaultKind::None => {}
    }
    health.until("not all nodes were well", READY_TIMEOUT, View::is_ready).await?;
    note(&|fault, now| {
        fault.well_at = now;
        fault.led_at.get_or_insert(now);
    });
    Ok(())
}
