//! Changes of the membership: a member is removed, replaced by a node with another id, or joins; the leader may remove
//! itself. Once a revocation is acknowledged, no member, learner or removed member answers from a state before it; and
//! the members that remain can elect a leader.
//!
//! Up to four nodes, one revocation, one or two changes that any leader may begin, and elections of any node. Every
//! step may be delayed for ever, which covers lost messages, partitions, crashes and removed members that return. Raft
//! is modelled with its logs: a leader sends its whole log at once, and a message and its response are one step.
//!
//! A tick is the length of a lease, so that a lease, a request for one and the wait of a barrier end with it. Leases
//! themselves are in [`crate::lease`]. Here one node, the reader, takes them: other readers would only lengthen the
//! waits of barriers.

use stateright::{Model, Property};

/// Number of nodes. The first one leads at the beginning.
const NODES: usize = 4;
/// Maximum number of entries in a log.
const ENTRIES_MAX: usize = 8;

/// A set of nodes: one bit per node.
type Nodes = u8;

/// The rules. Each can be left out to show its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A barrier waits for a removed member until the leases that it requested have run out.
    WaitsForRemoved,
    /// A barrier waits for learners too.
    WaitsForLearners,
    /// A leader that was just elected waits, also if it is the only member.
    LastMemberWaits,
    /// A learner reads with a lease only.
    LearnersNeedALease,
    /// The voters change by a joint membership, whose quorum has a majority of the old and of the new voters.
    ChangesJointly,
    /// A change begins when the change before it is committed.
    OneChangeAtATime,
    /// A leader that is not a voter any more does not count itself.
    OthersCountForARemovedLeader,
    /// A leader that removes itself reports that, and steps down, when its successors hold the entry.
    SuccessorsConfirm,
    /// A new disk gets a new node id.
    NewDiskHasANewId,
    /// A member counts as removed when the removal is committed. An uncommitted one may be undone.
    RemovalIsCommitted,
    /// A member counts as removed when its removal was applied. An id that was allocated may belong to a member that is
    /// not in the log of this node yet.
    RemovalIsRecorded,
}

/// A membership of a [`Change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    pub voters: Nodes,
    /// In a joint membership: the voters before it.
    pub old: Nodes,
    /// Members without a vote.
    pub learners: Nodes,
    /// Index of the membership that it follows. Several may follow one.
    pub after: usize,
}

impl Membership {
    const fn of(voters: Nodes, after: usize) -> Self {
        Self { voters, old: 0, learners: 0, after }
    }

    const fn joint(old: Nodes, voters: Nodes, after: usize) -> Self {
        Self { voters, old, learners: 0, after }
    }

    const fn with_learner(voters: Nodes, learners: Nodes, after: usize) -> Self {
        Self { voters, old: 0, learners, after }
    }

    const fn all_voters(&self) -> Nodes {
        self.voters | self.old
    }

    const fn members(&self) -> Nodes {
        self.voters | self.old | self.learners
    }

    /// Whether these nodes are a majority of the voters; of both sets in a joint membership.
    const fn is_quorum(&self, nodes: Nodes) -> bool {
        is_majority_of(nodes, self.voters) && (self.old == 0 || is_majority_of(nodes, self.old))
    }
}

const fn is_majority_of(nodes: Nodes, of: Nodes) -> bool {
    (nodes & of).count_ones() * 2 > of.count_ones()
}

/// The memberships of a run. The first one is that of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The memberships, in the order of their indexes.
    pub memberships: &'static [Membership],
    /// The node that joins, if its id is allocated during the run.
    pub joiner: Option<usize>,
}

const A: Nodes = 1;
const B: Nodes = 2;
const C: Nodes = 4;
const D: Nodes = 8;

/// A follower is removed.
pub const REMOVE_FOLLOWER: Change = Change {
    memberships: &[
        Membership::of(A | B | C, 0),
        Membership::joint(A | B | C, A | B, 0),
        Membership::of(A | B, 1),
    ],
    joiner: None,
};

/// The first leader is removed.
pub const REMOVE_LEADER: Change = Change {
    memberships: &[
        Membership::of(A | B | C, 0),
        Membership::joint(A | B | C, B | C, 0),
        Membership::of(B | C, 1),
    ],
    joiner: None,
};

