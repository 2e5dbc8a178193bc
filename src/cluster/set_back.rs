//! Rules that tell whether a member's disk was set back to an older copy. Pure: no disk, no network, no clock.
//!
//! A process states its [`Life`]: the content of its disk at its start. All statements of one process are equal, so a
//! message that arrives late or out of order changes nothing. A [`Memory`] holds facts that processes on the disk
//! acknowledged at the remembered start or at an earlier one. A process with a greater start must therefore have found all
//! of them; within one start a disk cannot be set back.

use super::type_config::{LeaderId, LogId};

/// A node, and the id of the disk that it lives on.
pub type Disk = (u64, [u8; 16]);

/// One start of a process on a disk, and the content of the disk at that start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Counts the starts of processes on the disk, from 1. Durable before the process's first call.
    pub start: u64,
    /// Drawn at the start and stored with its number: tells two copies of one disk apart.
    pub id: [u8; 16],
    /// The vote.
    pub vote: Option<LeaderId>,
    /// The last entry of the log, or of the installed state if that is later.
    pub end: Option<LogId>,
}

/// Facts that a member keeps durably about the disk of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The life with the greatest start.
    pub life: Life,
    /// The greatest vote that the member granted or followed; pre-votes do not count.
    pub vote: Option<LeaderId>,
    /// The last entry that it acknowledged and that is committed. Entries that are not committed do not count: a leader
    /// may replace them.
    pub held: Option<LogId>,
    /// The committed entry in its log where the leader's log has another one.
    pub contradiction: Option<LogId>,
}

/// Reasons to refuse a process: its disk is not the one that the cluster knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetBack {
    /// A later process is known.
    #[error("its disk is an older copy: this is start {stated} on it, and start {known} is known")]
    Start {
        /// The remembered start.
        known: u64,
        /// The start of the process.
        stated: u64,
    },
    /// Another process has the same number.
    #[error("its disk was copied: another process is known as start {0}")]
    Copied(u64),
    /// The disk lacks a vote.
    #[error("its disk is an older copy: the vote {known} that it gave is missing, its last is {}", shown(stated.as_ref()))]
    Vote {
        /// The vote that it gave.
        known: LeaderId,
        /// The vote on the disk.
        stated: Option<LeaderId>,
    },
    /// The disk lacks entries.
    #[error("its disk is an older copy: it held committed entry {known}, and ends at {}", shown(stated.as_ref()))]
    End {
        /// The last committed entry that it acknowledged.
        known: LogId,
        /// The last entry on the disk.
        stated: Option<LogId>,
    },
}

fn shown(part: Option<&impl std::fmt::Display>) -> String {
    part.map_or_else(|| "none".to_owned(), ToString::to_string)
}

impl Memory {
    /// The first memory of a disk.
    #[must_use]
    pub fn new(life: Life) -> Self {
        Self { life, vote: None, held: None, contradiction: None }
    }

    /// Checks that a process with this life can follow on the remembered one.
    ///
    /// # Errors
    /// [`SetBack`] if it cannot.
    pub fn judge(&self, life: &Life) -> Result<(), SetBack> {
        let Life { start: stated, id, vote, end } = *life;
        let known = self.life.start;
        if stated < known {
            return Err(SetBack::Start { known, stated });
        }
        if stated == known {
            return if id == self.life.id { Ok(()) } else { Err(SetBack::Copied(known)) };
        }
        match (self.vote, self.held) {
            (Some(known), _) if vote < Some(known) => Err(SetBack::Vote { known, stated: vote }),
            (_, Some(known)) if end < Some(known) => Err(SetBack::End { known, stated: end }),
            _ => Ok(()),
        }
    }

    /// Judges a life, and remembers it.
    ///
    /// # Errors
    /// As [`Memory::judge`]; nothing is remembered then.
    pub fn take(&mut self, life: &Life) -> Result<(), SetBack> {
        self.judge(life)?;
        self.life = *life;
        Ok(())
    }

    /// Adds the facts that another member has of the same disk. A start that cannot follow on the facts of an earlier one
    /// is not remembered, so that its process is refused from now on.
    pub fn merge(&mut self, other: &Self) {
        let (older, newer) =
            if self.life.start <= other.life.start { (*self, *other) } else { (*other, *self) };
        *self = Self {
            life: if older.judge(&newer.life).is_ok() { newer.life } else { older.life },
            vote: self.vote.max(other.vote),
            held: self.held.max(other.held),
            contradiction: self.contradiction.or(other.contradiction),
        };
    }
}

#[cfg(test)]
mod tests {
    use openraft::vote::RaftLeaderId as _;
    use proptest::prelude::*;

    use super::*;

    fn leader(term: u64) -> LeaderId {
        LeaderId::new(term, 1)
    }

    fn entry(term: u64, index: u64) -> LogId {
        LogId::new(leader(term).to_committed(), index)
    }

    fn life(start: u64, term: u64, end: u64) -> Life {
        Life { start, id: [7; 16], vote: Some(leader(term)), end: Some(entry(term, end)) }
    }

    fn memory() -> Memory {
        Memory { vote: Some(leader(3)), held: Some(entry(3, 9)), ..Memory::new(life(5, 2, 4)) }
    }

    #[test]
    fn next_start_with_all_acknowledged_facts_is_accepted() {
        assert_eq!(memory().judge(&life(6, 3, 9)), Ok(()));
        assert_eq!(memory().judge(&life(8, 4, 2)), Ok(()), "a later term ends later, whatever the index");
    }

    /// It found less at its start than it acknowledged since.
    #[test]
    fn same_process_is_accepted_after_it_acknowledged_more() {
        assert_eq!(memory().judge(&life(5, 2, 4)), Ok(()));
    }

