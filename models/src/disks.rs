//! A disk that was set back to an older copy: its later acknowledgements and votes are lost, and its node does not know.
//! The other members remember enough of them to refuse it.
//!
//! Three nodes. The first one leads in the first term and proposes one entry. The second one's disk is copied at some time
//! and may be set back to the copy later. Either the second or the third may be elected in the second term. Restarts, lost
//! messages and delays are possible between any two steps. A set-back disk is not covered if no member of the electing
//! majority has learned since the copy of a start, of an entry held or of another vote: [`World`] tracks that beside the
//! protocol.

use stateright::{Model, Property};

const NODES: usize = 3;
/// Leader of the first term.
const FIRST: usize = 0;
/// Node whose disk is set back.
const SECOND: usize = 1;
const THIRD: usize = 2;
/// Maximum number of starts of the second node, so that the model ends.
const STARTS_MAX: u8 = 3;
/// The start id of no process.
const NO_PROCESS: u8 = 0;

/// The rules. Each can be left out to show its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// An entry counts as held by a member if the member matched it and it is committed. A follower may truncate an
    /// uncommitted entry, also one that it acknowledged.
    HeldIsCommitted,
    /// The leader reports to the other members the entries that each one holds.
    HeldIsSpread,
    /// A member writes its knowledge of others to its own disk.
    KnowledgeIsDurable,
    /// A smaller start number, or the same with another start id, is refused.
    StartsAreCompared,
    /// A member that learns of two start ids with one number refuses both.
    TwoStartsAreBothRefused,
    /// A start number is durable before the first call that states it.
    StartIsDurableFirst,
    /// A smaller vote, or another vote of the same term, is refused.
    VotesAreCompared,
    /// A log that ends before the last entry held is refused.
    EndsAreCompared,
    /// A member refuses the calls of such a node.
    RefusesCalls,
    /// It also refuses the node's responses to its own calls.
    RefusesResponses,
    /// A log is never truncated at or below its last committed entry: the node stops and reports it.
    CommittedIsNeverTruncated,
}

/// Every rule.
pub const RULES: [Rule; 11] = [
    Rule::HeldIsCommitted,
    Rule::HeldIsSpread,
    Rule::KnowledgeIsDurable,
    Rule::StartsAreCompared,
    Rule::TwoStartsAreBothRefused,
    Rule::StartIsDurableFirst,
    Rule::VotesAreCompared,
    Rule::EndsAreCompared,
    Rule::RefusesCalls,
    Rule::RefusesResponses,
    Rule::CommittedIsNeverTruncated,
];

/// Set-back disks, with all rules or without one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disks {
    /// The rule that is left out.
    pub without: Option<Rule>,
}

/// A process of the second node: its start number, and its id. Two processes may have the same number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Start {
    number: u8,
    id: u8,
}

/// State of the second node's disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Disk {
    has_entry: bool,
    /// Its vote in the second term.
    vote: Option<usize>,
    start: Start,
}

/// Knowledge of a member about the second node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Known {
    start: Start,
    vote: Option<usize>,
    holds_entry: bool,
    /// Beside the protocol: it has learned of a start, or of an entry held, that is not in the copy.
    is_newer_than_copy: bool,
}

/// State of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "facts that are independent of each other")]
pub struct World {
    /// Whether the first node leads in the first term.
    first_leads: bool,
    is_proposed: bool,
    /// Whether the entry is on the disk of the first and of the third node.
    first_has_entry: bool,
    third_has_entry: bool,
    /// Members that acknowledged the entry to the first node.
    matched: [bool; NODES],
    is_committed: bool,
    /// Votes of the first and of the third node in the second term.
    votes: [Option<usize>; NODES],
    /// The disk of the second node, the process that runs on it, and its copy.
    disk: Disk,
    running: Start,
    copy: Option<Disk>,
    is_set_back: bool,
    starts: u8,
    /// A refused node stops.
    is_refused: bool,
    /// For each candidate of the second term: the nodes that voted for it.
    granted: [[bool; NODES]; NODES],
    elected: [bool; NODES],
    /// Beside the protocol, for each candidate: after its disk was set back, the second node exchanged a vote with a member
    /// that knew of the lost state.
    is_covered: [bool; NODES],
    /// Knowledge of the first and the third node about the second.
    known: [Known; NODES],
    /// The part of it on the disk of the third.
    third_wrote: Known,
    verdict: Verdict,
}

