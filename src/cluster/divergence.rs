//! Disputes about the state: another member has another state hash at the same log index.
//!
//! The hash covers all writes up to its index, so one of the two has applied something else. Which one is decided by the
//! voters' hashes (`divergence_task`). Meanwhile this node proves no freshness and applies no entry after the index: it
//! answers nothing from a state that may be wrong. An open dispute is stored, so that a restart does not end it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rocksdb::DB;
use tokio::sync::watch;

use super::Corrupt;
use super::apply::database::StateHash;
use super::log::{DISPUTE, read_meta, write_meta};
use crate::limits;

/// Decision about a dispute, by the state hashes of the voters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A majority of the voters has the hash of this node.
    Agreed,
    /// A majority of the voters has another one: this node has diverged.
    Diverged,
    /// No hash can reach a majority, whatever the missing voters answer.
    NoMajority,
    /// The same, because voters no longer retain their hash at the index.
    Unretained,
    /// More answers are needed.
    Open,
}

/// Answer of a voter about its state hash at an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Hash(StateHash),
    /// It applied the index, and does not retain the hash.
    Unretained,
}

/// Decides by the hash of this node and the answers of the other voters, `None` for one that has not answered, or has not
/// applied the index yet.
pub(crate) fn decide(ours: StateHash, is_voter: bool, others: &[Option<Answer>]) -> Verdict {
    let voters = others.len() + usize::from(is_voter);
    let count = |hash: StateHash| {
        let same = others.iter().filter(|other| **other == Some(Answer::Hash(hash))).count();
        same + usize::from(is_voter && hash == ours)
    };
    let theirs = others.iter().filter_map(|other| match other {
        Some(Answer::Hash(hash)) => Some(count(*hash)),
        _ => None,
    });
    let most = theirs.max().unwrap_or_default().max(count(ours));
    let missing = others.iter().filter(|other| other.is_none()).count();
    let is_majority = |count: usize| count > voters / 2;
    if voters == 0 {
        // The membership is not known yet.
        Verdict::Open
    } else if is_majority(count(ours)) {
        Verdict::Agreed
    } else if is_majority(most) {
        Verdict::Diverged
    } else if is_majority(most + missing) {
        Verdict::Open
    } else if others.contains(&Some(Answer::Unretained)) {
        Verdict::Unretained
    } else {
        Verdict::NoMajority
    }
}

/// The open dispute of this node, if there is one.
pub(crate) struct Divergence {
    disputes: watch::Sender<Disputes>,
    /// Whether a dispute is open, for every request.
    is_open: Arc<AtomicBool>,
    /// Database of the log.
    database: Arc<DB>,
}

/// Known facts about disputes.
#[derive(Debug, Default)]
pub(crate) struct Disputes {
    /// Log index of the open one.
    open: Option<u64>,
    /// A majority had the hash of this node at this index, and so at every smaller one.
    agreed: u64,
    /// Members that stated another hash than this node's during the open dispute, with the index.
    contradicting: BTreeMap<u64, u64>,
    /// Members whose hash a majority contradicted. They open no further dispute: each costs writes to the disk.
    outvoted: BTreeSet<u64>,
}

impl Disputes {
    /// Whether a snapshot that ends at `last` may be sent: its state is not in dispute.
    pub(crate) fn may_spread(&self, last: u64) -> bool {
        self.open.is_none() || last <= self.agreed
    }
}

impl Divergence {
    /// Reads the dispute that was open when the process ended.
    pub(crate) fn open(database: Arc<DB>) -> Result<Self, Corrupt> {
        let open =
            match read_meta(&database, DISPUTE)? {
                Some(row) if !row.is_empty() => {
                    let index = row.try_into().map(u64::from_be_bytes);
                    Some(index.map_err(|_| {
                        Corrupt::new(database.path(), "the index of a dispute is not 8 bytes")
                    })?)
                }
                _ => None,
            };
        Ok(Self::with(Disputes { open, ..Disputes::default() }, database))
    }

    /// Regards the state of this node as right, as an operator decided. Nothing is stored.
    pub(crate) fn decided(database: Arc<DB>) -> Self {
        Self::with(Disputes { agreed: u64::MAX, ..Disputes::default() }, database)
    }

    fn with(disputes: Disputes, database: Arc<DB>) -> Self {
        let is_open = Arc::new(AtomicBool::new(disputes.open.is_some()));
        Self { disputes: watch::Sender::new(disputes), is_open, database }
    }

