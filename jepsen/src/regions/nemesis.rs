//! The faults of two regions: those of the link between them, and beside them those of the processes of one region.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use trust_fabric_bench::link::{Link, Way};
use trust_fabric_bench::region::Region;

use crate::cluster::EXIT_MAX;
use crate::history::Recorder;
use crate::schedule::{Draw, FIRST_MILLIS, Step, Who};

/// Maximum wait until the leader is known.
const LEADER_MAX: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Side {
    Origin,
    Relying,
}

/// The directions of a fault of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Lost {
    Both,
    ToOrigin,
    FromOrigin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Fault {
    Kill(Side, Who),
    Pause(Side, Who),
    /// SIGTERM of all nodes of a region at once, and a start of all when the last has exited.
    Restart(Side),
    /// Bytes are withheld.
    Partition(Lost),
    /// A partition that comes and goes, with its milliseconds.
    Flapping(u64),
    /// Milliseconds of each direction.
    Slow(u64),
    /// Connections to a node of the origin end, then those to another, with the milliseconds.
    Lossy(u64),
}

impl Fault {
    const fn name(self) -> &'static str {
        match self {
            Self::Kill(..) => "kill",
            Self::Pause(..) => "pause",
            Self::Restart(_) => "restart",
            Self::Partition(Lost::Both) => "partition",
            Self::Partition(_) => "one-way",
            Self::Flapping(_) => "flapping",
            Self::Slow(_) => "slow",
            Self::Lossy(_) => "lossy",
        }
    }

    const fn is_of_link(self) -> bool {
        !matches!(self, Self::Kill(..) | Self::Pause(..) | Self::Restart(_))
    }
}

/// The faults of a run of so many seconds.
pub fn schedule(seed: u64, seconds: u64) -> Vec<Step<Fault>> {
    let mut draw = Draw::new(seed);
    let end = seconds * 1000;
    let mut steps = Vec::new();
    for lane in [fault_of_process, fault_of_link] {
        let mut at = FIRST_MILLIS + draw.below(2_000);
        while at < end {
            // Within the lease, around its end, and beyond it.
            let hold_millis = match draw.below(4) {
                0 => draw.within(200, 1_500),
                1 => draw.within(1_500, 3_500),
                _ => draw.within(3_500, 7_000),
            };
            let step = Step { at_millis: at, hold_millis, fault: lane(&mut draw) };
            at += hold_millis + draw.within(700, 2_500);
            steps.push(step);
        }
    }
    steps.sort_by_key(|step| step.at_millis);
    steps
}

fn fault_of_process(draw: &mut Draw) -> Fault {
    let side = draw.one_of(&[Side::Origin, Side::Relying]);
    let one = match draw.below(3) {
        0 => Who::Follower(draw.below(8)),
        _ => Who::Leader,
    };
    match draw.below(6) {
        0 | 1 => Fault::Kill(side, one),
        2 | 3 => Fault::Pause(side, one),
        4 => Fault::Kill(side, Who::All),
        _ => Fault::Restart(side),
    }
}

fn fault_of_link(draw: &mut Draw) -> Fault {
    match draw.below(8) {
        0..=2 => Fault::Partition(Lost::Both),
        3 => Fault::Partition(Lost::ToOrigin),
        4 => Fault::Partition(Lost::FromOrigin),
        5 => Fault::Flapping(draw.within(60, 900)),
        6 => Fault::Slow(draw.within(20, 900)),
        _ => Fault::Lossy(draw.within(50, 400)),
    }
}

pub struct FaultRunner<'a> {
    pub link: &'a Link,
    pub recorder: &'a Recorder,
    /// Seed of the numbers that a fault draws while it lasts.
    pub seed: u64,
}

