//! The faults of a run, drawn from its seed: the same seed has the same schedule.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

/// Milliseconds before the first fault, for a history that begins without faults.
pub(crate) const FIRST_MILLIS: u64 = 1_500;

/// Milliseconds after which a successor of a signing key may sign: it is published for ten minutes before.
const SUCCESSOR_MILLIS: u64 = 605_000;

/// A reproducible sequence (`SplitMix64`).
pub struct Draw(u64);

impl Draw {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number of the range.
    pub const fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }

    /// One of the values, which are not empty.
    pub fn one_of<T: Clone>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap_or_default()].clone()
    }
}

/// A row of the table: one kind of fault, or a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Nemesis {
    /// No fault
    None,
    /// kill -9 of one node, often the leader
    KillOne,
    /// kill -9 of a minority
    KillMinority,
    /// kill -9 of all nodes at once
    KillAll,
    /// SIGSTOP of the leader
    PauseLeader,
    /// SIGSTOP of a follower
    PauseFollower,
    /// SIGSTOP of a minority
    PauseMinority,
    /// A minority, often with the leader, is partitioned from the others
    Minority,
    /// Every node reaches a majority, and no two the same: five nodes or more
    Ring,
    /// One node reaches both halves, which do not reach each other
    Bridge,
    /// Bytes from one node to another are lost, those back arrive
    OneWay,
    /// A partition that comes and goes several times in a second
    Flapping,
    /// Bytes between nodes are late
    Slow,
    /// Connections between nodes break all the time
    Lossy,
    /// SIGTERM of every node in turn
    Restart,
    /// A follower is started on an older copy of its directory, which it must refuse
    SetBack,
    /// The wall clock of a node jumps
    Clock,
    /// The wall clock of a node runs too fast or too slowly, or stands still
    Drift,
    /// Syncs of a node take longer, or hang
    SlowDisk,
    /// Syncs of a node fail
    FailedSync,
    /// A node cannot allocate space
    FullDisk,
    /// The signing key of a node is tainted
    Taint,
    /// From the eleventh minute on, when successors may sign: the signing key of a node is rotated
    Rotate,
    /// The certificates of all nodes, for clients and for each other, are renewed
    Certificates,
    /// A node is killed with its directory and replaced by a new one
    Replace,
    /// A node leaves the cluster in order, and a new one joins it
    Members,
    /// The power of a node is cut: needs a disk for each node
    PowerCut,
    /// The power of all nodes is cut at once
    PowerCutAll,
    /// The log is small, and a follower is down until it has been purged beyond the follower's entries
    Purge,
    /// Two faults at a time of any kind, one of processes and one of the network
    Mix,
}

impl Nemesis {
    /// Those of the short table.
    pub const SHORT: [Self; 16] = [
        Self::KillOne,
        Self::KillAll,
        Self::PauseLeader,
        Self::PauseFollower,
        Self::Minority,
        Self::Bridge,
        Self::OneWay,
        Self::Flapping,
        Self::Restart,
        Self::SetBack,
        Self::Clock,
        Self::FailedSync,
        Self::Taint,
        Self::Certificates,
        Self::Replace,
        Self::Mix,
    ];

    /// Every nemesis that differs from the others with so many nodes and needs no run as long as the wait for
    /// a new signing key.
    pub fn all(nodes: u64, disks: bool) -> Vec<Self> {
        let is_possible = |one: &Self| match one {
            Self::Ring => nodes >= 5,
            Self::Rotate => false,
            one => one.needs_disks() == disks,
        };
        Self::value_variants().iter().copied().filter(is_possible).collect()
    }

    /// Whether it needs proxies between the nodes, or addresses for nodes that join.
    pub const fn needs_proxies(self) -> bool {
        matches!(
            self,
            Self::Ring
                | Self::Bridge
                | Self::OneWay
                | Self::Slow
                | Self::Lossy
                | Self::Replace
                | Self::Members
                | Self::Mix
        )
    }

    /// Whether it cuts the power of disks.
    pub const fn needs_disks(self) -> bool {
        matches!(self, Self::PowerCut | Self::PowerCutAll)
    }

    /// Nodes that join in a run of so many seconds, at most.
    pub fn joiners(self, seed: u64, seconds: u64) -> u64 {
        let joins = |step: &Step| matches!(step.fault, Fault::Replace(_) | Fault::Members(_));
        schedule(seed, self, seconds).iter().filter(|step| joins(step)).count() as u64
    }

    pub fn name(self) -> String {
        let name = serde_json::to_value(self).unwrap_or_default();
        name.as_str().unwrap_or_default().to_owned()
    }
}