/// Of two members, the first leader is removed.
pub const REMOVE_LEADER_OF_TWO: Change = Change {
    memberships: &[Membership::of(A | B, 0), Membership::joint(A | B, B, 0), Membership::of(B, 1)],
    joiner: None,
};

/// The third member is replaced by the fourth, whose id was allocated before. It is no learner in between: [`JOIN`].
pub const REPLACE: Change = Change {
    memberships: &[
        Membership::of(A | B | C, 0),
        Membership::joint(A | B | C, A | B | D, 0),
        Membership::of(A | B | D, 1),
    ],
    joiner: None,
};

/// The same, and its id is allocated during the run.
pub const ALLOCATE_AND_REPLACE: Change = Change { joiner: Some(3), ..REPLACE };

/// The fourth node gets an id, joins as a learner, and is a voter in the end.
pub const JOIN: Change = Change {
    memberships: &[
        Membership::of(A | B, 0),
        Membership::with_learner(A | B, D, 0),
        Membership::joint(A | B, A | B | D, 1),
        Membership::of(A | B | D, 2),
    ],
    joiner: Some(3),
};

/// One of two members is removed, of three.
pub const REMOVE_ONE_OR_THE_OTHER: Change = Change {
    memberships: &[
        Membership::of(A | B | C, 0),
        Membership::joint(A | B | C, A | B, 0),
        Membership::of(A | B, 1),
        Membership::joint(A | B | C, B | C, 0),
        Membership::of(B | C, 3),
    ],
    joiner: None,
};

/// The same, of four.
pub const REMOVE_ONE_OR_THE_OTHER_OF_FOUR: Change = Change {
    memberships: &[
        Membership::of(A | B | C | D, 0),
        Membership::joint(A | B | C | D, A | B | C, 0),
        Membership::of(A | B | C, 1),
        Membership::joint(A | B | C | D, B | C | D, 0),
        Membership::of(B | C | D, 3),
    ],
    joiner: None,
};

/// A change of the membership, with all rules or without one.
#[derive(Clone, Copy, Debug)]
pub struct Members {
    pub change: Change,
    /// The node that reads.
    pub reader: usize,
    /// The last term, so that the model ends.
    pub terms: u8,
    /// The rule that is left out.
    pub without: Option<Rule>,
}

/// A log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    term: u8,
    content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Content {
    /// First entry of a new leader.
    Blank,
    Revocation,
    /// Allocates the id of the node that joins.
    Token,
    /// The membership with this index.
    Membership(usize),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Log([Option<Entry>; ENTRIES_MAX]);

impl Log {
    fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.0.iter().flatten()
    }

    fn len(&self) -> usize {
        self.entries().count()
    }

    fn push(&mut self, entry: Entry) {
        if let Some(place) = self.0.iter_mut().find(|place| place.is_none()) {
            *place = Some(entry);
        }
    }

    /// The first `len` entries.
    fn until(&self, len: usize) -> Self {
        let mut log = *self;
        log.0.iter_mut().skip(len).for_each(|place| *place = None);
        log
    }

    fn contains(&self, content: Content) -> bool {
        self.entries().any(|entry| entry.content == content)
    }

    /// Index of the last membership in it.
    fn membership(&self) -> usize {
        let indexes = self.entries().rev().filter_map(|entry| match entry.content {
            Content::Membership(index) => Some(index),
            _ => None,
        });
        indexes.into_iter().next().unwrap_or(0)
    }

    /// Term of the last entry, and length: a greater log is newer.
    fn age(&self) -> (u8, usize) {
        (self.entries().last().map_or(0, |entry| entry.term), self.len())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Role {
    #[default]
    Follower,
    /// With the votes that it has.
    Candidate(Nodes),
    /// With the length of the log that each node acknowledged.
    Leader([u8; NODES]),
}

/// One node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    /// A node has its term from the one candidate for whom it voted, or from the leader.
    term: u8,
    role: Role,
    log: Log,
    /// Length of the part of the log that it knows to be committed, and has applied.
    committed: usize,
    /// As leader: whether it was elected since the last tick.
    is_new: bool,
    /// As leader: whether the reader requested a lease of it since the last tick.
    has_recorded: bool,
    /// Whether it had applied the revocation at the last tick.
    has_waited: bool,
}

impl Node {
    fn applied(&self) -> Log {
        self.log.until(self.committed)
    }

    fn has_applied(&self) -> bool {
        self.applied().contains(Content::Revocation)
    }

    const fn leads(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }
}

/// State of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct World {
    nodes: [Node; NODES],
    /// The reader's request for a lease: the leader that it reached, in its term, and the nodes that followed it then.
    request: Option<(usize, u8, Nodes)>,
    /// Whether the reader has a lease.
    has_lease: bool,
    is_acknowledged: bool,
    /// Whether a disk was wiped.
    is_wiped: bool,
}

