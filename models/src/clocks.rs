//! Wrong wall clocks: the times of an entry cover every credential issued before it, and nothing expires early.
//!
//! Three voters. Their boot clocks run alike; their wall clocks may be set at any time, forwards or backwards. The leader
//! reads wall clocks, its own and others, and each entry has two times. *Log time*, by which rows expire, is the median of
//! the readings if a majority of the voters agrees with it, otherwise the last log time plus the boot time elapsed since
//! it was applied. The *stamp*, up to which credentials of other issuers are covered, is the latest of log time and of all
//! readings. Issuers' clocks are right.
//!
//! Offsets are in ticks; two clocks agree if they show the same tick.

use stateright::{Model, Property};

const VOTERS: usize = 3;
/// The last tick, so that the model ends.
const END: i8 = 3;
/// Number of ticks for which a reading is used.
const VALID: i8 = 1;

/// The rules. Each can be left out to show its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A leader appends no entry before it has read the clocks of a majority.
    ReadsAMajority,
    /// The stamp is at least as late as every reading.
    StampsTheLatest,
    /// Log time follows the median of the readings, not the leader's own clock.
    FollowsTheMedian,
    /// Log time follows only a median with which a majority of the voters agrees.
    NeedsAgreement,
    /// Otherwise it adds the time since the last entry was applied, not since this node led last.
    CountsFromApplied,
    /// A reading is used for a short time only.
    ReadingsExpire,
}

/// Every rule.
pub const RULES: [Rule; 6] = [
    Rule::ReadsAMajority,
    Rule::StampsTheLatest,
    Rule::FollowsTheMedian,
    Rule::NeedsAgreement,
    Rule::CountsFromApplied,
    Rule::ReadingsExpire,
];

/// Clocks, with all rules or without one.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// The rule that is left out.
    pub without: Option<Rule>,
    /// Maximum number of clocks that are wrong at once. Two wrong clocks do not agree with each other.
    pub wrong_max: usize,
}

/// A reading of a wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Reading {
    /// Error of the clock.
    offset: i8,
    /// Ticks since it was read.
    age: i8,
}

/// State of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// The right time.
    now: i8,
    /// Error of each wall clock, ticks for which it has been right, and its last error while a reading of that may be
    /// used.
    offsets: [i8; VOTERS],
    right_for: [i8; VOTERS],
    last_off: [i8; VOTERS],
    leader: usize,
    readings: [Option<Reading>; VOTERS],
    /// Log time, and time at which the last entry was applied; unknown to a restarted process.
    log_time: i8,
    applied_at: Option<i8>,
    /// Time of each leader's last entry of an earlier term, for the rule that it must not count from there.
    appended_at: [i8; VOTERS],
    verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Verdict {
    Good,
    /// An entry does not cover a credential that was issued before it.
    Uncovered,
    /// Log time is ahead of the right time.
    Ahead,
}

/// Possible steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Time advances.
    Tick,
    /// A wall clock is set.
    Set {
        voter: usize,
        /// Its new error.
        offset: i8,
    },
    /// The leader reads a wall clock.
    Read(usize),
    /// A voter is elected.
    Elect(usize),
    /// The leader's process restarts, and it is elected again.
    Restart,
    /// The leader appends an entry, which is applied at once.
    Append,
}

