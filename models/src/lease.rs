//! The freshness lease and the barrier (`src/cluster/reads/freshness.rs` of the product): once a revocation is acknowledged,
//! no request that begins afterwards is answered from a state before it, on any node.
//!
//! Three nodes, one revocation, one removal of a member, elections of the second node, and any number of restarts, in
//! any order, with any delay, loss or suspension between any two steps, for ever. Votes, entries and the leader's
//! confirmation by a quorum are modelled. How an entry reaches the log of a majority is Raft's own proof; here a leader
//! replicates it to one follower at a time. A disk that loses what it had synced is in [`crate::disks`].
//!
//! Time is counted in ticks, alike on all nodes; the margin for clocks that drift apart is not modelled. A request reads
//! as soon as it has found the lease: later it would find more, because applied state only grows.

use stateright::{Model, Property};

/// Nodes. The first one leads at the beginning, the second may lead later, the third may be removed.
const NODES: usize = 3;
const FIRST: usize = 0;
const SECOND: usize = 1;
const THIRD: usize = 2;

/// The rules that keep the promise. Each is one line of the argument, and can be left out to see its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A lease runs from when the member sent its request, not from when the answer came.
    RunsFromTheQuestion,
    /// A lease begins when the entry that the leader named is applied.
    BeginsWhenApplied,
    /// A leader answers only when a quorum has confirmed that it still leads.
    ConfirmedByQuorum,
    /// Only a follower's answer to a heartbeat that was sent after the request arrived confirms the leader.
    ConfirmedSinceAsked,
    /// A new leader has committed an entry of its own term before it answers: it knows then what was committed.
    KnowsWhatWasCommitted,
    /// The lease is checked after a request has arrived, before anything is read for it.
    LookedAtBeforeReading,
    /// An acknowledgement waits for members that have not applied the entry until their leases have run out.
    WaitsForMembers,
    /// That wait is counted from when the leader has applied the entry, not from when it was proposed; or from the
    /// member's last lease request, if that is earlier.
    WaitsFromApplied,
    /// The leader notes a lease request when it arrives, not when it is answered.
    NotedOnArrival,
    /// Only a request that was noted gives a lease. A member that asks for the index alone gets none.
    OnlyNotedRequestsGiveALease,
    /// A removed member is waited for as long as a lease lasts.
    WaitsForRemoved,
    /// A new leader waits for as long as a lease: it does not know which leases its predecessor gave, nor which members
    /// were removed under it.
    NewLeaderWaits,
    /// A leader that learns of its successor gives up waiting: it learns from it also who is no longer a member, but
    /// not since when.
    GivesUpWhenDeposed,
    /// A leader acknowledges only an entry that it has applied while it led. A deposed one may apply its successor's
    /// entry before it has noticed, and knows nothing of the leases that its successor gave.
    AppliedAsLeader,
    /// Leases are counted by a clock that goes on while a process or its machine is suspended.
    CountsSuspension,
    /// A lease ends with the process that holds it: the next one may have to apply entries again.
    EndsWithTheProcess,
    /// A vote is durable before it is given.
    VotesSurviveRestarts,
    /// An entry is durable before it is acknowledged to the leader.
    EntriesSurviveRestarts,
    /// A read without a lease (`freshness = "read-index"`) shares only a request that was not sent when it arrived.
    SharesOnlyUnsentQuestions,
}

/// Every rule.
pub const RULES: [Rule; 19] = [
    Rule::RunsFromTheQuestion,
    Rule::BeginsWhenApplied,
    Rule::ConfirmedByQuorum,
    Rule::ConfirmedSinceAsked,
    Rule::KnowsWhatWasCommitted,
    Rule::LookedAtBeforeReading,
    Rule::WaitsForMembers,
    Rule::WaitsFromApplied,
    Rule::NotedOnArrival,
    Rule::OnlyNotedRequestsGiveALease,
    Rule::WaitsForRemoved,
    Rule::NewLeaderWaits,
    Rule::GivesUpWhenDeposed,
    Rule::AppliedAsLeader,
    Rule::CountsSuspension,
    Rule::EndsWithTheProcess,
    Rule::VotesSurviveRestarts,
    Rule::EntriesSurviveRestarts,
    Rule::SharesOnlyUnsentQuestions,
];