    /// Records that another member has another hash at `index`, as the log or the call of member `by` states. Returns
    /// whether the state up to there is in dispute: not if a majority was found to have the hash of this node, and not
    /// by the word of a member that was outvoted.
    pub(crate) fn report(&self, index: u64, by: Option<u64>) -> bool {
        let mut is_disputed = false;
        let is_new = self.disputes.send_if_modified(|disputes| {
            is_disputed = index > disputes.agreed && by.is_none_or(|by| !disputes.outvoted.contains(&by));
            if !is_disputed {
                return false;
            }
            if let Some(by) = by {
                let first = disputes.contradicting.entry(by).or_insert(index);
                *first = index.min(*first);
                while disputes.contradicting.len() > limits::MEMBERS_MAX {
                    disputes.contradicting.pop_first();
                }
            }
            let is_new = disputes.open.is_none();
            if is_new {
                disputes.open = Some(index);
                self.is_open.store(true, Ordering::Release);
            }
            is_new
        });
        if is_new {
            tracing::error!(
                index,
                by,
                "state of a member differs from this node's: this node answers nothing until that is decided"
            );
            self.store(&index.to_be_bytes());
        }
        is_disputed
    }

    /// A majority has the hash of this node at `index`: the state up to there is not in dispute. An open dispute about a
    /// later index stays open.
    pub(crate) fn agree(&self, index: u64) {
        self.disputes.send_modify(|disputes| disputes.agreed = disputes.agreed.max(index));
    }

    /// Ends a dispute: a majority has the hash of this node at `index`.
    pub(crate) fn settle(&self, index: u64) {
        self.store(&[]);
        self.disputes.send_modify(|disputes| {
            disputes.agreed = disputes.agreed.max(index);
            disputes.open = None;
            let contradicting = std::mem::take(&mut disputes.contradicting).into_iter();
            disputes.outvoted.extend(contradicting.filter(|(_, at)| *at <= index).map(|(member, _)| member));
            // Node ids grow: the smallest belong to members that were replaced.
            while disputes.outvoted.len() > limits::MEMBERS_MAX {
                disputes.outvoted.pop_first();
            }
            self.is_open.store(false, Ordering::Release);
        });
        tracing::info!(index, "a majority of the voters has the state of this node");
    }

    fn store(&self, row: &[u8]) {
        if let Err(error) = write_meta(&self.database, DISPUTE, row) {
            tracing::error!(%error, "failed to store the dispute about the state");
        }
    }

    /// Index of the open dispute.
    pub(crate) fn disputed(&self) -> Option<u64> {
        self.disputes.borrow().open
    }

