//! Disputes about the state: another member has another state hash at the same log index.
//!
//! The hash covers all writes up to its index, so one of the two has applied something else. Which one is decided by the
//! voters' hashes (`divergence_task`). Meanwhile this node proves no freshness and applies no entry after the index: it
//! answers nothing from a state that may be wrong. An open dispute is stored, so that a restart does not end it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rocksdb::DB;
use tokio::sync::watch;

use super::Corrupt;
use super::apply::database::StateHash;
use super::log::{DISPUTE, read_meta, write_meta};

/// Decision about a dispute, by the state hashes of the voters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A majority of the voters has the hash of this node.
    Agreed,
    /// A majority of the voters has another one: this node has diverged.
    Diverged,
    /// Every voter has answered, and no majority has the same.
    NoMajority,
    /// More answers are needed.
    Open,
}

/// Decides by the hash of this node and those of the other voters, `None` for one that has not answered.
pub(crate) fn decide(ours: StateHash, is_voter: bool, others: &[Option<StateHash>]) -> Verdict {
    let mut voters = others.to_vec();
    voters.extend(is_voter.then_some(Some(ours)));
    let has_majority =
        |hash: StateHash| voters.iter().filter(|voter| **voter == Some(hash)).count() > voters.len() / 2;
    if voters.is_empty() {
        // The membership is not known yet.
        Verdict::Open
    } else if has_majority(ours) {
        Verdict::Agreed
    } else if others.iter().flatten().any(|hash| has_majority(*hash)) {
        Verdict::Diverged
    } else if others.iter().all(Option::is_some) {
        Verdict::NoMajority
    } else {
        Verdict::Open
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

#[derive(Clone, Copy, Debug, Default)]
struct Disputes {
    /// Log index of the open one.
    open: Option<u64>,
    /// A majority had the hash of this node at this index, and so at every smaller one.
    agreed: u64,
    /// The node stops.
    is_closed: bool,
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
        let disputes = watch::Sender::new(Disputes { open, ..Disputes::default() });
        Ok(Self { disputes, is_open: Arc::new(AtomicBool::new(open.is_some())), database })
    }

    /// Records that another member has another hash at `index`. Returns whether the state up to there is in dispute:
    /// not if a majority was found to have the hash of this node.
    pub(crate) fn report(&self, index: u64) -> bool {
        let mut is_disputed = false;
        let is_new = self.disputes.send_if_modified(|disputes| {
            is_disputed = index > disputes.agreed;
            let is_new = is_disputed && disputes.open.is_none();
            if is_new {
                disputes.open = Some(index);
                self.is_open.store(true, Ordering::Release);
            }
            is_new
        });
        if is_new {
            tracing::error!(
                index,
                "state of a member differs from this node's: it answers nothing until decided"
            );
            self.store(&index.to_be_bytes());
        }
        is_disputed
    }

    /// Ends a dispute: a majority has the hash of this node at `index`.
    pub(crate) fn settle(&self, index: u64) {
        self.store(&[]);
        self.disputes.send_modify(|disputes| {
            disputes.agreed = disputes.agreed.max(index);
            disputes.open = None;
            self.is_open.store(false, Ordering::Release);
        });
        tracing::info!(index, "a majority of the voters has the state of this node");
    }

    /// Ends the waits of the applier, because the node stops.
    pub(crate) fn close(&self) {
        self.disputes.send_modify(|disputes| disputes.is_closed = true);
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

    /// Waits until the state before entry `index` is not in dispute.
    ///
    /// # Errors
    /// If the node stops first.
    pub(crate) async fn until_agreed(&self, index: u64) -> io::Result<()> {
        let mut disputes = self.disputes.subscribe();
        let may_apply = |disputes: &Disputes| disputes.open.is_none_or(|disputed| index <= disputed);
        match disputes.wait_for(|disputes| disputes.is_closed || may_apply(disputes)).await {
            Ok(disputes) if may_apply(&disputes) => Ok(()),
            _ => Err(io::Error::other("this node stops while its state is in dispute")),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::cluster::log::open_database;

    const A: StateHash = [1; 32];
    const B: StateHash = [2; 32];
    const C: StateHash = [3; 32];

    #[test]
    fn majority_of_the_voters_decides() {
        use Verdict::{Agreed, Diverged, NoMajority, Open};
        for (is_voter, others, expected) in [
            (true, vec![], Agreed),
            (false, vec![], Open),
            (true, vec![Some(A), Some(B)], Agreed),
            (true, vec![Some(A), None], Agreed),
            (true, vec![Some(B), Some(B)], Diverged),
            (true, vec![Some(B), None], Open),
            (true, vec![None, None], Open),
            (true, vec![Some(B)], NoMajority),
            (true, vec![None], Open),
            (true, vec![Some(B), Some(C)], NoMajority),
            (true, vec![Some(A), Some(B), Some(B)], NoMajority),
            (true, vec![Some(A), Some(B), Some(B), None], Open),
            (true, vec![Some(B), Some(B), Some(B), None], Diverged),
            // A learner does not count.
            (false, vec![Some(A), Some(B)], NoMajority),
            (false, vec![Some(A), Some(A), None], Agreed),
            (false, vec![Some(B), Some(B), Some(A)], Diverged),
            (false, vec![Some(B)], Diverged),
        ] {
            assert_eq!(decide(A, is_voter, &others), expected, "{is_voter} {others:?}");
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
        let may_apply =
            |index| divergence.until_agreed(index).now_or_never().is_some_and(|agreed| agreed.is_ok());
        assert!(may_apply(u64::MAX));
        assert!(divergence.report(20) && divergence.report(30));
        assert!(may_apply(20), "a node that lags must reach the disputed index");
        assert!(!may_apply(21));
        assert_eq!(divergence.until_disputed().now_or_never(), Some(20));
        divergence.settle(20);
        assert!(may_apply(21) && !divergence.report(20) && divergence.disputed().is_none());
        assert!(divergence.report(21), "later divergence");
        divergence.close();
        assert!(divergence.until_agreed(22).now_or_never().is_some_and(|agreed| agreed.is_err()));
    }

    #[test]
    fn open_dispute_survives_a_restart() {
        let directory = tempfile::tempdir().expect("directory");
        assert!(open(&directory).report(20));
        let again = open(&directory);
        assert!(again.disputed() == Some(20) && again.is_open().load(Ordering::Acquire));
        again.settle(20);
        drop(again);
        assert_eq!(open(&directory).disputed(), None);
    }
}