/// Possible steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A lease runs out.
    Tick,
    /// A leader appends the revocation to its log.
    Revoke(usize),
    /// A leader appends the token of the node that joins.
    Allocate(usize),
    /// A leader appends a membership.
    Change {
        leader: usize,
        /// Index of the membership.
        to: usize,
    },
    /// A leader sends its log, and the follower stores and acknowledges it.
    Replicate { leader: usize, follower: usize },
    /// A leader finds entries on a quorum.
    Commit(usize),
    /// A node becomes a candidate.
    Stand(usize),
    /// A node votes, which may elect the candidate.
    Vote { candidate: usize, voter: usize },
    /// The reader's request for a lease arrives at a leader.
    Request(usize),
    /// A quorum has confirmed that leader, and the reader takes the lease.
    Confirm,
    /// A leader acknowledges the revocation.
    Acknowledge(usize),
    /// The disk of the third node is replaced by an empty one, under its id.
    Wipe,
}

/// The third node, whose disk may be wiped.
const WIPED: usize = 2;

const fn bit(node: usize) -> Nodes {
    1 << node
}

const fn contains(nodes: Nodes, node: usize) -> bool {
    nodes & bit(node) != 0
}

impl Members {
    fn keeps(self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn membership(self, index: usize) -> &'static Membership {
        &self.change.memberships[index]
    }

