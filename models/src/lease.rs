//! The freshness lease and the barrier (design §4, `src/cluster/freshness.rs` of the product): once a revocation is
//! acknowledged, no request that begins afterwards is answered from before it, on any node.
//!
//! Three nodes, one revocation, one change of leader and one removal of a member, in any order, with any delay, loss or pause between any two steps, for ever. Raft itself is taken as it promises to be:
//! one leader of the newest term, and what a quorum has committed is in the log of whoever leads later. Time is
//! counted in ticks, alike on all nodes; the margin for clocks that drift apart is not modelled.
//!
//! A request reads at once when it has found the lease: read later, it would find more, for nothing is forgotten.

use stateright::{Model, Property};

/// Nodes. The first one leads at the beginning, the second may lead later, the third may be removed.
const NODES: usize = 3;
const FIRST: usize = 0;
const SECOND: usize = 1;
const THIRD: usize = 2;
/// Ticks of a lease. What is older than that is all the same, so that time can go on for ever.
const LEASE: u8 = 2;

/// What keeps the promise. Each is one line of the argument, and can be left out to see what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A lease runs from when the leader was asked, not from when its answer came.
    RunsFromTheQuestion,
    /// A lease begins when the entry that the leader named is applied.
    BeginsWhenApplied,
    /// A leader answers only when a quorum has confirmed that it still leads.
    ConfirmedByQuorum,
    /// A new leader has committed an entry of its own term before it answers: it knows then what was committed.
    KnowsWhatWasCommitted,
    /// The lease is looked at after a request has arrived, before anything is read for it.
    LookedAtBeforeReading,
    /// An acknowledgement waits for members that have not applied the entry until their leases have run out.
    WaitsForMembers,
    /// That wait is counted from when the leader has applied the entry, not from when it was proposed.
    WaitsFromApplied,
    /// Whoever was removed counts as a member for as long as a lease.
    WaitsForRemoved,
    /// A new leader waits for as long as a lease: it does not know who was removed under its predecessor.
    NewLeaderWaits,
    /// Who learns that another leads gives up waiting: it learns from that one also who is a member no more, but not
    /// since when.
    GivesUpWhenDeposed,
    /// Leases are counted by a clock that goes on while a process or its machine is suspended.
    CountsSuspension,
}

/// Every rule.
pub const RULES: [Rule; 11] = [
    Rule::RunsFromTheQuestion,
    Rule::BeginsWhenApplied,
    Rule::ConfirmedByQuorum,
    Rule::KnowsWhatWasCommitted,
    Rule::LookedAtBeforeReading,
    Rule::WaitsForMembers,
    Rule::WaitsFromApplied,
    Rule::WaitsForRemoved,
    Rule::NewLeaderWaits,
    Rule::GivesUpWhenDeposed,
    Rule::CountsSuspension,
];

/// The lease and the barrier, with all rules or without one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lease {
    /// The rule that is not kept.
    pub without: Option<Rule>,
}

/// A question for a lease, on its way there or back. A node has one at a time, and may give it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Question {
    /// Since it was asked, by the clock of whoever asked.
    age: u8,
    /// Whether the answer names the revocation or what came before it; `None` on the way there.
    names_it: Option<bool>,
}

/// One node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    has_applied: bool,
    question: Option<Question>,
    /// How much is left of its lease, by its clock.
    lease: u8,
}

/// Everything. Times are ticks since something happened, up to those of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    nodes: [Node; NODES],
    /// Since when the second node leads; `None` while the first one does.
    second_leads: Option<u8>,
    /// Whether the leader has committed an entry of its own term.
    is_settled: bool,
    /// Since when the revocation is in the leader's log.
    proposed: Option<u8>,
    is_committed: bool,
    /// Who waits to acknowledge, and since when it counts.
    barrier: Option<(usize, u8)>,
    is_acknowledged: bool,
    /// By whom the third node was removed, and since when; nobody else knows of that.
    removed: Option<(usize, u8)>,
    request: Request,
}