/// The lease and the barrier, with all rules or without one.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// Ticks of a lease. Larger ages are all the same, so that time can go on for ever.
    pub ticks: u8,
    /// The rule that is not kept.
    pub without: Option<Rule>,
    /// Whether processes are killed and start again.
    pub restarts: bool,
    /// Whether a member is removed.
    pub removal: bool,
}

/// A member's request for the index. A member has one at a time, and may give it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Question {
    /// Since it was sent, by the clock of the member.
    age: u8,
    /// Whether the member asks for a lease.
    is_noted: bool,
    stage: Stage,
}

impl Question {
    fn names_it(&self) -> bool {
        match self.stage {
            Stage::Sent => false,
            Stage::Arrived { names_it, .. } | Stage::Confirmed { names_it } => names_it,
        }
    }
}

/// How far a request for the index has come. `names_it`: the answer names the revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Sent,
    Arrived { at: usize, names_it: bool },
    Confirmed { names_it: bool },
}

/// One node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "facts that are independent of each other")]
struct Node {
    /// Whether it has voted in the second node's election, or follows it.
    is_in_new_term: bool,
    /// Whether the revocation is in its log.
    has_logged: bool,
    has_applied: bool,
    /// Whether it ever told that it has applied it. It may have to apply it again after a restart.
    has_told: bool,
    question: Option<Question>,
    /// Rest of its lease, by its clock.
    lease: u8,
}

/// Everything. Times are ticks since an event, up to those of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "facts that are independent of each other")]
pub struct World {
    nodes: [Node; NODES],
    /// Whether the first node believes that it leads.
    first_leads: bool,
    /// Since when the second node leads.
    second_leads: Option<u8>,
    /// Whether the second node was ever elected.
    was_elected: bool,
    /// Whether the newest leader has committed an entry of its own term.
    is_settled: bool,
    /// Since when the revocation is in the leader's log.
    proposed: Option<u8>,
    is_committed: bool,
    /// For the first two nodes: the age of the last lease request of each member.
    noted: [[u8; NODES]; 2],
    /// Whether a follower ever confirmed the leader, for each of the first two nodes.
    was_confirmed: [bool; 2],
    /// The node that waits to acknowledge, and since when it counts.
    barrier: Option<(usize, u8)>,
    is_acknowledged: bool,
    /// The node that removed the third one, and since when; no other node knows of it.
    removed: Option<(usize, u8)>,
    request: Request,
}

/// A request that begins after the acknowledgement, at a node that has not applied the revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    /// There is none.
    None,
    /// It has read at this node, and will check the lease.
    HasRead(usize),
    /// It waits for the next request for the index, without a lease.
    WaitsForNext(usize),
    /// It waits for the answer to the one in flight.
    WaitsForAnswer(usize),
    /// It was answered from a state before the revocation.
    Stale,
}

