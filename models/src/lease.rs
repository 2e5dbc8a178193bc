//! The freshness lease and the barrier (`src/cluster/reads/freshness.rs` of the product): once a revocation is acknowledged, no
//! request that begins afterwards is served from a state before it, on any node.
//!
//! Three nodes, one revocation, one removal of a member, elections of the second node, and any number of restarts, in
//! any order, with any delay, loss or suspension between any two steps, without end. Votes, entries and the leader's
//! confirmation by a quorum are modelled. Replication to a majority is Raft's own proof; here a leader replicates the entry
//! to one follower at a time. A disk that loses synced state is in [`crate::disks`].
//!
//! Time is counted in ticks, alike on all nodes; the margin for drifting clocks is not modelled. A request reads as soon as
//! it has the lease: a later read would see more, because applied state only grows.

use stateright::{Model, Property};

/// Nodes. The first one leads at the beginning, the second may lead later, the third may be removed.
const NODES: usize = 3;
const FIRST: usize = 0;
const SECOND: usize = 1;
const THIRD: usize = 2;

/// The rules that keep the promise. Each is one line of the argument, and can be left out to show its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A lease runs from the time at which the member sent its request, not from the response.
    RunsFromRequest,
    /// A lease begins when the leader's index is applied.
    BeginsWhenApplied,
    /// A leader responds only after a quorum has confirmed its leadership.
    ConfirmedByQuorum,
    /// Only a follower's response to a heartbeat that was sent after the request arrived confirms the leader.
    ConfirmedAfterArrival,
    /// A new leader responds only after it has committed an entry of its own term: then it knows all committed entries.
    CommittedInOwnTerm,
    /// The lease is checked after a request has arrived, before anything is read for it.
    CheckedBeforeReading,
    /// An acknowledgement waits for members that have not applied the entry until their leases have run out.
    WaitsForMembers,
    /// That wait counts from the time at which the leader applied the entry, not from its proposal; or from the member's
    /// last lease request, if that is earlier.
    WaitsFromApplied,
    /// The leader records a lease request when it arrives, not when it responds.
    RecordedOnArrival,
    /// Only a recorded request grants a lease. A request for the index alone grants none.
    OnlyRecordedRequestsGrantALease,
    /// A removed member is waited for as long as a lease lasts.
    WaitsForRemoved,
    /// A new leader waits for as long as a lease lasts: it knows neither the leases of its predecessor nor the members that
    /// were removed under it.
    NewLeaderWaits,
    /// A leader that learns of its successor stops waiting: it also learns of removed members, but not since when.
    GivesUpWhenDeposed,
    /// A leader acknowledges only an entry that it applied while it led. A deposed one may apply its successor's entry
    /// before it learns of it, and does not know the leases of its successor.
    AppliedAsLeader,
    /// Leases are counted by a clock that continues while a process or its machine is suspended.
    CountsSuspension,
    /// A lease ends with its process: the next process may have to apply entries again.
    EndsWithTheProcess,
    /// A vote is durable before it is sent.
    VotesSurviveRestarts,
    /// An entry is durable before it is acknowledged to the leader.
    EntriesSurviveRestarts,
    /// A read without a lease (`freshness = "read-index"`) shares only a request that was unsent when the read arrived.
    SharesOnlyUnsentRequests,
}

/// Every rule.
pub const RULES: [Rule; 19] = [
    Rule::RunsFromRequest,
    Rule::BeginsWhenApplied,
    Rule::ConfirmedByQuorum,
    Rule::ConfirmedAfterArrival,
    Rule::CommittedInOwnTerm,
    Rule::CheckedBeforeReading,
    Rule::WaitsForMembers,
    Rule::WaitsFromApplied,
    Rule::RecordedOnArrival,
    Rule::OnlyRecordedRequestsGrantALease,
    Rule::WaitsForRemoved,
    Rule::NewLeaderWaits,
    Rule::GivesUpWhenDeposed,
    Rule::AppliedAsLeader,
    Rule::CountsSuspension,
    Rule::EndsWithTheProcess,
    Rule::VotesSurviveRestarts,
    Rule::EntriesSurviveRestarts,
    Rule::SharesOnlyUnsentRequests,
];