/// Violation of a promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Verdict {
    #[default]
    Good,
    /// A committed entry was lost, or a term has two leaders, although a member of the majority knew of it.
    Lost,
    /// A node whose disk was never set back was refused.
    RefusedWrongly,
    /// A node truncated a committed entry and did not report it.
    Silent,
}

/// Possible steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The first node proposes the entry and begins to send it.
    Propose,
    /// It is on the first node's own disk.
    Persist,
    /// It is on the disk of this follower, which acknowledges it.
    Replicate(usize),
    /// The first node finds it on a majority.
    Commit,
    /// The first node sends the third one a heartbeat.
    Heartbeat,
    /// This member and the second node exchange a call and its response.
    Contact(usize),
    /// The third node writes its knowledge.
    Write,
    /// The second node's disk is copied.
    Copy,
    /// A node is killed and starts again.
    Restart(usize),
    /// The second node starts on the copy.
    SetBack,
    /// The second node's start number is on its disk, if it was not before its first call.
    SyncStart,
    /// A node becomes a candidate of the second term.
    Stand(usize),
    /// A node votes for a candidate.
    Vote { candidate: usize, voter: usize },
    /// A candidate has the votes of a majority.
    Elect(usize),
    /// The new leader has this node truncate its log.
    Truncate { leader: usize, node: usize },
}

impl Disks {
    fn keeps(self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// Whether the second node's statement contradicts what a member knows.
    fn contradicts(self, world: &World, known: &Known) -> bool {
        let Disk { vote, has_entry, .. } = world.disk;
        let start = world.running;
        let is_older = start.number < known.start.number;
        let is_other = start.number == known.start.number && start.id != known.start.id;
        (self.keeps(Rule::StartsAreCompared) && (is_older || is_other))
            || (self.keeps(Rule::VotesAreCompared) && known.vote.is_some() && vote != known.vote)
            || (self.keeps(Rule::EndsAreCompared) && known.holds_entry && !has_entry)
    }

    /// A member receives the second node's statement; returns whether it accepts it.
    fn receive(self, world: &mut World, member: usize, checks: bool) -> bool {
        if checks && self.contradicts(world, &world.known[member]) {
            world.is_refused = true;
            if !world.is_set_back {
                world.verdict = Verdict::RefusedWrongly;
            }
            return false;
        }
        let (start, vote) = (world.running, world.disk.vote);
        let is_newer = !world.is_set_back && world.copy.is_some_and(|copy| copy.start.number < start.number);
        let known = &mut world.known[member];
        if start.number > known.start.number {
            known.start = start;
        }
        known.vote = known.vote.or(vote);
        known.is_newer_than_copy |= is_newer;
        true
    }

    /// The first node sends the third one its knowledge of the second.
    fn heartbeat(self, world: &mut World) {
        let reported = world.known[FIRST];
        let is_held = world.matched[SECOND] && (world.is_committed || !self.keeps(Rule::HeldIsCommitted));
        let is_in_copy = world.copy.is_none_or(|copy| copy.has_entry);
        let known = &mut world.known[THIRD];
        if self.keeps(Rule::HeldIsSpread) {
            known.holds_entry |= is_held;
            if reported.start.number > known.start.number {
                known.start = reported.start;
            } else if reported.start.number == known.start.number && reported.start.id != known.start.id {
                // Both processes stated this number: one of them was set back, but not known which.
                known.start.id =
                    if self.keeps(Rule::TwoStartsAreBothRefused) { NO_PROCESS } else { known.start.id };
            }
            known.vote = known.vote.or(reported.vote);
        }
        known.is_newer_than_copy |= reported.is_newer_than_copy || (is_held && !is_in_copy);
    }

    fn restart(self, world: &mut World, node: usize) {
        match node {
            FIRST => {
                (world.first_leads, world.matched) = (false, [false; NODES]);
                world.is_proposed &= world.first_has_entry;
            }
            SECOND => self.start(world),
            _ => {
                let is_newer = world.third_wrote.is_newer_than_copy;
                world.known[THIRD] = Known { is_newer_than_copy: is_newer, ..world.third_wrote };
            }
        }
        world.granted[node] = [false; NODES];
        (world.elected[node], world.is_covered[node]) = (false, false);
    }

    fn start(self, world: &mut World) {
        world.starts += 1;
        world.running = Start { number: world.disk.start.number + 1, id: world.starts };
        if self.keeps(Rule::StartIsDurableFirst) {
            world.disk.start = world.running;
        }
    }

    fn vote(self, world: &mut World, candidate: usize, voter: usize) {
        let checks = match (candidate, voter) {
            (SECOND, _) => Some((voter, self.keeps(Rule::RefusesCalls))),
            (_, SECOND) => Some((candidate, self.keeps(Rule::RefusesResponses))),
            _ => None,
        };
        // The voter's vote is durable before it responds.
        if voter == SECOND {
            world.disk.vote = Some(candidate);
        }
        if let Some((member, checks)) = checks {
            let Known { vote, is_newer_than_copy, .. } = world.known[member];
            if !self.receive(world, member, checks) {
                return;
            }
            // A node that repeats a lost vote is indistinguishable from one that did not lose it.
            let is_another = vote.is_some() && vote != world.disk.vote;
            world.is_covered[candidate] |= world.is_set_back && (is_newer_than_copy || is_another);
        }
        if voter != SECOND {
            world.votes[voter] = Some(candidate);
        }
        world.granted[candidate][voter] = true;
    }

    fn elect(world: &mut World, candidate: usize) {
        world.elected[candidate] = true;
        let is_lost = world.is_committed && !world.has_entry(candidate);
        let are_two = world.elected.iter().filter(|elected| **elected).count() > 1;
        let is_two = are_two && world.is_covered.contains(&true);
        let is_covered = if is_lost { world.is_covered[candidate] } else { is_two };
        if (is_lost || are_two) && (is_covered || !world.is_set_back) {
            world.verdict = Verdict::Lost;
        }
    }

    fn truncate(self, world: &mut World, node: usize) {
        let is_known_committed = node == FIRST && world.is_committed;
        if is_known_committed && self.keeps(Rule::CommittedIsNeverTruncated) {
            return;
        }
        if is_known_committed {
            world.verdict = Verdict::Silent;
        }
        match node {
            FIRST => world.first_has_entry = false,
            SECOND => world.disk.has_entry = false,
            _ => world.third_has_entry = false,
        }
    }
}

impl World {
    fn has_entry(&self, node: usize) -> bool {
        [self.first_has_entry, self.disk.has_entry, self.third_has_entry][node]
    }

