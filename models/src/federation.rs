//! Leases between two fabrics ([the page on federation](../../docs/design/federation.md)): once the origin fabric has
//! acknowledged a revocation in strict mode, no node of the relying fabric serves a request that begins afterwards from a
//! state before it; in both modes, no node does so once the longest lease has passed since the commit.
//!
//! Two fabrics of two nodes, one leader change in each, one revocation, any number of calls between the fabrics and of
//! requests for the index inside the relying one, each of which may be late or lost, without end. Each fabric's own log,
//! confirmation by a quorum, lease and barrier are those of [`crate::lease`] and are taken for granted: only the leader of
//! the newest term answers for its fabric, and a node of the relying fabric serves only while its own fabric's lease lasts,
//! for which the barrier of that fabric waits. How a token is judged is in [`crate::judgement`].
//!
//! Time is counted in ticks, alike on all nodes. A suspended node does nothing between two steps, for any time.

use stateright::{Model, Property};

/// Nodes of each fabric. The first one leads at the beginning, the second may lead later.
const NODES: usize = 2;
const FIRST: usize = 0;
const SECOND: usize = 1;

/// The rules that keep the promise. Each can be left out to show its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The relying leader's record of a response has the time at which the request was sent.
    RecordIsOfTheRequest,
    /// It records a response only when the entries of the response are applied.
    RecordedWhenApplied,
    /// The cursor of the next request moves when the import is applied, not when it is received.
    CursorMovesWhenApplied,
    /// A node's lease on a source runs from the time at which it sent its own request for the index.
    LeaseIsOfTheRequest,
    /// That lease begins when the index that the relying leader named is applied.
    BeginsWhenApplied,
    /// The relying leader names an index that is not older than the record that it reports.
    IndexIsNotOlder,
    /// The relying leader names the length of the lease, and a node takes the shorter of that and its own.
    LeaderNamesTheLength,
    /// The lease is checked after a request has arrived, before anything is read for it.
    CheckedBeforeReading,
    /// The origin fabric proves that it is current after a call has arrived, and responds from a state that is.
    CurrentBeforeResponding,
    /// Every node of the origin fabric reports a call to its leader, whatever its own configuration states
    /// about the peer.
    EveryCallIsReported,
    /// The origin leader records a call when it arrives, not when it is answered.
    RecordedOnArrival,
    /// The acknowledgement of the origin fabric waits for the relying one.
    WaitsForThePeer,
    /// The relying fabric acknowledges after its own barrier.
    AcknowledgesAfterBarrier,
    /// The wait counts from the time at which the origin leader applied the entry, not from its proposal; or from the last
    /// call, if that is earlier.
    WaitsFromApplied,
    /// A leader acknowledges only an entry that it applied while it led, or before.
    AppliedAsLeader,
    /// Leases are counted by a clock that continues while a process or its machine is suspended.
    CountsSuspension,
    /// Until the longest lease has passed, only an acknowledgement of the peer ends the wait.
    LongLeasesRunOut,
    /// That time counts from the last call that does not honour the short lease, not from the first that does.
    CountsFromTheLastLongCall,
    /// A new origin leader counts it from the beginning of its leadership, because it does not know the calls under its
    /// predecessor. Without this rule it waits for the short leases only.
    NewLeaderWaitsForLongLeases,
}

/// Every rule.
pub const RULES: [Rule; 19] = [
    Rule::RecordIsOfTheRequest,
    Rule::RecordedWhenApplied,
    Rule::CursorMovesWhenApplied,
    Rule::LeaseIsOfTheRequest,
    Rule::BeginsWhenApplied,
    Rule::IndexIsNotOlder,
    Rule::LeaderNamesTheLength,
    Rule::CheckedBeforeReading,
    Rule::CurrentBeforeResponding,
    Rule::EveryCallIsReported,
    Rule::RecordedOnArrival,
    Rule::WaitsForThePeer,
    Rule::AcknowledgesAfterBarrier,
    Rule::WaitsFromApplied,
    Rule::AppliedAsLeader,
    Rule::CountsSuspension,
    Rule::LongLeasesRunOut,
    Rule::CountsFromTheLastLongCall,
    Rule::NewLeaderWaitsForLongLeases,
];