/// The lease and the barrier, with all rules or without one.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// Ticks of a lease. Larger ages are equivalent, so that time can advance without end.
    pub ticks: u8,
    /// The rule that is left out.
    pub without: Option<Rule>,
    /// Whether processes are killed and start again.
    pub restarts: bool,
    /// Whether a member is removed.
    pub removal: bool,
}

/// A member's request for the index. A member has at most one, and may abandon it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct IndexRequest {
    /// Time since it was sent, by the clock of the member.
    age: u8,
    /// Whether it is a lease request.
    is_recorded: bool,
    stage: Stage,
}

impl IndexRequest {
    fn covers_it(&self) -> bool {
        match self.stage {
            Stage::Sent => false,
            Stage::Arrived { covers_it, .. } | Stage::Confirmed { covers_it } => covers_it,
        }
    }
}

/// Stage of a request for the index. `covers_it`: the index in the response covers the revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Sent,
    Arrived { at: usize, covers_it: bool },
    Confirmed { covers_it: bool },
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
    /// Whether it has ever reported that it applied it. It may have to apply it again after a restart.
    has_reported: bool,
    index_request: Option<IndexRequest>,
    /// Remaining lease, by its clock.
    lease: u8,
}

/// State of the model. Times are ticks since an event, up to those of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "facts that are independent of each other")]
pub struct World {
    nodes: [Node; NODES],
    /// Whether the first node believes that it leads.
    first_leads: bool,
    /// Time since the second node was elected, while it leads.
    second_leads: Option<u8>,
    /// Whether the second node was ever elected.
    was_elected: bool,
    /// Whether the newest leader has committed an entry of its own term.
    is_settled: bool,
    /// Time since the revocation is in the leader's log.
    proposed: Option<u8>,
    is_committed: bool,
    /// For the first two nodes: the age of the last lease request of each member.
    recorded: [[u8; NODES]; 2],
    /// Whether a follower has ever confirmed the leader, for each of the first two nodes.
    was_confirmed: [bool; 2],
    /// The node that waits to acknowledge, and the time that it has waited.
    barrier: Option<(usize, u8)>,
    is_acknowledged: bool,
    /// The node that removed the third one, and the time since; no other node knows of it.
    removed: Option<(usize, u8)>,
    request: Request,
}

/// A request that begins after the acknowledgement, at a node that has not applied the revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    /// No request.
    None,
    /// It has read at this node, and will check the lease.
    HasRead(usize),
    /// It waits for the next request for the index, without a lease.
    WaitsForNext(usize),
    /// It waits for the response to the one in flight.
    WaitsForAnswer(usize),
    /// It was served from a state before the revocation.
    Stale,
}

/// Possible steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Time advances.
    Tick,
    /// Time advances, but not for the clock of this node.
    TickSuspended(usize),
    /// The leader appends the revocation to its log.
    Propose,
    /// A follower appends it to its log.
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
    /// A node requests a lease.
    RequestLease(usize),
    /// A node requests the index without a lease.
    RequestIndex(usize),
    /// The request arrives at a node that leads, or believes so.
    Arrive {
        /// The node that leads.
        at: usize,
        /// The requesting member.
        from: usize,
    },
    /// A follower responds to a heartbeat of a node that leads, or believes so.
    Follow {
        /// The node that leads.
        leader: usize,
        follower: usize,
    },
    /// A request or its response is lost, or abandoned.
    Lose(usize),
    /// A node takes its granted lease.
    TakeLease(usize),
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
    /// It shares the request for the index in flight.
    Share(usize),
}