/// The nodes of a fault. The leader is known only when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Who {
    Leader,
    /// A follower by number, modulo the number of followers.
    Follower(u64),
    /// The leader and further nodes, or so many followers: less than half.
    Minority {
        with_leader: bool,
        shift: u64,
    },
    All,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Fault {
    Kill(Who),
    Pause(Who),
    Restart,
    SetBack(u64),
    Clock(Who, i64),
    /// Nanoseconds per second.
    Drift(Who, i64),
    /// Additional milliseconds of each sync; `None`: it hangs.
    SlowDisk(Who, Option<u64>),
    FailedSync(Who),
    FullDisk(Who),
    Taint,
    Rotate(u64),
    Certificates,
    Replace(Who),
    Members(Who),
    PowerCut(Who),
    /// A follower is down.
    Purge(u64),
    Partition(Who),
    Ring(u64),
    Bridge(u64),
    /// From the nodes to the others, or from the others to them.
    OneWay(Who, bool),
    Flapping(Who, u64),
    Slow(u64),
    Lossy(u64),
}

impl Fault {
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Kill(_) => "kill",
            Self::Pause(_) => "pause",
            Self::Restart => "restart",
            Self::SetBack(_) => "set-back",
            Self::Clock(..) => "clock",
            Self::Drift(..) => "drift",
            Self::SlowDisk(..) => "slow-disk",
            Self::FailedSync(_) => "failed-sync",
            Self::FullDisk(_) => "full-disk",
            Self::Taint => "taint",
            Self::Rotate(_) => "rotate",
            Self::Certificates => "certificates",
            Self::Replace(_) => "lost-disk",
            Self::Members(_) => "members",
            Self::PowerCut(_) => "power-cut",
            Self::Purge(_) => "purge",
            Self::Partition(_) => "partition",
            Self::Ring(_) => "ring",
            Self::Bridge(_) => "bridge",
            Self::OneWay(..) => "one-way",
            Self::Flapping(..) => "flapping",
            Self::Slow(_) => "slow",
            Self::Lossy(_) => "lossy",
        }
    }

    /// Whether it is a fault of the links, which may be beside one of a process.
    pub const fn is_of_network(&self) -> bool {
        matches!(
            self,
            Self::Partition(_)
                | Self::Ring(_)
                | Self::Bridge(_)
                | Self::OneWay(..)
                | Self::Flapping(..)
                | Self::Slow(_)
                | Self::Lossy(_)
        )
    }
}

/// A fault with its time. Faults of processes follow one another, and so do those of the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step<F = Fault> {
    /// Since the start of the load.
    pub at_millis: u64,
    pub hold_millis: u64,
    pub fault: F,
}

impl<F> Step<F> {
    pub const fn hold(&self) -> Duration {
        Duration::from_millis(self.hold_millis)
    }
}

/// The faults of a run of so many seconds.
pub fn schedule(seed: u64, nemesis: Nemesis, seconds: u64) -> Vec<Step> {
    let mut draw = Draw::new(seed);
    let end = seconds * 1000;
    let mut steps = Vec::new();
    let lanes: &[Lane] = match nemesis {
        Nemesis::None => &[],
        Nemesis::Mix => &[Lane::Processes, Lane::Network],
        _ => &[Lane::Of(nemesis)],
    };
    for lane in lanes {
        let mut at = if nemesis == Nemesis::Rotate { SUCCESSOR_MILLIS } else { FIRST_MILLIS };
        while at < end {
            let of = match lane {
                Lane::Of(nemesis) => *nemesis,
                Lane::Processes => draw.one_of(&PROCESSES),
                Lane::Network => draw.one_of(&NETWORK),
            };
            let (fault, hold_millis) = fault_of(&mut draw, of);
            if at + hold_millis > end && !steps.is_empty() {
                break;
            }
            steps.push(Step { at_millis: at, hold_millis, fault });
            at += hold_millis + draw.within(700, 2_000);
        }
    }
    steps.sort_by_key(|step| step.at_millis);
    steps
}

#[derive(Clone, Copy)]
enum Lane {
    Of(Nemesis),
    Processes,
    Network,
}

const PROCESSES: [Nemesis; 13] = [
    Nemesis::KillOne,
    Nemesis::KillOne,
    Nemesis::KillMinority,
    Nemesis::KillAll,
    Nemesis::PauseLeader,
    Nemesis::PauseFollower,
    Nemesis::PauseMinority,
    Nemesis::Clock,
    Nemesis::Drift,
    Nemesis::SlowDisk,
    Nemesis::FailedSync,
    Nemesis::FullDisk,
    Nemesis::Restart,
];

const NETWORK: [Nemesis; 7] = [
    Nemesis::Minority,
    Nemesis::Minority,
    Nemesis::Bridge,
    Nemesis::OneWay,
    Nemesis::Flapping,
    Nemesis::Slow,
    Nemesis::Lossy,
];

/// Seconds by which clocks jump.
const JUMPS: [i64; 6] = [-3600, -60, -10, 10, 60, 3600];