/// The leases between two fabrics, with all rules or without one.
#[derive(Clone, Copy, Debug)]
pub struct Federation {
    /// Ticks of the lease of strict mode.
    pub short: u8,
    /// Ticks of the longest lease. Larger ages are equivalent, so that time can advance without end.
    pub long: u8,
    /// The rule that is left out.
    pub without: Option<Rule>,
    /// Whether the nodes of the relying fabric honour the short lease only from their next start on. Otherwise they always
    /// have.
    pub activation: bool,
    /// Whether the origin fabric changes its leader.
    pub origin_elects: bool,
    /// Whether the relying fabric changes its leader.
    pub relying_elects: bool,
}

/// A node of the origin fabric. It uses the times only as a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Origin {
    has_applied: bool,
    /// Whether it led when it applied it, or leads since.
    may_acknowledge: bool,
    /// Time since it applied the revocation (or since the proposal, without that rule).
    waited: u8,
    /// Time since the last call that it recorded.
    recorded: u8,
    /// Time since the last call that did not honour the short lease.
    long_call: u8,
    /// Time since the first call that did.
    first_short_call: Option<u8>,
    /// Whether it has the acknowledgement of the relying fabric.
    is_enforced: bool,
}

/// A node of the relying fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Relying {
    has_applied: bool,
    /// Whether it holds the lease of its own fabric.
    is_fresh: bool,
    /// Remaining lease on the origin fabric, by its clock.
    lease: u8,
    /// Whether its configuration honours the short lease.
    honours: bool,
    index_request: Option<IndexRequest>,
}

/// A request of a relying node for the index of its leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct IndexRequest {
    /// Time since it was sent, by the clock of the node.
    age: u8,
    stage: IndexStage,
}

/// `covers_it`: the index covers the import of the revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum IndexStage {
    Sent,
    /// The leader has noted its index, and not yet read its record. Only without that rule.
    Noted {
        covers_it: bool,
    },
    /// `left`: remaining lease at that time.
    Answered {
        covers_it: bool,
        left: u8,
    },
}

/// A call of the relying leader to the origin fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    /// Time since it was sent, by the clock of the relying leader.
    age: u8,
    honours: bool,
    /// Whether it requests only entries after the revocation.
    is_beyond_it: bool,
    stage: CallStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CallStage {
    Sent,
    /// The origin fabric has proved that it is current. `needs_it`: the index of the proof covers the revocation.
    Proven {
        needs_it: bool,
    },
    /// `has_it`: the response holds the revocation.
    Answered {
        has_it: bool,
    },
}

/// State of the model. Times are ticks since an event, up to those of the longest lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "facts that are independent of each other")]
pub struct World {
    origin: [Origin; NODES],
    origin_leader: usize,
    /// Time since the proposal; counted only without [`Rule::WaitsFromApplied`].
    proposed: Option<u8>,
    is_committed: bool,
    committed_for: u8,
    is_acknowledged: bool,
    relying: [Relying; NODES],
    relying_leader: usize,
    /// Of the present leader; a former one answers no node and imports nothing.
    call: Option<Call>,
    /// Age of the newest record of that leader, if it has one.
    heard: Option<u8>,
    /// Whether its cursor is beyond the revocation. Only without that rule, before it is applied.
    is_cursor_beyond: bool,
    /// Whether the import is committed in the relying fabric.
    is_imported: bool,
    /// Whether the relying fabric acknowledges, in this call or a later one.
    is_stated: bool,
    request: Request,
}

/// A request that begins after the acknowledgement, at a node of the relying fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    None,
    /// It has read at this node, and will check the lease.
    HasRead(usize),
    /// It was served from a state before the revocation.
    Stale,
}