    /// The membership that is in force on a node: the last one in its log, committed or not.
    fn in_force(self, node: &Node) -> &'static Membership {
        self.membership(node.log.membership())
    }

    /// Whether a leader may append this membership.
    fn may_change(self, node: &Node, to: usize) -> bool {
        let last = node.log.membership();
        let has_token = self.change.joiner.is_none() || node.applied().contains(Content::Token);
        let is_committed = node.applied().membership() == last || !self.keeps(Rule::OneChangeAtATime);
        let Membership { after, old, .. } = *self.membership(to);
        let is_next = if self.keeps(Rule::ChangesJointly) {
            after == last
        } else {
            // Past the joint membership.
            old == 0
                && (after == last
                    || (self.membership(after).old != 0 && self.membership(after).after == last))
        };
        to != 0 && is_next && is_committed && has_token
    }

    /// Whether a node takes calls of another. It refuses those of removed members.
    fn admits(self, node: &Node, caller: usize) -> bool {
        let applied = node.applied();
        let committed = self.membership(applied.membership()).members();
        let in_force = self.in_force(node).members();
        let known = if self.keeps(Rule::RemovalIsCommitted) { committed | in_force } else { in_force };
        let earlier = |entry: &Entry| match entry.content {
            Content::Membership(index) => contains(self.membership(index).members(), caller),
            _ => false,
        };
        let was_member = contains(self.membership(0).members(), caller) || applied.entries().any(earlier);
        let is_allocated = self.change.joiner == Some(caller) && applied.contains(Content::Token);
        let is_old = was_member || (is_allocated && !self.keeps(Rule::RemovalIsRecorded));
        contains(known, caller) || !is_old
    }

    /// The nodes that a candidate or leader counts.
    fn is_quorum(self, node: &Node, id: usize, nodes: Nodes) -> bool {
        let membership = self.in_force(node);
        if self.keeps(Rule::OthersCountForARemovedLeader) || contains(membership.all_voters(), id) {
            return membership.is_quorum(nodes);
        }
        // It counts itself instead of any other.
        (0..NODES).any(|other| membership.is_quorum(nodes & !bit(id) | bit(other)))
    }

    /// Whether the node may stand: openraft checks the membership in force and the committed one.
    fn may_stand(self, node: &Node, id: usize) -> bool {
        let committed = self.membership(node.applied().membership());
        let voters = self.in_force(node).all_voters() | committed.all_voters();
        node.term < self.terms && !node.leads() && contains(voters, id)
    }

    /// The length of the log that a leader can commit.
    fn committable(self, world: &World, leader: usize) -> usize {
        let node = &world.nodes[leader];
        let Role::Leader(acknowledged) = node.role else { return node.committed };
        let holds = |len: usize| -> Nodes {
            let has = |id: &usize| *id == leader || usize::from(acknowledged[*id]) >= len;
            (0..NODES).filter(has).map(bit).sum()
        };
        let is_own = |len: usize| node.log.0[len - 1].is_some_and(|entry| entry.term == node.term);
        let lens = (node.committed + 1..=node.log.len()).rev();
        let mut lens = lens.filter(|len| is_own(*len) && self.is_quorum(node, leader, holds(*len)));
        lens.next().unwrap_or(node.committed)
    }

    /// A leader grants leases once it has committed an entry of its term.
    fn is_settled(node: &Node) -> bool {
        node.term <= 1 || node.applied().entries().any(|entry| entry.term == node.term)
    }

    fn may_acknowledge(self, world: &World, leader: usize) -> bool {
        let node = &world.nodes[leader];
        let membership = self.in_force(node);
        let committed = self.membership(node.applied().membership());
        let is_alone = membership.members() == bit(leader) && !self.keeps(Rule::LastMemberWaits);
        let mut counted = Nodes::MAX;
        if !self.keeps(Rule::WaitsForRemoved) {
            counted = membership.members();
        }
        if !self.keeps(Rule::WaitsForLearners) {
            counted &= !(membership.learners | committed.learners);
        }
        let is_waited_for = contains(counted, self.reader)
            && self.reader != leader
            && node.has_recorded
            && !node.has_waited
            && !world.nodes[self.reader].has_applied();
        node.leads() && node.has_applied() && (is_alone || (!is_waited_for && !node.is_new))
    }

    fn lead(node: &mut Node) {
        node.role = Role::Leader([0; NODES]);
        node.is_new = true;
        node.log.push(Entry { term: node.term, content: Content::Blank });
    }

    fn vote(self, world: &mut World, candidate: usize, voter: usize) {
        let term = world.nodes[candidate].term;
        if voter != candidate {
            world.nodes[voter] = Node { term, role: Role::Follower, ..world.nodes[voter] };
        }
        let Role::Candidate(votes) = world.nodes[candidate].role else { return };
        let votes = votes | bit(voter);
        world.nodes[candidate].role = Role::Candidate(votes);
        if self.is_quorum(&world.nodes[candidate], candidate, votes) {
            Self::lead(&mut world.nodes[candidate]);
        }
    }

    fn replicate(world: &mut World, leader: usize, follower: usize) {
        let Node { term, log, committed, .. } = world.nodes[leader];
        let node = &mut world.nodes[follower];
        (node.term, node.role, node.log) = (term, Role::Follower, log);
        node.committed = node.committed.max(committed);
        if let Role::Leader(acknowledged) = &mut world.nodes[leader].role {
            acknowledged[follower] = u8::try_from(log.len()).unwrap_or(u8::MAX);
        }
    }

    fn tick(world: &mut World) {
        (world.request, world.has_lease) = (None, false);
        for node in &mut world.nodes {
            (node.is_new, node.has_recorded) = (false, false);
            node.has_waited = node.has_applied();
        }
    }

    /// Drops state that no longer matters, so that fewer states are distinguished.
    fn simplify(self, world: &mut World) {
        let reader_has_applied = world.nodes[self.reader].has_applied();
        if reader_has_applied {
            (world.request, world.has_lease) = (None, false);
        }
        if world.has_lease {
            world.request = None;
        }
        for node in &mut world.nodes {
            let leads = node.leads() && !world.is_acknowledged;
            if let Role::Leader(acknowledged) = &mut node.role {
                for len in acknowledged {
                    *len = if usize::from(*len) > node.committed { *len } else { 0 };
                }
            }
            node.is_new &= leads;
            node.has_recorded &= leads && !reader_has_applied;
            node.has_waited &= leads && !reader_has_applied;
        }
    }

    /// The members by the newest committed membership that any node knows.
    fn present(self, world: &World) -> Nodes {
        let committed = world.nodes.iter().max_by_key(|node| node.applied().age());
        self.membership(committed.map_or(0, |node| node.applied().membership())).all_voters()
    }

    /// Whether a member of the newest committed membership refuses another one as removed.
    fn is_refused_wrongly(self, world: &World) -> bool {
        let present = self.present(world);
        let is_present = |id: &usize| contains(present, *id);
        (0..NODES)
            .filter(is_present)
            .any(|id| (0..NODES).filter(is_present).any(|caller| !self.admits(&world.nodes[id], caller)))
    }

    /// The members whose removal was reported to the operator.
    fn reported(self, world: &World) -> Nodes {
        let reports = |(id, node): (usize, &Node)| {
            let is_early = node.leads() && !self.keeps(Rule::SuccessorsConfirm);
            let applied = if is_early { node.log } else { node.applied() };
            let membership = self.membership(applied.membership());
            let is_its_own = !contains(membership.all_voters(), id);
            let is_reported = membership.old == 0 && (!is_early || is_its_own);
            let removed = self.membership(0).voters & !membership.members();
            if is_reported { removed } else { 0 }
        };
        world.nodes.iter().enumerate().map(reports).fold(0, |all, removed| all | removed)
    }

    /// Whether no node can be elected without the members whose removal was reported.
    fn is_stuck(self, world: &World) -> bool {
        let reported = self.reported(world);
        if reported == 0 {
            return false;
        }
        let remaining = || (0..NODES).filter(|id| !contains(reported, *id));
        !remaining().any(|id| {
            let candidate = &world.nodes[id];
            let may_vote = |voter: &usize| {
                let voter = &world.nodes[*voter];
                voter.log.age() <= candidate.log.age() && self.admits(voter, id)
            };
            self.in_force(candidate).is_quorum(remaining().filter(may_vote).map(bit).sum())
        })
    }

    /// Whether the reader answers from a state before the acknowledged revocation.
    fn is_stale(self, world: &World) -> bool {
        let node = &world.nodes[self.reader];
        let is_learner = contains(self.in_force(node).learners, self.reader);
        let reads = world.has_lease || (is_learner && !self.keeps(Rule::LearnersNeedALease));
        world.is_acknowledged && reads && !node.has_applied()
    }

    /// The steps of a leader.
    fn offer_leading(self, world: &World, leader: usize, offer: &mut impl FnMut(bool, Step)) {
        let node = &world.nodes[leader];
        let has_space = node.log.len() < ENTRIES_MAX;
        offer(has_space && !node.log.contains(Content::Revocation), Step::Revoke(leader));
        let allocates = self.change.joiner.is_some() && !node.log.contains(Content::Token);
        offer(has_space && allocates, Step::Allocate(leader));
        for to in 0..self.change.memberships.len() {
            offer(has_space && self.may_change(node, to), Step::Change { leader, to });
        }
        let members = self.in_force(node).members();
        for follower in (0..NODES).filter(|id| *id != leader && contains(members, *id)) {
            let to = &world.nodes[follower];
            let is_newer = to.term < node.term || to.log != node.log || to.committed < node.committed;
            let takes = to.term <= node.term && self.admits(to, leader);
            offer(takes && is_newer, Step::Replicate { leader, follower });
        }
        offer(self.committable(world, leader) > node.committed, Step::Commit(leader));
        let reader = &world.nodes[self.reader];
        let is_needed = !reader.has_applied() && !world.has_lease && !node.has_applied();
        let takes = Self::is_settled(node) && self.admits(node, self.reader);
        offer(is_needed && takes, Step::Request(leader));
        offer(!world.is_acknowledged && self.may_acknowledge(world, leader), Step::Acknowledge(leader));
    }

    fn offer_member(self, world: &World, id: usize, offer: &mut impl FnMut(bool, Step)) {
        let node = &world.nodes[id];
        offer(self.may_stand(node, id), Step::Stand(id));
        if !matches!(node.role, Role::Candidate(_)) {
            return;
        }
        let voters = self.in_force(node).all_voters();
        for voter in (0..NODES).filter(|voter| contains(voters, *voter)) {
            let to = &world.nodes[voter];
            let grants = to.term < node.term && to.log.age() <= node.log.age();
            offer(grants && self.admits(to, id), Step::Vote { candidate: id, voter });
        }
    }

    fn can_confirm(self, world: &World) -> bool {
        world.request.is_some_and(|(leader, term, followers)| {
            let node = &world.nodes[leader];
            node.leads() && node.term == term && self.is_quorum(node, leader, followers)
        })
    }
}