impl Clocks {
    fn keeps(self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn readings(self, world: &World) -> Vec<i8> {
        let expires = self.keeps(Rule::ReadingsExpire);
        let is_valid = |reading: &&Reading| !expires || reading.age <= VALID;
        let mut offsets: Vec<i8> =
            world.readings.iter().flatten().filter(is_valid).map(|reading| reading.offset).collect();
        offsets.sort_unstable();
        offsets
    }

    fn may_append(self, world: &World) -> bool {
        let needed = if self.keeps(Rule::ReadsAMajority) { VOTERS / 2 + 1 } else { 1 };
        self.readings(world).len() >= needed
    }

    fn append(self, world: &mut World) {
        let offsets = self.readings(world);
        // Of two readings, the earlier.
        let median = offsets[(offsets.len() - 1) / 2];
        let followed = if self.keeps(Rule::FollowsTheMedian) { median } else { world.offsets[world.leader] };
        let agree = offsets.iter().filter(|offset| **offset == median).count() > VOTERS / 2;
        let since = if self.keeps(Rule::CountsFromApplied) {
            world.applied_at.unwrap_or(world.now)
        } else {
            world.appended_at[world.leader]
        };
        let last = world.log_time;
        let follows = agree || !self.keeps(Rule::NeedsAgreement);
        let time = if follows { world.now + followed } else { last + world.now - since };
        world.log_time = time.max(last);
        let latest = world.now + offsets.last().copied().unwrap_or(median);
        let stamp =
            if self.keeps(Rule::StampsTheLatest) { world.log_time.max(latest) } else { world.log_time };
        (world.applied_at, world.appended_at[world.leader]) = (Some(world.now), world.now);
        world.verdict = if world.log_time > world.now {
            Verdict::Ahead
        } else if stamp < world.now && self.wrong_max == 1 {
            Verdict::Uncovered
        } else {
            Verdict::Good
        };
    }

    /// Whether this clock may be set so: not too many are wrong, no two wrong ones agree, and another one becomes wrong
    /// only after the readings of the last have expired.
    fn may_set(self, world: &World, voter: usize, offset: i8) -> bool {
        let others = || (0..VOTERS).filter(|id| *id != voter);
        let wrong = others().filter(|id| world.last_off[*id] != 0).count();
        let is_free = wrong < self.wrong_max && others().all(|id| world.last_off[id] != offset);
        let was_same = world.last_off[voter] == 0 || world.last_off[voter] == offset;
        world.offsets[voter] != offset && (offset == 0 || (world.offsets[voter] == 0 && was_same && is_free))
    }
}

impl Model for Clocks {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            now: 0,
            offsets: [0; VOTERS],
            right_for: [VALID + 1; VOTERS],
            last_off: [0; VOTERS],
            leader: 0,
            readings: [None; VOTERS],
            log_time: 0,
            applied_at: Some(0),
            appended_at: [0; VOTERS],
            verdict: Verdict::Good,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.verdict != Verdict::Good {
            return;
        }
        if world.now < END {
            steps.push(Step::Tick);
        }
        for voter in 0..VOTERS {
            let offsets = [-2, -1, 0, 1, 2].into_iter().filter(|offset| self.may_set(world, voter, *offset));
            steps.extend(offsets.map(|offset| Step::Set { voter, offset }));
            steps.push(Step::Read(voter));
            if voter != world.leader {
                steps.push(Step::Elect(voter));
            }
        }
        steps.push(Step::Restart);
        if self.may_append(world) {
            steps.push(Step::Append);
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            Step::Tick => {
                world.now += 1;
                for reading in world.readings.iter_mut().flatten() {
                    reading.age = (reading.age + 1).min(VALID + 1);
                }
                for id in 0..VOTERS {
                    let is_right = world.offsets[id] == 0;
                    world.right_for[id] = if is_right { (world.right_for[id] + 1).min(VALID + 1) } else { 0 };
                    if world.right_for[id] > VALID {
                        world.last_off[id] = 0;
                    }
                }
            }
            Step::Set { voter, offset } => {
                (world.offsets[voter], world.right_for[voter]) = (offset, 0);
                if offset != 0 {
                    world.last_off[voter] = offset;
                }
            }
            Step::Read(voter) => {
                world.readings[voter] = Some(Reading { offset: world.offsets[voter], age: 0 });
            }
            Step::Elect(voter) => (world.leader, world.readings) = (voter, [None; VOTERS]),
            Step::Restart => (world.applied_at, world.readings) = (None, [None; VOTERS]),
            Step::Append => self.append(&mut world),
        }
        if self.keeps(Rule::CountsFromApplied) {
            world.appended_at = [0; VOTERS];
        }
        if self.keeps(Rule::ReadingsExpire) {
            for reading in &mut world.readings {
                *reading = reading.filter(|reading| reading.age <= VALID);
            }
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(GOOD, |_, world: &World| world.verdict == Verdict::Good),
            Property::sometimes("a clock that is ahead is read", |_, world: &World| {
                world.log_time > 0 && world.readings.iter().flatten().any(|reading| reading.offset > 0)
            }),
            Property::sometimes("log time does not advance without agreement", |_, world: &World| {
                world.applied_at == Some(world.now) && world.log_time < world.now
            }),
            Property::sometimes("log time catches up", |_, world: &World| {
                world.log_time == END && world.offsets.iter().any(|offset| *offset != 0)
            }),
        ]
    }
}

/// Each entry covers credentials issued before it, and log time is not ahead.
pub const GOOD: &str = "entries cover credentials issued before them, and nothing expires early";