/// Possible steps. Those of the origin fabric begin with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Time advances.
    Tick,
    /// Time advances, but not for the clock of this relying node.
    TickSuspended(usize),
    /// The origin leader proposes the revocation; modelled only without [`Rule::WaitsFromApplied`].
    OriginProposes,
    /// The revocation is committed.
    OriginCommits,
    /// A node of the origin fabric applies it.
    OriginApplies(usize),
    /// The second node leads the origin fabric.
    OriginElects,
    /// A node of the origin fabric acknowledges the revocation.
    OriginAcknowledges(usize),
    /// The relying leader calls.
    Call,
    /// The call arrives, and the origin fabric proves that it is current.
    OriginProves,
    /// The same at a node that does not report the call to its leader.
    OriginProvesUnreported,
    /// A node of the origin fabric answers the call.
    OriginAnswers(usize),
    /// The call or its response is lost.
    LoseCall,
    /// The relying leader receives the response and moves its cursor; the import is not committed.
    MoveCursor,
    /// The import is committed.
    Import,
    /// The relying leader records the response.
    Record,
    /// A relying node applies the import.
    Apply(usize),
    /// The second node leads the relying fabric.
    Elect,
    /// A relying node requests the index from its leader.
    RequestIndex(usize),
    /// The leader notes its index, and will read its record later.
    NoteIndex(usize),
    /// The leader answers with its index and its record.
    AnswerIndex(usize),
    /// That request or its response is lost.
    LoseIndex(usize),
    /// The node takes both leases.
    TakeLease(usize),
    /// The lease of its own fabric ends.
    EndFreshness(usize),
    /// The relying fabric acknowledges the revocation, or repeats that, and the origin leader learns of it.
    Enforce,
    /// A relying node starts again with the configuration of strict mode.
    Configure(usize),
    /// A request that began after the acknowledgement checks the leases, and reads.
    Read(usize),
    /// One that has read finds the leases afterwards.
    Finish,
}