/// Nanoseconds per second by which clocks drift; the last one stands still.
const DRIFTS: [i64; 5] = [10_000_000, 200_000_000, 1_000_000_000, -200_000_000, -1_000_000_000];

/// A fault of this kind, and its duration in milliseconds.
fn fault_of(draw: &mut Draw, of: Nemesis) -> (Fault, u64) {
    let one = |draw: &mut Draw| match draw.below(3) {
        0 => Who::Follower(draw.below(8)),
        _ => Who::Leader,
    };
    let minority = |draw: &mut Draw| Who::Minority { with_leader: draw.below(3) > 0, shift: draw.below(8) };
    // Around the lease and its wait, and around the time until another node leads.
    let hold = match draw.below(4) {
        0 => draw.within(150, 900),
        1 => draw.within(900, 2_200),
        _ => draw.within(2_200, 4_500),
    };
    match of {
        Nemesis::None | Nemesis::KillOne | Nemesis::Mix => (Fault::Kill(one(draw)), hold),
        Nemesis::KillMinority => (Fault::Kill(minority(draw)), hold),
        Nemesis::KillAll => (Fault::Kill(Who::All), draw.within(100, 1_000)),
        Nemesis::PauseLeader => (Fault::Pause(Who::Leader), hold),
        Nemesis::PauseFollower => (Fault::Pause(Who::Follower(draw.below(8))), hold),
        Nemesis::PauseMinority => (Fault::Pause(minority(draw)), hold),
        Nemesis::Minority => (Fault::Partition(minority(draw)), hold),
        Nemesis::Ring => (Fault::Ring(draw.below(8)), hold),
        Nemesis::Bridge => (Fault::Bridge(draw.below(8)), hold),
        Nemesis::OneWay => (Fault::OneWay(one(draw), draw.below(2) == 0), hold),
        Nemesis::Flapping => (Fault::Flapping(one(draw), draw.within(60, 400)), draw.within(2_000, 4_500)),
        Nemesis::Slow => (Fault::Slow(draw.within(10, 250)), hold),
        Nemesis::Lossy => (Fault::Lossy(draw.within(50, 300)), draw.within(2_000, 4_500)),
        Nemesis::Restart => (Fault::Restart, 4_000),
        Nemesis::SetBack => (Fault::SetBack(draw.below(8)), draw.within(2_500, 4_500)),
        Nemesis::Clock => (Fault::Clock(one(draw), draw.one_of(&JUMPS)), draw.within(1_500, 5_000)),
        Nemesis::Drift => (Fault::Drift(one(draw), draw.one_of(&DRIFTS)), draw.within(1_500, 5_000)),
        Nemesis::SlowDisk => {
            let millis = draw.one_of(&[None, Some(20), Some(200), Some(2_000)]);
            (Fault::SlowDisk(one(draw), millis), hold)
        }
        Nemesis::FailedSync => (Fault::FailedSync(one(draw)), hold),
        Nemesis::FullDisk => (Fault::FullDisk(one(draw)), hold),
        Nemesis::Taint => (Fault::Taint, draw.within(1_000, 2_500)),
        Nemesis::Rotate => (Fault::Rotate(draw.below(8)), draw.within(500, 1_500)),
        // Files are read every few seconds.
        Nemesis::Certificates => (Fault::Certificates, draw.within(3_000, 5_000)),
        Nemesis::Replace => (Fault::Replace(one(draw)), draw.within(500, 1_500)),
        Nemesis::Members => (Fault::Members(one(draw)), draw.within(500, 1_500)),
        Nemesis::PowerCut => (Fault::PowerCut(one(draw)), draw.within(200, 2_500)),
        Nemesis::PowerCutAll => (Fault::PowerCut(Who::All), draw.within(100, 1_000)),
        // The log is kept for a silent member for ten seconds.
        Nemesis::Purge => (Fault::Purge(draw.below(8)), draw.within(11_000, 13_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_has_one_schedule() {
        let of = |seed| schedule(seed, Nemesis::Mix, 60);
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }

    #[test]
    fn faults_of_one_lane_do_not_overlap() {
        for seed in 0..200 {
            let steps = schedule(seed, Nemesis::Mix, 60);
            for network in [false, true] {
                let lane: Vec<_> =
                    steps.iter().filter(|step| step.fault.is_of_network() == network).collect();
                assert!(lane.len() > 5, "{}", lane.len());
                for two in lane.windows(2) {
                    assert!(two[0].at_millis + two[0].hold_millis < two[1].at_millis);
                }
            }
        }
    }

    #[test]
    fn every_nemesis_has_faults_before_the_end() {
        for nemesis in Nemesis::value_variants() {
            let steps = schedule(3, *nemesis, 620);
            assert_eq!(steps.is_empty(), *nemesis == Nemesis::None, "{nemesis:?}");
            assert!(steps.iter().all(|step| step.at_millis < 620_000));
        }
    }
}