    #[test]
    fn each_missing_fact_is_refused_with_its_reason() {
        let known = memory();
        assert_eq!(known.judge(&life(4, 9, 9)), Err(SetBack::Start { known: 5, stated: 4 }));
        assert_eq!(known.judge(&Life { id: [8; 16], ..life(5, 9, 9) }), Err(SetBack::Copied(5)));
        let stated = Some(leader(2));
        let refused = known.judge(&Life { vote: stated, ..life(6, 3, 9) });
        assert_eq!(refused, Err(SetBack::Vote { known: leader(3), stated }));
        let refused = known.judge(&life(6, 3, 8));
        assert_eq!(refused, Err(SetBack::End { known: entry(3, 9), stated: Some(entry(3, 8)) }));
        let blank = Life { vote: None, end: None, ..life(6, 0, 0) };
        assert!(matches!(known.judge(&blank), Err(SetBack::Vote { stated: None, .. })));
        let unknown_vote = Memory { vote: None, ..known };
        assert!(matches!(unknown_vote.judge(&blank), Err(SetBack::End { stated: None, .. })));
    }

    #[test]
    fn refused_process_is_not_remembered() {
        let mut known = memory();
        known.take(&life(6, 3, 8)).expect_err("set back");
        assert_eq!(known, memory());
        known.take(&life(6, 3, 9)).expect("the disk itself");
        known.take(&Life { id: [8; 16], ..life(6, 3, 9) }).expect_err("a copy");
    }

    /// The leader has not heard of what the disk held, and believes the older copy.
    #[test]
    fn gossip_about_a_set_back_process_does_not_hide_it() {
        let set_back = life(6, 3, 8);
        let mut told = memory();
        told.merge(&Memory::new(set_back));
        assert!(matches!(told.judge(&set_back), Err(SetBack::End { .. })));
        // The other way round: the facts come after the process was believed.
        let mut believed = Memory::new(set_back);
        believed.merge(&memory());
        assert!(matches!(believed.judge(&set_back), Err(SetBack::End { .. })));
    }

    /// What happens to a healthy disk, and between two members that watch it.
    #[derive(Clone, Debug)]
    enum Step {
        Restart,
        Vote,
        Append,
        Commit,
        Truncate,
        /// The process states its life to a member.
        State(usize),
        /// A member that knows the process learns what it has acknowledged and is committed.
        Acknowledge(usize),
        /// A member sends its memory.
        Send(usize),
        /// One of the memories that were ever sent arrives.
        Arrive(usize, prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        let member = 0..2_usize;
        prop_oneof![
            Just(Step::Restart),
            Just(Step::Vote),
            Just(Step::Append),
            Just(Step::Commit),
            Just(Step::Truncate),
            member.clone().prop_map(Step::State),
            member.clone().prop_map(Step::Acknowledge),
            member.clone().prop_map(Step::Send),
            (member, any::<prop::sample::Index>()).prop_map(|(to, which)| Step::Arrive(to, which)),
        ]
    }

    #[derive(Clone, Copy)]
    struct Disk {
        starts: u64,
        term: u64,
        last: LogId,
        committed: LogId,
    }

    impl Disk {
        fn life(&self) -> Life {
            Life { start: self.starts, id: [7; 16], vote: Some(leader(self.term)), end: Some(self.last) }
        }
    }

    /// Every content that the disk had, and the memories of the two members.
    fn play(steps: &[Step]) -> (Vec<Disk>, [Memory; 2]) {
        let mut disk = Disk { starts: 1, term: 1, last: entry(1, 0), committed: entry(1, 0) };
        let mut now = disk.life();
        let mut members = [Memory::new(now); 2];
        let (mut sent, mut copies) = (Vec::new(), vec![disk]);
        for step in steps {
            match step {
                Step::Restart => {
                    disk.starts += 1;
                    now = disk.life();
                }
                Step::Vote => disk.term += 1,
                Step::Append => disk.last = entry(disk.term, disk.last.index + 1),
                Step::Commit => disk.committed = disk.last,
                Step::Truncate => disk.last = disk.committed,
                Step::State(to) => members[*to].take(&now).expect("a healthy disk"),
                Step::Acknowledge(to) => {
                    members[*to].take(&now).expect("a healthy disk");
                    members[*to].vote = members[*to].vote.max(Some(leader(disk.term)));
                    members[*to].held = members[*to].held.max(Some(disk.committed));
                }
                Step::Send(from) => sent.push(members[*from]),
                Step::Arrive(to, which) if !sent.is_empty() => members[*to].merge(which.get(&sent)),
                Step::Arrive(..) => {}
            }
            copies.push(disk);
        }
        (copies, members)
    }

    proptest! {
        #[test]
        fn healthy_disk_is_never_refused(steps in prop::collection::vec(step(), 0..60)) {
            let (copies, members) = play(&steps);
            let mut last = *copies.last().expect("one");
            last.starts += 1;
            for member in members {
                prop_assert_eq!(member.judge(&last.life()), Ok(()));
            }
        }

        #[test]
        fn copy_without_a_known_fact_is_refused(
            steps in prop::collection::vec(step(), 0..60),
            which in any::<prop::sample::Index>(),
        ) {
            let (copies, members) = play(&steps);
            let mut copy = *which.get(&copies);
            copy.starts += 1;
            let restored = Life { id: [8; 16], ..copy.life() };
            for member in members {
                let lacks = restored.start <= member.life.start
                    || restored.vote < member.vote
                    || restored.end < member.held;
                prop_assert_eq!(member.judge(&restored).is_err(), lacks);
            }
        }
    }
}