/// A request that begins behind the acknowledgement, at a node that has not applied the revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    /// There is none.
    None,
    /// It has read at this node, and will look for a lease.
    HasRead(usize),
    /// It was answered from before the revocation.
    Stale,
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Time passes.
    Tick,
    /// Time passes, but not for the clock of this node.
    TickSuspended(usize),
    /// The leader takes the revocation into its log.
    Propose,
    /// A quorum has it.
    Commit,
    /// A node applies it.
    Apply(usize),
    /// The second node is elected.
    Elect,
    /// The new leader commits an entry of its own term.
    Settle,
    /// The leader removes the third node.
    Remove,
    /// A node asks for a lease.
    Ask(usize),
    /// A node that leads, or believes so, answers.
    Answer {
        /// Who answers.
        by: usize,
        /// Whom.
        to: usize,
    },
    /// A question or its answer is lost, or given up.
    Lose(usize),
    /// A node takes the lease that it was given.
    Take(usize),
    /// The leader has applied the revocation, and begins to wait.
    Wait,
    /// It has waited, and acknowledges.
    Acknowledge,
    /// A request that began behind the acknowledgement looks whether there is a lease, and reads.
    Read(usize),
    /// One that has read finds a lease afterwards.
    Finish,
}

impl Lease {
    fn keeps(self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// Whether whoever waits may acknowledge: the rule of `Barrier::rest` in the product.
    fn has_waited(self, world: &World, who: usize, waited: u8) -> bool {
        let has_run_out = |since: u8| since >= LEASE;
        // Who leads knows of every removal; who does so no more, of its own.
        let knows_all = who == world.leader() || !self.keeps(Rule::GivesUpWhenDeposed);
        let knows_of = |by: usize| knows_all || by == who;
        let is_member = |node: usize| node != THIRD || !world.removed.is_some_and(|(by, _)| knows_of(by));
        let is_behind =
            (0..NODES).any(|node| node != who && is_member(node) && !world.nodes[node].has_applied);
        let members = !self.keeps(Rule::WaitsForMembers) || !is_behind || has_run_out(waited);
        let removed = match world.removed {
            Some((by, since)) if by == who && self.keeps(Rule::WaitsForRemoved) => has_run_out(since),
            _ => true,
        };
        let new = match world.second_leads {
            Some(since) if who == SECOND && self.keeps(Rule::NewLeaderWaits) => has_run_out(since),
            _ => true,
        };
        members && removed && new
    }

    fn may_answer(self, world: &World, by: usize) -> bool {
        let leads = by == world.leader() && (world.is_settled || !self.keeps(Rule::KnowsWhatWasCommitted));
        let believes_so = by == FIRST && world.leader() == SECOND && !self.keeps(Rule::ConfirmedByQuorum);
        leads || believes_so
    }
}

impl World {
    fn leader(&self) -> usize {
        if self.second_leads.is_some() { SECOND } else { FIRST }
    }

    fn is_removed(&self, node: usize) -> bool {
        node == THIRD && self.removed.is_some()
    }

    /// Whether what this node knows to be committed has the revocation in it.
    fn knows_of_it(&self, node: usize) -> bool {
        let is_sure = node == self.leader() && self.is_settled;
        if is_sure { self.is_committed } else { self.nodes[node].has_applied }
    }

    /// Behind the acknowledgement this node has a lease, and does not know why it should not answer.
    fn would_be_stale(&self, node: usize) -> bool {
        let Node { has_applied, lease, .. } = self.nodes[node];
        self.is_acknowledged && lease > 0 && !has_applied
    }

