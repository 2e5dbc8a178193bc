//! How large the log is, and what keeps it from growing without end.
//!
//! The library counts entries: it keeps half a million behind a snapshot, so that a follower catches up from
//! the log. Entries may be large (audit blocks, policies), so that bytes are counted here, and what is
//! beyond the limit is cut off behind a snapshot.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::watch;

use crate::cluster::Machine;
use crate::cluster::propose::Raft;

/// Entries are counted together until they have this part of the limit.
const RUNS: u64 = 128;

/// How long a snapshot may take until it is asked for again.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(60);

/// Entries that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    last: u64,
    bytes: u64,
}

/// The sizes of the log's entries, as those of some hundred runs of them.
#[derive(Clone, Debug)]
pub struct LogSize {
    runs: VecDeque<Run>,
    bytes: u64,
    most: u64,
}

impl LogSize {
    /// Of an empty log that may have `most` bytes.
    #[must_use]
    pub const fn new(most: u64) -> Self {
        Self { runs: VecDeque::new(), bytes: 0, most }
    }

    /// Counts one more entry.
    pub fn append(&mut self, index: u64, bytes: usize) {
        let bytes = bytes as u64;
        self.bytes += bytes;
        match self.runs.back_mut() {
            Some(run) if run.bytes < self.most / RUNS => *run = Run { last: index, bytes: run.bytes + bytes },
            _ => self.runs.push_back(Run { last: index, bytes }),
        }
    }

    /// The entries from `first` on are gone. A run that is cut goes on being counted whole.
    pub fn truncate(&mut self, first: u64) {
        while let Some(run) = self.runs.pop_back() {
            let begins_before = self.runs.back().map_or(0, |before| before.last + 1) < first;
            if begins_before {
                self.runs.push_back(Run { last: run.last.min(first.saturating_sub(1)), ..run });
                return;
            }
            self.bytes -= run.bytes;
        }
    }

    /// The entries up to `last` are gone. A run that is cut goes on being counted whole.
    pub fn purge(&mut self, last: u64) {
        while let Some(run) = self.runs.front().copied().filter(|run| run.last <= last) {
            self.bytes -= run.bytes;
            self.runs.pop_front();
        }
    }

    /// Up to which entry the log is to be cut, if it is larger than its limit: half of that then stays.
    #[must_use]
    pub fn surplus(&self) -> Option<u64> {
        if self.bytes <= self.most {
            return None;
        }
        let mut left = self.bytes;
        let cut = self.runs.iter().take_while(|run| {
            let is_too_much = left > self.most / 2;
            left -= run.bytes;
            is_too_much
        });
        cut.last().map(|run| run.last)
    }
}

/// Cuts the log whenever `surplus` says so. Ends with the log.
pub async fn keep_within_limit<M: Machine>(raft: Raft<M>, mut surplus: watch::Receiver<Option<u64>>) {
    while surplus.changed().await.is_ok() {
        let Some(upto) = *surplus.borrow_and_update() else { continue };
        let cut = async {
            // No further append may come to repeat the request, so that this one waits until the entry is applied.
            let applied = raft.wait(Some(SNAPSHOT_WAIT)).applied_index_at_least(Some(upto), "applied").await;
            let metrics = applied.map_err(|error| error.to_string())?;
            if metrics.snapshot.is_none_or(|snapshot| snapshot.index < upto) {
                raft.trigger().snapshot().await.map_err(|error| error.to_string())?;
                let covers = |index: Option<u64>| index >= Some(upto);
                let taken = raft.wait(Some(SNAPSHOT_WAIT));
                let taken = taken.metrics(|now| covers(now.snapshot.map(|id| id.index)), "a snapshot").await;
                taken.map_err(|error| error.to_string())?;
            }
            raft.trigger().purge_log(upto).await.map_err(|error| error.to_string())
        };
        if let Err(error) = cut.await {
            tracing::warn!(error, upto, "cut the log, which is larger than its limit");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 128 * 1024;
    const RUN_BYTES: u64 = MOST / RUNS;

    fn with(entries: u64, bytes: u64) -> LogSize {
        let mut size = LogSize::new(MOST);
        for index in 1..=entries {
            size.append(index, usize::try_from(bytes).expect("fits"));
        }
        size
    }

    #[test]
    fn a_log_at_its_limit_is_left_alone_and_one_beyond_it_is_cut_to_half() {
        let mut size = with(RUNS, RUN_BYTES);
        assert_eq!((size.bytes, size.surplus()), (MOST, None));
        size.append(RUNS + 1, 1);
        let upto = size.surplus().expect("too large");
        assert_eq!(upto, RUNS / 2 + 1);
        size.purge(upto);
        assert_eq!(size.surplus(), None);
        assert!(size.bytes <= MOST / 2 && size.bytes > MOST / 4, "{}", size.bytes);
    }

    #[test]
    fn small_entries_are_counted_together_and_so_few_numbers_are_kept() {
        let size = with(RUN_BYTES * 10, 1);
        assert_eq!((size.bytes, size.runs.len()), (RUN_BYTES * 10, 10));
    }

    #[test]
    fn entries_that_were_truncated_are_not_counted_and_their_indexes_come_again() {
        let mut size = with(10, RUN_BYTES);
        size.truncate(6);
        assert_eq!((size.bytes, size.runs.len()), (5 * RUN_BYTES, 5));
        size.append(6, 7);
        assert_eq!(size.bytes, 5 * RUN_BYTES + 7);
        size.truncate(0);
        assert_eq!((size.bytes, size.runs.len()), (0, 0));
        // In the middle of a run it is still counted, and not beyond its end.
        let mut size = with(99, RUN_BYTES / 10);
        let whole = size.bytes;
        size.truncate(96);
        assert_eq!(size.runs.back().map(|run| run.last), Some(95));
        assert_eq!(size.bytes, whole);
        size.purge(95);
        assert_eq!(size.bytes, 0);
    }
}