impl Lease {
    fn keeps(self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// Whether `node` may acknowledge after this wait: the rule of `Barrier::remaining` in the product.
    fn has_waited(self, world: &World, node: usize, waited: u8) -> bool {
        let has_run_out = |since: u8| since >= self.ticks;
        // The newest leader knows of every removal; its predecessor knows of its own.
        let is_deposed = node == FIRST && !world.first_leads;
        let knows_of = |by: usize| by == node || is_deposed || world.leads(SECOND);
        let is_member = |id: usize| id != THIRD || !world.removed.is_some_and(|(by, _)| knows_of(by));
        let is_waited_for = |id: &usize| {
            *id != node
                && is_member(*id)
                && !world.nodes[*id].has_reported
                && !has_run_out(waited)
                && !has_run_out(world.recorded[node][*id])
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

    fn may_respond(self, world: &World, node: usize) -> bool {
        world.leads(node) && (node == FIRST || world.is_settled || !self.keeps(Rule::CommittedInOwnTerm))
    }

    /// The stage of a request that has arrived.
    fn arrived(self, world: &World, at: usize) -> Stage {
        let covers_it = world.index_covers_it(at);
        let is_confirmed = !self.keeps(Rule::ConfirmedByQuorum)
            || (!self.keeps(Rule::ConfirmedAfterArrival) && world.was_confirmed[at]);
        if is_confirmed { Stage::Confirmed { covers_it } } else { Stage::Arrived { at, covers_it } }
    }

    /// Drops state that no longer matters for the promise, so that fewer states are distinguished.
    fn simplify(self, world: &mut World) {
        // With these rules, neither the lease of a node that has applied the revocation nor a response that covers it can
        // admit a stale request.
        let by = [Rule::EndsWithTheProcess, Rule::CheckedBeforeReading, Rule::BeginsWhenApplied];
        if by.into_iter().all(|rule| self.keeps(rule)) {
            for node in &mut world.nodes {
                if node.has_applied {
                    (node.lease, node.index_request) = (0, None);
                }
                node.index_request = node.index_request.filter(|index_request| !index_request.covers_it());
            }
        }
        for leader in [FIRST, SECOND] {
            for (id, node) in world.nodes.iter().enumerate() {
                let is_used = world.leads(leader) || world.barrier.is_some_and(|(by, _)| by == leader);
                if !is_used || node.has_reported || world.is_acknowledged || id == leader {
                    world.recorded[leader][id] = self.ticks;
                }
            }
        }
        if world.is_acknowledged {
            world.barrier = None;
            world.second_leads = world.second_leads.map(|_| self.ticks);
            world.removed = world.removed.map(|(by, _)| (by, self.ticks));
        }
        if self.keeps(Rule::ConfirmedAfterArrival) {
            world.was_confirmed = [false; 2];
        }
    }

    fn restart(self, world: &mut World, id: usize) {
        let node = &mut world.nodes[id];
        (node.has_applied, node.index_request) = (false, None);
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
            let Some(index_request) = world.nodes[id].index_request.as_mut() else { continue };
            let Stage::Arrived { at, covers_it } = index_request.stage else { continue };
            if at == leader {
                index_request.stage = Stage::Confirmed { covers_it };
                if index_request.is_recorded && !self.keeps(Rule::RecordedOnArrival) {
                    world.recorded[leader][id] = 0;
                }
            }
        }
    }

    fn apply(self, world: &mut World, id: usize) {
        let is_notified_by_first = world.first_leads && world.is_on_majority();
        (world.nodes[id].has_applied, world.nodes[id].has_reported) = (true, true);
        if world.was_elected && !is_notified_by_first {
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
        let Some(index_request) = world.nodes[id].index_request.take() else { return };
        if world.request == Request::WaitsForAnswer(id) {
            let is_stale = !world.nodes[id].has_applied;
            world.request = if is_stale { Request::Stale } else { Request::None };
        }
        if index_request.is_recorded || !self.keeps(Rule::OnlyRecordedRequestsGrantALease) {
            let age = if self.keeps(Rule::RunsFromRequest) { index_request.age } else { 0 };
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

    /// Whether the index of this node covers the revocation.
    fn index_covers_it(&self, node: usize) -> bool {
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

    /// Whether the leader can commit a removal, by both of the remaining members.
    fn may_remove(&self) -> bool {
        let are_in_term = match self.leader() {
            Some(FIRST) => !self.nodes[SECOND].is_in_new_term,
            Some(_) => self.nodes[FIRST].is_in_new_term && self.is_settled,
            None => false,
        };
        self.removed.is_none() && are_in_term
    }

    /// Whether this follower responds to heartbeats of that leader, which counts it as a voter.
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
                node.index_request.iter_mut().for_each(|index_request| older(&mut index_request.age));
            }
        }
        self.second_leads.iter_mut().for_each(older);
        self.proposed.iter_mut().for_each(older);
        self.recorded.iter_mut().flatten().for_each(older);
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
        match node.index_request {
            None => {
                offer(is_member, Step::RequestLease(id));
                offer(
                    is_member && !self.keeps(Rule::OnlyRecordedRequestsGrantALease),
                    Step::RequestIndex(id),
                );
            }
            Some(IndexRequest { stage: Stage::Sent, .. }) => {
                offer(true, Step::Lose(id));
                for at in [FIRST, SECOND] {
                    offer(self.may_respond(world, at), Step::Arrive { at, from: id });
                }
            }
            Some(IndexRequest { stage: Stage::Arrived { .. }, .. }) => offer(true, Step::Lose(id)),
            Some(IndexRequest { stage: Stage::Confirmed { covers_it }, .. }) => {
                offer(true, Step::Lose(id));
                let is_there = node.has_applied || !covers_it || !self.keeps(Rule::BeginsWhenApplied);
                offer(is_there, Step::TakeLease(id));
            }
        }
    }

    /// The steps of a request that begins after the acknowledgement.
    fn offer_request(self, world: &World, id: usize, offer: &mut impl FnMut(bool, Step)) {
        let Node { has_applied, index_request, .. } = world.nodes[id];
        let begins = world.is_acknowledged && !has_applied && world.request == Request::None;
        let checks_first = self.keeps(Rule::CheckedBeforeReading);
        let is_admitted = if checks_first { world.would_be_stale(id) } else { begins };
        offer(is_admitted && world.request == Request::None, Step::Read(id));
        offer(begins && index_request.is_none(), Step::Begin(id));
        let shares = !self.keeps(Rule::SharesOnlyUnsentRequests);
        offer(begins && index_request.is_some() && shares, Step::Share(id));
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
            recorded: [[self.ticks; NODES]; 2],
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
            Step::RequestLease(id) | Step::RequestIndex(id) => {
                let is_recorded = step == Step::RequestLease(id);
                world.nodes[id].index_request =
                    Some(IndexRequest { age: 0, is_recorded, stage: Stage::Sent });
                if world.request == Request::WaitsForNext(id) {
                    world.request = Request::WaitsForAnswer(id);
                }
            }
            Step::Arrive { at, from } => {
                let stage = self.arrived(&world, at);
                let index_request = world.nodes[from].index_request.as_mut()?;
                index_request.stage = stage;
                if index_request.is_recorded && self.keeps(Rule::RecordedOnArrival) {
                    world.recorded[at][from] = 0;
                }
            }
            Step::Follow { leader, follower } => self.follow(&mut world, leader, follower),
            Step::Lose(id) => {
                world.nodes[id].index_request = None;
                if world.request == Request::WaitsForAnswer(id) {
                    world.request = Request::WaitsForNext(id);
                }
            }
            Step::TakeLease(id) => self.take(&mut world, id),
            Step::Wait(id) => {
                let proposed = world.proposed.unwrap_or_default();
                let since = if self.keeps(Rule::WaitsFromApplied) { 0 } else { proposed };
                world.barrier = Some((id, since));
            }
            Step::Acknowledge => (world.is_acknowledged, world.barrier) = (true, None),
            Step::Read(id) if !self.keeps(Rule::CheckedBeforeReading) => {
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
            Property::sometimes(
                "the revocation is acknowledged before a member has applied it",
                |_, world: &World| world.is_acknowledged && !world.nodes[SECOND].has_reported,
            ),
            Property::sometimes(
                "a member without a lease request causes no wait",
                |model: &Self, world: &World| {
                    let is_at_once = |(node, since)| node == FIRST && since == 0;
                    world.barrier.is_some_and(is_at_once) && !world.nodes[THIRD].has_reported && {
                        world.nodes[SECOND].has_reported && world.recorded[FIRST][THIRD] == model.ticks
                    }
                },
            ),
            Property::sometimes("a new leader acknowledges", |_, world: &World| {
                world.is_acknowledged && world.second_leads.is_some() && !world.nodes[FIRST].has_reported
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
                world.nodes.iter().any(|node| node.has_reported && !node.has_applied)
            }));
        }
        properties
    }
}

/// The promise.
pub const NEVER_STALE: &str = "no request after the acknowledgement is served from a state before it";