    /// Whether a dispute is open, for every request.
    pub(crate) fn is_open(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_open)
    }

    /// The known facts, for every snapshot that is sent.
    pub(crate) fn watch(&self) -> watch::Receiver<Disputes> {
        self.disputes.subscribe()
    }

    /// Whether entry `index` may be applied: the state before it is not in dispute. A node that lags reaches the disputed
    /// index, so that it has a hash there.
    pub(crate) fn may_apply(&self, index: u64) -> bool {
        self.disputed().is_none_or(|disputed| index <= disputed)
    }

    /// Whether a majority is known to have the hash of this node at `index`.
    pub(crate) fn is_agreed(&self, index: u64) -> bool {
        index <= self.disputes.borrow().agreed
    }

    /// Waits for a dispute.
    pub(crate) async fn until_disputed(&self) -> u64 {
        let mut disputes = self.disputes.subscribe();
        loop {
            if let Some(index) = disputes.borrow_and_update().open {
                return index;
            }
            // The change cannot fail: this value holds the sender.
            drop(disputes.changed().await);
        }
    }

    /// Waits until no dispute is open.
    pub(crate) async fn until_settled(&self) {
        // The wait cannot fail: this value holds the sender.
        drop(self.disputes.subscribe().wait_for(|disputes| disputes.open.is_none()).await);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::cluster::log::open_database;

    const OURS: StateHash = [1; 32];
    const A: Option<Answer> = Some(Answer::Hash(OURS));
    const B: Option<Answer> = Some(Answer::Hash([2; 32]));
    const C: Option<Answer> = Some(Answer::Hash([3; 32]));
    /// Not retained.
    const G: Option<Answer> = Some(Answer::Unretained);

    #[test]
    fn majority_of_the_voters_decides() {
        use Verdict::{Agreed, Diverged, NoMajority, Open};
        for (is_voter, others, expected) in [
            (true, vec![], Agreed),
            (false, vec![], Open),
            (true, vec![A, B], Agreed),
            (true, vec![A, None], Agreed),
            (true, vec![B, B], Diverged),
            (true, vec![B, None], Open),
            (true, vec![None, None], Open),
            (true, vec![B], NoMajority),
            (true, vec![None], Open),
            (true, vec![B, C], NoMajority),
            (true, vec![A, B, B], NoMajority),
            (true, vec![A, B, B, None], Open),
            (true, vec![B, B, B, None], Diverged),
            // The missing voter cannot make three of five.
            (true, vec![B, C, Some(Answer::Hash([4; 32])), None], NoMajority),
            // A learner does not count.
            (false, vec![A, B], NoMajority),
            (false, vec![A, A, None], Agreed),
            (false, vec![B, B, A], Diverged),
            (false, vec![B], Diverged),
        ] {
            assert_eq!(decide(OURS, is_voter, &others), expected, "{is_voter} {others:?}");
        }
    }

    #[test]
    fn unretained_hashes_decide_nothing() {
        use Verdict::{Agreed, Diverged, Open, Unretained};
        for (is_voter, others, expected) in [
            (true, vec![G, G], Unretained),
            (true, vec![G, B], Unretained),
            (true, vec![G], Unretained),
            (false, vec![G], Unretained),
            (true, vec![G, A], Agreed),
            // The missing voter may have it, and make a majority.
            (true, vec![G, None], Open),
            (true, vec![G, G, B, None], Unretained),
            (true, vec![G, G, None, None], Open),
            (true, vec![G, B, B, B], Diverged),
        ] {
            assert_eq!(decide(OURS, is_voter, &others), expected, "{is_voter} {others:?}");
        }
    }

    fn open(directory: &tempfile::TempDir) -> Divergence {
        let database = open_database(&directory.path().join("raft")).expect("log");
        Divergence::open(Arc::new(database)).expect("readable")
    }

    #[test]
    fn open_dispute_stops_later_entries_until_settled() {
        let directory = tempfile::tempdir().expect("directory");
        let divergence = open(&directory);
        assert!(divergence.may_apply(u64::MAX));
        assert!(divergence.until_settled().now_or_never().is_some());
        assert!(divergence.report(20, None) && divergence.report(30, None));
        assert!(divergence.may_apply(20), "a node that lags must reach the disputed index");
        assert!(!divergence.may_apply(21) && divergence.until_settled().now_or_never().is_none());
        assert_eq!(divergence.until_disputed().now_or_never(), Some(20));
        divergence.settle(20);
        assert!(divergence.may_apply(21) && !divergence.report(20, None) && divergence.disputed().is_none());
        assert!(divergence.report(21, None), "later divergence");
    }

    #[test]
    fn only_a_state_that_is_agreed_spreads_in_a_dispute() {
        let directory = tempfile::tempdir().expect("directory");
        let divergence = open(&directory);
        let may_spread = |last| divergence.watch().borrow().may_spread(last);
        assert!(may_spread(u64::MAX));
        divergence.report(20, None);
        assert!(!may_spread(1));
        divergence.agree(10);
        assert!(may_spread(10) && !may_spread(11) && divergence.is_agreed(10) && !divergence.is_agreed(11));
        assert_eq!(divergence.disputed(), Some(20), "it stays open");
        divergence.settle(20);
        assert!(may_spread(u64::MAX));
    }

    /// Each dispute costs two synced writes, and such a member could open one at every retained index.
    #[test]
    fn outvoted_member_opens_no_further_dispute() {
        let directory = tempfile::tempdir().expect("directory");
        let divergence = open(&directory);
        assert!(divergence.report(20, Some(3)) && divergence.report(40, Some(4)));
        divergence.settle(30);
        assert!(!divergence.report(50, Some(3)), "outvoted at 20");
        assert_eq!(divergence.disputed(), None);
        assert!(divergence.report(50, Some(4)), "nothing was decided about 40");
        divergence.settle(60);
        assert!(!divergence.report(70, Some(4)));
        assert!(divergence.report(70, None), "the log states it");
        assert!(divergence.report(80, Some(5)), "another member");
        divergence.settle(90);
        // Bounded: the smallest ids are forgotten first.
        let members = limits::MEMBERS_MAX as u64;
        for (member, index) in (100..100 + members).zip(100..) {
            assert!(divergence.report(index, Some(member)));
            divergence.settle(index);
        }
        assert_eq!(divergence.disputes.borrow().outvoted.len(), limits::MEMBERS_MAX);
        assert!(!divergence.report(500, Some(100)) && divergence.report(500, Some(3)));
        for member in 0..2 * members {
            divergence.report(500, Some(1_000 + member));
        }
        assert_eq!(divergence.disputes.borrow().contradicting.len(), limits::MEMBERS_MAX);
    }

    #[test]
    fn open_dispute_survives_a_restart() {
        let directory = tempfile::tempdir().expect("directory");
        assert!(open(&directory).report(20, None));
        let again = open(&directory);
        assert!(again.disputed() == Some(20) && again.is_open().load(Ordering::Acquire));
        again.settle(20);
        drop(again);
        assert_eq!(open(&directory).disputed(), None);
    }

    #[test]
    fn operator_decides_a_dispute_without_a_vote() {
        let directory = tempfile::tempdir().expect("directory");
        assert!(open(&directory).report(20, None));
        let database = open_database(&directory.path().join("raft")).expect("log");
        let decided = Divergence::decided(Arc::new(database));
        assert!(decided.disputed().is_none() && !decided.report(20, None) && decided.may_apply(u64::MAX));
        drop(decided);
        assert_eq!(open(&directory).disputed(), Some(20), "until the new cluster is created");
    }
}