/// Everything that can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Time passes.
    Tick,
    /// Time passes, but not for the clock of this node.
    TickSuspended(usize),
    /// The leader takes the revocation into its log.
    Propose,
    /// A follower takes it into its log.
    Replicate(usize),
    /// The first node finds it on a majority.
    Commit,
    /// The second node, as the leader, does.
    CommitAsSecond,
    /// A node applies it.
    Apply(usize),
    /// The second node stands for election.
    Stand,
    /// A node votes for it.
    Vote(usize),
    /// The second node has the votes of a majority.
    Elect,
    /// It commits an entry of its own term.
    Settle,
    /// The leader removes the third node.
    Remove,
    /// A node's process is killed and starts again.
    Restart(usize),
    /// A node asks for a lease.
    Ask(usize),
    /// A node asks for the index without a lease.
    AskWithout(usize),
    /// The request arrives at a node that leads, or believes so.
    Arrive {
        /// The node that leads.
        at: usize,
        /// The member that asks.
        from: usize,
    },
    /// A follower answers a heartbeat of a node that leads, or believes so.
    Follow {
        /// The node that leads.
        leader: usize,
        /// The follower.
        follower: usize,
    },
    /// A request or its answer is lost, or given up.
    Lose(usize),
    /// A node takes the lease that it was given.
    Take(usize),
    /// A leader has applied the revocation, and begins to wait.
    Wait(usize),
    /// It has waited, and acknowledges.
    Acknowledge,
    /// A request that began after the acknowledgement checks the lease, and reads.
    Read(usize),
    /// One that has read finds a lease afterwards.
    Finish,
    /// A request that needs no lease begins after the acknowledgement.
    Begin(usize),
    /// It shares the request for the index that is in flight.
    Share(usize),
}