impl Federation {
    fn keeps(self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn length(self, honours: bool) -> u8 {
        if honours { self.short } else { self.long }
    }

    /// Whether this node of the origin fabric knows that no lease from before the revocation is left.
    fn has_lapsed(self, origin: Origin) -> bool {
        let short = origin.waited >= self.short || origin.recorded >= self.short;
        let long = if !self.keeps(Rule::LongLeasesRunOut) {
            true
        } else if self.keeps(Rule::CountsFromTheLastLongCall) {
            origin.long_call >= self.long
        } else {
            origin.first_short_call.is_some_and(|since| since >= self.long)
        };
        short && long
    }

    fn may_acknowledge(self, world: &World, id: usize) -> bool {
        let origin = world.origin[id];
        let is_entitled = origin.may_acknowledge || !self.keeps(Rule::AppliedAsLeader);
        let has_waited = origin.is_enforced || self.has_lapsed(origin) || !self.keeps(Rule::WaitsForThePeer);
        !world.is_acknowledged && origin.has_applied && is_entitled && has_waited
    }

    /// The origin leader records the call.
    fn report(world: &mut World, honours: bool) {
        let leader = &mut world.origin[world.origin_leader];
        leader.recorded = 0;
        if honours {
            leader.first_short_call = leader.first_short_call.or(Some(0));
        } else {
            leader.long_call = 0;
        }
    }

    fn prove(self, world: &mut World, is_reported: bool) {
        let Some(mut call) = world.call else { return };
        let needs_it = world.is_committed && self.keeps(Rule::CurrentBeforeResponding);
        call.stage = CallStage::Proven { needs_it };
        world.call = Some(call);
        if is_reported && self.keeps(Rule::RecordedOnArrival) {
            Self::report(world, call.honours);
        }
    }

    fn answer(self, world: &mut World, id: usize) {
        let Some(mut call) = world.call else { return };
        call.stage = CallStage::Answered { has_it: world.origin[id].has_applied && !call.is_beyond_it };
        world.call = Some(call);
        if !self.keeps(Rule::RecordedOnArrival) {
            Self::report(world, call.honours);
        }
    }

    fn record(self, world: &mut World) {
        let Some(call) = world.call.take() else { return };
        let age = if self.keeps(Rule::RecordIsOfTheRequest) { call.age } else { 0 };
        world.heard = Some(world.heard.map_or(age, |heard| heard.min(age)));
    }

    fn answer_index(self, world: &mut World, id: usize) {
        let leader = world.relying[world.relying_leader];
        let Some(index_request) = world.relying[id].index_request.as_mut() else { return };
        let covers_it = match index_request.stage {
            IndexStage::Noted { covers_it } => covers_it,
            _ => world.is_imported,
        };
        let own = self.length(world.relying[id].honours);
        let named = self.length(leader.honours);
        let length = if self.keeps(Rule::LeaderNamesTheLength) { own.min(named) } else { own };
        let left = world.heard.map_or(0, |heard| length.saturating_sub(heard));
        index_request.stage = IndexStage::Answered { covers_it, left };
    }

    fn take(self, world: &mut World, id: usize) {
        let node = &mut world.relying[id];
        let Some(index_request) = node.index_request.take() else { return };
        let IndexStage::Answered { left, .. } = index_request.stage else { return };
        let age = if self.keeps(Rule::LeaseIsOfTheRequest) { index_request.age } else { 0 };
        node.is_fresh = true;
        node.lease = node.lease.max(left.saturating_sub(age));
    }

    /// A process starts again: it holds no lease, and a leader has no record.
    fn configure(world: &mut World, id: usize) {
        let node = &mut world.relying[id];
        *node = Relying { has_applied: node.has_applied, honours: true, ..RELYING };
        if id == world.relying_leader {
            (world.call, world.heard, world.is_cursor_beyond) = (None, None, false);
        }
    }

    fn elect_origin(self, world: &mut World) {
        let long = self.long;
        world.origin_leader = SECOND;
        let leader = &mut world.origin[SECOND];
        let waits_for_all = self.keeps(Rule::NewLeaderWaitsForLongLeases);
        (leader.recorded, leader.long_call) = if waits_for_all { (long, 0) } else { (0, long) };
        leader.may_acknowledge = leader.has_applied;
        if !world.is_committed {
            world.proposed = None;
        }
    }

    /// Drops state that no longer matters for the promises, so that fewer states are distinguished.
    fn simplify(self, world: &mut World) {
        let long = self.long;
        for node in &mut world.relying {
            if node.has_applied && self.keeps(Rule::CheckedBeforeReading) {
                (node.is_fresh, node.lease, node.index_request) = (false, 0, None);
            }
            if self.keeps(Rule::BeginsWhenApplied) && self.keeps(Rule::CheckedBeforeReading) {
                // The node has applied it before it takes this lease.
                node.index_request = node.index_request.filter(|index_request| match index_request.stage {
                    IndexStage::Answered { covers_it, .. } => !covers_it,
                    _ => true,
                });
            }
        }
        if world.is_acknowledged {
            for origin in &mut world.origin {
                *origin = Origin { has_applied: origin.has_applied, ..self.first_origin() };
            }
            (world.is_stated, world.proposed) = (false, None);
        }
        for origin in &mut world.origin {
            if self.keeps(Rule::CountsFromTheLastLongCall) || !self.activation {
                origin.first_short_call = self.first_origin().first_short_call;
            }
        }
        let former = 1 - world.origin_leader;
        if !world.origin[former].may_acknowledge && self.keeps(Rule::AppliedAsLeader) {
            let origin = &mut world.origin[former];
            (origin.recorded, origin.waited) = (long, if origin.has_applied { origin.waited } else { 0 });
            origin.is_enforced = false;
        }
        let is_useless = |call: &Call| {
            let grants_nothing = call.age >= long && self.keeps(Rule::RecordIsOfTheRequest);
            grants_nothing && call.stage == CallStage::Answered { has_it: false }
        };
        world.call = world.call.filter(|call| !is_useless(call));
        world.heard = world.heard.filter(|heard| *heard < long);
    }

    fn first_origin(self) -> Origin {
        Origin {
            has_applied: false,
            may_acknowledge: false,
            waited: 0,
            recorded: self.long,
            long_call: self.long,
            first_short_call: None,
            is_enforced: false,
        }
    }
}

/// A node of the relying fabric at the beginning.
const RELYING: Relying =
    Relying { has_applied: false, is_fresh: false, lease: 0, honours: true, index_request: None };

impl World {
    fn is_live(&self, id: usize) -> bool {
        self.relying[id].is_fresh && self.relying[id].lease > 0
    }