    fn vote_of(&self, node: usize) -> Option<usize> {
        if node == SECOND { self.disk.vote } else { self.votes[node] }
    }

    fn runs(&self, node: usize) -> bool {
        node != SECOND || !self.is_refused
    }
}

impl Model for Disks {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let start = Start { number: 1, id: 1 };
        let known = Known { start, ..Known::default() };
        vec![World {
            first_leads: true,
            disk: Disk { start, ..Disk::default() },
            running: start,
            starts: 1,
            known: [known; NODES],
            third_wrote: known,
            ..World::default()
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.verdict != Verdict::Good {
            return;
        }
        let mut offer = |is_possible: bool, step: Step| {
            if is_possible {
                steps.push(step);
            }
        };
        let leads = world.first_leads && world.votes[FIRST].is_none();
        offer(leads && !world.is_proposed, Step::Propose);
        offer(leads && world.is_proposed && !world.first_has_entry, Step::Persist);
        for id in [SECOND, THIRD] {
            let is_missing = world.vote_of(id).is_none() && !world.has_entry(id) && world.runs(id);
            offer(leads && world.is_proposed && is_missing, Step::Replicate(id));
        }
        let copies = usize::from(world.first_has_entry) + usize::from(world.matched[SECOND]);
        let copies = copies + usize::from(world.matched[THIRD]);
        offer(leads && !world.is_committed && copies >= 2, Step::Commit);
        offer(leads, Step::Heartbeat);
        for id in [FIRST, THIRD] {
            offer(world.runs(SECOND), Step::Contact(id));
        }
        offer(world.known[THIRD] != world.third_wrote, Step::Write);
        offer(world.copy.is_none(), Step::Copy);
        offer(true, Step::Restart(FIRST));
        offer(true, Step::Restart(THIRD));
        let may_start = world.runs(SECOND) && world.starts < STARTS_MAX;
        offer(may_start, Step::Restart(SECOND));
        offer(may_start && world.copy.is_some() && !world.is_set_back, Step::SetBack);
        offer(world.disk.start != world.running, Step::SyncStart);
        for candidate in [SECOND, THIRD] {
            offer(world.vote_of(candidate).is_none() && world.runs(candidate), Step::Stand(candidate));
            let stands = world.granted[candidate][candidate] && world.runs(candidate);
            let votes = world.granted[candidate].iter().filter(|granted| **granted).count();
            offer(stands && votes >= 2 && !world.elected[candidate], Step::Elect(candidate));
            for voter in 0..NODES {
                let is_newer = world.has_entry(voter) && !world.has_entry(candidate);
                let is_free = world.vote_of(voter).is_none() && world.runs(voter);
                offer(stands && is_free && !is_newer, Step::Vote { candidate, voter });
                let truncates = world.elected[candidate] && is_newer && world.runs(voter);
                offer(truncates, Step::Truncate { leader: candidate, node: voter });
            }
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            Step::Propose => world.is_proposed = true,
            Step::Persist => world.first_has_entry = true,
            Step::Replicate(id) => {
                let is_accepted =
                    id != SECOND || self.receive(&mut world, FIRST, self.keeps(Rule::RefusesResponses));
                if is_accepted {
                    world.matched[id] = true;
                    if id == SECOND { world.disk.has_entry = true } else { world.third_has_entry = true }
                }
            }
            Step::Commit => {
                world.is_committed = true;
                world.known[FIRST].holds_entry |= world.matched[SECOND];
            }
            Step::Heartbeat => self.heartbeat(&mut world),
            Step::Contact(id) => {
                self.receive(&mut world, id, self.keeps(Rule::RefusesCalls));
            }
            Step::Write => {
                let is_newer_than_copy = world.known[THIRD].is_newer_than_copy;
                if self.keeps(Rule::KnowledgeIsDurable) {
                    world.third_wrote = world.known[THIRD];
                }
                world.third_wrote.is_newer_than_copy = is_newer_than_copy;
            }
            Step::Copy => world.copy = Some(world.disk),
            Step::Restart(id) => self.restart(&mut world, id),
            Step::SetBack => {
                (world.disk, world.is_set_back) = (world.copy?, true);
                self.restart(&mut world, SECOND);
            }
            Step::SyncStart => world.disk.start = world.running,
            Step::Stand(id) => {
                if id == SECOND {
                    world.disk.vote = Some(id);
                } else {
                    world.votes[id] = Some(id);
                }
                world.granted[id][id] = true;
            }
            Step::Vote { candidate, voter } => self.vote(&mut world, candidate, voter),
            Step::Elect(id) => Self::elect(&mut world, id),
            Step::Truncate { node, .. } => self.truncate(&mut world, node),
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_LOST, |_, world: &World| world.verdict != Verdict::Lost),
            Property::always(NEVER_WRONG, |_, world: &World| world.verdict != Verdict::RefusedWrongly),
            Property::always(NEVER_SILENT, |_, world: &World| world.verdict != Verdict::Silent),
            Property::sometimes("a disk that was set back is refused", |_, world: &World| {
                world.is_set_back && world.is_refused
            }),
            Property::sometimes("a follower truncates an entry that it acknowledged", |_, world: &World| {
                world.elected[THIRD] && !world.third_has_entry && !world.is_set_back && world.is_proposed
            }),
            Property::sometimes("a loss that no member can know of", |_, world: &World| {
                let lost = |id: usize| world.elected[id] && !world.has_entry(id);
                world.is_committed && (lost(SECOND) || lost(THIRD))
            }),
        ]
    }
}

/// A committed entry is not lost, and a term has one leader, if a member of the electing majority knows of it.
pub const NEVER_LOST: &str = "nothing that a member of the majority knows of is lost";
/// Only a disk that was set back is refused.
pub const NEVER_WRONG: &str = "no node whose disk was never set back is refused";
/// A node that would have to truncate a committed entry reports it.
pub const NEVER_SILENT: &str = "no committed entry is truncated in silence";