impl Lease {
    fn keeps(self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// Whether `node` may acknowledge after it has waited so long: the rule of `Barrier::rest` in the product.
    fn has_waited(self, world: &World, node: usize, waited: u8) -> bool {
        let has_run_out = |since: u8| since >= self.ticks;
        // The newest leader knows of every removal; its predecessor knows of its own.
        let is_deposed = node == FIRST && !world.first_leads;
        let knows_of = |by: usize| by == node || is_deposed || world.leads(SECOND);
        let is_member = |id: usize| id != THIRD || !world.removed.is_some_and(|(by, _)| knows_of(by));
        let is_waited_for = |id: &usize| {
            *id != node
                && is_member(*id)
                && !world.nodes[*id].has_told
                && !has_run_out(waited)
                && !has_run_out(world.noted[node][*id])
        };
        let members = !self.keeps(Rule::WaitsForMembers) || (0..NODES).find(is_waited_for).is_none();
        let removed = match world.removed {
            Some((by, since)) if by == node && self.keeps(Rule::WaitsForRemoved) => has_run_out(since),
            _ => true,
        };
        let new = match world.second_leads {
            Some(since) if node == SECOND && self.keeps(Rule::NewLeaderWaits) => has_run_out(since),
            _ => true,
        };
        members && removed && new
    }

    fn may_be_asked(self, world: &World, node: usize) -> bool {
        world.leads(node) && (node == FIRST || world.is_settled || !self.keeps(Rule::KnowsWhatWasCommitted))
    }

    /// The stage of a request that has arrived.
    fn arrived(self, world: &World, at: usize) -> Stage {
        let names_it = world.knows_of_it(at);
        let is_confirmed = !self.keeps(Rule::ConfirmedByQuorum)
            || (!self.keeps(Rule::ConfirmedSinceAsked) && world.was_confirmed[at]);
        if is_confirmed { Stage::Confirmed { names_it } } else { Stage::Arrived { at, names_it } }
    }

    /// Forgets what no longer matters for the promise, so that fewer states are told apart.
    fn simplify(self, world: &mut World) {
        // With these rules, neither the lease of a node that has applied the revocation nor an answer that names it can
        // let a stale request in.
        let by = [Rule::EndsWithTheProcess, Rule::LookedAtBeforeReading, Rule::BeginsWhenApplied];
        if by.into_iter().all(|rule| self.keeps(rule)) {
            for node in &mut world.nodes {
                if node.has_applied {
                    (node.lease, node.question) = (0, None);
                }
                node.question = node.question.filter(|question| !question.names_it());
            }
        }
        for leader in [FIRST, SECOND] {
            for (id, node) in world.nodes.iter().enumerate() {
                let is_used = world.leads(leader) || world.barrier.is_some_and(|(by, _)| by == leader);
                if !is_used || node.has_told || world.is_acknowledged || id == leader {
                    world.noted[leader][id] = self.ticks;
                }
            }
        }
        if world.is_acknowledged {
            world.barrier = None;
            world.second_leads = world.second_leads.map(|_| self.ticks);
            world.removed = world.removed.map(|(by, _)| (by, self.ticks));
        }
        if self.keeps(Rule::ConfirmedSinceAsked) {
            world.was_confirmed = [false; 2];
        }
    }

    fn restart(self, world: &mut World, id: usize) {
        let node = &mut world.nodes[id];
        (node.has_applied, node.question) = (false, None);
        if self.keeps(Rule::EndsWithTheProcess) {
            node.lease = 0;
        }
        node.is_in_new_term &= self.keeps(Rule::VotesSurviveRestarts);
        node.has_logged &= self.keeps(Rule::EntriesSurviveRestarts);
        if id == FIRST {
            world.first_leads = false;
        } else if id == SECOND {
            world.second_leads = None;
        }
        world.barrier = world.barrier.filter(|(by, _)| *by != id);
    }

    fn elect(world: &mut World) {
        if !world.was_elected && !world.nodes[SECOND].has_logged {
            if world.is_acknowledged {
                world.request = Request::Stale;
            }
            // An entry that was not committed may be lost.
            world.nodes.iter_mut().for_each(|node| node.has_logged = false);
            world.proposed = world.proposed.filter(|_| world.is_committed);
        }
        (world.second_leads, world.is_settled, world.was_elected) = (Some(0), false, true);
    }

    fn follow(self, world: &mut World, leader: usize, follower: usize) {
        world.was_confirmed[leader] = true;
        if leader == SECOND {
            world.nodes[follower].is_in_new_term = true;
            if follower == FIRST {
                self.depose(world);
            }
        }
        for id in 0..NODES {
            let Some(question) = world.nodes[id].question.as_mut() else { continue };
            let Stage::Arrived { at, names_it } = question.stage else { continue };
            if at == leader {
                question.stage = Stage::Confirmed { names_it };
                if question.is_noted && !self.keeps(Rule::NotedOnArrival) {
                    world.noted[leader][id] = 0;
                }
            }
        }
    }

    fn apply(self, world: &mut World, id: usize) {
        let is_told_by_first = world.first_leads && world.is_on_majority();
        (world.nodes[id].has_applied, world.nodes[id].has_told) = (true, true);
        if world.was_elected && !is_told_by_first {
            world.nodes[id].is_in_new_term = true;
            if id == FIRST && self.keeps(Rule::AppliedAsLeader) {
                self.depose(world);
            }
        }
    }

    /// The first node learns that it does not lead.
    fn depose(self, world: &mut World) {
        world.first_leads = false;
        if self.keeps(Rule::GivesUpWhenDeposed) {
            world.barrier = world.barrier.filter(|(by, _)| *by != FIRST);
        }
    }

    fn take(self, world: &mut World, id: usize) {
        let Some(question) = world.nodes[id].question.take() else { return };
        if world.request == Request::WaitsForAnswer(id) {
            let is_stale = !world.nodes[id].has_applied;
            world.request = if is_stale { Request::Stale } else { Request::None };
        }
        if question.is_noted || !self.keeps(Rule::OnlyNotedRequestsGiveALease) {
            let age = if self.keeps(Rule::RunsFromTheQuestion) { question.age } else { 0 };
            world.nodes[id].lease = world.nodes[id].lease.max(self.ticks - age);
        }
    }
}

impl World {
    /// Whether this node leads, or believes so.
    fn leads(&self, node: usize) -> bool {
        match node {
            FIRST => self.first_leads,
            SECOND => self.second_leads.is_some(),
            _ => false,
        }
    }

    /// The leader of the newest term, if there is one.
    fn leader(&self) -> Option<usize> {
        let newest = if self.was_elected { SECOND } else { FIRST };
        self.leads(newest).then_some(newest)
    }

    fn is_removed(&self, node: usize) -> bool {
        node == THIRD && self.removed.is_some()
    }

