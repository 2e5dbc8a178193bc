//! Rollback detection: the rules that decide whether a member's disk was replaced by an older copy or by a copy. Pure:
//! no disk, no network, no clock.
//!
//! A process states its [`Life`]: the content of its disk at its start. The statement does not change while the process
//! runs, so late and reordered messages are harmless. A [`DiskRecord`] holds facts that processes on the disk
//! acknowledged at the recorded start or an earlier one. A process with a later start must therefore have found all of
//! them; within one start a disk cannot be rolled back.

use super::type_config::{LeaderId, LogId};
use crate::breaks::{self, Break};

/// Node id and disk identity.
pub(crate) type DiskKey = (u64, [u8; 16]);

/// One start of a process on a disk, and the content of the disk at that start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    /// Number of the start on this disk, from 1. Durable before the first call.
    pub(crate) start: u64,
    /// Drawn at the start and stored with its number: distinguishes two copies of one disk.
    pub(crate) id: [u8; 16],
    pub(crate) vote: Option<LeaderId>,
    /// The last log entry, or the last entry of the installed state if that is later.
    pub(crate) end: Option<LogId>,
}

/// Facts that a member records durably about another member's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskRecord {
    /// The life with the greatest start number.
    pub(crate) life: Life,
    /// The greatest vote that the member granted or followed; pre-votes do not count.
    pub(crate) vote: Option<LeaderId>,
    /// The last committed entry that it acknowledged. Uncommitted entries do not count: a leader may replace them.
    pub(crate) held: Option<LogId>,
    /// The committed entry of its log that differs from the leader's entry at that index.
    pub(crate) contradiction: Option<LogId>,
}

/// Reason to reject a process: its disk is not the recorded one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DiskRollback {
    /// A later start is recorded.
    #[error("the disk was rolled back: its start number is {stated}, and start {known} is recorded")]
    Start {
        /// The recorded start.
        known: u64,
        /// The start of the process.
        stated: u64,
    },
    /// Another process is recorded with the same start number.
    #[error("the disk was copied: another process is recorded as start {0}")]
    Copied(u64),
    /// A recorded vote is missing on the disk.
    #[error("the disk was rolled back: it granted vote {known}, and its vote is {}", shown(stated.as_ref()))]
    Vote {
        /// The recorded vote.
        known: LeaderId,
        /// The vote on the disk.
        stated: Option<LeaderId>,
    },
    /// A recorded committed entry is missing on the disk.
    #[error("the disk was rolled back: it acknowledged committed entry {known}, and its log ends at {}", shown(stated.as_ref()))]
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

impl DiskRecord {
    /// Record of a disk without acknowledged facts.
    pub(crate) fn new(life: Life) -> Self {
        Self { life, vote: None, held: None, contradiction: None }
    }

    /// Checks that a process with this life can succeed the recorded one.
    pub(crate) fn verify_life(&self, life: &Life) -> Result<(), DiskRollback> {
        let Life { start: stated, id, vote, end } = *life;
        let known = self.life.start;
        if breaks::active(Break::AcceptSetBackDisk) {
            return Ok(());
        }
        if stated < known {
            return Err(DiskRollback::Start { known, stated });
        }
        if stated == known {
            return if id == self.life.id { Ok(()) } else { Err(DiskRollback::Copied(known)) };
        }
        match (self.vote, self.held) {
            (Some(known), _) if vote < Some(known) => Err(DiskRollback::Vote { known, stated: vote }),
            (_, Some(known)) if end < Some(known) => Err(DiskRollback::End { known, stated: end }),
            _ => Ok(()),
        }
    }

    /// Verifies a life and records it. A rejected life is not recorded.
    pub(crate) fn record_life(&mut self, life: &Life) -> Result<(), DiskRollback> {
        self.verify_life(life)?;
        self.life = *life;
        Ok(())
    }