    fn tick(&mut self, suspended: Option<usize>) {
        let older = |age: &mut u8| *age = (*age + 1).min(LEASE);
        for (id, node) in self.nodes.iter_mut().enumerate() {
            if Some(id) != suspended {
                node.lease = node.lease.saturating_sub(1);
                node.question.iter_mut().for_each(|question| older(&mut question.age));
            }
        }
        self.second_leads.iter_mut().for_each(older);
        self.proposed.iter_mut().for_each(older);
        self.barrier.iter_mut().for_each(|(_, since)| older(since));
        self.removed.iter_mut().for_each(|(_, since)| older(since));
    }
}

impl Model for Lease {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            nodes: [Node::default(); NODES],
            second_leads: None,
            is_settled: true,
            proposed: None,
            is_committed: false,
            barrier: None,
            is_acknowledged: false,
            removed: None,
            request: Request::None,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        let mut offer = |is_possible: bool, step: Step| {
            if is_possible {
                steps.push(step);
            }
        };
        offer(true, Step::Tick);
        offer(world.proposed.is_none(), Step::Propose);
        offer(world.proposed.is_some() && !world.is_committed && world.is_settled, Step::Commit);
        offer(world.second_leads.is_none(), Step::Elect);
        offer(!world.is_settled, Step::Settle);
        offer(world.removed.is_none() && world.is_settled, Step::Remove);
        let waits = world.barrier.is_some() || world.is_acknowledged;
        offer(world.nodes[world.leader()].has_applied && !waits, Step::Wait);
        offer(
            world.barrier.is_some_and(|(who, since)| self.has_waited(world, who, since)),
            Step::Acknowledge,
        );
        for (id, node) in world.nodes.iter().enumerate() {
            let is_member = !world.is_removed(id);
            offer(!self.keeps(Rule::CountsSuspension), Step::TickSuspended(id));
            offer(world.is_committed && !node.has_applied && is_member, Step::Apply(id));
            match node.question {
                None => offer(is_member, Step::Ask(id)),
                Some(Question { names_it: None, .. }) => {
                    offer(true, Step::Lose(id));
                    offer(is_member && self.may_answer(world, FIRST), Step::Answer { by: FIRST, to: id });
                    offer(is_member && self.may_answer(world, SECOND), Step::Answer { by: SECOND, to: id });
                }
                Some(Question { names_it: Some(names_it), .. }) => {
                    offer(true, Step::Lose(id));
                    let is_there = node.has_applied || !names_it || !self.keeps(Rule::BeginsWhenApplied);
                    offer(is_there, Step::Take(id));
                }
            }
            let looks_first = self.keeps(Rule::LookedAtBeforeReading);
            let reads_old = world.is_acknowledged && !node.has_applied && world.request == Request::None;
            offer(if looks_first { world.would_be_stale(id) } else { reads_old }, Step::Read(id));
        }
        offer(matches!(world.request, Request::HasRead(id) if world.nodes[id].lease > 0), Step::Finish);
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            Step::Tick => world.tick(None),
            Step::TickSuspended(id) => world.tick(Some(id)),
            Step::Propose => world.proposed = Some(0),
            Step::Commit => world.is_committed = true,
            Step::Apply(id) => world.nodes[id].has_applied = true,
            Step::Elect => {
                (world.second_leads, world.is_settled) = (Some(0), false);
                // What was not committed may be lost.
                world.proposed = world.proposed.filter(|_| world.is_committed);
            }
            Step::Settle => world.is_settled = true,
            Step::Remove => world.removed = Some((world.leader(), 0)),
            Step::Ask(id) => world.nodes[id].question = Some(Question { age: 0, names_it: None }),
            Step::Answer { by, to } => {
                let names_it = Some(world.knows_of_it(by));
                world.nodes[to].question.as_mut()?.names_it = names_it;
            }
            Step::Lose(id) => world.nodes[id].question = None,
            Step::Take(id) => {
                let node = &mut world.nodes[id];
                let question = node.question.take()?;
                let age = if self.keeps(Rule::RunsFromTheQuestion) { question.age } else { 0 };
                node.lease = node.lease.max(LEASE - age);
            }
            Step::Wait => {
                let proposed = world.proposed.unwrap_or_default();
                let since = if self.keeps(Rule::WaitsFromApplied) { 0 } else { proposed };
                world.barrier = Some((world.leader(), since));
            }
            Step::Acknowledge => (world.is_acknowledged, world.barrier) = (true, None),
            Step::Read(id) if !self.keeps(Rule::LookedAtBeforeReading) => {
                world.request = Request::HasRead(id);
            }
            Step::Read(_) | Step::Finish => world.request = Request::Stale,
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_STALE, |_, world: &World| world.request != Request::Stale),
            Property::sometimes("somebody has a lease who has not applied it", |_, world: &World| {
                world.nodes.iter().any(|node| world.is_committed && node.lease > 0 && !node.has_applied)
            }),
            Property::sometimes("it is acknowledged before a member has applied it", |_, world: &World| {
                world.is_acknowledged && !world.nodes[SECOND].has_applied
            }),
            Property::sometimes("a new leader acknowledges", |_, world: &World| {
                world.is_acknowledged && world.second_leads.is_some() && !world.nodes[FIRST].has_applied
            }),
            Property::sometimes("a removed member still holds a lease", |_, world: &World| {
                world.removed.is_some() && world.nodes[THIRD].lease > 0
            }),
        ]
    }
}

/// The promise.
pub const NEVER_STALE: &str = "nothing that begins behind the acknowledgement is answered from before it";