    /// Whether the index that this node names covers the revocation.
    fn knows_of_it(&self, node: usize) -> bool {
        let is_sure = self.leader() == Some(node) && self.is_settled;
        if is_sure { self.is_committed } else { self.nodes[node].has_applied }
    }

    /// Whether the first node finds the revocation on a majority.
    fn is_on_majority(&self) -> bool {
        let has_logged = |id: usize| self.nodes[id].has_logged && !self.is_removed(id);
        self.first_leads && has_logged(FIRST) && (has_logged(SECOND) || has_logged(THIRD))
    }

    fn has_majority(&self) -> bool {
        let votes = |id: usize| self.nodes[id].is_in_new_term;
        votes(SECOND) && (votes(FIRST) || (votes(THIRD) && !self.is_removed(THIRD)))
    }

    /// Whether this node votes for the second one.
    fn may_vote(&self, id: usize) -> bool {
        let Node { is_in_new_term, has_logged, .. } = self.nodes[id];
        let candidate = self.nodes[SECOND];
        !is_in_new_term && candidate.is_in_new_term && (!has_logged || candidate.has_logged)
    }

    /// Whether the leader can have a removal committed: by both of the members that are left.
    fn may_remove(&self) -> bool {
        let are_in_term = match self.leader() {
            Some(FIRST) => !self.nodes[SECOND].is_in_new_term,
            Some(_) => self.nodes[FIRST].is_in_new_term && self.is_settled,
            None => false,
        };
        self.removed.is_none() && are_in_term
    }

    /// Whether this follower answers heartbeats of that leader, which counts it as a voter.
    fn follows(&self, leader: usize, follower: usize) -> bool {
        let is_voter = match self.removed {
            Some((by, _)) => follower != THIRD || (by == SECOND && leader == FIRST),
            None => true,
        };
        let is_in_term = leader == SECOND || !self.nodes[follower].is_in_new_term;
        self.leads(leader) && leader != follower && is_voter && is_in_term
    }

    /// After the acknowledgement this node has a lease, and has not applied the revocation.
    fn would_be_stale(&self, node: usize) -> bool {
        let Node { has_applied, lease, .. } = self.nodes[node];
        self.is_acknowledged && lease > 0 && !has_applied
    }

    fn tick(&mut self, most: u8, suspended: Option<usize>) {
        let older = |age: &mut u8| *age = (*age + 1).min(most);
        for (id, node) in self.nodes.iter_mut().enumerate() {
            if Some(id) != suspended {
                node.lease = node.lease.saturating_sub(1);
                node.question.iter_mut().for_each(|question| older(&mut question.age));
            }
        }
        self.second_leads.iter_mut().for_each(older);
        self.proposed.iter_mut().for_each(older);
        self.noted.iter_mut().flatten().for_each(older);
        self.barrier.iter_mut().for_each(|(_, since)| older(since));
        self.removed.iter_mut().for_each(|(_, since)| older(since));
    }
}

impl Lease {
    /// The steps of the leaders.
    fn offer_leading(self, world: &World, offer: &mut impl FnMut(bool, Step)) {
        offer(world.proposed.is_none() && world.leader().is_some(), Step::Propose);
        offer(!world.is_committed && world.is_on_majority(), Step::Commit);
        let can_commit = world.leads(SECOND) && world.is_settled && world.nodes[SECOND].has_logged;
        offer(!world.is_committed && can_commit, Step::CommitAsSecond);
        offer(!world.nodes[SECOND].is_in_new_term, Step::Stand);
        offer(world.second_leads.is_none() && world.has_majority(), Step::Elect);
        offer(world.second_leads.is_some() && !world.is_settled, Step::Settle);
        offer(self.removal && world.may_remove(), Step::Remove);
        let waits = world.barrier.is_some() || world.is_acknowledged;
        for id in [FIRST, SECOND] {
            offer(world.leads(id) && world.nodes[id].has_applied && !waits, Step::Wait(id));
            for follower in 0..NODES {
                offer(world.follows(id, follower), Step::Follow { leader: id, follower });
            }
        }
        let has_waited = |(node, since)| self.has_waited(world, node, since);
        offer(world.barrier.is_some_and(has_waited), Step::Acknowledge);
    }