impl FaultRunner<'_> {
    /// Runs the schedule: faults of processes one after the other, and beside them those of the link.
    pub async fn run(
        &self,
        regions: &mut [Region; 2],
        steps: Vec<Step<Fault>>,
        begun: Instant,
    ) -> Result<()> {
        let (link, processes): (Vec<_>, Vec<_>) = steps.into_iter().partition(|step| step.fault.is_of_link());
        let nodes: Vec<_> = (0..2 * regions[0].members.count()).collect();
        let of_link = async {
            for step in &link {
                sleep_until(begun + Duration::from_millis(step.at_millis)).await;
                self.note(step.fault, &nodes, false)?;
                self.link_step(step).await;
                self.ways(&|way| *way = Way::default());
                self.note(step.fault, &nodes, true)?;
            }
            anyhow::Ok(())
        };
        let of_processes = async {
            for step in &processes {
                sleep_until(begun + Duration::from_millis(step.at_millis)).await;
                self.process_step(regions, step).await?;
            }
            anyhow::Ok(())
        };
        tokio::try_join!(of_link, of_processes).map(drop)
    }

    /// A process that has ended by itself is started again, which is recorded.
    pub fn revive(&self, regions: &mut [Region; 2]) -> Result<()> {
        let mut first = 0;
        for region in regions {
            for node in 0..region.members.count() {
                if !region.members.runs(node)? {
                    self.recorder.fault("exit", &[first + node], "the process has ended by itself", true)?;
                    region.members.start(node)?;
                }
            }
            first += region.members.count();
        }
        Ok(())
    }

    /// Keeps a fault of the link up for its time.
    async fn link_step(&self, step: &Step<Fault>) {
        let end = Instant::now() + step.hold();
        match step.fault {
            Fault::Partition(lost) => self.silence(lost),
            Fault::Slow(millis) => self.ways(&|way| way.delay = Duration::from_millis(millis)),
            Fault::Flapping(millis) => {
                let mut is_silent = false;
                while Instant::now() < end {
                    is_silent = !is_silent;
                    self.ways(&|way| way.is_silent = is_silent);
                    sleep(Duration::from_millis(millis)).await;
                }
            }
            Fault::Lossy(millis) => {
                let mut draw = Draw::new(self.seed);
                let nodes: Vec<_> = (0..self.link.addresses.len()).collect();
                while Instant::now() < end {
                    let node = Some(draw.one_of(&nodes));
                    self.link.set(None, node, |way| way.is_cut = true);
                    sleep(Duration::from_millis(millis)).await;
                    self.link.set(None, node, |way| way.is_cut = false);
                }
            }
            _ => {}
        }
        sleep_until(end).await;
    }

    fn silence(&self, lost: Lost) {
        for node in 0..self.link.addresses.len() {
            self.link.set(None, Some(node), |way| way.is_silent = lost != Lost::FromOrigin);
            self.link.set(Some(node), None, |way| way.is_silent = lost != Lost::ToOrigin);
        }
    }

    fn ways(&self, change: &dyn Fn(&mut Way)) {
        for node in 0..self.link.addresses.len() {
            self.link.set(None, Some(node), change);
            self.link.set(Some(node), None, change);
        }
    }

    async fn process_step(&self, regions: &mut [Region; 2], step: &Step<Fault>) -> Result<()> {
        let (Fault::Kill(side, _) | Fault::Pause(side, _) | Fault::Restart(side)) = step.fault else {
            return Ok(());
        };
        self.revive(regions)?;
        let per_region = regions[0].members.count();
        let (region, first) = match side {
            Side::Origin => (&mut regions[0], 0),
            Side::Relying => (&mut regions[1], per_region),
        };
        let nodes = match step.fault {
            Fault::Kill(_, who) | Fault::Pause(_, who) => nodes_of(region, who).await,
            _ => (0..per_region).collect(),
        };
        let numbers: Vec<_> = nodes.iter().map(|node| first + node).collect();
        self.note(step.fault, &numbers, false)?;
        let members = &mut region.members;
        for node in &nodes {
            match step.fault {
                Fault::Kill(..) => members.kill(*node)?,
                Fault::Pause(..) => members.pause(*node)?,
                _ => members.terminate(*node)?,
            }
        }
        if let Fault::Restart(_) = step.fault {
            for node in &nodes {
                members.until_exited(*node, EXIT_MAX).await?;
            }
        } else {
            sleep(step.hold()).await;
        }
        for node in &nodes {
            match step.fault {
                Fault::Pause(..) => members.resume_node(*node)?,
                _ => members.start(*node)?,
            }
        }
        self.note(step.fault, &numbers, true)
    }

    fn note(&self, fault: Fault, nodes: &[usize], is_end: bool) -> Result<()> {
        self.recorder.fault(fault.name(), nodes, &format!("{fault:?}"), is_end)
    }
}

/// The nodes of a region that a fault concerns now. Without a leader, the first node takes its part.
async fn nodes_of(region: &Region, who: Who) -> Vec<usize> {
    let count = region.members.count();
    let leader = timeout(LEADER_MAX, region.leader()).await.ok().flatten().unwrap_or_default();
    match who {
        Who::All => (0..count).collect(),
        Who::Follower(number) if count > 1 => {
            let step = 1 + usize::try_from(number).unwrap_or_default() % (count - 1);
            vec![(leader + step) % count]
        }
        _ => vec![leader],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_has_one_schedule_of_both_kinds() {
        assert_eq!(schedule(7, 30), schedule(7, 30));
        assert_ne!(schedule(7, 30), schedule(8, 30));
        for seed in 0..100 {
            for is_of_link in [false, true] {
                let steps = schedule(seed, 60);
                let lane: Vec<_> =
                    steps.iter().filter(|step| step.fault.is_of_link() == is_of_link).collect();
                assert!(lane.len() > 4, "{}", lane.len());
                assert!(lane.iter().all(|step| step.at_millis < 60_000));
                for two in lane.windows(2) {
                    assert!(two[0].at_millis + two[0].hold_millis < two[1].at_millis);
                }
            }
        }
    }
}