    /// Merges another member's record of the same disk. A start that contradicts the facts of an earlier one is not
    /// recorded, so that its process is rejected from now on.
    pub(crate) fn merge(&mut self, other: &Self) {
        let (older, newer) =
            if self.life.start <= other.life.start { (*self, *other) } else { (*other, *self) };
        *self = Self {
            life: if older.verify_life(&newer.life).is_ok() { newer.life } else { older.life },
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

    fn memory() -> DiskRecord {
        DiskRecord { vote: Some(leader(3)), held: Some(entry(3, 9)), ..DiskRecord::new(life(5, 2, 4)) }
    }

    #[test]
    fn next_start_with_all_acknowledged_facts_is_accepted() {
        assert_eq!(memory().verify_life(&life(6, 3, 9)), Ok(()));
        assert_eq!(
            memory().verify_life(&life(8, 4, 2)),
            Ok(()),
            "a later term ends later, whatever the index"
        );
    }

    /// At its start the disk held less than it acknowledged since.
    #[test]
    fn same_process_is_accepted_after_it_acknowledged_more() {
        assert_eq!(memory().verify_life(&life(5, 2, 4)), Ok(()));
    }

    #[test]
    fn each_missing_fact_is_rejected_with_its_reason() {
        let known = memory();
        assert_eq!(known.verify_life(&life(4, 9, 9)), Err(DiskRollback::Start { known: 5, stated: 4 }));
        assert_eq!(known.verify_life(&Life { id: [8; 16], ..life(5, 9, 9) }), Err(DiskRollback::Copied(5)));
        let stated = Some(leader(2));
        let refused = known.verify_life(&Life { vote: stated, ..life(6, 3, 9) });
        assert_eq!(refused, Err(DiskRollback::Vote { known: leader(3), stated }));
        let refused = known.verify_life(&life(6, 3, 8));
        assert_eq!(refused, Err(DiskRollback::End { known: entry(3, 9), stated: Some(entry(3, 8)) }));
        let blank = Life { vote: None, end: None, ..life(6, 0, 0) };
        assert!(matches!(known.verify_life(&blank), Err(DiskRollback::Vote { stated: None, .. })));
        let unknown_vote = DiskRecord { vote: None, ..known };
        assert!(matches!(unknown_vote.verify_life(&blank), Err(DiskRollback::End { stated: None, .. })));
    }

    #[test]
    fn rejected_life_is_not_recorded() {
        let mut known = memory();
        known.record_life(&life(6, 3, 8)).expect_err("set back");
        assert_eq!(known, memory());
        known.record_life(&life(6, 3, 9)).expect("the disk itself");
        known.record_life(&Life { id: [8; 16], ..life(6, 3, 9) }).expect_err("a copy");
    }

    /// A leader without the record accepts the older copy; its gossip must not overwrite the facts of other members.
    #[test]
    fn merged_record_of_a_rolled_back_disk_keeps_the_facts() {
        let rolled_back = life(6, 3, 8);
        let mut informed = memory();
        informed.merge(&DiskRecord::new(rolled_back));
        assert!(matches!(informed.verify_life(&rolled_back), Err(DiskRollback::End { .. })));
        // The other order: the facts arrive after the process was accepted.
        let mut accepted = DiskRecord::new(rolled_back);
        accepted.merge(&memory());
        assert!(matches!(accepted.verify_life(&rolled_back), Err(DiskRollback::End { .. })));
    }

    /// Events on a healthy disk, and between two members that record it.
    #[derive(Clone, Debug)]
    enum Step {
        Restart,
        Vote,
        Append,
        Commit,
        Truncate,
        /// The process states its life to a member.
        State(usize),
        /// A member learns a committed fact that the process acknowledged.
        Acknowledge(usize),
        /// A member sends its record.
        Send(usize),
        /// One of the records ever sent arrives, possibly late.
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

    /// Every content that the disk had, and the records of the two members.
    fn play(steps: &[Step]) -> (Vec<Disk>, [DiskRecord; 2]) {
        let mut disk = Disk { starts: 1, term: 1, last: entry(1, 0), committed: entry(1, 0) };
        let mut now = disk.life();
        let mut members = [DiskRecord::new(now); 2];
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
                Step::State(to) => members[*to].record_life(&now).expect("a healthy disk"),
                Step::Acknowledge(to) => {
                    members[*to].record_life(&now).expect("a healthy disk");
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
        fn healthy_disk_is_never_rejected(steps in prop::collection::vec(step(), 0..60)) {
            let (copies, members) = play(&steps);
            let mut last = *copies.last().expect("one");
            last.starts += 1;
            for member in members {
                prop_assert_eq!(member.verify_life(&last.life()), Ok(()));
            }
        }

        #[test]
        fn copy_without_a_recorded_fact_is_rejected(
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
                prop_assert_eq!(member.verify_life(&restored).is_err(), lacks);
            }
        }
    }
}
