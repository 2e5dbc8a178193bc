//! Size of the log, and the purge that bounds it.
//!
//! openraft counts entries: it retains half a million after a snapshot, so that followers can catch up from the log.
//! Entries may be large (audit blocks, policies), so bytes are counted here, and the excess is purged after a snapshot.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::watch;

use crate::cluster::{Machine, Raft};

/// A run grows until it has this fraction of the limit.
const RUNS: u64 = 128;

/// Timeout of one purge step.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(60);

/// Consecutive entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    last: u64,
    bytes: u64,
}

/// Sizes of the log entries, summed in about a hundred runs.
#[derive(Clone, Debug)]
pub(crate) struct LogSize {
    runs: VecDeque<Run>,
    bytes: u64,
    most: u64,
}

impl LogSize {
    /// An empty log with a limit of `most` bytes.
    pub(crate) const fn new(most: u64) -> Self {
        Self { runs: VecDeque::new(), bytes: 0, most }
    }

    /// Counts an appended entry.
    pub(crate) fn append(&mut self, index: u64, bytes: usize) {
        let bytes = bytes as u64;
        self.bytes += bytes;
        match self.runs.back_mut() {
            Some(run) if run.bytes < self.most / RUNS => *run = Run { last: index, bytes: run.bytes + bytes },
            _ => self.runs.push_back(Run { last: index, bytes }),
        }
    }

    /// The log was truncated from `first` on. A run that is only partly removed keeps its size.
    pub(crate) fn truncate(&mut self, first: u64) {
        while let Some(run) = self.runs.pop_back() {
            let begins_before = self.runs.back().map_or(0, |before| before.last + 1) < first;
            if begins_before {
                self.runs.push_back(Run { last: run.last.min(first.saturating_sub(1)), ..run });
                return;
            }
            self.bytes -= run.bytes;
        }
    }

    /// The log was purged up to `last`. A run that is only partly removed keeps its size.
    pub(crate) fn purge(&mut self, last: u64) {
        while let Some(run) = self.runs.front().copied().filter(|run| run.last <= last) {
            self.bytes -= run.bytes;
            self.runs.pop_front();
        }
    }

    /// Index up to which the log is to be purged, if it exceeds its limit: half of the limit remains.
    pub(crate) fn surplus(&self) -> Option<u64> {
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

/// Purges the log up to each index that `surplus` reports. Ends with the log.
pub(crate) async fn keep_within_limit<M: Machine>(raft: Raft<M>, mut surplus: watch::Receiver<Option<u64>>) {
    while surplus.changed().await.is_ok() {
        let Some(upto) = *surplus.borrow_and_update() else { continue };
        let purged = async {
            // There may be no further append that repeats the request, so this one waits until the entry is applied.
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
        match purged.await {
            Ok(()) => tracing::info!(upto, "the log exceeded its size limit: purged"),
            Err(error) => {
                tracing::warn!(error, upto, "failed to purge the log, which exceeds its size limit");
            }
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
    fn log_beyond_its_limit_is_purged_to_half() {
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
    fn small_entries_share_a_run() {
        let size = with(RUN_BYTES * 10, 1);
        assert_eq!((size.bytes, size.runs.len()), (RUN_BYTES * 10, 10));
    }

    #[test]
    fn truncated_entries_are_not_counted() {
        let mut size = with(10, RUN_BYTES);
        size.truncate(6);
        assert_eq!((size.bytes, size.runs.len()), (5 * RUN_BYTES, 5));
        size.append(6, 7);
        assert_eq!(size.bytes, 5 * RUN_BYTES + 7);
        size.truncate(0);
        assert_eq!((size.bytes, size.runs.len()), (0, 0));
        // A run that is cut in the middle keeps its bytes and ends earlier.
        let mut size = with(99, RUN_BYTES / 10);
        let whole = size.bytes;
        size.truncate(96);
        assert_eq!(size.runs.back().map(|run| run.last), Some(95));
        assert_eq!(size.bytes, whole);
        size.purge(95);
        assert_eq!(size.bytes, 0);
    }
}