    /// Whether the barrier of the relying fabric has ended.
    fn has_barrier_ended(&self) -> bool {
        let is_harmless =
            |node: &Relying| node.has_applied || (!node.is_fresh && node.index_request.is_none());
        self.relying.iter().all(is_harmless)
    }

    fn tick(&mut self, long: u8, suspended: Option<usize>) {
        let older = |age: &mut u8| *age = (*age + 1).min(long);
        for origin in &mut self.origin {
            if origin.has_applied {
                older(&mut origin.waited);
            }
            older(&mut origin.recorded);
            older(&mut origin.long_call);
            origin.first_short_call.iter_mut().for_each(older);
        }
        self.proposed.iter_mut().for_each(older);
        if self.is_committed {
            older(&mut self.committed_for);
        }
        if suspended != Some(self.relying_leader) {
            self.call.iter_mut().for_each(|call| older(&mut call.age));
            self.heard.iter_mut().for_each(older);
        }
        for (id, node) in self.relying.iter_mut().enumerate() {
            if suspended != Some(id) {
                node.lease = node.lease.saturating_sub(1);
                node.index_request.iter_mut().for_each(|index_request| older(&mut index_request.age));
            }
        }
    }
}

impl Federation {
    /// The steps of the origin fabric.
    fn offer_origin(self, world: &World, offer: &mut impl FnMut(bool, Step)) {
        let counts_proposal = !self.keeps(Rule::WaitsFromApplied);
        offer(counts_proposal && world.proposed.is_none() && !world.is_committed, Step::OriginProposes);
        let is_proposed = !counts_proposal || world.proposed.is_some();
        offer(is_proposed && !world.is_committed, Step::OriginCommits);
        offer(self.origin_elects && world.origin_leader == FIRST, Step::OriginElects);
        for id in 0..NODES {
            offer(world.is_committed && !world.origin[id].has_applied, Step::OriginApplies(id));
            offer(self.may_acknowledge(world, id), Step::OriginAcknowledges(id));
        }
        match world.call.map(|call| call.stage) {
            Some(CallStage::Sent) => {
                offer(true, Step::OriginProves);
                offer(!self.keeps(Rule::EveryCallIsReported), Step::OriginProvesUnreported);
            }
            Some(CallStage::Proven { needs_it }) => {
                for id in 0..NODES {
                    offer(!needs_it || world.origin[id].has_applied, Step::OriginAnswers(id));
                }
            }
            _ => {}
        }
    }

    /// The steps of the relying leader.
    fn offer_leader(self, world: &World, offer: &mut impl FnMut(bool, Step)) {
        let leader = &world.relying[world.relying_leader];
        offer(world.call.is_none(), Step::Call);
        offer(world.call.is_some(), Step::LoseCall);
        if let Some(CallStage::Answered { has_it }) = world.call.map(|call| call.stage) {
            offer(has_it && !world.is_imported, Step::Import);
            let moves_early = !self.keeps(Rule::CursorMovesWhenApplied) && !world.is_cursor_beyond;
            offer(has_it && !leader.has_applied && moves_early, Step::MoveCursor);
            let is_applied = !has_it || leader.has_applied;
            offer(is_applied || !self.keeps(Rule::RecordedWhenApplied), Step::Record);
        }
        offer(self.relying_elects && world.relying_leader == FIRST, Step::Elect);
        let has_ended = world.has_barrier_ended() || !self.keeps(Rule::AcknowledgesAfterBarrier);
        let is_known = world.origin[world.origin_leader].is_enforced;
        let is_awaited = world.is_committed && !world.is_acknowledged && !is_known;
        // A call of a former leader may arrive late.
        let is_stated = world.is_stated || (leader.has_applied && has_ended);
        offer(is_awaited && is_stated, Step::Enforce);
    }