    /// The steps of one node as a member.
    fn offer_member(self, world: &World, id: usize, offer: &mut impl FnMut(bool, Step)) {
        let node = &world.nodes[id];
        let is_member = !world.is_removed(id);
        offer(!self.keeps(Rule::CountsSuspension), Step::TickSuspended(id));
        offer(self.restarts, Step::Restart(id));
        offer(world.is_committed && !node.has_applied && is_member, Step::Apply(id));
        let is_replicating = world.first_leads && world.nodes[FIRST].has_logged && id != FIRST;
        offer(is_replicating && is_member && !node.is_in_new_term && !node.has_logged, Step::Replicate(id));
        offer(id != SECOND && is_member && world.may_vote(id), Step::Vote(id));
        match node.question {
            None => {
                offer(is_member, Step::Ask(id));
                offer(is_member && !self.keeps(Rule::OnlyNotedRequestsGiveALease), Step::AskWithout(id));
            }
            Some(Question { stage: Stage::Sent, .. }) => {
                offer(true, Step::Lose(id));
                for at in [FIRST, SECOND] {
                    offer(self.may_be_asked(world, at), Step::Arrive { at, from: id });
                }
            }
            Some(Question { stage: Stage::Arrived { .. }, .. }) => offer(true, Step::Lose(id)),
            Some(Question { stage: Stage::Confirmed { names_it }, .. }) => {
                offer(true, Step::Lose(id));
                let is_there = node.has_applied || !names_it || !self.keeps(Rule::BeginsWhenApplied);
                offer(is_there, Step::Take(id));
            }
        }
    }