impl Model for Members {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let mut world = World::default();
        let voters = self.membership(0).voters;
        for id in (0..NODES).filter(|id| contains(voters, *id)) {
            world.nodes[id].term = 1;
        }
        world.nodes[0].role = Role::Leader([0; NODES]);
        vec![world]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if self.is_stale(world) {
            return;
        }
        let mut offer = |is_possible: bool, step: Step| {
            if is_possible {
                steps.push(step);
            }
        };
        offer(true, Step::Tick);
        offer(self.can_confirm(world), Step::Confirm);
        offer(!self.keeps(Rule::NewDiskHasANewId) && !world.is_wiped, Step::Wipe);
        for id in 0..NODES {
            if world.nodes[id].leads() {
                self.offer_leading(world, id, &mut offer);
            }
            self.offer_member(world, id, &mut offer);
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            Step::Tick => Self::tick(&mut world),
            Step::Revoke(id) | Step::Allocate(id) | Step::Change { leader: id, .. } => {
                let content = match step {
                    Step::Revoke(_) => Content::Revocation,
                    Step::Change { to, .. } => Content::Membership(to),
                    _ => Content::Token,
                };
                let term = world.nodes[id].term;
                world.nodes[id].log.push(Entry { term, content });
            }
            Step::Replicate { leader, follower } => Self::replicate(&mut world, leader, follower),
            Step::Commit(id) => world.nodes[id].committed = self.committable(last, id),
            Step::Stand(id) => {
                let node = &mut world.nodes[id];
                (node.term, node.role) = (node.term + 1, Role::Candidate(0));
                self.vote(&mut world, id, id);
            }
            Step::Vote { candidate, voter } => self.vote(&mut world, candidate, voter),
            Step::Request(id) => {
                let term = world.nodes[id].term;
                let follows = |other: &usize| *other == id || world.nodes[*other].term == term;
                let followers = (0..NODES).filter(follows).map(bit).sum();
                world.request = Some((id, term, followers));
                world.nodes[id].has_recorded = true;
            }
            Step::Confirm => world.has_lease = true,
            Step::Acknowledge(_) => world.is_acknowledged = true,
            Step::Wipe => {
                world.nodes[WIPED] = Node::default();
                world.is_wiped = true;
            }
        }
        self.simplify(&mut world);
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_STALE, |model: &Self, world: &World| !model.is_stale(world)),
            Property::always(NEVER_WRONG, |model: &Self, world: &World| !model.is_refused_wrongly(world)),
            Property::always(NEVER_STUCK, |model: &Self, world: &World| !model.is_stuck(world)),
            Property::sometimes(
                "the change is complete, and the revocation acknowledged",
                |model: &Self, world: &World| {
                    let last = model.change.memberships.len() - 1;
                    world.is_acknowledged
                        && world.nodes.iter().any(|node| node.applied().membership() == last)
                },
            ),
            Property::sometimes("two nodes believe that they lead", |_, world: &World| {
                world.nodes.iter().filter(|node| node.leads()).count() > 1
            }),
        ]
    }
}

/// No node answers from a state before an acknowledged revocation.
pub const NEVER_STALE: &str = "no member or removed member is stale after the acknowledgement";
/// A present member is never taken for a removed one.
pub const NEVER_WRONG: &str = "no present member is refused as removed";
/// A removal is not reported before the others can do without the removed member.
pub const NEVER_STUCK: &str = "the remaining members can elect a leader";