    /// The steps of one relying node.
    fn offer_relying(self, world: &World, id: usize, offer: &mut impl FnMut(bool, Step)) {
        let node = &world.relying[id];
        offer(!self.keeps(Rule::CountsSuspension), Step::TickSuspended(id));
        offer(self.activation && !node.honours, Step::Configure(id));
        offer(world.is_imported && !node.has_applied, Step::Apply(id));
        offer(node.is_fresh, Step::EndFreshness(id));
        let may_ask = !node.has_applied || !self.keeps(Rule::CheckedBeforeReading);
        offer(may_ask && node.index_request.is_none(), Step::RequestIndex(id));
        offer(node.index_request.is_some(), Step::LoseIndex(id));
        match node.index_request.map(|index_request| index_request.stage) {
            Some(IndexStage::Sent) if self.keeps(Rule::IndexIsNotOlder) => {
                offer(true, Step::AnswerIndex(id));
            }
            Some(IndexStage::Sent) => offer(true, Step::NoteIndex(id)),
            Some(IndexStage::Noted { .. }) => offer(true, Step::AnswerIndex(id)),
            Some(IndexStage::Answered { covers_it, .. }) => {
                let is_there = !covers_it || node.has_applied || !self.keeps(Rule::BeginsWhenApplied);
                offer(is_there, Step::TakeLease(id));
            }
            None => {}
        }
        let begins = world.is_acknowledged && !node.has_applied && world.request == Request::None;
        offer(begins && (world.is_live(id) || !self.keeps(Rule::CheckedBeforeReading)), Step::Read(id));
    }
}

impl Model for Federation {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let mut origin = [self.first_origin(); NODES];
        if self.activation {
            // A call under the old configuration may have arrived just before.
            origin[FIRST].long_call = 0;
        }
        vec![World {
            origin,
            origin_leader: FIRST,
            proposed: None,
            is_committed: false,
            committed_for: 0,
            is_acknowledged: false,
            relying: [Relying { honours: !self.activation, ..RELYING }; NODES],
            relying_leader: FIRST,
            call: None,
            heard: None,
            is_cursor_beyond: false,
            is_imported: false,
            is_stated: false,
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
        self.offer_origin(world, &mut offer);
        self.offer_leader(world, &mut offer);
        for id in 0..NODES {
            self.offer_relying(world, id, &mut offer);
        }
        offer(matches!(world.request, Request::HasRead(id) if world.is_live(id)), Step::Finish);
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            Step::Tick => world.tick(self.long, None),
            Step::TickSuspended(id) => world.tick(self.long, Some(id)),
            Step::OriginProposes => world.proposed = Some(0),
            Step::OriginCommits => world.is_committed = true,
            Step::OriginApplies(id) => {
                let waited = world.proposed.unwrap_or(0);
                let may_acknowledge = id == world.origin_leader;
                world.origin[id] = Origin { has_applied: true, may_acknowledge, waited, ..world.origin[id] };
            }
            Step::OriginElects => self.elect_origin(&mut world),
            Step::OriginAcknowledges(_) => world.is_acknowledged = true,
            Step::Call => {
                let leader = &world.relying[world.relying_leader];
                world.call = Some(Call {
                    age: 0,
                    honours: leader.honours,
                    is_beyond_it: world.is_cursor_beyond,
                    stage: CallStage::Sent,
                });
            }
            Step::OriginProves => self.prove(&mut world, true),
            Step::OriginProvesUnreported => self.prove(&mut world, false),
            Step::OriginAnswers(id) => self.answer(&mut world, id),
            Step::LoseCall => world.call = None,
            Step::MoveCursor => (world.call, world.is_cursor_beyond) = (None, true),
            Step::Import => world.is_imported = true,
            Step::Record => self.record(&mut world),
            Step::Apply(id) => world.relying[id].has_applied = true,
            Step::Elect => {
                world.relying_leader = SECOND;
                (world.call, world.heard, world.is_cursor_beyond) = (None, None, false);
            }
            Step::RequestIndex(id) => {
                world.relying[id].index_request = Some(IndexRequest { age: 0, stage: IndexStage::Sent });
            }
            Step::NoteIndex(id) => {
                let covers_it = world.is_imported;
                world.relying[id].index_request.as_mut()?.stage = IndexStage::Noted { covers_it };
            }
            Step::AnswerIndex(id) => self.answer_index(&mut world, id),
            Step::LoseIndex(id) => world.relying[id].index_request = None,
            Step::TakeLease(id) => self.take(&mut world, id),
            Step::EndFreshness(id) => world.relying[id].is_fresh = false,
            Step::Enforce => {
                world.is_stated = true;
                world.origin[world.origin_leader].is_enforced = true;
            }
            Step::Configure(id) => Self::configure(&mut world, id),
            Step::Read(id) if !self.keeps(Rule::CheckedBeforeReading) => {
                world.request = Request::HasRead(id);
            }
            Step::Read(_) | Step::Finish => world.request = Request::Stale,
        }
        self.simplify(&mut world);
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(NEVER_STALE, |_, world: &World| world.request != Request::Stale),
            Property::always(NEVER_LATE, |model: &Self, world: &World| {
                let longest = if model.activation { model.long } else { model.short };
                let is_late = |id: &usize| world.is_live(*id) && !world.relying[*id].has_applied;
                world.committed_for < longest || (0..NODES).find(is_late).is_none()
            }),
            Property::sometimes("a node has a lease and has not applied it", |_, world: &World| {
                world.is_committed && (0..NODES).any(|id| world.is_live(id))
            }),
            Property::sometimes("acknowledged although nothing is imported", |_, world: &World| {
                world.is_acknowledged && !world.is_imported
            }),
            Property::sometimes(
                "the peer acknowledges before its lease ends",
                |model: &Self, world: &World| {
                    let leader = world.origin[world.origin_leader];
                    leader.is_enforced && !world.is_acknowledged && !model.has_lapsed(leader)
                },
            ),
            Property::sometimes("a call is answered without it after the commit", |_, world: &World| {
                let is_answered = |call: Call| call.stage == CallStage::Answered { has_it: false };
                world.is_committed && world.call.is_some_and(is_answered) && world.heard.is_none()
            }),
        ];
        if self.origin_elects {
            properties.push(Property::sometimes("a new origin leader acknowledges", |_, world: &World| {
                world.is_acknowledged && world.origin_leader == SECOND && !world.origin[FIRST].has_applied
            }));
            properties
                .push(Property::sometimes("a new origin leader learns it again", |_, world: &World| {
                    world.origin.iter().all(|origin| origin.is_enforced)
                }));
        }
        if self.relying_elects {
            properties.push(Property::sometimes("a new relying leader hears", |_, world: &World| {
                world.relying_leader == SECOND && world.heard.is_some()
            }));
        }
        if self.activation {
            properties.push(Property::sometimes(
                "only one node honours the short lease",
                |_, world: &World| {
                    world.is_acknowledged && world.relying[FIRST].honours != world.relying[SECOND].honours
                },
            ));
        }
        properties
    }
}

/// The promise of strict mode.
pub const NEVER_STALE: &str = "no request after the acknowledgement is served from a state before it";
/// The promise of both modes.
pub const NEVER_LATE: &str =
    "no node serves from a state before the revocation when the longest lease has passed";