    /// The steps of a request that begins after the acknowledgement.
    fn offer_request(self, world: &World, id: usize, offer: &mut impl FnMut(bool, Step)) {
        let Node { has_applied, question, .. } = world.nodes[id];
        let begins = world.is_acknowledged && !has_applied && world.request == Request::None;
        let looks_first = self.keeps(Rule::LookedAtBeforeReading);
        let is_let_in = if looks_first { world.would_be_stale(id) } else { begins };
        offer(is_let_in && world.request == Request::None, Step::Read(id));
        offer(begins && question.is_none(), Step::Begin(id));
        let shares = !self.keeps(Rule::SharesOnlyUnsentQuestions);
        offer(begins && question.is_some() && shares, Step::Share(id));
    }
}

impl Model for Lease {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            nodes: [Node::default(); NODES],
            first_leads: true,
            second_leads: None,
            was_elected: false,
            is_settled: true,
            proposed: None,
            is_committed: false,
            noted: [[self.ticks; NODES]; 2],
            was_confirmed: [false; 2],
            barrier: None,
            is_acknowledged: false,
            removed: None,
            request: Request::None,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.request == Request::Stale {
            return;
        }
        let mut offer = |is_possible: bool, step: Step| {
            if is_possible {
                steps.push(step);
            }
        };
        offer(true, Step::Tick);
        self.offer_leading(world, &mut offer);
        for id in 0..NODES {
            self.offer_member(world, id, &mut offer);
            self.offer_request(world, id, &mut offer);
        }
        offer(matches!(world.request, Request::HasRead(id) if world.nodes[id].lease > 0), Step::Finish);
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            Step::Tick => world.tick(self.ticks, None),
            Step::TickSuspended(id) => world.tick(self.ticks, Some(id)),
            Step::Propose => {
                world.nodes[world.leader()?].has_logged = true;
                world.proposed = Some(if self.keeps(Rule::WaitsFromApplied) { self.ticks } else { 0 });
            }
            Step::Replicate(id) => world.nodes[id].has_logged = true,
            Step::Commit | Step::CommitAsSecond => world.is_committed = true,
            Step::Apply(id) => self.apply(&mut world, id),
            Step::Stand => world.nodes[SECOND].is_in_new_term = true,
            Step::Vote(id) => {
                world.nodes[id].is_in_new_term = true;
                if id == FIRST {
                    self.depose(&mut world);
                }
            }
            Step::Elect => Self::elect(&mut world),
            Step::Settle => {
                (world.is_settled, world.is_committed) =
                    (true, world.is_committed || world.nodes[SECOND].has_logged);
            }
            Step::Remove => world.removed = Some((world.leader()?, 0)),
            Step::Restart(id) => self.restart(&mut world, id),
            Step::Ask(id) | Step::AskWithout(id) => {
                let is_noted = step == Step::Ask(id);
                world.nodes[id].question = Some(Question { age: 0, is_noted, stage: Stage::Sent });
                if world.request == Request::WaitsForNext(id) {
                    world.request = Request::WaitsForAnswer(id);
                }
            }
            Step::Arrive { at, from } => {
                let stage = self.arrived(&world, at);
                let question = world.nodes[from].question.as_mut()?;
                question.stage = stage;
                if question.is_noted && self.keeps(Rule::NotedOnArrival) {
                    world.noted[at][from] = 0;
                }
            }
            Step::Follow { leader, follower } => self.follow(&mut world, leader, follower),
            Step::Lose(id) => {
                world.nodes[id].question = None;
                if world.request == Request::WaitsForAnswer(id) {
                    world.request = Request::WaitsForNext(id);
                }
            }
            Step::Take(id) => self.take(&mut world, id),
            Step::Wait(id) => {
                let proposed = world.proposed.unwrap_or_default();
                let since = if self.keeps(Rule::WaitsFromApplied) { 0 } else { proposed };
                world.barrier = Some((id, since));
            }
            Step::Acknowledge => (world.is_acknowledged, world.barrier) = (true, None),
            Step::Read(id) if !self.keeps(Rule::LookedAtBeforeReading) => {
                world.request = Request::HasRead(id);
            }
            Step::Read(_) | Step::Finish => world.request = Request::Stale,
            Step::Begin(id) => world.request = Request::WaitsForNext(id),
            Step::Share(id) => world.request = Request::WaitsForAnswer(id),
        }
        self.simplify(&mut world);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(NEVER_STALE, |_, world: &World| world.request != Request::Stale),
            Property::sometimes("a node has a lease and has not applied it", |_, world: &World| {
                world.nodes.iter().any(|node| world.is_committed && node.lease > 0 && !node.has_applied)
            }),
            Property::sometimes("it is acknowledged before a member has applied it", |_, world: &World| {
                world.is_acknowledged && !world.nodes[SECOND].has_told
            }),
            Property::sometimes("a member without a request costs no wait", |model: &Self, world: &World| {
                let is_at_once = |(node, since)| node == FIRST && since == 0;
                world.barrier.is_some_and(is_at_once) && !world.nodes[THIRD].has_told && {
                    world.nodes[SECOND].has_told && world.noted[FIRST][THIRD] == model.ticks
                }
            }),
            Property::sometimes("a new leader acknowledges", |_, world: &World| {
                world.is_acknowledged && world.second_leads.is_some() && !world.nodes[FIRST].has_told
            }),
            Property::sometimes("two nodes believe that they lead", |_, world: &World| {
                world.first_leads && world.second_leads.is_some()
            }),
        ];
        if self.removal {
            properties
                .push(Property::sometimes("a removed member still holds a lease", |_, world: &World| {
                    world.removed.is_some() && world.nodes[THIRD].lease > 0
                }));
        }
        if self.restarts {
            properties.push(Property::sometimes("a node has to apply it again", |_, world: &World| {
                world.nodes.iter().any(|node| node.has_told && !node.has_applied)
            }));
        }
        properties
    }
}

/// The promise.
pub const NEVER_STALE: &str = "nothing that begins behind the acknowledgement is answered from before it";
